"""Topic Names and Topic Filters: which are valid, and which filter matches which name.

Levels are separated by `/`; `+` matches one level, a final `#` any number of levels, including
none. Nothing here recurses: a topic of 65,000 slashes takes linear time and no stack. A receiver
can refuse such topics with `check_levels`.
"""

from typing import Final

from mypy_extensions import i64

from semel.mqtt.packet_types import MQTT5
from semel.mqtt.rules import (
    HASH_IS_LAST_LEVEL,
    PLUS_FILLS_ITS_LEVEL,
    SHARE_NAME_BEFORE_FILTER,
    SHARE_NAME_NOT_EMPTY,
    SHARE_NAME_WITHOUT_WILDCARDS,
    TOPIC_FILTER_NOT_EMPTY,
    TOPIC_LEVELS_WITHIN_LIMIT,
    TOPIC_NAME_NOT_EMPTY,
    TOPIC_NAME_WITHOUT_WILDCARDS,
)
from semel.mqtt.violation import Violation, report
from semel.mqtt.wire import MAXIMUM_TWO_BYTES, check_text

SHARE_PREFIX: Final = "$share/"

_NUL: Final = 0x00
_HASH: Final = 0x23
_PLUS: Final = 0x2B
_COMMA: Final = 0x2C
_SLASH: Final = 0x2F
_FIRST_SURROGATE: Final = 0xD800
_LAST_SURROGATE: Final = 0xDFFF

# A character takes at most four bytes, so no topic of this many characters is too long.
_SHORT: Final = MAXIMUM_TWO_BYTES // 4

# Characters of a long topic that a message quotes.
_QUOTED: Final = 80


def quoted(text: str) -> str:
    """A peer's text for a message: escaped, and truncated if it is long."""
    return ascii(text) if len(text) <= _QUOTED else ascii(text[:_QUOTED]) + "…"


def is_ordinary(topic: str) -> bool:
    """Whether no rule can apply to the topic, which holds for most topics.

    NUL, # and + are all below the comma in ASCII; surrogates cannot be encoded. One loop over the
    characters takes half as long as searching for each of these characters.
    """
    size: i64 = len(topic)
    at: i64 = 0
    while at < size:
        code: i64 = ord(topic[at])
        if code < _COMMA or _FIRST_SURROGATE <= code <= _LAST_SURROGATE:
            return False
        at += 1
    return 0 < size <= _SHORT


def check_topic_name(topic_name: str, field: str, found: list[Violation] | None) -> None:
    """Check a Topic Name: valid text, not empty, no wildcards [4.7].

    The caller must not call it for an empty name that a Topic Alias replaces.
    """
    if is_ordinary(topic_name):
        return
    check_text(topic_name, field, found)
    if not topic_name:
        report(found, Violation(TOPIC_NAME_NOT_EMPTY, f"empty {field}"))
    if "+" in topic_name or "#" in topic_name:
        report(found, Violation(TOPIC_NAME_WITHOUT_WILDCARDS, f"{field} {quoted(topic_name)}"))


def check_topic_filter(topic_filter: str, found: list[Violation] | None) -> None:
    """Check a Topic Filter: valid text, not empty, each wildcard occupies a level [4.7.1]."""
    size: i64 = len(topic_filter)
    is_text = size <= _SHORT
    hash_is_last_level = True
    plus_fills_its_level = True
    at: i64 = 0
    while at < size:
        code: i64 = ord(topic_filter[at])
        if code < _COMMA:
            if code == _HASH:
                if at + 1 < size or not _fills_level(topic_filter, at):
                    hash_is_last_level = False
            elif code == _PLUS:
                if not _fills_level(topic_filter, at):
                    plus_fills_its_level = False
            elif code == _NUL:
                is_text = False
        elif _FIRST_SURROGATE <= code <= _LAST_SURROGATE:
            is_text = False
        at += 1
    if not is_text:
        check_text(topic_filter, "topic_filter", found)
    if not size:
        report(found, Violation(TOPIC_FILTER_NOT_EMPTY, "empty topic_filter"))
    if not hash_is_last_level:
        report(found, Violation(HASH_IS_LAST_LEVEL, quoted(topic_filter)))
    if not plus_fills_its_level:
        report(found, Violation(PLUS_FILLS_ITS_LEVEL, quoted(topic_filter)))


def _fills_level(topic_filter: str, at: i64) -> bool:
    """Whether the character at this position is a whole level."""
    if at > 0 and ord(topic_filter[at - 1]) != _SLASH:
        return False
    return at + 1 == len(topic_filter) or ord(topic_filter[at + 1]) == _SLASH


def is_shared(topic_filter: str) -> bool:
    """Whether 5.0 reads the filter as a shared subscription."""
    return topic_filter.startswith(SHARE_PREFIX)


def check_share(topic_filter: str, version: int, found: list[Violation] | None) -> None:
    """Check in 5.0 that `$share/` is followed by ShareName/filter [4.8.2].

    In 3.1.1 `$share/` has no meaning.
    """
    if version != MQTT5 or not is_shared(topic_filter):
        return
    share_name, _, rest = topic_filter[len(SHARE_PREFIX) :].partition("/")
    if not share_name:
        report(found, Violation(SHARE_NAME_NOT_EMPTY, quoted(topic_filter)))
    if "+" in share_name or "#" in share_name:
        report(found, Violation(SHARE_NAME_WITHOUT_WILDCARDS, quoted(topic_filter)))
    if not rest:
        report(found, Violation(SHARE_NAME_BEFORE_FILTER, quoted(topic_filter)))


def split_share(topic_filter: str) -> tuple[str, str]:
    """ShareName and filter of a shared subscription; ("", filter) of any other subscription.

    A filter that begins with `$share/` but is not a shared subscription, which 3.1.1 permits, is
    returned unchanged.
    """
    if is_shared(topic_filter):
        share_name, _, rest = topic_filter[len(SHARE_PREFIX) :].partition("/")
        if share_name and rest and "+" not in share_name:
            return share_name, rest
    return "", topic_filter


def has_wildcard(topic_filter: str) -> bool:
    """Whether the filter can match more than one Topic Name."""
    return "+" in topic_filter or "#" in topic_filter


def check_levels(topic: str, maximum: int) -> None:
    """Check that a name or filter has at most `maximum` levels, which is our own limit."""
    levels = topic.count("/") + 1
    if levels > maximum:
        raise Violation(TOPIC_LEVELS_WITHIN_LIMIT, f"{levels} levels, at most {maximum}")


def topic_matches(topic_filter: str, topic_name: str) -> bool:
    """Whether a valid filter, not a shared one, matches a valid name exactly [4.7.3-4].

    A filter that begins with a wildcard does not match a name that begins with `$` [4.7.2-1].
    """
    if not has_wildcard(topic_filter):
        return topic_filter == topic_name
    if topic_name.startswith("$") and topic_filter[0] in "+#":
        return False
    pattern = topic_filter.split("/")
    levels = topic_name.split("/")
    if pattern[-1] == "#":
        pattern.pop()
        if len(levels) < len(pattern):
            return False
    elif len(levels) != len(pattern):
        return False
    for i in range(len(pattern)):
        if pattern[i] != "+" and pattern[i] != levels[i]:
            return False
    return True

"""Topic filters of rules, in which values of the client are substituted: `users/%u/#`.

    %u              its user name, if it has proved one
    %c              its client identifier
    %{claim:NAME}   a claim of its token
    %%              a percent sign

Substitution is literal and never widens the rights of a client. A value is *unusable* if it is
empty or contains `+`, `#`, `/` or NUL. Then an allow rule matches nothing, and a deny rule matches
all topics from that level on. A value at the beginning of a filter does not match a level that
begins with `$`. A rule with a value that the client does not have at all matches nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from semel.broker.access.filter_cover import DOLLAR, HASH, normalize, split_levels
from semel.broker.cursors import STREAM_TOPICS
from semel.mqtt.topics import check_topic_filter, is_shared, quoted
from semel.mqtt.violation import Violation

# The values of Variable.kind.
USER_NAME: Final = "user"
CLIENT_ID: Final = "client"
CLAIM: Final = "claim"

_SUBSTITUTION: Final = re.compile(r"%(?:([uc%])|\{claim:([^{}]+)\})?")
# What no usable value contains.
_UNUSABLE: Final = re.compile(r"[+#/\0]")


@dataclass(frozen=True, slots=True)
class Variable:
    """A value of the client. `name` is that of a claim."""

    kind: str
    name: str = ""


# One level of a filter: plain text or a wildcard, or a mixture of texts and variables.
Level = str | tuple[str | Variable, ...]
Template = tuple[Level, ...]


@dataclass(frozen=True, slots=True)
class ClientValues:
    """The values of a client that are substituted, and the variables whose values are unusable."""

    usable: Mapping[Variable, str]
    unusable: frozenset[Variable]


class TemplateError(Exception):
    """A text that is not a template. `offset` is the position of the problem in it."""

    offset: int

    def __init__(self, sentence: str, *, offset: int = 0) -> None:
        super().__init__(sentence)
        self.offset = offset


def is_usable(value: str) -> bool:
    """Whether the value can be substituted: it is a part of one level, and not a wildcard."""
    return value != "" and _UNUSABLE.search(value) is None


def parse_template(text: str) -> Template:
    """Parse a topic filter with substitutions. Raises TemplateError."""
    parts: list[str | Variable] = []
    end = 0
    for found in _SUBSTITUTION.finditer(text):
        parts.append(text[end : found.start()])
        end = found.end()
        letter, claim = found.groups()
        if letter == "%":
            parts.append("%")
        elif letter is not None:
            parts.append(Variable(USER_NAME if letter == "u" else CLIENT_ID))
        elif claim is not None:
            parts.append(Variable(CLAIM, claim))
        else:
            sentence = (
                f"{quoted(text[found.start() : found.start() + 2])} is not a substitution: use %u, "
                "%c or %{claim:NAME}, and %% for a percent sign"
            )
            raise TemplateError(sentence, offset=found.start())
    parts.append(text[end:])
    return make_template(parts, text)


def make_template(parts: list[str | Variable], text: str) -> Template:
    """The template of these parts, which are those of `text`. Raises TemplateError."""
    # Any name does for a value: what is valid with one is valid with all.
    _check_filter("".join(each if isinstance(each, str) else "v" for each in parts), text)
    levels: list[list[str | Variable]] = [[]]
    for part in parts:
        if isinstance(part, Variable):
            levels[-1].append(part)
            continue
        first, *others = part.split("/")
        levels[-1].append(first)
        levels.extend([each] for each in others)
    template = tuple(_level(each) for each in levels)
    if not isinstance(template[0], str) and _is_text(template[0][0], DOLLAR):
        raise TemplateError("no value can be substituted in a first level that begins with $")
    return normalize(template)


def literal_template(text: str) -> Template:
    """The template of a topic filter without substitutions. Raises TemplateError."""
    _check_filter(text, text)
    return split_levels(text)


def substitute(level: Level, values: ClientValues) -> str | None:
    """The text of a level for a client; None if a value is missing or unusable."""
    if isinstance(level, str):
        return level
    text = ""
    for part in level:
        value = part if isinstance(part, str) else values.usable.get(part)
        if value is None:
            return None
        text += value
    return text


def is_unusable(level: Level, values: ClientValues) -> bool:
    """Whether the client has an unusable value in this level."""
    return not isinstance(level, str) and not values.unusable.isdisjoint(level)


def substitute_all(
    template: Template, values: ClientValues, *, is_allow: bool
) -> tuple[str, ...] | None:
    """The filter of an allow or deny rule for a client; None if it matches nothing."""
    levels: list[str] = []
    for level in template:
        text = substitute(level, values)
        if text is None:
            if is_allow or not is_unusable(level, values):
                return None
            return normalize((*levels, HASH))
        if not levels and not isinstance(level, str) and text.startswith(DOLLAR):
            return None
        levels.append(text)
    return tuple(levels)


def variables_of(template: Template) -> set[Variable]:
    """The variables in a template."""
    return {
        part
        for level in template
        if not isinstance(level, str)
        for part in level
        if isinstance(part, Variable)
    }


def _check_filter(sample: str, text: str) -> None:
    try:
        check_topic_filter(sample, None)
    except Violation as violation:
        reason = violation.rule.sentence.removesuffix(".")
        raise TemplateError(f"{quoted(text)} is not a topic filter: {reason}") from None
    if is_shared(sample):
        raise TemplateError(
            "a shared subscription is checked like any other: give the filter without $share and "
            "its group"
        )
    if sample.startswith(STREAM_TOPICS):
        raise TemplateError(
            "a replay is checked like any other subscription: give the filter without $stream and "
            "its name"
        )


def _level(parts: list[str | Variable]) -> Level:
    """A level in its shortest form: without empty texts, and as one text if it has no variable."""
    if all(isinstance(part, str) for part in parts):
        return "".join(part for part in parts if isinstance(part, str))
    joined: list[str | Variable] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part != "":
            joined.append(part)
    return tuple(joined)


def _is_text(part: str | Variable, beginning: str) -> bool:
    return isinstance(part, str) and part.startswith(beginning)

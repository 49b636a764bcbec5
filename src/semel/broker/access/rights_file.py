"""Reads a rights file: one rule per line, of which the first that matches decides.

    # action  who          what               on               limits
    allow     user:alice   publish,subscribe  plant/1/#        max-qos 1
    allow     cert:press   publish            plant/press/+    no-retain
    deny      anonymous    subscribe          $SYS/#

`subscribe` includes `receive`, in allow and in deny rules: what a client may not subscribe to, it
does not get by a broader subscription either. The mistakes of a file are reported at once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from semel.broker.access.file_reading import OTHERS_WRITE, UnreadableFile, read_with_mode
from semel.broker.access.rights_rules import (
    CERTIFIED,
    CLAIMING,
    CLIENT,
    EVERYONE,
    GROUP,
    MAXIMUM_PROBLEMS,
    MAXIMUM_QOS,
    NO_USER,
    PUBLISH,
    RECEIVE,
    SUBSCRIBE,
    USER,
    RightsError,
    RightsRule,
    Who,
)
from semel.broker.access.topic_template import Template, TemplateError, parse_template
from semel.mqtt.topics import quoted

# Some 100,000 rules.
MAXIMUM_FILE_BYTES: Final = 16 * 1024 * 1024

# The words of the third column.
_ACTIONS: Final = {"publish": PUBLISH, "subscribe": SUBSCRIBE | RECEIVE, "receive": RECEIVE}
_ALL: Final = "all"
_NAMED: Final = (USER, GROUP, CERTIFIED, CLIENT, CLAIMING)
_ALLOW: Final = "allow"
_VERBS: Final = (_ALLOW, "deny")
_COLUMNS: Final = ("allow or deny", "WHO", "WHAT", "TOPIC")
_MAX_QOS: Final = "max-qos"
_NO_RETAIN: Final = "no-retain"
# The limits of an allow rule, and the actions that each one limits.
_LIMITS: Final = {_MAX_QOS: PUBLISH | SUBSCRIBE, _NO_RETAIN: PUBLISH}
_QOS_VALUES: Final = ("0", "1", "2")
_QUOTE: Final = '"'
_ESCAPE: Final = "\\"
_WHO: Final = (
    "user:NAME, group:NAME, cert:NAME, client:ID, claim:NAME=VALUE, anonymous, or * for everyone"
)


def read_text(path: Path) -> tuple[str, tuple[str, ...]]:
    """The text of a file of rights, and warnings about the file.

    Raises RightsError if it cannot be read, is too large, or is not UTF-8.
    """
    try:
        data, mode = read_with_mode(path, MAXIMUM_FILE_BYTES)
    except UnreadableFile as problem:
        raise RightsError([f"{path}: {problem}"]) from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise RightsError([f"{path}, line {line}: the text is not UTF-8"]) from None
    warnings = []
    if mode & OTHERS_WRITE:
        warnings.append(
            f"{path}: every user of this machine can change the rights: run chmod o-w {path}"
        )
    return text, tuple(warnings)


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text that are neither empty nor comments, with their numbers."""
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip(" \t\r")
        if line and not line.lstrip(" \t").startswith("#"):
            yield number, line


def parse_rights(text: str, *, name: str) -> list[RightsRule]:
    """The rules in the text of a rights file.

    `name` is that of the file, for messages. Raises RightsError with the first mistake of each
    line that has one, up to the maximum.
    """
    rules: list[RightsRule] = []
    problems: list[str] = []
    for number, line in lines_of(text):
        try:
            rules.append(_parse_rule(line, number=number, order=len(rules)))
        except _Mistake as mistake:
            problems.append(f"{name}, line {number}, column {mistake.column}: {mistake}")
            if len(problems) == MAXIMUM_PROBLEMS:
                break
    if problems:
        raise RightsError(problems)
    return rules


class _Mistake(Exception):
    """Something in a line that is not valid. Columns count from 1."""

    column: Final[int]

    def __init__(self, sentence: str, *, column: int) -> None:
        super().__init__(sentence)
        self.column = column


@dataclass(frozen=True)
class _Word:
    """A word of a line: without its quotes, and as it is written."""

    text: str
    column: int
    source: str

    @property
    def is_quoted(self) -> bool:
        """Whether positions in the text differ from those in the line."""
        return self.text != self.source


def _parse_rule(line: str, *, number: int, order: int) -> RightsRule:
    words = _split_words(line)
    verb = words[0]
    if verb.text not in _VERBS:
        raise _unknown(verb, "allow or deny", _VERBS)
    if len(words) < len(_COLUMNS):
        missing = _COLUMNS[len(words)]
        sentence = f"{missing} is missing: a rule is `{verb.text} WHO WHAT TOPIC`"
        raise _Mistake(sentence, column=len(line) + 1)
    _, who, what, topic, *limits = words
    is_allow = verb.text == _ALLOW
    found_who = _parse_who(who)
    actions = _parse_actions(what)
    template = _parse_topic(topic)
    max_qos, allows_retain = _parse_limits(limits, is_allow=is_allow, actions=actions)
    return RightsRule(
        order,
        number,
        " ".join(word.source for word in words),
        is_allow,
        found_who,
        actions,
        template,
        max_qos,
        allows_retain,
    )


def _split_words(line: str) -> list[_Word]:
    """The words of a line. Quotes hold together what has spaces: user:"Ann Lee"."""
    words: list[_Word] = []
    at = 0
    while at < len(line):
        if line[at] in " \t":
            at += 1
            continue
        start = at
        text = ""
        while at < len(line) and line[at] not in " \t":
            if line[at] == _QUOTE:
                content, at = _quoted_part(line, at)
                text += content
            else:
                text += line[at]
                at += 1
        words.append(_Word(text, start + 1, line[start:at]))
    return words


def _quoted_part(line: str, start: int) -> tuple[str, int]:
    """The text between two quotes, of which the first is at `start`, and the position after it."""
    text = ""
    at = start + 1
    while at < len(line):
        if line[at] == _QUOTE:
            return text, at + 1
        if line[at] == _ESCAPE:
            at += 1
            if line[at : at + 1] not in (_QUOTE, _ESCAPE):
                raise _Mistake(
                    'in quotes, a backslash stands before another one or before ": write \\\\',
                    column=at,
                )
        text += line[at]
        at += 1
    raise _Mistake('there is no second " after this one', column=start + 1)


def _parse_who(word: _Word) -> Who:
    if word.text in (EVERYONE, NO_USER):
        return Who(word.text)
    kind, colon, value = word.text.partition(":")
    if not colon or kind not in _NAMED:
        raise _unknown(word, _WHO, (*_NAMED, NO_USER))
    if not value:
        raise _Mistake(f"there is no name after {kind}:", column=word.column)
    if kind == CLAIMING:
        name, equals, _ = value.partition("=")
        if not name or not equals:
            raise _Mistake(
                f"{quoted(word.text)} has no value: write claim:NAME=VALUE", column=word.column
            )
    return Who(kind, value)


def _parse_actions(word: _Word) -> int:
    if word.text == _ALL:
        return PUBLISH | SUBSCRIBE | RECEIVE
    actions = 0
    column = word.column
    for name in word.text.split(","):
        if name not in _ACTIONS:
            known = (*_ACTIONS, _ALL)
            part = _Word(name, word.column if word.is_quoted else column, name)
            raise _unknown(
                part, "publish, subscribe, receive (with commas between them) or all", known
            )
        actions |= _ACTIONS[name]
        column += len(name) + 1
    return actions


def _parse_topic(word: _Word) -> Template:
    try:
        return parse_template(word.text)
    except TemplateError as problem:
        offset = 0 if word.is_quoted else problem.offset
        raise _Mistake(str(problem), column=word.column + offset) from None


def _parse_limits(words: list[_Word], *, is_allow: bool, actions: int) -> tuple[int, bool]:
    """The highest QoS, and whether messages may be retained."""
    max_qos = MAXIMUM_QOS
    allows_retain = True
    seen: set[str] = set()
    rest = iter(words)
    for word in rest:
        if word.text.startswith("#"):
            raise _Mistake("a comment must have a line of its own", column=word.column)
        if word.text not in _LIMITS:
            raise _unknown(word, f"{_MAX_QOS} or {_NO_RETAIN}", _LIMITS)
        if word.text in seen:
            raise _Mistake(f"{word.text} is given twice", column=word.column)
        seen.add(word.text)
        if not is_allow:
            raise _Mistake(
                f"{word.text} limits what is allowed: a deny rule has no limits",
                column=word.column,
            )
        if not actions & _LIMITS[word.text]:
            raise _Mistake(
                f"{word.text} has no effect on this rule: it limits "
                f"{'publish and subscribe' if word.text == _MAX_QOS else 'publish'}",
                column=word.column,
            )
        if word.text == _NO_RETAIN:
            allows_retain = False
            continue
        value = next(rest, None)
        if value is None or value.text not in _QOS_VALUES:
            found = "nothing" if value is None else quoted(value.text)
            column = (word if value is None else value).column
            raise _Mistake(f"expected 0, 1 or 2 after max-qos, found {found}", column=column)
        max_qos = int(value.text)
    return max_qos, allows_retain


def _unknown(word: _Word, expected: str, known: Iterable[str]) -> _Mistake:
    near = get_close_matches(word.text.partition(":")[0], known, n=1)
    suggestion = f"; did you mean {near[0]}?" if near else ""
    sentence = f"expected {expected}, found {quoted(word.text)}{suggestion}"
    return _Mistake(sentence, column=word.column)

"""Topic templates of a landing file: which topics a table takes, and the columns of their levels.

    site/{plant}/{line:int}/temp     takes site/a/7/temp: plant is "a", line is 7
    site/+/#                         wildcards take levels as in a Topic Filter, without a column

A template is a Topic Filter in which some levels have a name. So the rules of the standard about
filters hold for it: `+` and a named level take exactly one level, which may be empty; a final `#`
takes any number; a first level that is not literal takes no topic that begins with `$`
[MQTT-4.7.2-1].
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from semel.counts import count
from semel.mqtt.topics import check_topic_filter, is_shared, topic_matches
from semel.mqtt.violation import Violation
from semel.pipeline.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

# The types of levels, and the Spark types of their columns. A level of type int has at most 18
# digits, which a BIGINT always holds.
LEVEL_TYPES: Final = {"string": "string", "int": "bigint"}
INTEGER: Final = r"[+-]?[0-9]{1,18}"

_LEVEL: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?::([a-z]+))?\}")
# Characters that have a meaning in a regular expression of Java.
_SPECIAL: Final = re.compile(r"([\\^$.|?*+()\[\]{}])")


@dataclass(frozen=True)
class NamedLevel:
    """A level that becomes a column."""

    column: str
    # A key of LEVEL_TYPES.
    kind: str
    # Counted from 0.
    at: int


@dataclass(frozen=True)
class LandingTemplate:
    """A parsed template."""

    text: str
    levels: tuple[str, ...]
    named: tuple[NamedLevel, ...]

    @cached_property
    def topic_filter(self) -> str:
        """The Topic Filter that takes at least the topics of the template."""
        at = {each.at for each in self.named}
        return "/".join("+" if place in at else level for place, level in enumerate(self.levels))

    def explain(self, topic: str) -> str | None:
        """Why the template does not take a valid topic; None if it does."""
        if not topic_matches(self.topic_filter, topic):
            return self._mismatch(topic)
        found = topic.split("/")
        for each in self.named:
            if each.kind == "int" and re.fullmatch(INTEGER, found[each.at]) is None:
                return f"level {each.at + 1} is {found[each.at]!r}, but {each.column} is an int"
        return None

    def _mismatch(self, topic: str) -> str:
        if topic.startswith("$") and self.topic_filter[0] in "+#":
            return "it begins with $, and the template with a wildcard"
        found = topic.split("/")
        expected = self.topic_filter.split("/")
        for place, level in enumerate(expected):
            if level == "#":
                break
            if place >= len(found):
                break
            if level not in ("+", found[place]):
                return f"level {place + 1} is {found[place]!r}, not {level!r}"
        least = len(expected) - 1 if expected[-1] == "#" else len(expected)
        which = f"at least {least}" if expected[-1] == "#" else f"{least}"
        return f"it has {count(len(found), 'level')}, and the template {which}"

    # --- as expressions of Spark ------------------------------------------------------------------

    @cached_property
    def pattern(self) -> str:
        """A regular expression of Java that finds the topics of the template."""
        kinds = {each.at: each.kind for each in self.named}
        parts = []
        for place, level in enumerate(self.levels):
            slash = "/" if place else ""
            if place in kinds:
                parts.append(slash + (INTEGER if kinds[place] == "int" else "[^/]*"))
            elif level == "+":
                parts.append(f"{slash}[^/]*")
            elif level == "#":
                parts.append("(?:/.*)?" if place else ".*")
            else:
                parts.append(slash + _SPECIAL.sub(r"\\\1", level))
        # Not a topic that begins with $, if the first level is not literal.
        begin = "(?!\\$)" if self.topic_filter[0] in "+#" else ""
        return f"(?s)\\A{begin}{''.join(parts)}\\z"

    @property
    def prefix(self) -> str:
        """What all topics of the template begin with."""
        literal: list[str] = []
        for level in self.topic_filter.split("/"):
            if level == "#":
                # It takes its parent level, too, which has no slash at its end.
                return "/".join(literal)
            if level == "+":
                return "".join(f"{each}/" for each in literal)
            literal.append(level)
        return self.topic_filter

    @property
    def suffix(self) -> str:
        """What all topics of the template end with."""
        literal: list[str] = []
        for level in reversed(self.topic_filter.split("/")):
            if level in ("+", "#"):
                return "".join(f"/{each}" for each in reversed(literal))
            literal.append(level)
        return self.topic_filter

    def takes(self, topic: "Column") -> "Column":
        """Whether the template takes a topic."""
        from pyspark.sql import functions

        if not self.named and self.topic_filter == self.prefix:
            return topic == functions.lit(self.text)
        if self.text == "#":
            return ~topic.startswith("$")
        found = topic.rlike(self.pattern)
        # Most topics of other templates are refused without a regular expression.
        if self.suffix:
            found = topic.endswith(self.suffix) & found
        return topic.startswith(self.prefix) & found if self.prefix else found

    def columns(self, topic: "Column") -> "dict[str, Column]":
        """The columns of the named levels, of a topic that the template takes."""
        from pyspark.sql import functions

        return {
            each.column: functions.split_part(
                topic, functions.lit("/"), functions.lit(each.at + 1)
            ).cast(LEVEL_TYPES[each.kind])
            for each in self.named
        }

    # --- as Arrow columns -------------------------------------------------------------------------

    def arrow_columns(self, topics: "pa.Array") -> "dict[str, pa.Array]":
        """The same columns as Arrow arrays, of topics that the template takes."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.named:
            return {}
        # Topics repeat: each that differs is split once.
        encoded = topics.dictionary_encode()
        levels = pc.split_pattern(encoded.dictionary, "/")
        found = {}
        for each in self.named:
            column = pc.list_element(levels, each.at)
            if each.kind == "int":
                # Arrow reads no plus sign.
                column = pc.utf8_ltrim(column, "+").cast(pa.int64())
            found[each.column] = column.take(encoded.indices)
        return found


def parse_template(text: str) -> LandingTemplate:
    """Parse a template. Raises OptionError."""
    levels = text.split("/")
    named = []
    for place, level in enumerate(levels):
        if "{" not in level and "}" not in level:
            continue
        found = _LEVEL.fullmatch(level)
        if found is None:
            raise OptionError(
                f"topic {text!r}: level {place + 1} is {level!r}, but a named level is"
                " {name} or {name:type}, and fills the level"
            )
        kind = found[2] or "string"
        if kind not in LEVEL_TYPES:
            raise OptionError(
                f"topic {text!r}: level {place + 1} has type {kind}, but a level is"
                f" {' or '.join(LEVEL_TYPES)}"
            )
        named.append(NamedLevel(found[1], kind, place))
    names = [each.column.lower() for each in named]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise OptionError(f"topic {text!r}: two levels are named {twice}")
    made = LandingTemplate(text, tuple(levels), tuple(named))
    try:
        check_topic_filter(made.topic_filter, None)
    except Violation as problem:
        raise OptionError(f"topic {text!r} is not a Topic Filter: {problem}") from None
    if is_shared(text):
        raise OptionError(f"topic {text!r}: the record has topics, and no shared subscriptions")
    return made

"""A semel.toml that is made from the configuration of another broker, and what became of each line.

A converter fills the tables of a `Conversion`, and notes one outcome for each directive that it
read. `render` writes the file: each value has the place that it comes from, and differences and
what could not be converted are comments at the end.
"""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from semel.cli.mosquitto_config import Directive
from semel.cli.safe_text import shown_text
from semel.settings import Section, identifying_key, settings_of
from semel.settings_values import Setting, Value, toml_text

# What became of a directive.
CONVERTED: Final = "converted"
CHANGED: Final = "converted with a difference"
NOT_NEEDED: Final = "not needed"
NO_EQUIVALENT: Final = "no equivalent"
VERDICTS: Final = (CONVERTED, CHANGED, NOT_NEEDED, NO_EQUIVALENT)

WIDTH: Final = 98


@dataclass(frozen=True)
class Outcome:
    """What became of one directive."""

    directive: Directive
    verdict: str
    # What is different, why it is not needed, or what to do; "" if it was simply converted.
    sentence: str = ""

    @property
    def line(self) -> str:
        """The outcome in one line."""
        reason = f": {self.sentence}" if self.sentence else ""
        directive = self.directive
        return shown_text(f"{directive.place}: {directive.text}: {self.verdict}{reason}")

    def to_json(self) -> dict[str, object]:
        """Its fields for --json."""
        return {
            "file": self.directive.file,
            "line": self.directive.line,
            "directive": self.directive.text,
            "verdict": self.verdict,
            "sentence": self.sentence,
        }


@dataclass
class TableDraft:
    """A table of the new file."""

    section: type[Section]
    # Why the table is commented out, in one sentence.
    disabled_because: str | None = None
    # What is written above the table.
    notes: list[str] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    # By key, what is written behind the value.
    remarks: dict[str, str] = field(default_factory=dict)

    def set(self, key: str, value: Value, remark: str) -> None:
        """Set a value; `remark` says where it comes from."""
        self.values[key] = value
        self.remarks[key] = remark

    def setting(self, key: str) -> Setting:
        """The declaration of a key."""
        return settings_of(self.section)[key]

    def render(self) -> list[str]:
        """The lines of the table."""
        name = self.section.section
        header = f"[{name}]" if identifying_key(self.section) is None else f"[[{name}]]"
        lines = [line for note in self.notes for line in comment(note)]
        values = {key: toml_text(self.setting(key), value) for key, value in self.values.items()}
        width = max((len(f"{key} = {value}") for key, value in values.items()), default=0)
        body = [header]
        for key, value in values.items():
            pair = f"{key} = {value}"
            body.append(f"{pair:<{min(width, WIDTH // 2)}}  # {shown_text(self.remarks[key])}")
        if self.disabled_because is not None:
            lines += comment(f"This table is disabled, because {self.disabled_because}.")
            body = [f"#{line}" for line in body]
        return [*lines, *body]


@dataclass
class Conversion:
    """The new file, and what became of each directive."""

    source: str
    tables: list[TableDraft] = field(default_factory=list)
    outcomes: dict[Directive, Outcome] = field(default_factory=dict)
    # What has a different default, for the head of the file.
    defaults: list[str] = field(default_factory=list)

    def note(self, directive: Directive, verdict: str, sentence: str = "") -> None:
        """Note what became of a directive. The sentences of several differences are joined."""
        earlier = self.outcomes.get(directive)
        if earlier is not None and VERDICTS.index(earlier.verdict) > VERDICTS.index(verdict):
            verdict = earlier.verdict
        if earlier is not None and earlier.sentence and earlier.sentence != sentence:
            sentence = f"{earlier.sentence}; {sentence}" if sentence else earlier.sentence
        self.outcomes[directive] = Outcome(directive, verdict, sentence)

    def in_order(self, directives: Iterable[Directive]) -> list[Outcome]:
        """The outcomes in the order of the directives. Each has one."""
        return [self.outcomes[each] for each in directives]

    def number(self, table: TableDraft, key: str, directive: Directive, wanted: int) -> None:
        """Set a number within the bounds of its setting, and note whether it had to change."""
        declared = table.setting(key)
        low, high = declared.minimum, declared.maximum
        value = wanted
        if low is not None and wanted < low:
            value = int(low)
        if high is not None and wanted > high:
            value = int(high)
        table.set(key, value, directive.place)
        if value == wanted:
            self.note(directive, CONVERTED)
        else:
            bound = "at least" if value > wanted else "at most"
            self.note(directive, CHANGED, f"{key} must be {bound} {value}")

    def render(self, outcomes: Sequence[Outcome]) -> str:
        """The text of the new file."""
        lines = comment(f"Converted from {self.source} by `semel config import`.")
        for sentence in self.defaults:
            lines += comment(sentence)
        for table in self.tables:
            lines += ["", *table.render()]
        for verdict in (CHANGED, NO_EQUIVALENT, NOT_NEEDED):
            listed = [each for each in outcomes if each.verdict == verdict]
            if listed:
                lines += ["", *comment(f"{verdict.capitalize()}:")]
            for each in listed:
                directive = each.directive
                text = f"{directive.place}: {directive.text}: {each.sentence}"
                lines += comment(text, hanging="    ")
        return "\n".join(lines) + "\n"


def comment(text: str, *, hanging: str = "") -> list[str]:
    """A text as lines of comments."""
    return textwrap.wrap(
        shown_text(text),
        WIDTH,
        initial_indent="# ",
        subsequent_indent=f"# {hanging}",
        break_on_hyphens=False,
        break_long_words=False,
    )

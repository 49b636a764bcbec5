"""Effective settings with their origin, as `semel config show` prints them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from semel.cli.safe_text import shown_text
from semel.settings import Section, Settings, identifying_key, settings_of
from semel.settings_values import Setting, Value, toml_text

DEFAULT: Final = "default"
FILE: Final = "file"
ENVIRONMENT: Final = "environment"
# How the source of a value from the environment begins.
VARIABLE_PREFIX: Final = "environment variable "
# What is shown instead of a secret.
SECRET: Final = "(set)"
# Origins are aligned up to this column.
WIDEST_VALUE: Final = 44


@dataclass(frozen=True)
class EffectiveSetting:
    """One setting of one run."""

    declared: Setting
    value: Value
    # What errors call its source; None: it has its default.
    source: str | None

    @property
    def is_changed(self) -> bool:
        """Whether it differs from the default; a required setting has none."""
        return self.declared.required or self.value != self.declared.default

    @property
    def is_secret(self) -> bool:
        """Whether it has a value that must not be shown."""
        return self.declared.secret and self.value is not None and self.source is not None

    @property
    def origin(self) -> str:
        """The kind of its source."""
        if self.source is None:
            return DEFAULT
        return ENVIRONMENT if self.source.startswith(VARIABLE_PREFIX) else FILE

    @property
    def line(self) -> str:
        """Key and value as in a file; a secret makes it a comment."""
        if self.is_secret:
            return f"#{self.declared.key} = {SECRET}"
        return f"{self.declared.key} = {toml_text(self.declared, self.value)}"

    def to_json(self) -> dict[str, object]:
        """Its fields for --json."""
        default = None if self.declared.required else _plain(self.declared.default)
        return {
            "key": self.declared.key,
            "value": SECRET if self.is_secret else _plain(self.value),
            "default": default,
            "changed": self.is_changed,
            "origin": self.origin,
            "source": self.source,
        }


@dataclass(frozen=True)
class EffectiveSection:
    """One table of settings: a section, or an instance of a repeated one."""

    section: type[Section]
    settings: Sequence[EffectiveSetting]

    @property
    def header(self) -> str:
        """Its header in the file."""
        name = self.section.section
        return f"[{name}]" if identifying_key(self.section) is None else f"[[{name}]]"

    def lines(self) -> Iterator[str]:
        """The table as in a file, with the origin of each value in a comment."""
        yield self.header
        width = max((len(each.line) for each in self.settings), default=0)
        for each in self.settings:
            source = DEFAULT if each.source is None else each.source
            yield shown_text(f"{each.line:<{min(width, WIDEST_VALUE)}}  # {source}")

    def to_json(self) -> dict[str, object]:
        """Its fields for --json."""
        identifying = identifying_key(self.section)
        name = next(
            (each.value for each in self.settings if each.declared.key == identifying), None
        )
        return {
            "section": self.section.section,
            "name": name,
            "settings": [each.to_json() for each in self.settings],
        }


def effective_sections(
    settings: Settings, sections: Iterable[type[Section]], *, only_changed: bool
) -> list[EffectiveSection]:
    """The tables of these sections; with `only_changed`, what differs from the defaults."""
    found = []
    for section in sections:
        if identifying_key(section) is None:
            known = settings_of(section)
            sources = {
                key: source
                for key in known
                if (source := settings.source_of(section.section, key)) is not None
            }
            found.append(_effective(settings.of(section), sources))
        else:
            tables = settings.instance_sources[section.section]
            for instance, given in zip(settings.all_of(section), tables, strict=True):
                found.append(_effective(instance, given))
    if not only_changed:
        return found
    changed = [
        EffectiveSection(each.section, [one for one in each.settings if one.is_changed])
        for each in found
    ]
    return [each for each in changed if each.settings]


def _effective(instance: Section, sources: Mapping[str, str]) -> EffectiveSection:
    section = type(instance)
    return EffectiveSection(
        section,
        [
            EffectiveSetting(declared, getattr(instance, key), sources.get(key))
            for key, declared in settings_of(section).items()
        ],
    )


def _plain(value: Value) -> object:
    """A value in the types of JSON."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return list(value) if isinstance(value, tuple) else str(value)

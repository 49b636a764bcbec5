"""Settings of the whole product, from a file, the environment and flags.

A room declares its settings as a section, a frozen dataclass whose fields are made by `setting`:

    @dataclass(frozen=True)
    class CacheSettings:
        "The cache."

        section: ClassVar[str] = "cache"
        entries: int = setting(90, "The maximum number of entries.", minimum=1, maximum=400)
        lifetime: float = setting(10.0, "How long an entry is kept.", unit=SECONDS)

        def __post_init__(self) -> None:
            check(self)

and reads them, typed, as `settings.of(CacheSettings).entries`. A later source overrides an earlier
one:

    default  <  semel.toml  <  SEMEL_CACHE_ENTRIES  <  --entries

This module does not import the rooms: the caller of `load` passes all sections of the product, so
that a misspelled name can be distinguished from a name of another room.

A section that may occur several times, `[[cache]]` in the file, declares which key identifies an
instance: `repeated: ClassVar[str] = "name"`. That key, and other keys without a default, are made
by `required`. `settings.all_of(CacheSettings)` returns all instances; they have no environment
variables and no flags.

A declaration serves everywhere: `load` validates with it, `describe` prints the example file from
it, and `semel.cli.setting_options` makes the flags of a command. An undeclared name is an error in
all three sources. `load` reports everything that is wrong, not only the first problem. The value of
a secret is never printed, and a secret has no flag, because other users can see command lines.
"""

import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Final, Protocol, TypeGuard, TypeVar, get_args, get_type_hints

# Rooms that declare a section import the units from here.
from semel.settings_values import BYTES as BYTES
from semel.settings_values import SECONDS as SECONDS
from semel.settings_values import (
    Rule,
    Setting,
    Unit,
    Value,
    allowed,
    checked,
    read_text,
    read_value,
    shown,
    summary,
    toml_text,
    unfit,
)

# By section and key: what click parsed on the command line.
Flags = Mapping[str, Mapping[str, object]]

# The line of each table and key in a file.
Lines = dict[tuple[str | int, ...], int]

# The environment variable that names the file if there is no --config.
CONFIG_VARIABLE: Final = "SEMEL_CONFIG"
# Variables that begin with SEMEL_ and are not settings: of this module, of a command without a
# section, of the build and of the tests.
OTHER_VARIABLES: Final = frozenset(
    {
        *(CONFIG_VARIABLE, "SEMEL_LOAD_PASSWORD", "SEMEL_PROBE_PASSWORD"),
        *("SEMEL_PURE", "SEMEL_TEST_MODE"),
    }
)

# One word, so that SEMEL_<SECTION>_<KEY> is unambiguous.
SECTION_NAME: Final = re.compile(r"[a-z][a-z0-9]*")
KEY_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# Line numbers are not computed for a value that spans more lines than this.
MOST_STATEMENT_LINES: Final = 200

T = TypeVar("T")


class SettingProblem(str):
    """A sentence about one setting, which names it as flags and files do.

    `setting` is the key, and `rest` the part of the sentence after the name of the setting. A
    caller whose users know the setting by another name can put that name before `rest`.
    """

    setting: str
    rest: str

    def __new__(cls, sentence: str, *, setting: str, rest: str) -> "SettingProblem":
        problem = super().__new__(cls, sentence)
        problem.setting = setting
        problem.rest = rest
        return problem


class SettingsError(Exception):
    """Invalid settings. `problems` has one sentence for each."""

    problems: Final[tuple[str, ...]]

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        lines = self.problems
        if len(lines) > 1:
            lines = (f"{len(lines)} settings are invalid:", *(f"  {line}" for line in lines))
        super().__init__("\n".join(lines))


class Section(Protocol):
    """A frozen dataclass with the name of its section in semel.toml; fields made by `setting`."""

    section: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


S = TypeVar("S", bound=Section)


# --- declaring ------------------------------------------------------------------------------------


def setting(
    default: T,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    unit: Unit | None = None,
    secret: bool = False,
    rule: Rule | None = None,
) -> T:
    """A field of a section. `help` says what it does and what happens at its bounds.

    Its annotation is bool, int, float, str, Path, one of these or None, or tuple[str, ...]. With
    `unit`, an int or float is a duration or a size, at least 0 if there is no `minimum`, and may be
    written with a unit ("5m", "64KiB"). Strings, paths and items of a list are not empty: what is
    optional is declared as `str | None`, and an empty string means None. A string may have a
    `rule`.
    """
    metadata = {
        "default": default,
        "help": help,
        "minimum": 0 if minimum is None and unit is not None else minimum,
        "maximum": maximum,
        "choices": tuple(choices),
        "unit": unit,
        "secret": secret,
        "rule": rule,
    }
    return field(default=default, metadata=metadata, repr=not secret)


def required(example: T, help: str, *, rule: Rule | None = None, secret: bool = False) -> T:
    """A field of a repeated section without a default; `describe` shows the example."""
    metadata = {
        "default": example,
        "help": help,
        "rule": rule,
        "secret": secret,
        "required": True,
    }
    declaration: T = field(metadata=metadata, repr=not secret)
    return declaration


def settings_of(section: type[Section]) -> dict[str, Setting]:
    """The settings that a section declares, by key. Raises TypeError for a wrong declaration."""
    name = section.section
    if not SECTION_NAME.fullmatch(name):
        raise TypeError(f"{section.__name__}: {name!r} is not a valid section name")
    hints = get_type_hints(section)
    declared: dict[str, Setting] = {}
    for declaration in fields(section):
        qualified_name = f"{section.__name__}.{declaration.name}"
        if "help" not in declaration.metadata:
            raise TypeError(f"{qualified_name} is not made by setting()")
        kind, optional = _kind_of(hints[declaration.name], qualified_name)
        found = Setting(name, declaration.name, kind, optional, **declaration.metadata)
        _check_declaration(found, qualified_name)
        declared[found.key] = found
    identifying = identifying_key(section)
    if identifying is None and any(each.required for each in declared.values()):
        raise TypeError(f"{section.__name__}: only a repeated section can have required keys")
    if identifying is not None and not (identifying in declared and declared[identifying].required):
        raise TypeError(f"{section.__name__}: {identifying!r} is not one of its required keys")
    return declared


def identifying_key(section: type[Section]) -> str | None:
    """The key that identifies an instance of a repeated section; None if it is not repeated."""
    return getattr(section, "repeated", None)


def _header(section: type[Section]) -> str:
    """The header of its tables in the file."""
    return f"[{section.section}]" if identifying_key(section) is None else f"[[{section.section}]]"


def _kind_of(hint: object, qualified_name: str) -> tuple[type, bool]:
    """The type of an annotation without None, and whether it may be None."""
    if hint == tuple[str, ...]:
        return tuple, False
    parts = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    plain = [part for part in parts if part in (bool, int, float, str, Path)]
    optional = type(None) in parts
    if len(plain) != 1 or len(parts) != 1 + optional:
        raise TypeError(f"{qualified_name}: a setting cannot be of type {hint}")
    kind: type = plain[0]
    return kind, optional


def _check_declaration(declared: Setting, qualified_name: str) -> None:
    if not KEY_NAME.fullmatch(declared.key) or declared.variable in OTHER_VARIABLES:
        raise TypeError(f"{qualified_name}: a setting cannot have this name")
    if declared.unit is not None and declared.kind not in (int, float):
        raise TypeError(f"{qualified_name}: a duration or size is an int or a float")
    if declared.choices and declared.kind not in (str, tuple):
        raise TypeError(f"{qualified_name}: only a string or a list can have choices")
    if declared.rule is not None and declared.kind is not str:
        raise TypeError(f"{qualified_name}: only a string can have a rule")
    try:
        checked(declared, declared.default)
    except ValueError:
        raise TypeError(f"{qualified_name}: the default must be {allowed(declared)}") from None


def settings_by_section(sections: Iterable[type[Section]]) -> dict[str, dict[str, Setting]]:
    """All settings, by section and key. Raises TypeError if two sections have one name."""
    found: dict[str, dict[str, Setting]] = {}
    for section in sections:
        if section.section in found:
            raise TypeError(f"two sections are named {section.section}")
        found[section.section] = settings_of(section)
    return found


def check(section: Section) -> None:
    """Validate an instance; a section calls this in `__post_init__`. Raises SettingsError.

    So a section that exists is valid, whether `load` or a program made it.
    """
    problems = []
    for declared in settings_of(type(section)).values():
        value = getattr(section, declared.key)
        try:
            is_valid = checked(declared, value) == value
        except ValueError:
            is_valid = False
        if not is_valid:
            context = f"{type(section).__name__}: {_header(type(section))}"
            rest = unfit("", declared, value).removeprefix(f" {declared.key}")
            sentence = unfit(context, declared, value)
            problems.append(SettingProblem(sentence, setting=declared.key, rest=rest))
    if problems:
        raise SettingsError(problems)


# --- describing -----------------------------------------------------------------------------------


def describe(sections: Iterable[type[Section]]) -> str:
    """A semel.toml with every setting, its help and its default, all commented out.

    A line of prose begins with "# ", a setting with "#" and its key, and a repeated section with
    "#[[".
    """
    lines = [
        "# Every setting of semel with its default. To change one, remove the # before its name.",
        "# Environment variables override this file, and flags override both.",
    ]
    for section in sections:
        header = _header(section)
        is_repeated = identifying_key(section) is not None
        lines += ["", *_comment(section.__doc__ or "")]
        if is_repeated:
            lines += [f"# May occur several times; this is an example.\n#{header}"]
        else:
            lines += [header]
        for declared in settings_of(section).values():
            words = summary(declared)
            words = f"{words[0].upper()}{words[1:]}."
            if declared.required:
                words += " Required."
            elif not is_repeated:
                words += f" {declared.variable}"
            value = toml_text(declared, declared.default)
            lines += ["", *_comment(declared.help), *_comment(words), f"#{declared.key} = {value}"]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    wrapped = textwrap.wrap(" ".join(text.split()), 98, break_on_hyphens=False)
    return [f"# {line}" for line in wrapped]


def _suggestion(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """The end of a sentence about an unknown name; the prefix is ignored in the comparison."""
    names = sorted(other.removeprefix(prefix) for other in known if other.startswith(prefix))
    near = get_close_matches(name.removeprefix(prefix), names, n=1)
    if near:
        return f"did you mean {prefix}{near[0]}?"
    return "a variable is SEMEL_<SECTION>_<KEY>" if prefix else f"known: {', '.join(names)}"


# --- loading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """The settings of one run. All are valid."""

    loaded: tuple[type[Section], ...]
    sections: tuple[Section, ...]
    # Where the value of each given setting comes from, by section and key; the last source counts.
    sources: Mapping[tuple[str, str], str] = field(default_factory=dict)
    # The same for repeated sections: by section, one mapping of keys for each instance.
    instance_sources: Mapping[str, Sequence[Mapping[str, str]]] = field(default_factory=dict)

    def source_of(self, section: str, key: str) -> str | None:
        """Where the value of a setting comes from, as errors name it; None: it is the default."""
        return self.sources.get((section, key))

    def of(self, section: type[S]) -> S:
        """The settings of one section. Raises LookupError if it was not loaded."""
        if identifying_key(section) is not None:
            raise TypeError(f"{section.__name__} is repeated: use all_of")
        return self.all_of(section)[0]

    def all_of(self, section: type[S]) -> tuple[S, ...]:
        """All instances of a repeated section, in the order of the file."""
        if section not in self.loaded:
            raise LookupError(f"{section.__name__} was not loaded")
        return tuple(found for found in self.sections if isinstance(found, section))


def load(
    sections: Sequence[type[Section]],
    *,
    path: Path | None,
    environ: Mapping[str, str],
    flags: Flags,
) -> Settings:
    """Load the settings of `sections`, which are all sections of the product.

    `path` is the value of --config; without it the file is the one that SEMEL_CONFIG names, if any.
    Raises SettingsError with everything that is wrong in the file, the environment and the flags.
    """
    loading = _Loading(sections)
    if path is not None:
        loading.read_file(path, f"{path}")
    elif CONFIG_VARIABLE in environ:
        name = environ[CONFIG_VARIABLE]
        loading.read_file(Path(name), f"{name or 'an empty path'} (from {CONFIG_VARIABLE})")
    loading.read_environment(environ)
    loading.read_flags(flags)
    return loading.settings()


def read_one(section: type[S], texts: Mapping[str, str], *, source: str) -> S:
    """One instance of a repeated section, for a flag that contains all of its keys.

    Raises SettingsError, whose sentences begin with `source`.
    """
    problems: list[str] = []
    table = _Table(section, _header(section), problems)
    for key, text in texts.items():
        table.take(source, key, text, is_text=True)
    found = table.build(source)
    if found is None or problems:
        raise SettingsError(problems)
    assert isinstance(found, section)
    return found


class _Table:
    """The values of one table of a section; a later source overrides an earlier one."""

    def __init__(self, section: type[Section], title: str, problems: list[str]) -> None:
        self.section = section
        self.title = title
        self.known = settings_of(section)
        self.values: dict[str, Value] = {}
        # The last source of each value.
        self.sources: dict[str, str] = {}
        self.refused: set[str] = set()
        self.problems = problems

    def take(self, source: str, key: str, value: object, *, is_text: bool) -> None:
        """Keep a value, or note what is wrong with it."""
        context = f"{source}: {self.title}"
        if key not in self.known:
            near = _suggestion(key, self.known)
            self.problems.append(f"{context} has no key {shown(key)}; {near}")
            return
        try:
            if is_text:
                self.values[key] = read_text(self.known[key], str(value))
            else:
                self.values[key] = read_value(self.known[key], value)
            self.sources[key] = source
        except ValueError:
            self.refused.add(key)
            self.problems.append(unfit(context, self.known[key], value))

    def build(self, source: str | None) -> Section | None:
        """The section, or None if something is missing; only a repeated one has a source."""
        make: Callable[..., Section] = self.section
        missing = [
            each.key
            for each in self.known.values()
            if each.required and each.key not in self.values
        ]
        for key in missing:
            if key not in self.refused:
                self.problems.append(f"{source}: {self.title} has no {key}, which is required")
        if missing:
            return None
        try:
            return make(**self.values)
        except SettingsError as problem:  # a rule of the section about several keys
            before = "" if source is None else f"{source}: {self.title}: "
            self.problems.extend(before + words for words in problem.problems)
        return None


class _Loading:
    """Values and problems, collected source by source; a later source overrides an earlier one."""

    def __init__(self, sections: Sequence[type[Section]]) -> None:
        self.declared = settings_by_section(sections)
        self.sections = {section.section: section for section in sections}
        self.problems: list[str] = []
        self.tables: dict[str, _Table] = {}
        # Of a repeated section: each table with its file and line.
        self.repeated: dict[str, list[tuple[_Table, str]]] = {}
        for name, section in self.sections.items():
            if identifying_key(section) is None:
                self.tables[name] = _Table(section, _header(section), self.problems)
            else:
                self.repeated[name] = []

    def read_file(self, path: Path, name: str) -> None:
        try:
            text = path.read_bytes().decode()
        except OSError as problem:
            self.problems.append(f"{name}: cannot be read: {problem.strerror or problem}")
            return
        except UnicodeDecodeError as problem:
            self.problems.append(f"{name}: is not UTF-8 (at byte {problem.start})")
            return
        try:
            content = tomllib.loads(text)
        except (ValueError, RecursionError) as problem:  # more than TOMLDecodeError: long integers
            self.problems.append(f"{name}: is not TOML: {problem}")
            return
        lines = _lines_of(text)
        for section, given in content.items():
            source = _source(name, lines.get((section,)))
            if section not in self.sections:
                self._refuse_section(source, section, given)
            elif section in self.repeated and _is_tables(given):
                self._read_tables(section, given, name, lines)
            elif section in self.repeated:
                words = f"each {section} is a separate table: write [[{section}]]"
                instead = f", not [{section}]" if isinstance(given, dict) else ""
                self.problems.append(f"{source}: {words}{instead}")
            elif isinstance(given, list):
                words = f"there is only one {section}: write [{section}], not [[{section}]]"
                self.problems.append(f"{source}: {words}")
            elif not isinstance(given, dict):
                self.problems.append(f"{source}: [{section}] must be a table")
            else:
                for key, value in given.items():
                    source = _source(name, lines.get((section, key)))
                    self.tables[section].take(source, key, value, is_text=False)

    def _read_tables(
        self, section: str, given: list[dict[str, object]], name: str, lines: Lines
    ) -> None:
        """All tables of a repeated section; no two may have the same identifying key."""
        identifying = identifying_key(self.sections[section])
        assert identifying is not None
        first: dict[Value, int] = {}
        for index, content in enumerate(given):
            title = f"[[{section}]] {index + 1}"
            if isinstance(content.get(identifying), str):
                title += f" ({shown(content[identifying])})"
            table = _Table(self.sections[section], title, self.problems)
            for key, value in content.items():
                source = _source(name, lines.get((section, index, key)))
                table.take(source, key, value, is_text=False)
                if key == identifying and key in table.values:
                    earlier = first.setdefault(table.values[key], index)
                    if earlier != index:
                        words = f"has the {key} of [[{section}]] {earlier + 1}"
                        self.problems.append(f"{source}: {title} {words}")
            table_source = _source(name, lines.get((section, index)))
            self.repeated[section].append((table, table_source))

    def _refuse_section(self, source: str, section: str, table: object) -> None:
        homes = [name for name in self.declared if section in self.declared[name]]
        if isinstance(table, dict | list):
            words = f"there is no section {shown(section)}; {_suggestion(section, self.declared)}"
        elif homes:
            home = _header(self.sections[homes[0]])
            words = f"{section} is outside of any section; did you mean {home} {section}?"
        else:
            words = f"{shown(section)} is outside of any section; each setting belongs to one"
        self.problems.append(f"{source}: {words}")

    def read_environment(self, environ: Mapping[str, str]) -> None:
        known = {
            each.variable: each for name in self.tables for each in self.declared[name].values()
        }
        for variable in sorted(environ):
            if not variable.startswith("SEMEL_") or variable in OTHER_VARIABLES:
                continue
            source = f"environment variable {shown(variable)[1:-1]}"
            if variable in known:
                known_setting = known[variable]
                self.tables[known_setting.section].take(
                    source, known_setting.key, environ[variable], is_text=True
                )
                continue
            section = variable.split("_")[1].lower()
            if section in self.repeated:
                near = f"[[{section}]] can only be set in the file"
            else:
                prefix = f"SEMEL_{section.upper()}_" if section in self.tables else "SEMEL_"
                near = _suggestion(variable, {*known, *OTHER_VARIABLES}, prefix=prefix)
            self.problems.append(f"{source}: there is no such setting; {near}")

    def read_flags(self, flags: Flags) -> None:
        for section, given in flags.items():
            for key, value in given.items():
                source = "flag --" + key.replace("_", "-")
                if section in self.tables:
                    is_text = isinstance(value, str)
                    self.tables[section].take(source, key, value, is_text=is_text)
                elif section in self.repeated:
                    raise TypeError(f"[[{section}]] has no flags")
                else:
                    self._refuse_section(source, section, given)

    def settings(self) -> Settings:
        built = [table.build(None) for table in self.tables.values()]
        for tables in self.repeated.values():
            built += [table.build(source) for table, source in tables]
        if self.problems:
            raise SettingsError(self.problems)
        found = tuple(each for each in built if each is not None)
        sources = {
            (section, key): source
            for section, table in self.tables.items()
            for key, source in table.sources.items()
        }
        instance_sources = {
            section: tuple(table.sources for table, _ in tables)
            for section, tables in self.repeated.items()
        }
        return Settings(tuple(self.sections.values()), found, sources, instance_sources)


def _source(name: str, line: int | None) -> str:
    return name if line is None else f"{name}, line {line}"


def _is_tables(given: object) -> TypeGuard[list[dict[str, object]]]:
    return isinstance(given, list) and all(isinstance(each, dict) for each in given)


def _lines_of(text: str) -> Lines:
    """The line on which each table and key of a valid TOML text begins.

    tomllib reports no positions. But a TOML statement parses on its own exactly when it is
    complete: adding line after line until the lines parse finds each statement and its names. In a
    path, the tables of an array are numbered from 0.
    """
    found: Lines = {}
    table: tuple[str | int, ...] = ()
    # The index of the last table of each array: `[a.b]` after `[[a]]` belongs to it.
    last: dict[tuple[str | int, ...], int] = {}
    statement: list[str] = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        statement.append(line)
        try:
            content = tomllib.loads("\n".join(statement))
        except ValueError:
            if len(statement) == MOST_STATEMENT_LINES:
                break
            continue
        is_header = line.lstrip().startswith("[") and len(statement) == 1
        first = number - len(statement) + 1
        statement.clear()
        names: tuple[str | int, ...] = ()
        for names in _names_in(content):
            if not is_header:
                found.setdefault((*table, *names), first)
        if is_header:  # the last names are those of the table itself
            table = ()
            for name in names:
                if isinstance(name, int):
                    name = last[table] = last.get(table, -1) + 1
                elif table in last:
                    table = (*table, last[table])
                table = (*table, name)
                found.setdefault(table, first)
    return found


def _names_in(content: Mapping[str, object]) -> Iterator[tuple[str | int, ...]]:
    """The path of each table and key, outer ones first."""
    for name, value in content.items():
        yield (name,)
        if isinstance(value, dict):
            for names in _names_in(value):
                yield (name, *names)
        elif _is_tables(value):
            for index, table in enumerate(value):
                yield (name, index)
                for names in _names_in(table):
                    yield (name, index, *names)

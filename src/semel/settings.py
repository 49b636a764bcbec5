"""One Settings object for the whole product: file, environment and flags, each over the last.

A room declares its settings as a section, a frozen dataclass whose fields are made by `setting`:

    @dataclass(frozen=True)
    class DoorSettings:
        "Who may come in."

        section: ClassVar[str] = "door"
        width: int = setting(90, "Wider things stay outside.", minimum=1, maximum=400)
        patience: float = setting(10.0, "How long to knock.", unit=SECONDS)

        def __post_init__(self) -> None:
            check(self)

and reads them, typed, as `settings.of(DoorSettings).width`. This module knows no room: whoever
calls `load` hands it all sections of the product, so that it can tell a misspelt name from
another room's.

    default  <  semel.toml  <  SEMEL_DOOR_WIDTH  <  --width

A section of which there may be many, `[[door]]` in the file, says by which key they are told apart:
`repeated: ClassVar[str] = "name"`. That key, and others that have no default, are made by
`required`. `settings.all_of(DoorSettings)` gives them all; they have no variables and no flags.

What is declared once serves everywhere: `load` checks by it, `describe` prints the example file
from it, and `options` makes the flags of a command. A name that nobody declared is refused, in all
three sources. One load reports everything that is wrong, not only the first thing. The value of a
secret is never printed, and a secret has no flag, because other users can see command lines.
"""

import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Final, Protocol, TypeGuard, TypeVar, get_args, get_type_hints

import click

# Rooms that declare a section take the units from here.
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
    toml_text,
    unfit,
    written,
)

# Section: key: what click was given on the command line.
Flags = Mapping[str, Mapping[str, object]]

# Where each table and key stands in a file.
Lines = dict[tuple[str | int, ...], int]

# The file, if there is no --config.
CONFIG_VARIABLE: Final = "SEMEL_CONFIG"
# Variables that begin with SEMEL_ and are no settings: of this module, a command that has no
# section, the build and the tests.
OTHER_VARIABLES: Final = frozenset(
    {CONFIG_VARIABLE, "SEMEL_LOAD_PASSWORD", "SEMEL_PURE", "SEMEL_TEST_MODE"}
)

# One word, so that SEMEL_<SECTION>_<KEY> can be read in one way only.
SECTION_NAME: Final = re.compile(r"[a-z][a-z0-9]*")
KEY_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# A value that goes over more lines than this is not followed for the sake of a line number.
FOLLOWED_LINES: Final = 200

T = TypeVar("T")
R = TypeVar("R")


class SettingProblem(str):
    """A sentence about one setting, in the words of flags and files.

    `setting` is its key, and `rest` what the sentence says after the name of the setting: so a
    caller whose users know the setting by another name can put that name before it.
    """

    setting: str
    rest: str

    def __new__(cls, sentence: str, *, setting: str, rest: str) -> "SettingProblem":
        problem = super().__new__(cls, sentence)
        problem.setting = setting
        problem.rest = rest
        return problem


class SettingsError(Exception):
    """Settings that cannot be used. `problems` holds one sentence for each thing wrong."""

    problems: Final[tuple[str, ...]]

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        lines = self.problems
        if len(lines) > 1:
            lines = (f"{len(lines)} settings are wrong:", *(f"  {line}" for line in lines))
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
    `unit`, an int or float is a duration or a size, at least 0 if no `minimum` says otherwise, and
    may be written as such ("5m", "64KiB"). No text, path or item of a list is empty: what may be
    left open is declared as `str | None`, and an empty text means None. A text may have a `rule`.
    """
    facts = {
        "default": default,
        "help": help,
        "minimum": 0 if minimum is None and unit is not None else minimum,
        "maximum": maximum,
        "choices": tuple(choices),
        "unit": unit,
        "secret": secret,
        "rule": rule,
    }
    return field(default=default, metadata=facts, repr=not secret)


def required(example: T, help: str, *, rule: Rule | None = None) -> T:
    """A field of a repeated section that has no default; `describe` shows the example."""
    facts = {"default": example, "help": help, "rule": rule, "required": True}
    made: T = field(metadata=facts)
    return made


def settings_of(section: type[Section]) -> dict[str, Setting]:
    """The settings that a section declares, by key. TypeError if it declares them wrongly."""
    name = section.section
    if not SECTION_NAME.fullmatch(name):
        raise TypeError(f"{section.__name__}: {name!r} is no name for a section")
    hints = get_type_hints(section)
    declared: dict[str, Setting] = {}
    for declaration in fields(section):
        place = f"{section.__name__}.{declaration.name}"
        if "help" not in declaration.metadata:
            raise TypeError(f"{place} is not made by setting()")
        kind, optional = _kind_of(hints[declaration.name], place)
        found = Setting(name, declaration.name, kind, optional, **declaration.metadata)
        _check_declaration(found, place)
        declared[found.key] = found
    telling = _telling(section)
    if telling is None and any(one.required for one in declared.values()):
        raise TypeError(f"{section.__name__}: only a section that is repeated has required keys")
    if telling is not None and not (telling in declared and declared[telling].required):
        raise TypeError(f"{section.__name__}: {telling!r} is no required key of it")
    return declared


def _telling(section: type[Section]) -> str | None:
    """The key that tells repeated sections apart; None if there is one such section only."""
    return getattr(section, "repeated", None)


def _header(section: type[Section]) -> str:
    """How its tables begin in the file."""
    return f"[{section.section}]" if _telling(section) is None else f"[[{section.section}]]"


def _kind_of(hint: object, place: str) -> tuple[type, bool]:
    """The plain type of an annotation, and whether it may be None."""
    if hint == tuple[str, ...]:
        return tuple, False
    parts = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    plain = [part for part in parts if part in (bool, int, float, str, Path)]
    optional = type(None) in parts
    if len(plain) != 1 or len(parts) != 1 + optional:
        raise TypeError(f"{place}: no setting is of type {hint}")
    kind: type = plain[0]
    return kind, optional


def _check_declaration(declared: Setting, place: str) -> None:
    if not KEY_NAME.fullmatch(declared.key) or declared.variable in OTHER_VARIABLES:
        raise TypeError(f"{place}: no setting may have this name")
    if declared.unit is not None and declared.kind not in (int, float):
        raise TypeError(f"{place}: a duration or size is an int or a float")
    if declared.choices and declared.kind not in (str, tuple):
        raise TypeError(f"{place}: only a text or a list has choices")
    if declared.rule is not None and declared.kind is not str:
        raise TypeError(f"{place}: only a text has a rule")
    try:
        checked(declared, declared.default)
    except ValueError:
        raise TypeError(f"{place}: the default must be {allowed(declared)}") from None


def _declared(sections: Iterable[type[Section]]) -> dict[str, dict[str, Setting]]:
    """All settings, by section and key."""
    found: dict[str, dict[str, Setting]] = {}
    for section in sections:
        if section.section in found:
            raise TypeError(f"two sections are named {section.section}")
        found[section.section] = settings_of(section)
    return found


def check(section: Section) -> None:
    """Check an instance that a program made; a section calls it in `__post_init__`.

    Raises SettingsError. So a section that exists is valid, whether `load` made it or not.
    """
    problems = []
    for declared in settings_of(type(section)).values():
        value = getattr(section, declared.key)
        try:
            right = checked(declared, value) == value
        except ValueError:
            right = False
        if not right:
            place = f"{type(section).__name__}: {_header(type(section))}"
            rest = unfit("", declared, value).removeprefix(f" {declared.key}")
            sentence = unfit(place, declared, value)
            problems.append(SettingProblem(sentence, setting=declared.key, rest=rest))
    if problems:
        raise SettingsError(problems)


# --- words ----------------------------------------------------------------------------------------


def describe(sections: Iterable[type[Section]]) -> str:
    """A semel.toml with every setting, its help and its default, all commented out.

    A line of prose begins with "# ", one that holds a setting with "#" and its key, and one that
    begins a repeated section with "#[[".
    """
    lines = [
        "# Every setting of semel with its default. To change one, remove the # before its name.",
        "# The environment goes before this file, and flags go before both.",
    ]
    for section in sections:
        header = _header(section)
        is_repeated = _telling(section) is not None
        lines += ["", *_comment(section.__doc__ or "")]
        if is_repeated:
            lines += [f"# There may be many of them; this is an example of one.\n#{header}"]
        else:
            lines += [header]
        for declared in settings_of(section).values():
            words = allowed(declared)
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
    """The end of a sentence about a name that is not known; a prefix that all share is no hint."""
    names = sorted(other.removeprefix(prefix) for other in known if other.startswith(prefix))
    near = get_close_matches(name.removeprefix(prefix), names, n=1)
    if near:
        return f"did you mean {prefix}{near[0]}?"
    return "a variable is SEMEL_<SECTION>_<KEY>" if prefix else f"there is {', '.join(names)}"


# --- loading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """The settings of one run, all valid."""

    loaded: tuple[type[Section], ...]
    sections: tuple[Section, ...]

    def of(self, section: type[S]) -> S:
        """The settings of one room. LookupError if its section was not among those loaded."""
        if _telling(section) is not None:
            raise TypeError(f"{section.__name__} is repeated: all_of gives all of them")
        return self.all_of(section)[0]

    def all_of(self, section: type[S]) -> tuple[S, ...]:
        """All of a repeated section, in the order of the file."""
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
    """The settings of all `sections`: those of the whole product, or some would seem misspelt.

    `path` is what --config says; without it the file is the one that SEMEL_CONFIG names, if any.
    Raises SettingsError with all that is wrong with the file, the environment and the flags.
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
    """One of a repeated section from the texts of its keys, for a flag that stands for all of it.

    Raises SettingsError, whose sentences begin with `source`.
    """
    problems: list[str] = []
    table = _Table(section, _header(section), problems)
    for key, text in texts.items():
        table.take(source, key, text, is_text=True)
    found = table.made(source)
    if found is None or problems:
        raise SettingsError(problems)
    assert isinstance(found, section)
    return found


class _Table:
    """What one table of a section was given, in rising order of precedence."""

    def __init__(self, section: type[Section], title: str, problems: list[str]) -> None:
        self.section = section
        self.title = title
        self.known = settings_of(section)
        self.values: dict[str, Value] = {}
        self.refused: set[str] = set()
        self.problems = problems

    def take(self, source: str, key: str, value: object, *, is_text: bool) -> None:
        """Keep a value, over what an earlier source gave, or note what is wrong with it."""
        place = f"{source}: {self.title}"
        if key not in self.known:
            near = _suggestion(key, self.known)
            self.problems.append(f"{place} has no key {shown(key)}; {near}")
            return
        try:
            if is_text:
                self.values[key] = read_text(self.known[key], str(value))
            else:
                self.values[key] = read_value(self.known[key], value)
        except ValueError:
            self.refused.add(key)
            self.problems.append(unfit(place, self.known[key], value))

    def made(self, source: str | None) -> Section | None:
        """The section, or None if anything is missing; a source is for one of many."""
        make: Callable[..., Section] = self.section
        missing = [
            one.key for one in self.known.values() if one.required and one.key not in self.values
        ]
        for key in missing:
            if key not in self.refused:
                self.problems.append(f"{source}: {self.title} has no {key}, which is required")
        if missing:
            return None
        try:
            return make(**self.values)
        except SettingsError as problem:  # a rule of the section's own, about several keys
            before = "" if source is None else f"{source}: {self.title}: "
            self.problems.extend(before + words for words in problem.problems)
        return None


class _Loading:
    """Values and problems, gathered source by source in rising order of precedence."""

    def __init__(self, sections: Sequence[type[Section]]) -> None:
        self.declared = _declared(sections)
        self.sections = {section.section: section for section in sections}
        self.problems: list[str] = []
        self.tables: dict[str, _Table] = {}
        # Of a section that is repeated: each table with its place in the file.
        self.repeated: dict[str, list[tuple[_Table, str]]] = {}
        for name, section in self.sections.items():
            if _telling(section) is None:
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
                words = f"each {section} is a table of its own: write [[{section}]]"
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
        """All tables of a repeated section; no two may have the same in the key that tells them."""
        telling = _telling(self.sections[section])
        assert telling is not None
        first: dict[Value, int] = {}
        for index, content in enumerate(given):
            title = f"[[{section}]] {index + 1}"
            if isinstance(content.get(telling), str):
                title += f" ({shown(content[telling])})"
            table = _Table(self.sections[section], title, self.problems)
            for key, value in content.items():
                source = _source(name, lines.get((section, index, key)))
                table.take(source, key, value, is_text=False)
                if key == telling and key in table.values:
                    earlier = first.setdefault(table.values[key], index)
                    if earlier != index:
                        words = f"has the {key} of [[{section}]] {earlier + 1}"
                        self.problems.append(f"{source}: {title} {words}")
            place = _source(name, lines.get((section, index)))
            self.repeated[section].append((table, place))

    def _refuse_section(self, source: str, section: str, table: object) -> None:
        homes = [name for name in self.declared if section in self.declared[name]]
        if isinstance(table, dict | list):
            words = f"there is no section {shown(section)}; {_suggestion(section, self.declared)}"
        elif homes:
            home = _header(self.sections[homes[0]])
            words = f"{section} stands before any section; did you mean {home} {section}?"
        else:
            words = f"{shown(section)} stands before any section; each setting belongs to one"
        self.problems.append(f"{source}: {words}")

    def read_environment(self, environ: Mapping[str, str]) -> None:
        known = {one.variable: one for name in self.tables for one in self.declared[name].values()}
        for variable in sorted(environ):
            if not variable.startswith("SEMEL_") or variable in OTHER_VARIABLES:
                continue
            source = f"environment variable {shown(variable)[1:-1]}"
            if variable in known:
                one = known[variable]
                self.tables[one.section].take(source, one.key, environ[variable], is_text=True)
                continue
            section = variable.split("_")[1].lower()
            if section in self.repeated:
                near = f"[[{section}]] stands in the file only"
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
        made = [table.made(None) for table in self.tables.values()]
        for tables in self.repeated.values():
            made += [table.made(place) for table, place in tables]
        if self.problems:
            raise SettingsError(self.problems)
        found = tuple(one for one in made if one is not None)
        return Settings(tuple(self.sections.values()), found)


def _source(name: str, line: int | None) -> str:
    return name if line is None else f"{name}, line {line}"


def _is_tables(given: object) -> TypeGuard[list[dict[str, object]]]:
    return isinstance(given, list) and all(isinstance(one, dict) for one in given)


def _lines_of(text: str) -> Lines:
    """The line on which each table and key of a valid TOML text begins.

    tomllib keeps no positions. But a statement of TOML parses alone exactly when it is complete, so
    taking line after line until the lines parse finds each one, and what it names. In a path, the
    tables of an array are numbered from 0.
    """
    found: Lines = {}
    table: tuple[str | int, ...] = ()
    # The number of the last table of each array: `[a.b]` after `[[a]]` stands in it.
    last: dict[tuple[str | int, ...], int] = {}
    statement: list[str] = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        statement.append(line)
        try:
            content = tomllib.loads("\n".join(statement))
        except ValueError:
            if len(statement) == FOLLOWED_LINES:
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
    """The path of each table and key, outer before inner."""
    for name, value in content.items():
        yield (name,)
        if isinstance(value, dict):
            for names in _names_in(value):
                yield (name, *names)
        elif _is_tables(value):
            for index, one in enumerate(value):
                yield (name, index)
                for names in _names_in(one):
                    yield (name, index, *names)


# --- flags ----------------------------------------------------------------------------------------


def options(*sections: type[Section]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a click command --config and a flag for each setting of these sections but secrets.

    A section that is repeated gets none. Two flags of one name are a TypeError.
    The command is called with `config: Path | None` and `flags`, which holds only what was given
    on the command line; both are for `load`, which does all checking.
    """
    single = [section for section in sections if _telling(section) is None]
    declared = [one for keys in _declared(single).values() for one in keys.values()]
    with_flag = [one for one in declared if not one.secret]
    names = ["--config", "--help", *(name for one in with_flag for name in one.flags)]
    for name in names:
        if names.count(name) > 1:
            raise TypeError(f"two flags are named {name}")

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def with_flags(**parameters: object) -> R:
            source = click.get_current_context().get_parameter_source
            flags: dict[str, dict[str, object]] = {section.section: {} for section in single}
            for one in with_flag:
                value = parameters.pop(one.variable)
                if source(one.variable) is click.core.ParameterSource.COMMANDLINE:
                    # Flags that repeat cannot say "no item" but like this.
                    flags[one.section][one.key] = () if value == ("",) else value
            return command(flags=flags, **parameters)

        wrapped: Callable[..., R] = with_flags
        for one in reversed(with_flag):
            wrapped = _option(one)(wrapped)
        return click.option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help=f"Read settings from this file.  [or {CONFIG_VARIABLE}]",
        )(wrapped)

    return decorate


def _option(declared: Setting) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """The click option of one setting. It checks nothing: `load` does, for all sources alike."""
    words = [allowed(declared), f"default: {written(declared, declared.default) or 'none'}"]
    if declared.kind is bool:
        words = words[1:]
    elif declared.kind is tuple:
        words.append("may be repeated")
    return click.option(
        "/".join(declared.flags),
        declared.variable,
        type=bool if declared.kind is bool else str,
        default=None,
        multiple=declared.kind is tuple,
        metavar=_metavar(declared),
        help=f"{declared.help}  [{'; '.join(words)}]",
    )


def _metavar(declared: Setting) -> str | None:
    if declared.kind is bool:
        return None
    if declared.unit is not None:
        return "DURATION" if declared.unit == SECONDS else "SIZE"
    if declared.choices:
        return "|".join(declared.choices)
    return {int: "INTEGER", float: "NUMBER", Path: "PATH"}.get(declared.kind, "TEXT")

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

What is declared once serves everywhere: `load` checks by it, `describe` prints the example file
from it, and `options` makes the flags of a command. A name that nobody declared is refused, in all
three sources. One load reports everything that is wrong, not only the first thing. The value of a
secret is never printed, and a secret has no flag, because other users can see command lines.
"""

import json
import math
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from fractions import Fraction
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Final, Literal, Protocol, TypeVar, get_args, get_type_hints

import click

Unit = Literal["seconds", "bytes"]
SECONDS: Final = "seconds"
BYTES: Final = "bytes"

Value = bool | int | float | str | Path | tuple[str, ...] | None
# Section: key: what click was given on the command line.
Flags = Mapping[str, Mapping[str, object]]

# The file, if there is no --config.
CONFIG_VARIABLE: Final = "SEMEL_CONFIG"
# Variables that begin with SEMEL_ and are no settings: of this module, the build and the tests.
OTHER_VARIABLES: Final = frozenset({CONFIG_VARIABLE, "SEMEL_PURE", "SEMEL_TEST_MODE"})

# Smaller before larger: a default is written in the last unit that divides it.
UNITS: Final[Mapping[str, Mapping[str, Fraction | int]]] = {
    SECONDS: {"ms": Fraction(1, 1000), "s": 1, "m": 60, "h": 3600, "d": 86400},
    BYTES: {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    | {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
}
TRUE: Final = ("true", "1", "yes", "on")
FALSE: Final = ("false", "0", "no", "off")
# Stricter than int() and float(), which also take spaces, underscores and other scripts' digits.
# The number of digits is bounded, so that no text is costly to read.
INTEGER: Final = re.compile(r"-?[0-9]{1,30}")
NUMBER: Final = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
QUANTITY: Final = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)([A-Za-z]*)")
# One word, so that SEMEL_<SECTION>_<KEY> can be read in one way only.
SECTION_NAME: Final = re.compile(r"[a-z][a-z0-9]*")
KEY_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
SHOWN_LENGTH: Final = 80
# A value that goes over more lines than this is not followed for the sake of a line number.
FOLLOWED_LINES: Final = 200

T = TypeVar("T")
R = TypeVar("R")


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
) -> T:
    """A field of a section. `help` says what it does and what happens at its bounds.

    Its annotation is bool, int, float, str, Path, one of these or None, or tuple[str, ...]. With
    `unit`, an int or float is a duration or a size, at least 0 if no `minimum` says otherwise, and
    may be written as such ("5m", "64KiB"). No text, path or item of a list is empty: what may be
    left open is declared as `str | None`, and an empty text means None.
    """
    facts = {
        "default": default,
        "help": help,
        "minimum": 0 if minimum is None and unit is not None else minimum,
        "maximum": maximum,
        "choices": tuple(choices),
        "unit": unit,
        "secret": secret,
    }
    return field(default=default, metadata=facts, repr=not secret)


@dataclass(frozen=True)
class Setting:
    """One setting as it was declared."""

    section: str
    key: str
    kind: type
    optional: bool
    default: Value
    help: str
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    unit: Unit | None
    secret: bool

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"SEMEL_{self.section}_{self.key}".upper()

    @property
    def flag(self) -> str:
        """Its name on a command line, if it has one there."""
        return "--" + self.key.replace("_", "-")


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
    return declared


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
    try:
        _checked(declared, declared.default)
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


# --- values ---------------------------------------------------------------------------------------


def _checked(declared: Setting, value: object) -> Value:
    """The value in the type of its setting; ValueError if it is not one of those allowed."""
    if value is None and declared.optional:
        return None
    if declared.kind is bool and isinstance(value, bool):
        return value
    if declared.kind is int and isinstance(value, int) and not isinstance(value, bool):
        return _within(declared, value)
    if declared.kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _within(declared, value)
    if declared.kind is str and isinstance(value, str):
        return _text(declared, value)
    if declared.kind is Path and isinstance(value, str | Path):
        if value != "" and "\0" not in str(value):
            return Path(value)
    if declared.kind is tuple and isinstance(value, list | tuple):
        return tuple(_text(declared, item) for item in value)
    raise ValueError


def _within(declared: Setting, number: float) -> Value:
    """A finite number between the bounds."""
    low, high = declared.minimum, declared.maximum
    if (low is not None and number < low) or (high is not None and number > high):
        raise ValueError
    try:
        converted = float(number)
    except OverflowError:  # an int may be larger than any float
        raise ValueError from None
    if not math.isfinite(converted):
        raise ValueError
    return converted if declared.kind is float else number


def _text(declared: Setting, text: object) -> str:
    """A text among the choices, if there are any. It can be encoded and holds no NUL."""
    if not isinstance(text, str) or text == "" or "\0" in text:
        raise ValueError
    if declared.choices and text not in declared.choices:
        raise ValueError
    text.encode()  # what the environment holds need not be UTF-8: UnicodeError is a ValueError
    return text


def _read_text(declared: Setting, text: str) -> Value:
    """A value from the environment or a flag; ValueError if the text is none."""
    if text == "" and declared.optional:
        return None
    if declared.unit is not None:
        return _checked(declared, _parse_quantity(declared, text))
    if declared.kind is bool:
        if text.lower() not in TRUE + FALSE:
            raise ValueError
        return text.lower() in TRUE
    if declared.kind is int:
        if not INTEGER.fullmatch(text):
            raise ValueError
        return _checked(declared, int(text))
    if declared.kind is float:
        if not NUMBER.fullmatch(text):
            raise ValueError
        return _checked(declared, float(text))
    if declared.kind is tuple:
        return _checked(declared, [item.strip() for item in text.split(",")] if text else [])
    return _checked(declared, text)


def _read_value(declared: Setting, value: object) -> Value:
    """A value from the file, which has types of its own; ValueError if it is of another."""
    if value == "" and declared.optional:
        return None
    if declared.unit is not None and isinstance(value, str):
        return _read_text(declared, value)
    return _checked(declared, value)


def _parse_quantity(declared: Setting, text: str) -> float:
    """Seconds or bytes from "5m", "64KiB" or a plain number; exact, so 1.1h is 3960 seconds."""
    assert declared.unit is not None
    found = QUANTITY.fullmatch(text)
    units = UNITS[declared.unit]
    if found is None or (found[2] and found[2] not in units):
        raise ValueError
    quantity = Fraction(found[1]) * units.get(found[2], 1)
    if declared.kind is float:
        return float(quantity)
    if quantity.denominator != 1:
        raise ValueError
    return quantity.numerator


def check(section: Section) -> None:
    """Check an instance that a program made; a section calls it in `__post_init__`.

    Raises SettingsError. So a section that exists is valid, whether `load` made it or not.
    """
    problems = []
    for declared in settings_of(type(section)).values():
        value = getattr(section, declared.key)
        try:
            right = _checked(declared, value) == value
        except ValueError:
            right = False
        if not right:
            problems.append(_unfit(type(section).__name__, declared, value))
    if problems:
        raise SettingsError(problems)


# --- words ----------------------------------------------------------------------------------------


def written(declared: Setting, value: Value) -> str:
    """A value as the environment and flags take it; None and the empty list are empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    if declared.unit is None or not isinstance(value, int | float):
        return str(value)
    exact = Fraction(str(value))
    for name, size in reversed([*UNITS[declared.unit].items()]):
        parts = exact / size
        if parts >= 1 and parts.denominator == 1:
            return f"{parts}{name}"
    return str(value)


def toml_text(declared: Setting, value: Value) -> str:
    """A value as semel.toml takes it."""
    if isinstance(value, tuple):
        return "[" + ", ".join(_quoted(item) for item in value) + "]"
    text = written(declared, value)
    is_bare = isinstance(value, bool) or text == str(value)
    return text if is_bare and isinstance(value, int | float) else _quoted(text)


def allowed(declared: Setting) -> str:
    """What a setting may be, to follow "must be"."""
    choices = ", ".join(declared.choices)
    if declared.kind is bool:
        words = "true or false"
    elif declared.kind is tuple:
        words = f"a list of {choices}" if choices else "a list of texts, none of them empty"
    elif declared.kind is Path:
        words = "a path"
    elif declared.kind is str:
        words = f"one of {choices}" if choices else "a text that is not empty"
    elif declared.unit == SECONDS:
        whole = "" if declared.kind is float else " in whole seconds"
        words = f"a duration{whole} such as 90, 90s, 5m or 1h"
    elif declared.unit == BYTES:
        words = "a size such as 65536, 64KiB or 10MB"
    else:
        words = "an integer" if declared.kind is int else "a number"
    words += _bounds(declared)
    return f"{words}, or empty for none" if declared.optional else words


def _bounds(declared: Setting) -> str:
    """The bounds of a number, to follow its kind."""
    if declared.minimum is not None and declared.maximum is not None:
        low, high = written(declared, declared.minimum), written(declared, declared.maximum)
        return f", from {low} to {high}"
    if declared.minimum is not None:
        return f", at least {written(declared, declared.minimum)}"
    if declared.maximum is not None:
        return f", at most {written(declared, declared.maximum)}"
    return ""


def describe(sections: Iterable[type[Section]]) -> str:
    """A semel.toml with every setting, its help and its default, all commented out.

    A line of prose begins with "# ", one that holds a setting with "#" and its key.
    """
    lines = [
        "# Every setting of semel with its default. To change one, remove the # before its name.",
        "# The environment goes before this file, and flags go before both.",
    ]
    for section in sections:
        lines += ["", *_comment(section.__doc__ or ""), f"[{section.section}]"]
        for declared in settings_of(section).values():
            words = allowed(declared)
            lines += [
                "",
                *_comment(declared.help),
                *_comment(f"{words[0].upper()}{words[1:]}. {declared.variable}"),
                f"#{declared.key} = {toml_text(declared, declared.default)}",
            ]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    wrapped = textwrap.wrap(" ".join(text.split()), 98, break_on_hyphens=False)
    return [f"# {line}" for line in wrapped]


def _quoted(text: str) -> str:
    """A TOML string; a character that neither JSON nor TOML wants bare is escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _shown(value: object) -> str:
    """What somebody gave, on one line, in ASCII, and not too long."""
    try:
        text = json.dumps(value, default=str)
    except ValueError:  # an integer in hexadecimal may have more digits than Python prints
        return "a very large number"
    return text if len(text) <= SHOWN_LENGTH else text[:SHOWN_LENGTH] + "..."


def _unfit(source: str, declared: Setting, value: object) -> str:
    """The sentence about a value that a setting may not have."""
    given = "has a value (a secret, not shown)" if declared.secret else f"is {_shown(value)}"
    return f"{source}: [{declared.section}] {declared.key} {given}, but must be {allowed(declared)}"


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

    sections: tuple[Section, ...]

    def of(self, section: type[S]) -> S:
        """The settings of one room. LookupError if its section was not among those loaded."""
        for found in self.sections:
            if isinstance(found, section):
                return found
        raise LookupError(f"{section.__name__} was not loaded")


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


class _Loading:
    """Values and problems, gathered source by source in rising order of precedence."""

    def __init__(self, sections: Sequence[type[Section]]) -> None:
        self.sections = sections
        self.declared = _declared(sections)
        self.values: dict[str, dict[str, Value]] = {name: {} for name in self.declared}
        self.problems: list[str] = []

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
        for section, table in content.items():
            source = _source(name, lines.get((section,)))
            if section not in self.declared:
                self._refuse_section(source, section, table)
            elif not isinstance(table, dict):
                self.problems.append(f"{source}: [{section}] must be a table")
            else:
                for key, value in table.items():
                    source = _source(name, lines.get((section, key)))
                    self._take(source, section, key, value, is_text=False)

    def _refuse_section(self, source: str, section: str, table: object) -> None:
        homes = [name for name in self.declared if section in self.declared[name]]
        if isinstance(table, dict | list):
            words = f"there is no section {_shown(section)}; {_suggestion(section, self.declared)}"
        elif homes:
            words = f"{section} stands before any section; did you mean [{homes[0]}] {section}?"
        else:
            words = f"{_shown(section)} stands before any section; each setting belongs to one"
        self.problems.append(f"{source}: {words}")

    def read_environment(self, environ: Mapping[str, str]) -> None:
        known = {one.variable: one for keys in self.declared.values() for one in keys.values()}
        for variable in sorted(environ):
            if not variable.startswith("SEMEL_") or variable in OTHER_VARIABLES:
                continue
            source = f"environment variable {_shown(variable)[1:-1]}"
            if variable in known:
                one = known[variable]
                self._take(source, one.section, one.key, environ[variable], is_text=True)
                continue
            prefix = "_".join(variable.split("_")[:2]) + "_"
            if prefix[6:-1].lower() not in self.declared:
                prefix = "SEMEL_"
            near = _suggestion(variable, {*known, *OTHER_VARIABLES}, prefix=prefix)
            self.problems.append(f"{source}: there is no such setting; {near}")

    def read_flags(self, flags: Flags) -> None:
        for section, given in flags.items():
            for key, value in given.items():
                source = "flag --" + key.replace("_", "-")
                if section in self.declared:
                    self._take(source, section, key, value, is_text=isinstance(value, str))
                else:
                    self._refuse_section(source, section, given)

    def _take(self, source: str, section: str, key: str, value: object, *, is_text: bool) -> None:
        """Keep a value, over what an earlier source gave, or note what is wrong with it."""
        known = self.declared[section]
        if key not in known:
            words = f"[{section}] has no key {_shown(key)}; {_suggestion(key, known)}"
            self.problems.append(f"{source}: {words}")
            return
        try:
            if is_text:
                read = _read_text(known[key], str(value))
            else:
                read = _read_value(known[key], value)
        except ValueError:
            self.problems.append(_unfit(source, known[key], value))
        else:
            self.values[section][key] = read

    def settings(self) -> Settings:
        made: list[Section] = []
        for section in self.sections:
            make: Callable[..., Section] = section
            try:
                made.append(make(**self.values[section.section]))
            except SettingsError as problem:  # a rule of the section's own, about several keys
                self.problems.extend(problem.problems)
        if self.problems:
            raise SettingsError(self.problems)
        return Settings(tuple(made))


def _source(name: str, line: int | None) -> str:
    return name if line is None else f"{name}, line {line}"


def _lines_of(text: str) -> dict[tuple[str, ...], int]:
    """The line on which each table and key of a valid TOML text begins.

    tomllib keeps no positions. But a statement of TOML parses alone exactly when it is complete, so
    taking line after line until the lines parse finds each one, and what it names.
    """
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
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
        for names in _names_in(content):
            if is_header:
                table = names
            found.setdefault(names if is_header else (*table, *names), first)
    return found


def _names_in(content: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    """The path of each table and key, outer before inner."""
    for name, value in content.items():
        yield (name,)
        if isinstance(value, dict):
            for names in _names_in(value):
                yield (name, *names)


# --- flags ----------------------------------------------------------------------------------------


def options(*sections: type[Section]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a click command --config and a flag for each setting of these sections but secrets.

    The command is called with `config: Path | None` and `flags`, which holds only what was given
    on the command line; both are for `load`, which does all checking.
    """
    declared = [one for keys in _declared(sections).values() for one in keys.values()]
    with_flag = [one for one in declared if not one.secret]
    names = ["--config", "--help", *(one.flag for one in with_flag)]
    for name in names:
        if names.count(name) > 1:
            raise TypeError(f"two flags are named {name}")

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def with_flags(**parameters: object) -> R:
            source = click.get_current_context().get_parameter_source
            flags: dict[str, dict[str, object]] = {section.section: {} for section in sections}
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
    name = declared.flag
    if declared.kind is bool:
        name += "/--no-" + name.removeprefix("--")
        words = words[1:]
    elif declared.kind is tuple:
        words.append("may be repeated")
    return click.option(
        name,
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

"""One declared setting: which values it may have, and how they are parsed and written.

A value comes from a file, where it has a TOML type, or as a string from the environment or a flag.
`semel.settings` declares sections of such settings and loads them.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final, Literal

Unit = Literal["seconds", "bytes"]
SECONDS: Final = "seconds"
BYTES: Final = "bytes"

Value = bool | int | float | str | Path | tuple[str, ...] | None
# Returns what is wrong with a string, to follow "but", or None.
Rule = Callable[[str], str | None]

# In ascending order: a default is written in the last unit that divides it.
UNITS: Final[Mapping[str, Mapping[str, Fraction | int]]] = {
    SECONDS: {"ms": Fraction(1, 1000), "s": 1, "m": 60, "h": 3600, "d": 86400},
    BYTES: {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    | {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40},
}
TRUE: Final = ("true", "1", "yes", "on")
FALSE: Final = ("false", "0", "no", "off")
# Stricter than int() and float(), which also accept spaces, underscores and digits of other
# scripts. The number of digits is bounded, so that no string is costly to parse.
INTEGER: Final = re.compile(r"-?[0-9]{1,30}")
NUMBER: Final = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?")
QUANTITY: Final = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?)([A-Za-z]*)")
SHOWN_LENGTH: Final = 80


@dataclass(frozen=True)
class Setting:
    """One declared setting."""

    section: str
    key: str
    kind: type
    optional: bool
    # An example if the setting is required.
    default: Value
    help: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    unit: Unit | None = None
    secret: bool = False
    rule: Rule | None = None
    required: bool = False

    @property
    def variable(self) -> str:
        """The name of its environment variable."""
        return f"SEMEL_{self.section}_{self.key}".upper()

    @property
    def flags(self) -> tuple[str, ...]:
        """Its flag on a command line, and the negation if it is a switch."""
        name = self.key.replace("_", "-")
        return (f"--{name}", f"--no-{name}") if self.kind is bool else (f"--{name}",)


# --- reading --------------------------------------------------------------------------------------


def checked(declared: Setting, value: object) -> Value:
    """The value in the type of its setting. Raises ValueError if it is not allowed."""
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
    """A string among the choices, if there are any. It is UTF-8 and has no NUL."""
    if not isinstance(text, str) or text == "" or "\0" in text:
        raise ValueError
    if declared.choices and text not in declared.choices:
        raise ValueError
    if declared.rule is not None and declared.rule(text) is not None:
        raise ValueError
    # Text of the environment may not be UTF-8. UnicodeError is a ValueError.
    text.encode()
    return text


def read_text(declared: Setting, text: str) -> Value:
    """Parse a value of the environment or a flag. Raises ValueError."""
    if text == "" and declared.optional:
        return None
    if declared.unit is not None:
        return checked(declared, _parse_quantity(declared, text))
    if declared.kind is bool:
        if text.lower() not in TRUE + FALSE:
            raise ValueError
        return text.lower() in TRUE
    if declared.kind is int:
        if not INTEGER.fullmatch(text):
            raise ValueError
        return checked(declared, int(text))
    if declared.kind is float:
        if not NUMBER.fullmatch(text):
            raise ValueError
        return checked(declared, float(text))
    if declared.kind is tuple:
        return checked(declared, [item.strip() for item in text.split(",")] if text else [])
    return checked(declared, text)


def read_value(declared: Setting, value: object) -> Value:
    """Convert a value of the file, which has a TOML type. Raises ValueError."""
    if value == "" and declared.optional:
        return None
    if declared.unit is not None and isinstance(value, str):
        return read_text(declared, value)
    return checked(declared, value)


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


# --- writing --------------------------------------------------------------------------------------


def written(declared: Setting, value: Value) -> str:
    """A value as the environment and flags accept it; None and the empty list are empty."""
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
    """A value as semel.toml accepts it."""
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
        words = f"a list of {choices}" if choices else "a list of non-empty strings"
    elif declared.kind is Path:
        words = "a path"
    elif declared.kind is str:
        words = f"one of {choices}" if choices else "a non-empty string"
    elif declared.unit == SECONDS:
        whole = "" if declared.kind is float else " in whole seconds"
        words = f"a duration{whole} such as 90, 90s, 5m or 1h"
    elif declared.unit == BYTES:
        words = "a size such as 65536, 64KiB or 10MB"
    else:
        words = "an integer" if declared.kind is int else "a number"
    words += _bounds(declared)
    return f"{words}, or empty for none" if declared.optional else words


def summary(declared: Setting) -> str:
    """What a setting may be, for the example file."""
    if not declared.optional:
        return allowed(declared)
    words = allowed(declared).removesuffix(", or empty for none")
    return "optional" if words in ("a non-empty string", "a path") else f"optional: {words}"


def hint(declared: Setting) -> str:
    """Default and bounds for `--help`, whose metavar shows the type."""
    default = written(declared, declared.default)
    is_unset = declared.default is None or declared.default == ()
    words = ["optional" if is_unset else f"default: {default}"]
    if declared.kind is not bool:
        words.append(_bounds(declared).removeprefix(", "))
    if declared.kind is tuple:
        words.append("may be repeated")
    return "; ".join(word for word in words if word)


def _bounds(declared: Setting) -> str:
    """The bounds of a number, to follow its type."""
    if declared.minimum is not None and declared.maximum is not None:
        low, high = written(declared, declared.minimum), written(declared, declared.maximum)
        return f", from {low} to {high}"
    if declared.minimum is not None:
        return f", at least {written(declared, declared.minimum)}"
    if declared.maximum is not None:
        return f", at most {written(declared, declared.maximum)}"
    return ""


def _quoted(text: str) -> str:
    """A TOML string. DEL, which JSON does not escape, is escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def shown(value: object) -> str:
    """A given value on one line, in ASCII, cut to a readable length."""
    try:
        text = json.dumps(value, default=str)
    except ValueError:  # a hexadecimal integer may have more digits than Python prints
        return "a very large number"
    return text if len(text) <= SHOWN_LENGTH else text[:SHOWN_LENGTH] + "..."


def unfit(context: str, declared: Setting, value: object) -> str:
    """The sentence about a value that a setting may not have. A rule may quote the value."""
    if declared.secret:
        given = "has a value (a secret, not shown)"
    else:
        given = f"is {shown(value)}"
        if declared.rule is not None and isinstance(value, str):
            words = declared.rule(value)
            if words is not None:
                return f"{context} {declared.key} {given}, but {words}"
    return f"{context} {declared.key} {given}, but must be {allowed(declared)}"

"""Prints the result of a query: as a table for people, as JSON, or as CSV.

The result is a schema and Arrow batches, of which one is in memory at a time. So the widths of
columns are those of the first rows. On a terminal strings are cut to fit; a result with more
columns than fit is printed with one value per line. In a pipe or file nothing is cut: a value that
is longer than its column shifts the rest of its line to the right.

Unprintable characters are escaped, so that text of a peer cannot control a terminal. JSON and CSV
have values as `semel stream read` prints them: times in ISO 8601; bytes as text, or as Base64 in a
second field if they are not UTF-8.

Times are read as Arrow's numbers, because SQL has times outside of Python's calendar: years beyond
9999 and before 1 are written with a sign, as in ISO 8601, and the extreme values are `infinity` and
`-infinity`.
"""

import base64
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from decimal import Decimal
from itertools import chain, islice
from typing import Any, Final
from unicodedata import combining, east_asian_width

import click

from semel.cli.message_view import shown_bytes, use_color
from semel.cli.safe_text import shown_text
from semel.cli.stream import CSV, JSON, PIECE, TEXT, as_csv
from semel.counts import count

# The rows that determine the widths of columns.
SAMPLE_ROWS: Final = 500
# Between two columns.
GAP: Final = "  "
# A column of strings is not cut below this width.
NARROWEST: Final = 8
NULL: Final = "NULL"
CUT: Final = "…"
# Types whose values need no conversion for JSON; bytes are converted later.
_PLAIN: Final = frozenset(
    [
        "bool",
        "string",
        "binary",
        "null",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
    ]
)
# The maximum number of characters of one value on a terminal.
MOST_CHARACTERS: Final = 4_000

# How many of each unit a second has.
_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS: Final = 86_400
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
# The calendar repeats after this many years.
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
_FOREVER_DAYS: Final = 2**31 - 1
_FOREVER: Final = 2**63 - 1


# --- values ---------------------------------------------------------------------------------------


def values_of(column: Any) -> list[object]:
    """The values of an Arrow column: None, bool, int, float, str, bytes, list or dict."""
    kind = str(column.type)
    if kind in _PLAIN:
        plain: list[object] = column.to_pylist()
        return plain
    outer, _, unit = kind.rstrip("]").partition("[")
    if outer == "timestamp":
        unit, _, zone = unit.partition(",")
        mark = "Z" if zone else ""
        return [
            None if each is None else _moment(each, unit, mark)
            for each in column.cast("int64").to_pylist()
        ]
    if outer == "date32":
        days = column.cast("int32").to_pylist()
        return [None if each is None else _day(each) for each in days]
    if outer == "time64":
        return [
            None if each is None else _clock(each, _SECOND[unit])
            for each in column.cast("int64").to_pylist()
        ]
    within = _VALUES_WITHIN.get(kind.partition("<")[0])
    if within is not None:
        return within(column)
    return [_plain(each) for each in column.to_pylist()]


def _day(days: int) -> str:
    """A day by its distance from 1970."""
    if abs(days) >= _FOREVER_DAYS:
        return "infinity" if days > 0 else "-infinity"
    # Map the day into four centuries of Python's calendar.
    cycles, offset = divmod(days + _EPOCH_DAY - 1, _CYCLE_DAYS)
    found = date.fromordinal(offset + 1)
    year = found.year + cycles * _CYCLE_YEARS
    sign = "" if 0 < year < 10_000 else "-" if year < 0 else "+"
    return f"{sign}{abs(year):04}-{found.month:02}-{found.day:02}"


def _moment(moment: int, unit: str, zone: str) -> str:
    """A time by its distance from 1970."""
    if abs(moment) >= _FOREVER:
        return "infinity" if moment > 0 else "-infinity"
    second = _SECOND[unit]
    days, rest = divmod(moment, _DAY_SECONDS * second)
    seconds, parts = divmod(rest, second)
    fraction = f"{parts:09}" if unit == "ns" else f"{parts * (10**6 // second):06}"
    return f"{_day(days)}T{_hours(seconds)}.{fraction}{zone}"


def _clock(moment: int, second: int) -> str:
    """A time of day; the last one of SQL is 24:00:00."""
    seconds, parts = divmod(moment, second)
    digits = len(str(second)) - 1
    fraction = f".{parts:0{digits}}" if parts else ""
    return _hours(seconds) + fraction


def _hours(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _interval(months: int, days: int, nanoseconds: int) -> str:
    seconds, parts = divmod(abs(nanoseconds), 10**9)
    sign = "-" if nanoseconds < 0 else ""
    shown = f"{sign}{seconds}.{parts:09}".rstrip("0").rstrip(".")
    return f"{months} months {days} days {shown} seconds"


# --- values within values -------------------------------------------------------------------------


def _lists(column: Any) -> list[object]:
    # flatten() skips the values of lists that are NULL.
    inner = iter([_nested(each) for each in values_of(column.flatten())])
    sizes = _lengths(column)
    return [None if size is None else list(islice(inner, size)) for size in sizes]


def _lengths(column: Any) -> list[int | None]:
    if str(column.type).startswith("fixed_size_list"):
        size = column.type.list_size
        return [size if each else None for each in column.is_valid().to_pylist()]
    sizes: list[int | None] = column.value_lengths().to_pylist()
    return sizes


def _structs(column: Any) -> list[object]:
    names = [column.type.field(at).name for at in range(column.type.num_fields)]
    parts = [[_nested(each) for each in values_of(part)] for part in column.flatten()]
    return [
        dict(zip(names, row, strict=True)) if is_valid else None
        for is_valid, *row in zip(column.is_valid().to_pylist(), *parts, strict=True)
    ]


def _maps(column: Any) -> list[object]:
    keys = [_key(each) for each in values_of(column.keys)]
    items = [_nested(each) for each in values_of(column.items)]
    ends = column.offsets.to_pylist()
    return [
        dict(zip(keys[begins:end], items[begins:end], strict=True)) if is_valid else None
        for is_valid, begins, end in zip(
            column.is_valid().to_pylist(), ends, ends[1:], strict=False
        )
    ]


def _key(value: object) -> str:
    found = _nested(value)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _choices(column: Any) -> list[object]:
    """The values of a union; the type code of a row says which part has its value."""
    kinds = column.type.num_fields
    parts = [[_nested(each) for each in values_of(column.field(at))] for at in range(kinds)]
    positions = {code: at for at, code in enumerate(column.type.type_codes)}
    codes = column.type_codes.to_pylist()
    return [parts[positions[code]][row] for row, code in enumerate(codes)]


def _words(column: Any) -> list[object]:
    return values_of(column.dictionary_decode())


_VALUES_WITHIN: Final[dict[str, Callable[[Any], list[object]]]] = {
    "list": _lists,
    "large_list": _lists,
    "fixed_size_list": _lists,
    "struct": _structs,
    "map": _maps,
    "sparse_union": _choices,
    "dictionary": _words,
}


def _plain(value: object) -> object:
    """A value that JSON can represent; bytes stay bytes."""
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, tuple):
        months, days, nanoseconds = value
        return _interval(months, days, nanoseconds)
    return str(value)


def _nested(value: object) -> object:
    """A value inside another, where bytes are text or Base64."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return _base64(value)


def _number(value: Decimal) -> object:
    """A number if JSON can represent it exactly, else its digits."""
    if value == value.to_integral_value():
        return int(value)
    near = float(value)
    return near if Decimal(repr(near)) == value else str(value)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _unique(names: Iterable[str]) -> list[str]:
    """Unique names of columns; SQL may repeat a name."""
    found: list[str] = []
    for name in names:
        number = 1
        unique = name
        while unique in found:
            unique = f"{name}_{number}"
            number += 1
        found.append(unique)
    return found


def _fields(schema: Any) -> list[tuple[str, str | None]]:
    """The name of each column and, if it has bytes, of its Base64 column."""
    names = _unique(schema.names)
    beside = [
        f"{name}_base64" for name, field in zip(names, schema, strict=True) if _is_bytes(field.type)
    ]
    encoded = iter(_unique([*names, *beside])[len(names) :])
    return [
        (name, next(encoded) if _is_bytes(field.type) else None)
        for name, field in zip(names, schema, strict=True)
    ]


def _rows(batch: Any) -> Iterator[tuple[object, ...]]:
    return zip(*(values_of(column) for column in batch.columns), strict=True)


def _is_bytes(kind: Any) -> bool:
    return "binary" in str(kind).partition("<")[0]


def _is_number(kind: Any) -> bool:
    return str(kind).startswith(("int", "uint", "float", "double", "halffloat", "decimal"))


# --- for programs ---------------------------------------------------------------------------------


def json_lines(schema: Any, batches: Iterable[Any]) -> Iterator[str]:
    """One object per row."""
    names = _fields(schema)
    for batch in batches:
        for row in _rows(batch):
            fields: dict[str, object] = {}
            for (name, beside), value in zip(names, row, strict=True):
                text, encoded = _bytes_apart(value)
                fields[name] = text
                if beside is not None and encoded is not None:
                    fields[beside] = encoded
            yield json.dumps(fields, ensure_ascii=False) + "\n"


def csv_lines(schema: Any, batches: Iterable[Any]) -> Iterator[str]:
    """A header row and a line per row. A column of bytes is followed by one for Base64."""
    names = _fields(schema)
    yield as_csv([each for pair in names for each in pair if each is not None])
    for batch in batches:
        for row in _rows(batch):
            cells: list[object] = []
            for value, (_, beside) in zip(row, names, strict=True):
                if beside is not None:
                    cells += _bytes_apart(value)
                elif isinstance(value, list | dict):
                    cells.append(json.dumps(value, ensure_ascii=False))
                else:
                    cells.append(value)
            yield as_csv(cells)


def _bytes_apart(value: object) -> tuple[object, str | None]:
    """A value with bytes as text; if they are not UTF-8, None and their Base64."""
    if not isinstance(value, bytes):
        return value, None
    try:
        return value.decode("utf-8"), None
    except UnicodeDecodeError:
        return None, _base64(value)


# --- for people -----------------------------------------------------------------------------------


def shown_value(value: object, *, is_whole: bool = True) -> str:
    """A value for a table, on one line."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        if is_whole or len(value) <= MOST_CHARACTERS:
            return shown_bytes(value)
        data = value
        try:
            value = data.decode("utf-8")
        except UnicodeDecodeError:
            return f"0x{data[:MOST_CHARACTERS].hex()}{CUT}"
    if isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False)
    text = str(value)
    if is_whole or len(text) <= MOST_CHARACTERS:
        return shown_text(text)
    return shown_text(text[:MOST_CHARACTERS]) + CUT


def width_of(text: str) -> int:
    """The width of a string on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text
    )


def cut(text: str, width: int) -> str:
    """A string of at most this width."""
    if width_of(text) <= width:
        return text
    taken = 0
    for at, sign in enumerate(text):
        taken += width_of(sign)
        if taken > width - 1:
            return text[:at] + CUT
    raise AssertionError


def padded(text: str, width: int, *, right: bool) -> str:
    """A string padded with spaces."""
    spaces = " " * (width - width_of(text))
    return spaces + text if right else text + spaces


def fitting(widths: Sequence[int], may_cut: Sequence[bool], columns: int) -> list[int] | None:
    """The widths of columns that fit on a screen; None if they cannot be cut to fit."""
    room = columns - len(GAP) * (len(widths) - 1)
    if sum(widths) <= room:
        return list(widths)
    cap = max(widths)
    while cap >= NARROWEST:
        found = [
            min(width, cap) if cuts else width for width, cuts in zip(widths, may_cut, strict=True)
        ]
        if sum(found) <= room:
            return found
        cap -= 1
    return None


def table_lines(
    schema: Any, batches: Iterable[Any], *, columns: int | None, color: bool = False
) -> Iterator[str]:
    """A table. `columns` is the width of the terminal; None: nothing is cut."""
    names = [shown_text(name) for name in schema.names]
    numbers = [_is_number(field.type) for field in schema]
    whole = columns is None
    rows = (
        [shown_value(value, is_whole=whole) for value in row]
        for batch in batches
        for row in _rows(batch)
    )
    sample = list(islice(rows, SAMPLE_ROWS))
    widths = [max(map(width_of, column)) for column in zip(names, *sample, strict=True)]
    # Cut times and numbers would be misleading.
    texts = [
        str(field.type).startswith(("string", "large_string"))
        or _is_bytes(field.type)
        or "<" in str(field.type)
        for field in schema
    ]
    fit = widths if columns is None else fitting(widths, texts, columns)
    total = 0
    if fit is None:
        assert columns is not None
        lines = _value_lines(names, chain(sample, rows), columns, color=color)
    else:
        header = GAP.join(
            padded(cut(name, width) if columns else name, width, right=right)
            for name, width, right in zip(names, fit, numbers, strict=True)
        ).rstrip()
        yield (click.style(header, bold=True) if color else header) + "\n"
        lines = _row_lines(chain(sample, rows), fit, numbers, cuts=columns is not None)
    for rows_done, line in lines:
        total = rows_done
        yield line
    if columns is not None:
        yield f"({count(total, 'row')})\n"


def _row_lines(
    rows: Iterable[list[str]], widths: Sequence[int], numbers: Sequence[bool], *, cuts: bool
) -> Iterator[tuple[int, str]]:
    for number, row in enumerate(rows, 1):
        cells = [
            padded(cut(cell, width) if cuts else cell, width, right=right)
            for cell, width, right in zip(row, widths, numbers, strict=True)
        ]
        yield number, GAP.join(cells).rstrip() + "\n"


def _value_lines(
    names: Sequence[str], rows: Iterable[list[str]], columns: int, *, color: bool
) -> Iterator[tuple[int, str]]:
    """One line per value."""
    width = max(map(width_of, names))
    for number, row in enumerate(rows, 1):
        title = f"row {number}"
        yield number, (click.style(title, bold=True) if color else title) + "\n"
        for name, value in zip(names, row, strict=True):
            line = f"  {padded(name, width, right=False)}{GAP}{value}"
            yield number, cut(line, columns) + "\n"


# --- printing -------------------------------------------------------------------------------------


def print_answer(schema: Any, batches: Iterable[Any], form: str) -> None:
    """Print a result to standard output, piece by piece. Raises BrokenPipeError."""
    is_terminal = sys.stdout.isatty()
    if form == JSON:
        lines = json_lines(schema, batches)
    elif form == CSV:
        lines = csv_lines(schema, batches)
    else:
        columns = shutil.get_terminal_size().columns if is_terminal else None
        color = use_color(is_terminal)
        lines = table_lines(schema, batches, columns=columns, color=color)
    gathered: list[str] = []
    size = 0
    for line in lines:
        gathered.append(line)
        size += len(line)
        if size >= PIECE:
            _write(gathered, form)
            gathered, size = [], 0
    _write(gathered, form)


def _write(lines: list[str], form: str) -> None:
    if form == TEXT:
        # A table is in the encoding of the terminal; JSON and CSV are UTF-8.
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
        return
    sys.stdout.buffer.write("".join(lines).encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()

"""Rows of an answer on their way to standard output: a table for people, JSON, or CSV.

The answer is a schema and Arrow batches, and only one batch is in memory. So the columns of a
table are as wide as the first rows need. On a terminal texts are cut to what fits; an answer with
more columns than fit is printed a value on a line. Into a pipe or file nothing is cut: a value that
is longer than those before moves what is behind it on its line to the right.

What a peer has sent cannot act on a terminal: all that is not printable is escaped. For programs
the values are as `semel stream read` prints them: times in ISO 8601, bytes as text, or else in
Base64 in a field of their own.
"""

import base64
import json
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain, islice
from typing import Any, Final
from unicodedata import combining, east_asian_width

import click

from semel.cli.message_view import shown_bytes, wants_colour
from semel.cli.safe_text import shown_text
from semel.cli.store import count
from semel.cli.stream import CSV, JSON, PIECE, as_csv, shown_time

# A table's columns are as wide as these rows need.
SAMPLE_ROWS: Final = 500
# Between two columns.
GAP: Final = "  "
# A column of texts is cut to this and no further.
NARROWEST: Final = 8
NULL: Final = "NULL"
CUT: Final = "…"
# Types whose values are as JSON has them, but for bytes.
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
# Of a value for people; more of it is of no use on a screen.
MOST_CHARACTERS: Final = 4_000


# --- values ---------------------------------------------------------------------------------------


def values_of(column: Any) -> list[object]:
    """The values of an Arrow column: None, bool, int, float, str, bytes, list or dict."""
    kind = str(column.type)
    if kind in _PLAIN:
        plain: list[object] = column.to_pylist()
        return plain
    if kind.startswith("timestamp["):
        # As numbers: not every time that SQL has is in Python's calendar.
        unit = kind.removeprefix("timestamp[").partition(",")[0].rstrip("]")
        zone = "Z" if "tz=" in kind else ""
        return [
            None if each is None else shown_time(_microseconds(each, unit)).rstrip("Z") + zone
            for each in column.cast("int64").to_pylist()
        ]
    if kind.startswith("map<"):
        return [None if each is None else _pairs(each) for each in column.to_pylist()]
    return [_plain(each) for each in column.to_pylist()]


def _microseconds(moment: int, unit: str) -> int:
    return moment // 1000 if unit == "ns" else moment * {"s": 10**6, "ms": 10**3, "us": 1}[unit]


def _pairs(items: Iterable[tuple[object, object]]) -> dict[str, object]:
    return {str(_nested(key)): _nested(value) for key, value in items}


def _plain(value: object) -> object:
    """A value as JSON has it; bytes stay bytes."""
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "Z"
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _nested(each) for key, each in value.items()}
    if isinstance(value, tuple):
        # An interval: months, days, nanoseconds.
        months, days, nanoseconds = value
        return f"{months} months {days} days {nanoseconds / 1e9:g} seconds"
    if isinstance(value, list):
        return [_nested(each) for each in value]
    return str(value)


def _nested(value: object) -> object:
    """A value within another: there bytes are text or Base64."""
    found = _plain(value)
    if not isinstance(found, bytes):
        return found
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError:
        return _base64(found)


def _number(value: Decimal) -> object:
    """A number that JSON can hold without loss, or its digits."""
    if value == value.to_integral_value():
        return int(value)
    near = float(value)
    return near if Decimal(repr(near)) == value else str(value)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _unique(names: Iterable[str]) -> list[str]:
    """Names of columns, of which SQL may have two alike."""
    found: list[str] = []
    for name in names:
        number = 1
        unique = name
        while unique in found:
            unique = f"{name}_{number}"
            number += 1
        found.append(unique)
    return found


def _rows(batch: Any) -> Iterator[tuple[object, ...]]:
    return zip(*(values_of(column) for column in batch.columns), strict=True)


def _is_bytes(kind: Any) -> bool:
    return "binary" in str(kind).partition("<")[0]


def _is_number(kind: Any) -> bool:
    return str(kind).startswith(("int", "uint", "float", "double", "halffloat", "decimal"))


# --- for programs ---------------------------------------------------------------------------------


def json_lines(schema: Any, batches: Iterable[Any]) -> Iterator[str]:
    """An object for each row."""
    names = _unique(schema.names)
    for batch in batches:
        for row in _rows(batch):
            fields: dict[str, object] = {}
            for name, value in zip(names, row, strict=True):
                text, encoded = _bytes_apart(value)
                fields[name] = text
                if encoded is not None:
                    fields[f"{name}_base64"] = encoded
            yield json.dumps(fields, ensure_ascii=False) + "\n"


def csv_lines(schema: Any, batches: Iterable[Any]) -> Iterator[str]:
    """A head line, and a line for each row. Columns of bytes have one for Base64 beside them."""
    binary = [_is_bytes(field.type) for field in schema]
    head = []
    for name, is_bytes in zip(_unique(schema.names), binary, strict=True):
        head += [name, f"{name}_base64"] if is_bytes else [name]
    yield as_csv(head)
    for batch in batches:
        for row in _rows(batch):
            cells: list[object] = []
            for value, is_bytes in zip(row, binary, strict=True):
                if is_bytes:
                    cells += _bytes_apart(value)
                elif isinstance(value, list | dict):
                    cells.append(json.dumps(value, ensure_ascii=False))
                else:
                    cells.append(value)
            yield as_csv(cells)


def _bytes_apart(value: object) -> tuple[object, str | None]:
    """A value, and bytes that are no text beside it."""
    if not isinstance(value, bytes):
        return value, None
    try:
        return value.decode("utf-8"), None
    except UnicodeDecodeError:
        return None, _base64(value)


# --- for people -----------------------------------------------------------------------------------


def shown_value(value: object) -> str:
    """A value in a table, on one line."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return shown_bytes(value[:MOST_CHARACTERS]) if value else "(empty)"
    if isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False)
    return shown_text(str(value)[:MOST_CHARACTERS])


def width_of(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in text
    )


def cut(text: str, width: int) -> str:
    """A text of this width at most."""
    if width_of(text) <= width:
        return text
    taken = 0
    for at, sign in enumerate(text):
        taken += width_of(sign)
        if taken > width - 1:
            return text[:at] + CUT
    raise AssertionError


def padded(text: str, width: int, *, right: bool) -> str:
    """A text with spaces around it."""
    spaces = " " * (width - width_of(text))
    return spaces + text if right else text + spaces


def fitting(widths: Sequence[int], may_cut: Sequence[bool], columns: int) -> list[int] | None:
    """The widths of columns that fit on a screen; None: they do not, however they are cut."""
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
    schema: Any, batches: Iterable[Any], *, columns: int | None, colour: bool = False
) -> Iterator[str]:
    """A table; `columns` is how wide a screen is, None: there is none, and nothing is cut."""
    names = [shown_text(name) for name in schema.names]
    numbers = [_is_number(field.type) for field in schema]
    rows = ([shown_value(value) for value in row] for batch in batches for row in _rows(batch))
    sample = list(islice(rows, SAMPLE_ROWS))
    widths = [max(map(width_of, column)) for column in zip(names, *sample, strict=True)]
    # Times and numbers would say something else if they were cut.
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
        lines = _value_lines(names, chain(sample, rows), columns, colour=colour)
    else:
        head = GAP.join(
            padded(cut(name, width) if columns else name, width, right=right)
            for name, width, right in zip(names, fit, numbers, strict=True)
        ).rstrip()
        yield (click.style(head, bold=True) if colour else head) + "\n"
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
    names: Sequence[str], rows: Iterable[list[str]], columns: int, *, colour: bool
) -> Iterator[tuple[int, str]]:
    """A line for each value."""
    width = max(map(width_of, names))
    for number, row in enumerate(rows, 1):
        head = f"row {number}"
        yield number, (click.style(head, bold=True) if colour else head) + "\n"
        for name, value in zip(names, row, strict=True):
            line = f"  {padded(name, width, right=False)}{GAP}{value}"
            yield number, cut(line, columns) + "\n"


# --- printing -------------------------------------------------------------------------------------


def print_answer(schema: Any, batches: Iterable[Any], form: str) -> None:
    """Print an answer to standard output, piece by piece. Raises BrokenPipeError."""
    is_terminal = sys.stdout.isatty()
    if form == JSON:
        lines = json_lines(schema, batches)
    elif form == CSV:
        lines = csv_lines(schema, batches)
    else:
        columns = shutil.get_terminal_size().columns if is_terminal else None
        colour = wants_colour(is_terminal)
        lines = table_lines(schema, batches, columns=columns, colour=colour)
    gathered: list[str] = []
    size = 0
    for line in lines:
        gathered.append(line)
        size += len(line)
        if size >= PIECE:
            _write(gathered)
            gathered, size = [], 0
    _write(gathered)


def _write(lines: list[str]) -> None:
    sys.stdout.buffer.write("".join(lines).encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()

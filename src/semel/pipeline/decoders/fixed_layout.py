"""Fixed binary layouts: each payload is a C struct, in the notation of Python's module struct.

Option: `format`, such as "<hBf". It begins with the byte order: `<` (little-endian) or `>` or `!`
(big-endian), without alignment. Its values are the columns of the schema, in order: "2h" is two
columns, "8s" one, and "x" none.

    b B h H i I l L q      int columns that are wide enough
    Q                      decimals of at least 20 digits, of which none are decimal places
    e f d                  float columns that are wide enough
    ?                      boolean: every byte but 0 is true
    c s p                  binary; or string, without the zero bytes that fill the field
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct, error
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from semel.counts import count
from semel.pipeline.decoders.options import check_option_names, text_option
from semel.pipeline.decoders.outcome import Decoded, Problem
from semel.pipeline.decoders.payloads import EMPTY
from semel.pipeline.errors import OptionError

NAME: Final = "struct"
OPTIONS: Final = ("format",)

_FORMAT: Final = re.compile(r"[<>!](?:[0-9]{0,9}[xcbBhHiIlLqQefdsp?])+")
_ITEM: Final = re.compile(r"([0-9]*)([a-zA-Z?])")
# The bits that a column needs for a code; an unsigned value needs one more than it has.
_SIGNED_BITS: Final = {"b": 8, "h": 16, "i": 32, "l": 32, "q": 64}
_UNSIGNED_BITS: Final = {"B": 9, "H": 17, "I": 33, "L": 33}
_INT_BITS: Final = _SIGNED_BITS | _UNSIGNED_BITS
_FLOAT_BITS: Final = {"e": 16, "f": 32, "d": 64}
# The digits of 2^64 - 1, for code Q.
_LONG_DIGITS: Final = 20
_LARGEST_PAYLOAD: Final = 1024 * 1024


@dataclass(frozen=True)
class StructDecoder:
    """Decodes payloads of a fixed layout into structs of `schema`."""

    schema: pa.Schema
    # In the notation of the module struct.
    layout: str

    def __call__(self, payloads: pa.Array) -> Decoded:
        """Decode a column of payloads."""
        layout = Struct(self.layout)
        given = payloads.to_pylist()
        problems: dict[int, Problem] = {}
        positions: list[int] = []
        for index, payload in enumerate(given):
            if payload is None:
                continue
            if len(payload) == layout.size:
                positions.append(index)
            else:
                problems[index] = EMPTY if not payload else _wrong_size(payload, layout)
        rows = layout.iter_unpack(b"".join([given[index] for index in positions]))
        columns = list(zip(*rows, strict=True)) or [() for _ in self.schema]
        children = [
            self._column(field, values, positions, problems)
            for field, values in zip(self.schema, columns, strict=True)
        ]
        values = pa.StructArray.from_arrays(children, fields=list(self.schema))
        if len(positions) == len(given) and not problems:
            return Decoded(values, problems)
        places: list[int | None] = [None] * len(given)
        for place, index in enumerate(positions):
            if index not in problems:
                places[index] = place
        return Decoded(values.take(pa.array(places, type=pa.int64())), problems)

    def _column(
        self,
        field: pa.Field,
        values: tuple[object, ...],
        positions: list[int],
        problems: dict[int, Problem],
    ) -> pa.Array:
        if not pt.is_string(field.type):
            return pa.array(values, type=field.type)
        filled = [value.rstrip(b"\0") for value in values if isinstance(value, bytes)]
        try:
            return pa.array(filled, type=pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            texts: list[str] = []
            for index, value in zip(positions, filled, strict=True):
                try:
                    texts.append(value.decode())
                except UnicodeDecodeError as problem:
                    reason = f"text is not UTF-8 ({problem.reason})"
                    problems.setdefault(index, Problem(reason, column=field.name))
                    texts.append("")
            return pa.array(texts, type=pa.string())


def _wrong_size(payload: bytes, layout: Struct) -> Problem:
    return Problem(f"expected {count(layout.size, 'byte')}, found {len(payload):,}")


def make_struct_decoder(schema: pa.Schema, options: Mapping[str, object]) -> StructDecoder:
    """The decoder for `options`. Raises OptionError."""
    check_option_names(NAME, options, OPTIONS)
    layout = text_option(NAME, options, "format")
    if layout is None:
        raise OptionError('decoder struct needs option format, such as "<hBf"')
    layout = "".join(layout.split())
    if not layout.startswith(("<", ">", "!")):
        raise OptionError(
            f"option format of decoder struct must begin with the byte order, < or >: {layout!r}"
        )
    if not _FORMAT.fullmatch(layout):
        raise OptionError(
            f"option format of decoder struct: {layout!r} is not a format of Python's struct"
        )
    codes = _codes(layout)
    if len(codes) != len(schema.names):
        raise OptionError(
            f"option format of decoder struct has {count(len(codes), 'value')}, "
            f"but the schema has {count(len(schema.names), 'column')}"
        )
    for code, field in zip(codes, schema, strict=True):
        if not _holds(field.type, code):
            raise OptionError(f"column {field.name} of type {field.type} cannot hold code {code!r}")
    return StructDecoder(schema, layout)


def _codes(layout: str) -> list[str]:
    """The codes of a format, one for each value. Raises OptionError."""
    try:
        size = Struct(layout).size
    except error as problem:
        raise OptionError(f"option format of decoder struct: {problem}") from None
    if not 0 < size <= _LARGEST_PAYLOAD:
        raise OptionError(
            f"option format of decoder struct describes {count(size, 'byte')}: "
            f"it must be from 1 to {_LARGEST_PAYLOAD:,}"
        )
    codes: list[str] = []
    for number, code in _ITEM.findall(layout):
        if code in "sp":
            codes.append(code)
        elif code != "x":
            codes.extend(code * int(number or 1))
    return codes


def _holds(kind: pa.DataType, code: str) -> bool:
    """Whether a column of a type can hold every value of a code."""
    if code in _INT_BITS:
        return bool(pt.is_signed_integer(kind) and kind.bit_width >= _INT_BITS[code])
    if code == "Q":
        return bool(pt.is_decimal(kind) and kind.scale == 0 and kind.precision >= _LONG_DIGITS)
    if code in _FLOAT_BITS:
        floats = pt.is_float32(kind) or pt.is_float64(kind)
        return bool(floats and kind.bit_width >= _FLOAT_BITS[code])
    if code == "?":
        return bool(pt.is_boolean(kind))
    return bool(pt.is_binary(kind) or pt.is_string(kind))

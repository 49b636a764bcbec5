"""JSON payloads as Arrow columns, many at once: the hot path of `json_objects`.

Arrow's JSON reader is several times as fast as Python's, but it reads a text of any number of
values, and is not strict. It may only repeat what the plain path (`json_values`) would decide. So
a payload is a candidate only if nothing in it can be among the things that Arrow accepts and JSON
does not have. And each payload gets its number as its first member, under a key that is random:

    {"a": 1}  ─▶  {"<key>":0,"a": 1}
    {"a": 2}  ─▶  {"<key>":1,"a": 2}

A block is accepted only if Arrow finds as many objects as there are payloads, with the numbers
0, 1, 2, … in order. No payload contains the key, so that each number stands where it was written:
object n begins with payload n. Therefore it ends before payload n + 1 begins, and only white space
is after it: anything else would be one more value. So each payload is one object, and no part of
another. (Arrow 26 crashes if the first value of a text is null. Here it is always an object.)

Whatever else Arrow refuses or reads otherwise (a repeated key, a number for a STRING column, a time
in another notation) is left to the plain path: `read_block` returns None.
"""

import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from semel.pipeline.decoders.json_values import (
    ARRAY,
    BOOLEAN,
    DATE_CHARACTERS,
    DEPTH,
    FLOATING,
    INTEGER,
    LOCAL_TIME_TEXT,
    MIDNIGHT_UTC,
    OBJECT,
    TEXT,
    TIME,
    UTC_SUFFIX,
    JsonNumber,
    JsonShape,
    is_too_deep,
    parse_json,
)
from semel.pipeline.decoders.leaves import times_of_seconds, times_of_texts
from semel.pipeline.decoders.payloads import Undecodable

# Bytes of payloads in a block. Arrow's arrays of bytes have at most 2 GiB.
BLOCK_BYTES: Final = 16 * 1024 * 1024

_FORMS: Final = (BOOLEAN, INTEGER, FLOATING, TEXT, TIME, ARRAY, OBJECT)
# No payload can contain it: it is made when this process begins to decode.
_KEY: Final = f"_{secrets.token_hex(16)}"
_BEFORE_NUMBER: Final = f'\n{{"{_KEY}":'.encode()
# Arrow accepts NaN, Inf and Infinity where a value can stand: after one of these signs.
_CONSTANT_TEXT: Final = r"[:\[, \t\r\n-](NaN|Inf)"
# The end of a slice that has everything.
_EVERYTHING: Final = 2**31 - 1
# Payloads that show whether times are text or numbers.
_SAMPLED: Final = 4


class _NotRepeatable(Exception):
    """Arrow has read a value that the plain path may refuse or read otherwise."""


# --- candidates -----------------------------------------------------------------------------------


def find_candidates(payloads: pa.Array) -> pa.BooleanArray:
    """Which payloads may be read by blocks; false for nulls."""
    found = pc.and_(pc.starts_with(payloads, "{"), _are_utf8(payloads))
    if _may_have_constants(_data_of(payloads).to_pybytes()):
        found = pc.and_not(found, pc.match_substring_regex(payloads, _CONSTANT_TEXT))
    lengths = pc.binary_length(payloads)
    longest = pc.max(lengths).as_py() or 0
    if longest > BLOCK_BYTES:
        found = pc.and_(found, pc.less_equal(lengths, BLOCK_BYTES))
    if longest > DEPTH:
        found = pc.and_not(found, _are_too_deep(payloads))
    return pc.fill_null(found, False)


def _may_have_constants(text: bytes) -> bool:
    """Of all payloads at once, and by one letter first: to search each of them takes longer."""
    return (b"N" in text and b"NaN" in text) or (b"I" in text and b"Inf" in text)


def _data_of(payloads: pa.Array) -> pa.Buffer:
    """The bytes of all payloads, one after the other."""
    _, offsets, data = payloads.buffers()
    if data is None:
        return pa.py_buffer(b"")
    code, width = ("=q", 8) if pt.is_large_binary(payloads.type) else ("=i", 4)
    first, end = payloads.offset, payloads.offset + len(payloads)
    (begin,) = struct.unpack_from(code, offsets, width * first)
    (stop,) = struct.unpack_from(code, offsets, width * end)
    return data.slice(begin, stop - begin)


def _are_utf8(payloads: pa.Array) -> pa.BooleanArray:
    try:
        payloads.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([each is not None and _is_utf8(each) for each in payloads.to_pylist()])
    return payloads.is_valid()


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _are_too_deep(payloads: pa.Array) -> pa.BooleanArray:
    return pa.array([each is not None and is_too_deep(each) for each in payloads.to_pylist()])


def blocks_of(payloads: pa.Array) -> Iterator[tuple[int, pa.Array]]:
    """Parts of candidates that have at most BLOCK_BYTES, each with the index of its first."""
    pending = [(0, payloads)]
    while pending:
        first, part = pending.pop()
        half = len(part) // 2
        if half and pc.sum(pc.binary_length(part)).as_py() > BLOCK_BYTES:
            pending += [(first + half, part.slice(half)), (first, part.slice(0, half))]
        else:
            yield first, part


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockReader:
    """Reads blocks of candidates into structs of `schema`, which has the shape `shape`."""

    schema: pa.Schema
    shape: JsonShape

    @property
    def supports_shape(self) -> bool:
        """Whether columns of these types can be read by blocks."""
        return all(_is_readable(part) for _, part in self.shape.parts)

    def read_block(self, block: pa.Array) -> pa.StructArray | None:
        """The structs of a block, or None if its payloads must take the plain path.

        A column that is NOT NULL may have nulls, which the caller must check.
        """
        numbers = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), len(block)), start=-1)
        text = _numbered_text(block, numbers)
        for in_seconds in self._guess_times(block):
            try:
                return self._read_text(text, numbers, in_seconds)
            except (pa.ArrowInvalid, _NotRepeatable):
                continue
        return None

    def _guess_times(self, block: pa.Array) -> Iterator[frozenset[str]]:
        """Sets of paths: times that are to be read as seconds. The others are text."""
        paths = set(_time_paths(self.shape, ""))
        seen: dict[str, bool] = {}
        if paths:
            for payload in block.slice(0, _SAMPLED).to_pylist():
                try:
                    _, value = parse_json(payload)
                except Undecodable:
                    continue
                _see_times(value, self.shape, "", seen)
        in_seconds = {path for path, is_number in seen.items() if is_number}
        yield frozenset(in_seconds)
        if paths - seen.keys():
            yield frozenset(in_seconds | (paths - seen.keys()))

    def _read_text(
        self, text: pa.Buffer, numbers: pa.Array, in_seconds: frozenset[str]
    ) -> pa.StructArray:
        """Raises ArrowInvalid or _NotRepeatable."""
        kind = _read_type(self.shape, "", in_seconds)
        table = pj.read_json(
            pa.BufferReader(text),
            # All of it at once and in this thread: the processors have other payloads to decode.
            read_options=pj.ReadOptions(use_threads=False, block_size=text.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=pa.schema([(_KEY, pa.int64()), *kind]),
                unexpected_field_behavior="ignore",
            ),
        )
        if not table.column(_KEY).combine_chunks().equals(numbers):
            raise _NotRepeatable
        columns = [
            _converted(table.column(name).combine_chunks(), part, f".{name}", in_seconds)
            for name, part in self.shape.parts
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self.schema))


def _numbered_text(block: pa.Array, numbers: pa.Array) -> pa.Buffer:
    """The text of all payloads, each on a line of its own, with its number."""
    rest = pc.binary_slice(block.cast(pa.binary()), 1, _EVERYTHING)
    text = _data_of(rest).to_pybytes()
    # Line breaks are white space as tabs are, and as invalid as tabs within text.
    for line_break in (b"\n", b"\r"):
        if line_break in text:
            rest = pc.replace_substring(rest, line_break, b"\t")
    written = numbers.cast(pa.string()).cast(pa.binary())
    return _data_of(pc.binary_join_element_wise(_BEFORE_NUMBER, written, b",", rest, b""))


def _is_readable(shape: JsonShape) -> bool:
    # Only whole columns are checked for nulls afterwards.
    if shape.form == OBJECT and not all(each.nullable for each in shape.kind):
        return False
    if shape.form == ARRAY and not shape.kind.value_field.nullable:
        return False
    return shape.form in _FORMS and all(_is_readable(part) for _, part in shape.parts)


def _step(path: str, shape: JsonShape, name: str) -> str:
    """The path of a part."""
    return f"{path}.{name}" if shape.form == OBJECT else f"{path}[]"


def _time_paths(shape: JsonShape, path: str) -> Iterator[str]:
    if shape.form == TIME:
        yield path
    for name, part in shape.parts:
        yield from _time_paths(part, _step(path, shape, name))


def _see_times(value: object, shape: JsonShape, path: str, seen: dict[str, bool]) -> None:
    """Note in `seen` whether times are numbers."""
    if value is None:
        return
    if shape.form == TIME:
        seen.setdefault(path, type(value) is JsonNumber)
    elif shape.form == OBJECT and isinstance(value, dict):
        for name, part in shape.parts:
            _see_times(value.get(name), part, _step(path, shape, name), seen)
    elif shape.form == ARRAY and isinstance(value, list):
        ((_, part),) = shape.parts
        for each in value:
            _see_times(each, part, _step(path, shape, ""), seen)


def _read_type(shape: JsonShape, path: str, in_seconds: frozenset[str]) -> pa.DataType:
    """The type as which Arrow reads a column."""
    if shape.form == OBJECT:
        parts = [
            (name, _read_type(part, _step(path, shape, name), in_seconds))
            for name, part in shape.parts
        ]
        return pa.struct(parts)
    if shape.form == ARRAY:
        ((_, item),) = shape.parts
        return pa.list_(_read_type(item, _step(path, shape, ""), in_seconds))
    if shape.form == INTEGER:
        return pa.int64()
    if shape.form == FLOATING:
        return pa.float64()
    if shape.form == TIME:
        return pa.float64() if path in in_seconds else pa.string()
    return shape.kind


# --- columns as they were read, to those of the table ---------------------------------------------


def _converted(
    array: pa.Array, shape: JsonShape, path: str, in_seconds: frozenset[str]
) -> pa.Array:
    """Raises ArrowInvalid or _NotRepeatable."""
    if shape.form == OBJECT:
        columns = [
            _converted(array.field(place), part, _step(path, shape, name), in_seconds)
            for place, (name, part) in enumerate(shape.parts)
        ]
        return pa.StructArray.from_arrays(columns, fields=list(shape.kind), mask=array.is_null())
    if shape.form == ARRAY:
        ((_, item),) = shape.parts
        items = _converted(array.values, item, _step(path, shape, ""), in_seconds)
        return pa.ListArray.from_arrays(array.offsets, items, type=shape.kind, mask=array.is_null())
    if shape.form == FLOATING:
        # Numbers from 1.8e308 to 1e309 become infinite, and so do those that a float cannot hold.
        numbers = array.cast(shape.kind)
        if not pc.all(pc.is_finite(numbers), min_count=0).as_py():
            raise _NotRepeatable
        return numbers
    if shape.form == TIME:
        times = times_of_seconds(array) if path in in_seconds else _times_of_any_texts(array)
        if times is None:
            raise _NotRepeatable
        return times
    return array.cast(shape.kind)


def _times_of_any_texts(texts: pa.Array) -> pa.Array | None:
    """Times of texts with and without offsets."""
    times = times_of_texts(texts)
    if times is not None:
        return times
    is_date = pc.equal(pc.binary_length(texts), DATE_CHARACTERS)
    suffix = pc.if_else(is_date, MIDNIGHT_UTC, UTC_SUFFIX)
    in_utc = pc.binary_join_element_wise(texts, suffix, "")
    is_local = pc.match_substring_regex(texts, LOCAL_TIME_TEXT)
    return times_of_texts(pc.if_else(is_local, in_utc, texts))

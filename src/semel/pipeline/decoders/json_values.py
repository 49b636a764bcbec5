"""JSON (RFC 8259): the value of a payload, and its parts as columns hold them.

This is the plain path of JSON: it makes every decision, one payload at a time. `json_blocks`
repeats its decisions for many payloads at once.

A column takes

    BOOLEAN                    true, false
    TINYINT to BIGINT          numbers without fraction and exponent, within the bounds
    FLOAT, DOUBLE              numbers, rounded to the nearest, unless they are too large
    DECIMAL                    numbers, and text such as "12.50", if precision and scale suffice
    STRING                     text; numbers as they are written, true and false; objects and arrays
                               as JSON without spaces
    BINARY                     Base64 text with padding
    DATE                       text such as "2026-03-01"
    TIMESTAMP                  ISO 8601 text, in UTC if it has no offset, midnight if it has no
                               time; numbers, as seconds since 1970. Years 1 to 9999
    TIMESTAMP_NTZ              ISO 8601 text without an offset
    ARRAY, STRUCT, MAP         arrays, objects, objects

Unknown keys are ignored, of a repeated key the last one counts, and null is the same as a missing
key. A number is kept as its text, because only its column says what becomes of it.
"""

import json
import re
import struct
from base64 import b64decode
from dataclasses import dataclass
from decimal import Decimal, DecimalException
from math import isfinite
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

from semel.pipeline.decoders.leaves import (
    TIMESTAMP,
    Rejected,
    WrongValue,
    checked_value,
    describe_type,
)
from semel.pipeline.decoders.payloads import Undecodable

LOCAL_TIMESTAMP: Final = pa.timestamp("us")
# Arrays and objects within each other. Python's parser allows a number of them that depends on
# its caller, so that it cannot be the limit.
DEPTH: Final = 200
# A date, or a date and a time, without an offset. Both Arrow (RE2) and Python use it.
LOCAL_TIME_TEXT: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,30})?)?)?$"
)
# What makes a time of such a text in UTC.
MIDNIGHT_UTC: Final = "T00:00Z"
UTC_SUFFIX: Final = "Z"
DATE_CHARACTERS: Final = 10

# The forms of columns.
BOOLEAN: Final = 0
INTEGER: Final = 1
FLOATING: Final = 2
DECIMAL: Final = 3
TEXT: Final = 4
BYTES: Final = 5
DATE: Final = 6
TIME: Final = 7
LOCAL_TIME: Final = 8
ARRAY: Final = 9
OBJECT: Final = 10
MAP: Final = 11

_LOCAL_TIME_PATTERN: Final = re.compile(LOCAL_TIME_TEXT.removesuffix("$") + r"\Z")
# A text, also without its end; and the beginning or end of an array or object.
_NESTING_PATTERN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)
_BEGINNINGS: Final = b"[{"
_ENDS: Final = b"]}"
# The characters of -9223372036854775808. A longer integer fits no column of integers, and Python
# refuses to convert one of thousands of digits.
_INTEGER_CHARACTERS: Final = 20
# Characters of a value that a reason quotes.
_QUOTED: Final = 60


@dataclass(slots=True)
class JsonNumber:
    """A number as it is written."""

    text: str


@dataclass(frozen=True, slots=True)
class JsonShape:
    """What a column takes."""

    form: int
    kind: pa.DataType
    # Of an object its columns by name; of an array or a map its items, without a name.
    parts: tuple[tuple[str, "JsonShape"], ...] = ()


def shape_of(schema: pa.Schema) -> JsonShape:
    """The shape of payloads with these columns, which `check_schema` has accepted."""
    return _shape(pa.struct(list(schema)))


def _shape(kind: pa.DataType) -> JsonShape:
    if pt.is_struct(kind):
        return JsonShape(OBJECT, kind, tuple((each.name, _shape(each.type)) for each in kind))
    if pt.is_list(kind):
        return JsonShape(ARRAY, kind, (("", _shape(kind.value_type)),))
    if pt.is_map(kind):
        return JsonShape(MAP, kind, (("", _shape(kind.item_type)),))
    if kind == LOCAL_TIMESTAMP:
        return JsonShape(LOCAL_TIME, kind)
    if pt.is_boolean(kind):
        form = BOOLEAN
    elif pt.is_signed_integer(kind):
        form = INTEGER
    elif pt.is_floating(kind):
        form = FLOATING
    elif pt.is_decimal(kind):
        form = DECIMAL
    elif pt.is_string(kind):
        form = TEXT
    elif pt.is_binary(kind):
        form = BYTES
    elif pt.is_date(kind):
        form = DATE
    else:
        form = TIME
    return JsonShape(form, kind)


def storage_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of what `fit_value` returns: times are microseconds since 1970."""
    return pa.schema([each.with_type(_storage_type(each.type)) for each in schema])


def _storage_type(kind: pa.DataType) -> pa.DataType:
    if kind in (TIMESTAMP, LOCAL_TIMESTAMP):
        return pa.int64()
    if pt.is_struct(kind):
        return pa.struct([each.with_type(_storage_type(each.type)) for each in kind])
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(_storage_type(kind.value_type)))
    if pt.is_map(kind):
        item = kind.item_field.with_type(_storage_type(kind.item_type))
        return pa.map_(kind.key_field, item)
    return kind


def from_storage(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """An array of a type of `storage_schema`, as one of the type in the schema itself."""
    # A cast of the whole refuses nulls in columns that are NOT NULL, which failed payloads have.
    if array.type == kind:
        return array
    if pt.is_struct(kind):
        columns = [from_storage(array.field(at), each.type) for at, each in enumerate(kind)]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=array.is_null())
    if pt.is_list(kind):
        items = from_storage(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=array.is_null())
    if pt.is_map(kind):
        items = from_storage(array.items, kind.item_type)
        return pa.MapArray.from_arrays(
            array.offsets, array.keys, items, type=kind, mask=array.is_null()
        )
    return array.cast(kind)


# --- parsing --------------------------------------------------------------------------------------


def parse_json(payload: bytes) -> tuple[str, Any]:
    """The text of a payload, and its value with a JsonNumber for each number. Raises Undecodable.

    Python's parser is strict, but for the constants NaN, Infinity and -Infinity, which are refused
    here, and for lone surrogates, which `fit_value` refuses where a column would get one.
    """
    try:
        text = payload.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise Undecodable("the payload is not UTF-8", problem.start) from None
    if is_too_deep(payload):
        raise _too_deep()
    try:
        return text, _PARSER.decode(text)
    except json.JSONDecodeError as problem:
        byte = len(text[: problem.pos].encode())
        raise Undecodable(f"not JSON: {problem.msg}", byte) from None
    except RecursionError:
        raise _too_deep() from None


def is_too_deep(payload: bytes) -> bool:
    """Whether more than DEPTH arrays and objects are within each other."""
    if payload.count(b"[") + payload.count(b"{") <= DEPTH:
        return False
    depth = 0
    for found in _NESTING_PATTERN.finditer(payload):
        sign = payload[found.start()]
        if sign in _BEGINNINGS:
            depth += 1
            if depth > DEPTH:
                return True
        elif sign in _ENDS:
            depth -= 1
    return False


def _too_deep() -> Undecodable:
    return Undecodable("not JSON that can be read: it is nested too deeply")


def _refuse_constant(name: str) -> Any:
    raise Undecodable(f"not JSON: {name} is not a JSON value")


_PARSER: Final = json.JSONDecoder(
    parse_float=JsonNumber, parse_int=JsonNumber, parse_constant=_refuse_constant
)


# --- values of columns ----------------------------------------------------------------------------


def fit_object(value: Any, shape: JsonShape) -> dict[str, Any]:
    """The columns of a payload's value. Raises Undecodable if it is not an object."""
    if type(value) is not dict:
        raise Undecodable(f"expected a JSON object, found {_found(value)}")
    return {name: fit_value(value.get(name), part) for name, part in shape.parts}


def fit_value(value: Any, shape: JsonShape) -> Any:
    """The value as a column of `storage_schema` takes it, with Rejected where it does not fit."""
    form = shape.form
    if value is None:
        return None
    if form == TEXT:
        return _fit_text(value)
    if form == FLOATING:
        return _fit_float(value, shape.kind.bit_width)
    if form == INTEGER:
        return _fit_integer(value, shape.kind.bit_width)
    if form in (TIME, LOCAL_TIME):
        return _fit_time(value, is_local=form == LOCAL_TIME)
    if form == BOOLEAN:
        return value if type(value) is bool else _rejected("true or false", value)
    if form == OBJECT:
        if type(value) is not dict:
            return _rejected("an object", value)
        return {name: fit_value(value.get(name), part) for name, part in shape.parts}
    if form == ARRAY:
        if type(value) is not list:
            return _rejected("an array", value)
        ((_, item),) = shape.parts
        return [fit_value(each, item) for each in value]
    if form == MAP:
        return _fit_map(value, shape)
    if form == DECIMAL:
        return _fit_decimal(value, shape.kind)
    if form == DATE:
        try:
            return checked_value(value, shape.kind)
        except WrongValue:
            return _rejected("a date", value)
    return _fit_bytes(value)


def _fit_text(value: Any) -> str | Rejected:
    text = value if type(value) is str else _written(value)
    # Of text, only escapes can have surrogates: they are half of a character of UTF-16.
    if text.isascii() or not _has_surrogate(text):
        return text
    return Rejected(f"expected text, found {_quoted(text)}, which has a lone surrogate")


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _written(value: Any) -> str:
    """A value as JSON without spaces."""
    if type(value) is JsonNumber:
        return value.text
    if type(value) is dict:
        parts = (f"{_written(key)}:{_written(each)}" for key, each in value.items())
        return f"{{{','.join(parts)}}}"
    if type(value) is list:
        return f"[{','.join(map(_written, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _fit_integer(value: Any, bits: int) -> int | Rejected:
    if type(value) is not JsonNumber or not value.text.removeprefix("-").isdigit():
        return _rejected("an integer", value)
    bound = 1 << (bits - 1)
    if len(value.text) <= _INTEGER_CHARACTERS:
        number = int(value.text)
        if -bound <= number < bound:
            return number
    return Rejected(
        f"expected an integer from {-bound} to {bound - 1}, found {_shortened(value.text)}"
    )


def _fit_float(value: Any, bits: int) -> float | Rejected:
    if type(value) is not JsonNumber:
        return _rejected("a number", value)
    number = float(value.text)
    try:
        if bits == 32:
            struct.pack("<f", number)
        is_finite = isfinite(number)
    except OverflowError:
        is_finite = False
    if is_finite:
        return number
    name = "float" if bits == 32 else "double"
    return Rejected(f"{_shortened(value.text)} is too large for a {name}")


def _fit_decimal(value: Any, kind: pa.DataType) -> object:
    try:
        number = Decimal(value.text) if type(value) is JsonNumber else value
        if type(number) in (Decimal, str):
            return checked_value(number, kind)
    except (WrongValue, DecimalException):
        pass
    return _rejected(describe_type(kind), value)


def _fit_bytes(value: Any) -> bytes | Rejected:
    if type(value) is str:
        try:
            return b64decode(value, validate=True)
        except ValueError:
            pass
    return _rejected("Base64 text", value)


def _fit_time(value: Any, *, is_local: bool) -> object:
    """Microseconds since 1970."""
    moment: object = None
    if type(value) is JsonNumber and not is_local:
        moment = float(value.text)
    elif type(value) is str:
        if _LOCAL_TIME_PATTERN.match(value):
            moment = value + (MIDNIGHT_UTC if len(value) == DATE_CHARACTERS else UTC_SUFFIX)
        elif not is_local:
            moment = value
    if moment is not None:
        try:
            return checked_value(moment, TIMESTAMP)
        except WrongValue:
            pass
    if type(value) is JsonNumber and not is_local:
        return _rejected("a timestamp in the years 1 to 9999", value)
    return _rejected("a timestamp_ntz" if is_local else "a timestamp", value)


def _fit_map(value: Any, shape: JsonShape) -> dict[str, Any] | Rejected:
    if type(value) is not dict:
        return _rejected("an object", value)
    ((_, item),) = shape.parts
    for key in value:
        fit = _fit_text(key)
        if type(fit) is Rejected:
            return fit
    return {key: fit_value(each, item) for key, each in value.items()}


# --- reasons --------------------------------------------------------------------------------------


def _rejected(expectation: str, value: Any) -> Rejected:
    return Rejected(f"expected {expectation}, found {_found(value)}")


def _found(value: Any) -> str:
    """A value for a reason: short, whatever its size."""
    if type(value) is dict:
        return "an object"
    if type(value) is list:
        return "an array"
    if type(value) is JsonNumber:
        return f"the number {_shortened(value.text)}"
    if type(value) is str:
        return f"text {_quoted(value)}"
    return json.dumps(value)


def _quoted(text: str) -> str:
    return _shortened(json.dumps(text[:_QUOTED]))


def _shortened(text: str) -> str:
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"

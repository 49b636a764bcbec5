"""Columns without children: from Python values to Arrow, as a whole or value by value.

`convert_at_once` gives the Arrow array of a column whose values all have a Python type that Arrow
converts strictly, or None. `checked_value` then checks one value. The rules are in `typed`.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation
from math import floor, isfinite
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from semel.counts import count

NONE: Final = type(None)
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# The years 1 to 9999, in microseconds since 1970.
_FIRST_TIME: Final = -62_135_596_800_000_000
_LAST_TIME: Final = 253_402_300_799_999_999
# No float beyond it is a time, so that products stay in an int64.
_LAST_SECOND: Final = 253_402_300_800
_BILLION: Final = 1_000_000_000
# ISO 8601 in the extended notation, with an offset; a space for the T as RFC 3339 allows. Both
# Arrow (RE2) and Python use it, so it contains nothing on which they differ.
_TIME_TEXT: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,30})?)?"
    r"(Z|[+-]([01][0-9]|2[0-3])(:?[0-5][0-9])?)$"
)
_SEVENTH_DIGIT: Final = r"(\.[0-9]{6})[0-9]+"
_TIME_PATTERN: Final = re.compile(_TIME_TEXT.removesuffix("$") + r"\Z")
_DATE_PATTERN: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DECIMAL_PATTERN: Final = re.compile(r"[+-]?[0-9]{1,60}(\.[0-9]{1,60})?")
_SHOWN_CHARACTERS: Final = 40
_SHOWN_BITS: Final = 128


class WrongValue(Exception):
    """A value does not fit its column; the text says what was expected and what was found."""


@dataclass(frozen=True)
class Rejected:
    """Stands for a value that a decoder has read but that no column can hold, with the reason."""

    reason: str


def is_leaf(kind: pa.DataType) -> bool:
    """Whether a column of this type is supported and has no children."""
    return bool(
        pt.is_boolean(kind)
        or pt.is_signed_integer(kind)
        or pt.is_float32(kind)
        or pt.is_float64(kind)
        or pt.is_decimal128(kind)
        or pt.is_string(kind)
        or pt.is_binary(kind)
        or pt.is_date32(kind)
        or kind == TIMESTAMP
    )


def convert_at_once(values: Sequence[Any], kinds: set[type], kind: pa.DataType) -> pa.Array | None:
    """The Arrow array of a column whose values have the Python types `kinds`, other than None.

    None if a value must be checked alone: the column has other types, or a value does not fit.
    """
    if not kinds:
        return pa.nulls(len(values), type=kind)
    if len(kinds) > 1 and not (kinds == {int, float} and pt.is_float64(kind)):
        return None
    (given, *_) = kinds
    try:
        if pt.is_boolean(kind):
            return pa.array(values, type=kind) if given is bool else None
        if pt.is_signed_integer(kind):
            return pa.array(values, type=kind) if given is int else None
        if pt.is_string(kind):
            return pa.array(values, type=kind) if given is str else None
        if pt.is_binary(kind):
            return pa.array(values, type=kind) if given is bytes else None
        if pt.is_date32(kind):
            return pa.array(values, type=kind) if given is date else None
        if pt.is_float64(kind):
            return pa.array(values, type=kind) if given in (int, float) else None
        if pt.is_float32(kind):
            return _float32s(values, given)
        if pt.is_decimal128(kind):
            return _decimals(values, kind) if given is Decimal else None
        return _times(values, given)
    except (pa.ArrowException, OverflowError, UnicodeError, DecimalException):
        return None


def _float32s(values: Sequence[Any], given: type) -> pa.Array | None:
    if given is int:
        return pa.array(values, type=pa.float32())
    if given is not float:
        return None
    wide = pa.array(values, type=pa.float64())
    narrow = wide.cast(pa.float32())
    overflowed = pc.any(pc.not_equal(pc.is_inf(wide), pc.is_inf(narrow))).as_py()
    return None if overflowed else narrow


def _decimal_context(kind: pa.DataType) -> tuple[Context, Decimal]:
    """A context that raises for a decimal that does not fit, and the unit of the last digit."""
    context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
    return context, Decimal(1).scaleb(-kind.scale)


def _decimals(values: Sequence[Decimal | None], kind: pa.DataType) -> pa.Array | None:
    # Arrow gets decimals of its own scale only: it converts 1E-77 to 0, and crashes for exponents
    # around -1,000,000,000.
    context, unit = _decimal_context(kind)
    fit = [None if value is None else context.quantize(value, unit) for value in values]
    return pa.array(fit, type=kind)


def _times(values: Sequence[Any], given: type) -> pa.Array | None:
    if given is datetime:
        # Arrow takes a time without an offset for UTC.
        if None in {value.tzinfo for value in values if value is not None}:
            return None
        times = pa.array(values, type=TIMESTAMP)
    elif given is int:
        seconds = pa.array(values, type=pa.int64())
        times = pc.multiply_checked(seconds, 1_000_000).cast(TIMESTAMP)
    elif given is float:
        return times_of_seconds(pa.array(values, type=pa.float64()))
    elif given is str:
        return times_of_texts(pa.array(values, type=pa.string()))
    else:
        return None
    return _within_years(times)


def times_of_seconds(moments: pa.Array) -> pa.Array | None:
    """The times of float64 seconds since 1970; None if one of them is out of range."""
    if not pc.all(pc.less(pc.abs(moments), float(_LAST_SECOND)), min_count=0).as_py():
        return None
    whole = pc.floor(moments)
    fraction = pc.round(pc.multiply(pc.subtract(moments, whole), 1e6), round_mode="half_to_even")
    micros = pc.multiply_checked(whole.cast(pa.int64()), 1_000_000)
    return _within_years(pc.add_checked(micros, fraction.cast(pa.int64())).cast(TIMESTAMP))


def times_of_parts(seconds: Sequence[int], nanos: Sequence[int]) -> pa.Array | None:
    """The times of seconds since 1970 and nanoseconds, which are cut to microseconds.

    None if one of them is out of range.
    """
    moments, fractions = pa.array(seconds, pa.int64()), pa.array(nanos, pa.int64())
    for numbers, bound, least in (
        (moments, _LAST_SECOND, -_LAST_SECOND),
        (fractions, _BILLION, 0),
    ):
        found = pc.min_max(numbers).as_py()
        if found["min"] is not None and not least <= found["min"] <= found["max"] < bound:
            return None
    micros = pc.add(pc.multiply(moments, 1_000_000), pc.divide(fractions, 1_000))
    return _within_years(micros.cast(TIMESTAMP))


def times_of_texts(texts: pa.Array) -> pa.Array | None:
    """The times of ISO 8601 texts with an offset; None if one of them is something else.

    Raises ArrowInvalid for a time that no clock shows.
    """
    if not pc.all(pc.match_substring_regex(texts, _TIME_TEXT), min_count=0).as_py():
        return None
    try:
        times = texts.cast(TIMESTAMP)
    except pa.ArrowInvalid:
        # Arrow refuses more than six digits of a second.
        times = pc.replace_substring_regex(texts, _SEVENTH_DIGIT, r"\1").cast(TIMESTAMP)
    return _within_years(times)


def _within_years(times: pa.Array) -> pa.Array | None:
    """The times, or None if one of them is not in the years 1 to 9999."""
    bounds = pc.min_max(times.cast(pa.int64())).as_py()
    if bounds["min"] is None:
        return times
    in_range = bounds["min"] >= _FIRST_TIME and bounds["max"] <= _LAST_TIME
    return times if in_range else None


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The type whose arrays are made of what `checked_value` returns, to be cast to `kind`."""
    return pa.int64() if kind == TIMESTAMP else kind


def checked_value(value: Any, kind: pa.DataType) -> object:
    """One value that is not None, as Arrow takes it for `storage_type(kind)`.

    Raises WrongValue if it does not fit a column of type `kind`.
    """
    given = type(value)
    if given is Rejected:
        raise WrongValue(value.reason)
    fit: object = None
    if pt.is_boolean(kind):
        fit = value if given is bool else None
    elif pt.is_signed_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        fit = value if given is int and -bound <= value < bound else None
    elif pt.is_floating(kind):
        fit = _checked_float(value, "<f" if pt.is_float32(kind) else "<d")
    elif pt.is_decimal128(kind):
        fit = _checked_decimal(value, kind)
    elif pt.is_string(kind):
        fit = _checked_text(value)
    elif pt.is_binary(kind):
        fit = value if given is bytes else None
    elif pt.is_date32(kind):
        fit = _checked_date(value)
    else:
        fit = _checked_time(value)
    if fit is None:
        raise WrongValue(f"expected {describe_type(kind)}, found {describe(value)}")
    return fit


def _checked_float(value: Any, code: str) -> float | None:
    if type(value) is not float and type(value) is not int:
        return None
    try:
        (narrow,) = struct.unpack(code, struct.pack(code, value))
    except (OverflowError, struct.error):
        return None
    if type(value) is int and narrow != value:
        return None
    return float(value)


def _checked_decimal(value: Any, kind: pa.DataType) -> Decimal | None:
    is_short_int = type(value) is int and value.bit_length() <= _SHOWN_BITS
    if is_short_int or (type(value) is str and _DECIMAL_PATTERN.fullmatch(value)):
        value = Decimal(value)
    if type(value) is not Decimal or not value.is_finite():
        return None
    context, unit = _decimal_context(kind)
    try:
        return context.quantize(value, unit)
    except DecimalException:
        return None


def _checked_text(value: Any) -> str | None:
    if type(value) is UUID:
        return str(value)
    if type(value) is not str:
        return None
    try:
        value.encode()
    except UnicodeError:
        return None
    return value


def _checked_date(value: Any) -> date | None:
    if type(value) is date:
        return value
    if type(value) is not str or not _DATE_PATTERN.fullmatch(value):
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        return None


def _checked_time(value: Any) -> int | None:
    """Microseconds since 1970."""
    moment = value
    if type(value) is str and _TIME_PATTERN.match(value):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
    if type(moment) is datetime and moment.tzinfo is not None:
        micros = (moment - _EPOCH) // _MICROSECOND
    elif type(value) is int:
        micros = value * 1_000_000
    elif type(value) is float and isfinite(value) and abs(value) < _LAST_SECOND:
        whole = floor(value)
        micros = whole * 1_000_000 + round((value - whole) * 1e6)
    else:
        return None
    return micros if _FIRST_TIME <= micros <= _LAST_TIME else None


def describe_type(kind: pa.DataType) -> str:
    """What a column of this type expects, for a message."""
    if pt.is_boolean(kind):
        return "a boolean"
    if pt.is_signed_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return f"an int from {-bound} to {bound - 1}"
    if pt.is_floating(kind):
        return f"a number that a float{kind.bit_width} represents"
    if pt.is_decimal128(kind):
        return f"a decimal with at most {kind.precision} digits, {kind.scale} after the point"
    if pt.is_string(kind):
        return "text"
    if pt.is_binary(kind):
        return "bytes"
    if pt.is_date32(kind):
        return "a date"
    if pt.is_list(kind):
        return "a list"
    if pt.is_struct(kind) or pt.is_map(kind):
        return "a map"
    return "a time with an offset from UTC, in the years 1 to 9999"


def describe(value: object) -> str:
    """A value that was found, for a message: short, whatever its size."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        bits = value.bit_length()
        return str(value) if bits <= _SHOWN_BITS else f"an int of {bits:,} bits"
    if isinstance(value, str):
        return f"text {shortened(value)!a}"
    if isinstance(value, bytes):
        return count(len(value), "byte")
    if isinstance(value, float | Decimal | date | UUID):
        return shortened(str(value))
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a map"
    return f"a value of type {type(value).__name__}"


def shortened(text: str) -> str:
    """At most the first 40 characters of a text."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"

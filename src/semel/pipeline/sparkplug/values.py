"""Values of Sparkplug B: from the field of a metric that carries one to a column of a table.

A value has a data type, which its metric or its birth names, and a field, by which it was sent. The
data type decides; the field must fit it. Signed integers are sent in unsigned fields as two's
complement: some senders use the width of the type, others that of the field, and both are
unambiguous. Senders also disagree about the field of UInt32, so each integer is accepted in both.

What does not fit is a problem, and never a number that is nearly right.
"""

import json
import struct
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, Final, NamedTuple

from semel.counts import count
from semel.pipeline.sparkplug.protobuf_schema import VALUE

INT64: Final = 4
UINT64: Final = 8
FLOAT: Final = 9
DOUBLE: Final = 10
BOOLEAN: Final = 11
STRING: Final = 12
DATE_TIME: Final = 13
TEXT: Final = 14
UUID: Final = 15
DATA_SET: Final = 16
BYTES: Final = 17
FILE: Final = 18
TEMPLATE: Final = 19
PROPERTY_SET: Final = 20
PROPERTY_SET_LIST: Final = 21
BOOLEAN_ARRAY: Final = 32
STRING_ARRAY: Final = 33
DATE_TIME_ARRAY: Final = 34

# The data types of the specification, by number.
DATATYPES: Final[dict[int, str]] = dict(
    enumerate(
        (
            *("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"),
            *("Float", "Double", "Boolean", "String", "DateTime", "Text"),
            *("UUID", "DataSet", "Bytes", "File", "Template", "PropertySet", "PropertySetList"),
            *("Int8Array", "Int16Array", "Int32Array", "Int64Array"),
            *("UInt8Array", "UInt16Array", "UInt32Array", "UInt64Array"),
            *("FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray"),
        ),
        start=1,
    )
)
# Width and sign of integers.
_INTEGERS: Final = {
    1: (8, True),
    2: (16, True),
    3: (32, True),
    INT64: (64, True),
    5: (8, False),
    6: (16, False),
    7: (32, False),
    UINT64: (64, False),
}
# Elements of arrays, little-endian, as `struct` calls them.
_ELEMENTS: Final = {
    22: "b",
    23: "h",
    24: "i",
    25: "q",
    26: "B",
    27: "H",
    28: "I",
    29: "Q",
    30: "f",
    31: "d",
    DATE_TIME_ARRAY: "q",
}
_WIDTHS: Final = {"int_value": 32, "long_value": 64}
# The largest BIGINT.
MOST_LONG: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Milliseconds of the years 1 to 9999, which all readers of tables support.
_LEAST_TIME: Final = -62_135_596_800_000
_MOST_TIME: Final = 253_402_300_799_999


class BadValue(Exception):
    """A value does not fit its data type. The text is a fragment of a sentence."""


class ValueColumns(NamedTuple):
    """The value of a metric: at most one of these, except for `problem`."""

    value_long: int | None = None
    value_double: float | None = None
    value_boolean: bool | None = None
    value_text: str | None = None
    value_bytes: bytes | None = None
    # In microseconds since 1970.
    value_time: int | None = None
    problem: str | None = None


NO_VALUE: Final = ValueColumns()


def value_columns(datatype: int, field: str | None, value: Any) -> ValueColumns:
    """The columns of a value that was sent in `field`."""
    try:
        if datatype in _INTEGERS:
            number = read_integer(datatype, field, value)
            if number > MOST_LONG:
                return ValueColumns(value_text=str(number))
            return ValueColumns(value_long=number)
        if datatype == FLOAT or datatype == DOUBLE:
            _check_field(datatype, field, "float_value", "double_value")
            return ValueColumns(value_double=value)
        if datatype == BOOLEAN:
            _check_field(datatype, field, "boolean_value")
            return ValueColumns(value_boolean=value)
        if datatype in (STRING, TEXT, UUID):
            _check_field(datatype, field, "string_value")
            return ValueColumns(value_text=value)
        if datatype in (BYTES, FILE):
            _check_field(datatype, field, "bytes_value")
            return ValueColumns(value_bytes=value)
        if datatype == DATE_TIME:
            _check_field(datatype, field, "long_value", "int_value")
            return ValueColumns(value_time=read_time(value))
        return ValueColumns(value_text=json_text(read_value(datatype, field, value)))
    except BadValue as problem:
        return ValueColumns(problem=str(problem))


def untyped_columns(field: str | None, value: Any) -> ValueColumns:
    """The columns of a value whose data type is not known.

    An integer is text, with the digits of the unsigned field: its sign is not known.
    """
    if field in _WIDTHS:
        return ValueColumns(value_text=str(value))
    if field in ("float_value", "double_value"):
        return ValueColumns(value_double=value)
    if field == "boolean_value":
        return ValueColumns(value_boolean=value)
    if field == "string_value":
        return ValueColumns(value_text=value)
    if field == "bytes_value":
        return ValueColumns(value_bytes=value)
    if field == "dataset_value":
        return value_columns(DATA_SET, field, value)
    if field == "template_value":
        return value_columns(TEMPLATE, field, value)
    return ValueColumns(problem="the metric has no value, and is_null is not set")


# --- single values --------------------------------------------------------------------------------


def read_value(datatype: int, field: str | None, value: Any) -> Any:
    """A value as JSON has it: times and bytes are text. Raises BadValue."""
    if datatype in _INTEGERS:
        return read_integer(datatype, field, value)
    if datatype in (FLOAT, DOUBLE):
        _check_field(datatype, field, "float_value", "double_value")
        return _json_number(value)
    if datatype == BOOLEAN:
        _check_field(datatype, field, "boolean_value")
        return value
    if datatype in (STRING, TEXT, UUID):
        _check_field(datatype, field, "string_value")
        return value
    if datatype == DATE_TIME:
        _check_field(datatype, field, "long_value", "int_value")
        return _time_text(value)
    if datatype in (BYTES, FILE):
        _check_field(datatype, field, "bytes_value")
        return b64encode(value).decode()
    if datatype == DATA_SET:
        _check_field(datatype, field, "dataset_value")
        return _read_data_set(value)
    if datatype == TEMPLATE:
        _check_field(datatype, field, "template_value")
        return _read_template(value)
    if datatype == PROPERTY_SET:
        _check_field(datatype, field, "propertyset_value")
        return read_properties(value)
    if datatype == PROPERTY_SET_LIST:
        _check_field(datatype, field, "propertysets_value")
        return [read_properties(each) for each in value.propertyset]
    if datatype in DATATYPES:
        _check_field(datatype, field, "bytes_value")
        return read_array(datatype, value)
    raise BadValue(f"there is no data type {datatype}")


def read_integer(datatype: int, field: str | None, value: int) -> int:
    """An integer of a data type. Raises BadValue if it is out of range."""
    _check_field(datatype, field, "int_value", "long_value")
    assert field is not None
    bits, is_signed = _INTEGERS[datatype]
    if not is_signed:
        if value < 1 << bits:
            return value
    else:
        if value < 1 << (bits - 1):
            return value
        if value < 1 << bits:
            return value - (1 << bits)
        width = _WIDTHS[field]
        if value - (1 << width) >= -(1 << (bits - 1)):
            return value - (1 << width)
    raise BadValue(f"expected a value of type {DATATYPES[datatype]}, found {value}")


def read_time(value: int) -> int:
    """Microseconds since 1970, from milliseconds in an unsigned field. Raises BadValue."""
    signed = value if value <= MOST_LONG else value - (1 << 64)
    # What is no time as a negative number was hardly sent as one: the problem has the number sent.
    return time_of_number(signed if signed >= _LEAST_TIME else value)


def time_of_number(milliseconds: int | float) -> int:
    """Microseconds since 1970, from milliseconds. Raises BadValue."""
    if not _LEAST_TIME <= milliseconds <= _MOST_TIME:
        raise BadValue(
            f"expected a time in the years 1 to 9999, found {milliseconds} ms since 1970"
        )
    return round(milliseconds * 1000)


def _time_text(value: int) -> str:
    at = _EPOCH + timedelta(microseconds=read_time(value))
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json_number(value: float) -> float | str:
    """A number; JSON has no others than finite ones."""
    if isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _check_field(datatype: int, field: str | None, *fitting: str) -> None:
    if field not in fitting:
        if field is None:
            raise BadValue("the metric has no value, and is_null is not set")
        raise BadValue(f"expected {fitting[0]} for type {DATATYPES[datatype]}, found {field}")


# --- arrays ---------------------------------------------------------------------------------------


def read_array(datatype: int, data: bytes) -> list[Any]:
    """The elements of an array, as JSON has them. Raises BadValue."""
    if datatype == BOOLEAN_ARRAY:
        return _read_booleans(data)
    if datatype == STRING_ARRAY:
        return _read_strings(data)
    kind = f"<{_ELEMENTS[datatype]}"
    size = struct.calcsize(kind)
    if len(data) % size:
        raise BadValue(
            f"expected elements of {count(size, 'byte')} for {DATATYPES[datatype]}, found"
            f" {count(len(data), 'byte')}"
        )
    values = [each for (each,) in struct.iter_unpack(kind, data)]
    if datatype == DATE_TIME_ARRAY:
        return [_time_text(each & (1 << 64) - 1) for each in values]
    if kind in ("<f", "<d"):
        return [_json_number(each) for each in values]
    return values


def _read_booleans(data: bytes) -> list[bool]:
    """A count of 4 bytes, and one bit for each value, the highest bit of a byte first."""
    number = int.from_bytes(data[:4], "little")
    if len(data) < 4 or len(data) - 4 != (number + 7) // 8:
        raise BadValue(
            f"expected a count and its bits for BooleanArray, found {count(len(data), 'byte')}"
        )
    return [bool(data[4 + at // 8] & 0x80 >> at % 8) for at in range(number)]


def _read_strings(data: bytes) -> list[str]:
    """Strings of UTF-8, each with a zero byte after it."""
    if data and data[-1]:
        raise BadValue("expected a zero byte after each string of StringArray")
    try:
        return [each.decode() for each in data.split(b"\0")[:-1]]
    except UnicodeDecodeError:
        raise BadValue("a string of StringArray is not UTF-8") from None


# --- nested values --------------------------------------------------------------------------------


def read_properties(properties: Any) -> dict[str, Any]:
    """The values of a PropertySet by key. Raises BadValue."""
    if len(properties.keys) != len(properties.values):
        raise BadValue(
            f"a property set has {len(properties.keys)} keys and {len(properties.values)} values"
        )
    return {
        key: None if value.is_null else _read_typed(value.type, value)
        for key, value in zip(properties.keys, properties.values, strict=True)
    }


def _read_typed(datatype: int, holder: Any) -> Any:
    """The value of a property, parameter, element or nested metric; None if there is none."""
    field = holder.WhichOneof(VALUE)
    if field is None:
        return None
    value = getattr(holder, field)
    if datatype:
        return read_value(datatype, field, value)
    # Without a type, the field says enough, except for the sign of an integer.
    if field in _WIDTHS:
        raise BadValue("an integer has no data type, so that its sign is not known")
    if field == "propertyset_value":
        return read_properties(value)
    if field == "propertysets_value":
        return [read_properties(each) for each in value.propertyset]
    if field == "dataset_value":
        return _read_data_set(value)
    if field == "template_value":
        return _read_template(value)
    if field == "bytes_value":
        return b64encode(value).decode()
    return _json_number(value) if isinstance(value, float) else value


def _read_data_set(data: Any) -> dict[str, Any]:
    columns, types = list(data.columns), list(data.types)
    width = len(columns)
    if (data.HasField("num_of_columns") and data.num_of_columns != width) or len(types) != width:
        raise BadValue(
            f"a data set has {width} columns, {len(types)} types, and num_of_columns"
            f" {data.num_of_columns}"
        )
    rows = []
    for row in data.rows:
        if len(row.elements) != width:
            raise BadValue(f"a row of a data set has {len(row.elements)} elements, not {width}")
        rows.append(
            [_read_typed(kind, each) for kind, each in zip(types, row.elements, strict=True)]
        )
    return {"columns": columns, "types": [_type_name(each) for each in types], "rows": rows}


def _read_template(template: Any) -> dict[str, Any]:
    return {
        "version": template.version if template.HasField("version") else None,
        "reference": template.template_ref if template.HasField("template_ref") else None,
        "is_definition": template.is_definition,
        "parameters": [
            {
                "name": each.name,
                "datatype": _type_name(each.type),
                "value": _read_typed(each.type, each),
            }
            for each in template.parameters
        ],
        "metrics": [
            {
                "name": each.name,
                "datatype": _type_name(each.datatype),
                "value": None if each.is_null else _read_typed(each.datatype, each),
            }
            for each in template.metrics
        ],
    }


def _type_name(datatype: int) -> str | None:
    return DATATYPES.get(datatype)


def read_metadata(metadata: Any) -> dict[str, Any]:
    """The fields of a MetaData that are set."""
    return {field.name: value for field, value in metadata.ListFields()}


def json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

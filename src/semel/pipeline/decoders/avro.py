"""Avro: one record for each payload, in the raw binary encoding of a schema that is given.

Options: `schema_file` (path of an .avsc file) or `schema` (its JSON text); `confluent = true` if
payloads begin with the header of a Confluent registry (byte 0 and a schema ID of 4 bytes, which is
skipped); `single_object = true` if they begin with the header of a single object (C3 01 and the
CRC-64-AVRO fingerprint of the schema, which must match).

fastavro decodes a rewritten schema, which describes the same bytes:

- Enums are read as ints and mapped to their symbols here, because fastavro accepts negative ints.
- Booleans are read as bytes, because fastavro takes each byte but 0 for true.
- Decimals are read as bytes, because fastavro rounds them to the precision of the schema.
- timestamp-nanos becomes a time; digits beyond microseconds are dropped.

Two kinds of schemas are refused. Recursive ones have no table type, and a deeply nested payload
would crash fastavro. Arrays of items without bytes (null) would let a payload of a few bytes
announce any number of items.

Not detected: a negative branch of a union, which fastavro counts from the end, and ints of more
than 64 bits, of which it keeps the lower bits.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from functools import cache
from io import BytesIO
from itertools import count
from typing import Any, Final

import pyarrow as pa

from semel.extras import need
from semel.pipeline.decoders.leaves import Rejected
from semel.pipeline.decoders.options import (
    check_option_names,
    flag_option,
    read_option_file,
    text_option,
)
from semel.pipeline.decoders.outcome import Decoded
from semel.pipeline.decoders.payloads import (
    Undecodable,
    decode_each,
    trailing_bytes,
    truncated,
)
from semel.pipeline.errors import OptionError

NAME: Final = "avro"
OPTIONS: Final = ("schema_file", "schema", "confluent", "single_object")
# Headers before the datum.
PLAIN: Final = ""
CONFLUENT: Final = "confluent"
SINGLE_OBJECT: Final = "single_object"

_CONFLUENT_BYTES: Final = 5
_SINGLE_OBJECT_MARK: Final = b"\xc3\x01"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Our logical types in rewritten schemas.
_BOOLEAN: Final = "semel-boolean"
_ENUM: Final = "semel-enum"
# fastavro drops "symbols" from an int.
_SYMBOLS: Final = "semel-symbols"
_DECIMAL: Final = "semel-decimal"
_NANOS: Final = "semel-timestamp-nanos"
# No decimal128 has more bytes; a sign and leading zeros are tolerated.
_DECIMAL_BYTES: Final = 32
_EXACT: Final = Context(prec=100)


@dataclass(frozen=True)
class AvroDecoder:
    """Decodes Avro payloads into structs of `schema`."""

    schema: pa.Schema
    # The Avro schema as JSON text.
    avro_schema: str
    # PLAIN, CONFLUENT or SINGLE_OBJECT.
    header: str

    def __call__(self, payloads: pa.Array) -> Decoded:
        """Decode a column of payloads."""
        return decode_each(payloads, self.schema, _make_decode(self.avro_schema, self.header))


def make_avro_decoder(schema: pa.Schema, options: Mapping[str, object]) -> AvroDecoder:
    """The decoder for `options`. Reads the schema file. Raises OptionError and MissingExtra."""
    check_option_names(NAME, options, OPTIONS)
    path = text_option(NAME, options, "schema_file")
    text = text_option(NAME, options, "schema")
    if (path is None) == (text is None):
        raise OptionError("decoder avro needs either option schema_file or option schema")
    if path is not None:
        try:
            text = read_option_file(NAME, "schema_file", path).decode()
        except UnicodeDecodeError:
            raise OptionError(f"option schema_file of decoder avro: {path} is not text") from None
    assert text is not None
    header = PLAIN
    if flag_option(NAME, options, CONFLUENT):
        header = CONFLUENT
    if flag_option(NAME, options, SINGLE_OBJECT):
        if header == CONFLUENT:
            raise OptionError("decoder avro: choose option confluent or single_object, not both")
        header = SINGLE_OBJECT
    compiled = _compile(text)
    for name in schema.names:
        if name not in compiled.fields:
            raise OptionError(f"column {name} is not a field of the Avro schema")
    return AvroDecoder(schema, text, header)


@dataclass(frozen=True)
class _CompiledAvro:
    """What a process keeps of an Avro schema."""

    # Rewritten, as fastavro takes it.
    readable: Any
    fields: tuple[str, ...]
    # CRC-64-AVRO in the byte order of single objects.
    fingerprint: bytes


@cache
def _compile(text: str) -> _CompiledAvro:
    """Parse and rewrite a schema, once per process. Raises OptionError."""
    fastavro = need("fastavro", extra="decoders", by="decoder avro")
    _register_logical_types()
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            raise _no_record()
        parsed = fastavro.parse_schema(given)
        canonical = fastavro.schema.to_parsing_canonical_form(parsed)
        fingerprint = fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")
    except json.JSONDecodeError as problem:
        raise OptionError(f"the Avro schema is not JSON: {problem}") from None
    except RecursionError:
        raise OptionError("the Avro schema is nested too deeply") from None
    except (
        fastavro.schema.SchemaParseException,
        fastavro.schema.UnknownType,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ) as problem:
        raise OptionError(f"the Avro schema is not valid: {problem}") from None
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise _no_record()
    rewriting = _Rewriting(parsed.get("__named_schemas", {}))
    readable = fastavro.parse_schema(rewriting.rewrite(parsed, ()))
    fields = tuple(field["name"] for field in parsed["fields"])
    return _CompiledAvro(readable, fields, bytes.fromhex(fingerprint))


def _no_record() -> OptionError:
    return OptionError("the Avro schema must be a record: its fields are the columns")


class _Rewriting:
    """Rewrites a parsed schema, with each named type in place of its name."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._numbers = count()

    def rewrite(self, schema: Any, outer: tuple[str, ...]) -> Any:
        """The schema to read with; `outer` are the names of the records around it."""
        if isinstance(schema, str):
            if schema in self._named:
                return self.rewrite(self._named[schema], outer)
            return self._boolean() if schema == "boolean" else schema
        if isinstance(schema, list):
            return [self.rewrite(branch, outer) for branch in schema]
        kind = schema["type"]
        if not isinstance(kind, str) or kind in self._named:
            return self.rewrite(kind, outer)
        if kind in ("record", "error"):
            return self._rewrite_record(schema, outer)
        if kind == "enum":
            return {"type": "int", "logicalType": _ENUM, _SYMBOLS: schema["symbols"]}
        if kind == "array":
            items = self.rewrite(schema["items"], outer)
            if _may_be_empty(items):
                raise OptionError("the Avro schema has an array whose items have no bytes")
            return {"type": "array", "items": items}
        if kind == "map":
            return {"type": "map", "values": self.rewrite(schema["values"], outer)}
        return self._rewrite_leaf(schema)

    def _rewrite_record(self, schema: dict[str, Any], outer: tuple[str, ...]) -> dict[str, Any]:
        name = schema["name"]
        if name in outer:
            raise OptionError(f"the Avro schema is recursive: record {name} contains itself")
        fields = [
            {"name": field["name"], "type": self.rewrite(field["type"], (*outer, name))}
            for field in schema["fields"]
        ]
        return {"type": "record", "name": self._new_name(), "fields": fields}

    def _rewrite_leaf(self, schema: dict[str, Any]) -> dict[str, Any]:
        leaf = dict(schema)
        if leaf["type"] == "boolean":
            return self._boolean()
        if leaf["type"] == "fixed":
            if type(leaf.get("size")) is not int or leaf["size"] < 0:
                raise OptionError("the Avro schema has a fixed whose size is not a number of bytes")
            leaf["name"] = self._new_name()
            leaf.pop("namespace", None)
            leaf.pop("aliases", None)
        logical = leaf.get("logicalType")
        if logical == "decimal":
            leaf["logicalType"] = _DECIMAL
        elif logical == "timestamp-nanos":
            leaf["logicalType"] = _NANOS
        return leaf

    def _boolean(self) -> dict[str, Any]:
        return {"type": "fixed", "size": 1, "name": self._new_name(), "logicalType": _BOOLEAN}

    def _new_name(self) -> str:
        # A type that occurs twice would be defined twice under its own name.
        return f"type_{next(self._numbers)}"


def _may_be_empty(schema: Any) -> bool:
    """Whether a value of a rewritten schema can be encoded in no bytes."""
    if isinstance(schema, dict):
        if schema["type"] == "record":
            return all(_may_be_empty(field["type"]) for field in schema["fields"])
        if schema["type"] == "fixed":
            return bool(schema["size"] == 0)
        return _may_be_empty(schema["type"])
    return bool(schema == "null")


def _register_logical_types() -> None:
    readers = need("fastavro.read", extra="decoders", by="decoder avro").LOGICAL_READERS
    readers[f"fixed-{_BOOLEAN}"] = _read_boolean
    readers[f"int-{_ENUM}"] = _read_enum
    readers[f"bytes-{_DECIMAL}"] = _read_decimal
    readers[f"fixed-{_DECIMAL}"] = _read_decimal
    readers[f"long-{_NANOS}"] = _read_nanos


def _read_boolean(data: bytes, _schema: Any = None, _reader: Any = None) -> bool:
    if data not in (b"\0", b"\1"):
        raise Undecodable(f"expected a boolean, which is byte 0 or 1, found {data[0]}")
    return data == b"\1"


def _read_enum(index: int, schema: Any = None, _reader: Any = None) -> str:
    symbols = schema[_SYMBOLS]
    if not 0 <= index < len(symbols):
        raise Undecodable(f"an enum with {len(symbols)} symbols has no symbol {index}")
    return str(symbols[index])


def _read_decimal(data: bytes, schema: Any = None, _reader: Any = None) -> Decimal | Rejected:
    if len(data) > _DECIMAL_BYTES:
        return Rejected(f"found a decimal of {len(data):,} bytes, which no column can hold")
    unscaled = Decimal(int.from_bytes(data, "big", signed=True))
    return _EXACT.scaleb(unscaled, -schema.get("scale", 0))


def _read_nanos(nanoseconds: int, _schema: Any = None, _reader: Any = None) -> datetime:
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def _make_decode(text: str, header: str) -> Callable[[bytes], object]:
    """A function that decodes one payload."""
    compiled = _compile(text)
    readable = compiled.readable
    read = need("fastavro", extra="decoders", by="decoder avro").schemaless_reader
    mark = _SINGLE_OBJECT_MARK + compiled.fingerprint

    def decode(payload: bytes) -> object:
        source = BytesIO(payload)
        if header == CONFLUENT:
            _check_confluent(payload)
            source.seek(_CONFLUENT_BYTES)
        elif header == SINGLE_OBJECT:
            _check_single_object(payload, mark)
            source.seek(len(mark))
        try:
            value = read(source, readable, None)
        except (EOFError, IndexError, ValueError, OverflowError) as problem:
            raise _explain(problem, payload) from None
        end = source.tell()
        if end != len(payload):
            raise trailing_bytes(end, len(payload))
        return value

    return decode


def _check_confluent(payload: bytes) -> None:
    if payload[0] != 0:
        raise Undecodable(f"expected byte 0 of a Confluent header, found {payload[0]}", 0)
    if len(payload) < _CONFLUENT_BYTES:
        raise truncated(payload)


def _check_single_object(payload: bytes, mark: bytes) -> None:
    if payload.startswith(mark):
        return
    if mark.startswith(payload):
        raise truncated(payload)
    if not payload.startswith(_SINGLE_OBJECT_MARK):
        raise Undecodable("expected bytes C3 01 of a single object, found others", 0)
    begin = len(_SINGLE_OBJECT_MARK)
    found = payload[begin : len(mark)].hex()
    raise Undecodable(f"expected schema fingerprint {mark[begin:].hex()}, found {found}", begin)


def _explain(problem: Exception, payload: bytes) -> Undecodable:
    """The problem of a payload that fastavro cannot read."""
    text = str(problem)
    if isinstance(problem, OverflowError) or text.startswith(("ordinal ", "year ")):
        return Undecodable("a time of the payload is outside the years 1 to 9999")
    if isinstance(problem, EOFError):
        if text.startswith("Expected -"):
            return Undecodable("the payload contains a negative length")
        return truncated(payload)
    if isinstance(problem, IndexError):
        if "string index" in text:
            return truncated(payload)
        return Undecodable("a union has no such branch")
    if isinstance(problem, UnicodeDecodeError):
        return Undecodable(f"text of the payload is not UTF-8 ({problem.reason})")
    return Undecodable(f"the payload does not match the Avro schema ({text})")

"""Avro: what fastavro writes comes back; everything else is a problem."""

import io
import json
import pickle
import random
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from semel.pipeline.decoders.formats import make_decoder
from semel.pipeline.decoders.leaves import TIMESTAMP
from semel.pipeline.decoders.outcome import Decoded, Problem
from semel.pipeline.errors import OptionError

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Reading",
    "namespace": "plant",
    "fields": [
        {"name": "device", "type": "string"},
        {"name": "count", "type": "int"},
        {"name": "total", "type": ["null", "long"]},
        {"name": "ratio", "type": "float"},
        {"name": "exact", "type": "double"},
        {"name": "ok", "type": "boolean"},
        {"name": "raw", "type": "bytes"},
        {"name": "mode", "type": {"type": "enum", "name": "Mode", "symbols": ["OFF", "ON"]}},
        {"name": "last", "type": ["null", "Mode"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "nanos", "type": {"type": "long", "logicalType": "timestamp-nanos"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
        },
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 3}},
        {"name": "values", "type": {"type": "array", "items": "double"}},
        {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}},
        {
            "name": "place",
            "type": {
                "type": "record",
                "name": "Place",
                "fields": [{"name": "x", "type": "int"}, {"name": "code", "type": "Code"}],
            },
        },
        {"name": "home", "type": ["null", "plant.Place"]},
        {"name": "unused", "type": "string"},
    ],
}
TEXT = json.dumps(AVRO)
PLACE = pa.struct([("x", pa.int32()), ("code", pa.binary())])
SCHEMA = pa.schema(
    [
        ("device", pa.string()),
        ("count", pa.int16()),
        pa.field("total", pa.int64(), nullable=False),
        ("ratio", pa.float32()),
        ("exact", pa.float64()),
        ("ok", pa.bool_()),
        ("raw", pa.binary()),
        ("mode", pa.string()),
        ("last", pa.string()),
        ("at", TIMESTAMP),
        ("nanos", TIMESTAMP),
        ("day", pa.date32()),
        ("price", pa.decimal128(20, 2)),
        ("code", pa.binary()),
        ("values", pa.list_(pa.float64())),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("place", PLACE),
        ("home", PLACE),
    ]
)
UNIQUE = b"\x4800112233-4455-6677-8899-aabbccddeeff"
MOMENT = datetime(2024, 2, 29, 12, 34, 56, 123456, tzinfo=UTC)
ROW: dict[str, Any] = {
    "device": "sensor-17",
    "count": 32767,
    "total": -(2**63),
    "ratio": 0.5,
    "exact": 0.1,
    "ok": True,
    "raw": b"\x00\xff",
    "mode": "ON",
    "last": None,
    "at": MOMENT,
    "nanos": 1_709_210_096_123_456_789,
    "day": date(2024, 2, 29),
    "price": Decimal("12.34"),
    "code": b"abc",
    "values": [1.5, 2.5],
    "tags": {"a": "1", "b": None},
    "place": {"x": 1, "code": b"xyz"},
    "home": {"x": 2, "code": b"uvw"},
    "unused": "x",
}
RESULT = {name: ROW[name] for name in SCHEMA.names} | {
    "nanos": MOMENT,
    "tags": [("a", "1"), ("b", None)],
}


def encode(row: dict[str, Any], schema: Any = AVRO) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, schema, row)
    return sink.getvalue()


def decode(*payloads: bytes | None, **options: object) -> Decoded:
    decoder = make_decoder("avro", SCHEMA, {"schema": TEXT, **options})
    decoded = decoder(pa.array(payloads, type=pa.binary()))
    decoded.values.validate(full=True)
    return decoded


def problem_of(payload: bytes, *, header: bytes = b"", **options: object) -> Problem:
    good = header + encode(ROW)
    decoded = decode(good, payload, None, good, **options)
    assert decoded.values.to_pylist() == [RESULT, None, None, RESULT]
    assert list(decoded.problems) == [1]
    return decoded.problems[1]


def small(kind: Any, column: pa.DataType, payload: bytes) -> Decoded:
    """Decode a record with one field."""
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]})
    schema = pa.schema([("v", column)])
    return make_decoder("avro", schema, {"schema": text})(pa.array([payload]))


def test_every_type_comes_back() -> None:
    decoded = decode(encode(ROW), None)
    assert not decoded.problems
    assert decoded.values.to_pylist() == [RESULT, None]


def test_values_that_do_not_fit_name_the_column() -> None:
    problem = problem_of(encode(ROW | {"count": 32768}))
    assert problem == Problem("expected an int from -32768 to 32767, found 32768", column="count")
    assert problem_of(encode(ROW | {"total": None})).reason == "required column total is missing"


def test_a_payload_truncated_at_any_byte_is_a_problem() -> None:
    whole = encode(ROW)
    assert problem_of(b"") == Problem("the payload is empty")
    for size in range(1, len(whole)):
        assert problem_of(whole[:size]) == Problem("the payload is truncated", byte=size)


def test_trailing_bytes_are_a_problem() -> None:
    whole = encode(ROW)
    assert problem_of(whole + b"\x00").byte == len(whole)


@pytest.mark.parametrize(
    ("kind", "column", "good", "bad"),
    [
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, pa.string(), b"\x02", b"\x01"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, pa.string(), b"\x00", b"\x04"),
        (["null", "string"], pa.string(), b"\x02\x02a", b"\x04"),
        ("string", pa.string(), b"\x02a", b"\x02\xff"),
        ("string", pa.string(), b"\x00", b"\x01"),
        ("bytes", pa.binary(), b"\x02a", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f"),
        ("boolean", pa.bool_(), b"\x01", b"\x02"),
        ({"type": "boolean"}, pa.bool_(), b"\x00", b"\xff"),
        (["null", "boolean"], pa.bool_(), b"\x02\x01", b"\x02\x02"),
        ({"type": "map", "values": "boolean"}, pa.map_(pa.string(), pa.bool_()), b"\x00", b"\x02"),
        ({"type": "int", "logicalType": "date"}, pa.date32(), b"\x02", b"\xff\xff\xff\xff\x0f"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            TIMESTAMP,
            b"\x02",
            b"\xff" * 9 + b"\x01",
        ),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.string(), None, b"\x02"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, TIMESTAMP, None, b"\x02"),
        ({"type": "string", "logicalType": "uuid"}, pa.string(), UNIQUE, b"\x02a"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            pa.decimal128(4, 2),
            b"\x04\x26\xff",
            b"\x06\x01\x00\x00",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            pa.decimal128(4, 2),
            b"\x00",
            b"\x80\x01" + b"\x01" * 64,
        ),
    ],
)
def test_malformed_values_are_problems(
    kind: Any, column: pa.DataType, good: bytes | None, bad: bytes
) -> None:
    assert small(kind, column, bad).problems[0].reason
    if good is not None:
        assert not small(kind, column, good).problems


@pytest.mark.parametrize(
    ("logical", "column"),
    [("date", pa.date32()), ("timestamp-millis", TIMESTAMP), ("timestamp-micros", TIMESTAMP)],
)
def test_a_time_beyond_the_calendar_is_named(logical: str, column: pa.DataType) -> None:
    number, size = ("int", 4) if logical == "date" else ("long", 9)
    kind = {"type": number, "logicalType": logical}
    for last in (b"\xff", b"\xfe"):
        problem = small(kind, column, last + b"\xff" * (size - 1) + b"\x01").problems[0]
        assert problem.reason == "a time of the payload is outside the years 1 to 9999"
    assert small(kind, column, b"\x02").values.is_valid().to_pylist() == [True]


def test_a_decimal_is_not_rounded_to_the_precision_of_the_schema() -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    decoded = small(kind, pa.decimal128(20, 2), b"\x08\x07\x5b\xcd\x15")
    assert decoded.values.to_pylist() == [{"v": Decimal("1234567.89")}]


def test_random_and_damaged_bytes_never_raise() -> None:
    chance = random.Random(4)
    whole = encode(ROW)
    payloads = [chance.randbytes(chance.randrange(1, 80)) for _ in range(3000)]
    for _ in range(3000):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        payloads.append(bytes(damaged))
    decoded = decode(*payloads)
    failed = {i for i, value in enumerate(decoded.values) if not value.is_valid}
    assert failed == set(decoded.problems)


def test_the_header_of_confluent_is_skipped() -> None:
    header = b"\x00\x00\x00\x00\x07"
    good = decode(header + encode(ROW), confluent=True)
    assert good.values.to_pylist() == [RESULT]
    problem = problem_of(b"\x01" + encode(ROW), header=header, confluent=True)
    assert problem == Problem("expected byte 0 of a Confluent header, found 1", byte=0)
    assert problem_of(header[:3], header=header, confluent=True).byte == 3
    assert problem_of(header, header=header, confluent=True).byte == 5


def crc_64_avro(data: bytes) -> int:
    """The fingerprint as the specification of Avro defines it."""
    empty = 0xC15D213AA4D7A795
    value = empty
    for byte in data:
        low = (value ^ byte) & 0xFF
        for _ in range(8):
            low = (low >> 1) ^ (empty if low & 1 else 0)
        value = (value >> 8) ^ low
    return value


def test_the_fingerprint_of_a_single_object_is_checked() -> None:
    canonical = fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(AVRO))
    header = b"\xc3\x01" + struct.pack("<Q", crc_64_avro(canonical.encode()))
    good = decode(header + encode(ROW), single_object=True)
    assert not good.problems
    assert good.values.to_pylist() == [RESULT]
    other = b"\xc3\x01" + bytes(8)
    problem = problem_of(other + encode(ROW), header=header, single_object=True)
    assert problem.byte == 2
    assert problem.reason == f"expected schema fingerprint {header[2:].hex()}, found {'00' * 8}"
    assert problem_of(encode(ROW), header=header, single_object=True).byte == 0
    assert problem_of(header[:5], header=header, single_object=True).byte == 5


def test_branches_of_a_union_may_have_the_same_type_on_the_wire() -> None:
    mode = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    price = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    kind = ["null", "int", mode, price, "bytes"]
    assert small(kind, pa.string(), b"\x04\x02").values.to_pylist() == [{"v": "B"}]
    assert small(kind, pa.int32(), b"\x02\x02").values.to_pylist() == [{"v": 1}]
    assert small(kind, pa.binary(), b"\x08\x02a").values.to_pylist() == [{"v": b"a"}]
    decoded = small(kind, pa.decimal128(4, 2), b"\x06\x02\x01")
    assert decoded.values.to_pylist() == [{"v": Decimal("0.01")}]


def record(*fields: Any) -> str:
    listed = [{"name": f"f{index}", "type": kind} for index, kind in enumerate(fields)]
    return json.dumps({"type": "record", "name": "R", "fields": listed})


NULL_RECORD = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "either option schema_file or option schema"),
        ({"schema": "x", "schema_file": "y"}, "either option schema_file or option schema"),
        ({"schema": "{"}, "not JSON"),
        ({"schema": '"string"'}, "must be a record"),
        ({"schema": "5"}, "must be a record"),
        ({"schema": "null"}, "must be a record"),
        ({"schema": "[" * 100_000}, "nested too deeply"),
        ({"schema": record({"type": "fixed", "name": "F", "size": -5})}, "fixed whose size"),
        ({"schema": "[]"}, "must be a record"),
        ({"schema": '{"type": "record"}'}, "not valid"),
        ({"schema": record("Nope")}, "not valid"),
        ({"schema": record(["null", "R"])}, "recursive: record R"),
        ({"schema": record({"type": "array", "items": "null"})}, "items have no bytes"),
        ({"schema": record({"type": "array", "items": NULL_RECORD})}, "items have no bytes"),
        ({"schema": record("string")}, "column f9 is not a field"),
        ({"schema_file": "/nowhere/x.avsc"}, "/nowhere/x.avsc: No such file"),
        ({"schema_file": "x\0.avsc"}, "is no path"),
        ({"schema": 5}, "option schema of decoder avro must be text, not 5"),
        ({"schema": record("int"), "confluent": "yes"}, "confluent .* must be true or false"),
        ({"schema": record("int"), "confluent": True, "single_object": True}, "not both"),
        ({"schemas": record("int")}, "no option schemas: its options are schema_file"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        make_decoder("avro", pa.schema([("f9", pa.int32())]), options)


def test_the_schema_file_is_read_once_and_travels_with_the_decoder(tmp_path: Path) -> None:
    file = tmp_path / "reading.avsc"
    file.write_text(TEXT, encoding="utf-8")
    decoder = make_decoder("avro", SCHEMA, {"schema_file": str(file)})
    file.unlink()
    copied = pickle.loads(pickle.dumps(decoder))
    assert copied(pa.array([encode(ROW)])).values.to_pylist() == [RESULT]
    file.write_bytes(b"\xff")
    with pytest.raises(OptionError, match="is not text"):
        make_decoder("avro", SCHEMA, {"schema_file": str(file)})

"""Protocol Buffers: what protobuf writes comes back; everything else is a problem."""

import pickle
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)

from semel.pipeline.decoders import payloads as payloads_module
from semel.pipeline.decoders.formats import make_decoder
from semel.pipeline.decoders.leaves import TIMESTAMP
from semel.pipeline.decoders.outcome import Decoded, Problem
from semel.pipeline.errors import OptionError

Field: Any = descriptor_pb2.FieldDescriptorProto
SINGLE, REPEATED, REQUIRED = Field.LABEL_OPTIONAL, Field.LABEL_REPEATED, Field.LABEL_REQUIRED
IMPORTED = ["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"]


def add(message: Any, name: str, kind: str, label: int = SINGLE) -> Any:
    """Add a field; `kind` is a scalar such as `int32`, `enum .plant.Mode` or `message .plant.X`."""
    scalar, _, type_name = kind.partition(" ")
    return message.field.add(
        name=name,
        number=len(message.field) + 1,
        type=getattr(Field, f"TYPE_{scalar.upper()}"),
        label=label,
        type_name=type_name or None,
    )


def add_map(message: Any, full_name: str, name: str, key: str, value: str) -> None:
    entry = message.nested_type.add(name=f"{name.title()}Entry")
    entry.options.map_entry = True
    add(entry, "key", key)
    add(entry, "value", value)
    add(message, name, f"message {full_name}.{entry.name}", REPEATED)


def plant_file() -> Any:
    file: Any = descriptor_pb2.FileDescriptorProto(
        name="plant.proto", package="plant", syntax="proto3", dependency=IMPORTED
    )
    mode = file.enum_type.add(name="Mode")
    mode.value.add(name="OFF", number=0)
    mode.value.add(name="ON", number=1)
    place = file.message_type.add(name="Place")
    add(place, "x", "int32")
    add(place, "inner", "message .plant.Place")
    reading = file.message_type.add(name="Reading")
    for kind in ("string", "bool", "int32", "int64", "uint64", "float", "double", "bytes"):
        add(reading, f"a_{kind}", kind)
    add(reading, "mode", "enum .plant.Mode")
    add(reading, "mode_number", "enum .plant.Mode")
    add(reading, "at", "message .google.protobuf.Timestamp")
    add(reading, "wrapped", "message .google.protobuf.StringValue")
    add(reading, "place", "message .plant.Place")
    add(reading, "values", "sint32", REPEATED)
    add(reading, "places", "message .plant.Place", REPEATED)
    add(reading, "modes", "enum .plant.Mode", REPEATED)
    add_map(reading, ".plant.Reading", "tags", "string", "int64")
    add_map(reading, ".plant.Reading", "sites", "string", "message .plant.Place")
    add_map(reading, ".plant.Reading", "numbers", "int32", "string")
    reading.oneof_decl.add(name="choice")
    add(reading, "left", "int32").oneof_index = 0
    add(reading, "right", "string").oneof_index = 0
    optional = add(reading, "maybe", "int32")
    reading.oneof_decl.add(name="_maybe")
    optional.oneof_index, optional.proto3_optional = 1, True
    return file


def old_file() -> Any:
    file: Any = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto2")
    inner = file.message_type.add(name="Inner")
    add(inner, "needed", "int32", REQUIRED)
    outer = file.message_type.add(name="Outer")
    add(outer, "text", "string")
    add(outer, "inner", "message .old.Inner")
    return file


def descriptor_set(*files: Any) -> bytes:
    every: Any = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, wrappers_pb2):
        module.DESCRIPTOR.CopyToProto(every.file.add())
    every.file.extend(files)
    return bytes(every.SerializeToString())


SET = descriptor_set(plant_file(), old_file())
POOL = descriptor_pool.DescriptorPool()
for each in descriptor_pb2.FileDescriptorSet.FromString(SET).file:
    POOL.AddSerializedFile(each.SerializeToString())
Reading: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("plant.Reading"))
Outer: Any = message_factory.GetMessageClass(POOL.FindMessageTypeByName("old.Outer"))

PLACE = pa.struct([("x", pa.int32()), ("inner", pa.struct([("x", pa.int32())]))])
SCHEMA = pa.schema(
    [
        ("a_string", pa.string()),
        ("a_bool", pa.bool_()),
        ("a_int32", pa.int16()),
        ("a_int64", pa.int64()),
        ("a_uint64", pa.int64()),
        ("a_float", pa.float32()),
        ("a_double", pa.float64()),
        ("a_bytes", pa.binary()),
        ("mode", pa.string()),
        ("mode_number", pa.int32()),
        ("at", TIMESTAMP),
        ("wrapped", pa.string()),
        ("place", PLACE),
        ("values", pa.list_(pa.int32())),
        ("places", pa.list_(PLACE)),
        ("modes", pa.list_(pa.string())),
        ("tags", pa.map_(pa.string(), pa.int64())),
        ("sites", pa.map_(pa.string(), PLACE)),
        ("left", pa.int32()),
        ("right", pa.string()),
        ("maybe", pa.int32()),
    ]
)
MOMENT = datetime(2024, 2, 29, 12, 34, 56, 123456, tzinfo=UTC)
DEFAULTS: dict[str, Any] = dict.fromkeys(SCHEMA.names) | {
    "a_string": "",
    "a_bool": False,
    "a_int32": 0,
    "a_int64": 0,
    "a_uint64": 0,
    "a_float": 0.0,
    "a_double": 0.0,
    "a_bytes": b"",
    "mode": "OFF",
    "mode_number": 0,
    "values": [],
    "places": [],
    "modes": [],
    "tags": [],
    "sites": [],
}
RESULT: dict[str, Any] = {
    "a_string": "sensor-17",
    "a_bool": True,
    "a_int32": -32768,
    "a_int64": -(2**63),
    "a_uint64": 2**63 - 1,
    "a_float": 0.5,
    "a_double": 0.1,
    "a_bytes": b"\x00\xff",
    "mode": "ON",
    "mode_number": 1,
    "at": MOMENT,
    "wrapped": "",
    "place": {"x": 0, "inner": {"x": 5}},
    "values": [1, -2, 3],
    "places": [{"x": 1, "inner": None}, {"x": 2, "inner": None}],
    "modes": ["ON", "OFF"],
    "tags": [("a", 1)],
    "sites": [("b", {"x": 3, "inner": None})],
    "left": None,
    "right": "r",
    "maybe": 0,
}


def reading(**changes: Any) -> bytes:
    message = Reading(
        a_string="sensor-17",
        a_bool=True,
        a_int32=-32768,
        a_int64=-(2**63),
        a_uint64=2**63 - 1,
        a_float=0.5,
        a_double=0.1,
        a_bytes=b"\x00\xff",
        mode=1,
        mode_number=1,
        wrapped={},
        place={"inner": {"x": 5}},
        values=[1, -2, 3],
        places=[{"x": 1}, {"x": 2}],
        modes=[1, 0],
        tags={"a": 1},
        sites={"b": {"x": 3}},
        right="r",
        maybe=0,
        at={"seconds": 1_709_210_096, "nanos": 123_456_789},
    )
    for name, value in changes.items():
        message.ClearField(name)
        message.MergeFrom(Reading(**{name: value}))
    return bytes(message.SerializeToString())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("protobuf") / "all.desc"
    path.write_bytes(SET)
    return str(path)


def decode(file: str, *payloads: bytes | None) -> Decoded:
    options = {"descriptor_file": file, "message": "plant.Reading"}
    decoded = make_decoder("protobuf", SCHEMA, options)(pa.array(payloads, type=pa.binary()))
    decoded.values.validate(full=True)
    return decoded


def problem_of(file: str, payload: bytes) -> Problem:
    decoded = decode(file, reading(), payload, None, reading())
    assert decoded.values.to_pylist() == [RESULT, None, None, RESULT]
    assert list(decoded.problems) == [1]
    return decoded.problems[1]


def test_every_type_comes_back(file: str) -> None:
    decoded = decode(file, reading(), None, b"")
    assert not decoded.problems
    assert decoded.values.to_pylist() == [RESULT, None, DEFAULTS]


@pytest.mark.parametrize(
    ("name", "value", "column", "reason"),
    [
        ("a_int32", 32768, "a_int32", "expected an int from -32768 to 32767, found 32768"),
        ("a_uint64", 2**63, "a_uint64", f"found {2**63}"),
        ("mode", 7, "mode", "enum plant.Mode has no value 7"),
        ("modes", [1, 9], "modes[1]", "enum plant.Mode has no value 9"),
        ("at", {"nanos": -1}, "at", "expected nanoseconds from 0 to 999999999, found -1"),
        ("at", {"seconds": 2**62}, "at", f"the years 1 to 9999, found second {2**62}"),
        ("at", {"seconds": 253_402_300_800}, "at", "found second 253402300800"),
    ],
)
def test_values_that_do_not_fit_name_the_column(
    file: str, name: str, value: Any, column: str, reason: str
) -> None:
    problem = problem_of(file, reading(**{name: value}))
    assert problem.column == column
    assert problem.reason.endswith(reason)


def test_a_payload_is_decoded_alike_alone_and_among_many(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(6)
    times: list[Any] = [{}, {"seconds": -62_135_596_800}, {"seconds": 253_402_300_799}]
    times += [{"seconds": -1, "nanos": 999_999_999}, {"seconds": 5, "nanos": 1_999}]
    wrong: list[Any] = [{"seconds": -(2**63)}, {"seconds": 2**63 - 1}, {"nanos": 10**9}]
    wrong += [{"nanos": -1}, {"seconds": -62_135_596_801}, {"seconds": 253_402_300_800}]
    places: list[Any] = [{"inner": {"x": each}} for each in (0, -1, 2**31 - 1)]
    monkeypatch.setattr(payloads_module, "PIECE_ROWS", 7)
    for more_times, more_places, changes in (
        # All messages have all parts: they are read by columns.
        ([], [], {}),
        (wrong, [], {}),
        ([], [{"x": 1}], {"mode": 7}),
        (wrong, [{"x": 1}, {}], {}),
    ):
        sent = [
            reading(
                at=chance.choice([*times, *more_times]),
                place=chance.choice([*places, *more_places]),
                **(changes if chance.random() < 0.2 else {}),
            )
            for _ in range(30)
        ]
        together = decode(file, *sent)
        for index, payload in enumerate(sent):
            # Beside a payload that is null no column has values for all messages.
            alone = decode(file, payload, None)
            assert together.values[index] == alone.values[0]
            assert together.problems.get(index) == alone.problems.get(0)


def test_an_unknown_enum_value_is_its_number_in_an_int_column(file: str) -> None:
    decoded = decode(file, reading(mode_number=7))
    assert decoded.values.field("mode_number").to_pylist() == [7]


def test_unknown_fields_are_ignored(file: str) -> None:
    unknown = b"\xfa\x3e\x03abc"
    assert decode(file, reading() + unknown).values.to_pylist() == [RESULT]


def length_delimited(number: int, data: bytes) -> bytes:
    """A field that contains `data`, as bytes on the wire."""
    size, length = len(data), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def deep(levels: int) -> bytes:
    """A reading whose place has places inside."""
    data = b""
    for _ in range(levels):
        data = length_delimited(2, data)
    return length_delimited(Reading.DESCRIPTOR.fields_by_name["place"].number, data)


def test_deep_nesting_is_a_problem(file: str) -> None:
    assert "plant.Reading" in problem_of(file, deep(10_000)).reason
    assert not decode(file, deep(50)).problems


@pytest.mark.parametrize(
    "payload", [b"\x0a\x05a", b"\x07", b"\x0a\x01\xff", b"\xff" * 20], ids=repr
)
def test_malformed_payloads_are_problems(file: str, payload: bytes) -> None:
    reason = problem_of(file, payload).reason
    assert reason.startswith("the payload is not a valid message plant.Reading (")


def test_truncated_random_and_damaged_bytes_never_raise(file: str) -> None:
    chance = random.Random(5)
    whole = reading()
    payloads = [whole[:size] for size in range(len(whole))]
    payloads += [chance.randbytes(chance.randrange(60)) for _ in range(3000)]
    for _ in range(3000):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        payloads.append(bytes(damaged))
    decoded = decode(file, *payloads)
    failed = {i for i, value in enumerate(decoded.values) if not value.is_valid}
    assert failed == set(decoded.problems)
    # A message may end after any of its fields, and only there.
    assert 0 < len(failed & set(range(len(whole)))) < len(whole)


def test_required_fields_of_proto2(file: str) -> None:
    schema = pa.schema([("text", pa.string()), ("inner", pa.struct([("needed", pa.int32())]))])
    options = {"descriptor_file": file, "message": "old.Outer"}
    decoder = make_decoder("protobuf", schema, options)
    good = Outer(text="a", inner={"needed": 5}).SerializeToString()
    bad = Outer(text="a", inner={}).SerializePartialToString()
    not_text = b"\x0a\x01\xff"
    decoded = decoder(pa.array([good, bad, b"", not_text]))
    assert decoded.problems[1] == Problem(
        "required field inner.needed is missing", column="inner.needed"
    )
    assert decoded.problems[3] == Problem("expected text, found 1 byte", column="text")
    assert decoded.values.to_pylist() == [
        {"text": "a", "inner": {"needed": 5}},
        None,
        {"text": None, "inner": None},
        None,
    ]


def test_a_required_column_that_is_not_set_is_a_problem(file: str) -> None:
    schema = pa.schema([pa.field("maybe", pa.int32(), nullable=False)])
    options = {"descriptor_file": file, "message": "plant.Reading"}
    decoded = make_decoder("protobuf", schema, options)(pa.array([reading(), b""]))
    assert decoded.problems == {1: Problem("required column maybe is missing", column="maybe")}


@pytest.mark.parametrize(
    ("column", "kind", "reason"),
    [
        ("nope", pa.string(), "column nope is not a field of message plant.Reading"),
        ("place", pa.string(), "column place must be a struct: its field is a plant.Place"),
        ("place", pa.struct([("y", pa.int8())]), "column place.y is not a field"),
        ("values", pa.int32(), "column values must be a list"),
        ("a_int32", pa.list_(pa.int32()), "field a_int32 is a single value"),
        ("mode", pa.bool_(), "must be a string or an int: its field is an enum"),
        ("tags", pa.string(), "column tags must be a map"),
        ("numbers", pa.map_(pa.string(), pa.string()), "keys of the map must be strings"),
        ("at", pa.string(), "must be a struct: its field is a google.protobuf.Timestamp"),
    ],
)
def test_columns_that_cannot_hold_their_field_are_refused(
    file: str, column: str, kind: pa.DataType, reason: str
) -> None:
    options = {"descriptor_file": file, "message": "plant.Reading"}
    with pytest.raises(OptionError, match=reason):
        make_decoder("protobuf", pa.schema([(column, kind)]), options)


def test_wrong_options_are_refused(file: str, tmp_path: Path) -> None:
    schema = pa.schema([("a_string", pa.string())])

    def refused(reason: str, **options: object) -> None:
        with pytest.raises(OptionError, match=reason):
            make_decoder("protobuf", schema, options)

    bad = tmp_path / "bad.desc"
    refused("needs options descriptor_file and message", message="plant.Reading")
    refused("needs options descriptor_file and message", descriptor_file=file)
    refused("no option proto", proto="x")
    refused("there is no message Reading", descriptor_file=file, message="Reading")
    refused("No such file", descriptor_file=str(bad), message="plant.Reading")
    for content in (b"", b"syntax = 'proto3';"):
        bad.write_bytes(content)
        refused("not a descriptor file", descriptor_file=str(bad), message="plant.Reading")
    alone: Any = descriptor_pb2.FileDescriptorSet(file=[plant_file()])
    bad.write_bytes(alone.SerializeToString())
    refused("--include_imports", descriptor_file=str(bad), message="plant.Reading")


def test_the_descriptor_file_travels_with_the_decoder(tmp_path: Path) -> None:
    path = tmp_path / "all.desc"
    path.write_bytes(SET)
    options = {"descriptor_file": str(path), "message": "plant.Reading"}
    decoder = make_decoder("protobuf", SCHEMA, options)
    path.unlink()
    copied = pickle.loads(pickle.dumps(decoder))
    assert copied(pa.array([reading()])).values.to_pylist() == [RESULT]

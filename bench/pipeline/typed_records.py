"""Records whose payloads have typed fields, in several formats; and checksums of these fields.

Every format encodes the same readings, of about 150 bytes as JSON. They repeat with each row group,
so what a table must contain is known without reading the record. A checksum sums up each column
over all rows, with weights by `seq`: a value that is wrong, or in a wrong row, changes it.
"""

import json
import random
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from bench.pipeline.segments import BEGIN, group, make_record
from semel.extras import need
from semel.store.segment_writer import GROUP_ROWS

JSON: Final = "json"
PROTOBUF: Final = "protobuf"
CBOR: Final = "cbor"
MSGPACK: Final = "msgpack"
AVRO: Final = "avro"
FORMATS: Final = (JSON, PROTOBUF, CBOR, MSGPACK, AVRO)

# The columns of a table, in Spark's DDL; their parts, and the columns of the topic.
COLUMNS: Final = (
    "value DOUBLE, cycles INT, status STRING, at TIMESTAMP,"
    " place STRUCT<x: DOUBLE, y: DOUBLE, zone: STRING>"
)
VALUES: Final = ("value", "cycles", "status", "at", "place")
LEVELS: Final = ("line", "device")
CHANNELS: Final = 10
MESSAGE: Final = "bench.Reading"

# Sums of doubles are exact in any order if all are multiples of this.
_STEP: Final = 0.125
# The weight of a row is in these bits of its seq.
_WEIGHT: Final = 1023
_BY: Final = "the typed records of the bench"

Reading = dict[str, Any]
# Of each column; and the number of rows.
Checksum = dict[str, int]


def readings(rows: int) -> list[Reading]:
    """Readings of a machine, always the same ones."""
    chance = random.Random(7)
    begin = datetime.fromtimestamp(BEGIN // 1_000_000, UTC)
    return [
        {
            "value": chance.randrange(800_000) * _STEP,
            "cycles": chance.randrange(10_000_000),
            "status": f"running-{chance.randrange(10_000):04}",
            # Milliseconds, which no format has to round.
            "at": begin + timedelta(milliseconds=chance.randrange(86_400_000)),
            "place": {
                "x": chance.randrange(8_000) * _STEP,
                "y": chance.randrange(-8_000, 0) * _STEP,
                "zone": f"hall-{chance.randrange(40):02}",
            },
        }
        for _ in range(rows)
    ]


# --- formats --------------------------------------------------------------------------------------


def encode(kind: str, given: list[Reading]) -> list[bytes]:
    """The payloads of readings in a format."""
    if kind == JSON:
        return [
            json.dumps(
                each | {"at": each["at"].isoformat(timespec="milliseconds")}, separators=(",", ":")
            ).encode()
            for each in given
        ]
    if kind == CBOR:
        cbor2 = need("cbor2", extra="decoders", by=_BY)
        return [cbor2.dumps(each, datetime_as_timestamp=True) for each in given]
    if kind == MSGPACK:
        msgpack = need("msgpack", extra="decoders", by=_BY)
        return [msgpack.packb(each, datetime=True) for each in given]
    if kind == AVRO:
        fastavro = need("fastavro", extra="decoders", by=_BY)
        schema = fastavro.parse_schema(avro_schema())
        return [_encode_avro(fastavro, schema, each) for each in given]
    assert kind == PROTOBUF
    return _encode_protobuf(given)


def avro_schema() -> dict[str, Any]:
    place = [("x", "double"), ("y", "double"), ("zone", "string")]
    fields: list[tuple[str, Any]] = [
        ("value", "double"),
        ("cycles", "int"),
        ("status", "string"),
        ("at", {"type": "long", "logicalType": "timestamp-micros"}),
        ("place", {"type": "record", "name": "Place", "fields": _named(place)}),
    ]
    return {"type": "record", "name": "Reading", "fields": _named(fields)}


def _named(fields: Iterable[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": name, "type": kind} for name, kind in fields]


def _encode_avro(fastavro: Any, schema: Any, reading: Reading) -> bytes:
    output = BytesIO()
    fastavro.schemaless_writer(output, schema, reading)
    return output.getvalue()


def descriptor_set() -> bytes:
    """The descriptor file of MESSAGE, as protoc makes it with --include_imports."""
    descriptors = need("google.protobuf.descriptor_pb2", extra="decoders", by=_BY)
    timestamps = need("google.protobuf.timestamp_pb2", extra="decoders", by=_BY)
    files = descriptors.FileDescriptorSet()
    timestamps.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(
        name="bench.proto",
        package="bench",
        syntax="proto3",
        dependency=[timestamps.DESCRIPTOR.name],
    )
    kinds = descriptors.FieldDescriptorProto
    message = {"type": kinds.TYPE_MESSAGE}
    types: dict[str, dict[str, dict[str, Any]]] = {
        "Place": {
            "x": {"type": kinds.TYPE_DOUBLE},
            "y": {"type": kinds.TYPE_DOUBLE},
            "zone": {"type": kinds.TYPE_STRING},
        },
        "Reading": {
            "value": {"type": kinds.TYPE_DOUBLE},
            "cycles": {"type": kinds.TYPE_INT32},
            "status": {"type": kinds.TYPE_STRING},
            "at": message | {"type_name": ".google.protobuf.Timestamp"},
            "place": message | {"type_name": ".bench.Place"},
        },
    }
    for name, fields in types.items():
        made = file.message_type.add(name=name)
        for number, (field, facts) in enumerate(fields.items(), 1):
            made.field.add(name=field, number=number, label=kinds.LABEL_OPTIONAL, **facts)
    return bytes(files.SerializeToString())


def _encode_protobuf(given: list[Reading]) -> list[bytes]:
    descriptors = need("google.protobuf.descriptor_pb2", extra="decoders", by=_BY)
    factory = need("google.protobuf.message_factory", extra="decoders", by=_BY)
    files = descriptors.FileDescriptorSet.FromString(descriptor_set())
    kind = factory.GetMessages(files.file)[MESSAGE]
    payloads = []
    for each in given:
        made = kind(value=each["value"], cycles=each["cycles"], status=each["status"])
        made.at.FromDatetime(each["at"])
        place = each["place"]
        made.place.x, made.place.y, made.place.zone = place["x"], place["y"], place["zone"]
        payloads.append(made.SerializeToString())
    return payloads


# --- records --------------------------------------------------------------------------------------


class TypedGroup:
    """A row group with payloads of one format, and the checksums of a record made of it."""

    def __init__(self, kind: str, rows: int = GROUP_ROWS) -> None:
        pa = need("pyarrow", extra="broker", by=_BY)
        base = group(rows)
        given = readings(rows)
        payloads = pa.array(encode(kind, given), pa.binary())
        self.base = base.set_column(base.schema.get_field_index("payload"), "payload", payloads)
        self.payload_bytes = payloads.nbytes // rows
        levels = [topic.split("/") for topic in base.column("topic").to_pylist()]
        channels = [int(each[3].removeprefix("channel-")) for each in levels]
        topics = pa.table(
            {name: [each[at] for each in levels] for at, name in enumerate(LEVELS, 1)}
        )
        self._typed = _Numbers.of(pa.Table.from_pylist(given), VALUES) | _Numbers.of(topics, LEVELS)
        self._raw = _Numbers.of(self.base, ("payload", "topic"))
        self._channels = pa.array(channels, pa.int64())

    def make(self, folder: Path, rows: int) -> None:
        """Create a root with this many rows."""
        make_record(folder, rows, base=self.base)

    def typed_checksum(self, rows: int, channel: int | None = None) -> Checksum:
        """What a table must have: of all messages, or only of those of a channel."""
        return self._checksum(self._typed, rows, channel)

    def raw_checksum(self, rows: int) -> Checksum:
        """What a table with all columns of the record must have."""
        return self._checksum(self._raw, rows, None)

    def value_sum(self, first: int, last: int) -> float:
        """The sum of the column `value` over these seqs, inclusive."""
        total = 0
        for begin, part in self._groups(self._typed, last):
            total += part.between(first - begin, last - begin).total("value")
        return total * _STEP

    def _groups(self, numbers: "_Numbers", rows: int) -> Iterable[tuple[int, "_Numbers"]]:
        size = self.base.num_rows
        for first in range(1, rows + 1, size):
            yield first, numbers.between(0, min(size, rows - first + 1) - 1)

    def _checksum(self, numbers: "_Numbers", rows: int, channel: int | None) -> Checksum:
        pa = need("pyarrow", extra="broker", by=_BY)
        pc = need("pyarrow.compute", extra="broker", by=_BY)
        total: Checksum = {}
        for first, part in self._groups(numbers, rows):
            seqs = pa.array(range(first, first + part.rows), pa.int64())
            if channel is not None:
                is_ours = pc.equal(self._channels.slice(0, part.rows), channel)
                part, seqs = part.filter(is_ours), seqs.filter(is_ours)
            total = added(total, part.checksum(seqs))
        return total


def checksum_of(table: Any, columns: Iterable[str]) -> Checksum:
    """The checksum of these columns of an Arrow table, which also has `seq`."""
    return _Numbers.of(table, columns).checksum(table.column("seq").combine_chunks())


def added(first: Mapping[str, int], second: Mapping[str, int]) -> Checksum:
    """The checksum of the rows of both."""
    return {name: _wrapped(first.get(name, 0) + number) for name, number in second.items()}


def _wrapped(number: int) -> int:
    # Arrow's sums of int64 wrap around.
    return (number + 2**63) % 2**64 - 2**63


@dataclass(frozen=True)
class _Numbers:
    """A number for each value of each column, by name; structs have one for each of their parts."""

    rows: int
    columns: dict[str, Any]

    @classmethod
    def of(cls, table: Any, columns: Iterable[str]) -> "_Numbers":
        found: dict[str, Any] = {}
        for name in columns:
            found |= _numbers(name, table.column(name).combine_chunks())
        return cls(table.num_rows, found)

    def __or__(self, other: "_Numbers") -> "_Numbers":
        return _Numbers(self.rows, self.columns | other.columns)

    def between(self, first: int, last: int) -> "_Numbers":
        """The rows from `first` to `last`, inclusive, as far as there are any."""
        first = max(first, 0)
        rows = max(0, min(last, self.rows - 1) - first + 1)
        return _Numbers(
            rows, {name: each.slice(first, rows) for name, each in self.columns.items()}
        )

    def filter(self, mask: Any) -> "_Numbers":
        kept = {name: each.filter(mask) for name, each in self.columns.items()}
        return _Numbers(mask.true_count, kept)

    def total(self, name: str) -> int:
        pc = need("pyarrow.compute", extra="broker", by=_BY)
        return int(pc.sum(self.columns[name], min_count=0).as_py())

    def checksum(self, seqs: Any) -> Checksum:
        """With weights by `seqs`, which has one for each row."""
        pc = need("pyarrow.compute", extra="broker", by=_BY)
        weights = pc.add(pc.bit_wise_and(seqs, _WEIGHT), 1)
        found = {"rows": self.rows, "seq": int(pc.sum(seqs, min_count=0).as_py())}
        for name, each in self.columns.items():
            # A value that is missing must not count as 0.
            filled = pc.fill_null(each, -1)
            found[name] = int(pc.sum(pc.multiply(filled, weights), min_count=0).as_py())
        return found


def _numbers(name: str, values: Any) -> dict[str, Any]:
    pa = need("pyarrow", extra="broker", by=_BY)
    pc = need("pyarrow.compute", extra="broker", by=_BY)
    kind = values.type
    if pa.types.is_struct(kind):
        found: dict[str, Any] = {}
        for each in kind:
            found |= _numbers(f"{name}.{each.name}", pc.struct_field(values, each.name))
        return found
    if pa.types.is_floating(kind):
        # Fails if a value is not a multiple of the step.
        return {name: pc.cast(pc.divide(values, _STEP), pa.int64())}
    if pa.types.is_timestamp(kind):
        micros = pc.cast(pc.cast(values, pa.timestamp("us", kind.tz)), pa.int64())
        return {name: pc.subtract(micros, BEGIN)}
    if pa.types.is_integer(kind):
        return {name: pc.cast(values, pa.int64())}
    # Most values repeat: a checksum for each that differs.
    encoded = values.dictionary_encode()
    each_value = [zlib.crc32(each) for each in encoded.dictionary.cast(pa.binary()).to_pylist()]
    return {name: pa.array(each_value, pa.int64()).take(encoded.indices)}

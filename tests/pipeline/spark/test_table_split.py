"""Payloads become the same rows and dead letters, whether Spark or the sink decodes them."""

import gzip
import json
import pickle
import textwrap
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cbor2
import msgpack  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from semel.pipeline import arrow_decoding, table_split
from semel.pipeline.arrow_decoding import ArrowDecoding, Decompression
from semel.pipeline.decoders.formats import make_decoder
from semel.pipeline.files import as_in_delta
from semel.pipeline.landing_file import LandedTable, read_landing_file
from semel.pipeline.table_rows import (
    BAD,
    ROW,
    TAKES,
    TableShape,
    needed_columns,
    rows_of_tables,
    without_ansi,
)
from semel.pipeline.table_split import TableSplit
from semel.pipeline.topic_template import parse_template
from semel.store.segments import table_of

COLUMNS = (
    "id BIGINT NOT NULL, value DOUBLE, name STRING, at TIMESTAMP, day DATE,"
    " amount DECIMAL(10, 2), flag BOOLEAN, tags MAP<STRING, INT>,"
    " parts ARRAY<STRUCT<a: INT, b: STRING>>, inner STRUCT<x: DOUBLE, y: ARRAY<INT>>"
)
# Formats with their compression.
FORMATS: Mapping[str, tuple[str, str | None]] = {
    "plain": ("json", None),
    "packed": ("json", "gzip"),
    "binary": ("cbor", None),
    "small": ("msgpack", "gzip"),
}
VALUES: list[dict[str, Any]] = [
    {"id": 1, "value": 0.5, "name": "é", "at": "2026-03-01T12:00:00.123456Z", "flag": True},
    {"id": 2, "day": "2026-03-01", "amount": "12.50", "tags": {"a": 1, "b": None}},
    {"id": 3, "parts": [{"a": 1, "b": "x"}, None, {"b": "y"}], "inner": {"x": 1.0, "y": [1, None]}},
    {"id": 4, "parts": [], "tags": {}, "inner": {}},
    {"value": 1.0},
    {"id": "6"},
    {"id": 7, "at": "yesterday"},
    {"id": 8, "inner": {"y": [1, "2"]}},
    {"id": 9, "unknown": 1},
    {"id": 10, "at": "2026-03-01T11:50:00Z"},
    {"id": 11, "at": "0001-01-01T00:00:00Z"},
]
# Tables whose event time Spark evaluates.
TIMES = {
    "null_time": ("`null` TIMESTAMP", "null"),
    "no_time": ("day DATE", "day"),
    "in_struct": ("s STRUCT<at: TIMESTAMP>", "s.at"),
}
# Those that were received more than 10 minutes after their event time, and those that were not.
LATE = {1: False, 10: True, 11: True}


def landing_file() -> str:
    """For each format a table that the sink decodes, and the same with a filter; and an array."""
    lines = []
    for name, (decoder, compression) in FORMATS.items():
        for suffix, more in (("", ""), ("_filtered", 'where = "true"')):
            lines += ["[[table]]", f'name = "{name}{suffix}"', f'topic = "{name}/{{of}}/{{n:int}}"']
            lines += [f'decoder = "{decoder}"', f'columns = "{COLUMNS}"', more]
            lines += ['event_time = "at"', 'late_after = "10m"']
            lines += [] if compression is None else [f'compression = "{compression}"']
    for name, (columns, event_time) in TIMES.items():
        lines += ["[[table]]", f'name = "{name}"', 'topic = "times"', 'decoder = "json"']
        lines += [f'columns = "{columns}"', f'event_time = "{event_time}"']
    lines += ["[[table]]", 'name = "parts"', 'topic = "plain/#"', 'decoder = "json"']
    lines += ['columns = "parts ARRAY<STRUCT<a: INT, b: STRING>>"', 'explode = "parts"']
    return "\n".join([*lines, ""])


def encode(value: object, decoder: str, compression: str | None) -> bytes:
    if decoder == "cbor":
        found = cbor2.dumps(value)
    else:
        found = msgpack.packb(value) if decoder == "msgpack" else json.dumps(value).encode()
    return gzip.compress(found) if compression == "gzip" else found


def messages() -> pa.Table:
    rows: list[tuple[Any, ...]] = []

    def add(topic: str, payload: bytes) -> None:
        seq = len(rows) + 1
        micros = 1_772_366_400_000_000 + seq
        rows.append((seq, micros, 1, seq, 5, "sensor", None, topic, None, payload))

    for number, value in enumerate(VALUES):
        for name, (decoder, compression) in FORMATS.items():
            add(f"{name}/p{number % 3}/{number - 4}", encode(value, decoder, compression))
        add("other/x/1", b"{}")
    add("times", b'{"null": "2026-03-01T00:00:00Z", "day": "2026-03-01"}')
    for name in FORMATS:
        add(f"{name}/bad/-007", b"")
        add(f"{name}/bad/007", b"\xff{")
        add(f"{name}/bad/x", b"{}")
    return table_of(rows, "n1")


class Made:
    """The rows of a query, and the tables that it is for."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        path = folder / "landing.toml"
        path.write_text(textwrap.dedent(landing_file()))
        self.tables: tuple[LandedTable, ...] = read_landing_file(path).tables
        self.record = messages()
        # Table `binary` has the first messages already.
        landed = {"binary": {"n1": 10}, "binary_filtered": {"n1": 10}}
        frame = spark.createDataFrame(self.record.select(needed_columns(self.tables)))
        self.shapes: list[TableShape]
        with without_ansi(spark):
            made, self.shapes = rows_of_tables(frame, self.tables, landed)
            self.rows = made.toArrow()

    def split(self, name: str) -> tuple[pa.Table, pa.Table]:
        place = [each.name for each in self.tables].index(name)
        rows, letters = TableSplit(place, self.shapes[place], "all").split(self.rows)
        order = [("seq", "ascending")]
        return as_in_delta(rows).sort_by(order), as_in_delta(letters).sort_by(order)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(spark, tmp_path_factory.mktemp("split"))


@pytest.mark.parametrize("name", FORMATS)
def test_rows_and_dead_letters_are_the_same_whoever_decodes(made: Made, name: str) -> None:
    rows, letters = made.split(name)
    filtered, filtered_letters = made.split(f"{name}_filtered")
    assert rows.schema == filtered.schema
    assert rows.to_pylist() == filtered.to_pylist()
    others = [each for each in letters.column_names if each != "table_name"]
    assert letters.select(others).to_pylist() == filtered_letters.select(others).to_pylist()
    assert set(letters.column("table_name").to_pylist()) == {name}
    ids = [each for each in (1, 2, 3, 4, 9, 10, 11) if each > (2 if name == "binary" else 0)]
    assert rows.column("id").to_pylist() == ids
    assert rows.column("n").to_pylist() == [each - 5 for each in ids]
    assert rows.column("event_time").to_pylist() == rows.column("at").to_pylist()
    assert rows.column("late").to_pylist() == [LATE.get(each) for each in ids]
    assert letters.num_rows == 6
    payloads = made.record.column("payload").to_pylist()
    assert all(payloads[each["seq"] - 1] == each["payload"] for each in letters.to_pylist())


def test_only_tables_that_need_spark_are_decoded_before_the_sink(made: Made) -> None:
    names = set(made.rows.column_names)
    for place, (table, shape) in enumerate(zip(made.tables, made.shapes, strict=True)):
        is_in_sink = table.name in FORMATS
        assert table.needs_spark(["at"]) is not is_in_sink
        assert table.needs_spark([]) is True
        assert (shape.decoding is not None) is is_in_sink
        assert (f"{TAKES}{place}" in names) is is_in_sink
        assert (f"{ROW}{place}" in names) is (f"{BAD}{place}" in names) is not is_in_sink


def test_an_event_time_that_is_no_column_with_a_time_is_an_expression(made: Made) -> None:
    found = {name: made.split(name)[0].column("event_time").to_pylist() for name in TIMES}
    midnight = datetime(2026, 3, 1, tzinfo=UTC)
    assert found == {"null_time": [None], "no_time": [midnight], "in_struct": [None]}


def test_the_payload_comes_once_and_only_with_messages_that_need_it(made: Made) -> None:
    found = made.rows.select(["seq", "topic", "payload"]).to_pylist()
    assert len(found) > made.record.num_rows  # elements of arrays have rows of their own
    given = [each["seq"] for each in found if each["payload"] is not None]
    assert len(set(given)) == len(given)
    topics = {each["topic"] for each in found if each["payload"] is not None}
    assert not any(topic.startswith("other/") for topic in topics)


def test_an_exploded_array_is_beside_tables_of_the_sink(made: Made) -> None:
    rows, letters = made.split("parts")
    assert [(each["part"], each["a"], each["b"]) for each in rows.to_pylist()] == [
        (0, 1, "x"),
        (1, None, None),
        (2, None, "y"),
    ]
    # The bytes that are not JSON, and the empty payload.
    assert letters.num_rows == 2


# --- decoding -------------------------------------------------------------------------------------


def json_decoding(codec: str | None = None) -> ArrowDecoding:
    schema = pa.schema([pa.field("a", pa.int32(), nullable=False)])
    return ArrowDecoding(make_decoder("json", schema, {}), codec)


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_payloads_of_other_tables_are_left_out_and_problems_keep_their_places(
    codec: str | None,
) -> None:
    texts = [None, b'{"a": 1}', None, b"{}", b'{"a": 3}', b"x", None]
    sent = [each if each is None or codec is None else gzip.compress(each) for each in texts]
    decoding = json_decoding(codec)
    found = decoding.decoded(pa.array(sent, pa.binary()))
    assert found.values.to_pylist() == [None, {"a": 1}, None, None, {"a": 3}, None, None]
    assert sorted(found.problems) == [3, 5]
    travelled = ArrowDecoding.from_text(decoding.to_text())
    assert travelled.decoded(pa.array(sent, pa.binary())).values == found.values
    assert pickle.loads(pickle.dumps(decoding)) == decoding
    assert decoding.decoded(pa.array([None], pa.binary())).values.to_pylist() == [None]
    assert len(decoding.decoded(pa.array([], pa.binary())).values) == 0


def test_decompressed_payloads_are_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_decoding, "PIECE_BYTES", 40)
    texts = [json.dumps({"a": each, "more": "x" * 20}).encode() for each in range(9)]
    sent = [gzip.compress(each) for each in texts]
    sent[4] = b"not gzip"
    decoding = json_decoding("gzip")
    found = decoding.decoded(pa.array(sent, pa.binary()))
    wanted = [None if each == 4 else {"a": each} for each in range(9)]
    assert found.values.to_pylist() == wanted
    assert list(found.problems) == [4]
    pieces = list(Decompression("gzip")(iter([pa.array(sent, pa.binary())])))
    assert len(pieces) > 2
    assert [each["value"] for piece in pieces for each in piece.to_pylist()] == [
        None if place == 4 else text for place, text in enumerate(texts)
    ]


def test_many_payloads_are_decoded_chunk_by_chunk(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = made.split("plain")
    monkeypatch.setattr(table_split, "DECODED_BYTES", 10)
    assert made.split("plain") == expected


def test_levels_are_the_same_as_those_of_spark(spark: SparkSession) -> None:
    template = parse_template("a/{x}/{n:int}/#")
    topics = ["a//7", "a/é/-0/b", "a/$/+012/", "a/é/-0/b", "a/b/999999999999999999"]
    frame = spark.createDataFrame([(each,) for each in topics], "topic string")
    columns = template.columns(frame["topic"])
    expected = frame.select(*(each.alias(name) for name, each in columns.items())).toArrow()
    found = template.arrow_columns(pa.array(topics))
    assert {name: each.to_pylist() for name, each in found.items()} == expected.to_pydict()
    assert found["n"].to_pylist() == [7, 0, 12, 0, 999_999_999_999_999_999]
    assert template.arrow_columns(pa.array([], pa.string()))["n"].type == pa.int64()

"""`write.format("mqtt")` without Spark: options, columns, rows, and what a commit does."""

import json
import logging
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from semel.client.outbox import open_outbox
from semel.lab.testing import TestBroker
from semel.pipeline import publish_batch, publish_rows
from semel.pipeline.errors import OptionError, PipelineError
from semel.pipeline.publish import PublishBatchWriter, PublishStreamWriter
from semel.pipeline.publish_delivery import SendRate
from semel.pipeline.publish_options import ChunkLimits, PublishOptions, parse_publish_options
from semel.pipeline.publish_rows import TaskRows, batches_of, write_task_rows
from semel.pipeline.source import MqttSource
from semel.store.database import Database
from semel.store.metadata import get_metadata, set_metadata
from tests.kills.brokers import free_port
from tests.pipeline.sources import again

URL = "mqtt://broker.example"
# Generous: it only ends what would hang.
PATIENCE = 60.0


def options_of(url: str, folder: Path, query: str = "q", **more: str) -> PublishOptions:
    """The options of a stream, as Spark passes them."""
    given = {"url": url, "state": str(folder / "state"), "appId": query, **more}
    parsed: PublishOptions = again(parse_publish_options(given, is_stream=True))
    return parsed


def task_rows(options: PublishOptions, **columns: list[Any]) -> TaskRows:
    """What a task of Spark returns."""
    batch = pa.RecordBatch.from_pydict(columns)
    made: TaskRows = again(
        write_task_rows(
            [batch],
            options.task_folder,
            default_qos=options.qos,
            keeps_invalid=options.failures is not None,
            limits=options.chunks,
        )
    )
    return made


def commit(options: PublishOptions, batch: int = 0, /, **columns: list[Any]) -> None:
    publish_batch.publish_batch(options, [task_rows(options, **columns)], batch)


def numbered(count: int, topic: str = "t") -> dict[str, list[Any]]:
    return {"topic": [topic] * count, "payload": [f"{number}" for number in range(count)]}


def payloads(broker: TestBroker, topic_filter: str = "#") -> list[str]:
    return [each.payload.decode() for each in broker.messages(topic_filter)]


USER_PROPERTIES = "array<struct<key:string,value:string>>"
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "boolean": BooleanType(),
    "map<string,string>": MapType(StringType(), StringType()),
    USER_PROPERTIES: ArrayType(StructType().add("key", "string").add("value", "string")),
}


def schema_of(columns: str) -> StructType:
    """A schema, as a list of names and types: Spark's own function needs a session."""
    pairs = [each.split(" ") for each in columns.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "option url is missing: give the address of the broker, mqtt://host[:port]"),
        ({"url": "http://x"}, "option url: "),
        (
            {"url": URL, "maxrat": "3"},
            "writing to mqtt has no option maxrat: did you mean maxRate?",
        ),
        ({"url": URL, "topic": "a"}, "no option topic: the topic of each message is column topic"),
        ({"url": URL, "zzzzzz": "a"}, "no option zzzzzz: the options are url, "),
        ({"url": URL, "qos": "3"}, 'option qos is "3", but must be '),
        ({"url": URL, "maxRate": "0"}, 'option maxRate is "0", but must be '),
        ({"url": URL, "timeout": "soon"}, 'option timeout is "soon", but must be '),
        ({"url": URL, "cafile": "/none"}, "option cafile needs TLS"),
        ({"url": "mqtts://x", "cafile": "/none"}, "option cafile '/none': No such file"),
        ({"url": URL, "passwordFile": "/none"}, "option passwordFile /none: No such file"),
        ({"url": URL, "failures": "ftp://x"}, "option failures: "),
        ({"url": URL, "state": "s3://b/x"}, "option state: s3://b/x is not a local folder"),
        ({"url": URL, "batch": "x"}, "option batch is for write"),
        ({"url": URL, "clientId": "x" * 70_000}, "option clientId: TEXT_FITS_ITS_LENGTH"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_publish_options({"checkpointLocation": "/c", **options}, is_stream=True)
    assert words in str(caught.value)


def test_a_stream_has_its_state_in_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id": "b1c0"}')
    given = {"URL": URL, "checkpointlocation": f"file://{tmp_path}", "queryName": "x"}
    options = parse_publish_options(given, is_stream=True)
    assert options.state == tmp_path / "publish"
    assert (options.query(), options.qos, options.timeout) == ("b1c0", 2, 60.0)
    assert options.new_client_id().startswith("semel")
    assert len(options.new_client_id()) == 23
    assert options.new_client_id() == again(options).new_client_id()
    (tmp_path / "metadata").unlink()
    with pytest.raises(OptionError, match="give option appId with a unique name"):
        options.query()


@pytest.mark.parametrize("location", [{}, {"checkpointLocation": "s3://bucket/c"}])
def test_a_stream_without_a_local_checkpoint_needs_a_name_and_a_folder(
    location: dict[str, str],
) -> None:
    with pytest.raises(OptionError, match="option appId with a unique name and option state"):
        parse_publish_options({"url": URL, **location}, is_stream=True)
    more = {"appId": "x", "state": "/s"}
    assert parse_publish_options({"url": URL, **location, **more}, is_stream=True).query() == "x"


def test_a_write_needs_a_folder_to_have_a_name() -> None:
    with pytest.raises(OptionError, match="option batch needs option state"):
        parse_publish_options({"url": URL, "batch": "monday"}, is_stream=False)
    with pytest.raises(OptionError, match="option appId is for writeStream"):
        parse_publish_options({"url": URL, "appId": "x"}, is_stream=False)
    once = parse_publish_options({"url": URL}, is_stream=False)
    assert once.is_temporary
    assert once.query() != parse_publish_options({"url": URL}, is_stream=False).query()
    named = {"url": URL, "state": "/s", "batch": "monday"}
    assert parse_publish_options(named, is_stream=False).query() == "batch monday"


def test_secrets_are_not_shown() -> None:
    given = {"url": "mqtt://u:hunter2@x", "password": "swordfish", "state": "/s", "appId": "q"}
    shown = repr(parse_publish_options(given, is_stream=True))
    assert "hunter2" not in shown
    assert "swordfish" not in shown


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("topic string", "column payload is missing"),
        ("payload string", "column topic is missing"),
        ("topic string, payload string, node string", "a message has no column node: "),
        ("topic string, payload string, contenttype string", "did you mean content_type?"),
        ("topic string, payload int", "column payload must be binary or string, not int"),
        ("topic string, payload string, qos bigint", "column qos must be int, not bigint: cast("),
        ("topic string, payload string, user_properties map<string,string>", "array<struct<key"),
    ],
)
def test_wrong_columns_are_refused_before_the_query_starts(columns: str, words: str) -> None:
    for source in ("writer", "streamWriter"):
        more = {"checkpointLocation": "/c"} if source == "streamWriter" else {}
        make = getattr(MqttSource({"url": URL, **more}), source)
        with pytest.raises(OptionError) as caught:
            make(schema_of(columns), False)
        assert words in str(caught.value)


def test_all_columns_are_accepted_and_those_of_5_0_only_with_5_0() -> None:
    plain = "topic string, payload binary, qos int, retain boolean"
    rest = (
        "payload_format int, content_type string, response_topic string, correlation_data binary,"
        f" message_expiry bigint, user_properties {USER_PROPERTIES}"
    )
    given = {"url": URL, "checkpointLocation": "/c"}
    made = MqttSource(given).streamWriter(schema_of(f"{plain}, {rest}"), False)
    assert isinstance(made, PublishStreamWriter)
    assert isinstance(MqttSource({"url": URL}).writer(schema_of(plain), False), PublishBatchWriter)
    old = {**given, "mqttVersion": "3.1.1"}
    MqttSource(old).streamWriter(schema_of(plain), False)
    with pytest.raises(OptionError, match=r"column payload_format needs MQTT 5\.0"):
        MqttSource(old).streamWriter(schema_of(f"{plain}, {rest}"), False)


def test_what_was_sent_cannot_be_overwritten() -> None:
    columns = schema_of("topic string, payload string")
    with pytest.raises(OptionError, match="use mode append"):
        MqttSource({"url": URL}).writer(columns, True)
    with pytest.raises(OptionError, match="use append or update"):
        MqttSource({"url": URL, "checkpointLocation": "/c"}).streamWriter(columns, True)


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"topic": "a/#"}, "TOPIC_NAME_WITHOUT_WILDCARDS"),
        ({"topic": ""}, "TOPIC_NAME_NOT_EMPTY"),
        ({"topic": None}, "column topic is null"),
        ({"payload": None}, "column payload is null"),
        ({"topic": "x" * 65_536}, "TEXT_FITS_ITS_LENGTH"),
        ({"qos": 3}, "QOS_NOT_3"),
        ({"payload_format": 2}, "PROPERTY_IS_0_OR_1"),
        ({"payload": b"\xff", "payload_format": 1}, "PAYLOAD_IS_UTF8_AS_INDICATED"),
        ({"message_expiry": -1}, "INTEGER_FITS_ITS_FIELD"),
        ({"response_topic": "+"}, "TOPIC_NAME_WITHOUT_WILDCARDS"),
        ({"user_properties": [{"key": "k", "value": None}]}, "a user property"),
        ({"user_properties": [{"key": "k", "value": "\0"}]}, "TEXT_WITHOUT_NUL"),
    ],
)
def test_an_invalid_row_stops_its_task_or_goes_to_the_failures(
    tmp_path: Path, row: dict[str, Any], words: str
) -> None:
    good = {"topic": "t", "payload": b"p"}
    rows = pa.RecordBatch.from_pylist(
        [good, {**good, **row}], schema=_schema_of_rows({**good, **row})
    )
    with pytest.raises(PipelineError) as caught:
        write_task_rows([rows], tmp_path, default_qos=2, keeps_invalid=False)
    assert words in str(caught.value)
    assert "row 1" in str(caught.value)
    assert "of partition 0 can never be sent" in str(caught.value)
    kept = write_task_rows([rows], tmp_path, default_qos=2, keeps_invalid=True)
    (batch,) = batches_of([kept])
    first, second = batch.column("problem").to_pylist()
    assert first is None
    assert words in second


def _ill_formed(kind: pa.DataType) -> pa.Array:
    """Two values, of which the second is the text \\xff, as Spark makes it by a cast."""
    return pa.array([b"a/b", b"a\xff/b"]).view(kind)


@pytest.mark.parametrize("column", ["topic", "content_type", "response_topic", "user_properties"])
def test_text_that_is_not_utf_8_is_an_invalid_row(tmp_path: Path, column: str) -> None:
    text = _ill_formed(pa.string())
    if column == "user_properties":
        pairs = pa.StructArray.from_arrays([pa.array(["k", "k"]), text], names=["key", "value"])
        text = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), pairs)
    columns = {"topic": pa.array(["a/b", "c"]), "payload": pa.array([b"\xff", b""]), column: text}
    rows = pa.RecordBatch.from_pydict(columns)
    with pytest.raises(PipelineError, match=f"can never be sent: column {column}.* is not UTF-8"):
        write_task_rows([rows], tmp_path, default_qos=2, keeps_invalid=False)
    kept = write_task_rows([rows], tmp_path, default_qos=2, keeps_invalid=True)
    (batch,) = batches_of([kept])
    first, second = batch.to_pylist()
    assert (first["problem"], first["payload"]) == (None, b"\xff")
    assert "is not UTF-8 [MQTT-1.5.4-1]: invalid start byte" in second["problem"]
    shown = second[column] if column != "user_properties" else second[column][0]["value"]
    assert shown == "a\ufffd/b"


def _schema_of_rows(row: dict[str, Any]) -> pa.Schema:
    return pa.schema([(name, publish_rows.TASK_SCHEMA.field(name).type) for name in row])


def test_the_largest_packet_is_a_limit() -> None:
    row: dict[str, Any] = dict.fromkeys(publish_rows.TASK_SCHEMA.names)
    row.update(topic="t", payload=b"x" * 200, qos=2, retain=False)
    assert publish_rows.problem_of_row(row) is None
    problem = "its packet exceeds the 100 bytes that MQTT allows"
    assert publish_rows.problem_of_row(row, 100) == problem


def test_the_rows_of_a_large_task_are_in_a_file(tmp_path: Path) -> None:
    small = write_task_rows([_payloads(3, 10)], tmp_path, default_qos=2, keeps_invalid=False)
    assert small.path is None
    assert not list(tmp_path.iterdir())
    large = write_task_rows([_payloads(3, 900_000)], tmp_path, default_qos=2, keeps_invalid=False)
    assert large.data == b""
    assert large.path is not None
    found = [row["payload"] for batch in batches_of([small, large]) for row in batch.to_pylist()]
    assert [len(each) for each in found] == [10] * 3 + [900_000] * 3
    whole = Path(large.path).read_bytes()
    # Truncated, and with another byte of a payload, which Arrow does not notice.
    for damaged in (whole[:1_000_000], whole[:1_000_000] + b"y" + whole[1_000_001:]):
        Path(large.path).write_bytes(damaged)
        with pytest.raises(PipelineError, match="cannot be read: it is damaged"):
            list(batches_of([large]))
    Path(large.path).unlink()
    with pytest.raises(PipelineError, match="give option state with a folder that all machines"):
        list(batches_of([large]))


def _payloads(count: int, size: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"topic": ["t"] * count, "payload": [b"x" * size] * count})


def test_chunks_are_bounded_in_rows_and_bytes(tmp_path: Path) -> None:
    limits = ChunkLimits(rows=5, bytes=20_000)
    tasks = [
        write_task_rows(
            [_payloads(count, size)],
            tmp_path,
            default_qos=2,
            keeps_invalid=False,
            limits=limits,
        )
        for count, size in ((2, 1), (2, 1), (12, 1), (0, 0), (4, 9_000), (1, 50_000))
    ]
    path = tmp_path / "chunks"
    checksum = publish_rows.write_chunks(batches_of(tasks), path, limits)
    assert checksum == crc32(path.read_bytes())
    opened = publish_rows.ChunkFile(path)
    rows = [opened.rows(chunk) for chunk in range(opened.chunks)]
    opened.close()
    assert all(len(each) <= 5 for each in rows)
    assert all(len(each) == 1 or sum(len(r["payload"]) for r in each) < 20_000 for each in rows)
    assert [row["row"] for each in rows for row in each] == list(range(21))


def test_a_folder_that_cannot_be_written_is_reported_by_a_task(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "tasks"
    with pytest.raises(PipelineError, match="cannot be written: Not a directory"):
        write_task_rows([_payloads(1, 900_000)], folder, default_qos=2, keeps_invalid=False)


def test_the_expiry_of_a_message_counts_from_the_outbox_on() -> None:
    row: dict[str, Any] = dict.fromkeys(publish_rows.TASK_SCHEMA.names)
    row |= {"topic": "t", "payload": b"", "qos": 2, "retain": False, "message_expiry": 100}
    assert publish_rows.message_of(row, 5.0).expires_at == 105.0


# --- a commit -------------------------------------------------------------------------------------


def test_a_message_has_what_its_row_has(tmp_path: Path) -> None:
    with TestBroker() as broker:
        options = options_of(broker.url, tmp_path, qos="1")
        commit(
            options,
            topic=["a", "b", "c"],
            payload=["x", "y", "z"],
            qos=[None, 2, 0],
            retain=[None, True, False],
            payload_format=[None, 1, None],
            content_type=[None, "text/plain", None],
            response_topic=[None, "answer", None],
            correlation_data=[None, b"\0\1", None],
            message_expiry=[None, 100, None],
            user_properties=[None, [{"key": "k", "value": "v"}, {"key": "k", "value": "w"}], []],
        )
        found = {each.topic_name: each for each in broker.messages()}
        assert [found[name].qos for name in "abc"] == [1, 2, 0]
        assert [found[name].retain for name in "abc"] == [False, True, False]
        assert not found["a"].properties.present
        properties = found["b"].properties
        assert properties.payload_format_indicator == 1
        assert properties.content_type == "text/plain"
        assert properties.response_topic == "answer"
        assert properties.correlation_data == b"\0\1"
        assert properties.user_properties == (("k", "v"), ("k", "w"))
        broker.assert_clean()


def test_a_batch_is_sent_once_and_the_next_one_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with TestBroker() as broker:
        options = options_of(broker.url, tmp_path)
        for batch in (0, 0, 1, 1, 2, 2, 5):
            commit(options, batch, topic=["t"], payload=[str(batch)])
        # A batch without rows needs no connection, and is none.
        publish_batch.publish_batch(options, [], 6)
        assert payloads(broker) == ["0", "1", "2", "5"]
        # Another query that uses the same folder is independent.
        commit(options_of(broker.url, tmp_path, "other"), 0, topic=["t"], payload=["other"])
        commit(options, 5, topic=["t"], payload=["5"])
        assert payloads(broker) == ["0", "1", "2", "5", "other"]
    assert "batch 0 of query q was sent before: nothing is sent again" in caplog.text
    assert not list((tmp_path / "state" / "batches").iterdir())


def test_an_abort_changes_nothing(tmp_path: Path) -> None:
    """Spark calls it when a commit has failed, and also when its answer was lost."""
    rows = pa.RecordBatch.from_pydict({"topic": ["t"], "payload": ["x"]})
    columns = schema_of("topic string, payload string")

    def writer(url: str, **more: str) -> PublishStreamWriter:
        given = {"url": url, "appId": "q", "state": str(tmp_path / "state"), **more}
        return MqttSource(given).streamWriter(columns, False)

    port = free_port()
    dead = writer(f"mqtt://127.0.0.1:{port}", timeout="0.1")
    message = again(dead.write(iter([rows])))
    with pytest.raises(PipelineError):
        dead.commit([message, None], 0)
    dead.abort([message, None], 0)
    with TestBroker(port=port) as broker:
        for _ in range(2):
            # A new writer for each step, as Spark makes them.
            writer(broker.url).commit([message, None], 0)
            writer(broker.url).abort([message, None], 0)
        assert payloads(broker) == ["x"]


def test_failed_attempts_leave_no_rows_of_tasks_behind(tmp_path: Path) -> None:
    """A supervisor restarts a query as long as its broker is away: the disk must not fill up."""
    rows = pa.RecordBatch.from_pydict({"topic": ["t"] * 3, "payload": ["x" * 200_000] * 3})
    columns = schema_of("topic string, payload string")
    state = tmp_path / "state"
    port = free_port()

    def files() -> list[Path]:
        return list((state / "tasks").rglob("*.arrows"))

    def attempt(url: str, **more: str) -> None:
        given = {"url": url, "appId": "q", "state": str(state), **more}
        writer = MqttSource(given).streamWriter(columns, False)
        again(writer).write(iter([rows]))
        of_another_attempt = set(files())
        message = again(writer).write(iter([rows]))
        assert len(files()) > len(of_another_attempt)
        try:
            writer.commit([message], 0)
        finally:
            assert set(files()) <= of_another_attempt

    for _ in range(2):
        with pytest.raises(PipelineError, match="could not be reached"):
            attempt(f"mqtt://127.0.0.1:{port}", timeout="0.1")
    # Spark calls only `abort` if one of the tasks has failed.
    writer = MqttSource({"url": URL, "appId": "r", "state": str(state)}).streamWriter(
        columns, False
    )
    before = files()
    writer.abort([again(writer).write(iter([rows])), None], 0)
    assert files() == before
    with TestBroker(port=port) as broker:
        attempt(broker.url)
        assert len(broker.messages()) == 3
    assert not files()


def test_a_write_without_a_state_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = pa.RecordBatch.from_pydict({"topic": ["t"] * 3, "payload": ["x" * 200_000] * 3})
    columns = schema_of("topic string, payload string")
    with TestBroker() as broker:
        writer = MqttSource({"url": broker.url}).writer(columns, False)
        message = again(writer).write(iter([rows]))
        assert len(list(tmp_path.iterdir())) == 1
        writer.commit([message])
        assert len(broker.messages()) == 3
        assert not list(tmp_path.iterdir())
        message = writer.write(iter([rows]))
        writer.abort([message])
        assert not list(tmp_path.iterdir())
        # Nor does the broker keep a session.
        assert not broker.sessions()


def test_a_batch_of_many_chunks_has_all_rows_in_order(tmp_path: Path) -> None:
    with TestBroker() as broker:
        options = replace(options_of(broker.url, tmp_path), chunks=ChunkLimits(rows=100))
        commit(options, **numbered(950))
        assert payloads(broker) == [str(number) for number in range(950)]


def test_a_lost_state_folder_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with TestBroker() as broker:
        commit(options_of(broker.url, tmp_path), 7, topic=["t"], payload=["x"])
        assert payloads(broker) == ["x"]
    assert "if the folder was lost, rows of this batch may be sent twice" in caplog.text


def test_a_broker_that_cannot_be_reached_fails_the_batch_and_loses_nothing(tmp_path: Path) -> None:
    port = free_port()
    options = options_of(f"mqtt://127.0.0.1:{port}", tmp_path, timeout="0.3")
    with pytest.raises(PipelineError) as caught:
        commit(options, **numbered(3))
    assert f"mqtt://127.0.0.1:{port}: the broker could not be reached for 0.3 s" in str(
        caught.value
    )
    assert f"Nothing is lost: {options.state} has the batch" in str(caught.value)
    with TestBroker(port=port) as broker:
        # Another batch waits until this one is sent; a repeated one brings other rows, in vain.
        commit(options_of(broker.url, tmp_path), 0, topic=["t"], payload=["other"])
        assert payloads(broker) == ["0", "1", "2"]
        commit(options_of(broker.url, tmp_path), 1, topic=["t"], payload=["next"])
        assert payloads(broker) == ["0", "1", "2", "next"]


def test_an_unfinished_batch_is_sent_before_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with pytest.raises(PipelineError):
        commit(options_of(f"mqtt://127.0.0.1:{port}", tmp_path, timeout="0.1"), **numbered(2))
    with TestBroker(port=port) as broker:
        commit(options_of(broker.url, tmp_path), 1, topic=["t"], payload=["next"])
        assert payloads(broker) == ["0", "1", "next"]
    assert "batch 0 of query q was not sent completely: it is finished before" in caplog.text


def in_thread(work: Callable[[], None]) -> tuple[threading.Thread, list[Exception]]:
    """Do something in a thread; the errors that it has raised."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            work()
        except PipelineError as problem:
            errors.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def test_a_lost_session_is_reported_and_no_message_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with TestBroker() as broker:
        # The server gets the messages, and the client no answer.
        broker.drop("PUBREC", sender="server", count=None)
        options = options_of(broker.url, tmp_path)
        thread, errors = in_thread(lambda: commit(options, **numbered(5)))
        broker.wait_for_message("t", count=5, timeout=PATIENCE)
        broker.heal()
        broker.restart(forget=True, kill=True)
        thread.join(PATIENCE)
        assert not errors
        assert set(payloads(broker)) == {"0", "1", "2", "3", "4"}
    assert "the broker has lost the session of" in caplog.text
    assert "5 messages that were in flight are sent again and may arrive twice" in caplog.text


def test_a_broker_that_does_not_acknowledge_fails_the_batch(tmp_path: Path) -> None:
    with TestBroker() as broker:
        broker.drop("PUBREC", sender="server", count=None)
        with pytest.raises(PipelineError, match=r"has not acknowledged a message for 0\.3 s"):
            commit(options_of(broker.url, tmp_path, timeout="0.3"), **numbered(3))
        broker.heal()
        commit(options_of(broker.url, tmp_path), **numbered(3))
        assert payloads(broker) == ["0", "1", "2"]


def test_a_full_disk_fails_the_batch_and_a_restart_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        problem = sqlite3.OperationalError("database or disk is full")
        problem.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise problem

    with TestBroker() as broker:
        options = options_of(broker.url, tmp_path, timeout="0.3")
        with monkeypatch.context() as patch:
            # Of the broker too, which is in this process.
            patch.setattr(Database, "write", full)
            with pytest.raises(PipelineError) as caught:
                commit(options, **numbered(2))
        assert f"the disk of {options.state} is full. Nothing is lost" in str(caught.value)
        commit(options_of(broker.url, tmp_path), **numbered(2))
        assert payloads(broker) == ["0", "1"]


def test_two_queries_with_one_client_id_do_not_fight(tmp_path: Path) -> None:
    with TestBroker() as broker:
        slow = options_of(broker.url, tmp_path / "a", clientId="same", maxRate="20")
        thread, errors = in_thread(lambda: commit(slow, **numbered(100, "a")))
        broker.wait_for_message("a", timeout=PATIENCE)
        commit(options_of(broker.url, tmp_path / "b", "r", clientId="same"), **numbered(5, "b"))
        thread.join(PATIENCE)
        (error,) = errors
        assert "another client has connected with the client identifier same" in str(error)
        assert "give each query its own with option clientId" in str(error)
        # The outbox keeps its client identifier.
        with pytest.raises(PipelineError, match="belongs to the client 'same'"):
            commit(options_of(broker.url, tmp_path / "a", clientId="new"), **numbered(1))
        assert payloads(broker, "b") == ["0", "1", "2", "3", "4"]


def test_a_state_folder_in_use_is_waited_for(tmp_path: Path) -> None:
    with TestBroker() as broker:
        options = options_of(broker.url, tmp_path, timeout="0.2")
        options.state.mkdir()
        outbox = open_outbox(options.state / "outbox", "")
        try:
            with pytest.raises(PipelineError, match="the state of this query cannot be used"):
                commit(options, **numbered(1))
            patient = options_of(broker.url, tmp_path)
            thread, errors = in_thread(lambda: commit(patient, **numbered(1)))
            time.sleep(0.2)
        finally:
            outbox.opened.close()
        thread.join(PATIENCE)
        assert not errors
        assert payloads(broker) == ["0"]


def test_a_commit_ends_with_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = iter([1, 2, 2, 2, 2])
    monkeypatch.setattr(os, "getppid", lambda: next(pids))
    with pytest.raises(PipelineError, match="the Spark driver has ended"):
        commit(options_of(f"mqtt://127.0.0.1:{free_port()}", tmp_path), **numbered(1))


def test_a_wrong_password_is_reported_at_once(tmp_path: Path) -> None:
    with TestBroker(users={"u": "right"}) as broker:
        with pytest.raises(PipelineError, match="0x86, bad user name or password"):
            commit(options_of(broker.url, tmp_path, username="u", password="x"), **numbered(1))
        (tmp_path / "password").write_text("right\n")
        file = str(tmp_path / "password")
        commit(options_of(broker.url, tmp_path, username="u", passwordFile=file), **numbered(1))
        assert payloads(broker) == ["0"]


def test_the_rate_is_limited(tmp_path: Path) -> None:
    with TestBroker() as broker:
        began = time.monotonic()
        options = options_of(broker.url, tmp_path, maxRate="200")
        commit(options, **numbered(60), qos=[number % 3 for number in range(60)])
        assert time.monotonic() - began > 0.15
        assert sorted(map(int, payloads(broker))) == list(range(60))


def test_a_rate_is_a_bucket_of_tokens() -> None:
    rate = SendRate(100.0, 0.0)
    assert rate.available(0.0) == 10
    rate.take(10)
    assert rate.available(0.0) == 0
    assert rate.wait == pytest.approx(0.01)
    assert rate.available(0.055) == 5
    assert rate.available(1000.0) == 10
    slow = SendRate(0.5, 0.0)
    assert slow.available(0.0) == 1
    slow.take(1)
    assert slow.available(1.0) == 0
    assert slow.available(2.0) == 1


def test_the_progress_of_a_long_batch_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "semel.pipeline")
    with TestBroker() as broker:
        options = options_of(broker.url, tmp_path, maxRate="200")
        commit(replace(options, progress_seconds=0.05), **numbered(60))
    assert "batch 0 of query q: acknowledged " in caplog.text


def test_a_message_that_expires_is_not_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    dead = options_of(f"mqtt://127.0.0.1:{port}", tmp_path, timeout="0.1")
    with pytest.raises(PipelineError):
        commit(dead, topic=["t", "t"], payload=["old", "new"], message_expiry=[1, None])
    time.sleep(1.1)
    with TestBroker(port=port) as broker:
        commit(options_of(broker.url, tmp_path), **numbered(1))
        assert payloads(broker) == ["new"]
    assert "1 messages expired before they could be sent" in caplog.text


def test_the_expiry_of_each_message_counts_from_its_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of messages that were not in the outbox when the query was stopped."""
    chunks = ChunkLimits(rows=1)
    port = free_port()
    rows: dict[str, list[Any]] = {
        "topic": ["t"] * 4,
        "payload": ["first", "old", "new", "old 0"],
        "qos": [2, 2, 2, 0],
        "message_expiry": [None, 1, 600, 1],
    }
    stopped = options_of(f"mqtt://127.0.0.1:{port}", tmp_path, timeout="0.1")
    with pytest.raises(PipelineError):
        commit(replace(stopped, chunks=chunks), **rows)
    time.sleep(1.1)
    with TestBroker(port=port) as broker:
        commit(replace(options_of(broker.url, tmp_path), chunks=chunks), **rows)
        assert payloads(broker) == ["first", "new"]
    assert "2 messages expired before they could be sent" in caplog.text


def test_a_batch_that_an_earlier_version_has_begun_is_continued(tmp_path: Path) -> None:
    port = free_port()
    with pytest.raises(PipelineError):
        commit(options_of(f"mqtt://127.0.0.1:{port}", tmp_path, timeout="0.1"), **numbered(2))
    with closing(sqlite3.connect(tmp_path / "state" / "outbox" / "store.db")) as database, database:
        opened = json.loads(get_metadata(database, publish_batch.OPEN_BATCH) or "")
        del opened["received_at"]
        set_metadata(database, publish_batch.OPEN_BATCH, json.dumps(opened))
    with TestBroker(port=port) as broker:
        commit(options_of(broker.url, tmp_path), **numbered(2))
        assert payloads(broker) == ["0", "1"]

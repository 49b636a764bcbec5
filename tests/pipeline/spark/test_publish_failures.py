"""Rows that `write.format("mqtt")` cannot send: they stop the query, or are in a table."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from semel.broker.authority import Authority
from semel.broker.identity import Identity
from semel.client.events import PublishOutcome
from semel.lab.testing import TestBroker
from semel.mqtt.packet_types import PUBACK
from semel.mqtt.properties import REASON_STRING, Properties
from semel.mqtt.reasons import NOT_AUTHORIZED, SUCCESS
from semel.pipeline import publish_delivery
from semel.pipeline.errors import PipelineError
from semel.pipeline.publish_delivery import refusal_text
from semel.pipeline.publish_options import ChunkLimits
from semel.store.commit import Commit
from tests.kills.brokers import free_port, mosquitto
from tests.pipeline.spark.test_publish import commit, numbered, options_of, payloads


class Guard(Authority):
    """Refuses topics that begin with `secret`, until it is open."""

    def __init__(self) -> None:
        self.is_open = False

    def open(self) -> None:
        self.is_open = True
        self.generation += 1

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        is_secret = topic_name.startswith("secret") and not self.is_open
        return NOT_AUTHORIZED if is_secret else SUCCESS


@pytest.fixture
def guarded() -> Iterator[tuple[TestBroker, Guard]]:
    guard = Guard()
    with TestBroker(authority=guard, maximum_packet_size=10_000) as broker:
        yield broker, guard


def failures_in(table: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(table).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["row"])


BAD_ROWS: dict[str, list[Any]] = {
    "topic": ["ok", "a/+", "secret/x", "ok", None, "secret/1", "ok"],
    "payload": ["0", "1", "2", "x" * 20_000, "4", "5", "6"],
    "qos": [2, 2, 2, 2, 2, 1, 1],
}


def test_rows_that_cannot_be_sent_are_in_the_failures_table_once(
    guarded: tuple[TestBroker, Guard], tmp_path: Path
) -> None:
    broker, _ = guarded
    table = tmp_path / "failures"
    options = options_of(broker.url, tmp_path, failures=str(table))
    options = replace(options, chunks=ChunkLimits(rows=3))
    for _ in range(2):
        commit(options, 4, **BAD_ROWS)
    commit(options, 5, topic=["#"], payload=["again"])
    assert payloads(broker) == ["0", "6"]
    rows = failures_in(table)
    assert [(row["batch"], row["row"]) for row in rows if row["batch"] == 4] == [
        *((4, 1), (4, 2), (4, 3), (4, 4), (4, 5))
    ]
    assert [row["payload"] for row in rows if row["batch"] == 5] == [b"again"]
    found = {row["row"]: row for row in rows if row["batch"] == 4}
    assert "TOPIC_NAME_WITHOUT_WILDCARDS" in found[1]["reason"]
    assert found[2]["reason"] == "the server refused it with PUBREC 0x87, not authorized"
    assert (found[2]["reason_code"], found[2]["topic"], found[2]["payload"]) == (
        0x87,
        "secret/x",
        b"2",
    )
    assert "PACKET_SIZE_WITHIN_MAXIMUM" in found[3]["reason"]
    assert found[4]["reason"] == "column topic is null"
    assert "PUBACK 0x87" in found[5]["reason"]
    assert {row["query"] for row in rows} == {"q"}


def test_a_refused_row_stops_the_query_and_a_restart_tries_it_again(
    guarded: tuple[TestBroker, Guard], tmp_path: Path
) -> None:
    broker, guard = guarded
    options = options_of(broker.url, tmp_path)
    rows = {"topic": ["ok", "secret/x", "ok"], "payload": ["0", "1", "2"]}
    for _ in range(2):
        with pytest.raises(PipelineError) as caught:
            commit(options, **rows)
        assert (
            "row 1 (topic 'secret/x') of batch 0 of query q was not sent: the server refused it"
            " with PUBREC 0x87, not authorized" in str(caught.value)
        )
        assert payloads(broker) == ["0", "2"]
    guard.open()
    commit(options, **rows)
    assert payloads(broker) == ["0", "2", "1"]
    commit(options, **rows)
    assert payloads(broker) == ["0", "2", "1"]


def test_many_refused_rows_are_written_once_per_commit(
    guarded: tuple[TestBroker, Guard], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusals of a part are one value: written for each row, they took quadratic time."""
    broker, _ = guarded
    written: list[str] = []

    def dumps(refused: dict[int, Any]) -> str:
        written.append(json.dumps(refused))
        return written[-1]

    commits: list[Commit] = []

    def new_commit() -> Commit:
        commits.append(Commit())
        return commits[-1]

    monkeypatch.setattr(publish_delivery, "json", SimpleNamespace(dumps=dumps))
    monkeypatch.setattr(publish_delivery, "Commit", new_commit)
    table = tmp_path / "failures"
    count = 2_000
    commit(options_of(broker.url, tmp_path, failures=str(table)), **numbered(count, "secret/x"))
    assert len(failures_in(table)) == count
    # How many refusals come between two commits depends on the machine.
    assert 0 < len(written) <= len(commits)
    assert len(set(written)) == len(written)
    assert not payloads(broker)


def test_the_reason_of_a_server_is_one_short_line() -> None:
    def text(why: str) -> str:
        return refusal_text(
            PublishOutcome(1, PUBACK, NOT_AUTHORIZED, Properties([(REASON_STRING, why)]))
        )

    refused = "the server refused it with PUBACK 0x87, not authorized: "
    assert text("closed on Sunday: déjà vu") == f"{refused}closed on Sunday: déjà vu"
    assert text("a\nERROR forged\x1b[31m") == rf"{refused}a\nERROR forged\x1b[31m"
    assert text("x" * 60_000) == refused + "x" * 1_000


def test_option_failures_may_be_added_after_a_row_has_stopped_the_query(
    guarded: tuple[TestBroker, Guard], tmp_path: Path
) -> None:
    broker, _ = guarded
    rows = {"topic": ["secret/x", "ok"], "payload": ["0", "1"]}
    with pytest.raises(PipelineError):
        commit(options_of(broker.url, tmp_path), **rows)
    table = tmp_path / "failures"
    commit(options_of(broker.url, tmp_path, failures=str(table)), **rows)
    assert [row["topic"] for row in failures_in(table)] == ["secret/x"]
    assert payloads(broker) == ["1"]


def test_a_table_that_cannot_have_the_failures_stops_the_query_and_loses_nothing(
    guarded: tuple[TestBroker, Guard], tmp_path: Path
) -> None:
    broker, _ = guarded
    other = tmp_path / "other"
    write_deltalake(other, pa.table({"query": ["q"]}))
    rows = {"topic": ["ok", "a/#", "secret/x"], "payload": ["0", "1", "2"]}
    for _ in range(2):
        with pytest.raises(PipelineError) as caught:
            commit(options_of(broker.url, tmp_path, failures=str(other)), **rows)
        assert (
            f"cannot be written to the table of option failures: {other} has no column batch, row,"
            in str(caught.value)
        )
        assert "so it is not a table of failed rows: give another one" in str(caught.value)
    assert len(list(other.glob("**/*.parquet"))) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(PipelineError, match=r"option failures: .*Nothing is lost"):
        commit(options_of(broker.url, tmp_path, failures=str(tmp_path / "file")), **rows)
    table = tmp_path / "failures"
    commit(options_of(broker.url, tmp_path, failures=str(table)), **rows)
    assert [row["topic"] for row in failures_in(table)] == ["a/#", "secret/x"]
    assert payloads(broker) == ["0"]


@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="not installed: mosquitto")
def test_what_the_server_does_not_support_is_a_failure(tmp_path: Path) -> None:
    broker = mosquitto(free_port(), tmp_path)
    with (tmp_path / "mosquitto.conf").open("a") as configuration:
        configuration.write("max_qos 1\nretain_available false\n")
    broker.start()
    try:
        broker.serve_seconds()
        table = tmp_path / "failures"
        commit(
            options_of(f"mqtt://127.0.0.1:{broker.port}", tmp_path, failures=str(table)),
            topic=["a", "b", "c", "d"],
            payload=["2", "1", "0", "retained"],
            qos=[2, 1, 0, 0],
            retain=[False, False, False, True],
        )
    finally:
        broker.end()
    rows = {row["topic"]: row["reason"] for row in failures_in(table)}
    assert list(rows) == ["a", "d"]
    assert "QOS" in rows["a"]
    assert "RETAIN" in rows["d"]

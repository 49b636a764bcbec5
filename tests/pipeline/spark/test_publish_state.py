"""The state folder of `write.format("mqtt")`: what it must not confuse, and what it keeps."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from semel.lab.testing import TestBroker
from semel.pipeline.errors import PipelineError
from semel.pipeline.publish_batch import QUERY
from semel.pipeline.publish_options import PublishOptions, parse_publish_options
from tests.kills.brokers import free_port
from tests.pipeline.sources import again
from tests.pipeline.spark.test_publish import commit, options_of, payloads


def test_a_batch_that_spark_cannot_be_repeating_is_refused(tmp_path: Path) -> None:
    """A new checkpoint begins at batch 0 again, with other rows: skipped, they would be lost."""
    with TestBroker() as broker:
        options = options_of(broker.url, tmp_path)
        for batch in range(3):
            commit(options, batch, topic=["t"], payload=[f"{batch}"])
        for batch in (0, 1):
            with pytest.raises(PipelineError) as caught:
                commit(options, batch, topic=["t"], payload=["new"])
            assert f"batch {batch} of query q follows batch 2, which was sent before" in str(
                caught.value
            )
            assert "give option appId with a new name" in str(caught.value)
        # The last batch is one that Spark repeats after a kill.
        commit(options, 2, topic=["t"], payload=["2"])
        assert payloads(broker) == ["0", "1", "2"]
        commit(options_of(broker.url, tmp_path, "again"), 0, topic=["t"], payload=["new"])
        assert payloads(broker) == ["0", "1", "2", "new"]


def test_an_unfinished_batch_is_not_sent_to_the_broker_of_another_query(tmp_path: Path) -> None:
    port = free_port()
    first = f"mqtt://127.0.0.1:{port}"
    with pytest.raises(PipelineError, match="could not be reached"):
        commit(options_of(first, tmp_path, "a", timeout="0.1"), topic=["t"], payload=["of a"])
    with TestBroker() as other:
        with pytest.raises(PipelineError) as caught:
            commit(options_of(other.url, tmp_path, "b"), topic=["t"], payload=["of b"])
        assert f"has rows of batch 0 of query a that were not sent to {first} yet" in str(
            caught.value
        )
        assert "repeat that write first, or give another folder" in str(caught.value)
        assert not payloads(other)
        with TestBroker(port=port) as broker:
            # Another query with the same broker finishes it, whoever its user is.
            url = first.replace("//", "//user:secret@")
            commit(options_of(url, tmp_path, "c"), topic=["t"], payload=["of c"])
            assert payloads(broker) == ["of a", "of c"]
        commit(options_of(other.url, tmp_path, "b"), topic=["t"], payload=["of b"])
        assert payloads(other) == ["of b"]


def test_a_damaged_file_of_rows_is_reported_and_nothing_of_it_is_sent(tmp_path: Path) -> None:
    """Between a failed attempt and the next one, the rows are on disk."""
    port = free_port()
    url = f"mqtt://127.0.0.1:{port}"
    with pytest.raises(PipelineError, match="could not be reached"):
        commit(options_of(url, tmp_path, timeout="0.1"), topic=["t"], payload=["21.5"])
    (path,) = (tmp_path / "state" / "batches").iterdir()
    whole = path.read_bytes()
    with TestBroker(port=port) as broker:
        for place in (whole.index(b"21.5"), *range(0, len(whole), 97)):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(PipelineError) as caught:
                commit(options_of(broker.url, tmp_path), topic=["t"], payload=["21.5"])
            assert "it is damaged: it has another checksum than what was written" in str(
                caught.value
            )
            assert f"restore {path}, or delete {tmp_path / 'state'} to send" in str(caught.value)
            assert not payloads(broker)
        path.write_bytes(whole)
        commit(options_of(broker.url, tmp_path), topic=["t"], payload=["21.5"])
        assert payloads(broker) == ["21.5"]


def test_the_broker_of_a_query_may_move(tmp_path: Path) -> None:
    dead = options_of(f"mqtt://127.0.0.1:{free_port()}", tmp_path, timeout="0.1")
    with pytest.raises(PipelineError, match="could not be reached"):
        commit(dead, topic=["t"], payload=["0"])
    with TestBroker() as broker:
        commit(options_of(broker.url, tmp_path), topic=["t"], payload=["0"])
        commit(options_of(broker.url, tmp_path), 1, topic=["t"], payload=["1"])
        assert payloads(broker) == ["0", "1"]


def remembered(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "state" / "outbox" / "store.db")) as database:
        rows = database.execute(
            "SELECT name FROM metadata WHERE name LIKE ? ORDER BY name", (QUERY + "%",)
        )
        return [name.removeprefix(QUERY) for (name,) in rows]


def test_only_writes_with_a_name_are_remembered(tmp_path: Path) -> None:
    """Nobody can repeat a write without a name, so it must not make the folder grow."""

    def write(broker: TestBroker, **more: str) -> None:
        given = {"url": broker.url, "state": str(tmp_path / "state"), **more}
        options: PublishOptions = again(parse_publish_options(given, is_stream=False))
        commit(options, topic=["t"], payload=[more.get("batch", "none")])

    with TestBroker() as broker:
        for _ in range(3):
            write(broker)
        assert remembered(tmp_path) == []
        for _ in range(2):
            write(broker, batch="monday")
        write(broker, batch="tuesday")
        assert remembered(tmp_path) == ["batch monday", "batch tuesday"]
        assert payloads(broker) == ["none"] * 3 + ["monday", "tuesday"]

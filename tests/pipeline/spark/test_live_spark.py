"""`format("mqtt")` over a live broker, in Spark itself: the one line, and what is around it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from semel.lab.testing import TestBroker
from semel.pipeline.errors import sentence_of
from semel.pipeline.live_folder import CONNECTED, ENDED
from tests.pipeline.living import PATIENCE, ingest_ended, status_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def started(
    spark: "SparkSession", folder: Path, options: dict[str, str], rows: list[str]
) -> "StreamingQuery":
    """A query whose rows come into a list."""
    frame = spark.readStream.format("mqtt").options(**options)
    frame = frame.option("root", str(folder / "root")).option("stream", "plant")

    def take(batch: Any, _: int) -> None:
        rows.extend(f"{row.topic} {bytes(row.payload).decode()}" for row in batch.collect())

    writer = frame.load().writeStream.foreachBatch(take).trigger(processingTime="0 seconds")
    return writer.option("checkpointLocation", str(folder / "checkpoint")).start()


def wait_for(query: "StreamingQuery", reached: Callable[[], bool]) -> None:
    """Wait until something is so; what ends the query before comes out."""
    end = time.monotonic() + PATIENCE
    while not reached():
        problem = query.exception()
        if problem is not None:
            raise problem
        assert time.monotonic() < end
        time.sleep(0.05)


def messages(first: int, last: int) -> list[tuple[str, str, int]]:
    return [(f"plant/{each}", str(each), 1 + each % 2) for each in range(first, last + 1)]


def lines(last: int) -> list[str]:
    return [f"plant/{each} {each}" for each in range(1, last + 1)]


def test_a_query_over_a_live_broker_gets_each_message_once_over_its_stops(
    spark: "SparkSession", tmp_path: Path
) -> None:
    root = tmp_path / "root"
    rows: list[str] = []
    with TestBroker(users={"ann": "word"}) as broker:
        options = {
            "url": broker.url,
            "topics": "plant/#",
            "username": "ann",
            "password": "word",
            "linger": "0",
            "sealAfter": "50ms",
        }
        query = started(spark, tmp_path, options, rows)
        wait_for(query, lambda: broker.subscriptions() != [])
        publish_as(broker, *messages(1, 20))
        wait_for(query, lambda: len(rows) >= 20)
        first = status_of(root)
        assert first.state == CONNECTED
        assert spark._jvm is not None
        assert first.driver == spark._jvm.java.lang.ProcessHandle.current().pid()
        # Spark gives foreachBatch a batch again that it has not committed before a stop.
        query.processAllAvailable()
        query.stop()
        # The query was the last one that read from it.
        assert ingest_ended(root).state == ENDED
        publish_as(broker, *messages(21, 40))
        query = started(spark, tmp_path, options, rows)
        wait_for(query, lambda: len(rows) >= 40)
        publish_as(broker, *messages(41, 60))
        wait_for(query, lambda: len(rows) >= 60)
        assert rows == lines(60)
        second = status_of(root)
        assert second.run != first.run
        assert second.counters["client_id"] == first.counters["client_id"]
        # It fails, with the ingest's own sentence.
        broker.take_over(second.counters["client_id"])
        with pytest.raises(Exception, match="session taken over") as caught:
            query.awaitTermination(int(PATIENCE))
        sentence = sentence_of(caught.value)
        assert sentence is not None
        assert sentence.startswith("the ingest for option url failed: ")
        query.stop()
        with pytest.raises(Exception, match="option topics") as caught:
            started(spark, tmp_path / "other", {"url": broker.url}, rows)
        assert sentence_of(caught.value) == (
            "option topics is missing: give topic filters, such as plant/#"
        )


def publish_as(broker: TestBroker, *sent: tuple[str, str, int]) -> None:
    for topic, payload, qos in sent:
        broker.publish(topic, payload, qos)

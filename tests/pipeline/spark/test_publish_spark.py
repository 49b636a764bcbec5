"""`format("mqtt")` as a sink, in Spark itself, and the example of its page."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from semel.lab.testing import TestBroker
from semel.pipeline.errors import sentence_of
from tests.pipeline.made import write_messages
from tests.pipeline.sources import problem_of
from tests.pipeline.spark.test_pages import spark_example

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS = 60
PAGE = "docs/data/publish.md"


def payloads(broker: TestBroker, topic_filter: str = "#") -> list[str]:
    return [each.payload.decode() for each in broker.messages(topic_filter)]


def alerts(spark: "SparkSession", folder: Path) -> "DataFrame":
    frame = spark.readStream.format("mqtt").option("root", str(folder / "streams"))
    return (
        frame.option("maxRowsPerBatch", "20")
        .load()
        .selectExpr("concat('alerts/', node) as topic", "cast(seq as string) as payload")
    )


def run(frame: "DataFrame", folder: Path, **options: str) -> "StreamingQuery":
    """Run a query until it has read all there is."""
    query = (
        frame.writeStream.format("mqtt")
        .options(checkpointLocation=str(folder / "checkpoint"), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_a_stream_is_published_once(spark: "SparkSession", tmp_path: Path) -> None:
    write_messages(tmp_path / "streams", "all", "n1", 1, ROWS)
    with TestBroker() as broker:
        run(alerts(spark, tmp_path), tmp_path, url=broker.url)
        everything = [str(number) for number in range(1, ROWS + 1)]
        assert sorted(payloads(broker, "alerts/n1"), key=int) == everything
        # Spark was killed when the last batch was published, and before it noted that.
        commits = tmp_path / "checkpoint" / "commits"
        assert (commits / "2").exists()
        for each in (commits / "2", commits / ".2.crc"):
            each.unlink(missing_ok=True)
        run(alerts(spark, tmp_path), tmp_path, url=broker.url)
        assert (commits / "2").exists()
        assert sorted(payloads(broker), key=int) == everything
        assert {each.qos for each in broker.messages()} == {2}
        assert (tmp_path / "checkpoint" / "publish" / "outbox").is_dir()
        broker.assert_clean()


def test_a_write_is_published_and_its_name_is_remembered(
    spark: "SparkSession", tmp_path: Path
) -> None:
    # Partitions that are too large for a commit message, and a smaller one.
    frame = spark.range(0, 9, numPartitions=2).selectExpr(
        "concat('t/', id) as topic", "repeat('x', 90000) as payload", "1 as qos"
    )
    with TestBroker() as broker:
        options = {"url": broker.url, "state": str(tmp_path / "state"), "batch": "monday"}
        for _ in range(2):
            frame.write.format("mqtt").options(**options).mode("append").save()
        found = broker.messages()
        assert sorted(each.topic_name for each in found) == [f"t/{number}" for number in range(9)]
        assert {len(each.payload) for each in found} == {90_000}
        assert not list((tmp_path / "state" / "tasks").iterdir())
        # Without a name and a folder, a write is new each time.
        for _ in range(2):
            frame.limit(1).write.format("mqtt").option("url", broker.url).mode("append").save()
        assert len(broker.messages()) == 11


def test_what_is_wrong_is_reported_before_anything_is_sent(
    spark: "SparkSession", tmp_path: Path
) -> None:
    frame = spark.sql("select 'a/#' as topic, 'x' as payload")
    with TestBroker() as broker:

        def save(frame: "DataFrame", **options: str) -> str:
            writer = frame.write.format("mqtt").mode("append")
            return problem_of(lambda: writer.options(url=broker.url, **options).save())

        assert "TOPIC_NAME_WITHOUT_WILDCARDS" in save(frame)
        assert "writing to mqtt has no option maxrat: did you mean maxRate?" in save(
            frame, maxrat="1"
        )
        assert "writing to mqtt has no option root: a broker has no root" in save(frame, root="x")
        assert "a message has no column name" in save(spark.sql("select 1 as name"))
        write_messages(tmp_path / "streams", "all", "n1", 1, 1)
        with pytest.raises(PySparkException) as caught:
            run(alerts(spark, tmp_path).drop("payload"), tmp_path, url=broker.url)
        assert "column payload is missing" in (sentence_of(caught.value) or "")
        assert not broker.messages()
        table = tmp_path / "failures"
        writer = frame.write.format("mqtt").mode("append")
        writer.options(url=broker.url, failures=str(table)).save()
        (row,) = DeltaTable(table).to_pyarrow_table().to_pylist()
        assert (row["topic"], row["payload"]) == ("a/#", b"x")


def test_the_example_of_the_page_sends_an_alert_to_a_device(
    spark: "SparkSession", tmp_path: Path
) -> None:
    write_messages(
        tmp_path / "semel-data" / "streams",
        "all",
        "n1",
        1,
        10,
        topic="plant/{line}/temp",
        payload=lambda seq: str(20 + 10 * seq).encode(),
    )
    with TestBroker() as broker:
        text = spark_example(PAGE, "readStream")
        text = text.replace("mqtt://broker.example", broker.url)
        text = text.replace('"semel-data', f'"{tmp_path}/semel-data')
        text = text.replace('"checkpoints', f'"{tmp_path}/checkpoints')
        names: dict[str, Any] = {"spark": spark}
        exec(compile(text, PAGE, "exec"), names)
        names["query"].processAllAvailable()
        names["query"].stop()
        found = sorted((each.topic_name, each.payload.decode()) for each in broker.messages())
        assert found == [("plant/0/alert", "too hot: 120.0"), ("plant/4/alert", "too hot: 110.0")]
        assert {each.qos for each in broker.messages()} == {2}


def test_the_second_example_of_the_page_sends_a_table(
    spark: "SparkSession", tmp_path: Path
) -> None:
    with TestBroker() as broker:
        text = spark_example(PAGE, "write.format").replace("mqtt://broker.example", broker.url)
        text = text.replace('"/srv/semel', f'"{tmp_path}/semel')
        for _ in range(2):
            exec(compile(text, PAGE, "exec"), {"spark": spark})
        assert payloads(broker, "plant/1/set") == ["21.5"]

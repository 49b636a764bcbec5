"""The Spark examples of the README and of the pages run as shown.

Only the paths and addresses are those of the test, because the session has its own working
directory. The examples of spark.md run in test_source_spark.py.
"""

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from semel.lab.testing import TestBroker
from tests.pipeline.made import write_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOME = Path(__file__).resolve().parents[3]
ROWS = 100
# Generous: it only ends a test that would hang.
TIMEOUT_SECONDS = 120.0


def spark_example(page: str, about: str = "") -> str:
    """The Python example of a page that uses Spark, and has these words, of which there is one."""
    text = (HOME / page).read_text("utf-8")
    examples: list[str] = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    of_spark = ("semel_delta", "spark.", "foreachBatch")
    (example,) = (
        each for each in examples if about in each and any(word in each for word in of_spark)
    )
    return example


def run_example(
    page: str, names: dict[str, Any], *, about: str = "", **replaced: Path | str
) -> dict[str, Any]:
    """Run the example of a page with the names it needs; returns these and those it assigns.

    A keyword is the first part of a path in the example: it is replaced wherever a string begins
    with it, and must be there.
    """
    example = spark_example(page, about)
    for first, path in replaced.items():
        example, count = re.subn(rf'"{first.replace("_", "-")}(?=["/])', f'"{path}', example)
        assert count, first
    exec(compile(example, page, "exec"), names)
    return names


def stop_queries(spark: "SparkSession") -> None:
    """Let the queries process what there is, then stop them."""
    assert spark.streams.active
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()


def seqs(table: Path) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table().column("seq").to_pylist())


def test_the_example_of_the_readme_lands_each_message_once(
    spark: "SparkSession", tmp_path: Path
) -> None:
    write_messages(tmp_path / "data" / "streams", "all", "n1", 1, ROWS)
    run_example(
        "README.md",
        {"spark": spark},
        semel_data=tmp_path / "data",
        c=tmp_path / "checkpoint",
        lake=tmp_path / "lake",
    )
    stop_queries(spark)
    assert seqs(tmp_path / "lake" / "mine") == list(range(1, ROWS + 1))


def test_the_example_of_delta_md_writes_a_batch_and_a_stream(
    spark: "SparkSession", tmp_path: Path
) -> None:
    root = str(tmp_path / "streams")
    write_messages(root, "all", "n1", 1, ROWS)
    names = {
        "frame": spark.read.format("mqtt").option("root", root).load(),
        "stream": spark.readStream.format("mqtt").option("root", root).load(),
    }
    run_example(
        "docs/data/delta.md",
        names,
        about="frame.write",
        checkpoints=tmp_path / "checkpoints",
        lake=tmp_path / "lake",
    )
    stop_queries(spark)
    twice = sorted([*range(1, ROWS + 1)] * 2)
    assert seqs(tmp_path / "lake" / "totals") == twice


def test_the_third_example_of_delta_md_reads_tables(spark: "SparkSession", tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3]})
    write_deltalake(tmp_path / "lake" / "totals", rows)
    names = run_example(
        "docs/data/delta.md", {"spark": spark}, about="register_tables", lake=tmp_path / "lake"
    )
    assert names["totals"].count() == 3
    assert spark.sql("select count(*) from totals").collect()[0][0] == 3
    assert names["new_rows"].isStreaming


def test_the_example_of_delta_md_reads_some_rows(spark: "SparkSession", tmp_path: Path) -> None:
    moment = datetime(2026, 3, 1, 10, 59, tzinfo=UTC)
    rows = {
        "id": range(4),
        "topic": ["b", "a", "plant/1/temp", "b"],
        "received": [moment + timedelta(minutes=each) for each in range(4)],
        "date": [(moment - timedelta(days=each)).date() for each in range(4)],
    }
    write_deltalake(tmp_path / "lake" / "messages", pa.table(rows), partition_by=["date"])
    names = run_example(
        "docs/data/delta.md", {"spark": spark}, about="last_hour", lake=tmp_path / "lake"
    )
    assert [row.id for row in names["last_hour"].collect()] == [2]
    assert [row.id for row in names["same"].collect()] == [0]


def test_the_fourth_example_of_delta_md_counts_by_key(
    spark: "SparkSession", tmp_path: Path
) -> None:
    root = tmp_path / "root"
    write_messages(root, "all", "n1", 1, 20, topic="plant/{line}/temp")
    messages = spark.readStream.format("mqtt").option("root", str(root)).load()
    run_example(
        "docs/data/delta.md",
        {"messages": messages},
        about="upsert",
        checkpoints=tmp_path / "checkpoints",
        lake=tmp_path / "lake",
    )
    for query in spark.streams.active:
        query.processAllAvailable()
    write_messages(root, "all", "n1", 21, 1, topic="plant/{line}/temp")
    stop_queries(spark)
    found = DeltaTable(tmp_path / "lake" / "counts").to_pyarrow_table().to_pylist()
    expected = {f"plant/{line}/temp": 4 + (line == 1) for line in range(5)}
    assert {row["topic"]: row["count"] for row in found} == expected


def test_the_second_example_of_delta_md_makes_rows_of_lists(
    spark: "SparkSession", tmp_path: Path
) -> None:
    for first, topic in ((1, "plant/{line}/temp"), (11, "plant/{line}/state")):
        root = tmp_path / "data" / "streams"
        write_messages(root, "all", "n1", first, 10, topic=topic, payload="[{seq}, 0.5]")
    run_example(
        "docs/data/delta.md",
        {"spark": spark},
        about="readings",
        semel_data=tmp_path / "data",
        checkpoints=tmp_path / "checkpoints",
        lake=tmp_path / "lake",
    )
    stop_queries(spark)
    table = DeltaTable(tmp_path / "lake" / "readings").to_pyarrow_table().to_pylist()
    found = sorted((row["seq"], row["part"], row["value"]) for row in table)
    expected = [(seq, part, [float(seq), 0.5][part]) for seq in range(1, 11) for part in (0, 1)]
    assert found == expected


def test_the_example_of_landing_md_lands_each_message_once(
    spark: "SparkSession", tmp_path: Path
) -> None:
    write_messages(tmp_path / "data" / "streams", "all", "n1", 1, ROWS)
    names = run_example("docs/data/landing.md", {}, data=tmp_path / "data", lake=tmp_path / "lake")
    assert names["spark"] is spark
    stop_queries(spark)
    table = tmp_path / "lake" / "mine"
    assert seqs(table) == list(range(1, ROWS + 1))
    assert DeltaTable(table).metadata().partition_columns == ["date"]


def test_the_example_of_spark_live_md_reads_a_broker(spark: "SparkSession", tmp_path: Path) -> None:
    rows: list[str] = []
    with TestBroker() as broker:
        text = spark_example("docs/data/spark-live.md")
        text = text.replace("mqtt://broker.example", broker.url)
        text = text.replace("/srv/record", str(tmp_path / "record"))
        # The ingest ends with the query, not a minute later.
        text = text.replace(".load()", '.option("linger", "0").load()')
        names: dict[str, Any] = {"spark": spark}
        exec(compile(text, "spark-live.md", "exec"), names)

        def take(batch: Any, _: int) -> None:
            rows.extend(bytes(row.payload).decode() for row in batch.collect())

        writer = names["messages"].writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        end = time.monotonic() + TIMEOUT_SECONDS
        while not broker.subscriptions():
            assert query.exception() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        broker.publish("plant/1", "21.5", 2)
        while not rows:
            assert query.exception() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        stop_queries(spark)
    assert rows == ["21.5"]


def test_the_example_of_cluster_md_writes_the_totals(spark: "SparkSession", tmp_path: Path) -> None:
    write_messages(tmp_path / "root", "all", "n1", 1, ROWS)
    example = spark_example("docs/operate/cluster.md")
    exec(compile(example.replace("s3://plant", str(tmp_path)), "cluster.md", "exec"), {})
    totals = DeltaTable(tmp_path / "lake" / "totals").to_pyarrow_table()
    assert len(set(totals.column("topic").to_pylist())) == totals.num_rows > 1
    assert sum(totals.column("messages").to_pylist()) == ROWS


def sql_example(page: str) -> str:
    text = (HOME / page).read_text("utf-8")
    (example,) = re.findall(r"^```sql\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(example)


def test_the_sql_of_spark_md_reads_a_stream_as_a_table(
    spark: "SparkSession", tmp_path: Path
) -> None:
    write_messages(tmp_path / "data" / "streams", "all", "n1", 1, 2_000)
    write_messages(tmp_path / "srv", "others", "n1", 1, ROWS)
    example = sql_example("docs/data/spark.md").replace("/srv/streams", str(tmp_path / "srv"))
    example = example.replace("data/streams", str(tmp_path / "data" / "streams"))
    try:
        *tables, query = example.strip().removesuffix(";").split(";\n")
        for table in tables:
            spark.sql(table)
        # From row 1,000 on.
        assert sum(row[1] for row in spark.sql(query).collect()) == 1_001
        assert spark.table("others").count() == ROWS
    finally:
        for name in ("messages", "others"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_the_sql_of_streams_md_counts_the_messages_of_each_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    duckdb = pytest.importorskip("duckdb")
    write_messages(tmp_path / "data" / "streams", "plant", "n1", 1, ROWS)
    monkeypatch.chdir(tmp_path)
    rows = duckdb.sql(sql_example("docs/data/streams.md")).fetchall()
    assert sum(row[1] for row in rows) == ROWS

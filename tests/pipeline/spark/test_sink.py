"""`format("semel_delta")` with a real Spark, read by others."""

import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from semel.pipeline.app_transactions import query_id
from semel.pipeline.errors import OptionError, sentence_of
from semel.pipeline.sink_options import parse_sink_options
from tests.pipeline.delta_dataset import delta_dataset

# One row of each kind that a table can have.
EVERYTHING = """
    select cast(1 as byte) tiny, cast(2 as short) small, 3 whole, cast(4 as bigint) big,
        cast(0.5 as float) single, cast(0.25 as double) real, cast(1.10 as decimal(10, 2)) money,
        true truth, 'tämp' text, cast('ab' as binary) bytes, date'2026-03-01' day,
        timestamp'2026-03-01 12:00:00.000001' moment, array(1, null) several,
        map('k', 1) pairs, named_struct('x', 1, 'y', array('a')) both,
        array(named_struct('key', 'k', 'value', 'v')) properties, cast(null as string) nothing
"""


def save(frame: DataFrame, path: Path, *, mode: str = "append", **options: str) -> None:
    frame.write.format("semel_delta").options(**options).mode(mode).save(str(path))


def sentence(problem: BaseException) -> str:
    found = sentence_of(problem)
    assert found is not None, str(problem)
    return found


def test_each_type_of_spark_reads_back_everywhere(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    save(spark.sql(EVERYTHING), table)
    expected: dict[str, Any] = {
        "tiny": 1,
        "small": 2,
        "whole": 3,
        "big": 4,
        "single": 0.5,
        "real": 0.25,
        "truth": True,
        "text": "tämp",
        "bytes": b"ab",
        "day": date(2026, 3, 1),
        "moment": datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC),
        "several": [1, None],
        "both": {"x": 1, "y": ["a"]},
        "properties": [{"key": "k", "value": "v"}],
        "nothing": None,
    }
    delta = DeltaTable(str(table))
    (row,) = delta.to_pyarrow_table().to_pylist()
    assert {name: row[name] for name in expected} == expected
    assert str(row["money"]) == "1.10"
    assert row["pairs"] == [("k", 1)]
    assert delta.protocol().min_reader_version == 1
    (seen,) = polars.read_delta(str(table)).drop("pairs").to_dicts()
    assert {name: seen[name] for name in expected} == expected
    connection = duckdb.connect()
    connection.register("t", delta_dataset(delta))
    found = connection.execute("select big, text, bytes, moment, properties from t").fetchone()
    assert found is not None
    assert found[:3] == (4, "tämp", b"ab")
    assert found[3] == expected["moment"]
    assert found[4] == expected["properties"]


def test_append_overwrite_partitions_and_new_columns(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    frame = spark.range(10).selectExpr("id", "id % 2 = 0 as even", "if(id < 5, 'a', null) as part")
    save(frame, table, partitionBy="part")
    save(frame.limit(1), table, partitionBy="part")
    assert DeltaTable(str(table)).count() == 11
    assert polars.read_delta(str(table)).filter(polars.col("part").is_null()).height == 5
    wide = frame.selectExpr("*", "cast(id as string) as text")
    with pytest.raises(PySparkException) as refused:
        save(wide, table, partitionBy="part")
    assert sentence(refused.value).endswith("has no column text: set mergeSchema to true to add it")
    save(wide, table, partitionBy="part", mergeSchema="true")
    assert DeltaTable(str(table)).count() == 21
    save(frame.limit(3), table, mode="overwrite", partitionBy="part")
    assert DeltaTable(str(table)).count() == 3


def test_a_stream_is_written_once_whatever_is_replayed(spark: SparkSession, tmp_path: Path) -> None:
    source, table, checkpoint = (tmp_path / name for name in ("in", "table", "checkpoint"))
    spark.range(100).write.parquet(str(source / "1"))
    stream = spark.readStream.schema("id bigint").parquet(str(source / "*"))

    def run() -> None:
        query = (
            stream.writeStream.format("semel_delta")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(table))
        )
        query.awaitTermination()

    run()
    spark.range(100, 150).write.parquet(str(source / "2"))
    run()
    assert sorted(DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist()) == list(range(150))
    # Killed after the table's commit and before Spark's: Spark does the batch again.
    (checkpoint / "commits" / "1").unlink()
    (checkpoint / "commits" / ".1.crc").unlink()
    version = DeltaTable(str(table)).version()
    run()
    assert DeltaTable(str(table)).version() == version
    assert DeltaTable(str(table)).count() == 150
    # Another checkpoint is another query: its batches are not taken for those of the first.
    shutil.rmtree(checkpoint)
    run()
    assert DeltaTable(str(table)).count() == 300


def test_partition_by_of_spark_is_refused_for_batches_and_for_partitioned_tables(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    frame = spark.range(10).selectExpr("id", "id % 2 = 0 as even")
    writer = frame.write.format("semel_delta").mode("append").partitionBy("even")
    # By Spark itself, before it asks the sink for anything.
    with pytest.raises(IllegalArgumentException, match="provided partitioning"):
        writer.save(str(table))
    assert not table.exists()
    save(frame, table, partitionBy="even")
    frame.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(frame.schema).parquet(str(tmp_path / "in"))
    query = stream.writeStream.format("semel_delta").partitionBy("even").trigger(availableNow=True)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException) as refused:
        query.start(str(table)).awaitTermination()
    assert sentence(refused.value).endswith(
        "is partitioned by even, not by nothing: give partitionBy as in the table"
    )
    query.option("partitionBy", "even").start(str(table)).awaitTermination()
    assert DeltaTable(str(table)).count() == 20


def test_the_app_id_is_the_checkpoints_own_or_the_users(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, table = tmp_path / "in", tmp_path / "table"
    spark.range(3).write.parquet(str(source))
    stream = spark.readStream.schema("id bigint").parquet(str(source))
    writer = stream.writeStream.format("semel_delta").trigger(availableNow=True)
    mine = writer.option("appId", "mine").option("checkpointLocation", str(tmp_path / "c"))
    mine.start(str(table)).awaitTermination()
    assert DeltaTable(str(table)).transaction_version(query_id("mine")) == 0


def test_a_wrong_option_fails_at_once_by_name(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AnalysisException) as refused:
        save(spark.range(1), tmp_path / "table", mergSchema="true")
    assert sentence(refused.value).endswith("did you mean mergeSchema?")
    with pytest.raises(AnalysisException) as refused:
        save(spark.range(1), tmp_path / "table", partitionBy="nowhere")
    assert sentence(refused.value) == "partitionBy: there is no column nowhere"
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("struct() x", "column x: Delta has no struct without fields"),
        ("array(named_struct('s', struct())) x", "column x.s: Delta has no struct without fields"),
        ("named_struct('a', 1, 'A', 2) x", "column x: two fields are called a: Delta ignores case"),
        ("map('k', named_struct('a', 1, 'A', 2)) x", "column x: two fields are called a"),
        ("'a' collate utf8_lcase x", "column x: Delta has no type string collate UTF8_LCASE"),
        ("1 `a.b`, named_struct('b', 2) a", "column 'a.b' and a field of a column have the same"),
        ("named_struct('b', 2) a, 1 `A.B`", "column 'a.b' and a field of a column have the same"),
    ],
)
def test_columns_that_a_table_cannot_have_are_refused_at_the_start(
    spark: SparkSession, tmp_path: Path, columns: str, said: str
) -> None:
    with pytest.raises(AnalysisException) as refused:
        save(spark.sql(f"select {columns}"), tmp_path / "table")
    assert said in sentence(refused.value)
    assert not (tmp_path / "table").exists()


def test_columns_that_look_like_these_are_written(spark: SparkSession, tmp_path: Path) -> None:
    text = "1 `a.b`, named_struct('c', 2) a, named_struct('x', named_struct('X', 3)) s, 'a' t"
    save(spark.sql(f"select {text}"), tmp_path / "table")
    (row,) = spark.read.format("semel_delta").load(str(tmp_path / "table")).collect()
    assert (row["a.b"], row.a.c, row.s.x.X, row.t) == (1, 2, 3, "a")


# --- without Spark --------------------------------------------------------------------------------


def test_options_are_texts_whose_names_have_no_case() -> None:
    options = parse_sink_options(
        {
            "PATH": "lake/t",
            "partitionby": "a, b",
            "MergeSchema": "TRUE",
            "failOnDataLoss": "false",
            "stream": "all",
            "checkpointlocation": "c",
        }
    )
    assert options.partition_by == ("a", "b")
    assert options.merge_schema
    assert not options.fail_on_data_loss
    assert (options.stream, options.checkpoint) == ("all", "c")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "the table is missing"),
        ({"path": "t", "mergeSchema": "yes please"}, "mergeSchema must be true or false"),
        ({"path": "t", "root": "r"}, "give option stream too"),
        ({"path": "t", "partition": "a"}, "did you mean partitionBy?"),
        ({"path": "t", "xyz": "a"}, "the options are path, partitionBy"),
        ({"path": "ftp://x/t"}, "is not a lake"),
        ({"path": "t", "partitionBy": "a,b,a"}, "names a column twice"),
        ({"path": "t", "stream": "a b"}, "option stream: 'a b'"),
        ({"path": "t", "stream": "a", "root": "ftp://x"}, "option root: ftp://x is not a root"),
    ],
)
def test_a_wrong_option_is_told_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(Exception, match=said.replace("?", r"\?")) as refused:
        parse_sink_options(given)
    assert isinstance(refused.value, OptionError) or "lake" in said

"""`format("mqtt")` in Spark: streams with a checkpoint, batches with filters, and what fails."""

import re
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import functions

from semel.pipeline.source_columns import COLUMNS
from semel.store.reading import NodeRecord
from semel.store.roots import open_root
from tests.pipeline.made import MILLISECOND, START, compact, trim_before, write_messages
from tests.pipeline.sources import Row, problem_of, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = "all"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
ZONE = "spark.sql.session.timeZone"


class Landing:
    """A query into lists: what came in each batch, by its id; one that is repeated replaces it."""

    def __init__(self, spark: "SparkSession", root: Path, checkpoint: Path) -> None:
        self.spark = spark
        self.root = root
        self.checkpoint = checkpoint
        self.batches: dict[int, list[Row]] = {}

    def start(self, *, once: bool = True, **options: str) -> Any:
        reader = self.spark.readStream.format("mqtt").option("root", str(self.root))
        frame = reader.options(**options).load()

        def take(batch: "DataFrame", number: int) -> None:
            self.batches[number] = [(row.node, row.seq) for row in batch.collect()]

        writer = frame.writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(availableNow=True) if once else writer).start()

    def run(self, **options: str) -> None:
        query = self.start(once=True, **options)
        assert query.awaitTermination(120)

    @property
    def rows(self) -> list[Row]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]


def test_a_stream_goes_on_from_its_checkpoint_exactly_once(
    spark: "SparkSession", tmp_path: Path
) -> None:
    root = tmp_path / "root"
    for first in (1, 101, 201):
        write_messages(root, STREAM, "n1", first, 100)
    write_messages(root, STREAM, "n2", 1, 30)
    landing = Landing(spark, root, tmp_path / "checkpoint")
    landing.run(maxRowsPerBatch="150", start="51")
    assert len(landing.batches) == 2
    assert sorted(landing.rows) == rows("n1", 51, 300)
    # Other options, merged files, more rows and a new node; and the start is no matter any more.
    compact(root, STREAM, "n1", 1, 300)
    write_messages(root, STREAM, "n1", 301, 100)
    write_messages(root, STREAM, "n0", 1, 10)
    landing.run(maxRowsPerBatch="60", start="earliest")
    assert [len(each) for each in landing.batches.values()][2:] == [60, 50]
    assert sorted(landing.rows) == rows("n0", 1, 10) + rows("n1", 51, 400)


def test_a_running_stream_takes_what_is_added_merged_and_new(
    spark: "SparkSession", tmp_path: Path
) -> None:
    root = tmp_path / "root"
    write_messages(root, STREAM, "n1", 1, 10)
    landing = Landing(spark, root, tmp_path / "checkpoint")
    query = landing.start(once=False, start="latest", stream=STREAM)
    try:
        query.processAllAvailable()
        for first in range(11, 41, 10):
            write_messages(root, STREAM, "n1", first, 10)
            write_messages(root, STREAM, "n2", first - 10, 10)
            query.processAllAvailable()
        compact(root, STREAM, "n1", 1, 40)
        write_messages(root, STREAM, "n1", 41, 1)
        query.processAllAvailable()
        assert sorted(landing.rows) == rows("n1", 11, 41) + rows("n2", 1, 30)
        progress = query.lastProgress
        assert progress["sources"][0]["endOffset"] == '{"n1": 41, "n1/began": 10, "n2": 30}'
    finally:
        query.stop()


def test_rows_deleted_before_a_stream_came_to_them_end_it_with_a_sentence(
    spark: "SparkSession", tmp_path: Path
) -> None:
    root = tmp_path / "root"
    for first in (1, 11, 21):
        write_messages(root, STREAM, "n1", first, 10)
    landing = Landing(spark, root, tmp_path / "checkpoint")
    landing.run()
    for first in (31, 41):
        write_messages(root, STREAM, "n1", first, 10)
    trim_before(root, STREAM, "n1", 45)
    said = problem_of(lambda: landing.run())
    assert said.startswith("rows 31 to 40 of stream all, node n1, which this query still needs")
    assert "failOnDataLoss=false" in said
    landing.run(failOnDataLoss="false")
    assert landing.rows == rows("n1", 1, 30) + rows("n1", 41, 50)


def test_windows_behind_the_watermark_are_emitted_without_more_data(
    spark: "SparkSession", tmp_path: Path
) -> None:
    root = tmp_path / "root"
    # A row per second: the windows of 10 s from 12:00:00 to 12:01:50 hold rows, the last is open.
    write_messages(root, STREAM, "n1", 1, 110, step=timedelta(seconds=1))
    counts = (
        spark.readStream.format("mqtt")
        .load(str(root))
        .withWatermark("received", "0 seconds")
        .groupBy(functions.window("received", "10 seconds"))
        .count()
    )
    emitted: list[tuple[datetime, int]] = []

    def take(batch: "DataFrame", _: int) -> None:
        emitted.extend(
            (row.start, row["count"]) for row in batch.selectExpr("window.start", "count").collect()
        )

    query = (
        counts.writeStream.outputMode("append")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(take)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert [count for _, count in sorted(emitted)] == [9, *[10] * 10]


def test_a_batch_read_is_right_with_filters_pushed_and_not(
    spark: "SparkSession", tmp_path: Path
) -> None:
    for first in (1, 101, 201):
        write_messages(tmp_path, STREAM, "n1", first, 100)
    write_messages(tmp_path, STREAM, "n2", 1, 50)
    record = NodeRecord(open_root(tmp_path), STREAM, "n1")
    expected = [row for table in record.tables(1, 300) for row in table.to_pylist()]

    def frame(**options: str) -> "DataFrame":
        return spark.read.format("mqtt").options(**options).load(str(tmp_path))

    assert dict(frame().dtypes) == COLUMNS
    found = frame(nodes="n1").orderBy("seq").toArrow()
    assert found.drop_columns("received").to_pylist() == [
        {name: value for name, value in row.items() if name != "received"} for row in expected
    ]
    assert frame(start="10", end="12", nodes="n1").count() == 3
    condition = (
        "topic like 'plant/line3%' and received >= '2026-03-01T12:00:00.050Z' and seq < 290 "
        "and user_name is not null and not (qos = 2) and length(payload) > 3"
    )
    before = {name: str(spark.conf.get(name)) for name in (PUSHDOWN, ZONE)}
    answers = []
    try:
        for pushed, zone in (("false", "UTC"), ("true", "UTC"), ("true", "Asia/Tokyo")):
            spark.conf.set(PUSHDOWN, pushed)
            spark.conf.set(ZONE, zone)
            chosen = frame().where(condition).select("node", "seq").orderBy("node", "seq")
            answers.append([tuple(row) for row in chosen.collect()])
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert answers[0] == answers[1] == answers[2]
    assert answers[0] == [
        ("n1", row["seq"])
        for row in expected
        if row["seq"] % 5 == 3
        and 50 <= row["seq"] < 290
        and row["user_name"] is not None
        and row["qos"] != 2
    ]


@pytest.mark.parametrize("pushed", ["false", "true"])
def test_the_filter_of_one_query_is_not_that_of_the_next(
    spark: "SparkSession", tmp_path: Path, pushed: str
) -> None:
    """Spark 4.3 plans a DataFrame once, with the first filters that a Python source takes."""
    write_messages(tmp_path, STREAM, "n1", 1, 100)
    before = str(spark.conf.get(PUSHDOWN))
    spark.conf.set(PUSHDOWN, pushed)
    try:
        frame = spark.read.format("mqtt").load(str(tmp_path))
        counts = [frame.where(each).count() for each in ("seq > 90", "true", "seq < 5", "true")]
        assert counts == [10, 100, 4, 100]
        assert frame.where("seq > 90").union(frame.where("seq <= 90")).count() == 100
        frame.createOrReplaceTempView("counted")
        query = (
            "select (select count(*) from counted where seq > 90), (select count(*) from counted)"
        )
        assert tuple(spark.sql(query).collect()[0]) == (10, 100)
    finally:
        spark.conf.set(PUSHDOWN, before)


def batch_sizes(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows], "bytes": [batch.nbytes]})


def test_large_messages_reach_python_in_batches_that_are_bounded_by_their_bytes(
    spark: "SparkSession", tmp_path: Path
) -> None:
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    mebibyte = bytes(1024 * 1024)
    for first in range(1, 161, 32):
        write_messages(tmp_path, "large", "n1", first, 32, payload=mebibyte)
    write_messages(tmp_path, "small", "n1", 1, 10_000)
    reader = spark.read.format("mqtt").option("root", str(tmp_path))

    def seen(stream: str) -> list[Any]:
        frame = reader.option("stream", stream).option("minPartitions", "1").load()
        return frame.mapInArrow(batch_sizes, "rows bigint, bytes bigint").collect()

    large = seen("large")
    assert sum(each.rows for each in large) == 160
    assert max(each.bytes for each in large) <= 96 * 1024 * 1024
    # The number of rows bounds the batches of small ones.
    assert max(each.rows for each in seen("small")) == 8_192


def test_a_schema_of_some_columns_reads_these(spark: "SparkSession", tmp_path: Path) -> None:
    write_messages(tmp_path, STREAM, "n1", 1, 20)
    reader = spark.read.format("mqtt").option("root", str(tmp_path))
    found = reader.schema("topic STRING, seq BIGINT").load()
    assert found.where("seq = 7").collect()[0].topic == "plant/line2/temperature"
    assert found.columns == ["topic", "seq"]
    said = problem_of(lambda: reader.schema("topic STRING, number BIGINT").load().count())
    assert said.startswith("the record has no column number")


def test_option_columns_reads_these_and_no_others(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_messages(tmp_path, STREAM, "n1", 1, 20)
    for kind in ("read", "readStream"):
        reader = getattr(spark, kind).format("mqtt").option("root", str(tmp_path))
        frame = reader.option("columns", "topic,seq").load()
        assert frame.columns == ["topic", "seq"]
        frame.explain()
        said = capsys.readouterr().out
        assert "topic#" in said
        assert "payload#" not in said
        wrong = reader.option("columns", "topic,sequence").load
        assert problem_of(wrong).startswith("option columns: the record has no column sequence")
    frame = spark.read.format("mqtt").option("columns", "topic,seq").load(str(tmp_path))
    assert frame.where("seq = 7").collect()[0].topic == "plant/line2/temperature"


def test_a_wrong_option_fails_when_the_frame_is_made(spark: "SparkSession", tmp_path: Path) -> None:
    write_messages(tmp_path, STREAM, "n1", 1, 20)
    for kind in ("read", "readStream"):
        reader = getattr(spark, kind).format("mqtt").option("root", str(tmp_path))
        assert reader.load().schema == reader.option("stream", STREAM).load().schema
        wrong = reader.option("maxRows", "5")
        assert problem_of(wrong.load) == "mqtt has no option maxrows: did you mean maxRowsPerBatch?"
        wrong = getattr(spark, kind).format("mqtt").option("stream", STREAM)
        assert problem_of(wrong.load).startswith("option root is missing")
    stream = spark.readStream.format("mqtt").option("root", str(tmp_path)).option("end", "5").load()
    start = stream.writeStream.format("noop").trigger(availableNow=True).start
    assert problem_of(lambda: start().awaitTermination(60)).startswith("option end is for read")


@pytest.fixture
def table(spark: "SparkSession") -> Iterator[str]:
    """The name of a table, which is dropped afterwards."""
    yield "mqtt_table"
    spark.sql("DROP TABLE IF EXISTS mqtt_table")


def test_a_table_made_by_sql_reads_with_its_options_and_with_those_of_a_query(
    spark: "SparkSession", tmp_path: Path, table: str
) -> None:
    root = tmp_path / "root"
    write_messages(root, STREAM, "n1", 1, 40)
    write_messages(root, "other", "n1", 1, 5)
    spark.sql(
        f"CREATE TABLE {table} USING mqtt OPTIONS (root '{root}', Stream 'all', end '30')"
        " COMMENT 'of hall 7' TBLPROPERTIES ('team' = 'seven')"
    )
    assert dict(spark.table(table).dtypes) == COLUMNS
    (row,) = spark.sql(f"SELECT count(*) AS rows, max(seq) AS last FROM {table}").collect()
    assert tuple(row) == (30, 30)
    assert spark.sql(f"SELECT topic FROM {table} WHERE seq < 6").count() == 5
    assert spark.sql(f"SELECT * FROM {table} WITH ('end' = '7')").count() == 7
    said = problem_of(lambda: spark.sql(f"SELECT * FROM {table} WITH ('ent' = '7')").count())
    assert said == "mqtt has no option ent: did you mean end?"
    # The options are in the schema, and go no further.
    copy = tmp_path / "copy"
    spark.table(table).write.format("semel_delta").mode("append").save(str(copy))
    assert str(root) not in (copy / "_delta_log" / f"{0:020}.json").read_text()
    spark.sql(f"DROP TABLE {table}")
    wrong = f"CREATE TABLE {table} USING mqtt OPTIONS (root '{root}', straem 'all')"
    said = problem_of(lambda: spark.sql(wrong))
    assert said == "mqtt has no option straem: did you mean stream?"


def test_a_table_at_a_location_is_read_as_a_batch_and_as_a_stream(
    spark: "SparkSession", tmp_path: Path, table: str
) -> None:
    root = tmp_path / "the root"
    write_messages(root, STREAM, "n1", 1, 40)
    spark.sql(f"CREATE TABLE {table} USING mqtt OPTIONS (columns 'node,seq') LOCATION '{root}'")
    assert spark.table(table).columns == ["node", "seq"]
    assert spark.table(table).count() == 40
    seen: list[Row] = []

    def take(batch: "DataFrame", _: int) -> None:
        seen.extend((row.node, row.seq) for row in batch.collect())

    stream = spark.readStream.option("maxRowsPerBatch", "25").table(table)
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.foreachBatch(take).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert sorted(seen) == rows("n1", 1, 40)
    assert [each["numInputRows"] for each in query.recentProgress] == [25, 15]
    spark.sql(f"DROP TABLE {table}")
    spark.sql(f"CREATE TABLE {table} (seq BIGINT) USING mqtt OPTIONS (root '{root}')")
    said = problem_of(lambda: spark.table(table).count())
    assert "CREATE TABLE without a list of columns" in said


def test_a_password_is_in_no_plan_and_no_error(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"url": "mqtt://127.0.0.1:1", "topics": "a/#", "password": "hidden-1"}
    reader = spark.readStream.format("mqtt").option("root", str(tmp_path)).options(**given)
    frame = reader.option("username", "ann").load()
    frame.explain(True)
    said = capsys.readouterr().out
    assert "mqtt" in said
    assert "hidden-1" not in said
    with pytest.raises(PySparkException) as caught:
        reader.option("qos", "9").load()
    assert "qos" in str(caught.value)
    assert "hidden-1" not in str(caught.value)


def test_the_examples_of_the_page_on_spark_run(spark: "SparkSession", tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "data" / "spark.md"
    examples = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert len(examples) == 4
    noon = 20_000
    # Row 20,000 is received at 12:00:00.
    write_messages(
        tmp_path / "data" / "streams", STREAM, "n1", 1, 30_000, start=START - noon * MILLISECOND
    )
    names: dict[str, Any] = {}
    for example in examples:
        # A session that is there has a working folder of its own.
        exec(example.replace('"data/', f'"{tmp_path}/data/'), names)
    assert names["spark"] is spark
    assert names["query"].exception() is None
    assert names["morning"].count() == noon - 1
    assert names["topics"].columns == ["topic", "received"]
    landed = DeltaTable(tmp_path / "data" / "lake" / "texts").to_pyarrow_table()
    assert sorted(landed.column("seq").to_pylist()) == list(range(1, 30_001))

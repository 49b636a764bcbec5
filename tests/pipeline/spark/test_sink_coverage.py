"""Queries that leave messages out or make many rows of one stay exactly once, with a real Spark."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from semel.pipeline.app_transactions import positions_in
from tests.pipeline.made import write_messages
from tests.pipeline.sources import problem_of

STREAM = "all"

# What a query may do with its messages, and the seqs of the rows that come out for each message.
QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], Callable[[int], list[int]]]] = {
    "filter": (
        lambda frame: frame.where("seq % 3 = 0").selectExpr("node", "seq", "topic"),
        lambda seq: [seq] if seq % 3 == 0 else [],
    ),
    "explode": (
        lambda frame: frame.selectExpr(
            "node", "seq", "posexplode(array_repeat(topic, int(seq % 3))) as (part, topic)"
        ),
        lambda seq: [seq] * (seq % 3),
    ),
}


class Query:
    """A query from a record into a table, run until it has read all."""

    def __init__(self, spark: SparkSession, folder: Path, kind: str) -> None:
        self.spark = spark
        self.root = folder / "root"
        self.table = folder / "table"
        self.checkpoint = folder / "checkpoint"
        self.change, self.expect = QUERIES[kind]

    def run(self, *, coverage: str = "offsets", root: bool = True, **source: str) -> None:
        reader = self.spark.readStream.format("mqtt").option("root", str(self.root))
        frame = self.change(reader.options(**source).load())
        options = {"stream": STREAM, "coverage": coverage}
        if root:
            options["root"] = str(self.root)
        query = (
            frame.writeStream.format("semel_delta")
            .options(**options)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(str(self.table))
        )
        assert query.awaitTermination(120)

    def rows(self) -> list[tuple[str, int]]:
        table = DeltaTable(str(self.table)).to_pyarrow_table(columns=["node", "seq"])
        return sorted((row["node"], row["seq"]) for row in table.to_pylist())

    def expected(self, **last: int) -> list[tuple[str, int]]:
        return sorted(
            (node, row)
            for node, end in last.items()
            for seq in range(1, end + 1)
            for row in self.expect(seq)
        )

    def positions(self) -> dict[str, int]:
        return positions_in(DeltaTable(str(self.table)), STREAM, ("n1", "n2"))


def test_each_message_lands_once_whatever_becomes_of_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    # It makes none, one and two rows of a message.
    query = Query(spark, tmp_path, "explode")
    write_messages(query.root, STREAM, "n1", 1, 100)
    query.run(maxRowsPerBatch="40")
    assert query.rows() == query.expected(n1=100)
    assert query.positions() == {"n1": 100}
    # More rows, and a node that is new.
    write_messages(query.root, STREAM, "n1", 101, 50)
    write_messages(query.root, STREAM, "n2", 1, 10)
    query.run()
    assert query.rows() == query.expected(n1=150, n2=10)
    # A lost checkpoint: everything is read again, in other batches, and only what is new lands.
    shutil.rmtree(query.checkpoint)
    write_messages(query.root, STREAM, "n1", 151, 30)
    query.run(maxRowsPerBatch="70")
    assert query.rows() == query.expected(n1=180, n2=10)
    assert query.positions() == {"n1": 180, "n2": 10}
    # The last batch once more, as after a crash between the commit and Spark's note of it.
    last = max(int(each.name) for each in (query.checkpoint / "commits").glob("[0-9]*"))
    for each in (query.checkpoint / "commits").glob(f"*{last}*"):
        each.unlink()
    query.run()
    assert query.rows() == query.expected(n1=180, n2=10)


def test_a_batch_without_rows_moves_the_table_on(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, "filter")
    write_messages(query.root, STREAM, "n1", 1, 2)
    query.run()
    assert query.rows() == []
    assert query.positions() == {"n1": 2}
    write_messages(query.root, STREAM, "n1", 3, 1)
    query.run()
    assert query.rows() == [("n1", 3)]


def test_a_query_that_would_leave_a_gap_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, "filter")
    write_messages(query.root, STREAM, "n1", 1, 30)
    query.run()
    # A new query on the same table that begins after rows which the table lacks.
    shutil.rmtree(query.checkpoint)
    write_messages(query.root, STREAM, "n1", 31, 30)
    said = problem_of(lambda: query.run(start="41"))
    assert "lacks rows 31 to 40 of stream all, node n1" in said
    assert query.rows() == query.expected(n1=30)
    # The control: one that begins where the table is, or before.
    shutil.rmtree(query.checkpoint)
    query.run(start="31")
    assert query.rows() == query.expected(n1=60)


def test_a_new_table_may_begin_anywhere_without_a_root(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, "filter")
    write_messages(query.root, STREAM, "n1", 1, 30)
    said = problem_of(lambda: query.run(start="11"))
    assert "lacks rows 1 to 10" in said
    shutil.rmtree(query.checkpoint)
    query.run(start="11", root=False)
    assert query.rows() == [("n1", seq) for seq in range(12, 31, 3)]


def test_the_rows_themselves_still_count_unless_told_otherwise(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, "filter")
    write_messages(query.root, STREAM, "n1", 1, 30)
    said = problem_of(lambda: query.run(coverage="rows"))
    assert "rows 4 to 5 are missing" in said
    assert "needs option coverage=offsets" in said


def test_rows_of_messages_that_the_query_has_not_read_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = Query(spark, tmp_path, "filter")
    query.change = lambda frame: frame.selectExpr("node", "seq + 1000 as seq")
    write_messages(query.root, STREAM, "n1", 1, 3)
    said = problem_of(query.run)
    assert "brings rows 1001 to 1003, but its query has read rows 1 to 3" in said


def test_other_sources_and_batch_writes_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate").load().selectExpr("'n' as node", "value as seq")
    writer = rate.writeStream.format("semel_delta").option("stream", STREAM)
    writer = writer.option("coverage", "offsets").option("checkpointLocation", str(tmp_path / "c"))

    def run() -> None:
        writer.trigger(availableNow=True).start(str(tmp_path / "t")).awaitTermination(120)

    assert "the rows of the query must come from it alone" in problem_of(run)
    frame = spark.sql("select 'n' as node, 1L as seq").write.format("semel_delta")
    batch = frame.option("stream", STREAM).option("coverage", "offsets").mode("append")
    assert "is for streams" in problem_of(lambda: batch.save(str(tmp_path / "b")))


def test_the_offsets_of_a_query_say_where_it_began(spark: SparkSession, tmp_path: Path) -> None:
    query = Query(spark, tmp_path, "filter")
    write_messages(query.root, STREAM, "n1", 1, 30)
    query.run(start="11", root=False)
    stored = (query.checkpoint / "offsets" / "0").read_text().splitlines()[-1]
    assert json.loads(stored) == {"n1": 30, "n1/began": 10}

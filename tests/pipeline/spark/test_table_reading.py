"""`spark.read` and `readStream` with `format("semel_delta")`, of tables of other writers."""

import json
import os
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from semel.pipeline import read_table, register_tables
from semel.pipeline.errors import DataLoss, OptionError, TableError
from semel.pipeline.table_options import TableOptions, parse_table_options
from semel.pipeline.table_reading import (
    appended_files,
    live_files,
    open_version,
    partition_value,
    partitions_of,
)
from tests.pipeline.sources import problem_of
from tests.pipeline.spark.test_sink import EVERYTHING, save


def read(spark: SparkSession, path: Path, **options: str) -> DataFrame:
    return spark.read.format("semel_delta").options(**options).load(str(path))


def append(path: Path, *ids: int, **more: Any) -> None:
    write_deltalake(path, pa.table({"id": pa.array(ids, pa.int64())}), mode="append", **more)


def ids(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.collect())


# --- batches --------------------------------------------------------------------------------------


def test_every_type_is_read_as_it_was_written(spark: SparkSession, tmp_path: Path) -> None:
    written = spark.sql(EVERYTHING)
    save(written, tmp_path / "table")
    found = read(spark, tmp_path / "table")
    assert found.schema == written.schema or [
        (field.name, field.dataType.simpleString()) for field in found.schema
    ] == [(field.name, field.dataType.simpleString()) for field in written.schema]
    assert found.collect() == written.collect()


def test_partitions_new_columns_and_null_are_complete(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    day = date(2026, 3, 1)
    write_deltalake(
        table,
        pa.table({"id": [1, 2, 3], "day": [day, None, day], "name": ["a b", "a/b", None]}),
        partition_by=["day", "name"],
    )
    write_deltalake(
        table,
        pa.table({"id": [4], "day": [day], "name": ["ä=%"], "new": [1.5]}),
        partition_by=["day", "name"],
        mode="append",
        schema_mode="merge",
    )
    found = read(spark, table)
    assert sorted(tuple(row) for row in found.select("id", "name", "new").collect()) == [
        (1, "a b", None),
        (2, "a/b", None),
        (3, None, None),
        (4, "ä=%", 1.5),
    ]
    assert [row.id for row in found.where("day is null").collect()] == [2]
    assert ids(found.where("day = DATE'2026-03-01' and id > 1")) == [3, 4]
    assert found.agg({"id": "sum"}).collect()[0][0] == 10


def test_versions_and_times_select_what_the_table_was(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    append(table, 1)
    append(table, 2)
    DeltaTable(table).delete("id = 1")
    assert ids(read(spark, table)) == [2]
    assert ids(read(spark, table, version="1")) == [1, 2]
    # The times of versions are those of their log entries.
    for version in range(3):
        entry = table / "_delta_log" / f"{version:020}.json"
        moment = datetime(2026, 3, 1, 12, version, tzinfo=UTC).timestamp()
        lines = [json.loads(line) for line in entry.read_text().splitlines()]
        for line in lines:
            if "commitInfo" in line:
                line["commitInfo"]["timestamp"] = int(moment * 1000)
        entry.write_text("\n".join(map(json.dumps, lines)))
        os.utime(entry, (moment, moment))
    assert ids(read(spark, table, timestamp="2026-03-01T12:01:30Z")) == [1, 2]
    assert ids(read(spark, table, timestamp="2026-03-01 12:00:30")) == [1]
    assert "the last one is 2" in problem_of(lambda: read(spark, table, version="9").collect())


def test_versions_and_times_before_the_oldest_version_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    before = datetime.now(UTC)
    for number in range(6):
        append(table, number)

    def opened(**options: Any) -> int:
        return open_version(TableOptions(str(table), **options)).version()

    with pytest.raises(OptionError, match="oldest one that can be read, version 0, is of 20"):
        opened(timestamp=before)
    assert opened(version=0) == 0
    assert opened(timestamp=datetime.now(UTC)) == 5
    # The log is cleaned up to a checkpoint.
    DeltaTable(table).create_checkpoint()
    append(table, 6)
    log = table / "_delta_log"
    for number in range(5):
        (log / f"{number:020}.json").unlink()
        with pytest.raises(OptionError, match="the oldest one that can be read is 5"):
            opened(version=2)
        with pytest.raises(OptionError, match="oldest one that can be read, version 5, is of 20"):
            opened(timestamp=before)
    assert opened(version=5) == 5
    assert opened(timestamp=datetime.now(UTC)) == 6
    with pytest.raises(OptionError, match="version 2 was cleaned up with its log entries"):
        read_table(spark, str(table), version=2)
    assert ids(read_table(spark, str(table), version=5)) == list(range(6))


def test_a_column_with_the_path_of_a_field_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """Of other writers, and of earlier versions of semel."""
    rows = pa.table({"a.b": [1, 2], "a": [{"b": 10}, {"b": 20}]})
    write_deltalake(tmp_path / "t", rows)
    for frame in (read(spark, tmp_path / "t"), read_table(spark, str(tmp_path / "t"))):
        assert sorted((row["a.b"], row.a.b) for row in frame.collect()) == [(1, 10), (2, 20)]
    filtered = read(spark, tmp_path / "t", filters='[["a.b", ">", 1]]')
    assert [row.a.b for row in filtered.collect()] == [20]


def test_a_schema_of_fewer_columns_reads_fewer(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": [1], "name": ["a"]}))
    reader = spark.read.format("semel_delta")
    assert [tuple(row) for row in reader.schema("name STRING").load(str(table)).collect()] == [
        ("a",)
    ]
    wrong = reader.schema("name INT").load(str(table))
    assert "column name is string in the table, not int" in problem_of(wrong.collect)
    absent = reader.schema("other INT").load(str(table))
    assert "the table has no column other" in problem_of(absent.collect)


def test_what_cannot_be_read_is_reported_in_a_sentence(spark: SparkSession, tmp_path: Path) -> None:
    assert "there is no table at" in problem_of(lambda: read(spark, tmp_path / "none"))
    table = tmp_path / "table"
    append(table, 1)
    (file,) = table.glob("*.parquet")
    file.write_bytes(b"PAR1 damaged PAR1")
    assert "cannot be read" in problem_of(lambda: read(spark, table).collect())
    said = problem_of(lambda: read(spark, table, versoin="1"))
    assert "has no option versoin for reading: did you mean version?" in said


def test_files_are_gathered_into_partitions(tmp_path: Path) -> None:
    for number in range(5):
        append(tmp_path / "table", number)
    options = TableOptions(str(tmp_path / "table"))
    files = live_files(open_version(options))
    assert len(files) == 5
    (partition,) = partitions_of(files)
    assert len(partition.files) == 5  # type: ignore[attr-defined]
    large = [type(each)(each.path, 50 * 1024 * 1024, {}) for each in files]
    assert len(partitions_of(large)) == 5
    assert partitions_of([]) == []


# --- by Spark's own reader ------------------------------------------------------------------------


def test_a_table_is_read_by_sparks_own_reader(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    day = date(2026, 3, 1)
    write_deltalake(
        table,
        pa.table({"id": [1, 2, 3], "day": [day, None, day], "name": ["a b", "7", None]}),
        partition_by=["day", "name"],
    )
    write_deltalake(
        table,
        pa.table({"id": [4], "day": [day], "name": ["c"], "new": [1.5]}),
        partition_by=["day", "name"],
        mode="append",
        schema_mode="merge",
    )
    found = read_table(spark, str(table))
    assert "parquet" in found._jdf.queryExecution().optimizedPlan().toString().lower()
    assert sorted(tuple(row) for row in found.select("id", "day", "name", "new").collect()) == [
        (1, day, "a b", None),
        (2, None, "7", None),
        (3, day, None, None),
        (4, day, "c", 1.5),
    ]
    assert ids(found.where("day is null")) == [2]
    # Files that a version has no longer are not read.
    DeltaTable(table).delete("id = 1")
    assert ids(read_table(spark, str(table))) == [2, 3, 4]
    assert ids(read_table(spark, str(table), version=0)) == [1, 2, 3]
    assert ids(read_table(spark, str(table), timestamp=datetime.now(UTC))) == [2, 3, 4]


@pytest.mark.parametrize("name", ["a*b", "a/b"])
def test_what_spark_could_not_find_is_read_all_the_same(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    table = tmp_path / "table"
    rows = pa.table({"id": [1, 2], "name": [name, "plain"]})
    write_deltalake(table, rows, partition_by=["name"])
    found = read_table(spark, str(table))
    assert sorted(tuple(row) for row in found.select("id", "name").collect()) == [
        (1, name),
        (2, "plain"),
    ]


def test_a_table_without_rows_has_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "table", 1)
    DeltaTable(tmp_path / "table").delete()
    found = read_table(spark, str(tmp_path / "table"))
    assert (found.columns, found.count()) == (["id"], 0)
    with pytest.raises(TableError, match="there is no table at"):
        read_table(spark, str(tmp_path / "none"))


def test_all_tables_of_a_lake_are_views(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("one", "two words"):
        append(tmp_path / name, len(name))
    assert register_tables(spark, str(tmp_path)) == ["one", "two words"]
    assert spark.sql("select id from one").collect()[0][0] == 3
    assert spark.sql("select id from `two words`").collect()[0][0] == 9


# --- streams --------------------------------------------------------------------------------------


class Follower:
    """A query from one table into another, run until it has read all."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.source = folder / "source"
        self.target = folder / "target"
        self.checkpoint = folder / "checkpoint"

    def run(self, **options: str) -> list[int]:
        frame = self.spark.readStream.format("semel_delta").options(**options)
        query = (
            frame.load(str(self.source))
            .writeStream.format("semel_delta")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(str(self.target))
        )
        assert query.awaitTermination(120)
        return self.rows()

    def rows(self) -> list[int]:
        found: list[int] = DeltaTable(self.target).to_pyarrow_table().column("id").to_pylist()
        return sorted(found)


def test_a_stream_reads_the_table_and_then_what_is_appended_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    follower = Follower(spark, tmp_path)
    for number in range(3):
        append(follower.source, number)
    assert follower.run() == [0, 1, 2]
    append(follower.source, 3)
    append(follower.source, 4)
    # A compaction rewrites rows, and adds none.
    DeltaTable(follower.source).optimize.compact()
    append(follower.source, 5)
    assert follower.run(maxVersionsPerBatch="1") == list(range(6))
    # The last batch once more, as after a crash between the commit and Spark's note of it.
    last = max(int(each.name) for each in (follower.checkpoint / "commits").glob("[0-9]*"))
    for each in (follower.checkpoint / "commits").glob(f"*{last}*"):
        each.unlink()
    assert follower.run() == list(range(6))


def test_a_stream_may_begin_with_a_version(spark: SparkSession, tmp_path: Path) -> None:
    follower = Follower(spark, tmp_path)
    for number in range(3):
        append(follower.source, number)
    assert follower.run(startingVersion="1") == [1, 2]
    shutil.rmtree(follower.checkpoint)
    shutil.rmtree(follower.target)
    reader = spark.readStream.format("semel_delta").option("startingVersion", "latest")
    frame = reader.load(str(follower.source))
    query = (
        frame.writeStream.format("semel_delta")
        .option("checkpointLocation", str(follower.checkpoint))
        .start(str(follower.target))
    )
    try:
        query.processAllAvailable()
        append(follower.source, 7)
        query.processAllAvailable()
    finally:
        query.stop()
    assert follower.rows() == [7]
    said = problem_of(lambda: Follower(spark, tmp_path / "x").run())
    assert "there is no table at" in said


def test_versions_that_change_rows_are_refused_or_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    follower = Follower(spark, tmp_path)
    append(follower.source, 1, 2)
    assert follower.run() == [1, 2]
    DeltaTable(follower.source).delete("id = 1")
    append(follower.source, 3)
    said = problem_of(follower.run)
    assert "version 1 (DELETE) deletes or changes rows" in said
    assert follower.run(skipChangeCommits="true") == [1, 2, 3]


def test_another_table_in_its_place_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    follower = Follower(spark, tmp_path)
    append(follower.source, 1)
    assert follower.run() == [1]
    shutil.rmtree(follower.source)
    for number in (10, 11, 12):
        append(follower.source, number)
    assert "the table was deleted and created again" in problem_of(follower.run)
    assert follower.rows() == [1]
    # An offset of an earlier release has no id.
    offsets = follower.checkpoint / "offsets"
    (offsets / ".0.crc").unlink()
    *lines, last = (offsets / "0").read_text().splitlines()
    assert set(json.loads(last)) == {"version", "table"}
    (offsets / "0").write_text("\n".join([*lines, '{"version": 0}']))
    assert follower.run() == [1, 11, 12]


def test_another_table_with_as_many_versions_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    follower = Follower(spark, tmp_path)
    append(follower.source, 1)
    assert follower.run() == [1]
    assert follower.run() == [1]
    shutil.rmtree(follower.source)
    append(follower.source, 10)
    assert "the table was deleted and created again" in problem_of(follower.run)
    assert follower.rows() == [1]


class RunningStream:
    """A query that runs while its table changes; it prints the names of columns with each row."""

    def __init__(self, spark: SparkSession, folder: Path, schema: str | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        reader = spark.readStream.format("semel_delta").option("skipChangeCommits", "true")
        frame = (reader.schema(schema) if schema else reader).load(str(folder / "source"))

        def collect(batch: DataFrame, _number: int) -> None:
            self.rows += [row.asDict() for row in batch.collect()]

        self.query = (
            frame.writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start()
        )
        self.query.processAllAvailable()

    def problem(self) -> str:
        return problem_of(self.query.processAllAvailable)


def test_a_column_that_is_added_while_a_stream_runs_ends_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    append(source, 1)
    running = RunningStream(spark, tmp_path)
    append(source, 2)
    new = pa.table({"id": pa.array([3], pa.int64()), "extra": ["x"], "more": [1]})
    write_deltalake(source, new, mode="append", schema_mode="merge")
    append(source, 4, schema_mode="merge")
    said = running.problem()
    assert "its schema changed in version 2, while this query ran" in said
    assert "column extra was added; column more was added. Load the table again" in said
    again = RunningStream(spark, tmp_path)
    again.query.stop()
    found = [(row["id"], row.get("extra")) for row in running.rows + again.rows]
    assert sorted(found) == [(1, None), (2, None), (3, "x"), (4, None)]


def test_a_schema_of_some_columns_goes_on_while_they_stay(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    append(source, 1)
    running = RunningStream(spark, tmp_path, "id BIGINT")
    new = pa.table({"id": pa.array([2], pa.int64()), "extra": ["x"]})
    write_deltalake(source, new, mode="append", schema_mode="merge")
    running.query.processAllAvailable()
    assert running.rows == [{"id": 1}, {"id": 2}]
    write_deltalake(source, pa.table({"id": ["3"]}), mode="overwrite", schema_mode="overwrite")
    assert "changed in version 2, while this query ran: column id is string" in running.problem()


def test_nullability_and_metadata_of_a_schema_may_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    kind = pa.list_(pa.field("element", pa.int64(), nullable=False))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("list", kind)])
    write_deltalake(source, pa.table({"id": [1], "list": [[1]]}, schema=schema))
    running = RunningStream(spark, tmp_path)
    # As another writer does it.
    entry = source / "_delta_log" / f"{0:020}.json"
    (line,) = (each for each in entry.read_text().splitlines() if "metaData" in each)
    (source / "_delta_log" / f"{1:020}.json").write_text(
        line.replace('\\"nullable\\":false', '\\"nullable\\":true')
        .replace('\\"containsNull\\":false', '\\"containsNull\\":true')
        .replace('\\"metadata\\":{}', '\\"metadata\\":{\\"comment\\":\\"x\\"}')
    )
    assert "comment" in (source / "_delta_log" / f"{1:020}.json").read_text()
    write_deltalake(
        source, pa.table({"id": [None], "list": [[None]]}, schema=_free(schema)), mode="append"
    )
    running.query.processAllAvailable()
    running.query.stop()
    assert running.rows == [{"id": 1, "list": [1]}, {"id": None, "list": [None]}]


def _free(schema: pa.Schema) -> pa.Schema:
    return pa.schema([("id", pa.int64()), ("list", pa.list_(pa.int64()))])


def test_rows_of_before_a_type_changed_are_not_cast(spark: SparkSession, tmp_path: Path) -> None:
    follower = Follower(spark, tmp_path)
    append(follower.source, 1)
    append(follower.source, 2)
    text = pa.table({"id": ["3"]})
    write_deltalake(follower.source, text, mode="overwrite", schema_mode="overwrite")
    said = problem_of(lambda: follower.run(startingVersion="1", skipChangeCommits="true"))
    assert "column id is int64 there and string in the table, whose schema was changed" in said


def test_a_partition_by_any_number_is_read_as_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    follower = Follower(spark, tmp_path)
    for at, value in enumerate((Decimal("1.50"), None)):
        rows = {
            "id": pa.array([at], pa.int64()),
            "size": pa.array([value], pa.decimal128(4, 2)),
            "ratio": pa.array([0.5 + at], pa.float64()),
        }
        write_deltalake(
            follower.source, pa.table(rows), mode="append", partition_by=["size", "ratio"]
        )
    assert follower.run(startingVersion="0") == [0, 1]
    found = DeltaTable(follower.target).to_pyarrow_table().sort_by("id").to_pylist()
    assert [(row["size"], row["ratio"]) for row in found] == [(Decimal("1.50"), 0.5), (None, 1.5)]


def test_a_log_that_was_cleaned_up_is_a_loss(tmp_path: Path) -> None:
    for number in range(3):
        append(tmp_path / "t", number)
    options = TableOptions(str(tmp_path / "t"))
    table = open_version(options)
    assert len(appended_files(options, table, 1, 2)) == 2
    DeltaTable(tmp_path / "t").create_checkpoint()
    (tmp_path / "t" / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(DataLoss, match="log entry of version 1, which this query still needs"):
        appended_files(options, table, 1, 2)


# --- values and options ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        (None, "string", None),
        ("", "string", None),
        ("a", "string", "a"),
        ("-7", "long", -7),
        ("true", "boolean", True),
        ("-1.5E10", "double", -1.5e10),
        ("1.50", "decimal", Decimal("1.50")),
        ("2026-03-01", "date", date(2026, 3, 1)),
        ("2026-03-01 12:00:00.5", "timestamp", datetime(2026, 3, 1, 12, 0, 0, 500_000, UTC)),
        ("2026-03-01T12:00:00Z", "timestamp", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01 12:00:00", "timestamp_ntz", datetime(2026, 3, 1, 12)),
    ],
)
def test_values_of_partitions_have_their_type(text: str | None, kind: str, value: Any) -> None:
    assert partition_value(text, kind) == value


def test_a_partition_of_another_type_is_refused() -> None:
    with pytest.raises(TableError, match="partition columns of type binary"):
        partition_value("a", "binary")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "the table is missing"),
        ({"path": "t", "version": "-1"}, "option version must be a whole number"),
        ({"path": "t", "version": "1", "timestamp": "2026-03-01"}, "not both"),
        ({"path": "t", "timestamp": "noon"}, "must be a time such as"),
        ({"path": "t", "maxVersionsPerBatch": "0"}, "at least 1"),
        ({"path": "t", "skipChangeCommits": "perhaps"}, "must be true or false"),
    ],
)
def test_a_wrong_option_is_reported_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse_table_options(given)


def test_options_of_streams_and_batches_are_told_apart() -> None:
    for name, value in (
        ("startingVersion", "latest"),
        ("startingVersion", "1"),
        ("skipChangeCommits", "true"),
        ("maxVersionsPerBatch", "1"),
    ):
        options = parse_table_options({"PATH": "t", name: value})
        options.check_stream()
        with pytest.raises(OptionError, match=f"option {name} is for readStream"):
            options.check_batch()
    for name, value in (("version", "1"), ("timestamp", "2026-03-01")):
        options = parse_table_options({"path": "t", name: value})
        options.check_batch()
        with pytest.raises(OptionError, match=f"option {name} is for read:"):
            options.check_stream()

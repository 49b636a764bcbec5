"""`read_table` and `register_tables`: what Spark would read wrongly is read another way."""

import logging
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from semel.pipeline import read_table, register_tables
from semel.pipeline.errors import TableError
from semel.pipeline.native_table import is_native
from semel.pipeline.table_reading import TableFile
from tests.pipeline.mapped_columns import write_mapped_table

NULL = "__HIVE_DEFAULT_PARTITION__"


def is_parquet_of_spark(frame: DataFrame) -> bool:
    return "parquet" in frame._jdf.queryExecution().optimizedPlan().toString().lower()


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("p=a%20b/x.parquet", "a b", True),
        ("p=a b/x.parquet", "a b", True),
        ("p=100%25/x.parquet", "100%", True),
        ("p=100%/x.parquet", "100%", True),
        ("p=ü/x.parquet", "ü", True),
        # Spark decodes each of the two bytes as a character.
        ("p=%C3%BC/x.parquet", "ü", False),
        ("p=%FC/x.parquet", "ü", True),
        (f"p={NULL}/x.parquet", None, True),
        (f"p={NULL}/x.parquet", NULL, False),
        ("p=2026-03-01/x.parquet", date(2026, 3, 1), True),
        ("p=true/x.parquet", True, True),
        ("p=1.5/x.parquet", 1.5, False),
        ("x.parquet", "a", False),
        # Spark skips these.
        ("p=a/_x.parquet", "a", False),
        ("p=a/.x.parquet", "a", False),
    ],
)
def test_a_file_is_read_by_spark_if_spark_finds_its_rows(
    path: str, value: Any, expected: bool
) -> None:
    assert is_native(TableFile(path, 1, {"p": value})) is expected


@pytest.mark.parametrize(
    ("names", "is_native"), [(["a b", "007", "%", None], True), (["ü", "日本", NULL], False)]
)
def test_partitions_have_their_values_and_columns_their_order(
    spark: SparkSession, tmp_path: Path, names: list[str | None], is_native: bool
) -> None:
    rows = pa.table({"name": pa.array(names), "id": list(range(len(names)))})
    write_deltalake(tmp_path / "table", rows, partition_by=["name"])
    found = read_table(spark, str(tmp_path / "table"))
    assert is_parquet_of_spark(found) is is_native
    assert found.columns == ["name", "id"]
    assert sorted(map(tuple, found.collect()), key=repr) == sorted(
        (tuple(row.values()) for row in rows.to_pylist()), key=repr
    )


def test_a_file_that_spark_would_skip_is_read(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    write_deltalake(table, pa.table({"id": [1, 2]}))
    (file,) = table.glob("*.parquet")
    entry = table / "_delta_log" / f"{0:020}.json"
    entry.write_text(entry.read_text().replace(file.name, "_" + file.name))
    file.rename(table / ("_" + file.name))
    assert read_table(spark, str(table)).count() == 2


def test_a_version_without_its_files_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    write_deltalake(table, pa.table({"id": [1]}))
    write_deltalake(table, pa.table({"id": [2]}), mode="overwrite")
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(TableError, match=r"table: part-.* which version 0 needs, is missing"):
        read_table(spark, table, version=0)
    assert read_table(spark, table).collect()[0].id == 2


def test_a_table_with_other_names_in_its_files_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_mapped_table(tmp_path / "mapped", "name")
    with pytest.raises(TableError, match=r"mapped has delta.columnMapping.mode=name, which semel"):
        read_table(spark, str(tmp_path / "mapped"))
    write_mapped_table(tmp_path / "plain", "none")
    assert read_table(spark, str(tmp_path / "plain")).collect()[0].a == 1


def test_a_table_that_cannot_be_read_costs_the_others_no_view(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number, name in enumerate(["a.b", "fine", "lost", "Twice", "twice", "x`y"]):
        write_deltalake(tmp_path / name, pa.table({"id": [number]}))
    (tmp_path / "no table").mkdir()
    (tmp_path / "a file").touch()
    assert "lost" in register_tables(spark, str(tmp_path))
    shutil.rmtree(tmp_path / "Twice")
    assert "twice" in register_tables(spark, str(tmp_path))
    write_deltalake(tmp_path / "Twice", pa.table({"id": [3]}))
    (tmp_path / "lost" / "_delta_log" / f"{0:020}.json").write_text("{")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "semel.pipeline"):
        assert register_tables(spark, str(tmp_path)) == ["a.b", "fine", "x`y"]
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "table Twice has no view",
        "table lost has no view",
        "table twice has no view",
    ]
    assert "Twice and twice are the same name in SQL" in caplog.text
    assert spark.sql("select id from `a.b`").collect()[0].id == 0
    assert spark.sql("select id from `x``y`").collect()[0].id == 5
    # Their views of before would show old rows.
    for name in ("lost", "twice"):
        assert not spark.catalog.tableExists(name)
    for name in ("a.b", "fine", "x`y"):
        spark.catalog.dropTempView(name)

"""Parquet files of a Delta table: partitions, statistics, names, and what is told of them."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.pipeline.errors import TableError
from semel.pipeline.files import (
    GROUP_ROWS,
    REPEATED,
    UNIQUE,
    DataFile,
    FileWriter,
    FloatStatistics,
    TableLayout,
    as_in_delta,
    write_files,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def written(folder: Path, table: pa.Table, *partition_by: str, **more: Any) -> list[DataFile]:
    return write_files(table.to_batches(), TableLayout(str(folder), partition_by, **more))


def statistics(folder: Path, **columns: Any) -> dict[str, Any]:
    (file,) = written(folder, pa.table(columns))
    found: dict[str, Any] = json.loads(file.statistics)
    return found


def test_a_file_holds_its_rows_and_says_so(tmp_path: Path) -> None:
    table = pa.table({"a": [3, 1, 2], "b": ["x", None, "y"]})
    (file,) = written(tmp_path, table)
    path = tmp_path / file.path
    assert pq.read_table(path).equals(table)
    assert file.size == path.stat().st_size
    assert file.rows == 3
    assert file.runs == {}
    assert json.loads(file.statistics) == {
        "numRecords": 3,
        "minValues": {"a": 1, "b": "x"},
        "maxValues": {"a": 3, "b": "y"},
        "nullCount": {"a": 0, "b": 1},
    }


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    assert written(tmp_path, pa.table({"a": pa.array([], pa.int64())})) == []
    assert list(tmp_path.iterdir()) == []


def test_each_partition_is_a_file_of_its_own_in_the_order_of_its_rows(tmp_path: Path) -> None:
    days = [date(2026, 3, 1), date(2026, 3, 2), None, date(2026, 3, 1)]
    found = written(tmp_path, pa.table({"a": [1, 2, 3, 4], "day": days}), "day")
    rows = {
        file.partition["day"]: pq.ParquetFile(tmp_path / file.path).read().to_pydict()
        for file in found
    }
    assert rows == {"2026-03-01": {"a": [1, 4]}, "2026-03-02": {"a": [2]}, None: {"a": [3]}}
    folders = {file.partition["day"]: file.path.partition("/")[0] for file in found}
    assert folders[None] == "day=__HIVE_DEFAULT_PARTITION__"
    assert folders["2026-03-01"] == "day=2026-03-01"


def test_a_partition_by_two_columns_keeps_them_apart(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2, 3], "x": ["p", "p", None], "y": [True, False, True]})
    found = written(tmp_path, table, "x", "y")
    assert sorted(str(file.partition) for file in found) == [
        "{'x': 'p', 'y': 'false'}",
        "{'x': 'p', 'y': 'true'}",
        "{'x': None, 'y': 'true'}",
    ]


def test_a_partition_by_text_may_have_any_sign(tmp_path: Path) -> None:
    text = "50% of a/b: ü=?#"
    (file,) = written(tmp_path, pa.table({"a": [1], "t": [text]}), "t")
    assert file.partition == {"t": text}
    path = tmp_path / file.path
    assert path.is_file()
    assert path.parent.parent == tmp_path


def test_a_partition_by_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="partitioned by a value such as b'x'"):
        written(tmp_path, pa.table({"a": [1], "b": [b"x"]}), "b")


def test_a_partition_by_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    text = pa.array([b"a", b"\xff"]).view(pa.string())
    table = pa.table({"id": [1, 2], "good": ["x", "y"], "bad": text})
    with pytest.raises(TableError, match="partitionBy: a value of bad is not UTF-8"):
        written(tmp_path, table, "good", "bad")
    # In another column it is kept, as Spark has it.
    (_, file) = written(tmp_path, table, "good")
    assert pq.read_table(tmp_path / file.path)["bad"].cast(pa.binary()).to_pylist() == [b"\xff"]


def test_bounds_are_said_for_what_has_an_order(tmp_path: Path) -> None:
    found = statistics(
        tmp_path,
        number=[1, 2],
        real=[0.5, 1.5],
        day=[date(2026, 3, 1), date(2026, 3, 2)],
        moment=pa.array([NOON, NOON + timedelta(microseconds=1)], pa.timestamp("us", tz="UTC")),
        local=pa.array([datetime(2026, 3, 1), datetime(2026, 3, 2)], pa.timestamp("us")),
    )
    assert found["minValues"] == {
        "number": 1,
        "real": 0.5,
        "day": "2026-03-01",
        "moment": "2026-03-01T12:00:00.000000Z",
        "local": "2026-03-01T00:00:00.000000",
    }
    assert found["maxValues"]["moment"] == "2026-03-01T12:00:00.000001Z"


def test_floats_have_bounds_in_the_log_alone_and_no_dictionary(tmp_path: Path) -> None:
    table = pa.table(
        {
            "real": pa.array([1.5, None, 0.0], pa.float32()),
            "text": ["a", "b", "b"],
            "parts": [{"x": 1.0, "y": 1}, {"x": None, "y": 2}, None],
            "several": [[1.0], [], None],
            "named": pa.array([[("k", 1.0)], [], None], pa.map_(pa.string(), pa.float64())),
        }
    )
    (file,) = written(tmp_path, table)
    found = json.loads(file.statistics)
    # Either zero may be among the values.
    assert repr(found["minValues"]["real"]) == "-0.0"
    assert (found["maxValues"]["real"], found["nullCount"]["real"]) == (1.5, 1)
    group = pq.read_metadata(tmp_path / file.path).row_group(0)
    columns = {each.path_in_schema: each for each in map(group.column, range(group.num_columns))}
    with_statistics = {path for path, each in columns.items() if each.statistics is not None}
    assert with_statistics == {"text", "parts.y", "named.key_value.key"}
    assert set(columns) - with_statistics == {
        "real",
        "parts.x",
        "several.list.element",
        "named.key_value.value",
    }
    floats = set(columns) - with_statistics
    assert not any(columns[path].has_dictionary_page for path in floats)
    assert columns["text"].has_dictionary_page


def test_bounds_of_floats_span_all_parts_of_a_file() -> None:
    parts: list[list[float | None]] = [[3.0, None], [None, None], [-0.0], [5.5, 4.0]]
    floats = FloatStatistics(pa.schema([("x", pa.float64()), ("n", pa.int64())]))
    for values in parts:
        floats.add(pa.table({"x": pa.array(values, pa.float64()), "n": range(len(values))}))
    assert floats.bounds("x") == (0.0, 5.5)
    assert floats.nulls == {"x": 3}
    floats.add(pa.table({"x": [float("nan")], "n": [1]}))
    assert floats.bounds("x") is None


def test_what_has_no_order_has_no_bounds(tmp_path: Path) -> None:
    found = statistics(
        tmp_path,
        bytes=[b"a", b"b"],
        nothing=pa.nulls(2, pa.string()),
        several=[[1], [2]],
        both=[{"x": 1}, {"x": 2}],
        a=[3, 4],
    )
    assert found["minValues"] == {"a": 3}
    assert found["maxValues"] == {"a": 4}
    assert found["nullCount"] == {"bytes": 0, "nothing": 2, "a": 0}


@pytest.mark.parametrize(
    "values",
    [
        # Spark orders it above all numbers, Parquet passes over it.
        [1.0, float("nan")],
        [1.0, float("inf")],
        [Decimal("1234567890123456.78"), Decimal("2.20")],
        [Decimal("0.00001"), Decimal("1")],
        ["\U0010ffff" * 65, "b"],
        pa.array([0, 300_000_000_000_000_000], pa.timestamp("us", tz="UTC")),
    ],
)
def test_a_column_whose_bounds_cannot_be_said_leaves_the_number_of_rows(
    tmp_path: Path, values: Any
) -> None:
    """Bounds of the others alone would have readers take this one for empty."""
    assert statistics(tmp_path, a=[1, 2], b=values) == {"numRecords": 2}


def test_bounds_of_texts_are_cut_so_that_all_texts_are_within(tmp_path: Path) -> None:
    found = statistics(tmp_path, t=["b" * 100, "a" * 100])
    assert found["minValues"] == {"t": "a" * 64}
    assert found["maxValues"] == {"t": "b" * 63 + "c"}
    found = statistics(tmp_path, t=["\ud7ff" * 100])
    assert found["maxValues"] == {"t": "\ud7ff" * 63 + "\ue000"}
    found = statistics(tmp_path, t=["a" * 63 + "\U0010ffff" * 9])
    assert found["maxValues"] == {"t": "a" * 62 + "b"}


def test_bounds_of_truth_money_and_old_times_are_said(tmp_path: Path) -> None:
    found = statistics(
        tmp_path,
        truth=[True, False],
        money=[Decimal("1.10"), Decimal("2.20")],
        old=pa.array([datetime(1, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("us", tz="UTC")),
    )
    assert found["minValues"] == {
        "truth": False,
        "money": 1.1,
        "old": "0001-01-01T00:00:00.000000Z",
    }


def test_a_name_with_a_dot_is_not_taken_for_a_part_of_another(tmp_path: Path) -> None:
    found = statistics(tmp_path, **{"a.b": [1, 2], "a": [{"b": 100}, {"b": 200}]})
    assert found["minValues"] == {"a.b": 1}
    found = statistics(tmp_path, **{"a": [{"b": 100}, {"b": 200}], "a.b": [1, 2]})
    assert found["maxValues"] == {"a.b": 2}


def test_a_value_that_is_too_long_for_the_name_of_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="a value of t is too long for a folder name"):
        written(tmp_path, pa.table({"a": [1], "t": ["x" * 254]}), "t")
    assert len(written(tmp_path, pa.table({"a": [1], "t": ["x" * 253]}), "t")) == 1


def test_a_row_group_of_nulls_does_not_hide_the_bounds_of_the_others(tmp_path: Path) -> None:
    groups = [pa.array([5, 7] * (GROUP_ROWS // 2)), pa.nulls(GROUP_ROWS, pa.int64()), pa.array([6])]
    found = statistics(tmp_path, a=pa.concat_arrays(groups))
    assert found["minValues"] == {"a": 5}
    assert found["maxValues"] == {"a": 7}
    assert found["nullCount"] == {"a": GROUP_ROWS}


def test_moments_of_another_zone_become_utc() -> None:
    there = pa.array([NOON], pa.timestamp("us", tz="Europe/Vienna"))
    found = as_in_delta(pa.table({"a": there}))
    assert found.schema.field("a").type == pa.timestamp("us", tz="UTC")
    assert found.column("a").to_pylist() == [NOON]


def test_columns_of_files_are_nullable_whatever_the_query_promises(tmp_path: Path) -> None:
    fields = [pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())]
    table = pa.table({"a": [1, 2], "b": ["x", None]}, schema=pa.schema(fields))
    (found,) = write_files(table.to_batches(), TableLayout(str(tmp_path)))
    written = pq.read_table(tmp_path / found.path)
    assert [each.nullable for each in written.schema] == [True, True]
    assert written.to_pylist() == table.to_pylist()


def test_memory_is_bounded_by_writing_the_largest_partition(tmp_path: Path) -> None:
    table = pa.table({"a": list(range(4_000)), "k": ["x"] * 3_000 + ["y"] * 1_000})
    writer = FileWriter(TableLayout(str(tmp_path), ("k",)), buffer_bytes=10_000)
    for batch in table.to_batches(max_chunksize=100):
        writer.add(pa.Table.from_batches([batch]))
    found = writer.finish()
    assert len(found) > 4
    assert sum(file.rows for file in found) == 4_000
    rows = [
        value
        for file in found
        for value in pq.ParquetFile(tmp_path / file.path).read().column("a").to_pylist()
    ]
    assert sorted(rows) == list(range(4_000))


@pytest.mark.parametrize(
    ("seqs", "runs"),
    [
        ([7], [(7, 7)]),
        ([7, 8, 9], [(7, 9)]),
        ([7, 9, 10, 20], [(7, 7), (9, 10), (20, 20)]),
        ([9, 7, 8], [(7, 9)]),
        ([20, 1, 2], [(1, 2), (20, 20)]),
    ],
)
def test_numbered_rows_tell_the_runs_of_each_node(
    tmp_path: Path, seqs: list[int], runs: list[tuple[int, int]]
) -> None:
    table = pa.table({"node": ["a"] * len(seqs), "seq": seqs})
    (file,) = written(tmp_path, table, numbering=UNIQUE)
    assert file.runs == {"a": runs}
    mixed = pa.concat_tables([table, pa.table({"node": ["b", "b"], "seq": [1, 2]})])
    (file,) = written(tmp_path, mixed, numbering=UNIQUE)
    assert file.runs == {"a": runs, "b": [(1, 2)]}


def test_rows_whose_numbers_may_repeat_tell_the_first_and_the_last(tmp_path: Path) -> None:
    table = pa.table({"node": ["a", "b", "a", "a"], "seq": [9, 1, 3, 3]})
    (file,) = written(tmp_path, table, numbering=REPEATED)
    assert file.runs == {"a": [(3, 9)], "b": [(1, 1)]}


@pytest.mark.parametrize("seqs", [[1, 1], [1, 2, 2, 9], [3, 1, 3]])
def test_a_number_that_comes_twice_is_refused(tmp_path: Path, seqs: list[int]) -> None:
    with pytest.raises(TableError, match="is duplicated"):
        written(tmp_path, pa.table({"node": ["a"] * len(seqs), "seq": seqs}), numbering=UNIQUE)


@pytest.mark.parametrize(("node", "seq"), [(None, 1), ("a", None)])
def test_a_row_without_node_or_seq_is_refused(
    tmp_path: Path, node: str | None, seq: int | None
) -> None:
    table = pa.table(
        {
            "node": pa.array(["a", node], pa.string()),
            "seq": pa.array([1, seq], pa.int64()),
        }
    )
    with pytest.raises(TableError, match="has no"):
        written(tmp_path, table, numbering=UNIQUE)

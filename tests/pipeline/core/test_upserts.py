"""Rows that replace those with the same key, without Spark."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction

from semel.pipeline import upsert
from semel.pipeline.errors import OptionError, TableError
from semel.pipeline.files import TableLayout, write_files
from semel.pipeline.sink_options import parse_sink_options
from semel.pipeline.table import LandingBatch, Table
from semel.pipeline.upserts import newest_rows


class Totals:
    """A table with rows by key."""

    def __init__(self, folder: Path, *, partition_by: tuple[str, ...] = ()) -> None:
        self.address = str(folder / "totals")
        self.partition_by = partition_by

    def put(
        self,
        rows: list[dict[str, Any]],
        *,
        key: tuple[str, ...] = ("k",),
        number: int | None = None,
        newest_by: tuple[str, ...] = (),
        schema: pa.Schema | None = None,
    ) -> None:
        table = pa.Table.from_pylist(rows, schema=schema)
        files = write_files(table.to_batches(), TableLayout(self.address, self.partition_by))
        Table(self.address).commit(
            LandingBatch(
                files,
                Schema.from_arrow(table.schema).to_json(),
                self.partition_by,
                query=None if number is None else "totals",
                number=number,
                key=key,
                newest_by=newest_by,
            )
        )

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(self.address).to_pyarrow_table().to_pylist()
        return sorted(rows, key=repr)


def test_rows_replace_those_with_the_same_key_and_others_stay(tmp_path: Path) -> None:
    totals = Totals(tmp_path)
    totals.put([{"k": "a", "n": 1}, {"k": "b", "n": 1}])
    totals.put([{"k": "c", "n": 1}])
    totals.put([{"k": "b", "n": 2}, {"k": "d", "n": 1}])
    assert totals.rows() == [
        {"k": "a", "n": 1},
        {"k": "b", "n": 2},
        {"k": "c", "n": 1},
        {"k": "d", "n": 1},
    ]
    assert len(DeltaTable(totals.address).file_uris()) == 3


def test_a_batch_counts_once_by_its_number(tmp_path: Path) -> None:
    totals = Totals(tmp_path)
    totals.put([{"k": "a", "n": 1}], number=0)
    totals.put([{"k": "a", "n": 2}], number=1)
    totals.put([{"k": "a", "n": 1}], number=0)
    totals.put([{"k": "a", "n": 3}], number=1)
    assert totals.rows() == [{"k": "a", "n": 2}]


def test_null_equals_null_and_odd_texts_are_not_confused(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("l", pa.string()), ("n", pa.int64())])
    texts = [None, "", "\x00", "\\0", "\\", "\\\\", "\x1f", "\\s", "a\x1fb", "a"]
    pairs = [(one, other) for one in texts for other in texts]
    totals = Totals(tmp_path)
    for number in (1, 2):
        totals.put(
            [{"k": one, "l": other, "n": number} for one, other in pairs],
            key=("k", "l"),
            schema=schema,
        )
    assert len(totals.rows()) == len(pairs)
    assert {row["n"] for row in totals.rows()} == {2}


def test_a_key_may_be_a_partition_and_other_types(tmp_path: Path) -> None:
    totals = Totals(tmp_path, partition_by=("day",))
    days = [date(2026, 3, 1), date(2026, 3, 2), None]
    schema = pa.schema([("day", pa.date32()), ("k", pa.int64()), ("n", pa.int64())])
    totals.put([{"day": day, "k": 1, "n": 1} for day in days], key=("day", "k"), schema=schema)
    totals.put(
        [{"day": days[1], "k": 1, "n": 2}, {"day": None, "k": 1, "n": 3}],
        key=("day", "k"),
        schema=schema,
    )
    found = {(row["day"], row["n"]) for row in totals.rows()}
    assert found == {(days[0], 1), (days[1], 2), (None, 3)}
    assert len(totals.rows()) == 3


def test_an_upsert_without_key_or_name_is_refused_at_once(tmp_path: Path) -> None:
    for key in ("", " , ", [], ["", ""]):
        with pytest.raises(OptionError, match="upsert: key is empty"):
            upsert(str(tmp_path), key=key, app_id="totals")
    with pytest.raises(OptionError, match="upsert: app_id is empty"):
        upsert(str(tmp_path), key="k", app_id="")
    assert callable(upsert(str(tmp_path), key=["k", "l"], app_id="totals"))


@pytest.mark.parametrize("zone", ["UTC", None])
def test_a_time_may_be_a_key_and_a_partition(tmp_path: Path, zone: str | None) -> None:
    totals = Totals(tmp_path, partition_by=("at",))
    schema = pa.schema([("at", pa.timestamp("us", zone)), ("n", pa.int64())])
    noon = datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=None if zone is None else UTC)
    times = [noon, noon + timedelta(microseconds=1), None]
    for n in (1, 2):
        totals.put([{"at": at, "n": n} for at in times[: 4 - n]], key=("at",), schema=schema)
    assert sorted(row["n"] for row in totals.rows()) == [1, 2, 2]


FOREIGN_TIMES = {
    "INT96": (pa.timestamp("us", "UTC"), {"use_deprecated_int96_timestamps": True}),
    "ns": (pa.timestamp("ns", "UTC"), {}),
    "ms": (pa.timestamp("ms", "UTC"), {}),
    "another zone": (pa.timestamp("us", "Europe/Berlin"), {}),
}


@pytest.mark.parametrize("kind", FOREIGN_TIMES)
def test_times_as_other_writers_store_them_are_the_same_keys(tmp_path: Path, kind: str) -> None:
    stored, options = FOREIGN_TIMES[kind]
    schema = pa.schema([("k", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    later = noon + timedelta(hours=1)
    totals = Totals(tmp_path)
    table = DeltaTable.create(totals.address, Schema.from_arrow(schema))
    file = Path(totals.address) / "part.parquet"
    rows = pa.table({"k": pa.array([noon, later], stored), "n": pa.array([1, 1], pa.int64())})
    pq.write_table(rows, file, **options)
    added = AddAction(file.name, file.stat().st_size, {}, 0, True, '{"numRecords": 2}')
    table.create_write_transaction([added], "append", table.schema())
    totals.put([{"k": noon, "n": 2}], schema=schema)
    assert {(row["k"], row["n"]) for row in totals.rows()} == {(noon, 2), (later, 1)}
    assert len(totals.rows()) == 2
    # Spark reads no nanoseconds, and times without a zone as another type.
    for name in DeltaTable(totals.address).file_uris():
        assert pq.read_schema(name).field("k").type == schema.field("k").type


def test_a_key_twice_in_a_batch_is_refused(tmp_path: Path) -> None:
    totals = Totals(tmp_path)
    with pytest.raises(TableError, match=r"two rows with the same key \(k\); nothing was"):
        totals.put([{"k": "a", "n": 1}, {"k": "a", "n": 2}])
    totals.put([{"k": "a", "n": 1}, {"k": "b", "n": 2}])
    assert len(totals.rows()) == 2


def test_the_newest_row_of_a_key_stays_whichever_comes_first(tmp_path: Path) -> None:
    totals = Totals(tmp_path)
    newest = ("at", "seq")
    totals.put([{"k": "a", "at": 5, "seq": 1}, {"k": "b", "at": 5, "seq": 2}], newest_by=newest)
    totals.put(
        [
            {"k": "a", "at": 4, "seq": 3},
            {"k": "b", "at": 5, "seq": 4},
            {"k": "b", "at": 6, "seq": 5},
            {"k": "c", "at": 1, "seq": 6},
        ],
        newest_by=newest,
    )
    assert totals.rows() == [
        {"k": "a", "at": 5, "seq": 1},
        {"k": "b", "at": 6, "seq": 5},
        {"k": "c", "at": 1, "seq": 6},
    ]
    # What is older than everything changes nothing.
    totals.put([{"k": "c", "at": 0, "seq": 7}], newest_by=newest)
    assert len(totals.rows()) == 3


def test_of_rows_in_memory_the_newest_of_each_key_are_kept() -> None:
    rows = pa.table({"k": ["a", "b", "a", "b", None], "at": [1, 2, 3, 1, 1]})
    found = newest_rows(rows, ("k",), ("at",))
    assert sorted(found.to_pylist(), key=repr) == sorted(
        [{"k": "a", "at": 3}, {"k": "b", "at": 2}, {"k": None, "at": 1}], key=repr
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"key": "a,a"}, "key names a column twice"),
        ({"key": "a", "stream": "all"}, "options key and stream exclude each other"),
        ({"batch": "1"}, "give option appId too"),
        ({"batch": "-1", "appId": "x"}, "option batch is '-1'"),
    ],
)
def test_options_about_keys_are_checked(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_sink_options({"path": "t", **options})
    assert problem in str(caught.value)
    found = parse_sink_options({"path": "t", "key": "a, b", "appId": "x", "batch": "7"})
    assert (found.key, found.batch) == (("a", "b"), 7)

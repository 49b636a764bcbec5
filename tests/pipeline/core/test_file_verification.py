"""Damaged files of a table are noticed before their rows replace others; sound ones are read."""

import json
import os
import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction

from semel.pipeline.compaction import DamagedFile, compact, plan_all
from semel.pipeline.errors import TableError
from semel.pipeline.file_verification import FileReader, wrong_column
from semel.pipeline.files import DataFile, TableLayout, open_parquet_writer, write_files
from semel.pipeline.live_files import LiveFile, list_files
from semel.pipeline.table import LandingBatch, Table
from semel.pipeline.upserts import upserted_files
from semel.store.segments import encode_group_bytes

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY = ("plant", "line")
NEWEST_BY = ("received", "seq")
ROWS = 40


def measured(lines: range, seq: int = 100) -> pa.Table:
    return pa.table(
        {
            "plant": [f"plant{line % 4}" for line in lines],
            "line": pa.array(lines, pa.int64()),
            "received": pa.array(
                [NOON + timedelta(seconds=line) for line in lines], pa.timestamp("us", "UTC")
            ),
            "seq": pa.array([seq + line for line in lines], pa.int64()),
            "value": [line * 0.5 if line % 5 else None for line in lines],
            # One bit from the name of the other.
            "walue": [line * 0.25 for line in lines],
            "ok": [line % 3 == 0 for line in lines],
            "day": pa.array([date(2026, 3, 1 + line % 9) for line in lines], pa.date32()),
            "amount": pa.array([Decimal(line) / 4 for line in lines], pa.decimal128(10, 2)),
        }
    )


class Keyed:
    """A table by key with one file, and a batch with newer rows of five of its keys."""

    def __init__(self, place: Path, rows: pa.Table) -> None:
        self.place = place
        self.address = str(place)
        Table(self.address).commit(
            LandingBatch(self._write(rows), Schema.from_arrow(rows.schema).to_json())
        )
        self.table = DeltaTable(place)
        (self.file,) = place.glob("*.parquet")
        self.good = self.file.read_bytes()
        self.batch = measured(range(5), 900)
        self.new = self._write(self.batch)
        self.expected = self._as_text(pa.concat_tables([rows.slice(5), self.batch]))

    @property
    def footer(self) -> int:
        """Where it begins."""
        return len(self.good) - 8 - int.from_bytes(self.good[-8:-4], "little")

    def _write(self, rows: pa.Table) -> list[DataFile]:
        return write_files(rows.to_batches(), TableLayout(self.address))

    @staticmethod
    def _as_text(rows: pa.Table) -> list[str]:
        return sorted(map(repr, rows.to_pylist()))

    def flip(self, at: int, bit: int = 0) -> None:
        damaged = bytearray(self.good)
        damaged[at] ^= 1 << bit
        self.file.write_bytes(damaged)

    def upsert(self) -> list[str]:
        """The rows that the table would have after the batch."""
        added, removed = upserted_files(self.address, self.table, self.new, KEY, NEWEST_BY)
        assert [each.path for each in removed] == [self.file.name]
        rows = [pq.read_table(self.place / each.path) for each in added]
        for each in added:
            if each.path != self.new[0].path:
                os.unlink(self.place / each.path)
        kinds = pa.schema(self.table.schema().to_arrow())
        return self._as_text(pa.concat_tables([each.cast(kinds) for each in rows]))


@pytest.fixture
def keyed(tmp_path: Path) -> Keyed:
    return Keyed(tmp_path / "t", measured(range(ROWS)))


# --- flipped bits ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_flipped_bit_in_a_table_with_keys_changes_no_row_without_a_word(keyed: Keyed) -> None:
    assert keyed.upsert() == keyed.expected
    refused: dict[bool, list[str]] = {False: [], True: []}
    for at in range(0, len(keyed.good), 7):
        for bit in (0, 1):
            keyed.flip(at, bit)
            try:
                found = keyed.upsert()
            except TableError as problem:
                refused[at >= keyed.footer].append(str(problem))
                continue
            assert found == keyed.expected, f"bit {bit} of byte {at}, footer {keyed.footer}"
    assert min(map(len, refused.values())) > 50
    assert all(keyed.file.name in each for found in refused.values() for each in found)
    keyed.file.write_bytes(keyed.good)
    assert keyed.upsert() == keyed.expected


@pytest.mark.parametrize(
    ("column", "bit", "what"),
    [
        ("plant", 0, "it has a column 'qlant', which the table lacks"),
        ("day", 1, "it has a column 'fay', which the table lacks"),
        ("value", 0, "it has two columns 'walue'"),
    ],
)
def test_a_renamed_column_is_refused_with_advice(
    keyed: Keyed, column: str, bit: int, what: str
) -> None:
    keyed.flip(keyed.good.index(column.encode(), keyed.footer), bit)
    with pytest.raises(TableError) as caught:
        keyed.upsert()
    assert str(caught.value) == (
        f"{keyed.address}: file {keyed.file.name} cannot be read as it was written: {what};"
        " restore it from a backup of the table; nothing was committed"
    )


def test_a_missing_file_and_a_damaged_page_are_reported_with_advice(keyed: Keyed) -> None:
    advice = "restore it from a backup of the table; nothing was committed"
    keyed.flip(keyed.footer // 2)
    with pytest.raises(TableError, match=f"file {keyed.file.name} .*{advice}"):
        keyed.upsert()
    keyed.file.unlink()
    with pytest.raises(TableError, match=f"file {keyed.file.name} .*{advice}"):
        keyed.upsert()


def test_a_damaged_file_of_the_batch_is_written_again(keyed: Keyed) -> None:
    place = keyed.place / keyed.new[0].path
    good = place.read_bytes()
    pq.write_table(keyed.batch.drop_columns("line"), place)
    with pytest.raises(TableError, match=r"lacks column 'line'.*the rows are written again"):
        keyed.upsert()
    place.write_bytes(good)
    assert keyed.upsert() == keyed.expected


# --- columns, rows, nulls and bounds --------------------------------------------------------------


def replaced(keyed: Keyed, rows: pa.Table) -> str | None:
    """What is wrong if the live file has these rows."""
    pq.write_table(rows, keyed.file)
    (file,) = [each for each in list_files(keyed.table) if each.path == keyed.file.name]
    try:
        FileReader(keyed.address, keyed.table).read(file)
    except TableError as problem:
        found = re.search("as it was written: (.*); restore it from", str(problem))
        assert found is not None
        return found[1]
    return None


def with_column(rows: pa.Table, name: str, values: Any) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, values)


def test_rows_nulls_and_bounds_are_those_of_the_log(keyed: Keyed) -> None:
    good = measured(range(ROWS))
    assert replaced(keyed, good) is None
    assert replaced(keyed, good.slice(1)) == "it has 39 rows, and the log says 40"
    assert replaced(keyed, good.drop_columns("seq")) == (
        "it lacks column 'seq', of which it has values by the log"
    )
    full = with_column(good, "value", pa.array([1.0] * ROWS))
    assert replaced(keyed, full) == "its column 'value' has 0 nulls, and the log says 8"
    changed = {
        "plant": pa.array(["plant0"] * ROWS),
        "seq": pa.array(range(1, ROWS + 1), pa.int64()),
        # The unit of times is in the footer.
        "received": good["received"].cast(pa.int64()).cast(pa.timestamp("ms", "UTC")),
        "walue": pa.array([1.0] * ROWS),
        "ok": pa.array([True] * ROWS),
        "day": pa.array([date(2026, 3, 1)] * ROWS),
        "amount": pa.array([Decimal(1)] * ROWS, pa.decimal128(10, 2)),
    }
    for name, values in changed.items():
        assert replaced(keyed, with_column(good, name, values)) == (
            f"the lowest and highest value of its column {name!r} are not those in the log"
        )
    # A file of the same times in another unit is no damage.
    times = good["received"].cast(pa.timestamp("ns", "UTC"))
    assert replaced(keyed, with_column(good, "received", times)) is None


def test_a_column_that_the_table_got_later_is_null(keyed: Keyed) -> None:
    keyed.table.alter.add_columns(Schema.from_arrow(pa.schema([("unit", pa.string())])).fields)
    keyed.table = DeltaTable(keyed.place)
    (file,) = list_files(keyed.table)
    rows = FileReader(keyed.address, keyed.table).read(file, ["unit", "line"])
    assert rows.column("unit").to_pylist() == [None] * ROWS
    assert rows.column("line").to_pylist() == list(range(ROWS))
    assert "unit" not in FileReader(keyed.address, keyed.table).read(file).column_names


def entry(place: Path, rows: pa.Table, statistics: dict[str, Any]) -> LiveFile:
    """A file of another writer, with these statistics in the log."""
    table = DeltaTable.create(place, Schema.from_arrow(rows.schema))
    pq.write_table(rows, place / "part.parquet")
    size = (place / "part.parquet").stat().st_size
    added = AddAction("part.parquet", size, {}, 0, True, json.dumps(statistics))
    table.create_write_transaction([added], "append", table.schema())
    (file,) = list_files(DeltaTable(place))
    return file


def test_statistics_as_other_writers_truncate_them_are_no_damage(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "text": ["a" * 40, "b" * 40],
            "at": pa.array([NOON + timedelta(microseconds=1999)] * 2, pa.timestamp("us", "UTC")),
            "number": pa.array([0.1, 0.3], pa.float32()),
        }
    )
    at = "2026-03-01T12:00:00.001Z"
    statistics = {
        "numRecords": 2,
        "minValues": {"text": "a" * 32, "at": at, "number": 0.1},
        "maxValues": {"text": "b" * 32 + "\ufffd", "at": at, "number": 0.3},
        "nullCount": {"text": 0, "at": 0, "number": 0},
    }
    file = entry(tmp_path / "t", rows, statistics)
    assert FileReader(str(tmp_path / "t"), DeltaTable(tmp_path / "t")).read(file).equals(rows)
    statistics["maxValues"] = {"text": "a" * 32 + "\ufffd", "at": at, "number": 0.3}
    other = entry(tmp_path / "other", rows, statistics)
    with pytest.raises(TableError, match="highest value of its column 'text'"):
        FileReader(str(tmp_path / "other"), DeltaTable(tmp_path / "other")).read(other)


def test_files_of_delta_rs_and_files_without_statistics_are_read(tmp_path: Path) -> None:
    rows = measured(range(ROWS)).append_column("tags", pa.array([[{"x": 1}]] * ROWS))
    rows = rows.append_column("nan", pa.array([float("nan"), *[1.0] * (ROWS - 1)]))
    write_deltalake(tmp_path / "t", rows)
    (file,) = list_files(DeltaTable(tmp_path / "t"))
    found = FileReader(str(tmp_path / "t"), DeltaTable(tmp_path / "t")).read(file)
    assert repr(found.to_pylist()) == repr(rows.to_pylist())
    # Without statistics, a column that is not there is taken for a later one.
    bare = entry(tmp_path / "bare", rows.select(["line", "seq"]), {})
    pq.write_table(rows.select(["line"]), tmp_path / "bare" / "part.parquet")
    reader = FileReader(str(tmp_path / "bare"), DeltaTable(tmp_path / "bare"))
    assert reader.read(bare, ["seq"]).column("seq").null_count == ROWS


def test_columns_of_structs_lists_and_maps_are_compared() -> None:
    inner = pa.struct([("x", pa.int64()), ("y", pa.string())])
    expected = pa.schema(
        [("s", inner), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), pa.int64()))]
    )
    sound = {
        "s": pa.struct([("x", pa.int64())]),
        "l": pa.large_list(pa.field("element", inner)),
        "m": pa.map_(pa.large_string(), pa.int64()),
    }
    for name, kind in sound.items():
        assert wrong_column(pa.schema([(name, kind)]), expected) is None
    damaged = {
        "s": pa.struct([("z", pa.int64())]),
        "l": pa.list_(pa.struct([("x", pa.int32())])),
        "m": pa.map_(pa.binary(), pa.int64()),
    }
    for name, kind in damaged.items():
        found = wrong_column(pa.schema([(name, kind)]), expected)
        assert found is not None
        assert f"its column {name!r} is " in found


@pytest.mark.parametrize("nested", [False, True])
def test_times_of_semel_are_in_microseconds_also_without_bounds(
    tmp_path: Path, nested: bool
) -> None:
    kind = pa.timestamp("ms", "UTC")
    times = pa.array([NOON] * 2, kind)
    if nested:
        times = pa.StructArray.from_arrays([times], ["at"])
    rows = pa.table({"at": times})
    file = entry(tmp_path / "t", rows, {"numRecords": 2})
    # Another program has written it.
    reader = FileReader(str(tmp_path / "t"), DeltaTable(tmp_path / "t"))
    assert reader.read(file).num_rows == 2
    with open_parquet_writer(tmp_path / "t" / "part.parquet", rows.schema, []) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(encode_group_bytes([rows.nbytes]))
    with pytest.raises(
        TableError, match=r"its column 'at' is .*timestamp\[ms, tz=UTC\].*, but semel"
    ):
        reader.read(file)


# --- compaction -----------------------------------------------------------------------------------


def test_compaction_verifies_bounds_too(keyed: Keyed) -> None:
    Table(keyed.address).commit(
        LandingBatch(keyed.new, Schema.from_arrow(keyed.batch.schema).to_json())
    )
    rows = measured(range(ROWS))
    times = rows["received"].cast(pa.int64()).cast(pa.timestamp("ms", "UTC"))
    pq.write_table(with_column(rows, "received", times), keyed.file)
    table = DeltaTable(keyed.place)
    with pytest.raises(
        DamagedFile, match=r"of its column 'received' are not those in the log; it was"
    ):
        compact(keyed.address, table, plan_all(list_files(table), 1 << 30))
    keyed.file.write_bytes(keyed.good)
    assert compact(keyed.address, table, plan_all(list_files(table), 1 << 30)).rows == ROWS + 5

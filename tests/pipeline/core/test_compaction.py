"""Compaction merges files and changes no row, whoever else commits meanwhile."""

import json
import os
import random
import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from semel.pipeline.app_transactions import position_id
from semel.pipeline.compaction import (
    Compacted,
    DamagedFile,
    MergeLimits,
    compact,
    plan_all,
    plan_due,
)
from semel.pipeline.delta_log import log_entry
from semel.pipeline.errors import TableError
from semel.pipeline.files import TableFolder, TableLayout, write_files
from semel.pipeline.live_files import LiveFile, Overtaken, list_files

KIB = 1024
NOW = 1_000_000.0


def file(name: str, size: int, *, age: float = 0.0, day: str = "x") -> LiveFile:
    return LiveFile(name, size, 1, round((NOW - age) * 1000), (("day", day),))


def append(place: Path, seq: int, rows: pa.Table | None = None) -> None:
    """A commit as a landing makes it."""
    given = pa.table({"a": [seq, seq + 1000], "day": ["x", "x"]}) if rows is None else rows
    write_deltalake(
        place,
        given,
        mode="append",
        partition_by=["day"],
        commit_properties=CommitProperties(
            app_transactions=[Transaction(position_id("all", "n1"), seq)]
        ),
    )


def rows_of(place: Path) -> list[int]:
    found: list[int] = DeltaTable(place).to_pyarrow_table().column("a").to_pylist()
    return sorted(found)


def merge_all(place: Path, table: DeltaTable | None = None, **named: Any) -> Compacted:
    opened = DeltaTable(place) if table is None else table
    return compact(str(place), opened, plan_all(list_files(opened), 2**30), **named)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for seq in range(4):
        append(tmp_path / "t", seq)
    return tmp_path / "t"


ROWS = [0, 1, 2, 3, 1000, 1001, 1002, 1003]


# --- plans ----------------------------------------------------------------------------------------


def test_an_open_partition_is_compacted_when_enough_files_are_of_one_size() -> None:
    few = [file(f"s{n}", 10) for n in range(4)]
    assert plan_due(few, 100 * KIB, small_files=5, now=NOW) == []
    (group,) = plan_due([*few, file("s4", 12)], 100 * KIB, small_files=5, now=NOW)
    assert [each.path for each in group] == ["s0", "s1", "s2", "s3", "s4"]
    # Larger files are not rewritten for the sake of a few small ones.
    mixed = [*few, file("m", 40 * KIB), file("l", 90 * KIB)]
    assert plan_due(mixed, 100 * KIB, small_files=5, now=NOW) == []


def test_a_closed_partition_is_compacted_whole_and_a_full_file_left_alone() -> None:
    hour = 3601.0
    there = [
        file("full", 60 * KIB, age=hour),
        file("a", 10, age=hour),
        file("b", 30 * KIB, age=hour),
        file("other", 10, age=hour, day="y"),
    ]
    (group,) = plan_due(there, 100 * KIB, small_files=50, now=NOW)
    assert sorted(each.path for each in group) == ["a", "b"]
    # One that is written again is open again.
    assert plan_due([*there, file("new", 10)], 100 * KIB, small_files=50, now=NOW) == []


def test_groups_keep_to_the_target_and_to_their_partition() -> None:
    there = [file(f"{day}{n}", 40, day=day) for day in "xy" for n in range(5)]
    groups = plan_due(there, 100, small_files=5, now=NOW)
    assert [[each.path for each in group] for group in groups] == [
        ["x0", "x1"],
        ["x2", "x3"],
        ["y0", "y1"],
        ["y2", "y3"],
    ]
    assert all(len({each.partition for each in group}) == 1 for group in plan_all(there, 10**6))


def test_a_table_that_was_long_untended_is_compacted_in_steps() -> None:
    many = [file(f"f{number:05}", 10) for number in range(5_000)]
    groups = plan_due(many, 1 << 30, small_files=100, now=NOW)
    assert [len(group) for group in groups] == [2_000, 2_000, 1_000]


def test_a_stream_of_small_files_is_rewritten_a_few_times_only() -> None:
    """Each byte of 20,000 files passes through at most three merges, and few files are live."""
    target, threshold = 1 << 20, 20
    live: list[LiveFile] = []
    rewritten = most = 0
    for number in range(20_000):
        live.append(file(f"f{number}", 100))
        for group in plan_due(live, target, small_files=threshold, now=NOW):
            size = sum(each.size for each in group)
            rewritten += size
            gone = {each.path for each in group}
            live = [each for each in live if each.path not in gone]
            live.append(file(f"m{number}", size))
        most = max(most, len(live))
    assert rewritten <= 3 * 20_000 * 100
    assert most <= 4 * threshold


# --- rows -----------------------------------------------------------------------------------------


def test_rows_positions_and_partitions_are_as_before(place: Path) -> None:
    append(place, 4, pa.table({"a": [77], "day": ["ü %/="]}))
    append(place, 5, pa.table({"a": [78, 79], "day": ["ü %/=", None]}))
    append(place, 6, pa.table({"a": [80], "day": pa.array([None], pa.string())}))
    before = DeltaTable(place).to_pyarrow_table().sort_by("a")
    done = merge_all(place)
    assert (done.version, done.files_removed, done.files_added, done.rows) == (7, 8, 3, 12)
    table = DeltaTable(place)
    assert table.to_pyarrow_table().sort_by("a").equals(before)
    assert table.transaction_version(position_id("all", "n1")) == 6
    assert len(list_files(table)) == 3
    assert plan_all(list_files(table), 2**30) == []


def test_a_column_that_older_files_lack_is_null_in_their_rows(place: Path) -> None:
    write_deltalake(
        place,
        pa.table({"a": [9], "day": ["x"], "new": [1.5]}),
        mode="append",
        schema_mode="merge",
    )
    merge_all(place)
    found = DeltaTable(place).to_pyarrow_table().sort_by("a").to_pylist()
    assert [(row["a"], row["new"]) for row in found] == [
        (a, 1.5 if a == 9 else None) for a in sorted([*ROWS, 9])
    ]


def test_statistics_cover_all_merged_rows_and_leave_out_what_nan_hides(tmp_path: Path) -> None:
    place = tmp_path / "t"
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    for number in range(3):
        rows = pa.table(
            {"a": [number, None], "t": [moment] * 2, "d": [date(2026, 3, number + 1)] * 2}
        )
        write_deltalake(place, rows, mode="append")
    merge_all(place)
    (statistics,) = added(place, 3)
    assert statistics["numRecords"] == 6
    assert statistics["nullCount"] == {"a": 3, "t": 0, "d": 0}
    assert statistics["minValues"] == {
        "a": 0,
        "t": "2026-03-01T00:00:00.000000Z",
        "d": "2026-03-01",
    }
    assert statistics["maxValues"]["d"] == "2026-03-03"
    floats = tmp_path / "f"
    for value in (1.0, float("nan")):
        write_deltalake(floats, pa.table({"x": [value]}), mode="append")
    merge_all(floats)
    assert added(floats, 2) == [{"numRecords": 2}]


def added(place: Path, version: int) -> list[dict[str, Any]]:
    lines = (place / "_delta_log" / log_entry(version)).read_text().splitlines()
    return [json.loads(json.loads(line)["add"]["stats"]) for line in lines if '"add"' in line]


def test_large_rows_are_merged_in_pieces(tmp_path: Path) -> None:
    place = tmp_path / "t"
    for number in range(3):
        payloads = [os.urandom(10_000) for _ in range(10)]
        write_deltalake(
            place,
            pa.table({"a": range(number * 10, number * 10 + 10), "p": payloads}),
            mode="append",
        )
    before = DeltaTable(place).to_pyarrow_table().sort_by("a")
    merge_all(place, limits=MergeLimits(group_bytes=50_000, read_bytes=20_000))
    (one,) = list_files(DeltaTable(place))
    assert pq.read_metadata(place / one.path).num_row_groups > 3
    assert DeltaTable(place).to_pyarrow_table().sort_by("a").equals(before)


def test_a_file_with_other_rows_than_the_log_says_is_not_merged(place: Path) -> None:
    one = list_files(DeltaTable(place))[0]
    pq.write_table(pa.table({"a": [1]}), place / one.path)
    with pytest.raises(TableError, match="it has 1 row, and the log says 2; it was not compacted"):
        merge_all(place)
    assert DeltaTable(place).version() == 3


def test_a_table_whose_rows_are_not_all_in_its_files_is_refused(place: Path) -> None:
    entry = place / "_delta_log" / log_entry(0)
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            features = ["deletionVectors"]
            line["protocol"] = {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": features,
                "writerFeatures": features,
            }
    entry.write_text("\n".join(map(json.dumps, lines)) + "\n")
    with pytest.raises(TableError, match="requires reader feature deletionVectors"):
        merge_all(place)


def test_a_file_whose_name_others_encode_differently_is_refused(place: Path) -> None:
    """Its removal would not be found, and its rows would be there twice."""
    rows = pa.table({"a": [5]})
    (place / "day=é").mkdir()
    pq.write_table(rows, place / "day=é" / "foreign.parquet")
    action: dict[str, Any] = {
        "path": "day=%C3%A9/foreign.parquet",
        "partitionValues": {"day": "é"},
        "size": (place / "day=é" / "foreign.parquet").stat().st_size,
        "modificationTime": 1,
        "dataChange": True,
    }
    lines = [
        json.dumps({"add": {**action, "path": action["path"].replace("f", f"{n}f")}})
        for n in (1, 2)
    ]
    for n in (1, 2):
        pq.write_table(rows, place / "day=é" / f"{n}foreign.parquet")
    (place / "_delta_log" / log_entry(4)).write_text("\n".join(lines) + "\n")
    with pytest.raises(TableError, match=r"cannot compact file .* because of its name"):
        merge_all(place)
    assert rows_of(place) == sorted([*ROWS, 5, 5])


# --- damage ---------------------------------------------------------------------------------------


def landed(place: Path, numbers: range) -> None:
    """Files as a landing writes them."""
    made = random.Random(numbers.start)
    rows = pa.record_batch(
        {
            "a": list(numbers),
            "topic": [made.choice("abc") * 3 for _ in numbers],
            "x": [float("nan"), *(made.random() for _ in numbers[1:])],
            "payload": [made.randbytes(20) for _ in numbers],
        }
    )
    if not place.exists():
        DeltaTable.create(place, rows.schema)
    table = DeltaTable(place)
    table.create_write_transaction(
        [
            AddAction(each.path, each.size, each.partition, each.modified, True, each.statistics)
            for each in write_files([rows], TableLayout(str(place)))
        ],
        "append",
        table.schema(),
    )


@pytest.mark.slow
def test_no_flipped_bit_is_copied_into_a_merged_file(tmp_path: Path) -> None:
    place = tmp_path / "t"
    for start in (0, 100, 200):
        landed(place, range(start, start + 100))
    before = repr(DeltaTable(place).to_pyarrow_table().sort_by("a").to_pylist())
    path = place / list_files(DeltaTable(place))[0].path
    data = path.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    chosen = random.Random(12)
    refused = 0
    for attempt in range(120):
        # Half of them in the footer, which page checksums do not cover.
        first = len(data) - footer if attempt % 2 else 0
        bit = chosen.randrange(first * 8, len(data) * 8)
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        copy = tmp_path / "copy"
        shutil.copytree(place, copy)
        (copy / path.name).write_bytes(damaged)
        try:
            merge_all(copy)
            found = DeltaTable(copy).to_pyarrow_table().sort_by("a").to_pylist()
            assert repr(found) == before, f"bit {bit} of {len(data)} bytes, footer {footer}"
        except DamagedFile as problem:
            if path.name not in str(problem) or DeltaTable(copy).version() != 3:
                raise
            refused += 1
        shutil.rmtree(copy)
    assert refused > 60
    assert merge_all(place).rows == 300


def test_a_new_file_that_reads_otherwise_than_it_was_written_is_not_committed(
    place: Path,
) -> None:
    class DamagingFolder(TableFolder):
        """What bad memory does: the rows are others, and the checksums are right."""

        def fsync(self, path: str) -> int:
            rows = pq.read_table(place / path)
            pq.write_table(rows.set_column(0, "a", pc.add(rows["a"], 1)), place / path)
            return super().fsync(path)

    before = set(place.rglob("*.parquet"))
    with pytest.raises(TableError, match=r"just written, differs from .*nothing was committed"):
        merge_all(place, folder=DamagingFolder(str(place)))
    assert DeltaTable(place).version() == 3
    assert set(place.rglob("*.parquet")) == before
    assert rows_of(place) == ROWS


# --- beside others --------------------------------------------------------------------------------
# A compaction reads its table again only before its commit: what others have committed since it was
# loaded comes in between.


def test_appends_and_compactions_do_not_stand_in_each_others_way(place: Path) -> None:
    table = DeltaTable(place)
    append(place, 4)
    loaded = DeltaTable(place)
    assert merge_all(place, table).version == 5
    assert rows_of(place) == sorted([*ROWS, 4, 1004])
    # A landing that read the table before the compaction commits after it, at its first attempt.
    write_deltalake(
        loaded,
        pa.table({"a": [7], "day": ["x"]}),
        mode="append",
        commit_properties=CommitProperties(
            app_transactions=[Transaction(position_id("all", "n1"), 7)]
        ),
    )
    assert rows_of(place) == sorted([*ROWS, 4, 1004, 7])
    assert DeltaTable(place).version() == 6


def test_of_two_compactions_of_the_same_files_one_loses_and_no_row_is_doubled(
    place: Path,
) -> None:
    table = DeltaTable(place)
    merge_all(place)
    with pytest.raises(Overtaken):
        merge_all(place, table)
    assert rows_of(place) == ROWS
    assert DeltaTable(place).version() == 4


def test_a_compaction_of_delta_rs_that_comes_first_wins(place: Path) -> None:
    table = DeltaTable(place)
    DeltaTable(place).optimize.compact()
    with pytest.raises(Overtaken):
        merge_all(place, table)
    assert rows_of(place) == ROWS


@pytest.mark.parametrize("how", ["delete", "restore", "overwrite"])
def test_rows_that_others_take_away_meanwhile_do_not_come_back(place: Path, how: str) -> None:
    table = DeltaTable(place)
    if how == "delete":
        DeltaTable(place).delete("a = 0")
    elif how == "restore":
        DeltaTable(place).restore(1)
    else:
        write_deltalake(place, pa.table({"a": [5], "day": ["x"]}), mode="overwrite")
    with pytest.raises(Overtaken):
        merge_all(place, table)
    left = {"delete": [1, 2, 3, 1000, 1001, 1002, 1003], "restore": [0, 1, 1000, 1001]}
    assert rows_of(place) == left.get(how, [5])


def test_a_commit_that_was_made_though_it_failed_is_found(place: Path) -> None:
    class LosingTable(DeltaTable):
        def create_write_transaction(self, *arguments: Any, **named: Any) -> None:
            super().create_write_transaction(*arguments, **named)
            raise DeltaError("connection reset")

    assert merge_all(place, LosingTable(place)).version == 4
    assert rows_of(place) == ROWS


def test_a_table_that_cannot_be_written_is_told(place: Path) -> None:
    class RefusingTable(DeltaTable):
        def create_write_transaction(self, *arguments: Any, **named: Any) -> None:
            raise DeltaError("no right to write")

    with pytest.raises(TableError, match="no right to write"):
        merge_all(place, RefusingTable(place))


def test_new_files_are_on_disk_before_the_commit(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        really(descriptor)

    class NotedTable(DeltaTable):
        def create_write_transaction(self, *arguments: Any, **named: Any) -> None:
            synced.append("commit")
            super().create_write_transaction(*arguments, **named)

    monkeypatch.setattr(os, "fsync", fsync)
    merge_all(place, NotedTable(place))
    (new,) = list_files(DeltaTable(place))
    at = synced.index("commit")
    assert str(place / new.path) in synced[:at]
    assert str((place / new.path).parent) in synced[:at]
    assert str(place / "_delta_log" / log_entry(4)) in synced[at:]

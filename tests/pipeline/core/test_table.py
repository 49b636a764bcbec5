"""Commits to a Delta table: exactly once, by batch or by the rows' own numbers."""

import json
import os
import random
import shutil
import socket
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.table import TableAlterer

from semel.pipeline.app_transactions import copy_id, position_id, query_id
from semel.pipeline.errors import DataLoss, TableError
from semel.pipeline.files import UNIQUE, DataFile, Run, TableLayout, write_files
from semel.pipeline.stream_record import StreamRecord
from semel.pipeline.table import CommitOutcome, LandingBatch, Table

Range = tuple[str, int, int]


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def schema(*fields: tuple[str, Any]) -> str:
    return json.dumps({"type": "struct", "fields": [field(*each) for each in fields]})


NUMBERED = schema(("node", "string"), ("seq", "long"), ("day", "string"))
PLAIN = schema(("a", "long"))


def numbered(folder: Path, *ranges: Range, task_rows: int = 1_000) -> list[DataFile]:
    """Files of these rows, as tasks with so many rows each would write them."""
    found = []
    for node, first, last in ranges:
        for start in range(first, last + 1, task_rows):
            seqs = list(range(start, min(start + task_rows, last + 1)))
            days = [f"d{seq // 10}" for seq in seqs]
            table = pa.table({"node": [node] * len(seqs), "seq": seqs, "day": days})
            layout = TableLayout(str(folder), ("day",), numbering=UNIQUE)
            found += write_files(table.to_batches(), layout)
    return found


def of_stream(files: Sequence[DataFile], **more: Any) -> LandingBatch:
    return LandingBatch(files, NUMBERED, ("day",), stream="all", **more)


class Made(StreamRecord):
    """A record of which a test says what it has."""

    def __init__(self, held: dict[str, list[Run]], owners: dict[str, list[str]]) -> None:
        super().__init__("unused", "all")
        self._held = held
        self._given = owners

    def ranges(self, node: str) -> list[Run]:
        return self._held.get(node, [])

    def owners(self, nodes: Iterable[str]) -> dict[str, list[str]]:
        return {node: self._given.get(node, []) for node in nodes}


def record(**held: list[Run]) -> StreamRecord:
    return Made(held, {})


def owned(**owners: list[str]) -> StreamRecord:
    """Nodes that begin with row 1, and whose they are."""
    return Made({node: [(1, 1_000)] for node in owners}, owners)


def land(folder: Path, *ranges: Range, task_rows: int = 1_000, **more: Any) -> CommitOutcome:
    files = numbered(folder, *ranges, task_rows=task_rows)
    return Table(str(folder)).commit(of_stream(files, **more))


def plain(folder: Path, *values: int, **more: Any) -> CommitOutcome:
    files = write_files(pa.table({"a": list(values)}).to_batches(), TableLayout(str(folder)))
    return Table(str(folder)).commit(LandingBatch(files, PLAIN, **more))


def rows(folder: Path) -> list[tuple[str, int]]:
    table = DeltaTable(str(folder)).to_pyarrow_table()
    return sorted(zip(table["node"].to_pylist(), table["seq"].to_pylist(), strict=True))


def values(folder: Path) -> list[int]:
    found: list[int] = DeltaTable(str(folder)).to_pyarrow_table()["a"].to_pylist()
    return sorted(found)


def of(node: str, first: int, last: int) -> list[tuple[str, int]]:
    return [(node, seq) for seq in range(first, last + 1)]


# --- by batch -------------------------------------------------------------------------------------


def test_a_batch_is_one_commit_that_says_query_and_number(tmp_path: Path) -> None:
    outcome = plain(tmp_path, 1, 2, query="q", number=0)
    assert (outcome.is_committed, outcome.rows, outcome.known) == (True, 2, 0)
    table = DeltaTable(str(tmp_path))
    assert table.transaction_version(query_id("q")) == 0
    assert values(tmp_path) == [1, 2]


def test_a_new_table_without_partitions_is_said_once_with_the_name_of_the_option(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A writer in Python never learns of Spark's .partitionBy()."""
    for number in range(2):
        plain(tmp_path / "plain", number)
    land(tmp_path / "numbered", ("n1", 1, 10))
    assert [each.getMessage() for each in caplog.records] == [
        f"{tmp_path / 'plain'} is created without partitions: to partition it, delete it and give"
        " option partitionBy, because Spark does not pass .partitionBy() on to a sink in Python"
    ]


def test_a_replayed_batch_is_left_out_and_the_next_one_is_not(tmp_path: Path) -> None:
    plain(tmp_path, 1, query="q", number=7)
    again = plain(tmp_path, 1, query="q", number=7)
    assert (again.is_committed, again.rows, again.known) == (False, 0, 1)
    plain(tmp_path, 2, query="q", number=8)
    assert values(tmp_path) == [1, 2]


def test_two_queries_number_their_batches_apart(tmp_path: Path) -> None:
    plain(tmp_path, 1, query="q", number=0)
    plain(tmp_path, 2, query="r", number=0)
    assert values(tmp_path) == [1, 2]


def test_batches_without_a_query_are_all_taken(tmp_path: Path) -> None:
    plain(tmp_path, 1)
    plain(tmp_path, 1)
    assert values(tmp_path) == [1, 1]


def test_an_overwrite_replaces_everything_and_is_done_once(tmp_path: Path) -> None:
    plain(tmp_path, 1, 2)
    plain(tmp_path, 3, overwrite=True, query="q", number=0)
    assert values(tmp_path) == [3]
    plain(tmp_path, 4)
    plain(tmp_path, 3, overwrite=True, query="q", number=0)
    assert values(tmp_path) == [3, 4]


def test_an_overwrite_with_no_rows_leaves_none(tmp_path: Path) -> None:
    plain(tmp_path, 1, 2)
    outcome = Table(str(tmp_path)).commit(LandingBatch([], PLAIN, overwrite=True))
    assert outcome.is_committed
    assert values(tmp_path) == []


def test_an_overwrite_with_a_new_column_is_treated_as_an_append_with_one(tmp_path: Path) -> None:
    plain(tmp_path, 1, 2)
    wide = schema(("a", "long"), ("b", "string"))
    files = write_files(pa.table({"a": [3], "b": ["x"]}).to_batches(), TableLayout(str(tmp_path)))
    with pytest.raises(TableError, match="has no column b"):
        Table(str(tmp_path)).commit(LandingBatch(files, wide, overwrite=True))
    Table(str(tmp_path)).commit(LandingBatch(files, wide, overwrite=True, may_add_columns=True))
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist() == [{"a": 3, "b": "x"}]


def test_the_files_of_a_killed_attempt_are_no_rows(tmp_path: Path) -> None:
    plain(tmp_path, 1)
    write_files(pa.table({"a": [9]}).to_batches(), TableLayout(str(tmp_path)))
    assert values(tmp_path) == [1]


# --- files that the driver does not see -----------------------------------------------------------


def test_a_file_that_is_not_there_is_refused_and_nothing_is_committed(tmp_path: Path) -> None:
    """Workers that do not share the storage of the driver have written it somewhere else."""
    files = numbered(tmp_path / "other", ("a", 1, 10))
    table = Table(str(tmp_path / "messages"))
    with pytest.raises(TableError, match="must be on storage that the driver and the") as refused:
        table.commit(of_stream(files))
    assert files[0].path in str(refused.value)
    assert f"written on {socket.gethostname()}" in str(refused.value)
    assert not (tmp_path / "messages").exists()
    # Once the table is where all of them write, the rows land.
    assert land(tmp_path / "messages", ("a", 1, 10)).rows == 10


def test_a_file_of_another_size_is_refused_and_one_of_its_size_is_not(tmp_path: Path) -> None:
    table = Table(str(tmp_path))
    files = numbered(tmp_path, ("a", 1, 25))
    whole = (tmp_path / files[1].path).read_bytes()
    (tmp_path / files[1].path).write_bytes(whole[:-1])
    with pytest.raises(TableError, match=f"{len(whole) - 1} bytes instead of {len(whole)}"):
        table.commit(of_stream(files))
    assert not (tmp_path / "_delta_log").exists()
    (tmp_path / files[1].path).write_bytes(whole)
    assert table.commit(of_stream(files)).rows == 25


# --- by the numbers of rows -----------------------------------------------------------------------


def test_the_commit_carries_the_last_seq_of_each_node(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 25), ("b", 1, 7))
    table = Table(str(tmp_path))
    assert table.positions("all", ["a", "b", "c"]) == {"a": 25, "b": 7}
    loaded = DeltaTable(str(tmp_path))
    assert loaded.version() == 1
    assert loaded.transaction_version(position_id("all", "a")) == 25
    assert rows(tmp_path) == of("a", 1, 25) + of("b", 1, 7)


def test_a_flipped_bit_in_the_last_seq_is_reported_and_nothing_is_committed(tmp_path: Path) -> None:
    """Rows 11 to 14 would be skipped, or landed again."""
    land(tmp_path, ("a", 1, 10))
    entry = tmp_path / "_delta_log" / f"{1:020}.json"
    whole = entry.read_text()
    position, copy = (
        json.dumps({"txn": {"appId": name, "version": 10}}, separators=(",", ":"))
        for name in (position_id("all", "a"), copy_id("all", "a"))
    )
    for line in (position, copy):
        assert line in whole
        for damaged in (line.replace("10", "14"), line.replace("/a", "/c")):
            entry.write_text(whole.replace(line, damaged))
            if damaged == copy.replace("/a", "/c"):
                # The log of an earlier version of semel.
                continue
            for batch in (("a", 11, 20), ("a", 1, 20)):
                with pytest.raises(TableError) as refused:
                    land(tmp_path, batch)
                assert str(refused.value).startswith(f"{tmp_path}: its log is damaged: of stream")
                assert "node a, it says that row" in str(refused.value)
                assert "restore _delta_log from a backup, or" in str(refused.value)
            assert DeltaTable(str(tmp_path)).version() == 1
    entry.write_text(whole)
    assert land(tmp_path, ("a", 1, 20)).rows == 10
    assert rows(tmp_path) == of("a", 1, 20)


def test_a_table_of_an_earlier_version_has_no_copies_of_the_last_seq(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 10))
    entry = tmp_path / "_delta_log" / f"{1:020}.json"
    lines = entry.read_text().splitlines(keepends=True)
    entry.write_text("".join(line for line in lines if copy_id("all", "a") not in line))
    assert land(tmp_path, ("a", 11, 20)).rows == 10
    assert DeltaTable(str(tmp_path)).transaction_version(copy_id("all", "a")) == 20


def test_a_batch_that_goes_on_is_taken(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 10))
    assert land(tmp_path, ("a", 11, 20)).rows == 10
    assert rows(tmp_path) == of("a", 1, 20)


def test_a_batch_that_is_there_is_left_out_whatever_its_number(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 10), query="q", number=3)
    outcome = land(tmp_path, ("a", 1, 10), query="other", number=9)
    assert (outcome.is_committed, outcome.known) == (False, 10)
    assert rows(tmp_path) == of("a", 1, 10)


@pytest.mark.slow
@pytest.mark.parametrize("task_rows", [1_000, 7, 3])
def test_a_batch_that_is_partly_there_is_trimmed(tmp_path: Path, task_rows: int) -> None:
    land(tmp_path, ("a", 1, 25), ("b", 1, 5))
    outcome = land(tmp_path, ("a", 11, 40), ("b", 1, 9), task_rows=task_rows)
    assert (outcome.rows, outcome.known) == (19, 20)
    assert rows(tmp_path) == of("a", 1, 40) + of("b", 1, 9)
    assert polars.read_delta(str(tmp_path)).height == 49
    # The rows that were written anew are in the partition that they were in.
    table = DeltaTable(str(tmp_path)).to_pyarrow_table()
    pairs = zip(table["seq"].to_pylist(), table["day"].to_pylist(), strict=True)
    assert all(day == f"d{seq // 10}" for seq, day in pairs)


def test_an_old_number_of_a_batch_with_new_rows_is_taken(tmp_path: Path) -> None:
    """A checkpoint from a backup gives the numbers of its batches a second time."""
    land(tmp_path, ("a", 1, 10), query="q", number=5)
    assert land(tmp_path, ("a", 6, 15), query="q", number=5).rows == 5
    assert rows(tmp_path) == of("a", 1, 15)


def test_a_gap_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 10))
    with pytest.raises(DataLoss, match="lacks rows 11 to 12 of stream all, node a") as refused:
        land(tmp_path, ("a", 13, 20))
    assert "remove the checkpoint" in str(refused.value)
    assert DeltaTable(str(tmp_path)).version() == 1
    assert land(tmp_path, ("a", 11, 20)).rows == 10


def test_a_gap_is_allowed_only_where_the_record_lacks_the_rows(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 10))
    has_some = record(a=[(1, 10), (12, 12), (15, 20)])
    with pytest.raises(DataLoss, match=r"lacks rows 11 to 14 .* the record has row 12"):
        land(tmp_path, ("a", 15, 20), may_skip=True, record=has_some)
    with pytest.raises(DataLoss, match="option root"):
        land(tmp_path, ("a", 15, 20), may_skip=True)
    lacks_them = record(a=[(15, 20)])
    with pytest.raises(DataLoss, match="the record lacks them as well"):
        land(tmp_path, ("a", 15, 20), record=lacks_them)
    assert rows(tmp_path) == of("a", 1, 10)
    assert land(tmp_path, ("a", 15, 20), may_skip=True, record=lacks_them).rows == 6
    assert Table(str(tmp_path)).positions("all", "a") == {"a": 20}


def test_rows_that_are_missing_within_a_batch_are_refused(tmp_path: Path) -> None:
    parts: tuple[Range, ...] = (("a", 1, 3), ("a", 6, 9))
    with pytest.raises(DataLoss, match="rows 4 to 5 are missing"):
        land(tmp_path, *parts, record=record(a=[(1, 3), (6, 9)]))
    with pytest.raises(DataLoss, match=r"rows 4 to 5 are missing, .* the record has row 5"):
        land(tmp_path, *parts, may_skip=True, record=record(a=[(1, 3), (5, 9)]))
    assert land(tmp_path, *parts, may_skip=True, record=record(a=[(1, 3), (6, 9)])).rows == 7


def test_a_deleted_table_is_not_made_anew_without_rows_that_the_record_has(tmp_path: Path) -> None:
    """What a checkpoint takes for landed is not called gone while the record has it."""
    folder = tmp_path / "messages"
    with pytest.raises(DataLoss, match=r"lacks rows 1 to 10 .* the record has rows 1 to 10"):
        land(folder, ("a", 11, 20), may_skip=True, record=record(a=[(1, 20)]))
    assert not (folder / "_delta_log").exists()
    assert land(folder, ("a", 11, 20), may_skip=True, record=record(a=[(11, 20)])).rows == 10


def test_rows_that_come_twice_within_a_batch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="row 3 is duplicated"):
        land(tmp_path, ("a", 1, 3), ("a", 3, 5))
    # A row that is missing does not make up for one that comes twice, nor does leave to skip.
    with pytest.raises(TableError, match="row 3 is duplicated"):
        land(tmp_path, ("a", 1, 3), ("a", 3, 4), ("a", 6, 6), may_skip=True)


def test_a_new_table_takes_rows_from_where_the_record_begins(tmp_path: Path) -> None:
    """Retention has deleted what was before."""
    assert land(tmp_path, ("a", 101, 110), record=record(a=[(101, 110)])).rows == 10


def test_a_deleted_table_is_not_made_anew_from_the_middle(tmp_path: Path) -> None:
    folder = tmp_path / "messages"
    land(folder, ("a", 1, 10), record=record(a=[(1, 60)]))
    shutil.rmtree(folder)
    files = numbered(folder, ("a", 11, 20))
    with pytest.raises(DataLoss, match="lacks rows 1 to 10"):
        Table(str(folder)).commit(of_stream(files, record=record(a=[(1, 60)])))
    assert not (folder / "_delta_log").exists()
    assert land(folder, ("a", 1, 20), record=record(a=[(1, 60)])).rows == 20


def test_a_new_node_begins_at_its_own_beginning(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 10), record=record(a=[(1, 60)]))
    with pytest.raises(DataLoss, match="lacks rows 3 to 4 of stream all, node b"):
        land(tmp_path, ("b", 5, 9), record=record(a=[(1, 10)], b=[(3, 9)]))
    assert land(tmp_path, ("b", 3, 9), record=record(a=[(1, 10)], b=[(3, 9)])).rows == 7


def test_a_table_of_a_stream_takes_no_other_rows(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 10))
    files = numbered(tmp_path, ("a", 1, 10))
    for overwrite in (False, True):
        with pytest.raises(TableError, match="is the table of a stream"):
            Table(str(tmp_path)).commit(
                LandingBatch(files, NUMBERED, ("day",), overwrite=overwrite)
            )
    assert rows(tmp_path) == of("a", 1, 10)


def test_a_table_takes_one_stream(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 10))
    files = numbered(tmp_path, ("a", 1, 10))
    with pytest.raises(TableError, match="is not a table of stream other"):
        Table(str(tmp_path)).commit(LandingBatch(files, NUMBERED, ("day",), stream="other"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_whatever_order_batches_come_in_each_row_is_there_once(tmp_path: Path, seed: int) -> None:
    """Lost, copied, foreign checkpoints and second landings are batches in any order."""
    choose = random.Random(seed)
    landed = {"a": 0, "b": 0}
    for number in range(25):
        wanted: list[Range] = []
        for node in choose.sample(["a", "b"], choose.randint(1, 2)):
            first = max(1, landed[node] + choose.choice([-15, -3, 1, 1, 1, 2, 9]))
            wanted.append((node, first, first + choose.randint(0, 30)))
        gap = any(first > landed[node] + 1 for node, first, _ in wanted)
        there = record(a=[(1, 10_000)], b=[(1, 10_000)])
        try:
            land(
                tmp_path,
                *wanted,
                task_rows=choose.choice([1_000, 5]),
                record=there,
                query=choose.choice("xyz"),
                number=choose.randint(0, number),
            )
        except DataLoss:
            assert gap
        else:
            assert not gap
            for node, _, last in wanted:
                landed[node] = max(landed[node], last)
    assert rows(tmp_path) == of("a", 1, landed["a"]) + of("b", 1, landed["b"])
    positions = Table(str(tmp_path)).positions("all", ["a", "b"])
    assert positions == {node: at for node, at in landed.items() if at}


def test_writers_at_once_neither_double_nor_skip(tmp_path: Path) -> None:
    """Zombies: all of them land the same record, in batches of their own."""
    folder = tmp_path / "messages"
    problems: list[BaseException] = []

    def write(size: int) -> None:
        try:
            for first in range(1, 61, size):
                land(folder, ("a", first, min(first + size - 1, 60)), record=record(a=[(1, 60)]))
        except BaseException as problem:
            problems.append(problem)

    writers = [threading.Thread(target=write, args=(size,)) for size in (4, 5, 7, 60)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert problems == []
    assert rows(folder) == of("a", 1, 60)


def test_a_table_that_was_restored_is_refused_until_that_is_undone(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 10))
    land(tmp_path, ("a", 11, 25))
    DeltaTable(str(tmp_path)).restore(1)
    assert rows(tmp_path) == of("a", 1, 10)
    with pytest.raises(TableError, match=r"was restored .* restore version 2"):
        land(tmp_path, ("a", 26, 30))
    DeltaTable(str(tmp_path)).optimize.compact()
    with pytest.raises(TableError, match="was restored"):
        land(tmp_path, ("a", 11, 30))
    DeltaTable(str(tmp_path)).restore(2)
    assert land(tmp_path, ("a", 11, 30)).rows == 5
    assert rows(tmp_path) == of("a", 1, 30)


def test_what_others_do_with_care_is_no_reason_to_refuse(tmp_path: Path) -> None:
    for first in range(1, 41, 10):
        land(tmp_path, ("a", first, first + 9))
    DeltaTable(str(tmp_path)).optimize.compact()
    DeltaTable(str(tmp_path)).vacuum(dry_run=False)
    assert land(tmp_path, ("a", 41, 50)).rows == 10
    assert rows(tmp_path) == of("a", 1, 50)


def test_another_record_with_the_name_of_a_node_is_refused(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 10), record=owned(a=["s1"]))
    assert land(tmp_path, ("a", 11, 20), record=owned(a=["s1"])).rows == 10
    with pytest.raises(TableError, match="node a of stream all now belongs to another store"):
        land(tmp_path, ("a", 21, 30), record=owned(a=["s2"]))
    # Adopted: its numbers go on.
    assert land(tmp_path, ("a", 21, 30), record=owned(a=["s2", "s1"])).rows == 10
    assert land(tmp_path, ("a", 31, 40), record=owned(a=["s2"])).rows == 10
    # Who does not know whose they are is not asked.
    assert land(tmp_path, ("a", 41, 50)).rows == 10
    assert rows(tmp_path) == of("a", 1, 50)


def test_positions_outlive_checkpoints_and_cleaning_of_the_log(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 10))
    land(tmp_path, ("a", 11, 12))
    DeltaTable(str(tmp_path)).create_checkpoint()
    for entry in (0, 1):
        (tmp_path / "_delta_log" / f"{entry:020}.json").unlink()
    assert Table(str(tmp_path)).positions("all", "a") == {"a": 12}
    assert land(tmp_path, ("a", 1, 14)).rows == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["a b", "a/b", "50%", "ü", "a:b", "a=b", "'\"\\\n", "😀", "%2F", "a+b", ".", "..", None]
)
def test_a_partition_with_any_sign_is_found_by_its_readers(
    tmp_path: Path, text: str | None
) -> None:
    table = pa.table({"a": [1], "t": pa.array([text], pa.string())})
    files = write_files(table.to_batches(), TableLayout(str(tmp_path), ("t",)))
    Table(str(tmp_path)).commit(LandingBatch(files, schema(("a", "long"), ("t", "string")), ("t",)))
    expected = [{"a": 1, "t": text}]
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist() == expected
    assert polars.read_delta(str(tmp_path)).to_dicts() == expected


def test_a_partition_by_a_moment_is_found_by_its_readers(tmp_path: Path) -> None:
    moment = datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC)
    table = pa.table({"a": [1], "t": pa.array([moment], pa.timestamp("us", tz="UTC"))})
    files = write_files(table.to_batches(), TableLayout(str(tmp_path), ("t",)))
    Table(str(tmp_path)).commit(
        LandingBatch(files, schema(("a", "long"), ("t", "timestamp")), ("t",))
    )
    assert DeltaTable(str(tmp_path)).to_pyarrow_table()["t"].to_pylist() == [moment]
    assert polars.read_delta(str(tmp_path))["t"].to_list() == [moment]


# --- the table itself -----------------------------------------------------------------------------


def test_the_protocol_is_one_that_every_reader_knows(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 3))
    protocol = DeltaTable(str(tmp_path)).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert not protocol.reader_features
    assert not protocol.writer_features


def test_a_column_that_is_new_is_added_if_that_is_wanted(tmp_path: Path) -> None:
    plain(tmp_path, 1)
    wide = schema(("a", "long"), ("b", "string"))
    files = write_files(pa.table({"a": [2], "b": ["x"]}).to_batches(), TableLayout(str(tmp_path)))
    with pytest.raises(TableError, match="has no column b: set mergeSchema to true"):
        Table(str(tmp_path)).commit(LandingBatch(files, wide))
    Table(str(tmp_path)).commit(LandingBatch(files, wide, may_add_columns=True))
    plain(tmp_path, 3)
    found = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("a").to_pydict()
    assert found == {"a": [1, 2, 3], "b": [None, "x", None]}


def test_a_column_that_others_always_come_before_is_told_after_a_few_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain(tmp_path, 1)
    tries = []

    def lose(self: TableAlterer, fields: Any) -> None:
        tries.append(fields)
        if len(tries) > 100:
            pytest.fail("it never gives up")
        DeltaTable(tmp_path).alter.set_table_description(f"another writer's change {len(tries)}")
        raise CommitFailedError("another writer changed the table")

    monkeypatch.setattr(TableAlterer, "add_columns", lose)
    wider = schema(("a", "long"), ("b", "string"))
    files = write_files(pa.table({"a": [2], "b": ["x"]}).to_batches(), TableLayout(str(tmp_path)))
    batch = LandingBatch(files, wider, may_add_columns=True)
    with pytest.raises(TableError, match=r"b cannot be added: other writers .*10 times in a row"):
        Table(str(tmp_path)).commit(batch)
    assert len(tries) == 10
    monkeypatch.undo()
    assert Table(str(tmp_path)).commit(batch).rows == 1
    assert values(tmp_path) == [1, 2]


def test_a_column_of_another_type_is_refused_by_name(tmp_path: Path) -> None:
    plain(tmp_path, 1)
    files = write_files(pa.table({"a": ["x"]}).to_batches(), TableLayout(str(tmp_path)))
    with pytest.raises(TableError, match="column a is long in the table, but string in the rows"):
        Table(str(tmp_path)).commit(
            LandingBatch(files, schema(("a", "string")), may_add_columns=True)
        )
    assert values(tmp_path) == [1]


def test_a_column_that_differs_by_case_alone_is_refused(tmp_path: Path) -> None:
    plain(tmp_path, 1)
    files = write_files(pa.table({"A": [1]}).to_batches(), TableLayout(str(tmp_path)))
    with pytest.raises(TableError, match="column A is called a in the table"):
        Table(str(tmp_path)).commit(
            LandingBatch(files, schema(("A", "long")), may_add_columns=True)
        )


def test_what_may_be_null_here_is_refused_by_a_column_that_is_not(tmp_path: Path) -> None:
    strict = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    write_deltalake(str(tmp_path), pa.table({"a": [1]}, schema=strict))
    with pytest.raises(TableError, match="column a is NOT NULL in the table"):
        plain(tmp_path, 2)
    files = write_files(pa.table({"a": [2]}).to_batches(), TableLayout(str(tmp_path)))
    never = PLAIN.replace('"nullable": true', '"nullable": false')
    Table(str(tmp_path)).commit(LandingBatch(files, never))
    assert values(tmp_path) == [1, 2]


def test_a_new_table_may_have_nulls_everywhere(tmp_path: Path) -> None:
    kind = {"type": "array", "elementType": "long", "containsNull": False}
    given = schema(("a", kind)).replace('"nullable": true', '"nullable": false')
    data = pa.table({"a": pa.array([[1]], pa.list_(pa.int64()))})
    for _ in range(2):
        files = write_files(data.to_batches(), TableLayout(str(tmp_path)))
        Table(str(tmp_path)).commit(LandingBatch(files, given))
        given = schema(("a", {**kind, "containsNull": True}))
    (found,) = DeltaTable(str(tmp_path)).schema().fields
    assert found.nullable
    assert json.loads(found.type.to_json())["containsNull"]


def test_an_overwrite_of_a_table_that_only_grows_is_refused_in_its_own_words(
    tmp_path: Path,
) -> None:
    settings = {"delta.appendOnly": "true"}
    write_deltalake(str(tmp_path), pa.table({"a": [1]}), configuration=settings)
    with pytest.raises(TableError, match=r"(?i)append.?only"):
        plain(tmp_path, 2, overwrite=True)
    plain(tmp_path, 2)
    assert values(tmp_path) == [1, 2]


def test_another_partitioning_is_refused(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 3))
    files = write_files(pa.table({"a": [1]}).to_batches(), TableLayout(str(tmp_path)))
    with pytest.raises(TableError, match="partitioned by day, not by nothing"):
        Table(str(tmp_path)).commit(LandingBatch(files, PLAIN))


def test_a_table_of_others_is_appended_to(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"a": [1]}))
    plain(tmp_path, 2)
    assert values(tmp_path) == [1, 2]


def test_a_table_that_asks_for_more_than_we_do_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"a": [1]}))
    DeltaTable(str(tmp_path)).alter.add_constraint({"small": "a < 2"})
    with pytest.raises(TableError, match=r"requires writer feature delta\.constraints\.small"):
        plain(tmp_path, 2)
    assert values(tmp_path) == [1]


def test_a_table_that_asks_for_what_an_append_does_anyway_is_appended_to(tmp_path: Path) -> None:
    # An append needs no change data: the rows themselves are what changed.
    settings = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(str(tmp_path), pa.table({"a": [1]}), configuration=settings)
    plain(tmp_path, 2)
    assert values(tmp_path) == [1, 2]


def test_the_log_entry_is_synced_before_a_commit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    plain(tmp_path, 1)
    monkeypatch.setattr(os, "fsync", note)
    plain(tmp_path, 2)
    data = [place for place, name in enumerate(synced) if name.endswith(".parquet")]
    log = synced.index(str(tmp_path / "_delta_log" / f"{2:020}.json"))
    assert data[0] < log
    assert str(tmp_path / "_delta_log") in synced[log:]


def test_a_batch_that_is_found_committed_is_synced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who committed it may have been killed between the commit and its sync."""
    plain(tmp_path, 1, query="q", number=0)
    synced: list[str] = []
    real = os.fsync

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    plain(tmp_path, 1, query="q", number=0)
    assert str(tmp_path / "_delta_log" / f"{1:020}.json") in synced


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises((TableError, OSError)):
        plain(tmp_path / "file" / "table", 1)

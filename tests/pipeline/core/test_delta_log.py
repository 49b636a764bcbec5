"""Delta's log, entry by entry, and what a RESTORE has taken back."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema

from semel.pipeline.compaction import compact, plan_all
from semel.pipeline.delta_log import DeltaLog, LogEntry, Rollback, find_rollback, log_entry
from semel.pipeline.errors import TableError
from semel.pipeline.files import TableLayout, write_files
from semel.pipeline.live_files import list_files
from semel.pipeline.table import LandingBatch, Table
from semel.store.roots import open_root
from tests.pipeline.core.test_table import land, of, plain, rows, values


def add_entry(table: Path, version: int) -> None:
    """A commit of somebody who does not say what he did, which Delta allows."""
    entry = table / "_delta_log" / log_entry(version)
    entry.write_text(json.dumps({"txn": {"appId": "somebody", "version": version}}) + "\n")


def is_ours(entry: LogEntry) -> bool:
    return bool(entry.rows_landed)


def rollback(table: Path) -> Rollback | None:
    newest = DeltaTable(str(table)).version()
    return find_rollback(DeltaLog(open_root(table)), newest, is_ours)


# --- entries --------------------------------------------------------------------------------------


def test_an_entry_tells_its_files_its_rows_and_its_transactions(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 12))
    log = DeltaLog(open_root(tmp_path))
    entry = log.entry(1)
    assert (entry.version, entry.operation, entry.rows_landed) == (1, "WRITE", 12)
    assert entry.transactions == {"semel/stream/all/a": 12, "semel/copy/all/a": 12}
    assert sorted(entry.added_paths) == sorted(
        str(path.relative_to(tmp_path)) for path in tmp_path.glob("day=*/*.parquet")
    )
    assert entry.milliseconds is not None
    assert abs(entry.milliseconds / 1000 - log.written(1)) < 60
    assert [each.version for each in log.back(1)] == [1, 0]


@pytest.mark.parametrize("character", ["\u0085", "\u2028", "\u2029"])
def test_a_text_may_contain_other_line_breaks_than_those_of_the_log(
    tmp_path: Path, character: str
) -> None:
    """JSON need not escape them, and delta-rs does not: they are in bounds and in partitions."""
    path = str(tmp_path)
    schema = pa.schema([("place", pa.string()), ("topic", pa.string())])
    layout = TableLayout(path, ("place",))
    for number in range(2):
        text = f"plant/{character}{number}"
        rows_of_batch = pa.table({"place": [text], "topic": [text]}, schema=schema)
        batch = LandingBatch(
            write_files(rows_of_batch.to_batches(), layout),
            from_arrow_schema(schema).json(),
            partition_by=("place",),
            query="q",
            number=number,
        )
        assert Table(path).commit(batch).is_committed
    entries = list(DeltaLog(open_root(tmp_path)).back(2))
    assert [len(each.added) for each in entries] == [1, 1, 0]
    assert character in (tmp_path / "_delta_log" / log_entry(2)).read_text("utf-8")


def test_an_entry_that_does_not_say_what_was_done_has_its_own_version(tmp_path: Path) -> None:
    plain(tmp_path, 1)
    add_entry(tmp_path, 2)
    plain(tmp_path, 2)
    log = DeltaLog(open_root(tmp_path))
    assert [each.operation for each in log.back(3)] == ["WRITE", "", "WRITE", "CREATE TABLE"]
    assert log.entry(2).milliseconds is None
    assert log.written(2) > 0


def test_entries_end_where_the_log_was_cleaned(tmp_path: Path) -> None:
    for value in range(3):
        plain(tmp_path, value)
    DeltaTable(str(tmp_path)).create_checkpoint()
    for version in (0, 1):
        (tmp_path / "_delta_log" / log_entry(version)).unlink()
    assert [each.version for each in DeltaLog(open_root(tmp_path)).back(3)] == [3, 2]


@pytest.mark.parametrize("text", ['{"add": {"path', "\0" * 90, '["add"]', '{"txn": {"appId": 1}}'])
def test_a_damaged_entry_is_named(tmp_path: Path, text: str) -> None:
    plain(tmp_path, 1)
    (tmp_path / "_delta_log" / log_entry(1)).write_text(text)
    with pytest.raises(TableError, match=rf"_delta_log/{log_entry(1)} is damaged"):
        DeltaLog(open_root(tmp_path)).entry(1)


# --- what a RESTORE has taken back ----------------------------------------------------------------


def test_a_restore_to_what_was_there_is_harmless_after_an_entry_that_says_nothing(
    tmp_path: Path,
) -> None:
    land(tmp_path, ("a", 1, 10))
    land(tmp_path, ("a", 11, 25))
    add_entry(tmp_path, 3)
    DeltaTable(str(tmp_path)).restore(2)
    assert rollback(tmp_path) is None
    assert land(tmp_path, ("a", 26, 30)).rows == 5
    assert rows(tmp_path) == of("a", 1, 30)


def test_a_restore_that_took_rows_is_refused_with_the_right_version_after_such_an_entry(
    tmp_path: Path,
) -> None:
    land(tmp_path, ("a", 1, 10))
    add_entry(tmp_path, 2)
    land(tmp_path, ("a", 11, 25))
    add_entry(tmp_path, 4)
    DeltaTable(str(tmp_path)).restore(1)
    assert rollback(tmp_path) == Rollback(version=5, intact=3)
    with pytest.raises(TableError, match=r"was restored .* restore version 3"):
        land(tmp_path, ("a", 26, 30))
    DeltaTable(str(tmp_path)).restore(3)
    assert land(tmp_path, ("a", 26, 30)).rows == 5
    assert rows(tmp_path) == of("a", 1, 30)


def test_a_restore_to_a_version_that_a_restore_had_made_is_followed(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 10))
    land(tmp_path, ("a", 11, 25))
    DeltaTable(str(tmp_path)).restore(1)
    DeltaTable(str(tmp_path)).optimize.compact()
    add_entry(tmp_path, DeltaTable(str(tmp_path)).version() + 1)
    # This version is later than our last commit, and does not have its rows all the same.
    DeltaTable(str(tmp_path)).restore(3)
    assert rows(tmp_path) == of("a", 1, 10)
    found = rollback(tmp_path)
    assert found is not None
    assert found.intact == 2
    DeltaTable(str(tmp_path)).restore(2)
    assert rollback(tmp_path) is None


def test_a_restore_to_a_time_is_judged_by_the_files_that_it_left(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 10))
    land(tmp_path, ("a", 11, 25))
    add_entry(tmp_path, 3)
    entry = tmp_path / "_delta_log" / log_entry(4)
    by_time = {"operation": "RESTORE", "operationParameters": {"datetime": "1794854339153"}}
    entry.write_text(json.dumps({"commitInfo": by_time}) + "\n")
    assert rollback(tmp_path) is None
    DeltaTable(str(tmp_path)).restore(datetime.now(UTC) - timedelta(days=1))
    assert rows(tmp_path) != of("a", 1, 25)
    assert rollback(tmp_path) == Rollback(version=5, intact=2)


def test_a_restore_to_a_time_is_harmless_after_the_landed_files_were_compacted(
    tmp_path: Path,
) -> None:
    for first in (1, 6, 11, 16):
        land(tmp_path, ("a", first, first + 4))
    table = DeltaTable(str(tmp_path))
    compact(str(tmp_path), table, plan_all(list_files(table), 2**30))
    between = pause()
    DeltaTable(str(tmp_path)).alter.set_table_description("changed")
    DeltaTable(str(tmp_path)).restore(between)
    assert rows(tmp_path) == of("a", 1, 20)
    assert rollback(tmp_path) is None
    assert land(tmp_path, ("a", 21, 25)).rows == 5


def test_a_restore_to_a_time_before_the_landed_rows_is_found_after_a_compaction(
    tmp_path: Path,
) -> None:
    for first in (1, 6):
        land(tmp_path, ("a", first, first + 4))
    between = pause()
    land(tmp_path, ("a", 11, 15))
    table = DeltaTable(str(tmp_path))
    compact(str(tmp_path), table, plan_all(list_files(table), 2**30))
    DeltaTable(str(tmp_path)).restore(between)
    assert rows(tmp_path) == of("a", 1, 10)
    assert rollback(tmp_path) == Rollback(version=5, intact=3)
    with pytest.raises(TableError, match="restore version 3, unless its files have been vacuumed"):
        land(tmp_path, ("a", 16, 20))


def pause() -> datetime:
    """A moment that is later than all commits before, and earlier than all after it."""
    time.sleep(0.05)
    found = datetime.now(UTC)
    time.sleep(0.05)
    return found


def test_a_restore_is_judged_by_what_is_left_of_a_log_that_was_cleaned(tmp_path: Path) -> None:
    land(tmp_path, ("a", 1, 10))
    for version in (2, 3):
        add_entry(tmp_path, version)
    DeltaTable(str(tmp_path)).create_checkpoint()
    DeltaTable(str(tmp_path)).restore(2)
    for version in (0, 1):
        (tmp_path / "_delta_log" / log_entry(version)).unlink()
    # Our commit is before the oldest entry, and what was restored is not.
    assert rollback(tmp_path) is None
    (tmp_path / "_delta_log" / log_entry(2)).unlink()
    assert rollback(tmp_path) is None
    (tmp_path / "_delta_log" / log_entry(3)).unlink()
    assert rollback(tmp_path) == Rollback(version=4, intact=3)


def test_a_commit_is_looked_for_in_the_last_entries_alone_if_that_is_wanted(tmp_path: Path) -> None:
    """On a table that others write to all the time, ours may be far back."""
    land(tmp_path, ("a", 1, 10))
    for version in range(2, 9):
        add_entry(tmp_path, version)
    log = DeltaLog(open_root(tmp_path))
    assert find_rollback(log, 8, is_ours, limit=4) is None
    DeltaTable(str(tmp_path)).restore(6)
    assert find_rollback(log, 9, is_ours, limit=4) is None
    DeltaTable(str(tmp_path)).restore(1)
    # With all entries it shows that this is the version of our commit.
    assert find_rollback(log, 10, is_ours) is None
    assert find_rollback(log, 10, is_ours, limit=4) == Rollback(version=10, intact=8)


def test_a_table_without_a_commit_of_ours_lacks_nothing(tmp_path: Path) -> None:
    plain(tmp_path, 1)
    plain(tmp_path, 2)
    DeltaTable(str(tmp_path)).restore(1)
    log = DeltaLog(open_root(tmp_path))
    assert find_rollback(log, 3, lambda entry: False) is None
    assert find_rollback(log, 3, is_ours) == Rollback(version=3, intact=2)


# --- queries, whose rows have no numbers ----------------------------------------------------------


def test_a_restore_that_took_a_batch_of_a_query_is_refused(tmp_path: Path) -> None:
    plain(tmp_path, 1, query="q", number=0)
    plain(tmp_path, 2, query="q", number=1)
    DeltaTable(str(tmp_path)).restore(1)
    with pytest.raises(TableError, match=r"was restored .* restore version 2") as refused:
        plain(tmp_path, 3, query="q", number=2)
    assert "appId" in str(refused.value)
    assert values(tmp_path) == [1]
    # Others do not lack anything, nor does who goes on under another name.
    plain(tmp_path, 9)
    plain(tmp_path, 3, query="r", number=2)
    assert values(tmp_path) == [1, 3, 9]


def test_a_restore_that_was_undone_lets_a_query_go_on(tmp_path: Path) -> None:
    plain(tmp_path, 1, query="q", number=0)
    plain(tmp_path, 2, query="q", number=1)
    DeltaTable(str(tmp_path)).restore(1)
    DeltaTable(str(tmp_path)).restore(2)
    plain(tmp_path, 3, query="q", number=2)
    assert values(tmp_path) == [1, 2, 3]


def test_a_query_that_replaces_everything_goes_on_after_a_restore(tmp_path: Path) -> None:
    plain(tmp_path, 1, query="q", number=0, overwrite=True)
    plain(tmp_path, 2, query="q", number=1, overwrite=True)
    DeltaTable(str(tmp_path)).restore(1)
    plain(tmp_path, 3, query="q", number=2, overwrite=True)
    assert values(tmp_path) == [3]


def test_a_restore_between_the_look_and_the_commit_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(tmp_path, ("a", 1, 10))
    land(tmp_path, ("a", 11, 25))
    real = Table._select_new

    def meanwhile(self: Table, *arguments: object) -> object:
        if DeltaTable(str(tmp_path)).version() == 2:
            DeltaTable(str(tmp_path)).restore(1)
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Table, "_select_new", meanwhile)
    with pytest.raises(TableError, match="was restored"):
        land(tmp_path, ("a", 26, 30))
    assert rows(tmp_path) == of("a", 1, 10)


# --- damage ---------------------------------------------------------------------------------------

ANEW = "restore it from a backup"
COMPLETE = "delete it and _last_checkpoint"


def aged(folder: Path, *, cleaned: bool = False) -> Path:
    """A table with a checkpoint of its log at version 3, and two entries after it."""
    for first in range(1, 4):
        land(folder, ("a", first, first))
    DeltaTable(str(folder)).create_checkpoint()
    for first in range(4, 6):
        land(folder, ("a", first, first))
    if cleaned:
        for version in range(3):
            (folder / "_delta_log" / log_entry(version)).unlink()
    return folder / "_delta_log"


def refused(table: Path) -> str:
    with pytest.raises(TableError) as told:
        Table(str(table)).load()
    sentence = str(told.value)
    assert sentence.startswith(f"{table}: its log is damaged: ")
    assert len(sentence.split()) < 90
    for word in ("ParsedLogPath", "Kernel", "kernel", "\n"):
        assert word not in sentence
    return sentence


@pytest.mark.slow
@pytest.mark.parametrize("data", [b'{"add": {"path', b"\0" * 400, b"\xff\xfe", b'{"add": 7}\n'])
def test_a_log_with_a_damaged_entry_is_a_sentence_with_advice(tmp_path: Path, data: bytes) -> None:
    log = aged(tmp_path)
    entry = log / log_entry(5)
    whole = entry.read_bytes()
    entry.write_bytes(data)
    sentence = refused(tmp_path)
    assert f"_delta_log/{log_entry(5)}" in sentence
    assert ANEW in sentence
    entry.write_bytes(whole)
    assert land(tmp_path, ("a", 6, 6)).rows == 1


def test_a_log_that_lacks_an_entry_is_a_sentence_with_advice(tmp_path: Path) -> None:
    log = aged(tmp_path)
    (log / log_entry(4)).unlink()
    sentence = refused(tmp_path)
    assert f"_delta_log/{log_entry(4)} is missing" in sentence
    assert ANEW in sentence


def test_a_damaged_checkpoint_of_a_complete_log_can_be_deleted(tmp_path: Path) -> None:
    log = aged(tmp_path)
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    sentence = refused(tmp_path)
    assert checkpoint.name in sentence
    assert COMPLETE in sentence
    # As it says.
    checkpoint.unlink()
    (log / "_last_checkpoint").unlink()
    assert land(tmp_path, ("a", 6, 6)).rows == 1
    assert rows(tmp_path) == of("a", 1, 6)


def test_a_damaged_or_missing_checkpoint_of_a_cleaned_log_needs_a_backup(tmp_path: Path) -> None:
    log = aged(tmp_path, cleaned=True)
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    sentence = refused(tmp_path)
    assert checkpoint.name in sentence
    assert ANEW in sentence
    checkpoint.unlink()
    sentence = refused(tmp_path)
    assert "entries before version 3" in sentence
    assert ANEW in sentence


def test_a_hint_to_a_checkpoint_that_is_not_there_can_be_deleted(tmp_path: Path) -> None:
    log = aged(tmp_path)
    for checkpoint in log.glob("*.checkpoint.parquet"):
        checkpoint.unlink()
    sentence = refused(tmp_path)
    assert "_last_checkpoint" in sentence
    (log / "_last_checkpoint").unlink()
    assert land(tmp_path, ("a", 6, 6)).rows == 1


def test_an_empty_entry_is_damage_though_delta_rs_reads_it_as_no_rows(tmp_path: Path) -> None:
    """Positions after it say that its rows are there."""
    log = aged(tmp_path)
    entry = log / log_entry(4)
    whole = entry.read_bytes()
    entry.write_bytes(b"")
    assert Table(str(tmp_path)).positions("all", ["a"]) == {"a": 5}
    with pytest.raises(TableError, match=rf"its log is damaged: .*{log_entry(4)} is empty"):
        Table(str(tmp_path)).check_log()
    entry.write_bytes(whole)
    Table(str(tmp_path)).check_log()
    # What a checkpoint covers is not read any more.
    (log / log_entry(2)).write_bytes(b"")
    Table(str(tmp_path)).check_log()

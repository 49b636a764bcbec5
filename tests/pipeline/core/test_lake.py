"""A lake tells what it has, and is kept in order beside those who write and read it."""

import json
import os
import shutil
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from semel.pipeline import lake as lakes
from semel.pipeline.app_transactions import position_id
from semel.pipeline.delta_log import log_entry
from semel.pipeline.errors import TableError
from semel.pipeline.lake import (
    ATTEMPTS,
    LEAST_AGE,
    history,
    node_lags,
    open_table,
    optimize,
    table_names,
    tables,
    vacuum,
)
from semel.store.reading import NodeRecord, StreamCatalog
from tests.modes import repeats
from tests.pipeline.delta_dataset import delta_dataset
from tests.store.keeper import Keeper
from tests.up.landed import land

ROWS = pa.table({"a": [1, 2, 3], "day": ["x", "x", "y"]})
DAY = 86_400.0


def append(place: Path, seq: int, *, rows: pa.Table = ROWS) -> None:
    """A commit as a landing makes it: rows, and how far it got."""
    write_deltalake(
        place,
        rows,
        mode="append",
        partition_by=["day"],
        commit_properties=CommitProperties(
            app_transactions=[Transaction(position_id("all", "n1"), seq)]
        ),
    )


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Table t, by five commits of three rows in two files."""
    for seq in range(1, 6):
        append(tmp_path / "lake" / "t", seq * 3)
    return tmp_path / "lake"


def files_of(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*.parquet")}


def age(path: Path, days: float) -> None:
    moment = time.time() - days * DAY
    os.utime(path, (moment, moment))


# --- what there is --------------------------------------------------------------------------------


def test_a_table_is_told_in_numbers(lake: Path) -> None:
    (found,) = tables(str(lake))
    assert (found.table, found.rows, found.files, found.version) == ("t", 15, 10, 4)
    assert found.bytes == sum(path.stat().st_size for path in (lake / "t").rglob("*.parquet"))
    assert found.partition_by == ("day",)
    assert found.operation == "WRITE"
    assert found.stream is None
    assert abs(found.committed / 1e6 - time.time()) < 600
    assert found.problem is None


def test_rows_that_a_writer_did_not_count_are_counted(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", ROWS)
    entry = tmp_path / "t" / "_delta_log" / log_entry(0)
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        action.get("add", {}).pop("stats", None)
    entry.write_text("\n".join(map(json.dumps, actions)))
    assert tables(str(tmp_path))[0].rows == 3


def test_folders_that_are_no_tables_are_passed_over(lake: Path) -> None:
    (lake / "empty").mkdir()
    (lake / "_checkpoints" / "_delta_log").mkdir(parents=True)
    (lake / ".hidden" / "_delta_log").mkdir(parents=True)
    (lake / "file").write_text("")
    assert table_names(str(lake)) == ["t"]


def test_an_empty_table_has_no_rows(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "t", ROWS.schema)
    (found,) = tables(str(tmp_path))
    assert (found.rows, found.files, found.bytes) == (0, 0, 0)


def spoil(place: Path, version: int, **protocol: object) -> None:
    entry = place / "_delta_log" / log_entry(version)
    entry.write_text(json.dumps({"protocol": protocol}) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (
            "nothing",
            "there is no table at {place}: there is no such folder; the tables there are t",
        ),
        ("folder", "{place} is not a table: it has no _delta_log; the tables there are t"),
        ("file", "{place} is not a table but a file; the tables there are t"),
        ("deleted", "{place} is no longer a table: its _delta_log is empty"),
        ("reader", "{place} requires a newer version of deltalake: upgrade it"),
        ("feature", "{place} requires a newer version of deltalake: upgrade it"),
        ("broken", "{place}: "),
    ],
)
def test_what_is_no_table_is_one_sentence(lake: Path, what: str, sentence: str) -> None:
    place = lake / "x"
    if what == "folder":
        place.mkdir()
    elif what == "file":
        place.write_text("")
    elif what != "nothing":
        shutil.copytree(lake / "t", place)
    if what == "deleted":
        for entry in (place / "_delta_log").iterdir():
            entry.unlink()
    elif what == "reader":
        spoil(place, 5, minReaderVersion=9, minWriterVersion=9)
    elif what == "feature":
        features = {"readerFeatures": ["timeTravel9"], "writerFeatures": ["timeTravel9"]}
        spoil(place, 5, minReaderVersion=3, minWriterVersion=7, **features)
    elif what == "broken":
        (place / "_delta_log" / log_entry(5)).write_text("{broken")
    for ask in (open_table, history, optimize, vacuum):
        with pytest.raises(TableError) as caught:
            ask(str(lake), "x")
        assert str(caught.value).startswith(sentence.format(place=place))
        assert "\n" not in str(caught.value)
    if place.is_dir() and what != "folder":
        # In a list it stands beside the others.
        good, bad = tables(str(lake))
        assert (good.rows, good.problem) == (15, None)
        assert bad.problem is not None


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("none", "there is no lake at .*: there is no such folder"),
        ("lake/t", "is not a lake but a table: give its parent folder"),
        ("file", "is not a lake but a file"),
    ],
)
def test_what_is_no_lake_is_one_sentence(lake: Path, place: str, sentence: str) -> None:
    (lake.parent / "file").write_text("")
    with pytest.raises(TableError, match=sentence):
        tables(str(lake.parent / place))


def test_how_far_a_table_is_behind_its_record(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path / "data")
    keeper.commit(10)
    keeper.seal(4, 4)
    target = str(tmp_path / "lake")
    record = NodeRecord(keeper.root, "plant", "n1")
    with StreamCatalog(keeper.folder.path, None) as catalog:
        (new,) = node_lags(None, "plant", catalog)
        assert (new.node, new.landed, new.last, new.rows) == ("n1", 0, 10, 10)
        land(target, record, 1, 5)
        table = open_table(target, "messages")
        assert lakes.stream_of(table) == "plant"
        (one,) = node_lags(table, "plant", catalog)
        assert (one.landed, one.last, one.rows) == (5, 10, 5)
        # The table is brought up to date.
        land(target, record, 6, 8)
        keeper.commit(1)
        (one,) = node_lags(table, "plant", catalog)
        assert (one.landed, one.last, one.rows) == (8, 11, 3)
        # What was deleted after it was landed, and before.
        record.trim(4)
        assert node_lags(table, "plant", catalog)[0].rows == 3
        keeper.seal(2)
        record.trim(10)
        (one,) = node_lags(table, "plant", catalog)
        assert (one.landed, one.deleted, one.last, one.rows) == (8, 10, 11, 1)
    assert tables(target)[0].stream == "plant"
    keeper.close()


# --- history --------------------------------------------------------------------------------------


def test_history_tells_what_each_commit_did_and_how_far_a_landing_got(lake: Path) -> None:
    optimize(str(lake), "t")
    append(lake / "t", 18)
    steps = history(str(lake), "t")
    assert [step.version for step in steps] == [6, 5, 4, 3, 2, 1, 0]
    newest, merged, before = steps[:3]
    assert (newest.operation, newest.rows_added, newest.files_added) == ("WRITE", 3, 2)
    assert newest.positions == {"all/n1": 18}
    assert newest.bytes_added > 0
    assert (merged.operation, merged.files_added, merged.files_removed) == ("OPTIMIZE", 2, 10)
    assert merged.positions == {}
    assert before.positions == {"all/n1": 15}
    assert newest.committed >= merged.committed >= before.committed > 0
    assert [step.version for step in history(str(lake), "t", limit=2)] == [6, 5]


def test_commits_that_do_not_say_what_they_did_keep_their_places(lake: Path) -> None:
    before = {step.version: step for step in history(str(lake), "t")}
    for version in (1, 4):
        entry = lake / "t" / "_delta_log" / log_entry(version)
        lines = [line for line in entry.read_text().splitlines() if "commitInfo" not in line]
        entry.write_text("\n".join(lines) + "\n")
        age(entry, 3)
    steps = history(str(lake), "t")
    assert [step.version for step in steps] == [4, 3, 2, 1, 0]
    assert [step.operation for step in steps] == ["", "WRITE", "WRITE", "", "WRITE"]
    for step in steps:
        known = before[step.version]
        assert step.positions == known.positions == {"all/n1": 3 * (step.version + 1)}
        if step.operation:
            assert step == known
        else:
            assert abs(step.committed / 1e6 - (time.time() - 3 * DAY)) < 600
    (found,) = tables(str(lake))
    assert (found.operation, found.committed, found.rows) == ("", steps[0].committed, 15)


def test_history_ends_where_the_log_was_cleaned(lake: Path) -> None:
    DeltaTable(lake / "t").create_checkpoint()
    for version in (0, 1, 2):
        (lake / "t" / "_delta_log" / log_entry(version)).unlink()
    assert [step.version for step in history(str(lake), "t")] == [4, 3]
    (lake / "t" / "_delta_log" / log_entry(4)).unlink()
    (found,) = tables(str(lake))
    assert (found.problem, found.rows, found.operation, found.committed) == (None, 15, "", 0)


# --- optimize -------------------------------------------------------------------------------------


def test_optimize_merges_files_and_changes_no_row_nor_position(lake: Path) -> None:
    before = pl.read_delta(str(lake / "t")).sort("a", "day")
    old = files_of(lake / "t")
    done = optimize(str(lake), "t")
    assert (done.version, done.files_added, done.files_removed) == (5, 2, 10)
    assert done.bytes_removed > done.bytes_added > 0
    (found,) = tables(str(lake))
    assert (found.files, found.rows) == (2, 15)
    # Whoever reads an older version can go on.
    assert old < files_of(lake / "t")
    # All who read Delta tables find the same rows.
    assert pl.read_delta(str(lake / "t")).sort("a", "day").equals(before)
    table = DeltaTable(lake / "t")
    assert table.transaction_version(position_id("all", "n1")) == 15
    assert table.to_pyarrow_dataset().count_rows() == 15
    question = "select sum(a)::int, count(*)::int from t"
    with duckdb.connect() as connection:
        connection.register("t", delta_dataset(table))
        assert connection.execute(question).fetchall() == [(30, 15)]
    # There is nothing more to do.
    again = optimize(str(lake), "t")
    assert (again.version, again.files_added) == (None, 0)
    assert DeltaTable(lake / "t").version() == 5


def test_positions_outlive_a_checkpoint_and_the_log_before_it(lake: Path) -> None:
    optimize(str(lake), "t")
    DeltaTable(lake / "t").create_checkpoint()
    for version in range(5):
        (lake / "t" / "_delta_log" / log_entry(version)).unlink()
    assert DeltaTable(lake / "t").transaction_version(position_id("all", "n1")) == 15


def test_optimize_keeps_to_the_size_that_is_wanted(lake: Path) -> None:
    large = pa.table({"a": list(range(200_000)), "day": ["x"] * 200_000})
    append(lake / "t", 16, rows=large)
    append(lake / "t", 17, rows=large)
    done = optimize(str(lake), "t", target_bytes=1_000)
    # What is that large already stays as it is.
    assert done.files_removed < 12
    assert DeltaTable(lake / "t").to_pyarrow_dataset().count_rows() == 400_015


def test_what_optimize_writes_lasts(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    old = files_of(lake / "t")
    optimize(str(lake), "t")
    new = {str(lake / "t" / name) for name in files_of(lake / "t") - old}
    assert len(new) == 2
    assert new <= set(synced)
    assert synced.index(f"{lake}/t/_delta_log/{log_entry(5)}") > max(map(synced.index, new))


@pytest.mark.slow
def test_optimize_beside_a_landing_loses_and_doubles_nothing(lake: Path) -> None:
    rounds = repeats(60, 25)
    problems: list[BaseException] = []
    is_over = threading.Event()

    def landing() -> None:
        try:
            for seq in range(6, 6 + rounds):
                append(lake / "t", seq * 3)
        except BaseException as problem:
            problems.append(problem)
        finally:
            is_over.set()

    thread = threading.Thread(target=landing)
    thread.start()
    merges = 0
    while not is_over.is_set() or not merges:
        merges += optimize(str(lake), "t").version is not None
    thread.join()
    assert problems == []
    table = DeltaTable(lake / "t")
    assert table.to_pyarrow_dataset().count_rows() == 15 + 3 * rounds
    assert table.transaction_version(position_id("all", "n1")) == (5 + rounds) * 3


@pytest.mark.slow
def test_two_who_optimize_at_once_double_nothing(lake: Path) -> None:
    """delta-rs alone would: it does not see that another has merged the same files."""
    for number in range(repeats(10, 4)):
        for seq in range(4):
            append(lake / "t", 100 + number * 10 + seq)
        together = threading.Barrier(2)

        def work(barrier: threading.Barrier = together) -> None:
            barrier.wait()
            optimize(str(lake), "t")

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert DeltaTable(lake / "t").to_pyarrow_dataset().count_rows() == 15 + 12 * (number + 1)


def test_optimize_says_so_when_others_always_come_first(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.pipeline import compaction, live_files

    def lose(*_: object) -> None:
        raise live_files.Overtaken

    monkeypatch.setattr(compaction, "compact", lose)
    with pytest.raises(TableError, match="is something else compacting this table"):
        optimize(str(lake), "t")


@pytest.mark.slow
def test_optimize_counts_only_the_times_in_a_row_that_others_came_first(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semel.pipeline import compaction, live_files

    days = ATTEMPTS + 1
    for day in range(days):
        for seq in range(2):
            append(lake / "many", seq, rows=pa.table({"a": [seq], "day": [str(day)]}))
    monkeypatch.setattr(lakes, "GROUPS", 1)
    really = compaction.compact
    turns = iter(range(1_000))

    def lose_every_other(*given: Any) -> compaction.Compacted:
        if next(turns) % 2 == 0:
            raise live_files.Overtaken
        return really(*given)

    monkeypatch.setattr(compaction, "compact", lose_every_other)
    assert optimize(str(lake), "many").files_added == days


def test_a_commit_that_others_came_before_is_tried_again_and_at_last_told(lake: Path) -> None:
    tries = []

    def change(table: DeltaTable) -> int:
        tries.append(table.version())
        append(lake / "t", 100 + len(tries))
        if len(tries) < 3:
            raise CommitFailedError("a file was deleted by another")
        return len(tries)

    assert lakes._commit_with_retries(str(lake), "t", change) == (3, 7)
    # Each time from what there was then.
    assert tries == [4, 5, 6]

    def never(table: DeltaTable) -> None:
        raise CommitFailedError("a file was deleted by another")

    with pytest.raises(TableError, match="a file was deleted by another"):
        lakes._commit_with_retries(str(lake), "t", never)


# --- vacuum ---------------------------------------------------------------------------------------


@pytest.fixture
def littered(lake: Path) -> Path:
    """Beside the files of the table: orphans of two ages, and what is not the table's."""
    for name, days in (("day=x/old", 8), ("day=x/young", 6), ("old", 8), ("day=y/now", 0)):
        path = lake / "t" / f"{name}.parquet"
        path.write_bytes(b"orphan")
        age(path, days)
    (lake / "t" / "_notes").mkdir()
    (lake / "t" / "_notes" / "old.parquet").write_bytes(b"kept")
    age(lake / "t" / "_notes" / "old.parquet", 100)
    return lake


def test_vacuum_tells_what_it_would_delete_and_deletes_nothing(littered: Path) -> None:
    before = files_of(littered / "t")
    found = vacuum(str(littered), "t")
    assert found.files == ("day=x/old.parquet", "old.parquet")
    assert (found.bytes, found.is_done) == (12, False)
    assert files_of(littered / "t") == before
    assert DeltaTable(littered / "t").version() == 4


def test_vacuum_deletes_orphans_that_are_old_and_nothing_else(littered: Path) -> None:
    before = files_of(littered / "t")
    done = vacuum(str(littered), "t", run=True)
    assert done.is_done
    assert before - files_of(littered / "t") == {"day=x/old.parquet", "old.parquet"}
    assert DeltaTable(littered / "t").to_pyarrow_dataset().count_rows() == 15
    assert DeltaTable(littered / "t").transaction_version(position_id("all", "n1")) == 15
    assert vacuum(str(littered), "t", run=True).files == ()


def test_vacuum_keeps_what_was_merged_a_moment_ago_however_old_the_files(lake: Path) -> None:
    for name in files_of(lake / "t"):
        age(lake / "t" / name, 100)
    optimize(str(lake), "t")
    assert vacuum(str(lake), "t", run=True).files == ()
    assert DeltaTable(lake / "t", version=0).to_pyarrow_dataset().to_table().num_rows == 3


def test_vacuum_deletes_what_was_merged_long_ago(lake: Path) -> None:
    old = files_of(lake / "t")
    optimize(str(lake), "t")
    for name in old:
        age(lake / "t" / name, 9)
    entry = lake / "t" / "_delta_log" / log_entry(5)
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "remove" in action:
            action["remove"]["deletionTimestamp"] -= int(8 * DAY * 1000)
    entry.write_text("\n".join(map(json.dumps, actions)))
    assert vacuum(str(lake), "t", older_than=timedelta(days=10)).files == ()
    done = vacuum(str(lake), "t", run=True)
    assert set(done.files) == old
    assert DeltaTable(lake / "t").to_pyarrow_dataset().count_rows() == 15


def test_vacuum_of_files_that_a_landing_may_commit_is_refused(littered: Path) -> None:
    before = files_of(littered / "t")
    for younger in (LEAST_AGE - timedelta(seconds=1), timedelta(0)):
        for run in (True, False):
            with pytest.raises(TableError, match="keeps files of the last 7 days"):
                vacuum(str(littered), "t", run=run, older_than=younger)
    assert files_of(littered / "t") == before
    assert vacuum(str(littered), "t", older_than=LEAST_AGE).files

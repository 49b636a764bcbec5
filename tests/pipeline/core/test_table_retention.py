"""Old rows leave a table by whole files, exactly when they are old, and never come back."""

import json
import logging
import os
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from semel.pipeline.app_transactions import position_id
from semel.pipeline.compaction import compact, plan_all
from semel.pipeline.delta_log import DeltaLog, log_entry
from semel.pipeline.errors import TableError
from semel.pipeline.lake import history, tables
from semel.pipeline.landing_clock import LandingClock
from semel.pipeline.live_files import Overtaken, list_files
from semel.pipeline.maintenance import Task, expire, run_pass
from semel.pipeline.maintenance_process import Policy, Schedule, describe
from semel.pipeline.table import Table
from semel.pipeline.table_retention import (
    aged_files,
    expired_files,
    newest_received,
    remove_expired,
)
from semel.store.retention_clock import FILE_NAME
from semel.store.roots import open_root
from tests.pipeline.landing_rows import land_seqs
from tests.pipeline.spark.test_maintenance import POLICY, actions, land_many, seqs

DAY = 86_400.0
HOUR = 3_600.0
MICROSECOND = 1e-6
# Rows of day 0 were received on this day; see landing_rows.
FIRST_DAY = datetime(2026, 3, 1, tzinfo=UTC)
NINETY = 90 * DAY


def at(days: float, seconds: float = 0.0) -> float:
    """A time, counted from the first day."""
    return FIRST_DAY.timestamp() + days * DAY + seconds


def three_days(address: str) -> None:
    """A table with rows 1 to 20 of three days each."""
    for day in range(3):
        land_many(address, 1 + day * 20, 4, day=day)


def keep(address: str, retention: float, now: float, **named: Any) -> list[dict[str, Any]]:
    """What a pass of maintenance did at a time."""
    events: list[dict[str, Any]] = []
    policy = replace(POLICY, retention=retention)
    run_pass(Task(address, policy, False, now, **named), events.append)
    return [event for event in events if event["action"] == "expired"]


# --- which files ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_day_leaves_when_its_end_is_older_and_not_a_moment_before(address: str) -> None:
    three_days(address)
    # The first day ends where the second begins.
    assert keep(address, NINETY, at(91, -MICROSECOND * 100)) == []
    assert seqs(address) == list(range(1, 61))
    (event,) = keep(address, NINETY, at(91))
    assert (event["files"], event["rows"], event["before"]) == (4, 20, "2026-03-02T00:00:00Z")
    assert describe(event).startswith("removed 4 files (0.0 MB) with 20 rows received before 2026-")
    assert seqs(address) == list(range(21, 61))
    assert keep(address, NINETY, at(92, -0.001)) == []
    (event,) = keep(address, NINETY, at(200))
    assert event["rows"] == 40
    assert seqs(address) == []
    assert keep(address, NINETY, at(300)) == []


def table_by_statistics(place: Path, *times: datetime | None, **more: Any) -> None:
    """A file for each time, with two rows, of which the other is a day older."""
    for time in times:
        both = [None if time is None else time - timedelta(days=1), time]
        rows = {"seq": [1, 2], "received": pa.array(both, pa.timestamp("us", "UTC"))}
        write_deltalake(place, pa.table(rows), mode="append", **more)


def test_without_a_partition_by_date_the_newest_row_of_a_file_decides(tmp_path: Path) -> None:
    place = tmp_path / "t"
    noon = FIRST_DAY + timedelta(hours=12, microseconds=5)
    table_by_statistics(place, noon, noon + timedelta(hours=1))

    def removed(now: float) -> int:
        done = remove_expired(str(place), DeltaTable(place), NINETY, now=now)
        return 0 if done is None else done.files

    # Bounds of other writers are truncated to milliseconds: a file stays that much longer.
    assert removed(noon.timestamp() + NINETY) == 0
    assert removed(noon.timestamp() + NINETY + 0.0009) == 0
    assert removed(noon.timestamp() + NINETY + 0.001) == 1
    assert DeltaTable(place).to_pyarrow_table().num_rows == 2
    assert removed(noon.timestamp() + NINETY + HOUR) == 0
    assert removed(noon.timestamp() + NINETY + HOUR + 1) == 1
    assert DeltaTable(place).to_pyarrow_table().num_rows == 0


def test_files_that_do_not_say_how_old_they_are_stay(tmp_path: Path) -> None:
    place = tmp_path / "t"
    table_by_statistics(place, FIRST_DAY, None)
    # A file with a row that has no time, and one without statistics.
    mixed = pa.table(
        {"seq": [3, 4], "received": pa.array([FIRST_DAY, None], pa.timestamp("us", "UTC"))}
    )
    write_deltalake(place, mixed, mode="append")
    entry = place / "_delta_log" / log_entry(3)
    table_by_statistics(place, FIRST_DAY)
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            del line["add"]["stats"]
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = remove_expired(str(place), DeltaTable(place), HOUR, now=at(10_000))
    assert done is not None
    assert done.files == 1
    assert len(list_files(DeltaTable(place))) == 3
    # A table without such a column keeps everything.
    other = tmp_path / "u"
    write_deltalake(other, pa.table({"a": [1], "received": ["2020-01-01"]}))
    assert remove_expired(str(other), DeltaTable(other), HOUR, now=at(10_000)) is None
    assert newest_received(DeltaTable(other)) is None


def test_a_partition_by_date_and_more_decides_by_the_date(tmp_path: Path) -> None:
    place = tmp_path / "t"
    days = [date(2026, 3, 1), date(2026, 3, 2), None]
    rows = pa.table(
        {
            "plant": ["a", "b", "a"],
            "date": pa.array(days, pa.date32()),
            "received": pa.array([FIRST_DAY] * 3, pa.timestamp("us", "UTC")),
        }
    )
    write_deltalake(place, rows, partition_by=["plant", "date"])
    done = remove_expired(str(place), DeltaTable(place), NINETY, now=at(91))
    assert done is not None
    assert (done.files, done.rows) == (1, 1)
    left = DeltaTable(place).to_pyarrow_table().column("date").to_pylist()
    assert sorted(left, key=str) == [date(2026, 3, 2), None]
    assert newest_received(DeltaTable(place)) == at(2)


def with_year(address: str, year: str, *, statistics: bool = True) -> None:
    """Change the year of the partition in the last entry of a log, as a flipped bit does."""
    log = Path(address) / "_delta_log"
    entry = max(log.glob("*.json"))
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for add in (line["add"] for line in lines if "add" in line):
        add["partitionValues"]["date"] = year + add["partitionValues"]["date"][4:]
        if not statistics:
            del add["stats"]
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_damaged_day_in_the_log_removes_no_newer_rows(address: str) -> None:
    three_days(address)
    before = seqs(address)
    with_year(address, "2006")
    # The other days are a day and more from their end.
    assert remove_expired(address, DeltaTable(address), NINETY, now=at(90)) is None
    assert seqs(address) == before
    # By then its rows are older, too.
    assert remove_expired(address, DeltaTable(address), NINETY, now=at(94)) is not None
    assert seqs(address) == []


def test_a_day_that_ended_before_leaves_if_no_statistics_say_otherwise(address: str) -> None:
    three_days(address)
    with_year(address, "2006", statistics=False)
    done = remove_expired(address, DeltaTable(address), NINETY, now=at(90))
    assert done is not None
    assert done.files == 1


def test_what_is_expired_is_a_function_of_the_files_and_the_time(address: str) -> None:
    three_days(address)
    files = aged_files(DeltaTable(address))
    assert [len(expired_files(files, NINETY, now=at(each))) for each in (90, 91, 92.5, 93)] == [
        0,
        4,
        8,
        12,
    ]
    assert expired_files(files, NINETY, now=0.0) == []


# --- the commit -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_commit_says_what_it_is_and_is_on_disk(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    three_days(address)
    synced: list[str] = []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    done = remove_expired(address, DeltaTable(address), NINETY, now=at(91))
    assert done is not None
    assert str(Path(address) / "_delta_log" / log_entry(done.version)) in synced
    entry = DeltaLog(open_root(address)).entry(done.version)
    assert (entry.operation, entry.changes_rows) == ("RETENTION", True)
    assert (len(entry.removed), len(entry.added), entry.transactions) == (4, 0, {})
    lake = str(Path(address).parent)
    assert history(lake, "messages", limit=1)[0].operation == "RETENTION"
    (summary,) = tables(lake)
    assert (summary.rows, summary.operation) == (40, "RETENTION")
    # The files are there for readers of older versions.
    before = DeltaTable(address, version=done.version - 1)
    assert before.to_pyarrow_table().num_rows == 60


@pytest.mark.slow
def test_removed_files_are_deleted_by_a_vacuum_later(address: str) -> None:
    three_days(address)
    keep(address, NINETY, at(91))
    names = [path for path in Path(address).rglob("*.parquet") if "_delta_log" not in str(path)]
    assert len(names) == 12
    table = DeltaTable(address)
    kept = table.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)
    assert kept == []
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    names = [path for path in Path(address).rglob("*.parquet") if "_delta_log" not in str(path)]
    assert len(names) == 8
    assert seqs(address) == list(range(21, 61))


# A table is read again only before the commit: what others have committed since it was loaded comes
# in between.


@pytest.mark.slow
def test_an_append_meanwhile_is_kept(address: str) -> None:
    three_days(address)
    table = DeltaTable(address)
    land_seqs(address, 61, 65, day=2)
    done = remove_expired(address, table, NINETY, now=at(91))
    assert done is not None
    assert done.rows == 20
    assert seqs(address) == list(range(21, 66))
    assert Table(address).positions("plant", ["n1"]) == {"n1": 65}


def test_of_a_compaction_meanwhile_the_next_pass_removes_the_result(address: str) -> None:
    three_days(address)
    table = DeltaTable(address)
    compact(address, DeltaTable(address), plan_all(list_files(table), 2**30))
    events: list[dict[str, Any]] = []
    expire(Task(address, replace(POLICY, retention=NINETY), False, at(91)), table, events.append)
    assert events == []
    assert seqs(address) == list(range(1, 61))
    (event,) = keep(address, NINETY, at(91))
    assert (event["files"], event["rows"]) == (1, 20)
    assert seqs(address) == list(range(21, 61))


def test_of_two_who_remove_the_same_files_one_does_nothing(address: str) -> None:
    three_days(address)
    table = DeltaTable(address)
    remove_expired(address, DeltaTable(address), NINETY, now=at(91))
    with pytest.raises(Overtaken):
        remove_expired(address, table, NINETY, now=at(91))
    assert seqs(address) == list(range(21, 61))


@pytest.mark.slow
def test_a_landing_that_has_read_the_table_before_commits_after_it(address: str) -> None:
    three_days(address)
    table = Table(address)
    table.load()
    keep(address, NINETY, at(91))
    land_seqs(address, 61, 65, table=table, day=2)
    assert seqs(address) == list(range(21, 66))


def test_a_table_whose_rows_are_not_all_in_its_files_is_left_alone(address: str) -> None:
    three_days(address)
    entry = Path(address) / "_delta_log" / log_entry(0)
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
    with pytest.raises(TableError, match=r"deletionVectors, .* does not remove old rows of such"):
        remove_expired(address, DeltaTable(address), NINETY, now=at(91))
    # Where nothing is old, nothing is wrong.
    assert remove_expired(address, DeltaTable(address), NINETY, now=at(1)) is None


def test_a_pass_that_is_killed_right_after_the_commit_is_no_loss(address: str) -> None:
    three_days(address)

    class Killed(BaseException):
        pass

    class KilledTable(DeltaTable):
        def create_write_transaction(self, *arguments: Any, **named: Any) -> None:
            super().create_write_transaction(*arguments, **named)
            raise Killed

    with pytest.raises(Killed):
        remove_expired(address, KilledTable(address), NINETY, now=at(91))
    assert keep(address, NINETY, at(91)) == []
    land_seqs(address, 61, 65, day=2)
    assert seqs(address) == list(range(21, 66))


# --- what has landed has landed -------------------------------------------------------------------


@pytest.mark.slow
def test_rows_that_were_removed_do_not_land_again(address: str) -> None:
    three_days(address)
    keep(address, NINETY, at(1_000))
    assert seqs(address) == []
    assert Table(address).positions("plant", ["n1"]) == {"n1": 60}
    # A new checkpoint, or one from a backup, brings rows again that have landed.
    land_seqs(address, 1, 60)
    land_seqs(address, 55, 70, day=2)
    assert seqs(address) == list(range(61, 71))
    # Neither do they after a checkpoint of the log, and without its entries.
    DeltaTable(address).create_checkpoint()
    last = DeltaTable(address).version()
    for path in (Path(address) / "_delta_log").glob("*.json"):
        if int(path.stem) < last:
            path.unlink()
    land_seqs(address, 1, 71, table=Table(address), day=2)
    assert seqs(address) == list(range(61, 72))


@pytest.mark.slow
def test_a_table_of_which_rows_were_removed_is_no_restored_one(address: str) -> None:
    three_days(address)
    keep(address, NINETY, at(91))
    table = Table(address)
    loaded = table.load()
    assert loaded is not None
    table.check_log()
    table.check_not_restored(loaded, position_id("plant", ""))
    DeltaTable(address).restore(DeltaTable(address).version() - 5)
    loaded = table.load()
    assert loaded is not None
    with pytest.raises(TableError, match="was restored to an older version"):
        table.check_not_restored(loaded, position_id("plant", ""))


def test_maintenance_without_retention_removes_nothing(address: str) -> None:
    three_days(address)
    events: list[dict[str, Any]] = []
    run_pass(Task(address, POLICY, False, at(10_000)), events.append)
    # A pass that does not know the time removes nothing either.
    run_pass(Task(address, replace(POLICY, retention=HOUR), False), events.append)
    assert "expired" not in actions(events)
    assert seqs(address) == list(range(1, 61))


def test_an_idle_table_is_looked_at_as_long_as_it_has_rows_to_remove() -> None:
    def is_due_late(policy: Policy) -> bool:
        schedule = Schedule(policy)
        schedule.is_due(5, 0.0)
        schedule.passed(5, 1.0, vacuumed=True, failed=False)
        return schedule.is_due(5, 90 * DAY)

    assert is_due_late(replace(POLICY, retention=NINETY))
    assert not is_due_late(POLICY)


# --- clocks ---------------------------------------------------------------------------------------


class Machine:
    """A machine whose clock can be set, and a landing on it."""

    def __init__(self, folder: Path, address: str, *, days: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.address = folder, address
        self.wall, self.booted = at(days), 5_000.0
        self.start()

    def start(self) -> None:
        def newest() -> float | None:
            return newest_received(DeltaTable(self.address))

        self.clock = LandingClock(
            self.folder,
            longest=NINETY,
            newest=newest,
            wall=lambda: self.wall,
            boot=lambda: self.booted,
        )

    def run(self, seconds: float) -> None:
        self.wall += seconds
        self.booted += seconds

    def keep(self) -> list[dict[str, Any]]:
        return keep(self.address, NINETY, self.clock.now())


@pytest.mark.slow
def test_time_that_passes_makes_rows_old(tmp_path: Path, address: str) -> None:
    three_days(address)
    machine = Machine(tmp_path / "ck", address, days=3)
    for _ in range(87):
        assert machine.keep() == []
        machine.run(DAY)
    machine.run(DAY)
    assert [event["rows"] for event in machine.keep()] == [20]


def test_a_clock_that_jumps_ahead_removes_nothing(
    tmp_path: Path, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    three_days(address)
    machine = Machine(tmp_path / "ck", address, days=3)
    assert machine.keep() == []
    machine.run(HOUR)
    machine.wall += 3_650 * DAY
    # Also if the broker has the same clock, and rows from then on are ten years younger.
    land_seqs(address, 61, 65, day=3_653)
    assert machine.keep() == []
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "the clock jumped ahead by 10.0 years" in record.getMessage()
    assert str(tmp_path / "ck" / FILE_NAME) in record.getMessage()
    # Neither after a restart of the landing.
    machine.start()
    machine.run(HOUR)
    assert machine.keep() == []
    assert seqs(address) == list(range(1, 66))
    # Corrected, it counts again.
    machine.wall -= 3_650 * DAY
    assert machine.keep() == []
    machine.run(88 * DAY)
    assert [event["rows"] for event in machine.keep()] == [20]


def test_a_clock_that_jumps_while_nothing_runs_is_compared_with_the_state_or_the_rows(
    tmp_path: Path, address: str
) -> None:
    three_days(address)
    machine = Machine(tmp_path / "ck", address, days=3)
    assert machine.keep() == []
    machine.wall += 3_650 * DAY
    machine.start()
    assert machine.keep() == []
    # Without the state, the newest row tells that the landing ran three days after the first.
    (tmp_path / "ck" / FILE_NAME).unlink()
    machine.start()
    assert machine.keep() == []
    assert seqs(address) == list(range(1, 61))


@pytest.mark.slow
def test_a_downtime_of_some_days_is_no_jump(tmp_path: Path, address: str) -> None:
    three_days(address)
    machine = Machine(tmp_path / "ck", address, days=3)
    for _ in range(17):
        machine.run(5 * DAY)
        machine.booted = 10.0
        machine.start()
        machine.keep()
    machine.run(3 * DAY)
    assert [event["rows"] for event in machine.keep()] == [20]


def test_a_clock_that_is_behind_removes_nothing(tmp_path: Path, address: str) -> None:
    three_days(address)
    machine = Machine(tmp_path / "ck", address, days=3)
    machine.keep()
    machine.wall = 0.0
    assert machine.keep() == []
    machine.start()
    assert machine.keep() == []
    assert seqs(address) == list(range(1, 61))


def test_positions_of_other_programs_stay(tmp_path: Path) -> None:
    """Retention is a commit as any other for the app transactions of a table."""
    place = tmp_path / "t"
    properties = CommitProperties(app_transactions=[Transaction(position_id("all", "n1"), 7)])
    table_by_statistics(place, FIRST_DAY, commit_properties=properties)
    done = remove_expired(str(place), DeltaTable(place), NINETY, now=at(1_000))
    assert done is not None
    assert DeltaTable(place).transaction_version(position_id("all", "n1")) == 7

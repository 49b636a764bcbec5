"""Maintenance keeps a table small beside its landing, and loses no row whenever it is killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from semel.pipeline import maintenance
from semel.pipeline.app_transactions import stream_id
from semel.pipeline.delta_log import log_entry
from semel.pipeline.errors import PipelineError, TableError
from semel.pipeline.landing import Landing
from semel.pipeline.landing_plan import make_plan
from semel.pipeline.landing_target import check_table
from semel.pipeline.live_files import list_files
from semel.pipeline.maintenance import (
    PassFailed,
    Task,
    checkpoints_in,
    compact_due,
    drop_torn_checkpoint,
    run_pass,
)
from semel.pipeline.maintenance_process import Maintenance, Policy, describe
from semel.pipeline.settings import LandSettings
from semel.pipeline.table import Table
from tests.modes import repeats
from tests.pipeline.landing_rows import batch_of_rows, land_seqs

HOUR = 3600.0
LANDED = 150
POLICY = Policy(
    target_file_size=64 * 1024,
    small_files=10,
    file_retention=HOUR,
    log_entries=50,
    cluster_by=("topic",),
)


@pytest.fixture(scope="module")
def landed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of LANDED commits that nobody has looked after; to be copied."""
    place = tmp_path_factory.mktemp("landed") / "messages"
    land_many(str(place), 1, LANDED)
    return place


def copy_landed(landed: Path, address: str) -> None:
    shutil.copytree(landed, address)


def land_many(address: str, first: int, commits: int, *, day: int = 0) -> None:
    """Commits of 5 rows each."""
    table = Table(address)
    for number in range(commits):
        begin = first + number * 5
        land_seqs(address, begin, begin + 4, table=table, day=day)


def make_pass(
    address: str, *, policy: Policy = POLICY, vacuum: bool = False, now: float | None = None
) -> list[dict[str, Any]]:
    """What a pass did."""
    found: list[dict[str, Any]] = []
    clock = time.time if now is None else lambda: now
    run_pass(Task(address, policy, vacuum), found.append, now=clock)
    return found


def actions(events: list[dict[str, Any]]) -> list[str]:
    return [event["action"] for event in events]


def log_names(address: str) -> list[str]:
    return sorted(os.listdir(Path(address) / "_delta_log"))


def entries(address: str) -> list[int]:
    return [int(name[:20]) for name in log_names(address) if name[20:] == ".json"]


def seqs(address: str) -> list[int]:
    found: list[int] = DeltaTable(address).to_pyarrow_table(columns=["seq"])["seq"].to_pylist()
    return sorted(found)


def data_files(address: str) -> set[str]:
    return {str(path.relative_to(address)) for path in Path(address).rglob("*.parquet")} - {
        f"_delta_log/{name}" for name in log_names(address)
    }


# --- a pass ---------------------------------------------------------------------------------------


def test_a_pass_compacts_and_changes_no_row_nor_position(address: str) -> None:
    land_many(address, 1, 12)
    land_many(address, 61, 12, day=1)
    before = DeltaTable(address).to_pyarrow_table().sort_by("seq")
    events = make_pass(address)
    assert actions(events) == ["compacted", "compacted"]
    assert [event["files_removed"] for event in events] == [12, 12]
    assert describe(events[0]).startswith("compacted 12 files (0.0 MB) into 1 (0.0 MB), 60 rows")
    assert len(list_files(DeltaTable(address))) == 2
    assert DeltaTable(address).to_pyarrow_table().sort_by("seq").equals(before)
    assert Table(address).positions("plant", ["n1"]) == {"n1": 120}


def test_a_pass_with_nothing_to_do_commits_nothing_and_tells_nothing(address: str) -> None:
    assert make_pass(address, vacuum=True) == []
    land_many(address, 1, 9)
    make_pass(address, vacuum=True)
    version, names = DeltaTable(address).version(), log_names(address)
    assert make_pass(address, vacuum=True) == []
    assert DeltaTable(address).version() == version
    assert log_names(address) == names


def test_a_day_that_is_over_is_compacted_whole(address: str) -> None:
    land_many(address, 1, 3)
    land_many(address, 16, 3, day=1)
    assert make_pass(address) == []
    (old, new) = make_pass(address, now=time.time() + HOUR + 60)
    assert (old["files_removed"], new["files_removed"]) == (3, 3)
    assert seqs(address) == list(range(1, 31))


def test_a_damaged_file_stays_as_it_is_and_all_else_is_maintained(address: str) -> None:
    land_many(address, 1, 12)
    land_many(address, 61, 12, day=1)
    damaged = min(list_files(DeltaTable(address)), key=lambda file: file.modified)
    path = Path(address) / damaged.disk_path
    whole = path.read_bytes()
    chunk = pq.read_metadata(path).row_group(0).column(0)
    at = chunk.data_page_offset + chunk.total_compressed_size - 1
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    events: list[dict[str, Any]] = []
    with pytest.raises(PipelineError, match=rf"{path.name} cannot be read .*CRC checksum"):
        run_pass(Task(address, POLICY, False), events.append)
    assert actions(events) == ["compacted"]
    path.write_bytes(whole)
    assert actions(make_pass(address)) == ["compacted"]
    assert seqs(address) == list(range(1, 121))


def test_a_pass_that_cannot_compact_still_maintains_the_log_and_vacuums(
    address: str, landed: Path
) -> None:
    copy_landed(landed, address)
    DeltaTable(address).create_checkpoint()
    orphan = Path(address) / "date=2026-03-01" / "part-orphan.parquet"
    orphan.write_bytes(b"of an attempt that was killed")
    ago = time.time() - 2 * HOUR
    os.utime(orphan, (ago, ago))
    (Path(address) / list_files(DeltaTable(address))[0].disk_path).write_bytes(b"damaged")
    # All files would be merged into one.
    policy = replace(POLICY, target_file_size=2**30, checkpoint_commits=1)
    events: list[dict[str, Any]] = []
    with pytest.raises(PassFailed, match=r"cannot be read .* it was not compacted") as failure:
        run_pass(Task(address, policy, True), events.append)
    assert actions(events) == ["checkpointed", "cleaned log", "vacuumed"]
    assert failure.value.vacuumed
    assert not orphan.exists()


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), TableError("a fault")])
@pytest.mark.parametrize(
    "failing", ["set_properties", "expire", "write_checkpoint", "clean_log", "vacuum"]
)
def test_each_step_of_a_pass_is_made_whichever_other_fails(
    address: str, monkeypatch: pytest.MonkeyPatch, failing: str, problem: Exception
) -> None:
    land_many(address, 1, 2)
    steps = ["set_properties", "expire", "compact_due", "write_checkpoint", "clean_log", "vacuum"]
    made: list[str] = []

    def make(name: str) -> Any:
        def step(*_: object) -> None:
            made.append(name)
            if name == failing:
                raise problem

        return step

    for name in steps:
        monkeypatch.setattr(maintenance, name, make(name))
    with pytest.raises(PassFailed) as failure:
        run_pass(Task(address, POLICY, True), print)
    assert made == steps
    assert failure.value.vacuumed is (failing != "vacuum")
    assert str(failure.value).endswith("a fault" if type(problem) is TableError else "device")


def test_problems_of_several_steps_are_told_in_one_line_and_each_once() -> None:
    problems = ["the table cannot be compacted", "the disk is full", "the disk is full"]
    failure = PassFailed(problems, vacuumed=False)
    assert str(failure) == "the table cannot be compacted; the disk is full"


def test_a_file_that_cannot_be_merged_does_not_keep_other_days_from_it(address: str) -> None:
    land_many(address, 1, 12)
    land_many(address, 61, 12, day=1)
    # The name of one file is one that other programs encode differently in the log.
    one = list_files(DeltaTable(address))[0]
    folder, _, name = one.path.rpartition("/")
    entry = next(
        path for path in (Path(address) / "_delta_log").glob("*.json") if name in path.read_text()
    )
    entry.write_text(entry.read_text().replace(name, f"a,{name}"))
    (Path(address) / one.disk_path).rename(Path(address) / folder / f"a,{name}")
    for checkpoint in (Path(address) / "_delta_log").glob("*checkpoint*"):
        checkpoint.unlink()
    events: list[dict[str, Any]] = []
    with pytest.raises(PipelineError, match="because of its name"):
        run_pass(Task(address, POLICY, False), events.append)
    assert actions(events) == ["compacted"]
    assert seqs(address) == list(range(1, 121))


def test_positions_and_rows_outlive_checkpoints_and_log_cleanup(address: str, landed: Path) -> None:
    policy = replace(POLICY, log_entries=20, checkpoint_commits=20)
    copy_landed(landed, address)
    assert actions(make_pass(address, policy=policy))[-2:] == ["checkpointed", "cleaned log"]
    land_many(address, 1 + 5 * LANDED, 25)
    assert actions(make_pass(address, policy=policy))[-2:] == ["checkpointed", "cleaned log"]
    assert len(entries(address)) >= policy.log_entries
    # Nothing of what was there at first is left in the log.
    assert min(entries(address)) >= LANDED
    total = 5 * (LANDED + 25)
    table = Table(address)
    assert table.positions("plant", ["n1"]) == {"n1": total}
    assert seqs(address) == list(range(1, total + 1))
    # A landing goes on where it was, and what is there already is left out.
    land_seqs(address, total - 4, total + 5, table=table)
    assert seqs(address) == list(range(1, total + 6))


def test_the_log_keeps_what_was_committed_since_the_last_landing(
    address: str, landed: Path
) -> None:
    """It tells the next landing whether somebody has restored an older version."""
    policy = replace(POLICY, log_entries=10)
    copy_landed(landed, address)
    last = DeltaTable(address).version()
    DeltaTable(address).restore(last - 10)
    table = DeltaTable(address)
    for number in range(20):
        table.alter.set_table_description(f"note {number}")
    table.create_checkpoint()
    for number in range(15):
        table.alter.set_table_description(f"another note {number}")
    assert "cleaned log" in actions(make_pass(address, policy=policy))
    assert 0 < min(entries(address)) <= last


def test_the_log_is_kept_if_the_checkpoint_that_covers_it_is_torn(
    address: str, landed: Path
) -> None:
    copy_landed(landed, address)
    base = min(checkpoints_in(log_names(address)))
    assert base <= DeltaTable(address).version() - POLICY.log_entries
    DeltaTable(address).create_checkpoint()
    path = Path(address) / "_delta_log" / f"{base:020}.checkpoint.parquet"
    whole = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(PipelineError, match="the log of the table"):
        make_pass(address)
    assert entries(address)[0] == 0
    path.write_bytes(whole)
    assert "cleaned log" in actions(make_pass(address))
    assert entries(address)[0] == base


def is_of_plant(table: DeltaTable) -> bool:
    return bool(table.metadata().name == stream_id("plant"))


@pytest.mark.parametrize("left", [0, 100, None])
def test_a_checkpoint_that_a_power_failure_has_torn_is_dropped(
    address: str, left: int | None
) -> None:
    land_many(address, 1, 4)
    DeltaTable(address).create_checkpoint()
    assert drop_torn_checkpoint(address, is_of_plant) is None
    land_many(address, 21, 2)
    log = Path(address) / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    if left is None:
        checkpoint.unlink()
    else:
        checkpoint.write_bytes(checkpoint.read_bytes()[:left])
    with pytest.raises((DeltaError, OSError)):
        DeltaTable(address)
    assert drop_torn_checkpoint(address, is_of_plant) == 4
    assert seqs(address) == list(range(1, 31))
    assert Table(address).positions("plant", ["n1"]) == {"n1": 30}
    assert drop_torn_checkpoint(address, is_of_plant) is None
    # Whether those of others are whole is not for us to say.
    (log / "_last_checkpoint").write_text('{"version": 5, "size": 9, "parts": 2}')
    (log / f"{5:020}.checkpoint.{1:010}.{2:010}.parquet").write_bytes(b"")
    assert drop_torn_checkpoint(address, is_of_plant) is None
    assert (log / "_last_checkpoint").exists()


def tear_checkpoint(address: str) -> None:
    (checkpoint,) = (Path(address) / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:100])


def landing_of(folder: Path, stream: str) -> Landing:
    """A landing in the table `messages` of a lake."""
    (folder / "root").mkdir()
    lake = str(folder / "lake")
    return Landing(
        make_plan(LandSettings(root=str(folder / "root"), lake=lake, stream=stream)), print
    )


@pytest.mark.parametrize("whose", ["of another stream", "of another program", "ours, but cut"])
def test_a_landing_deletes_nothing_of_a_table_that_is_not_its_own_or_not_whole_without_it(
    address: str, tmp_path: Path, whose: str, caplog: pytest.LogCaptureFixture
) -> None:
    if whose == "of another program":
        for number in range(3):
            write_deltalake(address, pa.table({"a": [number]}), mode="append")
    else:
        land_many(address, 1, 4)
    DeltaTable(address).create_checkpoint()
    tear_checkpoint(address)
    if whose == "ours, but cut":
        (Path(address) / "_delta_log" / log_entry(0)).unlink()
    names = log_names(address)
    landing = landing_of(tmp_path, "other" if whose == "of another stream" else "plant")
    with pytest.raises(PipelineError):
        landing.run(once=True)
    assert log_names(address) == names
    assert not caplog.records


def test_a_landing_drops_a_torn_checkpoint_of_its_table_and_goes_on(
    address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    land_many(address, 1, 4)
    DeltaTable(address).create_checkpoint()
    tear_checkpoint(address)
    check_table(landing_of(tmp_path, "plant").plan, address)
    assert [name for name in log_names(address) if "checkpoint" in name] == []
    (record,) = caplog.records
    assert "the checkpoint of version 4 was incomplete or missing" in record.getMessage()
    assert seqs(address) == list(range(1, 21))


def test_vacuum_deletes_replaced_files_and_orphans_when_they_are_old_enough(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_many(address, 1, 12)
    old = data_files(address)
    ago = time.time() - 2 * HOUR
    make_pass(address, now=ago)
    orphans = {"date=2026-03-01/part-orphan.parquet", "date=2026-03-01/part-young.parquet"}
    for name in orphans:
        (Path(address) / name).write_bytes(b"of an attempt that was killed")
    for name in (*old, "date=2026-03-01/part-orphan.parquet"):
        os.utime(Path(address) / name, (ago, ago))
    synced = note_syncs(monkeypatch)
    (event,) = make_pass(address, vacuum=True)
    assert (event["action"], event["files"]) == ("vacuumed", 13)
    assert describe(event).startswith("deleted 13 files that no version needs in ")
    live = {file.disk_path for file in list_files(DeltaTable(address))}
    assert data_files(address) == live | {"date=2026-03-01/part-young.parquet"}
    assert seqs(address) == list(range(1, 61))
    # All of the log was on disk before anything was deleted.
    log = Path(address) / "_delta_log"
    assert {str(log / name) for name in log_names(address) if "13" not in name} <= synced


def test_a_vacuum_whose_commit_cannot_be_synced_says_so(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    land_many(address, 1, 2)
    orphan = Path(address) / "date=2026-03-01" / "part-orphan.parquet"
    orphan.write_bytes(b"of an attempt that was killed")
    os.utime(orphan, (0, 0))
    table = DeltaTable(address)
    version = table.version()
    really = os.fsync

    def fsync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(log_entry(version + 1)):
            raise OSError(5, "Input/output error")
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(TableError, match=rf"version {version + 1} may not be on disk: .*Input/out"):
        maintenance.vacuum(Task(address, POLICY, True), table, print)


def note_syncs(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    synced: set[str] = set()
    really = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return synced


def test_files_that_were_replaced_lately_stay_for_readers_of_older_versions(address: str) -> None:
    land_many(address, 1, 12)
    old = data_files(address)
    version = DeltaTable(address).version()
    ago = time.time() - 100 * HOUR
    for name in old:
        os.utime(Path(address) / name, (ago, ago))
    assert actions(make_pass(address, vacuum=True)) == ["compacted"]
    assert old < data_files(address)
    assert DeltaTable(address, version=version).to_pyarrow_table().num_rows == 60


def test_a_landing_that_commits_while_properties_are_set_goes_on(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is done once for a table, and is the only commit that an append does not fit behind."""
    land_many(address, 1, 2)
    table = Table(address)
    really = DeltaTable.create_write_transaction
    todo = [True]

    def commit(self: DeltaTable, *arguments: Any, **named: Any) -> None:
        if todo:
            todo.pop()
            make_pass(address)
        really(self, *arguments, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)
    land_seqs(address, 11, 15, table=table)
    configuration = DeltaTable(address).metadata().configuration
    assert configuration["delta.deletedFileRetentionDuration"] == "interval 1 hours"
    assert configuration["delta.checkpointInterval"] == "1000"
    assert configuration["semel.clusterBy"] == '["topic"]'
    assert seqs(address) == list(range(1, 16))
    version = DeltaTable(address).version()
    make_pass(address)
    assert DeltaTable(address).version() == version


def test_work_that_another_program_overtakes_is_told_and_done_next_time(address: str) -> None:
    land_many(address, 1, 12)
    table = DeltaTable(address)
    # One of the files is rewritten, and the others are not.
    DeltaTable(address).delete("seq = 1")
    events: list[dict[str, Any]] = []
    compact_due(Task(address, POLICY, False), table, events.append, time.time)
    (event,) = events
    assert describe(event) == "did not compact 12 files: another program has rewritten them"
    assert actions(make_pass(address)) == ["compacted"]


# --- beside a landing -----------------------------------------------------------------------------


@pytest.mark.long
def test_of_many_small_batches_few_files_and_few_log_entries_are_left(address: str) -> None:
    """An untended day, with numbers that fit into a test."""
    policy = replace(POLICY, log_entries=20, checkpoint_commits=20)
    commits = repeats(400, 160)
    table = Table(address)
    most_files = most_entries = 0
    for number in range(commits):
        begin = number * 5 + 1
        land_seqs(address, begin, begin + 4, table=table, day=number * 2 // commits)
        if number % 10 == 9:
            make_pass(address, policy=policy)
        most_files = max(most_files, len(list_files(DeltaTable(address))))
        most_entries = max(most_entries, len(entries(address)))
    # Of two days: those that were not merged yet, of each size.
    assert most_files <= 2 * 2 * policy.small_files
    # Those that are kept, those since the last checkpoint, and those since the last pass.
    assert most_entries <= policy.log_entries + 2 * 20 + 2 * 10
    assert seqs(address) == list(range(1, commits * 5 + 1))
    assert table.positions("plant", ["n1"]) == {"n1": commits * 5}


@pytest.mark.long
def test_a_process_beside_a_landing_disturbs_no_commit(address: str) -> None:
    events: list[dict[str, Any]] = []
    keeper = Maintenance(address, POLICY, events.append)
    keeper.start()
    table = Table(address)
    begin = 1
    # Maintenance gets what others leave: on a busy machine, little.
    deadline = time.monotonic() + 500
    while len([e for e in events if e["action"] == "compacted"]) < 3:
        assert time.monotonic() < deadline, events
        land_seqs(address, begin, begin + 4, table=table)
        time.sleep(0.01 if begin < 1_000 else 0.2)
        begin += 5
        opened = table.load()
        assert opened is not None
        keeper.note_version(opened.version())
    keeper.stop()
    assert keeper.pid is None
    assert seqs(address) == list(range(1, begin))
    assert "failed" not in actions(events)


AUTOGROUP = Path("/proc/self/autogroup")


@pytest.mark.parametrize("of_its_own", [True, False])
def test_everything_else_gets_the_processor_before_maintenance(of_its_own: bool) -> None:
    """In a session of its own, also if the kernel shares the processor among sessions first."""
    before = AUTOGROUP.read_text() if AUTOGROUP.exists() else None
    command = [sys.executable, "-m", "semel.pipeline.maintenance"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, start_new_session=of_its_own
    ) as process:  # It waits for its task.
        try:
            deadline = time.monotonic() + 60
            while os.getpriority(os.PRIO_PROCESS, process.pid) != 19:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            if before is not None and of_its_own:
                autogroup = Path(f"/proc/{process.pid}/autogroup")
                while not autogroup.read_text().endswith(" nice 19\n"):
                    assert time.monotonic() < deadline, autogroup.read_text()
                    time.sleep(0.01)
        finally:
            process.kill()
    # Nobody else's session is touched.
    assert before is None or AUTOGROUP.read_text() == before


@pytest.mark.long
def test_kills_at_any_moment_lose_no_row_and_double_none(address: str) -> None:
    chance = random.Random(12)
    table = Table(address)
    land_seqs(address, 1, 4000, table=table, size=500)
    begin = 4001
    began = time.monotonic()
    Maintenance(address, POLICY, lambda _: None).run_once()
    whole = time.monotonic() - began
    killed = 0
    for _ in range(repeats(12, 4)):
        for _ in range(12):
            land_seqs(address, begin, begin + 19, table=table, size=500)
            begin += 20
        keeper = Maintenance(address, POLICY, lambda _: None)
        working = threading.Thread(target=keeper.run_once)
        working.start()
        # Most of a pass is Python's start: aim at what comes after it.
        time.sleep(whole * chance.uniform(0.4, 1.1))
        pid = keeper.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            killed += 1
        land_seqs(address, begin, begin + 4, table=table, size=500)
        begin += 5
        working.join()
        assert seqs(address) == list(range(1, begin))
    assert killed
    # The next pass does what was left undone.
    make_pass(address)
    assert seqs(address) == list(range(1, begin))
    assert Table(address).positions("plant", ["n1"]) == {"n1": begin - 1}


STEPS = ["written", "synced", "committed", "checkpointed", "cleaning"]


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_each_step_leaves_a_whole_table(address: str, landed: Path, step: str) -> None:
    """The process is ended right before or after what it does to the disk."""
    copy_landed(landed, address)
    code = f"""
import os, sys, json
from deltalake import DeltaTable, write_deltalake
from semel.pipeline import compaction, files, maintenance
from semel.store.roots import LocalRoot

def end_after(place, name, before=False):
    really = getattr(place, name)
    def wrapped(*arguments, **named):
        if before:
            os._exit(9)
        found = really(*arguments, **named)
        os._exit(9)
        return found
    setattr(place, name, wrapped)

step = {step!r}
if step == "written":
    end_after(files.TableFolder, "fsync", before=True)
elif step == "synced":
    end_after(compaction, "replace_files", before=True)
elif step == "committed":
    end_after(DeltaTable, "create_write_transaction")
elif step == "checkpointed":
    end_after(DeltaTable, "create_checkpoint")
else:
    end_after(LocalRoot, "delete")
policy = maintenance.Policy.from_json(json.loads(sys.argv[2]))
maintenance.run_pass(maintenance.Task(sys.argv[1], policy, True), print)
"""
    policy = replace(POLICY, checkpoint_commits=1) if step == "checkpointed" else POLICY
    told = json.dumps(policy.__dict__)
    done = subprocess.run(
        [sys.executable, "-c", code, address, told],
        env={**os.environ, "PYTHONPATH": str(Path(maintenance.__file__).parents[2])},
        capture_output=True,
    )
    assert done.returncode == 9, done.stderr.decode()
    total = 5 * LANDED
    assert seqs(address) == list(range(1, total + 1))
    land_seqs(address, total + 1, total + 5)
    make_pass(address, vacuum=True)
    make_pass(address, vacuum=True)
    assert seqs(address) == list(range(1, total + 6))
    assert Table(address).positions("plant", ["n1"]) == {"n1": total + 5}
    # Of each of two size classes.
    assert len(list_files(DeltaTable(address))) < 2 * POLICY.small_files


def test_entries_of_the_log_have_names_that_are_known(address: str) -> None:
    batch = batch_of_rows(address, 1, 5)
    Table(address).commit(batch)
    assert entries(address) == [0, 1]
    assert checkpoints_in([f"{7:020}.checkpoint.parquet", log_entry(8), "_last_checkpoint"]) == [7]

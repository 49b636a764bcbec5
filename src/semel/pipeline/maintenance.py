"""Maintenance of the table of a landing: one pass, in a process of its own.

    compaction    small files become large ones                      compaction.py
    checkpoint    the log is summed up, every hundred commits or so
    log cleanup   entries that a checkpoint covers are deleted, but for the newest `log_entries`
    vacuum        files that no version of the last `file_retention` needs are deleted

Without it the cost of a commit and of a query grows without end: each has to list the log and to
know all live files. A pass does only what is due, and tells of each thing that it did by an event.

It may be killed at any moment. Nothing is deleted before what replaces it is on disk: the files of
a compaction are synced before its commit, a checkpoint is synced, and read, before entries of the
log go that it covers, and before a vacuum all of the log is synced. (A checkpoint itself is synced
right after delta-rs has written it; one that a power failure in between has torn is dropped.) The
positions of a landing are app transactions, which checkpoints contain.

Entries of the log are kept from the last commit of the landing on, however few that leaves to
delete: they tell it whether somebody has restored an older version since.

The process is told what to do by one JSON object on its standard input, prints events as lines of
JSON, and ends at once when the input does, because whoever started it has ended then. It runs at
the lowest priority and on one processor.
"""

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from semel.pipeline.compaction import DamagedFile, Overtaken, compact, list_files, plan_due
from semel.pipeline.delta_errors import one_line, table_errors
from semel.pipeline.delta_fsync import fsync_commit, fsync_path
from semel.pipeline.delta_log import COMMIT_MARKER, log_entry
from semel.pipeline.errors import PipelineError
from semel.pipeline.lake_address import local_folder, split_address
from semel.pipeline.maintenance_process import Policy
from semel.store.roots import Root, RootError, open_root

LOG: Final = "_delta_log"
# Commits after which the log is summed up.
CHECKPOINT_COMMITS: Final = 100
# delta-rs would do so in the way of every hundredth commit of a landing.
CHECKPOINT_INTERVAL: Final = 1_000
LAST_CHECKPOINT: Final = "_last_checkpoint"
FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
INTERVAL: Final = "delta.checkpointInterval"
# Files of the log: the version comes first. Checkpoints of other programs may have several parts.
_LOG_FILE: Final = re.compile(r"([0-9]{20})\.(json|crc|checkpoint.*|[0-9]{20}\.compacted\.json)")
_ENTRY: Final = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
NICENESS: Final = 19

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Task:
    """What a pass is about."""

    table: str
    policy: Policy
    # Whether files are to be looked for that nothing needs, which takes a listing of all.
    vacuum: bool


def run_pass(task: Task, tell: Tell, *, now: Callable[[], float] = time.time) -> None:
    """Do what is due. Raises PipelineError; what was done by then stays."""
    uri, storage = split_address(task.table)
    with table_errors(task.table):
        try:
            table = DeltaTable(uri, storage_options=storage or None)
        except TableNotFoundError:
            return
    set_properties(task, table)
    damage = compact_due(task, table, tell, now())
    with table_errors(task.table):
        table.update_incremental()
    try:
        root = open_root(task.table)
        write_checkpoint(task, table, root, tell)
        clean_log(task, root, tell)
    except (OSError, RootError, pa.ArrowException) as problem:
        raise PipelineError(f"the log of the table: {one_line(problem)}") from problem
    if task.vacuum:
        vacuum(task, table, tell)
    if damage is not None:
        raise damage


def set_properties(task: Task, table: DeltaTable) -> None:
    """Let the table itself say how long removed files are kept: checkpoints name them as long."""
    hours = -(-round(task.policy.file_retention) // 3600)
    wanted = {FILE_RETENTION: f"interval {hours} hours", INTERVAL: str(CHECKPOINT_INTERVAL)}
    configuration = table.metadata().configuration
    if all(configuration.get(key) == value for key, value in wanted.items()):
        return
    # Another commit that comes first makes this one fail: the next pass tries again.
    with suppress(DeltaError):
        table.alter.set_table_properties(
            wanted,
            raise_if_not_exists=False,
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    with table_errors(task.table):
        table.update_incremental()


# --- files ----------------------------------------------------------------------------------------


def compact_due(task: Task, table: DeltaTable, tell: Tell, now: float) -> DamagedFile | None:
    """Merge what is worth it, a commit for each new file.

    Returns the first damage that was found: its file stays as it is, and others are merged.
    """
    policy = task.policy
    damage: DamagedFile | None = None
    groups = plan_due(
        list_files(table), policy.target_file_size, small_files=policy.small_files, now=now
    )
    for group in groups:
        began = time.monotonic()
        try:
            done = compact(task.table, table, [group])
        except Overtaken:
            tell({"action": "overtaken", "files": len(group)})
            continue
        except DamagedFile as problem:
            damage = damage or problem
            continue
        tell(
            {
                "action": "compacted",
                "files_removed": done.files_removed,
                "bytes_removed": done.bytes_removed,
                "files_added": done.files_added,
                "bytes_added": done.bytes_added,
                "rows": done.rows,
                "version": done.version,
                "seconds": _since(began),
            }
        )
    return damage


def vacuum(task: Task, table: DeltaTable, tell: Tell) -> None:
    """Delete files that are older than the retention and that no version since then needs."""
    began = time.monotonic()
    hours = -(-round(task.policy.file_retention) // 3600)

    def clean(*, dry_run: bool) -> list[str]:
        return table.vacuum(
            retention_hours=hours, dry_run=dry_run, enforce_retention_duration=False, full=True
        )

    with table_errors(task.table):
        table.update_incremental()
        if not clean(dry_run=True):
            return
        # What replaced these files is on disk, and so is what says that it did.
        _sync_log(task.table)
        before = table.version()
        files = clean(dry_run=False)
        table.update_incremental()
    for version in range(before + 1, table.version() + 1):
        with suppress(FileNotFoundError):
            fsync_commit(task.table, version)
    tell({"action": "vacuumed", "files": len(files), "seconds": _since(began)})


def _sync_log(address: str) -> None:
    folder = local_folder(address)
    if folder is None:
        return
    for path in (folder / LOG).iterdir():
        with suppress(FileNotFoundError):
            fsync_path(path)
    fsync_path(folder / LOG)


# --- the log --------------------------------------------------------------------------------------


def write_checkpoint(task: Task, table: DeltaTable, root: Root, tell: Tell) -> None:
    """Sum the log up, if that was done long ago; the checkpoint is on disk then."""
    names = [entry.name for entry in root.entries(LOG)]
    last = max(checkpoints_in(names), default=0)
    if table.version() - last < CHECKPOINT_COMMITS:
        return
    began = time.monotonic()
    with table_errors(task.table):
        table.create_checkpoint()
    fsync_commit(task.table, table.version())
    tell(
        {
            "action": "checkpointed",
            "version": table.version(),
            "commits": table.version() - last,
            "seconds": _since(began),
        }
    )


def drop_torn_checkpoint(address: str) -> int | None:
    """Delete a checkpoint that a power failure has left torn; its version, or None.

    delta-rs does not sync what it writes, and a table whose newest checkpoint is empty or cut off
    cannot be read, although its log is whole: entries are deleted only when a checkpoint that
    covers them is on disk and was read. Only for a folder of this machine; one file of others'
    checkpoints in several parts is left to them.
    """
    folder = local_folder(address)
    if folder is None:
        return None
    hint = folder / LOG / LAST_CHECKPOINT
    try:
        version = int(json.loads(hint.read_text("utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    checkpoint = folder / LOG / f"{version:020}.checkpoint.parquet"
    try:
        pq.read_metadata(checkpoint)
        return None
    except FileNotFoundError:
        if list((folder / LOG).glob(f"{version:020}.checkpoint*")):
            return None
    except (OSError, pa.ArrowException):
        pass
    # The hint first: without it any checkpoint is looked for, and an empty one passed over.
    hint.unlink(missing_ok=True)
    checkpoint.unlink(missing_ok=True)
    fsync_path(folder / LOG)
    return version


def clean_log(task: Task, root: Root, tell: Tell) -> None:
    """Delete the entries that a checkpoint covers, but for the newest."""
    began = time.monotonic()
    names = [entry.name for entry in root.entries(LOG)]
    versions = sorted(_versions(names))
    if len(versions) <= task.policy.log_entries:
        return
    landed = _last_landed(root, versions)
    if landed is None:
        return
    floor = min(versions[-1] - task.policy.log_entries, landed)
    base = max((each for each in checkpoints_in(names) if each <= floor), default=None)
    if base is None:
        return
    covered = [name for name in names if _version_of(name, default=base) < base]
    if not covered:
        return
    # A checkpoint that is torn would leave nothing of what it was made of.
    path = f"{LOG}/{base:020}.checkpoint.parquet"
    root.settle(path)
    with root.read(path) as file, pq.ParquetFile(file) as opened:
        if not opened.metadata.num_rows:
            return
    # The oldest first: what is left is always a log without a gap.
    for name in sorted(covered):
        root.delete(f"{LOG}/{name}")
    tell({"action": "cleaned log", "entries": len(covered), "seconds": _since(began)})


def checkpoints_in(names: Iterable[str]) -> list[int]:
    """The versions of the checkpoints that are one file."""
    return [int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))]


def _version_of(name: str, *, default: int) -> int:
    """The version that a file of the log is about; the default if it is about none."""
    found = _LOG_FILE.fullmatch(name)
    return default if found is None else int(found[1])


def _versions(names: Iterable[str]) -> list[int]:
    """The commits that have an entry."""
    return [int(found[1]) for name in names if (found := _ENTRY.fullmatch(name))]


def _last_landed(root: Root, versions: list[int]) -> int | None:
    """The last commit of a landing that has an entry; None: none has."""
    for version in reversed(versions):
        with root.read(f"{LOG}/{log_entry(version)}") as entry:
            if COMMIT_MARKER.encode() in bytes(entry.read()):
                return version
    return None


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)


# --- the process ----------------------------------------------------------------------------------


def main() -> None:
    """One pass, as the object on standard input says."""
    os.nice(NICENESS)
    pa.set_cpu_count(1)
    told = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()

    def tell(event: dict[str, Any]) -> None:
        print(json.dumps(event), flush=True)

    task = Task(told["table"], Policy(**told["policy"]), told["vacuum"])
    try:
        run_pass(task, tell)
    except PipelineError as problem:
        tell({"action": "failed", "problem": " ".join(str(problem).split())})


def _end_with_input() -> None:
    # Whoever started us has ended, or wants us to. There is nothing to finish.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()

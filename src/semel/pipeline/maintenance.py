"""Maintenance of the table of a landing: one pass, in a separate process.

    retention     removes files whose rows are all older             table_retention.py
    compaction    merges small files into large ones                 compaction.py
    checkpoint    summarizes the log, about every hundred commits
    log cleanup   deletes entries that a checkpoint covers, except the newest `log_entries`
    vacuum        deletes files that no version of the last `file_retention` needs

Without it the cost of commits and queries grows without limit: each lists the log and loads all
live files. A pass does only what is due, and emits an event for each action. Its steps are
independent: one that fails is reported, and the later ones still run.

It may be killed at any time. Nothing is deleted before its replacement is on disk: the files of a
compaction are synced before its commit, a checkpoint is synced and read before the entries that it
covers are deleted, and the whole log is synced before a vacuum. (A checkpoint is synced right after
delta-rs has written it. If a power failure leaves it incomplete, it is dropped.) The positions of a
landing are app transactions, which checkpoints contain.

Log entries since the last commit of the landing are always kept: they show whether an older version
has been restored since.

The process reads its task from standard input as one JSON object and prints events as JSON lines.
It exits as soon as standard input is closed, because the landing has ended then. It runs with the
lowest priority on one core.
"""

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from semel.pipeline.clustering import cluster_columns, cluster_property
from semel.pipeline.compaction import UnmergeableFiles, compact, plan_due
from semel.pipeline.delta_errors import one_line, table_errors
from semel.pipeline.delta_fsync import fsync_commit, fsync_path
from semel.pipeline.delta_log import COMMIT_MARKER, log_entry
from semel.pipeline.errors import NO_SPACE, PipelineError, TableError
from semel.pipeline.lake_address import local_folder, split_address
from semel.pipeline.live_files import Overtaken, list_files
from semel.pipeline.maintenance_process import NOTICE, Policy
from semel.pipeline.table_retention import remove_expired
from semel.store.roots import Root, RootError, open_root, without_secrets

LOG: Final = "_delta_log"
# The interval for delta-rs, which writes checkpoints during a commit, and so delays the landing.
# It is larger, so that usually only maintenance writes them.
CHECKPOINT_INTERVAL: Final = 1_000
LAST_CHECKPOINT: Final = "_last_checkpoint"
FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
INTERVAL: Final = "delta.checkpointInterval"
# Files of the log, whose names begin with a version. A checkpoint may have several parts.
_LOG_FILE: Final = re.compile(r"([0-9]{20})\.(json|crc|checkpoint.*|[0-9]{20}\.compacted\.json)")
_ENTRY: Final = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint\.parquet")
NICENESS: Final = 19
AUTOGROUP: Final = Path("/proc/self/autogroup")

Emit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Task:
    """The task of a pass."""

    table: str
    policy: Policy
    # Whether to vacuum, which requires a listing of all files.
    vacuum: bool
    # The time by which old rows are removed, in seconds since 1970; None: none are.
    retention_now: float | None = None


class PassFailed(PipelineError):
    """At least one step of a pass failed; the message names each problem once."""

    def __init__(self, problems: Sequence[str], *, vacuumed: bool) -> None:
        # On a full disk most steps fail, each with a message of its own.
        shown = (
            NO_SPACE[0] if any(sign in each for sign in NO_SPACE) else each for each in problems
        )
        super().__init__("; ".join(dict.fromkeys(shown)))
        # Whether the pass has vacuumed nevertheless.
        self.vacuumed = vacuumed


def run_pass(task: Task, emit: Emit, *, now: Callable[[], float] = time.time) -> None:
    """Do what is due, and emit an event for each action.

    A step that fails does not keep the later ones from running: on a full disk nothing can be
    compacted, but log cleanup and vacuum make room. Raises PassFailed at the end, or another
    PipelineError if the table cannot be read.
    """
    uri, storage = split_address(task.table)
    with table_errors(task.table):
        try:
            table = DeltaTable(uri, storage_options=storage or None)
        except TableNotFoundError:
            return
    problems: list[str] = []
    with _step(problems):
        set_properties(task, table)
    # First, so that what leaves the table is not compacted before.
    with _step(problems):
        expire(task, table, emit)
    with _step(problems):
        compact_due(task, table, emit, now)
    with _step(problems, "the log of the table: "):
        with table_errors(task.table):
            table.update_incremental()
        write_checkpoint(task, table, open_root(task.table), emit)
    with _step(problems, "the log of the table: "):
        clean_log(task, open_root(task.table), emit)
    vacuumed = False
    if task.vacuum:
        with _step(problems):
            vacuum(task, table, emit)
            vacuumed = True
    if problems:
        raise PassFailed(problems, vacuumed=vacuumed)


@contextmanager
def _step(problems: list[str], subject: str = "") -> Iterator[None]:
    """Collect the error of a step as one sentence; `subject` says what it concerns."""
    try:
        yield
    except PipelineError as problem:
        problems.append(" ".join(str(problem).split()))
    except (OSError, RootError, DeltaError, pa.ArrowException) as problem:
        problems.append(subject + one_line(problem))


def set_properties(task: Task, table: DeltaTable) -> None:
    """Record in the table how it is maintained.

    Checkpoints list removed files as long as these are kept. Every compaction sorts rows by the
    columns that are recorded, also that of `semel lake optimize`.
    """
    hours = -(-round(task.policy.file_retention) // 3600)
    configuration = table.metadata().configuration
    properties = {
        FILE_RETENTION: f"interval {hours} hours",
        INTERVAL: str(CHECKPOINT_INTERVAL),
        **cluster_property(task.policy.cluster_by, configuration),
    }
    if all(configuration.get(key) == value for key, value in properties.items()):
        return
    # If another commit is first, this one fails, and the next pass retries it.
    with suppress(DeltaError):
        table.alter.set_table_properties(
            properties,
            raise_if_not_exists=False,
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    with table_errors(task.table):
        table.update_incremental()


# --- files ----------------------------------------------------------------------------------------


def expire(task: Task, table: DeltaTable, emit: Emit) -> None:
    """Remove files whose rows are all older than the retention of the table."""
    if task.policy.retention is None or task.retention_now is None:
        return
    began = time.monotonic()
    try:
        done = remove_expired(task.table, table, task.policy.retention, now=task.retention_now)
    except Overtaken:
        # The next pass finds the files that have replaced them.
        return
    if done is not None:
        emit(
            {
                "action": "expired",
                "files": done.files,
                "bytes": done.bytes,
                "rows": done.rows,
                "before": done.before.isoformat().replace("+00:00", "Z"),
                "version": done.version,
                "seconds": _since(began),
            }
        )


def compact_due(task: Task, table: DeltaTable, emit: Emit, now: Callable[[], float]) -> None:
    """Merge files where it is worthwhile, with one commit per new file.

    Files that cannot be merged stay, and others are merged; afterwards the first problem is raised.
    Any other TableError ends the compaction.
    """
    policy = task.policy
    unmergeable: UnmergeableFiles | None = None
    groups = plan_due(
        list_files(table), policy.target_file_size, small_files=policy.small_files, now=now()
    )
    problem = cluster_columns(table).problem if groups else ""
    if problem:
        emit({"action": NOTICE, "text": problem})
    for group in groups:
        began = time.monotonic()
        try:
            done = compact(task.table, table, [group], now=now)
        except Overtaken:
            emit({"action": "overtaken", "files": len(group)})
            continue
        except UnmergeableFiles as problem:
            unmergeable = unmergeable or problem
            continue
        emit(
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
    if unmergeable is not None:
        raise unmergeable


def vacuum(task: Task, table: DeltaTable, emit: Emit) -> None:
    """Delete files older than the retention that no version since then needs."""
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
        # Make sure that the commits which replaced these files are on disk.
        _sync_log(task.table)
        before = table.version()
        files = clean(dry_run=False)
        table.update_incremental()
    for version in range(before + 1, table.version() + 1):
        try:
            fsync_commit(task.table, version)
        except FileNotFoundError:
            # A checkpoint covers it, and it was deleted.
            continue
        except OSError as problem:
            shown = without_secrets(task.table)
            raise TableError(
                f"{shown}: version {version} may not be on disk: {one_line(problem)}"
            ) from problem
    emit({"action": "vacuumed", "files": len(files), "seconds": _since(began)})


def _sync_log(address: str) -> None:
    folder = local_folder(address)
    if folder is None:
        return
    for path in (folder / LOG).iterdir():
        with suppress(FileNotFoundError):
            fsync_path(path)
    fsync_path(folder / LOG)


# --- the log --------------------------------------------------------------------------------------


def write_checkpoint(task: Task, table: DeltaTable, root: Root, emit: Emit) -> None:
    """Write a checkpoint, durably, if the last one is old."""
    names = [entry.name for entry in root.entries(LOG)]
    last = max(checkpoints_in(names), default=0)
    if table.version() - last < task.policy.checkpoint_commits:
        return
    began = time.monotonic()
    with table_errors(task.table):
        table.create_checkpoint()
    fsync_commit(task.table, table.version())
    emit(
        {
            "action": "checkpointed",
            "version": table.version(),
            "commits": table.version() - last,
            "seconds": _since(began),
        }
    )


def drop_torn_checkpoint(address: str, is_ours: Callable[[DeltaTable], bool]) -> int | None:
    """Delete a checkpoint that a power failure left incomplete; returns its version, or None.

    delta-rs does not call fsync. A table whose newest checkpoint is incomplete or missing cannot be
    read, although its log is complete: entries are deleted only after a checkpoint that covers them
    was synced and read. That is verified first, and that the table is ours. Not for object stores,
    nor for checkpoints in several parts, which other programs write. Raises OSError.
    """
    folder = local_folder(address)
    if folder is None:
        return None
    log = folder / LOG
    version = _torn_checkpoint(log)
    if version is None or not _is_readable_without(log, version, is_ours):
        return None
    # Delete the hint first: without it readers search for a checkpoint, and skip an empty one.
    (log / LAST_CHECKPOINT).unlink(missing_ok=True)
    (log / f"{version:020}.checkpoint.parquet").unlink(missing_ok=True)
    fsync_path(log)
    return version


def _torn_checkpoint(log: Path) -> int | None:
    """The version of the last checkpoint if it is incomplete or missing, or None."""
    try:
        version = int(json.loads((log / LAST_CHECKPOINT).read_text("utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        pq.read_metadata(log / f"{version:020}.checkpoint.parquet")
    except FileNotFoundError:
        return None if list(log.glob(f"{version:020}.checkpoint*")) else version
    except (OSError, pa.ArrowException) as problem:
        # With an error number, the file could not be read, which says nothing about its content.
        return version if getattr(problem, "errno", None) is None else None
    return None


def _is_readable_without(log: Path, version: int, is_ours: Callable[[DeltaTable], bool]) -> bool:
    """Whether a log is that of a table of ours, and complete without one of its checkpoints."""
    with TemporaryDirectory(prefix="semel-") as temporary:
        copy = Path(temporary) / LOG
        copy.mkdir()
        for path in log.iterdir():
            is_left_out = path.name.startswith(f"{version:020}.checkpoint")
            if _LOG_FILE.fullmatch(path.name) and not is_left_out:
                (copy / path.name).symlink_to(path.absolute())
        try:
            return is_ours(DeltaTable(temporary))
        except (DeltaError, OSError, ValueError):
            return False


def clean_log(task: Task, root: Root, emit: Emit) -> None:
    """Delete log entries that a checkpoint covers, except the newest `log_entries`."""
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
    # If the checkpoint were incomplete, the deleted entries would be lost.
    path = f"{LOG}/{base:020}.checkpoint.parquet"
    root.fsync(path)
    with root.read(path) as file, pq.ParquetFile(file) as opened:
        if not opened.metadata.num_rows:
            return
    # The oldest first, so that the log never has a gap.
    for name in sorted(covered):
        root.delete(f"{LOG}/{name}")
    emit({"action": "cleaned log", "entries": len(covered), "seconds": _since(began)})


def checkpoints_in(names: Iterable[str]) -> list[int]:
    """The versions of checkpoints that are a single file."""
    return [int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))]


def _version_of(name: str, *, default: int) -> int:
    """The version in the name of a log file, or the default if it has none."""
    found = _LOG_FILE.fullmatch(name)
    return default if found is None else int(found[1])


def _versions(names: Iterable[str]) -> list[int]:
    """The versions that have a log entry."""
    return [int(found[1]) for name in names if (found := _ENTRY.fullmatch(name))]


def _last_landed(root: Root, versions: list[int]) -> int | None:
    """The last commit of a landing that has a log entry, or None."""
    for version in reversed(versions):
        with root.read(f"{LOG}/{log_entry(version)}") as entry:
            if COMMIT_MARKER.encode() in bytes(entry.read()):
                return version
    return None


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)


# --- the process ----------------------------------------------------------------------------------


def lower_priority() -> None:
    """Give everything else the processor first. Expects to be the leader of its own session."""
    os.nice(NICENESS)
    # Linux may share the processor among sessions first (autogroup), and then niceness counts only
    # within a session. A session's own niceness is in this file; a container may not permit it.
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            AUTOGROUP.write_text(str(NICENESS))


def main() -> None:
    """Run the pass that the object on standard input describes."""
    lower_priority()
    pa.set_cpu_count(1)
    given = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()

    def emit(event: dict[str, Any]) -> None:
        print(json.dumps(event), flush=True)

    task = Task(
        given["table"],
        Policy.from_json(given["policy"]),
        given["vacuum"],
        given["retention_now"],
    )
    try:
        run_pass(task, emit)
    except PipelineError as problem:
        vacuumed = isinstance(problem, PassFailed) and problem.vacuumed
        text = " ".join(str(problem).split())
        emit({"action": "failed", "problem": text, "vacuumed": vacuumed})


def _end_with_input() -> None:
    # At end of file the landing has ended, or stops maintenance. A pass may be killed at any point.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()

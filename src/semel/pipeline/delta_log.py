"""The log of a Delta table, entry by entry. Only this module parses it.

    <table>/_delta_log/00000000000000000007.json    the commit of version 7, one action per line

`commitInfo`, which describes the operation, is optional in Delta. The history of delta-rs skips
entries without it, and then reports the wrong version for earlier ones. So entries are read here by
file name, which is the version. Entries that a checkpoint covers are deleted after a while; nothing
is known about versions before the oldest entry.

`find_damage` says what is wrong with a log that delta-rs cannot read, and what to do.

`find_rollback` tells a writer whether it can trust the positions in a table. A RESTORE to an older
version removes rows, but not the app transactions that say which rows were written.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

from semel.extras import need
from semel.pipeline.errors import TableError
from semel.store.roots import Root

FOLDER: Final = "_delta_log"
# The key in commitInfo under which our commits record the number of rows that they add.
COMMIT_MARKER: Final = "semel.rows"
# The key in commitInfo of the operation of our commits; delta-rs itself records WRITE.
OPERATION_KEY: Final = "semel.operation"
# The operation that removes rows because of their age.
RETENTION: Final = "RETENTION"
RESTORE: Final = "RESTORE"


def log_entry(version: int) -> str:
    """The file name of a commit's log entry."""
    return f"{version:020}.json"


@dataclass(frozen=True)
class LogEntry:
    """The log entry of a commit."""

    version: int
    # Empty if the entry has none.
    commit_info: dict[str, Any]
    # The add actions.
    added: tuple[dict[str, Any], ...]
    # The paths of the files that were removed.
    removed: tuple[str, ...]
    # Whether rows were deleted or changed, and not only rewritten or added.
    changes_rows: bool
    # App transactions: name and number.
    transactions: dict[str, int]

    @property
    def operation(self) -> str:
        """The operation, or an empty string if the entry does not say."""
        found = self.commit_info.get(OPERATION_KEY) or self.commit_info.get("operation")
        return str(found or "")

    @property
    def milliseconds(self) -> int | None:
        """When it was committed, or None if the entry does not say."""
        moment = self.commit_info.get("inCommitTimestamp") or self.commit_info.get("timestamp")
        return None if moment is None else int(moment)

    @property
    def added_paths(self) -> list[str]:
        """The files that were added, as they are named on disk."""
        return [unquote(each["path"]) for each in self.added]

    @property
    def rows_landed(self) -> int:
        """The number of rows that a commit of ours added; 0 for other commits."""
        return int(self.commit_info.get(COMMIT_MARKER) or 0)

    @property
    def restored_version(self) -> int | None:
        """The version that a RESTORE restored, or None if it was chosen by a time."""
        version = (self.commit_info.get("operationParameters") or {}).get("version")
        return None if version is None else int(version)

    @property
    def restored_time(self) -> int | None:
        """The time in milliseconds to which a RESTORE went back, or None if unknown."""
        moment = str((self.commit_info.get("operationParameters") or {}).get("datetime"))
        return int(moment) if moment.isascii() and moment.isdecimal() else None


def parse_entry(text: str, version: int) -> LogEntry:
    """Parse a log entry. Raises ValueError if it is damaged."""
    commit_info: dict[str, Any] = {}
    added, removed = [], []
    transactions = {}
    changes_rows = False
    # Not splitlines(): a text in JSON can contain what Python takes for a line break, as U+2028.
    for line in text.split("\n"):
        if not line.strip():
            continue
        action = json.loads(line)
        try:
            commit_info = action.get("commitInfo") or commit_info
            if action.get("add") is not None:
                if not isinstance(action["add"]["path"], str):
                    raise TypeError
                added.append(action["add"])
            if action.get("remove") is not None:
                removed.append(unquote(action["remove"]["path"]))
                changes_rows |= bool(action["remove"].get("dataChange", True))
            if action.get("txn") is not None:
                transactions[str(action["txn"]["appId"])] = int(action["txn"]["version"])
        except (AttributeError, KeyError, TypeError) as problem:
            raise ValueError(f"it is not a Delta action: {line[:80]}") from problem
    return LogEntry(version, commit_info, tuple(added), tuple(removed), changes_rows, transactions)


class DeltaLog:
    """The log of a table, in a folder or an object store."""

    def __init__(self, files: Root) -> None:
        """`files` is the storage at the address of the table."""
        self._files = files

    def entry(self, version: int) -> LogEntry:
        """The entry of a version.

        Raises FileNotFoundError if it does not exist (any more), TableError if it is damaged.
        """
        path = f"{FOLDER}/{log_entry(version)}"
        try:
            with self._files.read(path) as file:
                data = bytes(file.read())
            return parse_entry(data.decode(), version)
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as problem:
            what = "cannot be read" if isinstance(problem, OSError) else "is damaged"
            reason = " ".join(str(problem).split())
            raise TableError(f"{self._files.address}: {path} {what}: {reason}") from None

    def back(self, newest: int) -> Iterator[LogEntry]:
        """The entries from a version backwards, until one does not exist."""
        for version in range(newest, -1, -1):
            try:
                yield self.entry(version)
            except FileNotFoundError:
                return

    def written(self, version: int) -> float:
        """When the file of an entry was written, in seconds since 1970; 0 if unknown."""
        return self.modification_times().get(log_entry(version), 0.0)

    def modification_times(self) -> dict[str, float]:
        """When each file of the log was written, by file name."""
        return {each.name: each.modified for each in self._files.entries(FOLDER)}


@dataclass(frozen=True)
class Rollback:
    """A RESTORE that removed a commit of ours."""

    version: int
    # A version that has the commit: restoring it undoes the RESTORE.
    intact: int


def find_rollback(
    log: DeltaLog, newest: int, is_ours: Callable[[LogEntry], bool], *, limit: int | None = None
) -> Rollback | None:
    """The RESTORE that removed the last commit for which `is_ours`, or None if none did.

    Only existing entries are searched, and at most `limit` of them. If they do not include that
    commit, it is assumed to be older than all of them.
    """
    entries: dict[int, LogEntry] = {}
    removed: set[str] = set()
    ours: LogEntry | None = None
    for entry in islice(log.back(newest), limit):
        entries[entry.version] = entry
        if is_ours(entry):
            ours = entry
            break
        removed.update(entry.removed)
    restores = {each.version: each for each in entries.values() if each.operation == RESTORE}
    oldest = min(entries, default=newest + 1)
    if not restores or (ours is None and oldest == 0):
        return None
    # A commit that was not found is older than the oldest entry.
    needed = oldest - 1 if ours is None else ours.version
    intact = min(restores) - 1 if ours is None else ours.version
    # While the files of our commit are live, no RESTORE has removed it.
    has_files = ours is not None and not removed.intersection(ours.added_paths)

    def lacking(at: int) -> LogEntry | None:
        """The RESTORE because of which a version lacks our commit, or None if it has it."""
        # A version has what the last RESTORE before it restored: follow the chain of them.
        before = [version for version in restores if version <= at]
        if not before:
            return None
        restore = restores[max(before)]
        targets = {restore.restored_version}
        if restore.restored_version is None:
            if has_files:
                return None
            targets = _versions_at(log, entries, restore)
        for target in targets:
            if target is None or not needed <= target < restore.version:
                return restore
            found = lacking(target)
            if found is not None:
                return found
        return None

    found = lacking(newest)
    return None if found is None else Rollback(found.version, intact)


def _versions_at(
    log: DeltaLog, entries: Mapping[int, LogEntry], restore: LogEntry
) -> set[int | None]:
    """The versions that a RESTORE to a time may have restored; None stands for an unknown one.

    A program may go by the timestamps in the entries or by those of their files. Both give the same
    version, unless the time is between the creation of an entry and the writing of its file.
    """
    moment = restore.restored_time
    if moment is None:
        return {None}
    written = log.modification_times()
    by_entry: int | None = None
    by_file: int | None = None
    for version, entry in sorted(entries.items()):
        if version >= restore.version:
            break
        modified = int(written.get(log_entry(version), 0.0) * 1000)
        if modified <= moment:
            by_file = version
        if (modified if entry.milliseconds is None else entry.milliseconds) <= moment:
            by_entry = version
    return {by_entry, by_file}


# --- damage ---------------------------------------------------------------------------------------

_ENTRY: Final = re.compile(r"([0-9]{20})\.json", re.ASCII)
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint\..+", re.ASCII)
_HINT: Final = "_last_checkpoint"
_FROM_BACKUP: Final = (
    "restore it from a backup of the table; without one, move the table away and land all that the"
    " root still has again"
)
_DELETE_IT: Final = f"delete it and {_HINT}: the entries of the log are complete without it"


@dataclass(frozen=True)
class _Listing:
    """The files of a log: entries with their sizes, and checkpoints, by version."""

    entries: dict[int, int]
    checkpoints: dict[int, list[str]]
    has_hint: bool

    @property
    def newest(self) -> int:
        return max(self.entries, default=-1)

    @property
    def covered(self) -> int:
        """The version of the newest checkpoint; -1 if there is none."""
        return max(self.checkpoints, default=-1)

    @property
    def is_complete(self) -> bool:
        """Whether all entries exist, so that no checkpoint is needed."""
        return all(version in self.entries for version in range(self.newest + 1))


def _list(files: Root) -> _Listing:
    entries: dict[int, int] = {}
    checkpoints: dict[int, list[str]] = {}
    has_hint = False
    for each in files.entries(FOLDER):
        entry, checkpoint = _ENTRY.fullmatch(each.name), _CHECKPOINT.fullmatch(each.name)
        if entry is not None:
            entries[int(entry[1])] = each.size
        elif checkpoint is not None:
            checkpoints.setdefault(int(checkpoint[1]), []).append(each.name)
        has_hint = has_hint or each.name == _HINT
    return _Listing(entries, checkpoints, has_hint)


def oldest_version(files: Root) -> int | None:
    """The oldest version of a table that can be read; None if its log is empty."""
    found = _list(files)
    if 0 in found.entries:
        return 0
    return min(found.checkpoints, default=None)


def find_empty_entry(files: Root) -> str | None:
    """What is wrong with a log that has an empty entry, and what to do; None if it has none.

    A writer that crashes without fsync can leave one. delta-rs reads it as an empty commit.
    """
    found = _list(files)
    for version, size in sorted(found.entries.items()):
        if not size and version > found.covered:
            return f"{FOLDER}/{log_entry(version)} is empty: {_FROM_BACKUP}"
    return None


def find_damage(files: Root) -> str | None:
    """What is wrong with a log that cannot be read, and what to do; None if nothing is found."""
    found = _list(files)
    for version in range(found.covered + 1, found.newest + 1):
        name = f"{FOLDER}/{log_entry(version)}"
        if version not in found.entries:
            if found.covered < 0 and version < min(found.entries):
                missing = (
                    f"its entries before version {min(found.entries)} and their checkpoint are"
                )
                return f"{missing} missing: {_FROM_BACKUP}"
            return f"{name} is missing: {_FROM_BACKUP}"
        if not found.entries[version]:
            return f"{name} is empty: {_FROM_BACKUP}"
        try:
            DeltaLog(files).entry(version)
        except FileNotFoundError:
            return f"{name} is missing: {_FROM_BACKUP}"
        except TableError:
            return f"{name} is damaged: {_FROM_BACKUP}"
    advice = _DELETE_IT if found.is_complete else _FROM_BACKUP
    for name in found.checkpoints.get(found.covered, []):
        if not _is_checkpoint(files, f"{FOLDER}/{name}"):
            return f"the checkpoint {FOLDER}/{name} is damaged: {advice}"
    if found.has_hint and not found.checkpoints and found.is_complete:
        return (
            f"{FOLDER}/{_HINT} names a checkpoint that is missing: delete {_HINT}, the entries of"
            " the log are complete without it"
        )
    return None


def _is_checkpoint(files: Root, path: str) -> bool:
    """Whether a checkpoint can be opened; only those in Parquet are checked."""
    if not path.endswith(".parquet"):
        return True
    parquet = need("pyarrow.parquet", extra="spark", by="a Delta table")
    try:
        with files.read(path) as file:
            parquet.read_metadata(file)
    except (OSError, ValueError):
        return False
    return True

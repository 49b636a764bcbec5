"""Delta's log, entry by entry: the one place that parses it.

    <table>/_delta_log/00000000000000000007.json    the commit of version 7, one action per line

An entry may leave out `commitInfo`, in which it says what was done: Delta does not require it.
delta-rs' own history skips such entries, and then gives the wrong version to those before them. So
entries are read here by their names, which are their versions. Entries that a checkpoint covers are
deleted after a while: what is older than the oldest entry is not known any more.

`find_damage` says what is wrong with a log that delta-rs cannot read, and what to do.

`find_rollback` answers what a writer must know before it trusts the positions in a table. A RESTORE
to an older version takes back rows, but not the app transactions that say which rows were written.
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
# By this key in its commitInfo a commit of ours says how many rows it has added.
COMMIT_MARKER: Final = "semel.rows"
RESTORE: Final = "RESTORE"


def log_entry(version: int) -> str:
    """The name of the file of a commit."""
    return f"{version:020}.json"


@dataclass(frozen=True)
class LogEntry:
    """A commit, as its entry tells."""

    version: int
    # Empty if the entry does not say what was done.
    commit_info: dict[str, Any]
    # The add actions.
    added: tuple[dict[str, Any], ...]
    # The paths of the files that were removed.
    removed: tuple[str, ...]
    # App transactions: name and number.
    transactions: dict[str, int]

    @property
    def operation(self) -> str:
        """What was done; empty: the entry does not say."""
        # delta-rs calls every commit with files of ours a WRITE.
        found = self.commit_info.get("semel.operation") or self.commit_info.get("operation")
        return str(found or "")

    @property
    def milliseconds(self) -> int | None:
        """When it was committed; None: the entry does not say."""
        moment = self.commit_info.get("inCommitTimestamp") or self.commit_info.get("timestamp")
        return None if moment is None else int(moment)

    @property
    def added_paths(self) -> list[str]:
        """The files that were added, as they are called on disk."""
        return [unquote(each["path"]) for each in self.added]

    @property
    def rows_landed(self) -> int:
        """How many rows a commit of ours has added; 0 for those of others."""
        return int(self.commit_info.get(COMMIT_MARKER) or 0)

    @property
    def restored_version(self) -> int | None:
        """The version that a RESTORE has brought back; None: it was chosen by a time."""
        version = (self.commit_info.get("operationParameters") or {}).get("version")
        return None if version is None else int(version)

    @property
    def restored_time(self) -> int | None:
        """The time in milliseconds whose version a RESTORE has brought back; None: unknown."""
        moment = str((self.commit_info.get("operationParameters") or {}).get("datetime"))
        return int(moment) if moment.isascii() and moment.isdecimal() else None


def parse_entry(text: str, version: int) -> LogEntry:
    """An entry from its text. Raises ValueError if it is damaged."""
    commit_info: dict[str, Any] = {}
    added, removed = [], []
    transactions = {}
    for line in text.splitlines():
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
            if action.get("txn") is not None:
                transactions[str(action["txn"]["appId"])] = int(action["txn"]["version"])
        except (AttributeError, KeyError, TypeError) as problem:
            raise ValueError(f"it is no action of Delta's: {line[:80]}") from problem
    return LogEntry(version, commit_info, tuple(added), tuple(removed), transactions)


class DeltaLog:
    """The log of a table, in a folder or on an object store."""

    def __init__(self, files: Root) -> None:
        """`files` is what is at the address of the table."""
        self._files = files

    def entry(self, version: int) -> LogEntry:
        """The entry of a version.

        Raises FileNotFoundError if it is not there (any more), TableError if it is damaged.
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
            said = " ".join(str(problem).split())
            raise TableError(f"{self._files.address}: {path} {what}: {said}") from None

    def back(self, newest: int) -> Iterator[LogEntry]:
        """The entries from a version back, as long as they are there."""
        for version in range(newest, -1, -1):
            try:
                yield self.entry(version)
            except FileNotFoundError:
                return

    def written(self, version: int) -> float:
        """When the file of an entry was written, in seconds of the wall clock; 0: unknown."""
        return self.modification_times().get(log_entry(version), 0.0)

    def modification_times(self) -> dict[str, float]:
        """When each file of the log was written, by its name."""
        return {each.name: each.modified for each in self._files.entries(FOLDER)}


@dataclass(frozen=True)
class Rollback:
    """A RESTORE that took back what somebody had committed."""

    version: int
    # The version that has it: whoever restores that has undone the RESTORE.
    intact: int


def find_rollback(
    log: DeltaLog, newest: int, is_ours: Callable[[LogEntry], bool], *, limit: int | None = None
) -> Rollback | None:
    """The RESTORE by which a version lacks the last commit for which `is_ours`; None: it has it.

    If that commit is older than the entries that are left, or than the last `limit` of them, what
    came before these is not known.
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
    # A commit that was not found came before the oldest entry.
    needed = oldest - 1 if ours is None else ours.version
    intact = min(restores) - 1 if ours is None else ours.version
    # Files of ours are of no earlier version: whatever a time has brought back, they are there.
    has_files = ours is not None and not removed.intersection(ours.added_paths)

    def lacking(at: int) -> LogEntry | None:
        """The RESTORE by which a version lacks the commit; None: it has it."""
        # What a version has is what the RESTORE before it brought back: follow them to their end.
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
    """The versions that a RESTORE to a time may have brought back; None: an unknown one.

    Two clocks may have been asked: the one in the entries, and that of their files. There is one
    version by both of them, but for a time between the making of an entry and its file.
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
    "bring it back from a backup of the table; without one, move the table away and land anew, with"
    " all that the root still has"
)
_NOT_NEEDED: Final = f"delete it and {_HINT}: the entries of the log are complete without it"


@dataclass(frozen=True)
class _Listing:
    """What is in the folder of a log: entries and their bytes, and checkpoints, by version."""

    entries: dict[int, int]
    checkpoints: dict[int, list[str]]
    has_hint: bool

    @property
    def newest(self) -> int:
        return max(self.entries, default=-1)

    @property
    def covered(self) -> int:
        """The version whose checkpoint holds all before it; -1: there is none."""
        return max(self.checkpoints, default=-1)

    @property
    def is_complete(self) -> bool:
        """Whether the entries tell everything, without a checkpoint."""
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


def find_empty_entry(files: Root) -> str | None:
    """What is wrong with a log that has an empty entry, and what to do; None: it has none.

    A crash of a writer that does not sync leaves such. delta-rs reads it as a commit of nothing.
    """
    found = _list(files)
    for version, size in sorted(found.entries.items()):
        if not size and version > found.covered:
            return f"{FOLDER}/{log_entry(version)} is empty: {_FROM_BACKUP}"
    return None


def find_damage(files: Root) -> str | None:
    """What is wrong with a log that cannot be read, and what to do; None: nothing that shows."""
    found = _list(files)
    for version in range(found.covered + 1, found.newest + 1):
        name = f"{FOLDER}/{log_entry(version)}"
        if version not in found.entries:
            if found.covered < 0 and version < min(found.entries):
                gone = f"its entries before version {min(found.entries)} and their checkpoint are"
                return f"{gone} missing: {_FROM_BACKUP}"
            return f"{name} is missing: {_FROM_BACKUP}"
        if not found.entries[version]:
            return f"{name} is empty: {_FROM_BACKUP}"
        try:
            DeltaLog(files).entry(version)
        except FileNotFoundError:
            return f"{name} is missing: {_FROM_BACKUP}"
        except TableError:
            return f"{name} is damaged: {_FROM_BACKUP}"
    advice = _NOT_NEEDED if found.is_complete else _FROM_BACKUP
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
    """Whether the file of a checkpoint can be opened, if it is of Parquet."""
    if not path.endswith(".parquet"):
        return True
    parquet = need("pyarrow.parquet", extra="spark", by="a Delta table")
    try:
        with files.read(path) as file:
            parquet.read_metadata(file)
    except (OSError, ValueError):
        return False
    return True

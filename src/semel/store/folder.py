"""The data folder: one process at a time, private files, and a store of a known format.

    lock                    locked by the process that uses the folder; contains its process id
    store.db, -wal, -shm    the store
    store.mark              the number of its commits: see `mark`
    store.db.format-N.bak   the store before it was upgraded to a later format
    store.db.damaged-TIME   the store before it was repaired
    streams/                the record, unless it is kept elsewhere

`open_folder` creates what is missing and checks what exists. Every problem (the folder is locked or
belongs to another user, its disk is full, its store is damaged) raises `Unusable` with one
sentence, and nothing is ever deleted to work around it. A new store gets its name only when it is
complete. So a store that is empty, or missing while its log exists, has lost its content, and is
not silently replaced by a new one.

The lock is taken with flock, so that it ends with the process, however that ends. Child processes
do not inherit the file, so that they do not keep the lock.
"""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from semel.counts import count
from semel.mqtt.violation import Violation
from semel.store.database import Database, as_sentence
from semel.store.file_header import HEADER_BYTES, FileHeader
from semel.store.mark import MARK, Mark, MarkFile, loss_of, position, read_mark
from semel.store.metadata import begin_epoch
from semel.store.migration import Step, migrate, step_from
from semel.store.private_files import (
    check_private,
    new_private,
    open_new_database,
    open_private,
    sync,
    tighten,
    write_private,
)
from semel.store.schema import (
    VERSION,
    Damaged,
    StoreInUse,
    UnknownFormat,
    Unusable,
    objects,
    objects_in,
    version_of,
)
from semel.store.settings import DISK
from semel.store.wal import WriteAheadLog, frames_in_use, index_path, log_path

STORE: Final = "store.db"
LOCK: Final = "lock"
STREAMS: Final = "streams"

_FOLDER_MODE: Final = 0o700
_OTHERS: Final = 0o077

# How many pages are copied between two calls of `progress`.
_STEP: Final = 1_000

Progress = Callable[[int, int], None]

_NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM)
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_DAMAGE: Final = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_TOOBIG,
    # A table or column is missing; text is not UTF-8.
    sqlite3.SQLITE_ERROR,
)


# --- errors ---------------------------------------------------------------------------------------


def as_unusable(
    problem: OSError | sqlite3.Error | Damaged | UnknownFormat, folder: Path
) -> Unusable:
    """The Unusable for a problem with a data folder: what it means, and what to do about it."""
    if isinstance(problem, OSError):
        return Unusable(_system_error(problem, folder))
    store = folder / STORE
    if isinstance(problem, Damaged):
        return damaged(folder, str(problem))
    if isinstance(problem, UnknownFormat):
        return Unusable(f"{store} cannot be used: {problem}")
    if is_damage(problem):
        # The message may quote a damaged definition, which has several lines.
        return damaged(folder, " ".join(str(problem).split()))
    code = problem.sqlite_errorcode & 0xFF
    reason = as_sentence(problem)
    if code == sqlite3.SQLITE_FULL:
        return Unusable(_disk_full(folder))
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unusable(f"{store} is locked by another program: close it ({reason})")
    if code == sqlite3.SQLITE_PROTOCOL:
        return Unusable(_without_locks(folder, reason))
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return Unusable(f"{store} cannot be opened: check its owner and mode ({reason})")
    if code == sqlite3.SQLITE_IOERR:
        return Unusable(f"{store} cannot be read or written: check the disk for errors ({reason})")
    return Unusable(f"{store} cannot be used: {reason}")


def is_damage(problem: sqlite3.Error) -> bool:
    """Whether an error is about the content of the file, not about access to it."""
    return getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _DAMAGE


def damaged(folder: Path, what: str) -> Unusable:
    """The Unusable for a damaged store: what is wrong, and what to do about it."""
    return Unusable(
        f"{folder / STORE} is damaged ({what}): `semel store check {folder}` shows details, "
        f"`semel store repair {folder}` saves what can be read"
    )


def _system_error(problem: OSError, folder: Path) -> str:
    path = problem.filename or folder
    if problem.errno in _NOT_ALLOWED:
        return (
            f"{path} is not accessible to this user (uid {os.geteuid()}): change its owner or mode"
        )
    if problem.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"{path} is not a folder: choose another one"
    if problem.errno == errno.EISDIR:
        return f"{path} is a folder, but should be a file: choose another data folder"
    if problem.errno == errno.ENOENT:
        return f"{path} does not exist"
    if problem.errno == errno.EROFS:
        return f"{path} is on a read-only file system: choose another folder"
    if problem.errno in _NO_SPACE:
        return _disk_full(folder)
    if problem.errno in _NO_LOCKS:
        return _without_locks(folder, problem.strerror or str(problem))
    return f"{path} cannot be used: {problem.strerror or problem}"


def _disk_full(folder: Path) -> str:
    return f"the disk of {folder} is full: free some space"


def _without_locks(folder: Path, reason: str) -> str:
    return (
        f"{folder} is on a file system without the locks that a store needs, such as some network "
        f"file systems: choose a folder on a local disk ({reason})"
    )


@contextmanager
def store_errors(folder: Path) -> Iterator[None]:
    """A context that turns errors of a data folder into Unusable."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except UnicodeDecodeError as problem:
        # SQLite's message contains the damaged name.
        raise damaged(folder, f"a name in it is not text: {problem}") from problem
    except (OSError, sqlite3.Error, Damaged, UnknownFormat) as problem:
        raise as_unusable(problem, folder) from problem


@contextmanager
def store_row_errors(folder: Path) -> Iterator[None]:
    """The same for code that decodes rows: also turns errors of invalid rows into Unusable."""
    with store_errors(folder):
        try:
            yield
        except (Violation, AssertionError, TypeError, ValueError) as problem:
            raise Damaged(f"a row is invalid: {problem!r}") from problem


# --- files ----------------------------------------------------------------------------------------


def make_folder(path: Path) -> bool:
    """Create the folder, private to its owner, and its parents. Returns whether it is new."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(_FOLDER_MODE, parents=True)
    except FileExistsError:
        if not path.is_dir():
            raise
        return False
    path.chmod(_FOLDER_MODE)
    for each in missing:
        sync(each.parent)
    return True


def copy_database(
    connection: sqlite3.Connection,
    target: Path,
    progress: Progress | None = None,
    finish: Callable[[sqlite3.Connection], None] | None = None,
) -> None:
    """Copy a database as of now, completely or not at all, even while others write.

    `target` must not exist. The connection keeps one transaction open, because otherwise SQLite
    would restart the copy at every commit of another connection. `progress` is called with the
    number of pages copied and their total; `finish` may change the copy.
    """
    part = target.with_name(f"{target.name}.part")
    descriptor = new_private(part)

    def step(_: int, remaining: int, pages: int) -> None:
        if progress is not None:
            progress(pages - remaining, pages)

    connection.execute("BEGIN")
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        with closing(open_new_database(part, descriptor)) as copy:
            # No journal and no sync: nobody opens the copy before `publish` has synced it.
            copy.execute("PRAGMA journal_mode = OFF")
            copy.execute("PRAGMA synchronous = OFF")
            connection.backup(copy, pages=_STEP, progress=step)
        with closing(open_new_database(part, descriptor)) as copy:
            # The copy is one file without a log; a broker creates the log again.
            copy.execute("PRAGMA journal_mode = DELETE").fetchone()
            if finish is not None:
                finish(copy)
    finally:
        connection.execute("ROLLBACK")
        os.close(descriptor)
    publish(part, target)


def publish(part: Path, target: Path) -> None:
    """Rename a complete file to its final name, durably. Raises Unusable if that exists."""
    sync(part)
    if target.exists():
        raise Unusable(f"{target} exists, and nothing is overwritten")
    part.rename(target)
    sync(target.parent)


def check_files(store: Path) -> None:
    """Check that the files that SQLite opens are not links. Raises Unusable."""
    for file in (store, log_path(store), index_path(store)):
        check_private(file)


def read_only(folder: Path, *, is_unused: bool = False) -> sqlite3.Connection:
    """A read-only connection to the store of a folder, with or without a running broker.

    Within `unused_folder`, set `is_unused`: then no file of the folder changes either. (Only if a
    log was copied without its index does SQLite create the index.) Text that is not UTF-8 is
    decoded with surrogates, which no rule accepts. Call it within `store_errors`.
    """
    store = folder / STORE
    if not folder.is_dir():
        problem = "it is not a folder" if folder.exists() else "it does not exist"
        raise Unusable(f"{folder} is not a data folder: {problem}")
    check_files(store)
    if not store.exists():
        raise Unusable(f"{folder} is not a data folder: it has no {STORE}")
    if store.stat().st_size == 0:
        # SQLite would treat it as a new database, and delete its log.
        raise Damaged("it is empty, and a store never is")
    uri = f"{store.absolute().as_uri()}?mode=ro"
    log = log_path(store)
    has_log = log.exists() and log.stat().st_size > 0
    if not has_log and (is_unused or not os.access(folder, os.W_OK)):
        # SQLite cannot or must not create its -shm file, and does not need it: nobody writes.
        uri += "&immutable=1"
    elif is_unused and index_path(store).exists():
        # SQLite builds the index of the log in memory, and leaves the one that a crash has left.
        uri += "&readonly_shm=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    connection.text_factory = _text
    return connection


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# --- one process at a time ------------------------------------------------------------------------


class Lock:
    """An exclusive lock on a folder, until `close`. Raises StoreInUse."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = open_private(folder / LOCK)
        try:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(self._descriptor)
                raise StoreInUse(f"{folder} is in use by another process{holder}") from None
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"%d\n" % os.getpid(), 0)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the folder."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def unused_folder(folder: Path) -> Iterator[None]:
    """A context during which no other process uses the folder. It changes nothing.

    Raises StoreInUse. Call it within `store_errors`.
    """
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        # No process has ever used it: it was copied without its lock.
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreInUse(
                f"{folder} is in use by another process{_holder(descriptor)}"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    number = os.pread(descriptor, 20, 0).strip()
    return f" (process {number.decode('ascii')})" if number.isdigit() else ""


class StoreFolder:
    """A data folder that this process has locked. The caller logs its `warnings` and `notes`."""

    def __init__(self, path: Path, lock: Lock) -> None:
        self.path = path
        self.database = path / STORE
        self.streams = path / STREAMS
        self.warnings: list[str] = []
        # Events that need no attention.
        self.notes: list[str] = []
        self._lock = lock

    def open(self, durability: str = DISK) -> Database:
        """Open the store for writing."""
        with store_errors(self.path):
            database = Database.open(self.database, durability)
            try:
                check_log_mode(database.connection, self.path)
                epoch, commit = position(database.connection)
                database.mark = MarkFile(self.path, epoch, commit, durability)
            except BaseException:
                database.close()
                raise
            return database

    def close(self) -> None:
        """Release the folder."""
        self._lock.close()

    def __enter__(self) -> "StoreFolder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def check_log_mode(connection: sqlite3.Connection, folder: Path) -> None:
    """Check that the database has a write-ahead log, which needs shared memory."""
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    if mode != "wal":
        raise Unusable(_without_locks(folder, f"journal mode {mode}"))


def open_folder(
    path: Path, *, durability: str = DISK, steps: Mapping[int, Step] | None = None
) -> StoreFolder:
    """Lock the folder, and create, check or upgrade its store. Raises Unusable.

    `durability` is the one with which the store was written, if it has no mark that says so. Only
    with "disk" is every commit synced before the next, so that an incomplete log means damage.
    `steps` upgrade from older formats to the current one.
    """
    _check_name(path)
    with store_errors(path):
        is_new = make_folder(path)
        lock = Lock(path)
        try:
            folder = StoreFolder(path, lock)
            if not is_new:
                check_files(folder.database)
                _tighten(folder)
            mark = read_mark(path)
            if not folder.database.exists():
                _make_store(folder.database, mark)
            else:
                _check_size(folder.database)
                recovered = _check_log(folder, durability if mark is None else mark.durability)
                version = _check_tables(folder, steps)
                if version > 1:
                    # Format 1 did not count commits.
                    _check_mark(folder, mark, recovered)
                if version < VERSION:
                    _upgrade(folder, version, steps)
            return folder
        except BaseException:
            lock.close()
            raise


def _check_name(path: Path) -> None:
    """Check that the path is valid text, as SQLite requires, before anything is created."""
    name = str(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise Unusable(f"{shown} is not valid UTF-8: choose another folder") from None
    if "\0" in name:
        raise Unusable(f"{name!r} contains a NUL: choose another folder")


def _tighten(folder: StoreFolder) -> None:
    """Make the files private. The mode of an existing folder is not changed, only reported."""
    mode = folder.path.stat().st_mode
    if mode & _OTHERS:
        folder.warnings.append(
            f"{folder.path} is accessible to other users (mode {mode & 0o777:03o}): chmod 700 it"
        )
    for file in sorted(folder.path.glob(f"{STORE}*")):
        if file.is_symlink():
            # A link in place of one of our files is refused later; other files are not ours.
            continue
        if file.stat().st_mode & _OTHERS and not tighten(file):
            folder.warnings.append(
                f"{file} is readable by other users, and its mode cannot be changed"
            )


# --- the store ------------------------------------------------------------------------------------


def _make_store(store: Path, mark: Mark | None) -> None:
    log = log_path(store)
    if log.exists() and log.stat().st_size:
        raise Damaged(f"it is missing, but its log {log.name} exists")
    saved = sorted(store.parent.glob(f"{store.name}.damaged-*"))
    if saved:
        raise Damaged(
            f"it is missing, but {saved[-1].name} exists; to start a new one, move that away"
        )
    if mark is not None:
        raise Damaged(
            f"it is missing, but {MARK} records {count(mark.commit, 'commit')}; to start a new"
            " one, move that away"
        )
    part = store.with_name(f"{store.name}.part")
    database = Database.open(":memory:")
    try:
        # The id is part of a complete store, which becomes visible only when it is complete.
        database.unique_id()
        write_private(part, database.connection.serialize())
    finally:
        database.close()
    publish(part, store)


def _check_size(store: Path) -> None:
    """Check that the file is as long as its header says, unless a log may have the rest."""
    with store.open("rb") as file:
        header = FileHeader(file.read(HEADER_BYTES))
    size = store.stat().st_size
    log = log_path(store)
    if not header.is_complete or (log.exists() and log.stat().st_size):
        return
    if header.has_page_count and size < header.page_count * header.page_size:
        found = count(size, "byte")
        pages = f"{header.page_count} pages of {header.page_size} bytes"
        raise Damaged(f"it has {found} instead of {pages}")


def _check_log(folder: StoreFolder, durability: str) -> str:
    """Check that SQLite uses every acknowledged commit in the log.

    Returns a description of what was recovered from the log, for a note.
    """
    path = log_path(folder.database)
    nothing = "there was nothing to recover from its log"
    if not path.exists() or not path.stat().st_size:
        return nothing
    log = WriteAheadLog(path)
    if not log.has_header:
        if path.stat().st_size > log.offset(0):
            raise Damaged(f"the header of its log {path.name} is damaged")
        return nothing
    with closing(read_only(folder.path)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        used = frames_in_use(index_path(folder.database))
    lost = log.commits(used)
    if used < log.synced:
        what = f"its log {path.name} is damaged"
        lost_part = f"{count(lost, 'transaction')} of {log.commits(0):,}"
        if durability == DISK:
            raise Damaged(f"{what}: it would lose {lost_part}")
        folder.warnings.append(
            f"{what}: it lost {lost_part}, as expected after a loss of power with durability os"
        )
    elif lost:
        folder.warnings.append(
            f"the last commit in {path.name} is incomplete, as after kill -9 or a loss of power: it"
            " was never acknowledged, and is not used"
        )
    if used < len(log.frames):
        # Remove the unused frames, which could later look like damage.
        with closing(sqlite3.connect(folder.database, isolation_level=None)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    # Transactions, not numbered commits: a new store creates its tables in separate transactions.
    transactions = count(log.commits(0) - lost, "transaction")
    return f"recovered {transactions} ({count(used, 'page')}) from its log"


def _check_mark(folder: StoreFolder, mark: Mark | None, recovered: str) -> None:
    """Check that the store has all commits of its mark. `recovered` is the text for a note."""
    with closing(read_only(folder.path)) as connection:
        epoch, commit = position(connection)
        loss = loss_of(connection, mark)
    if loss is not None:
        if not loss.is_expected:
            raise Damaged(f"{loss}; if it was replaced by an older copy, a repair accepts that")
        folder.warnings.append(f"{loss}, as expected after a loss of power with durability os")
    elif mark is None and commit:
        folder.warnings.append(
            f"{folder.path / MARK} is missing: a log that has lost its end cannot be detected"
        )
    elif mark is None:
        return
    elif mark.epoch != epoch:
        folder.notes.append(f"{folder.database} is not the store that {MARK} was written for")
    elif not mark.is_closed:
        folder.notes.append(
            f"{folder.database} was not closed by its last process: {recovered}; it is complete up"
            f" to commit {commit}"
        )


def _check_tables(folder: StoreFolder, steps: Mapping[int, Step] | None) -> int:
    """Check the tables, or that their format can be upgraded. Returns the format."""
    with closing(read_only(folder.path)) as connection:
        version = version_of(connection)
        if version < VERSION:
            step_from(version, steps)
            return version
        found = objects_in(connection)
    lacking = sorted(objects().keys() - found.keys())
    if lacking:
        raise Damaged(f"it has no {', '.join(lacking)}")
    for name, definition in objects().items():
        if found[name] != definition:
            raise Damaged(f"{name} has another definition than in format {VERSION}")
    return version


def _upgrade(folder: StoreFolder, version: int, steps: Mapping[int, Step] | None) -> None:
    """Upgrade a store from this format to the current one, after a backup."""
    store = folder.database
    copy = unused(store.with_name(f"{store.name}.format-{version}.bak"))
    with closing(read_only(folder.path)) as connection:
        # The mark will count commits that the backup does not have. To put the backup in place of
        # the store must not look like a loss. Format 1 had no epoch.
        copy_database(connection, copy, finish=begin_epoch if version > 1 else None)
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        try:
            migrate(connection, steps)
        except BaseException as problem:
            # The store is unchanged. A copy at each attempt would fill the disk.
            copy.unlink()
            if not isinstance(problem, sqlite3.OperationalError):
                raise
            raise UnknownFormat(
                f"it could not be upgraded from format {version} to {VERSION}, and is unchanged: "
                f"{as_sentence(problem)}"
            ) from problem
    folder.warnings.append(
        f"{store} was upgraded from format {version} to {VERSION}; {copy.name} is the backup"
    )


def known_version(connection: sqlite3.Connection) -> int:
    """Check that a store has the current format, before reading it. Raises UnknownFormat."""
    version = version_of(connection)
    if version != VERSION:
        raise UnknownFormat(
            f"it has format {version}: a broker upgrades it to {VERSION} when it starts"
        )
    return version


def unused(path: Path) -> Path:
    """This path, or if it exists, the path with the lowest unused number at its end."""
    found = path
    number = 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}.{number}")
    return found

"""The data folder: one process at a time, files for their owner alone, and a store that we know.

    lock                    locked by the process that has the folder; its number in it, for people
    store.db, -wal, -shm    the store
    store.mark              how far it had come: see `mark`
    store.db.format-N.bak   what it was before it was brought to a later format
    store.db.damaged-TIME   what it was before it was repaired
    streams/                the record, unless it is kept elsewhere

`open_folder` makes what is not there and looks at what is. Whatever is in the way, be it that the
folder is locked, not ours, on a disk that is full or damaged, is one sentence in an `Unusable`, and
nothing is ever deleted to get on. A store appears under its name when it is whole, so one that is
empty, or gone while its log is there, was one once, and is not silently begun anew.

The lock is flock's: it goes with the process, however that ends. Python opens files so that a
program which the process starts does not inherit them, and so neither does the lock outlive it.
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

from semel.mqtt.violation import Violation
from semel.store.database import Database, as_sentence
from semel.store.log import Log, frames_in_use, index_of, log_of
from semel.store.mark import MARK, Mark, MarkFile, loss_of, position, read_mark
from semel.store.migration import Step, check_steps, migrate
from semel.store.private_files import check_private, make_private, open_private, sync, tighten
from semel.store.schema import (
    VERSION,
    Damaged,
    NotKnown,
    StoreInUse,
    Unusable,
    objects,
    objects_in,
    version_of,
)
from semel.store.settings import DISK

STORE: Final = "store.db"
LOCK: Final = "lock"
STREAMS: Final = "streams"

_FOLDER_MODE: Final = 0o700
_OTHERS: Final = 0o077

# Of the header of a database: page size, change counter, pages, change counter when they were
# counted.
_HEADER_BYTES: Final = 100
# Pages that are copied between two calls of `progress`.
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
    # A table or column is not there; text is not text.
    sqlite3.SQLITE_ERROR,
)


# --- what is wrong, in one sentence ---------------------------------------------------------------


def explain(problem: OSError | sqlite3.Error | Damaged | NotKnown, folder: Path) -> Unusable:
    """What a problem with a data folder means, and what to do about it."""
    if isinstance(problem, OSError):
        return Unusable(_explain_system(problem, folder))
    store = folder / STORE
    if isinstance(problem, Damaged):
        return damaged(folder, str(problem))
    if isinstance(problem, NotKnown):
        return Unusable(f"{store} cannot be used: {problem}")
    if is_damage(problem):
        return damaged(folder, str(problem))
    code = problem.sqlite_errorcode & 0xFF
    said = as_sentence(problem)
    if code == sqlite3.SQLITE_FULL:
        return Unusable(f"no space is left on the disk of {folder}: make some")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unusable(f"{store} is locked by another program: close that one ({said})")
    if code == sqlite3.SQLITE_PROTOCOL:
        return Unusable(_without_locks(folder, said))
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return Unusable(f"{store} cannot be opened: look at its owner and mode ({said})")
    if code == sqlite3.SQLITE_IOERR:
        return Unusable(f"{store} cannot be read or written: look for errors of the disk ({said})")
    return Unusable(f"{store} cannot be used: {said}")


def is_damage(problem: sqlite3.Error) -> bool:
    """Whether this is about what is in the file, and not about reaching it."""
    return getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _DAMAGE


def damaged(folder: Path, what: str) -> Unusable:
    """What to do about a damaged store."""
    return Unusable(
        f"{folder / STORE} is damaged ({what}): `semel store check {folder}` tells more, "
        f"`semel store repair {folder}` saves what can be read"
    )


def _explain_system(problem: OSError, folder: Path) -> str:
    place = problem.filename or folder
    if problem.errno in _NOT_ALLOWED:
        return f"{place} is not for this user (number {os.geteuid()}): change its owner or mode"
    if problem.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"{place} is not a folder: choose another"
    if problem.errno == errno.EISDIR:
        return f"{place} is a folder, but a file should be there: choose another"
    if problem.errno == errno.ENOENT:
        return f"{place} is not there"
    if problem.errno == errno.EROFS:
        return f"{place} is on a file system that cannot be written: choose another folder"
    if problem.errno in _NO_SPACE:
        return f"no space is left on the disk of {folder}: make some"
    if problem.errno in _NO_LOCKS:
        return _without_locks(folder, problem.strerror or str(problem))
    return f"{place} cannot be used: {problem.strerror or problem}"


def _without_locks(folder: Path, said: str) -> str:
    return (
        f"{folder} is on a file system without the locks that a store needs, as some network file "
        f"systems are: choose a folder on a local disk ({said})"
    )


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """What a data folder can do wrong in here comes out as Unusable."""
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except UnicodeDecodeError as problem:
        # What SQLite says of a damaged name has that name in it.
        raise damaged(folder, f"a name in it is no text: {problem}") from problem
    except (OSError, sqlite3.Error, Damaged, NotKnown) as problem:
        raise explain(problem, folder) from problem


@contextmanager
def rows_explained(folder: Path) -> Iterator[None]:
    """The same for who turns rows into messages, which damaged ones cannot become."""
    with explained(folder):
        try:
            yield
        except (Violation, AssertionError, TypeError, ValueError) as problem:
            raise Damaged(f"a row is not what it should be: {problem!r}") from problem


# --- files ----------------------------------------------------------------------------------------


def make_folder(path: Path) -> bool:
    """The folder, its owner's alone, and those above it. Whether it is new."""
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
    """A copy as of now, whole or not there, also while others write. `target` must be new.

    The connection keeps one transaction open for it: else every commit of another would make
    SQLite begin anew. `progress` is told how many pages of how many are copied; `finish` may
    change the copy.
    """
    part = target.with_name(f"{target.name}.part")
    make_private(part)

    def step(_: int, remaining: int, pages: int) -> None:
        if progress is not None:
            progress(pages - remaining, pages)

    connection.execute("BEGIN")
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        with closing(sqlite3.connect(part, isolation_level=None)) as copy:
            # Nobody else sees it, and it counts when it has been synced.
            copy.execute("PRAGMA journal_mode = OFF")
            copy.execute("PRAGMA synchronous = OFF")
            connection.backup(copy, pages=_STEP, progress=step)
    finally:
        connection.execute("ROLLBACK")
    with closing(sqlite3.connect(part, isolation_level=None)) as copy:
        # One file that needs no other: a broker gives it a log again.
        copy.execute("PRAGMA journal_mode = DELETE").fetchone()
        if finish is not None:
            finish(copy)
    publish(part, target)


def publish(part: Path, target: Path) -> None:
    """A file that is whole gets its name, for good."""
    sync(part)
    if target.exists():
        raise Unusable(f"{target} is there already, and nothing is overwritten")
    part.rename(target)
    sync(target.parent)


def check_files(store: Path) -> None:
    """The files that SQLite opens are no links. Raises Unusable."""
    for file in (store, log_of(store), index_of(store)):
        check_private(file)


def read_only(folder: Path) -> sqlite3.Connection:
    """A connection to the store of a folder, which cannot write, beside a broker or without one.

    Text that is not UTF-8 comes with surrogates, which no rule lets pass. For `explained`.
    """
    store = folder / STORE
    if not folder.is_dir():
        raise Unusable(f"{folder} is no data folder: it is not a folder, or not there")
    check_files(store)
    if not store.exists():
        raise Unusable(f"{folder} is no data folder: it has no {STORE}")
    if store.stat().st_size == 0:
        # SQLite would take it for a new one, and delete its log.
        raise Damaged("it is empty, and it was not when it was made")
    uri = f"{store.absolute().as_uri()}?mode=ro"
    log = log_of(store)
    if not os.access(folder, os.W_OK) and not (log.exists() and log.stat().st_size):
        # SQLite wants to put its index there. Nobody writes, so it can do without.
        uri += "&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    connection.text_factory = _text
    return connection


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# --- one process at a time ------------------------------------------------------------------------


class Lock:
    """A folder that no other process has, until `close`."""

    def __init__(self, folder: Path) -> None:
        self._descriptor = open_private(folder / LOCK)
        try:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreInUse(f"{folder} is in use by another process{self._who()}") from None
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, b"%d\n" % os.getpid(), 0)
        except BaseException:
            self.close()
            raise

    def _who(self) -> str:
        number = os.pread(self._descriptor, 20, 0).strip()
        return f" (process {number.decode('ascii')})" if number.isdigit() else ""

    def close(self) -> None:
        """Let others have it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StoreFolder:
    """A data folder that is ours: `warnings` and `notes` are for whoever runs us. Close it last."""

    def __init__(self, path: Path, lock: Lock) -> None:
        self.path = path
        self.database = path / STORE
        self.streams = path / STREAMS
        self.warnings: list[str] = []
        # What happened and is all right.
        self.notes: list[str] = []
        self._lock = lock

    def open(self, durability: str = DISK) -> Database:
        """The store, for writing."""
        with explained(self.path):
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
        """Let other processes have it."""
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
    """The database has a write-ahead log: a file system without shared memory has none."""
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    if mode != "wal":
        raise Unusable(_without_locks(folder, f"journal mode {mode}"))


def open_folder(
    path: Path, *, durability: str = DISK, steps: Mapping[int, Step] | None = None
) -> StoreFolder:
    """Have the folder for this process, with a store of today's format in it. Raises Unusable.

    `durability` is what the store was written with, if its mark does not say so: only with "disk"
    is every commit synced before the next, so that a log which is not whole is damaged. `steps`
    lead from older formats to ours.
    """
    _check_name(path)
    with explained(path):
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
                _check_tables(folder, steps)
                _check_mark(folder, mark, recovered)
            return folder
        except BaseException:
            lock.close()
            raise


def _check_name(path: Path) -> None:
    """SQLite takes names that are text alone. Nothing is made under another."""
    name = str(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise Unusable(f"{shown} has bytes in its name that are no UTF-8: choose another") from None
    if "\0" in name:
        raise Unusable(f"{name!r} cannot name a folder, as there is a NUL in it: choose another")


def _tighten(folder: StoreFolder) -> None:
    """Others may see the names of our files if they could before, but not what is in them."""
    mode = folder.path.stat().st_mode
    if mode & _OTHERS:
        folder.warnings.append(
            f"others can look into {folder.path} (mode {mode & 0o777:03o}): chmod 700 it"
        )
    for file in sorted(folder.path.glob(f"{STORE}*")):
        if file.is_symlink():
            # Those that we use are refused, and others are not ours.
            continue
        if file.stat().st_mode & _OTHERS and not tighten(file):
            folder.warnings.append(f"others can read {file}, and it is not ours to change")


# --- the store ------------------------------------------------------------------------------------


def _make_store(store: Path, mark: Mark | None) -> None:
    log = log_of(store)
    if log.exists() and log.stat().st_size:
        raise Damaged(f"it is gone, but its log {log.name} is there")
    saved = sorted(store.parent.glob(f"{store.name}.damaged-*"))
    if saved:
        raise Damaged(f"it is gone, but {saved[-1].name} is there; to begin anew, move that away")
    if mark is not None:
        raise Damaged(
            f"it is gone, but {MARK} says that it had {_count(mark.commit, 'commit')}; to begin"
            " anew, move that away"
        )
    part = store.with_name(f"{store.name}.part")
    make_private(part)
    database = Database.open(":memory:")
    try:
        # A store has its id from the beginning, and is never seen half made.
        database.identity()
        database.connection.execute("VACUUM INTO ?", (str(part),))
    finally:
        database.close()
    publish(part, store)


def _check_size(store: Path) -> None:
    """The file is as long as it says. A log may hold what it lacks."""
    with store.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    size = store.stat().st_size
    log = log_of(store)
    if len(header) < _HEADER_BYTES or (log.exists() and log.stat().st_size):
        return
    page_size = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    # Only then does the number of pages count.
    is_stated = header[24:28] == header[92:96]
    if is_stated and size < pages * (65_536 if page_size == 1 else page_size):
        raise Damaged(f"it has {size} bytes, and it should have {pages} pages of {page_size}")


def _check_log(folder: StoreFolder, durability: str) -> str:
    """All that the log has is in use, or was never acknowledged. Returns what was read of it."""
    path = log_of(folder.database)
    nothing = "there was nothing to recover from its log"
    if not path.exists() or not path.stat().st_size:
        return nothing
    log = Log(path)
    if not log.is_readable:
        if path.stat().st_size > log.place(0):
            raise Damaged(f"{path.name}, its log, has no header")
        return nothing
    with closing(read_only(folder.path)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        used = frames_in_use(index_of(folder.database))
    lost = log.commits(used)
    if used < log.synced:
        what = f"{path.name}, its log, is broken: {lost} of its {log.commits(0)} commits"
        if durability == DISK:
            raise Damaged(f"{what} would be lost")
        folder.warnings.append(f"{what} are lost, as loss of power does with durability os")
    elif lost:
        folder.warnings.append(
            f"the last commit in {path.name} is not whole, as after loss of power: it was never "
            "acknowledged, and is not used"
        )
    if used < len(log.frames):
        # What is left of it could be taken for damage, later.
        with closing(sqlite3.connect(folder.database, isolation_level=None)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    commits = log.commits(0) - lost
    return f"recovered {_count(commits, 'commit')} ({_count(used, 'page')}) from its log"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _check_mark(folder: StoreFolder, mark: Mark | None, recovered: str) -> None:
    """The store has come as far as its mark says. `recovered`: what was read of its log."""
    with closing(read_only(folder.path)) as connection:
        epoch, commit = position(connection)
        loss = loss_of(connection, mark)
    if loss is not None:
        if not loss.is_expected:
            raise Damaged(f"{loss}; if an older copy was put in its place, a repair accepts that")
        folder.warnings.append(f"{loss}, as loss of power does with durability os")
    elif mark is None and commit:
        folder.warnings.append(
            f"there was no {MARK} in {folder.path}: whether the end of its log is missing cannot be"
            " told"
        )
    elif mark is None:
        return
    elif mark.epoch != epoch:
        folder.notes.append(f"{folder.database} is another store than the one of {MARK} before")
    elif not mark.is_closed:
        folder.notes.append(
            f"{folder.database} was not closed by the process that had it: {recovered}; it is whole"
            f" up to commit {commit}"
        )


def _check_tables(folder: StoreFolder, steps: Mapping[int, Step] | None) -> None:
    """The tables are those of our version; older ones are brought to it, after a copy."""
    store = folder.database
    with closing(read_only(folder.path)) as connection:
        version = version_of(connection)
        if version == VERSION:
            there = objects_in(connection)
            lacking = sorted(objects().keys() - there.keys())
            if lacking:
                raise Damaged(f"it has no {', '.join(lacking)}")
            for name, definition in objects().items():
                if there[name] != definition:
                    raise Damaged(f"{name} is not defined as it should be")
            return
        check_steps(version, steps)
        copy = unused(store.with_name(f"{store.name}.format-{version}.bak"))
        copy_database(connection, copy)
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        try:
            migrate(connection, steps)
        except sqlite3.OperationalError as problem:
            raise NotKnown(
                f"it could not be brought from format {version} to {VERSION}, and is as it was: "
                f"{as_sentence(problem)}"
            ) from problem
    folder.warnings.append(
        f"{store} was brought from format {version} to {VERSION}; {copy.name} is what it was"
    )


def known_version(connection: sqlite3.Connection) -> int:
    """Today's version, or NotKnown: for who only reads."""
    version = version_of(connection)
    if version != VERSION:
        raise NotKnown(f"it has format {version}: a broker brings it to {VERSION} when it starts")
    return version


def unused(path: Path) -> Path:
    """This name, or the next one that nobody has."""
    found = path
    number = 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}.{number}")
    return found

"""A data folder: one process, private files, a store that is known; anything else is a sentence."""

import errno
import fcntl
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from semel.mqtt import Message
from semel.mqtt.delivery import QUEUED, Change
from semel.store.commit import Commit
from semel.store.database import Database
from semel.store.folder import (
    StoreFolder,
    as_unusable,
    check_log_mode,
    open_folder,
    read_only,
    store_row_errors,
)
from semel.store.mark import put_mark, read_mark
from semel.store.migration import Step
from semel.store.schema import VERSION, Unusable
from semel.store.settings import DISK, OS
from semel.store.wal import WriteAheadLog, log_path
from tests.store.stores import change, damage

NOBODY = 65_534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def sentence(folder: Path, durability: str = "disk") -> str:
    """Why the folder cannot be opened."""
    with pytest.raises(Unusable) as caught:
        open_folder(folder, durability=durability).close()
    text = str(caught.value)
    assert "\n" not in text
    assert str(folder) in text
    return text


def opens(folder: Path) -> list[str]:
    """Open it and look that it works; the warnings."""
    with open_folder(folder) as opened:
        database = opened.open()
        database.restore()
        database.close()
        return opened.warnings


@contextmanager
def umask(value: int) -> Iterator[None]:
    old = os.umask(value)
    try:
        yield
    finally:
        os.umask(old)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Do without the rights of root, if we have them."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def commit_of(number: int) -> Commit:
    commit = Commit()
    commit.sessions.append((number, f"client {number}", 60, ""))
    message = Message("t", b"x" * 2000, qos=1)
    commit.changes.append((number, Change(QUEUED, number=1, message=message)))
    return commit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with a store of three sessions, closed as it should be."""
    path = tmp_path / "data"
    with open_folder(path) as opened, closing(opened.open()) as database:
        for number in (1, 2, 3):
            database.apply([commit_of(number)])
    return path


KILLED = """
import os, sys
from pathlib import Path
from semel.store.folder import open_folder
from tests.store.live.test_folder import commit_of
database = open_folder(Path(sys.argv[1])).open(sys.argv[3])
for number in range(1, int(sys.argv[2]) + 1):
    database.apply([commit_of(number)])
os.kill(os.getpid(), 9)
"""


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    paths = [entry for entry in sys.path if entry] + [str(Path(__file__).parents[3])]
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A data folder whose broker was killed after twenty commits: they are in the log alone."""
    return made_and_killed(tmp_path / "data", DISK)


def made_and_killed(path: Path, durability: str) -> Path:
    result = run(KILLED, path, 20, durability)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert len(WriteAheadLog(log_path(path / "store.db")).frames) > 40
    return path


def set_mark(folder: Path, commit: int) -> None:
    """The mark as it was after that commit."""
    mark = read_mark(folder)
    assert mark is not None
    put_mark(folder, replace(mark, commit=commit))


# --- making ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0, 0o022, 0o777])
def test_a_new_folder_and_its_files_are_their_owners_alone(tmp_path: Path, mask: int) -> None:
    path = tmp_path / "data"
    with umask(mask), open_folder(path) as opened, closing(opened.open()) as database:
        database.apply([commit_of(1)])
        assert mode(path) == 0o700
        files = {file.name: mode(file) for file in path.iterdir()}
    assert files == dict.fromkeys(
        ("lock", "store.db", "store.db-wal", "store.db-shm", "store.mark"), 0o600
    )


def test_folders_above_are_made_too(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    assert opens(path) == []
    assert mode(path) == 0o700


def test_a_new_store_has_its_format_its_id_and_nothing_in_it(tmp_path: Path) -> None:
    with open_folder(tmp_path / "data") as opened, closing(opened.open()) as database:
        assert database.get_metadata("id") == database.unique_id()
        assert database.restore().sessions == []
        version = database.connection.execute("PRAGMA user_version").fetchone()[0]
        page_size = database.connection.execute("PRAGMA page_size").fetchone()[0]
    with closing(Database.open(tmp_path / "other.db")) as other:
        assert page_size == other.connection.execute("PRAGMA page_size").fetchone()[0]
    assert version == VERSION


def test_no_two_stores_have_the_same_id(tmp_path: Path) -> None:
    ids = set()
    for name in ("a", "b"):
        with open_folder(tmp_path / name) as opened, closing(opened.open()) as database:
            ids.add(database.unique_id())
    assert len(ids) == 2


def test_a_store_that_was_half_made_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "store.db.part").write_bytes(b"half")
    opens(tmp_path)
    assert not (tmp_path / "store.db.part").exists()


def test_what_was_committed_is_there_again(folder: Path) -> None:
    with open_folder(folder) as opened, closing(opened.open()) as database:
        assert [each.client_id for each in database.restore().sessions] == [
            "client 1",
            "client 2",
            "client 3",
        ]
        assert opened.warnings == []


def test_an_existing_folder_that_others_can_read_stays_but_its_files_are_closed(
    folder: Path,
) -> None:
    folder.chmod(0o755)
    (folder / "store.db").chmod(0o644)
    (folder / "store.db.damaged-1").write_bytes(b"old")
    (folder / "store.db.damaged-1").chmod(0o666)
    (folder / "lock").chmod(0o644)
    (folder / "mine.txt").write_text("not semel's")
    (folder / "mine.txt").chmod(0o644)
    (warning,) = opens(folder)
    assert "chmod 700" in warning
    assert str(folder) in warning
    assert mode(folder) == 0o755
    assert mode(folder / "mine.txt") == 0o644
    for name in ("store.db", "store.db.damaged-1", "lock"):
        assert mode(folder / name) == 0o600


@AS_ROOT
def test_what_root_makes_belongs_to_the_owner_of_the_folder(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    with open_folder(tmp_path) as opened, closing(opened.open()) as database:
        database.apply([commit_of(1)])
        assert {file.stat().st_uid for file in tmp_path.iterdir()} == {NOBODY}
        assert {file.stat().st_gid for file in tmp_path.iterdir()} == {NOBODY}


# --- one process ----------------------------------------------------------------------------------

HOLDS = """
import sys
from pathlib import Path
from semel.store.folder import open_folder
with open_folder(Path(sys.argv[1])):
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_told_who_has_the_folder(folder: Path) -> None:
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        said = sentence(folder)
        assert f"in use by another process (process {process.pid})" in said
        process.kill()
    assert process.returncode == -signal.SIGKILL
    # However the other ended, the folder is free.
    assert opens(folder) == []


def test_the_same_process_cannot_have_a_folder_twice(folder: Path) -> None:
    with open_folder(folder):
        assert f"in use by another process (process {os.getpid()})" in sentence(folder)
    assert opens(folder) == []


def test_a_lock_without_a_number_is_a_lock(folder: Path) -> None:
    with (folder / "lock").open("w") as file:
        file.write("who?")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert sentence(folder).endswith("in use by another process")


def test_a_number_without_a_lock_is_no_lock(folder: Path) -> None:
    (folder / "lock").write_text("1\n")
    with open_folder(folder):
        assert (folder / "lock").read_text() == f"{os.getpid()}\n"


def test_a_folder_that_cannot_be_opened_is_not_locked(folder: Path) -> None:
    content = (folder / "store.db").read_bytes()
    (folder / "store.db").write_bytes(b"no database, and long enough to be one" * 100)
    sentence(folder)
    (folder / "store.db").write_bytes(content)
    assert opens(folder) == []


# --- what is in the way ---------------------------------------------------------------------------


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    assert "is not a folder" in sentence(path)
    assert "is not a folder" in sentence(path / "below")
    assert path.read_text() == "x"


def test_a_name_that_is_no_text_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    with pytest.raises(Unusable) as caught:
        open_folder(path)
    assert str(caught.value).startswith(f"{tmp_path}/caf\\xe9 is not valid UTF-8")
    assert not path.exists()
    with pytest.raises(Unusable, match="contains a NUL"):
        open_folder(Path(f"{tmp_path}/a\0b"))
    assert os.listdir(tmp_path) == []
    assert opens(tmp_path / "café") == []


def test_a_folder_that_is_not_for_us_is_refused(folder: Path) -> None:
    if os.geteuid() != 0:
        (folder / "lock").unlink()
        folder.chmod(0o500)
    with as_nobody():
        assert "is not accessible to this user" in sentence(folder)
    folder.chmod(0o700)
    assert opens(folder) == []


def test_a_folder_where_a_file_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    assert "is a folder, but should be a file" in sentence(tmp_path)


# A file system of our own, which we may fill or close.
MOUNTED = """
import sys
from pathlib import Path
from semel.store.forensics.check import check_store
from semel.store.folder import open_folder
from semel.store.schema import Unusable
try:
    if sys.argv[2] == "open":
        open_folder(Path(sys.argv[1]) / "data").close()
    else:
        assert check_store(Path(sys.argv[1]) / "data").is_clean
except Unusable as problem:
    print(problem)
else:
    print("open")
"""


def mounted(tmp_path: Path, commands: str) -> list[str]:
    """What opening a folder there says, after shell commands with $M, the place of the mount."""
    place = tmp_path / "mount"
    place.mkdir()
    script = tmp_path / "script.py"
    script.write_text(MOUNTED)
    paths = os.pathsep.join(entry for entry in sys.path if entry)
    run_it = f"{sys.executable} {script} $M"
    commands = commands.replace("OPEN", f"{run_it} open").replace("CHECK", f"{run_it} check")
    result = subprocess.run(
        ["unshare", "-rm", "sh", "-ec", commands],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": paths, "M": str(place)},
    )
    if result.returncode and "Traceback" not in result.stderr:
        pytest.skip(f"nothing can be mounted here: {result.stderr.strip()}")
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_a_disk_without_space_is_refused_until_it_has_some(tmp_path: Path) -> None:
    said = mounted(
        tmp_path,
        "mount -t tmpfs -o size=16k none $M; OPEN; mount -o remount,size=4m $M; OPEN",
    )
    assert len(said) == 2
    assert said[0].startswith("the disk of")
    assert said[1] == "open"


def test_a_file_system_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    said = mounted(tmp_path, "mount -t tmpfs none $M; OPEN; mount -o remount,ro $M; OPEN; CHECK")
    assert said[0] == "open"
    assert "is on a read-only file system" in said[1]
    # Reading needs no more than it has.
    assert said[2] == "open"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EACCES, "is not accessible to this user"),
        (errno.EPERM, "is not accessible to this user"),
        (errno.ENOTDIR, "is not a folder"),
        (errno.ENOENT, "does not exist"),
        (errno.EROFS, "read-only file system"),
        (errno.ENOSPC, "is full: free some space"),
        (errno.EDQUOT, "is full: free some space"),
        (errno.ENOLCK, "choose a folder on a local disk"),
        (errno.EOPNOTSUPP, "choose a folder on a local disk"),
        (errno.EIO, "cannot be used: Input/output error"),
    ],
)
def test_each_error_of_the_system_is_one_sentence(code: int, words: str) -> None:
    said = str(as_unusable(OSError(code, os.strerror(code)), Path("/data")))
    assert words in said
    assert "/data" in said


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (sqlite3.SQLITE_FULL, "is full: free some space"),
        (sqlite3.SQLITE_BUSY, "is locked by another program"),
        (sqlite3.SQLITE_CANTOPEN_ISDIR, "check its owner and mode"),
        (sqlite3.SQLITE_READONLY, "check its owner and mode"),
        (sqlite3.SQLITE_PROTOCOL, "choose a folder on a local disk"),
        (sqlite3.SQLITE_IOERR_READ, "check the disk for errors"),
        (sqlite3.SQLITE_CORRUPT, "semel store repair /data"),
        (sqlite3.SQLITE_NOTADB, "semel store check /data"),
        (sqlite3.SQLITE_INTERRUPT, "cannot be used"),
    ],
)
def test_each_error_of_sqlite_is_one_sentence(code: int, words: str) -> None:
    problem = sqlite3.DatabaseError("what it said")
    problem.sqlite_errorcode = code
    problem.sqlite_errorname = "SQLITE_X"
    said = str(as_unusable(problem, Path("/data")))
    assert words in said
    assert "/data" in said


def test_a_file_system_without_shared_memory_is_refused() -> None:
    """There, SQLite says nothing and goes on without a log. A database in memory does the same."""
    database = Database.open(":memory:")
    with pytest.raises(Unusable, match="choose a folder on a local disk"):
        check_log_mode(database.connection, Path("/data"))
    database.close()


def test_a_store_that_another_program_locks_is_refused(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "store.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        other.execute("INSERT INTO metadata VALUES ('x', 0, 'y')")
        assert "is locked by another program" in sentence(folder)
        other.execute("ROLLBACK")
    assert opens(folder) == []


# --- which store ----------------------------------------------------------------------------------


def test_a_newer_store_is_refused_and_left_alone(folder: Path) -> None:
    change(folder, f"PRAGMA user_version = {VERSION + 1}", "CREATE TABLE later (x)")
    before = (folder / "store.db").read_bytes()
    said = sentence(folder)
    assert f"written by a newer semel (format {VERSION + 1}, this version knows {VERSION})" in said
    assert (folder / "store.db").read_bytes() == before


def test_a_store_whose_number_of_format_is_damaged_is_not_taken_for_a_newer_one(
    folder: Path,
) -> None:
    change(folder, f"PRAGMA user_version = {VERSION + 256}")
    assert "is damaged" in sentence(folder)


def test_another_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    change(tmp_path, "CREATE TABLE songs (title TEXT)")
    before = (tmp_path / "store.db").read_bytes()
    assert "it is a database, but not a store of semel" in sentence(tmp_path)
    assert (tmp_path / "store.db").read_bytes() == before


def test_a_store_without_its_mark_is_damaged(folder: Path) -> None:
    change(folder, "PRAGMA application_id = 7")
    assert "is damaged" in sentence(folder)


STEP = ("ALTER TABLE session ADD COLUMN flavour TEXT", "UPDATE session SET flavour = 'sweet'")


def step_of(*statements: str) -> Step:
    def step(connection: sqlite3.Connection) -> None:
        for statement in statements:
            connection.execute(statement)

    return step


def test_an_older_store_is_brought_to_our_format_after_a_copy(folder: Path) -> None:
    change(folder, "PRAGMA user_version = 1")
    with open_folder(folder, steps={1: step_of(*STEP)}) as opened:
        (warning,) = opened.warnings
        assert f"from format 1 to {VERSION}" in warning
        assert "store.db.format-1.bak" in warning
    question = "SELECT * FROM session ORDER BY id"
    with closing(sqlite3.connect(folder / "store.db")) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert [row[-1] for row in connection.execute(question)] == ["sweet"] * 3
    copy = folder / "store.db.format-1.bak"
    assert mode(copy) == 0o600
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert len(connection.execute(question).fetchone()) == 6


@pytest.mark.parametrize("step", [(*STEP, "SELECT nothing FROM nowhere"), ("DROP TABLE no_such",)])
def test_a_step_that_fails_leaves_the_store_as_it_was(folder: Path, step: tuple[str, ...]) -> None:
    change(folder, "PRAGMA user_version = 1")
    before = (folder / "store.db").read_bytes()
    with pytest.raises(
        Unusable, match=f"could not be upgraded from format 1 to {VERSION}, and is unchanged"
    ):
        open_folder(folder, steps={1: step_of(*step)})
    assert (folder / "store.db").read_bytes() == before
    # A broker that is restarted again and again does not fill the disk with copies.
    assert not list(folder.glob("*.bak*"))
    open_folder(folder, steps={1: step_of(*STEP)}).close()
    assert [copy.name for copy in folder.glob("*.bak*")] == ["store.db.format-1.bak"]


def test_an_upgrade_that_is_interrupted_leaves_no_copy(folder: Path) -> None:
    def interrupt(connection: sqlite3.Connection) -> None:
        raise KeyboardInterrupt

    change(folder, "PRAGMA user_version = 1")
    with pytest.raises(KeyboardInterrupt):
        open_folder(folder, steps={1: interrupt})
    assert not list(folder.glob("*.bak*"))


def test_a_store_of_a_format_that_nobody_knows_is_refused(folder: Path) -> None:
    change(folder, "PRAGMA user_version = 0")
    assert "it has format 0, which this semel cannot upgrade" in sentence(folder)
    assert not list(folder.glob("*.bak"))


# --- damage ---------------------------------------------------------------------------------------


def test_a_file_that_is_no_database_is_damage_and_stays(folder: Path) -> None:
    (folder / "store.db").write_bytes(b"a text that somebody has put here\n" * 300)
    before = (folder / "store.db").read_bytes()
    said = sentence(folder)
    assert f"semel store check {folder}" in said
    assert f"semel store repair {folder}" in said
    assert (folder / "store.db").read_bytes() == before


def test_an_empty_store_is_not_begun_anew(folder: Path) -> None:
    (folder / "store.db").write_bytes(b"")
    assert "it is empty" in sentence(folder)
    assert (folder / "store.db").read_bytes() == b""


def test_an_empty_store_keeps_its_log(killed: Path) -> None:
    log = log_path(killed / "store.db")
    before = log.read_bytes()
    (killed / "store.db").write_bytes(b"")
    assert "it is empty" in sentence(killed)
    assert log.read_bytes() == before


def test_a_store_that_is_gone_while_its_log_is_there_is_not_begun_anew(killed: Path) -> None:
    (killed / "store.db").unlink()
    assert "it is missing, but its log store.db-wal exists" in sentence(killed)
    assert not (killed / "store.db").exists()


def test_a_store_that_is_gone_in_the_middle_of_a_repair_is_not_begun_anew(folder: Path) -> None:
    (folder / "store.db").rename(folder / "store.db.damaged-20240101T000000")
    assert "it is missing, but store.db.damaged-20240101T000000 exists" in sentence(folder)
    (folder / "store.db.damaged-20240101T000000").rename(folder / "elsewhere")
    said = sentence(folder)
    assert "it is missing, but store.mark records 3 commits; to start a new one, move" in said
    (folder / "store.mark").unlink()
    assert opens(folder) == []


def test_a_store_that_is_shorter_than_it_says_is_damaged(folder: Path) -> None:
    store = folder / "store.db"
    os.truncate(store, store.stat().st_size - 4096)
    assert "is damaged" in sentence(folder)


def test_a_store_without_one_of_its_tables_is_damaged(folder: Path) -> None:
    change(folder, "DROP TABLE will")
    assert "it has no will" in sentence(folder)


def test_a_store_whose_definitions_are_nonsense_is_damaged(folder: Path) -> None:
    damage(
        folder,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = 'CREATE TABLE nonsense(' WHERE name = 'will'",
    )
    assert "is damaged" in sentence(folder)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO retained VALUES (1, 0, 'a/+', 0, NULL, NULL, x'00')",
        "INSERT INTO will VALUES ('c', 0, '', NULL, 3, 0, 't', NULL, x'00')",
        "INSERT INTO subscription VALUES (1, 't', 0, 3, 0, NULL)",
        "UPDATE session SET client_id = CAST(x'ff' AS TEXT) WHERE id = 1",
        "UPDATE delivery SET flags = 'x' WHERE session_id = 1",
    ],
)
def test_rows_that_cannot_be_what_they_say_are_damage(folder: Path, statement: str) -> None:
    def restore() -> None:
        with (
            open_folder(folder) as opened,
            closing(opened.open()) as database,
            store_row_errors(folder),
        ):
            database.restore()
            database.queue(1, 0, 10)

    restore()
    change(folder, statement)
    with pytest.raises(Unusable, match="semel store repair") as caught:
        restore()
    assert "\n" not in str(caught.value)


# --- the log --------------------------------------------------------------------------------------


def sessions_in(folder: StoreFolder) -> int:
    with closing(folder.open()) as database:
        return len(database.restore().sessions)


def flip(path: Path, *places: int) -> None:
    data = bytearray(path.read_bytes())
    for place in places:
        data[place] ^= 0x10
    path.write_bytes(data)


def test_a_store_of_a_broker_that_was_killed_opens_by_itself(killed: Path) -> None:
    with open_folder(killed) as opened:
        assert opened.warnings == []
        assert sessions_in(opened) == 20


def test_a_log_that_is_broken_before_a_later_commit_is_damage(killed: Path) -> None:
    path = log_path(killed / "store.db")
    log = WriteAheadLog(path)
    # In the page of the frame after the tenth commit.
    ends = [at + 1 for at, (_, pages) in enumerate(log.frames) if pages]
    flip(path, log.offset(ends[9]) + 24 + 100)
    before = path.read_bytes()
    said = sentence(killed)
    assert f"it would lose {len(ends) - 10} transactions of {len(ends)}" in said
    assert path.read_bytes() == before


@pytest.mark.parametrize("place", [8, 12, 2000])
def test_a_frame_of_the_log_is_missed_whatever_of_it_is_broken(killed: Path, place: int) -> None:
    """Salts and page: a frame with other salts is not where the log ends, if more come after."""
    path = log_path(killed / "store.db")
    flip(path, WriteAheadLog(path).offset(3) + place)
    assert "would lose" in sentence(killed)


def test_without_a_sync_for_each_commit_a_broken_log_is_what_loss_of_power_leaves(
    tmp_path: Path,
) -> None:
    killed = made_and_killed(tmp_path / "data", OS)
    path = log_path(killed / "store.db")
    log = WriteAheadLog(path)
    ends = [at + 1 for at, (_, pages) in enumerate(log.frames) if pages]
    flip(path, log.offset(ends[-5]) + 24 + 100)
    # What it was written with counts, not what the next one is told.
    with open_folder(killed, durability=DISK) as opened:
        first, second = opened.warnings
        assert f"it lost 4 transactions of {len(ends)}" in first
        assert "commits 17 to 20, which were acknowledged, are lost" in second
        assert "as expected after a loss of power with durability os" in second
        assert 0 < sessions_in(opened) < 20
    assert opens(killed) == []


def test_what_is_left_of_a_broken_log_is_not_taken_for_damage_later(tmp_path: Path) -> None:
    """Else the next commits would overwrite its first frames, and the others look as if lost."""
    killed = made_and_killed(tmp_path / "data", OS)
    path = log_path(killed / "store.db")
    log = WriteAheadLog(path)
    ends = [at + 1 for at, (_, pages) in enumerate(log.frames) if pages]
    flip(path, log.offset(ends[2]) + 24 + 100)
    with open_folder(killed, durability=OS) as opened, closing(opened.open(OS)) as database:
        database.apply([commit_of(100)])
        # As kill -9 would leave it.
        shutil.copytree(killed, tmp_path / "left")
    with open_folder(tmp_path / "left") as opened:
        assert opened.warnings == []
        assert sessions_in(opened) > 1


def test_a_last_commit_that_is_not_whole_was_never_acknowledged(killed: Path) -> None:
    path = log_path(killed / "store.db")
    log = WriteAheadLog(path)
    flip(path, log.offset(log.committed - 1) + 24 + 100)
    # It is written when the log is synced.
    set_mark(killed, 19)
    with open_folder(killed) as opened:
        (warning,) = opened.warnings
        assert "the last commit in store.db-wal is incomplete" in warning
        assert sessions_in(opened) == 19
    assert opens(killed) == []


def test_a_log_that_ends_in_the_middle_of_a_frame_is_what_a_crash_leaves(killed: Path) -> None:
    path = log_path(killed / "store.db")
    os.truncate(path, path.stat().st_size - 100)
    set_mark(killed, 19)
    with open_folder(killed) as opened:
        assert sessions_in(opened) == 19


def test_a_log_without_its_header_is_damage(killed: Path) -> None:
    flip(log_path(killed / "store.db"), 20)
    assert "the header of its log store.db-wal is damaged" in sentence(killed)


def test_a_log_that_was_just_begun_is_none(folder: Path) -> None:
    log_path(folder / "store.db").write_bytes(b"\x37\x7f")
    assert opens(folder) == []


# --- reading --------------------------------------------------------------------------------------


def test_a_reader_says_that_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"it has no store\.db"):
        read_only(tmp_path)
    with pytest.raises(Unusable, match="it does not exist"):
        read_only(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_cannot_write(folder: Path) -> None:
    with closing(read_only(folder)) as connection:
        assert connection.execute("SELECT count(*) FROM session").fetchone() == (3,)
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM session")


def test_a_reader_sees_what_a_broker_has_committed(folder: Path) -> None:
    with open_folder(folder) as opened, closing(opened.open()) as database:
        database.apply([commit_of(4)])
        with closing(read_only(folder)) as connection:
            assert connection.execute("SELECT count(*) FROM session").fetchone() == (4,)


def test_text_that_is_not_utf_8_can_be_read(folder: Path) -> None:
    change(folder, "UPDATE session SET client_id = CAST(x'61ff62' AS TEXT) WHERE id = 1")
    with closing(read_only(folder)) as connection:
        rows = connection.execute("SELECT client_id FROM session WHERE id = 1").fetchall()
    assert rows == [("a\udcffb",)]

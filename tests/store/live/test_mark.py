"""The mark: a log that lost its end is noticed, and nothing else is taken for that."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from semel.store.care import adopt, back_up, describe
from semel.store.folder import open_folder
from semel.store.forensics.check import check_store
from semel.store.forensics.repair import repair_store
from semel.store.mark import MARK, read_mark
from semel.store.metadata import get_number
from semel.store.settings import DISK, OS
from semel.store.wal import WriteAheadLog, log_path
from tests.store.live.test_folder import commit_of, made_and_killed, sentence, sessions_in
from tests.store.stores import contents, copied

WHEN = "20240131T101500"


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose broker was killed after twenty commits: they are in the log alone."""
    return made_and_killed(tmp_path_factory.mktemp("killed") / "data", DISK)


@pytest.fixture
def killed(killed_once: Path, tmp_path: Path) -> Path:
    return copied(killed_once, tmp_path / "data")


def cut(folder: Path, commits: int) -> None:
    """Leave only so many commits of the log, and all of them whole."""
    path = log_path(folder / "store.db")
    log = WriteAheadLog(path)
    ends = [at + 1 for at, (_, pages) in enumerate(log.frames) if pages]
    os.truncate(path, log.offset(ends[commits - 1]))


def commits_in_log(folder: Path) -> int:
    return WriteAheadLog(log_path(folder / "store.db")).commits(0)


def problems(folder: Path) -> list[str]:
    return [each.problem for each in check_store(folder).findings]


# --- what is noticed ------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [1, 7, 19])
def test_a_log_that_is_cut_is_noticed_and_the_loss_is_told_and_accepted(
    killed: Path, lost: int
) -> None:
    cut(killed, commits_in_log(killed) - lost)
    last = 20 - lost
    told = "commit 20, which was acknowledged, is lost"
    if lost > 1:
        told = f"commits {last + 1} to 20, which were acknowledged, are lost"
    (problem,) = problems(killed)
    assert told in problem
    said = sentence(killed)
    assert told in said
    assert "semel store repair" in said
    result = repair_store(killed, WHEN)
    assert not result.is_complete
    assert any(told in note for note in result.notes)
    assert problems(killed) == []
    with open_folder(killed) as opened:
        assert opened.warnings == []
        assert sessions_in(opened) == last


@pytest.mark.parametrize("files", [["-wal"], ["-wal", "-shm"]])
def test_a_log_that_is_deleted_is_noticed(killed: Path, files: list[str]) -> None:
    for each in files:
        (killed / f"store.db{each}").unlink()
    assert "commits 1 to 20, which were acknowledged, are lost" in str(problems(killed))
    assert "commits 1 to 20, which were acknowledged, are lost" in sentence(killed)


def test_an_empty_log_and_an_older_one_in_its_place_are_noticed(killed: Path) -> None:
    path = log_path(killed / "store.db")
    whole = path.read_bytes()
    path.write_bytes(b"")
    assert "commits 1 to 20, which were acknowledged, are lost" in sentence(killed)
    path.write_bytes(whole)
    with open_folder(killed) as opened, closing(opened.open()) as database:
        for number in range(30, 40):
            database.apply([commit_of(number)])
    # SQLite would copy what it has over the tables, which have gone on.
    path.write_bytes(whole)
    assert "commits 21 to 30, which were acknowledged, are lost" in str(problems(killed))
    assert "commits 21 to 30, which were acknowledged, are lost" in sentence(killed)


def test_an_older_copy_in_its_place_is_noticed(killed: Path, tmp_path: Path) -> None:
    with open_folder(killed) as opened, closing(opened.open()):
        pass
    older = (killed / "store.db").read_bytes()
    with open_folder(killed) as opened, closing(opened.open()) as database:
        database.apply([commit_of(100)])
    (killed / "store.db").write_bytes(older)
    said = sentence(killed)
    assert "commit 21, which was acknowledged, is lost" in said
    assert "if it was replaced by an older copy, a repair accepts that" in said


def test_a_mark_that_cannot_be_read_is_damage_and_a_repair_makes_a_new_one(killed: Path) -> None:
    data = bytearray((killed / MARK).read_bytes())
    data[60] ^= 1
    (killed / MARK).write_bytes(data)
    assert "store.mark, which records its commits, is damaged" in sentence(killed)
    assert "is damaged" in str(problems(killed))
    before = contents(killed)
    result = repair_store(killed, WHEN)
    assert result.is_complete
    assert any("it was replaced" in note for note in result.notes)
    assert contents(killed) == before
    assert problems(killed) == []


# --- what is no loss ------------------------------------------------------------------------------


def test_a_store_that_was_killed_has_lost_nothing_and_says_what_it_recovered(killed: Path) -> None:
    pages = len(WriteAheadLog(log_path(killed / "store.db")).frames)
    commits = commits_in_log(killed)
    assert problems(killed) == []
    with open_folder(killed) as opened:
        assert opened.warnings == []
        (note,) = opened.notes
        assert f"recovered {commits} transactions ({pages} pages) from its log" in note
        assert "it is complete up to commit 20" in note
        assert sessions_in(opened) == 20
    # It was closed this time.
    with open_folder(killed) as opened:
        assert opened.notes == []


def test_a_store_that_was_killed_before_it_wrote_says_that_there_was_nothing(
    tmp_path: Path,
) -> None:
    with open_folder(tmp_path / "data") as opened, closing(opened.open()):
        copied(tmp_path / "data", tmp_path / "left")
    with open_folder(tmp_path / "left") as opened:
        assert opened.warnings == []
        (note,) = opened.notes
        assert "there was nothing to recover from its log" in note


WRITES = """
import sys
from pathlib import Path
from semel.store.folder import open_folder
from tests.store.live.test_folder import commit_of
database = open_folder(Path(sys.argv[1])).open()
print("open", flush=True)
number = database.restore().next_session
while True:
    database.apply([commit_of(number)])
    number += 1
"""


def test_no_moment_of_a_kill_is_taken_for_a_loss(tmp_path: Path) -> None:
    choose = random.Random(7)
    folder = tmp_path / "data"
    paths = [entry for entry in sys.path if entry] + [str(Path(__file__).parents[3])]
    last = 0
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITES, str(folder)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            time.sleep(choose.random() * 0.3)
            process.send_signal(signal.SIGKILL)
        mark = read_mark(folder)
        assert mark is not None
        assert not mark.is_closed
        assert problems(folder) == []
        with open_folder(folder) as opened:
            # A kill may come between the two writes of the last frame.
            assert all("it was never acknowledged" in each for each in opened.warnings)
            with closing(opened.open()) as database:
                now = get_number(database.connection, "commit")
                assert now is not None
                assert mark.commit <= now <= mark.commit + 1
                assert now >= last
                last = now


def test_the_mark_follows_every_commit_and_is_closed_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with open_folder(folder) as opened, closing(opened.open(OS)) as database:
        for number in (1, 2, 3):
            database.apply([commit_of(number)])
            mark = read_mark(folder)
            assert mark is not None
            assert (mark.commit, mark.durability, mark.is_closed) == (number, OS, False)
    mark = read_mark(folder)
    assert mark is not None
    assert (mark.commit, mark.is_closed) == (3, True)
    assert describe(folder)["commits"] == 3


def test_what_fails_does_not_count(tmp_path: Path) -> None:
    with open_folder(tmp_path / "data") as opened, closing(opened.open()) as database:
        database.apply([commit_of(1)])
        with pytest.raises(ZeroDivisionError), database.transaction():
            raise ZeroDivisionError
        mark = read_mark(tmp_path / "data")
        assert mark is not None
        assert mark.commit == database.last_commit == 1
        database.apply([commit_of(2)])
    assert problems(tmp_path / "data") == []


def test_a_backup_can_take_the_place_of_its_store_which_went_on(
    killed: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    back_up(killed, copy)
    assert check_store(copy).is_clean
    with open_folder(killed) as opened, closing(opened.open()) as database:
        for number in range(30, 40):
            database.apply([commit_of(number)])
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        (killed / name).unlink(missing_ok=True)
    (copy / "store.db").rename(killed / "store.db")
    assert problems(killed) == []
    with open_folder(killed) as opened:
        assert opened.warnings == []
        assert "is not the store that store.mark was written for" in str(opened.notes)
        assert sessions_in(opened) == 20
    assert problems(killed) == []
    cut_mark = read_mark(killed)
    assert cut_mark is not None
    assert cut_mark.commit == 20


def test_without_a_mark_nobody_can_tell_and_that_is_said_once(killed: Path) -> None:
    (killed / MARK).unlink()
    report = check_store(killed)
    assert report.is_clean
    assert "a log that has lost its end cannot be detected" in str(report.notes)
    with open_folder(killed) as opened:
        assert "store.mark is missing" in str(opened.warnings)
        assert sessions_in(opened) == 20
    with open_folder(killed) as opened:
        assert opened.warnings == []


def test_a_command_that_writes_counts_and_keeps_the_mark(small: Path) -> None:
    adopt(small, "yard", 7)
    mark = read_mark(small)
    assert mark is not None
    assert (mark.commit, mark.is_closed) == (2, True)
    assert problems(small) == []


def test_a_check_beside_a_broker_at_work_sees_no_loss(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with open_folder(folder) as opened, closing(opened.open()) as database:
        for number in range(1, 30):
            database.apply([commit_of(number)])
            if number % 5 == 0:
                assert problems(folder) == []

"""Files of a data folder: nothing is followed out of it, and nothing of others is given away."""

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from semel.store.care import back_up, describe
from semel.store.folder import open_folder
from semel.store.forensics.check import check_store
from semel.store.forensics.repair import repair_store
from semel.store.opening import open_store
from semel.store.private_files import new_private, open_private, tighten
from semel.store.retention_clock import RetentionClock
from semel.store.schema import Unusable
from semel.store.sealer import StopFlag, sealer_lock
from semel.store.settings import StoreSettings, StreamSettings
from tests.store.stores import change, wipe

NOBODY = 65_534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
WHEN = "20240131T101500"
SECRET = b"of somebody else"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file outside of the data folder, which nobody may touch."""
    path = tmp_path / "victim"
    path.write_bytes(SECRET)
    path.chmod(0o644)
    return path


def unharmed(victim: Path) -> None:
    assert victim.read_bytes() == SECRET
    found = victim.stat()
    assert stat.S_IMODE(found.st_mode) == 0o644
    assert (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())


def of_nobody(folder: Path) -> None:
    """Give the folder to another user, if we can."""
    if os.geteuid() == 0:
        for path in (folder, *folder.iterdir()):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
@pytest.mark.parametrize("name", ["lock", "store.db-wal", "store.db-shm", "store.db", "store.mark"])
def test_a_link_in_place_of_a_file_is_refused_and_its_target_unharmed(
    small: Path, victim: Path, name: str, link: object
) -> None:
    assert callable(link)
    (small / name).unlink(missing_ok=True)
    link(victim, small / name)
    of_nobody(small)
    if link is os.link and os.geteuid() == 0:
        os.chown(victim, 0, 0)
    for act in (
        lambda: open_folder(small).close(),
        lambda: repair_store(small, WHEN),
    ):
        with pytest.raises(Unusable, match="link") as caught:
            act()
        assert str(small / name) in str(caught.value)
        unharmed(victim)


@pytest.mark.parametrize("name", ["store.db", "store.db-wal"])
def test_who_only_reads_follows_no_link_either(
    small: Path, tmp_path: Path, victim: Path, name: str
) -> None:
    (small / name).unlink(missing_ok=True)
    (small / name).symlink_to(victim)
    for act in (
        lambda: check_store(small),
        lambda: describe(small),
        lambda: back_up(small, tmp_path / "copy"),
    ):
        with pytest.raises(Unusable, match="symbolic link"):
            act()
    unharmed(victim)


def test_the_same_folder_without_a_link_is_opened_and_repaired(small: Path) -> None:
    of_nobody(small)
    open_folder(small).close()
    change(small, "UPDATE retained SET topic = 'a/+' WHERE topic = 'u'")
    assert repair_store(small, WHEN).dropped == {"retained": 1}


def test_a_temporary_file_is_a_new_one_whatever_was_there(small: Path, victim: Path) -> None:
    wipe(small, [1])
    (small / "store.db.part").symlink_to(victim)
    of_nobody(small)
    repair_store(small, WHEN)
    unharmed(victim)
    assert check_store(small).is_clean
    assert not (small / "store.db").is_symlink()


def test_a_new_store_is_not_made_through_a_link(tmp_path: Path, victim: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    (folder / "store.db.part").symlink_to(victim)
    (folder / "store.mark.part").symlink_to(victim)
    of_nobody(folder)
    with open_folder(folder) as opened, closing(opened.open()) as database:
        database.restore()
    unharmed(victim)


def test_a_link_that_leads_nowhere_makes_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    (folder / "lock").symlink_to(tmp_path / "nothing")
    with pytest.raises(Unusable, match="symbolic link"):
        open_folder(folder)
    (folder / "sealer.lock").symlink_to(tmp_path / "nothing")
    with pytest.raises(Unusable, match="symbolic"), sealer_lock(folder / "sealer.lock", StopFlag()):
        pass
    assert not (tmp_path / "nothing").exists()


def test_links_to_files_that_are_not_used_are_left_alone(small: Path, victim: Path) -> None:
    (small / "store.db.format-0.bak").symlink_to(victim)
    os.link(victim, small / "store.db.old")
    open_folder(small).close()
    unharmed(victim)


def test_a_pipe_in_place_of_the_lock_is_refused_and_nobody_waits(small: Path) -> None:
    (small / "lock").unlink()
    os.mkfifo(small / "lock")
    with pytest.raises(Unusable, match="not a regular file"):
        open_folder(small)


@AS_ROOT
def test_root_gives_away_what_it_made_and_nothing_else(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    there = tmp_path / "there"
    there.touch()
    os.close(open_private(there))
    assert there.stat().st_uid == 0
    os.close(open_private(tmp_path / "made"))
    os.close(new_private(tmp_path / "new"))
    assert {(tmp_path / name).stat().st_uid for name in ("made", "new")} == {NOBODY}


def test_a_file_with_a_second_name_is_not_tightened(tmp_path: Path, victim: Path) -> None:
    os.link(victim, tmp_path / "second")
    assert not tighten(tmp_path / "second")
    unharmed(victim)
    alone = tmp_path / "alone"
    alone.touch(0o644)
    assert tighten(alone)
    assert stat.S_IMODE(alone.stat().st_mode) == 0o600


@pytest.mark.parametrize("where", ["streams", "streams/plant", "streams/plant/node"])
def test_the_record_is_not_kept_behind_a_link(tmp_path: Path, where: str) -> None:
    folder, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    elsewhere.mkdir()
    settings = StoreSettings(data=folder, node="node")
    streams = [StreamSettings(name="plant", filter="plant/#")]
    open_store(settings, streams).close()
    link = folder / where
    shutil.rmtree(folder / "streams", ignore_errors=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(elsewhere)
    with pytest.raises(Unusable, match="is a symbolic link"):
        open_store(settings, streams)
    assert not list(elsewhere.iterdir())
    # Who means it says so.
    root = str(folder / "streams")
    open_store(StoreSettings(data=folder, node="node", root=root), streams).close()


@AS_ROOT
def test_the_lock_of_a_sealer_that_root_started_is_the_owners(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    with sealer_lock(tmp_path / "sealer.lock", StopFlag()):
        assert (tmp_path / "sealer.lock").stat().st_uid == NOBODY


def test_a_second_name_or_a_pipe_in_place_of_the_lock_of_the_sealer_is_refused(
    tmp_path: Path, victim: Path
) -> None:
    lock = tmp_path / "sealer.lock"
    os.link(victim, lock)
    with pytest.raises(Unusable, match="second hard link"), sealer_lock(lock, StopFlag()):
        pass
    unharmed(victim)
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(Unusable, match="not a regular file"), sealer_lock(lock, StopFlag()):
        pass


def test_the_note_of_the_clock_of_retention_is_a_new_file(tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "retention.json"
    temporary = tmp_path / ".retention.json"
    for name in (path, temporary):
        os.mkfifo(name)
    clock = RetentionClock(path, longest=10.0)
    clock.now(100.0, 100.0)
    assert path.is_file()
    os.link(victim, temporary)
    clock.now(1_000.0, 1_000.0)
    unharmed(victim)
    assert path.stat().st_nlink == 1


@pytest.mark.parametrize("act", ["back up", "repair"])
def test_a_temporary_file_that_is_swapped_for_a_link_is_not_written_through(
    small: Path, tmp_path: Path, victim: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns the folder may do that between our making it and SQLite's opening it."""
    victim.write_bytes(b"")

    def swapped(path: Path) -> int:
        descriptor = new_private(path)
        path.unlink()
        path.symlink_to(victim)
        return descriptor

    monkeypatch.setattr("semel.store.folder.new_private", swapped)
    monkeypatch.setattr("semel.store.forensics.repair.new_private", swapped)
    acts: dict[str, Callable[[], object]] = {
        "back up": lambda: back_up(small, tmp_path / "copy"),
        "repair": lambda: repair_store(small, WHEN),
    }
    if act == "repair":
        wipe(small, [1])
    with pytest.raises(Unusable, match="was replaced"):
        acts[act]()
    assert victim.read_bytes() == b""

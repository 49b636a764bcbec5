"""The file of a Unix socket: created, replaced, refused and removed."""

import os
import socket
import stat
from pathlib import Path

import pytest

from semel.broker.network import unix_socket
from semel.broker.network.unix_socket import SocketFileUnusable, UnixSocket


def left_behind(path: Path) -> None:
    """The file of a process that has ended without removing it."""
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.close()


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_the_file_has_its_permissions_and_goes_at_the_end(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "socket"
    opened = UnixSocket(path, mode)
    with opened.socket, socket.socket(socket.AF_UNIX) as client:
        assert stat.S_IMODE(path.stat().st_mode) == mode
        client.connect(str(path))
    opened.remove_file()
    assert not path.exists()
    opened.remove_file()


def test_the_file_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    left_behind(path)
    opened = UnixSocket(path, 0o600)
    with opened.socket, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    opened.remove_file()


def test_a_file_that_another_process_has_replaced_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    opened = UnixSocket(path, 0o600)
    opened.socket.close()
    os.rename(path, tmp_path / "old")
    left_behind(path)
    opened.remove_file()
    assert path.exists()


def refusal_at(path: Path) -> str:
    with pytest.raises(SocketFileUnusable) as caught:
        UnixSocket(path, 0o600)
    return str(caught.value)


def test_a_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen(5)
        assert refusal_at(path) == "it is in use by another program"
        assert path.exists()


def test_a_socket_that_answers_nobody_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_socket, "PROBE_SECONDS", 0.01)
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as taken, socket.socket(socket.AF_UNIX) as waiting:
        taken.bind(str(path))
        taken.listen(0)
        waiting.connect(str(path))
        assert refusal_at(path) == "it is in use by another program"
        assert path.exists()


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_any_other_file_is_never_deleted(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "precious"
    if kind == "file":
        path.write_text("kept")
    elif kind == "directory":
        path.mkdir()
    else:
        left_behind(tmp_path / "socket")
        path.symlink_to(tmp_path / "socket")
    assert refusal_at(path) == "there is another file, not a socket: choose another path"
    assert path.is_symlink() or path.exists()


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    assert refusal_at(tmp_path / "none" / "socket") == "No such file or directory"


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refusal_at(tmp_path / "file" / "socket") == "Not a directory"


def test_a_file_that_vanishes_meanwhile_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "socket"
    left_behind(path)
    found = os.lstat(path)
    path.unlink()
    real = os.lstat
    monkeypatch.setattr(os, "lstat", lambda each: found if each == path else real(each))
    opened = UnixSocket(path, 0o600)
    opened.socket.close()
    monkeypatch.undo()
    opened.remove_file()
    assert not path.exists()


def test_an_old_file_that_cannot_be_removed_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "socket"
    left_behind(path)

    def refuse(each: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "unlink", refuse)
    assert refusal_at(path) == "its old socket file cannot be removed: Operation not permitted"

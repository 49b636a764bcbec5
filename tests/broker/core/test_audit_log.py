"""The audit log: private, bounded, and never in the way of the broker."""

import errno
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from semel.broker.network.audit_log import MAXIMUM_SOURCES, AuditFileUnusable, AuditLog
from tests.broker.broker_process import PATIENCE

# Lines of one client per minute, where that does not matter.
LIMIT = 100


def events_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def names_in(path: Path) -> list[str]:
    return [each["event"] for each in events_in(path)]


def test_events_are_lines_of_json_with_their_time(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, print, lines_per_minute=LIMIT)
    log.write({"event": "session_deleted", "client": "a\nb"})
    log.close()
    (event,) = events_in(path)
    assert (event["event"], event["client"]) == ("session_deleted", "a\nb")
    assert event["at"].endswith("Z")
    assert log.lost == 0


def test_the_file_is_private_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"event": "old"}\n')
    path.chmod(0o644)
    log = AuditLog(path, print, lines_per_minute=LIMIT)
    log.write({"event": "new"})
    log.close()
    assert names_in(path) == ["old", "new"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_was_renamed_is_opened_again(tmp_path: Path) -> None:
    path, old = tmp_path / "audit.jsonl", tmp_path / "audit.1"
    log = AuditLog(path, print, lines_per_minute=LIMIT)
    log.write({"event": "first"})
    while not path.stat().st_size:
        pass
    path.rename(old)
    log.reopen()
    log.reopen()
    log.write({"event": "second"})
    log.close()
    assert (names_in(old), names_in(path)) == (["first"], ["second"])


def test_reopening_twice_before_the_thread_has_noticed_leaks_nothing(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", print, lines_per_minute=LIMIT)
    before = len(os.listdir("/proc/self/fd"))
    with log._condition:
        # The thread cannot take the descriptors meanwhile.
        log.reopen()
        log.reopen()
        assert len(os.listdir("/proc/self/fd")) == before + 1
    log.close()


@pytest.mark.parametrize("kind", ["folder", "missing", "link", "pipe"])
def test_a_file_that_cannot_be_used_is_a_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "audit.jsonl"
    if kind == "folder":
        path.mkdir()
    elif kind == "missing":
        path = tmp_path / "none" / "audit.jsonl"
    elif kind == "link":
        path.symlink_to(tmp_path / "other")
    else:
        os.mkfifo(path)
    # With a reader, opening a pipe succeeds.
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if kind == "pipe" else None
    with pytest.raises(AuditFileUnusable) as caught:
        AuditLog(path, print, lines_per_minute=LIMIT)
    assert f"[audit] file {path}" in str(caught.value)
    if reader is not None:
        os.close(reader)
        assert "is not a regular file: choose another path" in str(caught.value)
    assert not (tmp_path / "other").exists()


# --- floods ---------------------------------------------------------------------------------------


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def refused(address: str, client: str = "a") -> dict[str, object]:
    return {"event": "refused", "address": address, "client": client, "user": "anyone"}


def connected(address: str, user: str | None, proof: str = "password") -> dict[str, object]:
    return {"event": "connected", "address": address, "user": user, "proof": proof}


def test_refusals_of_one_address_beyond_the_limit_are_summarized_per_minute(
    tmp_path: Path,
) -> None:
    path = tmp_path / "audit.jsonl"
    clock = Clock()
    log = AuditLog(path, print, lines_per_minute=2, clock=clock)
    for number in range(1_000):
        log.write(refused(f"10.0.0.1:{number}", f"c{number}"))
    log.write(refused("10.0.0.2:5"))
    log.write(refused("10.0.0.3"))
    # Another kind of event, and what operators do.
    log.write(connected("10.0.0.1:5", "ann"))
    for _ in range(3):
        log.write({"event": "banned", "kind": "address", "value": "10.0.0.1"})
    clock.now = 60.0
    log.write({"event": "reloaded"})
    while "refused_again" not in path.read_text():
        pass
    # Its next minute.
    log.write(refused("10.0.0.1:7", "again"))
    log.close()
    assert names_in(path).count("banned") == 3
    assert names_in(path).count("connected") == 1
    written = [each["client"] for each in events_in(path) if each["event"] == "refused"]
    assert written == ["c0", "c1", "a", "a", "again"]
    (summary,) = [each for each in events_in(path) if each["event"] == "refused_again"]
    assert (summary["address"], summary["user"], summary["count"]) == ("10.0.0.1", None, 998)
    assert summary["last"]["client"] == "c999"


@pytest.mark.parametrize("kind", ["connected", "disconnected"])
def test_a_client_that_reconnects_all_the_time_neither_fills_the_file_nor_hides_others(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, print, lines_per_minute=3, clock=Clock())
    for number in range(500):
        log.write({**connected(f"10.0.0.1:{number}", "ann"), "event": kind, "client": "x" * 999})
    # Another user of the same address, and the same user elsewhere.
    log.write({**connected("10.0.0.1:9", "bob"), "event": kind})
    log.write({**connected("10.0.0.2:9", "ann"), "event": kind})
    log.close()
    assert names_in(path) == [kind] * 5 + [f"{kind}_again"]
    summary = events_in(path)[-1]
    assert (summary["address"], summary["user"], summary["count"]) == ("10.0.0.1", "ann", 497)
    assert summary["last"]["client"] == "x" * 256


def test_a_user_name_that_is_not_proved_does_not_make_another_client(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, print, lines_per_minute=1, clock=Clock())
    for number in range(10):
        log.write(connected(f"10.0.0.1:{number}", f"u{number}", "anonymous"))
        log.write(connected(f"10.0.0.1:{number}", None, "anonymous"))
    log.close()
    assert names_in(path) == ["connected", "connected_again"]
    assert (events_in(path)[1]["user"], events_in(path)[1]["count"]) == (None, 19)


@pytest.mark.parametrize(
    ("peers", "address"),
    [
        (("192.0.2.1:1", "192.0.2.1:2"), "192.0.2.1"),
        (("[2001:db8::1]:1", "[2001:db8::2]:1"), "2001:db8::"),
        # Banned ones are closed before their port matters.
        (("192.0.2.1", "192.0.2.1:2"), "192.0.2.1"),
        (("2001:db8::", "[2001:db8::2]:1"), "2001:db8::"),
        (("unix", "unix"), "unix"),
    ],
)
def test_the_clients_of_an_address_are_counted_together(
    tmp_path: Path, peers: tuple[str, str], address: str
) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, print, lines_per_minute=1, clock=Clock())
    for peer in peers:
        log.write(refused(peer))
    log.close()
    assert names_in(path) == ["refused", "refused_again"]
    assert events_in(path)[1]["address"] == address


def test_without_a_limit_everything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, print, lines_per_minute=0)
    for number in range(500):
        log.write(refused(f"10.0.0.1:{number}"))
    log.close()
    assert names_in(path) == ["refused"] * 500


def test_a_summary_is_written_although_nothing_else_happens(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, print, lines_per_minute=1, summary_seconds=0.2)
    log.write(refused("10.0.0.1:1"))
    log.write(refused("10.0.0.1:2"))
    for _ in range(int(PATIENCE * 20)):
        if "refused_again" in path.read_text():
            break
        threading.Event().wait(0.05)
    assert names_in(path) == ["refused", "refused_again"]
    log.close()
    assert names_in(path) == ["refused", "refused_again"]


def test_very_many_addresses_share_a_summary(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, print, lines_per_minute=1, clock=Clock())
    for number in range(MAXIMUM_SOURCES + 7):
        log.write(refused(f"10.0.{number // 256}.{number % 256}:1"))
    log.write(connected("10.0.0.77:1", "ann"))
    log.close()
    summaries = [each for each in events_in(path) if each["event"] == "refused_again"]
    # Those that are told apart, the first of the others, and a summary of the rest.
    assert names_in(path) == ["refused"] * (MAXIMUM_SOURCES + 1) + ["connected", "refused_again"]
    assert (summaries[0]["address"], summaries[0]["count"]) == ("others", 6)


def test_lines_that_do_not_fit_the_queue_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, print, lines_per_minute=LIMIT, queued_bytes=200)
    with log._condition:
        # The thread cannot take the lines meanwhile.
        for _ in range(50):
            log.write({"event": "session_deleted", "client": "x" * 20})
    log.close()
    events = events_in(path)
    assert events[0] == {"event": "lines_lost", "count": 50 - (len(events) - 1)}
    assert 1 < len(events) < 10


# --- a full disk ----------------------------------------------------------------------------------


class FullDisk:
    """`os.write` on a disk that has room for some bytes."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.real = os.write
        self.failed = threading.Event()

    def write(self, descriptor: int, data: bytes) -> int:
        if not self.room:
            self.failed.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self.real(descriptor, bytes(data[: self.room]))
        self.room -= written
        return written


def test_a_full_disk_loses_lines_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    logged: list[str] = []
    log = AuditLog(path, logged.append, lines_per_minute=LIMIT)
    disk = FullDisk(10)
    monkeypatch.setattr(os, "write", disk.write)
    log.write({"event": "half"})
    assert disk.failed.wait(PATIENCE)
    disk.failed.clear()
    # Nothing fits: the report of lost lines does not either.
    log.write({"event": "gone"})
    assert disk.failed.wait(PATIENCE)
    while not log.lost:
        pass
    disk.room = 1_000_000
    log.write({"event": "kept"})
    log.close()
    first, *rest = path.read_text().splitlines()
    assert len(first) == 10
    assert [json.loads(line)["event"] for line in rest] == ["lines_lost", "kept"]
    assert json.loads(rest[0])["count"] == 2
    assert logged[0] == f"audit log {path}: lines are lost: No space left on device"


def test_a_report_of_lost_lines_that_is_lost_itself_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, lambda line: None, lines_per_minute=LIMIT, queued_bytes=100)
    disk = FullDisk(0)
    with log._condition:
        for _ in range(5):
            log.write({"event": "x" * 10})
        monkeypatch.setattr(os, "write", disk.write)
    assert disk.failed.wait(PATIENCE)
    while log.lost < 5:
        pass
    disk.room = 1_000_000
    log.close()
    assert events_in(path) == [{"event": "lines_lost", "count": 5}]


def test_a_file_of_another_owner_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, mode: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchmod", refuse)
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, print, lines_per_minute=LIMIT)
    log.write({"event": "reloaded"})
    log.close()
    assert names_in(path) == ["reloaded"]

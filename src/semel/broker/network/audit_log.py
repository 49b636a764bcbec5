"""The audit log: a file of JSON lines that never delays the broker, and that no client can flood.

AuditEvents, ControlCommands ─▶ write ─▶ a bounded queue ─▶ a thread ─▶ the file
                                  │          └─ full, or the disk is: lost lines are counted
                                  └─ too many of one client in a minute: counted, then reported
"""

import errno
import json
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from semel.broker.addresses import address_of
from semel.broker.identity import ANONYMOUS
from semel.broker.throttled_log import ThrottledLog

# Maximum bytes of lines that wait to be written.
QUEUED_BYTES: Final = 4 * 1024 * 1024
# What clients cause is limited, and summarized, over this time.
SUMMARY_SECONDS: Final = 60.0
# How many kinds of events of a user or an address are distinguished at a time; the others share a
# summary for each kind of event.
MAXIMUM_SOURCES: Final = 1_000
OTHERS: Final = "others"
# How many characters of a text, such as a client identifier, a summary has.
SUMMARY_CHARACTERS: Final = 256
# How long `close` waits until all lines are written.
CLOSE_SECONDS: Final = 2.0

FILE_MODE: Final = 0o600

# The kinds of events that clients cause. What operators do is always written.
CAUSED_BY_CLIENTS: Final = ("connected", "refused", "disconnected")

# Kind of event, address, and user if the user is proved.
Source = tuple[str, str, str | None]


class AuditFileUnusable(Exception):
    """Why the file cannot be opened, in one sentence."""


class RepeatedEvents:
    """Events of one source since `began`: how many were written, and the others."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.written = 0
        self.left_out = 0
        self.last: dict[str, object] = {}


class AuditLog:
    """Writes events to a file, in a thread."""

    def __init__(
        self,
        path: Path,
        log: Callable[[str], None],
        *,
        lines_per_minute: int,
        queued_bytes: int = QUEUED_BYTES,
        summary_seconds: float = SUMMARY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`log` logs that lines are lost. `lines_per_minute` is the limit of one kind of event of
        one address, and there of one user; 0: there is none. Raises AuditFileUnusable."""
        self.path = path
        self._log = ThrottledLog(log)
        self._lines_per_minute = lines_per_minute
        self._queued_bytes = queued_bytes
        self._summary_seconds = summary_seconds
        self._clock = clock
        self._descriptor = open_audit_file(path)
        # Guards everything below; it is not held while writing.
        self._condition = threading.Condition()
        self._queue: list[bytes] = []
        self._size = 0
        self._lost = 0
        # In the order in which they began.
        self._repeated: dict[Source, RepeatedEvents] = {}
        self._next_descriptor: int | None = None
        self._is_ending = False
        # Whether the file ends in the middle of a line, because the disk was full.
        self._is_broken_line = False
        self._thread = threading.Thread(target=self._run, name="semel-audit", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Lines that were lost and are not reported in the file yet."""
        with self._condition:
            return self._lost

    def write(self, event: dict[str, object]) -> None:
        """Queue an event, or count it. Never waits for the disk."""
        with self._condition:
            if event["event"] in CAUSED_BY_CLIENTS and not self._admits(event):
                return
            self._put(event)
            self._condition.notify_all()

    def reopen(self) -> None:
        """Open the file again, because it was renamed. Raises AuditFileUnusable."""
        descriptor = open_audit_file(self.path)
        with self._condition:
            if self._next_descriptor is not None:
                os.close(self._next_descriptor)
            self._next_descriptor = descriptor
            self._condition.notify_all()

    def close(self) -> None:
        """Write the remaining lines, and close the file."""
        with self._condition:
            self._is_ending = True
            self._condition.notify_all()
        self._thread.join(CLOSE_SECONDS)

    # --- what is written --------------------------------------------------------------------------

    def _admits(self, event: dict[str, object]) -> bool:
        """Whether an event is written; otherwise it is counted for the summary."""
        if not self._lines_per_minute:
            return True
        source = event_source(event)
        if source not in self._repeated and len(self._repeated) >= MAXIMUM_SOURCES:
            source = (source[0], OTHERS, None)
        repeated = self._repeated.get(source)
        if repeated is None:
            repeated = self._repeated[source] = RepeatedEvents(self._clock())
            # The thread must write a summary in time.
            self._condition.notify_all()
        if repeated.written < self._lines_per_minute:
            repeated.written += 1
            return True
        repeated.left_out += 1
        repeated.last = _shortened(event)
        return False

    def _put_summaries(self) -> float | None:
        """Queue the summaries that are due. Returns the seconds until the next; None: none."""
        now = self._clock()
        for source, repeated in list(self._repeated.items()):
            due = repeated.began + self._summary_seconds
            if now < due and not self._is_ending:
                return due - now
            del self._repeated[source]
            if repeated.left_out:
                kind, address, user = source
                self._put(
                    {
                        "event": f"{kind}_again",
                        "address": address,
                        "user": user,
                        "count": repeated.left_out,
                        "last": repeated.last,
                    }
                )
        return None

    def _put(self, event: dict[str, object]) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        data = f"{json.dumps({'at': at, **event})}\n".encode()
        if self._size + len(data) > self._queued_bytes:
            self._lost += 1
            return
        self._queue.append(data)
        self._size += len(data)

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._condition:
                data = self._next()
                lost, self._lost = self._lost, 0
                if self._next_descriptor is not None:
                    os.close(self._descriptor)
                    self._descriptor, self._next_descriptor = self._next_descriptor, None
                    self._is_broken_line = False
                is_last = self._is_ending
            problem = self._write(data, lost)
            if problem is not None:
                self._log.log(problem, time.monotonic())
            if is_last:
                os.close(self._descriptor)
                return

    def _next(self) -> bytes:
        """Wait for lines, a new descriptor, or the end. Returns the lines."""
        while True:
            seconds = self._put_summaries()
            if self._queue or self._is_ending or self._next_descriptor is not None:
                data = b"".join(self._queue)
                self._queue.clear()
                self._size = 0
                return data
            self._condition.wait(seconds)

    def _write(self, data: bytes, lost: int) -> str | None:
        """Write the lines, and before them how many were lost.

        Returns why lines are lost, in one sentence; they are counted.
        """
        if not data and not lost:
            return None
        header = b"\n" if self._is_broken_line else b""
        if lost:
            header += b'{"event": "lines_lost", "count": %d}\n' % lost
        whole = header + data
        written = 0
        try:
            while written < len(whole):
                written += os.write(self._descriptor, whole[written:])
        except OSError as problem:
            lines = whole[max(written, len(header)) :].count(b"\n")
            if written < len(header):
                lines += lost
            if written:
                self._is_broken_line = not whole[:written].endswith(b"\n")
            with self._condition:
                self._lost += lines
            return f"audit log {self.path}: lines are lost: {problem.strerror}"
        self._is_broken_line = False
        return None


def event_source(event: dict[str, object]) -> Source:
    """What an event is counted for. A user name that is not proved does not distinguish clients,
    because they could change it."""
    peer = str(event["address"])
    proof = event.get("proof", ANONYMOUS)
    user = event.get("user")
    is_proved = proof != ANONYMOUS and isinstance(user, str)
    return (str(event["event"]), _address_of(peer), str(user) if is_proved else None)


def _address_of(peer: str) -> str:
    """The address of a peer with a port, or of a banned one, which has none."""
    try:
        ip_address(peer)
    except ValueError:
        return address_of(peer) or peer
    return peer


def _shortened(event: dict[str, object]) -> dict[str, object]:
    """The event without the rest of long texts, because many sources are remembered."""
    return {
        key: value[:SUMMARY_CHARACTERS] if isinstance(value, str) else value
        for key, value in event.items()
    }


def open_audit_file(path: Path) -> int:
    """Open the file for appending, private to its owner. Raises AuditFileUnusable."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, FILE_MODE)
    except OSError as problem:
        why = "it is a symbolic link" if problem.errno == errno.ELOOP else str(problem.strerror)
        raise AuditFileUnusable(f"[audit] file {path} cannot be opened: {why}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise AuditFileUnusable(f"[audit] file {path} is not a regular file: choose another path")
    with suppress(PermissionError):
        os.fchmod(descriptor, FILE_MODE)
    return descriptor

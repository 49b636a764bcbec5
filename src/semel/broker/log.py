"""A log that never holds up the loop, and that nobody can flood.

    LOG.info ─▶ Repeats ─▶ a bounded queue ─▶ a thread ─▶ stderr
                   │              └─ full: dropped, counted, and said when there is room again
                   └─ the same event too often: counted, and said once in a while

A pipe that nobody reads takes 64 KiB and then blocks whoever writes: here that is a thread which
has nothing else to do. *The same event* is a line with the same words: what is quoted, numbers and
addresses do not count, so that a client cannot make each of its lines a new one.
"""

import logging
import os
import re
import select
import threading
import time
from collections import deque
from typing import Final

# Lines about one event that are written within so many seconds; the others are counted.
REPEATED_LINES: Final = 50
REPEATED_SECONDS: Final = 10.0
# Different events that are told apart at the same time.
EVENTS: Final = 1_000
# Bytes of lines that wait to be written.
QUEUED_BYTES: Final = 4 * 1024 * 1024
# How long an end waits until all lines are out.
FLUSH_SECONDS: Final = 2.0
# Characters that are shown of the last line that was left out.
SHOWN: Final = 300

# What differs between lines about the same event: quoted text, addresses, numbers.
_VARYING: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[0-9a-fA-F]*[:.][0-9a-fA-F:.]+|\d+"""
)


def event_of(line: str) -> str:
    """The words of a line that tell what happened, whoever it happened to."""
    return _VARYING.sub("*", line.partition("\n")[0][:1_000])


class Repeated:
    """One event: since when it is counted, and what was left out since."""

    def __init__(self, now: float) -> None:
        self.began = now
        self.count = 0
        self.left_out = 0
        self.level = logging.NOTSET
        self.last = ""


class Repeats:
    """Which lines are written, and what is said of the others."""

    def __init__(self, lines: int = REPEATED_LINES, seconds: float = REPEATED_SECONDS) -> None:
        self.lines = lines
        self.seconds = seconds
        # By event, in the order in which they began.
        self._events: dict[str, Repeated] = {}

    def admits(self, line: str, level: int, now: float) -> bool:
        """Whether this line is to be written."""
        event = event_of(line)
        repeated = self._events.get(event)
        if repeated is None:
            if len(self._events) >= EVENTS:
                # So many at the same time are a flood themselves, and count as one event.
                event = ""
            repeated = self._events.setdefault(event, Repeated(now))
        repeated.count += 1
        if repeated.count <= self.lines:
            return True
        repeated.left_out += 1
        repeated.level = max(repeated.level, level)
        repeated.last = line
        return False

    def due(self, now: float) -> list[tuple[int, str]]:
        """Levels and lines about what was left out, of events whose time is over."""
        lines: list[tuple[int, str]] = []
        for event, repeated in list(self._events.items()):
            if now < repeated.began + self.seconds:
                break
            del self._events[event]
            if repeated.left_out:
                last = repeated.last.partition("\n")[0][:SHOWN]
                seconds = f"{self.seconds:g}"
                lines.append(
                    (
                        repeated.level,
                        f"… and {repeated.left_out} more in the last {seconds} s, such as: {last}",
                    )
                )
        return lines

    def wait(self, now: float) -> float | None:
        """In how many seconds something will be due; None: nothing is counted."""
        for repeated in self._events.values():
            return max(0.0, repeated.began + self.seconds - now)
        return None


class LogWriter(logging.Handler):
    """Writes lines to a file descriptor, in a thread that begins with the first line."""

    def __init__(
        self,
        descriptor: int,
        *,
        repeats: Repeats | None = None,
        queued_bytes: int = QUEUED_BYTES,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._repeats = Repeats() if repeats is None else repeats
        self._queued_bytes = queued_bytes
        self._flush_seconds = flush_seconds
        # Guards all below; nobody holds it while something is written.
        self._condition = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._is_writing = False
        self._is_ending = False
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, or count it. Never waits for whoever reads the log."""
        try:
            line = record.getMessage()
            with self._condition:
                if not self._repeats.admits(line, record.levelno, time.monotonic()):
                    # Its time is watched by the thread.
                    return
            text = self.format(record)
        except Exception:
            self.handleError(record)
            return
        with self._condition:
            self._put(text)
            if self._thread is None and not self._is_ending:
                self._thread = threading.Thread(target=self._run, name="semel-log", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def _put(self, text: str) -> None:
        data = f"{text}\n".encode("utf-8", "backslashreplace")
        if self._size + len(data) > self._queued_bytes:
            self._dropped += 1
            return
        self._queue.append(data)
        self._size += len(data)

    def _put_line(self, level: int, line: str) -> None:
        """A line of our own."""
        name = logging.getLevelName(level)
        made = {"name": "semel.broker.log", "levelno": level, "levelname": name, "msg": line}
        self._put(self.format(logging.makeLogRecord(made)))

    def _run(self) -> None:
        while True:
            with self._condition:
                data = self._next()
                if data is None:
                    self._condition.notify_all()
                    return
                self._is_writing = True
            try:
                while data:
                    data = data[self._write(data) :]
            except OSError:
                # Whoever read it is gone: there is nobody to tell, and nothing to do about it.
                pass
            with self._condition:
                self._is_writing = False
                self._condition.notify_all()

    def _write(self, data: bytes) -> int:
        """Write as much as is taken. How much that is."""
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            # Whoever gave us the descriptor has made it so: this thread may wait all the same.
            select.select([], [self._descriptor], [])
            return 0

    def _next(self) -> bytes | None:
        """What is to be written next; None: nothing, and this is the end."""
        while True:
            now = time.monotonic()
            at = float("inf") if self._is_ending else now
            for level, line in self._repeats.due(at):
                self._put_line(level, line)
            if self._queue:
                if self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    self._size = 0
                    self._put_line(
                        logging.WARNING, f"{dropped} lines are missing here: the log was not read"
                    )
                data = b"".join(self._queue)
                self._queue.clear()
                self._size = 0
                return data
            if self._is_ending:
                return None
            self._condition.wait(self._repeats.wait(now))

    def flush(self) -> None:
        """Wait until all lines are out, but not for ever: it may be that nobody reads them."""
        with self._condition:
            if self._thread is not None:
                self._condition.wait_for(self._is_idle, self._flush_seconds)

    def _is_idle(self) -> bool:
        return not self._queue and not self._is_writing

    def close(self) -> None:
        """Write what is left, what was counted too, and end."""
        with self._condition:
            self._is_ending = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(self._flush_seconds)
        super().close()

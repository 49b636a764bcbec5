"""A log that never blocks the event loop, and that no client can flood.

    LOG.info ─▶ Repeats ─▶ a bounded queue ─▶ a thread ─▶ stderr, or the journal
                   │              └─ full: dropped and counted; reported when there is room again
                   └─ the same event too often: counted, and reported at intervals

A pipe that nobody reads accepts 64 KiB and then blocks its writer; therefore the writer is a
separate thread. Two lines are *the same event* if they differ only in quoted text, numbers and
addresses, so that a client cannot make each of its lines a new event.
"""

import json
import logging
import os
import re
import select
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from semel.broker.network.journal import SystemJournal, encode_entry

# How many lines about one event are written per interval, and the interval in seconds. Further
# lines are counted.
REPEATED_LINES: Final = 50
REPEATED_SECONDS: Final = 10.0
# How many different events are distinguished at a time.
MAXIMUM_EVENTS: Final = 1_000
# Maximum bytes of lines that wait to be written.
QUEUED_BYTES: Final = 4 * 1024 * 1024
# How long `flush` and `close` wait until all lines are written.
FLUSH_SECONDS: Final = 2.0
# How many characters of the last suppressed line a summary quotes.
QUOTED_CHARACTERS: Final = 300

# The parts in which lines about the same event differ: quoted text, addresses, numbers.
_VARYING: Final = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[0-9a-fA-F]*[:.][0-9a-fA-F:.]+|\d+"""
)


def event_of(line: str) -> str:
    """The first line of a log message, without the parts that differ between clients."""
    return _VARYING.sub("*", line.partition("\n")[0][:1_000])


class Repeated:
    """One event: when its interval began, and which of its lines were suppressed."""

    def __init__(self, now: float) -> None:
        self.began = now
        self.count = 0
        self.left_out = 0
        self.level = logging.NOTSET
        self.last = ""


class Repeats:
    """Decides which lines are written, and summarizes the suppressed ones."""

    def __init__(self, lines: int = REPEATED_LINES, seconds: float = REPEATED_SECONDS) -> None:
        self.lines = lines
        self.seconds = seconds
        # By event, in the order in which their intervals began.
        self._events: dict[str, Repeated] = {}

    def admits(self, line: str, level: int, now: float) -> bool:
        """Count a line. Returns whether it should be written."""
        event = event_of(line)
        repeated = self._events.get(event)
        if repeated is None:
            if len(self._events) >= MAXIMUM_EVENTS:
                # So many different events are a flood, too, and count as one event.
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
        """Level and text of a summary for each event that had suppressed lines and is over."""
        lines: list[tuple[int, str]] = []
        for event, repeated in list(self._events.items()):
            if now < repeated.began + self.seconds:
                break
            del self._events[event]
            if repeated.left_out:
                last = repeated.last.partition("\n")[0][:QUOTED_CHARACTERS]
                seconds = f"{self.seconds:g}"
                lines.append(
                    (
                        repeated.level,
                        f"… and {repeated.left_out} more in the last {seconds} s, such as: {last}",
                    )
                )
        return lines

    def wait(self, now: float) -> float | None:
        """Seconds until the next interval is over; None: no event is counted."""
        for repeated in self._events.values():
            return max(0.0, repeated.began + self.seconds - now)
        return None


class LogWriter(logging.Handler):
    """Writes lines to a file descriptor, in a thread that starts with the first line.

    With a journal it sends each record there instead, as one entry.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        journal: SystemJournal | None = None,
        repeats: Repeats | None = None,
        queued_bytes: int = QUEUED_BYTES,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._journal = journal
        self._repeats = Repeats() if repeats is None else repeats
        self._queued_bytes = queued_bytes
        self._flush_seconds = flush_seconds
        # Guards everything below; it is not held while writing.
        self._condition = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._is_writing = False
        self._is_ending = False
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, or count it. Never waits for the reader of the log."""
        try:
            line = record.getMessage()
            with self._condition:
                if not self._repeats.admits(line, record.levelno, time.monotonic()):
                    # The thread reports it when its interval is over.
                    return
            data = self._encode(record)
        except Exception:
            self.handleError(record)
            return
        with self._condition:
            self._put(data)
            if self._thread is None and not self._is_ending:
                self._thread = threading.Thread(target=self._run, name="semel-log", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def _encode(self, record: logging.LogRecord) -> bytes:
        text = self.format(record)
        if self._journal is not None:
            return encode_entry(record, text)
        return f"{text}\n".encode("utf-8", "backslashreplace")

    def _put(self, data: bytes) -> None:
        if self._size + len(data) > self._queued_bytes:
            self._dropped += 1
            return
        self._queue.append(data)
        self._size += len(data)

    def _put_line(self, level: int, line: str) -> None:
        """Queue a line of this handler's own."""
        name = logging.getLevelName(level)
        made = {"name": "semel.broker.log", "levelno": level, "levelname": name, "msg": line}
        self._put(self._encode(logging.makeLogRecord(made)))

    def _run(self) -> None:
        while True:
            with self._condition:
                lines = self._next()
                if lines is None:
                    self._condition.notify_all()
                    return
                self._is_writing = True
            # If the reader of the log is gone, there is nowhere to report it.
            with suppress(OSError):
                self._write_all(lines)
            with self._condition:
                self._is_writing = False
                self._condition.notify_all()

    def _write_all(self, lines: list[bytes]) -> None:
        if self._journal is not None:
            for line in lines:
                self._journal.send(line)
            return
        data = b"".join(lines)
        while data:
            data = data[self._write(data) :]

    def _write(self, data: bytes) -> int:
        """Write some of the bytes. Returns how many."""
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            # The descriptor was made non-blocking elsewhere; this thread may block.
            select.select([], [self._descriptor], [])
            return 0

    def _next(self) -> list[bytes] | None:
        """Wait for lines to write. Returns None if there are none and the handler is closing."""
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
                        logging.WARNING, f"{dropped} lines were dropped here: the log was not read"
                    )
                lines = list(self._queue)
                self._queue.clear()
                self._size = 0
                return lines
            if self._is_ending:
                return None
            self._condition.wait(self._repeats.wait(now))

    def flush(self) -> None:
        """Wait until all lines are written, at most `flush_seconds`: perhaps nobody reads them."""
        with self._condition:
            if self._thread is not None:
                self._condition.wait_for(self._is_idle, self._flush_seconds)

    def _is_idle(self) -> bool:
        return not self._queue and not self._is_writing

    def close(self) -> None:
        """Write the remaining lines and summaries, and end the thread."""
        with self._condition:
            self._is_ending = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(self._flush_seconds)
        if self._journal is not None:
            self._journal.close()
        super().close()


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object: an event `log`, or the event in its `extra`.

    `LOG.info(…, extra={"event": {"event": "ready", "port": port}})` adds these keys to the object.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The object on one line. With a traceback, `text` contains several lines."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found = {
            "at": at.replace("+00:00", "Z"),
            "event": "log",
            "level": level_name(record.levelno),
            "text": super().format(record),
            **getattr(record, "event", {}),
        }
        return json.dumps(found)


def level_name(level: int) -> str:
    """The name of a level, as in the setting [broker] log_level."""
    if level >= logging.ERROR:
        return "error"
    return "warning" if level >= logging.WARNING else "info"

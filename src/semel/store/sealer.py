"""The sealer: a process, started by the broker, that seals committed rows into segments.

It opens the database read-only. Broker and sealer exchange JSON objects, one per line. The broker
first sends the configuration, then the ranges to seal; the sealer answers with events:

    {"database": "…/store.db", "root": "…", "node": "n1", "store": "…", "parent": 4711, …}
    {"seal": {"stream": "plant", "id": 3, "first": 1, "last": 500}}
                                    {"sealed": {"stream": "plant", "id": 3, "first": 1, "last": 500,
                                                "bytes": 20480}}
                                    {"failed": {…, "why": "No space left on device"}}
                                    {"notice": {"why": "…"}}
                                    {"ended": {"why": "…"}}

After `failed` the sealer retries, with increasing delays. The same range always gives the same
file, which is read back and verified before `sealed` is sent. If a sealer or a broker died between
two steps, the file may already exist: then it is verified and reported, not written again.
Between requests the sealer merges segments, and deletes covered and expired ones; a large merge
pauses when a request arrives.

A store has one sealer at a time: it holds a lock next to the database, for which the next sealer
waits. It ends when its input ends, on SIGTERM and SIGINT, and, if the system supports it, when its
parent dies. It completes a segment that it is writing.
"""

import ctypes
import fcntl
import gc
import json
import os
import queue
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from semel.extras import MissingExtra
from semel.store.compaction import Compaction
from semel.store.node_segments import NodeSegments, SealRequest
from semel.store.private_files import open_private
from semel.store.retention import Retention
from semel.store.retention_clock import FILE_NAME, RetentionClock, time_since_boot
from semel.store.roots import RootError, open_root
from semel.store.schema import Unusable
from semel.store.segments import RecordError, arrow, parquet

LOCK_NAME: Final = "sealer.lock"
# Seconds until a failed range is retried: the first delay, and the longest.
FIRST_RETRY_DELAY: Final = 0.5
LONGEST_RETRY_DELAY: Final = 30.0
# Seconds until the same notice about a stream may be repeated.
NOTICE_INTERVAL: Final = 600.0
# Seconds between two attempts to take the lock.
LOCK_POLL: Final = 0.05
# Seconds that SQLite waits for a lock of another connection.
BUSY_TIMEOUT: Final = 10.0

# Any of these ends the sealer.
END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_PR_SET_PDEATHSIG: Final = 1


class SealerStopped(Exception):
    """The sealer must end, and abandons work in progress."""


class StopFlag:
    """Set by another thread when the sealer must end."""

    is_set = False


@dataclass
class _PendingRequest:
    """A request that is not complete."""

    request: SealRequest
    attempts: int = 0
    # When it is due, by the monotonic clock.
    due_at: float = 0.0


class SealerLoop:
    """Takes requests from a queue, seals their rows, and maintains the folders in between.

    None in the queue ends the loop.
    """

    def __init__(
        self,
        segments: NodeSegments,
        requests: "queue.SimpleQueue[SealRequest | None]",
        emit: Callable[[str, dict[str, Any]], None],
        *,
        housekeeping: float,
        clock: RetentionClock | None = None,
    ) -> None:
        """`emit` sends an event. `clock` gives the time for retention; default: the wall clock."""
        self._clock = clock
        self._segments = segments
        self._requests = requests
        self._emit = emit
        self._housekeeping = housekeeping
        # Errors that a root, a database or a file may raise. Anything else is a bug.
        self._expected_errors: tuple[type[Exception], ...] = (
            OSError,
            sqlite3.Error,
            RootError,
            RecordError,
            arrow().ArrowException,
        )
        self._pending: dict[str, _PendingRequest] = {}
        # Streams that may have segments to merge.
        self._to_compact: set[str] = set()
        # By stream: when its folder is cleaned up next.
        self._clean_up_at: dict[str, float] = {}
        # By stream and sentence: until when the notice is not repeated.
        self._quiet_until: dict[tuple[str, str], float] = {}
        # When to list the streams of the root; None: they have been listed.
        self._list_streams_at: float | None = 0.0

    def run(self) -> None:
        """Work until None is in the queue or the reader of the events is gone."""
        try:
            while True:
                self._take_requests(self._idle_seconds())
                if not self._seal_due():
                    self._do_housekeeping()
        except (SealerStopped, BrokenPipeError):
            return

    def _list_streams(self) -> None:
        """Schedule maintenance of all existing folders, including those without new rows."""
        try:
            streams = self._segments.streams()
        except self._expected_errors as problem:
            self._list_streams_at = time.monotonic() + self._housekeeping
            self._emit("notice", {"why": error_sentence(problem)})
            return
        self._list_streams_at = None
        self._to_compact.update(streams)
        self._clean_up_at.update(dict.fromkeys(streams, 0.0))

    def _idle_seconds(self) -> float | None:
        """Seconds until something is due if no request arrives; None: nothing is due."""
        if self._to_compact:
            return 0.0
        times = [each.due_at for each in self._pending.values()]
        times += self._clean_up_at.values()
        if self._list_streams_at is not None:
            times.append(self._list_streams_at)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _take_requests(self, timeout: float | None) -> None:
        """Take all requests from the queue, after waiting for the first. Raises SealerStopped."""
        try:
            request = self._requests.get(timeout != 0.0, timeout)
            while True:
                if request is None:
                    raise SealerStopped
                pending = self._pending.get(request.stream)
                if pending is None or pending.request != request:
                    self._pending[request.stream] = _PendingRequest(request)
                request = self._requests.get_nowait()
        except queue.Empty:
            return

    def _seal_due(self) -> bool:
        """Seal the requests that are due. Returns whether there were any."""
        now = time.monotonic()
        due = [each for each in self._pending.values() if each.due_at <= now]
        for pending in due:
            self._attempt(pending)
            # After each segment, so that the end does not have to wait for several.
            self._take_requests(0.0)
        return bool(due)

    def _attempt(self, pending: _PendingRequest) -> None:
        request = pending.request
        fields = {
            "stream": request.stream,
            "id": request.id,
            "first": request.first,
            "last": request.last,
        }
        try:
            size = self._segments.seal(request, now=time.time(), rewrite=pending.attempts > 0)
        except self._expected_errors as problem:
            self._segments.forget(request.stream)
            delay = min(LONGEST_RETRY_DELAY, FIRST_RETRY_DELAY * 2**pending.attempts)
            pending.attempts = min(pending.attempts + 1, 16)
            pending.due_at = time.monotonic() + delay
            self._emit("failed", {**fields, "why": error_sentence(problem)})
            return
        if self._pending.get(request.stream) is pending:
            del self._pending[request.stream]
        self._emit("sealed", {**fields, "bytes": size})
        self._to_compact.add(request.stream)
        self._clean_up_at.setdefault(request.stream, 0.0)

    def _do_housekeeping(self) -> None:
        """Clean up the folders that are due, and merge segments of one stream."""
        now = time.monotonic()
        if self._list_streams_at is not None and self._list_streams_at <= now:
            self._list_streams()
        due = [stream for stream, at in self._clean_up_at.items() if at <= now]
        for stream in due:
            self._clean_up_at[stream] = now + self._housekeeping
            self._report_errors(stream, partial(self._clean_up, stream))
            self._pause()
        if self._to_compact:
            stream = self._to_compact.pop()
            compact = partial(self._segments.compact, stream, pause=self._pause)
            if self._report_errors(stream, compact):
                self._to_compact.add(stream)

    def _clean_up(self, stream: str) -> None:
        now = time.time()
        retention_now = None
        if self._clock is not None:
            newest = None if self._clock.is_known else self._segments.newest_received()
            retention_now, notice = self._clock.now(now, time_since_boot(), newest=newest)
            if notice:
                self._emit("notice", {"why": notice})
        self._segments.clean_up(stream, now=now, retention_now=retention_now, pause=self._pause)

    def _report_errors(self, stream: str, work: Callable[[], bool | None]) -> bool:
        """Do the work, and return its result. On an expected error, send a notice."""
        try:
            return bool(work())
        except self._expected_errors as problem:
            self._segments.forget(stream)
            why = error_sentence(problem)
            now = time.monotonic()
            # Damage persists, and would be reported again with each new segment.
            self._quiet_until = {each: at for each, at in self._quiet_until.items() if at > now}
            if (stream, why) not in self._quiet_until:
                self._quiet_until[stream, why] = now + NOTICE_INTERVAL
                self._emit("notice", {"stream": stream, "why": why})
            return False

    def _pause(self) -> None:
        """Seal new requests in the middle of other work."""
        self._take_requests(0.0)
        self._seal_due()


def error_sentence(problem: Exception) -> str:
    """The error in one sentence."""
    if isinstance(problem, OSError) and problem.strerror:
        where = f": {problem.filename}" if problem.filename else ""
        return f"{problem.strerror}{where}"
    return str(problem) or type(problem).__name__


def parse_requests(lines: Iterator[bytes]) -> Iterator[SealRequest]:
    """The requests in lines from the broker."""
    for line in lines:
        seal = json.loads(line)["seal"]
        yield SealRequest(
            str(seal["stream"]), int(seal["id"]), int(seal["first"]), int(seal["last"])
        )


def read_lines(descriptor: int) -> Iterator[bytes]:
    """Lines as they arrive. An incomplete last line is dropped, because its writer died."""
    rest = b""
    while data := os.read(descriptor, 65_536):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def end_with_parent(parent: int) -> None:
    """Request SIGTERM for when the parent dies, if the system supports that.

    Raises SealerStopped if the parent is already dead.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # The parent may have died before the call.
    if os.getppid() != parent:
        raise SealerStopped


@contextmanager
def sealer_lock(path: Path, stop: StopFlag) -> Iterator[None]:
    """Wait for the lock of the store's sealer, and hold it. Raises SealerStopped on `stop`."""
    descriptor = open_private(path)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if stop.is_set:
                    raise SealerStopped from None
                time.sleep(LOCK_POLL)
        yield
    finally:
        os.close(descriptor)


def run_sealer(
    task: dict[str, Any],
    requests: "queue.SimpleQueue[SealRequest | None]",
    stop: StopFlag,
    emit: Callable[[str, dict[str, Any]], None],
) -> None:
    """Take the lock, open root and database, and work until the end."""
    parquet()
    # One thread is enough: the broker needs the other cores more.
    arrow().set_cpu_count(1)
    # Rows are hundreds of thousands of short-lived tuples without cycles: collect rarely.
    gc.freeze()
    gc.set_threshold(100_000)
    database = Path(task["database"])
    with sealer_lock(database.with_name(LOCK_NAME), stop):
        root = open_root(task["root"])
        connection = sqlite3.connect(
            f"{database.absolute().as_uri()}?mode=ro",
            uri=True,
            isolation_level=None,
            timeout=BUSY_TIMEOUT,
        )
        try:
            # As bytes, because Arrow accepts text as UTF-8, and the database stores UTF-8.
            connection.text_factory = bytes
            segments = NodeSegments(
                connection,
                root,
                node=task["node"],
                store=task["store"],
                retention={
                    stream: Retention(**limits) for stream, limits in task["retention"].items()
                },
                compaction=Compaction(**task["compaction"]),
                notify=lambda sentence: emit("notice", {"why": sentence}),
            )
            times = [limits["retain_for"] for limits in task["retention"].values()]
            longest = max((each for each in times if each is not None), default=None)
            clock = None
            if longest is not None:
                clock = RetentionClock(database.with_name(FILE_NAME), longest=longest)
            SealerLoop(
                segments, requests, emit, housekeeping=task["housekeeping"], clock=clock
            ).run()
        finally:
            connection.close()


def main() -> int:
    """Run the sealer for the broker at the other end of stdin and stdout. Returns the exit code."""
    requests: queue.SimpleQueue[SealRequest | None] = queue.SimpleQueue()
    stop = StopFlag()

    def end() -> None:
        stop.is_set = True
        requests.put(None)  # nosec B113 # a queue

    def await_signal() -> None:
        signal.sigwait(END_SIGNALS)
        end()

    # A thread waits for the signals. A handler would run in this thread, and not before `get`
    # returns if the signal came just before it began to wait. They stay blocked until the process
    # is gone, so that another one does not kill an interpreter that exits in order.
    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    threading.Thread(target=await_signal, daemon=True).start()

    # Only events may go to the broker: redirect output of libraries to standard error.
    events = os.dup(1)
    os.dup2(2, 1)

    def emit(kind: str, fields: dict[str, Any]) -> None:
        data = json.dumps({kind: fields}).encode() + b"\n"
        while data:
            data = data[os.write(events, data) :]

    lines = read_lines(0)
    try:
        task = json.loads(next(lines))
        end_with_parent(task["parent"])
    except (StopIteration, ValueError, LookupError, TypeError):
        print("semel.store.sealer is started by semel broker", file=sys.stderr)
        return 2
    except SealerStopped:
        return 0

    def listen() -> None:
        try:
            for request in parse_requests(lines):
                requests.put(request)  # nosec B113 # a queue
        finally:
            end()

    threading.Thread(target=listen, daemon=True).start()
    try:
        run_sealer(task, requests, stop, emit)
    except SealerStopped:
        return 0
    except BrokenPipeError:
        return 0
    except (OSError, sqlite3.Error, RootError, MissingExtra, Unusable) as problem:
        emit("ended", {"why": error_sentence(problem)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The writer's side of sealing: which rows are due, and the process that seals them.

`Planner` is informed of committed and sealed rows, and decides which range of which stream is due
by its rows, its bytes or its age. It depends only on its arguments. One range per stream is in
progress at a time, because a record has no gaps: the next range starts where it ends.

`SealerProcess` runs the sealer. A separate thread starts the process, writes to it, reads from it,
and restarts it if it dies, with the requests that are not sealed. So callers never block, not even
on a full pipe. A single thread must do all this, because Linux sends the parent-death signal when
the *thread* that started the process ends.

Only `stop` ends that thread: without it no more rows would be sealed, and nobody would notice. A
line that is not an event is skipped, and unsealed ranges are requested again, because an event may
be lost in it. After an exception in our own code, it is logged and the sealer is restarted.
"""

import json
import logging
import os
import selectors
import subprocess
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from semel.extras import missing, need
from semel.store.compaction import MIB, Compaction
from semel.store.retention import Retention

LOG: Final = logging.getLogger("semel.store")

# Seconds between two passes of the sealer over covered and expired segments.
HOUSEKEEPING: Final = 60.0
# Seconds until a sealer that died is restarted: the first delay, and the longest.
FIRST_RESTART_DELAY: Final = 0.1
LONGEST_RESTART_DELAY: Final = 10.0
# Seconds until requests are repeated after a line that is not an event.
REPEAT_DELAY: Final = 1.0
# Seconds between two reports of such lines, and how many characters of a line are shown.
INVALID_LINE_INTERVAL: Final = 60.0
SHOWN_CHARACTERS: Final = 200
LONGEST_LINE: Final = 64 * 1024
# A range consists of about this many parts.
_PARTS: Final = 16


@dataclass
class _Part:
    """Consecutive committed rows of a stream."""

    rows: int
    size: int
    # When the first of these rows was committed.
    committed_at: float


class _Stream:
    """The unsealed rows of a stream."""

    def __init__(self, sealed: int) -> None:
        # All rows up to this seq are sealed, in progress, or in `parts`; all up to the second one
        # are sealed.
        self.through = sealed
        self.sealed = sealed
        # The range in progress; (0, 0): none; and when its first row was committed.
        self.in_progress = (0, 0)
        self.in_progress_size = 0
        self.in_progress_since = 0.0
        # Whether `due` has returned the range in progress.
        self.is_requested = True
        self.parts: deque[_Part] = deque()
        self.rows = 0
        self.size = 0


class Planner:
    """Decides which rows are due to be sealed, and whether too many are unsealed."""

    def __init__(
        self,
        *,
        rows: int = 500_000,
        size: int = 64 * MIB,
        age: float = 1.0,
        maximum_unsealed_rows: int = 5_000_000,
        maximum_unsealed_bytes: int = 1024 * MIB,
    ) -> None:
        self._rows = rows
        self._size = size
        self._age = age
        self._maximum_rows = maximum_unsealed_rows
        self._maximum_bytes = maximum_unsealed_bytes
        self._streams: dict[int, _Stream] = {}
        # Of all streams, including ranges in progress.
        self.unsealed_rows = 0
        self.unsealed_bytes = 0

    def restored(
        self, stream_id: int, *, sealed: int, sealing: int, last_seq: int, size: int, now: float
    ) -> None:
        """Restore the state of a stream from the store, before any other call for it.

        The range up to `sealing`, if one was recorded, is due at once with the same bounds, and
        then the rows after it. `size` is the size of all unsealed rows in bytes.
        """
        stream = self._streams[stream_id] = _Stream(sealed)
        unsealed = last_seq - sealed
        self.unsealed_rows += unsealed
        self.unsealed_bytes += size
        if sealing > sealed:
            rows = sealing - sealed
            stream.in_progress = (sealed + 1, sealing)
            stream.in_progress_size = size * rows // unsealed
            # When it was committed is unknown: before the start.
            stream.in_progress_since = now - self._age
            stream.is_requested = False
            size -= stream.in_progress_size
            unsealed -= rows
        if unsealed:
            # These rows were committed before the start, so they are due.
            stream.parts.append(_Part(unsealed, size, now - self._age))
            stream.rows = unsealed
            stream.size = size
        stream.through = last_seq

    def committed(self, stream_id: int, last_seq: int, rows: int, size: int, now: float) -> None:
        """`rows` rows of `size` bytes are committed; the last is `last_seq`."""
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = _Stream(last_seq - rows)
        if last_seq != stream.through + rows:
            raise ValueError(
                f"stream {stream_id}: {rows} rows up to {last_seq} do not follow {stream.through}"
            )
        stream.through = last_seq
        last = stream.parts[-1] if stream.parts else None
        if (
            last is not None
            and (last.rows + rows) * _PARTS <= self._rows
            and (last.size + size) * _PARTS <= self._size
        ):
            last.rows += rows
            last.size += size
        else:
            stream.parts.append(_Part(rows, size, now))
        stream.rows += rows
        stream.size += size
        self.unsealed_rows += rows
        self.unsealed_bytes += size

    def due(self, now: float) -> list[tuple[int, int, int]]:
        """Stream, first and last seq of each due range. These are in progress from now on."""
        found = []
        for stream_id, stream in self._streams.items():
            if not stream.is_requested:
                stream.is_requested = True
            elif not stream.in_progress[1] and self._is_due(stream, now):
                self._begin(stream)
            else:
                continue
            found.append((stream_id, *stream.in_progress))
        return found

    def next_due(self) -> float | None:
        """When a range is due if nothing more is committed; -inf: now; None: never."""
        times = []
        for stream in self._streams.values():
            if not stream.is_requested:
                return float("-inf")
            if stream.parts and not stream.in_progress[1]:
                if stream.rows >= self._rows or stream.size >= self._size:
                    return float("-inf")
                times.append(stream.parts[0].committed_at + self._age)
        return min(times, default=None)

    def _is_due(self, stream: _Stream, now: float) -> bool:
        if not stream.parts:
            return False
        return (
            stream.rows >= self._rows
            or stream.size >= self._size
            or now - stream.parts[0].committed_at >= self._age
        )

    def _begin(self, stream: _Stream) -> None:
        """Start the next range, as large as the limits allow."""
        first = stream.through - stream.rows + 1
        stream.in_progress_since = stream.parts[0].committed_at
        rows = 0
        size = 0
        while stream.parts:
            part = stream.parts[0]
            room = self._rows - rows
            if part.size:
                # At least one row, however large.
                room = min(room, max((self._size - size) * part.rows // part.size, not rows))
            if room <= 0:
                break
            if room < part.rows:
                share = part.size * room // part.rows
                stream.parts[0] = _Part(part.rows - room, part.size - share, part.committed_at)
                rows += room
                size += share
                break
            stream.parts.popleft()
            rows += part.rows
            size += part.size
        stream.rows -= rows
        stream.size -= size
        stream.in_progress = (first, first + rows - 1)
        stream.in_progress_size = size

    def sealed(self, stream_id: int, last: int) -> bool:
        """The range that ends with `last` is sealed. Returns False if it was not in progress."""
        stream = self._streams.get(stream_id)
        if stream is None or not last or stream.in_progress[1] != last:
            return False
        self.unsealed_rows -= last - stream.in_progress[0] + 1
        self.unsealed_bytes -= stream.in_progress_size
        stream.sealed = last
        stream.in_progress = (0, 0)
        stream.in_progress_size = 0
        stream.is_requested = True
        return True

    def progress(self, now: float) -> dict[int, tuple[int, int, float]]:
        """By stream: the last sealed seq, how many rows are unsealed, and the age of the oldest.

        May be called on any thread; numbers of different streams may be of different times.
        """
        found = {}
        for stream_id, stream in list(self._streams.items()):
            sealed, through = stream.sealed, stream.through
            since = now
            if through > sealed:
                with suppress(IndexError):
                    # The other thread may take the last part at this moment.
                    is_idle = not stream.in_progress[1]
                    since = stream.parts[0].committed_at if is_idle else stream.in_progress_since
            found[stream_id] = (sealed, through - sealed, max(0.0, now - since))
        return found

    def is_behind(self) -> bool:
        """Whether more rows or bytes are unsealed than the limits allow."""
        return self.unsealed_rows > self._maximum_rows or self.unsealed_bytes > self._maximum_bytes


class SealerProcess:
    """Runs the sealer of a store, and restarts it when it dies.

    `on_event` is called on the supervising thread with each event: its kind ("sealed", "failed",
    "notice", "ended") and its fields. "ended" is reported whenever the process dies without `stop`.
    """

    def __init__(
        self,
        database: Path,
        root: str,
        *,
        node: str,
        store: str,
        on_event: Callable[[str, dict[str, Any]], None],
        retention: Mapping[str, Retention] | None = None,
        compaction: Compaction | None = None,
        housekeeping: float = HOUSEKEEPING,
    ) -> None:
        """Raises MissingExtra if pyarrow is not installed."""
        if "pyarrow" in missing("broker"):
            need("pyarrow", extra="broker", by="a stream")
        self._on_event = on_event
        self._task: dict[str, Any] = {
            "database": str(database.absolute()),
            "root": root,
            "node": node,
            "store": store,
            "parent": os.getpid(),
            "retention": {name: asdict(each) for name, each in (retention or {}).items()},
            "compaction": asdict(compaction or Compaction()),
            "housekeeping": housekeeping,
        }
        self._database = database
        # By stream: the line of the request that is not sealed.
        self._requests: dict[int, bytes] = {}
        self._new: deque[int] = deque()
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._stopping = threading.Event()
        self._is_closed = False
        self._stop_timeout = 0.0
        self._thread = threading.Thread(target=self._run, name="sealer", daemon=True)
        self._process: subprocess.Popen[bytes] | None = None
        # Invalid lines since the last report, and when the next report is due.
        self._invalid_lines = 0
        self._quiet_until = float("-inf")

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None."""
        process = self._process
        return None if process is None else process.pid

    @property
    def is_supervised(self) -> bool:
        """Whether the thread that restarts the process is alive."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, which starts the process."""
        self._thread.start()

    def seal(self, stream: str, stream_id: int, first: int, last: int) -> None:
        """Request to seal these rows, one range per stream at a time. Returns at once.

        Raises ValueError if another range of the stream is not sealed yet.
        """
        request = {"stream": stream, "id": stream_id, "first": first, "last": last}
        line = json.dumps({"seal": request}).encode() + b"\n"
        with self._lock:
            if self._requests.get(stream_id, line) != line:
                raise ValueError(f"another range of stream {stream} is in progress")
            self._requests[stream_id] = line
            self._new.append(stream_id)
        self._wake()

    def stop(self, timeout: float = 10.0) -> None:
        """End the process. It may take at most `timeout` seconds to complete what it is writing."""
        self._stop_timeout = timeout
        self._stopping.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            if not self._is_closed:
                os.close(self._wake_read)
                os.close(self._wake_write)
                self._is_closed = True

    def _wake(self) -> None:
        # If the pipe is full, the thread wakes anyway. If it is closed, there is no thread.
        with self._lock, suppress(BlockingIOError):
            if not self._is_closed:
                os.write(self._wake_write, b"\0")

    # --- on the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        delay = FIRST_RESTART_DELAY
        while not self._stopping.is_set():
            try:
                has_sealed = self._run_process()
            except Exception:
                # If this thread ended, nothing more would be sealed.
                LOG.exception("the supervisor of the sealer failed; it continues")
                has_sealed = False
            if self._stopping.is_set():
                break
            delay = FIRST_RESTART_DELAY if has_sealed else min(LONGEST_RESTART_DELAY, delay * 2)
            self._sleep(delay)

    def _sleep(self, seconds: float) -> None:
        """Sleep, or return early if `stop` is called."""
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
                if selector.select(left):
                    self._drain()

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass

    def _run_process(self) -> bool:
        """Run one process from its start to its end. Returns whether it has sealed anything."""
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "semel.store.sealer", str(self._database)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=environment_for_python(os.environ),
                # A separate group, so that Ctrl-C reaches only the broker, which ends the sealer.
                process_group=0,
            )
        except OSError as problem:
            self._on_event("ended", {"why": f"the sealer cannot be started: {problem}"})
            return False
        self._process = process
        try:
            with process:
                try:
                    link = _SealerLink(self, process)
                    link.run()
                except BaseException:
                    process.kill()
                    raise
        finally:
            self._process = None
        if not self._stopping.is_set() and not link.has_reported_end:
            self._on_event("ended", {"why": f"the sealer exited with code {process.returncode}"})
        return link.has_sealed

    def _first_lines(self) -> bytes:
        """The configuration and all requests, for a new process."""
        with self._lock:
            self._new.clear()
            return b"".join([json.dumps(self._task).encode() + b"\n", *self._requests.values()])

    def _new_lines(self) -> bytes:
        """The requests since the last call."""
        self._drain()
        with self._lock:
            lines = b"".join(self._requests[each] for each in self._new if each in self._requests)
            self._new.clear()
        return lines

    def _all_lines(self) -> bytes:
        """All requests that are not sealed."""
        with self._lock:
            return b"".join(self._requests.values())

    def _handle_event(self, kind: str, fields: dict[str, Any]) -> None:
        if kind != "sealed":
            self._on_event(kind, fields)
            return
        with self._lock:
            line = self._requests.get(fields["id"])
            if line is None or json.loads(line)["seal"]["last"] != fields["last"]:
                return  # Already reported.
            # Before the callback, after which another thread may request the next range at once.
            del self._requests[fields["id"]]
        try:
            self._on_event(kind, fields)
        except BaseException:
            with self._lock:
                # The request is repeated.
                self._requests.setdefault(fields["id"], line)
            raise

    def _report_invalid_line(self, line: bytes) -> None:
        """Report a line that is not an event, at most once per INVALID_LINE_INTERVAL."""
        self._invalid_lines += 1
        now = time.monotonic()
        if now < self._quiet_until:
            return
        self._quiet_until = now + INVALID_LINE_INTERVAL
        more = f", the last of {self._invalid_lines}" if self._invalid_lines > 1 else ""
        self._invalid_lines = 0
        text = line.decode("utf-8", "replace")
        shown = repr(text[:SHOWN_CHARACTERS]) + ("…" if len(text) > SHOWN_CHARACTERS else "")
        why = f"skipped a line that is not an event{more}: {shown}"
        self._on_event("notice", {"why": why})


def parse_event(line: bytes) -> tuple[str, dict[str, Any]] | None:
    """The kind of an event and its fields, None if the line is not an event."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or len(event) != 1:
        return None
    ((kind, fields),) = event.items()
    if kind not in ("sealed", "failed", "notice", "ended") or not isinstance(fields, dict):
        return None
    if kind == "sealed" and not all(type(fields.get(name)) is int for name in ("id", "last")):
        return None
    return kind, fields


class _SealerLink:
    """The pipes to and from one process: writes requests and reads events until it ends."""

    def __init__(self, owner: SealerProcess, process: subprocess.Popen[bytes]) -> None:
        self._owner = owner
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._input = process.stdin
        self._output = process.stdout
        os.set_blocking(self._input.fileno(), False)
        os.set_blocking(self._output.fileno(), False)
        self._pending = owner._first_lines()
        self._incomplete_line = b""
        self.has_sealed = False
        # Whether the process sent "ended".
        self.has_reported_end = False
        # When to repeat the requests that are not sealed.
        self._repeat_at = float("inf")

    def run(self) -> None:
        """Run until the process has closed its output, and has ended or been killed."""
        owner = self._owner
        deadline = float("inf")
        with selectors.DefaultSelector() as selector:
            selector.register(owner._wake_read, selectors.EVENT_READ)
            selector.register(self._output, selectors.EVENT_READ)
            is_open = True
            while is_open:
                if time.monotonic() >= self._repeat_at:
                    self._repeat_at = float("inf")
                    self._pending += owner._all_lines()
                self._send(selector)
                if deadline <= time.monotonic():
                    self._process.kill()
                    deadline = float("inf")
                until = min(deadline, self._repeat_at)
                left = None if until == float("inf") else max(0.0, until - time.monotonic())
                for key, _ in selector.select(left):
                    if key.fileobj is self._output:
                        is_open = self._receive()
                    elif key.fileobj == owner._wake_read:
                        self._pending += owner._new_lines()
                if owner._stopping.is_set() and not self._input.closed:
                    self._end_input(selector)
                    deadline = time.monotonic() + owner._stop_timeout
        # A process that has closed its output is useless, even if it has not ended.
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _send(self, selector: selectors.BaseSelector) -> None:
        """Write as much as fits into the pipe. If there is more, select on writability."""
        if self._input.closed:
            return
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._input.fileno(), self._pending) :]
        except BlockingIOError:
            if self._input not in selector.get_map():
                selector.register(self._input, selectors.EVENT_WRITE)
            return
        except BrokenPipeError:
            # The process is dying: its output ends soon.
            self._pending = b""
        if self._input in selector.get_map():
            selector.unregister(self._input)

    def _end_input(self, selector: selectors.BaseSelector) -> None:
        if self._input in selector.get_map():
            selector.unregister(self._input)
        self._input.close()

    def _receive(self) -> bool:
        """Read and handle events. Returns False if the output has ended."""
        data = os.read(self._output.fileno(), 65_536)
        *lines, self._incomplete_line = (self._incomplete_line + data).split(b"\n")
        if len(self._incomplete_line) > LONGEST_LINE:
            lines.append(self._incomplete_line)
            self._incomplete_line = b""
        for line in lines:
            event = parse_event(line)
            if event is None:
                # A valid event may be lost in this line.
                self._repeat_at = min(self._repeat_at, time.monotonic() + REPEAT_DELAY)
                self._owner._report_invalid_line(line)
                continue
            kind, fields = event
            self.has_sealed = self.has_sealed or kind == "sealed"
            self.has_reported_end = self.has_reported_end or kind == "ended"
            self._owner._handle_event(kind, fields)
        return bool(data)


def environment_for_python(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment, with PYTHONPATH extended if semel is not installed in site-packages."""
    environment = dict(environ)
    here = str(Path(__file__).resolve().parents[2])
    if here not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        paths = [here, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment

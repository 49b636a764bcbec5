"""The writer's side of sealing: which rows are due, and the process that seals them.

`Planner` is told what is committed and what is sealed, and says which range of which stream is due
by its rows, its bytes or its age. It decides by its arguments alone. One range of a stream is
under way at a time, because a record has no gaps: the next begins where it ends.

`SealerProcess` runs the sealer. A thread of its own starts it, writes to it, reads from it and
starts it anew if it dies, and sends again what is not sealed then; so whoever calls never waits,
not even for a pipe that is full. That one thread does it all is not only tidy: Linux tells a
process of the death of the thread that started it.

Nothing ends that thread but `stop`: without it no row would ever be sealed again, and nobody would
be told. A line that is no answer is passed over, and what is not sealed is ordered again, because
an answer may be lost in it. A fault of our own is logged, and the sealer started anew.
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

# Seconds between two looks of the sealer at what is covered or too old.
HOUSEKEEPING: Final = 60.0
# Seconds until a sealer that died is started anew: the first wait, and the longest.
FIRST_WAIT: Final = 0.1
LONGEST_WAIT: Final = 10.0
# Seconds until orders are repeated after a line that is no answer, and until another such line is
# told; how much of it is shown, and how long a line may be.
REPEAT_WAIT: Final = 1.0
QUIET_SECONDS: Final = 60.0
SHOWN_CHARACTERS: Final = 200
LONGEST_LINE: Final = 64 * 1024
# Commits of a stream are kept as so many parts of a range at most.
_PARTS: Final = 16


@dataclass
class _Part:
    """Committed rows of a stream that follow each other."""

    rows: int
    size: int
    # When the first of them was committed.
    at: float


class _Stream:
    """The rows of a stream that are not sealed."""

    def __init__(self, sealed: int) -> None:
        # All rows up to this one are sealed, under way, or in `parts`.
        self.through = sealed
        # The range under way; (0, 0): none.
        self.under_way = (0, 0)
        self.under_way_size = 0
        self.is_sent = True
        self.parts: deque[_Part] = deque()
        self.rows = 0
        self.size = 0


class Planner:
    """Which rows are due to be sealed, and whether too many are not sealed."""

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
        # Of all streams, what is under way included.
        self.unsealed_rows = 0
        self.unsealed_bytes = 0

    def restored(
        self, stream_id: int, *, sealed: int, sealing: int, last_seq: int, size: int, now: float
    ) -> None:
        """A stream as the store has it at the start; before anything else is said of it.

        The range up to `sealing`, if one was recorded, is due at once with the same bounds, and
        after it the rows that follow. `size` are the bytes of all rows that are not sealed.
        """
        stream = self._streams[stream_id] = _Stream(sealed)
        unsealed = last_seq - sealed
        self.unsealed_rows += unsealed
        self.unsealed_bytes += size
        if sealing > sealed:
            rows = sealing - sealed
            stream.under_way = (sealed + 1, sealing)
            stream.under_way_size = size * rows // unsealed
            stream.is_sent = False
            size -= stream.under_way_size
            unsealed -= rows
        if unsealed:
            # They have waited since before the start.
            stream.parts.append(_Part(unsealed, size, now - self._age))
            stream.rows = unsealed
            stream.size = size
        stream.through = last_seq

    def committed(self, stream_id: int, last_seq: int, rows: int, size: int, now: float) -> None:
        """So many rows, of so many bytes, are committed; the last is `last_seq`."""
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
        """Stream, first and last seq of each range that is due; they are under way from now on."""
        found = []
        for stream_id, stream in self._streams.items():
            if not stream.is_sent:
                stream.is_sent = True
            elif not stream.under_way[1] and self._is_due(stream, now):
                self._begin(stream)
            else:
                continue
            found.append((stream_id, *stream.under_way))
        return found

    def next_due(self) -> float | None:
        """When something is due if nothing more is said, long ago if it is now; None: never."""
        times = []
        for stream in self._streams.values():
            if not stream.is_sent:
                return float("-inf")
            if stream.parts and not stream.under_way[1]:
                if stream.rows >= self._rows or stream.size >= self._size:
                    return float("-inf")
                times.append(stream.parts[0].at + self._age)
        return min(times, default=None)

    def _is_due(self, stream: _Stream, now: float) -> bool:
        if not stream.parts:
            return False
        return (
            stream.rows >= self._rows
            or stream.size >= self._size
            or now - stream.parts[0].at >= self._age
        )

    def _begin(self, stream: _Stream) -> None:
        """Take as many rows as a range may have."""
        first = stream.through - stream.rows + 1
        rows = 0
        size = 0
        while stream.parts:
            part = stream.parts[0]
            room = self._rows - rows
            if part.size:
                # At least one row, however large it is.
                room = min(room, max((self._size - size) * part.rows // part.size, not rows))
            if room <= 0:
                break
            if room < part.rows:
                share = part.size * room // part.rows
                stream.parts[0] = _Part(part.rows - room, part.size - share, part.at)
                rows += room
                size += share
                break
            stream.parts.popleft()
            rows += part.rows
            size += part.size
        stream.rows -= rows
        stream.size -= size
        stream.under_way = (first, first + rows - 1)
        stream.under_way_size = size

    def sealed(self, stream_id: int, last: int) -> bool:
        """The range that ends with `last` is sealed; False: it was not under way."""
        stream = self._streams.get(stream_id)
        if stream is None or not last or stream.under_way[1] != last:
            return False
        self.unsealed_rows -= last - stream.under_way[0] + 1
        self.unsealed_bytes -= stream.under_way_size
        stream.under_way = (0, 0)
        stream.under_way_size = 0
        stream.is_sent = True
        return True

    def is_behind(self) -> bool:
        """Whether more is not sealed than may be."""
        return self.unsealed_rows > self._maximum_rows or self.unsealed_bytes > self._maximum_bytes


class SealerProcess:
    """The sealer of a store, kept running.

    `on_answer` is called on a thread of ours with each answer: its kind ("sealed", "failed",
    "notice", "ended") and what it says. "ended" comes whenever the process dies unasked.
    """

    def __init__(
        self,
        database: Path,
        root: str,
        *,
        node: str,
        store: str,
        on_answer: Callable[[str, dict[str, Any]], None],
        retention: Mapping[str, Retention] | None = None,
        compaction: Compaction | None = None,
        housekeeping: float = HOUSEKEEPING,
    ) -> None:
        """Raises MissingExtra, before anything runs, if pyarrow is not installed."""
        if "pyarrow" in missing("broker"):
            need("pyarrow", extra="broker", by="a stream")
        self._on_answer = on_answer
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
        # By stream: the order that is not sealed.
        self._orders: dict[int, bytes] = {}
        self._new: deque[int] = deque()
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._stopping = threading.Event()
        self._is_closed = False
        self._patience = 0.0
        self._thread = threading.Thread(target=self._run, name="sealer", daemon=True)
        self._process: subprocess.Popen[bytes] | None = None
        # Lines that were no answer and are not told yet, and when one may be told again.
        self._odd_lines = 0
        self._quiet_until = float("-inf")

    @property
    def pid(self) -> int | None:
        """The process that runs now, if one does."""
        process = self._process
        return None if process is None else process.pid

    @property
    def is_supervised(self) -> bool:
        """Whether the thread lives that starts a new process when one ends."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread, which starts the process."""
        self._thread.start()

    def seal(self, stream: str, stream_id: int, first: int, last: int) -> None:
        """Have these rows sealed; of a stream, one range at a time. Returns at once.

        Raises ValueError if another range of the stream is not sealed yet.
        """
        order = {"stream": stream, "id": stream_id, "first": first, "last": last}
        line = json.dumps({"seal": order}).encode() + b"\n"
        with self._lock:
            if self._orders.get(stream_id, line) != line:
                raise ValueError(f"another range of stream {stream} is under way")
            self._orders[stream_id] = line
            self._new.append(stream_id)
        self._wake()

    def stop(self, patience: float = 10.0) -> None:
        """End the process: it may finish what it is writing, but not for longer than this."""
        self._patience = patience
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
        # A full pipe: it has been told often enough. A closed one: there is nobody to tell.
        with self._lock, suppress(BlockingIOError):
            if not self._is_closed:
                os.write(self._wake_write, b"\0")

    # --- on the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        wait = FIRST_WAIT
        while not self._stopping.is_set():
            try:
                heard = self._serve()
            except Exception:
                # The edge of the thread: without it nothing would be sealed any more.
                LOG.exception("the thread that supervises the sealer failed; it goes on")
                heard = False
            if self._stopping.is_set():
                break
            wait = FIRST_WAIT if heard else min(LONGEST_WAIT, wait * 2)
            self._sleep(wait)

    def _sleep(self, seconds: float) -> None:
        """Wait, but not when it is time to stop."""
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

    def _serve(self) -> bool:
        """Run one process from its start to its end; whether it sealed anything."""
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "semel.store.sealer", str(self._database)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=environment_for_python(os.environ),
                # Ctrl-C is for the broker, which then ends this one.
                process_group=0,
            )
        except OSError as problem:
            self._on_answer("ended", {"why": f"the sealer cannot be started: {problem}"})
            return False
        self._process = process
        try:
            with process:
                try:
                    heard, told = _Conversation(self, process).hold()
                except BaseException:
                    process.kill()
                    raise
        finally:
            self._process = None
        if not self._stopping.is_set() and not told:
            self._on_answer("ended", {"why": f"the sealer ended with code {process.returncode}"})
        return heard

    def _first_lines(self) -> bytes:
        """What a new process has to know."""
        with self._lock:
            self._new.clear()
            return b"".join([json.dumps(self._task).encode() + b"\n", *self._orders.values()])

    def _new_lines(self) -> bytes:
        """What has been ordered since."""
        self._drain()
        with self._lock:
            lines = b"".join(self._orders[each] for each in self._new if each in self._orders)
            self._new.clear()
        return lines

    def _all_lines(self) -> bytes:
        """All that is not sealed."""
        with self._lock:
            return b"".join(self._orders.values())

    def _answered(self, kind: str, about: dict[str, Any]) -> None:
        if kind != "sealed":
            self._on_answer(kind, about)
            return
        with self._lock:
            order = self._orders.get(about["id"])
        if order is None or json.loads(order)["seal"]["last"] != about["last"]:
            return  # said before
        self._on_answer(kind, about)
        # Only now: if that fails, the answer has to come again.
        with self._lock:
            del self._orders[about["id"]]

    def _tell_odd_line(self, line: bytes) -> None:
        """Say what the sealer wrote, but not too often."""
        self._odd_lines += 1
        now = time.monotonic()
        if now < self._quiet_until:
            return
        self._quiet_until = now + QUIET_SECONDS
        more = f", the last of {self._odd_lines}" if self._odd_lines > 1 else ""
        self._odd_lines = 0
        text = line.decode("utf-8", "replace")
        shown = repr(text[:SHOWN_CHARACTERS]) + ("…" if len(text) > SHOWN_CHARACTERS else "")
        why = f"it wrote a line that is no answer{more}, which is passed over: {shown}"
        self._on_answer("notice", {"why": why})


def parse_answer(line: bytes) -> tuple[str, dict[str, Any]] | None:
    """The kind of an answer and what it says; None: this is no answer."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or len(answer) != 1:
        return None
    ((kind, about),) = answer.items()
    if kind not in ("sealed", "failed", "notice", "ended") or not isinstance(about, dict):
        return None
    if kind == "sealed" and not all(type(about.get(name)) is int for name in ("id", "last")):
        return None
    return kind, about


class _Conversation:
    """Orders to one process and its answers, until it ends."""

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
        self._half = b""
        self._heard = False
        self._told = False
        # When to order again what is not sealed.
        self._repeat_at = float("inf")

    def hold(self) -> tuple[bool, bool]:
        """Until the process closes its output. Whether it sealed, and whether it said why."""
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
                    deadline = time.monotonic() + owner._patience
        # A process that closed its output is of no more use, if it has not ended anyway.
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._heard, self._told

    def _send(self, selector: selectors.BaseSelector) -> None:
        """Write what fits into the pipe, and listen for room if there is more."""
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
            # It is dead or dying: its end of output comes.
            self._pending = b""
        if self._input in selector.get_map():
            selector.unregister(self._input)

    def _end_input(self, selector: selectors.BaseSelector) -> None:
        if self._input in selector.get_map():
            selector.unregister(self._input)
        self._input.close()

    def _receive(self) -> bool:
        """Take in answers; False: there will be none any more."""
        data = os.read(self._output.fileno(), 65_536)
        *lines, self._half = (self._half + data).split(b"\n")
        if len(self._half) > LONGEST_LINE:
            lines.append(self._half)
            self._half = b""
        for line in lines:
            answer = parse_answer(line)
            if answer is None:
                # An answer may be lost in it.
                self._repeat_at = min(self._repeat_at, time.monotonic() + REPEAT_WAIT)
                self._owner._tell_odd_line(line)
                continue
            kind, about = answer
            self._heard = self._heard or kind == "sealed"
            self._told = self._told or kind == "ended"
            self._owner._answered(kind, about)
        return bool(data)


def environment_for_python(environ: Mapping[str, str]) -> dict[str, str]:
    """The same, and where this semel is, if that is no place where Python looks by itself."""
    environment = dict(environ)
    here = str(Path(__file__).resolve().parents[2])
    if here not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        paths = [here, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment

"""The sealer: a process that turns committed rows into segments. The broker starts it.

It opens the database read-only and never writes it. The broker sends one JSON object a line, first
one that says what to work on and then what to seal, and the sealer answers in the same way:

    {"database": "…/store.db", "root": "…", "node": "n1", "store": "…", "parent": 4711, …}
    {"seal": {"stream": "plant", "id": 3, "first": 1, "last": 500}}
                                    {"sealed": {"stream": "plant", "id": 3, "first": 1, "last": 500,
                                                "bytes": 20480}}
                                    {"failed": {…, "why": "No space left on device"}}
                                    {"notice": {"why": "…"}}
                                    {"ended": {"why": "…"}}

`failed` is a notice: the sealer tries again by itself, waiting longer each time. The same range
always gives the same file, which is read back and checked before it is reported. One that is there
already, because a sealer or a broker died between two steps, is read and reported instead of being
written again. Between ranges it merges segments
and deletes what is covered or too old; a large merge makes way for a range that comes.

One sealer works for a store at a time: it holds a lock beside the database, and the next one
waits. It ends when its input does, on SIGTERM and SIGINT, and, where the system can tell it, when
its parent dies; a segment that it is writing it finishes first.
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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from semel.extras import MissingExtra
from semel.store.compaction import (
    Compaction,
    NotMergeable,
    check_coverers,
    drop_covered,
    merge,
    picked,
    plan,
)
from semel.store.landed import landings_of
from semel.store.private_files import open_private
from semel.store.retention import Retention, delete_through, too_much
from semel.store.retention_clock import NAME, RetentionClock, time_since_boot
from semel.store.roots import Root, RootError, Segment, open_root
from semel.store.schema import Unusable
from semel.store.segment_writer import seal_rows
from semel.store.segments import (
    Range,
    RecordError,
    arrow,
    parquet,
    segment_name,
    segment_times,
    verify_segment,
)

LOCK_NAME: Final = "sealer.lock"
# Seconds until a failed range is tried again: the first wait, and the longest.
FIRST_WAIT: Final = 0.5
LONGEST_WAIT: Final = 30.0
# Seconds for which the same notice of a stream is not repeated.
QUIET_SECONDS: Final = 600.0
# How often the lock is tried.
LOCK_WAIT: Final = 0.05
# Seconds that SQLite waits for a lock of another connection.
BUSY: Final = 10.0
# Seconds until it is said again that retention waits for a landing.
REMINDER: Final = 86_400.0
# Where segments are deleted by their age, they are merged within this part of it.
SLOTS: Final = 10

_PR_SET_PDEATHSIG: Final = 1


class Ended(Exception):
    """It is time to end: what is under way is given up."""


class Ending:
    """Whether it is time to end. No lock is in it: a signal may come while one is dealt with, and
    whoever waits for a lock there waits for himself."""

    has_come = False


@dataclass(frozen=True)
class Order:
    """Rows to seal."""

    stream: str
    id: int
    first: int
    last: int


@dataclass
class Folder:
    """What the sealer knows of the folder of a stream: it is the only one who writes there."""

    segments: list[Segment]
    # Ranges of segments that were found whole.
    checked: set[tuple[int, int]] = field(default_factory=set)
    # When the oldest and the newest row were received, by range.
    times: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)


class Sealer:
    """Seals, merges and deletes segments of one node. Synchronous; the world comes as arguments."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        root: Root,
        *,
        node: str,
        store: str,
        retention: dict[str, Retention] | None = None,
        compaction: Compaction | None = None,
        tell: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """`tell` is called with what people should know."""
        self._tell = tell
        self._connection = connection
        self._root = root
        self._node = node
        self._store = store
        self._retention = retention or {}
        self._compaction = compaction or Compaction()
        self._folders: dict[str, Folder] = {}
        self._cleaned: set[str] = set()
        # By stream: segments that stay as they are, because they are damaged or of a later version.
        self._apart: dict[str, set[Range]] = {}
        # What was said of damage: it stays, and is said once.
        self._told: set[str] = set()
        # By the note of a landing: when it was said that retention waits for it.
        self._reminded: dict[str, float] = {}

    def streams(self) -> list[str]:
        """The streams of the root that have a folder of ours."""
        return [
            stream
            for stream in self._root.streams()
            if self._node in self._root.nodes(stream)
            and self._root.owner(stream, self._node) == self._store
        ]

    def _folder(self, stream: str) -> Folder:
        folder = self._folders.get(stream)
        if folder is None:
            self._root.claim(stream, self._node, self._store)
            if stream not in self._cleaned:
                # Once: later a merge may be under way.
                self._root.clean(self._root.folder(stream, self._node))
                self._cleaned.add(stream)
            folder = Folder(self._root.segments(stream, self._node))
            self._folders[stream] = folder
        return folder

    def forget(self, stream: str) -> None:
        """Something went wrong: look at the folder anew next time."""
        self._folders.pop(stream, None)

    def seal(self, order: Order, *, now: float, again: bool = False) -> int:
        """Make a segment of these rows, if there is none yet; returns its bytes.

        `again`: an attempt of this process failed. The file is written anew then, even if it is
        there: of a file or folder that could not be synced once, no later sync is proof.
        """
        folder = self._folder(order.stream)
        if not again:
            for segment in reversed(folder.segments):
                if segment.first <= order.first and order.last <= segment.last:
                    if self._is_whole(order.stream, segment):
                        return segment.size
        for segment in folder.segments:
            if segment.first < order.first <= segment.last < order.last or (
                order.first < segment.first <= order.last < segment.last
            ):
                raise RecordError(
                    f"{segment_name(order.first, order.last)} would overlap {segment.name} of "
                    f"stream {order.stream}, and neither would cover the other"
                )
        size = seal_rows(
            self._connection,
            self._root,
            order.stream,
            self._node,
            stream_id=order.id,
            first=order.first,
            last=order.last,
        )
        # Its rows leave the store next: they have to be in it, as the root gives it back.
        verify_segment(self._root, order.stream, self._node, first=order.first, last=order.last)
        made = Segment(order.first, order.last, size, now)
        folder.segments = [each for each in folder.segments if each.range != made.range]
        folder.segments.append(made)
        return size

    def _is_whole(self, stream: str, segment: Segment) -> bool:
        place = self._root.place(stream, self._node, segment.name)
        try:
            verify_segment(self._root, stream, self._node, first=segment.first, last=segment.last)
            self._root.settle(place)
        except (RecordError, FileNotFoundError):
            return False
        return True

    def compact(self, stream: str, *, pause: Callable[[], None] = lambda: None) -> bool:
        """Merge some segments of a stream, if there are enough; whether there may be more.

        Raises NotMergeable, once for each segment: the next call leaves it out.
        """
        folder = self._folder(stream)
        retention = self._retention.get(stream, Retention())
        settings = self._compaction
        if retention.retain_bytes is not None:
            # Else one merged segment could be all that is kept.
            largest = min(settings.largest, max(1, retention.retain_bytes // SLOTS))
            settings = Compaction(
                settings.files, settings.small, largest, settings.rows, settings.grace
            )
        slot: Callable[[Segment], int] | None = None
        if retention.retain_for is not None:
            width = max(1, int(retention.retain_for * 1_000_000) // SLOTS)

            def slot_of(segment: Segment) -> int:
                return self._times(stream, segment)[1] // width

            slot = slot_of
        apart = self._apart.setdefault(stream, set())
        parts = plan(folder.segments, settings, slot, apart=apart)
        if not parts:
            return False
        try:
            merge(self._root, stream, self._node, parts, pause=pause)
        except NotMergeable as problem:
            apart.add(problem.range)
            raise
        folder.segments = self._root.segments(stream, self._node)
        return True

    def clear(
        self,
        stream: str,
        *,
        now: float,
        retained_at: float | None = None,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """Delete what has been covered long enough, and what retention gives up.

        `retained_at` is the time that retention goes by, if that is not `now`. While segments that
        cover others are read, `pause` may do other work.
        """
        folder = self._folder(stream)
        damaged = check_coverers(
            self._root,
            stream,
            self._node,
            self._root.segments(stream, self._node),
            now=now,
            grace=self._compaction.grace,
            checked=folder.checked,
            pause=pause,
        )
        # In a pause this one may have been forgotten.
        folder = self._folder(stream)
        # A command may have trimmed the stream while segments were merged.
        self._root.drop_trimmed(stream, self._node)
        # Files may have been deleted by a command, and the root's clock sets their times.
        folder.segments = self._root.segments(stream, self._node)
        problem: RecordError | None = None
        try:
            folder.segments = drop_covered(
                self._root,
                stream,
                self._node,
                folder.segments,
                now=now,
                grace=self._compaction.grace,
                checked=folder.checked,
                damaged=damaged,
            )
        except RecordError as found:
            # Retention goes on: it is told at the end.
            problem = found
            folder.segments = self._root.segments(stream, self._node)
        retention = self._retention.get(stream)
        if retention is not None:
            through = too_much(
                folder.segments,
                retention,
                lambda each: self._times(stream, each),
                now=now if retained_at is None else min(now, retained_at),
            )
            if through:
                through = self._landed(stream, folder, through, now)
            if through:
                folder.segments = delete_through(
                    self._root, stream, self._node, folder.segments, through
                )
        there = {each.range for each in folder.segments}
        folder.checked &= there
        self._apart.get(stream, set()).intersection_update(there)
        folder.times = {each: times for each, times in folder.times.items() if each in there}
        if problem is not None and str(problem) not in self._told:
            self._told.add(str(problem))
            raise problem

    def _landed(self, stream: str, folder: Folder, through: int, now: float) -> int:
        """The last seq up to which whole segments may go: what a landing needs stays."""
        for landing in landings_of(self._root, stream):
            landed = landing.landed.get(self._node, 0)
            if landed >= through:
                continue
            if now - self._reminded.get(landing.path, float("-inf")) >= REMINDER:
                self._reminded[landing.path] = now
                self._tell(
                    f"retention of stream {stream}, node {self._node}, keeps rows {landed + 1} to "
                    f"{through}, which have not landed in {landing.table} (noted at {landing.at}): "
                    f"let the landing go on, or delete {landing.path} if it was given up"
                )
            whole = [each.last for each in picked(folder.segments) if each.last <= landed]
            through = max(whole, default=0)
        return through

    def newest(self) -> float | None:
        """When the newest row of our streams was received, in seconds; None: there is none."""
        found = []
        for stream in self.streams():
            segments = self._root.segments(stream, self._node)
            if segments:
                found.append(self._times(stream, segments[-1])[1] / 1_000_000)
        return max(found, default=None)

    def _times(self, stream: str, segment: Segment) -> tuple[int, int]:
        times = self._folder(stream).times
        found = times.get(segment.range)
        if found is None:
            try:
                found = segment_times(
                    self._root, stream, self._node, first=segment.first, last=segment.last
                )
            except RecordError:
                # Its footer is damaged. It was written after its rows had come.
                written = int(segment.modified * 1_000_000)
                found = written, written
            times[segment.range] = found
        return found


# --- the process ----------------------------------------------------------------------------------


@dataclass
class Waiting:
    """An order that is not done."""

    order: Order
    attempts: int = 0
    # When it is due, by the monotonic clock.
    at: float = 0.0


class Loop:
    """Takes orders from a queue, answers them, and looks after the folders in between.

    None in the queue means that it is time to end.
    """

    def __init__(
        self,
        sealer: Sealer,
        orders: "queue.SimpleQueue[Order | None]",
        answer: Callable[[str, dict[str, Any]], None],
        *,
        housekeeping: float,
        clock: RetentionClock | None = None,
    ) -> None:
        """`clock` says what time it is for retention; without it, the machine's clock does."""
        self._clock = clock
        self._sealer = sealer
        self._orders = orders
        self._answer = answer
        self._housekeeping = housekeeping
        # What a root, a database or a file may raise; anything else is a mistake of ours.
        self._problems: tuple[type[Exception], ...] = (
            OSError,
            sqlite3.Error,
            RootError,
            RecordError,
            arrow().ArrowException,
        )
        self._waiting: dict[str, Waiting] = {}
        # Streams with segments to merge, and when each folder is looked at next.
        self._grown: set[str] = set()
        self._looks: dict[str, float] = {}
        # What was told of a stream, and until when it is not told again.
        self._noticed: dict[tuple[str, str], float] = {}
        # When to find out which folders there are; None: it is known.
        self._survey_at: float | None = 0.0

    def run(self) -> None:
        """Work until None comes, or nobody wants the answers."""
        try:
            while True:
                self._take(self._idle())
                if not self._seal_due():
                    self._look_after()
        except (Ended, BrokenPipeError):
            return

    def _survey(self) -> None:
        """What is left from before may be merged or deleted, also if no new rows come."""
        try:
            streams = self._sealer.streams()
        except self._problems as problem:
            self._survey_at = time.monotonic() + self._housekeeping
            self._answer("notice", {"why": sentence(problem)})
            return
        self._survey_at = None
        self._grown.update(streams)
        self._looks.update(dict.fromkeys(streams, 0.0))

    def _idle(self) -> float | None:
        """Seconds until there is something to do if no order comes."""
        if self._grown:
            return 0.0
        times = [each.at for each in self._waiting.values()] + list(self._looks.values())
        if self._survey_at is not None:
            times.append(self._survey_at)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _take(self, timeout: float | None) -> None:
        """Take in all orders that are there; wait for the first one if there is none."""
        try:
            order = self._orders.get(timeout != 0.0, timeout)
            while True:
                if order is None:
                    raise Ended
                before = self._waiting.get(order.stream)
                if before is None or before.order != order:
                    self._waiting[order.stream] = Waiting(order)
                order = self._orders.get_nowait()
        except queue.Empty:
            return

    def _seal_due(self) -> bool:
        """Seal what is due; whether there was any."""
        now = time.monotonic()
        due = [each for each in self._waiting.values() if each.at <= now]
        for waiting in due:
            self._attempt(waiting)
            # Nobody waits for more than one when it is time to end.
            self._take(0.0)
        return bool(due)

    def _attempt(self, waiting: Waiting) -> None:
        order = waiting.order
        about = {
            "stream": order.stream,
            "id": order.id,
            "first": order.first,
            "last": order.last,
        }
        try:
            size = self._sealer.seal(order, now=time.time(), again=waiting.attempts > 0)
        except self._problems as problem:
            self._sealer.forget(order.stream)
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2**waiting.attempts)
            waiting.attempts = min(waiting.attempts + 1, 16)
            waiting.at = time.monotonic() + wait
            self._answer("failed", {**about, "why": sentence(problem)})
            return
        if self._waiting.get(order.stream) is waiting:
            del self._waiting[order.stream]
        self._answer("sealed", {**about, "bytes": size})
        self._grown.add(order.stream)
        self._looks.setdefault(order.stream, 0.0)

    def _look_after(self) -> None:
        """One piece of the work that nobody waits for."""
        now = time.monotonic()
        if self._survey_at is not None and self._survey_at <= now:
            self._survey()
        late = [stream for stream, at in self._looks.items() if at <= now]
        for stream in late:
            self._looks[stream] = now + self._housekeeping
            self._try(stream, partial(self._clear, stream))
            self._pause()
        if self._grown:
            stream = self._grown.pop()
            if self._try(stream, partial(self._sealer.compact, stream, pause=self._pause)):
                self._grown.add(stream)

    def _clear(self, stream: str) -> None:
        now = time.time()
        retained_at = None
        if self._clock is not None:
            newest = None if self._clock.is_known else self._sealer.newest()
            retained_at, said = self._clock.now(now, time_since_boot(), newest=newest)
            if said:
                self._answer("notice", {"why": said})
        self._sealer.clear(stream, now=now, retained_at=retained_at, pause=self._pause)

    def _try(self, stream: str, work: Callable[[], bool | None]) -> bool:
        try:
            return bool(work())
        except self._problems as problem:
            self._sealer.forget(stream)
            why = sentence(problem)
            now = time.monotonic()
            # Damage stays, and each new segment would have it told again.
            self._noticed = {each: at for each, at in self._noticed.items() if at > now}
            if (stream, why) not in self._noticed:
                self._noticed[stream, why] = now + QUIET_SECONDS
                self._answer("notice", {"stream": stream, "why": why})
            return False

    def _pause(self) -> None:
        """In the middle of other work: orders go first."""
        self._take(0.0)
        self._seal_due()


def sentence(problem: Exception) -> str:
    """What went wrong, for people."""
    if isinstance(problem, OSError) and problem.strerror:
        where = f": {problem.filename}" if problem.filename else ""
        return f"{problem.strerror}{where}"
    return str(problem) or type(problem).__name__


def parse_orders(lines: Iterator[bytes]) -> Iterator[Order]:
    """Orders, from lines as the broker writes them."""
    for line in lines:
        seal = json.loads(line)["seal"]
        yield Order(str(seal["stream"]), int(seal["id"]), int(seal["first"]), int(seal["last"]))


def lines_of(descriptor: int) -> Iterator[bytes]:
    """Lines as they come; half a line at the end is of one who died writing it."""
    rest = b""
    while data := os.read(descriptor, 65_536):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def end_with_parent(parent: int) -> None:
    """Get SIGTERM when the parent dies, where the system has a way to tell; Ended: it is dead."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # It may have died before.
    if os.getppid() != parent:
        raise Ended


@contextmanager
def locked(path: Path, ending: Ending) -> Iterator[None]:
    """Hold the lock of the store's sealer; wait while another one does. Ended: given up."""
    descriptor = open_private(path)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if ending.has_come:
                    raise Ended from None
                time.sleep(LOCK_WAIT)
        yield
    finally:
        os.close(descriptor)


def work(
    task: dict[str, Any],
    orders: "queue.SimpleQueue[Order | None]",
    ending: Ending,
    answer: Callable[[str, dict[str, Any]], None],
) -> None:
    """All that the sealer does for one broker."""
    parquet()
    # One thread is enough: the broker needs the other core more.
    arrow().set_cpu_count(1)
    # Rows come as hundreds of thousands of tuples that live for a moment: no garbage to look for.
    gc.freeze()
    gc.set_threshold(100_000)
    database = Path(task["database"])
    with locked(database.with_name(LOCK_NAME), ending):
        root = open_root(task["root"])
        connection = sqlite3.connect(
            f"{database.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=BUSY
        )
        try:
            # Arrow wants UTF-8 as it is in the database.
            connection.text_factory = bytes
            sealer = Sealer(
                connection,
                root,
                node=task["node"],
                store=task["store"],
                retention={
                    stream: Retention(**limits) for stream, limits in task["retention"].items()
                },
                compaction=Compaction(**task["compaction"]),
                tell=lambda sentence: answer("notice", {"why": sentence}),
            )
            times = [limits["retain_for"] for limits in task["retention"].values()]
            longest = max((each for each in times if each is not None), default=None)
            clock = None
            if longest is not None:
                clock = RetentionClock(database.with_name(NAME), longest=longest)
            Loop(sealer, orders, answer, housekeeping=task["housekeeping"], clock=clock).run()
        finally:
            connection.close()


def main() -> int:
    """Work for the broker at the other end of stdin and stdout; the exit code."""
    orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
    ending = Ending()

    def end(*_: object) -> None:
        ending.has_come = True
        orders.put(None)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)

    # Whatever a library prints goes elsewhere: answers are all that the broker reads.
    answers = os.dup(1)
    os.dup2(2, 1)

    def answer(kind: str, about: dict[str, Any]) -> None:
        data = json.dumps({kind: about}).encode() + b"\n"
        while data:
            data = data[os.write(answers, data) :]

    lines = lines_of(0)
    try:
        task = json.loads(next(lines))
        end_with_parent(task["parent"])
    except (StopIteration, ValueError, LookupError, TypeError):
        print("semel.store.sealer is started by semel broker", file=sys.stderr)
        return 2
    except Ended:
        return 0

    def listen() -> None:
        try:
            for order in parse_orders(lines):
                orders.put(order)
        finally:
            end()

    threading.Thread(target=listen, daemon=True).start()
    try:
        work(task, orders, ending, answer)
    except Ended:
        return 0
    except BrokenPipeError:
        return 0
    except (OSError, sqlite3.Error, RootError, MissingExtra, Unusable) as problem:
        answer("ended", {"why": sentence(problem)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Reads the record of a store's own streams for the loop that owns the store, without blocking it.

    records(stream, first) ─▶ chunks that were read from segments      a bounded cache
                           ─▶ rows of table `record`                   a quick query
                           ─▶ None; a thread reads a chunk of a segment, then `read` is called

No row is skipped or returned twice: rows are requested by seq, and a row is deleted from the table
only after a segment with this row is durable. So a committed row that is not in the table is in a
segment, unless retention has deleted it, which is recorded before it happens (see roots), or a
repair has lost it, which is recorded, too (see gaps). A row that is nowhere without such a note is
missing: its reader waits, the log reports it, and the request is retried.

Slow or failing storage, such as an object store, delays only the readers that need it. pyarrow runs
only in that one thread.
"""

import logging
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from semel.extras import MissingExtra
from semel.store.commit import RecordedMessage
from semel.store.database import Database
from semel.store.gaps import known_gaps
from semel.store.roots import Root, RootError, open_root
from semel.store.rows import SELECT_RECORDS, recorded_message
from semel.store.schema import Damaged
from semel.store.segment_reader import SegmentReader
from semel.store.segments import RecordError, first_since

LOG: Final = logging.getLogger("semel.store")

# How many rows and bytes are read from segments at a time, and how much is cached.
CHUNK_ROWS: Final = 2_048
CHUNK_BYTES: Final = 1024 * 1024
CACHE_BYTES: Final = 16 * 1024 * 1024
CACHE_CHUNKS: Final = 64
# How many results of `seek` are kept until they are requested again.
MAXIMUM_SOUGHT: Final = 100
# How many rows to read first, while their size is unknown.
FIRST_ROWS: Final = 4
# How many bytes of rows one call returns, and the approximate size of a row without topic and
# payload.
RETURNED_BYTES: Final = 256 * 1024
ROW_BYTES: Final = 100
# How many segments are open at the same time, and after how many seconds idle ones are closed.
MAXIMUM_READERS: Final = 4
IDLE_SECONDS: Final = 10.0
# Seconds before a retry, the first and the longest; and between two warnings about one stream.
FIRST_RETRY: Final = 0.25
LONGEST_RETRY: Final = 30.0
WARNING_SECONDS: Final = 60.0
# How many seconds `close` waits for the thread, because a root may hang.
END_SECONDS: Final = 2.0
# How many rows are scanned in one transaction.
SCANNED_ROWS: Final = 20_000

_SELECT: Final = f"{SELECT_RECORDS} WHERE stream_id = ? AND seq >= ? ORDER BY seq LIMIT ?"
# Errors of a root, a file or a database. Anything else is a bug, logged with its traceback.
_EXPECTED_ERRORS: Final = (
    OSError,
    ValueError,
    sqlite3.Error,
    RootError,
    RecordError,
    Damaged,
    MissingExtra,
)

# A stream, and a seq or a time in microseconds.
_Position = tuple[int, int]


# --- rows of the table ----------------------------------------------------------------------------


def size_of(record: RecordedMessage) -> int:
    """The approximate size of a record in bytes."""
    return ROW_BYTES + len(record.topic_name) + len(record.payload)


def committed_records(
    connection: sqlite3.Connection, stream: int, first: int, limit: int
) -> list[RecordedMessage]:
    """Consecutive rows of the table from seq `first` on; empty if the table lacks `first`.

    At most `limit` rows and about RETURNED_BYTES, but at least one. Raises Damaged.
    """
    found: list[RecordedMessage] = []
    size = 0
    # A cursor that is not closed would prevent checkpoints of the log.
    with closing(connection.execute(_SELECT, (stream, first, limit))) as rows:
        for row in rows:
            if row[1] != first + len(found):
                break
            record = recorded_message(stream, row)
            found.append(record)
            size += size_of(record)
            if size >= RETURNED_BYTES:
                break
    return found


def last_committed(connection: sqlite3.Connection, stream: int) -> int:
    """The last committed seq of a stream; 0: none."""
    row = connection.execute("SELECT last_seq FROM stream WHERE id = ?", (stream,)).fetchone()
    return 0 if row is None else int(row[0])


def committed_since(
    connection: sqlite3.Connection, stream: int, received: int, step: int = SCANNED_ROWS
) -> int:
    """The lowest seq in the table that was received at this time or later, or the seq after the
    last.

    Times need not increase with seq, because a clock may be set back. So all rows are scanned,
    `step` of them per transaction.
    """
    end = last_committed(connection, stream) + 1
    row = connection.execute(
        "SELECT min(seq) FROM record WHERE stream_id = ?", (stream,)
    ).fetchone()
    at: int = end if row[0] is None else row[0]
    while at < end:
        row = connection.execute(
            "SELECT min(seq) FROM record WHERE stream_id = ? AND seq BETWEEN ? AND ?"
            " AND received_at >= ?",
            (stream, at, at + step - 1, received),
        ).fetchone()
        if row[0] is not None:
            return int(row[0])
        at += step
    return end


# --- segments -------------------------------------------------------------------------------------


class RecordChunk:
    """Consecutive rows of a stream from seq `start` on; there may be none.

    The request was for seq `first`: rows between `first` and `start` are no longer kept.
    """

    def __init__(self, stream: int, first: int, start: int, records: list[RecordedMessage]) -> None:
        self.stream = stream
        self.first = first
        self.start = start
        self.records = records
        self.size = ROW_BYTES + sum(map(size_of, records))

    def has(self, stream: int, seq: int) -> bool:
        """Whether the chunk answers a request for this seq."""
        return stream == self.stream and self.first <= seq < self.start + len(self.records)


def _bounded(records: list[RecordedMessage], at: int, limit: int) -> list[RecordedMessage]:
    """Records from this index on: at most `limit`, about RETURNED_BYTES, but at least one."""
    end = at
    size = 0
    while end < len(records) and end - at < limit and size < RETURNED_BYTES:
        size += size_of(records[end])
        end += 1
    return records[at:end]


class ReplaySegments:
    """Reads the segments of one node, with its own connection. For one thread, which may block."""

    def __init__(
        self, path: Path, *, root: str, node: str, store: str, names: Mapping[int, str]
    ) -> None:
        self._path = path
        self._address = root
        self._node = node
        self._store = store
        self._names = names
        self._root: Root | None = None
        self._database: Database | None = None
        # By stream and the next seq of the reader.
        self._readers: OrderedDict[_Position, SegmentReader] = OrderedDict()

    @property
    def is_open(self) -> bool:
        """Whether anything is open."""
        return self._database is not None

    def close(self) -> None:
        """Close everything; the next request opens it again."""
        while self._readers:
            self._readers.popitem()[1].close()
        if self._database is not None:
            self._database.close()
            self._database = None

    def _open(self) -> tuple[Root, Database]:
        if self._root is None:
            self._root = open_root(self._address)
        if self._database is None:
            self._database = Database.reader(self._path)
        return self._root, self._database

    def read(self, stream: int, first: int) -> RecordChunk:
        """Rows of the segments from seq `first` on. Raises RecordError if they are missing."""
        root, database = self._open()
        name = self._names[stream]
        reader = self._readers.pop((stream, first), None)
        if reader is None:
            while len(self._readers) >= MAXIMUM_READERS:
                self._readers.popitem(last=False)[1].close()
            reader = SegmentReader(root, name, self._node, stream_id=stream)
        try:
            records = _read(reader, first)
        except BaseException:
            reader.close()
            raise
        if records:
            self._readers[stream, records[-1].seq + 1] = reader
            if records[0].seq == first:
                return RecordChunk(stream, first, first, records)
        begins = self._first_kept(root, database, stream, first)
        if records and records[0].seq <= begins:
            return RecordChunk(stream, first, records[0].seq, records)
        if begins > first:
            return RecordChunk(stream, first, begins, [])
        raise RecordError(
            f"row {first} of stream {name}, node {self._node}, is neither in the store nor in a"
            f" segment under {root.address}"
        )

    def _first_kept(self, root: Root, database: Database, stream: int, first: int) -> int:
        """The first seq from `first` on that is not recorded as deleted or lost."""
        name = self._names[stream]
        trimmed = root.trimmed(name, self._node)
        if trimmed >= first:
            return trimmed + 1
        for low, high in known_gaps(database.connection).get(stream, []):
            if low <= first <= high:
                return high + 1
        # An earlier part of this record may be under a former name of this node.
        for node in root.nodes(name):
            if node != self._node and root.owner(name, node) == self._store:
                highest = root.highest_seq(name, node)
                if highest >= first:
                    return highest + 1
        return first

    def since(self, stream: int, received: int) -> int:
        """The lowest seq that was received at this time or later, or the seq after the last."""
        root, database = self._open()
        # Search the table first: a row that is deleted there meanwhile is in a segment.
        found = committed_since(database.connection, stream, received)
        sealed = first_since(root, self._names[stream], self._node, received)
        return found if sealed is None else min(found, sealed)


def _read(reader: SegmentReader, first: int) -> list[RecordedMessage]:
    """A bounded number of consecutive rows from `first`, or from the next existing row, on."""
    records: list[RecordedMessage] = []
    size = 0
    limit = FIRST_ROWS
    while size < CHUNK_BYTES and len(records) < CHUNK_ROWS:
        more = reader.read(records[-1].seq + 1 if records else first, limit)
        if not more or (records and more[0].seq != records[-1].seq + 1):
            break
        records += more
        size += sum(map(size_of, more))
        limit = max(1, min(limit * 4, (CHUNK_BYTES - size) // (size // len(records))))
    return records


# --- requests of the loop -------------------------------------------------------------------------


class RecordReader:
    """Answers at once, or lets a thread read the segments. For the loop's thread."""

    def __init__(self, database: Database, segments: ReplaySegments) -> None:
        """`database` is a read-only connection of the loop's thread."""
        self._database = database
        self._segments = segments
        self.chunks: list[RecordChunk] = []
        self._size = 0
        self._sought: OrderedDict[_Position, int] = OrderedDict()
        # Requests to the thread (False: for a chunk, True: for a time) that are pending or wait for
        # a retry.
        self._pending: set[tuple[bool, _Position]] = set()
        # By stream: consecutive failures, and when the next warning may be logged.
        self._failures: dict[int, int] = {}
        self._next_warning: dict[int, float] = {}
        self._jobs: SimpleQueue[tuple[bool, _Position] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._post: Callable[[Callable[[], None]], None] | None = None
        self._later: Callable[[float, Callable[[], None]], object] | None = None
        self._read: Callable[[int], None] | None = None

    def connect(
        self,
        *,
        post: Callable[[Callable[[], None]], None],
        later: Callable[[float, Callable[[], None]], object],
        read: Callable[[int], None],
    ) -> None:
        """Set the callbacks.

        `post` schedules a call in the loop's thread, from any thread; `later` schedules one after
        some seconds. `read` is called in the loop's thread with a stream for which None was
        returned, when the caller may request it again.
        """
        self._post = post
        self._later = later
        self._read = read

    def close(self) -> None:
        """Stop the thread, unless it hangs in a root."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(END_SECONDS)

    def records(self, stream: int, first: int, limit: int) -> list[RecordedMessage] | None:
        """See `Store.records`."""
        chunk = self._find(stream, first)
        while chunk is not None:
            first = max(first, chunk.start)
            if chunk.records:
                return _bounded(chunk.records, first - chunk.start, limit)
            chunk = self._find(stream, first)
        connection = self._database.connection
        found = committed_records(connection, stream, first, limit)
        if not found:
            if first > last_committed(connection, stream):
                return []
            # The row may have been committed between the two queries.
            found = committed_records(connection, stream, first, limit)
        if not found:
            self._request((False, (stream, first)))
            return None
        return found

    def seek(self, stream: int, received: int) -> int | None:
        """See `Store.seek`."""
        found = self._sought.pop((stream, received), None)
        if found is None:
            self._request((True, (stream, received)))
        return found

    def _find(self, stream: int, seq: int) -> RecordChunk | None:
        for chunk in self.chunks:
            if chunk.has(stream, seq):
                # Move it to the end: the least recently used chunk is evicted first.
                self.chunks.remove(chunk)
                self.chunks.append(chunk)
                return chunk
        return None

    def _request(self, job: tuple[bool, _Position]) -> None:
        if job in self._pending:
            return
        self._pending.add(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="semel-record", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _on_answer(self, job: tuple[bool, _Position], found: RecordChunk | int | Exception) -> None:
        """Handle an answer or a failure of the thread."""
        stream = job[1][0]
        if isinstance(found, Exception):
            self._failed(job, found)
            return
        self._failures.pop(stream, None)
        if isinstance(found, RecordChunk):
            self._keep(found)
        else:
            self._sought[job[1]] = found
            if len(self._sought) > MAXIMUM_SOUGHT:
                self._sought.popitem(last=False)
        self._notify_reader(job)

    def _notify_reader(self, job: tuple[bool, _Position]) -> None:
        """Notify the caller that got None that it may call again."""
        assert self._read is not None
        self._pending.discard(job)
        self._read(job[1][0])

    def _keep(self, chunk: RecordChunk) -> None:
        self.chunks.append(chunk)
        self._size += chunk.size
        # The new chunk stays, however large, because its reader waits for it.
        while len(self.chunks) > 1 and (
            self._size > CACHE_BYTES or len(self.chunks) > CACHE_CHUNKS
        ):
            self._size -= self.chunks.pop(0).size

    def _failed(self, job: tuple[bool, _Position], problem: Exception) -> None:
        assert self._later is not None
        stream = job[1][0]
        failures = self._failures.get(stream, 0)
        self._failures[stream] = min(failures + 1, 16)
        wait = min(LONGEST_RETRY, FIRST_RETRY * 2**failures)
        now = time.monotonic()
        if now >= self._next_warning.get(stream, now):
            self._next_warning[stream] = now + WARNING_SECONDS
            trace = None if isinstance(problem, _EXPECTED_ERRORS) else problem
            LOG.warning(
                "replay is delayed, retrying: %s",
                str(problem) or type(problem).__name__,
                exc_info=trace,
            )
        self._later(wait, lambda: self._notify_reader(job))

    # --- the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        segments = self._segments
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_SECONDS if segments.is_open else None)
            except Empty:
                segments.close()
                continue
            if job is None:
                segments.close()
                return
            self._do(job)

    def _do(self, job: tuple[bool, _Position]) -> None:
        assert self._post is not None
        is_time, (stream, wanted) = job
        found: RecordChunk | int | Exception
        try:
            if is_time:
                found = self._segments.since(stream, wanted)
            else:
                found = self._segments.read(stream, wanted)
        except Exception as problem:
            # Any error: the loop logs it and retries.
            found = problem
        self._post(lambda: self._on_answer(job, found))

"""The record of a store's own streams, for the loop that owns the store and must never wait.

    records(stream, first) ─▶ what was read of the segments before     a bounded cache
                           ─▶ rows of table `record`                   a quick look
                           ─▶ None; a thread reads a piece of the segments, and `read` is called

No row is passed over and none comes twice: rows are asked for by their numbers, and a row leaves
the table only after a segment with it is safe. So what was there once, and is not in the table, is
in a segment, unless retention has deleted it. That is written down before it is done (see roots),
as is what a repair has lost (see gaps). A row that is nowhere without such a note is missing: who
wants it waits, the log says so, and it is looked for again.

What is slow or fails, a root that is an object store above all, delays those who need it and
nobody else. pyarrow runs in that one thread only.
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
from semel.store.rows import check_records, properties_from
from semel.store.schema import Damaged
from semel.store.segment_reader import SegmentReader
from semel.store.segments import COLUMNS, RecordError, first_since

LOG: Final = logging.getLogger("semel.store")

# What is read of the segments at a time, and how much of it is kept.
PIECE_ROWS: Final = 2_048
PIECE_BYTES: Final = 1024 * 1024
CACHE_BYTES: Final = 16 * 1024 * 1024
CACHE_PIECES: Final = 64
# Times that were looked up and not asked for again.
SOUGHT: Final = 100
# Rows of which nothing is known yet may be large.
FIRST_ROWS: Final = 4
# Bytes of rows that are given at a time, and about what a row takes beside topic and payload.
GIVEN_BYTES: Final = 256 * 1024
ROW_BYTES: Final = 100
# Segments that are open at the same time, and seconds after which idle ones are closed.
READERS: Final = 4
IDLE_SECONDS: Final = 10.0
# Seconds until what failed is tried again: the first wait, and the longest.
FIRST_WAIT: Final = 0.25
LONGEST_WAIT: Final = 30.0
QUIET_SECONDS: Final = 60.0
# Seconds that the end of the thread is waited for: a root may hang.
END_SECONDS: Final = 2.0
# Rows looked through in one transaction.
LOOKED_THROUGH: Final = 20_000

_ROWS: Final = (
    f"SELECT checksum, {COLUMNS} FROM record WHERE stream = ? AND seq >= ? ORDER BY seq LIMIT ?"
)
# What a root, a file or a database may be wrong with; anything else is a mistake of ours.
_PROBLEMS: Final = (
    OSError,
    ValueError,
    sqlite3.Error,
    RootError,
    RecordError,
    Damaged,
    MissingExtra,
)

# A stream, and what is wanted of it: a seq, or a time in microseconds.
_Wanted = tuple[int, int]


# --- rows of the table ----------------------------------------------------------------------------


def size_of(record: RecordedMessage) -> int:
    """About how many bytes a record takes."""
    return ROW_BYTES + len(record.topic_name) + len(record.payload)


def committed_records(
    connection: sqlite3.Connection, stream: int, first: int, limit: int
) -> list[RecordedMessage]:
    """The rows of the table from seq `first` on, which follow each other; none: it is not there.

    At most `limit`, and not many bytes, but one in any case. Raises Damaged if one is not what was
    written.
    """
    found: list[RecordedMessage] = []
    size = 0
    # A cursor that is not closed would keep the log from being copied into the tables.
    with closing(connection.execute(_ROWS, (stream, first, limit))) as rows:
        for row in rows:
            if row[1] != first + len(found):
                break
            check_records(stream, [row])
            seq, received, flags, packet_id, version, client_id, user_name, topic, *rest = row[1:]
            record = RecordedMessage(
                stream,
                seq,
                topic,
                rest[1],
                qos=flags & 3,
                retain=bool(flags & 4),
                dup=bool(flags & 8),
                client_id=client_id,
                user_name=user_name,
                packet_id=packet_id,
                version=version,
                properties=properties_from(rest[0]),
                received=received,
            )
            found.append(record)
            size += size_of(record)
            if size >= GIVEN_BYTES:
                break
    return found


def last_committed(connection: sqlite3.Connection, stream: int) -> int:
    """The last seq of a stream that is safe; 0: none."""
    row = connection.execute("SELECT last_seq FROM stream WHERE id = ?", (stream,)).fetchone()
    return 0 if row is None else int(row[0])


def committed_since(
    connection: sqlite3.Connection, stream: int, received: int, step: int = LOOKED_THROUGH
) -> int:
    """The lowest seq in the table that was received then or later; else the one after the last.

    Times need not grow with the numbers, since a clock may be set back: so all rows are looked at,
    `step` of them in a transaction.
    """
    end = last_committed(connection, stream) + 1
    row = connection.execute("SELECT min(seq) FROM record WHERE stream = ?", (stream,)).fetchone()
    at: int = end if row[0] is None else row[0]
    while at < end:
        row = connection.execute(
            "SELECT min(seq) FROM record WHERE stream = ? AND seq BETWEEN ? AND ?"
            " AND received >= ?",
            (stream, at, at + step - 1, received),
        ).fetchone()
        if row[0] is not None:
            return int(row[0])
        at += step
    return end


# --- segments -------------------------------------------------------------------------------------


class RecordChunk:
    """Some rows of a stream, one after the other from seq `start` on, or none.

    They were looked for from seq `first` on: what would be between is not kept any more.
    """

    def __init__(self, stream: int, first: int, start: int, records: list[RecordedMessage]) -> None:
        self.stream = stream
        self.first = first
        self.start = start
        self.records = records
        self.size = ROW_BYTES + sum(map(size_of, records))

    def has(self, stream: int, seq: int) -> bool:
        """Whether it tells what there is at this seq."""
        return stream == self.stream and self.first <= seq < self.start + len(self.records)


def _little(records: list[RecordedMessage], at: int, limit: int) -> list[RecordedMessage]:
    """Some of them from that place on, not many bytes, but one in any case."""
    end = at
    size = 0
    while end < len(records) and end - at < limit and size < GIVEN_BYTES:
        size += size_of(records[end])
        end += 1
    return records[at:end]


class Shelf:
    """The segments of one node and what else the thread needs. For one thread, which may wait."""

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
        # By stream and the seq that each would read next.
        self._readers: OrderedDict[_Wanted, SegmentReader] = OrderedDict()

    @property
    def is_open(self) -> bool:
        """Whether anything is open."""
        return self._database is not None

    def close(self) -> None:
        """Let go of everything; what is asked next opens it again."""
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
        """What the segments have from seq `first` on. Raises RecordError if it is missing."""
        root, database = self._open()
        name = self._names[stream]
        reader = self._readers.pop((stream, first), None)
        if reader is None:
            while len(self._readers) >= READERS:
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
        begins = self._begins(root, database, stream, first)
        if records and records[0].seq <= begins:
            return RecordChunk(stream, first, records[0].seq, records)
        if begins > first:
            return RecordChunk(stream, first, begins, [])
        raise RecordError(
            f"row {first} of stream {name}, node {self._node}, is neither in the store nor in a"
            f" segment under {root.address}"
        )

    def _begins(self, root: Root, database: Database, stream: int, first: int) -> int:
        """Where rows may be again, if it is noted that `first` is gone; `first`: it is not."""
        name = self._names[stream]
        trimmed = root.trimmed(name, self._node)
        if trimmed >= first:
            return trimmed + 1
        for low, high in known_gaps(database.connection).get(stream, []):
            if low <= first <= high:
                return high + 1
        # The node may have had another name, under which this record ends.
        for node in root.nodes(name):
            if node != self._node and root.owner(name, node) == self._store:
                highest = root.highest_seq(name, node)
                if highest >= first:
                    return highest + 1
        return first

    def since(self, stream: int, received: int) -> int:
        """The lowest seq that was received then or later, or the one after the last."""
        root, database = self._open()
        # The table first: what leaves it meanwhile is in a segment then.
        found = committed_since(database.connection, stream, received)
        sealed = first_since(root, self._names[stream], self._node, received)
        return found if sealed is None else min(found, sealed)


def _read(reader: SegmentReader, first: int) -> list[RecordedMessage]:
    """Rows that follow each other from `first`, or from where there are any; not too many."""
    records: list[RecordedMessage] = []
    size = 0
    limit = FIRST_ROWS
    while size < PIECE_BYTES and len(records) < PIECE_ROWS:
        more = reader.read(records[-1].seq + 1 if records else first, limit)
        if not more or (records and more[0].seq != records[-1].seq + 1):
            break
        records += more
        size += sum(map(size_of, more))
        limit = max(1, min(limit * 4, (PIECE_BYTES - size) // (size // len(records))))
    return records


# --- what the loop asks ---------------------------------------------------------------------------


class RecordReader:
    """Answers at once, or lets a thread find out. All of it is for the loop's thread."""

    def __init__(self, database: Database, shelf: Shelf) -> None:
        """`database` is a reader of the loop's own."""
        self._database = database
        self._shelf = shelf
        self.pieces: list[RecordChunk] = []
        self._size = 0
        self._sought: OrderedDict[_Wanted, int] = OrderedDict()
        # What the thread has been asked for (a piece: False, a time: True), or waits to be asked.
        self._asked: set[tuple[bool, _Wanted]] = set()
        # By stream: how often in a row it failed, and until when nothing is said of it.
        self._failures: dict[int, int] = {}
        self._quiet_until: dict[int, float] = {}
        self._jobs: SimpleQueue[tuple[bool, _Wanted] | None] = SimpleQueue()
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
        """`post` has something called on the loop's thread, from any; `later` after some seconds.

        `read` is called there with a stream, when who was told None should ask again.
        """
        self._post = post
        self._later = later
        self._read = read

    def close(self) -> None:
        """End the thread, if it does not hang in a root."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(END_SECONDS)

    def records(self, stream: int, first: int, limit: int) -> list[RecordedMessage] | None:
        """See Store."""
        piece = self._find(stream, first)
        while piece is not None:
            first = max(first, piece.start)
            if piece.records:
                return _little(piece.records, first - piece.start, limit)
            piece = self._find(stream, first)
        connection = self._database.connection
        found = committed_records(connection, stream, first, limit)
        if not found:
            if first > last_committed(connection, stream):
                return []
            # It may have come between the two looks.
            found = committed_records(connection, stream, first, limit)
        if not found:
            self._ask((False, (stream, first)))
            return None
        return found

    def seek(self, stream: int, received: int) -> int | None:
        """See Store."""
        found = self._sought.pop((stream, received), None)
        if found is None:
            self._ask((True, (stream, received)))
        return found

    def _find(self, stream: int, seq: int) -> RecordChunk | None:
        for piece in self.pieces:
            if piece.has(stream, seq):
                # Those at the front are the next to go.
                self.pieces.remove(piece)
                self.pieces.append(piece)
                return piece
        return None

    def _ask(self, job: tuple[bool, _Wanted]) -> None:
        if job in self._asked:
            return
        self._asked.add(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="semel-record", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _answered(self, job: tuple[bool, _Wanted], found: RecordChunk | int | Exception) -> None:
        """The thread has done it, or has failed."""
        stream = job[1][0]
        if isinstance(found, Exception):
            self._failed(job, found)
            return
        self._failures.pop(stream, None)
        if isinstance(found, RecordChunk):
            self._keep(found)
        else:
            self._sought[job[1]] = found
            if len(self._sought) > SOUGHT:
                self._sought.popitem(last=False)
        self._let_ask(job)

    def _let_ask(self, job: tuple[bool, _Wanted]) -> None:
        """Who was told None may ask again."""
        assert self._read is not None
        self._asked.discard(job)
        self._read(job[1][0])

    def _keep(self, piece: RecordChunk) -> None:
        self.pieces.append(piece)
        self._size += piece.size
        # The new one stays, however large: somebody waits for it.
        while len(self.pieces) > 1 and (
            self._size > CACHE_BYTES or len(self.pieces) > CACHE_PIECES
        ):
            self._size -= self.pieces.pop(0).size

    def _failed(self, job: tuple[bool, _Wanted], problem: Exception) -> None:
        assert self._later is not None
        stream = job[1][0]
        failures = self._failures.get(stream, 0)
        self._failures[stream] = min(failures + 1, 16)
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2**failures)
        now = time.monotonic()
        if now >= self._quiet_until.get(stream, now):
            self._quiet_until[stream] = now + QUIET_SECONDS
            trace = None if isinstance(problem, _PROBLEMS) else problem
            LOG.warning(
                "the record cannot be replayed for now, and is tried again: %s",
                str(problem) or type(problem).__name__,
                exc_info=trace,
            )
        self._later(wait, lambda: self._let_ask(job))

    # --- the thread -------------------------------------------------------------------------------

    def _work(self) -> None:
        shelf = self._shelf
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_SECONDS if shelf.is_open else None)
            except Empty:
                shelf.close()
                continue
            if job is None:
                shelf.close()
                return
            self._do(job)

    def _do(self, job: tuple[bool, _Wanted]) -> None:
        assert self._post is not None
        is_time, (stream, wanted) = job
        found: RecordChunk | int | Exception
        try:
            if is_time:
                found = self._shelf.since(stream, wanted)
            else:
                found = self._shelf.read(stream, wanted)
        except Exception as problem:
            # The edge of the thread: whoever waits is told, and what it was is in the log.
            found = problem
        self._post(lambda: self._answered(job, found))

"""The tables, by one connection: writing a batch of commits, and reading back what is there.

Synchronous, and for one thread at a time. What it raises is sqlite3's: `is_lack_of_space` tells
the one problem that passes from all the others.
"""

import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from semel.mqtt.delivery import Delivery
from semel.mqtt.message import Message
from semel.mqtt.packets.connect import Will
from semel.store.commit import CHANGE_BYTES, Commit, RecordedMessage
from semel.store.facts import (
    COMMIT,
    ID,
    MADE,
    NEXT_SESSION,
    begin_epoch,
    get_fact,
    get_number,
    set_fact,
)
from semel.store.mark import MarkFile
from semel.store.migration import migrate
from semel.store.row_checksums import (
    ASSIGN,
    DELIVERY_HIGH,
    KEEP_HIGH,
    KEEP_LOW,
    RELEASE,
    cursor_high,
    row_checksum,
    set_stream,
    stream_high,
    time_high,
)
from semel.store.rows import (
    DELIVERY_COLUMNS,
    PARTICULAR_COLUMNS,
    RECORD_COLUMNS,
    WriteBatch,
    delivery_from,
    held_from,
    properties_from,
    subscription_from,
)
from semel.store.schema import KEYS, PAGE_BYTES, Damaged, Row, content_of, create
from semel.store.settings import DISK, OS
from semel.store.store import Saved, SavedSession, SavedWill

# What each asks of SQLite. NORMAL leaves it to the system when the log reaches the disk.
SYNCHRONOUS: Final = {DISK: "FULL", OS: "NORMAL"}

# Pages of the write-ahead log after which it is copied into the tables: 8 MB. Its file is reused,
# and never cut: a file that grows takes longer to sync.
CHECKPOINT_PAGES: Final = 1_000
CACHE_KIB: Final = 16_384
# The most rows in one statement. Each statement lets the other threads run, and waits for its turn
# again: beside a busy loop it is the number of statements that costs, not that of rows.
ROWS: Final = 256
# Rows of a stream by which the size of the others is judged.
SAMPLE: Final = 1_000
# Sealed rows that are deleted in one transaction.
CHUNK: Final = 2_000

_DELIVERY: Final = """
    SELECT session, number, delivery.checksum, packet_id, released, flags, topic, delivery.payload,
        particular.checksum, size, expires_at, share, particular.body, properties,
        body.checksum, uses, body.payload
    FROM delivery LEFT JOIN particular USING (session, number)
        LEFT JOIN body ON body.id = particular.body
"""
# What waits, and the highest numbers, for each session: one pass, which reads no long payload. The
# first delivery that is not what was written, as far as can be told without one.
_QUEUES: Final = f"""
    SELECT session, sum(packet_id = 0),
        sum(CASE packet_id WHEN 0
            THEN coalesce(size, length(CAST(topic AS BLOB)) + length(payload)) ELSE 0 END),
        min(CASE packet_id WHEN 0 THEN number END),
        min(CASE packet_id WHEN 0 THEN expires_at END), max(number), max(released),
        min(CASE WHEN delivery.checksum >> 32 IS NOT {DELIVERY_HIGH}
            OR (flags >> 3) IS NOT (size IS NOT NULL) THEN number END)
    FROM delivery LEFT JOIN particular USING (session, number) GROUP BY session
"""

_COUNT: Final = f"UPDATE fact SET checksum = ?, value = ? WHERE name = '{COMMIT}'"

# Python asks what each value but a number and a text is to be stored as, and searches long for an
# answer when there is none. These say: as it is.
sqlite3.register_adapter(bytes, bytes)
sqlite3.register_adapter(type(None), cast(Any, {}.get))


@cache
def values(columns: int, rows: int) -> str:
    """Places for so many rows in one statement."""
    row = f"({','.join('?' * columns)})"
    return ",".join([row] * rows)


def is_lack_of_space(problem: sqlite3.Error) -> bool:
    """Whether this passes when there is space on the disk again."""
    return getattr(problem, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def as_sentence(problem: sqlite3.Error) -> str:
    """What SQLite says, with the name of its code for whoever looks it up."""
    return f"{problem} ({getattr(problem, 'sqlite_errorname', 'unknown')})"


# id, name, last_seq, sealed, sealing
_Stream = tuple[int, str, int, int, int]


def wrong(table: str, key: str) -> str:
    """What is said of a row whose checksum is wrong."""
    return f"{table}, {key}: it is not what was written (its checksum is wrong)"


def checked(table: str, row: Row) -> Row:
    """A row of a table without its checksum. Raises Damaged if it is not what was written."""
    content = content_of(table, row)
    if row_checksum(table, content) != row[KEYS[table]]:
        raise Damaged(wrong(table, ", ".join(map(repr, row[: KEYS[table]]))))
    return content


class StreamRow:
    """A stream as the tables have it."""

    def __init__(self, id: int, name: str, last_seq: int, sealed: int, sealing: int) -> None:
        self.id = id
        self.name = name
        self.last_seq = last_seq
        self.sealed = sealed
        self.sealing = sealing


class Database:
    """One connection to the tables."""

    def __init__(self, connection: sqlite3.Connection, chunk: int = CHUNK) -> None:
        """For a connection to a database that has the tables."""
        self.connection = connection
        self.chunk = chunk
        self.last_body: int = self._one("SELECT coalesce(max(id), 0) FROM body")
        # `restore` finds out what it was.
        self.last_release = 0
        self.last_place: int = self._one("SELECT coalesce(max(place), 0) FROM retained")
        # How many commits there are, and the lowest number that no session has had.
        self.last_commit = get_number(connection, COMMIT) or 0
        self.next_session = max(
            get_number(connection, NEXT_SESSION) or 1,
            1 + self._one("SELECT coalesce(max(number), 0) FROM session"),
        )
        # Whoever opens a data folder for writing has one.
        self.mark: MarkFile | None = None
        # Whether there are rows in `particular`: mostly there are none to look for.
        self.has_particulars = bool(self._one("SELECT EXISTS (SELECT * FROM particular)"))

    @classmethod
    def open(cls, path: Path | str, durability: str = DISK) -> "Database":
        """The database in a file, made if it is not there; ":memory:" is one that goes away."""
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
                connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
                connection.execute("PRAGMA journal_mode = WAL")
                create(connection)
                begin_epoch(connection)
            else:
                migrate(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            connection.execute("PRAGMA temp_store = MEMORY")
            return cls(connection)
        except BaseException:
            connection.close()
            raise

    @classmethod
    def reader(cls, path: Path) -> "Database":
        """A second connection to the same tables, which cannot write."""
        uri = f"{path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        return cls(connection)

    def close(self) -> None:
        """No more: what was committed is there."""
        self.connection.close()
        if self.mark is not None:
            self.mark.close(self.last_commit)
            self.mark = None

    def _one(self, question: str, *arguments: object) -> Any:
        return self.connection.execute(question, arguments).fetchone()[0]

    # --- facts ------------------------------------------------------------------------------------

    def fact(self, name: str) -> str | None:
        """Something that the store says of itself, if it does. Raises Damaged."""
        return get_fact(self.connection, name)

    def set_fact(self, name: str, value: str) -> None:
        """Let the store say that of itself."""
        set_fact(self.connection, name, value)

    def identity(self) -> str:
        """The name that no other store has; it gets it when it is asked for the first time."""
        found = self.fact(ID)
        if found is None:
            if self._one("SELECT EXISTS (SELECT 1 FROM session UNION ALL SELECT 1 FROM stream)"):
                raise Damaged("it has lost its id")
            found = self.new_identity()
        return found

    def new_identity(self) -> str:
        """A name that no other store has."""
        made = secrets.token_hex(16)
        self.connection.execute("BEGIN IMMEDIATE")
        self.set_fact(ID, made)
        self.set_fact(MADE, str(int(time.time())))
        begin_epoch(self.connection)
        self.connection.execute("COMMIT")
        return made

    # --- writing ----------------------------------------------------------------------------------

    def batch(self, commits: Sequence[Commit]) -> WriteBatch:
        """The rows of these commits, for one transaction."""
        batch = WriteBatch(self.last_body, self.last_release, self.last_place)
        for commit in commits:
            batch.add(commit)
        batch.close()
        return batch

    def apply(self, commits: Sequence[Commit]) -> None:
        """Make these commits last, all of them or none."""
        self.write(self.batch(commits))

    def write(
        self,
        batch: WriteBatch,
        *,
        begun: Sequence[tuple[int, int]] = (),
        sealed: Sequence[tuple[int, int]] = (),
    ) -> None:
        """One transaction. If it raises, nothing of it has happened, and it may be tried again.

        `begun` and `sealed` are streams and seqs: rows up to them are for the sealer, or in
        segments that are safe, so that the first of them go.
        """
        with self.transaction():
            self._write(batch)
            for stream, through in begun:
                self.begin_sealing(stream, through)
            for stream, through in sealed:
                self.set_sealed(stream, through)
                self.delete_sealed(stream, through)
            if batch.next_session > self.next_session:
                self.set_fact(NEXT_SESSION, str(batch.next_session))
        self.last_body = batch.last_body
        self.last_release = batch.last_release
        self.last_place = batch.last_place
        self.next_session = max(self.next_session, batch.next_session)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is written in here is one commit. If it raises, nothing of it has happened."""
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            number = str(self.last_commit + 1)
            connection.execute(_COUNT, (row_checksum("fact", (COMMIT, number)), number))
            connection.execute("COMMIT")
        except BaseException:
            # SQLite has ended the transaction itself after some errors.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self.last_commit += 1
        if self.mark is not None:
            self.mark.write(self.last_commit)

    def _write(self, batch: WriteBatch) -> None:
        many = self.connection.executemany
        self.end_sessions(batch.ended)
        if batch.sessions:
            many(
                "INSERT INTO session (number, checksum, client_id, expiry) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (number) DO UPDATE SET expiry = excluded.expiry,"
                f" checksum = {KEEP_HIGH} | excluded.checksum",
                batch.sessions,
            )
        if batch.ends:
            many(
                f"UPDATE session SET ends_at = ?2, checksum = {KEEP_LOW} | (?1 << 32)"
                " WHERE number = ?3",
                [(time_high(at), at, number) for at, number in batch.ends],
            )
        if batch.bodies:
            many("INSERT INTO body VALUES (?, ?, ?, ?)", batch.bodies)
        self._flat("INSERT INTO delivery VALUES {}", batch.deliveries, DELIVERY_COLUMNS)
        self._flat("INSERT INTO particular VALUES {}", batch.particulars, PARTICULAR_COLUMNS)
        if batch.particulars:
            self.has_particulars = True
        self._flat("INSERT INTO record VALUES {}", batch.records, RECORD_COLUMNS)
        # How a list of values names its columns.
        self._at_once(
            f"UPDATE delivery SET {ASSIGN} FROM (VALUES {{}})"
            " WHERE session = column2 AND number = column3",
            batch.assigned,
        )
        self._at_once(
            f"UPDATE delivery SET {RELEASE}"
            " FROM (VALUES {}) WHERE session = column2 AND number = column3",
            batch.moved,
        )
        finished = "DELETE FROM {} WHERE session = ? AND number BETWEEN ? AND ?"
        if batch.finished:
            many(finished.format("delivery"), batch.finished)
        if self.has_particulars:
            many(finished.format("particular"), batch.finished)
            moved = [(session, number, number) for _, session, number, _ in batch.moved]
            many(finished.format("particular"), moved)
        if batch.freed:
            many("DELETE FROM inbound WHERE session = ? AND packet_id BETWEEN ? AND ?", batch.freed)
        self._at_once("INSERT OR IGNORE INTO inbound VALUES {}", batch.stored)
        if batch.unsubscribed:
            many("DELETE FROM subscription WHERE session = ? AND filter = ?", batch.unsubscribed)
        if batch.subscribed:
            many(
                "INSERT INTO subscription (session, filter, checksum, options, identifier)"
                " VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
                " SET options = excluded.options, identifier = excluded.identifier,"
                f" checksum = {KEEP_HIGH} | excluded.checksum",
                batch.subscribed,
            )
        if batch.cursors:
            many(
                f"UPDATE subscription SET cursor = ?2, checksum = {KEEP_LOW} | (?1 << 32)"
                " WHERE session = ?3 AND filter = ?4",
                [(cursor_high(each[0]), *each) for each in batch.cursors],
            )
        if batch.willless:
            many("DELETE FROM will WHERE client_id = ?", batch.willless)
        if batch.wills:
            many("INSERT OR REPLACE INTO will VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", batch.wills)
        if batch.not_retained:
            many("DELETE FROM retained WHERE topic = ?", batch.not_retained)
        if batch.retained:
            many(
                "INSERT INTO retained VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (topic) DO UPDATE"
                " SET qos = excluded.qos, expires_at = excluded.expires_at,"
                " properties = excluded.properties, payload = excluded.payload,"
                f" checksum = {KEEP_HIGH} | (excluded.checksum & 4294967295)",
                batch.retained,
            )
        if batch.taken:
            many("DELETE FROM inbox WHERE session = ? AND number = ?", batch.taken)
        if batch.inbox:
            many("INSERT OR REPLACE INTO inbox VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", batch.inbox)
        for name, value in batch.facts:
            self.set_fact(name, value)
        if batch.streams:
            many(f"UPDATE stream SET {set_stream('last_seq')} WHERE id = ?2", batch.streams)

    def _at_once(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """A statement for many rows, with as few steps as there can be."""
        if rows:
            self._flat(statement, [value for row in rows for value in row], len(rows[0]))

    def _flat(self, statement: str, flat: list[object], columns: int) -> None:
        """Likewise, for rows whose values stand one after the other.

        In powers of two, so that SQLite need not prepare a statement for each number of rows.
        """
        at = 0
        left = len(flat) // columns
        rows = ROWS
        while left:
            while rows > left:
                rows //= 2
            end = at + rows * columns
            self.connection.execute(statement.format(values(columns, rows)), flat[at:end])
            at = end
            left -= rows

    def end_sessions(self, ended: Sequence[int]) -> None:
        """Delete sessions with all that is kept for them but their wills. In a transaction."""
        for number in ended:
            for table in ("delivery", "particular", "inbound", "subscription", "inbox"):
                self.connection.execute(f"DELETE FROM {table} WHERE session = ?", (number,))
            self.connection.execute("DELETE FROM session WHERE number = ?", (number,))

    # --- reading ----------------------------------------------------------------------------------

    def _rows(self, table: str, order: str = "") -> Iterator[Row]:
        """All rows of a table, without their checksums. Raises Damaged."""
        for row in self.connection.execute(f"SELECT * FROM {table} {order}"):
            yield checked(table, row)

    def restore(self) -> Saved:
        """What the owner has to know before it starts. Deliveries stay where they are.

        Raises Damaged if anything is not what was written; of a delivery only its payload, and what
        is particular about it, is looked at later.
        """
        saved = Saved()
        for table in ("fact", "stream", "inbound"):
            for _ in self._rows(table):
                pass
        queues = {}
        for session, *queue, fault in self.connection.execute(_QUEUES):
            if fault is not None:
                raise Damaged(wrong("delivery", f"session {session}, number {fault}"))
            queues[session] = queue
        for row in self._rows("session", "ORDER BY number"):
            number, client_id, expiry, ends_at = cast(tuple[int, str, int, float | None], row)
            waiting, size, first, next_expiry, last, release = queues.get(
                number, (0, 0, 0, None, 0, 0)
            )
            self.last_release = max(self.last_release, release)
            # Nobody else asks before it is too late.
            assert isinstance(expiry, int), f"session {number}: expiry is {expiry!r}"
            assert ends_at is None or isinstance(ends_at, float), f"session {number}: {ends_at!r}"
            saved.sessions.append(
                SavedSession(
                    number,
                    client_id,
                    expiry,
                    ends_at,
                    waiting=waiting,
                    waiting_bytes=size,
                    first_waiting=first or 0,
                    next_expiry=next_expiry,
                    last_delivery=last,
                )
            )
        saved.next_session = self.next_session
        for row in self._rows("subscription"):
            session, topic_filter, options, identifier, cursor = cast(
                tuple[int, str, int, int, int | None], row
            )
            subscription = subscription_from(topic_filter, options)
            saved.subscriptions.append((session, subscription, identifier))
            if cursor is not None:
                saved.cursors.append((session, topic_filter, cursor))
        for row in self._rows("retained", "ORDER BY place"):
            _, topic, qos, expires_at, properties, payload = cast(
                tuple[int, str, int, float | None, bytes | None, bytes], row
            )
            saved.retained.append(
                Message(
                    topic,
                    payload,
                    qos=qos,
                    retain=True,
                    properties=properties_from(properties),
                    expires_at=expires_at,
                )
            )
        for row in self._rows("will"):
            client_id, user_name, due_at, qos, retain, topic, properties, payload = cast(
                tuple[str, str | None, float | None, int, int, str, bytes | None, bytes], row
            )
            will = Will(
                topic,
                payload,
                qos=qos,
                retain=bool(retain),
                properties=properties_from(properties),
            )
            saved.wills.append(SavedWill(client_id, user_name, will, due_at))
        return saved

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        """What is in flight for a session, by number, and its inbound identifiers."""
        rows = self.connection.execute(
            f"{_DELIVERY} WHERE session = ? AND packet_id > 0 ORDER BY number", (session,)
        )
        deliveries = [delivery_from(row) for row in rows]
        stored = self.connection.execute("SELECT * FROM inbound WHERE session = ?", (session,))
        identifiers = [checked("inbound", row)[1] for row in stored]
        return deliveries, cast(list[int], identifiers)

    def inbox(self, session: int) -> list[tuple[int, str, RecordedMessage]]:
        """What a client's program has not acknowledged, in its order: number, key, message."""
        rows = self.connection.execute(
            "SELECT * FROM inbox WHERE session = ? ORDER BY number", (session,)
        )
        return [held_from(checked("inbox", row)[1:]) for row in rows]

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        """Deliveries of a session from number `first` on: none of them has been sent."""
        rows = self.connection.execute(
            f"{_DELIVERY} WHERE session = ? AND number >= ? ORDER BY number LIMIT ?",
            (session, first, limit),
        )
        return [delivery_from(row) for row in rows]

    def expired(self, session: int, first: int, now: float) -> list[tuple[int, int]]:
        """Numbers and sizes of deliveries from `first` on that have expired."""
        rows = self.connection.execute(
            "SELECT * FROM particular WHERE session = ? AND number >= ? AND expires_at <= ?",
            (session, first, now),
        )
        return [cast(tuple[int, int], checked("particular", row)[1:3]) for row in rows]

    def next_expiry(self, session: int, first: int, now: float) -> float | None:
        """When the first of the others expires."""
        found: float | None = self._one(
            "SELECT min(expires_at) FROM particular"
            " WHERE session = ? AND number >= ? AND expires_at > ?",
            session,
            first,
            now,
        )
        return found

    # --- streams ----------------------------------------------------------------------------------

    def streams(self) -> list[StreamRow]:
        """All streams that ever were."""
        return [StreamRow(*cast(_Stream, row)) for row in self._rows("stream", "ORDER BY id")]

    def stream(self, name: str) -> StreamRow:
        """The stream of that name, made if there is none."""
        for each in self.streams():
            if each.name == name:
                return each
        number = 1 + self._one("SELECT coalesce(max(id), 0) FROM stream")
        content = (number, name, 0, 0, 0)
        self.connection.execute(
            "INSERT INTO stream VALUES (?, ?, ?, ?, ?, ?)",
            (number, row_checksum("stream", content), *content[1:]),
        )
        return StreamRow(*content)

    def unsealed_size(self, row: StreamRow) -> int:
        """About how many bytes the rows of a stream take that are not sealed: as many as the first
        of them do. There may be millions, and a start does not read them."""
        average: float = self._one(
            "SELECT coalesce(avg(length(topic) + length(payload)), 0) FROM"
            " (SELECT topic, payload FROM record WHERE stream = ? ORDER BY seq LIMIT ?)",
            row.id,
            SAMPLE,
        )
        return int((CHANGE_BYTES + average) * (row.last_seq - row.sealed))

    def begin_sealing(self, stream: int, through: int) -> None:
        """The rows up to this seq are for the sealer: a later attempt takes the same."""
        self.connection.execute(
            f"UPDATE stream SET {set_stream('sealing')} WHERE id = ?2", (through, stream)
        )

    def end_sealing(self, stream: int, through: int) -> None:
        """The rows up to this seq are in a segment that is safe: they go, in chunks.

        Readers of the record take a row that is in both places once, by its seq. A crash in
        between leaves rows that `streams` tells to be sealed, and the next call deletes them.
        """
        self.set_sealed(stream, through)
        while self.delete_sealed(stream, through):
            pass

    def set_sealed(self, stream: int, through: int) -> None:
        """The rows up to this seq are in a segment that is safe."""
        self.connection.execute(
            f"UPDATE stream SET {set_stream('sealed')} WHERE id = ?2", (through, stream)
        )

    def go_on_after(self, stream: int, seq: int) -> None:
        """Let a stream go on after this seq: all rows up to it are in its record."""
        self.connection.execute(
            f"UPDATE stream SET last_seq = ?1, sealed = ?1, sealing = ?1,"
            f" checksum = {KEEP_LOW} | (?2 << 32) WHERE id = ?3",
            (seq, stream_high(seq, seq, seq), stream),
        )

    def has_sealed(self, stream: int, through: int) -> bool:
        """Whether rows up to this seq are still in the table."""
        found = self._one(
            "SELECT EXISTS (SELECT * FROM record WHERE stream = ? AND seq <= ?)", stream, through
        )
        return bool(found)

    def delete_sealed(self, stream: int, through: int) -> bool:
        """Delete the first rows of a stream, at most so many as one transaction should. Whether
        there may be more."""
        first: int | None = self._one("SELECT min(seq) FROM record WHERE stream = ?", stream)
        if first is None or first > through:
            return False
        last = min(first + self.chunk - 1, through)
        self.connection.execute(
            "DELETE FROM record WHERE stream = ? AND seq BETWEEN ? AND ?", (stream, first, last)
        )
        return last < through

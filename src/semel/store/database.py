"""One connection to the tables: writes batches of commits, and reads rows.

Synchronous, and for one thread at a time. It raises errors of sqlite3; only those for which
`is_disk_full` is True are temporary.
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
from semel.mqtt.packets.subscribe import subscription_from_options
from semel.store.commit import CHANGE_BYTES, Commit, RecordedMessage
from semel.store.mark import MarkFile
from semel.store.metadata import (
    COMMIT,
    ID,
    MADE,
    NEXT_SESSION,
    begin_epoch,
    get_metadata,
    get_number,
    set_metadata,
)
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
from semel.store.row_flags import HAS_EXTRA
from semel.store.rows import (
    SELECT_DELIVERIES,
    checksum_error,
    delivery_from,
    inbox_message,
    properties_from,
)
from semel.store.schema import PAGE_BYTES, TABLES, Damaged, Row, content_of, create
from semel.store.settings import DISK, OS
from semel.store.store import RestoredSession, RestoredState, RestoredWill
from semel.store.write_batch import (
    DELIVERY_COLUMNS,
    EXTRA_COLUMNS,
    RECORD_COLUMNS,
    WriteBatch,
)

# PRAGMA synchronous. With NORMAL the operating system decides when the log reaches the disk.
SYNCHRONOUS: Final = {DISK: "FULL", OS: "NORMAL"}

# The write-ahead log is checkpointed after this many pages: 8 MB. Its file is reused and not
# truncated, because a growing file takes longer to sync.
CHECKPOINT_PAGES: Final = 1_000
CACHE_KIB: Final = 16_384
# Rows per statement, at most. Each statement releases the interpreter lock and must acquire it
# again: beside a busy loop, statements are expensive and rows are not.
STATEMENT_ROWS: Final = 256
# How many rows of a stream are sampled to estimate the size of all.
SAMPLE_ROWS: Final = 1_000
# How many sealed rows are deleted in one transaction.
CHUNK: Final = 2_000

# Backlog and highest numbers of each session, in one pass that does not read long payloads. The
# last column is the first damaged delivery, as far as damage shows without its payload.
_QUEUES: Final = f"""
    SELECT session_id, sum(packet_id = 0),
        sum(CASE packet_id WHEN 0
            THEN coalesce(size, length(CAST(topic AS BLOB)) + length(payload)) ELSE 0 END),
        min(CASE packet_id WHEN 0 THEN number END),
        min(CASE packet_id WHEN 0 THEN expires_at END),
        max(packet_id = 0 AND share IS NOT NULL), max(number), max(release_number),
        min(CASE WHEN delivery.checksum >> 32 IS NOT {DELIVERY_HIGH}
            OR (flags & {HAS_EXTRA} > 0) IS NOT (size IS NOT NULL) THEN number END)
    FROM delivery LEFT JOIN delivery_extra USING (session_id, number) GROUP BY session_id
"""

_COUNT_COMMIT: Final = f"UPDATE metadata SET checksum = ?, value = ? WHERE name = '{COMMIT}'"

# Tables whose rows belong to a session.
TABLES_OF_SESSIONS: Final = ("subscription", "inbound", "delivery", "delivery_extra", "inbox")

# Without an adapter, sqlite3 searches for one for each value that is not a number or a text, which
# is slow. These adapters return the value itself.
sqlite3.register_adapter(bytes, bytes)
sqlite3.register_adapter(type(None), cast(Any, {}.get))


@cache
def placeholders(columns: int, rows: int) -> str:
    """The placeholders for this many rows in one statement."""
    row = f"({','.join('?' * columns)})"
    return ",".join([row] * rows)


@cache
def insert_into(table: str, verb: str = "INSERT") -> str:
    """A statement that inserts one row of a table, with all of its columns."""
    return f"{verb} INTO {table} VALUES {placeholders(len(TABLES[table].columns), 1)}"


def is_disk_full(problem: sqlite3.Error) -> bool:
    """Whether the error is temporary, because the disk is full."""
    return getattr(problem, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def as_sentence(problem: sqlite3.Error) -> str:
    """SQLite's message, with the name of its error code."""
    return f"{problem} ({getattr(problem, 'sqlite_errorname', 'unknown')})"


# id, name, last_seq, sealed_seq, sealing_seq
_Stream = tuple[int, str, int, int, int]


def checked(table: str, row: Row) -> Row:
    """A row of a table without its checksum. Raises Damaged if the checksum is wrong."""
    content = content_of(table, row)
    key_size = TABLES[table].key_size
    if row_checksum(table, content) != row[key_size]:
        raise Damaged(checksum_error(table, ", ".join(map(repr, row[:key_size]))))
    return content


class StreamRow:
    """A row of table `stream`."""

    def __init__(
        self, id: int, name: str, last_seq: int, sealed_seq: int, sealing_seq: int
    ) -> None:
        self.id = id
        self.name = name
        self.last_seq = last_seq
        self.sealed_seq = sealed_seq
        self.sealing_seq = sealing_seq


class Database:
    """One connection to the tables."""

    def __init__(self, connection: sqlite3.Connection, chunk: int = CHUNK) -> None:
        """`connection` must be to a database that has the tables."""
        self.connection = connection
        self.chunk = chunk
        self.last_shared_payload: int = self._one("SELECT coalesce(max(id), 0) FROM shared_payload")
        # Set by `restore`.
        self.last_release = 0
        self.last_position: int = self._one("SELECT coalesce(max(position), 0) FROM retained")
        # The number of commits, and the lowest id that no session has had.
        self.last_commit = get_number(connection, COMMIT) or 0
        self.next_session = max(
            get_number(connection, NEXT_SESSION) or 1,
            1 + self._one("SELECT coalesce(max(id), 0) FROM session"),
        )
        # Set by `StoreFolder.open`, if the database is opened for writing.
        self.mark: MarkFile | None = None
        # Whether there may be rows in `delivery_extra`. Usually there are none to delete.
        self.has_extras = bool(self._one("SELECT EXISTS (SELECT * FROM delivery_extra)"))

    @classmethod
    def open(cls, path: Path | str, durability: str = DISK) -> "Database":
        """The database in a file, created if it is missing; ":memory:" is a temporary one."""
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
        """A read-only connection to the same tables."""
        uri = f"{path.absolute().as_uri()}?mode=ro"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        return cls(connection)

    def close(self) -> None:
        """Close the connection, and mark the store as closed."""
        self.connection.close()
        if self.mark is not None:
            self.mark.close(self.last_commit)
            self.mark = None

    def _one(self, question: str, *arguments: object) -> Any:
        return self.connection.execute(question, arguments).fetchone()[0]

    # --- metadata ---------------------------------------------------------------------------------

    def get_metadata(self, name: str) -> str | None:
        """The value for this name, or None. Raises Damaged."""
        return get_metadata(self.connection, name)

    def set_metadata(self, name: str, value: str) -> None:
        """Set the value of a name."""
        set_metadata(self.connection, name, value)

    def unique_id(self) -> str:
        """The unique id of the store, assigned by the first call. Raises Damaged if it is lost."""
        found = self.get_metadata(ID)
        if found is None:
            if self._one("SELECT EXISTS (SELECT 1 FROM session UNION ALL SELECT 1 FROM stream)"):
                raise Damaged("it has lost its id")
            found = self.new_unique_id()
        return found

    def new_unique_id(self) -> str:
        """Assign a new unique id. Returns it."""
        unique_id = secrets.token_hex(16)
        self.connection.execute("BEGIN IMMEDIATE")
        self.set_metadata(ID, unique_id)
        self.set_metadata(MADE, str(int(time.time())))
        begin_epoch(self.connection)
        self.connection.execute("COMMIT")
        return unique_id

    # --- writing ----------------------------------------------------------------------------------

    def batch(self, commits: Sequence[Commit]) -> WriteBatch:
        """The rows of these commits, for one transaction."""
        batch = WriteBatch(self.last_shared_payload, self.last_release, self.last_position)
        for commit in commits:
            batch.add(commit)
        batch.close()
        return batch

    def apply(self, commits: Sequence[Commit]) -> None:
        """Write these commits atomically."""
        self.write(self.batch(commits))

    def write(
        self,
        batch: WriteBatch,
        *,
        begun: Sequence[tuple[int, int]] = (),
        sealed: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Write one transaction. If it raises, nothing was written, and it may be retried.

        `begun` and `sealed` are pairs of stream and seq. Rows up to a seq in `begun` go to the
        sealer. Rows up to a seq in `sealed` are in durable segments; one chunk of them is deleted.
        """
        with self.transaction():
            self._write(batch)
            for stream, through in begun:
                self.begin_sealing(stream, through)
            for stream, through in sealed:
                self.set_sealed(stream, through)
                self.delete_sealed(stream, through)
            if batch.next_session > self.next_session:
                self.set_metadata(NEXT_SESSION, str(batch.next_session))
        self.last_shared_payload = batch.last_shared_payload
        self.last_release = batch.last_release
        self.last_position = batch.last_position
        self.next_session = max(self.next_session, batch.next_session)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A context whose writes are one commit. If it raises, nothing was written."""
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            number = str(self.last_commit + 1)
            connection.execute(_COUNT_COMMIT, (row_checksum("metadata", (COMMIT, number)), number))
            connection.execute("COMMIT")
        except BaseException:
            # After some errors SQLite has already rolled back.
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
                "INSERT INTO session (id, checksum, client_id, expiry_interval, identity)"
                " VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE SET expiry_interval = excluded.expiry_interval,"
                " identity = excluded.identity,"
                f" checksum = {KEEP_HIGH} | excluded.checksum",
                batch.sessions,
            )
        if batch.ends:
            many(
                f"UPDATE session SET ends_at = ?2, checksum = {KEEP_LOW} | (?1 << 32)"
                " WHERE id = ?3",
                [(time_high(at), at, session) for at, session in batch.ends],
            )
        if batch.shared_payloads:
            many(insert_into("shared_payload"), batch.shared_payloads)
        self._write_flat("INSERT INTO delivery VALUES {}", batch.deliveries, DELIVERY_COLUMNS)
        self._write_flat("INSERT INTO delivery_extra VALUES {}", batch.extras, EXTRA_COLUMNS)
        if batch.extras:
            self.has_extras = True
        self._write_flat("INSERT INTO record VALUES {}", batch.records, RECORD_COLUMNS)
        self._write_deliveries(batch)
        if batch.freed:
            many(
                "DELETE FROM inbound WHERE session_id = ? AND packet_id BETWEEN ? AND ?",
                batch.freed,
            )
        self._write_rows("INSERT OR IGNORE INTO inbound VALUES {}", batch.stored)
        self._write_subscriptions(batch)
        self._write_messages(batch)
        for name, value in batch.metadata:
            self.set_metadata(name, value)
        if batch.streams:
            many(f"UPDATE stream SET {set_stream('last_seq')} WHERE id = ?2", batch.streams)

    def _write_deliveries(self, batch: WriteBatch) -> None:
        """Update and delete deliveries. SQLite names the columns of VALUES `columnN`."""
        self._write_rows(
            f"UPDATE delivery SET {ASSIGN} FROM (VALUES {{}})"
            " WHERE session_id = column2 AND number = column3",
            batch.assigned,
        )
        self._write_rows(
            f"UPDATE delivery SET {RELEASE} FROM (VALUES {{}})"
            " WHERE session_id = column2 AND number = column3",
            batch.released,
        )
        many = self.connection.executemany
        delete = "DELETE FROM {} WHERE session_id = ? AND number BETWEEN ? AND ?"
        if batch.finished:
            many(delete.format("delivery"), batch.finished)
        if self.has_extras:
            many(delete.format("delivery_extra"), batch.finished)
            released = [(session, number, number) for _, session, number, _ in batch.released]
            many(delete.format("delivery_extra"), released)

    def _write_subscriptions(self, batch: WriteBatch) -> None:
        many = self.connection.executemany
        if batch.unsubscribed:
            many(
                "DELETE FROM subscription WHERE session_id = ? AND topic_filter = ?",
                batch.unsubscribed,
            )
        if batch.subscribed:
            many(
                "INSERT INTO subscription (session_id, topic_filter, checksum, options, identifier)"
                " VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
                " SET options = excluded.options, identifier = excluded.identifier,"
                f" checksum = {KEEP_HIGH} | excluded.checksum",
                batch.subscribed,
            )
        if batch.cursors:
            many(
                f"UPDATE subscription SET cursor = ?2, checksum = {KEEP_LOW} | (?1 << 32)"
                " WHERE session_id = ?3 AND topic_filter = ?4",
                [(cursor_high(each[0]), *each) for each in batch.cursors],
            )

    def _write_messages(self, batch: WriteBatch) -> None:
        """Write wills, retained messages, and the inbox of a client."""
        many = self.connection.executemany
        if batch.wills_to_delete:
            many("DELETE FROM will WHERE client_id = ?", batch.wills_to_delete)
        if batch.wills:
            many(insert_into("will", "INSERT OR REPLACE"), batch.wills)
        if batch.retained_to_delete:
            many("DELETE FROM retained WHERE topic = ?", batch.retained_to_delete)
        if batch.retained:
            # A topic that already has a message keeps its position.
            many(
                f"{insert_into('retained')} ON CONFLICT (topic) DO UPDATE"
                " SET qos = excluded.qos, expires_at = excluded.expires_at,"
                " properties = excluded.properties, payload = excluded.payload,"
                f" checksum = {KEEP_HIGH} | (excluded.checksum & 4294967295)",
                batch.retained,
            )
        if batch.acknowledged:
            many("DELETE FROM inbox WHERE session_id = ? AND number = ?", batch.acknowledged)
        if batch.inbox:
            many(insert_into("inbox", "INSERT OR REPLACE"), batch.inbox)

    def _write_rows(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Run a statement for many rows, with as few calls as possible."""
        if rows:
            self._write_flat(statement, [value for row in rows for value in row], len(rows[0]))

    def _write_flat(self, statement: str, flat: list[object], columns: int) -> None:
        """Run a statement for rows whose values are in one flat list.

        Each statement has a power of two rows, so that few different statements are prepared.
        """
        at = 0
        left = len(flat) // columns
        rows = STATEMENT_ROWS
        while left:
            while rows > left:
                rows //= 2
            end = at + rows * columns
            self.connection.execute(statement.format(placeholders(columns, rows)), flat[at:end])
            at = end
            left -= rows

    def end_sessions(self, ended: Sequence[int]) -> None:
        """Delete sessions and all their rows, except wills. Call it in a transaction."""
        for session in ended:
            for table in TABLES_OF_SESSIONS:
                self.connection.execute(f"DELETE FROM {table} WHERE session_id = ?", (session,))
            self.connection.execute("DELETE FROM session WHERE id = ?", (session,))

    # --- reading ----------------------------------------------------------------------------------

    def _rows(self, table: str, order: str = "") -> Iterator[Row]:
        """All rows of a table, without their checksums. Raises Damaged."""
        for row in self.connection.execute(f"SELECT * FROM {table} {order}"):
            yield checked(table, row)

    def restore(self) -> RestoredState:
        """The state that the owner needs at its start. Deliveries stay on disk.

        Raises Damaged if a row has a wrong checksum. Payloads and extra columns of deliveries are
        checked later, when they are read.
        """
        state = RestoredState()
        for table in ("metadata", "stream", "inbound"):
            for _ in self._rows(table):
                pass
        self._restore_sessions(state)
        self._restore_subscriptions(state)
        self._restore_messages(state)
        return state

    def _restore_sessions(self, state: RestoredState) -> None:
        queues = {}
        for session, *queue, fault in self.connection.execute(_QUEUES):
            if fault is not None:
                raise Damaged(checksum_error("delivery", f"session {session}, number {fault}"))
            queues[session] = queue
        for row in self._rows("session", "ORDER BY id"):
            session, client_id, expiry_interval, ends_at, identity = cast(
                tuple[int, str, int, float | None, str], row
            )
            waiting, size, first, next_expiry, has_shared, last, release = queues.get(
                session, (0, 0, 0, None, 0, 0, 0)
            )
            self.last_release = max(self.last_release, release)
            # The checksum does not cover the types, and they are not checked later.
            assert isinstance(expiry_interval, int), f"session {session}: {expiry_interval!r}"
            assert ends_at is None or isinstance(ends_at, float), f"session {session}: {ends_at!r}"
            state.sessions.append(
                RestoredSession(
                    session,
                    client_id,
                    expiry_interval,
                    ends_at,
                    identity=identity,
                    waiting=waiting,
                    waiting_bytes=size,
                    first_waiting=first or 0,
                    next_expiry=next_expiry,
                    has_shared=bool(has_shared),
                    last_delivery=last,
                )
            )
        state.next_session = self.next_session

    def _restore_subscriptions(self, state: RestoredState) -> None:
        for row in self._rows("subscription"):
            session, topic_filter, options, identifier, cursor = cast(
                tuple[int, str, int, int, int | None], row
            )
            subscription = subscription_from_options(topic_filter, options)
            state.subscriptions.append((session, subscription, identifier))
            if cursor is not None:
                state.cursors.append((session, topic_filter, cursor))

    def _restore_messages(self, state: RestoredState) -> None:
        for row in self._rows("retained", "ORDER BY position"):
            _, topic, qos, expires_at, properties, payload = cast(
                tuple[int, str, int, float | None, bytes | None, bytes], row
            )
            state.retained.append(
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
            client_id, identity, due_at, qos, retain, topic, properties, payload = cast(
                tuple[str, str, float | None, int, int, str, bytes | None, bytes], row
            )
            will = Will(
                topic,
                payload,
                qos=qos,
                retain=bool(retain),
                properties=properties_from(properties),
            )
            state.wills.append(RestoredWill(client_id, identity, will, due_at))

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        """The deliveries in flight of a session, ordered by number, and its inbound identifiers."""
        rows = self.connection.execute(
            f"{SELECT_DELIVERIES} WHERE session_id = ? AND packet_id > 0 ORDER BY number",
            (session,),
        )
        deliveries = [delivery_from(row) for row in rows]
        stored = self.connection.execute("SELECT * FROM inbound WHERE session_id = ?", (session,))
        identifiers = [checked("inbound", row)[1] for row in stored]
        return deliveries, cast(list[int], identifiers)

    def inbox(self, session: int) -> list[tuple[int, str, RecordedMessage]]:
        """Messages that a client's program has not acknowledged, in order: number, key, message."""
        rows = self.connection.execute(
            "SELECT * FROM inbox WHERE session_id = ? ORDER BY number", (session,)
        )
        return [inbox_message(checked("inbox", row)) for row in rows]

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        """At most `limit` deliveries of a session's backlog, from number `first` on."""
        rows = self.connection.execute(
            f"{SELECT_DELIVERIES} WHERE session_id = ? AND number >= ? ORDER BY number LIMIT ?",
            (session, first, limit),
        )
        return [delivery_from(row) for row in rows]

    def expired(self, session: int, first: int, now: float) -> list[tuple[int, int]]:
        """Numbers and sizes of the deliveries from number `first` on that have expired."""
        rows = self.connection.execute(
            "SELECT * FROM delivery_extra WHERE session_id = ? AND number >= ? AND expires_at <= ?",
            (session, first, now),
        )
        return [cast(tuple[int, int], checked("delivery_extra", row)[1:3]) for row in rows]

    def next_expiry(self, session: int, first: int, now: float) -> float | None:
        """When the next of these deliveries expires after `now`; None: none does."""
        found: float | None = self._one(
            "SELECT min(expires_at) FROM delivery_extra"
            " WHERE session_id = ? AND number >= ? AND expires_at > ?",
            session,
            first,
            now,
        )
        return found

    # --- streams ----------------------------------------------------------------------------------

    def streams(self) -> list[StreamRow]:
        """All streams, including those that are no longer configured."""
        return [StreamRow(*cast(_Stream, row)) for row in self._rows("stream", "ORDER BY id")]

    def stream(self, name: str) -> StreamRow:
        """The stream with this name, created if it is missing."""
        for each in self.streams():
            if each.name == name:
                return each
        number = 1 + self._one("SELECT coalesce(max(id), 0) FROM stream")
        content = (number, name, 0, 0, 0)
        self.connection.execute(
            insert_into("stream"),
            (number, row_checksum("stream", content), *content[1:]),
        )
        return StreamRow(*content)

    def unsealed_size(self, row: StreamRow) -> int:
        """The approximate size of a stream's unsealed rows. It is estimated from the first ones,
        because there may be millions."""
        average: float = self._one(
            "SELECT coalesce(avg(length(topic) + length(payload)), 0) FROM"
            " (SELECT topic, payload FROM record WHERE stream_id = ? ORDER BY seq LIMIT ?)",
            row.id,
            SAMPLE_ROWS,
        )
        return int((CHANGE_BYTES + average) * (row.last_seq - row.sealed_seq))

    def begin_sealing(self, stream: int, through: int) -> None:
        """Record that the rows up to this seq go to the sealer: a retry must use the same range."""
        self.connection.execute(
            f"UPDATE stream SET {set_stream('sealing_seq')} WHERE id = ?2", (through, stream)
        )

    def end_sealing(self, stream: int, through: int) -> None:
        """Delete the rows up to this seq, which are in durable segments, in chunks.

        Meanwhile readers find some rows in both places, and use each seq once. A crash leaves rows
        that are recorded as sealed, and the next call deletes them.
        """
        self.set_sealed(stream, through)
        while self.delete_sealed(stream, through):
            pass

    def set_sealed(self, stream: int, through: int) -> None:
        """Record that the rows up to this seq are in durable segments."""
        self.connection.execute(
            f"UPDATE stream SET {set_stream('sealed_seq')} WHERE id = ?2", (through, stream)
        )

    def continue_after(self, stream: int, seq: int) -> None:
        """Continue a stream after this seq. All rows up to it must be in segments."""
        self.connection.execute(
            f"UPDATE stream SET last_seq = ?1, sealed_seq = ?1, sealing_seq = ?1,"
            f" checksum = {KEEP_LOW} | (?2 << 32) WHERE id = ?3",
            (seq, stream_high(seq, seq, seq), stream),
        )

    def has_sealed(self, stream: int, through: int) -> bool:
        """Whether rows up to this seq are still in the table."""
        found = self._one(
            "SELECT EXISTS (SELECT * FROM record WHERE stream_id = ? AND seq <= ?)", stream, through
        )
        return bool(found)

    def delete_sealed(self, stream: int, through: int) -> bool:
        """Delete one chunk of the rows up to this seq. Returns whether there may be more."""
        first: int | None = self._one("SELECT min(seq) FROM record WHERE stream_id = ?", stream)
        if first is None or first > through:
            return False
        last = min(first + self.chunk - 1, through)
        self.connection.execute(
            "DELETE FROM record WHERE stream_id = ? AND seq BETWEEN ? AND ?", (stream, first, last)
        )
        return last < through

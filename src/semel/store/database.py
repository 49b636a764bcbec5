"""The tables, by one connection: writing a batch of commits, and reading back what is there.

Synchronous, and for one thread at a time. What it raises is sqlite3's: `is_lack_of_space` tells
the one problem that passes from all the others.
"""

import secrets
import sqlite3
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from semel.mqtt.delivery import Delivery
from semel.mqtt.message import Message
from semel.mqtt.packets.connect import Will
from semel.mqtt.packets.subscribe import Subscription
from semel.store.commit import CHANGE_BYTES, Commit, Record
from semel.store.rows import (
    DELIVERY_COLUMNS,
    PARTICULAR_COLUMNS,
    RECORD_COLUMNS,
    Batch,
    delivery_from,
    held_from,
    properties_from,
)
from semel.store.schema import Damaged, create, migrate
from semel.store.settings import DISK, OS
from semel.store.store import Saved, SavedSession, SavedWill

# What each asks of SQLite. NORMAL leaves it to the system when the log reaches the disk.
SYNCHRONOUS: Final = {DISK: "FULL", OS: "NORMAL"}

PAGE_BYTES: Final = 8_192
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
    SELECT number, packet_id, released, flags, topic, expires_at, share, properties,
        coalesce(delivery.payload, body.payload)
    FROM delivery LEFT JOIN particular USING (session, number)
        LEFT JOIN body ON body.id = particular.body
"""
# What waits, and the highest numbers, for each session: one pass, which reads no long payload.
_QUEUES: Final = """
    SELECT session, sum(packet_id = 0),
        sum(CASE packet_id WHEN 0
            THEN coalesce(size, length(CAST(topic AS BLOB)) + length(payload)) ELSE 0 END),
        min(CASE packet_id WHEN 0 THEN number END),
        min(CASE packet_id WHEN 0 THEN expires_at END), max(number), max(released)
    FROM delivery LEFT JOIN particular USING (session, number) GROUP BY session
"""

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

    def _one(self, question: str, *arguments: object) -> Any:
        return self.connection.execute(question, arguments).fetchone()[0]

    # --- facts ------------------------------------------------------------------------------------

    def fact(self, name: str) -> str | None:
        """Something that the store says of itself, if it does."""
        row = self.connection.execute("SELECT value FROM fact WHERE name = ?", (name,)).fetchone()
        return None if row is None else row[0]

    def set_fact(self, name: str, value: str) -> None:
        """Let the store say that of itself."""
        self.connection.execute(
            "INSERT INTO fact VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def identity(self) -> str:
        """The name that no other store has; it gets it when it is asked for the first time."""
        found = self.fact("id")
        if found is None:
            if self._one("SELECT EXISTS (SELECT 1 FROM session UNION ALL SELECT 1 FROM stream)"):
                raise Damaged("it has lost its id")
            found = self.new_identity()
        return found

    def new_identity(self) -> str:
        """A name that no other store has."""
        made = secrets.token_hex(16)
        self.connection.execute("BEGIN IMMEDIATE")
        self.set_fact("id", made)
        self.set_fact("made", str(int(time.time())))
        self.connection.execute("COMMIT")
        return made

    # --- writing ----------------------------------------------------------------------------------

    def batch(self, commits: Sequence[Commit]) -> Batch:
        """The rows of these commits, for one transaction."""
        batch = Batch(self.last_body, self.last_release)
        for commit in commits:
            batch.add(commit)
        batch.close()
        return batch

    def apply(self, commits: Sequence[Commit]) -> None:
        """Make these commits last, all of them or none."""
        self.write(self.batch(commits))

    def write(
        self,
        batch: Batch,
        *,
        begun: Sequence[tuple[int, int]] = (),
        sealed: Sequence[tuple[int, int]] = (),
    ) -> None:
        """One transaction. If it raises, nothing of it has happened, and it may be tried again.

        `begun` and `sealed` are streams and seqs: rows up to them are for the sealer, or in
        segments that are safe, so that the first of them go.
        """
        connection = self.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._write(batch)
            for stream, through in begun:
                self.begin_sealing(stream, through)
            for stream, through in sealed:
                self.set_sealed(stream, through)
                self.delete_sealed(stream, through)
            connection.execute("COMMIT")
        except BaseException:
            # SQLite has ended the transaction itself after some errors.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self.last_body = batch.last_body
        self.last_release = batch.last_release

    def _write(self, batch: Batch) -> None:
        many = self.connection.executemany
        self._end_sessions(batch.ended)
        if batch.sessions:
            many(
                "INSERT INTO session (number, client_id, expiry) VALUES (?, ?, ?)"
                " ON CONFLICT (number) DO UPDATE SET expiry = excluded.expiry",
                batch.sessions,
            )
        if batch.ends:
            many("UPDATE session SET ends_at = ? WHERE number = ?", batch.ends)
        if batch.bodies:
            many("INSERT INTO body VALUES (?, ?, ?)", batch.bodies)
        self._flat("INSERT INTO delivery VALUES {}", batch.deliveries, DELIVERY_COLUMNS)
        self._flat("INSERT INTO particular VALUES {}", batch.particulars, PARTICULAR_COLUMNS)
        if batch.particulars:
            self.has_particulars = True
        self._flat("INSERT INTO record VALUES {}", batch.records, RECORD_COLUMNS)
        # How a list of values names its columns.
        self._at_once(
            "UPDATE delivery SET packet_id = column1 FROM (VALUES {})"
            " WHERE session = column2 AND number = column3",
            batch.assigned,
        )
        self._at_once(
            "UPDATE delivery SET released = column1, topic = NULL, payload = NULL"
            " FROM (VALUES {}) WHERE session = column2 AND number = column3",
            batch.moved,
        )
        finished = "DELETE FROM {} WHERE session = ? AND number BETWEEN ? AND ?"
        if batch.finished:
            many(finished.format("delivery"), batch.finished)
        if self.has_particulars:
            many(finished.format("particular"), batch.finished)
            moved = [(session, number, number) for _, session, number in batch.moved]
            many(finished.format("particular"), moved)
        if batch.freed:
            many("DELETE FROM inbound WHERE session = ? AND packet_id BETWEEN ? AND ?", batch.freed)
        self._at_once("INSERT OR IGNORE INTO inbound VALUES {}", batch.stored)
        if batch.unsubscribed:
            many("DELETE FROM subscription WHERE session = ? AND filter = ?", batch.unsubscribed)
        if batch.subscribed:
            many(
                "INSERT INTO subscription (session, filter, options, identifier)"
                " VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE"
                " SET options = excluded.options, identifier = excluded.identifier",
                batch.subscribed,
            )
        if batch.cursors:
            many(
                "UPDATE subscription SET cursor = ? WHERE session = ? AND filter = ?",
                batch.cursors,
            )
        if batch.willless:
            many("DELETE FROM will WHERE client_id = ?", batch.willless)
        if batch.wills:
            many("INSERT OR REPLACE INTO will VALUES (?, ?, ?, ?, ?, ?, ?, ?)", batch.wills)
        if batch.not_retained:
            many("DELETE FROM retained WHERE topic = ?", batch.not_retained)
        if batch.retained:
            many(
                "INSERT INTO retained (topic, qos, expires_at, properties, payload)"
                " VALUES (?, ?, ?, ?, ?) ON CONFLICT (topic) DO UPDATE SET qos = excluded.qos,"
                " expires_at = excluded.expires_at, properties = excluded.properties,"
                " payload = excluded.payload",
                batch.retained,
            )
        if batch.taken:
            many("DELETE FROM inbox WHERE session = ? AND number = ?", batch.taken)
        if batch.inbox:
            many("INSERT OR REPLACE INTO inbox VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", batch.inbox)
        for name, value in batch.facts:
            self.set_fact(name, value)
        if batch.streams:
            many("UPDATE stream SET last_seq = ? WHERE id = ?", batch.streams)

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

    def _end_sessions(self, ended: Sequence[int]) -> None:
        for number in ended:
            for table in ("delivery", "particular", "inbound", "subscription", "inbox"):
                self.connection.execute(f"DELETE FROM {table} WHERE session = ?", (number,))
            self.connection.execute("DELETE FROM session WHERE number = ?", (number,))

    # --- reading ----------------------------------------------------------------------------------

    def restore(self) -> Saved:
        """What the owner has to know before it starts. Deliveries stay where they are."""
        saved = Saved()
        ask = self.connection.execute
        queues = {row[0]: row[1:] for row in ask(_QUEUES)}
        for number, client_id, expiry, ends_at in ask("SELECT * FROM session ORDER BY number"):
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
            saved.next_session = number + 1
        for session, topic_filter, options, identifier, cursor in ask("SELECT * FROM subscription"):
            subscription = subscription_from(topic_filter, options)
            saved.subscriptions.append((session, subscription, identifier))
            if cursor is not None:
                saved.cursors.append((session, topic_filter, cursor))
        for _, topic, qos, expires_at, properties, payload in ask(
            "SELECT * FROM retained ORDER BY place"
        ):
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
        for client_id, user_name, due_at, qos, retain, topic, properties, payload in ask(
            "SELECT * FROM will"
        ):
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
        stored = self.connection.execute(
            "SELECT packet_id FROM inbound WHERE session = ?", (session,)
        )
        return deliveries, [row[0] for row in stored]

    def inbox(self, session: int) -> list[tuple[int, str, Record]]:
        """What a client's program has not acknowledged, in its order: number, key, message."""
        rows = self.connection.execute(
            "SELECT number, key, flags, packet_id, version, topic, properties, payload"
            " FROM inbox WHERE session = ? ORDER BY number",
            (session,),
        )
        return [held_from(row) for row in rows]

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
            "SELECT number, size FROM particular"
            " WHERE session = ? AND number >= ? AND expires_at <= ?",
            (session, first, now),
        )
        return rows.fetchall()

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
        rows = self.connection.execute("SELECT * FROM stream ORDER BY id")
        return [StreamRow(*row) for row in rows]

    def stream(self, name: str) -> StreamRow:
        """The stream of that name, made if there is none."""
        self.connection.execute(
            "INSERT OR IGNORE INTO stream (name, last_seq, sealed, sealing) VALUES (?, 0, 0, 0)",
            (name,),
        )
        row = self.connection.execute("SELECT * FROM stream WHERE name = ?", (name,)).fetchone()
        return StreamRow(*row)

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
        self.connection.execute("UPDATE stream SET sealing = ? WHERE id = ?", (through, stream))

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
        self.connection.execute("UPDATE stream SET sealed = ? WHERE id = ?", (through, stream))

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


def subscription_from(topic_filter: str, options: int) -> Subscription:
    """A subscription out of its Subscription Options byte [3.8.3.1]."""
    return Subscription(
        topic_filter,
        options & 3,
        no_local=bool(options & 4),
        retain_as_published=bool(options & 8),
        retain_handling=options >> 4 & 3,
    )

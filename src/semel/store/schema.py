"""The tables of a store. Their definitions in SQL are the only description of the rows.

Names, types and keys of columns are read from these definitions (`TABLES`), so that nothing else
repeats them. The columns of the key come first, then the row's checksum (see `row_checksums`), then
small columns before large ones, so that a scan of small columns does not read long payloads.

Times are seconds of the wall clock, except `record.received_at`, which is in microseconds.
`identity` is the owner of a session or will: a JSON object of at most MAXIMUM_IDENTITY_BYTES that
the store does not interpret; '': the owner is unknown.
`properties` is a property section as MQTT 5.0 encodes it, with its Property Length; NULL: none.
"""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

from semel.store.row_checksums import row_checksum

# "seml" in the header of the file distinguishes a store from other SQLite databases.
APPLICATION_ID: Final = 0x73656D6C
VERSION: Final = 3

# The page size of the files that we create.
PAGE_BYTES: Final = 8_192

Value = None | int | float | str | bytes
Row = tuple[Value, ...]

DEFINITIONS: Final = """
-- What the store records about itself. 'id', 'node', 'made', 'keeper' (broker or client); 'epoch'
-- and 'commit': see `mark`; 'next_session': the lowest id that no session has had;
-- 'gap:<stream>:<first>-<last>': rows that a repair lost; 'break:<stream>:<seq>': before this row,
-- messages may be missing that a server did not keep for a client
CREATE TABLE metadata (
    name TEXT PRIMARY KEY,
    checksum INTEGER NOT NULL,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- `expiry_interval`: seconds that it outlives its connection; `ends_at`: NULL while its connection
-- is open, or if it never ends
CREATE TABLE session (
    id INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    client_id TEXT NOT NULL UNIQUE,
    expiry_interval INTEGER NOT NULL,
    ends_at REAL,
    identity TEXT NOT NULL
);

-- A stream keeps its row, and so its numbers, when it is no longer configured. Rows up to
-- `sealed_seq` are in segments; those up to `sealing_seq`, if it is higher, are with the sealer.
CREATE TABLE stream (
    id INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    name TEXT NOT NULL UNIQUE,
    last_seq INTEGER NOT NULL,
    sealed_seq INTEGER NOT NULL,
    sealing_seq INTEGER NOT NULL
);

-- `options`: the Subscription Options byte; `identifier`: the Subscription Identifier, 0 for none;
-- `cursor`: the last seq that a subscription to a stream was sent; negative: nothing was sent yet,
-- and it begins at this time, in negated microseconds; NULL: a subscription to topics
CREATE TABLE subscription (
    session_id INTEGER NOT NULL,
    topic_filter TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    options INTEGER NOT NULL,
    identifier INTEGER NOT NULL,
    cursor INTEGER,
    PRIMARY KEY (session_id, topic_filter)
) WITHOUT ROWID;

-- inbound QoS 2 identifiers whose PUBREL has not arrived
CREATE TABLE inbound (
    session_id INTEGER NOT NULL,
    packet_id INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (session_id, packet_id)
) WITHOUT ROWID;

-- a large payload, stored once for all deliveries that have it
CREATE TABLE shared_payload (
    id INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    use_count INTEGER NOT NULL,
    payload BLOB NOT NULL
);

-- Outgoing QoS 1 and 2 messages. `packet_id` is 0 in the backlog; `release_number` gives the order
-- of PUBRECs, 0 before its PUBREC; `flags`: see `row_flags`. Columns that are rarely used would
-- cost every message: those are in `delivery_extra`.
CREATE TABLE delivery (
    session_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    packet_id INTEGER NOT NULL,
    release_number INTEGER NOT NULL,
    flags INTEGER NOT NULL,
    topic TEXT,
    payload BLOB,
    PRIMARY KEY (session_id, number)
) WITHOUT ROWID;

-- `size` is Message.size; without such a row it is the size of topic and payload. `share`: the
-- filter of the shared subscription that chose this session
CREATE TABLE delivery_extra (
    session_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    size INTEGER NOT NULL,
    expires_at REAL,
    share TEXT,
    shared_payload_id INTEGER,
    properties BLOB,
    PRIMARY KEY (session_id, number)
) WITHOUT ROWID;
CREATE TRIGGER release_shared_payload AFTER DELETE ON delivery_extra
WHEN old.shared_payload_id IS NOT NULL
BEGIN
    UPDATE shared_payload SET use_count = use_count - 1, checksum = checksum - 4294967296
    WHERE id = old.shared_payload_id;
    DELETE FROM shared_payload WHERE id = old.shared_payload_id AND use_count = 0;
END;

CREATE TABLE will (
    client_id TEXT PRIMARY KEY,
    checksum INTEGER NOT NULL,
    identity TEXT NOT NULL,
    due_at REAL,
    qos INTEGER NOT NULL,
    retain INTEGER NOT NULL,
    topic TEXT NOT NULL,
    properties BLOB,
    payload BLOB NOT NULL
) WITHOUT ROWID;

-- `position`: the order in which topics got their first message
CREATE TABLE retained (
    position INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    topic TEXT NOT NULL UNIQUE,
    qos INTEGER NOT NULL,
    expires_at REAL,
    properties BLOB,
    payload BLOB NOT NULL
);

-- A client's incoming QoS 1 and 2 messages that its program has not acknowledged, in the order of
-- their arrival. `key` identifies one to the program; `packet_id` is 0 when the server has
-- forgotten it
CREATE TABLE inbox (
    session_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    key TEXT NOT NULL,
    flags INTEGER NOT NULL,
    packet_id INTEGER NOT NULL,
    protocol_version INTEGER NOT NULL,
    topic TEXT NOT NULL,
    properties BLOB,
    payload BLOB NOT NULL,
    PRIMARY KEY (session_id, number)
) WITHOUT ROWID;

CREATE TABLE record (
    stream_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    flags INTEGER NOT NULL,
    packet_id INTEGER NOT NULL,
    protocol_version INTEGER NOT NULL,
    client_id TEXT NOT NULL,
    user_name TEXT,
    topic TEXT NOT NULL,
    properties BLOB,
    payload BLOB NOT NULL,
    PRIMARY KEY (stream_id, seq)
) WITHOUT ROWID;
"""


def create(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty database."""
    connection.executescript(
        f"BEGIN; {DEFINITIONS} PRAGMA application_id = {APPLICATION_ID};"
        f" PRAGMA user_version = {VERSION}; COMMIT;"
    )


# --- tables, as read from the definitions ---------------------------------------------------------


CHECKSUM: Final = "checksum"


@dataclass(frozen=True)
class StoreColumn:
    """A column of a table; `type` is INTEGER, REAL, TEXT or BLOB."""

    name: str
    type: str
    is_nullable: bool


@dataclass(frozen=True)
class StoreTable:
    """A table. The first `key_size` columns identify a row; the next one is its checksum."""

    name: str
    columns: tuple[StoreColumn, ...]
    key_size: int
    # Whether the only key column is SQLite's rowid.
    has_rowid: bool

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """All columns, in their order."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def content_names(self) -> tuple[str, ...]:
        """All columns except the checksum, in their order."""
        return tuple(name for name in self.column_names if name != CHECKSUM)

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return self.column_names[: self.key_size]


def _read_tables() -> dict[str, StoreTable]:
    """The tables, as SQLite parses their definitions, in the order of the definitions."""
    found = {}
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create(connection)
        names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        for (name,) in names.fetchall():
            rows = connection.execute(f"PRAGMA table_info({name})").fetchall()
            columns = tuple(
                StoreColumn(column, kind, is_nullable=not (not_null or key))
                for _, column, kind, not_null, _, key in rows
            )
            key_size = sum(key > 0 for *_, key in rows)
            assert columns[key_size].name == CHECKSUM
            has_rowid = key_size == 1 and columns[0].type == "INTEGER"
            found[name] = StoreTable(name, columns, key_size, has_rowid)
    return found


TABLES: Final[Mapping[str, StoreTable]] = _read_tables()


def content_of(table: str, row: Row) -> Row:
    """The columns of a row without its checksum."""
    key_size = TABLES[table].key_size
    return row[:key_size] + row[key_size + 1 :]


def with_checksum(table: str, content: Row) -> Row:
    """A row with this content and its checksum."""
    key_size = TABLES[table].key_size
    return (*content[:key_size], row_checksum(table, content), *content[key_size:])


# --- opening --------------------------------------------------------------------------------------


class Unusable(Exception):
    """A store cannot be used. The text says why, and what to do about it, in one sentence."""


class StoreInUse(Unusable):
    """Another process has the store open."""


class Damaged(Unusable):
    """A store differs from what was written. The text says what is wrong with it."""


class UnknownFormat(Unusable):
    """A database is not a store, or its format is unknown. The text says what it is."""


@cache
def objects() -> Mapping[str, str]:
    """The tables, indexes and triggers of the current format: names and definitions."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create(connection)
        return objects_in(connection)


def objects_in(connection: sqlite3.Connection) -> Mapping[str, str]:
    """The tables, indexes and triggers of a database: names and definitions."""
    # Without SQLite's own tables of statistics.
    rows = connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite!_stat%' ESCAPE '!'"
    )
    return {name: sql or "" for name, sql in rows}


def version_of(connection: sqlite3.Connection) -> int:
    """The format of a store. Raises UnknownFormat if it is not a store or newer, and Damaged."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID:
        if objects_in(connection).keys() >= objects().keys():
            raise Damaged("it has the tables of a store, but not its application id")
        raise UnknownFormat("it is a database, but not a store of semel")
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        if objects_in(connection) == objects():
            raise Damaged(f"its tables have format {VERSION}, but its header says {version}")
        raise UnknownFormat(
            f"it was written by a newer semel (format {version}, this version knows {VERSION}):"
            " use that version, or export the store with it and start a new one"
        )
    return version

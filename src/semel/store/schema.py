"""The tables of a store, and how an older store becomes one of today's.

Keys are natural ones, and a row holds small columns first: a scan that wants only those does not
read long payloads. Times are seconds of the wall clock, but for `record.received`, which is in
microseconds. Properties are a section as MQTT 5.0 encodes it, Property Length included; NULL: none.
After the key of each row comes its checksum (see `checksums`).

An older store is brought to today's format step by step, in one transaction. Format 1 had no
checksums, no commit counter and no durable number for the next session.
"""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from typing import Final

from semel.store.row_checksums import row_checksum

# In the header of the file, so that `file` and we can tell it from any other database: "seml".
APPLICATION_ID: Final = 0x73656D6C
VERSION: Final = 2


# Bytes of a page in the files that we make.
PAGE_BYTES: Final = 8_192

Value = None | int | float | str | bytes
Row = tuple[Value, ...]

# The columns of each table: their names, and what they may hold. i: integer, r: real, t: text,
# b: blob; ?: or NULL.
COLUMNS: Final[dict[str, str]] = {
    "fact": "name:t checksum:i value:t",
    "session": "number:i checksum:i client_id:t expiry:i ends_at:r?",
    "stream": "id:i checksum:i name:t last_seq:i sealed:i sealing:i",
    "subscription": "session:i filter:t checksum:i options:i identifier:i cursor:i?",
    "inbound": "session:i packet_id:i checksum:i",
    "body": "id:i checksum:i uses:i payload:b",
    "delivery": "session:i number:i checksum:i packet_id:i released:i flags:i topic:t? payload:b?",
    "particular": (
        "session:i number:i checksum:i size:i expires_at:r? share:t? body:i? properties:b?"
    ),
    "will": (
        "client_id:t checksum:i user_name:t? due_at:r? qos:i retain:i topic:t"
        " properties:b? payload:b"
    ),
    "retained": "place:i checksum:i topic:t qos:i expires_at:r? properties:b? payload:b",
    "inbox": (
        "session:i number:i checksum:i key:t flags:i packet_id:i version:i topic:t"
        " properties:b? payload:b"
    ),
    "record": (
        "stream:i seq:i checksum:i received:i flags:i packet_id:i version:i client_id:t"
        " user_name:t? topic:t properties:b? payload:b"
    ),
}
# Columns that tell a row from the others of its table come first: so many of them. Then comes the
# checksum.
KEYS: Final = {
    "fact": 1,
    "session": 1,
    "stream": 1,
    "subscription": 2,
    "inbound": 2,
    "body": 1,
    "delivery": 2,
    "particular": 2,
    "will": 1,
    "retained": 1,
    "inbox": 2,
    "record": 2,
}

TABLES: Final = """
-- one row for each fact: 'id', 'node', 'made', 'keeper' (whose state it is); 'epoch' and 'commit':
-- see `mark`; 'next_session': the lowest number that no session has had; what a repair lost is
-- 'gap:<stream>:<first>-<last>'; 'break:<stream>:<seq>': before this row messages may be missing
-- that a server did not keep for a client
CREATE TABLE fact (
    name TEXT PRIMARY KEY,
    checksum INTEGER NOT NULL,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- `expiry`: seconds that it outlives its connection; `ends_at`: NULL while that is open, or never
CREATE TABLE session (
    number INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    client_id TEXT NOT NULL UNIQUE,
    expiry INTEGER NOT NULL,
    ends_at REAL
);
-- `cursor`: the last seq that a subscription to a stream was sent; less than 0: nothing yet, and it
-- begins at this time, in microseconds with a minus before it; NULL: a subscription to topics
CREATE TABLE subscription (
    session INTEGER NOT NULL,
    filter TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    options INTEGER NOT NULL,
    identifier INTEGER NOT NULL,
    cursor INTEGER,
    PRIMARY KEY (session, filter)
) WITHOUT ROWID;

-- inbound QoS 2 identifiers whose PUBREL has not come
CREATE TABLE inbound (
    session INTEGER NOT NULL,
    packet_id INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (session, packet_id)
) WITHOUT ROWID;

-- QoS 1 and 2 messages on their way out. `packet_id` is 0 while one waits; `released` is its place
-- among the PUBRECs, 0 before it; `flags`: qos | retain << 2 | 8 if there is a row in `particular`.
-- A column that is rarely used would cost every message: those are in that other table.
CREATE TABLE delivery (
    session INTEGER NOT NULL,
    number INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    packet_id INTEGER NOT NULL,
    released INTEGER NOT NULL,
    flags INTEGER NOT NULL,
    topic TEXT,
    payload BLOB,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
-- `size` is Message.size, which without such a row is that of topic and payload; `body`: a large
-- payload is there.
CREATE TABLE particular (
    session INTEGER NOT NULL,
    number INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    size INTEGER NOT NULL,
    expires_at REAL,
    share TEXT,
    body INTEGER,
    properties BLOB,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
CREATE TABLE body (
    id INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    uses INTEGER NOT NULL,
    payload BLOB NOT NULL
);
CREATE TRIGGER body_is_used_less AFTER DELETE ON particular WHEN old.body IS NOT NULL
BEGIN
    UPDATE body SET uses = uses - 1, checksum = checksum - 4294967296 WHERE id = old.body;
    DELETE FROM body WHERE id = old.body AND uses = 0;
END;

CREATE TABLE will (
    client_id TEXT PRIMARY KEY,
    checksum INTEGER NOT NULL,
    user_name TEXT,
    due_at REAL,
    qos INTEGER NOT NULL,
    retain INTEGER NOT NULL,
    topic TEXT NOT NULL,
    properties BLOB,
    payload BLOB NOT NULL
) WITHOUT ROWID;

-- `place`: the order in which topics got a first message
CREATE TABLE retained (
    place INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    topic TEXT NOT NULL UNIQUE,
    qos INTEGER NOT NULL,
    expires_at REAL,
    properties BLOB,
    payload BLOB NOT NULL
);

-- A stream keeps its row, and so its numbers, when it is no longer configured. Rows up to `sealed`
-- are in segments; those up to `sealing`, if it is more, are given to the sealer.
CREATE TABLE stream (
    id INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    name TEXT NOT NULL UNIQUE,
    last_seq INTEGER NOT NULL,
    sealed INTEGER NOT NULL,
    sealing INTEGER NOT NULL
);
-- `flags`: qos | retain << 2 | dup << 3
CREATE TABLE record (
    stream INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    received INTEGER NOT NULL,
    flags INTEGER NOT NULL,
    packet_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    client_id TEXT NOT NULL,
    user_name TEXT,
    topic TEXT NOT NULL,
    properties BLOB,
    payload BLOB NOT NULL,
    PRIMARY KEY (stream, seq)
) WITHOUT ROWID;

-- A client's QoS 1 and 2 messages that came in and that its program has not acknowledged, in the
-- order in which they came. `key` is what the program knows one by; `packet_id` is 0 when the
-- server has forgotten it; `flags` as above
CREATE TABLE inbox (
    session INTEGER NOT NULL,
    number INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    key TEXT NOT NULL,
    flags INTEGER NOT NULL,
    packet_id INTEGER NOT NULL,
    version INTEGER NOT NULL,
    topic TEXT NOT NULL,
    properties BLOB,
    payload BLOB NOT NULL,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
"""


def create(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty database."""
    connection.executescript(
        f"BEGIN; {TABLES} PRAGMA application_id = {APPLICATION_ID};"
        f" PRAGMA user_version = {VERSION}; COMMIT;"
    )


def column_names(table: str) -> list[str]:
    """The columns of a table, in their order."""
    return [each.partition(":")[0] for each in COLUMNS[table].split()]


def content_of(table: str, row: Row) -> Row:
    """The columns of a row without its checksum."""
    return row[: KEYS[table]] + row[KEYS[table] + 1 :]


def with_checksum(table: str, content: Row) -> Row:
    """A row that has just these columns, and its checksum."""
    keys = KEYS[table]
    return (*content[:keys], row_checksum(table, content), *content[keys:])


class Unusable(Exception):
    """A store that cannot be opened, and what to do about it, in one sentence."""


class StoreInUse(Unusable):
    """Another process has the store open."""


class Damaged(Unusable):
    """A store that is not what was written: what is wrong with it."""


class NotKnown(Unusable):
    """A database that is no store, or of a format that we do not know: what it is."""


@cache
def objects() -> Mapping[str, str]:
    """The tables, indexes and triggers of today's version: names and definitions."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create(connection)
        return objects_in(connection)


def objects_in(connection: sqlite3.Connection) -> Mapping[str, str]:
    """The same of any database."""
    # SQLite keeps tables of its own as well, for statistics.
    rows = connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite!_stat%' ESCAPE '!'"
    )
    return {name: sql or "" for name, sql in rows}


def version_of(connection: sqlite3.Connection) -> int:
    """The version of a store; raises NotKnown if it is none, or newer, and Damaged."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID:
        if objects_in(connection).keys() >= objects().keys():
            raise Damaged("it has the tables of a store, but its mark is not that of one")
        raise NotKnown("it is a database, but not a store of semel")
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        if objects_in(connection) == objects():
            raise Damaged(f"it has today's tables, but says that its format is {version}")
        raise NotKnown(
            f"it was written by a newer semel (format {version}, this one knows {VERSION}):"
            " use that one, or export it there and begin anew"
        )
    return version

"""Upgrades a store from an older format to the current one, in one transaction.

Format 1 had no checksums, no commit counter and no durable id for the next session. Its tables and
columns had other names.

Formats 1 and 2 did not know who owns a session; of the owner of a will they had the user name, in
place of its identity.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from semel.mqtt.violation import Violation
from semel.mqtt.wire import check_text
from semel.store.metadata import begin_epoch
from semel.store.row_check import describe_key, fault_of
from semel.store.row_checksums import crc_of, time_high
from semel.store.row_flags import HAS_EXTRA, RELEASED_FLAGS
from semel.store.schema import (
    DEFINITIONS,
    TABLES,
    VERSION,
    Damaged,
    Row,
    UnknownFormat,
    Value,
    content_of,
    objects,
    version_of,
    with_checksum,
)

# Upgrades the tables to the current format, within a transaction of the caller.
Step = Callable[[sqlite3.Connection], None]

# By the current name of a table: its name and its columns in format 1.
FORMAT_1: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "metadata": ("fact", ("name", "value")),
    "session": ("session", ("number", "client_id", "expiry", "ends_at")),
    "stream": ("stream", ("id", "name", "last_seq", "sealed", "sealing")),
    "subscription": ("subscription", ("session", "filter", "options", "identifier", "cursor")),
    "inbound": ("inbound", ("session", "packet_id")),
    "shared_payload": ("body", ("id", "uses", "payload")),
    "delivery": (
        "delivery",
        ("session", "number", "packet_id", "released", "flags", "topic", "payload"),
    ),
    "delivery_extra": (
        "particular",
        ("session", "number", "size", "expires_at", "share", "body", "properties"),
    ),
    "will": (
        "will",
        ("client_id", "user_name", "due_at", "qos", "retain", "topic", "properties", "payload"),
    ),
    "retained": ("retained", ("place", "topic", "qos", "expires_at", "properties", "payload")),
    "inbox": (
        "inbox",
        (
            "session",
            "number",
            "key",
            "flags",
            "packet_id",
            "version",
            "topic",
            "properties",
            "payload",
        ),
    ),
    "record": (
        "record",
        (
            "stream",
            "seq",
            "received",
            "flags",
            "packet_id",
            "version",
            "client_id",
            "user_name",
            "topic",
            "properties",
            "payload",
        ),
    ),
}

# The tables whose columns changed after format 2.
CHANGED_SINCE_2: Final = ("session", "will")


def migrate(connection: sqlite3.Connection, steps: Mapping[int, Step] | None = None) -> None:
    """Upgrade the tables to the current format, in one transaction.

    If it raises (UnknownFormat, Damaged, sqlite3.Error), the store is unchanged.
    """
    version = version_of(connection)
    if version == VERSION:
        return
    step = step_from(version, steps)
    connection.execute("BEGIN IMMEDIATE")
    try:
        step(connection)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def step_from(version: int, steps: Mapping[int, Step] | None = None) -> Step:
    """The step from this format to the current one. Raises UnknownFormat if there is none."""
    step = (STEPS if steps is None else steps).get(version)
    if step is None:
        raise UnknownFormat(f"it has format {version}, which this semel cannot upgrade")
    return step


# --- rows -----------------------------------------------------------------------------------------


def upgraded_row(table: str, row: Row, version: int) -> Row:
    """A row of an older format in the current format.

    A damaged row is returned with a wrong checksum. A row with another number of columns than the
    format has is returned as it is.
    """
    if version == VERSION or (version == 2 and table not in CHANGED_SINCE_2):
        return row
    if version == 1:
        if len(row) != len(FORMAT_1[table][1]):
            return row
        return with_checksum(table, _upgraded_content(table, row))
    key_size = TABLES[table].key_size
    # `will` has as many columns as in format 2, and `session` has one more.
    if len(row) != len(TABLES[table].columns) - (table == "session"):
        return row
    content = content_of(table, row)
    current = with_checksum(table, _upgraded_content(table, content))
    if row[key_size] != _format_2_checksum(table, content):
        current = (*current[:key_size], row[key_size], *current[key_size + 1 :])
    return current


def _upgraded_content(table: str, content: Row) -> Row:
    if table == "session":
        return (*content, "")
    if table == "will":
        return (content[0], _identity_of(content[1]), *content[2:])
    if table == "delivery" and content[3]:
        # Format 1 kept all flags after PUBREC.
        return (*content[:4], RELEASED_FLAGS, *content[5:])
    return content


def _identity_of(user_name: Value) -> Value:
    """The identity of a client of which only the user name is known."""
    if user_name is None:
        return ""
    if not isinstance(user_name, str):
        # The check of the row reports it.
        return user_name
    faults: list[Violation] = []
    check_text(user_name, "user_name", faults)
    if faults:
        return user_name
    values = {"listener": "default", "proof": "anonymous", "user_name": user_name}
    return json.dumps(values, separators=(",", ":"), sort_keys=True)


def _format_2_checksum(table: str, content: Row) -> int:
    if table == "session":
        return crc_of(table, content[:3]) | time_high(content[3]) << 32
    client_id, user_name, due_at, *rest = content
    # SQLite stores 5.0 as 5 in the file.
    due = float(due_at) if isinstance(due_at, int) else due_at
    return crc_of(table, (client_id, user_name, due, *rest))


# --- tables ---------------------------------------------------------------------------------------


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one, because executescript would commit."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _from_format_1(connection: sqlite3.Connection) -> None:
    """Rename tables and columns, and add checksums to rows. Raises Damaged for an invalid row."""
    run = connection.execute
    run("DROP TRIGGER body_is_used_less")
    for old_table, _ in FORMAT_1.values():
        run(f"ALTER TABLE {old_table} RENAME TO old_{old_table}")
    for statement in _statements(DEFINITIONS):
        run(statement)
    for table, (old_table, old_names) in FORMAT_1.items():
        values = list(old_names)
        if table == "delivery":
            # Format 1 did not flag extra columns.
            values[old_names.index("flags")] = (
                f"flags | {HAS_EXTRA} * EXISTS"
                " (SELECT * FROM old_particular AS extra WHERE extra.session = old_delivery.session"
                " AND extra.number = old_delivery.number)"
            )
        rows = run(f"SELECT {', '.join(values)} FROM old_{old_table}")
        _copy(connection, table, rows, version=1)
    for old_table, _ in FORMAT_1.values():
        run(f"DROP TABLE old_{old_table}")
    begin_epoch(connection)


def _from_format_2(connection: sqlite3.Connection) -> None:
    """Add the identity of owners. Raises Damaged for an invalid row of the changed tables."""
    run = connection.execute
    for table in CHANGED_SINCE_2:
        run(f"ALTER TABLE {table} RENAME TO old_{table}")
        run(objects()[table])
        _copy(connection, table, run(f"SELECT * FROM old_{table}"), version=2)
        run(f"DROP TABLE old_{table}")


def _copy(
    connection: sqlite3.Connection, table: str, rows: sqlite3.Cursor, *, version: int
) -> None:
    """Insert rows of an older format into a table. Raises Damaged for an invalid row."""
    places = ", ".join("?" * len(TABLES[table].columns))
    for row in rows:
        current = upgraded_row(table, row, version)
        fault = fault_of(table, current)
        if fault is not None:
            raise Damaged(f"{table}: {describe_key(table, current)}: {fault}")
        connection.execute(f"INSERT INTO {table} VALUES ({places})", current)


# From each older format to the current one.
STEPS: Final[Mapping[int, Step]] = {1: _from_format_1, 2: _from_format_2}

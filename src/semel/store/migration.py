"""Upgrades a store from an older format to the current one, in one transaction.

Format 1 had no checksums, no commit counter and no durable id for the next session. Its tables and
columns had other names, but the same order.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from semel.store.metadata import begin_epoch
from semel.store.row_check import describe_key, fault_of
from semel.store.row_checksums import row_checksum
from semel.store.row_flags import HAS_EXTRA, RELEASED_FLAGS
from semel.store.schema import (
    DEFINITIONS,
    TABLES,
    VERSION,
    Damaged,
    UnknownFormat,
    Value,
    version_of,
    with_checksum,
)

# Upgrades the tables by one format, within a transaction of the caller.
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


def migrate(connection: sqlite3.Connection, steps: Mapping[int, Step] | None = None) -> None:
    """Upgrade the tables to the current format, in one transaction.

    If it raises (UnknownFormat, Damaged, sqlite3.Error), the store is unchanged.
    """
    version = version_of(connection)
    if version == VERSION:
        return
    known = check_steps(version, steps)
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in range(version, VERSION):
            known[step](connection)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check_steps(version: int, steps: Mapping[int, Step] | None = None) -> Mapping[int, Step]:
    """The steps from this format to the current one. Raises UnknownFormat if one is missing."""
    known = STEPS if steps is None else steps
    if any(step not in known for step in range(version, VERSION)):
        raise UnknownFormat(f"it has format {version}, which this semel cannot upgrade")
    return known


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
    faults: list[str] = []

    def checked_checksum(table: str, *content: Value) -> int:
        row = with_checksum(table, content)
        fault = fault_of(table, row)
        if fault is not None:
            faults.append(f"{table}: {describe_key(table, row)}: {fault}")
            raise ValueError(fault)
        return row_checksum(table, content)

    connection.create_function("row_checksum", -1, checked_checksum)
    try:
        for table in TABLES:
            _copy(connection, table)
    except sqlite3.OperationalError as problem:
        if faults:
            raise Damaged(faults[0]) from problem
        raise
    finally:
        connection.create_function("row_checksum", -1, None)
    for old_table, _ in FORMAT_1.values():
        run(f"DROP TABLE old_{old_table}")
    begin_epoch(connection)


def _copy(connection: sqlite3.Connection, table: str) -> None:
    old_table, old_names = FORMAT_1[table]
    values = list(old_names)
    if table == "delivery":
        # Format 1 did not flag extra columns, and kept all flags after PUBREC.
        values[old_names.index("flags")] = (
            f"CASE WHEN released THEN {RELEASED_FLAGS} ELSE flags | {HAS_EXTRA} * EXISTS"
            " (SELECT * FROM old_particular AS extra WHERE extra.session = old_delivery.session"
            " AND extra.number = old_delivery.number) END"
        )
    selected = ", ".join(values)
    connection.execute(
        f"INSERT INTO {table} ({', '.join(TABLES[table].content_names)}, checksum)"
        f" SELECT {selected}, row_checksum('{table}', {selected}) FROM old_{old_table}"
    )


# From each format to the next.
STEPS: Final[Mapping[int, Step]] = {1: _from_format_1}

"""From the format of an older semel to today's, step by step and in one transaction.

Format 1 had no checksums, no count of commits, and no durable number for the next session.
"""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from semel.store.facts import begin_epoch
from semel.store.judge import fault_of, key_of
from semel.store.row_checksums import row_checksum
from semel.store.schema import (
    COLUMNS,
    TABLES,
    VERSION,
    Damaged,
    NotKnown,
    Value,
    column_names,
    version_of,
    with_checksum,
)

# Works on the tables, within a transaction that somebody else begins and ends.
Step = Callable[[sqlite3.Connection], None]


def migrate(connection: sqlite3.Connection, steps: Mapping[int, Step] | None = None) -> None:
    """Bring the tables up to today's version, in one transaction or not at all.

    Raises NotKnown and Damaged; then the store is as it was.
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
    """The steps, if they lead from that version to today's. Raises NotKnown."""
    known = STEPS if steps is None else steps
    if any(step not in known for step in range(version, VERSION)):
        raise NotKnown(f"it has format {version}, and this semel knows {VERSION} only")
    return known


def _statements(script: str) -> Iterator[str]:
    """One by one: executescript would end the transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _add_checksums(connection: sqlite3.Connection) -> None:
    """From format 1 to 2. A row that cannot be right is Damaged; else it counts as it stands."""
    ask = connection.execute
    ask("DROP TRIGGER body_is_used_less")
    for table in COLUMNS:
        ask(f"ALTER TABLE {table} RENAME TO old_{table}")
    for statement in _statements(TABLES):
        ask(statement)
    faults: list[str] = []

    def checked(table: str, *content: Value) -> int:
        row = with_checksum(table, content)
        fault = fault_of(table, row)
        if fault is not None:
            faults.append(f"{table}: {key_of(table, row)}: {fault}")
            raise ValueError(fault)
        return row_checksum(table, content)

    connection.create_function("row_checksum", -1, checked)
    try:
        for table in COLUMNS:
            _copy(connection, table)
    except sqlite3.OperationalError as problem:
        if faults:
            raise Damaged(faults[0]) from problem
        raise
    finally:
        connection.create_function("row_checksum", -1, None)
    for table in COLUMNS:
        ask(f"DROP TABLE old_{table}")
    begin_epoch(connection)


def _copy(connection: sqlite3.Connection, table: str) -> None:
    names = [each for each in column_names(table) if each != "checksum"]
    values = list(names)
    if table == "delivery":
        values[names.index("flags")] = (
            "CASE WHEN released THEN 2 ELSE flags | ((SELECT count(*) FROM old_particular AS one"
            " WHERE one.session = old_delivery.session AND one.number = old_delivery.number) << 3)"
            " END"
        )
    wanted = ", ".join(values)
    connection.execute(
        f"INSERT INTO {table} ({', '.join(names)}, checksum)"
        f" SELECT {wanted}, row_checksum('{table}', {wanted}) FROM old_{table}"
    )


# From each version to the next.
STEPS: Final[Mapping[int, Step]] = {1: _add_checksums}

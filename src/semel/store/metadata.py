"""The metadata of a store: names and values, each row with a checksum."""

import secrets
import sqlite3
from collections.abc import Iterator
from typing import Final

from semel.store.row_checksums import WRONG_CHECKSUM, row_checksum
from semel.store.schema import Damaged

ID: Final = "id"
NODE: Final = "node"
# Whose state this is: "broker" or "client".
KEEPER: Final = "keeper"
# When the store was created, in seconds.
MADE: Final = "made"
# Distinguishes the commits of this database from those of a copy that was changed independently.
EPOCH: Final = "epoch"
# The number of transactions since the store was created.
COMMIT: Final = "commit"
# The lowest id that no session has had.
NEXT_SESSION: Final = "next_session"


def get_metadata(connection: sqlite3.Connection, name: str) -> str | None:
    """The value for this name, or None. Raises Damaged if its checksum is wrong."""
    row = connection.execute(
        "SELECT name, checksum, value FROM metadata WHERE name = ?", (name,)
    ).fetchone()
    if row is None:
        return None
    _check(*row)
    value: str = row[2]
    return value


def _check(name: object, checksum: object, value: object) -> None:
    if checksum != row_checksum("metadata", (name, value)) or not isinstance(value, str):
        raise Damaged(f"metadata, name {name!r}: {WRONG_CHECKSUM}")


def all_metadata(connection: sqlite3.Connection, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names with this prefix, and their values. Raises Damaged."""
    rows = connection.execute(
        "SELECT name, checksum, value FROM metadata WHERE substr(name, 1, ?) = ?",
        (len(prefix), prefix),
    )
    for name, checksum, value in rows:
        _check(name, checksum, value)
        yield name, value


def set_metadata(connection: sqlite3.Connection, name: str, value: str) -> None:
    """Set the value of a name."""
    connection.execute(
        "INSERT INTO metadata (name, checksum, value) VALUES (?, ?, ?) ON CONFLICT DO UPDATE"
        " SET checksum = excluded.checksum, value = excluded.value",
        (name, row_checksum("metadata", (name, value)), value),
    )


def get_number(connection: sqlite3.Connection, name: str) -> int | None:
    """The value for this name as a number, or None. Raises Damaged if it is not a number."""
    text = get_metadata(connection, name)
    if text is None:
        return None
    if not text.isdecimal() or not text.isascii():
        raise Damaged(f"metadata, name {name!r}: {text!r} is not a number")
    return int(text)


def begin_epoch(connection: sqlite3.Connection) -> None:
    """Start a new epoch: from now on, marks of copies of this database are ignored."""
    set_metadata(connection, EPOCH, secrets.token_hex(16))
    if get_metadata(connection, COMMIT) is None:
        set_metadata(connection, COMMIT, "0")

"""What a store says of itself: names and values, each row with its checksum."""

import secrets
import sqlite3
from collections.abc import Iterator
from typing import Final

from semel.store.row_checksums import row_checksum
from semel.store.schema import Damaged

ID: Final = "id"
NODE: Final = "node"
KEEPER: Final = "keeper"
# When the store was made, in seconds.
MADE: Final = "made"
# Tells the commits of this database from those of a copy of it that went its own way.
EPOCH: Final = "epoch"
# How many transactions there have been since the store was made.
COMMIT: Final = "commit"
# The lowest number that no session has had.
NEXT_SESSION: Final = "next_session"


def get_fact(connection: sqlite3.Connection, name: str) -> str | None:
    """What the store says, if it does. Raises Damaged if that is not what was written."""
    row = connection.execute(
        "SELECT name, checksum, value FROM fact WHERE name = ?", (name,)
    ).fetchone()
    if row is None:
        return None
    _check(*row)
    value: str = row[2]
    return value


def _check(name: object, checksum: object, value: object) -> None:
    if checksum != row_checksum("fact", (name, value)) or not isinstance(value, str):
        raise Damaged(f"fact {name!r} is not what was written (its checksum is wrong)")


def facts(connection: sqlite3.Connection, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names that begin so, and their values. Raises Damaged."""
    rows = connection.execute(
        "SELECT name, checksum, value FROM fact WHERE substr(name, 1, ?) = ?", (len(prefix), prefix)
    )
    for name, checksum, value in rows:
        _check(name, checksum, value)
        yield name, value


def set_fact(connection: sqlite3.Connection, name: str, value: str) -> None:
    """Let the store say that of itself."""
    connection.execute(
        "INSERT INTO fact (name, checksum, value) VALUES (?, ?, ?) ON CONFLICT DO UPDATE"
        " SET checksum = excluded.checksum, value = excluded.value",
        (name, row_checksum("fact", (name, value)), value),
    )


def get_number(connection: sqlite3.Connection, name: str) -> int | None:
    """A fact that is a number. Raises Damaged if it is none."""
    text = get_fact(connection, name)
    if text is None:
        return None
    if not text.isdecimal() or not text.isascii():
        raise Damaged(f"fact {name!r} is {text!r}, not a number")
    return int(text)


def begin_epoch(connection: sqlite3.Connection) -> None:
    """This database goes its own way from here: no mark of another one is about it."""
    set_fact(connection, EPOCH, secrets.token_hex(16))
    if get_fact(connection, COMMIT) is None:
        set_fact(connection, COMMIT, "0")

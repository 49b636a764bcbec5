"""Operations on a store besides running a broker: describe, back up, export, and adopt.

All except `adopt` only read, each in one transaction, and work while a broker is running.
"""

import base64
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from semel import counts
from semel.mqtt.properties import Properties
from semel.mqtt.violation import Violation
from semel.store.database import Database, checked
from semel.store.folder import (
    STORE,
    Progress,
    copy_database,
    known_version,
    make_folder,
    open_folder,
    read_only,
    store_errors,
    unused_folder,
)
from semel.store.gaps import Range, known_gaps
from semel.store.mark import make_mark
from semel.store.metadata import COMMIT, ID, MADE, NODE, all_metadata, begin_epoch
from semel.store.rows import properties_from
from semel.store.schema import TABLES, Row, Unusable, Value
from semel.store.settings import DISK
from semel.store.wal import log_path

# The properties that a stored message may have, by their names in `Properties`.
_PROPERTIES: Final = (
    "payload_format_indicator",
    "message_expiry_interval",
    "content_type",
    "response_topic",
    "correlation_data",
    "subscription_identifiers",
    "will_delay_interval",
    "user_properties",
)
# A name in the metadata of an ingest's store: the stream, and the row before which messages may be
# missing.
_BREAK: Final = re.compile(r"break:([0-9]{1,18}):([0-9]{1,19})", re.ASCII)


# --- describe -------------------------------------------------------------------------------------


def describe(folder: Path) -> dict[str, object]:
    """The content of a store, in numbers. Raises Unusable."""
    with store_errors(folder), closing(read_only(folder)) as connection:
        connection.execute("BEGIN")
        version = known_version(connection)
        store = folder / STORE
        log = log_path(store)
        metadata = dict(all_metadata(connection))
        return {
            "folder": str(folder),
            "format": version,
            "id": metadata.get(ID),
            "node": metadata.get(NODE),
            "made": metadata.get(MADE),
            "commits": int(metadata.get(COMMIT, 0)),
            "bytes": store.stat().st_size,
            "log_bytes": log.stat().st_size if log.exists() else 0,
            **_counts(connection),
            "streams": _streams(connection),
        }


def _counts(connection: sqlite3.Connection) -> dict[str, int]:
    queries = {
        "sessions": "SELECT count(*) FROM session",
        "subscriptions": "SELECT count(*) FROM subscription",
        "queued": "SELECT count(*) FROM delivery WHERE packet_id = 0",
        "in_flight": "SELECT count(*) FROM delivery WHERE packet_id > 0",
        "inbound": "SELECT count(*) FROM inbound",
        "inbox": "SELECT count(*) FROM inbox",
        "retained": "SELECT count(*) FROM retained",
        "retained_bytes": "SELECT coalesce(sum(length(payload)), 0) FROM retained",
        "wills": "SELECT count(*) FROM will",
    }
    return {name: connection.execute(query).fetchone()[0] for name, query in queries.items()}


def _streams(connection: sqlite3.Connection) -> list[dict[str, object]]:
    gaps = known_gaps(connection)
    breaks = known_breaks(connection)
    rows = connection.execute(
        "SELECT id, name, last_seq, sealed_seq,"
        " (SELECT count(*) FROM record WHERE stream_id = id AND seq > sealed_seq)"
        " FROM stream ORDER BY id"
    )
    return [
        {
            "name": name,
            "last_seq": last_seq,
            "sealed": sealed_seq,
            "unsealed": unsealed,
            "lost": [list(each) for each in gaps.get(stream, [])],
            "breaks": breaks.get(stream, []),
        }
        for stream, name, last_seq, sealed_seq, unsealed in rows
    ]


def known_breaks(connection: sqlite3.Connection) -> dict[int, list[int]]:
    """By stream: the rows before which messages may be missing, because a server lost them."""
    found: dict[int, list[int]] = {}
    for name, _ in all_metadata(connection, "break:"):
        match = _BREAK.fullmatch(name)
        if match is not None:
            found.setdefault(int(match[1]), []).append(int(match[2]))
    for rows in found.values():
        rows.sort()
    return found


# --- back up --------------------------------------------------------------------------------------


def back_up(folder: Path, target: Path, progress: Progress | None = None) -> None:
    """Copy a store as of now: `target` becomes a data folder. The caller should check the copy."""
    with store_errors(target):
        is_new = make_folder(target)
        if not is_new and any(target.iterdir()):
            raise Unusable(
                f"{target} is not empty, and nothing is overwritten: choose a new folder"
            )
    with store_errors(folder), closing(read_only(folder)) as connection:
        known_version(connection)
        try:
            copy_database(connection, target / STORE, progress, begin_epoch)
        except sqlite3.OperationalError as problem:
            if problem.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise Unusable(f"the disk of {target} is full: free some space") from problem
            raise
    with store_errors(target), closing(read_only(target)) as connection:
        make_mark(target, connection, DISK)


# --- export ---------------------------------------------------------------------------------------


def export(folder: Path) -> Iterator[dict[str, object]]:
    """Every row of every table as of now, as JSON objects. Raises Unusable."""
    with store_errors(folder), closing(read_only(folder)) as connection:
        connection.execute("BEGIN")
        known_version(connection)
        for table in TABLES:
            for row in connection.execute(f"SELECT * FROM {table}"):
                yield row_as_json(table, checked(table, row))


def row_as_json(table: str, row: Row) -> dict[str, object]:
    """A row, without its checksum, as a JSON object. Bytes that are not UTF-8 are in Base64, under
    a name that ends in _base64."""
    found: dict[str, object] = {"table": table}
    names = TABLES[table].content_names
    if len(names) != len(row):
        names = tuple(f"column_{index}" for index in range(len(row)))
    for name, value in zip(names, row, strict=True):
        if name == "properties" and isinstance(value, bytes):
            _add_properties(value, found)
        else:
            _add_value(name, value, found)
    return found


def _add_value(name: str, value: Value, found: dict[str, object]) -> None:
    if isinstance(value, bytes):
        try:
            found[name] = value.decode("utf-8")
        except UnicodeDecodeError:
            found[f"{name}_base64"] = base64.b64encode(value).decode("ascii")
    else:
        found[name] = value


def _add_properties(value: bytes, found: dict[str, object]) -> None:
    try:
        properties: Properties = properties_from(value)
    except Violation:
        found["properties_base64"] = base64.b64encode(value).decode("ascii")
        return
    inner: dict[str, object] = {}
    for name in _PROPERTIES:
        each = getattr(properties, name)
        if isinstance(each, tuple):
            if each:
                inner[name] = each
        elif each is not None:
            _add_value(name, each, inner)
    found["properties"] = inner


# --- adopt ----------------------------------------------------------------------------------------


def adopt(
    folder: Path, stream: str, after: int, discard: Range | None = None, *, dry_run: bool = False
) -> None:
    """Continue a stream after a row that is in its record but unknown to its store.

    This is the state of a store that was restored from a backup: its record has continued without
    it. The seqs of unsealed rows in the store may belong to other rows in the record, or to the
    same ones, which only a person can decide. So raises Unusable if there are such rows, unless
    `discard` is their range. With `dry_run` it only checks, and changes no file.
    """
    if not (folder / STORE).exists():
        raise Unusable(f"{folder} is not a data folder: it has no {STORE}")
    if dry_run:
        with (
            store_errors(folder),
            unused_folder(folder),
            closing(read_only(folder, is_unused=True)) as connection,
        ):
            known_version(connection)
            _stream_to_adopt(Database(connection), stream, after, discard)
        return
    with (
        open_folder(folder) as opened,
        closing(opened.open()) as database,
        store_errors(folder),
        database.transaction(),
    ):
        number = _stream_to_adopt(database, stream, after, discard)
        database.connection.execute("DELETE FROM record WHERE stream_id = ?", (number,))
        database.continue_after(number, after)


def _stream_to_adopt(database: Database, name: str, after: int, discard: Range | None) -> int:
    """The id of the stream, if it can continue after this row. Raises Unusable."""
    streams = {row.name: row for row in database.streams()}
    row = streams.get(name)
    if row is None:
        known = f"it has {', '.join(streams)}" if streams else "it has none"
        raise Unusable(f"the store has no stream {name}: {known}")
    stream, last_seq = row.id, row.last_seq
    if after < last_seq:
        raise Unusable(
            f"stream {name} has assigned numbers up to {last_seq}, and would assign some of them "
            f"again after {after}: numbers only increase"
        )
    first, last, count = database.connection.execute(
        "SELECT min(seq), max(seq), count(*) FROM record WHERE stream_id = ? AND seq > ?",
        (stream, row.sealed_seq),
    ).fetchone()
    if count and discard != (first, last):
        rows = counts.count(count, "row")
        raise Unusable(
            f"stream {name} has {rows}, {first} to {last}, not in its record yet, "
            "and they would be lost: start with a new node name, which keeps them; or, if the "
            "record has them or `semel store export` has saved them, discard them with "
            f"--discard {first}-{last}"
        )
    if discard is not None and not count:
        raise Unusable(f"stream {name} has no rows to discard: all of them are in its record")
    return stream

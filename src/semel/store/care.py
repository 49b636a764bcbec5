"""What people do with a store besides running a broker on it: look, copy, print, and adopt.

All but `adopt` only read, in one transaction each, and work beside a broker.
"""

import base64
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from semel.mqtt.properties import Properties
from semel.mqtt.violation import Violation
from semel.store.check import CheckReport, check_store
from semel.store.database import Database, checked
from semel.store.facts import COMMIT, begin_epoch
from semel.store.facts import facts as all_facts
from semel.store.folder import (
    STORE,
    Lock,
    Progress,
    copy_database,
    explained,
    known_version,
    make_folder,
    open_folder,
    read_only,
)
from semel.store.gaps import Range, known_gaps
from semel.store.log import log_of
from semel.store.mark import make_mark
from semel.store.pages import Gap, Pages
from semel.store.repair import rows_of
from semel.store.rows import properties_from
from semel.store.schema import (
    COLUMNS,
    Row,
    Unusable,
    Value,
    column_names,
    content_of,
    with_checksum,
)
from semel.store.settings import DISK

# What a message in a store may carry, as `Properties` spells it.
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
# A fact of an ingester's store: stream, and the row that follows what may be missing.
_BREAK: Final = re.compile(r"break:([0-9]{1,18}):([0-9]{1,19})", re.ASCII)


# --- looking --------------------------------------------------------------------------------------


def describe(folder: Path) -> dict[str, object]:
    """What is in a store, in numbers."""
    with explained(folder), closing(read_only(folder)) as connection:
        connection.execute("BEGIN")
        version = known_version(connection)
        store = folder / STORE
        log = log_of(store)
        facts = dict(all_facts(connection))
        return {
            "folder": str(folder),
            "format": version,
            "id": facts.get("id"),
            "node": facts.get("node"),
            "made": facts.get("made"),
            "commits": int(facts.get(COMMIT, 0)),
            "bytes": store.stat().st_size,
            "log_bytes": log.stat().st_size if log.exists() else 0,
            **_counts(connection),
            "streams": _streams(connection),
        }


def _counts(connection: sqlite3.Connection) -> dict[str, int]:
    questions = {
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
    return {name: connection.execute(ask).fetchone()[0] for name, ask in questions.items()}


def _streams(connection: sqlite3.Connection) -> list[dict[str, object]]:
    gaps = known_gaps(connection)
    breaks = known_breaks(connection)
    rows = connection.execute(
        "SELECT id, name, last_seq, sealed,"
        " (SELECT count(*) FROM record WHERE stream = id AND seq > sealed) FROM stream ORDER BY id"
    )
    return [
        {
            "name": name,
            "last_seq": last_seq,
            "sealed": sealed,
            "unsealed": unsealed,
            "lost": [list(each) for each in gaps.get(number, [])],
            "breaks": breaks.get(number, []),
        }
        for number, name, last_seq, sealed, unsealed in rows
    ]


def known_breaks(connection: sqlite3.Connection) -> dict[int, list[int]]:
    """By stream, rows before which messages may be missing that a server did not keep for us."""
    found: dict[int, list[int]] = {}
    for name, _ in all_facts(connection, "break:"):
        match = _BREAK.fullmatch(name)
        if match is not None:
            found.setdefault(int(match[1]), []).append(int(match[2]))
    for rows in found.values():
        rows.sort()
    return found


# --- copying --------------------------------------------------------------------------------------


def back_up(folder: Path, target: Path, progress: Progress | None = None) -> CheckReport:
    """A copy of a store as of now: `target` becomes a data folder. Returns a check of the copy."""
    with explained(target):
        is_new = make_folder(target)
        if not is_new and any(target.iterdir()):
            raise Unusable(f"{target} is not empty, and nothing is overwritten: name a new folder")
    with explained(folder), closing(read_only(folder)) as connection:
        known_version(connection)
        try:
            copy_database(connection, target / STORE, progress, begin_epoch)
        except sqlite3.OperationalError as problem:
            if problem.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise Unusable(f"no space is left on the disk of {target}: make some") from problem
            raise
    with explained(target), closing(read_only(target)) as connection:
        make_mark(target, connection, DISK)
    return check_store(target)


# --- printing -------------------------------------------------------------------------------------


def export(folder: Path) -> Iterator[dict[str, object]]:
    """Every row of every table, as one object each, as of now."""
    with explained(folder), closing(read_only(folder)) as connection:
        connection.execute("BEGIN")
        known_version(connection)
        for table in COLUMNS:
            for row in connection.execute(f"SELECT * FROM {table}"):
                yield shown(table, checked(table, row))


def salvage(folder: Path) -> Iterator[dict[str, object] | Gap]:
    """The same of a damaged store that nobody uses: what can be read, and where nothing can."""
    with explained(folder):
        if not (folder / STORE).exists():
            raise Unusable(f"{folder} is no data folder: it has no {STORE}")
        with Lock(folder), Pages(folder / STORE) as pages:
            for table, row in rows_of(pages):
                yield row if isinstance(row, Gap) else _shown_as_found(table, row)


def _shown_as_found(table: str, row: Row) -> dict[str, object]:
    """A row that may be anything: one of format 1 has no checksum."""
    if len(row) != len(column_names(table)):
        return shown(table, row)
    found = shown(table, content_of(table, row))
    if with_checksum(table, content_of(table, row)) != row:
        found["damaged"] = "it is not what was written (its checksum is wrong)"
    return found


def shown(table: str, row: Row) -> dict[str, object]:
    """A row, without its checksum, for JSON. Bytes that are no text are in Base64, under a name
    that says so."""
    found: dict[str, object] = {"table": table}
    names = [name for name in column_names(table) if name != "checksum"]
    if len(names) != len(row):
        names = [f"column_{place}" for place in range(len(row))]
    for name, value in zip(names, row, strict=True):
        if name == "properties" and isinstance(value, bytes):
            _show_properties(value, found)
        else:
            _show(name, value, found)
    return found


def _show(name: str, value: Value, found: dict[str, object]) -> None:
    if isinstance(value, bytes):
        try:
            found[name] = value.decode("utf-8")
        except UnicodeDecodeError:
            found[f"{name}_base64"] = base64.b64encode(value).decode("ascii")
    else:
        found[name] = value


def _show_properties(value: bytes, found: dict[str, object]) -> None:
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
            _show(name, each, inner)
    found["properties"] = inner


# --- adopting -------------------------------------------------------------------------------------


def adopt(
    folder: Path, stream: str, after: int, discard: Range | None = None, *, dry_run: bool = False
) -> None:
    """Let a stream go on after a row that its record has and its store does not know.

    So it is with a store that was restored from a backup: its record went on without it. Rows of
    the store that are not sealed have numbers that the record has given to others, or to the same:
    only a person can tell. So they are in the way, until they are named by `discard`.
    """
    if not (folder / STORE).exists():
        raise Unusable(f"{folder} is no data folder: it has no {STORE}")
    with (
        open_folder(folder) as opened,
        closing(opened.open()) as database,
        explained(folder),
        database.transaction(),
    ):
        _adopt(database, stream, after, discard, dry_run=dry_run)


def _adopt(
    database: Database, name: str, after: int, discard: Range | None, *, dry_run: bool
) -> None:
    connection = database.connection
    streams = {row.name: row for row in database.streams()}
    row = streams.get(name)
    if row is None:
        there = f"it has {', '.join(streams)}" if streams else "it has none"
        raise Unusable(f"the store has no stream {name}: {there}")
    stream, last_seq, sealed = row.id, row.last_seq, row.sealed
    if after < last_seq:
        raise Unusable(
            f"stream {name} has given out numbers up to {last_seq}, and would give some of them "
            f"again after {after}: numbers only go up"
        )
    first, last, count = connection.execute(
        "SELECT min(seq), max(seq), count(*) FROM record WHERE stream = ? AND seq > ?",
        (stream, sealed),
    ).fetchone()
    if count and discard != (first, last):
        raise Unusable(
            f"stream {name} has {count} rows that are not in its record yet, {first} to {last}, "
            "and they would be lost: start with a new node name, which keeps them; or, if the "
            "record has them or `semel store export` has saved them, give them up with "
            f"--discard {first}-{last}"
        )
    if discard is not None and not count:
        raise Unusable(f"stream {name} has no rows to discard: all that it has is in its record")
    if dry_run:
        return
    connection.execute("DELETE FROM record WHERE stream = ?", (stream,))
    database.go_on_after(stream, after)

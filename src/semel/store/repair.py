"""A new store from what can be read of a damaged one, and an account of what cannot.

    pages of the old file and its log ─▶ rows ─▶ judged one by one ─▶ a new database
        ─▶ judged together: what belongs to nothing goes ─▶ checked ─▶ takes the place of the old

The old files are only read, and in the end renamed to store.db.damaged-TIME: nothing is deleted. A
page that cannot be read costs the rows in it; where they belonged is told by the rows before and
after. Streams are never numbered anew: rows that are missing are noted (see `gaps`), so that
whoever seals or reads the record can be told.

A power cut while the files are renamed leaves a folder without store.db, which a broker does not
take for a new one; a repair of that takes up the old files again.
"""

import os
import sqlite3
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from semel.counts import count
from semel.mqtt.topics import quoted
from semel.store.check import (
    OF_SESSIONS,
    OUT_OF_TURN,
    PARTICULARS_OF_NOTHING,
    Report,
    check_store,
    check_tables,
    faulty_deliveries,
)
from semel.store.database import Database, values
from semel.store.facts import COMMIT, EPOCH, begin_epoch, set_fact
from semel.store.folder import (
    STORE,
    Lock,
    check_files,
    explained,
    publish,
    read_only,
    unused,
)
from semel.store.gaps import Range, gap_fact, known_gaps, missing, without
from semel.store.judge import fault_of, key_of
from semel.store.log import log_of
from semel.store.mark import Loss, Mark, make_mark, read_mark
from semel.store.migration import STEPS
from semel.store.pages import Gap, Pages, Unreadable
from semel.store.pages import Row as Found
from semel.store.private_files import new_private, open_new_database, sync
from semel.store.schema import (
    COLUMNS,
    KEYS,
    PAGE_BYTES,
    Damaged,
    NotKnown,
    Row,
    Unusable,
    column_names,
    content_of,
    create,
    with_checksum,
)
from semel.store.settings import DISK

# Tables whose first column is the rowid.
_WITH_ROWID: Final = ("session", "stream", "body", "retained")
# By it a session that is lost still has a name.
_CLIENTS: Final = "sqlite_autoindex_session_1"
# Losses of a session that are told one by one.
_TOLD: Final = 20

_Key = tuple[int, int] | None


class Repair:
    """What became of a store."""

    def __init__(self) -> None:
        # Where the old files are; None: nothing was wrong, and nothing was done.
        self.saved: Path | None = None
        self.kept: dict[str, int] = {}
        # Rows that were read and are not in the new store, by table.
        self.dropped: dict[str, int] = {}
        # Places where rows could not be read, by table: how many rows is not known.
        self.unreadable: dict[str, int] = {}
        # What was lost, by session: the client identifier, or the number if that is lost too.
        self.sessions: dict[str, list[str]] = {}
        # Rows of streams that are lost: name of the stream, first and last seq.
        self.gaps: list[tuple[str, int, int]] = []
        self.notes: list[str] = []
        # Dropped rows: table, row, why. No more than a check tells.
        self.details = Report()

    @property
    def is_complete(self) -> bool:
        """Whether nothing is lost."""
        return not (self.dropped or self.unreadable or self.gaps)


def repair_store(folder: Path, when: str) -> Repair:
    """Repair the store of a folder that nobody uses; `when` is a time for the names of old files.

    Raises Unusable if that cannot be done; then nothing has happened.
    """
    with explained(folder):
        if not folder.is_dir():
            raise Unusable(f"{folder} is no data folder: it is not a folder, or not there")
        with Lock(folder):
            store = folder / STORE
            source = _source(store)
            check_files(source)
            check_files(store)
            if source == store and store.stat().st_size and _is_clean(folder):
                return Repair()
            part = store.with_name(f"{STORE}.part")
            descriptor = new_private(part)
            try:
                with Pages(source) as pages, closing(_new_database(part, descriptor)) as connection:
                    repair = _Salvage(pages, connection, _mark_of(folder)).run()
                    _check_result(connection)
            finally:
                os.close(descriptor)
            if source == store:
                source = unused(store.with_name(f"{STORE}.damaged-{when}"))
                sync(part)
                store.rename(source)
            log = log_of(store)
            if log.exists():
                log.rename(log_of(source))
            publish(part, store)
            with closing(read_only(folder)) as connection:
                make_mark(folder, connection, DISK)
            repair.saved = source
            return repair


def _source(store: Path) -> Path:
    """The file to read: the store, or what a repair that was cut short has renamed it to."""
    if store.exists():
        return store
    saved = sorted(store.parent.glob(f"{store.name}.damaged-*[0-9]"))
    if not saved:
        raise Unusable(f"{store.parent} is no data folder: it has no {STORE}")
    log = log_of(store)
    if log.exists() and not log_of(saved[-1]).exists():
        log.rename(log_of(saved[-1]))
        sync(store.parent)
    return saved[-1]


def _is_clean(folder: Path) -> bool:
    """Whether there is nothing to repair. Raises Unusable if the store is not ours."""
    try:
        return check_store(folder).is_clean
    except Unusable as problem:
        if isinstance(problem.__cause__, NotKnown):
            with Pages(folder / STORE) as pages:
                if pages.version in STEPS:
                    # A check does not know its format, but its rows can be read.
                    return False
        raise


def _mark_of(folder: Path) -> Mark | str | None:
    """The mark, or what is wrong with it."""
    try:
        return read_mark(folder)
    except Damaged as problem:
        return str(problem)


def _new_database(path: Path, descriptor: int) -> sqlite3.Connection:
    connection = open_new_database(path, descriptor)
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    # Nobody else sees it, and it counts when it has been synced.
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    create(connection)
    return connection


def _check_result(connection: sqlite3.Connection) -> None:
    report = Report()
    check_tables(connection, report)
    for finding in report.findings:
        # A mistake of ours. What was there is still there.
        raise Unusable(
            f"the repaired store would not be right ({finding.table}: {finding.row} "
            f"{finding.problem}); nothing was changed, and `semel store export` still reads it"
        )


class _Salvage:
    """One repair: from pages to a new database."""

    def __init__(
        self, pages: Pages, connection: sqlite3.Connection, mark: Mark | str | None
    ) -> None:
        self._pages = pages
        self._mark = mark
        # Rows of format 1 have no checksums.
        self._is_old = pages.version == 1 or (pages.version is None and mark is None)
        self._ask = connection.execute
        self._connection = connection
        self._repair = Repair()
        # Client identifiers by number of session, also of sessions that are lost.
        self._clients: dict[int, str] = {}
        # Where rows of sessions may be missing: table, last key before, first key after.
        self._holes: list[tuple[str, _Key, _Key]] = []

    def run(self) -> Repair:
        """Do it."""
        ask = self._ask
        triggers = ask("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        ask("BEGIN")
        for name, _ in triggers:
            ask(f"DROP TRIGGER {name}")
        self._tell_of_log()
        self._read()
        if self._is_old:
            self._settle_old_deliveries()
        self._tell_of_commits()
        self._settle_streams()
        self._settle_sessions()
        self._settle_bodies()
        self._tell_of_holes()
        for _, definition in triggers:
            ask(definition)
        for table in ("stream", "body"):
            self._write_checksums(table)
        begin_epoch(self._connection)
        ask("COMMIT")
        self._settle_identity()
        for table in COLUMNS:
            self._repair.kept[table] = ask(f"SELECT count(*) FROM {table}").fetchone()[0]
        return self._repair

    def _tell_of_log(self) -> None:
        if self._pages.lost_commits:
            self._repair.notes.append(
                "the last commit in the log is not whole and was not used, as after loss of power: "
                "if that is what happened, it was never acknowledged"
            )
        if self._pages.broken_frames:
            self._repair.notes.append(
                f"the log has {count(self._pages.broken_frames, 'page')} not as written, "
                "used as far as their rows are right"
            )
            self._lose_place("log")

    def _tell_of_commits(self) -> None:
        """What the mark says of commits that are not there any more."""
        if isinstance(self._mark, str):
            self._repair.notes.append(f"{self._mark}: there is a new one now")
            return
        rows = self._ask(
            f"SELECT name, value FROM fact WHERE name IN ('{EPOCH}', '{COMMIT}')"
        ).fetchall()
        facts = dict(rows)
        text = facts.get(COMMIT, "0")
        last = int(text) if text.isdecimal() and text.isascii() else 0
        if self._mark is None or facts.get(EPOCH, self._mark.epoch) != self._mark.epoch:
            return
        if last < self._mark.commit:
            loss = Loss(last, self._mark.commit, self._mark.durability)
            self._repair.notes.append(str(loss))
            self._lose_place("log")
            # Numbers of commits are not given twice.
            set_fact(self._connection, COMMIT, str(self._mark.commit))

    def _settle_old_deliveries(self) -> None:
        """What the flags of a delivery say today."""
        self._ask(
            "UPDATE delivery SET flags = flags | 8 WHERE released = 0 AND EXISTS (SELECT 1 FROM"
            " particular AS one WHERE one.session = delivery.session"
            " AND one.number = delivery.number)"
        )
        self._write_checksums("delivery")

    def _write_checksums(self, table: str) -> None:
        """Rows of this table are what we have made of them."""
        same = " AND ".join(f"{name} = ?" for name in column_names(table)[: KEYS[table]])
        for row in self._ask(f"SELECT * FROM {table}").fetchall():
            right = with_checksum(table, content_of(table, row))
            if right != row:
                keys = KEYS[table]
                self._ask(
                    f"UPDATE {table} SET checksum = ? WHERE {same}", (right[keys], *row[:keys])
                )

    # --- reading ----------------------------------------------------------------------------------

    def _read(self) -> None:
        roots: dict[str, int] = {}
        indexes: list[tuple[str, int]] = []
        for kind, name, root in self._pages.tables():
            if kind == "table":
                roots[name] = root
            elif kind == "index":
                indexes.append((name, root))
        strays = False
        for name, root in indexes:
            for found in self._pages.walk(root):
                if isinstance(found, Gap):
                    strays = True
                elif name == _CLIENTS and len(found.values) == 2:
                    client_id, number = found.values
                    if isinstance(client_id, str) and isinstance(number, int):
                        self._clients[number] = client_id
        for table in COLUMNS:
            root = roots.get(table, 0)
            strays = self._read_table(table, self._pages.walk(root)) or strays
        if strays:
            self._read_strays()

    def _read_table(self, table: str, rows: Iterable[Found | Gap]) -> bool:
        """Put the rows of a table in; whether there are gaps."""
        before: _Key = None
        gaps = 0
        for found in rows:
            if isinstance(found, Gap):
                gaps += 1
                self._lose_place(table)
                self._repair.details.add(table, "", found.why)
                continue
            row = self._put(table, found, told=True)
            if row is not None and table in OF_SESSIONS:
                key = _int_key(table, row)
                if gaps and key is not None:
                    self._holes.append((table, before, key))
                    gaps = 0
                before = key or before
        if gaps and table in OF_SESSIONS:
            self._holes.append((table, before, None))
        return table in self._repair.unreadable

    def _read_strays(self) -> None:
        """What hung on a page that cannot be read."""
        try:
            free = self._pages.free()
        except Unreadable:
            free = set()
            self._repair.notes.append(
                "the list of free pages could not be read: rows that had been deleted may be back"
            )
        for has_rowid, found in self._pages.strays(free):
            if isinstance(found, Gap):
                self._lose_place("unknown")
                continue
            for table, columns in COLUMNS.items():
                wanted = len(columns.split()) - self._is_old
                if (table in _WITH_ROWID) != has_rowid or wanted != len(found.values):
                    continue
                if fault_of(table, self._row(table, found)) is None:
                    self._put(table, found, told=False)
                    break

    def _put(self, table: str, found: Found, *, told: bool) -> Row | None:
        """Put a row into the new database, or tell why not. The row, if it is in."""
        row = self._row(table, found)
        if (table in _WITH_ROWID) != (found.rowid is not None):
            self._drop(table, row, "it is of another kind of table")
            return None
        fault = fault_of(table, row)
        if fault is not None:
            self._drop(table, row, fault)
            return None
        places = values(len(row), 1)
        if self._ask(f"INSERT OR IGNORE INTO {table} VALUES {places}", row).rowcount:
            return row
        if told and not self._is_there(table, row):
            self._drop(table, row, "another row has its place")
        return None

    def _row(self, table: str, found: Found) -> Row:
        """A row as it was, or, if it is of format 1, as it would be today."""
        row = _row_of(found)
        if not self._is_old or len(row) != len(column_names(table)) - 1:
            return row
        if table == "delivery" and row[3]:
            # Of a message that is released, nothing but its QoS is kept.
            row = (*row[:4], 2, *row[5:])
        return with_checksum(table, row)

    def _is_there(self, table: str, row: Row) -> bool:
        names = column_names(table)
        same = " AND ".join(f"{name} = ?" for name in names[: KEYS[table]])
        there = self._ask(f"SELECT * FROM {table} WHERE {same}", row[: KEYS[table]]).fetchone()
        return bool(there == row)

    # --- accounting -------------------------------------------------------------------------------

    def _lose_place(self, table: str) -> None:
        self._repair.unreadable[table] = self._repair.unreadable.get(table, 0) + 1

    def _drop(self, table: str, row: Row, why: str) -> None:
        self._repair.dropped[table] = self._repair.dropped.get(table, 0) + 1
        self._repair.details.add(table, key_of(table, row), why)
        if table == "session":
            self._lose(self._name(row[0], row[1] if len(row) > 1 else None), "the session itself")
        elif table in OF_SESSIONS and isinstance(row[0], int):
            self._lose(self._name(row[0], None), f"{table}: {key_of(table, row)}")

    def _name(self, number: object, client_id: object) -> str:
        if not isinstance(client_id, str) and isinstance(number, int):
            client_id = self._clients.get(number)
            there = self._ask("SELECT client_id FROM session WHERE number = ?", (number,))
            client_id = (there.fetchone() or (client_id,))[0]
        return quoted(client_id) if isinstance(client_id, str) else f"session {number}"

    def _lose(self, name: str, what: str) -> None:
        losses = self._repair.sessions.setdefault(name, [])
        if len(losses) < _TOLD:
            losses.append(what)
        elif len(losses) == _TOLD:
            losses.append("and more")

    def _tell_of_holes(self) -> None:
        """Sessions whose rows may have been where nothing could be read."""
        known = [number for (number,) in self._ask("SELECT number FROM session ORDER BY number")]
        for number in sorted(self._clients.keys() - set(known)):
            self._lose(self._name(number, None), "the session itself")
        for table, before, after in self._holes:
            first = 0 if before is None else bisect_left(known, before[0])
            end = len(known) if after is None else bisect_right(known, after[0])
            for number in known[first:end]:
                what = f"{table}: perhaps some"
                if table != "subscription":
                    if before is not None and before[0] == number:
                        what += f" after {before[1]}"
                    if after is not None and after[0] == number:
                        what += f" before {after[1]}"
                self._lose(self._name(number, None), what)

    # --- what rows say of each other --------------------------------------------------------------

    def _settle_streams(self) -> None:
        ask = self._ask
        nameless = ask(
            "SELECT stream, min(seq), max(seq) FROM record"
            " WHERE stream NOT IN (SELECT id FROM stream) GROUP BY stream"
        ).fetchall()
        for stream, first, last in nameless:
            name = self._unused_name(f"lost-{stream}")
            row = (stream, name, last, first - 1, first - 1)
            ask("INSERT INTO stream VALUES (?, ?, ?, ?, ?, ?)", with_checksum("stream", row))
            self._repair.notes.append(
                f"stream {stream} has lost its name, and is called {name} now"
            )
        ask(
            "UPDATE stream SET last_seq = max(last_seq, coalesce("
            "(SELECT max(seq) FROM record WHERE stream = id), 0))"
        )
        known = known_gaps(self._connection)
        streams = ask("SELECT id, name, last_seq, sealed FROM stream").fetchall()
        for stream, name, last_seq, sealed in streams:
            gaps = missing(self._connection, stream, sealed + 1, last_seq)
            for first, last in without(gaps, known.get(stream, [])):
                self._note_gap(stream, name, (first, last))

    def _unused_name(self, name: str) -> str:
        found = name
        while self._ask("SELECT 1 FROM stream WHERE name = ?", (found,)).fetchone():
            found += "-"
        return found

    def _note_gap(self, stream: int, name: str, gap: Range) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        set_fact(self._connection, gap_fact(stream, *gap), when)
        self._repair.gaps.append((name, *gap))

    def _settle_sessions(self) -> None:
        """Rows of sessions that are not, and deliveries that cannot be together."""
        for table in OF_SESSIONS:
            self._delete(
                table,
                f"SELECT * FROM {table} WHERE session NOT IN (SELECT number FROM session)",
                "its session is not there",
            )
        for row, why in list(faulty_deliveries(self._connection)):
            self._delete_row("delivery", row, why)
        self._delete(
            "delivery",
            "SELECT * FROM delivery WHERE packet_id > 0 AND (session, number) NOT IN (SELECT"
            " session, min(number) FROM delivery WHERE packet_id > 0 GROUP BY session, packet_id)",
            "another one has its identifier",
        )
        self._delete(
            "delivery",
            f"SELECT * FROM delivery WHERE (session, number) IN ({OUT_OF_TURN})",
            "it was sent, but one before it waits",
        )
        self._delete(
            "particular",
            f"SELECT * FROM particular WHERE (session, number) IN ({PARTICULARS_OF_NOTHING})",
            "its delivery is not there",
        )

    def _delete(self, table: str, question: str, why: str) -> None:
        for row in self._ask(question).fetchall():
            self._delete_row(table, row, why)

    def _delete_row(self, table: str, row: Row, why: str) -> None:
        same = " AND ".join(f"{name} = ?" for name in column_names(table)[: KEYS[table]])
        self._ask(f"DELETE FROM {table} WHERE {same}", row[: KEYS[table]])
        self._drop(table, row, why)

    def _settle_bodies(self) -> None:
        ask = self._ask
        ask("CREATE TEMP TABLE used (body INTEGER PRIMARY KEY, times INTEGER)")
        ask(
            "INSERT INTO used SELECT body, count(*) FROM particular WHERE body IS NOT NULL"
            " GROUP BY body"
        )
        self._delete(
            "body",
            "SELECT id, uses, x'' FROM body WHERE id NOT IN (SELECT body FROM used)",
            "no delivery has it",
        )
        ask("UPDATE body SET uses = (SELECT times FROM used WHERE body = id)")
        ask("DROP TABLE used")

    def _settle_identity(self) -> None:
        database = Database(self._connection)
        if database.fact("id") is None:
            self._repair.notes.append(
                f"the id of the store is lost; it is {database.new_identity()} now; the record of "
                "its streams belongs to another: start with a new node name"
            )


def _row_of(found: Found) -> Row:
    """The row as SQLite would give it: the rowid is its first column, if it has one."""
    return found.values if found.rowid is None else (found.rowid, *found.values[1:])


def _int_key(table: str, row: Row) -> _Key:
    """Session and number of a row; of a subscription, which has none, 0."""
    session, number = row[0], row[1]
    assert isinstance(session, int)
    return session, number if isinstance(number, int) else 0


def rows_of(pages: Pages) -> Iterator[tuple[str, Row | Gap]]:
    """All rows of all tables as they stand, and the gaps: for an export."""
    roots = {name: root for kind, name, root in pages.tables() if kind == "table"}
    for table in COLUMNS:
        for found in pages.walk(roots.get(table, 0)):
            yield table, found if isinstance(found, Gap) else _row_of(found)

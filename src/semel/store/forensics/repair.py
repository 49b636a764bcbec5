"""Makes a new store from the intact rows of a damaged one, and reports what is lost.

    pages of the old file and its log ─▶ rows ─▶ each row checked ─▶ a new database
        ─▶ relations checked: orphans are dropped ─▶ whole store checked ─▶ replaces the old one

The old files are only read, and finally renamed to store.db.damaged-TIME; nothing is deleted. The
rows of an unreadable page are lost; the rows before and after it show which sessions are affected.
Streams are never renumbered: missing rows are recorded (see `gaps`), so that the sealer and readers
of the record know about them.

A power failure while the files are renamed leaves a folder without store.db, which a broker does
not treat as a new one; the next repair continues with the renamed files.
"""

import os
import sqlite3
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from semel.counts import count
from semel.mqtt.topics import quoted
from semel.store.database import TABLES_OF_SESSIONS, Database, insert_into
from semel.store.folder import (
    STORE,
    Lock,
    check_files,
    publish,
    read_only,
    store_errors,
    unused,
)
from semel.store.forensics.check import (
    EXTRAS_WITHOUT_DELIVERY,
    SENT_OUT_OF_ORDER,
    CheckReport,
    check_store,
    check_tables,
    faulty_deliveries,
)
from semel.store.forensics.pages import Gap, PageRow, Pages, Unreadable
from semel.store.gaps import Range, gap_name, known_gaps, missing, without
from semel.store.mark import Loss, Mark, make_mark, read_mark
from semel.store.metadata import COMMIT, EPOCH, ID, begin_epoch, set_metadata
from semel.store.migration import FORMAT_1, STEPS, upgraded_row
from semel.store.private_files import new_private, open_new_database, sync
from semel.store.row_check import describe_key, fault_of
from semel.store.row_flags import HAS_EXTRA
from semel.store.schema import (
    PAGE_BYTES,
    TABLES,
    VERSION,
    Damaged,
    Row,
    UnknownFormat,
    Unusable,
    content_of,
    create,
    with_checksum,
)
from semel.store.settings import DISK
from semel.store.wal import log_path

# This index may still have the client identifier of a session whose row is lost.
_CLIENT_ID_INDEX: Final = "sqlite_autoindex_session_1"
# How many losses of a session are listed one by one.
_MAXIMUM_LOSSES: Final = 20

_Key = tuple[int, int] | None


class RepairReport:
    """The result of a repair: what it has kept, and what is lost."""

    def __init__(self) -> None:
        # The path of the old store; None: the store is intact and was not changed.
        self.saved: Path | None = None
        self.kept: dict[str, int] = {}
        # By table: the number of rows that were read, but are not in the new store.
        self.dropped: dict[str, int] = {}
        # By table: the number of places where rows could not be read; how many rows is unknown.
        self.unreadable: dict[str, int] = {}
        # By client identifier, or by session id if that is lost too: the losses of a session.
        self.sessions: dict[str, list[str]] = {}
        # Lost rows of streams: the name of the stream, the first and the last seq.
        self.gaps: list[tuple[str, int, int]] = []
        self.notes: list[str] = []
        # The dropped rows, as findings.
        self.details = CheckReport()

    @property
    def is_complete(self) -> bool:
        """Whether nothing is lost."""
        return not (self.dropped or self.unreadable or self.gaps)


def repair_store(folder: Path, when: str) -> RepairReport:
    """Repair the store of a folder that nobody uses; `when` is a time for the names of old files.

    Raises Unusable if this is impossible; then nothing was changed.
    """
    with store_errors(folder):
        if not folder.is_dir():
            problem = "it is not a folder" if folder.exists() else "it does not exist"
            raise Unusable(f"{folder} is not a data folder: {problem}")
        with Lock(folder):
            store = folder / STORE
            source = _source(store)
            check_files(source)
            check_files(store)
            if source == store and store.stat().st_size and _is_clean(folder):
                return RepairReport()
            part = store.with_name(f"{STORE}.part")
            descriptor = new_private(part)
            try:
                with Pages(source) as pages, closing(_new_database(part, descriptor)) as connection:
                    report = _Repair(pages, connection, _mark_of(folder)).run()
                    _check_result(connection)
            finally:
                os.close(descriptor)
            if source == store:
                source = unused(store.with_name(f"{STORE}.damaged-{when}"))
                sync(part)
                store.rename(source)
            log = log_path(store)
            if log.exists():
                log.rename(log_path(source))
            publish(part, store)
            with closing(read_only(folder)) as connection:
                make_mark(folder, connection, DISK)
            report.saved = source
            return report


def _source(store: Path) -> Path:
    """The file to read: the store, or the file to which an interrupted repair has renamed it."""
    if store.exists():
        return store
    saved = sorted(store.parent.glob(f"{store.name}.damaged-*[0-9]"))
    if not saved:
        raise Unusable(f"{store.parent} is not a data folder: it has no {STORE}")
    log = log_path(store)
    if log.exists() and not log_path(saved[-1]).exists():
        log.rename(log_path(saved[-1]))
        sync(store.parent)
    return saved[-1]


def _is_clean(folder: Path) -> bool:
    """Whether there is nothing to repair. Raises Unusable if the file is not a store."""
    try:
        return check_store(folder).is_clean
    except Unusable as problem:
        if isinstance(problem.__cause__, UnknownFormat):
            with Pages(folder / STORE) as pages:
                if pages.version in STEPS:
                    # A check refuses an older format, but its rows can be read.
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
    # No journal and no sync: nobody opens the file before `publish` has synced it.
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    create(connection)
    return connection


def _check_result(connection: sqlite3.Connection) -> None:
    report = CheckReport()
    check_tables(connection, report)
    for finding in report.findings:
        # This would be a bug. The old files are unchanged.
        raise Unusable(
            f"the repaired store would be invalid ({finding.table}: {finding.row} "
            f"{finding.problem}): nothing was changed; `semel store export --salvage` prints its"
            " rows"
        )


class _Repair:
    """One repair: fills a new database with the rows of the old pages."""

    def __init__(
        self, pages: Pages, connection: sqlite3.Connection, mark: Mark | str | None
    ) -> None:
        self._pages = pages
        self._mark = mark
        # The formats that rows may have: several if the first page, which states it, is lost.
        # Format 1 had no mark.
        self._formats: tuple[int, ...] = (1,) if mark is None else (VERSION, 2)
        if pages.version is not None:
            self._formats = (pages.version,)
        self._run = connection.execute
        self._connection = connection
        self._report = RepairReport()
        # Client identifiers by session, including those of lost sessions.
        self._client_ids: dict[int, str] = {}
        # Places where rows of sessions may be missing: table, last key before, first key after.
        self._holes: list[tuple[str, _Key, _Key]] = []

    def run(self) -> RepairReport:
        """Fill the new database. Returns the report."""
        run = self._run
        triggers = run("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        run("BEGIN")
        for name, _ in triggers:
            run(f"DROP TRIGGER {name}")
        self._report_log()
        self._read()
        if 1 in self._formats:
            self._set_extra_flags()
        self._report_lost_commits()
        self._repair_streams()
        self._drop_orphans()
        self._count_shared_payloads()
        self._report_holes()
        for _, definition in triggers:
            run(definition)
        for table in ("stream", "shared_payload"):
            self._write_checksums(table)
        begin_epoch(self._connection)
        run("COMMIT")
        self._restore_unique_id()
        for table in TABLES:
            self._report.kept[table] = run(f"SELECT count(*) FROM {table}").fetchone()[0]
        return self._report

    def _report_log(self) -> None:
        if self._pages.lost_commits:
            self._report.notes.append(
                "the last commit in the log is incomplete and was not used: after kill -9 or a "
                "loss of power that is expected, and it was never acknowledged"
            )
        if self._pages.broken_frames:
            self._report.notes.append(
                f"the log has {count(self._pages.broken_frames, 'damaged page')}, whose intact rows"
                " were used"
            )
            self._count_unreadable("log")

    def _report_lost_commits(self) -> None:
        """Compare the number of commits with the mark."""
        if isinstance(self._mark, str):
            self._report.notes.append(f"{self._mark}: it was replaced")
            return
        rows = self._run(
            f"SELECT name, value FROM metadata WHERE name IN ('{EPOCH}', '{COMMIT}')"
        ).fetchall()
        metadata = dict(rows)
        text = metadata.get(COMMIT, "0")
        last = int(text) if text.isdecimal() and text.isascii() else 0
        if self._mark is None or metadata.get(EPOCH, self._mark.epoch) != self._mark.epoch:
            return
        if last < self._mark.commit:
            loss = Loss(last, self._mark.commit, self._mark.durability)
            self._report.notes.append(str(loss))
            self._count_unreadable("log")
            # So that commit numbers are not assigned twice.
            set_metadata(self._connection, COMMIT, str(self._mark.commit))

    def _set_extra_flags(self) -> None:
        """Flag deliveries that have extra columns, which format 1 did not do."""
        self._run(
            f"UPDATE delivery SET flags = flags | {HAS_EXTRA} WHERE release_number = 0"
            " AND (session_id, number) IN (SELECT session_id, number FROM delivery_extra)"
        )
        self._write_checksums("delivery")

    def _write_checksums(self, table: str) -> None:
        """Update the checksums of a table whose rows were changed here."""
        key_size = TABLES[table].key_size
        for row in self._run(f"SELECT * FROM {table}").fetchall():
            right = with_checksum(table, content_of(table, row))
            if right != row:
                self._run(
                    f"UPDATE {table} SET checksum = ? WHERE {_same_key(table)}",
                    (right[key_size], *row[:key_size]),
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
        has_strays = False
        for name, root in indexes:
            for found in self._pages.walk(root):
                if isinstance(found, Gap):
                    has_strays = True
                elif name == _CLIENT_ID_INDEX and len(found.values) == 2:
                    client_id, session = found.values
                    if isinstance(client_id, str) and isinstance(session, int):
                        self._client_ids[session] = client_id
        for table in TABLES:
            rows = self._pages.walk(root_page(roots, table))
            has_strays = self._read_table(table, rows) or has_strays
        if has_strays:
            self._read_strays()

    def _read_table(self, table: str, rows: Iterable[PageRow | Gap]) -> bool:
        """Insert the rows of a table. Returns whether there are gaps."""
        before: _Key = None
        gaps = 0
        for found in rows:
            if isinstance(found, Gap):
                gaps += 1
                self._count_unreadable(table)
                self._report.details.add(table, "", found.why)
                continue
            row = self._insert(table, found, is_reported=True)
            if row is not None and table in TABLES_OF_SESSIONS:
                key = _int_key(row)
                if gaps and key is not None:
                    self._holes.append((table, before, key))
                    gaps = 0
                before = key or before
        if gaps and table in TABLES_OF_SESSIONS:
            self._holes.append((table, before, None))
        return table in self._report.unreadable

    def _read_strays(self) -> None:
        """Insert the rows of pages below an unreadable page."""
        try:
            free = self._pages.free()
        except Unreadable:
            free = set()
            self._report.notes.append(
                "the list of free pages is damaged: rows that had been deleted may be back"
            )
        for has_rowid, found in self._pages.strays(free):
            if isinstance(found, Gap):
                self._count_unreadable("unknown")
                continue
            for table in TABLES.values():
                if table.has_rowid != has_rowid:
                    continue
                if fault_of(table.name, self._current_row(table.name, found)) is None:
                    self._insert(table.name, found, is_reported=False)
                    break

    def _insert(self, table: str, found: PageRow, *, is_reported: bool) -> Row | None:
        """Insert a row into the new database, or report why not. Returns the inserted row."""
        row = self._current_row(table, found)
        if TABLES[table].has_rowid != (found.rowid is not None):
            self._drop(table, row, "it belongs to another type of table")
            return None
        fault = fault_of(table, row)
        if fault is not None:
            self._drop(table, row, fault)
            return None
        if self._run(insert_into(table, "INSERT OR IGNORE"), row).rowcount:
            return row
        if is_reported and not self._is_inserted(table, row):
            self._drop(table, row, "another row has its key")
        return None

    def _current_row(self, table: str, found: PageRow) -> Row:
        """A row in the current format, whether it was stored in that or in an older one."""
        row = stored_row(found)
        *likely, last = [upgraded_row(table, row, version) for version in self._formats]
        for current in likely:
            if fault_of(table, current) is None:
                return current
        return last

    def _is_inserted(self, table: str, row: Row) -> bool:
        key = row[: TABLES[table].key_size]
        found = self._run(f"SELECT * FROM {table} WHERE {_same_key(table)}", key).fetchone()
        return bool(found == row)

    # --- reporting --------------------------------------------------------------------------------

    def _count_unreadable(self, table: str) -> None:
        self._report.unreadable[table] = self._report.unreadable.get(table, 0) + 1

    def _drop(self, table: str, row: Row, why: str) -> None:
        self._report.dropped[table] = self._report.dropped.get(table, 0) + 1
        self._report.details.add(table, describe_key(table, row), why)
        if table == "session":
            session, client_id = (*row, None, None)[:2]
            self._add_loss(self._client_name(session, client_id), "the session itself")
        elif table in TABLES_OF_SESSIONS and row and isinstance(row[0], int):
            self._add_loss(self._client_name(row[0], None), f"{table}: {describe_key(table, row)}")

    def _client_name(self, session: object, client_id: object) -> str:
        if not isinstance(client_id, str) and isinstance(session, int):
            client_id = self._client_ids.get(session)
            found = self._run("SELECT client_id FROM session WHERE id = ?", (session,))
            client_id = (found.fetchone() or (client_id,))[0]
        return quoted(client_id) if isinstance(client_id, str) else f"session {session}"

    def _add_loss(self, client: str, what: str) -> None:
        losses = self._report.sessions.setdefault(client, [])
        if len(losses) < _MAXIMUM_LOSSES:
            losses.append(what)
        elif len(losses) == _MAXIMUM_LOSSES:
            losses.append("and more")

    def _report_holes(self) -> None:
        """Report the sessions whose rows may have been in an unreadable place."""
        known = [session for (session,) in self._run("SELECT id FROM session ORDER BY id")]
        for session in sorted(self._client_ids.keys() - set(known)):
            self._add_loss(self._client_name(session, None), "the session itself")
        for table, before, after in self._holes:
            first = 0 if before is None else bisect_left(known, before[0])
            end = len(known) if after is None else bisect_right(known, after[0])
            for session in known[first:end]:
                what = f"{table}: perhaps some"
                if table != "subscription":
                    if before is not None and before[0] == session:
                        what += f" after {before[1]}"
                    if after is not None and after[0] == session:
                        what += f" before {after[1]}"
                self._add_loss(self._client_name(session, None), what)

    # --- relations between rows -------------------------------------------------------------------

    def _repair_streams(self) -> None:
        run = self._run
        nameless = run(
            "SELECT stream_id, min(seq), max(seq) FROM record"
            " WHERE stream_id NOT IN (SELECT id FROM stream) GROUP BY stream_id"
        ).fetchall()
        for stream, first, last in nameless:
            name = self._unused_name(f"lost-{stream}")
            row = (stream, name, last, first - 1, first - 1)
            run(insert_into("stream"), with_checksum("stream", row))
            self._report.notes.append(f"stream {stream} has lost its name: it is now {name}")
        run(
            "UPDATE stream SET last_seq = max(last_seq, coalesce("
            "(SELECT max(seq) FROM record WHERE stream_id = id), 0))"
        )
        known = known_gaps(self._connection)
        streams = run("SELECT id, name, last_seq, sealed_seq FROM stream").fetchall()
        for stream, name, last_seq, sealed_seq in streams:
            gaps = missing(self._connection, stream, sealed_seq + 1, last_seq)
            for first, last in without(gaps, known.get(stream, [])):
                self._record_gap(stream, name, (first, last))

    def _unused_name(self, name: str) -> str:
        found = name
        while self._run("SELECT 1 FROM stream WHERE name = ?", (found,)).fetchone():
            found += "-"
        return found

    def _record_gap(self, stream: int, name: str, gap: Range) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        set_metadata(self._connection, gap_name(stream, *gap), when)
        self._report.gaps.append((name, *gap))

    def _drop_orphans(self) -> None:
        """Drop rows whose session is missing, and deliveries that contradict each other."""
        for table in TABLES_OF_SESSIONS:
            self._delete(
                table,
                f"SELECT * FROM {table} WHERE session_id NOT IN (SELECT id FROM session)",
                "its session is missing",
            )
        for row, why in list(faulty_deliveries(self._connection)):
            self._delete_row("delivery", row, why)
        self._delete(
            "delivery",
            "SELECT * FROM delivery WHERE packet_id > 0 AND (session_id, number) NOT IN"
            " (SELECT session_id, min(number) FROM delivery WHERE packet_id > 0"
            " GROUP BY session_id, packet_id)",
            "another delivery has its identifier",
        )
        self._delete(
            "delivery",
            f"SELECT * FROM delivery WHERE (session_id, number) IN ({SENT_OUT_OF_ORDER})",
            "it was sent before an earlier one",
        )
        self._delete(
            "delivery_extra",
            "SELECT * FROM delivery_extra"
            f" WHERE (session_id, number) IN ({EXTRAS_WITHOUT_DELIVERY})",
            "its delivery is missing",
        )

    def _delete(self, table: str, query: str, why: str) -> None:
        for row in self._run(query).fetchall():
            self._delete_row(table, row, why)

    def _delete_row(self, table: str, row: Row, why: str) -> None:
        key = row[: TABLES[table].key_size]
        self._run(f"DELETE FROM {table} WHERE {_same_key(table)}", key)
        self._drop(table, row, why)

    def _count_shared_payloads(self) -> None:
        run = self._run
        run("CREATE TEMP TABLE used (payload_id INTEGER PRIMARY KEY, uses INTEGER)")
        run(
            "INSERT INTO used SELECT shared_payload_id, count(*) FROM delivery_extra"
            " WHERE shared_payload_id IS NOT NULL GROUP BY shared_payload_id"
        )
        # Select no payloads, because they may be large.
        self._delete(
            "shared_payload",
            "SELECT id, use_count, x'' FROM shared_payload"
            " WHERE id NOT IN (SELECT payload_id FROM used)",
            "no delivery has it",
        )
        run("UPDATE shared_payload SET use_count = (SELECT uses FROM used WHERE payload_id = id)")
        run("DROP TABLE used")

    def _restore_unique_id(self) -> None:
        database = Database(self._connection)
        if database.get_metadata(ID) is None:
            self._report.notes.append(
                f"the store has lost its id and has a new one, {database.new_unique_id()}: the"
                " record of its streams belongs to the old id, so start with a new node name"
            )


def _same_key(table: str) -> str:
    """The SQL condition that selects a row by its key."""
    return " AND ".join(f"{name} = ?" for name in TABLES[table].key_names)


def _int_key(row: Row) -> _Key:
    """Session and number of a row; 0 for a subscription, which has no number."""
    session, number = row[0], row[1]
    assert isinstance(session, int)
    return session, number if isinstance(number, int) else 0


def stored_row(found: PageRow) -> Row:
    """The row as SQLite would return it, with its rowid, if it has one, as the first column."""
    return found.values if found.rowid is None else (found.rowid, *found.values[1:])


def root_page(roots: Mapping[str, int], table: str) -> int:
    """The root page of a table, under its current name or its name in format 1; 0: missing."""
    return roots.get(table) or roots.get(FORMAT_1[table][0], 0)

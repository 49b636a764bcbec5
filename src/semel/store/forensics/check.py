"""Checks a store: its log, its pages, its tables, each row, and the relations between rows.

It only reads, in one transaction, and may run while a broker writes to the store.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from semel import counts
from semel.store.database import TABLES_OF_SESSIONS, as_sentence
from semel.store.folder import STORE, is_damage, known_version, read_only, store_errors
from semel.store.forensics.log_frames import intact_frames
from semel.store.gaps import known_gaps, missing, without
from semel.store.mark import MARK, Mark, loss_of, read_mark
from semel.store.row_check import describe_key, fault_of, fault_of_delivery
from semel.store.schema import TABLES, Damaged, Row, objects, objects_in
from semel.store.wal import WriteAheadLog, log_path

# How many findings are kept; further ones are counted.
MAXIMUM_FINDINGS: Final = 1_000
# How many times the log is read, if a broker restarts it meanwhile.
_ATTEMPTS: Final = 5

# A delivery, its extra columns, and its shared payload.
_WHOLE_DELIVERIES: Final = """
    SELECT delivery.*, delivery_extra.*, shared_payload.payload FROM delivery
    LEFT JOIN delivery_extra USING (session_id, number)
    LEFT JOIN shared_payload ON shared_payload.id = delivery_extra.shared_payload_id
"""
EXTRAS_WITHOUT_DELIVERY: Final = """
    SELECT session_id, number FROM delivery_extra AS extra WHERE NOT EXISTS (
        SELECT * FROM delivery WHERE session_id = extra.session_id AND number = extra.number)
"""
_DUPLICATE_PACKET_IDS: Final = """
    SELECT session_id, packet_id, count(*) FROM delivery WHERE packet_id > 0
    GROUP BY session_id, packet_id HAVING count(*) > 1
"""
# Deliveries are sent in the order of their numbers.
SENT_OUT_OF_ORDER: Final = """
    SELECT sent.session_id, sent.number FROM delivery AS sent
    JOIN (SELECT session_id, min(number) AS first FROM delivery WHERE packet_id = 0
        GROUP BY session_id) AS backlog ON backlog.session_id = sent.session_id
    WHERE sent.packet_id > 0 AND sent.number > backlog.first
"""
_WRONG_USE_COUNTS: Final = """
    SELECT id, use_count, coalesce(actual, 0) FROM shared_payload
    LEFT JOIN (SELECT shared_payload_id, count(*) AS actual FROM delivery_extra
        WHERE shared_payload_id IS NOT NULL GROUP BY shared_payload_id)
        ON shared_payload_id = id
    WHERE use_count != coalesce(actual, 0)
"""


class StoreFinding:
    """One problem: the table, the row, and what is wrong."""

    def __init__(self, table: str, row: str, problem: str) -> None:
        self.table = table
        self.row = row
        self.problem = problem


class CheckReport:
    """The findings of a check; `rows` is the number of checked rows by table."""

    def __init__(self) -> None:
        self.findings: list[StoreFinding] = []
        # The number of findings that are not kept.
        self.more = 0
        self.rows: dict[str, int] = {}
        # Observations that are not problems.
        self.notes: list[str] = []
        self._known: set[tuple[str, str, str]] = set()

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def add(self, table: str, row: str, problem: str) -> None:
        """Add a finding, unless it has been added before."""
        if (table, row, problem) in self._known:
            return
        if len(self.findings) < MAXIMUM_FINDINGS:
            self._known.add((table, row, problem))
            self.findings.append(StoreFinding(table, row, problem))
        else:
            self.more += 1


def check_store(folder: Path) -> CheckReport:
    """Check everything. Raises Unusable if the store cannot be opened, or is not a store."""
    report = CheckReport()
    with store_errors(folder):
        # Read the mark first: it is never ahead of the store, and both may advance meanwhile.
        mark: Mark | None = None
        with _damage_as_finding(MARK, report):
            mark = read_mark(folder)
            if mark is None:
                report.notes.append(
                    f"{MARK} is missing: a log that has lost its end cannot be detected"
                )
        _check_log(folder / STORE, report)
        with _damage_as_finding(STORE, report), closing(read_only(folder)) as connection:
            connection.execute("BEGIN")
            check_tables(connection, report)
            with _damage_as_finding(MARK, report):
                _check_mark(connection, mark, report)
    return report


def _check_mark(connection: sqlite3.Connection, mark: Mark | None, report: CheckReport) -> None:
    loss = loss_of(connection, mark)
    if loss is None:
        return
    if loss.is_expected:
        report.notes.append(f"{loss}, as expected after a loss of power with durability os")
    else:
        report.add(STORE, f"commit {loss.last}", str(loss))


def check_tables(connection: sqlite3.Connection, report: CheckReport) -> None:
    """Check everything except the log and the mark."""
    _check_file(connection, report)
    for table in TABLES:
        with _damage_as_finding(table, report):
            _check_rows(connection, table, report)
    _check_sessions(connection, report)
    _check_streams(connection, report)


@contextmanager
def _damage_as_finding(table: str, report: CheckReport) -> Iterator[None]:
    """A context that turns damage into a finding."""
    try:
        yield
    except Damaged as problem:
        report.add(table, "", str(problem))
    except UnicodeDecodeError as problem:
        # SQLite's message contains the damaged name.
        report.add(table, "", f"cannot be read: a name is not text ({problem})")
    except sqlite3.Error as problem:
        if not is_damage(problem):
            raise
        report.add(table, "", f"cannot be read: {as_sentence(problem)}")


def _check_log(store: Path, report: CheckReport) -> None:
    path = log_path(store)
    for _ in range(_ATTEMPTS):
        if not path.exists() or not path.stat().st_size:
            return
        log = WriteAheadLog(path)
        intact = intact_frames(log)
        if all(intact[: log.synced]) and log.has_header:
            return
        if WriteAheadLog(path).salts == log.salts:
            break
    else:
        return
    if not log.has_header:
        if path.stat().st_size > log.offset(0):
            report.add(path.name, "", "the header of the log is damaged: SQLite would ignore it")
        return
    frame = intact.index(False)
    after = counts.count(log.commits(frame), "commit")
    report.add(
        path.name,
        f"frame {frame + 1}",
        f"the log is damaged here: {after} after it would be lost",
    )


def _check_file(connection: sqlite3.Connection, report: CheckReport) -> None:
    """Check application id, format, pages, and the definitions of the tables."""
    try:
        known_version(connection)
    except Damaged as problem:
        report.add(STORE, "", str(problem))
    with _damage_as_finding(STORE, report):
        for (text,) in connection.execute(f"PRAGMA integrity_check({MAXIMUM_FINDINGS})"):
            for line in text.splitlines():
                if line != "ok" and not line.startswith("*** in database"):
                    report.add(STORE, "", line)
    found = objects_in(connection)
    for name, definition in objects().items():
        if name not in found:
            report.add(name, "", "is missing")
        elif found[name] != definition:
            report.add(name, "", "has another definition")


def _check_rows(connection: sqlite3.Connection, table: str, report: CheckReport) -> None:
    report.rows[table] = 0
    for row in connection.execute(f"SELECT {', '.join(TABLES[table].column_names)} FROM {table}"):
        report.rows[table] += 1
        fault = fault_of(table, row)
        if fault is not None:
            report.add(table, describe_key(table, row), fault)


def faulty_deliveries(connection: sqlite3.Connection) -> Iterator[tuple[Row, str]]:
    """Deliveries that contradict their extra columns or shared payload, and why."""
    columns = len(TABLES["delivery"].columns)
    for row in connection.execute(_WHOLE_DELIVERIES):
        delivery, extra, shared_payload = row[:columns], row[columns:-1], row[-1]
        if fault_of("delivery", delivery) is not None:
            continue
        # LEFT JOIN fills the columns of a missing row with NULL.
        if extra[0] is None:
            fault = fault_of_delivery(delivery, None, shared_payload)
        elif fault_of("delivery_extra", extra) is None:
            fault = fault_of_delivery(delivery, extra, shared_payload)
        else:
            continue
        if fault is not None:
            yield delivery, fault


def _check_sessions(connection: sqlite3.Connection, report: CheckReport) -> None:
    query = connection.execute
    for table in TABLES_OF_SESSIONS:
        with _damage_as_finding(table, report):
            rows = query(
                f"SELECT session_id, count(*) FROM {table}"
                " WHERE session_id NOT IN (SELECT id FROM session) GROUP BY session_id"
            )
            for session, count in rows:
                rows_of_session = counts.count(count, "row")
                report.add(
                    table, f"session {session}", f"{rows_of_session} of a session that is missing"
                )
    with _damage_as_finding("delivery", report):
        for row, fault in faulty_deliveries(connection):
            report.add("delivery", describe_key("delivery", row), fault)
        for session, number in query(EXTRAS_WITHOUT_DELIVERY):
            where = f"session {session}, number {number}"
            report.add("delivery_extra", where, "its delivery is missing")
        for session, packet_id, count in query(_DUPLICATE_PACKET_IDS):
            where = f"session {session}, packet_id {packet_id}"
            report.add("delivery", where, f"{count} deliveries have this identifier")
        for session, number in query(SENT_OUT_OF_ORDER):
            where = f"session {session}, number {number}"
            report.add("delivery", where, "it was sent before an earlier one")
    with _damage_as_finding("shared_payload", report):
        for payload_id, use_count, actual in query(_WRONG_USE_COUNTS):
            users = counts.count(actual, "delivery has", "deliveries have")
            report.add(
                "shared_payload",
                f"id {payload_id}",
                f"use_count is {use_count}, but {users} it",
            )


def _check_streams(connection: sqlite3.Connection, report: CheckReport) -> None:
    query = connection.execute
    with _damage_as_finding("record", report):
        for stream, count in query(
            "SELECT stream_id, count(*) FROM record WHERE stream_id NOT IN (SELECT id FROM stream)"
            " GROUP BY stream_id"
        ):
            rows_of_stream = counts.count(count, "row")
            report.add(
                "record", f"stream {stream}", f"{rows_of_stream} of a stream that is missing"
            )
        known = known_gaps(connection)
        streams = query("SELECT id, last_seq, sealed_seq FROM stream").fetchall()
        for stream, last_seq, sealed_seq in streams:
            if not isinstance(last_seq, int) or not isinstance(sealed_seq, int):
                # A finding of `_check_rows`.
                continue
            gaps = missing(connection, stream, sealed_seq + 1, last_seq)
            for first, last in without(gaps, known.get(stream, [])):
                report.add("record", f"stream {stream}, seq {first} to {last}", "are missing")
            highest = query(
                "SELECT max(seq) FROM record WHERE stream_id = ?", (stream,)
            ).fetchone()[0]
            if isinstance(highest, int) and highest > last_seq:
                where = f"stream {stream}, seq {last_seq + 1} to {highest}"
                report.add("record", where, "are after the last of the stream")

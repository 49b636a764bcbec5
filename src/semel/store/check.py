"""Whether a store is what it should be: its log, its pages, its tables, each row, and all together.

The check reads, and only reads, in one transaction: it may be made beside a broker at work. While
it lasts, the log of that broker grows.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from semel import counts
from semel.store.database import as_sentence
from semel.store.folder import STORE, explained, is_damage, known_version, read_only
from semel.store.gaps import known_gaps, missing, without
from semel.store.judge import fault_of, fault_of_delivery, key_of
from semel.store.log import Log, log_of
from semel.store.mark import MARK, Mark, loss_of, read_mark
from semel.store.schema import COLUMNS, Damaged, Row, column_names, objects, objects_in

# Tables whose rows belong to a session.
OF_SESSIONS: Final = ("subscription", "inbound", "delivery", "particular", "inbox")

# Findings that are kept; the others are counted.
MOST: Final = 1_000
# How often a log is looked at that a broker begins anew meanwhile.
_ATTEMPTS: Final = 5

# A delivery, what is particular about it, and its payload if that is elsewhere.
DELIVERIES: Final = """
    SELECT delivery.*, particular.*, body.payload FROM delivery
    LEFT JOIN particular USING (session, number) LEFT JOIN body ON body.id = particular.body
"""
# What is particular about nothing.
PARTICULARS_OF_NOTHING: Final = """
    SELECT session, number FROM particular AS one WHERE NOT EXISTS (
        SELECT * FROM delivery WHERE session = one.session AND number = one.number)
"""
_SAME_IDENTIFIER: Final = """
    SELECT session, packet_id, count(*) FROM delivery WHERE packet_id > 0
    GROUP BY session, packet_id HAVING count(*) > 1
"""
# Deliveries are sent in the order of their numbers.
OUT_OF_TURN: Final = """
    SELECT sent.session, sent.number FROM delivery AS sent
    JOIN (SELECT session, min(number) AS first FROM delivery WHERE packet_id = 0 GROUP BY session)
        AS waiting ON waiting.session = sent.session
    WHERE sent.packet_id > 0 AND sent.number > waiting.first
"""
_USES: Final = """
    SELECT body.id, body.uses, coalesce(used.times, 0) FROM body
    LEFT JOIN (SELECT body, count(*) AS times FROM particular WHERE body IS NOT NULL GROUP BY body)
        AS used ON used.body = body.id
    WHERE body.uses != coalesce(used.times, 0)
"""


class StoreFinding:
    """One thing that is wrong: in which table, with which row, and what."""

    def __init__(self, table: str, row: str, problem: str) -> None:
        self.table = table
        self.row = row
        self.problem = problem


class CheckReport:
    """What a check has found; `rows` are how many of each table it has looked at."""

    def __init__(self) -> None:
        self.findings: list[StoreFinding] = []
        # Findings that there was no place for.
        self.more = 0
        self.rows: dict[str, int] = {}
        # What is no fault, but worth knowing.
        self.notes: list[str] = []
        self._known: set[tuple[str, str, str]] = set()

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def add(self, table: str, row: str, problem: str) -> None:
        """One more, unless it is known."""
        if (table, row, problem) in self._known:
            return
        if len(self.findings) < MOST:
            self._known.add((table, row, problem))
            self.findings.append(StoreFinding(table, row, problem))
        else:
            self.more += 1


def check_store(folder: Path) -> CheckReport:
    """Look at everything. Raises Unusable if the store cannot be reached, or is not ours."""
    report = CheckReport()
    with explained(folder):
        # First: it is never ahead of the store, and both may go on meanwhile.
        mark: Mark | None = None
        with _noted(MARK, report):
            mark = read_mark(folder)
            if mark is None:
                report.notes.append(
                    f"there is no {MARK}: whether the end of the log is missing cannot be told"
                )
        _check_log(folder / STORE, report)
        with _noted(STORE, report), closing(read_only(folder)) as connection:
            connection.execute("BEGIN")
            check_tables(connection, report)
            with _noted(MARK, report):
                _check_mark(connection, mark, report)
    return report


def _check_mark(connection: sqlite3.Connection, mark: Mark | None, report: CheckReport) -> None:
    loss = loss_of(connection, mark)
    if loss is None:
        return
    if loss.is_expected:
        report.notes.append(f"{loss}, as loss of power does with durability os")
    else:
        report.add(STORE, f"commit {loss.last}", str(loss))


def check_tables(connection: sqlite3.Connection, report: CheckReport) -> None:
    """All but the log."""
    _check_file(connection, report)
    for table in COLUMNS:
        with _noted(table, report):
            _check_rows(connection, table, report)
    _check_sessions(connection, report)
    _check_streams(connection, report)


@contextmanager
def _noted(table: str, report: CheckReport) -> Iterator[None]:
    """Damage in here is a finding."""
    try:
        yield
    except Damaged as problem:
        report.add(table, "", str(problem))
    except UnicodeDecodeError as problem:
        # What SQLite says of a damaged name has that name in it.
        report.add(table, "", f"cannot be read: a name is no text ({problem})")
    except sqlite3.Error as problem:
        if not is_damage(problem):
            raise
        report.add(table, "", f"cannot be read: {as_sentence(problem)}")


def _check_log(store: Path, report: CheckReport) -> None:
    path = log_of(store)
    for _ in range(_ATTEMPTS):
        if not path.exists() or not path.stat().st_size:
            return
        log = Log(path)
        intact = log.intact()
        if all(intact[: log.synced]) and log.is_readable:
            return
        if Log(path).salts == log.salts:
            break
    else:
        return
    if not log.is_readable:
        if path.stat().st_size > log.place(0):
            report.add(path.name, "", "the log has no header, and nothing of it would be used")
        return
    frame = intact.index(False)
    after = counts.count(log.commits(frame), "commit")
    report.add(
        path.name,
        f"frame {frame + 1}",
        f"the log is broken here, and {after} after it would be lost",
    )


def _check_file(connection: sqlite3.Connection, report: CheckReport) -> None:
    """Pages, mark, version, and that each table is there."""
    try:
        known_version(connection)
    except Damaged as problem:
        report.add(STORE, "", str(problem))
    with _noted(STORE, report):
        for (text,) in connection.execute(f"PRAGMA integrity_check({MOST})"):
            for line in text.splitlines():
                if line != "ok" and not line.startswith("*** in database"):
                    report.add(STORE, "", line)
    there = objects_in(connection)
    for name, definition in objects().items():
        if name not in there:
            report.add(name, "", "is not there")
        elif there[name] != definition:
            report.add(name, "", "is not defined as it should be")


def _check_rows(connection: sqlite3.Connection, table: str, report: CheckReport) -> None:
    report.rows[table] = 0
    for row in connection.execute(f"SELECT {', '.join(column_names(table))} FROM {table}"):
        report.rows[table] += 1
        fault = fault_of(table, row)
        if fault is not None:
            report.add(table, key_of(table, row), fault)


def faulty_deliveries(connection: sqlite3.Connection) -> Iterator[tuple[Row, str]]:
    """Deliveries that, with what belongs to them, are not what they should be, and why."""
    columns = len(column_names("delivery"))
    for row in connection.execute(DELIVERIES):
        delivery, particular, body = row[:columns], row[columns:-1], row[-1]
        if fault_of("delivery", delivery) is not None:
            continue
        # LEFT JOIN fills the columns of a row that is not there.
        if particular[0] is None:
            fault = fault_of_delivery(delivery, None, body)
        elif fault_of("particular", particular) is None:
            fault = fault_of_delivery(delivery, particular, body)
        else:
            continue
        if fault is not None:
            yield delivery, fault


def _check_sessions(connection: sqlite3.Connection, report: CheckReport) -> None:
    ask = connection.execute
    for table in OF_SESSIONS:
        with _noted(table, report):
            rows = ask(
                f"SELECT session, count(*) FROM {table}"
                " WHERE session NOT IN (SELECT number FROM session) GROUP BY session"
            )
            for session, count in rows:
                report.add(
                    table,
                    f"session {session}",
                    f"{counts.count(count, 'row')} of a session that is not",
                )
    with _noted("delivery", report):
        for row, fault in faulty_deliveries(connection):
            report.add("delivery", key_of("delivery", row), fault)
        for session, number in ask(PARTICULARS_OF_NOTHING):
            report.add("particular", f"session {session}, number {number}", "of no delivery")
        for session, packet_id, count in ask(_SAME_IDENTIFIER):
            where = f"session {session}, packet_id {packet_id}"
            report.add("delivery", where, f"{count} deliveries have this identifier")
        for session, number in ask(OUT_OF_TURN):
            where = f"session {session}, number {number}"
            report.add("delivery", where, "was sent, but one before it waits")
    with _noted("body", report):
        for body, uses, times in ask(_USES):
            report.add(
                "body",
                f"id {body}",
                f"uses is {uses}, but {counts.count(times, 'delivery has', 'deliveries have')} it",
            )


def _check_streams(connection: sqlite3.Connection, report: CheckReport) -> None:
    ask = connection.execute
    with _noted("record", report):
        for stream, count in ask(
            "SELECT stream, count(*) FROM record WHERE stream NOT IN (SELECT id FROM stream)"
            " GROUP BY stream"
        ):
            report.add(
                "record",
                f"stream {stream}",
                f"{counts.count(count, 'row')} of a stream that is not",
            )
        known = known_gaps(connection)
        for stream, last_seq, sealed in ask("SELECT id, last_seq, sealed FROM stream").fetchall():
            if not isinstance(last_seq, int) or not isinstance(sealed, int):
                # Each row has been looked at by itself.
                continue
            gaps = missing(connection, stream, sealed + 1, last_seq)
            for first, last in without(gaps, known.get(stream, [])):
                report.add("record", f"stream {stream}, seq {first} to {last}", "are not there")
            highest = ask("SELECT max(seq) FROM record WHERE stream = ?", (stream,)).fetchone()[0]
            if isinstance(highest, int) and highest > last_seq:
                where = f"stream {stream}, seq {last_seq + 1} to {highest}"
                report.add("record", where, "are after the last of the stream")

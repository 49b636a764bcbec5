"""The real database in memory, behind a Store whose commits happen when the schedule says so.

    write ─▶ pending ─apply─▶ applied ─report─▶ the broker is notified
                │                │
                └── a crash ─────┴──▶ discarded; what was applied is in the database

A crash inside a transaction is an interrupt of SQLite after a number of its steps, which rolls the
transaction back. A full disk is simulated in the same way, but the broker survives.
"""

import sqlite3
from collections.abc import Callable
from functools import cache

from semel.mqtt.delivery import Delivery
from semel.store.commit import Commit
from semel.store.database import Database
from semel.store.store import BEHIND, FULL, OPEN, RestoredState, Store
from tests.simulation.clock import Broken, CountDown
from tests.simulation.faults import Faults
from tests.simulation.ledger import Snapshot


@cache
def _template() -> bytes:
    database = Database.open(":memory:")
    data = database.connection.serialize()
    database.close()
    return data


def empty_database() -> Database:
    """A database with empty tables, copied from a template because that is much faster."""
    connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=256)
    connection.deserialize(_template())
    return Database(connection)


class Pending:
    """A pending commit, and the ledger's snapshot of when it was written."""

    def __init__(self, commit: Commit, number: int, snapshot: Snapshot) -> None:
        self.commit = commit
        self.number = number
        self.snapshot = snapshot
        # The broker was notified already, too early.
        self.is_reported = False


class SimulatedStore(Store):
    """The store of the simulated broker."""

    def __init__(self, database: Database, noted: Callable[[Commit, int], Snapshot]) -> None:
        """`noted` is called for every commit that is written, with its number."""
        super().__init__(is_durable=True)
        self.database = database
        self.pending: list[Pending] = []
        self.applied: list[Pending] = []
        # The number of the last commit that happened.
        self.safe = 0
        # The number of deliveries that the broker read back.
        self.refills = 0
        self.has_space = True
        self.is_behind = False
        self.faults = Faults()
        # Numbers of ended sessions, which must not be reused.
        self._ended_numbers: set[int] = set()
        self._noted = noted
        self._written = 0

    # --- the broker's side ------------------------------------------------------------------------

    def write(self, commit: Commit) -> bool:
        self._written += 1
        self.pending.append(Pending(commit, self._written, self._noted(commit, self._written)))
        return False

    def restore(self) -> RestoredState:
        return self.database.restore()

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        self.faults.check_rows(session)
        return self.database.exchanges(session)

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        self.faults.check_rows(session)
        deliveries = self.database.queue(session, first, limit)
        self.refills += len(deliveries)
        return deliveries

    def expired(self, session: int, first: int, now: float) -> list[tuple[int, int]]:
        self.faults.check_rows(session)
        return self.database.expired(session, first, now)

    def next_expiry(self, session: int, first: int, now: float) -> float | None:
        self.faults.check_rows(session)
        return self.database.next_expiry(session, first, now)

    # --- the schedule's side ----------------------------------------------------------------------

    def apply(self, count: int) -> Snapshot | None:
        """Apply commits in one transaction, and return the last snapshot; None if that fails."""
        group = self.pending[: max(0, count)]
        if not group:
            return None
        commits = [each.commit for each in group]
        if self.has_space:
            self.database.apply(commits)
        elif self._interrupted(commits, 20):
            self.condition = FULL
            return None
        for commit in commits:
            # Its damaged rows are deleted.
            self.faults.damaged -= set(commit.ended)
        self._check_numbers(commits)
        del self.pending[: len(group)]
        self.applied += group
        self.safe = group[-1].number
        self.condition = BEHIND if self.is_behind else OPEN
        return group[-1].snapshot

    def apply_and_crash(self, count: int, steps: int) -> Snapshot | None:
        """Crash inside a transaction, or after it if it has fewer steps than `steps`. Returns the
        snapshot that is durable then, if any."""
        group = self.pending[:count]
        if group and not self._interrupted([each.commit for each in group], steps):
            self._check_numbers([each.commit for each in group])
            self.safe = group[-1].number
            return group[-1].snapshot
        return None

    def _check_numbers(self, commits: list[Commit]) -> None:
        """Session numbers must not be reused: something may still refer to the old one."""
        for commit in commits:
            for number, client, _, _ in commit.sessions:
                if number in self._ended_numbers:
                    raise Broken(f"{client} reuses the number {number} of an ended session")
            self._ended_numbers |= set(commit.ended)

    def _interrupted(self, commits: list[Commit], steps: int) -> bool:
        """Apply commits, and fail if a statement takes more steps; whether it failed."""
        connection = self.database.connection
        count_down = CountDown(steps)
        connection.set_progress_handler(count_down, 1)
        connection.set_trace_callback(count_down.spare_commit)
        try:
            self.database.apply(commits)
        except sqlite3.OperationalError:
            return True
        finally:
            connection.set_progress_handler(None, 0)
            connection.set_trace_callback(None)
        return False

    def report(self) -> Commit | None:
        """The next commit to notify the broker of; None if it knows already."""
        done = self.applied.pop(0)
        return None if done.is_reported else done.commit

    def set_space(self, has_space: bool) -> None:
        """Set whether the disk has space; the store notices when it writes."""
        self.has_space = has_space

    def set_behind(self, is_behind: bool) -> None:
        """Set whether sealing or writing is behind."""
        self.is_behind = is_behind
        if self.condition != FULL:
            self.condition = BEHIND if is_behind else OPEN

    def crash(self) -> None:
        """Crash the process: uncommitted changes are lost."""
        self.pending = []
        self.applied = []
        self.condition = BEHIND if self.is_behind else OPEN
        # The caches of the old process are lost, and its open transaction is rolled back.
        connection = self.database.connection
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        self.database = Database(connection)

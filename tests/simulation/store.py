"""The real database in memory, behind a Store whose commits happen when the schedule says so.

    write ─▶ pending ─apply─▶ applied ─report─▶ the broker is told
                │                │
                └── a crash ─────┴──▶ forgotten; what was applied is there, the rest is not

A crash inside a transaction is made by SQLite itself: it is interrupted after so many of its steps
and rolls back. A full disk is made in the same way, only that the broker lives on.
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
    """One with the tables and nothing in them: much quicker than making the tables."""
    connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=256)
    connection.deserialize(_template())
    return Database(connection)


class Pending:
    """A commit on its way, and what the ledger knew when it was written."""

    def __init__(self, commit: Commit, number: int, snapshot: Snapshot) -> None:
        self.commit = commit
        self.number = number
        self.snapshot = snapshot
        # The broker knows of it already, as it should not.
        self.is_told = False


class SimulatedStore(Store):
    """What the broker is given."""

    def __init__(self, database: Database, noted: Callable[[Commit, int], Snapshot]) -> None:
        """`noted` is told of every commit that is written, with its number."""
        super().__init__(is_durable=True)
        self.database = database
        self.pending: list[Pending] = []
        self.applied: list[Pending] = []
        # The last commit that happened.
        self.safe = 0
        # Deliveries that the broker had to read again.
        self.refills = 0
        self.has_space = True
        self.is_behind = False
        self.faults = Faults()
        # Numbers of sessions that are over. No other session may have one of them.
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
        """Some commits happen, in one transaction. What the last of them knew, if they did."""
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
            # Its rows are gone, and another may get its number.
            self.faults.damaged -= set(commit.ended)
        self._check_numbers(commits)
        del self.pending[: len(group)]
        self.applied += group
        self.safe = group[-1].number
        self.condition = BEHIND if self.is_behind else OPEN
        return group[-1].snapshot

    def apply_and_crash(self, count: int, steps: int) -> Snapshot | None:
        """A crash inside a transaction, or behind it if it takes no so many steps of SQLite's
        machine. What lasts then, if anything does."""
        group = self.pending[:count]
        if group and not self._interrupted([each.commit for each in group], steps):
            self._check_numbers([each.commit for each in group])
            self.safe = group[-1].number
            return group[-1].snapshot
        return None

    def _check_numbers(self, commits: list[Commit]) -> None:
        """Numbers of sessions are not given again: something may still go by the old one."""
        for commit in commits:
            for number, client, _ in commit.sessions:
                if number in self._ended_numbers:
                    raise Broken(f"{client} has the number {number} of a session that is over")
            self._ended_numbers |= set(commit.ended)

    def _interrupted(self, commits: list[Commit], steps: int) -> bool:
        """Try a transaction that fails if a statement takes more steps. Whether it did."""
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
        """The next commit of which the broker is told."""
        done = self.applied.pop(0)
        return None if done.is_told else done.commit

    def set_space(self, has_space: bool) -> None:
        """The disk is full, or no longer so: who waits for it finds out by trying."""
        self.has_space = has_space

    def set_behind(self, is_behind: bool) -> None:
        """There is more to be sealed, or written, than there should be."""
        self.is_behind = is_behind
        if self.condition != FULL:
            self.condition = BEHIND if is_behind else OPEN

    def crash(self) -> None:
        """The process is gone, and with it what was not committed."""
        self.pending = []
        self.applied = []
        self.condition = BEHIND if self.is_behind else OPEN
        # Nothing that the old one remembered counts, and what it had begun is undone.
        connection = self.database.connection
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        self.database = Database(connection)

"""The writer's thread: writes all waiting commits as one transaction.

While one transaction is written and synced, the next commits accumulate and become the next one:
the slower the disk, the larger the groups. Nothing else writes to the database or checkpoints its
log.

    put(commit) … ─▶ one transaction ─▶ safe([commit, …])
                     disk full: full(True), and the same transaction is retried once a second
                     any other error: failed(why), and nothing more is written

The sealing of streams is notified of commits in order. If that raises, the rows stay in the store
and the notification is retried, so that a temporary error loses no messages. A persistent error
stops the writer.
"""

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from semel.store.commit import Commit
from semel.store.database import Database, as_sentence, is_disk_full
from semel.store.statistics import TransactionTimes

LOG: Final = logging.getLogger("semel.store")

RETRY_SECONDS: Final = 1.0
# After how many consecutive failures of the sealing the writer stops.
MAXIMUM_SEALING_FAILURES: Final = 5
# Commits per transaction, at most, because acknowledgements wait for the whole transaction.
MAXIMUM_GROUP: Final = 1_000


class Sealing(Protocol):
    """Turns rows of streams into segments. Its methods are called by the writer's thread."""

    def committed(self, commits: Sequence[Commit], now: float) -> None:
        """These commits are durable: their records can be sealed."""

    def due(self, now: float) -> list[tuple[int, int, int]]:
        """Stream, first and last seq of each range to seal now."""

    def begin(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        """The database has recorded these ranges: seal them."""

    def wait(self, now: float) -> float | None:
        """Seconds until a range is due; None: none is due until the next commit."""

    def done(self, stream: int, through: int) -> None:
        """The database has recorded that the rows up to this seq are in segments."""


class StoreWriter:
    """Writes to a Database, which it owns until `stop`. Callbacks are called in its thread."""

    def __init__(
        self,
        database: Database,
        *,
        safe: Callable[[list[Commit]], None],
        full: Callable[[bool], None],
        failed: Callable[[str], None],
        sealing: Sealing | None = None,
    ) -> None:
        self.database = database
        self.times = TransactionTimes()
        self.safe = safe
        self.full = full
        self.failed = failed
        self.sealing = sealing
        # A commit, a stream and the seq up to which it is sealed, or None to stop.
        self.queue: SimpleQueue[Commit | tuple[int, int] | None] = SimpleQueue()
        # By stream: the seq up to which sealed rows must still be deleted.
        self.deleting: dict[int, int] = {}
        # Notifications that the sealing has not processed yet, and its consecutive failures.
        self.notifications: deque[Callable[[], None]] = deque()
        self.sealing_failures = 0
        # Why not everything was written before it stopped; None: everything was.
        self.gave_up: str | None = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, name="semel-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def put(self, commit: Commit) -> None:
        """Queue a commit to be written, after all earlier ones."""
        self.queue.put(commit)

    def sealed(self, stream: int, through: int) -> None:
        """The rows of a stream up to this seq are in durable segments. From any thread."""
        self.queue.put((stream, through))

    def stop(self) -> None:
        """Write all waiting commits and stop. On a full disk, give up after one attempt."""
        self.stopping.set()
        self.queue.put(None)
        self.thread.join()

    def _run(self) -> None:
        try:
            while self._write_group():
                pass
        except sqlite3.Error as problem:
            self.failed(as_sentence(problem))
        except Exception as problem:
            self.failed(repr(problem))

    def _write_group(self) -> bool:
        """Write one group of commits as one transaction. Returns False after the last one."""
        failures = self.sealing_failures
        commits, sealed, continues = self._take()
        self.deleting.update(sealed)
        sealing = self.sealing
        ranges = self._due()
        if commits or ranges or self.deleting:
            batch = self.database.batch(commits)
            begun = [(stream, last) for stream, _, last in ranges]
            deleting = list(self.deleting.items())
            began = time.monotonic()
            if not self._retry_while_full(
                lambda: self.database.write(batch, begun=begun, sealed=deleting)
            ):
                return False
            if commits:
                rows = sum(len(commit.changes) + len(commit.records) for commit in commits)
                seconds = time.monotonic() - began
                self.times.observe(seconds, commits=len(commits), rows=rows)
                self.safe(commits)
            for stream, through in deleting:
                if not self.database.has_sealed(stream, through):
                    del self.deleting[stream]
        if sealing is not None:
            self.notifications.append(partial(sealing.committed, commits, time.monotonic()))
            for stream, through in sealed:
                self.notifications.append(partial(sealing.done, stream, through))
            self.notifications.append(partial(sealing.begin, ranges))
            self._notify_sealing()
            if self.sealing_failures == failures:
                self.sealing_failures = 0
        return continues

    def _due(self) -> list[tuple[int, int, int]]:
        """The ranges to seal now; none while notifications of the sealing are pending."""
        if self.sealing is None or self.notifications:
            return []
        try:
            return self.sealing.due(time.monotonic())
        except Exception:
            self._sealing_failed()
            return []

    def _notify_sealing(self) -> None:
        while self.notifications:
            try:
                self.notifications[0]()
            except Exception:
                self._sealing_failed()
                return
            self.notifications.popleft()

    def _sealing_failed(self) -> None:
        """Call it in an exception handler. Counts the failure, and raises it if it persists."""
        self.sealing_failures += 1
        if self.sealing_failures >= MAXIMUM_SEALING_FAILURES:
            raise
        LOG.exception("sealing failed, retrying: rows stay in the store")

    def _take(self) -> tuple[list[Commit], list[tuple[int, int]], bool]:
        """Take all waiting commits and sealed ranges, after waiting for the first.

        The last result is False if there will be no more.
        """
        commits: list[Commit] = []
        sealed: list[tuple[int, int]] = []
        wait = None
        if self.sealing_failures:
            wait = RETRY_SECONDS
        elif self.sealing is not None:
            try:
                wait = self.sealing.wait(time.monotonic())
            except Exception:
                self._sealing_failed()
                wait = RETRY_SECONDS
        if self.deleting:
            wait = 0.0
        try:
            item = self.queue.get(timeout=wait)
            while True:
                if item is None:
                    return commits, sealed, False
                if isinstance(item, Commit):
                    commits.append(item)
                else:
                    sealed.append(item)
                if len(commits) >= MAXIMUM_GROUP:
                    break
                item = self.queue.get_nowait()
        except Empty:
            pass
        return commits, sealed, True

    def _retry_while_full(self, write: Callable[[], None]) -> bool:
        """Write, and retry while the disk is full. Returns False if stopped before it succeeded."""
        is_full = False
        while True:
            try:
                write()
            except sqlite3.Error as problem:
                if not is_disk_full(problem):
                    raise
                if not is_full:
                    is_full = True
                    self.full(True)
                if self.stopping.wait(RETRY_SECONDS):
                    self.gave_up = "the disk is full: messages that were not acknowledged are lost"
                    self.failed(self.gave_up)
                    return False
            else:
                if is_full:
                    self.full(False)
                return True

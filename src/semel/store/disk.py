"""A Store on a disk, for a broker or client that has a data folder.

    the loop's thread                            the writer's thread
    write(commit) ─────────── queue ──────────▶  one transaction for all waiting commits
    safe(commits) ◀──────── call_soon ─────────  synced

`exchanges`, `queue`, `records` and `seek` read committed rows through a read-only connection of the
loop's thread. Another thread reads segments.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from semel.metrics.families import LATENCY_BOUNDS, Histogram
from semel.mqtt.delivery import Delivery
from semel.store.archive import Archive
from semel.store.commit import Commit, RecordedMessage
from semel.store.database import Database
from semel.store.folder import store_row_errors
from semel.store.record import RecordReader
from semel.store.statistics import StoreStatistics
from semel.store.store import BEHIND, FULL, OPEN, RestoredState, Store
from semel.store.writer import StoreWriter

LOG: Final = logging.getLogger("semel.store")

# Seconds for which a thread may hold the interpreter lock, in a process that is only a broker. With
# a longer interval a busy loop starves the writer, which must acquire the lock after each system
# call.
SWITCH_INTERVAL: Final = 50e-6


class DiskStore(Store):
    """Keeps everything in one SQLite file. Call `connect` before the first write."""

    def __init__(
        self,
        path: Path,
        database: Database,
        *,
        maximum_unwritten: int,
        archive: Archive | None = None,
    ) -> None:
        super().__init__(is_durable=True)
        self.folder = path.parent
        self.archive = archive
        self.database = database
        self.reader = Database.reader(path)
        self.record = None if archive is None else RecordReader(self.reader, archive.shelf)
        self.maximum_unwritten = maximum_unwritten
        self.room = maximum_unwritten
        self.is_full = False
        self.is_sealing_behind = False
        self.sizes: dict[Commit, int] = {}
        # When the commits in `sizes` were passed to the writer, in their order.
        self.written_at: deque[float] = deque()
        self.commit_seconds = Histogram(LATENCY_BOUNDS)
        self.writer: StoreWriter | None = None
        self.changed: Callable[[], None] = lambda: None

    def connect(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        safe: Callable[[list[Commit]], None],
        changed: Callable[[], None],
        failed: Callable[[str], None],
        read: Callable[[int], None] = lambda stream: None,
    ) -> None:
        """Start the writer. These are called in the loop: `safe` with durable commits, `changed`
        after a change of `condition`, `failed` with the reason when nothing more can be written,
        `read` with a stream for which `records` may be called again."""

        self.changed = changed

        def on_safe(commits: list[Commit]) -> None:
            now = time.monotonic()
            for commit in commits:
                self.room += self.sizes.pop(commit)
                self.commit_seconds.observe(now - self.written_at.popleft())
            try:
                self.update_condition()
            finally:
                safe(commits)

        def on_full(is_full: bool) -> None:
            self.is_full = is_full
            self.update_condition()

        def on_behind(is_behind: bool) -> None:
            self.is_sealing_behind = is_behind
            self.update_condition()

        self.writer = StoreWriter(
            self.database,
            safe=lambda commits: call_in_loop(loop, on_safe, commits),
            full=lambda is_full: call_in_loop(loop, on_full, is_full),
            failed=lambda why: call_in_loop(loop, failed, why),
            sealing=self.archive,
        )
        if self.archive is not None:
            self.archive.start(
                self.database,
                time.monotonic(),
                sealed=self.writer.sealed,
                behind=lambda is_behind: call_in_loop(loop, on_behind, is_behind),
            )
        self.writer.start()
        if self.record is not None:
            self.record.connect(
                post=lambda callback: call_in_loop(loop, callback),
                later=loop.call_later,
                read=read,
            )

    def update_condition(self) -> None:
        """Set `condition`, and notify the owner if it has changed."""
        condition = OPEN
        if self.is_full:
            condition = FULL
        elif self.is_sealing_behind or self.room < 0:
            condition = BEHIND
        if condition != self.condition:
            self.condition = condition
            self.changed()

    def write(self, commit: Commit) -> bool:
        assert self.writer is not None
        size = commit.size()
        self.sizes[commit] = size
        self.written_at.append(time.monotonic())
        self.room -= size
        self.writer.put(commit)
        self.update_condition()
        return False

    def statistics(self) -> StoreStatistics | None:
        """The numbers of the store at this time; None before `connect`."""
        if self.writer is None:
            return None
        times, archive = self.writer.times, self.archive
        return StoreStatistics(
            commit_seconds=self.commit_seconds.read(),
            transaction_seconds=times.seconds.read(),
            transaction_commits=times.commits.read(),
            transaction_rows=times.rows.read(),
            unwritten_bytes=self.maximum_unwritten - self.room,
            unsealed_bytes=0 if archive is None else archive.planner.unsealed_bytes,
            streams=() if archive is None else archive.progress(time.monotonic()),
            is_sealer_running=None if archive is None else archive.process.pid is not None,
        )

    def restore(self) -> RestoredState:
        with store_row_errors(self.folder):
            state = self.reader.restore()
        self.database.last_release = self.reader.last_release
        return state

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        with store_row_errors(self.folder):
            return self.reader.exchanges(session)

    def inbox(self, session: int) -> list[tuple[int, str, RecordedMessage]]:
        with store_row_errors(self.folder):
            return self.reader.inbox(session)

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        with store_row_errors(self.folder):
            return self.reader.queue(session, first, limit)

    def expired(self, session: int, first: int, now: float) -> list[tuple[int, int]]:
        with store_row_errors(self.folder):
            return self.reader.expired(session, first, now)

    def next_expiry(self, session: int, first: int, now: float) -> float | None:
        with store_row_errors(self.folder):
            return self.reader.next_expiry(session, first, now)

    def records(self, stream: int, first: int, limit: int) -> list[RecordedMessage] | None:
        with store_row_errors(self.folder):
            return [] if self.record is None else self.record.records(stream, first, limit)

    def seek(self, stream: int, received: int) -> int | None:
        with store_row_errors(self.folder):
            return 1 if self.record is None else self.record.seek(stream, received)

    def close(self) -> None:
        """Write all waiting commits, stop the threads, and close the files. Blocks."""
        if self.writer is not None:
            self.writer.stop()
            if self.writer.gave_up is not None:
                LOG.warning("%s", self.writer.gave_up)
        if self.archive is not None:
            self.archive.stop()
        if self.record is not None:
            self.record.close()
        self.reader.close()
        # When the last connection closes, SQLite checkpoints the log and deletes it.
        self.database.close()


def call_in_loop(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *arguments: object
) -> None:
    """Schedule a call in the loop from any thread, unless the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise

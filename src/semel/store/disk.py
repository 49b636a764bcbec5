"""A Store on a disk: what the broker is given when it has a data folder.

the loop's thread                            the writer's thread
write(commit) ─────────── queue ──────────▶  one transaction for all that wait
committed ◀───────── call_soon ────────────  it is safe
exchanges, queue: a reader of its own, on committed rows
records, seek: likewise, and by another thread what is in segments
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from semel.mqtt.delivery import Delivery
from semel.store.archive import Archive
from semel.store.commit import Commit, RecordedMessage
from semel.store.database import Database
from semel.store.folder import rows_explained
from semel.store.record import RecordReader
from semel.store.store import BEHIND, FULL, OPEN, Saved, Store
from semel.store.writer import StoreWriter

LOG: Final = logging.getLogger("semel.store")

# How long a thread may keep the interpreter to itself, in seconds, if the process is all ours. With
# more, a busy loop starves the writer: it lets go so often, and so briefly, that the other never
# gets its turn.
SWITCH_INTERVAL: Final = 50e-6


class DiskStore(Store):
    """Keeps everything in one SQLite file. `connect` it to its owner before the first write."""

    def __init__(
        self,
        path: Path,
        database: Database,
        *,
        maximum_unwritten: int,
        archive: Archive | None = None,
    ) -> None:
        super().__init__(lasts=True)
        self.folder = path.parent
        self.archive = archive
        self.database = database
        self.reader = Database.reader(path)
        self.record = None if archive is None else RecordReader(self.reader, archive.shelf)
        self.maximum_unwritten = maximum_unwritten
        self.room = maximum_unwritten
        self.is_full = False
        self.is_unsealed = False
        self.sizes: dict[Commit, int] = {}
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
        """Start writing. In the loop, `safe` is called with commits that last, `changed` when
        `condition` is another, `failed` when nothing can be written any more, `read` with a stream
        whose records may be asked for again."""

        self.changed = changed

        def now_safe(commits: list[Commit]) -> None:
            for commit in commits:
                self.room += self.sizes.pop(commit)
            try:
                self.judge()
            finally:
                safe(commits)

        def now_full(full: bool) -> None:
            self.is_full = full
            self.judge()

        def now_behind(behind: bool) -> None:
            self.is_unsealed = behind
            self.judge()

        self.writer = StoreWriter(
            self.database,
            safe=lambda commits: tell(loop, now_safe, commits),
            full=lambda full: tell(loop, now_full, full),
            failed=lambda why: tell(loop, failed, why),
            sealing=self.archive,
        )
        if self.archive is not None:
            self.archive.start(
                self.database,
                time.monotonic(),
                sealed=self.writer.sealed,
                behind=lambda behind: tell(loop, now_behind, behind),
            )
        self.writer.start()
        if self.record is not None:
            self.record.connect(
                post=lambda what: tell(loop, what), later=loop.call_later, read=read
            )

    def judge(self) -> None:
        """Find out what the condition is, and tell the owner if it is another."""
        condition = OPEN
        if self.is_full:
            condition = FULL
        elif self.is_unsealed or self.room < 0:
            condition = BEHIND
        if condition != self.condition:
            self.condition = condition
            self.changed()

    def write(self, commit: Commit) -> bool:
        assert self.writer is not None
        size = commit.size()
        self.sizes[commit] = size
        self.room -= size
        self.writer.put(commit)
        self.judge()
        return False

    def restore(self) -> Saved:
        with rows_explained(self.folder):
            saved = self.reader.restore()
        self.database.last_release = self.reader.last_release
        return saved

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        with rows_explained(self.folder):
            return self.reader.exchanges(session)

    def inbox(self, session: int) -> list[tuple[int, str, RecordedMessage]]:
        with rows_explained(self.folder):
            return self.reader.inbox(session)

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        with rows_explained(self.folder):
            return self.reader.queue(session, first, limit)

    def expired(self, session: int, first: int, now: float) -> list[tuple[int, int]]:
        with rows_explained(self.folder):
            return self.reader.expired(session, first, now)

    def next_expiry(self, session: int, first: int, now: float) -> float | None:
        with rows_explained(self.folder):
            return self.reader.next_expiry(session, first, now)

    def records(self, stream: int, first: int, limit: int) -> list[RecordedMessage] | None:
        with rows_explained(self.folder):
            return [] if self.record is None else self.record.records(stream, first, limit)

    def seek(self, stream: int, received: int) -> int | None:
        with rows_explained(self.folder):
            return 1 if self.record is None else self.record.seek(stream, received)

    def close(self) -> None:
        """Write what waits, and end. Blocks until that is done."""
        if self.writer is not None:
            self.writer.stop()
            if self.writer.gave_up is not None:
                LOG.warning("%s", self.writer.gave_up)
        if self.archive is not None:
            self.archive.stop()
        if self.record is not None:
            self.record.close()
        self.reader.close()
        # The last one to close has SQLite copy the log and delete it.
        self.database.close()


def tell(loop: asyncio.AbstractEventLoop, what: Callable[..., None], *arguments: object) -> None:
    """Have it called in the loop; one that is closed has nobody left to tell."""
    try:
        loop.call_soon_threadsafe(what, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise

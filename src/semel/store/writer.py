"""The thread that writes: all commits that wait become one transaction.

While one transaction is written and synced, the next commits pile up and become the next one: the
slower the disk, the larger the groups. Nobody else writes to the database, and nobody else copies
its log into its tables.

    put(commit) … ─▶ one transaction ─▶ safe([commit, …])
                     no space left: the same again, whole, once a second; `full` meanwhile
                     anything else: failed(why), and nothing is written any more

What seals streams is told of commits in their order. If it raises, the rows stay in the store and
it is told again, so that a passing mistake there costs nobody a message; one that stays ends the
writer.
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
from semel.store.database import Database, as_sentence, is_lack_of_space

LOG: Final = logging.getLogger("semel.store")

RETRY_SECONDS: Final = 1.0
# How often in a row what seals may raise until that is no passing mistake.
REFUSALS: Final = 5
# Commits that make one transaction at the most: a reader should not have to wait for ever.
GROUP: Final = 1_000


class Sealing(Protocol):
    """What turns rows of streams into segments. Its methods are called by the writer's thread."""

    def committed(self, commits: Sequence[Commit], now: float) -> None:
        """These are safe: their records may be sealed."""

    def due(self, now: float) -> list[tuple[int, int, int]]:
        """Streams with the ranges that are to be sealed now."""

    def begin(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        """These ranges are noted in the database: seal them."""

    def wait(self, now: float) -> float | None:
        """In how many seconds something will be due; None: nothing until there is a commit."""

    def done(self, stream: int, through: int) -> None:
        """The rows up to this seq are in segments, and the store knows it."""


class StoreWriter:
    """Has a Database for itself, until it is stopped. What it is given is called in its thread."""

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
        self.safe = safe
        self.full = full
        self.failed = failed
        self.sealing = sealing
        # A commit, what the sealer has done (stream, seq), or None for the end.
        self.queue: SimpleQueue[Commit | tuple[int, int] | None] = SimpleQueue()
        # Streams with rows that are sealed and not deleted yet: up to which seq.
        self.deleting: dict[int, int] = {}
        # What the sealing has not been told yet, and how often in a row it has raised.
        self.untold: deque[Callable[[], None]] = deque()
        self.refusals = 0
        # What it could not write at its end.
        self.gave_up: str | None = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._run, name="semel-writer", daemon=True)

    def start(self) -> None:
        """Begin."""
        self.thread.start()

    def put(self, commit: Commit) -> None:
        """This is to be written, after what was put before."""
        self.queue.put(commit)

    def sealed(self, stream: int, through: int) -> None:
        """The rows of a stream up to this seq are in segments that are safe. From any thread."""
        self.queue.put((stream, through))

    def stop(self) -> None:
        """Write what is there, and end. Where there is no space it is given up after one try."""
        self.stopping.set()
        self.queue.put(None)
        self.thread.join()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except sqlite3.Error as problem:
            self.failed(as_sentence(problem))
        except Exception as problem:
            self.failed(repr(problem))

    def _turn(self) -> bool:
        """One group of what waits, as one transaction. False: it was the last."""
        refusals = self.refusals
        commits, sealed, goes_on = self._take()
        self.deleting.update(sealed)
        sealing = self.sealing
        ranges = self._due()
        if commits or ranges or self.deleting:
            batch = self.database.batch(commits)
            begun = [(stream, last) for stream, _, last in ranges]
            gone = list(self.deleting.items())
            if not self._insist(lambda: self.database.write(batch, begun=begun, sealed=gone)):
                return False
            if commits:
                self.safe(commits)
            for stream, through in gone:
                if not self.database.has_sealed(stream, through):
                    del self.deleting[stream]
        if sealing is not None:
            self.untold.append(partial(sealing.committed, commits, time.monotonic()))
            for stream, through in sealed:
                self.untold.append(partial(sealing.done, stream, through))
            self.untold.append(partial(sealing.begin, ranges))
            self._tell_sealing()
            if self.refusals == refusals:
                self.refusals = 0
        return goes_on

    def _due(self) -> list[tuple[int, int, int]]:
        """The ranges that are to be sealed now; none while the sealing has not been told all."""
        if self.sealing is None or self.untold:
            return []
        try:
            return self.sealing.due(time.monotonic())
        except Exception:
            self._refused()
            return []

    def _tell_sealing(self) -> None:
        while self.untold:
            try:
                self.untold[0]()
            except Exception:
                self._refused()
                return
            self.untold.popleft()

    def _refused(self) -> None:
        """The sealing has raised: told again in a while, or the end."""
        self.refusals += 1
        if self.refusals >= REFUSALS:
            raise
        LOG.exception("sealing failed: rows stay in the store, and it is tried again")

    def _take(self) -> tuple[list[Commit], list[tuple[int, int]], bool]:
        """All that waits, or the first that comes; whether there will be more."""
        commits: list[Commit] = []
        sealed: list[tuple[int, int]] = []
        wait = None
        if self.refusals:
            wait = RETRY_SECONDS
        elif self.sealing is not None:
            try:
                wait = self.sealing.wait(time.monotonic())
            except Exception:
                self._refused()
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
                if len(commits) >= GROUP:
                    break
                item = self.queue.get_nowait()
        except Empty:
            pass
        return commits, sealed, True

    def _insist(self, act: Callable[[], None]) -> bool:
        """Do it, again and again while there is no space. False: it was given up at the end."""
        is_full = False
        while True:
            try:
                act()
            except sqlite3.Error as problem:
                if not is_lack_of_space(problem):
                    raise
                if not is_full:
                    is_full = True
                    self.full(True)
                if self.stopping.wait(RETRY_SECONDS):
                    self.gave_up = "the disk is full: what was not acknowledged is lost"
                    self.failed(self.gave_up)
                    return False
            else:
                if is_full:
                    self.full(False)
                return True

"""A few threads for the processor-heavy steps of handshakes, shared fairly by addresses.

A TLS handshake takes about a millisecond of processor time. A flood of them waits here while the
event loop serves connected clients, and the handshakes of other addresses take their turn between
those of the flood.
"""

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

THREADS: Final = 2


class HandshakeJob(Protocol):
    """A connection that has work. It has at most one job at a time."""

    @property
    def address(self) -> str:
        """The address in whose turn it works."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the work is no longer needed."""

    def work(self) -> None:
        """The work, in a thread. Must not raise."""

    def worked(self) -> None:
        """The work is done, on the event loop. Not called if it was cancelled before it began."""


class HandshakeWorkers:
    """Runs jobs, one of each address in turn. All methods are called on the event loop.

    The number of waiting jobs is bounded by the number of connections in a handshake.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = THREADS) -> None:
        self._loop = loop
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None
        # By address, in the order of their turns.
        self._waiting: dict[str, deque[HandshakeJob]] = {}
        self._running = 0

    def submit(self, job: HandshakeJob) -> None:
        """Run a job as soon as it is its address's turn."""
        self._waiting.setdefault(job.address, deque()).append(job)
        self._start_jobs()

    def _start_jobs(self) -> None:
        while self._running < self._threads and self._waiting:
            address = next(iter(self._waiting))
            jobs = self._waiting.pop(address)
            job = jobs.popleft()
            if jobs:
                # Its next turn is after those of all others.
                self._waiting[address] = jobs
            if job.is_cancelled:
                continue
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, "semel-handshake")
            self._running += 1
            self._executor.submit(self._run, job)

    def _run(self, job: HandshakeJob) -> None:
        try:
            job.work()
        finally:
            # The loop is closed if the process is ending.
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._finish, job)

    def _finish(self, job: HandshakeJob) -> None:
        self._running -= 1
        try:
            job.worked()
        finally:
            self._start_jobs()

    def close(self) -> None:
        """Start nothing more. Running jobs end by themselves."""
        self._waiting.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
            self._threads = 0

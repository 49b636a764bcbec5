"""What the metrics endpoint of a broker serves: its numbers, its health, and its readiness."""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, Protocol

from semel.broker.network.broker_families import ServerSnapshot, server_families
from semel.metrics.families import MetricFamily

# The sweep is due once a second. A broker whose sweep has not run for longer than this is stuck.
STUCK_SECONDS: Final = 10.0
# Seconds between two measurements of the free space.
SPACE_SECONDS: Final = 10.0


class ServerNumbers(Protocol):
    """The part of a server that its metrics need."""

    # When the sweep was last run, by `time.monotonic`.
    swept_at: float

    def snapshot(self, free_bytes: int | None) -> ServerSnapshot:
        """All numbers at this time."""

    def readiness(self) -> str | None:
        """Why clients are not served now, in one line; None: they are."""


class BrokerMetrics:
    """The metrics of a server, for its endpoint."""

    def __init__(
        self,
        server: ServerNumbers,
        space: "FreeSpace | None" = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`space` is that of the store; None: there is none."""
        self._server = server
        self._space = space
        self._clock = clock

    def families(self) -> list[MetricFamily]:
        """All metrics at this time."""
        free_bytes = None if self._space is None else self._space.last_measured()
        return server_families(self._server.snapshot(free_bytes))

    def health(self) -> str | None:
        """Why the process does not work; None: it works."""
        late = self._clock() - self._server.swept_at
        if late > STUCK_SECONDS:
            return f"the sweep, which is due once a second, has not run for {late:.0f} seconds"
        return None

    def readiness(self) -> str | None:
        """Why clients are not served now; None: they are."""
        return self._server.readiness()


class FreeSpace:
    """The free space of a file system, measured at the start, and later in another thread.

    A file system that hangs, for example on a network, must not stop the event loop.
    """

    def __init__(
        self,
        folder: Path,
        *,
        executor: Executor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`executor` runs the measurements; None: the default one of the loop."""
        self._folder = folder
        self._executor = executor
        self._clock = clock
        self._bytes = free_bytes(folder)
        self._due = clock() + SPACE_SECONDS
        self._measuring: asyncio.Future[int | None] | None = None

    def last_measured(self) -> int | None:
        """The free bytes that were measured last; None: unknown. Starts a measurement if due.

        Call it on the event loop.
        """
        if self._measuring is None and self._clock() >= self._due:
            self._due = self._clock() + SPACE_SECONDS
            loop = asyncio.get_running_loop()
            self._measuring = loop.run_in_executor(self._executor, free_bytes, self._folder)
            self._measuring.add_done_callback(self._measured)
        return self._bytes

    def _measured(self, future: "asyncio.Future[int | None]") -> None:
        self._measuring = None
        if not future.cancelled():
            self._bytes = future.result()


def free_bytes(folder: Path) -> int | None:
    """The bytes that this user may still write to the file system; None if it cannot be read."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize

"""Runs one reload at a time, and forgets no request.

Files may have changed after a running reload has read them. So requests that come while one runs
share one more reload, which begins when it has ended.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

LOG: Final = logging.getLogger("semel.broker")


class ReloadQueue:
    """At most one reload that runs, and one that waits."""

    def __init__(self, reload: Callable[[], Awaitable[list[str]]]) -> None:
        """`reload` reads the files and applies them; it returns what was done, or raises."""
        self._reload = reload
        self._running: asyncio.Task[list[str]] | None = None
        self._waiting: asyncio.Task[list[str]] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a reload has yet to begin, so that a further request would change nothing."""
        return self._waiting is not None

    async def run(self) -> list[str]:
        """Reload with files that are read from now on. Returns or raises what `reload` does."""
        if self._waiting is None:
            if self._running is not None and not self._running.done():
                LOG.info("a reload is running: another one follows it")
            self._waiting = asyncio.create_task(self._run_after(self._running))
            self._waiting.add_done_callback(_retrieve)
        # Others may wait for the same reload: one who gives up must not cancel it.
        return await asyncio.shield(self._waiting)

    async def _run_after(self, running: asyncio.Task[list[str]] | None) -> list[str]:
        if running is not None:
            await asyncio.wait([running])
        self._running, self._waiting = self._waiting, None
        return await self._reload()


def _retrieve(task: asyncio.Task[list[str]]) -> None:
    """Retrieve the exception of a reload for which nobody waits any more: it is logged already."""
    if not task.cancelled():
        task.exception()

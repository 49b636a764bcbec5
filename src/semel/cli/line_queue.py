"""Writes lines without waiting for a slow reader: what does not fit into a queue is dropped."""

import asyncio
import contextlib
from collections import deque
from typing import Final

from semel.cli.pipes import PipeOutput

# The maximum number of queued lines; further ones are dropped and counted.
MOST_WAITING: Final = 1_000
# How long `close` waits for the reader.
CLOSE_SECONDS: Final = 1.0


class LineQueue:
    """A bounded queue of lines, and the task that writes them to a descriptor."""

    def __init__(self, descriptor: int) -> None:
        """Must be called in a running event loop."""
        self._output = PipeOutput(descriptor)
        self._lines: deque[bytes] = deque()
        self._has_lines = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._writing = asyncio.ensure_future(self._write())
        # Lines that were dropped since the last one that was queued.
        self.dropped = 0

    @property
    def is_closed(self) -> bool:
        """Whether the reader has closed the pipe or terminal."""
        return self._writing.done()

    @property
    def is_empty(self) -> bool:
        """Whether no line is waiting."""
        return not self._lines

    def put(self, line: bytes) -> bool:
        """Queue a line; False if it is dropped."""
        if len(self._lines) >= MOST_WAITING or self.is_closed:
            self.dropped += 1
            return False
        self.dropped = 0
        self._lines.append(line)
        self._idle.clear()
        self._has_lines.set()
        return True

    async def _write(self) -> None:
        try:
            while True:
                await self._has_lines.wait()
                self._has_lines.clear()
                while self._lines:
                    await self._output.write(self._lines[0])
                    self._lines.popleft()
                self._idle.set()
        except OSError:
            self._lines.clear()
        finally:
            self._idle.set()

    async def close(self) -> None:
        """Wait until the lines are written, for at most CLOSE_SECONDS, and end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._idle.wait()
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)

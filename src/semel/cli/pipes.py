"""Standard input and output for a program with an event loop.

They must not block the loop, and must not be made non-blocking: that flag belongs to the terminal
or pipe, which other processes share. So the loop waits until a read or a small write cannot block.
It cannot wait for a regular file, which never blocks for long. A writable pipe accepts at least
PIPE_BUF bytes (POSIX), so at most that many are written at a time.
"""

import asyncio
import os
import select
import sys
from typing import Final

STANDARD_INPUT: Final = 0
STANDARD_OUTPUT: Final = 1
READ_BYTES: Final = 64 * 1024


def can_wait(descriptor: int) -> bool:
    """Whether the loop can wait for a descriptor; it cannot for a regular file or /dev/null."""
    with select.epoll() as poll:
        try:
            poll.register(descriptor, select.EPOLLIN)
        except PermissionError:
            return False
    return True


class Input:
    """A descriptor to read from."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._can_wait = can_wait(descriptor)

    async def read(self) -> bytes:
        """Read some bytes; none at the end. Raises OSError."""
        if self._can_wait:
            loop = asyncio.get_running_loop()
            ready = loop.create_future()
            loop.add_reader(self._descriptor, complete, ready)
            try:
                await ready
            finally:
                loop.remove_reader(self._descriptor)
        return os.read(self._descriptor, READ_BYTES)


class PipeOutput:
    """A descriptor to write to."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._can_wait = can_wait(descriptor)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """Write all of the data. Raises OSError, for instance BrokenPipeError."""
        at = 0
        while at < len(data):
            if self._can_wait and not self._poll.poll(0):
                await self._until_writable()
            size = select.PIPE_BUF if self._can_wait else len(data)
            at += os.write(self._descriptor, data[at : at + size])

    async def _until_writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_writer(self._descriptor, complete, ready)
        try:
            await ready
        finally:
            loop.remove_writer(self._descriptor)


def standard_input() -> Input:
    """Standard input. Raises OSError if it is closed: another file may have its number."""
    if sys.stdin is None:
        raise OSError("standard input is closed")
    return Input(STANDARD_INPUT)


def standard_output() -> PipeOutput:
    """Standard output. Raises OSError if it is closed: another file may have its number."""
    if sys.stdout is None:
        raise OSError("standard output is closed")
    return PipeOutput(STANDARD_OUTPUT)


def complete(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)

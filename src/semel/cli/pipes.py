"""Standard input and output for a program with an event loop.

Neither may block the loop, and neither may be made non-blocking: that would be a property of the
terminal or pipe, which others share. So the loop waits until a read or a small write cannot block.
What cannot be waited for (a regular file) never blocks for long. A pipe that can be written takes
PIPE_BUF bytes at least (POSIX), so that is what is written at a time.
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
    """Whether the loop can wait for it: not for a regular file, nor for /dev/null."""
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
        self._waits = can_wait(descriptor)

    async def read(self) -> bytes:
        """Some bytes; none at the end. Raises OSError."""
        if self._waits:
            loop = asyncio.get_running_loop()
            ready = loop.create_future()
            loop.add_reader(self._descriptor, settle, ready)
            try:
                await ready
            finally:
                loop.remove_reader(self._descriptor)
        return os.read(self._descriptor, READ_BYTES)


class PipeOutput:
    """A descriptor to write to."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waits = can_wait(descriptor)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """Returns when all of it is taken. Raises OSError, of which BrokenPipeError is one."""
        at = 0
        while at < len(data):
            if self._waits and not self._poll.poll(0):
                await self._until_writable()
            size = select.PIPE_BUF if self._waits else len(data)
            at += os.write(self._descriptor, data[at : at + size])

    async def _until_writable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        loop.add_writer(self._descriptor, settle, ready)
        try:
            await ready
        finally:
            loop.remove_writer(self._descriptor)


def standard_input() -> Input:
    """Standard input. Raises OSError if there is none: its number may be another file's by now."""
    if sys.stdin is None:
        raise OSError("standard input is closed")
    return Input(STANDARD_INPUT)


def standard_output() -> PipeOutput:
    """Standard output. Raises OSError if there is none: its number may be another file's by now."""
    if sys.stdout is None:
        raise OSError("standard output is closed")
    return PipeOutput(STANDARD_OUTPUT)


def settle(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)

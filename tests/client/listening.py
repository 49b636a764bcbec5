"""What the tests of transports have in common: a listener, servers of the test, and a strict end.

`run` runs a test on a loop, and fails if the test leaves a task, a socket or a complaint behind.
"""

import asyncio
import gc
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from ssl import SSLContext
from typing import Any, TypeVar

import pytest

from semel.client.address import parse_address
from semel.client.connector import open_transport
from semel.client.transport import Transport

# Generous: it only ends what would hang.
PATIENCE = 30.0
# Turns of the loop in which what was closed has to be gone. asyncio closes in the next one or two.
TURNS = 20

T = TypeVar("T")
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Heard:
    """A listener that keeps all it is told, and does not want to be told too early or too late."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.states: list[bool] = []
        self.losses: list[str | None] = []
        # Set by a test when it has the transport.
        self.ready = False
        self._changed = asyncio.Event()

    def _tell(self) -> None:
        assert self.ready, "told before open_transport has returned"
        assert not self.losses, "told after it was lost"
        self._changed.set()

    def received(self, data: bytes) -> None:
        self._tell()
        assert type(data) is bytes
        assert data
        self.pieces.append(data)

    def writable(self, writable: bool) -> None:
        self._tell()
        self.states.append(writable)

    def lost(self, why: str | None) -> None:
        self._tell()
        self.losses.append(why)

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until something it was told makes this true."""
        while not reached():
            self._changed.clear()
            await self._changed.wait()

    async def bytes(self, count: int) -> bytes:
        """Wait for so many bytes and no more, which are then forgotten."""
        await self.until(lambda: len(self.data) >= count or bool(self.losses))
        data = self.data
        assert len(data) == count, (data[:100], self.losses)
        self.pieces.clear()
        return data

    async def end(self) -> str | None:
        """Wait until it is lost. Why."""
        await self.until(lambda: bool(self.losses))
        return self.losses[0]


async def opened(url: str, heard: Heard, **more: Any) -> Transport:
    """`open_transport`, after which `heard` may be told."""
    transport = await open_transport(parse_address(url), heard, **more)
    heard.ready = True
    return transport


def sockets() -> set[str]:
    """The sockets that this process has open."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{entry}")
            if target.startswith("socket:"):
                found.add(target)
    return found


async def nothing_is_left(before: set[str]) -> None:
    """Fail if there are other tasks, timers (which only asyncio shows) or more sockets."""
    for _ in range(TURNS):
        if not left(before):
            return
        await asyncio.sleep(0)
    raise AssertionError(f"left behind: {left(before)}")


def left(before: set[str]) -> list[object]:
    timers = getattr(asyncio.get_running_loop(), "_scheduled", [])
    return [
        *(asyncio.all_tasks() - {asyncio.current_task()}),
        *(timer for timer in timers if not timer.cancelled()),
        *(sockets() - before),
    ]


def is_uvloops(context: dict[str, Any]) -> bool:
    """Whether it is uvloop that begins TLS on a transport which it has just closed itself.

    It does so when a task is cancelled in the turn in which it would begin.
    """
    return "the handler is closed" in str(context.get("exception"))


def run(main: Coroutine[Any, Any, None], loop: str = "asyncio") -> None:
    """Run a test on asyncio's own loop or on uvloop."""
    complaints: list[dict[str, Any]] = []

    async def checked() -> None:
        running = asyncio.get_running_loop()
        running.set_exception_handler(
            lambda _, context: None if is_uvloops(context) else complaints.append(context)
        )
        before = sockets()
        async with asyncio.timeout(PATIENCE):
            await main
        await nothing_is_left(before)

    if loop == "uvloop":
        import_module("uvloop").run(checked())
    else:
        asyncio.run(checked())
    gc.collect()
    assert not complaints, complaints


@asynccontextmanager
async def serving(
    handler: Handler,
    *,
    host: str = "127.0.0.1",
    path: Path | None = None,
    tls: SSLContext | None = None,
) -> AsyncIterator[int]:
    """A server whose `handler` has each connection. Its port. What a handler raises comes out."""
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.get_running_loop().create_task(handle(reader, writer)))

    if path is None:
        server = await asyncio.start_server(accept, host, 0, ssl=tls)
    else:
        server = await asyncio.start_unix_server(accept, path)
    try:
        yield 0 if path else server.sockets[0].getsockname()[1]
        await asyncio.gather(*handlers)
    finally:
        server.close()
        for task in handlers:
            task.cancel()
        if handlers:
            await asyncio.wait(handlers)


@contextmanager
def silent() -> Iterator[int]:
    """A port that answers nothing, not even that nobody listens: its queue is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port: int = listening.getsockname()[1]
        waiting = [socket.socket() for _ in range(8)]
        try:
            for each in waiting:
                each.setblocking(False)
                with suppress(BlockingIOError):
                    each.connect(("127.0.0.1", port))
            yield port
        finally:
            for each in waiting:
                each.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Let the close of this connection be a reset."""
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )


async def cancel_at_every_turn(begin: Callable[[], Awaitable[T]]) -> list[T]:
    """Cancel it after no turn of the loop, after one, and so on until it is quicker. What it gave.

    Between two turns more may have come in from a socket or not, so that each is tried often.
    """
    results: list[T] = []
    for turns in range(10_000):
        for _ in range(5):
            before = sockets()
            task = asyncio.ensure_future(begin())
            for _ in range(turns):
                await asyncio.sleep(0)
            if task.done():
                results.append(task.result())
                continue
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await no_more_than(before)
        if len(results) >= 5:
            break
    assert len(results) >= 5
    return results


async def no_more_than(before: set[str]) -> None:
    """Wait until there are no other sockets: a server's handlers have to read the end first."""
    async with asyncio.timeout(PATIENCE / 3):
        while sockets() - before:
            await asyncio.sleep(0)

"""The event loop of a broker's process: that of asyncio, which serves the broker's sockets itself.

asyncio waits in the `select` of its selector. This selector has the broker's sockets in the same
epoll set as all other descriptors, and serves them without returning to the loop, until the loop
has something else to do. So a message that comes alone takes one call of epoll instead of two, and
no callback of the loop.

Import it only where there is epoll.
"""

import asyncio
import select
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

from semel.broker.network.plain_sockets import PlainSockets

Ts = TypeVarTuple("Ts")


class ServingSelector(selectors.EpollSelector):
    """A selector that serves sockets while it waits for the others."""

    # None: there are no sockets to serve.
    plain_sockets: PlainSockets | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.plain_sockets is None:
            return super().select(timeout)
        keys = self.get_map()
        ready = []
        for fd, events in self.plain_sockets.wait(timeout):
            key = keys.get(fd)
            if key is not None:
                # As in the standard library: an error or a hang-up is both.
                found = selectors.EVENT_WRITE if events & ~select.EPOLLIN else 0
                found |= selectors.EVENT_READ if events & ~select.EPOLLOUT else 0
                ready.append((key, found & key.events))
        return ready

    def interrupt(self) -> None:
        """End `select` soon, because there is something else to do."""
        if self.plain_sockets is not None:
            self.plain_sockets.interrupt()


class BrokerLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with a `ServingSelector`, which every scheduled callback interrupts.

    Callbacks of other threads need no more: their descriptor is in the set.
    """

    def __init__(self) -> None:
        self.selector = ServingSelector()
        super().__init__(self.selector)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self.selector.interrupt()
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self.selector.interrupt()
        return super().call_at(when, callback, *args, context=context)


def open_plain_sockets(
    loop: asyncio.AbstractEventLoop,
    *,
    begin_reading: Callable[[], None],
    end_reading: Callable[[], None],
) -> PlainSockets:
    """Serve sockets on this loop. Call `close_plain_sockets` when they are no longer needed."""
    if not isinstance(loop, BrokerLoop):
        return PlainSockets(loop, begin_reading=begin_reading, end_reading=end_reading)
    sockets = PlainSockets(
        loop,
        begin_reading=begin_reading,
        end_reading=end_reading,
        loop_epoll=loop.selector.fileno(),
    )
    loop.selector.plain_sockets = sockets
    return sockets


def close_plain_sockets(loop: asyncio.AbstractEventLoop, sockets: PlainSockets) -> None:
    """Close all sockets without a report, and let the loop wait without them."""
    if isinstance(loop, BrokerLoop):
        loop.selector.plain_sockets = None
    sockets.close()

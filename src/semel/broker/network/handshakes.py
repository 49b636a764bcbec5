"""Connections that are still in the handshake of a layer: their number, deadline and order.

They cost their sender almost nothing, like connections without a CONNECT, and have the same bound
and timeout: beyond `maximum_unconnected`, the address with the most of them loses its oldest one.
The core does not know them.
"""

import asyncio
from typing import Final, Protocol

from semel.broker.addresses import AddressShares
from semel.broker.network.address_log import AddressLog
from semel.broker.network.handshake_workers import HandshakeJob, HandshakeWorkers

OVERDUE: Final = "its handshake was not complete in time (connect_timeout)"


class Handshaking(HandshakeJob, Protocol):
    """A connection in its handshake."""

    @property
    def label(self) -> str:
        """Its name in the log."""

    def failed(self, why: str) -> None:
        """The connection is closed before its handshakes were complete."""

    def abort(self) -> None:
        """Close the connection, and discard unsent bytes."""


class Handshakes:
    """All connections in a handshake. Its methods are called on the event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, log: AddressLog, *, maximum_unconnected: int
    ) -> None:
        self._log = log
        self._maximum = maximum_unconnected
        self._workers = HandshakeWorkers(loop)
        self._shares = AddressShares()
        # By number: the connection, the address it was counted for, and its deadline.
        self._connections: dict[int, tuple[Handshaking, str, float]] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._connections)

    def begin(self, connection: Handshaking, deadline: float, now: float) -> int:
        """Count a new connection, and return its number. If there are too many, close one."""
        self._last_number += 1
        number = self._last_number
        self._connections[number] = (connection, connection.address, deadline)
        self._shares.count(connection.address, 1)
        self._shares.make_evictable(number, connection.address)
        if len(self._connections) > self._maximum:
            evicted = self._shares.next_to_evict()
            assert isinstance(evicted, int)
            bound = f"maximum_unconnected is {self._maximum}"
            self._abort(evicted, f"it had not connected yet: {bound}", now)
        return number

    def end(self, number: int) -> None:
        """The handshake is complete, or the connection is closed. May be called twice."""
        found = self._connections.pop(number, None)
        if found is not None:
            self._shares.protect(number, found[1])
            self._shares.count(found[1], -1)

    def submit(self, connection: Handshaking) -> None:
        """Do the work of a connection in a thread, and then call its `worked`."""
        self._workers.submit(connection)

    def report(self, connection: Handshaking, why: str, now: float) -> None:
        """Log why a connection is closed; at most one line per address in ten seconds.

        Its owner is told each time.
        """
        self._log.log(connection.address, f"{connection.label} closed: {why}", now)
        connection.failed(why)

    def sweep(self, now: float, stalled_seconds: float = 0.0) -> None:
        """Once a second: close overdue connections. `stalled_seconds`: the loop was that late."""
        for number, (_, _, deadline) in list(self._connections.items()):
            if now >= deadline + stalled_seconds:
                self._abort(number, OVERDUE, now)

    def _abort(self, number: int, why: str, now: float) -> None:
        connection = self._connections[number][0]
        self.end(number)
        self.report(connection, why, now)
        connection.abort()

    def close(self) -> None:
        """Close all connections, and end the threads."""
        self._workers.close()
        for number, (connection, _, _) in list(self._connections.items()):
            self.end(number)
            connection.abort()

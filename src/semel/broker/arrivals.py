"""Limits for connections without a CONNECT, and for incomplete packets.

Both cost their sender almost nothing. Each has a timeout, and their total is bounded by number and
by bytes. Beyond a bound, the address with the most of them loses its oldest one, so that a client
that opens thousands of sockets, or begins thousands of packets, only harms itself.

    opened ─▶ admitted ─▶ leaving ─▶ lost     the life of a connection; steps may be missing
    received                                  bytes arrived, and complete packets were processed

A packet may take `packet_timeout` from its first byte, and one second more for each KiB that it
announces: a line of 8 kbit per second is fast enough for a packet of any size.
"""

from collections.abc import Callable
from typing import Final, final

from semel.broker.addresses import AddressShares
from semel.broker.connection import Connection
from semel.broker.settings import BrokerSettings
from semel.broker.throttled_log import ThrottledLog
from semel.mqtt.reasons import QUOTA_EXCEEDED

# Bytes per second at which a packet must arrive.
MINIMUM_RATE: Final = 1024

# Closes a connection: (connection, reason code, now, Reason String).
Disconnect = Callable[[Connection, int, float, str], None]


@final
class Arrivals:
    """Bounds connections that are not connected yet, and incomplete packets."""

    # The number of connections whose CONNECT was accepted; also by listener, by listener and
    # address, and by user name.
    connected: int
    by_listener: Final[dict[str, int]]
    by_address: Final[dict[tuple[str, str], int]]
    by_user: Final[dict[str, int]]
    # The most at a time, and how many were ever connected.
    most_connected: int
    ever_connected: int
    _maximum_unconnected: Final[int]
    _maximum_unfinished: int
    _connections: Final[dict[int, Connection]]
    _disconnect: Final[Disconnect]
    _unconnected: Final[AddressShares]
    # Weighted by bytes.
    _unfinished: Final[AddressShares]
    _closed: Final[ThrottledLog]

    def __init__(
        self,
        settings: BrokerSettings,
        connections: dict[int, Connection],
        disconnect: Disconnect,
        log: Callable[[str], None],
    ) -> None:
        """`connections` are all open connections, by number."""
        self.connected = 0
        self.by_listener = {}
        self.by_address = {}
        self.by_user = {}
        self.most_connected = 0
        self.ever_connected = 0
        self._maximum_unconnected = settings.maximum_unconnected
        self._maximum_unfinished = max(
            settings.maximum_unfinished_bytes, settings.maximum_packet_size
        )
        self._connections = connections
        self._disconnect = disconnect
        self._unconnected = AddressShares()
        self._unfinished = AddressShares()
        self._closed = ThrottledLog(log)

    def opened(self, connection: Connection, now: float) -> None:
        """Count a new connection. If there are too many, close one."""
        connection.is_unconnected = True
        # A listener may accept larger packets than others.
        self._maximum_unfinished = max(
            self._maximum_unfinished, connection.limits.maximum_packet_size
        )
        self._unconnected.count(connection.address, 1)
        self._unconnected.make_evictable(connection.number, connection.address)
        if self._unconnected.weight > self._maximum_unconnected:
            bound = f"maximum_unconnected is {self._maximum_unconnected}"
            self._close(self._unconnected, f"it had not connected yet: {bound}", now)

    def admitted(self, connection: Connection) -> None:
        """The CONNECT of the connection was accepted."""
        self._stop_counting_unconnected(connection)
        connection.is_admitted = True
        self.connected += 1
        assert connection.state is not None
        connection.counted_user = connection.state.identity.proved_user
        self._count_admitted(connection, 1)
        self.ever_connected += 1
        self.most_connected = max(self.most_connected, self.connected)

    def received(self, connection: Connection, now: float) -> None:
        """Bytes arrived. What remains in the decoder is an incomplete packet."""
        size = connection.decoder.unfinished
        if not size and not connection.unfinished:
            return
        self._count_unfinished(connection, 0 if connection.closing else size, now)
        while self._unfinished.weight > self._maximum_unfinished:
            bound = f"maximum_unfinished_bytes is {self._maximum_unfinished}"
            self._close(self._unfinished, f"its packet was not complete: {bound}", now)

    def leaving(self, connection: Connection, now: float) -> None:
        """The connection is closing: discard its incomplete packet."""
        self._stop_counting_unconnected(connection)
        self._count_unfinished(connection, 0, now)
        connection.decoder.give_up()

    def lost(self, connection: Connection, now: float) -> None:
        """The network connection is closed."""
        self.leaving(connection, now)
        if connection.is_admitted:
            connection.is_admitted = False
            self.connected -= 1
            self._count_admitted(connection, -1)

    def _count_admitted(self, connection: Connection, more: int) -> None:
        listener = connection.limits.listener
        _add(self.by_listener, listener, more)
        key = (listener, connection.address)
        count = self.by_address.get(key, 0) + more
        if count:
            self.by_address[key] = count
        else:
            del self.by_address[key]
        if connection.counted_user is not None:
            _add(self.by_user, connection.counted_user, more)

    def sweep(self, now: float) -> None:
        """Once a second: close connections whose packet is overdue."""
        self._closed.flush(now)
        for number in self._unfinished.evictable_keys():
            assert isinstance(number, int)
            connection = self._connections[number]
            if not connection.may_be_read:
                # A client is not slow while the broker does not read from it.
                connection.begun_at = now
            timeout = connection.limits.packet_timeout
            allowed = timeout + connection.decoder.needed / MINIMUM_RATE
            if now >= connection.begun_at + allowed:
                self._end(connection, "its packet was not complete in time", now)

    def _stop_counting_unconnected(self, connection: Connection) -> None:
        if connection.is_unconnected:
            connection.is_unconnected = False
            self._unconnected.protect(connection.number, connection.address)
            self._unconnected.count(connection.address, -1)

    def _count_unfinished(self, connection: Connection, size: int, now: float) -> None:
        if connection.begun != connection.decoder.begun:
            connection.begun = connection.decoder.begun
            connection.begun_at = now
        more = size - connection.unfinished
        if not more:
            return
        if not size:
            self._unfinished.protect(connection.number, connection.address)
        self._unfinished.count(connection.address, more)
        if not connection.unfinished:
            self._unfinished.make_evictable(connection.number, connection.address)
        connection.unfinished = size

    def _close(self, shares: AddressShares, why: str, now: float) -> None:
        number = shares.next_to_evict()
        assert isinstance(number, int)
        self._end(self._connections[number], why, now)

    def _end(self, connection: Connection, why: str, now: float) -> None:
        self._closed.log(f"{connection.peer} closed: {why}", now)
        self._disconnect(connection, QUOTA_EXCEEDED, now, why)


def _add(counts: dict[str, int], key: str, more: int) -> None:
    """Add to a count, and forget it when it is 0."""
    count = counts.get(key, 0) + more
    if count:
        counts[key] = count
    else:
        del counts[key]

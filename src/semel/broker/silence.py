"""Closes connections that did not connect in time, or are silent for too long.

Also closes those whose credentials have expired, and those whose answers have waited too long
because the disk is full. A client that the broker itself makes wait is not silent.
"""

from typing import Final, final

from semel.broker.broker_log import BrokerLog
from semel.broker.connecting import DISK_FULL
from semel.broker.connection import Connection
from semel.broker.connections import Connections
from semel.broker.store_pressure import StorePressure
from semel.mqtt.reasons import KEEP_ALIVE_TIMEOUT, MAXIMUM_CONNECT_TIME, QUOTA_EXCEEDED


@final
class SilenceCheck:
    """Checks the time limits of open connections."""

    _connections: Final[Connections]
    _store_pressure: Final[StorePressure]
    _log: Final[BrokerLog]

    def __init__(
        self, connections: Connections, store_pressure: StorePressure, log: BrokerLog
    ) -> None:
        self._connections = connections
        self._store_pressure = store_pressure
        self._log = log

    def check(self, connection: Connection, now: float) -> None:
        """Close a connection that is beyond one of its time limits."""
        if self._store_pressure.has_timed_out(connection, now):
            self._log_closed(connection, "its acknowledgements wait for space on the disk", now)
            self._connections.disconnect(connection, QUOTA_EXCEEDED, now, DISK_FULL)
        elif connection.paused_by_store or connection.awaits_turn or connection.paused_by_rate:
            return
        elif connection.paused_by_reader or connection.was_paused_by_reader:
            # A paused client is not silent.
            connection.was_paused_by_reader = False
            connection.last_packet_at = now
        elif not connection.is_connected:
            if now - connection.opened_at >= connection.limits.connect_timeout:
                self._connections.close_overdue(connection, now)
        elif connection.has_expired(now):
            self._log_closed(connection, "its credentials have expired", now)
            self._connections.disconnect(connection, MAXIMUM_CONNECT_TIME, now)
        # [MQTT-3.1.2-22] one and a half times the interval
        elif connection.keep_alive:
            if now - connection.last_packet_at >= connection.keep_alive * 1.5:
                self._log_closed(connection, "keep alive timeout", now)
                self._connections.disconnect(connection, KEEP_ALIVE_TIMEOUT, now)

    def _log_closed(self, connection: Connection, why: str, now: float) -> None:
        self._log.problem(connection.log_source, f"{connection.label} closed: {why}", now)

"""Opens connections, queues packets for them, and closes them.

A connection is the fault domain of everything that is done for it: an exception closes this
connection and is logged, and every other connection is served in the same tick.
"""

from traceback import format_exc
from typing import Final, final

from semel.broker.access_control import AccessControl
from semel.broker.arrivals import Arrivals
from semel.broker.audit_events import AuditEvents
from semel.broker.broker_log import OTHERS, BrokerLog
from semel.broker.connection import Connection
from semel.broker.durability import CommitGate
from semel.broker.identity import PeerInfo
from semel.broker.lifetimes import Lifetimes
from semel.broker.listener_limits import ListenerLimits
from semel.broker.pressure import Pressure
from semel.broker.send_queue import SendQueue
from semel.broker.settings import BrokerSettings
from semel.mqtt.codec import Packet, encode
from semel.mqtt.exchange import CONNECTED
from semel.mqtt.packet_types import DISCONNECT, MQTT5
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.properties import Properties
from semel.mqtt.reasons import PROTOCOL_ERROR, REASONS_5


@final
class Connections:
    """Opens and closes connections, and queues packets for them."""

    by_number: Final[dict[int, Connection]]
    # How many there are, by listener; a listener that had one stays.
    by_listener: Final[dict[str, int]]
    arrivals: Final[Arrivals]
    send_queue: Final[SendQueue]
    audit: Final[AuditEvents]
    # Connections that have bytes to write, or must be closed.
    with_output: dict[int, Connection]
    _settings: Final[BrokerSettings]
    _gate: Final[CommitGate]
    _access: Final[AccessControl]
    _lifetimes: Final[Lifetimes]
    _pressure: Final[Pressure]
    _log: Final[BrokerLog]
    _last_number: int

    def __init__(
        self,
        settings: BrokerSettings,
        gate: CommitGate,
        access: AccessControl,
        lifetimes: Lifetimes,
        pressure: Pressure,
        log: BrokerLog,
        *,
        audit: AuditEvents,
    ) -> None:
        self.audit = audit
        self.by_number = {}
        self.by_listener = {}
        self.arrivals = Arrivals(settings, self.by_number, self.disconnect, log.fault)
        self.send_queue = SendQueue(self.by_number, gate)
        self.with_output = {}
        self._settings = settings
        self._gate = gate
        self._access = access
        self._lifetimes = lifetimes
        self._pressure = pressure
        self._log = log
        self._last_number = 0

    @property
    def opened(self) -> int:
        """How many connections were ever opened."""
        return self._last_number

    def open(self, peer: PeerInfo, now: float, limits: ListenerLimits) -> Connection:
        """Add a new connection. Until its CONNECT it may send small packets only."""
        self._last_number += 1
        connection = Connection(
            self._last_number,
            peer,
            now,
            limits=limits,
            maximum_items=self._settings.packet_items,
        )
        self.by_number[connection.number] = connection
        listener = connection.listener
        self.by_listener[listener] = self.by_listener.get(listener, 0) + 1
        self.arrivals.opened(connection, now)
        return connection

    def remove(self, connection: Connection, now: float) -> None:
        """Remove a connection whose socket is closed."""
        self.arrivals.lost(connection, now)
        if self.by_number.pop(connection.number, None) is not None:
            self.by_listener[connection.listener] -= 1
        self.with_output.pop(connection.number, None)

    def send(self, connection: Connection, packet: Packet) -> None:
        """Send a packet at the end of this tick, or after its commit."""
        self.send_queue.add(connection.number, [packet])

    def drop(self, connection: Connection, now: float) -> None:
        """Close without a DISCONNECT.

        If its CONNECT was not accepted, the audit log gets its `close_reason`. A refused CONNECT
        has none, because it is there already.
        """
        if connection.close_reason and not connection.is_admitted and not connection.closing:
            self.audit.refused_early(connection, connection.close_reason)
        connection.closing = True
        self.arrivals.leaving(connection, now)
        self.with_output[connection.number] = connection
        self.detach_session(connection, now)

    def disconnect(
        self,
        connection: Connection,
        reason: int,
        now: float,
        why: str | None = None,
        *,
        reference: str | None = None,
    ) -> None:
        """Close, with a DISCONNECT if the version has one [MQTT-3.14.0-1].

        `reference` is its Server Reference.
        """
        exchange = connection.exchange
        if reason not in REASONS_5[DISCONNECT]:
            # A second CONNECT with an unknown protocol level: 0x84 is defined for CONNACK only.
            reason = PROTOCOL_ERROR
        if exchange.version == MQTT5 and exchange.phase == CONNECTED:
            packet = Disconnect(reason)
            if why is not None or reference is not None:
                properties = Properties(reason_string=why, server_reference=reference)
                detailed = Disconnect(reason, properties=properties)
                # [MQTT-3.14.2-3] only if it fits
                if len(encode(detailed)) <= exchange.client.maximum_packet_size:
                    packet = detailed
            self.send(connection, packet)
        code = f"0x{reason:02x}"
        connection.close_reason = code if why is None else f"{code}, {why}"
        self.drop(connection, now)

    def close_overdue(self, connection: Connection, now: float) -> None:
        """Close a connection whose CONNECT was not accepted in time, and log that."""
        connection.close_reason = "not connected within connect_timeout"
        line = f"{connection.label} closed: {connection.close_reason}"
        self._log.problem(connection.log_source, line, now)
        self.drop(connection, now)

    def close_failed(self, connection: Connection, problem: str, now: float) -> None:
        """Close a connection because serving it raised an exception, and log that."""
        line = f"{connection.label} closed: serving it failed: {problem}"
        self._log.problem(connection.log_source, line, now)
        connection.close_reason = "serving it failed"
        self.drop(connection, now)

    def close_for_fault(self, number: int, event: str, problem: str, now: float) -> None:
        """Close the connection of a client for which something failed, and log that.

        If the connection is closing or closed, only log the problem, as `event`.
        """
        connection = self.by_number.get(number)
        if connection is None or connection.closing:
            self._log.problem(OTHERS, f"{event}: {problem}", now)
        else:
            self.close_failed(connection, problem, now)

    def detach_session(self, connection: Connection, now: float) -> None:
        """Detach the session, if any, from its connection: it continues without, or ends [4.1]."""
        state = connection.state
        connection.state = None
        if state is None:
            return
        self.audit.disconnected(connection, state)
        self._gate.leave(connection, state)
        state.connection = 0
        try:
            self._lifetimes.leave(state, now)
            # Retained QoS 0 messages that were not sent are lost with the connection; QoS 1 and 2
            # messages are sent on the next one.
            if state.retained_searches is not None:
                for topic_filter, search in list(state.retained_searches.items()):
                    search.minimum_qos = 1
                    if not search.qos:
                        del state.retained_searches[topic_filter]
        except Exception:
            # Caught here, because the connection that is being served may be another one.
            line = f"{state.label}: disconnecting failed: {format_exc()}"
            self._log.problem(connection.log_source, line, now)
            state.retained_searches = None
        finally:
            # Publishers must not wait for a reader that has disconnected.
            self._pressure.caught_up(state)
        try:
            self._access.has_left(state)
        except Exception:
            line = f"{state.label}: the authority failed after it left: {format_exc()}"
            self._log.problem(connection.log_source, line, now)

"""Opens connections, queues packets for them, and closes them.

A connection is the fault domain of everything that is done for it: an exception closes this
connection and is logged, and every other connection is served in the same tick.
"""

from collections.abc import Callable
from traceback import format_exc
from typing import Final, final

from semel.broker.arrivals import Arrivals
from semel.broker.connection import Connection
from semel.broker.durability import CommitGate
from semel.broker.lifetimes import Lifetimes
from semel.broker.pressure import Pressure
from semel.broker.send_queue import SendQueue
from semel.broker.session_state import client_label
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
    arrivals: Final[Arrivals]
    send_queue: Final[SendQueue]
    # Connections that have bytes to write, or must be closed.
    with_output: dict[int, Connection]
    _settings: Final[BrokerSettings]
    _gate: Final[CommitGate]
    _lifetimes: Final[Lifetimes]
    _pressure: Final[Pressure]
    _log: Final[Callable[[str], None]]
    _last_number: int

    def __init__(
        self,
        settings: BrokerSettings,
        gate: CommitGate,
        lifetimes: Lifetimes,
        pressure: Pressure,
        log: Callable[[str], None],
    ) -> None:
        self.by_number = {}
        self.arrivals = Arrivals(settings, self.by_number, self.disconnect, log)
        self.send_queue = SendQueue(self.by_number, gate)
        self.with_output = {}
        self._settings = settings
        self._gate = gate
        self._lifetimes = lifetimes
        self._pressure = pressure
        self._log = log
        self._last_number = 0

    def open(self, peer: str, now: float) -> Connection:
        """Add a new connection. Until its CONNECT it may send small packets only."""
        self._last_number += 1
        settings = self._settings
        connection = Connection(
            self._last_number,
            peer,
            now,
            maximum_packet_size=settings.maximum_packet_size,
            before_connect=settings.before_connect_packet_size,
            maximum_items=settings.packet_items,
        )
        self.by_number[connection.number] = connection
        self.arrivals.opened(connection, now)
        return connection

    def remove(self, connection: Connection, now: float) -> None:
        """Remove a connection whose socket is closed."""
        self.arrivals.lost(connection, now)
        self.by_number.pop(connection.number, None)
        self.with_output.pop(connection.number, None)

    def send(self, connection: Connection, packet: Packet) -> None:
        """Send a packet at the end of this tick, or after its commit."""
        self.send_queue.add(connection.number, [packet])

    def drop(self, connection: Connection, now: float) -> None:
        """Close without a DISCONNECT."""
        connection.closing = True
        self.arrivals.leaving(connection, now)
        self.with_output[connection.number] = connection
        self.detach_session(connection, now)

    def disconnect(
        self, connection: Connection, reason: int, now: float, why: str | None = None
    ) -> None:
        """Close, with a DISCONNECT if the version has one [MQTT-3.14.0-1]."""
        exchange = connection.exchange
        if reason not in REASONS_5[DISCONNECT]:
            # A second CONNECT with an unknown protocol level: 0x84 is defined for CONNACK only.
            reason = PROTOCOL_ERROR
        if exchange.version == MQTT5 and exchange.phase == CONNECTED:
            packet = Disconnect(reason)
            if why is not None:
                detailed = Disconnect(reason, properties=Properties(reason_string=why))
                # [MQTT-3.14.2-3] only if it fits
                if len(encode(detailed)) <= exchange.client.maximum_packet_size:
                    packet = detailed
            self.send(connection, packet)
        self.drop(connection, now)

    def close_failed(self, connection: Connection, problem: str, now: float) -> None:
        """Close a connection because serving it raised an exception, and log that."""
        self._log(f"{connection.label} closed: serving it failed: {problem}")
        self.drop(connection, now)

    def close_for_fault(self, number: int, event: str, problem: str, now: float) -> None:
        """Close the connection of a client for which something failed, and log that.

        If the connection is closing or closed, only log the problem, as `event`.
        """
        connection = self.by_number.get(number)
        if connection is None or connection.closing:
            self._log(f"{event}: {problem}")
        else:
            self.close_failed(connection, problem, now)

    def detach_session(self, connection: Connection, now: float) -> None:
        """Detach the session, if any, from its connection: it continues without, or ends [4.1]."""
        state = connection.state
        connection.state = None
        if state is None:
            return
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
            self._log(f"{client_label(state.client_id)}: disconnecting failed: {format_exc()}")
            state.retained_searches = None
        finally:
            # Publishers must not wait for a reader that has disconnected.
            self._pressure.caught_up(state)

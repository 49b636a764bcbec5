"""Checks recorded packets between a client and a server by the rules for both sides.

A `ConnectionTrace` follows one connection, packet by packet: it checks each packet by the rules of
the codec, and their sequence by those of an `Exchange`. `SessionTraces` carries the open exchanges
of a client identifier over to its next connection.

    bytes of a packet ─▶ read ─▶ ObservedPacket ─▶ check ─▶ violations of its sender

A packet that its receiver never got should be read, but not checked, so that the trace matches what
the receiver knows.

After bytes from the client that are not a valid packet, or a first packet other than CONNECT, the
state of the connection is unknown. From then on packets are still read, but their order is not
checked.
"""

from typing import Final, final

from semel.mqtt.codec import Packet, decode
from semel.mqtt.exchange import CONNECTED, CONNECTING, NEW, Exchange
from semel.mqtt.exchange_rules import CONNECT_FIRST
from semel.mqtt.observation import observe
from semel.mqtt.packet_types import CONNECT
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.connect import Connect
from semel.mqtt.side import CLIENT, Open
from semel.mqtt.violation import Violation

# Client identifiers whose open exchanges are kept after their connection has ended.
MAXIMUM_SESSIONS: Final = 10_000


@final
class ObservedPacket:
    """The bytes of one packet. If they break rules of the codec, `packet` is None."""

    packet_type: Final[int]
    packet: Final[Packet | None]
    violations: Final[tuple[Violation, ...]]
    data: Final[bytes]

    def __init__(
        self, data: bytes, packet: Packet | None, violations: tuple[Violation, ...]
    ) -> None:
        self.packet_type = data[0] >> 4
        self.packet = packet
        self.violations = violations
        self.data = data


@final
class ConnectionTrace:
    """One connection, with a number of the caller's. `client_id` is "" until it is known."""

    number: Final[int]
    sessions: Final["SessionTraces"]
    client_id: str
    version: int
    exchange: Exchange
    # Whether its state is unknown: the client sent invalid bytes, or a packet before CONNECT.
    is_lost: bool

    def __init__(self, number: int, sessions: "SessionTraces") -> None:
        self.number = number
        self.sessions = sessions
        self.client_id = ""
        self.version = 0
        self.exchange = Exchange([])
        self.is_lost = False

    def read(self, data: bytes) -> ObservedPacket:
        """Decode the bytes of one whole packet, regardless of other packets."""
        try:
            decoded = decode(data, self.version)
        except Violation as violation:
            observation = observe(data, self.version)
            if observation is None:
                return ObservedPacket(data, None, (violation,))
            if observation.packet_type == CONNECT and not self.version:
                # Reports name the client even if its CONNECT is malformed.
                self.version = observation.version
                for name, value in observation.fields:
                    if name == "client_id" and isinstance(value, str):
                        # Ill-formed text is read with surrogates, which no terminal can show.
                        self.client_id = value.encode(errors="replace").decode()
            return ObservedPacket(data, None, observation.violations)
        assert decoded is not None, "a whole packet"
        return ObservedPacket(data, decoded[0], ())

    def check(self, sender: int, observed: ObservedPacket) -> tuple[Violation, ...]:
        """Check a packet that `sender` (CLIENT or SERVER) sent. Returns all violations."""
        packet = observed.packet
        if packet is None:
            if sender == CLIENT:
                self.is_lost = True
            return observed.violations
        if self.is_lost:
            return ()
        if isinstance(packet, Connect) and sender == CLIENT and self.exchange.phase == NEW:
            self.version = packet.version
            self.client_id = packet.client_id
            self.exchange = Exchange(self.sessions.open_exchanges(packet.client_id))
        found: list[Violation] = []
        self.exchange.observe(sender, packet, len(observed.data), found)
        if sender == CLIENT:
            for violation in found:
                if violation.rule is CONNECT_FIRST:
                    self.is_lost = True
        elif isinstance(packet, ConnAck) and self.exchange.phase == CONNECTED:
            assigned = packet.properties.assigned_client_identifier
            if assigned is not None:
                self.client_id = assigned
            self.sessions.begin(self)
        return tuple(found)

    def end(self) -> None:
        """End the connection, and keep its open exchanges for the next one of the session."""
        self.sessions.end(self)


@final
class SessionTraces:
    """The open exchanges of each client identifier, from one connection to the next."""

    _maximum: Final[int]
    # By client identifier, the oldest first. None: unknown.
    _open: dict[str, list[Open] | None]
    _connected: dict[str, ConnectionTrace]
    # Whether the open exchanges of some client identifier were discarded to make room.
    _is_incomplete: bool

    def __init__(self, maximum: int = MAXIMUM_SESSIONS) -> None:
        self._maximum = maximum
        self._open = {}
        self._connected = {}
        self._is_incomplete = False

    def open_exchanges(self, client_id: str) -> list[Open] | None:
        """The open exchanges with which a new connection of this client starts; None: unknown."""
        earlier = self._connected.get(client_id)
        if earlier is not None:
            # The client has reconnected before the end of its earlier connection was observed.
            return None if earlier.is_lost else earlier.exchange.carry()
        if client_id in self._open:
            return self._open[client_id]
        return None if self._is_incomplete else []

    def begin(self, trace: ConnectionTrace) -> None:
        """Record that the server accepted the CONNECT of this connection."""
        self._connected[trace.client_id] = trace

    def end(self, trace: ConnectionTrace) -> None:
        """Record that this connection has ended."""
        client_id = trace.client_id
        if self._connected.get(client_id) is trace:
            del self._connected[client_id]
            self._keep(client_id, None if trace.is_lost else trace.exchange.carry())
        elif trace.exchange.phase == CONNECTING and client_id not in self._connected:
            # Without a CONNACK it is unknown whether the session was resumed.
            self._keep(client_id, None)

    def _keep(self, client_id: str, open_exchanges: list[Open] | None) -> None:
        self._open.pop(client_id, None)
        self._open[client_id] = open_exchanges
        if len(self._open) > self._maximum:
            oldest = next(iter(self._open))
            del self._open[oldest]
            self._is_incomplete = True

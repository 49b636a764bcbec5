"""The state of one network connection, without the socket.

The owner of the socket passes received bytes to `Broker.receive` and writes the bytes in
`outgoing`. Sent packets are checked by the same Exchange as received ones, so that the broker obeys
the rules that it enforces.
"""

from typing import Final, final

from mypy_extensions import i64

from semel.broker.addresses import address_of
from semel.broker.authority import ServerAuthentication
from semel.broker.session_state import SessionState, client_label
from semel.mqtt.codec import Decoder, Packet, decode, encode
from semel.mqtt.exchange import CONNECTED, Exchange
from semel.mqtt.ordinary import ordinary_answer, ordinary_publish
from semel.mqtt.packet_types import PUBLISH, QOS_FLAGS
from semel.mqtt.packets.connect import Connect
from semel.mqtt.packets.publish import Publish
from semel.mqtt.properties import TOPIC_ALIAS, Properties
from semel.mqtt.side import SERVER
from semel.mqtt.wire import memory_size

# An alias takes three bytes, so that it saves nothing for a topic shorter than this.
_SHORTEST_ALIASED: Final = 4


@final
class Connection:
    """The state of one connection."""

    number: Final[int]
    # The peer's address with its port, for the log, and without it, for limits per address.
    peer: Final[str]
    address: Final[str]
    opened_at: float
    decoder: Final[Decoder]
    exchange: Exchange
    state: SessionState | None
    # Enhanced authentication, and the CONNECT that is pending until it ends.
    authentication: ServerAuthentication | None
    pending_connect: Connect | None
    # The Keep Alive in seconds (0: none), and when the last packet arrived.
    keep_alive: int
    last_packet_at: float
    # Encoded packets that have not been written to the socket, their size, and the number of bytes
    # in the socket's write buffer.
    outgoing: list[bytes]
    outgoing_size: int
    unsent: int
    # Topics that have an alias towards the peer (None: it accepts none), and their maximum number.
    aliases: dict[str, int] | None
    alias_maximum: int
    # Maximum memory of the topics with an alias, in each direction.
    maximum_alias_bytes: int
    # Whether reading is paused because a subscriber of its messages is behind; whether it was
    # paused since the last sweep.
    paused_by_reader: bool
    was_paused_by_reader: bool
    # Whether its next packet stays in the decoder, because the store accepts no more messages.
    paused_by_store: bool
    # Whether it has used up its turn, so that further packets stay in the decoder; the round in
    # which it was last served, and the work done for it in that round.
    awaits_turn: bool
    turn: int
    work: int
    # Set by `CommitGate`: whether its session awaited a commit when it was detached; how many
    # commits hold packets for it; whether its CONNACK, or an answer to a packet, is among these.
    left_awaiting_commit: bool
    commits_awaited: int
    connack_awaits_commit: bool
    answer_awaits_commit: bool
    # Since when its answers wait because the disk is full; negative: they do not.
    disk_full_since: float
    # Whether it counts as a connection without an accepted CONNECT, or as a connected client.
    is_unconnected: bool
    is_admitted: bool
    # The received bytes of its incomplete packet, the `Decoder.begun` of that packet, and when its
    # first byte arrived.
    unfinished: int
    begun: int
    begun_at: float
    # Nothing more is processed; the connection closes when its output is written.
    closing: bool
    # The peer does not read: close without waiting for unsent bytes.
    abort_on_close: bool
    # Sending failed: send nothing more, and do not log it again.
    is_muted: bool

    def __init__(
        self,
        number: int,
        peer: str,
        now: float,
        *,
        maximum_packet_size: int,
        before_connect: int,
        maximum_items: int,
    ) -> None:
        self.number = number
        self.peer = peer
        self.address = address_of(peer)
        self.opened_at = now
        # Version 0: unknown until CONNECT.
        self.decoder = Decoder(
            0,
            maximum_packet_size=maximum_packet_size,
            before_connect=before_connect,
            maximum_items=maximum_items,
        )
        self.exchange = Exchange()
        self.state = None
        self.authentication = None
        self.pending_connect = None
        self.keep_alive = 0
        self.last_packet_at = now
        self.outgoing = []
        self.outgoing_size = 0
        self.unsent = 0
        self.aliases = None
        self.alias_maximum = 0
        self.maximum_alias_bytes = 0
        self.paused_by_reader = False
        self.was_paused_by_reader = False
        self.paused_by_store = False
        self.awaits_turn = False
        self.turn = 0
        self.work = 0
        self.left_awaiting_commit = False
        self.commits_awaited = 0
        self.connack_awaits_commit = False
        self.answer_awaits_commit = False
        self.disk_full_since = -1.0
        self.is_unconnected = False
        self.is_admitted = False
        self.unfinished = 0
        self.begun = 0
        self.begun_at = now
        self.closing = False
        self.abort_on_close = False
        self.is_muted = False

    @property
    def may_be_read(self) -> bool:
        """Whether the socket may be read: nothing pauses the connection."""
        return not self.paused_by_reader and not self.paused_by_store and not self.awaits_turn

    @property
    def label(self) -> str:
        """The name of the connection in the log; text from the peer is escaped."""
        if self.state is None:
            return self.peer
        return f"{client_label(self.state.client_id)} ({self.peer})"

    @property
    def is_connected(self) -> bool:
        """Whether CONNECT was accepted and the connection is not closing."""
        return self.exchange.phase == CONNECTED and not self.closing

    def send(self, packet: Packet) -> None:
        """Encode a packet into the output. Raises `Violation` if it must not be sent."""
        if self.aliases is not None and isinstance(packet, Publish):
            packet = self._aliased(packet, self.aliases)
        data = encode(packet, self.exchange.version)
        self.exchange.observe(SERVER, packet, len(data))
        self.write(data)

    def _aliased(self, packet: Publish, aliases: dict[str, int]) -> Publish:
        """The packet with a Topic Alias, if the peer allows it [3.3.2.3.4].

        The first topics get an alias, and keep it.
        """
        topic_name = packet.topic_name
        alias = aliases.get(topic_name, 0)
        if not alias:
            if len(aliases) == self.alias_maximum or len(topic_name) < _SHORTEST_ALIASED:
                return packet
            if (
                self.exchange.server.alias_bytes + memory_size(topic_name)
                > self.maximum_alias_bytes
            ):
                return packet
            alias = len(aliases) + 1
        else:
            topic_name = ""
        aliased = Publish(
            topic_name,
            packet.payload,
            packet.qos,
            packet.packet_id,
            retain=packet.retain,
            dup=packet.dup,
            properties=Properties([(TOPIC_ALIAS, alias)], before=packet.properties),
        )
        if topic_name:
            # [MQTT-3.1.2-24] what fits without the alias may not fit with it
            if len(encode(aliased)) > self.exchange.client.maximum_packet_size:
                return packet
            aliases[topic_name] = alias
        return aliased

    def has_too_many_aliases(self) -> bool:
        """Whether the topics to which the client assigned an alias take too much memory.

        A single topic is always allowed, because the protocol bounds its size.
        """
        client = self.exchange.client
        return client.alias_bytes > self.maximum_alias_bytes and len(client.aliases) > 1

    def send_encoded(self, data: bytes) -> int:
        """Send one encoded packet, or several QoS 0 PUBLISH packets. Returns the packet type."""
        first: i64 = data[0]
        if first >> 4 != PUBLISH:
            packet_id = data[2] << 8 | data[3]
            taken = ordinary_answer(self.exchange, SERVER, first >> 4, packet_id)
        elif first & QOS_FLAGS:
            taken = ordinary_publish(self.exchange, SERVER, first >> 1 & 3, packet_id_at(data))
        else:
            taken = True
        if not taken:
            decoded = decode(data, self.exchange.version)
            assert decoded is not None
            self.exchange.observe(SERVER, decoded[0], len(data))
        self.write(data)
        return first >> 4

    def write(self, data: bytes) -> None:
        """Append bytes to the output."""
        self.outgoing.append(data)
        self.outgoing_size += len(data)

    def take_outgoing(self) -> bytes:
        """Take all bytes since the last call, for one write."""
        data = b"".join(self.outgoing)
        self.outgoing = []
        self.outgoing_size = 0
        return data


def packet_id_at(data: bytes) -> int:
    """The Packet Identifier in the bytes of a QoS 1 or 2 PUBLISH."""
    at: i64 = 1
    while data[at] > 127:
        at += 1
    at += 3 + (data[at + 1] << 8 | data[at + 2])
    return data[at] << 8 | data[at + 1]

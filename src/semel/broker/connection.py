"""The state of one network connection, without the socket.

The owner of the socket passes received bytes to `Broker.receive` and writes the bytes in
`outgoing`. Sent packets are checked by the same Exchange as received ones, so that the broker obeys
the rules that it enforces.
"""

from typing import Final, final

from mypy_extensions import i64

from semel.broker.authority import ServerAuthentication
from semel.broker.broker_log import address_source, user_source
from semel.broker.identity import Identity, PeerInfo
from semel.broker.listener_limits import ListenerLimits
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
    peer_info: Final[PeerInfo]
    limits: Final[ListenerLimits]
    opened_at: float
    decoder: Final[Decoder]
    exchange: Final[Exchange]
    state: SessionState | None
    # The CONNECT that is pending until a Proof has decided, or enhanced authentication has ended;
    # who the client is, as far as it is proved.
    pending_connect: Connect | None
    authentication: ServerAuthentication | None
    claimed_identity: Identity | None
    # The Keep Alive in seconds (0: none), and when the last packet arrived.
    keep_alive: int
    last_packet_at: float
    # Encoded packets that have not been written to the socket (None: there are none), their size,
    # and the number of bytes in the socket's write buffer.
    outgoing: list[bytes] | None
    outgoing_size: int
    unsent: int
    # What has passed since it was opened.
    messages_received: int
    bytes_received: int
    bytes_sent: int
    # Topics that have an alias towards the peer (None: it accepts none), and their maximum number.
    aliases: dict[str, int] | None
    alias_maximum: int
    # Maximum memory of the topics with an alias, in each direction.
    maximum_alias_bytes: int
    # The round in which it was last served, and the work done for it in that round.
    turn: int
    work: int
    # Set by `CommitGate`: how many commits hold packets for it.
    commits_awaited: int
    # Since when its answers wait because the disk is full; negative: they do not.
    disk_full_since: float
    # The user name under which it counts as connected.
    counted_user: str | None
    # The received bytes of its incomplete packet, the `Decoder.begun` of that packet, and when its
    # first byte arrived.
    unfinished: int
    begun: int
    begun_at: float
    # Why it is closing or closed, for the audit log.
    close_reason: str
    # The flags are next to each other, so that each takes one byte.
    # Whether a Proof must decide about its CONNECT.
    awaits_proof: bool
    # Whether it has used up its turn, so that further packets stay in the decoder.
    awaits_turn: bool
    # Whether reading is paused because a subscriber of its messages is behind; whether it was
    # paused since the last sweep.
    paused_by_reader: bool
    was_paused_by_reader: bool
    # Whether its next packet stays in the decoder, because the store accepts no more messages.
    paused_by_store: bool
    # Whether it waits because it has sent more per second than it may.
    paused_by_rate: bool
    # Set by `CommitGate`: whether its session awaited a commit when it was detached; whether its
    # CONNACK, or an answer to a packet, is among the packets that await a commit.
    left_awaiting_commit: bool
    connack_awaits_commit: bool
    answer_awaits_commit: bool
    # Whether it counts as a connection without an accepted CONNECT, or as a connected client.
    is_unconnected: bool
    is_admitted: bool
    # Nothing more is processed; the connection closes when its output is written.
    closing: bool
    # The peer does not read: close without waiting for unsent bytes.
    abort_on_close: bool
    # Sending failed: send nothing more, and do not log it again.
    is_muted: bool

    def __init__(
        self,
        number: int,
        peer: PeerInfo,
        now: float,
        *,
        limits: ListenerLimits,
        maximum_items: int,
    ) -> None:
        self.number = number
        self.peer_info = peer
        self.limits = limits
        self.opened_at = now
        # Version 0: unknown until CONNECT.
        self.decoder = Decoder(
            0,
            maximum_packet_size=limits.maximum_packet_size,
            before_connect=limits.before_connect_packet_size,
            maximum_items=maximum_items,
        )
        self.exchange = Exchange()
        self.state = None
        self.pending_connect = None
        self.awaits_proof = False
        self.authentication = None
        self.claimed_identity = None
        self.keep_alive = 0
        self.last_packet_at = now
        self.outgoing = None
        self.outgoing_size = 0
        self.unsent = 0
        self.messages_received = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.aliases = None
        self.alias_maximum = 0
        self.maximum_alias_bytes = 0
        self.paused_by_reader = False
        self.was_paused_by_reader = False
        self.paused_by_store = False
        self.paused_by_rate = False
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
        self.counted_user = None
        self.unfinished = 0
        self.begun = 0
        self.begun_at = now
        self.closing = False
        self.close_reason = ""
        self.abort_on_close = False
        self.is_muted = False

    @property
    def may_be_read(self) -> bool:
        """Whether the socket may be read: nothing pauses the connection."""
        return not (self.paused_by_reader or self.paused_by_store or self.is_waiting)

    @property
    def is_waiting(self) -> bool:
        """Whether its packets stay in the decoder until its turn, its proof or its rate allows."""
        return self.awaits_turn or self.awaits_proof or self.paused_by_rate

    def has_expired(self, now: float) -> bool:
        """Whether the credentials of the connected client have expired."""
        assert self.state is not None
        expires_at = self.state.identity.expires_at
        return expires_at is not None and now >= expires_at

    @property
    def listener(self) -> str:
        """The name of the listener that accepted it."""
        return self.peer_info.listener

    @property
    def peer(self) -> str:
        """The peer's address with its port, for the log."""
        return self.peer_info.label

    @property
    def address(self) -> str:
        """The peer's address without its port, for limits per address."""
        return self.peer_info.address

    @property
    def label(self) -> str:
        """The name of the connection in the log; text from the peer is escaped."""
        if self.state is None:
            return self.peer
        return f"{client_label(self.state.client_id)} ({self.peer})"

    @property
    def log_source(self) -> str:
        """The user or the address for which lines about it are counted."""
        if self.counted_user is None:
            return address_source(self.address)
        return user_source(self.counted_user)

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
        return client.alias_bytes > self.maximum_alias_bytes and client.alias_count > 1

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
        if self.outgoing is None:
            self.outgoing = []
        self.outgoing.append(data)
        self.outgoing_size += len(data)

    def take_outgoing(self) -> bytes:
        """Take all bytes since the last call, for one write."""
        outgoing = self.outgoing
        if outgoing is None:
            return b""
        data = outgoing[0] if len(outgoing) == 1 else b"".join(outgoing)
        self.outgoing = None
        self.outgoing_size = 0
        self.bytes_sent += len(data)
        return data


def packet_id_at(data: bytes) -> int:
    """The Packet Identifier in the bytes of a QoS 1 or 2 PUBLISH."""
    at: i64 = 1
    while data[at] > 127:
        at += 1
    at += 3 + (data[at + 1] << 8 | data[at + 2])
    return data[at] << 8 | data[at + 1]

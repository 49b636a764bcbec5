"""One network connection as the broker sees it, without the network.

The shell that owns the socket hands bytes to `Broker.receive` and writes what gathers in
`outgoing`. Every packet that leaves passes the same Exchange as those that arrive: the broker
cannot forgive itself what it forbids its clients.
"""

from typing import Final, final

from mypy_extensions import i64

from semel.broker.addresses import address_of
from semel.broker.authority import ServerAuthentication
from semel.broker.session_state import SessionState
from semel.mqtt.codec import Decoder, Packet, decode, encode
from semel.mqtt.exchange import CONNECTED, Exchange
from semel.mqtt.ordinary import ordinary_answer, ordinary_publish
from semel.mqtt.packet_types import PUBLISH
from semel.mqtt.packets.connect import Connect
from semel.mqtt.packets.publish import Publish
from semel.mqtt.properties import TOPIC_ALIAS, Properties
from semel.mqtt.side import SERVER
from semel.mqtt.wire import memory_size

# An alias takes three bytes: a topic that has no more is sent as it is.
_SHORT_TOPIC: Final = 4


@final
class Connection:
    """What belongs to one connection and dies with it."""

    number: Final[int]
    # The peer's address with its port, for people, and without it, where shares are counted.
    peer: Final[str]
    address: Final[str]
    opened_at: float
    decoder: Final[Decoder]
    exchange: Exchange
    state: SessionState | None
    # Enhanced authentication, and the CONNECT that waits for its end.
    authentication: ServerAuthentication | None
    pending_connect: Connect | None
    # Seconds of silence that it may keep, 0 for any number; when it was last heard.
    keep_alive: int
    last_packet_at: float
    # Encoded, not yet handed to the network; what the network has not taken yet.
    outgoing: list[bytes]
    outgoing_size: int
    unsent: int
    # Topics that the peer knows by an alias, and how many there may be; None: it wants none.
    aliases: dict[str, int] | None
    alias_maximum: int
    # What the topics with an alias may take, in each direction.
    maximum_alias_bytes: int
    # A reader of its messages is behind: nothing is read from it for a while; or was until lately.
    paused_by_reader: bool
    was_paused_by_reader: bool
    # Its next packet has to wait for the store, and is in the decoder yet.
    paused_by_store: bool
    # It has used up its share, and what it sent is in the decoder yet; the turn that it was last
    # served in, and the work done for it there.
    awaits_turn: bool
    turn: int
    work: int
    # Set by `CommitGate`: its session awaited the commit when it left; how many commits hold
    # packets for it; whether its CONNACK, or an answer to a packet of its own, is among them.
    left_awaiting_commit: bool
    commits_awaited: int
    connack_awaits_commit: bool
    answer_awaits_commit: bool
    # Since when its answers are known to wait for a full disk; less than 0: they do not.
    disk_full_since: float
    # Its CONNECT was not accepted yet; it was, at some time.
    is_unconnected: bool
    is_admitted: bool
    # Bytes of a packet that is not complete; which one that is, and when it began.
    unfinished: int
    begun: int
    begun_at: float
    # Nothing is read from it any more, and it closes when its last bytes are out.
    closing: bool
    # It does not read: closing does not wait for what is still to be written.
    abort_on_close: bool
    # Something of what it was to be sent failed: it is sent no more, and no more is said of it.
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
        # Version 0: nobody knows it before a CONNECT has named it.
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
        """Whether the network may read from it: nothing that it sent has to wait."""
        return not self.paused_by_reader and not self.paused_by_store and not self.awaits_turn

    @property
    def is_connected(self) -> bool:
        """Whether its CONNECT was accepted and it is not on its way out."""
        return self.exchange.phase == CONNECTED and not self.closing

    def send(self, packet: Packet) -> None:
        """Encode a packet for the network."""
        if self.aliases is not None and isinstance(packet, Publish):
            packet = self._aliased(packet, self.aliases)
        data = encode(packet, self.exchange.version)
        self.exchange.observe(SERVER, packet, len(data))
        self.write(data)

    def _aliased(self, packet: Publish, aliases: dict[str, int]) -> Publish:
        """The same with a Topic Alias, as long as the peer has some left [3.3.2.3.4].

        The first topics get them and keep them, so that nothing is ever sent to learn in vain.
        """
        topic_name = packet.topic_name
        alias = aliases.get(topic_name, 0)
        if not alias:
            if len(aliases) == self.alias_maximum or len(topic_name) < _SHORT_TOPIC:
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
        """Whether its client has set more of them than it may, by their bytes.

        One topic is as long as it is: the protocol bounds it.
        """
        client = self.exchange.client
        return client.alias_bytes > self.maximum_alias_bytes and len(client.aliases) > 1

    def send_encoded(self, data: bytes) -> int:
        """Bytes for the network: one packet, or several PUBLISH of QoS 0. Gives their type."""
        first: i64 = data[0]
        if first >> 4 != PUBLISH:
            packet_id = data[2] << 8 | data[3]
            taken = ordinary_answer(self.exchange, SERVER, first >> 4, packet_id)
        elif first & 0b0110:
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
        """Bytes for the network, in this order."""
        self.outgoing.append(data)
        self.outgoing_size += len(data)

    def take_outgoing(self) -> bytes:
        """All bytes since the last time, for one write."""
        data = b"".join(self.outgoing)
        self.outgoing = []
        self.outgoing_size = 0
        return data


def packet_id_at(data: bytes) -> int:
    """The Packet Identifier of a PUBLISH of QoS 1 or 2."""
    at: i64 = 1
    while data[at] > 127:
        at += 1
    at += 3 + (data[at + 1] << 8 | data[at + 2])
    return data[at] << 8 | data[at + 1]

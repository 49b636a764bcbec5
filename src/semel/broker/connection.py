"""One network connection as the broker sees it, without the network.

The shell that owns the socket hands bytes to `Broker.receive` and writes what gathers in
`outgoing`. Every packet that leaves passes the same Exchange as those that arrive: the broker
cannot forgive itself what it forbids its clients.
"""

from typing import Final, final

from semel.broker.authority import Authentication
from semel.broker.session_state import SessionState
from semel.mqtt.codec import Decoder, Packet, encode
from semel.mqtt.exchange import CONNECTED, Exchange
from semel.mqtt.packets.connect import Connect
from semel.mqtt.packets.publish import Publish
from semel.mqtt.side import SERVER


@final
class Connection:
    """What belongs to one connection and dies with it."""

    number: Final[int]
    # The peer's address, for people.
    peer: Final[str]
    opened_at: Final[float]
    decoder: Final[Decoder]
    exchange: Exchange
    state: SessionState | None
    # Enhanced authentication, and the CONNECT that waits for its end.
    authentication: Authentication | None
    applicant: Connect | None
    # Seconds of silence that it may keep, 0 for any number; when it was last heard.
    keep_alive: int
    heard_at: float
    # Encoded, not yet handed to the network; what the network has not taken yet.
    outgoing: list[bytes]
    outgoing_size: int
    unsent: int
    # Nothing is read from it any more, and it closes when its last bytes are out.
    closing: bool
    # It does not read: closing does not wait for what is still to be written.
    stuck: bool
    dropped: int

    def __init__(
        self,
        number: int,
        peer: str,
        now: float,
        *,
        maximum_packet_size: int,
        before_connect: int,
    ) -> None:
        self.number = number
        self.peer = peer
        self.opened_at = now
        # Version 0: nobody knows it before a CONNECT has named it.
        self.decoder = Decoder(
            0, maximum_packet_size=maximum_packet_size, before_connect=before_connect
        )
        self.exchange = Exchange()
        self.state = None
        self.authentication = None
        self.applicant = None
        self.keep_alive = 0
        self.heard_at = now
        self.outgoing = []
        self.outgoing_size = 0
        self.unsent = 0
        self.closing = False
        self.stuck = False
        self.dropped = 0

    @property
    def is_connected(self) -> bool:
        """Whether its CONNECT was accepted and it is not on its way out."""
        return self.exchange.phase == CONNECTED and not self.closing

    def send(self, packet: Packet, maximum_outgoing: int) -> bool:
        """Encode a packet for the network. False: the peer reads too slowly to get any more.

        A QoS 0 message for a peer that is behind is dropped, which its QoS permits.
        """
        waiting = self.unsent + self.outgoing_size
        if waiting > maximum_outgoing:
            if isinstance(packet, Publish) and packet.qos == 0 and waiting < 2 * maximum_outgoing:
                self.dropped += 1
                return True
            if waiting >= 2 * maximum_outgoing:
                return False
        data = encode(packet, self.exchange.version)
        self.exchange.observe(SERVER, packet, len(data))
        self.write(data)
        return True

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

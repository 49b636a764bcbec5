"""The bytes in transit between a client and the broker, which arrive in pieces or never.

    client ── up ──▶ broker          each side gets the other's bytes in order, as far as they
    client ◀─ down ── broker         arrive, and notices the end of the connection after the last

A cut keeps the first few bytes in transit in each direction, and accepts nothing new. So one side
may take long to notice: the other may have reconnected by then.
"""

from semel.broker.connection import Connection
from semel.mqtt.codec import Decoder, Packet, decode


class Link:
    """One connection."""

    def __init__(self, who: int, number: int, connection: Connection, version: int) -> None:
        self.who = who
        # The world's own number: the broker's numbers restart with it.
        self.number = number
        self.connection = connection
        self.version = version
        self.up = bytearray()
        self.down = bytearray()
        # Neither side can write any more.
        self.is_cut = False
        # Whether client and broker still have the connection open.
        self.has_client = True
        self.has_broker = True
        # The number of bytes that the broker got, and the packets in them that it has not
        # processed yet, each with the position of its end.
        self.given = 0
        self.inbox: list[tuple[int, Packet]] = []
        self._rest = b""
        # Its CONNECT was refused: the rest is ignored.
        self.is_refused = False
        # The epoch of its session in the ledger; 0 before CONNECT.
        self.epoch = 0
        # The broker was closing it while its next packet waited: that packet is ignored.
        self.was_closing = False
        # Decodes what leaves the broker.
        self.outward = Decoder(version)

    def cut(self, up: int, down: int) -> None:
        """Cut the connection; these numbers of bytes in transit still arrive."""
        self.is_cut = True
        del self.up[up:]
        del self.down[down:]

    def send_up(self, data: bytes) -> None:
        """The client writes."""
        if not self.is_cut and self.has_broker:
            self.up += data

    def send_down(self, data: bytes) -> None:
        """The broker writes."""
        if not self.is_cut and self.has_client:
            self.down += data

    def take_up(self, count: int) -> bytes:
        """The next bytes for the broker; the packets that they complete are in the inbox."""
        piece = bytes(self.up[:count])
        del self.up[:count]
        rest = self._rest + piece
        start = 0
        while True:
            decoded = decode(rest, self.version, start=start)
            if decoded is None:
                break
            packet, end = decoded
            self.inbox.append((self.given - len(self._rest) + end, packet))
            start = end
        self.given += len(piece)
        self._rest = rest[start:]
        return piece

    def take_processed(self) -> list[Packet]:
        """Remove and return the packets that the broker has processed."""
        decoder = self.connection.decoder
        # It stops before a packet that has to wait for the store.
        left = unread_bytes(decoder) if self.connection.paused_by_store else 0
        packets: list[Packet] = []
        while self.inbox and self.inbox[0][0] <= self.given - left:
            packets.append(self.inbox.pop(0)[1])
        return packets

    def take_until_fault(self) -> list[Packet]:
        """Remove and return the packets up to the one at which the broker raised, inclusive."""
        decoder = self.connection.decoder
        left = unread_bytes(decoder)
        packets: list[Packet] = []
        while self.inbox and self.inbox[0][0] <= self.given - left:
            packets.append(self.inbox.pop(0)[1])
        return packets

    def take_down(self, count: int) -> bytes:
        """The next bytes for the client."""
        piece = bytes(self.down[:count])
        del self.down[:count]
        return piece

    @property
    def ends_for_broker(self) -> bool:
        """Whether the broker's next read is the end of the connection."""
        return not self.up and (self.is_cut or not self.has_client)

    @property
    def ends_for_client(self) -> bool:
        """The same for the client."""
        return not self.down and (self.is_cut or not self.has_broker)


def unread_bytes(decoder: Decoder) -> int:
    data, position = decoder.unread()
    return len(data) - position

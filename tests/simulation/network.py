"""Bytes on their way between a client and the broker, which arrive in pieces or never do.

    client ── up ──▶ broker          each end sees the other's bytes in order, as far as they come,
    client ◀─ down ── broker         and the end of the connection only behind the last of them

A cut leaves some first bytes of each direction on their way and takes nothing new. So one end may
go on for long before it notices: the other may have come back by then, on a new connection.
"""

from semel.broker.connection import Connection
from semel.mqtt.codec import Decoder, Packet, decode


class Link:
    """One connection, seen from above."""

    def __init__(self, who: int, number: int, connection: Connection, version: int) -> None:
        self.who = who
        # The world's own number: the broker's begin anew when it does.
        self.number = number
        self.connection = connection
        self.version = version
        self.up = bytearray()
        self.down = bytearray()
        # Nothing more gets in, at either end.
        self.is_cut = False
        # Whether the client, the broker, still holds its end.
        self.has_client = True
        self.has_broker = True
        # Bytes that the broker was given, and the packets in them that it has not dealt with yet,
        # each with the place where it ends.
        self.given = 0
        self.inbox: list[tuple[int, Packet]] = []
        self._rest = b""
        # Its CONNECT was refused: nobody deals with the rest.
        self.is_refused = False
        # The session that its CONNECT got, as the ledger counts; 0: none has come.
        self.epoch = 0
        # The broker was about to close it while its next packet waited: nobody deals with that.
        self.was_closing = False
        # What leaves the broker, as packets.
        self.outward = Decoder(version)

    def cut(self, up: int, down: int) -> None:
        """The network fails; so many of the bytes on their way still arrive."""
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

    def dealt_with(self) -> list[Packet]:
        """The packets that the broker has dealt with since the last time."""
        decoder = self.connection.decoder
        # It stops before a packet for which the store has no room.
        left = unread_bytes(decoder) if self.connection.paused_by_store else 0
        packets: list[Packet] = []
        while self.inbox and self.inbox[0][0] <= self.given - left:
            packets.append(self.inbox.pop(0)[1])
        return packets

    def worked_off(self) -> list[Packet]:
        """The packets up to the one at which the broker raised: that one is the last."""
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
        """Whether the broker's next read tells it that the connection is over."""
        return not self.up and (self.is_cut or not self.has_client)

    @property
    def ends_for_client(self) -> bool:
        """The same for the client."""
        return not self.down and (self.is_cut or not self.has_broker)


def unread_bytes(decoder: Decoder) -> int:
    data, position = decoder.unread()
    return len(data) - position

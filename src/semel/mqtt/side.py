"""One side of a connection, as an Exchange sees it: its limits, and what it has open."""

from typing import Final, final

from semel.mqtt.codec import LARGEST_PACKET
from semel.mqtt.packet_ids import PacketIds

CLIENT: Final = 0
SERVER: Final = 1
SIDES: Final = ("client", "server")

# The stages of a PUBLISH with QoS 1 or 2.
SENT_QOS_1: Final = 1
SENT_QOS_2: Final = 2
RECEIVED: Final = 3
RELEASED: Final = 4

# Added to a stage if the order among the others is unknown: the PUBLISH had DUP 1 when it was first
# seen, or only its identifier was kept. (An acknowledgement that was seen may have been lost: then
# the PUBLISH is sent again.)
PLACE_UNKNOWN: Final = 8

# (sender of the PUBLISH, packet identifier, stage)
Open = tuple[int, int, int]

DEFAULT_RECEIVE_MAXIMUM: Final = 65_535

# With more than this many open, those that await PUBREL are kept as one bit each, without their
# order: in 3.1.1 a peer may leave all 65,535 of them open.
MANY_OPEN: Final = 500


@final
class Side:
    """One side of a connection: its limits, and the exchanges that it has begun.

    Each step of an exchange takes the next `serial`, which gives the order of any two steps without
    a queue: the smaller serial came first.
    """

    receive_maximum: int
    maximum_packet_size: int
    topic_alias_maximum: int
    # How many more QoS 1 and 2 PUBLISH packets it may send in 5.0 [4.9]; less than 0 if it has
    # sent too many already.
    quota: int
    # Its open PUBLISH packets in the order first seen: identifier to
    # serial << 4 | PLACE_UNKNOWN or 0 | stage.
    opened: dict[int, int]
    # Others that await PUBREL, when there are many; those of them that an earlier connection left
    # open and that have not changed on this one.
    received: PacketIds
    received_before: PacketIds
    serial: int
    # Serials up to here are of an earlier connection.
    carried_until: int
    # Serial of the last PUBLISH it sent again, and of the last steps that were answered.
    last_resend: int
    last_puback: int
    last_pubrec: int
    last_pubrel: int
    # Identifiers that it has used for a PUBLISH on this connection; kept in 3.1.1 alone.
    used: PacketIds
    # How many more answers to expect for a packet that was sent again while it was open.
    repeats: dict[int, int]
    # Identifiers for which its peer sent PUBREC though nothing awaited it: a PUBREL answers it
    # [MQTT-4.3.3-4], whatever happens to the identifier meanwhile. Those for which that PUBREL was
    # sent and PUBCOMP is expected.
    strays: PacketIds
    stray_pubrels: PacketIds
    # Open SUBSCRIBE (positive) and UNSUBSCRIBE (negative) requests: how many filters.
    requests: dict[int, int]
    aliases: dict[int, str]
    # About how many bytes of memory their topics take.
    alias_bytes: int
    disconnected: bool

    def __init__(self) -> None:
        self.receive_maximum = DEFAULT_RECEIVE_MAXIMUM
        self.maximum_packet_size = LARGEST_PACKET
        self.topic_alias_maximum = 0
        self.quota = DEFAULT_RECEIVE_MAXIMUM
        self.opened = {}
        self.received = PacketIds()
        self.received_before = PacketIds()
        self.serial = 0
        self.carried_until = 0
        self.last_resend = 0
        self.last_puback = 0
        self.last_pubrec = 0
        self.last_pubrel = 0
        self.used = PacketIds()
        self.repeats = {}
        self.strays = PacketIds()
        self.stray_pubrels = PacketIds()
        self.requests = {}
        self.aliases = {}
        self.alias_bytes = 0
        self.disconnected = False

    def stage(self, packet_id: int) -> int:
        """The stage of the PUBLISH with that identifier, 0 if none is open."""
        stage = self.opened.get(packet_id, 0) & 7
        return RECEIVED if stage == 0 and packet_id in self.received else stage

    def order(self, packet_id: int) -> int:
        """The serial of its latest step, 0 if it is unknown."""
        return self.opened.get(packet_id, 0) >> 4

    def has_place(self, packet_id: int) -> bool:
        """Whether its place among the PUBLISH packets of its side is known."""
        return packet_id in self.opened and not self.opened[packet_id] & PLACE_UNKNOWN

    def is_carried(self, packet_id: int) -> bool:
        """Whether an earlier connection left it open and nothing has happened to it here."""
        return 0 < self.order(packet_id) <= self.carried_until or packet_id in self.received_before

    def begin(self) -> None:
        """All that is open so far is of an earlier connection."""
        self.carried_until = self.serial
        self.received_before = self.received.copy()

    def carry_received(self, packet_ids: PacketIds) -> None:
        """On a new connection: QoS 2 messages that an earlier one left received, without an order.

        The same as `move` for each of them and `begin`, in less time: there may be 65,535.
        """
        received = packet_ids.copy()
        for packet_id in packet_ids.first(MANY_OPEN + 1):
            self.move(packet_id, RECEIVED | PLACE_UNKNOWN)
            received.discard(packet_id)
        self.received = received
        self.serial += len(received)
        self.begin()

    def move(self, packet_id: int, stage: int) -> None:
        """A PUBLISH takes its next step, or its first."""
        self.serial += 1
        if len(self.received_before):
            self.received_before.discard(packet_id)
        if stage & 7 == RECEIVED and len(self.opened) > MANY_OPEN:
            self.opened.pop(packet_id, None)
            self.received.add(packet_id)
            return
        if len(self.received):
            self.received.discard(packet_id)
        unplaced = self.opened.get(packet_id, 0) & PLACE_UNKNOWN
        self.opened[packet_id] = self.serial << 4 | unplaced | stage

    def free(self, packet_id: int, receive_maximum: int) -> None:
        """An exchange is complete: the identifier is free, the quota grows [4.9]."""
        del self.opened[packet_id]
        # It never exceeds its initial value, whatever an earlier connection left open.
        if self.quota < receive_maximum:
            self.quota += 1

    def carry(self, sender: int) -> list[Open]:
        """What this side, which is `sender`, has open, for the session's next connection."""
        opened: list[Open] = []
        for packet_id, value in self.opened.items():
            opened.append((sender, packet_id, value & 15))
        for packet_id in self.received.listed():
            opened.append((sender, packet_id, RECEIVED | PLACE_UNKNOWN))
        return opened

    def sent_here(self) -> int:
        """How many open PUBLISH packets were sent on this connection."""
        return sum(1 for packet_id in self.opened if not self.is_carried(packet_id))

    def forget_carried(self) -> None:
        """The session is new: discard what an earlier one left open."""
        for packet_id in list(self.opened):
            if self.is_carried(packet_id):
                del self.opened[packet_id]
        # What this connection receives, it receives after CONNACK.
        self.received = PacketIds()
        self.received_before = PacketIds()

    def repeat(self, packet_id: int) -> None:
        """An open packet was sent again: expect one more answer."""
        self.repeats[packet_id] = self.repeats.get(packet_id, 0) + 1

    def answer_repeat(self, packet_id: int) -> None:
        """An answer came for an identifier that is free again."""
        count = self.repeats.pop(packet_id, 0)
        if count > 1:
            self.repeats[packet_id] = count - 1

    def answers_stray(self, packet_id: int) -> bool:
        """Whether a PUBREL for what is not open answers a PUBREC, or one that came twice."""
        return packet_id in self.strays or packet_id in self.stray_pubrels

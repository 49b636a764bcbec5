"""One side of a connection, as an Exchange sees it: its limits and its open exchanges."""

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

# Added to a stage if the position of the PUBLISH among the others is unknown: it had DUP 1 when it
# was first observed, or only its identifier was kept. (An observed acknowledgement may have been
# lost in transit: then the PUBLISH is sent again.)
PLACE_UNKNOWN: Final = 8

# (sender of the PUBLISH, packet identifier, stage)
Open = tuple[int, int, int]

DEFAULT_RECEIVE_MAXIMUM: Final = 65_535

# If more exchanges than this are open, those that await PUBREL are kept as one bit each, without
# their order, because in 3.1.1 a peer may leave all 65,535 open.
MANY_OPEN: Final = 500


@final
class Side:
    """One side of a connection: its limits, and the exchanges that it has begun.

    Each step of an exchange gets the next `serial`. So the order of any two steps is known without
    a queue: the step with the smaller serial came first.
    """

    receive_maximum: int
    maximum_packet_size: int
    topic_alias_maximum: int
    # How many more QoS 1 and 2 PUBLISH packets it may send in 5.0 [4.9]; negative if it has already
    # sent too many.
    quota: int
    # Its open PUBLISH packets in the order first observed: identifier to
    # serial << 4 | PLACE_UNKNOWN or 0 | stage.
    opened: dict[int, int]
    # Further exchanges that await PUBREL, if there are many; the subset that an earlier connection
    # left open and this one has not changed.
    received: PacketIds
    received_before: PacketIds
    serial: int
    # Serials up to this one belong to earlier connections.
    carried_until: int
    # Serials: of the last PUBLISH that it sent again, and of the last steps that were answered.
    last_resend: int
    last_puback: int
    last_pubrec: int
    last_pubrel: int
    # Identifiers that it has used for a PUBLISH on this connection; kept in 3.1.1 only.
    used: PacketIds
    # How many further answers to expect for a packet that was repeated while it was open.
    repeats: dict[int, int]
    # Identifiers for which its peer sent an unexpected PUBREC, which a PUBREL answers
    # [MQTT-4.3.3-4] even if the exchange has ended meanwhile; those for which that PUBREL was sent,
    # so that a PUBCOMP is expected.
    strays: PacketIds
    stray_pubrels: PacketIds
    # The number of filters of open SUBSCRIBE (positive) and UNSUBSCRIBE (negative) requests.
    requests: dict[int, int]
    aliases: dict[int, str]
    # Approximate memory of the topics that have an alias.
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
        """The stage of the PUBLISH with this identifier, 0 if none is open."""
        stage = self.opened.get(packet_id, 0) & 7
        return RECEIVED if stage == 0 and packet_id in self.received else stage

    def order(self, packet_id: int) -> int:
        """The serial of the latest step of this exchange, 0 if it is unknown."""
        return self.opened.get(packet_id, 0) >> 4

    def has_place(self, packet_id: int) -> bool:
        """Whether the position of this PUBLISH among the others of its side is known."""
        return packet_id in self.opened and not self.opened[packet_id] & PLACE_UNKNOWN

    def is_carried(self, packet_id: int) -> bool:
        """Whether an earlier connection left this exchange open and this one has not changed it."""
        return 0 < self.order(packet_id) <= self.carried_until or packet_id in self.received_before

    def begin(self) -> None:
        """Start a connection: what is open so far belongs to earlier connections."""
        self.carried_until = self.serial
        self.received_before = self.received.copy()

    def carry_received(self, packet_ids: PacketIds) -> None:
        """Start a connection with QoS 2 messages that await PUBREL, in unknown order.

        Equivalent to `move` for each identifier and `begin`, but faster: there may be 65,535.
        """
        received = packet_ids.copy()
        for packet_id in packet_ids.first(MANY_OPEN + 1):
            self.move(packet_id, RECEIVED | PLACE_UNKNOWN)
            received.discard(packet_id)
        self.received = received
        self.serial += len(received)
        self.begin()

    def move(self, packet_id: int, stage: int) -> None:
        """Set the stage of an exchange, as its first or next step."""
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
        """Complete an exchange: free the identifier, and increment the quota [4.9]."""
        del self.opened[packet_id]
        # The quota never exceeds its initial value, whatever an earlier connection left open.
        if self.quota < receive_maximum:
            self.quota += 1

    def carry(self, sender: int) -> list[Open]:
        """The open exchanges of this side, which is `sender`, for the session's next connection."""
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
        """Discard the exchanges of earlier connections, because the session is new."""
        for packet_id in list(self.opened):
            if self.is_carried(packet_id):
                del self.opened[packet_id]
        # This connection cannot have added any: nothing is answered before CONNACK.
        self.received = PacketIds()
        self.received_before = PacketIds()

    def repeat(self, packet_id: int) -> None:
        """Expect one more answer, because an open packet was sent again."""
        self.repeats[packet_id] = self.repeats.get(packet_id, 0) + 1

    def answer_repeat(self, packet_id: int) -> None:
        """Count an answer to a repeated packet whose exchange has ended."""
        count = self.repeats.pop(packet_id, 0)
        if count > 1:
            self.repeats[packet_id] = count - 1

    def answers_stray(self, packet_id: int) -> bool:
        """Whether a PUBREL without an open exchange answers an unexpected PUBREC."""
        return packet_id in self.strays or packet_id in self.stray_pubrels

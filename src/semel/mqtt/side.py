"""One side of a connection, as an Exchange sees it: its limits and its open exchanges."""

from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.codec import LARGEST_PACKET
from semel.mqtt.packet_ids import PacketIds, has_id, with_id, without_id
from semel.mqtt.wire import memory_size

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
@mypyc_attr(acyclic=True)
class RareSteps:
    """What a side keeps besides its open exchanges, if it or its peer repeats packets, or if very
    many exchanges are open."""

    # Further exchanges that await PUBREL, if there are many; the subset that an earlier connection
    # left open and this one has not changed.
    received: PacketIds | None
    received_before: PacketIds | None
    # The serial of the last PUBLISH of an earlier connection that was sent again.
    last_resend: int
    # How many further answers to expect for a packet that was repeated while it was open.
    repeats: Final[dict[int, int]]
    # Identifiers for which its peer sent an unexpected PUBREC, which a PUBREL answers
    # [MQTT-4.3.3-4] even if the exchange has ended meanwhile; those for which that PUBREL was sent,
    # so that a PUBCOMP is expected.
    strays: PacketIds | None
    stray_pubrels: PacketIds | None

    def __init__(self) -> None:
        self.received = None
        self.received_before = None
        self.last_resend = 0
        self.repeats = {}
        self.strays = None
        self.stray_pubrels = None


@final
@mypyc_attr(acyclic=True)
class TopicAliases:
    """The topics to which a side has assigned an alias, and their approximate memory."""

    topics: Final[dict[int, str]]
    size: int

    def __init__(self) -> None:
        self.topics = {}
        self.size = 0


@final
@mypyc_attr(acyclic=True)
class Side:
    """One side of a connection: its limits, and the exchanges that it has begun.

    Each step of an exchange gets the next `serial`. So the order of any two steps is known without
    a queue: the step with the smaller serial came first.

    A broker has two for each connection, most of which are idle: so whatever takes memory is None
    until it is needed.
    """

    receive_maximum: int
    maximum_packet_size: int
    topic_alias_maximum: int
    # How many more QoS 1 and 2 PUBLISH packets it may send in 5.0 [4.9]; negative if it has already
    # sent too many.
    quota: int
    # Its open PUBLISH packets in the order first observed: identifier to
    # serial << 4 | PLACE_UNKNOWN or 0 | stage.
    opened: dict[int, int] | None
    serial: int
    # Serials up to this one belong to earlier connections.
    carried_until: int
    # Serials of the last steps that were answered.
    last_puback: int
    last_pubrec: int
    last_pubrel: int
    # Identifiers that it has used for a PUBLISH on this connection; kept in 3.1.1 only.
    used: PacketIds | None
    rare: RareSteps | None
    # The number of filters of open SUBSCRIBE (positive) and UNSUBSCRIBE (negative) requests.
    requests: dict[int, int] | None
    aliases: TopicAliases | None
    disconnected: bool

    def __init__(self) -> None:
        self.receive_maximum = DEFAULT_RECEIVE_MAXIMUM
        self.maximum_packet_size = LARGEST_PACKET
        self.topic_alias_maximum = 0
        self.quota = DEFAULT_RECEIVE_MAXIMUM
        self.opened = None
        self.serial = 0
        self.carried_until = 0
        self.last_puback = 0
        self.last_pubrec = 0
        self.last_pubrel = 0
        self.used = None
        self.rare = None
        self.requests = None
        self.aliases = None
        self.disconnected = False

    def stage(self, packet_id: int) -> int:
        """The stage of the PUBLISH with this identifier, 0 if none is open."""
        opened = self.opened
        if opened is not None:
            stage = opened.get(packet_id, 0) & 7
            if stage:
                return stage
        rare = self.rare
        return RECEIVED if rare is not None and has_id(rare.received, packet_id) else 0

    def order(self, packet_id: int) -> int:
        """The serial of the latest step of this exchange, 0 if it is unknown."""
        return 0 if self.opened is None else self.opened.get(packet_id, 0) >> 4

    def has_place(self, packet_id: int) -> bool:
        """Whether the position of this PUBLISH among the others of its side is known."""
        value = 0 if self.opened is None else self.opened.get(packet_id, 0)
        return value > 0 and not value & PLACE_UNKNOWN

    def is_carried(self, packet_id: int) -> bool:
        """Whether an earlier connection left this exchange open and this one has not changed it."""
        if 0 < self.order(packet_id) <= self.carried_until:
            return True
        return self.rare is not None and has_id(self.rare.received_before, packet_id)

    def begin(self) -> None:
        """Start a connection: what is open so far belongs to earlier connections."""
        self.carried_until = self.serial
        rare = self.rare
        if rare is not None:
            rare.received_before = None if rare.received is None else rare.received.copy()

    def carry_received(self, packet_ids: PacketIds) -> None:
        """Start a connection with QoS 2 messages that await PUBREL, in unknown order.

        Equivalent to `move` for each identifier and `begin`, but faster: there may be 65,535.
        """
        received = packet_ids.copy()
        for packet_id in packet_ids.first(MANY_OPEN + 1):
            self.move(packet_id, RECEIVED | PLACE_UNKNOWN)
            received.discard(packet_id)
        if len(received):
            self.rare_steps().received = received
            self.serial += len(received)
        self.begin()

    def rare_steps(self) -> RareSteps:
        """Its `rare`, which it has from now on."""
        rare = self.rare
        if rare is None:
            rare = self.rare = RareSteps()
        return rare

    def put(self, packet_id: int, stage: int) -> None:
        """Set the stage of an exchange that is in `opened`, or in none, as its next step."""
        self.serial += 1
        if self.opened is None:
            self.opened = {}
        self.opened[packet_id] = self.serial << 4 | stage

    def move(self, packet_id: int, stage: int) -> None:
        """Set the stage of an exchange, as its first or next step."""
        rare = self.rare
        if rare is not None:
            rare.received_before = without_id(rare.received_before, packet_id)
        opened = self.opened
        unplaced = 0
        if opened is not None:
            if stage & 7 == RECEIVED and len(opened) > MANY_OPEN:
                self.serial += 1
                opened.pop(packet_id, None)
                rare = self.rare_steps()
                rare.received = with_id(rare.received, packet_id)
                return
            unplaced = opened.get(packet_id, 0) & PLACE_UNKNOWN
        if rare is not None:
            rare.received = without_id(rare.received, packet_id)
        self.put(packet_id, unplaced | stage)

    def free(self, packet_id: int, receive_maximum: int) -> None:
        """Complete an open exchange: free the identifier, and increment the quota [4.9]."""
        assert self.opened is not None
        del self.opened[packet_id]
        # The quota never exceeds its initial value, whatever an earlier connection left open.
        if self.quota < receive_maximum:
            self.quota += 1

    def carry(self, sender: int) -> list[Open]:
        """The open exchanges of this side, which is `sender`, for the session's next connection."""
        opened: list[Open] = []
        if self.opened is not None:
            for packet_id, value in self.opened.items():
                opened.append((sender, packet_id, value & 15))
        if self.rare is not None and self.rare.received is not None:
            for packet_id in self.rare.received.listed():
                opened.append((sender, packet_id, RECEIVED | PLACE_UNKNOWN))
        return opened

    def sent_here(self) -> int:
        """How many open PUBLISH packets were sent on this connection."""
        if self.opened is None:
            return 0
        return sum(1 for packet_id in self.opened if not self.is_carried(packet_id))

    def forget_carried(self) -> None:
        """Discard the exchanges of earlier connections, because the session is new."""
        if self.opened is not None:
            for packet_id in list(self.opened):
                if self.is_carried(packet_id):
                    del self.opened[packet_id]
        if self.rare is not None:
            # This connection cannot have added any: nothing is answered before CONNACK.
            self.rare.received = None
            self.rare.received_before = None

    # --- packets that are repeated ----------------------------------------------------------------

    def resends_in_order(self, packet_id: int) -> bool:
        """Whether a PUBLISH of an earlier connection follows those that were sent again so far."""
        if self.rare is None or not self.has_place(packet_id):
            return True
        return self.order(packet_id) >= self.rare.last_resend

    def resend(self, packet_id: int) -> None:
        """It sends a PUBLISH of an earlier connection again."""
        if self.has_place(packet_id):
            self.rare_steps().last_resend = self.order(packet_id)

    def has_used(self, packet_id: int) -> bool:
        """Whether it has used this identifier on this connection; known in 3.1.1 only."""
        return has_id(self.used, packet_id)

    def use(self, packet_id: int) -> None:
        """It uses this identifier for a PUBLISH."""
        self.used = with_id(self.used, packet_id)

    def is_repeated(self, packet_id: int) -> bool:
        """Whether a further answer is expected for a packet that was sent again."""
        return self.rare is not None and packet_id in self.rare.repeats

    def repeat(self, packet_id: int) -> None:
        """Expect one more answer, because an open packet was sent again."""
        repeats = self.rare_steps().repeats
        repeats[packet_id] = repeats.get(packet_id, 0) + 1

    def answer_repeat(self, packet_id: int) -> None:
        """Count an answer to a repeated packet whose exchange has ended."""
        if self.rare is not None:
            count = self.rare.repeats.pop(packet_id, 0)
            if count > 1:
                self.rare.repeats[packet_id] = count - 1

    def answers_stray(self, packet_id: int) -> bool:
        """Whether a PUBREL without an open exchange answers an unexpected PUBREC."""
        rare = self.rare
        return rare is not None and (
            has_id(rare.strays, packet_id) or has_id(rare.stray_pubrels, packet_id)
        )

    def add_stray(self, packet_id: int) -> None:
        """Its peer has sent an unexpected PUBREC."""
        rare = self.rare_steps()
        rare.strays = with_id(rare.strays, packet_id)

    def answer_stray(self, packet_id: int) -> None:
        """It answers an unexpected PUBREC within an open exchange."""
        if self.rare is not None:
            self.rare.strays = without_id(self.rare.strays, packet_id)

    def has_stray_pubrel(self, packet_id: int) -> bool:
        """Whether a PUBCOMP is expected for a PUBREL without an open exchange."""
        return self.rare is not None and has_id(self.rare.stray_pubrels, packet_id)

    def add_stray_pubrel(self, packet_id: int) -> None:
        """It answers an unexpected PUBREC without an open exchange."""
        self.answer_stray(packet_id)
        rare = self.rare_steps()
        rare.stray_pubrels = with_id(rare.stray_pubrels, packet_id)

    def complete_stray(self, packet_id: int) -> None:
        """Its peer answers a PUBREL without an open exchange."""
        rare = self.rare_steps()
        rare.stray_pubrels = without_id(rare.stray_pubrels, packet_id)

    # --- requests and aliases ---------------------------------------------------------------------

    def request(self, packet_id: int) -> int:
        """The number of filters of an open SUBSCRIBE, negative for an UNSUBSCRIBE; 0: neither."""
        return 0 if self.requests is None else self.requests.get(packet_id, 0)

    def begin_request(self, packet_id: int, filters: int) -> None:
        """It has sent a SUBSCRIBE, or with a negative number an UNSUBSCRIBE."""
        if self.requests is None:
            self.requests = {}
        self.requests[packet_id] = filters

    def end_request(self, packet_id: int) -> None:
        """Its SUBSCRIBE or UNSUBSCRIBE was answered."""
        if self.requests is not None:
            self.requests.pop(packet_id, 0)
            if not self.requests:
                self.requests = None

    def aliased_topic(self, alias: int) -> str:
        """The topic to which it has assigned this alias, "" if none."""
        return "" if self.aliases is None else self.aliases.topics.get(alias, "")

    def set_alias(self, alias: int, topic_name: str) -> None:
        """It assigns an alias to a topic."""
        aliases = self.aliases
        if aliases is None:
            aliases = self.aliases = TopicAliases()
        replaced = aliases.topics.get(alias)
        if replaced is not None:
            aliases.size -= memory_size(replaced)
        aliases.size += memory_size(topic_name)
        aliases.topics[alias] = topic_name

    @property
    def alias_count(self) -> int:
        """How many topics have an alias."""
        return 0 if self.aliases is None else len(self.aliases.topics)

    @property
    def alias_bytes(self) -> int:
        """Approximate memory of the topics that have an alias."""
        return 0 if self.aliases is None else self.aliases.size

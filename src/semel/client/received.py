"""A received message, and its acknowledgement by the program.

The server sends a message once, however many listeners the program has for it. `Incoming` is the
message, and each listener gets a `Received` of it. When all of them have acknowledged theirs, the
message is acknowledged to the server.
"""

from collections.abc import Callable
from typing import Final, final

from semel.mqtt.delivery import Receipt
from semel.mqtt.packets.publish import Publish
from semel.mqtt.properties import Properties


@final
class Incoming:
    """One received message. `filters` are the filters of the client that it matched."""

    number: Final[int]
    topic: Final[str]
    payload: Final[bytes]
    qos: Final[int]
    retain: Final[bool]
    dup: Final[bool]
    packet_id: Final[int]
    properties: Final[Properties]
    filters: Final[list[str]]
    # None: there is nothing to acknowledge, at QoS 0 or because the server has lost the session.
    receipt: Receipt | None
    # Whether the server still has it, under this Packet Identifier.
    is_open: bool
    # How many listeners have not acknowledged it, and whether one has.
    holders: int
    is_acknowledged: bool
    # Whether a listener had it and did not finish: then it is kept for another one.
    is_unfinished: bool
    _run: Final[str]
    _acknowledge: Final[Callable[["Incoming"], None]]

    def __init__(
        self,
        number: int,
        run: str,
        acknowledge: Callable[["Incoming"], None],
        topic: str,
        payload: bytes,
        *,
        qos: int,
        retain: bool,
        dup: bool,
        packet_id: int,
        properties: Properties,
        filters: list[str],
        receipt: Receipt | None,
    ) -> None:
        self.number = number
        self._run = run
        self._acknowledge = acknowledge
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id
        self.properties = properties
        self.filters = filters
        self.receipt = receipt
        self.is_open = packet_id > 0
        self.holders = 0
        self.is_acknowledged = False
        self.is_unfinished = False

    @property
    def key(self) -> str:
        """Identifies this message: the same whenever it is handed out again, and unique."""
        return f"{self._run}-{self.number}"

    def is_sent_again(self, packet: Publish, topic: str) -> bool:
        """Whether a PUBLISH with its identifier, on a later connection, is the same message.

        DUP marks a repeated message, but some servers do not set it.
        """
        return packet.dup or (self.topic == topic and self.payload == packet.payload)

    def acknowledge_one(self) -> None:
        """One listener has acknowledged it."""
        self.is_acknowledged = True
        self.drop_holder()

    def drop_holder(self) -> None:
        """A listener no longer holds it. After the last one, it is acknowledged to the server."""
        self.holders -= 1
        if self.holders == 0:
            self._acknowledge(self)


@final
class Received:
    """A message as the program receives it.

    `key` identifies the message: it is unique, and the same if the message is handed out again
    after a restart. `ack` acknowledges the message to the server once the program has processed it.
    """

    topic: Final[str]
    payload: Final[bytes]
    qos: Final[int]
    retain: Final[bool]
    dup: Final[bool]
    packet_id: Final[int]
    properties: Final[Properties]
    acknowledged: bool
    _incoming: Final[Incoming]

    def __init__(self, incoming: Incoming) -> None:
        self.topic = incoming.topic
        self.payload = incoming.payload
        self.qos = incoming.qos
        self.retain = incoming.retain
        self.dup = incoming.dup
        self.packet_id = incoming.packet_id
        self.properties = incoming.properties
        self.acknowledged = False
        self._incoming = incoming
        incoming.holders += 1

    @property
    def key(self) -> str:
        """Unique among all messages that this client ever receives."""
        return self._incoming.key

    def ack(self) -> None:
        """Acknowledge the message. Further calls have no effect."""
        if not self.acknowledged:
            self.acknowledged = True
            self._incoming.acknowledge_one()

    def give_back(self) -> Incoming | None:
        """Drop it without acknowledgement. Returns the message if no other listener has it."""
        incoming = self._incoming
        if self.acknowledged:
            return None
        self.acknowledged = True
        if incoming.holders > 1 or not incoming.is_acknowledged:
            incoming.holders -= 1
            return incoming if incoming.holders == 0 else None
        # The others have acknowledged it.
        incoming.acknowledge_one()
        return None

    def __repr__(self) -> str:
        return (
            f"Received({self.topic!r}, {self.payload!r}, qos={self.qos}, retain={self.retain}, "
            f"dup={self.dup}, properties={self.properties!r})"
        )

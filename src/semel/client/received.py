"""A message that came in, and what its program has to say about it.

The server sends a message once, however many parts of a program want it: an `Incoming` is what
came, and each part gets a `Received` of it. When all have acknowledged theirs, the server is told.
"""

from collections.abc import Callable
from typing import Final, final

from semel.mqtt.delivery import Receipt
from semel.mqtt.packets.publish import Publish
from semel.mqtt.properties import Properties


@final
class Incoming:
    """One message that came. `filters` are those of the client's that brought it."""

    number: Final[int]
    topic: Final[str]
    payload: Final[bytes]
    qos: Final[int]
    retain: Final[bool]
    dup: Final[bool]
    packet_id: Final[int]
    properties: Final[Properties]
    filters: Final[list[str]]
    # None: the server is owed no acknowledgement, at QoS 0 or because it has forgotten the message.
    receipt: Receipt | None
    # Whether the server has it yet, under this Packet Identifier.
    is_open: bool
    # How many parts of the program have not acknowledged it, and whether one has.
    holders: int
    is_acknowledged: bool
    # Whether a part of the program had it, and did not finish with it.
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
        """The same whenever this message is handed out, and no other's."""
        return f"{self._run}-{self.number}"

    def is_sent_again(self, packet: Publish, topic: str) -> bool:
        """Whether a PUBLISH with its identifier, on a later connection, is the same message.

        DUP says so; but there are servers that leave it out.
        """
        return packet.dup or (self.topic == topic and self.payload == packet.payload)

    def release(self) -> None:
        """One part of the program has acknowledged it."""
        self.is_acknowledged = True
        self.let_go()

    def let_go(self) -> None:
        """One less has to acknowledge it; with the last, it is acknowledged."""
        self.holders -= 1
        if self.holders == 0:
            self._acknowledge(self)


@final
class Received:
    """A message as a program gets it.

    `key` is the same if the message is handed out again, after a restart, and no other's. `ack`
    tells the server that the program has done with the message what it had to do.
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
        """What to tell this message by from every other that this client ever gets."""
        return self._incoming.key

    def ack(self) -> None:
        """Acknowledge it; once more changes nothing."""
        if not self.acknowledged:
            self.acknowledged = True
            self._incoming.release()

    def give_back(self) -> Incoming | None:
        """It will not be acknowledged here. The message, if it is for somebody else now."""
        incoming = self._incoming
        if self.acknowledged:
            return None
        self.acknowledged = True
        if incoming.holders > 1 or not incoming.is_acknowledged:
            incoming.holders -= 1
            return incoming if incoming.holders == 0 else None
        # The others have acknowledged it.
        incoming.release()
        return None

    def __repr__(self) -> str:
        return (
            f"Received({self.topic!r}, {self.payload!r}, qos={self.qos}, retain={self.retain}, "
            f"dup={self.dup}, properties={self.properties!r})"
        )

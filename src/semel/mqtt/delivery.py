"""Parts of a Session: a message on its way out, one that came in, a change that must last."""

from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.message import Message
from semel.mqtt.properties import NO_PROPERTIES, Properties
from semel.mqtt.reasons import SUCCESS

# Kinds of change.
QUEUED: Final = 1  # number, message, share: a delivery waits to be sent
ASSIGNED: Final = 2  # number, packet_id: it has its identifier and may be sent
RELEASED: Final = 3  # number, packet_id: PUBREC has come, PUBREL is owed
FINISHED: Final = 4  # number, packet_id (0: never sent): it is over
STORED: Final = 5  # packet_id: an inbound QoS 2 message is owned
FREED: Final = 6  # packet_id: its PUBREL has come
ENDS: Final = 7  # at: when the session is over; None while it is connected or for ever
RECALLED: Final = 8  # number, packet_id: the peer has forgotten it, and it waits to be sent anew


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class Change:
    """One durable change, a plain value. Fields that its kind does not use are 0 or None."""

    kind: Final[int]
    number: Final[int]
    packet_id: Final[int]
    message: Final[Message | None]
    share: Final[str]
    at: Final[float | None]

    def __init__(
        self,
        kind: int,
        *,
        number: int = 0,
        packet_id: int = 0,
        message: Message | None = None,
        share: str = "",
        at: float | None = None,
    ) -> None:
        self.kind = kind
        self.number = number
        self.packet_id = packet_id
        self.message = message
        self.share = share
        self.at = at


@final
@mypyc_attr(acyclic=True)
class Delivery:
    """A QoS 1 or 2 message on its way out. `number` counts the session's deliveries from 1.

    `share` is the filter of the shared subscription that chose this session, "" if none did.
    """

    number: Final[int]
    qos: Final[int]
    share: Final[str]
    # None once PUBREC has come: from then on only the identifier matters.
    message: Message | None
    packet_id: int
    # Its PUBLISH has left on this connection, and counts against the Receive Maximum.
    counts: bool
    # Place among the PUBRECs, for PUBRELs in their order [MQTT-4.6.0-4].
    released: int

    def __init__(self, number: int, message: Message | None, share: str, qos: int) -> None:
        self.number = number
        self.qos = qos
        self.share = share
        self.message = message
        self.packet_id = 0
        self.counts = False
        self.released = 0

    def is_of(self, shares: set[str] | None) -> bool:
        """Whether one of these shared subscriptions brought it; None: whether any did."""
        return self.share != "" and (shares is None or self.share in shares)


@final
@mypyc_attr(acyclic=True)
class Receipt:
    """A PUBLISH that came in and that its owner has to accept, or to refuse, some time."""

    packet_id: Final[int]
    qos: Final[int]
    is_accepted: bool
    reason: int
    properties: Properties

    def __init__(self, packet_id: int, qos: int) -> None:
        self.packet_id = packet_id
        self.qos = qos
        self.is_accepted = False
        self.reason = SUCCESS
        self.properties = NO_PROPERTIES

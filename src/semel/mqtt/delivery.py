"""The values that a Session handles: `Delivery` (outbound), `Receipt` (inbound), `Change`."""

from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.message import Message
from semel.mqtt.properties import NO_PROPERTIES, Properties
from semel.mqtt.reasons import SUCCESS

# Kinds of change.
QUEUED: Final = 1  # number, message, share: the delivery was added to the backlog
ASSIGNED: Final = 2  # number, packet_id: the delivery has an identifier and may be sent
RELEASED: Final = 3  # number, packet_id: PUBREC was received, PUBREL must be sent
FINISHED: Final = 4  # number, packet_id (0: never sent): the delivery is complete or dropped
STORED: Final = 5  # packet_id: the owner has accepted an inbound QoS 2 message
FREED: Final = 6  # packet_id: the PUBREL of an inbound QoS 2 message was received
ENDS: Final = 7  # at: when the session ends; None: not known while it is connected, or never
RECALLED: Final = 8  # number, packet_id: the peer lost its session; back in the backlog

# Approximate memory of a delivery, besides the bytes of its message.
DELIVERY_BYTES: Final = 500


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class Change:
    """One durable change of a session. Fields that its kind does not use are 0, "" or None."""

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
    """A QoS 1 or 2 message to one session. `number` counts the session's deliveries from 1.

    `share` is the filter of the shared subscription that chose this session, "" if none did.
    """

    number: Final[int]
    qos: Final[int]
    share: Final[str]
    # None after PUBREC: only the identifier is needed from then on.
    message: Message | None
    packet_id: int
    # Whether it counts against the Receive Maximum: its PUBLISH was sent on this connection.
    counts: bool
    # Its position among the received PUBRECs, which PUBRELs follow [MQTT-4.6.0-4]; 0 before PUBREC.
    released: int

    def __init__(self, number: int, message: Message | None, share: str, qos: int) -> None:
        self.number = number
        self.qos = qos
        self.share = share
        self.message = message
        self.packet_id = 0
        self.counts = False
        self.released = 0

    @property
    def memory_size(self) -> int:
        """Approximate memory while it is in flight; 0 after PUBREC."""
        message = self.message
        return 0 if message is None else message.size + DELIVERY_BYTES

    def is_of(self, shares: set[str] | None) -> bool:
        """Whether it came through one of these shared subscriptions (None: through any)."""
        return self.share != "" and (shares is None or self.share in shares)


def number_order(delivery: Delivery) -> int:
    """Sort key: the order in which the session got the messages."""
    return delivery.number


def release_order(delivery: Delivery) -> int:
    """Sort key: the order of the PUBRECs."""
    return delivery.released


@final
@mypyc_attr(acyclic=True)
class Receipt:
    """A received PUBLISH that the owner must accept or refuse with `Session.accept`."""

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

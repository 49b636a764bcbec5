"""What a client's core has to tell: the end of a connection, and what became of requests."""

from typing import Final, final

from semel.mqtt.properties import NO_PROPERTIES, Properties
from semel.mqtt.reasons import SUCCESS
from semel.mqtt.violation import Violation


@final
class ConnectionEnd:
    """Why a connection is over: what to tell the program."""

    why: Final[str]
    # The rule that the server broke.
    violation: Final[Violation | None]
    # The packet with which the server ended it, CONNACK or DISCONNECT, and its reason code.
    packet_type: Final[int]
    reason: Final[int]
    properties: Final[Properties]
    # Another connection would end in the same way.
    is_final: Final[bool]
    # Of the packet, if it is another than the client's.
    version: Final[int]

    def __init__(
        self,
        why: str,
        *,
        violation: Violation | None = None,
        packet_type: int = 0,
        reason: int = SUCCESS,
        properties: Properties = NO_PROPERTIES,
        is_final: bool = False,
        version: int = 0,
    ) -> None:
        self.why = why
        self.violation = violation
        self.packet_type = packet_type
        self.reason = reason
        self.properties = properties
        self.is_final = is_final
        self.version = version


@final
class PublishOutcome:
    """What became of a publication: acknowledged, refused, or not sent at all."""

    number: Final[int]
    # What answered it, PUBACK, PUBREC or PUBCOMP, and its reason code.
    packet_type: Final[int]
    reason: Final[int]
    properties: Final[Properties]
    # It broke a rule that the server's CONNACK set.
    violation: Final[Violation | None]
    # [MQTT-3.3.2-5] it was given up because its time had passed
    expired: Final[bool]

    def __init__(
        self,
        number: int,
        packet_type: int = 0,
        reason: int = SUCCESS,
        properties: Properties = NO_PROPERTIES,
        *,
        violation: Violation | None = None,
        expired: bool = False,
    ) -> None:
        self.number = number
        self.packet_type = packet_type
        self.reason = reason
        self.properties = properties
        self.violation = violation
        self.expired = expired


@final
class SubscriptionAnswer:
    """What became of a SUBSCRIBE or UNSUBSCRIBE."""

    topic_filter: Final[str]
    subscribed: Final[bool]
    reason: Final[int]
    properties: Final[Properties]
    violation: Final[Violation | None]

    def __init__(
        self,
        topic_filter: str,
        subscribed: bool,
        reason: int,
        properties: Properties = NO_PROPERTIES,
        violation: Violation | None = None,
    ) -> None:
        self.topic_filter = topic_filter
        self.subscribed = subscribed
        self.reason = reason
        self.properties = properties
        self.violation = violation

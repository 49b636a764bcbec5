"""The outcomes of PUBLISH, SUBSCRIBE and UNSUBSCRIBE."""

from typing import Final, final

from semel.mqtt.codec import check_packet_size, encode
from semel.mqtt.delivery import Delivery
from semel.mqtt.properties import NO_PROPERTIES, Properties
from semel.mqtt.reasons import SUCCESS
from semel.mqtt.violation import Violation


@final
class PublishOutcome:
    """The outcome of a publication: acknowledged, refused, or not sent."""

    number: Final[int]
    # The packet that answered it (PUBACK, PUBREC or PUBCOMP), and its reason code.
    packet_type: Final[int]
    reason: Final[int]
    properties: Final[Properties]
    # It exceeds a limit that the server's CONNACK set.
    violation: Final[Violation | None]
    # [MQTT-3.3.2-5] its Message Expiry Interval passed before it could be sent
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


def unsent_outcome(delivery: Delivery, now: float, version: int, maximum: int) -> PublishOutcome:
    """The outcome of a message that the session dropped: expired, or larger than `maximum`."""
    message = delivery.message
    assert message is not None
    if message.is_expired(now):
        return PublishOutcome(delivery.number, expired=True)
    size = len(encode(message.publish(1, now, version, dup=False), version))
    try:
        check_packet_size(size, maximum, None)
    except Violation as violation:
        return PublishOutcome(delivery.number, violation=violation)
    raise AssertionError("the message could have been sent")


@final
class SubscriptionAnswer:
    """The answer to a SUBSCRIBE (`subscribed`) or an UNSUBSCRIBE."""

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

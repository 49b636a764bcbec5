"""What a server supports of the features that the standard makes optional [3.2.2.3].

The properties of its CONNACK say so. The Maximum QoS is not among them: the `Exchange` has it,
because the hot path asks for it with every message.
"""

from typing import Final, final

from semel.mqtt.exchange_rules import (
    RETAIN_IF_AVAILABLE,
    SHARED_IF_AVAILABLE,
    SUBSCRIPTION_IDENTIFIER_IF_AVAILABLE,
    WILDCARD_IF_AVAILABLE,
)
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import Subscribe
from semel.mqtt.properties import (
    NO_PROPERTIES,
    RETAIN_AVAILABLE,
    SHARED_SUBSCRIPTION_AVAILABLE,
    SUBSCRIPTION_IDENTIFIER,
    SUBSCRIPTION_IDENTIFIERS_AVAILABLE,
    WILDCARD_SUBSCRIPTION_AVAILABLE,
    Properties,
)
from semel.mqtt.topics import has_wildcard, is_shared, quoted
from semel.mqtt.violation import Violation, report

# The properties that say which features there are, as bits.
_FEATURES: Final = (
    1 << RETAIN_AVAILABLE
    | 1 << WILDCARD_SUBSCRIPTION_AVAILABLE
    | 1 << SUBSCRIPTION_IDENTIFIERS_AVAILABLE
    | 1 << SHARED_SUBSCRIPTION_AVAILABLE
)


@final
class ServerFeatures:
    """The optional features of one server, by the properties of its CONNACK."""

    retain: Final[bool]
    wildcards: Final[bool]
    subscription_identifiers: Final[bool]
    shared_subscriptions: Final[bool]

    def __init__(self, properties: Properties) -> None:
        self.retain = properties.retain_available != 0
        self.wildcards = properties.wildcard_subscription_available != 0
        self.subscription_identifiers = properties.subscription_identifiers_available != 0
        self.shared_subscriptions = properties.shared_subscription_available != 0

    def check_publish(self, packet: Publish, found: list[Violation] | None) -> None:
        """Check that a PUBLISH of the client needs no feature that the server does not have."""
        if packet.retain and not self.retain:
            report(found, Violation(RETAIN_IF_AVAILABLE, "RETAIN 1"))

    def check_subscribe(self, packet: Subscribe, found: list[Violation] | None) -> None:
        """The same for a SUBSCRIBE."""
        identified = packet.properties.has(SUBSCRIPTION_IDENTIFIER)
        if identified and not self.subscription_identifiers:
            seen = "subscription_identifier"
            report(found, Violation(SUBSCRIPTION_IDENTIFIER_IF_AVAILABLE, seen))
        for subscription in packet.subscriptions:
            topic_filter = subscription.topic_filter
            if not self.wildcards and has_wildcard(topic_filter):
                report(found, Violation(WILDCARD_IF_AVAILABLE, quoted(topic_filter)))
            if not self.shared_subscriptions and is_shared(topic_filter):
                report(found, Violation(SHARED_IF_AVAILABLE, quoted(topic_filter)))


# Of a server that says nothing about them: everything is available.
ALL_FEATURES: Final = ServerFeatures(NO_PROPERTIES)


def server_features(properties: Properties) -> ServerFeatures:
    """The features of the server that sent a CONNACK with these properties."""
    return ServerFeatures(properties) if properties.present & _FEATURES else ALL_FEATURES

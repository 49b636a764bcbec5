"""An application message independent of a connection: no packet identifier, no DUP, no alias.

A `Publish` is a message on one connection. Whatever outlives a connection (the backlog of a
session, a store) keeps a `Message`, and the session makes a new `Publish` for each transmission.
"""

from dataclasses import dataclass
from math import ceil
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.packet_types import MQTT5, PUBLISH
from semel.mqtt.packets.publish import Publish, check_payload, check_publish
from semel.mqtt.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    NO_PROPERTIES,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    USER_PROPERTY,
    Properties,
    PropertyItem,
    properties_of,
    properties_size,
    read_section,
)
from semel.mqtt.violation import Violation
from semel.mqtt.wire import MAXIMUM_FOUR_BYTES, Reader, text_size

# Properties that a server sends on unchanged [MQTT-3.3.2-4, -15, -16, -17, -20]; a bit for each.
SENT_UNCHANGED: Final = (
    1 << PAYLOAD_FORMAT_INDICATOR
    | 1 << CONTENT_TYPE
    | 1 << RESPONSE_TOPIC
    | 1 << CORRELATION_DATA
    | 1 << USER_PROPERTY
)


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class Message:
    """A message to deliver. `expires_at` is a time of the owner's clock; None: never.

    The properties have neither Topic Alias, which belongs to a connection [MQTT-3.3.2-7], nor
    Message Expiry Interval, which `expires_at` replaces.
    """

    topic_name: Final[str]
    payload: Final[bytes]
    qos: Final[int]
    retain: Final[bool]
    properties: Final[Properties]
    expires_at: Final[float | None]
    # Bytes of topic, payload and property values: the size that the limits of backlogs count.
    size: Final[int]

    def __init__(
        self,
        topic_name: str,
        payload: bytes = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
        expires_at: float | None = None,
    ) -> None:
        if properties.has(TOPIC_ALIAS) or properties.has(MESSAGE_EXPIRY_INTERVAL):
            properties = _without(properties, 1 << TOPIC_ALIAS | 1 << MESSAGE_EXPIRY_INTERVAL)
        check_publish(topic_name, qos, 1 if qos else 0, False, properties.present, None)
        if properties.present and properties.payload_format_indicator == 1:
            check_payload(payload, PUBLISH, None)
        self.topic_name = topic_name
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.expires_at = expires_at
        size = text_size(topic_name) + len(payload)
        if properties.present:
            properties = properties.compact()
            size += properties_size(properties)
        self.properties = properties
        self.size = size

    def is_expired(self, now: float) -> bool:
        """Whether the Message Expiry Interval has passed [3.3.2.3.3]."""
        return self.expires_at is not None and now >= self.expires_at

    def variant(self, qos: int, *, retain: bool, identifiers: list[int]) -> "Message":
        """The message as one subscriber receives it: with its QoS, RETAIN flag and identifiers."""
        if qos == self.qos and retain == self.retain and not identifiers:
            return self
        properties = self.properties
        if identifiers:
            items: list[PropertyItem] = [(SUBSCRIPTION_IDENTIFIER, each) for each in identifiers]
            properties = Properties(items, before=properties)
        return Message(
            self.topic_name,
            self.payload,
            qos=qos,
            retain=retain,
            properties=properties,
            expires_at=self.expires_at,
        )

    def publish(self, packet_id: int, now: float, version: int, *, dup: bool) -> Publish:
        """The packet for one transmission, with the remaining expiry interval [MQTT-3.3.2-6].

        A receiver that uses 3.1.1 gets the message without its properties.
        """
        properties = self.properties if version == MQTT5 else NO_PROPERTIES
        if self.expires_at is not None and version == MQTT5:
            left = min(max(0, ceil(self.expires_at - now)), MAXIMUM_FOUR_BYTES)
            properties = Properties([(MESSAGE_EXPIRY_INTERVAL, left)], before=properties)
        return Publish(
            self.topic_name,
            self.payload,
            qos=self.qos,
            packet_id=packet_id,
            retain=self.retain,
            dup=dup,
            properties=properties,
        )


def message_properties(properties: Properties) -> Properties:
    """The properties of a received PUBLISH that belong to its message.

    A Topic Alias belongs to the connection [MQTT-3.3.2-7], and Subscription Identifiers to the
    receiver.
    """
    if not properties.present or not (
        properties.has(TOPIC_ALIAS) or properties.has(SUBSCRIPTION_IDENTIFIER)
    ):
        return properties
    return _without(properties, 1 << TOPIC_ALIAS | 1 << SUBSCRIPTION_IDENTIFIER)


def unchanged_properties(section: bytes, maximum_items: int) -> Properties | None:
    """The properties in a section with its Property Length, if a server sends all on unchanged.

    None if it does not, or if the section breaks a rule or has more than `maximum_items`.
    """
    reader = Reader(section, 0, len(section), MQTT5, None, None, maximum_items)
    try:
        properties = properties_of(read_section(reader))
    except Violation:
        return None
    return None if reader.left() or properties.present & ~SENT_UNCHANGED else properties


def received_message(packet: Publish, topic_name: str, now: float) -> Message:
    """The message of a received PUBLISH; `topic_name` is its topic with the alias resolved."""
    properties = message_properties(packet.properties)
    expires_at: float | None = None
    if properties.present:
        interval = properties.message_expiry_interval
        expires_at = None if interval is None else now + interval
    return Message(
        topic_name,
        packet.payload,
        qos=packet.qos,
        retain=packet.retain,
        properties=properties,
        expires_at=expires_at,
    )


def without_identifiers(message: Message) -> Message:
    """The message without Subscription Identifiers, to deliver it for another subscription."""
    if not message.properties.has(SUBSCRIPTION_IDENTIFIER):
        return message
    return Message(
        message.topic_name,
        message.payload,
        qos=message.qos,
        retain=message.retain,
        properties=_without(message.properties, 1 << SUBSCRIPTION_IDENTIFIER),
        expires_at=message.expires_at,
    )


def _without(properties: Properties, unwanted: int) -> Properties:
    return Properties([item for item in properties.items if not unwanted >> item[0] & 1])

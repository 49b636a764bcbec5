"""SUBSCRIBE and SUBACK [3.8, 3.9]."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.packet_types import MQTT5, SUBACK, SUBSCRIBE, first_byte
from semel.mqtt.packets.fields import check_packet_id, check_reason
from semel.mqtt.properties import (
    NO_PROPERTIES,
    SUBSCRIPTION_IDENTIFIER,
    Properties,
    PropertySection,
    check_properties_allowed,
    check_properties_version,
    check_section,
    encode_properties,
    properties_of,
    read_section,
    section_items,
)
from semel.mqtt.rules import (
    NO_LOCAL_NOT_SHARED,
    REASON_CODES_PRESENT,
    RETAIN_HANDLING_NOT_3,
    SUBSCRIBE_NOT_EMPTY,
    SUBSCRIPTION_IDENTIFIER_ONCE,
    SUBSCRIPTION_OPTIONS_RESERVED,
    SUBSCRIPTION_QOS_NOT_3,
)
from semel.mqtt.topics import check_share, check_topic_filter, is_shared, quoted
from semel.mqtt.violation import Violation, report
from semel.mqtt.wire import Reader, Writer, frame

# [3.8.3.1] Subscription Options
_NO_LOCAL: Final = 0x04
_RETAIN_AS_PUBLISHED: Final = 0x08
_RESERVED_5: Final = 0xC0
_RESERVED_311: Final = 0xFC


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class Subscription:
    """One Topic Filter with its options; the only option in 3.1.1 is the QoS."""

    topic_filter: Final[str]
    qos: Final[int]
    no_local: Final[bool]
    retain_as_published: Final[bool]
    retain_handling: Final[int]

    def __init__(
        self,
        topic_filter: str,
        qos: int = 0,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> None:
        check_subscription(topic_filter, qos, no_local, retain_handling, None)
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling

    def with_qos(self, qos: int) -> "Subscription":
        """The same subscription with another QoS, as a server may grant it [MQTT-3.8.4-8]."""
        return Subscription(
            self.topic_filter,
            qos,
            no_local=self.no_local,
            retain_as_published=self.retain_as_published,
            retain_handling=self.retain_handling,
        )

    @property
    def options(self) -> int:
        """The Subscription Options byte."""
        return (
            self.qos
            | (_NO_LOCAL if self.no_local else 0)
            | (_RETAIN_AS_PUBLISHED if self.retain_as_published else 0)
            | self.retain_handling << 4
        )


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class Subscribe:
    """A client requests subscriptions."""

    packet_id: Final[int]
    subscriptions: Final[tuple[Subscription, ...]]
    properties: Final[Properties]

    def __init__(
        self,
        packet_id: int,
        subscriptions: Iterable[Subscription],
        *,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        self.packet_id = packet_id
        self.subscriptions = tuple(subscriptions)
        self.properties = properties
        # A loop, because compiled code checks the type of each item in a loop, but not in tuple().
        count = 0
        for _subscription in self.subscriptions:
            count += 1
        identifiers = 0
        if properties.has(SUBSCRIPTION_IDENTIFIER):
            identifiers = len(properties.subscription_identifiers)
        check_subscribe(packet_id, count, identifiers, properties.present, None)


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class SubAck:
    """The server's answer: one reason code for each filter, in order."""

    packet_id: Final[int]
    reasons: Final[tuple[int, ...]]
    properties: Final[Properties]

    def __init__(
        self, packet_id: int, reasons: Iterable[int], *, properties: Properties = NO_PROPERTIES
    ) -> None:
        self.packet_id = packet_id
        self.reasons = tuple(reasons)
        self.properties = properties
        check_reasons(SUBACK, packet_id, self.reasons, properties.present, 0, None)


def subscription_from_options(topic_filter: str, options: int) -> Subscription:
    """A subscription from its Subscription Options byte [3.8.3.1]. Raises Violation."""
    return Subscription(
        topic_filter,
        options & 3,
        no_local=options & _NO_LOCAL != 0,
        retain_as_published=options & _RETAIN_AS_PUBLISHED != 0,
        retain_handling=options >> 4 & 3,
    )


def check_subscription(
    topic_filter: str,
    qos: int,
    no_local: bool,
    retain_handling: int,
    found: list[Violation] | None,
) -> None:
    """Check everything that can be wrong with a subscription in both versions."""
    check_topic_filter(topic_filter, found)
    if qos < 0 or qos > 2:
        report(found, Violation(SUBSCRIPTION_QOS_NOT_3, f"QoS {qos}", SUBSCRIBE))
    if retain_handling < 0 or retain_handling > 2:
        seen = f"retain_handling {retain_handling}"
        report(found, Violation(RETAIN_HANDLING_NOT_3, seen, SUBSCRIBE))
    if no_local and is_shared(topic_filter):
        report(found, Violation(NO_LOCAL_NOT_SHARED, quoted(topic_filter), SUBSCRIBE))


def check_subscription_version(
    topic_filter: str, options: int, version: int, found: list[Violation] | None
) -> None:
    """Check the options and the share name by the rules of one version."""
    if options & (_RESERVED_5 if version == MQTT5 else _RESERVED_311):
        seen = f"options 0x{options:02x}"
        report(found, Violation(SUBSCRIPTION_OPTIONS_RESERVED, seen, SUBSCRIBE))
    check_share(topic_filter, version, found)


def check_subscribe(
    packet_id: int,
    count: int,
    identifiers: int,
    present: int,
    found: list[Violation] | None,
) -> None:
    """Check everything that can be wrong with a SUBSCRIBE, except its subscriptions."""
    check_packet_id(packet_id, found)
    if not count:
        report(found, Violation(SUBSCRIBE_NOT_EMPTY, "no topic_filter", SUBSCRIBE))
    if identifiers > 1:
        seen = f"{identifiers} subscription identifiers"
        report(found, Violation(SUBSCRIPTION_IDENTIFIER_ONCE, seen, SUBSCRIBE))
    check_properties_allowed(SUBSCRIBE, present, found)


def check_reasons(
    packet_type: int,
    packet_id: int,
    reasons: tuple[int, ...],
    present: int,
    version: int,
    found: list[Violation] | None,
) -> None:
    """Check everything that can be wrong with a SUBACK or UNSUBACK in `version` (0: in both)."""
    check_packet_id(packet_id, found)
    if packet_type == SUBACK or version:
        has_reasons = packet_type == SUBACK or version == MQTT5
        if (len(reasons) > 0) != has_reasons:
            seen = f"{len(reasons)} reason codes"
            report(found, Violation(REASON_CODES_PRESENT, seen, packet_type))
    for reason in reasons:
        check_reason(packet_type, reason, version, found)
    check_properties_allowed(packet_type, present, found)


def read_subscription(reader: Reader) -> tuple[str, int]:
    """Read a Topic Filter and its Subscription Options, unchecked."""
    reader.count_item()
    topic_filter = reader.text("topic_filter")
    return topic_filter, reader.byte("subscription_options")


def decode_subscribe(reader: Reader) -> Subscribe:
    packet_id = reader.two_bytes("packet_id")
    section = read_section(reader)
    subscriptions: list[Subscription] = []
    # The packet is read to its end before a subscription is refused.
    refused: Violation | None = None
    while reader.left():
        topic_filter, options = read_subscription(reader)
        if refused is None:
            try:
                check_subscription_version(topic_filter, options, reader.version, None)
                subscriptions.append(subscription_from_options(topic_filter, options))
            except Violation as violation:
                refused = violation
    if refused is not None:
        raise refused
    return Subscribe(packet_id, subscriptions, properties=properties_of(section))


def observe_subscribe(reader: Reader, found: list[Violation]) -> None:
    packet_id = reader.two_bytes("packet_id")
    section = read_section(reader)
    fields: list[tuple[str, int]] = []
    while reader.left():
        fields.append(read_subscription(reader))
    for topic_filter, options in fields:
        check_subscription_version(topic_filter, options, reader.version, found)
        # The bits of these options are reserved in 3.1.1; the line above reports them.
        handling = options >> 4 & 3 if reader.version == MQTT5 else 0
        no_local = reader.version == MQTT5 and options & _NO_LOCAL != 0
        check_subscription(topic_filter, options & 3, no_local, handling, found)
    identifiers = 0
    for identifier, _ in section_items(section.data):
        if identifier == SUBSCRIPTION_IDENTIFIER:
            identifiers += 1
    present = check_section(section, found)
    check_subscribe(packet_id, len(fields), identifiers, present, found)


def encode_subscribe(packet: Subscribe, version: int) -> bytes:
    check_properties_version(packet.properties.present, version)
    writer = Writer()
    writer.two_bytes(packet.packet_id)
    if version == MQTT5:
        writer.raw(encode_properties(packet.properties))
    for subscription in packet.subscriptions:
        options = subscription.options
        check_subscription_version(subscription.topic_filter, options, version, None)
        writer.text(subscription.topic_filter)
        writer.byte(options)
    return frame(first_byte(SUBSCRIBE), writer.value())


def read_reasons(reader: Reader, packet_type: int) -> tuple[int, PropertySection, list[int]]:
    """Read the identifier, the properties and the reason codes of a SUBACK or UNSUBACK."""
    packet_id = reader.two_bytes("packet_id")
    section = read_section(reader)
    reasons: list[int] = []
    if packet_type == SUBACK or reader.version == MQTT5:
        while reader.left():
            reasons.append(reader.byte("reason"))
    reader.check_end()
    return packet_id, section, reasons


def decode_suback(reader: Reader) -> SubAck:
    packet_id, section, reasons = read_reasons(reader, SUBACK)
    packet = SubAck(packet_id, reasons, properties=properties_of(section))
    check_reasons(SUBACK, packet_id, packet.reasons, 0, reader.version, None)
    return packet


def observe_reasons(reader: Reader, packet_type: int, found: list[Violation]) -> None:
    """Observe a SUBACK or UNSUBACK."""
    packet_id, section, reasons = read_reasons(reader, packet_type)
    present = check_section(section, found)
    check_reasons(packet_type, packet_id, tuple(reasons), present, reader.version, found)


def encode_reasons(
    packet_type: int,
    packet_id: int,
    reasons: tuple[int, ...],
    properties: Properties,
    version: int,
) -> bytes:
    """The bytes of a SUBACK or UNSUBACK."""
    check_reasons(packet_type, packet_id, reasons, properties.present, version, None)
    check_properties_version(properties.present, version)
    writer = Writer()
    writer.two_bytes(packet_id)
    if version == MQTT5:
        writer.raw(encode_properties(properties))
    for reason in reasons:
        writer.byte(reason)
    return frame(first_byte(packet_type), writer.value())

"""UNSUBSCRIBE and UNSUBACK [3.10, 3.11]."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.packet_types import MQTT5, UNSUBACK, UNSUBSCRIBE, first_byte
from semel.mqtt.packets.fields import check_packet_id
from semel.mqtt.packets.subscribe import check_reasons, read_reasons
from semel.mqtt.properties import (
    NO_PROPERTIES,
    Properties,
    PropertySection,
    check_properties_allowed,
    check_properties_version,
    check_section,
    encode_properties,
    properties_of,
    read_section,
)
from semel.mqtt.rules import UNSUBSCRIBE_NOT_EMPTY
from semel.mqtt.topics import check_topic_filter
from semel.mqtt.violation import Violation, report
from semel.mqtt.wire import Reader, Writer, frame


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class Unsubscribe:
    """A client removes subscriptions."""

    packet_id: Final[int]
    topic_filters: Final[tuple[str, ...]]
    properties: Final[Properties]

    def __init__(
        self,
        packet_id: int,
        topic_filters: Iterable[str],
        *,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        if isinstance(topic_filters, str):
            raise TypeError("topic_filters must be a list of filters, not one string")
        self.packet_id = packet_id
        self.topic_filters = tuple(topic_filters)
        self.properties = properties
        check_unsubscribe(packet_id, self.topic_filters, properties.present, None)


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class UnsubAck:
    """The server's answer. 5.0 has a reason code for each filter, 3.1.1 has none."""

    packet_id: Final[int]
    reasons: Final[tuple[int, ...]]
    properties: Final[Properties]

    def __init__(
        self,
        packet_id: int,
        reasons: Iterable[int] = (),
        *,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        self.packet_id = packet_id
        self.reasons = tuple(reasons)
        self.properties = properties
        check_reasons(UNSUBACK, packet_id, self.reasons, properties.present, 0, None)


def check_unsubscribe(
    packet_id: int,
    topic_filters: tuple[str, ...],
    present: int,
    found: list[Violation] | None,
) -> None:
    """Check everything that can be wrong with an UNSUBSCRIBE.

    The rules for share names [4.8.2] apply to SUBSCRIBE only; to unsubscribe from an invalid one
    is harmless.
    """
    check_packet_id(packet_id, found)
    if not topic_filters:
        report(found, Violation(UNSUBSCRIBE_NOT_EMPTY, "no topic_filter", UNSUBSCRIBE))
    for topic_filter in topic_filters:
        check_topic_filter(topic_filter, found)
    check_properties_allowed(UNSUBSCRIBE, present, found)


def read_unsubscribe(reader: Reader) -> tuple[int, PropertySection, list[str]]:
    """Read the fields of an UNSUBSCRIBE, unchecked."""
    packet_id = reader.two_bytes("packet_id")
    section = read_section(reader)
    topic_filters: list[str] = []
    while reader.left():
        reader.count_item()
        topic_filters.append(reader.text("topic_filter"))
    return packet_id, section, topic_filters


def decode_unsubscribe(reader: Reader) -> Unsubscribe:
    packet_id, section, topic_filters = read_unsubscribe(reader)
    return Unsubscribe(packet_id, topic_filters, properties=properties_of(section))


def observe_unsubscribe(reader: Reader, found: list[Violation]) -> None:
    packet_id, section, topic_filters = read_unsubscribe(reader)
    present = check_section(section, found)
    check_unsubscribe(packet_id, tuple(topic_filters), present, found)


def encode_unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    check_properties_version(packet.properties.present, version)
    writer = Writer()
    writer.two_bytes(packet.packet_id)
    if version == MQTT5:
        writer.raw(encode_properties(packet.properties))
    for topic_filter in packet.topic_filters:
        writer.text(topic_filter)
    return frame(first_byte(UNSUBSCRIBE), writer.value())


def decode_unsuback(reader: Reader) -> UnsubAck:
    packet_id, section, reasons = read_reasons(reader, UNSUBACK)
    packet = UnsubAck(packet_id, reasons, properties=properties_of(section))
    check_reasons(UNSUBACK, packet_id, packet.reasons, 0, reader.version, None)
    return packet

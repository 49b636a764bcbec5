"""PUBACK, PUBREC, PUBREL and PUBCOMP [3.4 to 3.7]: four packets with one format.

In 5.0 the reason code may be omitted if it is 0x00 and there are no properties, and the property
section may be omitted if it is empty. We write the shortest form, and read all of them.
"""

from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.packet_types import MQTT5, PUBACK, PUBCOMP, PUBREC, PUBREL, first_byte
from semel.mqtt.packets.fields import check_packet_id, check_reason
from semel.mqtt.properties import (
    NO_PROPERTIES,
    NO_SECTION,
    Properties,
    PropertySection,
    check_properties_allowed,
    check_properties_version,
    check_section,
    encode_properties,
    properties_of,
    read_section,
)
from semel.mqtt.reasons import SUCCESS
from semel.mqtt.violation import Violation
from semel.mqtt.wire import Reader, Writer, frame

# packet_id, reason, properties
AckFields = tuple[int, int, PropertySection]


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class PubAck:
    """The answer to a QoS 1 PUBLISH."""

    packet_id: Final[int]
    reason: Final[int]
    properties: Final[Properties]

    def __init__(
        self, packet_id: int, reason: int = SUCCESS, *, properties: Properties = NO_PROPERTIES
    ) -> None:
        check_ack(PUBACK, packet_id, reason, properties.present, None)
        self.packet_id = packet_id
        self.reason = reason
        self.properties = properties


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class PubRec:
    """The first answer to a QoS 2 PUBLISH."""

    packet_id: Final[int]
    reason: Final[int]
    properties: Final[Properties]

    def __init__(
        self, packet_id: int, reason: int = SUCCESS, *, properties: Properties = NO_PROPERTIES
    ) -> None:
        check_ack(PUBREC, packet_id, reason, properties.present, None)
        self.packet_id = packet_id
        self.reason = reason
        self.properties = properties


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class PubRel:
    """The sender's answer to PUBREC."""

    packet_id: Final[int]
    reason: Final[int]
    properties: Final[Properties]

    def __init__(
        self, packet_id: int, reason: int = SUCCESS, *, properties: Properties = NO_PROPERTIES
    ) -> None:
        check_ack(PUBREL, packet_id, reason, properties.present, None)
        self.packet_id = packet_id
        self.reason = reason
        self.properties = properties


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class PubComp:
    """The answer to PUBREL, which completes a QoS 2 PUBLISH."""

    packet_id: Final[int]
    reason: Final[int]
    properties: Final[Properties]

    def __init__(
        self, packet_id: int, reason: int = SUCCESS, *, properties: Properties = NO_PROPERTIES
    ) -> None:
        check_ack(PUBCOMP, packet_id, reason, properties.present, None)
        self.packet_id = packet_id
        self.reason = reason
        self.properties = properties


Ack = PubAck | PubRec | PubRel | PubComp


def check_ack(
    packet_type: int,
    packet_id: int,
    reason: int,
    present: int,
    found: list[Violation] | None,
) -> None:
    """Check everything that can be wrong with an acknowledgement."""
    check_packet_id(packet_id, found)
    check_reason(packet_type, reason, 0, found)
    if present:
        check_properties_allowed(packet_type, present, found)


def read_ack(reader: Reader) -> AckFields:
    """Read the fields of an acknowledgement in any of its forms, unchecked."""
    packet_id = reader.two_bytes("packet_id")
    reason = SUCCESS
    section = NO_SECTION
    if reader.version == MQTT5 and reader.left():
        reason = reader.byte("reason")
        # [3.4.2.2.1] if the Property Length is omitted, its value is 0
        if reader.left():
            section = read_section(reader)
    reader.check_end()
    return packet_id, reason, section


def decode_ack(reader: Reader, packet_type: int) -> Ack:
    packet_id, reason, section = read_ack(reader)
    properties = properties_of(section)
    if packet_type == PUBACK:
        return PubAck(packet_id, reason, properties=properties)
    if packet_type == PUBREC:
        return PubRec(packet_id, reason, properties=properties)
    if packet_type == PUBREL:
        return PubRel(packet_id, reason, properties=properties)
    return PubComp(packet_id, reason, properties=properties)


def observe_ack(reader: Reader, packet_type: int, found: list[Violation]) -> None:
    packet_id, reason, section = read_ack(reader)
    present = check_section(section, found)
    check_ack(packet_type, packet_id, reason, present, found)


def encode_ack(
    packet_type: int,
    packet_id: int,
    reason: int,
    properties: Properties,
    version: int,
) -> bytes:
    check_reason(packet_type, reason, version, None)
    check_properties_version(properties.present, version)
    if reason == SUCCESS and not properties.present:
        return encode_success(packet_type, packet_id)
    writer = Writer()
    writer.two_bytes(packet_id)
    writer.byte(reason)
    if properties.present:
        writer.raw(encode_properties(properties))
    return frame(first_byte(packet_type), writer.value())


def encode_success(packet_type: int, packet_id: int) -> bytes:
    """An acknowledgement with reason 0x00 and without properties; the same in both versions."""
    writer = Writer()
    writer.byte(first_byte(packet_type))
    writer.byte(2)
    writer.two_bytes(packet_id)
    return writer.value()

"""DISCONNECT [3.14]."""

from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.packet_types import DISCONNECT, MQTT5, first_byte
from semel.mqtt.packets.fields import check_reason
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
from semel.mqtt.reasons import NORMAL_DISCONNECTION
from semel.mqtt.violation import Violation
from semel.mqtt.wire import Reader, Writer, frame


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class Disconnect:
    """The last packet that a side sends on a connection."""

    reason: Final[int]
    properties: Final[Properties]

    def __init__(
        self, reason: int = NORMAL_DISCONNECTION, *, properties: Properties = NO_PROPERTIES
    ) -> None:
        check_disconnect(reason, properties.present, None)
        self.reason = reason
        self.properties = properties


def check_disconnect(reason: int, present: int, found: list[Violation] | None) -> None:
    """Check everything that can be wrong with a DISCONNECT."""
    check_reason(DISCONNECT, reason, 0, found)
    check_properties_allowed(DISCONNECT, present, found)


def read_disconnect(reader: Reader) -> tuple[int, PropertySection]:
    """Read the reason code and the properties, unchecked; both are optional [3.14.2.1]."""
    reason = NORMAL_DISCONNECTION
    section = NO_SECTION
    if reader.version == MQTT5 and reader.left():
        reason = reader.byte("reason")
        # [3.14.2.2.1] if the Property Length is omitted, its value is 0
        if reader.left():
            section = read_section(reader)
    reader.check_end()
    return reason, section


def decode_disconnect(reader: Reader) -> Disconnect:
    reason, section = read_disconnect(reader)
    return Disconnect(reason, properties=properties_of(section))


def observe_disconnect(reader: Reader, found: list[Violation]) -> None:
    reason, section = read_disconnect(reader)
    check_disconnect(reason, check_section(section, found), found)


def encode_disconnect(packet: Disconnect, version: int) -> bytes:
    check_reason(DISCONNECT, packet.reason, version, None)
    check_properties_version(packet.properties.present, version)
    writer = Writer()
    if packet.reason != NORMAL_DISCONNECTION or packet.properties.present:
        writer.byte(packet.reason)
        if packet.properties.present:
            writer.raw(encode_properties(packet.properties))
    return frame(first_byte(DISCONNECT), writer.value())

"""DISCONNECT [3.14]."""

from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.packet_types import DISCONNECT, MQTT5, first_byte
from semel.mqtt.packets.fields import check_reason
from semel.mqtt.properties import (
    NO_PROPERTIES,
    Properties,
    PropertyItem,
    check_properties,
    check_properties_allowed,
    check_properties_version,
    encode_properties,
    properties_of,
    read_properties,
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


def read_disconnect(reader: Reader) -> tuple[int, list[PropertyItem]]:
    """Read the reason code and the properties, unchecked; both are optional [3.14.2.1]."""
    reason = NORMAL_DISCONNECTION
    items: list[PropertyItem] = []
    if reader.version == MQTT5 and reader.left():
        reason = reader.byte("reason")
        # [3.14.2.2.1] if the Property Length is omitted, its value is 0
        if reader.left():
            items = read_properties(reader)
    reader.check_end()
    return reason, items


def decode_disconnect(reader: Reader) -> Disconnect:
    reason, items = read_disconnect(reader)
    return Disconnect(reason, properties=properties_of(items))


def observe_disconnect(reader: Reader, found: list[Violation]) -> None:
    reason, items = read_disconnect(reader)
    check_disconnect(reason, check_properties(items, found), found)


def encode_disconnect(packet: Disconnect, version: int) -> bytes:
    check_reason(DISCONNECT, packet.reason, version, None)
    check_properties_version(packet.properties.present, version)
    writer = Writer()
    if packet.reason != NORMAL_DISCONNECTION or packet.properties.present:
        writer.byte(packet.reason)
        if packet.properties.present:
            writer.raw(encode_properties(packet.properties))
    return frame(first_byte(DISCONNECT), writer.value())

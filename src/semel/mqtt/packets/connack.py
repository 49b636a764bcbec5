"""CONNACK [3.2]."""

from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.packet_types import CONNACK, MQTT5, first_byte
from semel.mqtt.packets.fields import check_reason
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
from semel.mqtt.reasons import SUCCESS
from semel.mqtt.rules import CONNACK_RESERVED_FLAGS, SESSION_PRESENT_NEEDS_SUCCESS
from semel.mqtt.violation import Violation, report
from semel.mqtt.wire import Reader, Writer, frame


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class ConnAck:
    """The server's answer to CONNECT. In 3.1.1 `reason` is the return code, 0 to 5."""

    reason: Final[int]
    session_present: Final[bool]
    properties: Final[Properties]

    def __init__(
        self,
        reason: int = SUCCESS,
        *,
        session_present: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        check_connack(reason, session_present, properties.present, 0, None)
        self.reason = reason
        self.session_present = session_present
        self.properties = properties


def check_connack(
    reason: int,
    session_present: bool,
    present: int,
    version: int,
    found: list[Violation] | None,
) -> None:
    """Check everything that can be wrong with a CONNACK in `version` (0: in both versions)."""
    check_reason(CONNACK, reason, version, found)
    if session_present and reason != SUCCESS:
        seen = f"session_present with 0x{reason:02x}"
        report(found, Violation(SESSION_PRESENT_NEEDS_SUCCESS, seen, CONNACK))
    check_properties_allowed(CONNACK, present, found)


def check_connack_flags(flags: int, found: list[Violation] | None) -> None:
    """Check that no flag but Session Present is set; a constructor cannot set another."""
    if flags & ~1:
        report(found, Violation(CONNACK_RESERVED_FLAGS, f"flags 0x{flags:02x}", CONNACK))


def read_connack(reader: Reader) -> tuple[int, int, PropertySection]:
    """Read the flags, the reason code and the properties, unchecked."""
    flags = reader.byte("connect_acknowledge_flags")
    reason = reader.byte("reason")
    section = read_section(reader)
    reader.check_end()
    return flags, reason, section


def decode_connack(reader: Reader) -> ConnAck:
    flags, reason, section = read_connack(reader)
    check_connack_flags(flags, None)
    check_reason(CONNACK, reason, reader.version, None)
    return ConnAck(reason, session_present=flags & 1 != 0, properties=properties_of(section))


def observe_connack(reader: Reader, found: list[Violation]) -> None:
    flags, reason, section = read_connack(reader)
    check_connack_flags(flags, found)
    present = check_section(section, found)
    check_connack(reason, flags & 1 != 0, present, reader.version, found)


def encode_connack(packet: ConnAck, version: int) -> bytes:
    check_reason(CONNACK, packet.reason, version, None)
    check_properties_version(packet.properties.present, version)
    writer = Writer()
    writer.byte(1 if packet.session_present else 0)
    writer.byte(packet.reason)
    if version == MQTT5:
        writer.raw(encode_properties(packet.properties))
    return frame(first_byte(CONNACK), writer.value())

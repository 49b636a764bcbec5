"""AUTH [3.15], in 5.0 only."""

from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.packet_types import AUTH, first_byte
from semel.mqtt.packets.fields import check_reason
from semel.mqtt.properties import (
    AUTHENTICATION_METHOD,
    NO_SECTION,
    Properties,
    PropertySection,
    check_properties_allowed,
    check_section,
    encode_properties,
    properties_of,
    read_section,
)
from semel.mqtt.reasons import SUCCESS
from semel.mqtt.rules import AUTH_HAS_METHOD
from semel.mqtt.violation import Violation, report
from semel.mqtt.wire import Reader, Writer, frame


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class Auth:
    """A step of enhanced authentication. The properties name the Authentication Method.

    [3.15.2.1] permits an empty AUTH, without code and properties; by [3.15.2.2.2] an AUTH without
    a method is a Protocol Error. We give precedence to the latter, and refuse an empty AUTH.
    """

    reason: Final[int]
    properties: Final[Properties]

    def __init__(self, reason: int, *, properties: Properties) -> None:
        check_auth(reason, properties.present, None)
        self.reason = reason
        self.properties = properties


def check_auth(reason: int, present: int, found: list[Violation] | None) -> None:
    """Check everything that can be wrong with an AUTH."""
    check_reason(AUTH, reason, 0, found)
    check_properties_allowed(AUTH, present, found)
    if not present >> AUTHENTICATION_METHOD & 1:
        report(found, Violation(AUTH_HAS_METHOD, "no authentication_method", AUTH))


def read_auth(reader: Reader) -> tuple[int, PropertySection]:
    """Read the reason code and the properties, unchecked."""
    reason = SUCCESS
    section = NO_SECTION
    if reader.left():
        reason = reader.byte("reason")
        section = read_section(reader)
    reader.check_end()
    return reason, section


def decode_auth(reader: Reader) -> Auth:
    reason, section = read_auth(reader)
    return Auth(reason, properties=properties_of(section))


def observe_auth(reader: Reader, found: list[Violation]) -> None:
    reason, section = read_auth(reader)
    check_auth(reason, check_section(section, found), found)


def encode_auth(packet: Auth) -> bytes:
    writer = Writer()
    writer.byte(packet.reason)
    writer.raw(encode_properties(packet.properties))
    return frame(first_byte(AUTH), writer.value())

"""Why a connection ended: refused, ended by the server or by us, or a rule was broken."""

from typing import Final, final

from semel.mqtt.packet_types import CONNACK, DISCONNECT, MQTT5, MQTT311, first_byte
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.properties import NO_PROPERTIES, Properties
from semel.mqtt.reasons import DISCONNECT_ONLY_SERVER, PROTOCOL_ERROR, REASONS_5, SUCCESS
from semel.mqtt.violation import Violation

# The first three bytes of a CONNACK of 3.1.1.
_CONNACK_311: Final = bytes((first_byte(CONNACK), 2, 0))


@final
class ConnectionEnd:
    """The reason for the end of a connection, from which the program's exception is made."""

    why: Final[str]
    # The rule that the server broke.
    violation: Final[Violation | None]
    # The packet with which the server ended it, CONNACK or DISCONNECT, and its reason code.
    packet_type: Final[int]
    reason: Final[int]
    properties: Final[Properties]
    # Whether another connection would end in the same way.
    is_final: Final[bool]
    # The version of the packet if it is not the client's, else 0.
    version: Final[int]

    def __init__(
        self,
        why: str,
        *,
        violation: Violation | None = None,
        packet_type: int = 0,
        reason: int = SUCCESS,
        properties: Properties = NO_PROPERTIES,
        is_final: bool = False,
        version: int = 0,
    ) -> None:
        self.why = why
        self.violation = violation
        self.packet_type = packet_type
        self.reason = reason
        self.properties = properties
        self.is_final = is_final
        self.version = version


def refused_by_server(packet: ConnAck) -> ConnectionEnd:
    """The server refused CONNECT."""
    return ConnectionEnd(
        "the server refused the connection",
        packet_type=CONNACK,
        reason=packet.reason,
        properties=packet.properties,
    )


def refused_in_311(data: bytes) -> ConnectionEnd | None:
    """The refusal of MQTT 5.0 by a server that only supports 3.1.1; None if `data` is not one.

    Such a server answers with a CONNACK of 3.1.1 [3.1.1 MQTT-3.1.2-2]. It cannot be mistaken for a
    CONNACK of 5.0, whose Remaining Length is at least 3.
    """
    if data[:3] != _CONNACK_311 or len(data) != 4 or not data[3]:
        return None
    return ConnectionEnd(
        "MQTT 5.0 (it supports 3.1.1: use version=semel.MQTT311)",
        packet_type=CONNACK,
        reason=data[3],
        version=MQTT311,
    )


def ended_by_server(packet: Disconnect) -> ConnectionEnd:
    """The server sent DISCONNECT."""
    return ConnectionEnd(
        "the server ended the connection",
        packet_type=DISCONNECT,
        reason=packet.reason,
        properties=packet.properties,
    )


def unknown_session(version: int) -> ConnectionEnd:
    """The server resumed a session of which the client has no state."""
    rule = " [MQTT-3.2.2-4]" if version == MQTT5 else ""
    return ConnectionEnd(
        "the server has a session for this client identifier, but the client has no state of it"
        f" and must not resume it{rule}",
        is_final=True,
    )


def disconnect_reason(violation: Violation) -> int:
    """The reason code with which a client tells the server that it broke a rule."""
    reason = violation.rule.reason
    if reason in DISCONNECT_ONLY_SERVER or reason not in REASONS_5[DISCONNECT]:
        return PROTOCOL_ERROR
    return reason

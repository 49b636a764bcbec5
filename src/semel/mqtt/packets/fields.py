"""Checks of the fields that several packets have: Packet Identifier and reason code."""

from semel.mqtt.packet_types import MQTT5, MQTT311, PACKET_NAMES
from semel.mqtt.reasons import REASONS_5, REASONS_311, SUCCESS
from semel.mqtt.rules import PACKET_ID_NOT_ZERO, REASON_CODE_IN_TABLE
from semel.mqtt.violation import Violation, report
from semel.mqtt.wire import MAXIMUM_TWO_BYTES


def check_packet_id(packet_id: int, found: list[Violation] | None) -> None:
    """Check that a Packet Identifier is in the range 1 to 65,535."""
    if packet_id < 1 or packet_id > MAXIMUM_TWO_BYTES:
        report(found, Violation(PACKET_ID_NOT_ZERO, f"packet_id {packet_id}"))


def check_reason(
    packet_type: int, reason: int, version: int, found: list[Violation] | None
) -> None:
    """Check that the packet type has this reason code in `version` (0: in either version)."""
    # Every table of a packet with a reason code has it.
    if reason == SUCCESS:
        return
    if version != MQTT311 and reason in REASONS_5[packet_type]:
        return
    if version != MQTT5 and reason in REASONS_311[packet_type]:
        return
    seen = f"0x{reason:02x} in {PACKET_NAMES[packet_type]}"
    report(found, Violation(REASON_CODE_IN_TABLE, seen, packet_type))

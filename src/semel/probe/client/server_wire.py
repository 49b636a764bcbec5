"""Packets that only servers send, written byte by byte, right or wrong: nothing here is checked.

`version` is the protocol level, 4 for 3.1.1 and 5 for 5.0; property sections exist in 5.0 only.
"""

from collections.abc import Iterable
from typing import Final

from semel.probe.wire import MQTT5, frame, section, two

# Properties of CONNACK, by their identifiers.
SERVER_KEEP_ALIVE: Final = 0x13
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_SUBSCRIPTION_AVAILABLE: Final = 0x28
SUBSCRIPTION_IDENTIFIERS_AVAILABLE: Final = 0x29
SHARED_SUBSCRIPTION_AVAILABLE: Final = 0x2A
ASSIGNED_CLIENT_IDENTIFIER: Final = 0x12


def connack(
    version: int, *, reason: int = 0, session_present: bool = False, properties: bytes = b""
) -> bytes:
    """A CONNACK."""
    return frame(0x20, bytes([session_present, reason]), section(version, properties))


def suback(version: int, packet_id: int, reasons: Iterable[int]) -> bytes:
    """A SUBACK with these codes."""
    return frame(0x90, two(packet_id), section(version), bytes(reasons))


def unsuback(version: int, packet_id: int, reasons: Iterable[int]) -> bytes:
    """An UNSUBACK; codes exist in 5.0 only."""
    codes = bytes(reasons) if version == MQTT5 else b""
    return frame(0xB0, two(packet_id), section(version), codes)


def pingresp() -> bytes:
    """A PINGRESP."""
    return b"\xd0\x00"


def puback_with(packet_id: int, reason: int) -> bytes:
    """A PUBACK with a reason code (5.0)."""
    return frame(0x40, two(packet_id), bytes([reason]))


def pubrec_with(packet_id: int, reason: int) -> bytes:
    """A PUBREC with a reason code (5.0)."""
    return frame(0x50, two(packet_id), bytes([reason]))


def with_packet_id(packet: bytes, packet_id: int) -> bytes:
    """The same acknowledgement for another Packet Identifier, which is its first field."""
    start = 1
    while packet[start] & 0x80:
        start += 1
    start += 1
    return packet[:start] + two(packet_id) + packet[start + 2 :]

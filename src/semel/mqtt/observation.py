"""All violations of a packet, not only the first.

`decode` refuses a packet at the first rule that it breaks; `observe` reads it with the same reader,
makes the same checks, and collects everything that they report. It builds no packet. A packet that
cannot be read to its end still yields its extent, the fields before that, and their violations.
"""

from typing import Final, final

from semel.mqtt.codec import check_fixed_flags, check_packet_type, read_frame
from semel.mqtt.packet_types import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    DUP_FLAG,
    MQTT5,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
)
from semel.mqtt.packets.acks import observe_ack
from semel.mqtt.packets.auth import observe_auth
from semel.mqtt.packets.connack import check_connack_flags, observe_connack
from semel.mqtt.packets.connect import check_connect_flags, observe_connect
from semel.mqtt.packets.disconnect import observe_disconnect
from semel.mqtt.packets.fields import check_packet_id, check_reason
from semel.mqtt.packets.publish import check_publish_flags, observe_publish
from semel.mqtt.packets.subscribe import observe_reasons, observe_subscribe
from semel.mqtt.packets.unsubscribe import observe_unsubscribe
from semel.mqtt.properties import check_property, property_identifier
from semel.mqtt.topics import check_topic_filter, check_topic_name
from semel.mqtt.violation import Violation
from semel.mqtt.wire import FieldValue, Reader, check_text


@final
class Observation:
    """One observed packet: its extent `data[start:end]`, its fields, all rules that it breaks.

    Password and authentication data are shown by their length only. If the Remaining Length itself
    is malformed, the end of the packet is unknown, and `end` is the end of the data.
    """

    packet_type: Final[int]
    flags: Final[int]
    version: Final[int]
    start: Final[int]
    end: Final[int]
    fields: Final[tuple[tuple[str, FieldValue], ...]]
    violations: Final[tuple[Violation, ...]]

    def __init__(
        self,
        first: int,
        version: int,
        start: int,
        end: int,
        fields: list[tuple[str, FieldValue]],
        violations: list[Violation],
    ) -> None:
        self.packet_type = first >> 4
        self.flags = first & 15
        self.version = version
        self.start = start
        self.end = end
        self.fields = tuple(
            (name, f"<{len(value)} bytes>" if isinstance(value, bytes) else value)
            if name in ("password", "authentication_data")
            else (name, value)
            for name, value in fields
        )
        for violation in violations:
            violation.version = version
            if not violation.packet_type:
                violation.packet_type = first >> 4
        self.violations = tuple(violations)


def observe(data: bytes, version: int = MQTT5, *, start: int = 0) -> Observation | None:
    """Observe the packet at `start`. Returns None if it is incomplete; never raises `Violation`."""
    if start >= len(data):
        return None
    first = data[start]
    packet_type = first >> 4
    found: list[Violation] = []
    fields: list[tuple[str, FieldValue]] = []
    try:
        check_packet_type(packet_type, version)
    except Violation as violation:
        found.append(violation)
    readable = not found
    check_fixed_flags(packet_type, first & 15, found)
    try:
        _, body, end, long_form = read_frame(data, start)
    except Violation as violation:
        found.append(violation)
        return Observation(first, version, start, len(data), fields, found)
    if not end or end > len(data):
        return None
    reader = Reader(data, body, end, version, found, fields)
    if readable:
        try:
            _observe_body(packet_type, first & 15, reader, found)
        except Violation as violation:
            found.append(violation)
            if packet_type == PUBLISH:
                check_publish_flags(first >> 1 & 3, first & DUP_FLAG != 0, found)
            for name, value in fields:
                _check_field(packet_type, name, value, reader.version, found)
    if long_form:
        reader.check_shortest_form("Remaining Length")
    return Observation(first, reader.version, start, end, fields, found)


def _observe_body(packet_type: int, flags: int, reader: Reader, found: list[Violation]) -> None:
    if packet_type == PUBLISH:
        observe_publish(reader, flags, found)
    elif PUBACK <= packet_type <= PUBCOMP:
        observe_ack(reader, packet_type, found)
    elif packet_type == SUBSCRIBE:
        observe_subscribe(reader, found)
    elif packet_type == SUBACK or packet_type == UNSUBACK:
        observe_reasons(reader, packet_type, found)
    elif packet_type == UNSUBSCRIBE:
        observe_unsubscribe(reader, found)
    elif packet_type == CONNECT:
        observe_connect(reader, found)
    elif packet_type == CONNACK:
        observe_connack(reader, found)
    elif packet_type == DISCONNECT:
        observe_disconnect(reader, found)
    elif packet_type == AUTH:
        observe_auth(reader, found)
    else:
        reader.check_end()


def _check_field(
    packet_type: int, name: str, value: FieldValue, version: int, found: list[Violation]
) -> None:
    """Check one field of a packet that cannot be read to its end."""
    if isinstance(value, str):
        if name in ("topic_name", "will_topic", "response_topic"):
            # An empty topic_name may be valid: its alias may be in the part that was not read.
            if value or name != "topic_name":
                check_topic_name(value, name, found)
        elif name == "topic_filter":
            check_topic_filter(value, found)
        else:
            check_text(value, name, found)
    elif isinstance(value, int):
        if name == "packet_id":
            check_packet_id(value, found)
        elif name == "reason":
            check_reason(packet_type, value, version, found)
        elif name == "connect_flags":
            check_connect_flags(value, found)
        elif name == "connect_acknowledge_flags":
            check_connack_flags(value, found)
        elif property_identifier(name):
            check_property(property_identifier(name), value, found)

"""PUBLISH [3.3]."""

from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.packet_types import DUP_FLAG, MQTT5, PUBLISH, QOS_FLAGS, RETAIN_FLAG
from semel.mqtt.packets.fields import check_packet_id
from semel.mqtt.properties import (
    NO_PROPERTIES,
    PAYLOAD_FORMAT_INDICATOR,
    TOPIC_ALIAS,
    Properties,
    PropertySection,
    check_properties_allowed,
    check_properties_version,
    check_section,
    encode_properties,
    properties_of,
    read_section,
    section_items,
)
from semel.mqtt.rules import (
    DUP_NEEDS_QOS,
    PAYLOAD_IS_UTF8_AS_INDICATED,
    QOS_0_WITHOUT_PACKET_ID,
    QOS_NOT_3,
)
from semel.mqtt.topics import check_topic_name
from semel.mqtt.violation import Violation, report
from semel.mqtt.wire import Reader, Writer

# Payloads of more bytes than this are joined instead of written (see `_with_tail`).
_LONG: Final = 200

# topic_name, packet_id, properties, payload; QoS and flags are in the first byte.
PublishFields = tuple[str, int, PropertySection, bytes]


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class Publish:
    """An application message on one connection. `packet_id` is 0 if and only if the QoS is 0.

    QoS and identifier may be positional arguments: called from Python, a compiled constructor
    takes 0.2 µs longer for two keyword arguments.
    """

    topic_name: Final[str]
    payload: Final[bytes]
    qos: Final[int]
    packet_id: Final[int]
    retain: Final[bool]
    dup: Final[bool]
    properties: Final[Properties]

    def __init__(
        self,
        topic_name: str,
        payload: bytes = b"",
        qos: int = 0,
        packet_id: int = 0,
        *,
        retain: bool = False,
        dup: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        check_publish(topic_name, qos, packet_id, dup, properties.present, None)
        if properties.has(PAYLOAD_FORMAT_INDICATOR) and properties.payload_format_indicator == 1:
            check_payload(payload, PUBLISH, None)
        self.topic_name = topic_name
        self.payload = payload
        self.qos = qos
        self.packet_id = packet_id
        self.retain = retain
        self.dup = dup
        self.properties = properties


def check_publish_flags(qos: int, dup: bool, found: list[Violation] | None) -> None:
    """Check everything that can be wrong with the flags of a PUBLISH."""
    if qos < 0 or qos > 2:
        report(found, Violation(QOS_NOT_3, f"QoS {qos}", PUBLISH))
    if dup and qos == 0:
        report(found, Violation(DUP_NEEDS_QOS, "DUP 1 at QoS 0", PUBLISH))


def check_publish(
    topic_name: str,
    qos: int,
    packet_id: int,
    dup: bool,
    present: int,
    found: list[Violation] | None,
) -> None:
    """Check everything that can be wrong with a PUBLISH, except its payload."""
    check_publish_flags(qos, dup, found)
    if qos == 0:
        if packet_id:
            seen = f"packet_id {packet_id} at QoS 0"
            report(found, Violation(QOS_0_WITHOUT_PACKET_ID, seen, PUBLISH))
    else:
        check_packet_id(packet_id, found)
    if topic_name or not present >> TOPIC_ALIAS & 1:
        check_topic_name(topic_name, "topic_name", found)
    if present:
        check_properties_allowed(PUBLISH, present, found)


def check_payload(payload: bytes, packet_type: int, found: list[Violation] | None) -> None:
    """Check that the payload is UTF-8, as its Payload Format Indicator says [3.3.2.3.2]."""
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError as error:
        seen = f"ill-formed at byte {error.start}"
        report(found, Violation(PAYLOAD_IS_UTF8_AS_INDICATED, seen, packet_type))


def indicates_utf8(section: PropertySection) -> bool:
    """Whether the Payload Format Indicator says that the payload is UTF-8."""
    return (PAYLOAD_FORMAT_INDICATOR, 1) in section_items(section.data)


def read_publish(reader: Reader, flags: int) -> PublishFields:
    """Read the fields of a PUBLISH, unchecked."""
    topic_name = reader.text("topic_name")
    packet_id = reader.two_bytes("packet_id") if flags & QOS_FLAGS else 0
    section = read_section(reader)
    return topic_name, packet_id, section, reader.rest("payload")


def decode_publish(reader: Reader, flags: int) -> Publish:
    topic_name, packet_id, section, payload = read_publish(reader, flags)
    return Publish(
        topic_name,
        payload,
        flags >> 1 & 3,
        packet_id,
        retain=flags & RETAIN_FLAG != 0,
        dup=flags & DUP_FLAG != 0,
        properties=properties_of(section),
    )


def observe_publish(reader: Reader, flags: int, found: list[Violation]) -> None:
    topic_name, packet_id, section, payload = read_publish(reader, flags)
    present = check_section(section, found)
    check_publish(topic_name, flags >> 1 & 3, packet_id, flags & DUP_FLAG != 0, present, found)
    if indicates_utf8(section):
        check_payload(payload, PUBLISH, found)


def encode_publish(packet: Publish, version: int) -> bytes:
    check_properties_version(packet.properties.present, version)
    topic_name = packet.topic_name.encode("utf-8")
    size = 2 + len(topic_name) + len(packet.payload)
    if packet.qos:
        size += 2
    section = b""
    if version == MQTT5:
        section = encode_properties(packet.properties)
        size += len(section)
    writer = Writer()
    flags = packet.qos << 1
    if packet.dup:
        flags |= DUP_FLAG
    if packet.retain:
        flags |= RETAIN_FLAG
    writer.byte(PUBLISH << 4 | flags)
    writer.variable_byte_integer(size, "Remaining Length")
    writer.binary(topic_name)
    if packet.qos:
        writer.two_bytes(packet.packet_id)
    writer.raw(section)
    return _with_tail(writer, packet.payload)


def with_packet_id(head: bytes, packet_id: int, tail: bytes) -> bytes:
    """A PUBLISH from the bytes before its identifier, the identifier, and the bytes after it."""
    writer = Writer()
    writer.raw(head)
    writer.two_bytes(packet_id)
    return _with_tail(writer, tail)


def _with_tail(writer: Writer, tail: bytes) -> bytes:
    # Joining copies a long payload once; a writer that has to grow copies it twice or more.
    if len(tail) > _LONG:
        return writer.value() + tail
    writer.raw(tail)
    return writer.value()

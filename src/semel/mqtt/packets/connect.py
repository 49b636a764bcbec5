"""CONNECT [3.1], with its optional will. A CONNECT names the version by which it is read."""

from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.packet_types import CONNECT, MQTT5, MQTT311, WILL, first_byte
from semel.mqtt.packets.publish import check_payload, indicates_utf8
from semel.mqtt.properties import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
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
from semel.mqtt.rules import (
    AUTHENTICATION_DATA_NEEDS_METHOD,
    CONNECT_RESERVED_FLAG,
    EMPTY_CLIENT_ID_NEEDS_CLEAN_SESSION,
    PASSWORD_NEEDS_USER_NAME,
    PROTOCOL_LEVEL_SUPPORTED,
    PROTOCOL_NAME_IS_MQTT,
    WILL_QOS_NEEDS_WILL,
    WILL_QOS_NOT_3,
    WILL_RETAIN_NEEDS_WILL,
)
from semel.mqtt.topics import check_topic_name, quoted
from semel.mqtt.violation import Violation, report
from semel.mqtt.wire import (
    MAXIMUM_TWO_BYTES,
    Reader,
    Writer,
    check_binary,
    check_integer,
    check_text,
    frame,
)

PROTOCOL_NAME: Final = "MQTT"

# [3.1.2.3] Connect Flags
_RESERVED: Final = 0x01
_CLEAN_START: Final = 0x02
_WILL: Final = 0x04
_WILL_QOS: Final = 0x18
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USER_NAME: Final = 0x80

# topic_name, payload, properties
WillFields = tuple[str, bytes, PropertySection]
# flags, keep_alive, properties, client_id, will, user_name, password
ConnectFields = tuple[int, int, PropertySection, str, WillFields | None, str | None, bytes | None]


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False)
class Will:
    """The message that the server publishes if the client does not disconnect [3.1.2.5]."""

    topic_name: Final[str]
    payload: Final[bytes]
    qos: Final[int]
    retain: Final[bool]
    properties: Final[Properties]

    def __init__(
        self,
        topic_name: str,
        payload: bytes = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        utf8 = properties.payload_format_indicator == 1
        check_will(topic_name, payload, qos, properties.present, utf8, None)
        self.topic_name = topic_name
        self.payload = payload
        self.qos = qos
        self.retain = retain
        # Compact, because a server keeps a will at least as long as the client is connected.
        self.properties = properties.compact()


@final
@mypyc_attr(acyclic=True)
@dataclass(init=False, repr=False)
class Connect:
    """A client's first packet. `clean_start` is 3.1.1's CleanSession."""

    client_id: Final[str]
    version: Final[int]
    clean_start: Final[bool]
    keep_alive: Final[int]
    user_name: Final[str | None]
    password: Final[bytes | None]
    will: Final[Will | None]
    properties: Final[Properties]

    def __init__(
        self,
        client_id: str = "",
        *,
        version: int = MQTT5,
        clean_start: bool = True,
        keep_alive: int = 0,
        user_name: str | None = None,
        password: bytes | None = None,
        will: Will | None = None,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        check_protocol_level(version)
        check_properties_version(properties.present, version)
        if will is not None:
            check_properties_version(will.properties.present, version)
        check_connect(
            version,
            client_id,
            clean_start,
            keep_alive,
            user_name,
            password,
            properties.present,
            None,
        )
        self.client_id = client_id
        self.version = version
        self.clean_start = clean_start
        self.keep_alive = keep_alive
        self.user_name = user_name
        self.password = password
        self.will = will
        self.properties = properties

    def __repr__(self) -> str:
        password = "None" if self.password is None else "<hidden>"
        return (
            f"Connect({self.client_id!r}, version={self.version}, "
            f"clean_start={self.clean_start}, keep_alive={self.keep_alive}, "
            f"user_name={self.user_name!r}, password={password}, will={self.will!r}, "
            f"properties={self.properties!r})"
        )


def check_protocol_name(name: str) -> None:
    """Check the Protocol Name. Raises `Violation` if it is wrong: the rest cannot be read."""
    if name != PROTOCOL_NAME:
        raise Violation(PROTOCOL_NAME_IS_MQTT, quoted(name), CONNECT)


def check_protocol_level(level: int) -> None:
    """Check the version. Raises `Violation` if it is unknown: the rest cannot be read."""
    if level != MQTT311 and level != MQTT5:
        raise Violation(PROTOCOL_LEVEL_SUPPORTED, f"level {level}", CONNECT)


def check_will(
    topic_name: str,
    payload: bytes,
    qos: int,
    present: int,
    utf8: bool,
    found: list[Violation] | None,
) -> None:
    """Check everything that can be wrong with a will."""
    if qos < 0 or qos > 2:
        report(found, Violation(WILL_QOS_NOT_3, f"Will QoS {qos}", CONNECT))
    check_topic_name(topic_name, "will_topic", found)
    check_binary(payload, "will_payload", found)
    check_properties_allowed(WILL, present, found)
    if utf8:
        check_payload(payload, CONNECT, found)


def check_connect_flags(flags: int, found: list[Violation] | None) -> None:
    """Check that the Connect Flags are consistent; a constructor cannot make them inconsistent."""
    if flags & _RESERVED:
        report(found, Violation(CONNECT_RESERVED_FLAG, f"flags 0x{flags:02x}", CONNECT))
    if not flags & _WILL:
        if flags & _WILL_QOS:
            report(found, Violation(WILL_QOS_NEEDS_WILL, f"flags 0x{flags:02x}", CONNECT))
        if flags & _WILL_RETAIN:
            report(found, Violation(WILL_RETAIN_NEEDS_WILL, f"flags 0x{flags:02x}", CONNECT))


def check_connect(
    version: int,
    client_id: str,
    clean_start: bool,
    keep_alive: int,
    user_name: str | None,
    password: bytes | None,
    present: int,
    found: list[Violation] | None,
) -> None:
    """Check everything that can be wrong with a CONNECT, except its will."""
    check_text(client_id, "client_id", found)
    check_integer(keep_alive, MAXIMUM_TWO_BYTES, "keep_alive", found)
    if user_name is not None:
        check_text(user_name, "user_name", found)
    if password is not None:
        check_binary(password, "password", found)
    if version == MQTT311:
        if password is not None and user_name is None:
            seen = "a password and no user name"
            report(found, Violation(PASSWORD_NEEDS_USER_NAME, seen, CONNECT))
        if not client_id and not clean_start:
            seen = "empty ClientId, CleanSession 0"
            report(found, Violation(EMPTY_CLIENT_ID_NEEDS_CLEAN_SESSION, seen, CONNECT))
    check_properties_allowed(CONNECT, present, found)
    if present >> AUTHENTICATION_DATA & 1 and not present >> AUTHENTICATION_METHOD & 1:
        seen = "authentication_data alone"
        report(found, Violation(AUTHENTICATION_DATA_NEEDS_METHOD, seen, CONNECT))


def read_connect(reader: Reader) -> ConnectFields:
    """Read the fields of a CONNECT, unchecked. Sets the reader's version to that of the CONNECT."""
    check_protocol_name(reader.text("protocol_name"))
    level = reader.byte("version")
    check_protocol_level(level)
    reader.version = level
    flags = reader.byte("connect_flags")
    keep_alive = reader.two_bytes("keep_alive")
    section = read_section(reader)
    client_id = reader.text("client_id")
    will: WillFields | None = None
    if flags & _WILL:
        will_section = read_section(reader)
        will_topic = reader.text("will_topic")
        will = (will_topic, reader.binary("will_payload"), will_section)
    user_name = reader.text("user_name") if flags & _USER_NAME else None
    password = reader.binary("password") if flags & _PASSWORD else None
    reader.check_end()
    return flags, keep_alive, section, client_id, will, user_name, password


def decode_connect(reader: Reader) -> Connect:
    flags, keep_alive, section, client_id, will_fields, user_name, password = read_connect(reader)
    check_connect_flags(flags, None)
    will: Will | None = None
    if will_fields is not None:
        topic_name, payload, will_section = will_fields
        will = Will(
            topic_name,
            payload,
            qos=flags >> 3 & 3,
            retain=flags & _WILL_RETAIN != 0,
            properties=properties_of(will_section),
        )
    return Connect(
        client_id,
        version=reader.version,
        clean_start=flags & _CLEAN_START != 0,
        keep_alive=keep_alive,
        user_name=user_name,
        password=password,
        will=will,
        properties=properties_of(section),
    )


def observe_connect(reader: Reader, found: list[Violation]) -> None:
    flags, keep_alive, section, client_id, will, user_name, password = read_connect(reader)
    check_connect_flags(flags, found)
    if will is not None:
        topic_name, payload, will_section = will
        will_present = check_section(will_section, found)
        utf8 = indicates_utf8(will_section)
        check_will(topic_name, payload, flags >> 3 & 3, will_present, utf8, found)
    present = check_section(section, found)
    clean_start = flags & _CLEAN_START != 0
    version = reader.version
    check_connect(version, client_id, clean_start, keep_alive, user_name, password, present, found)


def encode_connect(packet: Connect) -> bytes:
    """[MQTT-3.1.3-1] client id, will properties, topic and payload, user name, password."""
    will = packet.will
    flags = _CLEAN_START if packet.clean_start else 0
    if will is not None:
        flags |= _WILL | will.qos << 3 | (_WILL_RETAIN if will.retain else 0)
    if packet.user_name is not None:
        flags |= _USER_NAME
    if packet.password is not None:
        flags |= _PASSWORD
    writer = Writer()
    writer.text(PROTOCOL_NAME)
    writer.byte(packet.version)
    writer.byte(flags)
    writer.two_bytes(packet.keep_alive)
    if packet.version == MQTT5:
        writer.raw(encode_properties(packet.properties))
    writer.text(packet.client_id)
    if will is not None:
        if packet.version == MQTT5:
            writer.raw(encode_properties(will.properties))
        writer.text(will.topic_name)
        writer.binary(will.payload)
    if packet.user_name is not None:
        writer.text(packet.user_name)
    if packet.password is not None:
        writer.binary(packet.password)
    return frame(first_byte(CONNECT), writer.value())

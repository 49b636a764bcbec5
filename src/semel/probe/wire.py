"""Packets written byte by byte, right or wrong: nothing here checks anything.

Topics, identifiers and texts are bytes, so that ill-formed ones can be written. `version` is the
protocol level, 4 for 3.1.1 and 5 for 5.0; property sections exist in 5.0 only.
"""

from collections.abc import Iterable

MQTT311 = 4
MQTT5 = 5


def number(value: int) -> bytes:
    """A Variable Byte Integer."""
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def text(value: bytes) -> bytes:
    """A string or binary data, with its length before it."""
    return len(value).to_bytes(2, "big") + value


def two(value: int) -> bytes:
    """A Two Byte Integer."""
    return value.to_bytes(2, "big")


def four(value: int) -> bytes:
    """A Four Byte Integer."""
    return value.to_bytes(4, "big")


def frame(first: int, *parts: bytes) -> bytes:
    """A packet with this first byte and the Remaining Length that fits."""
    body = b"".join(parts)
    return bytes([first]) + number(len(body)) + body


def section(version: int, properties: bytes = b"") -> bytes:
    """A property section; nothing in 3.1.1."""
    return number(len(properties)) + properties if version == MQTT5 else b""


def connect(
    version: int,
    client_id: bytes,
    *,
    clean: bool = True,
    keep_alive: int = 60,
    properties: bytes = b"",
    will: tuple[bytes, bytes] | None = None,
    will_qos: int = 0,
    will_retain: bool = False,
    will_properties: bytes = b"",
    user_name: bytes | None = None,
    password: bytes | None = None,
    flags: int | None = None,
    protocol_name: bytes = b"MQTT",
    level: int | None = None,
) -> bytes:
    """A CONNECT. `will` is topic name and payload; `flags` replaces the flags that would fit."""
    fitting = clean << 1
    payload = text(client_id)
    if will is not None:
        fitting |= 0x04 | will_qos << 3 | will_retain << 5
        payload += section(version, will_properties) + text(will[0]) + text(will[1])
    if user_name is not None:
        fitting |= 0x80
        payload += text(user_name)
    if password is not None:
        fitting |= 0x40
        payload += text(password)
    return frame(
        0x10,
        text(protocol_name),
        bytes([version if level is None else level, fitting if flags is None else flags]),
        two(keep_alive),
        section(version, properties),
        payload,
    )


def publish(
    version: int,
    topic_name: bytes,
    payload: bytes = b"x",
    *,
    qos: int = 0,
    packet_id: int = 1,
    dup: bool = False,
    retain: bool = False,
    properties: bytes = b"",
) -> bytes:
    """A PUBLISH; without a packet identifier at QoS 0."""
    return frame(
        0x30 | dup << 3 | qos << 1 | retain,
        text(topic_name),
        two(packet_id) if qos else b"",
        section(version, properties),
        payload,
    )


def puback(packet_id: int) -> bytes:
    """A PUBACK in the short form, which both versions have."""
    return frame(0x40, two(packet_id))


def pubrec(packet_id: int) -> bytes:
    """A PUBREC in the short form."""
    return frame(0x50, two(packet_id))


def pubrel(packet_id: int) -> bytes:
    """A PUBREL in the short form."""
    return frame(0x62, two(packet_id))


def pubcomp(packet_id: int) -> bytes:
    """A PUBCOMP in the short form."""
    return frame(0x70, two(packet_id))


def subscribe(
    version: int,
    filters: Iterable[tuple[bytes, int]],
    *,
    packet_id: int = 1,
    properties: bytes = b"",
) -> bytes:
    """A SUBSCRIBE of topic filters, each with its options byte (the QoS in 3.1.1)."""
    entries = b"".join(text(name) + bytes([options]) for name, options in filters)
    return frame(0x82, two(packet_id), section(version, properties), entries)


def unsubscribe(
    version: int, filters: Iterable[bytes], *, packet_id: int = 1, properties: bytes = b""
) -> bytes:
    """An UNSUBSCRIBE of topic filters."""
    entries = b"".join(text(name) for name in filters)
    return frame(0xA2, two(packet_id), section(version, properties), entries)


def pingreq() -> bytes:
    return b"\xc0\x00"


def disconnect(version: int, reason: int | None = None, properties: bytes | None = None) -> bytes:
    """A DISCONNECT, in its short form unless a reason or properties are given."""
    if version != MQTT5 or (reason is None and properties is None):
        return b"\xe0\x00"
    rest = b"" if properties is None else section(version, properties)
    return frame(0xE0, bytes([reason or 0]), rest)


def auth(reason: int, properties: bytes = b"") -> bytes:
    """An AUTH (5.0)."""
    return frame(0xF0, bytes([reason]), section(MQTT5, properties))


# --- properties, each with its identifier ---


def byte_property(identifier: int, value: int) -> bytes:
    return bytes([identifier, value])


def two_property(identifier: int, value: int) -> bytes:
    return bytes([identifier]) + two(value)


def four_property(identifier: int, value: int) -> bytes:
    return bytes([identifier]) + four(value)


def text_property(identifier: int, value: bytes) -> bytes:
    return bytes([identifier]) + text(value)


def user_property(name: bytes, value: bytes) -> bytes:
    return b"\x26" + text(name) + text(value)


def subscription_identifier(value: int) -> bytes:
    return b"\x0b" + number(value)

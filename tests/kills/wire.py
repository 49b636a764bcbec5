"""MQTT by itself: as much encoding and decoding as the raw clients of the kills need.

Nothing here comes from semel: a client that used our encoder, decoder or session would make our
mistakes with us, and its account would hide them.
"""

from typing import NamedTuple

V311 = 4
V5 = 5

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 2, 3, 4, 5, 6, 7
SUBACK, UNSUBACK, PINGRESP, DISCONNECT = 9, 11, 13, 14

# First bytes of what a client sends.
ACKNOWLEDGE = {PUBACK: 0x40, PUBREC: 0x50, PUBREL: 0x62, PUBCOMP: 0x70}
NAMES = {
    CONNACK: "CONNACK",
    PUBLISH: "PUBLISH",
    PUBACK: "PUBACK",
    PUBREC: "PUBREC",
    PUBREL: "PUBREL",
    PUBCOMP: "PUBCOMP",
    SUBACK: "SUBACK",
    UNSUBACK: "UNSUBACK",
    PINGRESP: "PINGRESP",
    DISCONNECT: "DISCONNECT",
}

# Properties of 5.0 [2.2.2.2], as far as we send or look at them.
SESSION_EXPIRY, WILL_DELAY, RECEIVE_MAXIMUM = 0x11, 0x18, 0x21
TOPIC_ALIAS_MAXIMUM, TOPIC_ALIAS, USER_PROPERTY = 0x22, 0x23, 0x26
# Their sizes; 0: text or binary data with its length before it.
SIZES = {1: 1, 2: 4, 3: 0, 8: 0, 9: 0, 17: 4, 18: 0, 19: 2, 21: 0, 22: 0, 23: 1, 24: 4, 25: 1}
SIZES |= {26: 0, 28: 0, 31: 0, 33: 2, 34: 2, 35: 2, 36: 1, 37: 1, 39: 4, 40: 1, 41: 1, 42: 1}
SUBSCRIPTION_IDENTIFIER = 0x0B

Values = dict[int, list[bytes]]


class BadPacket(Exception):
    """The broker sent what this client cannot read."""


class Message(NamedTuple):
    """A PUBLISH as it came."""

    topic: str
    payload: bytes
    qos: int
    dup: bool
    retain: bool
    packet_id: int
    properties: Values


class Will(NamedTuple):
    """What a CONNECT may carry."""

    topic: str
    payload: bytes
    qos: int
    delay: int = 0


def variable(value: int) -> bytes:
    """A Variable Byte Integer."""
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def string(value: str | bytes) -> bytes:
    """Bytes with their length before them."""
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(2, "big") + data


def packet(first: int, *parts: bytes) -> bytes:
    """A whole control packet."""
    body = b"".join(parts)
    return bytes([first]) + variable(len(body)) + body


def number(identifier: int, value: int) -> bytes:
    """A property that is a number."""
    return bytes([identifier]) + value.to_bytes(SIZES[identifier], "big")


def user_property(name: str, value: str) -> bytes:
    return bytes([USER_PROPERTY]) + string(name) + string(value)


def section(version: int, properties: bytes) -> bytes:
    """A property section; 3.1.1 has none."""
    return variable(len(properties)) + properties if version == V5 else b""


def connect(
    client_id: str,
    version: int,
    *,
    clean: bool,
    properties: bytes = b"",
    will: Will | None = None,
    user: str = "",
) -> bytes:
    """A CONNECT without Keep Alive: a connection ends when a process ends, never by time.

    A user has its name as its password.
    """
    flags = 0x02 if clean else 0
    rest = b""
    if will is not None:
        flags |= 0x04 | will.qos << 3
        said = number(WILL_DELAY, will.delay) if will.delay else b""
        rest = section(version, said) + string(will.topic) + string(will.payload)
    if user:
        flags |= 0xC0
        rest += string(user) + string(user)
    head = string("MQTT") + bytes([version, flags, 0, 0])
    return packet(0x10, head, section(version, properties), string(client_id), rest)


def publish(
    topic: str,
    payload: bytes,
    version: int,
    *,
    qos: int,
    packet_id: int,
    dup: bool = False,
    retain: bool = False,
    properties: bytes = b"",
) -> bytes:
    first = 0x30 | dup << 3 | qos << 1 | retain
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    return packet(first, string(topic), identifier, section(version, properties), payload)


def acknowledge(kind: int, packet_id: int) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP with reason code 0, which both versions write alike."""
    return packet(ACKNOWLEDGE[kind], packet_id.to_bytes(2, "big"))


def subscribe(packet_id: int, filters: list[tuple[str, int]], version: int) -> bytes:
    wanted = b"".join(string(name) + bytes([qos]) for name, qos in filters)
    return packet(0x82, packet_id.to_bytes(2, "big"), section(version, b""), wanted)


def unsubscribe(packet_id: int, filters: list[str], version: int) -> bytes:
    wanted = b"".join(string(name) for name in filters)
    return packet(0xA2, packet_id.to_bytes(2, "big"), section(version, b""), wanted)


def disconnect() -> bytes:
    return b"\xe0\x00"


def read_variable(data: bytes, at: int) -> tuple[int, int]:
    """A Variable Byte Integer and where it ends; -1 for the end if bytes are missing."""
    value = shift = 0
    for end in range(at, at + 4):
        if end >= len(data):
            return 0, -1
        value |= (data[end] & 127) << shift
        if data[end] < 128:
            return value, end + 1
        shift += 7
    raise BadPacket(f"a length of more than four bytes: {data[at : at + 4].hex()}")


class Splitter:
    """Cuts what comes from a socket into packets."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """First byte and body of each packet that is complete now."""
        data = self.rest + data
        packets = []
        at = 0
        while len(data) - at >= 2:
            length, body = read_variable(data, at + 1)
            if body < 0 or len(data) - body < length:
                break
            packets.append((data[at], data[body : body + length]))
            at = body + length
        self.rest = data[at:]
        return packets


def read_properties(data: bytes, at: int) -> tuple[Values, int]:
    """The values of a property section by identifier, and where it ends."""
    length, at = read_variable(data, at)
    end = at + length
    if at < 0 or end > len(data):
        raise BadPacket(f"a property section past its packet: {data.hex()}")
    found: Values = {}
    while at < end:
        identifier = data[at]
        at += 1
        if identifier == USER_PROPERTY:
            middle = at + 2 + int.from_bytes(data[at : at + 2], "big")
            stop = middle + 2 + int.from_bytes(data[middle : middle + 2], "big")
            value = data[at + 2 : middle] + b"=" + data[middle + 2 : stop]
        elif identifier == SUBSCRIPTION_IDENTIFIER:
            _, stop = read_variable(data, at)
            value = data[at:stop]
        elif identifier not in SIZES:
            raise BadPacket(f"property {identifier} in {data.hex()}")
        else:
            size = SIZES[identifier]
            stop = at + (size or 2 + int.from_bytes(data[at : at + 2], "big"))
            value = data[at if size else at + 2 : stop]
        if stop > end:
            raise BadPacket(f"property {identifier} past its section: {data.hex()}")
        found.setdefault(identifier, []).append(value)
        at = stop
    return found, end


def read_publish(first: int, body: bytes, version: int) -> Message:
    end = 2 + int.from_bytes(body[:2], "big")
    topic = body[2:end].decode()
    qos = first >> 1 & 3
    packet_id = 0
    if qos:
        packet_id = int.from_bytes(body[end : end + 2], "big")
        end += 2
        if not packet_id:
            raise BadPacket(f"a PUBLISH at QoS {qos} with packet identifier 0")
    values: Values = {}
    if version == V5:
        values, end = read_properties(body, end)
    dup, retain = bool(first & 8), bool(first & 1)
    return Message(topic, body[end:], qos, dup, retain, packet_id, values)


def read_acknowledgement(body: bytes) -> tuple[int, int]:
    """Packet identifier and reason code."""
    return int.from_bytes(body[:2], "big"), body[2] if len(body) > 2 else 0


def read_codes(body: bytes, version: int) -> tuple[int, bytes]:
    """Packet identifier and codes of a SUBACK, or of an UNSUBACK in 5.0."""
    at = read_properties(body, 2)[1] if version == V5 else 2
    return int.from_bytes(body[:2], "big"), body[at:]


def read_connack(body: bytes, version: int) -> tuple[bool, int, Values]:
    """Session Present, the code, and what 5.0 says besides."""
    values = read_properties(body, 2)[0] if version == V5 and len(body) > 2 else {}
    return bool(body[0] & 1), body[1], values

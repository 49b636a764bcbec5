"""Bytes to packets and back, for both versions.

    decode(data, version)    the packet at the start of `data`, or None while it is incomplete
    encode(packet, version)  the bytes of a packet
    Decoder                  packets from a byte stream; returns a peer's violation as a value

The module of each packet type reads, checks and writes its body. This module has the fixed header,
the dispatch by type, and the rules about the bytes alone. `observation.py` finds all violations of
a packet, not only the first, with the same readers and the same checks.
"""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from semel.mqtt.packet_types import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    FIXED_FLAGS,
    MQTT5,
    PACKET_NAMES,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    VARYING_FLAGS,
    first_byte,
)
from semel.mqtt.packets.acks import PubAck, PubComp, PubRec, PubRel, decode_ack, encode_ack
from semel.mqtt.packets.auth import Auth, decode_auth, encode_auth
from semel.mqtt.packets.connack import ConnAck, decode_connack, encode_connack
from semel.mqtt.packets.connect import Connect, decode_connect, encode_connect
from semel.mqtt.packets.disconnect import Disconnect, decode_disconnect, encode_disconnect
from semel.mqtt.packets.ping import PingReq, PingResp
from semel.mqtt.packets.publish import Publish, decode_publish, encode_publish
from semel.mqtt.packets.subscribe import (
    SubAck,
    Subscribe,
    decode_suback,
    decode_subscribe,
    encode_reasons,
    encode_subscribe,
)
from semel.mqtt.packets.unsubscribe import (
    UnsubAck,
    Unsubscribe,
    decode_unsuback,
    decode_unsubscribe,
    encode_unsubscribe,
)
from semel.mqtt.rules import FIXED_HEADER_FLAGS, PACKET_SIZE_WITHIN_MAXIMUM, PACKET_TYPE_KNOWN
from semel.mqtt.violation import Violation, report
from semel.mqtt.wire import (
    ANY_NUMBER_OF_ITEMS,
    MAXIMUM_VARIABLE_BYTE_INTEGER,
    Reader,
    check_variable_byte_integer,
    frame,
)

Packet = (
    Connect
    | ConnAck
    | Publish
    | PubAck
    | PubRec
    | PubRel
    | PubComp
    | Subscribe
    | SubAck
    | Unsubscribe
    | UnsubAck
    | PingReq
    | PingResp
    | Disconnect
    | Auth
)

# The first byte, four bytes of Remaining Length, and the longest body that they can announce.
LARGEST_PACKET: Final = 5 + MAXIMUM_VARIABLE_BYTE_INTEGER

# How many bytes of a packet that breaks a rule are kept, to be shown.
SHOWN_BYTES: Final = 64

# An upper bound for the bytes of a PUBLISH without properties besides its topic and payload.
_PUBLISH_FRAMING: Final = 16

# First byte, start of the body, end of the packet, whether the Remaining Length took more bytes
# than needed. The end may be beyond the received bytes; it is 0 while the length is incomplete.
Frame = tuple[int, int, int, bool]


def check_packet_type(packet_type: int, version: int) -> None:
    """Check that `version` has this packet type."""
    if packet_type == 0 or (packet_type == AUTH and version != MQTT5):
        raise Violation(PACKET_TYPE_KNOWN, f"type {packet_type}")


def check_fixed_flags(packet_type: int, flags: int, found: list[Violation] | None) -> None:
    """Check the flags of the first byte; only those of PUBLISH vary."""
    expected = FIXED_FLAGS[packet_type]
    if flags != expected and expected != VARYING_FLAGS:
        seen = f"{PACKET_NAMES[packet_type]} with flags {flags:04b}"
        report(found, Violation(FIXED_HEADER_FLAGS, seen, packet_type))


def check_packet_size(size: int, maximum: int, found: list[Violation] | None) -> None:
    """Check that a whole packet is not larger than its receiver accepts."""
    if size > maximum:
        seen = f"{size} bytes, at most {maximum}"
        report(found, Violation(PACKET_SIZE_WITHIN_MAXIMUM, seen))


def packet_type_of(packet: Packet) -> int:
    """The packet type, as in the fixed header."""
    if isinstance(packet, Publish):
        return PUBLISH
    if isinstance(packet, PubAck):
        return PUBACK
    if isinstance(packet, PubRec):
        return PUBREC
    if isinstance(packet, PubRel):
        return PUBREL
    if isinstance(packet, PubComp):
        return PUBCOMP
    if isinstance(packet, PingReq):
        return PINGREQ
    if isinstance(packet, PingResp):
        return PINGRESP
    if isinstance(packet, Subscribe):
        return SUBSCRIBE
    if isinstance(packet, SubAck):
        return SUBACK
    if isinstance(packet, Unsubscribe):
        return UNSUBSCRIBE
    if isinstance(packet, UnsubAck):
        return UNSUBACK
    if isinstance(packet, Connect):
        return CONNECT
    if isinstance(packet, ConnAck):
        return CONNACK
    if isinstance(packet, Disconnect):
        return DISCONNECT
    return AUTH


def read_frame(data: bytes, start: int) -> Frame:
    """Read the fixed header at `start`, as far as it has been received [2.1]."""
    at: i64 = start + 1
    available: i64 = len(data)
    if at > available:
        return 0, 0, 0, False
    value: i64 = 0
    shift: i64 = 0
    while True:
        if at >= available:
            return data[start], 0, 0, False
        digit: i64 = data[at]
        at += 1
        value |= (digit & 127) << shift
        if digit < 128:
            return data[start], at, at + value, digit == 0 and shift > 0
        shift += 7
        if shift == 28:
            check_variable_byte_integer(MAXIMUM_VARIABLE_BYTE_INTEGER + 1, "Remaining Length")


def decode(
    data: bytes,
    version: int = MQTT5,
    *,
    start: int = 0,
    maximum_packet_size: int = LARGEST_PACKET,
    maximum_items: int = ANY_NUMBER_OF_ITEMS,
) -> tuple[Packet, int] | None:
    """The packet at `start` and where it ends, or None if it is incomplete.

    Raises `Violation` as soon as a rule is broken: for a packet larger than `maximum_packet_size`,
    when its length is known, even if its body is incomplete; for one with more than
    `maximum_items` topic filters and properties, when the limit is exceeded. A CONNECT is read by
    the version that it names.
    """
    if start >= len(data):
        return None
    first = data[start]
    packet_type = first >> 4
    reader: Reader | None = None
    try:
        # Every version has PUBLISH, and all values of its flags are checked in its constructor.
        if packet_type != PUBLISH:
            check_packet_type(packet_type, version)
            check_fixed_flags(packet_type, first & 15, None)
        _, body, end, long_form = read_frame(data, start)
        if not end:
            return None
        check_packet_size(end - start, maximum_packet_size, None)
        if end > len(data):
            return None
        reader = Reader(data, body, end, version, None, None, maximum_items)
        packet = _decode_body(packet_type, first & 15, reader)
        if long_form:
            reader.check_shortest_form("Remaining Length")
    except Violation as violation:
        violation.version = version if reader is None else reader.version
        if not violation.packet_type:
            violation.packet_type = packet_type
        raise
    return packet, end


def _decode_body(packet_type: int, flags: int, reader: Reader) -> Packet:
    if packet_type == PUBLISH:
        return decode_publish(reader, flags)
    if PUBACK <= packet_type <= PUBCOMP:
        return decode_ack(reader, packet_type)
    if packet_type == PINGREQ:
        reader.check_end()
        return PingReq()
    if packet_type == PINGRESP:
        reader.check_end()
        return PingResp()
    if packet_type == SUBSCRIBE:
        return decode_subscribe(reader)
    if packet_type == SUBACK:
        return decode_suback(reader)
    if packet_type == UNSUBSCRIBE:
        return decode_unsubscribe(reader)
    if packet_type == UNSUBACK:
        return decode_unsuback(reader)
    if packet_type == CONNECT:
        return decode_connect(reader)
    if packet_type == CONNACK:
        return decode_connack(reader)
    if packet_type == DISCONNECT:
        return decode_disconnect(reader)
    return decode_auth(reader)


def encode(packet: Packet, version: int = MQTT5) -> bytes:
    """The bytes of a packet. Raises `Violation` if `version` cannot express it.

    A CONNECT is written in the version that it names.
    """
    try:
        return _encode(packet, version)
    except Violation as violation:
        violation.version = version
        violation.packet_type = packet_type_of(packet)
        raise


def _encode(packet: Packet, version: int) -> bytes:
    if isinstance(packet, Publish):
        return encode_publish(packet, version)
    if isinstance(packet, PubAck):
        return encode_ack(PUBACK, packet.packet_id, packet.reason, packet.properties, version)
    if isinstance(packet, PubRec):
        return encode_ack(PUBREC, packet.packet_id, packet.reason, packet.properties, version)
    if isinstance(packet, PubRel):
        return encode_ack(PUBREL, packet.packet_id, packet.reason, packet.properties, version)
    if isinstance(packet, PubComp):
        return encode_ack(PUBCOMP, packet.packet_id, packet.reason, packet.properties, version)
    if isinstance(packet, PingReq):
        return frame(first_byte(PINGREQ), b"")
    if isinstance(packet, PingResp):
        return frame(first_byte(PINGRESP), b"")
    if isinstance(packet, Subscribe):
        return encode_subscribe(packet, version)
    if isinstance(packet, SubAck):
        return encode_reasons(SUBACK, packet.packet_id, packet.reasons, packet.properties, version)
    if isinstance(packet, Unsubscribe):
        return encode_unsubscribe(packet, version)
    if isinstance(packet, UnsubAck):
        return encode_reasons(
            UNSUBACK, packet.packet_id, packet.reasons, packet.properties, version
        )
    if isinstance(packet, Connect):
        return encode_connect(packet)
    if isinstance(packet, ConnAck):
        return encode_connack(packet, version)
    if isinstance(packet, Disconnect):
        return encode_disconnect(packet, version)
    check_packet_type(AUTH, version)
    return encode_auth(packet)


def publish_fits(packet: Publish, version: int, maximum: int) -> bool:
    """Whether a PUBLISH takes at most `maximum` bytes [MQTT-3.1.2-24]."""
    if maximum == LARGEST_PACKET:
        return True
    if not packet.properties.present:
        # A character takes at most four bytes, so that most packets need not be encoded to know.
        if len(packet.topic_name) * 4 + len(packet.payload) + _PUBLISH_FRAMING <= maximum:
            return True
    return len(encode(packet, version)) <= maximum


@final
@mypyc_attr(acyclic=True)
class Decoder:
    """Decodes a byte stream, received in pieces of any size, into packets.

    `receive` never raises for what a peer sends. After it has returned a `Violation`, it ignores
    all further bytes, because it cannot know where the next packet begins. It buffers at most one
    incomplete packet, of at most `maximum_packet_size` bytes, or until CONNECT of at most
    `before_connect` bytes (0: `maximum_packet_size` applies). `maximum_items` limits the topic
    filters and properties of one packet, because each costs more than its bytes.
    """

    version: int
    maximum_packet_size: int
    before_connect: int
    maximum_items: int
    # Counts packets that were incomplete at the end of the received bytes (a packet counts once
    # while its header is incomplete, and once more while its body is); the size of the last such
    # packet, 0 while its header is incomplete.
    begun: int
    needed: int
    # Received bytes that `next` decodes, and the position of the next packet in them.
    _data: bytes
    _at: int
    # The bytes of an incomplete packet, if there is one.
    _buffer: bytearray | None
    # The first bytes of the packet that broke a rule.
    refused: bytes
    _broken: bool

    def __init__(
        self,
        version: int = MQTT5,
        *,
        maximum_packet_size: int = LARGEST_PACKET,
        before_connect: int = 0,
        maximum_items: int = ANY_NUMBER_OF_ITEMS,
    ) -> None:
        self.version = version
        self.maximum_packet_size = maximum_packet_size
        self.before_connect = before_connect
        self.maximum_items = maximum_items
        self._data = b""
        self._at = 0
        self.begun = 0
        self.needed = 0
        self._buffer = None
        self.refused = b""
        self._broken = False

    @property
    def unfinished(self) -> int:
        """How many bytes of an incomplete packet are kept."""
        return 0 if self._buffer is None else len(self._buffer)

    def receive(self, data: bytes) -> list[Packet | Violation]:
        """The packets that are now complete. A CONNECT sets the version for later packets."""
        packets: list[Packet | Violation] = []
        self.feed(data)
        while True:
            packet = self.next()
            if packet is None:
                return packets
            packets.append(packet)

    def feed(self, data: bytes) -> None:
        """Add received bytes. The caller must then call `next` until it returns None."""
        if self._broken:
            return
        if self._at < len(self._data):
            # The caller has not read all earlier packets, or has moved back to one of them.
            data = self._data[self._at :] + data
        if self._buffer is not None:
            self._buffer += data
            if len(self._buffer) < self.needed:
                return
            data = bytes(self._buffer)
            self._buffer = None
        self._data = data
        self._at = 0

    def give_up(self) -> None:
        """Discard the buffered bytes, and ignore all further ones."""
        self._broken = True
        self._buffer = None
        self._data = b""
        self._at = 0

    def has_unread(self) -> bool:
        """Whether there are bytes that `next` has not read."""
        return self._at < len(self._data)

    @property
    def position(self) -> int:
        """Where the next packet begins in the received bytes."""
        return self._at

    def unread(self) -> tuple[bytes, int]:
        """The received bytes and the position of the next packet, for a caller that processes
        ordinary packets without decoding them."""
        return self._data, self._at

    def first_bytes(self, position: int) -> bytes:
        """The first bytes of the packet at a position, which `next` has read, or could not."""
        end = self._at if self._at > position else len(self._data)
        return self._data[position : min(end, position + SHOWN_BYTES)]

    def move_to(self, position: int) -> None:
        """Let `next` read from `position`, where a packet begins or the received bytes end."""
        self._at = position

    def next(self) -> Packet | Violation | None:
        """The next packet, or None if it is not complete."""
        if self._at >= len(self._data):
            self._data = b""
            self._at = 0
            return None
        try:
            decoded = decode(
                self._data,
                self.version,
                start=self._at,
                maximum_packet_size=self.before_connect or self.maximum_packet_size,
                maximum_items=self.maximum_items,
            )
        except Violation as violation:
            self._broken = True
            self.refused = self.first_bytes(self._at)
            self._data = b""
            return violation
        if decoded is None:
            end = read_frame(self._data, self._at)[2]
            self.begun += 1
            self.needed = end - self._at if end else 0
            self._buffer = bytearray(self._data[self._at :])
            self._data = b""
            self._at = 0
            return None
        packet, self._at = decoded
        if isinstance(packet, Connect):
            self.version = packet.version
            self.before_connect = 0
        return packet

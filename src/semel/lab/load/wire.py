"""The packets of a load, all encoded by `semel.mqtt.encode`.

The PUBLISH packets of a load have the same length. So packet boundaries follow from a division, and
columns of bytes, such as packet identifiers, from slices with a stride.

A payload begins with a stamp of 16 bytes: the message id (lane and counter in one number), and the
time at which it was sent, in nanoseconds of the machine's monotonic clock. `StampedPackets` writes
topic, packet identifier and stamp into prepared packets.
"""

import time
from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import Final, Protocol

from semel.lab.load.description import Load
from semel.mqtt import (
    MQTT5,
    NO_PROPERTIES,
    Connect,
    Disconnect,
    PingReq,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    encode,
)
from semel.mqtt.properties import AUTHENTICATION_DATA, AUTHENTICATION_METHOD
from semel.mqtt.reasons import NO_MATCHING_SUBSCRIBERS

# A successful acknowledgement, in both versions: first byte, length 2, packet identifier.
ACK_SIZE: Final = 4
PUBACK, PUBREC, PUBREL, PUBCOMP = (encode(kind(1))[0] for kind in (PubAck, PubRec, PubRel, PubComp))
PINGREQ: Final = encode(PingReq())
LARGEST_PACKET_ID: Final = 65_535

# A stamp: message id (lane << COUNTER_BITS | counter), and the time.
STAMP: Final = Struct(">QQ")
COUNTER_BITS: Final = 40
COUNTER: Final = (1 << COUNTER_BITS) - 1

# Bytes per block of a source; a block has at least one packet.
BLOCK: Final = 1 << 18


@dataclass(frozen=True)
class PacketLayout:
    """The layout of a load's PUBLISH packets as they are delivered."""

    qos: int
    size: int
    # First byte and Remaining Length.
    head: bytes
    topic_at: int
    # The position of the packet identifier, if there is one.
    id_at: int
    payload_at: int


def layout_of(version: int, topic_name: str, payload: int, qos: int) -> PacketLayout:
    """The layout of packets with a topic and a payload of these lengths."""
    packet = encode(Publish(topic_name, bytes(payload), qos, 1 if qos else 0), version)
    payload_at = len(packet) - payload
    # The payload follows topic, packet identifier and (5.0) an empty property section.
    id_at = payload_at - (3 if version == MQTT5 else 2)
    topic_at = (id_at if qos else id_at + 2) - len(topic_name.encode())
    return PacketLayout(qos, len(packet), packet[: topic_at - 2], topic_at, id_at, payload_at)


def encode_connect(
    version: int,
    client_id: str,
    receive_maximum: int,
    user_name: str | None = None,
    password: bytes | None = None,
    *,
    authentication: tuple[str, bytes] | None = None,
) -> bytes:
    """CONNECT with a clean session and without keep alive.

    `authentication` is the method of 5.0 and its first data.
    """
    properties = Properties(receive_maximum=receive_maximum) if version == MQTT5 else NO_PROPERTIES
    if authentication is not None:
        method, data = authentication
        properties = Properties(
            [
                *properties.items,
                (AUTHENTICATION_METHOD, method),
                (AUTHENTICATION_DATA, data),
            ]
        )
    packet = Connect(
        client_id, version=version, user_name=user_name, password=password, properties=properties
    )
    return encode(packet, version)


def encode_subscribe(version: int, topic_filters: list[str], qos: int) -> bytes:
    """SUBSCRIBE to these filters at one QoS."""
    subscriptions = [Subscription(topic_filter, qos) for topic_filter in topic_filters]
    return encode(Subscribe(1, subscriptions), version)


def encode_disconnect(version: int) -> bytes:
    """DISCONNECT."""
    return encode(Disconnect(), version)


@cache
def encode_acks(kind: int, cycle: int) -> bytes:
    """Acknowledgements in the order of a publisher's messages, for two cycles of its ids."""
    acks = b"".join(
        bytes((kind, 2)) + packet_id.to_bytes(2, "big") for packet_id in range(1, cycle + 1)
    )
    return acks * 2


def plain_acks(data: bytes, at: int) -> tuple[bytes, int]:
    """Successful acknowledgements of one length, as ACK_SIZE bytes each, and where they end.

    Empty, and `at`, if there is anything else among them. A fifth byte is the reason code of a 5.0
    broker for "no matching subscribers" [3.4.2.1].
    """
    size = 2 + data[at + 1] if at + 1 < len(data) else 0
    if size not in (ACK_SIZE, ACK_SIZE + 1):
        return b"", at
    count = (len(data) - at) // size
    end = at + count * size
    if data[at + 1 : end : size].count(size - 2) != count:
        return b"", at
    if size == ACK_SIZE:
        return data[at:end], end
    if data[at + 4 : end : size].count(NO_MATCHING_SUBSCRIBERS) != count:
        return b"", at
    acks = bytearray(b"\0\2\0\0" * count)
    for offset in (0, 2, 3):
        acks[offset::ACK_SIZE] = data[at + offset : end : size]
    return bytes(acks), end


class PacketSource(Protocol):
    """The packets of a publisher. Their identifiers, if any, repeat 1 … `cycle`."""

    cycle: int

    def take(self, limit: int) -> tuple[memoryview, int]:
        """The next packets, at least one and at most `limit`, and their number.

        The caller must send or copy them before it takes more.
        """
        ...


class StampedPackets:
    """The messages of one publisher, each with its own stamp."""

    def __init__(self, load: Load, prefix: str, publisher: int) -> None:
        topics = load.written_by(publisher)
        names = [load.topic_name(prefix, topic).encode() for topic in topics]
        layout = layout_of(load.version, names[0].decode(), load.payload, load.qos)
        packet = encode(
            Publish(
                names[0].decode(),
                bytes(load.payload),
                load.qos,
                1 if load.qos else 0,
                retain=load.retain,
            ),
            load.version,
        )
        self.cycle = LARGEST_PACKET_ID
        self._names = names
        self._message_ids = [load.lane(topic, publisher) << COUNTER_BITS for topic in topics]
        # Topic, packet identifier, an empty property section (5.0), stamp.
        self._qos = load.qos
        identifier = "H" if load.qos else ""
        properties = "x" if load.version == MQTT5 else ""
        self._fields = Struct(f">{len(names[0])}s{identifier}{properties}QQ")
        self._size = layout.size
        self._topic_at = layout.topic_at
        self._count = max(1, BLOCK // layout.size)
        self._block = bytearray(packet * self._count)
        self._view = memoryview(self._block)
        self._turn = 0
        self._packet_id = 0

    def take(self, limit: int) -> tuple[memoryview, int]:
        count = min(limit, self._count)
        names, message_ids, pack = self._names, self._message_ids, self._fields.pack_into
        block, at, turn = self._block, self._topic_at, self._turn
        now = time.monotonic_ns()
        for _ in range(count):
            message_id = message_ids[turn]
            message_ids[turn] = message_id + 1
            if self._qos:
                self._packet_id = self._packet_id % LARGEST_PACKET_ID + 1
                pack(block, at, names[turn], self._packet_id, message_id, now)
            else:
                pack(block, at, names[turn], message_id, now)
            turn = (turn + 1) % len(names)
            at += self._size
        self._turn = turn
        return self._view[: count * self._size], count


def encode_acks_of(kind: int, publishes: bytes, layout: PacketLayout) -> bytearray:
    """An acknowledgement for each packet of this run."""
    answer = bytearray(bytes((kind, 2, 0, 0)) * (len(publishes) // layout.size))
    answer[2::4] = publishes[layout.id_at :: layout.size]
    answer[3::4] = publishes[layout.id_at + 1 :: layout.size]
    return answer

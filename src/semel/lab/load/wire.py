"""The bytes of a load, all of them made by `semel.mqtt.encode`.

The PUBLISH packets of a load have one length. So what was received is told apart by dividing, and
columns of bytes, such as packet identifiers, are cut out by slicing with a stride.

A payload begins with a mark of 16 bytes: lane and counter in one number, then the time at which it
left, in nanoseconds of the clock that all processes of a machine share. A `Stamped` source writes
topic, packet identifier and mark into packets that otherwise stay as they are.
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
from semel.mqtt.reasons import NO_MATCHING_SUBSCRIBERS

# An acknowledgement of success, in both versions: first byte, length 2, packet identifier.
ACK_SIZE: Final = 4
PUBACK, PUBREC, PUBREL, PUBCOMP = (encode(kind(1))[0] for kind in (PubAck, PubRec, PubRel, PubComp))
PINGREQ: Final = encode(PingReq())
LARGEST_PACKET_ID: Final = 65_535

# A mark: lane << COUNTER_BITS | counter, and the time.
MARK: Final = Struct(">QQ")
COUNTER_BITS: Final = 40
COUNTER: Final = (1 << COUNTER_BITS) - 1

# Bytes that a source holds, at least one packet.
BLOCK: Final = 1 << 18


@dataclass(frozen=True)
class PacketLayout:
    """How the PUBLISH packets of a load look when they are delivered."""

    qos: int
    size: int
    # First byte and Remaining Length.
    head: bytes
    topic_at: int
    # Where the packet identifier is, if there is one.
    id_at: int
    payload_at: int


def layout_of(version: int, topic_name: str, payload: int, qos: int) -> PacketLayout:
    """The layout of packets with such a topic and so many bytes of payload."""
    packet = encode(Publish(topic_name, bytes(payload), qos, 1 if qos else 0), version)
    payload_at = len(packet) - payload
    # Before it a property section of length 0, a packet identifier, and the topic.
    id_at = payload_at - (3 if version == MQTT5 else 2)
    topic_at = (id_at if qos else id_at + 2) - len(topic_name.encode())
    return PacketLayout(qos, len(packet), packet[: topic_at - 2], topic_at, id_at, payload_at)


def encode_connect(
    version: int,
    client_id: str,
    receive_maximum: int,
    user_name: str | None = None,
    password: bytes | None = None,
) -> bytes:
    """A clean session, no Keep Alive."""
    properties = Properties(receive_maximum=receive_maximum) if version == MQTT5 else NO_PROPERTIES
    packet = Connect(
        client_id, version=version, user_name=user_name, password=password, properties=properties
    )
    return encode(packet, version)


def encode_subscribe(version: int, topic_filters: list[str], qos: int) -> bytes:
    """All of these filters in one SUBSCRIBE, at one QoS."""
    subscriptions = [Subscription(topic_filter, qos) for topic_filter in topic_filters]
    return encode(Subscribe(1, subscriptions), version)


def encode_disconnect(version: int) -> bytes:
    """Goodbye."""
    return encode(Disconnect(), version)


@cache
def encode_acks(kind: int, cycle: int) -> bytes:
    """The acknowledgements of a publisher's messages, in their order, for two turns of its ids."""
    acks = b"".join(
        bytes((kind, 2)) + packet_id.to_bytes(2, "big") for packet_id in range(1, cycle + 1)
    )
    return acks * 2


def plain_acks(data: bytes, at: int) -> tuple[bytes, int]:
    """Acknowledgements of success of one length, ACK_SIZE bytes of each, and where they end.

    None, and `at`, if something else is among them. With a fifth byte a broker of 5.0 says that
    nobody has subscribed [3.4.2.1].
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
    for place in (0, 2, 3):
        acks[place::ACK_SIZE] = data[at + place : end : size]
    return bytes(acks), end


class PacketSource(Protocol):
    """Where a publisher's packets come from. Their identifiers, if any, are 1 … `cycle`, again."""

    cycle: int

    def take(self, most: int) -> tuple[memoryview, int]:
        """The next packets, at least one and no more than `most`, and how many they are.

        They have to be sent, or copied, before more are taken.
        """
        ...


class Stamped:
    """The messages of one publisher, each unlike any other."""

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
        self._marks = [load.lane(topic, publisher) << COUNTER_BITS for topic in topics]
        # Topic, packet identifier, a property section of length 0, mark: what stands in between
        # has no room for anything else.
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

    def take(self, most: int) -> tuple[memoryview, int]:
        count = min(most, self._count)
        names, marks, pack = self._names, self._marks, self._fields.pack_into
        block, at, turn = self._block, self._topic_at, self._turn
        now = time.monotonic_ns()
        for _ in range(count):
            mark = marks[turn]
            marks[turn] = mark + 1
            if self._qos:
                self._packet_id = self._packet_id % LARGEST_PACKET_ID + 1
                pack(block, at, names[turn], self._packet_id, mark, now)
            else:
                pack(block, at, names[turn], mark, now)
            turn = (turn + 1) % len(names)
            at += self._size
        self._turn = turn
        return self._view[: count * self._size], count


def encode_acks_of(kind: int, publishes: bytes, layout: PacketLayout) -> bytearray:
    """An acknowledgement for each of these packets, which follow each other."""
    answer = bytearray(bytes((kind, 2, 0, 0)) * (len(publishes) // layout.size))
    answer[2::4] = publishes[layout.id_at :: layout.size]
    answer[3::4] = publishes[layout.id_at + 1 :: layout.size]
    return answer

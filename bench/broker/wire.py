"""The bytes that the load consists of, encoded before anything is measured.

A `Stream` is a block of PUBLISH packets of one length, sent over and over. So a position in it is a
number of bytes, what was received is counted by dividing, and packet identifiers are read by
slicing with a stride. No two payloads in a block are alike. Above QoS 0 the identifiers in a block
are 1, 2, 3, …: a block is much longer than any window, so that an identifier is free again long
before its turn comes.
"""

import random
from dataclasses import dataclass
from functools import cache
from typing import Final

from semel.mqtt import (
    MQTT5,
    NO_PROPERTIES,
    Connect,
    Properties,
    Publish,
    Subscribe,
    Subscription,
    encode,
)

# First bytes: of PUBLISH by QoS, and of what answers it.
PUBLISH: Final = (0x30, 0x32, 0x34)
PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70
# An acknowledgement of success, in both versions.
ACK_SIZE: Final = 4

# QoS 1 and 2 messages that are under way in one direction of a connection: semel's own Receive
# Maximum. Mosquitto is given the same number, and clients of 5.0 tell it to both.
WINDOW: Final = 200
# Packets in a block that has packet identifiers.
CYCLE: Final = 10_000
# Bytes in a block that has none, at least.
BLOCK: Final = 1 << 18


@dataclass(frozen=True)
class Stream:
    """Whole packets of `size` bytes each; a packet's identifier, if it has one, is at `id_at`."""

    block: bytes
    size: int
    id_at: int
    qos: int


def encode_connect(version: int, client_id: str) -> bytes:
    """A clean session, no Keep Alive."""
    properties = Properties(receive_maximum=WINDOW) if version == MQTT5 else NO_PROPERTIES
    return encode(Connect(client_id, version=version, properties=properties), version)


def encode_subscribe(version: int, topic_filters: tuple[str, ...], qos: int) -> bytes:
    """All of these filters in one SUBSCRIBE, at one QoS."""
    subscriptions = [Subscription(topic_filter, qos) for topic_filter in topic_filters]
    return encode(Subscribe(1, subscriptions), version)


@cache
def encode_stream(
    version: int, topic_names: tuple[str, ...], payload_size: int, qos: int
) -> Stream:
    """PUBLISH to each topic in turn, in an order that looks random and is always the same."""
    order = random.Random(1).sample(topic_names, len(topic_names))
    payload = f"{{:0{payload_size}}}"
    size = len(encode(Publish(order[0], bytes(payload_size), qos, 1 if qos else 0), version))
    turns = -(-CYCLE // len(order)) if qos else -(-BLOCK // (size * len(order)))
    packets = [
        encode(
            Publish(topic_name, payload.format(number).encode(), qos, number if qos else 0), version
        )
        for number, topic_name in enumerate(order * turns, 1)
    ]
    block = b"".join(packets)
    assert len(block) == size * len(packets), "packets differ in length"
    return Stream(block, size, size - payload_size - (3 if version == MQTT5 else 2), qos)

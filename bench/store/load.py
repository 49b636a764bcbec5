"""Clients with durable sessions, publishers without subscribers, and single messages."""

import os
import random
import socket
import time
from pathlib import Path
from typing import Final

from bench.broker.contenders import HOST
from bench.broker.load import build
from bench.broker.wire import CYCLE, Prepared, Stream
from semel.lab.load.description import WINDOW, Load
from semel.lab.load.links import LinkError, Links, open_socket, read_exactly
from semel.lab.load.wire import PUBACK, layout_of
from semel.mqtt import MQTT5, NO_PROPERTIES, Connect, Properties, Publish, encode

# The Session Expiry Interval in 5.0; a session of 3.1.1 never expires.
EXPIRY: Final = 3600
# The minimum unit that a file system writes.
PAGE: Final = bytes(4096)


def encode_durable(version: int, client_id: str) -> bytes:
    """The CONNECT of a client with a durable session."""
    properties = NO_PROPERTIES
    if version == MQTT5:
        properties = Properties(session_expiry_interval=EXPIRY, receive_maximum=WINDOW)
    packet = Connect(client_id, version=version, clean_start=False, properties=properties)
    return encode(packet, version)


def connect_durable(port: int, version: int, client_id: str) -> tuple[socket.socket, bool]:
    """Connect a client. Returns its blocking socket, and whether its session existed."""
    link, answer = open_socket((HOST, port), encode_durable(version, client_id), version)
    return link, answer.session_present


def random_payloads(publisher: int, size: int) -> list[bytes]:
    """Incompressible payloads of a publisher, by packet identifier from 1 on."""
    dice = random.Random(publisher)
    return [dice.randbytes(size) for _ in range(CYCLE)]


def encode_payloads(version: int, topic_name: str, payloads: list[bytes]) -> Stream:
    """A block of PUBLISH packets at QoS 1."""
    packets = [
        encode(Publish(topic_name, payload, 1, packet_id), version)
        for packet_id, payload in enumerate(payloads, 1)
    ]
    return Stream(b"".join(packets), layout_of(version, topic_name, len(payloads[0]), 1))


class Publishers:
    """Publishers at QoS 1, each with up to WINDOW unacknowledged messages.

    Nobody subscribes: what is acknowledged counts as received. Each has a block of its own.
    """

    def __init__(self, links: Links, streams: list[Stream]) -> None:
        load = Load(publishers=len(streams), subscribers=0, qos=1, version=links.version)
        self._traffic = build(load, links, sources=[Prepared(stream) for stream in streams])
        self.fan_out = 1

    @property
    def sent(self) -> int:
        return self._traffic.sent

    @property
    def received(self) -> int:
        return self._traffic.acknowledged

    @property
    def acknowledged(self) -> list[int]:
        """The counts by publisher."""
        return [publisher.acknowledged for publisher in self._traffic.publishers.values()]

    def step(self) -> None:
        self._traffic.step()

    def finish(self) -> None:
        self._traffic.finish()


class Pages:
    """A file on the same disk, to time the write of a page with fdatasync."""

    def __init__(self, path: Path, *, room: int) -> None:
        """Allocates this many pages, which are overwritten; after them the file grows."""
        self.number = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        os.write(self.number, PAGE * room)
        os.fsync(self.number)
        os.lseek(self.number, 0, os.SEEK_SET)

    def write(self) -> int:
        """Write one page, and return the nanoseconds it took."""
        began = time.perf_counter_ns()
        os.write(self.number, PAGE)
        os.fdatasync(self.number)
        return time.perf_counter_ns() - began

    def close(self) -> None:
        os.close(self.number)


def publish_one(link: socket.socket, packet: bytes) -> int:
    """Publish one message; nanoseconds from before PUBLISH until after PUBACK."""
    began = time.perf_counter_ns()
    link.sendall(packet)
    head = read_exactly(link, 2)
    read_exactly(link, head[1])
    elapsed = time.perf_counter_ns() - began
    if head[0] != PUBACK:
        raise LinkError(f"answered a publisher with {head.hex()}")
    return elapsed

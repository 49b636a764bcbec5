"""Clients whose sessions last, publishers without subscribers, and one message at a time."""

import os
import random
import select
import socket
import time
from pathlib import Path
from typing import Final

from bench.broker.contenders import HOST
from bench.broker.load import (
    ANSWER_SECONDS,
    Fault,
    Links,
    Tap,
    read_exactly,
    read_packet,
    receive,
    subscribe,
)
from bench.broker.wire import CYCLE, PUBACK, WINDOW, Stream
from semel.mqtt import MQTT5, NO_PROPERTIES, Connect, Properties, Publish, encode

# Seconds that a session of 5.0 outlives its connection; one of 3.1.1 does so for ever.
EXPIRY: Final = 3600
# What a file system writes at the least.
PAGE: Final = bytes(4096)
# [3.4.2.1] PUBACK of 5.0: nobody has subscribed to the topic.
NO_SUBSCRIBERS: Final = 0x10


def encode_lasting(version: int, client_id: str) -> bytes:
    """The CONNECT of a client whose session outlives its connection."""
    properties = NO_PROPERTIES
    if version == MQTT5:
        properties = Properties(session_expiry_interval=EXPIRY, receive_maximum=WINDOW)
    packet = Connect(client_id, version=version, clean_start=False, properties=properties)
    return encode(packet, version)


def connect_lasting(port: int, version: int, client_id: str) -> tuple[socket.socket, bool]:
    """A connected client, and whether the broker had its session. Its socket still blocks."""
    link = socket.create_connection((HOST, port), ANSWER_SECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.sendall(encode_lasting(version, client_id))
    first, body = read_packet(link)
    if first != 0x20 or body[1]:
        raise Fault(f"refused a client: {first:#x} {body.hex()}")
    return link, bool(body[0])


def add_lasting(
    links: Links, role: list[socket.socket], client_id: str, filters: tuple[str, ...], qos: int
) -> None:
    """One more client of a run, as a publisher or as a subscriber, with a session that lasts."""
    link, _ = connect_lasting(links.port, links.version, client_id)
    if filters:
        subscribe(link, links.version, filters, qos)
    link.setblocking(False)
    role.append(link)
    links.by_number[link.fileno()] = link
    links.epoll.register(link.fileno(), select.EPOLLIN)


def random_payloads(publisher: int, size: int) -> list[bytes]:
    """What a publisher sends, by packet identifier from 1 on: nothing that could be compressed."""
    dice = random.Random(publisher)
    return [dice.randbytes(size) for _ in range(CYCLE)]


def encode_payloads(version: int, topic_name: str, payloads: list[bytes]) -> Stream:
    """A block of PUBLISH packets at QoS 1."""
    packets = [
        encode(Publish(topic_name, payload, 1, packet_id), version)
        for packet_id, payload in enumerate(payloads, 1)
    ]
    size = len(packets[0])
    return Stream(
        b"".join(packets), size, size - len(payloads[0]) - (3 if version == MQTT5 else 2), 1
    )


class Publishers:
    """Publishers at QoS 1, each with up to WINDOW messages that are not acknowledged.

    Nobody subscribes: what is acknowledged counts as received. Each has a block of its own.
    """

    def __init__(self, links: Links, streams: list[Stream]) -> None:
        self.links = links
        self.fan_out = 1
        self.sent = 0
        self.received = 0
        self.taps = {
            link.fileno(): Tap(stream, link)
            for link, stream in zip(links.publishers, streams, strict=True)
        }
        # By the number of the socket: messages that are on their way.
        self.open = dict.fromkeys(self.taps, 0)
        self.rest = dict.fromkeys(self.taps, b"")
        self.acknowledged = dict.fromkeys(self.taps, 0)

    def step(self) -> None:
        for number, tap in self.taps.items():
            room = WINDOW - self.open[number]
            if room:
                self.open[number] = WINDOW
                self.sent += room
            tap.send(room)
        self._receive()

    def finish(self) -> None:
        for tap in self.taps.values():
            tap.send(0)
        self._receive()

    def _receive(self) -> None:
        for number in self.links.ready():
            data = self.rest[number] + receive(self.links.by_number[number])
            count, taken = count_acks(data)
            self.rest[number] = data[taken:]
            self.open[number] -= count
            self.acknowledged[number] += count
            self.received += count


def count_acks(data: bytes) -> tuple[int, int]:
    """How many PUBACKs of success, of one length, there are, and how many bytes they take."""
    if len(data) < 2:
        return 0, 0
    size = 2 + data[1]
    count = len(data) // size
    taken = count * size
    alike = bytes([PUBACK]) * count, bytes([size - 2]) * count
    if (data[:taken:size], data[1:taken:size]) != alike or size not in (4, 5):
        raise Fault(f"answered a publisher with {data[:16].hex()}")
    if size == 5 and data[4:taken:5].strip(bytes([NO_SUBSCRIBERS])):
        raise Fault(f"refused a message with {data[:16].hex()}")
    return count, taken


class Pages:
    """A file of its own on the same disk: what a page and an fdatasync take."""

    def __init__(self, path: Path, *, room: int) -> None:
        """With room for so many pages, which are overwritten; then it grows."""
        self.number = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        os.write(self.number, PAGE * room)
        os.fsync(self.number)
        os.lseek(self.number, 0, os.SEEK_SET)

    def write(self) -> int:
        """Nanoseconds for one page."""
        began = time.perf_counter_ns()
        os.write(self.number, PAGE)
        os.fdatasync(self.number)
        return time.perf_counter_ns() - began

    def close(self) -> None:
        os.close(self.number)


def publish_one(link: socket.socket, packet: bytes) -> int:
    """Nanoseconds from before the PUBLISH until after its PUBACK."""
    began = time.perf_counter_ns()
    link.sendall(packet)
    head = read_exactly(link, 2)
    read_exactly(link, head[1])
    elapsed = time.perf_counter_ns() - began
    if head[0] != PUBACK:
        raise Fault(f"answered a publisher with {head.hex()}")
    return elapsed

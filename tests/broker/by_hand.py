"""Packets written byte by byte, and a client on a real socket that sends them.

What is wrong in a packet is written by hand: our own encoder could not write it.
"""

import gc
import resource
import socket
import ssl
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, cast

from semel.mqtt import (
    MQTT5,
    ConnAck,
    Connect,
    Decoder,
    Packet,
    PingReq,
    PingResp,
    Properties,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    Violation,
    encode,
)

# Generous: it only ends what would hang.
PATIENCE = 60.0


def number(value: int) -> bytes:
    """A Variable Byte Integer [1.5.5]."""
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def text(value: bytes) -> bytes:
    """Bytes with their length before them, as a string or binary data."""
    return len(value).to_bytes(2, "big") + value


def frame(first: int, *parts: bytes) -> bytes:
    """A packet of that first byte with an honest Remaining Length."""
    body = b"".join(parts)
    return bytes([first]) + number(len(body)) + body


def section(version: int, properties: bytes = b"") -> bytes:
    """A property section with an honest length, nothing in 3.1.1."""
    return number(len(properties)) + properties if version == MQTT5 else b""


def connect(
    client_id: bytes = b"a",
    version: int = MQTT5,
    *,
    flags: int = 0x02,
    properties: bytes = b"",
    rest: bytes = b"",
) -> bytes:
    """A CONNECT; `rest` is what the flags say that follows the client identifier."""
    head = text(b"MQTT") + bytes([version, flags, 0, 0])
    return frame(0x10, head, section(version, properties), text(client_id), rest)


def publish(
    topic_name: bytes,
    version: int = MQTT5,
    payload: bytes = b"x",
    *,
    qos: int = 0,
    packet_id: int = 7,
    properties: bytes = b"",
) -> bytes:
    """A PUBLISH."""
    identifier = packet_id.to_bytes(2, "big") if qos else b""
    return frame(
        0x30 | qos << 1, text(topic_name), identifier, section(version, properties), payload
    )


def subscribe(topic_filter: bytes, version: int = MQTT5, *, properties: bytes = b"") -> bytes:
    """A SUBSCRIBE with identifier 9 to one filter at QoS 1."""
    return frame(0x82, b"\x00\x09", section(version, properties), text(topic_filter), b"\x01")


def unsubscribe(topic_filter: bytes, version: int = MQTT5, *, properties: bytes = b"") -> bytes:
    """An UNSUBSCRIBE with identifier 9 from one filter."""
    return frame(0xA2, b"\x00\x09", section(version, properties), text(topic_filter))


class Stream(Protocol):
    """A connected socket, or what is used like one."""

    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def settimeout(self, seconds: float, /) -> None: ...
    def close(self) -> None: ...


class Link:
    """A client on a real socket: packets out, packets in.

    `connected` is a socket that is connected already, whatever its transport.
    """

    def __init__(
        self,
        address: tuple[str, int],
        version: int = MQTT5,
        *,
        receive_buffer: int = 0,
        connected: Stream | None = None,
    ) -> None:
        self.version = version
        self.decoder = Decoder(version)
        self.waiting: list[Packet] = []
        if connected is not None:
            self.socket = cast(socket.socket, connected)
            self.socket.settimeout(PATIENCE)
            return
        made = self.socket = socket.socket()
        if receive_buffer:
            # Before the connection is made: the window that the peer is told depends on it.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.settimeout(PATIENCE)
        try:
            made.connect(address)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            made.close()
            raise

    def send(self, *packets: Packet) -> None:
        self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def _receive(self) -> bool:
        """Wait for bytes. False: the peer has closed, in whichever way."""
        try:
            data = self.socket.recv(65_536)
        except (ConnectionResetError, ssl.SSLEOFError):
            return False
        for item in self.decoder.receive(data):
            assert not isinstance(item, Violation), item
            self.waiting.append(item)
        return bool(data)

    def take(self, count: int) -> list[Packet]:
        """The next packets, that many of them, as soon as they are there."""
        while len(self.waiting) < count:
            assert self._receive(), f"closed after {self.waiting}"
        packets, self.waiting = self.waiting[:count], self.waiting[count:]
        return packets

    def within(self, seconds: float) -> list[Packet]:
        """The next packets that come, or none if none does for so long."""
        self.socket.settimeout(seconds)
        try:
            while not self.waiting and self._receive():
                pass
        except TimeoutError:
            pass
        finally:
            self.socket.settimeout(PATIENCE)
        packets, self.waiting = self.waiting, []
        return packets

    def until_closed(self) -> list[Packet]:
        """Everything that comes until the peer closes the connection."""
        while self._receive():
            pass
        packets, self.waiting = self.waiting, []
        return packets

    def connect(
        self, client_id: str, *, clean_start: bool = True, properties: Properties | None = None
    ) -> ConnAck:
        """Send a CONNECT that is right; the CONNACK."""
        self.send(
            Connect(
                client_id,
                version=self.version,
                clean_start=clean_start,
                properties=properties or Properties(),
            )
        )
        (connack,) = self.take(1)
        assert isinstance(connack, ConnAck)
        return connack

    def subscribe(self, topic_filter: str, qos: int = 0) -> None:
        self.send(Subscribe(1, [Subscription(topic_filter, qos)]))
        assert self.take(1) == [SubAck(1, [qos])]

    def ping(self) -> None:
        """Everything sent before has been dealt with when the answer is there."""
        self.send(PingReq())
        assert self.take(1) == [PingResp()]

    def close(self) -> None:
        self.socket.close()


@contextmanager
def link(
    address: tuple[str, int],
    client_id: str = "",
    version: int = MQTT5,
    *,
    receive_buffer: int = 0,
) -> Iterator[Link]:
    """A link that is closed in the end, connected if there is a client identifier."""
    made = Link(address, version, receive_buffer=receive_buffer)
    try:
        if client_id:
            assert made.connect(client_id).reason == 0
        yield made
    finally:
        made.close()


class Pair:
    """Two healthy clients, one of which sends the other QoS 2 messages, each exactly once."""

    def __init__(self, publisher: Link, subscriber: Link) -> None:
        self.publisher = publisher
        self.subscriber = subscriber
        self.subscriber.subscribe("healthy/#", qos=2)
        self.sent = 0

    def exchange(self) -> None:
        """One message from PUBLISH to PUBCOMP on both sides, and nothing besides."""
        self.sent += 1
        payload = b"%d" % self.sent
        self.publisher.send(Publish("healthy/t", payload, qos=2, packet_id=5))
        assert [type(packet) for packet in self.publisher.take(1)] == [PubRec]
        self.publisher.send(PubRel(5))
        self.publisher.take(1)
        (message,) = self.subscriber.take(1)
        assert isinstance(message, Publish)
        assert (message.payload, message.qos, message.dup) == (payload, 2, False)
        self.subscriber.send(PubRec(message.packet_id))
        assert self.subscriber.take(1) == [PubRel(message.packet_id)]
        self.subscriber.send_bytes(frame(0x70, message.packet_id.to_bytes(2, "big")))
        self.subscriber.ping()
        self.publisher.ping()


@contextmanager
def healthy_pair(address: tuple[str, int], version: int = MQTT5) -> Iterator[Pair]:
    """Two clients who must be able to exchange a message in the end, whatever others did."""
    with (
        link(address, "healthy-publisher", version) as publisher,
        link(address, "healthy-subscriber", version) as subscriber,
    ):
        pair = Pair(publisher, subscriber)
        yield pair
        pair.exchange()


# pytest-xdist has a thread in each process. When another process takes tests from this one, it
# makes a new list of those that remain, at any moment of a test: kilobytes that are not the test's.
NOT_OF_THE_TEST = [tracemalloc.Filter(False, f"*/{package}/*") for package in ("xdist", "execnet")]


def _allocated() -> int:
    """Bytes that were allocated since tracing began and are still in use."""
    gc.collect()
    snapshot = tracemalloc.take_snapshot().filter_traces(NOT_OF_THE_TEST)
    return sum(trace.size for trace in snapshot.traces)


def _renew_interned() -> None:
    """Make Python allocate its table of interned strings anew, at the same size.

    It does so by itself when enough of them have come and gone. The table has megabytes, and would
    count as held if it was allocated before tracing began and again after.
    """
    before = tracemalloc.get_traced_memory()[0]
    for number in range(2_000_000):
        sys.intern(f"interned {number}")
        if tracemalloc.get_traced_memory()[0] - before > 100_000:
            return


@contextmanager
def memory() -> Iterator[Callable[[], int]]:
    """What a function tells: how many bytes more this process holds than at the beginning."""
    tracemalloc.start()
    try:
        _renew_interned()
        before = _allocated()
        yield lambda: _allocated() - before
    finally:
        tracemalloc.stop()


def resident(process_id: int) -> int:
    """Bytes of memory that a process has."""
    with open(f"/proc/{process_id}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

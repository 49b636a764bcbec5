"""The load: non-blocking sockets, one epoll, bytes prepared before. No MQTT library.

    Flood   one publisher at QoS 0, any number of subscribers: as much as the broker takes
    FanIn   many publishers at QoS 0, some messages in each write, one subscriber
    Window  one publisher at QoS 1 or 2, subscribers that acknowledge
    Pairs   publisher and subscriber by the pair, each with one message under way at a time
    Paced   messages at an even rate that carry the time at which they were sent

Nobody is sent more than is received again soon, so that no broker has a reason to drop. `step` does
what can be done now, `finish` sends what completes the last packet and nothing new. `sent` counts
messages to the broker, `received` deliveries, of which there should be `sent * fan_out`.
"""

import contextlib
import select
import socket
import time
from array import array
from collections.abc import Iterator
from typing import Final, Protocol

from bench.broker.contenders import HOST
from bench.broker.wire import (
    ACK_SIZE,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    WINDOW,
    Stream,
    encode_connect,
    encode_subscribe,
)

# How far a publisher at QoS 0 may be ahead of what was received: what the broker delivers in this
# time, so that a slow broker need not dig for long, but no more than so many bytes.
AHEAD_SECONDS: Final = 0.1
AHEAD_BYTES: Final = 1 << 18
AHEAD_AT_FIRST: Final = 64

RECEIVE_SIZE: Final = 1 << 18
POLL_SECONDS: Final = 0.01
ANSWER_SECONDS: Final = 20.0


class Fault(Exception):
    """The broker did what it must not: closed a connection, sent something else, stalled."""


class Load(Protocol):
    """What can be driven."""

    fan_out: int
    sent: int
    received: int

    def step(self) -> None: ...
    def finish(self) -> None: ...


# --- connections ----------------------------------------------------------------------------------


def read_exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        try:
            more = link.recv(size - len(data))
        except TimeoutError:
            raise Fault("no answer") from None
        if not more:
            raise Fault("closed a connection")
        data += more
    return data


def read_packet(link: socket.socket) -> tuple[int, bytes]:
    """First byte and body of one packet, from a socket that blocks."""
    first = read_exactly(link, 1)[0]
    length = shift = 0
    while True:
        byte = read_exactly(link, 1)[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return first, read_exactly(link, length)


def connect(port: int, version: int, client_id: str) -> socket.socket:
    """A connected client; its socket still blocks."""
    link = socket.create_connection((HOST, port), ANSWER_SECONDS)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.sendall(encode_connect(version, client_id))
    first, body = read_packet(link)
    if first != 0x20 or body[1]:
        raise Fault(f"refused a client: {first:#x} {body.hex()}")
    return link


def subscribe(link: socket.socket, version: int, topic_filters: tuple[str, ...], qos: int) -> None:
    """Subscribe; every filter has to be granted its QoS."""
    link.sendall(encode_subscribe(version, topic_filters, qos))
    first, body = read_packet(link)
    if first != 0x90 or body[-len(topic_filters) :] != bytes([qos]) * len(topic_filters):
        raise Fault(f"refused a subscription: {first:#x} {body[:20].hex()}")


class Links:
    """The clients of one run: publishers, then subscribers, in one epoll."""

    def __init__(self, port: int, version: int) -> None:
        self.port = port
        self.version = version
        self.epoll = select.epoll()
        self.publishers: list[socket.socket] = []
        self.subscribers: list[socket.socket] = []
        self.by_number: dict[int, socket.socket] = {}

    def add_publisher(self) -> None:
        link = connect(self.port, self.version, f"publisher-{len(self.publishers)}")
        self.publishers.append(link)
        self._watch(link)

    def add_subscriber(self, topic_filters: tuple[str, ...], qos: int) -> None:
        link = connect(self.port, self.version, f"subscriber-{len(self.subscribers)}")
        subscribe(link, self.version, topic_filters, qos)
        self.subscribers.append(link)
        self._watch(link)

    def _watch(self, link: socket.socket) -> None:
        link.setblocking(False)
        self.by_number[link.fileno()] = link
        self.epoll.register(link.fileno(), select.EPOLLIN)

    def ready(self) -> list[int]:
        """The numbers of the sockets that have something to read."""
        return [number for number, _ in self.epoll.poll(POLL_SECONDS)]

    def close(self) -> None:
        self.epoll.close()
        for link in self.by_number.values():
            link.close()


@contextlib.contextmanager
def links(port: int, version: int) -> Iterator[Links]:
    made = Links(port, version)
    try:
        yield made
    finally:
        made.close()


def receive_into(link: socket.socket, buffer: bytearray) -> int:
    size = link.recv_into(buffer)
    if not size:
        raise Fault("closed a connection")
    return size


def receive(link: socket.socket) -> bytes:
    data = link.recv(RECEIVE_SIZE)
    if not data:
        raise Fault("closed a connection")
    return data


def send_whole(link: socket.socket, data: bytes) -> None:
    """Send a few bytes, for which there is always room unless the broker has stopped to read."""
    sent = link.send(data)
    while sent < len(data):
        if not select.select((), (link,), (), ANSWER_SECONDS)[1]:
            raise Fault("stopped reading")
        sent += link.send(data[sent:])


class Tap:
    """A stream into one socket, as many packets as it is told, as fast as the socket takes them."""

    def __init__(self, stream: Stream, link: socket.socket) -> None:
        self.view = memoryview(stream.block)
        self.size = stream.size
        self.link = link
        self.position = 0
        self.owed = 0

    def send(self, packets: int) -> None:
        """Let so many more packets out, or what of them has room now."""
        self.owed += packets * self.size
        while self.owed:
            part = self.view[self.position : self.position + self.owed]
            try:
                sent = self.link.send(part)
            except BlockingIOError:
                return
            self.owed -= sent
            self.position = (self.position + sent) % len(self.view)
            if sent < len(part):
                return


# --- QoS 0 ----------------------------------------------------------------------------------------


class Flood:
    """One publisher; each message goes to `fan_out` of the subscribers."""

    def __init__(self, links: Links, stream: Stream, fan_out: int) -> None:
        self.links = links
        self.size = stream.size
        self.tap = Tap(stream, links.publishers[0])
        self.fan_out = fan_out
        self.sent = 0
        self.received = 0
        self.received_bytes = 0
        self.buffer = bytearray(RECEIVE_SIZE)
        self.began = time.monotonic()

    def step(self) -> None:
        arrived = self.received // self.fan_out
        rate = arrived / (time.monotonic() - self.began)
        limit = max(AHEAD_AT_FIRST, min(int(rate * AHEAD_SECONDS), AHEAD_BYTES // self.size))
        room = limit - (self.sent - arrived)
        # A few at a time would be another scenario.
        if room * 4 >= limit:
            self.sent += room
            self.tap.send(room)
        else:
            self.tap.send(0)
        self._receive()

    def finish(self) -> None:
        self.tap.send(0)
        self._receive()

    def _receive(self) -> None:
        links, buffer = self.links, self.buffer
        for number in links.ready():
            self.received_bytes += receive_into(links.by_number[number], buffer)
        self.received = self.received_bytes // self.size


class FanIn:
    """Publishers take turns, `per_write` messages each, one write of each under way."""

    def __init__(self, links: Links, stream: Stream, per_write: int) -> None:
        self.links = links
        self.size = stream.size
        self.per_write = per_write
        chunk = per_write * stream.size
        block = stream.block[: len(stream.block) // chunk * chunk]
        self.writes = [block[at : at + chunk] for at in range(0, len(block), chunk)]
        self.limit = per_write * len(links.publishers)
        self.fan_out = 1
        self.sent = 0
        self.received = 0
        self.received_bytes = 0
        self.buffer = bytearray(RECEIVE_SIZE)

    def step(self) -> None:
        publishers, writes, per_write = self.links.publishers, self.writes, self.per_write
        turn = self.sent // per_write
        for _ in range((self.limit - (self.sent - self.received)) // per_write):
            send_whole(publishers[turn % len(publishers)], writes[turn % len(writes)])
            turn += 1
        self.sent = turn * per_write
        self.finish()

    def finish(self) -> None:
        links, buffer = self.links, self.buffer
        for number in links.ready():
            self.received_bytes += receive_into(links.by_number[number], buffer)
        self.received = self.received_bytes // self.size


class Pairs:
    """Publisher n sends its next message when subscriber n has the one before."""

    def __init__(self, links: Links, streams: list[Stream]) -> None:
        self.links = links
        self.size = streams[0].size
        self.fan_out = 1
        self.sent = 0
        self.received = 0
        # By the number of the subscriber's socket: its publisher, and the packet that it repeats.
        self.turns = {
            subscriber.fileno(): (subscriber, publisher, stream.block[: self.size])
            for subscriber, publisher, stream in zip(
                links.subscribers, links.publishers, streams, strict=True
            )
        }

    def step(self) -> None:
        if not self.sent:
            for _, publisher, packet in self.turns.values():
                publisher.send(packet)
            self.sent = len(self.turns)
        size, turns = self.size, self.turns
        for number in self.links.ready():
            subscriber, publisher, packet = turns[number]
            if len(subscriber.recv(RECEIVE_SIZE)) != size:
                raise Fault("did not deliver one packet")
            publisher.send(packet)
            self.sent += 1
            self.received += 1

    def finish(self) -> None:
        for number in self.links.ready():
            subscriber, _, _ = self.turns[number]
            self.received += len(subscriber.recv(RECEIVE_SIZE)) // self.size


class Paced:
    """One publisher, one subscriber, an even rate; each message says when it left."""

    def __init__(self, links: Links, stream: Stream, rate: int) -> None:
        self.publisher = links.publishers[0]
        self.subscriber = links.subscribers[0]
        self.head = stream.block[: stream.size - 8]
        self.size = stream.size
        self.interval = 1_000_000_000 // rate
        self.due = time.monotonic_ns()
        self.fan_out = 1
        self.sent = 0
        self.received = 0
        self.rest = b""
        self.latencies: list[int] = []

    def step(self) -> None:
        now = time.monotonic_ns()
        if now >= self.due:
            # Late is the load's fault, not the broker's: what counts is when it leaves.
            send_whole(self.publisher, self.head + time.monotonic_ns().to_bytes(8, "big"))
            self.sent += 1
            self.due = max(self.due + self.interval, now - 10 * self.interval)
        self.finish()

    def finish(self) -> None:
        try:
            data = self.subscriber.recv(RECEIVE_SIZE)
        except BlockingIOError:
            return
        now = time.monotonic_ns()
        if not data:
            raise Fault("closed a connection")
        data = self.rest + data
        whole = len(data) // self.size * self.size
        for end in range(self.size, whole + 1, self.size):
            self.latencies.append(now - int.from_bytes(data[end - 8 : end], "big"))
        self.received += whole // self.size
        self.rest = data[whole:]


# --- QoS 1 and 2 ----------------------------------------------------------------------------------


class Window:
    """One publisher with up to WINDOW messages that are not complete; subscribers acknowledge.

    Brokers answer in the order of the messages [MQTT-4.6.0-2, -3], so that counting answers tells
    which identifiers are free. What was answered but not delivered is bounded, too.
    """

    def __init__(self, links: Links, stream: Stream, fan_out: int) -> None:
        self.links = links
        self.stream = stream
        self.tap = Tap(stream, links.publishers[0])
        self.fan_out = fan_out
        self.sent = 0
        self.completed = 0
        self.received = 0
        self.publisher = links.publishers[0].fileno()
        # What is left of a packet that has not arrived whole, by socket.
        self.rest = dict.fromkeys(links.by_number, b"")
        self.take = self._take_qos_1 if stream.qos == 1 else self._take_qos_2

    def step(self) -> None:
        free = WINDOW - (self.sent - self.completed)
        undelivered = self.sent - self.received // self.fan_out
        room = min(free, 2 * WINDOW - undelivered)
        if room > 0:
            self.sent += room
            self.tap.send(room)
        self.finish()

    def finish(self) -> None:
        self.tap.send(0)
        links, rest = self.links, self.rest
        for number in links.ready():
            link = links.by_number[number]
            data = rest[number] + receive(link)
            if number == self.publisher:
                answer, taken = self._take_answers(data)
            else:
                answer, taken = self.take(data)
            rest[number] = data[taken:]
            if answer:
                send_whole(link, answer)

    def _take_answers(self, data: bytes) -> tuple[bytes, int]:
        """PUBACK, PUBREC and PUBCOMP for the publisher: PUBREL for each PUBREC."""
        count = len(data) // ACK_SIZE
        taken = count * ACK_SIZE
        firsts = data[:taken:ACK_SIZE]
        done = firsts.count(PUBACK if self.stream.qos == 1 else PUBCOMP)
        self.completed += done
        if done == count:
            return b"", taken
        if firsts.count(PUBREC) != count - done or data[1:taken:ACK_SIZE] != b"\2" * count:
            raise Fault(f"answered a publisher with {data[:16].hex()}")
        packets = array("I", data[:taken])
        # PUBREC is the first byte of four, which is the lowest of an integer.
        turn = PUBREC ^ PUBREL
        released = [packet ^ turn for packet in packets if packet & 0xFF == PUBREC]
        return array("I", released).tobytes(), taken

    def _take_qos_1(self, data: bytes) -> tuple[bytes, int]:
        """PUBLISH for a subscriber: PUBACK for each."""
        size, id_at = self.stream.size, self.stream.id_at
        count = len(data) // size
        taken = count * size
        if data[:taken:size] != bytes([PUBLISH[1]]) * count:
            raise Fault(f"delivered {data[:16].hex()}")
        answer = bytearray(bytes([PUBACK, 2, 0, 0]) * count)
        answer[2::4] = data[id_at:taken:size]
        answer[3::4] = data[id_at + 1 : taken : size]
        self.received += count
        return bytes(answer), taken

    def _take_qos_2(self, data: bytes) -> tuple[bytes, int]:
        """PUBLISH and PUBREL for a subscriber: PUBREC and PUBCOMP."""
        size, id_at, publish = self.stream.size, self.stream.id_at, PUBLISH[2]
        answer: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            first = data[at]
            if first == publish:
                if at + size > end:
                    break
                answer.append(b"\x50\x02" + data[at + id_at : at + id_at + 2])
                self.received += 1
                at += size
            elif first == PUBREL:
                if at + ACK_SIZE > end:
                    break
                answer.append(b"\x70\x02" + data[at + 2 : at + 4])
                at += ACK_SIZE
            else:
                raise Fault(f"delivered {data[at : at + 16].hex()}")
        return b"".join(answer), at

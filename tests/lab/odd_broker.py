"""A small broker in threads that misbehaves as a test requests.

It supports QoS 0, 1 and 2, both versions and wildcards, but no durable sessions. An Exchange
observes each connection: violations of the *clients* are in `violations`.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from semel.mqtt import (
    CLIENT,
    SERVER,
    ConnAck,
    Connect,
    Decoder,
    Exchange,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Violation,
    encode,
    topic_matches,
)

# The messages to deliver instead of the n-th message to a subscriber. None closes its connection.
Deliver = Callable[[int, Publish], list[Publish] | None]
# The responses to a publisher's n-th message at QoS 1 or 2. None closes its connection.
Answer = Callable[[int, Publish], list[Packet] | None]


def as_it_should(number: int, packet: Publish) -> list[Publish]:
    return [packet]


def acknowledge(number: int, packet: Publish) -> list[Packet]:
    return [PubAck(packet.packet_id) if packet.qos == 1 else PubRec(packet.packet_id)]


@dataclass
class Client:
    """One connection."""

    link: socket.socket
    client_id: str = ""
    version: int = 4
    filters: list[str] = field(default_factory=list)
    exchange: Exchange = field(default_factory=Exchange)
    delivered: int = 0
    published: int = 0
    packet_id: int = 0

    def send(self, packet: Packet) -> None:
        # What is done wrong on purpose is not the point.
        data = encode(packet, self.version)
        self.exchange.observe(SERVER, packet, len(data), [])
        self.link.sendall(data)


class OddBroker:
    """It listens while it is a context."""

    def __init__(
        self,
        *,
        connack: ConnAck | None = None,
        grant: Callable[[int], int] = int,
        deliver: Deliver = as_it_should,
        answer: Answer = acknowledge,
        late: Callable[[], list[Publish]] = list,
    ) -> None:
        self.connack = connack or ConnAck()
        self.grant = grant
        self.deliver = deliver
        self.answer = answer
        # What is delivered to a subscriber before its PINGRESP.
        self.late = late
        self.connects: list[Connect] = []
        self.pings = 0
        self.violations: list[Violation] = []
        self._clients: list[Client] = []
        self._lock = threading.RLock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> "OddBroker":
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._clients:
            self._close(client)
        for thread in self._threads:
            thread.join()
        for client in self._clients:
            client.link.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._listener.accept()
                client = Client(link)
                thread = threading.Thread(target=self._serve, args=(client,))
                with self._lock:
                    self._clients.append(client)
                    self._threads.append(thread)
                thread.start()

    def _serve(self, client: Client) -> None:
        decoder = Decoder()
        with contextlib.suppress(OSError):
            while data := client.link.recv(1 << 16):
                with self._lock:
                    for packet in decoder.receive(data):
                        if isinstance(packet, Violation):
                            self.violations.append(packet)
                            return
                        size = len(encode(packet, decoder.version))
                        client.exchange.observe(CLIENT, packet, size, self.violations)
                        self._take(client, packet)

    @staticmethod
    def _close(client: Client) -> None:
        with contextlib.suppress(OSError):
            client.link.shutdown(socket.SHUT_RDWR)

    def _take(self, client: Client, packet: Packet) -> None:
        if isinstance(packet, Connect):
            self.connects.append(packet)
            client.client_id, client.version = packet.client_id, packet.version
            client.send(self.connack)
        elif isinstance(packet, Subscribe):
            client.filters += [each.topic_filter for each in packet.subscriptions]
            client.send(
                SubAck(packet.packet_id, [self.grant(each.qos) for each in packet.subscriptions])
            )
        elif isinstance(packet, Publish):
            if packet.qos:
                self._answer(client, packet)
            self._route(packet)
        elif isinstance(packet, PubRec):
            client.send(PubRel(packet.packet_id))
        elif isinstance(packet, PubRel):
            client.send(PubComp(packet.packet_id))
        elif isinstance(packet, PingReq):
            self.pings += 1
            if client.filters:
                self._send(client, self.late())
            client.send(PingResp())

    def _answer(self, client: Client, packet: Publish) -> None:
        answers = self.answer(client.published, packet)
        client.published += 1
        if answers is None:
            self._close(client)
            return
        for each in answers:
            client.send(each)

    def _route(self, packet: Publish) -> None:
        for client in self._clients:
            if not any(topic_matches(each, packet.topic_name) for each in client.filters):
                continue
            packets = self.deliver(client.delivered, packet)
            client.delivered += 1
            if packets is None:
                self._close(client)
                continue
            with contextlib.suppress(OSError):
                self._send(client, packets)

    @staticmethod
    def _send(client: Client, packets: list[Publish]) -> None:
        for each in packets:
            client.packet_id = client.packet_id % 65_535 + 1
            packet_id = client.packet_id if each.qos else 0
            client.send(Publish(each.topic_name, each.payload, each.qos, packet_id))

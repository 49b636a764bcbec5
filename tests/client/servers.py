"""A server that says what a test tells it to, byte for byte, and judges what the client says.

    async with Scripted() as server, Client(server.url) as client:
        visit = await server.visit()            its connection, CONNECT already answered
        going = start(client.publish("a", qos=1))
        packet = await visit.take(Publish)
        visit.send(PubAck(packet.packet_id))
        assert await going == 0

Every packet of the client is observed by an `Exchange` that knows what the session had open before,
so that whatever the client does wrong fails the test, wherever the test looks. The server lives in
the test's loop, and so needs no thread and no time-out.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from semel.client import Backoff
from semel.mqtt import (
    CLIENT,
    MQTT5,
    MQTT311,
    SERVER,
    ConnAck,
    Connect,
    Decoder,
    Exchange,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Violation,
    encode,
)
from semel.mqtt.reasons import FAILURE, SUCCESS
from semel.mqtt.side import Open

T = TypeVar("T")
P = TypeVar("P", bound=Packet)

# What the server answers a CONNECT with. None: the test does it, or does not.
Answer = ConnAck | Callable[[Connect], ConnAck] | None

BOTH = (MQTT311, MQTT5)
ASSIGNED = "assigned"
# For tests that cut connections: come back at once.
QUICK = Backoff(first=0.005, most=0.01)


def accept(connect: Connect) -> ConnAck:
    """A new session, and a client identifier for who has none."""
    if connect.client_id or connect.version != MQTT5:
        return ConnAck()
    return ConnAck(properties=Properties(assigned_client_identifier=ASSIGNED))


def resume(connect: Connect) -> ConnAck:
    """The session that the client asks for, if it does."""
    return accept(connect) if connect.clean_start else ConnAck(session_present=True)


def start(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Let the client do something while the test plays the server."""
    return asyncio.get_running_loop().create_task(work)


async def turns(count: int = 10) -> None:
    """So many turns of the loop: what could happen at once has happened."""
    for _ in range(count):
        await asyncio.sleep(0)


class Visit(asyncio.Protocol):
    """One connection of the client's, seen from the server."""

    def __init__(self, server: "Scripted") -> None:
        self.server = server
        self.exchange = Exchange(server.carried)
        self.version = MQTT5
        # Everything that the client has sent.
        self.sent: list[Packet] = []
        self.data = bytearray()
        # The client has closed its end; the connection is gone.
        self.ended = False
        self.lost = False
        # Whether this end is closed when the client's is.
        self.closes = True
        self._decoder = Decoder()
        self._waiting: deque[Packet] = deque()
        self._changed = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # What uvloop hands us is one by its methods, not by its class.
        self._transport = cast(asyncio.Transport, transport)
        self.server.visits.append(self)
        self.server.changed.set()

    def data_received(self, data: bytes) -> None:
        self.data += data
        for item in self._decoder.receive(data):
            if isinstance(item, Violation):
                self.server.complaints.append(item)
                continue
            self._judge(item)
        self._changed.set()

    def _judge(self, packet: Packet) -> None:
        if isinstance(packet, Connect):
            self.version = packet.version
        try:
            self.exchange.observe(CLIENT, packet, len(encode(packet, self.version)))
        except Violation as violation:
            self.server.complaints.append(violation)
            self.exchange.observe(CLIENT, packet, 0, [])
        self.sent.append(packet)
        self._waiting.append(packet)
        if isinstance(packet, Connect):
            answer = self.server.answer()
            if answer is not None:
                self.send(answer if isinstance(answer, ConnAck) else answer(packet))
        elif isinstance(packet, Subscribe) and self.server.grants:
            self.send(SubAck(packet.packet_id, [each.qos for each in packet.subscriptions]))
        elif self.server.obliges:
            self._oblige(packet)

    def _oblige(self, packet: Packet) -> None:
        """Answer as any server would."""
        if isinstance(packet, Publish) and packet.qos == 1:
            self.send(PubAck(packet.packet_id))
        elif isinstance(packet, Publish) and packet.qos == 2:
            self.send(PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            self.send(PubComp(packet.packet_id))
        elif isinstance(packet, PubRec) and packet.reason < FAILURE:
            self.send(PubRel(packet.packet_id))
        elif isinstance(packet, Unsubscribe):
            reasons = [SUCCESS] * len(packet.topic_filters) if self.version == MQTT5 else []
            self.send(UnsubAck(packet.packet_id, reasons))
        elif isinstance(packet, PingReq):
            self.send(PingResp())

    def eof_received(self) -> bool:
        self.ended = True
        self._changed.set()
        return not self.closes

    def connection_lost(self, problem: Exception | None) -> None:
        self.ended = True
        self.lost = True
        self._transport = None
        self._changed.set()

    # What the test calls.

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until something that the client did makes this true."""
        while not reached():
            self._changed.clear()
            await self._changed.wait()

    async def packet(self) -> Packet:
        """The next packet of the client."""
        await self.until(lambda: bool(self._waiting) or self.ended)
        assert self._waiting, "the client has closed"
        return self._waiting.popleft()

    async def take(self, kind: type[P]) -> P:
        """The next packet of the client, which is of this type."""
        packet = await self.packet()
        assert isinstance(packet, kind), packet
        return packet

    @property
    def has_more(self) -> bool:
        """Whether the client has sent something that was not looked at yet."""
        return bool(self._waiting)

    def waiting(self) -> list[Packet]:
        """What has come and was not looked at yet, which is then forgotten."""
        packets = list(self._waiting)
        self._waiting.clear()
        return packets

    def forget(self) -> None:
        """Keep nothing of what the client has sent so far."""
        self.sent.clear()
        self.data.clear()
        self._waiting.clear()

    async def end(self) -> list[Packet]:
        """What comes until the client has closed."""
        await self.until(lambda: self.ended)
        return self.waiting()

    async def until_lost(self) -> None:
        """Wait until the connection is gone."""
        await self.until(lambda: self.lost)

    def send(self, *packets: Packet) -> None:
        """Send what a server may send now: a test that breaks a rule here is wrong."""
        data = bytearray()
        for packet in packets:
            encoded = encode(packet, self.version)
            self.exchange.observe(SERVER, packet, len(encoded))
            data += encoded
        self._write(bytes(data))

    def misbehave(self, *packets: Packet) -> None:
        """Send what a server may not send now."""
        data = bytearray()
        for packet in packets:
            found: list[Violation] = []
            encoded = encode(packet, self.version)
            self.exchange.observe(SERVER, packet, len(encoded), found)
            data += encoded
        self._write(bytes(data))

    def send_bytes(self, data: bytes) -> None:
        """Send anything at all, which the judge does not hear of."""
        self._write(data)

    def _write(self, data: bytes) -> None:
        assert self._transport is not None, "the client has closed"
        self._transport.write(data)

    def stop_reading(self) -> None:
        """Let what the client sends wait in the system's buffers."""
        assert self._transport is not None
        self._transport.pause_reading()

    def read_on(self) -> None:
        assert self._transport is not None
        self._transport.resume_reading()

    @property
    def is_closing(self) -> bool:
        """Whether this end is closed, or will be."""
        return self._transport is None or self._transport.is_closing()

    def close(self) -> None:
        """Close in order."""
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Let the network fail."""
        if self._transport is not None:
            self._transport.abort()


class Scripted:
    """A server on a port of its own. `answers` are for the CONNECTs, the last for all others."""

    def __init__(self, *answers: Answer, grants: bool = False, obliges: bool = False) -> None:
        """With `grants`, each SUBSCRIBE is answered by what it asks for; with `obliges`, all is."""
        self.answers: deque[Answer] = deque(answers or (accept,))
        self.grants = grants or obliges
        self.obliges = obliges
        self.visits: list[Visit] = []
        self.complaints: list[Violation] = []
        self.changed = asyncio.Event()
        self.port = 0
        self._seen = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    @property
    def carried(self) -> list[Open]:
        """What the last connection of the session left open."""
        return self.visits[-1].exchange.carry() if self.visits else []

    def answer(self) -> Answer:
        return self.answers.popleft() if len(self.answers) > 1 else self.answers[0]

    async def visit(self, *, greeted: bool = True) -> Visit:
        """The next connection of the client, its CONNECT taken unless the test wants it."""
        while len(self.visits) <= self._seen:
            self.changed.clear()
            await self.changed.wait()
        visit = self.visits[self._seen]
        self._seen += 1
        if greeted:
            await visit.take(Connect)
        return visit

    async def stop_listening(self) -> None:
        """Be gone: whoever comes is refused by the system."""
        assert self._server is not None
        self._server.close()
        await turns(2)

    async def listen(self) -> None:
        """Listen, on the same port as before if there was one."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Visit(self), "127.0.0.1", self.port, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for visit in self.visits:
            visit.cut()
            await visit.until_lost()
        # What the test itself has found is told first.
        if problem is None:
            assert [str(each) for each in self.complaints] == []

"""What a hook does wrong ends the connection that it was asked about, and touches nobody else."""

import asyncio
import contextlib

import pytest

from semel.broker.authority import (
    Authority,
    Challenge,
    Denied,
    Granted,
    Proof,
    ServerAuthentication,
    Step,
)
from semel.broker.identity import Identity, PeerInfo
from semel.mqtt import (
    Auth,
    ConnAck,
    Connect,
    Decoder,
    Packet,
    PingReq,
    PingResp,
    Properties,
    Publish,
    Subscribe,
    Subscription,
    Violation,
    Will,
    encode,
)
from tests.broker.broker_process import PATIENCE
from tests.broker.core.test_core import payloads
from tests.broker.world import Client, World

# Where a hook fails: at CONNECT, when asked for a method, at a step.
PLACES = ["connect", "begin", "start", "answer"]


class Mistake(Exception):
    """What the hooks here raise."""


class Fragile(ServerAuthentication):
    """One challenge; fails where the data says so."""

    def start(self, data: bytes | None) -> Step:
        if data == b"start":
            raise Mistake
        return Challenge()

    def answer(self, data: bytes | None) -> Step:
        if data == b"answer":
            raise Mistake
        return Granted()


class Hook(Authority):
    """Fails where the client identifier says so."""

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        if packet.client_id == "connect":
            raise Mistake
        return super().connect(packet, peer)

    def begin_authentication(
        self, method: str, packet: Connect, peer: PeerInfo
    ) -> ServerAuthentication | None:
        if packet.client_id == "begin":
            raise Mistake
        return Fragile()


class Silent(Authority):
    """Forgets to return anything."""

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        return None  # type: ignore[return-value]


class SilentStep(ServerAuthentication):
    def start(self, data: bytes | None) -> Step:
        return None  # type: ignore[return-value]


class SilentSteps(Authority):
    def begin_authentication(
        self, method: str, packet: Connect, peer: PeerInfo
    ) -> ServerAuthentication | None:
        return SilentStep()


def said(place: str) -> Properties:
    return Properties(authentication_method="M", authentication_data=place.encode())


def authenticating(place: str) -> list[Packet]:
    """What a client sends that meets the mistake of that place."""
    return [Connect(place, properties=said(place)), Auth(0x18, properties=said(place))]


def talk(client: Client, place: str) -> list[Packet]:
    return [answer for packet in authenticating(place) for answer in client.send(packet)]


@pytest.mark.parametrize("place", PLACES)
def test_an_exception_in_a_hook_lets_nobody_in_and_leaves_the_core_whole(place: str) -> None:
    """Class 14: it reaches the owner of the connection; sessions are as they were"""
    world = World(authority=Hook())
    owner = world.connect("steady")
    client = world.open()
    with pytest.raises(Mistake):
        talk(client, place)
    client.cut()
    assert list(world.broker.router.sessions) == ["steady"]
    assert owner.send(PingReq()) == [PingResp()]
    _, connack = talk(world.open(), "right")
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0


@pytest.mark.parametrize("authority", [Silent(), SilentSteps()])
def test_a_hook_that_returns_nothing_lets_nobody_in(authority: Authority) -> None:
    """Class 12: None is not SUCCESS, and no step"""
    world = World(authority=authority)
    client = world.open()
    answer: list[Packet] = []
    with contextlib.suppress(TypeError, AttributeError):
        answer = client.send(Connect("a", properties=said("")))
    assert world.broker.router.sessions == {}
    assert not any(isinstance(packet, ConnAck) and packet.reason == 0 for packet in answer)


class Socket:
    """A client on a real socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.decoder = Decoder()
        self.inbox: list[Packet] = []

    async def send(self, packet: Packet) -> None:
        self.writer.write(encode(packet))
        await self.writer.drain()

    async def next(self) -> Packet | None:
        """The next packet, or None if the broker has closed."""
        while not self.inbox:
            try:
                data = await asyncio.wait_for(self.reader.read(65_536), PATIENCE)
            except ConnectionResetError:
                return None
            if not data:
                return None
            for item in self.decoder.receive(data):
                assert not isinstance(item, Violation)
                self.inbox.append(item)
        return self.inbox.pop(0)


async def meets(address: tuple[str, int], place: str) -> list[Packet | None]:
    """What a client gets that meets the mistake of that place; None: it is closed."""
    client = Socket(*await asyncio.open_connection(*address))
    got: list[Packet | None] = []
    for packet in authenticating(place):
        await client.send(packet)
        got.append(await client.next())
        if got[-1] is None:
            break
    client.writer.close()
    return got


async def observed(address: tuple[str, int]) -> dict[str, list[Packet | None]]:
    """All mistakes one after the other, beside a client that must not feel any of them."""
    steady = Socket(*await asyncio.open_connection(*address))
    await steady.send(Connect("steady"))
    assert isinstance(await steady.next(), ConnAck)
    await steady.send(Subscribe(1, [Subscription("gone")]))
    await steady.next()
    seen = {place: await meets(address, place) for place in (*PLACES, "right")}
    # A client that was connected is lost: its will is published.
    client = Socket(*await asyncio.open_connection(*address))
    await client.send(Connect("again", will=Will("gone", b"bye"), properties=said("")))
    await client.next()
    await client.send(Auth(0x18, properties=said("")))
    assert isinstance(await client.next(), ConnAck)
    await client.send(Auth(0x19, properties=said("start")))
    seen["again"] = [await client.next()]
    client.writer.close()
    will = await steady.next()
    assert isinstance(will, Publish)
    assert payloads([will]) == [b"bye"]
    await steady.send(PingReq())
    assert await steady.next() == PingResp()
    steady.writer.close()
    return seen

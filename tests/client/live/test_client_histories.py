"""Histories by chance: a program that does anything, a server that obliges, a network that fails.

Whatever happens, the client breaks no rule (the server's Exchange says so), nobody waits for ever,
every publication ends in an answer, and when the program has acknowledged all it has, nothing is
left open on either side. A history is a function of its seed, but for the moments at which the
system hands bytes over.
"""

import asyncio
import random
from contextlib import suppress

import pytest

from semel.client import Backoff, Client, Disconnected, Messages, Received, Refused
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    Publish,
    PubRel,
)
from semel.mqtt.side import SERVER
from tests.client.listening import run
from tests.client.servers import BOTH, Scripted, Visit, start, turns

TOPICS = ("a", "a/b", "b", "c/d/e")
FILTERS = ("a", "a/#", "+", "b", "#", "$share/g/a")
STEPS = 60
AT_ONCE = Backoff(first=0.0005, most=0.001)


class World:
    """One history."""

    def __init__(self, seed: int, version: int) -> None:
        self.chance = random.Random(seed)
        self.version = version
        self.server = Scripted(self.answer, obliges=True)
        self.forgets = False
        self.going: list[asyncio.Task[object]] = []
        self.held: list[Received] = []
        self.iterators: list[Messages] = []
        self.last_id = 0

    def answer(self, connect: Connect) -> ConnAck:
        """A session is resumed, unless the server has forgotten it; its limits change."""
        properties = Properties()
        if self.version == MQTT5 and self.chance.random() < 0.5:
            properties = Properties(receive_maximum=self.chance.choice((1, 3, 100)))
        is_present = not connect.clean_start and not self.forgets and len(self.server.visits) > 1
        if self.version == MQTT311:
            # The first connection ended what was before, the second began the session.
            is_present = is_present and len(self.server.visits) > 2
        self.forgets = False
        return ConnAck(session_present=is_present, properties=properties)

    @property
    def visit(self) -> Visit:
        return self.server.visits[-1]

    async def live(self) -> None:
        async with self.server:
            client = Client(
                self.server.url,
                client_id="a",
                version=self.version,
                session_expiry=100,
                keep_alive=0,
                reconnect=AT_ONCE,
            )
            async with client:
                for _ in range(STEPS):
                    self.step(client)
                    await turns(self.chance.choice((0, 0, 1, 2, 5, 20)))
                    if self.chance.random() < 0.2:
                        # Long enough to come back.
                        await asyncio.sleep(0.002)
                await self.end(client)

    def step(self, client: Client) -> None:
        """One thing happens."""
        chance = self.chance.random()
        if chance < 0.3:
            self.publish(client)
        elif chance < 0.5:
            self.deliver()
        elif chance < 0.65:
            self.acknowledge()
        elif chance < 0.75:
            self.subscribe(client)
        elif chance < 0.8 and self.iterators:
            self.unsubscribe()
        elif chance < 0.83 and self.going:
            self.chance.choice(self.going).cancel()
        elif chance < 0.86:
            self.resend()
        elif chance < 0.93:
            self.visit.cut()
        elif chance < 0.96:
            self.forgets = True
            self.visit.close()
        elif self.version == MQTT5 and self.is_up:
            self.visit.send(Disconnect(self.chance.choice((0x80, 0x8B, 0x8D))))
            self.visit.close()

    @property
    def is_up(self) -> bool:
        """Whether the server may speak on its last connection."""
        visit = self.visit
        connected = any(isinstance(each, Connect) for each in visit.sent)
        ended = any(isinstance(each, Disconnect) for each in visit.sent)
        return connected and not ended and not visit.ended and not visit.is_closing

    def publish(self, client: Client) -> None:
        topic = self.chance.choice(TOPICS)
        size = self.chance.choice((0, 10, 1000, 100_000))
        self.going.append(start(client.publish(topic, bytes(size), qos=self.chance.randrange(3))))

    def deliver(self) -> None:
        """The server has a message, or sends one again that is open."""
        if not self.is_up:
            return
        visit = self.visit
        side = visit.exchange.server
        qos = self.chance.randrange(3)
        if self.version == MQTT5 and side.quota <= 0:
            qos = 0
        if qos:
            self.last_id = self.last_id % 65535 + 1
            while side.stage(self.last_id):
                self.last_id = self.last_id % 65535 + 1
        packet = Publish(
            self.chance.choice(TOPICS), b"x", qos=qos, packet_id=self.last_id if qos else 0
        )
        visit.send(packet)

    def acknowledge(self) -> None:
        self.chance.shuffle(self.held)
        for message in self.held[: self.chance.randrange(4)]:
            message.ack()

    def subscribe(self, client: Client) -> None:
        filters = self.chance.sample(FILTERS, self.chance.randrange(1, 3))
        messages = client.subscribe(
            *filters, qos=self.chance.randrange(3), auto_ack=self.chance.random() < 0.3
        )
        self.iterators.append(messages)
        self.going.append(start(self.listen(messages)))

    async def listen(self, messages: Messages) -> None:
        async for message in messages:
            if self.chance.random() < 0.5:
                self.held.append(message)
            else:
                message.ack()
            await turns(self.chance.randrange(3))

    def unsubscribe(self) -> None:
        index = self.chance.randrange(len(self.iterators))
        self.going.append(start(self.iterators.pop(index).unsubscribe()))

    async def end(self, client: Client) -> None:
        """The network is well again: all comes to its end."""
        for iterator in self.iterators:
            self.going.append(start(iterator.unsubscribe()))
        self.iterators.clear()
        for task in self.going:
            with suppress(asyncio.CancelledError):
                try:
                    await task
                except (Disconnected, Refused, TimeoutError) as problem:
                    raise AssertionError(f"ended by {problem!r}") from problem
        # What was left unfinished, or is sent again, is for whoever comes next.
        rest = start(self.consume(client.messages()))
        for message in self.held:
            message.ack()
        assert await client.publish("end", qos=2) == 0
        while self.visit.exchange.carry():
            self.resend()
            await turns(20)
        assert await client.publish("end", qos=1) == 0
        await turns(50)
        assert client.counters.in_flight == 0
        assert client.counters.waiting == 0
        assert client.counters.unacknowledged == 0
        self.facts = client.counters
        rest.cancel()

    async def consume(self, messages: Messages) -> None:
        async for _ in messages:
            pass

    def resend(self) -> None:
        """[MQTT-4.4.0-1] The server's part: what it has not sent again yet on this connection."""
        if not self.is_up:
            return
        visit = self.visit
        for _, identifier, stage in visit.exchange.server.carry(SERVER):
            if visit.exchange.server.is_carried(identifier):
                qos = 1 if stage & 7 == 1 else 2
                if stage & 7 in (1, 2):
                    if self.version == MQTT5 and visit.exchange.server.quota <= 0:
                        return
                    visit.send(Publish("a", b"x", qos=qos, packet_id=identifier, dup=True))
                else:
                    visit.send(PubRel(identifier))


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_a_client_lives_through_any_history(first: int, version: int) -> None:
    for seed in range(first, first + 10):
        try:
            run(World(seed, version).live())
        except BaseException as problem:
            problem.add_note(f"seed {seed}")
            raise

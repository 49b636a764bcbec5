"""Connections that are cut before and after every packet: once is once, wherever it happens."""

import asyncio
from collections import deque

import pytest

from semel.client import Client
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
)
from tests.client.listening import run
from tests.client.servers import BOTH, QUICK, Scripted, Visit, accept, resume, start


def client_of(server: Scripted, version: int = MQTT5) -> Client:
    """One with a session that lasts, which comes back at once."""
    return Client(server.url, client_id="a", version=version, session_expiry=100, reconnect=QUICK)


class Keeper:
    """A server with a session: exactly once on its side, and it cuts where it is told to.

    `at` counts what passes, both ways. A packet is lost with the connection, or is the last to
    pass: so each is tried as sent and not received, and as received and not answered.
    """

    def __init__(self, server: Scripted, at: int, *, is_lost: bool) -> None:
        self.server = server
        self.at = at
        self.is_lost = is_lost
        self.count = 0
        # As receiver.
        self.received: list[bytes] = []
        self.stored: set[int] = set()
        # As sender: identifier to payload, or None when PUBREL is owed.
        self.open: dict[int, bytes | None] = {}
        self.qos = 2
        self.waiting: deque[bytes] = deque()
        self.last_id = 0

    def _passes(self) -> bool:
        """One more packet. Whether it arrives; False: the connection is gone before."""
        self.count += 1
        return self.count != self.at or not self.is_lost

    def _is_last(self) -> bool:
        return self.count == self.at

    async def live(self, visit: Visit) -> None:
        """One connection, until it is cut or its client leaves."""
        for identifier, payload in list(self.open.items()):
            again: Packet = PubRel(identifier)
            if payload is not None:
                again = Publish("b", payload, qos=self.qos, packet_id=identifier, dup=True)
            if not self._say(visit, again):
                return
        while True:
            while self.waiting and len(self.open) < 3:
                self.last_id += 1
                payload = self.open[self.last_id] = self.waiting.popleft()
                first = Publish("b", payload, qos=self.qos, packet_id=self.last_id)
                if not self._say(visit, first):
                    return
            await visit.until(lambda: visit.has_more or visit.ended)
            if not visit.has_more:
                return
            packet = await visit.packet()
            if isinstance(packet, Disconnect):
                return
            if not self._passes():
                visit.cut()
                return
            cut = self._is_last()
            for answer in self._hear(packet):
                if cut or not self._say(visit, answer):
                    visit.cut()
                    return
            if cut:
                visit.cut()
                return

    def _say(self, visit: Visit, packet: Packet) -> bool:
        """Whether the connection is there afterwards."""
        if visit.ended:
            return False
        if self._passes():
            visit.send(packet)
        if self._is_last():
            visit.close()
            return False
        return True

    def _hear(self, packet: Packet) -> list[Packet]:
        if isinstance(packet, Publish):
            if packet.packet_id not in self.stored:
                self.received.append(packet.payload)
            if packet.qos == 1:
                return [PubAck(packet.packet_id)]
            self.stored.add(packet.packet_id)
            return [PubRec(packet.packet_id)]
        if isinstance(packet, PubRel):
            self.stored.discard(packet.packet_id)
            return [PubComp(packet.packet_id)]
        if isinstance(packet, PubRec):
            if packet.packet_id in self.open:
                self.open[packet.packet_id] = None
            return [PubRel(packet.packet_id)]
        if isinstance(packet, PubAck | PubComp):
            self.open.pop(packet.packet_id, None)
            return []
        assert isinstance(packet, Subscribe), packet
        return [SubAck(packet.packet_id, [2])]

    async def serve(self) -> None:
        """All connections of the client."""
        while True:
            await self.live(await self.server.visit())


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_qos_2_message_is_published_once_wherever_the_connection_is_cut(
    is_lost: bool, version: int
) -> None:
    """[MQTT-4.3.3-1] before and after each packet of three exchanges, in both directions"""

    async def main() -> None:
        at = 0
        while True:
            at += 1
            async with Scripted(accept, resume) as server:
                keeper = Keeper(server, at, is_lost=is_lost)
                if version == MQTT311:
                    server.answers.appendleft(accept)
                client = client_of(server, version)
                opening = start(client.connect())
                if version == MQTT311:
                    await server.visit()
                serving = start(keeper.serve())
                await opening
                reasons = await asyncio.gather(
                    *(client.publish("b", str(n), qos=2) for n in range(3))
                )
                await client.close()
                serving.cancel()
            assert reasons == [0, 0, 0]
            assert sorted(keeper.received) == [b"0", b"1", b"2"], at
            if keeper.count < at:
                break
        assert at == 13

    run(main())


@pytest.mark.parametrize("auto_ack", [True, False])
@pytest.mark.parametrize("is_lost", [True, False])
def test_a_qos_2_message_is_handed_out_once_wherever_the_connection_is_cut(
    is_lost: bool, auto_ack: bool
) -> None:
    """[MQTT-4.3.3-2] (3.1.1) [MQTT-4.3.3-10] (5.0)"""

    async def main() -> None:
        for at in range(3, 30):
            async with Scripted(accept, resume) as server:
                keeper = Keeper(server, at, is_lost=is_lost)
                serving = start(keeper.serve())
                async with client_of(server) as client:
                    messages = await client.subscribe("b", qos=2, auto_ack=auto_ack)
                    payloads = [str(n).encode() for n in range(4)]
                    keeper.waiting.extend(payloads[:3])
                    # Wakes the server, as any packet of the client does.
                    await client.publish("c", b"begin", qos=1)
                    seen = []
                    for _ in range(3):
                        message = await anext(messages)
                        seen.append(message.payload)
                        message.ack()
                    await until_idle(keeper)
                    keeper.waiting.append(payloads[3])
                    await client.publish("c", b"end", qos=1)
                    seen.append((await anext(messages)).payload)
                    assert seen == payloads, at
                    assert client.counters.received == 4, at
                serving.cancel()

    run(main())


async def until_idle(keeper: Keeper) -> None:
    while keeper.open:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_qos_1_message_arrives_at_least_once_wherever_the_connection_is_cut(
    is_lost: bool,
) -> None:
    """[MQTT-4.3.2-1] and one that was not acknowledged is handed out once."""

    async def main() -> None:
        for at in range(3, 20):
            async with Scripted(accept, resume) as server:
                keeper = Keeper(server, at, is_lost=is_lost)
                keeper.qos = 1
                serving = start(keeper.serve())
                async with client_of(server) as client:
                    messages = await client.subscribe("b", qos=1, auto_ack=False)
                    payloads = [str(n).encode() for n in range(3)]
                    keeper.waiting.extend(payloads)
                    await client.publish("c", b"begin", qos=1)
                    seen: dict[str, bytes] = {}
                    while set(seen.values()) != set(payloads) or keeper.open:
                        try:
                            async with asyncio.timeout(0.05):
                                message = await anext(messages)
                        except TimeoutError:
                            continue
                        assert message.key not in seen
                        seen[message.key] = message.payload
                        message.ack()
                    assert b"begin" in keeper.received
                serving.cancel()

    run(main())

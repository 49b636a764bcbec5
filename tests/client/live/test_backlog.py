"""More than a program reads: what is kept for it, what is let go, and that nothing gets stuck."""

import asyncio
import gc
import tracemalloc

import pytest

from semel.client import Client, Messages
from semel.mqtt import (
    Packet,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from tests.client.listening import run
from tests.client.servers import Scripted, Visit, start, turns

MEBIBYTE = 1024 * 1024


async def payloads(messages: Messages, count: int) -> list[bytes]:
    return [(await anext(messages)).payload for _ in range(count)]


async def until_behind(client: Client) -> None:
    """Wait until the client has stopped to read.

    On a busy machine a timer may be late, and then precede what has arrived meanwhile: so nothing
    must arrive in many turns of the loop.
    """
    last = -1
    quiet = 0
    while quiet < 20:
        quiet = quiet + 1 if client.counters.received == last else 0
        last = client.counters.received
        await asyncio.sleep(0.02)


def flood(visit: Visit, topic: str, mebibytes: int) -> None:
    for _ in range(mebibytes):
        visit.send(Publish(topic, bytes(MEBIBYTE)))


def test_a_client_whose_program_does_not_read_stops_reading_too() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b")
            flood(visit, "b", 100)
            await until_behind(client)
            assert 16 <= client.counters.received < 40
            # Nothing is lost when it reads again.
            assert len(await payloads(messages, 100)) == 100
            assert client.counters.dropped == 0

    run(main())


def answers(visit: Visit, packet: Packet) -> None:
    """What a server says to it, behind all that it has said before."""
    if isinstance(packet, Publish):
        visit.send(PubAck(packet.packet_id))
    elif isinstance(packet, Subscribe):
        visit.send(SubAck(packet.packet_id, [0]))
    elif isinstance(packet, Unsubscribe):
        visit.send(UnsubAck(packet.packet_id, [0]))


@pytest.mark.parametrize("what", ["publish", "subscribe", "unsubscribe"])
def test_a_program_that_is_behind_still_gets_its_answers(what: str) -> None:
    """Its own loop waits for an answer that is behind what it has not read: no dead lock."""

    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b")
            other = await client.subscribe("other")
            await visit.take(Subscribe)
            await visit.take(Subscribe)
            server.grants = False
            flood(visit, "b", 60)
            await until_behind(client)

            async def requested() -> None:
                if what == "publish":
                    await client.publish("c", qos=1)
                elif what == "subscribe":
                    await client.subscribe("c")
                else:
                    await other.unsubscribe()

            going = start(requested())
            answers(visit, await visit.packet())
            async with asyncio.timeout(10):
                await going
            # And the client reads on when the program does.
            visit.send(Publish("b", b"last"))
            while (await anext(messages)).payload != b"last":
                pass

    run(main())


def test_unsubscribing_from_what_one_is_behind_with_frees_the_client() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b")
            flood(visit, "b", 60)
            await until_behind(client)
            async with asyncio.timeout(10):
                await messages.unsubscribe()
            other = await client.subscribe("c")
            flood(visit, "b", 60)
            visit.send(Publish("c", b"x"))
            assert await payloads(other, 1) == [b"x"]
            assert client.counters.dropped > 60

    run(main())


def test_a_bridge_under_a_flood_stays_in_bounded_memory() -> None:
    """Its loop waits for a PUBACK all the time, so that the client cannot stop reading."""

    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            source = await client.subscribe("b")
            passed = 0

            async def bridge() -> None:
                nonlocal passed
                async for message in source:
                    await client.publish("c", message.payload[:10], qos=1)
                    passed += 1

            going = start(bridge())
            tracemalloc.start()
            try:
                for _ in range(150):
                    visit.send(Publish("b", bytes(MEBIBYTE)))
                    await asyncio.sleep(0)
                await until_behind(client)
                grown = tracemalloc.get_traced_memory()[0]
            finally:
                tracemalloc.stop()
            # The server's own buffer is in this process as well.
            seen = client.counters.received
            assert grown < (60 + 150 - seen) * MEBIBYTE
            assert passed
            going.cancel()

    run(main())


def test_messages_that_nobody_takes_do_not_stop_the_client() -> None:
    """[MQTT-4.5.0-2] What was not asked for is acknowledged, and QoS 0 is let go."""

    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b")
            flood(visit, "unasked", 60)
            visit.send(Publish("b", b"x"))
            async with asyncio.timeout(10):
                assert await payloads(messages, 1) == [b"x"]

    run(main())


# --- iterators that nobody has any more -----------------------------------------------------------


def test_a_loop_that_is_left_gives_its_message_to_the_next_one() -> None:
    """Nobody said that it was done with it."""

    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()

            async def first() -> str:
                async for message in client.subscribe("b", qos=1):
                    return message.key
                raise AssertionError

            going = start(first())
            await visit.take(Subscribe)
            visit.send(
                Publish("b", b"1", qos=1, packet_id=1), Publish("b", b"2", qos=1, packet_id=2)
            )
            key = await going
            gc.collect()
            await turns()
            messages = await client.subscribe("b", qos=1)
            assert (await anext(messages)).key == key
            assert (await anext(messages)).payload == b"2"
            assert client.counters.unacknowledged == 1

    run(main())


def test_an_iterator_may_die_in_another_thread() -> None:
    """A garbage collection runs wherever it runs."""

    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            asyncio.get_running_loop().set_debug(True)
            messages = await client.subscribe("b", qos=1)
            visit.send(Publish("b", b"1", qos=1, packet_id=1))
            key = (await anext(messages)).key
            box = [messages]
            del messages
            await asyncio.to_thread(box.clear)
            again = await client.subscribe("b", qos=1)
            assert (await anext(again)).key == key
            loop = asyncio.get_running_loop()
            loop.set_debug(False)
            await loop.shutdown_default_executor()

    run(main())

"""Flow control of what is published: the server's quota, its pace, identifiers, and memory."""

import asyncio
import tracemalloc

import pytest

from semel.client import Client
from semel.mqtt import (
    ConnAck,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
)
from tests.client.listening import run
from tests.client.servers import Scripted, Visit, start, turns


def test_the_servers_receive_maximum_is_kept() -> None:
    """[MQTT-3.3.4-7] [MQTT-3.3.4-9]"""

    async def main() -> None:
        offered = ConnAck(properties=Properties(receive_maximum=2))
        async with Scripted(offered) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            going = [start(client.publish("b", bytes([n]), qos=n % 2 + 1)) for n in range(6)]
            await turns(30)
            packets = [each for each in visit.waiting() if isinstance(each, Publish)]
            assert [each.payload for each in packets] == [b"\x00", b"\x01"]
            # QoS 0 is not held up by that [MQTT-3.3.4-8].
            await client.publish("zero")
            assert (await visit.take(Publish)).topic_name == "zero"
            assert client.counters.waiting == 4
            payloads = [each.payload[0] for each in packets]
            while packets:
                packet = packets.pop(0)
                await complete(visit, packet)
                if len(payloads) < 6:
                    packets.append(await visit.take(Publish))
                    payloads.append(packets[-1].payload[0])
            assert payloads == [0, 1, 2, 3, 4, 5]
            assert await asyncio.gather(*going) == [0] * 6

    run(main())


async def complete(visit: Visit, packet: Publish) -> None:
    """The server's part of an exchange."""
    if packet.qos == 1:
        visit.send(PubAck(packet.packet_id))
    else:
        visit.send(PubRec(packet.packet_id))
        await visit.take(PubRel)
        visit.send(PubComp(packet.packet_id))


def test_messages_leave_in_the_order_of_their_publishing() -> None:
    """[MQTT-4.6.0-1] also those that waited for a quota, and those of one turn of the loop."""

    async def main() -> None:
        offered = ConnAck(properties=Properties(receive_maximum=3))
        async with Scripted(offered) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            going = [start(client.publish("b", str(n), qos=1)) for n in range(50)]
            for number in range(50):
                packet = await visit.take(Publish)
                assert packet.payload == str(number).encode()
                visit.send(PubAck(packet.packet_id))
            await asyncio.gather(*going)

    run(main())


def test_a_subscription_that_was_asked_for_first_leaves_first() -> None:
    """The program has no reason to think that its own message could overtake it."""

    async def main(qos: int) -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = client.subscribe("b")
            going = start(client.publish("b", qos=qos))
            kinds = [type(await visit.packet()).__name__ for _ in range(2)]
            assert kinds == ["Subscribe", "Publish"]
            going.cancel()
            del messages

    for qos in range(3):
        run(main(qos))


def test_thousands_of_messages_at_once_are_all_answered() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()

            async def answer() -> None:
                for _ in range(5000):
                    visit.send(PubAck((await visit.take(Publish)).packet_id))

            answering = start(answer())
            reasons = await asyncio.gather(*(client.publish("b", qos=1) for _ in range(5000)))
            assert reasons == [0] * 5000
            await answering
            assert (client.counters.sent, client.counters.in_flight) == (5000, 0)

    run(main())


def test_a_large_message_passes_whole() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            payload = bytes(range(256)) * 4096 * 16
            going = start(client.publish("b", payload, qos=1))
            packet = await visit.take(Publish)
            assert packet.payload == payload
            visit.send(PubAck(packet.packet_id))
            await going

    run(main())


@pytest.mark.parametrize("qos", [0, 1])
def test_a_server_that_stops_reading_makes_publish_wait_in_bounded_memory(qos: int) -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            visit.stop_reading()
            done = 0

            async def publish() -> None:
                nonlocal done
                for _ in range(200):
                    await client.publish("b", bytes(65536), qos=qos)
                    done += 1

            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                going = [start(publish()) for _ in range(10)]
                last = -1
                while last != done:
                    last = done
                    await asyncio.sleep(0.05)
                grown = tracemalloc.get_traced_memory()[0] - before
            finally:
                tracemalloc.stop()
            # Of 125 MiB some is in the system's buffers, and ten messages are at hand.
            assert done < 2000
            assert grown < 4 * 1024 * 1024
            for task in going:
                task.cancel()
            await asyncio.gather(*going, return_exceptions=True)
            visit.read_on()

    run(main())


def test_what_cannot_leave_is_kept_once_and_up_to_a_bound() -> None:
    """Messages wait as messages, not as bytes of packets too; and no more than 64 MiB of them."""

    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            visit.stop_reading()
            payload = bytes(65536)
            tracemalloc.start()
            try:
                before = tracemalloc.get_traced_memory()[0]
                going = [start(client.publish("b", payload, qos=1)) for _ in range(1500)]
                await asyncio.sleep(0.1)
                grown = tracemalloc.get_traced_memory()[0] - before
            finally:
                tracemalloc.stop()
            assert grown < 16 * 1024 * 1024
            assert 900 < client.counters.waiting <= 1025
            visit.read_on()
            assert await asyncio.gather(*going) == [0] * 1500

    run(main())


def test_publish_goes_on_when_the_server_reads_again() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            visit.stop_reading()
            going = start(publish_many(client, 300))
            await asyncio.sleep(0.05)
            assert not going.done()
            visit.read_on()
            await going
            for number in range(300):
                assert (await visit.take(Publish)).payload[:3] == b"%03d" % number

    run(main())


async def publish_many(client: Client, count: int) -> None:
    for number in range(count):
        await client.publish("b", b"%03d" % number + bytes(65536))

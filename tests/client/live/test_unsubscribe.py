"""The end of a subscription: of a block, by word, between connections, and over and over."""

import asyncio
import gc
import tracemalloc

import pytest

from semel.client import Client, Messages, Refused
from semel.mqtt import (
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from tests.client.listening import run
from tests.client.servers import BOTH, QUICK, Answer, Scripted, accept, resume, start, turns


async def payloads(messages: Messages, count: int) -> list[bytes]:
    return [(await anext(messages)).payload for _ in range(count)]


@pytest.mark.parametrize("version", BOTH)
def test_the_end_of_a_block_is_the_end_of_its_subscription(version: int) -> None:
    async def main() -> None:
        async with (
            Scripted(obliges=True) as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            async with client.subscribe("b", "c") as messages:
                assert set(messages.granted) == {"b", "c"}
                visit.send(Publish("c", b"x"))
                assert await payloads(messages, 1) == [b"x"]
            ended = [each for each in visit.sent if isinstance(each, Unsubscribe)]
            assert [each.topic_filters for each in ended] == [("b",), ("c",)]
            with pytest.raises(StopAsyncIteration):
                await anext(messages)

    run(main())


def test_a_block_whose_subscription_is_refused_is_not_entered() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()

            async def enter() -> None:
                async with client.subscribe("b"):
                    raise AssertionError("inside")

            going = start(enter())
            visit.send(SubAck((await visit.take(Subscribe)).packet_id, [0x87]))
            with pytest.raises(Refused):
                await going

    run(main())


class Mine(Exception):
    """Of the program."""


def test_an_exception_in_a_block_comes_out_whatever_the_server_does() -> None:
    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", reconnect=False) as client,
        ):
            visit = await server.visit()

            async def fail() -> None:
                async with client.subscribe("b"):
                    visit.close()
                    while client.connected:
                        await asyncio.sleep(0)
                    await turns()
                    raise Mine

            with pytest.raises(Mine):
                await fail()

    run(main())


def test_an_unsubscribe_that_is_refused_says_so() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b")
            await visit.take(Subscribe)
            going = start(messages.unsubscribe())
            visit.send(UnsubAck((await visit.take(Unsubscribe)).packet_id, [0x87]))
            with pytest.raises(Refused) as caught:
                await going
            assert caught.value.reason == 0x87
            # The iteration is over all the same.
            with pytest.raises(StopAsyncIteration):
                await anext(messages)

    run(main())


def test_no_subscription_existed_is_no_error() -> None:
    """[3.11.3] 0x11"""

    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b")
            await visit.take(Subscribe)
            going = start(messages.unsubscribe())
            visit.send(UnsubAck((await visit.take(Unsubscribe)).packet_id, [0x11]))
            await going
            await messages.unsubscribe()

    run(main())


@pytest.mark.parametrize("answer", [accept, resume])
def test_unsubscribing_between_two_connections_does_not_wait_for_one(answer: Answer) -> None:
    """What the server still has is ended when it is there again."""

    async def main() -> None:
        async with Scripted(accept, answer, obliges=True) as server:
            client = Client(server.url, client_id="a", reconnect=QUICK)
            await client.connect()
            visit = await server.visit()
            held = await client.subscribe("held")
            kept = await client.subscribe("kept")
            await server.stop_listening()
            visit.cut()
            while client.connected:
                await asyncio.sleep(0)
            async with asyncio.timeout(5):
                await held.unsubscribe()
            await server.listen()
            visit = await server.visit()
            visit.send(Publish("kept", b"x"))
            assert await payloads(kept, 1) == [b"x"]
            await turns(30)
            asked: list[tuple[str, ...]] = [
                each.topic_filters for each in visit.sent if isinstance(each, Unsubscribe)
            ]
            assert asked == ([("held",)] if client.session_present else [])
            await client.close()

    run(main())


def test_a_connection_that_is_lost_ends_the_wait_for_unsuback() -> None:
    async def main() -> None:
        async with (
            Scripted(resume, grants=True) as server,
            Client(server.url, client_id="a", reconnect=QUICK) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("b")
            await visit.take(Subscribe)
            going = start(messages.unsubscribe())
            await visit.take(Unsubscribe)
            visit.cut()
            async with asyncio.timeout(5):
                await going
            # And the server hears of it again.
            visit = await server.visit()
            assert (await visit.take(Unsubscribe)).topic_filters == ("b",)

    run(main())


def test_a_filter_that_is_given_up_and_wanted_again_at_once_is_wanted() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b")
            going = start(messages.unsubscribe())
            await asyncio.sleep(0)
            again = client.subscribe("b")
            async with asyncio.timeout(5):
                await going
                await again
            visit.send(Publish("b", b"x"))
            assert await payloads(again, 1) == [b"x"]

    run(main())


def test_subscribing_and_unsubscribing_over_and_over_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()

            async def once(number: int) -> None:
                async with client.subscribe(f"b/{number}", qos=number % 3):
                    pass
                visit.forget()

            for number in range(100):
                await once(number)
            gc.collect()
            tracemalloc.start()
            try:
                before = tracemalloc.take_snapshot().filter_traces(OF_THE_CLIENT)
                for number in range(1000):
                    await once(number)
                gc.collect()
                after = tracemalloc.take_snapshot().filter_traces(OF_THE_CLIENT)
            finally:
                tracemalloc.stop()
            grown = sum(entry.size_diff for entry in after.compare_to(before, "filename"))
            assert grown < 20_000

    run(main())


OF_THE_CLIENT = [tracemalloc.Filter(inclusive=True, filename_pattern="*/semel/*")]


@pytest.mark.parametrize("moment", range(8))
def test_a_block_that_is_cancelled_at_any_moment_unsubscribes(moment: int) -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()

            async def listen() -> None:
                async with client.subscribe("b") as messages:
                    await anext(messages)

            going = start(listen())
            await turns(moment)
            going.cancel()
            with pytest.raises(asyncio.CancelledError):
                await going
            messages = await client.subscribe("c")
            visit.send(Publish("c", b"x"))
            assert await payloads(messages, 1) == [b"x"]

    run(main())

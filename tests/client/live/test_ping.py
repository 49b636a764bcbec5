"""`Client.ping`: a PINGREQ that is answered shows that the server has read what came before."""

import asyncio

import pytest

from semel.client import Client, Disconnected
from semel.mqtt import PingReq, PingResp, Publish
from tests.client.listening import run
from tests.client.servers import BOTH, QUICK, Scripted, start, turns


@pytest.mark.parametrize("version", BOTH)
def test_a_ping_ends_with_its_answer_and_follows_what_was_published(version: int) -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", version=version, keep_alive=0) as client,
        ):
            visit = await server.visit()
            await client.publish("t", b"x" * 100_000)
            going = start(client.ping())
            assert (await visit.take(Publish)).payload == b"x" * 100_000
            await visit.take(PingReq)
            await turns()
            assert not going.done()
            visit.send(PingResp())
            await going

    run(main())


def test_each_ping_waits_for_its_own_answer() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            first, second = start(client.ping()), start(client.ping())
            await visit.take(PingReq)
            await visit.take(PingReq)
            visit.send(PingResp())
            await first
            await turns()
            assert not second.done()
            visit.send(PingResp())
            await second

    run(main())


def test_a_ping_that_is_cancelled_leaves_the_next_one_its_own_answer() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            first, second = start(client.ping()), start(client.ping())
            await visit.take(PingReq)
            first.cancel()
            await asyncio.wait((first,))
            visit.send(PingResp())
            await turns()
            assert not second.done()
            visit.send(PingResp())
            await second

    run(main())


def test_a_ping_of_a_connection_that_is_lost_says_so_though_another_follows() -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", reconnect=QUICK) as client,
        ):
            visit = await server.visit()
            going = start(client.ping())
            await visit.take(PingReq)
            visit.cut()
            with pytest.raises(Disconnected):
                await going
            visit = await server.visit()
            again = start(client.ping())
            await visit.take(PingReq)
            visit.send(PingResp())
            await again

    run(main())


def test_a_ping_without_a_connection_fails_with_the_reason() -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", reconnect=False) as client,
        ):
            visit = await server.visit()
            visit.cut()
            async with asyncio.timeout(30):
                while client.connected:
                    await asyncio.sleep(0.01)
            with pytest.raises(Disconnected, match=r"closed|reset"):
                await client.ping()

    run(main())

"""What the standards want of a client, where no other file is about it: keep alive, sessions."""

import asyncio

import pytest

from semel.client import Client, Disconnected
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    rules,
)
from tests.client.listening import run
from tests.client.servers import BOTH, QUICK, Scripted, accept, resume, start, turns


@pytest.mark.parametrize("version", BOTH)
def test_connect_is_the_first_packet_of_every_connection(version: int) -> None:
    """[MQTT-3.1.0-1] whatever the program wants to be sent already"""

    async def main() -> None:
        async with Scripted(accept, accept, resume, grants=True) as server:
            client = Client(server.url, client_id="a", version=version, reconnect=QUICK)
            async with client:
                for _ in range(3):
                    visit = await server.visit(greeted=False)
                    going = start(client.publish("b", qos=1))
                    messages = client.subscribe("c")
                    await visit.take(Connect)
                    visit.cut()
                    while client.connected:
                        await asyncio.sleep(0)
                    going.cancel()
                    del messages
            for visit in server.visits:
                if visit.sent:
                    assert isinstance(visit.sent[0], Connect)
                    assert sum(isinstance(each, Connect) for each in visit.sent) == 1

    run(main())


# --- keep alive -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
def test_a_client_that_has_nothing_to_say_pings_in_time(version: int) -> None:
    """[MQTT-3.1.2-23] (3.1.1) [MQTT-3.1.2-20] (5.0)"""

    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", version=version, keep_alive=1) as client,
        ):
            visit = await server.visit()
            for _ in range(3):
                # The server may give up after one and a half times the interval.
                async with asyncio.timeout(1.5):
                    await visit.take(PingReq)
                visit.send(PingResp())
            assert client.connected

    run(main())


def test_a_client_without_keep_alive_does_not_ping() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a", keep_alive=0):
            visit = await server.visit()
            await asyncio.sleep(1.5)
            assert visit.waiting() == []

    run(main())


def test_the_keep_alive_of_the_server_counts() -> None:
    """[MQTT-3.1.2-21] [MQTT-3.2.2-21] more often than the client would, or less"""

    async def pings(asked: int, told: int) -> set[type]:
        answer = ConnAck(properties=Properties(server_keep_alive=told))
        async with (
            Scripted(answer) as server,
            Client(server.url, client_id="a", keep_alive=asked),
        ):
            visit = await server.visit()
            await asyncio.sleep(1.4)
            return {type(each) for each in visit.waiting()}

    async def main() -> None:
        seen = await asyncio.gather(pings(60, 1), pings(0, 1), pings(1, 60), pings(1, 0))
        assert list(seen) == [{PingReq}, {PingReq}, set(), set()]

    run(main())


def test_a_server_that_does_not_answer_a_ping_is_given_up() -> None:
    """[3.1.2.10] and another connection is tried"""

    async def main() -> None:
        async with Scripted(accept, resume) as server:
            client = Client(server.url, client_id="a", keep_alive=1, reconnect=QUICK)
            async with client:
                visit = await server.visit()
                going = start(client.publish("b", qos=1))
                again = await server.visit()
                assert any(isinstance(each, PingReq) for each in visit.sent)
                packet = await again.take(Publish)
                assert packet.dup
                again.send(PubAck(packet.packet_id))
                await going

    run(main())


def test_a_server_that_answers_pings_may_be_silent_otherwise() -> None:
    async def main() -> None:
        async with (
            Scripted(obliges=True) as server,
            Client(server.url, client_id="a", keep_alive=1, reconnect=False) as client,
        ):
            visit = await server.visit()
            await asyncio.sleep(6.5)
            assert client.connected
            assert sum(isinstance(each, PingReq) for each in visit.sent) >= 6

    run(main())


def test_a_client_that_publishes_all_the_time_notices_a_server_that_is_gone() -> None:
    """What it sends needs no ping; that it hears nothing does."""

    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", keep_alive=1, reconnect=False) as client,
        ):
            visit = await server.visit()

            async def publish() -> None:
                while True:
                    await client.publish("b", b"x")
                    await asyncio.sleep(0.01)

            with pytest.raises(Disconnected, match="PINGREQ"):
                async with asyncio.timeout(20):
                    await publish()
            assert any(isinstance(each, PingReq) for each in visit.sent)

    run(main())


# --- sessions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
def test_a_client_keeps_its_session_by_its_client_id(version: int) -> None:
    """[MQTT-3.1.3-2] What one has open is sent again under its own name, and by nobody else."""

    async def main() -> None:
        async with Scripted(accept) as server:
            clients = {
                name: Client(
                    server.url,
                    client_id=name,
                    version=version,
                    session_expiry=100,
                    reconnect=QUICK,
                )
                for name in ("one", "other")
            }
            going = []
            for name, client in clients.items():
                await client.connect()
                visit = await server.visit()
                if version == MQTT311:
                    visit = await server.visit()
                going.append(start(client.publish(name, qos=1)))
                await visit.take(Publish)
            server.answers.append(resume)
            server.answers.popleft()
            for visit in list(server.visits):
                visit.cut()
            for _ in clients:
                visit = await server.visit(greeted=False)
                name = (await visit.take(Connect)).client_id
                packet = await visit.take(Publish)
                assert (packet.topic_name, packet.dup) == (name, True)
                visit.send(PubAck(packet.packet_id))
            await asyncio.gather(*going)
            for client in clients.values():
                await client.close()
            # Each connection's Exchange knew of the other's, which is not its session.
            server.complaints.clear()

    run(main())


@pytest.mark.parametrize("version", BOTH)
def test_a_clean_start_forgets_what_was_before(version: int) -> None:
    """[MQTT-3.1.2-6] (3.1.1) [MQTT-3.1.2-4] (5.0)"""

    async def main() -> None:
        async with Scripted(accept, grants=True) as server:
            client = Client(server.url, client_id="a", version=version)
            await client.connect()
            visit = await server.visit()
            going = [start(client.publish("old", qos=qos)) for qos in (1, 2)]
            messages = await client.subscribe("old", qos=2, auto_ack=False)
            visit.send(Publish("old", qos=1, packet_id=1), Publish("old", qos=2, packet_id=2))
            old = [await anext(messages) for _ in range(2)]
            await client.close()
            await asyncio.gather(*going, return_exceptions=True)
            await client.connect()
            visit = await server.visit(greeted=False)
            assert (await visit.take(Connect)).clean_start
            for message in old:
                message.ack()
            await client.publish("new")
            await turns(20)
            assert visit.sent[1:] == [Publish("new")]
            assert client.counters.unacknowledged == 0
            await client.close()

    run(main())


def test_what_a_client_has_no_room_for_closes_the_connection() -> None:
    """[MQTT-4.8.0-2] (3.1.1) A packet that is larger than the program wants to hold."""

    async def main() -> None:
        async with Scripted(grants=True) as server:
            client = Client(
                server.url,
                client_id="a",
                version=MQTT311,
                maximum_packet_size=100,
                reconnect=False,
            )
            async with client:
                visit = await server.visit()
                messages = await client.subscribe("b")
                await visit.take(Subscribe)
                visit.send(Publish("b", bytes(90)))
                assert len((await anext(messages)).payload) == 90
                visit.send(Publish("b", bytes(200)))
                with pytest.raises(Disconnected) as caught:
                    await anext(messages)
                assert caught.value.violation is not None
                assert caught.value.violation.rule is rules.PACKET_SIZE_WITHIN_MAXIMUM
                assert await visit.end() == []

    run(main())


def test_a_server_cannot_make_a_client_wait_for_a_packet_that_is_too_large() -> None:
    """It is refused by its first bytes, before it is there."""

    async def main(version: int) -> None:
        async with Scripted() as server:
            client = Client(
                server.url,
                client_id="a",
                version=version,
                maximum_packet_size=1000,
                reconnect=False,
            )
            async with client:
                visit = await server.visit()
                visit.send_bytes(b"\x30\xff\xff\xff\x7f")
                with pytest.raises(Disconnected) as caught:
                    await anext(client.messages())
                assert caught.value.violation is not None
                assert caught.value.violation.rule is rules.PACKET_SIZE_WITHIN_MAXIMUM

    run(main(MQTT5))
    run(main(MQTT311))

"""Closing: what is said, who is told, and that nothing is left, whatever happens meanwhile."""

import asyncio
from contextlib import suppress

import pytest

from semel.client import Backoff, Client, Disconnected
from semel.lab.testing import TestBroker
from semel.mqtt import (
    MQTT5,
    MQTT311,
    NO_PROPERTIES,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    Properties,
    Publish,
    Rule,
    Violation,
    Will,
    exchange_rules,
    rules,
)
from tests.client.listening import run
from tests.client.servers import BOTH, QUICK, Scripted, accept, resume, start, turns


def test_a_session_that_nobody_asked_for_ends_with_the_client() -> None:
    """It was kept for a reconnect alone: Session Expiry Interval 0 in DISCONNECT."""

    async def main() -> None:
        async with Scripted() as server:
            async with Client(server.url, client_id="a"):
                visit = await server.visit(greeted=False)
                connect = await visit.take(Connect)
                assert connect.properties.session_expiry_interval
            (packet,) = await visit.end()
            assert isinstance(packet, Disconnect)
            assert packet.reason == 0
            assert packet.properties.session_expiry_interval == 0

    run(main())


@pytest.mark.parametrize("session_expiry", [0, 1, 100, 0xFFFF_FFFF])
def test_a_session_that_was_asked_for_is_left_as_it_is(session_expiry: int) -> None:
    async def main() -> None:
        async with Scripted() as server:
            async with Client(server.url, client_id="a", session_expiry=session_expiry):
                visit = await server.visit(greeted=False)
                connect = await visit.take(Connect)
                assert connect.properties.session_expiry_interval == session_expiry
            assert await visit.end() == [Disconnect()]

    run(main())


@pytest.mark.parametrize("version", BOTH)
def test_the_client_closes_the_connection_after_its_disconnect(version: int) -> None:
    """[MQTT-3.14.4-1] (3.1.1) [MQTT-3.14.4-2] (5.0) without waiting for the server to do it"""

    async def main() -> None:
        async with Scripted() as server:
            client = Client(server.url, client_id="a", version=version)
            await client.connect()
            visit = await server.visit()
            visit.closes = False
            closing = start(client.close())
            packets = await visit.end()
            assert [type(packet) for packet in packets] == [Disconnect]
            visit.close()
            await closing

    run(main())


def test_nothing_is_sent_after_disconnect_while_the_server_does_not_close() -> None:
    """[MQTT-3.14.4-1] (5.0) [MQTT-3.14.4-2] (3.1.1): not even a PINGREQ"""

    async def main() -> None:
        async with Scripted(grants=True) as server:
            client = Client(server.url, client_id="a", keep_alive=1)
            await client.connect()
            visit = await server.visit()
            visit.closes = False
            closing = start(client.close())
            await asyncio.sleep(1.5)
            visit.close()
            await closing
            assert [type(packet) for packet in visit.waiting()] == [Disconnect]

    run(main())


def test_reason_0x04_leaves_the_will() -> None:
    """[3.14.2.1] In 3.1.1 a client leaves it by going without a word."""

    async def main(version: int) -> None:
        async with Scripted() as server:
            client = Client(server.url, client_id="a", version=version, will=Will("w"))
            await client.connect()
            visit = await server.visit()
            await client.close(reason=0x04)
            packets = await visit.end()
            if version == MQTT5:
                assert [each.reason for each in packets if isinstance(each, Disconnect)] == [4]
            else:
                assert packets == []

    run(main(MQTT5))
    run(main(MQTT311))


@pytest.mark.parametrize(
    ("reason", "properties", "rule"),
    [
        (0x00, Properties(session_expiry_interval=60), exchange_rules.SESSION_EXPIRY_NOT_REVIVED),
        (0x8E, NO_PROPERTIES, exchange_rules.REASON_CODE_FROM_ITS_SIDE),
        (0x01, NO_PROPERTIES, rules.REASON_CODE_IN_TABLE),
        (0x00, Properties(topic_alias=1), rules.PROPERTY_IN_ITS_PACKET),
    ],
)
def test_a_disconnect_that_breaks_a_rule_is_refused_and_the_client_stays_open(
    reason: int, properties: Properties, rule: Rule
) -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server:
            client = Client(server.url, client_id="a", session_expiry=0)
            await client.connect()
            visit = await server.visit()
            for _ in range(2):
                with pytest.raises(Violation) as caught:
                    await client.close(reason, properties=properties)
                assert caught.value.rule is rule
                assert client.connected
                await client.publish("b", qos=1)
            await client.close()
            assert not client.connected
            await visit.end()
            assert [type(each) for each in visit.sent] == [Connect, Publish, Publish, Disconnect]
            with pytest.raises(Disconnected):
                await client.publish("b")

    run(main())


def test_the_will_is_not_published_after_a_refused_disconnect() -> None:
    with TestBroker() as broker:

        async def main() -> None:
            url = f"mqtt://{broker.host}:{broker.port}"
            client = Client(url, client_id="a", session_expiry=0, will=Will("w"))
            await client.connect()
            with pytest.raises(Violation):
                await client.close(properties=Properties(session_expiry_interval=60))
            await client.close()
            async with Client(url, client_id="b", will=Will("x")) as other:
                await other.publish("last", qos=1)
                await other.close(reason=0x04)

        # The broker is in this process, too, and its sockets do not count as left behind.
        asyncio.run(main())
        broker.wait_for_message("x")
        assert [message.topic_name for message in broker.messages()] == ["last", "x"]


# What the client sends of its own accord: its session ends.
ENDS = Properties(session_expiry_interval=0)
EXPLAINED = Properties(reason_string="r" * 20, user_properties=[("a", "b" * 20)])
EXPIRY = Properties(session_expiry_interval=5)


@pytest.mark.parametrize(
    ("limit", "reason", "properties", "expected"),
    [
        (100, 0, EXPLAINED, Properties([*ENDS.items, *EXPLAINED.items])),
        (50, 0, EXPLAINED, ENDS),
        (9, 4, NO_PROPERTIES, ENDS),
        (8, 4, EXPLAINED, NO_PROPERTIES),
        (2, 0, EXPLAINED, NO_PROPERTIES),
        (50, 0, Properties([*EXPLAINED.items, *EXPIRY.items]), EXPIRY),
    ],
)
def test_a_disconnect_that_is_too_large_is_sent_without_what_is_optional(
    limit: int, reason: int, properties: Properties, expected: Properties
) -> None:
    """[MQTT-3.14.2-3] [MQTT-3.14.2-4]"""

    async def main() -> None:
        connack = ConnAck(properties=Properties(maximum_packet_size=limit))
        async with Scripted(connack) as server:
            client = Client(server.url, client_id="a", will=Will("w"))
            await client.connect()
            visit = await server.visit()
            await client.close(reason, properties=properties)
            assert await visit.end() == [Disconnect(reason, properties=expected)]

    run(main())


@pytest.mark.parametrize(("limit", "reason", "properties"), [(8, 0, EXPIRY), (2, 4, NO_PROPERTIES)])
def test_a_disconnect_whose_required_part_is_too_large_is_refused(
    limit: int, reason: int, properties: Properties
) -> None:
    async def main() -> None:
        connack = ConnAck(properties=Properties(maximum_packet_size=limit))
        async with Scripted(connack) as server:
            client = Client(server.url, client_id="a")
            await client.connect()
            visit = await server.visit()
            with pytest.raises(Violation) as caught:
                await client.close(reason, properties=properties)
            assert caught.value.rule is rules.PACKET_SIZE_WITHIN_MAXIMUM
            await client.close()
            assert await visit.end() == [Disconnect()]

    run(main())


def test_a_client_closes_without_disconnect_if_the_server_accepts_no_packet() -> None:
    async def main() -> None:
        connack = ConnAck(properties=Properties(maximum_packet_size=1))
        async with Scripted(connack) as server:
            async with Client(server.url, client_id="a"):
                visit = await server.visit()
            assert await visit.end() == []

    run(main())


def test_closing_twice_is_closing_once() -> None:
    async def main() -> None:
        async with Scripted() as server:
            client = Client(server.url, client_id="a")
            await client.connect()
            visit = await server.visit()
            await asyncio.gather(client.close(), client.close())
            await client.close()
            assert len(await visit.end()) == 1

    run(main())


def test_a_client_that_was_never_opened_may_be_closed() -> None:
    async def main() -> None:
        await Client("mqtt://localhost").close()

    run(main())


def test_whoever_waits_is_told() -> None:
    async def main() -> None:
        async with Scripted() as server:
            client = Client(server.url, client_id="a")
            await client.connect()
            visit = await server.visit()
            messages = client.subscribe("b")
            publishing = [start(client.publish("b", qos=qos)) for qos in (1, 2)]
            iterating = start(anext(messages))
            others = start(anext(client.messages()))
            asking = start(client.request("c", timeout=60))
            await turns(20)
            await client.close()
            for task in (*publishing, asking):
                with pytest.raises(Disconnected):
                    await task
            for task in (iterating, others):
                # A loop simply ends; a coroutine may not raise StopAsyncIteration as it is.
                with pytest.raises((StopAsyncIteration, RuntimeError)):
                    await task
            await visit.end()

    run(main())


def test_a_request_that_waits_for_its_answer_ends_with_the_client() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server:
            client = Client(server.url, client_id="a")
            await client.connect()
            visit = await server.visit()
            asking = start(client.request("c", qos=0, timeout=600))
            await visit.until(lambda: any(isinstance(each, Publish) for each in visit.sent))
            await client.close()
            with pytest.raises(Disconnected):
                await asking

    run(main())


def test_a_loop_over_messages_ends_when_the_client_is_closed() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server:
            client = Client(server.url, client_id="a")
            await client.connect()
            messages = await client.subscribe("b")

            async def listen() -> str:
                async for _ in messages:
                    pass
                return "ended"

            going = start(listen())
            await turns()
            await client.close()
            assert await going == "ended"

    run(main())


def test_a_client_may_be_closed_while_it_connects() -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            client = Client(server.url, client_id="a")
            opening = start(client.connect())
            visit = await server.visit()
            await client.close()
            with pytest.raises(Disconnected, match="closed"):
                await opening
            await visit.end()

    run(main())


@pytest.mark.parametrize("wait", [0.001, 600.0])
def test_a_client_may_be_closed_while_it_comes_back(wait: float) -> None:
    """At once, however long it would have waited."""

    async def main() -> None:
        async with Scripted(accept, resume) as server:
            backoff = Backoff(first=wait, most=wait)
            client = Client(server.url, client_id="a", session_expiry=9, reconnect=backoff)
            await client.connect()
            await server.stop_listening()
            (await server.visit()).cut()
            while client.connected:
                await asyncio.sleep(0)
            going = start(client.publish("b", qos=1))
            waiting = start(client.publish("b"))
            await turns(20)
            async with asyncio.timeout(5):
                await client.close()
            for task in (going, waiting):
                with pytest.raises(Disconnected, match="closed"):
                    await task

    run(main())


def test_closing_may_be_cancelled_at_any_moment() -> None:
    """What is left to be done is done at once."""

    async def main() -> None:
        async with Scripted() as server:
            for count in range(1, 40):
                client = Client(server.url, client_id="a")
                await client.connect()
                visit = await server.visit()
                closing = start(client.close())
                await turns(count)
                closing.cancel()
                with suppress(asyncio.CancelledError):
                    await closing
                assert not client.connected
                await visit.until_lost()
                with pytest.raises(Disconnected):
                    await client.publish("b")

    run(main())


def test_a_close_that_is_cancelled_does_not_wait_for_the_server() -> None:
    async def main() -> None:
        async with Scripted() as server:
            client = Client(server.url, client_id="a")
            await client.connect()
            visit = await server.visit()
            visit.closes = False
            closing = start(client.close())
            await visit.end()
            assert not visit.lost
            closing.cancel()
            # The server would have five seconds.
            async with asyncio.timeout(3):
                with pytest.raises(asyncio.CancelledError):
                    await closing

    run(main())


def test_a_connect_that_is_cancelled_does_not_wait_for_the_server() -> None:
    async def main() -> None:
        async with Scripted(None) as server:
            client = Client(server.url, client_id="a")
            opening = start(client.connect())
            visit = await server.visit()
            visit.closes = False
            opening.cancel()
            async with asyncio.timeout(3):
                with pytest.raises(asyncio.CancelledError):
                    await opening

    run(main())


def test_a_server_that_does_not_read_cannot_keep_a_client_open() -> None:
    async def main() -> None:
        async with Scripted() as server:
            client = Client(server.url, client_id="a")
            await client.connect()
            visit = await server.visit()
            visit.stop_reading()
            going = start(publish_until_stuck(client))
            last = -1
            while client.counters.sent != last:
                last = client.counters.sent
                await asyncio.sleep(0.05)
            await client.close()
            with pytest.raises(Disconnected):
                await going

    run(main())


async def publish_until_stuck(client: Client) -> None:
    while True:
        await client.publish("b", bytes(65536))


def test_a_client_that_is_behind_may_be_closed() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server:
            async with Client(server.url, client_id="a") as client:
                visit = await server.visit()
                messages = await client.subscribe("b")
                for _ in range(60):
                    visit.send(Publish("b", bytes(1024 * 1024)))
                last = -1
                while client.counters.received != last:
                    last = client.counters.received
                    await asyncio.sleep(0.02)
            with pytest.raises(StopAsyncIteration):
                await anext(messages)

    run(main())


def test_a_server_that_breaks_a_rule_while_the_client_closes_is_not_heard() -> None:
    async def main() -> None:
        async with Scripted() as server:
            client = Client(server.url, client_id="a")
            await client.connect()
            visit = await server.visit()
            visit.closes = False
            closing = start(client.close())
            await visit.end()
            visit.send_bytes(b"\x00" * 100_000)
            visit.close()
            await closing

    run(main())


def test_counters_are_there_when_the_client_is_closed() -> None:
    """What a program wants to print at its end."""

    async def main() -> None:
        async with Scripted(obliges=True) as server:
            client = Client(server.url, client_id="a")
            assert client.counters.sent == 0
            async with client:
                await client.publish("b", qos=1)
            assert client.counters.sent == 1

    run(main())


def test_a_ping_that_is_due_when_the_client_is_closed_is_not_sent() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server:
            async with Client(server.url, client_id="a", keep_alive=1):
                visit = await server.visit()
                await visit.take(PingReq)
            await asyncio.sleep(1)
            assert sum(isinstance(each, PingReq) for each in visit.sent) <= 2
            assert isinstance(visit.sent[-1], Disconnect)

    run(main())


def test_a_final_problem_is_the_same_for_everybody_who_asks() -> None:
    async def main() -> None:
        async with Scripted() as server:
            client = Client(server.url, client_id="a", reconnect=False)
            async with client:
                visit = await server.visit()
                going = [start(client.publish("b", qos=1)) for _ in range(3)]
                await turns()
                visit.send_bytes(b"\x20\x03\x00\x00\x00")
                for task in going:
                    with pytest.raises(Disconnected) as caught:
                        await task
                    assert caught.value.violation is not None
                    assert caught.value.violation.rule is exchange_rules.CONNACK_ONCE
                depth = []
                for _ in range(50):
                    with pytest.raises(Disconnected) as caught:
                        await client.publish("b")
                    trace = caught.value.__traceback__
                    count = 0
                    while trace is not None:
                        count += 1
                        trace = trace.tb_next
                    depth.append(count)
                assert max(depth) < 10

    run(main())


def test_leaving_and_coming_back_at_once_works_a_hundred_times() -> None:
    async def main() -> None:
        async with Scripted(accept, resume, obliges=True) as server:
            for _ in range(100):
                async with Client(server.url, client_id="a", reconnect=QUICK) as client:
                    await client.publish("b", qos=1)

    run(main())

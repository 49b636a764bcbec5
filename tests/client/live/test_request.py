"""Requests and their answers (5.0, section 4.10)."""

import asyncio

import pytest

from semel.client import Client, Disconnected, Refused
from semel.mqtt import (
    MQTT311,
    ConnAck,
    Packet,
    Properties,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Violation,
)
from tests.client.listening import run
from tests.client.servers import QUICK, Scripted, Visit, accept, resume, start, turns


async def asked(visit: Visit) -> Publish:
    """The next request; a SUBSCRIBE for its answers may come first."""
    packet: Packet = await visit.packet()
    while not isinstance(packet, Publish):
        packet = await visit.packet()
    return packet


def answer(visit: Visit, request: Publish, payload: bytes) -> None:
    properties = request.properties
    assert properties.response_topic is not None
    assert properties.correlation_data is not None
    visit.send(
        Publish(
            properties.response_topic,
            payload,
            properties=Properties(correlation_data=properties.correlation_data),
        )
    )


def test_a_request_is_answered() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            going = start(client.request("square", b"7", timeout=10))
            subscribe = await visit.take(Subscribe)
            packet = await visit.take(Publish)
            assert (packet.topic_name, packet.payload, packet.qos) == ("square", b"7", 1)
            topic = packet.properties.response_topic
            assert [each.topic_filter for each in subscribe.subscriptions] == [topic]
            answer(visit, packet, b"49")
            assert (await going).payload == b"49"
            # The second one needs no other subscription.
            going = start(client.request("square", b"8", qos=0, timeout=10))
            answer(visit, await asked(visit), b"64")
            assert (await going).payload == b"64"
            assert sum(isinstance(each, Subscribe) for each in visit.sent) == 1

    run(main())


def test_many_requests_at_once_get_their_own_answers_in_any_order() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            going = [start(client.request("q", str(n), timeout=10)) for n in range(20)]
            packets = [await asked(visit) for _ in going]
            assert len({each.properties.correlation_data for each in packets}) == 20
            for packet in reversed(packets):
                answer(visit, packet, b"to " + packet.payload)
            answers = await asyncio.gather(*going)
            assert [each.payload for each in answers] == [f"to {n}".encode() for n in range(20)]
            assert sum(isinstance(each, Subscribe) for each in visit.sent) == 1

    run(main())


def test_the_servers_response_information_is_used() -> None:
    """[3.2.2.3.15]"""

    async def main() -> None:
        connack = ConnAck(properties=Properties(response_information="reply/here"))
        requested = Properties(request_response_information=1)
        async with (
            Scripted(connack, obliges=True) as server,
            Client(server.url, client_id="a", properties=requested) as client,
        ):
            visit = await server.visit()
            going = start(client.request("q", timeout=10))
            packet = await asked(visit)
            topic = packet.properties.response_topic
            assert topic is not None
            assert topic.startswith("reply/here/")
            answer(visit, packet, b"x")
            await going

    run(main())


def test_a_response_topic_of_the_programs_own_and_its_properties_are_kept() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            going = start(
                client.request(
                    "q",
                    timeout=10,
                    response_topic="mine",
                    properties=Properties(content_type="text/plain"),
                )
            )
            packet = await asked(visit)
            assert packet.properties.response_topic == "mine"
            assert packet.properties.content_type == "text/plain"
            answer(visit, packet, b"x")
            assert (await going).topic == "mine"

    run(main())


def test_an_iterator_of_the_response_topic_goes_on_getting_its_messages() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("mine")
            going = start(client.request("q", timeout=10, response_topic="mine"))
            answer(visit, await asked(visit), b"x")
            assert (await going).payload == b"x"
            assert (await anext(messages)).payload == b"x"

    run(main())


def test_no_answer_is_a_time_out_and_a_late_one_is_nobodys() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            with pytest.raises(TimeoutError):
                await client.request("q", b"1", timeout=0.05)
            late = await asked(visit)
            going = start(client.request("q", b"2", timeout=10))
            packet = await asked(visit)
            answer(visit, late, b"late")
            answer(visit, packet, b"right")
            assert (await going).payload == b"right"
            assert client.counters.unacknowledged == 0

    run(main())


def test_an_answer_without_correlation_data_is_nobodys() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            going = start(client.request("q", timeout=10))
            packet = await asked(visit)
            topic = packet.properties.response_topic
            assert topic is not None
            visit.send(Publish(topic, b"?", qos=1, packet_id=1))
            await visit.until(lambda: PubAck(1) in visit.sent)
            assert not going.done()
            answer(visit, packet, b"!")
            assert (await going).payload == b"!"

    run(main())


def test_a_client_that_starts_anew_does_not_take_an_answer_of_before() -> None:
    """The session and its messages may outlive the program."""

    async def main() -> None:
        seen = set()
        async with Scripted(obliges=True) as server:
            for _ in range(2):
                async with Client(server.url, client_id="a") as client:
                    visit = await server.visit()
                    with pytest.raises(TimeoutError):
                        await client.request("q", timeout=0.02)
                    seen.add((await asked(visit)).properties.correlation_data)
        assert len(seen) == 2

    run(main())


def test_the_time_out_covers_the_connection_and_the_subscription() -> None:
    async def main() -> None:
        async with Scripted(accept, resume) as server:
            client = Client(server.url, client_id="a", reconnect=QUICK)
            await client.connect()
            # SUBACK does not come.
            with pytest.raises(TimeoutError):
                await client.request("q", timeout=0.05)
            await server.stop_listening()
            (await server.visit()).cut()
            while client.connected:
                await asyncio.sleep(0)
            with pytest.raises(TimeoutError):
                await client.request("q", timeout=0.05)
            await client.close()

    run(main())


def test_a_subscription_that_is_refused_refuses_the_request() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            for _ in range(2):
                going = start(client.request("q", timeout=10))
                visit.send(SubAck((await visit.take(Subscribe)).packet_id, [0x87]))
                with pytest.raises(Refused):
                    await going
            # And when it is granted later, so is the request.
            going = start(client.request("q", timeout=10))
            server.obliges = True
            visit.send(SubAck((await visit.take(Subscribe)).packet_id, [1]))
            answer(visit, await asked(visit), b"x")
            await going

    run(main())


def test_a_request_over_a_reconnect_is_answered() -> None:
    async def main() -> None:
        async with (
            Scripted(accept, resume, grants=True) as server,
            Client(server.url, client_id="a", reconnect=QUICK) as client,
        ):
            visit = await server.visit()
            going = start(client.request("q", timeout=20))
            await asked(visit)
            visit.cut()
            visit = await server.visit()
            packet = await asked(visit)
            assert packet.dup
            visit.send(PubAck(packet.packet_id))
            answer(visit, packet, b"x")
            assert (await going).payload == b"x"

    run(main())


def test_a_request_that_fails_with_the_connection_says_so() -> None:
    async def main() -> None:
        async with (
            Scripted(obliges=True) as server,
            Client(server.url, client_id="a", reconnect=False) as client,
        ):
            visit = await server.visit()
            going = start(client.request("q", timeout=20))
            await asked(visit)
            await turns(20)
            visit.send_bytes(b"\x00")
            with pytest.raises(Disconnected):
                await going

    run(main())


def test_a_request_may_be_cancelled_at_any_moment() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            for count in range(30):
                going = start(client.request("q", str(count), timeout=20))
                await turns(count)
                going.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await going
            going = start(client.request("q", b"last", timeout=20))
            packet = await asked(visit)
            while packet.payload != b"last":
                packet = await asked(visit)
            answer(visit, packet, b"x")
            assert (await going).payload == b"x"

    run(main())


def test_a_program_that_is_behind_gets_its_answer() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b")
            for _ in range(60):
                visit.send(Publish("b", bytes(1024 * 1024)))
            going = start(client.request("q", qos=0, timeout=20))
            answer(visit, await asked(visit), b"x")
            assert (await going).payload == b"x"
            assert (await anext(messages)).topic == "b"

    run(main())


def test_3_1_1_has_no_requests() -> None:
    async def main() -> None:
        async with (
            Scripted(obliges=True) as server,
            Client(server.url, client_id="a", version=MQTT311) as client,
        ):
            visit = await server.visit()
            with pytest.raises(Violation):
                await client.request("q", timeout=5)
            await turns(20)
            assert visit.waiting() == []

    run(main())


def test_a_client_id_that_is_no_topic_level_makes_requests_all_the_same() -> None:
    """A client id may have + and # in it, and a topic may not."""

    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a/+#") as client:
            visit = await server.visit()
            going = start(client.request("q", timeout=10))
            packet = await asked(visit)
            answer(visit, packet, b"x")
            await going

    run(main())

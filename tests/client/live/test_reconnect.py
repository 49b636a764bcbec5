"""Coming back: what is sent again and how, what is handed out again, and when it is no use."""

import asyncio
from itertools import pairwise

import pytest

from semel.client import Backoff, Client, Disconnected, Messages, Refused
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
)
from tests.client.listening import run
from tests.client.servers import (
    BOTH,
    QUICK,
    Answer,
    Scripted,
    Visit,
    accept,
    resume,
    start,
    turns,
)


def client_of(server: Scripted, version: int = MQTT5, **more: object) -> Client:
    """One with a session that lasts, which comes back at once."""
    options: dict[str, object] = {"session_expiry": 100, **more}
    return Client(server.url, client_id="a", version=version, reconnect=QUICK, **options)  # type: ignore[arg-type]


async def first_visit(server: Scripted, version: int) -> Visit:
    """In 3.1.1 a session that lasts begins with a connection that ends another."""
    if version == MQTT311:
        await server.visit()
    return await server.visit()


async def gone(client: Client) -> None:
    while client.connected:
        await asyncio.sleep(0)


# --- what is sent again ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
def test_a_resumed_session_sends_again_what_was_not_acknowledged(version: int) -> None:
    """[MQTT-4.4.0-1] with DUP 1, the same identifiers, in their order; and nothing else."""

    async def main() -> None:
        answers: list[Answer] = [accept, accept, resume]
        async with (
            Scripted(*answers[2 - (version == MQTT311) - 1 :]) as server,
            client_of(server, version) as client,
        ):
            visit = await first_visit(server, version)
            going = [
                start(client.publish("b", str(number), qos=qos))
                for number, qos in enumerate((1, 2, 2, 1, 2))
            ]
            packets = [await visit.take(Publish) for _ in range(5)]
            assert not any(packet.dup for packet in packets)
            visit.send(PubAck(packets[0].packet_id))
            # The third before the second: their PUBRELs keep that order.
            visit.send(PubRec(packets[2].packet_id), PubRec(packets[1].packet_id))
            for _ in range(2):
                await visit.take(PubRel)
            assert await going[0] == 0
            visit.cut()
            visit = await server.visit(greeted=False)
            assert not (await visit.take(Connect)).clean_start
            again = [await visit.packet() for _ in range(4)]
            released = [each for each in again if isinstance(each, PubRel)]
            resent = [each for each in again if isinstance(each, Publish)]
            assert [each.packet_id for each in released] == [
                packets[2].packet_id,
                packets[1].packet_id,
            ]
            assert [(each.packet_id, each.payload, each.dup) for each in resent] == [
                (packets[3].packet_id, b"3", True),
                (packets[4].packet_id, b"4", True),
            ]
            visit.send(PubComp(packets[1].packet_id), PubComp(packets[2].packet_id))
            visit.send(PubAck(packets[3].packet_id), PubRec(packets[4].packet_id))
            await visit.take(PubRel)
            visit.send(PubComp(packets[4].packet_id))
            assert await asyncio.gather(*going) == [0] * 5
            counters = client.counters
            assert (counters.reconnects, counters.sessions_lost, counters.resent) == (1, 0, 0)
            assert client.session_present

    run(main())


def test_a_lost_session_is_discarded_and_its_messages_are_sent_anew() -> None:
    """[MQTT-3.2.2-5] (5.0) DUP 0, in their order; the server has forgotten what it acknowledged."""

    async def main() -> None:
        async with Scripted(accept, accept) as server, client_of(server) as client:
            visit = await server.visit()
            going = [start(client.publish("b", str(n), qos=n % 2 + 1)) for n in range(5)]
            packets = [await visit.take(Publish) for _ in range(5)]
            # The server has the second message: it is complete, with a PUBREL to nobody.
            visit.send(PubRec(packets[1].packet_id))
            await visit.take(PubRel)
            visit.cut()
            visit = await server.visit(greeted=False)
            assert not (await visit.take(Connect)).clean_start
            assert await going[1] == 0
            again = [await visit.take(Publish) for _ in range(4)]
            assert [each.payload for each in again] == [b"0", b"2", b"3", b"4"]
            assert not any(each.dup for each in again)
            for each in again:
                if each.qos == 1:
                    visit.send(PubAck(each.packet_id))
                else:
                    visit.send(PubRec(each.packet_id))
                    await visit.take(PubRel)
                    visit.send(PubComp(each.packet_id))
            assert await asyncio.gather(*going) == [0] * 5
            counters = client.counters
            assert (counters.sessions_lost, counters.resent) == (1, 4)
            assert not client.session_present

    run(main())


def test_messages_that_wait_come_after_those_that_are_sent_anew() -> None:
    async def main() -> None:
        two = ConnAck(properties=Properties(receive_maximum=2))
        async with Scripted(two) as server, client_of(server) as client:
            visit = await server.visit()
            going = [start(client.publish("b", str(n), qos=1)) for n in range(6)]
            await visit.take(Publish)
            await visit.take(Publish)
            visit.cut()
            visit = await server.visit()
            for number in range(6):
                packet = await visit.take(Publish)
                assert (packet.payload, packet.dup) == (str(number).encode(), False)
                visit.send(PubAck(packet.packet_id))
            await asyncio.gather(*going)

    run(main())


@pytest.mark.parametrize("version", BOTH)
def test_a_clean_session_of_3_1_1_counts_what_it_may_have_lost(version: int) -> None:
    """Without session_expiry a 3.1.1 client has no session to come back to."""

    async def main() -> None:
        async with (
            Scripted(accept) as server,
            client_of(server, version, session_expiry=None) as client,
        ):
            visit = await server.visit()
            going = start(client.publish("b", qos=1))
            await visit.take(Publish)
            visit.cut()
            visit = await server.visit(greeted=False)
            assert (await visit.take(Connect)).clean_start is (version == MQTT311)
            packet = await visit.take(Publish)
            assert not packet.dup
            visit.send(PubAck(packet.packet_id))
            await going
            assert (client.counters.sessions_lost, client.counters.resent) == (1, 1)

    run(main())


def test_a_smaller_receive_maximum_is_kept_by_what_is_sent_again() -> None:
    """[MQTT-3.3.4-7] [4.9]"""

    async def main() -> None:
        one = ConnAck(session_present=True, properties=Properties(receive_maximum=1))
        async with Scripted(accept, one) as server, client_of(server) as client:
            visit = await server.visit()
            going = [start(client.publish("b", str(n), qos=1)) for n in range(4)]
            for _ in going:
                await visit.take(Publish)
            visit.cut()
            visit = await server.visit()
            for number in range(4):
                packet = await visit.take(Publish)
                assert (packet.payload, packet.dup) == (str(number).encode(), True)
                await turns(20)
                assert visit.waiting() == []
                visit.send(PubAck(packet.packet_id))
            await asyncio.gather(*going)

    run(main())


def test_a_puback_for_what_was_not_sent_again_yet_is_taken() -> None:
    """It was on its way when the connection ended, or the server is quick."""

    async def main() -> None:
        one = ConnAck(session_present=True, properties=Properties(receive_maximum=1))
        async with Scripted(accept, one) as server, client_of(server) as client:
            visit = await server.visit()
            going = [start(client.publish("b", str(n), qos=1)) for n in range(2)]
            packets = [await visit.take(Publish) for _ in going]
            visit.cut()
            visit = await server.visit()
            await visit.take(Publish)
            visit.send(PubAck(packets[1].packet_id))
            assert await going[1] == 0
            visit.send(PubAck(packets[0].packet_id))
            assert await going[0] == 0
            await turns(20)
            assert visit.waiting() == []

    run(main())


# --- what is handed out again ---------------------------------------------------------------------


async def take(messages: Messages, count: int) -> list[bytes]:
    return [(await anext(messages)).payload for _ in range(count)]


@pytest.mark.parametrize("version", BOTH)
def test_a_qos_1_message_that_the_program_has_is_not_handed_out_again(version: int) -> None:
    """It is the same message, and its acknowledgement is that of the new connection."""

    async def main() -> None:
        async with Scripted(accept, resume, grants=True) as server:
            if version == MQTT311:
                server.answers.appendleft(accept)
            async with client_of(server, version) as client:
                visit = await first_visit(server, version)
                messages = await client.subscribe("b", qos=1, auto_ack=False)
                visit.send(
                    Publish("b", b"1", qos=1, packet_id=1), Publish("b", b"2", qos=1, packet_id=2)
                )
                one, two = await anext(messages), await anext(messages)
                visit.cut()
                visit = await server.visit()
                visit.send(
                    Publish("b", b"1", qos=1, packet_id=1, dup=True),
                    Publish("b", b"2", qos=1, packet_id=2, dup=True),
                    Publish("b", b"3", qos=1, packet_id=3),
                )
                assert (await anext(messages)).payload == b"3"
                two.ack()
                await turns(20)
                assert visit.waiting() == []
                one.ack()
                assert await visit.take(PubAck) == PubAck(1)
                assert await visit.take(PubAck) == PubAck(2)
                assert client.counters.received == 3

    run(main())


def test_a_qos_1_message_whose_puback_did_not_leave_is_acknowledged_when_it_comes_again() -> None:
    """The program has acknowledged it: it need not see it again."""

    async def main() -> None:
        async with Scripted(accept, resume, grants=True) as server, client_of(server) as client:
            visit = await server.visit()
            messages = await client.subscribe("b", qos=1, auto_ack=False)
            for number in (1, 2, 3):
                visit.send(Publish("b", bytes([number]), qos=1, packet_id=number))
            one, two, three = [await anext(messages) for _ in range(3)]
            # Held back by the first; and acknowledged when there is no connection.
            two.ack()
            visit.cut()
            await gone(client)
            three.ack()
            visit = await server.visit()
            for number in (1, 2, 3):
                visit.send(Publish("b", bytes([number]), qos=1, packet_id=number, dup=True))
            visit.send(Publish("b", b"new"))
            assert (await anext(messages)).payload == b"new"
            one.ack()
            assert [(await visit.take(PubAck)).packet_id for _ in range(3)] == [1, 2, 3]
            # The identifiers are free now: what comes by them is new, with DUP 1 as well.
            visit.send(Publish("b", b"other", qos=1, packet_id=2))
            assert (await anext(messages)).payload == b"other"

    run(main())


def test_a_message_of_a_lost_session_is_still_the_programs() -> None:
    """[MQTT-3.2.2-5] Nobody is told of its acknowledgement, and it holds nobody up."""

    async def main() -> None:
        async with Scripted(accept, grants=True) as server, client_of(server) as client:
            visit = await server.visit()
            messages = await client.subscribe("b", qos=2, auto_ack=False)
            visit.send(
                Publish("b", b"1", qos=1, packet_id=1), Publish("b", b"2", qos=2, packet_id=2)
            )
            old = [await anext(messages) for _ in range(2)]
            visit.cut()
            visit = await server.visit()
            await visit.take(Subscribe)
            visit.send(
                Publish("b", b"new1", qos=1, packet_id=1),
                Publish("b", b"new2", qos=2, packet_id=2),
            )
            new = [await anext(messages) for _ in range(2)]
            assert [each.payload for each in new] == [b"new1", b"new2"]
            for message in old:
                message.ack()
            await turns(20)
            assert visit.waiting() == []
            for message in new:
                message.ack()
            assert await visit.take(PubAck) == PubAck(1)
            assert await visit.take(PubRec) == PubRec(2)

    run(main())


def test_a_server_that_sends_again_with_dup_0_changes_nothing() -> None:
    """[MQTT-3.3.1-1] is broken by the server, and the standard lets us carry on.

    An identifier that nobody has acknowledged is no other message's.
    """

    async def main() -> None:
        async with Scripted(accept, resume, grants=True) as server, client_of(server) as client:
            visit = await server.visit()
            messages = await client.subscribe("b", qos=1, auto_ack=False)
            for number in (1, 2):
                visit.send(Publish("b", bytes([number]), qos=1, packet_id=number))
            one, two = await anext(messages), await anext(messages)
            # Held back by the first.
            two.ack()
            visit.cut()
            visit = await server.visit()
            for number in (1, 2):
                visit.misbehave(Publish("b", bytes([number]), qos=1, packet_id=number))
            visit.send(Publish("b", b"new"))
            assert (await anext(messages)).payload == b"new"
            one.ack()
            assert [(await visit.take(PubAck)).packet_id for _ in range(2)] == [1, 2]
            # A new message by that identifier, lost once, is not mistaken for the old one.
            visit.cut()
            visit = await server.visit()
            visit.send(Publish("b", b"other", qos=1, packet_id=1, dup=True))
            assert (await anext(messages)).payload == b"other"

    run(main())


# --- subscriptions --------------------------------------------------------------------------------


def test_a_session_that_is_lost_is_subscribed_to_again() -> None:
    async def main() -> None:
        async with Scripted(accept, grants=True) as server, client_of(server) as client:
            visit = await server.visit()
            messages = await client.subscribe("b", "c", qos=1)
            visit.cut()
            visit = await server.visit()
            again = [(await visit.take(Subscribe)).subscriptions[0] for _ in range(2)]
            assert [(each.topic_filter, each.qos) for each in again] == [("b", 1), ("c", 1)]
            visit.send(Publish("c", b"x"))
            assert await take(messages, 1) == [b"x"]

    run(main())


def test_a_session_that_is_resumed_is_not_subscribed_to_again() -> None:
    async def main() -> None:
        async with Scripted(accept, resume, grants=True) as server, client_of(server) as client:
            visit = await server.visit()
            messages = await client.subscribe("b", qos=1)
            visit.cut()
            visit = await server.visit()
            visit.send(Publish("b", b"x"))
            assert await take(messages, 1) == [b"x"]
            assert visit.waiting() == []

    run(main())


def test_a_subscription_that_was_not_answered_is_asked_for_again() -> None:
    async def main() -> None:
        async with Scripted(accept, resume) as server, client_of(server) as client:
            visit = await server.visit()
            messages = client.subscribe("b", qos=1)
            await visit.take(Subscribe)
            visit.cut()
            visit = await server.visit()
            packet = await visit.take(Subscribe)
            visit.send(SubAck(packet.packet_id, [1]))
            await messages
            assert messages.granted == {"b": 1}

    run(main())


def test_a_filter_may_be_subscribed_to_between_two_connections() -> None:
    async def main() -> None:
        async with Scripted(accept, resume, grants=True) as server, client_of(server) as client:
            (await server.visit()).cut()
            await gone(client)
            messages = client.subscribe("b")
            visit = await server.visit()
            await messages
            visit.send(Publish("b", b"x"))
            assert await take(messages, 1) == [b"x"]

    run(main())


def test_a_server_that_refuses_a_subscription_later_is_heard() -> None:
    async def main() -> None:
        async with Scripted(accept) as server, client_of(server) as client:
            visit = await server.visit()
            messages = client.subscribe("b")
            visit.send(SubAck((await visit.take(Subscribe)).packet_id, [0]))
            await messages
            visit.cut()
            visit = await server.visit()
            visit.send(SubAck((await visit.take(Subscribe)).packet_id, [0x87]))
            with pytest.raises(Refused):
                await anext(messages)

    run(main())


# --- when, and when not ---------------------------------------------------------------------------


def test_waits_grow_to_a_bound_and_are_never_the_same() -> None:
    backoff = Backoff(first=0.5, most=60.0)
    for failures in range(1, 2000):
        bound = min(60.0, 0.5 * 2.0 ** min(failures - 1, 20))
        delays = {backoff.delay(failures) for _ in range(20)}
        assert all(bound / 2 <= delay <= bound for delay in delays)
        assert len(delays) > 1


@pytest.mark.parametrize(("first", "most"), [(0.0, 1.0), (-1.0, 1.0), (2.0, 1.0)])
def test_a_backoff_that_makes_no_sense_is_refused(first: float, most: float) -> None:
    with pytest.raises(ValueError, match="Backoff"):
        Backoff(first=first, most=most)
    Backoff(first=1.0, most=1.0)


def test_a_client_comes_back_as_soon_as_the_server_does() -> None:
    async def main() -> None:
        async with Scripted(accept, resume) as server, client_of(server) as client:
            visit = await server.visit()
            await server.stop_listening()
            visit.cut()
            await gone(client)
            while client.counters.reconnects < 5:
                await asyncio.sleep(0.001)
            await server.listen()
            visit = await server.visit()
            await client.publish("b")
            assert (await visit.take(Publish)).topic_name == "b"
            assert client.connected

    run(main())


def test_a_server_that_does_not_answer_the_second_connect_is_tried_again() -> None:
    async def main() -> None:
        async with (
            Scripted(accept, None, resume) as server,
            client_of(server, connect_timeout=0.05) as client,
        ):
            (await server.visit()).cut()
            await server.visit()
            await server.visit()
            await client.publish("b")

    run(main())


@pytest.mark.parametrize("reason", [0x80, 0x82, 0x83, 0x89, 0x8B, 0x8D, 0x96, 0x97, 0xA0])
def test_after_a_disconnect_that_may_pass_the_client_comes_back(reason: int) -> None:
    async def main() -> None:
        async with Scripted(accept, resume) as server, client_of(server) as client:
            visit = await server.visit()
            visit.send(Disconnect(reason))
            assert await visit.end() == []
            visit = await server.visit()
            await client.publish("b")
            assert (await visit.take(Publish)).topic_name == "b"

    run(main())


@pytest.mark.parametrize("reason", [0x87, 0x8E, 0x98, 0x9C, 0x9D])
def test_after_a_disconnect_that_is_meant_the_client_does_not_come_back(reason: int) -> None:
    """Whoever took over would lose the session in turn, and so on for ever."""

    async def main() -> None:
        async with Scripted(accept) as server, client_of(server) as client:
            visit = await server.visit()
            messages = client.messages()
            said = Properties(reason_string="why", server_reference="other:1883")
            visit.send(Disconnect(reason, properties=said))
            with pytest.raises(Disconnected, match="why") as caught:
                await anext(messages)
            assert caught.value.reason == reason
            assert caught.value.properties.server_reference == "other:1883"
            assert "other:1883" in str(caught.value)
            assert len(server.visits) == 1

    run(main())


@pytest.mark.parametrize("reason", [0x88, 0x89, 0x97, 0x9F])
def test_a_connack_that_may_pass_is_tried_again(reason: int) -> None:
    async def main() -> None:
        async with Scripted(accept, ConnAck(reason), resume) as server, client_of(server) as client:
            (await server.visit()).cut()
            await server.visit()
            visit = await server.visit()
            await client.publish("b")
            assert (await visit.take(Publish)).topic_name == "b"

    run(main())


@pytest.mark.parametrize("reason", [0x84, 0x85, 0x86, 0x87, 0x8A, 0x9C])
def test_a_connack_that_is_meant_ends_the_client(reason: int) -> None:
    async def main() -> None:
        async with Scripted(accept, ConnAck(reason)) as server, client_of(server) as client:
            visit = await server.visit()
            going = start(client.publish("b", qos=1))
            await visit.take(Publish)
            visit.cut()
            with pytest.raises(Refused) as caught:
                await going
            assert caught.value.reason == reason
            with pytest.raises(Refused):
                await client.publish("b")
            assert len(server.visits) == 2

    run(main())


def test_a_server_that_breaks_a_rule_is_not_visited_again() -> None:
    async def main() -> None:
        async with Scripted(accept) as server, client_of(server) as client:
            visit = await server.visit()
            visit.send_bytes(b"\x00\x00")
            with pytest.raises(Disconnected) as caught:
                await anext(client.messages())
            assert caught.value.violation is not None
            await turns(20)
            assert len(server.visits) == 1

    run(main())


def test_a_server_that_accepts_and_goes_is_visited_less_and_less_often() -> None:
    """A CONNACK alone is no success: the waits grow all the same."""

    async def main() -> None:
        async with Scripted(accept, resume) as server:
            backoff = Backoff(first=0.02, most=10.0)
            client = Client(server.url, client_id="a", session_expiry=100, reconnect=backoff)
            await client.connect()
            clock = asyncio.get_running_loop().time
            times = []
            for _ in range(6):
                visit = await server.visit()
                times.append(clock())
                visit.cut()
            waits = [later - earlier for earlier, later in pairwise(times)]
            # The last is 0.16 s at least; had they begun anew, it would be 0.02 s at the most.
            assert waits[-1] > 4 * 0.02
            await client.close()

    run(main())


def test_every_lost_connection_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Scripted(accept, resume) as server, client_of(server):
            (await server.visit()).cut()
            await server.visit()

    run(main())
    (record,) = [each for each in caplog.records if each.name == "semel.client"]
    assert "trying again" in record.getMessage()
    assert record.exc_info is None


def test_a_client_over_hundreds_of_cuts_keeps_its_messages_straight() -> None:
    async def main() -> None:
        async with Scripted(accept, resume, obliges=True) as server, client_of(server) as client:
            sent = 0

            async def publish() -> None:
                nonlocal sent
                while True:
                    await client.publish("b", str(sent), qos=sent % 3)
                    sent += 1
                    await asyncio.sleep(0)

            going = start(publish())
            for number in range(100):
                visit = await server.visit()
                await turns(number % 13)
                visit.cut()
            await server.visit()
            before = sent
            while sent < before + 10:
                await asyncio.sleep(0)
            going.cancel()
            assert client.counters.reconnects == 100
            assert client.counters.sessions_lost == 0

    run(main())


def test_packets_that_were_to_leave_when_the_connection_went_are_not_sent_twice() -> None:
    """What the program does in the very turn in which the connection is lost."""

    async def main() -> None:
        async with Scripted(accept, resume, grants=True) as server, client_of(server) as client:
            visit = await server.visit()
            messages = await client.subscribe("b", qos=1, auto_ack=False)
            visit.send(Publish("b", qos=1, packet_id=1))
            message = await anext(messages)
            visit.cut()
            await asyncio.sleep(0)
            message.ack()
            going = start(client.publish("c", qos=1))
            visit = await server.visit()
            packets = [await visit.take(Publish)]
            visit.send(PubAck(packets[0].packet_id))
            await going
            visit.send(Publish("b", qos=1, packet_id=1, dup=True))
            again = start(anext(messages))
            await turns(20)
            if again.done():
                # Its PUBACK had left, and nobody can say how far it got.
                again.result().ack()
            else:
                again.cancel()
            assert await visit.take(PubAck) == PubAck(1)
            await turns(20)
            assert visit.waiting() == []

    run(main())

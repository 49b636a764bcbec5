"""Acknowledging what came: when, in which order, and what happens to what nobody acknowledged."""

import asyncio

import pytest

from semel.client import Client, Disconnected, Messages, Received
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Disconnect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
    exchange_rules,
    rules,
)
from semel.mqtt.reasons import PACKET_IDENTIFIER_NOT_FOUND
from tests.client.listening import run
from tests.client.servers import BOTH, Scripted, Visit, start, turns


def acks(visit: Visit) -> list[Packet]:
    """What the client has acknowledged since the last look."""
    return [each for each in visit.waiting() if isinstance(each, PubAck | PubRec | PubComp)]


def sent(visit: Visit, qos: int, *identifiers: int, topic: str = "b") -> None:
    for identifier in identifiers:
        payload = str(identifier).encode()
        visit.send(Publish(topic, payload, qos=qos, packet_id=identifier))


async def take(messages: Messages, count: int) -> list[Received]:
    return [await anext(messages) for _ in range(count)]


# --- when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize(("qos", "ack"), [(1, PubAck), (2, PubRec)])
def test_automatic_mode_acknowledges_when_the_next_message_is_asked_for(
    qos: int, ack: type[PubAck | PubRec], version: int
) -> None:
    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("b", qos=qos)
            sent(visit, qos, 1, 2)
            first = await anext(messages)
            await turns(20)
            assert acks(visit) == []
            assert client.counters.unacknowledged == 2
            states = [first.acknowledged]
            await anext(messages)
            states.append(first.acknowledged)
            assert states == [False, True]
            await turns(20)
            assert acks(visit) == [ack(1)]

    run(main())


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize(("qos", "ack"), [(1, PubAck), (2, PubRec)])
def test_manual_mode_acknowledges_when_the_program_says_so(
    qos: int, ack: type[PubAck | PubRec], version: int
) -> None:
    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("b", qos=qos, auto_ack=False)
            sent(visit, qos, 1, 2)
            first, second = await take(messages, 2)
            await turns(20)
            assert acks(visit) == []
            first.ack()
            await turns(20)
            assert acks(visit) == [ack(1)]
            assert (first.acknowledged, second.acknowledged) == (True, False)
            # Once more changes nothing.
            first.ack()
            second.ack()
            second.ack()
            await turns(20)
            assert acks(visit) == [ack(2)]
            assert client.counters.unacknowledged == 0

    run(main())


def test_a_qos_0_message_has_nothing_to_acknowledge() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b", auto_ack=False)
            visit.send(Publish("b"))
            message = await anext(messages)
            message.ack()
            message.ack()
            await turns(20)
            assert acks(visit) == []

    run(main())


def test_every_key_is_another() -> None:
    async def main() -> None:
        keys = set()
        async with Scripted(obliges=True) as server:
            for _ in range(2):
                async with Client(server.url, client_id="a") as client:
                    visit = await server.visit()
                    messages = await client.subscribe("b", qos=1)
                    visit.send(Publish("b"), Publish("b", qos=1, packet_id=1))
                    await anext(messages)
                    visit.send(Publish("b", qos=1, packet_id=2))
                    keys |= {message.key for message in await take(messages, 2)}
        assert len(keys) == 4

    run(main())


# --- Method B -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("auto_ack", [True, False])
def test_a_qos_2_message_is_handed_out_once_however_often_it_is_sent(
    version: int, auto_ack: bool
) -> None:
    """[MQTT-4.3.3-2] (3.1.1) [MQTT-4.3.3-10] (5.0): until PUBREL, and answered each time."""

    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("b", qos=2, auto_ack=auto_ack)
            sent(visit, 2, 1)
            message = await anext(messages)
            message.ack()
            await turns(20)
            again = Publish("b", b"1", qos=2, packet_id=1, dup=version == MQTT311)
            visit.misbehave(again, again)
            await turns(20)
            assert acks(visit) == [PubRec(1), PubRec(1), PubRec(1)]
            visit.send(PubRel(1))
            await turns(20)
            assert acks(visit) == [PubComp(1)]
            # After PUBREL it is another message.
            sent(visit, 2, 1)
            other = await anext(messages)
            assert other.key != message.key
            assert client.counters.received == 2

    run(main())


@pytest.mark.parametrize("version", BOTH)
def test_a_qos_2_message_that_is_sent_again_before_it_is_acknowledged_waits_for_that(
    version: int,
) -> None:
    """And when its PUBREL has come, no PUBREC is left to be sent for it."""

    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("b", qos=2, auto_ack=False)
            sent(visit, 2, 1, 2)
            visit.misbehave(Publish("b", b"1", qos=2, packet_id=1, dup=version == MQTT311))
            first, second = await take(messages, 2)
            first.ack()
            await turns(20)
            assert acks(visit) == [PubRec(1)]
            visit.send(PubRel(1))
            await turns(20)
            assert acks(visit) == [PubComp(1)]
            second.ack()
            await turns(20)
            assert acks(visit) == [PubRec(2)]

    run(main())


@pytest.mark.parametrize("version", BOTH)
def test_a_pubrel_for_nothing_is_answered(version: int) -> None:
    """[MQTT-4.3.3-11] (5.0) It may be that the PUBCOMP was lost."""

    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            visit.misbehave(PubRel(7))
            packet = await visit.take(PubComp)
            reason = PACKET_IDENTIFIER_NOT_FOUND if version == MQTT5 else 0
            assert packet == PubComp(7, reason)
            assert client.connected

    run(main())


@pytest.mark.parametrize("version", BOTH)
def test_a_pubrec_for_nothing_is_answered(version: int) -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            visit.misbehave(PubRec(7))
            packet = await visit.take(PubRel)
            reason = PACKET_IDENTIFIER_NOT_FOUND if version == MQTT5 else 0
            assert packet == PubRel(7, reason)
            assert client.connected

    run(main())


# --- in which order -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize(("qos", "ack"), [(1, PubAck), (2, PubRec)])
def test_acknowledgements_leave_in_the_order_of_the_messages(
    qos: int, ack: type[PubAck | PubRec], version: int
) -> None:
    """[MQTT-4.6.0-2] [MQTT-4.6.0-3] whatever order the program has."""

    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("b", qos=qos, auto_ack=False)
            sent(visit, qos, 4, 1, 3, 2)
            four, one, three, two = await take(messages, 4)
            for message in (two, one):
                message.ack()
                await turns(20)
                assert acks(visit) == []
            four.ack()
            await turns(20)
            assert acks(visit) == [ack(4), ack(1)]
            three.ack()
            await turns(20)
            assert acks(visit) == [ack(3), ack(2)]

    run(main())


def test_qos_1_and_qos_2_do_not_wait_for_each_other() -> None:
    """[4.6] has an order for PUBACKs and one for PUBRECs."""

    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b", qos=2, auto_ack=False)
            sent(visit, 1, 1)
            sent(visit, 2, 2)
            sent(visit, 1, 3)
            one, two, three = await take(messages, 3)
            three.ack()
            two.ack()
            await turns(20)
            assert acks(visit) == [PubRec(2)]
            one.ack()
            await turns(20)
            assert acks(visit) == [PubAck(1), PubAck(3)]

    run(main())


def test_pubcomp_is_sent_whatever_is_not_acknowledged() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b", qos=2, auto_ack=False)
            sent(visit, 2, 1, 2)
            first, second = await take(messages, 2)
            first.ack()
            await turns(20)
            visit.send(PubRel(1))
            await turns(20)
            assert acks(visit) == [PubRec(1), PubComp(1)]
            assert not second.acknowledged

    run(main())


def test_pubrels_leave_in_the_order_of_the_pubrecs() -> None:
    """[MQTT-4.6.0-4]"""

    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            going = [start(client.publish("b", qos=2)) for _ in range(3)]
            packets = [(await visit.take(Publish)).packet_id for _ in range(3)]
            for identifier in reversed(packets):
                visit.send(PubRec(identifier))
            released = [(await visit.take(PubRel)).packet_id for _ in range(3)]
            assert released == packets[::-1]
            visit.send(*(PubComp(identifier) for identifier in packets))
            await asyncio.gather(*going)

    run(main())


# --- several parts of a program -------------------------------------------------------------------


def test_a_message_for_two_iterators_is_acknowledged_when_both_have() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            one = await client.subscribe("b", qos=1, auto_ack=False)
            other = await client.subscribe("b", qos=1, auto_ack=False)
            sent(visit, 1, 1)
            mine = await anext(one)
            yours = await anext(other)
            assert mine.key == yours.key
            mine.ack()
            await turns(20)
            assert acks(visit) == []
            assert (mine.acknowledged, yours.acknowledged) == (True, False)
            yours.ack()
            await turns(20)
            assert acks(visit) == [PubAck(1)]

    run(main())


def test_a_message_that_the_other_iterator_will_not_read_is_acknowledged() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            one = await client.subscribe("b", qos=1, auto_ack=False)
            other = await client.subscribe("b", qos=1, auto_ack=False)
            sent(visit, 1, 1, 2)
            first = await anext(one)
            first.ack()
            await turns(20)
            acks(visit)
            await other.unsubscribe()
            await turns(20)
            assert acks(visit) == [PubAck(1)]
            # The second is still for the one that is left.
            (await anext(one)).ack()
            await turns(20)
            assert acks(visit) == [PubAck(2)]

    run(main())


# --- what nobody takes ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize(("qos", "ack"), [(1, PubAck), (2, PubRec)])
def test_every_message_is_acknowledged_wanted_or_not(
    qos: int, ack: type[PubAck | PubRec], version: int
) -> None:
    """[MQTT-4.5.0-2]"""

    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("b", qos=qos)
            sent(visit, qos, 1, 2, topic="unasked")
            sent(visit, qos, 3)
            (await anext(messages)).ack()
            await turns(20)
            assert acks(visit) == [ack(1), ack(2), ack(3)]
            assert client.counters.dropped == 2

    run(main())


def test_what_was_not_read_of_a_subscription_that_is_over_is_acknowledged() -> None:
    """[MQTT-4.5.0-2] and so is what was on its way when it ended."""

    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b", qos=1)
            await visit.take(Subscribe)
            sent(visit, 1, 1, 2)
            (await anext(messages)).ack()
            going = start(messages.unsubscribe())
            server.obliges = True
            sent(visit, 1, 3)
            packet = await visit.packet()
            while not isinstance(packet, Unsubscribe):
                packet = await visit.packet()
            await going
            other = await client.subscribe("c", qos=1)
            sent(visit, 1, 4, topic="c")
            (await anext(other)).ack()
            await turns(20)
            answered = [each for each in visit.sent if isinstance(each, PubAck)]
            assert answered == [PubAck(1), PubAck(2), PubAck(3), PubAck(4)]

    run(main())


@pytest.mark.parametrize("way", ["loop", "block"])
def test_unsubscribing_from_within_is_no_reason_not_to_acknowledge(way: str) -> None:
    """The body was done with its message when the next was asked for, or the block left."""

    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            if way == "loop":
                messages = await client.subscribe("b", qos=1)
                sent(visit, 1, 1)
                async for _ in messages:
                    await messages.unsubscribe()
            else:
                async with client.subscribe("b", qos=1) as messages:
                    sent(visit, 1, 1)
                    await anext(messages)
                    await messages.unsubscribe()
            await turns(20)
            assert [each for each in visit.sent if isinstance(each, PubAck)] == [PubAck(1)]
            assert client.counters.unacknowledged == 0

    run(main())


def test_leaving_a_block_acknowledges_what_its_body_was_at() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            async with client.subscribe("b", qos=1) as messages:
                sent(visit, 1, 1)
                async for _ in messages:
                    break
            await turns(20)
            assert [each for each in visit.sent if isinstance(each, PubAck)] == [PubAck(1)]

    run(main())


class Mine(Exception):
    """Of the program."""


def test_what_a_body_failed_with_is_not_acknowledged_and_is_handed_out_again() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            keys = []
            kept = []

            async def fail() -> None:
                async with client.subscribe("b", qos=1) as messages:
                    # It is the end of the block that counts, not that of the object.
                    kept.append(messages)
                    sent(visit, 1, 1)
                    async for message in messages:
                        keys.append(message.key)
                        raise Mine

            with pytest.raises(Mine):
                await fail()
            await turns(20)
            assert acks(visit) == []
            messages = await client.subscribe("b", qos=1)
            message = await anext(messages)
            assert ([message.key], message.acknowledged) == (keys, False)
            message.ack()
            await turns(20)
            assert acks(visit) == [PubAck(1)]

    run(main())


# --- flow control ---------------------------------------------------------------------------------


def test_a_server_that_sends_more_than_the_receive_maximum_breaks_a_rule() -> None:
    """[MQTT-3.3.4-9] What the program has not acknowledged counts."""

    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", receive_maximum=2, reconnect=False) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("b", qos=1, auto_ack=False)
            sent(visit, 1, 1, 2)
            first, _ = await take(messages, 2)
            first.ack()
            await visit.until(lambda: PubAck(1) in visit.sent)
            sent(visit, 1, 3)
            await anext(messages)
            visit.misbehave(Publish("b", qos=1, packet_id=4))
            with pytest.raises(Disconnected) as caught:
                await anext(messages)
            assert caught.value.violation is not None
            assert caught.value.violation.rule is exchange_rules.RECEIVE_MAXIMUM_KEPT
            await visit.end()
            assert isinstance(visit.sent[-1], Disconnect)
            assert visit.sent[-1].reason == 0x93

    run(main())


def test_a_message_larger_than_the_maximum_packet_size_breaks_a_rule() -> None:
    """[MQTT-3.1.2-24]"""

    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", maximum_packet_size=64, reconnect=False) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("b")
            visit.send(Publish("b", bytes(58)))
            assert len((await anext(messages)).payload) == 58
            visit.misbehave(Publish("b", bytes(59)))
            with pytest.raises(Disconnected) as caught:
                await anext(messages)
            assert caught.value.violation is not None
            assert caught.value.violation.rule is rules.PACKET_SIZE_WITHIN_MAXIMUM
            await visit.end()
            assert isinstance(visit.sent[-1], Disconnect)
            assert visit.sent[-1].reason == 0x95

    run(main())


# --- at the end -----------------------------------------------------------------------------------


def test_acknowledgements_that_were_given_leave_before_the_client_does() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server:
            async with Client(server.url, client_id="a") as client:
                visit = await server.visit()
                messages = await client.subscribe("b", qos=1, auto_ack=False)
                sent(visit, 1, 1, 2)
                first, _ = await take(messages, 2)
                first.ack()
            kinds = [each for each in await visit.end() if not isinstance(each, Subscribe)]
            assert kinds[0] == PubAck(1)
            assert isinstance(kinds[1], Disconnect)
            assert len(kinds) == 2

    run(main())


def test_acknowledging_when_the_client_is_closed_does_nothing() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server:
            async with Client(server.url, client_id="a") as client:
                visit = await server.visit()
                messages = await client.subscribe("b", qos=2, auto_ack=False)
                sent(visit, 1, 1)
                sent(visit, 2, 2)
                received = await take(messages, 2)
            await visit.end()
            for message in received:
                message.ack()
                assert message.acknowledged
            await turns()
            late.extend(received)

    late: list[Received] = []
    run(main())
    # Nor when its loop is: a program may end in any order.
    for message in late:
        message.ack()


def test_acknowledging_while_the_client_closes_sends_nothing_after_disconnect() -> None:
    """[MQTT-3.14.4-1] The server takes its time to close."""

    async def main() -> None:
        async with Scripted(grants=True) as server:
            client = Client(server.url, client_id="a")
            await client.connect()
            visit = await server.visit()
            visit.closes = False
            messages = await client.subscribe("b", qos=2, auto_ack=False)
            sent(visit, 1, 1)
            sent(visit, 2, 2)
            received = await take(messages, 2)
            closing = start(client.close())
            await visit.until(lambda: isinstance(visit.sent[-1], Disconnect))
            for message in received:
                message.ack()
            await turns(20)
            visit.close()
            await closing
            assert isinstance(visit.sent[-1], Disconnect)

    run(main())


def test_an_answer_and_a_broken_rule_in_one_segment_are_told_apart() -> None:
    """What was still to be said does not come after DISCONNECT."""

    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", reconnect=False) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("b", qos=2, auto_ack=False)
            sent(visit, 2, 1)
            (await anext(messages)).ack()
            await visit.until(lambda: PubRec(1) in visit.sent)
            visit.misbehave(PubRel(1), ConnAck())
            with pytest.raises(Disconnected) as caught:
                await anext(messages)
            assert caught.value.violation is not None
            assert caught.value.violation.rule is exchange_rules.CONNACK_ONCE
            await visit.end()
            assert isinstance(visit.sent[-1], Disconnect)

    run(main())


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_a_server_that_takes_not_even_an_acknowledgement_is_left(size: int) -> None:
    """[MQTT-3.2.2-15] Nothing larger is sent, and that is told in words."""

    async def main() -> None:
        little = ConnAck(properties=Properties(maximum_packet_size=size))
        async with (
            Scripted(little) as server,
            Client(server.url, client_id="a", reconnect=False) as client,
        ):
            visit = await server.visit()
            messages = client.messages(auto_ack=False)
            sent(visit, 1, 1)
            (await anext(messages)).ack()
            if size >= 4:
                assert await visit.take(PubAck) == PubAck(1)
            else:
                with pytest.raises(Disconnected, match="at most"):
                    await anext(messages)
        await visit.end()

    run(main())

"""Subscriptions: what is asked for, who gets what comes, and how that ends."""

import asyncio
from contextlib import suppress

import pytest

from semel.client import Client, Disconnected, Messages, Refused
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Properties,
    PubAck,
    Publish,
    Rule,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
    Violation,
    exchange_rules,
    rules,
)
from tests.client.listening import run
from tests.client.servers import BOTH, QUICK, Scripted, Visit, resume, start, turns


async def payloads(messages: Messages, count: int) -> list[bytes]:
    return [(await anext(messages)).payload for _ in range(count)]


async def granted(visit: Visit) -> Subscribe:
    """Answer the next SUBSCRIBE by what it asks for."""
    packet = await visit.take(Subscribe)
    visit.send(SubAck(packet.packet_id, [each.qos for each in packet.subscriptions]))
    return packet


# --- asking ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
def test_a_subscription_brings_its_messages(version: int) -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            messages = client.subscribe("b/+", qos=1)
            packet = await granted(visit)
            assert packet.subscriptions == (Subscription("b/+", 1),)
            assert await messages is messages
            assert messages.granted == {"b/+": 1}
            visit.send(Publish("b/1", b"x", qos=1, packet_id=9, retain=True))
            message = await anext(messages)
            assert (message.topic, message.payload) == ("b/1", b"x")
            assert (message.qos, message.retain, message.dup) == (1, True, False)
            assert message.packet_id == 9
            assert message.key
            assert "b/1" in repr(message)

    run(main())


def test_options_and_properties_reach_the_server() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            kept = client.subscribe(
                "a",
                qos=2,
                no_local=True,
                retain_as_published=True,
                retain_handling=2,
                properties=Properties(user_properties=(("k", "v"),)),
            )
            packet = await granted(visit)
            asked = Subscription("a", 2, no_local=True, retain_as_published=True, retain_handling=2)
            assert packet.subscriptions == (asked,)
            assert packet.properties.user_properties == (("k", "v"),)
            # The options are for filters that are text.
            both = client.subscribe(Subscription("b", 0), "c", qos=1)
            assert [(await granted(visit)).subscriptions[0] for _ in range(2)] == [
                Subscription("b", 0),
                Subscription("c", 1),
            ]
            await both
            assert both.granted == {"b": 0, "c": 1}
            assert both.subscriptions == (Subscription("b", 0), Subscription("c", 1))
            await kept

    run(main())


def test_each_filter_has_a_subscription_identifier_where_the_server_takes_them() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            kept = client.subscribe("a", "b")
            identifiers = [
                (await granted(visit)).properties.subscription_identifiers for _ in range(2)
            ]
            assert len(set(identifiers)) == 2
            assert all(len(each) == 1 for each in identifiers)
            await kept

    run(main())


def test_without_subscription_identifiers_messages_find_their_iterators_by_topic() -> None:
    """[U5-48] A client does not use what the server does not offer."""

    async def main() -> None:
        none = ConnAck(properties=Properties(subscription_identifiers_available=0))
        async with (
            Scripted(none, grants=True) as server,
            Client(server.url, client_id="a") as client,
        ):
            visit = await server.visit()
            one = await client.subscribe("a/#")
            other = await client.subscribe("b")
            for _ in range(2):
                packet = await visit.take(Subscribe)
                assert packet.properties.subscription_identifiers == ()
            visit.send(Publish("b", b"1"), Publish("a", b"2"), Publish("a/b", b"3"))
            assert await payloads(one, 2) == [b"2", b"3"]
            assert await payloads(other, 1) == [b"1"]

    run(main())


def test_awaiting_is_not_needed() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = client.subscribe("b")
            await visit.take(Subscribe)
            visit.send(Publish("b", b"x"))
            async for message in messages:
                assert message.payload == b"x"
                break

    run(main())


def test_the_same_filter_twice_in_one_call_is_once() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b", "b")
            visit.send(Publish("b", b"1"), Publish("b", b"2"))
            assert await payloads(messages, 2) == [b"1", b"2"]

    run(main())


@pytest.mark.parametrize("topic_filter", ["", "a/#/b", "a+", "a\0", "a" * 65536])
def test_a_filter_that_may_not_be_raises_violation_at_once(topic_filter: str) -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            with pytest.raises(Violation):
                client.subscribe("good", topic_filter)
            with pytest.raises(Violation):
                client.subscribe(topic_filter)
            await client.subscribe("#")
            assert (await visit.take(Subscribe)).subscriptions == (Subscription("#"),)

    run(main())


IN_5_0 = [
    ("$share/g", {}, rules.SHARE_NAME_BEFORE_FILTER),
    ("$share//a", {}, rules.SHARE_NAME_NOT_EMPTY),
    ("$share/g/a", {"no_local": True}, rules.NO_LOCAL_NOT_SHARED),
    ("a", {"properties": Properties(topic_alias=1)}, rules.PROPERTY_IN_ITS_PACKET),
]


@pytest.mark.parametrize(("topic_filter", "options", "rule"), IN_5_0)
def test_a_request_that_may_not_be_raises_violation_and_is_not_sent(
    topic_filter: str, options: dict[str, object], rule: Rule
) -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            with pytest.raises(Violation) as caught:
                await client.subscribe(topic_filter, **options)  # type: ignore[arg-type]
            assert caught.value.rule is rule
            await client.subscribe("$share/g/a")
            assert (await visit.take(Subscribe)).subscriptions == (Subscription("$share/g/a"),)

    run(main())


def test_subscribing_to_nothing_is_a_mistake() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            with pytest.raises(ValueError, match="topic filter"):
                client.subscribe()

    run(main())


UNAVAILABLE = [
    ("wildcard_subscription_available", "a/#", exchange_rules.WILDCARD_IF_AVAILABLE),
    ("wildcard_subscription_available", "+", exchange_rules.WILDCARD_IF_AVAILABLE),
    ("shared_subscription_available", "$share/g/a", exchange_rules.SHARED_IF_AVAILABLE),
]


@pytest.mark.parametrize(("offer", "topic_filter", "rule"), UNAVAILABLE)
def test_what_the_server_does_not_offer_is_the_callers_violation_and_is_not_sent(
    offer: str, topic_filter: str, rule: Rule
) -> None:
    """[U5-47] [U5-49]"""

    async def main() -> None:
        offered = Properties(**{offer: 0})  # type: ignore[arg-type]
        async with (
            Scripted(ConnAck(properties=offered), grants=True) as server,
            Client(server.url, client_id="a") as client,
        ):
            visit = await server.visit()
            for _ in range(2):
                with pytest.raises(Violation) as caught:
                    await client.subscribe(topic_filter)
                assert caught.value.rule is rule
            messages = client.subscribe(topic_filter)
            with pytest.raises(Violation):
                await anext(messages)
            # What it offers is still there, and nothing else has left.
            await client.subscribe("plain")
            assert (await visit.take(Subscribe)).subscriptions == (Subscription("plain"),)

    run(main())


def test_options_of_5_0_are_a_violation_in_3_1_1() -> None:
    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", version=MQTT311) as client,
        ):
            with pytest.raises(Violation):
                await client.subscribe("a", no_local=True)
            with pytest.raises(Violation) as caught:
                client.subscribe("a", properties=Properties(user_properties=(("a", "b"),)))
            assert caught.value.rule is rules.PROPERTIES_NEED_MQTT5
            await client.subscribe("a")

    run(main())


@pytest.mark.parametrize(
    ("version", "reason"), [(MQTT311, 0x80), (MQTT5, 0x80), (MQTT5, 0x87), (MQTT5, 0x97)]
)
def test_a_subscription_that_is_refused_says_so(version: int, reason: int) -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            messages = client.subscribe("b")
            why = Properties(reason_string="no") if version == MQTT5 else Properties()
            visit.send(SubAck((await visit.take(Subscribe)).packet_id, [reason], properties=why))
            for _ in range(2):
                with pytest.raises(Refused) as caught:
                    await messages
                assert caught.value.reason == reason
                assert "subscription to b" in str(caught.value)
            with pytest.raises(Refused):
                await anext(messages)
            # It may be asked for again, and nobody remembers.
            again = client.subscribe("b")
            await granted(visit)
            await again

    run(main())


def test_of_several_filters_one_that_is_refused_fails_the_iterator() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = client.subscribe("yes", "no")
            await granted(visit)
            visit.send(SubAck((await visit.take(Subscribe)).packet_id, [0x87]))
            with pytest.raises(Refused, match="subscription to no"):
                await messages

    run(main())


# --- who gets what --------------------------------------------------------------------------------


def test_a_message_goes_to_the_filters_by_which_it_came() -> None:
    """[MQTT-3.3.4-4] The server says by which, and sends one copy or several."""

    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            wide = client.subscribe("a/#")
            narrow = client.subscribe("a/b")
            wide_id, narrow_id = [
                (await granted(visit)).properties.subscription_identifiers[0] for _ in range(2)
            ]
            visit.send(
                Publish("a/b", b"w", properties=Properties(subscription_identifiers=(wide_id,))),
                Publish("a/b", b"n", properties=Properties(subscription_identifiers=(narrow_id,))),
                Publish(
                    "a/b",
                    b"both",
                    properties=Properties(subscription_identifiers=(narrow_id, wide_id)),
                ),
            )
            assert await payloads(wide, 2) == [b"w", b"both"]
            assert await payloads(narrow, 2) == [b"n", b"both"]

    run(main())


def test_without_identifiers_a_message_goes_to_every_iterator_whose_filter_matches() -> None:
    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", version=MQTT311) as client,
        ):
            visit = await server.visit()
            wide = await client.subscribe("a/#")
            narrow = await client.subscribe("a/b")
            system = await client.subscribe("$SYS/#")
            everything = await client.subscribe("#")
            visit.send(Publish("a/b", b"1"), Publish("a/c", b"2"), Publish("$SYS/a", b"3"))
            assert await payloads(wide, 2) == [b"1", b"2"]
            assert await payloads(narrow, 1) == [b"1"]
            assert await payloads(system, 1) == [b"3"]
            # [MQTT-4.7.2-1] a wildcard does not match what begins with $
            assert await payloads(everything, 2) == [b"1", b"2"]

    run(main())


def test_an_iterator_of_several_filters_gets_a_message_once() -> None:
    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", version=MQTT311) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("a/#", "a/+", "a/b")
            visit.send(Publish("a/b", b"1"), Publish("a/b", b"2"))
            assert await payloads(messages, 2) == [b"1", b"2"]

    run(main())


def test_two_iterators_of_one_filter_both_get_its_messages() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            one = await client.subscribe("b")
            other = await client.subscribe("b")
            visit.send(Publish("b", b"1"))
            assert await payloads(one, 1) == [b"1"]
            assert await payloads(other, 1) == [b"1"]
            # As long as one of them wants it, the server is told nothing.
            await one.unsubscribe()
            visit.send(Publish("b", b"2"))
            assert await payloads(other, 1) == [b"2"]
            assert not any(isinstance(packet, Unsubscribe) for packet in visit.sent)
            await other.unsubscribe()
            assert any(isinstance(packet, Unsubscribe) for packet in visit.sent)

    run(main())


def test_a_shared_subscription_gets_the_messages_of_its_filter() -> None:
    async def main(version: int) -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("$share/group/b/+", qos=1)
            assert (await visit.take(Subscribe)).subscriptions[0].topic_filter == "$share/group/b/+"
            visit.send(Publish("b/1", b"x"))
            assert await payloads(messages, 1) == [b"x"]

    run(main(MQTT5))
    run(main(MQTT311))


def test_messages_takes_what_no_other_iterator_does() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            everything_else = client.messages()
            messages = await client.subscribe("b")
            visit.send(Publish("x", b"1"), Publish("b", b"2"), Publish("y", b"3"))
            assert await payloads(everything_else, 2) == [b"1", b"3"]
            assert await payloads(messages, 1) == [b"2"]

    run(main())


def test_topic_aliases_of_the_server_are_resolved() -> None:
    """[MQTT-3.3.2-10] (5.0) each alias up to the Topic Alias Maximum"""

    async def main() -> None:
        offer = Properties(topic_alias_maximum=2)
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", properties=offer) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("#")
            for alias, topic in ((1, "one"), (2, "two"), (1, ""), (2, ""), (2, "new"), (2, "")):
                visit.send(Publish(topic, properties=Properties(topic_alias=alias)))
            topics = [(await anext(messages)).topic for _ in range(6)]
            assert topics == ["one", "two", "one", "two", "new", "new"]

    run(main())


def test_properties_of_a_message_are_there() -> None:
    properties = Properties(
        content_type="text/plain", correlation_data=b"1", user_properties=(("a", "b"),)
    )

    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("#")
            visit.send(Publish("b", properties=properties))
            message = await anext(messages)
            assert message.properties.content_type == "text/plain"
            assert message.properties.user_properties == (("a", "b"),)

    run(main())


# --- waiting for messages -------------------------------------------------------------------------


def test_a_wait_that_times_out_loses_no_message() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b")
            seen = []
            for number in range(200):
                visit.send(Publish("b", str(number).encode()))
                waiting = start(anext(messages))
                await turns(number % 5)
                waiting.cancel()
                with suppress(asyncio.CancelledError):
                    seen.append((await waiting).payload)
            while len(seen) < 200:
                seen.append((await anext(messages)).payload)
            assert seen == [str(number).encode() for number in range(200)]

    run(main())


def test_wait_for_and_timeout_work_on_an_iterator() -> None:
    async def main() -> None:
        async with Scripted(grants=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(messages), 0.01)

            async def listen() -> None:
                async with asyncio.timeout(0.01):
                    async for _ in messages:
                        raise AssertionError("a message")

            with pytest.raises(TimeoutError):
                await listen()
            visit.send(Publish("b", b"x"))
            assert (await asyncio.wait_for(anext(messages), 5)).payload == b"x"

    run(main())


def test_several_tasks_share_an_iterator_that_acknowledges_nothing_by_itself() -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            messages = await client.subscribe("b", qos=1, auto_ack=False)
            seen: list[bytes] = []

            async def work() -> None:
                async for message in messages:
                    await turns(3)
                    seen.append(message.payload)
                    message.ack()

            workers = [start(work()) for _ in range(4)]
            for number in range(40):
                visit.send(Publish("b", bytes([number]), qos=1, packet_id=number + 1))
            await visit.until(lambda: len([p for p in visit.sent if isinstance(p, PubAck)]) == 40)
            assert sorted(seen) == [bytes([number]) for number in range(40)]
            await messages.unsubscribe()
            await asyncio.gather(*workers)

    run(main())


def test_without_reconnect_an_iterator_gives_what_it_has_and_then_says_why() -> None:
    async def main() -> None:
        async with (
            Scripted(grants=True) as server,
            Client(server.url, client_id="a", reconnect=False) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("b")
            visit.send(Publish("b", b"1"), Publish("b", b"2"))
            visit.close()
            while client.connected:
                await asyncio.sleep(0)
            assert await payloads(messages, 2) == [b"1", b"2"]
            for _ in range(2):
                with pytest.raises(Disconnected, match="closed"):
                    await anext(messages)

    run(main())


def test_over_a_reconnect_an_iterator_goes_on() -> None:
    async def main() -> None:
        async with (
            Scripted(resume, grants=True) as server,
            Client(server.url, client_id="a", reconnect=QUICK) as client,
        ):
            visit = await server.visit()
            messages = await client.subscribe("b")
            waiting = start(anext(messages))
            visit.cut()
            visit = await server.visit()
            visit.send(Publish("b", b"x"))
            assert (await waiting).payload == b"x"

    run(main())

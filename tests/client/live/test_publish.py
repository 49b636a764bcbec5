"""Publishing: what leaves, when `publish` returns, and what it does when it cannot."""

import asyncio

import pytest

from semel.client import Client, Disconnected, Refused
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Rule,
    Violation,
    exchange_rules,
    rules,
)
from tests.client.listening import run
from tests.client.servers import BOTH, QUICK, Scripted, Visit, accept, resume, start, turns

REFUSALS = (0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)


# --- the three qualities of service ---------------------------------------------------------------


@pytest.mark.parametrize("version", BOTH)
def test_qos_0_is_sent_and_that_is_all(version: int) -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            assert await client.publish("b", b"x", retain=True) == 0
            assert await visit.take(Publish) == Publish("b", b"x", retain=True)
            assert client.counters.sent == 1

    run(main())


@pytest.mark.parametrize("version", BOTH)
def test_qos_1_is_complete_with_puback(version: int) -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            going = start(client.publish("b", b"x", qos=1))
            packet = await visit.take(Publish)
            assert packet == Publish("b", b"x", qos=1, packet_id=1)
            await turns()
            assert not going.done()
            assert client.counters.in_flight == 1
            visit.send(PubAck(1))
            assert await going == 0
            assert client.counters.in_flight == 0

    run(main())


@pytest.mark.parametrize("version", BOTH)
def test_qos_2_is_complete_with_pubcomp(version: int) -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            going = start(client.publish("b", b"x", qos=2))
            assert await visit.take(Publish) == Publish("b", b"x", qos=2, packet_id=1)
            visit.send(PubRec(1))
            assert await visit.take(PubRel) == PubRel(1)
            await turns()
            assert not going.done()
            visit.send(PubComp(1))
            assert await going == 0

    run(main())


def test_nobody_has_subscribed_is_told_and_is_no_error() -> None:
    """[3.4.2.1] [3.5.2.1] reason code 0x10"""

    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            going = start(client.publish("b", qos=1))
            visit.send(PubAck((await visit.take(Publish)).packet_id, 0x10))
            assert await going == 0x10
            going = start(client.publish("b", qos=2))
            packet_id = (await visit.take(Publish)).packet_id
            visit.send(PubRec(packet_id, 0x10))
            await visit.take(PubRel)
            visit.send(PubComp(packet_id))
            assert await going == 0x10
            # And the next one is not mistaken for it.
            going = start(client.publish("b", qos=2))
            packet_id = (await visit.take(Publish)).packet_id
            visit.send(PubRec(packet_id))
            await visit.take(PubRel)
            visit.send(PubComp(packet_id))
            assert await going == 0

    run(main())


@pytest.mark.parametrize("reason", REFUSALS)
@pytest.mark.parametrize("qos", [1, 2])
def test_a_server_that_refuses_a_message_says_why(qos: int, reason: int) -> None:
    """[MQTT-4.3.3-4] After such a PUBREC there is no PUBREL, and the identifier is free."""

    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            going = start(client.publish("b", qos=qos))
            packet_id = (await visit.take(Publish)).packet_id
            why = Properties(reason_string="go away", user_properties=(("a", "b"),))
            answer: Packet = PubAck(packet_id, reason, properties=why)
            if qos == 2:
                answer = PubRec(packet_id, reason, properties=why)
            visit.send(answer)
            with pytest.raises(Refused, match="go away") as caught:
                await going
            assert caught.value.reason == reason
            assert caught.value.reason_string == "go away"
            assert caught.value.properties.user_properties == (("a", "b"),)
            assert f"0x{reason:02x}" in str(caught.value)
            await client.publish("still/there")
            assert (await visit.take(Publish)).topic_name == "still/there"
            assert client.counters.in_flight == 0

    run(main())


def test_properties_are_sent_as_they_are() -> None:
    properties = Properties(
        payload_format_indicator=1,
        message_expiry_interval=100,
        content_type="text/plain",
        response_topic="r",
        correlation_data=b"\x00\xff",
        user_properties=(("a", "1"), ("a", "2")),
    )

    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            await client.publish("b", "x", properties=properties)
            sent = (await visit.take(Publish)).properties
            assert sorted(sent.items) == sorted(properties.items)

    run(main())


@pytest.mark.parametrize(
    ("payload", "sent"),
    [
        (b"\x00\xff", b"\x00\xff"),
        ("ä", "ä".encode()),
        (bytearray(b"x"), b"x"),
        (memoryview(b"xy")[1:], b"y"),
        (b"", b""),
    ],
)
def test_a_payload_is_bytes_or_text(payload: bytes, sent: bytes) -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            await client.publish("b", payload)
            assert (await visit.take(Publish)).payload == sent
            for wrong in (1, None, [b"x"]):
                with pytest.raises(TypeError, match="payload"):
                    await client.publish("b", wrong)  # type: ignore[arg-type]

    run(main())


def test_a_bytearray_that_changes_afterwards_changes_nothing() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            payload = bytearray(b"before")
            going = start(client.publish("b", payload, qos=1))
            await asyncio.sleep(0)
            payload[:] = b"after!"
            packet = await visit.take(Publish)
            assert packet.payload == b"before"
            visit.send(PubAck(packet.packet_id))
            await going

    run(main())


# --- what the caller may not ----------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    ("topic", "rule"),
    [
        ("a/+", rules.TOPIC_NAME_WITHOUT_WILDCARDS),
        ("", None),
        ("a\0", rules.TEXT_WITHOUT_NUL),
        ("a" * 65536, None),
    ],
)
def test_a_topic_that_may_not_be_raises_violation(qos: int, topic: str, rule: Rule | None) -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            with pytest.raises(Violation) as caught:
                await client.publish(topic, b"x", qos=qos)
            if rule is not None:
                assert caught.value.rule is rule
            await client.publish("ok")
            assert await visit.take(Publish) == Publish("ok")

    run(main())


def test_a_qos_that_is_none_raises_violation() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            for qos in (3, -1):
                with pytest.raises(Violation):
                    await client.publish("b", qos=qos)
            await client.publish("b", qos=0)

    run(main())


def test_3_1_1_has_no_properties() -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", version=MQTT311) as client,
        ):
            with pytest.raises(Violation) as caught:
                await client.publish("b", properties=Properties(content_type="x"))
            assert caught.value.rule is rules.PROPERTIES_NEED_MQTT5

    run(main())


def test_until_is_one_of_two_words_and_stored_needs_an_outbox() -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            for qos in range(3):
                with pytest.raises(ValueError, match="outbox"):
                    await client.publish("b", qos=qos, until="stored")
                with pytest.raises(ValueError, match="complete"):
                    await client.publish("b", qos=qos, until="soon")  # type: ignore[arg-type]
            await client.publish("b", until="complete")
            assert await visit.take(Publish) == Publish("b")

    run(main())


LIMITS = [
    (Properties(maximum_qos=1), {"qos": 2}, exchange_rules.QOS_WITHIN_MAXIMUM),
    (Properties(maximum_qos=0), {"qos": 1}, exchange_rules.QOS_WITHIN_MAXIMUM),
    (Properties(retain_available=0), {"retain": True}, exchange_rules.RETAIN_IF_AVAILABLE),
    (
        Properties(retain_available=0),
        {"retain": True, "qos": 1},
        exchange_rules.RETAIN_IF_AVAILABLE,
    ),
    (
        Properties(maximum_packet_size=50),
        {"payload": bytes(50)},
        rules.PACKET_SIZE_WITHIN_MAXIMUM,
    ),
    (
        Properties(maximum_packet_size=50),
        {"payload": bytes(50), "qos": 2},
        rules.PACKET_SIZE_WITHIN_MAXIMUM,
    ),
]


@pytest.mark.parametrize(("offered", "wanted", "rule"), LIMITS)
def test_what_the_server_does_not_take_is_the_callers_violation_and_is_not_sent(
    offered: Properties, wanted: dict[str, object], rule: Rule
) -> None:
    """[MQTT-3.2.2-11] [MQTT-3.2.2-14] [MQTT-3.2.2-15]"""

    async def main() -> None:
        async with (
            Scripted(ConnAck(properties=offered)) as server,
            Client(server.url, client_id="a") as client,
        ):
            visit = await server.visit()
            for _ in range(2):
                with pytest.raises(Violation) as caught:
                    await client.publish("b", **wanted)  # type: ignore[arg-type]
                assert caught.value.rule is rule
            # What it takes still passes, and nothing else has.
            await client.publish("b", b"x")
            assert await visit.take(Publish) == Publish("b", b"x")
            assert client.counters.in_flight == 0

    run(main())


def test_what_the_next_server_does_not_take_is_a_violation_too() -> None:
    """What was in flight is not sent again to a server that has come to take less."""

    async def main() -> None:
        less = ConnAck(session_present=True, properties=Properties(maximum_qos=1))
        async with (
            Scripted(accept, less) as server,
            Client(server.url, client_id="a", reconnect=QUICK) as client,
        ):
            visit = await server.visit()
            two = start(client.publish("b", qos=2))
            one = start(client.publish("b", qos=1))
            await visit.take(Publish)
            await visit.take(Publish)
            visit.cut()
            visit = await server.visit()
            with pytest.raises(Violation) as caught:
                await two
            assert caught.value.rule is exchange_rules.QOS_WITHIN_MAXIMUM
            packet = await visit.take(Publish)
            assert (packet.qos, packet.dup) == (1, True)
            visit.send(PubAck(packet.packet_id))
            assert await one == 0

    run(main())


async def complete(visit: Visit, packet: Publish) -> None:
    """The server's part of an exchange."""
    if packet.qos == 1:
        visit.send(PubAck(packet.packet_id))
    else:
        visit.send(PubRec(packet.packet_id))
        await visit.take(PubRel)
        visit.send(PubComp(packet.packet_id))


# --- time and cancellation ------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_cancelling_ends_the_waiting_and_not_the_message(qos: int) -> None:
    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.publish("b", b"x", qos=qos), 0.02)
            packet = await visit.take(Publish)
            await complete(visit, packet)
            await turns()
            assert client.counters.in_flight == 0
            # The identifier is free again, and the next message has its own answer.
            going = start(client.publish("c", qos=qos))
            await complete(visit, await visit.take(Publish))
            assert await going == 0

    run(main())


def test_a_refusal_that_nobody_waits_for_is_nobodys_error() -> None:
    """asyncio would say that an exception was never retrieved."""

    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            going = start(client.publish("b", qos=1))
            packet = await visit.take(Publish)
            going.cancel()
            visit.send(PubAck(packet.packet_id, 0x87))
            with pytest.raises(asyncio.CancelledError):
                await going
            await client.publish("c")

    run(main())


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publishing_may_be_cancelled_at_any_moment(qos: int) -> None:
    async def main() -> None:
        async with Scripted(obliges=True) as server, Client(server.url, client_id="a") as client:
            for count in range(40):
                going = start(client.publish("b", bytes([count]), qos=qos))
                await turns(count)
                going.cancel()
                await asyncio.wait([going])
            assert await client.publish("last", qos=qos) == 0
            await turns(30)
            assert client.counters.in_flight == 0

    run(main())


def test_a_message_that_expires_before_it_could_be_sent_is_a_time_out() -> None:
    """[MQTT-3.3.2-5] It is not sent any more, whatever its QoS."""

    async def main(qos: int) -> None:
        async with Scripted(resume) as server:
            client = Client(server.url, client_id="a", reconnect=QUICK)
            await client.connect()
            await server.stop_listening()
            (await server.visit()).cut()
            while client.connected:
                await asyncio.sleep(0)
            expiring = Properties(message_expiry_interval=0)
            lasting = start(client.publish("lasting", qos=1))
            going = start(client.publish("b", qos=qos, properties=expiring))
            if qos:
                # Its caller need not wait for another connection to be told.
                with pytest.raises(TimeoutError, match="expired"):
                    await going
            await server.listen()
            visit = await server.visit()
            if not qos:
                with pytest.raises(TimeoutError, match="expired"):
                    await going
            packet = await visit.take(Publish)
            assert packet.topic_name == "lasting"
            visit.send(PubAck(packet.packet_id))
            await lasting
            assert visit.waiting() == []
            await client.close()

    for qos in range(3):
        run(main(qos))


def test_a_message_is_sent_with_what_is_left_of_its_expiry() -> None:
    """[MQTT-3.3.2-6] is a server's, but a client that waited has no more to give either."""

    async def main() -> None:
        async with Scripted() as server, Client(server.url, client_id="a") as client:
            visit = await server.visit()
            await client.publish("b", properties=Properties(message_expiry_interval=100))
            interval = (await visit.take(Publish)).properties.message_expiry_interval
            assert interval is not None
            assert 90 <= interval <= 100

    run(main())


def test_publish_waits_for_the_next_connection_and_goes_on() -> None:
    async def main(qos: int) -> None:
        async with (
            Scripted(resume) as server,
            Client(server.url, client_id="a", reconnect=QUICK) as client,
        ):
            (await server.visit()).cut()
            while client.connected:
                await asyncio.sleep(0)
            going = start(client.publish("b", b"x", qos=qos))
            visit = await server.visit()
            packet = await visit.take(Publish)
            assert (packet.payload, packet.dup) == (b"x", False)
            if qos:
                await complete(visit, packet)
            assert await going == 0

    for qos in range(3):
        run(main(qos))


def test_without_reconnect_publish_raises_why_the_connection_ended() -> None:
    async def main() -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", reconnect=False) as client,
        ):
            visit = await server.visit()
            going = [start(client.publish("b", qos=qos)) for qos in (1, 2, 1)]
            await turns()
            visit.close()
            for task in going:
                with pytest.raises(Disconnected, match="closed"):
                    await task
            for qos in range(3):
                with pytest.raises(Disconnected, match="closed"):
                    await client.publish("b", qos=qos)
            assert client.counters.waiting == 0 or client.counters.in_flight

    run(main())


def test_the_version_decides_what_a_message_is() -> None:
    """One who speaks 5.0 has properties, one who speaks 3.1.1 has the same message without."""

    async def main(version: int) -> None:
        async with (
            Scripted() as server,
            Client(server.url, client_id="a", version=version) as client,
        ):
            visit = await server.visit()
            await client.publish("b", "x")
            head = b"\x30\x05\x00\x01b" + (b"\x00" if version == MQTT5 else b"") + b"x"
            if version == MQTT311:
                head = b"\x30\x04\x00\x01bx"
            await visit.take(Publish)
            assert bytes(visit.data).endswith(head)

    for version in BOTH:
        run(main(version))

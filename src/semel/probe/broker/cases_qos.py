"""Cases about the QoS 1 and QoS 2 flows [4.3]: what a broker does with a repeated identifier."""

import asyncio
from typing import Final, NoReturn

from semel.mqtt.packet_types import PUBACK, PUBCOMP, PUBREC, PUBREL
from semel.mqtt.packets.acks import PubAck, PubComp, PubRec, PubRel
from semel.mqtt.packets.publish import Publish
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import (
    audience,
    connect_kept,
    inbox_after_ping,
    limits,
    named,
    payloads,
    reasoned,
    require_qos,
    resume,
)
from semel.probe.broker.link import ProbeLink, packet_names
from semel.probe.broker.trial import Trial
from semel.probe.claims import ClaimArguable
from semel.probe.verdicts import RECEIVE, SEND

# The packet identifier of the exchange that is examined, and another one.
ID: Final = 7
OTHER_ID: Final = 8
# A Message Expiry Interval in seconds, and a wait after which it has surely passed.
SHORT: Final = 1
AFTER_SHORT: Final = 2.6


async def begin(trial: Trial, link: ProbeLink, payload: bytes, *, dup: bool = False) -> PubRec:
    """Send a QoS 2 PUBLISH and claim its PUBREC."""
    await link.send(
        wire.publish(trial.version, trial.topic(), payload, qos=2, packet_id=ID, dup=dup)
    )
    packet = await trial.must_receive(link, PUBREC)
    assert isinstance(packet, PubRec)
    trial.must(packet.packet_id == ID, f"PUBREC {packet.packet_id} answered PUBLISH {ID}")
    return packet


async def begin_again(trial: Trial, link: ProbeLink) -> None:
    """Repeat the QoS 2 PUBLISH "once" on the same connection and claim its PUBREC."""
    again = wire.publish(trial.version, trial.topic(), b"once", qos=2, packet_id=ID, dup=True)
    await link.send(again)
    if await link.wait_for(PUBREC, trial.timeout) is None:
        deny_repeat(trial, link)


def deny_repeat(trial: Trial, link: ProbeLink) -> NoReturn:
    """A repeat was not answered with PUBREC."""
    if trial.is_5 and link.is_closed:
        raise ClaimArguable(
            "by MQTT-4.4.0-1 a client must not repeat a PUBLISH while it is connected, and the "
            "broker closed the connection for it instead of answering it by MQTT-4.3.3-10"
        )
    closed = " and the connection was closed" if link.is_closed else ""
    trial.refute(f"a repeat got no PUBREC: {packet_names(link)} came{closed}")


async def complete(trial: Trial, link: ProbeLink) -> None:
    """Send PUBREL and claim its PUBCOMP."""
    await link.send(wire.pubrel(ID))
    packet = await trial.must_receive(link, PUBCOMP)
    assert isinstance(packet, PubComp)
    trial.must(packet.packet_id == ID, f"PUBCOMP {packet.packet_id} answered PUBREL {ID}")


async def must_have(trial: Trial, link: ProbeLink, publisher: ProbeLink, *sent: bytes) -> None:
    """Claim that these messages were delivered, once each, in this order."""
    found = await trial.messages_until(link, trial.topic(), publisher, qos=2)
    expected = ", ".join(payload.decode() for payload in sent)
    trial.must(payloads(found) == list(sent), f"delivered was {named(found)} instead of {expected}")


# --- QoS 2, the broker as receiver ---


async def repeats_are_delivered_once(trial: Trial, repeats: int) -> None:
    subscriber, publisher = await audience(trial, trial.topic(), 2)
    with trial.control():
        await trial.publish(publisher, trial.topic(), b"control", qos=2, packet_id=OTHER_ID)
        first = await trial.must_receive_message(subscriber)
        trial.must(first.payload == b"control", "another message came")
    await begin(trial, publisher, b"once")
    for _ in range(repeats):
        await begin_again(trial, publisher)
    await complete(trial, publisher)
    await must_have(trial, subscriber, publisher, b"once")


async def one_repeat_is_delivered_once(trial: Trial) -> None:
    await repeats_are_delivered_once(trial, 1)


async def two_repeats_are_delivered_once(trial: Trial) -> None:
    await repeats_are_delivered_once(trial, 2)


async def ten_repeats_are_delivered_once(trial: Trial) -> None:
    await repeats_are_delivered_once(trial, 10)


async def repeats_in_one_segment_are_delivered_once(trial: Trial) -> None:
    """The repeat is in the broker's hands before its first PUBREC is."""
    subscriber, publisher = await audience(trial, trial.topic(), 2)
    first = wire.publish(trial.version, trial.topic(), b"once", qos=2, packet_id=ID)
    again = wire.publish(trial.version, trial.topic(), b"once", qos=2, packet_id=ID, dup=True)
    await publisher.send(first + again + again)
    await trial.must_receive(publisher, PUBREC)
    for _ in range(2):
        if await publisher.wait_for(PUBREC, trial.timeout) is None:
            deny_repeat(trial, publisher)
    await complete(trial, publisher)
    await must_have(trial, subscriber, publisher, b"once")


async def repeat_without_dup_is_delivered_once(trial: Trial) -> None:
    """[4.3.3] It is the identifier that tells a repeat, not DUP. The client is wrong, too."""
    subscriber, publisher = await audience(trial, trial.topic(), 2)
    other = await trial.connect("other")
    await begin(trial, publisher, b"once")
    await publisher.send(wire.publish(trial.version, trial.topic(), b"once", qos=2, packet_id=ID))
    if await publisher.wait_for(PUBREC, trial.timeout) is not None:
        await complete(trial, publisher)
    else:
        trial.must(publisher.is_closed, "a repeat without DUP was not answered")
    await must_have(trial, subscriber, other, b"once")


async def repeat_with_another_payload_is_no_message(trial: Trial) -> None:
    subscriber, publisher = await audience(trial, trial.topic(), 2)
    other = await trial.connect("other")
    await begin(trial, publisher, b"once")
    again = wire.publish(trial.version, trial.topic(), b"changed", qos=2, packet_id=ID, dup=True)
    await publisher.send(again)
    if await publisher.wait_for(PUBREC, trial.timeout) is not None:
        await complete(trial, publisher)
    else:
        trial.must(publisher.is_closed, "the repeat was not answered")
    found = payloads(await trial.messages_until(subscriber, trial.topic(), other, qos=2))
    if b"changed" in found:
        raise ClaimArguable(
            "a second message with an identifier in use is the client's fault, and the broker "
            "took it as a new message instead of a repeat"
        )
    trial.must(found in ([b"once"], []), f"delivered was {found}")


async def repeats_after_reconnects_are_delivered_once(trial: Trial, repeats: int) -> None:
    """One repeat on each connection, which both versions require of a client."""
    subscriber, other = await audience(trial, trial.topic(), 2)
    publisher = await connect_kept(trial, "kept")
    await begin(trial, publisher, b"once")
    for _ in range(repeats):
        await publisher.cut()
        publisher = await resume(trial, "kept")
        await begin(trial, publisher, b"once", dup=True)
    await complete(trial, publisher)
    await must_have(trial, subscriber, other, b"once")


async def repeat_after_reconnect_is_delivered_once(trial: Trial) -> None:
    await repeats_after_reconnects_are_delivered_once(trial, 1)


async def repeats_after_ten_reconnects_are_delivered_once(trial: Trial) -> None:
    await repeats_after_reconnects_are_delivered_once(trial, 10)


async def pubrel_after_reconnect_is_answered(trial: Trial) -> None:
    subscriber, other = await audience(trial, trial.topic(), 2)
    publisher = await connect_kept(trial, "kept")
    await begin(trial, publisher, b"once")
    await publisher.cut()
    publisher = await resume(trial, "kept")
    await complete(trial, publisher)
    await publisher.cut()
    # The client did not get the PUBCOMP, as far as the broker knows.
    publisher = await resume(trial, "kept")
    await complete(trial, publisher)
    await must_have(trial, subscriber, other, b"once")


async def after_pubcomp_it_is_a_new_message(trial: Trial, *, dup: bool) -> None:
    subscriber, publisher = await audience(trial, trial.topic(), 2)
    await begin(trial, publisher, b"first")
    await complete(trial, publisher)
    await begin(trial, publisher, b"second", dup=dup)
    await complete(trial, publisher)
    await must_have(trial, subscriber, publisher, b"first", b"second")


async def after_pubcomp_new_with_dup_0(trial: Trial) -> None:
    await after_pubcomp_it_is_a_new_message(trial, dup=False)


async def after_pubcomp_new_with_dup_1(trial: Trial) -> None:
    await after_pubcomp_it_is_a_new_message(trial, dup=True)


async def after_pubcomp_the_same_payload_is_new(trial: Trial) -> None:
    subscriber, publisher = await audience(trial, trial.topic(), 2)
    for _ in range(3):
        await begin(trial, publisher, b"same")
        await complete(trial, publisher)
    await must_have(trial, subscriber, publisher, b"same", b"same", b"same")


async def unknown_identifier_with_dup_is_new(trial: Trial) -> None:
    """DUP is a hint: the first transmission may have been lost with its connection."""
    subscriber, publisher = await audience(trial, trial.topic(), 2)
    await begin(trial, publisher, b"marked", dup=True)
    await complete(trial, publisher)
    await must_have(trial, subscriber, publisher, b"marked")


async def clean_session_forgets_identifiers(trial: Trial) -> None:
    subscriber, other = await audience(trial, trial.topic(), 2)
    publisher = await connect_kept(trial, "kept")
    await begin(trial, publisher, b"first")
    await publisher.cut()
    publisher = await connect_kept(trial, "kept", clean=True)
    await begin(trial, publisher, b"second", dup=True)
    await complete(trial, publisher)
    found = payloads(await trial.messages_until(subscriber, trial.topic(), other, qos=2))
    # A broker that delivers at PUBREL has dropped the first one with its session.
    ended = found in ([b"first", b"second"], [b"second"])
    trial.must(ended, f"delivered was {found} after the session had ended")


async def pubrel_of_an_unknown_identifier_is_answered(trial: Trial) -> None:
    publisher = await trial.connect()
    require_qos(trial, publisher, 2)
    with trial.control():
        await begin(trial, publisher, b"x")
        await complete(trial, publisher)
    # Again, as after a PUBCOMP that was lost.
    await complete(trial, publisher)


async def refused_message_frees_its_identifier(trial: Trial) -> None:
    """[4.3.3-9] Messages that many brokers refuse: for $SYS, and of a false payload format."""
    subscriber, other = await audience(trial, trial.topic(), 2)
    false_format = wire.byte_property(0x01, 1)
    for name, properties in ((b"$SYS/" + trial.topic(), b""), (trial.topic(), false_format)):
        link = await trial.connect("refused")
        packet = wire.publish(
            trial.version, name, b"\xff", qos=2, packet_id=ID, properties=properties
        )
        await link.send(packet)
        answer = await link.wait_for(PUBREC, 1.0)
        if isinstance(answer, PubRec) and answer.reason >= 0x80:
            await begin(trial, link, b"after a refusal")
            await complete(trial, link)
            await must_have(trial, subscriber, other, b"after a refusal")
            return
        await link.cut()
    trial.not_applicable("the broker did not refuse these messages with PUBREC in this run")


async def expired_message_is_completed(trial: Trial) -> None:
    publisher = await trial.connect()
    require_qos(trial, publisher, 2)
    with trial.control():
        await begin(trial, publisher, b"x")
        await complete(trial, publisher)
    expiry = wire.four_property(0x02, SHORT)
    await publisher.send(
        wire.publish(trial.version, trial.topic(), b"short", qos=2, packet_id=ID, properties=expiry)
    )
    await trial.must_receive(publisher, PUBREC)
    await asyncio.sleep(AFTER_SHORT)
    await complete(trial, publisher)


# --- QoS 1, the broker as receiver ---


async def after_puback_it_is_a_new_message(trial: Trial) -> None:
    subscriber, publisher = await audience(trial, trial.topic(), 1)
    for payload, dup in ((b"first", False), (b"second", False), (b"third", True)):
        await publisher.send(
            wire.publish(trial.version, trial.topic(), payload, qos=1, packet_id=ID, dup=dup)
        )
        if payload == b"first":
            answer = await trial.expect(publisher, PUBACK)
            with trial.control():
                is_same = isinstance(answer, PubAck) and answer.packet_id == ID
                trial.must(is_same, "PUBACK has another identifier")
        else:
            await trial.must_receive(publisher, PUBACK)
    found = await trial.messages_until(subscriber, trial.topic(), publisher, qos=1)
    expected = [b"first", b"second", b"third"]
    trial.must(payloads(found) == expected, f"delivered was {named(found)}")


# --- the broker as sender ---


async def deliver(trial: Trial) -> tuple[ProbeLink, ProbeLink, Publish]:
    """A QoS 2 message that was delivered and not answered yet, after its subscriber and sender."""
    subscriber, publisher = await audience(trial, trial.topic(), 2)
    await trial.publish(publisher, trial.topic(), b"message", qos=2)
    with trial.control():
        message = await trial.must_receive_message(subscriber, acknowledge=False)
        trial.must(message.qos == 2, f"QoS 2 was granted, and QoS {message.qos} delivered")
    return subscriber, publisher, message


async def pubrec_is_answered_with_pubrel(trial: Trial) -> None:
    subscriber, _, message = await deliver(trial)
    inbox = await inbox_after_ping(trial, subscriber)
    trial.must(not inbox, f"before PUBREC the broker sent {packet_names(subscriber)}")
    await subscriber.send(wire.pubrec(message.packet_id))
    await trial.must_receive(subscriber, PUBREL)
    await subscriber.send(wire.pubcomp(message.packet_id))
    await trial.must_stay_open(subscriber)


async def pubrel_has_the_identifier(trial: Trial) -> None:
    subscriber, publisher, message = await deliver(trial)
    for _ in range(3):
        await subscriber.send(wire.pubrec(message.packet_id))
        packet = await trial.expect(subscriber, PUBREL)
        assert isinstance(packet, PubRel)
        found = f"PUBREL {packet.packet_id} answered PUBREC {message.packet_id}"
        trial.must(packet.packet_id == message.packet_id, found)
        await subscriber.send(wire.pubcomp(message.packet_id))
        await trial.publish(publisher, trial.topic(), b"next", qos=2)
        with trial.control():
            message = await trial.must_receive_message(subscriber, acknowledge=False)


async def pubrec_with_no_matching_subscribers_is_a_success(trial: Trial) -> None:
    """[4.3.3-4] A reason code below 0x80, in the long form."""
    subscriber, _, message = await deliver(trial)
    await subscriber.send(reasoned(0x50, message.packet_id, 0x10))
    packet = await trial.must_receive(subscriber, PUBREL)
    assert isinstance(packet, PubRel)
    trial.must(packet.packet_id == message.packet_id, f"PUBREL {packet.packet_id} came")
    await subscriber.send(reasoned(0x70, message.packet_id, 0))
    await trial.must_stay_open(subscriber)


async def pubrec_with_an_error_ends_the_delivery(trial: Trial) -> None:
    subscriber, publisher, message = await deliver(trial)
    await subscriber.send(reasoned(0x50, message.packet_id, 0x80))
    found = await trial.messages_until(subscriber, trial.topic(), publisher, qos=2)
    released = [each for each in subscriber.inbox if each.packet_type == PUBREL]
    trial.must(not released, "the broker sent PUBREL after a PUBREC with 0x80")
    trial.must(not found, f"the broker sent {named(found)} again")


async def expiry_does_not_end_what_was_sent(trial: Trial) -> None:
    publisher = await trial.connect("pub")
    require_qos(trial, publisher, 2)
    subscriber = await connect_kept(trial, "kept")
    answer = await trial.subscribe(subscriber, (trial.topic(), 2))
    if answer.reasons[0] < 2:
        trial.not_applicable("the broker does not grant QoS 2")
    expiry = wire.four_property(0x02, SHORT)
    await trial.publish(publisher, trial.topic(), b"short", qos=2, properties=expiry)
    with trial.control():
        first = await trial.must_receive_message(subscriber, acknowledge=False)
    await subscriber.cut()
    await asyncio.sleep(AFTER_SHORT)
    subscriber = await resume(trial, "kept")
    again = await trial.must_receive_message(subscriber)
    trial.must(again.packet_id == first.packet_id, "another packet identifier came")
    trial.must(again.payload == b"short", "another message came")


async def quota_is_not_exceeded_by_a_client(trial: Trial) -> None:
    """[3.3.4-7] The reaction to a client that has more open than the broker allows."""
    link = await trial.connect()
    require_qos(trial, link, 2)
    maximum = limits(link).receive_maximum
    if maximum is None or maximum > 5_000:
        trial.not_applicable("the broker said no Receive Maximum up to 5,000 in CONNACK")
    with trial.control():
        for number in range(maximum):
            packet = wire.publish(trial.version, trial.topic(), qos=2, packet_id=number + 1)
            await link.send(packet)
        await trial.must_stay_open(link)
        for _ in range(maximum):
            await trial.must_receive(link, PUBREC)
    await link.send(wire.publish(trial.version, trial.topic(), qos=2, packet_id=maximum + 1))
    answer = await link.wait_for(PUBREC, 1.0)
    if isinstance(answer, PubRec) and answer.reason >= 0x80:
        raise ClaimArguable(
            f"the broker refused the message with PUBREC 0x{answer.reason:02x} instead of closing "
            "with 0x93: the standard calls the latter what a server uses, not what it must do"
        )
    trial.must(answer is None, "the broker accepted more messages than its Receive Maximum")
    await trial.must_refuse(link)


CASES: Final = (
    Case(
        "qos-2-one-repeat",
        SEND,
        "A QoS 2 PUBLISH that is repeated before PUBREL is answered again and delivered once.",
        one_repeat_is_delivered_once,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-10",
    ),
    Case(
        "qos-2-two-repeats",
        SEND,
        "A QoS 2 PUBLISH that is repeated twice is answered each time and delivered once.",
        two_repeats_are_delivered_once,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-10",
    ),
    Case(
        "qos-2-ten-repeats",
        SEND,
        "A QoS 2 PUBLISH that is repeated ten times is answered each time and delivered once.",
        ten_repeats_are_delivered_once,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-10",
    ),
    Case(
        "qos-2-repeats-at-once",
        SEND,
        "QoS 2 repeats that arrive together with the first are answered and delivered once.",
        repeats_in_one_segment_are_delivered_once,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-10",
    ),
    Case(
        "qos-2-repeat-without-dup",
        RECEIVE,
        "A QoS 2 repeat with DUP 0 is not delivered a second time.",
        repeat_without_dup_is_delivered_once,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-10",
    ),
    Case(
        "qos-2-repeat-with-another-payload",
        RECEIVE,
        "A PUBLISH with a QoS 2 identifier in use is not delivered a second time.",
        repeat_with_another_payload_is_no_message,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-10",
    ),
    Case(
        "qos-2-repeat-after-reconnect",
        SEND,
        "A QoS 2 PUBLISH that is repeated after a reconnect of its session is delivered once.",
        repeat_after_reconnect_is_delivered_once,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-10",
    ),
    Case(
        "qos-2-repeat-after-each-of-ten-reconnects",
        SEND,
        "A QoS 2 PUBLISH that is repeated after each of ten reconnects is delivered once.",
        repeats_after_ten_reconnects_are_delivered_once,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-10",
    ),
    Case(
        "qos-2-pubrel-after-reconnect",
        SEND,
        "A PUBREL that is sent, and sent again, after a reconnect is answered with PUBCOMP.",
        pubrel_after_reconnect_is_answered,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-11",
    ),
    Case(
        "qos-2-new-after-pubcomp",
        SEND,
        "After PUBCOMP a PUBLISH with the same identifier is a new message.",
        after_pubcomp_new_with_dup_0,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-12",
    ),
    Case(
        "qos-2-new-after-pubcomp-with-dup",
        SEND,
        "After PUBCOMP a PUBLISH with the same identifier is a new message also with DUP 1.",
        after_pubcomp_new_with_dup_1,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-12",
    ),
    Case(
        "qos-2-same-payload-after-pubcomp",
        SEND,
        "After PUBCOMP an equal PUBLISH is a new message.",
        after_pubcomp_the_same_payload_is_new,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-12",
    ),
    Case(
        "qos-2-unknown-identifier-with-dup",
        SEND,
        "A QoS 2 PUBLISH with DUP 1 and an unknown identifier is a new message.",
        unknown_identifier_with_dup_is_new,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-8",
    ),
    Case(
        "qos-2-identifiers-end-with-the-session",
        SEND,
        "With a new session the QoS 2 identifiers of the old one are forgotten.",
        clean_session_forgets_identifiers,
        mqtt311="3.1.2-6",
        mqtt5="3.1.2-4",
    ),
    Case(
        "qos-2-pubrel-repeated",
        RECEIVE,
        "A PUBREL whose identifier is not in use is answered with PUBCOMP.",
        pubrel_of_an_unknown_identifier_is_answered,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-11",
    ),
    Case(
        "qos-2-new-after-refusal",
        SEND,
        "After a PUBREC with 0x80 or more a PUBLISH with the same identifier is a new message.",
        refused_message_frees_its_identifier,
        mqtt5="4.3.3-9",
    ),
    Case(
        "qos-2-expired-message-completed",
        SEND,
        "The QoS 2 exchange is completed although the message has expired meanwhile.",
        expired_message_is_completed,
        mqtt5="4.3.3-13",
        is_slow=True,
    ),
    Case(
        "qos-1-new-after-puback",
        SEND,
        "After PUBACK a PUBLISH with the same identifier is a new message, whatever its DUP.",
        after_puback_it_is_a_new_message,
        mqtt311="4.3.2-2",
        mqtt5="4.3.2-5",
    ),
    Case(
        "qos-2-pubrel-after-pubrec",
        SEND,
        "The broker answers the PUBREC of its delivery with PUBREL of the same identifier, "
        "and sends none before.",
        pubrec_is_answered_with_pubrel,
        mqtt311="4.3.3-1",
        mqtt5="4.3.3-4",
    ),
    Case(
        "pubrel-identifier",
        SEND,
        "PUBREL has the packet identifier of the delivery.",
        pubrel_has_the_identifier,
        mqtt311="2.3.1-6 4.3.3-1",
        mqtt5="2.2.1-5 4.3.3-4",
    ),
    Case(
        "qos-2-pubrec-with-0x10",
        SEND,
        "The broker answers a PUBREC with a reason code below 0x80 with PUBREL.",
        pubrec_with_no_matching_subscribers_is_a_success,
        mqtt5="4.3.3-4",
    ),
    Case(
        "qos-2-pubrec-with-0x80",
        SEND,
        "A PUBREC with 0x80 ends the delivery: neither PUBREL nor PUBLISH follows.",
        pubrec_with_an_error_ends_the_delivery,
        mqtt5="4.4.0-2",
    ),
    Case(
        "qos-2-expiry-after-sending",
        SEND,
        "A QoS 2 message that was sent once is sent again after a reconnect although it expired.",
        expiry_does_not_end_what_was_sent,
        mqtt5="4.3.3-7",
        is_slow=True,
    ),
    Case(
        "receive-maximum-of-the-broker",
        RECEIVE,
        "A client with more open messages than the broker's Receive Maximum is disconnected.",
        quota_is_not_exceeded_by_a_client,
        mqtt5="3.3.4-7",
    ),
)

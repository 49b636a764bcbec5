"""Cases about forbidden packets [2.1, 2.2, 4.8, 4.13]: they end the connection, and do nothing."""

from typing import Final

from semel.mqtt.packet_types import DISCONNECT, PUBACK, PUBCOMP, PUBLISH, PUBREC
from semel.mqtt.packets.disconnect import Disconnect
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import (
    audience,
    named,
    refusal,
    require_qos,
    require_retain,
    require_wildcards,
    retained_removed,
    usable_qos,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.claims import ClaimArguable
from semel.probe.verdicts import RECEIVE, SEND


def flagged(packet: bytes, flags: int) -> bytes:
    """A packet with other flags in its first byte."""
    return bytes([packet[0] & 0xF0 | flags]) + packet[1:]


async def require_refused(trial: Trial, right: bytes, *wrong: bytes) -> None:
    """Claim that each wrong packet ends a connection; in the control arm the right one does not."""
    with trial.control():
        link = await trial.connect("right")
        await link.send(right)
        await trial.must_stay_open(link, " after a packet that is right")
    for number, packet in enumerate(wrong):
        link = await trial.connect(f"w{number}")
        await link.send(packet)
        await trial.must_refuse(link, allowed=refusal(trial), why=f" for {packet[:4].hex()}…")


# --- flags ---


async def subscribe_flags(trial: Trial) -> None:
    right = wire.subscribe(trial.version, [(trial.topic(), 0)])
    await require_refused(trial, right, *(flagged(right, flags) for flags in (0, 3, 6, 10, 15)))


async def unsubscribe_flags(trial: Trial) -> None:
    right = wire.unsubscribe(trial.version, [trial.topic()])
    await require_refused(trial, right, *(flagged(right, flags) for flags in (0, 3, 6, 10, 15)))


async def pubrel_flags(trial: Trial) -> None:
    """After a PUBREC, so that nothing but the flags is wrong."""
    for number, flags in enumerate((2, 0, 1, 4, 10)):
        link = await trial.connect(f"f{number}")
        require_qos(trial, link, 2)
        await link.send(wire.publish(trial.version, trial.topic(), qos=2, packet_id=7))
        await trial.expect(link, PUBREC)
        await link.send(flagged(wire.pubrel(7), flags))
        if flags == 2:
            with trial.control():
                await trial.must_receive(link, PUBCOMP)
        else:
            await trial.must_refuse(link, allowed=refusal(trial), why=f" for flags {flags}")


async def acknowledgement_flags(trial: Trial) -> None:
    """A PUBACK and a PUBREC of open deliveries, with a flag set."""
    for qos, answer in ((1, wire.puback), (2, wire.pubrec)):
        for flags in (0, 2, 8):
            link, publisher = await audience(trial, trial.topic(f"{qos}{flags}"), qos)
            await trial.publish(publisher, trial.topic(f"{qos}{flags}"), b"x", qos=qos)
            with trial.control():
                message = await trial.must_receive_message(link, acknowledge=False)
            await link.send(flagged(answer(message.packet_id), flags))
            if flags:
                allowed = (*refusal(trial), PUBLISH)
                await trial.must_refuse(link, allowed=allowed, why=f" for flags {flags}")
            else:
                with trial.control():
                    await trial.must_stay_open(link)


async def pingreq_and_disconnect_flags(trial: Trial) -> None:
    ping = wire.pingreq()
    wrong = [flagged(ping, flags) for flags in (1, 2, 8)]
    await require_refused(trial, ping, *wrong)


async def qos_3_is_refused(trial: Trial) -> None:
    right = wire.publish(trial.version, trial.topic(), qos=1, packet_id=7)
    require_qos(trial, await trial.connect(), 1)
    wrong = [flagged(right, flags) for flags in (6, 7, 14)]
    await require_refused(trial, right, *wrong)


# --- packets that a client must not send ---


async def packets_of_a_server_are_refused(trial: Trial) -> None:
    rest = b"\x00" if trial.is_5 else b""
    packets = (
        wire.frame(0x20, b"\x00\x00", rest),
        wire.frame(0x90, wire.two(1), rest, b"\x00"),
        wire.frame(0xB0, wire.two(1), rest, rest),
        b"\xd0\x00",
    )
    await require_refused(trial, wire.pingreq(), *packets)


async def unknown_packet_types_are_refused(trial: Trial) -> None:
    packets = [b"\x00\x00"] if trial.is_5 else [b"\x00\x00", b"\xf0\x00"]
    await require_refused(trial, wire.pingreq(), *packets)


async def wrong_lengths_are_refused(trial: Trial) -> None:
    """Packets with a body that is longer or shorter than theirs."""
    packets = [
        b"\xc0\x01\x00",
        wire.frame(0x62, b"\x07"),
        wire.frame(0x82, b"\x00"),
        wire.frame(0x30, b"\x00\x05ab"),
    ]
    if not trial.is_5:
        packets.append(wire.frame(0x62, b"\x00\x07\x00"))
    await require_refused(trial, wire.pingreq(), *packets)


async def server_says_why_and_closes(trial: Trial) -> None:
    """[4.13] DISCONNECT is optional; if it comes its reason is an error, and it is the last."""
    wrong = [
        wire.publish(trial.version, b"", b"x"),
        wire.publish(trial.version, trial.topic() + b"/#", b"x"),
        wire.subscribe(trial.version, [(b"", 0)]),
        wire.subscribe(trial.version, [(trial.topic(), 0xC0)]),
    ]
    if trial.is_5:
        twice = wire.byte_property(0x01, 1) * 2
        wrong.append(wire.publish(trial.version, trial.topic(), properties=twice))
    with trial.control():
        await trial.must_stay_open(await trial.connect("right"))
    for number, packet in enumerate(wrong):
        link = await trial.connect(f"w{number}")
        await link.send(packet)
        await trial.must_refuse(link)
        for observed in link.inbox:
            if observed.packet_type == DISCONNECT and isinstance(observed.packet, Disconnect):
                reason = observed.packet.reason
                trial.must(reason >= 0x80, f"closed after an error with reason 0x{reason:02x}")


async def disconnect_is_followed_by_a_close(trial: Trial) -> None:
    with trial.control():
        await trial.must_stay_open(await trial.connect("right"))
    link = await trial.connect("wrong")
    await link.send(wire.publish(trial.version, trial.topic(), qos=3))
    packet = await link.wait_for(DISCONNECT, 1.0)
    if not isinstance(packet, Disconnect):
        trial.not_applicable("the broker sent no DISCONNECT in this run")
    await trial.must_close(link)


# --- what is refused has no effect ---


async def must_have_nothing(trial: Trial, link: ProbeLink) -> None:
    publisher = await trial.connect("last")
    qos = usable_qos(publisher, 1)
    found = await trial.messages_until(link, trial.topic("last"), publisher, qos=qos)
    trial.must(not found, f"a refused PUBLISH was delivered: {named(found)}")


async def wildcard_topics_are_not_delivered(trial: Trial) -> None:
    """[ORIGIN 1] Neither acknowledged nor delivered, at every QoS; `value` is."""
    base = trial.topic("sensor")
    link, publisher = await audience(trial, trial.topic("#"), 1)
    require_wildcards(trial, link)
    with trial.control():
        await trial.publish(publisher, base + b"/value", b"x", qos=1)
        await trial.must_receive_message(link)
    for qos in range(usable_qos(publisher, 2) + 1):
        for number, rest in enumerate((b"/#", b"/+", b"/+/x", b"#")):
            wrong = await trial.connect(f"w{qos}{number}")
            packet = wire.publish(trial.version, base + rest, b"x", qos=qos, packet_id=7)
            await wrong.send(packet)
            why = f" for a topic with a wildcard at QoS {qos}"
            await trial.must_refuse(wrong, allowed=refusal(trial), why=why)
    await must_have_nothing(trial, link)


async def empty_topics_are_not_acknowledged(trial: Trial) -> None:
    """[ORIGIN 2] 30 03 00 00 78 and 32 05 00 00 00 07 78."""
    link = await trial.connect("right")
    with trial.control():
        await trial.publish(link, trial.topic(), b"x", qos=usable_qos(link, 1))
    for qos in range(usable_qos(link, 2) + 1):
        wrong = await trial.connect(f"w{qos}")
        await wrong.send(wire.publish(trial.version, b"", b"x", qos=qos, packet_id=7))
        why = f" for an empty topic at QoS {qos}"
        await trial.must_refuse(wrong, allowed=refusal(trial), why=why)


async def dup_at_qos_0_is_refused(trial: Trial) -> None:
    """[ORIGIN 3] 38 04 00 01 61 78: a QoS 0 message has nothing that could be repeated.

    The statement binds the sender, and 3.1.1 names no reaction but that of 4.8.
    """
    link, publisher = await audience(trial, trial.topic("#"), 0)
    require_wildcards(trial, link)
    with trial.control():
        await trial.publish(publisher, trial.topic("right"), b"x")
        await trial.must_receive_message(link)
    wrong = await trial.connect("wrong")
    await wrong.send(wire.publish(trial.version, trial.topic("wrong"), b"x", dup=True))
    await trial.must_refuse(wrong, allowed=refusal(trial), why=" for DUP 1 at QoS 0")
    await must_have_nothing(trial, link)


async def refused_message_is_not_retained(trial: Trial) -> None:
    """A PUBLISH whose end is malformed is not stored either."""
    publisher = await trial.connect("right")
    require_retain(trial, publisher)
    require_qos(trial, publisher, 1)
    name = trial.topic("kept")
    async with retained_removed(trial, name):
        wrong = await trial.connect("wrong")
        packet = wire.publish(trial.version, name, b"x", qos=1, packet_id=0, retain=True)
        await wrong.send(packet)
        await trial.must_refuse(wrong, allowed=refusal(trial), why=" for packet identifier 0")
        link = await trial.connect("sub")
        await trial.subscribe(link, (name, 1))
        found = await trial.messages_until(link, name, publisher, qos=1)
        trial.must(not found, "a refused PUBLISH was retained")


async def packets_after_an_error_are_ignored(trial: Trial) -> None:
    """What follows a malformed packet in the same segment belongs to a connection that ended."""
    link, publisher = await audience(trial, trial.topic(), 1)
    following = wire.publish(trial.version, trial.topic(), b"after", qos=1, packet_id=8)
    with trial.control():
        await publisher.send(wire.pingreq() + following)
        await trial.must_receive(publisher, PUBACK)
        await trial.must_receive_message(link)
    wrong = await trial.connect("wrong")
    await wrong.send(wire.publish(trial.version, trial.topic("x"), qos=3) + following)
    await trial.must_refuse(wrong, allowed=refusal(trial))
    found = await trial.messages_until(link, trial.topic(), publisher, qos=1)
    if found:
        raise ClaimArguable("a PUBLISH after a malformed packet was taken before the broker closed")


async def subscription_identifier_from_client(trial: Trial) -> None:
    """[MQTT-3.3.4-6] Only a server's PUBLISH has the property: 4.13 calls it a Protocol Error."""
    topic_name = trial.topic()
    link = await trial.connect()
    with trial.control():
        await link.send(wire.publish(trial.version, topic_name))
        await trial.must_stay_open(link)
    packet = wire.publish(trial.version, topic_name, properties=wire.subscription_identifier(1))
    await link.send(packet)
    await trial.must_refuse(link)


CASES: Final = (
    Case(
        "flags-of-subscribe",
        RECEIVE,
        "A SUBSCRIBE with other flags than 0010 ends the connection.",
        subscribe_flags,
        mqtt311="2.2.2-2 3.8.1-1 2.2.2-1",
        mqtt5="3.8.1-1 2.1.3-1",
    ),
    Case(
        "flags-of-unsubscribe",
        RECEIVE,
        "An UNSUBSCRIBE with other flags than 0010 ends the connection.",
        unsubscribe_flags,
        mqtt311="2.2.2-2 3.10.1-1 2.2.2-1",
        mqtt5="3.10.1-1 2.1.3-1",
    ),
    Case(
        "flags-of-pubrel",
        RECEIVE,
        "A PUBREL with other flags than 0010 ends the connection.",
        pubrel_flags,
        mqtt311="2.2.2-2 3.6.1-1 2.2.2-1",
        mqtt5="3.6.1-1 2.1.3-1",
    ),
    Case(
        "flags-of-acknowledgements",
        RECEIVE,
        "A PUBACK or PUBREC with a flag ends the connection.",
        acknowledgement_flags,
        mqtt311="2.2.2-2 2.2.2-1",
        mqtt5="2.1.3-1",
    ),
    Case(
        "flags-of-pingreq",
        RECEIVE,
        "A PINGREQ with a flag ends the connection.",
        pingreq_and_disconnect_flags,
        mqtt311="2.2.2-2 2.2.2-1",
        mqtt5="2.1.3-1",
    ),
    Case(
        "qos-3",
        RECEIVE,
        "A PUBLISH with QoS 3 ends the connection.",
        qos_3_is_refused,
        mqtt311="3.3.1-4",
        mqtt5="3.3.1-4",
    ),
    Case(
        "packets-of-a-server",
        RECEIVE,
        "A packet that only a server sends ends the connection.",
        packets_of_a_server_are_refused,
        mqtt311="U3-02 4.8.0-1",
        mqtt5="U5-02 4.13.1-1",
    ),
    Case(
        "unknown-packet-types",
        RECEIVE,
        "A packet of a type that does not exist ends the connection.",
        unknown_packet_types_are_refused,
        mqtt311="U3-01 4.8.0-1",
        mqtt5="U5-01 4.13.1-1",
    ),
    Case(
        "wrong-lengths",
        RECEIVE,
        "A packet that is longer or shorter than its fields ends the connection.",
        wrong_lengths_are_refused,
        mqtt311="4.8.0-1",
        mqtt5="4.13.1-1",
    ),
    Case(
        "errors-close",
        RECEIVE,
        "After an error the broker closes; its DISCONNECT, if there is one, has an error code.",
        server_says_why_and_closes,
        mqtt311="4.8.0-1",
        mqtt5="4.13.1-1",
    ),
    Case(
        "disconnect-is-followed-by-a-close",
        SEND,
        "After a DISCONNECT with an error code the broker closes the connection.",
        disconnect_is_followed_by_a_close,
        mqtt5="4.13.2-1",
    ),
    Case(
        "wildcard-topics",
        RECEIVE,
        "A PUBLISH to a topic with a wildcard is neither acknowledged nor delivered, at any QoS.",
        wildcard_topics_are_not_delivered,
        mqtt311="4.7.1-1 3.3.2-2",
        mqtt5="4.7.0-1 3.3.2-2",
    ),
    Case(
        "empty-topics",
        RECEIVE,
        "A PUBLISH to an empty topic is not acknowledged and ends the connection, at any QoS.",
        empty_topics_are_not_acknowledged,
        mqtt311="4.7.3-1",
        mqtt5="4.7.3-1 U5-50",
    ),
    Case(
        "dup-at-qos-0",
        RECEIVE,
        "A PUBLISH with DUP 1 and QoS 0 ends the connection and is not delivered.",
        dup_at_qos_0_is_refused,
        mqtt311="3.3.1-2 4.3.1-1",
        mqtt5="3.3.1-2 4.3.1-1",
    ),
    Case(
        "refused-not-retained",
        RECEIVE,
        "A PUBLISH that is refused is not retained.",
        refused_message_is_not_retained,
        mqtt311="2.3.1-1",
        mqtt5="2.2.1-3",
    ),
    Case(
        "packets-after-an-error",
        RECEIVE,
        "What follows a malformed packet is not handled.",
        packets_after_an_error_are_ignored,
        mqtt311="3.3.1-4 4.8.0-1",
        mqtt5="3.3.1-4 4.13.1-1",
    ),
    Case(
        "subscription-identifier-from-client",
        RECEIVE,
        "A broker closes the connection for a client's PUBLISH with a Subscription Identifier.",
        subscription_identifier_from_client,
        mqtt5="3.3.4-6",
    ),
)

"""Cases about PUBLISH [3.3]: its flags, its answer, who gets it, and in which order."""

from typing import Final

from semel.mqtt.packet_types import PINGRESP, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from semel.mqtt.packets.acks import PubAck, PubComp, PubRec, PubRel
from semel.mqtt.packets.publish import Publish
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import (
    audience,
    connect_kept,
    inbox_after_ping,
    leave,
    limits,
    named,
    open_messages,
    payloads,
    require_qos,
    require_retain,
    require_wildcards,
    resume,
    retained_removed,
    subscribe_at,
    usable_qos,
)
from semel.probe.broker.link import ProbeLink, packet_names
from semel.probe.broker.trial import Trial
from semel.probe.verdicts import RECEIVE, SEND

# Packet identifiers at the borders of their two bytes.
IDENTIFIERS: Final = (1, 7, 255, 256, 65_535)
# Messages of one order; so few that no broker's quota is used up.
ROW: Final = 30
# QoS 2 messages that are published at once: brokers announce 10 or more.
BATCH: Final = 5


# --- DUP ---


async def dup_is_not_copied(trial: Trial, qos: int) -> None:
    """[3.3.1.1] DUP is about the transmission on one connection, not about the message."""
    subscriber, publisher = await audience(trial, trial.topic(), qos)
    with trial.control():
        await trial.publish(publisher, trial.topic(), b"first", qos=qos)
        first = await trial.must_receive_message(subscriber)
        trial.must(first.payload == b"first", "another message came")
    await publisher.send(
        wire.publish(trial.version, trial.topic(), b"marked", qos=qos, packet_id=7, dup=True)
    )
    if qos == 2:
        await publisher.wait_for(PUBREC, trial.timeout)
        await publisher.send(wire.pubrel(7))
    message = await trial.message(subscriber)
    if message is None or message.payload != b"marked":
        trial.not_applicable("the broker did not deliver a message with DUP 1 in this run")
    trial.must(not message.dup, "the broker copied DUP 1 to the first transmission")


async def dup_is_not_copied_at_qos_1(trial: Trial) -> None:
    await dup_is_not_copied(trial, 1)


async def dup_is_not_copied_at_qos_2(trial: Trial) -> None:
    await dup_is_not_copied(trial, 2)


async def dup_is_not_copied_to_qos_0(trial: Trial) -> None:
    subscriber, publisher = await audience(trial, trial.topic(), 0)
    require_qos(trial, publisher, 1)
    with trial.control():
        await trial.publish(publisher, trial.topic(), b"first", qos=1)
        await trial.must_receive_message(subscriber)
    await publisher.send(
        wire.publish(trial.version, trial.topic(), b"marked", qos=1, packet_id=7, dup=True)
    )
    message = await trial.message(subscriber)
    if message is None:
        trial.not_applicable("the broker did not deliver a message with DUP 1 in this run")
    with trial.control():
        trial.must(not message.qos, f"a subscription with QoS 0 received QoS {message.qos}")
    trial.must(not message.dup, "the broker copied DUP 1 to a PUBLISH with QoS 0")


async def first_transmissions(trial: Trial, qos: int) -> list[Publish]:
    """Messages that are open together, as many as the broker opens."""
    subscriber, publisher = await audience(trial, trial.topic(), qos)
    for number in range(4):
        payload = b"%d" % number
        await trial.publish(publisher, trial.topic(), payload, qos=qos, packet_id=10 + number)
    return await open_messages(trial, subscriber, 4)


async def open_identifiers_are_different(trial: Trial, qos: int) -> None:
    opened = await first_transmissions(trial, qos)
    found = [message.packet_id for message in opened]
    trial.must(len(set(found)) == len(opened), f"the open identifiers are {found}")
    trial.must(all(found), "a packet identifier is 0")


async def identifiers_at_qos_1(trial: Trial) -> None:
    await open_identifiers_are_different(trial, 1)


async def identifiers_at_qos_2(trial: Trial) -> None:
    await open_identifiers_are_different(trial, 2)


async def first_transmissions_have_dup_0(trial: Trial, qos: int) -> None:
    opened = await first_transmissions(trial, qos)
    trial.must(not any(message.dup for message in opened), "a first transmission has DUP 1")
    found = [message.qos for message in opened]
    trial.must(set(found) == {qos}, f"published and granted with QoS {qos}, sent with {found}")


async def first_transmissions_at_qos_1(trial: Trial) -> None:
    await first_transmissions_have_dup_0(trial, 1)


async def first_transmissions_at_qos_2(trial: Trial) -> None:
    await first_transmissions_have_dup_0(trial, 2)


async def qos_0_has_neither_dup_nor_identifier(trial: Trial) -> None:
    subscriber, publisher = await audience(trial, trial.topic(), 0)
    await trial.publish(publisher, trial.topic(), b"\x00\x07payload")
    message = await trial.must_receive_message(subscriber)
    trial.must(message.qos == 0, f"the broker raised the QoS to {message.qos}")
    trial.must(not message.dup, "a PUBLISH with QoS 0 has DUP 1")
    found = message.payload.hex()
    trial.must(message.payload == b"\x00\x07payload", f"the payload became {found}")


# --- the answer ---


async def qos_0_is_not_answered(trial: Trial) -> None:
    link = await trial.connect()
    with trial.control():
        await trial.must_stay_open(link)
    await link.send(wire.publish(trial.version, trial.topic()) + wire.pingreq())
    await trial.must_receive(link, PINGRESP)
    trial.must(not link.inbox, f"a PUBLISH with QoS 0 was answered with {packet_names(link)}")


async def qos_1_is_answered_with_puback(trial: Trial) -> None:
    link = await trial.connect()
    require_qos(trial, link, 1)
    for packet_id in IDENTIFIERS:
        await link.send(wire.publish(trial.version, trial.topic(), qos=1, packet_id=packet_id))
        await trial.must_receive(link, PUBACK)
        rest = await inbox_after_ping(trial, link)
        trial.must(not rest, f"the broker also sent {packet_names(link)}")


async def puback_has_the_identifier(trial: Trial) -> None:
    link = await trial.connect()
    require_qos(trial, link, 1)
    for packet_id in IDENTIFIERS:
        await link.send(wire.publish(trial.version, trial.topic(), qos=1, packet_id=packet_id))
        answer = await trial.expect(link, PUBACK)
        assert isinstance(answer, PubAck)
        found = f"PUBACK {answer.packet_id} answered PUBLISH {packet_id}"
        trial.must(answer.packet_id == packet_id, found)


async def end_exchange(trial: Trial, link: ProbeLink, packet_id: int) -> None:
    """Complete a QoS 2 exchange, so that the quota of the broker has room for the next."""
    await link.send(wire.pubrel(packet_id))
    await link.wait_for(PUBCOMP, trial.timeout)


async def qos_2_is_answered_with_pubrec(trial: Trial) -> None:
    link = await trial.connect()
    require_qos(trial, link, 2)
    for packet_id in IDENTIFIERS:
        await link.send(wire.publish(trial.version, trial.topic(), qos=2, packet_id=packet_id))
        await trial.must_receive(link, PUBREC)
        rest = await inbox_after_ping(trial, link)
        trial.must(not rest, f"before PUBREL the broker also sent {packet_names(link)}")
        await end_exchange(trial, link, packet_id)


async def pubrec_has_the_identifier(trial: Trial) -> None:
    link = await trial.connect()
    require_qos(trial, link, 2)
    for packet_id in IDENTIFIERS:
        await link.send(wire.publish(trial.version, trial.topic(), qos=2, packet_id=packet_id))
        answer = await trial.expect(link, PUBREC)
        assert isinstance(answer, PubRec)
        found = f"PUBREC {answer.packet_id} answered PUBLISH {packet_id}"
        trial.must(answer.packet_id == packet_id, found)
        await end_exchange(trial, link, packet_id)


async def pubrel_is_answered_with_pubcomp(trial: Trial) -> None:
    link = await trial.connect()
    require_qos(trial, link, 2)
    for packet_id in IDENTIFIERS:
        await link.send(wire.publish(trial.version, trial.topic(), qos=2, packet_id=packet_id))
        await trial.expect(link, PUBREC)
        await link.send(wire.pubrel(packet_id))
        await trial.must_receive(link, PUBCOMP)
        rest = await inbox_after_ping(trial, link)
        trial.must(not rest, f"the broker also sent {packet_names(link)}")


async def pubcomp_has_the_identifier(trial: Trial) -> None:
    link = await trial.connect()
    require_qos(trial, link, 2)
    for packet_id in IDENTIFIERS:
        await link.send(wire.publish(trial.version, trial.topic(), qos=2, packet_id=packet_id))
        await trial.expect(link, PUBREC)
        await link.send(wire.pubrel(packet_id))
        answer = await trial.expect(link, PUBCOMP)
        assert isinstance(answer, PubComp)
        found = f"PUBCOMP {answer.packet_id} answered PUBREL {packet_id}"
        trial.must(answer.packet_id == packet_id, found)


async def identifiers_of_the_two_directions_are_apart(trial: Trial) -> None:
    """[2.3.1] A client and a server assign identifiers independently of each other."""
    link = await trial.connect()
    qos = usable_qos(link, 2)
    require_qos(trial, link, 1)
    await subscribe_at(trial, link, trial.topic("in"), qos)
    publisher = await trial.connect("pub")
    with trial.control():
        await trial.publish(publisher, trial.topic("in"), b"delivered", qos=qos)
        message = await trial.must_receive_message(link, acknowledge=False)
    own = message.packet_id
    await link.send(wire.publish(trial.version, trial.topic("out"), qos=1, packet_id=own))
    answer = await trial.must_receive(link, PUBACK)
    assert isinstance(answer, PubAck)
    trial.must(answer.packet_id == own, f"PUBACK {answer.packet_id} answered PUBLISH {own}")
    trial.must(
        not trial.is_5 or answer.reason < 0x80,
        f"the broker refused identifier {own}, which only its own delivery uses: "
        f"0x{answer.reason:02x}",
    )
    await trial.acknowledge(link, message)
    await trial.must_stay_open(link)


async def unauthorised_publish_is_acknowledged_or_closed(trial: Trial) -> None:
    """[3.3.5-2] A topic below $SYS is one that most brokers keep for themselves."""
    link = await trial.connect()
    with trial.control():
        await trial.publish(link, trial.topic(), qos=1)
    name = b"$SYS/" + trial.topic()
    await link.send(wire.publish(trial.version, name, qos=1, packet_id=9))
    answer = await link.wait_for(PUBACK, trial.timeout)
    trial.must(
        answer is not None or link.is_closed,
        "the broker neither acknowledged the PUBLISH nor closed the connection",
    )


# --- who gets it ---


async def every_matching_session_gets_it(trial: Trial) -> None:
    away = await connect_kept(trial, "away")
    first, second = await trial.connect("first"), await trial.connect("second")
    require_wildcards(trial, first)
    require_qos(trial, first, 1)
    await subscribe_at(trial, away, trial.topic(), 1)
    await subscribe_at(trial, first, trial.topic(), 1)
    await subscribe_at(trial, second, trial.topic()[:-1] + b"+", 1)
    await leave(trial, away)
    publisher = await trial.connect("pub")
    await trial.publish(publisher, trial.topic(), b"for all", qos=1)
    for link in (first, second):
        message = await trial.must_receive_message(link)
        trial.must(message.payload == b"for all", "another message came")
        trial.must(message.qos == 1, f"the QoS became {message.qos}")
    away = await resume(trial, "away")
    message = await trial.must_receive_message(away)
    trial.must(message.payload == b"for all", "the session that was away got another message")


async def publisher_gets_its_own_message(trial: Trial) -> None:
    link = await trial.connect()
    require_qos(trial, link, 1)
    await subscribe_at(trial, link, trial.topic(), 1)
    await trial.publish(link, trial.topic(), b"own", qos=1)
    message = await trial.must_receive_message(link)
    trial.must(message.payload == b"own", "another message came")


async def payloads_are_not_changed(trial: Trial) -> None:
    subscriber, publisher = await audience(trial, trial.topic(), 1)
    sent = [b"", b"\x00", bytes(range(256)), b"\xff\xfe\r\n", b"y" * 20_000]
    for number, payload in enumerate(sent):
        await trial.publish(publisher, trial.topic(), payload, qos=1, packet_id=number + 1)
        message = await trial.must_receive_message(subscriber)
        found = f"{len(payload)} bytes of payload arrived as {len(message.payload)} others"
        trial.must(message.payload == payload, found)
        name = message.topic_name.encode()
        trial.must(name == trial.topic(), f"the topic name arrived as {message.topic_name}")


async def only_matching_topics_are_delivered(trial: Trial) -> None:
    base = trial.topic("a")
    subscriber, publisher = await audience(trial, base + b"/b", 1)
    for number, name in enumerate((b"/c", b"", b"/b/c", b"/bb", b"b/", b"/B")):
        await trial.publish(publisher, base + name, name, qos=1, packet_id=number + 1)
    found = await trial.messages_until(subscriber, base + b"/b", publisher, qos=1)
    trial.must(not found, f"messages of other topics were delivered: {named(found)}")


async def nothing_is_delivered_without_subscription(trial: Trial) -> None:
    link, publisher = await trial.connect(), await trial.connect("pub")
    qos = usable_qos(link, 1)
    await trial.publish(publisher, trial.topic(), b"before", qos=qos)
    await trial.subscribe(link, (trial.topic("other"), qos))
    await trial.publish(publisher, trial.topic(), b"between", qos=qos)
    found = await trial.messages_until(link, trial.topic("other"), publisher, qos=qos)
    trial.must(not found, f"messages without a subscription were delivered: {named(found)}")


async def nothing_retained_is_delivered_without_subscription(trial: Trial) -> None:
    """A broker could take the subscriptions of others for those of a new client."""
    publisher, subscriber = await trial.connect("pub"), await trial.connect("sub")
    require_retain(trial, publisher)
    qos = usable_qos(publisher, 1)
    kept = trial.topic("kept")
    async with retained_removed(trial, kept):
        await trial.publish(publisher, kept, b"kept", qos=qos, retain=True)
        await trial.subscribe(subscriber, (kept, qos))
        await trial.expect(subscriber, PUBLISH)
        stranger = await trial.connect("new")
        await trial.subscribe(stranger, (trial.topic("other"), qos))
        found = await trial.messages_until(stranger, trial.topic("other"), publisher, qos=qos)
        trial.must(not found, f"a client got {named(found)}, to which only another one subscribed")


# --- QoS of the delivery ---


async def qos_is_the_lower_of_two(trial: Trial) -> None:
    publisher = await trial.connect("pub")
    top = usable_qos(publisher, 2)
    for granted in range(3):
        link = await trial.connect(f"s{granted}")
        name = trial.topic(f"q{granted}")
        answer = await trial.subscribe(link, (name, granted))
        for published in range(top + 1):
            payload = b"published with QoS %d" % published
            await trial.publish(publisher, name, payload, qos=published)
            message = await trial.must_receive_message(link)
            trial.must(message.payload == payload, "another message came")
            expected = min(published, answer.reasons[0])
            trial.must(
                message.qos == expected,
                f"published with QoS {published}, granted {answer.reasons[0]}, "
                f"delivered with {message.qos}",
            )


async def overlapping_filters_get_the_highest_qos(trial: Trial) -> None:
    publisher = await trial.connect("pub")
    require_wildcards(trial, publisher)
    top = usable_qos(publisher, 2)
    if not top:
        trial.not_applicable("the broker said in CONNACK that it supports QoS 0 only")
    wide, narrow = trial.topic("a") + b"/#", trial.topic("a") + b"/b"
    for name, first, second in (("wide", wide, narrow), ("narrow", narrow, wide)):
        link = await trial.connect(name)
        await trial.subscribe(link, (first, 0))
        await subscribe_at(trial, link, second, top, packet_id=101)
        await trial.publish(publisher, narrow, b"both", qos=top)
        copies = [await trial.must_receive_message(link)]
        # The marker matches one of the two filters only at the QoS that is claimed.
        copies += await trial.messages_until(link, narrow, publisher, qos=top)
        copies = [copy for copy in copies if copy.payload == b"both"]
        found = ", ".join(str(copy.qos) for copy in copies)
        trial.must(any(copy.qos == top for copy in copies), f"delivered with QoS {found} only")
        trial.must(sum(copy.qos == top for copy in copies) == 1, f"delivered with QoS {found}")


async def one_message_is_one_copy(trial: Trial) -> None:
    subscriber, publisher = await audience(trial, trial.topic(), 2)
    for number in range(3):
        await trial.publish(publisher, trial.topic(), b"%d" % number, qos=2, packet_id=number + 1)
    found = await trial.messages_until(subscriber, trial.topic(), publisher, qos=2)
    trial.must(payloads(found) == [b"0", b"1", b"2"], f"of three messages came {named(found)}")


# --- order ---


async def order_is_kept(trial: Trial, qos: int, *, subscribed: int) -> None:
    subscriber, publisher = await audience(trial, trial.topic(), subscribed)
    require_qos(trial, publisher, qos)
    sent = [b"%d" % number for number in range(ROW)]
    step = ROW if not qos else min(BATCH, limits(publisher).receive_maximum or BATCH)
    received: list[Publish] = []
    for start in range(0, ROW, step):
        packets = [
            wire.publish(trial.version, trial.topic(), payload, qos=qos, packet_id=int(payload) + 1)
            for payload in sent[start : start + step]
        ]
        await publisher.send(b"".join(packets))
        for payload in sent[start : start + step]:
            if qos == 1:
                await trial.expect(publisher, PUBACK)
            elif qos == 2:
                await trial.expect(publisher, PUBREC)
                await publisher.send(wire.pubrel(int(payload) + 1))
                await trial.expect(publisher, PUBCOMP)
        received += [await trial.must_receive_message(subscriber) for _ in packets]
    trial.must(payloads(received) == sent, f"the messages came as {named(received)}")


async def order_is_kept_at_qos_0(trial: Trial) -> None:
    await order_is_kept(trial, 0, subscribed=0)


async def order_is_kept_at_qos_1(trial: Trial) -> None:
    await order_is_kept(trial, 1, subscribed=1)


async def order_is_kept_at_qos_2(trial: Trial) -> None:
    await order_is_kept(trial, 2, subscribed=2)


async def order_is_kept_at_a_lower_qos(trial: Trial) -> None:
    await order_is_kept(trial, 2, subscribed=1)


async def pubrels_follow_the_order_of_pubrecs(trial: Trial) -> None:
    subscriber, publisher = await audience(trial, trial.topic(), 2)
    for number in range(3):
        await trial.publish(publisher, trial.topic(), b"%d" % number, qos=2, packet_id=1 + number)
    opened = await open_messages(trial, subscriber, 3)
    for message in opened:
        await subscriber.send(wire.pubrec(message.packet_id))
    released = [await release(trial, subscriber) for _ in opened]
    expected = [message.packet_id for message in opened]
    trial.must(released == expected, f"PUBREC in the order {expected}, PUBREL in {released}")


async def release(trial: Trial, link: ProbeLink) -> int:
    """The packet identifier of the next PUBREL."""
    packet = await trial.must_receive(link, PUBREL)
    assert isinstance(packet, PubRel)
    return packet.packet_id


CASES: Final = (
    Case(
        "dup-not-copied-at-qos-1",
        SEND,
        "DUP is not copied from a received PUBLISH to a first transmission at QoS 1.",
        dup_is_not_copied_at_qos_1,
        mqtt311="3.3.1-3 4.3.2-1",
        mqtt5="3.3.1-3 4.3.2-2",
    ),
    Case(
        "dup-not-copied-at-qos-2",
        SEND,
        "DUP is not copied from a received PUBLISH to a first transmission at QoS 2.",
        dup_is_not_copied_at_qos_2,
        mqtt311="3.3.1-3 4.3.3-1",
        mqtt5="3.3.1-3 4.3.3-2",
    ),
    Case(
        "dup-not-copied-to-qos-0",
        SEND,
        "A message that came with DUP 1 at QoS 1 is forwarded at QoS 0 with DUP 0.",
        dup_is_not_copied_to_qos_0,
        mqtt311="3.3.1-3 3.3.1-2 4.3.1-1",
        mqtt5="3.3.1-3 3.3.1-2 4.3.1-1",
    ),
    Case(
        "identifiers-at-qos-1",
        SEND,
        "Open QoS 1 deliveries have packet identifiers of their own.",
        identifiers_at_qos_1,
        mqtt311="2.3.1-4 4.3.2-1",
        mqtt5="2.2.1-4 4.3.2-1",
    ),
    Case(
        "identifiers-at-qos-2",
        SEND,
        "Open QoS 2 deliveries have packet identifiers of their own.",
        identifiers_at_qos_2,
        mqtt311="2.3.1-4 4.3.3-1",
        mqtt5="2.2.1-4 4.3.3-1",
    ),
    Case(
        "first-transmissions-at-qos-1",
        SEND,
        "A QoS 1 message is sent first with QoS 1 and DUP 0.",
        first_transmissions_at_qos_1,
        mqtt311="4.3.2-1",
        mqtt5="4.3.2-2",
    ),
    Case(
        "first-transmissions-at-qos-2",
        SEND,
        "A QoS 2 message is sent first with QoS 2 and DUP 0.",
        first_transmissions_at_qos_2,
        mqtt311="4.3.3-1",
        mqtt5="4.3.3-2",
    ),
    Case(
        "qos-0-without-dup-and-identifier",
        SEND,
        "A QoS 0 message is delivered with QoS 0 and DUP 0, its payload directly after its topic.",
        qos_0_has_neither_dup_nor_identifier,
        mqtt311="2.3.1-5 3.3.1-2 4.3.1-1",
        mqtt5="2.2.1-2 3.3.1-2 4.3.1-1",
    ),
    Case(
        "qos-0-not-answered",
        SEND,
        "A QoS 0 PUBLISH is not answered.",
        qos_0_is_not_answered,
        mqtt311="3.3.4-1",
        mqtt5="3.3.4-1",
    ),
    Case(
        "qos-1-answered-with-puback",
        SEND,
        "A QoS 1 PUBLISH is answered with one PUBACK.",
        qos_1_is_answered_with_puback,
        mqtt311="3.3.4-1 4.3.2-2",
        mqtt5="3.3.4-1 4.3.2-4",
    ),
    Case(
        "puback-identifier",
        SEND,
        "PUBACK has the packet identifier of the PUBLISH.",
        puback_has_the_identifier,
        mqtt311="2.3.1-6 4.3.2-2",
        mqtt5="2.2.1-5 4.3.2-4",
    ),
    Case(
        "qos-2-answered-with-pubrec",
        SEND,
        "A QoS 2 PUBLISH is answered with one PUBREC.",
        qos_2_is_answered_with_pubrec,
        mqtt311="3.3.4-1 4.3.3-2",
        mqtt5="3.3.4-1 4.3.3-8",
    ),
    Case(
        "pubrec-identifier",
        SEND,
        "PUBREC has the packet identifier of the PUBLISH.",
        pubrec_has_the_identifier,
        mqtt311="2.3.1-6 4.3.3-2",
        mqtt5="2.2.1-5 4.3.3-8",
    ),
    Case(
        "pubrel-answered-with-pubcomp",
        SEND,
        "A PUBREL is answered with one PUBCOMP.",
        pubrel_is_answered_with_pubcomp,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-11",
    ),
    Case(
        "pubcomp-identifier",
        SEND,
        "PUBCOMP has the packet identifier of the PUBREL.",
        pubcomp_has_the_identifier,
        mqtt311="U3-07 4.3.3-2",
        mqtt5="2.2.1-5 4.3.3-11",
    ),
    Case(
        "identifiers-of-both-directions",
        RECEIVE,
        "A client may use a packet identifier that an open delivery of the broker has.",
        identifiers_of_the_two_directions_are_apart,
        mqtt311="4.3.2-2",
        mqtt5="4.3.2-4",
    ),
    Case(
        "unauthorised-publish-acknowledged-or-closed",
        SEND,
        "A PUBLISH that a broker does not authorize is acknowledged, or the connection is closed.",
        unauthorised_publish_is_acknowledged_or_closed,
        mqtt311="3.3.5-2",
    ),
    Case(
        "every-matching-session",
        SEND,
        "A message that the broker acknowledged reaches every session with a matching "
        "subscription, also one that is not connected.",
        every_matching_session_gets_it,
        mqtt311="4.5.0-1",
        mqtt5="4.5.0-1",
    ),
    Case(
        "own-message",
        SEND,
        "A client with a matching subscription gets its own messages.",
        publisher_gets_its_own_message,
        mqtt311="4.5.0-1",
        mqtt5="4.5.0-1",
    ),
    Case(
        "payloads-unchanged",
        SEND,
        "Topic names and payloads, empty ones too, are delivered unchanged.",
        payloads_are_not_changed,
        mqtt311="4.5.0-1",
        mqtt5="4.5.0-1",
    ),
    Case(
        "only-matching-topics",
        SEND,
        "A subscription brings messages of matching topics only.",
        only_matching_topics_are_delivered,
        mqtt311="3.3.2-3",
        mqtt5="3.3.2-3",
    ),
    Case(
        "nothing-without-subscription",
        SEND,
        "A client gets nothing to which it has not subscribed.",
        nothing_is_delivered_without_subscription,
        mqtt311="3.3.2-3",
        mqtt5="3.3.2-3",
    ),
    Case(
        "nothing-retained-without-subscription",
        SEND,
        "A new client gets no retained message to which only others have subscribed.",
        nothing_retained_is_delivered_without_subscription,
        mqtt311="3.3.2-3",
        mqtt5="3.3.2-3",
    ),
    Case(
        "lower-of-two-qos",
        SEND,
        "A message is delivered at the lower of its own QoS and the granted one.",
        qos_is_the_lower_of_two,
        mqtt311="3.8.4-6",
        mqtt5="3.8.4-8",
    ),
    Case(
        "overlapping-filters-highest-qos",
        SEND,
        "A message that several filters of a client match comes once with the highest QoS of them.",
        overlapping_filters_get_the_highest_qos,
        mqtt311="3.3.5-1",
        mqtt5="3.3.4-2",
    ),
    Case(
        "one-copy",
        SEND,
        "A client with one matching QoS 2 subscription gets one copy of each QoS 2 message.",
        one_message_is_one_copy,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-10",
    ),
    Case(
        "order-at-qos-0",
        SEND,
        "QoS 0 messages of one publisher and topic are delivered in order.",
        order_is_kept_at_qos_0,
        mqtt311="4.6.0-5 4.6.0-6",
        mqtt5="4.6.0-5 4.6.0-6",
    ),
    Case(
        "order-at-qos-1",
        SEND,
        "QoS 1 messages of one publisher and topic are delivered in order.",
        order_is_kept_at_qos_1,
        mqtt311="4.6.0-5 4.6.0-6",
        mqtt5="4.6.0-5 4.6.0-6",
    ),
    Case(
        "order-at-qos-2",
        SEND,
        "QoS 2 messages of one publisher and topic are delivered in order.",
        order_is_kept_at_qos_2,
        mqtt311="4.6.0-5 4.6.0-6",
        mqtt5="4.6.0-5 4.6.0-6",
    ),
    Case(
        "order-at-a-lower-qos",
        SEND,
        "QoS 2 messages of one publisher and topic are delivered in order to a QoS 1 subscription.",
        order_is_kept_at_a_lower_qos,
        mqtt311="4.6.0-5 4.6.0-6",
        mqtt5="4.6.0-5 4.6.0-6",
    ),
    Case(
        "pubrels-in-order",
        SEND,
        "The broker sends PUBREL packets in the order in which the PUBREC packets came.",
        pubrels_follow_the_order_of_pubrecs,
        mqtt311="4.6.0-6",
    ),
)

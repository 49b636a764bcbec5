"""Cases about limits of a client and of the broker [4.9, 3.1.2.11, 3.2.2.3], only in 5.0."""

from typing import Final

from semel.mqtt import PACKET_NAMES
from semel.mqtt.packet_types import (
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
)
from semel.mqtt.packets.acks import PubAck, PubRec
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import SubAck
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import (
    connack_size,
    connect_kept,
    inbox_after_ping,
    leave,
    limits,
    listed,
    named,
    payloads,
    reasoned,
    require_qos,
    resume,
    subscribe_at,
    usable_qos,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.claims import ClaimArguable
from semel.probe.verdicts import RECEIVE, SEND

# A Maximum Packet Size of the broker that is tried; larger ones would take too long.
LARGEST_TRIED: Final = 20_000_000
# The least Maximum Packet Size of the examiner; a broker whose CONNACK is longer gets more.
SMALL: Final = 20


def receive_maximum(number: int) -> bytes:
    return wire.two_property(0x21, number)


def maximum_packet_size(number: int) -> bytes:
    return wire.four_property(0x27, number)


# --- Receive Maximum of a client ---


async def limited_audience(trial: Trial, qos: int, maximum: int) -> tuple[ProbeLink, ProbeLink]:
    """A subscriber with a Receive Maximum, and a publisher that has published five messages."""
    publisher = await trial.connect("pub")
    require_qos(trial, publisher, qos)
    subscriber = await trial.connect("sub", properties=receive_maximum(maximum))
    await subscribe_at(trial, subscriber, trial.topic(), qos)
    for number in range(5):
        await trial.publish(publisher, trial.topic(), b"%d" % number, qos=qos, packet_id=number + 1)
    return subscriber, publisher


def taken(link: ProbeLink) -> list[Publish]:
    """Take the messages that are in the inbox."""
    found = [each.packet for each in link.inbox if each.packet_type == PUBLISH]
    link.inbox[:] = [each for each in link.inbox if each.packet_type != PUBLISH]
    return [packet for packet in found if isinstance(packet, Publish)]


async def no_more_than_the_maximum_is_open(trial: Trial, qos: int, maximum: int) -> None:
    subscriber, _ = await limited_audience(trial, qos, maximum)
    opened = [await trial.must_receive_message(subscriber, acknowledge=False)]
    received = list(opened)
    while len(received) < 5:
        await inbox_after_ping(trial, subscriber)
        more = taken(subscriber)
        opened += more
        received += more
        found = f"{len(opened)} messages are open, the Receive Maximum is {maximum}"
        trial.must(len(opened) <= maximum, found)
        await trial.acknowledge(subscriber, opened.pop(0))
        if not opened and len(received) < 5:
            message = await trial.must_receive_message(subscriber, acknowledge=False)
            opened.append(message)
            received.append(message)
    expected = [b"%d" % number for number in range(5)]
    trial.must(payloads(received) == expected, f"delivered was {named(received)}")


async def one_open_qos_1(trial: Trial) -> None:
    await no_more_than_the_maximum_is_open(trial, 1, 1)


async def two_open_qos_1(trial: Trial) -> None:
    await no_more_than_the_maximum_is_open(trial, 1, 2)


async def one_open_qos_2(trial: Trial) -> None:
    await no_more_than_the_maximum_is_open(trial, 2, 1)


async def two_open_qos_2(trial: Trial) -> None:
    await no_more_than_the_maximum_is_open(trial, 2, 2)


async def pubrec_does_not_free_the_quota(trial: Trial) -> None:
    subscriber, _ = await limited_audience(trial, 2, 1)
    first = await trial.must_receive_message(subscriber, acknowledge=False)
    await subscriber.send(wire.pubrec(first.packet_id))
    await trial.must_receive(subscriber, PUBREL)
    await inbox_after_ping(trial, subscriber)
    trial.must(not taken(subscriber), "a second message came before PUBCOMP of the first")
    await subscriber.send(wire.pubcomp(first.packet_id))
    second = await trial.must_receive_message(subscriber, acknowledge=False)
    trial.must(second.payload == b"1", "another message came")


async def error_frees_the_quota(trial: Trial) -> None:
    for qos, first in ((1, 0x40), (2, 0x50)):
        subscriber, publisher = await limited_audience(trial, qos, 1)
        for number in range(5):
            message = await trial.must_receive_message(subscriber, acknowledge=False)
            trial.must(message.payload == b"%d" % number, f"{message.payload.decode()} came")
            await subscriber.send(reasoned(first, message.packet_id, 0x80))
        await leave(trial, subscriber)
        await leave(trial, publisher)


async def other_packets_are_handled(trial: Trial) -> None:
    """[4.9] With a quota of 0 the broker answers everything else."""
    subscriber, publisher = await limited_audience(trial, 1, 1)
    with trial.control():
        first = await trial.must_receive_message(subscriber, acknowledge=False)
    await subscriber.send(wire.pingreq())
    await trial.must_receive(subscriber, PINGRESP)
    entry = [(trial.topic("other"), 0)]
    await subscriber.send(wire.subscribe(trial.version, entry, packet_id=21))
    await trial.must_receive(subscriber, SUBACK)
    await subscriber.send(wire.publish(trial.version, trial.topic("x"), qos=1, packet_id=22))
    await trial.must_receive(subscriber, PUBACK)
    if usable_qos(publisher, 2) == 2:
        await subscriber.send(wire.publish(trial.version, trial.topic("x"), qos=2, packet_id=23))
        await trial.must_receive(subscriber, PUBREC)
        await subscriber.send(wire.pubrel(23))
        await trial.must_receive(subscriber, PUBCOMP)
    await subscriber.send(wire.unsubscribe(trial.version, [trial.topic("other")], packet_id=24))
    await trial.must_receive(subscriber, UNSUBACK)
    trial.must(not taken(subscriber), "a second message came, the Receive Maximum is 1")
    await trial.acknowledge(subscriber, first)
    second = await trial.must_receive_message(subscriber)
    trial.must(second.payload == b"1", "another message came")


async def quota_of_the_new_connection(trial: Trial) -> None:
    """What is sent again counts, by the Receive Maximum of the new connection."""
    publisher = await trial.connect("pub")
    require_qos(trial, publisher, 1)
    subscriber = await connect_kept(trial, "kept", properties=receive_maximum(10))
    await subscribe_at(trial, subscriber, trial.topic(), 1)
    for number in range(4):
        await trial.publish(publisher, trial.topic(), b"%d" % number, qos=1, packet_id=number + 1)
    with trial.control():
        await trial.must_receive_message(subscriber, acknowledge=False)
        await inbox_after_ping(trial, subscriber)
    await subscriber.cut()
    subscriber = await resume(trial, "kept", properties=receive_maximum(1))
    received: list[bytes] = []
    for _ in range(4):
        message = await trial.must_receive_message(subscriber, acknowledge=False)
        received.append(message.payload)
        await inbox_after_ping(trial, subscriber)
        trial.must(not taken(subscriber), "a second message was sent, the Receive Maximum is 1")
        await trial.acknowledge(subscriber, message)
    expected = [b"%d" % number for number in range(4)]
    trial.must(received == expected, f"sent again was {listed(received)}")


# --- Maximum Packet Size of a client ---


async def size_of_delivery(trial: Trial, publisher: ProbeLink, payload: bytes, qos: int) -> int:
    """The bytes of the PUBLISH that a client without a limit gets."""
    link = await trial.connect("size")
    await subscribe_at(trial, link, trial.topic(), qos)
    await trial.publish(publisher, trial.topic(), payload, qos=qos)
    observed = await link.wait_for_observed(PUBLISH, trial.timeout)
    with trial.control():
        trial.must(observed is not None, "a message was not delivered")
    assert observed is not None
    await link.cut()
    return len(observed.data)


async def packets_have_at_most_the_size(trial: Trial, qos: int) -> None:
    publisher = await trial.connect("pub")
    require_qos(trial, publisher, qos)
    fitting = b"y" * 200
    size = await size_of_delivery(trial, publisher, fitting, qos)
    subscriber = await trial.connect("sub", properties=maximum_packet_size(size))
    await subscribe_at(trial, subscriber, trial.topic(), qos)
    for number, payload in enumerate((fitting + b"z", fitting * 20, fitting)):
        await trial.publish(publisher, trial.topic(), payload, qos=qos, packet_id=number + 1)
    found = [await trial.must_receive_message(subscriber)]
    found += await trial.messages_until(subscriber, trial.topic(), publisher, qos=qos)
    sizes = [len(message.payload) for message in found]
    expected = f"a payload of 200 bytes fits, and {listed(sizes)} came"
    trial.must(sizes == [200], expected)


async def packets_at_qos_0(trial: Trial) -> None:
    await packets_have_at_most_the_size(trial, 0)


async def packets_at_qos_1(trial: Trial) -> None:
    await packets_have_at_most_the_size(trial, 1)


async def packets_at_qos_2(trial: Trial) -> None:
    await packets_have_at_most_the_size(trial, 2)


async def discarded_message_counts_as_delivered(trial: Trial) -> None:
    """It takes no quota, and another subscriber gets it."""
    publisher, other = await trial.connect("pub"), await trial.connect("other")
    require_qos(trial, publisher, 1)
    await subscribe_at(trial, other, trial.topic(), 1)
    properties = maximum_packet_size(300) + receive_maximum(1)
    subscriber = await trial.connect("sub", properties=properties)
    await subscribe_at(trial, subscriber, trial.topic(), 1)
    large, small = b"l" * 500, b"small"
    for number, payload in enumerate((large, large, small)):
        await trial.publish(publisher, trial.topic(), payload, qos=1, packet_id=number + 1)
    message = await trial.must_receive_message(subscriber)
    trial.must(message.payload == small, f"{len(message.payload)} bytes came")
    for expected in (large, large, small):
        message = await trial.must_receive_message(other)
        trial.must(message.payload == expected, "a client without a limit did not get them all")


async def waiting_message_is_discarded(trial: Trial) -> None:
    publisher, subscriber = await trial.connect("pub"), await connect_kept(trial, "kept")
    require_qos(trial, publisher, 1)
    await subscribe_at(trial, subscriber, trial.topic(), 1)
    await leave(trial, subscriber)
    for number, payload in enumerate((b"first", b"l" * 500, b"last")):
        await trial.publish(publisher, trial.topic(), payload, qos=1, packet_id=number + 1)
    subscriber = await resume(trial, "kept", properties=maximum_packet_size(300))
    received = [await trial.must_receive_message(subscriber) for _ in range(2)]
    trial.must(payloads(received) == [b"first", b"last"], f"delivered was {named(received)}")
    await trial.must_stay_open(subscriber)


async def small_client(trial: Trial) -> tuple[ProbeLink, int]:
    """A connection with a Maximum Packet Size that leaves room for little, and the size."""
    size = max(SMALL, await connack_size(trial, maximum_packet_size(1000)))
    link = await trial.connect("small", properties=maximum_packet_size(size))
    return link, size


async def must_be_small(trial: Trial, packet: bytes, packet_type: int) -> None:
    """Claim that the answer to a packet comes, and fits the client's Maximum Packet Size.

    These packets fit without a Reason String and User Properties.
    """
    with trial.control():
        right = await trial.connect("right")
        await right.send(packet)
        await trial.must_receive(right, packet_type)
    link, size = await small_client(trial)
    await link.send(packet)
    observed = await link.wait_for_observed(packet_type, trial.timeout)
    name = PACKET_NAMES[packet_type]
    if observed is None:
        trial.refute(f"no {name} came to a client with Maximum Packet Size {size}")
    length = len(observed.data)
    trial.must(length <= size, f"{name} has {length} bytes, the maximum is {size}")


async def small_puback(trial: Trial) -> None:
    require_qos(trial, await trial.connect(), 1)
    packet = wire.publish(trial.version, trial.topic("nobody"), qos=1, packet_id=7)
    await must_be_small(trial, packet, PUBACK)


async def small_pubrec(trial: Trial) -> None:
    require_qos(trial, await trial.connect(), 2)
    packet = wire.publish(trial.version, trial.topic("nobody"), qos=2, packet_id=7)
    await must_be_small(trial, packet, PUBREC)


async def small_pubcomp(trial: Trial) -> None:
    require_qos(trial, await trial.connect(), 2)
    await must_be_small(trial, wire.pubrel(7), PUBCOMP)


async def small_pubrel(trial: Trial) -> None:
    """A PUBREC of an unknown identifier: most brokers say 0x92, and may say why."""
    link, size = await small_client(trial)
    require_qos(trial, link, 2)
    with trial.control():
        await trial.must_stay_open(link)
    await link.send(wire.pubrec(7))
    observed = await link.wait_for_observed(PUBREL, 1.0)
    if observed is None:
        raise ClaimArguable(
            "the broker does not answer a PUBREC of an unknown identifier; PUBREL with 0x92 is "
            "made for that, but no sentence requires it"
        )
    length = len(observed.data)
    trial.must(length <= size, f"PUBREL has {length} bytes, the maximum is {size}")


async def small_suback(trial: Trial) -> None:
    packet = wire.subscribe(trial.version, [(trial.topic(), 2)], packet_id=7)
    await must_be_small(trial, packet, SUBACK)
    packet = wire.subscribe(trial.version, [(b"$SYS/" + trial.topic(), 2)], packet_id=8)
    await must_be_small(trial, packet, SUBACK)


async def small_unsuback(trial: Trial) -> None:
    packet = wire.unsubscribe(trial.version, [trial.topic("never")], packet_id=7)
    await must_be_small(trial, packet, UNSUBACK)


# --- limits of the broker ---


async def maximum_packet_size_of_the_broker(trial: Trial) -> None:
    link = await trial.connect("right")
    maximum = limits(link).maximum_packet_size
    if maximum is None or maximum > LARGEST_TRIED:
        trial.not_applicable("the broker said no Maximum Packet Size up to 20 MB in CONNACK")
    empty = wire.publish(trial.version, trial.topic("nobody"), b"y" * (maximum // 2))
    rest = maximum - len(empty) + maximum // 2
    with trial.control():
        largest = wire.publish(trial.version, trial.topic("nobody"), b"y" * rest)
        while len(largest) > maximum:
            rest -= 1
            largest = wire.publish(trial.version, trial.topic("nobody"), b"y" * rest)
        await link.send(largest, f"PUBLISH of {len(largest)} bytes")
        await trial.must_stay_open(link)
    link = await trial.connect("wrong")
    larger = wire.publish(trial.version, trial.topic("nobody"), b"y" * (rest + 2))
    await link.send(larger, f"PUBLISH of {len(larger)} bytes")
    await trial.must_refuse(link, why=f" for {len(larger)} bytes, the maximum is {maximum}")


async def every_qos_that_is_not_excluded(trial: Trial) -> None:
    link = await trial.connect()
    highest = usable_qos(link, 2)
    for qos in range(1, highest + 1):
        await link.send(wire.publish(trial.version, trial.topic(), qos=qos, packet_id=7))
        answer = await trial.must_receive(link, PUBACK if qos == 1 else PUBREC)
        assert isinstance(answer, PubAck | PubRec)
        found = f"QoS {qos} was refused with 0x9b, CONNACK says no Maximum QoS below it"
        trial.must(answer.reason != 0x9B, found)
        if qos == 2:
            await link.send(wire.pubrel(7))
            await trial.must_receive(link, PUBCOMP)
    await trial.must_stay_open(link)


async def subscribe_above_the_maximum_qos(trial: Trial) -> None:
    link = await trial.connect()
    if limits(link).maximum_qos is None:
        trial.not_applicable("this broker supports every QoS")
    for qos in range(3):
        entry = [(trial.topic(f"{qos}"), qos)]
        await link.send(wire.subscribe(trial.version, entry, packet_id=qos + 1))
        answer = await trial.must_receive(link, SUBACK)
        assert isinstance(answer, SubAck)
        found = f"a SUBSCRIBE with QoS {qos} got 0x{answer.reasons[0]:02x}"
        trial.must(answer.reasons[0] <= qos, found)


async def publish_above_the_maximum_qos(trial: Trial) -> None:
    link = await trial.connect()
    highest = limits(link).maximum_qos
    if highest is None:
        trial.not_applicable("this broker supports every QoS")
    with trial.control():
        await trial.publish(link, trial.topic(), qos=highest)
        await trial.must_stay_open(link)
    await link.send(wire.publish(trial.version, trial.topic(), qos=highest + 1, packet_id=7))
    await trial.must_refuse(link)


async def retain_without_support(trial: Trial) -> None:
    link = await trial.connect()
    if limits(link).retain_available != 0:
        trial.not_applicable("this broker supports retained messages")
    with trial.control():
        await trial.publish(link, trial.topic())
        await trial.must_stay_open(link)
    await link.send(wire.publish(trial.version, trial.topic(), retain=True))
    await trial.must_refuse(link)


async def refused_subscription(
    trial: Trial, link: ProbeLink, topic_filter: bytes, properties: bytes = b""
) -> None:
    """Claim that a SUBSCRIBE ends the connection; one without the feature does not."""
    with trial.control():
        await trial.subscribe(link, (trial.topic(), 0))
    await link.send(
        wire.subscribe(trial.version, [(topic_filter, 0)], packet_id=7, properties=properties)
    )
    answer = await link.wait_for(SUBACK, 1.0)
    if isinstance(answer, SubAck) and answer.reasons[0] >= 0x80:
        raise ClaimArguable("refused in SUBACK, which has a reason code for it, and not closed")
    trial.must(answer is None, "the broker accepted what it does not support")
    await trial.must_refuse(link)


async def wildcards_without_support(trial: Trial) -> None:
    link = await trial.connect()
    if limits(link).wildcard_subscription_available != 0:
        trial.not_applicable("this broker supports wildcards")
    await refused_subscription(trial, link, trial.topic("#"))


async def identifiers_without_support(trial: Trial) -> None:
    link = await trial.connect()
    if limits(link).subscription_identifiers_available != 0:
        trial.not_applicable("this broker supports Subscription Identifiers")
    await refused_subscription(trial, link, trial.topic(), wire.subscription_identifier(1))


async def shared_without_support(trial: Trial) -> None:
    link = await trial.connect()
    if limits(link).shared_subscription_available != 0:
        trial.not_applicable("this broker supports shared subscriptions")
    await refused_subscription(trial, link, b"$share/g/" + trial.topic())


def small_case(name: str, run: object, numbers: str) -> Case:
    """A case about a packet that fits the client's Maximum Packet Size."""
    assert callable(run)
    title = f"{name} fits the client's Maximum Packet Size: it comes without Reason String and "
    return Case(
        f"maximum-packet-size-{name.lower()}",
        SEND,
        title + "User Properties if need be.",
        run,
        mqtt5=numbers,
    )


CASES: Final = (
    Case(
        "receive-maximum-1-at-qos-1",
        SEND,
        "With Receive Maximum 1 one QoS 1 message is open at a time.",
        one_open_qos_1,
        mqtt5="3.3.4-9 4.9.0-1 4.9.0-2",
    ),
    Case(
        "receive-maximum-2-at-qos-1",
        SEND,
        "With Receive Maximum 2 at most two QoS 1 messages are open.",
        two_open_qos_1,
        mqtt5="3.3.4-9 4.9.0-1 4.9.0-2",
    ),
    Case(
        "receive-maximum-1-at-qos-2",
        SEND,
        "With Receive Maximum 1 one QoS 2 message is open at a time.",
        one_open_qos_2,
        mqtt5="3.3.4-9 4.9.0-1 4.9.0-2",
    ),
    Case(
        "receive-maximum-2-at-qos-2",
        SEND,
        "With Receive Maximum 2 at most two QoS 2 messages are open.",
        two_open_qos_2,
        mqtt5="3.3.4-9 4.9.0-1 4.9.0-2",
    ),
    Case(
        "receive-maximum-and-pubrec",
        SEND,
        "A QoS 2 message is open until PUBCOMP: PUBREC does not make room for another.",
        pubrec_does_not_free_the_quota,
        mqtt5="3.3.4-9 4.9.0-2",
    ),
    Case(
        "receive-maximum-and-errors",
        SEND,
        "A PUBACK or PUBREC with 0x80 makes room for another message.",
        error_frees_the_quota,
        mqtt5="4.9.0-2 4.4.0-2",
    ),
    Case(
        "receive-maximum-and-other-packets",
        SEND,
        "With a send quota of 0 the broker answers all other packets.",
        other_packets_are_handled,
        mqtt5="3.3.4-10 4.9.0-3",
    ),
    Case(
        "receive-maximum-after-reconnect",
        SEND,
        "What is sent again keeps to the Receive Maximum of the new connection.",
        quota_of_the_new_connection,
        mqtt5="3.3.4-9 4.9.0-1 4.9.0-2",
    ),
    Case(
        "maximum-packet-size-at-qos-0",
        SEND,
        "A QoS 0 message of exactly the client's Maximum Packet Size comes, a larger one does not.",
        packets_at_qos_0,
        mqtt5="3.1.2-24 3.1.2-25",
    ),
    Case(
        "maximum-packet-size-at-qos-1",
        SEND,
        "A QoS 1 message of exactly the client's Maximum Packet Size comes, a larger one does not.",
        packets_at_qos_1,
        mqtt5="3.1.2-24 3.1.2-25",
    ),
    Case(
        "maximum-packet-size-at-qos-2",
        SEND,
        "A QoS 2 message of exactly the client's Maximum Packet Size comes, a larger one does not.",
        packets_at_qos_2,
        mqtt5="3.1.2-24 3.1.2-25",
    ),
    Case(
        "maximum-packet-size-and-quota",
        SEND,
        "A message that is too large for a client counts as delivered, and others get it.",
        discarded_message_counts_as_delivered,
        mqtt5="3.1.2-25",
    ),
    Case(
        "maximum-packet-size-of-what-waited",
        SEND,
        "A message that waited and is too large for the new connection is discarded, others come.",
        waiting_message_is_discarded,
        mqtt5="3.1.2-24 3.1.2-25",
    ),
    small_case("PUBACK", small_puback, "3.4.2-2 3.4.2-3"),
    small_case("PUBREC", small_pubrec, "3.5.2-2 3.5.2-3"),
    small_case("PUBREL", small_pubrel, "3.6.2-2 3.6.2-3"),
    small_case("PUBCOMP", small_pubcomp, "3.7.2-2 3.7.2-3"),
    small_case("SUBACK", small_suback, "3.9.2-1 3.9.2-2"),
    small_case("UNSUBACK", small_unsuback, "3.11.2-1 3.11.2-2"),
    Case(
        "maximum-packet-size-of-the-broker",
        RECEIVE,
        "A packet larger than the broker's Maximum Packet Size ends the connection.",
        maximum_packet_size_of_the_broker,
        mqtt5="3.2.2-15",
    ),
    Case(
        "maximum-qos-said",
        SEND,
        "A broker that said no Maximum QoS in CONNACK takes every QoS.",
        every_qos_that_is_not_excluded,
        mqtt5="3.2.2-9",
    ),
    Case(
        "maximum-qos-and-subscribe",
        SEND,
        "A broker with a Maximum QoS accepts a SUBSCRIBE with any QoS.",
        subscribe_above_the_maximum_qos,
        mqtt5="3.2.2-10",
    ),
    Case(
        "maximum-qos-and-publish",
        RECEIVE,
        "A PUBLISH above the broker's Maximum QoS ends the connection.",
        publish_above_the_maximum_qos,
        mqtt5="3.2.2-11",
    ),
    Case(
        "retain-unavailable",
        RECEIVE,
        "A PUBLISH with RETAIN 1 to a broker that retains nothing ends the connection.",
        retain_without_support,
        mqtt5="3.2.2-14",
    ),
    Case(
        "wildcards-unavailable",
        RECEIVE,
        "A wildcard for a broker that said it has none ends the connection.",
        wildcards_without_support,
        mqtt5="U5-47",
    ),
    Case(
        "subscription-identifiers-unavailable",
        RECEIVE,
        "A Subscription Identifier for a broker that said it has none ends the connection.",
        identifiers_without_support,
        mqtt5="U5-48",
    ),
    Case(
        "shared-subscriptions-unavailable",
        RECEIVE,
        "A shared subscription for a broker that said it has none ends the connection.",
        shared_without_support,
        mqtt5="U5-49",
    ),
)

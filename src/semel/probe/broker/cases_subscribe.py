"""Cases about SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK [3.8 to 3.11]."""

from typing import Final

from semel.mqtt.packet_types import PUBACK, PUBREL, SUBACK, UNSUBACK
from semel.mqtt.packets.acks import PubRel
from semel.mqtt.packets.subscribe import SubAck
from semel.mqtt.packets.unsubscribe import UnsubAck
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import (
    NO_LOCAL,
    audience,
    inbox_after_ping,
    listed,
    named,
    open_messages,
    payloads,
    require_qos,
    require_retain,
    require_wildcards,
    retained_removed,
    subscribe_at,
    subscribe_claimed,
    usable_qos,
)
from semel.probe.broker.link import ProbeLink, packet_names
from semel.probe.broker.trial import Trial
from semel.probe.claims import ClaimArguable
from semel.probe.verdicts import SEND

IDENTIFIERS: Final = (1, 9, 255, 256, 65_535)
MANY: Final = 40
SUCCESS: Final = 0x00
NO_SUBSCRIPTION_EXISTED: Final = 0x11


async def ask(
    trial: Trial, link: ProbeLink, *filters: tuple[bytes, int], packet_id: int = 100
) -> SubAck:
    """Subscribe and claim the SUBACK."""
    await link.send(wire.subscribe(trial.version, filters, packet_id=packet_id))
    packet = await trial.must_receive(link, SUBACK)
    assert isinstance(packet, SubAck)
    return packet


async def give_up(trial: Trial, link: ProbeLink, *filters: bytes, packet_id: int = 101) -> UnsubAck:
    """Unsubscribe and claim the UNSUBACK."""
    await link.send(wire.unsubscribe(trial.version, filters, packet_id=packet_id))
    packet = await trial.must_receive(link, UNSUBACK)
    assert isinstance(packet, UnsubAck)
    return packet


def codes(reasons: tuple[int, ...]) -> str:
    return listed([f"0x{reason:02x}" for reason in reasons])


# --- SUBACK ---


async def subscribe_is_answered(trial: Trial) -> None:
    link = await trial.connect()
    for packet_id in IDENTIFIERS:
        await ask(trial, link, (trial.topic(), 0), packet_id=packet_id)


async def suback_has_the_identifier(trial: Trial) -> None:
    link = await trial.connect()
    for packet_id in IDENTIFIERS:
        answer = await trial.subscribe(link, (trial.topic(), 0), packet_id=packet_id)
        found = f"SUBACK {answer.packet_id} answered SUBSCRIBE {packet_id}"
        trial.must(answer.packet_id == packet_id, found)


async def pipelined_subscribes_are_all_answered(trial: Trial) -> None:
    link = await trial.connect()
    packets = [
        wire.subscribe(trial.version, [(trial.topic(f"{number}"), 0)], packet_id=number)
        for number in (3, 1, 2)
    ]
    await link.send(b"".join(packets))
    found = []
    for _ in packets:
        answer = await trial.must_receive(link, SUBACK)
        assert isinstance(answer, SubAck)
        found.append(answer.packet_id)
    trial.must(sorted(found) == [1, 2, 3], f"SUBACK packets came for {listed(found)}")


async def one_suback_for_all_filters(trial: Trial) -> None:
    link = await trial.connect()
    for number in (2, 3, 5):
        filters = [(trial.topic(f"{number}/{index}"), 0) for index in range(number)]
        await trial.subscribe(link, *filters)
        rest = await inbox_after_ping(trial, link)
        trial.must(not rest, f"after the SUBACK of {number} filters came {packet_names(link)}")


async def suback_codes_are_in_order(trial: Trial) -> None:
    link = await trial.connect()
    granted = {}
    for qos in range(3):
        answer = await trial.subscribe(link, (trial.topic(f"one{qos}"), qos))
        granted[qos] = answer.reasons[0]
    if len(set(granted.values())) == 1:
        trial.not_applicable(f"the broker grants QoS {granted[0]} only")
    for wanted in ((0, 1, 2), (2, 1, 0), (1, 0, 2, 2, 0)):
        name = "".join(str(qos) for qos in wanted)
        filters = [(trial.topic(f"{name}/{index}"), qos) for index, qos in enumerate(wanted)]
        answer = await trial.subscribe(link, *filters)
        with trial.control():
            trial.must(len(answer.reasons) == len(wanted), "SUBACK has another number of codes")
        expected = tuple(granted[qos] for qos in wanted)
        found = f"for the QoS {listed(wanted)} came the codes {codes(answer.reasons)}"
        trial.must(answer.reasons == expected, found)


async def many_filters_have_many_codes(trial: Trial) -> None:
    link = await trial.connect()
    for number in (1, 2, MANY):
        filters = [(trial.topic(f"{number}/{index}"), 1) for index in range(number)]
        answer = await ask(trial, link, *filters)
        found = f"SUBACK has {len(answer.reasons)} codes for {number} filters"
        trial.must(len(answer.reasons) == number, found)


async def granted_qos_is_true(trial: Trial) -> None:
    """[3.8.4] A code is the granted QoS, or the subscription failed."""
    link, publisher = await trial.connect(), await trial.connect("pub")
    top = usable_qos(publisher, 2)
    for qos in range(3):
        name = trial.topic(f"q{qos}")
        answer = await ask(trial, link, (name, qos))
        granted = answer.reasons[0]
        trial.must(granted <= qos or granted >= 0x80, f"0x{granted:02x} for QoS {qos}")
        await trial.publish(publisher, name, b"message", qos=top)
        if granted >= 0x80:
            await trial.subscribe(link, (trial.topic("end"), 0))
            found = await trial.messages_until(link, trial.topic("end"), publisher)
            trial.must(not found, "a refused subscription brought messages")
            continue
        message = await trial.must_receive_message(link)
        less = f"granted QoS {granted}, published with {top}, delivered with {message.qos}"
        trial.must(message.qos >= min(granted, top), less)


async def one_filter_twice_in_a_subscribe(trial: Trial) -> None:
    link, publisher = await trial.connect(), await trial.connect("pub")
    require_qos(trial, publisher, 1)
    answer = await ask(trial, link, (trial.topic(), 0), (trial.topic(), 1))
    found = f"SUBACK has {len(answer.reasons)} codes for two filters"
    trial.must(len(answer.reasons) == 2, found)
    if answer.reasons[1] != 1:
        trial.not_applicable("the broker did not grant QoS 1")
    await trial.publish(publisher, trial.topic(), b"message", qos=1)
    received = await trial.messages_until(link, trial.topic(), publisher, qos=1)
    # The second entry replaces the first, as that many single SUBSCRIBE packets would.
    found = f"came {len(received)} times, with QoS {listed([each.qos for each in received])}"
    trial.must([each.qos for each in received] == [1], found)


async def each_filter_of_a_subscribe_works(trial: Trial) -> None:
    link, publisher = await trial.connect(), await trial.connect("pub")
    qos = usable_qos(link, 1)
    names = [trial.topic(name) for name in ("a", "b", "c")]
    await ask(trial, link, *((name, qos) for name in names))
    for name in names:
        await trial.publish(publisher, name, name, qos=qos)
        message = await trial.must_receive_message(link)
        trial.must(message.payload == name, f"{message.payload.decode()} came first")


async def wildcards_are_refused_or_work(trial: Trial) -> None:
    """[3.8.3-2] of 3.1.1: a broker may refuse them, but not accept and ignore them."""
    link, publisher = await trial.connect(), await trial.connect("pub")
    base = trial.topic("a")
    with trial.control():
        await trial.subscribe(link, (trial.topic("plain"), 1))
    answer = await ask(trial, link, (base + b"/#", 1), (trial.topic("+") + b"/x", 1))
    names = (base + b"/y", trial.topic("b") + b"/x")
    trial.must(len(answer.reasons) == len(names), "the SUBACK has not one code per filter")
    for reason, name in zip(answer.reasons, names, strict=True):
        if reason < 0x80:
            await trial.publish(publisher, name, name, qos=1)
            message = await trial.must_receive_message(link)
            trial.must(message.topic_name.encode() == name, f"{message.topic_name} came")


# --- replacing a subscription ---


async def same_filter_replaces(trial: Trial, first: int, second: int) -> None:
    link, publisher = await trial.connect(), await trial.connect("pub")
    require_qos(trial, publisher, 2)
    await subscribe_at(trial, link, trial.topic(), first)
    await subscribe_at(trial, link, trial.topic(), second)
    await trial.publish(publisher, trial.topic(), b"message", qos=2)
    received = await trial.messages_until(link, trial.topic(), publisher, qos=2)
    found = f"came {len(received)} times, with QoS {listed([each.qos for each in received])}"
    trial.must([each.qos for each in received] == [second], found)


async def higher_qos_replaces(trial: Trial) -> None:
    await same_filter_replaces(trial, 0, 2)


async def lower_qos_replaces(trial: Trial) -> None:
    await same_filter_replaces(trial, 2, 1)


async def retained_messages_come_again(trial: Trial) -> None:
    link, publisher = await trial.connect(), await trial.connect("pub")
    require_retain(trial, publisher)
    qos = usable_qos(publisher, 1)
    async with retained_removed(trial, trial.topic()):
        await trial.publish(publisher, trial.topic(), b"kept", qos=qos, retain=True)
        with trial.control():
            await trial.subscribe(link, (trial.topic(), qos))
            await trial.must_receive_message(link)
        for _ in range(2):
            await trial.subscribe(link, (trial.topic(), qos))
            message = await trial.must_receive_message(link)
            trial.must(message.payload == b"kept", "another message came")


async def replacing_loses_nothing(trial: Trial) -> None:
    link, publisher = await trial.connect(), await trial.connect("pub")
    require_qos(trial, publisher, 1)
    await subscribe_at(trial, link, trial.topic(), 1)
    sent = [b"%d" % number for number in range(30)]
    for number, payload in enumerate(sent):
        await publisher.send(
            wire.publish(trial.version, trial.topic(), payload, qos=1, packet_id=number + 1)
        )
        if number % 3 == 0:
            entry = [(trial.topic(), 1 + number % 2)]
            await link.send(wire.subscribe(trial.version, entry, packet_id=1000 + number))
        await trial.expect(publisher, PUBACK)
    found = await trial.messages_until(link, trial.topic(), publisher, qos=1)
    missing = [payload.decode() for payload in sent if payload not in payloads(found)]
    trial.must(not missing, f"lost while the subscription was replaced: {listed(missing)}")
    in_order = [payload for payload in dict.fromkeys(payloads(found)) if payload in sent]
    trial.must(in_order == sent, f"delivered was {named(found)}")


# --- UNSUBSCRIBE ---


async def unsuback_has_the_identifier(trial: Trial) -> None:
    link = await trial.connect()
    for packet_id in IDENTIFIERS:
        await trial.subscribe(link, (trial.topic(), 0))
        answer = await trial.unsubscribe(link, trial.topic(), packet_id=packet_id)
        assert isinstance(answer, UnsubAck)
        found = f"UNSUBACK {answer.packet_id} answered UNSUBSCRIBE {packet_id}"
        trial.must(answer.packet_id == packet_id, found)


async def unsubscribe_is_answered(trial: Trial) -> None:
    link = await trial.connect()
    for packet_id in IDENTIFIERS:
        await trial.subscribe(link, (trial.topic(), 0))
        await give_up(trial, link, trial.topic(), packet_id=packet_id)


async def unsubscribe_of_nothing_is_answered(trial: Trial) -> None:
    link = await trial.connect()
    with trial.control():
        await trial.subscribe(link, (trial.topic("held"), 0))
        await trial.unsubscribe(link, trial.topic("held"))
    for packet_id, name in ((9, "never"), (10, "held")):
        await give_up(trial, link, trial.topic(name), packet_id=packet_id)


async def unsubscribed_brings_nothing_more(trial: Trial) -> None:
    link, publisher = await audience(trial, trial.topic(), 1)
    await subscribe_at(trial, link, trial.topic("end"), 1)
    with trial.control():
        await trial.publish(publisher, trial.topic(), b"before", qos=1)
        await trial.must_receive_message(link)
    await trial.unsubscribe(link, trial.topic())
    await trial.publish(publisher, trial.topic(), b"after", qos=1)
    found = await trial.messages_until(link, trial.topic("end"), publisher, qos=1)
    trial.must(not found, f"after UNSUBACK came {named(found)}")


async def unsubscribe_is_literal(trial: Trial) -> None:
    link, publisher = await trial.connect(), await trial.connect("pub")
    require_wildcards(trial, link)
    qos = usable_qos(link, 1)
    name, wild = trial.topic("a/b"), trial.topic("w") + b"/+"
    await trial.subscribe(link, (name, qos), (wild, qos))
    others = (trial.topic("a/+"), trial.topic("#"), trial.topic("a/B"), trial.topic("a/b/"))
    await trial.unsubscribe(link, *others)
    await trial.unsubscribe(link, trial.topic("w") + b"/c", trial.topic("w") + b"/#")
    for topic_name in (name, trial.topic("w") + b"/c"):
        await trial.publish(publisher, topic_name, b"message", qos=qos)
        message = await trial.must_receive_message(link)
        trial.must(message.topic_name.encode() == topic_name, f"{message.topic_name} came")
    # The filters themselves can be deleted.
    await trial.subscribe(link, (trial.topic("end"), qos))
    await trial.unsubscribe(link, name, wild)
    for topic_name in (name, trial.topic("w") + b"/c"):
        await trial.publish(publisher, topic_name, b"message", qos=qos)
    found = await trial.messages_until(link, trial.topic("end"), publisher, qos=qos)
    trial.must(not found, f"after UNSUBSCRIBE of the same filters came {named(found)}")


async def other_subscriptions_stay(trial: Trial) -> None:
    link, publisher = await trial.connect(), await trial.connect("pub")
    require_wildcards(trial, link)
    qos = usable_qos(link, 1)
    await trial.subscribe(link, (trial.topic("a/b"), qos), (trial.topic("a/+"), qos))
    await trial.unsubscribe(link, trial.topic("a/b"))
    await trial.publish(publisher, trial.topic("a/b"), b"message", qos=qos)
    message = await trial.must_receive_message(link)
    trial.must(message.payload == b"message", "another message came")


async def unsubscribe_of_several_filters(trial: Trial) -> None:
    link, publisher = await trial.connect(), await trial.connect("pub")
    qos = usable_qos(link, 1)
    names = [trial.topic(name) for name in ("a", "b", "c")]
    await trial.subscribe(link, *((name, qos) for name in names), (trial.topic("end"), qos))
    await give_up(trial, link, *names)
    rest = await inbox_after_ping(trial, link)
    trial.must(not rest, f"after the UNSUBACK came {packet_names(link)}")
    for name in names:
        await trial.publish(publisher, name, name, qos=qos)
    found = await trial.messages_until(link, trial.topic("end"), publisher, qos=qos)
    trial.must(not found, f"after UNSUBSCRIBE came {named(found)}")


async def unsuback_codes_are_in_order(trial: Trial) -> None:
    link = await trial.connect()
    held = [trial.topic("a"), trial.topic("c"), trial.topic("d")]
    await trial.subscribe(link, *((name, 0) for name in held))
    asked = [trial.topic("a"), trial.topic("b"), trial.topic("c"), trial.topic("d")]
    answer = await trial.unsubscribe(link, *asked)
    assert isinstance(answer, UnsubAck)
    with trial.control():
        trial.must(len(answer.reasons) == len(asked), "UNSUBACK has another number of codes")
    expected = (SUCCESS, NO_SUBSCRIPTION_EXISTED, SUCCESS, SUCCESS)
    if answer.reasons == (SUCCESS,) * len(asked):
        raise ClaimArguable(
            "the broker answers 0x00 for a filter that was not subscribed, too: 0x11 describes "
            "that, but no sentence requires it; the order cannot be seen"
        )
    found = f"for held, never, held and held came {codes(answer.reasons)}"
    trial.must(answer.reasons == expected, found)


async def unsuback_codes_are_complete(trial: Trial) -> None:
    link = await trial.connect()
    for number in (1, 2, MANY):
        names = [trial.topic(f"{number}/{index}") for index in range(number)]
        answer = await give_up(trial, link, *names)
        found = f"UNSUBACK has {len(answer.reasons)} codes for {number} filters"
        trial.must(len(answer.reasons) == number, found)


async def begun_deliveries_are_completed(trial: Trial) -> None:
    link, publisher = await audience(trial, trial.topic(), 2)
    await trial.publish(publisher, trial.topic(), b"message", qos=2)
    with trial.control():
        message = (await open_messages(trial, link, 1))[0]
        trial.must(message.qos == 2, f"delivered with QoS {message.qos}")
    await trial.unsubscribe(link, trial.topic())
    await link.send(wire.pubrec(message.packet_id))
    packet = await trial.must_receive(link, PUBREL)
    assert isinstance(packet, PubRel)
    trial.must(packet.packet_id == message.packet_id, f"PUBREL {packet.packet_id} came")
    await link.send(wire.pubcomp(message.packet_id))
    await trial.must_stay_open(link)


# --- No Local ---


async def no_local_keeps_own_messages_away(trial: Trial) -> None:
    link, other = await trial.connect(), await trial.connect("other")
    qos = usable_qos(link, 1)
    await subscribe_claimed(trial, link, (trial.topic(), NO_LOCAL | qos))
    await trial.publish(link, trial.topic(), b"own", qos=qos)
    await trial.publish(other, trial.topic(), b"of another", qos=qos)
    found = await trial.messages_until(link, trial.topic(), other, qos=qos)
    trial.must(b"own" not in payloads(found), "a client with No Local got its own message")
    with trial.control():
        trial.must(payloads(found) == [b"of another"], f"delivered was {named(found)}")


async def no_local_is_of_one_subscription(trial: Trial) -> None:
    """A subscription without No Local brings own messages, whatever others have."""
    link = await trial.connect()
    require_wildcards(trial, link)
    qos = usable_qos(link, 1)
    await subscribe_at(trial, link, trial.topic("a/+"), qos, options=NO_LOCAL)
    await subscribe_at(trial, link, trial.topic("a/b"), qos)
    await trial.publish(link, trial.topic("a/b"), b"own", qos=qos)
    message = await trial.must_receive_message(link)
    trial.must(message.payload == b"own", "another message came")


async def no_local_can_be_taken_back(trial: Trial) -> None:
    link = await trial.connect()
    qos = usable_qos(link, 1)
    await subscribe_at(trial, link, trial.topic(), qos, options=NO_LOCAL)
    await subscribe_at(trial, link, trial.topic(), qos)
    await trial.publish(link, trial.topic(), b"own", qos=qos)
    message = await trial.must_receive_message(link)
    trial.must(message.payload == b"own", "another message came")


CASES: Final = (
    Case(
        "subscribe-answered",
        SEND,
        "Each SUBSCRIBE is answered with SUBACK.",
        subscribe_is_answered,
        mqtt311="3.8.4-1",
        mqtt5="3.8.4-1",
    ),
    Case(
        "suback-identifier",
        SEND,
        "SUBACK has the packet identifier of the SUBSCRIBE.",
        suback_has_the_identifier,
        mqtt311="3.8.4-2 2.3.1-7",
        mqtt5="3.8.4-2 2.2.1-6",
    ),
    Case(
        "subscribes-at-once",
        SEND,
        "SUBSCRIBE packets that arrive together are all answered.",
        pipelined_subscribes_are_all_answered,
        mqtt311="3.8.4-1",
        mqtt5="3.8.4-1",
    ),
    Case(
        "one-suback",
        SEND,
        "A SUBSCRIBE with several filters has one SUBACK.",
        one_suback_for_all_filters,
        mqtt311="3.8.4-4",
        mqtt5="3.8.4-5",
    ),
    Case(
        "suback-codes-in-order",
        SEND,
        "The codes of SUBACK are in the order of the filters.",
        suback_codes_are_in_order,
        mqtt311="3.9.3-1",
        mqtt5="3.9.3-1",
    ),
    Case(
        "suback-codes-complete",
        SEND,
        "SUBACK has a code for each filter.",
        many_filters_have_many_codes,
        mqtt311="3.8.4-5",
        mqtt5="3.8.4-6",
    ),
    Case(
        "granted-qos-is-true",
        SEND,
        "A code in SUBACK is the QoS with which messages can come, or the subscription failed.",
        granted_qos_is_true,
        mqtt311="3.8.4-5",
        mqtt5="3.8.4-7",
    ),
    Case(
        "filter-twice-in-a-subscribe",
        SEND,
        "A filter that is twice in a SUBSCRIBE has two codes, and its last QoS.",
        one_filter_twice_in_a_subscribe,
        mqtt311="3.8.4-4",
        mqtt5="3.8.4-5",
    ),
    Case(
        "each-filter-of-a-subscribe",
        SEND,
        "Each filter of a SUBSCRIBE brings messages.",
        each_filter_of_a_subscribe_works,
        mqtt311="3.8.4-4",
        mqtt5="3.8.4-5",
    ),
    Case(
        "wildcards-refused-or-working",
        SEND,
        "A filter with a wildcard is refused in SUBACK, or brings the messages that it matches.",
        wildcards_are_refused_or_work,
        mqtt311="3.8.3-2",
    ),
    Case(
        "higher-qos-replaces",
        SEND,
        "A subscription to the same filter with a higher QoS replaces the old one.",
        higher_qos_replaces,
        mqtt311="3.8.4-3",
        mqtt5="3.8.4-3",
    ),
    Case(
        "lower-qos-replaces",
        SEND,
        "A subscription to the same filter with a lower QoS replaces the old one.",
        lower_qos_replaces,
        mqtt311="3.8.4-3",
        mqtt5="3.8.4-3",
    ),
    Case(
        "retained-messages-come-again",
        SEND,
        "A subscription that is replaced brings the retained messages again.",
        retained_messages_come_again,
        mqtt311="3.8.4-3",
        mqtt5="3.8.4-4 3.3.1-9",
    ),
    Case(
        "replacing-loses-nothing",
        SEND,
        "No message is lost while a subscription is replaced.",
        replacing_loses_nothing,
        mqtt311="3.8.4-3",
        mqtt5="3.8.4-4",
    ),
    Case(
        "unsubscribe-answered",
        SEND,
        "Each UNSUBSCRIBE is answered with UNSUBACK.",
        unsubscribe_is_answered,
        mqtt311="3.10.4-4",
        mqtt5="3.10.4-4",
    ),
    Case(
        "unsuback-identifier",
        SEND,
        "UNSUBACK has the packet identifier of the UNSUBSCRIBE.",
        unsuback_has_the_identifier,
        mqtt311="3.10.4-4 2.3.1-7",
        mqtt5="3.10.4-5 2.2.1-6",
    ),
    Case(
        "unsuback-without-subscription",
        SEND,
        "An UNSUBSCRIBE is answered although there was no such subscription.",
        unsubscribe_of_nothing_is_answered,
        mqtt311="3.10.4-5",
        mqtt5="3.10.4-5",
    ),
    Case(
        "nothing-after-unsubscribe",
        SEND,
        "After UNSUBACK a filter brings no new messages.",
        unsubscribed_brings_nothing_more,
        mqtt311="3.10.4-2 3.10.4-1",
        mqtt5="3.10.4-2 3.10.4-1",
    ),
    Case(
        "unsubscribe-is-literal",
        SEND,
        "UNSUBSCRIBE deletes the subscription to an equal filter, and no other that it matches.",
        unsubscribe_is_literal,
        mqtt311="3.10.4-1",
        mqtt5="3.10.4-1",
    ),
    Case(
        "other-subscriptions-stay",
        SEND,
        "After UNSUBSCRIBE messages come because of other filters that match.",
        other_subscriptions_stay,
        mqtt311="3.10.4-1",
        mqtt5="3.10.4-1",
    ),
    Case(
        "unsubscribe-of-several-filters",
        SEND,
        "An UNSUBSCRIBE with several filters deletes each of them, and has one UNSUBACK.",
        unsubscribe_of_several_filters,
        mqtt311="3.10.4-6",
        mqtt5="3.10.4-6",
    ),
    Case(
        "unsuback-codes-in-order",
        SEND,
        "The codes of UNSUBACK are in the order of the filters.",
        unsuback_codes_are_in_order,
        mqtt5="3.11.3-1",
    ),
    Case(
        "unsuback-codes-complete",
        SEND,
        "UNSUBACK has a code for each filter.",
        unsuback_codes_are_complete,
        mqtt5="3.11.3-2",
    ),
    Case(
        "deliveries-completed-after-unsubscribe",
        SEND,
        "A QoS 2 delivery that has begun is completed after UNSUBSCRIBE.",
        begun_deliveries_are_completed,
        mqtt311="3.10.4-3",
        mqtt5="3.10.4-3",
    ),
    Case(
        "no-local",
        SEND,
        "With No Local a client does not get its own messages, but those of others.",
        no_local_keeps_own_messages_away,
        mqtt5="3.8.3-3",
    ),
    Case(
        "no-local-of-one-subscription",
        SEND,
        "No Local of one subscription does not hide messages that another one brings.",
        no_local_is_of_one_subscription,
        mqtt5="3.8.3-3",
    ),
    Case(
        "no-local-replaced",
        SEND,
        "A subscription without No Local replaces one with it.",
        no_local_can_be_taken_back,
        mqtt5="3.8.4-3",
    ),
)

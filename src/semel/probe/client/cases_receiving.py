"""Cases on how a client receives messages: acknowledgements, their order, and what it delivers.

Whether a message was delivered shows in what the program prints: payloads are unique, so that one
that is printed twice was delivered twice. If the program prints none, that half is not claimed.
"""

from typing import Final

from semel.mqtt import PACKET_NAMES
from semel.mqtt.packet_types import PUBACK, PUBCOMP, PUBREC
from semel.probe import wire
from semel.probe.claims import ControlFailed
from semel.probe.client.case import ClientCase
from semel.probe.client.needs import (
    RESUMES,
    STAYS,
    TAKES_ALIASES,
)
from semel.probe.client.profile import topic_name_for
from semel.probe.client.server import SubjectLink, first_number
from semel.probe.client.trial import ClientTrial
from semel.probe.verdicts import RECEIVE

TOPIC_ALIAS: Final = 0x23
ANSWERS: Final = frozenset((PUBACK, PUBREC, PUBCOMP))
# How often a QoS 2 PUBLISH is repeated.
REPEATS: Final = (1, 10)


async def _controlled(trial: ClientTrial, qos: int = 1) -> SubjectLink:
    """A connection on which a first message was acknowledged, and printed if others are."""
    with trial.control():
        link = await trial.engaged()
        payload = trial.payload()
        await trial.deliver(link, payload, qos, trial.next_packet_id())
        if trial.profile.prints:
            found = await trial.printed(payload)
            trial.must(found == 1, f"the program printed a message {found} times")
    return link


async def _must_have_printed(trial: ClientTrial, link: SubjectLink, *payloads: bytes) -> None:
    """Claim that each payload was delivered once, if the program prints what it receives.

    A last message is printed after all that came before it, so that none is still to be printed.
    """
    if not trial.profile.prints:
        return
    last = trial.payload()
    await trial.deliver(link, last, 1, trial.next_packet_id())
    await trial.printed(last)
    for payload in payloads:
        found = await trial.printed(payload)
        trial.must(found, "a message was acknowledged and not delivered")
        trial.must(found == 1, f"a message was delivered {found} times")


async def qos_0_not_answered(trial: ClientTrial) -> None:
    link = await _controlled(trial)
    known = len(link.arrivals)
    link.send(trial.message(link, trial.payload(), qos=0))
    await trial.must_acknowledge(link)
    answers = [
        each.observed.packet_type
        for each in link.arrivals[known:]
        if each.observed.packet_type in ANSWERS
    ]
    trial.must(answers == [PUBACK], "a QoS 0 PUBLISH was answered")


async def qos_1_answered(trial: ClientTrial) -> None:
    link = await trial.engaged()
    payload = trial.payload()
    for packet_id in (7, 65_535, 1):
        payload = trial.payload()
        await trial.deliver(link, payload, 1, packet_id)
    await _must_have_printed(trial, link, payload)


async def qos_1_unexpected_topic(trial: ClientTrial) -> None:
    link = await _controlled(trial)
    packet_id = trial.next_packet_id()
    name = b"semel-probe/not/subscribed"
    link.send(trial.message(link, trial.payload(), packet_id=packet_id, topic_name=name))
    await trial.must_answer(link, PUBACK, packet_id)


async def qos_1_identifier_again(trial: ClientTrial) -> None:
    link = await _controlled(trial)
    first, second = trial.payload(), trial.payload()
    await trial.deliver(link, first, 1, 7)
    link.send(trial.message(link, second, packet_id=7, dup=True), breaks_rule=True)
    await trial.must_answer(link, PUBACK, 7, " for a new message with the identifier")
    await _must_have_printed(trial, link, first, second)


async def qos_2_answered(trial: ClientTrial) -> None:
    link = await trial.engaged()
    for packet_id in (7, 65_535):
        payload = trial.payload()
        link.send(trial.message(link, payload, qos=2, packet_id=packet_id))
        await trial.must_answer(link, PUBREC, packet_id)
        await trial.must_complete_qos_2(link, packet_id)
        await _must_have_printed(trial, link, payload)


async def qos_2_repeated(trial: ClientTrial) -> None:
    link = await _controlled(trial, 2)
    for repeats in REPEATS:
        await _repeat(trial, link, repeats)


async def _repeat(trial: ClientTrial, link: SubjectLink, repeats: int) -> None:
    """Claim that a message that is sent again before PUBREL is answered and delivered once."""
    payload, packet_id = trial.payload(), trial.next_packet_id()
    link.send(trial.message(link, payload, qos=2, packet_id=packet_id))
    await trial.must_answer(link, PUBREC, packet_id)
    for _ in range(repeats):
        again = trial.message(link, payload, qos=2, packet_id=packet_id, dup=True)
        link.send(again, breaks_rule=trial.is_5)
        await trial.must_answer(link, PUBREC, packet_id, " for the repeated PUBLISH")
    await trial.must_complete_qos_2(link, packet_id)
    await _must_have_printed(trial, link, payload)


async def qos_2_identifier_again(trial: ClientTrial) -> None:
    link = await _controlled(trial, 2)
    first, second = trial.payload(), trial.payload()
    await trial.deliver(link, first, 2, 7)
    await trial.deliver(link, second, 2, 7)
    await _must_have_printed(trial, link, first, second)


async def qos_2_unknown_dup(trial: ClientTrial) -> None:
    link = await _controlled(trial, 2)
    payload = trial.payload()
    again = trial.message(link, payload, qos=2, packet_id=77, dup=True)
    link.send(again, breaks_rule=True)
    await trial.must_answer(link, PUBREC, 77, " for a new message with DUP 1")
    await trial.must_complete_qos_2(link, 77)
    await _must_have_printed(trial, link, payload)


async def qos_2_across_reconnect(trial: ClientTrial) -> None:
    link = await _controlled(trial, 2)
    with trial.control():
        await _repeat(trial, link, 1)
    payload = trial.payload()
    link.send(trial.message(link, payload, qos=2, packet_id=77))
    with trial.control():
        await trial.must_answer(link, PUBREC, 77)
    name = topic_name_for(link)
    link.cut()
    link = await trial.must_reconnect()
    link.send(trial.message(link, payload, qos=2, packet_id=77, dup=True, topic_name=name))
    await trial.must_answer(link, PUBREC, 77, " for the PUBLISH that was sent again")
    await trial.must_complete_qos_2(link, 77)
    if trial.profile.prints:
        last = trial.payload()
        link.send(trial.message(link, last, packet_id=78, topic_name=name))
        await trial.must_answer(link, PUBACK, 78)
        await trial.printed(last)
        found = await trial.printed(payload)
        trial.must(found, "a message was acknowledged and not delivered")
        trial.must(found == 1, f"a message was delivered {found} times")


async def pubrel_repeated(trial: ClientTrial) -> None:
    link = await _controlled(trial, 2)
    await trial.deliver(link, trial.payload(), 2, 77)
    link.send(wire.pubrel(77), breaks_rule=True)
    await trial.must_answer(link, PUBCOMP, 77, " for the PUBREL that was sent again")


async def pubacks_in_order(trial: ClientTrial) -> None:
    link = await _controlled(trial)
    await _must_answer_in_order(trial, link, 1, PUBACK)


async def pubrecs_in_order(trial: ClientTrial) -> None:
    link = await _controlled(trial, 2)
    await _must_answer_in_order(trial, link, 2, PUBREC)


async def _must_answer_in_order(
    trial: ClientTrial, link: SubjectLink, qos: int, packet_type: int
) -> None:
    most = trial.profile.connect.properties.receive_maximum or 65_535
    # Neither ascending nor descending, so that a client that sorts them is noticed.
    packet_ids = [31, 12, 23, 44][: min(4, most)]
    if len(packet_ids) < 2:
        trial.not_applicable("the Receive Maximum of the client is 1")
    link.send(
        b"".join(
            trial.message(link, trial.payload(), qos=qos, packet_id=packet_id)
            for packet_id in packet_ids
        )
    )
    for packet_id in packet_ids:
        await trial.must_answer(link, packet_type, packet_id)


async def aliases_accepted(trial: ClientTrial) -> None:
    link = await _controlled(trial)
    name = topic_name_for(link)
    payloads = []
    for alias in {1, trial.profile.topic_alias_maximum}:
        for topic_name in (name, b""):
            payloads.append(trial.payload())
            packet_id = trial.next_packet_id()
            link.send(
                wire.publish(
                    trial.version,
                    topic_name,
                    payloads[-1],
                    qos=1,
                    packet_id=packet_id,
                    properties=wire.two_property(TOPIC_ALIAS, alias),
                )
            )
            await trial.must_answer(link, PUBACK, packet_id, f" for Topic Alias {alias}")
    await _must_have_printed(trial, link, *payloads)


async def identifiers_echoed(trial: ClientTrial) -> None:
    link = await trial.engaged()
    for qos, packet_type in ((1, PUBACK), (2, PUBREC)):
        for packet_id in (7, 65_535):
            link.send(trial.message(link, trial.payload(), qos=qos, packet_id=packet_id))
            await _must_echo(trial, link, packet_type, packet_id)
            if qos == 2:
                link.send(wire.pubrel(packet_id))
                await _must_echo(trial, link, PUBCOMP, packet_id)


async def _must_echo(
    trial: ClientTrial, link: SubjectLink, packet_type: int, packet_id: int
) -> None:
    """Claim that an answer has the identifier; that it comes is the claim of other cases."""
    observed = await link.wait_for(packet_type, trial.timeout)
    if observed is None:
        raise ControlFailed(f"the message was not answered: {trial.state(link)}")
    found = first_number(observed.data)
    name = PACKET_NAMES[packet_type]
    trial.must(found == packet_id, f"{name} has Packet Identifier {found} instead of {packet_id}")


CASES: Final = (
    ClientCase(
        "qos-0-not-answered",
        RECEIVE,
        "A QoS 0 PUBLISH is not answered.",
        qos_0_not_answered,
        mqtt311="3.3.4-1",
        mqtt5="3.3.4-1",
        needs=(STAYS,),
    ),
    ClientCase(
        "qos-1-answered",
        RECEIVE,
        "A QoS 1 PUBLISH is answered with a PUBACK of the same Packet Identifier.",
        qos_1_answered,
        mqtt311="3.3.4-1 4.3.2-2",
        mqtt5="3.3.4-1 4.3.2-4",
        needs=(STAYS,),
    ),
    ClientCase(
        "qos-1-unexpected-topic",
        RECEIVE,
        "A PUBLISH to a topic that the client has not subscribed to is acknowledged, too.",
        qos_1_unexpected_topic,
        mqtt311="4.5.0-2",
        mqtt5="4.5.0-2",
        needs=(STAYS,),
    ),
    ClientCase(
        "qos-1-identifier-again",
        RECEIVE,
        "After PUBACK a PUBLISH with the same Packet Identifier is a new message, even with DUP 1.",
        qos_1_identifier_again,
        mqtt311="4.3.2-2",
        mqtt5="4.3.2-5",
        needs=(STAYS,),
    ),
    ClientCase(
        "qos-2-answered",
        RECEIVE,
        "A QoS 2 PUBLISH is answered with PUBREC, and its PUBREL with PUBCOMP.",
        qos_2_answered,
        mqtt311="3.3.4-1 4.3.3-2",
        mqtt5="3.3.4-1 4.3.3-8 4.3.3-11",
        needs=(STAYS,),
    ),
    ClientCase(
        "qos-2-repeated",
        RECEIVE,
        "A repeated QoS 2 PUBLISH is answered with PUBREC and not delivered again.",
        qos_2_repeated,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-10",
        needs=(STAYS,),
    ),
    ClientCase(
        "qos-2-identifier-again",
        RECEIVE,
        "After PUBCOMP a PUBLISH with the same Packet Identifier is a new message.",
        qos_2_identifier_again,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-12",
        needs=(STAYS,),
    ),
    ClientCase(
        "qos-2-unknown-dup",
        RECEIVE,
        "A QoS 2 PUBLISH with DUP 1 and an unknown Packet Identifier is a new message.",
        qos_2_unknown_dup,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-8",
        needs=(STAYS,),
    ),
    ClientCase(
        "qos-2-across-reconnect",
        RECEIVE,
        "A QoS 2 PUBLISH that is sent again after a reconnect is not delivered again.",
        qos_2_across_reconnect,
        mqtt311="4.3.3-2 3.1.2-4 4.1.0-1",
        mqtt5="4.3.3-10 3.1.2-23",
        needs=(STAYS, RESUMES),
    ),
    ClientCase(
        "pubrel-repeated",
        RECEIVE,
        "A PUBREL that is sent again is answered with PUBCOMP again.",
        pubrel_repeated,
        mqtt311="4.3.3-2",
        mqtt5="4.3.3-11",
        needs=(STAYS,),
    ),
    ClientCase(
        "pubacks-in-order",
        RECEIVE,
        "PUBACK packets are sent in the order of the PUBLISH packets.",
        pubacks_in_order,
        mqtt311="4.6.0-2",
        mqtt5="4.6.0-2",
        needs=(STAYS,),
    ),
    ClientCase(
        "pubrecs-in-order",
        RECEIVE,
        "PUBREC packets are sent in the order of the PUBLISH packets.",
        pubrecs_in_order,
        mqtt311="4.6.0-3",
        mqtt5="4.6.0-3",
        needs=(STAYS,),
    ),
    ClientCase(
        "aliases-accepted",
        RECEIVE,
        "A client accepts every Topic Alias up to its Topic Alias Maximum.",
        aliases_accepted,
        mqtt5="3.3.2-10",
        needs=(STAYS, TAKES_ALIASES),
    ),
    ClientCase(
        "identifiers-echoed",
        RECEIVE,
        "Acknowledgements have the Packet Identifier of the message.",
        identifiers_echoed,
        mqtt311="2.3.1-6 U3-07",
        mqtt5="2.2.1-5",
        needs=(STAYS,),
    ),
)

"""Cases about shared subscriptions [4.8.2], which only 5.0 has."""

import time
from collections.abc import Sequence
from typing import Final

from semel.mqtt.packet_types import PUBLISH, PUBREL
from semel.mqtt.packets.acks import PubRel
from semel.mqtt.packets.publish import Publish
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import (
    connect_kept,
    inbox_after_ping,
    listed,
    named,
    payloads,
    reasoned,
    require_qos,
    require_shared,
    resume,
    subscribe_at,
    usable_qos,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.verdicts import SEND


def shared(name: bytes, group: bytes = b"group") -> bytes:
    """The filter of a shared subscription."""
    return b"$share/" + group + b"/" + name


async def chosen_member(trial: Trial, qos: int) -> tuple[ProbeLink, ProbeLink, ProbeLink, Publish]:
    """A member with an open delivery, another that joined later, a publisher, and the message."""
    publisher = await trial.connect("pub")
    require_shared(trial, publisher)
    require_qos(trial, publisher, qos)
    member = await connect_kept(trial, "member")
    await subscribe_at(trial, member, shared(trial.topic()), qos)
    await trial.publish(publisher, trial.topic(), b"message", qos=qos)
    with trial.control():
        message = await trial.must_receive_message(member, acknowledge=False)
        trial.must(message.qos == qos, f"QoS {qos} was granted, and {message.qos} delivered")
    other = await trial.connect("other")
    await subscribe_at(trial, other, shared(trial.topic()), qos)
    await subscribe_at(trial, other, trial.topic("end"), qos)
    return member, other, publisher, message


async def must_have_nothing(trial: Trial, other: ProbeLink, publisher: ProbeLink, qos: int) -> None:
    """Claim that the other member got nothing."""
    found = await trial.messages_until(other, trial.topic("end"), publisher, qos=qos)
    trial.must(not found, f"another member of the group got {named(found)}")


async def take_messages(trial: Trial, links: Sequence[ProbeLink], number: int) -> list[bytes]:
    """The payloads that some clients get together: at most `number`, within the timeout."""
    found: list[bytes] = []
    deadline = time.monotonic() + trial.timeout
    while len(found) < number and time.monotonic() < deadline:
        for link in links:
            packet = await link.wait_for(PUBLISH, 0.01)
            if isinstance(packet, Publish):
                await trial.acknowledge(link, packet)
                found.append(packet.payload)
    return found


# --- sharing ---


async def one_member_gets_each_message(trial: Trial) -> None:
    publisher = await trial.connect("pub")
    require_shared(trial, publisher)
    qos = usable_qos(publisher, 1)
    members = [await trial.connect(name) for name in ("one", "two", "three")]
    for member in members:
        await subscribe_at(trial, member, shared(trial.topic()), qos)
        await subscribe_at(trial, member, trial.topic("end"), qos)
    sent = [b"%d" % number for number in range(12)]
    for payload in sent:
        await trial.publish(publisher, trial.topic(), payload, qos=qos)
    received = await take_messages(trial, members, len(sent))
    for member in members:
        found = await trial.messages_until(member, trial.topic("end"), publisher, qos=qos)
        received += payloads(found)
    copies = [payload.decode() for payload in sent if received.count(payload) > 1]
    trial.must(not copies, f"several members of a group got {listed(copies)}")
    missing = [payload.decode() for payload in sent if payload not in received]
    trial.must(not missing, f"no member of the group got {listed(missing)}")


async def groups_are_apart(trial: Trial) -> None:
    publisher = await trial.connect("pub")
    require_shared(trial, publisher)
    qos = usable_qos(publisher, 1)
    first, second, plain = [await trial.connect(name) for name in ("one", "two", "plain")]
    await subscribe_at(trial, first, shared(trial.topic(), b"g1"), qos)
    await subscribe_at(trial, second, shared(trial.topic(), b"g2"), qos)
    await subscribe_at(trial, plain, trial.topic(), qos)
    await trial.publish(publisher, trial.topic(), b"for all", qos=qos)
    for link in (first, second, plain):
        message = await trial.must_receive_message(link)
        trial.must(message.payload == b"for all", "another message came")
        trial.must(message.topic_name.encode() == trial.topic(), f"topic {message.topic_name}")


async def shared_and_plain_are_two_subscriptions(trial: Trial) -> None:
    publisher, link = await trial.connect("pub"), await trial.connect()
    require_shared(trial, publisher)
    qos = usable_qos(publisher, 1)
    await subscribe_at(trial, link, shared(trial.topic()), qos)
    await subscribe_at(trial, link, trial.topic(), qos)
    await trial.unsubscribe(link, shared(trial.topic()))
    await trial.publish(publisher, trial.topic(), b"plain", qos=qos)
    message = await trial.must_receive_message(link)
    trial.must(message.payload == b"plain", "another message came")
    await subscribe_at(trial, link, shared(trial.topic()), qos)
    await trial.unsubscribe(link, trial.topic())
    await trial.publish(publisher, trial.topic(), b"shared", qos=qos)
    message = await trial.must_receive_message(link)
    trial.must(message.payload == b"shared", "another message came")
    await subscribe_at(trial, link, trial.topic("end"), qos)
    await trial.unsubscribe(link, shared(trial.topic()))
    await trial.publish(publisher, trial.topic(), b"nobody", qos=qos)
    found = await trial.messages_until(link, trial.topic("end"), publisher, qos=qos)
    trial.must(not found, f"after both were deleted came {named(found)}")


async def share_names_are_literal(trial: Trial) -> None:
    """A ShareName may have any characters but `/`, `+` and `#`; `$share` alone is no prefix."""
    publisher, link = await trial.connect("pub"), await trial.connect()
    require_shared(trial, publisher)
    qos = usable_qos(publisher, 1)
    for name in ("a", "Ä 1", "$x", "*"):
        topic_filter = shared(trial.topic(), name.encode())
        await subscribe_at(trial, link, topic_filter, qos)
        await trial.publish(publisher, trial.topic(), name.encode(), qos=qos)
        message = await trial.must_receive_message(link)
        trial.must(message.payload == name.encode(), f"ShareName {name!r}: another message came")
        await trial.unsubscribe(link, topic_filter)


# --- QoS ---


async def granted_qos_of_the_member(trial: Trial) -> None:
    publisher = await trial.connect("pub")
    require_shared(trial, publisher)
    top = usable_qos(publisher, 2)
    for granted in range(top + 1):
        link = await trial.connect(f"q{granted}")
        name = trial.topic(f"q{granted}")
        await subscribe_at(trial, link, shared(name), granted)
        for published in range(top + 1):
            await trial.publish(publisher, name, b"message", qos=published)
            message = await trial.must_receive_message(link)
            found = f"published with {published}, granted {granted}, delivered with {message.qos}"
            trial.must(message.qos == min(published, granted), found)


async def granted_qos_of_each_member(trial: Trial) -> None:
    """Members of one group may have different QoS."""
    publisher = await trial.connect("pub")
    require_shared(trial, publisher)
    require_qos(trial, publisher, 1)
    members = {0: await trial.connect("low"), 1: await trial.connect("high")}
    for granted, member in members.items():
        await subscribe_at(trial, member, shared(trial.topic()), granted)
        await subscribe_at(trial, member, trial.topic("end"), 1)
    for number in range(8):
        await trial.publish(publisher, trial.topic(), b"%d" % number, qos=1)
    received = 0
    for granted, member in members.items():
        found = await trial.messages_until(member, trial.topic("end"), publisher, qos=1)
        received += len(found)
        wrong = [message.qos for message in found if message.qos != granted]
        trial.must(not wrong, f"a member with QoS {granted} got QoS {listed(wrong)}")
    with trial.control():
        trial.must(received, "no member got a message")


# --- deliveries that are interrupted ---


async def delivery_is_completed_to_the_same_client(trial: Trial) -> None:
    member, other, publisher, message = await chosen_member(trial, 2)
    await member.cut()
    await must_have_nothing(trial, other, publisher, 2)
    member = await resume(trial, "member")
    again = await trial.must_receive_message(member, acknowledge=False)
    trial.must(again.packet_id == message.packet_id, "another packet identifier came")
    trial.must(again.payload == b"message", "another message came")
    await member.send(wire.pubrec(message.packet_id))
    await trial.must_receive(member, PUBREL)
    await member.cut()
    await must_have_nothing(trial, other, publisher, 2)
    member = await resume(trial, "member")
    packet = await trial.must_receive(member, PUBREL)
    assert isinstance(packet, PubRel)
    trial.must(packet.packet_id == message.packet_id, f"PUBREL {packet.packet_id} came")
    await member.send(wire.pubcomp(message.packet_id))
    await must_have_nothing(trial, other, publisher, 2)


async def ended_session_is_not_replaced(trial: Trial) -> None:
    member, other, publisher, _ = await chosen_member(trial, 2)
    await member.cut()
    # The session ends: its client begins another one.
    member = await trial.connect("member")
    inbox = [each for each in await inbox_after_ping(trial, member) if each.packet_type == PUBLISH]
    trial.must(not inbox, "the message was sent to a new session of the client")
    await must_have_nothing(trial, other, publisher, 2)


async def refused_message_is_discarded(trial: Trial, qos: int) -> None:
    member, other, publisher, message = await chosen_member(trial, qos)
    first = 0x40 if qos == 1 else 0x50
    await member.send(reasoned(first, message.packet_id, 0x80))
    await inbox_after_ping(trial, member)
    await must_have_nothing(trial, other, publisher, qos)
    left = [each for each in member.inbox if each.packet_type == PUBLISH]
    trial.must(not left, "the message was sent to the same member again")


async def refused_qos_1_is_discarded(trial: Trial) -> None:
    await refused_message_is_discarded(trial, 1)


async def refused_qos_2_is_discarded(trial: Trial) -> None:
    await refused_message_is_discarded(trial, 2)


CASES: Final = (
    Case(
        "shared-one-member",
        SEND,
        "Each message of a shared subscription goes to one member of the group.",
        one_member_gets_each_message,
        mqtt5="4.8.2-1",
    ),
    Case(
        "shared-groups-apart",
        SEND,
        "Each group, and each client with a subscription of its own, gets every message.",
        groups_are_apart,
        mqtt5="4.8.2-2",
    ),
    Case(
        "shared-and-plain",
        SEND,
        "A shared and an ordinary subscription to the same filter are independent.",
        shared_and_plain_are_two_subscriptions,
        mqtt5="4.8.2-1",
    ),
    Case(
        "share-names",
        SEND,
        "A ShareName may have any characters but `/`, `+` and `#`.",
        share_names_are_literal,
        mqtt5="4.8.2-2",
    ),
    Case(
        "shared-granted-qos",
        SEND,
        "A message of a shared subscription is delivered at most with the granted QoS.",
        granted_qos_of_the_member,
        mqtt5="4.8.2-3",
    ),
    Case(
        "shared-granted-qos-of-each-member",
        SEND,
        "Each member of a group gets messages with the QoS that it was granted.",
        granted_qos_of_each_member,
        mqtt5="4.8.2-3",
    ),
    Case(
        "shared-delivery-completed",
        SEND,
        "A QoS 2 delivery that was interrupted is completed to the same member.",
        delivery_is_completed_to_the_same_client,
        mqtt5="4.8.2-4",
    ),
    Case(
        "shared-session-ended",
        SEND,
        "A QoS 2 message whose member's session ended is not sent to another member.",
        ended_session_is_not_replaced,
        mqtt5="4.8.2-5",
    ),
    Case(
        "shared-refused-with-puback",
        SEND,
        "A message that a member refused with PUBACK 0x80 is not sent to another one.",
        refused_qos_1_is_discarded,
        mqtt5="4.8.2-6",
    ),
    Case(
        "shared-refused-with-pubrec",
        SEND,
        "A message that a member refused with PUBREC 0x80 is not sent to another one.",
        refused_qos_2_is_discarded,
        mqtt5="4.8.2-6",
    ),
)

"""Cases about re-delivery [4.4]: what a broker sends again, when, and what it does not."""

import asyncio
from typing import Final

from semel.mqtt.packet_types import PUBLISH, PUBREL
from semel.mqtt.packets.acks import PubRel
from semel.mqtt.packets.publish import Publish
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import (
    connect_kept,
    inbox_after_ping,
    leave,
    listed,
    named,
    open_messages,
    payloads,
    reasoned,
    require_qos,
    resume,
    subscribe_at,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.claims import ClaimArguable, ControlFailed
from semel.probe.verdicts import SEND

# How long a broker is watched that must not send anything again.
WATCHED_SECONDS: Final = 6.0
# More than brokers allow themselves by default to have open would make the order unobservable.
ROW: Final = 3


async def kept_audience(trial: Trial, qos: int) -> tuple[ProbeLink, ProbeLink]:
    """A subscriber whose session is kept, and a publisher."""
    subscriber, publisher = await connect_kept(trial, "kept"), await trial.connect("pub")
    require_qos(trial, publisher, qos)
    await subscribe_at(trial, subscriber, trial.topic(), qos)
    return subscriber, publisher


async def unanswered(trial: Trial, qos: int) -> tuple[ProbeLink, ProbeLink, Publish]:
    """The subscriber, the publisher, and a message that was delivered and not acknowledged."""
    subscriber, publisher = await kept_audience(trial, qos)
    await trial.publish(publisher, trial.topic(), b"message", qos=qos)
    with trial.control():
        message = await trial.must_receive_message(subscriber, acknowledge=False)
        trial.must(message.payload == b"message", "another message came")
        trial.must(message.qos == qos, f"QoS {qos} was granted, and {message.qos} delivered")
    return subscriber, publisher, message


# --- what is sent again ---


async def unacknowledged_message_is_sent_again(trial: Trial, qos: int) -> None:
    subscriber, publisher, again = await unanswered(trial, qos)
    for _ in range(2):
        await subscriber.cut()
        subscriber = await resume(trial, "kept")
        again = await trial.must_receive_message(subscriber, acknowledge=False)
        trial.must(again.payload == b"message", "another message came")
    await trial.acknowledge(subscriber, again)
    await subscriber.cut()
    subscriber = await resume(trial, "kept")
    found = await trial.messages_until(subscriber, trial.topic(), publisher, qos=qos)
    trial.must(not found, f"sent again after its acknowledgement: {named(found)}")


async def unacknowledged_qos_1_is_sent_again(trial: Trial) -> None:
    await unacknowledged_message_is_sent_again(trial, 1)


async def unacknowledged_qos_2_is_sent_again(trial: Trial) -> None:
    await unacknowledged_message_is_sent_again(trial, 2)


async def sent_twice(trial: Trial, qos: int) -> tuple[Publish, Publish]:
    """A message as it was sent first and again; end the case if it was not sent again."""
    subscriber, _, first = await unanswered(trial, qos)
    await subscriber.cut()
    subscriber = await resume(trial, "kept")
    again = await trial.message(subscriber)
    if again is None or again.payload != b"message":
        trial.not_applicable("the broker did not send the message again in this run")
    return first, again


async def qos_1_is_sent_again_with_dup_1(trial: Trial) -> None:
    _, again = await sent_twice(trial, 1)
    trial.must(again.dup, "a QoS 1 message was sent again with DUP 0")


async def qos_2_is_sent_again_with_dup_1(trial: Trial) -> None:
    _, again = await sent_twice(trial, 2)
    trial.must(again.dup, "a QoS 2 message was sent again with DUP 0")


async def what_is_sent_again_keeps_its_identifier(trial: Trial, qos: int) -> None:
    first, again = await sent_twice(trial, qos)
    found = f"sent with identifier {first.packet_id}, and again with {again.packet_id}"
    trial.must(again.packet_id == first.packet_id, found)
    trial.must(again.qos == qos, f"sent with QoS {qos}, and again with {again.qos}")


async def qos_1_keeps_its_identifier(trial: Trial) -> None:
    await what_is_sent_again_keeps_its_identifier(trial, 1)


async def qos_2_keeps_its_identifier(trial: Trial) -> None:
    await what_is_sent_again_keeps_its_identifier(trial, 2)


async def pubrel_is_sent_again(trial: Trial) -> None:
    subscriber, _, message = await unanswered(trial, 2)
    await subscriber.send(wire.pubrec(message.packet_id))
    with trial.control():
        await trial.must_receive(subscriber, PUBREL)
    for _ in range(2):
        await subscriber.cut()
        subscriber = await resume(trial, "kept")
        packet = await trial.must_receive(subscriber, PUBREL)
        assert isinstance(packet, PubRel)
        found = f"PUBREL {message.packet_id} was repeated as {packet.packet_id}"
        trial.must(packet.packet_id == message.packet_id, found)
    await subscriber.send(wire.pubcomp(message.packet_id))
    await trial.must_stay_open(subscriber)


async def publish_is_not_sent_again_after_pubrel(trial: Trial) -> None:
    subscriber, publisher, message = await unanswered(trial, 2)
    await subscriber.send(wire.pubrec(message.packet_id))
    with trial.control():
        await trial.must_receive(subscriber, PUBREL)
    await subscriber.cut()
    subscriber = await resume(trial, "kept")
    await subscriber.wait_for(PUBREL, 1.0)
    rest = [
        each for each in await inbox_after_ping(trial, subscriber) if each.packet_type == PUBLISH
    ]
    trial.must(not rest, "the PUBLISH was sent again after its PUBREL")
    await subscriber.send(wire.pubcomp(message.packet_id))
    found = await trial.messages_until(subscriber, trial.topic(), publisher, qos=2)
    trial.must(not found, f"sent again after PUBCOMP: {named(found)}")


async def messages_are_sent_again_in_order(trial: Trial, qos: int) -> None:
    subscriber, publisher = await kept_audience(trial, qos)
    for number in range(ROW):
        payload = b"%d" % number
        await trial.publish(publisher, trial.topic(), payload, qos=qos, packet_id=number + 1)
    await open_messages(trial, subscriber, ROW)
    await leave(trial, subscriber)
    await trial.publish(publisher, trial.topic(), b"meanwhile", qos=qos, packet_id=99)
    subscriber = await resume(trial, "kept")
    received: list[Publish] = []
    for _ in range(ROW + 1):
        received.append(await trial.expect_message(subscriber))
    again = [b"%d" % number for number in range(ROW)]
    expected = [*again, b"meanwhile"]
    if payloads(received) == [b"meanwhile", *again]:
        raise ClaimArguable(
            "what came meanwhile was sent before the messages that were sent again: 4.6 asks for"
            " the order of first transmissions and for that of what is sent again, 4.4 says that"
            " the latter is sent when the client reconnects"
        )
    trial.must(payloads(received) == expected, f"sent again as {named(received)}")


async def qos_1_is_sent_again_in_order(trial: Trial) -> None:
    await messages_are_sent_again_in_order(trial, 1)


async def qos_2_is_sent_again_in_order(trial: Trial) -> None:
    await messages_are_sent_again_in_order(trial, 2)


async def waiting_messages(trial: Trial, qos: int = 1) -> tuple[list[bytes], ProbeLink]:
    """What was published while a session was away, and the connection on which it is resumed."""
    subscriber, publisher = await kept_audience(trial, qos)
    await leave(trial, subscriber)
    sent = [b"%d" % number for number in range(5)]
    for number, payload in enumerate(sent):
        await trial.publish(publisher, trial.topic(), payload, qos=qos, packet_id=number + 1)
    return sent, await resume(trial, "kept")


async def messages_wait_for_a_session(trial: Trial) -> None:
    sent, subscriber = await waiting_messages(trial)
    received = [await trial.must_receive_message(subscriber) for _ in sent]
    trial.must(sorted(payloads(received)) == sent, f"delivered was {named(received)}")


async def messages_wait_in_order(trial: Trial, qos: int) -> None:
    sent, subscriber = await waiting_messages(trial, qos)
    received = [await trial.expect_message(subscriber) for _ in sent]
    trial.must(payloads(received) == sent, f"at QoS {qos} the order was {named(received)}")


async def qos_1_is_queued_in_order(trial: Trial) -> None:
    await messages_wait_in_order(trial, 1)


async def qos_2_is_queued_in_order(trial: Trial) -> None:
    await messages_wait_in_order(trial, 2)


async def what_waited_has_dup_0(trial: Trial) -> None:
    sent, subscriber = await waiting_messages(trial)
    received = [await trial.expect_message(subscriber) for _ in sent]
    trial.must(not any(each.dup for each in received), "a first transmission has DUP 1")


# --- what is not sent again ---


async def acknowledged_messages_are_not_sent_again(trial: Trial) -> None:
    subscriber, publisher = await kept_audience(trial, 1)
    for number in range(2):
        payload = b"%d" % number
        await trial.publish(publisher, trial.topic(), payload, qos=1, packet_id=number + 1)
        await trial.must_receive_message(subscriber, acknowledge=not number)
    # The answer shows that the PUBACK was taken before the connection ends.
    await inbox_after_ping(trial, subscriber)
    await subscriber.cut()
    subscriber = await resume(trial, "kept")
    found = await trial.messages_until(subscriber, trial.topic(), publisher, qos=1)
    if not found and (late := await trial.message(subscriber)) is not None:
        # Nothing says how soon it must be sent again.
        found = [late]
    if not found:
        raise ControlFailed("a message that was not acknowledged was not sent again")
    trial.must(payloads(found) == [b"1"], f"of 0 and 1 only 1 was open; sent again: {named(found)}")


async def refused_message_is_not_sent_again(trial: Trial, qos: int) -> None:
    subscriber, publisher, message = await unanswered(trial, qos)
    first = 0x40 if qos == 1 else 0x50
    await subscriber.send(reasoned(first, message.packet_id, 0x80))
    await inbox_after_ping(trial, subscriber)
    await subscriber.cut()
    subscriber = await resume(trial, "kept")
    found = await trial.messages_until(subscriber, trial.topic(), publisher, qos=qos)
    trial.must(not found, f"sent again after it was refused with 0x80: {named(found)}")
    released = [each for each in subscriber.inbox if each.packet_type == PUBREL]
    trial.must(not released, "the broker sent PUBREL after a PUBREC with 0x80")


async def refused_qos_1_is_not_sent_again(trial: Trial) -> None:
    await refused_message_is_not_sent_again(trial, 1)


async def refused_qos_2_is_not_sent_again(trial: Trial) -> None:
    await refused_message_is_not_sent_again(trial, 2)


async def nothing_is_sent_again_while_connected(trial: Trial) -> None:
    subscriber, publisher, message = await unanswered(trial, 1)
    require_qos(trial, publisher, 2)
    await subscribe_at(trial, subscriber, trial.topic("two"), 2)
    await trial.publish(publisher, trial.topic("two"), b"two", qos=2)
    with trial.control():
        second = await trial.must_receive_message(subscriber, acknowledge=False)
        await subscriber.send(wire.pubrec(second.packet_id))
        await trial.must_receive(subscriber, PUBREL)
    await asyncio.sleep(WATCHED_SECONDS)
    inbox = await inbox_after_ping(trial, subscriber)
    kinds = {PUBLISH: "PUBLISH", PUBREL: "PUBREL"}
    again = [kinds[each.packet_type] for each in inbox if each.packet_type in kinds]
    trial.must(not again, f"sent again on a connection that is up: {listed(again)}")
    await trial.acknowledge(subscriber, message)
    await subscriber.send(wire.pubcomp(second.packet_id))
    await trial.must_stay_open(subscriber)


CASES: Final = (
    Case(
        "qos-1-sent-again-after-reconnect",
        SEND,
        "A QoS 1 message without PUBACK is sent again after a reconnect until it is acknowledged.",
        unacknowledged_qos_1_is_sent_again,
        mqtt311="4.4.0-1 4.3.2-1",
        mqtt5="4.4.0-1 4.3.2-3",
    ),
    Case(
        "qos-2-sent-again-after-reconnect",
        SEND,
        "A QoS 2 message without PUBREC is sent again after a reconnect until it is acknowledged.",
        unacknowledged_qos_2_is_sent_again,
        mqtt311="4.4.0-1 4.3.3-1",
        mqtt5="4.4.0-1 4.3.3-3",
    ),
    Case(
        "qos-1-sent-again-with-dup",
        SEND,
        "A QoS 1 message that is sent again has DUP 1.",
        qos_1_is_sent_again_with_dup_1,
        mqtt311="3.3.1-1",
        mqtt5="3.3.1-1",
    ),
    Case(
        "qos-2-sent-again-with-dup",
        SEND,
        "A QoS 2 message that is sent again has DUP 1.",
        qos_2_is_sent_again_with_dup_1,
        mqtt311="3.3.1-1",
        mqtt5="3.3.1-1",
    ),
    Case(
        "qos-1-sent-again-with-its-identifier",
        SEND,
        "A QoS 1 message that is sent again has its packet identifier.",
        qos_1_keeps_its_identifier,
        mqtt311="4.4.0-1 2.3.1-4",
        mqtt5="4.4.0-1",
    ),
    Case(
        "qos-2-sent-again-with-its-identifier",
        SEND,
        "A QoS 2 message that is sent again has its packet identifier.",
        qos_2_keeps_its_identifier,
        mqtt311="4.4.0-1 2.3.1-4",
        mqtt5="4.4.0-1",
    ),
    Case(
        "pubrel-sent-again-after-reconnect",
        SEND,
        "A PUBREL without PUBCOMP is sent again after a reconnect with its identifier.",
        pubrel_is_sent_again,
        mqtt311="4.4.0-1 4.3.3-1",
        mqtt5="4.4.0-1 4.3.3-5",
    ),
    Case(
        "publish-not-sent-again-after-pubrel",
        SEND,
        "After PUBREL the PUBLISH is not sent again.",
        publish_is_not_sent_again_after_pubrel,
        mqtt311="4.3.3-1",
        mqtt5="4.3.3-6",
    ),
    Case(
        "qos-1-sent-again-in-order",
        SEND,
        "After a reconnect QoS 1 messages are sent again in order, then what came meanwhile.",
        qos_1_is_sent_again_in_order,
        mqtt311="4.6.0-6",
        mqtt5="4.6.0-5",
    ),
    Case(
        "qos-2-sent-again-in-order",
        SEND,
        "After a reconnect QoS 2 messages are sent again in order, then what came meanwhile.",
        qos_2_is_sent_again_in_order,
        mqtt311="4.6.0-6",
        mqtt5="4.6.0-5",
    ),
    Case(
        "messages-wait-for-a-session",
        SEND,
        "Messages for a session that is not connected are delivered when it is resumed.",
        messages_wait_for_a_session,
        mqtt311="4.5.0-1 4.1.0-1",
        mqtt5="4.5.0-1",
    ),
    Case(
        "qos-1-messages-wait-in-order",
        SEND,
        "QoS 1 messages for a session that is not connected are delivered in order.",
        qos_1_is_queued_in_order,
        mqtt311="4.6.0-6",
        mqtt5="4.6.0-5",
    ),
    Case(
        "qos-2-messages-wait-in-order",
        SEND,
        "QoS 2 messages for a session that is not connected are delivered in order.",
        qos_2_is_queued_in_order,
        mqtt311="4.6.0-6",
        mqtt5="4.6.0-5",
    ),
    Case(
        "messages-wait-without-dup",
        SEND,
        "Messages that waited for a session are sent first with DUP 0.",
        what_waited_has_dup_0,
        mqtt311="4.3.2-1",
        mqtt5="4.3.2-2",
    ),
    Case(
        "acknowledged-not-sent-again",
        SEND,
        "After a reconnect an acknowledged message is not sent again, an open one is.",
        acknowledged_messages_are_not_sent_again,
        mqtt311="4.3.2-1",
        mqtt5="4.4.0-1",
    ),
    Case(
        "refused-qos-1-not-sent-again",
        SEND,
        "A QoS 1 message that the client refused with PUBACK 0x80 is not sent again.",
        refused_qos_1_is_not_sent_again,
        mqtt5="4.4.0-2",
    ),
    Case(
        "refused-qos-2-not-sent-again",
        SEND,
        "A QoS 2 message that the client refused with PUBREC 0x80 is not sent again.",
        refused_qos_2_is_not_sent_again,
        mqtt5="4.4.0-2",
    ),
    Case(
        "nothing-sent-again-while-connected",
        SEND,
        "Neither PUBLISH nor PUBREL is sent again while the connection is up.",
        nothing_is_sent_again_while_connected,
        mqtt5="4.4.0-1",
        is_slow=True,
    ),
)

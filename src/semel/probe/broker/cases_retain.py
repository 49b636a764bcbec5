"""Cases about retained messages [3.3.1.3]: what is stored, replaced, deleted, and sent to whom."""

import asyncio
import time
from typing import Final

from semel.mqtt.packet_types import PUBACK, PUBLISH
from semel.mqtt.packets.publish import Publish
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import (
    RETAIN_AS_PUBLISHED,
    RETAIN_HANDLING_NEVER,
    RETAIN_HANDLING_NEW,
    audience,
    connect_kept,
    leave,
    listed,
    named,
    payloads,
    require_qos,
    require_retain,
    require_wildcards,
    retained_removed,
    subscribe_at,
    subscribe_claimed,
    usable_qos,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.verdicts import SEND

# A Message Expiry Interval in seconds, and a wait after which it has surely passed.
SHORT: Final = 1
AFTER_SHORT: Final = 2.6
LONG: Final = 600


async def retaining_publisher(trial: Trial) -> tuple[ProbeLink, int]:
    """A publisher to a broker that retains messages, and the QoS to use."""
    publisher = await trial.connect("pub")
    require_retain(trial, publisher)
    return publisher, usable_qos(publisher, 1)


async def retained_at(
    trial: Trial,
    name: str,
    publisher: ProbeLink,
    topic_name: bytes,
    *,
    expected: int = 0,
) -> list[Publish]:
    """What a new subscriber gets: `expected` messages, and others before a last one.

    The last one is published after SUBACK and has RETAIN 0. A broker sends retained messages when
    it accepts the subscription, so that none can come later.
    """
    qos = usable_qos(publisher, 1)
    link = await trial.connect(name)
    await trial.subscribe(link, (topic_name, qos))
    found = [await trial.must_receive_message(link) for _ in range(expected)]
    found += await trial.messages_until(link, topic_name, publisher, qos=qos)
    await link.cut()
    return found


def must_be(trial: Trial, found: list[Publish], *expected: bytes, when: str) -> None:
    """Claim that exactly these messages came."""
    wanted = listed([payload.decode() for payload in expected])
    trial.must(payloads(found) == list(expected), f"{when} {named(found)} came, not {wanted}")


# --- what is stored ---


async def retained_message_is_sent_to_new_subscribers(trial: Trial) -> None:
    publisher, qos = await retaining_publisher(trial)
    async with retained_removed(trial, trial.topic()):
        await trial.publish(publisher, trial.topic(), b"kept", qos=qos, retain=True)
        for name in ("first", "second"):
            link = await trial.connect(name)
            await trial.subscribe(link, (trial.topic(), qos))
            message = await trial.must_receive_message(link)
            trial.must(message.payload == b"kept", "another message came")
            trial.must(message.topic_name.encode() == trial.topic(), message.topic_name)


async def retained_message_has_retain_1(trial: Trial) -> None:
    publisher, qos = await retaining_publisher(trial)
    require_wildcards(trial, publisher)
    async with retained_removed(trial, trial.topic()):
        await trial.publish(publisher, trial.topic(), b"kept", qos=qos, retain=True)
        for number, topic_filter in enumerate((trial.topic(), trial.topic()[:-1] + b"#")):
            link = await trial.connect(f"s{number}")
            await trial.subscribe(link, (topic_filter, qos))
            message = await trial.message(link)
            if message is None:
                trial.not_applicable("the broker sent no retained message in this run")
            trial.must(message.retain, "a retained message came with RETAIN 0")


async def retained_message_has_its_qos(trial: Trial) -> None:
    publisher, _ = await retaining_publisher(trial)
    top = usable_qos(publisher, 2)
    names = [trial.topic(f"q{qos}") for qos in range(top + 1)]
    async with retained_removed(trial, *names):
        for qos, name in enumerate(names):
            await trial.publish(publisher, name, name, qos=qos, retain=True)
        for granted in range(top + 1):
            link = await trial.connect(f"s{granted}")
            for qos, name in enumerate(names):
                await subscribe_at(trial, link, name, granted)
                if qos:
                    message = await trial.must_receive_message(link)
                    trial.must(message.payload == name, "another message came")
                    found = f"retained with QoS {qos}, granted {granted}, sent with {message.qos}"
                    trial.must(message.qos >= min(qos, granted), found)
                else:
                    # [3.3.1-7] A broker may drop a retained message with QoS 0.
                    await link.wait_for(PUBLISH, 0.2)


async def newest_is_retained(trial: Trial) -> None:
    publisher, qos = await retaining_publisher(trial)
    async with retained_removed(trial, trial.topic()):
        for payload in (b"old", b"newer", b"newest"):
            await trial.publish(publisher, trial.topic(), payload, qos=qos, retain=True)
        found = await retained_at(trial, "sub", publisher, trial.topic(), expected=1)
        must_be(trial, found, b"newest", when="to a new subscriber")


async def qos_0_replaces_what_is_retained(trial: Trial) -> None:
    publisher, qos = await retaining_publisher(trial)
    async with retained_removed(trial, trial.topic()):
        await trial.publish(publisher, trial.topic(), b"old", qos=qos, retain=True)
        await trial.publish(publisher, trial.topic(), b"new", retain=True)
        # The PUBACK of another message shows that the QoS 0 one was taken before.
        await trial.publish(publisher, trial.topic("other"), b"x", qos=qos)
        found = await retained_at(trial, "sub", publisher, trial.topic())
        came = f"to a new subscriber came {named(found)}"
        trial.must(payloads(found) in ([b"new"], []), came)


async def every_matching_topic_is_sent(trial: Trial) -> None:
    publisher, qos = await retaining_publisher(trial)
    require_wildcards(trial, publisher)
    names = [trial.topic(name) for name in ("a/1", "a/2", "a/2/x", "a")]
    async with retained_removed(trial, *names):
        for name in names:
            await trial.publish(publisher, name, name, qos=qos, retain=True)
        for topic_filter, expected in (
            (trial.topic("a/+"), names[:2]),
            (trial.topic("a/#"), names),
            (trial.topic("+/2/x"), names[2:3]),
        ):
            link = await trial.connect("s" + str(len(expected)))
            await trial.subscribe(link, (topic_filter, qos))
            received = [await trial.must_receive_message(link) for _ in expected]
            trial.must(
                sorted(payloads(received)) == sorted(expected),
                f"{topic_filter.decode()} brought {named(received)}",
            )


async def retained_message_outlives_its_session(trial: Trial) -> None:
    publisher, qos = await retaining_publisher(trial)
    owner = await trial.connect("owner")
    async with retained_removed(trial, trial.topic()):
        await trial.publish(owner, trial.topic(), b"kept", qos=qos, retain=True)
        await leave(trial, owner)
        await trial.connect("owner")
        found = await retained_at(trial, "sub", publisher, trial.topic(), expected=1)
        must_be(trial, found, b"kept", when="after the end of the session")


# --- what is deleted, and what is not ---


async def empty_message_deletes(trial: Trial) -> None:
    publisher, qos = await retaining_publisher(trial)
    async with retained_removed(trial, trial.topic()):
        await trial.publish(publisher, trial.topic(), b"kept", qos=qos, retain=True)
        with trial.control():
            found = await retained_at(trial, "before", publisher, trial.topic(), expected=1)
            must_be(trial, found, b"kept", when="before")
        await trial.publish(publisher, trial.topic(), b"", qos=qos, retain=True)
        found = await retained_at(trial, "after", publisher, trial.topic())
        trial.must(b"kept" not in payloads(found), "the retained message was not deleted")


async def empty_message_is_routed(trial: Trial) -> None:
    subscriber, publisher = await audience(trial, trial.topic(), 1)
    require_retain(trial, publisher)
    async with retained_removed(trial, trial.topic()):
        await trial.publish(publisher, trial.topic(), b"kept", qos=1, retain=True)
        with trial.control():
            await trial.must_receive_message(subscriber)
        await trial.publish(publisher, trial.topic(), b"", qos=1, retain=True)
        message = await trial.must_receive_message(subscriber)
        trial.must(message.payload == b"", "another message came")


async def empty_message_is_not_stored(trial: Trial) -> None:
    publisher, qos = await retaining_publisher(trial)
    async with retained_removed(trial, trial.topic(), trial.topic("other")):
        with trial.control():
            await trial.publish(publisher, trial.topic("other"), b"x", qos=qos, retain=True)
            found = await retained_at(trial, "control", publisher, trial.topic("other"), expected=1)
            must_be(trial, found, b"x", when="for control")
        await trial.publish(publisher, trial.topic(), b"", qos=qos, retain=True)
        found = await retained_at(trial, "sub", publisher, trial.topic())
        trial.must(not found, "an empty message was retained")


async def retain_0_changes_nothing(trial: Trial) -> None:
    publisher, qos = await retaining_publisher(trial)
    async with retained_removed(trial, trial.topic()):
        await trial.publish(publisher, trial.topic(), b"never stored", qos=qos)
        found = await retained_at(trial, "first", publisher, trial.topic())
        trial.must(not found, f"retained although RETAIN was 0: {named(found)}")
        await trial.publish(publisher, trial.topic(), b"kept", qos=qos, retain=True)
        with trial.control():
            found = await retained_at(trial, "control", publisher, trial.topic(), expected=1)
        for payload in (b"other", b""):
            await trial.publish(publisher, trial.topic(), payload, qos=qos)
        found = await retained_at(trial, "second", publisher, trial.topic(), expected=1)
        must_be(trial, found, b"kept", when="after messages with RETAIN 0")


# --- the flag ---


async def forwarded_message_has_retain_0(trial: Trial) -> None:
    subscriber, publisher = await audience(trial, trial.topic(), 1)
    require_retain(trial, publisher)
    async with retained_removed(trial, trial.topic()):
        for retain in (True, False):
            await trial.publish(publisher, trial.topic(), b"message", qos=1, retain=retain)
            message = await trial.must_receive_message(subscriber)
            found = "RETAIN 1 was forwarded because of a subscription that existed before"
            trial.must(not message.retain, found)


async def queued_message_has_retain_0(trial: Trial) -> None:
    publisher, _ = await retaining_publisher(trial)
    require_qos(trial, publisher, 1)
    subscriber = await connect_kept(trial, "kept")
    await subscribe_at(trial, subscriber, trial.topic(), 1)
    await leave(trial, subscriber)
    async with retained_removed(trial, trial.topic()):
        await trial.publish(publisher, trial.topic(), b"message", qos=1, retain=True)
        subscriber = await trial.connect_durable("kept")
        message = await trial.must_receive_message(subscriber)
        trial.must(message.payload == b"message", "another message came")
        trial.must(not message.retain, "a message that had waited came with RETAIN 1")


async def retain_as_published(trial: Trial) -> None:
    publisher, _ = await retaining_publisher(trial)
    require_qos(trial, publisher, 1)
    subscriber = await trial.connect("sub")
    await subscribe_claimed(trial, subscriber, (trial.topic(), RETAIN_AS_PUBLISHED | 1))
    async with retained_removed(trial, trial.topic()):
        for retain in (True, False):
            await trial.publish(publisher, trial.topic(), b"message", qos=1, retain=retain)
            message = await trial.must_receive_message(subscriber)
            found = f"published with RETAIN {retain:d}, forwarded with {message.retain:d}"
            trial.must(message.retain == retain, found)


# --- Retain Handling ---


async def retain_handling_0_always_sends(trial: Trial) -> None:
    publisher, qos = await retaining_publisher(trial)
    link = await trial.connect()
    async with retained_removed(trial, trial.topic()):
        await trial.publish(publisher, trial.topic(), b"kept", qos=qos, retain=True)
        for _ in range(3):
            await trial.subscribe(link, (trial.topic(), qos))
            message = await trial.must_receive_message(link)
            trial.must(message.payload == b"kept", "another message came")


async def retain_handling_1_sends_for_new_ones(trial: Trial) -> None:
    publisher, qos = await retaining_publisher(trial)
    link = await trial.connect()
    entry = (trial.topic(), RETAIN_HANDLING_NEW | qos)
    async with retained_removed(trial, trial.topic()):
        await trial.publish(publisher, trial.topic(), b"kept", qos=qos, retain=True)
        await subscribe_claimed(trial, link, entry)
        found = [await trial.must_receive_message(link)]
        found += await trial.messages_until(link, trial.topic(), publisher, qos=qos)
        must_be(trial, found, b"kept", when="with a new subscription")
        await trial.subscribe(link, entry)
        found = await trial.messages_until(link, trial.topic(), publisher, qos=qos)
        trial.must(not found, "the retained message came again to an existing subscription")
        await trial.unsubscribe(link, trial.topic())
        await trial.subscribe(link, entry)
        found = [await trial.must_receive_message(link)]
        found += await trial.messages_until(link, trial.topic(), publisher, qos=qos)
        must_be(trial, found, b"kept", when="with a new subscription after UNSUBSCRIBE")


async def retain_handling_2_sends_nothing(trial: Trial) -> None:
    publisher, _ = await retaining_publisher(trial)
    async with retained_removed(trial, trial.topic()):
        qos = usable_qos(publisher, 1)
        await trial.publish(publisher, trial.topic(), b"kept", qos=qos, retain=True)
        with trial.control():
            found = await retained_at(trial, "control", publisher, trial.topic(), expected=1)
            must_be(trial, found, b"kept", when="with Retain Handling 0")
        link = await trial.connect("sub")
        await subscribe_claimed(trial, link, (trial.topic(), RETAIN_HANDLING_NEVER | qos))
        found = await trial.messages_until(link, trial.topic(), publisher, qos=qos)
        trial.must(not found, "a retained message came with Retain Handling 2")


# --- expiry ---


async def retained_message_expires(trial: Trial) -> None:
    publisher, qos = await retaining_publisher(trial)
    names = [trial.topic("short"), trial.topic("long")]
    async with retained_removed(trial, *names):
        for name, seconds in zip(names, (SHORT, LONG), strict=True):
            expiry = wire.four_property(0x02, seconds)
            await trial.publish(publisher, name, b"kept", qos=qos, retain=True, properties=expiry)
        await asyncio.sleep(AFTER_SHORT)
        with trial.control():
            found = await retained_at(trial, "long", publisher, names[1], expected=1)
            must_be(trial, found, b"kept", when="before its end")
        found = await retained_at(trial, "short", publisher, names[0])
        trial.must(not found, "a retained message came after it had expired")


async def retained_message_grows_old(trial: Trial) -> None:
    publisher, qos = await retaining_publisher(trial)
    async with retained_removed(trial, trial.topic()):
        expiry = wire.four_property(0x02, LONG)
        before = time.monotonic()
        await trial.publish(
            publisher, trial.topic(), b"kept", qos=qos, retain=True, properties=expiry
        )
        after = time.monotonic()
        await asyncio.sleep(AFTER_SHORT)
        least = time.monotonic() - after
        with trial.control():
            found = await retained_at(trial, "sub", publisher, trial.topic(), expected=1)
        most = time.monotonic() - before
        left = found[0].properties.message_expiry_interval
        if left is None:
            trial.refute("the Message Expiry Interval is lost")
        # A broker may round either way.
        waited = f"of {LONG} s {left} s are left after {least:.1f} s"
        trial.must(LONG - most - 1 <= left <= LONG - least + 1, waited)


async def retained_dollar_topic_hidden(trial: Trial) -> None:
    """[MQTT-4.7.2-1] holds for retained messages, too, which brokers look up in another way."""
    publisher = await trial.connect("pub")
    require_retain(trial, publisher)
    require_wildcards(trial, publisher)
    qos = usable_qos(publisher, 1)
    name = b"$" + trial.topic("kept")
    packet = wire.publish(trial.version, name, b"kept", qos=qos, packet_id=31, retain=True)
    await publisher.send(packet)
    if qos and await publisher.wait_for(PUBACK, trial.timeout) is None:
        trial.not_applicable("the broker accepts no message for a topic that begins with $")
    # The control: without it a broker that does not retain the message would be right by chance.
    owner = await trial.connect("own")
    await trial.subscribe(owner, (name, qos))
    if await trial.message(owner) is None:
        trial.not_applicable("the broker retains no message for a topic that begins with $")
    reader = await trial.connect("all")
    end = trial.topic("end")
    below_first_level = name.split(b"/", 1)[1]
    await trial.subscribe(reader, (b"+/" + below_first_level, qos), (end, qos))
    found = await trial.messages_until(reader, end, publisher, qos=qos)
    await trial.publish(publisher, name, b"", retain=True)
    names = ", ".join(message.topic_name for message in found)
    trial.must(not found, f"a retained message came for a filter that begins with +: {names}")


CASES: Final = (
    Case(
        "retained-to-new-subscribers",
        SEND,
        "A retained message is sent to each new subscriber.",
        retained_message_is_sent_to_new_subscribers,
        mqtt311="3.3.1-5 3.3.1-6",
        mqtt5="3.3.1-5 3.3.1-9",
    ),
    Case(
        "retained-with-retain-1",
        SEND,
        "What is sent because of a new subscription has RETAIN 1.",
        retained_message_has_retain_1,
        mqtt311="3.3.1-8",
        mqtt5="3.3.1-9",
    ),
    Case(
        "retained-with-its-qos",
        SEND,
        "A retained message is stored with its QoS: it is not sent with a lower one than granted.",
        retained_message_has_its_qos,
        mqtt311="3.3.1-5",
        mqtt5="3.3.1-5",
    ),
    Case(
        "retained-newest",
        SEND,
        "Only the newest retained message of a topic is sent.",
        newest_is_retained,
        mqtt311="3.3.1-5 3.3.1-6",
        mqtt5="3.3.1-5",
    ),
    Case(
        "retained-replaced-by-qos-0",
        SEND,
        "A QoS 0 message with RETAIN 1 discards the older retained message.",
        qos_0_replaces_what_is_retained,
        mqtt311="3.3.1-7",
        mqtt5="3.3.1-5",
    ),
    Case(
        "retained-of-every-matching-topic",
        SEND,
        "A new subscription brings the retained message of each topic that its filter matches.",
        every_matching_topic_is_sent,
        mqtt311="3.3.1-6",
        mqtt5="3.3.1-9",
    ),
    Case(
        "retained-outlives-its-session",
        SEND,
        "A retained message outlives the session of its publisher.",
        retained_message_outlives_its_session,
        mqtt311="3.1.2-7",
        mqtt5="3.3.1-5",
    ),
    Case(
        "empty-message-deletes",
        SEND,
        "An empty message with RETAIN 1 deletes the retained message of its topic.",
        empty_message_deletes,
        mqtt311="3.3.1-10",
        mqtt5="3.3.1-6",
    ),
    Case(
        "empty-message-routed",
        SEND,
        "An empty message with RETAIN 1 is delivered to those who are subscribed.",
        empty_message_is_routed,
        mqtt311="3.3.1-10",
        mqtt5="3.3.1-6",
    ),
    Case(
        "empty-message-not-stored",
        SEND,
        "An empty message with RETAIN 1 is not stored.",
        empty_message_is_not_stored,
        mqtt311="3.3.1-11",
        mqtt5="3.3.1-7",
    ),
    Case(
        "retain-0-changes-nothing",
        SEND,
        "A message with RETAIN 0, empty or not, neither replaces nor deletes what is retained.",
        retain_0_changes_nothing,
        mqtt311="3.3.1-12",
        mqtt5="3.3.1-8",
    ),
    Case(
        "forwarded-with-retain-0",
        SEND,
        "A message with RETAIN 1 is forwarded with RETAIN 0 to those who are subscribed.",
        forwarded_message_has_retain_0,
        mqtt311="3.3.1-9",
        mqtt5="3.3.1-12",
    ),
    Case(
        "queued-with-retain-0",
        SEND,
        "A message with RETAIN 1 that waited for a session is delivered with RETAIN 0.",
        queued_message_has_retain_0,
        mqtt311="3.3.1-9",
        mqtt5="3.3.1-12",
    ),
    Case(
        "retain-as-published",
        SEND,
        "With Retain As Published the RETAIN flag of the publisher is forwarded.",
        retain_as_published,
        mqtt5="3.3.1-13",
    ),
    Case(
        "retain-handling-0",
        SEND,
        "With Retain Handling 0 each SUBSCRIBE brings the retained messages.",
        retain_handling_0_always_sends,
        mqtt5="3.3.1-9 3.8.4-4",
    ),
    Case(
        "retain-handling-1",
        SEND,
        "With Retain Handling 1 only a new subscription brings the retained messages.",
        retain_handling_1_sends_for_new_ones,
        mqtt5="3.3.1-10",
    ),
    Case(
        "retain-handling-2",
        SEND,
        "With Retain Handling 2 a subscription brings no retained messages.",
        retain_handling_2_sends_nothing,
        mqtt5="3.3.1-11",
    ),
    Case(
        "retained-expires",
        SEND,
        "A retained message is not sent after its Message Expiry Interval.",
        retained_message_expires,
        mqtt5="3.3.2-5",
        is_slow=True,
    ),
    Case(
        "retained-with-the-time-left",
        SEND,
        "A retained message is sent with the time that is left to it.",
        retained_message_grows_old,
        mqtt5="3.3.2-6",
        is_slow=True,
    ),
    Case(
        "retained-dollar-topic-hidden",
        SEND,
        "A filter that begins with a wildcard gets no retained message of a topic with $ first.",
        retained_dollar_topic_hidden,
        mqtt311="4.7.2-1",
        mqtt5="4.7.2-1",
    ),
)

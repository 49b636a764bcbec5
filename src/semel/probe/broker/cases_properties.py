"""Cases about the properties of a message [3.3.2.3], which only 5.0 has."""

import asyncio
import time
from typing import Final

from semel.mqtt.packets.publish import Publish
from semel.mqtt.properties import Properties
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import (
    audience,
    connect_kept,
    leave,
    limits,
    listed,
    publish_claimed,
    require_qos,
    require_retain,
    require_subscription_identifiers,
    require_wildcards,
    resume,
    retained_removed,
    subscribe_at,
    usable_qos,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.verdicts import SEND

LARGEST_SUBSCRIPTION_IDENTIFIER: Final = 268_435_455
# A Message Expiry Interval in seconds, and a wait after which it has surely passed.
SHORT: Final = 1
AFTER_SHORT: Final = 2.6
LONG: Final = 600
WAIT: Final = 2.2


async def forwarded(trial: Trial, properties: bytes, payload: bytes = b"text") -> list[Properties]:
    """The properties with which a message reaches subscribers.

    They are one of each QoS, one that was away, and one that gets it as a retained message.
    """
    publisher = await trial.connect("pub")
    top = usable_qos(publisher, 2)
    with trial.control():
        await trial.publish(publisher, trial.topic("control"), b"without properties", qos=top)
    away = await connect_kept(trial, "away") if top else None
    if away is not None:
        await subscribe_at(trial, away, trial.topic(), 1)
        await leave(trial, away)
    links = [await trial.connect(f"q{qos}") for qos in range(top + 1)]
    for qos, link in enumerate(links):
        await subscribe_at(trial, link, trial.topic(), qos)
    retain = limits(publisher).retain_available != 0
    async with retained_removed(trial, trial.topic()):
        await publish_claimed(
            trial,
            publisher,
            trial.topic(),
            payload,
            qos=top,
            retain=retain,
            properties=properties,
        )
        if away is not None:
            links.append(await resume(trial, "away"))
        if retain:
            links.append(await trial.connect("late"))
            await trial.subscribe(links[-1], (trial.topic(), top))
        found = []
        for link in links:
            message = await trial.must_receive_message(link)
            with trial.control():
                trial.must(message.payload == payload, "the payload was changed")
            found.append(message.properties)
    return found


# --- forwarded unaltered ---


async def payload_format_indicator(trial: Trial) -> None:
    for found in await forwarded(trial, wire.byte_property(0x01, 1)):
        value = found.payload_format_indicator
        trial.must(value == 1, f"Payload Format Indicator 1 arrived as {value}")


async def payload_format_indicator_0(trial: Trial) -> None:
    """0 means the same as none, so that both are accepted."""
    for found in await forwarded(trial, wire.byte_property(0x01, 0), b"\xff\xfe"):
        value = found.payload_format_indicator
        trial.must(not value, f"Payload Format Indicator 0 arrived as {value}")


async def content_type(trial: Trial) -> None:
    for sent in ("text/plain; charset=UTF-8", "", "\ufeffÄ/*"):
        for found in await forwarded(trial, wire.text_property(0x03, sent.encode())):
            trial.must(found.content_type == sent, f"{sent!r} arrived as {found.content_type!r}")
        await end_links(trial)


async def response_topic(trial: Trial) -> None:
    for sent in (trial.topic("answer").decode(), "/", "$x/ 漢"):
        for found in await forwarded(trial, wire.text_property(0x08, sent.encode())):
            value = found.response_topic
            trial.must(value == sent, f"{sent!r} arrived as {value!r}")
        await end_links(trial)


async def correlation_data(trial: Trial) -> None:
    for sent in (b"\x00\x01\xff", b"", b"\xef\xbb\xbf", b"y" * 300):
        for found in await forwarded(trial, wire.text_property(0x09, sent)):
            value = found.correlation_data
            trial.must(value == sent, f"{len(sent)} bytes of Correlation Data were changed")
        await end_links(trial)


PAIRS: Final = (("b", "2"), ("a", "1"), ("b", "1"), ("b", "2"), ("", ""), ("\ufeff", "Ä 漢"))


def encoded_pairs() -> bytes:
    return b"".join(wire.user_property(name.encode(), value.encode()) for name, value in PAIRS)


async def user_properties(trial: Trial) -> None:
    for found in await forwarded(trial, encoded_pairs()):
        got = tuple(found.user_properties)
        trial.must(sorted(got) == sorted(PAIRS), f"the User Properties arrived as {got}")


async def user_properties_in_order(trial: Trial) -> None:
    for found in await forwarded(trial, encoded_pairs()):
        got = tuple(found.user_properties)
        if sorted(got) != sorted(PAIRS):
            trial.not_applicable("the broker did not forward all User Properties in this run")
        trial.must(got == PAIRS, f"the User Properties arrived in the order {got}")


async def properties_beside_each_other(trial: Trial) -> None:
    """The Content Type between other properties, and these around it."""
    sent = (
        wire.user_property(b"first", b"1")
        + wire.text_property(0x09, b"\x01\x02")
        + wire.text_property(0x03, b"text/plain")
        + wire.user_property(b"second", b"2")
        + wire.byte_property(0x01, 1)
    )
    for found in await forwarded(trial, sent):
        value = found.content_type
        trial.must(value == "text/plain", f"the Content Type arrived as {value!r}")


async def end_links(trial: Trial) -> None:
    """End all connections, so that their names can be used again."""
    for link in trial.links:
        if not link.is_closed:
            await leave(trial, link)


# --- Message Expiry Interval ---


async def expiry_is_forwarded_at_once(trial: Trial) -> None:
    for found in await forwarded(trial, wire.four_property(0x02, LONG)):
        left = found.message_expiry_interval
        if left is None:
            trial.refute("the Message Expiry Interval is lost")
        # The timeout is for a machine that is busy.
        is_near = LONG - 60 - 2 * trial.timeout <= left <= LONG
        trial.must(is_near, f"of {LONG} s {left} s are left at once")


async def expiry_counts_the_wait(trial: Trial) -> None:
    publisher, subscriber = await trial.connect("pub"), await connect_kept(trial, "kept")
    require_qos(trial, publisher, 1)
    await subscribe_at(trial, subscriber, trial.topic(), 1)
    await leave(trial, subscriber)
    before = time.monotonic()
    await trial.publish(
        publisher, trial.topic(), b"x", qos=1, properties=wire.four_property(0x02, LONG)
    )
    after = time.monotonic()
    await asyncio.sleep(WAIT)
    least = time.monotonic() - after
    subscriber = await resume(trial, "kept")
    message = await trial.must_receive_message(subscriber)
    most = time.monotonic() - before
    left = message.properties.message_expiry_interval
    if left is None:
        trial.refute("the Message Expiry Interval is lost")
    # A broker may round either way.
    waited = f"of {LONG} s {left} s are left after a wait of {least:.1f} s"
    trial.must(LONG - most - 1 <= left <= LONG - least + 1, waited)


async def expired_message_is_not_delivered(trial: Trial) -> None:
    publisher, subscriber = await trial.connect("pub"), await connect_kept(trial, "kept")
    require_qos(trial, publisher, 1)
    await subscribe_at(trial, subscriber, trial.topic(), 1)
    await leave(trial, subscriber)
    for payload, seconds in ((b"short", SHORT), (b"long", LONG)):
        expiry = wire.four_property(0x02, seconds)
        await trial.publish(publisher, trial.topic(), payload, qos=1, properties=expiry)
    await trial.publish(publisher, trial.topic(), b"endless", qos=1)
    await asyncio.sleep(AFTER_SHORT)
    subscriber = await resume(trial, "kept")
    found = await trial.messages_until(subscriber, trial.topic(), publisher, qos=1)
    got = [message.payload.decode() for message in found]
    trial.must("short" not in got, "a message was delivered after it had expired")
    trial.must(got == ["long", "endless"], f"delivered was {listed(got)} instead of long, endless")


async def expiry_of_what_the_quota_delays(trial: Trial) -> None:
    """A message that waits for a client's Receive Maximum was not sent yet, so that it expires."""
    publisher = await trial.connect("pub")
    require_qos(trial, publisher, 1)
    subscriber = await trial.connect("sub", properties=wire.two_property(0x21, 1))
    await subscribe_at(trial, subscriber, trial.topic(), 1)
    await trial.publish(publisher, trial.topic(), b"first", qos=1)
    with trial.control():
        first = await trial.must_receive_message(subscriber, acknowledge=False)
    expiry = wire.four_property(0x02, SHORT)
    await trial.publish(publisher, trial.topic(), b"short", qos=1, properties=expiry)
    await asyncio.sleep(AFTER_SHORT)
    await trial.acknowledge(subscriber, first)
    found = await trial.messages_until(subscriber, trial.topic(), publisher, qos=1)
    trial.must(not found, "a message was delivered after it had expired")


# --- Subscription Identifiers ---


async def identified_audience(
    trial: Trial, *entries: tuple[str, int]
) -> tuple[ProbeLink, ProbeLink, int]:
    """A subscriber with filters, each with a Subscription Identifier (0: none), and a publisher."""
    subscriber, publisher = await trial.connect("sub"), await trial.connect("pub")
    require_subscription_identifiers(trial, subscriber)
    qos = usable_qos(publisher, 1)
    for name, number in entries:
        if "+" in name or "#" in name:
            require_wildcards(trial, subscriber)
        properties = wire.subscription_identifier(number) if number else b""
        await subscribe_at(trial, subscriber, trial.topic(name), qos, properties=properties)
    return subscriber, publisher, qos


def identifiers(message: Publish) -> list[int]:
    return sorted(message.properties.subscription_identifiers)


async def subscription_identifier_is_sent(trial: Trial) -> None:
    for number in (1, 127, 128, 16_384, LARGEST_SUBSCRIPTION_IDENTIFIER):
        subscriber, publisher, qos = await identified_audience(trial, ("a", number))
        await trial.publish(publisher, trial.topic("a"), b"x", qos=qos)
        found = identifiers(await trial.must_receive_message(subscriber))
        trial.must(found == [number], f"Subscription Identifier {number} came as {listed(found)}")
        await end_links(trial)


async def no_identifier_is_invented(trial: Trial) -> None:
    subscriber, publisher, qos = await identified_audience(trial, ("a", 7), ("b", 0))
    await trial.publish(publisher, trial.topic("b"), b"x", qos=qos)
    found = identifiers(await trial.must_receive_message(subscriber))
    trial.must(not found, f"a subscription without an identifier brought {listed(found)}")


async def overlapping_copies(trial: Trial) -> list[list[int]]:
    """The identifiers of each copy of a message that the filters 1, 2 and 3 match, and 4 does not.

    One copy with all identifiers, and a copy for each filter: both are allowed.
    """
    subscriber, publisher, qos = await identified_audience(
        trial, ("a/b", 1), ("a/+", 2), ("a/#", 3), ("c", 4)
    )
    await trial.publish(publisher, trial.topic("a/b"), b"x", qos=qos)
    copies = [await trial.must_receive_message(subscriber)]
    copies += await trial.messages_until(subscriber, trial.topic("c"), publisher, qos=qos)
    return [identifiers(copy) for copy in copies]


async def one_copy_has_all_identifiers(trial: Trial) -> None:
    found = await overlapping_copies(trial)
    if len(found) > 1:
        trial.not_applicable("this broker sends a copy for each of several matching filters")
    trial.must(found == [[1, 2, 3]], f"a copy for the filters 1, 2, 3 has {listed(found[0])}")


async def each_copy_has_its_identifier(trial: Trial) -> None:
    found = await overlapping_copies(trial)
    if len(found) == 1:
        trial.not_applicable("this broker sends one copy for several matching filters")
    shown = listed(["+".join(str(number) for number in copy) or "none" for copy in found])
    trial.must(sorted(found) == [[1], [2], [3]], f"the copies have {shown}")


async def only_matching_identifiers(trial: Trial) -> None:
    found = [number for copy in await overlapping_copies(trial) for number in copy]
    wrong = set(found) - {1, 2, 3}
    trial.must(not wrong, f"the identifiers of other filters came: {listed(sorted(wrong))}")


async def one_identifier_for_several_filters(trial: Trial) -> None:
    subscriber, publisher = await trial.connect("sub"), await trial.connect("pub")
    require_subscription_identifiers(trial, subscriber)
    qos = usable_qos(publisher, 1)
    entries = [(trial.topic("a"), qos), (trial.topic("b"), qos)]
    await trial.subscribe(subscriber, *entries, properties=wire.subscription_identifier(9))
    for name, _ in entries:
        await trial.publish(publisher, name, b"x", qos=qos)
        found = identifiers(await trial.must_receive_message(subscriber))
        trial.must(found == [9], f"Subscription Identifier 9 came as {listed(found)}")


async def identifier_is_replaced(trial: Trial) -> None:
    subscriber, publisher, qos = await identified_audience(trial, ("a", 1), ("a", 2))
    await trial.publish(publisher, trial.topic("a"), b"x", qos=qos)
    found = identifiers(await trial.must_receive_message(subscriber))
    trial.must(found == [2], f"identifier 1 was replaced by 2, and {listed(found)} came")
    await subscribe_at(trial, subscriber, trial.topic("a"), qos)
    await trial.publish(publisher, trial.topic("a"), b"x", qos=qos)
    found = identifiers(await trial.must_receive_message(subscriber))
    trial.must(not found, f"the identifier was taken back, and {listed(found)} came")


async def retained_message_has_the_identifier(trial: Trial) -> None:
    publisher, subscriber = await trial.connect("pub"), await trial.connect("sub")
    require_retain(trial, publisher)
    require_subscription_identifiers(trial, subscriber)
    qos = usable_qos(publisher, 1)
    async with retained_removed(trial, trial.topic()):
        await trial.publish(publisher, trial.topic(), b"kept", qos=qos, retain=True)
        properties = wire.subscription_identifier(5)
        await subscribe_at(trial, subscriber, trial.topic(), qos, properties=properties)
        found = identifiers(await trial.must_receive_message(subscriber))
        trial.must(found == [5], f"a retained message came with {listed(found)} instead of 5")


async def waiting_message_has_the_identifier(trial: Trial) -> None:
    publisher, subscriber = await trial.connect("pub"), await connect_kept(trial, "kept")
    require_qos(trial, publisher, 1)
    require_subscription_identifiers(trial, subscriber)
    properties = wire.subscription_identifier(6)
    await subscribe_at(trial, subscriber, trial.topic(), 1, properties=properties)
    await leave(trial, subscriber)
    await trial.publish(publisher, trial.topic(), b"x", qos=1)
    subscriber = await resume(trial, "kept")
    found = identifiers(await trial.must_receive_message(subscriber))
    trial.must(found == [6], f"a message that had waited came with {listed(found)} instead of 6")


async def own_identifier_only(trial: Trial) -> None:
    """The identifier belongs to a session: another subscriber has its own."""
    subscriber, publisher = await audience(trial, trial.topic(), 1)
    other = await trial.connect("other")
    require_subscription_identifiers(trial, other)
    properties = wire.subscription_identifier(8)
    await subscribe_at(trial, other, trial.topic(), 1, properties=properties)
    await trial.publish(publisher, trial.topic(), b"x", qos=1)
    found = identifiers(await trial.must_receive_message(subscriber))
    trial.must(not found, f"a client without Subscription Identifiers got {listed(found)}")


CASES: Final = (
    Case(
        "payload-format-indicator",
        SEND,
        "The Payload Format Indicator is forwarded unaltered.",
        payload_format_indicator,
        mqtt5="3.3.2-4",
    ),
    Case(
        "payload-format-indicator-0",
        SEND,
        "Payload Format Indicator 0 is not forwarded as 1.",
        payload_format_indicator_0,
        mqtt5="3.3.2-4",
    ),
    Case(
        "content-type",
        SEND,
        "The Content Type is forwarded unaltered.",
        content_type,
        mqtt5="3.3.2-20",
    ),
    Case(
        "response-topic",
        SEND,
        "The Response Topic is forwarded unaltered.",
        response_topic,
        mqtt5="3.3.2-15",
    ),
    Case(
        "correlation-data",
        SEND,
        "The Correlation Data is forwarded unaltered.",
        correlation_data,
        mqtt5="3.3.2-16",
    ),
    Case(
        "user-properties",
        SEND,
        "User Properties are forwarded unaltered, each as often as it was sent.",
        user_properties,
        mqtt5="3.3.2-17",
    ),
    Case(
        "user-properties-in-order",
        SEND,
        "User Properties are forwarded in their order.",
        user_properties_in_order,
        mqtt5="3.3.2-18",
    ),
    Case(
        "content-type-beside-others",
        SEND,
        "The Content Type is forwarded unaltered between other properties.",
        properties_beside_each_other,
        mqtt5="3.3.2-20",
    ),
    Case(
        "expiry-at-once",
        SEND,
        "A message that did not wait is forwarded with its Message Expiry Interval.",
        expiry_is_forwarded_at_once,
        mqtt5="3.3.2-6",
    ),
    Case(
        "expiry-less-the-wait",
        SEND,
        "A message that waited is forwarded with the time that is left to it.",
        expiry_counts_the_wait,
        mqtt5="3.3.2-6",
        is_slow=True,
    ),
    Case(
        "expired-not-delivered",
        SEND,
        "A message that expired while it waited for a session is not delivered.",
        expired_message_is_not_delivered,
        mqtt5="3.3.2-5",
        is_slow=True,
    ),
    Case(
        "expired-while-waiting-for-quota",
        SEND,
        "A message that expired while it waited for the Receive Maximum is not delivered.",
        expiry_of_what_the_quota_delays,
        mqtt5="3.3.2-5",
        is_slow=True,
    ),
    Case(
        "subscription-identifier",
        SEND,
        "A message has the Subscription Identifier of the subscription that brought it.",
        subscription_identifier_is_sent,
        mqtt5="3.3.4-3",
    ),
    Case(
        "subscription-identifier-none",
        SEND,
        "A message has no Subscription Identifier that is not of its subscription.",
        no_identifier_is_invented,
        mqtt5="U5-60",
    ),
    Case(
        "subscription-identifiers-in-one-copy",
        SEND,
        "One copy for several filters has the Subscription Identifiers of all of them.",
        one_copy_has_all_identifiers,
        mqtt5="3.3.4-4 3.3.4-3",
    ),
    Case(
        "subscription-identifiers-of-copies",
        SEND,
        "Of several copies each has the Subscription Identifier of its own filter.",
        each_copy_has_its_identifier,
        mqtt5="3.3.4-5 3.3.4-3",
    ),
    Case(
        "subscription-identifiers-of-others",
        SEND,
        "No copy has the Subscription Identifier of a filter that does not match.",
        only_matching_identifiers,
        mqtt5="U5-60",
    ),
    Case(
        "subscription-identifier-of-several-filters",
        SEND,
        "The Subscription Identifier of a SUBSCRIBE is that of each of its filters.",
        one_identifier_for_several_filters,
        mqtt5="3.3.4-3",
    ),
    Case(
        "subscription-identifier-replaced",
        SEND,
        "A replaced subscription has the new Subscription Identifier, or none.",
        identifier_is_replaced,
        mqtt5="3.8.4-3",
    ),
    Case(
        "subscription-identifier-of-retained",
        SEND,
        "A retained message has the Subscription Identifier of the new subscription.",
        retained_message_has_the_identifier,
        mqtt5="3.3.4-3",
    ),
    Case(
        "subscription-identifier-after-a-wait",
        SEND,
        "A message that waited for a session has its Subscription Identifier.",
        waiting_message_has_the_identifier,
        mqtt5="3.3.4-3",
    ),
    Case(
        "subscription-identifier-of-one-session",
        SEND,
        "Each client gets the Subscription Identifiers of its own subscriptions.",
        own_identifier_only,
        mqtt5="U5-60",
    ),
)

"""Cases: wills, published when a connection ends without DISCONNECT, and only then [3.1.2.5]."""

from typing import Final

from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import subscribe_at
from semel.probe.broker.connect_steps import (
    connack_of,
    end_with,
    expect_refused,
    expiry,
    forget_retained,
    forget_session,
    leave,
    refused_connect,
    wait_gone,
    watch,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.broker.will_steps import (
    must_not_publish_will,
    must_publish_will,
)
from semel.probe.verdicts import RECEIVE, SEND

WITH_WILL: Final = 0x04
UNSPECIFIED_ERROR: Final = 0x80
LONG: Final = 300


def _check_qos(trial: Trial, link: ProbeLink, qos: int) -> None:
    maximum = connack_of(link).properties.maximum_qos
    if maximum is not None and qos > maximum:
        trial.not_applicable(f"the broker said Maximum QoS {maximum} in CONNACK")


# --- published ------------------------------------------------------------------------------------


async def lost_connection_publishes_the_will(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.connect(will=(topic, b"lost"))
    with trial.control():
        await trial.must_stay_open(link)
    await link.cut()
    message = await must_publish_will(trial, watcher, b"lost", "when the connection was lost")
    trial.must(message.topic_name.encode() == topic, f"its topic is {message.topic_name}")


async def close_without_disconnect_publishes_the_will(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.connect(will=(topic, b"closed"))
    with trial.control():
        await trial.must_stay_open(link)
    await link.close()
    await must_publish_will(trial, watcher, b"closed", "when the client closed without DISCONNECT")


async def protocol_error_publishes_the_will(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.connect(will=(topic, b"error"))
    with trial.control():
        await trial.must_stay_open(link)
    await link.send(wire.publish(trial.version, trial.topic(), qos=3))
    await wait_gone(link)
    await must_publish_will(
        trial, watcher, b"error", "when the broker closed for a PUBLISH of QoS 3"
    )


async def second_connect_publishes_the_will(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.connect(will=(topic, b"error"))
    with trial.control():
        await trial.must_stay_open(link)
    await link.send(trial.connect_bytes())
    await wait_gone(link)
    await must_publish_will(trial, watcher, b"error", "when the broker closed for a second CONNECT")


async def malformed_disconnect_publishes_the_will(trial: Trial) -> None:
    """A DISCONNECT with a reserved flag is none: the connection is closed for it."""
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.connect(will=(topic, b"malformed"))
    with trial.control():
        await trial.must_stay_open(link)
    await link.send(b"\xe1\x00")
    await wait_gone(link)
    await must_publish_will(trial, watcher, b"malformed", "after a DISCONNECT with a reserved flag")


async def disconnect_that_revives_publishes_the_will(trial: Trial) -> None:
    """[3.14.2.2.2] Such a DISCONNECT is not treated as a valid one."""
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.connect(will=(topic, b"revived"))
    with trial.control():
        await trial.must_stay_open(link)
    await link.send(wire.disconnect(trial.version, 0, expiry(60)))
    await wait_gone(link)
    await must_publish_will(
        trial, watcher, b"revived", "after a DISCONNECT whose Session Expiry Interval is an error"
    )


async def takeover_publishes_the_will(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.connect(will=(topic, b"taken over"))
    await trial.connect()
    with trial.control():
        await wait_gone(link)
    await must_publish_will(trial, watcher, b"taken over", "when another connection took over")


async def _publish_after_disconnect(trial: Trial, reason: int) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.connect(will=(topic, b"wanted"))
    with trial.control():
        await trial.must_stay_open(link)
    await end_with(link, wire.disconnect(trial.version, reason))
    await must_publish_will(trial, watcher, b"wanted", f"after DISCONNECT 0x{reason:02x}")


async def disconnect_with_will_publishes_it(trial: Trial) -> None:
    await _publish_after_disconnect(trial, WITH_WILL)


async def disconnect_with_an_error_publishes_the_will(trial: Trial) -> None:
    await _publish_after_disconnect(trial, UNSPECIFIED_ERROR)


async def will_has_its_qos(trial: Trial) -> None:
    for qos in (0, 1, 2):
        topic = trial.topic(f"will{qos}")
        watcher = await trial.connect("watch")
        _check_qos(trial, watcher, qos)
        await subscribe_at(trial, watcher, topic, 2)
        link = await trial.connect(will=(topic, b"will"), will_qos=qos)
        with trial.control():
            await trial.must_stay_open(link)
        await link.cut()
        message = await must_publish_will(trial, watcher, b"will", f"with QoS {qos}")
        trial.must(message.qos == qos, f"a will of QoS {qos} was published with {message.qos}")


async def empty_will_is_published(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.connect(will=(topic, b""))
    with trial.control():
        await trial.must_stay_open(link)
    await link.cut()
    await must_publish_will(trial, watcher, b"", "although its payload may be empty")


async def will_is_queued_for_a_session(trial: Trial) -> None:
    topic = trial.topic("will")
    session = await trial.connect_durable("session")
    try:
        await trial.subscribe(session, (topic, 1))
        _check_qos(trial, session, 1)
        await leave(trial, session)
        watcher = await watch(trial, topic)
        await trial.publish(await trial.connect("p"), topic, b"plain", qos=1)
        link = await trial.connect(will=(topic, b"queued"), will_qos=1)
        await link.cut()
        with trial.control():
            await trial.must_receive_message(watcher)
            await trial.must_receive_message(watcher)
        again = await trial.connect_durable("session")
        await trial.expect_message(again)
        await must_publish_will(trial, again, b"queued", "to a session whose client was away")
    finally:
        await forget_session(trial, "session")


async def retained_will_is_retained(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    if connack_of(watcher).properties.retain_available == 0:
        trial.not_applicable("the broker said in CONNACK that it retains no messages")
    link = await trial.connect(will=(topic, b"retained"), will_retain=True)
    try:
        await link.cut()
        with trial.control():
            await trial.must_receive_message(watcher)
        later = await trial.connect("later")
        await trial.subscribe(later, (topic, 0))
        message = await must_publish_will(trial, later, b"retained", "to a later subscriber")
        trial.must(message.retain, "the retained will came with RETAIN 0 to a new subscription")
    finally:
        await forget_retained(trial, topic)


async def ordinary_will_is_not_retained(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.connect(will=(topic, b"ordinary"))
    await link.cut()
    try:
        with trial.control():
            await trial.must_receive_message(watcher)
        later = await trial.connect("later")
        await trial.subscribe(later, (topic, 0))
        publisher = await trial.connect("p")
        found = await trial.messages_until(later, topic, publisher)
        trial.must(not found, "a will with Will Retain 0 was retained")
    finally:
        await forget_retained(trial, topic)


async def user_properties_of_a_will_keep_their_order(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    pairs = [("b", "1"), ("a", "2"), ("b", "0"), ("a", "2")]
    properties = b"".join(
        wire.user_property(name.encode(), value.encode()) for name, value in pairs
    )
    link = await trial.connect(will=(topic, b"will"), will_properties=properties)
    with trial.control():
        await trial.must_stay_open(link)
    await link.cut()
    message = await must_publish_will(trial, watcher, b"will", "with User Properties")
    found = list(message.properties.user_properties)
    trial.must(found == pairs, f"the User Properties are {found}, not {pairs}")


# --- not published --------------------------------------------------------------------------------


async def disconnect_discards_the_will(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.connect(will=(topic, b"discarded"))
    await leave(trial, link)
    await must_not_publish_will(trial, watcher, topic, "after DISCONNECT")


async def disconnect_with_code_0_discards_the_will(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.connect(will=(topic, b"discarded"))
    await end_with(link, wire.disconnect(trial.version, 0, b""))
    await must_not_publish_will(trial, watcher, topic, "after DISCONNECT 0x00")


async def discarded_will_does_not_return(trial: Trial) -> None:
    """A session that is kept must not keep the will that DISCONNECT has removed."""
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    kept = expiry(LONG) if trial.is_5 else b""
    link = await trial.connect(will=(topic, b"old"), clean=False, properties=kept)
    try:
        await leave(trial, link)
        again = await trial.connect_durable()
        await again.cut()
        await must_not_publish_will(trial, watcher, topic, "when a later connection was lost")
    finally:
        await forget_session(trial)


async def will_is_published_once(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    kept = expiry(LONG) if trial.is_5 else b""
    link = await trial.connect(will=(topic, b"once"), clean=False, properties=kept)
    try:
        await link.cut()
        with trial.control():
            await trial.must_receive_message(watcher)
        again = await trial.connect_durable()
        await again.cut()
        await must_not_publish_will(trial, watcher, topic, "again when a later connection was lost")
    finally:
        await forget_session(trial)


async def connection_without_will_publishes_none(trial: Trial) -> None:
    """The later connection has taken the place of one with a will."""
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.connect(will=(topic, b"earlier"))
    with trial.control():
        await trial.must_stay_open(link)
    await leave(trial, link)
    later = await trial.connect()
    await later.cut()
    await must_not_publish_will(trial, watcher, topic, "of a connection that had none")


async def refused_connect_has_no_will(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await trial.open()
    await link.send(refused_connect(trial, will=(topic, b"refused")))
    await expect_refused(link)
    await must_not_publish_will(trial, watcher, topic, "of a CONNECT that was refused")


CASES: Final = (
    Case(
        "will-lost-connection",
        SEND,
        "A broker publishes the will when the connection is lost.",
        lost_connection_publishes_the_will,
        mqtt311="3.1.2-8",
        mqtt5="3.1.2-7 3.1.2-8",
    ),
    Case(
        "will-close-without-disconnect",
        SEND,
        "A broker publishes the will when the client closes the connection without DISCONNECT.",
        close_without_disconnect_publishes_the_will,
        mqtt311="3.1.2-8",
        mqtt5="3.1.2-7 3.1.2-8",
    ),
    Case(
        "will-protocol-error",
        SEND,
        "A broker publishes the will when it closes the connection for a protocol error.",
        protocol_error_publishes_the_will,
        mqtt311="3.1.2-8",
        mqtt5="3.1.2-8",
    ),
    Case(
        "will-second-connect",
        SEND,
        "A broker publishes the will when it closes the connection for a second CONNECT.",
        second_connect_publishes_the_will,
        mqtt311="3.1.2-8",
        mqtt5="3.1.2-8",
    ),
    Case(
        "will-malformed-disconnect",
        RECEIVE,
        "A broker publishes the will after a DISCONNECT with a reserved flag, for which it closes.",
        malformed_disconnect_publishes_the_will,
        mqtt311="3.1.2-8 3.14.1-1",
        mqtt5="3.1.2-8 3.14.1-1",
    ),
    Case(
        "will-disconnect-revives-no-session",
        RECEIVE,
        "A broker publishes the will after a DISCONNECT that is an error, as it counts for none.",
        disconnect_that_revives_publishes_the_will,
        mqtt5="3.1.2-8 U5-70",
    ),
    Case(
        "will-takeover",
        SEND,
        "A broker publishes the will of a connection that another one takes over.",
        takeover_publishes_the_will,
        mqtt311="3.1.2-8",
        mqtt5="3.1.2-8",
    ),
    Case(
        "will-disconnect-with-will",
        SEND,
        "A broker publishes the will after DISCONNECT 0x04 (with Will Message).",
        disconnect_with_will_publishes_it,
        mqtt5="3.1.2-8",
    ),
    Case(
        "will-disconnect-with-an-error",
        SEND,
        "A broker publishes the will after DISCONNECT 0x80: only 0x00 removes it.",
        disconnect_with_an_error_publishes_the_will,
        mqtt5="3.1.2-8",
    ),
    Case(
        "will-qos",
        SEND,
        "A broker publishes the will with its Will QoS.",
        will_has_its_qos,
        mqtt311="3.1.2-8",
        mqtt5="3.1.2-8",
    ),
    Case(
        "will-empty",
        SEND,
        "A broker publishes a will without a payload.",
        empty_will_is_published,
        mqtt311="3.1.2-8",
        mqtt5="3.1.2-8",
    ),
    Case(
        "will-is-queued",
        SEND,
        "A broker queues a QoS 1 will for a session whose client is away.",
        will_is_queued_for_a_session,
        mqtt311="3.1.2-5 3.1.2-8",
        mqtt5="3.1.2-8 4.5.0-1",
    ),
    Case(
        "will-retain-1",
        SEND,
        "A broker retains a will with Will Retain 1.",
        retained_will_is_retained,
        mqtt311="3.1.2-17",
        mqtt5="3.1.2-15",
    ),
    Case(
        "will-retain-0",
        SEND,
        "A broker does not retain a will with Will Retain 0.",
        ordinary_will_is_not_retained,
        mqtt311="3.1.2-16",
        mqtt5="3.1.2-14",
    ),
    Case(
        "will-user-properties",
        SEND,
        "A broker keeps the order of the User Properties of a will.",
        user_properties_of_a_will_keep_their_order,
        mqtt5="3.1.3-10",
    ),
    Case(
        "will-disconnect",
        SEND,
        "A broker publishes no will after DISCONNECT.",
        disconnect_discards_the_will,
        mqtt311="3.1.2-8 3.1.2-10 3.14.4-3",
        mqtt5="3.1.2-8 3.1.2-10 3.14.4-3",
    ),
    Case(
        "will-disconnect-code-0",
        SEND,
        "A broker publishes no will after a DISCONNECT in its long form with code 0x00.",
        disconnect_with_code_0_discards_the_will,
        mqtt5="3.1.2-8 3.1.2-10 3.14.4-3",
    ),
    Case(
        "will-discarded-does-not-return",
        SEND,
        "A broker publishes a will that DISCONNECT removed on no later connection.",
        discarded_will_does_not_return,
        mqtt311="3.1.2-10 3.1.2-12",
        mqtt5="3.1.2-10",
    ),
    Case(
        "will-published-once",
        SEND,
        "A broker publishes a will once.",
        will_is_published_once,
        mqtt311="3.1.2-10 3.1.2-12",
        mqtt5="3.1.2-10",
    ),
    Case(
        "will-none",
        SEND,
        "A broker publishes nothing for a connection without a will.",
        connection_without_will_publishes_none,
        mqtt311="3.1.2-12",
        mqtt5="3.1.2-10",
    ),
    Case(
        "will-refused-connect",
        SEND,
        "A broker publishes no will of a CONNECT that it has refused.",
        refused_connect_has_no_will,
        mqtt311="3.1.2-8 3.1.4-5",
        mqtt5="3.1.2-7",
    ),
)

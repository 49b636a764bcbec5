"""Cases: sessions, which are kept, resumed, taken over and ended [3.1.2.4, 3.1.4, 4.1]."""

from typing import Final

from semel.mqtt.packet_types import CONNACK, DISCONNECT
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.disconnect import Disconnect
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import subscribe_at
from semel.probe.broker.connect_steps import (
    connack_of,
    end_with,
    expiry,
    forget_retained,
    forget_session,
    leave,
    must_be_gone,
    must_be_resumed,
    pause,
    wait_gone,
    watch,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.claims import ClaimArguable
from semel.probe.verdicts import RECEIVE, SEND

SESSION_TAKEN_OVER: Final = 0x8E
NEVER: Final = 0xFFFFFFFF


def _check_expiry(trial: Trial, link: ProbeLink, wanted: int) -> None:
    """End the case if the broker has set another Session Expiry Interval [3.2.2.3.2]."""
    given = connack_of(link).properties.session_expiry_interval
    if given is not None and given != wanted:
        trial.not_applicable(f"the broker set the Session Expiry Interval to {given} s in CONNACK")


async def _subscribed_session(trial: Trial, topic: bytes, *, qos: int = 1) -> ProbeLink:
    """A durable session of the client "a" with a subscription."""
    link = await trial.connect_durable()
    await subscribe_at(trial, link, topic, qos)
    return link


# --- kept and resumed -----------------------------------------------------------------------------


async def _resumes(trial: Trial, *, in_order: bool) -> None:
    topic = trial.topic()
    link = await _subscribed_session(trial, topic)
    try:
        if in_order:
            await leave(trial, link)
        else:
            await link.cut()
        again = await trial.connect_durable()
        publisher = await trial.connect("p")
        with trial.control():
            other = await trial.connect("o")
            await trial.subscribe(other, (topic, 1))
        await trial.publish(publisher, topic, b"after the return", qos=1)
        with trial.control():
            await trial.must_receive_message(other)
        message = await trial.must_receive_message(again)
        trial.must(message.payload == b"after the return", "another message was delivered")
    finally:
        await forget_session(trial)


async def subscription_outlives_a_disconnect(trial: Trial) -> None:
    await _resumes(trial, in_order=True)


async def subscription_outlives_a_lost_connection(trial: Trial) -> None:
    await _resumes(trial, in_order=False)


async def messages_are_queued_for_a_client_that_is_away(trial: Trial) -> None:
    topic = trial.topic()
    link = await _subscribed_session(trial, topic, qos=2)
    try:
        publisher = await trial.connect("p")
        with trial.control():
            await trial.publish(publisher, topic, b"present", qos=1)
            await trial.must_receive_message(link)
        await leave(trial, link)
        await trial.publish(publisher, topic, b"QoS 1", qos=1)
        await trial.publish(publisher, topic, b"QoS 2", qos=2)
        again = await trial.connect_durable()
        found = {}
        for _ in range(2):
            message = await trial.must_receive_message(again)
            found[message.payload] = message.qos
        wanted = {b"QoS 1": 1, b"QoS 2": 2}
        trial.must(found == wanted, "the messages of both QoS did not come with their QoS")
        more = await trial.messages_until(again, topic, publisher, qos=1)
        trial.must(not more, "queued messages came twice")
    finally:
        await forget_session(trial)


async def queue_keeps_the_order(trial: Trial) -> None:
    topic = trial.topic()
    link = await _subscribed_session(trial, topic)
    try:
        await leave(trial, link)
        publisher = await trial.connect("p")
        wanted = [b"%d" % number for number in range(10)]
        for payload in wanted:
            await trial.publish(publisher, topic, payload, qos=1)
        again = await trial.connect_durable()
        found = [(await trial.expect_message(again)).payload for _ in wanted]
        trial.must(found == wanted, f"the order is {b' '.join(found).decode()}")
    finally:
        await forget_session(trial)


async def session_present_if_there_is_one(trial: Trial) -> None:
    link = await trial.connect_durable()
    try:
        await leave(trial, link)
        again = await trial.connect_durable()
        trial.must(connack_of(again).session_present, "Session Present is 0 for a stored session")
    finally:
        await forget_session(trial)


async def no_session_present_if_there_is_none(trial: Trial) -> None:
    link = await trial.connect_durable()
    try:
        trial.must(
            not connack_of(link).session_present, "Session Present is 1 for a new client identifier"
        )
        await leave(trial, link)
        await leave(trial, await trial.connect(clean=True))
        later = await trial.connect_durable()
        trial.must(
            not connack_of(later).session_present,
            "Session Present is 1 after a clean session had replaced the session",
        )
    finally:
        await forget_session(trial)


async def new_session_is_created(trial: Trial) -> None:
    """[5.0 3.1.2-6] With Clean Start 0 and no session, a subscription can be made."""
    topic = trial.topic()
    link = await trial.open()
    await link.send(trial.connect_bytes(clean=False))
    packet = await trial.must_receive(link, CONNACK)
    assert isinstance(packet, ConnAck)
    trial.must(packet.reason == 0, f"the CONNECT was refused: 0x{packet.reason:02x}")
    await trial.subscribe(link, (topic, 0))
    publisher = await trial.connect("p")
    await trial.publish(publisher, topic)
    await trial.must_receive_message(link)


async def no_session_present_with_a_clean_start(trial: Trial) -> None:
    topic = trial.topic()
    link = await _subscribed_session(trial, topic)
    try:
        await leave(trial, link)
        with trial.control():
            again = await trial.connect_durable()
            await must_be_resumed(trial, again, topic, "before the case")
            await leave(trial, again)
        fresh = await trial.connect_durable(clean=True)
        trial.must(
            not connack_of(fresh).session_present, "Session Present is 1 with a clean session"
        )
    finally:
        await forget_session(trial)


async def sessions_are_those_of_their_client_id(trial: Trial) -> None:
    topic = trial.topic()
    link = await _subscribed_session(trial, topic)
    try:
        await leave(trial, link)
        publisher = await trial.connect("p")
        await trial.publish(publisher, topic, b"for a", qos=1)
        other = await trial.connect_durable("b")
        own = trial.topic("b")
        await trial.subscribe(other, (own, 1))
        found = await trial.messages_until(other, own, publisher, qos=1)
        trial.must(not found, "another client was sent the messages of this session")
        with trial.control():
            again = await trial.connect_durable()
            await trial.must_receive_message(again)
    finally:
        await forget_session(trial)
        await forget_session(trial, "b")


# --- started anew ---------------------------------------------------------------------------------


async def clean_start_discards_the_session(trial: Trial) -> None:
    topic, own = trial.topic(), trial.topic("own")
    link = await _subscribed_session(trial, topic)
    try:
        await leave(trial, link)
        publisher = await trial.connect("p")
        await trial.publish(publisher, topic, b"queued", qos=1)
        fresh = await trial.connect(clean=True)
        await trial.subscribe(fresh, (own, 1))
        with trial.control():
            other = await trial.connect("o")
            await trial.subscribe(other, (topic, 1))
        await trial.publish(publisher, topic, b"live", qos=1)
        with trial.control():
            await trial.must_receive_message(other)
        found = await trial.messages_until(fresh, own, publisher, qos=1)
        what = ", ".join(message.payload.decode() for message in found)
        trial.must(not found, f"messages of the discarded session were delivered: {what}")
    finally:
        await forget_session(trial)


async def discarded_session_does_not_return(trial: Trial) -> None:
    topic = trial.topic()
    link = await _subscribed_session(trial, topic)
    try:
        await leave(trial, link)
        with trial.control():
            again = await trial.connect_durable()
            await must_be_resumed(trial, again, topic, "before the case")
            await leave(trial, again)
        await leave(trial, await trial.connect(clean=True))
        later = await trial.connect_durable()
        await must_be_gone(trial, later, topic, "after a clean session had replaced it")
    finally:
        await forget_session(trial)


async def clean_session_ends_with_its_connection(trial: Trial) -> None:
    topic = trial.topic()
    link = await trial.connect(clean=True)
    try:
        await trial.subscribe(link, (topic, 1))
        publisher = await trial.connect("p")
        with trial.control():
            await trial.publish(publisher, topic, b"present", qos=1)
            await trial.must_receive_message(link)
        await leave(trial, link)
        await trial.publish(publisher, topic, b"away", qos=1)
        later = await trial.connect_durable()
        await must_be_gone(trial, later, topic, "although it ended with its connection")
    finally:
        await forget_session(trial)


async def retained_message_outlives_its_session(trial: Trial) -> None:
    topic = trial.topic()
    publisher = await trial.connect("p")
    try:
        await trial.publish(publisher, topic, b"retained", qos=1, retain=True)
        with trial.control():
            await trial.must_receive_message(await watch(trial, topic))
        await leave(trial, publisher)
        await leave(trial, await trial.connect("p"))
        later = await trial.connect("later")
        await trial.subscribe(later, (topic, 0))
        message = await trial.must_receive_message(later)
        trial.must(message.payload == b"retained", "another message is retained")
    finally:
        await forget_retained(trial, topic)


# --- taken over -----------------------------------------------------------------------------------


async def takeover_closes_the_older_connection(trial: Trial) -> None:
    first = await trial.connect()
    with trial.control():
        await trial.must_stay_open(first)
    second = await trial.connect()
    await trial.must_refuse(first, allowed=(DISCONNECT,) if trial.is_5 else ())
    await trial.must_stay_open(second, " after it had taken over")
    if not trial.is_5:
        return
    last = await first.wait_for(DISCONNECT, 0)
    if not isinstance(last, Disconnect):
        raise ClaimArguable(
            "the older connection was closed without DISCONNECT 0x8E: the statement says that the"
            " server sends it, but only that it closes is a MUST"
        )
    trial.must(
        last.reason == SESSION_TAKEN_OVER,
        f"the DISCONNECT has the code 0x{last.reason:02x}, not 0x8e (Session taken over)",
    )


async def takeover_keeps_the_session(trial: Trial) -> None:
    topic = trial.topic()
    first = await _subscribed_session(trial, topic)
    try:
        second = await trial.connect_durable()
        with trial.control():
            await wait_gone(first)
        await must_be_resumed(trial, second, topic, "after a takeover")
    finally:
        await forget_session(trial)


async def takeover_does_not_touch_others(trial: Trial) -> None:
    other = await trial.connect("other")
    first = await trial.connect()
    await trial.connect()
    with trial.control():
        await wait_gone(first)
    await trial.must_stay_open(other, " when another client was taken over")


# --- time -----------------------------------------------------------------------------------------


async def session_lives_as_long_as_its_connection(trial: Trial) -> None:
    """The interval counts from the end of the connection, not from its beginning."""
    topic = trial.topic()
    properties = expiry(1) if trial.is_5 else b""
    link = await trial.connect(properties=properties)
    await trial.subscribe(link, (topic, 1))
    publisher = await trial.connect("p")
    with trial.control():
        await trial.publish(publisher, topic, b"early", qos=1)
        await trial.must_receive_message(link)
    await pause(trial, 3.0, "the connection stays open")
    await trial.publish(publisher, topic, b"late", qos=1)
    await trial.must_receive_message(link)


async def _expired_session(trial: Trial, topic: bytes) -> ProbeLink:
    """A connection to a client identifier whose session has expired."""
    link = await trial.connect(clean=False, properties=expiry(1))
    _check_expiry(trial, link, 1)
    await trial.subscribe(link, (topic, 1))
    with trial.control():
        again = await trial.connect(clean=False, properties=expiry(1))
        await must_be_resumed(trial, again, topic, "within the Session Expiry Interval")
    await leave(trial, again)
    await pause(trial, 3.0, "the Session Expiry Interval is 1 s")
    return await trial.connect(clean=False)


async def session_ends_after_its_expiry_interval(trial: Trial) -> None:
    topic = trial.topic()
    later = await _expired_session(trial, topic)
    await must_be_gone(trial, later, topic, "3 s after its connection, the interval was 1 s")


async def no_session_present_after_the_expiry_interval(trial: Trial) -> None:
    later = await _expired_session(trial, trial.topic())
    trial.must(
        not connack_of(later).session_present,
        "Session Present is 1, 3 s after the connection whose Session Expiry Interval was 1 s",
    )


async def session_is_kept_within_its_expiry_interval(trial: Trial) -> None:
    topic = trial.topic()
    link = await trial.connect(clean=False, properties=expiry(60))
    _check_expiry(trial, link, 60)
    await trial.subscribe(link, (topic, 1))
    await leave(trial, link)
    await pause(trial, 2.5, "the Session Expiry Interval is 60 s")
    later = await trial.connect(clean=False)
    await must_be_resumed(trial, later, topic, "2.5 s after its connection, the interval was 60 s")


async def session_that_never_expires_is_kept(trial: Trial) -> None:
    topic = trial.topic()
    link = await trial.connect(clean=False, properties=expiry(NEVER))
    given = connack_of(link).properties.session_expiry_interval
    if given is not None and given < 60:
        trial.not_applicable(f"the broker set the Session Expiry Interval to {given} s in CONNACK")
    await trial.subscribe(link, (topic, 1))
    await leave(trial, link)
    later = await trial.connect(clean=False)
    await must_be_resumed(trial, later, topic, "although its interval was 0xFFFFFFFF (never)")


async def clean_start_with_an_expiry_interval_is_kept(trial: Trial) -> None:
    """Clean Start says how a session begins, not how it ends."""
    topic = trial.topic()
    link = await trial.connect(clean=True, properties=expiry(60))
    _check_expiry(trial, link, 60)
    await trial.subscribe(link, (topic, 1))
    await leave(trial, link)
    publisher = await trial.connect("p")
    await trial.publish(publisher, topic, b"queued", qos=1)
    later = await trial.connect(clean=False)
    await trial.must_receive_message(later)


async def session_without_an_expiry_interval_ends(trial: Trial) -> None:
    topic = trial.topic()
    link = await trial.connect(clean=False, properties=expiry(60))
    await trial.subscribe(link, (topic, 1))
    await leave(trial, link)
    with trial.control():
        again = await trial.connect(clean=False)
        await must_be_resumed(trial, again, topic, "within the Session Expiry Interval")
    await leave(trial, again)
    later = await trial.connect(clean=False)
    await must_be_gone(trial, later, topic, "although the last CONNECT had no interval")


async def disconnect_can_end_the_session(trial: Trial) -> None:
    topic = trial.topic()
    link = await trial.connect(clean=False, properties=expiry(60))
    await trial.subscribe(link, (topic, 1))
    await leave(trial, link)
    with trial.control():
        again = await trial.connect(clean=False, properties=expiry(60))
        await must_be_resumed(trial, again, topic, "within the Session Expiry Interval")
    await end_with(again, wire.disconnect(trial.version, 0, expiry(0)))
    later = await trial.connect(clean=False)
    await must_be_gone(trial, later, topic, "after a DISCONNECT with Session Expiry Interval 0")


async def disconnect_can_prolong_the_session(trial: Trial) -> None:
    topic = trial.topic()
    link = await trial.connect(clean=False, properties=expiry(1))
    _check_expiry(trial, link, 1)
    await trial.subscribe(link, (topic, 1))
    await end_with(link, wire.disconnect(trial.version, 0, expiry(60)))
    await pause(trial, 3.0, "DISCONNECT has changed the interval of 1 s to 60 s")
    later = await trial.connect(clean=False)
    await must_be_resumed(trial, later, topic, "although DISCONNECT had set an interval of 60 s")


async def disconnect_can_not_revive_a_session(trial: Trial) -> None:
    topic = trial.topic()
    with trial.control():
        right = await trial.connect("c", properties=expiry(60))
        await trial.subscribe(right, (topic, 1))
        await end_with(right, wire.disconnect(trial.version, 0, expiry(30)))
        later = await trial.connect("c", clean=False)
        await must_be_resumed(trial, later, topic, "after a right DISCONNECT")
    link = await trial.connect(clean=False, properties=expiry(0))
    await trial.subscribe(link, (topic, 1))
    await link.send(wire.disconnect(trial.version, 0, expiry(60)))
    await trial.must_refuse(link)
    later = await trial.connect(clean=False)
    await must_be_gone(trial, later, topic, "although its interval in CONNECT was 0")


CASES: Final = (
    Case(
        "session-outlives-a-disconnect",
        SEND,
        "A broker keeps the subscriptions of a session after DISCONNECT.",
        subscription_outlives_a_disconnect,
        mqtt311="3.1.2-4 3.1.4-3 4.1.0-1",
        mqtt5="3.1.2-5 3.1.2-23 3.1.4-4",
    ),
    Case(
        "session-outlives-a-lost-connection",
        SEND,
        "A broker keeps the subscriptions of a session after its connection was lost.",
        subscription_outlives_a_lost_connection,
        mqtt311="3.1.2-4 3.1.4-3 4.1.0-1",
        mqtt5="3.1.2-5 3.1.2-23 3.1.4-4",
    ),
    Case(
        "messages-are-queued",
        SEND,
        "A broker queues QoS 1 and 2 messages for a client that is away.",
        messages_are_queued_for_a_client_that_is_away,
        mqtt311="3.1.2-5 4.1.0-1",
        mqtt5="3.1.2-5 3.1.2-23 4.5.0-1",
    ),
    Case(
        "queue-keeps-the-order",
        SEND,
        "A broker delivers queued messages of one topic in order.",
        queue_keeps_the_order,
        mqtt311="3.1.2-5 4.6.0-6",
        mqtt5="3.1.2-5 4.6.0-6",
    ),
    Case(
        "session-present-1",
        SEND,
        "A CONNACK has Session Present 1 if there is a session.",
        session_present_if_there_is_one,
        mqtt311="3.2.2-2",
        mqtt5="3.2.2-3",
    ),
    Case(
        "session-present-0",
        SEND,
        "A CONNACK has Session Present 0 if there is no session.",
        no_session_present_if_there_is_none,
        mqtt311="3.2.2-3",
        mqtt5="3.2.2-3",
    ),
    Case(
        "new-session-is-created",
        SEND,
        "A broker creates a session for Clean Start 0 if there is none.",
        new_session_is_created,
        mqtt311="3.1.2-4",
        mqtt5="3.1.2-6 3.1.4-4",
    ),
    Case(
        "session-present-0-with-clean-start",
        SEND,
        "A CONNACK has Session Present 0 if the client wants a clean session.",
        no_session_present_with_a_clean_start,
        mqtt311="3.2.2-1",
        mqtt5="3.2.2-2",
    ),
    Case(
        "session-of-its-client-id",
        SEND,
        "A broker gives a session to no client with another client identifier.",
        sessions_are_those_of_their_client_id,
        mqtt311="3.1.3-2",
        mqtt5="3.1.3-2",
    ),
    Case(
        "clean-start-discards-the-session",
        SEND,
        "A broker discards subscriptions and queued messages for a clean session.",
        clean_start_discards_the_session,
        mqtt311="3.1.2-6 3.1.4-3",
        mqtt5="3.1.2-4 3.1.4-4",
    ),
    Case(
        "discarded-session-does-not-return",
        SEND,
        "A broker does not bring back a session that a clean one has replaced.",
        discarded_session_does_not_return,
        mqtt311="3.1.2-6 3.1.4-3",
        mqtt5="3.1.2-4 3.1.4-4",
    ),
    Case(
        "clean-session-ends",
        SEND,
        "A broker uses the state of a clean session in no later session.",
        clean_session_ends_with_its_connection,
        mqtt311="3.1.2-6",
        mqtt5="4.1.0-2",
    ),
    Case(
        "retained-message-outlives-its-session",
        SEND,
        "A broker keeps a retained message when the session of its publisher ends.",
        retained_message_outlives_its_session,
        mqtt311="3.1.2-7",
        mqtt5="3.3.1-5",
    ),
    Case(
        "takeover-closes-the-older-connection",
        SEND,
        "A broker closes the older of two connections with the same client identifier.",
        takeover_closes_the_older_connection,
        mqtt311="3.1.4-2",
        mqtt5="3.1.4-3",
    ),
    Case(
        "takeover-keeps-the-session",
        SEND,
        "A broker keeps the session when its client comes with a new connection.",
        takeover_keeps_the_session,
        mqtt311="3.1.2-4",
        mqtt5="3.1.2-5",
    ),
    Case(
        "takeover-does-not-touch-others",
        RECEIVE,
        "A takeover closes no connection of another client.",
        takeover_does_not_touch_others,
        mqtt311="3.1.4-2",
        mqtt5="3.1.4-3",
    ),
    Case(
        "session-lives-with-its-connection",
        SEND,
        "A broker discards no session while its connection is open.",
        session_lives_as_long_as_its_connection,
        mqtt311="4.1.0-2",
        mqtt5="4.1.0-1",
        is_slow=True,
    ),
    Case(
        "session-expires",
        SEND,
        "A broker discards a session when its Session Expiry Interval has passed.",
        session_ends_after_its_expiry_interval,
        mqtt5="4.1.0-2",
        is_slow=True,
    ),
    Case(
        "session-present-0-after-expiry",
        SEND,
        "A CONNACK has Session Present 0 when the Session Expiry Interval has passed.",
        no_session_present_after_the_expiry_interval,
        mqtt5="3.2.2-3",
        is_slow=True,
    ),
    Case(
        "session-does-not-expire-early",
        SEND,
        "A broker keeps a session until its Session Expiry Interval has passed.",
        session_is_kept_within_its_expiry_interval,
        mqtt5="3.1.2-23",
        is_slow=True,
    ),
    Case(
        "session-that-never-expires",
        SEND,
        "A broker keeps a session whose Session Expiry Interval is 0xFFFFFFFF.",
        session_that_never_expires_is_kept,
        mqtt5="3.1.2-23",
    ),
    Case(
        "clean-start-with-an-expiry-interval",
        SEND,
        "A broker keeps a session that began with Clean Start 1 for its Session Expiry Interval.",
        clean_start_with_an_expiry_interval_is_kept,
        mqtt5="3.1.2-23",
    ),
    Case(
        "session-without-an-expiry-interval",
        SEND,
        "A broker ends a session with the connection whose CONNECT had no Session Expiry Interval.",
        session_without_an_expiry_interval_ends,
        mqtt5="4.1.0-2",
    ),
    Case(
        "disconnect-ends-the-session",
        SEND,
        "A broker ends a session for a DISCONNECT with Session Expiry Interval 0.",
        disconnect_can_end_the_session,
        mqtt5="4.1.0-2",
    ),
    Case(
        "disconnect-prolongs-the-session",
        SEND,
        "A broker keeps a session for the Session Expiry Interval of its DISCONNECT.",
        disconnect_can_prolong_the_session,
        mqtt5="3.1.2-23",
        is_slow=True,
    ),
    Case(
        "disconnect-revives-no-session",
        RECEIVE,
        "A DISCONNECT does not keep a session whose interval in CONNECT was 0.",
        disconnect_can_not_revive_a_session,
        mqtt5="U5-70",
    ),
)

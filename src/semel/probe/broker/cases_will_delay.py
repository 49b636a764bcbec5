"""Cases: the Will Delay Interval of 5.0, and what ends it early [3.1.2.5, 3.1.3.2.2]."""

import time
from typing import Final

from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.connect_steps import (
    connack_of,
    end_with,
    expiry,
    forget_session,
    leave,
    pause,
    wait_gone,
    watch,
    will_delay,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.broker.will_steps import (
    must_not_publish_will,
    must_publish_will,
    published_before_control,
)
from semel.probe.claims import ClaimArguable
from semel.probe.verdicts import SEND

WITH_WILL: Final = 0x04
LONG: Final = 300


async def _connect_with_delay(
    trial: Trial, topic: bytes, payload: bytes, *, delay: int, kept: int, name: str = "a"
) -> ProbeLink:
    link = await trial.connect(
        name,
        clean=False,
        properties=expiry(kept),
        will=(topic, payload),
        will_properties=will_delay(delay),
    )
    given = connack_of(link).properties.session_expiry_interval
    if given is not None and given != kept:
        trial.not_applicable(f"the broker set the Session Expiry Interval to {given} s in CONNACK")
    return link


async def will_is_delayed(trial: Trial) -> None:
    """A clock of whole seconds is granted: two of the three seconds must have passed."""
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await _connect_with_delay(trial, topic, b"delayed", delay=3, kept=LONG)
    try:
        with trial.control():
            await trial.must_stay_open(link)
        began = time.monotonic()
        await link.cut()
        await pause(trial, 2.0, "the Will Delay Interval is 3 s")
        if watcher.inbox:
            trial.refute("the will was published 2 s after the connection, 3 s were to pass")
        message = await trial.message(watcher)
        after = time.monotonic() - began
        trial.must(message is not None, f"the will was not published within {after:.1f} s")
    finally:
        await forget_session(trial)


async def return_within_the_delay_stops_the_will(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await _connect_with_delay(trial, topic, b"returned", delay=2, kept=LONG)
    other = await _connect_with_delay(trial, topic, b"stayed away", delay=2, kept=LONG, name="b")
    try:
        await link.cut()
        await other.cut()
        again = await trial.connect(clean=False, properties=expiry(LONG))
        await pause(trial, 3.0, "the Will Delay Interval is 2 s")
        with trial.control():
            await trial.must_stay_open(again)
            first = await trial.must_receive_message(watcher)
        found = [first, *await published_before_control(trial, watcher, topic)]
        payloads = [message.payload for message in found]
        with trial.control():
            trial.must(b"stayed away" in payloads, "the delayed will of another client is missing")
        trial.must(
            b"returned" not in payloads, "the will was published although its client was back"
        )
    finally:
        await forget_session(trial)
        await forget_session(trial, "b")


async def takeover_within_the_delay_stops_the_will(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await _connect_with_delay(trial, topic, b"returned", delay=LONG, kept=LONG)
    try:
        again = await trial.connect(clean=False, properties=expiry(LONG))
        with trial.control():
            await wait_gone(link)
            await trial.must_stay_open(again)
        await must_not_publish_will(trial, watcher, topic, "although its session was taken over")
    finally:
        await forget_session(trial)


async def end_of_the_session_ends_the_delay(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await _connect_with_delay(trial, topic, b"session expired", delay=LONG, kept=1)
    with trial.control():
        await trial.must_stay_open(link)
    await link.cut()
    why = "when its session ended, before the Will Delay Interval"
    await pause(trial, 1.0, "the Session Expiry Interval is 1 s")
    await must_publish_will(trial, watcher, b"session expired", why)


async def session_without_expiry_ends_the_delay(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await _connect_with_delay(trial, topic, b"no session", delay=LONG, kept=0)
    with trial.control():
        await trial.must_stay_open(link)
    await link.cut()
    await must_publish_will(trial, watcher, b"no session", "although its session ended at once")


async def clean_start_ends_the_delay(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await _connect_with_delay(trial, topic, b"session replaced", delay=LONG, kept=LONG)
    with trial.control():
        await trial.must_stay_open(link)
    await link.cut()
    await trial.connect(clean=True)
    message = await trial.message(watcher)
    if message is None:
        raise ClaimArguable(
            "the will was not published when Clean Start 1 ended the session: 3.1.2.5 also says"
            " that a new connection of the client within the Will Delay Interval stops the will"
        )
    trial.must(message.payload == b"session replaced", "the message is another one")


async def disconnect_that_ends_the_session_ends_the_delay(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await _connect_with_delay(trial, topic, b"session ended", delay=LONG, kept=LONG)
    with trial.control():
        await trial.must_stay_open(link)
    await end_with(link, wire.disconnect(trial.version, WITH_WILL, expiry(0)))
    await must_publish_will(
        trial, watcher, b"session ended", "when DISCONNECT 0x04 had ended the session"
    )


async def disconnect_discards_a_delayed_will(trial: Trial) -> None:
    topic = trial.topic("will")
    watcher = await watch(trial, topic)
    link = await _connect_with_delay(trial, topic, b"discarded", delay=1, kept=LONG)
    try:
        await leave(trial, link)
        await pause(trial, 2.5, "the Will Delay Interval is 1 s")
        await must_not_publish_will(trial, watcher, topic, "after DISCONNECT and its delay")
    finally:
        await forget_session(trial)


CASES: Final = (
    Case(
        "will-delay",
        SEND,
        "A broker publishes a will after its Will Delay Interval, not before.",
        will_is_delayed,
        mqtt5="3.1.2-8",
        is_slow=True,
    ),
    Case(
        "will-delay-return",
        SEND,
        "A broker publishes no will of a client that is back within the Will Delay Interval.",
        return_within_the_delay_stops_the_will,
        mqtt5="3.1.2-8 3.1.3-9",
        is_slow=True,
    ),
    Case(
        "will-delay-takeover",
        SEND,
        "A broker publishes no delayed will when a new connection goes on with the session.",
        takeover_within_the_delay_stops_the_will,
        mqtt5="3.1.2-8 3.1.3-9",
    ),
    Case(
        "will-delay-session-expires",
        SEND,
        "A broker publishes a delayed will when the session ends before the delay.",
        end_of_the_session_ends_the_delay,
        mqtt5="3.1.2-8",
        is_slow=True,
    ),
    Case(
        "will-delay-without-session",
        SEND,
        "A broker does not delay the will of a session that ends with its connection.",
        session_without_expiry_ends_the_delay,
        mqtt5="3.1.2-8",
    ),
    Case(
        "will-delay-clean-start",
        SEND,
        "A broker publishes a delayed will when Clean Start 1 ends the session.",
        clean_start_ends_the_delay,
        mqtt5="3.1.2-8",
    ),
    Case(
        "will-delay-session-ended-by-disconnect",
        SEND,
        "A broker publishes a delayed will when DISCONNECT 0x04 ends the session.",
        disconnect_that_ends_the_session_ends_the_delay,
        mqtt5="3.1.2-8",
    ),
    Case(
        "will-delay-disconnect",
        SEND,
        "A broker publishes no delayed will after DISCONNECT.",
        disconnect_discards_a_delayed_will,
        mqtt5="3.1.2-8 3.1.2-10 3.14.4-3",
        is_slow=True,
    ),
)

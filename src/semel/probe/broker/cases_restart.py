"""Cases: what outlives the process of a broker, stopped in order or killed [4.1, 4.3.3, 4.4].

The standard demands that a session outlives its connection; that it outlives the process is what
a broker promises by its own documents. A broker that says Session Present 0 after a restart has
ended the session, which 4.1 lets an administrator do. One that says Session Present 1 must have
all of the session. So the loss of a whole session is arguable, and that of a part is not.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from semel.mqtt.packet_types import PUBCOMP, PUBLISH, PUBREC, PUBREL
from semel.mqtt.packets.acks import PubRel
from semel.mqtt.packets.publish import Publish
from semel.probe import wire
from semel.probe.broker.case import KILL, RESTART, Case
from semel.probe.broker.connect_steps import (
    connack_of,
    expiry,
    forget_retained,
    forget_session,
    leave,
    must_be_gone,
    must_be_resumed,
    pause,
    watch,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.claims import ClaimArguable
from semel.probe.verdicts import SEND

CaseFunction = Callable[[Trial], Awaitable[None]]


async def _return(trial: Trial, name: str = "a") -> ProbeLink:
    """The session of a client after the restart. Raises ClaimArguable if it has ended."""
    link = await trial.connect_durable(name)
    if not connack_of(link).session_present:
        raise ClaimArguable(
            "after the restart the CONNACK has Session Present 0: the standard demands that a"
            " session outlives its connection, and not in words that it outlives the process"
        )
    return link


async def _interrupt(trial: Trial, *, is_killed: bool) -> None:
    if is_killed:
        await trial.kill()
    else:
        await trial.restart()


async def _check_subscription(trial: Trial, *, is_killed: bool) -> None:
    topic = trial.topic()
    link = await trial.connect_durable()
    await trial.subscribe(link, (topic, 1))
    publisher = await trial.connect("p")
    with trial.control():
        await trial.publish(publisher, topic, b"before", qos=1)
        await trial.must_receive_message(link)
    await leave(trial, link)
    await _interrupt(trial, is_killed=is_killed)
    try:
        again = await _return(trial)
        publisher = await trial.connect("p")
        await trial.publish(publisher, topic, b"after", qos=1)
        message = await trial.must_receive_message(again)
        trial.must(message.payload == b"after", "a message came that was acknowledged before")
    finally:
        await forget_session(trial)


async def _check_queue(trial: Trial, *, is_killed: bool) -> None:
    topic = trial.topic()
    link = await trial.connect_durable()
    await trial.subscribe(link, (topic, 2))
    await leave(trial, link)
    publisher = await trial.connect("p")
    await trial.publish(publisher, topic, b"QoS 1", qos=1)
    await trial.publish(publisher, topic, b"QoS 2", qos=2)
    await _interrupt(trial, is_killed=is_killed)
    try:
        again = await _return(trial)
        # So that the last message arrives although the subscription may be lost.
        await trial.subscribe(again, (topic, 2))
        publisher = await trial.connect("p")
        found = await trial.messages_until(again, topic, publisher, qos=1)
        payloads = sorted(message.payload for message in found)
        trial.must(b"QoS 1" in payloads, "a QoS 1 message that was acknowledged is lost")
        # The QoS 2 message may come behind one of QoS 1.
        if b"QoS 2" not in payloads:
            payloads.append((await trial.must_receive_message(again)).payload)
        trial.must(b"QoS 2" in payloads, "a QoS 2 message that was acknowledged is lost")
        trial.must(payloads.count(b"QoS 2") == 1, "a QoS 2 message was delivered twice")
    finally:
        await forget_session(trial)


async def _check_qos2_identifier(trial: Trial, *, is_killed: bool) -> None:
    """The identifier is stored until PUBREL: a repeat after the restart is no new message."""
    topic = trial.topic()
    watcher = await trial.connect_durable("w")
    await trial.subscribe(watcher, (topic, 2))
    await leave(trial, watcher)
    link = await trial.connect_durable()
    await link.send(wire.publish(trial.version, topic, b"first", qos=2, packet_id=7))
    await trial.expect(link, PUBREC)
    await _interrupt(trial, is_killed=is_killed)
    try:
        again = await _return(trial)
        await again.send(wire.publish(trial.version, topic, b"first", qos=2, packet_id=7, dup=True))
        await trial.must_receive(again, PUBREC)
        await again.send(wire.pubrel(7))
        await trial.must_receive(again, PUBCOMP)
        await trial.publish(again, topic, b"second", qos=2, packet_id=7)
        watcher = await _return(trial, "w")
        # So that the last message arrives although the subscription may be lost.
        await trial.subscribe(watcher, (topic, 2))
        found = await trial.messages_until(watcher, topic, again, qos=2)
        payloads = [message.payload for message in found]
        trial.must(payloads.count(b"first") > 0, "the message with PUBREC before it is lost")
        trial.must(payloads.count(b"first") < 2, "the repeated PUBLISH was delivered again")
        trial.must(
            payloads.count(b"second") == 1,
            f"a new message after PUBCOMP was delivered {payloads.count(b'second')} times",
        )
    finally:
        await forget_session(trial)
        await forget_session(trial, "w")


async def _check_unacknowledged(trial: Trial, *, is_killed: bool) -> None:
    """A QoS 1 message without PUBACK, and a PUBREL without PUBCOMP."""
    topic = trial.topic()
    link = await trial.connect_durable()
    await trial.subscribe(link, (topic, 2))
    publisher = await trial.connect("p")
    await trial.publish(publisher, topic, b"QoS 2", qos=2)
    released = await trial.expect(link, PUBLISH)
    assert isinstance(released, Publish)
    await link.send(wire.pubrec(released.packet_id))
    await trial.expect(link, PUBREL)
    await trial.publish(publisher, topic, b"QoS 1", qos=1)
    unacknowledged = await trial.expect(link, PUBLISH)
    assert isinstance(unacknowledged, Publish)
    await _interrupt(trial, is_killed=is_killed)
    try:
        again = await _return(trial)
        release = await trial.must_receive(again, PUBREL)
        assert isinstance(release, PubRel)
        trial.must(
            release.packet_id == released.packet_id,
            f"PUBREL has the identifier {release.packet_id}, not {released.packet_id}",
        )
        await again.send(wire.pubcomp(release.packet_id))
        message = await trial.must_receive_message(again)
        trial.must(message.payload == b"QoS 1", "a PUBLISH came again after its PUBREL")
        trial.must(
            message.packet_id == unacknowledged.packet_id,
            f"PUBLISH has the identifier {message.packet_id}, not {unacknowledged.packet_id}",
        )
        trial.must(message.dup, "the PUBLISH that came again has DUP 0")
        publisher = await trial.connect("p")
        more = await trial.messages_until(again, topic, publisher, qos=1)
        trial.must(not more, "a message came more often than once")
    finally:
        await forget_session(trial)


async def _check_retained(trial: Trial, *, is_killed: bool) -> None:
    topic = trial.topic()
    publisher = await trial.connect("p")
    await trial.publish(publisher, topic, b"retained", qos=1, retain=True)
    with trial.control():
        await trial.must_receive_message(await watch(trial, topic))
    await _interrupt(trial, is_killed=is_killed)
    try:
        later = await watch(trial, topic)
        publisher = await trial.connect("p")
        found = await trial.messages_until(later, topic, publisher)
        if not found:
            raise ClaimArguable(
                "the retained message is lost after the restart: the standard demands that it is"
                " stored, and not in words that it outlives the process"
            )
        trial.must(found[0].payload == b"retained", "another message is retained")
        trial.must(found[0].retain, "the retained message came with RETAIN 0")
    finally:
        await forget_retained(trial, topic)


async def will_outlives_a_restart(trial: Trial) -> None:
    """[3.1.2.5] A server that is shut down may publish wills after its next start."""
    topic = trial.topic("will")
    watcher = await trial.connect_durable("w")
    await trial.subscribe(watcher, (topic, 1))
    await leave(trial, watcher)
    link = await trial.connect(will=(topic, b"will"), will_qos=1)
    with trial.control():
        await trial.must_stay_open(link)
    await trial.restart()
    try:
        again = await _return(trial, "w")
        message = await trial.message(again)
        trial.must(message is not None, "the will of a client that was connected was not published")
        assert message is not None
        trial.must(message.payload == b"will", "another message was delivered")
    finally:
        await forget_session(trial, "w")


async def session_expires_across_a_restart(trial: Trial) -> None:
    topic = trial.topic()
    link = await trial.connect(clean=False, properties=expiry(1))
    given = connack_of(link).properties.session_expiry_interval
    if given is not None and given != 1:
        trial.not_applicable(f"the broker set the Session Expiry Interval to {given} s in CONNACK")
    await trial.subscribe(link, (topic, 1))
    with trial.control():
        again = await trial.connect(clean=False, properties=expiry(1))
        await must_be_resumed(trial, again, topic, "before the restart")
    await leave(trial, again)
    await trial.restart()
    await pause(trial, 3.0, "the Session Expiry Interval is 1 s")
    later = await trial.connect(clean=False)
    await must_be_gone(trial, later, topic, "after a restart, more than 1 s after its connection")


def _checked(check: Callable[..., Awaitable[None]], *, is_killed: bool) -> CaseFunction:
    async def run(trial: Trial) -> None:
        await check(trial, is_killed=is_killed)

    return run


# Name, what must hold, function, statements of 3.1.1 and 5.0.
_CHECKS: Final = (
    (
        "session",
        "A session and its subscriptions",
        _check_subscription,
        "3.1.2-4 4.1.0-1",
        "3.1.2-5 3.1.2-23",
    ),
    (
        "queue",
        "Messages that are queued for a session",
        _check_queue,
        "3.1.2-5 4.1.0-1",
        "3.1.2-23 4.5.0-1",
    ),
    (
        "qos2-identifier",
        "The identifier of a QoS 2 message that is not released",
        _check_qos2_identifier,
        "4.1.0-1 4.3.3-2",
        "3.1.2-23 4.3.3-10 4.3.3-12",
    ),
    (
        "unacknowledged",
        "What the client has not acknowledged, with its identifiers,",
        _check_unacknowledged,
        "3.3.1-1 4.3.3-1 4.4.0-1",
        "3.3.1-1 4.3.2-3 4.3.3-5 4.3.3-6 4.4.0-1",
    ),
    ("retained", "A retained message", _check_retained, "3.3.1-5", "3.3.1-5"),
)


def make_cases() -> tuple[Case, ...]:
    """Each check with a restart, and with a kill."""
    return tuple(
        Case(
            f"{event}-{name}",
            SEND,
            f"{what} outlive{'' if what.startswith(('Mess', 'What')) else 's'}"
            f" {'the crash' if needs == KILL else 'the restart'} of a broker.",
            _checked(check, is_killed=needs == KILL),
            mqtt311=mqtt311,
            mqtt5=mqtt5,
            needs=needs,
        )
        for event, needs in (("restart", RESTART), ("crash", KILL))
        for name, what, check, mqtt311, mqtt5 in _CHECKS
    )


CASES: Final = (
    *make_cases(),
    Case(
        "restart-will",
        SEND,
        "A broker that is stopped publishes the wills of its clients, if need be when it is back.",
        will_outlives_a_restart,
        mqtt311="3.1.2-8",
        mqtt5="3.1.2-8",
        needs=RESTART,
    ),
    Case(
        "restart-session-expires",
        SEND,
        "A restart does not prolong a session.",
        session_expires_across_a_restart,
        mqtt5="4.1.0-2",
        needs=RESTART,
    ),
)

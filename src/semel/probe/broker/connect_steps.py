"""Steps that the cases about connections share: refused CONNECTs, and leaving in order."""

import asyncio
from contextlib import suppress

from semel.mqtt.packet_types import CONNACK, DISCONNECT, PINGRESP
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.trace import ObservedPacket
from semel.probe import wire
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import CLOSE_GRACE, Trial
from semel.probe.claims import ControlFailed

# No broker knows it.
UNKNOWN_METHOD = b"semel-probe-no-such-method"
# How long a broker may take to close what it must close, as a step that prepares a case.
REFUSAL_SECONDS = 5.0
# [5.0 2.2.2.2] Identifiers of the properties that the cases write.
SESSION_EXPIRY = 0x11
METHOD = 0x15
AUTH_DATA = 0x16
WILL_DELAY = 0x18


def connack_code(observed: ObservedPacket) -> int:
    """The code of a CONNACK, which is at the same place in both versions."""
    return observed.data[3] if len(observed.data) > 3 else 0


def connack_of(link: ProbeLink) -> ConnAck:
    """The CONNACK of a connection that `Trial.connect` has made."""
    assert link.connack is not None
    return link.connack


def expiry(seconds: int) -> bytes:
    """The property Session Expiry Interval."""
    return wire.four_property(SESSION_EXPIRY, seconds)


def will_delay(seconds: int) -> bytes:
    """The property Will Delay Interval."""
    return wire.four_property(WILL_DELAY, seconds)


def refused_connect(
    trial: Trial, name: str = "refused", *, will: tuple[bytes, bytes] | None = None
) -> bytes:
    """A well-formed CONNECT that every broker must refuse, with a return code that fits.

    [3.1.1 MQTT-3.1.3-8] no client identifier and Clean Session 0; [5.0 MQTT-4.12.0-1] an
    Authentication Method that the broker does not know.
    """
    if trial.is_5:
        method = wire.text_property(METHOD, UNKNOWN_METHOD)
        return trial.connect_bytes(name, properties=method, will=will)
    return trial.connect_bytes(client_id=b"", clean=False, will=will)


async def must_refuse_connect(
    trial: Trial, link: ProbeLink, *, connack_allowed: bool = True, why: str = ""
) -> None:
    """Claim that the broker closes a connection on which no CONNECT was accepted.

    It may say so in a CONNACK. Whether it may send DISCONNECT is another question [5.0 3.14.0-1].
    """
    allowed = (CONNACK, DISCONNECT) if connack_allowed else (DISCONNECT,)
    await trial.must_refuse(link, allowed=allowed, why=why)
    for observed in link.inbox:
        if observed.packet_type == CONNACK and connack_code(observed) == 0:
            trial.refute(f"the broker accepted the CONNECT{why}")


async def expect_refused(link: ProbeLink) -> None:
    """Wait until a CONNECT is refused that every broker must refuse. Raises ControlFailed."""
    await link.wait_closed(REFUSAL_SECONDS)
    for observed in link.inbox:
        if observed.packet_type == CONNACK and connack_code(observed) == 0:
            raise ControlFailed("the broker accepted a CONNECT that it must refuse")


async def leave(trial: Trial, link: ProbeLink) -> None:
    """Send DISCONNECT, and close once the broker has had time to do so."""
    await end_with(link, wire.disconnect(trial.version))


async def end_with(link: ProbeLink, last: bytes) -> None:
    """Send a last packet, and close the connection once the broker has had time to do so."""
    await link.send(last)
    if not await link.wait_closed(4 * CLOSE_GRACE):
        await link.close()


async def wait_gone(link: ProbeLink) -> None:
    """Wait until a connection that the broker must close is closed. Raises ControlFailed."""
    if not await link.wait_closed(REFUSAL_SECONDS):
        raise ControlFailed("the broker did not close a connection that it must close")


async def watch(trial: Trial, *topics: bytes, qos: int = 0) -> ProbeLink:
    """A connection that is subscribed to these topics."""
    link = await trial.connect("watch")
    await trial.subscribe(link, *((topic, qos) for topic in topics))
    return link


async def must_be_resumed(trial: Trial, link: ProbeLink, topic: bytes, why: str) -> None:
    """Claim that the session of a connection has the subscription to the topic from before."""
    publisher = await trial.connect("p")
    await trial.publish(publisher, topic, b"by the old subscription", qos=1)
    message = await trial.message(link)
    trial.must(message is not None, f"the subscription of the session is lost {why}")


async def must_be_gone(trial: Trial, link: ProbeLink, topic: bytes, why: str) -> None:
    """Claim that the session of a connection has no subscription to the topic from before."""
    own = topic + b"/own"
    await trial.subscribe(link, (own, 1))
    publisher = await trial.connect("p")
    await trial.publish(publisher, topic, b"by the old subscription", qos=1)
    found = await trial.messages_until(link, own, publisher, qos=1)
    trial.must(not found, f"the subscription of the session is still in force {why}")


async def forget_session(trial: Trial, name: str = "a") -> None:
    """End the session of a client identifier, so that nothing is left on the broker.

    Cases call it at their end, so that a failure must not hide what they have found.
    """
    with suppress(ControlFailed):
        link = await trial.connect(name, clean=True)
        await leave(trial, link)


async def forget_retained(trial: Trial, *topics: bytes) -> None:
    """Remove the retained messages of these topics, at the end of a case."""
    with suppress(ControlFailed):
        link = await trial.connect("forget")
        for topic in topics:
            await trial.publish(link, topic, b"", retain=True)
        await link.send(wire.pingreq())
        await trial.expect(link, PINGRESP)


async def pause(trial: Trial, seconds: float, why: str) -> None:
    """Let time pass, which the evidence shows."""
    trial.recorder.note(f"{seconds:g} s pass: {why}")
    await asyncio.sleep(seconds)

"""Steps that many cases share: what a broker offers, sessions that last, and open deliveries."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from semel.mqtt.packet_types import (
    CONNACK,
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    SUBACK,
)
from semel.mqtt.packets.acks import PubAck, PubRec
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import SubAck
from semel.mqtt.properties import Properties
from semel.mqtt.trace import ObservedPacket
from semel.probe import wire
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.claims import ControlFailed

# Options of a subscription in 5.0, beside the QoS [3.8.3.1].
NO_LOCAL: Final = 0x04
RETAIN_AS_PUBLISHED: Final = 0x08
RETAIN_HANDLING_NEW: Final = 0x10
RETAIN_HANDLING_NEVER: Final = 0x20

# How long a broker that limits its open deliveries gets before it is acknowledged one.
NEXT_SECONDS: Final = 0.3
# How long a broker gets to close after DISCONNECT, which it should do, but need not.
LEAVE_SECONDS: Final = 1.0


# --- what the broker said in CONNACK ---


def limits(link: ProbeLink) -> Properties:
    """The properties of the CONNACK; there are none in 3.1.1."""
    assert link.connack is not None
    return link.connack.properties


def usable_qos(link: ProbeLink, wanted: int) -> int:
    """The QoS that is wanted, or the highest that the broker said it supports."""
    highest = limits(link).maximum_qos
    return wanted if highest is None else min(wanted, highest)


def require_qos(trial: Trial, link: ProbeLink, qos: int) -> None:
    """End the case if the broker said that it does not support this QoS."""
    if usable_qos(link, qos) < qos:
        trial.not_applicable(f"the broker said in CONNACK that it does not support QoS {qos}")


def require_retain(trial: Trial, link: ProbeLink) -> None:
    """End the case if the broker said that it retains nothing."""
    if limits(link).retain_available == 0:
        trial.not_applicable("the broker said in CONNACK that it retains no messages")


def require_wildcards(trial: Trial, link: ProbeLink) -> None:
    """End the case if the broker said that it supports no wildcards."""
    if limits(link).wildcard_subscription_available == 0:
        trial.not_applicable("the broker said in CONNACK that it supports no wildcards")


def require_subscription_identifiers(trial: Trial, link: ProbeLink) -> None:
    """End the case if the broker said that it supports no Subscription Identifiers."""
    if limits(link).subscription_identifiers_available == 0:
        trial.not_applicable(
            "the broker said in CONNACK that it supports no Subscription Identifiers"
        )


def require_shared(trial: Trial, link: ProbeLink) -> None:
    """End the case if the broker said that it supports no shared subscriptions."""
    if limits(link).shared_subscription_available == 0:
        trial.not_applicable("the broker said in CONNACK that it supports no shared subscriptions")


# --- subscribers and publishers ---


async def subscribe_at(
    trial: Trial,
    link: ProbeLink,
    topic_filter: bytes,
    qos: int,
    *,
    options: int = 0,
    properties: bytes = b"",
    packet_id: int = 100,
) -> None:
    """Subscribe; end the case if the broker grants a lower QoS, which it may."""
    subscribed = await trial.subscribe(
        link, (topic_filter, options | qos), packet_id=packet_id, properties=properties
    )
    if subscribed.reasons[0] < qos:
        trial.not_applicable(f"the broker granted QoS {subscribed.reasons[0]} only, not {qos}")


async def subscribe_claimed(
    trial: Trial, link: ProbeLink, *filters: tuple[bytes, int], properties: bytes = b""
) -> None:
    """Subscribe; the claim is that the broker does not take the SUBSCRIBE for a wrong one."""
    await link.send(wire.subscribe(trial.version, filters, properties=properties))
    answer = await trial.must_receive(link, SUBACK)
    assert isinstance(answer, SubAck)
    for (topic_filter, _), reason in zip(filters, answer.reasons, strict=False):
        shown = topic_filter.decode()
        trial.must(reason != 0x8F, f"the broker calls {shown!r} invalid: SUBACK 0x8f")
        if reason >= 0x80:
            trial.not_applicable(f"the broker refused the filter {shown!r}: 0x{reason:02x}")


async def publish_claimed(
    trial: Trial,
    link: ProbeLink,
    topic_name: bytes,
    payload: bytes,
    *,
    qos: int,
    retain: bool = False,
    properties: bytes = b"",
) -> None:
    """Publish; the claim is that the broker does not take the PUBLISH for a wrong one."""
    packet = wire.publish(
        trial.version,
        topic_name,
        payload,
        qos=qos,
        packet_id=200,
        retain=retain,
        properties=properties,
    )
    await link.send(packet)
    if not qos:
        return
    answer = await trial.must_receive(link, PUBACK if qos == 1 else PUBREC)
    assert isinstance(answer, PubAck | PubRec)
    shown = topic_name.decode()
    trial.must(answer.reason != 0x90, f"the broker calls {shown!r} invalid: reason 0x90")
    if answer.reason >= 0x80:
        trial.not_applicable(f"the broker refused a message: 0x{answer.reason:02x}")
    if qos == 2:
        await link.send(wire.pubrel(200))
        await trial.must_receive(link, PUBCOMP)


async def audience(
    trial: Trial,
    topic_filter: bytes,
    qos: int = 1,
    *,
    options: int = 0,
    properties: bytes = b"",
) -> tuple[ProbeLink, ProbeLink]:
    """A subscriber to a filter, and a publisher. The broker supports the QoS."""
    subscriber, publisher = await trial.connect("sub"), await trial.connect("pub")
    require_qos(trial, publisher, qos)
    await subscribe_at(trial, subscriber, topic_filter, qos, options=options, properties=properties)
    return subscriber, publisher


async def connect_kept(
    trial: Trial, name: str, *, clean: bool = False, properties: bytes = b""
) -> ProbeLink:
    """A connection whose session outlives it; end the case if the broker keeps no sessions."""
    link = await trial.connect_durable(name, clean=clean, properties=properties)
    if trial.is_5 and limits(link).session_expiry_interval == 0:
        trial.not_applicable("the broker said in CONNACK that it keeps no sessions")
    return link


async def leave(trial: Trial, link: ProbeLink) -> None:
    """End a connection so that the broker knows it before anything else is sent to the session."""
    await link.send(wire.disconnect(trial.version))
    await link.wait_closed(LEAVE_SECONDS)
    await link.cut()


async def resume(trial: Trial, name: str, *, properties: bytes = b"") -> ProbeLink:
    """The next connection of a session that must have been kept."""
    link = await trial.connect_durable(name, properties=properties)
    assert link.connack is not None
    if not link.connack.session_present:
        raise ControlFailed("the broker did not keep the session")
    return link


@asynccontextmanager
async def retained_removed(trial: Trial, *topic_names: bytes) -> AsyncIterator[None]:
    """Remove the retained messages of these topics at the end, however the case ends."""
    try:
        yield
    finally:
        try:
            link = await trial.connect("cleanup")
            for topic_name in topic_names:
                await link.send(wire.publish(trial.version, topic_name, b"", retain=True))
            await link.send(wire.pingreq())
            await link.wait_for(PINGRESP, trial.timeout)
            await link.cut()
        except ControlFailed:
            pass


# --- what is received ---


def payloads(messages: Sequence[Publish]) -> list[bytes]:
    return [message.payload for message in messages]


def listed(values: Sequence[object]) -> str:
    """Values for a sentence, at most ten of them."""
    names = [str(value) for value in values[:10]]
    return (", ".join(names) or "nothing") + (", …" if len(values) > 10 else "")


def named(messages: Sequence[Publish]) -> str:
    """The payloads of messages, for a sentence."""
    return listed([message.payload[:40].decode(errors="backslashreplace") for message in messages])


async def open_messages(trial: Trial, link: ProbeLink, number: int) -> list[Publish]:
    """Messages that the broker delivers while none is acknowledged: at least 1, at most `number`.

    A broker may send the next one only after an acknowledgement; then there are fewer. Raises
    ControlFailed if there is none.
    """
    found: list[Publish] = []
    while len(found) < number:
        seconds = NEXT_SECONDS if found else trial.timeout
        packet = await link.wait_for(PUBLISH, seconds)
        if packet is None:
            break
        assert isinstance(packet, Publish)
        found.append(packet)
    if not found:
        raise ControlFailed("the broker delivered no message")
    return found


async def inbox_after_ping(trial: Trial, link: ProbeLink) -> list[ObservedPacket]:
    """What is in the inbox after the broker has answered a PINGREQ."""
    await link.send(wire.pingreq())
    await trial.expect(link, PINGRESP)
    return list(link.inbox)


async def connack_size(trial: Trial, properties: bytes = b"") -> int:
    """The bytes of the CONNACK that the broker sends to a client with these properties."""
    link = await trial.open()
    await link.send(trial.connect_bytes("size", properties=properties))
    observed = await link.wait_for_observed(CONNACK, trial.timeout)
    if observed is None or not isinstance(observed.packet, ConnAck) or observed.packet.reason:
        raise ControlFailed("the broker did not accept a right CONNECT")
    await link.cut()
    return len(observed.data)


# --- acknowledgements with a reason code (5.0) ---


def reasoned(first: int, packet_id: int, reason: int) -> bytes:
    """PUBACK (first byte 0x40), PUBREC (0x50), PUBREL (0x62) or PUBCOMP (0x70) with a reason."""
    return wire.frame(first, wire.two(packet_id), bytes([reason]))


# --- rejects ---


def refusal(trial: Trial) -> tuple[int, ...]:
    """What a broker may send before it closes: DISCONNECT in 5.0, nothing in 3.1.1."""
    return (DISCONNECT,) if trial.is_5 else ()

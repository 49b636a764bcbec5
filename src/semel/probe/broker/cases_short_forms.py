"""Cases about acknowledgements in their short forms [3.4.2.1 and others], which 5.0 allows."""

from typing import Final

from semel.mqtt.packet_types import PUBCOMP, PUBREC, PUBREL
from semel.mqtt.packets.publish import Publish
from semel.probe import wire
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import (
    require_qos,
    subscribe_at,
)
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.claims import ControlFailed
from semel.probe.verdicts import RECEIVE


async def deliver(trial: Trial, qos: int) -> tuple[ProbeLink, Publish]:
    """A message that the broker has delivered with this QoS, and not been answered for."""
    link = await trial.connect("sub")
    require_qos(trial, link, qos)
    await subscribe_at(trial, link, trial.topic(), qos)
    await trial.publish(await trial.connect("pub"), trial.topic(), qos=qos)
    message = await trial.message(link, acknowledge=False)
    if message is None or message.qos != qos:
        raise ControlFailed(f"no message with QoS {qos} was delivered")
    return link, message


def without_property_length(first: int, packet_id: int) -> bytes:
    """An acknowledgement with the code 0x00 [3.4.2.2.1]: below 4 bytes no Property Length."""
    return wire.frame(first, wire.two(packet_id), b"\0")


AFTER: Final = " after an acknowledgement with a code and without a Property Length"


async def puback_without_property_length(trial: Trial) -> None:
    link, message = await deliver(trial, 1)
    await link.send(without_property_length(0x40, message.packet_id))
    await trial.must_stay_open(link, AFTER)


async def pubrec_without_property_length(trial: Trial) -> None:
    link, message = await deliver(trial, 2)
    await link.send(without_property_length(0x50, message.packet_id))
    await trial.must_receive(link, PUBREL)
    await link.send(wire.pubcomp(message.packet_id))
    await trial.must_stay_open(link, AFTER)


async def pubcomp_without_property_length(trial: Trial) -> None:
    link, message = await deliver(trial, 2)
    await link.send(wire.pubrec(message.packet_id))
    await trial.expect(link, PUBREL)
    await link.send(without_property_length(0x70, message.packet_id))
    await trial.must_stay_open(link, AFTER)


async def pubrel_without_property_length(trial: Trial) -> None:
    link = await trial.connect()
    require_qos(trial, link, 2)
    await link.send(wire.publish(trial.version, trial.topic(), qos=2, packet_id=7))
    await trial.expect(link, PUBREC)
    await link.send(without_property_length(0x62, 7))
    await trial.must_receive(link, PUBCOMP)


CASES: Final[tuple[Case, ...]] = (
    Case(
        "puback-without-property-length",
        RECEIVE,
        "A PUBACK may have a code and no Property Length.",
        puback_without_property_length,
        mqtt5="3.4.2-1",
    ),
    Case(
        "pubrec-without-property-length",
        RECEIVE,
        "A PUBREC may have a code and no Property Length.",
        pubrec_without_property_length,
        mqtt5="3.5.2-1",
    ),
    Case(
        "pubrel-without-property-length",
        RECEIVE,
        "A PUBREL may have a code and no Property Length.",
        pubrel_without_property_length,
        mqtt5="3.6.2-1",
    ),
    Case(
        "pubcomp-without-property-length",
        RECEIVE,
        "A PUBCOMP may have a code and no Property Length.",
        pubcomp_without_property_length,
        mqtt5="3.7.2-1",
    ),
)

"""Learns what a client program does by itself, in two runs against a server that does no harm."""

import time
from typing import Final

from semel.mqtt.packet_types import CONNECT, PUBACK, PUBLISH, SUBSCRIBE, UNSUBSCRIBE
from semel.mqtt.packets.subscribe import Subscribe
from semel.probe.claims import VERSION_NAMES, ControlFailed
from semel.probe.client.profile import ClientProfile
from semel.probe.client.server import QOS_1_AND_2, SubjectLink, first_number
from semel.probe.client.trial import START_SECONDS, ClientTrial

# How long after its first work a program may go on with what it does.
QUIET_SECONDS: Final = 1.0
# Connections that a program opens and ends before it works.
MAXIMUM_PRELUDES: Final = 3
# How long a program gets to print a message.
PRINT_SECONDS: Final = 2.0


class ProgramSilent(Exception):
    """The program does not connect, or not in this version: one sentence."""


class MalformedConnect(Exception):
    """The CONNECT of the program cannot be read, so that nothing but it can be examined."""


async def first_link(trial: ClientTrial) -> SubjectLink:
    """The program's first connection, with its CONNECT. Raises ProgramSilent."""
    deadline = time.monotonic() + START_SECONDS
    while not trial.links:
        if trial.process.has_ended:
            await trial.pause(0.1)
            if not trial.links:
                line = trial.process.last_line()
                raise ProgramSilent(
                    f"the program exited with code {trial.process.exit_code} before it connected"
                    + (f": {line}" if line else "")
                )
        if time.monotonic() > deadline:
            raise ProgramSilent(f"the program did not connect within {START_SECONDS:g} s")
        await trial.pause(0.02)
    try:
        link = await trial.accept()
    except ControlFailed as failed:
        raise ProgramSilent(str(failed)) from None
    if link.connect is None:
        raise MalformedConnect
    if link.connect.version != trial.version:
        spoken = VERSION_NAMES.get(link.connect.version, "another version")
        raise ProgramSilent(
            f"the program speaks MQTT {spoken}, not {VERSION_NAMES[trial.version]}"
            " (a command with {version} speaks both)"
        )
    return link


async def learn_work(trial: ClientTrial) -> ClientProfile:
    """The first run: everything is acknowledged."""
    link = await first_link(trial)
    assert link.connect is not None
    profile = ClientProfile(link.connect)
    await trial.connected(link=link)
    await _work_seen(trial, link)
    while link.has_disconnected and not _has_work(link) and profile.preludes < MAXIMUM_PRELUDES:
        try:
            again = await trial.accept(QUIET_SECONDS)
        except ControlFailed:
            break
        link = await trial.connected(link=again)
        profile.preludes += 1
        if link.connect is not None:
            profile.connect = link.connect
        await _work_seen(trial, link)
    _learn_packets(profile, link)
    profile.ends_by_itself = link.is_closed or link.has_disconnected
    if not profile.ends_by_itself:
        await _learn_messages(trial, link, profile)
        _learn_packets(profile, link)
    return profile


async def learn_endurance(trial: ClientTrial, profile: ClientProfile) -> None:
    """The second run: nothing is acknowledged, and the connection is cut."""
    link = await trial.accept()
    await trial.connected(link=link, withheld=QOS_1_AND_2)
    await _work_seen(trial, link)
    _learn_packets(profile, link)
    # By content, too: a program may use one identifier for several messages.
    messages = {(each.packet_id, each.payload): each.qos for each in link.published() if each.qos}
    profile.open_at_once = len(messages)
    profile.open_at_once_qos_2 = sum(qos == 2 for qos in messages.values())
    if not link.is_closed and profile.ends_by_itself:
        await _learn_messages(trial, link, profile)
    if link.is_closed:
        return
    link.cut()
    known = len(trial.links)
    began = time.monotonic()
    while time.monotonic() < began + max(trial.timeout, 5.0) and not trial.process.has_ended:
        if len(trial.links) > known:
            again = await trial.accept()
            profile.reconnect_seconds = again.opened_at - began
            profile.is_next_connect_clean = again.connect is None or again.connect.clean_start
            return
        await trial.pause(0.02)


async def _work_seen(trial: ClientTrial, link: SubjectLink) -> None:
    """Wait until the program has done something, and then for what follows at once."""
    await link.wait_until(lambda: _has_work(link), trial.timeout)
    await link.wait_closed(QUIET_SECONDS)


def _has_work(link: SubjectLink) -> bool:
    return link.times_received(SUBSCRIBE) + link.times_received(PUBLISH) > 0


async def _learn_messages(trial: ClientTrial, link: SubjectLink, profile: ClientProfile) -> None:
    """Whether the program answers a message, and whether it prints it."""
    payload, packet_id = trial.payload(), trial.next_packet_id()
    link.send(trial.message(link, payload, packet_id=packet_id))
    answer = await link.wait_for(PUBACK, trial.timeout)
    profile.stays = answer is not None and first_number(answer.data) == packet_id
    if not profile.stays:
        # A program with wrong acknowledgements stays, too: another message shows it.
        link.send(trial.message(link, trial.payload(), qos=0))
        profile.stays = not await link.wait_closed(QUIET_SECONDS) and len(link.arrivals) > 2
    deadline = time.monotonic() + PRINT_SECONDS
    while time.monotonic() < deadline and not profile.prints:
        profile.prints = trial.process.times_printed(payload) > 0
        await trial.pause(0.02)


def _learn_packets(profile: ClientProfile, link: SubjectLink) -> None:
    profile.subscriptions = profile.subscriptions or list(link.subscriptions)
    for message in link.published():
        profile.qos.add(message.qos)
        profile.has_retained |= message.retain
    for each in link.arrivals:
        packet = each.observed.packet
        if isinstance(packet, Subscribe) and packet.properties.subscription_identifiers:
            profile.has_subscription_identifier = True
        if each.observed.packet_type == UNSUBSCRIBE:
            profile.has_unsubscribed = True
        if each.observed.packet_type != CONNECT:
            profile.largest_packet = max(profile.largest_packet, len(each.observed.data))

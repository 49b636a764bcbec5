"""Cases on limits: Keep Alive, and what a server allows in its CONNACK (5.0)."""

import time
from typing import Final

from semel.mqtt.packet_types import CONNECT, DISCONNECT, PUBLISH, PUBREL, SUBSCRIBE
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.packets.subscribe import Subscribe
from semel.probe import wire
from semel.probe.claims import ControlFailed
from semel.probe.client import server_wire
from semel.probe.client.case import ClientCase
from semel.probe.client.needs import (
    KEEPS_ALIVE,
    PUBLISHES,
    PUBLISHES_QOS_2,
    PUBLISHES_SEVERAL,
    RETAINS,
    STARTS_CLEAN,
    STAYS,
    USES_IDENTIFIER,
    USES_SHARED,
    USES_WILDCARD,
)
from semel.probe.client.server import QOS_1_AND_2, QOS_2, SubjectLink
from semel.probe.client.trial import ClientTrial
from semel.probe.verdicts import RECEIVE, SEND

# How long a client may do what it did at once in the discovery run.
WATCH: Final = 1.5
SERVER_KEEP_ALIVE: Final = 2
TOPIC_ALIASES: Final = 2


async def keep_alive(trial: ClientTrial) -> None:
    link = await trial.engaged()
    assert link.connect is not None
    await _must_keep_alive(trial, link, link.connect.keep_alive)


async def server_keep_alive(trial: ClientTrial) -> None:
    properties = wire.two_property(server_wire.SERVER_KEEP_ALIVE, SERVER_KEEP_ALIVE)
    link = await trial.engaged(properties)
    await _must_keep_alive(trial, link, SERVER_KEEP_ALIVE)


async def _must_keep_alive(trial: ClientTrial, link: SubjectLink, seconds: int) -> None:
    """Claim that no pause between the client's packets is longer than its Keep Alive.

    A busy machine delays both sides, so that a pause counts if it is longer by a quarter, and at
    least by one second.
    """
    allowed = seconds + max(1.0, seconds / 4)
    end = time.monotonic() + 2 * allowed
    while time.monotonic() < end:
        known = len(link.arrivals)
        pause = link.arrivals[-1].at + allowed - time.monotonic()
        await link.wait_until(lambda: len(link.arrivals) > known, max(0.0, pause))  # noqa: B023
        if link.is_closed:
            raise ControlFailed(f"the connection ended: {trial.state(link)}")
        trial.must(
            len(link.arrivals) > known,
            f"the client sent nothing for {allowed:g} s; its Keep Alive is {seconds} s",
        )


async def receive_maximum(trial: ClientTrial) -> None:
    properties = wire.two_property(server_wire.RECEIVE_MAXIMUM, 1)
    link = await trial.connected(properties, withheld=QOS_1_AND_2)
    await link.wait_until(lambda: bool(trial.open_publications(link)), trial.timeout)
    await trial.pause(WATCH)
    found = len({message.packet_id for message in trial.open_publications(link)})
    if not found:
        raise ControlFailed(f"no PUBLISH came: {trial.state(link)}")
    trial.must(found == 1, f"{found} PUBLISH packets were open at once; the server allows 1")


async def answers_at_receive_maximum(trial: ClientTrial) -> None:
    properties = wire.two_property(server_wire.RECEIVE_MAXIMUM, 1)
    link = await trial.connected(properties, withheld=QOS_1_AND_2)
    if not await link.wait_until(lambda: bool(trial.open_publications(link)), trial.timeout):
        raise ControlFailed(f"no PUBLISH came: {trial.state(link)}")
    for qos in (1, 2):
        await trial.deliver(link, trial.payload(), qos, trial.next_packet_id())


async def maximum_packet_size(trial: ClientTrial) -> None:
    most = trial.profile.largest_packet - 1
    if most < 2:
        trial.not_applicable("the program sent nothing after its CONNECT")
    trial.recorder.note(f"without a limit the program sends a packet of {most + 1} bytes")
    properties = wire.four_property(server_wire.MAXIMUM_PACKET_SIZE, most)
    link = await trial.connected(properties, withheld=QOS_1_AND_2)
    await link.wait_closed(WATCH)
    for each in link.arrivals:
        size = len(each.observed.data)
        trial.must(
            each.observed.packet_type == CONNECT or size <= most,
            f"a packet of {size} bytes came; the server allows {most}",
        )


async def _limited(trial: ClientTrial) -> tuple[SubjectLink, int]:
    """A connection with just the Maximum Packet Size that the program needs."""
    most = max(trial.profile.largest_packet, 16)
    properties = wire.four_property(server_wire.MAXIMUM_PACKET_SIZE, most)
    withheld = QOS_1_AND_2 if trial.profile.ends_by_itself else QOS_2
    link = await trial.connected(properties, withheld=withheld)
    await trial.work_begun(link)
    return link, most


def _must_fit(trial: ClientTrial, link: SubjectLink, most: int) -> None:
    for each in link.arrivals:
        if each.observed.packet_type != CONNECT:
            size = len(each.observed.data)
            trial.must(size <= most, f"a packet of {size} bytes came; the server allows {most}")


async def answers_fit(trial: ClientTrial) -> None:
    link, most = await _limited(trial)
    for qos in (1, 2):
        await trial.deliver(link, trial.payload(), qos, trial.next_packet_id())
    _must_fit(trial, link, most)


async def pubrel_fits(trial: ClientTrial) -> None:
    link, most = await _limited(trial)
    message = await trial.publication(link, 2)
    link.send(wire.pubrec(message.packet_id))
    await trial.must_answer(link, PUBREL, message.packet_id)
    _must_fit(trial, link, most)


async def disconnect_fits(trial: ClientTrial) -> None:
    link, most = await _limited(trial)
    # A PUBLISH with a wildcard, which makes many clients explain themselves.
    wrong = wire.publish(trial.version, b"a/#", trial.payload())
    link.send(wrong, breaks_rule=True)
    await link.wait_closed(WATCH)
    if not link.times_received(DISCONNECT):
        trial.not_applicable("the client sent no DISCONNECT in answer to a wrong packet")
    _must_fit(trial, link, most)


async def error_disconnect_closes(trial: ClientTrial) -> None:
    link = await trial.engaged()
    link.send(wire.publish(trial.version, b"a/#", trial.payload()), breaks_rule=True)
    await link.wait_until(lambda: link.has_disconnected, WATCH)
    packets = [each.observed.packet for each in link.arrivals]
    if not any(isinstance(each, Disconnect) and each.reason >= 0x80 for each in packets):
        trial.not_applicable("the client sent no DISCONNECT that reports an error")
    trial.must(await link.wait_closed(trial.timeout), "the connection stayed open after DISCONNECT")


async def no_aliases(trial: ClientTrial) -> None:
    link = await trial.connected(withheld=QOS_1_AND_2)
    await _must_use_aliases(trial, link, 0)


async def aliases_within_maximum(trial: ClientTrial) -> None:
    properties = wire.two_property(server_wire.TOPIC_ALIAS_MAXIMUM, TOPIC_ALIASES)
    link = await trial.connected(properties)
    await _must_use_aliases(trial, link, TOPIC_ALIASES)


async def _must_use_aliases(trial: ClientTrial, link: SubjectLink, most: int) -> None:
    """Claim that no Topic Alias of the client is above `most`."""
    if not await link.wait_until(lambda: link.times_received(PUBLISH) > 0, trial.timeout):
        raise ControlFailed(f"no PUBLISH came: {trial.state(link)}")
    await link.wait_closed(WATCH)
    for message in link.published():
        alias = message.properties.topic_alias or 0
        trial.must(alias <= most, f"Topic Alias {alias} was used; the server allows {most}")


async def maximum_qos(trial: ClientTrial) -> None:
    qos = max(trial.profile.qos)
    if not qos:
        trial.not_applicable("the program publishes at QoS 0 only")
    properties = wire.byte_property(server_wire.MAXIMUM_QOS, qos - 1)
    link = await trial.connected(properties, withheld=QOS_1_AND_2)
    await link.wait_closed(WATCH)
    for message in link.published():
        trial.must(
            message.qos < qos, f"a PUBLISH of QoS {message.qos} came; the server allows {qos - 1}"
        )


async def retain_available(trial: ClientTrial) -> None:
    properties = wire.byte_property(server_wire.RETAIN_AVAILABLE, 0)
    link = await trial.connected(properties, withheld=QOS_1_AND_2)
    await link.wait_closed(WATCH)
    trial.must(
        not any(message.retain for message in link.published()),
        "a PUBLISH with RETAIN 1 came; the server has no retained messages",
    )


async def _requests(trial: ClientTrial, identifier: int) -> list[Subscribe]:
    """What the client requests of a server that lacks a feature."""
    link = await trial.connected(wire.byte_property(identifier, 0))
    await link.wait_closed(WATCH)
    packets = [
        each.observed.packet for each in link.arrivals if each.observed.packet_type == SUBSCRIBE
    ]
    return [packet for packet in packets if isinstance(packet, Subscribe)]


async def wildcard_available(trial: ClientTrial) -> None:
    for request in await _requests(trial, server_wire.WILDCARD_SUBSCRIPTION_AVAILABLE):
        for each in request.subscriptions:
            trial.must(
                not {"+", "#"} & set(each.topic_filter),
                "a filter with a wildcard came; the server has none",
            )


async def shared_available(trial: ClientTrial) -> None:
    for request in await _requests(trial, server_wire.SHARED_SUBSCRIPTION_AVAILABLE):
        for each in request.subscriptions:
            trial.must(
                not each.topic_filter.startswith("$share/"),
                "a shared subscription came; the server has none",
            )


async def identifiers_available(trial: ClientTrial) -> None:
    for request in await _requests(trial, server_wire.SUBSCRIPTION_IDENTIFIERS_AVAILABLE):
        trial.must(
            not request.properties.subscription_identifiers,
            "a Subscription Identifier came; the server has none",
        )


async def session_present_unexpected(trial: ClientTrial) -> None:
    with trial.control():
        link = await trial.engaged()
        await trial.must_acknowledge(link)
    link.cut()
    link = await trial.next_connection()
    if link.connect is not None and not link.connect.clean_start:
        await trial.start_again()
        link = await trial.accept()
    link.send(
        server_wire.connack(trial.version, session_present=True, properties=trial.assigned(link)),
        breaks_rule=True,
    )
    await trial.must_close(link, what="CONNACK with Session Present 1, having no session")


CASES: Final = (
    ClientCase(
        "keep-alive",
        SEND,
        "A client that has nothing to send sends PINGREQ within its Keep Alive.",
        keep_alive,
        mqtt311="3.1.2-23",
        mqtt5="3.1.2-20",
        needs=(STAYS, KEEPS_ALIVE),
        is_slow=True,
    ),
    ClientCase(
        "server-keep-alive",
        SEND,
        "A client uses the Server Keep Alive in the place of its own.",
        server_keep_alive,
        mqtt5="3.1.2-21 3.2.2-21",
        needs=(STAYS,),
        is_slow=True,
    ),
    ClientCase(
        "receive-maximum",
        SEND,
        "A client has at most as many PUBLISH packets open as the Receive Maximum allows.",
        receive_maximum,
        mqtt5="3.3.4-7 4.9.0-1 4.9.0-2",
        needs=(PUBLISHES_SEVERAL,),
    ),
    ClientCase(
        "answers-at-receive-maximum",
        SEND,
        "A client that may not publish still answers other packets.",
        answers_at_receive_maximum,
        mqtt5="3.3.4-8 4.9.0-3",
        needs=(PUBLISHES_SEVERAL, STAYS),
    ),
    ClientCase(
        "maximum-packet-size",
        SEND,
        "A client sends no packet that is larger than the server's Maximum Packet Size.",
        maximum_packet_size,
        mqtt5="3.2.2-15",
    ),
    ClientCase(
        "answers-fit",
        SEND,
        "PUBACK, PUBREC and PUBCOMP explain nothing that would exceed the Maximum Packet Size.",
        answers_fit,
        mqtt5="3.4.2-2 3.4.2-3 3.5.2-2 3.5.2-3 3.7.2-2 3.7.2-3",
        needs=(STAYS,),
    ),
    ClientCase(
        "pubrel-fits",
        SEND,
        "PUBREL explains nothing that would exceed the Maximum Packet Size.",
        pubrel_fits,
        mqtt5="3.6.2-2 3.6.2-3",
        needs=(PUBLISHES_QOS_2,),
    ),
    ClientCase(
        "disconnect-fits",
        SEND,
        "DISCONNECT explains nothing that would exceed the Maximum Packet Size.",
        disconnect_fits,
        mqtt5="3.14.2-3 3.14.2-4",
        needs=(STAYS,),
    ),
    ClientCase(
        "error-disconnect-closes",
        SEND,
        "A client that reports an error in DISCONNECT closes the connection.",
        error_disconnect_closes,
        mqtt5="4.13.2-1",
        needs=(STAYS,),
    ),
    ClientCase(
        "no-aliases",
        SEND,
        "A client uses no Topic Alias if the server allows none.",
        no_aliases,
        mqtt5="3.2.2-18",
        needs=(PUBLISHES,),
    ),
    ClientCase(
        "aliases-within-maximum",
        SEND,
        "A client uses no Topic Alias above the server's Topic Alias Maximum.",
        aliases_within_maximum,
        mqtt5="3.2.2-17 3.3.2-9",
        needs=(PUBLISHES,),
    ),
    ClientCase(
        "maximum-qos",
        SEND,
        "A client publishes at no QoS above the server's Maximum QoS.",
        maximum_qos,
        mqtt5="3.2.2-11",
        needs=(PUBLISHES,),
    ),
    ClientCase(
        "retain-available",
        SEND,
        "A client sends no RETAIN 1 to a server without retained messages.",
        retain_available,
        mqtt5="3.2.2-14",
        needs=(RETAINS,),
    ),
    ClientCase(
        "wildcard-available",
        SEND,
        "A client uses no wildcard with a server that has none.",
        wildcard_available,
        mqtt5="U5-47",
        needs=(USES_WILDCARD,),
    ),
    ClientCase(
        "identifiers-available",
        SEND,
        "A client uses no Subscription Identifier with a server that has none.",
        identifiers_available,
        mqtt5="U5-48",
        needs=(USES_IDENTIFIER,),
    ),
    ClientCase(
        "shared-available",
        SEND,
        "A client uses no shared subscription with a server that has none.",
        shared_available,
        mqtt5="U5-49",
        needs=(USES_SHARED,),
    ),
    ClientCase(
        "session-present-unexpected",
        RECEIVE,
        "A client without a session closes the connection if the server says Session Present 1.",
        session_present_unexpected,
        mqtt5="3.2.2-4",
        needs=(STAYS, STARTS_CLEAN),
    ),
)

"""Cases on what a client sends: identifiers, DUP, QoS 1 and 2 as sender, resuming, DISCONNECT."""

import signal
from typing import Final

from semel.mqtt.packet_types import DISCONNECT, PUBREL
from semel.mqtt.packets.publish import Publish
from semel.probe import wire
from semel.probe.claims import ClaimArguable, ControlFailed
from semel.probe.client import server_wire
from semel.probe.client.case import ClientCase
from semel.probe.client.needs import (
    PUBLISHES_QOS_1,
    PUBLISHES_QOS_2,
    PUBLISHES_SEVERAL,
    PUBLISHES_SEVERAL_QOS_2,
    RECONNECTS,
    RESUMES,
    STARTS_CLEAN,
)
from semel.probe.client.server import (
    ANSWERED,
    QOS_1,
    QOS_1_AND_2,
    QOS_2,
    SubjectLink,
    first_number,
)
from semel.probe.client.trial import ClientTrial
from semel.probe.verdicts import SEND

# How long nothing forbidden may come, where a client could send it at once.
SHORT_WATCH: Final = 1.0
# How long a PUBLISH may stay unanswered on a live connection.
LONG_WATCH: Final = 6.0
# A reason code with which a receiver refuses a message (5.0).
QUOTA_EXCEEDED: Final = 0x97


async def first_qos_1(trial: ClientTrial) -> None:
    link = await trial.connected(withheld=QOS_1)
    message = await trial.publication(link, 1)
    trial.must(not message.dup, "the first transmission has DUP 1")


async def first_qos_2(trial: ClientTrial) -> None:
    link = await trial.connected(withheld=QOS_2)
    message = await trial.publication(link, 2)
    trial.must(not message.dup, "the first transmission has DUP 1")


async def qos_2_released(trial: ClientTrial) -> None:
    link = await trial.connected(withheld=QOS_2)
    message = await trial.publication(link, 2)
    link.send(wire.pubrec(message.packet_id))
    await trial.must_answer(link, PUBREL, message.packet_id)


async def identifiers_distinct(trial: ClientTrial) -> None:
    link = await trial.connected(withheld=QOS_1_AND_2)
    await link.wait_until(lambda: len(trial.open_publications(link)) > 1, trial.timeout)
    await trial.pause(SHORT_WATCH)
    messages = trial.open_publications(link)
    if len(messages) < 2:
        raise ControlFailed("the program had only one PUBLISH open in this run")
    seen: dict[int, Publish] = {}
    for message in messages:
        earlier = seen.setdefault(message.packet_id, message)
        trial.must(
            is_same_message(earlier, message),
            f"Packet Identifier {message.packet_id} was used for two messages at once",
        )


async def _resumed(trial: ClientTrial, qos: int) -> tuple[Publish, SubjectLink]:
    """A message that was not acknowledged, and the connection on which it is to come again."""
    link = await trial.connected(withheld=QOS_1_AND_2)
    message = await trial.publication(link, qos)
    link.cut()
    return message, await trial.must_reconnect()


async def _sent_again(trial: ClientTrial, link: SubjectLink, message: Publish) -> Publish | None:
    """The PUBLISH with the same content, preferably with the same Packet Identifier.

    A program may publish the same content more than once.
    """

    def same(*, packet_id: int | None) -> Publish | None:
        for each in link.published():
            if is_same_message(each, message) and packet_id in (None, each.packet_id):
                return each
        return None

    await link.wait_until(lambda: same(packet_id=message.packet_id) is not None, trial.timeout)
    return same(packet_id=message.packet_id) or same(packet_id=None)


async def session_kept(trial: ClientTrial) -> None:
    message, link = await _resumed(trial, 1)
    trial.must(
        await _sent_again(trial, link, message),
        f"the unacknowledged message was not sent again: {trial.state(link)}",
    )


async def resent_qos_1(trial: ClientTrial) -> None:
    await _resent(trial, 1)


async def resent_qos_2(trial: ClientTrial) -> None:
    await _resent(trial, 2)


async def _resent(trial: ClientTrial, qos: int) -> None:
    message, link = await _resumed(trial, qos)
    trial.must(
        await _sent_again(trial, link, message),
        f"PUBLISH {message.packet_id} was not sent again: {trial.state(link)}",
    )


async def resent_with_identifier(trial: ClientTrial) -> None:
    message, link = await _resumed(trial, min(trial.profile.qos - {0}))
    again = await _sent_again(trial, link, message)
    if again is None:
        raise ControlFailed(f"the message was not sent again: {trial.state(link)}")
    trial.must(
        again.packet_id == message.packet_id,
        f"PUBLISH {message.packet_id} was sent again with Packet Identifier {again.packet_id}",
    )


async def resent_with_dup(trial: ClientTrial) -> None:
    message, link = await _resumed(trial, min(trial.profile.qos - {0}))
    again = await _sent_again(trial, link, message)
    if again is None:
        raise ControlFailed(f"the message was not sent again: {trial.state(link)}")
    trial.must(again.dup, "the PUBLISH was sent again with DUP 0")


async def resent_in_order(trial: ClientTrial) -> None:
    link = await trial.connected(withheld=QOS_1_AND_2)
    await link.wait_until(lambda: len(trial.open_publications(link)) > 1, trial.timeout)
    await trial.pause(SHORT_WATCH)
    first = [message.packet_id for message in trial.open_publications(link)]
    if len(first) < 2:
        raise ControlFailed("the program had only one PUBLISH open in this run")
    link.cut()
    link = await trial.must_reconnect()
    await link.wait_until(lambda: len(trial.open_publications(link)) >= len(first), trial.timeout)
    again = [
        message.packet_id for message in trial.open_publications(link) if message.packet_id in first
    ]
    if len(again) < 2:
        raise ControlFailed(f"fewer than two were sent again: {trial.state(link)}")
    expected = [packet_id for packet_id in first if packet_id in again]
    trial.must(again == expected, f"sent in the order {expected}, and again in the order {again}")


async def pubrel_resent(trial: ClientTrial) -> None:
    link = await trial.connected(withheld=QOS_1_AND_2, answered=ANSWERED - {PUBREL})
    message = await trial.publication(link, 2)
    link.send(wire.pubrec(message.packet_id))
    if await link.wait_for(PUBREL, trial.timeout) is None:
        raise ControlFailed(f"no PUBREL came: {trial.state(link)}")
    link.cut()
    link = await trial.must_reconnect()

    def released() -> bool:
        return any(
            each.observed.packet_type == PUBREL
            and first_number(each.observed.data) == message.packet_id
            for each in link.arrivals
        )

    await link.wait_until(released, trial.timeout)
    trial.must(released(), f"PUBREL {message.packet_id} was not sent again: {trial.state(link)}")
    trial.must(
        all(each.packet_id != message.packet_id for each in link.published()),
        f"PUBLISH {message.packet_id} was sent again after its PUBREL",
    )


async def session_discarded(trial: ClientTrial) -> None:
    link = await trial.connected(withheld=QOS_1_AND_2)
    message = await trial.publication(link, 1)
    link.cut()
    # Nothing is acknowledged, so that a PUBREL can only belong to the old session.
    link = await trial.must_reconnect(session_present=False, withheld=QOS_1_AND_2)
    await trial.pause(SHORT_WATCH)
    resent = [each for each in link.published() if each.dup]
    trial.must(
        not resent,
        f"PUBLISH {message.packet_id} was sent again with DUP 1 although the server has no session",
    )
    trial.must(
        not link.times_received(PUBREL), "PUBREL was sent although the server has no session"
    )


async def clean_session_discarded(trial: ClientTrial) -> None:
    link = await trial.connected(withheld=QOS_1_AND_2)
    message = await trial.publication(link, min(trial.profile.qos - {0}))
    link.cut()
    link = await trial.accept(max(trial.timeout, 3 * (trial.profile.reconnect_seconds or 0)) + 5.0)
    if link.connect is not None and not link.connect.clean_start:
        trial.not_applicable("the program resumes its session after a cut")
    await trial.connected(withheld=QOS_1_AND_2, link=link)
    await trial.pause(SHORT_WATCH)
    trial.must(
        not any(each.dup for each in link.published()),
        f"PUBLISH {message.packet_id} of the old session was sent again, with DUP 1, in a session"
        " that began clean",
    )
    trial.must(not link.times_received(PUBREL), "PUBREL came in a session that began clean")


async def not_resent_while_connected(trial: ClientTrial) -> None:
    link = await trial.connected(withheld=QOS_1_AND_2)
    message = await trial.publication(link, min(trial.profile.qos - {0}))
    await link.wait_closed(LONG_WATCH)
    same = [each for each in link.published() if each.packet_id == message.packet_id]
    trial.must(len(same) == 1, f"PUBLISH {message.packet_id} was sent again without a reconnect")


async def refused_qos_1(trial: ClientTrial) -> None:
    link = await trial.connected(withheld=QOS_1_AND_2)
    message = await trial.publication(link, 1)
    link.send(server_wire.puback_with(message.packet_id, QUOTA_EXCEEDED))
    await trial.pause(SHORT_WATCH / 2)
    if link.is_closed:
        trial.not_applicable("the program ended when its message was refused")
    link.cut()
    try:
        link = await trial.must_reconnect()
    except ControlFailed:
        trial.not_applicable("the program ended when its message was refused")
    await trial.pause(SHORT_WATCH)
    trial.must(
        not any(each.packet_id == message.packet_id and each.dup for each in link.published()),
        "the refused message was sent again",
    )


async def refused_qos_2(trial: ClientTrial) -> None:
    link = await trial.connected(withheld=QOS_1_AND_2)
    message = await trial.publication(link, 2)
    link.send(server_wire.pubrec_with(message.packet_id, QUOTA_EXCEEDED))
    await link.wait_closed(SHORT_WATCH)
    released = [
        each
        for each in link.arrivals
        if each.observed.packet_type == PUBREL
        and first_number(each.observed.data) == message.packet_id
    ]
    if released:
        reading = "the standard ends the exchange there, and does not forbid the PUBREL in words"
        raise ClaimArguable(f"PUBREL came for a message that PUBREC had refused; {reading}")


async def pubrels_in_order(trial: ClientTrial) -> None:
    link = await trial.connected(withheld=QOS_1_AND_2)

    def received() -> list[int]:
        return [message.packet_id for message in link.published() if message.qos == 2]

    await link.wait_until(lambda: len(received()) > 1, trial.timeout)
    if len(received()) < 2:
        raise ControlFailed("the program had only one PUBLISH of QoS 2 open in this run")
    first, second = received()[:2]
    # Not in the order of the PUBLISH packets, so that it shows which order the client follows.
    link.send(wire.pubrec(second) + wire.pubrec(first))
    await trial.must_answer(link, PUBREL, second)
    await trial.must_answer(link, PUBREL, first)


async def _disconnected(trial: ClientTrial) -> SubjectLink:
    """A connection on which the client has sent DISCONNECT."""
    link = await trial.connected()
    await trial.work_begun(link)
    for number in (0, signal.SIGINT, signal.SIGTERM):
        if number:
            trial.recorder.note(f"sent {signal.Signals(number).name} to the program")
            trial.process.interrupt(number)
        elif not trial.profile.ends_by_itself:
            continue
        await link.wait_until(lambda: link.has_disconnected, trial.timeout)
        if link.has_disconnected:
            return link
        if link.is_closed:
            break
    trial.not_applicable("the program sent no DISCONNECT in this run")


async def disconnect_closes(trial: ClientTrial) -> None:
    link = await _disconnected(trial)
    trial.must(
        await link.wait_closed(trial.timeout),
        f"the client did not close the connection within {trial.timeout:g} s of its DISCONNECT",
    )


async def disconnect_is_last(trial: ClientTrial) -> None:
    link = await _disconnected(trial)
    await link.wait_closed(SHORT_WATCH)
    trial.must(
        link.arrivals[-1].observed.packet_type == DISCONNECT,
        "the client sent another packet after its DISCONNECT",
    )


def is_same_message(one: Publish, other: Publish) -> bool:
    """Whether two PUBLISH packets carry the same message."""
    return (
        one.payload == other.payload
        and one.qos == other.qos
        # In 5.0 a Topic Alias of the first connection is not valid on the second.
        and (one.topic_name == other.topic_name or not one.topic_name or not other.topic_name)
    )


CASES: Final = (
    ClientCase(
        "first-qos-1",
        SEND,
        "The first transmission of a QoS 1 PUBLISH has DUP 0.",
        first_qos_1,
        mqtt311="4.3.2-1",
        mqtt5="4.3.2-2",
        needs=(PUBLISHES_QOS_1,),
    ),
    ClientCase(
        "first-qos-2",
        SEND,
        "The first transmission of a QoS 2 PUBLISH has DUP 0.",
        first_qos_2,
        mqtt311="4.3.3-1",
        mqtt5="4.3.3-2",
        needs=(PUBLISHES_QOS_2,),
    ),
    ClientCase(
        "qos-2-released",
        SEND,
        "A PUBREC is answered with a PUBREL of the same Packet Identifier.",
        qos_2_released,
        mqtt311="4.3.3-1 2.3.1-6",
        mqtt5="4.3.3-4 2.2.1-5",
        needs=(PUBLISHES_QOS_2,),
    ),
    ClientCase(
        "identifiers-distinct",
        SEND,
        "Messages that are open at once have different Packet Identifiers.",
        identifiers_distinct,
        mqtt311="2.3.1-2",
        mqtt5="2.2.1-3 4.3.2-1",
        needs=(PUBLISHES_SEVERAL,),
    ),
    ClientCase(
        "identifiers-distinct-qos-2",
        SEND,
        "QoS 2 messages that are open at once have different Packet Identifiers.",
        identifiers_distinct,
        mqtt311="2.3.1-2",
        mqtt5="2.2.1-3 4.3.3-1",
        needs=(PUBLISHES_SEVERAL_QOS_2,),
    ),
    ClientCase(
        "session-kept",
        SEND,
        "The session outlives the connection: an unacknowledged message comes again.",
        session_kept,
        mqtt311="3.1.2-4 4.1.0-1 3.1.3-2",
        mqtt5="3.1.2-23 4.1.0-1 3.1.3-2",
        needs=(PUBLISHES_QOS_1, RESUMES),
    ),
    ClientCase(
        "resent-qos-1",
        SEND,
        "A QoS 1 PUBLISH without PUBACK is sent again after a reconnect.",
        resent_qos_1,
        mqtt311="4.4.0-1",
        mqtt5="4.4.0-1 4.3.2-3",
        needs=(PUBLISHES_QOS_1, RESUMES),
    ),
    ClientCase(
        "resent-qos-2",
        SEND,
        "A QoS 2 PUBLISH without PUBREC is sent again after a reconnect.",
        resent_qos_2,
        mqtt311="4.4.0-1 4.3.3-1",
        mqtt5="4.4.0-1 4.3.3-3",
        needs=(PUBLISHES_QOS_2, RESUMES),
    ),
    ClientCase(
        "resent-with-identifier",
        SEND,
        "A PUBLISH that is sent again has the Packet Identifier of the first transmission.",
        resent_with_identifier,
        mqtt311="4.4.0-1 2.3.1-3",
        mqtt5="4.4.0-1",
        needs=(PUBLISHES_QOS_1, RESUMES),
    ),
    ClientCase(
        "resent-with-dup",
        SEND,
        "A PUBLISH that is sent again has DUP 1.",
        resent_with_dup,
        mqtt311="3.3.1-1",
        mqtt5="3.3.1-1",
        needs=(PUBLISHES_QOS_1, RESUMES),
    ),
    ClientCase(
        "resent-in-order",
        SEND,
        "PUBLISH packets are sent again in the order of their first transmissions.",
        resent_in_order,
        mqtt311="4.6.0-1",
        mqtt5="4.6.0-1",
        needs=(PUBLISHES_SEVERAL, RESUMES),
    ),
    ClientCase(
        "pubrel-resent",
        SEND,
        "A PUBREL without PUBCOMP is sent again, and its PUBLISH is not.",
        pubrel_resent,
        mqtt311="4.4.0-1 4.3.3-1",
        mqtt5="4.4.0-1 4.3.3-5 4.3.3-6",
        needs=(PUBLISHES_QOS_2, RESUMES),
    ),
    ClientCase(
        "session-discarded",
        SEND,
        "With Session Present 0 the client discards its session and sends nothing again.",
        session_discarded,
        mqtt5="3.2.2-5",
        needs=(PUBLISHES_QOS_1, RESUMES),
    ),
    ClientCase(
        "clean-session-discarded",
        SEND,
        "A client that begins a clean session sends nothing of an earlier one again.",
        clean_session_discarded,
        mqtt311="3.1.2-6",
        mqtt5="3.1.2-4",
        needs=(PUBLISHES_QOS_1, RECONNECTS, STARTS_CLEAN),
    ),
    ClientCase(
        "not-resent-while-connected",
        SEND,
        "A PUBLISH is sent again only after a reconnect.",
        not_resent_while_connected,
        mqtt5="4.4.0-1",
        needs=(PUBLISHES_QOS_1,),
        is_slow=True,
    ),
    ClientCase(
        "refused-qos-1",
        SEND,
        "A message that a PUBACK has refused is not sent again.",
        refused_qos_1,
        mqtt5="4.4.0-2",
        needs=(PUBLISHES_QOS_1, RESUMES),
    ),
    ClientCase(
        "refused-qos-2",
        SEND,
        "A PUBREC that refuses a message is not answered with PUBREL.",
        refused_qos_2,
        mqtt5="4.3.3-4 4.4.0-2",
        needs=(PUBLISHES_QOS_2,),
    ),
    ClientCase(
        "pubrels-in-order",
        SEND,
        "PUBREL packets are sent in the order of the PUBREC packets.",
        pubrels_in_order,
        mqtt311="4.6.0-4",
        mqtt5="4.6.0-4",
        needs=(PUBLISHES_SEVERAL_QOS_2,),
    ),
    ClientCase(
        "disconnect-closes",
        SEND,
        "After its DISCONNECT the client closes the connection.",
        disconnect_closes,
        mqtt311="3.14.4-1",
        mqtt5="3.14.4-2",
    ),
    ClientCase(
        "disconnect-is-last",
        SEND,
        "After its DISCONNECT the client sends nothing more.",
        disconnect_is_last,
        mqtt311="3.14.4-2",
        mqtt5="3.14.4-1",
    ),
)

"""Cases from the conformance vectors: every packet that a client could send, right or wrong.

A packet that breaks a rule must end the connection. Its control is a right packet of the same type
whose bytes differ little, on a connection of its own. A right packet must not end it: it may be
refused for a reason that is no malformed packet and no protocol error.

Left out is what a broker may do or leave: see `wire_vectors`. It may also refuse control characters
and non-characters [1.5.4].
"""

from heapq import nsmallest
from typing import Final

from semel.mqtt import MQTT5
from semel.mqtt.packet_types import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBLISH,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
)
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.packets.subscribe import SubAck
from semel.mqtt.reasons import MALFORMED_PACKET, PROTOCOL_ERROR
from semel.mqtt.rules import (
    HASH_IS_LAST_LEVEL,
    PLUS_FILLS_ITS_LEVEL,
    PROTOCOL_LEVEL_SUPPORTED,
    SHARE_NAME_BEFORE_FILTER,
    SHARE_NAME_NOT_EMPTY,
    SHARE_NAME_WITHOUT_WILDCARDS,
    TOPIC_FILTER_NOT_EMPTY,
)
from semel.probe.broker.case import Case
from semel.probe.broker.case_steps import require_qos
from semel.probe.broker.connect_steps import connack_code
from semel.probe.broker.link import OTHER_PROTOCOLS, ProbeLink
from semel.probe.broker.trial import Trial
from semel.probe.claims import CaseInapplicable, ClaimArguable, ClaimRefuted, ControlFailed
from semel.probe.verdicts import RECEIVE
from semel.probe.wire_vectors import (
    CLIENT_TO_SERVER,
    WireVector,
    load_wire_vectors,
    short_title,
    slug,
)

# Answers have a place in an exchange only: the other modules have them.
ANSWERS: Final = frozenset(
    ("connack", "suback", "unsuback", "pingresp", "puback", "pubrec", "pubrel", "pubcomp", "auth")
)
# A broker may limit the size of packets more before it knows the client: larger CONNECTs are left
# out, and so are those that leave no room for a CONNACK.
LARGEST_CONNECT: Final = 4_096
NO_ROOM: Final = bytes.fromhex("2700000001")
# What a packet breaks that no numbered statement is about.
GENERAL: Final = {4: "MQTT-4.8.0-1", 5: "MQTT-4.13.1-1"}

# Controls that are tried, before the plainest packet of the type.
CONTROLS: Final = 3
# Reasons that say that a packet is not as the standard wants it.
FORMAL: Final = (MALFORMED_PACKET, PROTOCOL_ERROR)
# Protocol levels that are in use: MQTT 3.1, and those of bridges, which have the highest bit.
OTHER_LEVELS: Final = (3, 0x83, 0x84, 0x85)
# Rules about a Topic Filter that is a well-formed string. A broker that refuses such a filter in
# its SUBACK does not accept it; for ill-formed strings it must close [1.5.3-1, 1.5.3-2].
FILTER_RULES: Final = (
    TOPIC_FILTER_NOT_EMPTY,
    HASH_IS_LAST_LEVEL,
    PLUS_FILLS_ITS_LEVEL,
    SHARE_NAME_NOT_EMPTY,
    SHARE_NAME_WITHOUT_WILDCARDS,
    SHARE_NAME_BEFORE_FILTER,
)


def load_sendable_vectors() -> list[WireVector]:
    """The vectors that a client can send to any broker, at any time."""
    found = []
    for vector in load_wire_vectors(CLIENT_TO_SERVER):
        if vector.file in ANSWERS and vector.rule is None:
            continue
        if vector.packet_type == CONNECT:
            if len(vector.data) > LARGEST_CONNECT or NO_ROOM in vector.data:
                continue
        found.append(vector)
    return found


def distance(one: bytes, other: bytes) -> tuple[int, int]:
    """How much two packets differ: in length, then in the bytes at the same place."""
    differing = sum(a != b for a, b in zip(one, other, strict=False))
    return abs(len(one) - len(other)), differing


def nearest(vector: WireVector, right: list[WireVector]) -> list[WireVector]:
    """The right packets of the same type and version that differ least."""
    same = [
        each
        for each in right
        if each.version == vector.version and each.packet_type == vector.packet_type
    ]
    return nsmallest(CONTROLS, same, key=lambda each: distance(each.data, vector.data))


async def send_vector(trial: Trial, vector: WireVector, name: str = "a") -> ProbeLink:
    """A connection on which the bytes were sent, after a CONNECT unless they are one."""
    if vector.packet_type == CONNECT:
        link = await trial.open()
    else:
        link = await trial.connect(name)
    await link.send(vector.data)
    return link


async def require_accepted(trial: Trial, link: ProbeLink, vector: WireVector) -> None:
    """Claim that a right packet did not end the connection as malformed or a protocol error."""
    for violation in link.own_violations:
        # [MQTT-4.3.3-10] and others: what does not end a connection must be answered.
        if violation.rule.closes:
            rule = violation.rule.name
            trial.not_applicable(f"on a connection to this broker the packet would break {rule}")
    if vector.packet_type == CONNECT:
        observed = await link.wait_for_observed(CONNACK, trial.timeout)
        if observed is not None and observed.packet is None and connack_code(observed):
            # [3.1.1 MQTT-3.1.2-2] A server without the version of the CONNECT answers in its own.
            code = connack_code(observed)
            trial.not_applicable(f"the broker refused the version of this CONNECT: 0x{code:02x}")
        packet = observed.packet if observed is not None else None
        if not isinstance(packet, ConnAck):
            trial.refute_missing(link, CONNACK)
        if packet.reason in FORMAL and trial.is_5:
            trial.refute(f"the broker refused a right CONNECT: CONNACK 0x{packet.reason:02x}")
        if packet.reason:
            trial.not_applicable(f"the broker refused this CONNECT: 0x{packet.reason:02x}")
        return
    if vector.packet_type == DISCONNECT:
        await trial.must_close(link)
        return
    if trial.is_5 and await link.wait_closed(0.02):
        for observed in link.inbox:
            last = observed.packet
            if isinstance(last, Disconnect) and last.reason not in FORMAL:
                trial.not_applicable(f"the broker refused this packet: 0x{last.reason:02x}")
    await trial.must_stay_open(link, " after a packet that is right")


async def require_refused(trial: Trial, link: ProbeLink, vector: WireVector) -> None:
    """Claim that the packet ended the connection, and was neither answered nor accepted."""
    if vector.packet_type != CONNECT:
        try:
            await trial.must_refuse(link, allowed=(DISCONNECT,) if trial.is_5 else ())
        except ClaimRefuted:
            check_refused_filter(link, vector)
            raise
        return
    if vector.rule in OTHER_PROTOCOLS:
        await link.wait_for_change(trial.timeout)
        check_other_protocol(link, vector)
    await trial.must_refuse(link, allowed=(CONNACK, DISCONNECT))
    for observed in link.inbox:
        # In the form of either version.
        if observed.packet_type == CONNACK and len(observed.data) > 3:
            trial.must(connack_code(observed), "the broker accepted the CONNECT")


def check_other_protocol(link: ProbeLink, vector: WireVector) -> None:
    """Raise ClaimArguable if the broker accepted a protocol that is not MQTT 3.1.1 or 5.0."""
    if vector.rule is PROTOCOL_LEVEL_SUPPORTED and vector.data[8] not in OTHER_LEVELS:
        return
    # It answers in the form of that protocol, which need not be the one of the case.
    accepted = [each for each in link.inbox if each.packet_type == CONNACK]
    if accepted and not connack_code(accepted[0]):
        raise ClaimArguable(
            "the broker accepted this protocol name and level: a server may support other"
            " protocols than the one that the statement is about"
        )


def check_refused_filter(link: ProbeLink, vector: WireVector) -> None:
    """Raise ClaimArguable if the broker answered a wrong filter, but did not accept it."""
    if vector.rule not in FILTER_RULES:
        return
    for observed in link.inbox:
        answer = observed.packet
        if isinstance(answer, SubAck) and any(reason >= 0x80 for reason in answer.reasons):
            raise ClaimArguable(
                "the broker refused the filter in its SUBACK and did not close: 4.7 does not say"
                " how a filter is refused, 4.8 and 4.13 say that a protocol error closes"
            )
        if observed.packet_type == UNSUBACK:
            raise ClaimArguable(
                "the broker answered UNSUBSCRIBE and did not close: by 3.10.4 it compares the"
                " filter with those that it has, and no subscription can have this one"
            )


async def require_control(trial: Trial, vector: WireVector, controls: list[WireVector]) -> None:
    """The control arm: one of these packets, or the plainest of the type, is accepted."""
    for control in controls:
        if control.client_id != vector.client_id:
            # It would take over a connection of another lane.
            continue
        try:
            # Under another name, so that what follows does not take over its session.
            link = await send_vector(trial, control, "control")
            await require_accepted(trial, link, control)
        except (CaseInapplicable, ControlFailed):
            continue
        return
    link = await trial.connect("control")
    kind = vector.packet_type
    if kind == PUBLISH:
        await trial.publish(link, trial.topic())
    elif kind == SUBSCRIBE:
        await trial.subscribe(link, (trial.topic(), 0))
    elif kind == UNSUBSCRIBE:
        await trial.unsubscribe(link, trial.topic())
    await trial.must_stay_open(link)


def refused_case(vector: WireVector, right: list[WireVector], name: str) -> Case:
    """The case of a packet that breaks a rule."""

    async def run(trial: Trial) -> None:
        if vector.packet_type == CONNECT and trial.subject.user_name is not None:
            trial.not_applicable("the packet has no user name, which this broker requires")
        with trial.control():
            # Compared here, because most commands only list the cases.
            await require_control(trial, vector, nearest(vector, right))
            await trial.end()
        await require_refused(trial, await send_vector(trial, vector), vector)

    statements = vector.statements or (GENERAL[vector.version],)
    title = f"A broker closes the connection for {short_title(vector.name)}."
    return vector_case(vector, name, title, statements, run)


def accepted_case(vector: WireVector, name: str) -> Case:
    """The case of a packet that is right."""

    async def run(trial: Trial) -> None:
        if vector.packet_type == CONNECT and trial.subject.user_name is not None:
            trial.not_applicable("the packet has no user name, which this broker requires")
        if vector.is_qos_2_publish:
            # Whether the broker accepts QoS 2 at all is the claim of other cases.
            control = await trial.connect("control")
            require_qos(trial, control, 2)
            await trial.publish(control, trial.topic(), qos=2)
        link = await send_vector(trial, vector)
        try:
            await require_accepted(trial, link, vector)
        except ClaimRefuted as refuted:
            if vector.has_dollar_name:
                raise ClaimArguable(
                    f"{refuted}: by 4.7.2 a server may use names that begin with $ for its own"
                    " purposes, and the standard does not say how it refuses them"
                ) from None
            raise

    title = f"A broker accepts what is right: {short_title(vector.name)}."
    return vector_case(vector, name, title, vector.statements, run)


def vector_case(
    vector: WireVector, name: str, title: str, statements: tuple[str, ...], run: object
) -> Case:
    assert callable(run)
    numbers = " ".join(statement.removeprefix("MQTT-") for statement in statements)
    return Case(
        name,
        RECEIVE,
        title,
        run,
        mqtt5=numbers if vector.version == MQTT5 else "",
        mqtt311="" if vector.version == MQTT5 else numbers,
        is_from_vector=True,
        lane=lane_of(vector),
    )


def lane_of(vector: WireVector) -> str:
    """Cases of one lane do not overlap, so that no CONNECT takes over the connection of another."""
    if vector.client_id is None:
        return ""
    return f"the client identifier {vector.client_id!r} of the vectors"


def make_cases() -> tuple[Case, ...]:
    """A case for each vector that has statements, or breaks a rule."""
    known = load_sendable_vectors()
    right = [vector for vector in known if vector.rule is None and not vector.is_refusable]
    cases = []
    used: dict[tuple[str, int], int] = {}
    for vector in known:
        if vector.rule is None and (vector.is_refusable or not vector.statements):
            continue
        name = f"{vector.file}-{slug(short_title(vector.name))}"
        number = used[name, vector.version] = used.get((name, vector.version), 0) + 1
        if number > 1:
            name = f"{name}-{number}"
        if vector.rule is None:
            cases.append(accepted_case(vector, name))
        elif vector.rule.closes:
            cases.append(refused_case(vector, right, name))
    return tuple(cases)


CASES: Final = make_cases()

"""Cases from the conformance vectors: every packet that a server could send, right or wrong.

Vectors that break the same rule in the same packet type make one case; each is sent on a connection
of its own, on which a right PUBLISH was acknowledged before. Right ones are sent where they belong:
an acknowledgement for what the client has open, with its Packet Identifier.

[MQTT-4.8.0-1] In 3.1.1 a client must close the connection on a protocol violation. In 5.0 it SHOULD
[4.13.1], except where a statement is stricter: what it leaves open there is arguable.
"""

from typing import Final

from semel import standard
from semel.mqtt import MQTT5, Violation
from semel.mqtt.codec import Packet, decode
from semel.mqtt.packet_types import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PACKET_NAMES,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
)
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import SubAck, Subscribe
from semel.probe import wire
from semel.probe.claims import VERSION_NAMES, ControlFailed
from semel.probe.client import server_wire
from semel.probe.client.case import ClientCase
from semel.probe.client.needs import (
    PUBLISHES_QOS_1,
    PUBLISHES_QOS_2,
    STAYS,
    SUBSCRIBES,
)
from semel.probe.client.profile import ClientProfile
from semel.probe.client.server import ANSWERED, QOS_1, QOS_2, SubjectLink
from semel.probe.client.trial import ClientTrial
from semel.probe.verdicts import RECEIVE
from semel.probe.wire_vectors import (
    LARGEST,
    SERVER_TO_CLIENT,
    WireVector,
    load_wire_vectors,
    short_title,
    slug,
)

# Vectors that are sent of those that break one rule in one packet type.
EACH: Final = 2
SHOULD_CLOSE: Final = (
    "5.0 says that a client SHOULD close the connection then [4.13.1], which permits this"
)
NOT_STATED: Final = (
    "3.1.1 gives the form of this packet without saying that another form is a violation"
)
# Rules of 3.1.1 whose text has no MUST, so that breaking them may be no protocol violation.
WITHOUT_MUST: Final = frozenset(
    ("NO_SURPLUS_BYTES", "CONNACK_RESERVED_FLAGS", "PACKET_ID_NOT_ZERO", "REASON_CODES_PRESENT")
)
# Statements of 5.0 that oblige a client to close.
STRICT: Final = {DISCONNECT: "MQTT-3.14.1-1", AUTH: "MQTT-3.15.1-1"}
# A Packet Identifier that no client uses so early.
UNUSED_ID: Final = 54_321
# Rules whose vectors are wrong in the identifier, or have none.
KEEPS_ITS_ID: Final = frozenset(
    ("PACKET_ID_NOT_ZERO", "FIELD_WITHIN_PACKET", "VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES")
)
# What answers a packet of the client, and what must follow if it is accepted.
ACKNOWLEDGEMENTS: Final = frozenset((PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK))
ACTORS: Final = {
    version: {each.id: each.actor for each in standard.statements(name)}
    for version, name in VERSION_NAMES.items()
}


# --- wrong packets ---


def refusal_reading(vector: WireVector) -> str:
    """The reading in which a client may leave the connection open; "" if it must close."""
    assert vector.rule is not None
    if vector.version == MQTT5:
        is_strict = vector.rule.name == "FIXED_HEADER_FLAGS" and vector.packet_type in STRICT
        return "" if is_strict else SHOULD_CLOSE
    has_number = any(each.startswith("MQTT-") for each in vector.statements)
    return NOT_STATED if vector.rule.name in WITHOUT_MUST and not has_number else ""


def refusal_statements(vector: WireVector) -> tuple[str, ...]:
    """What a client breaks that goes on after the vector."""
    actors = ACTORS[vector.version]
    assert vector.rule is not None
    if vector.version == MQTT5:
        if not refusal_reading(vector):
            return (STRICT[vector.packet_type],)
        own = tuple(each for each in vector.statements if actors[each] != "server")
        return own or vector.statements
    binding = [each for each in vector.statements if actors[each] in ("both", "receiver")]
    if vector.rule.name == "FIXED_HEADER_FLAGS":
        # [MQTT-2.2.2-2] is about the receiver, and 3.6.1-1 and its like about servers.
        binding = ["MQTT-2.2.2-2"]
    return (*binding, "MQTT-4.8.0-1")


async def require_closed(trial: ClientTrial, vector: WireVector, *, is_first: bool) -> None:
    """Claim that the client closes the connection on which the vector came."""
    link = await trial.accept() if is_first else await trial.next_connection()
    title = short_title(vector.name)
    with trial.control():
        if vector.packet_type != CONNACK or is_first:
            link = await trial.engaged(link=link)
            await trial.must_acknowledge(link)
    if vector.packet_type == CONNACK and is_first:
        link.cut()
        link = await trial.next_connection()
    link.send(without_match(vector), breaks_rule=True)
    await trial.must_close(link, reading=refusal_reading(vector), what=title)


def without_match(vector: WireVector) -> bytes:
    """The bytes of a vector, with an unused Packet Identifier if it acknowledges something.

    A program that has nothing more to do once its message is acknowledged would close, too.
    """
    assert vector.rule is not None
    if vector.packet_type in ACKNOWLEDGEMENTS and vector.rule.name not in KEEPS_ITS_ID:
        return server_wire.with_packet_id(vector.data, UNUSED_ID)
    return vector.data


def refusal_case(group: list[WireVector], *, is_quick: bool) -> ClientCase:
    """The case of packets that break one rule."""
    first = group[0]
    chosen = group if len(group) <= EACH else [group[0], group[-1]]

    async def run(trial: ClientTrial) -> None:
        for index, vector in enumerate(chosen):
            await require_closed(trial, vector, is_first=index == 0)

    assert first.rule is not None
    numbers = numbers_of(refusal_statements(first))
    return ClientCase(
        slug(f"refuses-{first.file}-{first.rule.name}-{numbers_of(first.statements)}"),
        RECEIVE,
        f"A client closes the connection for {short_title(first.name)}.",
        run,
        mqtt311="" if first.version == MQTT5 else numbers,
        mqtt5=numbers if first.version == MQTT5 else "",
        needs=(STAYS,),
        is_quick=is_quick,
    )


# --- right packets ---


def is_acceptable(vector: WireVector, profile: ClientProfile) -> bool:
    """Whether a right packet is also right on a connection of this program."""
    packet = packet_of(vector.data, vector.version)
    properties = profile.connect.properties
    if len(vector.data) > (properties.maximum_packet_size or LARGEST):
        return False
    if isinstance(packet, Publish):
        if (packet.properties.topic_alias or 0) > profile.topic_alias_maximum:
            return False
        has_identifiers = bool(packet.properties.subscription_identifiers)
        # A Topic Name of length 0 needs an alias that was mapped before.
        return bool(packet.topic_name) and not (
            has_identifiers and not profile.has_subscription_identifier
        )
    if isinstance(packet, ConnAck):
        return _is_acceptable_connack(packet, profile)
    reason = getattr(packet, "reason", 0)
    assert isinstance(reason, int)
    return reason < 0x80 or packet_type_of(packet) == PUBREL


def _is_acceptable_connack(packet: ConnAck, profile: ClientProfile) -> bool:
    """Whether a CONNACK accepts this client and leaves it able to do what it does."""
    given = packet.properties
    maximum_qos = 2 if given.maximum_qos is None else given.maximum_qos
    size = given.maximum_packet_size
    return not (
        packet.reason
        or packet.session_present
        or given.assigned_client_identifier is not None
        or given.authentication_method is not None
        or given.authentication_data is not None
        # [MQTT-3.1.2-28] It must have been requested.
        or given.response_information is not None
        or (size is not None and size < profile.largest_packet + 16)
        or maximum_qos < max(profile.qos, default=0)
        or 0 in (given.retain_available, given.wildcard_subscription_available)
        or 0 in (given.shared_subscription_available, given.subscription_identifiers_available)
    )


async def require_accepted_by_client(
    trial: ClientTrial, vector: WireVector, link: SubjectLink | None
) -> SubjectLink | None:
    """Claim that a right packet does not end the connection, which is returned if it can go on."""
    kind = vector.packet_type
    title = short_title(vector.name)
    if kind == PUBLISH:
        if link is None:
            link = await _fresh(trial)
            link = await trial.engaged(link=link)
        await _require_publish(trial, link, vector, title)
        return link
    link = await _fresh(trial)
    if kind == CONNACK:
        link.answered = ANSWERED
        link.withheld = frozenset((1, 2)) if trial.profile.ends_by_itself else frozenset()
        # [MQTT-3.2.2-16] cannot be kept for a client without an identifier; others have one.
        link.send(vector.data)
        link.answer_earlier()
        await trial.must_acknowledge(link, f" after {title}")
    elif kind == PUBREL:
        link = await trial.engaged(link=link)
        packet_id = trial.next_packet_id()
        link.send(trial.message(link, trial.payload(), qos=2, packet_id=packet_id))
        with trial.control():
            await trial.must_answer(link, PUBREC, packet_id)
        link.send(server_wire.with_packet_id(vector.data, packet_id))
        await trial.must_answer(link, PUBCOMP, packet_id, f" after {title}")
    elif kind == SUBACK:
        await _require_suback(trial, link, vector, title)
    else:
        await _require_acknowledgement(trial, link, vector, title)
    return None


async def _fresh(trial: ClientTrial) -> SubjectLink:
    """The first connection of a process, which has published nothing yet."""
    if trial.links:
        for link in trial.links:
            link.cut()
        await trial.start_again()
    while True:
        link = await trial.accept()
        # The process that was ended may have connected once more.
        if not link.is_closed:
            return link


async def _require_publish(
    trial: ClientTrial, link: SubjectLink, vector: WireVector, title: str
) -> None:
    packet = packet_of(vector.data, vector.version)
    assert isinstance(packet, Publish)
    link.send(vector.data)
    if packet.qos == 1:
        await trial.must_answer(link, PUBACK, packet.packet_id, f" for {title}")
    elif packet.qos == 2:
        await trial.must_answer(link, PUBREC, packet.packet_id, f" for {title}")
        await trial.must_complete_qos_2(link, packet.packet_id)
    else:
        await trial.must_acknowledge(link, f" after {title}")


async def _require_suback(
    trial: ClientTrial, link: SubjectLink, vector: WireVector, title: str
) -> None:
    await trial.connected(link=link, answered=ANSWERED - {SUBSCRIBE})
    observed = await link.wait_for(SUBSCRIBE, trial.timeout)
    if observed is None or not isinstance(observed.packet, Subscribe):
        raise ControlFailed(f"no SUBSCRIBE came: {trial.state(link)}")
    packet = packet_of(vector.data, vector.version)
    assert isinstance(packet, SubAck)
    wanted = [each.qos for each in observed.packet.subscriptions]
    if len(packet.reasons) != len(wanted) or any(
        reason > qos for reason, qos in zip(packet.reasons, wanted, strict=True)
    ):
        # Not right as an answer to this request.
        return
    link.send(server_wire.with_packet_id(vector.data, observed.packet.packet_id))
    await trial.must_acknowledge(link, f" after {title}")


async def _require_acknowledgement(
    trial: ClientTrial, link: SubjectLink, vector: WireVector, title: str
) -> None:
    """PUBACK, PUBREC or PUBCOMP for a message of the client."""
    kind = vector.packet_type
    await trial.connected(
        link=link, withheld=QOS_1 if kind == PUBACK else QOS_2, answered=ANSWERED - {PUBREL}
    )
    message = await trial.publication(link, 1 if kind == PUBACK else 2)
    answer = server_wire.with_packet_id(vector.data, message.packet_id)
    if kind == PUBCOMP:
        link.send(wire.pubrec(message.packet_id))
        with trial.control():
            await trial.must_answer(link, PUBREL, message.packet_id)
    link.send(answer)
    if kind == PUBREC:
        await trial.must_answer(link, PUBREL, message.packet_id, f" after {title}")
        return
    packet_id = trial.next_packet_id()
    # A program that has nothing more to publish may end: in order, which is no refusal.
    link.send(trial.message(link, trial.payload(), packet_id=packet_id))
    answered = await link.wait_for(PUBACK, trial.timeout)
    if answered is not None or ended_in_order(trial, link) or await _exits_well(trial):
        return
    trial.refute(f"the client refused {title}: {trial.state(link)}")


async def _exits_well(trial: ClientTrial) -> bool:
    return await trial.process.wait_ended(trial.timeout) and trial.process.exit_code == 0


def ended_in_order(trial: ClientTrial, link: SubjectLink) -> bool:
    """Whether the client has ended the connection with a DISCONNECT that reports no error."""
    for each in link.arrivals:
        packet = each.observed.packet
        if isinstance(packet, Disconnect):
            return not trial.is_5 or packet.reason < 0x80
    return False


def acceptance_case(group: list[WireVector]) -> ClientCase:
    """The case of packets that are right."""
    first = group[0]
    kind = first.packet_type

    async def run(trial: ClientTrial) -> None:
        link: SubjectLink | None = None
        chosen = [each for each in group if is_acceptable(each, trial.profile)]
        if not chosen:
            trial.not_applicable("these packets are not right on a connection of this program")
        for vector in chosen:
            link = await require_accepted_by_client(trial, vector, link)

    actors = ACTORS[first.version]
    own = tuple(each for each in first.statements if actors[each] != "server")
    # [MQTT-4.5.0-2] A message that is refused is not acknowledged.
    numbers = numbers_of(own or (("MQTT-4.5.0-2",) if kind == PUBLISH else first.statements))
    needs: tuple[str, ...] = (STAYS,)
    if kind in (PUBREC, PUBCOMP):
        needs = (PUBLISHES_QOS_2,)
    elif kind == PUBACK:
        needs = (PUBLISHES_QOS_1,)
    elif kind == SUBACK:
        needs = (STAYS, SUBSCRIBES)
    return ClientCase(
        slug(f"accepts-{first.file}-{numbers_of(first.statements) or 'others'}"),
        RECEIVE,
        f"A client accepts what is right: {short_title(first.name)}.",
        run,
        mqtt311="" if first.version == MQTT5 else numbers,
        mqtt5=numbers if first.version == MQTT5 else "",
        needs=needs,
        is_quick=kind == PUBLISH,
    )


# --- both ---


def packet_of(data: bytes, version: int) -> Packet:
    """The packet that right bytes mean."""
    try:
        decoded = decode(data, version)
    except Violation as violation:
        raise AssertionError(f"a right vector: {violation}") from None
    assert decoded is not None
    return decoded[0]


def packet_type_of(packet: Packet) -> int:
    """The packet type of a decoded packet, by the name of its class."""
    return PACKET_NAMES.index(type(packet).__name__.upper())


def numbers_of(statements: tuple[str, ...]) -> str:
    """Statements as cases list them."""
    return " ".join(statement.removeprefix("MQTT-") for statement in statements)


def vector_cases() -> tuple[ClientCase, ...]:
    """The cases of all vectors, in the order of their files."""
    wrong: dict[tuple[object, ...], list[WireVector]] = {}
    right: dict[tuple[object, ...], list[WireVector]] = {}
    for vector in load_wire_vectors(SERVER_TO_CLIENT):
        if vector.is_refusable:
            continue
        if vector.rule is not None:
            key = (vector.version, vector.file, vector.rule.name, vector.statements)
            wrong.setdefault(key, []).append(vector)
        elif vector.packet_type in (PUBLISH, CONNACK) or (
            # In 3.1.1 acknowledgements have one form, which other cases use.
            vector.packet_type in ACKNOWLEDGEMENTS and vector.version == MQTT5
        ):
            right.setdefault((vector.version, vector.file, vector.statements), []).append(vector)
    seen: set[tuple[int, str]] = set()
    cases = []
    for group in wrong.values():
        assert group[0].rule is not None
        kind = (group[0].version, group[0].rule.name)
        cases.append(refusal_case(group, is_quick=kind not in seen and group[0].version != MQTT5))
        seen.add(kind)
    cases += [acceptance_case(group) for group in right.values()]
    # For some malformed packets of 5.0 the standard has no statement, not even an unnumbered one.
    return tuple(case for case in cases if case.mqtt311 or case.mqtt5)


CASES: Final = vector_cases()

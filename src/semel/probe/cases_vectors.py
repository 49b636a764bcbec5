"""Cases from the conformance vectors: every packet that a client could send, right or wrong.

A packet that breaks a rule must end the connection. Its control is a right packet of the same type
whose bytes differ little, on a connection of its own. A right packet must not end it: it may be
refused for a reason that is no malformed packet and no protocol error.

Left out is what a broker may do or leave: it may refuse control characters and non-characters
[1.5.4], and need not check a payload against its Payload Format Indicator [3.3.2.3.2].
"""

import re
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

from semel import vectors
from semel.mqtt import MQTT5, RULES, Rule
from semel.mqtt.packet_types import CONNACK, CONNECT, DISCONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.reasons import MALFORMED_PACKET, PAYLOAD_FORMAT_INVALID, PROTOCOL_ERROR
from semel.probe.cases import Case
from semel.probe.claims import CaseInapplicable, ClaimArguable, ControlFailed
from semel.probe.link import OTHER_PROTOCOLS, ProbeLink
from semel.probe.trial import Trial
from semel.probe.verdicts import RECEIVE

VERSIONS: Final = {"3.1.1": 4, "5.0": 5}
RULE_BY_NAME: Final = {rule.name: rule for rule in RULES}
# Answers have a place in an exchange only: the other modules have them.
ANSWERS: Final = frozenset(
    ("connack", "suback", "unsuback", "pingresp", "puback", "pubrec", "pubrel", "pubcomp", "auth")
)
# A broker may limit the size of packets, and more so before it knows the client: larger ones are
# left out, and so are CONNECTs that leave no room for a CONNACK.
LARGEST: Final = 100_000
LARGEST_CONNECT: Final = 4_096
NO_ROOM: Final = bytes.fromhex("2700000001")
# Rules that only our own limits state, or that a broker may check and need not.
LIMIT: Final = "limit"
# What a packet breaks that no numbered statement is about.
GENERAL: Final = {4: "MQTT-4.8.0-1", 5: "MQTT-4.13.1-1"}

# Vectors have few client identifiers and topics among them: those that use them do not overlap.
LANES: Final = {
    CONNECT: "client identifiers of the vectors",
    **dict.fromkeys((PUBLISH, SUBSCRIBE, UNSUBSCRIBE), "topics of the vectors"),
}
# Controls that are tried, before the plainest packet of the type.
CONTROLS: Final = 3
# Reasons that say that a packet is not as the standard wants it.
FORMAL: Final = (MALFORMED_PACKET, PROTOCOL_ERROR)


@dataclass(frozen=True)
class ClientVector:
    """One vector that a client could send. `rule` is None if it is right."""

    file: str
    name: str
    version: int
    statements: tuple[str, ...]
    data: bytes
    rule: Rule | None
    # Whether it has characters that a receiver may refuse.
    is_refusable: bool = False

    @property
    def is_connect(self) -> bool:
        return self.data[0] >> 4 == CONNECT


def load_vectors() -> list[ClientVector]:
    """The vectors whose bytes a client could send on a connection."""
    found = []
    for file in vectors.names():
        for entry in vectors.load(file):
            if "bytes" not in entry or entry["direction"] == "S>C":
                continue
            if "maximum_packet_size" in entry:
                continue
            data = vectors.parse_bytes(str(entry["bytes"]))
            rule = RULE_BY_NAME[str(entry["rule"])] if "rule" in entry else None
            if len(data) > LARGEST or (rule is not None and is_optional(rule)):
                continue
            if file in ANSWERS and rule is None:
                continue
            if data[0] >> 4 == CONNECT and (len(data) > LARGEST_CONNECT or NO_ROOM in data):
                continue
            version = VERSIONS[str(entry["version"])]
            statements = entry["statements"]
            assert isinstance(statements, list)
            found.append(
                ClientVector(
                    file,
                    str(entry["name"]),
                    version,
                    tuple(str(statement) for statement in statements),
                    data,
                    rule,
                    has_refusable_text(entry.get("packet")),
                )
            )
    return found


def has_refusable_text(value: object) -> bool:
    """Whether a text in the description of a packet has a character that may be refused.

    [1.5.4] U+0001 to U+001F, U+007F to U+009F, and the non-characters of Unicode.
    """
    if isinstance(value, dict):
        return any(has_refusable_text(each) for each in value.values())
    if isinstance(value, list):
        return any(has_refusable_text(each) for each in value)
    if not isinstance(value, str):
        return False
    return any(
        0 < ord(c) < 0x20
        or 0x7F <= ord(c) <= 0x9F
        or 0xFDD0 <= ord(c) <= 0xFDEF
        or ord(c) & 0xFFFE == 0xFFFE
        for c in value
    )


def is_optional(rule: Rule) -> bool:
    """Whether a broker need not check a rule."""
    return LIMIT in rule.boundaries or rule.reason == PAYLOAD_FORMAT_INVALID


def distance(one: bytes, other: bytes) -> tuple[int, int]:
    """How much two packets differ: in length, then in the bytes at the same place."""
    differing = sum(a != b for a, b in zip(one, other, strict=False))
    return abs(len(one) - len(other)), differing


def nearest(vector: ClientVector, right: list[ClientVector]) -> list[ClientVector]:
    """The right packets of the same type and version that differ least."""
    same = [
        each
        for each in right
        if each.version == vector.version and each.data[0] >> 4 == vector.data[0] >> 4
    ]
    return nsmallest(CONTROLS, same, key=lambda each: distance(each.data, vector.data))


async def send_vector(trial: Trial, vector: ClientVector) -> ProbeLink:
    """A connection on which the bytes were sent, after a CONNECT unless they are one."""
    if vector.is_connect:
        link = await trial.open()
    else:
        link = await trial.connect()
    await link.send(vector.data)
    return link


async def require_accepted(trial: Trial, link: ProbeLink, vector: ClientVector) -> None:
    """Claim that a right packet did not end the connection as malformed or a protocol error."""
    for violation in link.own_violations:
        # [MQTT-4.3.3-10] and others: what does not end a connection must be answered.
        if violation.rule.closes:
            rule = violation.rule.name
            trial.not_applicable(f"on a connection to this broker the packet would break {rule}")
    if vector.is_connect:
        packet = await trial.must_receive(link, CONNACK)
        assert isinstance(packet, ConnAck)
        if packet.reason in FORMAL and trial.is_5:
            trial.refute(f"the broker refused a right CONNECT: CONNACK 0x{packet.reason:02x}")
        if packet.reason:
            trial.not_applicable(f"the broker refused this CONNECT: 0x{packet.reason:02x}")
        return
    if vector.data[0] >> 4 == DISCONNECT:
        await trial.must_close(link)
        return
    if trial.is_5 and await link.wait_closed(0.02):
        for observed in link.inbox:
            last = observed.packet
            if isinstance(last, Disconnect) and last.reason not in FORMAL:
                trial.not_applicable(f"the broker refused this packet: 0x{last.reason:02x}")
    await trial.must_stay_open(link, " after a packet that is right")


async def require_refused(trial: Trial, link: ProbeLink, vector: ClientVector) -> None:
    """Claim that the packet ended the connection, and was neither answered nor accepted."""
    if not vector.is_connect:
        await trial.must_refuse(link, allowed=(DISCONNECT,) if trial.is_5 else ())
        return
    if vector.rule in OTHER_PROTOCOLS:
        await link.wait_for_change(trial.timeout)
        check_other_protocol(link, vector)
    await trial.must_refuse(link, allowed=(CONNACK, DISCONNECT))
    for observed in link.inbox:
        if isinstance(observed.packet, ConnAck):
            trial.must(observed.packet.reason, "the broker accepted the CONNECT")


def check_other_protocol(link: ProbeLink, vector: ClientVector) -> None:
    """Raise ClaimArguable if the broker accepted a protocol that is not MQTT 3.1.1 or 5.0."""
    if vector.rule in OTHER_PROTOCOLS and link.connack is not None and not link.connack.reason:
        raise ClaimArguable(
            "the broker accepted this protocol name and level: a server may support other"
            " protocols than the one that the statement is about"
        )


async def require_control(trial: Trial, vector: ClientVector, controls: list[ClientVector]) -> None:
    """The control arm: one of these packets, or the plainest of the type, is accepted."""
    for control in controls:
        try:
            await require_accepted(trial, await send_vector(trial, control), control)
        except (CaseInapplicable, ControlFailed):
            continue
        return
    link = await trial.connect()
    kind = vector.data[0] >> 4
    if kind == PUBLISH:
        await trial.publish(link, trial.topic())
    elif kind == SUBSCRIBE:
        await trial.subscribe(link, (trial.topic(), 0))
    elif kind == UNSUBSCRIBE:
        await trial.unsubscribe(link, trial.topic())
    await trial.must_stay_open(link)


def refused_case(vector: ClientVector, right: list[ClientVector], name: str) -> Case:
    """The case of a packet that breaks a rule."""

    async def run(trial: Trial) -> None:
        if vector.is_connect and trial.subject.user_name is not None:
            trial.not_applicable("the packet has no user name, which this broker requires")
        with trial.control():
            # Compared here, because most commands only list the cases.
            await require_control(trial, vector, nearest(vector, right))
        await require_refused(trial, await send_vector(trial, vector), vector)

    statements = vector.statements or (GENERAL[vector.version],)
    title = f"A broker closes the connection for {short_title(vector.name)}."
    return vector_case(vector, name, title, statements, run)


def accepted_case(vector: ClientVector, name: str) -> Case:
    """The case of a packet that is right."""

    async def run(trial: Trial) -> None:
        if vector.is_connect and trial.subject.user_name is not None:
            trial.not_applicable("the packet has no user name, which this broker requires")
        await require_accepted(trial, await send_vector(trial, vector), vector)

    title = f"A broker accepts what is right: {short_title(vector.name)}."
    return vector_case(vector, name, title, vector.statements, run)


def vector_case(
    vector: ClientVector, name: str, title: str, statements: tuple[str, ...], run: object
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
        lane=LANES.get(vector.data[0] >> 4, ""),
    )


def short_title(name: str) -> str:
    """The name of a vector without the statements before it."""
    return re.sub(r"^((MQTT-[\d.]+-\d+|U\d-\d+)(, )?)+: ", "", name)


def slug(text: str) -> str:
    """A text as part of a case's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:70].rstrip("-")


def make_cases() -> tuple[Case, ...]:
    """A case for each vector that has statements, or breaks a rule."""
    known = load_vectors()
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

"""What the client sent in all runs, packet by packet, as outcomes: rules that it kept or broke.

A rule is broken if three runs in three processes show it. A rule about single packets is kept if
packets of its type came and none broke it; rules about order are kept where OBSERVED lists the
packet whose coming shows it. Statements about a feature that the program did not use, such as a
will, do not apply.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from semel import standard
from semel.mqtt import PACKET_NAMES, RULES, Rule, Violation
from semel.mqtt.packet_types import (
    AUTH,
    CONNECT,
    DISCONNECT,
    MQTT5,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
)
from semel.mqtt.packets.connect import Connect
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import Subscribe
from semel.mqtt.trace import ObservedPacket
from semel.probe.claims import VERSION_NAMES
from semel.probe.client.server import SubjectLink
from semel.probe.evidence import WireEvent
from semel.probe.link_audit import AuditFinding
from semel.probe.outcomes import CaseOutcome
from semel.probe.verdicts import ARGUABLE, INCONCLUSIVE, NOT_APPLICABLE, SATISFIED, SEND, VIOLATED

# Runs that must agree before anything is called violated.
REPEATS: Final = 3
FROM_CLIENTS: Final = (
    *(CONNECT, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP),
    *(SUBSCRIBE, UNSUBSCRIBE, PINGREQ, DISCONNECT, AUTH),
)
# Features that a statement is about; a program that does not use them cannot break it.
WILL: Final = "a will"
USER_NAME: Final = "a user name"
PASSWORD: Final = "a password"  # nosec B105 # a word in a sentence
SHARED: Final = "a shared subscription"
QOS_1: Final = "PUBLISH packets of QoS 1"
QOS_2: Final = "PUBLISH packets of QoS 2"
QOS_0: Final = "PUBLISH packets of QoS 0"
RESPONSE_TOPIC: Final = "a Response Topic"
CONTENT_TYPE: Final = "a Content Type"
METHOD: Final = "enhanced authentication"
FEATURES: Final = {
    4: {
        **dict.fromkeys(("MQTT-3.1.2-9", "MQTT-3.1.2-14", "MQTT-3.1.3-10"), WILL),
        **dict.fromkeys(("MQTT-3.1.2-19", "MQTT-3.1.3-11"), USER_NAME),
        "MQTT-3.1.2-21": PASSWORD,
        **dict.fromkeys(("MQTT-3.3.1-2", "MQTT-4.3.1-1", "MQTT-2.3.1-5"), QOS_0),
        "MQTT-4.3.2-1": QOS_1,
        "MQTT-4.3.3-1": QOS_2,
    },
    5: {
        **dict.fromkeys(("MQTT-3.1.2-9", "MQTT-3.1.2-12", "MQTT-3.1.3-11"), WILL),
        **dict.fromkeys([f"U5-{number}" for number in range(19, 26)], WILL),
        **dict.fromkeys(("MQTT-3.1.2-17", "MQTT-3.1.3-12"), USER_NAME),
        "MQTT-3.1.2-19": PASSWORD,
        **dict.fromkeys(("MQTT-4.8.2-1", "MQTT-4.8.2-2", "MQTT-3.8.3-4"), SHARED),
        **dict.fromkeys(("MQTT-3.3.1-2", "MQTT-4.3.1-1", "MQTT-2.2.1-2"), QOS_0),
        "MQTT-4.3.2-2": QOS_1,
        "MQTT-4.3.3-2": QOS_2,
        **dict.fromkeys(("MQTT-3.3.2-13", "MQTT-3.3.2-14"), RESPONSE_TOPIC),
        "MQTT-3.3.2-19": CONTENT_TYPE,
        **dict.fromkeys(("U5-13", "U5-18"), METHOD),
    },
}
# Rules about order that the coming of a packet shows to be kept, if nothing breaks them.
OBSERVED: Final = {
    "CONNECT_FIRST": CONNECT,
    "PACKET_FROM_ITS_SIDE": CONNECT,
    "FIRST_SEND_WITHOUT_DUP": PUBLISH,
    "SUBSCRIPTION_IDENTIFIER_FROM_SERVER": PUBLISH,
    "REASON_CODE_FROM_ITS_SIDE": DISCONNECT,
    "SESSION_EXPIRY_NOT_REVIVED": DISCONNECT,
}
# Protocol name and level of MQTT 3.1.
MQTT_3_1: Final = b"\x00\x06MQIsdp\x03"
# Rules that the standard states less clearly, and the reading in which a client keeps them.
READINGS: Final = {
    "RELEASE_FITS_PUBLISH": "the standard ends an exchange that PUBREC refuses, and does not forbid"
    " the PUBREL in words",
}
# Statements that no rule names: a packet that breaks them reads as one that is wrong otherwise.
IMPLIED: Final = {("FIELD_WITHIN_PACKET", CONNECT): "3.1.3-1"}


@dataclass
class BrokenRule:
    """A rule that the client broke in at least one run."""

    finding: AuditFinding
    evidence: tuple[WireEvent, ...]
    runs: int = 0


@dataclass
class ClientAudit:
    """What was seen of the client in one version."""

    version: int
    # How many packets of each type came.
    packets: dict[int, int] = field(default_factory=dict)
    features: set[str] = field(default_factory=set)
    broken: dict[tuple[str, int], BrokenRule] = field(default_factory=dict)
    processes: int = 0

    def add(self, links: Sequence[SubjectLink], evidence: Iterable[WireEvent]) -> bool:
        """Add one run. Returns whether it must be repeated, because too few runs show a rule."""
        self.processes += 1
        kept = tuple(evidence)
        for link in links:
            for arrival in link.arrivals:
                kind = arrival.observed.packet_type
                self.packets[kind] = self.packets.get(kind, 0) + 1
                self.features |= features_of(arrival.observed)
        found: dict[tuple[str, int], AuditFinding] = {}
        for link in links:
            for finding in link.findings:
                violation = finding.violation
                if is_excused(finding):
                    continue
                found.setdefault((violation.rule.name, violation.packet_type), finding)
        for key, finding in found.items():
            self.broken.setdefault(key, BrokenRule(finding, kept)).runs += 1
        return any(self.broken[key].runs < REPEATS for key in found)

    def outcomes(self) -> list[CaseOutcome]:
        """The rules that were broken, then those that were kept."""
        statements = {each.id: each for each in standard.statements(VERSION_NAMES[self.version])}
        found = [self._broken_outcome(broken, statements) for broken in self.broken.values()]
        # What another packet type broke is not kept on the whole, but its own row says so.
        for rule in RULES:
            for packet_type in FROM_CLIENTS:
                if (rule.name, packet_type) not in self.broken:
                    found += self._kept_outcomes(rule, packet_type, statements)
        return found

    def _broken_outcome(
        self, broken: BrokenRule, known: dict[str, standard.Statement]
    ) -> CaseOutcome:
        violation = broken.finding.violation
        statements = binding(violation, known, qos_of(broken.finding.data))
        times = f"in {broken.runs} runs" if broken.runs > 1 else "in one run"
        verdict = VIOLATED if broken.runs >= REPEATS else INCONCLUSIVE
        reading = READINGS.get(violation.rule.name, "")
        if reading and verdict == VIOLATED:
            verdict = ARGUABLE
        return CaseOutcome(
            audit_name(violation.rule, violation.packet_type),
            VERSION_NAMES[self.version],
            SEND,
            statements,
            violation.rule.sentence,
            verdict,
            f"the client sent {broken.finding.data[:64].hex()} {times}: {violation.seen}"
            + (f"; {reading}" if reading else ""),
            broken.evidence,
            broken.runs,
        )

    def _kept_outcomes(
        self, rule: Rule, packet_type: int, known: dict[str, standard.Statement]
    ) -> list[CaseOutcome]:
        if rule.name in OBSERVED:
            if OBSERVED[rule.name] != packet_type:
                return []
        elif "decode" not in rule.boundaries or {"exchange", "limit"} & set(rule.boundaries):
            return []
        statements = [
            each
            for each in own_statements(rule, self.version, packet_type)
            if known[each].actor != "server"
        ]
        by_reason: dict[tuple[str, str], list[str]] = {}
        for statement in statements:
            feature = FEATURES[self.version].get(statement)
            if not self.packets.get(packet_type):
                reason = f"the program sent no {PACKET_NAMES[packet_type]} in this run"
                verdict = NOT_APPLICABLE
            elif feature is not None and feature not in self.features:
                verdict, reason = NOT_APPLICABLE, f"the program did not use {feature} in this run"
            else:
                times = self.packets[packet_type]
                name = PACKET_NAMES[packet_type]
                verdict, reason = SATISFIED, f"kept in {times:,} {name} packets"
            by_reason.setdefault((verdict, reason), []).append(statement)
        return [
            CaseOutcome(
                audit_name(rule, packet_type)
                + ("" if verdict == SATISFIED else f"-unused-{index}"),
                VERSION_NAMES[self.version],
                SEND,
                tuple(named),
                rule.sentence,
                verdict,
                reason,
                runs=self.processes,
            )
            for index, ((verdict, reason), named) in enumerate(by_reason.items(), 1)
        ]


def own_statements(rule: Rule, version: int, packet_type: int) -> tuple[str, ...]:
    """The statements of a rule for a packet type.

    Those without a packet type are about every packet that can break the rule.
    """
    numbers = rule.mqtt5 if version == MQTT5 else rule.mqtt311
    prefix = f"{PACKET_NAMES[packet_type]}:"
    own = [number.removeprefix(prefix) for number in numbers if number.startswith(prefix)]
    if (rule.name, packet_type) in IMPLIED:
        own.append(IMPLIED[rule.name, packet_type])
    if packet_type in carriers(rule):
        own += [number for number in numbers if ":" not in number]
    return tuple(number if number[0] == "U" else f"MQTT-{number}" for number in own)


def carriers(rule: Rule) -> tuple[int, ...]:
    """The packet types of a client to which a rule's statements without a packet name apply."""
    name = rule.name
    if name in OBSERVED:
        return (OBSERVED[name],)
    if name.startswith("TEXT_"):
        return (CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE)
    if name.startswith("TOPIC_NAME_"):
        return (PUBLISH,)
    if name.startswith(("TOPIC_FILTER_", "HASH_", "PLUS_")):
        return (SUBSCRIBE, UNSUBSCRIBE)
    if name == "PACKET_ID_NOT_ZERO":
        return (PUBLISH, SUBSCRIBE, UNSUBSCRIBE)
    if name.startswith("PROPERTY_"):
        return (CONNECT, PUBLISH, SUBSCRIBE)
    return FROM_CLIENTS


def binding(
    violation: Violation, known: dict[str, standard.Statement], qos: int
) -> tuple[str, ...]:
    """The statements of a broken rule that bind a client, for the QoS of the packet."""
    other = {1: "MQTT-4.3.3-", 2: "MQTT-4.3.2-"}.get(qos, "-")
    named = [each for each in violation.statements if not each.startswith(other)]
    own = tuple(each for each in named if known[each].actor != "server")
    return own or tuple(named) or violation.statements


def is_excused(finding: AuditFinding) -> bool:
    """Whether a packet is no mistake of the client, although it breaks a rule."""
    rule, packet_type = finding.violation.rule, finding.violation.packet_type
    # It echoes the identifier of a wrong packet of ours.
    if rule.name == "PACKET_ID_NOT_ZERO" and packet_type not in carriers(rule):
        return True
    # A client whose 3.1.1 was refused may try MQTT 3.1, which is another protocol.
    return packet_type == CONNECT and MQTT_3_1 in finding.data[:12]


def qos_of(data: bytes) -> int:
    """The QoS bits of a PUBLISH; 0 for other packets."""
    return data[0] >> 1 & 3 if data[0] >> 4 == PUBLISH else 0


def features_of(observed: ObservedPacket) -> set[str]:
    """What a packet uses, of the features that statements are about."""
    packet = observed.packet
    found: set[str] = set()
    if isinstance(packet, Connect):
        found |= {WILL} if packet.will is not None else set()
        found |= {USER_NAME} if packet.user_name is not None else set()
        found |= {PASSWORD} if packet.password is not None else set()
        found |= {METHOD} if packet.properties.authentication_method is not None else set()
    elif isinstance(packet, Publish):
        found.add((QOS_0, QOS_1, QOS_2)[packet.qos])
        found |= {RESPONSE_TOPIC} if packet.properties.response_topic is not None else set()
        found |= {CONTENT_TYPE} if packet.properties.content_type is not None else set()
    elif isinstance(packet, Subscribe) and any(
        each.topic_filter.startswith("$share/") for each in packet.subscriptions
    ):
        found.add(SHARED)
    return found


def audit_name(rule: Rule, packet_type: int) -> str:
    """The name of the outcome for a rule and a packet type."""
    return f"audit-{rule.name.lower().replace('_', '-')}-{PACKET_NAMES[packet_type].lower()}"

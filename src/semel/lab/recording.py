"""The packets of a program under test, and the rules of the standard that it broke.

A `ConnectionTrace` of semel.mqtt checks each connection as its client sees it. A packet that a
fault kept from the client is recorded but not checked, because the client could not know of it.
Only the client's violations are findings; the server is semel's own broker.

    bytes ─▶ ConnectionTrace.read ─▶ ObservedPacket ─▶ Recording.record ─▶ RecordedPacket
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from semel import counts
from semel.lab.append_log import MOST_BYTES, MOST_ITEMS, AppendLog
from semel.mqtt import CLIENT, PACKET_NAMES, RULES, Packet, Violation
from semel.mqtt.packet_types import AUTH, CONNECT
from semel.mqtt.packets.acks import PubAck, PubComp, PubRec, PubRel
from semel.mqtt.packets.auth import Auth
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.connect import Connect
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import SubAck, Subscribe
from semel.mqtt.packets.unsubscribe import UnsubAck, Unsubscribe
from semel.mqtt.side import SIDES
from semel.mqtt.topics import quoted
from semel.mqtt.trace import ConnectionTrace, ObservedPacket, SessionTraces

# Violations that are kept; further ones are counted.
MOST_FINDINGS: Final = 1_000
# How many bytes of a packet a report shows.
SHOWN_BYTES: Final = 64

# The name for bytes whose packet type is invalid.
NO_PACKET: Final = "?"

# Selects packets by type: a name such as "PUBACK", or a class of semel.mqtt. None: any.
Kind = str | type | None


def packet_type(kind: Kind) -> int:
    """The packet type of a name or class; 0 for any. Raises ValueError."""
    if kind is None:
        return 0
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", repr(kind))
    if name.upper() not in PACKET_NAMES[1:]:
        raise ValueError(f"{kind!r} is not a packet type: use one of {', '.join(PACKET_NAMES[1:])}")
    return PACKET_NAMES.index(name.upper())


def side(name: str | None) -> int | None:
    """The side with this name; None for either. Raises ValueError."""
    if name is None:
        return None
    if name not in SIDES:
        raise ValueError(f"sender is {name!r}: it must be 'client' or 'server'")
    return SIDES.index(name)


@dataclass(frozen=True)
class RecordedPacket:
    """One packet that passed the proxy, or that a fault stopped there.

    `at` is in seconds since the recording began; `sender` is "client" or "server"; `packet` is None
    if the bytes are not a packet; `violations` are the client's; `fault` is the fault that was
    applied, if any.
    """

    number: int
    at: float
    connection: int
    client_id: str
    sender: str
    kind: str
    packet: Packet | None
    data: bytes
    violations: tuple[Violation, ...]
    fault: str | None

    def __str__(self) -> str:
        arrow = "──▶" if self.sender == SIDES[CLIENT] else "◀──"
        who = f"{self.connection} {quoted(self.client_id)}"
        words = f"{self.at:9.4f} {who} {arrow} {self.kind}{_describe_packet(self.packet)}"
        if self.fault is not None:
            words += f" ({self.fault})"
        if self.violations:
            words += f" broke {', '.join(one.rule.name for one in self.violations)}"
        return words


def _describe_packet(packet: Packet | None) -> str:
    """The distinguishing fields of a packet, without payloads and passwords."""
    if isinstance(packet, Publish):
        words = f" {quoted(packet.topic_name)} QoS {packet.qos}"
        if packet.qos:
            words += f" id {packet.packet_id}"
        words += " RETAIN" if packet.retain else ""
        words += " DUP" if packet.dup else ""
        return f"{words}, {counts.count(len(packet.payload), 'byte')}"
    if isinstance(packet, PubAck | PubRec | PubRel | PubComp):
        return f" id {packet.packet_id}" + (f" 0x{packet.reason:02x}" if packet.reason else "")
    if isinstance(packet, Subscribe):
        filters = ", ".join(quoted(one.topic_filter) for one in packet.subscriptions)
        return f" id {packet.packet_id} {filters}"
    if isinstance(packet, Unsubscribe):
        return f" id {packet.packet_id} {', '.join(map(quoted, packet.topic_filters))}"
    if isinstance(packet, SubAck | UnsubAck):
        codes = "".join(f" 0x{reason:02x}" for reason in packet.reasons)
        return f" id {packet.packet_id}{codes}"
    if isinstance(packet, ConnAck):
        return f" 0x{packet.reason:02x}" + (", session present" if packet.session_present else "")
    if isinstance(packet, Disconnect | Auth):
        return f" 0x{packet.reason:02x}"
    if isinstance(packet, Connect):
        return ", clean start" if packet.clean_start else ""
    return ""


class Recording:
    """All packets, in the order in which the clients sent and received them. Thread-safe."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        most_packets: int = MOST_ITEMS,
        most_bytes: int = MOST_BYTES,
        most_findings: int = MOST_FINDINGS,
    ) -> None:
        self._clock = clock
        self._began = clock()
        self._lock = threading.Lock()
        self._most_findings = most_findings
        self._findings: list[RecordedPacket] = []
        # Violations beyond the limit: how often each rule was broken.
        self._unlisted: Counter[str] = Counter()
        self.packets: AppendLog[RecordedPacket] = AppendLog(
            most_items=most_packets, most_bytes=most_bytes
        )
        self.sessions = SessionTraces()
        self.connections = 0

    def now(self) -> float:
        """Seconds since the recording began."""
        return self._clock() - self._began

    def open(self) -> ConnectionTrace:
        """Start the trace of a new connection."""
        self.connections += 1
        return ConnectionTrace(self.connections, self.sessions)

    def record(
        self,
        trace: ConnectionTrace,
        sender: int,
        observed: ObservedPacket,
        *,
        fault: str | None = None,
        reached_client: bool = True,
    ) -> RecordedPacket:
        """Check and record a packet; a server's packet may not have reached the client."""
        violations: tuple[Violation, ...] = ()
        if sender == CLIENT:
            violations = trace.check(sender, observed)
        elif reached_client:
            trace.check(sender, observed)
        return self.add(trace, sender, observed, violations, fault)

    def add(
        self,
        trace: ConnectionTrace,
        sender: int,
        observed: ObservedPacket,
        violations: tuple[Violation, ...],
        fault: str | None,
    ) -> RecordedPacket:
        """Record a packet that was checked, or one that the proxy repeated."""
        recorded = self.packets.add(
            lambda number: RecordedPacket(
                number,
                self.now(),
                trace.number,
                trace.client_id,
                SIDES[sender],
                PACKET_NAMES[observed.packet_type] if observed.packet_type else NO_PACKET,
                observed.packet,
                observed.data,
                violations,
                fault,
            ),
            len(observed.data),
        )
        if violations:
            with self._lock:
                if len(self._findings) < self._most_findings:
                    self._findings.append(recorded)
                else:
                    self._unlisted.update(violation.rule.name for violation in violations)
        return recorded

    def findings(
        self, client_id: str | None = None, ignore: Collection[str] = ()
    ) -> list[tuple[RecordedPacket, Violation]]:
        """The violations of all clients, or of one, except of the rules in `ignore`."""
        check_rule_names(ignore)
        with self._lock:
            findings = list(self._findings)
        return [
            (recorded, violation)
            for recorded in findings
            if client_id is None or recorded.client_id == client_id
            for violation in recorded.violations
            if violation.rule.name not in ignore
        ]

    def report(self, client_id: str | None = None, ignore: Collection[str] = ()) -> str | None:
        """The findings as text; None if there are none."""
        findings = self.findings(client_id, ignore)
        with self._lock:
            unlisted = {name: count for name, count in self._unlisted.items() if name not in ignore}
        if not findings and not unlisted:
            return None
        times = len(findings) + sum(unlisted.values())
        lines = [f"the program broke the standard, {times} {'time' if times == 1 else 'times'}:"]
        for recorded, violation in findings:
            lines.append(
                f"  {quoted(recorded.client_id)}, connection {recorded.connection},"
                f" {recorded.at:.3f} s, packet {recorded.number}"
            )
            lines.append(f"    {violation}")
            lines.append(f"    {format_bytes(recorded)}")
        for name, count in unlisted.items():
            lines.append(f"  {name}: {count} more, by any client, not listed")
        return "\n".join(lines)


def check_rule_names(names: Iterable[str]) -> None:
    """Raises ValueError if a name is not that of a rule."""
    known = {rule.name for rule in RULES}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no rule {name!r}; `semel rules` lists them")


def format_bytes(recorded: RecordedPacket) -> str:
    """The first bytes of a packet for a report, without secrets."""
    data, packet = recorded.data, recorded.packet
    secret = recorded.kind in (PACKET_NAMES[CONNECT], PACKET_NAMES[AUTH])
    if isinstance(packet, Connect):
        properties = packet.properties
        secret = packet.password is not None or properties.authentication_data is not None
    if secret:
        return f"{len(data)} bytes, not shown because they may contain a password"
    rest = f" … {len(data)} bytes" if len(data) > SHOWN_BYTES else ""
    return data[:SHOWN_BYTES].hex(" ") + rest


def format_packets(packets: Iterable[RecordedPacket], most: int) -> str:
    """The last `most` of these packets, one per line."""
    all_packets = list(packets)
    lines = [str(recorded) for recorded in all_packets[-most:]]
    if len(all_packets) > most:
        lines.insert(0, f"… {counts.count(len(all_packets) - most, 'packet')} before these")
    return "\n".join(lines)


def packet_filter(
    kind: Kind | Callable[[RecordedPacket], bool], sender: str | None, client_id: str | None
) -> Callable[[RecordedPacket], bool]:
    """A predicate that selects packets."""
    side(sender)
    if kind is None or isinstance(kind, str | type):
        number = packet_type(kind)
        name = PACKET_NAMES[number] if number else None
        predicate = None
    else:
        name = None
        predicate = kind

    def matches(recorded: RecordedPacket) -> bool:
        if sender not in (None, recorded.sender) or client_id not in (None, recorded.client_id):
            return False
        if name not in (None, recorded.kind):
            return False
        return predicate is None or bool(predicate(recorded))

    return matches

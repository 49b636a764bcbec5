"""The packets of a program under test, and the rules of the standard that it broke.

A `ConnectionTrace` of semel.mqtt checks each connection as its client sees it. A packet that a
fault kept from the client is recorded, but not checked: no client is blamed for what it could not
know. Only the client's violations are findings; the server is semel's own broker.

    bytes of a packet ─▶ ConnectionTrace.read ─▶ ObservedPacket ─▶ Recording.note ─▶ Recorded
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from semel import counts
from semel.lab.growing import MOST_BYTES, MOST_ITEMS, Growing
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
# Bytes of a packet that a report shows.
SHOWN_BYTES: Final = 64

# What a packet is called whose first byte is that of none.
NO_PACKET: Final = "?"

# What may say which packets are meant: a name such as "PUBACK", a class of semel.mqtt, or a
# function of what was recorded. None: any.
Kind = str | type | None


def packet_type(kind: Kind) -> int:
    """The type that a name or a class means; 0 for any. Raises ValueError."""
    if kind is None:
        return 0
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", repr(kind))
    if name.upper() not in PACKET_NAMES[1:]:
        raise ValueError(f"{kind!r} is no packet type; there are {', '.join(PACKET_NAMES[1:])}")
    return PACKET_NAMES.index(name.upper())


def side(name: str | None) -> int | None:
    """The side that a name means. Raises ValueError."""
    if name is None:
        return None
    if name not in SIDES:
        raise ValueError(f"{name!r} sends nothing: a sender is 'client' or 'server'")
    return SIDES.index(name)


@dataclass(frozen=True)
class Recorded:
    """One packet that passed, or that a fault kept from passing.

    `at` is in seconds since the recording began; `sender` is "client" or "server"; `packet` is None
    if the bytes are none; `violations` are the client's; `fault` says what was done to it, if
    anything was.
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
        words = f"{self.at:9.4f} {who} {arrow} {self.kind}{_details(self.packet)}"
        if self.fault is not None:
            words += f" ({self.fault})"
        if self.violations:
            words += f" broke {', '.join(one.rule.name for one in self.violations)}"
        return words


def _details(packet: Packet | None) -> str:
    """What tells one packet of a type from another; never a payload or a password."""
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
    """All packets, in the order in which the clients sent and got them. For any thread."""

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
        self._findings: list[Recorded] = []
        # Of packets that were one too many: how often each rule was broken.
        self._unlisted: Counter[str] = Counter()
        self.packets: Growing[Recorded] = Growing(most_items=most_packets, most_bytes=most_bytes)
        self.sessions = SessionTraces()
        self.connections = 0

    def now(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._began

    def open(self) -> ConnectionTrace:
        """A client has connected."""
        self.connections += 1
        return ConnectionTrace(self.connections, self.sessions)

    def note(
        self,
        trace: ConnectionTrace,
        sender: int,
        observed: ObservedPacket,
        *,
        fault: str | None = None,
        reached_client: bool = True,
    ) -> Recorded:
        """Record a packet of a client, or one of the server, which may not have reached it."""
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
    ) -> Recorded:
        """Keep a packet that was checked, or one that the proxy repeated."""
        recorded = self.packets.add(
            lambda number: Recorded(
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
    ) -> list[tuple[Recorded, Violation]]:
        """What the clients, or one of them, did wrong, apart from these rules."""
        check_rules(ignore)
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
        """The findings in words; None if there are none."""
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
            lines.append(f"    {shown_bytes(recorded)}")
        for name, count in unlisted.items():
            lines.append(f"  {name}, {count} more, by any client: too many to keep")
        return "\n".join(lines)


def check_rules(names: Iterable[str]) -> None:
    """These are names of rules. Raises ValueError."""
    known = {rule.name for rule in RULES}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no rule {name!r}; `semel rules` lists them")


def shown_bytes(recorded: Recorded) -> str:
    """The bytes of a packet for a report, but no secrets, and not too many."""
    data, packet = recorded.data, recorded.packet
    secret = recorded.kind in (PACKET_NAMES[CONNECT], PACKET_NAMES[AUTH])
    if isinstance(packet, Connect):
        properties = packet.properties
        secret = packet.password is not None or properties.authentication_data is not None
    if secret:
        return f"{len(data)} bytes, which may hold a password and are not shown"
    rest = f" … {len(data)} bytes" if len(data) > SHOWN_BYTES else ""
    return data[:SHOWN_BYTES].hex(" ") + rest


def listed(packets: Iterable[Recorded], most: int) -> str:
    """The last of these packets, a line for each."""
    all_packets = list(packets)
    lines = [str(recorded) for recorded in all_packets[-most:]]
    if len(all_packets) > most:
        lines.insert(0, f"… {counts.count(len(all_packets) - most, 'packet')} before these")
    return "\n".join(lines)

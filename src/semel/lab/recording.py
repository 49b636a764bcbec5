"""The packets of a program under test, and what it did wrong, by the rules that bind the broker.

A `Trace` follows one connection as its client has it: what the client sent, and what reached it. A
packet that a fault kept from the client is in the record, but is no part of the trace; so nobody is
blamed for what another could not know. What it knows of a session passes to the next connection of
the same client identifier.

    bytes of a packet ─▶ Trace.read ─▶ Reading ─▶ Recording.note ─▶ Recorded
                         the codec's rules        those of an Exchange, if it is the client's

After bytes that are no packet nobody can say what the connection has come to: from there on the
client's packets are judged one by one, and no longer by their order.
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from semel import counts
from semel.lab.growing import MOST_BYTES, MOST_ITEMS, Growing
from semel.mqtt import CLIENT, PACKET_NAMES, RULES, SERVER, Exchange, Packet, Violation
from semel.mqtt.codec import decode
from semel.mqtt.exchange import CONNECTED, CONNECTING, NEW
from semel.mqtt.exchange_rules import CONNECT_FIRST
from semel.mqtt.observation import observe
from semel.mqtt.packet_types import AUTH, CONNECT
from semel.mqtt.packets.acks import PubAck, PubComp, PubRec, PubRel
from semel.mqtt.packets.auth import Auth
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.connect import Connect
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import SubAck, Subscribe
from semel.mqtt.packets.unsubscribe import UnsubAck, Unsubscribe
from semel.mqtt.side import SIDES, Open
from semel.mqtt.topics import quoted

# Violations that are kept; further ones are counted.
MOST_FINDINGS: Final = 1_000
# Client identifiers whose sessions are known; of others it is not known what they have open.
MOST_SESSIONS: Final = 10_000
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


@dataclass(frozen=True)
class Reading:
    """What the bytes of a packet are: a packet, or all the rules of the codec that they break."""

    kind: int
    packet: Packet | None
    violations: tuple[Violation, ...]
    data: bytes


class Trace:
    """One connection, as its client has it."""

    def __init__(self, number: int, sessions: "Sessions") -> None:
        self.number = number
        self.client_id = ""
        self.sessions = sessions
        self.exchange = Exchange([])
        self.version = 0
        # It sent something that is no packet, or no CONNECT first.
        self.is_lost = False

    def read(self, data: bytes) -> Reading:
        """What these bytes are, by themselves."""
        kind = data[0] >> 4
        try:
            decoded = decode(data, self.version)
        except Violation as violation:
            observed = observe(data, self.version)
            if observed is None or not observed.violations:
                return Reading(kind, None, (violation,), data)
            if kind == CONNECT and not self.version:
                # As far as it can be read, so that people know whose it is.
                self.version = observed.version
                self._name(dict(observed.fields).get("client_id"))
            return Reading(kind, None, observed.violations, data)
        # The caller says that all of it is there.
        assert decoded is not None
        return Reading(kind, decoded[0], (), data)

    def _name(self, client_id: object) -> None:
        if isinstance(client_id, str):
            # Ill-formed text is read with surrogates, which no terminal could show.
            self.client_id = client_id.encode(errors="replace").decode()

    def judge(self, sender: int, reading: Reading) -> tuple[Violation, ...]:
        """The packet was sent by the client, or reached it: what the client did wrong with it."""
        packet = reading.packet
        if sender == SERVER:
            if packet is not None and not self.is_lost:
                self.exchange.observe(SERVER, packet, len(reading.data), [])
                if isinstance(packet, ConnAck):
                    self._connected(packet)
            return ()
        if packet is None:
            self.is_lost = True
            return reading.violations
        if self.is_lost:
            return ()
        if isinstance(packet, Connect) and self.exchange.phase == NEW:
            self.version = packet.version
            self.client_id = packet.client_id
            self.exchange = Exchange(self.sessions.carried(packet.client_id))
        found: list[Violation] = []
        self.exchange.observe(CLIENT, packet, len(reading.data), found)
        self.is_lost = any(violation.rule is CONNECT_FIRST for violation in found)
        return tuple(found)

    def _connected(self, packet: ConnAck) -> None:
        if self.exchange.phase != CONNECTED:
            return
        assigned = packet.properties.assigned_client_identifier
        if assigned is not None:
            self.client_id = assigned
        self.sessions.begin(self)

    def end(self) -> None:
        """The client's connection is over."""
        self.sessions.leave(self)


class Sessions:
    """What each client identifier has open, from one connection to the next."""

    def __init__(self, most: int = MOST_SESSIONS) -> None:
        self._most = most
        # None: nobody can know.
        self._left: OrderedDict[str, list[Open] | None] = OrderedDict()
        self._connected: dict[str, Trace] = {}
        self._has_forgotten = False

    def carried(self, client_id: str) -> list[Open] | None:
        """What a connection of this client begins with."""
        other = self._connected.get(client_id)
        if other is not None:
            # Its client comes again before the old connection is seen to end.
            return None if other.is_lost else other.exchange.carry()
        return self._left.get(client_id, None if self._has_forgotten else [])

    def begin(self, trace: Trace) -> None:
        """Its CONNECT was accepted, as far as its client knows."""
        self._connected[trace.client_id] = trace

    def leave(self, trace: Trace) -> None:
        """It is over."""
        client_id = trace.client_id
        if self._connected.get(client_id) is trace:
            del self._connected[client_id]
            self._keep(client_id, None if trace.is_lost else trace.exchange.carry())
        elif trace.exchange.phase == CONNECTING and client_id not in self._connected:
            # Its CONNACK never came: who knows what became of the session, and what it sent?
            self._keep(client_id, None)

    def _keep(self, client_id: str, carried: list[Open] | None) -> None:
        self._left[client_id] = carried
        self._left.move_to_end(client_id)
        if len(self._left) > self._most:
            self._left.popitem(last=False)
            self._has_forgotten = True


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
        self.sessions = Sessions()
        self.connections = 0

    def now(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._began

    def open(self) -> Trace:
        """A client has connected."""
        self.connections += 1
        return Trace(self.connections, self.sessions)

    def note(
        self,
        trace: Trace,
        sender: int,
        reading: Reading,
        *,
        fault: str | None = None,
        reached_client: bool = True,
    ) -> Recorded:
        """A packet was sent by a client, or by the server, whose packets may not reach it."""
        violations: tuple[Violation, ...] = ()
        if sender == CLIENT or reached_client:
            violations = trace.judge(sender, reading)
        return self.add(trace, sender, reading, violations, fault)

    def add(
        self,
        trace: Trace,
        sender: int,
        reading: Reading,
        violations: tuple[Violation, ...],
        fault: str | None,
    ) -> Recorded:
        """Keep a packet that was judged, or that is nobody's doing."""
        recorded = self.packets.add(
            lambda number: Recorded(
                number,
                self.now(),
                trace.number,
                trace.client_id,
                SIDES[sender],
                PACKET_NAMES[reading.kind] if reading.kind else NO_PACKET,
                reading.packet,
                reading.data,
                violations,
                fault,
            ),
            len(reading.data),
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

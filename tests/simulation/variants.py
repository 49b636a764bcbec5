"""Worlds that are broken on purpose: the simulation must detect each of them.

The broker's core is never changed. A variant breaks an interface: its store reports a commit that
has not happened, loses something at a restart, or splits a commit in two; its sealer skips a step;
its network changes a bit of the output; its server skips a part of a tick or a sweep, or what the
CommitGate has noted in it.
"""

from collections.abc import Callable
from typing import Final

from semel.broker.authority import Authority
from semel.broker.connection import Connection
from semel.broker.core import Broker
from semel.broker.identity import Identity
from semel.mqtt.codec import decode
from semel.mqtt.delivery import (
    ASSIGNED,
    FINISHED,
    FREED,
    QUEUED,
    RELEASED,
    STORED,
    Change,
    Delivery,
)
from semel.mqtt.message import Message
from semel.mqtt.packets.publish import Publish
from semel.mqtt.properties import TOPIC_ALIAS, Properties
from semel.store.commit import Commit, RecordedMessage
from semel.store.store import RestoredState
from tests.simulation.faults import MARK, Faults, Hooks
from tests.simulation.ledger import Snapshot
from tests.simulation.record import Sealer
from tests.simulation.rights import Rights
from tests.simulation.store import Pending, SimulatedStore, empty_database

Noted = Callable[[Commit, int], Snapshot]


class Variant:
    """A correct world; each of the others has one fault."""

    name: str = "faithful"
    # Its fault.
    fault: str = ""
    # Whether the witness queries the database at every packet.
    checks_disk: bool = True

    def store(self, noted: Noted) -> SimulatedStore:
        """The store of the broker."""
        return SimulatedStore(empty_database(), noted)

    def authority(self, faults: Faults, rights: Rights) -> Authority:
        """The authority of the broker."""
        return Hooks(faults, rights)

    def rights_changed(self, authority: Authority, rights: Rights) -> None:
        """The rights have changed: tell the authority."""
        authority.generation = rights.generation

    def sealer(self, stream: int) -> Sealer:
        """The sealer of a stream."""
        return Sealer(stream)

    def leaving(self, data: bytes, version: int) -> bytes:
        """Change bytes that leave the broker."""
        return data

    def last_seq(self, last_seq: int) -> int:
        """The last seq of a stream, as the restarted broker gets it."""
        return last_seq

    def receive(self, broker: Broker, connection: Connection, data: bytes, now: float) -> None:
        """Bytes reach the broker."""
        broker.receive(connection, data, now)

    def flush(self, broker: Broker, store: SimulatedStore, now: float) -> None:
        """A tick ends."""
        broker.flush(now)

    def sweep(self, broker: Broker, store: SimulatedStore, now: float) -> None:
        """Time has passed."""
        broker.sweep(now)

    def log(self, line: str) -> list[str]:
        """The lines that are written to the log for a line of the broker."""
        return [line]

    def full_disk_timeout(self, seconds: float) -> float:
        """How long the broker lets a client wait on a full disk."""
        return seconds


FAITHFUL: Final = Variant()


class Blind(Variant):
    """A world whose witness does not query the database.

    A fault must then show in what the clients get, or in the record.
    """

    checks_disk = False

    def __init__(self, inner: Variant) -> None:
        self.inner = inner
        self.name = f"{inner.name}, blind"
        self.fault = inner.fault

    def store(self, noted: Noted) -> SimulatedStore:
        return self.inner.store(noted)

    def authority(self, faults: Faults, rights: Rights) -> Authority:
        return self.inner.authority(faults, rights)

    def rights_changed(self, authority: Authority, rights: Rights) -> None:
        self.inner.rights_changed(authority, rights)

    def receive(self, broker: Broker, connection: Connection, data: bytes, now: float) -> None:
        self.inner.receive(broker, connection, data, now)

    def sealer(self, stream: int) -> Sealer:
        return self.inner.sealer(stream)

    def leaving(self, data: bytes, version: int) -> bytes:
        return self.inner.leaving(data, version)

    def last_seq(self, last_seq: int) -> int:
        return self.inner.last_seq(last_seq)

    def flush(self, broker: Broker, store: SimulatedStore, now: float) -> None:
        self.inner.flush(broker, store, now)

    def sweep(self, broker: Broker, store: SimulatedStore, now: float) -> None:
        self.inner.sweep(broker, store, now)

    def log(self, line: str) -> list[str]:
        return self.inner.log(line)

    def full_disk_timeout(self, seconds: float) -> float:
        return self.inner.full_disk_timeout(seconds)


# --- stores that report too early -----------------------------------------------------------------


class HastyStore(SimulatedStore):
    """Reports a pending commit as done if it contains changes of one kind.

    Besides these it may contain only the end of deliveries, which nobody waits for, so that only
    this one thing is too early. With `field`: commits that have this field and no message. With
    neither: every commit.
    """

    def __init__(self, noted: Noted, kind: int, field: str) -> None:
        super().__init__(empty_database(), noted)
        self._kind = kind
        self._field = field

    def write(self, commit: Commit) -> bool:
        super().write(commit)
        if self._is_early(commit):
            self.pending[-1].is_reported = True
            return True
        return False

    def _is_early(self, commit: Commit) -> bool:
        if not self._kind and not self._field:
            return True
        allowed = {self._kind, FINISHED}
        fields = {"sessions", "ended", "subscriptions", "records", "retained"} - {self._field}
        if self._kind == STORED:
            # A new message comes with its row, and its entries in queues.
            allowed |= {QUEUED, ASSIGNED}
            fields -= {"records", "retained"}
        if any(getattr(commit, field) for field in fields):
            return False
        if self._field:
            return bool(getattr(commit, self._field))
        kinds = {change.kind for _, change in commit.changes}
        return self._kind in kinds and kinds <= allowed


class Hasty(Variant):
    """Acknowledges, or sends, before the commit."""

    def __init__(self, name: str, fault: str, kind: int = 0, field: str = "") -> None:
        self.name = name
        self.fault = fault
        self._kind = kind
        self._field = field

    def store(self, noted: Noted) -> SimulatedStore:
        return HastyStore(noted, self._kind, self._field)


# --- gates that do not hold packets back ----------------------------------------------------------


class OpenGate(Variant):
    """Loses what the CommitGate has noted about sessions of one kind before the tick ends."""

    def __init__(self, name: str, fault: str, *, is_durable: bool) -> None:
        self.name = name
        self.fault = fault
        self._is_durable = is_durable

    def flush(self, broker: Broker, store: SimulatedStore, now: float) -> None:
        for state in broker.router.dirty:
            if state.is_durable == self._is_durable:
                state.awaits_commit = False
        broker.flush(now)


# --- stores that lose data ------------------------------------------------------------------------


class ForgetfulStore(SimulatedStore):
    """Loses something when the broker starts or reads."""

    def __init__(self, noted: Noted, what: str) -> None:
        super().__init__(empty_database(), noted)
        self._what = what

    def restore(self) -> RestoredState:
        saved = super().restore()
        if self._what == "wills":
            saved.wills.clear()
        elif self._what == "retained":
            saved.retained.clear()
        elif self._what == "subscriptions":
            saved.subscriptions.clear()
        elif self._what == "numbers":
            saved.next_session = max((each.store_id for each in saved.sessions), default=0) + 1
        return saved

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        deliveries, stored = super().exchanges(session)
        if self._what == "inbound":
            return deliveries, []
        if self._what == "released":
            return [each for each in deliveries if not each.released], stored
        if self._what == "in flight":
            return [], stored
        return deliveries, stored

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        deliveries = super().queue(session, first, limit)
        if self._what == "queue" and len(deliveries) > 1:
            return deliveries[1:]
        return deliveries

    def apply(self, count: int) -> Snapshot | None:
        snapshot = super().apply(count)
        if self._what == "no space" and snapshot is None and count > 0:
            # It is reported as if it had happened, in order.
            self.applied += self.pending[:count]
            del self.pending[:count]
        return snapshot


class OtherBytesStore(SimulatedStore):
    """Returns a different payload than it was given."""

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        return [_changed(each) for each in super().queue(session, first, limit)]

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        deliveries, stored = super().exchanges(session)
        return [_changed(each) for each in deliveries], stored


def _changed(delivery: Delivery) -> Delivery:
    """Flip one bit of its payload."""
    message = delivery.message
    if message is not None and message.payload:
        payload = bytes([message.payload[0] ^ 1]) + message.payload[1:]
        delivery.message = Message(
            message.topic_name,
            payload,
            qos=message.qos,
            retain=message.retain,
            properties=message.properties,
            expires_at=message.expires_at,
        )
    return delivery


class OtherBytes(Variant):
    """A flipped bit that no checksum detects."""

    name = "other bytes"
    fault = "a message that is read back from the store differs from the one written"

    def store(self, noted: Noted) -> SimulatedStore:
        return OtherBytesStore(empty_database(), noted)


class AliasStore(SimulatedStore):
    """Records a property that belongs to the connection."""

    def write(self, commit: Commit) -> bool:
        safe = super().write(commit)
        for at, record in enumerate(commit.records):
            commit.records[at] = RecordedMessage(
                record.stream,
                record.seq,
                record.topic_name,
                record.payload,
                qos=record.qos,
                retain=record.retain,
                dup=record.dup,
                client_id=record.client_id,
                packet_id=record.packet_id,
                version=record.version,
                properties=Properties([*record.properties.items, (TOPIC_ALIAS, 1)]),
            )
        return safe


class Aliased(Variant):
    """A recorded message has the topic alias of its connection."""

    name = "recorded alias"
    fault = "a message is recorded with the topic alias of its connection"

    def store(self, noted: Noted) -> SimulatedStore:
        return AliasStore(empty_database(), noted)


class Forgetful(Variant):
    """The store loses something."""

    def __init__(self, name: str, fault: str, what: str) -> None:
        self.name = name
        self.fault = fault
        self._what = what

    def store(self, noted: Noted) -> SimulatedStore:
        return ForgetfulStore(noted, self._what)


# --- stores that write only a part of a commit ----------------------------------------------------


class TornStore(SimulatedStore):
    """Writes commits without some of their contents."""

    def __init__(self, noted: Noted, kinds: frozenset[int], *, wills: bool, ended: bool) -> None:
        super().__init__(empty_database(), noted)
        self._kinds = kinds
        self._wills = wills
        self._ended = ended

    def write(self, commit: Commit) -> bool:
        safe = super().write(commit)
        last = self.pending[-1]
        self.pending[-1] = Pending(self._torn(commit), last.number, last.snapshot)
        return safe

    def _torn(self, commit: Commit) -> Commit:
        torn = Commit()
        torn.at = commit.at
        for number, change in commit.changes:
            if change.kind not in self._kinds:
                torn.changes.append((number, change))
        torn.sessions.extend(commit.sessions)
        if not self._ended:
            torn.ended.extend(commit.ended)
        torn.subscriptions.extend(commit.subscriptions)
        for entry in commit.wills:
            if entry[2] is not None or not self._wills:
                torn.wills.append(entry)
        torn.retained.extend(commit.retained)
        torn.records.extend(commit.records)
        torn.cursors.extend(commit.cursors)
        torn.packets.extend(commit.packets)
        return torn


class Torn(Variant):
    """A part of each commit is not written."""

    def __init__(
        self, name: str, fault: str, *kinds: int, wills: bool = False, ended: bool = False
    ) -> None:
        self.name = name
        self.fault = fault
        self._kinds = frozenset(kinds)
        self._wills = wills
        self._ended = ended

    def store(self, noted: Noted) -> SimulatedStore:
        return TornStore(noted, self._kinds, wills=self._wills, ended=self._ended)


class HalvingStore(SimulatedStore):
    """Splits a commit into two transactions: a crash between them leaves the first."""

    def apply_and_crash(self, count: int, steps: int) -> Snapshot | None:
        group = self.pending[:count]
        if group:
            half = Commit()
            stored: list[tuple[int, Change]] = []
            for each in group:
                stored += [entry for entry in each.commit.changes if entry[1].kind == STORED]
            half.changes.extend(stored)
            self.database.apply([half])
        return super().apply_and_crash(count, steps)


class Halving(Variant):
    """The message and its identifier are in two transactions."""

    name = "halves"
    fault = "the inbound identifier is committed before its message, in a transaction of its own"

    def store(self, noted: Noted) -> SimulatedStore:
        return HalvingStore(empty_database(), noted)


class ShufflingStore(SimulatedStore):
    """Reports the last commit first."""

    def report(self) -> Commit | None:
        self.applied.insert(0, self.applied.pop())
        return super().report()


class Shuffling(Variant):
    """Commits are reported in a different order."""

    name = "shuffle"
    fault = "commits are reported to the broker in a different order than it wrote them"

    def store(self, noted: Noted) -> SimulatedStore:
        return ShufflingStore(empty_database(), noted)


# --- networks and numbers -------------------------------------------------------------------------


class WithoutDup(Variant):
    """DUP is always 0."""

    name = "no DUP"
    fault = "a PUBLISH is sent again without DUP"

    def leaving(self, data: bytes, version: int) -> bytes:
        changed = bytearray(data)
        start = 0
        while start < len(data):
            decoded = decode(data, version, start=start)
            assert decoded is not None
            packet, end = decoded
            if isinstance(packet, Publish) and packet.qos:
                changed[start] &= 0xF7
            start = end
        return bytes(changed)


class AlwaysDup(WithoutDup):
    """DUP is always 1."""

    name = "always DUP"
    fault = "a PUBLISH is sent for the first time with DUP"

    def leaving(self, data: bytes, version: int) -> bytes:
        changed = bytearray(data)
        start = 0
        while start < len(data):
            decoded = decode(data, version, start=start)
            assert decoded is not None
            packet, end = decoded
            if isinstance(packet, Publish) and packet.qos:
                changed[start] |= 8
            start = end
        return bytes(changed)


class Recounting(Variant):
    """A stream reuses a seq."""

    name = "seq again"
    fault = "after a crash a stream reuses its last seq"

    def last_seq(self, last_seq: int) -> int:
        return max(0, last_seq - 1)


class Leaping(Variant):
    """A stream skips a seq."""

    name = "seq gap"
    fault = "after a crash a stream skips a seq"

    def last_seq(self, last_seq: int) -> int:
        return last_seq + 1 if last_seq else 0


# --- faults that affect others --------------------------------------------------------------------


class Unlisting(Variant):
    """A damaged session affects the sessions behind it."""

    name = "unlisted sessions"
    fault = "sessions behind a damaged one are not served any more"

    def flush(self, broker: Broker, store: SimulatedStore, now: float) -> None:
        router = broker.router
        for at, state in enumerate(router.dirty):
            if state.store_id in store.faults.damaged:
                del router.dirty[at + 1 :]
                break
        broker.flush(now)


class Unswept(Variant):
    """The first damaged session ends all sweeps."""

    name = "no sweep"
    fault = "after a damaged session wills, expiry and keep alive are not checked any more"

    def sweep(self, broker: Broker, store: SimulatedStore, now: float) -> None:
        if not store.faults.raised:
            broker.sweep(now)


class UnseenDamageStore(SimulatedStore):
    """Treats damaged rows as missing."""

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        if session in self.faults.damaged:
            return [], []
        return super().exchanges(session)


class UnseenDamage(Variant):
    """Damaged rows are ignored."""

    name = "unseen damage"
    fault = "in-flight messages of a damaged session are lost without a report"

    def store(self, noted: Noted) -> SimulatedStore:
        return UnseenDamageStore(empty_database(), noted)


class UnforgivingHooks(Hooks):
    """Treats its own failure as a permanent refusal."""

    def receive(self, identity: Identity, topic_name: str) -> bool:
        if (identity.client_id, topic_name) in self._faults.ever_unreceived:
            return False
        return super().receive(identity, topic_name)


class CutOff(Variant):
    """An authority that fails once excludes a client from a topic."""

    name = "cut off a topic"
    fault = "a client for which the authority failed once gets no more messages of that topic"

    def authority(self, faults: Faults, rights: Rights) -> Authority:
        return UnforgivingHooks(faults, rights)


class Impatient(Variant):
    """A paused connection counts as silent."""

    name = "own silence"
    fault = "a publisher that the broker does not read from is closed by its keep alive"

    def sweep(self, broker: Broker, store: SimulatedStore, now: float) -> None:
        paused = [
            connection for connection in broker.connections.values() if connection.paused_by_reader
        ]
        for connection in paused:
            connection.paused_by_reader = connection.was_paused_by_reader = False
        broker.sweep(now)
        for connection in paused:
            connection.paused_by_reader = True


class SilentLog(Variant):
    """Injected faults are not logged."""

    name = "no word"
    fault = "a failure that affects a client is not logged"

    def log(self, line: str) -> list[str]:
        return [] if MARK in line else [line]


class RepeatingLog(Variant):
    """Every line is logged twice."""

    name = "log flood"
    fault = "the end of a connection is logged more than once"

    def log(self, line: str) -> list[str]:
        return [line, line]


class UnreportedFullDisk(Variant):
    """Publishers are not told that the disk is full."""

    name = "full disk untold"
    fault = "a publisher waits for an acknowledgement for as long as the disk is full"

    def full_disk_timeout(self, seconds: float) -> float:
        return 0.0


class LostSharedQueue(Variant):
    """A session that has left a shared subscription ends with the queue that is on disk."""

    name = "lost shared queue"
    fault = "messages of a former member of a shared subscription go to no other member"

    def receive(self, broker: Broker, connection: Connection, data: bytes, now: float) -> None:
        self._forget(broker)
        super().receive(broker, connection, data, now)

    def sweep(self, broker: Broker, store: SimulatedStore, now: float) -> None:
        self._forget(broker)
        super().sweep(broker, store, now)

    def _forget(self, broker: Broker) -> None:
        for client_id, state in broker.router.sessions.items():
            if not any(each.share_name for each in broker.router.subscriptions.of(client_id)):
                state.session.backlog.may_be_shared_beyond = False


GENERAL: Final[tuple[Variant, ...]] = (
    Hasty("early ack", "everything is acknowledged before its commit"),
    Hasty("early PUBREL", "PUBREL leaves before its PUBREC is committed", RELEASED),
    Hasty("early PUBLISH", "PUBLISH leaves before its identifier is committed", ASSIGNED),
    Hasty("early PUBCOMP", "PUBCOMP leaves before the release is committed", FREED),
    Hasty("early PUBREC", "PUBREC leaves before the identifier is committed", STORED),
    Hasty("early SUBACK", "SUBACK leaves before the subscription is", field="subscriptions"),
    Hasty("early CONNACK", "CONNACK leaves before the session is committed", field="sessions"),
    OpenGate(
        "open gate, memory",
        "a kept message is acknowledged to, or reaches, a session in memory before its commit",
        is_durable=False,
    ),
    OpenGate(
        "open gate, durable",
        "what a tick did to a durable session is reported before its commit",
        is_durable=True,
    ),
    Forgetful("no inbound", "inbound identifiers are forgotten at a reconnect", "inbound"),
    Forgetful("reused id", "an identifier is used again before its PUBCOMP", "released"),
    Forgetful("no in flight", "what was in flight is forgotten", "in flight"),
    Forgetful("lost will", "wills are lost at a crash", "wills"),
    Forgetful("lost retained", "retained messages are lost at a crash", "retained"),
    Forgetful("lost subscriptions", "subscriptions are lost at a crash", "subscriptions"),
    Forgetful("skipped message", "the queue skips a message when it is refilled", "queue"),
    Forgetful("session number again", "a number of a session is given again", "numbers"),
    OtherBytes(),
    Aliased(),
    Forgetful("lost commit", "a commit that found no space is reported as safe", "no space"),
    Torn("kept will", "a will that was published stays on disk", wills=True),
    Torn("kept session", "a session that has ended stays on disk", ended=True),
    Torn("kept inbound", "the release of an inbound identifier never reaches the disk", FREED),
    Halving(),
    Shuffling(),
    WithoutDup(),
    AlwaysDup(),
    Recounting(),
    Leaping(),
    Unlisting(),
    Unswept(),
    UnseenDamage(),
    CutOff(),
    Impatient(),
    SilentLog(),
    RepeatingLog(),
    UnreportedFullDisk(),
    LostSharedQueue(),
)

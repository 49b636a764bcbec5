"""Compares every packet that leaves the broker with the database at that moment.

DESIGN.md section 4 says what may leave when. The witness queries the database by SQL, and knows
which responses and messages the received packets entitle a client to. It sees only the bytes, not
the broker's state.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from semel.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Violation,
)
from semel.mqtt.delivery import ASSIGNED, QUEUED
from semel.mqtt.reasons import NOT_AUTHORIZED
from semel.store.commit import Commit
from tests.simulation.clock import Broken
from tests.simulation.ledger import FAILURE, Accepted, Facts, Ledger, Outcome
from tests.simulation.network import Link
from tests.simulation.record import Sealer
from tests.simulation.store import SimulatedStore

_DELIVERY: Final = """
    SELECT session_id, number, release_number, flags & 3,
        CASE WHEN shared_payload_id IS NULL THEN delivery.payload ELSE shared_payload.payload END
    FROM session JOIN delivery ON session_id = session.id
        LEFT JOIN delivery_extra USING (session_id, number)
        LEFT JOIN shared_payload ON shared_payload.id = shared_payload_id
    WHERE client_id = ? AND packet_id = ?
"""
_INBOUND: Final = """
    SELECT packet_id FROM session JOIN inbound ON session_id = id WHERE client_id = ?
"""
_SUBSCRIPTIONS: Final = """
    SELECT topic_filter, options & 3 FROM session JOIN subscription ON session_id = id
    WHERE client_id = ?
"""

# session number, delivery number
Key = tuple[int, int]


@dataclass
class Owed:
    """The responses that the broker owes a connection, in order."""

    # None: before CONNECT.
    session_present: bool | None = None
    is_refused: bool = False
    # The code with which it must be refused; 0: any.
    refusal: int = 0
    # The subscriptions of its session after CONNECT.
    subscriptions: frozenset[str] = frozenset()
    has_connack: bool = False
    pubacks: deque[tuple[int, Outcome]] = field(default_factory=deque)
    pubrecs: deque[tuple[int, Outcome]] = field(default_factory=deque)
    pubcomps: deque[int] = field(default_factory=deque)
    # By packet identifier: a SUBSCRIBE, and the codes of its SUBACK.
    subscribes: dict[int, tuple[Subscribe, tuple[int, ...]]] = field(default_factory=dict)
    unsubscribes: dict[int, Unsubscribe] = field(default_factory=dict)
    pings: int = 0


class Witness:
    """Observes what the broker receives, and checks what it sends."""

    def __init__(self, ledger: Ledger, store: SimulatedStore, sealers: list[Sealer]) -> None:
        self._ledger = ledger
        self._store = store
        self._sealers = sealers
        # Whether the database is checked. If not, only responses and their order are.
        self.checks_disk = True
        self._owed: dict[int, Owed] = {}
        # The client of a session number; the link on which a delivery got its identifier; further
        # below, the last link on which its PUBLISH was sent.
        self._clients: dict[int, str] = {}
        self._assigned: dict[Key, int] = {}
        # The link of each session when the last commit was written.
        self._links_before: dict[int, int] = {}
        self._sent_on: dict[Key, int] = {}
        # Payloads of messages that wait for members of the shared subscription.
        self._queued: dict[Key, bytes] = {}
        # By epoch: the delivery of each identifier in use.
        self._in_use: dict[int, dict[int, Key | bytes]] = {}
        # The tick in which the packets that leave now were put into the output; 0: the last one.
        self.output_tick = 0
        # By commit number: the tick in which it was written.
        self.commit_ticks: dict[int, int] = {}

    # --- input ------------------------------------------------------------------------------------

    def owed(self, link: Link) -> Owed:
        """The responses owed to a connection."""
        found = self._owed.get(link.number)
        if found is None:
            found = self._owed[link.number] = Owed()
        return found

    def awaits_answer(self, link: Link) -> bool:
        """Whether a PUBLISH of a connection awaits its acknowledgement."""
        owed = self._owed.get(link.number)
        return owed is not None and owed.has_connack and bool(owed.pubacks or owed.pubrecs)

    def answered(self, facts: Facts, packet_id: int) -> None:
        """PUBACK or PUBCOMP has arrived: its identifier is free."""
        self._in_use.get(facts.epoch, {}).pop(packet_id, None)

    def written(self, commit: Commit) -> None:
        """The broker has written a commit."""
        self.commit_ticks[commit.number] = self._ledger.history.tick
        for number, client, _, _ in commit.sessions:
            self._clients[number] = client
        for number, change in commit.changes:
            facts = self._ledger.sessions.get(self._clients.get(number, ""))
            key = (number, change.number)
            if change.kind == QUEUED:
                if change.share and change.message is not None:
                    self._queued[key] = change.message.payload
            elif change.kind == ASSIGNED:
                if key in self._queued and facts is not None:
                    flown = self._ledger.flown.setdefault(facts.epoch, set())
                    flown.add(self._queued.pop(key))
                link = 0 if facts is None else facts.link
                if link != self._links_before.get(number):
                    # It may have been assigned on the previous one.
                    link = 0
                self._assigned[key] = link
        for number, client in self._clients.items():
            facts = self._ledger.sessions.get(client)
            self._links_before[number] = 0 if facts is None else facts.link

    def check_pings(self, links: list[Link]) -> None:
        """PINGRESP must not wait for anything but CONNACK."""
        for link in links:
            owed = self._owed.get(link.number)
            if owed is not None and owed.pings and owed.has_connack and link.has_broker:
                raise Broken(f"a PINGRESP is delayed on link {link.number}")

    def crash(self) -> None:
        """Keep only what is in the database."""
        self._owed = {}
        self.commit_ticks = {}
        self._in_use = {}
        stored_keys: set[Key] = set()
        if not self.checks_disk:
            return
        rows = self._query(
            "SELECT client_id, session_id, number, packet_id FROM delivery"
            " JOIN session ON session_id = id WHERE packet_id > 0"
        )
        epochs = {facts.client: facts.epoch for facts in self._ledger.durable.sessions}
        for client, session, number, packet_id in rows:
            key = (session, number)
            stored_keys.add(key)
            in_use = self._in_use.setdefault(epochs[client], {})
            if packet_id in in_use:
                raise Broken(f"{client} has two deliveries with identifier {packet_id} on disk")
            in_use[packet_id] = key
        # Numbers that are not in the database may be reused.
        self._sent_on = {key: link for key, link in self._sent_on.items() if key in stored_keys}
        self._assigned = {key: link for key, link in self._assigned.items() if key in stored_keys}

    # --- output -----------------------------------------------------------------------------------

    def check_output(self, link: Link, client: str, data: bytes) -> list[Packet]:
        """Check bytes that leave the broker, and return their packets."""
        packets: list[Packet] = []
        for packet in link.outward.receive(data):
            if isinstance(packet, Violation):
                raise Broken(f"{client} was sent an invalid packet: {packet}")
            packets.append(packet)
            self._check_packet(link, client, packet)
        return packets

    def _check_packet(self, link: Link, client: str, packet: Packet) -> None:
        owed = self.owed(link)
        if isinstance(packet, Publish):
            self._publish(link, client, packet)
        elif isinstance(packet, PubAck):
            self._acknowledgement(client, packet, owed.pubacks)
        elif isinstance(packet, PubRec):
            outcome = self._acknowledgement(client, packet, owed.pubrecs)
            facts = self._session(link, client)
            if facts is not None and facts.stored and self.checks_disk and not outcome.refused:
                # For a resent message, PUBREL may have arrived already.
                waits = packet.packet_id in facts.inbound
                if waits and (packet.packet_id,) not in self._query(_INBOUND, client):
                    raise Broken(
                        f"{client} was sent PUBREC {packet.packet_id}, whose identifier is"
                        " not on disk"
                    )
        elif isinstance(packet, PubRel):
            self._pubrel(link, client, packet)
        elif isinstance(packet, PubComp):
            self._pubcomp(link, client, packet, owed)
        elif isinstance(packet, SubAck):
            self._suback(link, client, packet, owed)
        elif isinstance(packet, UnsubAck):
            self._unsuback(link, client, packet, owed)
        elif isinstance(packet, ConnAck):
            self._connack(link, client, packet, owed)
        elif isinstance(packet, PingResp):
            owed.pings -= 1
            if owed.pings < 0:
                raise Broken(f"{client} was sent a PINGRESP without PINGREQ")
        elif not isinstance(packet, Disconnect):
            raise Broken(f"{client} was sent {packet}")

    def _session(self, link: Link, client: str) -> Facts | None:
        """The session of this connection, if it has one."""
        facts = self._ledger.sessions.get(client)
        return facts if facts is not None and facts.link == link.number else None

    def _query(self, question: str, *arguments: object) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._store.database.connection.execute(
            question, arguments
        ).fetchall()
        return rows

    def _connack(self, link: Link, client: str, packet: ConnAck, owed: Owed) -> None:
        owed.has_connack = True
        if bool(packet.reason) != owed.is_refused or owed.refusal not in (0, packet.reason):
            raise Broken(f"{client} was sent CONNACK with code 0x{packet.reason:02x}")
        if packet.session_present != owed.session_present:
            raise Broken(
                f"{client} was sent session_present {packet.session_present} instead of"
                f" {owed.session_present}"
            )
        facts = self._session(link, client)
        if facts is None or not self.checks_disk:
            return
        rows = self._query("SELECT expiry_interval FROM session WHERE client_id = ?", client)
        wanted = [(facts.expiry,)] if facts.stored else []
        # A session that ends with its connection is not restored, whatever is on disk.
        if rows != wanted and (facts.stored or rows != [(0,)]):
            raise Broken(f"{client} was sent CONNACK, but on disk its session is {rows}")
        wills = self._query("SELECT payload FROM will WHERE client_id = ?", client)
        if wills != ([(facts.will.payload,)] if facts.will is not None else []):
            raise Broken(f"{client} was sent CONNACK, but on disk its will is {wills}")
        if not facts.stored:
            return
        if not {row[0] for row in self._query(_INBOUND, client)} <= facts.inbound:
            raise Broken(f"{client} was sent CONNACK, but outdated identifiers are on disk")
        for topic_filter, _ in self._query(_SUBSCRIPTIONS, client):
            # One of them may have ended since then, by a change of rights.
            if topic_filter not in owed.subscriptions:
                raise Broken(f"{client} was sent CONNACK, but {topic_filter} is still on disk")

    def _acknowledgement(
        self, client: str, packet: PubAck | PubRec, owed: deque[tuple[int, Outcome]]
    ) -> Outcome:
        name = "PUBACK" if isinstance(packet, PubAck) else "PUBREC"
        if not owed or owed[0][0] != packet.packet_id:
            turn = owed[0][0] if owed else None
            raise Broken(
                f"{client} was sent {name} {packet.packet_id}; the next in order is {turn}"
            )
        _, outcome = owed.popleft()
        is_denied = packet.reason == NOT_AUTHORIZED
        if (packet.reason >= FAILURE) != outcome.refused or (
            is_denied != (outcome.refused and outcome.denied)
        ):
            raise Broken(f"{client} was sent {name} with code 0x{packet.reason:02x}")
        accepted = outcome.accepted
        if accepted is not None and self.checks_disk:
            self._check_safe(accepted, f"{client} was sent {name} {packet.packet_id} for")
        return outcome

    def _check_safe(self, accepted: Accepted, what: str) -> None:
        """A message is committed, if it must be durable."""
        if not accepted.is_durable:
            return
        if not accepted.commit or accepted.commit > self._store.safe:
            raise Broken(f"{what} {accepted.payload[:20]!r}, which is not committed")
        if self._sealers and accepted.payload:
            if self._query("SELECT 1 FROM record WHERE payload = ? LIMIT 1", accepted.payload):
                return
            for file in self._sealers[0].root.files:
                if file.name_safe and file.bytes_safe:
                    if any(row[3] == accepted.payload for row in file.rows):
                        return
            raise Broken(f"{what} {accepted.payload[:20]!r}, which is not in its stream")

    def _check_right(self, link: Link, client: str, packet: Publish) -> None:
        """The client may receive this message at the moment at which it leaves."""
        facts = self._session(link, client)
        if facts is not None and not self._ledger.may_receive(facts, packet.topic_name):
            again = ", again" if packet.dup else ""
            raise Broken(
                f"{packet.payload[:20]!r} of {packet.topic_name} was sent to {client}, which may"
                f" not receive it{again}"
            )

    def _check_not_withdrawn(self, facts: Facts, packet: Publish) -> None:
        """A session in memory had the right at the end of every tick since it got the message.

        If not, the message was withdrawn, and must not come back with the right. For a durable
        session the database shows that.
        """
        history = self._ledger.history
        for each in self._ledger.by_payload[packet.payload]:
            ticks = range(each.tick, self.output_tick)
            if not any(
                history.was_missing_at_end(facts.client, each.topic, tick) for tick in ticks
            ):
                return
        raise Broken(f"{packet.payload[:20]!r} was withdrawn from {facts.client}, but sent later")

    def _publish(self, link: Link, client: str, packet: Publish) -> None:
        self._check_right(link, client, packet)
        if not packet.qos:
            return
        facts = self._session(link, client)
        if facts is None:
            raise Broken(f"{client} was sent a message on a connection without its session")
        if packet.payload:
            self._check_subscribed(facts, packet)
            if not facts.stored and not packet.retain:
                self._check_not_withdrawn(facts, packet)
        in_use = self._in_use.setdefault(facts.epoch, {})
        if not facts.stored:
            if packet.packet_id in in_use or packet.dup:
                raise Broken(f"{client} was sent {packet.packet_id} again, or with DUP 1")
            in_use[packet.packet_id] = packet.payload
            return
        if not self.checks_disk:
            return
        rows = self._query(_DELIVERY, client, packet.packet_id)
        what = f"PUBLISH {packet.packet_id} of {packet.payload[:20]!r} was sent to {client}"
        if len(rows) != 1:
            raise Broken(f"{what}, but its identifier is on disk {len(rows)} times")
        session, number, released, qos, payload = rows[0]
        if released or qos != packet.qos or payload != packet.payload:
            raise Broken(f"{what}, but on disk its identifier belongs to {rows[0]}")
        key = (session, number)
        if in_use.setdefault(packet.packet_id, key) != key:
            raise Broken(f"{what}, while the identifier is in use")
        before = self._sent_on.get(key)
        if before is None:
            # It may have been assigned on a connection that was closed before the commit.
            if packet.dup and self._assigned.get(key) == link.number:
                raise Broken(f"{what} for the first time, with DUP 1")
        elif before == link.number:
            raise Broken(f"{what} twice on one connection")
        elif not packet.dup:
            raise Broken(f"{what} again, with DUP 0")
        self._sent_on[key] = link.number

    def _check_subscribed(self, facts: Facts, packet: Publish) -> None:
        """The message was accepted, is committed, and this client has subscribed to it."""
        ledger = self._ledger
        found = ledger.by_payload.get(packet.payload)
        what = f"{packet.payload[:20]!r} was sent to {facts.client}"
        if not found:
            raise Broken(f"{what}, but nobody has published it")
        if self.checks_disk and found[0].is_durable:
            # If it was accepted twice, the first commit is sufficient.
            if not found[0].commit or found[0].commit > self._store.safe:
                raise Broken(f"{what} before it was committed")
        if packet.retain:
            replays = ledger.replays.get(facts.epoch, ())
            if not any(each.payload == packet.payload for each in replays):
                raise Broken(f"{what} as retained, without a new subscription")
            return
        indexes = {each.index for each in found}
        for index, qos in ledger.expected.get(facts.epoch, ()):
            if index in indexes and qos == packet.qos:
                return
        for index, qos in ledger.shared:
            if index in indexes and qos == packet.qos:
                return
        raise Broken(f"{what} at QoS {packet.qos}, without a subscription")

    def _pubrel(self, link: Link, client: str, packet: PubRel) -> None:
        facts = self._session(link, client)
        if facts is None:
            raise Broken(f"{client} was sent PUBREL on a connection without its session")
        if facts.stored and self.checks_disk:
            rows = self._query(_DELIVERY, client, packet.packet_id)
            if len(rows) != 1 or not rows[0][2]:
                raise Broken(
                    f"PUBREL {packet.packet_id} was sent to {client}, but its PUBREC is not on"
                    f" disk: {rows}"
                )

    def _pubcomp(self, link: Link, client: str, packet: PubComp, owed: Owed) -> None:
        if packet.packet_id not in owed.pubcomps:
            raise Broken(f"{client} was sent PUBCOMP {packet.packet_id} without PUBREL")
        owed.pubcomps.remove(packet.packet_id)
        facts = self._session(link, client)
        if facts is not None and facts.stored and self.checks_disk:
            if packet.packet_id not in facts.inbound:
                if (packet.packet_id,) in self._query(_INBOUND, client):
                    raise Broken(
                        f"{client} was sent PUBCOMP {packet.packet_id}, but it is not released on"
                        " disk"
                    )

    def _suback(self, link: Link, client: str, packet: SubAck, owed: Owed) -> None:
        found = owed.subscribes.pop(packet.packet_id, None)
        if found is None:
            raise Broken(f"{client} was sent SUBACK {packet.packet_id} without SUBSCRIBE")
        request, reasons = found
        if packet.reasons != reasons:
            raise Broken(f"{client} was sent SUBACK {packet.reasons} instead of {reasons}")
        facts = self._session(link, client)
        if facts is not None and facts.stored and self.checks_disk:
            rows = self._query(_SUBSCRIPTIONS, client)
            for each in request.subscriptions:
                if facts.subscriptions.get(each.topic_filter) == each.qos:
                    if (each.topic_filter, each.qos) not in rows:
                        raise Broken(
                            f"{client} was sent SUBACK for {each.topic_filter}, which is not on"
                            " disk"
                        )

    def _unsuback(self, link: Link, client: str, packet: UnsubAck, owed: Owed) -> None:
        request = owed.unsubscribes.pop(packet.packet_id, None)
        if request is None:
            raise Broken(f"{client} was sent UNSUBACK {packet.packet_id} without UNSUBSCRIBE")
        facts = self._session(link, client)
        if facts is not None and facts.stored and self.checks_disk:
            stored = {row[0] for row in self._query(_SUBSCRIPTIONS, client)}
            for topic_filter in request.topic_filters:
                if topic_filter in stored and topic_filter not in facts.subscriptions:
                    raise Broken(
                        f"{client} was sent UNSUBACK for {topic_filter}, which is still on disk"
                    )

    # --- responses to expect ----------------------------------------------------------------------

    def subscribe_received(self, link: Link, packet: Subscribe, reasons: tuple[int, ...]) -> None:
        """A SUBSCRIBE has reached the broker; its SUBACK must have these codes."""
        self.owed(link).subscribes[packet.packet_id] = (packet, reasons)

    def received(
        self, link: Link, packet: Packet, *, present: bool = False, refusal: int = 0
    ) -> None:
        """A packet has reached the broker that it must answer.

        `refusal`: the code with which a CONNECT must be refused, if a certain one is required.
        """
        owed = self.owed(link)
        if isinstance(packet, Connect):
            owed.session_present = present
            facts = self._ledger.sessions.get(packet.client_id)
            owed.subscriptions = frozenset(() if facts is None else facts.subscriptions)
            owed.is_refused = link.is_refused
            owed.refusal = refusal
        elif isinstance(packet, PubRel):
            owed.pubcomps.append(packet.packet_id)
        elif isinstance(packet, Unsubscribe):
            owed.unsubscribes[packet.packet_id] = packet
        else:
            owed.pings += 1

    def message_received(self, link: Link, packet: Publish, outcome: Outcome) -> None:
        """A QoS 1 or 2 message has reached the broker; `outcome` is how it must answer."""
        owed = self.owed(link)
        (owed.pubacks if packet.qos == 1 else owed.pubrecs).append((packet.packet_id, outcome))

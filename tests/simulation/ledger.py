"""A model of the broker: what it should know, from the packets that have reached it.

This is a second, much simpler broker without a network. It gets the same packets in the same order,
and knows which messages were accepted, who must get them, which wills are due and which sessions
exist. It also knows which commits have happened: after a crash it returns to the state of the last
one, because the real broker can know no more than that.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from semel.mqtt import MQTT5, Connect, Disconnect, Publish, Subscribe, Unsubscribe
from semel.mqtt.reasons import NOT_AUTHORIZED
from tests.simulation.clock import Broken
from tests.simulation.rights import PUBLISH, RECEIVE, SUBSCRIBE, ReceiveHistory, Rights
from tests.simulation.schedule import NEVER

SHARE: Final = "$share/"
WITH_WILL: Final = 0x04
FAILURE: Final = 0x80


def matches(topic_filter: str, topic: str) -> bool:
    """Topic matching [4.7], for topics that do not begin with $."""
    if topic_filter.startswith(SHARE):
        topic_filter = topic_filter.split("/", 2)[2]
    wanted = topic_filter.split("/")
    levels = topic.split("/")
    for at, level in enumerate(wanted):
        if level == "#":
            return True
        if at == len(levels) or level not in ("+", levels[at]):
            return False
    return len(wanted) == len(levels)


def _requested_expiry(packet: Connect) -> int:
    if packet.version == MQTT5:
        return packet.properties.session_expiry_interval or 0
    return 0 if packet.clean_start else NEVER


# payload, QoS, expiry time (None: never)
Retained = tuple[bytes, int, float | None]


@dataclass
class Replay:
    """A retained message that a new subscription must get."""

    topic: str
    payload: bytes
    qos: int
    # How often the broker had crashed by then: a crash loses it if it is not sent yet.
    crashes: int
    # The tick and the moment of the subscription.
    tick: int
    moment: int
    # The right to the subscription was taken away, perhaps before it was sent.
    is_excused: bool = False


@dataclass
class Accepted:
    """A message that the broker accepted; one object for each time."""

    index: int
    client: str
    topic: str
    payload: bytes
    qos: int
    is_will: bool
    # Its expiry time; None: never.
    expires_at: float | None = None
    # Whether any of it must be durable: a row of a stream, a retained message, an entry in the
    # queue of a stored session, or an inbound identifier of one.
    is_durable: bool = True
    # The number of its commit; 0 before that is written.
    commit: int = 0
    # The tick and the moment in which it was accepted.
    tick: int = 0
    moment: int = 0


@dataclass
class PendingWill:
    """A will, and when it is due: None while the connection is open."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    delay: int
    due: float | None = None


@dataclass
class Facts:
    """One session."""

    client: str
    # Unique for each session.
    epoch: int
    expiry: int
    # Whether the store has it.
    stored: bool
    version: int
    # The user who connected last.
    user: str
    # The number of its link; 0 if it is not connected.
    link: int = 0
    ends_at: float | None = None
    will: PendingWill | None = None
    subscriptions: dict[str, int] = field(default_factory=dict)
    inbound: set[int] = field(default_factory=set)
    # It was a member of the shared subscription, and may still have messages of it.
    was_member: bool = False

    def copy(self) -> "Facts":
        """An independent copy."""
        will = self.will
        if will is not None:
            will = PendingWill(
                will.topic, will.payload, will.qos, will.retain, will.delay, will.due
            )
        return Facts(
            self.client,
            self.epoch,
            self.expiry,
            self.stored,
            self.version,
            self.user,
            self.link,
            self.ends_at,
            will,
            dict(self.subscriptions),
            set(self.inbound),
            self.was_member,
        )


@dataclass
class Snapshot:
    """The ledger as it was when a commit was written."""

    sessions: list[Facts]
    retained: dict[str, Retained]
    accepted: int


@dataclass
class Outcome:
    """How the broker must answer a PUBLISH."""

    # None: it is a duplicate or refused.
    accepted: Accepted | None
    refused: bool = False
    # Refused, because its client may not publish to this topic.
    denied: bool = False


class Ledger:
    """All sessions, all messages."""

    def __init__(self, streams: Sequence[str], rights: Rights) -> None:
        """`streams` are the topic filters of the streams."""
        self._streams = streams
        self._rights = rights
        self.history = ReceiveHistory(rights)
        # Payloads that were acknowledged although their client may not publish them (3.1.1).
        self.denied: set[bytes] = set()
        self.sessions: dict[str, Facts] = {}
        self.crashes = 0
        self.retained: dict[str, Retained] = {}
        self.accepted: list[Accepted] = []
        self.by_payload: dict[bytes, list[Accepted]] = {}
        # By epoch: message index and QoS of expected deliveries, in order.
        self.expected: dict[int, list[tuple[int, int]]] = {}
        # By epoch: retained messages for new subscriptions.
        self.replays: dict[int, list[Replay]] = {}
        # The shared subscription: message index and QoS; messages that may be lost with a member.
        self.shared: list[tuple[int, int]] = []
        self.excused: set[int] = set()
        # Clients and payloads for which the authority failed.
        self.unreceived: set[tuple[str, bytes]] = set()
        # By epoch: payloads that have an identifier. At QoS 2 no other member may get them.
        self.flown: dict[int, set[bytes]] = {}
        self.sessions_begun = 0
        self._durable = Snapshot([], {}, 0)

    # --- commits ----------------------------------------------------------------------------------

    def snapshot(self, commit: int) -> Snapshot:
        """The state that this commit contains."""
        for message in reversed(self.accepted):
            if message.commit:
                break
            message.commit = commit
        sessions = [facts.copy() for facts in self.sessions.values()]
        return Snapshot(sessions, dict(self.retained), len(self.accepted))

    def committed(self, snapshot: Snapshot) -> None:
        """The commit of this snapshot has happened."""
        self._durable = snapshot

    @property
    def durable(self) -> Snapshot:
        """The state of the last commit that happened."""
        return self._durable

    def restart(self, now: float) -> None:
        """Return to the last committed state, as a new broker does."""
        self.observe_rights()
        self.crashes += 1
        durable = self._durable
        for lost in self.accepted[durable.accepted :]:
            self.by_payload[lost.payload].remove(lost)
        del self.accepted[durable.accepted :]
        for expected in (*self.expected.values(), self.shared):
            while expected and expected[-1][0] >= durable.accepted:
                expected.pop()
        self.excused = {index for index in self.excused if index < durable.accepted}
        self.retained = dict(durable.retained)
        self.sessions = {}
        orphans: list[Facts] = []
        for known in durable.sessions:
            facts = known.copy()
            facts.link = 0
            if not facts.stored or not facts.expiry:
                orphans.append(facts)
                continue
            self.sessions[facts.client] = facts
            # Its connection counts as closed now.
            if facts.ends_at is None and facts.expiry != NEVER:
                facts.ends_at = now + facts.expiry
            if facts.will is not None and facts.will.due is None:
                facts.will.due = now + min(facts.will.delay, facts.expiry)
        self.observe_rights()
        for facts in orphans:
            self._publish_will(facts)
        for facts in list(self.sessions.values()):
            self._update(facts, now)

    # --- rights -----------------------------------------------------------------------------------

    def _users(self) -> dict[str, str]:
        return {facts.client: facts.user for facts in self.sessions.values()}

    def observe_rights(self) -> None:
        """Record what clients may receive now."""
        self.history.observe(self._users())

    def end_tick(self) -> int:
        """A tick of the broker ends; its number."""
        return self.history.end_tick(self._users())

    def end_denied_subscriptions(self, facts: Facts) -> list[str]:
        """End the subscriptions of a session to which its client has no right; their filters."""
        ended = [
            topic_filter
            for topic_filter in facts.subscriptions
            if not self._rights.allows(facts.user, SUBSCRIBE, topic_filter)
        ]
        for topic_filter in ended:
            del facts.subscriptions[topic_filter]
            for replay in self.replays.get(facts.epoch, ()):
                if matches(topic_filter, replay.topic):
                    replay.is_excused = True
        return ended

    def has_denied_will(self, packet: Connect) -> bool:
        """Whether a CONNECT is refused, because its client may not publish its will."""
        user, will = packet.user_name, packet.will
        assert user is not None
        return will is not None and not self._rights.allows(user, PUBLISH, will.topic_name)

    def may_receive(self, facts: Facts, topic: str) -> bool:
        """Whether the client of a session may receive this topic now."""
        return self._rights.allows(facts.user, RECEIVE, topic)

    # --- packets ----------------------------------------------------------------------------------

    def connect(self, packet: Connect, link: int, now: float) -> bool:
        """A CONNECT; returns whether the session existed."""
        client = packet.client_id
        old = self.sessions.get(client)
        if old is not None and old.link:
            # [MQTT-3.1.4-3]
            self.leave(old, now)
            old = self.sessions.get(client)
        if old is not None:
            self._update(old, now)
            old = self.sessions.get(client)
        if old is not None and packet.clean_start:
            self._end(old)
            old = None
        expiry = _requested_expiry(packet)
        facts = old
        user = packet.user_name
        assert user is not None
        self.observe_rights()
        if facts is None:
            self.sessions_begun += 1
            facts = Facts(client, self.sessions_begun, expiry, False, packet.version, user)
            self.sessions[client] = facts
        facts.user = user
        self.observe_rights()
        facts.expiry = expiry
        facts.stored = facts.stored or expiry > 0
        facts.link = link
        facts.ends_at = None
        facts.will = None
        if packet.will is not None:
            will = packet.will
            delay = will.properties.will_delay_interval or 0
            facts.will = PendingWill(will.topic_name, will.payload, will.qos, will.retain, delay)
        return old is not None

    def connect_failed(self, packet: Connect, now: float) -> None:
        """A CONNECT whose session cannot be read. It closes the session's old connection."""
        old = self.sessions.get(packet.client_id)
        if old is not None and old.link:
            self.leave(old, now)

    def is_refused(self, packet: Connect) -> bool:
        """Whether a CONNECT is refused while the disk is full."""
        old = self.sessions.get(packet.client_id)
        stored = old is not None and old.stored
        return stored or packet.will is not None or _requested_expiry(packet) > 0

    def publish(
        self,
        facts: Facts,
        packet: Publish,
        now: float,
        *,
        full: bool,
        unreceived: Collection[str] = (),
    ) -> Outcome:
        """A PUBLISH; `full`: the disk is full, and QoS 1 and 2 are refused.

        `unreceived`: clients that do not get it, because the authority failed over them.
        """
        if packet.qos == 2 and packet.packet_id in facts.inbound:
            return Outcome(None)
        if not self._rights.allows(facts.user, PUBLISH, packet.topic_name):
            if facts.version == MQTT5:
                return Outcome(None, refused=True, denied=True)
            # 3.1.1 has no code for it [MQTT-3.3.5-2].
            if packet.qos == 2:
                facts.inbound.add(packet.packet_id)
            self.denied.add(packet.payload)
            return Outcome(None, denied=True)
        if full and packet.qos:
            return Outcome(None, refused=True)
        self.denied.discard(packet.payload)
        if packet.qos == 2:
            facts.inbound.add(packet.packet_id)
        interval = packet.properties.message_expiry_interval
        expires_at = None if interval is None else now + interval
        if packet.retain:
            if packet.payload:
                self.retained[packet.topic_name] = (packet.payload, packet.qos, expires_at)
            else:
                self.retained.pop(packet.topic_name, None)
        accepted = self._accept(
            facts.client, packet.topic_name, packet.payload, packet.qos, unreceived=unreceived
        )
        accepted.expires_at = expires_at
        if packet.retain or (packet.qos == 2 and facts.stored):
            accepted.is_durable = True
        return Outcome(accepted)

    def subscribe(self, facts: Facts, packet: Subscribe) -> tuple[int, ...]:
        """A SUBSCRIBE, and the retained messages that it must get; the codes of its SUBACK."""
        reasons: list[int] = []
        for subscription in packet.subscriptions:
            topic_filter = subscription.topic_filter
            if not self._rights.allows(facts.user, SUBSCRIBE, topic_filter):
                reasons.append(NOT_AUTHORIZED if facts.version == MQTT5 else FAILURE)
                continue
            reasons.append(subscription.qos)
            is_new = topic_filter not in facts.subscriptions
            facts.subscriptions[topic_filter] = subscription.qos
            if topic_filter.startswith(SHARE):
                facts.was_member = True
            handling = subscription.retain_handling
            if not topic_filter.startswith(SHARE) and (handling == 0 or (handling == 1 and is_new)):
                for topic, (payload, qos, _) in self.retained.items():
                    if matches(topic_filter, topic):
                        qos = min(qos, subscription.qos)
                        history = self.history
                        replay = Replay(
                            topic, payload, qos, self.crashes, history.tick, history.moment
                        )
                        self.replays.setdefault(facts.epoch, []).append(replay)
        return tuple(reasons)

    def unsubscribe(self, facts: Facts, packet: Unsubscribe) -> None:
        """An UNSUBSCRIBE."""
        for topic_filter in packet.topic_filters:
            facts.subscriptions.pop(topic_filter, None)

    def disconnect(self, facts: Facts, packet: Disconnect, now: float) -> None:
        """A DISCONNECT."""
        if packet.reason < FAILURE and packet.reason != WITH_WILL:
            facts.will = None
        interval = packet.properties.session_expiry_interval
        if interval is not None:
            facts.expiry = interval
        self.leave(facts, now)

    def leave(self, facts: Facts, now: float) -> None:
        """The connection of a session is closed."""
        facts.link = 0
        facts.ends_at = None if facts.expiry == NEVER else now + facts.expiry
        if facts.will is not None:
            facts.will.due = now + min(facts.will.delay, facts.expiry)
        self._update(facts, now)

    def sweep(self, now: float) -> None:
        """Time has passed."""
        for facts in list(self.sessions.values()):
            if self.sessions.get(facts.client) is facts:
                self._update(facts, now)

    # --- sessions and wills -----------------------------------------------------------------------

    def _update(self, facts: Facts, now: float) -> None:
        if facts.link:
            return
        will = facts.will
        if will is not None and will.due is not None and now >= will.due:
            self._publish_will(facts)
        if facts.ends_at is not None and now >= facts.ends_at:
            self._end(facts)

    def _end(self, facts: Facts) -> None:
        self._publish_will(facts)
        del self.sessions[facts.client]
        if facts.was_member:
            # Its waiting messages go to another member, if there is one; its in-flight QoS 2
            # messages are lost [MQTT-4.8.2-5].
            alone = not any(
                topic_filter.startswith(SHARE)
                for other in self.sessions.values()
                for topic_filter in other.subscriptions
            )
            flown = self.flown.get(facts.epoch, set())
            for index, qos in self.shared:
                message = self.accepted[index]
                if alone or (qos == 2 and (message.payload in flown or not message.commit)):
                    self.excused.add(index)

    def _publish_will(self, facts: Facts) -> None:
        will = facts.will
        facts.will = None
        if will is not None and self._rights.allows(facts.user, PUBLISH, will.topic):
            if will.retain:
                self.retained[will.topic] = (will.payload, will.qos, None)
            self._accept(facts.client, will.topic, will.payload, will.qos, is_will=True)

    def _accept(
        self,
        client: str,
        topic: str,
        payload: bytes,
        qos: int,
        *,
        is_will: bool = False,
        unreceived: Collection[str] = (),
    ) -> Accepted:
        """The broker accepts a message; this decides who gets it."""
        index = len(self.accepted)
        is_durable = is_will or any(matches(each, topic) for each in self._streams)
        accepted = Accepted(index, client, topic, payload, qos, is_will, None, is_durable)
        self.history.moment += 1
        accepted.tick, accepted.moment = self.history.tick, self.history.moment
        self.accepted.append(accepted)
        self.by_payload.setdefault(payload, []).append(accepted)
        if not qos:
            return accepted
        share_qos = 0
        for facts in self.sessions.values():
            if not self.may_receive(facts, topic):
                continue
            best = 0
            for topic_filter, granted in facts.subscriptions.items():
                if granted and matches(topic_filter, topic):
                    if facts.stored and facts.client not in unreceived:
                        accepted.is_durable = True
                    if topic_filter.startswith(SHARE):
                        share_qos = max(share_qos, granted)
                    else:
                        best = max(best, granted)
            if best:
                self.expected.setdefault(facts.epoch, []).append((index, min(best, qos)))
        if share_qos:
            self.shared.append((index, min(share_qos, qos)))
        return accepted

    # --- queries ----------------------------------------------------------------------------------

    def of_link(self, client: str, link: int) -> Facts:
        """The session of a link."""
        facts = self.sessions.get(client)
        if facts is None or facts.link != link:
            raise Broken(f"the broker serves {client} on link {link}, which has no session")
        return facts

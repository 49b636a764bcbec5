"""What the broker should know, worked out from the packets that have reached it.

A second, much simpler broker: it has no network and sends nothing. It is told what the broker was
given, in the same order, and says which messages were accepted, who has to get them, which wills
are due and which sessions are there. It is told as well which commits have happened: after a crash
it goes back to what the last of them knew, because that is what the broker may know.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from semel.mqtt import MQTT5, Connect, Disconnect, Publish, Subscribe, Unsubscribe
from tests.simulation.clock import Broken
from tests.simulation.schedule import NEVER

SHARE: Final = "$share/"
WITH_WILL: Final = 0x04
FAILURE: Final = 0x80


def matches(topic_filter: str, topic: str) -> bool:
    """[4.7] for topics that do not begin with $."""
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


def _asked_expiry(packet: Connect) -> int:
    if packet.version == MQTT5:
        return packet.properties.session_expiry_interval or 0
    return 0 if packet.clean_start else NEVER


# payload, QoS, when it expires (None: never)
Retained = tuple[bytes, int, float | None]


@dataclass
class Replay:
    """A retained message that a new subscription brings."""

    topic: str
    payload: bytes
    qos: int
    # How often the broker had crashed by then: one that is not sent yet is lost in a crash.
    crashes: int


@dataclass
class Accepted:
    """A message that the broker took: once for each time that it did."""

    index: int
    client: str
    topic: str
    payload: bytes
    qos: int
    is_will: bool
    # When nobody need get it any more; None: never.
    expires_at: float | None = None
    # Whether anything of it has to last: a row of a stream, a retained message, a place in the
    # queue of a stored session, the identifier of one.
    lasts: bool = True
    # The number of the commit that has it, 0 before it is written.
    commit: int = 0


@dataclass
class Testament:
    """A will, and when it is due: None while its connection is open."""

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
    # No two sessions have the same.
    epoch: int
    expiry: int
    # Whether the store has it.
    stored: bool
    version: int
    # The link that it is connected by, 0 if it is not.
    link: int = 0
    ends_at: float | None = None
    will: Testament | None = None
    subscriptions: dict[str, int] = field(default_factory=dict)
    inbound: set[int] = field(default_factory=set)
    # It had a part in the shared subscription, and may have messages from it yet.
    was_member: bool = False

    def copy(self) -> "Facts":
        """The same, on its own."""
        will = self.will
        if will is not None:
            will = Testament(will.topic, will.payload, will.qos, will.retain, will.delay, will.due)
        return Facts(
            self.client,
            self.epoch,
            self.expiry,
            self.stored,
            self.version,
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
    """What has to become of a PUBLISH."""

    # None: nothing new.
    accepted: Accepted | None
    refused: bool = False


class Ledger:
    """All sessions, all messages."""

    def __init__(self, streams: Sequence[str]) -> None:
        """With the filters of the streams."""
        self._streams = streams
        self.sessions: dict[str, Facts] = {}
        self.crashes = 0
        self.retained: dict[str, Retained] = {}
        self.accepted: list[Accepted] = []
        self.by_payload: dict[bytes, list[Accepted]] = {}
        # By epoch: index of the message and QoS, in the order in which they came.
        self.expected: dict[int, list[tuple[int, int]]] = {}
        # By epoch: what new subscriptions bring.
        self.replays: dict[int, list[Replay]] = {}
        # The one shared subscription: index of the message and QoS; what may be lost with a member.
        self.shared: list[tuple[int, int]] = []
        self.excused: set[int] = set()
        # Clients and payloads: the authority failed over whether it may have the message.
        self.unreceived: set[tuple[str, bytes]] = set()
        # By epoch: payloads of it that have an identifier. At QoS 2 they are nobody else's then.
        self.flown: dict[int, set[bytes]] = {}
        self.sessions_begun = 0
        self._durable = Snapshot([], {}, 0)

    # --- what lasts -------------------------------------------------------------------------------

    def snapshot(self, commit: int) -> Snapshot:
        """What this commit knows."""
        for message in reversed(self.accepted):
            if message.commit:
                break
            message.commit = commit
        sessions = [facts.copy() for facts in self.sessions.values()]
        return Snapshot(sessions, dict(self.retained), len(self.accepted))

    def lasts(self, snapshot: Snapshot) -> None:
        """The commit has happened."""
        self._durable = snapshot

    @property
    def durable(self) -> Snapshot:
        """What the last commit that happened knew."""
        return self._durable

    def restart(self, now: float) -> None:
        """The broker is a new one, and knows what was committed."""
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
            # Its connection counts as closed just now.
            if facts.ends_at is None and facts.expiry != NEVER:
                facts.ends_at = now + facts.expiry
            if facts.will is not None and facts.will.due is None:
                facts.will.due = now + min(facts.will.delay, facts.expiry)
        for facts in orphans:
            self._publish_will(facts)
        for facts in list(self.sessions.values()):
            self._look_at(facts, now)

    # --- what reaches the broker ------------------------------------------------------------------

    def connect(self, packet: Connect, link: int, now: float) -> bool:
        """A CONNECT; whether the session was there."""
        client = packet.client_id
        old = self.sessions.get(client)
        if old is not None and old.link:
            # [MQTT-3.1.4-3]
            self.leave(old, now)
            old = self.sessions.get(client)
        if old is not None:
            self._look_at(old, now)
            old = self.sessions.get(client)
        if old is not None and packet.clean_start:
            self._end(old)
            old = None
        expiry = _asked_expiry(packet)
        facts = old
        if facts is None:
            self.sessions_begun += 1
            facts = Facts(client, self.sessions_begun, expiry, False, packet.version)
            self.sessions[client] = facts
        facts.expiry = expiry
        facts.stored = facts.stored or expiry > 0
        facts.link = link
        facts.ends_at = None
        facts.will = None
        if packet.will is not None:
            will = packet.will
            delay = will.properties.will_delay_interval or 0
            facts.will = Testament(will.topic_name, will.payload, will.qos, will.retain, delay)
        return old is not None

    def connect_in_vain(self, packet: Connect, now: float) -> None:
        """A CONNECT whose session cannot be read. The connection that had it has given way."""
        old = self.sessions.get(packet.client_id)
        if old is not None and old.link:
            self.leave(old, now)

    def is_refused(self, packet: Connect) -> bool:
        """Whether a CONNECT comes in vain while the disk is full."""
        old = self.sessions.get(packet.client_id)
        stored = old is not None and old.stored
        return stored or packet.will is not None or _asked_expiry(packet) > 0

    def publish(
        self,
        facts: Facts,
        packet: Publish,
        now: float,
        *,
        full: bool,
        unreceived: Collection[str] = (),
    ) -> Outcome:
        """A PUBLISH; `full`: the disk is, and what can be refused is.

        `unreceived`: clients that do not get it, because the authority failed over them.
        """
        if packet.qos == 2 and packet.packet_id in facts.inbound:
            return Outcome(None)
        if full and packet.qos:
            return Outcome(None, refused=True)
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
            accepted.lasts = True
        return Outcome(accepted)

    def subscribe(self, facts: Facts, packet: Subscribe) -> None:
        """A SUBSCRIBE, and what it brings of retained messages."""
        for subscription in packet.subscriptions:
            topic_filter = subscription.topic_filter
            is_new = topic_filter not in facts.subscriptions
            facts.subscriptions[topic_filter] = subscription.qos
            if topic_filter.startswith(SHARE):
                facts.was_member = True
            handling = subscription.retain_handling
            if not topic_filter.startswith(SHARE) and (handling == 0 or (handling == 1 and is_new)):
                for topic, (payload, qos, _) in self.retained.items():
                    if matches(topic_filter, topic):
                        qos = min(qos, subscription.qos)
                        replay = Replay(topic, payload, qos, self.crashes)
                        self.replays.setdefault(facts.epoch, []).append(replay)

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
        """The connection of a session is over."""
        facts.link = 0
        facts.ends_at = None if facts.expiry == NEVER else now + facts.expiry
        if facts.will is not None:
            facts.will.due = now + min(facts.will.delay, facts.expiry)
        self._look_at(facts, now)

    def sweep(self, now: float) -> None:
        """Time has passed."""
        for facts in list(self.sessions.values()):
            if self.sessions.get(facts.client) is facts:
                self._look_at(facts, now)

    # --- sessions and wills -----------------------------------------------------------------------

    def _look_at(self, facts: Facts, now: float) -> None:
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
            # What was waiting for it goes to another, if there is one; what was on its way to it
            # at QoS 2 is lost with it [MQTT-4.8.2-5].
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
        if will is not None:
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
        """A message is the broker's: who gets it is decided now."""
        index = len(self.accepted)
        lasts = is_will or any(matches(each, topic) for each in self._streams)
        accepted = Accepted(index, client, topic, payload, qos, is_will, None, lasts)
        self.accepted.append(accepted)
        self.by_payload.setdefault(payload, []).append(accepted)
        if not qos:
            return accepted
        share_qos = 0
        for facts in self.sessions.values():
            best = 0
            for topic_filter, granted in facts.subscriptions.items():
                if granted and matches(topic_filter, topic):
                    if facts.stored and facts.client not in unreceived:
                        accepted.lasts = True
                    if topic_filter.startswith(SHARE):
                        share_qos = max(share_qos, granted)
                    else:
                        best = max(best, granted)
            if best:
                self.expected.setdefault(facts.epoch, []).append((index, min(best, qos)))
        if share_qos:
            self.shared.append((index, min(share_qos, qos)))
        return accepted

    # --- questions --------------------------------------------------------------------------------

    def of_link(self, client: str, link: int) -> Facts:
        """The session that a link has."""
        facts = self.sessions.get(client)
        if facts is None or facts.link != link:
            raise Broken(f"the broker serves {client} on link {link}, which has no session")
        return facts

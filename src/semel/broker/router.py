"""From a message to the sessions that get it: subscriptions, retained messages, shared groups.

A client with several matching subscriptions gets one copy, with the highest of their QoS and all
of their identifiers [MQTT-3.3.4-2] [MQTT-3.3.4-4]; the standard would allow one copy for each.
"""

from traceback import format_exc
from typing import Final, final

from semel.broker.authority import Authority
from semel.broker.cursors import STREAM_TOPICS
from semel.broker.durability import CommitGate
from semel.broker.faults import fault_report
from semel.broker.memory import Memory
from semel.broker.pressure import caught_up_mark
from semel.broker.retained import Retained
from semel.broker.session_state import SessionState
from semel.broker.subscriptions import (
    Matches,
    ShareGroup,
    SubscriptionEntry,
    SubscriptionTree,
    subscription_cost,
)
from semel.broker.turns import (
    COPY_SHIFT,
    DELIVERY_WORK,
    ENTRY_WORK,
    FILTER_WORK,
    NODE_WORK,
    SESSION_WORK,
    TURN_WORK,
)
from semel.mqtt.delivery import Delivery
from semel.mqtt.message import Message, message_properties, without_identifiers
from semel.mqtt.packets.subscribe import Subscription
from semel.mqtt.properties import (
    NO_PROPERTIES,
    SUBSCRIPTION_IDENTIFIER,
    Properties,
    PropertyItem,
)
from semel.mqtt.reasons import NOT_AUTHORIZED, QUOTA_EXCEEDED
from semel.mqtt.session import Session
from semel.mqtt.topics import is_shared
from semel.store.commit import QUEUED_BYTES, SHARED_PAYLOAD, Commit, RecordedMessage
from semel.store.store import Store
from semel.store.streams import Stream, Streams

# Topics of the broker's own reports: nothing of them lasts.
OWN_TOPICS: Final = "$SYS/"

# Seconds until the store is asked again for what expired in a queue that it does not have whole.
_LOOK_AGAIN: Final = 1.0


@final
class Copy:
    """One client's copy of a message while its matching subscriptions are gathered."""

    qos: int
    retain_as_published: bool
    identifiers: list[int]

    def __init__(self) -> None:
        self.qos = 0
        self.retain_as_published = False
        self.identifiers = []

    def add(self, entry: SubscriptionEntry) -> None:
        """One more subscription matches."""
        self.qos = max(self.qos, entry.qos)
        if entry.retain_as_published:
            self.retain_as_published = True
        if entry.identifier:
            self.identifiers.append(entry.identifier)


@final
class Router:
    """All sessions, all subscriptions, all retained messages, and what this tick changes."""

    sessions: Final[dict[str, SessionState]]
    subscriptions: Final[SubscriptionTree]
    retained: Final[Retained]
    authority: Final[Authority]
    store: Final[Store]
    memory: Final[Memory]
    gate: Final[CommitGate]
    streams: Final[Streams]
    # Sessions to be polled and drained at the end of the tick.
    dirty: list[SessionState]
    # What was done for the connection whose turn it is, in the units of `turns.py`; what may yet
    # be done in this tick to bring retained messages to new subscribers.
    work: int
    retained_work: int
    # What the message was for that was routed last.
    matches: Matches
    commit: Commit
    # About how many bytes this tick has given the store to write so far.
    unwritten_bytes: int
    # Commits that the store was given and has not yet.
    uncommitted: Final[list[Commit]]
    maximum_subscriptions: Final[int]
    maximum_client_subscription_bytes: Final[int]
    maximum_subscription_bytes: Final[int]
    maximum_queued: Final[int]
    maximum_queued_bytes: Final[int]
    # Client identifiers over whom the authority failed in this tick, and how it did first.
    faults: dict[str, str]
    # Sessions whose `damage` was found in this tick, with the numbers of the connections that they
    # had then, and what it is.
    unreadable: list[tuple[SessionState, int, str]]
    # Sessions that were given a message while they had half of their bounds in use.
    slow_readers: list[SessionState]
    _behind_room: Final[int]
    _caught_up_room: Final[int]
    # Messages that a full queue turned away, or that a slow reader had no room for.
    dropped: int

    def __init__(
        self,
        authority: Authority,
        store: Store,
        streams: Streams,
        memory: Memory,
        *,
        maximum_subscriptions: int,
        maximum_client_subscription_bytes: int,
        maximum_subscription_bytes: int,
        maximum_queued: int,
        maximum_queued_bytes: int,
        maximum_outgoing: int,
        maximum_retained: int,
        maximum_retained_bytes: int,
    ) -> None:
        self.sessions = {}
        self.subscriptions = SubscriptionTree()
        self.retained = Retained(maximum_retained, maximum_retained_bytes)
        self.authority = authority
        self.store = store
        self.memory = memory
        self.gate = CommitGate(has_store=store.lasts)
        self.streams = streams
        self.dirty = []
        self.work = 0
        self.retained_work = TURN_WORK
        self.matches = Matches()
        self.commit = Commit()
        self.unwritten_bytes = 0
        self.uncommitted = []
        self.maximum_subscriptions = maximum_subscriptions
        self.maximum_client_subscription_bytes = maximum_client_subscription_bytes
        self.maximum_subscription_bytes = maximum_subscription_bytes
        self.maximum_queued = maximum_queued
        self.maximum_queued_bytes = maximum_queued_bytes
        self.faults = {}
        self.unreadable = []
        self.slow_readers = []
        self._behind_room = maximum_outgoing // 2
        self._caught_up_room = maximum_outgoing - caught_up_mark(maximum_outgoing)
        self.dropped = 0

    def mark_dirty(self, state: SessionState) -> None:
        """This session has something for the end of the tick."""
        if not state.dirty:
            state.dirty = True
            self.dirty.append(state)
            self.work += SESSION_WORK

    def unwritten_rows(self) -> int:
        """Rows of the commits that the store was given and has not yet."""
        rows = 0
        for commit in self.uncommitted:
            rows += len(commit.changes) + len(commit.records)
        return rows

    def match(self, topic_name: str) -> Matches:
        """What a message of this topic is for; the search is work."""
        matches = self.subscriptions.match(topic_name)
        self.work += matches.visited * NODE_WORK + len(matches.entries) * ENTRY_WORK
        return matches

    def has_store_room(self) -> bool:
        """Whether the store can take what this tick has for it, and more.

        One message may be for many sessions: this is asked before each, not once a tick.
        """
        return self.unwritten_bytes <= self.store.room

    def authorize_publish(self, client_id: str, topic_name: str) -> int:
        """SUCCESS, or the reason code with which a message of this client is refused."""
        if topic_name.startswith((OWN_TOPICS, STREAM_TOPICS)):
            return NOT_AUTHORIZED
        return self.authority.publish(client_id, topic_name)

    def may_receive(self, client_id: str, topic_name: str) -> bool:
        """Whether a message may reach a client. A fault of the authority over it is its alone.

        It must not end what is done for the publisher, or for others who get the message.
        """
        try:
            return self.authority.receive(client_id, topic_name)
        except Exception:
            self.faults.setdefault(client_id, format_exc())
            return False

    def check_behind(self, state: SessionState) -> None:
        """A connected session was given a message: is it behind?"""
        session = state.session
        if session.connected:
            if session.room < self._behind_room or session.waiting * 2 > self.maximum_queued:
                self.slow_readers.append(state)

    def has_caught_up(self, state: SessionState) -> bool:
        """Whether no more than a quarter of what is kept for a session is in use."""
        session = state.session
        return session.room >= self._caught_up_room and session.waiting * 4 <= self.maximum_queued

    def record(
        self,
        streams: list[Stream],
        message: Message,
        publisher: SessionState,
        *,
        packet_id: int = 0,
        dup: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Write a message into the streams of its topic; `properties` as they came."""
        properties = message_properties(properties).compact()
        for stream in streams:
            stream.last_seq += 1
            self.unwritten_bytes += QUEUED_BYTES + message.size
            self.commit.records.append(
                RecordedMessage(
                    stream.id,
                    stream.last_seq,
                    message.topic_name,
                    message.payload,
                    qos=message.qos,
                    retain=message.retain,
                    dup=dup,
                    client_id=publisher.client_id,
                    user_name=publisher.user_name,
                    packet_id=packet_id,
                    version=publisher.session.version,
                    properties=properties,
                )
            )

    def route(
        self,
        message: Message,
        publisher: str,
        now: float,
        *,
        only: set[str] | None = None,
        is_kept: bool = False,
    ) -> bool:
        """Give a message to everyone who asked for it. Whether anybody did.

        `only`: the clients that may get it; the others have it already. `is_kept`: a stream or
        an identifier keeps it. The gate knows afterwards whether anything does.
        """
        self.gate.begin_message(is_kept=is_kept)
        if message.retain:
            self._retain(message)
        matches = self.matches = self.match(message.topic_name)
        copies: dict[str, Copy] = {}
        for entry in matches.entries:
            client_id = entry.client_id
            if only is not None and client_id not in only:
                continue
            # [MQTT-3.8.3-3] not back to where it came from
            if entry.no_local and client_id == publisher:
                continue
            copy = copies.get(client_id)
            if copy is None:
                if not self.may_receive(client_id, message.topic_name):
                    continue
                copy = copies[client_id] = Copy()
            copy.add(entry)
        for client_id, copy in copies.items():
            self._deliver(self.sessions[client_id], message, copy, now)
        for group in matches.groups:
            self._deliver_shared(group, message, now)
        if self.gate.message_is_kept:
            self.unwritten_bytes += message.size
        self.gate.end_message()
        return bool(copies) or bool(matches.groups)

    def would_keep(
        self, topic_name: str, qos: int, publisher: SessionState, *, retain: bool
    ) -> bool:
        """Whether such a message would be kept in the store."""
        if retain or self.streams.of(topic_name) or self.gate.keeps_identifier(publisher, qos):
            return True
        if not qos:
            return False
        matches = self.match(topic_name)
        for entry in matches.entries:
            if entry.qos and self.sessions[entry.client_id].is_durable:
                return True
        for group in matches.groups:
            for entry in group.members():
                if entry.qos and self.sessions[entry.client_id].is_durable:
                    return True
        return False

    def _retain(self, message: Message) -> None:
        """[MQTT-3.3.1-5] to [MQTT-3.3.1-7]: replace, or delete if the payload is empty."""
        kept: Message | None = None
        if not message.payload:
            self.retained.delete(message.topic_name)
        elif self._has_memory_for(message) and self.retained.put(message.topic_name, message):
            kept = message
        else:
            # What the topic had before is not its last any more.
            self.dropped += 1
        if self.gate.has_store and not message.topic_name.startswith(OWN_TOPICS):
            self.gate.keep_message()
            self.commit.retained.append((message.topic_name, kept))

    def _has_memory_for(self, message: Message) -> bool:
        """Whether it may be retained: while memory is short, only in the place of another."""
        return not self.memory.is_short or self.retained.get(message.topic_name) is not None

    def _deliver_shared(self, group: ShareGroup, message: Message, now: float) -> None:
        """One member gets it: the next that is connected and keeps up, or else one that keeps it
        for later, or else the next."""
        chosen: SubscriptionEntry | None = None
        keeps_up = False
        for entry in group.connected():
            self.work += ENTRY_WORK
            if self.may_receive(entry.client_id, message.topic_name):
                keeps_up = self.sessions[entry.client_id].session.waiting < self.maximum_queued
                if keeps_up or (chosen is None and min(entry.qos, message.qos)):
                    chosen = entry
                if keeps_up:
                    break
        if not keeps_up and message.qos:
            for entry in group.offline():
                self.work += ENTRY_WORK
                if entry.qos and self.may_receive(entry.client_id, message.topic_name):
                    chosen = entry
                    break
        if chosen is not None:
            group.advance(chosen)
            copy = Copy()
            copy.add(chosen)
            self._deliver(self.sessions[chosen.client_id], message, copy, now, chosen.topic_filter)

    def pass_on(self, state: SessionState, now: float) -> None:
        """A member of shared subscriptions has left: what it was not sent, others may get [4.8.2].

        It keeps what nobody else could be sent now. What only the store has of its queue is read,
        as far as there is room for what stays.
        """
        shares = {
            entry.topic_filter
            for entry in self.subscriptions.of(state.client_id)
            if entry.share_name and self._has_connected_member(entry.topic_filter)
        }
        if shares:
            session = state.session
            self._hand_over(state, session.give_up_shared(shares, sent=False), now)
            while self.refill(state):
                self._hand_over(state, session.give_up_shared(shares, sent=False), now)

    def refill(self, state: SessionState) -> bool:
        """Read deliveries that only the store has, if the session wants some. Whether any came."""
        session = state.session
        if not session.wanted or state.damage:
            return False
        try:
            deliveries = self.store.queue(state.store_id, session.first_wanted, session.wanted)
            session.refill(deliveries)
        except Exception as problem:
            self._note_damage(state, problem)
            return False
        return bool(deliveries)

    def _note_damage(self, state: SessionState, problem: Exception) -> None:
        """The store's part of a session cannot be read: its connection, if any, has to end."""
        state.damage = fault_report(problem)
        self.unreadable.append((state, state.connection, state.damage))
        # There has to be a further tick.
        self.mark_dirty(state)

    def _hand_over(self, state: SessionState, deliveries: list[Delivery], now: float) -> None:
        """Give others what this session had from shared subscriptions."""
        for delivery in deliveries:
            group = self.subscriptions.group(delivery.share)
            message = delivery.message
            assert message is not None
            if group is not None:
                # It may be on disk as this session's until the commit.
                self.gate.begin_message(is_kept=state.is_durable)
                # Identifiers are of the subscription that it came by.
                self._deliver_shared(group, without_identifiers(message), now)
                self.gate.end_message()

    def _has_connected_member(self, shared_filter: str) -> bool:
        """Whether a member of the group is connected."""
        group = self.subscriptions.group(shared_filter)
        assert group is not None
        return len(group.connected()) > 0

    def _deliver(
        self, state: SessionState, message: Message, copy: Copy, now: float, share: str = ""
    ) -> None:
        # [MQTT-3.8.4-8] the lower of the two; [MQTT-3.3.1-12] [MQTT-3.3.1-13]
        qos = min(message.qos, copy.qos)
        retain = message.retain and copy.retain_as_published
        self._send(state, _variant(message, qos, retain, copy.identifiers), now, share)

    def _send(self, state: SessionState, message: Message, now: float, share: str = "") -> None:
        session = state.session
        self.work += DELIVERY_WORK + (message.size >> COPY_SHIFT)
        if message.qos:
            self.gate.add_receiver(state)
            if self.memory.is_short and not state.is_durable and not session.can_send(message.qos):
                self.dropped += 1
                return
            # The bounds are for what waits: what can leave at once need not fit in.
            if self._is_full(session, message) and not session.can_send(message.qos):
                self._give_up_expired(state, now)
                if self._is_full(session, message):
                    self.dropped += 1
                    return
            if state.is_durable:
                self.unwritten_bytes += queued_bytes(message)
        dropped = session.dropped
        session.send(message, now, share)
        self.dropped += session.dropped - dropped
        self.mark_dirty(state)
        self.check_behind(state)

    def _give_up_expired(self, state: SessionState, now: float) -> None:
        session = state.session
        session.give_up_expired(now)
        if not state.damage and session.may_expire_beyond(now):
            first = session.first_wanted
            try:
                expired = self.store.expired(state.store_id, first, now)
                next_expiry = self.store.next_expiry(state.store_id, first, now)
            except Exception as problem:
                # Whoever publishes just now has no part in it.
                self._note_damage(state, problem)
                return
            if self.uncommitted or state.dirty:
                # The store does not know yet of what is on its way.
                soon = now + _LOOK_AGAIN
                next_expiry = soon if next_expiry is None else min(next_expiry, soon)
            session.give_up_beyond(expired, next_expiry)

    def _is_full(self, session: Session, message: Message) -> bool:
        return (
            session.waiting >= self.maximum_queued
            or session.waiting_bytes + message.size > self.maximum_queued_bytes
        )

    def subscribe(
        self, state: SessionState, subscription: Subscription, identifier: int, now: float
    ) -> int:
        """Add or replace a subscription. The reason code for the SUBACK."""
        refused = self.authority.subscribe(state.client_id, subscription.topic_filter)
        if refused:
            return refused
        return self.add_subscription(state, subscription, identifier, now)

    def add_subscription(
        self, state: SessionState, subscription: Subscription, identifier: int, now: float
    ) -> int:
        """The same, for a subscription that the authority allows."""
        self.work += FILTER_WORK
        cost = subscription_cost(subscription.topic_filter)
        if (
            state.subscriptions >= self.maximum_subscriptions
            or state.subscription_bytes + cost > self.maximum_client_subscription_bytes
            or self.subscriptions.size + cost > self.maximum_subscription_bytes
            or self.memory.is_short
        ):
            if not self.subscriptions.has(state.client_id, subscription.topic_filter):
                return QUOTA_EXCEEDED
        old = self.subscriptions.subscribe(state.client_id, subscription, identifier)
        if old is None:
            state.subscriptions += 1
            state.subscription_bytes += cost
        if self.gate.await_if_durable(state):
            self.commit.subscriptions.append(
                (state.store_id, subscription.topic_filter, subscription, identifier)
            )
        # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]; a shared subscription gets none [4.8.2]
        handling = subscription.retain_handling
        if not is_shared(subscription.topic_filter):
            if handling == 0 or (handling == 1 and old is None):
                walk = self.retained.search(subscription.topic_filter, subscription.qos, identifier)
                if state.retained_searches is None:
                    state.retained_searches = {}
                # A filter that is subscribed to again brings its messages once.
                state.retained_searches[subscription.topic_filter] = walk
        return subscription.qos

    def send_retained(self, state: SessionState, now: float) -> bool:
        """Send retained messages to a new subscriber, as many as it takes at the moment.

        False if this tick has no time for more of them: the rest is for the next one.
        """
        session = state.session
        retained_searches = state.retained_searches
        while retained_searches and session.connected and session.room > 0 and not session.waiting:
            if self.retained_work <= 0:
                return False
            topic_filter, walk = next(iter(retained_searches.items()))
            message = walk.next(now)
            self.retained_work -= walk.visited * NODE_WORK
            if message is None:
                if walk.is_done():
                    del retained_searches[topic_filter]
                continue
            qos = min(message.qos, walk.qos)
            if qos < walk.minimum_qos or not self.may_receive(state.client_id, message.topic_name):
                continue
            self.gate.await_retained(state, qos)
            self.retained_work -= DELIVERY_WORK
            identifiers = [walk.identifier] if walk.identifier else []
            # [MQTT-3.3.1-8] what a new subscription brings has RETAIN 1
            self._send(state, _variant(message, qos, True, identifiers), now)
        if not retained_searches:
            state.retained_searches = None
        return True

    def unsubscribe(self, state: SessionState, topic_filter: str) -> bool:
        """Remove a subscription. Whether there was one."""
        self.work += FILTER_WORK
        if state.retained_searches is not None:
            state.retained_searches.pop(topic_filter, None)
        if self.subscriptions.unsubscribe(state.client_id, topic_filter) is None:
            return False
        state.subscriptions -= 1
        state.subscription_bytes -= subscription_cost(topic_filter)
        if self.gate.await_if_durable(state):
            self.commit.subscriptions.append((state.store_id, topic_filter, None, 0))
        return True

    def end(self, state: SessionState, now: float) -> None:
        """The session is over: nothing of it remains [MQTT-4.1.0-2].

        But for what a shared subscription brought it: others may get that, as far as it can be
        read.
        """
        known = state.damage
        if not self.load_exchanges(state) and not known:
            self.unreadable.append((state, 0, state.damage))
        session = state.session
        shared = any(entry.share_name for entry in self.subscriptions.of(state.client_id))
        del self.sessions[state.client_id]
        state.has_ended = True
        self.subscriptions.forget(state.client_id)
        if self.gate.end_session(state):
            self.commit.ended.append(state.store_id)
        self._hand_over(state, session.give_up_shared(None, sent=True), now)
        session.forget_waiting()
        while shared and self.refill(state):
            self._hand_over(state, session.give_up_shared(None, sent=False), now)
            session.forget_waiting()
        if shared and session.waiting:
            self._hand_over(state, self._not_safe_yet(state), now)

    def _not_safe_yet(self, state: SessionState) -> list[Delivery]:
        """What shared subscriptions brought a session and neither memory nor the store has.

        It is in commits that are on their way.
        """
        changes = [
            change
            for commit in self.uncommitted
            for number, change in commit.changes
            if number == state.store_id
        ]
        changes.extend(state.session.drain()[0])
        deliveries: list[Delivery] = []
        for change in changes:
            message = change.message
            if message is not None and change.share and change.number >= state.session.first_wanted:
                deliveries.append(Delivery(change.number, message, change.share, message.qos))
        return deliveries

    def load_exchanges(self, state: SessionState) -> bool:
        """Read what was in flight in a session that was restored, if nobody has yet.

        False: something of it cannot be read, and `damage` says why.
        """
        if state.needs_load and not state.damage:
            try:
                deliveries, stored = self.store.exchanges(state.store_id)
                state.session.restore_exchanges(deliveries, stored)
                state.needs_load = False
            except Exception as problem:
                state.damage = fault_report(problem)
        return not state.damage

    def is_readable(self, state: SessionState) -> bool:
        """Whether a connection can have the session: what could not be read is tried once more."""
        was_damaged = state.damage != ""
        state.damage = ""
        if was_damaged and self.load_exchanges(state):
            self.refill(state)
            if state.damage:
                # Whoever asks says it himself.
                self.unreadable.pop()
        return self.load_exchanges(state)


def queued_bytes(message: Message) -> int:
    """About what a delivery of the message takes until it is written.

    Beside its payload, if that is large: all deliveries share it.
    """
    if len(message.payload) >= SHARED_PAYLOAD:
        return QUEUED_BYTES
    return QUEUED_BYTES + message.size


def _variant(message: Message, qos: int, retain: bool, identifiers: list[int]) -> Message:
    """The message as one subscriber gets it."""
    if qos == message.qos and retain == message.retain and not identifiers:
        return message
    properties = message.properties
    if identifiers:
        items: list[PropertyItem] = [(SUBSCRIPTION_IDENTIFIER, number) for number in identifiers]
        properties = Properties(items, before=properties)
    return Message(
        message.topic_name,
        message.payload,
        qos=qos,
        retain=retain,
        properties=properties,
        expires_at=message.expires_at,
    )

"""Routes messages to sessions: to subscribers, to members of shared subscriptions, as retained.

A client with several matching subscriptions gets one copy, with their highest QoS and all of their
identifiers [MQTT-3.3.4-2] [MQTT-3.3.4-4], or one copy for each: the standard permits both.
"""

from typing import Final, final

from semel.broker.access_control import OWN_TOPICS, AccessControl
from semel.broker.copies import Copy
from semel.broker.counters import (
    EXPIRED,
    MEMORY_SHORT,
    QUEUE_FULL,
    RETAINED_FULL,
    REVOKED,
    SLOW_READER,
    TOO_LARGE,
    BrokerCounters,
)
from semel.broker.durability import CommitGate
from semel.broker.faults import fault_report
from semel.broker.memory import Memory
from semel.broker.pressure import caught_up_mark
from semel.broker.retained import Retained
from semel.broker.retained_shares import NOBODY, RetainedShares
from semel.broker.session_state import SessionState
from semel.broker.subscription_shares import SubscriptionShares
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
from semel.mqtt.properties import NO_PROPERTIES, Properties
from semel.mqtt.reasons import FAILURE, QUOTA_EXCEEDED
from semel.mqtt.session import Session
from semel.mqtt.session_drops import give_up_beyond, give_up_expired, give_up_queued, give_up_shared
from semel.mqtt.session_restore import restore_exchanges
from semel.mqtt.topics import is_shared
from semel.store.commit import QUEUED_BYTES, SHARED_PAYLOAD, Commit, RecordedMessage
from semel.store.store import Store
from semel.store.streams import Stream, Streams

# Seconds until the store is queried again for expired messages, if it has pending commits.
_RECHECK_SECONDS: Final = 1.0


@final
class Router:
    """Has all sessions, subscriptions and retained messages, and the changes of this tick."""

    sessions: Final[dict[str, SessionState]]
    subscriptions: Final[SubscriptionTree]
    retained: Final[Retained]
    access: Final[AccessControl]
    store: Final[Store]
    memory: Final[Memory]
    gate: Final[CommitGate]
    streams: Final[Streams]
    # Sessions that `Flushing` serves at the end of the tick.
    dirty: list[SessionState]
    # Work done in the current turn, in the units of `turns.py`; work that may still be spent on
    # sending retained messages to one new subscriber.
    work: int
    retained_work: int
    # The matching subscriptions of the message that was routed last.
    matches: Matches
    commit: Commit
    # The approximate size of this tick's commit so far.
    unwritten_bytes: int
    # Commits that were passed to the store and that it has not confirmed.
    uncommitted: Final[list[Commit]]
    # Whether a client gets a copy for each of its matching subscriptions.
    copies_for_each: Final[bool]
    subscription_shares: Final[SubscriptionShares]
    maximum_client_subscription_bytes: Final[int]
    maximum_subscription_bytes: Final[int]
    maximum_queued: Final[int]
    maximum_queued_bytes: Final[int]
    # Sessions whose `damage` was found in this tick, with their connection at that time (0: none)
    # and the damage.
    unreadable: list[tuple[SessionState, int, str]]
    # Sessions that got a message while they used half of their bounds.
    slow_readers: list[SessionState]
    _behind_room: Final[int]
    _caught_up_room: Final[int]
    counters: Final[BrokerCounters]

    def __init__(
        self,
        access: AccessControl,
        store: Store,
        streams: Streams,
        memory: Memory,
        *,
        copies_for_each: bool,
        maximum_subscriptions_per_user: int,
        maximum_client_subscription_bytes: int,
        maximum_subscription_bytes: int,
        maximum_queued: int,
        maximum_queued_bytes: int,
        maximum_outgoing: int,
        maximum_retained: int,
        maximum_retained_bytes: int,
        maximum_retained_per_user: int,
        maximum_retained_bytes_per_user: int,
    ) -> None:
        self.sessions = {}
        self.subscriptions = SubscriptionTree()
        self.retained = Retained(
            maximum_retained,
            maximum_retained_bytes,
            RetainedShares(maximum_retained_per_user, maximum_retained_bytes_per_user),
        )
        self.access = access
        self.store = store
        self.memory = memory
        self.gate = CommitGate(has_store=store.is_durable)
        self.streams = streams
        self.dirty = []
        self.work = 0
        self.retained_work = TURN_WORK
        self.matches = Matches()
        self.commit = Commit()
        self.unwritten_bytes = 0
        self.uncommitted = []
        self.copies_for_each = copies_for_each
        self.subscription_shares = SubscriptionShares(maximum_subscriptions_per_user)
        self.maximum_client_subscription_bytes = maximum_client_subscription_bytes
        self.maximum_subscription_bytes = maximum_subscription_bytes
        self.maximum_queued = maximum_queued
        self.maximum_queued_bytes = maximum_queued_bytes
        self.unreadable = []
        self.slow_readers = []
        self._behind_room = maximum_outgoing // 2
        self._caught_up_room = maximum_outgoing - caught_up_mark(maximum_outgoing)
        self.counters = BrokerCounters()

    @property
    def dropped(self) -> int:
        """How many messages were dropped by limits, for example because a queue was full."""
        return self.counters.drops.by_limits

    def mark_dirty(self, state: SessionState) -> None:
        """Serve this session at the end of the tick."""
        if not state.dirty:
            state.dirty = True
            self.dirty.append(state)
            self.work += SESSION_WORK

    def unwritten_rows(self) -> int:
        """The number of rows in commits that the store has not confirmed."""
        rows = 0
        for commit in self.uncommitted:
            rows += len(commit.changes) + len(commit.records)
        return rows

    def match(self, topic_name: str) -> Matches:
        """The subscriptions that match a topic. The search counts as work."""
        matches = self.subscriptions.match(topic_name)
        self.work += matches.visited * NODE_WORK + len(matches.entries) * ENTRY_WORK
        return matches

    def has_store_room(self) -> bool:
        """Whether the store has room for more than the commit of this tick has so far.

        Checked before each message, not once a tick, because one message may go to many sessions.
        """
        return self.unwritten_bytes <= self.store.room

    def check_behind(self, state: SessionState) -> None:
        """Add a connected session to `slow_readers` if it uses half of its bounds."""
        session = state.session
        if session.connected:
            if session.room < self._behind_room or len(session.backlog) * 2 > self.maximum_queued:
                self.slow_readers.append(state)

    def has_caught_up(self, state: SessionState) -> bool:
        """Whether a session uses at most a quarter of its bounds."""
        session = state.session
        return (
            session.room >= self._caught_up_room and len(session.backlog) * 4 <= self.maximum_queued
        )

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
        """Record a message in these streams, with its properties as received."""
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
                    user_name=publisher.identity.user_name,
                    packet_id=packet_id,
                    version=publisher.session.version,
                    properties=properties,
                )
            )

    def route(
        self,
        message: Message,
        publisher: SessionState | None,
        now: float,
        *,
        only: set[str] | None = None,
        is_kept: bool = False,
    ) -> bool:
        """Route a message to its subscribers. Returns whether there are any.

        `publisher`: None is the broker itself, or its operator. `only`: deliver to these clients
        only, because the others already have it. `is_kept`: a stream, or a stored identifier,
        keeps the message. Afterwards `gate.message_is_kept` is True if anything keeps it.
        """
        self.gate.begin_message(is_kept=is_kept)
        if message.retain:
            self._retain(message, publisher)
        matches = self.matches = self.match(message.topic_name)
        # By client identifier: the copy for all of its subscriptions, or for the last one.
        copies: dict[str, Copy] = {}
        for entry in matches.entries:
            client_id = entry.client_id
            if only is not None and client_id not in only:
                continue
            # [MQTT-3.8.3-3] not to the client that published it
            if entry.no_local and publisher is not None and client_id == publisher.client_id:
                continue
            copy = copies.get(client_id)
            if copy is None:
                if not self.access.receive(self.sessions[client_id], message.topic_name):
                    continue
                copy = copies[client_id] = Copy()
            elif self.copies_for_each:
                self._deliver(self.sessions[client_id], message, copy, now)
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
        """Whether the store would have to keep a message with this topic, QoS and RETAIN flag."""
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

    def _retain(self, message: Message, publisher: SessionState | None) -> None:
        """[MQTT-3.3.1-5] to [MQTT-3.3.1-7]: replace, or delete if the payload is empty."""
        kept: Message | None = None
        owner = NOBODY if publisher is None else publisher.identity.counted_as
        has_memory = self._has_memory_for(message)
        if not message.payload:
            self.retained.delete(message.topic_name)
        elif has_memory and self.retained.put(message.topic_name, message, owner):
            kept = message
        else:
            # The topic has no retained message now: an older one is no longer the last.
            self.counters.drops.add(RETAINED_FULL if has_memory else MEMORY_SHORT)
        if self.gate.has_store and not message.topic_name.startswith(OWN_TOPICS):
            self.gate.keep_message()
            self.commit.retained.append((message.topic_name, kept))

    def _has_memory_for(self, message: Message) -> bool:
        """Whether a message may be retained: while memory is short, only to replace another."""
        return not self.memory.is_short or self.retained.get(message.topic_name) is not None

    def _deliver_shared(self, group: ShareGroup, message: Message, now: float) -> None:
        """Deliver a message to one member of the group: the next connected one whose queue is not
        full, else (QoS 1 and 2) the next offline one, else a connected one."""
        chosen: SubscriptionEntry | None = None
        keeps_up = False
        for entry in group.connected():
            self.work += ENTRY_WORK
            state = self.sessions[entry.client_id]
            if self.access.receive(state, message.topic_name):
                keeps_up = len(state.session.backlog) < self.maximum_queued
                if keeps_up or chosen is None:
                    chosen = entry
                if keeps_up:
                    break
        if not keeps_up and message.qos:
            for entry in group.offline():
                self.work += ENTRY_WORK
                offline = self.sessions[entry.client_id]
                if entry.qos and self.access.receive(offline, message.topic_name):
                    chosen = entry
                    break
        if chosen is not None:
            group.advance(chosen)
            copy = Copy()
            copy.add(chosen)
            self._deliver(self.sessions[chosen.client_id], message, copy, now, chosen.topic_filter)

    def pass_on(self, state: SessionState, now: float) -> None:
        """Hand unsent messages of a disconnected session's shared subscriptions over [4.8.2].

        Messages for which no other member is connected stay with the session. The part of its queue
        that only the store has is loaded, as far as there is room for what stays.
        """
        shares = {
            entry.topic_filter
            for entry in self.subscriptions.of(state.client_id)
            if entry.share_name and self._has_connected_member(entry.topic_filter)
        }
        if shares:
            session = state.session
            self._hand_over(state, give_up_shared(session, shares, sent=False), now)
            while self.refill(state, now):
                self._hand_over(state, give_up_shared(session, shares, sent=False), now)

    def refill(self, state: SessionState, now: float) -> bool:
        """Load deliveries of the backlog from the store. Returns whether there were any."""
        session = state.session
        if not session.backlog.missing() or state.damage:
            return False
        try:
            backlog = session.backlog
            deliveries = self.store.queue(state.store_id, backlog.first_beyond, backlog.missing())
            backlog.refill(deliveries)
        except Exception as problem:
            self._note_damage(state, problem)
            return False
        self.withdraw_queued(state, deliveries, now)
        return bool(deliveries)

    def withdraw_queued(self, state: SessionState, deliveries: list[Delivery], now: float) -> None:
        """Drop those of these deliveries of the backlog that the client may not receive.

        Messages of a shared subscription go to another member.
        """
        denied: set[int] = set()
        for delivery in deliveries:
            message = delivery.message
            assert message is not None
            if not self.access.receive(state, message.topic_name):
                denied.add(delivery.number)
        # If the authority fails, the messages stay, and the connection is closed.
        if denied and state.client_id not in self.access.faults:
            self.mark_dirty(state)
            dropped = give_up_queued(state.session, denied)
            shared = [each for each in dropped if each.share]
            self.counters.drops.add(REVOKED, len(dropped) - len(shared))
            self._hand_over(state, shared, now)

    def withdraw_unsent(self, state: SessionState, packet_id: int, now: float) -> None:
        """Drop a message in flight whose PUBLISH waits to be sent for the first time.

        A message of a shared subscription goes to another member.
        """
        delivery = state.session.flight(packet_id)
        if delivery is None or delivery.message is None:
            # A client that guessed the identifier has already answered.
            return
        state.session.give_up(packet_id)
        self.mark_dirty(state)
        if delivery.share:
            self._hand_over(state, [delivery], now)
        else:
            self.counters.drops.add(REVOKED)

    def _note_damage(self, state: SessionState, problem: Exception) -> None:
        """Record that rows of a session cannot be read. The next tick closes its connection."""
        state.damage = fault_report(problem)
        self.unreadable.append((state, state.connection, state.damage))
        # Makes sure that there is a next tick.
        self.mark_dirty(state)

    def _hand_over(self, state: SessionState, deliveries: list[Delivery], now: float) -> None:
        """Deliver messages of shared subscriptions to other members."""
        for delivery in deliveries:
            group = self.subscriptions.group(delivery.share)
            message = delivery.message
            assert message is not None
            if group is not None:
                self.gate.begin_handover(state)
                # Subscription Identifiers belong to the subscription of this session.
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
        # [MQTT-3.8.4-8] the lower QoS of the two; [MQTT-3.3.1-12] [MQTT-3.3.1-13]
        qos = min(message.qos, copy.qos)
        retain = message.retain and copy.retain_as_published
        variant = message.variant(qos, retain=retain, identifiers=copy.identifiers)
        self._send(state, variant, now, share)

    def _send(self, state: SessionState, message: Message, now: float, share: str = "") -> None:
        session = state.session
        self.work += DELIVERY_WORK + (message.size >> COPY_SHIFT)
        if message.qos:
            self.gate.add_receiver(state)
            if self.memory.is_short and not state.is_durable and not session.can_send(message.qos):
                self.counters.drops.add(MEMORY_SHORT)
                return
            # The bounds limit queued messages only, not those that can be sent at once.
            if self._is_full(session, message) and not session.can_send(message.qos):
                before = len(session.backlog)
                self._give_up_expired(state, now)
                self.counters.drops.add(EXPIRED, before - len(session.backlog))
                if self._is_full(session, message):
                    self.counters.drops.add(QUEUE_FULL)
                    return
            if state.is_durable:
                self.unwritten_bytes += queued_bytes(message)
        dropped, too_large = session.dropped, session.too_large
        session.send(message, now, share)
        self.counters.drops.add(SLOW_READER, session.dropped - dropped)
        self.counters.drops.add(TOO_LARGE, session.too_large - too_large)
        self.mark_dirty(state)
        self.check_behind(state)

    def _give_up_expired(self, state: SessionState, now: float) -> None:
        session = state.session
        give_up_expired(session, now)
        if not state.damage and session.backlog.may_expire_beyond(now):
            first = session.backlog.first_beyond
            try:
                expired = self.store.expired(state.store_id, first, now)
                next_expiry = self.store.next_expiry(state.store_id, first, now)
            except Exception as problem:
                # This must not fail the publisher.
                self._note_damage(state, problem)
                return
            if self.uncommitted or state.dirty:
                # The store has not written the latest commits yet.
                soon = now + _RECHECK_SECONDS
                next_expiry = soon if next_expiry is None else min(next_expiry, soon)
            give_up_beyond(session, expired, next_expiry)

    def _is_full(self, session: Session, message: Message) -> bool:
        return (
            len(session.backlog) >= self.maximum_queued
            or session.backlog.size + message.size > self.maximum_queued_bytes
        )

    def subscribe(
        self, state: SessionState, subscription: Subscription, identifier: int, now: float
    ) -> int:
        """Add or replace a subscription. Returns the reason code for the SUBACK."""
        allowed = self.allowed_subscription(state, subscription)
        if isinstance(allowed, int):
            return allowed
        return self.add_subscription(state, allowed, identifier, now)

    def allowed_subscription(
        self, state: SessionState, subscription: Subscription
    ) -> Subscription | int:
        """The subscription with the QoS that the authority grants, or why it is refused."""
        qos = subscription.qos
        granted = self.access.subscribe(state, subscription.topic_filter, qos=qos)
        if granted >= FAILURE or granted == qos:
            return granted if granted >= FAILURE else subscription
        return subscription.with_qos(granted)

    def add_subscription(
        self, state: SessionState, subscription: Subscription, identifier: int, now: float
    ) -> int:
        """Add or replace a subscription that the authority has allowed. Returns the reason code."""
        self.work += FILTER_WORK
        cost = subscription_cost(subscription.topic_filter)
        if (
            state.subscriptions >= state.maximum_subscriptions
            or not self.subscription_shares.has_room(state)
            or state.subscription_bytes + cost > self.maximum_client_subscription_bytes
            or self.subscriptions.size + cost > self.maximum_subscription_bytes
            or self.memory.is_short
        ):
            if not self.subscriptions.has(state.client_id, subscription.topic_filter):
                return QUOTA_EXCEEDED
        old = self.subscriptions.subscribe(
            state.client_id, subscription, identifier, is_connected=state.session.connected
        )
        if old is None:
            state.subscriptions += 1
            self.subscription_shares.count(state, 1)
            state.subscription_bytes += cost
        if self.gate.await_if_durable(state):
            self.commit.subscriptions.append(
                (state.store_id, subscription.topic_filter, subscription, identifier)
            )
        # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]; a shared subscription gets none [4.8.2]
        handling = subscription.retain_handling
        if not is_shared(subscription.topic_filter):
            if handling == 0 or (handling == 1 and old is None):
                search = self.retained.search(
                    subscription.topic_filter, subscription.qos, identifier
                )
                if state.retained_searches is None:
                    state.retained_searches = {}
                # Subscribing again to the same filter restarts its search.
                state.retained_searches[subscription.topic_filter] = search
        return subscription.qos

    def lower_qos(self, state: SessionState, entry: SubscriptionEntry, qos: int) -> None:
        """Lower the QoS of an existing subscription."""
        subscription = Subscription(
            entry.topic_filter,
            qos,
            no_local=entry.no_local,
            retain_as_published=entry.retain_as_published,
        )
        self.subscriptions.subscribe(
            state.client_id, subscription, entry.identifier, is_connected=state.session.connected
        )
        if self.gate.await_if_durable(state):
            self.commit.subscriptions.append(
                (state.store_id, entry.topic_filter, subscription, entry.identifier)
            )

    def send_retained(self, state: SessionState, now: float) -> bool:
        """Send retained messages to a new subscriber, as many as its session can send now.

        Returns False if `retained_work` was used up: a later tick has to continue.
        """
        session = state.session
        searches = state.retained_searches
        while searches and session.connected and session.room > 0 and session.backlog.is_empty():
            if self.retained_work <= 0:
                return False
            topic_filter, search = next(iter(searches.items()))
            message = search.next(now)
            self.work += search.visited * NODE_WORK
            self.retained_work -= search.visited * NODE_WORK
            if message is None:
                if search.is_done():
                    del searches[topic_filter]
                continue
            qos = min(message.qos, search.qos)
            if qos < search.minimum_qos or not self.access.receive(state, message.topic_name):
                continue
            self.gate.await_retained(state, qos)
            self.retained_work -= DELIVERY_WORK
            identifiers = [search.identifier] if search.identifier else []
            # [MQTT-3.3.1-8] retained messages for a new subscription have RETAIN 1
            variant = message.variant(qos, retain=True, identifiers=identifiers)
            self._send(state, variant, now)
        if not searches:
            state.retained_searches = None
        return True

    def unsubscribe(self, state: SessionState, topic_filter: str) -> bool:
        """Remove a subscription. Returns whether it existed."""
        self.work += FILTER_WORK
        if state.retained_searches is not None:
            state.retained_searches.pop(topic_filter, None)
        if self.subscriptions.unsubscribe(state.client_id, topic_filter) is None:
            return False
        state.subscriptions -= 1
        self.subscription_shares.count(state, -1)
        state.subscription_bytes -= subscription_cost(topic_filter)
        if self.gate.await_if_durable(state):
            self.commit.subscriptions.append((state.store_id, topic_filter, None, 0))
        return True

    def end(self, state: SessionState, now: float) -> None:
        """End and delete a session [MQTT-4.1.0-2].

        Its messages of shared subscriptions go to other members, if they can be read.
        """
        known_damage = state.damage
        if not self.load_exchanges(state) and not known_damage:
            self.unreadable.append((state, 0, state.damage))
        session = state.session
        # Even if it has left the groups: the messages were for any of their members.
        is_shared_beyond = session.backlog.may_be_shared_beyond
        # First, because every subscription needs its session, if this fails.
        self.subscriptions.forget(state.client_id)
        del self.sessions[state.client_id]
        state.has_ended = True
        self.subscription_shares.count(state, -state.subscriptions)
        if self.gate.end_session(state):
            self.commit.ended.append(state.store_id)
        self._hand_over(state, give_up_shared(session, None, sent=True), now)
        session.backlog.take_all()
        while is_shared_beyond and self.refill(state, now):
            self._hand_over(state, give_up_shared(session, None, sent=False), now)
            session.backlog.take_all()
        if is_shared_beyond and not session.backlog.is_empty():
            self._hand_over(state, self._uncommitted_deliveries(state), now)

    def _uncommitted_deliveries(self, state: SessionState) -> list[Delivery]:
        """Deliveries of shared subscriptions that are neither in memory nor in the store.

        They are in commits that the store has not confirmed.
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
            if (
                message is not None
                and change.share
                and change.number >= state.session.backlog.first_beyond
            ):
                deliveries.append(Delivery(change.number, message, change.share, message.qos))
        return deliveries

    def load_exchanges(self, state: SessionState) -> bool:
        """Load the open exchanges of a restored session, unless they have been loaded.

        Returns False if they cannot be read; then `damage` says why.
        """
        if state.needs_load and not state.damage:
            try:
                deliveries, stored = self.store.exchanges(state.store_id)
                restore_exchanges(state.session, deliveries, stored)
                state.needs_load = False
            except Exception as problem:
                state.damage = fault_report(problem)
        return not state.damage

    def is_readable(self, state: SessionState, now: float) -> bool:
        """Whether a client can resume the session. Retries rows that could not be read before."""
        was_damaged = state.damage != ""
        state.damage = ""
        if was_damaged and self.load_exchanges(state):
            self.refill(state, now)
            if state.damage:
                # The caller reports the damage.
                self.unreadable.pop()
        return self.load_exchanges(state)


def queued_bytes(message: Message) -> int:
    """Approximate size of a delivery of this message in a commit.

    A large payload does not count, because all deliveries share it.
    """
    if len(message.payload) >= SHARED_PAYLOAD:
        return QUEUED_BYTES
    return QUEUED_BYTES + message.size

"""The lifetime of sessions: from the first connection to expiry, with their wills.

    begin ─▶ connected ─▶ leave ─▶ check: publish the will when it is due,
                 ▲                 │      end the session when it has expired
                 └───── begin ◀────┘

When a broker starts, the connections of all restored sessions count as lost at that moment: delays
of wills and expiry intervals start then, unless they were already running.
"""

from heapq import heapify, heappop, heappush
from math import inf
from traceback import format_exc
from typing import Final, final

from semel.broker.broker_log import BrokerLog, source_of
from semel.broker.durability import CommitGate
from semel.broker.identity import Identity, decode_identity
from semel.broker.router import Router
from semel.broker.session_shares import SessionShares
from semel.broker.session_state import SessionState, client_label
from semel.broker.subscriptions import subscription_cost
from semel.broker.throttled_log import ThrottledLog
from semel.broker.turns import END_WORK, FILTER_WORK, TURN_WORK
from semel.mqtt.message import Message
from semel.mqtt.packets.connect import Will
from semel.mqtt.properties import WILL_DELAY_INTERVAL, Properties
from semel.mqtt.reasons import SUCCESS
from semel.mqtt.session import Session
from semel.mqtt.session_restore import restore_backlog, restore_end
from semel.store.commit import QUEUED_BYTES
from semel.store.store import RestoredSession, RestoredState, RestoredWill

# How many queued deliveries of a durable session are kept in memory; the store has the others.
WINDOW: Final = 1_000
# The same while it is not connected: there may be many such sessions.
WINDOW_AWAY: Final = 20

# Tolerated number of obsolete scheduled checks, before the heap is rebuilt.
_STALE_CHECKS: Final = 50

# A check that failed is repeated after this time.
_RETRY_SECONDS: Final = 60.0


@final
class Lifetimes:
    """Starts and ends all sessions, and publishes their wills."""

    _router: Final[Router]
    _gate: Final[CommitGate]
    _log: Final[BrokerLog]
    _window: Final[int]
    _maximum_sessions: Final[int]
    _maximum_expiry: Final[int]
    shares: Final[SessionShares]
    _next_number: int
    # A heap of (time, client identifier): when a delayed will is due, or the session ends.
    _checks: list[tuple[float, str]]
    # Work of this tick for wills and ends of sessions, in the units of `turns.py`; whether checks
    # that are due were postponed to the next tick.
    work: int
    is_behind: bool
    _discarded: Final[ThrottledLog]
    _short: Final[ThrottledLog]

    def __init__(
        self,
        router: Router,
        log: BrokerLog,
        window: int,
        *,
        maximum_sessions: int,
        maximum_expiry: int,
    ) -> None:
        self._router = router
        self._gate = router.gate
        self._log = log
        self._window = window
        self._maximum_sessions = maximum_sessions
        self._maximum_expiry = maximum_expiry
        self.shares = SessionShares(router.sessions)
        self._discarded = ThrottledLog(log.fault)
        self._short = ThrottledLog(log.fault)
        self._next_number = 1
        self._checks = []
        self.work = 0
        self.is_behind = False

    # --- start ------------------------------------------------------------------------------------

    def restore(self, saved: RestoredState, now: float) -> None:
        """Restore all sessions, retained messages and wills. Connections count as lost now."""
        router = self._router
        self._next_number = saved.next_session
        by_number: dict[int, SessionState] = {}
        for each in sorted(saved.sessions, key=_left_at):
            # The limit may have been lowered since the session began. With 0, the session has ended
            # with its connection: `check` ends it below, when other sessions can get its messages.
            expiry_interval = min(each.expiry_interval, self._maximum_expiry)
            was_cut = expiry_interval != each.expiry_interval
            state = SessionState(Identity(each.client_id), Session(), expiry_interval)
            state.store_id = each.store_id
            self._restore_owner(state, each.identity)
            if was_cut and expiry_interval:
                self._store_session(state)
            self._narrow_window(state)
            state.needs_load = True
            restore_backlog(
                state.session,
                each.waiting,
                each.waiting_bytes,
                each.first_waiting,
                each.next_expiry,
                each.last_delivery,
                has_shared=each.has_shared,
            )
            ends_at = each.ends_at
            if was_cut and ends_at is not None and ends_at > now + expiry_interval:
                # Apply the lower limit from now on. It must not extend a session.
                ends_at = None
            restore_end(state.session, ends_at, expiry_interval, now)
            router.sessions[each.client_id] = state
            self.shares.restored(state)
            by_number[each.store_id] = state
            router.mark_dirty(state)
        for number, subscription, identifier in saved.subscriptions:
            owner = by_number.get(number)
            if owner is not None:
                owner.subscriptions += 1
                router.subscription_shares.count(owner, 1)
                owner.subscription_bytes += subscription_cost(subscription.topic_filter)
                router.subscriptions.subscribe(owner.client_id, subscription, identifier)
        for message in saved.retained:
            if not router.retained.put(message.topic_name, message):
                self._log.fault(f"retained message of {message.topic_name!a} not restored: no room")
        for kept in saved.wills:
            self._restore_will(kept, now)
        for state in by_number.values():
            self.check(state, now)
        # The limit may have been lowered.
        self._discard(len(router.sessions) - self._maximum_sessions, now)

    def _restore_will(self, kept: RestoredWill, now: float) -> None:
        state = self._router.sessions.get(kept.client_id)
        if state is None:
            state = SessionState(Identity(kept.client_id), Session(), 0)
        # The will and the session were last written by the same CONNECT.
        self._restore_owner(state, kept.identity)
        state.will = kept.will
        state.has_stored_will = True
        if kept.due_at is None:
            self._schedule_will(state, now)
        else:
            # The session may end earlier than when the will was scheduled: its limit may be lower.
            ends_at = state.session.ends_at
            state.will_due = kept.due_at if ends_at is None else min(kept.due_at, ends_at)
        if not state.is_durable:
            self._publish_will(state, now)

    def _restore_owner(self, state: SessionState, text: str) -> None:
        """Restore the owner of a session or will. A store of an older format does not know it."""
        if text:
            try:
                state.set_owner(decode_identity(state.client_id, text))
                self._router.subscription_shares.set_owner(state)
            except (ValueError, RecursionError) as problem:
                self._log.fault(f"owner of {state.label} unknown: its stored identity: {problem}")

    def _widen_window(self, state: SessionState) -> None:
        """Keep more of a durable session's queue in memory, because it is needed soon."""
        if state.is_durable:
            state.session.backlog.window = self._window

    def _narrow_window(self, state: SessionState) -> None:
        """Keep less of a durable session's queue in memory while it is not connected."""
        if state.is_durable:
            state.session.backlog.window = min(self._window, WINDOW_AWAY)

    def make_room(self, now: float) -> None:
        """Discard an idle session, if there is no room for a new one."""
        self._discard(len(self._router.sessions) + 1 - self._maximum_sessions, now)

    def _discard(self, count: int, now: float) -> None:
        """End `count` idle sessions, or all if there are fewer."""
        while count > 0:
            state = self.shares.to_discard()
            if state is None:
                return
            try:
                self.end(state, now)
            except Exception:
                # A damaged session must not prevent the new client from connecting.
                self.shares.keep(state)
                name = client_label(state.client_id)
                self._log.fault(f"session of {name} cannot be discarded: {format_exc()}")
                continue
            count -= 1
            self._discarded.log(
                f"session of {client_label(state.client_id)} discarded for a new one:"
                f" maximum_sessions is {self._maximum_sessions}",
                now,
            )

    def free_memory(self, wanted: int, now: float) -> None:
        """Discard idle sessions that are not durable, the largest first, to free `wanted` bytes.

        Called while memory is short. Otherwise messages for clients that do not return would keep
        new clients out until they expire.
        """
        idle = [
            (_bytes_held(state.session), state)
            for state in self._router.sessions.values()
            if not state.connection and not state.is_durable and _bytes_held(state.session)
        ]
        idle.sort(key=_weight, reverse=True)
        for weight, state in idle:
            if wanted <= 0:
                return
            wanted -= weight
            self.end(state, now)
            self._short.log(
                f"session of {client_label(state.client_id)} discarded with its queue:"
                " memory is short",
                now,
            )

    def begin(
        self,
        state: SessionState,
        expiry_interval: int,
        will: Will | None,
        *,
        address: str,
    ) -> None:
        """Attach the session to a connection from this address, on these terms."""
        self.shares.connected(state, address)
        state.expiry_interval = expiry_interval
        if self._gate.has_store and expiry_interval and not state.is_durable:
            state.store_id = self._next_number
            self._next_number += 1
        self._widen_window(state)
        # A durable session stays durable until it ends.
        state.session.durable = state.is_durable
        self._store_session(state)
        # [MQTT-3.1.3-9] a delayed will is not published if the client returns in time
        state.will = will
        state.will_due = None
        self._store_will(state)
        if will is not None:
            self._gate.accept_will(state)

    def store_owner(self, state: SessionState) -> None:
        """Store the owner of the session and of its will, because it has changed."""
        self._store_session(state)
        if state.will is not None:
            self._store_will(state)

    # --- end --------------------------------------------------------------------------------------

    def change_expiry(self, state: SessionState, expiry_interval: int) -> None:
        """Set the Session Expiry Interval of a DISCONNECT."""
        state.expiry_interval = expiry_interval
        self._store_session(state)

    def discard_will(self, state: SessionState) -> None:
        """Discard the will, because the client disconnects normally [MQTT-3.1.2-10]."""
        state.will = None
        self._store_will(state)

    def leave(self, state: SessionState, now: float) -> None:
        """Detach the session from its connection: it continues without, or ends [4.1]."""
        before = self._router.work
        self.shares.left(state)
        state.session.disconnect(now, state.expiry_interval)
        self._router.subscriptions.set_connected(state.client_id, is_connected=False)
        self._narrow_window(state)
        self._router.mark_dirty(state)
        if state.will is not None:
            self._schedule_will(state, now)
        if self.work < TURN_WORK:
            self.check(state, now)
        else:
            # Many connections were lost at once: serve other clients in between.
            state.next_check = now
            heappush(self._checks, (now, state.client_id))
            self.is_behind = True
        self._router.pass_on(state, now)
        self.work += self._router.work - before

    def sweep(self, now: float) -> None:
        """Check the sessions that are due, as far as the work of this tick allows."""
        self._discarded.flush(now)
        self._short.flush(now)
        self.continue_checks(now)

    def continue_checks(self, now: float) -> None:
        """Check the sessions that are due, until the work of this tick is used up."""
        self.is_behind = False
        while self._checks and self._checks[0][0] <= now:
            if self.work >= TURN_WORK:
                self.is_behind = True
                return
            before = self._router.work
            _, client_id = heappop(self._checks)
            state = self._router.sessions.get(client_id)
            if state is not None:
                state.next_check = None
                try:
                    self.check(state, now)
                except Exception:
                    # Other sessions still have to be checked.
                    name = client_label(client_id)
                    self._log.fault(f"check of session {name} failed: {format_exc()}")
                    state.next_check = now + _RETRY_SECONDS
                    heappush(self._checks, (state.next_check, client_id))
            self.work += self._router.work - before

    def check(self, state: SessionState, now: float) -> None:
        """Publish a will that is due, end an expired session, or schedule the next check."""
        if state.connection:
            return
        if state.will_due is not None and now >= state.will_due:
            self._publish_will(state, now)
        if state.session.is_over(now):
            if state.expiry_interval:
                self._router.counters.sessions_expired += 1
            self.end(state, now)
            return
        due = state.session.ends_at if state.will_due is None else state.will_due
        # One scheduled check per session is enough: an early check schedules the next one.
        if due is not None and (state.next_check is None or due < state.next_check):
            state.next_check = due
            heappush(self._checks, (due, state.client_id))
            if len(self._checks) > 2 * len(self._router.sessions) + _STALE_CHECKS:
                self._checks = [
                    (state.next_check, state.client_id)
                    for state in self._router.sessions.values()
                    if state.next_check is not None
                ]
                heapify(self._checks)

    def end(self, state: SessionState, now: float) -> None:
        """End the session: publish its will, and delete it."""
        # [3.1.3.2.2] a delayed will is published at the latest when the session ends
        if state.will is not None:
            self._publish_will(state, now)
        self._widen_window(state)
        self._router.work += END_WORK + FILTER_WORK * state.subscriptions
        self._router.end(state, now)
        self.shares.ended(state)

    # --- wills ------------------------------------------------------------------------------------

    def _schedule_will(self, state: SessionState, now: float) -> None:
        """Set when the will is due [MQTT-3.1.2-8]: after its delay, or when the session ends."""
        will = state.will
        assert will is not None
        delay = min(will.properties.will_delay_interval or 0, state.expiry_interval)
        state.will_due = now + delay
        if delay:
            self._store_will(state)

    def _publish_will(self, state: SessionState, now: float) -> None:
        """Publish the will, and delete it [MQTT-3.1.2-10]."""
        will = state.will
        assert will is not None
        state.will = None
        state.will_due = None
        # Deleted in the same commit as its message, so that a crash cannot publish it twice.
        self._store_will(state)
        router = self._router
        try:
            reason = router.access.publish(
                state.identity, will.topic_name, qos=will.qos, retain=will.retain
            )
            if reason == SUCCESS:
                message = _will_message(will, now)
                streams = router.streams.of(will.topic_name)
                if streams:
                    properties = _message_properties(will)
                    router.record(streams, message, state, properties=properties)
                router.route(message, state, now, is_kept=self._gate.has_store)
            else:
                router.counters.refuse_publish(reason)
        except Exception:
            # Caught here, because the connection that is being served may be another one.
            line = f"will of {client_label(state.client_id)} lost: {format_exc()}"
            self._log.problem(source_of(state.identity), line, now)

    # --- the store --------------------------------------------------------------------------------

    def _store_session(self, state: SessionState) -> None:
        """Store the session if it is durable."""
        if self._gate.await_if_durable(state):
            interval = state.expiry_interval
            kept = (state.store_id, state.client_id, interval, state.stored_owner)
            self._router.commit.sessions.append(kept)

    def _store_will(self, state: SessionState) -> None:
        """Add the current will, or its deletion, to the commit."""
        will = state.will
        if self._gate.has_store and (will is not None or state.has_stored_will):
            state.has_stored_will = will is not None
            kept = (state.client_id, state.stored_owner, will, state.will_due)
            self._router.commit.wills.append(kept)


def _bytes_held(session: Session) -> int:
    """Memory of the messages of a session: in its backlog and in flight."""
    backlog = session.backlog
    return backlog.size + QUEUED_BYTES * len(backlog) + session.in_flight_bytes


def _weight(entry: tuple[int, SessionState]) -> int:
    return entry[0]


def _left_at(saved: RestoredSession) -> tuple[float, int]:
    """Sort key: when the client disconnected, as far as the store knows, and the store id.

    A session without a stored end was connected or never expires; both count as connected.
    """
    at = inf if saved.ends_at is None else saved.ends_at - saved.expiry_interval
    return at, saved.store_id


def _will_message(will: Will, now: float) -> Message:
    interval = will.properties.message_expiry_interval
    return Message(
        will.topic_name,
        will.payload,
        qos=will.qos,
        retain=will.retain,
        properties=_message_properties(will),
        expires_at=None if interval is None else now + interval,
    )


def _message_properties(will: Will) -> Properties:
    """The properties of the will's message: all except Will Delay Interval."""
    items = [item for item in will.properties.items if item[0] != WILL_DELAY_INTERVAL]
    return Properties(items)

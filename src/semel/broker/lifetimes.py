"""The lifetime of sessions, and what happens to them without a connection.

    begin ─▶ a connection has it ─▶ leave ─▶ check: publish its will when that is due,
                    ▲                        │      end it when it has expired
                    └──────── begin ◀────────┘

When a broker starts, every session of the store has lost its connection just then: the delays of
wills and the expiry of sessions run from there, unless they ran already.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from traceback import format_exc
from typing import Final, final

from semel.broker.durability import CommitGate
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

# Queued deliveries of a durable session that are kept in memory; the store has the others.
WINDOW: Final = 1_000
# The same while it is not connected: there may be many such sessions.
WINDOW_AWAY: Final = 20

# Scheduled checks of sessions that have ended: beyond this number, the list is rebuilt.
_STALE_CHECKS: Final = 50

# A check that failed is repeated after this time.
_RETRY_SECONDS: Final = 60.0


@final
class Lifetimes:
    """Begins and ends all sessions, and publishes their wills."""

    _router: Final[Router]
    _gate: Final[CommitGate]
    _log: Final[Callable[[str], None]]
    _window: Final[int]
    _maximum_sessions: Final[int]
    _maximum_expiry: Final[int]
    shares: Final[SessionShares]
    _next_number: int
    # A heap of (when, client identifier): a delayed will is due, or the session ends.
    _checks: list[tuple[float, str]]
    # Work of this tick for wills and ends, in the units of `turns.py`; whether checks that are due
    # wait for the next tick.
    work: int
    is_behind: bool
    _discarded: Final[ThrottledLog]
    _short: Final[ThrottledLog]

    def __init__(
        self,
        router: Router,
        log: Callable[[str], None],
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
        self._discarded = ThrottledLog(log)
        self._short = ThrottledLog(log)
        self._next_number = 1
        self._checks = []
        self.work = 0
        self.is_behind = False

    # --- the beginning ----------------------------------------------------------------------------

    def restore(self, saved: RestoredState, now: float) -> None:
        """Continue from what the store has. Every connection counts as closed just now."""
        router = self._router
        self._next_number = saved.next_session
        by_number: dict[int, SessionState] = {}
        for each in sorted(saved.sessions, key=_left_at):
            # The limit may be lower than when the session began.
            expiry_interval = min(each.expiry_interval, self._maximum_expiry)
            if not expiry_interval:
                # The session was to end with its connection.
                router.commit.ended.append(each.store_id)
                continue
            state = SessionState(each.client_id, Session(), expiry_interval)
            state.store_id = each.store_id
            if expiry_interval != each.expiry_interval:
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
            )
            ends_at = each.ends_at
            was_cut = expiry_interval != each.expiry_interval
            if was_cut and ends_at is not None and ends_at > now + expiry_interval:
                # A session that is cut ends at the new limit from now, and none gets longer by it.
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
                owner.subscription_bytes += subscription_cost(subscription.topic_filter)
                router.subscriptions.subscribe(owner.client_id, subscription, identifier)
        for message in saved.retained:
            if not router.retained.put(message.topic_name, message):
                self._log(f"retained message of {message.topic_name!a} not restored: no room")
        for kept in saved.wills:
            self._restore_will(kept, now)
        for state in by_number.values():
            self.check(state, now)
        # The limit may be lower than before.
        self._discard(len(router.sessions) - self._maximum_sessions, now)

    def _restore_will(self, kept: RestoredWill, now: float) -> None:
        state = self._router.sessions.get(kept.client_id)
        if state is None:
            state = SessionState(kept.client_id, Session(), 0)
        state.user_name = kept.user_name
        state.will = kept.will
        state.has_stored_will = True
        if kept.due_at is None:
            self._schedule_will(state, now)
        else:
            state.will_due = kept.due_at
        if not state.is_durable:
            self._publish_will(state, now)

    def _widen_window(self, state: SessionState) -> None:
        """Much of a durable session's queue will be needed soon."""
        if state.is_durable:
            state.session.backlog.window = self._window

    def _narrow_window(self, state: SessionState) -> None:
        """A durable session's queue is not needed for a while."""
        if state.is_durable:
            state.session.backlog.window = min(self._window, WINDOW_AWAY)

    def make_room(self, now: float) -> None:
        """A client begins a session: if there are too many, discard an idle one."""
        self._discard(len(self._router.sessions) + 1 - self._maximum_sessions, now)

    def _discard(self, count: int, now: float) -> None:
        """End `count` idle sessions, or as many as there are."""
        while count > 0:
            state = self.shares.to_discard()
            if state is None:
                return
            try:
                self.end(state, now)
            except Exception:
                # It may be damaged, which must not fail the client that connects.
                self.shares.keep(state)
                name = client_label(state.client_id)
                self._log(f"session of {name} cannot be discarded: {format_exc()}")
                continue
            count -= 1
            self._discarded.log(
                f"session of {client_label(state.client_id)} discarded for a new one:"
                f" maximum_sessions is {self._maximum_sessions}",
                now,
            )

    def free_memory(self, wanted: int, now: float) -> None:
        """Memory is short: discard idle sessions with about `wanted` bytes, the largest first.

        Only sessions in memory. Otherwise messages for clients that do not return would keep new
        clients out until they expire.
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
        self, state: SessionState, expiry_interval: int, will: Will | None, *, address: str
    ) -> None:
        """From now on a connection from this address has the session, on these terms."""
        self.shares.connected(state, address)
        state.expiry_interval = expiry_interval
        if self._gate.has_store and expiry_interval and not state.is_durable:
            state.store_id = self._next_number
            self._next_number += 1
        self._widen_window(state)
        # It stays durable until it ends.
        state.session.durable = state.is_durable
        self._store_session(state)
        # [MQTT-3.1.3-9] a delayed will is not published if the client returns in time
        state.will = will
        state.will_due = None
        self._store_will(state)
        if will is not None:
            self._gate.accept_will(state)

    # --- the end ----------------------------------------------------------------------------------

    def change_expiry(self, state: SessionState, expiry_interval: int) -> None:
        """Its client disconnects with another Session Expiry Interval."""
        state.expiry_interval = expiry_interval
        self._store_session(state)

    def discard_will(self, state: SessionState) -> None:
        """[MQTT-3.1.2-10] its client disconnects normally."""
        state.will = None
        self._store_will(state)

    def leave(self, state: SessionState, now: float) -> None:
        """The session continues without a connection [4.1], or ends with it."""
        before = self._router.work
        self.shares.left(state)
        state.session.disconnect(now, state.expiry_interval)
        self._router.subscriptions.set_connected(state.client_id, False)
        self._narrow_window(state)
        self._router.mark_dirty(state)
        if state.will is not None:
            self._schedule_will(state, now)
        if self.work < TURN_WORK:
            self.check(state, now)
        else:
            # Many connections are lost at one time: others are served in between.
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
        """Check the sessions that are due and did not fit into an earlier tick."""
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
                    # The wills and ends of other sessions are due as well.
                    name = client_label(client_id)
                    self._log(f"check of session {name} failed: {format_exc()}")
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
            self.end(state, now)
            return
        due = state.session.ends_at if state.will_due is None else state.will_due
        # One scheduled check is enough: an early one schedules the next.
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
        """The session is over."""
        # [3.1.3.2.2] a delayed will is published at the latest when the session ends
        if state.will is not None:
            self._publish_will(state, now)
        self._widen_window(state)
        self._router.work += END_WORK + FILTER_WORK * state.subscriptions
        self._router.end(state, now)
        self.shares.ended(state)

    # --- wills ------------------------------------------------------------------------------------

    def _schedule_will(self, state: SessionState, now: float) -> None:
        """[MQTT-3.1.2-8] after the delay, or when the session ends if that comes first."""
        will = state.will
        assert will is not None
        delay = min(will.properties.will_delay_interval or 0, state.expiry_interval)
        state.will_due = now + delay
        if delay:
            self._store_will(state)

    def _publish_will(self, state: SessionState, now: float) -> None:
        """[MQTT-3.1.2-10] publish it, and delete it."""
        will = state.will
        assert will is not None
        state.will = None
        state.will_due = None
        # In the same commit as its message, so that it is published once even after a crash.
        self._store_will(state)
        router = self._router
        try:
            if router.authorize_publish(state.client_id, will.topic_name) == SUCCESS:
                message = _will_message(will, now)
                streams = router.streams.of(will.topic_name)
                if streams:
                    properties = _message_properties(will)
                    router.record(streams, message, state, properties=properties)
                router.route(message, state.client_id, now, is_kept=self._gate.has_store)
        except Exception:
            # The connection that is being served may be another one.
            self._log(f"will of {client_label(state.client_id)} lost: {format_exc()}")

    # --- the store --------------------------------------------------------------------------------

    def _store_session(self, state: SessionState) -> None:
        """Store the session if it is durable."""
        if self._gate.await_if_durable(state):
            kept = (state.store_id, state.client_id, state.expiry_interval)
            self._router.commit.sessions.append(kept)

    def _store_will(self, state: SessionState) -> None:
        """Store the will as it is now, or that there is none."""
        will = state.will
        if self._gate.has_store and (will is not None or state.has_stored_will):
            state.has_stored_will = will is not None
            kept = (state.client_id, state.user_name, will, state.will_due)
            self._router.commit.wills.append(kept)


def _bytes_held(session: Session) -> int:
    """Memory that the messages of a session take: its backlog and those in flight."""
    backlog = session.backlog
    return backlog.size + QUEUED_BYTES * len(backlog) + session.in_flight_bytes


def _weight(entry: tuple[int, SessionState]) -> int:
    return entry[0]


def _left_at(saved: RestoredSession) -> tuple[float, int]:
    """When its client disconnected, as far as the store knows, and its number.

    A session without an end was connected or never ends: both count as connected.
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
    """The properties of a will that its message has: all except the delay."""
    items = [item for item in will.properties.items if item[0] != WILL_DELAY_INTERVAL]
    return Properties(items)

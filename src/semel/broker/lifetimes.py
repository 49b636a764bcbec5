"""How long sessions last, and what becomes of them without a connection.

    begin ─▶ a connection has it ─▶ leave ─▶ look_at: its will, when that is due
                    ▲                              its end, when that has come
                    └───────── begin ◀─────────────┘

Also a broker's start: every session that the store has lost its connection just then, so that the
delays of wills and the expiry of sessions run from there, unless they ran already.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from traceback import format_exc
from typing import Final, final

from semel.broker.durability import CommitGate
from semel.broker.router import Router
from semel.broker.session_shares import SessionShares
from semel.broker.session_state import SessionState, shown
from semel.broker.subscriptions import subscription_cost
from semel.broker.throttled_log import ThrottledLog
from semel.mqtt.message import Message
from semel.mqtt.packets.connect import Will
from semel.mqtt.properties import WILL_DELAY_INTERVAL, Properties
from semel.mqtt.reasons import SUCCESS
from semel.mqtt.session import Session
from semel.store.commit import QUEUED_BYTES
from semel.store.store import Saved, SavedSession, SavedWill

# Deliveries of a stored session that are kept in memory while they wait; the store has the others.
WINDOW: Final = 1_000
# The same while its client is away: nobody needs them soon, and there may be many such sessions.
WINDOW_AWAY: Final = 20

# Appointments with sessions that are no more: beyond so many, the list is made anew.
_STALE_CHECKS: Final = 50

# A session that could not be looked at is looked at again after so many seconds.
_RETRY_SECONDS: Final = 60.0


@final
class Lifetimes:
    """All sessions, from their beginning to their end."""

    _router: Final[Router]
    _gate: Final[CommitGate]
    _log: Final[Callable[[str], None]]
    _window: Final[int]
    _maximum_sessions: Final[int]
    _maximum_expiry: Final[int]
    shares: Final[SessionShares]
    _next_number: int
    # (when, client identifier) of sessions to look at: a delayed will is due, or the session ends.
    _checks: list[tuple[float, str]]
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

    # --- the beginning ----------------------------------------------------------------------------

    def restore(self, saved: Saved, now: float) -> None:
        """Go on from what the store has. Every connection counts as closed just now."""
        router = self._router
        self._next_number = saved.next_session
        by_number: dict[int, SessionState] = {}
        for each in sorted(saved.sessions, key=_left_at):
            # The limit may be lower than when the session began.
            expiry_interval = min(each.expiry_interval, self._maximum_expiry)
            if not expiry_interval:
                # It was to end with its connection.
                router.commit.ended.append(each.number)
                continue
            state = SessionState(each.client_id, Session(), expiry_interval)
            state.store_id = each.number
            if expiry_interval != each.expiry_interval:
                self._store_session(state)
            self._narrow_window(state)
            state.needs_load = True
            state.session.restore_queue(
                each.waiting,
                each.waiting_bytes,
                each.first_waiting,
                each.next_expiry,
                each.last_delivery,
            )
            state.session.restore_end(each.ends_at, expiry_interval, now)
            router.sessions[each.client_id] = state
            self.shares.restored(state)
            by_number[each.number] = state
            router.mark_dirty(state)
        for number, subscription, identifier in saved.subscriptions:
            owner = by_number.get(number)
            if owner is not None:
                owner.subscriptions += 1
                owner.subscription_bytes += subscription_cost(subscription.topic_filter)
                router.subscriptions.subscribe(owner.client_id, subscription, identifier)
        for message in saved.retained:
            if not router.retained.put(message.topic_name, message):
                self._log(f"no room for the retained message of {message.topic_name!a}")
        for kept in saved.wills:
            self._restore_will(kept, now)
        for state in by_number.values():
            self.check(state, now)
        # There may be more of them than there may be now.
        self._discard(len(router.sessions) - self._maximum_sessions, now)

    def _restore_will(self, kept: SavedWill, now: float) -> None:
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
        """Much of the session's queue is wanted soon, if the store has it."""
        if state.is_durable:
            state.session.keep_at_hand(self._window)

    def _narrow_window(self, state: SessionState) -> None:
        """Nobody wants the session's queue for a while."""
        if state.is_durable:
            state.session.keep_at_hand(min(self._window, WINDOW_AWAY))

    def make_room(self, now: float) -> None:
        """A client begins a session: if there are too many, others go."""
        self._discard(len(self._router.sessions) + 1 - self._maximum_sessions, now)

    def _discard(self, count: int, now: float) -> None:
        """End so many sessions that are idle, or as many as there are."""
        while count > 0:
            state = self.shares.to_discard()
            if state is None:
                return
            try:
                self.end(state, now)
            except Exception:
                # It may be damaged. Whoever comes has no part in it, and must not fail over it.
                self.shares.keep(state)
                name = shown(state.client_id)
                self._log(f"the session of {name} cannot be discarded: {format_exc()}")
                continue
            count -= 1
            self._discarded.note(
                f"an idle session was discarded for a new one: maximum_sessions is"
                f" {self._maximum_sessions}, the last to go was {shown(state.client_id)}",
                now,
            )

    def free_memory(self, wanted: int, now: float) -> None:
        """Memory is short: discard idle sessions that hold about so many bytes, the largest first.

        They are those that no store keeps. Otherwise what waits for clients that do not come would
        keep new clients out until it expires.
        """
        idle = [
            (state.session.waiting_bytes + QUEUED_BYTES * state.session.waiting, state)
            for state in self._router.sessions.values()
            if not state.connection and not state.is_durable and state.session.waiting
        ]
        idle.sort(key=_weight, reverse=True)
        for weight, state in idle:
            if wanted <= 0:
                return
            wanted -= weight
            self.end(state, now)
            self._short.note(
                f"memory is short: the session of {shown(state.client_id)} was discarded with all"
                " that waited for it",
                now,
            )

    def begin(
        self, state: SessionState, expiry_interval: int, will: Will | None, *, address: str
    ) -> None:
        """A connection from this address has the session from now on, on these terms."""
        self.shares.connected(state, address)
        state.expiry_interval = expiry_interval
        if self._gate.has_store and expiry_interval and not state.is_durable:
            # The store will have all that happens to it.
            state.store_id = self._next_number
            self._next_number += 1
        self._widen_window(state)
        # Once it is stored, all that happens to it is, until it ends.
        state.session.durable = state.is_durable
        self._store_session(state)
        # [MQTT-3.1.3-9] the session is back before its will was due
        state.will = will
        state.will_due = None
        self._store_will(state)
        if will is not None:
            self._gate.accept_will(state)

    # --- the end ----------------------------------------------------------------------------------

    def change_expiry(self, state: SessionState, expiry_interval: int) -> None:
        """Its client leaves with another Session Expiry Interval than it came with."""
        state.expiry_interval = expiry_interval
        self._store_session(state)

    def discard_will(self, state: SessionState) -> None:
        """[MQTT-3.1.2-10] its client has taken it back."""
        state.will = None
        self._store_will(state)

    def leave(self, state: SessionState, now: float) -> None:
        """The session goes on without a connection [4.1], or ends with it."""
        self.shares.left(state)
        state.session.disconnect(now, state.expiry_interval)
        self._router.subscriptions.set_connected(state.client_id, False)
        self._narrow_window(state)
        self._router.mark_dirty(state)
        if state.will is not None:
            self._schedule_will(state, now)
        self.check(state, now)
        self._router.pass_on(state, now)

    def sweep(self, now: float) -> None:
        """Look at whom it is time to."""
        self._discarded.flush(now)
        self._short.flush(now)
        while self._checks and self._checks[0][0] <= now:
            _, client_id = heappop(self._checks)
            state = self._router.sessions.get(client_id)
            if state is not None:
                state.next_check = None
                try:
                    self.check(state, now)
                except Exception:
                    # Everybody else's wills and ends are due as well.
                    self._log(f"the end of {shown(client_id)} failed: {format_exc()}")
                    state.next_check = now + _RETRY_SECONDS
                    heappush(self._checks, (state.next_check, client_id))

    def check(self, state: SessionState, now: float) -> None:
        """Publish a will that is due, end a session that is over, or look again later."""
        if state.connection:
            return
        if state.will_due is not None and now >= state.will_due:
            self._publish_will(state, now)
        if state.session.is_over(now):
            self.end(state, now)
            return
        due = state.session.ends_at if state.will_due is None else state.will_due
        # One appointment is enough: whoever comes early makes the next.
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
        # [3.1.3.2.2] a will whose delay was not over is sent when the session ends
        if state.will is not None:
            self._publish_will(state, now)
        self._widen_window(state)
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
        """[MQTT-3.1.2-10] published once, then gone."""
        will = state.will
        assert will is not None
        state.will = None
        state.will_due = None
        # In the same commit as what becomes of the message: a crash publishes it once.
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
            # Its client is gone, and whoever is served just now has no part in it.
            self._log(f"the will of {shown(state.client_id)} is lost: {format_exc()}")

    # --- what the store is told -------------------------------------------------------------------

    def _store_session(self, state: SessionState) -> None:
        """What the client is told of its session, the store has first."""
        if self._gate.await_if_durable(state):
            kept = (state.store_id, state.client_id, state.expiry_interval)
            self._router.commit.sessions.append(kept)

    def _store_will(self, state: SessionState) -> None:
        """Let the store have the will as it is now, or no will."""
        will = state.will
        if self._gate.has_store and (will is not None or state.has_stored_will):
            state.has_stored_will = will is not None
            kept = (state.client_id, state.user_name, will, state.will_due)
            self._router.commit.wills.append(kept)


def _weight(weighed: tuple[int, SessionState]) -> int:
    return weighed[0]


def _left_at(saved: SavedSession) -> tuple[float, int]:
    """When its client was there last, as far as the store can tell; and who came first.

    A session without an end was connected, or never ends: both are taken for connected.
    """
    at = inf if saved.ends_at is None else saved.ends_at - saved.expiry_interval
    return at, saved.number


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
    """Those of the message of a will: its delay was for the server, the rest for subscribers."""
    items = [item for item in will.properties.items if item[0] != WILL_DELAY_INTERVAL]
    return Properties(items)

"""Applies rights to what sessions already have: subscriptions, queued messages, messages in flight.

The authority is asked again for all sessions, a share of them per tick, when rights change and
after a start, because they may have changed meanwhile; and when a client returns, perhaps with
other rights than before. Until a session has been checked, `AccessControl.receive` already
withholds new messages that its client may no longer receive, and it is checked before it sends.

    a subscription that is refused      ends
    one that is granted a lower QoS     gets that QoS
    queued messages                     are dropped; those of a shared subscription go to others
    messages that wait to be sent       are dropped or go to others, too (`Withholding`)
    messages in flight                  are dropped before they are sent again; a client that is
                                        being sent one again is disconnected. A QoS 2 exchange
                                        continues with PUBREL, so that its identifier becomes free
"""

from traceback import format_exc
from typing import Final, final

from semel.broker.connections import Connections
from semel.broker.counters import REVOKED
from semel.broker.identity import Identity
from semel.broker.replay import Replays
from semel.broker.router import Router
from semel.broker.session_state import SessionState
from semel.broker.throttled_log import ThrottledLog
from semel.broker.turns import FILTER_WORK, SESSION_WORK, TURN_WORK
from semel.mqtt.reasons import FAILURE, NOT_AUTHORIZED


@final
class Revocation:
    """Applies the current rights to existing sessions."""

    _router: Final[Router]
    _replays: Final[Replays]
    _connections: Final[Connections]
    _log: Final[ThrottledLog]
    _generation: int
    # Client identifiers of the sessions that still have to be checked, the next one last.
    _pending: list[str]

    def __init__(
        self, router: Router, replays: Replays, connections: Connections, log: ThrottledLog
    ) -> None:
        self._router = router
        self._replays = replays
        self._connections = connections
        self._log = log
        self._generation = router.access.generation
        self._pending = []

    def is_due(self) -> bool:
        """Whether rights have changed, or sessions still have to be checked after a change."""
        return bool(self._pending) or self._generation != self._router.access.generation

    def check_all(self) -> None:
        """Check all sessions in the next ticks."""
        self._pending = list(self._router.sessions)

    def check_sessions(self, now: float) -> None:
        """Check sessions after a change of rights, as many as one tick allows."""
        generation = self._router.access.generation
        if self._generation != generation:
            self._generation = generation
            self._connections.audit.rights_changed()
            self.check_all()
        work = 0
        while self._pending and work < TURN_WORK:
            state = self._router.sessions.get(self._pending.pop())
            if state is not None:
                work += SESSION_WORK + FILTER_WORK * state.subscriptions
                self._check(state, now)

    def check_senders(self, now: float) -> None:
        """Check the sessions that are about to send, before their turn in `check_sessions`."""
        for state in list(self._router.dirty):
            if state.session.connected:
                self._check(state, now)

    def _check(self, state: SessionState, now: float) -> None:
        try:
            self.apply(state, now)
        except Exception:
            # The failure closes the connection of this client only.
            self._router.access.faults.setdefault(state.client_id, format_exc())

    def flush_log(self, now: float) -> None:
        """Once a second: log the count of subscriptions that have ended."""
        self._log.flush(now)

    def change_owner(self, state: SessionState, identity: Identity, now: float) -> None:
        """Let the session belong to this client from now on, and apply its rights.

        If the authority fails, the session stays with its former owner.
        """
        owner, has_known_owner = state.identity, state.has_known_owner
        try:
            self._router.access.set_owner(state, identity)
            self.apply(state, now)
        except Exception:
            state.set_owner(owner)
            state.has_known_owner = has_known_owner
            state.checked_version = -1
            raise

    def apply(self, state: SessionState, now: float) -> None:
        """Apply the current rights to a session, unless that has been done."""
        access = self._router.access
        if state.checked_version == access.version():
            return
        # Ask about all of them before anything changes, because the authority may fail.
        decided = [
            (entry, access.subscribe(state, entry.topic_filter, qos=entry.qos))
            for entry in self._router.subscriptions.of(state.client_id)
        ]
        for entry, granted in decided:
            if granted >= FAILURE:
                self._router.unsubscribe(state, entry.topic_filter)
                self._replays.unsubscribe(state, entry.topic_filter)
                self._log.log(
                    f"subscription of {state.label} to {entry.topic_filter!a} ended: its rights"
                    " have changed",
                    now,
                )
            elif granted < entry.qos:
                self._router.lower_qos(state, entry, granted)
        self._router.withdraw_queued(state, state.session.backlog.in_memory(), now)
        is_done = self._withdraw_in_flight(state, now)
        if is_done and state.client_id not in access.faults:
            state.checked_version = access.version()

    def _withdraw_in_flight(self, state: SessionState, now: float) -> bool:
        """Drop messages that would be sent again although the client may not receive them.

        Returns False if that has to wait until the client returns.
        """
        if state.needs_load:
            return False
        session = state.session
        is_done = True
        for delivery in session.deliveries_in_flight():
            message = delivery.message
            if message is None or self._router.access.receive(state, message.topic_name):
                continue
            if state.client_id in self._router.access.faults:
                return False
            if not session.connected:
                session.withdraw(delivery.packet_id)
                self._router.counters.drops.add(REVOKED)
                self._router.mark_dirty(state)
            elif delivery.counts:
                # It was sent on this connection and cannot be taken back. But it must not be sent
                # again on the next one.
                is_done = False
            else:
                # Its packet identifier is in use on this connection. The client returns without it.
                connection = self._connections.by_number[state.connection]
                why = "its rights have changed"
                self._connections.disconnect(connection, NOT_AUTHORIZED, now, why)
                return False
        return is_done

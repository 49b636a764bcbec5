"""Sums over all sessions, from passes in slices.

A pass over all sessions at once would delay every client of a large broker. A slice takes a few
milliseconds. If all sessions fit into one, the sums are at most a second old; otherwise each sweep
adds one slice, and the sums are those of the last complete pass.
"""

from typing import Final, final

from semel.broker.session_state import SessionState

# How many sessions one slice adds up.
SLICE_SESSIONS: Final = 10_000
# The minimum time between the beginnings of two passes.
PASS_SECONDS: Final = 1.0


@final
class SessionTotals:
    """Sums over all sessions, from one pass."""

    # Sessions with a connection, and durable sessions.
    connected: int
    durable: int
    # Messages in backlogs, in memory or on disk, and in flight, with their bytes.
    queued_messages: int
    queued_bytes: int
    in_flight_messages: int
    in_flight_bytes: int

    def __init__(self) -> None:
        self.connected = 0
        self.durable = 0
        self.queued_messages = 0
        self.queued_bytes = 0
        self.in_flight_messages = 0
        self.in_flight_bytes = 0

    def add(self, state: SessionState) -> None:
        """Add a session."""
        session = state.session
        if state.connection:
            self.connected += 1
        if state.is_durable:
            self.durable += 1
        if not session.backlog.is_empty():
            self.queued_messages += len(session.backlog)
            self.queued_bytes += session.backlog.size
        if session.flights:
            self.in_flight_messages += session.in_flight
            self.in_flight_bytes += session.in_flight_bytes


@final
class SessionPasses:
    """Adds up the sessions of one broker, again and again."""

    # Those of the last complete pass.
    totals: SessionTotals
    _sessions: Final[dict[str, SessionState]]
    _slice: Final[int]
    # The pass that is under way: its sums, and the sessions that it has not added yet.
    _sums: SessionTotals
    _left: list[SessionState]
    # When the next pass may begin.
    _due: float

    def __init__(
        self,
        sessions: dict[str, SessionState],
        now: float,
        *,
        slice_sessions: int = SLICE_SESSIONS,
    ) -> None:
        """Add up the sessions that there are at the start, when no client can be delayed."""
        self._sessions = sessions
        self._slice = slice_sessions
        self._sums = self.totals = SessionTotals()
        self._left = []
        for state in sessions.values():
            self.totals.add(state)
        self._due = now

    def advance(self, now: float) -> None:
        """Add one slice to the pass that is under way. Begin one if it is due."""
        if not self._left:
            if now < self._due:
                return
            self._due = now + PASS_SECONDS
            self._sums = SessionTotals()
            self._left = list(self._sessions.values())
        states = self._left[-self._slice :]
        # Now, so that a failure does not repeat itself.
        del self._left[-self._slice :]
        for state in states:
            if not state.has_ended:
                self._sums.add(state)
        if not self._left:
            self.totals = self._sums

    def sweep(self, now: float) -> None:
        """Once a second: advance, if a pass has several slices."""
        if self._left or len(self._sessions) > self._slice:
            self.advance(now)

"""Chooses the idle session that is discarded when there is no room for a new one.

The standard permits a server to discard the session of a client that is not connected, as an
automated response to defined conditions (5.0 [4.1.1], 3.1.1 [4.1]); the client learns it from
Session Present 0. Here the condition is that there are `maximum_sessions`. A connected session is
never discarded [MQTT-4.1.0-1].

    a new session ─▶ the address with the most sessions loses the one that is idle longest; if it
                     has no idle session, the one that is idle longest among all addresses

So a client that creates many sessions loses its own, and not those of others. A session counts for
the address that connected it last; restored sessions count for one unknown address.
"""

from typing import Final, final

from semel.broker.addresses import AddressShares
from semel.broker.session_state import SessionState


@final
class SessionShares:
    """Counts all sessions by address."""

    _sessions: Final[dict[str, SessionState]]
    _shares: Final[AddressShares]

    def __init__(self, sessions: dict[str, SessionState]) -> None:
        """`sessions` are all sessions, by client identifier."""
        self._sessions = sessions
        self._shares = AddressShares()

    def has_idle(self) -> bool:
        """Whether there is an idle session, which could be discarded."""
        return self._shares.has_evictable()

    def connected(self, state: SessionState, address: str) -> None:
        """The session is connected from this address."""
        self.ended(state)
        state.address = address
        self._shares.count(address, 1)

    def left(self, state: SessionState) -> None:
        """The session has become idle; it is the last to be discarded."""
        assert state.address is not None
        self._shares.make_evictable(state.client_id, state.address)

    def restored(self, state: SessionState) -> None:
        """The session was restored, and is idle."""
        self.connected(state, "")
        self.left(state)

    def ended(self, state: SessionState) -> None:
        """The session has ended, and no longer counts."""
        address = state.address
        if address is not None:
            state.address = None
            self._shares.protect(state.client_id, address)
            self._shares.count(address, -1)

    def keep(self, state: SessionState) -> None:
        """Do not discard this session, because that has failed; it still counts."""
        assert state.address is not None
        self._shares.protect(state.client_id, state.address)

    def to_discard(self) -> SessionState | None:
        """The idle session to discard for a new one, None if none is idle."""
        client_id = self._shares.next_to_evict()
        if client_id is None:
            return None
        assert isinstance(client_id, str)
        return self._sessions[client_id]

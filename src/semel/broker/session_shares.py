"""Which sessions are idle, and which of them is discarded when there is no room for a new one.

The standard lets a server discard the session of a client that is not connected, as an automated
response to defined conditions (5.0 [4.1.1], 3.1.1 [4.1]); Session Present 0 tells its client. The
condition is that there are `maximum_sessions`. A connected session stays [MQTT-4.1.0-1].

    a new session ─▶ the address with the most sessions loses the one that is idle longest,
                     or, if none of its sessions is idle, the one of all addresses

So a client that begins session after session loses its own, and not those of others. A session
counts for the address that connected it last; restored sessions count for one unknown address.
"""

from typing import Final, final

from semel.broker.addresses import AddressShares
from semel.broker.session_state import SessionState


@final
class SessionShares:
    """All sessions by address."""

    _sessions: Final[dict[str, SessionState]]
    _shares: Final[AddressShares]

    def __init__(self, sessions: dict[str, SessionState]) -> None:
        """`sessions` are all current ones, by client identifier."""
        self._sessions = sessions
        self._shares = AddressShares()

    def has_idle(self) -> bool:
        """Whether a session could be discarded."""
        return self._shares.has_evictable()

    def connected(self, state: SessionState, address: str) -> None:
        """A connection from this address has the session now."""
        self.ended(state)
        state.address = address
        self._shares.count(address, 1)

    def left(self, state: SessionState) -> None:
        """It is idle now, as the last of all idle sessions."""
        assert state.address is not None
        self._shares.make_evictable(state.client_id, state.address)

    def restored(self, state: SessionState) -> None:
        """It is idle since before the start of the broker."""
        self.connected(state, "")
        self.left(state)

    def ended(self, state: SessionState) -> None:
        """It does not count any more."""
        address = state.address
        if address is not None:
            state.address = None
            self._shares.protect(state.client_id, address)
            self._shares.count(address, -1)

    def keep(self, state: SessionState) -> None:
        """It counts, but cannot be discarded: that has failed."""
        assert state.address is not None
        self._shares.protect(state.client_id, state.address)

    def to_discard(self) -> SessionState | None:
        """The idle session to discard for a new one; None: none is idle."""
        client_id = self._shares.next_to_evict()
        if client_id is None:
            return None
        assert isinstance(client_id, str)
        return self._sessions[client_id]

"""Which sessions are idle, and which of them goes when there is no room for a new one.

The standard lets a server discard the session of a client that is not connected, as an automated
response to defined conditions (5.0 [4.1.1], 3.1.1 [4.1]); its client is told by Session Present 0.
The condition is that `maximum_sessions` are there. A session that is connected stays
[MQTT-4.1.0-1].

    a new session ─▶ the address with the most sessions loses the one that is idle the longest
                     or, if none of its sessions is idle, all addresses together do

So whoever begins session after session loses its own, and not those of others. A session counts for
the address that connected it last; those of a broker that has just started for one address that
nobody knows.
"""

from typing import Final, final

from semel.broker.addresses import AddressShares
from semel.broker.session_state import SessionState


@final
class SessionShares:
    """All sessions by the address that they count for."""

    _sessions: Final[dict[str, SessionState]]
    _shares: Final[AddressShares]

    def __init__(self, sessions: dict[str, SessionState]) -> None:
        """`sessions` are all that there are at the time, by client identifier."""
        self._sessions = sessions
        self._shares = AddressShares()

    def has_idle(self) -> bool:
        """Whether there is a session that could go."""
        return self._shares.has_evictable()

    def connected(self, state: SessionState, address: str) -> None:
        """A connection from this address has the session from now on."""
        self.ended(state)
        state.address = address
        self._shares.count(address, 1)

    def left(self, state: SessionState) -> None:
        """No connection has it any more: of all idle sessions it is the youngest."""
        assert state.address is not None
        self._shares.make_evictable(state.client_id, state.address)

    def restored(self, state: SessionState) -> None:
        """It is idle since before the start."""
        self.connected(state, "")
        self.left(state)

    def ended(self, state: SessionState) -> None:
        """It counts no more."""
        address = state.address
        if address is not None:
            state.address = None
            self._shares.protect(state.client_id, address)
            self._shares.count(address, -1)

    def keep(self, state: SessionState) -> None:
        """It counts, but is not to go: that was tried in vain."""
        assert state.address is not None
        self._shares.protect(state.client_id, state.address)

    def to_discard(self) -> SessionState | None:
        """The idle session that goes for a new one; None: none is idle."""
        client_id = self._shares.next_to_evict()
        if client_id is None:
            return None
        assert isinstance(client_id, str)
        return self._sessions[client_id]

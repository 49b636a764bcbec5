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

from semel.broker.session_state import SessionState


@final
class Share:
    """The sessions of one address: how many, and which of them are idle, the oldest first."""

    sessions: int
    idle: Final[dict[str, SessionState]]

    def __init__(self) -> None:
        self.sessions = 0
        self.idle = {}


@final
class SessionShares:
    """All sessions by the address that they count for."""

    _maximum: Final[int]
    # All that are idle, the oldest first.
    _idle: Final[dict[str, SessionState]]
    _shares: Final[dict[str, Share]]
    # As far as is known, the address with the most sessions.
    _heaviest: Share

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._idle = {}
        self._shares = {}
        self._heaviest = Share()

    def has_idle(self) -> bool:
        """Whether there is a session that could go."""
        return bool(self._idle)

    def connected(self, state: SessionState, address: str) -> None:
        """A connection from this address has the session from now on."""
        self.ended(state)
        state.address = address
        share = self._shares.get(address)
        if share is None:
            share = self._shares[address] = Share()
        share.sessions += 1
        if share.sessions > self._heaviest.sessions:
            self._heaviest = share

    def left(self, state: SessionState) -> None:
        """No connection has it any more: of all idle sessions it is the youngest."""
        assert state.address is not None
        self._idle[state.client_id] = state
        self._shares[state.address].idle[state.client_id] = state

    def restored(self, state: SessionState) -> None:
        """It is idle since before the start."""
        self.connected(state, "")
        self.left(state)

    def ended(self, state: SessionState) -> None:
        """It counts no more."""
        address = state.address
        if address is None:
            return
        state.address = None
        share = self._shares[address]
        share.sessions -= 1
        if not share.sessions:
            del self._shares[address]
        share.idle.pop(state.client_id, None)
        self._idle.pop(state.client_id, None)

    def keep(self, state: SessionState) -> None:
        """It counts, but is not to go: that was tried in vain."""
        assert state.address is not None
        self._shares[state.address].idle.pop(state.client_id, None)
        self._idle.pop(state.client_id, None)

    def to_discard(self) -> SessionState | None:
        """The idle session that goes for a new one; None: none is idle."""
        # With less than the average it has lost too many since to have the most.
        if self._heaviest.sessions * len(self._shares) < self._maximum:
            for share in self._shares.values():
                if share.sessions > self._heaviest.sessions:
                    self._heaviest = share
        if self._heaviest.idle:
            return next(iter(self._heaviest.idle.values()))
        return next(iter(self._idle.values())) if self._idle else None

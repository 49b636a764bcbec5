"""Back-pressure: who publishes faster than a subscriber reads is made to wait, for a while.

    a message for a reader that is behind ─▶ hold: its publisher is not read from
    the reader has caught up, or has left  ─▶ the publisher is read from again
    its patience is over                   ─▶ likewise, and nobody waits for this reader any more
                                              until it has caught up: a reader that is stuck holds
                                              others up once, and no longer than this

A reader is behind when half of what the broker keeps for it is in use. What cannot be kept is
dropped and counted, as the settings say; waiting only makes that rare.
"""

from typing import Final, final

from semel.broker.connection import Connection
from semel.broker.session_state import SessionState


def caught_up_mark(maximum_outgoing: int) -> int:
    """With so many bytes unread, or fewer, a reader has caught up."""
    return maximum_outgoing // 4


@final
class Pressure:
    """Which publishers wait for which readers."""

    # How long a publisher waits, in seconds; 0: never.
    patience: Final[float]
    # Connections that may be read from again.
    released: list[Connection]
    # By the number of the connection: it, and when its patience is over.
    _held: Final[dict[int, tuple[Connection, float]]]
    # By the client identifier of the reader: numbers of connections that wait for it.
    _waiting: Final[dict[str, set[int]]]

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self.released = []
        self._held = {}
        self._waiting = {}

    def hold(self, publisher: Connection, readers: list[SessionState], now: float) -> None:
        """These readers are behind with what this publisher has just sent."""
        if not self.patience or publisher.closing:
            return
        for reader in readers:
            # It may have left meanwhile, by what came in the same piece.
            if reader.session.connected and not reader.given_up and reader is not publisher.state:
                if publisher.number not in self._held:
                    publisher.held = True
                    self._held[publisher.number] = (publisher, now + self.patience)
                self._waiting.setdefault(reader.client_id, set()).add(publisher.number)

    def caught_up(self, reader: SessionState) -> None:
        """The reader has little left to read, or is gone: nobody has to wait for it."""
        reader.given_up = False
        for number in self._waiting.pop(reader.client_id, ()):
            if not any(number in others for others in self._waiting.values()):
                self._release(number)

    def expire(self, sessions: dict[str, SessionState], now: float) -> list[SessionState]:
        """Let go of publishers whose patience is over. Gives the readers they waited for."""
        over = [number for number, (_, until) in self._held.items() if now >= until]
        given_up: list[SessionState] = []
        for number in over:
            self._release(number)
            for client_id, waiting in list(self._waiting.items()):
                if number in waiting:
                    del self._waiting[client_id]
                    reader = sessions.get(client_id)
                    if reader is not None:
                        reader.given_up = True
                        given_up.append(reader)
                    for other in waiting:
                        if not any(other in others for others in self._waiting.values()):
                            self._release(other)
        return given_up

    def forget(self, publisher: Connection) -> None:
        """The publisher is gone."""
        if self._held.pop(publisher.number, None) is not None:
            for waiting in self._waiting.values():
                waiting.discard(publisher.number)

    def is_idle(self) -> bool:
        """Whether nobody waits."""
        return not self._held

    def waits_for(self, reader: SessionState) -> bool:
        """Whether somebody waits for this reader, or has given it up."""
        return reader.given_up or reader.client_id in self._waiting

    def _release(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            held[0].held = False
            held[0].was_held = True
            self.released.append(held[0])

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
    timeout: Final[float]
    # Connections that may be read from again.
    released: list[Connection]
    # By the number of the connection: it, and when its patience is over.
    _paused: Final[dict[int, tuple[Connection, float]]]
    # By the client identifier of the reader: numbers of connections that wait for it.
    _paused_by: Final[dict[str, set[int]]]

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.released = []
        self._paused = {}
        self._paused_by = {}

    def pause(self, publisher: Connection, readers: list[SessionState], now: float) -> None:
        """These readers are behind with what this publisher has just sent."""
        if not self.timeout or publisher.closing:
            return
        for reader in readers:
            # It may have left meanwhile, by what came in the same piece.
            if (
                reader.session.connected
                and not reader.is_too_slow
                and reader is not publisher.state
            ):
                if publisher.number not in self._paused:
                    publisher.paused_by_reader = True
                    self._paused[publisher.number] = (publisher, now + self.timeout)
                self._paused_by.setdefault(reader.client_id, set()).add(publisher.number)

    def caught_up(self, reader: SessionState) -> None:
        """The reader has little left to read, or is gone: nobody has to wait for it."""
        reader.is_too_slow = False
        for number in self._paused_by.pop(reader.client_id, ()):
            if not any(number in others for others in self._paused_by.values()):
                self._release(number)

    def expire(self, sessions: dict[str, SessionState], now: float) -> list[SessionState]:
        """Let go of publishers whose patience is over. Gives the readers they waited for."""
        over = [number for number, (_, until) in self._paused.items() if now >= until]
        is_too_slow: list[SessionState] = []
        for number in over:
            self._release(number)
            for client_id, waiting in list(self._paused_by.items()):
                if number in waiting:
                    del self._paused_by[client_id]
                    reader = sessions[client_id]
                    reader.is_too_slow = True
                    is_too_slow.append(reader)
                    for other in waiting:
                        if not any(other in others for others in self._paused_by.values()):
                            self._release(other)
        return is_too_slow

    def forget(self, publisher: Connection) -> None:
        """The publisher is gone."""
        if self._paused.pop(publisher.number, None) is not None:
            for waiting in self._paused_by.values():
                waiting.discard(publisher.number)

    def is_idle(self) -> bool:
        """Whether nobody waits."""
        return not self._paused

    def delays_publishers(self, reader: SessionState) -> bool:
        """Whether somebody waits for this reader, or has given it up."""
        return reader.is_too_slow or reader.client_id in self._paused_by

    def _release(self, number: int) -> None:
        paused_by_reader = self._paused.pop(number, None)
        if paused_by_reader is not None:
            paused_by_reader[0].paused_by_reader = False
            paused_by_reader[0].was_paused_by_reader = True
            self.released.append(paused_by_reader[0])

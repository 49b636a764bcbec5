"""Back-pressure from readers: a publisher that is faster than a subscriber is paused for a while.

    a message for a reader that is behind     ─▶ pause: the publisher's socket is not read
    the reader has caught up or disconnected  ─▶ the publisher's socket is read again
    timeout                                   ─▶ the same, and no publisher waits for this reader
                                                 until it has caught up: a reader that hangs delays
                                                 others once, at most for the timeout

A reader is behind when it uses half of its bounds. Messages that exceed the bounds are dropped and
counted, as the settings say; pausing publishers only makes that rare.
"""

from typing import Final, final

from semel.broker.connection import Connection
from semel.broker.session_state import SessionState


def caught_up_mark(maximum_outgoing: int) -> int:
    """The number of unread bytes at which a reader has caught up."""
    return maximum_outgoing // 4


@final
class Pressure:
    """Pauses publishers for slow readers."""

    # For how many seconds a publisher is paused at most; 0: never.
    timeout: Final[float]
    # Connections whose sockets may be read again.
    released: list[Connection]
    # Paused connections by number, and until when they are paused.
    _paused: Final[dict[int, tuple[Connection, float]]]
    # Numbers of the paused connections, by client identifier of the reader that they wait for.
    _paused_by: Final[dict[str, set[int]]]

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.released = []
        self._paused = {}
        self._paused_by = {}

    def pause(self, publisher: Connection, readers: list[SessionState], now: float) -> None:
        """Pause a publisher, because these readers of its messages are behind."""
        if not self.timeout or publisher.closing:
            return
        for reader in readers:
            # A later packet in the same bytes may have ended the session of the reader.
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
        """Release the publishers that wait for a reader that has caught up or disconnected."""
        reader.is_too_slow = False
        for number in self._paused_by.pop(reader.client_id, ()):
            if not any(number in others for others in self._paused_by.values()):
                self._release(number)

    def expire(self, sessions: dict[str, SessionState], now: float) -> list[SessionState]:
        """Release publishers after the timeout. Returns the readers that they waited for."""
        over = [number for number, (_, until) in self._paused.items() if now >= until]
        too_slow: list[SessionState] = []
        for number in over:
            self._release(number)
            for client_id, waiting in list(self._paused_by.items()):
                if number in waiting:
                    del self._paused_by[client_id]
                    reader = sessions.get(client_id)
                    if reader is not None:
                        reader.is_too_slow = True
                        too_slow.append(reader)
                    for other in waiting:
                        if not any(other in others for others in self._paused_by.values()):
                            self._release(other)
        return too_slow

    def forget(self, publisher: Connection) -> None:
        """Forget a publisher whose connection is closed."""
        if self._paused.pop(publisher.number, None) is not None:
            for waiting in self._paused_by.values():
                waiting.discard(publisher.number)

    @property
    def paused(self) -> int:
        """The number of paused connections."""
        return len(self._paused)

    def is_idle(self) -> bool:
        """Whether no publisher is paused."""
        return not self._paused

    def delays_publishers(self, reader: SessionState) -> bool:
        """Whether publishers wait for this reader, or waited until the timeout."""
        return reader.is_too_slow or reader.client_id in self._paused_by

    def _release(self, number: int) -> None:
        paused = self._paused.pop(number, None)
        if paused is not None:
            connection = paused[0]
            connection.paused_by_reader = False
            connection.was_paused_by_reader = True
            self.released.append(connection)

"""When to send PINGREQ, and when to give up a server that does not answer [3.1.2.10]."""

from typing import Final, final

# A PINGREQ is sent after this share of the Keep Alive interval without a packet [MQTT-3.1.2-20];
# the connection is given up after the same time without an answer.
PING_AFTER: Final = 0.75
# The shortest time allowed for a PINGRESP, in seconds.
PING_TIMEOUT: Final = 5.0


@final
class KeepAlive:
    """The Keep Alive of one connection. `interval` is in seconds, 0 turns it off."""

    interval: int
    _sent_at: float
    _received_at: float
    # When the oldest unanswered PINGREQ was sent; 0: there is none.
    _pinged_at: float
    # How many PINGREQs were sent, and how many were answered.
    pings: int
    answers: int

    def __init__(self, interval: int, now: float) -> None:
        self.interval = interval
        self._sent_at = now
        self._received_at = now
        self._pinged_at = 0.0
        self.pings = 0
        self.answers = 0

    @property
    def ping_timeout(self) -> float:
        """How long the server may take to answer PINGREQ, in seconds."""
        return max(PING_TIMEOUT, self.interval * PING_AFTER)

    def on_sent(self, now: float) -> None:
        """A packet is sent."""
        self._sent_at = now

    def on_received(self, now: float) -> None:
        """Bytes have arrived."""
        self._received_at = now

    def on_pingresp(self) -> None:
        """PINGRESP has arrived."""
        self._pinged_at = 0.0
        # A server may send a PINGRESP that was not requested.
        self.answers = min(self.answers + 1, self.pings)

    def on_not_reading(self, now: float) -> None:
        """Extend the time: the answer may be among the bytes that are not read."""
        self._received_at = now
        if self._pinged_at:
            self._pinged_at = now

    def is_timed_out(self, now: float) -> bool:
        """Whether the server has not answered in time."""
        return self._pinged_at > 0 and now >= self._pinged_at + self.ping_timeout

    def take_due_ping(self, now: float) -> bool:
        """Whether a PINGREQ is due; if so, it counts as sent."""
        if now < self._ping_due_at():
            return False
        self.on_pingreq_sent(now)
        return True

    def on_pingreq_sent(self, now: float) -> None:
        """A PINGREQ is sent."""
        self._sent_at = now
        self.pings += 1
        if not self._pinged_at:
            self._pinged_at = now

    def next_check(self) -> float:
        """When to check again."""
        due = self._ping_due_at()
        return min(due, self._pinged_at + self.ping_timeout) if self._pinged_at else due

    def _ping_due_at(self) -> float:
        # A dead peer is detected by its silence, however much is sent to it.
        since = self._sent_at if self._pinged_at else min(self._sent_at, self._received_at)
        return since + self.interval * PING_AFTER

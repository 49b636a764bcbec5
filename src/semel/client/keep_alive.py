"""When to send PINGREQ, and when a server that does not answer is gone [3.1.2.10]."""

from typing import Final, final

# A PINGREQ is sent after so much of the Keep Alive interval without a packet [MQTT-3.1.2-20]; the
# connection is given up when as much passes again without an answer.
PING_AFTER: Final = 0.75
# The least that is granted to a PINGRESP, in seconds.
PING_TIMEOUT: Final = 5.0


@final
class KeepAlive:
    """Of one connection, whose Keep Alive `interval` is in seconds; 0: there is none."""

    interval: int
    _sent_at: float
    _received_at: float
    # When a PINGREQ left that was not answered yet; 0: there is none.
    _pinged_at: float
    # How many PINGREQ have left, and how many are answered.
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
        """How long an answer may take."""
        return max(PING_TIMEOUT, self.interval * PING_AFTER)

    def sent(self, now: float) -> None:
        """A packet leaves."""
        self._sent_at = now

    def received(self, now: float) -> None:
        """Something comes."""
        self._received_at = now

    def answered(self) -> None:
        """PINGRESP has come."""
        self._pinged_at = 0.0
        # A server may send one that nobody has asked for.
        self.answers = min(self.answers + 1, self.pings)

    def not_reading(self, now: float) -> None:
        """What is not read may be the answer."""
        self._received_at = now
        if self._pinged_at:
            self._pinged_at = now

    def is_over(self, now: float) -> bool:
        """Whether the server has not answered in time."""
        return self._pinged_at > 0 and now >= self._pinged_at + self.ping_timeout

    def wants_ping(self, now: float) -> bool:
        """Whether it is time for a PINGREQ; if so, it counts as sent."""
        if now < self._quiet_until():
            return False
        self.pinged(now)
        return True

    def pinged(self, now: float) -> None:
        """A PINGREQ leaves."""
        self._sent_at = now
        self.pings += 1
        if not self._pinged_at:
            self._pinged_at = now

    def due(self) -> float:
        """When to look again."""
        due = self._quiet_until()
        return min(due, self._pinged_at + self.ping_timeout) if self._pinged_at else due

    def _quiet_until(self) -> float:
        # A peer that is gone is noticed by its silence, however much there is to be sent.
        since = self._sent_at if self._pinged_at else min(self._sent_at, self._received_at)
        return since + self.interval * PING_AFTER

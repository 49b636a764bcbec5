"""Limits a log line that one client could cause many times a second to one every ten seconds."""

from collections.abc import Callable
from typing import Final, final

# The minimum time between two lines.
INTERVAL_SECONDS: Final = 10.0


@final
class ThrottledLog:
    """Logs one kind of event: the first at once, later ones as a count."""

    _log: Final[Callable[[str], None]]
    _line: str
    _count: int
    _quiet_until: float

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._line = ""
        self._count = 0
        self._quiet_until = 0.0

    def log(self, line: str, now: float) -> None:
        """Log an event. If several events are counted, only the last line is written."""
        self._line = line
        self._count += 1
        self.flush(now)

    def flush(self, now: float) -> None:
        """Write the last line and the count, if the interval is over. Call it once a second."""
        if self._count and now >= self._quiet_until:
            self._quiet_until = now + INTERVAL_SECONDS
            times = "" if self._count == 1 else f" ({self._count} times)"
            self._count = 0
            self._log(f"{self._line}{times}")

"""A line of the log that one client could cause many times a second: said once in a while."""

from collections.abc import Callable
from typing import Final, final

# Between two lines.
QUIET_SECONDS: Final = 10.0


@final
class ThrottledLog:
    """One event: the first is logged at once, those that follow later, and counted."""

    _log: Final[Callable[[str], None]]
    _line: str
    _count: int
    _quiet_until: float

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._line = ""
        self._count = 0
        self._quiet_until = 0.0

    def note(self, line: str, now: float) -> None:
        """It has happened. Of several lines the last is logged."""
        self._line = line
        self._count += 1
        self.flush(now)

    def flush(self, now: float) -> None:
        """Once a second: log what has happened, if that is due."""
        if self._count and now >= self._quiet_until:
            self._quiet_until = now + QUIET_SECONDS
            times = "" if self._count == 1 else f" ({self._count} times)"
            self._count = 0
            self._log(f"{self._line}{times}")

"""The clock of a landing, by which old rows are removed from its tables.

It is that of the retention of streams (`semel.store.retention_clock`): the wall clock, as long as
it agrees with the time since boot, and is not more than a week ahead of the last time at which the
landing ran. The state is in a file in the folder of the checkpoint. Without it, the newest row of
the tables says when the landing ran last.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from semel.store.retention_clock import FILE_NAME, RetentionClock, time_since_boot

LOGGER: Final = logging.getLogger("semel.pipeline")


class LandingClock:
    """The time for the retention of all tables of a landing. Can be used by several threads."""

    def __init__(
        self,
        folder: Path,
        *,
        longest: float,
        newest: Callable[[], float | None],
        wall: Callable[[], float] = time.time,
        boot: Callable[[], float] = time_since_boot,
    ) -> None:
        """`longest` is the longest retention, `newest` gives the time of the newest row."""
        self._clock = RetentionClock(folder / FILE_NAME, longest=longest)
        self._newest = newest
        self._wall = wall
        self._boot = boot
        self._lock = threading.Lock()

    def now(self) -> float:
        """The time in seconds since 1970. Logs a warning when the wall clock has jumped.

        Raises what `newest` raises.
        """
        with self._lock:
            newest = None if self._clock.is_known else self._newest()
            found, notice = self._clock.now(self._wall(), self._boot(), newest=newest)
        if notice:
            LOGGER.warning("%s", notice)
        return found

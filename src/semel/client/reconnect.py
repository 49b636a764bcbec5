"""The delay between attempts to connect."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Seconds between attempts to connect: `first`, doubled after each failure, at most `most`.

    Each delay is reduced by a random part, up to a half, so that the clients of a server that
    restarts do not all connect at once.
    """

    first: float = 0.5
    most: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.most:
            raise ValueError("Backoff: first must be above 0, and most at least first")

    def delay(self, failures: int) -> float:
        """The delay after this many failures, at least one."""
        longest = min(self.most, self.first * 2.0 ** min(failures - 1, 63))
        return longest * random.uniform(0.5, 1.0)  # nosec B311 # a wait, no secret

"""When to try again."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Seconds between attempts to connect: twice as many after each failure, up to `most`.

    Of each wait a random half is left out, so that a thousand clients of a server that comes back
    do not all come at once.
    """

    first: float = 0.5
    most: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.most:
            raise ValueError("Backoff: first must be more than 0, and most no less than first")

    def delay(self, failures: int) -> float:
        """How long to wait after so many failures, of which there is one at least."""
        longest = min(self.most, self.first * 2.0 ** min(failures - 1, 63))
        return longest * random.uniform(0.5, 1.0)

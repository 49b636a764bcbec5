"""How many connections each address may open per second: a token bucket for each."""

from typing import Final

# The bucket of an address holds the connections of this time.
BURST_SECONDS: Final = 2.0
# The maximum number of addresses that are remembered; beyond it, the one that was idle longest is
# forgotten, and begins again with a full bucket.
MAXIMUM_ADDRESSES: Final = 10_000


class ConnectionRates:
    """Counts the new connections of each address."""

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        # At least one connection, however low the rate.
        self._burst = max(1.0, per_second * BURST_SECONDS)
        # By address, the one that was idle longest first: tokens, and when they were counted.
        self._buckets: dict[str, tuple[float, float]] = {}

    def admits(self, address: str, now: float) -> bool:
        """Count a new connection. Returns whether it may stay open."""
        tokens, at = self._buckets.pop(address, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self.per_second)
        is_admitted = tokens >= 1.0
        self._buckets[address] = (tokens - 1.0 if is_admitted else tokens, now)
        if len(self._buckets) > MAXIMUM_ADDRESSES:
            del self._buckets[next(iter(self._buckets))]
        return is_admitted

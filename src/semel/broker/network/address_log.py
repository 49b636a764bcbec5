"""Limits the log lines that one address can cause by connections that fail."""

from collections.abc import Callable
from typing import Final

from semel.broker.throttled_log import INTERVAL_SECONDS, ThrottledLog

# The maximum number of addresses that are distinguished at a time; further ones share one line.
MAXIMUM_ADDRESSES: Final = 1_000
OTHERS: Final = ""


class AddressLog:
    """Logs the first event of an address at once, and later ones as a count every ten seconds."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        # With the time of the last event.
        self._addresses: dict[str, tuple[ThrottledLog, float]] = {}

    def log(self, address: str, line: str, now: float) -> None:
        """Log an event of an address."""
        if address not in self._addresses and len(self._addresses) >= MAXIMUM_ADDRESSES:
            address = OTHERS
        throttled, _ = self._addresses.get(address) or (ThrottledLog(self._log), 0.0)
        self._addresses[address] = (throttled, now)
        throttled.log(line, now)

    def flush(self, now: float) -> None:
        """Write what is due, and forget addresses that are quiet. Call it once a second."""
        for address, (throttled, last_at) in list(self._addresses.items()):
            throttled.flush(now)
            if now >= last_at + 2 * INTERVAL_SECONDS:
                del self._addresses[address]

"""Failed authentications: counted, logged once per address and minute, and limited per address.

All methods may be called in any thread.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

LOG_SECONDS: Final = 60.0
RATE_SECONDS: Final = 60.0
# Addresses that are remembered. Beyond it, all others share one log line, and the address that
# failed longest ago is forgotten by the limit.
MAXIMUM_ADDRESSES: Final = 10_000

# Why an authentication failed, for metrics. Clients cannot add to these.
BAD_CREDENTIALS: Final = "bad_credentials"
BAD_TOKEN: Final = "bad_token"
BAD_CERTIFICATE: Final = "bad_certificate"
BAD_SCRAM: Final = "bad_scram"
NO_CREDENTIALS: Final = "no_credentials"
HOOK_REFUSED: Final = "hook_refused"
HOOK_FAILED: Final = "hook_failed"
TOO_MANY_FAILURES: Final = "too_many_failures"
FAILURE_REASONS: Final = (
    *(BAD_CREDENTIALS, BAD_TOKEN, BAD_CERTIFICATE, BAD_SCRAM, NO_CREDENTIALS),
    *(HOOK_REFUSED, HOOK_FAILED, TOO_MANY_FAILURES),
)


class FailureRate:
    """A token bucket for each address: how many failures it has left."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`per_minute` failures are allowed at once, and so many per minute; 0 sets no limit."""
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._per_minute = per_minute
        # Failures that are left, and when they were counted, in the order of the last failure.
        self._buckets: Final[dict[str, tuple[float, float]]] = {}

    @property
    def per_minute(self) -> int:
        """The limit; 0: there is none."""
        return self._per_minute

    def set_limit(self, per_minute: int) -> None:
        """Change the limit. Failures so far still count."""
        with self._lock:
            self._per_minute = per_minute

    def is_exceeded(self, address: str) -> bool:
        """Whether the address has no failure left."""
        with self._lock:
            return self._per_minute > 0 and self._left(address, self._clock()) < 1

    def count(self, address: str) -> None:
        """Count a failure of this address."""
        with self._lock:
            if not self._per_minute:
                return
            now = self._clock()
            left = max(0.0, self._left(address, now) - 1)
            self._buckets.pop(address, None)
            self._buckets[address] = (left, now)
            if len(self._buckets) > MAXIMUM_ADDRESSES:
                del self._buckets[next(iter(self._buckets))]

    def _left(self, address: str, now: float) -> float:
        left, at = self._buckets.get(address, (float(self._per_minute), now))
        return min(float(self._per_minute), left + (now - at) * self._per_minute / RATE_SECONDS)


class _AddressLog:
    """The failures of one address since its last line."""

    def __init__(self, quiet_until: float) -> None:
        self.quiet_until = quiet_until
        self.count = 0
        self.last = ""


class FailureLog:
    """Counts failures by reason. Logs the first of an address at once, the next ones as a count."""

    def __init__(
        self, log: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log: Final = log
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._counts: Final = dict.fromkeys(FAILURE_REASONS, 0)
        # By address, in the order of `quiet_until`.
        self._addresses: Final[dict[str, _AddressLog]] = {}

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of failures by reason, for metrics."""
        with self._lock:
            return dict(self._counts)

    def record(self, reason: str, line: str, *, address: str) -> None:
        """Count a failure. `line` says who failed and why, without any secret."""
        lines = []
        with self._lock:
            self._counts[reason] += 1
            now = self._clock()
            lines += self._due(now)
            if address not in self._addresses and len(self._addresses) >= MAXIMUM_ADDRESSES:
                address = ""
            entry = self._addresses.get(address)
            if entry is None:
                self._addresses[address] = _AddressLog(now + LOG_SECONDS)
                lines.append(line)
            else:
                entry.count += 1
                entry.last = line
        for text in lines:
            self._log(text)

    def flush(self) -> None:
        """Log the counts of the addresses whose minute is over. Call it once a second."""
        with self._lock:
            lines = self._due(self._clock())
        for text in lines:
            self._log(text)

    def _due(self, now: float) -> list[str]:
        lines = []
        while self._addresses:
            address, entry = next(iter(self._addresses.items()))
            if now < entry.quiet_until:
                break
            del self._addresses[address]
            if entry.count:
                times = "" if entry.count == 1 else f" ({entry.count} times in {LOG_SECONDS:g} s)"
                lines.append(f"{entry.last}{times}")
                # Its next line is a minute away again.
                self._addresses[address] = _AddressLog(now + LOG_SECONDS)
        return lines

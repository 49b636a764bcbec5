"""Limits the messages and bytes per second of a connection, a user and an address.

Each limit is a token bucket: it holds the tokens of one second, and a message or a byte takes one.
A connection that overdraws a bucket is not read, and its received packets are not processed, until
the bucket is out of debt. Nothing is dropped or refused: TCP makes the client wait. Users and
addresses share one bucket among all of their connections.

    charge ─▶ paused until … ─▶ take_due, and the connection continues

A bucket of a user or an address that is full again is forgotten, so that their number is bounded by
the number of clients that were active within the last second.
"""

from heapq import heappop, heappush
from typing import Final, final

from semel.broker.connection import Connection
from semel.broker.settings import BrokerSettings

# The tokens of this many seconds fit into a bucket: a burst of that length passes.
BURST_SECONDS: Final = 1.0


@final
class TokenBucket:
    """Tokens for messages or bytes, which come back at a constant rate."""

    rate: Final[float]
    tokens: float
    filled_at: float

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self.tokens = rate * BURST_SECONDS
        self.filled_at = now

    def take(self, count: int, now: float) -> float:
        """Take tokens, even if there are fewer. Returns in how many seconds the debt is paid."""
        full = self.rate * BURST_SECONDS
        self.tokens = min(full, self.tokens + (now - self.filled_at) * self.rate) - count
        self.filled_at = now
        return -self.tokens / self.rate if self.tokens < 0 else 0.0

    def is_full(self, now: float) -> bool:
        """Whether it is as good as a new one."""
        return self.tokens + (now - self.filled_at) * self.rate >= self.rate * BURST_SECONDS


@final
class SharedBuckets:
    """One bucket per user, or per address."""

    _rate: Final[int]
    _buckets: Final[dict[str, TokenBucket]]

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._buckets = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str, count: int, now: float) -> float:
        """Take tokens from the bucket of `key`. Returns in how many seconds the debt is paid."""
        if not self._rate:
            return 0.0
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(self._rate, now)
        return bucket.take(count, now)

    def sweep(self, now: float) -> None:
        """Once a second: forget the buckets that are full."""
        for key, bucket in list(self._buckets.items()):
            if bucket.is_full(now):
                del self._buckets[key]


@final
class RateLimits:
    """The buckets of all connections, and the connections that wait for tokens."""

    # Whether any listener, user or address has a limit.
    is_active: bool
    _user_messages: Final[SharedBuckets]
    _user_bytes: Final[SharedBuckets]
    _address_messages: Final[SharedBuckets]
    _address_bytes: Final[SharedBuckets]
    # By connection number: the buckets for messages and bytes, None without such a limit.
    _own: Final[dict[int, tuple[TokenBucket | None, TokenBucket | None]]]
    # A heap of (time, connection number).
    _waiting: list[tuple[float, int]]

    def __init__(self, settings: BrokerSettings) -> None:
        self._user_messages = SharedBuckets(settings.user_messages_per_second)
        self._user_bytes = SharedBuckets(settings.user_bytes_per_second)
        self._address_messages = SharedBuckets(settings.address_messages_per_second)
        self._address_bytes = SharedBuckets(settings.address_bytes_per_second)
        self._own = {}
        self._waiting = []
        self.is_active = (
            settings.user_messages_per_second
            + settings.user_bytes_per_second
            + settings.address_messages_per_second
            + settings.address_bytes_per_second
        ) > 0

    @property
    def paused(self) -> int:
        """The number of connections that wait for tokens; some of them may be closed."""
        return len(self._waiting)

    def opened(self, connection: Connection, now: float) -> None:
        """Give a new connection its own buckets, if its listener has limits."""
        limits = connection.limits
        if limits.messages_per_second or limits.bytes_per_second:
            self.is_active = True
            messages = data = None
            if limits.messages_per_second:
                messages = TokenBucket(limits.messages_per_second, now)
            if limits.bytes_per_second:
                data = TokenBucket(limits.bytes_per_second, now)
            self._own[connection.number] = (messages, data)

    def charge(self, connection: Connection, *, messages: int, size: int, now: float) -> None:
        """Count what a connection has sent, and pause it if that is more than a limit allows."""
        delay = 0.0
        own = self._own.get(connection.number)
        if own is not None:
            by_messages, by_bytes = own
            if by_messages is not None:
                delay = by_messages.take(messages, now)
            if by_bytes is not None:
                delay = max(delay, by_bytes.take(size, now))
        address = connection.address
        delay = max(delay, self._address_messages.take(address, messages, now))
        delay = max(delay, self._address_bytes.take(address, size, now))
        state = connection.state
        user_name = None if state is None else state.identity.proved_user
        if user_name is not None:
            delay = max(delay, self._user_messages.take(user_name, messages, now))
            delay = max(delay, self._user_bytes.take(user_name, size, now))
        if delay > 0 and not connection.paused_by_rate and not connection.closing:
            connection.paused_by_rate = True
            heappush(self._waiting, (now + delay, connection.number))

    def next_due(self) -> float | None:
        """When the next connection may continue; None: none waits."""
        return self._waiting[0][0] if self._waiting else None

    def take_due(self, now: float) -> list[int]:
        """The numbers of the connections that may continue; some may be closed."""
        due: list[int] = []
        while self._waiting and self._waiting[0][0] <= now:
            due.append(heappop(self._waiting)[1])
        return due

    def forget(self, connection: Connection) -> None:
        """The connection is closed."""
        self._own.pop(connection.number, None)

    def sweep(self, now: float) -> None:
        """Once a second: forget buckets that are full."""
        self._user_messages.sweep(now)
        self._user_bytes.sweep(now)
        self._address_messages.sweep(now)
        self._address_bytes.sweep(now)

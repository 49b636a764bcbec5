"""The backlog of a session: QoS 1 and 2 messages that have no packet identifier yet.

A backlog need not fit into memory. With a `window`, only its first deliveries are in memory. Those
*beyond* the window are only in the owner's store: the backlog counts them, and the owner loads them
with `refill` when half of the window is free. Deliveries are ordered by their numbers.
"""

from collections import deque
from typing import final

from mypy_extensions import mypyc_attr

from semel.mqtt.delivery import Delivery


@final
@mypyc_attr(acyclic=True)
class Backlog:
    """Deliveries in order, with their total size and the earliest expiry."""

    # The sum of `Message.size` over all deliveries.
    size: int
    # How many deliveries are in memory at most; 0: all. Only for an owner that stores every change.
    window: int
    # Deliveries beyond the window: their count, their total size, and the number of the first.
    beyond: int
    beyond_size: int
    first_beyond: int
    # A lower bound of the earliest expiry beyond the window; None: nothing there expires.
    beyond_expiry: float | None
    # Whether a delivery beyond the window may be of a shared subscription.
    may_be_shared_beyond: bool
    # The same for deliveries in memory.
    next_expiry: float | None
    # Numbers of deliveries that expired beyond the window but were still in the store when it was
    # last queried: `refill` may return them, and skips them. None instead of an empty set.
    _expired_beyond_window: set[int] | None
    # None while nothing is in memory: an empty deque alone takes 760 bytes.
    _deliveries: deque[Delivery] | None

    def __init__(self) -> None:
        self.size = 0
        self.window = 0
        self.beyond = 0
        self.beyond_size = 0
        self.first_beyond = 0
        self.beyond_expiry = None
        self.may_be_shared_beyond = False
        self._expired_beyond_window = None
        self._deliveries = None
        self.next_expiry = None

    def __len__(self) -> int:
        return self.beyond + (0 if self._deliveries is None else len(self._deliveries))

    def is_empty(self) -> bool:
        """Whether there is no delivery, in memory or beyond the window."""
        return self._deliveries is None and not self.beyond

    def has_first(self) -> bool:
        """Whether the first delivery is in memory."""
        return self._deliveries is not None

    def in_memory(self) -> list[Delivery]:
        """The deliveries that are in memory."""
        return [] if self._deliveries is None else list(self._deliveries)

    def first(self) -> Delivery:
        """The first delivery, which must be in memory."""
        assert self._deliveries is not None
        return self._deliveries[0]

    def add(self, delivery: Delivery) -> None:
        """Append a delivery."""
        if self.window and (self.beyond or len(self) >= self.window):
            message = delivery.message
            assert message is not None
            at = message.expires_at
            if not self.beyond:
                self.first_beyond = delivery.number
                self.beyond_expiry = at
                self.may_be_shared_beyond = False
            elif at is not None and (self.beyond_expiry is None or at < self.beyond_expiry):
                self.beyond_expiry = at
            if delivery.share:
                self.may_be_shared_beyond = True
            self.beyond += 1
            self.beyond_size += message.size
            self.size += message.size
        else:
            self._keep(delivery)

    def _keep(self, delivery: Delivery) -> None:
        if self._deliveries is None:
            self._deliveries = deque()
        self._deliveries.append(delivery)
        message = delivery.message
        assert message is not None
        self.size += message.size
        at = message.expires_at
        if at is not None and (self.next_expiry is None or at < self.next_expiry):
            self.next_expiry = at

    def put_back(self, delivery: Delivery) -> None:
        """Return a delivery that was in flight to the head of the backlog."""
        self._keep(delivery)
        assert self._deliveries is not None
        self._deliveries.rotate(1)

    # --- beyond the window ------------------------------------------------------------------------

    def missing(self) -> int:
        """How many deliveries the owner should load, starting at number `first_beyond`.

        Returns 0 until half of the window is free.
        """
        kept = 0 if self._deliveries is None else len(self._deliveries)
        return self.window - kept if self.beyond and kept * 2 <= self.window else 0

    def refill(self, deliveries: list[Delivery]) -> None:
        """Load the next deliveries from beyond the window, in the order of their numbers."""
        for delivery in deliveries:
            self.first_beyond = delivery.number + 1
            expired = self._expired_beyond_window
            if expired is not None and delivery.number in expired:
                expired.remove(delivery.number)
                continue
            message = delivery.message
            assert message is not None
            self.beyond -= 1
            self.beyond_size -= message.size
            self.size -= message.size
            self._keep(delivery)
        if not self.beyond:
            self._expired_beyond_window = None
            self.beyond_expiry = None

    def may_expire_beyond(self, now: float) -> bool:
        """Whether a delivery beyond the window may have expired."""
        return self.beyond_expiry is not None and now >= self.beyond_expiry

    def expire_beyond(self, expired: list[tuple[int, int]]) -> list[int]:
        """Drop all deliveries beyond the window that have expired in the store: (number, size).

        Returns the numbers that an earlier call had not dropped. A delivery that was dropped
        earlier and is not in `expired` is no longer in the store, so `refill` cannot return it.
        """
        known = self._expired_beyond_window
        numbers: set[int] = set()
        fresh: list[int] = []
        for number, size in expired:
            numbers.add(number)
            if known is None or number not in known:
                fresh.append(number)
                self.beyond -= 1
                self.beyond_size -= size
                self.size -= size
        self._expired_beyond_window = numbers if numbers else None
        if not self.beyond:
            self._expired_beyond_window = None
            self.beyond_expiry = None
        return fresh

    # --- in memory --------------------------------------------------------------------------------

    def take_first(self) -> Delivery:
        """Remove and return the first delivery, which must be in memory."""
        deliveries = self._deliveries
        assert deliveries is not None
        delivery = deliveries.popleft()
        assert delivery.message is not None
        self.size -= delivery.message.size
        if not deliveries:
            self._deliveries = None
        return delivery

    def take_expired(self, now: float) -> list[Delivery]:
        """Remove and return the deliveries in memory that have expired."""
        expired: list[Delivery] = []
        if self.next_expiry is not None and now >= self.next_expiry:
            for delivery in self.take_all():
                message = delivery.message
                assert message is not None
                if message.is_expired(now):
                    expired.append(delivery)
                else:
                    self._keep(delivery)
        return expired

    def take_shared(self, shares: set[str] | None) -> list[Delivery]:
        """Remove and return the deliveries in memory of these shared subscriptions (None: all)."""
        shared: list[Delivery] = []
        for delivery in self.take_all():
            if delivery.is_of(shares):
                shared.append(delivery)
            else:
                self._keep(delivery)
        return shared

    def take_numbers(self, numbers: set[int]) -> list[Delivery]:
        """Remove and return the deliveries in memory with these numbers."""
        taken: list[Delivery] = []
        for delivery in self.take_all():
            if delivery.number in numbers:
                taken.append(delivery)
            else:
                self._keep(delivery)
        return taken

    def take_all(self) -> list[Delivery]:
        """Remove and return all deliveries in memory."""
        deliveries = self.in_memory()
        self.size = self.beyond_size
        self._deliveries = None
        self.next_expiry = None
        return deliveries

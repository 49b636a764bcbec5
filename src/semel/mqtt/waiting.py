"""Deliveries that wait to be sent: in their order, counted, with an eye on what expires."""

from collections import deque
from typing import final

from semel.mqtt.delivery import Delivery


@final
class Waiting:
    """A session's queue. `size` is that of all its messages."""

    size: int
    # None while nothing waits: an empty deque alone takes 760 bytes.
    _deliveries: deque[Delivery] | None
    # No later than the first expiry among them; None: none of them expires.
    _next_expiry: float | None

    def __init__(self) -> None:
        self.size = 0
        self._deliveries = None
        self._next_expiry = None

    def __len__(self) -> int:
        return 0 if self._deliveries is None else len(self._deliveries)

    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return self._deliveries is None

    def listed(self) -> list[Delivery]:
        """All of them."""
        return [] if self._deliveries is None else list(self._deliveries)

    def first(self) -> Delivery:
        """The one that is next; there must be one."""
        assert self._deliveries is not None
        return self._deliveries[0]

    def add(self, delivery: Delivery) -> None:
        """One more, at the end."""
        if self._deliveries is None:
            self._deliveries = deque()
        self._deliveries.append(delivery)
        message = delivery.message
        assert message is not None
        self.size += message.size
        at = message.expires_at
        if at is not None and (self._next_expiry is None or at < self._next_expiry):
            self._next_expiry = at

    def take(self, number: int) -> Delivery:
        """Take out the one with that number: nearly always the first."""
        deliveries = self._deliveries
        assert deliveries is not None
        at = 0
        while deliveries[at].number != number:
            at += 1
        delivery = deliveries[at]
        if at == 0:
            deliveries.popleft()
        else:
            deliveries.remove(delivery)
        assert delivery.message is not None
        self.size -= delivery.message.size
        if not deliveries:
            self._deliveries = None
        return delivery

    def take_expired(self, now: float) -> list[Delivery]:
        """Take out those whose Message Expiry Interval has passed."""
        expired: list[Delivery] = []
        if self._next_expiry is not None and now >= self._next_expiry:
            for delivery in self._take_all():
                message = delivery.message
                assert message is not None
                if message.is_expired(now):
                    expired.append(delivery)
                else:
                    self.add(delivery)
        return expired

    def take_shared(self, shares: set[str] | None) -> list[Delivery]:
        """Take out those that came by these shared subscriptions, None: by any."""
        shared: list[Delivery] = []
        for delivery in self._take_all():
            if delivery.is_of(shares):
                shared.append(delivery)
            else:
                self.add(delivery)
        return shared

    def _take_all(self) -> list[Delivery]:
        deliveries = self.listed()
        self.size = 0
        self._deliveries = None
        self._next_expiry = None
        return deliveries

"""Deliveries that wait to be sent: in their order, counted, with an eye on what expires.

A queue can be longer than what is kept of it in memory. With a `window`, the first deliveries are
at hand, and those *beyond* it only in the owner's store, which was told of them: they are counted
here, and come back by `refill` when the window has emptied. Their order is that of their numbers.
"""

from collections import deque
from typing import final

from semel.mqtt.delivery import Delivery


@final
class Backlog:
    """A session's queue. `size` is that of all its messages."""

    size: int
    # How many are kept at hand; 0: all of them.
    window: int
    # Those beyond the window: how many, of what size, and the number of the first.
    beyond: int
    beyond_size: int
    first_beyond: int
    # No later than the first expiry among them; None: none of them expires.
    beyond_expiry: float | None
    # The same of those at hand.
    next_expiry: float | None
    # Numbers of those that were given up there and that the store still had when it was last asked:
    # they may come back yet. None: there are none.
    _gone: set[int] | None
    # None while nothing is at hand: an empty deque alone takes 760 bytes.
    _deliveries: deque[Delivery] | None

    def __init__(self) -> None:
        self.size = 0
        self.window = 0
        self.beyond = 0
        self.beyond_size = 0
        self.first_beyond = 0
        self.beyond_expiry = None
        self._gone = None
        self._deliveries = None
        self.next_expiry = None

    def __len__(self) -> int:
        return self.beyond + (0 if self._deliveries is None else len(self._deliveries))

    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return self._deliveries is None and not self.beyond

    def is_at_hand(self) -> bool:
        """Whether the first that waits is here."""
        return self._deliveries is not None

    def listed(self) -> list[Delivery]:
        """All that are at hand."""
        return [] if self._deliveries is None else list(self._deliveries)

    def first(self) -> Delivery:
        """The one that is next; it must be at hand."""
        assert self._deliveries is not None
        return self._deliveries[0]

    def add(self, delivery: Delivery) -> None:
        """One more, at the end."""
        if self.window and (self.beyond or len(self) >= self.window):
            message = delivery.message
            assert message is not None
            at = message.expires_at
            if not self.beyond:
                self.first_beyond = delivery.number
                self.beyond_expiry = at
            elif at is not None and (self.beyond_expiry is None or at < self.beyond_expiry):
                self.beyond_expiry = at
            self.beyond += 1
            self.beyond_size += message.size
            self.size += message.size
        else:
            self._put(delivery)

    def _put(self, delivery: Delivery) -> None:
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
        """One that was sent waits again, before all others."""
        self._put(delivery)
        assert self._deliveries is not None
        self._deliveries.rotate(1)

    def wants(self) -> int:
        """How many should come from beyond the window: none until half of it is free."""
        at_hand = 0 if self._deliveries is None else len(self._deliveries)
        return self.window - at_hand if self.beyond and at_hand * 2 <= self.window else 0

    def refill(self, deliveries: list[Delivery]) -> None:
        """The next ones from beyond the window, in the order of their numbers."""
        for delivery in deliveries:
            self.first_beyond = delivery.number + 1
            if self._gone is not None and delivery.number in self._gone:
                self._gone.remove(delivery.number)
                continue
            message = delivery.message
            assert message is not None
            self.beyond -= 1
            self.beyond_size -= message.size
            self.size -= message.size
            self._put(delivery)
        if not self.beyond:
            self._gone = None
            self.beyond_expiry = None

    def give_up_beyond(self, given_up: list[tuple[int, int]]) -> list[int]:
        """Numbers and sizes of all beyond the window that the store has and nobody wants.

        Returns those that were not known. What was given up before and is not among them has left
        the store, and is forgotten: it cannot come back.
        """
        known = self._gone
        gone: set[int] = set()
        fresh: list[int] = []
        for number, size in given_up:
            gone.add(number)
            if known is None or number not in known:
                fresh.append(number)
                self.beyond -= 1
                self.beyond_size -= size
                self.size -= size
        self._gone = gone if gone else None
        if not self.beyond:
            self._gone = None
            self.beyond_expiry = None
        return fresh

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
        """Take out those at hand whose Message Expiry Interval has passed."""
        expired: list[Delivery] = []
        if self.next_expiry is not None and now >= self.next_expiry:
            for delivery in self.take_all():
                message = delivery.message
                assert message is not None
                if message.is_expired(now):
                    expired.append(delivery)
                else:
                    self._put(delivery)
        return expired

    def take_shared(self, shares: set[str] | None) -> list[Delivery]:
        """Take out those at hand that came by these shared subscriptions, None: by any."""
        shared: list[Delivery] = []
        for delivery in self.take_all():
            if delivery.is_of(shares):
                shared.append(delivery)
            else:
                self._put(delivery)
        return shared

    def take_all(self) -> list[Delivery]:
        """Take out all that are at hand."""
        deliveries = self.listed()
        self.size = self.beyond_size
        self._deliveries = None
        self.next_expiry = None
        return deliveries

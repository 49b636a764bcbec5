"""A list that grows in one thread, and is read and waited for in others.

Each item gets the next number, from 0. The list is bounded: when it has more items, or larger ones,
than it may, the first are forgotten. Numbers go on, so that what was forgotten is not counted anew.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

T = TypeVar("T")

# What one list keeps: items, and bytes in them.
MOST_ITEMS: Final = 100_000
MOST_BYTES: Final = 256 * 1024 * 1024

# How long somebody waits for something that a test is sure of, in seconds.
TIMEOUT_SECONDS: Final = 10.0


class _Waiter(Generic[T]):
    """Somebody who waits for the `left`th item from now on that is wanted."""

    def __init__(self, wanted: Callable[[T], bool], left: int) -> None:
        self.wanted = wanted
        self.left = left
        self.future: Future[T] = Future()

    def check(self, item: T) -> bool:
        """Whether the waiting is over with this one."""
        try:
            if self.wanted(item):
                self.left -= 1
        except Exception as problem:
            # It is whoever waits who asked in this way.
            if self.future.set_running_or_notify_cancel():
                self.future.set_exception(problem)
            return True
        if self.left:
            return False
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(item)
        return True


class Growing(Generic[T]):
    """The list. `most_items` and `most_bytes` are its bounds."""

    def __init__(self, *, most_items: int = MOST_ITEMS, most_bytes: int = MOST_BYTES) -> None:
        self._lock = threading.Lock()
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._waiters: list[_Waiter[T]] = []
        self.forgotten = 0

    def __len__(self) -> int:
        """How many there have been."""
        with self._lock:
            return self.forgotten + len(self._items)

    def add(self, make: Callable[[int], T], size: int = 0) -> T:
        """Append what `make` makes of its number; `size` bytes are in it."""
        with self._lock:
            item = make(self.forgotten + len(self._items))
            self._items.append((item, size))
            self._bytes += size
            while len(self._items) > self._most_items or (
                self._bytes > self._most_bytes and len(self._items) > 1
            ):
                self._bytes -= self._items.popleft()[1]
                self.forgotten += 1
            going = [waiter for waiter in self._waiters if not waiter.future.cancelled()]
            self._waiters = [waiter for waiter in going if not waiter.check(item)]
        return item

    def items(self, first: int = 0) -> list[T]:
        """All that are kept, from the one with this number on."""
        with self._lock:
            return self._from(first)

    def _from(self, first: int) -> list[T]:
        skipped = max(0, first - self.forgotten)
        return [item for at, (item, _) in enumerate(self._items) if at >= skipped]

    def watch(self, wanted: Callable[[T], bool], *, first: int = 0, count: int = 1) -> "Future[T]":
        """The `count`th item that is wanted, from number `first` on, when it is there."""
        waiter = _Waiter(wanted, count)
        with self._lock:
            for item in self._from(first):
                if waiter.check(item):
                    return waiter.future
            self._waiters.append(waiter)
        return waiter.future


def block(future: "Future[T]", timeout: float, unmet: Callable[[], str], instead: str) -> T:
    """Wait in a thread. Raises TimeoutError in the words of `unmet`, and RuntimeError where it
    would stop an event loop: the program that is waited for may run in it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError(f"an event loop runs in this thread: write `await {instead}(…)`")
    try:
        return future.result(timeout)
    except TimeoutError:
        if not future.cancel():
            return future.result()
        raise TimeoutError(unmet()) from None


async def follow(future: "Future[T]", timeout: float, unmet: Callable[[], str]) -> T:
    """The same for a coroutine, whose event loop goes on."""
    waiting = asyncio.wrap_future(future)
    try:
        done, _ = await asyncio.wait((waiting,), timeout=timeout)
        if not done:
            raise TimeoutError(unmet())
        return waiting.result()
    finally:
        waiting.cancel()

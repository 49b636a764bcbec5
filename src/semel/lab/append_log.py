"""An append-only list that other threads can read and wait on.

Items are numbered from 0. The list is bounded by items and bytes: beyond either limit it discards
the oldest items. Numbers are never reused.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

T = TypeVar("T")

# Default limits of a list.
MOST_ITEMS: Final = 100_000
MOST_BYTES: Final = 256 * 1024 * 1024

# The default timeout of a test that waits for something, in seconds.
TIMEOUT_SECONDS: Final = 10.0


class _Waiter(Generic[T]):
    """Waits for the `left`th further item that matches."""

    def __init__(self, matches: Callable[[T], bool], left: int) -> None:
        self.matches = matches
        self.left = left
        self.future: Future[T] = Future()

    def check(self, item: T) -> bool:
        """Whether this item completes the wait."""
        try:
            if self.matches(item):
                self.left -= 1
        except Exception as problem:
            # The predicate was passed by the caller, who gets its exception.
            if self.future.set_running_or_notify_cancel():
                self.future.set_exception(problem)
            return True
        if self.left:
            return False
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(item)
        return True


class AppendLog(Generic[T]):
    """The list, limited to `most_items` and `most_bytes`."""

    def __init__(self, *, most_items: int = MOST_ITEMS, most_bytes: int = MOST_BYTES) -> None:
        self._lock = threading.Lock()
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._waiters: list[_Waiter[T]] = []
        self.discarded = 0

    def __len__(self) -> int:
        """The number of items ever added."""
        with self._lock:
            return self.discarded + len(self._items)

    def add(self, make: Callable[[int], T], size: int = 0) -> T:
        """Append the item that `make` returns for its number; `size` is its size in bytes."""
        with self._lock:
            item = make(self.discarded + len(self._items))
            self._items.append((item, size))
            self._bytes += size
            while len(self._items) > self._most_items or (
                self._bytes > self._most_bytes and len(self._items) > 1
            ):
                self._bytes -= self._items.popleft()[1]
                self.discarded += 1
            active = [waiter for waiter in self._waiters if not waiter.future.cancelled()]
            self._waiters = [waiter for waiter in active if not waiter.check(item)]
        return item

    def items(self, first: int = 0) -> list[T]:
        """The items that are still kept, from number `first` on."""
        with self._lock:
            return self._from(first)

    def _from(self, first: int) -> list[T]:
        start = max(0, first - self.discarded)
        return [item for at, (item, _) in enumerate(self._items) if at >= start]

    def watch(self, matches: Callable[[T], bool], *, first: int = 0, count: int = 1) -> "Future[T]":
        """A future of the `count`th matching item from number `first` on."""
        waiter = _Waiter(matches, count)
        with self._lock:
            for item in self._from(first):
                if waiter.check(item):
                    return waiter.future
            self._waiters.append(waiter)
        return waiter.future


def wait_blocking(
    future: "Future[T]", timeout: float, describe_timeout: Callable[[], str], async_name: str
) -> T:
    """Block until the future is done. Raises TimeoutError with the text of `describe_timeout`.

    Raises RuntimeError if an event loop runs in this thread, because it would block that loop,
    and the program under test may run in it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError(f"an event loop runs in this thread: use `await {async_name}(…)`")
    try:
        return future.result(timeout)
    except TimeoutError:
        if not future.cancel():
            return future.result()
        raise TimeoutError(describe_timeout()) from None


async def await_future(
    future: "Future[T]", timeout: float, describe_timeout: Callable[[], str]
) -> T:
    """Like `wait_blocking`, for a coroutine."""
    waiting = asyncio.wrap_future(future)
    try:
        done, _ = await asyncio.wait((waiting,), timeout=timeout)
        if not done:
            raise TimeoutError(describe_timeout())
        return waiting.result()
    finally:
        waiting.cancel()

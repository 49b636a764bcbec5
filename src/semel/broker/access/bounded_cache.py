"""A cache that forgets what has not been used for a while, and never grows beyond its bound."""

from typing import Final, Generic, TypeVar, final

K = TypeVar("K")
V = TypeVar("V")


@final
class BoundedCache(Generic[K, V]):
    """A dictionary of at most `maximum` entries.

    It has two halves. When the young one is full, it becomes the old one, and the entries of the
    old one that were not used since then are dropped. So a flood of new keys evicts unused entries
    first, and each operation takes constant time.
    """

    maximum: Final[int]

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: K) -> V | None:
        """The value of a key, or None."""
        value = self._young.get(key)
        if value is None:
            value = self._old.pop(key, None)
            if value is not None:
                self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Add a key that the cache does not have."""
        if len(self._young) >= self.maximum // 2:
            self._old = self._young
            self._young = {}
        self._young[key] = value

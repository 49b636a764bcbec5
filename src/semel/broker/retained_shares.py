"""How much each user has retained, and whether it may retain more.

A retained message counts for the user who published it last; anonymous clients of one address are
one user. The store does not keep who published a retained message: one that was restored counts for
nobody until it is published again.
"""

from typing import Final, final

# The owner of messages of the broker itself, and of restored ones. It has no limit.
NOBODY: Final = ""


@final
class RetainedShare:
    """The retained messages of one user, and their memory."""

    messages: int
    size: int

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0


@final
class RetainedShares:
    """The retained messages of all users, of which each may have so many; 0: no limit.

    An owner is `Identity.counted_as`, or NOBODY.
    """

    maximum: Final[int]
    maximum_bytes: Final[int]
    _shares: Final[dict[str, RetainedShare]]

    def __init__(self, maximum: int = 0, maximum_bytes: int = 0) -> None:
        self.maximum = maximum
        self.maximum_bytes = maximum_bytes
        self._shares = {}

    def __len__(self) -> int:
        return len(self._shares)

    def has_room(self, owner: str, *, messages: int, size: int) -> bool:
        """Whether this owner may have so many more messages and bytes, which may be negative."""
        if owner == NOBODY:
            return True
        share = self._shares.get(owner)
        if share is not None:
            messages += share.messages
            size += share.size
        return not (0 < self.maximum < messages or 0 < self.maximum_bytes < size)

    def count(self, owner: str, *, messages: int, size: int) -> None:
        """Add to, or subtract from, what an owner has."""
        if owner == NOBODY:
            return
        share = self._shares.get(owner)
        if share is None:
            share = self._shares[owner] = RetainedShare()
        share.messages += messages
        share.size += size
        if not share.messages:
            assert not share.size, "no message has no size"
            del self._shares[owner]

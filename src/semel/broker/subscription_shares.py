"""How many subscriptions the sessions of each user have, and whether there may be more.

Anonymous clients of one address are one user. A session counts for its owner, connected or not, and
the store knows the owner of a session, so that a restart does not change the counts.
"""

from typing import Final, final

from semel.broker.session_state import SessionState


@final
class SubscriptionShares:
    """The subscriptions of all users, of which each may have `maximum`; 0: no limit."""

    maximum: Final[int]
    _counts: Final[dict[str, int]]

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._counts = {}

    def __len__(self) -> int:
        return len(self._counts)

    def has_room(self, state: SessionState) -> bool:
        """Whether the owner of this session may have one more subscription."""
        if not self.maximum:
            return True
        return self._counts.get(state.counted_owner.counted_as, 0) < self.maximum

    def count(self, state: SessionState, more: int) -> None:
        """This session has so many more subscriptions, or fewer."""
        user = state.counted_owner.counted_as
        count = self._counts.get(user, 0) + more
        if count:
            self._counts[user] = count
        else:
            self._counts.pop(user, None)

    def set_owner(self, state: SessionState) -> None:
        """The owner of this session was set: its subscriptions count for this one from now on."""
        if state.subscriptions:
            self.count(state, -state.subscriptions)
        state.counted_owner = state.identity
        if state.subscriptions:
            self.count(state, state.subscriptions)

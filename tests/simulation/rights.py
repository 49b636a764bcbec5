"""Rights that change at any moment, and the history of who may receive what.

The operator takes a right away from a user, or gives it back, between any two events. Rights
survive a crash of the broker, because they belong to the operator. A client may connect under two
user names of one account, which have different rights and the same session; nobody else may use
that session.
"""

from collections.abc import Mapping
from typing import Final

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
RECEIVE: Final = "receive"

# A user without an account of this world.
THIEF: Final = "mallory"

# user, action, topic or filter
Right = tuple[str, str, str]
# client, topic
Reception = tuple[str, str]


def user_of(client: str, *, is_other: bool) -> str:
    """One of the two user names of a client."""
    return f"{client}:2" if is_other else client


def account_of(user: str) -> str:
    """The account of a user name."""
    return user.partition(":")[0]


class Rights:
    """What users may do: everything that was not taken away."""

    def __init__(self) -> None:
        # Changes whenever a right does.
        self.generation = 0
        self.denied: set[Right] = set()

    def allows(self, user: str, action: str, name: str) -> bool:
        """Whether a user may do this with a topic or filter."""
        return (user, action, name) not in self.denied

    def change(self, user: str, action: str, name: str, *, is_allowed: bool) -> None:
        """Take a right away, or give it back."""
        self.generation += 1
        if is_allowed:
            self.denied.discard((user, action, name))
        else:
            self.denied.add((user, action, name))


class ReceiveHistory:
    """Which clients could not receive which topics, and when.

    A PUBLISH leaves at the end of the tick that puts it into the output, or after its commit. Its
    client needs the right at that moment, and at the end of each tick before.
    """

    def __init__(self, rights: Rights) -> None:
        self._rights = rights
        # The number of the current tick; a count of everything that happened.
        self.tick = 1
        self.moment = 0
        # When a client last could not receive a topic.
        self._last_missing: dict[Reception, int] = {}
        # By tick: what was missing at its end.
        self._ticks: dict[int, frozenset[Reception]] = {}

    def observe(self, users: Mapping[str, str]) -> frozenset[Reception]:
        """Record what is missing now. Call it before and after each change of rights or users.

        `users` are the users of all clients that have a session.
        """
        self.moment += 1
        missing = frozenset(
            (client, topic)
            for user, action, topic in self._rights.denied
            if action == RECEIVE
            for client, owner in users.items()
            if owner == user
        )
        for reception in missing:
            self._last_missing[reception] = self.moment
        return missing

    def end_tick(self, users: Mapping[str, str]) -> int:
        """The current tick ends; its number."""
        missing = self.observe(users)
        ended = self.tick
        if missing:
            self._ticks[ended] = missing
        self.tick += 1
        return ended

    def was_missing_since(self, client: str, topic: str, moment: int) -> bool:
        """Whether a client could not receive a topic at some moment after this one."""
        return self._last_missing.get((client, topic), 0) > moment

    def was_missing_at_end(self, client: str, topic: str, tick: int) -> bool:
        """Whether a client could not receive a topic at the end of a tick."""
        return tick in self._ticks and (client, topic) in self._ticks[tick]

"""The clock of a simulated world, a countdown for faults, and the failure exception."""


class Broken(AssertionError):
    """A guarantee is broken."""


class Clock:
    """A clock that the schedule advances, and a counter of events."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        # Numbers everything that a client sees or does.
        self.moment = 0

    def tick(self) -> int:
        """The number of the next event."""
        self.moment += 1
        return self.moment


class CountDown:
    """Returns True once, after `left` calls; used to interrupt SQLite."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self) -> bool:
        self.left -= 1
        return self.left == -1

    def spare_commit(self, statement: str) -> None:
        """Do not interrupt COMMIT: SQLite may report it as interrupted although it succeeded."""
        if statement == "COMMIT":
            self.left = -1

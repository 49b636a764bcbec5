"""The one clock of a world, a clockwork for faults, and what a broken promise raises."""


class Broken(AssertionError):
    """An invariant does not hold."""


class Clock:
    """Seconds that pass only when the schedule says so, and a count of all that happens."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        # Everything that a client sees or does has a number of its own.
        self.moment = 0

    def tick(self) -> int:
        """The number of this moment."""
        self.moment += 1
        return self.moment


class CountDown:
    """True once, when it was called so many times before: what interrupts SQLite."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self) -> bool:
        self.left -= 1
        return self.left == -1

    def spare_commit(self, statement: str) -> None:
        """Let it be when it is told that this statement begins. SQLite can report that a COMMIT
        was interrupted after it was done; here it is done or not."""
        if statement == "COMMIT":
            self.left = -1

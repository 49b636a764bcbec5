"""Worlds whose sealer is broken: the simulation must detect each of them."""

from typing import Final

from semel.store.database import Database
from tests.simulation.record import FOLDER, SYNC, Sealer
from tests.simulation.variants import Variant


class LeapingSealer(Sealer):
    """Skips a step."""

    def __init__(self, stream: int, skipped: int) -> None:
        super().__init__(stream)
        self._skipped = skipped

    def go_on(self, database: Database, chance: int) -> None:
        if self.step == self._skipped:
            self.step += 1
        super().go_on(database, chance)


class Unsynced(Variant):
    """A sealer without one of its fsyncs."""

    def __init__(self, name: str, fault: str, skipped: int) -> None:
        self.name = name
        self.fault = fault
        self._skipped = skipped

    def sealer(self, stream: int) -> Sealer:
        return LeapingSealer(stream, self._skipped)


class SilentSealer(Sealer):
    """Hangs once it has written a segment."""

    def go_on(self, database: Database, chance: int) -> None:
        if self.step != SYNC:
            super().go_on(database, chance)


class Silent(Variant):
    """The sealer hangs."""

    name = "silent sealer"
    fault = "the sealer hangs, and is not restarted"

    def sealer(self, stream: int) -> Sealer:
        return SilentSealer(stream)


class RashSealer(Sealer):
    """Deletes rows before their segment exists."""

    def write(self, database: Database) -> None:
        super().write(database)
        self.end(database)


class Rash(Variant):
    """Rows are deleted too early."""

    name = "rash sealer"
    fault = "rows are deleted before their segment exists"

    def sealer(self, stream: int) -> Sealer:
        return RashSealer(stream)


class FickleSealer(Sealer):
    """Does not seal the range that was stored."""

    def begin(self, database: Database, chance: int) -> None:
        sealed, sealing = self.sealed(database)
        super().begin(database, chance)
        if sealing > sealed + 1:
            database.begin_sealing(self.stream, sealed + 1)


class Fickle(Variant):
    """A second attempt uses a different range."""

    name = "fickle sealer"
    fault = "after a crash the sealer uses a different range than the stored one"

    def sealer(self, stream: int) -> Sealer:
        return FickleSealer(stream)


SEALERS: Final[tuple[Variant, ...]] = (
    Unsynced("unsynced bytes", "a segment is renamed without an fsync of its bytes", SYNC),
    Unsynced("unsynced name", "rows are deleted without an fsync of the folder", FOLDER),
    Silent(),
    Rash(),
    Fickle(),
)

"""The state of `semel up`: rates, positions, lag, deaths of parts, and totals.

`UpStatus` takes the events of the supervisor and the extents of the record. It reads no clock and
prints nothing: times are arguments, in seconds of a monotonic clock.
"""

from dataclasses import dataclass

from semel.pipeline.lag import Lag
from semel.up.parts import LANDING
from semel.up.positions import RecordExtent
from semel.up.supervisor import DIED, PROGRESS, READY, Event


@dataclass(frozen=True)
class StatusSnapshot:
    """The numbers at one time; None for those that are not known.

    `recorded` and `landed` are row numbers, not counts: the last row of the broker's record, and
    the last row of it that has landed. The table may also have rows of other nodes, and lack rows
    that retention has deleted.
    """

    recorded: int
    # Rows per second.
    rate: float
    landed: int | None
    # Rows that have not landed, sealed or not.
    lag_rows: int | None
    # The latency of the last batch, if it is recent.
    lag_seconds: float | None
    # How long the oldest row that has not landed has been waiting; 0 if there is none.
    waiting_seconds: float | None
    # Rows in the table, of all nodes.
    table_rows: int | None


@dataclass(frozen=True)
class FinalTotals:
    """The row numbers at the end; `landed` is None if it is not known."""

    recorded: int
    recorded_since_start: int
    landed: int | None

    @property
    def waiting(self) -> int | None:
        """Rows to land at the next start."""
        return None if self.landed is None else max(0, self.recorded - self.landed)


class UpStatus:
    """The current state, from the events and extents so far."""

    def __init__(self, extent: RecordExtent | None, now: float) -> None:
        """`extent` is that of the record at the start; None: there is no record yet."""
        self._extent = extent or RecordExtent("", 0, 0)
        self._recorded_before = self._extent.recorded
        self._measured_at = now
        self._rate = 0.0
        # Rows in the table when the landing became ready, and rows landed since; None: it was
        # never ready.
        self._landed_before = 0
        self._landed_since: int | None = None
        # The last row of each node in the table; None: not reported yet.
        self._positions: dict[str, int] | None = None
        self._lag = Lag()
        # The reason of each part's last death, if it has not been ready since.
        self._deaths: dict[str, str] = {}
        self._note_record(now)

    # --- input ------------------------------------------------------------------------------------

    def take_event(self, event: Event, now: float) -> None:
        """Update the state with an event of a part."""
        if event.kind == DIED:
            self._deaths[event.part] = event.text
        elif event.kind == READY:
            self._deaths.pop(event.part, None)
            if event.part == LANDING:
                self._landed_before = _integer(event.facts.get("landed_before"))
                self._landed_since = 0
                self._take_positions(event)
        elif event.kind == PROGRESS and event.text == "batch":
            self._landed_since = _integer(event.facts.get("landed"))
            latency = event.facts.get("lag_seconds")
            self._lag.note_batch(latency if isinstance(latency, int | float) else None, now)
            self._take_positions(event)
        self._note_record(now)

    def _take_positions(self, event: Event) -> None:
        positions = event.facts.get("positions")
        if isinstance(positions, dict):
            # A batch reports only the nodes that it has rows of.
            self._positions = {**(self._positions or {}), **positions}

    def take_extent(self, extent: RecordExtent | None, now: float) -> None:
        """Update the state with the extent of the record; None: it could not be read."""
        before = self.recorded
        self._extent = extent or self._extent
        self._rate = (self.recorded - before) / max(now - self._measured_at, 1e-3)
        self._measured_at = now
        self._note_record(now)

    def stop_measuring(self) -> None:
        """Set the rate to 0: nothing is recorded any more, and no extent follows until the end."""
        self._rate = 0.0

    def _note_record(self, now: float) -> None:
        self._lag.note_record(self.recorded, self.landed, now)

    # --- output -----------------------------------------------------------------------------------

    @property
    def node(self) -> str:
        """The node of the broker; empty if it is not known yet."""
        return self._extent.node

    @property
    def recorded(self) -> int:
        """The last row of the record."""
        return self._extent.recorded

    @property
    def landed(self) -> int | None:
        """The last row of the record that has landed, as the landing reports; None: unknown."""
        if self._positions is None or not self.node:
            return None
        return _integer(self._positions.get(self.node))

    @property
    def deaths(self) -> dict[str, str]:
        """The reason of each part's last death, if it has not been ready since."""
        return dict(self._deaths)

    def has_died(self, part: str) -> bool:
        """Whether a part has died and has not been ready since."""
        return part in self._deaths

    def is_repeated_death(self, event: Event) -> bool:
        """Whether a part died for the same reason before, and has not been ready since."""
        return self._deaths.get(event.part) == event.text

    def snapshot(self, now: float) -> StatusSnapshot:
        """The current numbers."""
        landed = self.landed
        return StatusSnapshot(
            recorded=self.recorded,
            rate=round(self._rate, 1),
            landed=landed,
            # The landing may be ahead of the last extent.
            lag_rows=None if landed is None else max(0, self.recorded - landed),
            lag_seconds=self._lag.latency(now),
            waiting_seconds=None if landed is None else round(self._lag.waiting(now), 1),
            table_rows=(
                None if self._landed_since is None else self._landed_before + self._landed_since
            ),
        )

    def totals(self, landed: int | None) -> FinalTotals:
        """The totals at the end, with the last row that has landed."""
        return FinalTotals(self.recorded, self.recorded - self._recorded_before, landed)


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0

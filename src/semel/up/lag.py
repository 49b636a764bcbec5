"""How far a landing is behind now, by what is seen of the record and of its batches.

A batch says how old its newest row was when it had landed: its latency. That is true for a moment
only. If nothing lands any more, what counts is how long rows have been waiting. To know that, the
extent of the record is noted as it grows; the first note beyond what has landed is where the oldest
waiting row came.
"""

from typing import Final

# For how long the latency of a batch is that of the landing.
RECENT_SECONDS: Final = 10.0
# Notes of the record that are kept; more are thinned out.
MOST_NOTES: Final = 1_000


class Lag:
    """Of one stream. Times are seconds of any clock that is not set."""

    def __init__(self) -> None:
        self._latency: float | None = None
        self._batch_at = 0.0
        # When the record was seen to have so many rows, for the first time.
        self._notes: list[tuple[float, int]] = []

    def note_batch(self, latency: float | None, now: float) -> None:
        """A batch has landed; None: its latency is unknown."""
        self._latency = latency
        self._batch_at = now

    def note_record(self, recorded: int, landed: int | None, now: float) -> None:
        """The record goes up to `recorded`, and has landed up to `landed`; None: unknown."""
        if landed is not None:
            self._notes = [note for note in self._notes if note[1] > landed]
        if recorded > (landed or 0) and (not self._notes or recorded > self._notes[-1][1]):
            self._notes.append((now, recorded))
        if len(self._notes) > MOST_NOTES:
            # The first one counts: it stays.
            self._notes = self._notes[::2]

    def latency(self, now: float) -> float | None:
        """Seconds from receipt to table, of the newest row of a recent batch."""
        return self._latency if now - self._batch_at <= RECENT_SECONDS else None

    def waiting(self, now: float) -> float:
        """For how many seconds a row has been seen waiting for its landing; 0.0: none waits."""
        return now - self._notes[0][0] if self._notes else 0.0

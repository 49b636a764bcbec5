"""How far a landing is behind at this moment.

A batch reports its latency: how old its newest row was when it had landed. That holds only for a
moment. If nothing lands any more, what counts is how long rows have been waiting. So the growth of
the record is noted with its times: the first note beyond what has landed is when the oldest waiting
row arrived.
"""

from typing import Final

# How long the latency of a batch is that of the landing.
RECENT_SECONDS: Final = 10.0
# Notes that are kept; if there are more, every other one is dropped.
MOST_NOTES: Final = 1_000


class Lag:
    """The lag of one stream. Times are seconds of any clock that only moves forward."""

    def __init__(self) -> None:
        self._latency: float | None = None
        self._batch_at = 0.0
        # Times, and the last row that the record had then for the first time.
        self._notes: list[tuple[float, int]] = []

    def note_batch(self, latency: float | None, now: float) -> None:
        """A batch has landed; `latency` is None if it is unknown."""
        self._latency = latency
        self._batch_at = now

    def note_record(self, recorded: int, landed: int | None, now: float) -> None:
        """The record goes up to row `recorded`, and has landed up to `landed`; None: unknown."""
        if landed is not None:
            self._notes = [note for note in self._notes if note[1] > landed]
        if recorded > (landed or 0) and (not self._notes or recorded > self._notes[-1][1]):
            self._notes.append((now, recorded))
        if len(self._notes) > MOST_NOTES:
            # Keeps the first, which is the one that counts.
            self._notes = self._notes[::2]

    def latency(self, now: float) -> float | None:
        """Seconds from receipt to table of the newest row of the last batch, if that is recent."""
        return self._latency if now - self._batch_at <= RECENT_SECONDS else None

    def waiting(self, now: float) -> float:
        """Seconds for which the oldest row that has not landed has been waiting; 0.0 if none is."""
        return now - self._notes[0][0] if self._notes else 0.0

"""How far a landing is behind at this moment.

A batch reports its latency: the age of its newest row when it had landed. This number is soon out
of date: if no batch lands any more, the relevant number is how long rows have been waiting. So each
growth of the record is noted with its time. The first note with rows that have not landed tells
when the oldest waiting row arrived.
"""

from typing import Final

# How long the latency of a batch is reported as that of the landing.
RECENT_SECONDS: Final = 10.0
# Notes that are kept; if there are more, every other one is dropped.
MOST_NOTES: Final = 1_000


class Lag:
    """The lag of one stream. Times are seconds of any clock that only moves forward."""

    def __init__(self) -> None:
        self._latency: float | None = None
        self._batch_at = 0.0
        # Times at which the record was seen to have grown, and its last row then.
        self._notes: list[tuple[float, int]] = []

    def note_batch(self, latency: float | None, now: float) -> None:
        """Note that a batch has landed; `latency` is None if it is unknown."""
        self._latency = latency
        self._batch_at = now

    def note_record(self, recorded: int, landed: int | None, now: float) -> None:
        """Note the last row of the record, and the last one that has landed (None: unknown)."""
        if landed is not None:
            self._notes = [note for note in self._notes if note[1] > landed]
        if recorded > (landed or 0) and (not self._notes or recorded > self._notes[-1][1]):
            self._notes.append((now, recorded))
        if len(self._notes) > MOST_NOTES:
            # This keeps the first note, which `waiting` uses.
            self._notes = self._notes[::2]

    def latency(self, now: float) -> float | None:
        """Seconds from receipt to table of the newest row of the last batch, if that is recent."""
        return self._latency if now - self._batch_at <= RECENT_SECONDS else None

    def waiting(self, now: float) -> float:
        """How long the oldest row that has not landed has been waiting, in seconds; 0.0 if none."""
        return now - self._notes[0][0] if self._notes else 0.0

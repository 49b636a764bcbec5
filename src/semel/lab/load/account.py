"""What one subscriber got, message by message, and how long everything took.

Counters of a lane go up by one. So there is a next message for each lane, and the messages that
were passed over are kept as gaps. One that comes after a later one fills its gap and is out of
order [MQTT-4.6.0-6]; one that comes and is not missing is a duplicate. What is still missing in
the end is lost; only who knows how much was sent can say how much that is.

Memory is bounded by the lanes and by `MOST_GAPS`. With more gaps the first is forgotten: it counts
as lost like all others, but a message that comes for it after all counts as duplicated.
"""

import time
from bisect import bisect_right, insort
from collections.abc import Iterable
from typing import Final

from semel.lab.load.links import LinkError
from semel.lab.load.wire import COUNTER_BITS

MOST_GAPS: Final = 100_000


class Latencies:
    """Durations in nanoseconds, counted in classes that are less than one per cent wide."""

    def __init__(self) -> None:
        self.classes: dict[int, int] = {}
        self.longest = 0

    def add(self, duration: int, count: int = 1) -> None:
        """So many of one duration."""
        # The first eight digits of the binary number, and how many follow them.
        shift = max(0, duration.bit_length() - 8)
        place = shift << 8 | duration >> shift
        self.classes[place] = self.classes.get(place, 0) + count
        self.longest = max(self.longest, duration)

    def merge(self, other: "Latencies") -> None:
        """Those of another process as well."""
        for place, count in other.classes.items():
            self.classes[place] = self.classes.get(place, 0) + count
        self.longest = max(self.longest, other.longest)

    def clear(self) -> None:
        """Forget what was before."""
        self.classes.clear()
        self.longest = 0

    def at(self, part: float) -> int:
        """The shortest duration that such a part of all, at most, took longer than; 0 for none."""
        wanted = part * sum(self.classes.values())
        seen = 0
        # Places are in the order of their durations.
        for place in sorted(self.classes):
            seen += self.classes[place]
            if seen >= wanted:
                return min((place & 255) << (place >> 8), self.longest)
        return 0


class DeliveryAccount:
    """The messages of one subscriber."""

    def __init__(self, lanes: range, latencies: Latencies) -> None:
        self.lanes = lanes
        self.latencies = latencies
        # Each message once.
        self.received = 0
        self.duplicated = 0
        self.out_of_order = 0
        # Messages that were passed over and have not come since.
        self.missing = 0
        # By lane, the mark of its next message; then marks that were passed over, as ranges.
        self._next: dict[int, int] = {}
        self._gaps: list[tuple[int, int]] = []

    def note(self, marks: Iterable[tuple[int, int]]) -> int:
        """Messages have come, by mark and time; how many of them were here for the first time."""
        now = time.monotonic_ns()
        following = self._next
        fresh = count = left = 0
        for mark, sent_at in marks:
            lane = mark >> COUNTER_BITS
            if following.get(lane) == mark:
                following[lane] = mark + 1
                fresh += 1
            elif self._is_new(lane, mark):
                fresh += 1
            # Many have left at the same moment.
            if sent_at == left:
                count += 1
            else:
                if count:
                    self.latencies.add(max(0, now - left), count)
                left, count = sent_at, 1
        if count:
            self.latencies.add(max(0, now - left), count)
        self.received += fresh
        return fresh

    def _is_new(self, lane: int, mark: int) -> bool:
        """Whether a message that may not be the next of its lane is here for the first time."""
        if lane not in self.lanes:
            raise LinkError("delivered a message that is none of this subscriber's")
        following = self._next.setdefault(lane, lane << COUNTER_BITS)
        if mark >= following:
            self._next[lane] = mark + 1
            if mark > following:
                self.missing += mark - following
                insort(self._gaps, (following, mark))
                del self._gaps[:-MOST_GAPS]
            return True
        at = bisect_right(self._gaps, mark, key=lambda gap: gap[0]) - 1
        if at >= 0 and mark < self._gaps[at][1]:
            first, end = self._gaps[at]
            parts = ((first, mark), (mark + 1, end))
            self._gaps[at : at + 1] = [gap for gap in parts if gap[0] < gap[1]]
            self.missing -= 1
            self.out_of_order += 1
            return True
        self.duplicated += 1
        return False

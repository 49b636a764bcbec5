"""Tracks the messages of one subscriber, and their latencies.

The counters of a lane increase by one, so each lane has an expected next message. Skipped messages
are kept as gaps. A message that arrives after a later one fills its gap and is out of order
[MQTT-4.6.0-6]; a message that arrives and is not missing is a duplicate. What is still missing at
the end is lost, together with messages after the last one received, which only the caller can know.

Memory is bounded by the lanes and by `MOST_GAPS`. Beyond that, the first gap is discarded: its
messages count as lost, and as duplicated if they arrive after all.
"""

import time
from bisect import bisect_right, insort
from collections.abc import Iterable
from typing import Final

from semel.lab.load.links import LinkError
from semel.lab.load.wire import COUNTER_BITS

MOST_GAPS: Final = 100_000


class Latencies:
    """A histogram of durations in nanoseconds, with buckets less than one percent wide."""

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.longest = 0

    def add(self, duration: int, count: int = 1) -> None:
        """Count `count` messages with one duration."""
        # The eight most significant bits, and the number of the other bits.
        shift = max(0, duration.bit_length() - 8)
        bucket = shift << 8 | duration >> shift
        self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.longest = max(self.longest, duration)

    def merge(self, other: "Latencies") -> None:
        """Add the durations of another process."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.longest = max(self.longest, other.longest)

    def clear(self) -> None:
        """Discard all durations."""
        self.buckets.clear()
        self.longest = 0

    def quantile(self, fraction: float) -> int:
        """The duration that this fraction of all did not exceed; 0 without any."""
        rank = fraction * sum(self.buckets.values())
        seen = 0
        # Buckets sort by duration.
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                return min((bucket & 255) << (bucket >> 8), self.longest)
        return 0


class DeliveryTracker:
    """Tracks the deliveries to one subscriber."""

    def __init__(self, lanes: range, latencies: Latencies) -> None:
        self.lanes = lanes
        self.latencies = latencies
        # Without duplicates.
        self.received = 0
        self.duplicated = 0
        self.out_of_order = 0
        # Messages that were skipped and have not arrived since.
        self.missing = 0
        # The expected message id by lane; ranges of message ids that were skipped.
        self._next_ids: dict[int, int] = {}
        self._gaps: list[tuple[int, int]] = []

    def record(self, stamps: Iterable[tuple[int, int]]) -> int:
        """Record messages by id and send time, and return how many of them are new."""
        now = time.monotonic_ns()
        expected = self._next_ids
        new = count = last_sent_at = 0
        for message_id, sent_at in stamps:
            lane = message_id >> COUNTER_BITS
            if expected.get(lane) == message_id:
                expected[lane] = message_id + 1
                new += 1
            elif self._is_new(lane, message_id):
                new += 1
            # Messages of one write have the same send time: count them together.
            if sent_at == last_sent_at:
                count += 1
            else:
                if count:
                    self.latencies.add(max(0, now - last_sent_at), count)
                last_sent_at, count = sent_at, 1
        if count:
            self.latencies.add(max(0, now - last_sent_at), count)
        self.received += new
        return new

    def _is_new(self, lane: int, message_id: int) -> bool:
        """Record a message that is not the next one of its lane. Returns whether it is new."""
        if lane not in self.lanes:
            raise LinkError("delivered a message to which this subscriber has not subscribed")
        expected = self._next_ids.setdefault(lane, lane << COUNTER_BITS)
        if message_id >= expected:
            self._next_ids[lane] = message_id + 1
            if message_id > expected:
                self.missing += message_id - expected
                insort(self._gaps, (expected, message_id))
                del self._gaps[:-MOST_GAPS]
            return True
        at = bisect_right(self._gaps, message_id, key=lambda gap: gap[0]) - 1
        if at >= 0 and message_id < self._gaps[at][1]:
            first, end = self._gaps[at]
            parts = ((first, message_id), (message_id + 1, end))
            self._gaps[at : at + 1] = [gap for gap in parts if gap[0] < gap[1]]
            self.missing -= 1
            self.out_of_order += 1
            return True
        self.duplicated += 1
        return False

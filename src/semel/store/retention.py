"""Retention: whole segments are deleted, the oldest first, by age or by bytes. Off by default.

The age of a segment is that of its newest row, by the time it was received: Parquet's statistics
in the footer hold it, and they stay with the rows when segments are merged, copied or restored,
which the time of a file does not. One small read per segment tells it, and only the oldest
segments are asked. Bytes are those of the segments that a reader reads; what they cover is left
out, because it goes by itself.

Only what is in segments is ever deleted, never the newest segment, and nothing that a landing still
needs (see landed). The time is not simply that of the clock (see retention_clock). Before anything
is deleted, its last seq is written down (`_trimmed-<seq>.json`, see roots), and so numbers go on
when nothing is left. A segment that others cover goes before these: at no moment does a row come
back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semel.store.compaction import coverers, picked
from semel.store.roots import Root, Segment
from semel.store.segments import list_ranges, segment_times

# When the oldest and the newest row of a segment were received, in microseconds.
Times = Callable[[Segment], tuple[int, int]]


@dataclass(frozen=True)
class Retention:
    """How much of a stream is kept; None: all of it."""

    # Seconds.
    retain_for: float | None = None
    # Bytes of segments of one node. The newest segment stays, however large or old it is.
    retain_bytes: int | None = None


def too_much(segments: Sequence[Segment], retention: Retention, times: Times, *, now: float) -> int:
    """The last seq of the segments that retention gives up; 0: none. The newest always stays."""
    kept = picked(segments)
    size = sum(each.size for each in kept)
    through = 0
    for segment in kept[:-1]:
        is_large = retention.retain_bytes is not None and size > retention.retain_bytes
        is_old = (
            retention.retain_for is not None
            and times(segment)[1] < (now - retention.retain_for) * 1_000_000
        )
        if not is_old and not is_large:
            break
        through = segment.last
        size -= segment.size
    return through


def delete_through(
    root: Root, stream: str, node: str, segments: Sequence[Segment], through: int
) -> list[Segment]:
    """Delete the segments up to seq `through`; returns those that are left.

    Covered ones go first, then the oldest: whenever this stops, what is left is a record without
    its beginning.
    """
    root.set_trimmed(stream, node, through)
    # Not by the reader's rule: a record with a gap can be trimmed up to it.
    covered = {each.range for each, _ in coverers(segments)}
    leaving = [each for each in segments if each.last <= through]
    # Of two covered segments, the one that covers the other has more rows.
    leaving.sort(key=lambda each: (0, each.rows) if each.range in covered else (1, each.first))
    for segment in leaving:
        root.delete(root.file_path(stream, node, segment.name))
    return [each for each in segments if each.last > through]


def trim(
    root: Root,
    stream: str,
    node: str,
    *,
    before_seq: int | None = None,
    before_time: float | None = None,
) -> int:
    """Delete whole segments before a seq, or before a time of the wall clock in seconds.

    Returns the last seq that is deleted, 0 if there is none. What holds a row to keep stays whole.
    A broker may run meanwhile: what it merges of them does not come back.
    """
    if (before_seq is None) == (before_time is None):
        raise ValueError("trim needs a seq or a time, one of them")
    through = 0
    for first, last in list_ranges(root, stream, node):
        if before_seq is not None:
            if last >= before_seq:
                break
        elif before_time is not None:
            newest = segment_times(root, stream, node, first=first, last=last)[1]
            if newest >= before_time * 1_000_000:
                break
        through = last
    if through:
        delete_through(root, stream, node, root.segments(stream, node), through)
    return through

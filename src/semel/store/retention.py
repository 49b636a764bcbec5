"""Retention: deletes whole segments, the oldest first, by age or by bytes. Off by default.

The age of a segment is that of its newest row, by the time when it was received. This is in the
statistics of the footer, which unlike the file's modification time survive merging, copying and
restoring. Only the oldest segments are opened for it, with one small read each. Only the segments
that a reader reads count for the limit in bytes; compaction deletes the covered ones.

Retention deletes only sealed rows, never the newest segment, and nothing that a landing still needs
(see landing_notes). Its time is not simply the wall clock (see retention_clock). Before anything is
deleted, the last seq to delete is recorded under the root (`_trimmed-<seq>.json`, see roots), so
that seqs continue even if no segment is left. A covered segment is deleted before those that cover
it, so that a deleted row never reappears.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semel.store.compaction import covered_segments, pick_segments
from semel.store.roots import Root, Segment
from semel.store.segments import list_ranges, segment_times

# When the oldest and the newest row of a segment were received, in microseconds.
Times = Callable[[Segment], tuple[int, int]]


@dataclass(frozen=True)
class Retention:
    """The retention limits of a stream; None: no limit."""

    # Seconds.
    retain_for: float | None = None
    # Bytes of segments per node. The newest segment is kept, however large or old.
    retain_bytes: int | None = None


def last_expired_seq(
    segments: Sequence[Segment], retention: Retention, times: Times, *, now: float
) -> int:
    """The last seq of the segments that exceed the limits, without the newest one; 0: none."""
    kept = pick_segments(segments)
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
    """Delete the segments up to seq `through`. Returns the remaining ones.

    Covered segments are deleted first, then the others from the oldest on, so that after an
    interruption the rest is still a record without gaps.
    """
    root.set_trimmed(stream, node, through)
    # Not by `pick`, which rejects a record with a gap: it can still be trimmed up to the gap.
    covered = {each.range for each, _ in covered_segments(segments)}
    expired = [each for each in segments if each.last <= through]
    # Of two covered segments, the one that covers the other has more rows.
    expired.sort(key=lambda each: (0, each.rows) if each.range in covered else (1, each.first))
    for segment in expired:
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
    """Delete the segments that end before a seq, or before a wall clock time in seconds.

    Returns the last deleted seq, or 0. A segment with any row to keep is kept as a whole. The
    broker may be running: readers ignore deleted segments that it writes again by a merge.
    """
    if (before_seq is None) == (before_time is None):
        raise ValueError("trim needs either a seq or a time")
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

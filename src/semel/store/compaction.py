"""Compaction: merges many small segments into a large one, transparently for readers.

A merged segment is written like any other. From the moment it exists, it covers the segments of
which it was made, and the reader's rule ignores those. They are kept for a grace time, counted from
the modification time of the file that covers them, because a reader that listed the folder earlier
may still open them. Then they are deleted, after every byte of the covering file has been verified.

    before            1-10  11-20  21-30  …  91-100
    merged    1-100   1-10  11-20  21-30  …  91-100     the reader's rule selects 1-100
    an hour   1-100
    later

Adjacent small segments are merged if there are enough of them and none is larger than a quarter of
their total size. So a row is copied only when its file grows fourfold, which happens a few times,
however slowly segments are added. Where more segments follow soon, because the newest ones have
megabytes each, a merge waits until its result is not small, so that each row is copied once only.

Damaged segments, and segments with columns that this version does not know and would lose, are not
merged. Their neighbors on either side are merged separately.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from semel.store.roots import Root, Segment
from semel.store.segment_names import Range
from semel.store.segment_writer import write_segment
from semel.store.segments import RecordError, damaged_segment, open_segment, pick, verify_segment

MIB: Final = 1024 * 1024
# A merged segment is at least this many times as large as its largest part; less if so few files
# are merged that they could not reach this.
GROWTH: Final = 4.0
# Segments of this average size are worth waiting for. So at most `small` / PATIENT_BYTES wait.
PATIENT_BYTES: Final = MIB


@dataclass(frozen=True)
class Compaction:
    """When segments are merged, and how large they become."""

    # How many adjacent small segments trigger a merge.
    files: int = 10
    # A segment below this many bytes is small.
    small: int = 64 * MIB
    # A merged segment is complete when it has this many bytes or rows.
    largest: int = 256 * MIB
    rows: int = 5_000_000
    # For how many seconds covered segments are kept.
    grace: float = 3_600.0


class NotMergeable(RecordError):
    """A segment cannot be merged. The text says why."""

    def __init__(self, limits: Range, why: str) -> None:
        super().__init__(why)
        self.range = limits


def pick_segments(segments: Sequence[Segment]) -> list[Segment]:
    """The segments that a reader reads, in order. Raises RecordError as `pick` does."""
    by_range = {each.range: each for each in segments}
    return [by_range[each] for each in pick(by_range)]


def plan_merge(
    segments: Sequence[Segment],
    settings: Compaction,
    slot: Callable[[Segment], int] | None = None,
    *,
    excluded: Container[Range] = (),
) -> list[Segment]:
    """The segments to merge next, in order; empty: there is nothing to merge.

    Segments of different slots are not merged, so that retention by age, with slots of time, stays
    precise. Segments whose range is in `excluded` are not merged.
    """
    run: list[Segment] = []
    run_slot: int | None = None
    for segment in pick_segments(segments):
        is_small = segment.size < min(settings.small, settings.largest)
        if is_small and segment.rows < settings.rows and segment.range not in excluded:
            segment_slot = None if slot is None else slot(segment)
            if run and segment_slot != run_slot:
                found = _worth_merging(run, settings)
                if found:
                    return _cut(found, settings)
                run = []
            run_slot = segment_slot
            run.append(segment)
        else:
            found = _worth_merging(run, settings)
            if found:
                return _cut(found, settings)
            run = []
    return _cut(_worth_merging(run, settings, is_growing=True), settings)


def _worth_merging(
    run: list[Segment], settings: Compaction, *, is_growing: bool = False
) -> list[Segment]:
    """A part of the run in which no segment is much larger than the others, or nothing."""
    files = max(settings.files, 2)
    growth = min(GROWTH, files / 2)
    parts = [run]
    while parts:
        part = parts.pop()
        if len(part) < files:
            continue
        largest = max(range(len(part)), key=lambda at: part[at].size)
        size = sum(each.size for each in part)
        if part[largest].size * growth <= size:
            is_small = size < min(settings.small, settings.largest)
            if is_growing and part[-1] is run[-1] and is_small:
                if size >= len(part) * PATIENT_BYTES:
                    continue
            return part
        parts.append(part[largest + 1 :])
        parts.append(part[:largest])
    return []


def _cut(part: list[Segment], settings: Compaction) -> list[Segment]:
    """The first segments, up to the size of one file; at least two, because they are small."""
    size = 0
    rows = 0
    for at, segment in enumerate(part):
        size += segment.size
        rows += segment.rows
        if at and (size >= settings.largest or rows >= settings.rows):
            return part[: at + 1]
    return part


def merge(
    root: Root,
    stream: str,
    node: str,
    parts: Sequence[Segment],
    *,
    pause: Callable[[], None] = lambda: None,
) -> int:
    """Write the segment that covers the adjacent segments `parts`. Returns its size in bytes.

    Holds one row group in memory at a time. Between two row groups it calls `pause`, which may do
    other work, or raise to abort. Raises NotMergeable, and FileNotFoundError if a part was deleted
    meanwhile.
    """

    def tables() -> Iterator[Any]:
        for part in parts:
            try:
                opened = open_segment(root, stream, node, first=part.first, last=part.last)
            except RecordError as problem:
                raise NotMergeable(part.range, str(problem)) from problem
            try:
                if opened.unknown_columns:
                    raise NotMergeable(
                        part.range,
                        f"{part.name} of stream {stream}, node {node}, is not merged: it has "
                        f"columns that this version of semel does not know "
                        f"({', '.join(opened.unknown_columns)}), which would be lost",
                    )
                for group in range(opened.metadata.num_row_groups):
                    try:
                        table = opened.read_row_group(group, use_threads=False)
                    except RecordError as problem:
                        raise NotMergeable(part.range, str(problem)) from problem
                    yield table
                    pause()
            finally:
                opened.close()

    for before, after in pairwise(parts):
        if after.first != before.last + 1:
            raise RecordError(f"{after.name} does not follow {before.name}")
    return write_segment(root, stream, node, tables, first=parts[0].first, last=parts[-1].last)


def covered_segments(segments: Sequence[Segment]) -> Iterator[tuple[Segment, list[Segment]]]:
    """Each segment that other segments cover, with those that cover it."""
    around: list[Segment] = []
    # A segment is sorted after those that cover it.
    for segment in sorted(segments, key=lambda each: (each.first, -each.last)):
        around = [each for each in around if each.last >= segment.first]
        found = [each for each in around if each.last >= segment.last]
        if found:
            yield segment, found
        around.append(segment)


def verify_covering(
    root: Root,
    stream: str,
    node: str,
    segments: Sequence[Segment],
    *,
    now: float,
    grace: float,
    verified: set[Range],
    pause: Callable[[], None] = lambda: None,
) -> set[Range]:
    """Verify each segment that covers others. Adds intact ones to `verified`, returns damaged ones.

    A segment is verified when it is new, because readers use it from then on, and again before the
    segments that it covers are deleted. `pause` is called between reads, and may do other work.
    """
    damaged: set[Range] = set()
    fresh: set[Range] = set()
    for _, around in covered_segments(segments):
        for each in around:
            is_due = each.modified + grace <= now
            if each.range in damaged | fresh or (each.range in verified and not is_due):
                continue
            verified.discard(each.range)
            if _is_intact(root, stream, node, each, pause):
                verified.add(each.range)
                fresh.add(each.range)
            else:
                damaged.add(each.range)
    return damaged


def delete_covered(
    root: Root,
    stream: str,
    node: str,
    segments: Sequence[Segment],
    *,
    now: float,
    grace: float,
    verified: set[Range],
    damaged: set[Range],
) -> list[Segment]:
    """Delete segments that have been covered for the grace time. Returns the remaining segments.

    `verified` and `damaged` are the results of `verify_covering`. A damaged covering segment is
    deleted instead of those that it covers, provided that they hold all its rows; otherwise raises
    SegmentError. Nothing is deleted because of a covering segment that has not been verified.
    """
    deleted: set[Range] = set()
    for segment, around in covered_segments(segments):
        if any(each.modified + grace <= now for each in around if each.range in verified):
            root.delete(root.file_path(stream, node, segment.name))
            deleted.add(segment.range)
    left = [each for each in segments if each.range not in deleted]
    for bad in [each for each in left if each.range in damaged]:
        rest = [each for each in left if bad.covers(each)]
        ranges = pick(each.range for each in rest)
        if not ranges or (ranges[0][0], ranges[-1][1]) != bad.range:
            what = "its checksums do not match, and no other segments hold all its rows"
            raise damaged_segment(root, stream, node, first=bad.first, last=bad.last, what=what)
        root.delete(root.file_path(stream, node, bad.name))
        left = [each for each in left if each.range != bad.range]
    return left


def _is_intact(
    root: Root, stream: str, node: str, segment: Segment, pause: Callable[[], None]
) -> bool:
    """Verify a segment and make it durable. Returns False if it is damaged or deleted."""
    try:
        verify_segment(root, stream, node, first=segment.first, last=segment.last, pause=pause)
    except (RecordError, FileNotFoundError):
        return False
    root.fsync(root.file_path(stream, node, segment.name))
    return True

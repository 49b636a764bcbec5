"""Compaction: many small segments become a large one, and readers never notice.

A merged segment is written like any other, and from the moment it is there it covers those it was
made of: the reader's rule leaves them out. They stay for a grace time, counted from the
modification time of the file that covers them, because a reader that listed the folder before may
still want them. Then they are deleted, after every byte of the file that covers them was read and
found to be what was written.

    before          1-10  11-20  21-30  …  91-100
    merged    1-100 1-10  11-20  21-30  …  91-100     the reader's rule picks 1-100
    an hour   1-100

What is merged: at least so many small segments that lie side by side, if none of them is more
than a quarter of their sum. So a row is copied only when its file grows fourfold, a few times in
its life, however slowly segments come.

What cannot be merged is left as it is, and what lies on its two sides is merged apart: a segment
that is damaged, and one with columns that this version does not know, which would be lost.
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
# A merged segment has at least so many times the bytes of the largest that went into it; fewer
# where few files are merged, which could not have as many.
GROWTH: Final = 4.0


@dataclass(frozen=True)
class Compaction:
    """When segments are merged, and how large they get."""

    # So many small segments side by side are merged.
    files: int = 10
    # A segment with fewer bytes is small.
    small: int = 64 * MIB
    # A merged segment ends with the one that brings it to so many bytes or rows.
    largest: int = 256 * MIB
    rows: int = 5_000_000
    # Seconds that covered segments stay.
    grace: float = 3_600.0


class NotMergeable(RecordError):
    """A segment has to stay as it is; the text says why."""

    def __init__(self, limits: Range, why: str) -> None:
        super().__init__(why)
        self.range = limits


def picked(segments: Sequence[Segment]) -> list[Segment]:
    """Those that a reader reads, in order; RecordError as `pick` raises it."""
    by_range = {each.range: each for each in segments}
    return [by_range[each] for each in pick(by_range)]


def plan(
    segments: Sequence[Segment],
    settings: Compaction,
    slot: Callable[[Segment], int] | None = None,
    *,
    apart: Container[Range] = (),
) -> list[Segment]:
    """Which segments to merge next, in order; none: it is good as it is.

    Segments of different slots are not merged: where old rows are deleted by their age, a slot is
    a part of that time. Nor are those in `apart`.
    """
    run: list[Segment] = []
    place: int | None = None
    for segment in picked(segments):
        is_small = segment.size < min(settings.small, settings.largest)
        if is_small and segment.rows < settings.rows and segment.range not in apart:
            here = None if slot is None else slot(segment)
            if run and here != place:
                found = _worth_merging(run, settings)
                if found:
                    return _cut(found, settings)
                run = []
            place = here
            run.append(segment)
        else:
            found = _worth_merging(run, settings)
            if found:
                return _cut(found, settings)
            run = []
    return _cut(_worth_merging(run, settings), settings)


def _worth_merging(run: list[Segment], settings: Compaction) -> list[Segment]:
    """A part of the run without a segment that is much larger than the others; or none."""
    files = max(settings.files, 2)
    growth = min(GROWTH, files / 2)
    parts = [run]
    while parts:
        part = parts.pop()
        if len(part) < files:
            continue
        largest = max(range(len(part)), key=lambda at: part[at].size)
        if part[largest].size * growth <= sum(each.size for each in part):
            return part
        parts.append(part[largest + 1 :])
        parts.append(part[:largest])
    return []


def _cut(part: list[Segment], settings: Compaction) -> list[Segment]:
    """As many from the start as one file may have; two at least, because they are small."""
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
    """Write the segment that covers `parts`, which follow each other; returns its bytes.

    A row group is in memory at a time. Between two, `pause` may do other work, or raise to give
    up. Raises FileNotFoundError if one of them was deleted meanwhile, and NotMergeable.
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


def coverers(segments: Sequence[Segment]) -> Iterator[tuple[Segment, list[Segment]]]:
    """Each segment that others cover, with these."""
    around: list[Segment] = []
    # What covers a segment comes before it.
    for segment in sorted(segments, key=lambda each: (each.first, -each.last)):
        around = [each for each in around if each.last >= segment.first]
        found = [each for each in around if each.last >= segment.last]
        if found:
            yield segment, found
        around.append(segment)


def check_coverers(
    root: Root,
    stream: str,
    node: str,
    segments: Sequence[Segment],
    *,
    now: float,
    grace: float,
    checked: set[Range],
    pause: Callable[[], None] = lambda: None,
) -> set[Range]:
    """Read each file that covers others: if it is whole, its range is then in `checked`.

    Once when it is new, because readers go by it from then on, and once more when what it covers is
    about to be deleted. Returns those that are damaged. `pause` is called now and then, and may do
    other work.
    """
    damaged: set[Range] = set()
    fresh: set[Range] = set()
    for _, around in coverers(segments):
        for each in around:
            is_due = each.modified + grace <= now
            if each.range in damaged | fresh or (each.range in checked and not is_due):
                continue
            checked.discard(each.range)
            if _is_whole(root, stream, node, each, pause):
                checked.add(each.range)
                fresh.add(each.range)
            else:
                damaged.add(each.range)
    return damaged


def drop_covered(
    root: Root,
    stream: str,
    node: str,
    segments: Sequence[Segment],
    *,
    now: float,
    grace: float,
    checked: set[Range],
    damaged: set[Range],
) -> list[Segment]:
    """Delete segments that have been covered for the grace time; returns those that are left.

    `checked` and `damaged` are what `check_coverers` found. A file that covers others and is
    damaged is deleted instead of these, provided that they have all its rows; one that was not
    looked at covers nothing.
    """
    gone: set[Range] = set()
    for segment, around in coverers(segments):
        if any(each.modified + grace <= now for each in around if each.range in checked):
            root.delete(root.file_path(stream, node, segment.name))
            gone.add(segment.range)
    left = [each for each in segments if each.range not in gone]
    for bad in [each for each in left if each.range in damaged]:
        rest = [each for each in left if bad.covers(each)]
        whole = pick(each.range for each in rest)
        if not whole or (whole[0][0], whole[-1][1]) != bad.range:
            what = "its checksums or its footer, and nothing else holds all its rows"
            raise damaged_segment(root, stream, node, first=bad.first, last=bad.last, what=what)
        root.delete(root.file_path(stream, node, bad.name))
        left = [each for each in left if each.range != bad.range]
    return left


def _is_whole(
    root: Root, stream: str, node: str, segment: Segment, pause: Callable[[], None]
) -> bool:
    """Whether every byte of a segment is what was written, and its rows are there; then it lasts.

    One that somebody has deleted meanwhile covers nothing either.
    """
    try:
        verify_segment(root, stream, node, first=segment.first, last=segment.last, pause=pause)
    except (RecordError, FileNotFoundError):
        return False
    root.settle(root.file_path(stream, node, segment.name))
    return True

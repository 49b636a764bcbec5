"""Partitions: the rows that one Spark task reads.

The rows of a batch are split at the boundaries of segments and row groups, so that nothing is
decoded twice. Consecutive pieces, of one node or several, are combined up to a number of rows and
of bytes. A partition is plain data: rows by their numbers, and the segments that held them when it
was planned. If a segment is gone when the task runs, another one holds the rows, and is found by
their numbers.

The bytes of a partition bound the memory of its task: for a Python sink Spark limits record batches
by their number of rows alone (to measure their size costs ten times as much as everything else),
but never combines partitions. The relevant size is that of the rows in memory, which the footer of
a segment records: a megabyte of zeros, or of repeated properties, is a few bytes in the file.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from semel.pipeline.offsets import Losses, NodeExtent
from semel.store.roots import LocalRoot, Root, Segment
from semel.store.segment_names import Range
from semel.store.segments import group_bytes, group_range, open_segment

# A task with fewer rows is not worth its cost.
LEAST_ROWS: Final = 20_000
# Maximum size of a partition in memory, however few its rows are.
PARTITION_BYTES: Final = 64 * 1024 * 1024
# Footers that are read concurrently from an object store.
FOOTER_THREADS: Final = 8


@dataclass(frozen=True)
class Rows:
    """Rows of one node, first to last, and the segments that hold them."""

    node: str
    first: int
    last: int
    files: tuple[Range, ...]


@dataclass(frozen=True, init=False)
class SegmentPartition(InputPartition):
    """The rows that one task reads, in this order."""

    stream: str
    rows: tuple[Rows, ...]

    def __init__(self, stream: str, rows: Iterable[Rows]) -> None:
        object.__setattr__(self, "stream", stream)
        object.__setattr__(self, "rows", tuple(rows))


class Located(NamedTuple):
    """Rows of a batch that a segment holds."""

    node: str
    first: int
    last: int
    segment: Segment


class _Group(NamedTuple):
    """A row group of a segment."""

    first: int
    last: int
    # In memory.
    bytes: int


@dataclass(frozen=True)
class _Piece:
    node: str
    first: int
    last: int
    file: Range
    bytes: float

    @property
    def rows(self) -> int:
        return self.last - self.first + 1


def locate_rows(
    extents: Mapping[str, NodeExtent], spans: Mapping[str, Range], losses: Losses
) -> Iterator[Located]:
    """Find the segments that hold the rows of these spans.

    Missing rows are reported to `losses`.
    """
    for node, (first, last) in sorted(spans.items()):
        extent = extents.get(node) or NodeExtent(node, 0, ())
        at = first
        for begins, ends, segment in extent.pieces(first, last):
            if begins > at:
                losses.report_missing(extent, at, begins - 1)
            yield Located(node, begins, ends, segment)
            at = ends + 1
        if at <= last:
            losses.report_missing(extent, at, last)


def partitions_of(
    root: Root,
    stream: str,
    found: Iterable[Located],
    *,
    rows: int,
    least: int,
) -> list[SegmentPartition]:
    """Partitions of about `rows` rows; smaller ones if there would be fewer than `least`."""
    spans = list(found)
    total = sum(each.last - each.first + 1 for each in spans)
    size = min(rows, max(LEAST_ROWS, -(-total // least)))
    made: list[SegmentPartition] = []
    gathered: list[_Piece] = []
    for piece in _pieces(root, stream, spans):
        if gathered and _is_full([*gathered, piece], size):
            made.append(_partition(stream, gathered))
            gathered = []
        gathered.append(piece)
    if gathered:
        made.append(_partition(stream, gathered))
    return made


def _is_full(pieces: list[_Piece], size: int) -> bool:
    """Whether the last piece exceeds the partition by more than half of the piece."""
    before = pieces[:-1]
    rows = sum(each.rows for each in before)
    held = sum(each.bytes for each in before)
    return rows + pieces[-1].rows // 2 > size or held + pieces[-1].bytes / 2 > PARTITION_BYTES


def _pieces(root: Root, stream: str, spans: list[Located]) -> Iterator[_Piece]:
    for span, groups in zip(spans, _all_groups(root, stream, spans), strict=True):
        for group in groups:
            first, last = max(group.first, span.first), min(group.last, span.last)
            if first <= last:
                share = (last - first + 1) / (group.last - group.first + 1)
                yield _Piece(span.node, first, last, span.segment.range, group.bytes * share)


def _all_groups(root: Root, stream: str, spans: list[Located]) -> Iterable[list[_Group]]:
    """The row groups of the segment of each span, in the same order."""

    def groups(span: Located) -> list[_Group]:
        return _groups(root, stream, span.node, span.segment)

    if isinstance(root, LocalRoot) or len(spans) == 1:
        return map(groups, spans)
    # A footer takes one or two requests to an object store.
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        return list(pool.map(groups, spans))


def _groups(root: Root, stream: str, node: str, segment: Segment) -> list[_Group]:
    """The row groups of a segment; one for all of its rows if the segment is gone."""
    try:
        opened = open_segment(root, stream, node, first=segment.first, last=segment.last)
    except FileNotFoundError:
        return [_Group(segment.first, segment.last, segment.size)]
    try:
        metadata = opened.metadata
        return [
            _Group(*group_range(metadata, group), size)
            for group, size in enumerate(group_bytes(metadata))
        ]
    finally:
        opened.close(force=True)


def _partition(stream: str, pieces: list[_Piece]) -> SegmentPartition:
    """A partition of these pieces; consecutive pieces of one node are joined."""
    joined: list[Rows] = []
    for piece in pieces:
        before = joined[-1] if joined else None
        if before and before.node == piece.node and before.last + 1 == piece.first:
            files = before.files
            if piece.file not in files:
                files += (piece.file,)
            joined[-1] = Rows(piece.node, before.first, piece.last, files)
        else:
            joined.append(Rows(piece.node, piece.first, piece.last, (piece.file,)))
    return SegmentPartition(stream, joined)

"""Partitions: which rows of which segments one task of Spark reads.

The rows of a batch are cut at the borders of segments, and a segment with more rows than a
partition should have is cut at those of its row groups, so that nothing is decoded twice. Small
pieces that follow each other are gathered, of one node or of several. A partition has plain data:
rows by their numbers, and the files that held them when it was made. If a file is gone when the
task runs, another one holds the rows, and the numbers find it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from semel.pipeline.offsets import Extent, Losses
from semel.store.roots import Root, Segment
from semel.store.segments import Range, group_range, open_segment

# Fewer rows are not worth a task.
LEAST_ROWS: Final = 20_000
# Bytes of segments that are enough for a partition, however few their rows are.
PARTITION_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class Rows:
    """Rows of one node, first to last, and the files that hold them."""

    node: str
    first: int
    last: int
    files: tuple[Range, ...]


@dataclass(frozen=True, init=False)
class SegmentPartition(InputPartition):
    """What one task reads, in this order."""

    stream: str
    rows: tuple[Rows, ...]

    def __init__(self, stream: str, rows: Iterable[Rows]) -> None:
        object.__setattr__(self, "stream", stream)
        object.__setattr__(self, "rows", tuple(rows))


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


def there(
    extents: Mapping[str, Extent], spans: Mapping[str, Range], losses: Losses
) -> Iterator[tuple[str, int, int, Segment]]:
    """The rows of these spans, as they lie in segments: node, first, last, segment.

    `losses` is told of all rows that are not there.
    """
    for node, (first, last) in sorted(spans.items()):
        extent = extents.get(node) or Extent(node, 0, ())
        at = first
        for begins, ends, segment in extent.pieces(first, last):
            if begins > at:
                losses.gone(extent, at, begins - 1)
            yield node, begins, ends, segment
            at = ends + 1
        if at <= last:
            losses.gone(extent, at, last)


def partitions_of(
    root: Root,
    stream: str,
    found: Iterable[tuple[str, int, int, Segment]],
    *,
    rows: int,
    least: int,
) -> list[SegmentPartition]:
    """Partitions of about so many rows; smaller ones if there would be fewer than `least`."""
    spans = list(found)
    total = sum(last - first + 1 for _, first, last, _ in spans)
    size = min(rows, max(LEAST_ROWS, -(-total // least)))
    made: list[SegmentPartition] = []
    gathered: list[_Piece] = []
    for piece in _pieces(root, stream, spans, size):
        if gathered and _is_full([*gathered, piece], size):
            made.append(_partition(stream, gathered))
            gathered = []
        gathered.append(piece)
    if gathered:
        made.append(_partition(stream, gathered))
    return made


def _is_full(pieces: list[_Piece], size: int) -> bool:
    """Whether the last of some pieces is too much; it is taken if half of it or more has room."""
    before = pieces[:-1]
    rows = sum(each.rows for each in before)
    held = sum(each.bytes for each in before)
    return rows + pieces[-1].rows // 2 > size or held + pieces[-1].bytes / 2 > PARTITION_BYTES


def _pieces(
    root: Root, stream: str, spans: list[tuple[str, int, int, Segment]], size: int
) -> Iterator[_Piece]:
    for node, first, last, segment in spans:
        share = segment.size * (last - first + 1) / segment.rows
        if last - first + 1 <= size and share <= PARTITION_BYTES:
            yield _Piece(node, first, last, segment.range, share)
            continue
        for begins, ends in _groups(root, stream, node, segment):
            if ends >= first and begins <= last:
                low, high = max(begins, first), min(ends, last)
                part = segment.size * (high - low + 1) / segment.rows
                yield _Piece(node, low, high, segment.range, part)


def _groups(root: Root, stream: str, node: str, segment: Segment) -> list[Range]:
    """The rows of each row group of a segment; if it is gone, all rows as one."""
    try:
        opened = open_segment(root, stream, node, first=segment.first, last=segment.last)
    except FileNotFoundError:
        return [segment.range]
    try:
        metadata = opened.metadata
        return [group_range(metadata, group) for group in range(metadata.num_row_groups)]
    finally:
        opened.close(force=True)


def _partition(stream: str, pieces: list[_Piece]) -> SegmentPartition:
    """Pieces of one node that follow each other become one."""
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

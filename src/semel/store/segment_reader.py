"""Reads the segments of one node sequentially, for replay."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

from semel.store.commit import RecordedMessage
from semel.store.roots import Root
from semel.store.segment_names import Range, segment_name
from semel.store.segments import (
    BATCH_ROWS,
    LISTINGS,
    RecordError,
    SegmentFile,
    arrow,
    group_range,
    list_ranges,
    open_segment,
    records_of,
)


class SegmentReader:
    """Reads the segments of (stream, node) from any row on. Continuing where it stopped is cheap.

    `read` returns nothing at the end, and starts with the oldest existing row if the requested one
    has been deleted.
    """

    def __init__(self, root: Root, stream: str, node: str, *, stream_id: int = 0) -> None:
        self._root = root
        self._stream = stream
        self._node = node
        self._stream_id = stream_id
        # The ranges of the last listing. Opening a segment that was deleted since then fails.
        self._ranges: list[Range] = []
        # The open segment, its first and last seq, and its rows from seq `_at` on.
        self._at = 0
        self._first = 0
        self._last = 0
        self._opened: SegmentFile | None = None
        self._batches: Iterator[Any] = iter(())
        self._rest: Any = None

    def close(self) -> None:
        """Close the open file. The next `read` opens it again."""
        if self._opened is not None:
            self._opened.close()
        self._opened = self._rest = None
        self._batches = iter(())

    def __enter__(self) -> "SegmentReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, first: int, limit: int) -> list[RecordedMessage]:
        """At most `limit` records from seq `first` on. Raises RecordError for damage."""
        table = self.read_table(first, limit)
        return [] if table is None else records_of(table, self._stream_id)

    def read_table(self, first: int, limit: int) -> Any:
        """The same as an Arrow table, None if there are no rows."""
        gathered: list[Any] = []
        at = first
        missing = limit
        attempts = 0
        while missing > 0:
            try:
                piece = self._piece(at, missing)
            except FileNotFoundError:
                # The segment was deleted between listing and opening: list again.
                self.close()
                self._ranges = []
                attempts += 1
                if attempts == LISTINGS:
                    raise
                continue
            if piece is None:
                break
            begins = piece.column("seq")[0].as_py()
            if gathered and begins != at:
                break
            gathered.append(piece)
            attempts = 0
            missing -= piece.num_rows
            at = begins + piece.num_rows
        if not gathered:
            return None
        return arrow().concat_tables(gathered)

    def _piece(self, first: int, limit: int) -> Any:
        """A table that starts with the lowest existing row from `first` on; None at the end."""
        if self._opened is None or first != self._at:
            self.close()
            if not self._open(first):
                return None
        while self._rest is None or not self._rest.num_rows:
            batch = next(self._batches, None)
            if batch is None:
                if self._at <= self._last:
                    # The segment is damaged: opening it again would not help.
                    name = segment_name(self._first, self._last)
                    raise RecordError(
                        f"row {self._at} of stream {self._stream}, node {self._node}, is not in"
                        f" {name}"
                    )
                self.close()
                if not self._open(self._at):
                    return None
                continue
            self._rest = arrow().Table.from_batches([batch])
            begins = self._rest.column("seq")[0].as_py()
            if begins < self._at:
                self._rest = self._rest.slice(self._at - begins)
        piece = self._rest.slice(0, limit)
        self._rest = self._rest.slice(limit)
        self._at += piece.num_rows
        return piece

    def _open(self, first: int) -> bool:
        """Open the segment with row `first`, or the next one. Returns False if there is none."""
        if not self._ranges or self._ranges[-1][1] < first:
            self._ranges = list_ranges(self._root, self._stream, self._node)
        index = bisect_left(self._ranges, first, key=lambda each: each[1])
        if index == len(self._ranges):
            return False
        low, high = self._ranges[index]
        self._opened = open_segment(self._root, self._stream, self._node, first=low, last=high)
        self._first, self._last = low, high
        self._at = max(first, low)
        metadata = self._opened.metadata
        groups = [
            group
            for group in range(metadata.num_row_groups)
            if group_range(metadata, group)[1] >= self._at
        ]
        self._batches = self._opened.iter_batches(
            batch_size=BATCH_ROWS, row_groups=groups, use_threads=False
        )
        self._rest = None
        return True

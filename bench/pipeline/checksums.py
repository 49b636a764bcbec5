"""The cost of verification when segments are read: CPU time with and without it.

A whole segment is read, row group by row group, as Spark's source reads it: by `open_segment`,
which verifies every byte, and by Arrow's own reader, which verifies nothing. Both take turns, the
first round is discarded, and a figure is the median. Payloads are random bytes, which zstd cannot
compress, so that a file has the most bytes to verify per row; or hexadecimal digits, which compress
to a half and cost more to decode.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.pipeline.segments import NODE, STREAM, group, numbered
from semel.extras import need
from semel.store.roots import Root, open_root
from semel.store.segment_names import segment_name
from semel.store.segment_writer import write_segment
from semel.store.segments import open_segment, schema

CHECKSUMS: Final = "checksums"
SIZES: Final = (20, 200, 1_000, 10_000, 100_000)
RANDOM: Final = "random"
HEXADECIMAL: Final = "hexadecimal"
KINDS: Final = (RANDOM, HEXADECIMAL)
# Bytes of payloads per segment, and the maximum number of rows.
SEGMENT_BYTES: Final = 64 * 1024 * 1024
MOST_ROWS: Final = 400_000
TABLE_BYTES: Final = 8 * 1024 * 1024
TARGET: Final = 1.3


@dataclass(frozen=True)
class Verified:
    """CPU seconds per segment."""

    kind: str
    size: int
    rows: int
    file_bytes: int
    plain: float
    verified: float

    @property
    def ratio(self) -> float:
        return self.verified / self.plain

    def as_json(self) -> dict[str, Any]:
        return {**self.__dict__, "ratio": self.ratio}


def measure_checksums(folder: Path, rounds: int) -> list[Verified]:
    """Measure each size and kind of payload."""
    found = []
    for kind in KINDS:
        for size in SIZES:
            print(f"checksums: {kind} payloads of {size:,} bytes", file=sys.stderr, flush=True)
            root = open_root(folder / f"{kind}-{size}")
            found.append(_measure(root, kind, size, rounds))
    return found


def _measure(root: Root, kind: str, size: int, rounds: int) -> Verified:
    rows = min(MOST_ROWS, max(1, SEGMENT_BYTES // size))
    bytes_written = write_segment(
        root, STREAM, NODE, lambda: _tables(kind, size, rows), first=1, last=rows
    )
    path = Path(root.address) / root.file_path(STREAM, NODE, segment_name(1, rows))
    parquet = need("pyarrow.parquet", extra="broker", by="the record of a stream")

    def plain() -> int:
        with parquet.ParquetFile(path) as opened:
            return _read(opened)

    def verified() -> int:
        opened = open_segment(root, STREAM, NODE, first=1, last=rows)
        try:
            return _read(opened)
        finally:
            opened.close()

    times: dict[Callable[[], int], list[float]] = {plain: [], verified: []}
    for _ in range(rounds + 1):
        for read, seconds in times.items():
            began = time.process_time()
            assert read() == rows
            seconds.append(time.process_time() - began)
    medians = [statistics.median(seconds[1:]) for seconds in times.values()]
    path.unlink()
    return Verified(kind, size, rows, bytes_written, *medians)


def _read(opened: Any) -> int:
    groups = range(opened.metadata.num_row_groups)
    return sum(opened.read_row_group(each, use_threads=False).num_rows for each in groups)


def _tables(kind: str, size: int, rows: int) -> Any:
    arrow = need("pyarrow", extra="broker", by="the record of a stream")
    step = max(1, min(rows, TABLE_BYTES // size))
    base = group(step)
    place = schema().names.index("payload")
    for first in range(1, rows + 1, step):
        part = numbered(base, first, min(step, rows - first + 1))
        payloads = [_payload(kind, size) for _ in range(part.num_rows)]
        column = arrow.array(payloads, arrow.binary())
        yield part.set_column(place, schema().field("payload"), column)


def _payload(kind: str, size: int) -> bytes:
    if kind == RANDOM:
        return os.urandom(size)
    return os.urandom(size // 2).hex().encode()


def lines(found: list[Verified]) -> list[str]:
    """Markdown."""
    output = [
        "| verified read: payloads | bytes each | MB of file | ms without | ms verified | times |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    output += [
        f"| {each.kind} | {each.size:,} | {each.file_bytes / 1e6:.1f} | {each.plain * 1e3:.0f} "
        f"| {each.verified * 1e3:.0f} | {each.ratio:.2f} |"
        for each in found
    ]
    return output


def targets(found: list[Verified]) -> list[str]:
    if not found:
        return []
    worst = max(found, key=lambda each: each.ratio)
    sign = "✓" if worst.ratio <= TARGET else "✗"
    return [
        f"{sign} checksums: a verified read takes at most {TARGET:g} times the CPU time of one "
        f"without: {worst.ratio:.2f} ({worst.kind} payloads of {worst.size:,} bytes)"
    ]

"""How long the driver takes to commit a batch: 20 files of the size that a landing writes.

The files are written once, so that their statistics are real. Each commit adds them under new names
with the following rows: a commit checks their sizes, but does not open them. Measured is everything
the sink does after its tasks, from reading the table's log to the entry on disk. There are enough
commits to include a checkpoint of the log.
"""

import os
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.pipeline.segments import STREAM, group, numbered

if TYPE_CHECKING:
    from semel.pipeline.files import DataFile
    from semel.pipeline.table import LandingBatch

FILES: Final = 20
# A batch of a million rows, divided among the files.
FILE_ROWS: Final = 50_000
COMMITS: Final = 120
WARM_UP: Final = 5
TARGET_MS: Final = 100.0


@dataclass
class Commits:
    """Milliseconds, in the order of measurement."""

    milliseconds: list[float] = field(default_factory=list)
    file_bytes: int = 0
    fault: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "files": FILES,
            "file_rows": FILE_ROWS,
            "file_bytes": self.file_bytes,
            "median_ms": parts(self.milliseconds)[0],
            "p95_ms": parts(self.milliseconds)[1],
            "commits": len(self.milliseconds),
            "fault": self.fault,
        }


def parts(values: list[float]) -> tuple[float, float]:
    """Median and 95th percentile; zeros without values."""
    if len(values) < 2:
        return 0.0, 0.0
    return statistics.median(values), statistics.quantiles(values, n=20, method="inclusive")[18]


def measure_commits(folder: Path) -> Commits:
    """Write files, and commit them repeatedly."""
    from semel.pipeline.errors import PipelineError
    from semel.pipeline.table import Table

    result = Commits()
    address = str(folder / "committed")
    files = write(address)
    result.file_bytes = sum(each.size for each in files) // len(files)
    # It stays loaded, as in Spark's driver.
    table = Table(address)
    try:
        for number in range(WARM_UP + COMMITS):
            batch = batch_of(files, number)
            for file, moved in zip(files, batch.files, strict=True):
                # A commit checks that its files exist.
                os.link(Path(address, file.path), Path(address, moved.path))
            began = time.perf_counter()
            table.commit(batch)
            if number >= WARM_UP:
                result.milliseconds.append((time.perf_counter() - began) * 1e3)
    except (PipelineError, OSError) as problem:
        result.fault = str(problem)
    print(f"bench: commit: {parts(result.milliseconds)[0]:.1f} ms", file=sys.stderr)
    return result


def write(address: str) -> "list[DataFile]":
    """The files of the first batch, as tasks write them."""
    from pyarrow import compute

    from semel.pipeline.files import UNIQUE, TableLayout, write_files

    base = group(FILE_ROWS)
    layout = TableLayout(address, ("date",), numbering=UNIQUE)
    written = []
    for first in range(1, FILES * FILE_ROWS + 1, FILE_ROWS):
        table = numbered(base, first, FILE_ROWS)
        table = table.append_column("date", compute.cast(table.column("received"), "date32"))
        written += write_files(table.to_batches(), layout)
    return written


def batch_of(files: "list[DataFile]", number: int) -> "LandingBatch":
    """The batch with this number: the same files, as if they had the following rows."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import DateType, StructType

    from semel.pipeline.table import LandingBatch
    from semel.store.segments import schema

    ahead = number * FILES * FILE_ROWS
    moved = [
        replace(
            each,
            path=each.path.replace("part-", f"part-{number:08}"),
            runs={
                node: [(first + ahead, last + ahead) for first, last in runs]
                for node, runs in each.runs.items()
            },
        )
        for each in files
    ]
    columns = StructType([*from_arrow_schema(schema()).fields]).add("date", DateType())
    return LandingBatch(
        moved,
        columns.json(),
        partition_by=("date",),
        query="bench",
        number=number,
        stream=STREAM,
    )


def lines(result: Commits) -> list[str]:
    """Markdown."""
    if result.fault:
        return [f"commit: ⚠ {result.fault}"]
    median, late = parts(result.milliseconds)
    return [
        f"| commit of {FILES} files of {FILE_ROWS:,} rows | commits | ms median | ms 95 % |",
        "|---|---:|---:|---:|",
        f"| {result.file_bytes:,} bytes each | {len(result.milliseconds)} | {median:.1f} "
        f"| {late:.1f} |",
    ]


def targets(result: Commits) -> list[str]:
    """By the median."""
    if result.fault:
        return [f"✗ commit: {result.fault}"]
    median = parts(result.milliseconds)[0]
    sign = "✓" if median <= TARGET_MS else "✗"
    return [
        f"{sign} commit: {FILES} files in at most {TARGET_MS:.0f} ms of the driver: {median:.1f} ms"
    ]

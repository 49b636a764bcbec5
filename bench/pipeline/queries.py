"""semel's source and sink compared with Spark's own, on the same rows in one session.

    source  format("mqtt") to noop               native  the same segments by Spark's Parquet stream
    sink    format("mqtt") to semel_delta        native  Spark's Parquet stream to its Parquet sink
    scale   format("mqtt") to semel_delta, with few rows and with many

Every query is a stream with trigger AvailableNow and its own checkpoint. Contenders take turns
within a round, and the first round is discarded, because Java compiles what it runs often. The
startup cost of a query is measured for each contender on a record of TINY_ROWS rows, and
subtracted. Measured are wall time, and processor time of Java and of Spark's Python.
"""

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.pipeline.processes import JAVA, WORKERS, Machine, busy_machine_warning, since, used
from bench.pipeline.segments import NODE, STREAM, group, make_record
from semel.pipeline.settings import LandSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE: Final = "source"
SINK: Final = "sink"
SCALE: Final = "scale"
SEMEL: Final = "semel"
NATIVE: Final = "native"

ROWS: Final = 4_000_000
TINY_ROWS: Final = 1_000
# The factor by which SCALE has more rows than the others, and its number of rounds.
TIMES: Final = 4
SCALE_ROUNDS: Final = 3
TARGETS: Final = {SOURCE: 0.6, SINK: 1.2}
AIMS: Final = {SOURCE: 0.9, SINK: 1.5}
# The minimum ratio of rows per second, many to few.
SCALE_TARGET: Final = 0.2


class Wrong(Exception):
    """A query did not process all rows."""


@dataclass(frozen=True)
class Cost:
    """Wall time and processor time of one query, in seconds."""

    seconds: float
    java: float = 0.0
    # Of Spark's Python.
    python: float = 0.0
    # Of this process, if it does a part of the work.
    driver: float = 0.0

    @property
    def processor(self) -> float:
        return self.java + self.python + self.driver


@dataclass
class Series:
    """The queries of one contender with one number of rows."""

    rows: int
    costs: list[Cost] = field(default_factory=list)

    def median(self) -> Cost:
        return Cost(
            statistics.median(each.seconds for each in self.costs),
            statistics.median(each.java for each in self.costs),
            statistics.median(each.python for each in self.costs),
            statistics.median(each.driver for each in self.costs),
        )


@dataclass
class Contender:
    """The cost of one contender, with few rows and with many."""

    name: str
    tiny: Series
    large: Series

    @property
    def rows(self) -> int:
        """The difference in rows."""
        return self.large.rows - self.tiny.rows

    @property
    def rate(self) -> float:
        """Rows per second, without the startup."""
        return self.rows / max(self.large.median().seconds - self.tiny.median().seconds, 1e-9)

    def microseconds(self, which: Callable[[Cost], float]) -> float:
        """Processor time per row, without the startup."""
        return (which(self.large.median()) - which(self.tiny.median())) / self.rows * 1e6

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "rows": self.large.rows,
            "fixed_seconds": self.tiny.median().seconds,
            "rows_per_second": self.rate,
            "java_us": self.microseconds(lambda cost: cost.java),
            "python_us": self.microseconds(lambda cost: cost.python),
            "seconds": [cost.seconds for cost in self.large.costs],
            "tiny_seconds": [cost.seconds for cost in self.tiny.costs],
        }


@dataclass
class Compared:
    """One part: the first contender is compared with the second."""

    part: str
    contenders: list[Contender] = field(default_factory=list)
    others: float = 0.0
    fault: str = ""

    @property
    def ratio(self) -> float:
        return self.contenders[0].rate / self.contenders[1].rate

    @property
    def processor_ratio(self) -> float:
        """The ratio of rows per second of processor time."""
        first, second = (each.microseconds(lambda cost: cost.processor) for each in self.contenders)
        return second / max(first, 1e-9)

    def as_json(self) -> dict[str, Any]:
        whole = bool(self.contenders) and not self.fault
        return {
            "part": self.part,
            "fault": self.fault,
            "ratio": self.ratio if whole else None,
            "processor_ratio": self.processor_ratio if whole else None,
            "others": self.others,
            "contenders": [each.as_json() for each in self.contenders if whole],
        }


# --- queries --------------------------------------------------------------------------------------


class Bench:
    """Records of several sizes, a session, and queries over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._base = group()
        self._spark: SparkSession | None = None

    @property
    def spark(self) -> "SparkSession":
        """Started when first needed, so that it takes no memory from earlier parts."""
        if self._spark is None:
            from semel.pipeline import session

            self._spark = session("bench")
        return self._spark

    def close(self) -> None:
        if self._spark is not None:
            from semel.pipeline.session import close

            close(self._spark)
            self._spark = None

    def record(self, rows: int) -> Path:
        """A root with this many rows, created once."""
        folder = self.folder / f"record-{rows}"
        if not folder.exists():
            folder.mkdir()
            print(f"bench: making {rows:,} rows …", file=sys.stderr)
            make_record(folder, rows, base=self._base)
        return folder

    def read(self, name: str, rows: int, batch: int | None = None) -> "DataFrame":
        """The rows of a record as a stream."""
        root = self.record(rows)
        if name == SEMEL:
            reader = self.spark.readStream.format("mqtt")
            reader = reader.option("root", str(root)).option("stream", STREAM)
            if batch is not None:
                reader = reader.option("maxRowsPerBatch", str(batch))
            return reader.load()
        from semel.pipeline.source_columns import ddl_of

        segments = f"{root}/{STREAM}/{NODE}/*.parquet"
        return self.spark.readStream.schema(ddl_of(None)).parquet(segments)

    def run(self, name: str, rows: int, *, lands: bool, batch: int | None = None) -> Cost:
        """Run a query to its end. Raises Wrong if it did not read all rows."""
        place = self.folder / "query"
        shutil.rmtree(place, ignore_errors=True)
        writer = self.read(name, rows, batch).writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(place / "checkpoint"))
        if not lands:
            writer = writer.format("noop")
        elif name == SEMEL:
            writer = writer.format("semel_delta").option("path", str(place / "table"))
            writer = writer.option("stream", STREAM).option("root", str(self.record(rows)))
        else:
            writer = writer.format("parquet").option("path", str(place / "table"))
        before = used(os.getpid())
        began = time.perf_counter()
        query = writer.start()
        query.awaitTermination()
        seconds = time.perf_counter() - began
        spent = since(before, used(os.getpid()))
        read = sum(progress.numInputRows for progress in query.recentProgress)
        if read != rows:
            raise Wrong(f"{name} read {read:,} of {rows:,} rows")
        if lands:
            self.check(place / "table", name, rows)
        shutil.rmtree(place, ignore_errors=True)
        return Cost(seconds, spent.get(JAVA, 0.0), spent.get(WORKERS, 0.0))

    def check(self, table: Path, name: str, rows: int) -> None:
        """Raise Wrong unless all rows were written."""
        from pyarrow.parquet import read_metadata

        written = sum(read_metadata(path).num_rows for path in table.glob("*.parquet"))
        if written != rows:
            raise Wrong(f"{name} wrote {written:,} of {rows:,} rows")


@contextmanager
def faults_recorded(compared: Compared) -> Iterator[None]:
    """Record a failure as the part's fault, and what other processes used meanwhile."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    machine, before = Machine(), used(os.getpid())
    try:
        yield
    except (Wrong, OSError, Py4JError, PySparkException) as problem:
        compared.fault = str(problem).splitlines()[0]
    compared.others = machine.others(sum(since(before, used(os.getpid())).values()))


def interleaved(
    jobs: list[tuple[str, Series, Callable[[], Cost]]], rounds: int, *, warm: bool
) -> None:
    """Run all jobs in turn; the first round is a warm-up and discarded, unless already warm."""
    for number in range(rounds if warm else rounds + 1):
        for name, series, run in jobs:
            cost = run()
            counted = warm or number > 0
            if counted:
                series.costs.append(cost)
            print(
                f"bench: {name}, {series.rows:,} rows: {cost.seconds:.2f} s, processor "
                f"{cost.java:.2f} s Java and {cost.python:.2f} s Python"
                + ("" if counted else " (not counted)"),
                file=sys.stderr,
            )


def measure_part(bench: Bench, part: str, rows: int, rounds: int) -> Compared:
    """SOURCE or SINK: semel, then Spark's own."""
    compared = Compared(part)
    with faults_recorded(compared):
        lands = part == SINK

        def run(name: str, rows: int) -> Callable[[], Cost]:
            return lambda: bench.run(name, rows, lands=lands)

        jobs: list[tuple[str, Series, Callable[[], Cost]]] = []
        for name in (SEMEL, NATIVE):
            contender = Contender(name, Series(TINY_ROWS), Series(rows))
            compared.contenders.append(contender)
            for series in (contender.tiny, contender.large):
                jobs.append((f"{part}, {name}", series, run(name, series.rows)))
        interleaved(jobs, rounds, warm=False)
    return compared


def measure_scale(bench: Bench, rows: int) -> Compared:
    """SCALE: many rows compared with few, in batches like a landing's."""
    compared = Compared(SCALE)
    with faults_recorded(compared):
        batch = LandSettings().max_rows

        def run(rows: int) -> Callable[[], Cost]:
            return lambda: bench.run(SEMEL, rows, lands=True, batch=batch)

        # The same startup for both: it is the same query.
        tiny = Series(TINY_ROWS)
        jobs = [(SCALE, tiny, run(TINY_ROWS))]
        for count in (rows * TIMES, rows):
            contender = Contender(f"{count:,} rows", tiny, Series(count))
            compared.contenders.append(contender)
            jobs.append((SCALE, contender.large, run(count)))
        for count in (TINY_ROWS, rows):  # to warm up; the many take long
            run(count)()
        interleaved(jobs, SCALE_ROUNDS, warm=True)
    return compared


# --- report ---------------------------------------------------------------------------------------


def lines(results: list[Compared]) -> list[str]:
    """Markdown."""
    output = [
        "| payloads of 200 B | rows | s to start | rows/s | Java µs/row | Python µs/row"
        " | times the one below | per processor second |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    warnings = []
    for result in results:
        if result.fault:
            output.append(f"| {result.part} | ⚠ {result.fault} |{' |' * 6}")
            continue
        warnings.append(busy_machine_warning(result.others))
        for contender in result.contenders:
            ratios = f"{result.ratio:.2f} | {result.processor_ratio:.2f}"
            output.append(
                f"| {result.part}: {contender.name} | {contender.large.rows:,} "
                f"| {contender.tiny.median().seconds:.2f} | {contender.rate:,.0f} "
                f"| {contender.microseconds(lambda cost: cost.java):.2f} "
                f"| {contender.microseconds(lambda cost: cost.python):.2f} "
                f"| {ratios if contender is result.contenders[0] else ' | '} |"
            )
    return output + [""] * any(warnings) + [each for each in dict.fromkeys(warnings) if each]


def targets(results: list[Compared]) -> list[str]:
    """A line for each part."""
    output: list[str] = []
    for result in results:
        if result.fault:
            output.append(f"✗ {result.part}: {result.fault}")
        elif result.part == SCALE:
            sign = "✓" if abs(result.ratio - 1) <= SCALE_TARGET else "✗"
            many, few = (each.name for each in result.contenders)
            output.append(
                f"{sign} {SCALE}: rows per second of {many} and of {few} differ by at most "
                f"{SCALE_TARGET:.0%}: {result.ratio:.2f} times"
            )
        else:
            target, aim = TARGETS[result.part], AIMS[result.part]
            sign = "✓" if result.ratio >= target else "✗"
            output.append(
                f"{sign} {result.part}: at least {target:g} times the rows per second of Spark's "
                f"own (aim: {aim:g}): {result.ratio:.2f}"
            )
    return output

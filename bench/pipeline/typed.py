"""Landing into typed tables, and reading them, compared with raw landing and with Spark's own.

    typed       JSON into one table of a landing file      raw landing; Spark's Parquet stream,
                                                           from_json and Parquet sink
    protobuf    Protobuf into one table; other formats     raw landing of the Protobuf record
    tables      JSON into ten tables in one query          the same messages into one table
                typed and tables also with an expression, for which Spark needs decoded columns
    read_table  `read_table`: a scan and a filter          spark.read.parquet of the same folder

Landings are those of `semel land --once` without maintenance, by `Landing` in one Spark session.
Contenders take turns within a round, the first round is discarded, and medians count. The startup
cost of a landing is measured on TINY_ROWS rows, and subtracted, as in `queries.py`. Every round
checks what was written or read: rows, and a checksum of each column. Processor time is that of this
process (the driver), of Java, and of Spark's Python workers.

Spark's own writes the same columns, but no partitions, and accepts more than JSON; that is easier.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.pipeline.processes import JAVA, REST, WORKERS, busy_machine_warning, since, used
from bench.pipeline.queries import (
    TINY_ROWS,
    Bench,
    Compared,
    Contender,
    Cost,
    Series,
    Wrong,
    faults_recorded,
    interleaved,
)
from bench.pipeline.segments import NODE, STREAM
from bench.pipeline.typed_records import (
    AVRO,
    CBOR,
    CHANNELS,
    COLUMNS,
    JSON,
    LEVELS,
    MESSAGE,
    MSGPACK,
    PROTOBUF,
    VALUES,
    Checksum,
    TypedGroup,
    added,
    avro_schema,
    checksum_of,
    descriptor_set,
)
from semel.pipeline.settings import LandSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TYPED: Final = "typed"
TABLES: Final = "tables"
READ_TABLE: Final = "read_table"
TYPED_PARTS: Final = (TYPED, PROTOBUF, TABLES, READ_TABLE)
ROWS: Final = 1_000_000

RAW: Final = "raw"
SPARK: Final = "Spark's own"
WITH_EXPRESSION: Final = ", with an expression"
ONE: Final = "one table"
TEN: Final = "ten tables"
SCAN: Final = "scan"
FILTER: Final = "filter"
PARQUET: Final = "parquet"

TYPED_TARGET: Final = 0.6
SPARK_TARGET: Final = 1.0
PROTOBUF_TARGET: Final = 0.35
TABLES_TARGET: Final = 1.6
READ_TARGET: Final = 0.95

# A query of a table is short: this many of them are measured at a time.
READS: Final = 5
# Rows that the filter selects.
FILTERED: Final = 100
_DESCRIPTORS: Final = "reading.desc"


@dataclass(frozen=True)
class Ratio:
    """A comparison of two contenders, and its target."""

    part: str
    sentence: str
    value: float
    # None: for information.
    target: float | None = None
    is_maximum: bool = False

    @property
    def is_met(self) -> bool:
        if self.target is None:
            return True
        return self.value <= self.target if self.is_maximum else self.value >= self.target

    def describe_target(self) -> str:
        if self.target is None:
            return "–"
        return f"{'at most' if self.is_maximum else 'at least'} {self.target:g}"

    def as_json(self) -> dict[str, Any]:
        return {**self.__dict__, "is_met": None if self.target is None else self.is_met}


# --- landings -------------------------------------------------------------------------------------


class TypedBench:
    """Records with typed payloads, and landings of them in one session."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._groups: dict[str, TypedGroup] = {}
        self._runs = 0

    def group(self, kind: str) -> TypedGroup:
        if kind not in self._groups:
            self._groups[kind] = TypedGroup(kind)
        return self._groups[kind]

    def record(self, kind: str, rows: int) -> Path:
        """A root with this many rows of a format, created once."""
        folder = self._bench.folder / f"record-{kind}-{rows}"
        if not folder.exists():
            made = self.group(kind)
            print(
                f"bench: making {rows:,} rows of {kind}, {made.payload_bytes} bytes each …",
                file=sys.stderr,
            )
            folder.mkdir()
            made.make(folder, rows)
        return folder

    def land_raw(self, kind: str, rows: int) -> Cost:
        """Land a record into one table with all its columns. Raises Wrong."""
        lake = self._new_folder()
        cost = self._land(LandSettings(root=str(self.record(kind, rows)), lake=str(lake)))
        found = _landed_checksum([lake / LandSettings().table], ("payload", "topic"))
        check_equal(f"{RAW} landing of {kind}", self.group(kind).raw_checksum(rows), found)
        shutil.rmtree(lake)
        return cost

    def land_typed(
        self, kind: str, rows: int, tables: int = 1, *, has_expression: bool = False
    ) -> Cost:
        """Land a record into this many typed tables. Raises Wrong."""
        lake, cost = self.make_tables(kind, rows, tables, has_expression=has_expression)
        shutil.rmtree(lake)
        return cost

    def make_tables(
        self, kind: str, rows: int, tables: int = 1, *, has_expression: bool = False
    ) -> tuple[Path, Cost]:
        """The lake of a landing, and what it cost. Raises Wrong."""
        lake = self._new_folder()
        names = [f"readings_{place}" for place in range(tables)]
        path = lake.with_suffix(".toml")
        path.write_text(landing_file(kind, names, has_expression=has_expression))
        if kind == PROTOBUF:
            (path.parent / _DESCRIPTORS).write_bytes(descriptor_set())
        settings = LandSettings(root=str(self.record(kind, rows)), lake=str(lake), landing=path)
        cost = self._land(settings)
        for place, name in enumerate(names):
            expected = self.group(kind).typed_checksum(rows, place if tables > 1 else None)
            found = _landed_checksum([lake / name], (*VALUES, *LEVELS))
            check_equal(f"landing of {kind} into {name}", expected, found)
        path.unlink()
        return lake, cost

    def land_by_spark(self, rows: int) -> Cost:
        """The same columns from JSON by Spark's own source, function and sink. Raises Wrong."""
        from pyspark.sql import functions as sf

        from semel.pipeline.source_columns import ddl_of

        folder = self._new_folder()
        segments = f"{self.record(JSON, rows)}/{STREAM}/{NODE}/*.parquet"

        def run() -> None:
            messages = self._bench.spark.readStream.schema(ddl_of(None)).parquet(segments)
            levels = sf.split("topic", "/")
            parsed = sf.from_json(sf.col("payload").cast("string"), COLUMNS)
            typed = messages.select(
                *("node", "seq", "received", "topic"),
                *(levels[place].alias(name) for place, name in enumerate(LEVELS, 1)),
                parsed.alias("parsed"),
            ).select(*("node", "seq", "received", "topic"), *LEVELS, "parsed.*")
            writer = typed.writeStream.format("parquet").trigger(availableNow=True)
            writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
            writer.option("path", str(folder / "table")).start().awaitTermination()

        cost = measured(run)
        found = checksum_of_files((folder / "table").glob("*.parquet"), (*VALUES, *LEVELS))
        check_equal(SPARK, self.group(JSON).typed_checksum(rows), found)
        shutil.rmtree(folder)
        return cost

    def _new_folder(self) -> Path:
        # Processes of Spark remember tables by their addresses.
        self._runs += 1
        return self._bench.folder / f"landing-{self._runs}"

    def _land(self, settings: LandSettings) -> Cost:
        from semel.pipeline.landing import Landing
        from semel.pipeline.landing_plan import make_plan

        spark = self._bench.spark
        plain = replace(settings, maintenance=False)
        events: list[dict[str, Any]] = []

        def run() -> None:
            Landing(make_plan(plain), events.append).run(once=True, spark=spark)

        return measured(run)


def measured(run: Callable[[], object]) -> Cost:
    """Wall time and processor time of a call."""
    before = used(os.getpid())
    began = time.perf_counter()
    run()
    seconds = time.perf_counter() - began
    spent = since(before, used(os.getpid()))
    return Cost(seconds, spent.get(JAVA, 0.0), spent.get(WORKERS, 0.0), spent.get(REST, 0.0))


def landing_file(kind: str, names: list[str], *, has_expression: bool = False) -> str:
    """A landing file: one table of all messages, or a table for each channel."""
    lines = []
    for place, name in enumerate(names):
        last = "+" if len(names) == 1 else f"channel-{place}"
        named = "/".join(f"{{{level}}}" for level in LEVELS)
        lines += ["[[table]]", f'name = "{name}"', f'topic = "plant/{named}/{last}"']
        lines += [f'decoder = "{kind}"', f'columns = "{COLUMNS}"']
        if has_expression:
            lines.append('where = "seq > 0"')
        if kind == PROTOBUF:
            lines += [f'descriptor_file = "{_DESCRIPTORS}"', f'message = "{MESSAGE}"']
        if kind == AVRO:
            lines.append(f"schema = '{json.dumps(avro_schema())}'")
    return "\n".join([*lines, ""])


def _landed_checksum(tables: Iterable[Path], columns: Iterable[str]) -> Checksum:
    """Of the files that the current versions of these tables have."""
    from deltalake import DeltaTable

    files = [Path(file) for table in tables for file in DeltaTable(table).file_uris()]
    return checksum_of_files(files, columns)


def checksum_of_files(files: Iterable[Path], columns: Iterable[str]) -> Checksum:
    from pyarrow.parquet import ParquetFile

    chosen = list(columns)
    total: Checksum = {}
    for path in files:
        with ParquetFile(path) as opened:
            total = added(total, checksum_of(opened.read(["seq", *chosen]), chosen))
    return total


def check_equal(what: str, expected: Checksum, found: Checksum) -> None:
    wrong = sorted(name for name in expected if expected[name] != found.get(name))
    if "rows" in wrong:
        raise Wrong(f"{what} wrote {found.get('rows', 0):,} of {expected['rows']:,} rows")
    if wrong:
        raise Wrong(f"{what} wrote wrong values of {', '.join(wrong)}")


# --- parts ----------------------------------------------------------------------------------------


def measure_typed_part(bench: Bench, part: str, rows: int, rounds: int) -> Compared:
    """Measure one of TYPED_PARTS."""
    compared = Compared(part)
    with faults_recorded(compared):
        typed = TypedBench(bench)
        if part == READ_TABLE:
            _measure_reads(compared, typed, bench, rows, rounds)
        else:
            _measure_landings(compared, typed, rows, rounds)
    return compared


def _measure_landings(compared: Compared, typed: TypedBench, rows: int, rounds: int) -> None:
    runs: dict[str, Callable[[int], Cost]]
    if compared.part == TYPED:
        runs = {
            JSON: lambda count: typed.land_typed(JSON, count),
            RAW: lambda count: typed.land_raw(JSON, count),
            SPARK: typed.land_by_spark,
            JSON + WITH_EXPRESSION: lambda count: typed.land_typed(
                JSON, count, has_expression=True
            ),
        }
    elif compared.part == TABLES:
        runs = {
            TEN: lambda count: typed.land_typed(JSON, count, CHANNELS),
            ONE: lambda count: typed.land_typed(JSON, count),
            TEN + WITH_EXPRESSION: lambda count: typed.land_typed(
                JSON, count, CHANNELS, has_expression=True
            ),
            ONE + WITH_EXPRESSION: lambda count: typed.land_typed(JSON, count, has_expression=True),
        }
    else:
        runs = {
            PROTOBUF: lambda count: typed.land_typed(PROTOBUF, count),
            RAW: lambda count: typed.land_raw(PROTOBUF, count),
            CBOR: lambda count: typed.land_typed(CBOR, count),
            MSGPACK: lambda count: typed.land_typed(MSGPACK, count),
            AVRO: lambda count: typed.land_typed(AVRO, count),
        }
    jobs: list[tuple[str, Series, Callable[[], Cost]]] = []
    for name, run in runs.items():
        contender = Contender(name, Series(TINY_ROWS), Series(rows))
        compared.contenders.append(contender)
        for series in (contender.tiny, contender.large):
            jobs.append((f"{compared.part}, {name}", series, _with_rows(run, series.rows)))
    interleaved(jobs, rounds, warm=False)


def _with_rows(run: Callable[[int], Cost], rows: int) -> Callable[[], Cost]:
    return lambda: run(rows)


def _measure_reads(
    compared: Compared, typed: TypedBench, bench: Bench, rows: int, rounds: int
) -> None:
    from semel.pipeline import read_table

    lake, _ = typed.make_tables(JSON, rows)
    path = str(lake / "readings_0")
    opened: dict[str, Callable[[], DataFrame]] = {
        READ_TABLE: lambda: read_table(bench.spark, path),
        PARQUET: lambda: bench.spark.read.parquet(path),
    }
    first = rows // 2
    ranges = {SCAN: (1, rows), FILTER: (first, min(first + FILTERED - 1, rows))}
    jobs: list[tuple[str, Series, Callable[[], Cost]]] = []
    for query, (begin, end) in ranges.items():
        expected = typed.group(JSON).value_sum(begin, end)
        for name, open_table in opened.items():
            # Nothing is subtracted: to open a table is a part of reading it.
            none = Series(0, [Cost(0.0)])
            contender = Contender(f"{query}, {name}", none, Series(rows))
            compared.contenders.append(contender)
            run = _reading(open_table, query, (begin, end), expected)
            jobs.append((f"{READ_TABLE}, {contender.name}", contender.large, run))
    interleaved(jobs, rounds, warm=False)


def _reading(
    open_table: "Callable[[], DataFrame]", query: str, seqs: tuple[int, int], expected: float
) -> Callable[[], Cost]:
    """Reads a table READS times; gives the cost of one. Raises Wrong."""
    begin, end = seqs

    def read() -> None:
        from pyspark.sql import functions as sf

        rows = open_table()
        if query == FILTER:
            rows = rows.where(sf.col("seq").between(begin, end))
        found = rows.agg(
            sf.count("*"), sf.sum("value"), sf.sum("place.x"), sf.max("at"), sf.min("status")
        ).first()
        assert found is not None
        if (found[0], found[1]) != (end - begin + 1, expected):
            raise Wrong(f"{query} found {found[0]:,} rows with the sum {found[1]}, not {expected}")

    def read_all() -> None:
        for _ in range(READS):
            read()

    def run() -> Cost:
        whole = measured(read_all)
        parts = (whole.seconds, whole.java, whole.python, whole.driver)
        return Cost(*(each / READS for each in parts))

    return run


# --- report ---------------------------------------------------------------------------------------


def ratios(result: Compared) -> list[Ratio]:
    """The comparisons of a part; none if it failed."""
    if result.fault:
        return []
    by_name = {each.name: each for each in result.contenders}
    part = result.part

    def rates(first: str, second: str, sentence: str, target: float | None = None) -> Ratio:
        return Ratio(part, sentence, by_name[first].rate / by_name[second].rate, target)

    if part == TYPED:
        return [
            rates(JSON, RAW, "rows per second of JSON by those of raw landing", TYPED_TARGET),
            rates(JSON, SPARK, "rows per second of JSON by those of Spark's own", SPARK_TARGET),
            *(
                rates(name, RAW, f"rows per second of {name} by those of raw landing")
                for name in by_name
                if name == JSON + WITH_EXPRESSION
            ),
        ]
    if part == PROTOBUF:
        sentence = "rows per second of Protobuf by those of raw landing"
        return [
            rates(PROTOBUF, RAW, sentence, PROTOBUF_TARGET),
            *(
                rates(kind, RAW, f"rows per second of {kind} by those of raw landing of Protobuf")
                for kind in (CBOR, MSGPACK, AVRO)
            ),
        ]
    if part == TABLES:
        ten, one = by_name[TEN], by_name[ONE]
        one_seconds = one.large.median().seconds
        whole = ten.large.median().seconds / one_seconds
        # The whole time has the start of a query, which is the same; the other lacks ten commits.
        return [
            Ratio(part, "time of ten tables by that of one", whole, TABLES_TARGET, is_maximum=True),
            Ratio(
                part,
                "the same without the start",
                one.rate / ten.rate,
                TABLES_TARGET,
                is_maximum=True,
            ),
            *(
                Ratio(
                    part,
                    f"time of {each.name} by that of one table without",
                    each.large.median().seconds / one_seconds,
                )
                for each in result.contenders
                if each.name.endswith(WITH_EXPRESSION)
            ),
        ]
    return [
        rates(
            f"{query}, {READ_TABLE}",
            f"{query}, {PARQUET}",
            f"{query}: rows per second of read_table by those of spark.read.parquet",
            READ_TARGET,
        )
        for query in (SCAN, FILTER)
    ]


def lines(results: list[Compared]) -> list[str]:
    """Markdown: a table of medians, and one of ratios."""
    output = [
        "| typed tables | rows | s | s to start | rows/s | CPU s per million rows"
        " | driver | Java | workers |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    compared = ["| ratio of medians | | target |", "|---|---:|---:|"]
    warnings = []
    for result in results:
        if result.fault:
            output.append(f"| {result.part} | ⚠ {result.fault} |{' |' * 7}")
            continue
        warnings.append(busy_machine_warning(result.others))
        for each in result.contenders:
            output.append(
                f"| {result.part}: {each.name} | {each.large.rows:,} "
                f"| {each.large.median().seconds:.2f} | {each.tiny.median().seconds:.2f} "
                f"| {each.rate:,.0f} "
                f"| {each.microseconds(lambda cost: cost.processor):.2f} "
                f"| {each.microseconds(lambda cost: cost.driver):.2f} "
                f"| {each.microseconds(lambda cost: cost.java):.2f} "
                f"| {each.microseconds(lambda cost: cost.python):.2f} |"
            )
        compared += [
            f"| {each.part}: {each.sentence} | {each.value:.2f} | {each.describe_target()} |"
            for each in ratios(result)
        ]
    notes = [each for each in dict.fromkeys(warnings) if each]
    return [*output, "", *compared, *([""] if notes else []), *notes]


def targets(results: list[Compared]) -> list[str]:
    """A line for each comparison that has a target, and for each part that failed."""
    output = []
    for result in results:
        if result.fault:
            output.append(f"✗ {result.part}: {result.fault}")
        output += [
            f"{'✓' if each.is_met else '✗'} {each.part}: {each.sentence}, "
            f"{each.describe_target()}: {each.value:.2f}"
            for each in ratios(result)
            if each.target is not None
        ]
    return output


def as_json(result: Compared) -> dict[str, Any]:
    return {
        "part": result.part,
        "fault": result.fault,
        "others": result.others,
        "ratios": [each.as_json() for each in ratios(result)],
        "contenders": [] if result.fault else [_contender_json(each) for each in result.contenders],
    }


def _contender_json(contender: Contender) -> dict[str, Any]:
    return {
        **contender.as_json(),
        "driver_us": contender.microseconds(lambda cost: cost.driver),
        "cpu_seconds_per_million_rows": contender.microseconds(lambda cost: cost.processor),
    }

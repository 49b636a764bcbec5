"""How long queries about one device take on a table of a year, sorted by topic and not.

The table is that of a landing with a batch per second, RATE messages of DEVICES devices each, at
half past twelve, as its maintenance leaves it:

    each past day    one file, compacted from smaller ones by compaction itself
    today            files that were merged twice, once, and not yet, as many as there can be
    the log          a checkpoint, `log_entries` and removed files, as in `aged.py`

It exists with all days and only with today, sorted by topic and in the order of receipt. The past
days are links to one real file, which has the rows of PAST days ago; the log has the bounds of each
day. So no query may depend on the times of rows of other days, and none does: the rows of the last
hour are real, those of that one day, and of the others only topic and date.

    last hour       of one device, by `received`
    past hour       of one device, PAST days ago
    week            one device in the last PAST days, by `date`
    ten minutes     of all devices, PAST days ago: sorting by topic makes these slower

`semel sql` opens a new `LakeSql` for each query, Polars a new scan, and Spark a new `read_table`.
All of it happens in one process that has imported everything. Files are in the system's cache.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.pipeline.aged import earlier, write_log
from bench.pipeline.queries import Bench, Cost, Series
from bench.pipeline.segments import NODE, payloads
from bench.pipeline.typed import measured
from semel.pipeline.settings import LandSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from semel.pipeline.files import DataFile

HISTORY: Final = "history"
TABLE: Final = "messages"
RATE: Final = 100
DEVICES: Final = 1_000
DAYS: Final = 365
DAY: Final = 86_400
# The day of the queries about the past, and the device that they ask for.
PAST: Final = 7
DEVICE: Final = 512
TODAY: Final = date(2026, 9, 22)
# Files of a batch, and of the other sizes of today.
FILES: Final = 2
MEDIUM: Final = 99
LARGE: Final = 8
# Batches that were merged into files of these sizes, and those that were not merged yet.
MEDIUM_BATCHES: Final = 50
LARGE_BATCHES: Final = 5_000
SMALL_BATCHES: Final = 49
# Files that a past day is compacted from.
SOURCES: Final = 96
# Different payloads.
PAYLOADS: Final = 65_536

CLUSTERED: Final = "by topic"
PLAIN: Final = "as received"
ORDERS: Final = (PLAIN, CLUSTERED)
ONE_DAY: Final = "one day"
YEAR: Final = "a year"
SPANS: Final = (ONE_DAY, YEAR)
SQL: Final = "semel sql"
POLARS: Final = "Polars"
SPARK: Final = "read_table"
FILTERED: Final = "read_table, filters"
FORMAT: Final = "semel_delta, filters"
ENGINES: Final = (SQL, POLARS, SPARK, FILTERED, FORMAT)
LAST_HOUR: Final = "last hour"
PAST_HOUR: Final = "past hour"
WEEK: Final = "week"
TEN_MINUTES: Final = "ten minutes"
ROUNDS: Final = 5
# The last hour of a year by that of a day, and a week that is not sorted by one that is.
YEAR_TARGET: Final = 2.0
WEEK_TARGET: Final = 5.0


class WrongCount(Exception):
    """A query did not find its rows."""


@dataclass(frozen=True)
class HistoryQuery:
    """A query, as the conditions that all engines have."""

    name: str
    # In microseconds since 1970.
    since: int | None = None
    until: int | None = None
    # By the partition instead of the time.
    since_day: date | None = None
    topic: str | None = None
    expected: int = 0
    # It needs more than the rows of today.
    is_past: bool = True


@dataclass
class HistoryTimes:
    """What queries cost, by query, engine, span and order; and what compaction takes."""

    costs: dict[tuple[str, str, str, str], list[Cost]] = field(default_factory=dict)
    # Processor seconds per million rows of a past day, and bytes of its file, by order.
    compaction: dict[str, float] = field(default_factory=dict)
    day_bytes: dict[str, int] = field(default_factory=dict)
    live_files: dict[str, int] = field(default_factory=dict)
    day_rows: int = 0
    fault: str = ""

    def median(self, query: str, engine: str, span: str, order: str) -> Cost | None:
        found = self.costs.get((query, engine, span, order))
        return Series(1, found).median() if found else None

    def milliseconds(self, query: str, engine: str, span: str, order: str) -> float:
        """Of processor time, which other programs on the machine change less."""
        found = self.median(query, engine, span, order)
        return 0.0 if found is None else found.processor * 1e3

    def as_json(self) -> dict[str, Any]:
        return {
            "fault": self.fault,
            "day_rows": self.day_rows,
            "day_bytes": self.day_bytes,
            "live_files": self.live_files,
            "compaction_seconds_per_million_rows": self.compaction,
            "queries": {
                " / ".join(key): {
                    "seconds": [each.seconds for each in costs],
                    "processor_seconds": [each.processor for each in costs],
                }
                for key, costs in self.costs.items()
            },
        }


# --- the tables -----------------------------------------------------------------------------------


class HistoryBuilder:
    """Creates the tables, with links to a few real files."""

    def __init__(self, folder: Path, rate: int = RATE, days: int = DAYS) -> None:
        from pyarrow import array

        self.folder = folder
        self._rate = rate
        self._days = days
        self.day_rows = rate * DAY
        self._step = 1_000_000 // rate
        names = [f"plant/line-{each // 100:02}/device-{each:04}/reading" for each in range(DEVICES)]
        self._topics = array(names)
        self._clients = array([f"device-{each:04}" for each in range(DEVICES)])
        self._payloads = payloads(PAYLOADS)
        self.topic = names[DEVICE]
        self.midnight = microseconds(TODAY)
        self.seconds_today = LARGE * LARGE_BATCHES + MEDIUM * MEDIUM_BATCHES + SMALL_BATCHES
        self.now = self.midnight + self.seconds_today * 1_000_000
        # Rows of the device in the last hour, in the hour of the past day, and in that day.
        self.in_last_hour = 0
        self.in_past_hour = 0
        self.in_past_day = 0
        self.result = HistoryTimes(day_rows=self.day_rows)

    @property
    def past(self) -> date:
        return TODAY - timedelta(days=PAST)

    def rows(self, first: int, count: int, begin: int) -> Any:
        """Rows of the table from a seq and a time on, in the order of receipt."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from semel.store.segments import schema

        def chosen(number: int, seed: int) -> Any:
            lottery = pc.multiply(pc.random(count, initializer=seed), number)
            return pc.cast(pc.floor(lottery), pa.int32())

        devices = chosen(DEVICES, first)
        places = pa.arange(0, count)
        received = pc.add(pc.multiply(places, self._step), begin)
        given = {
            "seq": pc.add(places, first),
            "node": pa.repeat(pa.scalar(NODE), count),
            "received": received,
            "topic": self._topics.take(devices),
            "payload": self._payloads.take(chosen(PAYLOADS, first + 2**40)),
            "qos": pa.repeat(pa.scalar(1, pa.int32()), count),
            "retain": pa.repeat(pa.scalar(False), count),
            "dup": pa.repeat(pa.scalar(False), count),
            "client_id": self._clients.take(devices),
            "packet_id": pc.add(devices, 1),
            "protocol_version": pa.repeat(pa.scalar(5, pa.int32()), count),
        }
        self._count(pc.filter(received, pc.equal(devices, DEVICE)))
        columns = [
            given[field.name].cast(field.type)
            if field.name in given
            else pa.nulls(count, field.type)
            for field in schema()
        ]
        table = pa.table(columns, schema=schema())
        return table.append_column("date", pc.cast(table.column("received"), pa.date32()))

    def _count(self, times: Any) -> None:
        """Count the rows of the device, by their times."""
        import pyarrow.compute as pc

        def between(since: int, until: int) -> int:
            inside = pc.and_(pc.greater_equal(times, since), pc.less(times, until))
            return int(pc.sum(inside, min_count=0).as_py())

        noon = microseconds(self.past) + DAY * 500_000
        self.in_last_hour += between(self.now - 3_600_000_000, self.now)
        self.in_past_hour += between(noon, noon + 3_600_000_000)
        self.in_past_day += between(microseconds(self.past), microseconds(self.past) + DAY * 10**6)

    def build(self) -> dict[tuple[str, str], Path]:
        """Create all tables, by span and order."""
        print(f"bench: making a day of {self.day_rows:,} rows …", file=sys.stderr)
        day = self._sources("day", self.past, self.day_rows, SOURCES)
        large = [self._large(number) for number in range(LARGE)]
        recent = list(self._recent())
        found = {}
        for order in ORDERS:
            pool = self.folder / "files" / order.replace(" ", "-")
            pool.mkdir(parents=True)
            # Processor time, because maintenance has the lowest priority anyway.
            began = time.process_time()
            one = self._compacted(day, order, pool)
            self.result.compaction[order] = (time.process_time() - began) / self.day_rows * 1e6
            self.result.day_bytes[order] = one.size
            today = [self._compacted(each, order, pool) for each in large]
            today += [self._written(each, order, pool) for each in recent]
            for span in SPANS:
                found[span, order] = self._table(span, order, pool, one, today)
            print(
                f"bench: {order}: {one.size:,} bytes per day, compacted by"
                f" {self.result.compaction[order]:.2f} processor seconds per million rows",
                file=sys.stderr,
            )
        return found

    def _sources(self, name: str, day: date, rows: int, files: int, second: int = 0) -> Path:
        """A table of files as landing writes them, which are to be compacted."""
        from deltalake import DeltaTable

        from bench.pipeline.aged import delta_schema
        from semel.pipeline.files import TableLayout, write_files

        place = self.folder / "sources" / name
        begin = microseconds(day) + second * 1_000_000
        first = self._seq(day, second)
        each = rows // files
        layout = TableLayout(str(place), ("date",))
        written: list[DataFile] = []
        for number in range(files):
            done = number * each
            made = self.rows(first + done, each, begin + done * self._step)
            written += write_files(made.to_batches(), layout)
        table = DeltaTable.create(place, delta_schema(), partition_by=["date"])
        table.create_write_transaction(
            [added(file) for file in written], "append", table.schema(), ["date"]
        )
        return place

    def _seq(self, day: date, second: int = 0) -> int:
        return ((day - TODAY).days + self._days) * self.day_rows + second * self._rate + 1

    def _large(self, number: int) -> Path:
        rows = LARGE_BATCHES * self._rate
        return self._sources(f"large-{number}", TODAY, rows, 10, second=number * LARGE_BATCHES)

    def _recent(self) -> Iterator[Any]:
        """The rows of the files of today that were merged once, and of those that were not."""
        second = LARGE * LARGE_BATCHES
        sizes = [MEDIUM_BATCHES] * MEDIUM + [1] * SMALL_BATCHES
        for batches in sizes:
            begin = self.midnight + second * 1_000_000
            rows = self.rows(self._seq(TODAY, second), batches * self._rate, begin)
            second += batches
            if batches > 1:
                yield rows
            else:
                half = rows.num_rows // FILES
                for part in range(FILES):
                    yield rows.slice(part * half, half)

    def _compacted(self, sources: Path, order: str, pool: Path) -> "DataFile":
        """The file into which compaction merges all files of a table."""
        from deltalake import DeltaTable

        from semel.pipeline.clustering import cluster_property
        from semel.pipeline.compaction import compact, plan_all
        from semel.pipeline.delta_log import DeltaLog
        from semel.pipeline.files import DataFile
        from semel.pipeline.live_files import list_files
        from semel.store.roots import open_root

        place = self.folder / "compacting"
        shutil.copytree(sources, place, copy_function=os.link)
        if order == CLUSTERED:
            DeltaTable(place).alter.set_table_properties(
                cluster_property(("topic",), {}), raise_if_not_exists=False
            )
        table = DeltaTable(place)
        done = compact(str(place), table, plan_all(list_files(table), 2**40))
        (action,) = DeltaLog(open_root(str(place))).entry(done.version).added
        name = Path(action["path"]).name
        (place / action["path"]).rename(pool / name)
        shutil.rmtree(place)
        return DataFile(
            path=name,
            size=action["size"],
            rows=done.rows,
            partition=action["partitionValues"],
            statistics=action["stats"],
            modified=action["modificationTime"],
            runs={},
        )

    @staticmethod
    def _written(rows: Any, order: str, pool: Path) -> "DataFile":
        """One file with these rows, as landing or a small merge writes it."""
        from semel.pipeline.files import TableLayout, write_files

        # A single batch is not merged yet.
        if order == CLUSTERED and rows.num_rows > 1_000:
            rows = rows.sort_by([("topic", "ascending"), ("seq", "ascending")])
        layout = TableLayout(str(pool), ("date",))
        (file,) = write_files(rows.combine_chunks().to_batches(), layout)
        name = Path(file.path).name
        (pool / file.path).rename(pool / name)
        return replace(file, path=name)

    def _table(
        self, span: str, order: str, pool: Path, day: "DataFile", today: "list[DataFile]"
    ) -> Path:
        from semel.pipeline.clustering import cluster_property

        place = self.folder / f"{span}-{order}".replace(" ", "-") / TABLE
        live = [self._linked(place, pool, file, TODAY) for file in today]
        if span == YEAR:
            for back in range(1, self._days):
                moved = earlier(day, days=back - PAST)
                live.append(self._linked(place, pool, moved, TODAY - timedelta(days=back)))
        count = round(LandSettings().file_retention) * FILES
        removed = [
            replace(today[-1], path=f"date={TODAY}/part-{number:032x}.removed.parquet")
            for number in range(count)
        ]
        self.result.live_files[span] = len(live)
        write_log(
            place,
            live,
            removed,
            version=DAY * (self._days if span == YEAR else 1),
            position=self._seq(TODAY, self.seconds_today),
            properties=cluster_property(("topic",) if order == CLUSTERED else (), {}),
        )
        return place

    @staticmethod
    def _linked(place: Path, pool: Path, file: "DataFile", day: date) -> "DataFile":
        path = f"date={day}/{file.path}"
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        os.link(pool / file.path, place / path)
        return replace(file, path=path, partition={"date": str(day)})

    def queries(self) -> list[HistoryQuery]:
        """The queries, with the numbers of rows that they must find."""
        noon = microseconds(self.past) + DAY * 500_000
        return [
            HistoryQuery(
                LAST_HOUR,
                since=self.now - 3_600_000_000,
                topic=self.topic,
                expected=self.in_last_hour,
                is_past=False,
            ),
            HistoryQuery(
                PAST_HOUR,
                since=noon,
                until=noon + 3_600_000_000,
                topic=self.topic,
                expected=self.in_past_hour,
            ),
            HistoryQuery(
                WEEK,
                since_day=self.past,
                topic=self.topic,
                # Without those of today, which are not counted.
                expected=self.in_past_day * PAST,
            ),
            HistoryQuery(
                TEN_MINUTES,
                since=noon,
                until=noon + 600_000_000,
                expected=600 * self._rate,
            ),
        ]


def added(file: "DataFile") -> Any:
    from deltalake.transaction import AddAction

    return AddAction(file.path, file.size, file.partition, file.modified, True, file.statistics)


def microseconds(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000


def moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


# --- engines --------------------------------------------------------------------------------------


def by_sql(place: Path, query: HistoryQuery) -> int:
    """The rows that `semel sql` finds; all of them read the payload, too."""
    from semel.up.sql import LakeSql

    conditions = [f"date < DATE '{TODAY}'"] if query.since_day is not None else []
    if query.since_day is not None:
        conditions.append(f"date >= DATE '{query.since_day}'")
    if query.topic is not None:
        conditions.append(f"topic = '{query.topic}'")
    if query.since is not None:
        conditions.append(f"received >= TIMESTAMPTZ '{moment(query.since).isoformat()}'")
    if query.until is not None:
        conditions.append(f"received < TIMESTAMPTZ '{moment(query.until).isoformat()}'")
    text = f"select count(payload) as n from messages where {' and '.join(conditions)}"
    with LakeSql(str(place.parent)) as lake, lake.query(text) as answer:
        return sum(row["n"] for batch in answer.batches for row in batch.to_pylist())


def by_polars(place: Path, query: HistoryQuery) -> int:
    """The rows that Polars finds."""
    import polars as pl

    rows = pl.scan_delta(str(place))
    if query.since_day is not None:
        rows = rows.filter(pl.col("date") >= query.since_day, pl.col("date") < TODAY)
    if query.topic is not None:
        rows = rows.filter(pl.col("topic") == query.topic)
    if query.since is not None:
        rows = rows.filter(pl.col("received") >= moment(query.since))
    if query.until is not None:
        rows = rows.filter(pl.col("received") < moment(query.until))
    return int(rows.select(pl.col("payload").count()).collect().item())


def by_spark(bench: Bench, place: Path, query: HistoryQuery) -> int:
    """The rows that Spark finds. It takes partitions from the date alone, so that is given."""
    from pyspark.sql import functions as sf

    from semel.pipeline import read_table

    rows = read_table(bench.spark, str(place))
    if query.since_day is not None:
        rows = rows.where((sf.col("date") >= query.since_day) & (sf.col("date") < TODAY))
    if query.topic is not None:
        rows = rows.where(sf.col("topic") == query.topic)
    if query.since is not None:
        first = moment(query.since)
        rows = rows.where((sf.col("received") >= first) & (sf.col("date") >= first.date()))
    if query.until is not None:
        last = moment(query.until)
        rows = rows.where((sf.col("received") < last) & (sf.col("date") <= last.date()))
    return _count(rows)


def by_filters(bench: Bench, place: Path, query: HistoryQuery, *, native: bool) -> int:
    """The same by filters, without the date beside the time; or by the format itself."""
    from semel.pipeline import read_table
    from semel.pipeline.table_filters import filters_as_text

    filters: list[tuple[str, str, Any]] = []
    if query.since_day is not None:
        filters += [("date", ">=", query.since_day), ("date", "<", TODAY)]
    if query.topic is not None:
        filters.append(("topic", "=", query.topic))
    if query.since is not None:
        filters.append(("received", ">=", moment(query.since)))
    if query.until is not None:
        filters.append(("received", "<", moment(query.until)))
    if native:
        return _count(read_table(bench.spark, str(place), filters=filters))
    reader = bench.spark.read.format("semel_delta").option("filters", filters_as_text(filters))
    return _count(reader.schema("payload BINARY").load(str(place)))


def _count(rows: "DataFrame") -> int:
    from pyspark.sql import functions as sf

    found = rows.agg(sf.count("payload")).first()
    assert found is not None
    return int(found[0])


# --- measuring ------------------------------------------------------------------------------------


def measure_history(bench: Bench, rate: int = RATE, rounds: int = ROUNDS) -> HistoryTimes:
    """Create the tables, and query them in turn."""
    from semel.pipeline.errors import PipelineError

    folder = bench.folder / HISTORY
    folder.mkdir()
    builder = HistoryBuilder(folder, rate)
    result = builder.result
    try:
        places = builder.build()
        engines: dict[str, Callable[[Path, HistoryQuery], int]] = {
            SQL: by_sql,
            POLARS: by_polars,
            SPARK: lambda place, query: by_spark(bench, place, query),
            FILTERED: lambda place, query: by_filters(bench, place, query, native=True),
            FORMAT: lambda place, query: by_filters(bench, place, query, native=False),
        }
        for query in builder.queries():
            for engine, run in engines.items():
                _measure_query(result, places, query, engine, run, rounds)
    except (WrongCount, PipelineError, OSError) as problem:
        result.fault = str(problem)
    shutil.rmtree(folder)
    return result


def _measure_query(
    result: HistoryTimes,
    places: dict[tuple[str, str], Path],
    query: HistoryQuery,
    engine: str,
    run: Callable[[Path, HistoryQuery], int],
    rounds: int,
) -> None:
    for number in range(rounds + 1):
        for (span, order), place in places.items():
            if query.is_past and span == ONE_DAY:
                continue
            found: list[int] = []
            cost = measured(partial(_run, run, place, query, found))
            if found != [query.expected]:
                raise WrongCount(
                    f"{query.name}, {engine}, {span}, {order}: {found[0]:,} rows instead of"
                    f" {query.expected:,}"
                )
            # The first round is a warm-up.
            if number:
                key = (query.name, engine, span, order)
                result.costs.setdefault(key, []).append(cost)
    shown = {
        f"{span}, {order}": result.median(query.name, engine, span, order) for span, order in places
    }
    times = ", ".join(f"{name} {in_words(each)}" for name, each in shown.items() if each)
    print(f"bench: {query.name}, {engine}: {times} ms", file=sys.stderr)


def _run(
    run: Callable[[Path, HistoryQuery], int], place: Path, query: HistoryQuery, found: list[int]
) -> None:
    found.append(run(place, query))


def in_words(cost: Cost | None) -> str:
    """Milliseconds, and in brackets those of the processor."""
    if cost is None:
        return ""
    return f"{cost.seconds * 1e3:,.0f} ({cost.processor * 1e3:,.0f})"


# --- report ---------------------------------------------------------------------------------------


def lines(result: HistoryTimes) -> list[str]:
    """Markdown."""
    if result.fault:
        return [f"{HISTORY}: ⚠ {result.fault}"]
    columns = [(span, order) for span in SPANS for order in ORDERS]
    output = [
        "| ms (of the processor) | | "
        + " | ".join(f"{span}, {order}" for span, order in columns)
        + " |",
        "|---|---|" + "---:|" * len(columns),
    ]
    for query in (LAST_HOUR, PAST_HOUR, WEEK, TEN_MINUTES):
        for engine in ENGINES:
            found = [result.median(query, engine, span, order) for span, order in columns]
            output.append(f"| {query} | {engine} | {' | '.join(map(in_words, found))} |")
    files = ", ".join(f"{name} {count:,}" for name, count in result.live_files.items())
    sizes = ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in result.day_bytes.items())
    costs = ", ".join(f"{name} {each:.2f}" for name, each in result.compaction.items())
    return [
        *output,
        "",
        f"{result.day_rows:,} rows per day of {DEVICES:,} devices ({sizes}); live files: {files};"
        f" processor seconds to compact a million rows: {costs}.",
    ]


def targets(result: HistoryTimes) -> list[str]:
    """By the processor time of `semel sql`, medians."""
    if result.fault:
        return [f"✗ {HISTORY}: {result.fault}"]
    day = result.milliseconds(LAST_HOUR, SQL, ONE_DAY, CLUSTERED) or 1e-9
    year = result.milliseconds(LAST_HOUR, SQL, YEAR, CLUSTERED)
    plain = result.milliseconds(WEEK, SQL, YEAR, PLAIN)
    clustered = result.milliseconds(WEEK, SQL, YEAR, CLUSTERED) or 1e-9
    output = []
    for sentence, value, is_met in (
        (
            f"the last hour of one device in a year takes at most {YEAR_TARGET:g} times that in"
            " one day",
            year / day,
            year / day <= YEAR_TARGET,
        ),
        (
            f"a week of one device takes at least {WEEK_TARGET:g} times as long if rows are not"
            " sorted by topic",
            plain / clustered,
            plain / clustered >= WEEK_TARGET,
        ),
    ):
        output.append(f"{'✓' if is_met else '✗'} {HISTORY}: {sentence}: {value:.2f}")
    return output

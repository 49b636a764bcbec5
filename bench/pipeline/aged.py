"""The cost of a commit and of a query on a table that is a year old, compared with a new one.

The year is that of a landing with a batch per second, of RATE messages in FILES files, with its
maintenance. The table is created directly: the log and the files as they would be at the worst
moment before a maintenance pass:

    each past day    files of the target size, the last one smaller
    today            as many files as compaction leaves, of each size class
    removed files    those of the last `file_retention`, which the checkpoint lists
    the log          `log_entries`, those since the last cleanup, and checkpoints

The new table has only the newest of these files. Files of past days exist only in the log: a query
about today must not open them. Both tables get the same commits in turn, by an object that stays
loaded, as in Spark's process; and the same queries, each by a new `LakeSql`, as with `semel sql`.
"""

import json
import os
import shutil
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.pipeline.commits import parts
from bench.pipeline.segments import BEGIN, NODE, STEP, STREAM, group, numbered
from semel.pipeline.settings import LandSettings

if TYPE_CHECKING:
    from semel.pipeline.files import DataFile

NEW: Final = "new"
AGED: Final = "aged"
TABLE: Final = "messages"
DAYS: Final = 365
RATE: Final = 100
FILES: Final = 2
# Bytes per row in a file of the target size, as compaction writes it.
ROW_BYTES: Final = 75
# Files of today that were merged twice: a hundred that were merged once become one.
LARGE: Final = 4
LARGE_BYTES: Final = 75_000_000
# Batches since the last checkpoint, and since the last cleanup of the log.
SINCE_CHECKPOINT: Final = 60
SINCE_CLEANUP: Final = 160
COMMITS: Final = 150
QUERIES: Final = 40
WARM_UP: Final = 5
TARGET: Final = 2.0
# The newest minute and a half, by topic.
QUERY: Final = (
    "select topic, count(*), max(received) from messages where received >= {since} group by 1"
)
DAY: Final = 86_400


@dataclass
class Side:
    """The times of one of the two tables, in milliseconds."""

    commits: list[float] = field(default_factory=list)
    queries: list[float] = field(default_factory=list)
    # The state of the table before the first commit.
    files: int = 0
    log_files: int = 0
    removed: int = 0


@dataclass
class Aged:
    """Both tables, and the duration of a maintenance pass on the old one."""

    new: Side = field(default_factory=Side)
    aged: Side = field(default_factory=Side)
    pass_seconds: float = 0.0
    pass_actions: list[str] = field(default_factory=list)
    fault: str = ""

    def ratio(self, what: str) -> float:
        """The ratio of the 95th percentiles, old to new."""
        return parts(getattr(self.aged, what))[1] / max(parts(getattr(self.new, what))[1], 1e-9)

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"fault": self.fault, "pass_seconds": self.pass_seconds}
        for name, side in ((NEW, self.new), (AGED, self.aged)):
            found[name] = {
                "live_files": side.files,
                "log_files": side.log_files,
                "removed_files": side.removed,
                "commit_ms": parts(side.commits),
                "query_ms": parts(side.queries),
            }
        return found


# --- the tables -----------------------------------------------------------------------------------


class Builder:
    """Creates both tables from copies of a few files."""

    def __init__(self, folder: Path) -> None:
        from semel.pipeline.files import UNIQUE, TableLayout, write_files

        self.folder = folder
        self._base = group(RATE * FILES)
        self._today = datetime.fromtimestamp(BEGIN / 1e6, UTC).date()
        self._next = 1
        address = str(folder / "made")
        # One batch as tasks write it, and one file as compaction makes it from a hundred batches.
        self._layout = TableLayout(address, ("date",), numbering=UNIQUE)
        self._small = [self._write(write_files, RATE // FILES) for _ in range(FILES)]
        self._merged = self._write(write_files, RATE * 100)

    def _write(self, write_files: Any, rows: int) -> "DataFile":
        from pyarrow import compute

        base = group(rows)
        table = numbered(base, self._next, rows)
        self._next += rows
        table = table.append_column("date", compute.cast(table.column("received"), "date32"))
        written: DataFile = write_files(table.to_batches(), self._layout)[0]
        return written

    def batch(self, place: Path, number: int, first: int) -> "tuple[list[DataFile], int]":
        """Create the files of one batch under new names; also returns the seq after its last."""
        found = []
        for each in self._small:
            path = each.path.replace("part-", f"part-{number:010}-")
            target = place / path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(self.folder / "made" / each.path, target)
            last = first + each.rows - 1
            found.append(replace(each, path=path, runs={NODE: [(first, last)]}))
            first = last + 1
        return found, first

    def build(self, name: str, side: Side) -> Path:
        """Create a table, and record its size."""
        from deltalake import DeltaTable

        place = self.folder / name / TABLE
        live = self._today_files(place, is_aged=name == AGED)
        removed: list[DataFile] = []
        if name == AGED:
            live += self._older_files()
            removed = self._removed_files()
        version = DAYS * DAY if name == AGED else 1
        write_log(place, live, removed, version=version, position=self._next)
        table = DeltaTable(place)
        side.files = len(table.file_uris())
        side.removed = len(removed)
        side.log_files = len(list((place / "_delta_log").iterdir()))
        return place

    def _today_files(self, place: Path, *, is_aged: bool) -> "list[DataFile]":
        """Files that are not merged yet; in an old table also those merged today."""
        settings = LandSettings()
        found: list[DataFile] = []
        for number in range(settings.small_files // FILES - 1):
            found += self.batch(place, number, 1)[0]
        if not is_aged:
            return found
        # Earlier today: the query does not need their rows.
        for number in range(settings.small_files - 1):
            path = self._merged.path.replace("part-", f"part-merged-{number:04}-")
            os.link(self.folder / "made" / self._merged.path, place / path)
            found.append(replace(earlier(self._merged, hours=6), path=path))
        for number in range(LARGE):
            found.append(
                replace(
                    earlier(self._merged, hours=12),
                    path=f"date={self._today}/part-large-{number}.parquet",
                    size=LARGE_BYTES,
                )
            )
        return found

    @staticmethod
    def _files_of_a_day() -> int:
        return -(-RATE * DAY * ROW_BYTES // LandSettings().target_file_size)

    def _older_files(self) -> "list[DataFile]":
        found = []
        for back in range(1, DAYS):
            day = self._today - timedelta(days=back)
            known = earlier(self._merged, days=back)
            for number in range(self._files_of_a_day()):
                found.append(
                    replace(
                        known,
                        path=f"date={day}/part-{number:032x}.zstd.parquet",
                        size=LandSettings().target_file_size,
                        partition={"date": str(day)},
                    )
                )
        return found

    def _removed_files(self) -> "list[DataFile]":
        count = round(LandSettings().file_retention) * FILES
        return [
            replace(self._small[0], path=f"date={self._today}/part-{number:032x}.removed.parquet")
            for number in range(count)
        ]


def earlier(file: "DataFile", *, hours: float = 0.0, days: int = 0) -> "DataFile":
    """A file whose statistics say that its rows were received earlier."""
    stats = json.loads(file.statistics)
    for bounds in ("minValues", "maxValues"):
        moment = datetime.fromisoformat(stats[bounds]["received"])
        moved = moment - timedelta(hours=hours, days=days)
        stats[bounds]["received"] = moved.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return replace(file, statistics=json.dumps(stats, ensure_ascii=False))


def write_log(
    place: Path,
    live: "list[DataFile]",
    removed: "list[DataFile]",
    *,
    version: int,
    position: int,
    properties: dict[str, str] | None = None,
) -> None:
    """A checkpoint of everything at a version, the kept entries before it, and some after it.

    With version 1 there is only what a new table has. `position` is the last seq that has landed.
    """
    from deltalake import DeltaTable

    from semel.pipeline.app_transactions import position_id
    from semel.pipeline.delta_log import COMMIT_MARKER, log_entry
    from semel.pipeline.table import Table

    made = place.with_name("making")
    log = place / "_delta_log"
    Table(str(made)).create(delta_schema(), ("date",), STREAM)
    entry = [
        {"commitInfo": {"timestamp": _now(), "operation": "WRITE", COMMIT_MARKER: "100"}},
        {"txn": {"appId": position_id(STREAM, NODE), "version": position}},
    ]
    added = [{"add": _add(each)} for each in live]
    gone = [{"remove": _remove(each)} for each in removed]
    _write_entry(made / "_delta_log" / log_entry(1), [*entry, *added, *gone])
    DeltaTable(made).alter.set_table_properties(
        {
            "delta.deletedFileRetentionDuration": "interval 6 hours",
            "delta.checkpointInterval": "1000",
            **(properties or {}),
        },
        raise_if_not_exists=False,
    )
    if version == 1:
        (made / "_delta_log").rename(log)
        made.rmdir()
        return
    DeltaTable(made).create_checkpoint()
    log.mkdir(parents=True)
    checkpoint = made / "_delta_log" / f"{2:020}.checkpoint.parquet"
    hint = json.loads((made / "_delta_log" / "_last_checkpoint").read_text())
    last = version + SINCE_CHECKPOINT
    oldest = last - LandSettings().log_entries - SINCE_CLEANUP
    for each in range(oldest, last + 1):
        _write_entry(log / log_entry(each), entry)
        if each <= version and (version - each) % 100 == 0:
            os.link(checkpoint, log / f"{each:020}.checkpoint.parquet")
    (log / "_last_checkpoint").write_text(json.dumps({**hint, "version": version}))
    shutil.rmtree(made)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _add(file: "DataFile") -> dict[str, Any]:
    return {
        "path": file.path,
        "partitionValues": file.partition,
        "size": file.size,
        "modificationTime": _now(),
        "dataChange": True,
        "stats": file.statistics,
    }


def _remove(file: "DataFile") -> dict[str, Any]:
    return {
        "path": file.path,
        "partitionValues": file.partition,
        "size": file.size,
        "deletionTimestamp": _now(),
        "dataChange": False,
        "extendedFileMetadata": True,
    }


def _write_entry(path: Path, actions: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in actions), "utf-8")


def _spark_schema() -> str:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import DateType, StructType

    from semel.store.segments import schema

    return StructType([*from_arrow_schema(schema()).fields]).add("date", DateType()).json()


def delta_schema() -> Any:
    from semel.pipeline.table_schema import rows_schema

    return rows_schema(_spark_schema())


# --- measuring ------------------------------------------------------------------------------------


def measure_aged(folder: Path) -> Aged:
    """Measure both tables in turn."""
    from semel.pipeline.errors import PipelineError

    result = Aged()
    folder = folder / "years"
    folder.mkdir()
    builder = Builder(folder)
    sides = {NEW: result.new, AGED: result.aged}
    places = {name: builder.build(name, side) for name, side in sides.items()}
    try:
        for name in (NEW, AGED):
            print(
                f"bench: {name}: {sides[name].files:,} live files, {sides[name].removed:,} "
                f"removed, {sides[name].log_files:,} in the log",
                file=sys.stderr,
            )
        measure_queries(places, sides)
        measure_commits(builder, places, sides)
        measure_pass(places[AGED], result)
    except (PipelineError, OSError) as problem:
        result.fault = str(problem)
    for what in ("commits", "queries"):
        new, aged = (statistics.median(getattr(side, what)) for side in sides.values())
        print(f"bench: {what}: {new:.1f} ms new, {aged:.1f} ms aged", file=sys.stderr)
    return result


def measure_queries(places: dict[str, Path], sides: dict[str, Side]) -> None:
    """The same query, each time to a newly opened lake."""
    from semel.up.sql import LakeSql

    since = datetime.fromtimestamp((BEGIN + STEP) / 1e6, UTC).isoformat()
    query = QUERY.format(since=f"TIMESTAMPTZ '{since}'")
    counted: dict[str, int] = {}
    for number in range(WARM_UP + QUERIES):
        for name, place in places.items():
            began = time.perf_counter()
            with LakeSql(str(place.parent)) as lake, lake.query(query) as answer:
                rows = sum(batch.num_rows for batch in answer.batches)
            if number >= WARM_UP:
                sides[name].queries.append((time.perf_counter() - began) * 1e3)
            counted[name] = rows
    if counted[NEW] != counted[AGED]:
        raise OSError(f"the query found {counted[NEW]} and {counted[AGED]} rows")


def measure_commits(builder: Builder, places: dict[str, Path], sides: dict[str, Side]) -> None:
    """Commit batches of FILES files to both tables in turn."""
    from semel.pipeline.table import LandingBatch, Table

    schema = _spark_schema()
    tables = {name: Table(str(place)) for name, place in places.items()}
    firsts = {}
    for name, table in tables.items():
        firsts[name] = table.positions(STREAM, [NODE])[NODE] + 1
    for number in range(WARM_UP + COMMITS):
        for name, table in tables.items():
            files, after = builder.batch(places[name], 1_000_000 + number, firsts[name])
            firsts[name] = after
            batch = LandingBatch(
                files, schema, ("date",), query="bench", number=number, stream=STREAM
            )
            began = time.perf_counter()
            table.commit(batch)
            if number >= WARM_UP:
                sides[name].commits.append((time.perf_counter() - began) * 1e3)


def measure_pass(place: Path, result: Aged) -> None:
    """One maintenance pass with default settings, and its vacuum."""
    from semel.pipeline.landing_plan import policy_of
    from semel.pipeline.maintenance import Task, run_pass

    policy = policy_of(LandSettings())
    assert policy is not None
    events: list[dict[str, Any]] = []
    began = time.perf_counter()
    run_pass(Task(str(place), policy, vacuum=True), events.append)
    result.pass_seconds = time.perf_counter() - began
    result.pass_actions = [event["action"] for event in events]


# --- report ---------------------------------------------------------------------------------------


def lines(result: Aged) -> list[str]:
    """Markdown."""
    if result.fault:
        return [f"aged: ⚠ {result.fault}"]
    output = [
        "| a batch a second | live files | removed files | files of the log | commit ms median "
        "| 95 % | query ms median | 95 % |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, side in (("new table", result.new), (f"{DAYS} days", result.aged)):
        figures = [*parts(side.commits), *parts(side.queries)]
        output.append(
            f"| {name} | {side.files:,} | {side.removed:,} | {side.log_files:,} | "
            + " | ".join(f"{each:.1f}" for each in figures)
            + " |"
        )
    actions = ", ".join(result.pass_actions) or "nothing"
    return [*output, "", f"One pass of maintenance ({actions}): {result.pass_seconds:.1f} s."]


def targets(result: Aged) -> list[str]:
    """By the 95th percentiles."""
    if result.fault:
        return [f"✗ aged: {result.fault}"]
    output = []
    for what, name in (("commits", "commit"), ("queries", "query")):
        ratio = result.ratio(what)
        sign = "✓" if ratio <= TARGET else "✗"
        output.append(
            f"{sign} aged: 95 % of {name} of a table of {DAYS} days at most {TARGET:g} times that "
            f"of a new one: {ratio:.2f}"
        )
    return output

"""Where a landing lands: one table with all columns of the record, the tables of a landing file, or
those of Sparkplug messages.

All run one query of Spark, and all take from the tables what has landed. They differ in the
checkpoint. One table keeps its checkpoint over restarts, which is compared with the table. Several
tables can be at different positions, for instance if one of them is new: each start uses a new
checkpoint, which begins with the first message that any of the tables lacks.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from semel.counts import count
from semel.pipeline.app_transactions import dead_prefix, position_id, positions_in, stream_id
from semel.pipeline.commit_probe import probe
from semel.pipeline.errors import DataLoss, OptionError, PipelineError, TableError
from semel.pipeline.landing_plan import LandingPlan, landing_table
from semel.pipeline.maintenance_process import Policy
from semel.pipeline.resuming import check_resumable
from semel.pipeline.source_columns import DATE, UTC_DATE
from semel.pipeline.stream_check import check_landed
from semel.pipeline.stream_record import StreamRecord
from semel.pipeline.table import Table

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from semel.pipeline.sparkplug.batches import SparkplugLanding
    from semel.pipeline.tables_sink import TablesPlan

LOG: Final = logging.getLogger("semel.pipeline")

# The name of the metric with the time of the newest message of a batch.
OBSERVED: Final = "landing"
# The prefix of the checkpoints of single runs.
_RUN: Final = "run-"
_LOCK: Final = "lock"


@dataclass
class WatchedTable:
    """A table of a landing, and how far its log was read."""

    name: str
    table: Table
    # How it is maintained; None: it is not.
    policy: Policy | None
    # Whether its rows are those of the stream, so that it has positions.
    has_positions: bool = True
    # Of dead letters: the stream, and the tables whose dead letters count.
    letters_of: tuple[str, tuple[str, ...]] | None = None
    version: int = -1
    # The rows that it had when the landing started.
    rows_before: int = 0
    positions: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Read the log up to now."""
        loaded = self.table.load()
        if loaded is not None:
            self.version = loaded.version()
            self.rows_before = self._rows_in(loaded)

    def _rows_in(self, loaded: "DeltaTable") -> int:
        from semel.pipeline.dead_letters import count_letters
        from semel.pipeline.delta_errors import table_errors

        if self.letters_of is None:
            return loaded.count()
        with table_errors(self.table.address):
            return count_letters(loaded, *self.letters_of)

    def needs_pass(self, clock: Callable[[], float] | None) -> bool:
        """Whether a single pass of maintenance is worthwhile; `clock` is that of retention."""
        from semel.pipeline.table_retention import aged_files, expired_files

        loaded = self.table.load()
        if loaded is None or self.policy is None:
            return False
        if len(loaded.file_uris()) >= self.policy.small_files:
            return True
        retention = self.policy.retention
        if retention is None or clock is None:
            return False
        return bool(expired_files(aged_files(loaded), retention, now=clock()))

    def newest_received(self) -> float | None:
        """When the newest row was received, in seconds since 1970; None: unknown. Loads the table.

        Can be called by any thread. Raises TableError.
        """
        from semel.pipeline.delta_errors import table_errors
        from semel.pipeline.table_retention import newest_received

        # An error of another kind would end the thread that maintains the table.
        with table_errors(self.table.address):
            loaded = Table(self.table.address).load()
            return None if loaded is None else newest_received(loaded)

    def read_positions(self, stream: str, nodes: Iterable[str]) -> None:
        """Read the positions of these nodes."""
        loaded = self.table.load()
        if loaded is not None and self.has_positions:
            self.positions |= positions_in(loaded, stream, nodes)

    def new_rows(self, stream: str, nodes: Iterable[str]) -> int:
        """The rows that landed since the last call. Updates version and positions."""
        self.read_positions(stream, nodes)
        loaded = self.table.load()
        if loaded is None:
            return 0
        if loaded.version() <= self.version:
            return 0
        commits = islice(self.table.log().back(loaded.version()), loaded.version() - self.version)
        self.version = loaded.version()
        return sum(each.rows_landed for each in commits)


class OneTable:
    """A table with all columns of the record."""

    def __init__(self, plan: LandingPlan) -> None:
        self.plan = plan
        self.watched = [WatchedTable(plan.table, Table(plan.table), plan.maintenance)]

    def check(self) -> None:
        """Check, before Spark starts, that table and checkpoint fit. Raises PipelineError."""
        plan = self.plan
        check_table(plan, plan.table)
        check_resumable(
            self.watched[0].table,
            StreamRecord(plan.root_address, plan.stream),
            plan.stream,
            plan.checkpoint,
            may_skip=not plan.fail_on_data_loss,
        )
        probe(plan.table)

    def start(self, spark: "SparkSession", *, once: bool) -> "StreamingQuery":
        """Start the query."""
        from pyspark.sql import functions

        plan = self.plan
        landed = self.watched[0].table.positions(plan.stream, plan.root.nodes(plan.stream))
        messages = read_messages(spark, plan, landed)
        rows = observed(messages.withColumn(DATE, functions.expr(UTC_DATE)))
        writer = (
            rows.writeStream.format("semel_delta")
            .option("path", plan.table)
            .option("partitionBy", DATE)
            .option("stream", plan.stream)
            .option("root", plan.root_address)
            .option("mergeSchema", "true")
            .option("failOnDataLoss", _text(plan.fail_on_data_loss))
            .option("checkpointLocation", str(plan.checkpoint))
        )
        return with_trigger(writer, plan, once=once).start()

    def positions(self, done: Mapping[str, int] | None = None) -> dict[str, int]:
        """How far each node has landed; `done` is the end of the last batch."""
        return self.watched[0].positions

    @contextmanager
    def running(self) -> Iterator[None]:
        """Nothing: Spark itself notices two queries with one checkpoint."""
        yield

    def finish(self) -> None:
        """Nothing: each batch has advanced the table."""


class RunCheckpoints:
    """A folder with a checkpoint for each run, which one landing at a time may use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder during the block. Raises PipelineError if another landing has it."""
        import fcntl

        folder = self._folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except OSError as problem:
            raise PipelineError(
                f"the checkpoint {folder} cannot be used: {problem.strerror}: {problem.filename};"
                " remove it, or give another (--checkpoint): the tables know what has landed"
            ) from None
        with open(descriptor, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineError(
                    f"another landing uses the checkpoint {folder}: give one of them another"
                    " (--checkpoint)"
                ) from None
            try:
                yield
            finally:
                self._remove()

    def new(self) -> Path:
        """The checkpoint of a new run. Those of earlier runs are removed."""
        self._remove()
        return self._folder / f"{_RUN}{time.time_ns()}"

    def _remove(self) -> None:
        with suppress(OSError):
            for old in self._folder.glob(f"{_RUN}*"):
                shutil.rmtree(old, ignore_errors=True)


class FileTables:
    """The tables of a landing file, and the table of its dead letters."""

    def __init__(self, plan: LandingPlan) -> None:
        assert plan.file is not None
        self.plan = plan
        self.file = plan.file
        names = [each.name for each in self.file.tables]
        self.addresses = [landing_table(plan.lake, name) for name in names]
        self.watched = [
            WatchedTable(
                each.name,
                Table(address),
                table_policy(plan, cluster_by=each.cluster_by, retention=each.retention),
            )
            for each, address in zip(self.file.tables, self.addresses, strict=True)
        ]
        self._checkpoints = RunCheckpoints(plan.checkpoint)
        # What the sink of the last query was given.
        self._passed: TablesPlan | None = None
        self.dead_letters = landing_table(plan.lake, self.file.dead_letters)
        self.watched.append(
            WatchedTable(
                self.file.dead_letters,
                Table(self.dead_letters),
                table_policy(plan, retention=self.file.dead_letters_retention),
                has_positions=False,
                # A backfill lands one table, and the lake has the dead letters of all.
                letters_of=(plan.stream, tuple(names)),
            )
        )

    def check(self) -> None:
        """Check all tables before Spark starts. Raises PipelineError."""
        *tables, letters = self.watched
        check_letters_log(self.plan, letters)
        for each in tables:
            check_landed_table(self.plan, each)
            check_letters_of(self.plan, letters, each, each.name)
        for address in (*self.addresses, self.dead_letters):
            probe(address)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Lock the checkpoint during the block. Raises PipelineError if another landing has it."""
        with self._checkpoints.locked():
            yield

    def start(self, spark: "SparkSession", *, once: bool) -> "StreamingQuery":
        """Start the query."""
        from semel.pipeline.dead_letters import schema_json
        from semel.pipeline.landing_check import check_clusters, check_dead_letters, fit_of
        from semel.pipeline.table_rows import needed_columns, rows_of_tables, without_ansi
        from semel.pipeline.tables_sink import NAME, TablesPlan, TablesSink

        plan = self.plan
        spark.dataSource.register(TablesSink)
        checkpoint = self._checkpoints.new()
        nodes = plan.root.nodes(plan.stream)
        landed = {
            each.name: each.table.positions(plan.stream, nodes)
            for each in self.watched
            if each.has_positions
        }
        first = lowest_positions(list(landed.values()))
        self._report_behind(landed, first)
        start = plan.begin_at if plan.begin_at is not None and not any(landed.values()) else None
        messages = read_messages(
            spark, plan, first, start=start, columns=needed_columns(self.file.tables)
        )
        with without_ansi(spark):
            rows, shapes = rows_of_tables(messages, self.file.tables, landed)
            check_clusters(self.file.tables, shapes)
            for shape in shapes:
                _, problem = fit_of(plan, shape)
                if problem is not None:
                    raise OptionError(problem)
            letters = schema_json(messages.columns)
            check_dead_letters(plan, letters)
            passed = TablesPlan(
                stream=plan.stream,
                root=plan.root_address,
                checkpoint=str(checkpoint),
                may_skip=not plan.fail_on_data_loss,
                addresses=tuple(self.addresses),
                dead_letters=self.dead_letters,
                dead_letters_name=self.file.dead_letters,
                dead_letters_schema=letters,
                shapes=tuple(shapes),
                begins_anywhere=start is not None,
                landed=tuple(landed[each.name] for each in self.file.tables),
            )
            self._passed = passed
            writer = (
                observed(rows)
                .writeStream.format(NAME)
                .option("plan", passed.to_json())
                .option("checkpointLocation", str(checkpoint))
            )
            return with_trigger(writer, plan, once=once).start()

    def positions(self, done: Mapping[str, int] | None = None) -> dict[str, int]:
        """How far each node has landed in all tables; `done` is the end of the last batch."""
        return positions_in_all(self.watched, done)

    def finish(self) -> None:
        """Advance tables that had no rows in the last batches to where the query has ended."""
        from semel.pipeline.tables_sink import advance

        if self._passed is not None:
            advance(self._passed)

    def _report_behind(
        self, landed: Mapping[str, Mapping[str, int]], first: Mapping[str, int]
    ) -> None:
        """Warn if some tables must wait for others that have fewer messages."""
        line = behind_line({name: sum(each.values()) for name, each in landed.items()}, first)
        if line is not None:
            LOG.warning("%s", line)


def behind_line(landed: Mapping[str, int], first: Mapping[str, int]) -> str | None:
    """Which tables the others wait for, from the messages that each has, or None.

    `first` is where the query begins.
    """
    rows = max(landed.values(), default=0) - sum(first.values())
    least = min(landed.values(), default=0)
    late = [name for name, each in landed.items() if each == least]
    if rows <= 0 or len(late) == len(landed):
        return None
    names, number = ", ".join(late), count(rows, "message")
    is_one = len(late) == 1
    others = "table" if len(landed) - len(late) == 1 else "tables"
    wait = "waits" if others == "table" else "wait"
    line = (
        f"{'table' if is_one else 'tables'} {names} {'is' if is_one else 'are'} {number} behind the"
        f" other {others}, which {wait} for {'it' if is_one else 'them'}"
    )
    if least:
        return line
    return f"{line}; `semel land backfill` fills a new table while the landing runs"


class SparkplugTarget:
    """The tables of Sparkplug messages. `sparkplug/batches.py` says why they are exact."""

    def __init__(self, plan: LandingPlan) -> None:
        assert plan.sparkplug is not None
        self.plan = plan
        self.tables = plan.sparkplug
        self.watched = [
            WatchedTable(
                name,
                Table(landing_table(plan.lake, name)),
                table_policy(plan, cluster_by=self.tables.cluster_by(name)),
                has_positions=has_positions,
            )
            for names, has_positions in (
                (self.tables.names, True),
                ((self.tables.dead_letters,), False),
            )
            for name in names
        ]
        self._checkpoints = RunCheckpoints(plan.checkpoint)
        self._landing: SparkplugLanding | None = None

    def check(self) -> None:
        """Check all tables before Spark starts. Raises PipelineError and MissingExtra."""
        from semel.pipeline.sparkplug.protobuf_schema import payload_class

        payload_class()
        plan = self.plan
        nodes = plan.root.nodes(plan.stream)
        for each in self.watched:
            if each.has_positions:
                check_landed_table(plan, each)
                each.read_positions(plan.stream, nodes)
            else:
                check_letters_log(plan, each)
            probe(each.table.address)
        *others, state, letters = self.watched
        check_letters_of(plan, letters, state, self.tables.prefix)
        for each in others:
            if any(each.positions.get(node, 0) < seq for node, seq in state.positions.items()):
                raise TableError(
                    f"{each.table.shown} lacks messages that {state.table.shown} has: one of them"
                    f" was deleted or replaced; delete {state.table.shown}, and landing begins with"
                    " the record again and adds what is missing"
                )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Lock the checkpoint during the block. Raises PipelineError if another landing has it."""
        with self._checkpoints.locked():
            yield

    def start(self, spark: "SparkSession", *, once: bool) -> "StreamingQuery":
        """Start the query."""
        from pyspark.sql import functions

        from semel.pipeline.checkpoint import spans_since_start
        from semel.pipeline.sparkplug.batches import MAX_MESSAGES, SparkplugLanding
        from semel.pipeline.sparkplug.payload import NAMESPACE
        from semel.pipeline.sparkplug.rows import RECORD_COLUMNS

        checkpoint = self._checkpoints.new()
        landing = SparkplugLanding(self.plan, self.tables)
        plan = replace(self.plan, max_rows=min(self.plan.max_rows, MAX_MESSAGES))
        columns = [name for name in RECORD_COLUMNS if name != DATE]
        messages = read_messages(spark, plan, landing.positions, columns=columns)
        rows = observed(messages.withColumn(DATE, functions.expr(UTC_DATE)))

        def land(batch: "DataFrame", number: int) -> None:
            ours = batch.where(functions.col("topic").startswith(NAMESPACE))
            landing.land(ours.toArrow(), spans_since_start(checkpoint, number))

        self._landing = landing
        writer = rows.writeStream.foreachBatch(land).option("checkpointLocation", str(checkpoint))
        return with_trigger(writer, plan, once=once).start()

    def positions(self, done: Mapping[str, int] | None = None) -> dict[str, int]:
        """How far each node has landed in all tables; `done` is the end of the last batch."""
        return positions_in_all(self.watched, done)

    def finish(self) -> None:
        """Advance the tables to where the query has ended."""
        if self._landing is not None:
            self._landing.finish()


LandingTarget = OneTable | FileTables | SparkplugTarget


def table_policy(
    plan: LandingPlan, *, cluster_by: tuple[str, ...] = (), retention: float | None = None
) -> Policy | None:
    """How one of several tables is maintained."""
    if plan.maintenance is None:
        return None
    return replace(plan.maintenance, cluster_by=cluster_by, retention=retention)


def positions_in_all(tables: list[WatchedTable], done: Mapping[str, int] | None) -> dict[str, int]:
    """How far each node has landed in all tables; `done` is the end of the last batch.

    A table without rows in the last batches has not recorded that it covers them, but it does.
    """
    if done is not None:
        return dict(done)
    return lowest_positions([each.positions for each in tables if each.has_positions])


def lowest_positions(positions: list[Mapping[str, int]]) -> dict[str, int]:
    """For each node, the position of the table that has the least of it; 0 if one has nothing."""
    nodes = {node for each in positions for node in each}
    found = {node: min(each.get(node, 0) for each in positions) for node in nodes}
    return {node: seq for node, seq in sorted(found.items()) if seq}


def check_table(plan: LandingPlan, address: str) -> None:
    """Raise PipelineError if there is a table that is not of this stream, of another record, or
    not readable."""
    from semel.pipeline.same_record import check_same_record

    name = stream_id(plan.stream)
    check_readable(
        address,
        lambda: check_landed(address, plan.stream),
        lambda table: bool(table.metadata().name == name),
    )
    if plan.fail_on_data_loss:
        check_same_record(address, plan.stream, plan.root)


def check_landed_table(plan: LandingPlan, watched: WatchedTable) -> None:
    """Raise PipelineError if a table, which is one of several, cannot be continued."""
    table = watched.table
    check_table(plan, table.address)
    loaded = table.load()
    if loaded is not None:
        table.check_log()
        table.check_not_restored(loaded, position_id(plan.stream, ""))


def check_letters_log(plan: LandingPlan, watched: WatchedTable) -> None:
    """Raise PipelineError if the table of dead letters is damaged, or was restored."""
    table = watched.table

    def is_ours(found: "DeltaTable") -> bool:
        return {"stream", "table_name", "reason"} <= {each.name for each in found.schema().fields}

    check_readable(table.address, table.load, is_ours)
    loaded = table.load()
    if loaded is not None:
        table.check_log()
        table.check_not_restored(loaded, dead_prefix(plan.stream))


def check_letters_of(
    plan: LandingPlan, letters: WatchedTable, watched: WatchedTable, of: str
) -> None:
    """Raise DataLoss if dead letters on which a table relies are missing, or warn.

    They are those of `of`.
    """
    from semel.pipeline.dead_letters import check_letters

    loaded = watched.table.load()
    if loaded is None:
        return
    try:
        check_letters(
            letters.name,
            letters.table.load(),
            loaded,
            plan.stream,
            plan.root.nodes(plan.stream),
            of=of,
            source=watched.name,
        )
    except DataLoss as problem:
        if plan.fail_on_data_loss:
            raise DataLoss(f"{problem}; --no-fail-on-data-loss continues without them") from None
        LOG.warning("%s. The landing continues without them", problem)


def check_readable(
    address: str, check: Callable[[], object], is_ours: "Callable[[DeltaTable], bool]"
) -> None:
    """Call a check that reads a table, twice if an incomplete checkpoint had to be removed."""
    from semel.pipeline.maintenance import drop_torn_checkpoint
    from semel.store.roots import without_secrets

    try:
        check()
    except TableError:
        # An incomplete checkpoint makes a table unreadable.
        try:
            torn = drop_torn_checkpoint(address, is_ours)
        except OSError as problem:
            raise PipelineError(f"the log of {without_secrets(address)}: {problem}") from None
        if torn is None:
            raise
        LOG.warning(
            "%s: the checkpoint of version %d was incomplete or missing, probably because of a"
            " power failure; it was removed, and the log is complete without it",
            without_secrets(address),
            torn,
        )
        check()


def read_messages(
    spark: "SparkSession",
    plan: LandingPlan,
    landed: Mapping[str, int],
    *,
    start: str | None = None,
    columns: Iterable[str] = (),
) -> "DataFrame":
    """The messages after these positions. Spark uses them only for a new checkpoint."""
    # Spark resolves formats with the active session of this thread. A thread that did not create
    # the session has none.
    java = getattr(spark, "_jsparkSession", None)
    if java is not None:
        type(spark)._get_j_spark_session_class(spark._jvm).setActiveSession(java)
    after = {node: last + 1 for node, last in landed.items()}
    reader = (
        spark.readStream.format("mqtt")
        .option("root", plan.root_address)
        .option("stream", plan.stream)
        .option("start", start or (json.dumps(after) if after else "earliest"))
        .option("maxRowsPerBatch", str(plan.max_rows))
        .option("minPartitions", str(spark.sparkContext.defaultParallelism))
        .option("failOnDataLoss", _text(plan.fail_on_data_loss))
    )
    names = ",".join(columns)
    return (reader.option("columns", names) if names else reader).load()


def observed(rows: "DataFrame") -> "DataFrame":
    """The rows; Spark reports the time of the newest one of each batch."""
    from pyspark.sql import functions

    # As a number: Spark formats an observed time in the time zone of the session.
    newest = functions.max(functions.unix_micros("received"))
    return rows.observe(OBSERVED, newest.alias("newest"))


def with_trigger(
    writer: "DataStreamWriter", plan: LandingPlan, *, once: bool
) -> "DataStreamWriter":
    if once:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{round(plan.interval * 1000)} milliseconds")


def _text(value: bool) -> str:
    return "true" if value else "false"


def make_target(plan: LandingPlan) -> LandingTarget:
    """Where this plan lands."""
    if plan.sparkplug is not None:
        return SparkplugTarget(plan)
    return OneTable(plan) if plan.file is None else FileTables(plan)

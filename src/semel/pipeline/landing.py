"""Landing: the messages of a stream into a Delta table, each once.

    segments ─▶ format("mqtt") ─▶ all columns, and the date ─▶ format("semel_delta") ─▶ table

Spark decides when a batch begins and which rows it has, and records that in its checkpoint. The
table decides what has landed: a new checkpoint starts from the positions in the table, and each
commit compares an old one with them (`table.py`). So a checkpoint may be lost, copied, or belong to
another table.

A landing reports its progress as events: dictionaries, which `semel land --json` prints as JSON.
"""

import json
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semel.extras import need
from semel.pipeline.errors import NO_SPACE, PipelineError, TableError, sentence_of
from semel.pipeline.lake_address import (
    checkpoint_folder,
    local_folder,
    split_address,
    table_address,
)
from semel.pipeline.maintenance_process import Maintenance, Policy, describe
from semel.pipeline.offsets import positions_of
from semel.pipeline.settings import LandSettings
from semel.pipeline.stream_check import check_landed, check_recorded
from semel.store.landing_notes import write_landing_note
from semel.store.roots import LocalRoot, Root, RootError, open_root, without_secrets

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOG: Final = logging.getLogger("semel.pipeline")

CHECKPOINTS: Final = "_checkpoints"
DATE: Final = "date"
# The day of `received` in UTC. Spark's to_date() uses the time zone of the session, which may be
# the user's.
UTC_DATE: Final = """
    date_from_unix_date(cast(
        (unix_micros(received) - pmod(unix_micros(received), 86400000000)) div 86400000000 as int))
"""
POLL_SECONDS: Final = 0.1
# How long a shutdown waits for sealed rows to land; the next start lands the rest.
DRAIN_SECONDS: Final = 30.0
SHOWN_CHARACTERS: Final = 300
# Delays between retries of a query whose Python worker did not start in time; reset by a batch.
RETRY_SECONDS: Final = (2.0, 10.0, 30.0)
# Seconds between two landing notes under the root.
NOTE_SECONDS: Final = 10.0

# Messages of Spark: two queries use one checkpoint; a checkpoint cannot be parsed.
_OTHER_LANDING: Final = (
    "CONCURRENT_STREAM_LOG_UPDATE",
    "CONCURRENT_QUERY",
    "Multiple streaming queries are concurrently using",
)
_DAMAGED: Final = (
    "Incomplete log file",
    "MALFORMED_LOG_FILE",
    "Failed to read log file",
    "JsonEOFException",
    "JsonParseException",
    "metadata file",
)
# The worker of a reader has 10 seconds to connect, that of a task 60. Neither can be configured.
_LATE: Final = (
    "Python worker failed to connect back",
    "Timed out while waiting for the Python worker to connect back",
    "Python daemon failed to launch worker",
)
_ENDING: Final = ("SparkContext was shut down", "stopped SparkContext", "cleanupQueryJobs")
# Messages of Java about a Python process that has ended; some have only an SQLSTATE.
_CUT: Final = re.compile(
    r"\s*(SQLSTATE|Stream closed|Broken pipe|Connection reset|Socket closed|Socket is closed"
    r"|Python worker exited unexpectedly|java\.io\.EOFException|java\.net\.SocketException)"
)
# The code that Spark appends for programs.
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")
# Spark's prefix of the error that ended a query.
_ENDED: Final = re.compile(r"\[STREAM_FAILED\].*?terminated with exception: ", re.DOTALL)

Event = dict[str, Any]


@dataclass(frozen=True)
class LandingPlan:
    """Checked settings of a landing."""

    root: Root
    # As the user gave it; it may contain secrets, which Spark's workers need.
    root_address: str = field(repr=False)
    stream: str
    table: str = field(repr=False)
    checkpoint: Path
    interval: float
    max_rows: int
    master: str | None
    fail_on_data_loss: bool
    # None: the table is not maintained.
    maintenance: Policy | None = None

    @property
    def shown(self) -> str:
        """The address of the table without secrets."""
        return without_secrets(self.table)


def make_plan(settings: LandSettings) -> LandingPlan:
    """Check the settings of a landing. Raises PipelineError."""
    if settings.root is None:
        raise PipelineError("--root is missing: give the folder or object store of the segments")
    try:
        root = open_root(settings.root)
    except RootError as problem:
        raise PipelineError(f"--root: {problem}") from None
    address = settings.root
    if isinstance(root, LocalRoot):
        # Spark's workers may have another working directory.
        address = str(Path(root.address).absolute())
    table = landing_table(settings.lake, settings.table)
    lake = local_folder(settings.lake)
    checkpoint = settings.checkpoint
    if checkpoint is None:
        if lake is None:
            raise PipelineError(
                f"{without_secrets(settings.lake)} is not a local folder: give --checkpoint, a"
                " folder for Spark's checkpoint"
            )
        checkpoint = lake / CHECKPOINTS / settings.table
    folder = checkpoint_folder(str(checkpoint))
    if folder is None:
        raise PipelineError(f"--checkpoint {checkpoint} is not a local folder: give one")
    return LandingPlan(
        root=root,
        root_address=address,
        stream=settings.stream,
        table=table,
        checkpoint=folder.absolute(),
        interval=settings.interval,
        max_rows=settings.max_rows,
        master=settings.master,
        fail_on_data_loss=settings.fail_on_data_loss,
        maintenance=policy_of(settings),
    )


def policy_of(settings: LandSettings) -> Policy | None:
    """How the table is maintained, or None if it is not."""
    if not settings.maintenance:
        return None
    return Policy(
        target_file_size=settings.target_file_size,
        small_files=settings.small_files,
        file_retention=settings.file_retention,
        log_entries=settings.log_entries,
    )


def landing_table(lake: str, table: str) -> str:
    """The address of the table of a landing. Raises PipelineError."""
    address = table_address(lake, table)
    split_address(address)
    folder = local_folder(lake)
    return address if folder is None else str(folder / table)


def check_can_be_created(folder: Path) -> None:
    """Raise PipelineError unless the folder is writable, or can be created."""
    at = folder
    try:
        while not at.exists() and at != at.parent:
            at = at.parent
        is_folder = at.is_dir()
    except OSError as problem:
        raise PipelineError(f"{folder} cannot be accessed: {problem.strerror}") from None
    if not is_folder:
        raise PipelineError(f"{folder}: {at} is not a folder but a file")
    if not os.access(at, os.W_OK | os.X_OK):
        raise PipelineError(f"{folder} cannot be written: no permission to write in {at}")


class Landing:
    """A landing. `run` returns after `stop`, or with `once` when all sealed rows have landed."""

    def __init__(self, plan: LandingPlan, emit: Callable[[Event], None]) -> None:
        self.plan = plan
        self._emit = emit
        self._stopping = threading.Event()
        self._stop_now = threading.Event()
        self._emitting = threading.Lock()
        self._maintenance: Maintenance | None = None
        # Rows landed since the start according to the log, and the version it was read up to.
        self._landed = 0
        self._version = -1
        self._is_ready = False
        # The content of the landing note under the root, and when to write it next.
        self._positions: dict[str, int] = {}
        self._note_at = float("-inf")
        self._is_noted = True

    def stop(self) -> None:
        """Land the remaining sealed rows, for at most DRAIN_SECONDS, and shut down.

        A second call shuts down at once. Maintenance at the end of a run with `once` is ended.
        """
        if self._stopping.is_set():
            self._stop_now.set()
            if self._maintenance is not None:
                self._maintenance.kill()
        self._stopping.set()

    def run(self, *, once: bool = False, spark: "SparkSession | None" = None) -> None:
        """Land, in the given Spark session or in a new one that is closed afterwards.

        Raises PipelineError; rows that have landed stay in the table, and the next run continues.
        """
        plan = self.plan
        self._check_root(once=once)
        check_recorded(plan.root, plan.stream)
        for folder in filter(None, (local_folder(plan.table), plan.checkpoint)):
            check_can_be_created(folder)
        self._event("starting", table=plan.shown, stream=plan.stream, root=plan.root.address)
        need("deltalake", extra="spark", by="semel land")
        from semel.pipeline.commit_probe import probe
        from semel.pipeline.resuming import check_resumable
        from semel.pipeline.stream_record import StreamRecord
        from semel.pipeline.table import Table

        self._check_table()
        self._table = Table(plan.table)
        check_resumable(
            self._table,
            StreamRecord(plan.root_address, plan.stream),
            plan.stream,
            plan.checkpoint,
            may_skip=not plan.fail_on_data_loss,
        )
        probe(plan.table)
        if spark is not None:
            with _spark_errors(plan):
                self._land(spark, once=once)
            return
        # Slow to import, so only after the checks.
        from semel.pipeline.session import close, session

        try:
            with _keeping_interrupt():
                made = session("semel land", master=plan.master)
        except (PipelineError, OSError) as problem:
            if self._stopping.is_set():
                self._event("ended", landed=0)
                return
            if isinstance(problem, PipelineError):
                raise
            raise PipelineError(f"Spark did not start, nothing is lost: {problem}") from None
        try:
            with _spark_errors(plan):
                self._land(made, once=once)
        finally:
            with suppress(Exception):
                # If its Java process has died, there is nothing to stop.
                close(made)

    def _check_root(self, *, once: bool) -> None:
        root = self.plan.root
        if not isinstance(root, LocalRoot):
            return
        try:
            root.streams()
            exists = Path(root.address).is_dir()
        except NotADirectoryError:
            raise PipelineError(f"{root.address} is not a root but a file") from None
        except OSError as problem:
            raise PipelineError(f"--root {root.address}: {problem.strerror}") from None
        if not exists:
            if once:
                raise PipelineError(f"{root.address} is not a root: there is no such folder")
            check_can_be_created(Path(root.address))
            LOG.warning("%s does not exist yet: waiting for it", root.address)
            Path(root.address).mkdir(parents=True, exist_ok=True)

    # --- the query --------------------------------------------------------------------------------

    def _land(self, spark: "SparkSession", *, once: bool) -> None:
        table_before = self._table.load()
        if table_before is not None:
            self._version = table_before.version()
        failures, before = 0, 0
        while (problem := self._run_query(spark, table_before, once=once)) is not None:
            failures = failures + 1 if self._landed == before else 1
            before = self._landed
            if failures > len(RETRY_SECONDS):
                raise problem
            LOG.warning(
                "a Python worker of Spark did not start in time, because the machine is"
                " overloaded: retrying in %d s",
                RETRY_SECONDS[failures - 1],
            )
            self._stopping.wait(RETRY_SECONDS[failures - 1])
        self._note({}, is_last=True)
        self._event("ended", landed=self._landed)

    def _run_query(
        self, spark: "SparkSession", table_before: "DeltaTable | None", *, once: bool
    ) -> Exception | None:
        """Run a query until it ends.

        Returns the error if a Python worker started too late: that is not an error of the query,
        and a new query with the same checkpoint can continue. Raises all other errors.
        """
        query: StreamingQuery | None = None
        try:
            query = self._start(spark, once=once)
            self._report_ready(table_before)
            with self._maintained(once=once):
                self._watch(query)
        except Exception as problem:
            if is_worker_late(problem):
                return problem
            # A service manager may end all processes at once, including Spark's Java.
            if not self._stopping.is_set() or not is_spark_gone(problem):
                raise
            LOG.warning("Spark ended before all sealed rows had landed: the next start continues")
        finally:
            if query is not None:
                with suppress(Exception):
                    query.stop()
        return None

    def _report_ready(self, table_before: "DeltaTable | None") -> None:
        """Report, once, that the first query runs; with the rows that were in the table before."""
        from semel.pipeline.app_transactions import positions_in

        if self._is_ready:
            return
        self._is_ready = True
        plan = self.plan
        nodes = plan.root.nodes(plan.stream)
        positions = {} if table_before is None else positions_in(table_before, plan.stream, nodes)
        self._note(positions)
        self._event(
            "ready",
            landed_before=0 if table_before is None else table_before.count(),
            positions=positions,
        )

    def _check_table(self) -> None:
        """Raise PipelineError if there is a table that is not of this stream, or not readable."""
        plan = self.plan
        try:
            check_landed(plan.table, plan.stream)
        except TableError:
            # An incomplete checkpoint makes a table unreadable.
            if not self._drop_torn_checkpoint():
                raise
            check_landed(plan.table, plan.stream)

    def _drop_torn_checkpoint(self) -> bool:
        from semel.pipeline.maintenance import drop_torn_checkpoint

        try:
            torn = drop_torn_checkpoint(self.plan.table, self.plan.stream)
        except OSError as problem:
            raise PipelineError(f"the log of {self.plan.shown}: {problem}") from None
        if torn is None:
            return False
        LOG.warning(
            "%s: the checkpoint of version %d was incomplete or missing, probably because of a"
            " power failure; it was removed, and the log is complete without it",
            self.plan.shown,
            torn,
        )
        return True

    @contextmanager
    def _maintained(self, *, once: bool) -> Iterator[None]:
        """Maintain the table during the block; with `once`, in one pass after it if necessary."""
        policy = self.plan.maintenance
        if policy is None:
            yield
            return
        found = self._maintenance = Maintenance(
            self.plan.table,
            policy,
            lambda event: self._event("maintenance", text=describe(event), **event),
        )
        found.note_version(self._version)
        try:
            if not once:
                found.start()
            yield
            if once and not self._stopping.is_set():
                table = self._table.load()
                if table is not None and len(table.file_uris()) >= policy.small_files:
                    found.run_once(until=self._stopping)
        finally:
            found.stop()

    def _start(self, spark: "SparkSession", *, once: bool) -> "StreamingQuery":
        from pyspark.sql import functions

        plan = self.plan
        # Spark resolves formats with the active session of this thread. A thread that did not
        # create the session has none.
        java = getattr(spark, "_jsparkSession", None)
        if java is not None:
            type(spark)._get_j_spark_session_class(spark._jvm).setActiveSession(java)
        source = (
            spark.readStream.format("mqtt")
            .option("root", plan.root_address)
            .option("stream", plan.stream)
            .option("start", self._first())
            .option("maxRowsPerBatch", str(plan.max_rows))
            .option("minPartitions", str(spark.sparkContext.defaultParallelism))
            .option("failOnDataLoss", _text(plan.fail_on_data_loss))
            .load()
        )
        # As a number: Spark formats an observed time in the time zone of the session.
        newest = functions.max(functions.unix_micros("received"))
        rows = source.withColumn(DATE, functions.expr(UTC_DATE)).observe(
            "landing", newest.alias("newest")
        )
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
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(plan.interval * 1000)} milliseconds")
        return writer.start()

    def _first(self) -> str:
        """Option `start` of the source: the first row of each node that the table lacks.

        Spark uses it only for a new checkpoint.
        """
        plan = self.plan
        landed = self._table.positions(plan.stream, plan.root.nodes(plan.stream))
        after = {node: last + 1 for node, last in landed.items()}
        return json.dumps(after) if after else "earliest"

    def _watch(self, query: "StreamingQuery") -> None:
        """Report each batch until the query ends or is stopped."""
        seen = _Seen()
        draining: threading.Thread | None = None
        end = 0.0
        # PySpark declares an int, but accepts fractions of a second.
        while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]
            self._report_batches(query, seen)
            if self._stopping.is_set() and draining is None:
                end = time.monotonic() + DRAIN_SECONDS
                draining = threading.Thread(target=_drain, args=(query,), daemon=True)
                draining.start()
            if draining is not None:
                late = time.monotonic() >= end
                if not draining.is_alive() or late or self._stop_now.is_set():
                    break
        self._report_batches(query, seen)

    def _report_batches(self, query: "StreamingQuery", seen: "_Seen") -> None:
        last = query.lastProgress
        if last is None or last.timestamp == seen.timestamp:
            return  # cheap, because this runs ten times a second
        seen.timestamp = last.timestamp
        # Spark keeps a hundred reports, and each costs a call to Java.
        is_next = last.batchId == seen.batch + 1 and last.numInputRows
        for progress in [last] if is_next else query.recentProgress:
            found: dict[str, Any] = json.loads(progress.json)
            if found["batchId"] > seen.batch and found["numInputRows"]:
                seen.batch = found["batchId"]
                self._report_batch(found)

    def _report_batch(self, progress: dict[str, Any]) -> None:
        seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
        nodes = _offset(progress["sources"][0].get("endOffset")) or {}
        rows, positions = self._new_rows(nodes)
        self._landed += rows
        self._note(positions)
        newest = (progress.get("observedMetrics") or {}).get("landing", {}).get("newest")
        self._event(
            "batch",
            batch=progress["batchId"],
            rows=rows,
            landed=self._landed,
            positions=positions,
            lag_rows=_behind(progress["sources"][0]),
            lag_seconds=None if newest is None else round(_age(newest), 3),
            rate=round(rows / seconds) if seconds else None,
            seconds=seconds,
        )

    # --- what has landed --------------------------------------------------------------------------

    def _new_rows(self, nodes: Iterable[str]) -> tuple[int, dict[str, int]]:
        """Rows added to the table since the last call, and its positions of these nodes."""
        from semel.pipeline.app_transactions import positions_in

        table = self._table.load()
        if table is None:
            return 0, {}
        positions = positions_in(table, self.plan.stream, nodes)
        if table.version() <= self._version:
            return 0, positions
        commits = islice(self._table.log().back(table.version()), table.version() - self._version)
        self._version = table.version()
        if self._maintenance is not None:
            self._maintenance.note_version(self._version)
        return sum(each.rows_landed for each in commits), positions

    def _note(self, positions: dict[str, int], *, is_last: bool = False) -> None:
        """Write the landing note, so that retention keeps rows that have not landed.

        Does so at most every NOTE_SECONDS, unless `is_last`.
        """
        self._positions |= positions
        now = time.monotonic()
        if now < self._note_at and not is_last:
            return
        self._note_at = now + NOTE_SECONDS
        plan = self.plan
        at = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            write_landing_note(plan.root, plan.stream, plan.shown, self._positions, at=at)
            self._is_noted = True
        except (OSError, RootError) as problem:
            if self._is_noted:
                LOG.warning(
                    "the landing note under %s cannot be written, so retention does not know what"
                    " has landed: %s",
                    plan.root.address,
                    " ".join(str(problem).split()),
                )
            self._is_noted = False

    def _event(self, event: str, **facts: Any) -> None:
        # Maintenance reports from its own thread.
        with self._emitting:
            self._emit({"at": datetime.now(UTC).isoformat(), "event": event, **facts})


@dataclass
class _Seen:
    """The last batch of a query that was reported."""

    batch: int = -1
    timestamp: str = ""


@contextmanager
def _keeping_interrupt() -> Iterator[None]:
    """Restore the SIGINT handler, which PySpark replaces when it starts."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _drain(query: "StreamingQuery") -> None:
    # `_watch` reports errors of the query.
    with suppress(Exception):
        query.processAllAvailable()


def _text(value: bool) -> str:
    return "true" if value else "false"


def _behind(source: dict[str, Any]) -> int | None:
    """Sealed rows after the end of the batch."""
    latest, end = (_offset(source.get(name)) for name in ("latestOffset", "endOffset"))
    if latest is None or end is None:
        return None
    return sum(max(0, last - end.get(node, 0)) for node, last in latest.items())


def _offset(text: Any) -> dict[str, int] | None:
    found = json.loads(text) if isinstance(text, str) else text
    return positions_of(found) if isinstance(found, dict) else None


def _age(newest: int) -> float:
    """Seconds since a time in microseconds since 1970."""
    return time.time() - newest / 1_000_000


# --- errors ---------------------------------------------------------------------------------------


@contextmanager
def _spark_errors(plan: LandingPlan) -> Iterator[None]:
    """Turn errors of Spark into a PipelineError with one sentence."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, EOFError) as problem:
        raise PipelineError(explain(problem, plan)) from problem


def explain(problem: BaseException, plan: LandingPlan) -> str:
    """One sentence that says why a query ended and what to do."""
    text = _ENDED.sub("", str(problem), count=1)
    if any(sign in text for sign in NO_SPACE):
        return (
            f"no space is left for {plan.shown}, its checkpoint or Spark's temporary files: free"
            " space, and landing continues; nothing is lost"
        )
    sentence = sentence_of(text)
    if sentence is not None:
        return sentence
    if any(sign in text for sign in _OTHER_LANDING):
        return f"another landing uses the checkpoint {plan.checkpoint}: give one of them another"
    if any(sign in text for sign in _DAMAGED):
        return (
            f"the checkpoint {plan.checkpoint} cannot be read: remove it, and landing continues"
            f" from what {plan.shown} has ({_first_line(text)})"
        )
    if is_worker_late(problem):
        return (
            "a Python worker of Spark did not start in time, repeatedly: the machine lacks CPU time"
            " or memory; give Spark fewer cores (--master local[1]) or reduce the load, and start"
            " the landing again: nothing is lost"
        )
    if is_java_dead(problem):
        return "the Java process of Spark has ended: nothing is lost, start the landing again"
    if _CUT.match(text):
        return "the processes of Spark have ended: nothing is lost, start the landing again"
    return _first_line(text)


def is_worker_late(problem: BaseException) -> bool:
    """Whether a Python worker of Spark did not start in time."""
    return any(sign in str(problem) for sign in _LATE)


def is_spark_gone(problem: BaseException) -> bool:
    """Whether Spark ended while a query was running."""
    return is_java_dead(problem) or any(sign in str(problem) for sign in _ENDING)


def is_java_dead(problem: BaseException) -> bool:
    """Whether the Java process of Spark no longer answers."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    if isinstance(problem, PySparkException | Py4JJavaError):
        return False
    return isinstance(problem, Py4JError | ConnectionError | EOFError)


def _first_line(text: str) -> str:
    lines = [line.strip(": ") for line in text.splitlines() if line.strip(": ")]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        # The message of Java follows that of Py4J.
        lines = lines[1:]
    return _STATE.sub("", lines[0])[:SHOWN_CHARACTERS] if lines else "Spark gave no reason"

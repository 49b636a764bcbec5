"""Landing: the messages of a stream into a Delta table, each once.

    segments ─▶ format("mqtt") ─▶ all columns, and the date ─▶ format("semel_delta") ─▶ table

Spark decides when a batch begins and which rows it has, and keeps that in its checkpoint. What is
in the table decides what is landed: a new checkpoint starts with the positions that the table has,
and an old one is checked against them by each commit (`table.py`). So a checkpoint can be lost,
copied, or be another's.

Who runs a landing is told of it by events, plain dictionaries, which a command prints.
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
from semel.pipeline.errors import PipelineError, sentence_of
from semel.pipeline.lake_address import (
    checkpoint_folder,
    local_folder,
    split_address,
    table_address,
)
from semel.pipeline.maintenance_process import Maintenance, Policy, describe
from semel.pipeline.settings import LandSettings
from semel.pipeline.stream_check import check_landed, check_recorded
from semel.store.landed import note_landed
from semel.store.roots import LocalRoot, Root, RootError, open_root, without_secrets

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOG: Final = logging.getLogger("semel.pipeline")

CHECKPOINTS: Final = "_checkpoints"
DATE: Final = "date"
# The day of `received` in UTC. Spark's to_date() gives that of the session's time zone, and the
# session may be the user's.
UTC_DATE: Final = """
    date_from_unix_date(cast(
        (unix_micros(received) - pmod(unix_micros(received), 86400000000)) div 86400000000 as int))
"""
POLL_SECONDS: Final = 0.1
# How long an end may take until all that is sealed has landed; the rest is for the next start.
DRAIN_SECONDS: Final = 30.0
SHOWN_CHARACTERS: Final = 300
# How long to wait after each query, without a batch in between, whose worker started too late.
RETRY_SECONDS: Final = (2.0, 10.0, 30.0)
# Seconds between two notes under the root of how far the landing is.
NOTE_SECONDS: Final = 10.0

# In what Spark says: two queries with one checkpoint, and notes that it cannot make sense of.
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
_NO_SPACE: Final = ("No space left on device", "ENOSPC", "Disk quota exceeded")
# A reader's process has 10 seconds to connect, a task's 60, and neither can be set.
_LATE: Final = (
    "Python worker failed to connect back",
    "Timed out while waiting for the Python worker to connect back",
    "Python daemon failed to launch worker",
)
_ENDING: Final = ("SparkContext was shut down", "stopped SparkContext", "cleanupQueryJobs")
# What Java says of a Python process that is gone; sometimes it has no words at all.
_CUT: Final = re.compile(
    r"\s*(SQLSTATE|Stream closed|Broken pipe|Connection reset|Socket closed|Socket is closed"
    r"|Python worker exited unexpectedly|java\.io\.EOFException|java\.net\.SocketException)"
)
# What Spark adds for programs.
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+\s*$")
# What stands before Spark's own words about a query.
_ENDED: Final = re.compile(r"\[STREAM_FAILED\].*?terminated with exception: ", re.DOTALL)

Event = dict[str, Any]


@dataclass(frozen=True)
class LandingPlan:
    """What is landed where, checked."""

    root: Root
    # As the user gave it: what is secret in it is for Spark's workers alone.
    root_address: str = field(repr=False)
    stream: str
    table: str = field(repr=False)
    checkpoint: Path
    interval: float
    max_rows: int
    master: str | None
    fail_on_data_loss: bool
    # None: nobody looks after the table.
    maintenance: Policy | None = None

    @property
    def shown(self) -> str:
        """The table, for people."""
        return without_secrets(self.table)


def make_plan(wanted: LandSettings) -> LandingPlan:
    """What these settings mean. Raises PipelineError."""
    if wanted.root is None:
        raise PipelineError("say where the segments are: --root DIR, or an object store")
    try:
        root = open_root(wanted.root)
    except RootError as problem:
        raise PipelineError(f"--root: {problem}") from None
    address = wanted.root
    if isinstance(root, LocalRoot):
        # Spark's workers may have another folder.
        address = str(Path(root.address).absolute())
    table = landing_table(wanted.lake, wanted.table)
    lake = local_folder(wanted.lake)
    checkpoint = wanted.checkpoint
    if checkpoint is None:
        if lake is None:
            raise PipelineError(
                f"{without_secrets(wanted.lake)} is no folder of this machine: say by --checkpoint"
                " where Spark's notes are"
            )
        checkpoint = lake / CHECKPOINTS / wanted.table
    folder = checkpoint_folder(str(checkpoint))
    if folder is None:
        raise PipelineError(f"--checkpoint {checkpoint} is no folder of this machine: give one")
    return LandingPlan(
        root=root,
        root_address=address,
        stream=wanted.stream,
        table=table,
        checkpoint=folder.absolute(),
        interval=wanted.interval,
        max_rows=wanted.max_rows,
        master=wanted.master,
        fail_on_data_loss=wanted.fail_on_data_loss,
        maintenance=policy_of(wanted),
    )


def policy_of(wanted: LandSettings) -> Policy | None:
    """How the table is maintained; None: it is not."""
    if not wanted.maintenance:
        return None
    return Policy(
        target_file_size=wanted.target_file_size,
        small_files=wanted.small_files,
        file_retention=wanted.file_retention,
        log_entries=wanted.log_entries,
    )


def landing_table(lake: str, table: str) -> str:
    """The address of a table that is landed in. Raises PipelineError."""
    address = table_address(lake, table)
    split_address(address)
    folder = local_folder(lake)
    return address if folder is None else str(folder / table)


def check_can_be_made(folder: Path) -> None:
    """Raise PipelineError unless there is a folder to write in, or one can be made."""
    at = folder
    try:
        while not at.exists() and at != at.parent:
            at = at.parent
        is_folder = at.is_dir()
    except OSError as problem:
        raise PipelineError(f"{folder} cannot be looked at: {problem.strerror}") from None
    if not is_folder:
        raise PipelineError(f"{folder}: {at} is no folder but a file")
    if not os.access(at, os.W_OK | os.X_OK):
        raise PipelineError(f"{folder} cannot be written: there is no right to write in {at}")


class Landing:
    """One landing. `run` lasts until `stop`, or with `once` until all that was there has landed."""

    def __init__(self, plan: LandingPlan, tell: Callable[[Event], None]) -> None:
        self.plan = plan
        self._tell = tell
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._telling = threading.Lock()
        self._maintenance: Maintenance | None = None
        # Rows landed since the start, as the log tells, and up to which version it was read.
        self._landed = 0
        self._version = -1
        self._is_ready = False
        # What is noted under the root, and when that is done again.
        self._positions: dict[str, int] = {}
        self._note_at = float("-inf")
        self._is_noted = True

    def stop(self) -> None:
        """Land what is sealed, for a while, and end; called again, end at once."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    def run(self, *, once: bool = False, spark: "SparkSession | None" = None) -> None:
        """Land, in a session that is given or in one of its own.

        Raises PipelineError; what has landed stays, and nothing is lost.
        """
        plan = self.plan
        self._check_root(once=once)
        check_recorded(plan.root, plan.stream)
        for folder in filter(None, (local_folder(plan.table), plan.checkpoint)):
            check_can_be_made(folder)
        self._event("starting", table=plan.shown, stream=plan.stream, root=plan.root.address)
        need("deltalake", extra="spark", by="semel land")
        from semel.pipeline.resuming import check_resumable
        from semel.pipeline.stream_record import StreamRecord
        from semel.pipeline.table import Table, probe

        self._drop_torn_checkpoint()
        check_landed(plan.table, plan.stream)
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
        # Slow to import, and a plan that cannot be carried out needs none of it.
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
                # Its Java may be dead, and then there is nothing to stop.
                close(made)

    def _check_root(self, *, once: bool) -> None:
        root = self.plan.root
        if not isinstance(root, LocalRoot):
            return
        try:
            root.streams()
            is_there = Path(root.address).is_dir()
        except NotADirectoryError:
            raise PipelineError(f"{root.address} is no root but a file") from None
        except OSError as problem:
            raise PipelineError(f"--root {root.address}: {problem.strerror}") from None
        if not is_there:
            if once:
                raise PipelineError(f"{root.address} is no root: there is no such folder")
            check_can_be_made(Path(root.address))
            LOG.warning("%s is not there yet: waiting for it", root.address)
            Path(root.address).mkdir(parents=True, exist_ok=True)

    # --- the query --------------------------------------------------------------------------------

    def _land(self, spark: "SparkSession", *, once: bool) -> None:
        there = self._table.load()
        if there is not None:
            self._version = there.version()
        failures, before = 0, 0
        while (problem := self._run_query(spark, there, once=once)) is not None:
            failures = failures + 1 if self._landed == before else 1
            before = self._landed
            if failures > len(RETRY_SECONDS):
                raise problem
            LOG.warning(
                "a Python worker of Spark did not start within 10 seconds, because the machine has"
                " too much to do: trying again in %d s",
                RETRY_SECONDS[failures - 1],
            )
            self._stopping.wait(RETRY_SECONDS[failures - 1])
        self._note({}, is_last=True)
        self._event("ended", landed=self._landed)

    def _run_query(
        self, spark: "SparkSession", there: "DeltaTable | None", *, once: bool
    ) -> Exception | None:
        """Run a query to its end; what was raised if one of its Python workers started too late.

        Then nothing is wrong with the query: another one, with the same checkpoint, goes on.
        """
        query: StreamingQuery | None = None
        try:
            query = self._start(spark, once=once)
            self._tell_ready(there)
            with self._maintained(once=once):
                self._watch(query)
        except Exception as problem:
            if is_worker_late(problem):
                return problem
            # Who ends a service may end all of its processes at once, Spark's Java among them.
            if not self._stopping.is_set() or not is_spark_gone(problem):
                raise
            LOG.warning("Spark ended before all that is sealed had landed: the next start goes on")
        finally:
            if query is not None:
                with suppress(Exception):
                    query.stop()
        return None

    def _tell_ready(self, there: "DeltaTable | None") -> None:
        """Tell, with the first query, what the table had before it."""
        from semel.pipeline.table import positions_in

        if self._is_ready:
            return
        self._is_ready = True
        plan = self.plan
        nodes = plan.root.nodes(plan.stream)
        positions = {} if there is None else positions_in(there, plan.stream, nodes)
        self._note(positions)
        self._event(
            "ready",
            landed_before=0 if there is None else there.count(),
            positions=positions,
        )

    def _drop_torn_checkpoint(self) -> None:
        from semel.pipeline.maintenance import drop_torn_checkpoint

        try:
            torn = drop_torn_checkpoint(self.plan.table)
        except OSError as problem:
            raise PipelineError(f"the log of {self.plan.shown}: {problem}") from None
        if torn is not None:
            LOG.warning(
                "%s: the checkpoint of version %d was torn, by a power failure perhaps, and is"
                " deleted; the log has all that it said",
                self.plan.shown,
                torn,
            )

    @contextmanager
    def _maintained(self, *, once: bool) -> Iterator[None]:
        """Look after the table meanwhile; with `once` afterwards, in one pass, if it is large."""
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
                    found.run_once()
        finally:
            found.stop()

    def _start(self, spark: "SparkSession", *, once: bool) -> "StreamingQuery":
        from pyspark.sql import functions

        plan = self.plan
        # Spark looks formats up in the session that is active in this thread, and a thread that
        # did not make the session has none.
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
        # Spark shows an observed time in the session's time zone, and a number as it is.
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
        """Where a new checkpoint begins: after what the table has, and with what is not in it."""
        plan = self.plan
        landed = self._table.positions(plan.stream, plan.root.nodes(plan.stream))
        after = {node: last + 1 for node, last in landed.items()}
        return json.dumps(after) if after else "earliest"

    def _watch(self, query: "StreamingQuery") -> None:
        """Tell of each batch, until the query ends or is to end."""
        seen = _Seen()
        draining: threading.Thread | None = None
        end = 0.0
        # Parts of a second are right; PySpark has declared whole ones.
        while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]
            self._tell_batches(query, seen)
            if self._stopping.is_set() and draining is None:
                end = time.monotonic() + DRAIN_SECONDS
                draining = threading.Thread(target=_drain, args=(query,), daemon=True)
                draining.start()
            if draining is not None:
                late = time.monotonic() >= end
                if not draining.is_alive() or late or self._hurry.is_set():
                    break
        self._tell_batches(query, seen)

    def _tell_batches(self, query: "StreamingQuery", seen: "_Seen") -> None:
        last = query.lastProgress
        if last is None or last.timestamp == seen.timestamp:
            return  # what is asked for ten times a second has to be little
        seen.timestamp = last.timestamp
        # Spark keeps a hundred, and each takes a call.
        is_next = last.batchId == seen.batch + 1 and last.numInputRows
        for progress in [last] if is_next else query.recentProgress:
            found: dict[str, Any] = json.loads(progress.json)
            if found["batchId"] > seen.batch and found["numInputRows"]:
                seen.batch = found["batchId"]
                self._tell_batch(found)

    def _tell_batch(self, progress: dict[str, Any]) -> None:
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
        """Rows that came into the table since the last look, and its last seq of these nodes."""
        from semel.pipeline.table import positions_in

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
        """Note under the root what has landed: retention keeps the rest. Not with every batch."""
        self._positions |= positions
        now = time.monotonic()
        if now < self._note_at and not is_last:
            return
        self._note_at = now + NOTE_SECONDS
        plan = self.plan
        at = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            note_landed(plan.root, plan.stream, plan.shown, self._positions, at=at)
            self._is_noted = True
        except (OSError, RootError) as problem:
            if self._is_noted:
                said = " ".join(str(problem).split())
                LOG.warning(
                    "it cannot be noted under %s how far the landing is, and so retention does not"
                    " know what it may delete: %s",
                    plan.root.address,
                    said,
                )
            self._is_noted = False

    def _event(self, event: str, **facts: Any) -> None:
        # The maintenance tells from a thread of its own.
        with self._telling:
            self._tell({"at": datetime.now(UTC).isoformat(), "event": event, **facts})


@dataclass
class _Seen:
    """How far the progress of a query was told."""

    batch: int = -1
    timestamp: str = ""


@contextmanager
def _keeping_interrupt() -> Iterator[None]:
    """PySpark takes Ctrl-C for itself when it starts: who runs a landing has it back then."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _drain(query: "StreamingQuery") -> None:
    # What goes wrong with the query is told by who watches it.
    with suppress(Exception):
        query.processAllAvailable()


def _text(value: bool) -> str:
    return "true" if value else "false"


def _behind(source: dict[str, Any]) -> int | None:
    """Rows that are sealed and were not in the batch."""
    latest, end = (_offset(source.get(name)) for name in ("latestOffset", "endOffset"))
    if latest is None or end is None:
        return None
    return sum(max(0, last - end.get(node, 0)) for node, last in latest.items())


def _offset(text: Any) -> dict[str, int] | None:
    found = json.loads(text) if isinstance(text, str) else text
    return found if isinstance(found, dict) else None


def _age(newest: int) -> float:
    """Seconds since a time in microseconds since 1970."""
    return time.time() - newest / 1_000_000


# --- what goes wrong ------------------------------------------------------------------------------


@contextmanager
def _spark_errors(plan: LandingPlan) -> Iterator[None]:
    """What Spark raises comes out as a PipelineError with one sentence."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, EOFError) as problem:
        raise PipelineError(explain(problem, plan)) from problem


def explain(problem: BaseException, plan: LandingPlan) -> str:
    """What a query ended with, in one sentence that says what to do."""
    text = _ENDED.sub("", str(problem), count=1)
    if any(sign in text for sign in _NO_SPACE):
        return (
            f"no space is left for {plan.shown}, its checkpoint or Spark's own files: make room,"
            " and landing goes on where it was; nothing is lost"
        )
    sentence = sentence_of(text)
    if sentence is not None:
        return sentence
    if any(sign in text for sign in _OTHER_LANDING):
        return f"another landing uses the checkpoint {plan.checkpoint}: give one of them another"
    if any(sign in text for sign in _DAMAGED):
        return (
            f"the checkpoint {plan.checkpoint} cannot be read: remove it, and landing goes on"
            f" from what {plan.shown} has ({_first_line(text)})"
        )
    if is_worker_late(problem):
        return (
            "a Python worker of Spark did not start in time, again and again: the machine has too"
            " little processor time or memory for it; give Spark fewer cores (--master local[1]) or"
            " the machine less to do, and start the landing again: nothing is lost"
        )
    if is_java_dead(problem):
        return "the Java process of Spark has ended: nothing is lost, start the landing again"
    if _CUT.match(text):
        return "the processes of Spark have ended: nothing is lost, start the landing again"
    return _first_line(text)


def is_worker_late(problem: BaseException) -> bool:
    """Whether a Python process of Spark's did not start in the time that Spark gives it."""
    return any(sign in str(problem) for sign in _LATE)


def is_spark_gone(problem: BaseException) -> bool:
    """Whether Spark has ended, or is ending, under a query."""
    return is_java_dead(problem) or any(sign in str(problem) for sign in _ENDING)


def is_java_dead(problem: BaseException) -> bool:
    """Whether nobody is there who could answer a call."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    if isinstance(problem, PySparkException | Py4JJavaError):
        return False
    return isinstance(problem, Py4JError | ConnectionError | EOFError)


def _first_line(text: str) -> str:
    lines = [line.strip(": ") for line in text.splitlines() if line.strip(": ")]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        # What Java said comes after what the bridge to it says.
        lines = lines[1:]
    return _STATE.sub("", lines[0])[:SHOWN_CHARACTERS] if lines else "Spark gave no reason"

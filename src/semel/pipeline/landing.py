"""Landing: the messages of a stream into Delta tables, each once.

    segments ─▶ format("mqtt") ─▶ all columns, and the date ─▶ format("semel_delta") ─▶ table
                              └─▶ rows of each table ────────▶ format("semel_tables") ─▶ tables

Spark decides when a batch begins and which rows it has, and records that in its checkpoint. The
tables decide what has landed: a new checkpoint starts from the positions in the tables, and each
commit compares an old one with them (`table.py`). So a checkpoint may be lost, copied, or belong to
another table. `landing_target.py` has what differs between one table and several.

A landing reports its progress as events: dictionaries, which `semel land --json` prints as JSON.
"""

import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from semel.extras import need
from semel.pipeline.errors import PipelineError
from semel.pipeline.lake_address import local_folder
from semel.pipeline.landing_clock import LandingClock
from semel.pipeline.landing_errors import is_spark_gone, is_worker_late, spark_errors
from semel.pipeline.landing_plan import LandingPlan, check_can_be_created
from semel.pipeline.maintenance_process import Maintenance, describe
from semel.pipeline.offsets import positions_of
from semel.pipeline.stream_check import check_recorded
from semel.store.landing_notes import write_landing_note
from semel.store.roots import LocalRoot, RootError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from semel.pipeline.landing_target import LandingTarget, WatchedTable

LOG: Final = logging.getLogger("semel.pipeline")

POLL_SECONDS: Final = 0.1
# How long a shutdown waits for sealed rows to land; the next start lands the rest.
DRAIN_SECONDS: Final = 30.0
# Delays between retries of a query whose Python worker did not start in time; reset by a batch.
RETRY_SECONDS: Final = (2.0, 10.0, 30.0)
# Seconds between two landing notes under the root.
NOTE_SECONDS: Final = 10.0

Event = dict[str, Any]


class Landing:
    """A landing. `run` returns after `stop`, or with `once` when all sealed rows have landed."""

    def __init__(
        self,
        plan: LandingPlan,
        emit: Callable[[Event], None],
        *,
        retry_seconds: Sequence[float] = RETRY_SECONDS,
    ) -> None:
        self.plan = plan
        self._emit = emit
        self._retry_seconds = retry_seconds
        self._stopping = threading.Event()
        self._stop_now = threading.Event()
        self._emitting = threading.Lock()
        self._target: LandingTarget
        # By the name of the table.
        self._maintenance: dict[str, Maintenance] = {}
        # Rows landed since the start according to the logs.
        self._landed = 0
        self._is_ready = False
        # When to write the landing notes under the root next, and whether that works.
        self._note_at = float("-inf")
        self._is_noted = True

    def stop(self) -> None:
        """Land the remaining sealed rows, for at most DRAIN_SECONDS, and shut down.

        A second call shuts down at once. Maintenance at the end of a run with `once` is ended.
        """
        if self._stopping.is_set():
            self._stop_now.set()
            for each in self._maintenance.values():
                each.kill()
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
        from semel.pipeline.landing_target import make_target

        self._target = make_target(plan)
        self._target.check()
        with self._target.running():
            self._run_in(spark, once=once)

    def _run_in(self, spark: "SparkSession | None", *, once: bool) -> None:
        plan = self.plan
        if spark is not None:
            with spark_errors(plan):
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
            with spark_errors(plan):
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
        for each in self._target.watched:
            each.begin()
        failures, before = 0, 0
        while (problem := self._run_query(spark, once=once)) is not None:
            failures = failures + 1 if self._landed == before else 1
            before = self._landed
            if failures > len(self._retry_seconds):
                raise problem
            LOG.warning(
                "a Python worker of Spark did not start in time, because the machine is"
                " overloaded: retrying in %d s",
                self._retry_seconds[failures - 1],
            )
            self._stopping.wait(self._retry_seconds[failures - 1])
        self._note([], is_last=True)
        self._event("ended", landed=self._landed)

    def _run_query(self, spark: "SparkSession", *, once: bool) -> Exception | None:
        """Run a query until it ends.

        Returns the error if a Python worker started too late: that is not an error of the query,
        and a new query can continue. Raises all other errors.
        """
        query: StreamingQuery | None = None
        try:
            query = self._target.start(spark, once=once)
            self._report_ready()
            with self._maintained(once=once):
                self._watch(query)
                query.stop()
                self._target.finish()
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

    def _report_ready(self) -> None:
        """Report, once, that the first query runs; with the rows that were in the tables before."""
        if self._is_ready:
            return
        self._is_ready = True
        nodes = self.plan.root.nodes(self.plan.stream)
        self._note(nodes)
        self._event(
            "ready",
            landed_before=sum(each.rows_before for each in self._target.watched),
            positions=self._target.positions(),
        )

    @contextmanager
    def _maintained(self, *, once: bool) -> Iterator[None]:
        """Maintain the tables during the block; with `once`, in one pass after it if necessary."""
        # One table at a time: landing needs the processors more.
        turn = threading.Lock()
        with ExitStack() as stack:
            clock = self._retention_clock()
            maintained = [each for each in self._target.watched if each.policy is not None]
            for each in maintained:
                assert each.policy is not None
                made = Maintenance(
                    each.table.address,
                    each.policy,
                    self._emit_of(each),
                    turn=turn,
                    clock=None if each.policy.retention is None else clock,
                )
                made.note_version(each.version)
                self._maintenance[each.name] = made
                stack.callback(made.stop)
                if not once:
                    made.start()
            yield
            for each in maintained if once else ():
                if each.needs_pass(clock) and not self._stopping.is_set():
                    self._maintenance[each.name].run_once(until=self._stopping)

    def _retention_clock(self) -> Callable[[], float] | None:
        """The clock by which old rows are removed; None if all tables keep them."""
        tables = self._target.watched
        kept = [each.policy.retention for each in tables if each.policy is not None]
        retentions = [each for each in kept if each is not None]
        if not retentions:
            return None

        def newest() -> float | None:
            found = [each.newest_received() for each in tables if each.policy is not None]
            return max((each for each in found if each is not None), default=None)

        return LandingClock(self.plan.checkpoint, longest=max(retentions), newest=newest).now

    def _emit_of(self, watched: "WatchedTable") -> Callable[[Event], None]:
        """Reports an action of maintenance; with the name of the table if there are several."""
        is_one = len(self._target.watched) == 1

        def emit(event: Event) -> None:
            text = describe(event)
            if not is_one:
                text, event = f"{watched.name}: {text}", {**event, "table": watched.name}
            self._event("maintenance", text=text, **event)

        return emit

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
        from semel.pipeline.landing_target import OBSERVED

        seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
        nodes = _offset(progress["sources"][0].get("endOffset")) or {}
        by_table = self._new_rows(nodes)
        rows = sum(by_table.values())
        self._landed += rows
        self._note(nodes)
        several = {} if len(by_table) == 1 else {"tables": by_table}
        newest = (progress.get("observedMetrics") or {}).get(OBSERVED, {}).get("newest")
        self._event(
            "batch",
            batch=progress["batchId"],
            rows=rows,
            landed=self._landed,
            positions=self._target.positions(nodes),
            lag_rows=_behind(progress["sources"][0]),
            lag_seconds=None if newest is None else round(_age(newest), 3),
            rate=round(rows / seconds) if seconds else None,
            seconds=seconds,
            **several,
        )

    # --- what has landed --------------------------------------------------------------------------

    def _new_rows(self, nodes: Iterable[str]) -> dict[str, int]:
        """The rows that each table got since the last call."""
        found = {}
        for each in self._target.watched:
            found[each.name] = each.new_rows(self.plan.stream, nodes)
            maintenance = self._maintenance.get(each.name)
            if maintenance is not None:
                maintenance.note_version(each.version)
        return found

    def _note(self, nodes: Iterable[str], *, is_last: bool = False) -> None:
        """Write the landing notes, so that retention keeps rows that have not landed.

        Does so at most every NOTE_SECONDS, unless `is_last`.
        """
        now = time.monotonic()
        if now < self._note_at and not is_last:
            return
        self._note_at = now + NOTE_SECONDS
        plan = self.plan
        at = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            for each in self._target.watched:
                if each.has_positions:
                    each.read_positions(plan.stream, nodes)
                    shown = each.table.shown
                    write_landing_note(plan.root, plan.stream, shown, each.positions, at=at)
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

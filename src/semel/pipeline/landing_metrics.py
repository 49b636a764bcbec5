"""The metrics of a landing: what has landed, how long it took, and how far it is behind.

They are made from the events that a landing reports anyway, and from listings of the record in a
thread of its own: a landing never waits for its metrics.
"""

import logging
import platform
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from semel import __version__
from semel.metrics.families import INFO, Histogram, MetricFamily, counter, gauge, histogram
from semel.pipeline.lag import Lag
from semel.pipeline.offsets import list_all_extents
from semel.store.roots import LocalRoot, Root

LOG: Final = logging.getLogger("semel.pipeline")

# Upper bounds of buckets, in seconds per batch.
BATCH_BOUNDS: Final = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
# Seconds between two listings of the record. On an object store each of them costs money.
LOCAL_LIST_SECONDS: Final = 2.0
REMOTE_LIST_SECONDS: Final = 30.0


class LandingMetrics:
    """The metrics of one landing. `take_event` and `take_record` may be called on any thread."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._started_at = clock()
        # The event that tells in which state the landing is.
        self._state = "starting"
        self._batches = 0
        self._rows = 0
        self._maintenance = 0
        self._seconds = Histogram(BATCH_BOUNDS)
        self._last_rows = 0
        self._committed_at: float | None = None
        self._latency: float | None = None
        # The last row of each node: in the table (None: not known yet), and in the record.
        self._landed: dict[str, int] | None = None
        self._recorded: dict[str, int] | None = None
        self._lag = Lag()

    # --- input ------------------------------------------------------------------------------------

    def take_event(self, event: Mapping[str, Any]) -> None:
        """Take an event of the landing."""
        with self._lock:
            kind = event["event"]
            if kind in ("starting", "ready", "ended"):
                self._state = kind
            if kind == "ready":
                self._landed = dict(event["positions"])
            elif kind == "batch":
                self._batches += 1
                self._rows += event["rows"]
                self._last_rows = event["rows"]
                self._seconds.observe(event["seconds"])
                self._committed_at = self._wall()
                self._latency = event["lag_seconds"]
                # A batch reports only the nodes that it has rows of.
                self._landed = {**(self._landed or {}), **event["positions"]}
            elif kind == "maintenance":
                self._maintenance += 1
            self._note_record()

    def take_record(self, recorded: Mapping[str, int]) -> None:
        """Take the last sealed row of each node of the stream."""
        with self._lock:
            self._recorded = dict(recorded)
            self._note_record()

    def _note_record(self) -> None:
        if self._recorded is None or self._landed is None:
            return
        # Rows that the landing knows and a listing does not show yet are recorded, too.
        recorded = sum(max(last, self._landed.get(n, 0)) for n, last in self._recorded.items())
        landed = sum(self._landed.get(node, 0) for node in self._recorded)
        self._lag.note_record(recorded, landed, self._clock())

    # --- output -----------------------------------------------------------------------------------

    def families(self) -> list[MetricFamily]:
        """All metrics at this time."""
        with self._lock:
            return [*self._progress_families(), *self._lag_families()]

    def _progress_families(self) -> list[MetricFamily]:
        last = gauge(
            "semel_landing_last_commit_timestamp_seconds",
            "When the last batch was committed to the table, in seconds since 1970",
        )
        if self._committed_at is not None:
            last.add(self._committed_at)
        return [
            MetricFamily("semel_landing_build", INFO, "Versions of the landing").add(
                1, version=__version__, python=platform.python_version()
            ),
            gauge("semel_landing_uptime_seconds", "Time since the landing was started").add(
                self._clock() - self._started_at
            ),
            gauge("semel_landing_ready", "1 while the landing lands what is recorded").add(
                int(self._state == "ready")
            ),
            counter("semel_landing_batches", "Batches that were committed to the table").add(
                self._batches
            ),
            counter("semel_landing_rows", "Rows that were committed to the table").add(self._rows),
            gauge("semel_landing_last_batch_rows", "Rows of the last batch").add(self._last_rows),
            histogram(
                "semel_landing_batch_seconds",
                "Time from the start of a batch until it was committed to the table",
            ).add(self._seconds.read()),
            last,
            counter("semel_landing_maintenance", "Steps of the maintenance of the table").add(
                self._maintenance
            ),
        ]

    def _lag_families(self) -> list[MetricFamily]:
        """Families without samples are not written: what is not known is not 0."""
        latency = gauge(
            "semel_landing_latency_seconds",
            "Age of the newest row of the last batch when it was committed to the table",
        )
        if self._latency is not None:
            latency.add(self._latency)
        rows = gauge("semel_landing_lag_rows", "Sealed rows that have not landed")
        seconds = gauge(
            "semel_landing_lag_seconds",
            "Time since the landing first saw the oldest row that has not landed; 0 if all have",
        )
        if self._recorded is not None and self._landed is not None:
            behind = sum(
                max(0, last - self._landed.get(node, 0)) for node, last in self._recorded.items()
            )
            rows.add(behind)
            seconds.add(self._lag.waiting(self._clock()) if behind else 0.0)
        return [latency, rows, seconds]

    def health(self) -> str | None:
        """None: the process works. A landing that fails exits."""
        return None

    def readiness(self) -> str | None:
        """Why nothing is landed now; None: the landing is ready."""
        if self._state == "starting":
            return "Spark is starting"
        return "the landing has ended" if self._state == "ended" else None


class RecordWatch:
    """Lists the record of a stream at intervals, in a thread of its own, for the lag."""

    def __init__(
        self, root: Root, stream: str, *, metrics: LandingMetrics, seconds: float | None = None
    ) -> None:
        """`seconds` between two listings; by default more on an object store."""
        self._root = root
        self._stream = stream
        self._metrics = metrics
        if seconds is None:
            is_local = isinstance(root, LocalRoot)
            seconds = LOCAL_LIST_SECONDS if is_local else REMOTE_LIST_SECONDS
        self._seconds = seconds
        self._stopping = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="record-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end. It may still be in a listing: it is not waited for."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.list_record()
            self._stopping.wait(self._seconds)

    def list_record(self) -> None:
        """List the record once. A failure is logged when it begins, and retried."""
        try:
            extents = list_all_extents(self._root, self._stream)
        except Exception as problem:
            if not self._is_failing:
                reason = " ".join(str(problem).split()) or type(problem).__name__
                LOG.warning("the record cannot be listed, so that its lag is outdated: %s", reason)
            self._is_failing = True
            return
        self._is_failing = False
        self._metrics.take_record({node: extent.last for node, extent in extents.items()})

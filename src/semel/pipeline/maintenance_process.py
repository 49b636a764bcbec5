"""Maintenance as a landing sees it: when a pass is due, and the process that runs it.

`Schedule` depends only on its arguments. A pass is due after `small_files` commits, or some time
after the last commit or pass. It is not due when there can be nothing to do: a table without new
commits is left alone once its removed files are deleted, unless its rows are removed by age.

`Maintenance` runs passes, one at a time. Its thread only waits: a process of the lowest priority
(maintenance.py) does the work, so that batches do not wait for it. The process ends with the
landing, however that ends, and the next pass does what is left.
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from semel.counts import count
from semel.pipeline.errors import PipelineError
from semel.store.roots import without_secrets
from semel.store.sealing import environment_for_python

LOGGER: Final = logging.getLogger("semel.pipeline")

POLL_SECONDS: Final = 1.0
# Seconds from one pass to the next, with and without commits in between.
PASS_SECONDS: Final = 600.0
QUIET_SECONDS: Final = 3600.0
# Seconds from the start of a landing to the first pass: a landing that has just started is busy.
FIRST_SECONDS: Final = 60.0
VACUUM_SECONDS: Final = 3600.0
# If the wall clock moves by more than this against the monotonic clock, it has jumped.
JUMP_SECONDS: Final = 60.0
# Seconds after a failed pass.
RETRY_SECONDS: Final = 60.0
# How long to wait for the process to end before it is killed, and after that.
STOP_SECONDS: Final = 5.0
KILL_SECONDS: Final = 1.0
# How often a single pass checks whether it shall end.
CHECK_SECONDS: Final = 0.1
MODULE: Final = "semel.pipeline.maintenance"
# The action of an event that only tells something, in `text`.
NOTICE: Final = "notice"

Event = dict[str, Any]


@dataclass(frozen=True)
class Policy:
    """How a table is maintained; see the settings of [land]."""

    # In bytes.
    target_file_size: int
    small_files: int
    # In seconds.
    file_retention: float
    log_entries: int
    # The columns by which compacted files are sorted; none: they are not.
    cluster_by: tuple[str, ...] = ()
    # How long rows are kept after they were received, in seconds; None: forever.
    retention: float | None = None
    # A pass writes a checkpoint of the log after this many commits.
    checkpoint_commits: int = 100

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Policy":
        """The policy from its fields, as JSON has them."""
        return cls(**{**found, "cluster_by": tuple(found["cluster_by"])})


class Schedule:
    """Decides when a pass is due; `now` is in seconds of a monotonic clock."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        # Version and time of the last pass (None: there was none), and the time of the last vacuum.
        self._version = -1
        self._at: float | None = None
        self._vacuum_at = float("-inf")
        # How far the wall clock was ahead of the monotonic clock.
        self._ahead: float | None = None
        # When the table was last seen to have changed.
        self._seen = -1
        self._changed_at = float("-inf")
        self._failed = False

    def is_due(self, version: int, now: float) -> bool:
        """Whether a pass is due for a table at this version."""
        if version != self._seen:
            self._seen, self._changed_at = version, now
        if version < 0:
            return False
        if self._at is None:
            self._version, self._at = version - 1, now - PASS_SECONDS + FIRST_SECONDS
        since = now - self._at
        if self._failed and since < RETRY_SECONDS:
            return False
        if version - self._version >= self._policy.small_files:
            return True
        if version != self._version:
            return since >= PASS_SECONDS
        # Without commits, partitions become complete, and removed files old enough to delete. Rows
        # become too old at any time.
        quiet = now - self._changed_at
        has_work = quiet < self._policy.file_retention + 2 * QUIET_SECONDS
        return since >= QUIET_SECONDS and (has_work or self._policy.retention is not None)

    def wants_vacuum(self, now: float, wall: float) -> bool:
        """Whether a pass that starts now should vacuum.

        Not soon after the wall clock, `wall`, has jumped or the machine was suspended: a file that
        a landing is about to commit would look old.
        """
        ahead = wall - now
        if self._ahead is not None and abs(ahead - self._ahead) > JUMP_SECONDS:
            self._vacuum_at = now
        self._ahead = ahead
        return now - self._vacuum_at >= VACUUM_SECONDS

    def passed(self, version: int, now: float, *, vacuumed: bool, failed: bool) -> None:
        """Record a pass over a table that was at this version when the pass began.

        `vacuumed` says whether its vacuum was completed; a failed pass may have vacuumed or not.
        """
        self._version, self._at, self._failed = version, now, failed
        if vacuumed:
            self._vacuum_at = now


class Maintenance:
    """Runs passes over one table as they become due, until `stop`.

    `emit` is called on the maintenance thread, with an event for each action.
    """

    def __init__(
        self,
        table: str,
        policy: Policy,
        emit: Callable[[Event], None],
        *,
        turn: "threading.Lock | None" = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Of tables with the same `turn`, one is maintained at a time.

        `clock` gives the time by which old rows are removed, or raises PipelineError; without it
        none are removed.
        """
        self._table = table
        self._clock = clock
        self._turn = threading.Lock() if turn is None else turn
        self._policy = policy
        self._emit = emit
        self._schedule = Schedule(policy)
        self._version = -1
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        self._problem = ""
        # Notices that were emitted: they hold for all later passes, too.
        self._noticed: set[str] = set()

    @property
    def pid(self) -> int | None:
        """The process ID of the running pass, if any."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Start the thread that runs passes."""
        self._thread.start()

    def note_version(self, version: int) -> None:
        """Set the current version of the table. Does not block."""
        self._version = version

    def run_once(self, *, until: threading.Event | None = None) -> None:
        """Run one pass now; returns when it is done, or soon after `until` is set or `stop`."""
        # On the thread, because a signal handler cannot interrupt a read from the process.
        self._thread = threading.Thread(
            target=self._pass,
            args=(self._version,),
            kwargs={"vacuum": True},
            name="maintenance",
            daemon=True,
        )
        self._thread.start()
        while self._thread.is_alive():
            self._thread.join(CHECK_SECONDS)
            if until is not None and until.is_set():
                self.stop()
                return

    def stop(self) -> None:
        """Stop, and end a running pass."""
        self._stopping.set()
        with self._lock:
            process = self._process
            if process is not None:
                _end(process)
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        if process is not None and process.poll() is None:
            process.kill()
            if self._thread.is_alive():
                self._thread.join(KILL_SECONDS)

    def kill(self) -> None:
        """Kill a running pass. Safe in a signal handler: takes no lock, and does not wait."""
        process = self._process
        if process is not None:
            process.kill()

    # --- on the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(POLL_SECONDS):
            now = time.monotonic()
            version = self._version
            if self._schedule.is_due(version, now) and self._turn.acquire(blocking=False):
                try:
                    vacuum = self._schedule.wants_vacuum(now, time.time())
                    self._pass(version, vacuum=vacuum)
                finally:
                    self._turn.release()

    def _pass(self, version: int, *, vacuum: bool) -> None:
        problem, vacuumed = self._work(vacuum=vacuum)
        if self._stopping.is_set():
            return
        if problem and problem != self._problem:
            shown = without_secrets(self._table)
            LOGGER.warning("maintenance of %s failed, and will be retried: %s", shown, problem)
        self._problem = problem
        now = time.monotonic()
        self._schedule.passed(version, now, vacuumed=vacuumed, failed=bool(problem))

    def _work(self, *, vacuum: bool) -> tuple[str, bool]:
        """Run a maintenance process.

        Returns what went wrong, or an empty string, and whether it has vacuumed.
        """
        try:
            retention_now = None if self._clock is None else self._clock()
        except PipelineError as problem:
            return f"the time by which rows are old is not known: {problem}", False
        task = {
            "table": self._table,
            "policy": asdict(self._policy),
            "vacuum": vacuum,
            "retention_now": retention_now,
        }
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment_for_python(os.environ),
                # Ctrl-C goes to the landing, which then ends this process. Its priority is that of
                # its session.
                start_new_session=True,
            )
        except OSError as problem:
            return f"its process cannot be started: {problem}", False
        assert process.stdin is not None
        assert process.stdout is not None
        with self._lock:
            self._process = process
        found = ""
        with process.stdout, suppress(ValueError, OSError):
            # Not as an argument: the address may contain a key, and command lines are public.
            process.stdin.write(json.dumps(task) + "\n")
            process.stdin.flush()
            if self._stopping.is_set():
                _end(process)
            for line in process.stdout:
                event = json.loads(line)
                if event["action"] == "failed":
                    found = str(event["problem"])
                    vacuum = bool(event["vacuumed"])
                elif event["action"] != NOTICE or event["text"] not in self._noticed:
                    if event["action"] == NOTICE:
                        self._noticed.add(event["text"])
                    self._emit(event)
        process.wait()
        with self._lock:
            self._process = None
            with suppress(OSError):
                process.stdin.close()
        if process.returncode and not found:
            return f"its process ended with code {process.returncode}", False
        return found, vacuum


def _end(process: "subprocess.Popen[str]") -> None:
    """Ask a process to end. A pass may be ended at any point: the next one does what is left."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    process.terminate()


def describe(event: Event) -> str:
    """An action of maintenance as one line."""
    action = event["action"]
    if action == NOTICE:
        return str(event["text"])
    seconds = f"in {event['seconds']:.1f} s" if "seconds" in event else ""
    if action == "compacted":
        return (
            f"compacted {count(event['files_removed'], 'file')}"
            f" ({_megabytes(event['bytes_removed'])}) into {event['files_added']:,}"
            f" ({_megabytes(event['bytes_added'])}), {count(event['rows'], 'row')}, {seconds}"
        )
    if action == "expired":
        return (
            f"removed {count(event['files'], 'file')} ({_megabytes(event['bytes'])}) with"
            f" {count(event['rows'], 'row')} received before {event['before']}, {seconds}"
        )
    if action == "checkpointed":
        return (
            f"wrote a checkpoint of the table's log at version {event['version']:,}, "
            f"{count(event['commits'], 'commit')} after the last one, {seconds}"
        )
    if action == "cleaned log":
        return f"deleted {count(event['entries'], 'file')} of the table's log {seconds}"
    if action == "vacuumed":
        return f"deleted {count(event['files'], 'file')} that no version needs {seconds}"
    return f"did not compact {count(event['files'], 'file')}: another program has rewritten them"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"

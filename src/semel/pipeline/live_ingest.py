"""The ingest process that `semel.pipeline.live` starts beside a Spark driver.

It runs `semel.client.ingest`, with three additions:

- it publishes its status in `status.json`, because nothing reads its output;
- it ends when the driver has ended, when another process asks it to, or when no query has read from
  it for a while. It first stores and acknowledges what it has received; the broker keeps its
  session;
- it keeps the lock of its folder until it exits: when the lock is free, its status is final.

Its task is one JSON object on standard input, because other users can see command lines:

    {"options": {…}, "root": "…", "stream": "…", "driver": [pid, start time],
     "run": "…", "identity": {…}}

`run` and `identity` are copied into the status: `run` tells the starter that the status is that of
its own process, `identity` tells others which options it has.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from semel.client.errors import Disconnected, Refused
from semel.client.ingest import Ingest
from semel.client.outbox import OtherClientId
from semel.extras import MissingExtra
from semel.mqtt.violation import Violation
from semel.pipeline.errors import OptionError
from semel.pipeline.live_folder import (
    CONNECTED,
    DRAINING,
    ENDED,
    FAILED,
    LOG_BYTES,
    STARTING,
    IngestStatus,
    LiveFolder,
)
from semel.pipeline.live_options import LiveOptions, read_options
from semel.processes import process_start
from semel.store.schema import StoreInUse, Unusable

LOG: Final = logging.getLogger("semel.live")

# Seconds between two updates of the status: while a query waits for the connection, and later.
FIRST_SECONDS: Final = 0.05
POLL_SECONDS: Final = 0.5
# How long to wait for the lock, which others hold briefly when they check for an ingest.
LOCK_SECONDS: Final = 5.0
# Warnings in the status.
MOST_WARNINGS: Final = 20
# Errors that a retry does not cure. Any other error is a bug.
EXPECTED: Final = (Refused, Disconnected, Unusable, Violation, OptionError, MissingExtra)
# The logger that reports why a connection failed.
CONNECTION: Final = "semel.client"


class WarningCollector(logging.Handler):
    """Collects warnings for the status: the state of the connection, and all others."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.trouble = ""
        self.warnings: deque[tuple[int, str]] = deque(maxlen=MOST_WARNINGS)
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == LOG.name:
            return  # these are in the status already
        text = printable(record.getMessage())
        if record.name == CONNECTION:
            self.trouble = text
        else:
            self._number += 1
            self.warnings.append((self._number, text))


class IngestWatch:
    """Publishes the status of a running Ingest, and stops it when it is no longer needed."""

    def __init__(
        self, folder: LiveFolder, status: IngestStatus, driver: tuple[int, int], linger: float
    ) -> None:
        self.folder = folder
        self.status = status
        self._driver = driver
        self._linger = linger
        self._unread_since: float | None = None

    async def run(self, work: Ingest, warnings: WarningCollector) -> None:
        """Run until cancelled. Stops `work` when it is no longer needed."""
        while True:
            self._update_status(work, warnings)
            if self.status.state != DRAINING:
                self._stop_if_unneeded(work)
            is_awaited = self.status.state not in (CONNECTED, DRAINING) and not warnings.trouble
            await asyncio.sleep(FIRST_SECONDS if is_awaited else POLL_SECONDS)

    def _update_status(self, work: Ingest, warnings: WarningCollector) -> None:
        counters = work.counters
        # Before the store is open there is no node.
        if counters.node and self.status.state != DRAINING:
            self.status.state = counters.state
        if counters.state == CONNECTED:
            warnings.trouble = ""
        self.status.trouble = warnings.trouble
        self.status.warnings = list(warnings.warnings)
        self.status.counters = asdict(counters)
        self.write_status()

    def write_status(self) -> None:
        """Publish the status. A full disk does not end the ingest."""
        try:
            self.folder.write_status(self.status)
        except OSError as problem:
            LOG.warning("the status cannot be written: %s", problem)

    def _stop_if_unneeded(self, work: Ingest) -> None:
        reason = ""
        if not is_running(self._driver):
            reason = "the driver has ended"
        elif self.folder.is_asked_to_end(self.status.run):
            reason = "another ingest replaces it"
        if reason:
            self._drain(work, reason)
            return
        with self.folder.without_readers() as is_unread:
            now = time.monotonic()
            if not is_unread:
                self._unread_since = None
            elif self._unread_since is None:
                self._unread_since = now
            if self._unread_since is not None and now - self._unread_since >= self._linger:
                # Published while no reader can register: the next one sees that this one ends.
                self._drain(work, "no query reads from it")

    def _drain(self, work: Ingest, reason: str) -> None:
        LOG.info("shutting down: %s", reason)
        self.status.state = DRAINING
        self.write_status()
        work.stop()


def is_running(process: tuple[int, int]) -> bool:
    """Whether this process is running, and not a later one with the same process ID."""
    pid, started = process
    if started:
        return process_start(pid) == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def printable(text: str) -> str:
    """A message that is safe to log: control characters from a peer are escaped."""
    return text if text.isprintable() else ascii(text)[1:-1]


# --- the process ----------------------------------------------------------------------------------


async def ingest(options: LiveOptions, watch: IngestWatch, warnings: WarningCollector) -> None:
    """Ingest until stopped, or until a retry is pointless."""
    work = Ingest(options.plan)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.stop)
    watching = loop.create_task(watch.run(work, warnings))
    watching.add_done_callback(lambda _: work.stop())
    try:
        await work.run()
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        watch.status.counters = asdict(work.counters)


def run(options: LiveOptions, watch: IngestWatch, warnings: WarningCollector) -> None:
    """Ingest, on uvloop if it is installed."""
    ingesting = ingest(options, watch, warnings)
    try:
        uvloop = import_module("uvloop")
    except ImportError:
        asyncio.run(ingesting)
    else:
        uvloop.run(ingesting)


def describe_failure(problem: Exception, folder: LiveFolder) -> str:
    """One or two sentences that say why the ingest failed and what to do."""
    sentence = printable(str(problem))
    if isinstance(problem, Disconnected) and problem.is_final:
        return (
            f"{sentence}. Use another clientId and a new folder (option data); or run `semel"
            " ingest` once with --start-clean for this store, which gives up the messages that the"
            " broker has queued"
        )
    if isinstance(problem, StoreInUse):
        return f"{sentence}. If that is an ingest, leave out option url to read what it records"
    if isinstance(problem, OtherClientId):
        return printable(
            f"{problem.folder} belongs to the client {problem.client_id!r}: use that clientId, or"
            " another folder by option data"
        )
    if isinstance(problem, EXPECTED):
        return sentence
    return f"the ingest failed ({printable(repr(problem))}); its log is {folder.log}"


def set_up_log(folder: LiveFolder) -> WarningCollector:
    """Log to a file of bounded size, and collect warnings for the status."""
    lines = RotatingFileHandler(folder.log, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    lines.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    warnings = WarningCollector()
    logging.basicConfig(handlers=[lines, warnings], level=logging.INFO)
    logging.captureWarnings(True)
    # If the log cannot be written, do not print that to standard error for each line.
    logging.raiseExceptions = False
    return warnings


def main() -> int:
    """Run the ingest that standard input describes; returns the exit code."""
    try:
        (store,) = sys.argv[1:]
        task = json.load(sys.stdin)
        driver = (int(task["driver"][0]), int(task["driver"][1]))
        given, root, stream = task["options"], task["root"], task["stream"]
        status = IngestStatus(task["run"], os.getpid(), driver[0], STARTING, dict(task["identity"]))
    except (ValueError, LookupError, TypeError):
        print('semel.pipeline.live_ingest is started by format("mqtt")', file=sys.stderr)
        return 2
    os.umask(0o077)
    folder = LiveFolder(Path(store))
    if folder.lock(LOCK_SECONDS) is None:
        print("another ingest has the lock", file=sys.stderr)
        return 3
    warnings = set_up_log(folder)
    watch = IngestWatch(folder, status, driver, 0.0)
    try:
        options = read_options(given, root=root, stream=stream)
        watch = IngestWatch(folder, status, driver, options.linger)
        folder.write_status(status)
        run(options, watch, warnings)
    except Exception as problem:
        # Every error ends the ingest, and goes to the queries by the status.
        status.problem = describe_failure(problem, folder)
        LOG.error("%s", status.problem, exc_info=not isinstance(problem, EXPECTED))
    status.state = FAILED if status.problem else ENDED
    status.warnings = list(warnings.warnings)
    watch.write_status()
    return 1 if status.problem else 0


if __name__ == "__main__":
    sys.exit(main())

"""Queries over a live broker: they share one ingest process beside the Spark driver.

    worker of a query ──attach──▶ is an ingest running? ──no──▶ start it ──▶ wait for its status
      (one per query)               └─ yes, with the same options: read what it records
                      ──check───▶ is it still running? before each batch is planned

The ingest (`live_ingest`) is a separate process that shares nothing with Spark: no descriptor, no
session, no process group. It survives the Python workers that Spark starts and stops, and ends with
the driver: the JVM above this process, whose process ID it is given. Everything else is coordinated
through the locks and files of a `LiveFolder`.

- A store has one ingest. A query that finds one with the same options uses it.
- While a query reads, its process holds a shared lock. Options that differ from those of the last
  ingest are refused while any other query reads, even if that ingest has ended: its readers will
  start it again. Without other readers the old ingest is stopped and replaced.
- A query takes the shared lock only while it has the right to start an ingest. So every holder
  belongs to the last ingest, and new queries with new options do not block each other.
- If an ingest failed, the query fails with its message. If it was killed, or ended with the driver
  that had started it, it is started again. A failed query releases its lock.
"""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

from semel.pipeline.errors import OptionError, PipelineError
from semel.pipeline.live_folder import (
    CONNECTED,
    FAILED,
    RETRY_SECONDS,
    RUNNING_STATES,
    IngestStatus,
    LiveFolder,
)
from semel.pipeline.live_ingest import printable
from semel.pipeline.live_options import LiveOptions, read_options
from semel.processes import process_start, read_process

LOG: Final = logging.getLogger("semel.live")

# How long to wait for a connection before the query begins without one.
READY_SECONDS: Final = 15.0
# How long an ingest may take to start or to end; a large store needs a while.
INGEST_TIMEOUT: Final = 120.0
# The name of the driver's process.
JAVA: Final = "java"

# Options, root and stream of a query.
Key = tuple[frozenset[tuple[str, str]], str, str]


@dataclass
class LiveReading:
    """This process as a reader for a query: its lock, and what it has logged about the ingest."""

    folder: LiveFolder
    options: LiveOptions
    descriptor: int
    # The ingest, if this process started it and has to reap it.
    process: "subprocess.Popen[bytes] | None" = None
    run: str = ""
    warning: int = 0
    is_in_trouble: bool = False


# The queries for which this process holds the shared lock.
_READING: Final[dict[Key, LiveReading]] = {}


def attach(live: Mapping[str, str], *, root: str, stream: str) -> None:
    """Start an ingest with these options, or use a running one, and keep it while we read.

    Called on the driver before the first offset. Raises OptionError if options are wrong or differ
    from those of an ingest that others read from, and PipelineError if the ingest cannot start. A
    broker that cannot be reached is not an error: the ingest retries, and the log says so.
    """
    key = _key(live, root, stream)
    try:
        options = read_options(live, root=root, stream=stream)
        assert options.plan.store.data is not None
        folder = LiveFolder(options.plan.store.data)
        with _folder_errors(folder):
            folder.create()
            with folder.starting():
                reading = _READING.get(key)
                if reading is None:
                    reading = _READING[key] = LiveReading(folder, options, folder.add_reader())
                if not _is_running(reading):
                    _start(reading, {"options": dict(live), "root": root, "stream": stream})
            status = folder.status()
    except BaseException:
        _release(key)
        raise
    if status is not None:
        _log_warnings(reading, status)


def check(live: Mapping[str, str], *, root: str, stream: str) -> None:
    """Check before each batch that the ingest is running; this reads two small files.

    An ingest that was killed, or that ended with another driver, is started again. Raises
    PipelineError if the ingest failed, or if one with other options has replaced it. Attaches, if
    this process has not attached yet.
    """
    key = _key(live, root, stream)
    reading = _READING.get(key)
    if reading is None:
        attach(live, root=root, stream=stream)
        return
    folder = reading.folder
    if reading.process is not None:
        reading.process.poll()
    with _folder_errors(folder):
        is_alive = folder.is_alive()
        status = folder.status()
    if is_alive:
        if status is None:
            return
        different = reading.options.differences(status.identity)
        if different and status.state in RUNNING_STATES:
            # The locks prevent this. But if it happens, missing rows must not go unnoticed.
            _release(key)
            raise PipelineError(_replaced(different, status, reading.options))
        _log_warnings(reading, status)
        return
    if status is not None and status.state == FAILED:
        _release(key)
        raise PipelineError(_failure(status))
    LOG.warning("the ingest into stream %s has ended, and is started again", stream)
    attach(live, root=root, stream=stream)


def _key(live: Mapping[str, str], root: str, stream: str) -> Key:
    return frozenset(live.items()), root, stream


def _release(key: Key) -> None:
    """Release the shared lock that this process holds for a query."""
    reading = _READING.pop(key, None)
    if reading is not None:
        os.close(reading.descriptor)


# --- a running ingest -----------------------------------------------------------------------------


def _is_running(reading: LiveReading) -> bool:
    """Whether an ingest with these options is running. One with other options is stopped.

    Raises OptionError if other queries use an ingest with other options, or will start it again:
    both would share the store and the broker's session.
    """
    folder, options = reading.folder, reading.options
    asked = ""
    end = time.monotonic() + INGEST_TIMEOUT
    while folder.is_alive():
        status = folder.status()
        if status is not None and status.state in RUNNING_STATES and status.run != asked:
            different = options.differences(status.identity)
            if not different:
                return True
            if not folder.is_only_reader(reading.descriptor):
                raise OptionError(_refusal(different, status, options))
            asked = status.run
            folder.ask_to_end(asked)
        if time.monotonic() > end:
            raise PipelineError(f"another ingest does not end; its log is {folder.log}")
        time.sleep(RETRY_SECONDS)
    last = folder.status()
    different = [] if last is None else options.differences(last.identity)
    if last is not None and different and not folder.is_only_reader(reading.descriptor):
        raise OptionError(_refusal(different, last, options))
    return False


def _refusal(different: list[str], status: IngestStatus, options: LiveOptions) -> str:
    return (
        f"{_named(different)}: another query uses the ingest of the store"
        f" {options.plan.store.data} with {_given(different, status)}; give the same, or another"
        " stream or root, or stop that query first"
    )


def _replaced(different: list[str], status: IngestStatus, options: LiveOptions) -> str:
    return (
        f"{_named(different)}: another ingest has replaced that of this query in the store"
        f" {options.plan.store.data} and has {_given(different, status)}; topics that only this"
        " query asked for are not recorded. Give both queries the same options, or one of them"
        " another stream or root"
    )


def _named(different: list[str]) -> str:
    return f"{'options' if len(different) > 1 else 'option'} {' and '.join(different)}"


def _given(different: list[str], status: IngestStatus) -> str:
    return ", ".join(f"{each} {status.identity.get(each, 'by default')}" for each in different)


# --- starting an ingest ---------------------------------------------------------------------------


def _start(reading: LiveReading, task: Mapping[str, object]) -> None:
    """Start an ingest, and wait until it has tried to connect. Raises PipelineError."""
    folder = reading.folder
    run = token_hex(8)
    who = {"driver": driver(), "run": run, "identity": dict(reading.options.identity)}
    with open(folder.crash, "wb", opener=_private) as crash:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "semel.pipeline.live_ingest", str(folder.store)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=crash,
            env=_environment(),
            # It must survive this process, and not receive Ctrl-C.
            start_new_session=True,
        )
    reading.process = process
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(json.dumps({**task, **who}).encode())
    _wait_until_connected(folder, process, run)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _wait_until_connected(folder: LiveFolder, process: "subprocess.Popen[bytes]", run: str) -> None:
    begun = time.monotonic()
    while True:
        has_ended = process.poll() is not None
        status = folder.status()
        # By `run`, not by process ID: an earlier ingest may have had the same one.
        if status is not None and status.run == run:
            if status.state == CONNECTED or status.trouble:
                return
            if status.state == FAILED:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(INGEST_TIMEOUT)
                raise PipelineError(_failure(status))
            if status.counters and time.monotonic() - begun > READY_SECONDS:
                LOG.warning("the ingest: waiting for the broker, which has not answered yet")
                return
        if has_ended:
            raise PipelineError(
                f"the ingest ended while starting: {_last_error(folder)}; its log is {folder.log}"
            )
        if time.monotonic() - begun > INGEST_TIMEOUT:
            raise PipelineError(
                f"the ingest did not start within {INGEST_TIMEOUT:.0f} s; its log is {folder.log}"
            )
        time.sleep(RETRY_SECONDS)


def _environment() -> dict[str, str]:
    """The environment of this process, with its module path and without Spark's secrets."""
    found = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON_WORKER_FACTORY")
    }
    found["PYTHONPATH"] = os.pathsep.join(each for each in sys.path if each)
    return found


def driver() -> tuple[int, int]:
    """The process ID and the start time of the driver, with which the ingest ends.

    It is the nearest Java process above this one; a daemon of Spark may be between them. Without
    one it is the parent process.
    """
    parent = os.getppid()
    pid = parent
    while pid > 0:
        process = read_process(pid)
        if process is None:
            break
        if process.name == JAVA:
            return pid, process.started
        pid = process.parent
    return parent, process_start(parent)


# --- messages -------------------------------------------------------------------------------------


def _log_warnings(reading: LiveReading, status: IngestStatus) -> None:
    """Log new warnings of the ingest on the driver, each once."""
    if status.run != reading.run:
        reading.run, reading.warning, reading.is_in_trouble = status.run, 0, False
    for number, text in status.warnings:
        if number > reading.warning:
            LOG.warning("the ingest: %s", text)
            reading.warning = number
    if status.trouble and not reading.is_in_trouble:
        LOG.warning("the ingest: %s", status.trouble)
    elif reading.is_in_trouble and not status.trouble:
        LOG.warning("the ingest: connected to the broker again")
    reading.is_in_trouble = bool(status.trouble)


def _failure(status: IngestStatus) -> str:
    return f"the ingest for option url failed: {status.problem}"


def _last_error(folder: LiveFolder) -> str:
    """The last line of the ingest's standard error."""
    with suppress(OSError):
        lines = folder.crash.read_text("utf-8", "replace").split("\n")
        return next(
            (printable(each) for each in reversed(lines) if each.strip()), "no error message"
        )
    return "no error message"


@contextmanager
def _folder_errors(folder: LiveFolder) -> Iterator[None]:
    """Turn an OSError about the folder into a PipelineError."""
    try:
        yield
    except OSError as problem:
        where = problem.filename or folder.folder
        raise PipelineError(f"{where} cannot be used: {problem.strerror or problem}") from problem

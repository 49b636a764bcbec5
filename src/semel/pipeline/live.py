"""Reading a live broker: the ingest beside the driver, and how queries come to it.

    worker of a query ──attach──▶ is one at work? ──no──▶ starts it ──▶ waits for its first word
      (one for each)                └─ yes, with the same options: reads what that one records
                    ──check───▶ is it still? before each batch is planned

The ingest (`live_ingest`) is a process of its own with nothing of Spark's: no descriptor, no
session, no process group. So it outlives the Python processes that Spark starts and ends as it
likes, and ends with the driver, whose number it is given: the JVM that has started this process.
Everything else goes through the locks and files of a `Place`.

- One ingest for a store: who finds one at work with the same options starts none.
- While a query reads, its process holds a shared lock. Options that differ from those of the last
  ingest are refused as long as anybody else reads, also if that ingest is gone: who reads starts it
  again. If nobody does, the old one is ended and one with the new options begins.
- Who comes takes that lock only when it is their turn to start one. So whoever holds it has come
  to the last ingest, and queries that come at once with new options do not hinder each other.
- One that failed has said why, and the query fails with that sentence. One that is gone without a
  word, or ended with the driver that had started it, is started again. A query that has failed
  holds nothing.
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
from pathlib import Path
from secrets import token_hex
from typing import Final

from semel.pipeline.errors import OptionError, PipelineError
from semel.pipeline.live_folder import (
    AT_WORK,
    CONNECTED,
    FAILED,
    TRY_SECONDS,
    IngestStatus,
    Place,
)
from semel.pipeline.live_ingest import one_line, started_at
from semel.pipeline.live_options import LiveOptions, read_options

LOG: Final = logging.getLogger("semel.live")

# How long to wait for a connection before the query begins without one.
READY_SECONDS: Final = 15.0
# How long an ingest may take to begin, or to end: a large store takes its time.
INGEST_TIMEOUT: Final = 120.0
# What the driver's process is called.
JAVA: Final = "java"

# Of a query: its options, where its segments are, and the stream.
Key = tuple[frozenset[tuple[str, str]], str, str]


@dataclass
class LiveReading:
    """A process that reads for a query: what it holds, and what it has told of the ingest."""

    place: Place
    wanted: LiveOptions
    descriptor: int
    # The ingest, if this process has started it: to be waited for when it ends.
    process: "subprocess.Popen[bytes] | None" = None
    run: str = ""
    warning: int = 0
    is_in_trouble: bool = False


# What this process holds until it ends or its query fails: so others know that somebody reads.
_READING: Final[dict[Key, LiveReading]] = {}


def attach(live: Mapping[str, str], *, root: str, stream: str) -> None:
    """There is an ingest with these options when this returns, and it stays while we read.

    On the driver, before the first offset. Raises OptionError for options that are wrong or not
    those of the ingest that others read from, and PipelineError if there can be none. A broker
    that cannot be reached now is no error: the ingest goes on trying, and the log says so.
    """
    key = _key(live, root, stream)
    try:
        wanted = read_options(live, root=root, stream=stream)
        assert wanted.plan.store.data is not None
        place = Place(wanted.plan.store.data)
        with _folder_errors(place):
            place.make()
            with place.starting():
                reading = _READING.get(key)
                if reading is None:
                    reading = _READING[key] = LiveReading(place, wanted, place.hold())
                if not _is_there(reading):
                    _start(reading, {"options": dict(live), "root": root, "stream": stream})
            status = place.status()
    except BaseException:
        _release(key)
        raise
    if status is not None:
        _tell(reading, status)


def check(live: Mapping[str, str], *, root: str, stream: str) -> None:
    """Whether the ingest is still there: a look at two small files, before each batch.

    One that ended with another driver or was killed is started again. Raises PipelineError with
    what it said, if it has failed, and if one with other options is in its place. In a process that
    has not attached, this does.
    """
    key = _key(live, root, stream)
    reading = _READING.get(key)
    if reading is None:
        attach(live, root=root, stream=stream)
        return
    place = reading.place
    if reading.process is not None:
        reading.process.poll()
    with _folder_errors(place):
        is_alive = place.is_alive()
        status = place.status()
    if is_alive:
        if status is None:
            return
        unlike = reading.wanted.unlike(status.identity)
        if unlike and status.state in AT_WORK:
            # Our locks allow nobody that; but what is missing must not be missed in silence.
            _release(key)
            raise PipelineError(_replaced(unlike, status, reading.wanted))
        _tell(reading, status)
        return
    if status is not None and status.state == FAILED:
        _release(key)
        raise PipelineError(_failure(status))
    LOG.warning("the ingest into stream %s has ended, and is started again", stream)
    attach(live, root=root, stream=stream)


def _key(live: Mapping[str, str], root: str, stream: str) -> Key:
    return frozenset(live.items()), root, stream


def _release(key: Key) -> None:
    """This process does not read for that query any more."""
    reading = _READING.pop(key, None)
    if reading is not None:
        os.close(reading.descriptor)


# --- one that is there ----------------------------------------------------------------------------


def _is_there(reading: LiveReading) -> bool:
    """Whether an ingest with these options is at work. One with others is ended.

    Raises OptionError if others read from one with other options, or wait for it to be started
    again: it would be theirs in the store and in the broker's session.
    """
    place, wanted = reading.place, reading.wanted
    asked = ""
    end = time.monotonic() + INGEST_TIMEOUT
    while place.is_alive():
        status = place.status()
        if status is not None and status.state in AT_WORK and status.run != asked:
            unlike = wanted.unlike(status.identity)
            if not unlike:
                return True
            if not place.is_alone(reading.descriptor):
                raise OptionError(_refusal(unlike, status, wanted))
            asked = status.run
            place.ask_to_end(asked)
        if time.monotonic() > end:
            raise PipelineError(f"an ingest is at work that does not end; its log is {place.log}")
        time.sleep(TRY_SECONDS)
    last = place.status()
    unlike = [] if last is None else wanted.unlike(last.identity)
    if last is not None and unlike and not place.is_alone(reading.descriptor):
        raise OptionError(_refusal(unlike, last, wanted))
    return False


def _refusal(unlike: list[str], status: IngestStatus, wanted: LiveOptions) -> str:
    return (
        f"{_named(unlike)}: another query reads from the ingest of the store"
        f" {wanted.plan.store.data}, which has {_given(unlike, status)}; give the same, or another"
        " stream or root, or stop that query first"
    )


def _replaced(unlike: list[str], status: IngestStatus, wanted: LiveOptions) -> str:
    return (
        f"{_named(unlike)}: another ingest is in the place of this query's, in the store"
        f" {wanted.plan.store.data}, and has {_given(unlike, status)}; what only this query asked"
        " for is not recorded meanwhile. Give the same to both queries, or another stream or root"
        " to one of them"
    )


def _named(unlike: list[str]) -> str:
    return f"{'options' if len(unlike) > 1 else 'option'} {' and '.join(unlike)}"


def _given(unlike: list[str], status: IngestStatus) -> str:
    return ", ".join(f"{each} {status.identity.get(each, 'by default')}" for each in unlike)


# --- one that is not ------------------------------------------------------------------------------


def _start(reading: LiveReading, task: Mapping[str, object]) -> None:
    """Start it, and wait until it is connected, or cannot be for now. Raises PipelineError."""
    place = reading.place
    run = token_hex(8)
    who = {"driver": driver(), "run": run, "identity": dict(reading.wanted.identity)}
    with open(place.crash, "wb", opener=_private) as crash:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "semel.pipeline.live_ingest", str(place.store)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=crash,
            env=_environment(),
            # It outlives this process, and Ctrl-C is not for it.
            start_new_session=True,
        )
    reading.process = process
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(json.dumps({**task, **who}).encode())
    _await_first_word(place, process, run)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _await_first_word(place: Place, process: "subprocess.Popen[bytes]", run: str) -> None:
    begun = time.monotonic()
    while True:
        has_ended = process.poll() is not None
        status = place.status()
        # Not by its process number: one that failed long ago may have had the same.
        if status is not None and status.run == run:
            if status.state == CONNECTED or status.trouble:
                return
            if status.state == FAILED:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(INGEST_TIMEOUT)
                raise PipelineError(_failure(status))
            if status.counters and time.monotonic() - begun > READY_SECONDS:
                LOG.warning("the ingest: the broker has not answered yet, and is waited for")
                return
        if has_ended:
            raise PipelineError(
                f"the ingest ended before it began: {_last_words(place)}; its log is {place.log}"
            )
        if time.monotonic() - begun > INGEST_TIMEOUT:
            raise PipelineError(f"the ingest does not begin; its log is {place.log}")
        time.sleep(TRY_SECONDS)


def _environment() -> dict[str, str]:
    """Ours, with all places where this process finds its modules, and without Spark's secrets."""
    found = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON_WORKER_FACTORY")
    }
    found["PYTHONPATH"] = os.pathsep.join(each for each in sys.path if each)
    return found


def driver() -> tuple[int, int]:
    """The process that everything ends with, and when it was started.

    It is the nearest process above this one that is a Java; between may be a daemon of Spark's. If
    there is none, it is the process that has started this one.
    """
    parent = os.getppid()
    pid = parent
    while pid > 0:
        try:
            # What the kernel calls it, and which process has started that.
            name, _, rest = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")
        except OSError:
            break
        if name.partition("(")[2] == JAVA:
            return pid, started_at(pid)
        pid = int(rest.split()[1])
    return parent, started_at(parent)


# --- words ----------------------------------------------------------------------------------------


def _tell(reading: LiveReading, status: IngestStatus) -> None:
    """What is new of the ingest goes to the driver's log, once."""
    if status.run != reading.run:
        reading.run, reading.warning, reading.is_in_trouble = status.run, 0, False
    for number, text in status.warnings:
        if number > reading.warning:
            LOG.warning("the ingest: %s", text)
            reading.warning = number
    if status.trouble and not reading.is_in_trouble:
        LOG.warning("the ingest: %s", status.trouble)
    elif reading.is_in_trouble and not status.trouble:
        LOG.warning("the ingest: the broker is connected again")
    reading.is_in_trouble = bool(status.trouble)


def _failure(status: IngestStatus) -> str:
    return f"the ingest of option url has failed: {status.problem}"


def _last_words(place: Place) -> str:
    """The last line that went to standard error."""
    with suppress(OSError):
        lines = place.crash.read_text("utf-8", "replace").split("\n")
        return next((one_line(each) for each in reversed(lines) if each.strip()), "without a word")
    return "without a word"


@contextmanager
def _folder_errors(place: Place) -> Iterator[None]:
    """What the system has against the place, in a sentence."""
    try:
        yield
    except OSError as problem:
        where = problem.filename or place.folder
        raise PipelineError(f"{where} cannot be used: {problem.strerror or problem}") from problem

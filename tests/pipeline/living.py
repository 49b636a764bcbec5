"""What the tests of `semel.pipeline.live` have in common: drivers, workers, and the record."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import semel
from semel.lab.testing import TestBroker
from semel.mqtt.session import NEVER_EXPIRES
from semel.pipeline.live_folder import CONNECTED, IngestStatus, LiveFolder
from semel.pipeline.live_options import read_options
from tests.kills.record import pick

STREAM = "plant"
# Generous: it only ends what would hang.
PATIENCE = 60.0


def make_broker(**settings: Any) -> TestBroker:
    """A broker that keeps sessions forever, as the ingest asks for; else the ingest warns."""
    return TestBroker(maximum_session_expiry=NEVER_EXPIRES, **settings)


PROGRAM = Path(__file__).with_name("live_driver.py")


def until(reached: Callable[[], bool], words: str = "it did not come to pass") -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < end, words
        time.sleep(0.02)


class Answer(NamedTuple):
    """What a worker says of a call."""

    error: tuple[str, str] | None
    log: list[str]


class Worker:
    """A process that reads for a query."""

    def __init__(self, connection: socket.socket, driver: int) -> None:
        self._connection = connection
        self._file = connection.makefile("rw", encoding="utf-8")
        greeting = json.loads(self._file.readline())
        self.pid: int = greeting["pid"]
        assert greeting["driver"] == driver

    def call(self, call: str, options: dict[str, str], root: Path | str) -> Answer:
        task = {"call": call, "options": options, "root": str(root), "stream": STREAM}
        self._file.write(json.dumps(task) + "\n")
        self._file.flush()
        line = self._file.readline()
        assert line, "the worker died"
        answer = json.loads(line)
        return Answer(answer["error"] and tuple(answer["error"]), answer["log"])

    def attach(self, options: dict[str, str], root: Path | str) -> list[str]:
        """Attach; what is in the log."""
        answer = self.call("attach", options, root)
        assert answer.error is None
        return answer.log

    def check(self, options: dict[str, str], root: Path | str) -> list[str]:
        answer = self.call("check", options, root)
        assert answer.error is None
        return answer.log

    def refused(self, options: dict[str, str], root: Path | str, call: str = "attach") -> str:
        """The sentence, after the name of its class."""
        answer = self.call(call, options, root)
        assert answer.error is not None
        return ": ".join(answer.error)

    def end(self) -> None:
        """It ends, and the query is over."""
        self._close()
        until(lambda: not is_running(self.pid))

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        until(lambda: not is_running(self.pid))
        self._close()

    def _close(self) -> None:
        with suppress(OSError):
            self._file.close()
        self._connection.close()


class Driver:
    """A process that starts workers, as a JVM does."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "s"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self._path))
        self._socket.listen()
        self._socket.settimeout(PATIENCE)
        self._workers: list[Worker] = []
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM)],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(semel.__file__).parent.parent)},
        )

    def worker(self) -> Worker:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{self._path}\n".encode())
        self.process.stdin.flush()
        connection, _ = self._socket.accept()
        connection.settimeout(PATIENCE)
        self._workers.append(Worker(connection, self.process.pid))
        return self._workers[-1]

    def kill(self) -> None:
        """kill -9 of the driver; its workers notice that, and end."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        for worker in self._workers:
            worker.kill()
        self._socket.close()


@contextmanager
def driving() -> Iterator[Driver]:
    """A driver; it is killed at the end."""
    # The path of a socket has at most 108 bytes.
    with TemporaryDirectory() as folder:
        driver = Driver(Path(folder))
        try:
            yield driver
        finally:
            driver.kill()


def place_of(root: Path) -> LiveFolder:
    return LiveFolder(root / ".semel-ingest" / STREAM)


def status_of(root: Path) -> IngestStatus:
    status = place_of(root).status()
    assert status is not None
    return status


def ingest_ended(root: Path) -> IngestStatus:
    """What the ingest said last; wait until it is gone."""
    place = place_of(root)
    until(lambda: not place.is_alive(), "the ingest does not end")
    return status_of(root)


@contextmanager
def intruding(options: dict[str, str], root: Path) -> Iterator[IngestStatus]:
    """An ingest that was started by who asks nobody; its status when it is connected."""
    place = place_of(root)
    task = {
        "options": options,
        "root": str(root),
        "stream": STREAM,
        "driver": [os.getpid(), 0],
        "run": "intruder",
        "identity": read_options(options, root=str(root), stream=STREAM).identity,
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "semel.pipeline.live_ingest", str(place.store)],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(semel.__file__).parent.parent)},
    )
    try:
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(json.dumps(task).encode())
        until(lambda: status_of(root).run == "intruder" and status_of(root).state == CONNECTED)
        yield status_of(root)
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0


def child_of(pid: int) -> int:
    """The one process that another has started, when there is one."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    until(lambda: children.read_text() != "")
    (found,) = children.read_text().split()
    return int(found)


def waits_for_a_lock(pid: int) -> bool:
    lines = Path("/proc/locks").read_text().splitlines()
    # 1: -> FLOCK  ADVISORY  WRITE pid …
    return any("->" in line and int(line.split()[5]) == pid for line in lines)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


class Row(NamedTuple):
    """A row of the record."""

    topic: str
    payload: str
    qos: int
    client_id: str


def rows(root: Path) -> list[Row]:
    """What is in segments, by its numbers, which are dense."""
    parquet: Any = import_module("pyarrow.parquet")
    columns = ["seq", "topic", "payload", "qos", "client_id"]
    found: dict[int, Row] = {}
    for _, _, path in pick(root / STREAM):
        table = parquet.read_table(path, columns=columns).to_pydict()
        for seq, topic, payload, *rest in zip(*(table[name] for name in columns), strict=True):
            found[seq] = Row(str(topic), bytes(payload).decode(), *rest)
    assert sorted(found) == list(range(1, len(found) + 1))
    return [found[seq] for seq in sorted(found)]


def recorded(root: Path, count: int) -> list[str]:
    """The payloads, in order, when there are so many."""
    until(lambda: len(rows(root)) >= count, f"{count} rows did not come")
    return [row.payload for row in rows(root)]

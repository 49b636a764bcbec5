"""Runs `semel up` as a user would, and reads its events."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.broker.contenders import free_port, last_log_line

# Spark has to start, on a machine that may be busy.
START_SECONDS: Final = 180.0
STOP_SECONDS: Final = 150.0
TABLE: Final = "messages"
LOOK_SECONDS: Final = 0.02


class DidNotRun(Exception):
    """`semel up` failed, or did not do what is measured."""


class Up:
    """A running `semel up`. `events` has its JSON events, each with its time."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.data = folder / "data"
        self.events: list[tuple[float, dict[str, Any]]] = []
        self._log = folder / "log"
        command = [sys.executable, "-m", "semel", "up", "--data", str(self.data)]
        command += ["--port", str(self.port), "--json"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
            )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log_folder(self) -> Path:
        """The directory of the table's log."""
        return self.data / "lake" / TABLE / "_delta_log"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append((time.monotonic(), json.loads(line)))

    def check(self) -> None:
        """Raise DidNotRun if it has ended, or if a part died."""
        if self._process.poll() is not None:
            raise DidNotRun(f"semel up ended: {last_log_line(self._log)}")
        for _, event in list(self.events):
            if event["event"] == "died":
                raise DidNotRun(f"{event['part']} died: {event.get('text', '')}")

    def wait_until_ready(self) -> None:
        """Wait until broker and landing are ready."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            ready = {event["part"] for _, event in list(self.events) if event["event"] == "ready"}
            if {"broker", "landing"} <= ready:
                return
            time.sleep(LOOK_SECONDS)
        raise DidNotRun(f"semel up was not ready in {START_SECONDS:.0f} s")

    def stop(self) -> None:
        """Stop it gracefully, if it still runs."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reading.join()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Up]:
    """Start a `semel up` with default settings, and wait until it is ready; ends with the block."""
    folder.mkdir(parents=True)
    up = Up(folder)
    try:
        up.wait_until_ready()
        yield up
    finally:
        up.stop()


class TableLog:
    """Follows the log of a Delta table by its entries, without reading the table."""

    def __init__(self, folder: Path, app: str) -> None:
        """`app` is the transaction identifier to follow."""
        self._folder = folder
        self._app = app
        self._next = 0
        self.position = 0

    def look(self) -> int:
        """The last version of the transaction in the log."""
        while (path := self._folder / f"{self._next:020}.json").exists():
            found = position_in(path.read_text(), self._app)
            self.position = self.position if found is None else found
            self._next += 1
        return self.position


def position_in(entry: str, app: str) -> int | None:
    """The version of a transaction in a log entry; None if it has none."""
    found = None
    for line in entry.splitlines():
        transaction = json.loads(line).get("txn")
        if transaction is not None and transaction["appId"].startswith(app):
            found = int(transaction["version"])
    return found

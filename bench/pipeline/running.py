"""`semel up` as a user starts it, and what it says meanwhile."""

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

from bench.broker.contenders import free_port, last_words

# Spark has to start, on a machine that may be busy.
START_SECONDS: Final = 180.0
STOP_SECONDS: Final = 150.0
TABLE: Final = "messages"
LOOK_SECONDS: Final = 0.02


class DidNotRun(Exception):
    """What runs does not do what is measured."""


class Up:
    """A running `semel up`. Its objects come in `events`, each with the second when it came."""

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
        """Where the entries of the table's log are."""
        return self.data / "lake" / TABLE / "_delta_log"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.events.append((time.monotonic(), json.loads(line)))

    def check(self) -> None:
        """Raise DidNotRun if it has ended, or if a part died."""
        if self._process.poll() is not None:
            raise DidNotRun(f"semel up ended: {last_words(self._log)}")
        for _, event in list(self.events):
            if event["event"] == "died":
                raise DidNotRun(f"{event['part']} died: {event.get('text', '')}")

    def wait_until_ready(self) -> None:
        """Until broker and landing are."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            ready = {event["part"] for _, event in list(self.events) if event["event"] == "ready"}
            if {"broker", "landing"} <= ready:
                return
            time.sleep(LOOK_SECONDS)
        raise DidNotRun(f"semel up was not ready in {START_SECONDS:.0f} s")

    def stop(self) -> None:
        """In order, if it still can."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reading.join()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Up]:
    """A `semel up` with its default settings that is ready; it ends with this block."""
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
        """`app` is the transaction whose version is told."""
        self._folder = folder
        self._app = app
        self._next = 0
        self.position = 0

    def look(self) -> int:
        """The last version of the transaction that is in the log."""
        while (path := self._folder / f"{self._next:020}.json").exists():
            found = position_in(path.read_text(), self._app)
            self.position = self.position if found is None else found
            self._next += 1
        return self.position


def position_in(entry: str, app: str) -> int | None:
    """What an entry of the log says of a transaction; None: nothing."""
    found = None
    for line in entry.splitlines():
        transaction = json.loads(line).get("txn")
        if transaction is not None and transaction["appId"].startswith(app):
            found = int(transaction["version"])
    return found

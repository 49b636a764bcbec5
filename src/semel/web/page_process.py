"""The page as a child process of `semel broker --web`.

It runs under a tether, as a part of `semel up` does, so that it ends with the broker, even if that
is killed. If it ends by itself, the broker says why, and starts it again after a delay.
"""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from semel.store.sealing import environment_for_python
from semel.up import tether

LOG: Final = logging.getLogger("semel.broker")

STOP_SECONDS: Final = 10.0
FIRST_DELAY: Final = 1.0
LONGEST_DELAY: Final = 60.0


class PageProcess:
    """Starts the page, and restarts it until it is stopped. It has a thread of its own."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """`arguments` are those of `semel web`."""
        own = (str(Path(tether.__file__).resolve()), str(STOP_SECONDS))
        self._command = [
            *(sys.executable, "-I", "-S", *own),
            *(sys.executable, "-P", "-m", "semel", "web", "--json", *arguments),
        ]
        self._stopping = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._keep_running, name="page", daemon=True)

    def start(self) -> None:
        """Start it; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        self._stopping.set()
        self._close_input()
        self._thread.join(2 * STOP_SECONDS)

    def _close_input(self) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()

    def _keep_running(self) -> None:
        delay = FIRST_DELAY
        while not self._stopping.is_set():
            reason = self._run()
            if self._stopping.is_set():
                return
            LOG.warning("the page has ended: %s; restarting in %g s", reason, delay)
            self._stopping.wait(delay)
            delay = min(LONGEST_DELAY, 2 * delay)

    def _run(self) -> str:
        """One process, from its start to its end. Returns why it ended."""
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=environment_for_python(os.environ),
            )
        except OSError as problem:
            return f"it cannot be started: {problem.strerror}"
        if self._stopping.is_set():
            self._close_input()
        reason = ""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = _event(line)
            if event.get("event") == "ready":
                LOG.info("%s", event.get("text"))
            elif event.get("event") == "failed":
                reason = str(event.get("problem"))
        return reason or f"exit code {self._process.wait()}"


def _event(line: str) -> dict[str, object]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

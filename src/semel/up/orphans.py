"""Finds and kills the processes that a killed tether has left running.

Each tether leads a new session (tether.py). Its descendants stay in that session unless they create
another one, so every process of the session and every descendant of such a process is ours. A
search also keeps the processes that earlier searches found, until they end, because their parents
may have ended meanwhile. A process that created its own session and lost its parent before the
first search is not found. On a system without /proc nothing is found.
"""

import contextlib
import os
import signal

from semel.processes import descendants, list_processes


class Orphans:
    """The processes of a session whose leader was killed."""

    def __init__(self, session: int) -> None:
        self._session = session
        # Start times by process ID: an ID alone is ambiguous, because it may be reused.
        self._started: dict[int, int] = {}

    def find(self) -> bool:
        """Search for them. Returns whether any is running."""
        running = list_processes()
        ours = [
            pid
            for pid, process in running.items()
            if process.session == self._session or self._started.get(pid) == process.started
        ]
        ours += descendants(ours, running)
        self._started = {pid: running[pid].started for pid in ours}
        return bool(ours)

    def kill(self) -> None:
        """Kill those that the last search found."""
        for pid in self._started:
            # It may have ended since.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

"""Finds and kills the processes that a killed tether has left running.

A tether leads a session of its own (tether.py), and what it runs stays in that session unless it
creates another one. So every process of the session and every descendant of one is ours. Each
search also keeps the processes that earlier ones found, until they end: their parent may have ended
meanwhile. Not found is a process that had its own session and had lost its parent before the first
search. Where there is no /proc nothing is found.
"""

import contextlib
import os
import signal

from semel.processes import descendants, list_processes


class Orphans:
    """The processes of a session whose leader was killed."""

    def __init__(self, session: int) -> None:
        self._session = session
        # When each was started, by process ID: the ID of one that ended may be reused.
        self._started: dict[int, int] = {}

    def find(self) -> bool:
        """Search for them; whether any is running."""
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

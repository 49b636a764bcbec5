"""What a tether that was killed has left running: found by its session, and killed.

A tether is the first of a session of its own (tether.py), and what it runs stays in it unless it
makes another. So whoever is in that session is ours, and whoever descends from one of them; both
are looked for again each time, and those who were seen once are known until they end. A process is
known by its number and the moment of its start: a number that somebody else has got since is not
killed. Not found is what has made a session of its own and lost its parent before the first look.

Where there is no /proc nothing is found, and nothing is killed.
"""

import contextlib
import os
import signal

from semel.up import tether


class Leftovers:
    """Those who were seen, and have not ended."""

    def __init__(self, session: int) -> None:
        self._session = session
        # By number; with the moment of the start.
        self._known: dict[int, int] = {}

    def find(self) -> bool:
        """Whether there are any."""
        now = tether.table() if tether.IS_LINUX else {}
        self._known = {
            pid: started
            for pid, started in self._known.items()
            if pid in now and now[pid][2] == started
        }
        ours = [pid for pid, (_, session, _) in now.items() if session == self._session]
        ours += [pid for pid in self._known if pid not in ours]
        for pid in ours:
            ours += [child for child, found in now.items() if found[0] == pid and child not in ours]
        self._known = {pid: now[pid][2] for pid in ours}
        return bool(ours)

    def kill(self) -> None:
        """Those whom the last look has found."""
        for pid in self._known:
            # It may have ended since.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

"""Processor time of a process tree by role, and of all other processes.

`/proc/<pid>/stat` has the time of a process, and that of its descendants that have ended and were
waited for. So the time of a tree is the sum over its running processes, in steps of 10 ms, and
short-lived processes are included. Roles are recognized by command lines.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

JAVA: Final = "java"
# Python that Spark has started: its daemon, workers, planners.
WORKERS: Final = "workers"
BROKER: Final = "broker"
SEALER: Final = "sealer"
LANDING: Final = "landing"
PUBLISHERS: Final = "publishers"
REST: Final = "rest"

# Words of a command line by role; the first match counts.
SIGNS: Final = (
    (("semel.store.sealer",), SEALER),
    (("-m", "semel", "broker"), BROKER),
    (("-m", "semel", "land"), LANDING),
    (("-m", "semel", "load"), PUBLISHERS),
)
# If others use more than this share of the machine, a run is not reliable.
FREE: Final = 0.1

_TICK: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Seen:
    """A process at a moment: its own seconds, and those of ended children."""

    parent: int
    own: float
    waited: float
    command: tuple[str, ...]


def parse_stat(text: str) -> tuple[int, float, float]:
    """Parent, own seconds, seconds of children, from /proc/<pid>/stat."""
    # The name may contain anything; it ends at the last parenthesis.
    fields = text.rpartition(")")[2].split()
    user, system, children_user, children_system = (int(each) * _TICK for each in fields[11:15])
    return int(fields[1]), user + system, children_user + children_system


def look() -> dict[int, Seen]:
    """All processes of the machine."""
    found: dict[int, Seen] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent, own, waited = parse_stat((path / "stat").read_text())
            command = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
            found[int(path.name)] = Seen(parent, own, waited, tuple(command))
    return found


def role_of(command: tuple[str, ...], parent: str) -> str:
    """The role of a process, by its command line and its parent's role."""
    for words, role in SIGNS:
        if any(command[at : at + len(words)] == words for at in range(len(command))):
            return role
    if os.path.basename(command[0]) == "java":
        return JAVA
    if parent in (JAVA, WORKERS):
        return WORKERS
    return parent


def by_role(seen: Mapping[int, Seen], roots: Iterable[int], role: str = REST) -> dict[str, float]:
    """Seconds of these processes and their descendants, by role."""
    below: dict[int, list[int]] = {}
    for pid, each in seen.items():
        below.setdefault(each.parent, []).append(pid)
    total: dict[str, float] = {}
    waiting = [(pid, role) for pid in roots]
    while waiting:
        pid, parent = waiting.pop()
        if pid not in seen:
            continue
        found = role_of(seen[pid].command, parent)
        total[found] = total.get(found, 0.0) + seen[pid].own
        # The role of ended processes is unknown.
        gone = WORKERS if found == JAVA else found
        total[gone] = total.get(gone, 0.0) + seen[pid].waited
        waiting += [(child, found) for child in below.get(pid, [])]
    return total


def used(root: int, role: str = REST) -> dict[str, float]:
    """Seconds of processor time so far; `role` is that of a process without a sign of its own.

    One that has just ended has none: its command line is gone.
    """
    return by_role(look(), [root], role)


def since(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """The time used between two measurements."""
    return {
        role: max(0.0, seconds - before.get(role, 0.0)) for role, seconds in sorted(now.items())
    }


def busy_seconds(text: str) -> float:
    """Processor time of all processes of the machine, from /proc/stat."""
    fields = [int(each) for each in text.split("\n", 1)[0].split()[1:9]]
    user, nice, system, _idle, _wait, hard, soft, _stolen = fields
    return (user + nice + system + hard + soft) * _TICK


class Machine:
    """How much of the machine others have used since this object was created."""

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._busy = self._now()

    @staticmethod
    def _now() -> float:
        return busy_seconds(Path("/proc/stat").read_text())

    def others(self, ours: float) -> float:
        """The share of all processors that others used, given our own seconds."""
        elapsed = time.monotonic() - self._at
        return share(self._now() - self._busy, ours, elapsed, len(os.sched_getaffinity(0)))


def share(busy: float, ours: float, elapsed: float, processors: int) -> float:
    """The share of `processors` in `elapsed` seconds that others used."""
    return max(0.0, busy - ours) / (elapsed * processors) if elapsed else 0.0


def busy_machine_warning(others: float) -> str:
    """A warning if others used much of the machine."""
    if others <= FREE:
        return ""
    return f"⚠ Other programs had {others:.0%} of this machine: the figures mean little."

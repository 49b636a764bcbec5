"""The running processes, from Linux's /proc; on other systems none are found.

This module imports only the standard library, because `semel.up.tether` runs without anything else.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

IS_LINUX: Final = sys.platform == "linux"
# States of a process that has ended: a zombie, and one that is being removed.
_ENDED: Final = (b"Z", b"X")


class ProcessStat(NamedTuple):
    """A running process. A process ID may be reused: together with `started` it is unique."""

    name: str
    parent: int
    session: int
    # Clock ticks since boot.
    started: int


def read_process(pid: int) -> ProcessStat | None:
    """A running process; None if there is none with this ID, or if it is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    # The name, in parentheses, may contain any character.
    name, _, rest = line.partition(b"(")[2].rpartition(b")")
    state, *fields = rest.split()
    if state in _ENDED:
        return None
    return ProcessStat(
        name.decode("utf-8", "replace"), int(fields[0]), int(fields[2]), int(fields[18])
    )


def list_processes() -> dict[int, ProcessStat]:
    """All running processes, by process ID; empty if this is not Linux."""
    found = {}
    for name in os.listdir("/proc") if IS_LINUX else ():
        if name.isdigit() and (process := read_process(int(name))) is not None:
            found[int(name)] = process
    return found


def process_start(pid: int) -> int:
    """When a process was started, in clock ticks since boot; 0 if it is not running or unknown."""
    process = read_process(pid)
    return 0 if process is None else process.started


def descendants(pids: Sequence[int], processes: Mapping[int, ProcessStat]) -> list[int]:
    """All descendants of these processes, without `pids` themselves."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    family = list(pids)
    for pid in family:
        family += [child for child in children.get(pid, ()) if child not in family]
    return family[len(pids) :]

"""The faults of a demo, chosen by a seed, and the kill of processes.

A fault occurs once a number of messages is published, so that it hits work in progress on fast and
slow machines alike. Spark is killed when it has landed some messages and others are still to be
published: the next Spark has to continue where the first one ended.

Processes are found in /proc, among the descendants of the started process, by their command.
"""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from semel import counts
from semel.lab.faults import CUT_AFTER, CUT_BEFORE, REPEAT
from semel.mqtt import CLIENT, SERVER
from semel.mqtt.packet_types import PACKET_NAMES, PUBCOMP, PUBLISH, PUBREC, PUBREL
from semel.processes import list_processes

BROKER: Final = "broker"
SEALER: Final = "sealer"
SPARK: Final = "Spark"
PARTS: Final = (BROKER, SEALER, SPARK)

CUTS: Final = 12
REPEATS: Final = 4
# Where a connection is cut. PUBREC twice as often, because losing it causes a redelivery.
CUT_POINTS: Final = (
    (PUBREC, SERVER),
    (PUBREC, SERVER),
    (PUBCOMP, SERVER),
    (PUBLISH, CLIENT),
    (PUBREL, CLIENT),
)
# How many packets are repeated each time: least, most.
REPEATED: Final = (50, 150)
KILLS: Final = {BROKER: 2, SEALER: 2, SPARK: 1}
# Positions of faults as fractions of all messages. BEFORE_SPARK of them are published while Spark
# starts; Spark is killed while the others are published.
FIRST: Final = 0.05
LAST: Final = 0.95
BEFORE_SPARK: Final = 0.4
FIRST_OF_SPARK: Final = 0.5
LAST_OF_SPARK: Final = 0.8

SEALER_MODULE: Final = "semel.store.sealer"
TETHER: Final = "tether.py"
PROC: Final = Path("/proc")


@dataclass(frozen=True)
class PlannedFault:
    """A fault to inject once `at` messages are published: the part to kill, or a packet action."""

    at: int
    kind: str
    packet: int = 0
    sender: int = CLIENT
    count: int = 1

    @property
    def is_kill(self) -> bool:
        return self.kind in PARTS

    def __str__(self) -> str:
        if self.is_kill:
            return f"kill -9 {self.kind}"
        name = PACKET_NAMES[self.packet]
        if self.kind == REPEAT:
            return f"repeat {counts.count(self.count, f'{name} packet')}"
        when = "before" if self.kind == CUT_BEFORE else "after"
        return f"cut a connection {when} {name}"


def plan_faults(seed: int, messages: int, *, lands: bool = True) -> list[PlannedFault]:
    """All faults of a demo, in order; without `lands` there is no Spark to kill."""
    draw = random.Random(f"faults {seed}")  # nosec B311 # simulated faults

    def positions(count: int, first: float = FIRST, last: float = LAST) -> list[int]:
        """One random position in each of `count` equal intervals."""
        width = (last - first) / count
        return [
            max(1, int(messages * (first + width * (part + draw.random()))))
            for part in range(count)
        ]

    found: list[PlannedFault] = []
    for at in positions(CUTS):
        packet, sender = draw.choice(CUT_POINTS)
        found.append(PlannedFault(at, draw.choice((CUT_BEFORE, CUT_AFTER)), packet, sender))
    for at in positions(REPEATS):
        found.append(PlannedFault(at, REPEAT, PUBLISH, CLIENT, draw.randint(*REPEATED)))
    for part, times in KILLS.items():
        if part != SPARK:
            found += [PlannedFault(at, part) for at in positions(times)]
        elif lands:
            in_range = positions(times, FIRST_OF_SPARK, LAST_OF_SPARK)
            found += [PlannedFault(at, part) for at in in_range]
    return sorted(found, key=lambda each: each.at)


# --- processes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """A running process."""

    pid: int
    parent: int
    arguments: tuple[str, ...]

    def runs(self, part: str) -> bool:
        """Whether it is the process of this part, not one that only starts it."""
        names = [os.path.basename(word) for word in self.arguments]
        if TETHER in names:
            return False
        if part == SEALER:
            return SEALER_MODULE in self.arguments
        command = "broker" if part == BROKER else "land"
        return ("semel", command) in pairwise(names)


def processes() -> Iterator[Process]:
    """All running processes that are visible to this one."""
    for pid, process in list_processes().items():
        with suppress(OSError):
            line = (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0")
            arguments = tuple(os.fsdecode(word) for word in line.split(b"\0"))
            yield Process(pid, process.parent, arguments)


def descendants(pid: int) -> list[Process]:
    """All descendants of a process."""
    children: dict[int, list[Process]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [pid]
    while waiting:
        started = children.get(waiting.pop(), [])
        found += started
        waiting += [each.pid for each in started]
    return found


def kill_part(pid: int, part: str) -> int:
    """Kill a part below process `pid`; Spark with its descendants. Returns the number killed."""
    found = descendants(pid)
    brokers = [each.pid for each in found if each.runs(BROKER)]
    for process in found:
        # A sealer whose broker was killed is about to end anyway.
        is_target = part != SEALER or process.parent in brokers
        if process.runs(part) and is_target:
            # List descendants before the kill: orphans get another parent.
            pids = [process.pid]
            if part == SPARK:
                pids += [each.pid for each in descendants(process.pid)]
            killed = 0
            for each in pids:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
                    killed += 1
            return killed
    return 0

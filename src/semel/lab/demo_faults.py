"""What goes wrong in a demo, and when: chosen by a seed, in terms of how far messages have come.

A fault waits for a number of messages that are published, so that it hits work under way on a fast
machine and on a slow one. Spark is killed when it has landed some of them, and others are still to
be published: whoever lands those has to know where the first has ended.

Processes are found below the one that was started, in /proc, by the command they run.
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
# What a connection is cut at, PUBREC more often: then what was published is sent again.
LOSABLE: Final = (
    (PUBREC, SERVER),
    (PUBREC, SERVER),
    (PUBCOMP, SERVER),
    (PUBLISH, CLIENT),
    (PUBREL, CLIENT),
)
# Packets that are repeated each time.
REPEATED: Final = (50, 150)
KILLS: Final = {BROKER: 2, SEALER: 2, SPARK: 1}
# In which part of all messages faults lie. So many are published before Spark has to have landed
# some, and only then the others, among which it is killed.
FIRST: Final = 0.05
LAST: Final = 0.95
BEFORE_SPARK: Final = 0.4
FIRST_OF_SPARK: Final = 0.5
LAST_OF_SPARK: Final = 0.8

SEALER_MODULE: Final = "semel.store.sealer"
TETHER: Final = "tether.py"
PROC: Final = Path("/proc")


@dataclass(frozen=True)
class Planned:
    """One fault: from `at` messages on. `kind` is a part to kill, or what is done to packets."""

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


def plan_faults(seed: int, messages: int, *, lands: bool = True) -> list[Planned]:
    """All faults of a demo, by the messages that they wait for; without Spark if nothing lands."""
    draw = random.Random(f"faults {seed}")

    def moments(count: int, first: float = FIRST, last: float = LAST) -> list[int]:
        """One somewhere in each of so many parts of the way."""
        width = (last - first) / count
        return [
            max(1, int(messages * (first + width * (part + draw.random()))))
            for part in range(count)
        ]

    found: list[Planned] = []
    for at in moments(CUTS):
        packet, sender = draw.choice(LOSABLE)
        found.append(Planned(at, draw.choice((CUT_BEFORE, CUT_AFTER)), packet, sender))
    for at in moments(REPEATS):
        found.append(Planned(at, REPEAT, PUBLISH, CLIENT, draw.randint(*REPEATED)))
    for part, times in KILLS.items():
        if part != SPARK:
            found += [Planned(at, part) for at in moments(times)]
        elif lands:
            within = moments(times, FIRST_OF_SPARK, LAST_OF_SPARK)
            found += [Planned(at, part) for at in within]
    return sorted(found, key=lambda each: each.at)


# --- processes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """A process that runs."""

    pid: int
    parent: int
    words: tuple[str, ...]

    def runs(self, part: str) -> bool:
        """Whether it is the process that this part is, not one that only starts it."""
        names = [os.path.basename(word) for word in self.words]
        if TETHER in names:
            return False
        if part == SEALER:
            return SEALER_MODULE in self.words
        command = "broker" if part == BROKER else "land"
        return ("semel", command) in pairwise(names)


def processes() -> Iterator[Process]:
    """Those that run now, as far as they can be seen."""
    for pid, process in list_processes().items():
        with suppress(OSError):
            line = (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0")
            words = tuple(os.fsdecode(word) for word in line.split(b"\0"))
            yield Process(pid, process.parent, words)


def below(pid: int) -> list[Process]:
    """All that a process has started, and that these have started."""
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
    """Kill a part below process `pid`, at once: Spark with all it has started. How many died."""
    found = below(pid)
    brokers = [each.pid for each in found if each.runs(BROKER)]
    for process in found:
        # The sealer of a broker that was killed is about to end by itself.
        is_meant = part != SEALER or process.parent in brokers
        if process.runs(part) and is_meant:
            # Whom its parent leaves behind cannot be found below it any more: look first.
            doomed = [process.pid]
            if part == SPARK:
                doomed += [each.pid for each in below(process.pid)]
            killed = 0
            for each in doomed:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
                    killed += 1
            return killed
    return 0

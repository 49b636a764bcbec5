"""Times statements, in turn with others in the same run.

Contenders are measured in turn, a few milliseconds each, so that a slow moment of the machine
affects all of them. A round is the best of several turns, which excludes time that other programs
took; a contender's time is the median of its rounds. A statement is compiled into the loop that
times it, so the time does not include the call of a function.
"""

import statistics
import subprocess
import sys
import timeit
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

# The approximate duration of one turn in seconds, and the number of turns per round.
TURN: Final = 0.004
TURNS: Final = 5


@dataclass(frozen=True)
class Contender:
    """`statement` is timed with `names` as globals; it assigns `result`."""

    name: str
    statement: str
    names: dict[str, object]

    def run(self) -> Any:
        """Run it once, and return its result."""
        names = dict(self.names)
        exec(self.statement, names)
        return names["result"]


def nanoseconds(contenders: list[Contender], rounds: int) -> dict[str, float]:
    """Median nanoseconds per run of each contender's statement."""
    timers: list[tuple[str, timeit.Timer, int]] = []
    for contender in contenders:
        # timeit disables the garbage collector, but its work is part of the cost of a packet.
        timer = timeit.Timer(contender.statement, "import gc; gc.enable()", globals=contender.names)
        loops = 100
        while (elapsed := timer.timeit(loops)) < TURN / 2:
            loops *= 2
        timers.append((contender.name, timer, max(1, int(loops * TURN / elapsed))))
    samples: dict[str, list[float]] = {name: [] for name, _, _ in timers}
    for _ in range(rounds):
        best = dict.fromkeys(samples, float("inf"))
        for _ in range(TURNS):
            for name, timer, loops in timers:
                best[name] = min(best[name], timer.timeit(loops) / loops * 1e9)
        for name, time in best.items():
            samples[name].append(time)
    return {name: statistics.median(times) for name, times in samples.items()}


def import_milliseconds(modules: list[str], rounds: int) -> dict[str, float]:
    """Median milliseconds that the import of each module adds to a new interpreter."""
    samples: dict[str, list[float]] = {statement: [] for statement in ["pass", *modules]}
    for _ in range(rounds):
        for statement, times in samples.items():
            code = statement if statement == "pass" else f"import {statement}"
            started = perf_counter()
            subprocess.run([sys.executable, "-I", "-c", code], check=True)
            times.append((perf_counter() - started) * 1e3)
    empty = statistics.median(samples.pop("pass"))
    return {module: statistics.median(times) - empty for module, times in samples.items()}

"""So many messages a second through broker, sealer and landing together, for a minute.

`semel up` with its default settings, and `semel load` beside it: publishers, broker, sealer, Java
and Spark's Python share all processors, and the publishers take their part. `semel up` tells every
second how many rows are recorded and how many have landed; the difference is the lag. It goes up
and down with each batch: whether it grows is told by a line through what is left when the first
quarter is taken off. If it does, the next lower rate is tried, until one stays bounded. Where the
time went is told by processor seconds of each part.
"""

import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.pipeline import processes
from bench.pipeline.processes import Machine, crowded, since, used
from bench.pipeline.running import DidNotRun, Up, running
from bench.pipeline.segments import PAYLOAD

SECONDS: Final = 60.0
RATES: Final = (30_000, 20_000, 10_000, 5_000)
TARGET: Final = RATES[0]
PUBLISHERS: Final = 10
TOPICS: Final = 1_000
# Seconds of messages that do not count, and have to land before the others come: the first batches
# come while Java still compiles.
WARM_SECONDS: Final = 15.0
# Of the samples, what is left out at the beginning; and which growth is none, of the rate.
LEFT_OUT: Final = 0.25
FLAT: Final = 0.05
# Of the rate that is asked for, what has to be acknowledged.
KEPT: Final = 0.97
DRAIN_SECONDS: Final = 120.0
# Columns of the printed table.
SHOWN: Final = 10


@dataclass
class Sample:
    """How things stood at a second of the run."""

    second: float
    recorded: int
    landed: int
    # Age of the newest row of the last batch, when that had landed.
    lag_seconds: float | None

    @property
    def lag(self) -> int:
        return self.recorded - self.landed


@dataclass
class Sustained:
    """One run with one rate."""

    rate: int
    acknowledged: int = 0
    seconds: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    # Seconds of processor time by part, while messages came.
    processor: dict[str, float] = field(default_factory=dict)
    # From the last message until all had landed; None: they had not.
    drained: float | None = None
    others: float = 0.0
    fault: str = ""

    @property
    def true_rate(self) -> float:
        return self.acknowledged / self.seconds if self.seconds else 0.0

    @property
    def growth(self) -> float:
        """Rows by which the lag grows in a second."""
        counted = self.samples[int(len(self.samples) * LEFT_OUT) :]
        if len(counted) < 3:
            return float("inf")
        line = statistics.linear_regression(
            [each.second for each in counted], [each.lag for each in counted]
        )
        return line.slope

    @property
    def is_bounded(self) -> bool:
        """Whether all messages were taken in time, and the lag does not grow."""
        kept = self.true_rate >= self.rate * KEPT
        return not self.fault and kept and self.growth <= self.rate * FLAT

    def as_json(self) -> dict[str, Any]:
        found = asdict(self) | {"true_rate": self.true_rate, "bounded": self.is_bounded}
        return found | {"growth": self.growth if len(self.samples) > 3 else None}


def measure_sustained(folder: Path, rates: tuple[int, ...] = RATES) -> list[Sustained]:
    """Runs with ever lower rates, until one is bounded."""
    runs: list[Sustained] = []
    for rate in rates:
        run = Sustained(rate)
        runs.append(run)
        try:
            with running(folder / f"sustained-{rate}") as up:
                sustain(run, up)
        except (DidNotRun, OSError, ValueError) as problem:
            run.fault = str(problem)
        print(
            f"bench: sustained, {rate:,}/s: {run.true_rate:,.0f}/s, lag grows by {run.growth:,.0f} "
            f"rows/s {run.fault}",
            file=sys.stderr,
        )
        if run.is_bounded:
            break
    return runs


def load(up: Up, rate: int, seconds: float) -> "subprocess.Popen[bytes]":
    """Publishers, in a process of their own."""
    command = [sys.executable, "-m", "semel", "load", f"mqtt://127.0.0.1:{up.port}", "--json"]
    command += ["--publishers", str(PUBLISHERS), "--subscribers", "0", "--topics", str(TOPICS)]
    command += ["--qos", "1", "--payload-size", str(PAYLOAD), "--rate", f"{rate / PUBLISHERS:g}"]
    command += ["--duration", f"{seconds:g}"]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def sustain(run: Sustained, up: Up) -> None:
    """Publish for so long; wait until all has landed."""
    load(up, run.rate, WARM_SECONDS).communicate()
    if wait_until_landed(up, time.monotonic()) is None:
        raise DidNotRun(f"what came in {WARM_SECONDS:.0f} s did not land in {DRAIN_SECONDS:.0f} s")
    machine, before = Machine(), used(up.pid)
    began = time.monotonic()
    with load(up, run.rate, SECONDS) as publishers:
        spent: dict[str, float] = {}
        while publishers.poll() is None:
            up.check()
            spent = used(up.pid) | used(publishers.pid, processes.PUBLISHERS)
            time.sleep(0.25)
        assert publishers.stdout is not None
        told = json.loads(publishers.stdout.read())
    ended = time.monotonic()
    run.processor = since(before, spent)
    run.others = machine.others(sum(run.processor.values()))
    run.acknowledged, run.seconds = told["acknowledged"], told["seconds"]
    run.samples = samples(up.events, began, ended)
    run.fault = told["fault"] or ""
    run.drained = wait_until_landed(up, ended)


def samples(events: list[tuple[float, dict[str, Any]]], began: float, ended: float) -> list[Sample]:
    """What was told of how things stood between two moments."""
    return [
        Sample(at - began, event["recorded"], event["landed"], event["lag_seconds"])
        for at, event in list(events)
        if event["event"] == "status" and began <= at <= ended and event["landed"] is not None
    ]


def wait_until_landed(up: Up, ended: float) -> float | None:
    """Seconds until all that is recorded has landed."""
    while time.monotonic() < ended + DRAIN_SECONDS:
        up.check()
        later = samples(up.events, ended + 1, time.monotonic())
        if later and later[-1].lag == 0:
            return later[-1].second + 1
        time.sleep(0.1)
    return None


def chosen(run: Sustained) -> list[Sample]:
    """A few of the samples, always with the last."""
    every = -(-len(run.samples) // SHOWN)
    found = run.samples[every - 1 :: every]
    if found[-1] is not run.samples[-1]:
        found.append(run.samples[-1])
    return found


def lines(runs: list[Sustained]) -> list[str]:
    """Markdown: for each rate the lag as time goes by, and who took the processors."""
    told: list[str] = []
    for run in runs:
        if not run.samples:
            told += ["", f"sustained, {run.rate:,}/s: ⚠ {run.fault or 'nothing landed'}"]
            continue
        few = chosen(run)
        told += [
            "",
            f"| {run.rate:,} messages/s: second | "
            + " | ".join(f"{each.second:.0f}" for each in few)
            + " |",
            f"|---|{'---:|' * len(few)}",
            "| lag, rows | " + " | ".join(f"{each.lag:,}" for each in few) + " |",
            "| lag of the last batch, s | "
            + " | ".join("–" if s.lag_seconds is None else f"{s.lag_seconds:.1f}" for s in few)
            + " |",
            "",
            f"{run.true_rate:,.0f} messages/s acknowledged; the lag "
            + ("is bounded" if run.is_bounded else "grows")
            + f" ({run.growth:+,.0f} rows/s); "
            + ("not all" if run.drained is None else f"all had landed {run.drained:.1f} s")
            + " after the last. Processor seconds: "
            + ", ".join(f"{part} {used:.1f}" for part, used in biggest(run.processor))
            + ".",
        ]
        told += [each for each in (run.fault and f"⚠ {run.fault}", crowded(run.others)) if each]
    return told[1:]


def biggest(processor: dict[str, float]) -> list[tuple[str, float]]:
    """The most first."""
    return sorted(processor.items(), key=lambda each: -each[1])


def targets(runs: list[Sustained]) -> list[str]:
    """One line."""
    if not runs:
        return []
    bounded = next((run for run in runs if run.is_bounded), None)
    first = runs[0]
    if first is bounded:
        lag = max(each.lag for each in first.samples)
        return [
            f"✓ sustained: {first.rate:,} messages/s with a lag that stays bounded: at most "
            f"{lag:,} rows"
        ]
    found = "none of those tried" if bounded is None else f"{bounded.rate:,} messages/s"
    return [
        f"✗ sustained: {first.rate:,} messages/s with a lag that stays bounded: {found}"
        + (f" ({first.fault})" if first.fault else "")
    ]

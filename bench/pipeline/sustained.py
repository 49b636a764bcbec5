"""The rate of messages that broker, sealer and landing together sustain for a minute.

`semel up` runs with default settings beside `semel load`: publishers, broker, sealer, Java and
Spark's Python share all processors. `semel up` reports every second how many rows are recorded and
how many have landed; the difference is the lag. It rises and falls with each batch: whether it
grows is decided by a regression line through the samples without the first quarter. If it does, the
next lower rate is tried, until the lag stays bounded. Processor seconds per part show where the
time went.
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
from bench.pipeline.processes import Machine, busy_machine_warning, since, used
from bench.pipeline.running import DidNotRun, Up, running
from bench.pipeline.segments import PAYLOAD

SECONDS: Final = 60.0
RATES: Final = (60_000, 45_000, 30_000, 20_000, 10_000)
PUBLISHERS: Final = 10
TOPICS: Final = 1_000
# Seconds of warm-up messages, which must land before the others are sent. Java's compiler takes
# 16 s of the first minute, 7 of the second, 6 of the third, 4 of the fourth; a landing runs for
# months. Maintenance, which begins after some minutes, is measured with the rest.
WARM_SECONDS: Final = 180.0
# The share of samples that is ignored at the beginning; growth that counts as none, per rate.
LEFT_OUT: Final = 0.25
FLAT: Final = 0.05
# The share of the requested rate that must be acknowledged.
KEPT: Final = 0.97
DRAIN_SECONDS: Final = 120.0
# Columns of the printed table.
SHOWN: Final = 10


@dataclass
class Sample:
    """The state at one second of the run."""

    second: float
    recorded: int
    landed: int
    # The age of the newest row of the last batch when it landed.
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
    # Processor seconds by part while messages were published.
    processor: dict[str, float] = field(default_factory=dict)
    # Seconds from the last message until all had landed; None: not all did.
    drained: float | None = None
    others: float = 0.0
    fault: str = ""

    @property
    def true_rate(self) -> float:
        return self.acknowledged / self.seconds if self.seconds else 0.0

    @property
    def growth(self) -> float:
        """The growth of the lag in rows per second."""
        counted = self.samples[int(len(self.samples) * LEFT_OUT) :]
        if len(counted) < 3:
            return float("inf")
        line = statistics.linear_regression(
            [each.second for each in counted], [each.lag for each in counted]
        )
        return line.slope

    @property
    def is_bounded(self) -> bool:
        """Whether all messages were accepted in time, and the lag does not grow."""
        kept = self.true_rate >= self.rate * KEPT
        return not self.fault and kept and self.growth <= self.rate * FLAT

    def as_json(self) -> dict[str, Any]:
        found = asdict(self) | {"true_rate": self.true_rate, "bounded": self.is_bounded}
        return found | {"growth": self.growth if len(self.samples) > 3 else None}


def measure_sustained(folder: Path, rates: tuple[int, ...] = RATES) -> list[Sustained]:
    """Runs with decreasing rates, until one is bounded."""
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
    """Start the publishers in their own process."""
    command = [sys.executable, "-m", "semel", "load", f"mqtt://127.0.0.1:{up.port}", "--json"]
    command += ["--publishers", str(PUBLISHERS), "--subscribers", "0", "--topics", str(TOPICS)]
    command += ["--qos", "1", "--payload-size", str(PAYLOAD), "--rate", f"{rate / PUBLISHERS:g}"]
    command += ["--duration", f"{seconds:g}"]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def sustain(run: Sustained, up: Up) -> None:
    """Publish for this time, and wait until everything has landed."""
    load(up, run.rate, WARM_SECONDS).communicate()
    if wait_until_landed(up, time.monotonic()) is None:
        raise DidNotRun(
            f"messages of {WARM_SECONDS:.0f} s did not land within {DRAIN_SECONDS:.0f} s"
        )
    machine, before = Machine(), used(up.pid)
    began = time.monotonic()
    with load(up, run.rate, SECONDS) as publishers:
        spent: dict[str, float] = {}
        while publishers.poll() is None:
            up.check()
            spent = used(up.pid) | used(publishers.pid, processes.PUBLISHERS)
            time.sleep(0.25)
        assert publishers.stdout is not None
        output = json.loads(publishers.stdout.read())
    ended = time.monotonic()
    run.processor = since(before, spent)
    run.others = machine.others(sum(run.processor.values()))
    run.acknowledged, run.seconds = output["acknowledged"], output["seconds"]
    run.samples = samples(up.events, began, ended)
    run.fault = output["fault"] or ""
    run.drained = wait_until_landed(up, ended)


def samples(events: list[tuple[float, dict[str, Any]]], began: float, ended: float) -> list[Sample]:
    """The reported samples between two moments."""
    return [
        Sample(at - began, event["recorded"], event["landed"], event["lag_seconds"])
        for at, event in list(events)
        if event["event"] == "status" and began <= at <= ended and event["landed"] is not None
    ]


def wait_until_landed(up: Up, ended: float) -> float | None:
    """Seconds until all recorded rows have landed."""
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
    """Markdown: for each rate the lag over time, and processor time by part."""
    output: list[str] = []
    for run in runs:
        if not run.samples:
            output += ["", f"sustained, {run.rate:,}/s: ⚠ {run.fault or 'nothing landed'}"]
            continue
        few = chosen(run)
        output += [
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
        output += [
            each
            for each in (run.fault and f"⚠ {run.fault}", busy_machine_warning(run.others))
            if each
        ]
    return output[1:]


def biggest(processor: dict[str, float]) -> list[tuple[str, float]]:
    """The largest first."""
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

"""All parts of the store's bench: measure those asked for, print, judge."""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.broker.measure import Measured
from bench.broker.report import crowded, losses, table
from bench.store import capture, durable, latency, startup
from bench.store.capture import Capture
from bench.store.latency import Latency
from bench.store.startup import Startup

DURABLE: Final = "durable"
CAPTURE: Final = "capture"
LATENCY: Final = "latency"
STARTUP: Final = "startup"
PARTS: Final = (DURABLE, CAPTURE, LATENCY, STARTUP)
# Publishers of the runs of CAPTURE.
PUBLISHERS: Final = (1, 5)


@dataclass
class StoreReport:
    """What was measured; what was not is empty."""

    messages: list[Measured] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    starts: Startup | None = None

    def lines(self) -> list[str]:
        """Markdown."""
        told: list[str] = []
        if self.messages:
            told += [*table(self.messages), "", losses(self.messages), crowded(self.messages), ""]
        if self.captures:
            told += [*capture.lines(self.captures), ""]
        if self.latencies:
            told += [*latency.lines(self.latencies), ""]
        if self.starts is not None:
            told += [*startup.lines(self.starts), ""]
        return told

    def targets(self) -> list[str]:
        return [
            *durable.targets(self.messages),
            *capture.targets(self.captures),
            *latency.targets(self.latencies),
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            DURABLE: [cell.as_json() for cell in self.messages],
            CAPTURE: [run.as_json() for run in self.captures],
            LATENCY: [run.as_json() for run in self.latencies],
            STARTUP: None if self.starts is None else self.starts.as_json(),
        }


def parse_parts(text: str) -> list[str]:
    """Those with these names, parted by commas; all for none."""
    wanted = text.split(",") if text else list(PARTS)
    unknown = set(wanted) - set(PARTS)
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no part {', '.join(sorted(unknown))}")
    return [part for part in PARTS if part in wanted]


def measure_store(
    rounds: int, versions: list[int], parts: list[str], folder: Path | None
) -> StoreReport:
    """Measure the parts asked for; progress goes to standard error."""
    report = StoreReport()
    if DURABLE in parts:
        report.messages = durable.measure_durable(rounds, versions, folder)
    if CAPTURE in parts:
        # What a publisher speaks makes no difference to the record.
        report.captures = capture.measure_capture(versions[:1], list(PUBLISHERS), folder)
    if LATENCY in parts:
        report.latencies = latency.measure_latency(versions, folder)
    if STARTUP in parts:
        report.starts = startup.measure_startup(rounds, folder)
    return report

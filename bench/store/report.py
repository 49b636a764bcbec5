"""The parts of the store's bench: measures the selected ones, and reports."""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.broker.measure import Measured
from bench.broker.report import busy_machine_warning, losses, table
from bench.store import capture, durable, latency, startup
from bench.store.capture import Capture
from bench.store.latency import Latency
from bench.store.startup import Startup

DURABLE: Final = "durable"
CAPTURE: Final = "capture"
LATENCY: Final = "latency"
STARTUP: Final = "startup"
PARTS: Final = (DURABLE, CAPTURE, LATENCY, STARTUP)
# The numbers of publishers in the runs of CAPTURE.
PUBLISHERS: Final = (1, 5)


@dataclass
class StoreReport:
    """The results; parts that were not measured are empty."""

    messages: list[Measured] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    starts: Startup | None = None

    def lines(self) -> list[str]:
        """Markdown."""
        output: list[str] = []
        if self.messages:
            output += [
                *table(self.messages),
                "",
                losses(self.messages),
                busy_machine_warning(self.messages),
                "",
            ]
        if self.captures:
            output += [*capture.lines(self.captures), ""]
        if self.latencies:
            output += [*latency.lines(self.latencies), ""]
        if self.starts is not None:
            output += [*startup.lines(self.starts), ""]
        return output

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
    """Names of parts, comma-separated; empty: all."""
    selected = text.split(",") if text else list(PARTS)
    unknown = set(selected) - set(PARTS)
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no part {', '.join(sorted(unknown))}")
    return [part for part in PARTS if part in selected]


def measure_store(
    rounds: int, versions: list[int], parts: list[str], folder: Path | None
) -> StoreReport:
    """Measure the selected parts; progress goes to standard error."""
    report = StoreReport()
    if DURABLE in parts:
        report.messages = durable.measure_durable(rounds, versions, folder)
    if CAPTURE in parts:
        # The publisher's version makes no difference to the record.
        report.captures = capture.measure_capture(versions[:1], list(PUBLISHERS), folder)
    if LATENCY in parts:
        report.latencies = latency.measure_latency(versions, folder)
    if STARTUP in parts:
        report.starts = startup.measure_startup(rounds, folder)
    return report

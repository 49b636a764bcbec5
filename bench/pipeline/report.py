"""The parts of the pipeline's bench: measures the selected ones, and reports."""

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.pipeline import aged, checksums, commits, history, latency, queries, sustained, typed
from bench.pipeline.aged import AGED, Aged
from bench.pipeline.checksums import CHECKSUMS, Verified
from bench.pipeline.commits import Commits
from bench.pipeline.history import HISTORY, HistoryTimes
from bench.pipeline.latency import Latency
from bench.pipeline.queries import ROWS, SCALE, SINK, SOURCE, Bench, Compared
from bench.pipeline.sustained import Sustained
from bench.pipeline.typed import TYPED, TYPED_PARTS
from bench.store.brokers import fresh_folder

COMMIT: Final = "commit"
LATENCY: Final = "latency"
SUSTAINED: Final = "sustained"
PARTS: Final = (
    *(SOURCE, SINK, COMMIT, AGED, LATENCY, SUSTAINED, CHECKSUMS, SCALE),
    *TYPED_PARTS,
    HISTORY,
)
ROUNDS: Final = 5


@dataclass
class PipelineReport:
    """What was measured; what was not is empty."""

    compared: list[Compared] = field(default_factory=list)
    commits: Commits | None = None
    aged: Aged | None = None
    latency: Latency | None = None
    sustained: list[Sustained] = field(default_factory=list)
    checksums: list[Verified] = field(default_factory=list)
    typed: list[Compared] = field(default_factory=list)
    history: HistoryTimes | None = None

    def lines(self) -> list[str]:
        """Markdown."""
        output: list[str] = []
        if self.compared:
            output += [*queries.lines(self.compared), ""]
        if self.commits is not None:
            output += [*commits.lines(self.commits), ""]
        if self.aged is not None:
            output += [*aged.lines(self.aged), ""]
        if self.latency is not None:
            output += [*latency.lines(self.latency), ""]
        if self.sustained:
            output += [*sustained.lines(self.sustained), ""]
        if self.checksums:
            output += [*checksums.lines(self.checksums), ""]
        if self.typed:
            output += [*typed.lines(self.typed), ""]
        if self.history is not None:
            output += [*history.lines(self.history), ""]
        return output

    def targets(self) -> list[str]:
        return [
            *queries.targets(self.compared),
            *([] if self.commits is None else commits.targets(self.commits)),
            *([] if self.aged is None else aged.targets(self.aged)),
            *([] if self.latency is None else latency.targets(self.latency)),
            *sustained.targets(self.sustained),
            *checksums.targets(self.checksums),
            *typed.targets(self.typed),
            *([] if self.history is None else history.targets(self.history)),
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "compared": [each.as_json() for each in self.compared],
            COMMIT: None if self.commits is None else self.commits.as_json(),
            AGED: None if self.aged is None else self.aged.as_json(),
            LATENCY: None if self.latency is None else self.latency.as_json(),
            SUSTAINED: [each.as_json() for each in self.sustained],
            CHECKSUMS: [each.as_json() for each in self.checksums],
            TYPED: [typed.as_json(each) for each in self.typed],
            HISTORY: None if self.history is None else self.history.as_json(),
        }


def parse_parts(text: str) -> list[str]:
    """Those with these names, parted by commas; all for none."""
    selected = text.split(",") if text else list(PARTS)
    unknown = set(selected) - set(PARTS)
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no part {', '.join(sorted(unknown))}: use {', '.join(PARTS)}"
        )
    return [part for part in PARTS if part in selected]


def measure_pipeline(
    rounds: int, parts: list[str], rows: int | None, parent: Path | None
) -> PipelineReport:
    """Measure the selected parts; progress goes to standard error."""
    report = PipelineReport()
    count = rows or ROWS
    with fresh_folder(parent) as folder:
        # Parts with their own Spark come first: two at a time would share the memory.
        if LATENCY in parts:
            report.latency = latency.measure_latency(folder)
        if SUSTAINED in parts:
            report.sustained = sustained.measure_sustained(folder)
        if COMMIT in parts:
            report.commits = commits.measure_commits(folder)
        if AGED in parts:
            report.aged = aged.measure_aged(folder)
        if CHECKSUMS in parts:
            report.checksums = checksums.measure_checksums(folder, rounds)
        bench = Bench(folder)
        try:
            for part in (SOURCE, SINK):
                if part in parts:
                    report.compared.append(queries.measure_part(bench, part, count, rounds))
            if SCALE in parts:
                report.compared.append(queries.measure_scale(bench, count))
            for part in TYPED_PARTS:
                if part in parts:
                    measured = typed.measure_typed_part(bench, part, rows or typed.ROWS, rounds)
                    report.typed.append(measured)
            if HISTORY in parts:
                report.history = history.measure_history(bench, rounds=rounds)
        finally:
            bench.close()
    return report

"""Messages to a durable session: publisher, broker, one subscriber that acknowledges.

The figures are the broker's processor time per message, that of its child processes, messages per
second, and bytes written to disk per message (none if acknowledgements are not durable). Runs,
losses and the table are those of the broker's bench.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.broker.contenders import MOSQUITTO, SEMEL, DidNotStart, separate_processors, version_of
from bench.broker.load import build, links
from bench.broker.measure import MISSING, Measured, Run, drive
from bench.broker.scenarios import Scenario, version_name
from bench.store.brokers import fresh_folder, keeping
from bench.store.load import encode_durable
from semel.lab.load.description import Load
from semel.lab.load.links import LinkError

PAYLOAD: Final = 200
TOPIC: Final = "bench/topic"
# The target ratio to Mosquitto in messages per processor second.
TARGET: Final = 1.5

_TITLE: Final = (
    "1→1 QoS {}, {} B, window 200, lasting: µs / µs of children / messages per second / "
    "bytes written for each"
)
SCENARIOS: Final = (
    Scenario("durable1", _TITLE.format(1, PAYLOAD), Load(payload=PAYLOAD, qos=1), TARGET),
    Scenario("durable2", _TITLE.format(2, PAYLOAD), Load(payload=PAYLOAD, qos=2)),
)


def measure_durable(rounds: int, versions: list[int], folder: Path | None) -> list[Measured]:
    """Measure all brokers; they take turns within a round."""
    cells = [
        Measured(scenario, contender, version)
        for scenario in SCENARIOS
        for version in versions
        for contender in (SEMEL, MOSQUITTO)
    ]
    for number in range(1, rounds + 1):
        for cell in cells:
            if version_of(cell.contender) is None:
                cell.runs = [Run(cell.scenario.name, cell.contender, cell.version, fault=MISSING)]
                continue
            run = run_once(cell.scenario, cell.contender, cell.version, folder)
            cell.runs.append(run)
            what = f"{run.scenario} {run.contender} {version_name(run.version)}"
            figures_text = " / ".join(f"{figure:.4g}" for figure in run.figures) or run.fault
            lost = f", lost {run.lost}" if run.lost else ""
            print(f"bench: round {number}/{rounds}, {what}: {figures_text}{lost}", file=sys.stderr)
    return cells


def run_once(scenario: Scenario, contender: str, version: int, parent: Path | None) -> Run:
    """One run of a new broker with a new directory."""
    run = Run(scenario.name, contender, version)
    try:
        with (
            fresh_folder(parent) as folder,
            separate_processors() as processors,
            keeping(contender, folder, processors) as family,
            links(family.process.port, version) as clients,
        ):
            # At QoS 2 the broker stores state of the publisher's session.
            described = replace(scenario.load, version=version)
            load = build(described, clients, encode=encode_durable)
            children, written = family.children_ns(), family.written_bytes()
            drive(load, family.process, run)
            children = family.children_ns() - children
            written = family.written_bytes() - written
            if run.figures:
                run.figures = figures(run, children, written, load.received)
            if run.lost:
                run.fault = f"lost at QoS {described.qos}" if run.lost > 0 else "delivered twice"
    except (LinkError, DidNotStart, OSError) as problem:
        run.fault = str(problem)
    return run


def figures(run: Run, children_ns: int, written: int, received: int) -> tuple[float, ...]:
    """What the title names, of a run whose one figure is µs of the broker for one message.

    The broker's time and the rate are those of the measured span; the rest is counted from the
    first message to the last.
    """
    (microseconds,) = run.figures
    rate = run.broker_busy * 1e6 / microseconds
    return microseconds, children_ns / received / 1e3, rate, written / received


def ratio(cells: list[Measured], scenario: str, version: int) -> float | None:
    """The ratio to Mosquitto in messages per processor second, child processes included."""
    costs: dict[str, float] = {}
    for cell in cells:
        if cell.scenario.name == scenario and cell.version == version and cell.figures:
            costs[cell.contender] = cell.figures[0] + cell.figures[1]
    if len(costs) < 2:
        return None
    return costs[MOSQUITTO] / costs[SEMEL]


def targets(cells: list[Measured]) -> list[str]:
    """A line per scenario and version. A broker that loses messages meets no target."""
    lines: list[str] = []
    for cell in cells:
        if cell.contender != SEMEL:
            continue
        what = f"{cell.scenario.name} {version_name(cell.version)}"
        found = ratio(cells, cell.scenario.name, cell.version)
        asked = cell.scenario.versus_mosquitto
        if cell.faults or cell.lost:
            lines.append(f"✗ {what}: semel {', '.join(cell.faults) or 'lost messages'}")
        elif found is None:
            lines.append(f"– {what}: Mosquitto is missing or failed")
        elif not asked:
            lines.append(f"– {what}: {found:.2f} times Mosquitto's messages per processor second")
        else:
            sign = "✓" if found >= asked else "✗"
            lines.append(
                f"{sign} {what}: at least {asked:g} times Mosquitto's messages per processor "
                f"second: {found:.2f} ({1e6 / sum(cell.figures[:2]):,.0f} of them)"
            )
    return lines

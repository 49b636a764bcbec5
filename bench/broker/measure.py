"""Runs: each has a new broker, a warm-up, a measured span under load, and a count of losses.

Contenders take turns within a round, so that a slow moment of the machine affects all of them. A
run has a fixed duration instead of a number of messages: processor time per message is measured,
and a slow broker delivers fewer.
"""

import statistics
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from bench.broker.configurations import PLAIN, Configuration
from bench.broker.connections import idle_connections, raise_file_limit, reconnects
from bench.broker.contenders import (
    SPEAKS,
    DidNotStart,
    Family,
    Process,
    separate_processors,
    started,
    version_of,
)
from bench.broker.load import Driven, build, links, paced
from bench.broker.scenarios import (
    CONNECTIONS,
    HALF_LOAD,
    LATENCY,
    RECONNECTS,
    Scenario,
    version_name,
)
from semel.lab.load.delivery_tracker import Latencies
from semel.lab.load.links import LinkError
from semel.lab.load.traffic import Traffic

WARM_UP_SECONDS: Final = 0.4
# Of a durable semel: until the process that seals segments has imported what it needs.
DURABLE_WARM_UP_SECONDS: Final = 3.0
SPAN_SECONDS: Final = 1.5
# A slow broker gets more time, until this many messages are delivered or this time is over.
ENOUGH: Final = 500
SPAN_LIMIT: Final = 10.0
# When to stop waiting for deliveries: after this silence, or this time in total.
SILENCE_SECONDS: Final = 3.0
DRAIN_LIMIT: Final = 15.0

TOO_SLOW: Final = "too slow"
MISSING: Final = "missing"


@dataclass
class Run:
    """One run. `figures` are those of the scenario's title; empty if they are not reliable."""

    scenario: str
    contender: str
    version: int
    figures: tuple[float, ...] = ()
    delivered: int = 0
    seconds: float = 0.0
    lost: int = 0
    # The shares of a processor that broker and load used.
    broker_busy: float = 0.0
    load_busy: float = 0.0
    # Why the run failed, if it did.
    fault: str = ""


@dataclass
class Measured:
    """All runs of a scenario, contender and version, and their medians."""

    scenario: Scenario
    contender: str
    version: int
    runs: list[Run] = field(default_factory=list)
    configuration: Configuration = PLAIN

    @property
    def figures(self) -> tuple[float, ...]:
        figures = [run.figures for run in self.runs if run.figures]
        return tuple(statistics.median(values) for values in zip(*figures, strict=True))

    @property
    def lost(self) -> int:
        return sum(run.lost for run in self.runs)

    @property
    def faults(self) -> list[str]:
        return sorted({run.fault for run in self.runs if run.fault})

    def as_json(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario.name,
            "contender": self.contender,
            "mqtt": version_name(self.version),
            "configuration": asdict(self.configuration),
            "figures": self.figures,
            "lost": self.lost,
            "faults": self.faults,
            "runs": [asdict(run) for run in self.runs],
        }


def measure_broker(
    rounds: int, versions: list[int], scenarios: list[Scenario], contenders: list[str]
) -> list[Measured]:
    """Measure everything selected; progress goes to standard error."""
    cells = [
        Measured(scenario, contender, version, configuration=scenario.configuration)
        for scenario in scenarios
        for version in versions
        for contender in contenders
        if version in SPEAKS[contender]
    ]
    measure_cells(rounds, cells)
    return cells


def measure_cells(rounds: int, cells: list[Measured]) -> None:
    """Fill cells with runs, in turn."""
    raise_file_limit()
    contenders = {cell.contender for cell in cells}
    present = {contender: version_of(contender) is not None for contender in contenders}
    for number in range(1, rounds + 1):
        for cell in cells:
            if not present[cell.contender]:
                cell.runs = [Run(cell.scenario.name, cell.contender, cell.version, fault=MISSING)]
                continue
            if TOO_SLOW in cell.faults:
                continue
            what = f"{cell.scenario.name} {cell.contender} {version_name(cell.version)}"
            if not cell.configuration.has_default_listener:
                rules = f", {cell.configuration.rules:,} rules" if cell.configuration.rules else ""
                what += f" over {cell.configuration.listeners[0]}{rules}"
            print(f"bench: round {number}/{rounds}, {what} … ", end="", file=sys.stderr, flush=True)
            run = run_once(cell)
            cell.runs.append(run)
            figures = " / ".join(f"{figure:.4g}" for figure in run.figures) or "–"
            lost = f", lost {run.lost}" if run.lost else ""
            fault = f", {run.fault}" if run.fault else ""
            print(f"{figures}{lost}{fault}", file=sys.stderr)


def run_once(cell: Measured) -> Run:
    """One run of a scenario with a new broker."""
    scenario, version, transport = cell.scenario, cell.version, cell.configuration.listeners[0]
    run = Run(scenario.name, cell.contender, version)
    try:
        with (
            separate_processors() as processors,
            started(cell.contender, processors, cell.configuration) as process,
        ):
            if scenario.kind == CONNECTIONS:
                run.figures = idle_connections(process, version, transport)
                return run
            if scenario.kind == RECONNECTS:
                run.figures = reconnects(process, version)
                return run
            load = replace(scenario.load, version=version)
            latencies = Latencies() if scenario.kind == LATENCY else None
            with links(process.port, version, transport) as clients:
                traffic = build(load, clients, latencies=latencies)
                measured: Process | Family = process
                if cell.configuration.durable:
                    measured = Family(process)
                    keep_going(traffic, DURABLE_WARM_UP_SECONDS)
                drive(traffic, measured, run, latencies)
                if scenario.kind == HALF_LOAD and run.figures:
                    drive_half(traffic, measured, run)
                unacknowledged = await_acknowledgements(traffic)
            if run.lost > 0 and load.qos:
                run.fault = f"lost at QoS {load.qos}"
            elif run.lost < 0:
                run.fault = "delivered twice"
            elif unacknowledged:
                run.fault = f"{unacknowledged} not acknowledged"
    except (LinkError, DidNotStart, OSError) as problem:
        run.fault = str(problem)
    return run


def drive(
    load: Driven, process: Process | Family, run: Run, latencies: Latencies | None = None
) -> None:
    """Warm up, measure under load, drain, and fill in the run."""
    keep_going(load, WARM_UP_SECONDS)
    if latencies is not None:
        latencies.clear()
    began, cpu, own_cpu = time.monotonic(), process.cpu_ns(), time.process_time_ns()
    received = load.received
    keep_going(load, SPAN_SECONDS)
    used, own_used = process.cpu_ns() - cpu, time.process_time_ns() - own_cpu
    elapsed = time.monotonic() - began
    run.delivered, run.seconds = load.received - received, elapsed
    run.broker_busy = used / elapsed / 1e9
    run.load_busy = own_used / elapsed / 1e9
    drain(load)
    run.lost = load.sent * load.fan_out - load.received
    if not run.delivered:
        run.fault = "stalled"
    elif run.delivered < ENOUGH:
        run.fault = TOO_SLOW
    else:
        run.figures = (used / run.delivered / 1e3,)
        if latencies is not None:
            quantiles = latencies.quantile(0.5), latencies.quantile(0.99)
            run.figures += tuple(nanoseconds / 1e3 for nanoseconds in quantiles)


def drive_half(traffic: Traffic, process: Process | Family, run: Run) -> None:
    """Measure the same clients again, at half of the rate that they have reached.

    Adds the processor time per message, and the time until PUBACK that 99 % did not exceed.
    """
    messages = run.delivered / traffic.fan_out
    latencies = Latencies()
    for publisher in traffic.publishers.values():
        publisher.latencies = latencies
    half = Run(run.scenario, run.contender, run.version)
    rate = messages / run.seconds / len(traffic.publishers) / 2
    drive(paced(traffic, rate), process, half, latencies)
    if half.figures:
        microseconds, _, slowest = half.figures
        run.figures += (microseconds, slowest)
    else:
        run.figures = ()
    run.delivered += half.delivered
    run.seconds += half.seconds
    run.lost += half.lost
    run.fault = run.fault or half.fault


def await_acknowledgements(traffic: Traffic) -> int:
    """Wait for the acknowledgements of what was delivered. Returns how many are missing."""
    deadline = time.monotonic() + SILENCE_SECONDS
    missing = 0
    while True:
        if traffic.load.qos:
            missing = sum(each.sent - each.acknowledged for each in traffic.publishers.values())
        if not missing or time.monotonic() >= deadline:
            return missing
        traffic.finish()


def keep_going(load: Driven, seconds: float) -> None:
    """Send and receive for this time, or longer if little was delivered."""
    began, received = time.monotonic(), load.received
    while True:
        load.step()
        elapsed = time.monotonic() - began
        if elapsed >= seconds and (load.received - received >= ENOUGH or elapsed >= SPAN_LIMIT):
            return


def drain(load: Driven) -> None:
    """Receive until everything has arrived, or nothing arrives any more."""
    began = moved = time.monotonic()
    received = load.received
    while load.received < load.sent * load.fan_out:
        load.finish()
        now = time.monotonic()
        if load.received > received:
            received, moved = load.received, now
        if now - moved >= SILENCE_SECONDS or now - began >= DRAIN_LIMIT:
            return

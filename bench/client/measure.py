"""Processor time per message of each client library; the libraries take turns.

The server is Mosquitto, which belongs to none of them, with unlimited queues, so that nothing is
dropped for a slow receiver. All receivers get messages from the same publisher.
"""

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, Final

from bench.broker.contenders import MOSQUITTO, SEMEL, separate_processors, started, version_of

LIBRARIES: Final = ("semel", "paho-mqtt", "aiomqtt")
JOBS: Final = ("publish", "receive")
MESSAGES: Final = 20_000
TIMEOUT_SECONDS: Final = 300
TIMES_FASTER: Final = 3.0


@dataclass
class Cell:
    """One library at one job: microseconds per message, per round."""

    library: str
    job: str
    qos: int
    rounds: list[float] = field(default_factory=list)

    @property
    def microseconds(self) -> float:
        return statistics.median(self.rounds)


def measure_client(rounds: int) -> list[Cell]:
    """Measure every library, job and QoS in each round, one after another."""
    server = MOSQUITTO if version_of(MOSQUITTO) else SEMEL
    cells = [Cell(library, job, qos) for job in JOBS for qos in (0, 1, 2) for library in LIBRARIES]
    with separate_processors() as processors:
        for number in range(rounds):
            for cell in cells:
                print(
                    f"\r{number + 1}/{rounds} {cell.job} QoS {cell.qos} {cell.library:10}",
                    end="",
                    file=sys.stderr,
                )
                with started(server, processors) as process:
                    cell.rounds.append(run(cell, process.port))
    print(file=sys.stderr)
    return cells


def worker(library: str, job: str, qos: int, messages: int, port: int) -> subprocess.Popen[str]:
    arguments = [library, job, str(qos), str(messages), str(port)]
    return subprocess.Popen(
        [sys.executable, "-m", "bench.client.worker", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )


def run(cell: Cell, port: int) -> float:
    """Microseconds of processor time per message."""
    process = worker(cell.library, cell.job, cell.qos, MESSAGES, port)
    assert process.stdout is not None
    try:
        if cell.job == "receive":
            assert process.stdout.readline() == "ready\n"
            feeder = worker("semel", "publish", max(cell.qos, 1), MESSAGES, port)
            feeder.communicate(timeout=TIMEOUT_SECONDS)
        output = json.loads(process.communicate(timeout=TIMEOUT_SECONDS)[0])
    finally:
        process.kill()
        process.wait()
    return float(output["nanoseconds"]) / output["messages"] / 1_000


def lines(cells: list[Cell]) -> list[str]:
    """A Markdown table; in parentheses, the ratio to semel."""
    output = [f"| µs of processor time per message | {' | '.join(LIBRARIES)} |"]
    output.append(f"|---|{'---:|' * len(LIBRARIES)}")
    for job in JOBS:
        for qos in (0, 1, 2):
            times = {c.library: c.microseconds for c in cells if (c.job, c.qos) == (job, qos)}
            ours = times[LIBRARIES[0]]
            others = [f"{times[name]:.1f} ({times[name] / ours:.1f}×)" for name in LIBRARIES[1:]]
            output.append(f"| {job}, QoS {qos} | {ours:.1f} | {' | '.join(others)} |")
    return output


def slowest_ratio(cells: list[Cell]) -> float:
    """Whether semel's smallest advantage in any job meets the target."""
    ours = {(c.job, c.qos): c.microseconds for c in cells if c.library == LIBRARIES[0]}
    return min(c.microseconds / ours[c.job, c.qos] for c in cells if c.library != LIBRARIES[0])


def targets(cells: list[Cell]) -> list[str]:
    if not cells:
        return []
    least = slowest_ratio(cells)
    mark = "✓" if least >= TIMES_FASTER else "✗"
    return [
        f"{mark} the client has at least {TIMES_FASTER:.0f} times the messages per processor second"
        f" of paho-mqtt and aiomqtt in every row: {least:.1f} times"
    ]


def as_json(cells: list[Cell]) -> list[dict[str, Any]]:
    return [
        {
            "library": cell.library,
            "job": cell.job,
            "qos": cell.qos,
            "microseconds": cell.microseconds,
            "rounds": cell.rounds,
        }
        for cell in cells
    ]

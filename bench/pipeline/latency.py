"""How long a message takes from its publisher to the Delta table, through all of `semel up`.

One message at QoS 1 is published about every second, at random times that are not synchronized with
the landing. It has landed when an entry of the table's log says so, which is checked every 20 ms.
Nobody else publishes, so message n is row n of the stream.
"""

import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.broker.contenders import DidNotStart
from bench.broker.load import connect
from bench.pipeline.commits import parts
from bench.pipeline.processes import Machine, busy_machine_warning, used
from bench.pipeline.running import LOOK_SECONDS, DidNotRun, TableLog, Up, running
from bench.pipeline.segments import PAYLOAD, STREAM
from bench.store.load import encode_payloads, publish_one, random_payloads
from semel.lab.load.links import LinkError
from semel.mqtt import MQTT5

MESSAGES: Final = 60
# The first messages do not count: Java still compiles.
WARM_UP: Final = 10
LEAST_SECONDS: Final = 0.5
MOST_SECONDS: Final = 1.7
TARGET: Final = 5.0
STUCK_SECONDS: Final = 120.0


@dataclass
class Latency:
    """Seconds from before PUBLISH until the row has landed, in order."""

    seconds: list[float] = field(default_factory=list)
    puback: list[float] = field(default_factory=list)
    others: float = 0.0
    fault: str = ""

    def as_json(self) -> dict[str, Any]:
        median, late = parts(self.seconds)
        return {
            "messages": len(self.seconds),
            "median_seconds": median,
            "p95_seconds": late,
            "longest_seconds": max(self.seconds, default=0.0),
            "puback_median_seconds": parts(self.puback)[0],
            "others": self.others,
            "fault": self.fault,
        }


def measure_latency(folder: Path) -> Latency:
    """Start everything, publish, and follow the table's log."""
    result = Latency()
    try:
        with running(folder / "latency") as up:
            machine, before = Machine(), sum(used(up.pid).values())
            one_by_one(result, up)
            result.others = machine.others(sum(used(up.pid).values()) - before)
    except (DidNotRun, DidNotStart, LinkError, OSError) as problem:
        result.fault = str(problem)
    print(
        f"bench: latency: {'{:.2f} s, 95 % {:.2f} s'.format(*parts(result.seconds))}"
        f" {result.fault}",
        file=sys.stderr,
    )
    return result


def one_by_one(result: Latency, up: Up) -> None:
    """Publish at random times, and record when each message has landed."""
    stream = encode_payloads(MQTT5, "bench/latency", random_payloads(1, PAYLOAD))
    size = stream.layout.size
    log = TableLog(up.log_folder, f"semel/stream/{STREAM}/")
    publisher = connect(up.port, MQTT5, "bench-latency")
    sent: list[float] = []
    found: list[float] = []
    dice = random.Random(1)
    due = moved = time.monotonic()
    try:
        while len(found) < WARM_UP + MESSAGES:
            now = time.monotonic()
            # Wait until the first ones have landed, because the first batch takes long.
            is_warm = len(sent) < WARM_UP or len(found) >= WARM_UP
            if now >= due and is_warm and len(sent) < WARM_UP + MESSAGES:
                number = len(sent)
                sent.append(now)
                packet = stream.block[number * size : (number + 1) * size]
                result.puback.append(publish_one(publisher, packet) / 1e9)
                due = now + dice.uniform(LEAST_SECONDS, MOST_SECONDS)
            position = log.look()
            now = time.monotonic()
            while len(found) < position:
                found.append(now - sent[len(found)])
                moved = now
            if now - moved > STUCK_SECONDS:
                raise DidNotRun(f"{len(sent) - len(found)} messages did not land")
            up.check()
            time.sleep(LOOK_SECONDS)
    finally:
        publisher.close()
    result.seconds = found[WARM_UP:]
    del result.puback[:WARM_UP]


def lines(result: Latency) -> list[str]:
    """Markdown."""
    if result.fault:
        return [f"latency: ⚠ {result.fault}"]
    median, late = parts(result.seconds)
    output = [
        "| publisher to Delta table, `semel up` | messages | s median | s 95 % | s longest"
        " | PUBACK ms |",
        "|---|---:|---:|---:|---:|---:|",
        f"| one message at a time, QoS 1 | {len(result.seconds)} | {median:.2f} | {late:.2f} "
        f"| {max(result.seconds, default=0.0):.2f} | {parts(result.puback)[0] * 1e3:.2f} |",
    ]
    warning = busy_machine_warning(result.others)
    return [*output, "", warning] if warning else output


def targets(result: Latency) -> list[str]:
    """By the 95th percentile."""
    if result.fault:
        return [f"✗ latency: {result.fault}"]
    median, late = parts(result.seconds)
    sign = "✓" if 0 < late <= TARGET else "✗"
    return [
        f"{sign} latency: 95 % of messages are in the table within {TARGET:g} s: {late:.2f} s "
        f"(median {median:.2f} s)"
    ]

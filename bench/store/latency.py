"""How long a durable PUBLISH waits for its PUBACK, compared with a bare fdatasync.

One message at a time, QoS 1, for a durable session whose client is offline: one commit each. After
each message a page is appended to a file on the same disk, and a page of a second file is
overwritten, each with fdatasync, in changing order, so that slow moments of the disk affect all
three. A reused log is overwritten, which is faster than growth: the target uses the faster of the
two.
"""

import random
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.broker.contenders import SEMEL, DidNotStart, separate_processors
from bench.broker.load import connect
from bench.broker.scenarios import version_name
from bench.broker.wire import encode_stream
from bench.store.brokers import fresh_folder, keeping
from bench.store.durable import PAYLOAD, TOPIC
from bench.store.load import Pages, connect_durable, publish_one
from semel.lab.load.links import LinkError, subscribe

COUNT: Final = 2_000
WARM_UP: Final = 200
# In addition to one fsync.
TARGET_MS: Final = 1.0


@dataclass
class Latency:
    """One run: nanoseconds, in the order of measurement."""

    version: int
    puback: list[int] = field(default_factory=list)
    appended: list[int] = field(default_factory=list)
    overwritten: list[int] = field(default_factory=list)
    fault: str = ""

    def beyond(self) -> float:
        """The median PUBACK minus the median of the faster fdatasync, in milliseconds."""
        bare = min(parts(self.appended)[0], parts(self.overwritten)[0])
        return parts(self.puback)[0] - bare

    def as_json(self) -> dict[str, Any]:
        return {
            "version": version_name(self.version),
            "fault": self.fault,
            "puback_ms": parts(self.puback),
            "appended_ms": parts(self.appended),
            "overwritten_ms": parts(self.overwritten),
        }


def parts(nanoseconds: list[int]) -> tuple[float, float]:
    """Median and 99th percentile in milliseconds; zeros without values."""
    if len(nanoseconds) < 2:
        return 0.0, 0.0
    hundredths = statistics.quantiles(nanoseconds, n=100)
    return hundredths[49] / 1e6, hundredths[98] / 1e6


def measure_latency(versions: list[int], parent: Path | None) -> list[Latency]:
    """One run per version."""
    runs: list[Latency] = []
    for version in versions:
        run = Latency(version)
        runs.append(run)
        try:
            with (
                fresh_folder(parent) as folder,
                separate_processors() as processors,
                keeping(SEMEL, folder, processors) as family,
            ):
                one_by_one(run, family.process.port, folder)
        except (LinkError, DidNotStart, OSError) as problem:
            run.fault = str(problem)
        print(f"bench: latency {cells(run)}", file=sys.stderr)
    return runs


def one_by_one(run: Latency, port: int, folder: Path) -> None:
    """Publish, append and overwrite in turn."""
    subscriber, _ = connect_durable(port, run.version, "away")
    subscribe(subscriber, run.version, [TOPIC], 1)
    subscriber.close()
    stream = encode_stream(run.version, (TOPIC,), PAYLOAD, 1)
    size = stream.layout.size
    publisher = connect(port, run.version, "publisher")
    growing = Pages(folder / "growing", room=0)
    full = Pages(folder / "full", room=WARM_UP + COUNT)
    try:
        dice = random.Random(1)
        order = [run.puback, run.appended, run.overwritten]
        for number in range(WARM_UP + COUNT):
            packet = stream.block[number * size : (number + 1) * size]
            dice.shuffle(order)
            for taken in order:
                if taken is run.puback:
                    taken.append(publish_one(publisher, packet))
                else:
                    taken.append((growing if taken is run.appended else full).write())
    finally:
        growing.close()
        full.close()
        publisher.close()
    for taken in (run.puback, run.appended, run.overwritten):
        del taken[:WARM_UP]


def cells(run: Latency) -> str:
    """The cells of a Markdown row."""
    if run.fault:
        return f"{version_name(run.version)} | ⚠ {run.fault} | | | "
    texts = [
        "{:.3f} / {:.3f}".format(*parts(each))
        for each in (run.puback, run.appended, run.overwritten)
    ]
    return f"{version_name(run.version)} | {' | '.join(texts)} | {run.beyond():+.3f}"


def lines(runs: list[Latency]) -> list[str]:
    """Markdown."""
    return [
        "| one durable message at a time, ms median / 99 % | PUBACK | fdatasync of a page, appended"
        " | overwritten | PUBACK beyond the quicker |",
        "|---|---:|---:|---:|---:|",
        *(f"| {cells(run)} |" for run in runs),
    ]


def targets(runs: list[Latency]) -> list[str]:
    """By medians."""
    targets: list[str] = []
    for run in runs:
        what = f"latency {version_name(run.version)}"
        if run.fault:
            targets.append(f"✗ {what}: {run.fault}")
            continue
        sign = "✓" if run.beyond() < TARGET_MS else "✗"
        targets.append(
            f"{sign} {what}: one fsync and less than {TARGET_MS:g} ms: {run.beyond():+.3f} ms"
        )
    return targets

"""The rate from publishers to sealed segments of a stream, everything included.

Publishers, broker and sealer share all processors. A run ends when every acknowledged message is in
a Parquet file; then the files are read, and must have every row once, in the order of its
publisher. Every second the unsealed rows are counted, to show whether the sealer keeps up.
"""

import itertools
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.broker.contenders import SEMEL, DidNotStart, Family
from bench.broker.load import PREFIX, links
from bench.broker.measure import drain
from bench.broker.scenarios import version_name
from bench.store.brokers import fresh_folder, keeping
from bench.store.durable import PAYLOAD, TOPIC
from bench.store.load import Publishers, encode_payloads, random_payloads
from semel.extras import MissingExtra, need
from semel.lab.load.links import LinkError
from semel.store.segment_names import Range, parse_segment_name, segment_name
from semel.store.segments import RecordError, pick

SECONDS: Final = 30.0
TARGET: Final = 50_000
STREAM: Final = "all"
SAMPLE_SECONDS: Final = 1.0
# The sealer counts as stopped if it seals nothing for this long while rows are unsealed.
STUCK_SECONDS: Final = 20.0
# Rows of the printed table.
ROWS: Final = 10


@dataclass
class Sample:
    """The state at one second of the run."""

    second: float
    acknowledged: int
    sealed: int

    @property
    def unsealed(self) -> int:
        return self.acknowledged - self.sealed


@dataclass
class Sent:
    """What a publisher has sent: the number of messages, and the payloads it repeats."""

    payloads: list[bytes]
    count: int
    # How many of them were found in segments.
    found: int = 0


@dataclass
class Capture:
    """One run."""

    version: int
    publishers: int
    messages: int = 0
    # Until the last PUBACK, and until the last row was sealed.
    publishing_seconds: float = 0.0
    seconds: float = 0.0
    broker_ns: int = 0
    sealer_ns: int = 0
    load_ns: int = 0
    segments: int = 0
    segment_bytes: int = 0
    samples: list[Sample] = field(default_factory=list)
    fault: str = ""

    @property
    def name(self) -> str:
        plural = "" if self.publishers == 1 else "s"
        return f"{self.publishers} publisher{plural}, {version_name(self.version)}"

    @property
    def rate(self) -> float:
        """Messages per second, from the first PUBLISH to the last sealed row."""
        return self.messages / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "rate": self.rate}


def measure_capture(
    versions: list[int], publishers: list[int], folder: Path | None, seconds: float = SECONDS
) -> list[Capture]:
    """One run per number of publishers and version."""
    runs: list[Capture] = []
    for version, count in itertools.product(versions, publishers):
        run = Capture(version, count)
        runs.append(run)
        print(f"bench: capture, {run.name} … ", end="", file=sys.stderr, flush=True)
        try:
            need("pyarrow", extra="broker", by="the record of a stream")
            with (
                fresh_folder(folder) as data,
                keeping(SEMEL, data, None, ("--stream", f"{STREAM}=#")) as family,
            ):
                capture(run, family, data / "data" / "streams" / STREAM, seconds)
        except (LinkError, DidNotStart, MissingExtra, RecordError, OSError) as problem:
            run.fault = str(problem)
        print(f"{run.rate:,.0f} messages/s {run.fault}", file=sys.stderr)
    return runs


def capture(run: Capture, family: Family, stream_folder: Path, seconds: float) -> None:
    """Publish for this time, wait until everything is sealed, and check the segments."""
    process = family.process
    with links(process.port, run.version) as clients:
        payloads = [random_payloads(number, PAYLOAD) for number in range(run.publishers)]
        streams = [encode_payloads(run.version, TOPIC, each) for each in payloads]
        load = Publishers(clients, streams)
        cpu, children, own = process.cpu_ns(), family.children_ns(), time.process_time_ns()
        began = time.monotonic()
        elapsed = 0.0
        while elapsed < seconds:
            load.step()
            elapsed = time.monotonic() - began
            if elapsed >= len(run.samples) * SAMPLE_SECONDS:
                run.samples.append(Sample(elapsed, load.received, sealed(stream_folder)))
        drain(load)
        run.messages = load.received
        run.publishing_seconds = time.monotonic() - began
        if load.sent > load.received:
            raise LinkError(f"did not acknowledge {load.sent - load.received} messages")
        wait_for_sealer(run, stream_folder, began)
        run.seconds = time.monotonic() - began
        run.broker_ns = process.cpu_ns() - cpu
        run.sealer_ns = family.children_ns() - children
        run.load_ns = time.process_time_ns() - own
        counts = load.acknowledged
    publishers = {
        f"{PREFIX}-publisher-{number}": Sent(each, counts[number])
        for number, each in enumerate(payloads)
    }
    check(run, stream_folder, publishers)


def wait_for_sealer(run: Capture, stream_folder: Path, began: float) -> None:
    """Wait until everything is in segments."""
    moved, through = time.monotonic(), -1
    while (found := sealed(stream_folder)) < run.messages:
        now = time.monotonic()
        if found > through:
            moved, through = now, found
        elif now - moved > STUCK_SECONDS:
            raise LinkError(f"sealed {found:,} of {run.messages:,} rows")
        if now - began >= len(run.samples) * SAMPLE_SECONDS:
            run.samples.append(Sample(now - began, run.messages, found))
        time.sleep(0.02)
    run.samples.append(Sample(time.monotonic() - began, run.messages, found))


def ranges(stream_folder: Path) -> list[Range]:
    """The segments to read; one node has written them."""
    found = [parse_segment_name(path.name) for path in stream_folder.glob("*/*.parquet")]
    return pick(each for each in found if each is not None)


def sealed(stream_folder: Path) -> int:
    """The last seq in segments."""
    chosen = ranges(stream_folder)
    return chosen[-1][1] if chosen else 0


def check(run: Capture, stream_folder: Path, publishers: dict[str, Sent]) -> None:
    """Every message is in a segment once, and in the order of its publisher."""
    parquet = need("pyarrow.parquet", extra="broker", by="the record of a stream")
    seq = 0
    for first, last in ranges(stream_folder):
        (path,) = stream_folder.glob(f"*/{segment_name(first, last)}")
        run.segments += 1
        run.segment_bytes += path.stat().st_size
        table = parquet.read_table(path, columns=["seq", "client_id", "packet_id", "payload"])
        if table["seq"].to_pylist() != list(range(seq + 1, last + 1)):
            raise LinkError(f"sealed other rows than {seq + 1} to {last} in {path.name}")
        seq = last
        columns = (table[name].to_pylist() for name in ("client_id", "packet_id", "payload"))
        check_rows(zip(*columns, strict=True), publishers)
    for client_id, sent in publishers.items():
        if sent.found != sent.count:
            raise LinkError(f"sealed {sent.found:,} messages of {client_id}, not {sent.count:,}")


def check_rows(rows: Iterable[tuple[str, int, bytes]], publishers: dict[str, Sent]) -> None:
    """Rows (client identifier, packet identifier, payload) continue each publisher's sequence."""
    for client_id, packet_id, payload in rows:
        sent = publishers[client_id]
        at = sent.found % len(sent.payloads)
        if packet_id != at + 1 or payload != sent.payloads[at]:
            raise LinkError(f"sealed message {packet_id} of {client_id} instead of {at + 1}")
        sent.found += 1


def lines(runs: list[Capture]) -> list[str]:
    """Markdown: the rates, then the unsealed rows over time."""
    output = [
        "| stream capture, 200 B, QoS 1, publisher to segment | messages | seconds | messages/s |"
        " broker µs | sealer µs | load µs | segments | bytes/row |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for run in runs:
        if not run.messages or run.fault:
            output.append(f"| {run.name} | ⚠ {run.fault} |{' |' * 7}")
            continue
        times = " | ".join(
            f"{used / run.messages / 1e3:.2f}"
            for used in (run.broker_ns, run.sealer_ns, run.load_ns)
        )
        output.append(
            f"| {run.name} | {run.messages:,} | {run.seconds:.1f} | {run.rate:,.0f} | {times} "
            f"| {run.segments} | {run.segment_bytes / run.messages:.0f} |"
        )
    for run in runs:
        if run.samples and not run.fault:
            output += ["", *progress(run)]
    return output


def progress(run: Capture) -> list[str]:
    """A few of the samples."""
    every = -(-len(run.samples) // ROWS)
    chosen = run.samples[every - 1 :: every]
    if chosen[-1] is not run.samples[-1]:
        chosen.append(run.samples[-1])
    return [
        f"| {run.name}: second | " + " | ".join(f"{each.second:.0f}" for each in chosen) + " |",
        f"|---|{'---:|' * len(chosen)}",
        "| acknowledged | " + " | ".join(f"{each.acknowledged:,}" for each in chosen) + " |",
        "| not sealed | " + " | ".join(f"{each.unsealed:,}" for each in chosen) + " |",
    ]


def targets(runs: list[Capture]) -> list[str]:
    """A line for each run."""
    output: list[str] = []
    for run in runs:
        what = f"capture, {run.name}"
        if run.fault:
            output.append(f"✗ {what}: {run.fault}")
            continue
        sign = "✓" if run.rate >= TARGET else "✗"
        output.append(
            f"{sign} {what}: at least {TARGET:,} messages/s into segments for "
            f"{run.publishing_seconds:.0f} s: {run.rate:,.0f}"
        )
    return output

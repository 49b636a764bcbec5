"""Kill the way back from Spark to MQTT again and again, and account for every message.

    segments of two nodes, always growing ─▶ readStream ─▶ writeStream ─▶ semel broker ─▶ device

The query publishes one alert for each message of the record (`pipeline_back_query.py`). The rate is
limited, so that most kills hit a batch that is partly sent. The broker is killed, too. The device
has a durable session and is offline; at the end it must get each alert once.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from semel.client.client import Client
from tests.kills import brokers, pipeline_account
from tests.kills import pipeline_processes as processes
from tests.kills.account import Verdict
from tests.kills.pipeline_processes import DRIVER, JVM, TREE, WORKERS, SparkProcess
from tests.kills.pipeline_tables_lake import Segments

BROKER = "broker"
WAYS = (TREE, BROKER, DRIVER, JVM, WORKERS, BROKER)
# What a kill left: a batch that is not finished, or none.
IN_BATCH = "in a batch"
BETWEEN_BATCHES = "between batches"
# Alerts in a second, at most: a batch of 200 takes some seconds.
RATE = 100
DEVICE = "device"
# The topic of a message after all alerts.
LAST = "last"


@dataclass
class BackRunPlan:
    """What to do."""

    kills: int
    seed: int
    # Messages in a second, of both nodes together.
    rate: float = 40.0


@dataclass
class BackResult:
    """What came of it."""

    seed: int
    windows: dict[str, Counter[str]] = field(default_factory=dict)
    queries: int = 0
    batches: int = 0
    messages: int = 0
    missing: int = 0
    duplicated: int = 0
    extra: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        return self.verdict.is_clean

    def in_window(self, window: str) -> int:
        return sum(found[window] for found in self.windows.values())

    def summary(self) -> dict[str, Any]:
        windows = (IN_BATCH, BETWEEN_BATCHES)
        return {
            "seed": self.seed,
            "kills": sum(map(self.in_window, windows)),
            "by what was killed": {way: found.total() for way, found in self.windows.items()},
            "and by what they left": {window: self.in_window(window) for window in windows},
            "queries": self.queries,
            "batches": self.batches,
            "messages": self.messages,
            "missing": self.missing,
            "duplicated": self.duplicated,
            "extra": self.extra,
            "faults": sum(map(len, self.verdict.faults.values())),
            "seconds": round(self.seconds, 1),
            "load average": round(os.getloadavg()[0], 1),
        }

    def describe(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.summary().items()]
        return "\n".join([*lines, *self.verdict.fault_lines()])


class BackRun:
    """One run of a plan."""

    def __init__(self, plan: BackRunPlan, folder: Path, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.folder = folder
        self.say = say
        self.random = Random(f"back {plan.seed}")
        self.result = BackResult(plan.seed)
        self.checkpoint = folder / "checkpoint"
        self.segments = Segments(folder / "root", plan.seed, plan.rate)
        self.broker = brokers.semel(brokers.free_port(), folder, streams=False)
        self.query: SparkProcess | None = None
        self.queries: list[SparkProcess] = []

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.broker.port}"

    def __call__(self) -> BackResult:
        began = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.start_broker()
            asyncio.run(self.subscribe())
            self.segments.start()
            for at in range(self.plan.kills):
                self.strike(WAYS[at % len(WAYS)])
                self.say(
                    f"{at + 1} kills ({self.result.in_window(IN_BATCH)} in a batch),"
                    f" {sum(self.segments.last.values())} messages"
                )
            self.publish_all()
            self.settle(asyncio.run(self.receive()))
            pipeline_account.tracebacks([each.log for each in self.queries], self.result.verdict)
        finally:
            self.segments.stop()
            for query in self.queries:
                query.end()
            self.broker.end()
        self.result.seconds = time.monotonic() - began
        return self.result

    # --- the parts --------------------------------------------------------------------------------

    def start_broker(self) -> None:
        self.broker.start()
        self.broker.serve_seconds()

    def start_query(self, *flags: str) -> SparkProcess:
        """Start a query, if none runs."""
        if self.query is None or not self.query.is_alive():
            for before in self.queries:
                # Two queries must not use one checkpoint.
                self.wait(lambda: not before.survivors(), before.tail)  # noqa: B023
            arguments = [self.folder / "root", self.checkpoint, self.url, RATE, *flags]
            self.query = SparkProcess(
                self.folder,
                f"query-{len(self.queries) + 1}",
                ["tests.kills.pipeline_back_query", *map(str, arguments)],
            )
            self.queries.append(self.query)
        return self.query

    def wait(self, reached: Callable[[], bool], what: Callable[[], str]) -> None:
        until = time.monotonic() + processes.PATIENCE
        while not reached():
            self.segments.check()
            assert time.monotonic() < until, what()
            time.sleep(0.01)

    # --- kills ------------------------------------------------------------------------------------

    def strike(self, way: str) -> None:
        """Kill a part while the query sends, and find what that left."""
        query = self.start_query()
        before = query.count("batch")
        self.wait(lambda: not query.is_alive() or query.count("batch") > before, query.tail)
        assert query.is_alive(), f"it has ended by itself:\n{query.tail()}"
        time.sleep(self.random.random() * 3)
        if way == BROKER:
            self.broker.kill_all()
            self.count(way)
            time.sleep(self.random.random())
            self.start_broker()
            return
        processes.kill(query.targets(way))
        if way == TREE:
            query.finish_tree()
        self.count(way)
        if way == WORKERS:
            # Spark tries a task again, or the query ends and a restart continues it.
            self.wait(lambda: not query.is_alive() or query.count("batch") > before + 1, query.tail)
        else:
            self.wait(lambda: not query.is_alive(), query.tail)

    def count(self, way: str) -> None:
        self.result.windows.setdefault(way, Counter())[self.window()] += 1

    def window(self) -> str:
        """Whether a batch was planned that is not finished, by the checkpoint."""
        newest = {}
        for kind in ("offsets", "commits"):
            names = [each.name for each in (self.checkpoint / kind).iterdir()]
            newest[kind] = max((int(name) for name in names if name.isdigit()), default=-1)
        return IN_BATCH if newest["offsets"] > newest["commits"] else BETWEEN_BATCHES

    # --- the end ----------------------------------------------------------------------------------

    def publish_all(self) -> None:
        """Write no more messages, and publish all of them."""
        self.segments.pause()
        query = self.query
        if query is not None and query.is_alive():
            processes.kill(query.targets(TREE))
            query.finish_tree()
            # Until then it would be taken for the last query.
            self.wait(lambda: not query.is_alive(), query.tail)
        last = self.start_query("--once")
        self.wait(lambda: not last.is_alive(), last.tail)
        if last.process.returncode:
            self.result.verdict.blame("end", f"it ends with an error:\n{last.tail()}")
        self.result.queries = len(self.queries)
        self.result.batches = 1 + max(
            int(each.name)
            for each in (self.checkpoint / "commits").iterdir()
            if each.name.isdigit()
        )

    def settle(self, found: Counter[str]) -> None:
        expected = Counter(
            f"{node} {seq}"
            for node, last in self.segments.last.items()
            for seq in range(1, last + 1)
        )
        missing = sorted(expected - found)
        more = found - expected
        self.result.messages = expected.total()
        self.result.missing = len(missing)
        for alert, times in more.items():
            if alert in expected:
                self.result.duplicated += 1
                self.result.verdict.blame("duplicated", f"{alert}: {times} more")
            else:
                self.result.extra += 1
                self.result.verdict.blame("extra", alert)
        for alert in missing:
            self.result.verdict.blame("missing", alert)

    def device(self) -> Client:
        """The device, which keeps its session, as the broker does."""
        return Client(self.url, client_id=DEVICE, outbox=self.folder / "device.outbox")

    async def subscribe(self) -> None:
        async with self.device() as client:
            await client.subscribe("#", qos=2)

    async def receive(self) -> Counter[str]:
        """Everything that the device gets when it is online again."""
        found: Counter[str] = Counter()
        async with Client(self.url) as client:
            await client.publish(LAST, b"", 2)
        async with self.device() as client:
            async for message in client.messages():
                if message.topic == LAST:
                    return found
                found[message.payload.decode()] += 1
        return found


def run_back(
    plan: BackRunPlan, folder: Path, say: Callable[[str], None] = lambda _: None
) -> BackResult:
    return BackRun(plan, folder, say)()

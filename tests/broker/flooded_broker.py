"""A broker under a flood of connections, and innocent clients that must not notice.

warm-up flood ─▶ what the broker holds ─▶ flood ─▶ what it holds must be the same
                                           │
                a pair per transport exchanges messages, and newcomers log in
"""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from semel.client import Client
from semel.client.tls import make_context
from tests.broker.by_hand import PATIENCE
from tests.broker.connection_flood import (
    INTRUSION,
    LIMITED,
    STAGES,
    STRANGERS,
    FloodPlan,
    FloodProcess,
    FloodReport,
)
from tests.broker.core.test_access_password_hashes import mosquitto_2
from tests.broker.observed_broker import Observation, ObservedBroker
from tests.broker.tls_files import TlsFiles

TRANSPORTS = ("tcp", "tls", "ws")
SCHEMES = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws"}
# Seconds between two messages of a pair, and between two newcomers.
PACE = 0.02
NEWCOMERS = 0.5
# Seconds in which nothing may change before a broker is said to be at rest. Longer than a sweep.
REST = 1.5
# How much memory may grow: allocators keep what the most connections at a time have needed. A
# connection that is not freed needs more than the bytes for each.
SPARE_BYTES = 12 << 20
SPARE_BYTES_EACH = 100


@dataclass
class FloodResult:
    """What came of a flood."""

    report: FloodReport
    before: Observation
    after: Observation
    # Messages of the pairs, and how long each took.
    exchanged: int = 0
    latencies: list[float] = field(default_factory=list)
    newcomers: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, object]:
        report = self.report
        known = report.admitted(LIMITED)
        return {
            "connections": report.connections,
            "connections per second": round(report.rate, 1),
            "dropped": dict(sorted(report.dropped.items())),
            "answers": dict(sorted(report.answers.items())),
            "strangers admitted": report.admitted(*STRANGERS),
            "known users without rights admitted": known,
            "messages of innocent pairs": self.exchanged,
            "latency, median ms": _ms(statistics.median(self.latencies)),
            "latency, p99 ms": _ms(statistics.quantiles(self.latencies, n=100)[-1]),
            "latency, maximum ms": _ms(max(self.latencies)),
            "newcomers": len(self.newcomers),
            "newcomers, median ms": _ms(statistics.median(self.newcomers)),
            "newcomers, maximum ms": _ms(max(self.newcomers)),
            "held before": self.before.held(),
            "held after": self.after.held(),
            "memory before, MiB": round(self.before.resident / 2**20, 1),
            "memory after, MiB": round(self.after.resident / 2**20, 1),
        }


def _ms(seconds: float) -> float:
    return round(seconds * 1_000, 1)


def settings_of(folder: Path, files: TlsFiles) -> Path:
    """A broker with users, rights, and a listener of each transport."""
    users = ("ann", LIMITED)
    lines = [f"{name}:{mosquitto_2(name.encode(), iterations=100)}\n" for name in users]
    password_file = folder / "users"
    password_file.write_text("".join(lines))
    password_file.chmod(0o600)
    rights = folder / "rights.txt"
    rights.write_text("allow user:ann all #\n")
    tls = f'certfile = "{files / "server.pem"}"\nkeyfile = "{files / "server.key"}"\n'
    sections = [
        f'[[listener]]\nname = "{each}"\ntransport = "{each}"\nport = 0\n'
        + (tls if each == "tls" else "")
        for each in TRANSPORTS
    ]
    sections.append(f'[users]\npassword_file = "{password_file}"\n')
    sections.append(f'[rights]\nfile = "{rights}"\n')
    config = folder / "semel.toml"
    config.write_text("\n".join(sections))
    return config


class Innocents:
    """A publisher and a subscriber for each transport, and newcomers, while a flood goes on."""

    def __init__(self, ports: dict[str, int], files: TlsFiles) -> None:
        self._ports = ports
        self._files = files
        self.sent = dict.fromkeys(ports, 0)
        self.received: dict[str, list[int]] = {name: [] for name in ports}
        self.intrusions: list[str] = []
        self.latencies: list[float] = []
        self.newcomers: list[float] = []

    def client(self, transport: str) -> Client:
        path = "/mqtt" if transport == "ws" else ""
        tls = make_context(cafile=self._files / "ca.pem") if transport == "tls" else None
        return Client(
            f"{SCHEMES[transport]}://localhost:{self._ports[transport]}{path}",
            user_name="ann",
            password="ann",
            tls=tls,
            reconnect=False,
            connect_timeout=PATIENCE,
        )

    async def exchange(self, transport: str, stopping: asyncio.Event) -> None:
        """Publish numbers, and receive them all."""
        async with self.client(transport) as subscriber, self.client(transport) as publisher:
            # All that a pair can see is also what no intruder may send.
            messages = await subscriber.subscribe("pair/#", qos=1)

            async def receive() -> None:
                async for message in messages:
                    if message.payload == INTRUSION:
                        self.intrusions.append(message.topic)
                        continue
                    name, number, moment = message.payload.decode().split()
                    if name == transport:
                        self.received[name].append(int(number))
                        self.latencies.append(time.monotonic() - float(moment))

            receiving = asyncio.create_task(receive())
            while not stopping.is_set():
                number = self.sent[transport]
                self.sent[transport] += 1
                payload = f"{transport} {number} {time.monotonic()}".encode()
                await publisher.publish(f"pair/{transport}", payload, qos=1)
                await asyncio.sleep(PACE)
            end = time.monotonic() + PATIENCE
            while len(self.received[transport]) < self.sent[transport] and time.monotonic() < end:
                assert not receiving.done(), receiving.result()
                await asyncio.sleep(0.05)
            receiving.cancel()

    async def arrive(self, stopping: asyncio.Event) -> None:
        """Log in again and again, over each transport in turn."""
        number = 0
        while not stopping.is_set():
            begin = time.monotonic()
            async with self.client(TRANSPORTS[number % len(TRANSPORTS)]):
                self.newcomers.append(time.monotonic() - begin)
            number += 1
            await asyncio.sleep(NEWCOMERS)

    @asynccontextmanager
    async def present(self) -> AsyncIterator[None]:
        """They are there within the context. Raises what has happened to any of them."""
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for transport in self._ports:
                tasks.create_task(self.exchange(transport, stopping))
            tasks.create_task(self.arrive(stopping))
            try:
                yield
            finally:
                stopping.set()

    def faults(self) -> list[str]:
        found = [f"an intruder has published to {topic}" for topic in self.intrusions]
        for name, sent in self.sent.items():
            if self.received[name] != list(range(sent)):
                got = self.received[name]
                found.append(f"{name}: {sent} messages were sent, and {len(got)} received: {got}")
        return found


def run_flood(folder: Path, *, seconds: float, rate: float, seed: int) -> FloodResult:
    """Flood a broker for some seconds, with at most `rate` connections per second."""
    certificates = folder / "certificates"
    certificates.mkdir(parents=True)
    files = TlsFiles(certificates)
    with ObservedBroker("--config", str(settings_of(folder, files))) as broker:
        ports = broker.ports
        # Threads, caches and buffers exist afterwards.
        warming = FloodProcess(FloodPlan(ports, min(seconds, 20.0) / 2, rate, seed))
        asyncio.run(_accompany(Innocents(ports, files), warming))
        before = broker.observe_rest(REST)
        innocents = Innocents(ports, files)
        flood = FloodProcess(FloodPlan(ports, seconds, rate, seed + 1))
        report = asyncio.run(_accompany(innocents, flood))
        after = broker.observe_rest(REST)
    result = FloodResult(
        report,
        before,
        after,
        exchanged=sum(innocents.sent.values()),
        latencies=innocents.latencies,
        newcomers=innocents.newcomers,
        faults=innocents.faults(),
    )
    result.faults += compare(report, before, after)
    return result


async def _accompany(innocents: Innocents, flood: FloodProcess) -> FloodReport:
    async with innocents.present():
        return await asyncio.to_thread(flood.report)


def compare(report: FloodReport, before: Observation, after: Observation) -> list[str]:
    """What is wrong with a broker after a flood, apart from its innocent clients."""
    faults = []
    if report.admitted(*STRANGERS):
        faults.append(f"strangers were admitted: {dict(report.answers)}")
    if not report.admitted(LIMITED):
        faults.append(f"no known user was admitted: {dict(report.answers)}")
    missing = {
        f"{transport}/{stage}" for transport in TRANSPORTS for stage in STAGES
    } - report.dropped.keys()
    if missing:
        faults.append(f"nothing was dropped at {', '.join(sorted(missing))}")
    if report.failed:
        faults.append(f"connections failed: {dict(report.failed.most_common(5))}")
    if after.held() != before.held():
        faults.append(f"it held {before.held()} before, and {after.held()} after")
    spare = SPARE_BYTES + SPARE_BYTES_EACH * report.connections
    if after.resident - before.resident > spare:
        faults.append(
            f"its memory grew from {before.resident} to {after.resident} bytes: more than {spare}"
        )
    return faults

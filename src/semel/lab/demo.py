"""A demo: `semel up` with a fleet that publishes through a proxy, and faults all the while.

    semel fleet ──▶ proxy ──▶ semel up: broker, sealer, Spark ──▶ Delta table
        │             │           ▲                                  │
        journal       DUP         kill -9                            │
        └─────────────┴─────── the account ──────────────────────────┘

Fleet and `semel up` are processes, as a user would start them; the proxy is here, and cuts and
repeats. Faults are those of `plan_faults`. A part of the messages is published while Spark starts;
for the others a second run of the fleet waits until Spark has landed some. When everything is
published and every fault has happened, the record and the table are given time to have it all; then
`semel up` is ended as by Ctrl-C, and the account is taken from what lies on the disk.

Each of the two runs on a tether (that of the parts of `semel up`), which ends it, and all that it
has started, when this process is dead: so no process is left behind, whatever happens, kill -9 of
this one too. Nothing is read while it is being written but how far record and table go, and those
numbers are for people: the verdict is not based on them.
"""

import asyncio
import json
import os
import random
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from semel import counts
from semel.extras import need
from semel.lab.demo_account import Reconciliation, Verdict
from semel.lab.demo_faults import BEFORE_SPARK, SPARK, TETHER, Planned, kill_part, plan_faults
from semel.lab.faults import REPEAT, Fault, Faults
from semel.lab.fleet.devices import MIXED, Devices
from semel.lab.fleet.journal import BadJournal, read_journal
from semel.lab.proxy import HOST, Proxy
from semel.lab.recording import Recording
from semel.mqtt.packets.publish import Publish
from semel.mqtt.side import CLIENT, SIDES
from semel.store.reading import StreamCatalog
from semel.store.schema import Unusable
from semel.store.segments import RecordError

T = TypeVar("T")

DEVICES: Final = 200
GATEWAYS: Final = 4
PREFIX: Final = "plant"
STREAM: Final = "all"
TABLE: Final = "messages"
# Which part of the time is for publishing: Spark takes long to start, and to start again.
PUBLISHING: Final = 0.4
# How much longer than planned it may take, on a machine that has other things to do.
TIMEOUT_SECONDS: Final = 2.0
# How long `semel up` may take to end, and its broker to serve.
STOP_SECONDS: Final = 120.0
START_SECONDS: Final = 60.0
# How long Spark takes to start, for people who wait.
SPARK_STARTS: Final = "15 s to 2 min"
# How long they may take to end, once this process is dead.
GRACE_SECONDS: Final = 20.0
# It is run as a file, and obeys these on its standard input.
TETHER_FILE: Final = Path(__file__).resolve().parent.parent / "up" / TETHER
TERMINATE: Final = b"T"
KILL: Final = b"K"
# How often the plan is looked at, and how often record and table are.
TICK_SECONDS: Final = 0.1
POLL_SECONDS: Final = 1.0
# Between two faults: what is published comes to be known once a second.
QUIET_SECONDS: Final = 0.3
# Packets that a proxy remembers until they are counted.
MOST_PACKETS: Final = 20_000
MOST_PACKET_BYTES: Final = 64 * 1024 * 1024
# The system gives ports of its own range to whoever connects, so that a client of a broker that is
# down may be connected to itself: ports are chosen from below that range.
PORTS: Final = range(20_000, 30_000)


class DemoFailed(Exception):
    """Why there is no account, in one sentence."""


@dataclass(frozen=True)
class DemoStatus:
    """How a demo stands."""

    seconds: float
    published: int = 0
    redelivered: int = 0
    recorded: int = 0
    landed: int = 0
    # What it waits for while no number may grow, and for how long; empty: nothing.
    waiting: str = ""


@dataclass(frozen=True)
class DemoOptions:
    """What a demo is to be. It is paced to take `seconds`, and given up after twice as many."""

    folder: Path
    messages: int
    seconds: float
    seed: int
    # Messages per second; None: as many as leave time for Spark.
    rate: float | None = None
    # Without a landing there is no Spark, and the record is the end.
    lands: bool = True


def free_port() -> int:
    """A port where nobody listens. Raises DemoFailed."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                trial.bind((HOST, port))
                return port
    raise DemoFailed(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")


def order(process: asyncio.subprocess.Process, what: bytes) -> None:
    """Have a tether do something, if it is there."""
    if process.stdin is not None and process.returncode is None:
        with suppress(OSError, RuntimeError):
            process.stdin.write(what)


class Demo:
    """One demo, from an empty folder to a verdict."""

    def __init__(
        self,
        wanted: DemoOptions,
        tell: Callable[[DemoStatus], None],
        happened: Callable[[float, str], None],
    ) -> None:
        """`tell` gets numbers, again and again; `happened` gets seconds, and words."""
        if wanted.lands:
            need("deltalake", extra="spark", by="semel demo")
        need("pyarrow", extra="broker", by="semel demo")
        self.wanted = wanted
        self.status = DemoStatus(0.0)
        self.kills: dict[str, int] = {}
        self._tell = tell
        self._happened = happened
        self._began = time.monotonic()
        self._data = wanted.folder / "data"
        self._state = wanted.folder / "fleet"
        self._devices = Devices(wanted.seed, min(DEVICES, wanted.messages), prefix=PREFIX)
        self._left = plan_faults(wanted.seed, wanted.messages, lands=wanted.lands)
        self._recording = Recording(most_packets=MOST_PACKETS, most_bytes=MOST_PACKET_BYTES)
        self._seen = 0
        # What is to be exceeded for Spark to be at work, again; -1: it is.
        self._landed_before_kill = 0
        # What the demo waits for, and since when.
        self._awaited = f"Spark to start ({SPARK_STARTS})" if wanted.lands else ""
        self._awaited_since = self._began
        self._faults: list[str] = []
        self._up: asyncio.subprocess.Process | None = None
        self._fleet: asyncio.subprocess.Process | None = None
        self._proxy: Proxy | None = None

    def _await(self, what: str) -> None:
        """Say from now on that it waits for something; with an empty text, for nothing."""
        self._awaited, self._awaited_since = what, time.monotonic()

    def _note(self, sentence: str) -> None:
        self._happened(time.monotonic() - self._began, sentence)

    # --- its life ---------------------------------------------------------------------------------

    async def run(self) -> Verdict:
        """The whole demo. Raises DemoFailed."""
        port = free_port()
        try:
            self._note("starting semel up")
            words = ["--data", str(self._data), "--host", HOST, "--port", str(port)]
            up = self._up = await self._start(
                "up", *words, *(() if self.wanted.lands else ("--no-land",))
            )
            await self._until_served(up, port)
            proxy = self._proxy = Proxy(self._recording, Faults(), port=free_port())
            await proxy.open((HOST, port))
            rate = self.wanted.rate or self.wanted.messages / (self.wanted.seconds * PUBLISHING)
            self._note(f"the broker serves at {HOST}:{port}")
            self._note(f"a fleet publishes {rate:,.0f} messages/s at QoS 2, through a proxy")
            publishing = asyncio.create_task(self._publish(proxy.port, rate))
            looking = asyncio.create_task(self._keep_looking())
            try:
                await self._until_landed(up, publishing, proxy)
            finally:
                for task in (publishing, looking):
                    task.cancel()
                await asyncio.wait((publishing, looking))
            self._count()
            await proxy.close()
            self._proxy = None
            if self._fleet is not None and self._fleet.returncode is None:
                # The time is up. What it has begun may come or not.
                order(self._fleet, KILL)
                await self._fleet.wait()
            self._note("stopping semel up, and taking the account")
            self._await("semel up to stop")
            await self._while_showing(self._end(up, "semel up"))
            self._await("the account")
            return await self._while_showing(asyncio.to_thread(self._account))
        finally:
            await self._clean_up()

    async def _start(
        self, name: str, *arguments: str, output: int | None = None
    ) -> asyncio.subprocess.Process:
        """A command of this semel, with its log in the folder. Raises DemoFailed."""
        # What the user's own semel is told by the environment is not meant for a demo.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMEL_")}
        tether = (sys.executable, "-I", "-S", str(TETHER_FILE), str(GRACE_SECONDS))
        command = (*tether, sys.executable, "-P", "-m", "semel", name, *arguments)
        try:
            with self._log(name).open("ab") as log:
                return await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log if output is None else output,
                    stderr=log,
                    env=environment,
                    # Ctrl-C is for us alone: we end the others, in order.
                    start_new_session=True,
                )
        except OSError as problem:
            raise DemoFailed(f"semel {name} cannot be started: {problem}") from None

    def _log(self, name: str) -> Path:
        return self.wanted.folder / f"{name}.log"

    def _last_words(self, name: str) -> str:
        """What a process said last, above all why it failed."""
        lines = self._log(name).read_text(errors="replace").split("\n")
        written = [line.strip() for line in lines if line.strip()]
        errors = [line for line in written if line.startswith("Error: ")]
        return (errors or written or ["it said nothing"])[-1].removeprefix("Error: ")

    async def _until_served(self, up: asyncio.subprocess.Process, port: int) -> None:
        """Wait until somebody listens. Raises DemoFailed."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if up.returncode is not None:
                raise DemoFailed(f"semel up has ended: {self._last_words('up')}")
            with suppress(OSError):
                _, writer = await asyncio.open_connection(HOST, port)
                writer.close()
                return
            self._show()
            await asyncio.sleep(TICK_SECONDS)
        raise DemoFailed(
            f"the broker does not serve after {START_SECONDS:.0f} s: {self._last_words('up')}"
        )

    async def _publish(self, port: int, rate: float) -> None:
        """Run the fleet, in two parts if there is a Spark to wait for. Raises DemoFailed."""
        counts = [self.wanted.messages]
        if self.wanted.lands:
            counts.insert(0, max(1, int(self.wanted.messages * BEFORE_SPARK)))
        for count in counts:
            if count != counts[0]:
                if not self.status.landed:
                    self._note("the rest is published when Spark has landed some of this")
                while not self.status.landed:
                    await asyncio.sleep(TICK_SECONDS)
            fleet = self._fleet = await self._start_fleet(port, rate, count)
            assert fleet.stdout is not None
            while line := await fleet.stdout.readline():
                with suppress(ValueError, KeyError, TypeError):
                    self.status = replace(self.status, published=int(json.loads(line)["total"]))
            if await fleet.wait():
                raise DemoFailed(f"the fleet has failed: {self._last_words('fleet')}")
            if self.status.published < count:
                # Somebody has stopped it: there is nothing to wait for.
                raise DemoFailed(
                    f"the fleet has ended after {self.status.published:,} of {count:,} messages"
                )

    async def _start_fleet(self, port: int, rate: float, count: int) -> asyncio.subprocess.Process:
        options: dict[str, object] = {
            "-h": HOST,
            "-p": port,
            "-V": "5",
            "--qos": 2,
            "--devices": len(self._devices),
            "--gateways": min(GATEWAYS, len(self._devices)),
            "--count": count,
            "--rate": rate,
            "--seed": self.wanted.seed,
            "--payload": MIXED,
            "--prefix": PREFIX,
            "--data": self._state,
        }
        words = [str(word) for option in options.items() for word in option]
        return await self._start("fleet", *words, "--json", output=asyncio.subprocess.PIPE)

    async def _end(self, process: asyncio.subprocess.Process, name: str) -> None:
        """End a process in order, and note if that fails."""
        order(process, TERMINATE)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                code = await process.wait()
        except TimeoutError:
            self._faults.append(f"{name} did not end within {STOP_SECONDS:.0f} s")
            return
        if code:
            self._faults.append(f"{name} ended with exit code {code}: {self._last_words('up')}")

    async def _clean_up(self) -> None:
        """Leave no process behind."""
        if self._proxy is not None:
            await self._proxy.close()
        for process in (self._fleet, self._up):
            if process is not None:
                order(process, KILL)
                # The tether ends when nothing is left below it.
                await process.wait()

    # --- while it runs ----------------------------------------------------------------------------

    async def _until_landed(
        self,
        up: asyncio.subprocess.Process,
        publishing: "asyncio.Task[None]",
        proxy: Proxy,
    ) -> None:
        """Let everything happen, until all is landed or the time is up."""
        last = quiet_until = 0.0
        while True:
            self._count()
            if time.monotonic() >= quiet_until:
                for planned in [each for each in self._left if each.at <= self.status.published]:
                    if self._strike(planned, up, proxy):
                        self._left.remove(planned)
                        quiet_until = time.monotonic() + QUIET_SECONDS
                        break
            if time.monotonic() - last >= TICK_SECONDS:
                last = time.monotonic()
                self._show()
            if up.returncode is not None:
                raise DemoFailed(f"semel up has ended: {self._last_words('up')}")
            is_published = publishing.done()
            if is_published:
                publishing.result()
            status = self.status
            is_landed = status.landed >= status.recorded or not self.wanted.lands
            if is_published and not self._left and status.recorded >= self.wanted.messages:
                if is_landed:
                    return
            if status.seconds > self.wanted.seconds * TIMEOUT_SECONDS:
                self._faults += self._unfinished(is_published, is_landed)
                return
            await asyncio.sleep(TICK_SECONDS)

    def _unfinished(self, is_published: bool, is_landed: bool) -> Iterator[str]:
        """What did not come to its end in time."""
        limit = self.wanted.seconds * TIMEOUT_SECONDS
        within = f"within {limit:.0f} s; a slow machine needs more --duration"
        if not is_published:
            yield f"the fleet has not published everything {within}"
        elif not is_landed:
            yield f"not everything that is recorded has landed {within}"
        for planned in self._left:
            yield f"planned, and not done: {planned}"

    def _strike(self, planned: Planned, up: asyncio.subprocess.Process, proxy: Proxy) -> bool:
        """Let a fault happen; False: there is nobody whom it could hit just now."""
        if planned.is_kill:
            killed = kill_part(up.pid, planned.kind)
            if not killed:
                return False
            self.kills[planned.kind] = self.kills.get(planned.kind, 0) + 1
            what = f" ({killed} processes)" if killed > 1 else ""
            self._note(f"{planned}{what}")
            if planned.kind == SPARK:
                self._landed_before_kill = self.status.landed
                self._await(f"Spark to start again ({SPARK_STARTS})")
                self._note("semel up starts Spark again; the broker goes on meanwhile")
            return True

        def end(fault: Fault) -> None:
            proxy.faults.remove(fault)

        proxy.add(
            Fault(
                planned.kind,
                kind=planned.packet,
                sender=planned.sender,
                count=planned.count,
                end=end,
            )
        )
        self._note(str(planned))
        return True

    def _count(self) -> None:
        """Count what passed the proxy since the last time, and was sent before."""
        packets = self._recording.packets
        if packets.forgotten > self._seen:
            # Nothing that the account needs; but the number would be too low.
            self._note(f"{counts.count(packets.forgotten - self._seen, 'packet')} passed uncounted")
            self._seen = packets.forgotten
        found = packets.items(self._seen)
        self._seen += len(found)
        again = sum(
            isinstance(each.packet, Publish)
            and each.sender == SIDES[CLIENT]
            and (each.packet.dup or each.fault == REPEAT)
            for each in found
        )
        self.status = replace(self.status, redelivered=self.status.redelivered + again)

    def _show(self) -> None:
        now = time.monotonic()
        waiting = f"{self._awaited}, {now - self._awaited_since:.0f} s" if self._awaited else ""
        self.status = replace(self.status, seconds=now - self._began, waiting=waiting)
        self._tell(self.status)

    async def _while_showing(self, work: Awaitable[T]) -> T:
        """Wait for something that may take its time, and show how things stand."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                self._show()
                await asyncio.wait((task,), timeout=TICK_SECONDS)
        finally:
            task.cancel()
        return task.result()

    async def _keep_looking(self) -> None:
        """Ask record and table how far they go."""
        while True:
            recorded, landed = await asyncio.to_thread(self._poll_counts)
            if landed > self._landed_before_kill >= 0:
                self._note("Spark is there, and lands")
                self._landed_before_kill = -1
                self._await("")
            self.status = replace(
                self.status,
                recorded=max(recorded, self.status.recorded),
                landed=max(landed, self.status.landed),
            )
            await asyncio.sleep(POLL_SECONDS)

    def _poll_counts(self) -> tuple[int, int]:
        recorded = landed = 0
        # Somebody who is just being killed leaves things that cannot be read for a moment.
        # The store is opened for a moment only: the last to close it is to be its broker.
        with suppress(Unusable, RecordError, OSError), StreamCatalog(self._data, None) as catalog:
            recorded = sum(record.last() for record in catalog.records(STREAM))
        table = self._table() if self.wanted.lands else None
        if table is not None:
            actions = table.get_add_actions(flatten=True)
            landed = sum(actions.column("num_records").to_pylist())
        return recorded, landed

    def _table(self) -> Any:
        """The Delta table as it is now; None: there is none yet."""
        deltalake = need("deltalake", extra="spark", by="semel demo")
        path = self._data / "lake" / TABLE
        if not deltalake.DeltaTable.is_deltatable(str(path)):
            return None
        return deltalake.DeltaTable(str(path))

    # --- the account ------------------------------------------------------------------------------

    def _account(self) -> Verdict:
        account = Reconciliation(self._devices, self.wanted.messages, lands=self.wanted.lands)
        for sentence in self._faults:
            account.blame(sentence)
        try:
            table = self._table() if self.wanted.lands else None
            take_all(account, self._state / "journal", self._data, table)
        except (BadJournal, Unusable, RecordError, OSError, ValueError) as problem:
            account.blame(" ".join(str(problem).split()))
        return account.reconcile(self.status.redelivered)


def take_all(account: Reconciliation, journal: Path, data: Path, table: Any) -> None:
    """Give an account all that lies on the disk. `table` is a DeltaTable, or None."""
    account.take_journal(read_journal(journal))
    with StreamCatalog(data, None) as catalog:
        for record in catalog.records(STREAM):
            first, last = record.first(), record.last()
            rows = rows_of(record.tables(first, last), "seq", "topic", "payload")
            account.take_record(record.node, first, rows)
    if table is not None:
        names = ["node", "seq", "topic", "payload"]
        batches = table.to_pyarrow_dataset().to_batches(columns=names)
        account.take_landed(rows_of(batches, *names))


def rows_of(tables: Any, *names: str) -> Iterator[Any]:
    """Some columns of Arrow tables, row by row; one table is in memory at a time."""
    for table in tables:
        yield from zip(*(table.column(name).to_pylist() for name in names), strict=True)

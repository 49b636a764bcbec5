"""A demo: `semel up` under faults, with a fleet that publishes to it through a proxy.

    semel fleet ──▶ proxy ──▶ semel up: broker, sealer, Spark ──▶ Delta table
        │             │           ▲                                  │
        journal       DUP         kill -9                            │
        └─────────────┴─────── reconciliation ───────────────────────┘

The fleet and `semel up` are processes, as a user would start them. The proxy runs in this process;
it cuts connections and repeats packets. `plan_faults` chooses the faults. Some messages are
published while Spark starts; a second run of the fleet publishes the rest once Spark has landed
some of them. When everything is published and every fault has occurred, the demo waits until record
and table are complete, stops `semel up` as Ctrl-C would, and reconciles the totals from the files
on disk.

Each process runs under the tether that `semel up` uses for its parts. It ends the process and its
descendants when this process dies, so no process is left behind, even after kill -9 of the demo.
While the demo runs it reads only how many rows record and table have, for the status line: the
verdict does not depend on these numbers.
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
from semel.lab.demo_faults import BEFORE_SPARK, SPARK, TETHER, PlannedFault, kill_part, plan_faults
from semel.lab.demo_reconciliation import Reconciliation, Verdict
from semel.lab.faults import REPEAT, Fault, Faults
from semel.lab.fleet.devices import MIXED, Devices
from semel.lab.fleet.journal import BadJournal, read_journal
from semel.lab.proxy import HOST, Proxy
from semel.lab.recording import Recording
from semel.mqtt.packets.publish import Publish
from semel.mqtt.side import CLIENT, SIDES
from semel.pipeline.delta_errors import table_errors
from semel.pipeline.errors import TableError
from semel.pipeline.lake import dataset_of
from semel.store.reading import StreamCatalog
from semel.store.schema import Unusable
from semel.store.segments import RecordError

T = TypeVar("T")

DEVICES: Final = 200
GATEWAYS: Final = 4
PREFIX: Final = "plant"
STREAM: Final = "all"
TABLE: Final = "messages"
# The share of the time for publishing: Spark takes long to start, and to restart.
PUBLISHING_SHARE: Final = 0.4
# The demo fails after this multiple of its planned duration.
TIMEOUT_FACTOR: Final = 2.0
# How long `semel up` may take to stop, and its broker to start.
STOP_SECONDS: Final = 120.0
START_SECONDS: Final = 60.0
# How long Spark takes to start, as shown to the user.
SPARK_START_TIME: Final = "15 s to 2 min"
# How long the processes may take to end after this process has died.
GRACE_SECONDS: Final = 20.0
# The tether runs as a script, and reads these commands from its standard input.
TETHER_FILE: Final = Path(__file__).resolve().parent.parent / "up" / TETHER
TERMINATE: Final = b"T"
KILL: Final = b"K"
# How often the fault plan is checked, and how often record and table are.
TICK_SECONDS: Final = 0.1
POLL_SECONDS: Final = 1.0
# The minimum time between two faults: the published count is updated once a second.
QUIET_SECONDS: Final = 0.3
# Limits for packets that the proxy keeps until they are counted.
MOST_PACKETS: Final = 20_000
MOST_PACKET_BYTES: Final = 64 * 1024 * 1024
# Below the ephemeral ports: a client that connects to an ephemeral port without a listener can get
# the same port as its local one, and is then connected to itself.
PORTS: Final = range(20_000, 30_000)


class DemoFailed(Exception):
    """The demo has no verdict; the text says why, in one sentence."""


@dataclass(frozen=True)
class DemoStatus:
    """The progress of a demo."""

    seconds: float
    published: int = 0
    redelivered: int = 0
    recorded: int = 0
    landed: int = 0
    # What the demo waits for, and for how long; empty: nothing.
    waiting: str = ""


@dataclass(frozen=True)
class DemoOptions:
    """The options of a demo. It is paced to take `seconds`, and fails after twice that time."""

    folder: Path
    messages: int
    seconds: float
    seed: int
    # Messages per second; None: chosen so that Spark has time to start twice.
    rate: float | None = None
    # If False, there is no Spark, and the record is checked instead of the table.
    lands: bool = True


def free_port() -> int:
    """A free port. Raises DemoFailed."""
    for port in random.sample(PORTS, len(PORTS)):  # nosec B311 # simulated data
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                trial.bind((HOST, port))
                return port
    raise DemoFailed(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")


def send_command(process: asyncio.subprocess.Process, what: bytes) -> None:
    """Send a command to a tether, if it still runs."""
    if process.stdin is not None and process.returncode is None:
        with suppress(OSError, RuntimeError):
            process.stdin.write(what)


class Demo:
    """One demo, from an empty directory to a verdict."""

    def __init__(
        self,
        options: DemoOptions,
        on_status: Callable[[DemoStatus], None],
        on_event: Callable[[float, str], None],
        *,
        kill: Callable[[int, str], int] = kill_part,
    ) -> None:
        """`on_status` gets the progress regularly; `on_event` gets seconds and a sentence.

        `kill` kills one part of a `semel up`, and returns how many processes that were.
        """
        if options.lands:
            need("deltalake", extra="spark", by="semel demo")
        need("pyarrow", extra="broker", by="semel demo")
        self.options = options
        self.status = DemoStatus(0.0)
        self.kills: dict[str, int] = {}
        self._on_status = on_status
        self._on_event = on_event
        self._kill = kill
        self._began = time.monotonic()
        self._data = options.folder / "data"
        self._table_path = str(self._data / "lake" / TABLE)
        self._fleet_data = options.folder / "fleet"
        self._devices = Devices(options.seed, min(DEVICES, options.messages), prefix=PREFIX)
        self._faults_left = plan_faults(options.seed, options.messages, lands=options.lands)
        self._recording = Recording(most_packets=MOST_PACKETS, most_bytes=MOST_PACKET_BYTES)
        self._counted = 0
        # Spark works (again) once more rows than this have landed; -1: it works. None: it was
        # killed, and the rows that had landed are not counted yet.
        self._landed_before_kill: int | None = 0
        # What the demo waits for, and since when.
        self._awaited = f"Spark to start ({SPARK_START_TIME})" if options.lands else ""
        self._awaited_since = self._began
        self._faults: list[str] = []
        self._up: asyncio.subprocess.Process | None = None
        self._fleet: asyncio.subprocess.Process | None = None
        self._proxy: Proxy | None = None

    def _set_awaited(self, what: str) -> None:
        """Set what the demo waits for, as the status line shows it; empty: nothing."""
        self._awaited, self._awaited_since = what, time.monotonic()

    def _report_event(self, sentence: str) -> None:
        self._on_event(time.monotonic() - self._began, sentence)

    # --- run --------------------------------------------------------------------------------------

    async def run(self) -> Verdict:
        """Run the demo, and return its verdict. Raises DemoFailed."""
        port = free_port()
        try:
            self._report_event("starting semel up")
            words = ["--data", str(self._data), "--host", HOST, "--port", str(port)]
            up = self._up = await self._start(
                "up", *words, *(() if self.options.lands else ("--no-land",))
            )
            await self._wait_until_serving(up, port)
            proxy = self._proxy = Proxy(self._recording, Faults(), port=free_port())
            await proxy.open((HOST, port))
            publishing_seconds = self.options.seconds * PUBLISHING_SHARE
            rate = self.options.rate or self.options.messages / publishing_seconds
            self._report_event(f"the broker listens on {HOST}:{port}")
            self._report_event(
                f"a fleet publishes {rate:,.0f} messages/s at QoS 2, through a proxy"
            )
            publishing = asyncio.create_task(self._publish(proxy.port, rate))
            polling = asyncio.create_task(self._poll_progress(self._poll_counts))
            try:
                await self._run_until_landed(up, publishing, polling, proxy)
            finally:
                for task in (publishing, polling):
                    task.cancel()
                await asyncio.wait((publishing, polling))
            self._count_redelivered()
            await proxy.close()
            self._proxy = None
            if self._fleet is not None and self._fleet.returncode is None:
                # The time is up. Messages in flight may or may not arrive.
                send_command(self._fleet, KILL)
                await self._fleet.wait()
            self._report_event("stopping semel up, then reconciling the totals")
            self._set_awaited("semel up to stop")
            await self._while_showing(self._terminate(up, "semel up"))
            self._set_awaited("the reconciliation")
            return await self._while_showing(asyncio.to_thread(self._reconcile))
        finally:
            await self._clean_up()

    async def _start(
        self, name: str, *arguments: str, output: int | None = None
    ) -> asyncio.subprocess.Process:
        """Start a semel command that logs into the demo's directory. Raises DemoFailed."""
        # Ignore settings in the user's environment.
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
                    # Ctrl-C must reach only this process, which stops the others in order.
                    start_new_session=True,
                )
        except OSError as problem:
            raise DemoFailed(f"semel {name} cannot be started: {problem}") from None

    def _log(self, name: str) -> Path:
        return self.options.folder / f"{name}.log"

    def _last_log_line(self, name: str) -> str:
        """The last error of a process, or else the last line of its log."""
        lines = self._log(name).read_text(errors="replace").split("\n")
        written = [line.strip() for line in lines if line.strip()]
        errors = [line for line in written if line.startswith("Error: ")]
        return (errors or written or ["its log is empty"])[-1].removeprefix("Error: ")

    async def _wait_until_serving(self, up: asyncio.subprocess.Process, port: int) -> None:
        """Wait until the broker accepts connections. Raises DemoFailed."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if up.returncode is not None:
                raise DemoFailed(f"semel up ended: {self._last_log_line('up')}")
            with suppress(OSError):
                _, writer = await asyncio.open_connection(HOST, port)
                writer.close()
                return
            self._show_status()
            await asyncio.sleep(TICK_SECONDS)
        raise DemoFailed(
            f"the broker did not start within {START_SECONDS:.0f} s: {self._last_log_line('up')}"
        )

    async def _publish(self, port: int, rate: float) -> None:
        """Run the fleet, in two parts if Spark lands its messages. Raises DemoFailed."""
        counts = [self.options.messages]
        if self.options.lands:
            counts.insert(0, max(1, int(self.options.messages * BEFORE_SPARK)))
        for count in counts:
            if count != counts[0]:
                if not self.status.landed:
                    self._report_event(
                        "waiting until Spark has landed some rows to publish the rest"
                    )
                while not self.status.landed:
                    await asyncio.sleep(TICK_SECONDS)
            fleet = self._fleet = await self._start_fleet(port, rate, count)
            assert fleet.stdout is not None
            while line := await fleet.stdout.readline():
                with suppress(ValueError, KeyError, TypeError):
                    self.status = replace(self.status, published=int(json.loads(line)["total"]))
            if await fleet.wait():
                raise DemoFailed(f"the fleet failed: {self._last_log_line('fleet')}")
            if self.status.published < count:
                # Another process stopped it, so the rest will never be published.
                raise DemoFailed(
                    f"the fleet ended after {self.status.published:,} of {count:,} messages"
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
            "--seed": self.options.seed,
            "--payload": MIXED,
            "--prefix": PREFIX,
            "--data": self._fleet_data,
        }
        words = [str(word) for option in options.items() for word in option]
        return await self._start("fleet", *words, "--json", output=asyncio.subprocess.PIPE)

    async def _terminate(self, process: asyncio.subprocess.Process, name: str) -> None:
        """Stop a process gracefully; a failure to do so is a fault of the demo."""
        send_command(process, TERMINATE)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                code = await process.wait()
        except TimeoutError:
            self._faults.append(f"{name} did not stop within {STOP_SECONDS:.0f} s")
            return
        if code:
            self._faults.append(f"{name} ended with exit code {code}: {self._last_log_line('up')}")

    async def _clean_up(self) -> None:
        """Leave no process behind."""
        if self._proxy is not None:
            await self._proxy.close()
        for process in (self._fleet, self._up):
            if process is not None:
                send_command(process, KILL)
                # The tether ends once all its descendants have.
                await process.wait()

    # --- while it runs ----------------------------------------------------------------------------

    async def _run_until_landed(
        self,
        up: asyncio.subprocess.Process,
        publishing: "asyncio.Task[None]",
        polling: "asyncio.Task[None]",
        proxy: Proxy,
    ) -> None:
        """Inject the planned faults until everything has landed or the time is up."""
        last = quiet_until = 0.0
        while True:
            self._count_redelivered()
            if time.monotonic() >= quiet_until:
                for planned in [
                    each for each in self._faults_left if each.at <= self.status.published
                ]:
                    if self._inject(planned, up, proxy):
                        self._faults_left.remove(planned)
                        quiet_until = time.monotonic() + QUIET_SECONDS
                        break
            if time.monotonic() - last >= TICK_SECONDS:
                last = time.monotonic()
                self._show_status()
            if up.returncode is not None:
                raise DemoFailed(f"semel up ended: {self._last_log_line('up')}")
            is_published = publishing.done()
            if is_published:
                publishing.result()
            if polling.done():
                # It ends only with an error.
                polling.result()
            status = self.status
            is_landed = status.landed >= status.recorded or not self.options.lands
            if is_published and not self._faults_left and status.recorded >= self.options.messages:
                if is_landed:
                    return
            if status.seconds > self.options.seconds * TIMEOUT_FACTOR:
                self._faults += self._unfinished(is_published, is_landed)
                return
            await asyncio.sleep(TICK_SECONDS)

    def _unfinished(self, is_published: bool, is_landed: bool) -> Iterator[str]:
        """What was not complete in time."""
        limit = self.options.seconds * TIMEOUT_FACTOR
        within = f"within {limit:.0f} s; on a slow machine, use a longer --duration"
        if not is_published:
            yield f"the fleet did not publish everything {within}"
        elif not is_landed:
            yield f"not all recorded rows landed {within}"
        for planned in self._faults_left:
            yield f"planned fault not injected: {planned}"

    def _inject(self, planned: PlannedFault, up: asyncio.subprocess.Process, proxy: Proxy) -> bool:
        """Inject a fault; False if the process to kill does not run at the moment."""
        if planned.is_kill:
            killed = self._kill(up.pid, planned.kind)
            if not killed:
                return False
            self.kills[planned.kind] = self.kills.get(planned.kind, 0) + 1
            what = f" ({killed} processes)" if killed > 1 else ""
            self._report_event(f"{planned}{what}")
            if planned.kind == SPARK:
                # What has landed since the last poll is not known yet.
                self._landed_before_kill = None
                self._set_awaited(f"Spark to restart ({SPARK_START_TIME})")
                self._report_event("semel up restarts Spark; the broker keeps running")
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
        self._report_event(str(planned))
        return True

    def _count_redelivered(self) -> None:
        """Count the redelivered messages that passed the proxy since the last call."""
        packets = self._recording.packets
        if packets.discarded > self._counted:
            # Reconciliation does not need them, but the reported number is too low.
            self._report_event(
                f"{counts.count(packets.discarded - self._counted, 'packet')} not counted"
            )
            self._counted = packets.discarded
        packets_seen = packets.items(self._counted)
        self._counted += len(packets_seen)
        redelivered = sum(
            isinstance(each.packet, Publish)
            and each.sender == SIDES[CLIENT]
            and (each.packet.dup or each.fault == REPEAT)
            for each in packets_seen
        )
        self.status = replace(self.status, redelivered=self.status.redelivered + redelivered)

    def _show_status(self) -> None:
        now = time.monotonic()
        waiting = f"{self._awaited}, {now - self._awaited_since:.0f} s" if self._awaited else ""
        self.status = replace(self.status, seconds=now - self._began, waiting=waiting)
        self._on_status(self.status)

    async def _while_showing(self, work: Awaitable[T]) -> T:
        """Await something, and show the status meanwhile."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                self._show_status()
                await asyncio.wait((task,), timeout=TICK_SECONDS)
        finally:
            task.cancel()
        return task.result()

    async def _poll_progress(
        self, poll_counts: Callable[[], tuple[int, int]], *, seconds: float = POLL_SECONDS
    ) -> None:
        """Update the numbers of recorded and landed rows."""
        while True:
            kills = self.kills.get(SPARK)
            recorded, landed = await asyncio.to_thread(poll_counts)
            if self._landed_before_kill is None:
                # A count that began before the kill may lack rows that landed before it.
                if kills == self.kills.get(SPARK):
                    self._landed_before_kill = landed
            elif landed > self._landed_before_kill >= 0:
                self._report_event("Spark is running and lands messages")
                self._landed_before_kill = -1
                self._set_awaited("")
            self.status = replace(
                self.status,
                recorded=max(recorded, self.status.recorded),
                landed=max(landed, self.status.landed),
            )
            await asyncio.sleep(seconds)

    def _poll_counts(self) -> tuple[int, int]:
        recorded = landed = 0
        # After a kill, files may be unreadable for a moment: the next poll tries again. The store
        # is closed again at once, so that the broker is the last to close it.
        with suppress(Unusable, RecordError, OSError), StreamCatalog(self._data, None) as catalog:
            recorded = sum(record.last() for record in catalog.records(STREAM))
        with suppress(TableError):
            table = self._table()
            if table is not None:
                with table_errors(self._table_path):
                    actions = table.get_add_actions(flatten=True)
                    landed = sum(actions.column("num_records").to_pylist())
        return recorded, landed

    def _table(self) -> Any:
        """The current version of the Delta table; None if there is none (yet).

        Raises TableError.
        """
        if not self.options.lands:
            return None
        deltalake = need("deltalake", extra="spark", by="semel demo")
        with table_errors(self._table_path):
            if not deltalake.DeltaTable.is_deltatable(self._table_path):
                return None
            return deltalake.DeltaTable(self._table_path)

    # --- reconciliation ---------------------------------------------------------------------------

    def _reconcile(self) -> Verdict:
        reconciliation = Reconciliation(
            self._devices, self.options.messages, lands=self.options.lands
        )
        for sentence in self._faults:
            reconciliation.add_fault(sentence)
        table = None
        try:
            table = self._table()
        except TableError as problem:
            reconciliation.add_fault(str(problem))
        try:
            add_everything(reconciliation, self._fleet_data / "journal", self._data, table)
        except (BadJournal, Unusable, RecordError, TableError, OSError, ValueError) as problem:
            reconciliation.add_fault(" ".join(str(problem).split()))
        return reconciliation.reconcile(self.status.redelivered)


def add_everything(reconciliation: Reconciliation, journal: Path, data: Path, table: Any) -> None:
    """Add the journal, the record and the table; `table` is a DeltaTable, or None."""
    reconciliation.add_journal(read_journal(journal))
    with StreamCatalog(data, None) as catalog:
        for record in catalog.records(STREAM):
            first, last = record.first(), record.last()
            rows = rows_of(record.tables(first, last), "seq", "topic", "payload")
            reconciliation.add_record(record.node, first, rows)
    if table is not None:
        add_table(reconciliation, table)


def add_table(reconciliation: Reconciliation, table: Any) -> None:
    """Add the rows of a DeltaTable. A damaged file is a fault. Raises TableError.

    All columns are read, although few are needed, to verify the checksum of every page.
    """
    with table_errors(table.table_uri):
        dataset = dataset_of(table)
    for fragment in dataset.get_fragments():
        batches = fragment.to_batches(schema=dataset.schema)
        try:
            reconciliation.add_landed(rows_of(batches, "node", "seq", "topic", "payload"))
        except (OSError, ValueError) as problem:
            reason = " ".join(str(problem).split())
            reconciliation.add_fault(f"{fragment.path} of the table cannot be read: {reason}")


def rows_of(tables: Any, *names: str) -> Iterator[Any]:
    """Some columns of Arrow tables, row by row; only one table is in memory at a time."""
    for table in tables:
        yield from zip(*(table.column(name).to_pylist() for name in names), strict=True)

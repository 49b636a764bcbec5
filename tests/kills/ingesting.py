"""`semel ingest` under load, killed and cut off again and again, and an account of every message.

The publisher is raw: it knows what the broker has taken to the end. Each message is named by its
payload, `<qos>-<number>`. Each must be in the record: once if it was sent at QoS 2, and at QoS 1 at
least once, with DUP on every row but the first.
"""

import random
import re
import selectors
import socket
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.kills import wire
from tests.kills.brokers import PATIENCE, Broker, free_port, mosquitto, semel
from tests.kills.record import pick, read_record, sealed_through

STREAM = "plant"
# Messages that the publisher has on their way; mosquitto takes 20 unless it is told otherwise.
WINDOW = 16
# Its pace, messages in a second: an ingester that starts has work, and is not buried in it.
PACE = 400.0
# Bytes, on an average, that a connection lives for when it is to be cut.
CUT_BYTES = 4_000
READ_BYTES = 4_096


def until(reached: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < end, what()
        time.sleep(0.01)


# --- who publishes --------------------------------------------------------------------------------


class Publisher:
    """Publishes at QoS 0, 1 and 2, and waits until the broker has it. It never loses its broker."""

    def __init__(self, port: int, version: int = wire.V5) -> None:
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.splitter = wire.Splitter()
        # By packet identifier, what is not complete: the QoS.
        self.open: dict[int, int] = {}
        self.last_id = 0
        self.sent: list[str] = []
        self.socket.sendall(wire.connect("publisher", version, clean=True))
        self.is_greeted = False
        self.read(lambda: self.is_greeted)

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        """Send it, when there is room for it."""
        packet_id = 0
        if qos:
            self.read(lambda: len(self.open) < WINDOW)
            packet_id = self.last_id = self.last_id % 65_535 + 1
            self.open[packet_id] = qos
        self.socket.sendall(
            wire.publish(topic, payload, self.version, qos=qos, packet_id=packet_id, retain=retain)
        )

    def number(self, qos: int) -> None:
        """Publish the next message of a load."""
        name = f"{qos}-{len(self.sent)}"
        self.publish(f"plant/{qos}", name.encode(), qos)
        self.sent.append(name)

    def finish(self) -> None:
        """Wait until the broker has everything."""
        self.read(lambda: not self.open)

    def read(self, reached: Callable[[], bool]) -> None:
        """Take answers until something is so."""
        while not reached():
            data = self.socket.recv(65_536)
            assert data, "the broker has closed the connection of the publisher"
            for first, body in self.splitter.feed(data):
                self.answer(first >> 4, body)

    def answer(self, kind: int, body: bytes) -> None:
        if kind == wire.CONNACK:
            assert wire.read_connack(body, self.version)[1] == 0
            self.is_greeted = True
            return
        packet_id, code = wire.read_acknowledgement(body)
        # 0x10: nobody has subscribed yet
        assert code in (0, 0x10), (wire.NAMES[kind], code)
        if kind == wire.PUBREC:
            self.socket.sendall(wire.acknowledge(wire.PUBREL, packet_id))
        elif kind in (wire.PUBACK, wire.PUBCOMP):
            del self.open[packet_id]


class Load:
    """A publisher in a thread, at a steady pace, until the block ends."""

    def __init__(self, port: int) -> None:
        self.publisher = Publisher(port)
        self.problem: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    @property
    def sent(self) -> list[str]:
        return self.publisher.sent

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def _run(self) -> None:
        publisher = self.publisher
        begin = time.monotonic()
        try:
            while not self._stopping.is_set():
                publisher.number(2 if len(publisher.sent) % 2 else 1)
                ahead = len(publisher.sent) / PACE - (time.monotonic() - begin)
                if ahead > 0:
                    self._stopping.wait(ahead)
            publisher.finish()
        except BaseException as problem:
            self.problem = problem

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE)
        self.publisher.socket.close()
        if kind is None and self.problem is not None:
            raise self.problem


# --- who cuts -------------------------------------------------------------------------------------


class Cutter:
    """A proxy before a broker whose connections end after some bytes, wherever that is.

    A `gentle` one lets the broker say all that it wants to a client that is gone. Mosquitto 2.0.11
    needs that: if a connection breaks while it resumes a session, it forgets that a message was
    released, and sends its PUBLISH again after the PUBREL, against [MQTT-4.3.3-6].
    """

    def __init__(
        self, target: int, seed: int, *, cut_bytes: int = CUT_BYTES, gentle: bool = False
    ) -> None:
        self.gentle = gentle
        # Ends towards the broker, and those of them that nobody listens to any more.
        self._far: set[socket.socket] = set()
        self._draining: set[socket.socket] = set()
        self.target = ("127.0.0.1", target)
        self.random = random.Random(seed)
        self.cut_bytes = cut_bytes
        self.cuts = 0
        # Whether connections are cut at all.
        self.is_cutting = True
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.port: int = self._listener.getsockname()[1]
        # For each end the other one, and for both of them what is left to them.
        self._peers: dict[socket.socket, socket.socket] = {}
        self._left: dict[socket.socket, list[int]] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="cutter", daemon=True)

    def __enter__(self) -> "Cutter":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping = True
        self._thread.join()
        for each in [*self._peers, *self._draining, self._listener]:
            each.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(0.02):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._peers:
                    assert isinstance(key.fileobj, socket.socket)
                    self._pass_on(key.fileobj)
                elif key.fileobj in self._draining:
                    assert isinstance(key.fileobj, socket.socket)
                    self._drain(key.fileobj)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self.target, PATIENCE)
        except OSError:
            near.close()
            return
        left = [int(self.random.expovariate(1 / self.cut_bytes))]
        self._far.add(far)
        for end, other in ((near, far), (far, near)):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[end] = other
            self._left[end] = left
            self._selector.register(end, selectors.EVENT_READ)

    def _pass_on(self, end: socket.socket) -> None:
        left = self._left[end]
        try:
            data = end.recv(READ_BYTES)
            if not data:
                self._end(end)
                return
            if not self.is_cutting:
                self._peers[end].sendall(data)
                return
            self._peers[end].sendall(data[: left[0]])
        except OSError:
            self._end(end)
            return
        left[0] -= len(data)
        if left[0] <= 0:
            self.cuts += 1
            self._end(end)

    def _end(self, end: socket.socket) -> None:
        for each in (end, self._peers[end]):
            del self._peers[each]
            del self._left[each]
            if self.gentle and each in self._far:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_WR)
                self._draining.add(each)
            else:
                self._close(each)

    def _drain(self, end: socket.socket) -> None:
        try:
            data = end.recv(READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self._draining.discard(end)
            self._close(end)

    def _close(self, end: socket.socket) -> None:
        self._selector.unregister(end)
        self._far.discard(end)
        end.close()


# --- who ingests ----------------------------------------------------------------------------------


class Ingester(Broker):
    """`semel ingest` in a process of its own, started again and again on one folder."""

    def __init__(self, url: str, folder: Path, *arguments: str) -> None:
        folder.mkdir(exist_ok=True)
        self.store = folder / "data"
        command = [sys.executable, "-m", "semel", "ingest", url, "--stream", STREAM]
        if "--topic" not in arguments:
            command += ["--topic", "plant/#"]
        command += ["--data", str(self.store), "--root", str(self.store / "streams"), *arguments]
        super().__init__(0, folder, command, self.store)
        # Where in its log the run of now begins.
        self.begin = 0

    def start(self) -> None:
        self.begin = len(self.log.read_text(errors="replace")) if self.log.exists() else 0
        super().start()

    def connects(self) -> None:
        """Wait until the run of now has been connected. Then it knows what a SIGTERM is."""

        def reached() -> bool:
            assert self.running.poll() is None, self.tail()
            return "connected as" in self.log.read_text(errors="replace")[self.begin :]

        until(reached, self.tail)

    def says(self, words: str, times: int = 1) -> None:
        """Wait until its log has these words, so many times over all its runs."""

        def reached() -> bool:
            assert self.running.poll() is None, self.tail()
            return len(re.findall(words, self.log.read_text(errors="replace"))) >= times

        until(reached, self.tail)

    def last_seq(self) -> int:
        """The last row that is stored."""
        try:
            return sealed_through(self.store, STREAM)[1]
        except (sqlite3.Error, TypeError):
            # It is not there yet.
            return 0

    def reaches(self, seq: int) -> None:
        """Wait until so many rows are stored."""

        def reached() -> bool:
            assert self.running.poll() is None, self.tail()
            return self.last_seq() >= seq

        until(reached, lambda: f"{self.last_seq()} rows of {seq}\n{self.tail()}")


class Row(NamedTuple):
    """What the account looks at."""

    payload: str
    qos: int
    dup: bool
    client_id: str


def rows_of(data: Path) -> list[Row]:
    """All rows of the record, by their numbers. Nobody may be at work on it."""
    found: dict[int, Row] = {}
    with closing(sqlite3.connect(f"file:{data / 'store.db'}?mode=ro", uri=True)) as store:
        query = (
            "SELECT seq, payload, flags, client_id FROM record"
            " WHERE stream_id = (SELECT id FROM stream WHERE name = ?)"
        )
        for seq, payload, flags, client_id in store.execute(query, (STREAM,)):
            found[seq] = Row(payload.decode(), flags & 3, bool(flags & 8), client_id)
    parquet: Any = import_module("pyarrow.parquet")
    columns = ["seq", "payload", "qos", "dup", "client_id"]
    for _, _, path in pick(data / "streams" / STREAM):
        table = parquet.read_table(path, columns=columns).to_pydict()
        for seq, payload, qos, dup, client_id in zip(
            *(table[name] for name in columns), strict=True
        ):
            found[seq] = Row(payload.decode(), qos, dup, client_id)
    return [found[seq] for seq in sorted(found)]


# --- the account ----------------------------------------------------------------------------------


def faults_of(data: Path, sent: list[str], *, in_order: bool = False) -> list[str]:
    """All that is wrong with a record. `in_order`: the broker keeps QoS 2 messages in theirs."""
    faults = list(read_record(data, STREAM).faults)
    rows = rows_of(data)
    counts = Counter(row.payload for row in rows)
    wanted = set(sent)
    lost = [name for name in sent if not counts[name]]
    if lost:
        faults.append(f"{len(lost)} are lost, the first is {lost[0]}")
    doubled = [name for name, count in counts.items() if count > 1 and name.startswith("2-")]
    if doubled:
        faults.append(f"{len(doubled)} of QoS 2 are there twice, the first is {doubled[0]}")
    strange = [name for name in counts if name not in wanted]
    if strange:
        faults.append(f"{len(strange)} were never sent, the first is {strange[0]}")
    seen: set[str] = set()
    for row in rows:
        if row.qos != int(row.payload[0]):
            faults.append(f"{row.payload} has QoS {row.qos}")
        if row.payload in seen and not row.dup:
            faults.append(f"{row.payload} is there again, without DUP")
        seen.add(row.payload)
    if len({row.client_id for row in rows}) > 1:
        faults.append("rows of more than one client")
    twos = [int(row.payload[2:]) for row in rows if row.qos == 2]
    if in_order and twos != sorted(twos):
        faults.append("QoS 2 messages are out of order")
    return faults


@dataclass(frozen=True)
class Plan:
    """What is to happen."""

    # semel or mosquitto
    broker: str
    version: int
    seed: int
    # SIGKILLs of the ingester, and how many of the connections are to be cut.
    kills: int = 0
    cuts: int = 0
    # Seconds of load before each kill, at the most.
    load: float = 0.8


@dataclass
class Result:
    """What came of it."""

    sent: int = 0
    rows: int = 0
    # Rows of QoS 1 messages that are there before.
    repeats: int = 0
    kills: int = 0
    cuts: int = 0
    starts: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.cuts} cuts: {self.sent} sent, {self.rows} rows,"
            f" {self.repeats} repeated at QoS 1, {len(self.faults)} faults"
        )


def run(plan: Plan, folder: Path, say: Callable[[str], None] = lambda _: None) -> Result:
    """Put a load on a broker, and kill and cut its ingester meanwhile."""
    result = Result()
    places = {name: folder / name for name in ("broker", "ingest")}
    for place in places.values():
        place.mkdir(parents=True, exist_ok=True)
    port = free_port()
    broker = (
        semel(port, places["broker"], streams=False)
        if plan.broker == "semel"
        else mosquitto(port, places["broker"])
    )
    chance = random.Random(plan.seed)
    with Cutter(port, plan.seed, gentle=plan.broker == "mosquitto") as cutter:
        cutter.is_cutting = False
        ingester = Ingester(
            f"mqtt://127.0.0.1:{cutter.port}",
            places["ingest"],
            *("--mqtt-version", "5" if plan.version == wire.V5 else "3.1.1"),
            # A connection that is cut at once counts as one that failed.
            *("--longest-wait", "200ms"),
        )
        try:
            broker.start()
            broker.serve_seconds()
            ingester.start()
            ingester.says("at QoS 2")
            with Load(port) as load:
                cutter.is_cutting = plan.cuts > 0
                while result.kills < plan.kills or cutter.cuts < plan.cuts:
                    if result.kills < plan.kills:
                        kill(ingester, chance, plan.load)
                        result.kills += 1
                    else:
                        time.sleep(0.05)
                        assert ingester.running.poll() is None, ingester.tail()
                    say(f"{result.kills} kills, {cutter.cuts} cuts, {len(load.sent)} sent")
                    assert load.problem is None, load.problem
            cutter.is_cutting = False
            result.cuts = cutter.cuts
            settle(ingester, load.sent)
            rows = rows_of(ingester.store)
            result.sent = len(load.sent)
            result.rows = len(rows)
            result.repeats = len(rows) - len({row.payload for row in rows})
            result.faults = faults_of(ingester.store, load.sent, in_order=plan.broker == "semel")
            log = ingester.log.read_text(errors="replace")
            if "Traceback" in log:
                result.faults.append(log[log.index("Traceback") :][:2000])
        finally:
            left = ingester.end()
            broker.end()
        if left:
            result.faults.append(f"the ingester left processes behind: {left}")
    return result


def kill(ingester: Ingester, chance: random.Random, load: float) -> None:
    """Let it run for a while, end it, alone or with its sealer, and start it again."""
    # Counted from its start: some kills come before it is connected.
    pause = ingester.started + 0.3 + chance.random() * load - time.monotonic()
    if pause > 0:
        time.sleep(pause)
    assert ingester.running.poll() is None, ingester.tail()
    if chance.random() < 0.3:
        ingester.kill_all()
    else:
        ingester.kill()
    ingester.start()


def settle(ingester: Ingester, sent: list[str]) -> None:
    """Let it take what is left, and end it in order. Nothing is waited for that is lost."""
    wanted = len(sent)
    for _ in range(3):
        ingester.connects()
        with suppress(AssertionError):
            ingester.reaches(wanted)
        code = ingester.terminate()
        assert code == 0, f"SIGTERM ends it with {code}:\n{ingester.tail()}"
        there = {row.payload for row in rows_of(ingester.store)}
        missing = sum(name not in there for name in sent)
        if not missing:
            return
        # Repeated ones were counted for others.
        wanted = ingester.last_seq() + missing
        ingester.start()

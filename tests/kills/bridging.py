"""A bridge between two brokers under load, each of the three killed, and its connections cut.

Publishers on both brokers keep their state, so that each message reaches its broker once at QoS 2.
Both brokers record everything. Each message must be in the record of the other broker: once if it
was sent at QoS 2 and the brokers are semel, at QoS 1 at least once, and in order.

If rights change, a broker denies the bridge at times the right to publish, from one SIGHUP to
another. Nothing is on its way at these moments, so that what is published in between must not
arrive at all, and everything else must.
"""

import asyncio
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from semel.client.client import Client
from semel.client.errors import Disconnected
from semel.client.reconnect import Backoff
from semel.store.care import describe
from tests.kills.brokers import STREAM, Broker, free_port, semel
from tests.kills.ingesting import Cutter, until
from tests.kills.record import Record, read_record, sealed_through

# Messages per second and publisher.
PACE = 300.0
# Bytes, on average, that a connection of the bridge lives for.
CUT_BYTES = 10_000
# Topics on the local and on the remote broker, where they are published and where they go.
SOURCES = ("plant", "jobs")
PREFIXES = ("from-local/", "from-remote/")
CLIENT_IDS = ("bridge-local", "bridge-remote")


class Publisher:
    """A client with an outbox in a thread, which publishes at a steady pace at QoS 1 and 2."""

    def __init__(self, port: int, folder: Path, topic: str) -> None:
        self.sent: list[str] = []
        # Those of them that the bridge had no right to publish; and whether that is so now.
        self.denied: set[str] = set()
        self.is_denied = False
        self.problem: BaseException | None = None
        self._url = f"mqtt://127.0.0.1:{port}"
        self._folder = folder
        self._topic = topic
        self._stopping = threading.Event()
        self._pausing = threading.Event()
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"load-{topic}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._publish())
        except BaseException as problem:
            self.problem = problem

    async def _publish(self) -> None:
        async with Client(
            self._url,
            client_id=f"publisher-{self._topic}",
            outbox=self._folder / f"outbox-{self._topic}",
            reconnect=Backoff(0.05, 0.2),
        ) as client:
            pending: set[asyncio.Task[object]] = set()
            begin = time.monotonic()
            while not self._stopping.is_set():
                number = len(self.sent)
                if self._pausing.is_set():
                    await asyncio.gather(*pending)
                    pending.clear()
                    self._idle.set()
                    await asyncio.sleep(0.02)
                    begin = time.monotonic() - number / PACE
                    continue
                qos = 1 + number % 2
                name = f"{qos}-{number}"
                self.sent.append(name)
                if self.is_denied:
                    self.denied.add(name)
                task = asyncio.ensure_future(
                    client.publish(f"{self._topic}/{qos}", name.encode(), qos=qos)
                )
                pending.add(task)
                await asyncio.sleep(max(0.0, (number + 1) / PACE - (time.monotonic() - begin)))
                done = {each for each in pending if each.done()}
                for each in done:
                    each.result()
                pending -= done
            await asyncio.gather(*pending)

    def pause(self) -> None:
        """Publish nothing, and wait until its broker has everything."""
        self._idle.clear()
        self._pausing.set()
        until(lambda: self._idle.is_set() or self.problem is not None, lambda: self._topic)

    def go_on(self) -> None:
        self._pausing.clear()

    def stop(self) -> None:
        """Wait until its broker has everything."""
        self._pausing.clear()
        self._stopping.set()
        self._thread.join(120.0)
        assert not self._thread.is_alive()
        if self.problem is not None:
            assert not isinstance(self.problem, Disconnected), self.problem
            raise self.problem


@dataclass(frozen=True)
class Plan:
    """What is to happen."""

    seed: int
    # SIGKILLs, of the local broker, the remote broker and the bridge in turn.
    kills: int
    # Seconds of load before each kill, at most.
    load: float = 0.6
    # Messages that the bridge may store for each side: at a small limit messages are held.
    maximum_queued: int = 100_000
    # Whether the connections of the bridge are cut after some bytes, again and again.
    is_cutting: bool = True
    # Whether the bridge loses its right to publish on either broker, and gets it back.
    changes_rights: bool = False


@dataclass
class Result:
    """What came of it."""

    sent: int = 0
    moved: int = 0
    # QoS 1 messages that are there twice.
    repeats: int = 0
    lost: int = 0
    duplicated: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    cuts: int = 0
    # How often the right to publish was taken away; and messages that were published then.
    denials: int = 0
    denied: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of {name}" for name, count in sorted(self.kills.items()))
        return (
            f"kills: {kills}; {self.cuts} cuts; {self.denials} denials;"
            f" sent {self.sent}, of them denied {self.denied}, moved {self.moved},"
            f" repeated at QoS 1 {self.repeats}, lost {self.lost},"
            f" duplicated at QoS 2 {self.duplicated}, faults {len(self.faults)}"
        )


def bridge_program(folder: Path, ports: tuple[int, int], maximum_queued: int) -> Broker:
    """`semel bridge` between two ports, in both directions."""
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / "semel.toml"
    configuration.write_text(
        f"""
[[bridge]]
name = "killed"
data = "{folder / "data"}"
local = "mqtt://127.0.0.1:{ports[0]}"
remote = "mqtt://127.0.0.1:{ports[1]}"
local_client_id = "{CLIENT_IDS[0]}"
remote_client_id = "{CLIENT_IDS[1]}"
to_remote = ["{SOURCES[0]}/# remote {PREFIXES[0]}"]
to_local = ["{SOURCES[1]}/# local {PREFIXES[1]}"]
maximum_queued = {maximum_queued}
longest_wait = "200ms"
"""
    )
    command = [sys.executable, "-m", "semel", "bridge", "--config", str(configuration)]
    return Broker(0, folder, command, None)


class BrokerRights:
    """The rights file of one broker, in which the bridge may publish or not."""

    def __init__(self, folder: Path, index: int) -> None:
        """`index` is 0 for the local broker, 1 for the remote one."""
        self._file = folder / "rights.txt"
        self.configuration = folder / "semel.toml"
        self.configuration.write_text(f'[rights]\nfile = "{self._file}"\n')
        self._rule = f"deny client:{CLIENT_IDS[index]} publish {PREFIXES[1 - index]}#\n"
        self._write(may_publish=True)

    def _write(self, *, may_publish: bool) -> None:
        temporary = self._file.with_suffix(".new")
        temporary.write_text(("" if may_publish else self._rule) + "allow * all #\n")
        temporary.replace(self._file)

    def change(self, broker: Broker, *, may_publish: bool) -> None:
        """Change the right, and wait until the broker has applied it."""

        def reloads() -> int:
            return broker.log.read_text(errors="replace").count("reloaded users, rights")

        # Before that, SIGHUP could end it.
        broker.serve_seconds()
        before = reloads()
        self._write(may_publish=may_publish)
        broker.running.send_signal(signal.SIGHUP)
        until(lambda: reloads() > before, broker.tail)


class RightSchedule:
    """Takes the right of the bridge away on one broker and then the other, when all is moved."""

    def __init__(
        self, rights: list[BrokerRights], brokers: list[Broker], publishers: list[Publisher]
    ) -> None:
        self._rights = rights
        self._brokers = brokers
        self._publishers = publishers
        self.denials = 0
        # The broker that denies it now.
        self._denying: int | None = None

    def deny(self, stores: list[Path]) -> None:
        """The next broker denies the right."""
        self._drain(stores)
        self._denying = self.denials % 2
        self.denials += 1
        self._rights[self._denying].change(self._brokers[self._denying], may_publish=False)
        self._publishers[1 - self._denying].is_denied = True
        self._resume()

    def restore(self, stores: list[Path]) -> None:
        """Give the right back, if it was taken away."""
        if self._denying is None:
            return
        self._drain(stores)
        self._rights[self._denying].change(self._brokers[self._denying], may_publish=True)
        self._publishers[1 - self._denying].is_denied = False
        self._denying = None
        self._resume()

    def _drain(self, stores: list[Path]) -> None:
        """Nothing more is published, and wait until no store has a message on its way."""
        for publisher in self._publishers:
            publisher.pause()

        def waiting() -> int:
            found = [describe(each) for each in stores]
            return sum(int(str(each[key])) for each in found for key in ("queued", "in_flight"))

        def is_empty() -> bool:
            # A message leaves one store only after the next one has it: read them in this order.
            return waiting() == 0 and waiting() == 0

        until(is_empty, lambda: f"{waiting()} messages wait")

    def _resume(self) -> None:
        for publisher in self._publishers:
            publisher.go_on()


def run(plan: Plan, folder: Path, say: Callable[[str], None] = lambda _: None) -> Result:
    """Put a load on both brokers, and kill all three programs meanwhile."""
    result = Result()
    chance = random.Random(plan.seed)
    brokers: list[Broker] = []
    rights: list[BrokerRights] = []
    for at, name in enumerate(("local", "remote")):
        (folder / name).mkdir(parents=True, exist_ok=True)
        rights.append(BrokerRights(folder / name, at))
        arguments = ("--config", str(rights[at].configuration)) if plan.changes_rights else ()
        brokers.append(semel(free_port(), folder / name, *arguments))
    cutters = [
        Cutter(broker.port, plan.seed + at, cut_bytes=CUT_BYTES)
        for at, broker in enumerate(brokers)
    ]
    ports = cutters[0].port, cutters[1].port
    bridge = bridge_program(folder / "bridge", ports, plan.maximum_queued)
    programs = {"local": brokers[0], "remote": brokers[1], "bridge": bridge}
    publishers: list[Publisher] = []
    stack = ExitStack()
    try:
        for cutter in cutters:
            cutter.is_cutting = False
            stack.enter_context(cutter)
        for broker in brokers:
            broker.start()
        for broker in brokers:
            broker.serve_seconds()
        bridge.start()
        until(lambda: bridge.tail().count("at QoS 2") == 2, bridge.tail)
        for broker, topic in zip(brokers, SOURCES, strict=True):
            publishers.append(Publisher(broker.port, folder, topic))
        for cutter in cutters:
            cutter.is_cutting = plan.is_cutting
        names = list(programs)
        schedule = RightSchedule(rights, brokers, publishers)
        stores = [folder / "local" / "data", folder / "remote" / "data", folder / "bridge" / "data"]
        for number in range(plan.kills):
            if plan.changes_rights and number % 4 == 1:
                schedule.deny(stores)
            elif number % 4 == 3:
                schedule.restore(stores)
            time.sleep(0.2 + chance.random() * plan.load)
            name = names[number % 3]
            victim = programs[name]
            assert victim.running.poll() is None, victim.tail()
            victim.kill()
            result.kills[name] += 1
            # Sometimes the others go on without it for a while.
            time.sleep(chance.choice((0.0, 0.0, 0.5)))
            victim.start()
            say(f"{number + 1} kills, {sum(len(each.sent) for each in publishers)} sent")
        schedule.restore(stores)
        result.denials = schedule.denials
        for publisher in publishers:
            publisher.stop()
            result.denied += len(publisher.denied)
        for cutter in cutters:
            cutter.is_cutting = False
            result.cuts += cutter.cuts
        _wait_until_moved(brokers, publishers, bridge)
        assert bridge.terminate() == 0, bridge.tail()
        for broker in brokers:
            broker.terminate()
        result.sent = sum(len(each.sent) for each in publishers)
        for index in (0, 1):
            destination = brokers[1 - index]
            assert destination.data is not None
            record = read_record(destination.data, STREAM)
            compare(result, record, publishers[index].sent, index, denied=publishers[index].denied)
        log = bridge.log.read_text(errors="replace")
        if "Traceback" in log:
            result.faults.append(log[log.index("Traceback") :][:2000])
    finally:
        for publisher in publishers:
            publisher._stopping.set()
        for program in programs.values():
            program.end()
        stack.close()
    return result


def _wait_until_moved(brokers: list[Broker], publishers: list[Publisher], bridge: Broker) -> None:
    """Wait until both records have at least as many rows as were sent, and grow no more."""
    total = sum(len(each.sent) for each in publishers)
    # What was denied is in the record of its own broker only.
    wanted = [total - len(publishers[1 - index].denied) for index in (0, 1)]

    def rows() -> list[int]:
        found = []
        for broker in brokers:
            assert broker.data is not None
            found.append(sealed_through(broker.data, STREAM)[1])
        return found

    def reached() -> bool:
        assert bridge.running.poll() is None, bridge.tail()
        return all(found >= least for found, least in zip(rows(), wanted, strict=True))

    until(reached, lambda: f"{rows()} rows of {wanted}\n{bridge.tail()}")
    last: list[int] = []
    while last != rows():
        last = rows()
        time.sleep(1.0)


def compare(
    result: Result,
    record: Record,
    sent: list[str],
    index: int,
    *,
    denied: Collection[str] = (),
) -> None:
    """Compare the record of one broker with what was published on the other."""
    result.faults += record.faults
    prefix = f"{PREFIXES[index]}{SOURCES[index]}/"
    rows = [row.payload.decode() for _, row in sorted(record.rows.items()) if prefix in row.topic]
    result.moved += len(rows)
    counts = Counter(rows)
    lost = [name for name in sent if not counts[name] and name not in denied]
    result.lost += len(lost)
    if lost:
        result.faults.append(f"{len(lost)} to {prefix} are lost, the first is {lost[0]}")
    twice = [name for name, count in counts.items() if count > 1]
    duplicated = [name for name in twice if name.startswith("2-")]
    result.repeats += len(twice) - len(duplicated)
    result.duplicated += len(duplicated)
    if duplicated:
        result.faults.append(
            f"{len(duplicated)} to {prefix} at QoS 2 are duplicated, the first is {duplicated[0]}"
        )
    arrived = [name for name in denied if counts[name]]
    if arrived:
        result.faults.append(
            f"{len(arrived)} to {prefix} arrived without the right, the first is {min(arrived)}"
        )
    strange = set(counts) - set(sent)
    if strange:
        result.faults.append(f"{len(strange)} to {prefix} were never sent: {min(strange)}")
    twos = [int(name[2:]) for name in rows if name.startswith("2-")]
    if twos != sorted(twos):
        result.faults.append(f"QoS 2 messages to {prefix} are out of order")

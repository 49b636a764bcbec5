"""The processes of a load: they connect, start together, stop together, and tell what they saw.

    parent   WAIT ─ all are READY ─▶ GO ─ a fault or Ctrl-C ─▶ STOP ─ Ctrl-C again ─▶ ends them
    worker   connects ─▶ READY ─ GO ─▶ sends ─ all is sent, time is over, or STOP ─▶ EMPTY
             ─ all are EMPTY, and all is there or nothing comes any more ─▶ reports

Clients are shared out in turn; both ends of a pair are in one process. Counts are in memory that
all processes see; reports come through a pipe. A worker ends if its parent is gone.
"""

import ctypes
import multiprocessing
import os
import resource
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Final

from semel.lab.load.account import DeliveryAccount, Latencies
from semel.lab.load.clients import Publisher, Subscriber
from semel.lab.load.description import PAIRS, PLANT, Load
from semel.lab.load.links import LinkError, Links
from semel.lab.load.result import Got, Result
from semel.lab.load.traffic import (
    ACKNOWLEDGED,
    CONNECTED,
    DRAIN_TIMEOUT,
    MISSING,
    RECEIVED,
    SENT,
    STATE,
    Counts,
    Traffic,
)
from semel.lab.load.wire import LARGEST_PACKET_ID, PacketLayout, Stamped, encode_connect, layout_of
from semel.mqtt import ConnAck

# States of the parent, which has the last row of the counts, and of a worker.
WAIT: Final = 0
GO: Final = 1
STOP: Final = 2
CONNECTING: Final = 0
READY: Final = 1
EMPTY: Final = 2

POLL_SECONDS: Final = 0.1
START_SECONDS: Final = 0.005


@dataclass(frozen=True)
class Target:
    """A broker, and who we are to it."""

    host: str
    port: int
    user_name: str | None = None
    password: bytes | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Job:
    """A load and the broker that gets it; it ends after a time, or with a number of messages.

    `prefix` begins all topics and client identifiers, so that no two jobs meet.
    """

    load: Load
    target: Target
    prefix: str = "semel-load"
    # Of the publishers; None: until all have sent `messages` each.
    seconds: float | None = None
    messages: int | None = None
    processes: int = 1
    timeout: float = DRAIN_TIMEOUT
    name: str = field(default_factory=lambda: secrets.token_hex(3))

    @property
    def topic_prefix(self) -> str:
        return f"{self.prefix}/{self.name}"

    def layout(self) -> PacketLayout:
        """How its packets look. Raises `Violation` if there can be no such packets."""
        load = self.load
        name = load.topic_name(self.topic_prefix, 0)
        return layout_of(load.version, name, load.payload, load.qos)

    def connect_packet(self, role: str, number: int) -> bytes:
        """The CONNECT of a client. Raises `Violation` if there can be none."""
        return encode_connect(
            self.load.version,
            f"{self.prefix}-{self.name}-{role}{number}",
            self.load.receive_maximum,
            self.target.user_name,
            self.target.password,
        )

    def publishers_of(self, process: int) -> range:
        return range(process, self.load.publishers, self.processes)

    def subscribers_of(self, process: int) -> range:
        # Where the publishers leave off; but a pair stays together.
        skip = 0 if self.load.shape == PAIRS else self.load.publishers
        first = (process - skip) % self.processes
        return range(first, self.load.subscribers, self.processes)


@dataclass
class WorkerReport:
    """What a worker has seen."""

    # By publisher.
    sent: dict[int, int] = field(default_factory=dict)
    acknowledged: int = 0
    # By subscriber: received, duplicated, out of order.
    got: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    latencies: Latencies = field(default_factory=Latencies)
    connecting: Latencies = field(default_factory=Latencies)
    # Of the first message and of the last, if it came so far.
    began: float | None = None
    ended: float = 0.0
    cpu_seconds: float = 0.0
    fault: str = ""


@dataclass(frozen=True)
class LoadProgress:
    """Where a load stands."""

    connected: int
    clients: int
    # Since the first message, None before.
    seconds: float | None
    sent: int
    received: int
    # Deliveries that are still to come; those that were passed over may come, too.
    under_way: int


class LoadStopped(Exception):
    """The load was stopped before all were connected."""


# --- a worker -------------------------------------------------------------------------------------


class Worker:
    """One process: its part of the clients, from their connections to the report."""

    def __init__(self, job: Job, number: int, counts: Counts) -> None:
        self.job = job
        self.number = number
        self.counts = counts
        self.report = WorkerReport()
        self._parent = os.getppid()
        self._polled_at = time.monotonic()

    def work(self) -> WorkerReport:
        """All of it; what the broker does wrong is in the report."""
        target = self.job.target
        traffic: Traffic | None = None
        try:
            with Links((target.host, target.port), self.job.load.version) as links:
                traffic = self._connect(links)
                self.counts.put(STATE, READY)
                while self._command() == WAIT:
                    time.sleep(START_SECONDS)
                if self._command() == GO:
                    self._drive(traffic)
        except LoadStopped:
            pass
        except LinkError as fault:
            self.report.fault = f"{target} {fault}"
        if traffic is not None:
            self._tell(traffic)
        return self.report

    def _poll(self) -> None:
        """Without a parent this process ends."""
        now = time.monotonic()
        if now - self._polled_at >= POLL_SECONDS:
            self._polled_at = now
            if os.getppid() != self._parent:
                raise SystemExit

    def _command(self) -> int:
        """What the parent wants."""
        self._poll()
        return self.counts.every(STATE)[-1]

    def _connect(self, links: Links) -> Traffic:
        job, load = self.job, self.job.load
        layout = job.layout()
        publishers: dict[int, Publisher] = {}
        subscribers: dict[int, Subscriber] = {}
        for number in job.publishers_of(self.number):
            link, answer = links.open(job.connect_packet("p", number))
            window = window_of(load, answer, layout)
            source = Stamped(load, job.topic_prefix, number)
            publishers[number] = Publisher(link, source, qos=load.qos, window=window)
            publishers[number].left = job.messages
            self._note_connected(link.connect_ns)
        for number in job.subscribers_of(self.number):
            filters = load.topic_filters(job.topic_prefix, number)
            link, _ = links.open(job.connect_packet("s", number), filters, load.qos)
            account = DeliveryAccount(load.lanes(number), self.report.latencies)
            subscribers[number] = Subscriber(link, layout, account)
            self._note_connected(link.connect_ns)
        return Traffic(
            load,
            links,
            publishers,
            subscribers,
            self.counts,
            size=layout.size,
            sharers=sum(1 for each in range(job.processes) if job.publishers_of(each)),
            timeout=job.timeout,
        )

    def _note_connected(self, nanoseconds: int) -> None:
        """One more client; no others if they are not wanted any more."""
        self.report.connecting.add(nanoseconds)
        self.counts.put(CONNECTED, self.counts.get(CONNECTED) + 1)
        if self._command() == STOP:
            raise LoadStopped

    def _drive(self, traffic: Traffic) -> None:
        job = self.job
        traffic.start()
        self.report.began = traffic.began
        cpu = time.process_time()
        try:
            end = None if job.seconds is None else traffic.began + job.seconds
            last = None if job.messages is None else job.messages * len(traffic.publishers)
            while self._command() == GO and traffic.sent != last:
                if end is not None and time.monotonic() >= end:
                    break
                traffic.step()
            self.counts.put(STATE, EMPTY)
            traffic.end()
            while not (self._is_complete() or traffic.is_still):
                traffic.finish()
                self._poll()
        finally:
            self.report.ended = traffic.moved
            self.report.cpu_seconds = time.process_time() - cpu
        traffic.part(job.topic_prefix)

    def _is_complete(self) -> bool:
        """Whether all has been sent, acknowledged and received, everywhere."""
        if set(self.counts.every(STATE)[:-1]) != {EMPTY}:
            return False
        sent = self.counts.total(SENT)
        if self.job.load.qos and self.counts.total(ACKNOWLEDGED) < sent:
            return False
        return self.counts.total(RECEIVED) == sent * self.job.load.fan_out

    def _tell(self, traffic: Traffic) -> None:
        self.report.sent = {number: each.sent for number, each in traffic.publishers.items()}
        self.report.acknowledged = traffic.acknowledged
        for number, subscriber in traffic.subscribers.items():
            account = subscriber.account
            assert account is not None
            self.report.got[number] = (account.received, account.duplicated, account.out_of_order)


def window_of(load: Load, answer: ConnAck, layout: PacketLayout) -> int:
    """How many messages a publisher may have without an answer; a broker that can not take it."""
    limits = answer.properties
    if limits.maximum_qos is not None and load.qos > limits.maximum_qos:
        raise LinkError(f"takes QoS {limits.maximum_qos} at the most")
    if load.retain and limits.retain_available == 0:
        raise LinkError("takes no retained messages")
    if load.shape == PLANT and limits.wildcard_subscription_available == 0:
        raise LinkError("takes no wildcard subscriptions")
    if limits.maximum_packet_size is not None and layout.size > limits.maximum_packet_size:
        raise LinkError(f"takes packets of {limits.maximum_packet_size} bytes at the most")
    return min(load.acknowledgements, limits.receive_maximum or LARGEST_PACKET_ID)


def work(
    job: Job, number: int, memory: "ctypes.Array[ctypes.c_uint64]", connection: Connection
) -> None:
    """The main function of a worker process."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    report = Worker(job, number, Counts(memory, number)).work()
    connection.send(report)
    connection.close()


# --- the parent -----------------------------------------------------------------------------------


class Interrupts:
    """Ctrl-C, counted instead of raised; workers do not notice it at all."""

    def __init__(self) -> None:
        self.count = 0
        # Inherited by processes that are started before `catch`.
        self._before = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def catch(self) -> None:
        signal.signal(signal.SIGINT, self._caught)

    def _caught(self, number: int, frame: object) -> None:
        self.count += 1

    def restore(self) -> None:
        signal.signal(signal.SIGINT, self._before)


def run(job: Job, on_progress: Callable[[LoadProgress], None] | None = None) -> Result:
    """Put a load on a broker, and wait for its end.

    Ctrl-C stops it early, with the result of what there is; twice, without one. To be called in
    the main thread, which gets signals.
    """
    context = multiprocessing.get_context("spawn")
    memory = context.RawArray(ctypes.c_uint64, Counts.size(job.processes + 1))
    counts = Counts(memory, job.processes)
    workers: dict[Connection, multiprocessing.process.BaseProcess] = {}
    interrupts = Interrupts()
    try:
        for number in range(job.processes):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(job, number, memory, theirs), daemon=True)
            process.start()
            theirs.close()
            workers[ours] = process
        interrupts.catch()
        reports = gather(job, counts, list(workers), interrupts, on_progress)
    finally:
        interrupts.restore()
        for connection, worker in workers.items():
            if interrupts.count > 1:
                worker.terminate()
            worker.join()
            connection.close()
    return result_of(job, reports, interrupted=interrupts.count > 0)


def gather(
    job: Job,
    counts: Counts,
    connections: list[Connection],
    interrupts: Interrupts,
    on_progress: Callable[[LoadProgress], None] | None,
) -> list[WorkerReport]:
    """Start all when all are ready, stop all when one has failed, until all have reported."""
    reports: list[WorkerReport] = []
    began: float | None = None
    while connections:
        for ready in wait(connections, POLL_SECONDS if began is not None else START_SECONDS):
            assert isinstance(ready, Connection)
            connections.remove(ready)
            try:
                report = ready.recv()
            except EOFError:
                report = WorkerReport(fault="a process of the load generator has ended")
            reports.append(report)
            if report.fault:
                counts.put(STATE, STOP)
        if interrupts.count > 1:
            raise KeyboardInterrupt
        if interrupts.count:
            counts.put(STATE, STOP)
        if began is None and set(counts.every(STATE)[:-1]) == {READY}:
            began = time.monotonic()
            if counts.get(STATE) == WAIT:
                counts.put(STATE, GO)
        if on_progress is not None:
            on_progress(progress_of(job, counts, began))
    return reports


def progress_of(job: Job, counts: Counts, began: float | None) -> LoadProgress:
    sent, received = counts.total(SENT), counts.total(RECEIVED)
    return LoadProgress(
        connected=counts.total(CONNECTED),
        clients=job.load.publishers + job.load.subscribers,
        seconds=None if began is None else time.monotonic() - began,
        sent=sent,
        received=received,
        under_way=sent * job.load.fan_out - received - counts.total(MISSING),
    )


def result_of(job: Job, reports: list[WorkerReport], *, interrupted: bool) -> Result:
    """All reports as one."""
    result = Result(job.load, job.processes, interrupted=interrupted)
    sent: dict[int, int] = {}
    got: dict[int, tuple[int, int, int]] = {}
    for report in reports:
        sent.update(report.sent)
        got.update(report.got)
        result.acknowledged += report.acknowledged
        result.latencies.merge(report.latencies)
        result.connecting.merge(report.connecting)
        result.cpu_seconds += report.cpu_seconds
        result.fault = result.fault or report.fault
    result.sent = sum(sent.values())
    times = [(each.began, each.ended) for each in reports if each.began is not None]
    if times:
        result.started = True
        result.seconds = max(ended for _, ended in times) - min(began for began, _ in times)
    expected = job.load.expected([sent.get(each, 0) for each in range(job.load.publishers)])
    result.subscribers = [
        Got(number, count, *got.get(number, (0, 0, 0))) for number, count in enumerate(expected)
    ]
    return result

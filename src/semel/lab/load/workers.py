"""The worker processes of a load: they connect, start together, stop together, and report.

    parent   WAIT ─ all READY ─▶ GO ─ a fault or Ctrl-C ─▶ STOP ─ Ctrl-C again ─▶ terminates them
    worker   connects ─▶ READY ─ GO ─▶ sends ─ everything sent, time over, or STOP ─▶ EMPTY
             ─ all EMPTY, and everything received or idle ─▶ reports

Clients are assigned to processes in turn; both clients of a pair are in one process. Counters are
in shared memory; reports are sent through a pipe. A worker ends if its parent has died.
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

from semel.counts import count
from semel.lab.load.clients import Publisher, Subscriber
from semel.lab.load.delivery_tracker import DeliveryTracker, Latencies
from semel.lab.load.description import FLEET, PAIRS, PLANT, Load
from semel.lab.load.links import LinkAuthentication, LinkError, Links
from semel.lab.load.result import Result, SubscriberResult
from semel.lab.load.streams import Stream, open_stream
from semel.lab.load.traffic import (
    ACKNOWLEDGED,
    CONNECTED,
    DRAIN_TIMEOUT,
    MISSING,
    RECEIVED,
    SENT,
    STATE,
    SharedCounts,
    Traffic,
)
from semel.lab.load.wire import (
    LARGEST_PACKET_ID,
    PacketLayout,
    StampedPackets,
    encode_connect,
    layout_of,
)
from semel.mqtt import ConnAck

# States of the parent, in the last row of the counters, and of a worker.
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
    """The address of a broker, and the credentials to use."""

    host: str
    port: int
    user_name: str | None = None
    password: bytes | None = field(default=None, repr=False)
    # Whether the password is proved by SCRAM-SHA-256, and not sent.
    scram: bool = False
    # A scheme of `semel.client.address`; the path of a Unix socket, or the resource of a WebSocket.
    scheme: str = "mqtt"
    path: str = ""
    # For mqtts and wss: trusted CA certificates instead of those of the system, and whether the
    # certificate may be for another host name.
    cafile: str | None = None
    insecure: bool = False

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.path}"
        where = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return where if self.scheme == "mqtt" else f"{self.scheme}://{where}"


@dataclass(frozen=True)
class Job:
    """A load, its broker, and when to stop: after a time, or a number of messages.

    All topics and client identifiers begin with `prefix` and `name`, so that jobs do not interfere.
    """

    load: Load
    target: Target
    prefix: str = "semel-load"
    # How long publishers send; None: until each has sent `messages`.
    seconds: float | None = None
    messages: int | None = None
    processes: int = 1
    timeout: float = DRAIN_TIMEOUT
    name: str = field(default_factory=lambda: secrets.token_hex(3))

    @property
    def topic_prefix(self) -> str:
        return f"{self.prefix}/{self.name}"

    def layout(self) -> PacketLayout:
        """The layout of its packets. Raises `Violation` if they would be invalid."""
        load = self.load
        name = load.topic_name(self.topic_prefix, 0)
        return layout_of(load.version, name, load.payload, load.qos)

    def authentication(self) -> LinkAuthentication | None:
        """The authentication method, which serves one connection after another; None without.

        Raises ValueError if SCRAM does not allow the user name or the password.
        """
        target = self.target
        if not target.scram:
            return None
        if target.user_name is None or target.password is None:
            raise ValueError("a user name and a password are needed")
        # Imported here, because a worker starts three times as fast without the client.
        from semel.client.scram import ScramAuthentication

        return ScramAuthentication(target.user_name, target.password.decode())

    def connect_packet(
        self, role: str, number: int, *, authentication: LinkAuthentication | None = None
    ) -> bytes:
        """The CONNECT of a client, with which `authentication` begins anew. Raises `Violation` if
        it would be invalid."""
        client_id = f"{self.prefix}-{self.name}-{role}{number}"
        load, target = self.load, self.target
        if authentication is None:
            return encode_connect(
                load.version, client_id, load.receive_maximum, target.user_name, target.password
            )
        return encode_connect(
            load.version,
            client_id,
            load.receive_maximum,
            authentication=(authentication.method, authentication.begin()),
        )

    def publishers_of(self, process: int) -> range:
        return range(process, self.load.publishers, self.processes)

    def subscribers_of(self, process: int) -> range:
        # Continue after the last publisher; but a pair stays together.
        skip = 0 if self.load.shape == PAIRS else self.load.publishers
        first = (process - skip) % self.processes
        return range(first, self.load.subscribers, self.processes)


@dataclass
class WorkerReport:
    """The counts of a worker."""

    # By publisher.
    sent: dict[int, int] = field(default_factory=dict)
    acknowledged: int = 0
    # By subscriber: received, duplicated, out of order.
    received: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    latencies: Latencies = field(default_factory=Latencies)
    connecting: Latencies = field(default_factory=Latencies)
    # The times of the first and the last message.
    began: float | None = None
    ended: float = 0.0
    cpu_seconds: float = 0.0
    fault: str = ""


@dataclass(frozen=True)
class LoadProgress:
    """The progress of a load."""

    connected: int
    clients: int
    # Since the first message; None before it.
    seconds: float | None
    sent: int
    received: int
    # Deliveries that are expected, without those that were skipped.
    under_way: int


class LoadStopped(Exception):
    """The load was stopped before all clients were connected."""


def connector_of(target: Target) -> Callable[[], Stream] | None:
    """A function that connects to the broker and raises OSError; None for TCP. Raises LinkError."""
    address = (target.host, target.port)
    if target.scheme == "mqtt":
        return None
    context = None
    if target.scheme in ("mqtts", "wss"):
        # Imported here, because a worker starts three times as fast without the client.
        from semel.client.tls import TlsError, make_context

        try:
            context = make_context(cafile=target.cafile, insecure=target.insecure)
        except TlsError as problem:
            raise LinkError(f"cannot be reached: {problem}") from None
    return lambda: open_stream(target.scheme, address, target.path, context)


# --- a worker -------------------------------------------------------------------------------------


class Worker:
    """One worker process: its clients, from their connections to the report."""

    def __init__(self, job: Job, number: int, counts: SharedCounts) -> None:
        self.job = job
        self.number = number
        self.counts = counts
        self.report = WorkerReport()
        self._parent = os.getppid()
        self._polled_at = time.monotonic()

    def work(self) -> WorkerReport:
        """Run, and return the report, which includes faults of the broker."""
        target = self.job.target
        traffic: Traffic | None = None
        try:
            address, version = (target.host, target.port), self.job.load.version
            with Links(address, version, connect=connector_of(target)) as links:
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
            self._fill_report(traffic)
        return self.report

    def _poll(self) -> None:
        """End this process if its parent has died."""
        now = time.monotonic()
        if now - self._polled_at >= POLL_SECONDS:
            self._polled_at = now
            if os.getppid() != self._parent:
                raise SystemExit

    def _command(self) -> int:
        """The state of the parent."""
        self._poll()
        return self.counts.column(STATE)[-1]

    def _connect(self, links: Links) -> Traffic:
        job, load = self.job, self.job.load
        layout = job.layout()
        publishers: dict[int, Publisher] = {}
        subscribers: dict[int, Subscriber] = {}
        authentication = job.authentication()
        for number in job.publishers_of(self.number):
            packet = job.connect_packet("p", number, authentication=authentication)
            link, answer = links.open(packet, authentication=authentication)
            window = window_of(load, answer, layout)
            source = StampedPackets(load, job.topic_prefix, number)
            publishers[number] = Publisher(link, source, qos=load.qos, window=window)
            publishers[number].left = job.messages
            self._note_connected(link.connect_ns)
        for number in job.subscribers_of(self.number):
            filters = load.topic_filters(job.topic_prefix, number)
            packet = job.connect_packet("s", number, authentication=authentication)
            link, _ = links.open(packet, filters, load.qos, authentication=authentication)
            tracker = DeliveryTracker(load.lanes(number), self.report.latencies)
            subscribers[number] = Subscriber(link, layout, tracker)
            self._note_connected(link.connect_ns)
        return Traffic(
            load,
            links,
            publishers,
            subscribers,
            self.counts,
            size=layout.size,
            publishing_processes=sum(1 for each in range(job.processes) if job.publishers_of(each)),
            timeout=job.timeout,
        )

    def _note_connected(self, nanoseconds: int) -> None:
        """Count a connected client. Raises LoadStopped if the load was stopped."""
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
            while not (self._is_complete() or traffic.is_idle):
                traffic.finish()
                self._poll()
        finally:
            self.report.ended = traffic.last_activity
            self.report.cpu_seconds = time.process_time() - cpu
        traffic.disconnect(job.topic_prefix)

    def _is_complete(self) -> bool:
        """Whether all processes have sent, acknowledged and received everything."""
        if set(self.counts.column(STATE)[:-1]) != {EMPTY}:
            return False
        sent = self.counts.total(SENT)
        if self.job.load.qos and self.counts.total(ACKNOWLEDGED) < sent:
            return False
        return self.counts.total(RECEIVED) == sent * self.job.load.fan_out

    def _fill_report(self, traffic: Traffic) -> None:
        self.report.sent = {number: each.sent for number, each in traffic.publishers.items()}
        self.report.acknowledged = traffic.acknowledged
        for number, subscriber in traffic.subscribers.items():
            tracker = subscriber.tracker
            assert tracker is not None
            self.report.received[number] = (
                tracker.received,
                tracker.duplicated,
                tracker.out_of_order,
            )


def window_of(load: Load, answer: ConnAck, layout: PacketLayout) -> int:
    """The window of a publisher. Raises LinkError if the broker does not support the load."""
    limits = answer.properties
    if limits.maximum_qos is not None and load.qos > limits.maximum_qos:
        raise LinkError(f"accepts at most QoS {limits.maximum_qos}")
    if load.retain and limits.retain_available == 0:
        raise LinkError("does not support retained messages")
    if load.shape in (PLANT, FLEET) and limits.wildcard_subscription_available == 0:
        raise LinkError("does not support wildcard subscriptions")
    if limits.maximum_packet_size is not None and layout.size > limits.maximum_packet_size:
        raise LinkError(f"accepts packets of at most {count(limits.maximum_packet_size, 'byte')}")
    return min(load.acknowledgements, limits.receive_maximum or LARGEST_PACKET_ID)


def work(
    job: Job, number: int, memory: "ctypes.Array[ctypes.c_uint64]", connection: Connection
) -> None:
    """The main function of a worker process."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    report = Worker(job, number, SharedCounts(memory, number)).work()
    connection.send(report)
    connection.close()


# --- the parent -----------------------------------------------------------------------------------


class Interrupts:
    """Counts Ctrl-C instead of raising it; workers ignore it."""

    def __init__(self) -> None:
        self.count = 0
        # Processes that are started before `catch` inherit this.
        self._before = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def catch(self) -> None:
        signal.signal(signal.SIGINT, self._caught)

    def _caught(self, number: int, frame: object) -> None:
        self.count += 1

    def restore(self) -> None:
        signal.signal(signal.SIGINT, self._before)


def run(job: Job, on_progress: Callable[[LoadProgress], None] | None = None) -> Result:
    """Run a load, and return its result.

    Ctrl-C stops it early, with the result so far; a second Ctrl-C raises KeyboardInterrupt. Must be
    called in the main thread, which gets signals.
    """
    context = multiprocessing.get_context("spawn")
    memory = context.RawArray(ctypes.c_uint64, SharedCounts.size(job.processes + 1))
    counts = SharedCounts(memory, job.processes)
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
    counts: SharedCounts,
    connections: list[Connection],
    interrupts: Interrupts,
    on_progress: Callable[[LoadProgress], None] | None,
) -> list[WorkerReport]:
    """Start the workers when all are ready, stop them when one fails, and collect reports."""
    reports: list[WorkerReport] = []
    began: float | None = None
    while connections:
        for ready in wait(connections, POLL_SECONDS if began is not None else START_SECONDS):
            assert isinstance(ready, Connection)
            connections.remove(ready)
            try:
                report = ready.recv()
            except EOFError:
                report = WorkerReport(fault="a process of the load generator died")
            reports.append(report)
            if report.fault:
                counts.put(STATE, STOP)
        if interrupts.count > 1:
            raise KeyboardInterrupt
        if interrupts.count:
            counts.put(STATE, STOP)
        if began is None and set(counts.column(STATE)[:-1]) == {READY}:
            began = time.monotonic()
            if counts.get(STATE) == WAIT:
                counts.put(STATE, GO)
        if on_progress is not None:
            on_progress(progress_of(job, counts, began))
    return reports


def progress_of(job: Job, counts: SharedCounts, began: float | None) -> LoadProgress:
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
    """The result from the reports of all workers."""
    result = Result(job.load, job.processes, interrupted=interrupted)
    sent: dict[int, int] = {}
    received: dict[int, tuple[int, int, int]] = {}
    for report in reports:
        sent.update(report.sent)
        received.update(report.received)
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
        SubscriberResult(number, expected_count, *received.get(number, (0, 0, 0)))
        for number, expected_count in enumerate(expected)
    ]
    return result

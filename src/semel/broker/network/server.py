"""The broker on a network: its listeners and their sockets, on an event loop.

A thin shell: it moves bytes between sockets and the core, once a tick in each direction, and knows
nothing about MQTT. An exception while serving a connection closes it, and is logged once.
"""

import asyncio
import contextlib
import ctypes
import errno
import gc
import logging
import resource
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from semel.broker.access.configured_authority import ConfiguredAuthority
from semel.broker.access.loading import open_access
from semel.broker.authority import Authority
from semel.broker.core import Broker
from semel.broker.memory import UNLIMITED, available_bytes
from semel.broker.network.address_log import AddressLog
from semel.broker.network.administration import (
    Administration,
    AdministrationUnusable,
    ReloadFailed,
)
from semel.broker.network.broker_families import ServerSnapshot
from semel.broker.network.broker_metrics import BrokerMetrics, FreeSpace
from semel.broker.network.handshakes import Handshakes
from semel.broker.network.listener_settings import ListenerSettings, default_listener
from semel.broker.network.listeners import (
    CannotListen,
    Listener,
    describe_listeners,
    first_address,
    listeners_event,
)
from semel.broker.network.peers import Peers
from semel.broker.network.plain_sockets import HAS_EPOLL, PlainSockets
from semel.broker.network.proving import new_proof_pool
from semel.broker.network.reload_queue import ReloadQueue
from semel.broker.network.reloading import LoadSettings, apply_reload, prepare_reload
from semel.broker.network.signals import call_on_signal
from semel.broker.oversight import Oversight
from semel.broker.settings import BrokerSettings
from semel.metrics.endpoint import MetricsEndpoint
from semel.metrics.families import LATENCY_BOUNDS, Histogram
from semel.settings import SettingsError
from semel.store.disk import SWITCH_INTERVAL, DiskStore
from semel.store.store import BEHIND, FULL, OPEN, Store
from semel.store.streams import Streams

LOG: Final = logging.getLogger("semel.broker")

SWEEP_SECONDS: Final = 1.0
# Thresholds of the garbage collector: new containers, and collections per older generation.
COLLECTOR_THRESHOLDS: Final = (50_000, 20, 50)
# Errors of accept() that mean that the system is temporarily out of resources.
OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
LOG_INTERVAL_SECONDS: Final = 10.0

CONDITIONS: Final = {
    OPEN: "accepting messages again",
    BEHIND: "behind: publishers wait",
    FULL: "disk full: durable messages are refused or wait",
}


class StoreFailed(Exception):
    """Why the store can no longer write, in one sentence."""


class Server:
    """Runs the broker on an event loop: listens, ends ticks, sweeps, and stops."""

    def __init__(
        self,
        settings: BrokerSettings,
        authority: Authority | None = None,
        store: Store | None = None,
        streams: Streams | None = None,
        *,
        listeners: Sequence[ListenerSettings] = (),
        load_settings: LoadSettings | None = None,
        oversight: Oversight | None = None,
    ) -> None:
        """Without `listeners`, [broker] host and port make one. Without an Authority, every client
        may connect to them, and do everything. `load_settings` loads what `reload` applies."""
        self.settings = settings
        self.load_settings = load_settings
        self.reloads = ReloadQueue(self._reload_and_report)
        chosen = tuple(listeners) or (default_listener(settings),)
        if authority is None:
            authority = open_access([each.name for each in chosen]).authority(LOG.warning)
        self.authority = authority
        self.loop = asyncio.get_running_loop()
        # Deadlines use the wall clock at the start plus the monotonic clock, so that they do not
        # move when the wall clock is set.
        now = time.time()
        clock_offset = now - time.monotonic()
        self.store = Store() if store is None else store
        self.broker = Broker(
            settings,
            authority=self.authority,
            store=self.store,
            new_client_id=lambda: f"semel-{secrets.token_hex(8)}",
            log=_log_problem,
            log_connection=LOG.info if settings.connection_messages else _discard_line,
            now=now,
            streams=streams,
            wall=time.time,
            oversight=oversight,
        )
        # Why the store failed; set with the event.
        self.failure: str | None = None
        self.failed = asyncio.Event()
        if settings.maximum_memory is None:
            self.broker.memory.limit = (available_bytes() or UNLIMITED) // 2
        # Connections that fail before they reach the core, or because of their transport.
        self.failures = AddressLog(LOG.warning)
        self.handshakes = Handshakes(
            self.loop, self.failures, maximum_unconnected=settings.maximum_unconnected
        )
        # An Authority of a program decides who may connect.
        self._has_users = (
            not isinstance(authority, ConfiguredAuthority) or authority.settings.has_users
        )
        self.listeners = [Listener(each, self) for each in chosen]
        timeout = max(each.limits.connect_timeout for each in self.listeners)
        self.proofs = new_proof_pool(self.loop, self.authority, timeout)
        self.peers = Peers(
            self.broker,
            self.loop,
            clock_offset=clock_offset,
            failures=self.failures,
            proofs=self.proofs,
            store_failed=self._commit_failed,
        )
        # Serves the sockets of all listeners; None: the loop does.
        self.plain_sockets: PlainSockets | None = None
        self.sweeper: asyncio.Task[None] | None = None
        # How late the sweeps were, and when the last one was run.
        self.loop_lag = Histogram(LATENCY_BOUNDS)
        self.swept_at = time.monotonic()

    async def start(self) -> tuple[str, int]:
        """Listen on all listeners, or on none. Returns host and port of the first one.

        Prefers a listener of transport tcp; ("", 0): all are Unix sockets. Raises CannotListen.
        """
        loop, peers = self.loop, self.peers
        if HAS_EPOLL:
            from semel.broker.network.event_loop import open_plain_sockets

            self.plain_sockets = open_plain_sockets(
                loop, begin_reading=peers.begin_reading, end_reading=peers.end_reading
            )
        if isinstance(self.store, DiskStore):
            sys.setswitchinterval(SWITCH_INTERVAL)
            self.store.connect(
                loop,
                safe=peers.committed,
                changed=self._condition_changed,
                failed=self._fail,
                read=self._stream_read,
            )
            peers.tick()
        try:
            for listener in self.listeners:
                await listener.bind(has_users=self._has_users)
            for listener in self.listeners:
                await listener.accept()
        except CannotListen:
            self.stop_listening()
            self.close_sockets()
            raise
        self.sweeper = loop.create_task(self._sweep())
        return first_address(self.listeners)

    def stop_listening(self) -> None:
        """Accept no more connections."""
        for listener in self.listeners:
            listener.close()

    def close_sockets(self) -> None:
        """Close all sockets of the listeners at once. The core is not told."""
        if self.plain_sockets is not None:
            from semel.broker.network.event_loop import close_plain_sockets

            close_plain_sockets(self.loop, self.plain_sockets)
            self.plain_sockets = None

    async def stop(self) -> None:
        """Disconnect every client, write the remaining output, and close."""
        peers = self.peers
        peers.is_stopping = True
        self.stop_listening()
        self.handshakes.close()
        self.proofs.close()
        if self.sweeper is not None:
            self.sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.sweeper
        if isinstance(self.store, DiskStore):
            for peer in peers.by_number.values():
                peer.pause()
            # Wait for pending commits, so that their acknowledgements are sent.
            for _ in range(500):
                if self.failure is not None or not self.store.sizes:
                    break
                await asyncio.sleep(0.01)
        self.broker.stop(self.now())
        peers.write_out()
        for _ in range(50):
            if not peers.by_number:
                break
            await asyncio.sleep(0.02)
        for peer in list(peers.by_number.values()):
            peer.abort()
        await asyncio.sleep(0)
        self.close_sockets()

    async def reload(self) -> tuple[str, ...]:
        """Load the settings again, and apply users, rights, certificates, limits and log level.

        Returns warnings, and changes that need a restart. Raises SettingsError: then nothing has
        changed. Call it only if there is `load_settings`, and not while another call runs: other
        callers use `reload_and_report`.
        """
        assert self.load_settings is not None
        assert isinstance(self.authority, ConfiguredAuthority)
        run = self.loop.run_in_executor
        loaded = await run(None, self.load_settings)
        started = [each.settings for each in self.listeners]
        prepared = await run(None, prepare_reload, loaded, self.settings, started)
        apply_reload(prepared, self.authority, self.listeners)
        logging.getLogger().setLevel(loaded.broker.log_level.upper())
        self.peers.schedule()
        return prepared.remarks

    async def reload_and_log(self) -> None:
        """`reload`, after the one that runs, if any, and log the outcome."""
        with contextlib.suppress(ReloadFailed):
            await self.reload_and_report()

    async def reload_and_report(self) -> list[str]:
        """The same for an operator: returns what was done, in sentences. Raises ReloadFailed."""
        return await self.reloads.run()

    async def _reload_and_report(self) -> list[str]:
        if self.peers.is_stopping:
            raise self._ignored_reload("the broker is stopping")
        if self.load_settings is None:
            raise self._ignored_reload("there is nothing to reload")
        try:
            remarks = await self.reload()
        except SettingsError as problem:
            LOG.error("reload failed, so nothing has changed: %s", problem)
            why = "; ".join(problem.problems)
            raise ReloadFailed(f"reload failed, so nothing has changed: {why}") from None
        except Exception:
            LOG.exception("reload failed, so nothing has changed")
            raise ReloadFailed("reload failed, so nothing has changed: see the log") from None
        lines = ["reloaded users, rights, certificates and limits", *remarks]
        for line in lines:
            LOG.warning("%s", line)
        return lines

    def _ignored_reload(self, why: str) -> ReloadFailed:
        line = f"reload ignored: {why}"
        LOG.warning("%s", line)
        return ReloadFailed(line)

    def snapshot(self, free_bytes: int | None = None) -> ServerSnapshot:
        """All numbers at this time; `free_bytes` is the free space of the store, if known."""
        return ServerSnapshot(
            self.broker.snapshot(self.now()),
            self.store.statistics() if isinstance(self.store, DiskStore) else None,
            failure=self.failure,
            is_ready=self.readiness() is None,
            loop_lag=self.loop_lag.read(),
            loop_lag_maximum=self.loop_lag.maximum,
            cpu_seconds=time.process_time(),
            free_bytes=free_bytes,
            listeners=tuple(each.name for each in self.listeners),
        )

    def readiness(self) -> str | None:
        """Why clients are not served now, in one line; None: they are."""
        if self.failure is not None:
            return f"the store failed: {self.failure}"
        if self.peers.is_stopping:
            return "the broker is stopping"
        if self.sweeper is None:
            return "the broker does not listen yet"
        if self.broker.oversight.draining.is_active:
            return "the broker is being drained: new clients are refused"
        if self.store.condition == FULL:
            return "the disk of the store is full: durable messages are refused or wait"
        return None

    def now(self) -> float:
        """The time of the clock that all deadlines use."""
        return self.peers.now()

    def _condition_changed(self) -> None:
        """The condition of the store has changed."""
        level = logging.INFO if self.store.condition == OPEN else logging.WARNING
        LOG.log(level, "store %s", CONDITIONS[self.store.condition])
        self.peers.schedule()

    def _stream_read(self, stream: int) -> None:
        """The store has read records of a stream for a replay."""
        self.broker.replays.read(stream)
        self.peers.schedule()

    def _fail(self, why: str) -> None:
        """The store can no longer write: close all connections, and acknowledge nothing more."""
        self.failure = why
        for peer in list(self.peers.by_number.values()):
            peer.abort()
        self.failed.set()

    def _commit_failed(self, report: str) -> None:
        """The core could not pass a commit to the store."""
        if self.failure is None:
            self._fail(report.rstrip().rpartition("\n")[2])

    async def _sweep(self) -> None:
        while True:
            due = self.now() + SWEEP_SECONDS
            # More precise than the clock of the loop, which may count in milliseconds.
            precisely_due = time.monotonic() + SWEEP_SECONDS
            await asyncio.sleep(SWEEP_SECONDS)
            now = self.now()
            self.swept_at = time.monotonic()
            self.loop_lag.observe(max(0.0, self.swept_at - precisely_due))
            try:
                self.peers.measure_memory()
                # Packets that arrived while the loop was stalled have not been read yet.
                stalled_seconds = max(0.0, now - due)
                self.broker.sweep(now, stalled_seconds=stalled_seconds)
                if self.broker.memory.is_short:
                    release_free_memory()
                self.handshakes.sweep(now, stalled_seconds)
                self.failures.flush(now)
                if isinstance(self.authority, ConfiguredAuthority):
                    self.authority.flush_log()
                self.peers.tick()
            except Exception:
                # Keep alive, wills and expiry of all clients depend on the sweep: continue.
                LOG.exception("the sweep failed")


def raise_file_limit() -> int:
    """Raise the limit of open files to the hard limit. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A hard limit of "unlimited" may exceed what the kernel allows: then the limit stays.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft


def release_free_memory() -> None:
    """Return to the system what the C library keeps free, if it can.

    Otherwise blocks between others stay resident after the messages in them were dropped.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def tune_collector() -> None:
    """Run the garbage collector rarely, and never on objects that exist at the start.

    Messages and packets have no reference cycles, so that reference counting frees them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


class LoopFaults:
    """Logs errors of the event loop itself.

    A lack of file descriptors for new connections repeats many times a second; it is logged every
    ten seconds.
    """

    def __init__(self) -> None:
        self.quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        problem = context.get("exception")
        if isinstance(problem, OSError) and problem.errno in OUT_OF_RESOURCES:
            if loop.time() >= self.quiet_until:
                self.quiet_until = loop.time() + LOG_INTERVAL_SECONDS
                LOG.warning("cannot accept new connections: %s", problem.strerror)
            return
        LOG.error("%s", context.get("message"), exc_info=problem)


def _log_problem(line: str) -> None:
    """Log a problem: as an error if it has a traceback, otherwise as a warning."""
    LOG.log(logging.ERROR if "Traceback" in line else logging.WARNING, "%s", line)


def _discard_line(line: str) -> None:
    """Discard a connection message, because the setting turns them off."""


async def serve(
    settings: BrokerSettings,
    authority: Authority | None = None,
    store: Store | None = None,
    streams: Streams | None = None,
    *,
    listeners: Sequence[ListenerSettings] = (),
    load_settings: LoadSettings | None = None,
    administration: Administration | None = None,
) -> None:
    """Run until SIGTERM or SIGINT. Without an Authority every client may do everything.

    With `load_settings`, SIGHUP reloads what can change while clients are connected.

    Raises CannotListen, CannotServeMetrics, AdministrationUnusable, or StoreFailed if the store
    fails. The caller must close the store and the administration.
    """
    files = raise_file_limit()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopFaults())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Server(
        settings,
        authority,
        store,
        streams,
        listeners=listeners,
        load_settings=load_settings,
        oversight=None if administration is None else administration.oversight,
    )
    reloads: set[asyncio.Task[None]] = set()
    if load_settings is not None:
        call_on_signal(signal.SIGHUP, partial(start_reload, server, reloads, administration))
    numbers = server_metrics(server)
    metrics = await start_metrics(server, numbers)
    await server.start()
    if administration is not None:
        try:
            await administration.start(
                server, lambda: listeners_event(server.listeners), numbers.families
            )
        except AdministrationUnusable:
            await server.stop()
            raise
        if load_settings is not None:
            administration.reload_settings = server.reload_and_report
    LOG.info(
        "listening on %s, MQTT 3.1.1 and 5.0, up to %d open files",
        describe_listeners(server.listeners),
        files,
        extra={"event": {"event": "ready", **listeners_event(server.listeners)}},
    )
    signalled, failed = (loop.create_task(event.wait()) for event in (stopping, server.failed))
    await asyncio.wait((signalled, failed), return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    failed.cancel()
    LOG.info("stopping")
    if administration is not None:
        await administration.stop()
    await server.stop()
    if metrics is not None:
        await metrics.stop()
    if server.failure is not None:
        raise StoreFailed(
            f"the store failed: {server.failure}. Nothing was acknowledged that it does not have"
        )


def start_reload(
    server: Server, reloads: set[asyncio.Task[None]], administration: Administration | None
) -> None:
    """Open the audit log again, and start a reload. `reloads` keeps it until it ends."""
    if administration is not None:
        administration.reopen_audit_log()
    if not server.reloads.is_waiting:
        task = server.loop.create_task(server.reload_and_log())
        reloads.add(task)
        task.add_done_callback(reloads.discard)


def server_metrics(server: Server) -> BrokerMetrics:
    """The metrics of a server."""
    space = FreeSpace(server.store.folder) if isinstance(server.store, DiskStore) else None
    return BrokerMetrics(server, space)


async def start_metrics(server: Server, numbers: BrokerMetrics) -> MetricsEndpoint | None:
    """Serve the metrics of a server, if the settings say so. Raises CannotServeMetrics."""
    port = server.settings.metrics_port
    if port is None:
        return None
    endpoint = MetricsEndpoint(numbers)
    host, port = await endpoint.start(server.settings.metrics_host, port)
    LOG.info("serving metrics on http://%s:%d/metrics", f"[{host}]" if ":" in host else host, port)
    return endpoint


def run(
    settings: BrokerSettings,
    authority: Authority | None = None,
    store: Store | None = None,
    streams: Streams | None = None,
    *,
    listeners: Sequence[ListenerSettings] = (),
    load_settings: LoadSettings | None = None,
    administration: Administration | None = None,
) -> None:
    """Run `serve` on a loop that serves the sockets itself, or without epoll on that of asyncio."""
    tune_collector()
    serving = serve(
        settings,
        authority,
        store,
        streams,
        listeners=listeners,
        load_settings=load_settings,
        administration=administration,
    )
    if HAS_EPOLL:
        from semel.broker.network.event_loop import BrokerLoop

        with asyncio.Runner(loop_factory=BrokerLoop) as runner:
            runner.run(serving)
    else:
        asyncio.run(serving)

"""The broker on a network, with uvloop if it is installed, otherwise asyncio.

A thin shell: it moves bytes between sockets and the core, once a tick in each direction, and knows
nothing about MQTT. An exception while serving a connection closes it, and is logged once.
"""

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import resource
import secrets
import signal
import sys
import time
from importlib import import_module
from typing import Any, Final, cast

from semel.broker.authority import Authority
from semel.broker.connection import Connection
from semel.broker.core import Broker
from semel.broker.memory import UNLIMITED, available_bytes, resident_bytes
from semel.broker.open_authority import OpenAuthority
from semel.broker.pressure import caught_up_mark
from semel.broker.settings import MIB, BrokerSettings
from semel.store.commit import Commit
from semel.store.disk import SWITCH_INTERVAL, DiskStore
from semel.store.store import BEHIND, FULL, OPEN, Store
from semel.store.streams import Streams

LOG: Final = logging.getLogger("semel.broker")

SWEEP_SECONDS: Final = 1.0
# How long a peer may take to read the last bytes of a closing connection.
CLOSE_SECONDS: Final = 5.0
# A tick ends after this many received bytes of all sockets.
TICK_BYTES: Final = 1024 * 1024
# Memory is measured after this many received bytes, and once a second.
MEASURE_BYTES: Final = 4 * 1024 * 1024
# Thresholds of the garbage collector: new containers, and collections per older generation.
COLLECTOR_THRESHOLDS: Final = (50_000, 20, 50)
# Errors of accept() that mean that the system is temporarily out of resources.
OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
LOG_INTERVAL_SECONDS: Final = 10.0

# Their default action would end the process. The broker has no use for them yet.
IGNORED_SIGNALS: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
OPEN_TO_NETWORK: Final = (
    "this broker is open to the network: whoever can reach %s may connect without a password, read "
    "and publish everything, and nothing is encrypted. Listen on 127.0.0.1, or let only trusted "
    "machines through by a firewall"
)

CONDITIONS: Final = {
    OPEN: "accepting messages again",
    BEHIND: "behind: publishers wait",
    FULL: "disk full: durable messages are refused or wait",
}


class CannotListen(Exception):
    """Why the broker cannot listen on its address, in one sentence."""


class StoreFailed(Exception):
    """Why the store can no longer write, in one sentence."""


class Peer(asyncio.Protocol):
    """Connects one socket to its `Connection`."""

    def __init__(self, server: "Server") -> None:
        self.server = server
        self.transport: asyncio.Transport | None = None
        self.connection: Connection | None = None
        self.paused_by_reader = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods of asyncio.Transport, but is no subclass.
        self.transport = cast(asyncio.Transport, transport)
        # `resume_writing` is called when at most this many bytes are unsent: the reader has caught
        # up.
        mark = caught_up_mark(self.server.settings.maximum_outgoing_bytes)
        self.transport.set_write_buffer_limits(high=mark, low=mark)
        name = transport.get_extra_info("peername")
        peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "?"
        try:
            self.connection = self.server.broker.opened(peer, self.server.now())
        except Exception:
            LOG.exception("serving %s failed: closed", peer)
            self.transport.abort()
            return
        self.server.peers[self.connection.number] = self
        if self.server.broker.has_output():
            # An older connection must be closed for it.
            self.server.schedule()

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        assert connection is not None
        assert self.transport is not None
        if connection.closing:
            return
        try:
            self.server.broker.receive(connection, data, self.server.now())
        except Exception:
            # A failure closes this connection only.
            LOG.exception("%s closed: serving it failed", connection.peer)
            self.abort()
        if not connection.may_be_read:
            self.stop_reading(connection)
        self.server.received_bytes += len(data)
        if self.server.received_bytes >= TICK_BYTES:
            self.server.tick()
            return
        self.server.schedule()

    def stop_reading(self, connection: Connection) -> None:
        """Stop reading a paused connection. The core reports when it may be read again."""
        if connection.paused_by_reader and not self.paused_by_reader:
            # The core releases it in a tick, which must happen even if nothing else does.
            self.paused_by_reader = True
            timeout = self.server.settings.slow_subscriber_timeout
            self.server.loop.call_later(timeout, self.server.schedule)
        self.pause()

    def resume_reading(self) -> None:
        """Read the socket again, unless something else pauses the connection."""
        assert self.connection is not None
        assert self.transport is not None
        self.paused_by_reader = self.connection.paused_by_reader
        if self.connection.may_be_read:
            self.transport.resume_reading()
        else:
            self.stop_reading(self.connection)

    def pause(self) -> None:
        """Stop reading from the socket."""
        assert self.transport is not None
        self.transport.pause_reading()

    def connection_lost(self, problem: Exception | None) -> None:
        connection = self.connection
        if connection is None:
            return
        self.server.peers.pop(connection.number, None)
        try:
            self.server.broker.lost(connection, self.server.now())
        except Exception:
            LOG.exception("cleaning up the connection of %s failed", connection.peer)
        self.server.schedule()

    def resume_writing(self) -> None:
        """The peer has read most of its output: more messages may follow."""
        connection, transport = self.connection, self.transport
        assert connection is not None
        assert transport is not None
        unsent = transport.get_write_buffer_size()
        try:
            self.server.broker.written(connection, unsent)
        except Exception:
            LOG.exception("serving %s failed: closed", connection.peer)
            self.abort()
        self.server.schedule()

    def abort(self) -> None:
        """Close at once, and discard unsent bytes."""
        assert self.connection is not None
        assert self.transport is not None
        self.connection.closing = True
        self.transport.abort()

    def write_out(self) -> None:
        """Write the output of the connection to the socket, and close it if it is closing."""
        connection, transport = self.connection, self.transport
        assert connection is not None
        assert transport is not None
        data = connection.take_outgoing()
        if data:
            self.server.broker.counters.bytes_sent += len(data)
            transport.write(data)
        self.server.broker.written(connection, transport.get_write_buffer_size())
        if connection.abort_on_close:
            transport.abort()
        elif connection.closing:
            transport.close()
            # A peer that does not read must not keep the connection open.
            self.server.loop.call_later(CLOSE_SECONDS, transport.abort)


class Server:
    """Runs the broker on an event loop: listens, ends ticks, sweeps, and stops."""

    def __init__(
        self,
        settings: BrokerSettings,
        authority: Authority | None = None,
        store: Store | None = None,
        streams: Streams | None = None,
    ) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        # Deadlines use the wall clock at the start plus the monotonic clock of the loop, so that
        # they do not move when the wall clock is set.
        self.clock_offset = time.time() - self.loop.time()
        self.store = Store() if store is None else store
        self.broker = Broker(
            settings,
            authority=Authority() if authority is None else authority,
            store=self.store,
            new_client_id=lambda: f"semel-{secrets.token_hex(8)}",
            log=_log_problem,
            log_connection=LOG.info if settings.connection_messages else _discard_line,
            now=self.now(),
            streams=streams,
            wall=time.time,
        )
        # Why the store failed; set with the event.
        self.failure: str | None = None
        self.failed = asyncio.Event()
        self.peers: dict[int, Peer] = {}
        self.scheduled = False
        # While stopping, nothing more is read or processed.
        self.is_stopping = False
        # Bytes received since the last tick; bytes received before it since memory was measured.
        self.received_bytes = 0
        self.unmeasured_bytes = 0
        if settings.maximum_memory is None:
            self.broker.memory.limit = (available_bytes() or UNLIMITED) // 2
        self.listener: asyncio.Server | None = None
        self.sweeper: asyncio.Task[None] | None = None

    async def start(self) -> tuple[str, int]:
        """Listen. Returns host and port (if the setting is 0, the port that the system chose).

        Raises CannotListen.
        """
        loop = self.loop
        if isinstance(self.store, DiskStore):
            sys.setswitchinterval(SWITCH_INTERVAL)
            self.store.connect(
                loop,
                safe=self._committed,
                changed=self._condition_changed,
                failed=self._fail,
                read=self._stream_read,
            )
            self.tick()
        host, port = self.settings.host, self.settings.port
        try:
            self.listener = await loop.create_server(lambda: Peer(self), host, port)
        except OSError as problem:
            if problem.errno == errno.EADDRINUSE:
                raise CannotListen(f"{host}:{port} is in use by another program") from None
            if problem.errno == errno.EADDRNOTAVAIL:
                raise CannotListen(
                    f"cannot listen on {host}:{port}: {host} is not an address of this machine"
                ) from None
            raise CannotListen(f"cannot listen on {host}:{port}: {problem.strerror}") from None
        except ValueError:
            # Not a valid host name.
            raise CannotListen(f"cannot listen on {host}:{port}: no such host name") from None
        self.sweeper = loop.create_task(self._sweep())
        address: tuple[str, int] = self.listener.sockets[0].getsockname()[:2]
        return address

    def reachable_addresses(self) -> list[str]:
        """The addresses it listens on that other machines can reach; a host name may have both."""
        assert self.listener is not None
        addresses = {str(each.getsockname()[0]) for each in self.listener.sockets}
        return sorted(
            each
            for each in addresses
            if not ipaddress.ip_address(each.partition("%")[0]).is_loopback
        )

    async def stop(self) -> None:
        """Disconnect every client, write the remaining output, and close."""
        self.is_stopping = True
        if self.listener is not None:
            self.listener.close()
        if self.sweeper is not None:
            self.sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.sweeper
        if isinstance(self.store, DiskStore):
            for peer in self.peers.values():
                peer.pause()
            # Wait for pending commits, so that their acknowledgements are sent.
            for _ in range(500):
                if self.failure is not None or not self.store.sizes:
                    break
                await asyncio.sleep(0.01)
        self.broker.stop(self.now())
        self._write_out()
        for _ in range(50):
            if not self.peers:
                return
            await asyncio.sleep(0.02)
        for peer in list(self.peers.values()):
            peer.abort()
        await asyncio.sleep(0)

    def now(self) -> float:
        """The time of the clock that all deadlines use."""
        return self.clock_offset + self.loop.time()

    def _committed(self, commits: list[Commit]) -> None:
        """The store has written these commits: send the packets that awaited them."""
        now = self.now()
        for commit in commits:
            try:
                self.broker.committed(commit, now)
            except Exception:
                # Its clients must reconnect to learn what is committed.
                LOG.exception("commit %d: its clients could not be answered: closed", commit.number)
                for number, _ in commit.packets:
                    self._abort(number)
        self._write_out()

    def _condition_changed(self) -> None:
        """The condition of the store has changed."""
        level = logging.INFO if self.store.condition == OPEN else logging.WARNING
        LOG.log(level, "store %s", CONDITIONS[self.store.condition])
        self.schedule()

    def _stream_read(self, stream: int) -> None:
        """The store has read records of a stream for a replay."""
        self.broker.replays.read(stream)
        self.schedule()

    def _fail(self, why: str) -> None:
        """The store can no longer write: close all connections, and acknowledge nothing more."""
        self.failure = why
        for peer in list(self.peers.values()):
            peer.abort()
        self.failed.set()

    def schedule(self) -> None:
        """Schedule the end of this tick, once for all sockets."""
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self._scheduled_tick)

    def _scheduled_tick(self) -> None:
        self.scheduled = False
        self.tick()
        if not self.is_stopping:
            # After the tick, so that other connections were answered first.
            self.broker.take_turns(self.now())
            self._resume_reading()

    def tick(self) -> None:
        """End the tick: commit its changes, and write the output that may be sent."""
        self.unmeasured_bytes += self.received_bytes
        self.received_bytes = 0
        if self.unmeasured_bytes >= MEASURE_BYTES:
            self.measure()
        self.broker.flush(self.now())
        if self.broker.store_failure and self.failure is None:
            self._fail(self.broker.store_failure.rstrip().rpartition("\n")[2])
        self._write_out()

    def measure(self) -> None:
        """Measure the memory, and log when it becomes short or is no longer short."""
        self.unmeasured_bytes = 0
        memory = self.broker.memory
        resident = resident_bytes()
        if memory.update(resident):
            if memory.is_short:
                LOG.warning(
                    "memory is short: refusing new sessions, subscriptions and messages that would"
                    " be queued in memory; %d MiB in use, limit %d MiB (maximum_memory)",
                    resident // MIB,
                    memory.limit // MIB,
                )
            else:
                LOG.info("memory is no longer short: %d MiB in use", resident // MIB)

    def _write_out(self) -> None:
        for number in self.broker.take_output():
            peer = self.peers.get(number)
            if peer is not None:
                try:
                    peer.write_out()
                except Exception:
                    # The output of other connections must still be written.
                    LOG.exception("writing to connection %d failed: closed", number)
                    self._abort(number)
        self._resume_reading()

    def _resume_reading(self) -> None:
        """Read released connections again, and schedule a tick if there is more to do."""
        broker = self.broker
        released = [*broker.pressure.released, *broker.resumed]
        broker.pressure.released = []
        broker.resumed = []
        if self.is_stopping:
            return
        for connection in released:
            peer = self.peers.get(connection.number)
            if peer is not None:
                peer.resume_reading()
        if broker.router.dirty or broker.has_turns() or broker.store_pressure.has_resumable():
            # Queued messages can be sent now, or a connection can take its next turn.
            self.schedule()

    def _abort(self, number: int) -> None:
        peer = self.peers.get(number)
        if peer is not None:
            peer.abort()

    async def _sweep(self) -> None:
        while True:
            due = self.now() + SWEEP_SECONDS
            await asyncio.sleep(SWEEP_SECONDS)
            now = self.now()
            try:
                self.measure()
                # Packets that arrived while the loop was stalled have not been read yet.
                self.broker.sweep(now, stalled_seconds=max(0.0, now - due))
                self.tick()
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


def log_signal(number: int, frame: object = None) -> None:
    """Log a signal that would end the process by default."""
    LOG.warning("%s ignored: there is nothing to reload", signal.Signals(number).name)


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
) -> None:
    """Run until SIGTERM or SIGINT. Without an Authority every client may do everything.

    Raises CannotListen, or StoreFailed if the store fails. The caller must close the store.
    """
    files = raise_file_limit()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopFaults())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    for number in IGNORED_SIGNALS:
        # A signal that is already ignored, for example by nohup, stays ignored without a log line.
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, log_signal, number)
    server = Server(settings, authority or OpenAuthority(LOG.warning), store, streams)
    host, port = await server.start()
    LOG.info(
        "listening on %s:%d, MQTT 3.1.1 and 5.0, up to %d open files",
        host,
        port,
        files,
        extra={"event": {"event": "ready", "host": host, "port": port}},
    )
    reachable = server.reachable_addresses()
    if authority is None and reachable:
        LOG.warning(OPEN_TO_NETWORK, ", ".join(reachable))
    signalled, failed = (loop.create_task(event.wait()) for event in (stopping, server.failed))
    await asyncio.wait((signalled, failed), return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    failed.cancel()
    LOG.info("stopping")
    await server.stop()
    for number in IGNORED_SIGNALS:
        # Without a handler these signals would kill the process before it has ended properly.
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    if server.failure is not None:
        raise StoreFailed(
            f"the store failed: {server.failure}. Nothing was acknowledged that it does not have"
        )


def run(
    settings: BrokerSettings,
    authority: Authority | None = None,
    store: Store | None = None,
    streams: Streams | None = None,
) -> None:
    """Run `serve` on uvloop if it is installed, otherwise on asyncio."""
    tune_collector()
    serving = serve(settings, authority, store, streams)
    try:
        uvloop = import_module("uvloop")
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)

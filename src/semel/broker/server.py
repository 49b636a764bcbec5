"""The broker on a network: asyncio, or uvloop where it is installed.

A thin shell: it carries bytes between sockets and the core, once a tick in each direction, and
knows nothing of MQTT. An exception while serving one connection closes that one, is logged once,
and touches nobody else.
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
from semel.broker.memory import BOUNDLESS, available_bytes, resident_bytes
from semel.broker.open_authority import OpenAuthority
from semel.broker.pressure import caught_up_mark
from semel.broker.settings import MIB, BrokerSettings
from semel.store.commit import Commit
from semel.store.disk import SWITCH_INTERVAL, DiskStore
from semel.store.store import BEHIND, FULL, OPEN, Store
from semel.store.streams import Streams

LOG: Final = logging.getLogger("semel.broker")

SWEEP_SECONDS: Final = 1.0
# How long a connection that is being closed may take to read its last bytes.
CLOSE_SECONDS: Final = 5.0
# Ticks gather what many sockets send, but not more than this many bytes.
TICK_BYTES: Final = 1024 * 1024
# After so many bytes the memory is measured, or once a second.
MEASURE_BYTES: Final = 4 * 1024 * 1024
# New containers before the garbage collector looks at them, and looks before it goes deeper.
COLLECTOR_THRESHOLDS: Final = (50_000, 20, 50)
# Why the system may give no new connection, for the moment.
OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
QUIET_SECONDS: Final = 10.0

# Their default is to end the process at once. There is nothing yet that they could be for.
IGNORED_SIGNALS: Final = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
OPEN_TO_NETWORK: Final = (
    "this broker is open to the network: whoever can reach %s may connect without a password, read "
    "and publish everything, and nothing is encrypted. Listen on 127.0.0.1, or let only trusted "
    "machines through by a firewall"
)

CONDITIONS: Final = {
    OPEN: "it takes messages again",
    BEHIND: "it is behind, and publishers have to wait",
    FULL: "the disk is full: what would have to last is refused, or has to wait",
}


class CannotListen(Exception):
    """Why the broker cannot listen where it was told to, in one sentence."""


class StoreFailed(Exception):
    """Why the store can keep nothing any more, in one sentence."""


class Peer(asyncio.Protocol):
    """One socket."""

    def __init__(self, server: "Server") -> None:
        self.server = server
        self.transport: asyncio.Transport | None = None
        self.connection: Connection | None = None
        self.held = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # What uvloop hands us is one by its methods, not by its class.
        self.transport = cast(asyncio.Transport, transport)
        # Whoever has more unread than this is heard of again when it has not, by `resume_writing`:
        # there is room for more then, and nobody has to wait for it.
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
        if self.server.broker.ready:
            # Another had to go for it.
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
            # The fault domain of one connection ends here: nobody else may feel what it was.
            LOG.exception("serving %s failed: closed", connection.peer)
            self.abort()
        if not connection.is_read:
            self.stop_reading(connection)
        self.server.gathered += len(data)
        if self.server.gathered >= TICK_BYTES:
            self.server.tick()
            return
        self.server.schedule()

    def stop_reading(self, connection: Connection) -> None:
        """What it sent has to wait. The core says when it may be read from again."""
        if connection.held and not self.held:
            # The core lets it go in a tick, and there may be none.
            self.held = True
            patience = self.server.settings.publisher_patience
            self.server.loop.call_later(patience, self.server.schedule)
        self.pause()

    def read_again(self) -> None:
        """Read again, if nothing is against it."""
        assert self.connection is not None
        assert self.transport is not None
        self.held = self.connection.held
        if self.connection.is_read:
            self.transport.resume_reading()
        else:
            self.stop_reading(self.connection)

    def pause(self) -> None:
        """Read no more."""
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
            LOG.exception("the end of the connection of %s failed", connection.peer)
        self.server.schedule()

    def resume_writing(self) -> None:
        """The peer has read most of what waited for it: messages may follow."""
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
        """Close at once, whatever was still to be written."""
        assert self.connection is not None
        assert self.transport is not None
        self.connection.closing = True
        self.transport.abort()

    def write_out(self) -> None:
        """What the core has for this socket, in one write."""
        connection, transport = self.connection, self.transport
        assert connection is not None
        assert transport is not None
        data = connection.take_outgoing()
        if data:
            self.server.broker.counters.bytes_sent += len(data)
            transport.write(data)
        self.server.broker.written(connection, transport.get_write_buffer_size())
        if connection.stuck:
            transport.abort()
        elif connection.closing:
            transport.close()
            # A peer that does not read must not keep its connection open that way.
            self.server.loop.call_later(CLOSE_SECONDS, transport.abort)


class Server:
    """Listens, ticks and stops."""

    def __init__(
        self,
        settings: BrokerSettings,
        authority: Authority | None = None,
        store: Store | None = None,
        streams: Streams | None = None,
    ) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        # As the wall clock was at the start, and then as the loop's, which nobody sets: what lasts
        # is due by it, and a clock that is set back makes nothing come early.
        self.start_of_clock = time.time() - self.loop.time()
        self.store = Store() if store is None else store
        self.broker = Broker(
            settings,
            authority=Authority() if authority is None else authority,
            store=self.store,
            new_client_id=lambda: f"semel-{secrets.token_hex(8)}",
            log=_log_wrong,
            log_connection=LOG.info if settings.connection_messages else _say_nothing,
            now=self.now(),
            streams=streams,
            wall=time.time,
        )
        # Why the store failed; set with the event.
        self.failure: str | None = None
        self.failed = asyncio.Event()
        self.peers: dict[int, Peer] = {}
        self.scheduled = False
        # Nothing more is read, nor worked off of what was read.
        self.is_stopping = False
        # Bytes received since the last tick, and up to it since the memory was measured.
        self.gathered = 0
        self.unmeasured = 0
        if settings.maximum_memory is None:
            self.broker.memory.limit = (available_bytes() or BOUNDLESS) // 2
        self.listener: asyncio.Server | None = None
        self.sweeper: asyncio.Task[None] | None = None

    async def start(self) -> tuple[str, int]:
        """Listen. Returns host and port, which may be one that the system chose for port 0."""
        loop = self.loop
        if isinstance(self.store, DiskStore):
            sys.setswitchinterval(SWITCH_INTERVAL)
            self.store.connect(
                loop, safe=self._safe, changed=self._changed, failed=self._fail, read=self._read
            )
            self.tick()
        host, port = self.settings.host, self.settings.port
        try:
            self.listener = await loop.create_server(lambda: Peer(self), host, port)
        except OSError as problem:
            if problem.errno == errno.EADDRINUSE:
                raise CannotListen(f"{host}:{port} is in use by another program") from None
            raise CannotListen(f"cannot listen on {host}:{port}: {problem.strerror}") from None
        except ValueError:
            # A name that cannot even be looked up.
            raise CannotListen(f"cannot listen on {host}:{port}: no such host name") from None
        self.sweeper = loop.create_task(self._sweep())
        where: tuple[str, int] = self.listener.sockets[0].getsockname()[:2]
        return where

    def reachable_addresses(self) -> list[str]:
        """Addresses it listens on that are not of this machine alone: a host name may have both."""
        assert self.listener is not None
        addresses = {str(each.getsockname()[0]) for each in self.listener.sockets}
        return sorted(
            each
            for each in addresses
            if not ipaddress.ip_address(each.partition("%")[0]).is_loopback
        )

    async def stop(self) -> None:
        """Tell every client, write what is left, and close."""
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
            # What is with the store already is answered before the end.
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
        """The time by which everything is due."""
        return self.start_of_clock + self.loop.time()

    def _safe(self, commits: list[Commit]) -> None:
        """The store has these: what waited for them leaves."""
        now = self.now()
        for commit in commits:
            try:
                self.broker.committed(commit, now)
            except Exception:
                # Who waited for this one is not told, and has to come back; the others are.
                LOG.exception("commit %d cannot be told to its clients: closed", commit.number)
                for number, _ in commit.packets:
                    self._abort(number)
        self._write_out()

    def _changed(self) -> None:
        """The store takes more than it did, or less."""
        level = logging.INFO if self.store.condition == OPEN else logging.WARNING
        LOG.log(level, "the store: %s", CONDITIONS[self.store.condition])
        self.schedule()

    def _read(self, stream: int) -> None:
        """The store has read what somebody waits for of the record of a stream."""
        self.broker.replays.read(stream)
        self.schedule()

    def _fail(self, why: str) -> None:
        """The store can keep nothing any more: nobody is told anything from here on."""
        self.failure = why
        for peer in list(self.peers.values()):
            peer.abort()
        self.failed.set()

    def schedule(self) -> None:
        """Flush once at the end of this tick, however many sockets had something."""
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self._scheduled_tick)

    def _scheduled_tick(self) -> None:
        self.scheduled = False
        self.tick()
        if not self.is_stopping:
            # What others have sent was answered first.
            self.broker.take_turns(self.now())
            self._read_again()

    def tick(self) -> None:
        """Commit what has happened since the last one, and write what may leave."""
        self.unmeasured += self.gathered
        self.gathered = 0
        if self.unmeasured >= MEASURE_BYTES:
            self.measure()
        self.broker.flush(self.now())
        if self.broker.store_failure and self.failure is None:
            self._fail(self.broker.store_failure.rstrip().rpartition("\n")[2])
        self._write_out()

    def measure(self) -> None:
        """Find out whether memory is short, and say so if that is new."""
        self.unmeasured = 0
        memory = self.broker.memory
        resident = resident_bytes()
        if memory.measured(resident):
            if memory.is_short:
                LOG.warning(
                    "memory is short: %d MiB are in use, the limit is %d MiB (maximum_memory);"
                    " new sessions, subscriptions, and messages that would wait are refused",
                    resident // MIB,
                    memory.limit // MIB,
                )
            else:
                LOG.info("memory is not short any more: %d MiB are in use", resident // MIB)

    def _write_out(self) -> None:
        ready = self.broker.ready
        self.broker.ready = {}
        for number in ready:
            peer = self.peers.get(number)
            if peer is not None:
                try:
                    peer.write_out()
                except Exception:
                    # What the others are to be sent does not stay behind for it.
                    LOG.exception("writing to connection %d failed: closed", number)
                    self._abort(number)
        self._read_again()

    def _read_again(self) -> None:
        """Read from those that the core has let go, and tick again if there is more to do."""
        broker = self.broker
        going = [*broker.pressure.released, *broker.resumed]
        broker.pressure.released = []
        broker.resumed = []
        if self.is_stopping:
            return
        for connection in going:
            peer = self.peers.get(connection.number)
            if peer is not None:
                peer.read_again()
        if broker.router.dirty or broker.has_turns() or broker.store_pressure.is_due():
            # What waited for room has some now, or somebody's turn has come.
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
                # What was sent meanwhile has not been read yet.
                self.broker.sweep(now, unheard=max(0.0, now - due))
                self.tick()
            except Exception:
                # Keep alive, wills and expiry of everybody hang on this: it goes on.
                LOG.exception("the sweep failed")


def raise_file_limit() -> int:
    """As many open files as the system lets us have; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A hard limit of "unlimited" may be more than the kernel gives: then we keep what we have.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft


def tune_collector() -> None:
    """Let the garbage collector look rarely, and never again at what is there from the start.

    Messages and packets hold no cycles: they go when nobody refers to them any more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


class LoopFaults:
    """What the loop itself cannot do, for the log: no file for a new connection, above all.

    Such a thing repeats itself many times a second, and is said once in a while.
    """

    def __init__(self) -> None:
        self.quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        problem = context.get("exception")
        if isinstance(problem, OSError) and problem.errno in OUT_OF_RESOURCES:
            if loop.time() >= self.quiet_until:
                self.quiet_until = loop.time() + QUIET_SECONDS
                LOG.warning("new connections cannot be taken now: %s", problem.strerror)
            return
        LOG.error("%s", context.get("message"), exc_info=problem)


def log_signal(number: int, frame: object = None) -> None:
    """Log a signal that would end the process, if nobody took it."""
    LOG.warning("%s is ignored: there is nothing to reload", signal.Signals(number).name)


def _log_wrong(line: str) -> None:
    """What is wrong with a client, or, with a traceback, with the broker."""
    LOG.log(logging.ERROR if "Traceback" in line else logging.WARNING, "%s", line)


def _say_nothing(line: str) -> None:
    """For the lines of connections that are not wanted."""


async def serve(
    settings: BrokerSettings,
    authority: Authority | None = None,
    store: Store | None = None,
    streams: Streams | None = None,
) -> None:
    """Run until SIGTERM or SIGINT. Without an Authority everybody may do everything.

    Raises StoreFailed if the store does. The store is its caller's, who closes it.
    """
    files = raise_file_limit()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopFaults())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    for number in IGNORED_SIGNALS:
        # What nohup ignores stays ignored, without a word.
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, log_signal, number)
    server = Server(settings, authority or OpenAuthority(LOG.warning), store, streams)
    host, port = await server.start()
    LOG.info("listening on %s:%d, MQTT 3.1.1 and 5.0, up to %d open files", host, port, files)
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
        # Whoever sends one from here on must not kill what is about to end well.
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
    """`serve` on the quickest loop there is."""
    tune_collector()
    serving = serve(settings, authority, store, streams)
    try:
        uvloop = import_module("uvloop")
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)

"""The accepted connections: bytes pass between their transports and the core, tick by tick.

    transport ─▶ Peer ─▶ Broker.receive        what one connection has received
    transport ◀─ Peer ◀─ Peers.tick            once a tick: commit, and write the output

A tick is everything that is received until the loop, or the epoll set of plain sockets, has served
all ready sockets. An exception while serving a connection closes it, and is logged once.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from traceback import format_exc
from typing import Final, Protocol, final

from semel.broker.authority import Denied
from semel.broker.connection import Connection
from semel.broker.core import Broker
from semel.broker.identity import Identity, PeerInfo
from semel.broker.listener_limits import ListenerLimits
from semel.broker.memory import resident_bytes
from semel.broker.network.address_log import AddressLog
from semel.broker.network.layered_transport import CLOSE_SECONDS
from semel.broker.network.plain_sockets import PlainTransport
from semel.broker.network.proof_pool import ProofPool
from semel.broker.pressure import caught_up_mark
from semel.broker.settings import MIB
from semel.mqtt.packet_types import CONNECT, first_byte
from semel.store.commit import Commit

LOG: Final = logging.getLogger("semel.broker")

# A tick ends after this many received bytes of all sockets.
TICK_BYTES: Final = 1024 * 1024
# Memory is measured after this many received bytes, and once a second.
MEASURE_BYTES: Final = 4 * 1024 * 1024
# The first byte of every client that speaks MQTT.
_CONNECT_BYTE: Final = first_byte(CONNECT)


class PeerTransport(Protocol):
    """What a Peer uses of its transport, which is a PlainTransport or one of the loop."""

    def get_extra_info(self, name: str, default: object = None) -> object: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class PeerListener(Protocol):
    """The listener that has accepted a connection."""

    limits: ListenerLimits

    def refuse_peer(self, address: str, *, is_layered: bool) -> str | None:
        """Why a new connection of this address is closed, in one sentence; or None.

        `is_layered`: it has passed layers, which may have counted it already.
        """

    def peer_info(self, transport: PeerTransport) -> PeerInfo:
        """The other end of a connection, as its socket knows it."""

    def unexpected_protocol(self, data: bytes) -> str | None:
        """Why the first bytes are not MQTT, in one sentence; None if they may be MQTT."""


@final
class Peer:
    """Connects one transport to its `Connection`. It has the methods of `asyncio.Protocol`.

    `info` says who is at its other end; `accepted_at` is when the socket was accepted, if layers
    have taken time since then. Without a listener, it is a client in this process.
    """

    transport: PeerTransport | None
    connection: Connection | None
    _peers: Final["Peers"]
    _listener: Final[PeerListener | None]
    _info: PeerInfo | None
    _accepted_at: float | None
    _is_paused_by_reader: bool
    _has_received: bool
    # Aborts a connection whose peer does not read its last bytes.
    _aborting: asyncio.TimerHandle | None

    def __init__(
        self,
        peers: "Peers",
        listener: PeerListener | None = None,
        *,
        info: PeerInfo | None = None,
        accepted_at: float | None = None,
    ) -> None:
        self.transport = None
        self.connection = None
        self._peers = peers
        self._listener = listener
        self._info = info
        self._accepted_at = accepted_at
        self._is_paused_by_reader = False
        self._has_received = False
        self._aborting = None

    # --- callbacks of the transport ---------------------------------------------------------------

    def connection_made(self, transport: PeerTransport) -> None:
        """The transport exists."""
        peers = self._peers
        self.transport = transport
        # `resume_writing` is called when at most this many bytes are unsent: the reader has caught
        # up.
        transport.set_write_buffer_limits(peers.caught_up_mark, peers.caught_up_mark)
        info = self._info or peer_info(self._listener, transport)
        self._info = None
        accepted_at = self._accepted_at
        opened_at = peers.now() if accepted_at is None else accepted_at
        limits = None
        if self._listener is not None:
            limits = self._listener.limits
            problem = self._listener.refuse_peer(info.address, is_layered=accepted_at is not None)
            if problem is not None:
                peers.failures.log(info.address, f"{info.label} closed: {problem}", peers.now())
                peers.broker.oversight.audit.refused_peer(info.label, info.listener, problem)
                transport.abort()
                return
        try:
            self.connection = peers.broker.opened(info, opened_at, limits)
        except Exception:
            LOG.exception("serving %s failed: closed", info.label)
            transport.abort()
            return
        peers.by_number[self.connection.number] = self
        if peers.broker.has_output():
            # An older connection must be closed for it.
            peers.schedule()

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        connection, transport = self.connection, self.transport
        assert transport is not None
        if connection is None or connection.closing:
            return
        if not self._has_received:
            self._has_received = True
            if data[0] != _CONNECT_BYTE and self._listener is not None:
                problem = self._listener.unexpected_protocol(data)
                if problem is not None:
                    self.fail(problem)
                    transport.abort()
                    return
        peers = self._peers
        try:
            peers.broker.receive(connection, data, peers.now())
        except Exception:
            # A failure closes this connection only.
            self._log_failure(connection, f"{connection.peer} closed: serving it failed")
            self.abort()
        if not connection.may_be_read:
            self._stop_reading(connection)
        peers.received(len(data))

    def eof_received(self) -> None:
        """The peer sends nothing more: the transport closes itself."""

    def connection_lost(self, problem: Exception | None) -> None:
        """The transport is closed."""
        if self._aborting is not None:
            # It would keep the transport until then.
            self._aborting.cancel()
        connection = self.connection
        if connection is None:
            return
        peers = self._peers
        peers.by_number.pop(connection.number, None)
        if connection.awaits_proof:
            peers.proofs.cancel(connection.number)
        try:
            peers.broker.lost(connection, peers.now())
        except Exception:
            self._log_failure(connection, f"cleaning up the connection of {connection.peer} failed")
        peers.schedule()

    def pause_writing(self) -> None:
        """The transport has many unsent bytes: `write_out` tells the core how many."""

    def resume_writing(self) -> None:
        """The peer has read most of its output: more messages may follow."""
        connection, transport = self.connection, self.transport
        assert connection is not None
        assert transport is not None
        try:
            self._peers.broker.written(connection, transport.get_write_buffer_size())
        except Exception:
            self._log_failure(connection, f"{connection.peer} closed: serving it failed")
            self.abort()
        self._peers.schedule()

    # --- for `Peers` and the server ---------------------------------------------------------------

    def resume_reading(self) -> None:
        """Read the socket again, unless something else pauses the connection."""
        assert self.connection is not None
        assert self.transport is not None
        self._is_paused_by_reader = self.connection.paused_by_reader
        if self.connection.may_be_read:
            self.transport.resume_reading()
        else:
            self._stop_reading(self.connection)

    def pause(self) -> None:
        """Stop reading from the socket."""
        assert self.transport is not None
        self.transport.pause_reading()

    def _stop_reading(self, connection: Connection) -> None:
        """Stop reading a paused connection. The core reports when it may be read again."""
        if connection.paused_by_reader and not self._is_paused_by_reader:
            # The core releases it in a tick, which must happen even if nothing else does.
            self._is_paused_by_reader = True
            self._peers.schedule_later(self._peers.broker.settings.slow_subscriber_timeout)
        self.pause()

    def abort(self) -> None:
        """Close at once, and discard unsent bytes."""
        assert self.connection is not None
        assert self.transport is not None
        self.connection.closing = True
        self.transport.abort()

    def detach(self) -> None:
        """Tell the core nothing more, not even that the connection ends."""
        self.connection = None

    def fail(self, why: str) -> None:
        """Log why the connection is being closed. The core processes nothing more of it."""
        connection = self.connection
        if connection is not None and not connection.closing:
            line = f"{connection.label} closed: {why}"
            self._peers.failures.log(connection.address, line, self._peers.now())
            if not connection.is_admitted:
                self._peers.broker.oversight.audit.refused_early(connection, why)
            connection.closing = True
            connection.close_reason = why

    def write_out(self) -> None:
        """Write the output of the connection to the socket, and close it if it is closing."""
        connection, transport = self.connection, self.transport
        assert connection is not None
        assert transport is not None
        broker = self._peers.broker
        data = connection.take_outgoing()
        broker.counters.bytes_sent += len(data)
        if isinstance(transport, PlainTransport):
            # The same calls, compiled.
            transport.write(data)
            broker.written(connection, transport.get_write_buffer_size())
        else:
            if data:
                transport.write(data)
            broker.written(connection, transport.get_write_buffer_size())
        if connection.abort_on_close:
            transport.abort()
        elif connection.closing:
            transport.close()
            # A peer that does not read must not keep the connection open.
            self._aborting = self._peers.loop.call_later(CLOSE_SECONDS, transport.abort)

    def _log_failure(self, connection: Connection, event: str) -> None:
        """Log the exception that is being handled, within the limit of this client."""
        line = f"{event}: {format_exc()}"
        self._peers.broker.log.problem(connection.log_source, line, self._peers.now())


def peer_info(listener: PeerListener | None, transport: PeerTransport) -> PeerInfo:
    """The other end of a transport that has no layers."""
    if listener is not None:
        return listener.peer_info(transport)
    name = transport.get_extra_info("peername")
    return PeerInfo(f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "?")


@final
class Peers:
    """All connections that the core knows, and the ticks in which they are served.

    `clock_offset` is added to the monotonic clock. `store_failed` is called if the core could not
    pass a commit to the store.
    """

    loop: Final[asyncio.AbstractEventLoop]
    broker: Final[Broker]
    by_number: Final[dict[int, Peer]]
    # Connections that fail because of their transport.
    failures: Final[AddressLog]
    # Threads that check credentials.
    proofs: Final[ProofPool]
    # While stopping, nothing more is read or processed.
    is_stopping: bool
    # The number of unsent bytes at which a reader has caught up.
    caught_up_mark: Final[int]
    _clock_offset: Final[float]
    _store_failed: Final[Callable[[str], None]]
    # Whether a tick is scheduled; whether ready sockets are being served, since when, and whether a
    # tick must follow.
    _is_scheduled: bool
    _is_reading: bool
    _reading_began: float
    _needs_tick: bool
    # Schedules a tick for connections that are paused because of their rate.
    _rate_timer: asyncio.TimerHandle | None
    # Bytes received since the last tick; bytes received before it since memory was measured.
    _received_bytes: int
    _unmeasured_bytes: int

    def __init__(
        self,
        broker: Broker,
        loop: asyncio.AbstractEventLoop,
        *,
        clock_offset: float,
        failures: AddressLog,
        proofs: ProofPool,
        store_failed: Callable[[str], None],
    ) -> None:
        self.loop = loop
        self.broker = broker
        self.by_number = {}
        self.failures = failures
        self.proofs = proofs
        self.is_stopping = False
        self.caught_up_mark = caught_up_mark(broker.settings.maximum_outgoing_bytes)
        self._clock_offset = clock_offset
        self._store_failed = store_failed
        self._is_scheduled = False
        self._is_reading = False
        self._needs_tick = False
        self._reading_began = 0.0
        self._rate_timer = None
        self._received_bytes = 0
        self._unmeasured_bytes = 0

    def now(self) -> float:
        """The time of the clock that all deadlines use."""
        if self._is_reading:
            return self._reading_began
        return self._clock_offset + time.monotonic()

    # --- ticks ------------------------------------------------------------------------------------

    @property
    def is_scheduled(self) -> bool:
        """Whether a tick will end soon without any further cause."""
        return self._is_scheduled or self._needs_tick

    def begin_reading(self) -> None:
        """Sockets are about to be served: they share a tick, which ends in `end_reading`."""
        self._reading_began = self.now()
        self._is_reading = True

    def end_reading(self) -> None:
        """All ready sockets were served."""
        try:
            if self._needs_tick:
                self._needs_tick = False
                self._end_tick()
        finally:
            self._is_reading = False
            if self._needs_tick:
                # The next tick has something to do: after whatever else the loop has to do.
                self._needs_tick = False
                self.schedule()

    def received(self, size: int) -> None:
        """Bytes were passed to the core: end the tick soon, or now if there are many."""
        self._received_bytes += size
        if self._received_bytes >= TICK_BYTES:
            self.tick()
        else:
            self.schedule()

    def schedule(self) -> None:
        """Schedule the end of this tick, once for all sockets."""
        if self._is_reading:
            self._needs_tick = True
        elif not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self._scheduled_tick)

    def schedule_later(self, seconds: float) -> None:
        """Schedule a tick for a later time."""
        self.loop.call_later(seconds, self.schedule)

    def _scheduled_tick(self) -> None:
        self._is_scheduled = False
        self._end_tick()

    def _end_tick(self) -> None:
        self.tick()
        if not self.is_stopping:
            # After the tick, so that other connections were answered first.
            if self.broker.take_turns(self.now()):
                self._resume_reading()
            self._wait_for_rates()

    def _wait_for_rates(self) -> None:
        """Schedule a tick for the time at which the next connection is within its rate again."""
        due = self.broker.rate_limits.next_due()
        if due is None:
            return
        if self._rate_timer is not None:
            self._rate_timer.cancel()
        self._rate_timer = self.loop.call_later(max(0.0, due - self.now()), self.schedule)

    def tick(self) -> None:
        """End the tick: commit its changes, and write the output that may be sent."""
        self._unmeasured_bytes += self._received_bytes
        self._received_bytes = 0
        if self._unmeasured_bytes >= MEASURE_BYTES:
            self.measure_memory()
        self._submit_proofs()
        broker = self.broker
        broker.flush(self.now())
        if broker.store_failure:
            self._store_failed(broker.store_failure)
        self.write_out()

    def committed(self, commits: list[Commit]) -> None:
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
        self.write_out()

    def measure_memory(self) -> None:
        """Measure the memory, and log when it becomes short or is no longer short."""
        self._unmeasured_bytes = 0
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

    def _submit_proofs(self) -> None:
        """Pass the proofs of new clients to the threads that run them."""
        for connection, proof in self.broker.take_proofs():
            self.proofs.submit(
                connection.number,
                proof,
                address=connection.address,
                done=partial(self._proved, connection),
            )

    def _proved(self, connection: Connection, outcome: Identity | Denied) -> None:
        """A proof has decided."""
        self.broker.proved(connection, outcome, self.now())
        self.schedule()

    # --- output -----------------------------------------------------------------------------------

    def write_out(self) -> None:
        """Write the output of all connections that have any."""
        if self.broker.has_output():
            for number in self.broker.take_output():
                peer = self.by_number.get(number)
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
        for connection in broker.take_released():
            peer = self.by_number.get(connection.number)
            if peer is not None and not self.is_stopping:
                peer.resume_reading()
        if not self.is_stopping and broker.has_work():
            self.schedule()

    def _abort(self, number: int) -> None:
        peer = self.by_number.get(number)
        if peer is not None:
            peer.abort()

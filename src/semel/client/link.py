"""Connects a ClientCore to a broker: one task connects, and reconnects after a loss.

        ┌──────────────────── backoff ◀──────────────────────┐ yes
        ▼                                                    │
    transport ─▶ CONNECT ─▶ CONNACK ─▶ connected … lost ─▶ temporary? ─ no ─▶ failed

Every change of the core is followed by a `flush`: one for each chunk of bytes received, and one for
all that the program does in one iteration of the event loop. `flush` reports events to the owner.
"""

import asyncio
import contextlib
import inspect
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from semel.client.address import Address, BadAddress
from semel.client.authentication import ClientAuthentication
from semel.client.connector import Connector, open_transport
from semel.client.core import ClientCore
from semel.client.errors import Disconnected, Refused, connection_error
from semel.client.events import PublishOutcome, SubscriptionAnswer
from semel.client.received import Incoming
from semel.client.reconnect import Backoff
from semel.client.transport import CannotConnect, Transport
from semel.extras import MissingExtra
from semel.mqtt.packet_types import MQTT5
from semel.mqtt.packets.auth import Auth
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.properties import NO_PROPERTIES, Properties
from semel.mqtt.reasons import (
    CONTINUE_AUTHENTICATION,
    NORMAL_DISCONNECTION,
    RE_AUTHENTICATE,
    UNSPECIFIED_ERROR,
)
from semel.mqtt.session import BOUNDLESS
from semel.store.commit import Commit
from semel.store.disk import DiskStore
from semel.store.schema import Unusable
from semel.store.store import OPEN

LOG: Final = logging.getLogger("semel.client")

T = TypeVar("T")

# The shortest interval between two searches for expired messages, in seconds.
EXPIRY_SECONDS: Final = 0.01
# Bytes that the program may publish in one iteration of the event loop before they are written.
TURN_BYTES: Final = 64 * 1024
# How long the store and the transport may take to finish when the client closes, in seconds.
CLOSE_SECONDS: Final = 10.0


class LinkOwner(Protocol):
    """Receives the events of a link."""

    def on_connected(self, packet: ConnAck) -> None:
        """The server has accepted the connection."""

    def on_arrived(self, messages: list[Incoming]) -> None:
        """Messages have arrived, and are committed."""

    def on_published(self, outcomes: list[PublishOutcome]) -> None:
        """Publications are complete, or were given up."""

    def on_stored(self, numbers: list[int]) -> None:
        """Publications are committed."""

    def on_answered(self, answers: list[SubscriptionAnswer]) -> None:
        """The server has answered SUBSCRIBE or UNSUBSCRIBE packets."""

    def on_disconnected(self, problem: Exception) -> None:
        """The connection is lost; the link reconnects, unless the owner calls `give_up`."""

    def on_failed(self, problem: Exception) -> None:
        """The link does not reconnect, for this reason."""


class LinkListener:
    """Passes the events of one transport to the link, while the link uses it."""

    def __init__(self, link: "BrokerLink") -> None:
        self.link = link
        self.is_current = True
        self.closed: asyncio.Future[None] = link.loop.create_future()

    def received(self, data: bytes) -> None:
        """Bytes of MQTT have arrived."""
        if self.is_current:
            self.link.received(data)

    def writable(self, writable: bool) -> None:
        """The write buffer has room again, or is full."""
        if self.is_current:
            self.link.writable(writable)

    def lost(self, why: str | None) -> None:
        """The network connection is closed."""
        if not self.closed.done():
            self.closed.set_result(None)
        if self.is_current:
            self.link.lost(why)


class BrokerLink:
    """Keeps one ClientCore connected, until it is closed."""

    def __init__(
        self,
        core: ClientCore,
        address: Address,
        owner: LinkOwner,
        *,
        tls: ssl.SSLContext | None,
        timeout: float,
        backoff: Backoff | None,
        clean_start: bool | None,
        purge: Callable[[str], Awaitable[None]],
        store: DiskStore | None = None,
        authentication: ClientAuthentication | None = None,
        connector: Connector = open_transport,
        flush_core: Callable[[float, float], None] | None = None,
    ) -> None:
        """`purge` makes a 3.1.1 server discard the session of this client identifier.

        With `flush_core` the owner flushes the core together with another one. It has connected the
        store, and calls `on_committed`, `on_condition_changed` and `on_store_failed`.
        """
        self.core = core
        self.address = address
        self.owner = owner
        self.tls = tls
        self.timeout = timeout
        self.backoff = backoff
        self.clean_start = clean_start
        self.purge = purge
        self.store = store
        self.authentication = authentication
        self.connector = connector
        self.loop = asyncio.get_running_loop()
        self.transport: Transport | None = None
        self.is_writable = False
        # Reading is paused because the program is behind. The store may pause it as well.
        self.is_paused_by_reader = False
        self.reconnects = 0
        self.problem: Exception | None = None
        self.is_closing = False
        self._offset = time.time() - self.loop.time()
        self._handed_over = 0
        self._is_scheduled = False
        # The client is closed, or its store has failed: nothing more is stored or sent.
        self._is_stopped = False
        self._expiry: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._first_attempt: asyncio.Future[None] = self.loop.create_future()
        self._connack_received: asyncio.Future[None] | None = None
        self._lost: asyncio.Future[Exception] | None = None
        # A dict keeps the order of arrival.
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._listener: LinkListener | None = None
        # Transports that are closing, with DISCONNECT sent if it was due.
        self._closing: dict[LinkListener, Transport] = {}
        # Running calls of the program's authentication. Nothing is sent until it has verified the
        # server.
        self._authenticating: set[asyncio.Task[None]] = set()
        self._is_verifying = False
        self._reauthenticating = asyncio.Lock()
        self._reauthenticated: asyncio.Future[None] | None = None
        # Tasks that await a PINGRESP, by the number of the PINGREQ on this connection.
        self._pings: dict[int, asyncio.Future[None]] = {}
        core.on_acknowledged = self.schedule
        self._flush_core = core.flush if flush_core is None else flush_core
        if store is not None and flush_core is None:
            store.connect(
                self.loop,
                safe=self.on_committed,
                changed=self.on_condition_changed,
                failed=self.on_store_failed,
            )

    def now(self) -> float:
        """Monotonic seconds that agreed with the wall clock at the start."""
        return self.loop.time() + self._offset

    # --- for the owner ----------------------------------------------------------------------------

    async def start(self, *, offline: bool) -> None:
        """Connect. With `offline`, return even if the server cannot be reached, and keep trying."""
        self._task = self.loop.create_task(self._run(offline), name="semel-client")
        await asyncio.shield(self._first_attempt)

    @property
    def is_connected(self) -> bool:
        """Whether the server has accepted the connection, and it has not ended."""
        return self.transport is not None and self.core.is_connected and not self._is_verifying

    async def until(self, is_met: Callable[[], bool]) -> None:
        """Wait until `is_met()` is true. Raises `problem` if the link does not reconnect."""
        while not is_met():
            if self.problem is not None:
                raise self.problem.with_traceback(None)
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._waiters[waiter] = None
            try:
                await waiter
            finally:
                del self._waiters[waiter]

    def schedule(self) -> None:
        """Call `flush` in the next iteration of the event loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self.flush)

    def handed_over(self, size: int) -> bool:
        """Account for bytes to write. Returns whether the caller should yield to the loop."""
        self._handed_over += size
        if self._handed_over >= TURN_BYTES:
            self.flush()
            return True
        self.schedule()
        return False

    def watch_expiry(self) -> None:
        """Set a timer for the first expiry in the backlog."""
        due = self.core.session.backlog.next_expiry
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if due is not None and not self._is_stopped:
            delay = max(EXPIRY_SECONDS, due - self.now())
            self._expiry = self.loop.call_later(delay, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self.core.expire(self.now())
        self.flush()
        self.watch_expiry()

    def pause_for_reader(self, paused: bool) -> None:
        """Pause or resume reading, because the program is behind or has caught up."""
        if paused != self.is_paused_by_reader:
            self.is_paused_by_reader = paused
            self._update_reading()

    def flush(self) -> None:
        """Commit and send what is pending, and report events to the owner."""
        core = self.core
        self._is_scheduled = False
        self._handed_over = 0
        if self._is_stopped or self._is_verifying:
            return
        try:
            self._flush_core(self.now(), time.time())
        except Unusable as problem:
            self.on_store_failed(str(problem))
            return
        if core.connack is not None and self.authentication is not None:
            self._is_verifying = True
            self._run_authentication(self._verify, self.authentication, core.connack)
            return
        self.release()

    def release(self) -> None:
        """Write what the core has to send, and report events to the owner."""
        if not self._is_stopped:
            self._write()
            self._report_events()

    def _write(self) -> None:
        data = self.core.take_output()
        if data and self.transport is not None:
            self.transport.write(data)

    def _report_events(self) -> None:
        core = self.core
        owner = self.owner
        if core.stored:
            stored, core.stored = core.stored, []
            owner.on_stored(stored)
        if core.outcomes:
            outcomes, core.outcomes = core.outcomes, []
            owner.on_published(outcomes)
            self._wake()
        if core.answers:
            answers, core.answers = core.answers, []
            owner.on_answered(answers)
        if core.connack is not None:
            connack, core.connack = core.connack, None
            self._on_connack(connack)
        if core.arrived:
            arrived, core.arrived = core.arrived, []
            owner.on_arrived(arrived)
        if core.auths:
            auths, core.auths = core.auths, []
            for auth in auths:
                self._authenticate(auth)
        for number in [each for each in self._pings if each <= core.answered_pings]:
            ping = self._pings.pop(number)
            if not ping.done():
                ping.set_result(None)
        if core.connection_end is not None:
            self._set_lost(connection_error(core.connection_end, core.version))

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- connecting -------------------------------------------------------------------------------

    async def _run(self, offline: bool) -> None:
        try:
            await self._stay_connected(offline)
        except (MissingExtra, BadAddress) as problem:
            self._fail(problem)
        except asyncio.CancelledError:
            # Cancelled by `_stop` or by the program: end the tasks that wait.
            self._fail(Disconnected("the client is closed"))
            raise
        except Exception as problem:
            LOG.exception("%s: the client failed", self.address)
            self._fail(Disconnected(f"the client failed: {problem!r}"))

    async def _stay_connected(self, offline: bool) -> None:
        failures = 0
        delay = 0.0
        while True:
            connected_at = self.loop.time()
            try:
                await self._connect()
                connected_at = self.loop.time()
                assert self._lost is not None
                if not self._first_attempt.done():
                    self._first_attempt.set_result(None)
                problem = await self._lost
            except (Refused, Disconnected, CannotConnect) as found:
                problem = found
            self._end_connection()
            if self.is_closing:
                return
            if isinstance(problem, CannotConnect):
                problem = Disconnected(str(problem))
            assert isinstance(problem, Refused | Disconnected)
            is_first = not self._first_attempt.done()
            if self.backoff is None or not problem.is_temporary or (is_first and not offline):
                self._fail(problem)
                return
            if is_first:
                self._first_attempt.set_result(None)
            # A server that accepts and closes at once counts as a failure.
            if self.loop.time() - connected_at > max(delay, self.backoff.first):
                failures = 0
            failures += 1
            delay = self.backoff.delay(failures)
            self.owner.on_disconnected(problem)
            if self.problem is not None:
                return  # the owner has given up
            LOG.warning("%s: %s; trying again in %.1f s", self.address, problem, delay)
            await asyncio.sleep(delay)
            self.reconnects += 1

    def give_up(self, problem: Exception) -> None:
        """Do not reconnect. An owner calls this in `on_disconnected`."""
        self._fail(problem)

    def _fail(self, problem: Exception) -> None:
        """Do not reconnect, and report why."""
        if self.problem is not None:
            return
        self.problem = problem
        self.owner.on_failed(problem)
        self._wake()
        if not self._first_attempt.done():
            self._first_attempt.set_exception(problem)

    async def _connect(self) -> None:
        """Make one attempt. Returns when CONNACK has accepted it.

        Raises Refused, Disconnected and CannotConnect.
        """
        core = self.core
        clean = not core.has_state if self.clean_start is None else self.clean_start
        if core.version != MQTT5:
            persistent = core.session_expiry > 0
            if clean and persistent:
                await self.purge(core.client_id)
                core.is_session_purged = True
            clean = not persistent
        await self._open_connection(clean)
        # Only the first connection starts clean: later ones resume its session.
        self.clean_start = None

    async def _open_connection(self, clean_start: bool) -> None:
        data = None
        if self.authentication is not None:
            data = await self._initial_data(self.authentication)
        self._lost = self.loop.create_future()
        self._connack_received = self.loop.create_future()
        listener = self._listener = LinkListener(self)
        self.transport = await self.connector(
            self.address, listener, tls=self.tls, timeout=self.timeout
        )
        self.is_writable = True
        self.core.connect(clean_start, self.now(), data)
        self._write()
        self._update_reading()
        lost = self._lost
        try:
            async with asyncio.timeout(self.timeout):
                await asyncio.wait(
                    (self._connack_received, lost), return_when=asyncio.FIRST_COMPLETED
                )
        except TimeoutError:
            if not self.core.session.connected or self._is_verifying:
                raise Disconnected(
                    f"the server did not answer CONNECT within {self.timeout:.0f} s"
                ) from None
            # The server has answered, and our store has not committed it yet.
            await asyncio.wait((self._connack_received, lost), return_when=asyncio.FIRST_COMPLETED)
        if not self._connack_received.done():
            raise lost.result()

    def _on_connack(self, packet: ConnAck) -> None:
        assert self._connack_received is not None
        if self._connack_received.done():
            return
        self._connack_received.set_result(None)
        self.owner.on_connected(packet)
        self._wake()
        self.flush()
        self._update_reading()
        self._sweep()

    def _set_lost(self, problem: Exception) -> None:
        """The connection has ended, for this reason."""
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(problem)

    def _end_connection(self) -> None:
        """Close the transport, and reset the state of the connection."""
        transport, self.transport = self.transport, None
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.is_current = False
        if transport is not None and listener is not None and not listener.closed.done():
            # A peer that broke a rule should receive our DISCONNECT before the connection closes.
            transport.close()
            self._closing[listener] = transport
            listener.closed.add_done_callback(lambda _: self._closing.pop(listener, None))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._authenticating:
            task.cancel()
        self._is_verifying = False
        self._pings.clear()
        self.is_writable = False
        self.core.on_connection_lost(self.now())
        self.core.session.room = BOUNDLESS
        # Commit the changes that the last packets of this connection made.
        self.flush()

    # --- events of the transport ------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Bytes of MQTT have arrived."""
        if self.core.connection_end is None:
            self.core.receive(data, self.now())
            self.flush()
            if not self._is_reading:
                # The store does not report that this write made it fall behind.
                self._update_reading()

    def writable(self, writable: bool) -> None:
        """The write buffer has room again, or is full."""
        self.is_writable = writable
        self.core.session.room = BOUNDLESS if writable else 0
        if writable:
            self._wake()
            self.schedule()

    def drop_connection(self, why: str) -> None:
        """End the connection, for this reason; the link reconnects."""
        self._set_lost(Disconnected(why))

    def lost(self, why: str | None) -> None:
        """The network connection is closed."""
        self._set_lost(Disconnected(why or "the server closed the connection"))

    def _update_reading(self) -> None:
        if self.transport is not None:
            if self._is_reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    @property
    def _is_reading(self) -> bool:
        if not self.core.session.connected:
            # A pause here would keep us from reading the CONNACK.
            return True
        return not self.is_paused_by_reader and (self.store is None or self.store.condition == OPEN)

    def _sweep(self) -> None:
        """Keep the connection alive."""
        due = self.core.sweep(self.now(), is_reading=self._is_reading)
        self._write()
        self._report_events()
        if due is not None:
            delay = max(0.0, due - self.now())
            self._timer = self.loop.call_later(delay, self._sweep)

    # --- events of the store ----------------------------------------------------------------------

    def on_committed(self, commits: list[Commit]) -> None:
        """The store has these commits."""
        if self._is_stopped:
            return
        self.core.on_committed(len(commits), self.now())
        self.flush()
        if self.core.is_committed:
            self._wake()

    def on_condition_changed(self) -> None:
        """The store pauses reading, or no longer does."""
        self._update_reading()
        self._wake()

    def on_store_failed(self, why: str) -> None:
        """Nothing more can be stored, so nothing more is sent."""
        self._is_stopped = True
        self._fail(Disconnected(f"the store can no longer be used: {why}"))
        if self._task is not None:
            self._task.cancel()
        self._end_connection()

    # --- authentication ---------------------------------------------------------------------------

    def _authenticate(self, packet: Auth) -> None:
        authentication = self.authentication
        # The Exchange refuses AUTH without an agreed method.
        assert authentication is not None
        data = packet.properties.authentication_data
        if packet.reason == CONTINUE_AUTHENTICATION:
            self._run_authentication(self._respond, authentication, data)
        else:
            self._run_authentication(self._finish, authentication, data)

    async def _respond(self, authentication: ClientAuthentication, data: bytes | None) -> None:
        answer = await _awaited(authentication.respond(data))
        method = authentication.method
        self.core.authenticate(CONTINUE_AUTHENTICATION, method, answer, self.now())
        self._write()

    async def _finish(self, authentication: ClientAuthentication, data: bytes | None) -> None:
        await _awaited(authentication.finish(data))
        if self._reauthenticated is not None and not self._reauthenticated.done():
            self._reauthenticated.set_result(None)

    async def _verify(self, authentication: ClientAuthentication, packet: ConnAck) -> None:
        """Let the program verify the server after CONNACK."""
        await _awaited(authentication.finish(packet.properties.authentication_data))
        self._is_verifying = False
        self._write()
        self._report_events()

    async def _initial_data(self, authentication: ClientAuthentication) -> bytes | None:
        try:
            return await _awaited(authentication.begin())
        except Exception as problem:
            raise Disconnected(f"the authentication failed: {problem}", is_final=True) from problem

    def _run_authentication(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Run a step of the program's authentication; an exception ends the connection."""

        async def guarded() -> None:
            try:
                await work(*arguments)
            except Exception as problem:
                # [MQTT-4.12.1-2]
                self.core.disconnect_for_error(UNSPECIFIED_ERROR, self.now())
                self._is_verifying = False
                self._write()
                self._set_lost(Disconnected(f"the authentication failed: {problem}", is_final=True))

        task = self.loop.create_task(guarded(), name="semel-authentication")
        self._authenticating.add(task)
        task.add_done_callback(self._authenticating.discard)

    async def reauthenticate(self) -> None:
        """Re-authenticate on this connection, one task at a time [4.12.1]."""
        authentication = self.authentication
        if authentication is None:
            raise ValueError("the client was made without `authentication`")
        async with self._reauthenticating:
            await self.until(lambda: self.is_connected)
            done = self._reauthenticated = self.loop.create_future()
            lost = self._lost
            assert lost is not None
            data = await _awaited(authentication.begin())
            if not lost.done():
                method = authentication.method
                self.core.authenticate(RE_AUTHENTICATE, method, data, self.now())
                self._write()
                await asyncio.wait((done, lost), return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                raise lost.result()

    # --- PINGREQ ----------------------------------------------------------------------------------

    async def ping(self) -> None:
        """Send PINGREQ on this connection and wait for the answer. Raises if there is none."""
        lost = self._lost
        if lost is None or not self.is_connected:
            raise self.problem or Disconnected("there is no connection")
        answered: asyncio.Future[None] = self.loop.create_future()
        self._pings[self.core.ping(self.now())] = answered
        self.flush()
        await asyncio.wait((answered, lost), return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            raise lost.result()

    # --- close ------------------------------------------------------------------------------------

    def check_disconnect(
        self, reason: int, session_expiry: int | None, properties: Properties
    ) -> None:
        """Raise Violation if `close` would send a DISCONNECT that breaks a rule."""
        if self.is_connected:
            self.core.disconnect_packet(reason, session_expiry, properties)

    async def close(
        self,
        reason: int,
        session_expiry: int | None,
        *,
        at_once: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Commit, send acknowledgements and DISCONNECT, then close."""
        self.is_closing = True
        if at_once:
            await self._stop(at_once=True)
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                self.flush()
                with contextlib.suppress(Refused, Disconnected):
                    await self.until(lambda: self.core.is_committed)
                if self.is_connected:
                    # In 3.1.1 the server publishes the will if there is no DISCONNECT.
                    if self.core.version == MQTT5 or reason == NORMAL_DISCONNECTION:
                        self.core.disconnect(reason, session_expiry, self.now(), properties)
                        self._write()
                    assert self.transport is not None
                    self.transport.close()
                    assert self._lost is not None
                    await asyncio.wait((self._lost,))
        except TimeoutError:
            LOG.warning("%s: the connection did not close in time", self.address)
        except asyncio.CancelledError:
            at_once = True
            raise
        finally:
            await self._stop(at_once=at_once)

    async def _stop(self, *, at_once: bool) -> None:
        self._fail(Disconnected("the client is closed"))
        if self._expiry is not None:
            self._expiry.cancel()
        tasks = [*self._authenticating]
        if self._task is not None:
            tasks.append(self._task)
        for task in tasks:
            task.cancel()
        try:
            self._end_connection()
            if tasks:
                await asyncio.wait(tasks)
            if self._closing and not at_once:
                await asyncio.wait([listener.closed for listener in self._closing])
        finally:
            self._is_stopped = True
            for transport in tuple(self._closing.values()):
                transport.abort()
        if self._first_attempt.done() and not self._first_attempt.cancelled():
            # `start` has raised it; mark it as retrieved.
            self._first_attempt.exception()


async def _awaited(value: T | Awaitable[T]) -> T:
    return await value if inspect.isawaitable(value) else value

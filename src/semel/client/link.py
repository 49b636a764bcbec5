"""A Core on a network: one task connects, stays connected, and comes back.

                       ┌──────────── backoff ◀───────────┐
    store is safe ─▶ transport ─▶ CONNECT ─▶ CONNACK ─▶ greeted … lost ─▶ passing? ─▶ failed

Whatever happens to the core is followed by a `flush`, once for a chunk of bytes that came, once for
all that the program does in a turn of the loop. The owner is told what came of it.
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
from semel.client.core import Core
from semel.client.errors import Disconnected, Refused, problem_of
from semel.client.events import PublishOutcome, SubscriptionAnswer
from semel.client.opening import Opening, open_transport
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

# Expired messages are looked for no more often than this.
EXPIRY_SECONDS: Final = 0.01
# Bytes that the program may hand over in one turn of the loop before they are written.
TURN_BYTES: Final = 64 * 1024
# How long the store may take to write what is left when the client closes, and the transport.
CLOSE_SECONDS: Final = 10.0


class Owner(Protocol):
    """Who is told what happens."""

    def on_connected(self, packet: ConnAck) -> None:
        """The connection may be used."""

    def arrived(self, messages: list[Incoming]) -> None:
        """Messages have come, and are safe."""

    def on_published(self, outcomes: list[PublishOutcome]) -> None:
        """Publications are complete, or will not be."""

    def stored(self, numbers: list[int]) -> None:
        """Publications are on disk."""

    def answered(self, answers: list[SubscriptionAnswer]) -> None:
        """SUBSCRIBE and UNSUBSCRIBE are answered."""

    def on_disconnected(self, problem: Exception) -> None:
        """The connection is gone; another will be tried, unless the owner gives up."""

    def failed(self, problem: Exception) -> None:
        """There will be no other connection."""


class LinkListener:
    """Hears one transport, for as long as it is the link's."""

    def __init__(self, link: "BrokerLink") -> None:
        self.link = link
        self.is_current = True
        self.gone: asyncio.Future[None] = link.loop.create_future()

    def received(self, data: bytes) -> None:
        """Bytes of MQTT."""
        if self.is_current:
            self.link.received(data)

    def writable(self, writable: bool) -> None:
        """Whether the server reads fast enough."""
        if self.is_current:
            self.link.writable(writable)

    def lost(self, why: str | None) -> None:
        """The network connection is gone."""
        if not self.gone.done():
            self.gone.set_result(None)
        if self.is_current:
            self.link.lost(why)


class BrokerLink:
    """Keeps one Core connected, until it is closed."""

    def __init__(
        self,
        core: Core,
        address: Address,
        owner: Owner,
        *,
        tls: ssl.SSLContext | None,
        timeout: float,
        backoff: Backoff | None,
        clean_start: bool | None,
        purge: Callable[[str], Awaitable[None]],
        store: DiskStore | None = None,
        authentication: ClientAuthentication | None = None,
        opening: Opening = open_transport,
    ) -> None:
        """`purge` ends the session that a 3.1.1 server has of a client with this identifier."""
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
        self.opening = opening
        self.loop = asyncio.get_running_loop()
        self.transport: Transport | None = None
        self.is_writable = False
        # Why reading has to wait: the program has too much to read already; the store is behind.
        self.is_held = False
        self.reconnects = 0
        self.problem: Exception | None = None
        self.closing = False
        self._offset = time.time() - self.loop.time()
        self._handed_over = 0
        self._is_scheduled = False
        # Nothing can be stored any more, or is to be.
        self._is_over = False
        self._expiry: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._first: asyncio.Future[None] = self.loop.create_future()
        self._connack_received: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[Exception] | None = None
        # In the order in which they came.
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._listener: LinkListener | None = None
        # Connections that have been told why they end, and are closing.
        self._closing: dict[LinkListener, Transport] = {}
        # What the program's Authentication is at; nothing leaves until it trusts the server.
        self._authenticating: set[asyncio.Task[None]] = set()
        self._is_verifying = False
        self._reauthenticating = asyncio.Lock()
        self._reauthenticated: asyncio.Future[None] | None = None
        # Who waits for a PINGRESP, by the number of the PINGREQ on this connection.
        self._pings: dict[int, asyncio.Future[None]] = {}
        core.touched = self.schedule
        if store is not None:
            store.connect(
                self.loop, safe=self._safe, changed=self._changed, failed=self._store_failed
            )

    def now(self) -> float:
        """Seconds of a clock that agreed with the wall clock at the start, and is never set."""
        return self.loop.time() + self._offset

    # --- for the owner ----------------------------------------------------------------------------

    async def start(self, *, offline: bool) -> None:
        """Connect. With `offline`, a server that cannot be reached now is tried again later."""
        self._task = self.loop.create_task(self._run(offline), name="semel-client")
        await asyncio.shield(self._first)

    @property
    def is_connected(self) -> bool:
        """Whether the server has accepted the connection, and it is not over."""
        return self.transport is not None and self.core.is_connected and not self._is_verifying

    async def until(self, is_met: Callable[[], bool]) -> None:
        """Wait until something is so, or there will be no other connection."""
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
        """Something was done: flush when this turn of the loop ends."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self.flush)

    def handed_over(self, size: int) -> bool:
        """Some bytes are to be written. Whether it is time to let the loop have its turn."""
        self._handed_over += size
        if self._handed_over >= TURN_BYTES:
            self.flush()
            return True
        self.schedule()
        return False

    def watch_expiry(self) -> None:
        """Publications that wait may expire: be there when the first does."""
        due = self.core.session.backlog.next_expiry
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if due is not None and not self._is_over:
            delay = max(EXPIRY_SECONDS, due - self.now())
            self._expiry = self.loop.call_later(delay, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self.core.expire(self.now())
        self.flush()
        self.watch_expiry()

    def hold(self, held: bool) -> None:
        """Read no more, or again: the program cannot keep up, or can."""
        if held != self.is_held:
            self.is_held = held
            self._update_reading()

    def flush(self) -> None:
        """Let everything go where it belongs, and tell the owner."""
        core = self.core
        self._is_scheduled = False
        self._handed_over = 0
        if self._is_over or self._is_verifying:
            return
        try:
            core.flush(self.now(), time.time())
        except Unusable as problem:
            self._store_failed(str(problem))
            return
        if core.greeting is not None and self.authentication is not None:
            self._is_verifying = True
            self._spawn(self._verify, self.authentication, core.greeting)
            return
        self._write()
        self._tell()

    def _write(self) -> None:
        data = self.core.take_output()
        if data and self.transport is not None:
            self.transport.write(data)

    def _tell(self) -> None:
        core = self.core
        owner = self.owner
        if core.stored:
            stored, core.stored = core.stored, []
            owner.stored(stored)
        if core.outcomes:
            outcomes, core.outcomes = core.outcomes, []
            owner.on_published(outcomes)
            self._wake()
        if core.answers:
            answers, core.answers = core.answers, []
            owner.answered(answers)
        if core.greeting is not None:
            greeting, core.greeting = core.greeting, None
            self._greet(greeting)
        if core.arrived:
            arrived, core.arrived = core.arrived, []
            owner.arrived(arrived)
        if core.auths:
            auths, core.auths = core.auths, []
            for auth in auths:
                self._authenticate(auth)
        for number in [each for each in self._pings if each <= core.answered_pings]:
            ping = self._pings.pop(number)
            if not ping.done():
                ping.set_result(None)
        if core.ending is not None:
            self._part(problem_of(core.ending, core.version))

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
            # By us, or by somebody who cancels all there is: nobody may wait for ever.
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
                assert self._gone is not None
                if not self._first.done():
                    self._first.set_result(None)
                problem = await self._gone
            except (Refused, Disconnected, CannotConnect) as found:
                problem = found
            self._end_connection()
            if self.closing:
                return
            if isinstance(problem, CannotConnect):
                problem = Disconnected(str(problem))
            assert isinstance(problem, Refused | Disconnected)
            is_first = not self._first.done()
            if self.backoff is None or not problem.is_passing or (is_first and not offline):
                self._fail(problem)
                return
            if is_first:
                self._first.set_result(None)
            # A server that accepts, and goes at once, is no better than one that does not accept.
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
        """Make no other connection, for this reason: for an owner that is told of an end."""
        self._fail(problem)

    def _fail(self, problem: Exception) -> None:
        """There will be no other connection."""
        if self.problem is not None:
            return
        self.problem = problem
        self.owner.failed(problem)
        self._wake()
        if not self._first.done():
            self._first.set_exception(problem)

    async def _connect(self) -> None:
        """One attempt, up to the CONNACK that accepts. Raises why there is none."""
        core = self.core
        clean = not core.has_state if self.clean_start is None else self.clean_start
        if core.version != MQTT5:
            persistent = core.session_expiry > 0
            if clean and persistent:
                await self.purge(core.client_id)
                core.is_purged = True
            clean = not persistent
        await self._open(clean)
        # Only the first connection starts clean: the session of a second one is ours.
        self.clean_start = None

    async def _open(self, clean_start: bool) -> None:
        data = None
        if self.authentication is not None:
            data = await self._first_data(self.authentication)
        self._gone = self.loop.create_future()
        self._connack_received = self.loop.create_future()
        listener = self._listener = LinkListener(self)
        self.transport = await self.opening(
            self.address, listener, tls=self.tls, timeout=self.timeout
        )
        self.is_writable = True
        self.core.connect(clean_start, self.now(), data)
        self._write()
        self._update_reading()
        gone = self._gone
        try:
            async with asyncio.timeout(self.timeout):
                await asyncio.wait(
                    (self._connack_received, gone), return_when=asyncio.FIRST_COMPLETED
                )
        except TimeoutError:
            if not self.core.session.connected or self._is_verifying:
                raise Disconnected(
                    f"the server did not answer CONNECT within {self.timeout:.0f} s"
                ) from None
            # It has answered, and it is our store that takes its time.
            await asyncio.wait((self._connack_received, gone), return_when=asyncio.FIRST_COMPLETED)
        if not self._connack_received.done():
            raise gone.result()

    def _greet(self, packet: ConnAck) -> None:
        assert self._connack_received is not None
        if self._connack_received.done():
            return
        self._connack_received.set_result(None)
        self.owner.on_connected(packet)
        self._wake()
        self.flush()
        self._update_reading()
        self._sweep()

    def _part(self, problem: Exception) -> None:
        """The connection is over."""
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(problem)

    def _end_connection(self) -> None:
        """Nothing is left of a connection."""
        transport, self.transport = self.transport, None
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.is_current = False
        if transport is not None and listener is not None and not listener.gone.done():
            # Whoever broke a rule should be able to read which one, before the connection closes.
            transport.close()
            self._closing[listener] = transport
            listener.gone.add_done_callback(lambda _: self._closing.pop(listener, None))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._authenticating:
            task.cancel()
        self._is_verifying = False
        self._pings.clear()
        self.is_writable = False
        self.core.lost(self.now())
        self.core.session.room = BOUNDLESS
        # A commit may hold what this connection's last packets were about.
        self.flush()

    # --- what the transport says ------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Bytes of MQTT."""
        if self.core.ending is None:
            self.core.receive(data, self.now())
            self.flush()
            if not self._is_reading:
                # A store that falls behind by what it is given tells nobody.
                self._update_reading()

    def writable(self, writable: bool) -> None:
        """Whether the server reads fast enough."""
        self.is_writable = writable
        self.core.session.room = BOUNDLESS if writable else 0
        if writable:
            self._wake()
            self.schedule()

    def lost(self, why: str | None) -> None:
        """The network connection is gone."""
        self._part(Disconnected(why or "the server closed the connection"))

    def _update_reading(self) -> None:
        if self.transport is not None:
            if self._is_reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    @property
    def _is_reading(self) -> bool:
        if not self.core.session.connected:
            # Whoever paused here would not see the CONNACK.
            return True
        return not self.is_held and (self.store is None or self.store.condition == OPEN)

    def _sweep(self) -> None:
        """Keep the connection alive."""
        due = self.core.sweep(self.now(), is_reading=self._is_reading)
        self._write()
        self._tell()
        if due is not None:
            delay = max(0.0, due - self.now())
            self._timer = self.loop.call_later(delay, self._sweep)

    # --- what the store says ----------------------------------------------------------------------

    def _safe(self, commits: list[Commit]) -> None:
        if self._is_over:
            return
        self.core.committed(len(commits), self.now())
        self.flush()
        if self.core.is_safe:
            self._wake()

    def _changed(self) -> None:
        self._update_reading()
        self._wake()

    def _store_failed(self, why: str) -> None:
        self._is_over = True
        self._fail(Disconnected(f"the store cannot be used any more: {why}"))
        if self._task is not None:
            self._task.cancel()
        self._end_connection()

    # --- authentication ---------------------------------------------------------------------------

    def _authenticate(self, packet: Auth) -> None:
        authentication = self.authentication
        # An Exchange lets no AUTH pass that was not agreed on.
        assert authentication is not None
        data = packet.properties.authentication_data
        if packet.reason == CONTINUE_AUTHENTICATION:
            self._spawn(self._respond, authentication, data)
        else:
            self._spawn(self._finish, authentication, data)

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
        """The server has accepted the client: does the client accept the server?"""
        await _awaited(authentication.finish(packet.properties.authentication_data))
        self._is_verifying = False
        self._write()
        self._tell()

    async def _first_data(self, authentication: ClientAuthentication) -> bytes | None:
        try:
            return await _awaited(authentication.begin())
        except Exception as problem:
            raise Disconnected(f"the authentication failed: {problem}", is_final=True) from problem

    def _spawn(self, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Do what the program's Authentication does; what it raises ends the connection."""

        async def guarded() -> None:
            try:
                await work(*arguments)
            except Exception as problem:
                # [MQTT-4.12.1-2]
                self.core.disconnect(UNSPECIFIED_ERROR, None, self.now())
                self._is_verifying = False
                self._write()
                self._part(Disconnected(f"the authentication failed: {problem}", is_final=True))

        task = self.loop.create_task(guarded(), name="semel-authentication")
        self._authenticating.add(task)
        task.add_done_callback(self._authenticating.discard)

    async def reauthenticate(self) -> None:
        """[4.12.1] Authenticate anew on this connection; one at a time."""
        authentication = self.authentication
        if authentication is None:
            raise ValueError("the client was made without `authentication`")
        async with self._reauthenticating:
            await self.until(lambda: self.is_connected)
            done = self._reauthenticated = self.loop.create_future()
            gone = self._gone
            assert gone is not None
            data = await _awaited(authentication.begin())
            if not gone.done():
                method = authentication.method
                self.core.authenticate(RE_AUTHENTICATE, method, data, self.now())
                self._write()
                await asyncio.wait((done, gone), return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                raise gone.result()

    # --- PINGREQ ----------------------------------------------------------------------------------

    async def ping(self) -> None:
        """Send PINGREQ on this connection and wait for the answer. Raises why there is none."""
        gone = self._gone
        if gone is None or not self.is_connected:
            raise self.problem or Disconnected("there is no connection")
        answered: asyncio.Future[None] = self.loop.create_future()
        self._pings[self.core.ping(self.now())] = answered
        self.flush()
        await asyncio.wait((answered, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            raise gone.result()

    # --- the end ----------------------------------------------------------------------------------

    async def close(
        self,
        reason: int,
        session_expiry: int | None,
        *,
        at_once: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Leave in order: what is acknowledged is stored and said, then DISCONNECT."""
        self.closing = True
        if at_once:
            await self._stop(at_once=True)
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                self.flush()
                with contextlib.suppress(Refused, Disconnected):
                    await self.until(lambda: self.core.is_safe)
                if self.is_connected:
                    # In 3.1.1 it is by leaving without a word that a client leaves its will.
                    if self.core.version == MQTT5 or reason == NORMAL_DISCONNECTION:
                        self.core.disconnect(reason, session_expiry, self.now(), properties)
                        self._write()
                    assert self.transport is not None
                    self.transport.close()
                    assert self._gone is not None
                    await asyncio.wait((self._gone,))
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
                await asyncio.wait([listener.gone for listener in self._closing])
        finally:
            self._is_over = True
            for transport in tuple(self._closing.values()):
                transport.abort()
        if self._first.done() and not self._first.cancelled():
            # Whoever started it has been told.
            self._first.exception()


async def _awaited(value: T | Awaitable[T]) -> T:
    return await value if inspect.isawaitable(value) else value

"""A broker for tests: the real broker, in this process, behind a proxy that injects faults.

    with TestBroker() as broker:
        ...                          the program under test connects to broker.port,
        broker.cut("worker")         has to recover from faults,
        broker.assert_clean()        and must not break the standard

Broker and proxy run in an event loop in their own thread, so that programs may be threads,
processes, or coroutines of the test's loop. Every method is thread-safe. Methods that begin with
`wait_for` block; in a coroutine, await their variants that end with `_async` instead.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from semel import counts
from semel.broker.authority import Authority
from semel.broker.network.listener_settings import TCP
from semel.broker.settings import BrokerSettings
from semel.lab.append_log import TIMEOUT_SECONDS, AppendLog, await_future, wait_blocking
from semel.lab.embedded_broker import (
    POLL_SECONDS,
    EmbeddedBroker,
    SessionSnapshot,
    Users,
    check_setting_names,
)
from semel.lab.faults import (
    CLOSED,
    CUT_AFTER,
    CUT_BEFORE,
    DELAY,
    DROP,
    REFUSE,
    REPEAT,
    STALL,
    Fault,
    Faults,
)
from semel.lab.proxy import HOST, Proxy
from semel.lab.proxy_front import ProxyFront, check_transport
from semel.lab.recording import (
    Kind,
    RecordedPacket,
    Recording,
    format_packets,
    packet_filter,
    packet_type,
    side,
)
from semel.mqtt import NO_PROPERTIES, PACKET_NAMES, Message, Properties, topic_matches
from semel.mqtt.packet_types import CONNACK, CONNECT
from semel.mqtt.reasons import (
    ADMINISTRATIVE_ACTION,
    BAD_USER_NAME_OR_PASSWORD,
    REASONS_5,
    SUCCESS,
)
from semel.mqtt.topics import check_topic_filter, quoted

T = TypeVar("T")

# How long the broker may take for a command, in seconds.
COMMAND_SECONDS: Final = 30.0
# Rounds of the event loop without activity after which nothing is considered to be in transit.
QUIET_ROUNDS: Final = 10
# The maximum number of rounds to wait: a program may never be quiet.
MOST_ROUNDS: Final = 2_000
# How many packets the report of a failed test shows.
SHOWN_PACKETS: Final = 50


@dataclass(frozen=True)
class Published:
    """A message that the broker received from a program, or a will that it published."""

    number: int
    at: float
    topic_name: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties


class TestBroker:
    """The broker and its proxy. Keyword arguments are settings of [broker].

    `users` maps user names to passwords; without it any client may connect. `authority` permits
    finer control. `store`: whether sessions and messages survive a restart. `port` is the port of
    the proxy; 0: any free port. `transport` is tcp, tls, ws, wss or unix.
    """

    # pytest must not collect it as a test.
    __test__ = False

    def __init__(
        self,
        *,
        users: Mapping[str, str | bytes] | None = None,
        authority: Authority | None = None,
        store: bool = True,
        port: int = 0,
        transport: str = TCP,
        **settings: Any,
    ) -> None:
        if users is not None and authority is not None:
            raise TypeError(
                "users and authority both decide who may connect: give only one of them"
            )
        check_setting_names(settings)
        check_transport(transport)
        self.settings = BrokerSettings(host=HOST, port=0, **settings)
        self._authority = Users(users) if users is not None else authority or Authority()
        self._store = store
        self._transport = transport
        # None: plain TCP.
        self._front: ProxyFront | None = None
        self._requested_port = port
        self._port = 0
        self._recording = Recording()
        self._messages: AppendLog[Published] = AppendLog()
        self._faults = Faults()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_requested: asyncio.Event | None = None
        self._embedded: EmbeddedBroker | None = None
        self._proxy: Proxy | None = None
        self._switch_interval: float | None = None

    # --- start and stop ---------------------------------------------------------------------------

    def __enter__(self) -> "TestBroker":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, *, forget: bool = False) -> None:
        """Start the broker, initially or after `stop`; it accepts connections when this returns.

        `forget`: with an empty store, without sessions and retained messages.
        """
        if self._thread is not None:
            self._run(self._start(forget=forget))
            return
        # The store changes it for the whole process; `close` restores it.
        self._switch_interval = sys.getswitchinterval()
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run_thread, args=(ready,), name="semel-test-broker", daemon=True
        )
        self._thread.start()
        try:
            ready.result(COMMAND_SECONDS)
        except BaseException:
            self.close()
            raise

    def _run_thread(self, ready: "Future[None]") -> None:
        """The main function of the thread."""
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(self._serve(ready))

    async def _serve(self, ready: "Future[None]") -> None:
        self._loop = asyncio.get_running_loop()
        self._stop_requested = asyncio.Event()
        try:
            self._embedded = EmbeddedBroker(
                self.settings,
                authority=self._authority,
                store=self._store,
                on_message=self._record_message,
            )
            if self._transport != TCP:
                self._front = ProxyFront(self._transport, self.settings)
            try:
                self._proxy = Proxy(
                    self._recording, self._faults, front=self._front, port=self._requested_port
                )
            except OSError as problem:
                sentence = (
                    f"cannot use port {self._requested_port}: {problem.strerror}; "
                    "port 0 selects a free one"
                )
                raise OSError(problem.errno, sentence) from None
            self._port = self._proxy.port
            await self._start(forget=False)
        except BaseException as problem:
            await self._shut_down()
            ready.set_exception(problem)
            return
        ready.set_result(None)
        await self._stop_requested.wait()
        await self._shut_down()

    async def _shut_down(self) -> None:
        if self._proxy is not None:
            await self._proxy.close()
        if self._embedded is not None:
            await self._embedded.stop()
            self._embedded.clean_up()
        if self._front is not None:
            self._front.clean_up()

    def close(self) -> None:
        """End broker, proxy and thread, and delete the store. It cannot be started again.

        The recorded packets and messages remain available.
        """
        thread, loop, stop_requested = self._thread, self._loop, self._stop_requested
        if thread is None or self._switch_interval is None:
            return
        if loop is not None and stop_requested is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop_requested.set)
        thread.join(COMMAND_SECONDS)
        if thread.is_alive():
            raise RuntimeError(f"the broker did not end within {COMMAND_SECONDS:g} s")
        sys.setswitchinterval(self._switch_interval)
        self._switch_interval = None

    def stop(self, *, kill: bool = False) -> None:
        """Stop the broker: 5.0 clients get DISCONNECT, and new connections are refused.

        `kill`: abruptly, as if its process had died.
        """
        self._run(self._stop(kill=kill))

    def restart(self, *, forget: bool = False, kill: bool = False) -> None:
        """`stop` and `start`. Sessions, queued and retained messages survive, except with `forget`
        or without a store."""
        self._run(self._restart(forget=forget, kill=kill))

    async def _start(self, *, forget: bool) -> None:
        assert self._embedded is not None
        assert self._proxy is not None
        if self._embedded.server is None:
            address = await self._embedded.start(forget=forget)
            await self._proxy.open(address)

    async def _stop(self, *, kill: bool) -> None:
        assert self._embedded is not None
        assert self._proxy is not None
        self._proxy.detach()
        if kill:
            await self._embedded.kill()
        else:
            await self._embedded.stop()

    async def _restart(self, *, forget: bool, kill: bool) -> None:
        await self._stop(kill=kill)
        await self._start(forget=forget)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the broker's event loop, and return its result."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive() or loop.is_closed():
            work.close()
            raise RuntimeError("the broker is not running: it was not started, or was closed")
        return asyncio.run_coroutine_threadsafe(work, loop).result(COMMAND_SECONDS)

    def _is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _broker_and_proxy(self) -> tuple[EmbeddedBroker, Proxy]:
        assert self._embedded is not None
        assert self._proxy is not None
        return self._embedded, self._proxy

    # --- address ----------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The address to connect to."""
        return HOST

    @property
    def port(self) -> int:
        """The port to connect to; it never changes."""
        return self._port

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self.host, self.port

    @property
    def url(self) -> str:
        """The address as a URL."""
        if self._front is None:
            return f"mqtt://{self.host}:{self.port}"
        return self._front.url(self.host, self.port)

    @property
    def cafile(self) -> Path | None:
        """The CA certificate with which programs verify the broker; None without TLS."""
        return None if self._front is None else self._front.cafile

    # --- network faults ---------------------------------------------------------------------------

    def cut(self, client_id: str | None = None) -> int:
        """Cut the connection of one client now, or all, and return how many were cut.

        Raises LookupError if there is no such client.
        """

        async def work() -> int:
            await self._drain_sockets()
            _, proxy = self._broker_and_proxy()
            links = proxy.links_of(client_id)
            if client_id is not None and not links:
                names = ", ".join(quoted(link.trace.client_id) for link in proxy.links_of(None))
                raise LookupError(
                    f"no client {quoted(client_id)} is connected; connected: {names or 'none'}"
                )
            for link in links:
                link.cut()
            return len(links)

        return self._run(work())

    def cut_before(
        self, kind: Kind, *, sender: str | None = None, client_id: str | None = None
    ) -> Fault:
        """Cut the connection at the next packet of this kind, which does not arrive."""
        return self._fault(CUT_BEFORE, kind, sender, client_id, count=1)

    def cut_after(
        self, kind: Kind, *, sender: str | None = None, client_id: str | None = None
    ) -> Fault:
        """Cut the connection right after the next packet of this kind has arrived."""
        return self._fault(CUT_AFTER, kind, sender, client_id, count=1)

    def drop(
        self,
        kind: Kind,
        *,
        sender: str | None = None,
        client_id: str | None = None,
        count: int | None = 1,
    ) -> Fault:
        """Drop the next packets of this kind. `count=None`: all, until the fault is ended."""
        return self._fault(DROP, kind, sender, client_id, count=count)

    def repeat(
        self,
        kind: Kind,
        *,
        sender: str | None = None,
        client_id: str | None = None,
        count: int | None = 1,
    ) -> Fault:
        """Deliver the next packets of this kind twice."""
        return self._fault(REPEAT, kind, sender, client_id, count=count)

    def delay(
        self,
        seconds: float,
        kind: Kind = None,
        *,
        sender: str | None = None,
        client_id: str | None = None,
        count: int | None = None,
    ) -> Fault:
        """Delay packets, and everything behind them in the same direction."""
        return self._fault(DELAY, kind, sender, client_id, count=count, seconds=seconds)

    def stall(self, sender: str, *, client_id: str | None = None) -> Fault:
        """Stop reading from the clients, or from the broker, until the fault is ended."""
        return self._fault(STALL, None, sender, client_id)

    def refuse_connections(self) -> Fault:
        """Refuse new connections, as if no process listened on the port; existing ones remain."""
        return self._fault(CLOSED, None, None, None)

    def refuse(
        self,
        reason: int = BAD_USER_NAME_OR_PASSWORD,
        *,
        client_id: str | None = None,
        count: int | None = 1,
    ) -> Fault:
        """Refuse the next CONNECT with this 5.0 reason code, mapped to a code of 3.1.1."""
        if reason == SUCCESS or reason not in REASONS_5[CONNACK]:
            raise ValueError(f"0x{reason:02x} is not a reason code that refuses a connection")
        return self._fault(
            REFUSE, PACKET_NAMES[CONNECT], "client", client_id, count=count, reason=reason
        )

    def heal(self) -> None:
        """End all faults."""

        async def work() -> None:
            _, proxy = self._broker_and_proxy()
            for fault in list(proxy.faults.active):
                await proxy.remove(fault)

        self._run(work())

    def _fault(
        self,
        action: str,
        kind: Kind,
        sender: str | None,
        client_id: str | None,
        *,
        count: int | None = None,
        seconds: float = 0.0,
        reason: int = 0,
    ) -> Fault:
        fault = Fault(
            action,
            kind=packet_type(kind),
            sender=side(sender),
            client_id=client_id,
            count=count,
            seconds=seconds,
            reason=reason,
            end=self._end_fault,
        )

        async def work() -> None:
            await self._drain_sockets()
            self._broker_and_proxy()[1].add(fault)

        self._run(work())
        return fault

    def _end_fault(self, fault: Fault) -> None:
        # Closing the broker has ended all faults.
        if self._is_running():
            self._run(self._broker_and_proxy()[1].remove(fault))

    # --- actions of the broker --------------------------------------------------------------------

    def expire_session(self, client_id: str) -> None:
        """End a session as if it had expired; a connected client is cut first.

        Raises LookupError if there is no such session.
        """

        async def work() -> None:
            await self._drain_sockets()
            embedded, proxy = self._broker_and_proxy()

            def cut() -> None:
                for link in proxy.links_of(client_id):
                    link.cut()

            await embedded.expire(client_id, cut)

        self._run(work())

    def take_over(self, client_id: str, *, clean_start: bool = False) -> None:
        """Take over the session of a connected client with a second connection, and disconnect it.

        The broker closes the client's connection, in 5.0 with DISCONNECT 0x8E. The session
        survives unless `clean_start`. Raises LookupError.
        """

        async def work() -> None:
            await self._drain_sockets()
            await self._broker_and_proxy()[0].take_over(client_id, clean_start=clean_start)

        self._run(work())

    def disconnect(self, client_id: str, reason: int = ADMINISTRATIVE_ACTION) -> None:
        """Have the broker close a connection, in 5.0 with DISCONNECT and this reason code.

        Raises LookupError.
        """

        async def work() -> None:
            await self._drain_sockets()
            self._broker_and_proxy()[0].disconnect(client_id, reason)

        self._run(work())

    # --- messages ---------------------------------------------------------------------------------

    def publish(
        self,
        topic_name: str,
        payload: bytes | str = b"",
        qos: int = 0,
        *,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Publish a message. At QoS 1 and 2 the broker has acknowledged it when this returns."""
        data = payload.encode() if isinstance(payload, str) else bytes(payload)

        async def work() -> None:
            await self._drain_sockets()
            embedded, _ = self._broker_and_proxy()
            await embedded.publish(topic_name, data, qos, retain=retain, properties=properties)

        self._run(work())

    def _record_message(self, message: Message) -> None:
        self._messages.add(
            lambda number: Published(
                number,
                self._recording.now(),
                message.topic_name,
                message.payload,
                message.qos,
                message.retain,
                message.properties,
            ),
            message.size,
        )

    def messages(self, topic_filter: str = "#") -> list[Published]:
        """The messages that programs have published, wills included."""
        check_topic_filter(topic_filter, None)
        self._wait_for_sockets()
        messages = self._messages.items()
        return [one for one in messages if topic_matches(topic_filter, one.topic_name)]

    def wait_for_message(
        self,
        topic_filter: str = "#",
        *,
        count: int = 1,
        after: Published | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Published:
        """Wait until `count` messages (after `after`, if given) have been published, and return the
        last of them. Raises TimeoutError."""
        future = self._watch_messages(topic_filter, count, after)
        describe_timeout = self._missing_message(topic_filter, count)
        return wait_blocking(future, timeout, describe_timeout, "wait_for_message_async")

    async def wait_for_message_async(
        self,
        topic_filter: str = "#",
        *,
        count: int = 1,
        after: Published | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Published:
        """Like its blocking variant, for a coroutine."""
        future = self._watch_messages(topic_filter, count, after)
        return await await_future(future, timeout, self._missing_message(topic_filter, count))

    def _watch_messages(
        self, topic_filter: str, count: int, after: Published | None
    ) -> "Future[Published]":
        check_topic_filter(topic_filter, None)
        return self._messages.watch(
            lambda one: topic_matches(topic_filter, one.topic_name),
            first=0 if after is None else after.number + 1,
            count=count,
        )

    def _missing_message(self, topic_filter: str, count: int) -> Callable[[], str]:
        def words() -> str:
            topics = [quoted(one.topic_name) for one in self._messages.items()[-SHOWN_PACKETS:]]
            published = f"published: {', '.join(topics)}" if topics else "nothing was published"
            expected = f"{counts.count(count, 'message')} to {quoted(topic_filter)}"
            return f"{expected} did not arrive; {published}"

        return words

    # --- sessions ---------------------------------------------------------------------------------

    def sessions(self) -> list[SessionSnapshot]:
        """All sessions of the broker, connected or not."""

        async def work() -> list[SessionSnapshot]:
            await self._drain_sockets()
            return self._broker_and_proxy()[0].sessions()

        return self._run(work())

    def session(self, client_id: str) -> SessionSnapshot | None:
        """The session of a client, if there is one."""
        return next((one for one in self.sessions() if one.client_id == client_id), None)

    def clients(self) -> list[str]:
        """The client identifiers of the connected clients."""
        return [one.client_id for one in self.sessions() if one.is_connected]

    def subscriptions(self) -> list[tuple[str, str]]:
        """All subscriptions: client identifier and topic filter."""
        return [
            (one.client_id, topic_filter)
            for one in self.sessions()
            for topic_filter in one.topic_filters
        ]

    # --- packets ----------------------------------------------------------------------------------

    def packets(
        self,
        kind: Kind | Callable[[RecordedPacket], bool] = None,
        *,
        sender: str | None = None,
        client_id: str | None = None,
        after: RecordedPacket | None = None,
    ) -> list[RecordedPacket]:
        """The recorded packets: all, or by kind, sender and client, after one packet."""
        matches = packet_filter(kind, sender, client_id)
        self._wait_for_sockets()
        first = 0 if after is None else after.number + 1
        return [one for one in self._recording.packets.items(first) if matches(one)]

    def wait_for(
        self,
        kind: Kind | Callable[[RecordedPacket], bool],
        *,
        sender: str | None = None,
        client_id: str | None = None,
        count: int = 1,
        after: RecordedPacket | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> RecordedPacket:
        """Wait until `count` such packets (after `after`, if given) are recorded, and return the
        last of them. Raises TimeoutError."""
        matches = packet_filter(kind, sender, client_id)
        first = 0 if after is None else after.number + 1
        future = self._recording.packets.watch(matches, first=first, count=count)
        return wait_blocking(future, timeout, self._missing_packet(kind, count), "wait_for_async")

    async def wait_for_async(
        self,
        kind: Kind | Callable[[RecordedPacket], bool],
        *,
        sender: str | None = None,
        client_id: str | None = None,
        count: int = 1,
        after: RecordedPacket | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> RecordedPacket:
        """Like its blocking variant, for a coroutine."""
        matches = packet_filter(kind, sender, client_id)
        first = 0 if after is None else after.number + 1
        future = self._recording.packets.watch(matches, first=first, count=count)
        return await await_future(future, timeout, self._missing_packet(kind, count))

    def _missing_packet(self, kind: object, count: int) -> Callable[[], str]:
        name = kind if isinstance(kind, str) else getattr(kind, "__name__", repr(kind))
        expected = counts.count(count, f"{name} packet")
        return lambda: f"{expected} did not arrive; recorded:\n{self.transcript()}"

    def transcript(self, most: int = SHOWN_PACKETS) -> str:
        """The last packets, one per line, without payloads and passwords."""
        return format_packets(self._recording.packets.items(), most) or "no packets"

    def assert_clean(self, client_id: str | None = None, *, ignore: Collection[str] = ()) -> None:
        """Fail with all violations if a client broke the standard.

        `ignore` lists names of rules to disregard, such as those that a library breaks.
        """
        __tracebackhide__ = True
        if isinstance(ignore, str):
            ignore = (ignore,)
        self._wait_for_sockets()
        report = self._recording.report(client_id, ignore)
        if report is not None:
            raise AssertionError(report)

    # --- data in transit --------------------------------------------------------------------------

    def _wait_for_sockets(self) -> None:
        if self._is_running():
            self._run(self._drain_sockets())

    async def _drain_sockets(self) -> None:
        """Process everything that the programs have sent so far.

        On the loopback interface, what a program has written is immediately readable here: proxy
        and broker only have to read it.
        """
        embedded, proxy = self._broker_and_proxy()
        quiet_rounds = 0
        received = -1
        for _ in range(MOST_ROUNDS):
            is_writing = embedded.is_writing()
            await asyncio.sleep(POLL_SECONDS if is_writing else 0)
            is_connecting = any(link.connecting for link in proxy.links.values())
            is_active = is_writing or is_connecting or proxy.received != received
            quiet_rounds = 0 if is_active else quiet_rounds + 1
            received = proxy.received
            if quiet_rounds == QUIET_ROUNDS:
                return

"""A broker for tests: the real one, in this process, behind a proxy that can fail on demand.

    with TestBroker() as broker:
        ...                          the program under test connects to broker.port
        broker.cut("worker")         and has to live with what happens to it,
        broker.assert_clean()        without breaking the standard

Broker and proxy live in one event loop in a thread of their own, so that programs may be threads,
processes, or coroutines of the test's loop. Every method may be called from any thread. Those whose
names begin with `wait_for` block; in a coroutine, where the program may be in the same loop, their
namesakes that end with `_async` are awaited instead.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Final, TypeVar

from semel import counts
from semel.broker.authority import Authority
from semel.broker.settings import BrokerSettings
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
from semel.lab.growing import TIMEOUT_SECONDS, Growing, block, follow
from semel.lab.hosting import POLL_SECONDS, Hosted, SessionFacts, Users
from semel.lab.proxy import HOST, Proxy
from semel.lab.recording import Kind, Recorded, Recording, listed, packet_type, side
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

# How long the broker may take to do what it is told, in seconds.
COMMAND_SECONDS: Final = 30.0
# Rounds of the loop in which nothing moves, before nothing is taken to be on its way.
QUIET_ROUNDS: Final = 10
# Rounds that are waited for at the most: a program may never be quiet.
MOST_ROUNDS: Final = 2_000
# Packets that a report about a failed test shows.
SHOWN_PACKETS: Final = 50


@dataclass(frozen=True)
class Published:
    """A message that the broker took from a program, or a will that it published."""

    number: int
    at: float
    topic_name: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties


class TestBroker:
    """The broker and its proxy. Settings are those of [broker], by their names.

    `users` are names with passwords; without them everybody may connect. `authority` is for more
    than that. `store`: whether a restart may remember anything. `port` is the proxy's; 0: a free
    one.
    """

    # It is no test, whatever its name begins with.
    __test__ = False

    def __init__(
        self,
        *,
        users: Mapping[str, str | bytes] | None = None,
        authority: Authority | None = None,
        store: bool = True,
        port: int = 0,
        **settings: Any,
    ) -> None:
        if users is not None and authority is not None:
            raise TypeError("users and authority both say who may connect: give one of them")
        _check_names(settings)
        self.settings = BrokerSettings(host=HOST, port=0, **settings)
        self._authority = Users(users) if users is not None else authority or Authority()
        self._store = store
        self._wanted_port = port
        self._port = 0
        self._recording = Recording()
        self._messages: Growing[Published] = Growing()
        self._faults = Faults()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._hosted: Hosted | None = None
        self._proxy: Proxy | None = None
        self._switch_interval = 0.0

    # --- its life ---------------------------------------------------------------------------------

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
        """Start, for the first time or after `stop`; it takes connections when this returns.

        `forget`: as a broker that has never run, without sessions and retained messages.
        """
        if self._thread is not None:
            self._run(self._start(forget=forget))
            return
        # A store sets it for the whole process.
        self._switch_interval = sys.getswitchinterval()
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._live, args=(ready,), name="semel-test-broker", daemon=True
        )
        self._thread.start()
        try:
            ready.result(COMMAND_SECONDS)
        except BaseException:
            self.close()
            raise

    def _live(self, ready: "Future[None]") -> None:
        """The thread's work."""
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(self._main(ready))

    async def _main(self, ready: "Future[None]") -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        try:
            self._hosted = Hosted(
                self.settings,
                authority=self._authority,
                store=self._store,
                on_message=self._received,
            )
            try:
                self._proxy = Proxy(self._recording, self._faults, port=self._wanted_port)
            except OSError as problem:
                words = (
                    f"port {self._wanted_port} cannot be had: {problem.strerror}; 0 is a free one"
                )
                raise OSError(problem.errno, words) from None
            self._port = self._proxy.port
            await self._start(forget=False)
        except BaseException as problem:
            await self._end()
            ready.set_exception(problem)
            return
        ready.set_result(None)
        await self._ending.wait()
        await self._end()

    async def _end(self) -> None:
        if self._proxy is not None:
            await self._proxy.close()
        if self._hosted is not None:
            await self._hosted.stop()
            self._hosted.clean_up()

    def close(self) -> None:
        """End all of it: broker, proxy, thread, and the folder of the store. What was recorded
        stays. Once closed, it stays so."""
        thread, loop, ending = self._thread, self._loop, self._ending
        if thread is None or not thread.is_alive():
            return
        if loop is not None and ending is not None and not loop.is_closed():
            loop.call_soon_threadsafe(ending.set)
        thread.join(COMMAND_SECONDS)
        if thread.is_alive():
            raise RuntimeError(f"the broker has not ended within {COMMAND_SECONDS:g} seconds")
        sys.setswitchinterval(self._switch_interval)

    def stop(self, *, kill: bool = False) -> None:
        """Stop the broker: clients are told (in 5.0), and new connections are refused. `kill`:
        without a word, as if its process had died."""
        self._run(self._stop(kill=kill))

    def restart(self, *, forget: bool = False, kill: bool = False) -> None:
        """`stop` and `start`. Sessions, queued and retained messages are what they were, unless
        it shall `forget` them, or never had a store."""
        self._run(self._restart(forget=forget, kill=kill))

    async def _start(self, *, forget: bool) -> None:
        assert self._hosted is not None
        assert self._proxy is not None
        if self._hosted.server is None:
            address = await self._hosted.start(forget=forget)
            await self._proxy.open(address)

    async def _stop(self, *, kill: bool) -> None:
        assert self._hosted is not None
        assert self._proxy is not None
        self._proxy.shut()
        if kill:
            await self._hosted.kill()
        else:
            await self._hosted.stop()

    async def _restart(self, *, forget: bool, kill: bool) -> None:
        await self._stop(kill=kill)
        await self._start(forget=forget)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done in the loop of the broker."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or not thread.is_alive() or loop.is_closed():
            work.close()
            raise RuntimeError("the broker is not running: it was not started, or is closed")
        return asyncio.run_coroutine_threadsafe(work, loop).result(COMMAND_SECONDS)

    def _is_live(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _parts(self) -> tuple[Hosted, Proxy]:
        assert self._hosted is not None
        assert self._proxy is not None
        return self._hosted, self._proxy

    # --- where it is ------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The address to connect to."""
        return HOST

    @property
    def port(self) -> int:
        """The port to connect to; the same from the start to the end."""
        return self._port

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self.host, self.port

    @property
    def url(self) -> str:
        """Where it is, in one word."""
        return f"mqtt://{self.host}:{self.port}"

    # --- faults on the way ------------------------------------------------------------------------

    def cut(self, client_id: str | None = None) -> int:
        """Cut the connection of one client now, or all. How many there were.

        Raises LookupError if there is no such client.
        """

        async def work() -> int:
            await self._drain_sockets()
            _, proxy = self._parts()
            links = proxy.of(client_id)
            if client_id is not None and not links:
                names = ", ".join(quoted(link.trace.client_id) for link in proxy.of(None))
                raise LookupError(
                    f"no client {quoted(client_id)} is connected; "
                    + (f"connected are {names}" if names else "nobody is")
                )
            for link in links:
                link.cut()
            return len(links)

        return self._run(work())

    def cut_before(
        self, kind: Kind, *, sender: str | None = None, client_id: str | None = None
    ) -> Fault:
        """Cut the connection when the next packet of this kind is sent, which never arrives."""
        return self._fault(CUT_BEFORE, kind, sender, client_id, count=1)

    def cut_after(
        self, kind: Kind, *, sender: str | None = None, client_id: str | None = None
    ) -> Fault:
        """Cut the connection when the next packet of this kind has arrived; nothing after it does,
        from either side."""
        return self._fault(CUT_AFTER, kind, sender, client_id, count=1)

    def drop(
        self,
        kind: Kind,
        *,
        sender: str | None = None,
        client_id: str | None = None,
        count: int | None = 1,
    ) -> Fault:
        """Let the next packets of this kind not arrive. `count=None`: all, until it is ended."""
        return self._fault(DROP, kind, sender, client_id, count=count)

    def repeat(
        self,
        kind: Kind,
        *,
        sender: str | None = None,
        client_id: str | None = None,
        count: int | None = 1,
    ) -> Fault:
        """Let the next packets of this kind arrive twice."""
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
        """Let packets arrive later; what is behind them in the same direction waits too."""
        return self._fault(DELAY, kind, sender, client_id, count=count, seconds=seconds)

    def stall(self, sender: str, *, client_id: str | None = None) -> Fault:
        """Read nothing more from the clients, or from the broker for them, until it is ended."""
        return self._fault(STALL, None, sender, client_id)

    def refuse_connections(self) -> Fault:
        """Let nobody connect, as if nobody listened, until it is ended. Who is connected stays."""
        return self._fault(CLOSED, None, None, None)

    def refuse(
        self,
        reason: int = BAD_USER_NAME_OR_PASSWORD,
        *,
        client_id: str | None = None,
        count: int | None = 1,
    ) -> Fault:
        """Answer the next CONNECT with this reason code of 5.0; 3.1.1 gets the code that fits."""
        if reason == SUCCESS or reason not in REASONS_5[CONNACK]:
            raise ValueError(f"0x{reason:02x} is no reason code with which CONNACK refuses")
        return self._fault(
            REFUSE, PACKET_NAMES[CONNECT], "client", client_id, count=count, reason=reason
        )

    def heal(self) -> None:
        """End all faults."""

        async def work() -> None:
            _, proxy = self._parts()
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
            self._parts()[1].add(fault)

        self._run(work())
        return fault

    def _end_fault(self, fault: Fault) -> None:
        # What has been closed has no faults any more.
        if self._is_live():
            self._run(self._parts()[1].remove(fault))

    # --- what the broker does ---------------------------------------------------------------------

    def expire_session(self, client_id: str) -> None:
        """Let a session be over, as if it had been away for too long. A client that is connected
        is cut off first. Raises LookupError if there is no such session."""

        async def work() -> None:
            await self._drain_sockets()
            hosted, proxy = self._parts()

            def cut() -> None:
                for link in proxy.of(client_id):
                    link.cut()

            await hosted.expire(client_id, cut)

        self._run(work())

    def take_over(self, client_id: str, *, clean_start: bool = False) -> None:
        """Connect with the client identifier of a client that is connected, and leave again. The
        broker closes the connection of the client, in 5.0 with DISCONNECT 0x8E. Its session is
        still there afterwards, unless `clean_start`. Raises LookupError."""

        async def work() -> None:
            await self._drain_sockets()
            await self._parts()[0].take_over(client_id, clean_start=clean_start)

        self._run(work())

    def disconnect(self, client_id: str, reason: int = ADMINISTRATIVE_ACTION) -> None:
        """Let the broker end a connection: in 5.0 by DISCONNECT with this reason code, in 3.1.1 by
        closing it. Raises LookupError."""

        async def work() -> None:
            await self._drain_sockets()
            self._parts()[0].disconnect(client_id, reason)

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
        """Publish a message to the programs. With QoS 1 and 2 the broker has acknowledged it when
        this returns."""
        data = payload.encode() if isinstance(payload, str) else bytes(payload)

        async def work() -> None:
            await self._drain_sockets()
            hosted, _ = self._parts()
            await hosted.publish(topic_name, data, qos, retain=retain, properties=properties)

        self._run(work())

    def _received(self, message: Message) -> None:
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
        """What the programs have published, wills included, and the test has not."""
        check_topic_filter(topic_filter, None)
        self._wait_until_received()
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
        """Wait until so many messages have been published there, since the one given if any. The
        last of them. Raises TimeoutError."""
        future = self._awaited_message(topic_filter, count, after)
        unmet = self._no_message(topic_filter, count)
        return block(future, timeout, unmet, "wait_for_message_async")

    async def wait_for_message_async(
        self,
        topic_filter: str = "#",
        *,
        count: int = 1,
        after: Published | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Published:
        """The same for a coroutine."""
        future = self._awaited_message(topic_filter, count, after)
        return await follow(future, timeout, self._no_message(topic_filter, count))

    def _awaited_message(
        self, topic_filter: str, count: int, after: Published | None
    ) -> "Future[Published]":
        check_topic_filter(topic_filter, None)
        return self._messages.watch(
            lambda one: topic_matches(topic_filter, one.topic_name),
            first=0 if after is None else after.number + 1,
            count=count,
        )

    def _no_message(self, topic_filter: str, count: int) -> Callable[[], str]:
        def words() -> str:
            topics = [quoted(one.topic_name) for one in self._messages.items()[-SHOWN_PACKETS:]]
            came = f"published: {', '.join(topics)}" if topics else "nothing was published"
            return (
                f"{counts.count(count, 'message')} to {quoted(topic_filter)} did not come; {came}"
            )

        return words

    # --- what it knows ----------------------------------------------------------------------------

    def sessions(self) -> list[SessionFacts]:
        """All sessions that the broker has, connected or not."""

        async def work() -> list[SessionFacts]:
            await self._drain_sockets()
            return self._parts()[0].sessions()

        return self._run(work())

    def session(self, client_id: str) -> SessionFacts | None:
        """One of them."""
        return next((one for one in self.sessions() if one.client_id == client_id), None)

    def clients(self) -> list[str]:
        """The client identifiers of those that are connected."""
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
        kind: Kind | Callable[[Recorded], bool] = None,
        *,
        sender: str | None = None,
        client_id: str | None = None,
        after: Recorded | None = None,
    ) -> list[Recorded]:
        """What was recorded: all, or of one kind, one side, one client, since one packet."""
        wanted = _wanted(kind, sender, client_id)
        self._wait_until_received()
        first = 0 if after is None else after.number + 1
        return [one for one in self._recording.packets.items(first) if wanted(one)]

    def wait_for(
        self,
        kind: Kind | Callable[[Recorded], bool],
        *,
        sender: str | None = None,
        client_id: str | None = None,
        count: int = 1,
        after: Recorded | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Recorded:
        """Wait until so many such packets are in the record, since the one given if any. The last
        of them. Raises TimeoutError."""
        wanted = _wanted(kind, sender, client_id)
        first = 0 if after is None else after.number + 1
        future = self._recording.packets.watch(wanted, first=first, count=count)
        return block(future, timeout, self._no_packet(kind, count), "wait_for_async")

    async def wait_for_async(
        self,
        kind: Kind | Callable[[Recorded], bool],
        *,
        sender: str | None = None,
        client_id: str | None = None,
        count: int = 1,
        after: Recorded | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Recorded:
        """The same for a coroutine."""
        wanted = _wanted(kind, sender, client_id)
        first = 0 if after is None else after.number + 1
        future = self._recording.packets.watch(wanted, first=first, count=count)
        return await follow(future, timeout, self._no_packet(kind, count))

    def _no_packet(self, kind: object, count: int) -> Callable[[], str]:
        name = kind if isinstance(kind, str) else getattr(kind, "__name__", repr(kind))
        wanted = counts.count(count, f"{name} packet")
        return lambda: f"{wanted} did not come; recorded:\n{self.transcript()}"

    def transcript(self, most: int = SHOWN_PACKETS) -> str:
        """The last packets, a line for each, without payloads and passwords."""
        return listed(self._recording.packets.items(), most) or "no packets"

    def assert_clean(self, client_id: str | None = None, *, ignore: Collection[str] = ()) -> None:
        """Fail if a client broke the standard, with all that it did wrong. `ignore` names rules
        that do not count, such as those that a library breaks for which nobody can help."""
        __tracebackhide__ = True
        if isinstance(ignore, str):
            ignore = (ignore,)
        self._wait_until_received()
        report = self._recording.report(client_id, ignore)
        if report is not None:
            raise AssertionError(report)

    # --- what is on its way -----------------------------------------------------------------------

    def _wait_until_received(self) -> None:
        if self._is_live():
            self._run(self._drain_sockets())

    async def _drain_sockets(self) -> None:
        """Let arrive what the programs have sent, so that one sees what one has done.

        What a program's socket has taken is in the proxy's after no time: it only has to be read,
        here and in the broker.
        """
        hosted, proxy = self._parts()
        quiet = 0
        seen = -1
        for _ in range(MOST_ROUNDS):
            is_writing = hosted.is_writing()
            await asyncio.sleep(POLL_SECONDS if is_writing else 0)
            joining = any(link.connecting for link in proxy.links.values())
            moves = is_writing or joining or proxy.received != seen
            quiet = 0 if moves else quiet + 1
            seen = proxy.received
            if quiet == QUIET_ROUNDS:
                return


def _check_names(settings: Mapping[str, object]) -> None:
    """These are settings of [broker], but those of the command. Raises TypeError."""
    # The log level is that of the program's own logging.
    of_command = ("host", "port", "log_level")
    known = [field.name for field in fields(BrokerSettings) if field.name not in of_command]
    for name in settings:
        if name not in known:
            raise TypeError(f"{name!r} is no setting of the broker; there are {', '.join(known)}")


def _wanted(
    kind: Kind | Callable[[Recorded], bool], sender: str | None, client_id: str | None
) -> Callable[[Recorded], bool]:
    """Whether a packet is one of those that are meant."""
    side(sender)
    if kind is None or isinstance(kind, str | type):
        number = packet_type(kind)
        name = PACKET_NAMES[number] if number else None
        also = None
    else:
        name = None
        also = kind

    def wanted(recorded: Recorded) -> bool:
        if sender not in (None, recorded.sender) or client_id not in (None, recorded.client_id):
            return False
        if name not in (None, recorded.kind):
            return False
        return also is None or bool(also(recorded))

    return wanted

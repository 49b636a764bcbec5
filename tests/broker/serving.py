"""The broker's server in this process, with an Authority, a Store or buffers of the test's own."""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

from semel.broker.authority import Authority
from semel.broker.network.event_loop import BrokerLoop
from semel.broker.network.listener_settings import ListenerSettings
from semel.broker.network.server import Server
from semel.broker.settings import BrokerSettings
from semel.store.store import Store
from tests.broker.broker_process import PATIENCE


class Records(logging.Handler):
    """Everything that is logged, as a file would have it: tracebacks with their lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    def about(self, words: str) -> list[str]:
        """The records that have these words in them."""
        return [line for line in self.lines if words in line]


class Serving:
    """A server that runs in a thread: where it listens, and what it has logged."""

    def __init__(
        self,
        settings: BrokerSettings,
        authority: Authority,
        store: Store,
        *,
        send_buffer: int = 0,
        listeners: Sequence[ListenerSettings] = (),
    ) -> None:
        self.settings = settings
        self.listeners = listeners
        self.authority = authority
        self.store = store
        self.send_buffer = send_buffer
        self.log = Records()
        self.address = ("", 0)
        # Of each listener.
        self.addresses: list[tuple[str, int]] = []
        self._is_started = False
        self.ended: Future[None] = Future()
        self._listening: Future[tuple[str, int]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        server = Server(self.settings, self.authority, self.store, listeners=self.listeners)
        address = await server.start()
        self.addresses = [each.bound_address() or ("", 0) for each in server.listeners]
        if self.send_buffer:
            listener = server.listeners[0].server
            assert listener is not None
            for listening in listener.sockets:
                # Connections inherit it from the socket that accepts them.
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer)
        self._listening.set_result(address)
        await self._stopping.wait()
        await server.stop()

    def run(self, loop: str) -> None:
        """The thread's work."""
        try:
            factory = BrokerLoop if loop == "broker" else None
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(self._serve())
            self.ended.set_result(None)
        except BaseException as problem:
            self.ended.set_exception(problem)
            if not self._listening.done():
                self._listening.set_exception(problem)

    def start(self, thread: threading.Thread) -> None:
        thread.start()
        self.address = self._listening.result(PATIENCE)
        self._is_started = True

    @property
    def is_started(self) -> bool:
        return self._is_started

    def stop(self) -> None:
        """Ask it to end; whatever ended it before its time comes out here."""
        if not self.ended.done():
            assert self._loop is not None
            assert self._stopping is not None
            self._loop.call_soon_threadsafe(self._stopping.set)
        self.ended.result(PATIENCE)


@contextmanager
def serving(
    settings: BrokerSettings | None = None,
    *,
    authority: Authority | None = None,
    store: Store | None = None,
    send_buffer: int = 0,
    loop: str = "broker",
    listeners: Sequence[ListenerSettings] = (),
) -> Iterator[Serving]:
    """A server on a port that the system chose, on its own loop or on that of asyncio."""
    given = settings or BrokerSettings(port=0, sys_interval=0.0)
    made = Serving(
        given,
        authority or Authority(),
        store or Store(),
        send_buffer=send_buffer,
        listeners=listeners,
    )
    thread = threading.Thread(target=made.run, args=(loop,))
    loggers = [logging.getLogger(name) for name in ("semel.broker", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(made.log)
        logger.setLevel(logging.INFO)
    try:
        made.start(thread)
        yield made
        made.stop()
    finally:
        if thread.is_alive() and made.is_started:
            made.stop()
        thread.join(PATIENCE)
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(made.log)
            logger.setLevel(level)

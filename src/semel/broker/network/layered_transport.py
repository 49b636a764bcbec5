"""Connects a socket with layers to a protocol that knows nothing of them.

    socket ─▶ LayeredProtocol ─▶ LayerStack ─▶ the inner protocol
    socket ◀─ LayeredTransport ◀─ LayerStack ◀─ the inner protocol

The inner protocol exists as soon as all handshakes are complete.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from semel.broker.network.handshakes import Handshakes
from semel.broker.network.layer import LayerFailed
from semel.broker.network.layer_stack import LayerStack

LOG: Final = logging.getLogger("semel.broker")

# How long a peer may take to read the last bytes of a closing connection.
CLOSE_SECONDS: Final = 5.0

# What a closed transport passes bytes to.
_NO_PROTOCOL: Final = asyncio.Protocol()


class LayerOwner(Protocol):
    """What the connections of one listener have in common."""

    @property
    def connect_seconds(self) -> float:
        """How long the handshakes of a connection may take together."""

    @property
    def is_stopping(self) -> bool:
        """Whether connections are closed because the program stops."""

    def now(self) -> float:
        """The time of the clock of `Handshakes`."""

    def identify(self, transport: asyncio.BaseTransport) -> tuple[str, str]:
        """The name of a new connection for the log, and its address."""

    def refuse_new(self, address: str) -> str | None:
        """Why a new connection of this address is closed at once, in one sentence; or None."""

    def first_bytes_problem(self, data: bytes) -> str | None:
        """Why a connection that begins with these bytes is closed, in one sentence; or None."""

    def make_inner(
        self, connection: "LayeredProtocol", transport: asyncio.Transport
    ) -> asyncio.Protocol:
        """The inner protocol of a connection whose handshakes are complete."""

    def handshake_failed(self, connection: "LayeredProtocol", why: str) -> None:
        """A connection was refused, or did not complete its handshakes. It is logged already."""

    def inner_failed(self, inner: asyncio.Protocol, why: str) -> None:
        """A layer failed after the handshakes: log it. The connection is being closed."""


class LayeredTransport(asyncio.Transport):
    """The transport of the inner protocol. Unsent bytes are those of the socket."""

    def __init__(
        self, outer: asyncio.Transport, connection: "LayeredProtocol", inner: asyncio.Protocol
    ) -> None:
        super().__init__()
        self._outer = outer
        self._connection = connection
        self._layers = connection.layers
        self._protocol = inner
        self._is_closing = False
        self._is_paused = False
        # Inner bytes that arrived, with the last outer ones, while reading was paused.
        self._held = b""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._outer.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        # The callbacks of asyncio.Protocol, as for every stream transport.
        self._protocol = cast(asyncio.Protocol, protocol)

    @property
    def inner(self) -> asyncio.Protocol:
        """The protocol that gets the inner bytes."""
        return self._protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_closing():
            self._outer.write(self._layers.send(bytes(data)))

    def close(self) -> None:
        """Write what ends the layers in order, and close the socket after its unsent bytes."""
        if self.is_closing():
            return
        self._is_closing = True
        last = self._layers.close(is_shutdown=self._connection.is_stopping)
        if last:
            self._outer.write(last)
        self._outer.close()

    def abort(self) -> None:
        self._is_closing = True
        self._outer.abort()

    def release(self) -> None:
        """The socket is closed: keep no inner protocol, which refers to this transport.

        The garbage collector runs so rarely that a flood of connections would fill the memory.
        """
        self._is_closing = True
        self._protocol = _NO_PROTOCOL
        self._held = b""

    def is_closing(self) -> bool:
        return self._is_closing or self._outer.is_closing()

    def pause_reading(self) -> None:
        self._is_paused = True
        self._outer.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._held:
            # Not now: the inner protocol is in the middle of something.
            asyncio.get_running_loop().call_soon(self._deliver_held)
        else:
            self._outer.resume_reading()

    def deliver(self, data: bytes) -> None:
        """Pass inner bytes to the inner protocol, or hold them while reading is paused."""
        if self._is_paused:
            self._held += data
        elif not self.is_closing():
            self._protocol.data_received(data)

    def _deliver_held(self) -> None:
        held, self._held = self._held, b""
        self._connection.guard(lambda: self.deliver(held))
        if not self._is_paused and not self.is_closing():
            self._outer.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._outer.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._outer.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return self._outer.can_write_eof()

    def write_eof(self) -> None:
        """Write what ends the layers in order, and then nothing more. What arrives is ignored."""
        self._outer.write(self._layers.close(is_shutdown=self._connection.is_stopping))
        self._outer.write_eof()


class LayeredProtocol(asyncio.Protocol):
    """Serves one socket: first the handshakes of its layers, then the inner protocol.

    A `Handshaking` connection.
    """

    def __init__(self, layers: LayerStack, handshakes: Handshakes, owner: LayerOwner) -> None:
        self.layers = layers
        self.label = "?"
        self.address = "?"
        self.accepted_at = 0.0
        self._handshakes = handshakes
        self._owner = owner
        self._number = 0
        self._has_received = False
        self._outer: asyncio.Transport | None = None
        self._transport: LayeredTransport | None = None
        self._is_working = False
        self._is_ended = False
        # Aborts a connection whose peer does not read its last bytes.
        self._aborting: asyncio.TimerHandle | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether connections are closed because the program stops."""
        return self._owner.is_stopping

    # --- callbacks of the socket ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the methods of asyncio.Transport, but is no subclass.
        self._outer = cast(asyncio.Transport, transport)
        self.label, self.address = self._owner.identify(transport)
        self.accepted_at = self._owner.now()
        problem = self._owner.refuse_new(self.address)
        if problem is not None:
            self._handshakes.report(self, problem, self.accepted_at)
            self.abort()
            return
        deadline = self.accepted_at + self._owner.connect_seconds
        self._number = self._handshakes.begin(self, deadline, self.accepted_at)

    def data_received(self, data: bytes) -> None:
        if self._is_ended:
            return
        if not self._has_received:
            self._has_received = True
            problem = self._owner.first_bytes_problem(data)
            if problem is not None:
                self._fail(problem)
                return
        self._pass_on(data)

    def connection_lost(self, problem: Exception | None) -> None:
        self._is_ended = True
        self._handshakes.end(self._number)
        if self._aborting is not None:
            self._aborting.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            inner = transport.inner
            transport.release()
            inner.connection_lost(problem)

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.inner.pause_writing()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.inner.resume_writing()

    # --- as a Handshaking connection --------------------------------------------------------------

    @property
    def is_cancelled(self) -> bool:
        """Whether the socket is closed or closing."""
        return self._is_ended

    def work(self) -> None:
        """The step of a handshake that takes much processor time, in a thread."""
        self.layers.work()

    def worked(self) -> None:
        """Continue after `work`."""
        self._is_working = False
        if self._is_ended:
            return
        assert self._outer is not None
        # Before anything is passed on: the inner protocol may pause it again.
        self._outer.resume_reading()
        self._pass_on(b"", resumes=True)

    def failed(self, why: str) -> None:
        """The connection is closed before its handshakes were complete."""
        self._owner.handshake_failed(self, why)

    def abort(self) -> None:
        """Close the socket, and discard unsent bytes."""
        assert self._outer is not None
        self._is_ended = True
        self._outer.abort()

    # --- layers -----------------------------------------------------------------------------------

    def guard(self, action: Callable[[], None]) -> None:
        """Do something for this connection. A failure closes this connection only."""
        try:
            action()
        except Exception:
            LOG.exception("%s closed: serving it failed", self.label)
            self.abort()

    def _pass_on(self, data: bytes, *, resumes: bool = False) -> None:
        """Pass received bytes through the layers, and do what follows from them."""
        self.guard(lambda: self._receive(data, resumes=resumes))

    def _receive(self, data: bytes, *, resumes: bool) -> None:
        # Not the exception: its traceback refers to this frame.
        failure: str | None = None
        try:
            inner_data = self.layers.resume() if resumes else self.layers.receive(data)
        except LayerFailed as problem:
            failure = str(problem)
            inner_data = problem.received
        if not self._is_working:
            self._advance(inner_data)
        if failure is not None:
            self._fail(failure)
        elif not self._is_working and self.layers.is_closed:
            self._close()

    def _advance(self, data: bytes) -> None:
        """Write the layers' own output, start their work, and pass inner bytes on."""
        assert self._outer is not None
        output = self.layers.take_output()
        if output and not self._outer.is_closing():
            self._outer.write(output)
        if self.layers.has_work:
            self._is_working = True
            self._outer.pause_reading()
            self._handshakes.submit(self)
            return
        if self._transport is None and self.layers.is_established:
            self._handshakes.end(self._number)
            inner = self._owner.make_inner(self, self._outer)
            self._transport = LayeredTransport(self._outer, self, inner)
            inner.connection_made(self._transport)
        if data and self._transport is not None:
            self._transport.deliver(data)

    def _fail(self, why: str) -> None:
        """The peer broke the protocol of a layer: log it, and close."""
        if self._transport is None:
            self._handshakes.report(self, why, self._owner.now())
        else:
            self._owner.inner_failed(self._transport.inner, why)
        self._close()

    def _close(self) -> None:
        """Close the socket after its unsent bytes. The layers have written their last ones."""
        assert self._outer is not None
        self._is_ended = True
        self._handshakes.end(self._number)
        self._outer.close()
        # A peer that does not read must not keep the connection open.
        loop = asyncio.get_running_loop()
        self._aborting = loop.call_later(CLOSE_SECONDS, self._outer.abort)

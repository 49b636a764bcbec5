"""The sockets of the broker's listeners, in an epoll set.

One call serves all sockets that are ready: it accepts, reads each socket once, and lets the owner
end the tick, which writes directly to the sockets. This costs less processor time and memory per
connection than transports of the loop.

    epoll set ─▶ PlainTransport ─▶ its protocol          what was received
                 PlainTransport ◀─ its protocol          written at once, or when possible

The set is that of the loop, if it is a `BrokerLoop`, whose selector serves the sockets while it
waits for anything else. Any other loop watches the descriptor of a set of our own.

A `PlainTransport` has the methods of asyncio's transports, and calls those of asyncio's protocols.
A connection that ends is reported to its protocol by the loop, never while the protocol is called.
Systems without epoll use the transports of the loop.
"""

import asyncio
import errno
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Final, Protocol, final

from mypy_extensions import i64

# Bytes that are read from a socket at a time. For a block of 64 KiB or more, the allocator of the C
# library first merges its free blocks.
READ_BYTES: Final = 65_536 - 128
# Sockets that are served by one call of the loop, and connections that one of them accepts.
READY_SOCKETS: Final = 256
ACCEPTED_AT_ONCE: Final = 64
# Pieces of output that one system call writes.
WRITTEN_PIECES: Final = 64

# How long nothing is accepted after the system was out of resources.
ACCEPT_PAUSE_SECONDS: Final = 1.0

READABLE: Final = 0x001
WRITABLE: Final = 0x004

# Whether this system has epoll.
HAS_EPOLL: Final = hasattr(select, "epoll")


class StreamProtocol(Protocol):
    """What a transport calls: methods of `asyncio.Protocol`."""

    def connection_made(self, transport: "PlainTransport") -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, problem: Exception | None) -> None: ...
    def resume_writing(self) -> None: ...


@final
class PlainTransport:
    """One connected socket that does not block."""

    # -1 after it was closed.
    fd: int
    protocol: StreamProtocol
    # As accept() returned it.
    peer_name: Final[object]
    _sockets: Final["PlainSockets"]
    # What the system has not accepted yet (None: nothing), and its size.
    _unsent: list[bytes] | None
    _unsent_size: int
    # More unsent bytes than this are too many; whether there were too many, so that
    # `resume_writing` is due.
    _write_mark: int
    _is_above_mark: bool
    # The events that the epoll set reports.
    _events: int
    _is_paused: bool
    _is_closing: bool
    # Whether it is among the ended connections.
    _has_ended: bool

    def __init__(self, sockets: "PlainSockets", fd: int, peer_name: object) -> None:
        self.fd = fd
        self.protocol = NO_PROTOCOL
        self.peer_name = peer_name
        self._sockets = sockets
        self._unsent = None
        self._unsent_size = 0
        self._write_mark = 0
        self._is_above_mark = False
        self._events = READABLE
        self._is_paused = False
        self._is_closing = False
        self._has_ended = False

    # --- for the protocol -------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: object = None) -> object:
        """`peername`, as for asyncio's transports; nothing else is known."""
        return self.peer_name if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """`resume_writing` is called when at most `high` bytes are unsent; `low` is ignored."""
        assert high is not None
        self._write_mark = high

    def get_write_buffer_size(self) -> int:
        """The number of unsent bytes."""
        return self._unsent_size

    def is_closing(self) -> bool:
        """Whether it is closed, or will be after its unsent bytes."""
        return self._is_closing

    def write(self, data: bytes) -> None:
        """Send bytes, now or when the peer has read earlier ones."""
        if self._is_closing or not data:
            return
        written: i64 = 0
        if self._unsent is None:
            try:
                written = os.write(self.fd, data)
            except BlockingIOError:
                written = 0
            except OSError:
                self._end()
                return
            if written == len(data):
                return
            self._unsent = []
            self._watch()
        self._unsent.append(data[written:] if written else data)
        self._unsent_size += len(data) - written
        if self._unsent_size > self._write_mark:
            self._is_above_mark = True

    def close(self) -> None:
        """Close the socket after its unsent bytes."""
        if not self._is_closing:
            self._is_closing = True
            if self._unsent is None:
                self._end()
            else:
                self._watch()

    def abort(self) -> None:
        """Close the socket, and discard unsent bytes."""
        self._end()

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        if not self._is_paused:
            self._is_paused = True
            self._watch()

    def resume_reading(self) -> None:
        """Read again."""
        if self._is_paused:
            self._is_paused = False
            self._watch()

    # --- for the set ------------------------------------------------------------------------------

    def handle(self, events: int) -> None:
        """Read or write, as far as the socket is ready for it."""
        # EPOLLHUP and EPOLLERR mean both: the system call fails, or returns what is left.
        if events != READABLE and self._unsent is not None:
            self._write_unsent()
        if events != WRITABLE and self._events & READABLE:
            self._read()

    def finish(self) -> None:
        """Report the end to the protocol, and close the socket."""
        protocol = self.protocol
        self.protocol = NO_PROTOCOL
        try:
            protocol.connection_lost(None)
        finally:
            fd = self.fd
            self.fd = -1
            os.close(fd)

    def _read(self) -> None:
        try:
            data = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._end()
            return
        if data:
            self.protocol.data_received(data)
        else:
            # The peer sends nothing more. As with asyncio, it still gets what is unsent.
            self.close()

    def _write_unsent(self) -> None:
        unsent = self._unsent
        assert unsent is not None
        pieces: i64 = 0
        try:
            written: i64 = os.writev(self.fd, unsent[:WRITTEN_PIECES])
        except BlockingIOError:
            return
        except OSError:
            self._end()
            return
        self._unsent_size -= written
        while pieces < len(unsent) and written >= len(unsent[pieces]):
            written -= len(unsent[pieces])
            pieces += 1
        del unsent[:pieces]
        if written:
            unsent[0] = unsent[0][written:]
        if not unsent:
            self._unsent = None
            self._watch()
            if self._is_closing:
                self._end()
                return
        is_behind = self._is_closing or self._unsent_size > self._write_mark
        if self._is_above_mark and not is_behind:
            self._is_above_mark = False
            self.protocol.resume_writing()

    def _watch(self) -> None:
        """Tell the set what to report: readable unless paused, writable if bytes are unsent."""
        if self._has_ended:
            return
        events = 0 if self._is_paused or self._is_closing else READABLE
        if self._unsent is not None:
            events |= WRITABLE
        if events != self._events:
            self._sockets.watch(self.fd, self._events, events)
            self._events = events

    def _end(self) -> None:
        """The connection is over: read and write nothing more, and report it soon."""
        if self._has_ended:
            return
        self._is_closing = True
        self._unsent = None
        self._unsent_size = 0
        self._watch()
        self._has_ended = True
        self._sockets.end(self)


@final
class NoProtocol:
    """The protocol of a transport that has none yet, or no longer: ignores everything."""

    def connection_made(self, transport: PlainTransport) -> None:
        """Ignore it."""

    def data_received(self, data: bytes) -> None:
        """Ignore it."""

    def connection_lost(self, problem: Exception | None) -> None:
        """Ignore it."""

    def resume_writing(self) -> None:
        """Ignore it."""


NO_PROTOCOL: Final = NoProtocol()


@final
class Acceptor:
    """A socket that accepts connections. `new_protocol` makes the protocol of each."""

    listening: Final[socket.socket]
    new_protocol: Final[Callable[[], StreamProtocol]]
    # Whether it accepts nothing because the system is out of resources.
    is_paused: bool

    def __init__(
        self, listening: socket.socket, new_protocol: Callable[[], StreamProtocol]
    ) -> None:
        self.listening = listening
        self.new_protocol = new_protocol
        self.is_paused = False


@final
class PlainSockets:
    """An epoll set of connected and listening sockets.

    `begin_reading` and `end_reading` are called before and after all ready sockets are served. What
    fails is reported to the exception handler of the loop.
    """

    _loop: Final[asyncio.AbstractEventLoop]
    _epoll: Final["select.epoll"]
    _begin_reading: Final[Callable[[], None]]
    _end_reading: Final[Callable[[], None]]
    _transports: Final[dict[int, PlainTransport]]
    _acceptors: Final[dict[int, Acceptor]]
    # Connections whose end has not been reported yet; whether the loop will do that.
    _ended: list[PlainTransport]
    _is_finishing: bool
    # Whether the loop watches the set; whether the loop has got something to do since `wait` began.
    _is_nested: Final[bool]
    _is_interrupted: bool

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        begin_reading: Callable[[], None],
        end_reading: Callable[[], None],
        loop_epoll: int | None = None,
    ) -> None:
        """`loop_epoll` is the descriptor of the loop's own set, if the loop waits by `wait`."""
        self._loop = loop
        self._begin_reading = begin_reading
        self._end_reading = end_reading
        self._transports = {}
        self._acceptors = {}
        self._ended = []
        self._is_finishing = False
        self._is_interrupted = False
        self._is_nested = loop_epoll is None
        epoll = select.epoll() if loop_epoll is None else select.epoll.fromfd(os.dup(loop_epoll))
        self._epoll = epoll
        if loop_epoll is None:
            loop.add_reader(epoll.fileno(), self.serve_ready)

    def listen(self, listening: socket.socket, new_protocol: Callable[[], StreamProtocol]) -> None:
        """Accept connections of a socket that listens and does not block.

        The set closes it, in `stop_listening` or `close`.
        """
        fd = listening.fileno()
        self._acceptors[fd] = Acceptor(listening, new_protocol)
        self._epoll.register(fd, READABLE)

    def stop_listening(self, listening: socket.socket) -> None:
        """Accept no more connections, and close the socket."""
        each = self._acceptors.pop(listening.fileno(), None)
        if each is not None:
            if not each.is_paused:
                self._epoll.unregister(listening.fileno())
            listening.close()

    def close(self) -> None:
        """Close everything, without a report."""
        if self._is_nested:
            self._loop.remove_reader(self._epoll.fileno())
        for each in list(self._acceptors.values()):
            self.stop_listening(each.listening)
        for transport in self._transports.values():
            transport.protocol = NO_PROTOCOL
            transport.abort()
        self._finish()
        self._epoll.close()

    def serve_ready(self) -> None:
        """Serve all sockets that are ready. Called by the loop, if the set is not its own."""
        self._serve(self._epoll.poll(0, READY_SOCKETS))

    def wait(self, timeout: float | None) -> list[tuple[int, int]]:
        """Wait for other descriptors of the loop's set, and serve sockets meanwhile.

        Returns those that are ready, with their events; none after the timeout or `interrupt`.
        """
        self._is_interrupted = False
        remaining = -1.0 if timeout is None else timeout
        deadline = 0.0 if timeout is None else time.monotonic() + timeout
        while True:
            others = self._serve(self._epoll.poll(remaining, READY_SOCKETS))
            if others or self._is_interrupted:
                return others
            if timeout is not None:
                remaining = deadline - time.monotonic()
                if remaining <= 0.0:
                    return others

    def interrupt(self) -> None:
        """The loop has something to do, so that `wait` must return soon."""
        self._is_interrupted = True

    def _serve(self, ready: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Serve these sockets. Returns those that are not ours."""
        others: list[tuple[int, int]] = []
        is_reading = False
        for fd, events in ready:
            transport = self._transports.get(fd)
            acceptor = self._acceptors.get(fd) if transport is None else None
            if transport is None and acceptor is None:
                others.append((fd, events))
                continue
            if not is_reading:
                is_reading = True
                self._begin_reading()
            if transport is None:
                assert acceptor is not None
                self._accept(fd, acceptor)
                continue
            try:
                transport.handle(events)
            except Exception as problem:
                self._report("serving a connection failed: closed", problem)
                transport.abort()
        if is_reading:
            try:
                self._end_reading()
            except Exception as problem:
                # The wait of a loop must not fail.
                self._report("the end of a tick failed", problem)
        return others

    def _accept(self, fd: int, acceptor: Acceptor) -> None:
        """Accept connections."""
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, peer_name = acceptor.listening.accept()
            except BlockingIOError:
                return
            except OSError as problem:
                # A connection that was reset before it was accepted, or a lack of resources, which
                # would be reported without end.
                if problem.errno != errno.ECONNABORTED:
                    self._report("cannot accept new connections", problem)
                    acceptor.is_paused = True
                    self._epoll.unregister(fd)
                    self._loop.call_later(ACCEPT_PAUSE_SECONDS, self._listen_again, fd, acceptor)
                    return
                continue
            accepted.setblocking(False)
            self._add(accepted.detach(), peer_name, acceptor)

    def _listen_again(self, fd: int, acceptor: Acceptor) -> None:
        if self._acceptors.get(fd) is acceptor:
            acceptor.is_paused = False
            self._epoll.register(fd, READABLE)

    def _add(self, fd: int, peer_name: object, acceptor: Acceptor) -> None:
        try:
            self._epoll.register(fd, READABLE)
        except OSError as problem:
            # The user has as many descriptors in epoll sets as the system permits.
            os.close(fd)
            self._report("serving a new connection failed: closed", problem)
            return
        transport = PlainTransport(self, fd, peer_name)
        self._transports[fd] = transport
        try:
            protocol = acceptor.new_protocol()
            transport.protocol = protocol
            protocol.connection_made(transport)
        except Exception as problem:
            self._report("serving a new connection failed: closed", problem)
            transport.abort()

    def _report(self, message: str, problem: Exception) -> None:
        self._loop.call_exception_handler({"message": message, "exception": problem})

    # --- for transports ---------------------------------------------------------------------------

    def watch(self, fd: int, before: int, events: int) -> None:
        """Report these events of a socket from now on; 0: not even that its peer is gone.

        That would be reported again and again until it is read.
        """
        if not events:
            self._epoll.unregister(fd)
        elif before:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)

    def end(self, transport: PlainTransport) -> None:
        """Report the end of a connection in a call of its own."""
        self._ended.append(transport)
        if not self._is_finishing:
            self._is_finishing = True
            self._loop.call_soon(self._finish)

    def _finish(self) -> None:
        self._is_finishing = False
        ended = self._ended
        self._ended = []
        for transport in ended:
            del self._transports[transport.fd]
            try:
                transport.finish()
            except Exception as problem:
                self._report("ending a connection failed", problem)

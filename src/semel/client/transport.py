"""Transports over TCP, TLS and Unix sockets.

`connector.open_transport` connects and returns a Transport, which passes received bytes to a
TransportListener. Nothing here knows MQTT packets.

- A host may have several IP addresses. They are tried in turn, each with a head start over the next
  one (RFC 8305), so that an unreachable IPv6 address does not delay IPv4.
- The listener is not called before `open_transport` has returned. If that raises or is cancelled,
  the listener is not called at all and no socket stays open.
- After that, `lost` is called exactly once, as the last call.
- There are no threads, except the one in which asyncio resolves host names.
"""

import asyncio
import errno
import ipaddress
import os
import socket
import ssl
from asyncio.trsock import TransportSocket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, zip_longest
from typing import Final, Protocol, cast

from semel.client.address import Address

# Bytes not sent yet above which `writable(False)` is called, and below which `writable(True)` is.
HIGH_WATER: Final = 256 * 1024
LOW_WATER: Final = 64 * 1024
# How long the peer may take to read the rest and to close, when we close the connection.
CLOSE_SECONDS: Final = 5.0
# At most this many reads fetch what the peer sent before it reset the connection.
MAXIMUM_LAST_READS: Final = 64
READ_BYTES: Final = 64 * 1024
# For a timeout of asyncio that must not expire before ours.
LONG_SECONDS: Final = 3600.0
# How long an IP address is tried before the next one is tried as well (RFC 8305, section 8).
HEAD_START: Final = 0.25

# Errors of a machine without this address family, or without a route.
UNREACHABLE: Final = (
    errno.EAFNOSUPPORT,
    errno.EADDRNOTAVAIL,
    errno.ENETUNREACH,
    errno.EHOSTUNREACH,
)
NO_SUCH_NAME: Final = (socket.EAI_NONAME, socket.EAI_NODATA)
# OpenSSL's errors for bytes that are not TLS.
NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
# OpenSSL's codes for a certificate that no trusted CA has signed.
NOT_TRUSTED: Final = (2, 18, 19, 20, 21)

# An address family, and an address in its format.
SocketAddress = tuple[int, tuple[str | int | bytes, ...] | str]


class TransportListener(Protocol):
    """Receives the events of a Transport."""

    def received(self, data: bytes) -> None:
        """Bytes from the peer, in pieces of any size."""

    def writable(self, writable: bool) -> None:
        """False: more than HIGH_WATER bytes are not sent yet. True: less than LOW_WATER again."""

    def lost(self, why: str | None) -> None:
        """The connection is closed; called once. None: closed cleanly, by the peer or by us."""


class Transport(Protocol):
    """One open connection."""

    # For messages: "127.0.0.1:1883".
    peer: str

    def write(self, data: bytes) -> None:
        """Send whole MQTT packets. Never raises; does nothing after `close`."""

    def close(self) -> None:
        """Send what was written, then close; abort after CLOSE_SECONDS."""

    def abort(self) -> None:
        """Close at once, without sending the rest."""

    def pause_reading(self) -> None:
        """Stop reading: `received` is not called until `resume_reading`."""

    def resume_reading(self) -> None: ...


class CannotConnect(Exception):
    """Why a connection attempt failed, in one sentence."""


async def open_stream(
    address: Address,
    listener: TransportListener,
    tls: ssl.SSLContext | None,
    local_host: str | None = None,
) -> "StreamTransport":
    """A transport that calls its listener from the next iteration of the event loop on."""
    loop = asyncio.get_running_loop()
    gate = ListenerGate(listener)
    stream = StreamTransport(address, gate, loop)
    if address.scheme == "unix":
        connected = await connect(socket.AF_UNIX, address.path)
        await loop.create_unix_connection(lambda: stream, sock=connected)
    else:
        connected = await connect_first(await addresses_of(address.host, address.port), local_host)
        # asyncio sets this only on sockets that it has created itself.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            await loop.create_connection(lambda: stream, sock=connected)
        else:
            await loop.create_connection(
                lambda: stream,
                sock=connected,
                ssl=tls,
                server_hostname=address.host.removesuffix("."),
                # The timeouts of `open_transport` and of `close` expire first.
                ssl_handshake_timeout=LONG_SECONDS,
                ssl_shutdown_timeout=2 * CLOSE_SECONDS,
            )
    loop.call_soon(gate.open)
    return stream


class ListenerGate:
    """Decides which events of a Transport reach its listener.

    Events before `open`, those of one iteration of the event loop, are kept until then. After
    `shut` only `lost` is passed on, and after `lost` nothing.
    """

    def __init__(self, listener: TransportListener) -> None:
        self._listener = listener
        self._kept: deque[bytes] = deque()
        self._open = False
        self._shut = False
        # The argument of `lost`, in a tuple because it may be None.
        self._lost: tuple[str | None] | None = None

    def open(self) -> None:
        self._open = True
        while self._kept:
            self._listener.received(self._kept.popleft())
        if self._lost is not None:
            self._listener.lost(*self._lost)

    def shut(self) -> None:
        """We close: drop everything that still arrives."""
        self._shut = True
        self._kept.clear()

    def received(self, data: bytes) -> None:
        if self._shut:
            return
        if self._open:
            self._listener.received(data)
        else:
            self._kept.append(data)

    def writable(self, writable: bool) -> None:
        # This follows a write of the listener, so it need not wait for `open`.
        if not self._shut:
            self._listener.writable(writable)

    def lost(self, why: str | None) -> None:
        if self._lost is None:
            self._lost = (why,)
            if self._open:
                self._listener.lost(why)


class StreamTransport(asyncio.Protocol):
    """A Transport over TCP, TLS or a Unix socket."""

    def __init__(
        self, address: Address, gate: ListenerGate, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.peer = address.where
        self._gate = gate
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._secure = address.secure
        self._has_received_nothing = True
        self._paused = False
        # We or the peer have started to close: the end is then clean, unless `_why` is set.
        self._closing = False
        self._why: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop have the methods of this class, but are not instances of it.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"

    def data_received(self, data: bytes) -> None:
        self._has_received_nothing = False
        self._gate.received(data)

    def eof_received(self) -> None:
        # MQTT does not use half-closed connections: asyncio closes it when this returns.
        self._begin_close()

    def pause_writing(self) -> None:
        self._gate.writable(False)

    def resume_writing(self) -> None:
        self._gate.writable(True)

    def connection_lost(self, problem: Exception | None) -> None:
        in_order = self._closing
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        if problem is not None and not in_order:
            self._why = explain(problem)
            if isinstance(problem, ConnectionError):
                if not self._secure:
                    self._read_remaining()
                elif self._has_received_nothing:
                    # In TLS 1.3 the server rejects a client certificate after the handshake.
                    self._why += " before it sent anything; it may require a certificate (certfile)"
        self._transport = None
        self._gate.lost(self._why)

    # --- called by the owner ---

    def write(self, data: bytes) -> None:
        if self._transport is None or self._closing or self._transport.is_closing():
            # `is_closing` is true between a failed write and `connection_lost`.
            return
        self._transport.write(data)

    def close(self) -> None:
        self._gate.shut()
        if self._transport is None or self._closing:
            return
        self._begin_close()
        self._transport.resume_reading()
        if not self._transport.can_write_eof():
            self._transport.close()
            return
        # If unread bytes are left, the system resets the connection on close, and the peer may lose
        # the end of what we wrote. So shut down writing, and read until the peer has closed.
        try:
            self._transport.write_eof()
        except OSError:
            self._transport.abort()

    def abort(self) -> None:
        self._gate.shut()
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def give_up(self) -> None:
        """The peer did not close in time: abort, and report if it has not read everything."""
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._why = f"the peer did not read the rest within {CLOSE_SECONDS:g} s of closing"
        self.abort()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._closing:
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._closing:
            self._paused = False
            self._transport.resume_reading()

    def _read_remaining(self) -> None:
        """Read what arrived before a reset: there may be a DISCONNECT with the reason.

        asyncio reads nothing more after a failed write. uvloop has already closed the socket.
        """
        assert self._transport is not None
        end = self._transport.get_extra_info("socket")
        if not isinstance(end, TransportSocket) or self._paused:
            return
        with suppress(OSError):
            for _ in range(MAXIMUM_LAST_READS):
                data = os.read(end.fileno(), READ_BYTES)
                if not data:
                    return
                self._gate.received(data)

    def _begin_close(self) -> None:
        self._closing = True
        if self._timer is None:
            self._timer = self._loop.call_later(CLOSE_SECONDS, self.give_up)


async def addresses_of(host: str, port: int) -> list[SocketAddress]:
    """All IP addresses of `host`, with the address families interleaved."""
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        number = None
    if isinstance(number, ipaddress.IPv4Address):
        return [(socket.AF_INET, (host, port))]
    if number is not None and number.scope_id is None:
        return [(socket.AF_INET6, (host, port, 0, 0))]
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    listed: list[SocketAddress] = [(family, where) for family, _, _, _, where in found]
    first = [each for each in listed if each[0] == listed[0][0]]
    others = [each for each in listed if each[0] != listed[0][0]]
    turns = chain.from_iterable(zip_longest(first, others))
    return [each for each in turns if each is not None]


async def connect_first(
    addresses: Sequence[SocketAddress], local_host: str | None = None
) -> socket.socket:
    """A socket connected to the first of `addresses` that answers (RFC 8305, happy eyeballs).

    Each attempt starts when the one before it has failed or had its HEAD_START. If none succeeds,
    the most specific error is raised.

    Why not a library: aiohappyeyeballs (2.6) closes the sockets of cancelled attempts only after it
    has returned, and merges different errors into one OSError without errno, which `explain` cannot
    describe. asyncio's `happy_eyeballs_delay` leaks a socket if it is cancelled at the wrong time,
    and uvloop does not support it.
    """
    if local_host is not None:
        family = socket.AF_INET6 if ":" in local_host else socket.AF_INET
        # Only addresses of the same family; if there is none, the system reports the error.
        addresses = [each for each in addresses if each[0] == family] or addresses
    if len(addresses) == 1:
        return await connect(*addresses[0], local_host)
    loop = asyncio.get_running_loop()
    waiting = deque(addresses)
    attempts: list[asyncio.Task[socket.socket]] = []
    try:
        while True:
            if waiting:
                attempts.append(loop.create_task(connect(*waiting.popleft(), local_host)))
            running = [attempt for attempt in attempts if not attempt.done()]
            if not running:
                raise most_specific([attempt.exception() for attempt in attempts])
            done, _ = await asyncio.wait(
                running,
                timeout=HEAD_START if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for attempt in done:
                if attempt.exception() is None:
                    # The cancelled attempts close their sockets in the next iteration.
                    attempts.remove(attempt)
                    _cancel_attempts(attempts)
                    return attempt.result()
    except BaseException:
        running = _cancel_attempts(attempts)
        if running:
            await asyncio.wait(running)
        raise


def most_specific(failures: Sequence[BaseException | None]) -> BaseException:
    """The first error that does not just say that an address family is unreachable."""
    found = [failure for failure in failures if failure is not None]
    for failure in found:
        if not isinstance(failure, OSError) or failure.errno not in UNREACHABLE:
            return failure
    return found[0]


def _cancel_attempts(
    attempts: list[asyncio.Task[socket.socket]],
) -> list[asyncio.Task[socket.socket]]:
    """Cancel running attempts, which are returned, and close connected sockets."""
    running = []
    for attempt in attempts:
        if not attempt.done():
            attempt.cancel()
            running.append(attempt)
        elif not attempt.cancelled() and attempt.exception() is None:
            attempt.result().close()
    return running


async def connect(
    family: int, where: tuple[str | int | bytes, ...] | str, local_host: str | None = None
) -> socket.socket:
    """A socket connected to `where`, from `local_host` if it is given."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        if local_host is not None:
            made.bind((local_host, 0))
        await asyncio.get_running_loop().sock_connect(made, where)
    except BaseException:
        made.close()
        raise
    return made


def explain(problem: BaseException) -> str:
    """Why a connection failed, for the end of a sentence."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        why = f"TLS: certificate verify failed: {problem.verify_message.rstrip('.')}"
        if problem.verify_code in NOT_TRUSTED:
            why += " (cafile or capath sets the trusted certificates)"
        return why
    if isinstance(problem, ssl.SSLEOFError):
        return "TLS: the peer closed the connection without a shutdown"
    if isinstance(problem, ssl.SSLError):
        why = (problem.reason or "it failed").lower().replace("_", " ")
        if problem.reason in NOT_TLS:
            why += ": the server may not use TLS on this port"
        return f"TLS: {why}"
    if isinstance(problem, socket.gaierror):
        if problem.errno in NO_SUCH_NAME:
            return "host not found"
        return f"the host name cannot be resolved: {problem.strerror}"
    if isinstance(problem, OSError) and problem.errno:
        return os.strerror(problem.errno).lower()
    if isinstance(problem, ConnectionError):
        # asyncio raises one without errno if the peer closes during the TLS handshake.
        return "the peer closed the connection during the TLS handshake"
    return str(problem) or type(problem).__name__

"""Bytes to a server and back over TCP, TLS and unix sockets.

`opening.open_transport` connects and returns a Transport; what is received goes to a
TransportListener. Nothing here knows MQTT packets. How it works:

- A host may have several IP addresses. They are tried in turn, and the next one is begun before the
  last one has failed (RFC 8305), so that a dead IPv6 does not delay a live IPv4.
- Nothing is called on the listener before `open_transport` has returned. If it raises or is
  cancelled, nothing is called at all and nothing stays open.
- After it has returned, `lost` is called exactly once, and nothing after it.
- No threads, but for the one in which asyncio asks the system for the addresses of a name.
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

# Bytes that are not sent yet, above which `writable(False)` is called, and below which `(True)`.
HIGH_WATER: Final = 256 * 1024
LOW_WATER: Final = 64 * 1024
# How long the peer of a connection that we close may take to read what is left, and to close too.
CLOSE_SECONDS: Final = 5.0
# What is read, at most, of what a peer has sent before it reset the connection.
LAST_READS: Final = 64
READ_BYTES: Final = 64 * 1024
# For a time-out of asyncio's that must not be the first.
LONG_SECONDS: Final = 3600.0
# How long one IP address of a host is tried alone (RFC 8305, section 8).
HEAD_START: Final = 0.25

# How a connection fails on a machine that does not have this family of addresses, or no route.
NO_WAY: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EHOSTUNREACH)
NO_SUCH_NAME: Final = (socket.EAI_NONAME, socket.EAI_NODATA)
# What TLS makes of bytes that are not TLS.
NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
# OpenSSL's codes for a certificate that nobody who is trusted has signed.
NOT_TRUSTED: Final = (2, 18, 19, 20, 21)

# A family, and an address as this family has it.
SocketAddress = tuple[int, tuple[str | int | bytes, ...] | str]


class TransportListener(Protocol):
    """What a Transport tells."""

    def received(self, data: bytes) -> None:
        """Bytes from the peer, in pieces of any size."""

    def writable(self, writable: bool) -> None:
        """False: more than HIGH_WATER bytes are not sent yet. True: fewer than LOW_WATER again."""

    def lost(self, why: str | None) -> None:
        """The connection is gone, exactly once. None: the peer or we closed it in order."""


class Transport(Protocol):
    """One open connection."""

    # For messages: "127.0.0.1:1883".
    peer: str

    def write(self, data: bytes) -> None:
        """Send whole MQTT packets. Never raises; does nothing after `close`."""

    def close(self) -> None:
        """Send what was written, then close. After CLOSE_SECONDS it is `abort`."""

    def abort(self) -> None:
        """Close at once, whatever was still to be sent."""

    def pause_reading(self) -> None:
        """Let the peer wait: `received` is not called until `resume_reading`."""

    def resume_reading(self) -> None: ...


class CannotConnect(Exception):
    """What was tried and why it failed, in one sentence."""


async def open_stream(
    address: Address,
    listener: TransportListener,
    tls: ssl.SSLContext | None,
    local_host: str | None = None,
) -> "StreamTransport":
    """A Stream that begins to tell its listener in the next turn of the loop."""
    loop = asyncio.get_running_loop()
    gate = Gate(listener)
    stream = StreamTransport(address, gate, loop)
    if address.scheme == "unix":
        connected = await connect(socket.AF_UNIX, address.path)
        await loop.create_unix_connection(lambda: stream, sock=connected)
    else:
        connected = await connect_first(await addresses_of(address.host, address.port), local_host)
        # asyncio does this only to sockets that it has made itself.
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            await loop.create_connection(lambda: stream, sock=connected)
        else:
            await loop.create_connection(
                lambda: stream,
                sock=connected,
                ssl=tls,
                server_hostname=address.host.removesuffix("."),
                # The time-outs of `open_transport` and of our own closing come first.
                ssl_handshake_timeout=LONG_SECONDS,
                ssl_shutdown_timeout=2 * CLOSE_SECONDS,
            )
    loop.call_soon(gate.open)
    return stream


class Gate:
    """Between a Transport and its listener: what is told, and when.

    Nothing is told before `open`, but kept for it; after `shut` there is only `lost`, and after
    `lost` nothing. What is kept is what comes in one turn of the loop.
    """

    def __init__(self, listener: TransportListener) -> None:
        self._listener = listener
        self._kept: deque[bytes] = deque()
        self._open = False
        self._shut = False
        # Why it was lost; a tuple, because None is a reason too.
        self._lost: tuple[str | None] | None = None

    def open(self) -> None:
        self._open = True
        while self._kept:
            self._listener.received(self._kept.popleft())
        if self._lost is not None:
            self._listener.lost(*self._lost)

    def shut(self) -> None:
        """We close: the listener has no use for what still comes."""
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
        # The answer to a write, so that the listener is ready for it.
        if not self._shut:
            self._listener.writable(writable)

    def lost(self, why: str | None) -> None:
        if self._lost is None:
            self._lost = (why,)
            if self._open:
                self._listener.lost(why)


class StreamTransport(asyncio.Protocol):
    """A Transport over TCP, TLS or a unix socket."""

    def __init__(self, address: Address, gate: Gate, loop: asyncio.AbstractEventLoop) -> None:
        self.peer = address.where
        self._gate = gate
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._secure = address.secure
        self._silent = True
        self._paused = False
        # We or the peer have begun to close: the end then is in order, unless `_why` says more.
        self._closing = False
        self._why: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # What uvloop hands us is one by its methods, not by its class.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"

    def data_received(self, data: bytes) -> None:
        self._silent = False
        self._gate.received(data)

    def eof_received(self) -> None:
        # MQTT has no use for half a connection: asyncio closes it when this returns.
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
                    self._read_last_words()
                elif self._silent:
                    # In TLS 1.3 a client hears only after its handshake that it was not enough.
                    self._why += " before it said anything; it may want a certificate (certfile)"
        self._transport = None
        self._gate.lost(self._why)

    # What the owner calls.

    def write(self, data: bytes) -> None:
        if self._transport is None or self._closing or self._transport.is_closing():
            # The last is so after a write that failed, until `connection_lost` is called.
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
        # The system answers a close with bytes unread by a reset, and the peer might lose the end
        # of what we wrote. So we say that we are done, and read until the peer has closed.
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
        """The peer has had its time to close: abort, and say if it misses something."""
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._why = f"the peer did not read the end within {CLOSE_SECONDS:g} s of closing"
        self.abort()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._closing:
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._closing:
            self._paused = False
            self._transport.resume_reading()

    def _read_last_words(self) -> None:
        """What came before a reset, and is still to be read: a DISCONNECT that says why, maybe.

        asyncio looks at nothing more when a write fails. uvloop has closed the socket by now.
        """
        assert self._transport is not None
        end = self._transport.get_extra_info("socket")
        if not isinstance(end, TransportSocket) or self._paused:
            return
        with suppress(OSError):
            for _ in range(LAST_READS):
                data = os.read(end.fileno(), READ_BYTES)
                if not data:
                    return
                self._gate.received(data)

    def _begin_close(self) -> None:
        self._closing = True
        if self._timer is None:
            self._timer = self._loop.call_later(CLOSE_SECONDS, self.give_up)


async def addresses_of(host: str, port: int) -> list[SocketAddress]:
    """All IP addresses of `host`, the families taking turns."""
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
    """A socket that is connected to the first of `addresses` that answers.

    Each is begun when the one before it has failed or had its HEAD_START. If none answers, one of
    the failures is raised. asyncio has the like of it, but loses a socket when it is cancelled in
    a bad moment, and uvloop has none.
    """
    if local_host is not None:
        family = socket.AF_INET6 if ":" in local_host else socket.AF_INET
        # Only those that there is a way to from there; if there is none, the system says so.
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
                raise most_telling([attempt.exception() for attempt in attempts])
            done, _ = await asyncio.wait(
                running,
                timeout=HEAD_START if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for attempt in done:
                if attempt.exception() is None:
                    # The others close theirs in the next turn of the loop.
                    attempts.remove(attempt)
                    abandon(attempts)
                    return attempt.result()
    except BaseException:
        running = abandon(attempts)
        if running:
            await asyncio.wait(running)
        raise


def most_telling(failures: Sequence[BaseException | None]) -> BaseException:
    """The first that is not for want of a way there, which one family of addresses may have."""
    found = [failure for failure in failures if failure is not None]
    for failure in found:
        if not isinstance(failure, OSError) or failure.errno not in NO_WAY:
            return failure
    return found[0]


def abandon(
    attempts: list[asyncio.Task[socket.socket]],
) -> list[asyncio.Task[socket.socket]]:
    """Cancel what runs, which is returned, and close what is connected."""
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
    """A socket that is connected to `where`, from an IP address of this machine if one is given."""
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
    """What went wrong with a connection, for the middle of a sentence."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        why = f"TLS: certificate verify failed: {problem.verify_message.rstrip('.')}"
        if problem.verify_code in NOT_TRUSTED:
            why += " (cafile or capath says whom to trust)"
        return why
    if isinstance(problem, ssl.SSLEOFError):
        return "TLS: the peer closed in the middle"
    if isinstance(problem, ssl.SSLError):
        why = (problem.reason or "it failed").lower().replace("_", " ")
        if problem.reason in NOT_TLS:
            why += ", so what listens there may not speak TLS"
        return f"TLS: {why}"
    if isinstance(problem, socket.gaierror):
        if problem.errno in NO_SUCH_NAME:
            return "there is no host of this name"
        return f"the name cannot be looked up: {problem.strerror}"
    if isinstance(problem, OSError) and problem.errno:
        return os.strerror(problem.errno).lower()
    if isinstance(problem, ConnectionError):
        # Without a number it is asyncio's word for an end where TLS did not expect one.
        return "the peer closed the connection in the handshake of TLS"
    return str(problem) or type(problem).__name__

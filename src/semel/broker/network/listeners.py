"""The listeners of a broker: each opens its sockets, and makes the protocol of each connection."""

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from typing import Final, Protocol, cast

from semel.broker.core import Broker
from semel.broker.identity import PeerInfo
from semel.broker.listener_limits import ListenerLimits
from semel.broker.network.connection_rates import ConnectionRates
from semel.broker.network.first_bytes import describe_first_bytes
from semel.broker.network.handshakes import Handshakes
from semel.broker.network.layered_transport import LayeredProtocol
from semel.broker.network.listener_settings import (
    ENCRYPTED,
    TCP,
    TLS,
    UNIX,
    ListenerSettings,
    format_address,
    limits_of,
)
from semel.broker.network.peers import Peer, Peers, PeerTransport
from semel.broker.network.plain_sockets import PlainSockets, StreamProtocol
from semel.broker.network.stranger_check import check_listener, stranger_problem
from semel.broker.network.transport_layers import LayersUnusable, TransportLayers
from semel.broker.network.unix_socket import SocketFileUnusable, UnixSocket
from semel.broker.settings import BrokerSettings
from semel.settings import SettingsError

# Connections that the system may keep until they are accepted. Not an argument of `create_server`,
# because asyncio would also accept that many before it serves anything else.
BACKLOG: Final = 1024

# What `describe_first_bytes` returns.
TLS_HANDSHAKE: Final = "a TLS handshake"
HTTP_REQUEST: Final = "an HTTP request"
PROXY_HEADER: Final = "a PROXY protocol header"


class CannotListen(Exception):
    """Why the broker cannot listen, in one sentence."""


class ListenerServer(Protocol):
    """The server, as its listeners use it."""

    settings: BrokerSettings
    loop: asyncio.AbstractEventLoop
    broker: Broker
    peers: Peers
    plain_sockets: PlainSockets | None
    handshakes: Handshakes
    listeners: "list[Listener]"

    def now(self) -> float:
        """The time of the clock that all deadlines use."""


class Listener:
    """One listener. It is the `LayerOwner` of its connections."""

    def __init__(self, settings: ListenerSettings, server: ListenerServer) -> None:
        self.settings = settings
        self.name = settings.name
        self.limits = limits_of(settings, server.settings)
        rate = settings.connections_per_second
        self._rates = None if rate is None else ConnectionRates(rate)
        self.server: asyncio.Server | None = None
        self._broker_server = server
        self._layers: TransportLayers | None = None
        self._unix_socket: UnixSocket | None = None
        # The sockets that accept connections, if the loop does not.
        self._plain: list[socket.socket] = []
        self._last_unix_number = 0

    # --- opening and closing ----------------------------------------------------------------------

    async def bind(self, *, has_users: bool) -> None:
        """Reserve the address, without accepting connections. Raises CannotListen."""
        settings = self.settings
        try:
            self._layers = TransportLayers(settings)
        except LayersUnusable as problem:
            raise CannotListen(f"listener {self.name}: {problem}") from None
        loop = self._broker_server.loop
        if settings.transport == UNIX:
            assert settings.path is not None
            try:
                self._unix_socket = UnixSocket(settings.path, int(settings.mode, 8))
            except SocketFileUnusable as problem:
                raise CannotListen(self._sentence(str(problem))) from None
            self.server = await loop.create_unix_server(
                self._new_protocol, sock=self._unix_socket.socket, start_serving=False
            )
            return
        host, port = settings.host, settings.effective_port
        try:
            self.server = await loop.create_server(
                self._new_protocol, host, port, start_serving=False
            )
        except OSError as problem:
            raise CannotListen(self._explain(problem)) from None
        except ValueError:
            # Not a valid host name.
            raise CannotListen(self._sentence("no such host name")) from None
        addresses = [str(each.getsockname()[0]) for each in self.server.sockets]
        refusal = stranger_problem(settings, addresses, has_users=has_users)
        if refusal is not None:
            raise CannotListen(refusal)

    async def accept(self) -> None:
        """Accept connections. Raises CannotListen."""
        assert self.server is not None
        assert self._layers is not None
        plain_sockets = self._broker_server.plain_sockets
        try:
            if plain_sockets is None:
                await self.server.start_serving()
            for each in self.server.sockets:
                same = socket.socket(fileno=os.dup(each.fileno()))
                same.listen(BACKLOG)
                if plain_sockets is None:
                    same.close()
                else:
                    self._accept_plain(plain_sockets, same)
        except OSError as problem:
            raise CannotListen(self._explain(problem)) from None

    def _accept_plain(self, plain_sockets: PlainSockets, listening: socket.socket) -> None:
        if self.settings.transport != UNIX:
            # Accepted sockets inherit it. The loop sets it for its own.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.setblocking(False)
        plain_sockets.listen(listening, self._new_plain_protocol)
        self._plain.append(listening)

    def close(self) -> None:
        """Accept no more connections, and remove the file of a Unix socket."""
        for listening in self._plain:
            plain_sockets = self._broker_server.plain_sockets
            assert plain_sockets is not None
            plain_sockets.stop_listening(listening)
        self._plain = []
        if self.server is not None:
            self.server.close()
        if self._unix_socket is not None:
            # asyncio closes it only if it has a server.
            self._unix_socket.socket.close()
            self._unix_socket.remove_file()
            self._unix_socket = None

    def _explain(self, problem: OSError) -> str:
        if problem.errno == errno.EADDRINUSE:
            return f"{self.settings.address} is in use by another program{self._suffix()}"
        # Python 3.14 has no number for an address that nothing can be bound to.
        if problem.errno in (errno.EADDRNOTAVAIL, None):
            return self._sentence(f"{self.settings.host} is not an address of this machine")
        return self._sentence(str(problem.strerror))

    def _sentence(self, why: str) -> str:
        return f"cannot listen on {self.settings.address}: {why}{self._suffix()}"

    def _suffix(self) -> str:
        """Names the listener, if it is not the only one."""
        return f" (listener {self.name})" if len(self._broker_server.listeners) > 1 else ""

    def bound_address(self) -> tuple[str, int] | None:
        """Host and port, as the system has bound it; None for a Unix socket."""
        if self.settings.transport == UNIX or self.server is None or not self.server.sockets:
            return None
        host, port = self.server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    def describe(self) -> str:
        """Where it listens, and over which transport if that is not tcp."""
        address = self.bound_address()
        where = self.settings.address if address is None else format_address(*address)
        if self.settings.transport in (TCP, UNIX):
            return where
        return f"{where} ({self.settings.transport})"

    def replace(
        self, settings: ListenerSettings, limits: ListenerLimits, layers: TransportLayers
    ) -> None:
        """Use other certificates and limits for new connections from now on."""
        self.settings = settings
        self.limits = limits
        rate = settings.connections_per_second
        if self._rates is None or self._rates.per_second != rate:
            self._rates = None if rate is None else ConnectionRates(rate)
        self._layers = layers

    # --- connections ------------------------------------------------------------------------------

    def _new_protocol(self) -> asyncio.Protocol:
        assert self._layers is not None
        if self._layers.is_empty:
            # It has the methods of asyncio.Protocol, but is compiled and no subclass.
            return cast(asyncio.Protocol, self._new_peer())
        return LayeredProtocol(self._layers.make(), self._broker_server.handshakes, self)

    def _new_plain_protocol(self) -> StreamProtocol:
        assert self._layers is not None
        if self._layers.is_empty:
            return self._new_peer()
        # A PlainTransport has the methods of asyncio's transports that it calls.
        return cast(StreamProtocol, self._new_protocol())

    def _new_peer(self) -> Peer:
        return Peer(self._broker_server.peers, self)

    def peer_info(self, transport: PeerTransport) -> PeerInfo:
        """The other end of a connection, as its socket knows it."""
        if self.settings.transport == UNIX:
            self._last_unix_number += 1
            label = f"unix:{self.name}#{self._last_unix_number}"
        else:
            found = transport.get_extra_info("peername")
            # A peer that has already disconnected has no name.
            label = format_address(found[0], found[1]) if isinstance(found, tuple) else "?"
        return PeerInfo(label, listener=self.name)

    def unexpected_protocol(self, data: bytes) -> str | None:
        """Why the first bytes are not MQTT, in one sentence; None if they may be MQTT."""
        found = describe_first_bytes(data)
        transport = self.settings.transport
        if found is None:
            return None
        if found == PROXY_HEADER and not self.settings.proxy_protocol:
            return self._proxy_header_problem()
        inside = " inside TLS" if transport in ENCRYPTED else ""
        words = f"it sent {found}{inside}, but listener {self.name} expects MQTT over {transport}"
        if found == TLS_HANDSHAKE and transport == TCP:
            return f"{words}: use a listener with transport tls"
        if found == HTTP_REQUEST and transport in (TCP, TLS):
            other = "wss" if transport == TLS else "ws"
            return f"{words}: use a listener with transport {other}"
        return words

    def _proxy_header_problem(self) -> str:
        return (
            f"it sent {PROXY_HEADER}, but proxy_protocol is false for listener {self.name}: set it "
            "to true if only proxies can reach this listener"
        )

    # --- as the LayerOwner of its connections -----------------------------------------------------

    @property
    def connect_seconds(self) -> float:
        """How long the handshakes of a connection may take together."""
        return self.limits.connect_timeout

    @property
    def is_stopping(self) -> bool:
        """Whether connections are closed because the broker stops."""
        return self._broker_server.peers.is_stopping

    def now(self) -> float:
        """The time of the broker's clock."""
        return self._broker_server.now()

    def identify(self, transport: asyncio.BaseTransport) -> tuple[str, str]:
        """The name of a new connection for the log, and its address."""
        info = self.peer_info(cast(asyncio.Transport, transport))
        return info.label, info.address

    def refuse_new(self, address: str) -> str | None:
        """Why a new connection of this address is closed at once, in one sentence; or None."""
        if self.settings.proxy_protocol:
            # The address of a proxy; `refuse_peer` has that of the client.
            return None
        return self._address_problem(address)

    def refuse_peer(self, address: str, *, is_layered: bool) -> str | None:
        """The same for a connection of this client that may have passed layers."""
        if is_layered and not self.settings.proxy_protocol:
            return None
        return self._address_problem(address)

    def _address_problem(self, address: str) -> str | None:
        ban = self._broker_server.broker.oversight.bans.find_attributed(address, self.now())
        if ban is not None:
            return ban.sentence
        if self._rates is None or self._rates.admits(address, self.now()):
            return None
        rate = f"{self._rates.per_second:g}"
        return f"its address opens more than {rate} connections per second"

    def first_bytes_problem(self, data: bytes) -> str | None:
        """Why a connection that begins with these bytes is closed, in one sentence; or None."""
        if self.settings.proxy_protocol or describe_first_bytes(data) != PROXY_HEADER:
            return None
        return self._proxy_header_problem()

    def make_inner(
        self, connection: LayeredProtocol, transport: asyncio.Transport
    ) -> asyncio.Protocol:
        """The protocol of a connection whose handshakes are complete."""
        info = self._layered_info(connection)
        accepted_at = connection.accepted_at
        peer = Peer(self._broker_server.peers, self, info=info, accepted_at=accepted_at)
        return cast(asyncio.Protocol, peer)

    def handshake_failed(self, connection: LayeredProtocol, why: str) -> None:
        """A connection was refused, or did not complete its handshakes."""
        label = self._layered_info(connection).label
        self._broker_server.broker.oversight.audit.refused_peer(label, self.name, why)

    def _layered_info(self, connection: LayeredProtocol) -> PeerInfo:
        """The other end of a connection, as its layers know it so far."""
        assert self._layers is not None
        source, certificate = self._layers.facts(connection.layers)
        label = connection.label if source is None else format_address(*source)
        return PeerInfo(label, listener=self.name, certificate=certificate)

    def inner_failed(self, inner: asyncio.Protocol, why: str) -> None:
        """A layer failed after the handshakes: log it."""
        cast(Peer, inner).fail(why)


def check_listeners(listeners: Sequence[ListenerSettings], *, has_users: bool) -> None:
    """Check listeners without opening them: their files, and whether strangers could connect.

    Raises SettingsError.
    """
    problems: list[str] = []
    for each in listeners:
        try:
            check_listener(each, has_users=has_users)
            TransportLayers(each)
        except SettingsError as problem:
            problems += problem.problems
        except LayersUnusable as problem:
            problems.append(f"listener {each.name}: {problem}")
    if problems:
        raise SettingsError(problems)


def first_address(listeners: Sequence[Listener]) -> tuple[str, int]:
    """Host and port of the first listener of transport tcp, or else of any; ("", 0) if none."""
    found = [(each.settings.transport != TCP, each.bound_address()) for each in listeners]
    addresses = [address for _, address in sorted(found, key=lambda each: each[0]) if address]
    return addresses[0] if addresses else ("", 0)


def describe_listeners(listeners: Sequence[Listener]) -> str:
    """Where all of them listen, for the log; the one that `first_address` chooses is the first."""
    first = sorted(listeners, key=lambda each: each.settings.transport != TCP)
    return ", ".join(each.describe() for each in first)


def listeners_event(listeners: Sequence[Listener]) -> dict[str, object]:
    """The same for programs: `listeners`, and `host` and `port` of the first, if it has them."""
    host, port = first_address(listeners)
    found: dict[str, object] = {"host": host, "port": port} if host else {}
    described = []
    for each in listeners:
        address = each.bound_address()
        where: dict[str, object] = (
            {"path": str(each.settings.path)}
            if address is None
            else {"host": address[0], "port": address[1]}
        )
        described.append({"name": each.name, "transport": each.settings.transport, **where})
    return {**found, "listeners": described}

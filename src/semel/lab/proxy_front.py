"""The transport of the test's proxy towards programs: TLS, WebSocket, or a Unix socket.

It uses the broker's own layers, so that programs meet what a broker speaks. The proxy behind it
gets MQTT, and connects to the broker by TCP.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from semel.broker.network.address_log import AddressLog
from semel.broker.network.handshakes import Handshakes
from semel.broker.network.layered_transport import LayeredProtocol
from semel.broker.network.listener_settings import (
    ENCRYPTED,
    TRANSPORTS,
    UNIX,
    WEBSOCKET,
    ListenerSettings,
    format_address,
)
from semel.broker.network.transport_layers import TransportLayers
from semel.broker.network.unix_socket import UnixSocket
from semel.broker.settings import BrokerSettings
from semel.lab.throw_away_certificate import make_certificate

LOG: Final = logging.getLogger("semel.lab")

# The schemes of clients.
SCHEMES: Final = {"tls": "mqtts", "ws": "ws", "wss": "wss"}
# Owner only.
SOCKET_MODE: Final = 0o600


def check_transport(transport: str) -> None:
    """Raises ValueError if a test broker cannot speak it."""
    if transport not in TRANSPORTS:
        raise ValueError(f"transport is {transport!r}: use one of {', '.join(TRANSPORTS)}")


class ProxyFront:
    """A transport, with its certificate or socket file in a temporary directory."""

    def __init__(self, transport: str, settings: BrokerSettings) -> None:
        """Raises RuntimeError if there is no certificate to be had."""
        check_transport(transport)
        self.transport = transport
        self._settings = settings
        self._folder = TemporaryDirectory(prefix="semel-test-")
        folder = Path(self._folder.name)
        self.path = folder / "mqtt.sock"
        # The CA certificate of TLS; None without TLS.
        self.cafile: Path | None = None
        keys: dict[str, Any] = {"path": self.path} if transport == UNIX else {}
        try:
            if transport in ENCRYPTED:
                made = make_certificate(folder)
                self.cafile = made.certfile
                keys = {"certfile": made.certfile, "keyfile": made.keyfile}
            listener = ListenerSettings(name="test", transport=transport, **keys)
            self._layers = TransportLayers(listener)
        except BaseException:
            self._folder.cleanup()
            raise
        self._resource = listener.ws_path

    def url(self, host: str, port: int) -> str:
        """Where programs connect to."""
        if self.transport == UNIX:
            return f"unix:{self.path}"
        resource = self._resource if self.transport in WEBSOCKET else ""
        return f"{SCHEMES[self.transport]}://{format_address(host, port)}{resource}"

    def bind_socket(self) -> socket.socket:
        """A listening Unix socket at `path`."""
        return UnixSocket(self.path, SOCKET_MODE).socket

    def serve(self, make_inner: Callable[[], asyncio.Protocol]) -> "FrontConnections":
        """Serve connections in the running event loop."""
        return FrontConnections(self._layers, self._settings, make_inner)

    def clean_up(self) -> None:
        """Delete the certificate or socket file."""
        self._folder.cleanup()


class FrontConnections:
    """Puts the layers in front of the proxy's connections. It is their LayerOwner.

    `make_inner` makes the protocol that gets the MQTT of a connection.
    """

    def __init__(
        self,
        layers: TransportLayers,
        settings: BrokerSettings,
        make_inner: Callable[[], asyncio.Protocol],
    ) -> None:
        self.is_stopping = False
        self.connect_seconds = settings.connect_timeout
        self._layers = layers
        self._loop = asyncio.get_running_loop()
        self._handshakes = Handshakes(
            self._loop,
            AddressLog(LOG.warning),
            maximum_unconnected=settings.maximum_unconnected,
        )
        self._make_inner = make_inner

    def make_protocol(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        if self._layers.is_empty:
            return self._make_inner()
        return LayeredProtocol(self._layers.make(), self._handshakes, self)

    def close(self) -> None:
        """Abort connections in a handshake."""
        self._handshakes.close()

    # --- as the LayerOwner of its connections -----------------------------------------------------

    def now(self) -> float:
        """The time of the event loop."""
        return self._loop.time()

    def identify(self, transport: asyncio.BaseTransport) -> tuple[str, str]:
        """The name of a new connection for the log, and its address."""
        found = transport.get_extra_info("peername")
        return (format_address(found[0], found[1]), found[0]) if found else ("?", "?")

    def refuse_new(self, address: str) -> str | None:
        """A test may open as many connections as it likes."""

    def first_bytes_problem(self, data: bytes) -> str | None:
        """The layers report what they do not understand."""

    def make_inner(
        self, connection: LayeredProtocol, transport: asyncio.Transport
    ) -> asyncio.Protocol:
        """The protocol of the proxy."""
        return self._make_inner()

    def handshake_failed(self, connection: LayeredProtocol, why: str) -> None:
        """It is logged already."""

    def inner_failed(self, inner: asyncio.Protocol, why: str) -> None:
        """A program broke the protocol of a layer."""
        LOG.warning("a connection is closed: %s", why)

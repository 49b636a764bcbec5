"""Clients over every transport, for a server in this process or in another."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import CONNECTING, OPEN
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from semel.broker.network.listener_settings import (
    ENCRYPTED,
    UNIX,
    WEBSOCKET,
    ListenerSettings,
)
from semel.mqtt import MQTT5
from tests.broker.by_hand import PATIENCE, Link
from tests.broker.tls_files import TlsFiles


def local_listener(
    transport: str, files: TlsFiles, folder: Path, *, name: str = "", **keys: Any
) -> ListenerSettings:
    """A listener of that transport, on a port that the system chooses."""
    given: dict[str, Any] = {"name": name or transport, "transport": transport, **keys}
    if transport == UNIX:
        given.setdefault("path", folder / "socket")
    else:
        given.setdefault("port", 0)
    if transport in ENCRYPTED:
        given.setdefault("certfile", files / "server.pem")
        given.setdefault("keyfile", files / "server.key")
    return ListenerSettings(**given)


class WebSocketEnd:
    """The client's end of a WebSocket, used like a socket: each `sendall` is a binary frame."""

    def __init__(self, raw: socket.socket, path: str) -> None:
        self.raw = raw
        uri = parse_uri(f"ws://localhost{path}")
        self.protocol = ClientProtocol(uri, subprotocols=[Subprotocol("mqtt")], max_size=None)
        self.protocol.send_request(self.protocol.connect())
        self.flush()
        while self.protocol.state is CONNECTING:
            self.protocol.receive_data(raw.recv(65_536))
            self.protocol.events_received()
        assert self.protocol.state is OPEN, self.protocol.handshake_exc

    def flush(self) -> None:
        for data in self.protocol.data_to_send():
            if data:
                self.raw.sendall(data)

    def settimeout(self, seconds: float) -> None:
        self.raw.settimeout(seconds)

    def sendall(self, data: bytes) -> None:
        self.protocol.send_binary(data)
        self.flush()

    def recv(self, size: int) -> bytes:
        """The payloads of the next frames; b"" after a close frame or the end."""
        while True:
            data = self.raw.recv(size)
            if not data:
                return b""
            self.protocol.receive_data(data)
            events = self.protocol.events_received()
            frames = [each for each in events if isinstance(each, Frame)]
            payload = b"".join(
                each.data for each in frames if each.opcode in (Opcode.BINARY, Opcode.CONT)
            )
            if payload or any(each.opcode is Opcode.CLOSE for each in frames):
                return payload

    def close(self) -> None:
        self.raw.close()


@dataclass(frozen=True)
class Dialer:
    """Connects to one listener."""

    listener: ListenerSettings
    address: tuple[str, int]
    files: TlsFiles

    def raw(self) -> socket.socket:
        """A socket, before any handshake."""
        if self.listener.transport == UNIX:
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(PATIENCE)
            made.connect(str(self.listener.path))
            return made
        return socket.create_connection(self.address, PATIENCE)

    def encrypted(
        self, raw: socket.socket, *, certificate: str | None = None, server_name: str = "localhost"
    ) -> ssl.SSLSocket:
        """The same after a TLS handshake."""
        context = ssl.create_default_context(cafile=self.files / "ca.pem")
        if certificate is not None:
            context.load_cert_chain(
                self.files / f"{certificate}.pem", self.files / f"{certificate}.key"
            )
        return context.wrap_socket(raw, server_hostname=server_name)

    def connected(self) -> "socket.socket | WebSocketEnd":
        """A socket after all handshakes of its transport."""
        made = self.raw()
        try:
            if self.listener.transport in ENCRYPTED:
                made = self.encrypted(made)
            if self.listener.transport in WEBSOCKET:
                return WebSocketEnd(made, self.listener.ws_path)
        except BaseException:
            made.close()
            raise
        return made

    @contextmanager
    def link(self, client_id: str = "", version: int = MQTT5) -> Iterator[Link]:
        """A client, connected if there is a client identifier."""
        made = Link(self.address, version, connected=self.connected())
        try:
            if client_id:
                assert made.connect(client_id).reason == 0
            yield made
        finally:
            made.close()

"""The layers of a listener together: PROXY header, TLS and WebSocket, one inside the other."""

from pathlib import Path

import pytest

from semel.broker.network.layer import Layer
from semel.broker.network.proxy_protocol import ProxyLayer
from semel.broker.network.tls import TlsLayer
from semel.broker.network.tls_contexts import WEBSOCKET_PROTOCOLS, TlsContexts
from semel.broker.network.websocket import WebSocketLayer
from semel.broker.network.websocket_handshake import WebSocketRules
from tests.broker.layer_driver import Driven
from tests.broker.tls_ends import Client, client_context
from tests.broker.tls_files import TlsFiles
from tests.broker.websocket_frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    Sent,
    close_frame,
    frame,
    read_frames,
    request,
)


class Stack:
    """Layers, outermost first, as the shell uses them."""

    def __init__(self, *layers: Layer) -> None:
        self.driven = [Driven(layer) for layer in layers]
        self.passed = [0] * len(layers)

    def give(self, data: bytes) -> bytes:
        """Returns what is to be written."""
        for number, driven in enumerate(self.driven):
            driven.give(data)
            data = driven.inner[self.passed[number] :]
            self.passed[number] = len(driven.inner)
        return self.wrapped(b"", len(self.driven))

    def send(self, data: bytes) -> bytes:
        return self.wrapped(data, len(self.driven))

    def wrapped(self, data: bytes, depth: int) -> bytes:
        for driven in reversed(self.driven[:depth]):
            sent = driven.layer.send(data) if driven.layer.is_established else b""
            data = driven.take_output() + sent
        return data

    def close(self) -> bytes:
        data = b""
        for depth, driven in reversed(list(enumerate(self.driven))):
            data += self.wrapped(driven.layer.close(), depth)
        return data

    @property
    def inner(self) -> bytes:
        return self.driven[-1].inner


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_a_websocket_in_tls_behind_a_proxy(tmp_path: Path, size: int) -> None:
    files = TlsFiles(tmp_path)
    contexts = TlsContexts(files.demanding(protocols=WEBSOCKET_PROTOCOLS))
    proxy, tls = ProxyLayer(), TlsLayer(contexts)
    stack = Stack(proxy, tls, WebSocketLayer(WebSocketRules(maximum_frame=1 << 20)))
    client = Client(client_context(files, "client", alpn=["http/1.1"]))

    def exchange(first: bytes = b"") -> None:
        sent = first + client.step()
        while sent:
            for at in range(0, len(sent), size):
                client.incoming.write(stack.give(sent[at : at + size]))
            sent = client.step()

    exchange(b"PROXY TCP4 192.0.2.7 192.0.2.1 5124 8084\r\n")
    assert client.established
    assert proxy.source == ("192.0.2.7", 5124)
    assert tls.peer_certificate is not None
    assert tls.peer_certificate.common_name == "client"
    client.tls.write(request())
    exchange()
    head, _, rest = client.received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    assert rest == b""
    client.received = b""
    large = bytes(range(250)) * 40
    client.tls.write(frame(BINARY, large) + frame(PING, b"?"))
    exchange()
    assert stack.inner == large
    client.incoming.write(stack.send(large))
    exchange()
    assert read_frames(client.received) == [Sent(PONG, b"?"), Sent(BINARY, large)]
    client.received = b""
    client.tls.write(close_frame(1000))
    exchange()
    assert stack.driven[2].layer.is_closed
    client.incoming.write(stack.close())
    client.step()
    assert read_frames(client.received) == [Sent(CLOSE, b"\x03\xe8")]
    # Both ends have their close_notify.
    assert client.closed
    assert client.failure is None

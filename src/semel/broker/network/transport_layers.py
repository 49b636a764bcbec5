"""Makes the layers of each connection of a listener, as its settings say."""

from collections.abc import Callable

from semel.broker.network.layer import Layer
from semel.broker.network.layer_stack import LayerStack
from semel.broker.network.listener_settings import ENCRYPTED, WEBSOCKET, ListenerSettings
from semel.broker.network.proxy_protocol import ProxyLayer
from semel.broker.network.tls import TlsLayer
from semel.broker.network.tls_contexts import (
    MQTT_PROTOCOLS,
    WEBSOCKET_PROTOCOLS,
    ListenerTls,
    TlsContexts,
)
from semel.client.tls import TlsError, quoted_path
from semel.extras import MissingExtra, need
from semel.mqtt.codec import LARGEST_PACKET


class LayersUnusable(Exception):
    """Why the layers of a listener cannot be made, in one sentence that names the key."""


class TransportLayers:
    """The layers of one listener. Certificates and keys are read once."""

    def __init__(self, listener: ListenerSettings) -> None:
        """Raises LayersUnusable, for example for a certificate that cannot be read."""
        self._listener = listener
        # None: without TLS.
        self.tls: TlsContexts | None = None
        if listener.transport in ENCRYPTED:
            try:
                self.tls = TlsContexts(tls_options(listener))
            except TlsError as problem:
                raise LayersUnusable(str(problem)) from None
        # None: without WebSocket.
        self._make_websocket: Callable[[], Layer] | None = None
        if listener.transport in WEBSOCKET:
            self._make_websocket = _websocket_maker(listener)

    @property
    def is_empty(self) -> bool:
        """Whether connections have no layers."""
        listener = self._listener
        return not listener.proxy_protocol and listener.transport not in (*ENCRYPTED, *WEBSOCKET)

    def make(self) -> LayerStack:
        """The layers of a new connection."""
        layers: list[Layer] = []
        if self._listener.proxy_protocol:
            layers.append(ProxyLayer())
        if self.tls is not None:
            layers.append(TlsLayer(self.tls))
        if self._make_websocket is not None:
            layers.append(self._make_websocket())
        return LayerStack(layers)

    def facts(self, stack: LayerStack) -> tuple[tuple[str, int] | None, str | None]:
        """What the layers of an established connection know about the client.

        Its address and port as a proxy states it, and the name in its certificate; or None.
        """
        source = common_name = None
        for layer in stack.layers:
            if isinstance(layer, ProxyLayer):
                source = layer.source
            elif isinstance(layer, TlsLayer) and layer.peer_certificate is not None:
                common_name = layer.peer_certificate.common_name
        return source, common_name


def _websocket_maker(listener: ListenerSettings) -> Callable[[], Layer]:
    """A function that makes a WebSocket layer. Raises LayersUnusable."""
    try:
        need("websockets", extra="broker", by=f"transport {listener.transport}")
    except MissingExtra as problem:
        raise LayersUnusable(str(problem)) from None
    from semel.broker.network.websocket import WebSocketLayer
    from semel.broker.network.websocket_handshake import WebSocketRules

    rules = WebSocketRules(
        # A frame may have several packets, and is not buffered: the core limits each packet.
        maximum_frame=LARGEST_PACKET,
        path=listener.ws_path,
        origins=listener.origins,
        maximum_head=listener.maximum_header_bytes,
    )
    return lambda: WebSocketLayer(rules)


def tls_options(listener: ListenerSettings) -> ListenerTls:
    """The TLS options of a listener. Raises LayersUnusable."""
    assert listener.certfile is not None
    return ListenerTls(
        certfile=listener.certfile,
        keyfile=listener.keyfile,
        password=_key_password(listener),
        client_certificate=listener.client_certificate,
        cafile=listener.cafile,
        capath=listener.capath,
        crlfile=listener.crlfile,
        minimum_version=listener.tls_version,
        ciphers=listener.ciphers,
        protocols=WEBSOCKET_PROTOCOLS if listener.transport in WEBSOCKET else MQTT_PROTOCOLS,
        sni={
            each.server_name: (each.certfile, each.keyfile) for each in listener.sni_certificates()
        },
    )


def _key_password(listener: ListenerSettings) -> str | bytes | None:
    path = listener.key_password_file
    if path is None:
        return listener.key_password
    try:
        return path.read_bytes().partition(b"\n")[0].removesuffix(b"\r")
    except OSError as problem:
        raise LayersUnusable(f"key_password_file {quoted_path(path)}: {problem.strerror}") from None

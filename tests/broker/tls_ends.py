"""Both ends of a TLS connection in memory: the standard library's client, and the layer."""

import ssl

import pytest

from semel.broker.network.tls import TlsLayer
from semel.broker.network.tls_contexts import TlsContexts
from tests.broker.layer_driver import Driven
from tests.broker.tls_files import TlsFiles

TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
BOTH_VERSIONS = pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])


def client_context(
    files: TlsFiles,
    certificate: str | None = None,
    *,
    version: ssl.TLSVersion | None = None,
    authority: str = "ca",
    alpn: list[str] | None = None,
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(files / f"{authority}.pem")
    if certificate is not None:
        context.load_cert_chain(files / f"{certificate}.pem", files / f"{certificate}.key")
    if version is not None:
        context.minimum_version = context.maximum_version = version
    if alpn is not None:
        context.set_alpn_protocols(alpn)
    return context


class Client:
    """The client's end of a TLS connection in memory."""

    def __init__(
        self,
        context: ssl.SSLContext,
        host: str | None = "localhost",
        session: ssl.SSLSession | None = None,
    ) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self.incoming, self.outgoing, server_hostname=host, session=session
        )
        self.established = False
        self.failure: ssl.SSLError | None = None
        self.received = b""
        self.closed = False

    def step(self) -> bytes:
        """Go on as far as possible. Returns what is to be sent."""
        try:
            if not self.established:
                self.tls.do_handshake()
                self.established = True
            while data := self.tls.read(65536):
                self.received += data
            self.closed = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as problem:
            self.failure = problem
        return self.outgoing.read()


def exchange(client: Client, server: Driven, *, size: int = 1 << 20) -> None:
    """Carry bytes between both, in pieces of `size`, until neither has any."""
    while True:
        sent = client.step()
        for start in range(0, len(sent), size):
            server.give(sent[start : start + size])
        answer = server.take_output()
        client.incoming.write(answer)
        if not sent and not answer:
            return


def connected(
    contexts: TlsContexts, context: ssl.SSLContext, host: str | None = "localhost", **more: int
) -> tuple[Client, TlsLayer, Driven]:
    client, layer = Client(context, host), TlsLayer(contexts)
    server = Driven(layer)
    exchange(client, server, **more)
    return client, layer, server

"""TLS as a layer, against openssl's own programs."""

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from semel.broker.network.tls import TlsLayer
from semel.broker.network.tls_contexts import TlsContexts
from tests.broker.core.test_layer_tls import LARGE
from tests.broker.layer_driver import Driven
from tests.broker.tls_ends import (
    client_context,
    connected,
)
from tests.broker.tls_files import TlsFiles


@pytest.mark.skipif(shutil.which("openssl") is None, reason="not installed: openssl")
@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_speaks_with_it(tmp_path: Path, version: str) -> None:
    files = TlsFiles(tmp_path)
    (tmp_path / "input").write_bytes(LARGE)
    contexts = TlsContexts(files.demanding())
    layer = TlsLayer(contexts)
    server = Driven(layer)
    with socket.create_server(("127.0.0.1", 0)) as listener, open(tmp_path / "input") as large:
        port = listener.getsockname()[1]
        client = subprocess.Popen(
            [
                *("openssl", "s_client", "-connect", f"127.0.0.1:{port}", version, "-quiet"),
                *("-CAfile", str(files / "ca.pem"), "-verify_return_error"),
                *("-servername", "localhost", "-alpn", "mqtt"),
                *("-cert", str(files / "client.pem"), "-key", str(files / "client.key")),
            ],
            stdin=large,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            listener.settimeout(60)
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                assert client.stdout is not None
                while len(server.inner) < len(LARGE) and not server.has_ended:
                    data = connection.recv(65536)
                    assert data
                    server.give(data)
                    connection.sendall(server.take_output())
                connection.sendall(layer.send(b"answer") + layer.close())
                connection.shutdown(socket.SHUT_WR)
                assert client.stdout.read() == b"answer"
        finally:
            client.kill()
            client.wait()
            assert client.stdout is not None
            client.stdout.close()
    assert server.failure is None
    assert server.inner == LARGE
    assert layer.peer_certificate is not None


def test_authorities_may_be_in_a_directory(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("not installed: openssl")
    files = TlsFiles(tmp_path)
    folder = tmp_path / "authorities"
    folder.mkdir()
    shutil.copy(files / "ca.pem", folder)
    subprocess.run(["openssl", "rehash", str(folder)], check=True, capture_output=True)
    contexts = TlsContexts(files.options(client_certificate="required", capath=folder))
    for name, accepted in (("client", True), ("stranger", False)):
        _, layer, server = connected(contexts, client_context(files, name))
        assert (server.failure is None) == accepted == (layer.peer_certificate is not None)

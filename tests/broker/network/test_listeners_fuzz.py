"""Random and damaged first bytes, at every listener: nothing fails, and others notice nothing."""

import random
import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from semel.broker.network.listener_settings import TRANSPORTS
from semel.mqtt import MQTT5, Connect, encode
from tests.broker.by_hand import Pair
from tests.broker.network.test_listeners import PROXY_1, PROXY_2, listening
from tests.broker.network.test_listeners_websocket import request_for
from tests.broker.tls_files import TlsFiles
from tests.broker.transports import local_listener
from tests.modes import repeats

SEEDS = range(repeats(60, 15))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("certificates"))


def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def damaged(chance: random.Random) -> bytes:
    """A right beginning of some protocol with wrong bytes in it, or bytes of chance."""
    packet = encode(Connect("a"), MQTT5)
    beginnings = [
        *(packet, client_hello(), request_for(), PROXY_1 + packet, PROXY_2 + client_hello()),
        *(PROXY_1 + request_for(), chance.randbytes(chance.randrange(1, 5_000))),
    ]
    data = bytearray(chance.choice(beginnings))
    for _ in range(chance.randrange(4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data[: chance.randrange(1, len(data) + 1)])


@pytest.mark.parametrize("proxy_protocol", [False, True])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_no_first_bytes_harm_the_broker(
    files: TlsFiles, tmp_path: Path, transport: str, proxy_protocol: bool
) -> None:
    listeners = [
        local_listener(transport, files, tmp_path, name="target", proxy_protocol=proxy_protocol),
        local_listener("tcp", files, tmp_path, name="healthy"),
    ]
    with (
        listening(files, *listeners, maximum_unconnected=20) as there,
        there["healthy"].link("healthy-publisher") as publisher,
        there["healthy"].link("healthy-subscriber") as subscriber,
    ):
        pair = Pair(publisher, subscriber)
        left_open: list[socket.socket] = []
        for seed in SEEDS:
            chance = random.Random(seed)
            raw = there["target"].raw()
            with suppress(ConnectionError):
                data = damaged(chance)
                cut = chance.randrange(len(data))
                raw.sendall(data[:cut])
                raw.sendall(data[cut:])
            if chance.random() < 0.5:
                raw.close()
            else:
                left_open.append(raw)
        pair.exchange()
        for raw in left_open:
            raw.close()
        pair.exchange()
    # `listening` has looked for tracebacks in the log.

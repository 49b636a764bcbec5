"""TLS as a layer, against the standard library's client and `openssl s_client`.

Both ends run in memory: what one writes, the other one gets, in pieces of any size.
"""

import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.broker.network.client_hello import HelloReader
from semel.broker.network.layer import LayerFailed
from semel.broker.network.tls import MAXIMUM_HANDSHAKE_BYTES, TlsLayer
from semel.broker.network.tls_contexts import TlsContexts
from tests.broker.layer_driver import PLACES, Driven, mutated, pieces
from tests.broker.tls_ends import (
    BOTH_VERSIONS,
    TLS_1_2,
    TLS_1_3,
    Client,
    client_context,
    connected,
    exchange,
)
from tests.broker.tls_files import TlsFiles
from tests.modes import repeats

CONNECT = bytes.fromhex("100c 0004 4d515454 04 02 000a 0000")
LARGE = bytes(range(256)) * 4 * 1024


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def plain(files: TlsFiles) -> TlsContexts:
    """A listener that wants no certificates of its clients."""
    return TlsContexts(files.options())


# --- bytes in both directions ---------------------------------------------------------------------


@BOTH_VERSIONS
@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
def test_bytes_arrive_whatever_their_pieces(
    files: TlsFiles, plain: TlsContexts, version: ssl.TLSVersion, size: int
) -> None:
    client, layer, server = connected(plain, client_context(files, version=version), size=size)
    assert client.established
    assert server.result == (b"", None, True, False)
    assert layer.version == version.name.replace("v1_", "v1.")
    assert layer.cipher is not None
    assert layer.server_name == "localhost"
    assert layer.peer_certificate is None
    data = LARGE if size > 1000 else LARGE[:20_000]
    client.tls.write(data)
    exchange(client, server, size=size)
    assert server.inner == data
    client.incoming.write(layer.send(LARGE))
    client.incoming.write(layer.send(b"") + layer.send(b"end"))
    exchange(client, server)
    assert client.received == LARGE + b"end"


def test_before_the_handshake_nothing_is_known_or_sent(plain: TlsContexts) -> None:
    layer = TlsLayer(plain)
    assert not layer.is_established
    assert (layer.version, layer.cipher, layer.server_name) == (None, None, None)
    assert layer.take_output() == layer.send(b"data") == layer.close() == b""


@BOTH_VERSIONS
def test_many_small_records_are_joined(
    files: TlsFiles, plain: TlsContexts, version: ssl.TLSVersion
) -> None:
    client, layer, _ = connected(plain, client_context(files, version=version))
    for number in range(3_000):
        client.tls.write(b"%4d" % number)
    sent = client.outgoing.read()
    assert len(sent) > 64 * 1024
    assert layer.receive(sent) == b"".join(b"%4d" % number for number in range(3_000))


def test_data_right_after_the_handshake_is_not_lost(files: TlsFiles, plain: TlsContexts) -> None:
    """A client of TLS 1.3 may send with its last handshake message, even more than is buffered."""
    client, server = Client(client_context(files, version=TLS_1_3)), Driven(TlsLayer(plain))
    server.give(client.step())
    client.incoming.write(server.take_output())
    finished = client.step()
    client.tls.write(LARGE)
    server.give(finished + client.step())
    assert server.result == (LARGE, None, True, False)


def test_a_large_message_leaves_no_large_buffer(files: TlsFiles, plain: TlsContexts) -> None:
    def memory() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def send_much() -> None:
        for client, layer, _ in ends:
            layer.send(LARGE)
            client.tls.write(LARGE)
            assert len(layer.receive(client.outgoing.read())) == len(LARGE)

    ends = [connected(plain, client_context(files)) for _ in range(20)]
    # The client's own buffer does grow; it is replaced by one that had grown already.
    for client, layer, _ in ends:
        client.tls.write(LARGE)
        layer.receive(client.outgoing.read())
    before = memory()
    send_much()
    assert memory() - before < len(ends) * len(LARGE) // 4


# --- the end --------------------------------------------------------------------------------------


@BOTH_VERSIONS
def test_close_notify_of_the_client_ends_the_layer(
    files: TlsFiles, plain: TlsContexts, version: ssl.TLSVersion
) -> None:
    client, layer, server = connected(plain, client_context(files, version=version))
    client.tls.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        client.tls.unwrap()
    server.give(client.outgoing.read())
    assert server.result == (b"last", None, True, True)
    assert layer.receive(b"ignored") == b""
    client.incoming.write(layer.close())
    client.tls.unwrap()
    assert layer.close() == layer.send(b"late") == b""


@BOTH_VERSIONS
def test_close_sends_close_notify(
    files: TlsFiles, plain: TlsContexts, version: ssl.TLSVersion
) -> None:
    client, layer, server = connected(plain, client_context(files, version=version))
    client.tls.write(b"on its way")
    client.incoming.write(layer.close(is_shutdown=True))
    sent = client.step()
    assert client.closed
    assert layer.receive(sent) == b""
    assert layer.send(b"late") == layer.close() == b""
    assert server.failure is None


@BOTH_VERSIONS
def test_a_damaged_record_fails_after_what_came_before_it(
    files: TlsFiles, plain: TlsContexts, version: ssl.TLSVersion
) -> None:
    client, _, server = connected(plain, client_context(files, version=version))
    client.tls.write(b"before")
    before = client.outgoing.read()
    client.tls.write(b"damaged")
    damaged = bytearray(client.outgoing.read())
    damaged[-1] ^= 1
    server.give(before + bytes(damaged))
    assert server.inner == b"before"
    assert server.failure == "the client sent a TLS record that is damaged"
    client.incoming.write(server.take_output())
    client.step()
    assert client.failure is not None
    assert "ALERT_BAD_RECORD_MAC" in client.failure.reason


def test_renegotiation_is_refused(files: TlsFiles, plain: TlsContexts) -> None:
    options = plain.select(None).options
    assert options & ssl.OP_NO_RENEGOTIATION
    assert options & ssl.OP_NO_COMPRESSION
    client, _, _ = connected(plain, client_context(files, version=TLS_1_2))
    assert client.tls.compression() is None


# --- the first bytes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (CONNECT, "an MQTT CONNECT without TLS"),
        (b"GET /mqtt HTTP/1.1\r\nHost: a\r\n", "an HTTP request without TLS"),
        (b"PROXY TCP4 192.0.2.7 192.0.2.1 1 2\r\n", "a PROXY protocol header"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "bytes of an unknown protocol (15 03 01 00 02 02 28)"),
        (b"\x16\x02", "bytes of an unknown protocol (16 02)"),
        (b"\x16\x02" + bytes(100), "bytes of an unknown protocol (16 02 00 00 00 00 00 00)"),
    ],
)
def test_bytes_that_are_not_tls_are_named(plain: TlsContexts, data: bytes, why: str) -> None:
    server = Driven(TlsLayer(plain))
    server.give(data)
    assert server.failure == f"this port expects TLS; the client sent {why}"


@pytest.mark.parametrize(
    "data",
    [
        # A record that is not of a handshake, empty ones, another message, and a ClientHello
        # that ends too early.
        b"\x16\x03\x01\x00\x02\x01\x00" + b"\x17\x03\x01\x00\x01\x00",
        b"\x16\x03\x01\x00\x00" * 40,
        b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03",
    ],
)
def test_a_malformed_hello_is_refused_by_openssl(plain: TlsContexts, data: bytes) -> None:
    for given_bytes in ([data], [bytes([byte]) for byte in data]):
        server = Driven(TlsLayer(plain))
        for piece in given_bytes:
            server.give(piece)
        assert server.failure is not None
        # An alert.
        assert server.output.startswith(b"\x15\x03")


def hello_records(length: int) -> bytes:
    """The beginning of a ClientHello that claims to be long, in records of one byte each."""
    message = b"\x01" + length.to_bytes(3, "big")
    return b"".join(b"\x16\x03\x01\x00\x01" + bytes([byte]) for byte in message)


def test_an_endless_hello_is_bounded(plain: TlsContexts) -> None:
    record = b"\x16\x03\x01\x00\x01\x00"
    for step in (record, record * 2_000, record * 20_000):
        server = Driven(TlsLayer(plain))
        server.give(hello_records(1 << 20))
        given_bytes = 0
        while server.failure is None:
            server.give(step)
            given_bytes += len(step)
        assert server.failure == (
            "the client sent 32768 bytes without completing the TLS handshake"
        )
        assert given_bytes <= MAXIMUM_HANDSHAKE_BYTES + len(step)
        assert server.output == b""


def test_an_endless_handshake_is_bounded(files: TlsFiles) -> None:
    """A message after the ClientHello that claims to be long is bounded, too."""
    contexts = TlsContexts(files.demanding())
    client = Client(client_context(files, "client", version=TLS_1_2))
    server = Driven(TlsLayer(contexts))
    server.give(client.step())
    # A certificate message of 90,000 bytes.
    message = b"\x0b" + (90_000).to_bytes(3, "big") + bytes(8_000)
    for _ in range(20):
        server.give(b"\x16\x03\x03" + len(message).to_bytes(2, "big") + message)
        message = bytes(8_000)
    assert server.failure == "the client sent 32768 bytes without completing the TLS handshake"


def test_while_a_step_runs_bytes_are_buffered_up_to_a_bound(
    files: TlsFiles, plain: TlsContexts
) -> None:
    client, layer = Client(client_context(files)), TlsLayer(plain)
    assert layer.receive(client.step()) == b""
    assert layer.has_work
    assert layer.receive(bytes(MAXIMUM_HANDSHAKE_BYTES)) == b""
    assert layer.receive(b"") == layer.take_output() == b""
    with pytest.raises(LayerFailed, match="more than 32768 bytes without waiting"):
        layer.receive(b"x")


def test_a_step_runs_in_another_thread_while_bytes_arrive(
    files: TlsFiles, plain: TlsContexts
) -> None:
    client, layer = Client(client_context(files, version=TLS_1_3)), TlsLayer(plain)
    layer.receive(client.step())
    thread = threading.Thread(target=layer.work)
    thread.start()
    thread.join()
    # The shell has not yet heard that the step is done.
    assert layer.take_output() == b""
    assert layer.receive(b"") == b""
    client.incoming.write(layer.take_output())
    finished = client.step()
    client.tls.write(CONNECT)
    assert layer.receive(finished) == b""
    assert layer.receive(client.step()) == b""
    thread = threading.Thread(target=layer.work)
    thread.start()
    thread.join()
    assert layer.version is None
    assert layer.receive(b"") == CONNECT
    assert layer.version == "TLSv1.3"


def test_a_layer_that_is_closed_during_a_step_is_left_alone(
    files: TlsFiles, plain: TlsContexts
) -> None:
    client, layer = Client(client_context(files)), TlsLayer(plain)
    layer.receive(client.step())
    assert layer.close() == b""
    layer.work()
    assert layer.receive(b"") == layer.take_output() == layer.send(b"x") == b""


def test_a_half_handshake_is_closed_without_close_notify(
    files: TlsFiles, plain: TlsContexts
) -> None:
    client, layer = Client(client_context(files)), TlsLayer(plain)
    Driven(layer).give(client.step())
    assert layer.close() == b""


# --- another TLS ----------------------------------------------------------------------------------


# --- random input ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hellos(files: TlsFiles) -> list[bytes]:
    """First messages of clients."""
    return [
        Client(client_context(files, version=version, alpn=alpn)).step()
        for version in (TLS_1_2, TLS_1_3)
        for alpn in (None, ["mqtt"])
    ]


Feed = Callable[[bytes, list[int]], tuple[Driven, Driven]]


@pytest.fixture(scope="module")
def feed(files: TlsFiles, plain: TlsContexts) -> Feed:
    def both(data: bytes, places: list[int]) -> tuple[Driven, Driven]:
        whole, split = Driven(TlsLayer(plain)), Driven(TlsLayer(plain))
        whole.give(data)
        for piece in pieces(data, places):
            split.give(piece)
        return whole, split

    return both


@settings(max_examples=repeats(600, 150))
@given(data=st.data(), places=PLACES)
def test_random_first_bytes_fail_or_wait(
    hellos: list[bytes], feed: Feed, data: st.DataObject, places: list[int]
) -> None:
    start = st.sampled_from(
        [b"", b"\x16", b"\x16\x03\x01", b"\x16\x03\x01\x00\x20\x01\x00\x00\x1c"]
    )
    random = st.tuples(start, st.binary(max_size=400)).map(b"".join)
    given_bytes = data.draw(st.one_of(random, mutated(st.sampled_from(hellos))))
    whole, split = feed(given_bytes, places)
    assert whole.inner == split.inner == b""
    assert (whole.failure is None) == (split.failure is None)
    for driven in (whole, split):
        assert not driven.layer.is_established
        assert driven.failure is None or driven.failure.isprintable()
        assert len(driven.output) < 10_000


@settings(max_examples=repeats(200, 60))
@given(data=st.binary(max_size=60), place=st.integers(min_value=0), places=PLACES)
def test_random_bytes_in_an_established_connection_fail_or_wait(
    files: TlsFiles, plain: TlsContexts, data: bytes, place: int, places: list[int]
) -> None:
    client, _, server = connected(plain, client_context(files))
    client.tls.write(b"good")
    good = client.outgoing.read()
    client.tls.write(b"bad")
    bad = bytearray(client.outgoing.read())
    place %= len(bad)
    bad[place : place + 1] = data
    for piece in pieces(good + bytes(bad), places):
        server.give(piece)
    assert server.inner in (b"good", b"goodbad")


def test_a_hello_in_any_pieces_is_the_same(hellos: list[bytes]) -> None:
    for hello in hellos:
        body = hello[5:]
        for size in (1, 3, 100, len(body)):
            records = b"".join(
                b"\x16\x03\x01"
                + len(body[at : at + size]).to_bytes(2, "big")
                + body[at : at + size]
                for at in range(0, len(body), size)
            )
            reader = HelloReader()
            found = [reader.feed(bytes([byte])) for byte in records]
            assert found[:-1] == [None] * (len(found) - 1)
            assert found[-1] == HelloReader().feed(records)
            assert found[-1] is not None
            assert found[-1].server_name == "localhost"

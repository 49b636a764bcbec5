"""A server in this process with listeners of every transport."""

import asyncio
import re
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from semel.broker.authority import Authority, Denied, Proof
from semel.broker.identity import Identity, PeerInfo
from semel.broker.network import server as server_module
from semel.broker.network.listener_settings import TRANSPORTS, ListenerSettings
from semel.broker.network.listeners import (
    CannotListen,
    check_listeners,
    describe_listeners,
    listeners_event,
)
from semel.broker.network.server import Server
from semel.broker.settings import BrokerSettings
from semel.mqtt import Connect, Disconnect, Publish
from semel.settings import SettingsError
from tests.broker.broker_process import PATIENCE
from tests.broker.by_hand import Link, Pair, connect
from tests.broker.serving import Serving, serving
from tests.broker.tls_files import TlsFiles
from tests.broker.transports import Dialer, local_listener

LOOPS = pytest.mark.parametrize("loop", ["asyncio", "broker"])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=[True, False], ids=["epoll", "no epoll"])
def any_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system with epoll, and one without, where plain sockets are transports of the loop."""
    monkeypatch.setattr(server_module, "HAS_EPOLL", request.param)


class Remembering(Authority):
    """Admits everyone, and remembers where they come from."""

    def __init__(self) -> None:
        self.peers: dict[str, PeerInfo] = {}

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        self.peers[packet.client_id] = peer
        return super().connect(packet, peer)


class Listening:
    """A server with listeners, and who connects to them."""

    def __init__(self, served: Serving, listeners: list[ListenerSettings], files: TlsFiles) -> None:
        self.served = served
        self.dialers = {
            each.name: Dialer(each, address, files)
            for each, address in zip(listeners, served.addresses, strict=True)
        }

    def __getitem__(self, name: str) -> Dialer:
        return self.dialers[name]

    def until_logged(self, words: str) -> str:
        """The first line with these words, as soon as it is there."""
        deadline = time.monotonic() + PATIENCE
        while not (found := self.served.log.about(words)):
            assert time.monotonic() < deadline, self.served.log.lines
            time.sleep(0.005)
        return found[0]


@contextmanager
def listening(
    files: TlsFiles, *listeners: ListenerSettings, loop: str = "asyncio", **settings: Any
) -> Iterator[Listening]:
    """A server with these listeners; `authority` is among the settings."""
    authority = settings.pop("authority", None)
    given = BrokerSettings(sys_interval=0.0, **settings)
    with serving(given, authority=authority, loop=loop, listeners=listeners) as served:
        yield Listening(served, list(listeners), files)
    assert not served.log.about("Traceback")


def until_closed(sock: socket.socket) -> bytes:
    """What arrives until the peer closes."""
    received = b""
    with sock:
        try:
            while data := sock.recv(65_536):
                received += data
        except (ConnectionResetError, ssl.SSLError):
            pass
    return received


# --- every transport ------------------------------------------------------------------------------


@LOOPS
@pytest.mark.usefixtures("any_system")
def test_clients_of_all_transports_exchange_messages(
    files: TlsFiles, tmp_path: Path, loop: str
) -> None:
    listeners = [local_listener(each, files, tmp_path) for each in TRANSPORTS]
    with listening(files, *listeners, loop=loop) as there, ExitStack() as open_links:
        for transport in TRANSPORTS:
            with (
                there[transport].link("publisher") as publisher,
                there["tcp"].link("subscriber") as subscriber,
            ):
                Pair(publisher, subscriber).exchange()
        for transport in TRANSPORTS:
            with (
                there["tcp"].link("publisher") as publisher,
                there[transport].link("subscriber") as subscriber,
            ):
                pair = Pair(publisher, subscriber)
                pair.exchange()
                pair.exchange()
        ends = [open_links.enter_context(there[each].link(f"at {each}")) for each in TRANSPORTS]
        there.served.stop()
        for each in ends:
            # Each gets the reason, and then an end in order.
            assert each.until_closed() == [Disconnect(0x8B)]
    assert not (tmp_path / "socket").exists()


@LOOPS
@pytest.mark.usefixtures("any_system")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_large_message_arrives_whole(
    files: TlsFiles, tmp_path: Path, transport: str, loop: str
) -> None:
    payload = bytes(range(256)) * 4_000
    with (
        listening(files, local_listener(transport, files, tmp_path), loop=loop) as there,
        there[transport].link("a") as publisher,
        there[transport].link("b") as subscriber,
    ):
        subscriber.subscribe("t")
        for _ in range(3):
            publisher.send(Publish("t", payload))
        for message in subscriber.take(3):
            assert isinstance(message, Publish)
            assert message.payload == payload


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_bytes_may_arrive_one_by_one(files: TlsFiles, tmp_path: Path, transport: str) -> None:
    with (
        listening(files, local_listener(transport, files, tmp_path)) as there,
        there[transport].link() as client,
    ):
        for byte in connect():
            client.send_bytes(bytes([byte]))
        assert len(client.take(1)) == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_core_knows_listener_and_address(
    files: TlsFiles, tmp_path: Path, transport: str
) -> None:
    authority = Remembering()
    with (
        listening(
            files, local_listener(transport, files, tmp_path, name="here"), authority=authority
        ) as there,
        there["here"].link("a"),
        there["here"].link("b"),
    ):
        first, second = authority.peers["a"], authority.peers["b"]
    assert (first.listener, first.certificate) == ("here", None)
    if transport == "unix":
        assert (first.label, second.label) == ("unix:here#1", "unix:here#2")
        assert first.address == second.address == "unix"
    else:
        assert re.fullmatch(r"127\.0\.0\.1:\d+", first.label)
        assert first.address == "127.0.0.1"


@LOOPS
def test_an_ipv6_address_is_in_brackets_in_the_log(
    files: TlsFiles, tmp_path: Path, loop: str
) -> None:
    listener = local_listener("tcp", files, tmp_path, host="::1")
    with listening(files, listener, loop=loop) as there, there["tcp"].link("a"):
        assert re.search(r"'a' \(\[::1\]:\d+\) connected", there.until_logged("connected with"))


# --- TLS ------------------------------------------------------------------------------------------


def test_the_name_of_a_client_certificate_reaches_the_core(files: TlsFiles, tmp_path: Path) -> None:
    authority = Remembering()
    listener = local_listener(
        "tls", files, tmp_path, client_certificate="optional", cafile=files / "ca.pem"
    )
    with listening(files, listener, authority=authority) as there:
        dialer = there["tls"]
        for client_id, certificate in (("with", "client"), ("without", None)):
            raw = dialer.encrypted(dialer.raw(), certificate=certificate)
            made = Link(dialer.address, connected=raw)
            assert made.connect(client_id).reason == 0
            made.close()
    assert authority.peers["with"].certificate == "client"
    assert authority.peers["without"].certificate is None


def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    files: TlsFiles, tmp_path: Path
) -> None:
    listener = local_listener(
        "tls", files, tmp_path, client_certificate="required", cafile=files / "ca.pem"
    )
    with listening(files, listener) as there:
        dialer = there["tls"]
        refused = dialer.encrypted(dialer.raw())
        # TLS 1.3: the client learns it after its own part of the handshake.
        assert until_closed(refused) == b""
        assert there.until_logged("closed: ").count("certificate") >= 1
        accepted = dialer.encrypted(dialer.raw(), certificate="client")
        made = Link(dialer.address, connected=accepted)
        assert made.connect("a").reason == 0
        made.close()


def test_the_server_name_selects_the_certificate(files: TlsFiles, tmp_path: Path) -> None:
    listener = local_listener(
        "tls",
        files,
        tmp_path,
        sni=(f"other.example={files / 'other.pem'}:{files / 'other.key'}",),
    )
    with listening(files, listener) as there:
        for name in ("localhost", "other.example"):
            with there["tls"].encrypted(there["tls"].raw(), server_name=name) as secure:
                found = secure.getpeercert()
                assert found is not None
                assert found["subjectAltName"] == (("DNS", name),)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"certfile": Path("/nowhere.pem")}, "certfile '/nowhere.pem': No such file or directory"),
        ({"keyfile": Path("/nowhere.key")}, "keyfile '/nowhere.key': No such file or directory"),
        (
            {"key_password_file": Path("/nowhere")},
            "key_password_file '/nowhere': No such file or directory",
        ),
        ({"ciphers": "none such"}, "ciphers: OpenSSL has none of 'none such'"),
    ],
)
def test_tls_files_that_cannot_be_used_are_one_sentence(
    files: TlsFiles, tmp_path: Path, keys: dict[str, Any], problem: str
) -> None:
    listener = local_listener("tls", files, tmp_path, **keys)
    with pytest.raises(SettingsError) as caught:
        check_listeners([listener], has_users=False)
    assert str(caught.value).startswith(f"listener tls: {problem}")
    with pytest.raises(CannotListen, match=f"^listener tls: {re.escape(problem)}"):
        open_and_close(listener)
    check_listeners([local_listener("tls", files, tmp_path)], has_users=False)


def test_a_key_may_have_a_password_in_a_file(files: TlsFiles, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key((files / "server.key").read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"a password"),
        )
    )
    (tmp_path / "password").write_bytes(b"a password\r\nand a remark")
    for keys in ({"key_password_file": tmp_path / "password"}, {"key_password": "a password"}):
        listener = local_listener("tls", files, tmp_path, keyfile=encrypted, **keys)
        with listening(files, listener) as there, there["tls"].link("a"):
            pass
    wrong = local_listener("tls", files, tmp_path, keyfile=encrypted, key_password="a guess")
    with pytest.raises(SettingsError, match="the password does not decrypt the key"):
        check_listeners([wrong], has_users=False)


@pytest.mark.parametrize("transport", ["ws", "wss"])
def test_without_the_package_for_websocket_the_sentence_says_what_to_install(
    files: TlsFiles, tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where it is not installed.
    monkeypatch.setitem(sys.modules, "websockets", None)
    listener = local_listener(transport, files, tmp_path)
    with pytest.raises(SettingsError) as caught:
        check_listeners([listener], has_users=False)
    assert str(caught.value) == (
        f"listener {transport}: transport {transport} needs websockets: pip install 'semel[broker]'"
    )


# --- who speaks something else --------------------------------------------------------------------

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
PROXY_1 = b"PROXY TCP4 192.0.2.9 192.0.2.1 4711 1883\r\n"
PROXY_2 = (
    b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24" + bytes(15) + b"\x01" + bytes(16) + b"\x12\x67\x07\x5b"
)


@pytest.mark.parametrize(
    ("transport", "data", "why"),
    [
        (
            "tcp",
            b"\x16\x03\x01\x00\xa5\x01",
            "it sent a TLS handshake, but listener here expects MQTT over tcp: use a listener "
            "with transport tls",
        ),
        (
            "tcp",
            GET,
            "it sent an HTTP request, but listener here expects MQTT over tcp: use a listener "
            "with transport ws",
        ),
        (
            "unix",
            GET,
            "it sent an HTTP request, but listener here expects MQTT over unix",
        ),
        (
            "tcp",
            PROXY_1 + connect(),
            "it sent a PROXY protocol header, but proxy_protocol is false for listener here: set "
            "it to true if only proxies can reach this listener",
        ),
        (
            "tls",
            PROXY_2 + connect(),
            "it sent a PROXY protocol header, but proxy_protocol is false for listener here: set "
            "it to true if only proxies can reach this listener",
        ),
        (
            "tls",
            connect(),
            "this port expects TLS; the client sent an MQTT CONNECT without TLS",
        ),
    ],
)
def test_the_log_says_what_a_client_got_wrong(
    files: TlsFiles, tmp_path: Path, transport: str, data: bytes, why: str
) -> None:
    with listening(files, local_listener(transport, files, tmp_path, name="here")) as there:
        raw = there["here"].raw()
        raw.sendall(data)
        until_closed(raw)
        line = there.until_logged("closed: ")
        assert line.endswith(f" closed: {why}")
        assert line.startswith("unix:here#1 " if transport == "unix" else "127.0.0.1:")
        with there["here"].link("a"):
            pass
        assert len(there.served.log.about("closed: ")) == 1


def test_http_inside_tls_is_recognized(files: TlsFiles, tmp_path: Path) -> None:
    with listening(files, local_listener("tls", files, tmp_path)) as there:
        secure = there["tls"].encrypted(there["tls"].raw())
        secure.sendall(GET)
        until_closed(secure)
        assert there.until_logged("inside TLS").endswith(
            "it sent an HTTP request inside TLS, but listener tls expects MQTT over tls: use a "
            "listener with transport wss"
        )


def test_an_address_gets_one_line_for_many_failures(files: TlsFiles, tmp_path: Path) -> None:
    with listening(files, local_listener("tcp", files, tmp_path)) as there:
        for _ in range(20):
            raw = there["tcp"].raw()
            raw.sendall(GET)
            until_closed(raw)
        assert len(there.served.log.about("closed: ")) == 1


# --- PROXY protocol -------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["tcp", "tls", "unix"])
@pytest.mark.parametrize(
    ("header", "label", "address"),
    [(PROXY_1, "192.0.2.9:4711", "192.0.2.9"), (PROXY_2, "[::1]:4711", "::")],
)
def test_the_address_of_a_client_is_that_in_the_header(
    files: TlsFiles, tmp_path: Path, transport: str, header: bytes, label: str, address: str
) -> None:
    authority = Remembering()
    listener = local_listener(transport, files, tmp_path, proxy_protocol=True)
    with listening(files, listener, authority=authority) as there:
        dialer = there[transport]
        raw = dialer.raw()
        raw.sendall(header)
        made = Link(dialer.address, connected=dialer.encrypted(raw) if transport == "tls" else raw)
        assert made.connect("a").reason == 0
        made.close()
    assert authority.peers["a"].label == label
    assert authority.peers["a"].address == address


def test_without_an_address_in_the_header_that_of_the_socket_counts(
    files: TlsFiles, tmp_path: Path
) -> None:
    authority = Remembering()
    listener = local_listener("tcp", files, tmp_path, proxy_protocol=True)
    with listening(files, listener, authority=authority) as there:
        raw = there["tcp"].raw()
        raw.sendall(b"PROXY UNKNOWN\r\n")
        made = Link(there["tcp"].address, connected=raw)
        assert made.connect("a").reason == 0
        made.close()
    assert authority.peers["a"].address == "127.0.0.1"


def test_without_a_header_where_one_is_expected_the_connection_is_closed(
    files: TlsFiles, tmp_path: Path
) -> None:
    listener = local_listener("tcp", files, tmp_path, proxy_protocol=True)
    with listening(files, listener) as there:
        raw = there["tcp"].raw()
        raw.sendall(connect())
        assert until_closed(raw) == b""
        there.until_logged("this port expects a PROXY protocol header; the peer sent an MQTT")


# --- bounds ---------------------------------------------------------------------------------------


@LOOPS
def test_half_open_handshakes_are_bounded_and_harm_nobody(
    files: TlsFiles, tmp_path: Path, loop: str
) -> None:
    listeners = [local_listener(each, files, tmp_path) for each in ("tcp", "tls")]
    with (
        listening(files, *listeners, loop=loop, maximum_unconnected=5) as there,
        there["tls"].link("a") as publisher,
        there["tcp"].link("b") as subscriber,
        ExitStack() as opened,
    ):
        pair = Pair(publisher, subscriber)
        half_open = [opened.enter_context(there["tls"].raw()) for _ in range(30)]
        for each in half_open:
            each.settimeout(PATIENCE)
        # The oldest are closed, the newest are not.
        for each in half_open[:25]:
            assert each.recv(1) == b""
        pair.exchange()
        there.until_logged("it had not connected yet: maximum_unconnected is 5")
        # One that has begun can still complete its handshake.
        with there["tls"].encrypted(half_open[-1]) as secure:
            secure.sendall(connect())
            assert secure.recv(1) == b"\x20"


@pytest.mark.parametrize("transport", ["tls", "ws", "wss"])
def test_a_slow_handshake_ends_in_time(files: TlsFiles, tmp_path: Path, transport: str) -> None:
    listener = local_listener(transport, files, tmp_path, connect_timeout=0.5)
    with listening(files, listener, connect_timeout=60.0) as there:
        raw = there[transport].raw()
        raw.sendall(b"\x16\x03" if transport != "ws" else b"GET /mq")
        assert until_closed(raw) == b""
        there.until_logged("its handshake was not complete in time (connect_timeout)")
        with there[transport].link("a"):
            pass


def test_a_proxy_header_that_does_not_come_ends_in_time(files: TlsFiles, tmp_path: Path) -> None:
    listener = local_listener("tcp", files, tmp_path, proxy_protocol=True, connect_timeout=0.5)
    with listening(files, listener) as there:
        raw = there["tcp"].raw()
        raw.sendall(b"PROXY TCP4 ")
        assert until_closed(raw) == b""
        there.until_logged("its handshake was not complete in time")


def test_handshake_and_connect_share_one_deadline(files: TlsFiles, tmp_path: Path) -> None:
    listener = local_listener("tls", files, tmp_path, connect_timeout=0.5)
    with listening(files, listener) as there:
        secure = there["tls"].encrypted(there["tls"].raw())
        assert until_closed(secure) == b""
        there.until_logged("not connected within connect_timeout")


@LOOPS
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_many_quick_connections_are_forgotten(
    files: TlsFiles, tmp_path: Path, transport: str, loop: str
) -> None:
    with (
        listening(files, local_listener(transport, files, tmp_path), loop=loop) as there,
        there[transport].link("a") as publisher,
        there[transport].link("b") as subscriber,
    ):
        pair = Pair(publisher, subscriber)
        for index in range(200):
            raw = there[transport].raw()
            if index % 2:
                raw.sendall(b"\x16\x03\x01")
            raw.close()
        pair.exchange()


@pytest.mark.parametrize("transport", ["tcp", "tls"])
def test_an_address_may_open_only_so_many_connections_per_second(
    files: TlsFiles, tmp_path: Path, transport: str
) -> None:
    listener = local_listener(transport, files, tmp_path, connections_per_second=0.01)
    with listening(files, listener) as there, there[transport].link("a") as first:
        raw = there[transport].raw()
        assert until_closed(raw) == b""
        there.until_logged("closed: its address opens more than 0.01 connections per second")
        first.ping()


def test_with_a_proxy_the_rate_is_that_of_its_clients(files: TlsFiles, tmp_path: Path) -> None:
    listener = local_listener(
        "tcp", files, tmp_path, proxy_protocol=True, connections_per_second=0.01
    )
    with listening(files, listener) as there:

        def received(number: int) -> bytes:
            raw = there["tcp"].raw()
            raw.sendall(b"PROXY TCP4 192.0.2.%d 192.0.2.1 1 1\r\n" % number + connect(b""))
            with raw:
                try:
                    return raw.recv(1)
                except ConnectionResetError:
                    return b""

        assert [received(each) for each in (1, 2, 1, 2, 3)] == [b"\x20", b"\x20", b"", b"", b"\x20"]


def test_each_listener_has_its_own_limits(files: TlsFiles, tmp_path: Path) -> None:
    listeners = [
        local_listener("tcp", files, tmp_path, name="small", maximum_packet_size=100),
        local_listener("tcp", files, tmp_path, name="large"),
    ]
    with listening(files, *listeners) as there:
        for name, expected in (("small", 100), ("large", 1024 * 1024)):
            with there[name].link() as client:
                connack = client.connect("a")
                assert connack.properties.maximum_packet_size == expected
                client.send(Publish("t", bytes(200)))
                if name == "small":
                    (last,) = client.until_closed()
                    assert isinstance(last, Disconnect)
                    assert last.reason == 0x95
                else:
                    client.ping()


def test_a_rate_of_a_listener_slows_its_clients_down(files: TlsFiles, tmp_path: Path) -> None:
    listener = local_listener("tcp", files, tmp_path, messages_per_second=20)
    with listening(files, listener) as there, there["tcp"].link("a") as client:
        began = time.monotonic()
        # A burst of a second, which passes at once, and as much again.
        client.send(*[Publish("t")] * 40)
        client.ping()
        client.ping()
        assert time.monotonic() - began >= 0.9


# --- opening --------------------------------------------------------------------------------------


def opened(
    *listeners: ListenerSettings, check: Callable[[Server], None] = lambda server: None
) -> None:
    async def run() -> None:
        server = Server(BrokerSettings(), listeners=listeners)
        try:
            await server.start()
            check(server)
        finally:
            await server.stop()

    asyncio.run(run())


def open_and_close(*listeners: ListenerSettings) -> None:
    opened(*listeners)


def test_all_listeners_are_opened_or_none(files: TlsFiles, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listeners = [
            local_listener("unix", files, tmp_path),
            local_listener("tcp", files, tmp_path, name="first"),
            local_listener("tcp", files, tmp_path, name="second", port=port),
        ]
        with pytest.raises(CannotListen) as caught:
            open_and_close(*listeners)
    assert str(caught.value) == f"127.0.0.1:{port} is in use by another program (listener second)"
    assert not (tmp_path / "socket").exists()
    open_and_close(*listeners)


def test_an_address_that_is_taken_after_it_was_bound_is_a_sentence(
    files: TlsFiles, tmp_path: Path
) -> None:
    """Two sockets may be bound to one port as long as none of them listens."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        listener = local_listener("tcp", files, tmp_path, port=port)

        async def run() -> None:
            server = Server(BrokerSettings(), listeners=[listener])
            try:
                await server.listeners[0].bind(has_users=False)
                taken.listen()
                await server.listeners[0].accept()
            finally:
                await server.stop()

        with pytest.raises(
            CannotListen, match=rf"^127\.0\.0\.1:{port} is in use by another program$"
        ):
            asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "problem"),
    [
        ("198.51.100.1", "cannot listen on 198.51.100.1:0: 198.51.100.1 is not an address of "),
        ("no such host", "cannot listen on no such host:0: "),
        ("a..b", "cannot listen on a..b:0: "),
    ],
)
def test_a_host_where_nobody_can_listen_is_a_sentence(host: str, problem: str) -> None:
    listener = ListenerSettings(name="one", host=host, port=0, anonymous=True)
    with pytest.raises(CannotListen) as caught:
        open_and_close(listener)
    assert str(caught.value).startswith(problem)


def test_a_socket_file_in_use_is_a_sentence(files: TlsFiles, tmp_path: Path) -> None:
    listener = local_listener("unix", files, tmp_path)
    with listening(files, listener) as there:
        with pytest.raises(CannotListen) as caught:
            open_and_close(listener)
        assert str(caught.value) == (
            f"cannot listen on unix:{tmp_path}/socket: it is in use by another program"
        )
        with there["unix"].link("a"):
            pass


def test_strangers_are_kept_out_when_the_listener_is_opened() -> None:
    open_to_all = ListenerSettings(name="web", host="0.0.0.0", port=0)
    with pytest.raises(CannotListen, match=r"listener web .* would let strangers in"):
        open_and_close(open_to_all)
    with pytest.raises(SettingsError, match=r"listener web .* would let strangers in"):
        check_listeners([open_to_all], has_users=False)
    check_listeners([open_to_all], has_users=True)
    open_and_close(ListenerSettings(name="web", host="0.0.0.0", port=0, anonymous=True))


def test_the_log_and_the_event_name_every_listener(files: TlsFiles, tmp_path: Path) -> None:
    def check(server: Server) -> None:
        (tls, tcp, _) = [each.bound_address() for each in server.listeners]
        assert tls is not None
        assert tcp is not None
        assert describe_listeners(server.listeners) == (
            f"[::1]:{tcp[1]}, 127.0.0.1:{tls[1]} (tls), unix:{tmp_path}/socket"
        )
        assert listeners_event(server.listeners) == {
            "host": "::1",
            "port": tcp[1],
            "listeners": [
                {"name": "tls", "transport": "tls", "host": "127.0.0.1", "port": tls[1]},
                {"name": "tcp", "transport": "tcp", "host": "::1", "port": tcp[1]},
                {"name": "unix", "transport": "unix", "path": f"{tmp_path}/socket"},
            ],
        }

    def check_unix(server: Server) -> None:
        event = listeners_event(server.listeners)
        assert list(event) == ["listeners"]

    opened(
        local_listener("tls", files, tmp_path),
        local_listener("tcp", files, tmp_path, host="::1"),
        local_listener("unix", files, tmp_path),
        check=check,
    )
    opened(local_listener("unix", files, tmp_path), check=check_unix)

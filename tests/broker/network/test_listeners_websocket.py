"""The statements of section 6 about a server, and what else a WebSocket listener does."""

import base64
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.frames import Close, CloseCode, Frame, Opcode

from semel.broker.network.listener_settings import WEBSOCKET
from semel.mqtt import MQTT5, MQTT311, Connect, PingReq, encode
from tests.broker.by_hand import Link
from tests.broker.network.test_listeners import Listening, listening
from tests.broker.tls_files import TlsFiles
from tests.broker.transports import WebSocketEnd, local_listener

VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=WEBSOCKET)
def there(
    request: pytest.FixtureRequest, files: TlsFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Listening]:
    """A broker with one listener, named web."""
    folder = tmp_path_factory.mktemp("sockets")
    listener = local_listener(
        request.param, files, folder, name="web", origins=("https://plant.example",)
    )
    with listening(files, listener) as found:
        yield found


def secured(there: Listening) -> socket.socket:
    """A socket before the WebSocket handshake."""
    raw = there["web"].raw()
    return there["web"].encrypted(raw) if there["web"].listener.transport == "wss" else raw


def opened(there: Listening) -> WebSocketEnd:
    end = there["web"].connected()
    assert isinstance(end, WebSocketEnd)
    return end


def frame(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin=fin).serialize(mask=True)


def close_code(end: WebSocketEnd) -> int | None:
    """The code of the close frame that ends the connection."""
    while end.recv(65_536):
        pass
    received = end.protocol.close_rcvd
    end.close()
    return None if received is None else received.code


# --- frames ---------------------------------------------------------------------------------------


@VERSIONS
def test_a_text_frame_closes_the_connection(there: Listening, version: int) -> None:
    """[MQTT-6.0.0-1]"""
    end = opened(there)
    end.raw.sendall(frame(Opcode.TEXT, encode(Connect("a", version=version), version)))
    assert close_code(end) == CloseCode.UNSUPPORTED_DATA
    there.until_logged("MQTT is in binary frames only [MQTT-6.0.0-1]")


@VERSIONS
def test_answers_are_in_binary_frames(there: Listening, version: int) -> None:
    """[MQTT-6.0.0-1]"""
    end = opened(there)
    end.sendall(encode(Connect("a", version=version), version) + encode(PingReq(), version))
    seen: list[Opcode] = []
    received = b""
    while not received.endswith(b"\xd0\x00"):
        end.protocol.receive_data(end.raw.recv(65_536))
        for each in end.protocol.events_received():
            assert isinstance(each, Frame)
            seen.append(each.opcode)
            received += each.data
    assert set(seen) == {Opcode.BINARY}
    end.close()


@VERSIONS
def test_packets_need_not_begin_or_end_with_frames(there: Listening, version: int) -> None:
    """[MQTT-6.0.0-2] one byte per frame, two packets in one frame, fragments with a ping between"""
    end = opened(there)
    client = Link(("", 0), version, connected=end)
    for byte in encode(Connect("a", version=version), version):
        client.send_bytes(bytes([byte]))
    assert len(client.take(1)) == 1
    client.send(PingReq(), PingReq())
    assert len(client.take(2)) == 2
    end.raw.sendall(
        frame(Opcode.BINARY, b"\xc0", fin=False)
        + frame(Opcode.PING, b"are you there")
        + frame(Opcode.CONT, b"\x00")
    )
    assert len(client.take(1)) == 1
    client.close()


def test_a_close_frame_is_answered(there: Listening) -> None:
    end = opened(there)
    end.raw.sendall(frame(Opcode.CLOSE, Close(CloseCode.NORMAL_CLOSURE, "").serialize()))
    assert close_code(end) == CloseCode.NORMAL_CLOSURE


def test_a_frame_beyond_the_largest_packet_closes_the_connection(there: Listening) -> None:
    end = opened(there)
    end.raw.sendall(b"\x82\xff" + (1 << 40).to_bytes(8, "big") + b"mask")
    assert close_code(end) == CloseCode.MESSAGE_TOO_BIG


def test_an_end_of_the_broker_is_announced(files: TlsFiles, tmp_path: Path) -> None:
    with listening(files, local_listener("ws", files, tmp_path, name="web")) as there:
        end = opened(there)
        there.served.stop()
        assert close_code(end) == CloseCode.GOING_AWAY


# --- the request ----------------------------------------------------------------------------------


def answer_to(there: Listening, request: bytes) -> bytes:
    with secured(there) as sock:
        sock.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received:
            data = sock.recv(65_536)
            if not data:
                break
            received += data
    return received


def request_for(
    path: str = "/mqtt", *, protocols: str | None = "mqtt", origin: str | None = None
) -> bytes:
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    lines = [
        *(f"GET {path} HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade"),
        *(f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13"),
    ]
    if protocols is not None:
        lines.append(f"Sec-WebSocket-Protocol: {protocols}")
    if origin is not None:
        lines.append(f"Origin: {origin}")
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize("protocols", ["mqtt", "mqttv3.1, mqtt", "mqtt, other"])
def test_the_subprotocol_mqtt_is_selected(there: Listening, protocols: str) -> None:
    """[MQTT-6.0.0-4]"""
    found = answer_to(there, request_for(protocols=protocols))
    assert found.startswith(b"HTTP/1.1 101 ")
    assert re.findall(rb"(?im)^sec-websocket-protocol: *(.*?)\r$", found) == [b"mqtt"]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (request_for(protocols=None), b"400"),
        (request_for(protocols="mqttv3.1"), b"400"),
        (request_for("/other"), b"404"),
        (request_for(origin="https://evil.example"), b"403"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"426"),
        (b"POST /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
        (b"GET /mqtt HTTP/1.1\r\nX: " + bytes(9_000).replace(b"\0", b"x"), b"431"),
    ],
)
def test_any_other_request_is_refused(
    there: Listening, request_bytes: bytes, status: bytes
) -> None:
    assert answer_to(there, request_bytes).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("origin", [None, "https://plant.example"])
def test_the_right_origin_and_programs_without_one_are_accepted(
    there: Listening, origin: str | None
) -> None:
    assert answer_to(there, request_for(origin=origin)).startswith(b"HTTP/1.1 101 ")


def test_a_client_of_plain_mqtt_is_told_apart_in_the_log(there: Listening) -> None:
    with secured(there) as sock:
        sock.sendall(encode(Connect("a"), MQTT5))
        while sock.recv(65_536):
            pass
    assert there.served.log.about("MQTT CONNECT") or there.served.log.about("closed: ")

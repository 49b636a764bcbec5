"""MQTT inside WebSocket: section 6 of both standards, mosquitto, and servers that do it wrongly."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from semel.client.address import parse_address
from semel.client.connector import open_transport
from semel.client.tls import make_context
from semel.client.transport import CannotConnect, Transport
from tests.client.certificates import Certificates
from tests.client.listening import Heard, cancel_at_every_turn, opened, reset, run, serving
from tests.client.mosquitto import CONNACK, CONNECT, mosquitto
from tests.client.websocket_server import (
    Request,
    answer_close,
    read_request,
    response,
    shake_hands,
)

Run = Callable[[Coroutine[Any, Any, None]], None]
LARGE = bytes(range(256)) * 4 * 1024
NORMAL = (1000).to_bytes(2, "big")


@pytest.fixture(params=["asyncio", "uvloop"], name="on_loop")
def a_loop(request: pytest.FixtureRequest) -> Run:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return lambda main: run(main, request.param)


class Broker(NamedTuple):
    """Ports of a mosquitto, and who signed its certificate."""

    plain: int
    secure: int
    mqtt: int
    files: Certificates


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    missing = [each for each in ("mosquitto", "openssl") if shutil.which(each) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    files = Certificates(tmp_path_factory.mktemp("certificates"))
    secure = [f"certfile {files / 'server.pem'}", f"keyfile {files / 'server.key'}"]
    folder = tmp_path_factory.mktemp("mosquitto")
    websockets = "protocol websockets"
    with mosquitto(folder, [websockets], [websockets, *secure], []) as ports:
        plain, tls, mqtt = ports
        yield Broker(plain, tls, mqtt, files)


async def refusal(port: int, **more: Any) -> str:
    """Why there is no WebSocket, without the beginning that all sentences have."""
    with pytest.raises(CannotConnect) as caught:
        await open_transport(parse_address(f"ws://127.0.0.1:{port}"), Heard(), **more)
    beginning, _, why = str(caught.value).partition("/mqtt: ")
    assert beginning == f"cannot connect to ws://127.0.0.1:{port}"
    return why


# --- mosquitto ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["ws", "wss"])
def test_mosquitto_speaks_mqtt_inside_websocket(on_loop: Run, broker: Broker, scheme: str) -> None:
    subscribe = bytes.fromhex("820600010001") + b"t" + b"\0"
    suback = bytes.fromhex("9003000100")
    # A PUBLISH that takes several frames; of a larger one, mosquitto takes 4 KiB every 100 ms.
    payload = LARGE[:20_000]
    remaining = 2 + 1 + len(payload)
    size = bytes([remaining & 0x7F | 0x80, remaining >> 7 & 0x7F | 0x80, remaining >> 14])
    publish = b"\x30" + size + b"\0\x01t" + payload

    async def main() -> None:
        if scheme == "ws":
            url, context = f"ws://localhost:{broker.plain}", None
        else:
            url = f"wss://localhost:{broker.secure}/any"
            context = make_context(cafile=broker.files / "ca.pem")
        heard = Heard()
        transport = await opened(url, heard, tls=context)
        assert transport.peer == f"127.0.0.1:{broker.plain if scheme == 'ws' else broker.secure}"
        transport.write(CONNECT)
        assert await heard.bytes(len(CONNACK)) == CONNACK
        transport.write(subscribe)
        assert await heard.bytes(len(suback)) == suback
        transport.write(publish)
        assert await heard.bytes(len(publish)) == publish
        transport.write(bytes.fromhex("e000"))
        transport.close()
        assert await heard.end() is None

    on_loop(main())


def test_a_listener_that_is_not_for_websocket_is_refused(on_loop: Run, broker: Broker) -> None:
    async def main() -> None:
        told = await refusal(broker.mqtt)
        assert told in (
            "WebSocket: the server closed the connection during the handshake",
            "WebSocket: connection reset by peer",
        )

    on_loop(main())


# --- the handshake --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "path", "host"),
    [
        ("", "/mqtt", "127.0.0.1"),
        ("/", "/", "127.0.0.1"),
        ("/a%20b?token=c%2Fd&e", "/a%20b?token=c%2Fd&e", "127.0.0.1"),
        ("/größe", "/gr%C3%B6%C3%9Fe", "127.0.0.1"),
    ],
)
def test_mqtt_is_offered_and_nothing_else(on_loop: Run, rest: str, path: str, host: str) -> None:
    """[MQTT-6.0.0-3]"""

    async def main() -> None:
        requests: list[Request] = []

        async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            requests.append(await shake_hands(reader, writer))
            assert await answer_close(reader, writer) == NORMAL

        async with serving(keep) as port:
            heard = Heard()
            # User and password are for CONNECT, and no business of HTTP.
            transport = await opened(f"ws://ann:hunter2@{host}:{port}{rest}", heard)
            transport.close()
            assert await heard.end() is None
        (request,) = requests
        assert request.line == f"GET {path} HTTP/1.1"
        assert len(request.headers.pop("sec-websocket-key")) == 24
        assert request.headers == {
            "host": f"{host}:{port}",
            "upgrade": "websocket",
            "connection": "Upgrade",
            "sec-websocket-version": "13",
            "sec-websocket-protocol": "mqtt",
        }

    on_loop(main())


NOT_SELECTED = 'WebSocket: the server did not select the subprotocol "mqtt" [MQTT-6.0.0-4]'
ACCEPT = "WebSocket: invalid Sec-WebSocket-Accept header: "


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"Sec_WebSocket_Protocol": None}, NOT_SELECTED),
        ({"Sec_WebSocket_Protocol": "mqttv3.1"}, f"{NOT_SELECTED}, but selected mqttv3.1"),
        ({"Sec_WebSocket_Protocol": "MQTT"}, f"{NOT_SELECTED}, but selected MQTT"),
        ({"Sec_WebSocket_Protocol": "mqtt, amqp"}, f"{NOT_SELECTED}, but selected mqtt, amqp"),
        ({"Sec_WebSocket_Accept": "bm8="}, f"{ACCEPT}bm8="),
        ({"Sec_WebSocket_Accept": None}, "WebSocket: missing Sec-WebSocket-Accept header"),
        ({"Upgrade": None}, "WebSocket: missing Upgrade header"),
        ({"Upgrade": "h2c"}, "WebSocket: invalid Upgrade header: h2c"),
        ({"Connection": "close"}, "WebSocket: invalid Connection header: close"),
        (
            {"Sec_WebSocket_Extensions": "permessage-deflate"},
            "WebSocket: no extensions supported",
        ),
        ({"status": "200 OK"}, "WebSocket: the server answered HTTP 200"),
    ],
)
def test_an_answer_that_is_not_to_the_rules_is_refused(
    on_loop: Run, changes: dict[str, Any], why: str
) -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(response(await read_request(reader), **changes))

        async with serving(answer) as port:
            assert await refusal(port) == why

    on_loop(main())


@pytest.mark.parametrize("changes", [{}, {"Upgrade": "WebSocket"}, {"Connection": "x, upgrade"}])
def test_an_answer_to_the_rules_is_accepted(on_loop: Run, changes: dict[str, Any]) -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(response(await read_request(reader), **changes))
            await answer_close(reader, writer)

        async with serving(answer) as port:
            heard = Heard()
            transport = await opened(f"ws://127.0.0.1:{port}", heard)
            transport.close()
            assert await heard.end() is None

    on_loop(main())


CLOSED_EARLY = "WebSocket: the server closed the connection during the handshake"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone",
            "WebSocket: the server answered HTTP 404",
        ),
        # A body that ends with the connection.
        (b"HTTP/1.1 503 Busy\r\n\r\nlater", "WebSocket: the server answered HTTP 503"),
        (
            b"HTTP/1.1 301 Moved\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
            "WebSocket: the server answered HTTP 301",
        ),
        (b"", CLOSED_EARLY),
        (b"HTTP/1.1 101 Switch", CLOSED_EARLY),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n", CLOSED_EARLY),
        (
            b"\x20\x02\0\0\r\n",
            "WebSocket: the response is not HTTP: invalid HTTP status line:  \ufffd\ufffd\ufffd",
        ),
        (
            b"SSH-2.0-x\r\n",
            "WebSocket: the response is not HTTP: invalid HTTP status line: SSH-2.0-x",
        ),
        (b"x" * 100_000, "WebSocket: the response is not HTTP: line too long"),
    ],
)
def test_what_is_no_answer_is_one_sentence(on_loop: Run, answer: bytes, why: str) -> None:
    async def main() -> None:
        async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(answer)

        async with serving(say) as port:
            assert await refusal(port) == why

    on_loop(main())


def test_a_reset_in_the_handshake_is_one_sentence(on_loop: Run) -> None:
    async def main() -> None:
        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            reset(writer)
            writer.transport.abort()

        async with serving(cut) as port:
            assert await refusal(port) == "WebSocket: connection reset by peer"

    on_loop(main())


def test_a_server_that_never_answers_ends_with_the_time_out(on_loop: Run) -> None:
    async def main() -> None:
        async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                await reader.read()

        async with serving(wait) as port:
            assert await refusal(port, timeout=0.2) == "no answer within 0.2 s"

    on_loop(main())


def test_cancelling_at_any_point_leaves_nothing_open(on_loop: Run) -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await shake_hands(reader, writer)
                await answer_close(reader, writer)

        async with serving(answer) as port:

            async def begin() -> tuple[Transport, Heard]:
                heard = Heard()
                return await opened(f"ws://127.0.0.1:{port}", heard), heard

            for transport, heard in await cancel_at_every_turn(begin):
                transport.close()
                assert await heard.end() is None

    on_loop(main())


# --- the package ----------------------------------------------------------------------------------


def test_without_the_package_there_is_one_sentence_and_mqtt_still_works() -> None:
    program = """
import asyncio, sys
sys.modules["websockets"] = None
from semel.client.address import parse_address
from semel.client.connector import open_transport
from semel.client.transport import CannotConnect
from semel.extras import MissingExtra
for url in ("ws://127.0.0.1:1", "wss://127.0.0.1:1", "mqtt://127.0.0.1:1"):
    try:
        asyncio.run(open_transport(parse_address(url), None))
    except (CannotConnect, MissingExtra) as problem:
        print(type(problem).__name__, problem)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines() == [
        "MissingExtra a ws:// address needs websockets: pip install 'semel[client]'",
        "MissingExtra a wss:// address needs websockets: pip install 'semel[client]'",
        "CannotConnect cannot connect to mqtt://127.0.0.1:1: connection refused",
    ]

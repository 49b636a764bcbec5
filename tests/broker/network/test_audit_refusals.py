"""The audit log has whoever was turned away before CONNECT, on every transport."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from semel.broker.network.audit_log import AuditLog
from semel.broker.network.listener_settings import ListenerSettings
from semel.broker.network.server import Server
from semel.broker.oversight import Oversight
from semel.broker.settings import BrokerSettings
from semel.mqtt import Connect, encode
from tests.broker.broker_process import PATIENCE
from tests.broker.tls_files import TlsFiles
from tests.broker.transports import local_listener

HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
PROXY = b"PROXY TCP4 192.0.2.7 192.0.2.1 4444 1883\r\n"
WEBSOCKET = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
TEXT_FRAME = bytes.fromhex("818100000000") + b"x"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("certificates"))


@contextlib.asynccontextmanager
async def audited(
    listener: ListenerSettings, path: Path, **settings: Any
) -> AsyncIterator[tuple[Server, tuple[str, int]]]:
    """A server with one listener, and an audit log in this file."""
    oversight = Oversight()
    log = AuditLog(path, print, lines_per_minute=10)
    oversight.audit.write = log.write
    given = BrokerSettings(sys_interval=0.0, **settings)
    server = Server(given, listeners=[listener], oversight=oversight)
    await server.start()
    address = server.listeners[0].bound_address()
    assert address is not None
    try:
        yield server, address
    finally:
        await server.stop()
        log.close()


async def send_and_wait(address: tuple[str, int], *pieces: bytes) -> None:
    """Send pieces, with an answer between two of them, and wait until the broker closes."""
    reader, writer = await asyncio.open_connection(*address)
    for each in pieces:
        writer.write(each)
        if each is not pieces[-1]:
            await reader.read(65_536)
    with contextlib.suppress(ConnectionResetError):
        while await asyncio.wait_for(reader.read(65_536), PATIENCE):
            pass
    writer.transport.abort()


def refusals(path: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return [each for each in events if each["event"] == "refused"]


@pytest.mark.parametrize(
    ("transport", "keys", "pieces", "expected"),
    [
        ("tcp", {}, [HTTP], "it sent an HTTP request, but listener tcp expects MQTT over tcp"),
        ("tcp", {}, [PROXY], "it sent a PROXY protocol header, but proxy_protocol is false"),
        ("tcp", {}, [bytes.fromhex("10020000")], "PROTOCOL_NAME_IS_MQTT: "),
        ("tcp", {"proxy_protocol": True}, [b"PROXY TCP9 x\r\n"], "PROXY"),
        ("tls", {}, [b"\x16\x03\x01\x00\x04nope"], "TLS"),
        ("tls", {}, [PROXY], "it sent a PROXY protocol header, but proxy_protocol is false"),
        ("ws", {}, [HTTP], "WebSocket"),
        ("ws", {}, [WEBSOCKET, TEXT_FRAME], "text frame"),
    ],
)
def test_a_connection_that_does_not_speak_the_protocol_is_a_refusal(
    files: TlsFiles,
    tmp_path: Path,
    transport: str,
    keys: dict[str, Any],
    pieces: list[bytes],
    expected: str,
) -> None:
    path = tmp_path / "audit.jsonl"

    async def test() -> None:
        listener = local_listener(transport, files, tmp_path, **keys)
        async with audited(listener, path) as (_, address):
            await send_and_wait(address, *pieces)

    asyncio.run(asyncio.wait_for(test(), PATIENCE))
    (event,) = refusals(path)
    assert expected.lower() in event["detail"].lower()
    assert event["listener"] == transport
    assert event["address"].startswith("127.0.0.1:")
    assert set(event) == {"at", "event", "address", "listener", "detail"}


def test_a_refusal_behind_a_proxy_names_the_client(files: TlsFiles, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def test() -> None:
        listener = local_listener("tls", files, tmp_path, proxy_protocol=True)
        async with audited(listener, path) as (_, address):
            await send_and_wait(address, PROXY + b"\x16\x03\x01\x00\x04nope")

    asyncio.run(asyncio.wait_for(test(), PATIENCE))
    (event,) = refusals(path)
    assert event["address"] == "192.0.2.7:4444"


@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_what_is_not_complete_in_time_or_comes_too_often_is_a_refusal(
    files: TlsFiles, tmp_path: Path, transport: str
) -> None:
    path = tmp_path / "audit.jsonl"

    async def test() -> None:
        listener = local_listener(transport, files, tmp_path, connections_per_second=1.0)
        async with audited(listener, path) as (server, address):
            silent = [await asyncio.open_connection(*address) for _ in range(20)]
            refused = [asyncio.create_task(reader.read()) for reader, _ in silent]
            while len(refusals(path)) == 0:
                await asyncio.sleep(0.01)
            later = server.now() + server.listeners[0].limits.connect_timeout
            server.broker.sweep(later)
            server.handshakes.sweep(later)
            server.peers.tick()
            await asyncio.wait(refused)
            for each, (_, writer) in zip(refused, silent, strict=True):
                each.exception()
                writer.transport.abort()

    asyncio.run(asyncio.wait_for(test(), PATIENCE))
    text = path.read_text()
    assert "its address opens more than 1 connections per second" in text
    assert "connect_timeout" in text
    # Of twenty refusals of one address in one minute.
    assert len(refusals(path)) == 10
    (again,) = [each for each in map(json.loads, text.splitlines()) if "last" in each]
    assert (again["address"], again["count"]) == ("127.0.0.1", 10)


def test_who_connects_or_leaves_by_itself_is_no_refusal(files: TlsFiles, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    async def test() -> None:
        async with audited(local_listener("tcp", files, tmp_path), path) as (server, address):
            _, writer = await asyncio.open_connection(*address)
            writer.close()
            reader, writer = await asyncio.open_connection(*address)
            writer.write(encode(Connect("a")))
            assert await reader.read(1)
            # A layer that fails later ends the connection of a client.
            (peer,) = server.peers.by_number.values()
            peer.fail("a frame was too large")
            peer.abort()
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
            writer.transport.abort()

    asyncio.run(asyncio.wait_for(test(), PATIENCE))
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["event"] for each in events] == ["connected", "disconnected"]
    assert events[1]["detail"] == "a frame was too large"

"""Random lives of connections: whatever either end does, nothing raises, and `lost` comes once.

A history is a seed: what the server does and what the client does, turn by turn. Over TCP, TLS and
WebSocket, on asyncio's own loop and on uvloop.
"""

import asyncio
import random
import shutil
import ssl
from contextlib import suppress
from pathlib import Path

import pytest

from semel.client.address import parse_address
from semel.client.connector import open_transport
from semel.client.tls import make_context
from semel.client.transport import CannotConnect
from tests.client.certificates import Certificates
from tests.client.listening import Heard, reset, run, serving
from tests.client.websocket_server import (
    BINARY,
    PING,
    TEXT,
    close_frame,
    frame,
    read_request,
    response,
)

HISTORIES = 150
STEPS = 12
STEP_KINDS = ("write", "flood", "pause", "resume", "wait", "wait", "close", "abort")


class Server:
    """The other end, which may do anything at any time."""

    def __init__(self, random: random.Random, *, websocket: bool) -> None:
        self.random = random
        self.websocket = websocket

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # uvloop raises a RuntimeError for what is written to a connection that is gone.
        with suppress(OSError, RuntimeError, asyncio.IncompleteReadError):
            if self.websocket and self.random.random() < 0.9:
                writer.write(response(await read_request(reader)))
            for _ in range(self.random.randrange(STEPS)):
                await self.step(reader, writer)

    async def step(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind = self.random.choice(["read", "read", "write", "write", "flood", "wait", "reset"])
        if kind == "read":
            # Whoever waits for a client that says nothing would wait for ever.
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await reader.read(self.random.choice([1, 100, 100_000]))
        elif kind == "write":
            writer.write(self.word())
        elif kind == "flood":
            writer.write(self.word() + frame(BINARY, bytes(300_000)))
        elif kind == "wait":
            await asyncio.sleep(0)
        elif self.random.random() < 0.3 and writer.get_extra_info("socket") is not None:
            reset(writer)
            writer.transport.abort()
            raise ConnectionError

    def word(self) -> bytes:
        return self.random.choice(
            [
                frame(BINARY, b"word"),
                frame(PING, b"?") + frame(BINARY, b"word"),
                frame(TEXT, b"word"),
                frame(BINARY, b"half")[:-1],
                close_frame(1000),
                close_frame(1008, "no"),
                b"\xff" * 20,
            ]
        )


async def live(url: str, chance: random.Random, tls: ssl.SSLContext | None) -> str:
    """One life of a client. How it ended."""
    heard = Heard()
    try:
        transport = await open_transport(parse_address(url), heard, tls=tls, timeout=0.3)
    except CannotConnect:
        return "refused"
    heard.ready = True
    for _ in range(chance.randrange(STEPS)):
        kind = chance.choice(
            ["write", "flood", "pause", "resume", "wait", "wait", "close", "abort"]
        )
        if kind == "write":
            transport.write(b"word")
        elif kind == "flood":
            transport.write(bytes(1_000_000))
        elif kind == "pause":
            transport.pause_reading()
        elif kind == "resume":
            transport.resume_reading()
        elif kind == "wait":
            await asyncio.sleep(chance.choice([0, 0.001]))
        elif kind == "close" and chance.random() < 0.5:
            transport.close()
        elif kind == "abort" and chance.random() < 0.2:
            transport.abort()
    # Not `close`: a server that is in the middle of something might let us wait for it.
    transport.resume_reading()
    await asyncio.sleep(0.001)
    told = list(heard.losses)
    transport.abort()
    why = await heard.end()
    if not told:
        return "aborted"
    return "in order" if why is None else "with a reason"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("kind", ["mqtt", "mqtts", "ws"])
def test_whatever_happens_nothing_raises_and_the_end_comes_once(
    loop: str, kind: str, tmp_path: Path
) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    trusting = server_side = None
    if kind == "mqtts":
        if shutil.which("openssl") is None:
            pytest.skip("not installed: openssl")
        files = Certificates(tmp_path)
        trusting = make_context(cafile=files / "ca.pem")
        server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_side.load_cert_chain(files / "server.pem", files / "server.key")
    ends: dict[str, int] = {}

    async def main() -> None:
        for seed in range(HISTORIES):
            server = Server(random.Random(seed), websocket=kind == "ws")
            async with serving(server.handle, tls=server_side) as port:
                end = await live(f"{kind}://localhost:{port}", random.Random(-seed), trusting)
            ends[end] = ends.get(end, 0) + 1

    run(main(), loop)
    # They are not all alike.
    assert {"aborted", "in order", "with a reason"} <= ends.keys(), ends

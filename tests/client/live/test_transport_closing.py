"""A server that does not let go: `close` is bounded, and says so if the server missed something.

All that take the whole time to close do so at once, because it is five seconds.
"""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from semel.client.address import parse_address
from semel.client.connector import open_transport
from semel.client.tls import make_context
from semel.client.transport import HIGH_WATER
from tests.client.certificates import NEEDS_OPENSSL, Certificates
from tests.client.listening import PATIENCE, Heard, run, serving
from tests.client.websocket_server import shake_hands

UNREAD = "the peer did not read the rest within 5 s of closing"


@contextmanager
def holding_tls(context: ssl.SSLContext, connections: int) -> Iterator[int]:
    """A server that shakes hands, and then neither reads nor closes. asyncio always reads TLS."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def hold() -> None:
            held = []
            for _ in range(connections):
                accepted, _ = listening.accept()
                held.append(context.wrap_socket(accepted, server_side=True))
            over.wait(PATIENCE)
            for each in held:
                each.close()

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            over.set()
            thread.join(PATIENCE)


@NEEDS_OPENSSL
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_server_that_neither_reads_nor_closes_is_left_after_a_while(
    loop: str, tmp_path: Path
) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    files = Certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "server.pem", files / "server.key")

    async def main() -> None:
        over = asyncio.Event()

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await over.wait()

        async def hold_open(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # It has answered the handshake, and then no more.
            await shake_hands(reader, writer)
            await hold(reader, writer)

        async def leave(url: str, *, full: bool, tls: ssl.SSLContext | None = None) -> str | None:
            heard = Heard()
            transport = await open_transport(parse_address(url), heard, tls=tls)
            heard.ready = True
            while full and not heard.states:
                transport.write(bytes(HIGH_WATER))
                await asyncio.sleep(0)
            transport.close()
            return await heard.end()

        path = tmp_path / "socket"
        trusting = make_context(cafile=files / "ca.pem")
        async with (
            serving(hold) as tcp,
            serving(hold, path=path),
            serving(hold_open) as ws,
        ):
            with holding_tls(context, connections=2) as tls:
                said = await asyncio.gather(
                    *(leave(f"mqtt://127.0.0.1:{tcp}", full=full) for full in (False, True)),
                    *(leave(f"unix:{path}", full=full) for full in (False, True)),
                    *(leave(f"ws://127.0.0.1:{ws}", full=full) for full in (False, True)),
                    *(
                        leave(f"mqtts://localhost:{tls}", full=full, tls=trusting)
                        for full in (False, True)
                    ),
                )
            over.set()
        assert said == [None, UNREAD] * 4

    run(main(), loop)

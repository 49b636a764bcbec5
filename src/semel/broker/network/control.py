"""The control socket: a Unix socket on which `semel ctl` manages the broker.

Only the user who runs the broker, and root, may use it: by the mode of its file, and by the
credentials of the peer where the system knows them. Long answers are sent in pages, with a tick
between two of them, so that clients do not notice. An operator who reads too slowly is
disconnected.
"""

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from semel.broker.network.control_commands import ControlCommands, Operator, Values
from semel.broker.network.control_protocol import (
    MAXIMUM_REQUEST,
    BadRequest,
    decode_request,
    encode_entries,
    encode_line,
    reachable_path,
)
from semel.broker.network.unix_socket import UnixSocket

LOG: Final = logging.getLogger("semel.broker")

FILE_MODE: Final = 0o600
MAXIMUM_OPERATORS: Final = 8
# How long an operator may take to send the next request, and to read a page.
IDLE_SECONDS: Final = 3600.0
READ_SECONDS: Final = 60.0
CLOSE_SECONDS: Final = 1.0

# struct ucred: process, user and group ID.
_CREDENTIALS: Final = struct.Struct("3i")


def peer_credentials(descriptor: int) -> Operator:
    """Who is at the other end of a Unix socket; unknown if the system does not say."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return Operator(None, None)
    # uvloop's socket object has no getsockopt.
    with contextlib.closing(socket.socket(fileno=os.dup(descriptor))) as opened:
        data = opened.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    process_id, user_id, _ = _CREDENTIALS.unpack(data)
    return Operator(user_id, process_id)


class ControlServer:
    """Serves the operators on one socket."""

    def __init__(
        self,
        path: Path,
        commands: ControlCommands,
        *,
        read_seconds: float = READ_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        credentials: Callable[[int], Operator] = peer_credentials,
    ) -> None:
        """`credentials` returns who is at the other end of a socket, by its descriptor."""
        self.path = path
        self._commands = commands
        self._read_seconds = read_seconds
        self._idle_seconds = idle_seconds
        self._credentials = credentials
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._operators: set[Operator] = set()
        # Removes the file, and closes the descriptor of its folder.
        self._cleanup = ExitStack()

    async def start(self) -> None:
        """Listen. Raises OSError and SocketFileUnusable."""
        with ExitStack() as opening:
            path = opening.enter_context(reachable_path(self.path))
            opened = UnixSocket(path, FILE_MODE)
            opening.callback(opened.remove_file)
            self._server = await asyncio.start_unix_server(
                self._accept, sock=opened.socket, limit=MAXIMUM_REQUEST
            )
            self._cleanup = opening.pop_all()

    async def stop(self) -> None:
        """Close all connections, and remove the file."""
        if self._server is not None:
            self._server.close()
        self._cleanup.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._commands.stop()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._handle(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            operator, problem = self._identify(writer)
            if problem is not None:
                LOG.warning("control connection refused: %s", problem)
                await self._send(writer, {"error": problem})
            else:
                self._operators.add(operator)
                try:
                    await self._serve(reader, writer, operator)
                finally:
                    self._operators.discard(operator)
        except (OSError, TimeoutError):
            # The operator has left, or does not read.
            pass
        finally:
            await asyncio.shield(_close(writer))

    def _identify(self, writer: asyncio.StreamWriter) -> tuple[Operator, str | None]:
        """Who has connected, and why that is refused, in one sentence; None: it is not."""
        operator = self._credentials(writer.get_extra_info("socket").fileno())
        if operator.user_id not in (None, 0, os.geteuid()):
            return operator, (
                f"user ID {operator.user_id} may not control this broker: only root and user ID "
                f"{os.geteuid()}, which runs it, may"
            )
        if len(self._operators) >= MAXIMUM_OPERATORS:
            return operator, f"{MAXIMUM_OPERATORS} control connections are open: close one of them"
        return operator, None

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, operator: Operator
    ) -> None:
        """Answer one request after another."""

        async def send_page(entries: list[Values]) -> None:
            # Let the broker do a tick before each line, and if there is none.
            await asyncio.sleep(0)
            for line in encode_entries(entries):
                await self._write(writer, line)
                await asyncio.sleep(0)

        while True:
            try:
                line = await asyncio.wait_for(reader.readline(), self._idle_seconds)
            except ValueError:
                await self._send(writer, {"error": f"the request exceeds {MAXIMUM_REQUEST} bytes"})
                return
            if not line.endswith(b"\n"):
                return
            try:
                command, arguments = decode_request(line)
                done = await self._commands.run(command, arguments, operator, send_page)
            except BadRequest as problem:
                await self._send(writer, {"error": str(problem)})
            except (OSError, TimeoutError):
                raise
            except Exception:
                # A failure of one command must not end the broker, nor other operators.
                LOG.exception("a control command failed")
                await self._send(writer, {"error": "the command failed: see the log of the broker"})
            else:
                await self._send(writer, {"done": done})

    async def _send(self, writer: asyncio.StreamWriter, values: Values) -> None:
        await self._write(writer, encode_line(values))

    async def _write(self, writer: asyncio.StreamWriter, line: bytes) -> None:
        writer.write(line)
        await asyncio.wait_for(writer.drain(), self._read_seconds)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close a connection; the last line gets some time to be sent."""
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), CLOSE_SECONDS)
    writer.transport.abort()
    # The loop closes the socket.
    await asyncio.sleep(0)

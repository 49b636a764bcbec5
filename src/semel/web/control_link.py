"""The connection of the page's server to the control socket of the broker."""

import asyncio
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from semel.broker.network.control_protocol import encode_request, reachable_path

Values = dict[str, Any]

# How long the broker may take to answer, and the longest line of an answer.
ANSWER_SECONDS: Final = 30.0
LINE_BYTES: Final = 4 * 1024 * 1024


class BrokerUnavailable(Exception):
    """The broker does not answer; the text is one sentence."""


class CommandRefused(Exception):
    """The broker refused a command; the text is its sentence."""


class ControlLink:
    """One connection, which is opened again after it was lost. Commands wait for each other."""

    def __init__(self, path: Path | None) -> None:
        """`path` is the control socket; None: the broker has none."""
        self._path = path
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(
        self, command: str, maximum_entries: int | None = None, **arguments: object
    ) -> tuple[list[Values], Values]:
        """Run a command. Returns its entries, at most so many of them, and its result.

        Raises BrokerUnavailable and CommandRefused.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        async with self._lock:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await self._call(command, given, maximum_entries)
            except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as problem:
                self._drop()
                raise BrokerUnavailable(self._explain(problem)) from None
            except asyncio.CancelledError:
                # The rest of the answer would be taken for that of the next command.
                self._drop()
                raise

    async def _call(
        self, command: str, arguments: Values, maximum_entries: int | None
    ) -> tuple[list[Values], Values]:
        reader, writer = await self._open()
        writer.write(encode_request(command, arguments))
        await writer.drain()
        entries: list[Values] = []
        while line := await reader.readline():
            answer = json.loads(line)
            if "error" in answer:
                raise CommandRefused(str(answer["error"]))
            if "done" in answer:
                return entries, answer["done"]
            if maximum_entries is None or len(entries) < maximum_entries:
                entries += answer["entries"]
        raise ConnectionError("the broker has closed the connection")

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            if self._path is None:
                raise FileNotFoundError
            with reachable_path(self._path) as path:
                self._streams = await asyncio.open_unix_connection(
                    os.fspath(path), limit=LINE_BYTES
                )
        return self._streams

    def _drop(self) -> None:
        if self._streams is not None:
            with suppress(OSError, RuntimeError):
                self._streams[1].close()
            self._streams = None

    def _explain(self, problem: BaseException) -> str:
        if self._path is None:
            return "the broker has no control socket: set [store] data or [control] path"
        if isinstance(problem, PermissionError):
            return f"{self._path} may be used by root and by the user who runs the broker only"
        if isinstance(problem, TimeoutError):
            return f"the broker has not answered within {ANSWER_SECONDS:g} seconds"
        return f"no broker answers at {self._path}"

    async def close(self) -> None:
        """Close the connection."""
        self._drop()

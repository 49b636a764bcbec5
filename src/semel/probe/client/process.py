"""A client program that is examined: started for one run of a case, and ended with all it started.

Words of the command may contain placeholders, which are replaced in each run:

    {host} {port}      where the examiner's server listens
    {version}          311 or 5, as most programs spell it; {level} is 4 or 5
    {client_id}        a Client Identifier that no other run uses
    {topic}            a Topic Name that no other run uses
    {keep_alive}       a Keep Alive in seconds that the examiner can wait for
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

PLACEHOLDERS: Final = ("host", "port", "version", "level", "client_id", "topic", "keep_alive")
# Of what a program prints, more than this is not kept.
MAXIMUM_OUTPUT: Final = 1024 * 1024
# The Keep Alive for {keep_alive}. Mosquitto's programs accept no smaller one.
KEEP_ALIVE: Final = 5


class CommandNotFound(Exception):
    """The program cannot be started: a sentence."""


def substitute(command: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """The command with its placeholders replaced. Other braces stay as they are."""
    words = []
    for word in command:
        for name in PLACEHOLDERS:
            if name in values:
                word = word.replace("{" + name + "}", str(values[name]))
        words.append(word)
    return words


def has_placeholder(command: Sequence[str], *names: str) -> bool:
    """Whether a command contains one of these placeholders."""
    return any("{" + name + "}" in word for word in command for name in names)


class ClientProcess:
    """A running program. `stop` ends it and what it has started."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.errors = bytearray()
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []

    async def start(self, command: Sequence[str]) -> None:
        """Start a program in a session of its own. Raises CommandNotFound."""
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                # A Python program must not keep what it prints until it ends.
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except OSError as problem:
            raise CommandNotFound(
                f"cannot start {command[0]!r}: {problem.strerror or problem}"
            ) from None
        for stream, kept in (
            (self._process.stdout, self.output),
            (self._process.stderr, self.errors),
        ):
            assert stream is not None
            self._readers.append(asyncio.create_task(_keep(stream, kept)))

    @property
    def has_ended(self) -> bool:
        """Whether the program is not running."""
        return self._process is None or self._process.returncode is not None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative if a signal ended it; None while it is running."""
        return None if self._process is None else self._process.returncode

    def times_printed(self, text: bytes) -> int:
        """How often a text is in what the program has printed."""
        return bytes(self.output).count(text)

    def last_line(self) -> str:
        """The last line of its error output, or else of its output, for messages."""
        for kept in (self.errors, self.output):
            lines = kept.decode("utf-8", "replace").split("\n")
            shown = [line.strip() for line in lines if line.strip()]
            if shown:
                return ascii(shown[-1])[1:-1][:200]
        return ""

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Send a signal to the program, as Ctrl-C would."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def wait_ended(self, seconds: float) -> bool:
        """Whether the program ends within `seconds`."""
        if self._process is None:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Kill the program and what it started in its process group."""
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            # The session and the group have the number of the process that began them.
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._readers.clear()


async def _keep(stream: asyncio.StreamReader, kept: bytearray) -> None:
    """Read a pipe to its end, so that the program never has to wait, and keep the beginning."""
    while data := await stream.read(64 * 1024):
        if len(kept) < MAXIMUM_OUTPUT:
            kept += data[: MAXIMUM_OUTPUT - len(kept)]

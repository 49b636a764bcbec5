"""The protocol of the control socket: one JSON object per line, in both directions.

    ▶ {"version": 1, "command": "sessions.list", "arguments": {}}
    ◀ {"entries": [{"client": "press-7", …}, …]}        any number of these
    ◀ {"done": {}}    or    {"error": "a sentence"}     the end of the answer

A connection may carry one request after another.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

VERSION: Final = 1

# A request may contain a client identifier of 65,535 characters, all of them escaped.
MAXIMUM_REQUEST: Final = 512 * 1024

# A line with entries ends when it has this many bytes.
LINE_BYTES: Final = 64 * 1024

# The length of the path of a Unix socket, without its final zero.
_MAXIMUM_PATH: Final = 107


class BadRequest(Exception):
    """What is wrong with a request, in one sentence for the operator."""


class Arguments:
    """The arguments of a command. Each method raises BadRequest."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def only(self, *names: str) -> None:
        """Check that there are no others."""
        for name in self._values:
            if name not in names:
                raise BadRequest(f"{name!a} is not an argument of this command")

    def text(self, name: str) -> str:
        """A string that must be given."""
        value = self.optional_text(name)
        if value is None:
            raise BadRequest(f"{name} is missing")
        return value

    def optional_text(self, name: str) -> str | None:
        """A string, or None."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise BadRequest(f"{name} is not a string")
        return value

    def number(self, name: str, default: float, *, most: float) -> float:
        """A number from 0 to `most`."""
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadRequest(f"{name} is not a number")
        if not 0 <= value <= most:
            raise BadRequest(f"{name} is {value}, but must be from 0 to {most:g}")
        return value


def encode_line(values: Mapping[str, object]) -> bytes:
    """One line of the protocol."""
    return f"{json.dumps(values)}\n".encode()


def encode_entries(entries: Iterable[Mapping[str, object]]) -> Iterator[bytes]:
    """The lines for entries. A line is short, however long the names of clients are."""
    texts: list[str] = []
    size = 0
    for entry in entries:
        text = json.dumps(entry)
        texts.append(text)
        size += len(text)
        if size >= LINE_BYTES:
            yield _entries_line(texts)
            texts, size = [], 0
    if texts:
        yield _entries_line(texts)


def _entries_line(texts: list[str]) -> bytes:
    return f'{{"entries": [{", ".join(texts)}]}}\n'.encode()


def encode_request(command: str, arguments: Mapping[str, object]) -> bytes:
    """The line of a request."""
    return encode_line({"version": VERSION, "command": command, "arguments": arguments})


def decode_request(line: bytes) -> tuple[str, Arguments]:
    """Command and arguments of a line. Raises BadRequest."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise BadRequest("the request is not a line of JSON") from None
    if not isinstance(found, dict):
        raise BadRequest("the request is not a JSON object")
    version = found.get("version")
    if version != VERSION:
        raise BadRequest(
            f"the request is of version {version!a} of the protocol, but this broker has version "
            f"{VERSION}: use the semel command that belongs to the broker"
        )
    command, arguments = found.get("command"), found.get("arguments", {})
    if not isinstance(command, str) or not isinstance(arguments, dict):
        raise BadRequest("the request has no command, or its arguments are not an object")
    return command, Arguments(arguments)


@contextmanager
def reachable_path(path: Path) -> Iterator[Path]:
    """A path of the socket that is short enough for the system, for the time of the context.

    The path of a Unix socket has at most 107 bytes. A longer one is reached through the descriptor
    of its folder.
    """
    if len(os.fsencode(path)) <= _MAXIMUM_PATH:
        yield path
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{folder}") / path.name
    finally:
        os.close(folder)

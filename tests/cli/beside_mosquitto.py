"""`semel pub` and `semel sub` as processes, mosquitto's tools beside them, a server by script."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType

import pytest

# Generous: it only ends what would hang.
PATIENCE = 30.0

TOOLS = ("mosquitto_pub", "mosquitto_sub")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
NEEDS_TOOLS = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")

Result = subprocess.CompletedProcess[bytes]

# Answers of a server by script.
CONNACK = {4: bytes.fromhex("20020000"), 5: bytes.fromhex("2003000000")}
CLOSE = "close"
PINGREQ = 12
PINGRESP = bytes.fromhex("d000")


def semel(tool: str, *arguments: str) -> list[str]:
    """`semel pub` or `semel sub`."""
    return [sys.executable, "-m", "semel", tool, *arguments]


def mosquitto(tool: str, *arguments: str) -> list[str]:
    """mosquitto_pub or mosquitto_sub."""
    return [f"mosquitto_{tool}", *arguments]


Tool = Callable[..., list[str]]
BOTH = pytest.mark.parametrize(
    "tool",
    [pytest.param(semel, id="semel"), pytest.param(mosquitto, marks=NEEDS_TOOLS, id="mosquitto")],
)


def run(
    command: Sequence[str],
    *,
    given: bytes | None = None,
    environment: Mapping[str, str] | None = None,
) -> Result:
    """Run a command to its end, with `given` on its standard input."""
    result = subprocess.run(
        command,
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, **(environment or {})},
    )
    assert b"Traceback" not in result.stderr, result.stderr.decode()
    return result


def sentence(result: Result) -> str:
    """The one line that a command has said about its failure."""
    (line,) = result.stderr.decode().splitlines()
    assert line.startswith(("Error: ", "Warning: "))
    return line


@dataclass(frozen=True)
class Packet:
    """What a client has sent: the type, the flags, and what follows the fixed header."""

    kind: int
    flags: int
    body: bytes


Script = Sequence[bytes | str | Callable[[Packet], bytes] | None]


def puback(packet: Packet) -> bytes:
    """The answer to a PUBLISH at QoS 1."""
    at = 2 + int.from_bytes(packet.body[:2], "big")
    return b"\x40\x02" + packet.body[at : at + 2]


def suback(packet: Packet) -> bytes:
    """The answer of a 3.1.1 server to a SUBSCRIBE with one filter."""
    return b"\x90\x03" + packet.body[:2] + b"\0"


class Scripted:
    """A server that answers each packet of each connection with what its script says.

    A script is a list for each connection, the last for all later ones: bytes to send, a function
    of the packet that gives them, None for nothing, or CLOSE. What comes after its end is not
    answered, but for PINGREQ.
    """

    def __init__(self, *scripts: Script) -> None:
        self.scripts = scripts
        self.connections: list[list[Packet]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._ends: list[threading.Event] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def address(self) -> list[str]:
        # The script assigns no client identifier; most scripts are of 3.1.1.
        return ["-h", "127.0.0.1", "-p", f"{self.port}", "-i", "scripted", "-V", "mqttv311"]

    @property
    def packets(self) -> list[Packet]:
        """Of all connections, when their clients have ended."""
        self._settle()
        return [packet for packets in self.connections for packet in packets]

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            end = threading.Event()
            self._open.append(connection)
            self._ends.append(end)
            number = min(len(self.connections), len(self.scripts) - 1)
            packets: list[Packet] = []
            self.connections.append(packets)
            try:
                with connection:
                    self._answer(connection, self.scripts[number], packets)
            except OSError:
                pass
            finally:
                end.set()

    def _settle(self) -> None:
        """What a client that has ended has sent is read."""
        for end in self._ends:
            assert end.wait(PATIENCE)

    def _answer(
        self,
        connection: socket.socket,
        script: Script,
        packets: list[Packet],
    ) -> None:
        answers = list(script)
        for packet in read_packets(connection):
            packets.append(packet)
            if answers:
                answer = answers.pop(0)
                if answer == CLOSE:
                    return
                if callable(answer):
                    connection.sendall(answer(packet))
                elif isinstance(answer, bytes):
                    connection.sendall(answer)
            elif packet.kind == PINGREQ:
                connection.sendall(PINGRESP)

    def __enter__(self) -> "Scripted":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._settle()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            connection.close()
        self._thread.join(PATIENCE)


def read_packets(connection: socket.socket) -> Iterator[Packet]:
    """The packets of a client, until it closes."""
    with connection.makefile("rb") as stream:
        while first := stream.read(1):
            size = shift = 0
            while True:
                (byte,) = stream.read(1)
                size |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            yield Packet(first[0] >> 4, first[0] & 15, stream.read(size))


@contextmanager
def running(command: Sequence[str], **others: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive its test, and ends before a test waits for ever."""
    process = subprocess.Popen(command, **others)  # type: ignore[call-overload]
    end = threading.Timer(PATIENCE, process.kill)
    end.start()
    try:
        yield process
    finally:
        end.cancel()
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def wait_for(process: subprocess.Popen[bytes], words: str, *, times: int = 1) -> list[str]:
    """Read standard error up to the line, so many times, that has these words in it."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line.decode())
        times -= words in lines[-1]
        if not times:
            return lines
    raise AssertionError(f"no {words!r} in {lines}")

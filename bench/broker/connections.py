"""Idle connections: what it costs a broker to accept, keep, lose and accept them again.

Each needs a file and a port. All of them are opened in one process, as far as the limit of open
files permits, and from several addresses of the loopback network, because one address has fewer
ports than a few rounds of `MANY` connections use.
"""

import resource
import socket
import time
from collections.abc import Iterable
from typing import Final

from bench.broker.configurations import HOST, TCP
from bench.broker.contenders import Process
from bench.broker.load import connector
from bench.broker.scenarios import MANY
from bench.broker.wire import encode_connect
from semel.lab.load.description import SCENARIOS as LOADS
from semel.lab.load.links import LinkError, connect_client, read_answer, send_whole
from semel.lab.load.streams import ANSWER_SECONDS, Stream
from semel.mqtt import ConnAck

IDLE: Final = LOADS["connections"].load.subscribers
# The first ones fill memory that a broker keeps anyway.
EARLY: Final = 100
# Connections that are opened at the same time: as many as any of the brokers queues.
BURST: Final = 50
# Files that broker and bench need besides those of the connections.
OTHER_FILES: Final = 200
PORTS_PER_ADDRESS: Final = 10_000
TURNS: Final = 10
# IP_BIND_ADDRESS_NO_PORT of Linux, which Python 3.11 does not name: the port is chosen when the
# connection is opened, so that it need only be free towards this broker.
_BIND_ADDRESS_NO_PORT: Final = 24

# A broker is idle when it uses less processor time than this in such a time.
IDLE_SECONDS: Final = 0.1
IDLE_NS: Final = 5_000_000
IDLE_LIMIT: Final = 30.0


def raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit; brokers inherit it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def possible_connections() -> int:
    """`MANY`, or as many as the limit of open files permits."""
    return min(MANY, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - OTHER_FILES)


def idle_connections(process: Process, version: int, transport: str = TCP) -> tuple[float, float]:
    """Microseconds to accept a connection, and KB of memory while it is open."""
    connect = connector(process.port, transport)
    idle: list[Stream] = []

    def open_client(client_id: str) -> None:
        idle.append(connect_client(connect, encode_connect(version, client_id), version)[0])

    try:
        for number in range(EARLY):
            open_client(f"early-{number}")
        time.sleep(0.2)
        cpu, resident = process.cpu_ns(), process.resident_kb()
        for number in range(IDLE):
            open_client(f"idle-{number}")
        time.sleep(0.2)
        used = process.cpu_ns() - cpu
        return used / IDLE / 1e3, (process.resident_kb() - resident) / IDLE
    finally:
        for link in idle:
            link.close()


def reconnects(process: Process, version: int) -> tuple[float, float, float]:
    """Processor seconds to accept `MANY` connections again and to see them closed, and KB each.

    If fewer are possible, the seconds are those of `MANY` in proportion.
    """
    count = possible_connections()
    opened: list[socket.socket] = []
    try:
        opened += open_clients(process.port, version, range(EARLY))
        wait_until_idle(process)
        resident = process.resident_kb()
        opened += open_clients(process.port, version, range(EARLY, count))
        wait_until_idle(process)
        kilobytes = (process.resident_kb() - resident) / (count - EARLY)
        cpu = process.cpu_ns()
        while opened:
            opened.pop().close()
        wait_until_idle(process)
        closing = process.cpu_ns() - cpu
        cpu = process.cpu_ns()
        opened += open_clients(process.port, version, range(count), turn=1)
        wait_until_idle(process)
        opening = process.cpu_ns() - cpu
        return opening / 1e9 * MANY / count, closing / 1e9 * MANY / count, kilobytes
    finally:
        for sock in opened:
            sock.close()


def open_clients(
    port: int, version: int, numbers: Iterable[int], *, turn: int = 0
) -> list[socket.socket]:
    """Connect the clients of these numbers, some at a time. Raises LinkError.

    A client that reconnects has another `turn`, and so another address: its port may still be in
    use for a minute.
    """
    waiting = list(numbers)
    opened: list[socket.socket] = []
    try:
        while waiting:
            burst, waiting = waiting[:BURST], waiting[BURST:]
            made = [_connect_from(_address(number, turn), port) for number in burst]
            opened += made
            for sock, number in zip(made, burst, strict=True):
                send_whole(sock, encode_connect(version, f"idle-{number}"))
            for sock in made:
                answer = read_answer(sock, version)
                if not isinstance(answer, ConnAck) or answer.reason:
                    raise LinkError(f"answered CONNECT with {answer}")
    except BaseException:
        for sock in opened:
            sock.close()
        raise
    return opened


def wait_until_idle(process: Process) -> None:
    """Wait until a broker has nothing to do. Raises LinkError if that takes too long."""
    deadline = time.monotonic() + IDLE_LIMIT
    while time.monotonic() < deadline:
        cpu = process.cpu_ns()
        time.sleep(IDLE_SECONDS)
        if process.cpu_ns() - cpu < IDLE_NS:
            return
    raise LinkError(f"is still busy after {IDLE_LIMIT:g} s")


def _address(number: int, turn: int) -> str:
    """An address of the loopback network."""
    addresses = -(-MANY // PORTS_PER_ADDRESS)
    return f"127.0.0.{1 + number // PORTS_PER_ADDRESS + turn % TURNS * addresses}"


def _connect_from(address: str, port: int) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
        sock.settimeout(ANSWER_SECONDS)
        sock.bind((address, 0))
        sock.connect((HOST, port))
    except OSError as problem:
        sock.close()
        raise LinkError(f"cannot be reached: {problem.strerror or problem}") from None
    return sock

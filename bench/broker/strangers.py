"""Attacks of clients that never become clients: they flood, stall or fail before CONNACK.

Each runs in its own process, in a few threads. A stranger that is closed opens another connection.
"""

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench.broker.configurations import HOST, TCP, TLS, USER, USERS, WS
from semel.mqtt import Connect, encode

# Connections that stall at the same time: more than a broker should have to care about.
STALLED: Final = 1_000
STALL_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = 5.0

_CONNECT: Final = encode(Connect("stranger"))
_HTTP: Final = b"GET /mqtt HTTP/1.1\r\nHost: a\r\nX-Slow: "
# A record of TLS that promises a ClientHello of 512 bytes, and its first bytes.
_HELLO: Final = bytes.fromhex("1603010200010001fc0303") + bytes(32)

Act = Callable[[int, float], None]


@dataclass(frozen=True)
class StrangerAttack:
    """`act` is called in each thread with a port and the time of the end."""

    name: str
    title: str
    listener: str
    act: Act
    threads: int = 4


def stranger_attacks() -> Iterator[StrangerAttack]:
    """All attacks of strangers."""
    yield StrangerAttack("opens", "connections opened and closed", TCP, partial(_repeat, _open))
    yield StrangerAttack("connects", "CONNECT, CONNACK, closed", TCP, partial(_repeat, _connect))
    yield StrangerAttack("handshakes", "TLS handshakes, then closed", TLS, _handshakes)
    yield StrangerAttack(
        "half-open", f"{STALLED:,} TLS handshakes that stall", TLS, partial(_stall, _HELLO), 1
    )
    yield StrangerAttack(
        "slow-bytes", f"{STALLED:,} CONNECTs, byte by byte", TCP, partial(_stall, _CONNECT[:3]), 1
    )
    yield StrangerAttack(
        "slow-http", f"{STALLED:,} HTTP heads, byte by byte", WS, partial(_stall, _HTTP), 1
    )
    yield StrangerAttack("passwords", "wrong passwords", USERS, partial(_repeat, _guess), 16)


def run_strangers(attack: StrangerAttack, port: int, seconds: float) -> None:
    """Attack until the time is over."""
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=attack.act, args=(port, end)) for _ in range(attack.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _repeat(visit: Callable[[socket.socket], None], port: int, end: float) -> None:
    """Connect again and again."""
    while time.monotonic() < end:
        try:
            with socket.create_connection((HOST, port), timeout=ANSWER_SECONDS) as sock:
                # Closed by RST, so that no port stays in use for a minute.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                visit(sock)
        except OSError:
            time.sleep(0.01)


def _open(sock: socket.socket) -> None:
    """Send nothing."""


def _connect(sock: socket.socket) -> None:
    sock.sendall(_CONNECT)
    sock.recv(64)


def _guess(sock: socket.socket) -> None:
    guess = b"%d" % time.monotonic_ns()
    sock.sendall(encode(Connect("stranger", user_name=USER, password=guess)))
    sock.recv(64)


def _handshakes(port: int, end: float) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    def shake_hands(sock: socket.socket) -> None:
        context.wrap_socket(sock).close()

    _repeat(shake_hands, port, end)


def _stall(beginning: bytes, port: int, end: float) -> None:
    """Keep many connections open, and send one byte on each of them now and then."""
    opened: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        while time.monotonic() < end:
            for _ in range(min(100, STALLED - len(opened))):
                with contextlib.suppress(OSError):
                    sock = socket.create_connection((HOST, port), timeout=ANSWER_SECONDS)
                    stack.enter_context(sock)
                    sock.sendall(beginning)
                    sock.setblocking(False)
                    opened.append(sock)
            time.sleep(STALL_SECONDS)
            opened = [sock for sock in opened if _continue(sock)]


def _continue(sock: socket.socket) -> bool:
    """Send a byte; False if the connection has ended."""
    try:
        sock.send(b"a")
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        if poll.poll(0) and not sock.recv(4_096):
            raise ConnectionResetError
    except OSError:
        sock.close()
        return False
    return True

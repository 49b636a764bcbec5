"""`python -m bench churn`: whether memory stays flat while many connections close and reopen.

`MANY` clients of both versions are connected, as far as the limit of open files permits. Each has a
subscription of its own. All the time some of them leave, half of them with DISCONNECT, and connect
again, with a clean session: there are always as many, and a broker that frees what has ended needs
no more memory at the end than at the beginning. semel permits 10,000 connections unless told
otherwise; everything else is its default.
"""

import random
import socket
import sys
import time
from typing import Final

from bench.broker.configurations import Configuration
from bench.broker.connections import (
    BURST,
    open_clients,
    possible_connections,
    raise_file_limit,
    wait_until_idle,
)
from bench.broker.contenders import SEMEL, Process, separate_processors, started
from bench.broker.scenarios import MANY
from bench.broker.soak import (
    SAMPLE_SECONDS,
    Sample,
    complaints,
    first_traceback,
    growth_verdict,
    sparkline,
)
from semel.lab.load.links import LinkError, send_whole, subscribe
from semel.lab.load.wire import encode_disconnect
from semel.mqtt import MQTT5, MQTT311

RECONNECTS_PER_SECOND: Final = 500
# A row of the table per minute, or ten of a shorter run.
ROW_SECONDS: Final = 60.0
LEAST_ROWS: Final = 10


class ReconnectingClients:
    """The clients, by number: even ones speak 3.1.1, odd ones 5.0."""

    def __init__(self, port: int, count: int) -> None:
        self.port = port
        self.count = count
        self.sockets: dict[int, socket.socket] = {}
        self.reconnected = 0
        # Connections that the broker closed, for which it has no reason here.
        self.refused = 0
        self._dice = random.Random(1)
        self._turn = 0

    def open(self, numbers: list[int]) -> None:
        """Connect and subscribe clients. Raises LinkError."""
        for parity, version in enumerate((MQTT311, MQTT5)):
            chosen = [number for number in numbers if number % 2 == parity]
            made = open_clients(self.port, version, chosen, turn=self._turn)
            self.sockets |= zip(chosen, made, strict=True)
            for number, sock in zip(chosen, made, strict=True):
                subscribe(sock, version, [f"churn/{number}"], 1)

    def reconnect_some(self) -> None:
        """Let some clients leave and connect again. Raises LinkError."""
        self._turn += 1
        chosen = self._dice.sample(range(self.count), BURST)
        for number in chosen:
            sock = self.sockets.pop(number)
            if has_closed(sock):
                self.refused += 1
            elif self._dice.random() < 0.5:
                send_whole(sock, encode_disconnect(MQTT5 if number % 2 else MQTT311))
            sock.close()
        self.open(chosen)
        self.reconnected += len(chosen)

    def close(self) -> None:
        """Cut all clients."""
        for sock in self.sockets.values():
            sock.close()


def has_closed(sock: socket.socket) -> bool:
    """Whether the broker has closed a connection, or sent something unexpected.

    The socket does not block any more.
    """
    sock.setblocking(False)
    try:
        sock.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def churn_for(seconds: float, clients: ReconnectingClients, process: Process) -> list[Sample]:
    """Samples while clients reconnect; prints the table as it grows."""
    samples: list[Sample] = []
    row_seconds = min(ROW_SECONDS, seconds / LEAST_ROWS)
    row = 0
    print("| minute | resident KB | connections | reconnected |")
    print("|---:|---:|---:|---:|", flush=True)
    began = time.monotonic()
    while True:
        elapsed = time.monotonic() - began
        if elapsed >= SAMPLE_SECONDS * len(samples) or elapsed >= seconds:
            samples.append((elapsed, process.resident_kb()))
        if elapsed >= row_seconds * row or elapsed >= seconds:
            row += 1
            print(
                f"| {elapsed / 60:.1f} | {samples[-1][1]:,} | {len(clients.sockets):,} "
                f"| {clients.reconnected:,} |",
                flush=True,
            )
        if elapsed >= seconds:
            return samples
        clients.reconnect_some()
        due = began + clients.reconnected / RECONNECTS_PER_SECOND
        time.sleep(max(0.0, due - time.monotonic()))


def churn(minutes: float) -> int:
    """Run and print. 1 if memory grows, or if the broker closed a connection without reason."""
    raise_file_limit()
    count = possible_connections()
    if count < MANY:
        print(f"bench: the limit of open files permits {count:,} connections", file=sys.stderr)
    configuration = Configuration(connections=MANY)
    with separate_processors() as processors, started(SEMEL, processors, configuration) as process:
        clients = ReconnectingClients(process.port, count)
        try:
            clients.open(list(range(count)))
            wait_until_idle(process)
            samples = churn_for(minutes * 60, clients, process)
        except (LinkError, OSError) as problem:
            print(f"✗ the broker {problem}")
            print(first_traceback(process.log.read_text(errors="replace")))
            return 1
        finally:
            clients.close()
        found = complaints(process.log.read_text(errors="replace"))
    is_flat, verdict = growth_verdict(samples, minutes)
    every = -(-len(samples) // 60)
    print(f"\n{sparkline([resident for _, resident in samples[::every]])}")
    print(
        f"{clients.refused} clients closed by the broker, {len(found)} unexpected lines in its log"
    )
    print("\n".join([*found[:5], verdict]))
    return 0 if is_flat and not clients.refused and not found else 1

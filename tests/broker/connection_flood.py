"""A flood of connections that are opened and dropped, in a process of its own.

    python -m tests.broker.connection_flood PLAN

PLAN is the JSON of a `FloodPlan`. Threads open connections over every transport, from many
addresses, and drop them at once, in the middle of a handshake, after CONNECT or after CONNACK, by
FIN or by RST. All of them behave as intruders: with their CONNECT they send a retained message to
`INTRUDED`, without waiting for an answer. At the end a `FloodReport` is printed as JSON.
"""

import json
import random
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from semel.mqtt import MQTT5, MQTT311
from tests.broker import websocket_frames
from tests.broker.by_hand import PATIENCE, connect, publish, text

# How far a connection gets before it is dropped.
STAGES = ("opened", "half of a handshake", "handshake", "CONNECT", "CONNACK")
# Where none of these clients may publish.
INTRUDED = b"pair/intruded"
INTRUSION = b"intruder"

# User names, with passwords. The last one is known, and may do nothing.
NOBODY, UNKNOWN, WRONG, LIMITED = "nobody", "unknown", "wrong", "limited"
CREDENTIALS = {
    UNKNOWN: (b"unknown", b"x"),
    WRONG: (b"ann", b"wrong"),
    LIMITED: (b"limited", b"limited"),
}
STRANGERS = (NOBODY, UNKNOWN, WRONG)
# Linux routes all of 127.0.0.0/8 to this machine. Addresses of strangers soon have too many
# failures for anybody else to log in from there.
STRANGER_ADDRESSES = [f"127.0.1.{number}" for number in range(1, 51)]
KNOWN_ADDRESSES = [f"127.0.2.{number}" for number in range(1, 51)]


@dataclass(frozen=True)
class FloodPlan:
    """What to do."""

    # By transport.
    ports: dict[str, int]
    seconds: float
    # Connections per second, at most.
    rate: float
    seed: int
    threads: int = 16


@dataclass
class FloodReport:
    """What came of it. Keys join the words of a combination by a slash."""

    # By transport and stage.
    dropped: Counter[str] = field(default_factory=Counter)
    # By kind of user and code; "closed": the broker closed the connection without a CONNACK.
    answers: Counter[str] = field(default_factory=Counter)
    # Connections that could not be opened, by error.
    failed: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def connections(self) -> int:
        return sum(self.dropped.values())

    @property
    def rate(self) -> float:
        """Connections per second."""
        return self.connections / self.seconds

    def admitted(self, *kinds: str) -> int:
        """How many clients of these kinds were accepted."""
        return sum(self.answers[f"{kind}/0"] for kind in kinds)


class Dropper:
    """Opens one connection after another, and drops it."""

    def __init__(self, plan: FloodPlan, number: int) -> None:
        self.plan = plan
        self.random = random.Random(f"{plan.seed} {number}")
        self.report = FloodReport()
        self.context = ssl.create_default_context()
        # The certificate is not the subject here, and costs the flood time.
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE
        self.hello = self._client_hello()

    def run(self) -> None:
        plan = self.plan
        transports = list(plan.ports)
        begin = time.monotonic()
        opened = 0
        while (passed := time.monotonic() - begin) < plan.seconds:
            early = opened * plan.threads / plan.rate - passed
            if early > 0:
                time.sleep(early)
            opened += 1
            transport = self.random.choice(transports)
            stage = self.random.choice(STAGES)
            kind = self.random.choice((*CREDENTIALS, NOBODY))
            try:
                self.drop(transport, stage, kind)
            except OSError as problem:
                self.report.failed[f"{transport}/{stage}/{problem}"] += 1
            else:
                self.report.dropped[f"{transport}/{stage}"] += 1

    def drop(self, transport: str, stage: str, kind: str) -> None:
        """Open one connection, and drop it at this stage. Raises OSError."""
        addresses = KNOWN_ADDRESSES if kind == LIMITED else STRANGER_ADDRESSES
        raw = socket.socket()
        made: socket.socket = raw
        try:
            raw.settimeout(PATIENCE)
            # The port is chosen when the other end is known: one port serves several listeners.
            raw.setsockopt(socket.IPPROTO_IP, 24, 1)
            raw.bind((self.random.choice(addresses), 0))
            raw.connect(("127.0.0.1", self.plan.ports[transport]))
            if stage == "opened":
                return
            version = self.random.choice((MQTT5, MQTT311))
            packets = self._packets(kind, version)
            if stage == "half of a handshake":
                first = {"tls": self.hello, "ws": websocket_frames.request()}
                data = first.get(transport, packets)
                raw.sendall(data[: self.random.randrange(1, len(data))])
                return
            if transport == "tls":
                made = self.context.wrap_socket(raw, server_hostname="localhost")
            elif transport == "ws":
                made.sendall(websocket_frames.request())
                self._read_until(made, b"\r\n\r\n")
                packets = websocket_frames.frame(websocket_frames.BINARY, packets)
            if stage == "handshake":
                return
            made.sendall(packets)
            if stage == "CONNACK":
                self._read_connack(made, transport, kind)
        except (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError):
            # The broker may close what it has refused, while we still send.
            if stage == "CONNACK":
                self.report.answers[f"{kind}/closed"] += 1
        finally:
            if self.random.random() < 0.5:
                # The end is RST, and nothing stays in the system.
                linger = struct.pack("ii", 1, 0)
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            made.close()

    def _packets(self, kind: str, version: int) -> bytes:
        """CONNECT and PUBLISH."""
        flags, rest = 0x02, b""
        if kind != NOBODY:
            flags |= 0xC0
            rest = b"".join(map(text, CREDENTIALS[kind]))
        client_id = b"flood-%d" % self.random.randrange(1 << 60)
        hello = connect(client_id, version, flags=flags, rest=rest)
        intrusion = publish(INTRUDED, version, INTRUSION)
        # With RETAIN.
        return hello + bytes([intrusion[0] | 1]) + intrusion[1:]

    def _read_connack(self, made: socket.socket, transport: str, kind: str) -> None:
        head = 2 if transport == "ws" else 0
        data = b""
        while len(data) < head + 4:
            more = made.recv(4_096)
            if not more:
                self.report.answers[f"{kind}/closed"] += 1
                return
            data += more
        assert data[head] == 0x20, data
        self.report.answers[f"{kind}/{data[head + 3]}"] += 1

    def _read_until(self, made: socket.socket, end: bytes) -> None:
        data = b""
        while end not in data:
            more = made.recv(4_096)
            if not more:
                raise ConnectionResetError("closed during its handshake")
            data += more

    def _client_hello(self) -> bytes:
        """The first bytes of a TLS client."""
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        connection = self.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        try:
            connection.do_handshake()
        except ssl.SSLWantReadError:
            return outgoing.read()
        raise AssertionError("a handshake without a server")


class FloodProcess:
    """A flood that has been started."""

    def __init__(self, plan: FloodPlan) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.broker.connection_flood", json.dumps(asdict(plan))],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent.parent,
        )

    def report(self) -> FloodReport:
        """Wait for its end."""
        output, _ = self.process.communicate()
        assert self.process.returncode == 0
        found = json.loads(output)
        counts = {name: Counter(found[name]) for name in ("dropped", "answers", "failed")}
        return FloodReport(**counts, seconds=found["seconds"])


def run(plan: FloodPlan) -> FloodReport:
    """The flood itself, in this process."""
    total = FloodReport()
    droppers = [Dropper(plan, number) for number in range(plan.threads)]
    failures: list[BaseException] = []

    def work(dropper: Dropper) -> None:
        try:
            dropper.run()
        except BaseException as problem:
            failures.append(problem)
            raise

    threads = [threading.Thread(target=work, args=(each,)) for each in droppers]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total.seconds = time.monotonic() - begin
    for dropper in droppers:
        total.dropped += dropper.report.dropped
        total.answers += dropper.report.answers
        total.failed += dropper.report.failed
    if failures:
        raise failures[0]
    return total


if __name__ == "__main__":
    print(json.dumps(vars(run(FloodPlan(**json.loads(sys.argv[1]))))))

"""Where the syncs of a client's outbox are: strace shows what was on disk when.

A program with an outbox runs under strace through one exchange of each kind, against a server that
is this test. Nothing that reports or repeats a fact may leave before a sync of the write-ahead log
that followed the write of that fact; and no message is handed out before it is in the inbox. The
same questions, asked of the same trace without its syncs, must be answered with no.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kills import brokers, wire
from tests.kills.client_run import ROOT
from tests.kills.test_syncs import TRACES, VERSIONS
from tests.kills.trace import OPTIONS, SYNCS, WRITES, Call, read_file, transactions
from tests.kills.wire import PUBACK, PUBCOMP, PUBREC, PUBREL, V311

SUBACK_GRANTED = b"\x02"


class Step(NamedTuple):
    """What came or was said, what must not leave before that is safe, and what is in its row."""

    name: str
    cause: bytes
    effect: bytes
    row: bytes = b""


class Peer:
    """The server's end of the client's connection."""

    def __init__(self, listener: socket.socket, version: int) -> None:
        self.version = version
        self.splitter = wire.Splitter()
        self.waiting: list[tuple[int, bytes]] = []
        self.socket, _ = listener.accept()
        self.socket.settimeout(brokers.PATIENCE)
        assert self.take()[0] == 0x10
        self.socket.sendall(b"\x20\x02\x00\x00" if version == V311 else b"\x20\x03\x00\x00\x00")

    def take(self) -> bytes:
        """The next packet."""
        while not self.waiting:
            data = self.socket.recv(65_536)
            assert data, "closed"
            self.waiting += self.splitter.feed(data)
        first, body = self.waiting.pop(0)
        return wire.packet(first, body)

    def ask(self, data: bytes) -> bytes:
        """Send a packet: the answer."""
        self.socket.sendall(data)
        return self.take()


def converse(peer: Peer) -> Iterator[Step]:
    """The steps, one by one."""
    version = peer.version
    wanted = peer.take()
    assert wanted[0] == 0x82
    section = b"\x00" if version != V311 else b""
    granted = wire.packet(0x90, wanted[2:4], section, SUBACK_GRANTED)

    message = peer.ask(granted)
    yield Step("PUBLISH at QoS 1", b"publishing at QoS 1", message, b"a row at QoS 1")
    packet_id = wire.read_publish(message[0], message[2:], version).packet_id
    message = peer.ask(wire.acknowledge(PUBACK, packet_id))
    yield Step("PUBLISH at QoS 2", b"publishing at QoS 2", message, b"a row at QoS 2")
    packet_id = wire.read_publish(message[0], message[2:], version).packet_id
    received = wire.acknowledge(PUBREC, packet_id)
    yield Step("PUBREL", received, peer.ask(received))
    peer.socket.sendall(wire.acknowledge(PUBCOMP, packet_id))

    for qos, packet_id in ((1, 0x1111), (2, 0x2222)):
        payload = b"in at QoS %d" % qos
        message = wire.publish("in/1", payload, version, qos=qos, packet_id=packet_id)
        answer = peer.ask(message)
        assert answer == wire.acknowledge(PUBACK if qos == 1 else PUBREC, packet_id)
        yield Step(f"handing out at QoS {qos}", message, b"got " + payload, payload)
        yield Step(f"the answer at QoS {qos}", message, answer, payload)
        yield Step(f"the answer at QoS {qos}", b"acknowledging at QoS %d" % qos, answer)
    released = wire.acknowledge(PUBREL, 0x2222)
    yield Step("PUBCOMP", released, peer.ask(released))


def is_late_enough(calls: list[Call], log: str, step: Step) -> bool:
    """Whether `effect` began after a sync of what `cause` brought had ended."""
    others = [call for call in calls if call.path != log]
    caused = [call for call in others if step.cause in call.data]
    assert caused, f"nobody has heard of {step.cause!r}"
    told = [
        call
        for call in others
        if call.name in WRITES and step.effect in call.data and call.start > caused[0].start
    ]
    assert told, f"nobody has said {step.effect!r}"
    for transaction in transactions(calls, log):
        if transaction.start > caused[0].start and step.row in transaction.data:
            return transaction.synced is not None and transaction.synced < told[0].start
    return False


@TRACES
@pytest.mark.parametrize("version", VERSIONS)
def test_whatever_a_client_says_is_on_disk_before_it_is_said(tmp_path: Path, version: str) -> None:
    outbox = tmp_path / "outbox"
    trace = tmp_path / "trace"
    with ExitStack() as left:
        listener = left.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(brokers.PATIENCE)
        port = listener.getsockname()[1]
        program = [sys.executable, "-m", "tests.kills.client_traced", str(port), str(outbox)]
        process = subprocess.Popen(
            ["strace", *OPTIONS, "-o", str(trace), *program, str(VERSIONS[version])],
            stdin=subprocess.PIPE,
            cwd=ROOT,
        )
        left.callback(process.wait)
        left.callback(process.kill)
        if VERSIONS[version] == V311:
            # In 3.1.1 a session that is to last begins with one that ends the last.
            purge = Peer(listener, V311)
            left.enter_context(purge.socket)
            assert purge.take() == wire.disconnect()
            purge.socket.close()
        peer = Peer(listener, VERSIONS[version])
        left.enter_context(peer.socket)
        steps = list(converse(peer))
        assert process.stdin is not None
        process.stdin.close()
        assert peer.take()[0] == 0xE0
        assert process.wait(brokers.PATIENCE) == 0
    calls = read_file(trace)
    log = str(outbox / "store.db-wal")
    assert len(steps) == 10
    assert [step.name for step in steps if not is_late_enough(calls, log, step)] == []
    # The same without a sync is found out.
    careless = [call for call in calls if call.name not in SYNCS]
    assert [step.name for step in steps if is_late_enough(careless, log, step)] == []

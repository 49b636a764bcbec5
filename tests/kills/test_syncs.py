"""Where the syncs are. No test can cut the power, but strace can show what was on disk when.

The real broker runs under strace through one exchange of each kind. An acknowledgement may leave
its socket only after a sync of the write-ahead log that followed the write of what it reports;
rows may be deleted only after their segment and its folder were synced. The same questions, asked
of a broker that was told not to sync, must be answered with no.
"""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import pytest

from tests.kills import brokers, wire
from tests.kills.trace import (
    OPTIONS,
    SYNCS,
    Call,
    is_marked_when_safe,
    is_sealed_before_deleted,
    is_sent_when_safe,
    read_file,
    read_trace,
)
from tests.kills.wire import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, V311

VERSIONS = {"3.1.1": V311, "5.0": V5}


def why_not() -> str:
    """Why nothing can be traced here; "" if it can."""
    if shutil.which("strace") is None:
        return "not installed: strace"
    tried = subprocess.run(
        ["strace", "-f", "-e", "trace=none", "true"], capture_output=True, text=True
    )
    return f"strace may not trace: {tried.stderr.strip()}" if tried.returncode else ""


WHY_NOT = why_not()
TRACES = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


class Link:
    """A client on a blocking socket, that waits for each answer; durable if it has no will."""

    def __init__(
        self,
        links: ExitStack,
        port: int,
        name: str,
        version: int,
        *,
        will: wire.Will | None = None,
    ) -> None:
        self.version = version
        self.splitter = wire.Splitter()
        self.waiting: list[tuple[int, bytes]] = []
        self.socket = socket.create_connection(("127.0.0.1", port), brokers.PATIENCE)
        links.enter_context(self.socket)
        said = wire.number(wire.SESSION_EXPIRY, 3600) if will is None else b""
        clean = will is not None
        self.hello = wire.connect(name, version, clean=clean, properties=said, will=will)
        self.welcome = self.ask(self.hello)

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


class Step(NamedTuple):
    """What the broker reads, what it must not write before that is safe, and what is in its row."""

    name: str
    cause: bytes
    effect: bytes
    row: bytes = b""


def exchange(port: int, version: int) -> list[Step]:
    """One message of each QoS, from a durable publisher to a durable subscriber.

    The subscriber leaves off where nobody waits for an answer: so no step has anything to write
    when the next one begins.
    """
    with ExitStack() as links:
        steps = list(converse(links, port, version))
    kinds = [step.effect[0] >> 4 for step in steps]
    assert kinds == [2, 9, PUBACK, 3, PUBREC, 3, PUBREL, PUBCOMP, 2, 11]
    return steps


def converse(links: ExitStack, port: int, version: int) -> Iterator[Step]:
    """The steps, one by one."""
    subscriber = Link(links, port, "subscriber", version)
    yield Step("CONNACK", subscriber.hello, subscriber.welcome)
    wanted = wire.subscribe(0x0707, [("t/#", 2)], version)
    yield Step("SUBACK", wanted, subscriber.ask(wanted))
    publisher = Link(links, port, "publisher", version)

    message = wire.publish("t/1", b"a row at QoS 1", version, qos=1, packet_id=0x1111)
    yield Step("PUBACK", message, publisher.ask(message), b"a row at QoS 1")
    delivered = subscriber.take()
    yield Step("PUBLISH at QoS 1", message, delivered, b"a row at QoS 1")

    message = wire.publish("t/2", b"a row at QoS 2", version, qos=2, packet_id=0x2222)
    yield Step("PUBREC", message, publisher.ask(message), b"a row at QoS 2")
    delivered = subscriber.take()
    yield Step("PUBLISH at QoS 2", message, delivered, b"a row at QoS 2")
    packet_id = wire.read_publish(delivered[0], delivered[2:], version).packet_id
    received = wire.acknowledge(PUBREC, packet_id)
    yield Step("PUBREL", received, subscriber.ask(received))
    released = wire.acknowledge(PUBREL, 0x2222)
    yield Step("PUBCOMP", released, publisher.ask(released))

    # [MQTT-3.1.2-7] Whose will it is does not matter: who is accepted has one that is stored.
    will = wire.Will("w", b"a will that lasts", 1)
    bearer = Link(links, port, "bearer", version, will=will)
    yield Step("CONNACK for a will", bearer.hello, bearer.welcome, will.payload)

    unwanted = wire.unsubscribe(0x0808, ["t/#"], version)
    yield Step("UNSUBACK", unwanted, subscriber.ask(unwanted))


class Traced:
    """`semel broker` under strace: a context that ends with the calls it made."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.output = folder / "trace"
        self.data = folder / "data"
        self.log = str(self.data / "store.db-wal")
        self.broker = brokers.semel(brokers.free_port(), folder, *arguments, streams=False)
        self.broker.command[:0] = ["strace", *OPTIONS, "-o", str(self.output)]
        self.calls: list[Call] = []

    def __enter__(self) -> "Traced":
        self.broker.start()
        self.broker.serve_seconds()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # strace itself does not listen to signals.
        for pid in brokers.children(self.broker.running.pid):
            os.kill(pid, signal.SIGTERM)
        self.broker.running.wait(brokers.PATIENCE)
        self.broker.end()
        self.calls = read_file(self.output)

    def is_safe(self, step: Step) -> bool:
        return is_sent_when_safe(self.calls, self.log, step.cause, step.effect, row=step.row)


@TRACES
@pytest.mark.parametrize("version", VERSIONS)
def test_whatever_reports_a_fact_leaves_after_the_sync_of_that_fact(
    tmp_path: Path, version: str
) -> None:
    with Traced(tmp_path) as traced:
        steps = exchange(traced.broker.port, VERSIONS[version])
    assert [step.name for step in steps if not traced.is_safe(step)] == []
    mark = str(traced.data / "store.mark")
    assert is_marked_when_safe(traced.calls, traced.log, mark)
    # It costs no sync of its own.
    assert [call for call in traced.calls if call.path == mark and call.name in SYNCS] == []


@TRACES
@pytest.mark.parametrize("durability", ["os", "memory"])
def test_a_broker_that_does_not_sync_is_found_out(tmp_path: Path, durability: str) -> None:
    with Traced(tmp_path, "--durability", durability) as traced:
        steps = exchange(traced.broker.port, V5)
    assert [step.name for step in steps if traced.is_safe(step)] == []
    mark = str(traced.data / "store.mark")
    assert not is_marked_when_safe(traced.calls, traced.log, mark)


def until_sealed(data: Path, count: int) -> None:
    """Wait until so many rows are in segments, and no longer in the store."""
    until = time.monotonic() + brokers.PATIENCE
    sealed = left = -1
    with closing(sqlite3.connect(f"file:{data / 'store.db'}?mode=ro", uri=True)) as store:
        while time.monotonic() < until:
            ((sealed,),) = store.execute("SELECT sealed_seq FROM stream")
            ((left,),) = store.execute("SELECT count(*) FROM record")
            if (sealed, left) == (count, 0):
                return
            time.sleep(0.05)
    raise AssertionError(f"{sealed} rows sealed, {left} left")


def record(port: int) -> list[Step]:
    """A message of each QoS from a publisher, recorded in a stream, for nobody."""
    steps = []
    with ExitStack() as links:
        publisher = Link(links, port, "publisher", V5)
        for qos, name in ((1, "PUBACK"), (2, "PUBREC")):
            row = b"recorded at QoS %d" % qos
            message = wire.publish("t", row, V5, qos=qos, packet_id=0x3333 + qos)
            steps.append(Step(name, message, publisher.ask(message), row))
    return steps


@TRACES
def test_a_segment_is_on_disk_before_its_rows_are_deleted(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with Traced(tmp_path, "--stream", "all=#") as traced:
        steps = record(traced.broker.port)
        until_sealed(traced.data, 2)
    assert [step.name for step in steps if not traced.is_safe(step)] == []
    segments = list((traced.data / "streams").rglob("*.parquet"))
    assert segments
    for segment in segments:
        assert is_sealed_before_deleted(traced.calls, traced.log, segment)


# --- the questions themselves, on traces written by hand ------------------------------------------

LOG = "/d/store.db-wal"
SOCKET = "socket:[7]"
HEADER = bytes([0, 0, 0, 2, 0, 0, 0, 9]) + bytes(16)


def text(data: str | bytes) -> str:
    raw = data.encode() if isinstance(data, str) else data
    return "".join(f"\\x{byte:02x}" for byte in raw)


def line(name: str, path: str, data: bytes = b"", process: int = 1) -> str:
    return f'{process} {name}(3<{text(path)}>, "{text(data)}", 9) = {len(data)}'


ASKED = line("recvfrom", SOCKET, b"cause")
TOLD = line("sendto", SOCKET, b"effect")
FRAME = [line("pwrite64", LOG, HEADER), line("pwrite64", LOG, b"the row")]
SYNCED = line("fdatasync", LOG)


@pytest.mark.parametrize(
    ("lines", "safe"),
    [
        ([ASKED, *FRAME, SYNCED, TOLD], True),
        ([ASKED, *FRAME, TOLD, SYNCED], False),
        ([ASKED, *FRAME, TOLD], False),
        ([ASKED, SYNCED, *FRAME, TOLD], False),
        ([ASKED, FRAME[0], SYNCED, FRAME[1], TOLD], False),
        ([*FRAME, SYNCED, ASKED, TOLD], False),
        ([ASKED, *FRAME, line("fdatasync", "/d/store.db"), TOLD], False),
        ([ASKED, line("pwrite64", LOG, bytes(24)), FRAME[1], SYNCED, TOLD], False),
    ],
)
def test_only_a_sync_between_row_and_answer_is_enough(lines: list[str], safe: bool) -> None:
    assert is_sent_when_safe(read_trace(lines), LOG, b"cause", b"effect", row=b"row") is safe


def test_a_call_that_waits_ends_where_it_is_resumed() -> None:
    begun = f"1 fdatasync(3<{text(LOG)}> <unfinished ...>"
    lines = [
        ASKED,
        *FRAME,
        begun,
        line("read", SOCKET, process=2),
        "1 <... fdatasync resumed>) = 0",
    ]
    calls = read_trace([*lines, TOLD])
    (sync,) = [call for call in calls if call.name == "fdatasync"]
    assert (sync.start, sync.end, sync.path) == (3, 5, LOG)
    assert is_sent_when_safe(calls, LOG, b"cause", b"effect")
    # The sync begins in time, but ends too late.
    assert not is_sent_when_safe(read_trace([*lines[:-1], TOLD, lines[-1]]), LOG, b"cause", b"eff")


SEGMENT = "/d/streams/all/n/1-2.parquet"
WRITTEN = line("write", "/d/streams/all/n/tmp", b"rows")
FILE_SYNCED = line("fsync", "/d/streams/all/n/tmp")
NAMED = f'1 rename("{text("/d/streams/all/n/tmp")}", "{text(SEGMENT)}") = 0'
FOLDER_SYNCED = line("fsync", "/d/streams/all/n")


@pytest.mark.parametrize(
    ("lines", "safe"),
    [
        ([WRITTEN, FILE_SYNCED, NAMED, FOLDER_SYNCED, *FRAME], True),
        ([*FRAME, WRITTEN, FILE_SYNCED, NAMED, FOLDER_SYNCED, *FRAME], True),
        ([WRITTEN, NAMED, FILE_SYNCED, FOLDER_SYNCED, *FRAME], False),
        ([FILE_SYNCED, WRITTEN, NAMED, FOLDER_SYNCED, *FRAME], False),
        ([WRITTEN, FILE_SYNCED, NAMED, *FRAME, FOLDER_SYNCED], False),
        ([WRITTEN, FILE_SYNCED, *FRAME, NAMED, FOLDER_SYNCED], False),
        ([WRITTEN, FILE_SYNCED, NAMED, *FRAME], False),
        ([WRITTEN, FILE_SYNCED, FOLDER_SYNCED, NAMED, *FRAME], False),
    ],
)
def test_a_segment_is_safe_by_its_own_sync_and_that_of_its_folder(
    lines: list[str], safe: bool
) -> None:
    assert is_sealed_before_deleted(read_trace(lines), LOG, Path(SEGMENT)) is safe

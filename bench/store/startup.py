"""How long a broker with a large store takes to start, and how much memory it uses then.

The store is written directly, without a broker. Messages are inserted in the order in which a
publisher would send them to all sessions, so that the pages of the queues are as full as in a store
that grew. It is evicted from the page cache before every start.
"""

import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.broker.contenders import SEMEL, DidNotStart, free_port, launched
from bench.broker.wire import PUBLISH, encode_connect
from bench.store.brokers import command, first_answer, fresh_folder
from bench.store.durable import PAYLOAD
from bench.store.load import connect_durable, encode_durable
from semel.lab.load.links import LinkError, read_packet
from semel.mqtt import MQTT311, Subscription
from semel.mqtt.delivery import QUEUED as WAITS
from semel.mqtt.delivery import Change
from semel.mqtt.message import Message
from semel.mqtt.session import NEVER_EXPIRES
from semel.store.commit import Commit
from semel.store.database import Database
from semel.store.settings import OS

SESSIONS: Final = 100_000
QUEUED: Final = 10
LIMIT_SECONDS: Final = 120.0
# Sessions per commit while the store is created.
CHUNK: Final = 10_000


@dataclass
class Start:
    """One start."""

    # From the start of the process until its CONNACK for an existing session.
    seconds: float = 0.0
    resident_kb: int = 0
    # From another client's connection until it had its queued messages, and memory then.
    queue_ms: float = 0.0
    resident_after_kb: int = 0
    fault: str = ""


@dataclass
class Startup:
    """All starts of one store."""

    sessions: int
    messages: int
    store_bytes: int
    starts: list[Start]
    # An empty store, for comparison.
    empty: Start

    def median(self) -> Start:
        return Start(
            statistics.median(each.seconds for each in self.starts),
            int(statistics.median(each.resident_kb for each in self.starts)),
            statistics.median(each.queue_ms for each in self.starts),
            int(statistics.median(each.resident_after_kb for each in self.starts)),
        )

    @property
    def fault(self) -> str:
        return "; ".join(sorted({each.fault for each in [*self.starts, self.empty] if each.fault}))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def client_id_of(session: int) -> str:
    return f"session-{session:06}"


def topic_of(session: int) -> str:
    return f"fleet/{session:06}/state"


def payload_of(session: int, number: int) -> bytes:
    return f"{session:0{PAYLOAD // 2}}{number:0{PAYLOAD // 2}}".encode()


def fill(path: Path, sessions: int, queued: int) -> None:
    """Create sessions, each with a subscription and queued messages."""
    database = Database.open(path, OS)
    try:
        for number in range(queued + 1):
            for first in range(1, sessions + 1, CHUNK):
                commit = Commit()
                for session in range(first, min(first + CHUNK, sessions + 1)):
                    if number == 0:
                        enter(commit, session)
                        continue
                    message = Message(topic_of(session), payload_of(session, number), qos=1)
                    commit.changes.append((session, Change(WAITS, number=number, message=message)))
                database.apply([commit])
    finally:
        database.close()


def enter(commit: Commit, session: int) -> None:
    """A session that never expires, with its subscription."""
    topic_filter = topic_of(session)
    commit.sessions.append((session, client_id_of(session), NEVER_EXPIRES, ""))
    commit.subscriptions.append((session, topic_filter, Subscription(topic_filter, 1), 0))


def forget(path: Path) -> None:
    """Write a file to disk, and evict it from the page cache."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(number)


def measure_startup(
    rounds: int, parent: Path | None, sessions: int = SESSIONS, queued: int = QUEUED
) -> Startup:
    """Create the store, and start a broker on it several times."""
    with fresh_folder(parent) as folder:
        store = folder / "data" / "store.db"
        result = Startup(sessions, sessions * queued, 0, [], start(folder, None, 0))
        if result.fault:
            return result
        print("bench: startup, creating the store … ", end="", file=sys.stderr, flush=True)
        fill(store, sessions, queued)
        result.store_bytes = store.stat().st_size
        print(f"{result.store_bytes / 1e6:,.0f} MB", file=sys.stderr)
        for number in range(rounds):
            forget(store)
            # Each start uses two sessions that were not used before.
            found = start(folder, sessions // 2 + 2 * number, queued)
            result.starts.append(found)
            print(
                f"bench: startup {number + 1}/{rounds}: {found.seconds:.2f} s, "
                f"{found.resident_kb:,} KB, queue {found.queue_ms:.1f} ms {found.fault}",
                file=sys.stderr,
            )
    return result


def start(folder: Path, session: int | None, queued: int) -> Start:
    """One start. `session` and the next one have `queued` messages each; None: empty store."""
    found = Start()
    port = free_port()
    packet = encode_connect(MQTT311, "nobody")
    if session is not None:
        packet = encode_durable(MQTT311, client_id_of(session))
    began = time.monotonic()
    try:
        arguments = command(SEMEL, port, folder)
        with launched(arguments, port, folder / "log") as process:
            link = first_answer(process, packet, LIMIT_SECONDS)
            found.seconds = time.monotonic() - began
            found.resident_kb = process.resident_kb()
            link.close()
            if session is not None:
                found.queue_ms = fetch(port, session + 1, queued)
            found.resident_after_kb = process.resident_kb()
    except (LinkError, DidNotStart, OSError) as problem:
        found.fault = str(problem)
    return found


def fetch(port: int, session: int, queued: int) -> float:
    """Milliseconds until a reconnected client has its queued messages."""
    began = time.monotonic()
    link, present = connect_durable(port, MQTT311, client_id_of(session))
    try:
        if not present:
            raise LinkError(f"does not know {client_id_of(session)}")
        for number in range(1, queued + 1):
            first, body = read_packet(link)
            if first != PUBLISH[1] or not body.endswith(payload_of(session, number)):
                raise LinkError(
                    f"delivered {first:#x} {body[:20].hex()} to {client_id_of(session)}"
                )
            at = 2 + len(topic_of(session))
            link.sendall(b"\x40\x02" + body[at : at + 2])
        return (time.monotonic() - began) * 1e3
    finally:
        link.close()


def lines(result: Startup) -> list[str]:
    """Markdown."""
    rows = [
        "| start-up | MB on disk | s to the first CONNACK | resident MB | ms to connect and get a"
        " queue | resident MB then |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    if result.fault:
        return [*rows, f"| ⚠ {result.fault} | | | | | |"]
    empty, median = result.empty, result.median()
    return [
        *rows,
        f"| an empty store | | {empty.seconds:.2f} | {empty.resident_kb / 1e3:.0f} | | |",
        f"| {result.sessions:,} sessions, {result.messages:,} messages of {PAYLOAD} B "
        f"| {result.store_bytes / 1e6:,.0f} | {median.seconds:.2f} "
        f"| {median.resident_kb / 1e3:.0f} | {median.queue_ms:.1f} "
        f"| {median.resident_after_kb / 1e3:.0f} |",
    ]

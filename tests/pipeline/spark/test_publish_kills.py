"""Each row of a batch arrives once, although the process that sends it is killed at any point.

This file is also the program that is killed: it forks for each attempt, because importing pyarrow
takes longer than an attempt.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import semel
from semel.broker.authority import Authority
from semel.broker.identity import Identity
from semel.client.client import Client
from semel.client.transport import StreamTransport
from semel.lab.testing import TestBroker
from semel.mqtt.reasons import NOT_AUTHORIZED, SUCCESS
from semel.pipeline import publish_batch, publish_rows
from semel.pipeline.errors import PipelineError
from semel.pipeline.publish_options import CHUNKS, ChunkLimits, parse_publish_options
from semel.store.database import Database
from semel.store.disk import DiskStore
from tests.kills.brokers import free_port, mosquitto

HOME = Path(__file__).resolve().parents[3]
# Generous: it only ends what would hang.
PATIENCE = 60.0
# At how many points an attempt is killed.
POINTS = int(os.environ.get("SEMEL_PUBLISH_KILLS", "24"))
# Rows per chunk, so that a small batch has several.
CHUNK_ROWS = 4


# --- the program ----------------------------------------------------------------------------------


class Steps:
    """Counts calls that change a file or use the network, and kills the process at one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.count = 0
        self.kill_at = kill_at

    def step(self) -> None:
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def watch(self, owner: Any, name: str) -> None:
        """A step before each call of a function, and one after it."""
        original: Callable[..., Any] = getattr(owner, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            self.step()
            answer = original(*arguments, **named)
            self.step()
            return answer

        setattr(owner, name, watched)


# The transactions of the outbox, and everything else that another process can notice.
WATCHED: list[tuple[Any, str]] = [
    (Database, "write"),
    (DiskStore, "write"),
    (StreamTransport, "write"),
    (StreamTransport, "data_received"),
    (os, "fsync"),
    (Path, "unlink"),
]


def attempt(task: dict[str, Any]) -> int:
    """One commit of a batch. Returns the number of steps."""
    steps = Steps(task["kill_at"])
    for owner, name in WATCHED if task["everything"] else WATCHED[:1]:
        steps.watch(owner, name)
    commit(task)
    return steps.count


def commit(task: dict[str, Any]) -> None:
    """What two tasks of Spark and the commit of their batch do."""
    options = parse_publish_options(task["options"], is_stream=True)
    options = replace(options, chunks=ChunkLimits(rows=task.get("chunk", CHUNKS.rows)))
    rows = pa.RecordBatch.from_pydict(
        {
            # A row whose text says so is refused by the broker.
            "topic": [("no/" if "no" in row else "") + task["topic"] for row in task["rows"]],
            "payload": task["rows"],
        }
    )
    half = len(task["rows"]) // 2
    messages = [
        publish_rows.write_task_rows(
            [part],
            options.task_folder,
            default_qos=options.qos,
            keeps_invalid=options.failures is not None,
            limits=options.chunks,
        )
        for part in (rows.slice(0, half), rows.slice(half))
    ]
    publish_batch.publish_batch(options, messages, task["batch"])


def warm_up() -> None:
    """Import here what would else be imported in each attempt: no broker listens at port 1."""
    with TemporaryDirectory() as folder:
        options = {"url": "mqtt://127.0.0.1:1", "appId": "none", "state": folder, "timeout": "0.1"}
        with suppress(PipelineError):
            commit({"options": options, "rows": ["1", "2"], "topic": "t", "batch": 0})


def serve() -> None:
    """Make the attempts that the test asks for, each in a process of its own."""
    warm_up()
    for line in sys.stdin:
        task = json.loads(line)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                answer: dict[str, Any] = {"steps": attempt(task)}
            except PipelineError as problem:
                answer = {"error": str(problem)}
            os.write(writer, json.dumps(answer).encode())
            os._exit(0)
        os.close(writer)
        if task["kill_after"] is not None:
            threading.Timer(task["kill_after"], os.kill, (pid, signal.SIGKILL)).start()
        with os.fdopen(reader, "rb") as pipe:
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status)
        print(json.dumps({"killed": killed, **(json.loads(text) if text else {})}), flush=True)


# --- the tests ------------------------------------------------------------------------------------


class Program:
    """The program, as the tests use it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.kills = 0

    def commit(
        self,
        options: dict[str, str],
        rows: list[str],
        *,
        topic: str,
        batch: int = 0,
        kill_at: int | None = None,
        kill_after: float | None = None,
        chunk: int = CHUNK_ROWS,
        everything: bool = True,
    ) -> dict[str, Any]:
        """One attempt; whether it was killed, and its steps if not."""
        task = {
            "options": options,
            "rows": rows,
            "topic": topic,
            "batch": batch,
            "kill_at": kill_at,
            "kill_after": kill_after,
            "chunk": chunk,
            "everything": everything,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert answer["killed"] or "steps" in answer, answer
        self.kills += answer["killed"]
        return answer


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    process = subprocess.Popen(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{HOME}:{Path(semel.__file__).parent.parent}"},
    )
    with process:
        yield Program(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, if there is one: a kill does not lose what was not synced anyway."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    with TemporaryDirectory(dir="/dev/shm") as made:
        yield Path(made)


class Subscriber:
    """Counts what arrives, in a thread of its own."""

    def __init__(self, url: str) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self._url = url
        self._ready = threading.Event()
        self._end = threading.Event()
        self._arrived = threading.Condition()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    async def _run(self) -> None:
        async with Client(self._url, client_id="subscriber", session_expiry=600) as client:
            messages = await client.subscribe("#", qos=2)
            self._ready.set()
            async for message in messages:
                if message.topic == "end":
                    return
                with self._arrived:
                    counts = self.counts.setdefault(message.topic, Counter())
                    counts[message.payload.decode()] += 1
                    self._arrived.notify_all()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    def stop(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def wait_for(self, topic: str, count: int) -> Counter[str]:
        """What has arrived with a topic, when there are so many different ones."""
        with self._arrived:
            assert self._arrived.wait_for(
                lambda: len(self.counts.get(topic, ())) >= count, PATIENCE
            ), f"{topic}: {len(self.counts.get(topic, ()))} of {count} arrived"
            return Counter(self.counts[topic])


@contextmanager
def subscribed(url: str, end: Callable[[], Any]) -> Iterator[Subscriber]:
    """A subscriber to everything; at the end, all that was sent before has arrived."""
    subscriber = Subscriber(url)
    subscriber.start()
    yield subscriber
    end()
    subscriber.stop()


def publish_end(url: str) -> None:
    async def send() -> None:
        async with Client(url) as client:
            await client.publish("end", b"", 2)

    asyncio.run(send())


def rows_of(name: str, count: int) -> list[str]:
    return [f"{name} {number}" for number in range(count)]


def options_for(url: str, folder: Path, query: str, **more: str) -> dict[str, str]:
    return {"url": url, "appId": query, "state": str(folder / query), **more}


def check_each_once(found: Counter[str], *attempts: list[str]) -> None:
    """The rows of one of the attempts arrived, each once; never some of each."""
    assert any(found == Counter(each) for each in attempts), found


def kill_everywhere(
    program: Program, url: str, folder: Path, *, points: int, **more: str
) -> dict[str, tuple[list[str], ...]]:
    """Kill an attempt at points between its first step and its last, and the next one too.

    Returns the rows of each query's attempts. The rows of a repeated attempt differ, as those of
    a query that is not deterministic: those of the first transaction win.
    """
    trial = program.commit(
        options_for(url, folder, "trial", **more), rows_of("trial", 10), topic="t"
    )
    steps: int = trial["steps"]
    chance = random.Random(7)
    sent: dict[str, tuple[list[str], ...]] = {}
    for number in range(points):
        query = f"q{number}"
        options = options_for(url, folder, query, **more)
        first, second = rows_of("first", 10), rows_of("second", 7)
        at = number * steps // points
        # The number of steps is not always the same: the last one may not be reached.
        program.commit(options, first, topic=query, kill_at=at)
        program.commit(options, second, topic=query, kill_at=chance.randrange(steps))
        assert not program.commit(options, second, topic=query)["killed"]
        # Spark may repeat a batch that was sent, if it was killed before it noted that.
        assert not program.commit(options, second, topic=query)["killed"]
        sent[query] = (first, second)
        shutil.rmtree(folder / query)
    return sent


def test_each_row_arrives_once_wherever_the_driver_is_killed(
    program: Program, folder: Path
) -> None:
    with TestBroker() as broker:
        with subscribed(broker.url, lambda: broker.publish("end", "", 2)) as subscriber:
            before = program.kills
            sent = kill_everywhere(program, broker.url, folder, points=POINTS)
            assert program.kills - before >= POINTS * 0.9
        for query, attempts in sent.items():
            check_each_once(subscriber.counts[query], *attempts)
        firsts = sum(subscriber.counts[query] == Counter(each[0]) for query, each in sent.items())
        # Both happened: kills before the first transaction, and after it.
        assert 0 < firsts < len(sent)
        broker.assert_clean()


def test_a_large_batch_survives_kills_at_random_moments(program: Program, tmp_path: Path) -> None:
    chance = random.Random(11)
    rows = rows_of("row", 1_500)
    with TestBroker() as broker:
        with subscribed(broker.url, lambda: broker.publish("end", "", 2)) as subscriber:
            options = options_for(broker.url, tmp_path, "large")
            for _ in range(8):
                program.commit(
                    options, rows, topic="large", kill_after=chance.uniform(0, 0.4), chunk=400
                )
            # The next batch is sent after it, and is not mixed with it.
            program.commit(options, rows, topic="large", chunk=400)
            program.commit(options, ["next"], topic="large", batch=1)
        assert subscriber.counts["large"] == Counter([*rows, "next"])


def test_a_broker_may_be_killed_in_the_middle(tmp_path: Path) -> None:
    with TestBroker() as broker:
        with subscribed(broker.url, lambda: broker.publish("end", "", 2)) as subscriber:
            given = options_for(broker.url, tmp_path, "q", maxRate="500")
            rows = rows_of("row", 300)
            task = {"options": given, "rows": rows, "topic": "t", "batch": 0}
            thread = threading.Thread(target=commit, args=(task,))
            thread.start()
            for count in (50, 150, 250):
                subscriber.wait_for("t", count)
                broker.restart(kill=True)
            thread.join(PATIENCE)
            assert not thread.is_alive()
            # The client of the subscriber reconnects.
            subscriber.wait_for("t", len(rows))
        assert subscriber.counts["t"] == Counter(rows)


class Refusing(Authority):
    """Refuses topics that begin with `no`."""

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        return NOT_AUTHORIZED if topic_name.startswith("no/") else SUCCESS


def test_a_refused_row_is_in_the_failures_table_once_wherever_the_driver_is_killed(
    program: Program, folder: Path
) -> None:
    table = str(folder / "failures")
    rows = [("no " if number % 4 == 1 else "row ") + str(number) for number in range(6)]
    with TestBroker(authority=Refusing()) as broker:
        options = options_for(broker.url, folder, "trial", failures=table)
        steps = program.commit(options, rows, topic="trial", everything=False)["steps"]
        queries = [f"q{number}" for number in range(steps)]
        for number, query in enumerate(queries):
            options = options_for(broker.url, folder, query, failures=table)
            # Before and after each transaction.
            program.commit(options, rows, topic=query, kill_at=number, everything=False)
            program.commit(options, rows, topic=query)
        for query in queries:
            found = Counter(each.payload.decode() for each in broker.messages(query))
            assert found == Counter(row for row in rows if "no" not in row)
    failures = DeltaTable(table).to_pyarrow_table().select(["query", "row", "payload"]).to_pylist()
    expected = [
        {"query": query, "row": number, "payload": rows[number].encode()}
        for query in ("trial", *queries)
        for number in (1, 5)
    ]
    key = itemgetter("query", "row")
    assert sorted(failures, key=key) == sorted(expected, key=key)


@pytest.mark.skipif(shutil.which("mosquitto") is None, reason="not installed: mosquitto")
@pytest.mark.parametrize("version", ["5", "3.1.1"])
def test_the_same_with_mosquitto(
    program: Program, tmp_path: Path, folder: Path, version: str
) -> None:
    broker = mosquitto(free_port(), tmp_path)
    broker.start()
    try:
        broker.serve_seconds()
        url = f"mqtt://127.0.0.1:{broker.port}"
        with subscribed(url, lambda: publish_end(url)) as subscriber:
            sent = kill_everywhere(program, url, folder, points=6, mqttVersion=version)
        for query, attempts in sent.items():
            check_each_once(subscriber.counts[query], *attempts)
    finally:
        broker.end()


if __name__ == "__main__":
    serve()

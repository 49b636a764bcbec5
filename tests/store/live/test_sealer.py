"""The sealer: one range, one file, whatever happens in between; and the process around it."""

import contextlib
import fcntl
import json
import os
import queue
import selectors
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.store import sealer as sealer_module
from semel.store.compaction import Compaction
from semel.store.node_segments import NodeSegments, SealRequest
from semel.store.retention import Retention
from semel.store.retention_clock import RetentionClock
from semel.store.roots import LocalRoot, NotOwned, Root
from semel.store.sealer import LOCK_NAME, SealerLoop, read_lines
from semel.store.segment_names import segment_name
from semel.store.segments import RecordError, check_segment, pick
from tests.store.memory_root import MemoryRoot, ObjectStore, object_root
from tests.store.recorded import (
    fields,
    insert,
    make_database,
    message,
    read_records,
    reader,
    received,
)

# Against hanging only.
PATIENCE = 60.0


def seal(sealer: NodeSegments, first: int, last: int, *, rewrite: bool = False) -> int:
    return sealer.seal(SealRequest("plant", 1, first, last), now=1_000_000.0, rewrite=rewrite)


def check_record(root: Root, last: int, *, stream: str = "plant") -> None:
    """Rows 1 to `last` are there, each once, as they were accepted."""
    found = read_records(root, stream, "n1", 1, last + 1_000, stream_id=1)
    assert [each.seq for each in found] == list(range(1, last + 1))
    for each in found:
        assert fields(each) == fields(message(each.seq))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = make_database(tmp_path / "store.db")
    insert(connection, 1, 200)
    yield connection
    connection.close()


@pytest.fixture
def root() -> MemoryRoot:
    return MemoryRoot()


@pytest.fixture
def sealer(database: sqlite3.Connection, root: MemoryRoot) -> NodeSegments:
    return NodeSegments(database, root, node="n1", store="s", compaction=Compaction(files=3))


def steps_of(root: MemoryRoot) -> list[tuple[str, str]]:
    """What is done to the root from now on: the step, and the name of the file."""
    steps: list[tuple[str, str]] = []
    root.hook = lambda what, path: steps.append((what, path.rpartition("/")[2]))
    return steps


# --- one range ------------------------------------------------------------------------------------


def test_a_range_becomes_a_segment(sealer: NodeSegments, root: MemoryRoot) -> None:
    size = seal(sealer, 1, 50)
    assert [(each.range, each.size) for each in root.segments("plant", "n1")] == [((1, 50), size)]
    assert root.owner("plant", "n1") == "s"
    check_record(root, 50)


def test_a_segment_that_is_there_is_checked_and_not_written_again(
    database: sqlite3.Connection, sealer: NodeSegments, root: MemoryRoot
) -> None:
    size = seal(sealer, 1, 50)
    # The broker was not told, or forgot: the same range comes to a new sealer. Its rows may have
    # been deleted already.
    database.execute("DELETE FROM record")
    steps = steps_of(root)
    assert seal(NodeSegments(database, root, node="n1", store="s"), 1, 50) == size
    assert ("read", segment_name(1, 50)) in steps
    # Whoever wrote it may have died before it was synced.
    assert ("fsync", segment_name(1, 50)) in steps
    assert not [each for each in steps if each[0] == "write"]


def test_a_damaged_segment_is_written_again(
    database: sqlite3.Connection, sealer: NodeSegments, root: MemoryRoot
) -> None:
    seal(sealer, 1, 50)
    path = root.file_path("plant", "n1", segment_name(1, 50))
    good = root.files[path]
    root.files[path] = (good[0][:100], 0.0)
    seal(NodeSegments(database, root, node="n1", store="s"), 1, 50)
    assert root.files[path][0] == good[0]


def flip(root: MemoryRoot, first: int, last: int) -> None:
    """Turn over one bit in the middle of a segment."""
    path = root.file_path("plant", "n1", segment_name(first, last))
    data, modified = root.files[path]
    at = len(data) // 3
    root.files[path] = (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], modified)


def test_a_segment_with_one_flipped_bit_is_written_again(
    database: sqlite3.Connection, sealer: NodeSegments, root: MemoryRoot
) -> None:
    seal(sealer, 1, 50)
    good = dict(root.files)
    flip(root, 1, 50)
    seal(NodeSegments(database, root, node="n1", store="s"), 1, 50)
    assert root.files == good


def test_rows_are_sealed_only_when_the_root_gives_back_what_was_written(
    database: sqlite3.Connection,
) -> None:
    root = MemoryRoot()
    spoiled = [1, 2]

    def hook(what: str, path: str) -> None:
        if what == "written" and path.endswith(".parquet") and spoiled:
            spoiled.pop()
            flip(root, 1, 50)

    root.hook = hook
    broker = Broker(NodeSegments(database, root, node="n1", store="s"))

    def until_sealed(kind: str, about: dict[str, Any]) -> None:
        if kind == "sealed":
            broker.end()

    broker.on_event = until_sealed
    broker.order(1, 50)
    broker.loop.run()
    assert broker.kinds() == ["failed", "failed", "sealed"]
    assert "is damaged" in broker.heard[0][1]["why"]
    check_record(root, 50)


def test_damage_is_told_once_and_neither_this_stream_nor_another_waits(
    database: sqlite3.Connection,
) -> None:
    root = MemoryRoot()
    sealer = NodeSegments(database, root, node="n1", store="s", compaction=Compaction(files=3))
    for first in (1, 11, 21):
        seal(sealer, first, first + 9)
    flip(root, 11, 20)
    broker = Broker(sealer, housekeeping=1_000.0)
    for first in (31, 41, 51, 61):
        broker.order(first, first + 9)
        broker.order(first - 30, first - 21, stream="other")
        # Turns of the loop, which would end only when it is told to.
        broker.loop._take_requests(0.0)
        broker.loop._seal_due()
        for _ in range(4):
            broker.loop._do_housekeeping()
    assert broker.kinds().count("sealed") == 8
    notices = [about["why"] for kind, about in broker.heard if kind == "notice"]
    assert len(notices) == 1
    assert f"{segment_name(11, 20)} of stream plant, node n1, is damaged" in notices[0]
    # What lies behind it is merged, and so is the other stream.
    ranges = [each.range for each in root.segments("plant", "n1")]
    assert any(first == 21 and last >= 50 for first, last in ranges)
    assert (1, 30) in [each.range for each in root.segments("other", "n1")]


def test_retention_goes_past_a_damaged_segment(database: sqlite3.Connection) -> None:
    """Its footer does not tell how old it is: its file does."""
    root = MemoryRoot()
    root.now = received(100) / 1e6
    retention = {"plant": Retention(60.0, None)}
    sealer = NodeSegments(database, root, node="n1", store="s", retention=retention)
    for first in range(1, 100, 10):
        seal(sealer, first, first + 9)
    path = root.file_path("plant", "n1", segment_name(11, 20))
    root.files[path] = (root.files[path][0][:-20], root.now)
    sealer.clean_up("plant", now=root.now + 59.0)
    assert len(root.segments("plant", "n1")) == 10
    sealer.clean_up("plant", now=root.now + 61.0)
    assert [each.range for each in root.segments("plant", "n1")] == [(91, 100)]


def test_a_damaged_segment_that_covers_others_and_alone_has_a_row_stops_nothing_else(
    database: sqlite3.Connection,
) -> None:
    root = MemoryRoot()
    retention = {"plant": Retention(60.0, None)}
    compaction = Compaction(files=3, grace=0.0)
    sealer = NodeSegments(
        database, root, node="n1", store="s", retention=retention, compaction=compaction
    )
    for first in (1, 11, 21):
        seal(sealer, first, first + 9)
    assert sealer.compact("plant")
    seal(sealer, 31, 40)
    root.delete(root.file_path("plant", "n1", segment_name(1, 10)))
    flip(root, 1, 30)
    with pytest.raises(RecordError, match="no other segments hold all its rows"):
        sealer.clean_up("plant", now=received(40) / 1e6)
    sealer.clean_up("plant", now=received(40) / 1e6)
    assert (1, 30) in [each.range for each in root.segments("plant", "n1")]
    sealer.clean_up("plant", now=received(40) / 1e6 + 61.0)
    assert [each.range for each in root.segments("plant", "n1")] == [(31, 40)]


def test_a_retry_in_the_same_process_writes_the_file_again(
    sealer: NodeSegments, root: MemoryRoot
) -> None:
    seal(sealer, 1, 50)
    before = dict(root.files)
    steps = steps_of(root)
    seal(sealer, 1, 50, rewrite=True)
    assert ("written", segment_name(1, 50)) in steps
    assert root.files == before
    check_record(root, 50)


def test_a_range_within_a_merged_segment_is_sealed(
    database: sqlite3.Connection, sealer: NodeSegments, root: MemoryRoot
) -> None:
    for first in (1, 11, 21):
        seal(sealer, first, first + 9)
    assert sealer.compact("plant")
    for first in (1, 11, 21):
        root.delete(root.file_path("plant", "n1", segment_name(first, first + 9)))
    database.execute("DELETE FROM record")
    fresh = NodeSegments(database, root, node="n1", store="s")
    steps = steps_of(root)
    seal(fresh, 21, 30)
    assert not [each for each in steps if each[0] == "write"]


@pytest.mark.parametrize(("first", "last"), [(41, 60), (5, 45), (30, 51)])
def test_half_an_overlap_is_refused(
    sealer: NodeSegments, root: MemoryRoot, first: int, last: int
) -> None:
    seal(sealer, 11, 50)
    before = dict(root.files)
    with pytest.raises(RecordError, match="would overlap") as caught:
        seal(sealer, first, last)
    assert segment_name(first, last) in str(caught.value)
    assert segment_name(11, 50) in str(caught.value)
    assert root.files == before


def test_a_range_may_follow_or_cover_what_is_there(sealer: NodeSegments, root: MemoryRoot) -> None:
    seal(sealer, 1, 50)
    seal(sealer, 51, 60)
    seal(sealer, 51, 70)
    assert pick(each.range for each in root.segments("plant", "n1")) == [(1, 50), (51, 70)]
    check_record(root, 70)


def test_the_folder_of_another_store_is_not_touched(sealer: NodeSegments, root: MemoryRoot) -> None:
    root.claim("plant", "n1", "another")
    before = dict(root.files)
    with pytest.raises(NotOwned, match="belongs to store another"):
        seal(sealer, 1, 50)
    assert root.files == before
    # Other streams and nodes are no concern of theirs.
    sealer.seal(SealRequest("other", 1, 1, 50), now=0.0)
    assert sealer.streams() == ["other"]


def test_rows_that_are_not_committed_are_not_sealed(sealer: NodeSegments, root: MemoryRoot) -> None:
    with pytest.raises(RecordError, match="row 201 is not in the store"):
        seal(sealer, 101, 250)
    assert root.segments("plant", "n1") == []


def test_what_a_killed_sealer_left_is_cleaned_up_once(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    root = LocalRoot(tmp_path / "streams")
    seal(NodeSegments(database, root, node="n1", store="s"), 1, 50)
    left = tmp_path / "streams/plant/n1/.tmp-x"
    left.touch()
    fresh = NodeSegments(database, root, node="n1", store="s")
    seal(fresh, 51, 60)
    assert not left.exists()
    # Later it may be a merge that is under way.
    left.touch()
    fresh.forget("plant")
    seal(fresh, 61, 70)
    assert left.exists()


def test_small_segments_are_merged_and_then_deleted(sealer: NodeSegments, root: MemoryRoot) -> None:
    for first in range(1, 100, 10):
        seal(sealer, first, first + 9)
        while sealer.compact("plant"):
            pass
    assert len(pick(each.range for each in root.segments("plant", "n1"))) < 5
    sealer.clean_up("plant", now=root.now + 3_599.0)
    assert len(root.segments("plant", "n1")) > 10
    sealer.clean_up("plant", now=root.now + 3_600.0)
    ranges = [each.range for each in root.segments("plant", "n1")]
    assert ranges == pick(ranges)
    check_record(root, 100)


# --- the loop -------------------------------------------------------------------------------------


class Broker:
    """The other end of a loop that runs here: the requests it sends and the events it receives."""

    def __init__(
        self,
        sealer: NodeSegments,
        *,
        housekeeping: float = 0.0,
        clock: RetentionClock | None = None,
    ) -> None:
        self.requests: queue.SimpleQueue[SealRequest | None] = queue.SimpleQueue()
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.on_event: Callable[[str, dict[str, Any]], None] = lambda kind, about: None
        self.loop = SealerLoop(
            sealer, self.requests, self.receive, housekeeping=housekeeping, clock=clock
        )

    def receive(self, kind: str, about: dict[str, Any]) -> None:
        self.heard.append((kind, about))
        self.on_event(kind, about)

    def order(self, first: int, last: int, stream: str = "plant") -> None:
        self.requests.put(SealRequest(stream, 1, first, last))

    def end(self) -> None:
        self.requests.put(None)

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.heard]


def test_requests_are_completed_in_order(sealer: NodeSegments, root: MemoryRoot) -> None:
    broker = Broker(sealer)

    def go_on(kind: str, about: dict[str, Any]) -> None:
        if about["last"] == 40:
            broker.end()
        else:
            broker.order(about["last"] + 1, about["last"] + 10)

    broker.on_event = go_on
    broker.order(1, 10)
    broker.loop.run()
    assert broker.kinds() == ["sealed"] * 4
    sizes = {each.range: each.size for each in root.segments("plant", "n1")}
    for at, (_, about) in enumerate(broker.heard):
        first, last = at * 10 + 1, at * 10 + 10
        assert about == {
            "stream": "plant",
            "id": 1,
            "first": first,
            "last": last,
            "bytes": sizes[first, last],
        }
    check_record(root, 40)


@pytest.mark.parametrize(("step", "times"), [("put", 2), ("close", 1), ("list", 1), ("get", 1)])
def test_a_store_that_fails_is_tried_again_until_it_works(
    database: sqlite3.Connection, step: str, times: int
) -> None:
    store = ObjectStore()
    root = object_root(store)
    broker = Broker(NodeSegments(database, root, node="n1", store="s"))
    failures = 0

    def fail(now: str, path: str) -> None:
        nonlocal failures
        if now == step and failures < times and "plant" in path:
            failures += 1
            raise ConnectionResetError("the store is away")

    store.trouble = fail
    broker.on_event = lambda kind, about: broker.end() if kind == "sealed" else None
    broker.order(1, 50)
    broker.loop.run()
    assert broker.kinds() == ["failed"] * times + ["sealed"]
    for _, about in broker.heard[:times]:
        assert "the store is away" in about["why"]
        assert (about["stream"], about["first"], about["last"]) == ("plant", 1, 50)
    check_record(root, 50)


def test_a_size_that_does_not_match_is_a_failure_and_the_rows_stay(
    database: sqlite3.Connection,
) -> None:
    store = ObjectStore()
    store.lose = 10
    root = object_root(store)
    broker = Broker(NodeSegments(database, root, node="n1", store="s"))

    def receive(kind: str, about: dict[str, Any]) -> None:
        if kind == "failed":
            store.lose = 0
        else:
            broker.end()

    broker.on_event = receive
    broker.order(1, 50)
    broker.loop.run()
    assert broker.kinds() == ["failed", "sealed"]
    check_record(root, 50)


def test_a_stream_that_fails_does_not_stop_another(sealer: NodeSegments, root: MemoryRoot) -> None:
    root.claim("plant", "n1", "another")
    broker = Broker(sealer)
    broker.on_event = lambda kind, about: broker.end() if kind == "sealed" else None
    broker.order(1, 10)
    broker.order(1, 10, stream="other")
    broker.loop.run()
    assert broker.kinds() == ["failed", "sealed"]
    assert broker.heard[1][1]["stream"] == "other"


def test_a_request_that_arrives_during_a_merge_goes_first(
    sealer: NodeSegments, root: MemoryRoot
) -> None:
    for first in (1, 11, 21):
        seal(sealer, first, first + 9)
    broker = Broker(sealer)
    steps: list[tuple[str, str]] = []

    def watch(what: str, path: str) -> None:
        name = path.rpartition("/")[2]
        steps.append((what, name))
        if (what, name) == ("read", segment_name(11, 20)):
            broker.order(31, 40)
        if (what, name) == ("written", segment_name(1, 30)):
            broker.end()

    root.hook = watch
    broker.loop.run()
    assert broker.kinds() == ["sealed"]
    assert steps.index(("written", segment_name(31, 40))) < steps.index(
        ("write", segment_name(1, 30))
    )
    root.hook = lambda what, path: None
    check_record(root, 40)


def test_when_it_is_time_to_end_a_merge_is_given_up(sealer: NodeSegments, root: MemoryRoot) -> None:
    for first in (1, 11, 21):
        seal(sealer, first, first + 9)
    before = dict(root.files)
    broker = Broker(sealer)

    def watch(what: str, path: str) -> None:
        if (what, path.rpartition("/")[2]) == ("read", segment_name(11, 20)):
            broker.end()

    root.hook = watch
    broker.loop.run()
    assert root.files == before


def test_when_it_is_time_to_end_one_segment_is_finished_and_no_other_begun(
    sealer: NodeSegments, root: MemoryRoot
) -> None:
    broker = Broker(sealer)
    root.hook = lambda what, path: (
        broker.end() if what == "written" and path.endswith(".parquet") else None
    )
    for stream in ("a", "b", "c"):
        broker.order(1, 10, stream=stream)
    broker.loop.run()
    assert broker.kinds() == ["sealed"]
    assert len([path for path in root.files if path.endswith(".parquet")]) == 1


def test_a_loop_ends_when_nobody_reads_its_events(sealer: NodeSegments, root: MemoryRoot) -> None:
    broker = Broker(sealer)

    def gone(kind: str, about: dict[str, Any]) -> None:
        raise BrokenPipeError

    broker.on_event = gone
    broker.order(1, 10)
    broker.order(11, 20, stream="other")
    broker.loop.run()
    assert len(broker.heard) == 1


def test_a_folder_that_cannot_be_looked_after_is_told_and_sealing_goes_on(
    sealer: NodeSegments, root: MemoryRoot
) -> None:
    seal(sealer, 1, 10)
    seal(sealer, 21, 30)
    broker = Broker(sealer)

    def receive(kind: str, about: dict[str, Any]) -> None:
        if kind == "notice":
            broker.order(31, 40)
        else:
            broker.end()

    broker.on_event = receive
    broker.loop.run()
    assert broker.kinds()[-1] == "sealed"
    assert set(broker.kinds()[:-1]) == {"notice"}
    assert "rows 11 to 20 are missing" in broker.heard[0][1]["why"]


def test_a_clock_that_jumps_deletes_nothing_and_is_told_of(
    database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = MemoryRoot()
    now = received(30) / 1e6
    retention = {"plant": Retention(60.0, None)}
    made = NodeSegments(database, root, node="n1", store="s", retention=retention)
    broker = Broker(made, clock=RetentionClock(tmp_path / "clock.json", longest=60.0))
    boot = 1_000.0
    cleared: list[float] = []
    really = made.clean_up

    def clear(stream: str, **named: Any) -> None:
        nonlocal now
        really(stream, **named)
        cleared.append(named["retention_now"])
        if len(root.segments("plant", "n1")) < 3:
            broker.end()
        elif len(cleared) == 2:
            now += 10 * 365 * 86_400.0
        elif len(cleared) == 4:
            broker.end()

    monkeypatch.setattr(made, "clean_up", clear)
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(sealer_module, "time_since_boot", lambda: boot)
    for first in (1, 11, 21):
        seal(made, first, first + 9)
    broker.loop.run()
    assert [each.range for each in root.segments("plant", "n1")] == [(1, 10), (11, 20), (21, 30)]
    assert cleared == [received(30) / 1e6] * 4
    ((kind, about),) = broker.heard
    assert kind == "notice"
    assert about["why"].startswith("the clock jumped ahead by 10.0 years")


def test_a_root_that_is_away_at_the_start_is_asked_again(database: sqlite3.Connection) -> None:
    store = ObjectStore()

    def fail(step: str, path: str) -> None:
        raise ConnectionResetError("the store is away")

    root = object_root(store)
    for first in (1, 11, 21):
        seal(NodeSegments(database, root, node="n1", store="s"), first, first + 9)
    store.trouble = fail
    compaction = Compaction(files=3)
    broker = Broker(NodeSegments(database, root, node="n1", store="s", compaction=compaction))
    merged = f"bucket/record/plant/n1/{segment_name(1, 30)}"

    def work_again(kind: str, about: dict[str, Any]) -> None:
        if len(broker.heard) == 3:
            # What was there before is merged, though no order comes.
            store.trouble = lambda step, path: (
                broker.end() if step == "close" and path == merged else None
            )

    broker.on_event = work_again
    broker.loop.run()
    assert [(kind, about["why"]) for kind, about in broker.heard] == [
        ("notice", "the store is away")
    ] * 3
    assert merged in store.objects


def test_lines_are_put_together_and_half_a_line_at_the_end_is_dropped() -> None:
    reading, writing = os.pipe()
    for part in (b"one\ntw", b"o\n", b"thr"):
        os.write(writing, part)
    os.close(writing)
    assert list(read_lines(reading)) == [b"one", b"two"]
    os.close(reading)


# --- the process ----------------------------------------------------------------------------------


class Process:
    """A sealer as the broker runs it."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "semel.store.sealer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        task = {
            "database": str(folder / "store.db"),
            "root": str(folder / "streams"),
            "node": "n1",
            "store": "s",
            "parent": os.getpid(),
            "retention": {},
            "compaction": {},
            "housekeeping": 60.0,
        }
        self.send(task | changes)
        self.half = b""

    def send(self, line: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(line).encode() + b"\n")

    def order(self, first: int, last: int, stream: str = "plant") -> None:
        self.send({"seal": {"stream": stream, "id": 1, "first": first, "last": last}})

    def receive(self, patience: float = PATIENCE) -> dict[str, Any] | None:
        """The next answer; None: none came, or none will."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.half:
                if not selector.select(patience):
                    return None
                data = os.read(self.process.stdout.fileno(), 4096)
                if not data:
                    return None
                self.half += data
        line, _, self.half = self.half.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> int:
        """Close its input; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        self.process.kill()
        with self.process:
            pass


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start_one(**changes: Any) -> Process:
        started.append(Process(tmp_path, **changes))
        return started[-1]

    yield start_one
    for each in started:
        each.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def errors_of(process: Process) -> bytes:
    assert process.process.stderr is not None
    return process.process.stderr.read()


def test_the_process_seals_and_answers(
    database: sqlite3.Connection, start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start()
    process.order(1, 120)
    root = LocalRoot(tmp_path / "streams")
    answer = process.receive()
    size = root.segments("plant", "n1")[0].size
    about = {"stream": "plant", "id": 1, "first": 1, "last": 120, "bytes": size}
    assert answer == {"sealed": about}
    process.order(121, 200)
    assert process.receive() is not None
    assert process.end() == 0
    assert errors_of(process) == b""
    check_record(root, 200)


def test_the_process_has_the_database_open_for_reading_only(
    database: sqlite3.Connection, start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start()
    process.order(1, 10)
    process.receive()
    folder = Path(f"/proc/{process.process.pid}")
    modes = []
    for link in (folder / "fd").iterdir():
        # Other files come and go while the process lives: only the database's has to stay.
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(link).endswith("store.db"):
                flags = (folder / "fdinfo" / link.name).read_text().split("flags:")[1].split()[0]
                modes.append(int(flags, 8) & os.O_ACCMODE)
    assert modes == [os.O_RDONLY]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(
    database: sqlite3.Connection,
    start: Callable[..., Process],
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    process = start()
    process.order(1, 10)
    process.receive()
    process.process.send_signal(number)
    assert process.process.wait(PATIENCE) == 0
    assert errors_of(process) == b""


def test_many_signals_at_once_end_it_like_one(
    database: sqlite3.Connection, start: Callable[..., Process]
) -> None:
    """Each thread of a parent that dies sends one, and they may come in one another's way"""
    process = start()
    process.order(1, 10)
    process.receive()
    for _ in range(30):
        process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("how", ["input", "signal"])
def test_a_segment_in_the_middle_is_finished_or_not_there(
    database: sqlite3.Connection, start: Callable[..., Process], tmp_path: Path, how: str
) -> None:
    insert(database, 201, 20_000)
    process = start()
    process.order(1, 20_000)
    folder = tmp_path / "streams/plant/n1"
    wait_until(lambda: any(folder.glob(".tmp-*parquet")) or any(folder.glob("*.parquet")))
    if how == "input":
        assert process.end() == 0
    else:
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(PATIENCE) == 0
    assert not list(folder.glob(".tmp-*"))
    check_segment(LocalRoot(tmp_path / "streams"), "plant", "n1", first=1, last=20_000)
    answer = process.receive()
    assert answer is not None
    assert list(answer) == ["sealed"]


def test_a_second_sealer_waits_for_the_first(
    database: sqlite3.Connection, start: Callable[..., Process], tmp_path: Path
) -> None:
    first = start()
    first.order(1, 10)
    assert first.receive() is not None
    second = start()
    second.order(11, 20)
    assert second.receive(1.5) is None
    assert LocalRoot(tmp_path / "streams").highest_seq("plant", "n1") == 10
    assert first.end() == 0
    answer = second.receive()
    assert answer is not None
    assert answer["sealed"]["last"] == 20


def test_one_that_waits_for_the_lock_ends_with_its_input(
    database: sqlite3.Connection, start: Callable[..., Process], tmp_path: Path
) -> None:
    with open(tmp_path / LOCK_NAME, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = start()
        waiting.order(1, 10)
        assert waiting.receive(1.5) is None
        assert waiting.end() == 0
    assert not (tmp_path / "streams").exists()


@pytest.mark.parametrize("text", [b"", b"hello\n", b"[]\n", b"{}\n", b'{"parent": 1'])
def test_started_by_hand_it_says_who_starts_it(text: bytes) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "semel.store.sealer"], input=text, capture_output=True
    )
    assert result.returncode == 2
    assert result.stderr == b"semel.store.sealer is started by semel broker\n"
    assert result.stdout == b""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"root": "bogus://x"}, "bogus://x is not a root"),
        ({"database": "/nowhere/store.db"}, "No such file or directory"),
    ],
)
def test_what_it_cannot_work_with_is_one_sentence(
    database: sqlite3.Connection,
    start: Callable[..., Process],
    changes: dict[str, str],
    words: str,
) -> None:
    process = start(**changes)
    answer = process.receive()
    assert answer is not None
    assert words in answer["ended"]["why"]
    assert process.process.wait(PATIENCE) == 1
    assert errors_of(process) == b""


def test_a_database_that_is_none_is_a_failure_with_a_sentence(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    (tmp_path / "store.db").write_bytes(b"no database at all" * 100)
    process = start()
    process.order(1, 10)
    answer = process.receive()
    assert answer is not None
    assert "not a database" in answer["failed"]["why"]


def test_a_sealer_whose_parent_is_gone_does_nothing(
    database: sqlite3.Connection, start: Callable[..., Process], tmp_path: Path
) -> None:
    process = start(parent=1)
    process.order(1, 10)
    assert process.process.wait(PATIENCE) == 0
    assert not (tmp_path / "streams").exists()


# A broker that starts a sealer with the input it is given, tells its number, and does nothing.
PARENT = """
import subprocess, sys, time
sealer = subprocess.Popen([sys.executable, "-m", "semel.store.sealer"], stdin=int(sys.argv[1]))
print(sealer.pid, flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_sealer_ends_when_its_parent_is_killed_though_its_input_is_open(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(reading)],
        stdout=subprocess.PIPE,
        pass_fds=[reading],
    )
    os.close(reading)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    task = {
        "database": str(tmp_path / "store.db"),
        "root": str(tmp_path / "streams"),
        "node": "n1",
        "store": "s",
        "parent": parent.pid,
        "retention": {},
        "compaction": {},
        "housekeeping": 60.0,
    }
    order = {"seal": {"stream": "plant", "id": 1, "first": 1, "last": 10}}
    os.write(writing, json.dumps(task).encode() + b"\n" + json.dumps(order).encode() + b"\n")
    root = LocalRoot(tmp_path / "streams")
    wait_until(lambda: root.highest_seq("plant", "n1") == 10)
    assert is_running(pid)
    parent.kill()
    wait_until(lambda: not is_running(pid))
    os.close(writing)
    with parent:
        pass


def test_sealed_rows_are_those_that_another_connection_reads(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    """Text as bytes, from a read-only connection, makes the same file."""
    connection = reader(tmp_path / "store.db")
    roots = MemoryRoot(), MemoryRoot()
    seal(NodeSegments(database, roots[0], node="n1", store="s"), 1, 200)
    seal(NodeSegments(connection, roots[1], node="n1", store="s"), 1, 200)
    connection.close()
    assert roots[0].files == roots[1].files

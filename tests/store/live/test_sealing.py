"""The writer's side of sealing: the planner's ranges, and a process that is killed and goes on."""

import os
import queue
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.store.compaction import Compaction
from semel.store.retention import Retention
from semel.store.roots import LocalRoot
from semel.store.sealing import Planner, SealerProcess
from semel.store.segment_reader import SegmentReader
from semel.store.segments import RecordError, pick
from tests.modes import repeats
from tests.store.recorded import (
    INSERT,
    fields,
    insert,
    make_database,
    message,
    plain_row,
    read_records,
)

PATIENCE = 60.0


# --- the planner ----------------------------------------------------------------------------------


def planner(**limits: Any) -> Planner:
    return Planner(**({"rows": 100, "size": 10_000, "age": 1.0} | limits))


def test_nothing_is_due_when_nothing_is_committed() -> None:
    assert planner().due(1e9) == []
    assert planner().next_due() is None


def test_rows_are_due_when_there_are_enough() -> None:
    plan = planner()
    plan.committed(3, 99, 99, 99, 0.0)
    assert plan.due(0.0) == []
    plan.committed(3, 100, 1, 1, 0.0)
    assert plan.due(0.0) == [(3, 1, 100)]


def test_bytes_are_due_when_there_are_enough() -> None:
    plan = planner()
    plan.committed(3, 2, 2, 9_999, 0.0)
    assert plan.due(0.0) == []
    plan.committed(3, 3, 1, 1, 0.0)
    assert plan.due(0.0) == [(3, 1, 3)]


def test_rows_are_due_when_the_oldest_is_old_enough() -> None:
    plan = planner()
    plan.committed(3, 1, 1, 10, 5.0)
    plan.committed(3, 2, 1, 10, 5.9)
    assert plan.next_due() == 6.0
    assert plan.due(5.99) == []
    assert plan.due(6.0) == [(3, 1, 2)]


def test_one_range_of_a_stream_is_under_way_at_a_time() -> None:
    plan = planner()
    plan.committed(3, 150, 150, 150, 0.0)
    assert plan.due(0.0) == [(3, 1, 100)]
    plan.committed(3, 500, 350, 350, 0.0)
    assert plan.due(9.0) == []
    assert plan.next_due() is None
    assert plan.sealed(3, 100)
    assert plan.due(9.0) == [(3, 101, 200)]


def test_streams_do_not_wait_for_each_other() -> None:
    plan = planner()
    plan.committed(3, 100, 100, 100, 0.0)
    assert plan.due(0.0) == [(3, 1, 100)]
    plan.committed(4, 7, 7, 100, 0.0)
    assert plan.due(1.0) == [(4, 1, 7)]


def test_a_stream_that_has_numbers_goes_on_with_them() -> None:
    plan = planner()
    plan.committed(3, 1_010, 10, 10, 0.0)
    assert plan.due(1.0) == [(3, 1_001, 1_010)]


def test_rows_that_do_not_follow_are_a_mistake_of_the_caller() -> None:
    plan = planner()
    plan.committed(3, 10, 10, 10, 0.0)
    with pytest.raises(ValueError, match="5 rows up to 16 do not follow 10"):
        plan.committed(3, 16, 5, 10, 0.0)


def test_what_was_not_under_way_is_not_sealed() -> None:
    plan = planner()
    assert not plan.sealed(3, 10)
    plan.committed(3, 10, 10, 10, 0.0)
    assert not plan.sealed(3, 10)
    plan.due(1.0)
    assert not plan.sealed(3, 9)
    assert plan.sealed(3, 10)
    assert not plan.sealed(3, 10)
    assert not plan.sealed(3, 0)


def test_a_range_recorded_before_a_restart_comes_first_with_the_same_bounds() -> None:
    plan = planner()
    plan.restored(3, sealed=50, sealing=333, last_seq=400, size=3_500, now=7.0)
    assert plan.unsealed_rows == 350
    assert plan.unsealed_bytes == 3_500
    assert plan.next_due() == float("-inf")
    assert plan.due(7.0) == [(3, 51, 333)]
    assert plan.due(7.0) == []
    assert plan.sealed(3, 333)
    # What waited before the start is due at once.
    assert plan.due(7.0) == [(3, 334, 400)]
    assert plan.sealed(3, 400)
    assert (plan.unsealed_rows, plan.unsealed_bytes) == (0, 0)


def test_rows_left_before_a_restart_are_cut_into_ranges() -> None:
    plan = planner()
    plan.restored(3, sealed=0, sealing=0, last_seq=250, size=250, now=7.0)
    found = []
    while due := plan.due(7.0):
        found += due
        plan.sealed(3, due[0][2])
    assert found == [(3, 1, 100), (3, 101, 200), (3, 201, 250)]


def test_a_stream_with_all_rows_sealed_has_nothing_due() -> None:
    plan = planner()
    plan.restored(3, sealed=250, sealing=250, last_seq=250, size=0, now=7.0)
    assert plan.due(100.0) == []
    plan.committed(3, 251, 1, 5, 100.0)
    assert plan.due(101.0) == [(3, 251, 251)]


def test_progress_is_what_is_sealed_what_is_not_and_since_when() -> None:
    plan = planner()
    assert plan.progress(0.0) == {}
    plan.committed(3, 100, 100, 100, 10.0)
    plan.committed(4, 5, 5, 5, 12.0)
    assert plan.progress(13.0) == {3: (0, 100, 3.0), 4: (0, 5, 1.0)}
    assert plan.due(12.5) == [(3, 1, 100)]
    plan.committed(3, 110, 10, 10, 14.0)
    # A range in progress is not sealed yet, and its rows are the oldest.
    assert plan.progress(20.0)[3] == (0, 110, 10.0)
    plan.sealed(3, 100)
    assert plan.progress(20.0)[3] == (100, 10, 6.0)
    assert plan.due(20.0) == [(3, 101, 110), (4, 1, 5)]
    for stream, last in ((3, 110), (4, 5)):
        plan.sealed(stream, last)
    assert plan.progress(99.0) == {3: (110, 0, 0.0), 4: (5, 0, 0.0)}


def test_progress_after_a_restart_counts_the_age_from_the_start() -> None:
    plan = planner()
    plan.restored(3, sealed=50, sealing=333, last_seq=400, size=3_500, now=7.0)
    plan.restored(4, sealed=9, sealing=9, last_seq=9, size=0, now=7.0)
    assert plan.progress(10.0) == {3: (50, 350, 4.0), 4: (9, 0, 0.0)}


def test_being_behind_is_more_than_the_bound_in_rows_or_bytes() -> None:
    plan = planner(maximum_unsealed_rows=200, maximum_unsealed_bytes=5_000)
    plan.committed(3, 100, 100, 100, 0.0)
    plan.committed(4, 100, 100, 100, 0.0)
    assert not plan.is_behind()
    plan.committed(4, 101, 1, 1, 0.0)
    assert plan.is_behind()
    assert plan.due(0.0) == [(3, 1, 100), (4, 1, 100)]
    # Rows count until they are sealed.
    assert plan.is_behind()
    plan.sealed(3, 100)
    assert not plan.is_behind()
    plan.committed(3, 101, 1, 4_900, 0.0)
    assert plan.is_behind()


def test_one_row_that_is_larger_than_a_range_is_a_range() -> None:
    plan = planner()
    plan.committed(3, 1, 1, 50_000, 0.0)
    plan.committed(3, 2, 1, 50_000, 0.0)
    assert plan.due(0.0) == [(3, 1, 1)]
    plan.sealed(3, 1)
    assert plan.due(0.0) == [(3, 2, 2)]
    plan.sealed(3, 2)
    assert (plan.unsealed_rows, plan.unsealed_bytes) == (0, 0)


def test_the_memory_of_a_backlog_is_small() -> None:
    plan = planner(rows=100_000, size=10**9)
    for number in range(50_000):
        plan.committed(3, number + 1, 1, 10, 0.0)
    assert sum(len(stream.parts) for stream in plan._streams.values()) < 50


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("commit"), st.integers(1, 3), st.integers(1, 250), st.integers(0, 20_000)
        ),
        st.tuples(st.just("sealed"), st.integers(1, 3), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.just(0), st.integers(0, 3), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(steps)
def test_every_row_is_in_one_range_and_counted(history: list[tuple[str, int, int, int]]) -> None:
    plan = planner()
    now = 0.0
    last: dict[int, int] = {}
    sealed: dict[int, int] = {}
    under_way: dict[int, tuple[int, int]] = {}
    sizes: dict[int, int] = {}
    for act, stream, amount, size in [*history, ("wait", 0, 5, 0)]:
        if act == "commit":
            last[stream] = last.get(stream, 0) + amount
            sizes[stream] = sizes.get(stream, 0) + size
            plan.committed(stream, last[stream], amount, size, now)
        elif act == "sealed" and stream in under_way:
            sealed[stream] = under_way.pop(stream)[1]
            assert plan.sealed(stream, sealed[stream])
        elif act == "wait":
            now += amount / 2
        elif act == "restart":
            plan = planner()
            for each, seq in last.items():
                begun = sealed.get(each, 0)
                promised = under_way.get(each, (0, begun))[1]
                plan.restored(
                    each,
                    sealed=begun,
                    sealing=promised,
                    last_seq=seq,
                    size=(seq - begun) * 10,
                    now=now,
                )
            recorded = dict(under_way)
            for each, first, end in plan.due(now):
                if each in recorded:
                    assert (first, end) == recorded[each]
                under_way[each] = (first, end)
            assert recorded.keys() <= under_way.keys()
        for each, first, end in plan.due(now):
            assert each not in under_way
            assert first == sealed.get(each, 0) + 1
            assert first <= end <= last[each]
            assert end - first < 100
            under_way[each] = (first, end)
        assert plan.unsealed_rows == sum(last.values()) - sum(sealed.values())
        assert plan.unsealed_bytes >= 0
    # At the end of a wait nothing is left that is not under way.
    for each in last:
        assert each in under_way or sealed.get(each, 0) == last[each]
    while under_way:
        for each, (_, end) in list(under_way.items()):
            assert plan.sealed(each, end)
            sealed[each] = end
            del under_way[each]
        for each, first, end in plan.due(now + 10):
            assert first == sealed.get(each, 0) + 1
            under_way[each] = (first, end)
    assert sealed == last
    assert (plan.unsealed_rows, plan.unsealed_bytes) == (0, 0)


# --- the process ----------------------------------------------------------------------------------


class Watch:
    """Answers of a sealer, as they come."""

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()

    def __call__(self, kind: str, about: dict[str, Any]) -> None:
        self.answers.put((kind, about))

    def next(self, kind: str) -> dict[str, Any]:
        """What the next answer of that kind says; others are passed over."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found, about = self.answers.get(timeout=PATIENCE)
            if found == kind:
                return about
            assert time.monotonic() < deadline, (found, about)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = make_database(tmp_path / "store.db")
    yield connection
    connection.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[SealerProcess, Watch]]]:
    started: list[SealerProcess] = []

    def start_one(**options: Any) -> tuple[SealerProcess, Watch]:
        watch = Watch()
        defaults: dict[str, Any] = {"node": "n1", "store": "s", "on_event": watch}
        process = SealerProcess(
            tmp_path / "store.db", str(tmp_path / "streams"), **(defaults | options)
        )
        process.start()
        started.append(process)
        return process, watch

    yield start_one
    for each in started:
        each.stop()


Start = Callable[..., tuple[SealerProcess, Watch]]


def test_ranges_are_sealed_and_told(
    database: sqlite3.Connection, start: Start, tmp_path: Path
) -> None:
    insert(database, 1, 100)
    insert(database, 1, 50, stream=2)
    process, watch = start()
    process.seal("plant", 1, 1, 60)
    process.seal("other", 2, 1, 50)
    done = {each["stream"]: each for each in (watch.next("sealed"), watch.next("sealed"))}
    assert (done["plant"]["first"], done["plant"]["last"], done["plant"]["id"]) == (1, 60, 1)
    assert (done["other"]["first"], done["other"]["last"], done["other"]["id"]) == (1, 50, 2)
    process.seal("plant", 1, 61, 100)
    assert watch.next("sealed")["last"] == 100
    root = LocalRoot(tmp_path / "streams")
    found = read_records(root, "plant", "n1", 1, 1_000, stream_id=1)
    assert [fields(each) for each in found] == [fields(message(seq)) for seq in range(1, 101)]


def test_settings_reach_the_process(
    database: sqlite3.Connection, start: Start, tmp_path: Path
) -> None:
    insert(database, 1, 100)
    process, watch = start(
        compaction=Compaction(files=2, grace=0.0),
        retention={"old": Retention(1.0, None)},
        housekeeping=0.05,
    )
    root = LocalRoot(tmp_path / "streams")
    for first in (1, 11):
        process.seal("plant", 1, first, first + 9)
        watch.next("sealed")
    wait_until(lambda: [each.range for each in root.segments("plant", "n1")] == [(1, 20)])
    # Of different tenths of a second, and so they are not merged.
    for first, last in ((1, 10), (11, 100)):
        process.seal("old", 1, first, last)
        watch.next("sealed")
    # The newest segment stays.
    wait_until(lambda: root.trimmed("old", "n1") == 10 and len(root.segments("old", "n1")) == 1)
    assert (tmp_path / "retention-clock.json").exists()


def test_a_second_range_of_a_stream_is_a_mistake_of_the_caller(
    database: sqlite3.Connection, start: Start
) -> None:
    insert(database, 1, 20)
    process, watch = start()
    process.seal("plant", 1, 1, 10)
    process.seal("plant", 1, 1, 10)
    with pytest.raises(ValueError, match="another range of stream plant is in progress"):
        process.seal("plant", 1, 11, 20)
    assert watch.next("sealed")["last"] == 10


def test_stopping_ends_the_process(database: sqlite3.Connection, start: Start) -> None:
    insert(database, 1, 10)
    process, watch = start()
    process.seal("plant", 1, 1, 10)
    watch.next("sealed")
    pid = process.pid
    assert pid is not None
    process.stop()
    assert process.pid is None
    assert not Path(f"/proc/{pid}").exists()
    # It was asked to.
    assert watch.answers.empty()
    process.stop()
    process.seal("plant", 1, 11, 20)


def test_one_that_was_never_started_can_be_stopped(tmp_path: Path) -> None:
    process = SealerProcess(
        tmp_path / "store.db", "x", node="n1", store="s", on_event=lambda kind, about: None
    )
    process.stop()


def test_one_that_does_not_end_is_killed(database: sqlite3.Connection, start: Start) -> None:
    insert(database, 1, 10)
    process, watch = start()
    process.seal("plant", 1, 1, 10)
    watch.next("sealed")
    assert process.pid is not None
    pid = process.pid
    os.kill(pid, signal.SIGSTOP)
    process.stop(timeout=0.1)
    assert not Path(f"/proc/{pid}").exists()


def test_one_whose_pipe_is_full_is_killed_all_the_same(
    database: sqlite3.Connection, start: Start
) -> None:
    insert(database, 1, 10)
    process, watch = start()
    process.seal("plant", 1, 1, 10)
    watch.next("sealed")
    assert process.pid is not None
    pid = process.pid
    os.kill(pid, signal.SIGSTOP)
    for number in range(2, 3_000):
        process.seal(f"stream-with-a-name-that-fills-the-pipe-{number}", number, 1, 1)
    stopping = threading.Thread(target=process.stop, args=(0.1,))
    stopping.start()
    stopping.join(PATIENCE)
    was_stopped = not stopping.is_alive()
    if not was_stopped:
        os.kill(pid, signal.SIGKILL)
    assert was_stopped
    assert not Path(f"/proc/{pid}").exists()


def test_a_killed_sealer_is_started_anew_and_gets_what_was_not_sealed(
    database: sqlite3.Connection, start: Start
) -> None:
    insert(database, 1, 30)
    process, watch = start()
    process.seal("plant", 1, 1, 10)
    watch.next("sealed")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    process.seal("plant", 1, 11, 20)
    os.kill(process.pid, signal.SIGKILL)
    assert watch.next("ended")["why"] == "the sealer exited with code -9"
    about = watch.next("sealed")
    assert (about["first"], about["last"]) == (11, 20)
    process.seal("plant", 1, 21, 30)
    assert watch.next("sealed")["last"] == 30


def chatty_python(tmp_path: Path, words: bytes) -> str:
    """A Python that writes something to standard output before it begins."""
    said = tmp_path / "said"
    said.write_bytes(words)
    script = tmp_path / "chatty-python"
    script.write_text(f'#!/bin/sh\ncat "{said}"\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    "words",
    [
        b"a warning of some library\n",
        # The answer that follows is a part of this line.
        b"half a line ",
        b"\xff\xfe\0\n[1, 2]\nnull\n7\n{}\n",
        b'{"sealed": 7}\n{"sealed": {"id": "x"}}\n{"sealed": {"id": 1, "last": true}}\n{"x": {}}\n',
        b"[" * 100_000 + b"\n",
        b"x" * 1_000_000,
    ],
)
def test_output_that_is_no_answer_is_told_and_sealing_goes_on(
    database: sqlite3.Connection,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: bytes,
) -> None:
    insert(database, 1, 30)
    monkeypatch.setattr(sys, "executable", chatty_python(tmp_path, words))
    process, watch = start()
    process.seal("plant", 1, 1, 10)
    answers = [watch.answers.get(timeout=PATIENCE)]
    while answers[-1][0] != "sealed":
        answers.append(watch.answers.get(timeout=PATIENCE))
    assert answers[-1][1]["last"] == 10
    told = [about["why"] for kind, about in answers if kind != "sealed"]
    # However many lines: one sentence, and nothing ended.
    assert [kind for kind, _ in answers[:-1]] in ([], ["notice"])
    assert all("is not an event" in each for each in told)
    process.seal("plant", 1, 11, 20)
    if not told:
        assert "is not an event" in watch.next("notice")["why"]
    assert watch.next("sealed")["last"] == 20


def test_a_fault_of_the_supervisor_is_logged_and_the_sealer_is_started_anew(
    database: sqlite3.Connection, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    insert(database, 1, 20)
    watch = Watch()
    faults = [ZeroDivisionError("once"), ZeroDivisionError("twice")]

    def on_event(kind: str, about: dict[str, Any]) -> None:
        if faults:
            raise faults.pop(0)
        watch(kind, about)

    process, _ = start(on_event=on_event)
    process.seal("plant", 1, 1, 10)
    # What the fault has swallowed is said again.
    assert watch.next("sealed")["last"] == 10
    process.seal("plant", 1, 11, 20)
    assert watch.next("sealed")["last"] == 20
    logged = [each for each in caplog.records if "supervis" in each.message]
    assert [each.exc_info is not None for each in logged] == [True, True]
    assert process.is_supervised


def test_answers_are_sent_again_only_until_they_are_heard(
    database: sqlite3.Connection, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(database, 1, 20)
    monkeypatch.setattr(sys, "executable", chatty_python(tmp_path, b"odd\n" * 1_000))
    process, watch = start()
    process.seal("plant", 1, 1, 10)
    assert watch.next("sealed")["last"] == 10
    process.seal("plant", 1, 11, 20)
    assert watch.next("sealed")["last"] == 20
    process.stop()
    assert watch.answers.empty()


def test_a_caller_never_waits_for_a_full_pipe(database: sqlite3.Connection, start: Start) -> None:
    """The process is stopped; far more is ordered than a pipe holds."""
    streams = 3_000
    database.execute("BEGIN")
    for number in range(1, streams + 1):
        insert_one(database, number)
    database.execute("COMMIT")
    process, watch = start()
    process.seal("s1", 1, 1, 1)
    watch.next("sealed")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    name = "stream-with-a-name-that-fills-the-pipe-before-long" * 2
    for number in range(2, streams + 1):
        process.seal(f"{name}{number}", number, 1, 1)
    os.kill(process.pid, signal.SIGCONT)
    assert {watch.next("sealed")["id"] for _ in range(50)} <= set(range(2, streams + 1))


def insert_one(database: sqlite3.Connection, stream: int) -> None:
    database.execute(INSERT, plain_row(stream, 1, 1_700_000_000_000_000, b"\0"))


def test_what_it_cannot_work_with_is_told_and_tried_again(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    watch = Watch()
    process = SealerProcess(
        tmp_path / "store.db", "bogus://x", node="n1", store="s", on_event=watch
    )
    process.start()
    try:
        for _ in range(2):
            assert "bogus://x is not a root" in watch.next("ended")["why"]
    finally:
        process.stop()


def test_a_python_that_is_not_there_is_told(
    database: sqlite3.Connection, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(database, 1, 10)
    python = sys.executable
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    process, watch = start()
    assert "the sealer cannot be started: " in watch.next("ended")["why"]
    monkeypatch.setattr(sys, "executable", python)
    process.seal("plant", 1, 1, 10)
    assert watch.next("sealed")["last"] == 10


def test_addresses_with_secrets_are_not_on_the_command_line(
    database: sqlite3.Connection, start: Start, tmp_path: Path
) -> None:
    insert(database, 1, 1)
    process, watch = start(node="secret-node")
    process.seal("plant", 1, 1, 1)
    watch.next("sealed")
    line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    assert str(tmp_path / "store.db").encode() in line
    assert str(tmp_path / "streams").encode() not in line
    assert b"secret-node" not in line


def test_a_failure_is_told_and_the_range_is_sealed_when_it_passes(
    database: sqlite3.Connection, start: Start, tmp_path: Path
) -> None:
    insert(database, 1, 10)
    (tmp_path / "streams").write_bytes(b"a file where a folder should be")
    process, watch = start()
    process.seal("plant", 1, 1, 10)
    assert watch.next("failed")["why"]
    (tmp_path / "streams").unlink()
    assert watch.next("sealed")["last"] == 10


def test_without_pyarrow_nothing_is_started() -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import threading\n"
        "from pathlib import Path\n"
        "from semel.extras import MissingExtra\n"
        "from semel.store.sealing import SealerProcess\n"
        "try:\n    SealerProcess(Path('x'), 'y', node='n', store='s', on_event=print)\n"
        "except MissingExtra as problem:\n    print(problem)\n"
        "assert threading.active_count() == 1"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == "a stream needs pyarrow: pip install 'semel[broker]'\n"


def test_the_process_runs_the_same_package_wherever_it_is_started(
    database: sqlite3.Connection, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither PYTHONPATH nor a stranger's module in the current folder changes what it runs."""
    insert(database, 1, 10)
    (tmp_path / "json.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    process, watch = start()
    process.seal("plant", 1, 1, 10)
    assert watch.next("sealed")["last"] == 10


# --- kills ----------------------------------------------------------------------------------------

KILLS = repeats(20, 8)
STREAM_NAMES = {1: "plant", 2: "other"}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Writer:
    """Commits rows, has them sealed, and deletes them then: what the broker's writer does."""

    def __init__(self, connection: sqlite3.Connection, folder: Path) -> None:
        self.connection = connection
        self.root = LocalRoot(folder / "streams")
        self.planner = Planner(rows=400, size=10**9, age=0.02)
        self.answers: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self.process = SealerProcess(
            folder / "store.db",
            str(folder / "streams"),
            node="n1",
            store="s",
            on_event=lambda kind, about: self.answers.put((kind, about)),
            compaction=Compaction(files=3, grace=0.3),
            housekeeping=0.05,
        )
        self.last = dict.fromkeys(STREAM_NAMES, 0)
        self.ended = 0
        self.sealed = 0
        self.ordered: set[tuple[int, int]] = set()
        self.failed: list[str] = []

    def commit(self, rows: int) -> None:
        for stream in STREAM_NAMES:
            first = self.last[stream] + 1
            self.last[stream] += rows
            insert(self.connection, first, self.last[stream], stream=stream)
            now = time.monotonic()
            self.planner.committed(stream, self.last[stream], rows, rows * 100, now)

    def turn(self) -> None:
        while not self.answers.empty():
            kind, about = self.answers.get()
            if kind == "sealed" and self.planner.sealed(about["id"], about["last"]):
                self.sealed += 1
                self.connection.execute(
                    "DELETE FROM record WHERE stream_id = ? AND seq <= ?",
                    (about["id"], about["last"]),
                )
            elif kind == "ended":
                self.ended += 1
            elif kind != "sealed":
                self.failed.append(about["why"])
        for stream, first, last in self.planner.due(time.monotonic()):
            self.process.seal(STREAM_NAMES[stream], stream, first, last)
            self.ordered.add((first, last))

    def merged(self) -> set[tuple[int, int]]:
        """The ranges of segments that were made out of others."""
        found = {
            each
            for stream in STREAM_NAMES.values()
            for each in pick(segment.range for segment in self.root.segments(stream, "n1"))
        }
        return found - self.ordered


class Watcher:
    """Reads the whole record over and over, by the ranges, as any reader may."""

    def __init__(self, folder: Path) -> None:
        self.root = LocalRoot(folder / "streams")
        self.stopping = threading.Event()
        self.rounds = 0
        self.problems: list[str] = []
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.stopping.wait(0.05):
            for stream in STREAM_NAMES.values():
                try:
                    with SegmentReader(self.root, stream, "n1") as reading:
                        table = reading.read_table(1, 10**9)
                except (RecordError, OSError) as problem:
                    self.problems.append(str(problem))
                    continue
                found = [] if table is None else table.column("seq").to_pylist()
                if found != list(range(1, len(found) + 1)):
                    self.problems.append(f"{stream}: {found}")
            self.rounds += 1


def test_whenever_the_sealer_is_killed_every_row_is_sealed_once(
    database: sqlite3.Connection, tmp_path: Path
) -> None:
    chance = random.Random(4)
    writer = Writer(database, tmp_path)
    watcher = Watcher(tmp_path)
    writer.process.start()
    watcher.thread.start()
    kills = 0
    target = 0
    try:
        deadline = time.monotonic() + 3 * PATIENCE
        while kills < KILLS or writer.planner.unsealed_rows or not writer.merged():
            assert time.monotonic() < deadline
            if kills < KILLS:
                writer.commit(chance.randint(1, 12))
            writer.turn()
            time.sleep(0.005)
            pid = writer.process.pid
            if kills == KILLS or pid is None:
                continue
            # Any moment of its life: while it starts, seals, merges, or waits.
            if chance.random() < 0.002 or writer.sealed >= target:
                time.sleep(chance.random() * 0.05)
                os.kill(pid, signal.SIGKILL)
                kills += 1
                target = writer.sealed + chance.randint(1, 15)
                wait_until(lambda gone=pid: writer.process.pid != gone)  # type: ignore[misc]
    finally:
        watcher.stopping.set()
        watcher.thread.join()
        writer.process.stop()
    writer.turn()
    assert watcher.problems == []
    assert watcher.rounds > 0
    assert writer.failed == []
    assert writer.ended == KILLS
    root = LocalRoot(tmp_path / "streams")
    for number, stream in STREAM_NAMES.items():
        last = writer.last[number]
        found = read_records(root, stream, "n1", 1, last + 1, stream_id=number)
        assert [each.seq for each in found] == list(range(1, last + 1))
        for each in found:
            assert fields(each) == fields(message(each.seq, number))
    assert database.execute("SELECT count(*) FROM record").fetchone() == (0,)


BROKER = """
import sys, threading, time
from pathlib import Path
from semel.store.sealing import SealerProcess
sealed = threading.Semaphore(0)
folder = Path(sys.argv[1])
process = SealerProcess(
    folder / "store.db", str(folder / "streams"), node="n1", store="s",
    on_event=lambda kind, about: (print(kind, flush=True), sealed.release()),
)
process.start()
while process.pid is None:
    time.sleep(0.01)
print(process.pid, flush=True)
for first in range(1, 20_000, 500):
    process.seal("plant", 1, first, first + 499)
    if not sealed.acquire(timeout=60):
        break
time.sleep(60)
"""


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_sealer_left_behind_by_a_killed_broker_ends_and_its_work_is_whole(
    database: sqlite3.Connection, start: Start, tmp_path: Path, after: int
) -> None:
    insert(database, 1, 20_000)
    broker = subprocess.Popen(
        [sys.executable, "-c", BROKER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert broker.stdout is not None
    pid = int(broker.stdout.readline())
    for _ in range(after):
        assert broker.stdout.readline().strip() == "sealed"
    broker.kill()
    # The next broker does not wait: its sealer waits for the one that is left behind.
    process, watch = start()
    root = LocalRoot(tmp_path / "streams")
    process.seal("rest", 1, 1, 10)
    watch.next("sealed")
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or is_zombie(pid))
    with broker:
        pass
    highest = root.highest_seq("plant", "n1")
    assert highest >= after * 500
    if highest:
        found = read_records(root, "plant", "n1", 1, highest + 1, stream_id=1)
        assert [each.seq for each in found] == list(range(1, highest + 1))
    process.seal("plant", 1, highest + 1, highest + 500)
    assert watch.next("sealed")["last"] == highest + 500
    assert not list((tmp_path / "streams/plant/n1").glob(".tmp-*"))


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_what_is_enough_for_a_segment_is_due_at_once_also_after_another_one() -> None:
    """Rows that came while a range was under way do not wait for their age"""
    plan = planner(rows=100, age=3_600.0)
    plan.committed(1, 350, 350, 350, 0.0)
    assert plan.next_due() == float("-inf")
    found = []
    while ranges := plan.due(0.0):
        found += ranges
        assert plan.next_due() is None
        plan.sealed(1, ranges[0][2])
    assert found[0][1] == 1
    assert sum(last - first + 1 for _, first, last in found) >= 300

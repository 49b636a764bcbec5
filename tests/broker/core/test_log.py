"""The broker's log: never in the way of the loop, and not to be flooded."""

import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from semel.broker.network.log import MAXIMUM_EVENTS, JsonFormatter, LogWriter, Repeats, event_of

# What a pipe takes before whoever writes has to wait, and more.
MUCH = 1024 * 1024


@contextmanager
def logging_to(handler: LogWriter) -> Iterator[logging.Logger]:
    log = logging.Logger("test", logging.DEBUG)
    log.addHandler(handler)
    try:
        yield log
    finally:
        handler.close()


def read_all(descriptor: int) -> list[str]:
    with open(descriptor, encoding="utf-8") as file:
        return file.read().splitlines()


# --- what is the same event -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("'a' (10.0.0.1:4711) connected", "'b\\'c' (10.0.0.2:50000) connected"),
        ("'a' (fe80::1:4711) is gone", "'it\\\\' (::1:9) is gone"),
        ('"it\'s" (1.2.3.4:5) broke a rule', "'x' (1.2.3.4:5) broke a rule"),
        ("12 messages are missing", "7 messages are missing"),
        ("it failed: Traceback\n  line 1", "it failed: Traceback\n  another"),
    ],
)
def test_lines_that_differ_by_who_and_how_many_tell_of_the_same_event(one: str, other: str) -> None:
    assert event_of(one) == event_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("'a' (10.0.0.1:4711) connected", "'a' (10.0.0.1:4711) disconnected"),
        ("store behind: publishers wait", "store accepting messages again"),
        ("'connected' is gone", "'a' connected"),
    ],
)
def test_lines_with_other_words_tell_of_other_events(one: str, other: str) -> None:
    assert event_of(one) != event_of(other)


# --- what is written, and what is counted ---------------------------------------------------------


def test_the_first_lines_of_an_event_are_written_and_the_others_counted_once() -> None:
    repeats = Repeats(lines=3, seconds=10.0)
    written = [number for number in range(8) if repeats.admits(f"'{number}' is gone", 20, 0.0)]
    assert written == [0, 1, 2]
    assert repeats.admits("something else", 20, 5.0)
    assert repeats.due(9.9) == []
    assert repeats.wait(4.0) == 6.0
    assert repeats.due(10.0) == [(20, "… and 5 more in the last 10 s, such as: '7' is gone")]
    # From there on it is a new one.
    assert repeats.admits("'8' is gone", 20, 10.0)
    assert repeats.due(19.0) == []
    assert repeats.due(30.0) == []
    assert repeats.wait(30.0) is None


def test_what_was_left_out_is_as_serious_as_the_worst_of_it() -> None:
    repeats = Repeats(lines=1, seconds=1.0)
    for level in (20, 40, 30):
        repeats.admits("1", level, 0.0)
    assert [level for level, _ in repeats.due(1.0)] == [40]


def test_very_many_different_events_at_a_time_count_as_one() -> None:
    repeats = Repeats(lines=1, seconds=1.0)
    words = [
        f"{chr(97 + at // 676)}{chr(97 + at // 26 % 26)}{chr(97 + at % 26)}" for at in range(2_000)
    ]
    admitted = sum(repeats.admits(f"event {word}", 20, 0.0) for word in words)
    assert admitted == MAXIMUM_EVENTS + 1
    ((_, line),) = repeats.due(1.0)
    assert line.startswith(f"… and {2_000 - MAXIMUM_EVENTS - 1} more")


# --- the thread that writes -----------------------------------------------------------------------


def test_lines_come_out_in_their_order_with_their_form_and_whole_at_the_end() -> None:
    reading, writing = os.pipe()
    handler = LogWriter(writing)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    with logging_to(handler) as log:
        log.info("first %d", 1)
        log.warning("second ß \udc80")
        handler.flush()
        log.error("third")
    log.error("too late")
    os.close(writing)
    assert read_all(reading) == ["INFO first 1", "WARNING second ß \\udc80", "ERROR third"]


def test_without_a_line_there_is_no_thread_and_nothing_to_wait_for() -> None:
    before = threading.active_count()
    handler = LogWriter(2)
    handler.flush()
    assert threading.active_count() == before
    handler.close()


def test_a_line_that_cannot_be_made_is_a_fault_of_whoever_made_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reading, writing = os.pipe()
    with logging_to(LogWriter(writing)) as log:
        log.info("%d", "no number")
        log.info("but this")
    os.close(writing)
    assert read_all(reading) == ["but this"]
    assert "no number" in capsys.readouterr().err


def test_repeated_lines_are_counted_and_said_while_the_program_goes_on() -> None:
    reading, writing = os.pipe()
    with logging_to(LogWriter(writing, repeats=Repeats(lines=2, seconds=0.1))) as log:
        for number in range(100):
            log.info("'%d' is gone", number)
        with open(reading, encoding="utf-8") as file:
            lines = [file.readline() for _ in range(3)]
    os.close(writing)
    assert lines[:2] == ["'0' is gone\n", "'1' is gone\n"]
    assert lines[2] == "… and 98 more in the last 0.1 s, such as: '99' is gone\n"


def test_what_was_counted_is_said_at_the_end() -> None:
    reading, writing = os.pipe()
    with logging_to(LogWriter(writing, repeats=Repeats(lines=1, seconds=3_600.0))) as log:
        log.info("gone")
        log.info("gone")
    os.close(writing)
    assert read_all(reading) == ["gone", "… and 1 more in the last 3600 s, such as: gone"]


@pytest.mark.slow
@pytest.mark.parametrize("blocking", [True, False])
def test_a_pipe_that_nobody_reads_holds_up_nobody_and_the_loss_is_said_in_its_place(
    blocking: bool,
) -> None:
    """Whoever started us may have made it a descriptor that never blocks."""
    reading, writing = os.pipe()
    os.set_blocking(writing, blocking)
    handler = LogWriter(
        writing, repeats=Repeats(lines=10**9), queued_bytes=200_000, flush_seconds=0.1
    )
    count = MUCH // 100
    with logging_to(handler) as log:
        for number in range(count):
            log.info("%d %s", number, "x" * 100)
        # Nor does an end that wants all of it out.
        handler.flush()
        with open(reading, encoding="utf-8") as file:
            # Now there is somebody who reads: the thread goes on.
            lines = [file.readline()]
            while "lines were dropped here" not in lines[-1]:
                lines.append(file.readline())
            log.info("the next")
            assert file.readline() == "the next\n"
    os.close(writing)
    assert [line.split()[0] for line in lines[:-1]] == [str(at) for at in range(len(lines) - 1)]
    assert int(lines[-1].split()[0]) == count - len(lines[:-1])


def test_a_log_whose_reader_is_gone_is_lost_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with logging_to(LogWriter(writing)) as log:
        log.info("nobody")
    os.close(writing)


# --- JSON -----------------------------------------------------------------------------------------


def test_each_record_is_one_json_object_with_its_level() -> None:
    read, write = os.pipe()
    handler = LogWriter(write, repeats=Repeats(lines=1, seconds=60.0))
    handler.setFormatter(JsonFormatter())
    with logging_to(handler) as log:
        log.debug("details")
        log.info("listening on %s", "✗\n", extra={"event": {"event": "ready", "port": 1}})
        log.warning("%d is wrong", 7)
        log.warning("%d is wrong", 8)
        try:
            raise ValueError("no")
        except ValueError:
            log.exception("it failed")
    os.close(write)
    found = [json.loads(line) for line in read_all(read)]
    assert all(each.pop("at").endswith("Z") for each in found)
    failed = found.pop(3)
    assert found == [
        {"event": "log", "level": "info", "text": "details"},
        {"event": "ready", "level": "info", "text": "listening on ✗\n", "port": 1},
        {"event": "log", "level": "warning", "text": "7 is wrong"},
        {
            "event": "log",
            "level": "warning",
            "text": "… and 1 more in the last 60 s, such as: 8 is wrong",
        },
    ]
    assert failed["level"] == "error"
    lines = failed["text"].splitlines()
    assert (lines[0], lines[-1]) == ("it failed", "ValueError: no")

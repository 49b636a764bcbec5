"""The arithmetic of the store's bench: a figure that is wrong is worse than none."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.broker.contenders import MOSQUITTO, SEMEL, Family, Process, has_ended
from bench.broker.measure import Measured, Run
from bench.store import capture, durable, latency
from bench.store.capture import Capture, Sample, Sent
from bench.store.latency import Latency
from bench.store.load import encode_payloads, random_payloads
from bench.store.report import PARTS, StoreReport, parse_parts
from bench.store.startup import Start, Startup
from semel.lab.load.links import LinkError
from semel.mqtt import MQTT5, MQTT311, Decoder, Publish
from semel.store.segment_names import segment_name
from semel.store.segments import RecordError


def measured(contender: str, *figures: float, fault: str = "", lost: int = 0) -> Measured:
    run = Run("durable1", contender, MQTT311, figures=figures, fault=fault, lost=lost)
    return Measured(durable.SCENARIOS[0], contender, MQTT311, [run])


# --- durable --------------------------------------------------------------------------------------


def test_figures_are_time_of_broker_and_children_rate_and_bytes() -> None:
    # 40 % of a processor at 8 µs for each message: 50,000 a second.
    run = Run("durable1", SEMEL, MQTT311, figures=(8.0,), broker_busy=0.4)
    told = durable.figures(run, children_ns=3_000_000, written=500_000, received=1_000)
    assert told == pytest.approx((8.0, 3.0, 50_000, 500))


def test_the_ratio_counts_children_too() -> None:
    cells = [measured(SEMEL, 6.0, 2.0, 1.0, 1.0), measured(MOSQUITTO, 20.0, 0.0, 1.0, 0.0)]
    assert durable.ratio(cells, "durable1", MQTT311) == pytest.approx(2.5)
    assert durable.ratio(cells, "durable1", MQTT5) is None
    assert durable.ratio(cells, "durable2", MQTT311) is None
    assert durable.ratio(cells[:1], "durable1", MQTT311) is None


@pytest.mark.parametrize(
    ("semel", "sign", "word"),
    [
        (measured(SEMEL, 10.0, 0.0, 1.0, 1.0), "✓", "2.00 (100,000 of them)"),
        (measured(SEMEL, 16.0, 0.0, 1.0, 1.0), "✗", "1.25"),
        (measured(SEMEL, 10.0, 0.0, 1.0, 1.0, lost=1), "✗", "lost messages"),
        (measured(SEMEL, fault="closed a connection"), "✗", "closed a connection"),
    ],
)
def test_a_durable_target_is_met_by_the_ratio_and_without_losses(
    semel: Measured, sign: str, word: str
) -> None:
    (line,) = durable.targets([semel, measured(MOSQUITTO, 20.0, 0.0, 1.0, 0.0)])
    assert line.startswith(sign)
    assert word in line


def test_without_mosquitto_nothing_is_judged() -> None:
    cells = [measured(SEMEL, 10.0, 0.0, 1.0, 1.0), measured(MOSQUITTO, fault="missing")]
    assert durable.targets(cells)[0].startswith("–")


# --- publishers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_a_block_of_payloads_holds_packets_with_identifiers_from_1(version: int) -> None:
    payloads = random_payloads(3, 20)[:50]
    stream = encode_payloads(version, "bench/topic", payloads)
    packets = list(Decoder(version).receive(stream.block))
    assert packets == [
        Publish("bench/topic", payload, 1, number) for number, payload in enumerate(payloads, 1)
    ]
    layout = stream.layout
    assert layout.size * 50 == len(stream.block)
    assert stream.block[layout.id_at : layout.id_at + 2] == b"\x00\x01"


def test_publishers_send_different_payloads() -> None:
    assert not set(random_payloads(0, 20)) & set(random_payloads(1, 20))


# --- capture --------------------------------------------------------------------------------------


def segments(folder: Path, *ranges: tuple[int, int]) -> Path:
    (folder / "node").mkdir()
    for first, last in ranges:
        (folder / "node" / segment_name(first, last)).touch()
    (folder / "node" / "something else.parquet").touch()
    return folder


def test_sealed_is_the_end_of_segments_that_follow_each_other(tmp_path: Path) -> None:
    assert capture.sealed(tmp_path) == 0
    assert capture.sealed(segments(tmp_path, (1, 10), (11, 30), (1, 30), (31, 35))) == 35


def test_a_gap_between_segments_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError):
        capture.sealed(segments(tmp_path, (1, 10), (12, 30)))


def test_rows_of_each_publisher_are_checked_in_its_order() -> None:
    publishers = {"a": Sent([b"x", b"y"], 3), "b": Sent([b"z"], 1)}
    capture.check_rows([("a", 1, b"x"), ("b", 1, b"z"), ("a", 2, b"y")], publishers)
    capture.check_rows([("a", 1, b"x")], publishers)
    assert (publishers["a"].found, publishers["b"].found) == (3, 1)


@pytest.mark.parametrize(
    "rows",
    [
        [("a", 2, b"y")],  # lost
        [("a", 1, b"x"), ("a", 1, b"x")],  # doubled
        [("a", 1, b"y")],  # another's payload
    ],
)
def test_a_row_that_is_lost_doubled_or_changed_is_a_fault(
    rows: list[tuple[str, int, bytes]],
) -> None:
    with pytest.raises(LinkError):
        capture.check_rows(rows, {"a": Sent([b"x", b"y"], 2)})


def test_the_rate_counts_the_time_until_all_is_sealed() -> None:
    run = Capture(MQTT311, 1, messages=3_000_000, publishing_seconds=30.0, seconds=40.0)
    assert run.rate == 75_000
    assert capture.targets([run])[0].startswith("✓")
    run.seconds = 61.0
    assert capture.targets([run])[0].startswith("✗")
    assert Capture(MQTT311, 1).rate == 0


def test_a_capture_with_a_fault_meets_no_target() -> None:
    run = Capture(MQTT311, 5, messages=9_000_000, seconds=30.0, fault="sealed 1 of 2 rows")
    (line,) = capture.targets([run])
    assert line == "✗ capture, 5 publishers, 3.1.1: sealed 1 of 2 rows"


def test_progress_shows_some_samples_and_always_the_last() -> None:
    run = Capture(MQTT311, 1, samples=[Sample(n, n * 10, n * 9) for n in range(34)])
    head, _, acknowledged, unsealed = capture.progress(run)
    assert head.count("|") == acknowledged.count("|") == unsealed.count("|") <= 13
    assert acknowledged.endswith("| 330 |")
    assert unsealed.endswith("| 33 |")


# --- latency --------------------------------------------------------------------------------------


def test_latency_is_judged_beyond_the_quicker_fdatasync() -> None:
    run = Latency(MQTT5, [1_500_000] * 9, [900_000] * 9, [600_000] * 9)
    assert latency.parts(run.puback) == (1.5, 1.5)
    assert run.beyond() == pytest.approx(0.9)
    assert latency.targets([run])[0].startswith("✓")
    run.puback = [1_700_000] * 9
    assert latency.targets([run])[0].startswith("✗")


def test_the_slowest_hundredth_is_told_apart_from_the_median() -> None:
    assert latency.parts([1_000_000] * 980 + [9_000_000] * 20) == (1.0, 9.0)
    assert latency.parts([]) == (0.0, 0.0)


# --- start-up, the report -------------------------------------------------------------------------


def test_start_up_is_told_by_medians_and_a_fault_is_not_hidden() -> None:
    starts = [Start(4.0, 200, 2.0, 210), Start(9.0, 300, 7.0, 310), Start(5.0, 250, 3.0, 260)]
    result = Startup(10, 100, 1_000, starts, Start())
    assert result.median() == Start(5.0, 250, 3.0, 260)
    assert result.fault == ""
    result.starts.append(Start(fault="does not know session-000001"))
    assert result.fault == "does not know session-000001"


def test_parts_are_taken_in_their_order_and_unknown_ones_refused() -> None:
    assert parse_parts("") == list(PARTS)
    assert parse_parts("startup,durable") == ["durable", "startup"]
    with pytest.raises(argparse.ArgumentTypeError, match="no part speed"):
        parse_parts("durable,speed")


def test_a_report_of_nothing_says_nothing() -> None:
    assert (StoreReport().lines(), StoreReport().targets()) == ([], [])


# --- processes ------------------------------------------------------------------------------------


def test_children_of_children_are_found_and_their_time_is_kept() -> None:
    work = "sum(range(3_000_000)); print(flush=True); input()"
    middle = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", middle], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        family = Family(Process(os.getpid(), 0, Path()))
        assert child.pid in family.children()
        assert len(Family(Process(child.pid, 0, Path())).children()) == 1
        used = family.children_ns()
        assert used > 0
        assert not has_ended(child.pid)
        child.communicate(b"\n")
    assert has_ended(child.pid)
    assert family.children_ns() >= used

"""What `semel up` tells of a record and a table: rows, lag, and the account at the end.

The record is a broker's. The events are those of a landing, as a program that lands would tell
them: what there is to tell with several nodes, or after retention, takes no Spark.
"""

import asyncio
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semel.cli import up
from semel.cli.up import UpReport
from semel.up.parts import (
    BROKER,
    LANDING,
    UpPlan,
    make_lake,
    parse_broker_line,
    parse_landing_line,
    to_try,
)
from semel.up.supervisor import STDERR, STDOUT, Event, Supervisor
from tests.broker.live import PATIENCE
from tests.broker.live import Process as Broker
from tests.kills.ingesting import Publisher
from tests.up.test_up import plan_of

RECORDED = 7


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with seven rows of stream all, of node n1."""
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("record") / "data"
    given = ("--data", str(folder), "--stream", "all=#", "--node", "n1")
    with Broker(*given) as broker, Publisher(broker.address[1]) as publisher:
        for number in range(RECORDED):
            publisher.publish("plant/1", b"%d" % number, 2)
        publisher.finish()
    return folder


def event(name: str, **facts: object) -> Event:
    """What a line of a landing becomes."""
    line = json.dumps({"at": "2026-11-16T09:10:46+00:00", "event": name, **facts})
    line_event = parse_landing_line(STDOUT, line)
    assert line_event is not None
    return Event(line_event.kind, LANDING, line_event.text, line_event.facts)


def batch(landed: int, **facts: object) -> Event:
    return event("batch", batch=1, rows=1, landed=landed, lag_rows=0, lag_seconds=1.25, **facts)


class Told:
    """What a report says after some events."""

    def __init__(self, plan: UpPlan, events: Sequence[Event], *, quiet: bool = False) -> None:
        self.standing: Mapping[str, object] = {}
        self.line = ""
        asyncio.run(asyncio.wait_for(self._tell(plan, events, quiet), PATIENCE))

    async def _tell(self, plan: UpPlan, events: Sequence[Event], quiet: bool) -> None:
        report = UpReport(plan, is_json=True, quiet=quiet)
        report.begin(Supervisor([], report.tell))
        for each in events:
            report.tell(each)
        self.standing = report.standing()
        self.line = report.as_line()
        report.end()
        await report.close()


def ended(capfd: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """The last object, and the last line for people."""
    out, err = capfd.readouterr()
    last = json.loads(out.splitlines()[-1])
    assert last["event"] == "ended"
    return last, err.splitlines()[-1]


# --- how it stands --------------------------------------------------------------------------------


def test_rows_of_other_nodes_are_not_taken_for_ours(data: Path) -> None:
    plan = plan_of(data=str(data))
    ready = event("ready", landed_before=500, positions={"n2": 500})
    told = Told(plan, [ready])
    assert (told.standing["landed"], told.standing["lag_rows"]) == (0, RECORDED)
    told = Told(plan, [ready, batch(3, positions={"n1": 3, "n2": 500})])
    assert told.standing["recorded"] == RECORDED
    assert told.standing["landed"] == 3
    assert told.standing["lag_rows"] == 4
    assert told.standing["table_rows"] == 503
    assert "landed up to row 3  lag 4 rows  latency 1.2 s" in told.line


def test_a_latency_of_long_ago_is_not_told_but_how_long_rows_wait_is(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = event("ready", landed_before=0, positions={"n1": 0})
    report = UpReport(plan_of(data=str(data)), is_json=False, quiet=True)
    now = 1_000.0
    # The loop goes by its own clock.
    clock = SimpleNamespace(monotonic=lambda: now, strftime=time.strftime)
    monkeypatch.setattr(up, "time", clock)

    async def tell() -> None:
        nonlocal now
        report.begin(Supervisor([], report.tell))
        report.tell(ready)
        report.tell(batch(3, positions={"n1": 3}))
        assert report.as_line().endswith("lag 4 rows  latency 1.2 s")
        assert report.standing()["waiting_seconds"] == 0.0
        now += 42
        assert report.as_line().endswith("lag 4 rows for 42 s")
        assert report.standing()["lag_seconds"] is None
        assert report.standing()["waiting_seconds"] == 42.0
        report.tell(batch(4, positions={"n1": RECORDED}))
        assert report.as_line().endswith("lag 0 rows  latency 1.2 s")
        now += 42
        assert report.as_line().endswith("lag 0 rows")
        await report.close()

    asyncio.run(asyncio.wait_for(tell(), PATIENCE))


def test_rows_that_retention_has_deleted_before_they_landed_are_no_lag(data: Path) -> None:
    plan = plan_of(data=str(data))
    ready = event("ready", landed_before=0, positions={})
    told = Told(plan, [ready, batch(2, positions={"n1": RECORDED})])
    assert told.standing["lag_rows"] == 0
    assert told.standing["landed"] == RECORDED
    assert told.standing["table_rows"] == 2
    # What is behind is told all the same.
    told = Told(plan, [ready, batch(2, positions={"n1": RECORDED - 1})])
    assert told.standing["lag_rows"] == 1


def test_a_batch_of_others_leaves_ours_where_it_was(data: Path) -> None:
    ready = event("ready", landed_before=5, positions={"n1": 5})
    told = Told(plan_of(data=str(data)), [ready, batch(9, positions={"n2": 9})])
    assert (told.standing["landed"], told.standing["lag_rows"]) == (5, 2)


def test_a_landing_that_is_ahead_of_our_last_look_has_no_lag(data: Path) -> None:
    ready = event("ready", landed_before=9, positions={"n1": 9})
    told = Told(plan_of(data=str(data)), [ready])
    assert (told.standing["landed"], told.standing["lag_rows"]) == (9, 0)


def test_without_positions_the_lag_is_unknown_and_the_rest_is_told(data: Path) -> None:
    plan = plan_of(data=str(data))
    told = Told(plan, [event("ready", landed_before=500), batch(3)])
    assert told.standing["landed"] is None
    assert told.standing["lag_rows"] is None
    assert told.standing["table_rows"] == 503
    assert told.line.startswith(f"{RECORDED} recorded")
    assert "lag" not in told.line
    # Before Spark is there, nothing is known at all.
    told = Told(plan, [])
    assert told.standing["table_rows"] is None
    assert told.line.startswith(f"{RECORDED} recorded")


# --- what to try ----------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["messages", "my table", "$(id)"])
@pytest.mark.parametrize("is_in_file", [True, False])
def test_the_question_works_when_it_is_pasted_before_anything_has_landed(
    data: Path, tmp_path: Path, table: str, is_in_file: bool
) -> None:
    for package in ("deltalake", "duckdb"):
        pytest.importorskip(package)
    lake = str(tmp_path / "lake")
    if is_in_file:
        text = f'[store]\ndata = "{data}"\n[land]\nlake = "{lake}"\ntable = "{table}"\n'
        plan = plan_of(text=text, folder=tmp_path)
    else:
        plan = plan_of(data=str(data), environ={"SEMEL_LAND_TABLE": table})
    make_lake(plan)
    assert Path(lake).is_dir() == is_in_file
    program = shlex.join([sys.executable, "-m", "semel"])
    _, question = to_try(plan, program, host="127.0.0.1", port=1883)
    found = subprocess.run(
        ["sh", "-c", question], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1].split() == ["plant/1", str(RECORDED)]


# --- the account ----------------------------------------------------------------------------------


LAKES = "s3://bucket/lake"


def test_the_account_of_an_object_store_is_by_position(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(data=str(data), lake=LAKES)
    ready = event("ready", landed_before=500, positions={"n2": 500})
    Told(plan, [ready, batch(3, positions={"n1": 3, "n2": 500})])
    last, line = ended(capfd)
    assert (last["recorded"], last["landed"], last["waiting"]) == (RECORDED, 3, 4)
    assert line.endswith("7 in all; landed up to row 3; 4 to land at the next start")
    Told(plan, [ready, batch(7, positions={"n1": 7, "n2": 500})])
    last, line = ended(capfd)
    assert (last["landed"], last["waiting"]) == (RECORDED, 0)
    assert line.endswith("7 in all; landed up to row 7; lag 0")


def test_what_is_on_an_object_store_is_not_known_if_spark_never_came_up(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Told(plan_of(data=str(data), lake=LAKES), [])
    last, line = ended(capfd)
    assert (last["recorded"], last["landed"], last["waiting"]) == (RECORDED, None, None)
    assert "what has landed is not known" in line


def test_the_account_of_a_folder_is_what_its_table_says(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("deltalake")
    plan = plan_of(data=str(data), lake=str(tmp_path / "lake"))
    # Whatever was said before.
    Told(plan, [event("ready", landed_before=9, positions={"n1": 3})])
    last, line = ended(capfd)
    assert (last["landed"], last["waiting"]) == (0, RECORDED)
    assert line.endswith("7 in all; none has landed; 7 to land at the next start")


# --- quiet ----------------------------------------------------------------------------------------


def said(part: str, line: str) -> Event:
    line_event = (parse_broker_line if part == BROKER else parse_landing_line)(STDERR, line)
    assert line_event is not None
    return Event(line_event.kind, part, line_event.text, line_event.facts)


@pytest.mark.parametrize(
    ("log_level", "shown"),
    [
        ("info", ["stopping", "a client broke a rule", "it failed", "MemoryError"]),
        ("warning", ["a client broke a rule", "it failed", "MemoryError"]),
        ("error", ["it failed", "MemoryError"]),
    ],
)
def test_the_log_level_of_the_broker_says_what_is_shown_of_its_log(
    data: Path, log_level: str, shown: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(data=str(data), environ={"SEMEL_BROKER_LOG_LEVEL": log_level})
    lines = ["<6>stopping", "<4>a client broke a rule", "<3>it failed", "MemoryError"]
    Told(replace(plan, lands=False), [said(BROKER, line) for line in lines])
    told = capfd.readouterr().err
    words = [line.split(">")[-1] for line in lines]
    assert [each for each in words if each in told] == shown


@pytest.mark.parametrize(
    ("part", "line", "is_shown"),
    [
        (BROKER, "<6>stopping", False),
        (BROKER, "<4>cannot accept new connections: Too many open files", True),
        (BROKER, "<3>127.0.0.1:9 closed: serving it failed", True),
        (BROKER, "MemoryError", True),
        (LANDING, "2026-11-16 09:10:46,021 the root is not there yet: waiting for it", True),
    ],
)
def test_quiet_leaves_what_is_wrong(
    data: Path, part: str, line: str, is_shown: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = replace(plan_of(data=str(data)), lands=False)
    words = line.removeprefix("2026-11-16 09:10:46,021 ").split(">")[-1]
    Told(plan, [said(part, line)], quiet=True)
    assert (words in capfd.readouterr().err) == is_shown
    Told(plan, [said(part, line)])
    assert words in capfd.readouterr().err

"""What `semel up` writes for people and programs: lines, suggested commands, and the totals.

The record is a broker's; the events of a landing are made here, so that no Spark is needed.
"""

import asyncio
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semel.cli.up import UpReport, as_line
from semel.up.parts import BROKER, LANDING, parse_landing_line, parse_line
from semel.up.plan import UpPlan, create_lake_folder
from semel.up.status import StatusSnapshot
from semel.up.suggestions import suggested_commands
from semel.up.supervisor import DIED, LOGGED, STARTING, STDERR, STDOUT, Event, Supervisor
from tests.broker.broker_process import PATIENCE
from tests.broker.broker_process import Process as Broker
from tests.kills.ingesting import Publisher
from tests.up.spark.test_up import plan_of, tcp_at
from tests.up.test_status import batch, landing_event

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


class ReportAfter:
    """What a report writes after some events."""

    def __init__(self, plan: UpPlan, events: Sequence[Event], *, quiet: bool = False) -> None:
        asyncio.run(asyncio.wait_for(self._report(plan, events, quiet), PATIENCE))

    async def _report(self, plan: UpPlan, events: Sequence[Event], quiet: bool) -> None:
        report = UpReport(plan, is_json=True, quiet=quiet)
        report.begin(Supervisor([], report.report_event))
        for each in events:
            report.report_event(each)
        report.end()
        await report.close()


def ended(capfd: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """The last object, and the last line for people."""
    out, err = capfd.readouterr()
    last = json.loads(out.splitlines()[-1])
    assert last["event"] == "ended"
    return last, err.splitlines()[-1]


# --- the status line ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "1,204,311 recorded  8,420/s"),
        (
            {"landed": 1_204_102, "lag_rows": 209, "lag_seconds": 1.25, "waiting_seconds": 1.0},
            "1,204,311 recorded  8,420/s  landed up to row 1,204,102  lag 209 rows  latency 1.2 s",
        ),
        (
            {"landed": 1_204_310, "lag_rows": 1, "waiting_seconds": 42.0},
            "1,204,311 recorded  8,420/s  landed up to row 1,204,310  lag 1 row for 42 s",
        ),
        (
            {"landed": 1_204_311, "lag_rows": 0, "waiting_seconds": 0.0},
            "1,204,311 recorded  8,420/s  landed up to row 1,204,311  lag 0 rows",
        ),
    ],
)
def test_the_line_has_what_is_known(changes: dict[str, Any], line: str) -> None:
    nothing = StatusSnapshot(1_204_311, 8_420.0, None, None, None, None, None)
    assert as_line(replace(nothing, **changes), {BROKER: "ready", LANDING: "ready"}) == line
    found = as_line(replace(nothing, **changes), {BROKER: "ready", LANDING: "starting"})
    assert found == f"{line}  landing starting"


def test_a_death_is_reported_with_its_restart_once_per_reason(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = replace(plan_of(data=str(data)), lands=False)
    died = Event(DIED, LANDING, "no Java", {"again": 2.0})
    ReportAfter(plan, [died, Event(STARTING, LANDING), died, Event(STARTING, BROKER)])
    out, err = capfd.readouterr()
    lines = [line[9:] for line in err.splitlines()]
    assert lines[1:-1] == [
        "landing  died: no Java; restarting in 2 s, the broker continues",
        "broker   starting",
    ]
    assert [json.loads(line)["event"] for line in out.splitlines()].count("died") == 2


def test_a_traceback_is_shown_line_by_line(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "serving it failed\nTraceback (most recent call last):\n  File \x1b[2J\nValueError"
    failed = Event(LOGGED, BROKER, text, {"level": "error"})
    ReportAfter(replace(plan_of(data=str(data)), lands=False), [failed])
    out, err = capfd.readouterr()
    assert [line[9:] for line in err.splitlines()[1:-1]] == [
        "broker   serving it failed",
        "broker   Traceback (most recent call last):",
        "broker     File \\x1b[2J",
        "broker   ValueError",
    ]
    assert json.loads(out.splitlines()[1])["text"] == text


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
    create_lake_folder(plan)
    assert Path(lake).is_dir() == is_in_file
    program = shlex.join([sys.executable, "-m", "semel"])
    _, question = suggested_commands(plan, program, listeners=tcp_at("127.0.0.1", 1883))
    found = subprocess.run(
        ["sh", "-c", question], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[-1].split() == ["plant/1", str(RECORDED)]


# --- the totals -----------------------------------------------------------------------------------


LAKES = "s3://bucket/lake"


def test_the_account_of_an_object_store_is_by_position(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(data=str(data), lake=LAKES)
    ready = landing_event("ready", landed_before=500, positions={"n2": 500})
    ReportAfter(plan, [ready, batch(3, positions={"n1": 3, "n2": 500})])
    last, line = ended(capfd)
    assert (last["recorded"], last["landed"], last["waiting"]) == (RECORDED, 3, 4)
    assert line.endswith("7 in all; landed up to row 3; 4 to land at the next start")
    ReportAfter(plan, [ready, batch(7, positions={"n1": 7, "n2": 500})])
    last, line = ended(capfd)
    assert (last["landed"], last["waiting"]) == (RECORDED, 0)
    assert line.endswith("7 in all; landed up to row 7; lag 0")


def test_what_is_on_an_object_store_is_not_known_if_spark_never_came_up(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ReportAfter(plan_of(data=str(data), lake=LAKES), [])
    last, line = ended(capfd)
    assert (last["recorded"], last["landed"], last["waiting"]) == (RECORDED, None, None)
    assert line.endswith("7 in all; landed rows unknown: the landing did not report it")


def test_the_account_of_a_folder_is_what_its_table_says(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("deltalake")
    plan = plan_of(data=str(data), lake=str(tmp_path / "lake"))
    # Whatever was said before.
    ReportAfter(plan, [landing_event("ready", landed_before=9, positions={"n1": 3})])
    last, line = ended(capfd)
    assert (last["landed"], last["waiting"]) == (0, RECORDED)
    assert line.endswith("7 in all; none has landed; 7 to land at the next start")


# --- quiet ----------------------------------------------------------------------------------------


def log_line(level: str, text: str) -> str:
    return json.dumps(
        {"at": "2026-11-16T09:10:46.021Z", "event": "log", "level": level, "text": text}
    )


LOG_LINES = [
    (STDOUT, log_line("info", "stopping")),
    (STDOUT, log_line("warning", "a client broke a rule")),
    (STDOUT, log_line("error", "it failed")),
    (STDERR, "MemoryError"),
]


@pytest.mark.parametrize(
    ("log_level", "shown"),
    [
        ("info", ["stopping", "a client broke a rule", "it failed", "MemoryError"]),
        ("warning", ["a client broke a rule", "it failed", "MemoryError"]),
        ("error", ["it failed", "MemoryError"]),
    ],
)
def test_the_log_level_of_the_broker_decides_what_is_shown_of_its_log(
    data: Path, log_level: str, shown: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(data=str(data), environ={"SEMEL_BROKER_LOG_LEVEL": log_level})
    events = [parse_line(source, line) for source, line in LOG_LINES]
    reported = [Event(each.kind, BROKER, each.text, each.facts) for each in events]
    ReportAfter(replace(plan, lands=False), reported)
    written = capfd.readouterr().err
    assert [each.text for each in events if each.text in written] == shown


@pytest.mark.parametrize(
    ("part", "source", "line", "text", "is_shown"),
    [
        (BROKER, STDOUT, log_line("info", "stopping"), "stopping", False),
        (BROKER, STDOUT, log_line("warning", "cannot accept"), "cannot accept", True),
        (BROKER, STDOUT, log_line("error", "serving it failed"), "serving it failed", True),
        (BROKER, STDERR, "MemoryError", "MemoryError", True),
        (LANDING, STDERR, "2026-11-16 09:10:46,021 no root yet", "landing  no root yet", True),
    ],
)
def test_quiet_shows_problems_only(
    data: Path,
    part: str,
    source: int,
    line: str,
    text: str,
    is_shown: bool,
    capfd: pytest.CaptureFixture[str],
) -> None:
    plan = replace(plan_of(data=str(data)), lands=False)
    found = (parse_line if part == BROKER else parse_landing_line)(source, line)
    event = Event(found.kind, part, found.text, found.facts)
    ReportAfter(plan, [event], quiet=True)
    assert (text in capfd.readouterr().err) == is_shown
    ReportAfter(plan, [event])
    assert text in capfd.readouterr().err

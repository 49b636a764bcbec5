"""When maintenance is due, and the process that a landing has it done by."""

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from semel.pipeline import maintenance_process
from semel.pipeline.landing import Landing
from semel.pipeline.landing_plan import make_plan
from semel.pipeline.landing_target import make_target
from semel.pipeline.live_files import list_files
from semel.pipeline.maintenance_process import Maintenance, Schedule
from semel.pipeline.settings import LandSettings
from tests.pipeline.landing_rows import land_seqs
from tests.pipeline.spark.test_maintenance import HOUR, POLICY, actions, land_many, seqs


def test_a_pass_is_due_by_commits_by_time_and_not_without_either() -> None:
    schedule = Schedule(POLICY)
    assert not schedule.is_due(-1, 0.0)
    # At the start there is other work to do, unless the table grows.
    assert not schedule.is_due(500, -60.0)
    assert not schedule.is_due(500, -1.0)
    assert schedule.is_due(500, 0.0)
    assert schedule.is_due(510, -1.0)
    assert schedule.wants_vacuum(1.0, 1.0)
    schedule = Schedule(POLICY)
    schedule.passed(10, 2.0, vacuumed=True, failed=False)
    assert not schedule.is_due(19, 3.0)
    assert schedule.is_due(20, 4.0)
    assert not schedule.wants_vacuum(5.0, 5.0)
    schedule.passed(20, 5.0, vacuumed=False, failed=False)
    assert not schedule.is_due(21, 604.0)
    assert schedule.is_due(21, 605.0)
    schedule.passed(21, 606.0, vacuumed=False, failed=False)
    # Nothing is written any more: for a while files become old enough to be deleted.
    assert not schedule.is_due(21, 3600.0)
    assert schedule.is_due(21, 606.0 + HOUR)
    assert schedule.wants_vacuum(606.0 + HOUR, 606.0 + HOUR)
    for hour in range(1, 10):
        if schedule.is_due(21, 610.0 + hour * HOUR):
            schedule.passed(21, 610.0 + hour * HOUR, vacuumed=True, failed=False)
    assert not schedule.is_due(21, 1e9)
    assert schedule.is_due(22, 1e9)


def test_nothing_is_deleted_soon_after_the_clock_has_jumped() -> None:
    schedule = Schedule(POLICY)
    assert schedule.wants_vacuum(0.0, 1_000.0)
    schedule.passed(1, 0.0, vacuumed=True, failed=False)
    assert schedule.wants_vacuum(HOUR, 1_030.0 + HOUR)
    # Ten years ahead: what a landing is writing looks old.
    years = 10 * 365 * 24 * HOUR
    assert not schedule.wants_vacuum(HOUR + 1, years)
    assert not schedule.wants_vacuum(HOUR + 2, years + 1)
    assert schedule.wants_vacuum(2 * HOUR + 1, years + HOUR)


def test_a_pass_that_failed_is_not_repeated_at_once() -> None:
    schedule = Schedule(POLICY)
    schedule.passed(10, 0.0, vacuumed=False, failed=True)
    assert not schedule.is_due(100, 59.0)
    assert schedule.is_due(100, 60.0)


def replace_process(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let passes be made by another program."""
    (folder / "other_pass.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(maintenance_process, "MODULE", "other_pass")


@pytest.mark.parametrize(
    ("code", "vacuumed"),
    [
        ("", True),
        ("""print('{"action": "failed", "problem": "a fault", "vacuumed": true}')""", True),
        ("""print('{"action": "failed", "problem": "a fault", "vacuumed": false}')""", False),
        ("exit(1)", False),
    ],
)
def test_a_vacuum_that_was_not_made_stays_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, vacuumed: bool
) -> None:
    replace_process(tmp_path, monkeypatch, code)
    keeper = Maintenance(str(tmp_path), POLICY, lambda _: None)
    keeper.run_once()
    now = time.monotonic()
    assert keeper._schedule.wants_vacuum(now, now) is not vacuumed


def test_a_problem_is_logged_once_and_a_landing_goes_on(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    land_many(address, 1, 12)
    one = list_files(DeltaTable(address))[0]
    path = Path(address) / one.disk_path
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    events: list[dict[str, Any]] = []
    keeper = Maintenance(address, POLICY, events.append)
    keeper.run_once()
    keeper.run_once()
    assert events == []
    (record,) = caplog.records
    assert f"maintenance of {address} failed, and will be retried: " in record.getMessage()
    land_seqs(address, 61, 65)
    path.write_bytes(whole)
    keeper.run_once()
    assert "compacted" in actions(events)
    assert seqs(address) == list(range(1, 66))


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_ends_the_last_pass_of_a_landing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signals: int
) -> None:
    """With two, the process of the pass ignores the end of its input and SIGTERM."""
    code = """
import signal, time
if IGNORE:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('{"action": "overtaken", "files": 1}', flush=True)
time.sleep(20)
"""
    replace_process(tmp_path, monkeypatch, code.replace("IGNORE", str(signals == 2)))
    lake = tmp_path / "lake"
    land_many(str(lake / "messages"), 1, 3)
    (tmp_path / "root").mkdir()
    settings = LandSettings(root=str(tmp_path / "root"), lake=str(lake), small_files=2)

    def send(event: dict[str, Any]) -> None:
        for number in range(signals):
            threading.Timer(0.5 * number, os.kill, (os.getpid(), signal.SIGTERM)).start()

    landing = Landing(make_plan(settings), send)
    landing._target = make_target(landing.plan)
    before = signal.signal(signal.SIGTERM, lambda *_: landing.stop())
    began = time.monotonic()
    try:
        with landing._maintained(once=True):
            pass
    finally:
        signal.signal(signal.SIGTERM, before)
    assert time.monotonic() - began < 4
    (maintenance,) = landing._maintenance.values()
    assert maintenance.pid is None


def test_a_process_ends_with_whoever_started_it(address: str) -> None:
    land_many(address, 1, 12)
    keeper = Maintenance(address, replace(POLICY, small_files=2), lambda _: None)
    working = threading.Thread(target=keeper.run_once)
    working.start()
    deadline = time.monotonic() + 30
    while (pid := keeper.pid) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    keeper.stop()
    working.join(30)
    assert not working.is_alive()
    assert not Path(f"/proc/{pid}").exists()
    assert seqs(address) == list(range(1, 61))

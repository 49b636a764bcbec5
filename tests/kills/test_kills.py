"""Kills of the real broker under load, with rights that change, and the account of every message.

Many more are in `tests/long/kills.py`. That the account can fail is shown in `test_account.py`, and
here by brokers that do lose messages.
"""

import shutil
from pathlib import Path

import pytest

from tests.kills.brokers import free_port, mosquitto, semel
from tests.kills.guests import rights_of
from tests.kills.harness import WAYS, Plan, Result, run
from tests.modes import repeats

NEEDS_MOSQUITTO = pytest.mark.skipif(
    shutil.which("mosquitto") is None, reason="not installed: mosquitto"
)


# The compiled broker is killed twenty times.
KILLS = repeats(20, 8)
# Kills under load and nothing else: enough to make a broker lose messages that can.
ROUGH = Plan(4, 3, 0.8, paho=False, patience=2.0, ways={"all": 1}, fresh=0, starting=0)


def report(result: Result) -> str:
    return f"{result.verdict.describe()}\n{result.summary()}"


def test_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    rights = rights_of(tmp_path, seed=1)
    broker = semel(free_port(), tmp_path, *rights.arguments())
    result = run(Plan(kills=KILLS, seed=1, load=0.8), broker, rights=rights)
    assert result.verdict.is_clean, report(result)
    assert result.kills >= KILLS
    # It was no idle run: everything that is promised was put to the test.
    assert set(result.ways) == {*WAYS, "starting"}
    enough = repeats(500, 200)
    assert result.messages > enough
    assert result.verdict.count("acknowledged") > 5 * enough
    assert result.rows >= result.messages
    assert result.segments
    assert result.retained_checks > repeats(10, 4)
    assert set(result.changes) == {"reload", "restart"}
    assert rights.count(revoked=True) >= len(rights.kinds)
    assert rights.count(revoked=False) == rights.count(revoked=True)
    assert result.withheld
    assert result.received
    assert result.refused


def test_connections_that_are_cut_at_any_byte_lose_nothing(tmp_path: Path) -> None:
    broker = semel(free_port(), tmp_path, keeps=False)
    result = run(Plan(kills=0, seed=2, load=2.0, cut_rate=2.0), broker)
    assert result.verdict.is_clean, report(result)
    assert result.verdict.count("repeats")


def test_the_loss_of_a_broker_without_a_disk_is_found(tmp_path: Path) -> None:
    broker = semel(free_port(), tmp_path, keeps=False)
    verdict = run(ROUGH, broker).verdict
    assert {"lost", "session lost"} <= set(verdict.faults)


@NEEDS_MOSQUITTO
def test_the_loss_of_mosquitto_with_persistence_is_found(tmp_path: Path) -> None:
    verdict = run(ROUGH, mosquitto(free_port(), tmp_path)).verdict
    assert {"lost", "session lost"} <= set(verdict.faults)
    assert "not taken by" in verdict.faults["lost"][0]


@NEEDS_MOSQUITTO
def test_the_account_of_mosquitto_is_right_as_long_as_nobody_kills_it(tmp_path: Path) -> None:
    plan = Plan(kills=0, seed=5, load=1.0, cut_rate=1.0)
    result = run(plan, mosquitto(free_port(), tmp_path))
    # Mosquitto 2.0.11 lets messages overtake others that wait for the receive maximum of a 5.0
    # client, and exceeds that after a reconnect: it is no fault of the account to see this.
    seen = {"out of order", "receive maximum exceeded"}
    assert set(result.verdict.faults) <= seen, report(result)

"""A client with an outbox is killed a dozen times under load: every message is accounted for.

Many more kills are in `tests/long/client_kills.py`. That the account can fail is shown by outboxes
that are spoiled on purpose.
"""

import shutil
from pathlib import Path

import pytest

from tests.kills.brokers import free_port, mosquitto, semel
from tests.kills.client_run import Plan, Result, run
from tests.kills.wire import V5, V311

NEEDS_MOSQUITTO = pytest.mark.skipif(
    shutil.which("mosquitto") is None, reason="not installed: mosquitto"
)


def check(result: Result, kills: int) -> None:
    assert result.is_clean, result.describe()
    assert result.kills == kills
    # It was no idle run.
    assert result.stored > 10 * kills
    assert result.handed_out > 10 * kills
    assert result.again


def test_a_dozen_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    broker = semel(free_port(), tmp_path, streams=False)
    check(run(Plan(kills=12, seed=1, version=V5), broker), 12)


def test_neither_do_kills_of_the_broker_besides(tmp_path: Path) -> None:
    broker = semel(free_port(), tmp_path, streams=False)
    result = run(Plan(kills=8, seed=2, version=V311, broker=0.5), broker)
    check(result, 8)
    assert result.broker_kills


def test_neither_do_connections_that_are_cut_at_any_byte(tmp_path: Path) -> None:
    broker = semel(free_port(), tmp_path, streams=False)
    result = run(Plan(kills=6, seed=3, version=V5, cuts=True, load=1.0), broker)
    check(result, 6)
    assert result.cuts


@NEEDS_MOSQUITTO
def test_nor_with_mosquitto(tmp_path: Path) -> None:
    check(run(Plan(kills=8, seed=4, version=V311), mosquitto(free_port(), tmp_path)), 8)


def test_the_loss_of_an_outbox_is_found(tmp_path: Path) -> None:
    broker = semel(free_port(), tmp_path, streams=False)
    plan = Plan(kills=4, seed=5, spoil=shutil.rmtree, patience=1.0, starting=0.0)
    faults = run(plan, broker).faults
    assert "lost" in faults or "never handed out" in faults


def test_an_outbox_from_a_backup_is_found(tmp_path: Path) -> None:
    """What was sent since is sent again, as new messages."""
    backup = tmp_path / "backup"

    def restore(outbox: Path) -> None:
        if backup.exists():
            shutil.rmtree(outbox)
            shutil.copytree(backup, outbox)
        else:
            shutil.copytree(outbox, backup)

    broker = semel(free_port(), tmp_path, streams=False)
    plan = Plan(kills=5, seed=6, spoil=restore, patience=1.0, starting=0.0)
    assert run(plan, broker).faults

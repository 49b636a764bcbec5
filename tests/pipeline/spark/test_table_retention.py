"""The time by which a process of maintenance removes rows."""

from dataclasses import replace
from typing import Any

import pytest

from semel.pipeline.errors import TableError
from semel.pipeline.maintenance_process import Maintenance
from tests.pipeline.core.test_table_retention import NINETY, at, three_days
from tests.pipeline.spark.test_maintenance import POLICY, actions, seqs


def test_a_time_that_is_not_known_is_a_problem_of_the_pass_and_not_its_end(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    three_days(address)
    known: list[float] = []

    def clock() -> float:
        if not known:
            raise TableError("the object store cannot be reached")
        return known[0]

    events: list[dict[str, Any]] = []
    policy = replace(POLICY, retention=NINETY)
    keeper = Maintenance(address, policy, events.append, clock=clock)
    keeper.run_once()
    assert "the time by which rows are old is not known: the object" in caplog.text
    known.append(at(91))
    keeper.run_once()
    assert "expired" in actions(events)


def test_the_process_of_a_pass_gets_the_time_of_its_landing(address: str) -> None:
    three_days(address)
    events: list[dict[str, Any]] = []
    policy = replace(POLICY, retention=NINETY)
    Maintenance(address, policy, events.append).run_once()
    assert "expired" not in actions(events)
    Maintenance(address, policy, events.append, clock=lambda: at(91)).run_once()
    assert "expired" in actions(events)
    assert seqs(address) == list(range(21, 61))

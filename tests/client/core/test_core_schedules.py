"""Random schedules of a client with an outbox: see `core_schedules`."""

import pytest

from semel.mqtt import MQTT5, MQTT311
from tests.client.core_schedules import run

VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])
SEEDS = 50


@pytest.mark.slow
@VERSIONS
def test_every_message_is_accounted_for_whatever_is_cut_or_crashes(version: int) -> None:
    published = sent = crashes = 0
    for seed in range(SEEDS):
        schedule = run(seed, version)
        assert not schedule.core.sessions_lost
        published += len(schedule.stored)
        sent += len(schedule.sent)
        crashes += schedule.crashes
    # It was no idle run.
    assert published > 10 * SEEDS
    assert sent > 5 * SEEDS
    assert crashes > 3 * SEEDS


@pytest.mark.slow
@VERSIONS
def test_nothing_that_is_stored_is_lost_when_the_server_forgets_its_session(version: int) -> None:
    lost = 0
    for seed in range(SEEDS):
        schedule = run(seed, version, forgetful=True)
        lost += len(schedule.forgotten)
    assert lost

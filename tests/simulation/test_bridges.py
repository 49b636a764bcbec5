"""Two simulated brokers and a bridge between them, crashed at any step while rights change.

Many more seeds are in `tests/long/simulate_bridges.py`.
"""

from collections import Counter

import pytest

from tests.modes import repeats
from tests.simulation.bridge_runs import run_bridge_seeds
from tests.simulation.bridge_world import EARLY, FORGETFUL, BridgedWorld


@pytest.mark.slow
def test_no_schedule_loses_or_duplicates_a_message() -> None:
    outcome = run_bridge_seeds(1, repeats(150, 25))
    assert outcome.failures == []
    tally = outcome.tally
    for what in (
        *("crashes of the bridge", "crashes of a broker", "cuts", "rights taken away"),
        "refused or withheld for lack of a right",
    ):
        assert tally[what] > 20, what
    # Lack of a right must not excuse most of what is checked.
    sent = tally["messages at QoS 1"] + tally["messages at QoS 2"]
    assert tally["refused or withheld for lack of a right"] < sent / 4


def test_a_seed_replays_exactly() -> None:
    def played(seed: int) -> tuple[Counter[str], list[list[tuple[str, bytes]]]]:
        world = BridgedWorld(seed)
        world.play()
        return world.tally, [broker.recorded() for broker in world.brokers]

    assert played(7) == played(7) != played(8)


@pytest.mark.parametrize("fault", [EARLY, FORGETFUL])
def test_a_bridge_with_a_fault_is_noticed(fault: str) -> None:
    assert any(run_bridge_seeds(seed, 1, fault).failures for seed in range(1, 61))


def test_a_subscription_that_a_broker_has_ended_is_made_again_at_the_next_start() -> None:
    world = BridgedWorld(3)
    world.finish("the bridge has subscribed")
    source, destination = world.brokers
    for may_subscribe in (False, True):
        source.rights.change_subscribe(may_subscribe=may_subscribe)
        world.finish("the broker has noticed")
    # MQTT cannot tell the bridge that its subscription has ended.
    world.publishers[0].publish(2, world.clock.now)
    world.finish("nothing is moved")
    assert destination.recorded() == []
    world.crash_bridge()
    world.finish("the bridge has subscribed again")
    world.publishers[0].publish(2, world.clock.now)
    world.finish("the message is moved")
    assert destination.recorded() == [("from-a/plant/1", b"plant/1")]

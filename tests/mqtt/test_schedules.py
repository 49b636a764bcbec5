"""Exactly once over any schedule of cuts, crashes and delays, between two sessions."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.mqtt import MQTT5, MQTT311, Session
from tests.modes import repeats
from tests.mqtt.schedules import NAMES, SIDES, World, check, run, schedule

STEPS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 1), st.integers(0, 3)), max_size=120
)


@settings(max_examples=repeats(400, 100), deadline=None)
@given(steps=STEPS, version=st.sampled_from((MQTT311, MQTT5)), receive_maximum=st.integers(1, 5))
def test_a_qos_2_message_arrives_exactly_once_over_any_schedule(
    steps: list[tuple[str, int, int]], version: int, receive_maximum: int
) -> None:
    world = World(version, receive_maximum if version == MQTT5 else 65_535)
    run(world, steps)
    world.finish()
    check(world)


@pytest.mark.parametrize("seed", range(repeats(60, 15)))
def test_a_long_schedule_loses_and_doubles_nothing(seed: int) -> None:
    schedule(seed)


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_a_message_in_flight_arrives_though_every_packet_is_followed_by_a_cut(
    version: int,
) -> None:
    world = World(version)
    world.connect()
    world.publish(0, 2)
    for _ in range(12):
        for me in SIDES:
            world.commit(me)
            world.deliver(me)
            world.accept(me, 0)
            world.cut()
            world.connect()
    world.finish()
    check(world)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_what_one_end_has_to_send_arrives_though_the_other_loses_its_session(seed: int) -> None:
    choose = random.Random(seed)
    world = World(choose.choice((MQTT311, MQTT5)), choose.randint(1, 5))
    names = (*NAMES, "forget")
    for _ in range(200):
        name, me, which = choose.choice(names), choose.randint(0, 1), choose.randint(0, 3)
        if name == "forget":
            world.forget(1)
        else:
            run(world, [(name, me, which)])
    world.finish()
    assert world.ends[0].sent
    # At least once: what was not acknowledged when the other forgot it is sent again.
    assert set(world.ends[0].sent) <= set(world.ends[1].owned)
    assert world.ends[0].session.in_flight == len(world.ends[0].session.backlog) == 0


def test_a_world_that_forgets_inbound_identifiers_is_caught() -> None:
    """The guard of this file can fail: without Method B a resent message is owned twice."""
    world = World(MQTT311)
    world.connect()
    world.publish(0, 2)
    world.deliver(1)
    world.accept(1, 0)
    world.commit(1)
    world.cut()
    world.ends[1].session = Session()
    world.ends[1].history = []
    world.finish()
    with pytest.raises(AssertionError):
        check(world)

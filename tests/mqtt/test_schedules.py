"""Exactly once over any schedule of cuts, crashes and delays, between two sessions."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.mqtt import MQTT5, MQTT311, Session
from tests.mqtt.schedules import SIDES, World

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("publish_1", "publish_2", "publish_2", "commit", "commit", "commit"),
                *("deliver", "deliver", "deliver", "deliver", "accept", "accept"),
                *("connect", "connect", "cut", "crash"),
            )
        ),
        st.integers(0, 1),
        st.integers(0, 3),
    ),
    max_size=120,
)


def run(world: World, steps: list[tuple[str, int, int]]) -> None:
    world.connect()
    for step, me, which in steps:
        if step == "publish_1":
            world.publish(me, 1)
        elif step == "publish_2":
            world.publish(me, 2)
        elif step == "commit":
            world.commit(me)
        elif step == "deliver":
            world.deliver(me)
        elif step == "accept":
            world.accept(me, which)
        elif step == "connect":
            world.connect()
        elif step == "cut":
            world.cut()
        else:
            world.crash(me)


def check(world: World) -> None:
    """Every message that a program was told is taken is accounted for."""
    for me in SIDES:
        sent = Counter(world.ends[me].sent)
        owned = Counter(world.ends[1 - me].owned)
        assert {item: n for item, n in owned.items() if item[0] == 2} == {
            item: n for item, n in sent.items() if item[0] == 2
        }
        assert {item for item in owned if item[0] == 1} == {item for item in sent if item[0] == 1}
        assert world.ends[me].given_up == 0
        assert world.ends[me].session.in_flight == 0
        assert world.ends[me].session.waiting == 0
        assert world.ends[me].session.open_exchanges(0, 1) == []


@settings(max_examples=400, deadline=None)
@given(steps=STEPS, version=st.sampled_from((MQTT311, MQTT5)), receive_maximum=st.integers(1, 5))
def test_a_qos_2_message_arrives_exactly_once_over_any_schedule(
    steps: list[tuple[str, int, int]], version: int, receive_maximum: int
) -> None:
    world = World(version, receive_maximum if version == MQTT5 else 65_535)
    run(world, steps)
    world.settle()
    check(world)


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
    world.settle()
    check(world)


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
    world.settle()
    with pytest.raises(AssertionError):
        check(world)

"""The model of rights in the simulation, in small worlds that are written by hand."""

import pytest

from semel.mqtt import MQTT5, MQTT311
from tests.simulation.clock import Broken
from tests.simulation.final_checks import check
from tests.simulation.finishing import finish
from tests.simulation.rights import (
    PUBLISH,
    RECEIVE,
    SUBSCRIBE,
    ReceiveHistory,
    Rights,
    account_of,
    user_of,
)
from tests.simulation.rights_variants import RIGHTS
from tests.simulation.schedule import NEVER, PUBLISHER, SUBSCRIBER, Action, Part, Plan
from tests.simulation.variants import FAITHFUL, Variant
from tests.simulation.world import World

SETTLE = Action("settle", 0, 3, 0)
# QoS 2, topic `a`, small, not retained, without expiry.
MESSAGE = Action("publish", 0, 0, 530)
# Nothing in transit arrives, and the client notices it.
CUT = Action("cut", 1, 256, 0)


def started(
    *, version: int = MQTT5, will_delay: int | None = None, variant: Variant = FAITHFUL
) -> World:
    """A publisher, and a subscriber to `#`. All rights stay as they are at the end."""
    parts = (
        Part("p0", PUBLISHER, version, NEVER, 65_535, 2, will_delay=will_delay),
        Part("s1", SUBSCRIBER, MQTT5, NEVER, 100, 2),
    )
    plan = Plan(0, parts, (("all", "#"),), queue_window=1, changes_rights=True)
    world = World(plan, variant=variant, trace=True)
    act(world, Action("connect", 0, 0, 0), Action("connect", 1, 0, 0), SETTLE)
    act(world, Action("subscribe", 1, 1, 0), SETTLE)
    return world


def act(world: World, *actions: Action) -> None:
    for action in actions:
        world.act(action)


def take(world: World, user: str, action: str, name: str) -> None:
    world.right_changes.set_right(user, action, name, is_allowed=False)


def give(world: World, user: str, action: str, name: str) -> None:
    world.right_changes.set_right(user, action, name, is_allowed=True)


def end(world: World) -> list[bytes]:
    """What the subscriber got, when everything is complete and checked."""
    finish(world)
    check(world)
    return [got.payload for got in world.clients[1].got]


def recorded(world: World) -> list[bytes]:
    return [row[3] for row in world.sealers[0].record(world.database)]


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("notices", [False, True])
def test_a_withdrawn_message_does_not_come_back(notices: bool, crashes: bool) -> None:
    world = started()
    act(world, CUT, SETTLE, MESSAGE, SETTLE)
    take(world, "s1", RECEIVE, "a")
    if notices:
        act(world, SETTLE)
    give(world, "s1", RECEIVE, "a")
    if crashes:
        act(world, Action("crash", 0, 0, 1))
    assert end(world) == ([] if notices else [b"p0.1"])


@pytest.mark.parametrize("is_missing", [False, True])
@pytest.mark.parametrize("steps", range(6))
def test_a_message_in_flight_is_not_sent_again_without_the_right(
    steps: int, is_missing: bool
) -> None:
    world = started()
    act(world, MESSAGE, *[Action("step", 0, 0, 0)] * steps, CUT)
    if is_missing:
        take(world, "s1", RECEIVE, "a")
    got_before = len(world.clients[1].got)
    expected = [b"p0.1"] if got_before or not is_missing else []
    assert end(world) == expected


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_message_that_awaits_its_commit_does_not_leave_after_its_right(
    is_missing: bool,
) -> None:
    world = started()
    act(world, MESSAGE, Action("up", 0, 0, 0), Action("tick", 0, 0, 0))
    if is_missing:
        take(world, "s1", RECEIVE, "a")
    assert end(world) == ([] if is_missing else [b"p0.1"])
    assert recorded(world) == [b"p0.1"]


def test_a_message_that_is_routed_after_the_change_does_not_leave() -> None:
    world = started()
    act(world, MESSAGE)
    take(world, "s1", RECEIVE, "a")
    assert end(world) == []
    assert recorded(world) == [b"p0.1"]


def test_a_subscription_ends_with_its_right_also_after_a_crash() -> None:
    world = started()
    take(world, "s1", SUBSCRIBE, "#")
    act(world, Action("crash", 0, 0, 1), MESSAGE)
    assert end(world) == []
    assert world.tally["subscriptions ended"] > 0


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
@pytest.mark.parametrize("is_missing", [False, True])
def test_a_message_of_a_publisher_without_the_right_is_not_recorded(
    version: int, is_missing: bool
) -> None:
    world = started(version=version)
    if is_missing:
        take(world, "p0", PUBLISH, "a")
    act(world, MESSAGE, SETTLE)
    assert end(world) == recorded(world) == ([] if is_missing else [b"p0.1"])
    [sent] = world.clients[0].published
    assert sent.refused == (is_missing and version == MQTT5)
    assert bool(sent.acked_at) != sent.refused


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
@pytest.mark.parametrize("is_missing", [False, True])
def test_a_will_without_its_right_is_neither_published_nor_accepted(
    version: int, is_missing: bool
) -> None:
    world = started(version=version, will_delay=0)
    if is_missing:
        take(world, "p0", PUBLISH, "w/p0")
    act(world, Action("cut", 0, 256, 0), SETTLE)
    assert recorded(world) == ([] if is_missing else [b"will.p0.0"])
    act(world, Action("connect", 0, 0, 0), SETTLE)
    assert world.tally["connections refused over rights"] == is_missing
    # Everybody may connect again at the end.
    end(world)


@pytest.mark.parametrize("is_other", [False, True])
def test_the_user_of_a_connection_decides_what_its_client_receives(is_other: bool) -> None:
    world = started()
    act(world, CUT)
    take(world, user_of("s1", is_other=True), RECEIVE, "a")
    world.connect(1, clean=False, is_other=is_other)
    act(world, SETTLE, MESSAGE, SETTLE)
    got = [each.payload for each in world.clients[1].got]
    assert got == ([] if is_other else [b"p0.1"])
    assert account_of(user_of("s1", is_other=is_other)) == "s1"
    end(world)


@pytest.mark.parametrize("a", range(16))
@pytest.mark.parametrize("is_cut", [False, True])
def test_a_thief_does_not_get_a_session(is_cut: bool, a: int) -> None:
    world = started()
    if is_cut:
        act(world, CUT, SETTLE)
    act(world, MESSAGE, Action("theft", 1, a, 0), SETTLE, Action("theft", 1, a, 0))
    assert world.tally["thefts"] == 2
    assert end(world) == [b"p0.1"]


def test_a_thief_that_gets_a_session_is_noticed() -> None:
    variant = next(each for each in RIGHTS if each.name == "theft")
    world = started(variant=variant)
    with pytest.raises(Broken, match="was allowed to use the session of s1"):
        act(world, Action("theft", 1, 1, 0))


def test_the_history_knows_when_a_right_was_missing() -> None:
    rights = Rights()
    history = ReceiveHistory(rights)
    users = {"s1": "s1"}
    before = history.moment
    first = history.end_tick(users)
    rights.change("s1", RECEIVE, "a", is_allowed=False)
    history.observe(users)
    second = history.end_tick(users)
    third = history.end_tick(users)
    rights.change("s1", RECEIVE, "a", is_allowed=True)
    history.observe(users)
    after = history.moment
    fourth = history.end_tick(users)
    ticks = (first, second, third, fourth)
    ends = [history.was_missing_at_end("s1", "a", tick) for tick in ticks]
    assert ends == [False, True, True, False]
    assert history.was_missing_since("s1", "a", before)
    assert not history.was_missing_since("s1", "a", after)
    assert not history.was_missing_since("s1", "b", before)
    assert rights.generation == 2

"""The bridge's core: each message once, whatever crashes, is cut off or is full."""

import random

import pytest

from semel.client.bridge_core import QueueLimits
from semel.client.bridge_path import MAXIMUM_HOPS, PATH_PROPERTY
from semel.mqtt import MQTT5, MQTT311, Properties
from tests.client.bridge_world import PLENTY, BridgeWorld, SimulatedBroker
from tests.modes import repeats

VERSIONS = pytest.mark.parametrize(
    "versions",
    [(MQTT5, MQTT5), (MQTT5, MQTT311), (MQTT311, MQTT5), (MQTT311, MQTT311)],
    ids=["5-5", "5-311", "311-5", "311-311"],
)
BOTH_WAYS = {"out": ["#  remote from-a/"], "inward": ["jobs/# local from-b/"]}


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def connected(**how: object) -> BridgeWorld:
    world = BridgeWorld(**how)  # type: ignore[arg-type]
    world.run()
    return world


# --- what is moved --------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_move_in_both_directions_with_their_prefixes(
    versions: tuple[int, int], qos: int
) -> None:
    world = connected(versions=versions, **BOTH_WAYS)
    world.local.publish("plant/1", b"out", qos)
    world.remote.publish("jobs/7", b"in", qos)
    world.remote.publish("other/7", b"not a rule", qos)
    world.run()
    (out,) = world.remote.accepted
    (inward,) = world.local.accepted
    assert (out.topic_name, out.payload, out.qos) == ("from-a/plant/1", b"out", qos)
    assert (inward.topic_name, inward.payload, inward.qos) == ("from-b/jobs/7", b"in", qos)
    assert world.core.to_remote.counters.moved == world.core.to_local.counters.moved == 1


def test_the_qos_of_the_rule_is_the_limit() -> None:
    world = connected(out=["a/# qos 0", "b/# qos 1"])
    world.local.publish("a/1", b"", 2)
    world.local.publish("b/1", b"", 2)
    world.run()
    assert {each.topic_name: each.qos for each in world.remote.accepted} == {"a/1": 0, "b/1": 1}


def test_a_qos_2_message_of_a_rule_that_is_lowered_to_0_is_still_acknowledged() -> None:
    world = connected(out=["a/#"])
    world.cut(0)
    world.local.publish("a/1", b"x", 2)
    world.out = ["a/# qos 0"]
    world.crash()
    world.connect(1)
    world.run()
    assert [each.qos for each in world.remote.accepted] in ([], [0])
    assert world.local.session.in_flight == 0
    world.local.publish("a/2", b"y", 2)
    world.run()
    assert world.remote.accepted[-1].payload == b"y"


def test_properties_and_retain_are_kept() -> None:
    world = connected()
    properties = Properties(
        content_type="text/plain",
        correlation_data=b"7",
        payload_format_indicator=1,
        message_expiry_interval=60,
        user_properties=[("k", "v"), ("k", "w")],
    )
    world.cut(1)
    world.local.publish("t", b"x", 2, retain=True, properties=properties, now=world.now)
    world.receive(0)
    world.now += 20
    world.run()
    (moved,) = world.remote.accepted
    assert moved.retain
    assert moved.properties.content_type == "text/plain"
    assert moved.properties.correlation_data == b"7"
    assert moved.properties.payload_format_indicator == 1
    # [MQTT-3.3.2-6]
    assert moved.properties.message_expiry_interval == 40
    assert moved.properties.user_properties == (("k", "v"), ("k", "w"), (PATH_PROPERTY, "a"))
    assert moved.properties.topic_alias is None
    assert moved.properties.subscription_identifiers == ()


def test_retain_is_not_sent_to_a_broker_without_retained_messages() -> None:
    world = connected()
    world.core.to_remote.is_retain_available = False
    world.local.publish("t", b"x", 2, retain=True)
    world.run()
    assert [each.retain for each in world.remote.accepted] == [False]


def test_a_response_topic_is_translated_by_the_rule_that_moves_the_answer() -> None:
    world = connected(out=["ask/#"], inward=["answers/# local back/ remote site/"])
    for topic in ("back/answers/7", "elsewhere/7"):
        world.local.publish("ask/1", b"", 1, properties=Properties(response_topic=topic))
    world.run()
    topics = [each.properties.response_topic for each in world.remote.accepted]
    assert topics == ["site/answers/7", "elsewhere/7"]
    world.remote.publish("site/answers/7", b"yes", 2)
    world.run()
    assert [each.topic_name for each in world.local.accepted] == ["back/answers/7"]


def test_a_topic_without_the_prefix_or_too_long_with_it_is_acknowledged_and_not_moved() -> None:
    world = connected(out=["# local plant/ remote factory/"])
    world.local.publish("plant", b"the parent level", 2)
    world.local.publish("plant/" + "x" * 65_529, b"too long", 2)
    world.local.publish("plant/1", b"moved", 2)
    world.run()
    assert [each.topic_name for each in world.remote.accepted] == ["factory/1"]
    assert world.core.to_remote.counters.unmatched == 2
    assert world.local.session.in_flight == 0


def test_messages_that_were_queued_for_a_rule_that_is_gone_are_not_moved() -> None:
    world = connected(out=["a/#", "b/#"])
    world.cut(0)
    world.local.publish("b/1", b"x", 2)
    world.local.publish("a/1", b"y", 2)
    world.out = ["a/#"]
    world.crash()
    world.run()
    assert world.remote.payloads() == [b"y"]
    assert set(world.local.subscriptions) == {"a/#"}
    assert world.local.session.in_flight == 0


# --- exactly once ---------------------------------------------------------------------------------


def traffic(world: BridgeWorld) -> None:
    """A few messages in both directions, with one commit for nearly each step."""
    for number in range(3):
        world.local.publish("plant/1", b"%d" % number, 2)
        world.remote.publish("jobs/1", b"%d" % number, 2)


def crashing(at: int, *, is_applied: bool) -> int:
    """A run whose bridge crashes at one commit, before or after it is applied. All commits."""
    world = connected(**BOTH_WAYS)
    world.hold()
    world.commits = 0
    traffic(world)
    has_crashed = False
    while True:
        happened = False
        for index in (0, 1):
            if not world.sides[index][1].is_open:
                world.connect(index)
            happened = world.send(index) or happened
            happened = world.receive(index) or happened
        if world.store.held:
            happened = True
            if not has_crashed and world.commits == at:
                has_crashed = True
                if is_applied:
                    world.database.apply([world.store.held[0]])
                world.crash()
            else:
                world.commit()
        if not happened:
            break
    assert world.remote.payloads() == world.local.payloads() == numbered(3)
    return world.commits


@pytest.mark.parametrize("is_applied", [False, True], ids=["before", "after"])
def test_a_crash_at_any_commit_neither_loses_nor_duplicates(is_applied: bool) -> None:
    commits = crashing(-1, is_applied=is_applied)
    assert commits > 5
    for at in range(commits):
        crashing(at, is_applied=is_applied)


def history(seed: int, *, versions: tuple[int, int], limits: QueueLimits) -> BridgeWorld:
    """Cuts, crashes and commits at any time; then all is repaired."""
    chance = random.Random(seed)
    world = connected(
        versions=versions, limits=limits, receive_maximum=3, windows=(2, 4), **BOTH_WAYS
    )
    world.hold()
    sent = [0, 0, 0, 0]
    for _ in range(400):
        index = chance.randrange(2)
        core, broker = world.sides[index][0], (world.local, world.remote)[index]
        what = chance.randrange(100)
        if what < 25:
            qos = chance.choice((1, 2))
            kind = index * 2 + qos - 1
            topic = f"{('plant', 'jobs')[index]}/{qos}"
            broker.publish(topic, b"%d" % sent[kind], qos)
            sent[kind] += 1
        elif what < 45:
            world.send(index)
        elif what < 70:
            world.receive(index, chance.choice((1, 3, 20, None)))
        elif what < 90:
            world.commit()
        elif what < 96:
            if not broker.is_open:
                world.connect(index)
        elif what < 98:
            world.cut(index)
        else:
            world.crash()
        assert world.core.to_remote.held <= 100
        assert len(core.session.backlog) <= limits.messages
    # What is partly received, or was cut off in the middle, is sent again.
    world.cut(0)
    world.cut(1)
    world.run()
    for index, broker in ((1, world.remote), (0, world.local)):
        source = 1 - index
        prefix = ("from-a/plant", "from-b/jobs")[source]
        assert broker.payloads(f"{prefix}/2") == numbered(sent[source * 2 + 1])
        at_least_once = broker.payloads(f"{prefix}/1")
        assert list(dict.fromkeys(at_least_once)) == numbered(sent[source * 2])
    assert world.core.to_remote.queued == world.core.to_local.queued == 0
    return world


@pytest.mark.slow
@VERSIONS
@pytest.mark.parametrize(
    "limits", [PLENTY, QueueLimits(2, 1 << 30, 1 << 30)], ids=["roomy", "tight"]
)
def test_no_history_of_cuts_and_crashes_loses_or_duplicates_at_qos_2(
    versions: tuple[int, int], limits: QueueLimits
) -> None:
    for seed in range(repeats(60, 12)):
        history(seed, versions=versions, limits=limits)


@pytest.mark.parametrize("index", [0, 1])
def test_a_lost_session_loses_and_duplicates_only_what_was_on_its_way(index: int) -> None:
    world = connected(**BOTH_WAYS)
    world.local.publish("plant/1", b"before", 2)
    world.remote.publish("jobs/1", b"before", 2)
    world.run()
    core = world.sides[index][0]
    (world.local, world.remote)[index].lose_session()
    core.on_connection_lost(world.now)
    world.run()
    assert core.sessions_lost == 1
    # The subscriptions are made again.
    world.local.publish("plant/1", b"after", 2)
    world.remote.publish("jobs/1", b"after", 2)
    world.run()
    assert world.remote.payloads() == world.local.payloads() == [b"before", b"after"]


def test_messages_that_a_destination_had_not_acknowledged_survive_its_lost_session() -> None:
    world = connected()
    world.cut(1)
    for payload in numbered(3):
        world.local.publish("t", payload, 2)
    world.receive(0)
    world.remote.lose_session()
    world.run()
    assert world.remote.payloads() == numbered(3)


# --- bounds ---------------------------------------------------------------------------------------


def test_at_the_bound_the_source_keeps_its_messages() -> None:
    world = connected(limits=QueueLimits(2, 1 << 30, 1 << 30), receive_maximum=3)
    world.cut(1)
    for payload in numbered(10):
        world.local.publish("t", payload, 2)
    while world.receive(0) or world.send(0):
        pass
    # Two are stored, three are held without an acknowledgement, and the source has the others.
    assert world.core.to_remote.queued == 2
    assert world.core.to_remote.held == 3
    assert len(world.local.session.backlog) == 5
    world.run()
    assert world.remote.payloads() == numbered(10)
    assert world.core.to_remote.held == world.core.to_remote.held_bytes == 0


def test_the_queue_is_bounded_by_bytes_too() -> None:
    world = connected(limits=QueueLimits(1_000, 10, 1 << 30), receive_maximum=3)
    world.cut(1)
    for payload in (b"x" * 20, b"y" * 20):
        world.local.publish("t", payload, 1)
    while world.receive(0) or world.send(0):
        pass
    assert (world.core.to_remote.queued, world.core.to_remote.held) == (1, 1)
    assert world.core.to_remote.held_bytes > 20
    world.run()
    assert world.remote.payloads() == [b"x" * 20, b"y" * 20]


def test_full_queues_on_both_sides_drain() -> None:
    """Acknowledgements are read behind messages that cannot be moved."""
    limits = QueueLimits(1, 1 << 30, 1 << 30)
    world = connected(limits=limits, receive_maximum=2, windows=(1, 1), **BOTH_WAYS)
    for number in range(20):
        world.local.publish("plant/1", b"%d" % number, 2)
        world.remote.publish("jobs/1", b"%d" % number, 2)
    world.run()
    assert world.remote.payloads() == world.local.payloads() == numbered(20)


def test_what_is_held_is_forgotten_with_the_connection_and_comes_again() -> None:
    world = connected(limits=QueueLimits(1, 1 << 30, 1 << 30))
    world.cut(1)
    for number, qos in enumerate((2, 2, 1)):
        world.local.publish("t", b"%d" % number, qos)
    while world.receive(0) or world.send(0):
        pass
    assert world.core.to_remote.held == 2
    world.cut(0)
    assert world.core.to_remote.held == world.core.to_remote.held_bytes == 0
    world.run()
    assert sorted(world.remote.payloads()) == numbered(3)


def test_too_many_held_bytes_are_reported() -> None:
    world = connected(versions=(MQTT311, MQTT5), limits=QueueLimits(1, 1 << 30, 100))
    world.cut(1)
    world.local.publish("t", b"x" * 30, 1)
    world.local.publish("t", b"x" * 30, 1)
    world.receive(0)
    found = [world.core.to_remote.is_overloaded]
    world.local.publish("t", b"x" * 80, 1)
    world.receive(0)
    found.append(world.core.to_remote.is_overloaded)
    world.cut(0)
    found.append(world.core.to_remote.is_overloaded)
    assert found == [False, True, False]


def test_qos_0_is_dropped_and_counted_without_a_connection_to_the_destination() -> None:
    world = connected()
    world.local.publish("t", b"moved", 0)
    world.run()
    world.cut(1)
    world.local.publish("t", b"dropped", 0)
    world.receive(0)
    world.run()
    assert world.remote.payloads() == [b"moved"]
    counters = world.core.to_remote.counters
    assert (counters.moved, counters.dropped) == (1, 1)
    assert (counters.not_connected, counters.no_room) == (1, 0)


def test_qos_0_without_room_on_the_connection_is_dropped_and_counted_by_its_own_reason() -> None:
    world = connected()
    # As a link sets it while the other end does not read.
    world.core.remote.session.room = 0
    world.local.publish("t", b"dropped", 0)
    world.local.publish("t", b"queued", 2)
    world.receive(0)
    counters = world.core.to_remote.counters
    assert (counters.not_connected, counters.no_room) == (0, 1)
    assert counters.moved_by_qos == [0, 0, 1]
    assert world.core.to_remote.queued_bytes > len(b"queued")


# --- loops ----------------------------------------------------------------------------------------


def test_what_came_from_either_broker_is_not_moved_again() -> None:
    world = connected()
    for path in ("b", "a", "x>b>y", "x>a"):
        properties = Properties(user_properties=[(PATH_PROPERTY, path)])
        world.local.publish("t", path.encode(), 2, properties=properties)
    properties = Properties(user_properties=[(PATH_PROPERTY, "x>y")])
    world.local.publish("t", b"moved", 2, properties=properties)
    world.run()
    (moved,) = world.remote.accepted
    assert moved.payload == b"moved"
    assert moved.properties.user_properties == ((PATH_PROPERTY, "x>y>a"),)
    assert world.core.to_remote.counters.looped == 4
    assert world.local.session.in_flight == 0


@pytest.mark.parametrize(
    ("path", "is_moved"),
    [
        (">".join("n" * MAXIMUM_HOPS), False),
        (">".join("n" * (MAXIMUM_HOPS - 1)), True),
        ("n" * 64 + ".remote", True),
        ("n" * 64 + ".remote2", False),
        ("n" * 65_535, False),
        (">" * 65_535, False),
        ("", True),
    ],
)
def test_a_path_is_bounded(path: str, is_moved: bool) -> None:
    world = connected()
    properties = Properties(user_properties=[(PATH_PROPERTY, path)])
    world.local.publish("t", b"x", 2, properties=properties)
    world.run()
    assert len(world.remote.accepted) == is_moved
    assert world.core.to_remote.counters.looped == (not is_moved)


def test_a_ring_of_three_brokers_gets_each_message_once() -> None:
    """Messages go from broker to broker by hand: each bridge ends in the broker of the next."""
    names = ("a", "b"), ("b", "c"), ("c", "a")
    worlds = [connected(names=pair) for pair in names]
    worlds[0].local.publish("t", b"x", 2)
    for _ in range(5):
        for at, world in enumerate(worlds):
            world.run()
            following: SimulatedBroker = worlds[(at + 1) % 3].local
            for packet in world.remote.accepted:
                following.publish("t", packet.payload, 2, properties=packet.properties)
            world.remote.accepted.clear()
    moved = [world.core.to_remote.counters.moved for world in worlds]
    looped = [world.core.to_remote.counters.looped for world in worlds]
    assert moved == [1, 1, 0]
    assert looped == [0, 0, 1]

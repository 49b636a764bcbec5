"""Limits that each listener sets for its own clients: levels, subscriptions, messages in flight."""

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Properties,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from tests.broker.core.test_rate_limits import code, limits, open_at
from tests.broker.world import Client, World


def codes(client: Client, *filters: str) -> list[int]:
    (suback,) = client.send(Subscribe(1, [Subscription(each, 0) for each in filters]))
    assert isinstance(suback, SubAck)
    return list(suback.reasons)


def flat_and_deep(world: World, version: int = MQTT5) -> tuple[Client, Client]:
    """A client of a listener with two levels, and one of a listener with ten."""
    clients = (
        open_at(world, limits("flat", topic_levels=2), version=version),
        open_at(world, limits("deep", topic_levels=10), version=version),
    )
    assert [code(each, each.connection.listener) for each in clients] == [0, 0]
    return clients


@pytest.mark.parametrize("packet", ["publish", "subscribe", "unsubscribe"])
def test_a_listener_has_its_own_limit_of_levels(packet: str) -> None:
    def send(client: Client, topic: str) -> None:
        if packet == "publish":
            client.send(Publish(topic, b"x"))
        elif packet == "subscribe":
            client.send(Subscribe(1, [Subscription(topic, 0)]))
        else:
            client.send(Unsubscribe(1, [topic]))

    world = World()
    flat, deep = flat_and_deep(world)
    send(flat, "a/b")
    send(deep, "a/b/c")
    assert not flat.is_closed()
    assert not deep.is_closed()
    send(flat, "a/b/c")
    assert flat.is_closed()
    assert not deep.is_closed()


def test_the_levels_of_a_will_are_limited_by_its_listener() -> None:
    world = World()
    for listener, topic, reason in (
        ("flat", "a/b", 0),
        ("flat", "a/b/c", 0x90),
        ("deep", "a/b/c", 0),
    ):
        levels = 2 if listener == "flat" else 10
        client = open_at(world, limits(listener, topic_levels=levels))
        connack = client.send(Connect("w", will=Will(topic, b"x")))[0]
        assert isinstance(connack, ConnAck)
        assert connack.reason == reason


@pytest.mark.parametrize("qos", [0, 1])
def test_a_topic_that_another_listener_allows_is_not_allowed_by_the_hot_path(qos: int) -> None:
    world = World()
    flat, deep = flat_and_deep(world)
    reader = world.connect("reader")
    reader.subscribe("a/#")
    hot_path = world.broker.hot_path
    assert hot_path is not None

    def publish(client: Client, topic: str, packet_id: int) -> None:
        client.send(Publish(topic, b"x", qos, packet_id if qos else 0))

    for packet_id in (1, 2, 3):
        publish(deep, "a/b/c", packet_id)
        publish(deep, "a/b", packet_id + 10)
    taken = hot_path.taken
    assert taken > 0
    publish(flat, "a/b", 1)
    assert hot_path.taken == taken + 1
    assert not flat.is_closed()
    reader.take()
    publish(flat, "a/b/c", 2)
    assert flat.is_closed()
    assert [each for each in reader.take() if isinstance(each, Publish)] == []


@pytest.mark.parametrize(("version", "refused"), [(MQTT311, 0x80), (MQTT5, 0x97)])
def test_a_listener_has_its_own_limit_of_subscriptions(version: int, refused: int) -> None:
    world = World()
    few = open_at(world, limits("few", maximum_subscriptions=2), version=version)
    many = open_at(world, limits("many", maximum_subscriptions=3), version=version)
    assert (code(few, "few"), code(many, "many")) == (0, 0)
    assert codes(few, "1", "2", "3") == [0, 0, refused]
    assert codes(many, "1", "2", "3") == [0, 0, 0]
    # An existing one may be replaced.
    assert codes(few, "2") == [0]


def test_a_session_keeps_subscriptions_from_another_listener() -> None:
    world = World()
    kept = Properties(session_expiry_interval=100)
    many = open_at(world, limits("many", maximum_subscriptions=3))
    many.send(Connect("a", properties=kept))
    assert codes(many, "1", "2", "3") == [0, 0, 0]
    few = open_at(world, limits("few", maximum_subscriptions=2))
    (connack,) = few.send(Connect("a", clean_start=False, properties=kept))
    assert isinstance(connack, ConnAck)
    assert connack.session_present
    assert codes(few, "4", "3") == [0x97, 0]


def test_a_listener_has_its_own_limit_of_messages_in_flight() -> None:
    world = World()
    one = open_at(world, limits("one", maximum_inflight_messages=1))
    three = open_at(world, limits("three", maximum_inflight_messages=3))
    assert (code(one, "one"), code(three, "three")) == (0, 0)
    publisher = world.connect("publisher")
    for client in (one, three):
        client.subscribe("t", qos=1)
    for packet_id in range(1, 6):
        publisher.send(Publish("t", b"x", 1, packet_id))
    found = [each for each in one.take() if isinstance(each, Publish)]
    assert (len(found), len(three.take())) == (1, 3)
    # What is acknowledged makes room.
    assert len(one.send(PubAck(found[0].packet_id))) == 1

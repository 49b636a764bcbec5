"""Topic aliases from the broker to its clients [3.3.2.3.4]."""

import pytest

from semel.broker.settings import BrokerSettings
from semel.mqtt import MQTT311, Packet, Properties, Publish, Subscribe, Subscription
from tests.broker.world import Client, World


def subscriber(world: World, maximum: int | None, size: int | None = None) -> Client:
    properties = Properties(topic_alias_maximum=maximum, maximum_packet_size=size)
    client = world.connect("s", properties=properties)
    client.subscribe("#", qos=1)
    return client


def seen(packets: list[Packet]) -> list[tuple[str, int | None, bytes]]:
    return [
        (packet.topic_name, packet.properties.topic_alias, packet.payload)
        for packet in packets
        if isinstance(packet, Publish)
    ]


def test_a_topic_is_named_once_and_then_by_its_alias() -> None:
    world = World()
    client = subscriber(world, 10)
    publisher = world.connect("p", MQTT311)
    for number in (b"1", b"2", b"3"):
        publisher.send(Publish("sensors/1", number), Publish("sensors/2", number))
    assert seen(client.take()) == [
        ("sensors/1", 1, b"1"),
        ("sensors/2", 2, b"1"),
        ("", 1, b"2"),
        ("", 2, b"2"),
        ("", 1, b"3"),
        ("", 2, b"3"),
    ]


def test_an_alias_is_never_above_what_the_client_permits() -> None:
    """[MQTT-3.1.2-26]"""
    world = World()
    client = subscriber(world, 1)
    publisher = world.connect("p")
    for _ in range(2):
        publisher.send(Publish("sensors/1"), Publish("sensors/2"))
    assert seen(client.take()) == [
        ("sensors/1", 1, b""),
        ("sensors/2", None, b""),
        ("", 1, b""),
        ("sensors/2", None, b""),
    ]


@pytest.mark.parametrize("maximum", [None, 0])
def test_a_client_that_permits_none_is_sent_none(maximum: int | None) -> None:
    """[MQTT-3.1.2-27]"""
    world = World()
    client = subscriber(world, maximum)
    publisher = world.connect("p")
    for _ in range(2):
        publisher.send(Publish("sensors/1"))
    assert seen(client.take()) == [("sensors/1", None, b"")] * 2


def test_the_setting_bounds_them_too() -> None:
    world = World(BrokerSettings(client_topic_aliases=0))
    client = subscriber(world, 10)
    world.connect("p").send(Publish("sensors/1"))
    assert seen(client.take()) == [("sensors/1", None, b"")]


def test_aliases_end_with_their_connection() -> None:
    """[MQTT-3.3.2-7]"""
    world = World()
    publisher = world.connect("p")
    for _ in range(2):
        client = subscriber(world, 10)
        publisher.send(Publish("sensors/1"))
        assert seen(client.take()) == [("sensors/1", 1, b"")]
        client.cut()


def test_the_publishers_alias_is_not_the_subscribers() -> None:
    world = World()
    client = subscriber(world, 10)
    publisher = world.connect("p")
    publisher.send(Publish("first/one"))
    publisher.send(Publish("sensors/1", properties=Properties(topic_alias=1)))
    publisher.send(Publish("", b"x", properties=Properties(topic_alias=1)))
    assert seen(client.take()) == [("first/one", 1, b""), ("sensors/1", 2, b""), ("", 2, b"x")]


def test_a_packet_that_an_alias_would_make_too_large_goes_without() -> None:
    """[MQTT-3.1.2-24] 20 bytes are taken, 23 are not"""
    world = World()
    client = subscriber(world, 10, 20)
    publisher = world.connect("p")
    publisher.send(Publish("sensors/1", bytes(6)))
    publisher.send(Publish("sensors/1", bytes(3)))
    publisher.send(Publish("sensors/1", bytes(6)))
    assert seen(client.take()) == [
        ("sensors/1", None, bytes(6)),
        ("sensors/1", 1, bytes(3)),
        ("", 1, bytes(6)),
    ]


def test_a_short_topic_is_not_worth_an_alias() -> None:
    world = World()
    client = subscriber(world, 10)
    world.connect("p").send(Publish("a/b"), Publish("a/bc"))
    assert seen(client.take()) == [("a/b", None, b""), ("a/bc", 1, b"")]


def test_retained_messages_and_all_qos_use_aliases() -> None:
    world = World()
    publisher = world.connect("p")
    publisher.send(Publish("sensors/1", b"kept", qos=1, packet_id=1, retain=True))
    client = world.connect("s", properties=Properties(topic_alias_maximum=5))
    _, kept = client.send(Subscribe(1, [Subscription("sensors/#", 2)]))
    assert seen([kept]) == [("sensors/1", 1, b"kept")]
    publisher.send(Publish("sensors/1", b"2", qos=2, packet_id=1))
    assert seen(client.take()) == [("", 1, b"2")]


def test_the_broker_gives_aliases_to_no_more_bytes_than_it_may_keep() -> None:
    world = World(BrokerSettings(maximum_alias_bytes=1_000))
    client = subscriber(world, 10)
    publisher = world.connect("p")
    long = "t" * 600
    for _ in range(2):
        publisher.send(Publish(long), Publish("u" * 600), Publish("short"))
    assert seen(client.take()) == [
        (long, 1, b""),
        ("u" * 600, None, b""),
        ("short", 2, b""),
        ("", 1, b""),
        ("u" * 600, None, b""),
        ("", 2, b""),
    ]

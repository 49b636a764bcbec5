"""Many retained messages reach a new subscriber however many there are, at its own pace."""

import pytest

from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    Packet,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
    Unsubscribe,
    encode,
)
from tests.broker.world import Client, World

MANY = 40


def filled(settings: BrokerSettings | None = None, *, qos: int = 0) -> World:
    """A broker with retained messages of 100 bytes and a bit."""
    world = World(settings or BrokerSettings(maximum_outgoing_bytes=1_000))
    publisher = world.connect("p")
    for number in range(MANY):
        publisher.send(retained(number, qos=qos))
    publisher.cut()
    return world


def retained(number: int, text: bytes = b"old", *, qos: int = 0) -> Publish:
    payload = text + bytes(100)
    return Publish(f"t/{number:02}", payload, qos, 1 if qos else 0, retain=True)


def topics(packets: list[Packet]) -> list[str]:
    return [packet.topic_name for packet in packets if isinstance(packet, Publish)]


ALL = [f"t/{number:02}" for number in range(MANY)]


def test_a_subscriber_gets_all_of_them_as_it_reads() -> None:
    world = filled()
    client = world.connect("s")
    first = topics(client.subscribe("#"))
    assert 5 < len(first) < 15
    while len(first) < MANY:
        before = len(first)
        world.tick()
        first += topics(client.take())
        assert len(first) > before
    assert first == ALL
    assert world.broker.router.dropped == 0
    world.tick()
    assert client.take() == []


def test_nothing_more_comes_while_it_does_not_read() -> None:
    world = filled()
    client = world.connect("s")
    client.unread = 1_000
    first = client.subscribe("#")
    for _ in range(5):
        world.tick()
    assert client.take() == []
    client.unread = 0
    for _ in range(10):
        world.tick()
    assert topics(first + client.take()) == ALL


def test_qos_1_goes_as_it_is_acknowledged() -> None:
    settings = BrokerSettings(maximum_queued_messages=5)
    world = filled(settings, qos=1)
    client = world.connect("s", properties=Properties(receive_maximum=3))
    got = client.subscribe("#", qos=1)
    seen = topics(got)
    assert len(seen) == 3
    while len(seen) < MANY:
        got = client.send(*(PubAck(p.packet_id) for p in got if isinstance(p, Publish)))
        seen += topics(got)
    assert seen == ALL
    assert world.broker.router.dropped == 0


def test_a_message_that_was_replaced_meanwhile_is_not_sent_late() -> None:
    world = filled()
    client = world.connect("s")
    first = client.subscribe("#")
    publisher = world.connect("p")
    publisher.send(retained(39, b"new"), retained(38, b""))
    for _ in range(10):
        world.tick()
    packets = [p for p in first + client.take() if isinstance(p, Publish)]
    last = [p.payload[:3] for p in packets if p.topic_name == "t/39"]
    assert last == [b"new"]
    assert sorted(set(topics(list(packets)))) == ALL


def test_what_is_left_at_qos_0_goes_with_the_connection_and_the_rest_stays() -> None:
    for qos, more in ((0, False), (1, True)):
        world = filled(BrokerSettings(maximum_outgoing_bytes=1_000), qos=1)
        kept = Properties(session_expiry_interval=100)
        client = world.connect("s", properties=kept)
        first = topics(client.subscribe("#", qos=qos))
        client.cut()
        client = world.connect("s", clean_start=False, present=True, properties=kept)
        for _ in range(20):
            world.tick()
        rest = set(topics(client.take()))
        assert set(first) | rest == set(ALL) if more else not rest


def test_who_subscribes_again_and_again_and_does_not_read_gets_them_once_from_then_on() -> None:
    world = filled(BrokerSettings(maximum_outgoing_bytes=1_000))
    client: Client = world.connect("s")
    client.unread = 1_000
    first = client.subscribe("#")
    for number in range(2, 6):
        first += client.send(Subscribe(number, [Subscription("#")]))
    client.unread = 0
    for _ in range(20):
        world.tick()
    assert topics(client.take()) == ALL
    # the control: who has got them all gets them again [MQTT-3.8.4-4]
    again = topics(client.subscribe("#", packet_id=9))
    for _ in range(20):
        world.tick()
    assert again + topics(client.take()) == ALL


def test_equal_filters_in_one_subscribe_bring_the_messages_once() -> None:
    world = filled()
    client = world.connect("s")
    got = client.send(Subscribe(1, [Subscription("#") for _ in range(50)]))
    for _ in range(20):
        world.tick()
    assert topics(got + client.take()) == ALL


def test_a_filter_that_is_given_up_brings_nothing_more() -> None:
    world = filled()
    client = world.connect("s")
    first = topics(client.subscribe("#"))
    assert len(first) < MANY
    client.send(Unsubscribe(2, ["#"]))
    for _ in range(20):
        world.tick()
    assert topics(client.take()) == []


def test_a_tick_searches_for_a_bounded_time_and_the_next_one_goes_on() -> None:
    world = World()
    publisher = world.connect("p")
    names = [f"t/{number}" for number in range(3_000)]
    for name in names:
        publisher.send(Publish(name, b"x", retain=True))
    clients = [world.connect(f"s{number}") for number in range(3)]
    got = [client.send(Subscribe(1, [Subscription("#")])) for client in clients]
    assert max(len(topics(packets)) for packets in got) < 600
    ticks = 0
    while world.broker.router.dirty:
        world.tick()
        ticks += 1
    assert ticks > 5
    for packets, client in zip(got, clients, strict=True):
        assert topics(packets + client.take()) == names


def test_a_search_that_meets_many_topics_for_nothing_goes_on() -> None:
    world = World()
    publisher = world.connect("p")
    names = [*(f"t{number}/a" for number in range(300)), "last/b"]
    for name in names:
        publisher.send(Publish(name, b"x", retain=True))
    assert topics(world.connect("s").subscribe("+/b")) == ["last/b"]


def many_retained(count: int = 3_000) -> tuple[World, list[str]]:
    world = World()
    publisher = world.connect("p")
    names = [f"t/{number}" for number in range(count)]
    for name in names:
        publisher.send(Publish(name, b"x", retain=True))
    return world, names


@pytest.mark.slow
def test_who_subscribes_again_and_again_does_not_keep_retained_messages_from_others() -> None:
    """Each of the attacker's searches begins anew, and none of them ever ends."""
    world, names = many_retained()
    attacker, one, every = (world.connect(name) for name in ("attacker", "one", "every"))
    got: list[str] = []
    for tick in range(60):
        again = encode(Subscribe(tick + 1, [Subscription("#")]))
        world.broker.receive(attacker.connection, again, world.now)
        if tick == 5:
            # In the same tick as its SUBACK.
            assert topics(one.subscribe("t/7")) == ["t/7"]
        if tick == 6:
            got = topics(every.subscribe("#"))
        world.tick()
        got += topics(every.take())
        attacker.take()
    assert got == names


@pytest.mark.slow
def test_of_many_that_search_each_gets_some_before_one_gets_twice_as_much() -> None:
    world, names = many_retained(2_000)
    clients = [world.connect(f"s{number}") for number in range(20)]
    for client in clients:
        world.broker.receive(client.connection, encode(Subscribe(1, [Subscription("#")])), 0.0)
    world.flush()
    before = [len(topics(client.take())) for client in clients]
    for _ in range(5):
        world.flush()
    counts = [len(topics(client.take())) for client in clients]
    assert min(counts) > 0
    assert max(counts) <= 2 * min(counts)
    # and a tick does no more than it may: eight shares of 2,500
    assert sum(counts) <= 5 * 8 * 2_500 // 40
    while world.broker.router.dirty:
        world.flush()
    rest = [len(topics(client.take())) for client in clients]
    total = [sum(each) for each in zip(before, counts, rest, strict=True)]
    assert total == [len(names)] * 20

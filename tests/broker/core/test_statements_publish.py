"""What the standard's chapters 3.3 and 4 have the broker do with messages."""

import pytest

from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    Disconnect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
)
from tests.broker.core.test_core import KEPT, VERSIONS, payloads, persistent
from tests.broker.world import World


def identifiers(packet: Packet) -> list[int]:
    """The Subscription Identifiers of a PUBLISH."""
    assert isinstance(packet, Publish)
    return sorted(packet.properties.subscription_identifiers)


# --- retained messages ----------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_replaces_the_one_before_and_keeps_its_qos(
    version: int, qos: int
) -> None:
    """[MQTT-3.3.1-5] of both versions, [MQTT-3.3.1-7] (3.1.1): also if the new one has QoS 0"""
    world = World()
    publisher = world.connect("p", version)
    publisher.send(Publish("t", b"old", qos=1, packet_id=1, retain=True))
    publisher.send(Publish("t", b"new", qos=qos, packet_id=2 if qos else 0, retain=True))
    late = world.connect("l", version)
    packet_id = 1 if qos else 0
    expected = Publish("t", b"new", qos=qos, packet_id=packet_id, retain=True)
    assert late.subscribe("t", qos=2) == [expected]


@VERSIONS
def test_a_new_subscription_brings_the_retained_message_of_each_topic_that_it_matches(
    version: int,
) -> None:
    """[MQTT-3.3.1-6] (3.1.1) [MQTT-3.3.1-9] (5.0)"""
    world = World()
    publisher = world.connect("p", version)
    for topic in ("t/1", "t/2", "t/2/3", "u/1"):
        publisher.send(Publish(topic, topic.encode(), retain=True))
    got = world.connect("l", version).subscribe("t/+")
    assert sorted(payloads(got)) == [b"t/1", b"t/2"]


@VERSIONS
def test_retain_is_1_on_what_a_new_subscription_brings_and_0_on_what_an_old_one_does(
    version: int,
) -> None:
    """[MQTT-3.3.1-8] [MQTT-3.3.1-9] (3.1.1) [MQTT-3.3.1-12] (5.0)"""
    world = World()
    early, publisher = world.connect("e", version), world.connect("p", version)
    early.subscribe("t")
    publisher.send(Publish("t", b"x", retain=True), Publish("t", b"y"))
    assert early.take() == [Publish("t", b"x"), Publish("t", b"y")]
    assert world.connect("l", version).subscribe("t") == [Publish("t", b"x", retain=True)]


@VERSIONS
def test_an_empty_retained_message_goes_to_subscribers_and_deletes(version: int) -> None:
    """[MQTT-3.3.1-10] [MQTT-3.3.1-11] (3.1.1) [MQTT-3.3.1-6] [MQTT-3.3.1-7] (5.0)"""
    world = World()
    early, publisher = world.connect("e", version), world.connect("p", version)
    publisher.send(Publish("t", b"x", retain=True), Publish("u", b"x", retain=True))
    early.subscribe("t", "u")
    early.take()
    publisher.send(Publish("t", b"", retain=True))
    assert early.take() == [Publish("t", b"")]
    late = world.connect("l", version)
    assert late.subscribe("t", "u") == [Publish("u", b"x", retain=True)]
    assert len(world.broker.router.retained) == 1


@VERSIONS
@pytest.mark.parametrize("payload", [b"new", b""])
def test_a_message_with_retain_0_leaves_what_is_retained_alone(
    version: int, payload: bytes
) -> None:
    """[MQTT-3.3.1-12] (3.1.1) [MQTT-3.3.1-8] (5.0)"""
    world = World()
    publisher = world.connect("p", version)
    publisher.send(Publish("t", b"old", retain=True))
    publisher.send(Publish("t", payload), Publish("u", payload))
    late = world.connect("l", version)
    assert late.subscribe("t", "u") == [Publish("t", b"old", retain=True)]


@VERSIONS
@pytest.mark.parametrize("ends", ["disconnect", "lost", "clean start"])
def test_a_retained_message_outlives_the_session_that_sent_it(version: int, ends: str) -> None:
    """[MQTT-3.1.2-7] (3.1.1)"""
    world = World()
    publisher = world.connect("p", version)
    publisher.send(Publish("t", b"x", retain=True))
    if ends == "disconnect":
        publisher.send(Disconnect())
    elif ends == "lost":
        publisher.cut()
    else:
        world.connect("p", version)
    assert ("p" in world.broker.router.sessions) == (ends == "clean start")
    world.wait(100)
    assert payloads(world.connect("l", version).subscribe("t")) == [b"x"]


# --- who gets a message ---------------------------------------------------------------------------


@VERSIONS
def test_a_client_gets_what_one_of_its_filters_matches_and_nothing_else(version: int) -> None:
    """[MQTT-3.3.2-3]"""
    world = World()
    client, idle = world.connect("a", version), world.connect("i", version)
    client.subscribe("a/+", "b/#", "c", "+/d/+")
    right = ["a/1", "a/", "b", "b/1", "b/1/2", "c", "x/d/y", "/d/"]
    wrong = ["a", "a/1/2", "bb", "c/", "C", "x/d", "x/d/y/z", "/a/1", "$SYS/d/x", "$a/d/x"]
    publisher = world.connect("p", version)
    for topic in [*right, *wrong]:
        publisher.send(Publish(topic, b"x"))
    assert [p.topic_name for p in client.take() if isinstance(p, Publish)] == right
    assert idle.take() == []


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_an_acknowledged_message_is_in_every_session_that_has_a_matching_subscription(
    version: int, qos: int
) -> None:
    """[MQTT-4.5.0-1]: connected and absent ones; not in one that asks for something else"""
    world = World()
    here, away, other = (persistent(world, name, version) for name in ("h", "a", "o"))
    for client in (here, away):
        client.subscribe("t/#", qos=2)
    other.subscribe("u", qos=2)
    away.cut()
    publisher = world.connect("p", version)
    answer = PubAck(1) if qos == 1 else PubRec(1)
    assert publisher.send(Publish("t", b"x", qos=qos, packet_id=1)) == [answer]
    expected = [Publish("t", b"x", qos=qos, packet_id=1)]
    assert here.take() == expected
    assert persistent(world, "a", version, present=True).take() == expected
    assert other.take() == []


@VERSIONS
def test_an_absent_session_is_kept_its_qos_1_and_2_messages(version: int) -> None:
    """[MQTT-3.1.2-5] (3.1.1)"""
    world = World()
    client = persistent(world, "a", version)
    client.subscribe("t", qos=2)
    client.send(Disconnect())
    publisher = world.connect("p", version)
    publisher.send(Publish("t", b"1", qos=1, packet_id=1), Publish("u", b"u", qos=1, packet_id=2))
    publisher.send(Publish("t", b"2", qos=2, packet_id=3))
    world.wait(100)
    assert persistent(world, "a", version, present=True).take() == [
        Publish("t", b"1", qos=1, packet_id=1),
        Publish("t", b"2", qos=2, packet_id=2),
    ]


@VERSIONS
def test_overlapping_subscriptions_bring_the_highest_of_their_qos(version: int) -> None:
    """[MQTT-3.3.5-1] (3.1.1) [MQTT-3.3.4-2] (5.0)"""
    world = World()
    client = world.connect("a", version)
    client.send(Subscribe(1, [Subscription("t/#", 0), Subscription("t/1", 2)]))
    publisher = world.connect("p", version)
    publisher.send(Publish("t/1", b"both", qos=2, packet_id=1))
    publisher.send(Publish("t/2", b"one", qos=2, packet_id=2))
    assert [p.qos for p in client.take() if isinstance(p, Publish)] == [2, 0]


# --- order ----------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic", ["t", "a/b/c", "/", "$x/y"])
def test_messages_of_a_publisher_arrive_in_their_order(version: int, qos: int, topic: str) -> None:
    """[MQTT-4.6.0-5] [MQTT-4.6.0-6] of both versions: on any topic, at any QoS"""
    world = World()
    client = world.connect(
        "a", version, properties=Properties(receive_maximum=3) if version == MQTT5 else None
    )
    client.subscribe(topic, qos=2)
    publisher = world.connect("p", version)
    for number in range(1, 20):
        packet_id = number if qos else 0
        publisher.send(Publish(topic, b"%d" % number, qos=qos, packet_id=packet_id))
        if qos == 2:
            publisher.send(PubRel(number))
    received: list[Packet] = []
    arrived = client.take()
    while arrived:
        received += arrived
        answers: list[Packet] = []
        for packet in arrived:
            if isinstance(packet, PubRel):
                answers.append(PubComp(packet.packet_id))
            elif isinstance(packet, Publish) and packet.qos:
                ack = PubAck if packet.qos == 1 else PubRec
                answers.append(ack(packet.packet_id))
        arrived = client.send(*answers) if answers else []
    assert payloads(received) == [b"%d" % number for number in range(1, 20)]


@VERSIONS
def test_the_order_holds_over_a_reconnection(version: int) -> None:
    """[MQTT-4.6.0-5] (5.0) [MQTT-4.6.0-6] (3.1.1): sent again, then queued, then live"""
    world = World()
    client = persistent(world, "a", version)
    client.subscribe("t", qos=1)
    publisher = world.connect("p", version)
    publisher.send(*[Publish("t", b"%d" % n, qos=1, packet_id=n) for n in (1, 2)])
    assert payloads(client.take()) == [b"1", b"2"]
    client.cut()
    publisher.send(*[Publish("t", b"%d" % n, qos=1, packet_id=n) for n in (3, 4)])
    client = persistent(world, "a", version, present=True)
    publisher.send(Publish("t", b"5", qos=1, packet_id=5))
    assert payloads(client.take()) == [b"1", b"2", b"3", b"4", b"5"]


@VERSIONS
def test_a_qos_2_message_that_came_before_a_reconnection_is_released_after_it(
    version: int,
) -> None:
    """[MQTT-4.4.0-1]: PUBREL alone completes it, and nobody gets it twice"""
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("t")
    publisher = persistent(world, "p", version)
    assert publisher.send(Publish("t", b"x", qos=2, packet_id=7)) == [PubRec(7)]
    publisher.cut()
    publisher = persistent(world, "p", version, present=True)
    assert publisher.send(PubRel(7)) == [PubComp(7)]
    assert payloads(watcher.take()) == [b"x"]
    # From here on the identifier is a new message's.
    publisher.send(Publish("t", b"y", qos=2, packet_id=7))
    assert payloads(watcher.take()) == [b"y"]


# --- properties of 5.0 ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "properties",
    [
        Properties(payload_format_indicator=0),
        Properties(payload_format_indicator=1),
        Properties(response_topic="r/\u00e4"),
        Properties(correlation_data=b"\x00\xff"),
        Properties(correlation_data=b""),
        Properties(user_properties=[("b", "1"), ("a", "2"), ("b", "3"), ("b", "1"), ("", "")]),
        Properties(content_type="a/b"),
        Properties(content_type=""),
        Properties(),
    ],
)
def test_a_message_keeps_its_properties_live_queued_and_retained(properties: Properties) -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [-20]"""
    world = World()
    live, away = persistent(world, "l", MQTT5), persistent(world, "a", MQTT5)
    for client in (live, away):
        client.subscribe("t", qos=1)
    away.cut()
    message = Publish("t", b"x", qos=1, packet_id=1, retain=True, properties=properties)
    world.connect("p").send(message)
    late = world.connect("late").subscribe("t", qos=1)
    for got in (live.take(), persistent(world, "a", MQTT5, present=True).take(), late):
        (packet,) = got
        assert isinstance(packet, Publish)
        assert packet.properties == properties


def test_an_alias_does_not_outlive_its_connection() -> None:
    """[MQTT-3.3.2-7]: on the same connection it works, on the session's next one it does not"""
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("t")
    first = persistent(world, "a", MQTT5)
    by_alias = Publish("", b"x", properties=Properties(topic_alias=1))
    first.send(Publish("t", b"x", properties=Properties(topic_alias=1)), by_alias)
    assert len(watcher.take()) == 2
    first.cut()
    second = persistent(world, "a", MQTT5, present=True)
    answer = second.send(by_alias)
    assert [p.reason for p in answer if isinstance(p, Disconnect)] == [0x82]
    assert second.is_closed()
    assert watcher.take() == []


def test_each_alias_up_to_the_maximum_is_accepted_and_the_next_is_not() -> None:
    """[MQTT-3.3.2-12]; no alias is sent on"""
    world = World(BrokerSettings(topic_alias_maximum=5))
    watcher = world.connect("w", properties=Properties(topic_alias_maximum=100))
    watcher.subscribe("#")
    client = world.connect("a")
    for alias in range(1, 6):
        properties = Properties(topic_alias=alias)
        client.send(Publish(f"t/{alias}", b"first", properties=properties))
    for alias in range(1, 6):
        client.send(Publish("", b"second", properties=Properties(topic_alias=alias)))
    topics = [f"t/{alias}" for alias in range(1, 6)]
    assert watcher.take() == [
        *[Publish(topic, b"first") for topic in topics],
        *[Publish(topic, b"second") for topic in topics],
    ]
    answer = client.send(Publish("t/6", b"x", properties=Properties(topic_alias=6)))
    assert [p.reason for p in answer if isinstance(p, Disconnect)] == [0x94]
    assert watcher.take() == []


# --- subscription identifiers ---------------------------------------------------------------------


def test_a_publish_has_the_identifiers_of_the_subscriptions_that_caused_it_and_no_others() -> None:
    """[MQTT-3.3.4-3] [MQTT-3.3.4-4] U5-60"""
    world = World()
    client, other = world.connect("a"), world.connect("o")
    numbered = (("t/#", 1), ("t/1", 268_435_455), ("u", 3), ("t/2", 0))
    for packet_id, (topic_filter, identifier) in enumerate(numbered, start=1):
        properties = Properties(subscription_identifiers=[identifier] if identifier else [])
        subscription = [Subscription(topic_filter)]
        client.send(Subscribe(packet_id, subscription, properties=properties))
    other.send(
        Subscribe(1, [Subscription("#")], properties=Properties(subscription_identifiers=[9]))
    )
    publisher = world.connect("p")
    got = []
    for topic in ("t/1", "t/2", "u"):
        publisher.send(Publish(topic, b"x", retain=True))
        got.append([identifiers(packet) for packet in client.take()])
    assert got == [[[1, 268_435_455]], [[1]], [[3]]]
    assert [identifiers(packet) for packet in other.take()] == [[9]] * 3
    # A replaced subscription has the new identifier, or none; a retained message has it too.
    for identifier, expected in ((7, [7]), (0, [])):
        properties = Properties(subscription_identifiers=[identifier] if identifier else [])
        _, retained = client.send(Subscribe(9, [Subscription("u")], properties=properties))
        publisher.send(Publish("u", b"x"))
        assert [identifiers(packet) for packet in (retained, *client.take())] == [expected] * 2


def test_each_copy_has_the_identifier_of_its_own_subscription() -> None:
    """[MQTT-3.3.4-5]: a shared subscription makes a copy of its own"""
    world = World()
    client = world.connect("a")
    for packet_id, topic_filter in enumerate(("t", "$share/g/t", "$share/h/t"), start=1):
        properties = Properties(subscription_identifiers=[packet_id] if packet_id < 3 else [])
        client.send(Subscribe(packet_id, [Subscription(topic_filter)], properties=properties))
    world.connect("p").send(Publish("t", b"x"))
    assert sorted(identifiers(packet) for packet in client.take()) == [[], [1], [2]]


# --- shared subscriptions -------------------------------------------------------------------------


@VERSIONS
def test_a_shared_subscription_brings_no_retained_messages(version: int) -> None:
    """[4.8.2]; one that is not shared does"""
    world = World()
    publisher = world.connect("p")
    publisher.send(Publish("t", b"kept", retain=True))
    client = world.connect("a", version)
    assert client.subscribe("$share/g/t") == []
    publisher.send(Publish("t", b"live"))
    assert payloads(client.take()) == [b"live"]
    assert payloads(client.subscribe("t", packet_id=2)) == [b"kept"]


@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_member_of_a_share_gets_no_more_than_its_own_qos(granted: int) -> None:
    """[MQTT-4.8.2-3]"""
    world = World()
    member, other = world.connect("m"), world.connect("o")
    member.subscribe("$share/g/t", qos=granted)
    other.subscribe("$share/g/t", qos=2 - granted)
    publisher = world.connect("p")
    for packet_id in (1, 2, 3, 4):
        publisher.send(Publish("t", b"x", qos=2, packet_id=packet_id))
    assert [p.qos for p in member.take() if isinstance(p, Publish)] == [granted] * 2
    assert [p.qos for p in other.take() if isinstance(p, Publish)] == [2 - granted] * 2


@pytest.mark.parametrize("received", [False, True])
def test_a_qos_2_message_of_a_share_is_completed_with_the_client_that_it_began_with(
    received: bool,
) -> None:
    """[MQTT-4.8.2-4], cut before and after PUBREC"""
    world = World()
    member = persistent(world, "m", MQTT5)
    member.subscribe("$share/g/t", qos=2)
    publisher = world.connect("p")
    publisher.send(Publish("t", b"x", qos=2, packet_id=1))
    other = world.connect("o")
    other.subscribe("$share/g/t", qos=2)
    assert payloads(member.take()) == [b"x"]
    if received:
        assert member.send(PubRec(1)) == [PubRel(1)]
    member.cut()
    world.wait(5)
    member = persistent(world, "m", MQTT5, present=True)
    again: Packet = Publish("t", b"x", qos=2, packet_id=1, dup=True)
    assert member.take() == [PubRel(1) if received else again]
    assert other.take() == []
    # What is new goes to whoever is there.
    member.cut()
    publisher.send(Publish("t", b"new", qos=2, packet_id=2))
    assert payloads(other.take()) == [b"new"]


@pytest.mark.parametrize("ends", ["expiry", "clean start", "disconnect"])
def test_a_begun_qos_2_message_of_a_share_goes_to_nobody_else_when_the_session_ends(
    ends: str,
) -> None:
    """[MQTT-4.8.2-5]"""
    world = World()
    member = persistent(world, "m", MQTT5)
    member.subscribe("$share/g/t", qos=2)
    publisher = world.connect("p")
    publisher.send(Publish("t", b"x", qos=2, packet_id=1))
    other = world.connect("o")
    other.subscribe("$share/g/t", qos=2)
    if ends == "expiry":
        member.cut()
        world.wait(3_600)
    elif ends == "clean start":
        world.connect("m", properties=KEPT)
    else:
        member.send(Disconnect(properties=Properties(session_expiry_interval=0)))
    assert other.take() == []
    publisher.send(Publish("t", b"new", qos=2, packet_id=2))
    assert payloads(other.take()) == [b"new"]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("code", [0x00, 0x80, 0x97, 0x99])
def test_a_message_that_a_member_of_a_share_refuses_goes_to_nobody_else(
    qos: int, code: int
) -> None:
    """[MQTT-4.8.2-6]; nor is it sent again to the member"""
    world = World()
    member = persistent(world, "m", MQTT5)
    member.subscribe("$share/g/t", qos=2)
    publisher = world.connect("p")
    publisher.send(Publish("t", b"x", qos=qos, packet_id=1))
    other = world.connect("o")
    other.subscribe("$share/g/t", qos=2)
    assert payloads(member.take()) == [b"x"]
    goes_on: list[Packet] = [PubRel(1)] if qos == 2 and code == 0 else []
    assert member.send(PubAck(1, code) if qos == 1 else PubRec(1, code)) == goes_on
    member.cut()
    world.wait(5)
    assert persistent(world, "m", MQTT5, present=True).take() == goes_on
    assert other.take() == []

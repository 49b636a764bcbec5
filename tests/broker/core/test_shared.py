"""Shared subscriptions: who gets a message when members come and go [4.8.2]."""

import pytest

from semel.broker.authority import Authority
from semel.broker.identity import Identity
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
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
from tests.broker.world import Client, World

FILTER = "$share/g/t"


def member(world: World, name: str, *, window: int | None = None, expiry: int = 100) -> Client:
    """A client that shares the subscription and acknowledges nothing by itself."""
    properties = Properties(session_expiry_interval=expiry, receive_maximum=window)
    client = world.connect(name, properties=properties)
    client.subscribe(FILTER, qos=2)
    return client


def payloads(packets: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def publish(world: World, *messages: bytes, qos: int = 1) -> None:
    publisher = world.connect("p")
    for number, payload in enumerate(messages, 1):
        publisher.send(Publish("t", payload, qos=qos, packet_id=number))
    publisher.send(Disconnect())


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_members_of_either_version_take_turns(version: int) -> None:
    world = World()
    members = [world.connect(name, version) for name in "abc"]
    for client in members:
        client.subscribe(FILTER, qos=1)
    publish(world, *(b"%d" % number for number in range(9)))
    assert [len(payloads(client.take())) for client in members] == [3, 3, 3]


def test_what_a_lost_member_was_never_sent_goes_to_another() -> None:
    world = World()
    first = member(world, "a", window=1)
    publish(world, b"sent", b"waits", b"waits too")
    assert payloads(first.take()) == [b"sent"]
    second = member(world, "b")
    first.cut()
    assert payloads(second.take()) == [b"waits", b"waits too"]
    # What was sent is resent where it was sent: its session lives.
    again = world.connect(
        "a", clean_start=False, present=True, properties=Properties(session_expiry_interval=100)
    )
    assert payloads(again.take()) == [b"sent"]
    assert second.take() == []


def test_without_another_member_that_is_connected_all_stays_with_the_session() -> None:
    world = World()
    first = member(world, "a", window=1)
    publish(world, b"sent", b"waits")
    member(world, "b").cut()
    first.cut()
    again = world.connect("a", clean_start=False, present=True)
    assert payloads(again.take()) == [b"sent", b"waits"]


def test_a_qos_1_message_in_flight_goes_to_another_when_the_session_ends() -> None:
    """[4.8.2] QoS 1: the Server SHOULD attempt to send it to another Client"""
    world = World()
    first = member(world, "a", expiry=0)
    publish(world, b"1")
    assert payloads(first.take()) == [b"1"]
    second = member(world, "b")
    first.cut()
    (resent,) = second.take()
    assert isinstance(resent, Publish)
    assert (resent.payload, resent.dup) == (b"1", False)


def test_a_qos_1_message_that_was_acknowledged_goes_to_nobody_else() -> None:
    world = World()
    first = member(world, "a", expiry=0)
    publish(world, b"1")
    (message,) = first.take()
    assert isinstance(message, Publish)
    first.send(PubAck(message.packet_id))
    second = member(world, "b")
    first.cut()
    assert second.take() == []


@pytest.mark.parametrize("moved", [False, True])
def test_mqtt_4_8_2_5_a_qos_2_message_in_flight_dies_with_its_session(moved: bool) -> None:
    """[MQTT-4.8.2-4] [MQTT-4.8.2-5]"""
    world = World()
    first = member(world, "a", expiry=0, window=1)
    publish(world, b"sent", b"waits", qos=2)
    (message,) = first.take()
    assert isinstance(message, Publish)
    if moved:
        assert first.send(PubRec(message.packet_id)) == [PubRel(message.packet_id)]
    second = member(world, "b")
    first.cut()
    # The control: the one that was never sent is another member's.
    assert payloads(second.take()) == [b"waits"]


def test_mqtt_4_8_2_4_a_qos_2_message_in_flight_is_completed_with_its_client() -> None:
    world = World()
    first = member(world, "a")
    publish(world, b"1", qos=2)
    (message,) = first.take()
    second = member(world, "b")
    first.cut()
    again = world.connect("a", clean_start=False, present=True)
    (resent,) = again.take()
    assert isinstance(message, Publish)
    assert isinstance(resent, Publish)
    assert (resent.packet_id, resent.dup) == (message.packet_id, True)
    again.send(PubRec(resent.packet_id))
    assert again.send(PubComp(resent.packet_id)) == []
    assert second.take() == []


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_4_8_2_6_a_refused_message_goes_to_nobody_else(qos: int) -> None:
    world = World()
    first = member(world, "a", expiry=0)
    publish(world, b"1", qos=qos)
    (message,) = first.take()
    assert isinstance(message, Publish)
    second = member(world, "b")
    refusal: Packet = PubAck(message.packet_id, 0x80)
    if qos == 2:
        refusal = PubRec(message.packet_id, 0x80)
    first.send(refusal)
    assert second.take() == []
    first.cut()
    assert second.take() == []


def test_the_subscription_identifier_is_the_new_members_own() -> None:
    world = World()
    first = world.connect("a", properties=Properties(receive_maximum=1))
    mine = Properties(subscription_identifiers=(7,))
    first.send(Subscribe(1, [Subscription(FILTER, 1)], properties=mine))
    publish(world, b"sent", b"waits")
    second = world.connect("b")
    yours = Properties(subscription_identifiers=(8,))
    second.send(Subscribe(1, [Subscription(FILTER, 1)], properties=yours))
    first.cut()
    got = second.take()
    assert sorted(payloads(got)) == [b"sent", b"waits"]
    assert all(
        packet.properties.subscription_identifiers == (8,)
        for packet in got
        if isinstance(packet, Publish)
    )


def test_other_messages_of_a_lost_member_stay_its_own() -> None:
    world = World()
    first = member(world, "a", window=1)
    first.subscribe("u", qos=1, packet_id=2)
    publisher = world.connect("p")
    publisher.send(Publish("t", b"sent", qos=1, packet_id=1))
    publisher.send(Publish("u", b"mine", qos=1, packet_id=2))
    publisher.send(Publish("t", b"ours", qos=1, packet_id=3))
    second = member(world, "b")
    first.cut()
    assert payloads(second.take()) == [b"ours"]
    again = world.connect("a", clean_start=False, present=True)
    assert payloads(again.take()) == [b"sent", b"mine"]


def test_a_member_whose_queue_is_full_is_passed_over() -> None:
    world = World(BrokerSettings(maximum_queued_messages=1))
    slow, quick = member(world, "a", window=1), member(world, "b")
    publish(world, *(b"%d" % number for number in range(8)))
    assert len(payloads(slow.take())) == 1
    assert len(payloads(quick.take())) == 6
    assert world.broker.router.dropped == 0


@pytest.mark.parametrize("granted", [0, 1])
@pytest.mark.parametrize("members", [1, 2])
def test_a_qos_0_message_is_sent_although_every_queue_is_full(granted: int, members: int) -> None:
    """It needs no place in a queue: a plain subscription of the same client gets it, too"""
    world = World(BrokerSettings(maximum_queued_messages=1))
    group = [
        world.connect(f"m{number}", properties=Properties(receive_maximum=1))
        for number in range(members)
    ]
    for client in group:
        client.subscribe("$share/g/t", qos=granted)
        client.subscribe("full", qos=1)
    publisher = world.connect("publisher")
    for number in range(2):
        publisher.send(Publish("full", b"full", qos=1, packet_id=number + 1))
    assert [payloads(client.take()) for client in group] == [[b"full"]] * members
    publisher.send(Publish("t", b"quick"))
    assert sorted(payloads(client.take()) for client in group) == [[]] * (members - 1) + [
        [b"quick"]
    ]
    assert world.broker.router.dropped == 0


class Deaf(Authority):
    """One member may not receive."""

    def receive(self, identity: Identity, topic_name: str) -> bool:
        return identity.client_id != "a"


def test_a_member_that_may_not_receive_gets_no_turn() -> None:
    world = World(authority=Deaf())
    deaf, other = member(world, "a"), member(world, "b")
    publish(world, b"1", b"2", b"3")
    assert payloads(deaf.take()) == []
    assert payloads(other.take()) == [b"1", b"2", b"3"]

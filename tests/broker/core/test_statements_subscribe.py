"""What the standard's chapters 3.8 to 3.12 have the broker do."""

import pytest

from semel.broker.authority import Authority
from semel.broker.identity import Identity
from semel.mqtt import (
    MQTT5,
    MQTT311,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from tests.broker.core.test_core import VERSIONS, payloads, persistent
from tests.broker.world import World


class Guarded(Authority):
    """Lets nobody subscribe to `no`."""

    def subscribe(self, identity: Identity, topic_filter: str, *, qos: int) -> int:
        return 0x87 if topic_filter == "no" else qos


# --- answers --------------------------------------------------------------------------------------


@VERSIONS
def test_each_request_is_answered_once_with_its_own_identifier(version: int) -> None:
    """[MQTT-2.3.1-7] (3.1.1) [MQTT-2.2.1-6] (5.0); [MQTT-3.8.4-1] [MQTT-3.10.4-4] of both"""
    client = World().connect("a", version)
    code = [0] if version == MQTT5 else []
    requests = [1, 65_535, 256, 1]
    for packet_id in requests:
        assert client.send(Subscribe(packet_id, [Subscription("t")])) == [SubAck(packet_id, [0])]
        assert client.send(Unsubscribe(packet_id, ["t"])) == [UnsubAck(packet_id, code)]
    # Also in one piece.
    answers = client.send(*[Subscribe(n, [Subscription(f"t/{n}")]) for n in (7, 5, 6)])
    assert answers == [SubAck(n, [0]) for n in (7, 5, 6)]


@VERSIONS
def test_pingreq_is_answered_by_pingresp(version: int) -> None:
    """[MQTT-3.12.4-1]: each one, and nothing else is"""
    client = World().connect("a", version)
    assert client.send(PingReq()) == [PingResp()]
    assert client.send(PingReq(), PingReq()) == [PingResp(), PingResp()]
    assert client.send(Publish("t")) == []


# --- SUBSCRIBE ------------------------------------------------------------------------------------


@VERSIONS
def test_several_filters_are_that_many_subscriptions_with_one_suback_in_their_order(
    version: int,
) -> None:
    """[MQTT-3.8.4-4] [MQTT-3.8.4-5] (3.1.1) [MQTT-3.8.4-5] [MQTT-3.8.4-7] (5.0) [MQTT-3.9.3-1]"""
    world = World(authority=Guarded())
    client = world.connect("a", version)
    publisher = world.connect("p", version)
    publisher.send(Publish("b", b"retained", retain=True))
    wanted = [("a", 2), ("no", 1), ("b", 0), ("c", 1)]
    packets = client.send(Subscribe(9, [Subscription(name, qos) for name, qos in wanted]))
    refused = 0x87 if version == MQTT5 else 0x80
    assert packets[0] == SubAck(9, [2, refused, 0, 1])
    assert packets[1:] == [Publish("b", b"retained", retain=True)]
    for packet_id, topic in enumerate(("a", "no", "b", "c"), start=1):
        publisher.send(Publish(topic, topic.encode(), qos=2, packet_id=packet_id))
    got = [(p.payload, p.qos) for p in client.take() if isinstance(p, Publish)]
    # QoS 0 may overtake QoS 1 and 2, so not their order.
    assert sorted(got) == [(b"a", 2), (b"b", 0), (b"c", 1)]


@VERSIONS
def test_a_granted_qos_is_the_one_that_messages_arrive_with(version: int) -> None:
    """[MQTT-3.8.4-5] (3.1.1) [MQTT-3.8.4-7] (5.0)"""
    for qos in (0, 1, 2):
        world = World()
        client = world.connect("a", version)
        (suback,) = client.send(Subscribe(1, [Subscription("t", qos)]))
        assert isinstance(suback, SubAck)
        world.connect("p", version).send(Publish("t", b"x", qos=2, packet_id=1))
        assert [p.qos for p in client.take() if isinstance(p, Publish)] == list(suback.reasons)


@VERSIONS
def test_the_same_filter_replaces_the_subscription_and_brings_retained_messages_again(
    version: int,
) -> None:
    """[MQTT-3.8.4-3] of both versions, [MQTT-3.8.4-4] (5.0)"""
    world = World()
    publisher = world.connect("p", version)
    publisher.send(Publish("t", b"kept", retain=True))
    client = world.connect("a", version)
    kept = [Publish("t", b"kept", retain=True)]
    assert client.subscribe("t", qos=2, packet_id=1) == kept
    assert client.subscribe("t", qos=1, packet_id=2) == kept
    assert client.subscribe("t", qos=1, packet_id=3) == kept
    publisher.send(Publish("t", b"x", qos=2, packet_id=1))
    assert client.take() == [Publish("t", b"x", qos=1, packet_id=1)]
    # Another filter that means the same is a subscription of its own.
    client.subscribe("t/#", qos=2, packet_id=4)
    publisher.send(Publish("t", b"y", qos=2, packet_id=2))
    assert client.take() == [Publish("t", b"y", qos=2, packet_id=2)]


@VERSIONS
def test_no_message_is_lost_when_a_subscription_is_replaced(version: int) -> None:
    """[MQTT-3.8.4-3] (3.1.1) [MQTT-3.8.4-4] (5.0): before, between and after, in one piece"""
    world = World()
    world.connect("p").send(Publish("t", b"kept", retain=True, qos=1, packet_id=1))
    client = world.connect("a", version)
    client.subscribe("t", qos=1)
    packets = client.send(
        Publish("t", b"1", qos=1, packet_id=1),
        Subscribe(2, [Subscription("t", 1)]),
        Publish("t", b"2", qos=1, packet_id=3),
        Subscribe(4, [Subscription("t", 2)]),
        Publish("t", b"3", qos=1, packet_id=5),
    )
    assert payloads(packets) == [b"1", b"kept", b"2", b"kept", b"3"]


@VERSIONS
@pytest.mark.parametrize("data", ["8006000100016100", "8206000100016103", "8206000100016144"])
def test_a_subscribe_that_is_malformed_subscribes_to_nothing(version: int, data: str) -> None:
    """[MQTT-3.8.1-1] of both versions, [MQTT-3.8.3-4] (3.1.1) [MQTT-3.8.3-5] (5.0)"""
    world = World()

    def framed(text: str) -> bytes:
        body = bytes.fromhex(text)
        if version == MQTT311:
            return body
        return body[:1] + bytes([body[1] + 1]) + body[2:4] + b"\x00" + body[4:]

    client = persistent(world, "a", version)
    answer = client.send_bytes(framed(data))
    assert client.is_closed()
    assert not any(isinstance(packet, SubAck) for packet in answer)
    client = persistent(world, "a", version, present=True)
    world.connect("p").send(Publish("a", b"x"))
    assert client.take() == []
    assert client.send_bytes(framed("8206000100016100")) == [SubAck(1, [0])]


# --- UNSUBSCRIBE ----------------------------------------------------------------------------------


@VERSIONS
def test_unsubscribe_deletes_the_filter_that_is_the_same_string(version: int) -> None:
    """[MQTT-3.10.4-1] [MQTT-3.10.4-2]"""
    world = World()
    client = world.connect("a", version)
    client.subscribe("a/b", "a/+", "a/#", "A/b")
    publisher = world.connect("p", version)
    client.send(Unsubscribe(2, ["#", "a/b/", "+/b", "a/B"]))
    for topic_filter, still in (("a/b", 1), ("a/+", 1), ("a/#", 0)):
        publisher.send(Publish("a/b", b"x"))
        assert len(client.take()) == 1
        client.send(Unsubscribe(3, [topic_filter]))
        publisher.send(Publish("a/b", b"x"))
        assert len(client.take()) == still
    publisher.send(Publish("A/b", b"x"))
    assert len(client.take()) == 1


@VERSIONS
def test_unsuback_comes_also_if_nothing_is_deleted(version: int) -> None:
    """[MQTT-3.10.4-5]"""
    client = World().connect("a", version)
    codes = [0x11] if version == MQTT5 else []
    assert client.send(Unsubscribe(9, ["never"])) == [UnsubAck(9, codes)]
    client.subscribe("t")
    codes = [0x00] if version == MQTT5 else []
    assert client.send(Unsubscribe(10, ["t"])) == [UnsubAck(10, codes)]


@VERSIONS
def test_several_filters_are_that_many_unsubscribes_with_one_unsuback_in_their_order(
    version: int,
) -> None:
    """[MQTT-3.10.4-6] of both versions, [MQTT-3.11.3-1] (5.0)"""
    world = World()
    client = world.connect("a", version)
    client.subscribe("a", "b", "c")
    codes = [0, 0x11, 0, 0x11] if version == MQTT5 else []
    assert client.send(Unsubscribe(5, ["a", "x", "c", "a"])) == [UnsubAck(5, codes)]
    publisher = world.connect("p", version)
    for topic in ("a", "b", "c"):
        publisher.send(Publish(topic, topic.encode()))
    assert payloads(client.take()) == [b"b"]


@VERSIONS
def test_nothing_is_queued_for_a_deleted_subscription_of_an_absent_session(version: int) -> None:
    """[MQTT-3.10.4-2]"""
    world = World()
    client = persistent(world, "a", version)
    client.subscribe("t", "u", qos=1)
    client.send(Unsubscribe(2, ["t"]))
    client.cut()
    publisher = world.connect("p", version)
    publisher.send(Publish("t", b"t", qos=1, packet_id=1), Publish("u", b"u", qos=1, packet_id=2))
    assert payloads(persistent(world, "a", version, present=True).take()) == [b"u"]


@VERSIONS
@pytest.mark.parametrize("reconnects", [False, True])
def test_deliveries_that_have_begun_are_completed_after_unsubscribe(
    version: int, reconnects: bool
) -> None:
    """[MQTT-3.10.4-3]"""
    world = World()
    client = persistent(world, "a", version)
    client.subscribe("t", qos=2)
    publisher = world.connect("p", version)
    publisher.send(Publish("t", b"2", qos=2, packet_id=1), Publish("t", b"1", qos=1, packet_id=2))
    assert payloads(client.take()) == [b"2", b"1"]
    client.send(Unsubscribe(5, ["t"]))
    if reconnects:
        client.cut()
        client = persistent(world, "a", version, present=True)
        assert client.take() == [
            Publish("t", b"2", qos=2, packet_id=1, dup=True),
            Publish("t", b"1", qos=1, packet_id=2, dup=True),
        ]
    assert client.send(PubRec(1), PubAck(2)) == [PubRel(1)]
    assert client.send(PubComp(1)) == []
    client.cut()
    assert persistent(world, "a", version, present=True).take() == []

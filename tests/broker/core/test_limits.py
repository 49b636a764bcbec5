"""Time, size, queues and faults: what the broker does at its bounds."""

import dataclasses

import pytest

from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Properties,
    PubAck,
    Publish,
    Will,
    encode,
)
from tests.broker.core.test_core import VERSIONS, payloads, persistent
from tests.broker.world import World


@VERSIONS
def test_bytes_of_an_unfinished_packet_do_not_keep_a_client_alive(version: int) -> None:
    """[MQTT-3.1.2-24] (3.1.1) [MQTT-3.1.2-22] (5.0): a Control Packet does, not a byte of one"""
    world = World()
    client = world.connect("a", version, keep_alive=10)
    client.send_bytes(b"\x30\x7f")
    for _ in range(3):
        assert not client.is_closed()
        world.wait(5)
        client.send_bytes(b"\x00")
    assert client.is_closed()


@VERSIONS
@pytest.mark.parametrize("split", [0, 2, 5, 100])
def test_a_large_packet_may_follow_connect_at_once(version: int, split: int) -> None:
    """[3.1.4]: clients need not wait for CONNACK, so the limit before CONNECT is not for it"""
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("t")
    client = world.open(version)
    data = encode(Publish("t", bytes(100_000)), version)
    client.send_bytes(encode(Connect("a", version=version), version) + data[:split])
    client.send_bytes(data[split:])
    assert not client.is_closed()
    assert payloads(watcher.take()) == [bytes(100_000)]
    together = world.open(version)
    together.send_bytes(encode(Connect("b", version=version), version) + data)
    assert not together.is_closed()


def test_an_assigned_client_id_is_no_other_sessions() -> None:
    """[MQTT-3.2.2-16] [MQTT-3.1.3-6]"""
    world = World()
    first = world.connect("assigned-1")
    (connack,) = world.open().send(Connect(""))
    assert isinstance(connack, ConnAck)
    assert connack.properties.assigned_client_identifier == "assigned-2"
    assert not first.is_closed()


@pytest.mark.parametrize("topic", ["a/b/c", "a/b/c/d"])
def test_a_will_topic_is_bounded_like_any_other(topic: str) -> None:
    """The limit on levels holds for a will too, and the client is told."""
    world = World(BrokerSettings(topic_levels=3))
    client = world.open()
    (connack,) = client.send(Connect("a", will=Will(topic, b"x", retain=True)))
    assert isinstance(connack, ConnAck)
    assert connack.reason == (0 if topic == "a/b/c" else 0x90)
    client.cut()
    assert len(world.broker.router.retained) == (1 if topic == "a/b/c" else 0)


def test_a_resumed_session_knows_what_is_open_in_it() -> None:
    """[MQTT-2.2.1-5]: an answer to nothing is told from an answer to an earlier connection's"""
    world = World()
    client = persistent(world, "a", MQTT5)
    client.subscribe("t", qos=1)
    world.connect("p").send(Publish("t", b"1", qos=1, packet_id=1))
    client.cut()
    client = persistent(world, "a", MQTT5, present=True)
    assert payloads(client.take()) == [b"1"]
    assert client.send(PubAck(1)) == []
    answer = client.send(PubAck(1))
    assert [packet.reason for packet in answer if isinstance(packet, Disconnect)] == [0x82]


# --- time, size and faults ------------------------------------------------------------------------


@VERSIONS
def test_a_silent_client_is_closed_after_one_and_a_half_keep_alives(version: int) -> None:
    """[MQTT-3.1.2-22] (5.0) [MQTT-3.1.2-24] (3.1.1), as if the network had failed"""
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("gone")
    client = world.connect("a", version, keep_alive=10, will=Will("gone", b"bye"))
    world.wait(14)
    client.send(PingReq())
    world.wait(14)
    assert not client.is_closed()
    world.wait(1)
    assert client.is_closed()
    assert payloads(watcher.take()) == [b"bye"]


def test_a_longer_keep_alive_than_the_limit_is_replaced_and_told() -> None:
    """[MQTT-3.2.2-22]"""
    world = World(BrokerSettings(maximum_keep_alive=20))
    for asked, told in ((0, 20), (60, 20), (20, None), (5, None)):
        (connack,) = world.open().send(Connect("a", keep_alive=asked))
        assert isinstance(connack, ConnAck)
        assert connack.properties.server_keep_alive == told


def test_a_message_too_large_for_a_subscriber_is_dropped_for_it_alone() -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    world = World()
    small = world.connect("s", properties=Properties(maximum_packet_size=40))
    large = world.connect("l")
    for client in (small, large):
        client.subscribe("t", qos=1)
    publisher = world.connect("p")
    publisher.send(Publish("t", bytes(100), qos=1, packet_id=1))
    publisher.send(Publish("t", b"ok", qos=1, packet_id=2))
    assert payloads(small.take()) == [b"ok"]
    assert payloads(large.take()) == [bytes(100), b"ok"]


def test_no_more_is_sent_than_the_clients_receive_maximum() -> None:
    """[MQTT-3.3.4-9]"""
    world = World()
    client = world.connect("a", properties=Properties(receive_maximum=2))
    client.subscribe("t", qos=1)
    publisher = world.connect("p")
    for number in range(1, 5):
        publisher.send(Publish("t", b"%d" % number, qos=1, packet_id=number))
    assert payloads(client.take()) == [b"1", b"2"]
    assert payloads(client.send(PubAck(1))) == [b"3"]


def test_a_client_that_exceeds_the_brokers_receive_maximum_is_disconnected() -> None:
    """[MQTT-3.3.4-7]"""
    world = World(BrokerSettings(receive_maximum=2))
    client = world.connect("a")
    packets: list[Packet] = [Publish("t", qos=2, packet_id=n) for n in (1, 2, 3)]
    answer = client.send(*packets)
    assert [p.reason for p in answer if isinstance(p, Disconnect)] == [0x93]


def test_a_packet_larger_than_the_limit_is_refused_from_its_header() -> None:
    world = World(BrokerSettings(maximum_packet_size=100, before_connect_packet_size=50))
    early = world.open()
    early.send_bytes(bytes.fromhex("10ff01"))
    assert early.is_closed()
    client = world.connect("a")
    assert client.send(Publish("t", bytes(80))) == []
    (answer,) = client.send_bytes(bytes.fromhex("30ffffff7f"))
    assert isinstance(answer, Disconnect)
    assert answer.reason == 0x95


def test_a_full_queue_turns_new_messages_away_and_counts_them() -> None:
    world = World(BrokerSettings(maximum_queued_messages=2))
    client = persistent(world, "a", MQTT5)
    client.subscribe("t", qos=1)
    client.cut()
    publisher = world.connect("p")
    for number in range(1, 5):
        publisher.send(Publish("t", b"%d" % number, qos=1, packet_id=number))
    assert world.broker.router.dropped == 2
    assert payloads(persistent(world, "a", MQTT5, present=True).take()) == [b"1", b"2"]


def test_a_slow_reader_loses_qos_0_messages_and_gets_the_others_later() -> None:
    """Class 13: what a reader does not take is bounded"""
    world = World(BrokerSettings(maximum_outgoing_bytes=1_000))
    slow = world.connect("s")
    slow.subscribe("t", qos=1)
    publisher = world.connect("p")
    slow.unread = 1_000
    world.tick()
    publisher.send(Publish("t", bytes(10)))
    assert world.broker.router.dropped == 1
    publisher.send(Publish("t", b"kept", qos=1, packet_id=1))
    assert slow.take() == []
    assert not slow.is_closed()
    slow.unread = 999
    world.tick()
    world.tick()
    assert payloads(slow.take()) == [b"kept"]
    publisher.send(Publish("t", b"room again"))
    assert payloads(slow.take()) == [b"room again"]
    assert world.broker.router.dropped == 1


def test_answers_that_nobody_reads_end_the_connection() -> None:
    """Class 13: they cannot be dropped, so they are bounded by closing"""
    world = World(BrokerSettings(maximum_outgoing_bytes=1_000))
    silent, other = world.connect("s"), world.connect("o")
    silent.unread = 1_000
    silent.send(*(Publish("t", qos=1, packet_id=number) for number in range(1, 100)))
    assert not silent.is_closed()
    silent.unread = 1_900
    world.tick()
    silent.send(*(Publish("t", qos=1, packet_id=number) for number in range(1, 100)))
    assert silent.is_closed()
    assert not other.is_closed()


def test_a_queue_is_bounded_by_bytes_too() -> None:
    world = World(BrokerSettings(maximum_queued_bytes=1_000))
    client = persistent(world, "a", MQTT5)
    client.subscribe("t", qos=1)
    client.cut()
    publisher = world.connect("p")
    for packet_id, size in ((1, 600), (2, 600), (3, 398)):
        publisher.send(Publish("t", bytes(size), qos=1, packet_id=packet_id))
    assert [len(p) for p in payloads(persistent(world, "a", MQTT5, present=True).take())] == [
        600,
        398,
    ]
    assert world.broker.router.dropped == 1


def test_the_broker_reports_on_itself_under_sys() -> None:
    world = World(BrokerSettings(sys_interval=10.0))
    client = persistent(world, "a", MQTT311)
    client.subscribe("#", "$SYS/broker/clients/+", "$SYS/broker/uptime")
    persistent(world, "b", MQTT311).cut()
    world.wait(1)
    told = {p.topic_name: p.payload for p in client.take() if isinstance(p, Publish)}
    assert told == {
        "$SYS/broker/uptime": b"1 seconds",
        "$SYS/broker/clients/connected": b"1",
        "$SYS/broker/clients/disconnected": b"1",
        "$SYS/broker/clients/total": b"2",
        "$SYS/broker/clients/active": b"1",
        "$SYS/broker/clients/inactive": b"1",
        "$SYS/broker/clients/maximum": b"2",
        "$SYS/broker/clients/expired": b"0",
    }
    world.wait(9)
    assert client.take() == []
    world.wait(1)
    assert len(client.take()) == 8
    # [MQTT-4.7.2-1] whoever asks for # gets none of it
    (version,) = world.connect("c").subscribe("$SYS/broker/version", "#")
    assert isinstance(version, Publish)
    assert version.payload.startswith(b"semel version ")


def test_no_interval_means_no_report() -> None:
    world = World(BrokerSettings(sys_interval=0.0))
    world.wait(20)
    assert len(world.broker.router.retained) == 0


def test_stopping_tells_every_client() -> None:
    world = World()
    new, old = world.connect("n"), world.connect("o", MQTT311)
    world.broker.stop(world.now)
    world.tick()
    assert new.take() == [Disconnect(0x8B)]
    assert old.take() == []
    assert new.is_closed()
    assert old.is_closed()


def test_the_log_names_the_rule_and_escapes_what_a_peer_chose() -> None:
    world = World()
    client = world.connect("evil\x1b[2J\u202e")
    client.send_bytes(b"\xc1\x00")
    assert any("FIXED_HEADER_FLAGS" in line for line in world.log)
    assert not any("\x1b" in line or "\u202e" in line for line in world.log)


def test_settings_are_plain_values_that_tests_can_replace() -> None:
    assert dataclasses.replace(BrokerSettings(), port=0).port == 0

"""The broker, statement by statement, over byte strings and a clock of its own."""

import itertools

import pytest

from semel.broker.authority import Authority, Denied, Proof
from semel.broker.identity import Identity, PeerInfo
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
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
    Will,
)
from semel.store.commit import Commit
from semel.store.store import Store
from tests.broker.world import Client, World

VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5])
KEPT = Properties(session_expiry_interval=3_600)


def persistent(world: World, client_id: str, version: int, *, present: bool = False) -> Client:
    """A client whose session outlives its connection, in the way of its version."""
    return world.connect(
        client_id,
        version,
        clean_start=False,
        properties=KEPT if version == MQTT5 else None,
        present=present,
    )


def payloads(packets: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


# --- connecting -----------------------------------------------------------------------------------


@VERSIONS
def test_an_accepted_connect_is_answered_by_connack_0(version: int) -> None:
    """[MQTT-3.1.4-5] (5.0) [MQTT-3.1.4-4] (3.1.1)"""
    client = World().connect(version=version)
    assert not client.is_closed()


def test_connack_advertises_what_is_enforced() -> None:
    settings = BrokerSettings(receive_maximum=7, maximum_packet_size=500, topic_alias_maximum=3)
    (connack,) = World(settings).open().send(Connect("a"))
    assert isinstance(connack, ConnAck)
    assert connack.properties == Properties(
        receive_maximum=7, topic_alias_maximum=3, maximum_packet_size=500
    )


def test_an_empty_client_id_is_assigned_and_told_in_5() -> None:
    """[MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16]"""
    world = World()
    told = []
    for _ in range(2):
        (connack,) = world.open().send(Connect(""))
        assert isinstance(connack, ConnAck)
        told.append(connack.properties.assigned_client_identifier)
    assert told == ["assigned-1", "assigned-2"]
    assert not any(client.is_closed() for client in world.clients)
    assert World().open(MQTT311).send(Connect("", version=MQTT311)) == [ConnAck()]


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        ("100d00044d5154540902003c000161", "20020001"),  # [MQTT-3.1.2-2] level 9
        ("100c00044d5154540400003c0000", "20020002"),  # [MQTT-3.1.3-8] empty id, CleanSession 0
        ("100d00044d5154580402003c000161", ""),  # [MQTT-3.1.2-1] another protocol
        ("101300044d515454041e003c00016100017700016d", ""),  # [MQTT-3.1.4-1] malformed: no CONNACK
        ("101500044d515454051e003c000001610000017700016d", "2003008100"),  # the same in 5.0
        ("c000", ""),  # [MQTT-3.1.0-1] not CONNECT
        ("101800044d5154540502003c0a1500076e6f2d73756368000161", "2003008c00"),  # [MQTT-4.12.0-1]
    ],
)
def test_a_connect_that_cannot_be_accepted_is_answered_as_its_version_wants_and_closed(
    data: str, answer: str
) -> None:
    world = World()
    client = world.open()
    world.broker.receive(client.connection, bytes.fromhex(data), world.now)
    world.broker.flush(world.now)
    assert client.connection.take_outgoing().hex() == answer
    assert client.is_closed()
    assert world.broker.router.sessions == {}


def test_nothing_after_a_refused_connect_is_acted_on() -> None:
    """[MQTT-3.1.4-6]"""

    class Strict(Authority):
        def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
            return Denied(0x86)

    for version, code in ((MQTT5, 0x86), (MQTT311, 4)):
        world = World(authority=Strict())
        client = world.open(version)
        retained = Publish("t", b"x", retain=True)
        assert client.send(Connect("a", version=version), retained) == [ConnAck(code)]
        assert client.is_closed()
        assert len(world.broker.router.retained) == 0


@VERSIONS
def test_a_second_connect_closes(version: int) -> None:
    """[MQTT-3.1.0-2]"""
    client = World().connect(version=version)
    answer = client.send(Connect("a", version=version))
    assert client.is_closed()
    assert [type(packet) for packet in answer] == ([Disconnect] if version == MQTT5 else [])


def test_a_connection_that_sends_no_connect_is_closed_in_time() -> None:
    world = World(BrokerSettings(connect_timeout=5.0))
    client = world.open()
    world.wait(4)
    assert not client.is_closed()
    world.wait(1)
    assert client.is_closed()


def test_a_client_above_the_connection_limit_is_refused() -> None:
    world = World(BrokerSettings(maximum_connections=1))
    first = world.connect("a")
    second = world.open(MQTT311)
    assert second.send(Connect("b", version=MQTT311)) == [ConnAck(3)]
    assert second.is_closed()
    assert first.send(PingReq()) == [PingResp()]


@VERSIONS
def test_a_newer_connection_takes_over(version: int) -> None:
    """[MQTT-3.1.4-3] (5.0) [MQTT-3.1.4-2] (3.1.1)"""
    world = World()
    old = persistent(world, "a", version)
    old.subscribe("t", qos=1)
    new = persistent(world, "a", version, present=True)
    assert old.is_closed()
    assert old.take() == ([Disconnect(0x8E)] if version == MQTT5 else [])
    world.connect("b").send(Publish("t", b"x"))
    assert payloads(new.take()) == [b"x"]
    old.cut()
    assert new.send(PingReq()) == [PingResp()]


# --- sessions -------------------------------------------------------------------------------------


@VERSIONS
def test_a_session_is_resumed_with_its_subscriptions_and_queue(version: int) -> None:
    """[MQTT-3.1.2-5] [MQTT-3.2.2-3] (5.0) [MQTT-3.1.2-4] [MQTT-3.2.2-2] (3.1.1)"""
    world = World()
    client = persistent(world, "a", version)
    client.subscribe("t", qos=1)
    client.cut()
    world.connect("b").send(Publish("t", b"1", qos=1, packet_id=1), Publish("t", b"0"))
    client = persistent(world, "a", version, present=True)
    assert client.take() == [Publish("t", b"1", qos=1, packet_id=1)]


@VERSIONS
def test_a_clean_start_discards_the_old_session(version: int) -> None:
    """[MQTT-3.1.2-4] [MQTT-3.2.2-2] (5.0) [MQTT-3.1.2-6] [MQTT-3.2.2-1] (3.1.1)"""
    world = World()
    persistent(world, "a", version).subscribe("t")
    client = world.connect("a", version)
    world.connect("b").send(Publish("t", b"x"))
    assert client.take() == []


def test_a_session_ends_when_its_expiry_interval_has_passed() -> None:
    """[MQTT-4.1.0-2]; the interval counts from the end of the connection [MQTT-4.1.0-1]"""
    world = World()
    short = Properties(session_expiry_interval=10)
    world.connect("a", properties=short).cut()
    world.wait(9)
    client = world.connect("a", clean_start=False, properties=short, present=True)
    world.wait(100)
    client.cut()
    world.wait(10)
    world.connect("a", clean_start=False, properties=short)


def test_disconnect_can_change_the_expiry_interval() -> None:
    world = World()
    client = world.connect("a", properties=KEPT)
    client.send(Disconnect(properties=Properties(session_expiry_interval=0)))
    assert "a" not in world.broker.router.sessions
    client = world.connect("b")
    answer = client.send(Disconnect(properties=Properties(session_expiry_interval=9)))
    assert [packet.reason for packet in answer if isinstance(packet, Disconnect)] == [0x82]


def test_nothing_of_an_ended_session_is_kept() -> None:
    """[MQTT-4.1.0-2]: not in memory, and no change of it after its end in a commit"""
    written: list[Commit] = []

    class Recorder(Store):
        def write(self, commit: Commit) -> bool:
            written.append(commit)
            return True

    world = World(store=Recorder(is_durable=True))
    client = world.connect("a", properties=KEPT)
    client.subscribe("t", qos=1)
    client.send(Publish("t", qos=2, packet_id=1))
    assert [change for commit in written for change in commit.changes]
    written.clear()
    client.send(Disconnect(properties=Properties(session_expiry_interval=0)))
    router = world.broker.router
    assert router.sessions == {}
    assert router.dirty == []
    assert router.subscriptions.of("a") == []
    assert [number for commit in written for number in commit.ended] == [1]
    assert [change for commit in written for change in commit.changes] == []


def test_the_expiry_interval_is_bounded_and_the_client_told() -> None:
    world = World(BrokerSettings(maximum_session_expiry=60))
    (connack,) = world.open().send(Connect("a", properties=KEPT))
    assert isinstance(connack, ConnAck)
    assert connack.properties.session_expiry_interval == 60


@VERSIONS
def test_what_was_in_flight_is_sent_again_with_dup_and_pubrel_is_owed(version: int) -> None:
    """[MQTT-4.4.0-1] [MQTT-3.3.1-1]"""
    world = World()
    client = persistent(world, "a", version)
    client.subscribe("t", qos=2)
    publisher = world.connect("b")
    publisher.send(Publish("t", b"1", qos=2, packet_id=1), Publish("t", b"2", qos=2, packet_id=2))
    assert payloads(client.take()) == [b"1", b"2"]
    assert client.send(PubRec(1)) == [PubRel(1)]
    client.cut()
    client = persistent(world, "a", version, present=True)
    assert client.take() == [PubRel(1), Publish("t", b"2", qos=2, packet_id=2, dup=True)]


# --- publishing -----------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_arrives_at_the_lower_of_its_qos_and_the_granted(
    version: int, qos: int, granted: int
) -> None:
    """[MQTT-3.8.4-8] (5.0) [MQTT-3.8.4-6] (3.1.1), and DUP is never copied [MQTT-3.3.1-3]"""
    world = World()
    subscriber = world.connect("a", version)
    subscriber.subscribe("t", qos=granted)
    publisher = world.connect("b", version)
    publisher.send(Publish("t", b"x", qos=qos, packet_id=9 if qos else 0, dup=qos > 0))
    (packet,) = subscriber.take()
    lower = min(qos, granted)
    assert packet == Publish("t", b"x", qos=lower, packet_id=1 if lower else 0)


@VERSIONS
def test_a_publish_is_answered_by_its_qos(version: int) -> None:
    """[MQTT-3.3.4-1]"""
    world = World()
    world.connect("s").subscribe("t")
    client = world.connect("a", version)
    assert client.send(Publish("t")) == []
    assert client.send(Publish("t", qos=1, packet_id=5)) == [PubAck(5)]
    assert client.send(Publish("t", qos=2, packet_id=6)) == [PubRec(6)]
    assert client.send(PubRel(6)) == [PubComp(6)]


def test_nobody_to_receive_it_is_told_in_5_only() -> None:
    world = World()
    assert world.connect("a").send(Publish("t", qos=1, packet_id=1)) == [PubAck(1, 0x10)]
    old = world.connect("b", MQTT311)
    assert old.send(Publish("t", qos=1, packet_id=1)) == [PubAck(1)]


@VERSIONS
@pytest.mark.parametrize("repeats", [1, 2, 10])
def test_a_repeated_qos_2_publish_is_delivered_once(version: int, repeats: int) -> None:
    """[MQTT-4.3.3-10] (5.0) [MQTT-4.3.3-2] (3.1.1), case 4 of the origin, also over a reconnect"""
    world = World()
    subscriber = world.connect("s")
    subscriber.subscribe("t", qos=2)
    publisher = persistent(world, "p", version)
    publisher.send(Publish("t", b"x", qos=2, packet_id=7))
    again = Publish("t", b"x", qos=2, packet_id=7, dup=True)
    for _ in range(repeats):
        assert publisher.send(again) == [PubRec(7)]
    publisher.cut()
    publisher = persistent(world, "p", version, present=True)
    assert publisher.send(again) == [PubRec(7)]
    assert publisher.send(PubRel(7)) == [PubComp(7)]
    assert payloads(subscriber.take()) == [b"x"]
    publisher.send(Publish("t", b"new", qos=2, packet_id=7))
    assert payloads(subscriber.take()) == [b"new"]


@VERSIONS
@pytest.mark.parametrize("topic", ["73656e736f722f23", "73656e736f722f2b", "2b", "23", ""])
def test_a_bad_topic_name_is_never_acknowledged(version: int, topic: str) -> None:
    """Cases 1 and 2 of the origin"""
    client = World().connect(version=version)
    length = f"{len(topic) // 2:04x}"
    body = bytes.fromhex(length + topic + "0007" + ("00" if version == MQTT5 else "") + "78")
    answer = client.send_bytes(bytes([0x32, len(body)]) + body)
    assert client.is_closed()
    assert not any(isinstance(packet, PubAck) for packet in answer)


def test_a_topic_alias_stands_for_its_topic() -> None:
    """[MQTT-3.3.2-12]"""
    world = World()
    subscriber = world.connect("s")
    subscriber.subscribe("long/topic")
    publisher = world.connect("p")
    publisher.send(
        Publish("long/topic", b"1", properties=Properties(topic_alias=5)),
        Publish("", b"2", properties=Properties(topic_alias=5)),
    )
    assert subscriber.take() == [Publish("long/topic", b"1"), Publish("long/topic", b"2")]


def test_properties_of_a_message_reach_its_subscribers_unaltered() -> None:
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [-20]"""
    world = World()
    new, old = world.connect("n"), world.connect("o", MQTT311)
    for client in (new, old):
        client.subscribe("t")
    properties = Properties(
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="r",
        correlation_data=b"\x00\x01",
        user_properties=[("b", "1"), ("a", "2"), ("b", "3")],
    )
    world.connect("p").send(Publish("t", b"x", properties=properties))
    assert new.take() == [Publish("t", b"x", properties=properties)]
    assert old.take() == [Publish("t", b"x")]


def test_a_message_expires_while_its_subscriber_is_away_or_arrives_with_what_is_left() -> None:
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
    world = World()
    client = persistent(world, "a", MQTT5)
    client.subscribe("t", qos=1)
    client.cut()
    publisher = world.connect("p")
    for packet_id, seconds in ((1, 5), (2, 60)):
        properties = Properties(message_expiry_interval=seconds)
        publisher.send(Publish("t", b"x", qos=1, packet_id=packet_id, properties=properties))
    world.wait(10)
    (packet,) = persistent(world, "a", MQTT5, present=True).take()
    assert isinstance(packet, Publish)
    assert packet.properties.message_expiry_interval == 50


def test_a_topic_deeper_than_the_limit_closes_that_connection_only() -> None:
    """Class 7: deep topics"""
    world = World(BrokerSettings(topic_levels=3))
    bystander = world.connect("b")
    client = world.connect("a")
    assert client.send(Publish("a/b/c", qos=1, packet_id=1)) == [PubAck(1, 0x10)]
    client.send(Publish("a/b/c/d", qos=1, packet_id=2))
    assert client.is_closed()
    assert bystander.send(PingReq()) == [PingResp()]


def test_a_client_cannot_publish_to_the_brokers_own_topics() -> None:
    world = World()
    subscriber = world.connect("s")
    subscriber.subscribe("$SYS/#")
    client = world.connect("a")
    assert client.send(Publish("$SYS/x", qos=1, packet_id=1)) == [PubAck(1, 0x87)]
    assert subscriber.take() == []


def test_a_refused_publish_reaches_nobody_and_is_told_in_5_only() -> None:
    """[MQTT-3.3.5-2] (3.1.1), [MQTT-4.3.3-9] (5.0)"""

    class Quiet(Authority):
        def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
            return 0x87 if topic_name == "no" else 0

    world = World(authority=Quiet())
    subscriber = world.connect("s")
    subscriber.subscribe("#")
    new, old = world.connect("n"), world.connect("o", MQTT311)
    assert new.send(Publish("no", qos=2, packet_id=1)) == [PubRec(1, 0x87)]
    assert new.send(Publish("yes", qos=2, packet_id=1)) == [PubRec(1)]
    assert old.send(Publish("no", qos=1, packet_id=1)) == [PubAck(1)]
    assert [p.topic_name for p in subscriber.take() if isinstance(p, Publish)] == ["yes"]


# --- subscribing ----------------------------------------------------------------------------------


@VERSIONS
def test_one_suback_answers_all_filters_in_order(version: int) -> None:
    """[MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.9.3-1]"""
    client = World().connect(version=version)
    subscriptions = [Subscription("a", 2), Subscription("b", 0), Subscription("c", 1)]
    assert client.send(Subscribe(9, subscriptions)) == [SubAck(9, [2, 0, 1])]


@VERSIONS
def test_an_unsubscribed_filter_brings_nothing_more(version: int) -> None:
    """[MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-5] [MQTT-3.11.3-1]"""
    world = World()
    client = world.connect("a", version)
    client.subscribe("a/b", "c")
    codes = [0x11, 0] if version == MQTT5 else []
    assert client.send(Unsubscribe(5, ["a/+", "c"])) == [UnsubAck(5, codes)]
    world.connect("p").send(Publish("a/b", b"1"), Publish("c", b"2"))
    assert payloads(client.take()) == [b"1"]


def test_a_message_is_not_sent_back_with_no_local() -> None:
    """[MQTT-3.8.3-3]"""
    world = World()
    client = world.connect("a")
    client.send(Subscribe(1, [Subscription("t", no_local=True)]))
    client.send(Publish("t", b"mine"))
    world.connect("b").send(Publish("t", b"other"))
    assert payloads(client.take()) == [b"other"]


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_overlapping_subscriptions_bring_a_copy_each_if_the_setting_says_so(version: int) -> None:
    """[MQTT-3.3.4-2] (5.0), [MQTT-3.3.5-1] (3.1.1) permit that"""
    world = World(BrokerSettings(overlapping="each"))
    client, other = world.connect("a", version), world.connect("b", version)
    client.send(Subscribe(1, [Subscription("#", 0), Subscription("t", 1), Subscription("+", 2)]))
    other.subscribe("#")
    publisher = world.connect("p", version)
    for packet_id in (1, 2):
        publisher.send(Publish("t", b"x", 2, packet_id))
        packets = client.take()
        copies = sorted(packet.qos for packet in packets if isinstance(packet, Publish))
        assert copies == [0, 1, 2]
        assert len(other.take()) == 1


def test_overlapping_subscriptions_bring_one_copy_with_all_identifiers() -> None:
    """[MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4]"""
    world = World()
    client = world.connect("a")
    for packet_id, (topic_filter, qos) in enumerate((("t/#", 0), ("t/1", 2)), start=1):
        client.send(
            Subscribe(
                packet_id,
                [Subscription(topic_filter, qos)],
                properties=Properties(subscription_identifiers=[packet_id]),
            )
        )
    world.connect("p").send(Publish("t/1", b"x", qos=2, packet_id=1))
    (packet,) = client.take()
    assert isinstance(packet, Publish)
    assert packet.qos == 2
    assert sorted(packet.properties.subscription_identifiers) == [1, 2]


def test_a_repeated_subscription_replaces_the_old_one() -> None:
    """[MQTT-3.8.4-3]"""
    world = World()
    client = world.connect("a")
    client.subscribe("t", qos=0, packet_id=1)
    client.subscribe("t", qos=1, packet_id=2)
    world.connect("p").send(Publish("t", b"x", qos=1, packet_id=1))
    assert client.take() == [Publish("t", b"x", qos=1, packet_id=1)]


@VERSIONS
def test_more_subscriptions_than_the_limit_are_refused_one_by_one(version: int) -> None:
    world = World(BrokerSettings(maximum_subscriptions=2))
    client = world.connect("a", version)
    subscriptions = [Subscription(name) for name in ("a", "b", "c", "a")]
    code = 0x97 if version == MQTT5 else 0x80
    assert client.send(Subscribe(1, subscriptions)) == [SubAck(1, [0, 0, code, 0])]


@VERSIONS
def test_a_shared_subscription_gives_each_message_to_one_member(version: int) -> None:
    """[4.8.2], for 3.1.1 clients too"""
    world = World()
    members = [world.connect(name, version) for name in ("a", "b", "c")]
    for member in members:
        member.subscribe("$share/g/t")
    publisher = world.connect("p")
    for number in range(6):
        publisher.send(Publish("t", b"%d" % number))
    received = [payloads(member.take()) for member in members]
    assert sorted(itertools.chain(*received)) == [b"%d" % number for number in range(6)]
    assert [len(each) for each in received] == [2, 2, 2]


# --- retained messages ----------------------------------------------------------------------------


@VERSIONS
def test_a_new_subscription_gets_the_retained_message_with_retain_1(version: int) -> None:
    """[MQTT-3.3.1-5] [MQTT-3.3.1-9] (5.0) [MQTT-3.3.1-6] [MQTT-3.3.1-8] (3.1.1)"""
    world = World()
    early = world.connect("e", version)
    early.subscribe("t/+")
    publisher = world.connect("p", version)
    publisher.send(Publish("t/1", b"old", retain=True), Publish("t/1", b"new", retain=True))
    late = world.connect("l", version)
    assert late.subscribe("t/+") == [Publish("t/1", b"new", retain=True)]
    assert early.take() == [Publish("t/1", b"old"), Publish("t/1", b"new")]


@VERSIONS
def test_an_empty_retained_message_deletes_and_is_not_stored(version: int) -> None:
    """[MQTT-3.3.1-6] [MQTT-3.3.1-7] (5.0) [MQTT-3.3.1-10] [MQTT-3.3.1-11] (3.1.1)"""
    world = World()
    publisher = world.connect("p", version)
    publisher.send(Publish("t", b"x", retain=True), Publish("t", b"", retain=True))
    assert world.connect("l", version).subscribe("t") == []


def test_retain_handling_decides_when_retained_messages_come() -> None:
    """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]"""
    world = World()
    world.connect("p").send(Publish("t", b"x", retain=True))
    for handling, expected in ((0, [1, 1]), (1, [1, 0]), (2, [0, 0])):
        client = world.connect(f"c{handling}")
        counts = []
        for packet_id in (1, 2):
            subscription = Subscription("t", retain_handling=handling)
            _, *others = client.send(Subscribe(packet_id, [subscription]))
            counts.append(len(others))
        assert counts == expected


def test_retain_as_published_keeps_the_flag() -> None:
    """[MQTT-3.3.1-12] [MQTT-3.3.1-13]"""
    world = World()
    kept, cleared = world.connect("k"), world.connect("c")
    kept.send(Subscribe(1, [Subscription("t", retain_as_published=True)]))
    cleared.subscribe("t")
    world.connect("p").send(Publish("t", b"x", retain=True), Publish("t", b"y"))
    assert kept.take() == [Publish("t", b"x", retain=True), Publish("t", b"y")]
    assert cleared.take() == [Publish("t", b"x"), Publish("t", b"y")]


# --- wills ----------------------------------------------------------------------------------------


@VERSIONS
def test_a_will_is_published_when_the_connection_is_lost_and_not_after_disconnect(
    version: int,
) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.2-10] [MQTT-3.14.4-3]"""
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("gone")
    will = Will("gone", b"bye")
    world.connect("a", version, will=will).cut()
    assert payloads(watcher.take()) == [b"bye"]
    leaving = world.connect("a", version, will=will)
    assert leaving.send(Disconnect()) == []
    leaving.cut()
    assert watcher.take() == []


def test_disconnect_0x04_keeps_the_will() -> None:
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("gone")
    world.connect("a", will=Will("gone", b"bye")).send(Disconnect(0x04))
    assert payloads(watcher.take()) == [b"bye"]


def test_a_delayed_will_waits_for_its_delay_and_is_taken_back_by_a_reconnect() -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.3-9]"""
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("gone")
    will = Will("gone", b"bye", properties=Properties(will_delay_interval=5))
    world.connect("a", will=will, properties=KEPT).cut()
    world.wait(4)
    again = world.connect("a", clean_start=False, will=will, properties=KEPT, present=True)
    world.wait(10)
    assert watcher.take() == []
    again.cut()
    world.wait(4)
    assert watcher.take() == []
    world.wait(1)
    assert payloads(watcher.take()) == [b"bye"]


def test_a_will_does_not_wait_longer_than_its_session() -> None:
    """[MQTT-3.1.2-8]: the session's end comes first, by expiry or by a clean start"""
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("gone")
    will = Will("gone", b"bye", properties=Properties(will_delay_interval=100))
    short = Properties(session_expiry_interval=3)
    world.connect("a", will=will, properties=short).cut()
    world.wait(3)
    assert payloads(watcher.take()) == [b"bye"]
    world.connect("a", will=will, properties=KEPT).cut()
    world.connect("a")
    assert payloads(watcher.take()) == [b"bye"]


def test_a_take_over_publishes_the_will_of_the_old_connection() -> None:
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("gone")
    world.connect("a", will=Will("gone", b"bye"))
    world.connect("a")
    assert payloads(watcher.take()) == [b"bye"]


class Silencing(Authority):
    """Nobody may publish."""

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        return 0x87


@pytest.mark.parametrize("authority", [Authority, Silencing])
def test_a_will_goes_where_its_client_may_publish(authority: type[Authority]) -> None:
    world = World(authority=authority())
    watcher = world.connect("w")
    watcher.subscribe("gone")
    client = world.open()
    (connack,) = client.send(Connect("a", will=Will("gone", b"bye")))
    assert isinstance(connack, ConnAck)
    assert connack.reason == (0x87 if authority is Silencing else 0)
    client.cut()
    expected = [] if authority is Silencing else [Publish("gone", b"bye")]
    assert watcher.take() == expected


def test_a_will_is_not_published_if_its_client_may_no_longer_publish_it() -> None:
    class Changing(Authority):
        code = 0

        def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
            return self.code

    authority = Changing()
    world = World(authority=authority)
    watcher = world.connect("w")
    watcher.subscribe("gone")
    world.connect("a", will=Will("gone", b"1")).cut()
    client = world.connect("a", will=Will("gone", b"2"))
    authority.code = 0x87
    client.cut()
    assert watcher.take() == [Publish("gone", b"1")]


def test_stopping_leaves_alone_who_is_on_his_way_out() -> None:
    world = World()
    leaving, staying = world.connect("a"), world.connect("b")
    leaving.send(Disconnect())
    world.broker.stop(world.now)
    world.tick()
    assert leaving.take() == []
    assert staying.take() == [Disconnect(0x8B)]


class Confused(Authority):
    """Fails over one receiver."""

    def receive(self, identity: Identity, topic_name: str) -> bool:
        if identity.client_id == "a":
            raise RuntimeError("who is that?")
        return True


@pytest.mark.parametrize("connected", [True, False])
def test_a_fault_over_a_receiver_is_logged_whether_it_is_there_or_not(connected: bool) -> None:
    world = World(authority=Confused())
    client = persistent(world, "a", MQTT5)
    client.subscribe("t", qos=1)
    if not connected:
        client.cut()
    other = world.connect("b")
    other.subscribe("t")
    assert world.connect("p").send(Publish("t", b"x", qos=1, packet_id=1)) == [PubAck(1)]
    assert other.take() == [Publish("t", b"x")]
    assert sum("who is that?" in line for line in world.log) == 1
    assert not connected or client.is_closed()


class Discreet(Authority):
    """Keeps one topic from one client, whatever that client subscribes to."""

    def receive(self, identity: Identity, topic_name: str) -> bool:
        return (identity.client_id, topic_name) != ("a", "t/secret")


def test_a_retained_message_that_a_client_may_not_receive_is_kept_from_it_alone() -> None:
    world = World(authority=Discreet())
    publisher = world.connect("p")
    for topic_name in ("t/open", "t/secret"):
        publisher.send(Publish(topic_name, b"x", retain=True))
    for client_id, expected in (("a", ["t/open"]), ("b", ["t/open", "t/secret"])):
        got = world.connect(client_id).subscribe("t/#")
        assert [each.topic_name for each in got if isinstance(each, Publish)] == expected

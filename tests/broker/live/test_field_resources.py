"""Bugs that brokers have had: class 13, a client that uses up what belongs to all.

Nothing that a client can make grow is without a bound, and docs/reference/settings.md says what
happens at each. Here the bounds are small; live slow readers and floods of connections are in
test_field_floods.py.
"""

import os

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
    PingResp,
    Properties,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)
from tests.broker.by_hand import connect, memory, publish, resident, text
from tests.broker.core.test_core import KEPT, VERSIONS, payloads, persistent
from tests.broker.world import World
from tests.modes import repeats

DROPPED = "$SYS/broker/publish/messages/dropped"


def dropped(world: World) -> int:
    """How many messages the broker says that it has dropped."""
    world.wait(world.broker.settings.sys_interval)
    (packet,) = world.connect("asks").subscribe(DROPPED)
    assert isinstance(packet, Publish)
    return int(packet.payload)


# --- floods in one packet -------------------------------------------------------------------------


def test_class_13_a_packet_full_of_properties_is_a_packet() -> None:
    """CVE-2021-41039: as many User Properties as a packet has room for, and they all arrive"""
    world = World(BrokerSettings(maximum_packet_size=128 * 1024, packet_items=20_000))
    subscriber = world.connect("s")
    subscriber.subscribe("t")
    pairs = 18_720
    client = world.connect("a")
    packet = publish(b"t", properties=(b"\x26" + text(b"a") + text(b"b")) * pairs)
    assert 131_000 < len(packet) <= 131_072
    client.send_bytes(packet)
    (received,) = subscriber.take()
    assert isinstance(received, Publish)
    assert len(received.properties.user_properties) == pairs


def test_class_13_a_packet_fuller_than_the_bound_is_refused_from_its_header() -> None:
    world = World(BrokerSettings(packet_items=10_000))
    client = world.connect("a")
    packet = publish(b"t", properties=(b"\x26" + text(b"a") + text(b"b")) * 150_000)
    (answer,) = client.send_bytes(packet[:10])
    assert isinstance(answer, Disconnect)
    assert answer.reason == 0x95
    stranger = world.open()
    pair = b"\x26" + text(b"a") + text(b"b")
    assert stranger.send_bytes(connect(properties=pair * 10_000)[:10]) == []
    assert stranger.is_closed()
    # the control: a CONNECT that is as full as it may be
    (connack,) = world.open().send_bytes(connect(properties=pair * 9_300))
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0


@VERSIONS
def test_class_13_a_flood_of_filters_fills_one_clients_share_and_no_more(version: int) -> None:
    """By the settings: further ones are refused one by one, replacing one is always possible"""
    world = World(BrokerSettings(maximum_subscriptions=50))
    client = world.connect("a", version)
    filters = [Subscription(f"f/{number}") for number in range(2_000)]
    refused = 0x97 if version == MQTT5 else 0x80
    expected = SubAck(1, [0] * 50 + [refused] * 1_950)
    assert client.send(Subscribe(1, filters)) == [expected]
    assert client.send(Subscribe(1, filters)) == [expected]
    assert client.send(Subscribe(2, [Subscription("$share/g/f")])) == [SubAck(2, [refused])]
    other = world.connect("b", version)
    assert other.send(Subscribe(1, filters[100:102])) == [SubAck(1, [0, 0])]
    client.send(Unsubscribe(3, [f"f/{number}" for number in range(10)]))
    assert client.send(Subscribe(4, filters[100:111])) == [SubAck(4, [0] * 10 + [refused])]
    publisher = world.connect("p")
    publisher.send(*[Publish(f"f/{number}", b"%d" % number) for number in (5, 20, 105, 500)])
    assert payloads(client.take()) == [b"20", b"105"]


@VERSIONS
def test_class_13_the_bound_on_filters_holds_over_reconnections(version: int) -> None:
    world = World(BrokerSettings(maximum_subscriptions=5))
    for start in range(0, 20, 5):
        client = persistent(world, "a", version, present=start > 0)
        (suback,) = client.send(
            Subscribe(1, [Subscription(f"f/{start + number}") for number in range(5)])
        )
        assert isinstance(suback, SubAck)
        assert (suback.reasons[0] == 0) == (start == 0)
        client.cut()
    client = world.connect("a", version)
    assert client.send(Subscribe(1, [Subscription("g")])) == [SubAck(1, [0])]


# --- retained messages ----------------------------------------------------------------------------


@VERSIONS
def test_class_13_a_flood_of_retained_messages_is_forwarded_but_not_all_kept(
    version: int,
) -> None:
    world = World(BrokerSettings(maximum_retained=50, sys_interval=0.0))
    watching = world.connect("watcher")
    watching.subscribe("r/#")
    client = world.connect("a", version)
    flood: list[Packet] = [Publish(f"r/{n}", b"%d" % n, retain=True) for n in range(500)]
    client.send(*flood)
    assert len(payloads(watching.take())) == 500
    assert len(world.connect("late").subscribe("r/#")) == 50
    # a topic that has a message may have another, and a deleted one makes room
    client.send(Publish("r/0", b"new", retain=True), Publish("r/1", b"", retain=True))
    client.send(Publish("r/400", b"in", retain=True), Publish("r/401", b"out", retain=True))
    kept = payloads(world.connect("later").subscribe("r/#"))
    assert len(kept) == 50
    assert {b"new", b"in"} <= set(kept)
    assert b"out" not in kept
    assert not client.is_closed()


def test_class_13_what_is_not_retained_is_counted() -> None:
    """The $SYS topics have room of their own, or the report could not be read."""
    world = World(BrokerSettings(maximum_retained=100, sys_interval=10.0))
    world.wait(1)
    client = world.connect("a")
    before = dropped(world)
    client.send(*[Publish(f"r/{n}", b"x", retain=True) for n in range(300)])
    kept = len(world.connect("late").subscribe("r/#"))
    assert kept <= 100
    assert dropped(world) - before == 300 - kept


def test_class_13_wills_and_expired_messages_count_among_the_retained() -> None:
    world = World(BrokerSettings(maximum_retained=3, sys_interval=0.0))
    short = Properties(message_expiry_interval=5)
    client = world.connect("a")
    for number in range(3):
        client.send(Publish(f"r/{number}", b"x", retain=True, properties=short))
    world.connect("w", will=Will("r/will", b"late", retain=True)).cut()
    assert len(world.connect("b").subscribe("r/#")) == 3
    world.wait(10)
    # [MQTT-3.3.2-5] they are gone, and there is room
    world.connect("w", will=Will("r/will", b"kept", retain=True)).cut()
    assert payloads(world.connect("c").subscribe("r/#")) == [b"kept"]


# --- queues ---------------------------------------------------------------------------------------


def away(world: World, version: int = MQTT5) -> None:
    """A session `s` that is subscribed to everything at QoS 1 and not connected."""
    client = persistent(world, "s", version)
    client.subscribe("q/#", qos=1)
    client.cut()


@VERSIONS
def test_class_13_a_queue_is_bounded_by_messages_and_its_neighbours_are_not(version: int) -> None:
    world = World(BrokerSettings(maximum_queued_messages=20))
    away(world, version)
    reader = world.connect("reader")
    reader.subscribe("q/#", qos=0)
    publisher = world.connect("p", version)
    for number in range(100):
        answer = publisher.send(Publish("q/t", b"%d" % number, qos=1, packet_id=1))
        assert [type(packet) for packet in answer] == [PubAck]
    assert len(payloads(reader.take())) == 100
    back = persistent(world, "s", version, present=True)
    assert payloads(back.take()) == [b"%d" % number for number in range(20)]
    for packet_id in range(1, 21):
        back.send(PubAck(packet_id))
    publisher.send(Publish("q/t", b"again", qos=1, packet_id=1))
    assert payloads(back.take()) == [b"again"]
    assert dropped(world) == 80


FILLED_BY = {
    "its payload": ("q/t", bytes(4_000), Properties()),
    "its topic": ("q/" + "t" * 4_000, b"x", Properties()),
    "its topic in four bytes a character": ("q/" + "\U0001f600" * 1_000, b"x", Properties()),
    "its properties": ("q/t", b"x", Properties(user_properties=[("k", "v" * 95)] * 40)),
    "its correlation data": ("q/t", b"x", Properties(correlation_data=bytes(4_000))),
    "its content type": ("q/t", b"x", Properties(content_type="c" * 4_000)),
}


@pytest.mark.parametrize("what", FILLED_BY)
def test_class_13_a_queue_is_bounded_by_bytes_whatever_they_are_in(what: str) -> None:
    """By the settings it is bytes of messages that count, and a message is more than a payload."""
    topic, payload, properties = FILLED_BY[what]
    world = World(BrokerSettings(maximum_queued_bytes=10_000))
    away(world)
    publisher = world.connect("p")
    packet = Publish(topic, payload, qos=1, packet_id=1, properties=properties)
    assert 4_000 <= len(encode(packet)) < 4_500
    for _ in range(20):
        publisher.send(packet)
    back = persistent(world, "s", MQTT5, present=True)
    assert len(payloads(back.take())) == 2
    assert dropped(world) == 18


def test_class_13_what_has_expired_does_not_take_the_place_of_what_has_not() -> None:
    """[MQTT-3.3.2-5]: the server must delete it, so it does not wait any more"""
    world = World(BrokerSettings(maximum_queued_messages=3))
    away(world)
    publisher = world.connect("p")
    for seconds in (5, 5, 60, 60):
        short = Properties(message_expiry_interval=seconds)
        publisher.send(Publish("q/t", b"%d" % seconds, qos=1, packet_id=1, properties=short))
    world.wait(10)
    publisher.send(Publish("q/t", b"new", qos=1, packet_id=1))
    back = persistent(world, "s", MQTT5, present=True)
    assert payloads(back.take()) == [b"60", b"new"]


@VERSIONS
def test_class_13_a_reader_that_never_answers_gets_its_window_and_a_bounded_queue(
    version: int,
) -> None:
    world = World(BrokerSettings(inflight_window=5, maximum_queued_messages=10))
    narrow = Properties(receive_maximum=5) if version == MQTT5 else None
    mute = world.connect("mute", version, properties=narrow)
    mute.subscribe("q/#", qos=2)
    publisher = world.connect("p")
    for number in range(100):
        publisher.send(Publish("q/t", b"%d" % number, qos=2, packet_id=1))
        publisher.send(PubRel(1))
    first = mute.take()
    assert payloads(first) == [b"%d" % number for number in range(5)]
    assert not mute.is_closed()
    # when it answers, it gets what was kept for it
    received = list(first)
    while first:
        step: list[Packet] = []
        for packet in first:
            if isinstance(packet, Publish):
                step += mute.send(PubRec(packet.packet_id))
            elif isinstance(packet, PubRel):
                step += mute.send_bytes(b"\x70\x02" + packet.packet_id.to_bytes(2, "big"))
        received += step
        first = step
    assert payloads(received) == [b"%d" % number for number in range(15)]
    assert dropped(world) == 85


def test_class_13_what_nobody_may_keep_is_not_queued() -> None:
    """QoS 0 for who is away, and anything for a session that ended with its connection."""
    world = World(BrokerSettings(maximum_queued_messages=1))
    away(world)
    publisher = world.connect("p")
    publisher.send(*[Publish("q/t", b"0") for _ in range(50)])
    publisher.send(Publish("q/t", b"1", qos=1, packet_id=1))
    assert payloads(persistent(world, "s", MQTT5, present=True).take()) == [b"1"]
    assert dropped(world) == 0


# --- what is left behind --------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1])
def test_class_13_names_of_topics_that_nobody_heard_of_take_no_room(qos: int) -> None:
    """Whatever the broker remembers of topics is bounded in bytes, since clients choose them."""
    world = World()
    world.connect("watcher").subscribe("watched/+")
    client = world.connect("a", MQTT311)
    long = b"x" * 60_000

    def flood(start: int, count: int) -> None:
        for number in range(start, start + count):
            client.send_bytes(publish(b"%d/" % number + long, MQTT311, qos=qos))

    flood(0, 10)
    count = repeats(100, 40)
    before = resident(os.getpid())
    flood(1_000, count)
    # 100 of them are 6 MB
    assert resident(os.getpid()) < before + count * 30_000


CHURN = {
    "connections": 200,
    "sessions that are kept": 100,
    "delayed wills": 100,
    "subscriptions": 200,
    "wildcards": 200,
    "shares": 200,
    "retained messages": 200,
    "QoS 2 messages": 200,
}
# Enough to fill the bound of what is remembered of topics.
FEW_ROUNDS = 60


def churn(world: World, what: str, number: int) -> None:
    """Something comes, and goes again."""
    name = f"n{number}"
    if what == "connections":
        world.connect(name).cut()
    elif what == "sessions that are kept":
        # for years, were it not for the clean start that ends it
        ages = Properties(session_expiry_interval=0xFFFFFFFE)
        world.connect("same", properties=ages).cut()
    elif what == "delayed wills":
        delay = Properties(will_delay_interval=0xFFFFFFFE)
        ages = Properties(session_expiry_interval=0xFFFFFFFE)
        world.connect("same", will=Will(name, b"x", properties=delay), properties=ages).cut()
    elif what in ("subscriptions", "wildcards", "shares"):
        topic_filter = {"wildcards": f"+/{name}/#", "shares": f"$share/{name}/{name}"}.get(what)
        client = world.connect("same")
        client.subscribe(topic_filter or f"a/{name}/b")
        if number % 2:
            client.send(Unsubscribe(1, [topic_filter or f"a/{name}/b"]))
    else:
        client = world.connect("same")
        if what == "retained messages":
            client.send(Publish(f"a/{name}/b", b"x", retain=True))
            client.send(Publish(f"a/{name}/b", b"", retain=True))
        else:
            client.send(Publish("t", b"x", qos=2, packet_id=number + 1))
            client.send(PubRel(number + 1))
    for client in list(world.clients):
        if client.is_closed():
            client.cut()
    world.log.clear()


@pytest.mark.parametrize("what", CHURN)
def test_class_13_what_has_come_and_gone_leaves_nothing_behind(what: str) -> None:
    # What is remembered of topics has a bound of its own, and is full before the count begins.
    world = World(BrokerSettings(sys_interval=0.0, route_cache=50))
    rounds = repeats(CHURN[what], FEW_ROUNDS)
    for number in range(rounds):
        churn(world, what, number)
    with memory() as held:
        for number in range(rounds, 4 * rounds):
            churn(world, what, number)
        # a number and a name in one place each time would be more
        assert held() < 3 * rounds * 100 + 5_000


# --- connections ----------------------------------------------------------------------------------


@VERSIONS
def test_class_13_a_client_above_the_bound_is_refused_until_another_leaves(version: int) -> None:
    world = World(BrokerSettings(maximum_connections=5))
    clients = [world.connect(f"c{number}", version) for number in range(5)]
    code = 0x89 if version == MQTT5 else 3
    for number in range(20):
        late = world.open(version)
        (connack,) = late.send(Connect(f"late{number}", version=version))
        assert isinstance(connack, ConnAck)
        assert connack.reason == code
        assert late.is_closed()
        late.cut()
    for client in clients:
        assert client.send(PingReq()) == [PingResp()]
    clients[0].cut()
    assert world.connect("late", version).send(PingReq()) == [PingResp()]


def test_class_13_who_is_refused_disturbs_nobody_who_is_in() -> None:
    """A CONNECT above the bound takes no session over, wipes none, and leaves no will."""
    world = World(BrokerSettings(maximum_connections=2))
    watching = world.connect("watcher")
    watching.subscribe("#")
    client = world.connect("a", properties=KEPT)
    client.subscribe("t", qos=1)
    late = world.open()
    late.send(Connect("a", clean_start=True, will=Will("gone", b"bye")))
    assert late.is_closed()
    late.cut()
    assert not client.is_closed()
    watching.send(Publish("t", b"x"))
    assert payloads(client.take()) == [b"x"]
    assert payloads(watching.take()) == []


def test_class_13_silent_connections_are_closed_in_time_and_make_room() -> None:
    """And while they are there they keep nobody out: see test_arrivals.py"""
    world = World(BrokerSettings(maximum_connections=10, connect_timeout=5.0))
    silent = [world.open() for _ in range(10)]
    world.connect("at once").cut()
    world.wait(4)
    assert not any(client.is_closed() for client in silent)
    world.wait(1)
    assert all(client.is_closed() for client in silent)
    for client in silent:
        client.cut()
    assert world.connect("late").send(PingReq()) == [PingResp()]


@VERSIONS
def test_class_13_a_connect_that_drips_in_does_not_stretch_its_time(version: int) -> None:
    """Slow loris: bytes are no packet, and it is the packet that has to come in time"""
    world = World(BrokerSettings(connect_timeout=5.0))
    data = encode(Connect("a", version=version, user_name="u"), version)
    drip, right = world.open(version), world.open(version)
    right.send_bytes(data[:-1])
    for byte in data:
        drip.send_bytes(bytes([byte]))
        world.wait(1)
        if drip.is_closed():
            break
    assert world.now == 1_005.0
    assert right.is_closed()
    in_time = world.open(version)
    in_time.send_bytes(data[:-1])
    world.wait(4)
    assert [type(packet) for packet in in_time.send_bytes(data[-1:])] == [ConnAck]
    world.wait(100)
    assert not in_time.is_closed()


@VERSIONS
def test_class_13_a_packet_that_stays_unfinished_is_one_clients_own_affair(version: int) -> None:
    """Half a packet and then silence: kept as long as the connection is, and no longer."""
    world = World(BrokerSettings(maximum_packet_size=100_000))
    watching = world.connect("watcher")
    watching.subscribe("#")
    data = encode(Publish("t", bytes(90_000)), version)
    with memory() as held:
        stuck = [world.connect(f"stuck{n}", version, keep_alive=10) for n in range(20)]
        for client in stuck:
            client.send_bytes(data[:80_000])
            assert watching.send(PingReq()) == [PingResp()]
        assert held() < 20 * 200_000
        world.wait(15)
        assert all(client.is_closed() for client in stuck)
        for client in stuck:
            client.cut()
        stuck.clear()
        # the last one has a name yet
        assert held() < 300_000
    whole = world.connect("whole", version)
    whole.send_bytes(data[:80_000])
    whole.send_bytes(data[80_000:])
    assert payloads(watching.take()) == [bytes(90_000)]


def test_class_13_unsubscribing_from_much_is_answered_for_each() -> None:
    """A request of a million bytes is one packet, and so is its answer."""
    client = World(BrokerSettings(packet_items=50_000)).connect("a")
    filters = [f"f/{number}" for number in range(50_000)]
    assert client.send(Unsubscribe(1, filters)) == [UnsubAck(1, [0x11] * 50_000)]

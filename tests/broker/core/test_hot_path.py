"""The hot path and the plain path emit the same bytes."""

import pytest

from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    encode,
)
from tests.broker.twins import history
from tests.broker.world import World
from tests.modes import repeats


@pytest.mark.slow
@pytest.mark.parametrize("block", range(repeats(12, 3)))
def test_both_paths_emit_the_same_bytes(block: int) -> None:
    taken = received = 0
    for seed in range(block * 15, block * 15 + 15):
        broker = history(seed).brokers[0]
        assert broker.hot_path is not None
        taken += broker.hot_path.taken
        received += broker.counters.packets_received
    # Otherwise nothing was compared.
    assert 0.1 < taken / received < 0.9


def taken(world: World) -> int:
    assert world.broker.hot_path is not None
    return world.broker.hot_path.taken


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_the_first_message_to_a_topic_is_plain_and_the_next_ones_are_not(version: int) -> None:
    world = World()
    reader = world.connect("r", version)
    reader.subscribe("t", qos=2)
    publisher = world.connect("p", version)
    publisher.send(Publish("t", b"1"))
    assert taken(world) == 0
    publisher.send(Publish("t", b"2"), Publish("t", b"3"))
    assert taken(world) == 2
    # The authority may decide differently about a higher QoS.
    publisher.send(Publish("t", b"4", 1, 1))
    assert taken(world) == 2
    publisher.send(Publish("t", b"5", 1, 2), Publish("t", b"6"))
    assert taken(world) == 4
    received = [packet.payload for packet in reader.take() if isinstance(packet, Publish)]
    assert received == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.parametrize(
    "packet",
    [
        Publish("t", b"x", retain=True),
        Publish("t", b"x", 1, 1, dup=True),
        Publish("u", b"x"),
        Publish("t", bytes(2_100_000)),
    ],
    ids=["RETAIN", "DUP", "another topic", "very long"],
)
def test_what_is_unusual_is_taken_plainly_and_alone(packet: Packet) -> None:
    world = World(BrokerSettings(maximum_packet_size=3_000_000))
    reader = world.connect("r", MQTT311)
    reader.subscribe("#", qos=2)
    publisher = world.connect("p", MQTT311)
    publisher.send(Publish("t", b"1"))
    publisher.send(Publish("t", b"2"), packet, Publish("t", b"3"))
    assert taken(world) == 2
    payloads = [p.payload for p in reader.take() if isinstance(p, Publish)]
    assert isinstance(packet, Publish)
    assert payloads == [b"1", b"2", packet.payload, b"3"]


@pytest.mark.parametrize(("length", "hot"), [(b"\x05", 1), (b"\x85\x00", 0)])
def test_a_length_that_is_longer_than_it_must_be_is_for_the_plain_path(
    length: bytes, hot: int
) -> None:
    """5.0 refuses it [MQTT-1.5.5-1]; 3.1.1 has no such rule."""
    world = World()
    publisher = world.connect("p", MQTT311)
    publisher.send(Publish("t", b"1"))
    publisher.send_bytes(b"\x30" + length + b"\x00\x01t12")
    assert taken(world) == hot


def test_without_a_cache_everything_is_plain() -> None:
    world = World(BrokerSettings(route_cache=0))
    reader = world.connect("r")
    reader.subscribe("t")
    publisher = world.connect("p")
    for _ in range(3):
        publisher.send(Publish("t"), Publish("t"))
    assert taken(world) == 0
    assert len(reader.take()) == 6


def test_a_run_is_cut_where_its_bytes_are() -> None:
    """What follows a run in the same piece, whole or in part, is not part of it."""
    world = World()
    reader = world.connect("r", MQTT311)
    reader.subscribe("t")
    publisher = world.connect("p", MQTT311)
    publisher.send(Publish("t"))
    reader.take()
    one = encode(Publish("t", b"12"), MQTT311)
    publisher.send_bytes(one * 3 + b"\xc0\x00" + one[:4])
    assert reader.take() == [Publish("t", b"12")] * 3
    publisher.send_bytes(one[4:])
    assert reader.take() == [Publish("t", b"12")]


def test_the_end_of_an_exchange_that_a_client_made_up_is_the_same_both_ways() -> None:
    """A PUBREC for nothing is answered with PUBREL [MQTT-4.3.3-4], and that with PUBCOMP."""
    for hot in (True, False):
        world = World()
        if not hot:
            world.broker.hot_path = None
        client = world.connect("a")
        assert client.send(PubRec(9)) == [PubRel(9, 0x92)]
        assert client.send(PubComp(9)) == []
        assert not client.is_closed()
        assert client.send(PingReq()) == [PingResp()]


@pytest.mark.parametrize(("no_local", "reason"), [(True, 0x10), (False, 0)])
def test_who_alone_subscribes_and_wants_nothing_back_is_no_subscriber(
    no_local: bool, reason: int
) -> None:
    """[MQTT-3.8.3-3]: nobody matches, and the PUBACK may say so; the same on both paths"""
    world = World()
    client = world.connect("a")
    client.send(Subscribe(1, [Subscription("t", no_local=no_local)]))
    for packet_id in (1, 2):
        *got, puback = sorted(
            client.send(Publish("t", b"x", 1, packet_id)), key=lambda each: isinstance(each, PubAck)
        )
        assert puback == PubAck(packet_id, reason)
        assert len(got) == (0 if no_local else 1)
    assert taken(world) == 1


@pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])
@pytest.mark.parametrize("is_hot", [True, False], ids=["hot", "plain"])
@pytest.mark.parametrize("resumed", [True, False], ids=["resumed", "new"])
def test_a_second_pubrec_with_its_pubcomp_in_one_piece_is_answered_and_judged(
    version: int, is_hot: bool, resumed: bool
) -> None:
    """[MQTT-4.3.3-4] PUBREL answers it; PUBCOMP for that is right, and one more is not."""
    world = World()
    if not is_hot:
        world.broker.hot_path = None
    kept = Properties(session_expiry_interval=100) if version == MQTT5 else Properties()
    reader = world.connect("r", version, clean_start=False, properties=kept)
    reader.subscribe("t", qos=2)
    world.connect("p").send(Publish("t", b"x", 2, 1))
    assert PubRel(1) in reader.send(PubRec(1))
    if resumed:
        reader.cut()
        reader = world.connect("r", version, clean_start=False, properties=kept, present=True)
        assert reader.take() == [PubRel(1)]
    assert reader.send(PubRec(1), PubComp(1)) == [PubRel(1)]
    assert reader.send(PubComp(1)) == []
    assert not reader.is_closed()
    reader.send(PubComp(1))
    assert reader.is_closed()
    assert "ANSWER_FITS_REQUEST" in world.log[-1]


@pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])
@pytest.mark.parametrize("is_hot", [True, False], ids=["hot", "plain"])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(
    "bound",
    [BrokerSettings(maximum_queued_bytes=100), BrokerSettings(maximum_queued_messages=1)],
    ids=["bytes", "messages"],
)
def test_what_need_not_wait_is_not_dropped_by_a_bound_of_what_waits(
    version: int, is_hot: bool, qos: int, bound: BrokerSettings
) -> None:
    """Its reader keeps up; another that does not has what waits bounded, as before."""
    world = World(bound)
    if not is_hot:
        world.broker.hot_path = None
    reader = world.connect("r", version)
    reader.subscribe("t", qos=qos)
    away = world.connect(
        "away", clean_start=False, properties=Properties(session_expiry_interval=100)
    )
    away.subscribe("t", qos=qos)
    away.cut()
    publisher = world.connect("p", version)
    payload = bytes(200)
    for packet_id in range(1, 6):
        publisher.send(Publish("t", payload, qos, packet_id))
        (message,) = reader.take()
        assert isinstance(message, Publish)
        assert message.payload == payload
    waiting = bound.maximum_queued_messages if bound.maximum_queued_bytes > 200 else 0
    assert world.broker.router.dropped == 5 - waiting
    assert len(world.broker.router.sessions["away"].session.backlog) == waiting


@pytest.mark.parametrize("size", [127, 128, 16_383, 16_384, 60_000, 1_000_000])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_every_length_up_to_2_mib_is_taken(size: int, qos: int) -> None:
    world = World(BrokerSettings(maximum_packet_size=2_000_000))
    reader = world.connect("r", MQTT311)
    reader.subscribe("t", qos=2)
    publisher = world.connect("p", MQTT311)
    publisher.send(Publish("t", b"", qos, 1 if qos else 0))
    reader.take()
    # The Remaining Length counts the topic and the identifier, too.
    payload = bytes(size - 3 - (2 if qos else 0))
    publisher.send(Publish("t", payload, qos, 2 if qos else 0))
    assert taken(world) == 1
    (received,) = [p for p in reader.take() if isinstance(p, Publish)]
    assert received.payload == payload


UNCHANGED = {
    "content type": Properties(content_type="text/plain"),
    "response": Properties(response_topic="answers", correlation_data=b"\x00\x01"),
    "user": Properties(user_properties=[("b", "1"), ("a", "2"), ("b", "1")]),
    "text": Properties(payload_format_indicator=1),
    "not text": Properties(payload_format_indicator=0),
}
CHANGED = {
    "expiry": Properties(message_expiry_interval=9),
    "alias": Properties(topic_alias=1),
    "long": Properties(user_properties=[("k", "v" * 130)]),
}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("name", [*UNCHANGED, *CHANGED])
def test_properties_that_are_sent_on_unchanged_are_taken(name: str, qos: int) -> None:
    """[MQTT-3.3.2-4, -15 to -18, -20]; the others belong to a connection or count down."""
    properties = UNCHANGED.get(name) or CHANGED[name]
    world = World(BrokerSettings(topic_alias_maximum=5))
    reader = world.connect("r")
    reader.subscribe("t", qos=2)
    older = world.connect("o", MQTT311)
    older.subscribe("t", qos=2)
    publisher = world.connect("p")
    publisher.send(Publish("t", b"", qos, 1 if qos else 0))
    for each in (reader, older):
        each.take()
    packets = [
        Publish("t", payload, qos, number if qos else 0, properties=properties)
        for number, payload in enumerate((b"1", b"2"), 2)
    ]
    publisher.send(*packets)
    assert taken(world) == (2 if name in UNCHANGED else 0)
    received = [p for p in reader.take() if isinstance(p, Publish)]
    assert [p.payload for p in received] == [b"1", b"2"]
    if name != "alias":
        assert [p.properties for p in received] == [properties] * 2
    plain = [p for p in older.take() if isinstance(p, Publish)]
    assert [(p.payload, p.properties.present) for p in plain] == [(b"1", 0), (b"2", 0)]


@pytest.mark.parametrize(
    ("section", "payload", "is_legal"),
    [
        (b"\x04\x03\x00\x01a", b"x", True),
        # Content Type twice; ill-formed UTF-8; not all of the section; an unknown property.
        (b"\x08\x03\x00\x01a\x03\x00\x01a", b"x", False),
        (b"\x04\x03\x00\x01\xff", b"x", False),
        (b"\x05\x03\x00\x03a", b"x", False),
        (b"\x02\x05\x00", b"x", False),
        # The payload must be UTF-8 if the properties say so [3.3.2.3.2].
        (b"\x02\x01\x01", "é".encode(), True),
        (b"\x02\x01\x01", b"\xff", False),
        (b"\x02\x01\x00", b"\xff", True),
        (b"\x02\x01\x02", b"x", False),
        # A wildcard in the Response Topic [MQTT-3.3.2-14].
        (b"\x04\x08\x00\x01#", b"x", False),
        (b"\x04\x08\x00\x01a", b"x", True),
    ],
)
@pytest.mark.parametrize("qos", [0, 1])
def test_properties_that_break_a_rule_are_refused_by_the_plain_path(
    section: bytes, payload: bytes, is_legal: bool, qos: int
) -> None:
    world = World()
    reader = world.connect("r")
    reader.subscribe("t", qos=1)
    publisher = world.connect("p")
    publisher.send(Publish("t", b"", qos, 1 if qos else 0))
    reader.take()
    identifier = b"\x00\x02" if qos else b""
    body = b"\x00\x01t" + identifier + section + payload
    publisher.send_bytes(bytes((0x30 | qos << 1, len(body))) + body)
    assert publisher.is_closed() is not is_legal
    assert taken(world) == (1 if is_legal else 0)
    assert len(reader.take()) == (1 if is_legal else 0)


def test_properties_count_as_items_of_a_packet() -> None:
    for items, is_legal in ((16, True), (17, False)):
        world = World(BrokerSettings(packet_items=16))
        publisher = world.connect("p")
        publisher.send(Publish("t"))
        properties = Properties(user_properties=[("k", "")] * items)
        publisher.send(Publish("t", properties=properties))
        assert publisher.is_closed() is not is_legal
        assert taken(world) == (1 if is_legal else 0)

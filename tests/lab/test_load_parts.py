"""The parts of a load: topics, packets, trackers, windows, turns."""

import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.lab.load.clients import Publisher, Subscriber
from semel.lab.load.delivery_tracker import MOST_GAPS, DeliveryTracker, Latencies
from semel.lab.load.description import FLEET, PAIRS, PLANT, SCENARIOS, InvalidLoad, Load
from semel.lab.load.links import LinkError, LoadLink
from semel.lab.load.traffic import (
    LATE_SECONDS,
    SHORTEST_WAIT,
    SharedCounts,
    TrafficGroup,
    TrafficPace,
)
from semel.lab.load.wire import COUNTER_BITS, STAMP, StampedPackets, layout_of, plain_acks
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Decoder,
    Disconnect,
    Packet,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    encode,
    topic_matches,
)

VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5])
LOADS = [
    Load(publishers=3, subscribers=4, topics=5),
    Load(PAIRS, publishers=4, subscribers=4, topics=12),
    Load(PLANT, publishers=2, subscribers=22, topics=60),
    Load(PLANT, subscribers=132, topics=240),
    Load(FLEET, publishers=12, subscribers=2, topics=24),
]
SHAPES = pytest.mark.parametrize("load", LOADS, ids=lambda load: f"{load.shape}-{load.subscribers}")


# --- who publishes what to whom -------------------------------------------------------------------


@SHAPES
def test_the_filters_of_a_subscriber_match_the_topics_that_it_reads_and_no_others(
    load: Load,
) -> None:
    names = [load.topic_name("prefix", topic) for topic in range(load.topics)]
    assert len(set(names)) == load.topics
    assert len({len(name) for name in names}) == 1
    for subscriber in range(load.subscribers):
        filters = load.topic_filters("prefix", subscriber)
        matched = [
            topic
            for topic, name in enumerate(names)
            if any(topic_matches(each, name) for each in filters)
        ]
        assert matched == list(load.read_by(subscriber))


@SHAPES
def test_every_message_goes_to_as_many_subscribers_as_the_fan_out_says(load: Load) -> None:
    for publisher in range(load.publishers):
        for topic in load.written_by(publisher):
            readers = [each for each in range(load.subscribers) if topic in load.read_by(each)]
            assert len(readers) == load.fan_out


@SHAPES
def test_a_lane_is_one_publisher_and_one_topic_and_belongs_to_who_reads_the_topic(
    load: Load,
) -> None:
    lanes = {
        load.lane(topic, publisher): topic
        for publisher in range(load.publishers)
        for topic in load.written_by(publisher)
    }
    written = [load.written_by(publisher) for publisher in range(load.publishers)]
    assert len(lanes) == len(list(chain.from_iterable(written)))
    for subscriber in range(load.subscribers):
        read = load.read_by(subscriber)
        assert {lane for lane, topic in lanes.items() if topic in read} == set(
            load.lanes(subscriber)
        )


@SHAPES
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_what_a_subscriber_should_have_is_what_was_sent_to_its_topics(
    load: Load, data: st.DataObject
) -> None:
    counts = st.integers(0, 3 * load.topics)
    sent = [data.draw(counts) for _ in range(load.publishers)]
    should = [0] * load.subscribers
    for publisher, count in enumerate(sent):
        topics = load.written_by(publisher)
        for number in range(count):
            topic = topics[number % len(topics)]
            for subscriber in range(load.subscribers):
                should[subscriber] += topic in load.read_by(subscriber)
    assert load.expected(sent) == should


@pytest.mark.parametrize(
    ("wrong", "right", "word"),
    [
        ({"publishers": 0, "subscribers": 0}, {"publishers": 0}, "at least one client"),
        ({"publishers": 60_000}, {"publishers": 59_999}, "60,000"),
        ({"shape": PAIRS, "publishers": 2}, {"shape": PAIRS}, "must equal"),
        (
            {"shape": PAIRS, "publishers": 2, "subscribers": 2, "topics": 3},
            {"shape": PAIRS, "publishers": 2, "subscribers": 2, "topics": 4},
            "number of pairs",
        ),
        (
            {"shape": FLEET, "publishers": 3, "topics": 4},
            {"shape": FLEET, "publishers": 3, "topics": 6},
            "topics of a fleet",
        ),
        (
            {"shape": PLANT, "subscribers": 12, "topics": 10},
            {"shape": PLANT, "subscribers": 11, "topics": 10},
            "multiple of 11",
        ),
        (
            {"shape": PLANT, "subscribers": 0, "topics": 10},
            {"shape": PLANT, "subscribers": 22, "topics": 20},
            "multiple of 11",
        ),
        (
            {"shape": PLANT, "subscribers": 22, "topics": 30},
            {"shape": PLANT, "subscribers": 22, "topics": 40},
            "multiple of 20",
        ),
        (
            {"topics": 1 << 20, "publishers": 17},
            {"topics": 1 << 20, "publishers": 16},
            "16,777,216",
        ),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(
    wrong: dict[str, object], right: dict[str, object], word: str
) -> None:
    with pytest.raises(InvalidLoad, match=word):
        replace(Load(), **wrong)  # type: ignore[arg-type]
    assert replace(Load(), **right)  # type: ignore[arg-type]


def test_one_number_changes_all_numbers_of_pairs() -> None:
    pairs = SCENARIOS["pairs"]
    for changes in ({"publishers": 3}, {"subscribers": 3}):
        load = pairs.changed(changes)
        assert (load.publishers, load.subscribers, load.topics) == (3, 3, 3)
    assert pairs.changed({"publishers": 3, "topics": 6}).topics == 6
    assert pairs.changed({"qos": 1}).publishers == pairs.load.publishers
    assert SCENARIOS["fan-in"].changed({"publishers": 3}).subscribers == 1


def test_in_a_fleet_each_publisher_has_a_topic_unless_told_otherwise() -> None:
    fleet = SCENARIOS["fleet"]
    assert fleet.changed({"publishers": 3}).topics == 3
    assert fleet.changed({"publishers": 3, "topics": 6}).topics == 6
    assert fleet.changed({"publishers": 0}).topics == 1
    assert fleet.changed({"qos": 0}).topics == fleet.load.topics


# --- bytes ----------------------------------------------------------------------------------------


def stamped(load: Load, publisher: int, *counts: int) -> list[Publish]:
    """The packets of a source, taken in chunks of these sizes."""
    source = StampedPackets(load, "prefix", publisher)
    decoder = Decoder(load.version)
    packets: list[Publish] = []
    for count in counts:
        while count:
            data, taken = source.take(count)
            assert 0 < taken <= count
            count -= taken
            for packet in decoder.receive(bytes(data)):
                assert isinstance(packet, Publish)
                packets.append(packet)
    return packets


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_every_message_says_its_lane_its_number_and_when_it_left(
    version: int, qos: int, retain: bool
) -> None:
    load = Load(publishers=2, topics=3, payload=300, qos=qos, version=version, retain=retain)
    before = time.monotonic_ns()
    packets = stamped(load, 1, 1, 4, 2)
    after = time.monotonic_ns()
    topics = load.written_by(1)
    for number, packet in enumerate(packets):
        topic = topics[number % 3]
        assert packet.topic_name == load.topic_name("prefix", topic)
        assert (packet.qos, packet.retain, packet.dup) == (qos, retain, False)
        assert packet.packet_id == (number + 1 if qos else 0)
        assert len(packet.payload) == 300
        message_id, left = STAMP.unpack_from(packet.payload)
        assert message_id == load.lane(topic, 1) << COUNTER_BITS | number // 3
        assert before <= left <= after
    assert len(packets) == 7


def test_packet_identifiers_go_from_1_to_65535_and_begin_again() -> None:
    packets = stamped(Load(qos=1), 0, 65_535, 2)
    assert [packet.packet_id for packet in packets[-4:]] == [65_534, 65_535, 1, 2]


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("payload", [16, 100, 20_000])
def test_a_layout_knows_where_things_are(version: int, qos: int, payload: int) -> None:
    packet = Publish("a/topic", b"p" * payload, qos, 0x1234 if qos else 0)
    data = encode(packet, version)
    layout = layout_of(version, "a/topic", payload, qos)
    assert len(data) == layout.size
    assert data.startswith(layout.head)
    assert data[layout.topic_at :].startswith(b"a/topic")
    assert data[layout.payload_at :] == packet.payload
    if qos:
        assert data[layout.id_at : layout.id_at + 2] == b"\x12\x34"


@pytest.mark.parametrize("reason", [0, 0x10])
def test_acknowledgements_of_success_are_taken_and_a_part_of_one_is_left(reason: int) -> None:
    acks = [encode(PubAck(number, reason), MQTT5) for number in (1, 2, 3)]
    data = b"?" + b"".join(acks)
    plain = b"".join(encode(PubAck(number), MQTT5) for number in (1, 2, 3))
    assert plain_acks(data, 1) == (plain, len(data))
    assert plain_acks(data[:-1], 1) == (plain[:8], len(data) - len(acks[0]))
    assert plain_acks(data[:2], 1) == (b"", 1)


@pytest.mark.parametrize(
    "data",
    [
        b"\x40\x03\x00\x01\x97",  # Quota exceeded
        b"\x40\x03\x00\x01\x10\x40\x03\x00\x02\x97",
        b"\x40\x02\x00\x01\x40\x03\x00\x02\x10",
        b"\xe0\x00\x40\x02",
    ],
)
def test_acknowledgements_that_differ_or_fail_are_not_processed_as_a_run(data: bytes) -> None:
    assert plain_acks(data, 0) == (b"", 0)


# --- trackers -------------------------------------------------------------------------------------


def message_id(lane: int, number: int) -> int:
    return lane << COUNTER_BITS | number


def tracker_of(*numbers: int, lanes: range = range(1)) -> DeliveryTracker:
    """The tracker of a subscriber that got these messages of lane 0."""
    tracker = DeliveryTracker(lanes, Latencies())
    tracker.record([(message_id(0, number), 0) for number in numbers])
    return tracker


@pytest.mark.parametrize(
    ("numbers", "received", "duplicated", "out_of_order"),
    [
        ((0, 1, 2), 3, 0, 0),
        ((0, 2), 2, 0, 0),
        ((2,), 1, 0, 0),
        ((0, 0, 1), 2, 1, 0),
        ((0, 1, 0), 2, 1, 0),
        ((0, 2, 1), 3, 0, 1),
        ((1, 0), 2, 0, 1),
        ((4, 2, 0, 1, 3), 5, 0, 4),
        ((0, 2, 1, 1, 2), 3, 2, 1),
    ],
)
def test_lost_duplicated_and_reordered_messages_are_distinguished(
    numbers: tuple[int, ...], received: int, duplicated: int, out_of_order: int
) -> None:
    got = tracker_of(*numbers)
    assert (got.received, got.duplicated, got.out_of_order) == (received, duplicated, out_of_order)
    assert got.missing == max(numbers) + 1 - received


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=60), st.integers(1, 9))
def test_a_tracker_agrees_with_one_that_remembers_everything(
    messages: list[tuple[int, int]], at_once: int
) -> None:
    got = DeliveryTracker(range(3), Latencies())
    fresh = 0
    for at in range(0, len(messages), at_once):
        some = messages[at : at + at_once]
        fresh += got.record([(message_id(lane, number), at) for lane, number in some])
    seen: set[tuple[int, int]] = set()
    out_of_order = 0
    for lane, number in messages:
        later = any(other > number for its, other in seen if its == lane)
        out_of_order += later and (lane, number) not in seen
        seen.add((lane, number))
    assert got.received == fresh == len(seen)
    assert got.duplicated == len(messages) - len(seen)
    assert got.out_of_order == out_of_order


def test_a_message_of_a_lane_that_is_not_the_subscribers_is_a_fault() -> None:
    got = tracker_of(0, lanes=range(2))
    assert got.record([(message_id(1, 0), 0)]) == 1
    with pytest.raises(LinkError, match="has not subscribed"):
        got.record([(message_id(2, 0), 0)])


def test_of_too_many_gaps_the_first_is_forgotten() -> None:
    # Every second message is missing: one gap more than are kept.
    got = tracker_of(*range(1, 2 * MOST_GAPS + 2, 2))
    assert got.received == MOST_GAPS + 1
    got.record([(message_id(0, 2), 0), (message_id(0, 2 * MOST_GAPS), 0)])
    assert (got.out_of_order, got.duplicated) == (2, 0)
    got.record([(message_id(0, 0), 0)])
    assert (got.out_of_order, got.duplicated) == (2, 1)


@given(st.lists(st.integers(0, 10**12), min_size=1), st.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_accurate_to_one_percent(durations: list[int], fraction: float) -> None:
    latencies = Latencies()
    for duration in durations:
        latencies.add(duration)
    # The smallest duration that this fraction does not exceed.
    expected = sorted(durations)[max(0, -(-int(fraction * 100) * len(durations) // 100) - 1)]
    assert expected * 0.99 - 1 <= latencies.quantile(fraction) <= expected
    assert latencies.longest == max(durations)


def test_latencies_of_several_processes_are_put_together() -> None:
    quick, slow = Latencies(), Latencies()
    quick.add(100, 98)
    slow.add(5_000, 2)
    quick.merge(slow)
    assert (quick.quantile(0.5), quick.longest) == (100, 5_000)
    assert quick.quantile(0.99) == pytest.approx(5_000, rel=0.01)
    assert Latencies().quantile(0.5) == 0


# --- clients --------------------------------------------------------------------------------------


@contextmanager
def linked(version: int = MQTT5) -> Iterator[tuple[LoadLink, socket.socket]]:
    """A link, and the socket of the broker at its other end."""
    ours, broker = socket.socketpair()
    broker.settimeout(20)
    with select.epoll() as epoll, ours, broker:
        yield LoadLink(ours, version, epoll), broker


def packets_from(broker: socket.socket, version: int = MQTT5) -> list[Packet]:
    """What a client has sent."""
    broker.setblocking(False)
    data = b""
    try:
        while more := broker.recv(1 << 16):
            data += more
    except BlockingIOError:
        pass
    found = Decoder(version).receive(data)
    assert not any(isinstance(packet, Exception) for packet in found)
    return [packet for packet in found if not isinstance(packet, Exception)]


def ids_of(packets: list[Packet]) -> list[int]:
    return [packet.packet_id for packet in packets if isinstance(packet, Publish | PubRel)]


def publisher_of(link: LoadLink, qos: int, window: int) -> Publisher:
    load = Load(qos=qos, version=link.version)
    return Publisher(link, StampedPackets(load, "prefix", 0), qos=qos, window=window)


@VERSIONS
def test_a_publisher_keeps_to_its_window_from_the_oldest_message_on(version: int) -> None:
    with linked(version) as (link, broker):
        publisher = publisher_of(link, 1, 3)
        assert publisher.send(10) == 3
        assert ids_of(packets_from(broker, version)) == [1, 2, 3]
        # The first is not answered: its identifier stays in use, and so does the window.
        for packet_id in (2, 3):
            broker.send(encode(PubAck(packet_id), version))
        assert publisher.receive() == 2
        assert publisher.send(10) == 0
        broker.send(encode(PubAck(1), version))
        assert publisher.receive() == 1
        assert publisher.send(2) == 2
        assert publisher.send(10) == 1
        assert ids_of(packets_from(broker, version)) == [4, 5, 6]
        assert (publisher.sent, publisher.acknowledged) == (6, 3)


@VERSIONS
def test_the_time_until_a_message_is_complete_is_measured_if_asked(version: int) -> None:
    with linked(version) as (link, broker):
        publisher = publisher_of(link, 1, 4)
        assert publisher.send(1) == 1
        publisher.latencies = Latencies()
        assert publisher.send(3) == 3
        time.sleep(0.02)
        # The first was sent before; the last is answered before the third.
        for packet_id in (1, 2, 4, 3):
            broker.send(encode(PubAck(packet_id), version))
            assert publisher.receive() == 1
        assert sum(publisher.latencies.buckets.values()) == 3
        assert 0.02e9 <= publisher.latencies.longest < 20e9


def test_identifiers_begin_again_while_answers_come_in_order_or_not() -> None:
    with linked() as (link, broker):
        publisher = publisher_of(link, 1, 100)
        answered = 0
        while answered < 70_000:
            sent = publisher.send(100)
            ids = ids_of(packets_from(broker))
            if answered % 3 == 0:
                ids.reverse()
            broker.send(b"".join(encode(PubAck(each)) for each in ids))
            answered += publisher.receive()
            assert publisher.acknowledged == publisher.sent == answered
            assert sent == len(ids)


@VERSIONS
def test_a_publisher_at_qos_2_releases_what_was_received(version: int) -> None:
    with linked(version) as (link, broker):
        publisher = publisher_of(link, 2, 2)
        publisher.send(2)
        packets_from(broker, version)
        broker.send(encode(PubRec(1), version) + encode(PubRec(2), version))
        assert publisher.receive() == 0
        assert packets_from(broker, version) == [PubRel(1), PubRel(2)]
        # Complete and received, mixed.
        broker.send(encode(PubComp(1), version))
        assert publisher.receive() == 1
        assert publisher.send(2) == 1
        broker.send(encode(PubRec(3), version) + encode(PubComp(2), version))
        assert publisher.receive() == 1
        packets = packets_from(broker, version)
        assert ids_of(packets) == [3, 3]
        assert packets[1] == PubRel(3)


@pytest.mark.parametrize("qos", [1, 2])
def test_nobody_subscribed_is_a_success(qos: int) -> None:
    with linked() as (link, broker):
        publisher = publisher_of(link, qos, 2)
        publisher.send(2)
        answers: list[Packet] = [PubAck(1, 0x10), PubAck(2, 0x10)]
        if qos == 2:
            answers = [PubRec(1, 0x10), PubRec(2, 0x10), PubComp(1), PubComp(2)]
        for packet in answers:
            broker.send(encode(packet))
        assert publisher.receive() == 2


@pytest.mark.parametrize(
    ("qos", "answer", "word"),
    [
        (1, PubAck(2), "identifier 2, which was not in use"),
        (1, PubAck(1, 0x97), "refused a message: quota exceeded (0x97)"),
        (2, PubRec(1, 0x97), "refused a message: quota exceeded (0x97)"),
        (1, PubRec(1), "sent PubRec to a publisher at QoS 1"),
        (2, PubAck(1), "sent PubAck to a publisher at QoS 2"),
        (0, PubAck(1), "sent PubAck to a publisher at QoS 0"),
        (1, Disconnect(0x8B), "closed a connection: server shutting down (0x8b)"),
    ],
)
def test_a_wrong_answer_is_a_fault(qos: int, answer: Packet, word: str) -> None:
    with linked() as (link, broker):
        publisher = publisher_of(link, qos, 9)
        publisher.send(1)
        broker.send(encode(answer))
        with pytest.raises(LinkError) as fault:
            publisher.receive()
        assert word in str(fault.value)


def test_a_second_answer_is_a_fault() -> None:
    with linked() as (link, broker):
        publisher = publisher_of(link, 1, 9)
        publisher.send(3)
        broker.send(encode(PubAck(2)) + encode(PubAck(2)))
        with pytest.raises(LinkError, match="identifier 2, which was not in use"):
            publisher.receive()


def test_a_connection_that_ends_is_a_fault() -> None:
    with linked() as (link, broker):
        publisher = publisher_of(link, 1, 9)
        broker.close()
        with pytest.raises(LinkError, match="closed a connection"):
            publisher.receive()
        with pytest.raises(LinkError, match="closed a connection"):
            publisher.send(1)


def test_answers_wait_for_the_rest_of_a_packet_that_found_no_room() -> None:
    with linked() as (link, broker):
        load = Load(qos=2, payload=500_000)
        source = StampedPackets(load, "prefix", 0)
        publisher = Publisher(link, source, qos=2, window=9)
        begun = publisher.send(9)
        assert 0 < begun < 9
        assert publisher.send(9) == 0
        # Now there is room for an answer, in the middle of a message.
        data = broker.recv(1 << 20)
        broker.send(encode(PubRec(1)))
        publisher.receive()
        decoder = Decoder()
        packets: list[Packet] = [
            each for each in decoder.receive(data) if isinstance(each, Publish)
        ]
        while not any(isinstance(packet, PubRel) for packet in packets):
            if link.is_full:
                link.flush()
            for packet in decoder.receive(broker.recv(1 << 20)):
                assert not isinstance(packet, Exception)
                packets.append(packet)
        assert ids_of(packets) == [*range(1, begun + 1), 1]
        assert publisher.send(1) == 1


def deliveries(load: Load, count: int) -> bytes:
    """Messages as a broker delivers them, with things between them that it may send."""
    source = StampedPackets(load, "prefix", 0)
    data = b""
    for number in range(count):
        packet, _ = source.take(1)
        data += packet
        if load.qos == 2 and number % 3:
            data += encode(PubRel(number), load.version)
        if number == count // 2:
            data += encode(PingResp())
    return data


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [1, 3, 35, 100, 10_000])
def test_a_subscriber_answers_alike_however_packets_are_cut(
    version: int, qos: int, size: int
) -> None:
    load = Load(qos=qos, version=version)
    data = deliveries(load, 20)
    with linked(version) as (link, broker):
        layout = layout_of(version, load.topic_name("prefix", 0), load.payload, qos)
        subscriber = Subscriber(link, layout, DeliveryTracker(load.lanes(0), Latencies()))
        received = 0
        for at in range(0, len(data), size):
            broker.send(data[at : at + size])
            received += subscriber.receive()
        answers = packets_from(broker, version)
        assert received == subscriber.received == 20
        assert subscriber.has_received
        found = [packet for packet in Decoder(version).receive(data) if packet != PingResp()]
        should: list[Packet] = []
        for packet in found:
            if isinstance(packet, Publish) and qos:
                should.append(PubAck(packet.packet_id) if qos == 1 else PubRec(packet.packet_id))
            elif isinstance(packet, PubRel):
                should.append(PubComp(packet.packet_id))
        assert answers == should


def test_a_message_in_another_form_is_counted_too() -> None:
    load = Load(qos=1)
    with linked() as (link, broker):
        layout = layout_of(MQTT5, load.topic_name("prefix", 0), load.payload, 1)
        subscriber = Subscriber(link, layout, DeliveryTracker(load.lanes(0), Latencies()))
        for number, dup in enumerate((False, True)):
            payload = STAMP.pack(number, 0)
            properties = Properties(message_expiry_interval=5)
            packet = Publish("prefix/0", payload, 1, 7 + number, dup=dup, properties=properties)
            broker.send(encode(packet))
        assert subscriber.receive() == 2
        assert packets_from(broker) == [PubAck(7), PubAck(8)]


@pytest.mark.parametrize(
    ("packet", "word"),
    [
        (Publish("prefix/0", bytes(16)), "at QoS 0, not 1"),
        (Publish("prefix/0", b"short", 1, 1), "no publisher sent"),
        (Publish("prefix/0", b"\xff" * 16, 1, 1), "has not subscribed"),
        (PubAck(1), "sent PubAck to a subscriber"),
    ],
)
def test_a_delivery_that_cannot_be_is_a_fault(packet: Packet, word: str) -> None:
    load = Load(qos=1)
    with linked() as (link, broker):
        layout = layout_of(MQTT5, load.topic_name("prefix", 0), load.payload, 1)
        subscriber = Subscriber(link, layout, DeliveryTracker(load.lanes(0), Latencies()))
        broker.send(encode(packet))
        with pytest.raises(LinkError, match=word):
            subscriber.receive()


def test_bytes_that_are_not_mqtt_are_a_fault() -> None:
    load = Load()
    with linked() as (link, broker):
        layout = layout_of(MQTT5, load.topic_name("prefix", 0), load.payload, 0)
        subscriber = Subscriber(link, layout, DeliveryTracker(load.lanes(0), Latencies()))
        broker.send(b"\x00\x00")
        with pytest.raises(LinkError, match="not MQTT: PACKET_TYPE_KNOWN"):
            subscriber.receive()


# --- turns ----------------------------------------------------------------------------------------


def test_a_publisher_that_waits_for_its_acknowledgement_misses_no_turn() -> None:
    load = Load(FLEET, publishers=2, topics=2, qos=1, window=1)
    with linked() as (link, broker), linked() as (other_link, _):
        publishers = [publisher_of(each, 1, 1) for each in (link, other_link)]
        group = TrafficGroup(
            load, publishers, SharedCounts.single(), pair=None, size=40, publishing_processes=1
        )
        assert group.send() == 2
        broker.send(encode(PubAck(1)))
        assert publishers[0].receive() == 1
        assert group.send() == 0
        group.wake(publishers[0])
        group.wake(publishers[1])
        assert group.send() == 1
        assert [each.sent for each in publishers] == [2, 1]


def test_turns_are_awaited_one_by_one_up_to_a_rate_and_by_the_millisecond_above_it() -> None:
    with linked() as (link, _):
        publishers = [publisher_of(link, 0, 9) for _ in range(4)]
        slow, even, fast = (TrafficPace(publishers, rate) for rate in (1.0, 5_000.0, 5_001.0))
        assert 0.0 < slow.wait() <= 0.25
        assert even.wait() == 0.0
        assert fast.wait() == SHORTEST_WAIT


def test_publishers_take_turns_and_catch_up_with_at_most_a_second() -> None:
    with linked() as (link, _):
        publishers = [publisher_of(link, 0, 9) for _ in range(4)]
        pace = TrafficPace(publishers, 10.0)
        assert all(publisher.send(5) == 0 for publisher in publishers)
        pace.began -= 1_000.0
        chosen = pace.allow()
        assert len(chosen) == 4 * 10 * LATE_SECONDS
        assert all(chosen[at : at + 4].count(each) == 1 for at in (0, 36) for each in publishers)
        assert [publisher.send(50) for publisher in publishers] == list(repeat(10, 4))

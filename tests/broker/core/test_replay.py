"""Replay of streams over MQTT: who gets what, from where, and how much at a time.

The core with the real tables and without a network.
"""

import gc

import pytest

from semel.broker.session_state import SessionState
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    Disconnect,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)
from semel.store.schema import Unusable
from tests.broker.recorded import (
    ALL,
    Guarded,
    Plant,
    follow,
    messages,
    read_all,
    seqs,
    subscribe,
)


def user(packet: Publish) -> tuple[tuple[str, str], ...]:
    return packet.properties.user_properties


# --- where it begins ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "first"),
    [
        ("earliest", 1),
        ("latest", 6),
        (None, 6),
        ("1", 1),
        ("3", 3),
        ("0003", 3),
        ("0", 1),  # before the beginning
        ("5", 5),
        ("6", 6),
        # Message n was received at second 999 + n, counted from the beginning of 1970.
        ("1970-01-01T00:16:42Z", 3),
        ("1970-01-01T00:16:42.000001Z", 4),
        ("1970-01-01T01:16:42+01:00", 3),
        ("19700101T001642Z", 3),
        ("1970-01-01T00:00:00Z", 1),
        ("1969-07-20T20:17:40Z", 1),
        ("0001-01-01T00:00:00+23:59", 1),
        ("1970-01-01T00:16:45Z", 6),  # when the next will come
    ],
)
def test_a_replay_begins_at_its_offset_and_goes_on_with_what_is_recorded(
    offset: str | None, first: int
) -> None:
    world = Plant()
    world.fill(5)
    reader = world.reader()
    assert seqs(follow(reader, offset=offset)) == list(range(first, 6))
    world.fill(2, first=6)
    assert seqs(messages(reader.take())) == [6, 7]


def test_a_seq_beyond_the_end_waits_for_it() -> None:
    world = Plant()
    world.fill(2)
    reader = world.reader()
    assert follow(reader, offset="5") == []
    world.fill(2)
    assert reader.take() == []
    world.fill(2)
    assert seqs(messages(reader.take())) == [5, 6]
    far = world.reader("far")
    assert follow(far, offset=str(2**63 - 1)) == []


def test_a_time_to_come_waits_for_it() -> None:
    """Message n is received at second 999 + n."""
    world = Plant()
    world.fill(2)
    reader = world.reader()
    assert follow(reader, offset="1970-01-01T00:16:44Z") == []
    world.fill(4)
    assert seqs(messages(reader.take())) == [5, 6]


def test_after_a_time_was_reached_a_clock_that_is_set_back_hides_nothing() -> None:
    world = Plant()
    world.fill(3)
    reader = world.reader()
    assert seqs(follow(reader, offset="1970-01-01T00:16:42Z")) == [3]
    world.now -= 100.0
    world.fill(1)
    assert seqs(messages(reader.take())) == [4]


def test_latest_is_what_comes_after_the_subscribe_not_what_is_safe_after_it() -> None:
    world = Plant()
    publisher, reader = world.connect("p"), world.reader()
    world.hold()
    publisher.send(Publish("plant/a", b"1", 1, 1))
    assert reader.send(subscribe(offset="latest")) == [SubAck(900, [2])]
    publisher.send(Publish("plant/a", b"2", 1, 2))
    world.let_go()
    assert seqs(messages(reader.take())) == [2]


def test_a_record_is_replayed_when_its_commit_is_safe_and_not_before() -> None:
    world = Plant()
    publisher, reader = world.connect("p"), world.reader()
    assert follow(reader, qos=0) == []
    world.hold()
    publisher.send(Publish("plant/a", b"1", 1, 1))
    world.settle()
    assert reader.take() == []
    world.let_go()
    assert seqs(messages(reader.take())) == [1]


# --- what a message looks like --------------------------------------------------------------------


@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_message_has_the_lower_qos_and_its_own_topic(granted: int) -> None:
    """[MQTT-3.8.4-8]"""
    world = Plant()
    for qos in (0, 1, 2):
        world.publish(b"%d" % qos, topic=f"plant/{qos}", qos=qos)
    found = follow(world.reader(), qos=granted)
    assert [(packet.topic_name, packet.payload, packet.qos) for packet in found] == [
        (f"$stream/plant/plant/{qos}", b"%d" % qos, min(qos, granted)) for qos in (0, 1, 2)
    ]


def test_a_message_has_its_properties_and_its_place_and_time_before_them() -> None:
    """RETAIN and DUP are 0, and it does not expire: it is a new message"""
    world = Plant()
    publisher = world.connect("p")
    own = (("stream-seq", "99"), ("b", "1"), ("a", "2"), ("b", "1"))
    said = Properties(
        payload_format_indicator=1,
        message_expiry_interval=5,
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"\x00\x01",
        user_properties=own,
    )
    world.now = 1_794_798_000.25
    publisher.send(Publish("plant/a", "ä".encode(), 1, 1, retain=True, dup=True, properties=said))
    world.now += 100.0
    (packet,) = follow(world.reader(), identifier=77)
    assert (packet.qos, packet.retain, packet.dup) == (1, False, False)
    assert (packet.topic_name, packet.payload) == ("$stream/plant/plant/a", "ä".encode())
    properties = packet.properties
    assert properties.subscription_identifiers == (77,)
    assert properties.message_expiry_interval is None
    assert (properties.payload_format_indicator, properties.content_type) == (1, "text/plain")
    assert (properties.response_topic, properties.correlation_data) == ("answers", b"\x00\x01")
    assert user(packet) == (
        ("stream-seq", "1"),
        ("stream-time", "2026-11-16T03:00:00.250000Z"),
        *own,
    )


def test_a_will_is_replayed_without_its_delay() -> None:
    world = Plant()
    will = Will("plant/w", b"gone", properties=Properties(will_delay_interval=3, content_type="x"))
    world.connect("dying", will=will, properties=Properties(session_expiry_interval=9)).cut()
    world.wait(5.0)
    (packet,) = follow(world.reader())
    assert packet.properties.content_type == "x"
    assert packet.properties.will_delay_interval is None


def test_the_inner_filter_is_compared_with_the_recorded_topic() -> None:
    world = Plant(streams={"all": "#"})
    for topic in ("a", "a/b", "a/b/c", "/a", "plant/a"):
        world.publish(b"x", topic=topic)
    reader = world.reader()
    expected = {
        "$stream/all/#": [1, 2, 3, 4, 5],
        "$stream/all/+": [1],
        "$stream/all/a/#": [1, 2, 3],
        "$stream/all/+/b/+": [3],
        "$stream/all/+/a": [4, 5],
        "$stream/all//a": [4],
        "$stream/all/a/b": [2],
        "$stream/all/$SYS/#": [],
    }
    for topic_filter, numbers in expected.items():
        assert seqs(follow(reader, topic_filter, qos=0)) == numbers
        reader.send(Unsubscribe(5, [topic_filter]))


def test_subscriptions_that_overlap_get_a_copy_each() -> None:
    world = Plant()
    world.fill(2)
    reader = world.reader()
    assert seqs(follow(reader, "$stream/plant/#", identifier=1)) == [1, 2]
    assert seqs(follow(reader, "$stream/plant/plant/+", identifier=2)) == [1, 2]
    world.fill(1)
    found = messages(reader.take())
    assert seqs(found) == [3, 3]
    assert sorted(each.properties.subscription_identifiers[0] for each in found) == [1, 2]


def test_a_topic_that_has_no_room_for_more_before_it_is_passed_over() -> None:
    world = Plant(streams={"all": "#"})
    longest = 65_535 - len("$stream/all/")
    for size in (longest + 1, longest):
        world.publish(b"x", topic="x" * size)
    reader = world.reader()
    assert seqs(follow(reader, "$stream/all/#")) == [2]
    assert world.broker.router.dropped == 1


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_too_large_for_its_client_is_passed_over(qos: int, durable: bool) -> None:
    """[MQTT-3.1.2-25]"""
    world = Plant()
    world.publish(b"a", b"b" * 500, b"c", qos=qos)
    reader = world.reader(durable=durable, maximum_packet_size=300)
    assert [packet.payload for packet in follow(reader)] == [b"a", b"c"]
    assert world.rows("SELECT count(*) FROM delivery") == [(2 if durable and qos else 0,)]
    assert world.broker.snapshot(world.now).dropped["too_large"] == 1


def test_topic_aliases_are_used_for_what_is_replayed() -> None:
    world = Plant()
    world.fill(3)
    reader = world.reader(topic_alias_maximum=5)
    found = follow(reader)
    assert [packet.topic_name for packet in found] == ["$stream/plant/plant/a", "", ""]
    assert seqs(found) == [1, 2, 3]


def test_what_a_client_may_not_receive_is_passed_over() -> None:
    world = Plant(authority=Guarded())
    for topic in ("plant/a", "plant/b", "plant/c", "plant/b"):
        world.publish(b"x", topic=topic)
    assert seqs(follow(world.reader())) == [1, 3]
    assert seqs(follow(world.reader("s"))) == [1, 2, 3, 4]


@pytest.mark.parametrize("durable", [False, True])
def test_where_the_authority_fails_nothing_is_passed_over(durable: bool) -> None:
    """The client pays with its connection, and is asked about again when it is back."""
    authority = Guarded()
    world = Plant(authority=authority)
    for topic in ("plant/a", "plant/b", "plant/c", "plant/d"):
        world.publish(b"x", topic=topic)
    authority.fails = True
    reader = world.reader(durable=durable)
    other = world.reader("s")
    assert seqs(follow(reader)) == [1]
    assert reader.is_closed()
    assert "the authority is broken" in "".join(world.log)
    assert not other.is_closed()
    authority.fails = False
    reader = world.reader(durable=durable, present=durable)
    if durable:
        world.settle()
        assert seqs(read_all(reader)) == [1, 3, 4]  # the first was not acknowledged
    else:
        assert seqs(follow(reader)) == [1, 3, 4]


# --- flow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("receive_maximum", [1, 5])
def test_no_more_is_in_flight_than_the_receive_maximum(
    receive_maximum: int, qos: int, durable: bool
) -> None:
    """[MQTT-3.3.4-9]: and nothing is queued: what is not sent stays in the record"""
    world = Plant()
    world.fill(12, qos=qos)
    reader = world.reader(receive_maximum=receive_maximum, durable=durable)
    found = follow(reader)
    assert seqs(found) == list(range(1, receive_maximum + 1))
    session = world.broker.router.sessions["r"].session
    while found[-1].payload != b"12":
        assert len(session.backlog) == 0
        packet_id = found[-receive_maximum].packet_id
        if qos == 2:
            assert reader.send(PubRec(packet_id)) == [PubRel(packet_id)]
            answer = reader.send(PubComp(packet_id))
        else:
            answer = reader.send(PubAck(packet_id))
        assert len(answer) == 1
        found += messages(answer)
    assert seqs(found) == list(range(1, 13))


def test_a_message_that_is_at_qos_0_takes_no_quota() -> None:
    world = Plant()
    world.fill(3, qos=0)
    world.fill(2, qos=1)
    world.fill(2, qos=0)
    reader = world.reader(receive_maximum=1)
    # The second with QoS 1 has to wait, and so does all that comes after it.
    assert seqs(follow(reader)) == [1, 2, 3, 4]
    assert seqs(read_all(reader, reader.send(PubAck(1)))) == [5, 6, 7]


def test_messages_that_wait_go_before_a_replay() -> None:
    world = Plant()
    world.fill(3)
    reader = world.reader(receive_maximum=1)
    reader.subscribe("t", qos=1)
    assert seqs(follow(reader)) == [1]
    publisher = world.connect("p")
    for packet_id in (1, 2):
        publisher.send(Publish("t", b"t%d" % packet_id, 1, packet_id))
    found = read_all(reader, reader.send(PubAck(1)))
    assert [packet.payload for packet in found] == [b"t1", b"t2", b"2", b"3"]


def test_replays_of_one_session_take_turns() -> None:
    world = Plant(streams={"plant": "plant/#", "other": "other/#"})
    world.publish(*[b"%d" % at for at in range(4)], topic="plant/a")
    world.publish(*[b"%d" % at for at in range(4)], topic="other/a")
    reader = world.reader(receive_maximum=1)
    first = follow(reader, "$stream/plant/#")
    assert follow(reader, "$stream/other/#") == []
    found = first + read_all(reader, reader.send(PubAck(1)))
    names = [packet.topic_name.split("/")[1] for packet in found]
    assert names == ["plant", *["plant", "other"] * 3, "other"]


def test_a_tick_is_not_for_one_session_alone() -> None:
    world = Plant()
    world.fill(450, qos=0)
    reader = world.reader()
    reader.send(subscribe())
    sizes = [0]
    while world.broker.router.dirty:
        world.tick()
        sizes.append(len(reader.take()))
    assert max(sizes) <= 100
    assert len(sizes) > 4
    # So it is where nothing is sent.
    reader.send(subscribe("$stream/plant/nothing"))
    assert world.broker.router.dirty


def test_a_client_that_does_not_read_is_sent_a_part_and_goes_on_when_it_does() -> None:
    world = Plant(BrokerSettings(maximum_outgoing_bytes=40_000))
    world.publish(*[bytes(1_000)] * 100, qos=0)
    reader = world.reader()
    reader.unread = 30_000
    world.tick()
    assert follow(reader) == []
    reader.unread = 0
    world.settle()
    sent = messages(reader.take())
    # Written, and not read: the world's network takes all that it is given, and says so.
    assert seqs(sent) == list(range(1, 101))


def test_a_replay_leaves_room_for_other_messages_and_holds_no_publisher() -> None:
    world = Plant(BrokerSettings(maximum_outgoing_bytes=40_000))
    world.publish(*[bytes(1_000)] * 100, qos=0)
    reader = world.reader()
    reader.subscribe("t")
    publisher = world.connect("p")
    reader.send_bytes(b"")
    world.broker.receive(reader.connection, encode(subscribe(offset="earliest")), world.now)
    world.broker.flush(world.now)
    # As if its network had taken nothing yet.
    size = reader.connection.outgoing_size
    assert 10_000 <= size < 20_000
    reader.unread = size
    world.tick()
    world.settle()
    assert len(messages(reader.take()[1:])) < 20
    publisher.send(Publish("t", b"x"))
    assert not publisher.connection.paused_by_reader
    assert [packet.payload for packet in messages(reader.take())] == [b"x"]
    assert world.broker.router.dropped == 0


def test_who_takes_nothing_holds_up_nobody() -> None:
    world = Plant()
    world.fill(30)
    stuck = world.reader("stuck", receive_maximum=1)
    assert seqs(follow(stuck)) == [1]
    reader = world.reader()
    assert len(follow(reader)) == 30
    publisher = world.connect("p")
    for packet_id in range(1, 200):
        assert publisher.send(Publish("plant/a", b"x", 1, packet_id)) == [PubAck(packet_id, 0x10)]
        assert not publisher.connection.paused_by_reader
    world.settle()
    assert len(messages(reader.take())) == 199
    assert stuck.take() == []


# --- a subscription again, and no more ------------------------------------------------------------


def test_subscribing_again_goes_on_or_moves_if_there_is_an_offset() -> None:
    world = Plant()
    world.fill(3)
    reader = world.reader()
    assert [packet.qos for packet in follow(reader, qos=0)] == [0, 0, 0]
    assert follow(reader, offset=None, qos=1, identifier=9) == []
    world.fill(1)
    (packet,) = messages(reader.take())
    assert (seqs([packet]), packet.qos) == ([4], 1)
    assert packet.properties.subscription_identifiers == (9,)
    assert seqs(follow(reader, offset="2", qos=0)) == [2, 3, 4]
    assert follow(reader, offset="latest") == []


def test_unsubscribing_forgets_the_place_and_finishes_what_is_in_flight() -> None:
    """[MQTT-3.10.4-3]"""
    world = Plant()
    world.fill(6, qos=2)
    reader = world.reader(receive_maximum=2)
    assert seqs(follow(reader)) == [1, 2]
    reader.send(subscribe("$stream/plant/plant/+", offset="latest"))
    assert reader.send(Unsubscribe(7, [ALL, "$stream/plant/other"])) == [UnsubAck(7, [0, 0x11])]
    assert reader.send(PubRec(1)) == [PubRel(1)]
    assert reader.send(PubComp(1), PubRec(2)) == [PubRel(2)]
    assert reader.send(PubComp(2)) == []
    assert reader.send(Unsubscribe(7, ["$stream/plant/plant/+"])) == [UnsubAck(7, [0])]
    world.fill(1)
    assert reader.take() == []
    # Now there is no place to go on from.
    assert follow(reader, offset=None) == []


@pytest.mark.slow
def test_sessions_that_are_over_are_not_kept_because_their_replay_waited() -> None:
    world = Plant()
    world.fill(1)
    gc.collect()
    before = sum(isinstance(each, SessionState) for each in gc.get_objects())

    def come_and_go(client_id: str) -> None:
        reader = world.reader(client_id)
        assert follow(reader, offset="latest") == []
        reader.send(Disconnect())
        reader.cut()

    for at in range(400):
        come_and_go(f"reader-{at}")
    gc.collect()
    after = sum(isinstance(each, SessionState) for each in gc.get_objects())
    assert after - before < 100
    last = world.reader("last")
    assert follow(last, offset="latest") == []
    world.fill(1)
    assert seqs(messages(last.take())) == [2]


def test_messages_of_one_stream_are_no_business_of_those_who_follow_another() -> None:
    world = Plant(streams={"plant": "plant/#", "other": "other/#"})
    first, second = world.reader("first"), world.reader("second")
    assert follow(first, "$stream/plant/#") == follow(second, "$stream/other/#") == []
    world.connect("p").send(Publish("plant/a", b"1"), Publish("plant/a", b"2"))
    world.settle()
    assert seqs(messages(first.take())) == [1, 2]
    assert second.take() == []
    world.publish(b"1", topic="other/a")
    assert seqs(messages(second.take())) == [1]
    assert first.take() == []


# --- a store that takes its time, or fails --------------------------------------------------------


def test_what_is_being_read_is_sent_when_it_is_there() -> None:
    world = Plant()
    world.fill(40)
    world.store.late = True
    reader, other = world.reader(), world.reader("other")
    assert follow(reader, qos=0) == []
    assert follow(other, offset="latest") == []
    # Messages to come do not wake who waits for a read.
    asked = set(world.store.asked)
    world.fill(1, first=41)
    assert world.store.asked - asked == {("records", 1, 41)}
    assert reader.take() == []
    world.answer()
    assert seqs(messages(other.take())) == [41]
    found = messages(reader.take())
    while len(found) < 41:
        assert world.store.asked
        world.answer()
        found += messages(reader.take())
    assert seqs(found) == list(range(1, 42))


def test_a_time_is_looked_up_and_then_it_begins() -> None:
    world = Plant()
    world.fill(5)
    world.store.late = True
    reader = world.reader()
    assert follow(reader, offset="1970-01-01T00:16:43Z") == []
    assert world.store.asked == {("seek", 1, 1_003_000_000)}
    world.answer()
    world.answer()
    assert seqs(messages(reader.take())) == [4, 5]


def test_who_leaves_or_moves_while_it_is_read_gets_nothing_of_it() -> None:
    world = Plant()
    world.fill(5)
    world.store.late = True
    gone, moved, left = world.reader("gone"), world.reader("moved"), world.reader("left")
    for reader in (gone, moved, left):
        assert follow(reader) == []
    gone.send(Unsubscribe(1, [ALL]))
    moved.send(subscribe(offset="5"))
    left.send(Disconnect())
    left.cut()
    world.answer()
    world.answer()
    assert gone.take() == []
    assert seqs(messages(moved.take())) == [5]


def test_a_store_that_fails_costs_the_client_that_asked_its_connection() -> None:
    world = Plant()
    world.fill(5)
    reader, other = world.reader(), world.reader("other")
    other.subscribe("plant/#")
    world.store.problem = RuntimeError("no such table")
    reader.send(subscribe())
    world.settle()
    assert reader.is_closed()
    assert "no such table" in "".join(world.log)
    world.store.problem = None
    world.fill(1, first=6)
    assert [packet.payload for packet in messages(other.take())] == [b"6"]
    assert seqs(follow(world.reader("third"))) == [1, 2, 3, 4, 5, 6]


def test_a_damaged_row_of_the_record_makes_its_readers_wait_and_costs_no_connection() -> None:
    world = Plant(streams={"plant": "plant/#", "other": "other/#"})
    world.fill(5)
    reader = world.reader(durable=True)
    reader.subscribe("live", qos=1)
    world.store.problem = Unusable("row 1 of the record is not what was written")
    assert follow(reader) == []
    assert follow(world.reader("second")) == []
    # Its connection is of use: for other messages, and after a reconnect, too.
    for _ in range(3):
        publisher = world.connect("publisher")
        publisher.send(Publish("live", b"x", 1, 1))
        assert [packet.payload for packet in read_all(reader)] == [b"x"]
        reader.cut()
        reader = world.reader(durable=True, present=True)
        assert not reader.is_closed()
    lines = [line for line in world.log if "not what was written" in line]
    assert lines == [
        "stream plant cannot be replayed now and will be retried:"
        " row 1 of the record is not what was written"
    ]
    # Nobody reads it for nothing, and one line a minute says that it lasts.
    for _ in range(100):
        world.wait(1)
    assert len([line for line in world.log if "not what was written" in line]) == 2
    world.store.problem = None
    world.wait(60)
    world.settle()
    assert seqs(read_all(reader)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("offset", ["earliest", "1970-01-01T00:16:42Z"])
def test_who_waits_for_a_damaged_row_may_move_on_from_it(offset: str) -> None:
    world = Plant()
    world.fill(5)
    reader = world.reader()
    world.store.problem = Unusable("damage")
    assert follow(reader, offset=offset) == []
    world.store.problem = None
    assert seqs(follow(reader, offset="4")) == [4, 5]


# --- retention ------------------------------------------------------------------------------------


def test_where_the_beginning_was_deleted_earliest_is_what_there_is() -> None:
    world = Plant()
    world.fill(9)
    world.trim(4)
    found = follow(world.reader())
    assert seqs(found) == [4, 5, 6, 7, 8, 9]
    assert [name for name, _ in user(found[0])] == ["stream-seq", "stream-time"]
    assert seqs(follow(world.reader("one"), offset="1")) == [4, 5, 6, 7, 8, 9]
    assert not any("no longer kept" in line for line in world.log)


def test_who_was_to_go_on_with_what_was_deleted_is_told_and_so_is_the_log() -> None:
    world = Plant()
    world.fill(9)
    world.trim(6)
    first, second, *_ = follow(world.reader(), offset="3")
    assert user(first)[0] == ("stream-seq", "6")
    assert user(first)[2] == ("stream-missed", "3-5")
    assert len(user(second)) == 2
    (line,) = [line for line in world.log if "no longer kept" in line]
    assert line == "'r' missed messages of stream plant, which are no longer kept: 3 to 5"


def test_what_was_missed_is_told_with_the_next_message_that_is_sent() -> None:
    """Also if that is not the first that is there, and if more is missed meanwhile."""
    world = Plant()
    for number in range(1, 30):
        world.publish(b"x", topic="plant/b" if number == 24 else "plant/a")
    world.trim(5)
    world.store.late = True
    reader = world.reader()
    assert follow(reader, "$stream/plant/+/b", offset="2") == []
    world.answer()
    world.trim(22)
    while not reader.inbox:
        world.answer()
    (packet,) = messages(reader.take())
    assert user(packet)[0] == ("stream-seq", "24")
    assert user(packet)[2] == ("stream-missed", "2-21")

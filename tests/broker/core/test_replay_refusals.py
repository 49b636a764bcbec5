"""Replay of streams over MQTT: what is refused, each beside something like it that is granted."""

import pytest

from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT311,
    ConnAck,
    Connect,
    Properties,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)
from semel.store.store import Store
from semel.store.streams import Stream, Streams
from tests.broker.recorded import ALL, Guarded, Plant, follow, messages, seqs, subscribe
from tests.broker.world import World


def test_a_client_of_3_1_1_is_refused_and_may_have_the_topics_themselves() -> None:
    world = Plant()
    client = world.connect("old", MQTT311)
    answer = client.send(Subscribe(1, [Subscription(ALL, 1), Subscription("plant/#", 1)]))
    assert answer == [SubAck(1, [0x80, 1])]
    shared = Subscription("$share/g/$stream/plant/#", 1)
    assert client.send(Subscribe(2, [shared])) == [SubAck(2, [0x80])]


@pytest.mark.parametrize(
    ("topic_filter", "code"),
    [
        ("$stream/plant/#", 2),
        ("$stream/plant/+/b", 2),
        ("$stream/plant/plant/a", 2),
        ("$stream/plant//", 2),
        ("$stream/plant/$SYS/#", 2),  # it matches nothing that is recorded
        ("$stream", 2),  # a topic as others are
        ("$streams/plant/#", 2),
        ("$stream/", 0x8F),
        ("$stream/plant", 0x8F),
        ("$stream/plant/", 0x8F),
        ("$stream//#", 0x8F),
        ("$stream/#", 0x8F),
        ("$stream/+/#", 0x8F),
        ("$stream/plan/#", 0x8F),
        ("$stream/Plant/#", 0x8F),
        ("$share/g/$stream/plant/#", 0x9E),
        ("$share/g/$stream/unknown/#", 0x9E),
        ("$share/g/plant/#", 2),
    ],
)
def test_a_stream_is_subscribed_to_by_its_name_and_a_filter(topic_filter: str, code: int) -> None:
    world = Plant()
    reader = world.reader()
    (answer,) = reader.send(subscribe(topic_filter))
    assert isinstance(answer, SubAck)
    assert list(answer.reasons) == [code]
    # A refusal says why, and leaves nothing behind.
    assert (answer.properties.reason_string is not None) == (code >= 0x80)
    (answer,) = reader.send(Unsubscribe(1, [topic_filter]))
    assert answer == UnsubAck(1, [0x11 if code >= 0x80 else 0])


@pytest.mark.parametrize(
    "offset",
    [
        "",
        "EARLIEST",
        " earliest",
        "first",
        "-1",
        "+1",
        "1.5",
        "٣",  # a digit, but not one of ours
        "9223372036854775808",
        "0" * 20,
        "9" * 60_000,
        "2026-11-16T03:00:00",  # whose clock?
        "2026-11-16",
        "2026-13-16T03:00:00Z",
        "03:00:00Z",
        "yesterday",
    ],
)
def test_a_bad_offset_is_refused_with_what_is_allowed(offset: str) -> None:
    world = Plant()
    world.fill(2)
    reader = world.reader()
    (answer,) = reader.send(subscribe(offset=offset))
    assert isinstance(answer, SubAck)
    assert list(answer.reasons) == [0x83]
    why = answer.properties.reason_string
    assert why is not None
    for word in ("stream-offset", "earliest", "latest", "seq", "time"):
        assert word in why
    assert reader.send(Unsubscribe(1, [ALL])) == [UnsubAck(1, [0x11])]
    assert seqs(follow(reader, offset="2")) == [2]


def test_two_offsets_are_refused_and_other_user_properties_mean_nothing() -> None:
    world = Plant()
    world.fill(2)
    reader = world.reader()

    def asking(*pairs: tuple[str, str]) -> Subscribe:
        given = Properties(user_properties=pairs)
        return Subscribe(1, [Subscription(ALL, 1)], properties=given)

    offset = ("stream-offset", "2")
    (answer,) = reader.send(asking(offset, offset))
    assert isinstance(answer, SubAck)
    assert list(answer.reasons) == [0x83]
    suback, *others = reader.send(asking(("offset", "1"), offset, ("stream-seq", "1")))
    assert suback == SubAck(1, [1])
    assert seqs(messages(others)) == [2]


def test_an_offset_means_nothing_to_subscriptions_to_topics() -> None:
    world = Plant()
    world.fill(2)
    reader = world.reader()
    both = [Subscription("plant/#", 1), Subscription(ALL, 1), Subscription("$stream/x/#", 1)]
    offset = Properties(user_properties=[("stream-offset", "2")])
    suback, *others = reader.send(Subscribe(1, both, properties=offset))
    assert isinstance(suback, SubAck)
    assert list(suback.reasons) == [1, 1, 0x8F]
    assert seqs(messages(others)) == [2]
    bad = Properties(user_properties=[("stream-offset", "x"), ("stream-offset", "y")])
    (answer,) = reader.send(Subscribe(2, [Subscription("other", 1)], properties=bad))
    assert answer == SubAck(2, [1])


def test_the_reason_is_told_only_to_who_wants_it_and_where_it_fits() -> None:
    """[MQTT-3.1.2-29] [MQTT-3.9.2-1]"""
    world = Plant()
    bad = subscribe(offset="x")
    silent = world.connect("silent", properties=Properties(request_problem_information=0))
    assert silent.send(bad) == [SubAck(900, [0x83])]
    (told,) = world.reader().send(bad)
    assert isinstance(told, SubAck)
    assert told.properties.reason_string
    size = len(encode(told))
    fits = world.connect("fits", properties=Properties(maximum_packet_size=size))
    assert fits.send(bad) == [told]
    small = world.connect("small", properties=Properties(maximum_packet_size=size - 1))
    assert small.send(bad) == [SubAck(900, [0x83])]


def test_the_authority_is_asked_for_a_stream_as_for_any_filter_and_first() -> None:
    world = Plant(authority=Guarded())
    for name in ("plant", "unknown"):
        denied = subscribe(f"$stream/{name}/plant/plant/#")
        assert world.reader().send(denied) == [SubAck(900, [0x87])]
    assert world.reader().send(subscribe("$stream/plant/plant/+")) == [SubAck(900, [2])]
    allowed = subscribe("$stream/plant/plant/plant/#")
    assert world.reader("s").send(allowed) == [SubAck(900, [2])]


def test_a_subscription_to_a_stream_counts_as_one() -> None:
    world = Plant(BrokerSettings(maximum_subscriptions=2))
    reader = world.reader()
    filters = ["$stream/plant/a", "$stream/plant/b", "$stream/plant/c"]
    codes = [reader.send(subscribe(each)) for each in filters]
    assert codes == [[SubAck(900, [2])], [SubAck(900, [2])], [SubAck(900, [0x97])]]
    assert reader.send(subscribe(filters[0])) == [SubAck(900, [2])]
    assert reader.send(Unsubscribe(1, filters)) == [UnsubAck(1, [0, 0, 0x11])]
    assert reader.send(subscribe(filters[2])) == [SubAck(900, [2])]


def test_a_session_has_a_hundred_subscriptions_to_streams_at_the_most() -> None:
    world = Plant()
    world.fill(3)
    reader = world.reader()
    filters = [f"$stream/plant/plant/{at}" for at in range(99)]
    for topic_filter in filters:
        assert reader.send(subscribe(topic_filter)) == [SubAck(900, [2])]
    # A hundred who wait do not keep one from going on.
    assert seqs(follow(reader)) == [1, 2, 3]
    (answer,) = reader.send(subscribe("$stream/plant/more"))
    assert isinstance(answer, SubAck)
    assert list(answer.reasons) == [0x97]
    assert "100" in (answer.properties.reason_string or "")
    assert reader.send(subscribe(filters[7])) == [SubAck(900, [2])]
    assert reader.subscribe("plant/more") == []
    reader.send(Unsubscribe(3, [filters[7]]))
    assert reader.send(subscribe("$stream/plant/more")) == [SubAck(900, [2])]


def test_a_broker_without_streams_has_none_to_replay() -> None:
    reader = World().connect("r")
    (answer,) = reader.send(subscribe())
    assert isinstance(answer, SubAck)
    assert list(answer.reasons) == [0x8F]


def test_a_store_that_keeps_nothing_has_nothing_to_replay() -> None:
    world = World(streams=Streams([Stream(1, "plant", "plant/#", 0)]))
    reader = world.connect("r")
    assert reader.send(subscribe(offset="earliest")) == [SubAck(900, [2])]
    assert reader.send(subscribe(offset="2020-01-01T00:00:00Z")) == [SubAck(900, [2])]
    world.connect("p").send(Publish("plant/a", b"x"))
    world.tick()
    assert reader.take() == []
    assert (Store().records(1, 1, 1), Store().seek(1, 1)) == ([], 1)


# --- nobody publishes there -----------------------------------------------------------------------


def test_nobody_publishes_below_stream() -> None:
    world = Plant(streams={"plant": "plant/#", "all": "#"})
    follower = world.reader("f")
    assert follow(follower) == []
    other = world.reader("o")
    other.subscribe("$streams/#", qos=1)
    publisher = world.connect("p")
    for packet_id in (1, 2):
        for retain in (False, True):
            topic = "$stream/plant/plant/a"
            assert publisher.send(Publish(topic, b"x", 1, packet_id, retain=retain)) == [
                PubAck(packet_id, 0x87)
            ]
    publisher.send(Publish("$streams/a", b"x", 1, 3))
    world.settle()
    assert follower.take() == []
    assert [packet.payload for packet in messages(other.take())] == [b"x"]
    assert world.rows("SELECT * FROM record") == []
    assert world.rows("SELECT * FROM retained") == []
    old = world.connect("old", MQTT311)
    assert old.send(Publish("$stream/plant/plant/a", b"x", 1, 1)) == [PubAck(1)]
    world.settle()
    assert follower.take() == []


def test_no_will_is_published_below_stream() -> None:
    world = Plant()
    follower = world.reader("f")
    assert follow(follower) == []
    refused = world.open()
    (connack,) = refused.send(Connect("dying", will=Will("$stream/plant/plant/w", b"no", qos=1)))
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0x87
    world.connect("dying", will=Will("plant/w", b"gone", qos=1)).cut()
    world.settle()
    (packet,) = messages(follower.take())
    assert packet.topic_name == "$stream/plant/plant/w"
    assert seqs([packet]) == [1]


def test_what_is_replayed_is_not_recorded_not_retained_and_nobody_elses() -> None:
    world = Plant(streams={"all": "#"})
    others = world.reader("o")
    others.subscribe("#", "+/#", "$SYS/#", qos=1)
    publisher = world.connect("p")
    publisher.send(Publish("plant/a", b"x", 1, 1, retain=True))
    assert len(others.take()) == 1
    reader = world.reader()
    for _ in range(3):
        (packet,) = follow(reader, "$stream/all/#")
        reader.send(PubAck(packet.packet_id))
    assert others.take() == []
    assert world.rows("SELECT count(*) FROM record") == [(1,)]
    assert world.rows("SELECT topic FROM retained") == [("plant/a",)]
    late = world.reader("late")
    late.subscribe("$stream/all/#")
    assert late.take() == []


@pytest.mark.parametrize(
    ("count", "end"), [(5, "'s4'"), (6, "; and 1 more"), (4_000, "; and 3995 more")]
)
def test_as_many_refusals_as_a_subscribe_can_ask_for_are_told_in_few_words(
    count: int, end: str
) -> None:
    """It is our own sentence that would be too long: the client has broken no rule."""
    world = Plant()
    reader = world.reader()
    filters = [Subscription(f"$stream/s{number}/#") for number in range(count)]
    (answer,) = reader.send(Subscribe(1, [*filters, filters[0]]))
    assert isinstance(answer, SubAck)
    assert list(answer.reasons) == [0x8F] * (count + 1)
    why = answer.properties.reason_string or ""
    assert why.startswith("there is no stream 's0'; there is no stream 's1'; ")
    assert why.endswith(end)
    assert not reader.is_closed()

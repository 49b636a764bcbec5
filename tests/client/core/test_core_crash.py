"""The client's core on a store, through crashes, and with a server that has lost the session.

On the wire exactly once, to the program at least once: what is in the store is sent and handed out
until it is done, and a message has one key for ever.
"""

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Message,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from semel.mqtt.properties import NO_PROPERTIES
from tests.client.core_world import World, publishes

VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])
QOS = pytest.mark.parametrize("qos", [1, 2])
GONE = Properties(session_expiry_interval=0)


def connected(version: int = MQTT5, properties: Properties = NO_PROPERTIES) -> World:
    world = World(version)
    world.connect(properties=properties)
    return world


def payloads(world: World) -> list[bytes]:
    return [each.payload for each in world.handed_out]


# --- on the way out -------------------------------------------------------------------------------


@VERSIONS
@QOS
def test_a_message_that_was_stored_without_a_connection_is_sent_by_the_next_run(
    version: int, qos: int
) -> None:
    world = World(version)
    for payload in (b"a", b"b"):
        world.publish(payload, qos)
    assert world.stored == [1, 2]
    world.crash()
    # The server has never accepted this client: there is nothing to resume.
    connect = world.open()
    assert connect.clean_start
    left = world.receive(ConnAck())
    assert publishes(left) == [(b"a", 1, False), (b"b", 2, False)]
    assert world.core.sessions_lost == 0


@VERSIONS
@QOS
def test_a_message_that_was_sent_is_sent_again_after_a_crash_with_dup(
    version: int, qos: int
) -> None:
    world = connected(version)
    world.publish(b"a", qos)
    world.publish(b"b", qos)
    world.crash()
    connect = world.open()
    assert not connect.clean_start
    left = world.receive(ConnAck(session_present=True))
    assert publishes(left) == [(b"a", 1, True), (b"b", 2, True)]


@VERSIONS
def test_a_message_that_was_not_stored_is_not_sent_by_the_next_run(version: int) -> None:
    world = connected(version)
    world.hold()
    world.publish(b"a", 2)
    world.crash()
    assert world.connect() == []


@VERSIONS
def test_after_pubrec_only_pubrel_is_sent_again(version: int) -> None:
    world = connected(version)
    for payload in (b"a", b"b", b"c"):
        world.publish(payload, 2)
    world.receive(PubRec(2))
    world.receive(PubRec(1))
    world.crash()
    # [MQTT-4.6.0-4] PUBRELs in the order of their PUBRECs
    assert world.connect() == [PubRel(2), PubRel(1), Publish("t", b"c", 2, 3, dup=True)]
    world.receive(PubComp(2), PubComp(1))
    world.crash()
    assert world.connect() == [Publish("t", b"c", 2, 3, dup=True)]


def test_a_pubrec_that_was_not_stored_comes_again() -> None:
    world = connected()
    world.publish(b"a", 2)
    world.hold()
    assert world.receive(PubRec(1)) == []
    world.crash()
    assert world.connect() == [Publish("t", b"a", 2, 1, dup=True)]
    assert world.receive(PubRec(1)) == [PubRel(1)]


def test_an_identifier_is_not_given_again_while_a_crash_could_bring_its_message_back() -> None:
    world = connected(properties=Properties(receive_maximum=1))
    world.publish(b"a")
    world.publish(b"b")
    world.hold()
    # The end of `a` is not stored yet, so nothing may leave that needs it to be over.
    assert world.receive(PubAck(1)) == []
    world.crash()
    assert publishes(world.connect()) == [(b"a", 1, True), (b"b", 2, False)]


def test_the_numbers_of_deliveries_go_on() -> None:
    """Else a message of this run would take the place of one of the last."""
    world = World()
    world.publish(b"a")
    world.crash()
    world.publish(b"b")
    assert world.rows("SELECT number, payload FROM delivery") == [(1, b"a"), (2, b"b")]


def test_properties_and_expiry_survive() -> None:
    world = World()
    properties = Properties(content_type="x", user_properties=[("k", "v")])
    message = Message("t", b"a", qos=1, properties=properties, expires_at=world.now + 100)
    world.core.publish(message, world.now)
    world.publish(b"L" * 5_000)
    world.tick()
    world.crash()
    world.now += 40
    first, second = world.connect()
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert first.properties.content_type == "x"
    assert first.properties.user_properties == (("k", "v"),)
    assert first.properties.message_expiry_interval == 60
    assert second.payload == b"L" * 5_000


def test_a_message_of_a_5_0_run_leaves_without_properties_in_a_3_1_1_run() -> None:
    world = World()
    message = Message("t", b"a", qos=1, properties=Properties(content_type="x"))
    world.core.publish(message, world.now)
    world.tick()
    world.version = MQTT311
    world.crash()
    assert world.connect() == [Publish("t", b"a", 1, 1)]


# --- on the way in --------------------------------------------------------------------------------


@VERSIONS
@QOS
def test_a_message_is_handed_out_again_after_a_crash_until_it_is_acknowledged(
    version: int, qos: int
) -> None:
    world = connected(version)
    world.receive(Publish("t", b"1", qos, 7), Publish("t", b"2", qos, 8, retain=True))
    keys = [each.key for each in world.handed_out]
    assert len(set(keys)) == 2
    for _ in range(2):
        world.crash()
        assert [(each.key, each.payload, each.retain, each.dup) for each in world.again] == [
            (keys[0], b"1", False, True),
            (keys[1], b"2", True, True),
        ]
    world.acknowledge(world.again[0])
    assert [each.key for each in world.crash()] == [keys[1]]


def test_a_message_that_is_not_in_the_inbox_is_sent_again_by_the_server() -> None:
    world = connected()
    world.hold()
    world.receive(Publish("t", b"1", 2, 7))
    assert world.crash() == []
    world.connect()
    world.receive(Publish("t", b"1", 2, 7, dup=True))
    assert payloads(world) == [b"1"]


@VERSIONS
def test_a_qos_2_message_of_an_earlier_run_that_comes_again_is_the_one_that_is_here(
    version: int,
) -> None:
    world = connected(version)
    world.receive(Publish("t", b"1", 2, 7), Publish("t", b"2", 2, 8))
    first, second = world.crash()
    world.handed_out = []
    world.connect()
    again = [Publish("t", b"1", 2, 7, dup=True), Publish("t", b"2", 2, 8, dup=True)]
    assert world.receive(*again) == []
    assert world.handed_out == []
    # [MQTT-4.6.0-3] PUBRECs in the order in which the messages came
    assert world.acknowledge(second) == []
    assert world.acknowledge(first) == [PubRec(7), PubRec(8)]
    assert world.receive(PubRel(7), PubRel(8)) == [PubComp(7), PubComp(8)]
    assert world.crash() == []


def test_a_qos_2_message_that_is_acknowledged_before_it_comes_again_is_answered_then() -> None:
    world = connected()
    world.receive(Publish("t", b"1", 2, 7))
    (incoming,) = world.crash()
    world.handed_out = []
    assert world.acknowledge(incoming) == []
    world.crash()
    world.connect()
    assert world.receive(Publish("t", b"1", 2, 7, dup=True)) == [PubRec(7)]
    assert world.handed_out == []


def test_a_qos_1_message_of_an_earlier_run_that_comes_again_is_the_one_that_is_here() -> None:
    world = connected()
    world.receive(Publish("t", b"1", 1, 7))
    (incoming,) = world.crash()
    world.handed_out = []
    world.connect()
    world.receive(Publish("t", b"1", 1, 7, dup=True))
    assert world.handed_out == []
    assert world.acknowledge(incoming) == [PubAck(7)]
    world.receive(Publish("t", b"new", 1, 7))
    assert payloads(world) == [b"new"]


def test_an_acknowledgement_that_was_not_stored_did_not_leave_and_the_message_is_back() -> None:
    world = connected()
    world.receive(Publish("t", b"1", 2, 7))
    world.hold()
    assert world.acknowledge(world.handed_out[0]) == []
    (again,) = world.crash()
    assert again.key == world.handed_out[0].key
    world.connect()
    assert world.receive(Publish("t", b"1", 2, 7, dup=True)) == []
    assert world.acknowledge(again) == [PubRec(7)]


def test_the_end_of_an_identifier_that_was_not_stored_is_asked_for_again() -> None:
    world = connected()
    world.receive(Publish("t", b"1", 2, 7))
    world.acknowledge(world.handed_out[0])
    world.hold()
    assert world.receive(PubRel(7)) == []
    world.crash()
    world.connect()
    assert world.receive(PubRel(7)) == [PubComp(7)]
    world.receive(Publish("t", b"2", 2, 7))
    assert payloads(world) == [b"1", b"2"]


def test_no_two_messages_ever_have_one_key() -> None:
    world = connected()
    keys: set[str] = set()
    count = 0
    for run in range(4):
        for place in range(3):
            world.receive(Publish("t", b"%d" % count, 2, 10 * run + place + 1))
            count += 1
        fresh = world.handed_out
        world.handed_out = []
        assert not keys & {each.key for each in fresh}
        keys |= {each.key for each in fresh}
        # The first two go, in one run all three: the numbers begin anew, the keys do not.
        for incoming in fresh if run == 1 else fresh[:2]:
            world.acknowledge(incoming)
        if run == 1:
            for incoming in world.again:
                world.acknowledge(incoming)
        world.crash()
        assert {each.key for each in world.again} <= keys
        world.connect()
    assert len(keys) == count == 12


def test_properties_of_a_message_survive_in_the_inbox() -> None:
    world = connected()
    world.subscribe("t")
    properties = Properties(
        content_type="x", user_properties=[("k", "v")], subscription_identifiers=[1]
    )
    world.receive(Publish("t", b"1", 1, 7, properties=properties))
    (again,) = world.crash()
    assert again.properties == Properties(content_type="x", user_properties=[("k", "v")])
    assert again.filters == ["t"]


# --- a server that has lost the session [MQTT-3.2.2-5] --------------------------------------------


@VERSIONS
@pytest.mark.parametrize("crashes", [False, True], ids=["in one run", "after a crash"])
def test_what_was_sent_to_a_server_that_has_lost_the_session_is_sent_anew_in_order(
    version: int, crashes: bool
) -> None:
    world = connected(version, Properties(receive_maximum=4) if version == MQTT5 else NO_PROPERTIES)
    for payload, qos in ((b"a", 1), (b"b", 2), (b"c", 2), (b"d", 1), (b"e", 2)):
        world.publish(payload, qos)
    world.receive(PubRec(2))
    if crashes:
        world.crash()
    else:
        world.cut()
    left = world.connect(present=False)
    # Of b the server has said that it has it. Nobody can tell whether it has had the others.
    sent = publishes(left)
    assert [payload for payload, _, _ in sent] == [b"a", b"c", b"d", b"e"]
    assert not any(dup for _, _, dup in sent)
    assert not any(isinstance(packet, PubRel) for packet in left)
    assert world.core.sessions_lost == 1
    assert world.core.resent == (3 if version == MQTT5 else 4)
    if not crashes:
        assert [each.number for each in world.outcomes] == [2]
    # And so it is from here on.
    world.crash()
    assert publishes(world.connect()) == [(payload, at, True) for payload, at, _ in sent]
    assert world.core.sessions_lost == 0


@QOS
@pytest.mark.parametrize("crashes", [False, True], ids=["in one run", "after a crash"])
def test_the_inbox_is_the_programs_also_when_the_server_has_lost_the_session(
    qos: int, crashes: bool
) -> None:
    world = connected()
    world.receive(Publish("t", b"1", qos, 7))
    (first,) = world.handed_out
    if crashes:
        (incoming,) = world.crash()
        assert incoming.key == first.key
    else:
        world.cut()
        incoming = first
    world.connect(present=False)
    world.handed_out = []
    # The identifier is a new message's now.
    world.receive(Publish("t", b"2", qos, 7))
    (second,) = world.handed_out
    assert (second.payload, second.key != first.key) == (b"2", True)
    # The server is not told of what it has forgotten.
    assert world.acknowledge(incoming) == []
    assert [each.key for each in world.crash()] == [second.key]


@QOS
def test_a_message_is_not_taken_for_one_that_the_server_has_forgotten(qos: int) -> None:
    """Also when it comes with DUP, because the first attempt was lost on its way."""
    world = connected()
    world.receive(Publish("t", b"1", qos, 7))
    world.cut()
    world.connect(present=False)
    world.cut()
    world.connect(present=True)
    world.receive(Publish("t", b"2", qos, 7, dup=True))
    assert payloads(world) == [b"1", b"2"]


def test_a_message_is_not_taken_for_one_that_was_acknowledged_and_then_forgotten() -> None:
    """The PUBACK of the first has never left; and it need not any more."""
    world = connected()
    world.receive(Publish("t", b"1", 1, 7))
    world.cut()
    world.acknowledge(world.handed_out[0])
    world.connect(present=False)
    world.cut()
    world.connect(present=True)
    assert world.receive(Publish("t", b"2", 1, 7, dup=True)) == []
    assert payloads(world) == [b"1", b"2"]


@QOS
def test_a_message_is_not_taken_for_one_that_the_server_has_forgotten_before_a_crash(
    qos: int,
) -> None:
    world = connected()
    world.receive(Publish("t", b"1", qos, 7))
    world.cut()
    world.connect(present=False)
    world.crash()
    world.connect(present=True)
    world.receive(Publish("t", b"2", qos, 7, dup=True))
    assert payloads(world) == [b"1", b"2"]


def test_identifiers_that_waited_for_pubrel_are_free_when_the_server_has_lost_the_session() -> None:
    world = connected()
    world.receive(Publish("t", b"1", 2, 7))
    world.acknowledge(world.handed_out[0])
    world.cut()
    world.connect(present=False)
    assert world.rows("SELECT * FROM inbound") == []
    world.receive(Publish("t", b"2", 2, 7))
    assert payloads(world) == [b"1", b"2"]


def test_subscriptions_are_requested_again_when_the_server_has_lost_the_session() -> None:
    world = connected()
    world.subscribe("a", "b")
    world.cut()
    left = world.connect(present=False)
    assert world.rows("SELECT topic_filter FROM subscription ORDER BY topic_filter") == [
        ("a",),
        ("b",),
    ]
    assert sorted(filters(left)) == ["a", "b"]


def test_a_clean_start_that_is_wished_for_is_no_loss() -> None:
    world = connected()
    world.publish(b"a")
    world.crash()
    assert publishes(world.connect(clean_start=True)) == [(b"a", 2, False)]
    assert world.core.sessions_lost == 0


@pytest.mark.parametrize(
    "granted", [GONE, NO_PROPERTIES], ids=["by the server", "by the client itself"]
)
@pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])
def test_a_session_that_ends_with_its_connection_loses_no_message(
    version: int, granted: Properties
) -> None:
    if version != MQTT5 and granted is GONE:
        pytest.skip("3.1.1 knows no interval")
    world = World(version, session_expiry=0 if granted is NO_PROPERTIES else 100)
    world.connect(properties=granted)
    world.publish(b"a", 1)
    world.publish(b"b", 2)
    world.publish(b"c", 2)
    world.receive(PubRec(2))
    world.receive(Publish("t", b"in 1", 1, 7), Publish("t", b"in 2", 2, 8))
    world.receive(Publish("t", b"in 3", 2, 9))
    world.acknowledge(world.handed_out[2])
    assert [each.payload for each in world.crash()] == [b"in 1", b"in 2"]
    connect = world.open()
    assert connect.clean_start
    left = world.receive(ConnAck(properties=granted))
    assert [(payload, dup) for payload, _, dup in publishes(left)] == [(b"a", False), (b"c", False)]
    world.handed_out = []
    world.receive(
        *(Publish("t", b"new %d" % place, qos, place) for place, qos in ((7, 1), (8, 2), (9, 2)))
    )
    assert payloads(world) == [b"new 7", b"new 8", b"new 9"]


def test_a_server_that_has_a_session_which_the_client_has_not_is_left() -> None:
    """[MQTT-3.2.2-4]"""
    world = World()
    world.publish(b"a")
    world.open(clean_start=False)
    world.receive(ConnAck(session_present=True))
    assert world.core.connection_end is not None
    assert "MQTT-3.2.2-4" in world.core.connection_end.why
    assert not world.core.is_connected
    world.cut()
    assert publishes(world.connect()) == [(b"a", 1, False)]


def test_a_loss_that_was_not_stored_is_found_again_by_the_next_run() -> None:
    """The CONNACK has come, the commit has not: the server still has no subscriptions of ours."""
    world = connected()
    world.subscribe("x")
    world.publish(b"a", 2)
    world.cut()
    world.hold()
    assert world.connect(present=False) == []
    world.crash()
    # The server has made a session meanwhile, and says so.
    left = world.connect(present=True)
    assert filters(left) == ["x"]
    assert [payload for payload, _, _ in publishes(left)] == [b"a"]


# --- subscriptions --------------------------------------------------------------------------------


def filters(packets: object) -> list[str]:
    """Of the SUBSCRIBE packets among them."""
    assert isinstance(packets, list)
    return [
        packet.subscriptions[0].topic_filter for packet in packets if isinstance(packet, Subscribe)
    ]


@VERSIONS
def test_a_list_without_a_filter_that_the_session_has_ends_that_subscription(version: int) -> None:
    world = connected(version)
    world.subscribe("a", "b")
    world.crash(keep=False)
    world.core.subscribe(Subscription("b", 2), NO_PROPERTIES)
    world.core.subscribe(Subscription("c", 1), NO_PROPERTIES)
    left = world.connect()
    gone = [packet.topic_filters for packet in left if isinstance(packet, Unsubscribe)]
    assert gone == [("a",)]
    assert "c" in filters(left)
    assert "a" not in filters(left)
    world.grant(left)
    assert world.rows("SELECT topic_filter FROM subscription ORDER BY topic_filter") == [
        ("b",),
        ("c",),
    ]


def test_a_subscription_whose_request_had_left_before_a_crash_is_ended_by_another_list() -> None:
    world = connected()
    world.core.subscribe(Subscription("a", 2), NO_PROPERTIES)
    (packet,) = world.tick()
    assert isinstance(packet, Subscribe)
    world.crash(keep=False)
    (packet,) = world.connect()
    assert isinstance(packet, Unsubscribe)
    assert packet.topic_filters == ("a",)


def test_a_subscription_whose_end_had_left_before_a_crash_is_requested_again() -> None:
    world = connected()
    world.subscribe("a")
    world.core.unsubscribe("a")
    (packet,) = world.tick()
    world.hold()
    world.grant([packet])
    world.crash(keep=False)
    world.core.subscribe(Subscription("a", 2), NO_PROPERTIES)
    assert filters(world.connect()) == ["a"]


# --- a client that records ------------------------------------------------------------------------


def test_a_message_for_a_stream_is_recorded_once_and_acknowledged_after_its_commit() -> None:
    world = World(stream="plant")
    world.connect()
    world.hold()
    assert world.receive(Publish("t", b"1", 2, 7), Publish("t", b"2", 1, 8)) == []
    assert world.settle() == [PubRec(7), PubAck(8)]
    world.store.holding = False
    world.crash()
    world.connect()
    assert world.receive(Publish("t", b"1", 2, 7, dup=True)) == [PubRec(7)]
    assert world.receive(PubRel(7)) == [PubComp(7)]
    world.receive(Publish("t", b"3", 2, 7))
    assert world.rows("SELECT seq, payload FROM record") == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert world.handed_out == []


def test_a_loss_is_noted_with_the_row_before_which_messages_may_be_missing() -> None:
    world = World(stream="plant")
    world.connect()
    world.receive(Publish("t", b"1", 1, 7))
    world.cut()
    world.connect(present=False)
    world.receive(Publish("t", b"2", 1, 7))
    found = world.rows("SELECT name FROM metadata WHERE name LIKE 'break:%'")
    assert found == [("break:1:2",)]
    assert world.core.sessions_lost == 1


# --- a CONNACK that nobody saw --------------------------------------------------------------------


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_new_message_shows_that_the_answer_that_nobody_saw_told_of_a_new_session(
    acknowledged: bool,
) -> None:
    """[MQTT-3.3.1-1] What is sent again has DUP 1: one without is not what was open before."""
    world = connected()
    world.receive(Publish("t", b"1", 2, 7))
    if acknowledged:
        world.acknowledge(world.handed_out[0])
    world.cut()
    world.open()
    world.cut()
    world.connect(present=True)
    assert world.core.sessions_lost == 0
    answers = world.receive(Publish("t", b"2", 2, 7))
    assert payloads(world) == [b"1", b"2"]
    assert world.core.sessions_lost == 1
    # The old message is the program's yet, and answers nothing.
    assert answers == []
    if not acknowledged:
        assert world.acknowledge(world.handed_out[0]) == []
    assert world.acknowledge(world.handed_out[1]) == [PubRec(7)]
    assert world.crash() == []


def test_a_message_that_comes_again_with_dup_is_the_same_though_an_answer_was_not_seen() -> None:
    world = connected()
    world.receive(Publish("t", b"1", 2, 7))
    world.cut()
    world.open()
    world.cut()
    world.connect(present=True)
    world.receive(Publish("t", b"1", 2, 7, dup=True))
    assert payloads(world) == [b"1"]
    assert world.core.sessions_lost == 0
    assert world.acknowledge(world.handed_out[0]) == [PubRec(7)]


def test_the_record_tells_of_a_loss_that_only_a_new_message_showed() -> None:
    world = World(stream="plant")
    world.connect()
    world.receive(Publish("t", b"1", 2, 7), Publish("t", b"2", 2, 8))
    world.cut()
    world.open()
    world.cut()
    world.connect(present=True)
    world.receive(Publish("t", b"3", 2, 7), Publish("t", b"4", 2, 8))
    assert [row[0] for row in world.rows("SELECT payload FROM record")] == [b"1", b"2", b"3", b"4"]
    assert world.rows("SELECT name FROM metadata WHERE name LIKE 'break:%'") == [("break:1:3",)]
    assert world.core.sessions_lost == 1

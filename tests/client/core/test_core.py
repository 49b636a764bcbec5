"""The client's core without a network: what waits for a commit, what does not, and in which order.

What must wait is the list of DESIGN.md section 4, for this end: a PUBLISH for its message and
identifier, a PUBREL for the PUBREC, an acknowledgement for what it reports, the program for the
inbox. What an earlier connection had to say is said on no other.
"""

import pytest

from semel.client.core import WINDOW
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Disconnect,
    Message,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
    encode,
)
from semel.mqtt.packets.ping import PingResp
from semel.mqtt.properties import NO_PROPERTIES
from tests.client.core_world import World, publishes

VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])
QOS = pytest.mark.parametrize("qos", [1, 2])
LASTS = pytest.mark.parametrize("lasts", [True, False], ids=["stored", "in memory"])
# No packet has type 0.
NONSENSE = b"\x00\x00"
ONE_AT_A_TIME = Properties(receive_maximum=1)


def connected(version: int = MQTT5, *, lasts: bool = True) -> World:
    world = World(version, lasts=lasts)
    world.connect()
    return world


# --- what waits -----------------------------------------------------------------------------------


@VERSIONS
@QOS
def test_a_publish_leaves_when_it_is_stored_and_not_before(version: int, qos: int) -> None:
    world = connected(version)
    world.hold()
    assert world.publish(b"a", qos) == []
    assert world.stored == []
    assert world.settle() == [Publish("t", b"a", qos, 1)]
    assert world.stored == [1]
    assert world.rows("SELECT number, packet_id, payload FROM delivery") == [(1, 1, b"a")]


def test_without_a_store_nothing_waits() -> None:
    world = connected(lasts=False)
    assert world.publish(b"a") == [Publish("t", b"a", 1, 1)]
    assert world.stored == []
    assert world.receive(Publish("t", b"in", 1, 9)) == []
    (incoming,) = world.handed_out
    assert world.acknowledge(incoming) == [PubAck(9)]


@VERSIONS
def test_a_pubrel_leaves_when_its_pubrec_is_stored(version: int) -> None:
    world = connected(version)
    world.publish(b"a", 2)
    world.hold()
    assert world.receive(PubRec(1)) == []
    assert world.settle() == [PubRel(1)]
    assert world.rows("SELECT packet_id, release_number, payload FROM delivery") == [(1, 1, None)]


@VERSIONS
def test_a_pubcomp_leaves_when_the_end_of_its_identifier_is_stored(version: int) -> None:
    world = connected(version)
    world.receive(Publish("t", b"in", 2, 9))
    assert world.acknowledge(world.handed_out[0]) == [PubRec(9)]
    assert world.rows("SELECT packet_id FROM inbound") == [(9,)]
    world.hold()
    assert world.receive(PubRel(9)) == []
    assert world.settle() == [PubComp(9)]
    assert world.rows("SELECT packet_id FROM inbound") == []


@VERSIONS
@QOS
def test_a_message_is_handed_out_when_it_is_in_the_inbox(version: int, qos: int) -> None:
    world = connected(version)
    world.hold()
    assert world.receive(Publish("t", b"in", qos, 9)) == []
    assert world.handed_out == []
    assert world.settle() == []
    assert [each.payload for each in world.handed_out] == [b"in"]
    assert world.rows("SELECT packet_id, payload FROM inbox") == [(9, b"in")]


@VERSIONS
@pytest.mark.parametrize(("qos", "answer"), [(1, PubAck(9)), (2, PubRec(9))])
def test_an_acknowledgement_leaves_when_the_inbox_has_let_the_message_go(
    version: int, qos: int, answer: PubAck | PubRec
) -> None:
    world = connected(version)
    world.receive(Publish("t", b"in", qos, 9))
    world.hold()
    assert world.acknowledge(world.handed_out[0]) == []
    assert world.settle() == [answer]
    assert world.rows("SELECT * FROM inbox") == []
    assert world.rows("SELECT packet_id FROM inbound") == [(9,)] * (qos - 1)


def test_at_qos_0_nothing_waits_for_a_store_that_has_nothing_to_write() -> None:
    world = connected()
    world.hold()
    world.receive(Publish("t", b"in"))
    assert [each.payload for each in world.handed_out] == [b"in"]
    world.core.publish_now(Message("t", b"out"), world.now)
    assert world.tick() == [Publish("t", b"out")]


def test_messages_are_handed_out_in_the_order_in_which_they_came() -> None:
    world = connected()
    world.hold()
    world.receive(Publish("t", b"1", 1, 1))
    world.receive(Publish("t", b"2"))
    world.receive(Publish("t", b"3", 2, 3))
    assert world.handed_out == []
    world.settle(1)
    # What has nothing to store stays behind what came before it.
    assert [each.payload for each in world.handed_out] == [b"1", b"2"]
    world.settle()
    assert [each.payload for each in world.handed_out] == [b"1", b"2", b"3"]


def test_packets_leave_in_their_order_also_those_that_need_no_commit() -> None:
    world = connected()
    world.receive(Publish("t", b"in", 2, 9))
    world.acknowledge(world.handed_out[0])
    world.hold()
    assert world.publish(b"a") == []
    # A repeated PUBLISH is answered again, and that changes nothing; but it is not the first.
    assert world.receive(Publish("t", b"in", 2, 9)) == []
    assert world.settle() == [Publish("t", b"a", 1, 1), PubRec(9)]


@VERSIONS
def test_what_the_program_does_before_the_greeting_is_stored_waits_for_it(version: int) -> None:
    world = World(version)
    world.publish(b"a", 2)
    world.hold()
    world.open()
    assert world.receive(ConnAck()) == []
    assert world.core.is_connected is False
    assert world.publish(b"b") == []
    world.core.subscribe(Subscription("x", 1), NO_PROPERTIES)
    assert world.tick() == []
    left = world.settle(1) + world.settle()
    assert world.is_connected
    assert publishes(left) == [(b"a", 1, False), (b"b", 2, False)]
    assert sum(isinstance(packet, Subscribe) for packet in left) == 1


def test_a_subscribe_leaves_when_the_store_knows_that_the_server_may_have_it() -> None:
    world = connected()
    world.hold()
    world.core.subscribe(Subscription("x", 1), NO_PROPERTIES)
    assert world.tick() == []
    (packet,) = world.settle()
    assert isinstance(packet, Subscribe)
    assert world.rows("SELECT topic_filter FROM subscription") == [("x",)]


def test_an_unsubscribed_filter_is_in_the_store_until_the_server_has_answered() -> None:
    world = connected()
    world.subscribe("x")
    world.core.unsubscribe("x")
    (packet,) = world.tick()
    assert isinstance(packet, Unsubscribe)
    assert world.rows("SELECT topic_filter FROM subscription") == [("x",)]
    world.grant([packet])
    assert world.rows("SELECT topic_filter FROM subscription") == []


def test_several_commits_at_once_let_everything_leave_in_order() -> None:
    world = connected()
    world.hold()
    for payload in (b"a", b"b", b"c"):
        world.publish(payload)
    assert len(world.store.held) == 3
    assert not world.core.is_committed
    assert publishes(world.settle(2)) == [(b"a", 1, False), (b"b", 2, False)]
    assert publishes(world.settle()) == [(b"c", 3, False)]
    assert world.core.is_committed


# --- connections that end -------------------------------------------------------------------------


@VERSIONS
@QOS
def test_what_waited_for_an_old_connection_leaves_once_on_the_new_one(
    version: int, qos: int
) -> None:
    world = connected(version)
    world.hold()
    world.publish(b"a", qos)
    world.cut()
    world.open()
    # The commit of the old connection is safe when the new one is under way.
    assert world.settle(1) == []
    assert world.receive(ConnAck(session_present=True)) == []
    left = world.settle() + world.settle()
    assert publishes(left) == [(b"a", 1, True)]
    assert world.stored == [1]


def test_an_acknowledgement_that_waited_for_an_old_connection_does_not_leave_on_the_new_one() -> (
    None
):
    world = connected()
    world.receive(Publish("t", b"in", 1, 9))
    world.hold()
    world.acknowledge(world.handed_out[0])
    world.cut()
    world.connect()
    # [MQTT-4.4.0-2] the server sends it again, and only then it is answered
    assert world.settle() == []


def test_a_message_that_waited_for_an_old_connection_is_handed_out_all_the_same() -> None:
    world = connected()
    world.hold()
    world.receive(Publish("t", b"in", 2, 9))
    world.cut()
    world.settle()
    (incoming,) = world.handed_out
    # The server sends it again: it is the same.
    world.connect()
    world.settle()
    assert world.receive(Publish("t", b"in", 2, 9, dup=True)) == []
    assert world.settle() == []
    assert world.handed_out == [incoming]
    world.acknowledge(incoming)
    assert world.settle() == [PubRec(9)]


@VERSIONS
def test_a_greeting_of_a_connection_that_is_gone_greets_nobody(version: int) -> None:
    world = World(version)
    world.hold()
    world.open()
    world.receive(ConnAck())
    world.cut()
    world.settle()
    assert world.core.connack is None
    assert not world.core.is_connected


def test_qos_1_messages_that_come_again_are_the_same_for_the_program() -> None:
    world = connected()
    world.receive(Publish("t", b"1", 1, 7), Publish("t", b"2", 1, 8))
    first, second = world.handed_out
    world.cut()
    world.connect()
    world.receive(Publish("t", b"1", 1, 7, dup=True), Publish("t", b"2", 1, 8, dup=True))
    assert world.handed_out == [first, second]
    # [MQTT-4.6.0-2] in the order in which they came
    assert world.acknowledge(second) == []
    assert world.acknowledge(first) == [PubAck(7), PubAck(8)]


@LASTS
def test_a_qos_1_message_that_is_acknowledged_between_connections_does_not_come_again(
    lasts: bool,
) -> None:
    """Its PUBACK cannot have left, so that the server sends it again; and then it is answered."""
    world = connected(lasts=lasts)
    world.receive(Publish("t", b"1", 1, 7))
    (first,) = world.handed_out
    world.cut()
    assert world.acknowledge(first) == []
    world.connect()
    assert world.receive(Publish("t", b"1", 1, 7, dup=True)) == [PubAck(7)]
    assert world.handed_out == [first]
    # From here on the identifier is a new message's, whatever its DUP says.
    world.cut()
    world.connect()
    world.receive(Publish("t", b"2", 1, 7, dup=True))
    assert [each.payload for each in world.handed_out] == [b"1", b"2"]


def test_a_qos_1_message_whose_puback_waited_for_an_earlier_one_does_not_come_again() -> None:
    world = connected()
    world.receive(Publish("t", b"1", 1, 7), Publish("t", b"2", 1, 8))
    first, second = world.handed_out
    assert world.acknowledge(second) == []
    world.cut()
    world.connect()
    world.receive(Publish("t", b"1", 1, 7, dup=True), Publish("t", b"2", 1, 8, dup=True))
    assert world.handed_out == [first, second]
    assert world.acknowledge(first) == [PubAck(7), PubAck(8)]


def test_a_qos_1_message_whose_puback_has_left_and_is_lost_comes_again() -> None:
    world = connected()
    world.receive(Publish("t", b"1", 1, 7))
    (first,) = world.handed_out
    assert world.acknowledge(first) == [PubAck(7)]
    world.cut()
    world.connect()
    world.receive(Publish("t", b"1", 1, 7, dup=True))
    _, again = world.handed_out
    assert again.key != first.key
    assert world.acknowledge(again) == [PubAck(7)]


def test_a_new_message_is_not_taken_for_one_whose_puback_did_not_leave() -> None:
    """A server that was restored from a backup may use the identifier again, without DUP."""
    world = connected()
    world.receive(Publish("t", b"1", 1, 7))
    world.cut()
    world.acknowledge(world.handed_out[0])
    world.connect()
    world.receive(Publish("t", b"2", 1, 7))
    world.cut()
    world.connect()
    # It is not acknowledged before the program has done so.
    assert world.receive(Publish("t", b"2", 1, 7, dup=True)) == []
    _, second = world.handed_out
    assert world.acknowledge(second) == [PubAck(7)]


def test_a_qos_2_message_that_is_acknowledged_between_connections_does_not_come_again() -> None:
    world = connected()
    world.receive(Publish("t", b"1", 2, 7))
    (first,) = world.handed_out
    world.cut()
    assert world.acknowledge(first) == []
    world.connect()
    assert world.receive(Publish("t", b"1", 2, 7, dup=True)) == [PubRec(7)]
    assert world.handed_out == [first]
    assert world.receive(PubRel(7)) == [PubComp(7)]
    world.receive(Publish("t", b"another", 2, 7))
    assert [each.payload for each in world.handed_out] == [b"1", b"another"]
    assert first.key != world.handed_out[1].key


# --- DISCONNECT is the last packet [MQTT-3.14.4-1] ------------------------------------------------


@LASTS
def test_what_waits_is_kept_when_the_server_breaks_a_rule(lasts: bool) -> None:
    world = World(lasts=lasts)
    world.connect(properties=ONE_AT_A_TIME)
    for payload in (b"a", b"b", b"c"):
        world.publish(payload)
    left = world.receive_bytes(encode(PubAck(1), MQTT5) + NONSENSE)
    assert [type(packet) for packet in left] == [Disconnect]
    assert world.core.connection_end is not None
    # Of `a` that it is done, of the others nothing: they are sent on the next connection.
    assert [(each.number, each.violation) for each in world.outcomes] == [(1, None)]
    world.cut()
    assert publishes(world.connect()) == [(b"b", 2, False), (b"c", 3, False)]


@LASTS
@VERSIONS
def test_a_message_published_after_the_server_broke_a_rule_waits(version: int, lasts: bool) -> None:
    world = connected(version, lasts=lasts)
    world.receive_bytes(NONSENSE)
    assert world.publish(b"a", 2) == []
    assert world.outcomes == []
    world.cut()
    ((payload, _, _),) = publishes(world.connect())
    assert payload == b"a"


@LASTS
@VERSIONS
def test_what_was_answered_before_the_server_broke_a_rule_is_not_lost(
    version: int, lasts: bool
) -> None:
    world = connected(version, lasts=lasts)
    world.publish(b"a", 2)
    left = world.receive_bytes(encode(PubRec(1), version) + NONSENSE)
    assert not any(isinstance(packet, PubRel) for packet in left)
    world.cut()
    assert world.connect() == [PubRel(1)]


@LASTS
@VERSIONS
def test_what_comes_after_our_disconnect_is_taken_in_and_not_answered(
    version: int, lasts: bool
) -> None:
    world = connected(version, lasts=lasts)
    for payload in (b"a", b"b"):
        world.publish(payload, 2)
    world.publish(b"c", 1)
    world.core.disconnect(0, None, world.now)
    assert [type(packet) for packet in world.tick()] == [Disconnect]
    assert world.receive(PubRec(1), PubAck(3), Publish("t", b"in", 1, 9)) == []
    assert [each.number for each in world.outcomes] == [3]
    (incoming,) = world.handed_out
    assert world.acknowledge(incoming) == []
    world.cut()
    assert world.connect() == [PubRel(1), Publish("t", b"b", 2, 2, dup=True)]


@QOS
def test_a_message_that_came_after_our_disconnect_holds_nothing_back_on_the_next_connection(
    qos: int,
) -> None:
    world = connected()
    world.core.disconnect(0, None, world.now)
    world.receive(Publish("t", b"late", qos, 7))
    world.cut()
    world.connect()
    world.receive(Publish("t", b"late", qos, 7, dup=True), Publish("t", b"next", qos, 8))
    answers = []
    for incoming in list(world.handed_out):
        answers += world.acknowledge(incoming)
    assert [each.payload for each in world.handed_out] == [b"late", b"next"]
    assert answers == ([PubAck(7), PubAck(8)] if qos == 1 else [PubRec(7), PubRec(8)])


def test_what_is_safe_after_our_disconnect_does_not_leave() -> None:
    world = connected()
    world.hold()
    world.publish(b"a")
    world.core.disconnect(0, None, world.now)
    assert [type(packet) for packet in world.take()] == [Disconnect]
    assert world.settle() == []
    assert world.outcomes == []
    world.cut()
    world.connect()
    assert publishes(world.settle()) == [(b"a", 1, True)]


def test_what_waits_is_kept_when_the_server_disconnects() -> None:
    world = World()
    world.connect(properties=ONE_AT_A_TIME)
    world.publish(b"a")
    world.publish(b"b")
    assert world.receive(PubAck(1), Disconnect(0x8B)) == []
    assert [each.number for each in world.outcomes] == [1]
    world.cut()
    assert publishes(world.connect()) == [(b"b", 2, False)]


# --- what the server's CONNACK forbids ------------------------------------------------------------


@LASTS
def test_a_message_that_the_server_does_not_take_is_told_and_the_next_ones_go(lasts: bool) -> None:
    world = World(lasts=lasts)
    world.publish(b"a", 2)
    world.publish(b"b", 1)
    left = world.connect(properties=Properties(maximum_qos=1))
    assert publishes(left) == [(b"b", 2, False)]
    (outcome,) = world.outcomes
    assert outcome.number == 1
    assert outcome.violation is not None
    assert outcome.violation.rule.name == "QOS_WITHIN_MAXIMUM"
    world.tick()
    if lasts:
        assert world.rows("SELECT number FROM delivery") == [(2,)]


@LASTS
def test_a_message_that_is_too_large_is_told_and_the_next_ones_go(lasts: bool) -> None:
    world = World(lasts=lasts)
    world.publish(b"a" * 100, 2)
    world.publish(b"b", 1)
    left = world.connect(properties=Properties(maximum_packet_size=50))
    assert [payload for payload, _, _ in publishes(left)] == [b"b"]
    (outcome,) = world.outcomes
    assert outcome.violation is not None
    assert outcome.violation.rule.name == "PACKET_SIZE_WITHIN_MAXIMUM"
    if lasts:
        assert world.rows("SELECT number FROM delivery") == [(2,)]


@LASTS
def test_a_message_that_expired_while_it_waited_is_told(lasts: bool) -> None:
    world = World(lasts=lasts)
    message = Message("t", b"a", qos=1, expires_at=world.now + 5)
    world.core.publish(message, world.now)
    world.publish(b"b")
    world.now += 10
    assert [payload for payload, _, _ in publishes(world.connect())] == [b"b"]
    assert [(each.number, each.expired) for each in world.outcomes] == [(1, True)]


@LASTS
def test_a_subscription_that_the_server_does_not_offer_is_told_and_others_are_requested(
    lasts: bool,
) -> None:
    world = World(lasts=lasts)
    world.connect(properties=Properties(wildcard_subscription_available=0))
    for topic_filter in ("a/#", "b"):
        world.core.subscribe(Subscription(topic_filter, 1), NO_PROPERTIES)
    left = world.tick() + world.tick()
    asked = [packet for packet in left if isinstance(packet, Subscribe)]
    assert [each.subscriptions[0].topic_filter for each in asked] == ["b"]
    world.grant(left)
    answers = {each.topic_filter: each for each in world.core.answers}
    assert answers["b"].violation is None
    violation = answers["a/#"].violation
    assert violation is not None
    assert violation.rule.name == "WILDCARD_IF_AVAILABLE"
    if lasts:
        assert world.rows("SELECT topic_filter FROM subscription") == [("b",)]


def test_a_subscription_that_the_server_refuses_is_not_in_the_store() -> None:
    world = connected()
    world.core.subscribe(Subscription("x", 1), NO_PROPERTIES)
    (packet,) = world.tick()
    assert isinstance(packet, Subscribe)
    world.receive(SubAck(packet.packet_id, [0x87]))
    assert world.rows("SELECT topic_filter FROM subscription") == []
    world.cut()
    assert world.connect() == []


# --- subscriptions over connections ---------------------------------------------------------------


def filters(packets: object) -> list[str]:
    """Of the SUBSCRIBE packets among them."""
    assert isinstance(packets, list)
    return [
        packet.subscriptions[0].topic_filter for packet in packets if isinstance(packet, Subscribe)
    ]


def test_a_subscription_that_the_program_asks_for_without_a_connection_is_answered() -> None:
    """The session has it; but somebody waits for the SUBACK."""
    world = connected()
    world.subscribe("x")
    world.cut()
    world.core.subscribe(Subscription("x", 2), NO_PROPERTIES)
    assert filters(world.connect()) == ["x"]


def test_what_a_session_has_is_not_requested_again_in_the_same_run() -> None:
    world = connected()
    world.subscribe("x")
    world.cut()
    assert world.connect() == []


def test_a_subscription_is_requested_again_if_its_end_may_have_reached_the_server() -> None:
    world = connected()
    world.subscribe("x")
    world.core.unsubscribe("x")
    world.tick()
    world.cut()
    world.core.subscribe(Subscription("x", 2), NO_PROPERTIES)
    assert filters(world.connect()) == ["x"]


def test_the_end_of_a_subscription_is_requested_again_if_it_was_not_answered() -> None:
    world = connected()
    world.subscribe("x")
    world.core.unsubscribe("x")
    world.tick()
    world.cut()
    (packet,) = world.connect()
    assert isinstance(packet, Unsubscribe)
    assert packet.topic_filters == ("x",)


# --- much that waits ------------------------------------------------------------------------------


def test_of_a_long_queue_only_a_window_is_in_memory_and_all_of_it_leaves_in_order() -> None:
    world = World()
    count = 3 * WINDOW + 7
    for number in range(count):
        world.core.publish(Message("t", b"%d" % number, qos=1), world.now)
        if number % 500 == 0:
            world.tick()
    world.tick()
    assert len(world.core.session.backlog) == count
    # What is at hand is what can be compared; beyond the window there are only numbers.
    assert at_hand(world) == WINDOW
    world.crash()
    assert len(world.core.session.backlog) == count
    assert at_hand(world) == 0
    left = world.connect(properties=Properties(receive_maximum=50))
    taken: list[bytes] = []
    while left:
        found = publishes(left)
        taken += [payload for payload, _, _ in found]
        assert at_hand(world) <= WINDOW
        left = world.receive(*(PubAck(packet_id) for _, packet_id, _ in found))
    assert taken == [b"%d" % number for number in range(count)]
    assert world.rows("SELECT count(*) FROM delivery") == [(0,)]


def at_hand(world: World) -> int:
    return len(world.core.session.backlog.in_memory())


def test_messages_that_are_not_safe_yet_are_not_skipped_when_the_window_is_filled() -> None:
    world = World()
    for number in range(WINDOW + 10):
        world.core.publish(Message("t", b"%d" % number, qos=1), world.now)
    world.tick()
    world.connect(properties=Properties(receive_maximum=WINDOW))
    world.hold()
    for number in range(WINDOW + 10, WINDOW + 20):
        world.publish(b"%d" % number)
    taken = []
    left = world.receive(*(PubAck(packet_id) for packet_id in range(1, WINDOW + 1)))
    assert left == []
    while world.store.held:
        taken += [payload for payload, _, _ in publishes(world.settle(1))]
    taken += [payload for payload, _, _ in publishes(world.settle())]
    assert taken == [b"%d" % number for number in range(WINDOW, WINDOW + 20)]


# --- keep alive -----------------------------------------------------------------------------------


def test_a_pingreq_need_not_wait_for_the_store() -> None:
    world = World(keep_alive=10)
    world.connect()
    world.hold()
    world.publish(b"a")
    world.now += 8
    world.core.sweep(world.now, is_reading=True)
    assert [type(packet).__name__ for packet in world.take()] == ["PingReq"]
    assert world.receive(PingResp()) == []
    assert world.core.connection_end is None

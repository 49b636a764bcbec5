"""Bugs that brokers have had: class 1, QoS 2 duplicates, and class 6, races of one client id.

CVE-2023-28366 is the best known of class 1: identifiers of repeated QoS 2 messages leaked. Others
answered the second repeat by closing, forwarded a repeat that came after a reconnection, or took
DUP for proof of a duplicate.
"""

from collections.abc import Sequence

import pytest

from semel.broker.authority import Authority
from semel.broker.identity import Identity
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
    encode,
)
from tests.broker.broker_process import Process
from tests.broker.by_hand import link, memory
from tests.broker.core.test_core import KEPT, VERSIONS, payloads, persistent
from tests.broker.world import Client, World


def message(payload: bytes, packet_id: int = 7, *, dup: bool = False) -> Publish:
    return Publish("t", payload, qos=2, packet_id=packet_id, dup=dup)


def watcher(world: World, topic_filter: str = "#", qos: int = 2) -> Client:
    """Someone who sees what is forwarded."""
    client = world.connect("watcher")
    client.subscribe(topic_filter, qos=qos)
    return client


# --- class 1: repeated QoS 2 messages -------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("dup", [False, True])
@pytest.mark.parametrize("repeats", [1, 2, 3, 300])
def test_class_1_a_repeated_qos_2_publish_is_forwarded_once(
    version: int, dup: bool, repeats: int
) -> None:
    """[MQTT-4.3.3-10] (5.0) [MQTT-4.3.3-2] (3.1.1): any number of repeats, DUP or not"""
    world = World()
    watching = watcher(world)
    client = world.connect("a", version)
    assert client.send(message(b"x")) == [PubRec(7)]
    for _ in range(repeats):
        assert client.send(message(b"x", dup=dup)) == [PubRec(7)]
    assert client.send(PubRel(7)) == [PubComp(7)]
    assert payloads(watching.take()) == [b"x"]
    # the control: with another identifier it is another message
    assert client.send(message(b"x", 8)) == [PubRec(8)]
    assert payloads(watching.take()) == [b"x"]


@VERSIONS
def test_class_1_repeats_that_come_in_one_piece_are_forwarded_once(version: int) -> None:
    world = World()
    watching = watcher(world)
    client = world.connect("a", version)
    packets: list[Packet] = [message(b"x", dup=number > 0) for number in range(50)]
    assert client.send(*packets) == [PubRec(7)] * 50
    assert client.send(PubRel(7)) == [PubComp(7)]
    assert payloads(watching.take()) == [b"x"]


@VERSIONS
def test_class_1_an_identifier_that_waits_for_pubrel_brings_nothing_new(version: int) -> None:
    """[MQTT-4.3.3-10]: it is the identifier that makes a repeat, not what is in it"""
    world = World()
    watching = watcher(world)
    client = world.connect("a", version)
    client.send(message(b"first"))
    assert client.send(message(b"second", dup=True)) == [PubRec(7)]
    assert client.send(Publish("other", b"third", qos=2, packet_id=7, dup=True)) == [PubRec(7)]
    assert payloads(watching.take()) == [b"first"]
    client.send(PubRel(7))
    assert client.send(message(b"second")) == [PubRec(7)]
    assert payloads(watching.take()) == [b"second"]


@VERSIONS
@pytest.mark.parametrize("dup", [False, True])
def test_class_1_dup_proves_nothing(version: int, dup: bool) -> None:
    """[MQTT-4.3.3-12]: an identifier that nobody waits for is a new message's, DUP or not"""
    world = World()
    watching = watcher(world)
    client = world.connect("a", version)
    for payload in (b"1", b"2", b"3"):
        assert client.send(message(payload, dup=dup)) == [PubRec(7)]
        assert client.send(PubRel(7)) == [PubComp(7)]
    assert payloads(watching.take()) == [b"1", b"2", b"3"]


@VERSIONS
def test_class_1_a_repeated_pubrel_is_answered_and_forwards_nothing(version: int) -> None:
    """[MQTT-4.3.3-11]: the answer to the first one may have been lost"""
    world = World()
    watching = watcher(world)
    client = world.connect("a", version)
    client.send(message(b"x"))
    assert client.send(PubRel(7)) == [PubComp(7)]
    again = [PubComp(7, 0x92 if version == MQTT5 else 0)]
    for _ in range(3):
        assert client.send(PubRel(7)) == again
    assert payloads(watching.take()) == [b"x"]
    assert client.send(PingReq()) == [PingResp()]


@VERSIONS
def test_class_1_repeats_over_many_reconnections_are_forwarded_once(version: int) -> None:
    """The identifier belongs to the session, not to the connection [4.1]."""
    world = World()
    watching = watcher(world)
    client = persistent(world, "a", version)
    client.send(message(b"x"))
    for _ in range(10):
        client.cut()
        client = persistent(world, "a", version, present=True)
        assert client.send(message(b"x", dup=True)) == [PubRec(7)]
    # PUBREL and its answer may be lost as well
    assert client.send(PubRel(7)) == [PubComp(7)]
    client.cut()
    client = persistent(world, "a", version, present=True)
    assert [type(packet) for packet in client.send(PubRel(7))] == [PubComp]
    assert payloads(watching.take()) == [b"x"]
    client.send(message(b"new"))
    assert payloads(watching.take()) == [b"new"]


@VERSIONS
def test_class_1_a_repeat_on_the_connection_that_takes_over_is_forwarded_once(
    version: int,
) -> None:
    world = World()
    watching = watcher(world)
    persistent(world, "a", version).send(message(b"x"))
    client = persistent(world, "a", version, present=True)
    assert client.send(message(b"x", dup=True)) == [PubRec(7)]
    assert client.send(PubRel(7)) == [PubComp(7)]
    assert payloads(watching.take()) == [b"x"]


@VERSIONS
def test_class_1_a_new_session_knows_no_identifiers(version: int) -> None:
    """[MQTT-3.1.2-4] (5.0) [MQTT-3.1.2-6] (3.1.1): DUP does not bring the old session back"""
    world = World()
    watching = watcher(world)
    persistent(world, "a", version).send(message(b"x"))
    client = world.connect("a", version, clean_start=True)
    assert client.send(message(b"y", dup=True)) == [PubRec(7)]
    assert payloads(watching.take()) == [b"x", b"y"]


@VERSIONS
def test_class_1_identifiers_of_two_clients_have_nothing_to_do_with_each_other(
    version: int,
) -> None:
    world = World()
    watching = watcher(world)
    first, second = world.connect("a", version), world.connect("b", version)
    first.send(message(b"1"))
    assert second.send(message(b"2")) == [PubRec(7)]
    assert second.send(PubRel(7)) == [PubComp(7)]
    assert first.send(message(b"1", dup=True)) == [PubRec(7)]
    assert payloads(watching.take()) == [b"1", b"2"]


def test_class_1_a_repeat_does_not_retain_again() -> None:
    """What was retained in between is not put back."""
    world = World()
    client, other = world.connect("a"), world.connect("b")
    old = Publish("t", b"old", qos=2, packet_id=7, retain=True)
    client.send(old)
    other.send(Publish("t", b"new", retain=True))
    client.send(Publish("t", b"old", qos=2, packet_id=7, retain=True, dup=True))
    assert payloads(world.connect("c").subscribe("t")) == [b"new"]
    client.send(PubRel(7))
    client.send(old)
    assert payloads(world.connect("d").subscribe("t")) == [b"old"]


def test_class_1_one_of_a_shared_group_gets_it_once() -> None:
    world = World()
    members = [world.connect(name) for name in ("m1", "m2", "m3")]
    for member in members:
        member.subscribe("$share/g/t", qos=2)
    client = world.connect("a")
    for number in range(9):
        packet_id = number + 1
        client.send(message(b"%d" % number, packet_id))
        client.send(message(b"%d" % number, packet_id, dup=True))
        client.send(PubRel(packet_id))
    received = [payload for member in members for payload in payloads(member.take())]
    assert sorted(received) == [b"%d" % number for number in range(9)]


def test_class_1_a_refused_message_leaves_its_identifier_free() -> None:
    """[MQTT-4.3.3-9]: after a PUBREC of 0x80 or more the identifier is a new message's"""

    class Quiet(Authority):
        def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
            return 0x87 if topic_name == "no" else 0

    world = World(authority=Quiet())
    watching = watcher(world)
    client = world.connect("a")
    assert client.send(Publish("no", b"x", qos=2, packet_id=7)) == [PubRec(7, 0x87)]
    assert client.send(message(b"y")) == [PubRec(7)]
    assert client.send(message(b"y", dup=True)) == [PubRec(7)]
    assert payloads(watching.take()) == [b"y"]


def test_class_1_in_5_identifiers_are_bounded_by_the_receive_maximum() -> None:
    """[MQTT-3.3.4-7]: so the broker never keeps more; a repeat is no further one"""
    world = World(BrokerSettings(receive_maximum=3))
    watching = watcher(world)
    client = world.connect("a")
    for packet_id in (1, 2, 3):
        assert client.send(message(b"%d" % packet_id, packet_id)) == [PubRec(packet_id)]
    assert client.send(message(b"1", 1, dup=True)) == [PubRec(1)]
    assert client.send(PubRel(1)) == [PubComp(1)]
    assert client.send(message(b"4", 4)) == [PubRec(4)]
    answer = client.send(message(b"5", 5))
    assert [packet.reason for packet in answer if isinstance(packet, Disconnect)] == [0x93]
    assert payloads(watching.take()) == [b"1", b"2", b"3", b"4"]


def test_class_1_all_identifiers_at_once_are_kept_compactly() -> None:
    """In 3.1.1 nothing but their number bounds them: 65,535 of them are no reason to close."""
    world = World()
    client = persistent(world, "a", MQTT311)
    with memory() as held:
        for start in range(1, 10_000, 1_000):
            client.send_bytes(b"".join(_publish_311(start + n) for n in range(1_000)))
        # a bit for each of 65,535 in a few places, and not an object for each of 10,000
        assert held() < 200_000
    rest = b"".join(_publish_311(packet_id) for packet_id in range(10_003, 65_536, 4))
    assert len(client.send_bytes(rest)) == 13_884
    again = b"".join(_publish_311(packet_id, dup=True) for packet_id in range(1, 1_001))
    assert len(client.send_bytes(again)) == 1_000
    client.cut()
    client = persistent(world, "a", MQTT311, present=True)
    assert client.send(PubRel(1), PubRel(65_535)) == [PubComp(1), PubComp(65_535)]


def _publish_311(packet_id: int, *, dup: bool = False) -> bytes:
    return (b"\x3c" if dup else b"\x34") + b"\x05\x00\x01t" + packet_id.to_bytes(2, "big")


def test_class_1_repeats_and_reconnections_leave_nothing_behind() -> None:
    """CVE-2023-28366: memory does not grow with what a client repeats or leaves unfinished"""
    world = World()

    def round_of_repeats() -> None:
        client = persistent(world, "a", MQTT5, present=True)
        for packet_id in (1_001, 1_002, 1_003):
            client.send(*[message(bytes(100), packet_id, dup=True)] * 20)
        client.send(PubRel(1_001))
        client.send(PubRel(1_001), PubRel(2_000))
        client.cut()
        world.log.clear()

    persistent(world, "a", MQTT5).cut()
    for _ in range(20):
        round_of_repeats()
    with memory() as held:
        for _ in range(60):
            round_of_repeats()
        assert held() < 10_000


@VERSIONS
@pytest.mark.parametrize("stage", ["sent", "received", "released"])
def test_class_1_a_subscriber_gets_each_message_once_wherever_it_is_cut(
    version: int, stage: str
) -> None:
    """[MQTT-4.3.3-6] [MQTT-4.4.0-1]: PUBLISH again with DUP before PUBREC, PUBREL alone after"""
    world = World()
    client = persistent(world, "s", version)
    client.subscribe("t", qos=2)
    world.connect("p").send(message(b"x"))
    (sent,) = client.take()
    assert sent == Publish("t", b"x", qos=2, packet_id=1)
    for _ in range(3):
        if stage != "sent":
            assert client.send(PubRec(1)) == [PubRel(1)]
        client.cut()
        client = persistent(world, "s", version, present=True)
        if stage == "sent":
            assert client.take() == [Publish("t", b"x", qos=2, packet_id=1, dup=True)]
        else:
            assert client.take() == [PubRel(1)]
    if stage == "sent":
        client.send(PubRec(1))
    client.send(PubComp(1))
    client.cut()
    assert persistent(world, "s", version, present=True).take() == []


def test_class_1_a_pubrel_is_owed_though_the_message_has_expired() -> None:
    """[MQTT-4.3.3-7]: expiry ends nothing that has begun, but what has not"""
    world = World()
    narrow = Properties(receive_maximum=1, session_expiry_interval=3_600)
    client = world.connect("s", properties=narrow)
    client.subscribe("t", qos=2)
    short = Properties(message_expiry_interval=5)
    publisher = world.connect("p")
    for packet_id in (1, 2):
        publisher.send(Publish("t", b"x", qos=2, packet_id=packet_id, properties=short))
    assert client.send(PubRec(1))[-1:] == [PubRel(1)]
    client.cut()
    world.wait(10)
    client = persistent(world, "s", MQTT5, present=True)
    assert client.take() == [PubRel(1)]
    assert client.send(PubComp(1)) == []


@VERSIONS
def test_class_1_a_repeated_pubrec_is_answered_by_pubrel(version: int) -> None:
    """The PUBREL may have been lost, or both ways may have crossed."""
    world = World()
    client = world.connect("s", version)
    client.subscribe("t", qos=2)
    world.connect("p").send(message(b"x"))
    assert client.send(PubRec(1))[-1:] == [PubRel(1)]
    assert client.send(PubRec(1)) == [PubRel(1)]
    assert client.send(PubComp(1)) == []
    assert not client.is_closed()


@VERSIONS
def test_class_1_repeats_on_a_real_socket_are_forwarded_once(version: int) -> None:
    with (
        Process() as broker,
        link(broker.address, "watcher") as watching,
        link(broker.address, "a", version) as client,
    ):
        watching.subscribe("t", qos=0)
        for number in range(10):
            client.send(message(b"x", dup=number > 0))
            assert client.take(1) == [PubRec(7)]
        client.send(PubRel(7))
        assert client.take(1) == [PubComp(7)]
        client.send(message(b"y"))
        assert client.take(1) == [PubRec(7)]
        assert payloads(watching.take(2)) == [b"x", b"y"]
        watching.ping()


# --- class 6: take-over, subscribing again, delayed wills -----------------------------------------


def in_one_tick(world: World, *sent: tuple[Client, Sequence[Packet]]) -> None:
    """What several clients send is all there when the broker looks."""
    for client, packets in sent:
        data = b"".join(encode(packet, client.version) for packet in packets)
        world.broker.receive(client.connection, data, world.now)
    world.tick()


def again(client_id: str, version: int = MQTT5, *, will: Will | None = None) -> Connect:
    """The CONNECT of a client that wants its session back."""
    return Connect(
        client_id,
        version=version,
        clean_start=False,
        will=will,
        properties=KEPT if version == MQTT5 else Properties(),
    )


@VERSIONS
@pytest.mark.parametrize("message_first", [True, False])
def test_class_6_a_message_in_the_tick_of_a_take_over_is_not_lost_and_not_doubled(
    version: int, message_first: bool
) -> None:
    world = World()
    old = persistent(world, "a", version)
    old.subscribe("t", qos=1)
    publisher, new = world.connect("p"), world.open(version)
    steps: list[tuple[Client, Sequence[Packet]]] = [
        (publisher, [Publish("t", b"x", qos=1, packet_id=1)]),
        (new, [again("a", version)]),
    ]
    in_one_tick(world, *(steps if message_first else steps[::-1]))
    assert old.is_closed()
    connack, delivered = new.take()
    assert isinstance(connack, ConnAck)
    assert connack.session_present
    assert isinstance(delivered, Publish)
    assert (delivered.payload, delivered.qos) == (b"x", 1)
    assert publisher.take() == [PubAck(1)]


@VERSIONS
def test_class_6_what_an_old_connection_sends_after_the_take_over_counts_for_nothing(
    version: int,
) -> None:
    world = World()
    watching = watcher(world)
    old = persistent(world, "a", version)
    old.send_bytes(encode(Publish("t", b"half"), version)[:4])
    new = persistent(world, "a", version, present=True)
    old.send_bytes(encode(Publish("t", b"half"), version)[4:])
    old.send_bytes(encode(Publish("t", b"late"), version))
    old.send_bytes(encode(Subscribe(1, [Subscription("u")]), version))
    old.send_bytes(encode(Disconnect(), version))
    assert watching.take() == []
    assert new.send(Publish("t", b"new")) == []
    assert payloads(watching.take()) == [b"new"]
    watching.send(Publish("u", b"x"))
    assert new.take() == []


@VERSIONS
def test_class_6_an_answer_on_the_old_connection_is_none_on_the_new_one(version: int) -> None:
    """[MQTT-4.4.0-1]: what the old connection had open is sent again on the new one"""
    world = World()
    old = persistent(world, "a", version)
    old.subscribe("t", qos=1)
    world.connect("p").send(Publish("t", b"x", qos=1, packet_id=1))
    assert payloads(old.take()) == [b"x"]
    new = world.open(version)
    in_one_tick(world, (new, [again("a", version)]), (old, [PubAck(1)]))
    assert new.take()[1:] == [Publish("t", b"x", qos=1, packet_id=1, dup=True)]
    # the control: an answer that came before the take-over counts
    third = world.open(version)
    in_one_tick(world, (new, [PubAck(1)]), (third, [again("a", version)]))
    assert [type(packet) for packet in third.take()] == [ConnAck]


@VERSIONS
def test_class_6_of_many_connections_with_one_id_the_last_remains(version: int) -> None:
    world = World()
    persistent(world, "a", version).subscribe("t")
    clients = [world.open(version) for _ in range(20)]
    in_one_tick(world, *[(client, [again("a", version)]) for client in clients])
    *old, last = clients
    assert all(client.is_closed() for client in old)
    for client in old:
        # It may have been told, where the version has a way to.
        assert client.take()[1:] in ([], [Disconnect(0x8E)] if version == MQTT5 else [])
        client.cut()
    world.connect("p").send(Publish("t", b"x"))
    assert payloads(last.take()) == [b"x"]


@VERSIONS
def test_class_6_the_end_of_an_old_connection_touches_nothing_of_the_new_one(
    version: int,
) -> None:
    """The old one's close comes late: the new one's will is neither sent nor forgotten."""
    world = World()
    watching = watcher(world)
    old = world.connect("a", version, will=Will("gone", b"old"))
    new = world.connect("a", version, will=Will("gone", b"new"))
    assert payloads(watching.take()) == [b"old"]
    old.cut()
    world.wait(3)
    assert watching.take() == []
    assert new.send(PingReq()) == [PingResp()]
    new.cut()
    assert payloads(watching.take()) == [b"new"]


@pytest.mark.parametrize(
    ("expiry", "delay", "clean_start", "published"),
    [
        (0, 0, True, True),
        (0, 100, True, True),  # the session ends with its connection, which comes first
        (0, 100, False, True),
        (100, 0, False, True),
        (100, 100, False, False),  # [MQTT-3.1.3-9] the session is back in time
        (100, 100, True, True),  # the clean start ends the session
        (2, 100, False, False),
    ],
)
def test_class_6_a_take_over_sends_the_old_will_unless_its_delay_saves_it(
    expiry: int, delay: int, clean_start: bool, published: bool
) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.3-9], once and at once, or never"""
    world = World()
    watching = watcher(world)
    will = Will("gone", b"bye", properties=Properties(will_delay_interval=delay))
    kept = Properties(session_expiry_interval=expiry)
    world.connect("a", will=will, properties=kept)
    world.connect(
        "a", clean_start=clean_start, properties=kept, present=bool(expiry) and not clean_start
    )
    assert payloads(watching.take()) == ([b"bye"] if published else [])
    world.wait(200)
    assert watching.take() == []


def test_class_6_in_3_1_1_a_take_over_sends_the_old_will() -> None:
    """[MQTT-3.1.2-8]"""
    world = World()
    watching = watcher(world)
    world.connect("a", MQTT311, clean_start=False, will=Will("gone", b"bye"))
    world.connect("a", MQTT311, clean_start=False, present=True)
    assert payloads(watching.take()) == [b"bye"]


@pytest.mark.parametrize("late", [False, True])
def test_class_6_a_delay_that_has_passed_is_not_undone_by_a_reconnection(late: bool) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.1.3-9]: only who comes back before it has passed takes the will back

    The broker need not have had time to look: it is the clock that counts.
    """
    world = World()
    watching = watcher(world)
    will = Will("gone", b"bye", properties=Properties(will_delay_interval=5))
    world.connect("a", will=will, properties=KEPT).cut()
    world.now += 5.5 if late else 4.5
    back = world.connect("a", clean_start=False, properties=KEPT, present=True)
    world.wait(10)
    assert payloads(watching.take()) == ([b"bye"] if late else [])
    assert back.send(PingReq()) == [PingResp()]


def test_class_6_a_delayed_will_is_sent_once_whatever_ends_the_wait() -> None:
    """A clean start in the middle of the delay ends the session: once then, not again later."""
    world = World()
    watching = watcher(world)
    will = Will("gone", b"bye", properties=Properties(will_delay_interval=5))
    world.connect("a", will=will, properties=KEPT).cut()
    world.wait(2)
    assert watching.take() == []
    client = world.connect("a", properties=KEPT)
    assert payloads(watching.take()) == [b"bye"]
    client.cut()
    world.wait(20)
    assert watching.take() == []


def test_class_6_each_lost_connection_counts_its_own_delay() -> None:
    """An appointment that an earlier loss made does not send the will of a later one."""
    world = World()
    watching = watcher(world)
    will = Will("gone", b"bye", properties=Properties(will_delay_interval=5))
    for _ in range(3):
        world.connect("a", clean_start=True, will=None, properties=KEPT).cut()
        world.connect("a", clean_start=False, will=will, properties=KEPT, present=True).cut()
        world.wait(3)
        back = world.connect("a", clean_start=False, will=will, properties=KEPT, present=True)
        world.wait(1)
        back.cut()
        world.wait(4)
        assert watching.take() == []
        world.wait(1)
        assert payloads(watching.take()) == [b"bye"]


@VERSIONS
def test_class_6_a_client_may_watch_its_own_will(version: int) -> None:
    """CONNACK comes first [MQTT-3.2.0-1], then what the old connection left behind."""
    world = World()
    old = world.open(version)
    old.send(again("a", version, will=Will("gone", b"bye", qos=1)))
    old.subscribe("gone", qos=1)
    new = world.open(version)
    connack, delivered = new.send(again("a", version))
    assert isinstance(connack, ConnAck)
    assert connack.session_present
    assert isinstance(delivered, Publish)
    assert (delivered.payload, delivered.dup) == (b"bye", False)


@VERSIONS
@pytest.mark.parametrize("topic_filter", ["t/1", "t/+", "t/#"])
def test_class_6_subscribing_and_publishing_in_one_piece_keep_their_order(
    version: int, topic_filter: str
) -> None:
    """Nothing that the broker remembers of a topic outlives a change of its subscriptions."""
    world = World()
    client, other = world.connect("a", version), world.connect("b", version)
    other.send(Publish("t/1", b"0"))
    on, off = Subscribe(1, [Subscription(topic_filter)]), Unsubscribe(2, [topic_filter])
    for start in range(3):
        received = client.send(
            Publish("t/1", b"before"),
            on,
            Publish("t/1", b"%d" % start),
            off,
            Publish("t/1", b"after"),
        )
        codes = [0] if version == MQTT5 else []
        assert received[0] == SubAck(1, [0])
        assert payloads(received) == [b"%d" % start]
        assert [p for p in received if isinstance(p, UnsubAck)] == [UnsubAck(2, codes)]
    in_one_tick(
        world,
        (other, [Publish("t/1", b"early")]),
        (client, [on]),
        (other, [Publish("t/1", b"in time")]),
        (client, [off]),
        (other, [Publish("t/1", b"late")]),
    )
    assert payloads(client.take()) == [b"in time"]


@VERSIONS
def test_class_6_subscribing_again_changes_the_qos_of_the_next_message(version: int) -> None:
    """[MQTT-3.8.4-3]: replaced, not added"""
    world = World()
    client, other = world.connect("a", version), world.connect("b", version)
    for number, granted in enumerate((2, 0, 1, 2, 0), start=1):
        client.subscribe("t/+", qos=granted)
        other.send(Publish("t/1", b"x", qos=2, packet_id=number))
        (delivered,) = client.take()
        assert isinstance(delivered, Publish)
        assert delivered.qos == granted


@VERSIONS
def test_class_6_a_session_that_ends_takes_its_subscriptions_with_it(version: int) -> None:
    """A later session of the same id gets what it subscribes to itself, and once."""
    world = World()
    publisher = world.connect("p")
    for topic_filter in ("t/1", "t/+", "t/#", "$share/g/t/1"):
        world.connect("a", version).subscribe(topic_filter)
        client = world.connect("a", version)
        publisher.send(Publish("t/1", b"x"))
        assert client.take() == []
        client.subscribe("t/1")
        publisher.send(Publish("t/1", b"y"))
        assert payloads(client.take()) == [b"y"]


@VERSIONS
def test_class_6_leaving_and_coming_back_in_one_tick_is_no_take_over(version: int) -> None:
    """The DISCONNECT came first: its will is gone, and nobody is told 0x8E."""
    world = World()
    watching = watcher(world)
    old = world.open(version)
    old.send(again("a", version, will=Will("gone", b"bye")))
    old.subscribe("t", qos=1)
    new = world.open(version)
    in_one_tick(world, (old, [Disconnect()]), (new, [again("a", version)]))
    assert old.take() == []
    (connack,) = new.take()
    assert isinstance(connack, ConnAck)
    assert connack.session_present
    assert watching.take() == []

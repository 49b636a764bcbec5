"""What outlives a connection, statement by statement."""

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    Delivery,
    Message,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Session,
    encode,
)
from semel.mqtt.delivery import ASSIGNED, ENDS, FINISHED, FREED, QUEUED, RELEASED, STORED, Change
from semel.mqtt.reasons import NOT_AUTHORIZED, PACKET_IDENTIFIER_NOT_FOUND
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.session_drops import give_up_shared
from semel.mqtt.session_reset import reset_session
from semel.mqtt.session_restore import restore_exchanges
from tests.mqtt.schedules import only_packets
from tests.mqtt.snapshots import session_snapshot
from tests.mqtt.stored_session import StoredSession, restored

VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5])


def connected(version: int = MQTT5, *, receive_maximum: int = 65_535) -> Session:
    session = Session()
    session.connect(version, receive_maximum=receive_maximum)
    return session


def packets(session: Session) -> list[Packet]:
    return only_packets(session.drain()[1])


def published(session: Session, *payloads: bytes, qos: int = 1) -> list[Packet]:
    """Send messages and give the packets that leave."""
    for payload in payloads:
        session.send(Message("t", payload, qos=qos), 0.0)
    session.poll(0.0)
    return packets(session)


def reconnect(session: Session, version: int = MQTT5) -> list[Packet]:
    session.disconnect(0.0, NEVER_EXPIRES)
    session.connect(version)
    session.poll(0.0)
    return packets(session)


def receive(session: Session, packet_id: int, *, qos: int, dup: bool = False) -> bool:
    """Receive a PUBLISH and accept it; whether it was a new message."""
    packet = Publish("t", b"x", qos=qos, packet_id=packet_id, dup=dup)
    receipt = session.receive_publish(packet)
    if receipt is not None:
        session.accept(receipt)
    return receipt is not None


# --- as sender ------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_each_new_message_takes_an_unused_identifier_and_leaves_with_dup_0(
    version: int, qos: int
) -> None:
    """[MQTT-4.3.2-1] [MQTT-4.3.2-2] [MQTT-4.3.3-1] [MQTT-4.3.3-2]"""
    session = connected(version)
    assert published(session, b"1", b"2", b"3", qos=qos) == [
        Publish("t", b"%d" % n, qos=qos, packet_id=n) for n in (1, 2, 3)
    ]


def test_a_qos_0_message_leaves_at_once_without_identifier_and_is_not_kept() -> None:
    """[MQTT-4.3.1-1]"""
    session = connected()
    assert session.send(Message("t", b"x"), 0.0) == 0
    assert session.drain() == ([], [Publish("t", b"x")])
    assert session.in_flight == len(session.backlog) == 0


def test_a_qos_0_message_is_dropped_without_a_connection_and_when_expired() -> None:
    session = Session()
    session.send(Message("t", b"x"), 0.0)
    session.connect(MQTT5)
    session.poll(0.0)
    assert session.drain() == ([], [])
    session.send(Message("t", b"x", expires_at=1.0), 1.0)
    assert session.drain() == ([], [])
    session.send(Message("t", b"x", expires_at=1.0), 0.5)
    assert len(packets(session)) == 1


@pytest.mark.slow
def test_an_identifier_is_in_use_until_its_last_acknowledgement() -> None:
    """[MQTT-2.3.1-2] [MQTT-2.3.1-3]: all 65,535 in flight, and none is given twice."""
    session = connected(MQTT311)
    for _ in range(65_536):
        session.send(Message("t", qos=2), 0.0)
    session.poll(0.0)
    sent = [packet.packet_id for packet in packets(session) if isinstance(packet, Publish)]
    assert sent == list(range(1, 65_536))
    assert len(session.backlog) == 1
    assert session.reserve_id() == 0
    session.receive_pubrec(PubRec(500))
    session.poll(0.0)
    assert packets(session) == [PubRel(500)]
    session.receive_pubcomp(PubComp(500))
    session.poll(0.0)
    assert packets(session) == [Publish("t", qos=2, packet_id=500)]


def test_identifiers_of_subscribe_and_publish_come_from_one_pool() -> None:
    """[MQTT-2.2.1-3]"""
    session = connected()
    assert [session.reserve_id(), session.reserve_id()] == [1, 2]
    assert published(session, b"x") == [Publish("t", b"x", qos=1, packet_id=3)]
    session.release_id(1)
    assert session.reserve_id() == 4
    session.disconnect(0.0, NEVER_EXPIRES)
    session.connect(MQTT5)
    assert [session.reserve_id() for _ in range(3)] == [5, 6, 7]


@pytest.mark.slow
def test_messages_wait_when_requests_hold_the_last_free_identifier() -> None:
    session = connected()
    assert session.reserve_id() == 1
    for _ in range(65_535):
        session.send(Message("t", qos=1), 0.0)
    session.poll(0.0)
    assert (session.in_flight, len(session.backlog)) == (65_534, 1)
    session.release_id(1)
    session.poll(0.0)
    assert (session.in_flight, len(session.backlog)) == (65_535, 0)


def test_identifiers_go_round_and_pass_over_those_in_use() -> None:
    session = connected()
    kept = [session.reserve_id() for _ in range(65_534)]
    session.release_id(10)
    assert kept[-1] == 65_534
    assert [session.reserve_id() for _ in range(3)] == [65_535, 10, 0]


@VERSIONS
def test_a_puback_completes_its_delivery_and_frees_the_identifier(version: int) -> None:
    """[MQTT-4.3.2-3]"""
    session = connected(version)
    published(session, b"1", b"2")
    done = session.receive_puback(PubAck(1))
    assert isinstance(done, Delivery)
    assert (done.number, done.packet_id) == (1, 1)
    assert session.drain()[0] == [Change(FINISHED, number=1, packet_id=1)]
    assert session.in_flight == 1
    assert session.receive_puback(PubAck(1)) is None


@VERSIONS
def test_a_pubrec_is_answered_by_pubrel_and_pubcomp_completes(version: int) -> None:
    """[MQTT-4.3.3-4] [MQTT-4.3.3-5]"""
    session = connected(version)
    published(session, b"1", qos=2)
    assert session.receive_pubrec(PubRec(1)) is None
    assert session.drain() == ([Change(RELEASED, number=1, packet_id=1)], [PubRel(1)])
    done = session.receive_pubcomp(PubComp(1))
    assert done is not None
    assert done.number == 1
    assert done.message is None
    assert session.drain() == ([Change(FINISHED, number=1, packet_id=1)], [])


def test_a_second_pubrec_is_answered_by_a_second_pubrel_and_changes_nothing() -> None:
    session = connected()
    published(session, b"1", qos=2)
    session.receive_pubrec(PubRec(1))
    session.drain()
    session.receive_pubrec(PubRec(1))
    assert session.drain() == ([], [PubRel(1)])


def test_answers_that_do_not_fit_complete_nothing() -> None:
    session = connected()
    published(session, b"1", qos=1)
    published(session, b"2", qos=2)
    assert session.receive_puback(PubAck(2)) is None
    assert session.receive_pubcomp(PubComp(2)) is None
    assert session.receive_pubcomp(PubComp(9)) is None
    assert session.drain() == ([], [])
    assert session.in_flight == 2


@pytest.mark.parametrize(
    ("version", "reason"), [(MQTT5, PACKET_IDENTIFIER_NOT_FOUND), (MQTT311, 0)]
)
def test_a_pubrec_for_nothing_is_answered_by_pubrel_not_found(version: int, reason: int) -> None:
    session = connected(version)
    published(session, b"1", qos=1)
    session.receive_pubrec(PubRec(1))
    session.receive_pubrec(PubRec(9))
    assert session.drain() == ([], [PubRel(1, reason), PubRel(9, reason)])


def test_a_refused_publish_is_closed_and_never_sent_again() -> None:
    """[MQTT-4.4.0-2]"""
    session = connected(receive_maximum=2)
    published(session, b"1", qos=1)
    published(session, b"2", qos=2)
    first = session.receive_puback(PubAck(1, NOT_AUTHORIZED))
    second = session.receive_pubrec(PubRec(2, NOT_AUTHORIZED))
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (1, 2)
    assert packets(session) == []
    assert published(session, b"3", b"4", b"5") == [
        Publish("t", b"3", qos=1, packet_id=3),
        Publish("t", b"4", qos=1, packet_id=4),
    ]
    assert [p.packet_id for p in reconnect(session) if isinstance(p, Publish)] == [3, 4, 5]


@VERSIONS
def test_a_resumed_session_sends_again_with_the_same_identifiers_and_dup_1(version: int) -> None:
    """[MQTT-3.3.1-1] [MQTT-4.4.0-1] [MQTT-2.3.1-3]"""
    session = connected(version)
    published(session, b"1", qos=1)
    published(session, b"2", qos=2)
    assert reconnect(session, version) == [
        Publish("t", b"1", qos=1, packet_id=1, dup=True),
        Publish("t", b"2", qos=2, packet_id=2, dup=True),
    ]
    assert published(session, b"3") == [Publish("t", b"3", qos=1, packet_id=3)]


@VERSIONS
def test_nothing_is_sent_again_while_the_connection_lasts(version: int) -> None:
    """[MQTT-4.4.0-1]"""
    session = connected(version)
    published(session, b"1", b"2")
    for now in (1.0, 1_000.0, 1e9):
        assert session.poll(now) == []
    assert session.drain() == ([], [])


@VERSIONS
def test_after_pubrec_the_publish_is_not_sent_again_but_the_pubrel_is(version: int) -> None:
    """[MQTT-4.3.3-6] (5.0) [MQTT-4.3.3-1] (3.1.1)"""
    session = connected(version)
    published(session, b"1", b"2", qos=2)
    session.receive_pubrec(PubRec(1))
    session.drain()
    assert reconnect(session, version) == [
        PubRel(1),
        Publish("t", b"2", qos=2, packet_id=2, dup=True),
    ]


@VERSIONS
def test_resent_publishes_keep_the_order_of_the_first_sends(version: int) -> None:
    """[MQTT-4.6.0-1]"""
    session = connected(version)
    published(session, b"1", b"2", b"3", b"4")
    session.receive_puback(PubAck(2))
    session.drain()
    for _ in range(3):
        resent = reconnect(session, version)
        assert [p.packet_id for p in resent if isinstance(p, Publish)] == [1, 3, 4]


@VERSIONS
def test_pubrels_leave_in_the_order_of_the_pubrecs_also_when_sent_again(version: int) -> None:
    """[MQTT-4.6.0-4]"""
    session = connected(version)
    published(session, b"1", b"2", b"3", qos=2)
    for packet_id in (3, 1, 2):
        session.receive_pubrec(PubRec(packet_id))
    assert packets(session) == [PubRel(3), PubRel(1), PubRel(2)]
    assert reconnect(session, version) == [PubRel(3), PubRel(1), PubRel(2)]


def test_a_late_answer_stops_the_resend_that_was_due() -> None:
    session = connected()
    published(session, b"1", b"2", qos=1)
    published(session, b"3", qos=2)
    session.disconnect(0.0, NEVER_EXPIRES)
    session.connect(MQTT5)
    session.receive_puback(PubAck(1))
    session.receive_pubrec(PubRec(3))
    session.poll(0.0)
    assert packets(session) == [PubRel(3), Publish("t", b"2", qos=1, packet_id=2, dup=True)]


def test_no_more_publishes_are_open_than_the_peers_receive_maximum() -> None:
    """[MQTT-3.3.4-7] [MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2]"""
    session = connected(receive_maximum=2)
    assert len(published(session, b"1", b"2", b"3", b"4", qos=2)) == 2
    session.receive_pubrec(PubRec(1))
    session.poll(0.0)
    assert packets(session) == [PubRel(1)]
    session.receive_pubcomp(PubComp(1))
    session.poll(0.0)
    assert packets(session) == [Publish("t", b"3", qos=2, packet_id=3)]
    assert len(session.backlog) == 1


# --- [4.9] what a peer that does not acknowledge may make us keep --------------------------------


def bounded(maximum: int, version: int = MQTT5) -> Session:
    session = connected(version)
    session.maximum_in_flight_bytes = maximum
    return session


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_wait_while_those_in_flight_take_the_bytes_that_they_may(
    version: int, qos: int
) -> None:
    session = bounded(2_500, version)
    sent = published(session, *(bytes(999) for _ in range(4)), qos=qos)
    # 1,000 bytes each and 500 for the delivery: the second reaches the bound, and is sent yet.
    assert len(sent) == 2
    assert (session.in_flight_bytes, len(session.backlog)) == (3_000, 2)
    assert not session.can_send(qos)
    assert not session.send_encoded(Message("t", b"", qos=qos), b"head", b"tail")
    if qos == 1:
        session.receive_puback(PubAck(1))
    else:
        # From PUBREC on only the identifier is kept.
        session.receive_pubrec(PubRec(1))
    session.poll(0.0)
    assert (session.in_flight_bytes, len(session.backlog)) == (3_000, 1)


def test_a_message_larger_than_the_bound_is_sent_alone() -> None:
    session = bounded(1)
    for number in (1, 2):
        assert len(published(session, bytes(10_000))) == 1
        assert published(session, b"next") == []
        session.receive_puback(PubAck(2 * number - 1))
        session.poll(0.0)
        assert len(packets(session)) == 1
        session.receive_puback(PubAck(2 * number))
    assert session.in_flight_bytes == 0


def test_what_is_sent_again_is_not_held_back_by_its_own_bytes() -> None:
    session = bounded(2_500)
    published(session, *(bytes(999) for _ in range(3)))
    resent = reconnect(session)
    assert [packet.packet_id for packet in resent if isinstance(packet, Publish)] == [1, 2]
    assert (session.in_flight_bytes, len(session.backlog)) == (3_000, 1)


def test_every_way_out_of_flight_gives_its_bytes_back() -> None:
    def flying(*qos: int, share: str = "") -> Session:
        session = bounded(100_000)
        for each in qos:
            session.send(Message("t", b"x", qos=each), 0.0, share)
        assert session.in_flight_bytes == 502 * len(qos)
        return session

    session = flying(1, 2)
    reset_session(session)
    assert session.in_flight_bytes == 0
    session = flying(1, 2, share="$share/g/t")
    give_up_shared(session, None, sent=True)
    assert session.in_flight_bytes == 502
    session.receive_pubrec(PubRec(2))
    assert session.in_flight_bytes == 0
    session.receive_pubcomp(PubComp(2))
    assert session.in_flight_bytes == 0
    session = flying(2)
    session.give_up(1)
    assert session.in_flight_bytes == 0
    session = Session()
    released, sent = Delivery(1, None, "", 2), Delivery(2, Message("t", b"x", qos=1), "", 1)
    released.packet_id, released.released, sent.packet_id = 1, 1, 2
    restore_exchanges(session, [released, sent], [])
    assert session.in_flight_bytes == 502


def test_no_more_deliveries_are_in_flight_than_may_be_however_often_a_peer_reconnects() -> None:
    """What waits for PUBCOMP takes nothing of a new connection's quota [MQTT-3.3.4-9]"""
    session = connected()
    session.maximum_in_flight = 10
    for number in range(3):
        published(session, *(b"%d" % number for _ in range(8)), qos=2)
        for packet_id in range(1, 6):
            session.receive_pubrec(PubRec(packet_id))
        assert session.in_flight <= 10
        reconnect(session)
    assert (session.in_flight, len(session.backlog)) == (10, 14)
    assert not session.can_send(1)
    session.receive_pubcomp(PubComp(1))
    session.poll(0.0)
    assert (session.in_flight, len(session.backlog)) == (10, 13)


def test_a_poll_sends_no_more_than_its_limit_and_tells_what_is_left_of_it() -> None:
    session = connected()
    published(session, *(b"%d" % number for number in range(5)))
    session.disconnect(0.0, NEVER_EXPIRES)
    session.poll(0.0, 3)
    assert session.poll_left == 3
    for number in range(5, 10):
        session.send(Message("t", b"%d" % number, qos=1), 0.0)
    session.connect(MQTT5)
    seen: list[bytes] = []
    left: list[int] = []
    for _ in range(4):
        session.poll(0.0, 3)
        left.append(session.poll_left)
        seen += [packet.payload for packet in packets(session) if isinstance(packet, Publish)]
    assert left == [0, 0, 0, 2]
    assert seen == [b"%d" % number for number in range(10)]


def test_an_empty_quota_does_not_hold_back_other_packets() -> None:
    """[MQTT-3.3.4-8] [MQTT-3.3.4-10] [MQTT-4.9.0-3]"""
    session = connected(receive_maximum=1)
    published(session, b"1", b"2", qos=2)
    session.send(Message("t", b"q0"), 0.0)
    assert receive(session, 1, qos=1)
    assert receive(session, 2, qos=2)
    session.receive_pubrec(PubRec(1))
    assert packets(session) == [Publish("t", b"q0"), PubAck(1), PubRec(2), PubRel(1)]
    assert session.reserve_id() == 2


def test_a_resume_keeps_the_receive_maximum_of_the_new_connection() -> None:
    """[4.9] the quota begins again with each connection, and resent packets count."""
    session = connected()
    published(session, b"1", b"2", b"3")
    session.disconnect(0.0, NEVER_EXPIRES)
    session.send(Message("t", b"4", qos=1), 0.0)
    session.connect(MQTT5, receive_maximum=2)
    session.poll(0.0)
    assert [p.packet_id for p in packets(session) if isinstance(p, Publish)] == [1, 2]
    session.receive_puback(PubAck(1))
    session.poll(0.0)
    assert packets(session) == [Publish("t", b"3", qos=1, packet_id=3, dup=True)]
    session.receive_puback(PubAck(2))
    session.poll(0.0)
    assert packets(session) == [Publish("t", b"4", qos=1, packet_id=4)]


def test_a_pubcomp_for_an_earlier_connection_does_not_raise_the_quota_above_its_maximum() -> None:
    session = connected()
    published(session, b"1", qos=2)
    session.receive_pubrec(PubRec(1))
    session.disconnect(0.0, NEVER_EXPIRES)
    session.connect(MQTT5, receive_maximum=1)
    session.receive_pubcomp(PubComp(1))
    session.drain()
    assert len(published(session, b"2", b"3")) == 1


def test_a_message_that_expires_while_it_waits_is_given_up() -> None:
    """[MQTT-3.3.2-5]"""
    session = Session()
    for payload, expires_at in ((b"1", 5.0), (b"2", None), (b"3", 10.0)):
        session.send(Message("t", payload, qos=1, expires_at=expires_at), 0.0)
    session.connect(MQTT5)
    session.drain()
    assert [delivery.number for delivery in session.poll(5.0)] == [1]
    changes, sent = session.drain()
    assert changes[0] == Change(FINISHED, number=1)
    assert [p.payload for p in sent if isinstance(p, Publish)] == [b"2", b"3"]


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_was_sent_does_not_expire_any_more(qos: int) -> None:
    """[MQTT-4.3.3-7]"""
    session = connected()
    session.send(Message("t", b"x", qos=qos, expires_at=1.0), 0.0)
    session.poll(0.0)
    session.disconnect(0.0, NEVER_EXPIRES)
    session.drain()
    session.connect(MQTT5)
    assert session.poll(100.0) == []
    (resent,) = packets(session)
    assert isinstance(resent, Publish)
    assert (resent.payload, resent.dup) == (b"x", True)


@pytest.mark.parametrize("properties", [Properties(), Properties(content_type="ab")])
def test_a_message_too_large_for_the_peer_is_given_up_as_if_delivered(
    properties: Properties,
) -> None:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    exact = Publish("t", bytes(50), qos=1, packet_id=1, properties=properties)
    session = Session()
    session.connect(MQTT5, receive_maximum=1, maximum_packet_size=len(encode(exact)))
    session.send(Message("t", bytes(51), qos=1, properties=properties), 0.0)
    session.send(Message("t", bytes(50), qos=1, properties=properties), 0.0)
    assert [delivery.number for delivery in session.poll(0.0)] == [1]
    (sent,) = packets(session)
    assert isinstance(sent, Publish)
    assert len(sent.payload) == 50
    session.send(Message("t", bytes(51 + 2), properties=properties), 0.0)
    assert packets(session) == []
    assert (session.too_large, session.dropped) == (1, 0)
    session.send(Message("t", bytes(50 + 2), properties=properties), 0.0)
    assert len(packets(session)) == 1


def test_properties_count_when_a_message_is_too_large() -> None:
    session = Session()
    session.connect(MQTT5, maximum_packet_size=60)
    session.send(Message("t", b"x", qos=1, properties=Properties(content_type="c" * 60)), 0.0)
    session.send(Message("t", b"x", qos=1, properties=Properties(content_type="c" * 40)), 0.0)
    assert [delivery.number for delivery in session.poll(0.0)] == [1]
    assert len(packets(session)) == 1


def test_a_small_message_for_a_peer_with_a_limit_is_sent() -> None:
    session = Session()
    session.connect(MQTT5, maximum_packet_size=1_000)
    assert len(published(session, b"small")) == 1


def test_a_message_in_flight_too_large_for_the_next_connection_is_given_up() -> None:
    session = connected()
    published(session, bytes(100))
    session.disconnect(0.0, NEVER_EXPIRES)
    session.connect(MQTT5, maximum_packet_size=50)
    assert [delivery.number for delivery in session.poll(0.0)] == [1]
    assert session.in_flight == 0


def test_what_waits_is_measured_until_it_is_sent_or_given_up() -> None:
    session = Session()
    session.send(Message("topic", bytes(100), qos=1, expires_at=5.0), 0.0)
    session.send(Message("t", bytes(10), qos=2), 0.0)
    assert (len(session.backlog), session.backlog.size) == (2, 116)
    session.connect(MQTT5)
    session.poll(9.0)
    assert (len(session.backlog), session.backlog.size) == (0, 0)


def test_messages_for_an_absent_peer_wait_in_order() -> None:
    """[MQTT-3.1.2-5] [MQTT-4.5.0-1]"""
    session = connected()
    session.disconnect(0.0, NEVER_EXPIRES)
    for payload in (b"1", b"2"):
        session.send(Message("t", payload, qos=1), 0.0)
    assert session.poll(0.0) == []
    assert packets(session) == []
    assert (len(session.backlog), session.in_flight) == (2, 0)
    session.connect(MQTT5)
    session.poll(0.0)
    assert [p.payload for p in packets(session) if isinstance(p, Publish)] == [b"1", b"2"]


# --- as receiver ----------------------------------------------------------------------------------


@VERSIONS
def test_receiving_acknowledges_nothing_until_the_owner_accepts(version: int) -> None:
    session = connected(version)
    one = session.receive_publish(Publish("t", qos=1, packet_id=1))
    two = session.receive_publish(Publish("t", qos=2, packet_id=2))
    assert session.drain() == ([], [])
    assert one is not None
    assert two is not None
    session.accept(one)
    assert session.drain() == ([], [PubAck(1)])
    session.accept(two)
    assert session.drain() == ([Change(STORED, packet_id=2)], [PubRec(2)])


def test_a_qos_0_publish_is_received_and_never_acknowledged() -> None:
    """[MQTT-3.3.4-1]"""
    session = connected()
    receipt = session.receive_publish(Publish("t"))
    assert receipt is not None
    session.accept(receipt)
    assert session.drain() == ([], [])


@VERSIONS
@pytest.mark.parametrize("repeats", [1, 2, 10])
def test_a_repeated_qos_2_publish_is_answered_each_time_and_delivered_once(
    version: int, repeats: int
) -> None:
    """[MQTT-4.3.3-10] (5.0) [MQTT-4.3.3-2] (3.1.1), case 4 of the origin"""
    session = connected(version)
    assert receive(session, 7, qos=2)
    for _ in range(repeats):
        assert not receive(session, 7, qos=2, dup=True)
    assert packets(session) == [PubRec(7)] * (repeats + 1)


@VERSIONS
def test_after_pubcomp_the_identifier_is_a_new_message(version: int) -> None:
    """[MQTT-4.3.3-11] [MQTT-4.3.3-12], case 5 of the origin: whatever DUP says"""
    session = connected(version)
    assert receive(session, 7, qos=2)
    session.receive_pubrel(PubRel(7))
    changes, sent = session.drain()
    assert changes == [Change(STORED, packet_id=7), Change(FREED, packet_id=7)]
    assert sent == [PubRec(7), PubComp(7)]
    assert receive(session, 7, qos=2, dup=True)


@VERSIONS
def test_an_unknown_identifier_with_dup_1_is_a_new_message(version: int) -> None:
    """DUP is a hint, never a detector."""
    session = connected(version)
    assert receive(session, 7, qos=2, dup=True)
    assert receive(session, 8, qos=1, dup=True)
    assert receive(session, 8, qos=1, dup=True)


@VERSIONS
def test_inbound_identifiers_outlive_the_connection_and_a_rebuild(version: int) -> None:
    """Case 5 of the origin: the store belongs to the session."""
    session = connected(version)
    assert receive(session, 7, qos=2)
    changes, _ = session.drain()
    session.disconnect(0.0, NEVER_EXPIRES)
    for other in (session, restored(changes)):
        other.connect(version)
        assert not receive(other, 7, qos=2, dup=True)
        assert packets(other) == [PubRec(7)]


@VERSIONS
def test_a_repeat_before_the_owner_has_accepted_is_not_delivered_either(version: int) -> None:
    session = connected(version)
    packet = Publish("t", qos=2, packet_id=7)
    receipt = session.receive_publish(packet)
    assert receipt is not None
    assert session.receive_publish(Publish("t", qos=2, packet_id=7, dup=True)) is None
    session.accept(receipt)
    assert session.drain() == ([Change(STORED, packet_id=7)], [PubRec(7), PubRec(7)])


@VERSIONS
def test_a_qos_2_message_accepted_after_a_reconnect_is_the_same_message(version: int) -> None:
    session = connected(version)
    receipt = session.receive_publish(Publish("t", qos=2, packet_id=7))
    assert receipt is not None
    session.disconnect(0.0, NEVER_EXPIRES)
    session.connect(version)
    session.drain()
    assert session.receive_publish(Publish("t", qos=2, packet_id=7, dup=True)) is None
    assert packets(session) == []
    session.accept(receipt)
    assert session.drain() == ([Change(STORED, packet_id=7)], [PubRec(7)])


def test_a_qos_1_message_accepted_too_late_is_not_acknowledged_on_the_next_connection() -> None:
    session = connected()
    receipt = session.receive_publish(Publish("t", qos=1, packet_id=7))
    assert receipt is not None
    session.disconnect(0.0, NEVER_EXPIRES)
    session.connect(MQTT5)
    session.drain()
    again = session.receive_publish(Publish("t", qos=1, packet_id=7, dup=True))
    assert again is not None
    session.accept(receipt)
    assert packets(session) == []
    session.accept(again)
    assert packets(session) == [PubAck(7)]


@pytest.mark.parametrize(
    ("version", "reason"), [(MQTT5, PACKET_IDENTIFIER_NOT_FOUND), (MQTT311, 0)]
)
def test_a_pubrel_for_nothing_is_answered_by_pubcomp(version: int, reason: int) -> None:
    """[MQTT-4.3.3-11]"""
    session = connected(version)
    session.receive_pubrel(PubRel(9))
    assert session.drain() == ([], [PubComp(9, reason)])


def test_a_refused_qos_2_publish_leaves_its_identifier_free() -> None:
    """[MQTT-4.3.3-9]"""
    session = connected()
    receipt = session.receive_publish(Publish("no", qos=2, packet_id=1))
    assert receipt is not None
    session.accept(receipt, NOT_AUTHORIZED, properties=Properties(reason_string="no"))
    assert session.drain() == (
        [],
        [PubRec(1, NOT_AUTHORIZED, properties=Properties(reason_string="no"))],
    )
    assert receive(session, 1, qos=2)


@pytest.mark.parametrize(("reason", "refused"), [(0x00, False), (0x10, False), (0x80, True)])
def test_a_code_refuses_from_0x80_on_and_not_below(reason: int, refused: bool) -> None:
    """[MQTT-4.3.3-4] [MQTT-4.3.3-9] [MQTT-4.4.0-2]"""
    receiver = connected()
    receipt = receiver.receive_publish(Publish("t", qos=2, packet_id=1))
    assert receipt is not None
    receiver.accept(receipt, reason)
    assert receiver.drain()[1] == [PubRec(1, reason)]
    assert receive(receiver, 1, qos=2, dup=True) == refused
    sender = connected()
    published(sender, b"x", qos=2)
    assert (sender.receive_pubrec(PubRec(1, reason)) is not None) == refused
    assert packets(sender) == ([] if refused else [PubRel(1)])


def test_a_refusal_in_3_1_1_is_a_plain_acknowledgement() -> None:
    """[MQTT-3.3.5-2]: 3.1.1 has no error reply, and the identifier is kept as for any other."""
    session = connected(MQTT311)
    one = session.receive_publish(Publish("no", qos=1, packet_id=1))
    two = session.receive_publish(Publish("no", qos=2, packet_id=2))
    assert one is not None
    assert two is not None
    session.accept(one, NOT_AUTHORIZED)
    session.accept(two, NOT_AUTHORIZED)
    assert session.drain() == ([Change(STORED, packet_id=2)], [PubAck(1), PubRec(2)])


def test_the_acknowledgements_are_completed_though_the_message_has_expired() -> None:
    """[MQTT-4.3.3-13]"""
    session = connected()
    packet = Publish("t", qos=2, packet_id=1, properties=Properties(message_expiry_interval=1))
    receipt = session.receive_publish(packet)
    assert receipt is not None
    session.accept(receipt)
    session.poll(1_000.0)
    session.receive_pubrel(PubRel(1))
    assert packets(session) == [PubRec(1), PubComp(1)]


@VERSIONS
def test_pubacks_leave_in_the_order_of_the_publishes_however_they_are_accepted(
    version: int,
) -> None:
    """[MQTT-4.6.0-2]"""
    session = connected(version)
    receipts = [session.receive_publish(Publish("t", qos=1, packet_id=n)) for n in (5, 3, 4)]
    for index, expected in ((1, []), (2, []), (0, [PubAck(5), PubAck(3), PubAck(4)])):
        receipt = receipts[index]
        assert receipt is not None
        session.accept(receipt)
        assert packets(session) == expected


@VERSIONS
def test_pubrecs_leave_in_the_order_of_the_publishes_however_they_are_accepted(
    version: int,
) -> None:
    """[MQTT-4.6.0-3]; a PUBACK does not wait for a PUBREC, nor the other way round."""
    session = connected(version)
    first = session.receive_publish(Publish("t", qos=2, packet_id=5))
    second = session.receive_publish(Publish("t", qos=2, packet_id=3))
    other = session.receive_publish(Publish("t", qos=1, packet_id=9))
    assert first is not None
    assert second is not None
    assert other is not None
    session.accept(other)
    session.accept(second)
    assert session.drain() == ([Change(STORED, packet_id=3)], [PubAck(9)])
    session.accept(first)
    assert session.drain() == ([Change(STORED, packet_id=5)], [PubRec(5), PubRec(3)])


@pytest.mark.parametrize("qos", [1, 2])
def test_a_receipt_is_accepted_once(qos: int) -> None:
    session = connected()
    receipt = session.receive_publish(Publish("t", qos=qos, packet_id=1))
    assert receipt is not None
    session.accept(receipt)
    session.drain()
    with pytest.raises(ValueError, match="already been accepted"):
        session.accept(receipt)
    assert session.drain() == ([], [])


@pytest.mark.parametrize("forget", ["reset", "forget_received"])
def test_a_receipt_that_its_session_has_forgotten_counts_for_nothing(forget: str) -> None:
    """Whether or not another message has its identifier by now"""
    session = connected()
    stale = session.receive_publish(Publish("t", b"old", 2, 1))
    other = session.receive_publish(Publish("t", b"other", 2, 2))
    assert stale is not None
    assert other is not None
    if forget == "reset":
        session.disconnect(0.0, 100)
        reset_session(session)
        session.connect(MQTT5)
    else:
        assert session.forget_received(1)
        assert not session.forget_received(1)
    session.drain()
    session.accept(stale)
    assert session.drain() == ([], [])
    stale_too = session.receive_publish(Publish("t", b"new", 2, 1))
    assert stale_too is not None
    with pytest.raises(ValueError, match="already been accepted"):
        session.accept(stale)
    session.accept(stale_too)
    if forget == "reset":
        session.accept(other)
        assert session.drain() == ([Change(STORED, packet_id=1)], [PubRec(1)])
    else:
        # In the order of their PUBLISH packets: the forgotten one holds nobody up.
        assert session.drain() == ([Change(STORED, packet_id=1)], [])
        session.accept(other)
        assert session.drain() == ([Change(STORED, packet_id=2)], [PubRec(2), PubRec(1)])


def test_a_stale_receipt_does_not_take_the_place_of_the_message_that_has_its_identifier() -> None:
    session = connected()
    stale = session.receive_publish(Publish("t", b"old", 2, 1))
    session.forget_received(1)
    fresh = session.receive_publish(Publish("t", b"new", 2, 1))
    assert stale is not None
    assert fresh is not None
    session.accept(stale)
    assert session.drain() == ([], [])
    session.accept(fresh)
    assert session.drain() == ([Change(STORED, packet_id=1)], [PubRec(1)])


@pytest.mark.slow
def test_all_65535_inbound_identifiers_are_kept_in_8_kib() -> None:
    session = connected(MQTT311)
    for packet_id in range(1, 65_536):
        assert receive(session, packet_id, qos=2)
    for packet_id in range(1, 65_536):
        assert not receive(session, packet_id, qos=2, dup=True)
    assert session.inbound_size == 8_192


# --- connections, expiry, durable state -----------------------------------------------------------


def test_a_session_ends_when_its_interval_has_passed_and_not_before() -> None:
    """[MQTT-3.1.2-23] [MQTT-4.1.0-1] [MQTT-4.1.0-2]"""
    session = connected()
    assert not session.is_over(1e18)
    session.disconnect(100.0, 60)
    assert session.drain()[0] == [Change(ENDS, at=160.0)]
    assert not session.is_over(159.9)
    assert session.is_over(160.0)
    session.connect(MQTT5)
    assert session.drain()[0] == [Change(ENDS)]
    assert not session.is_over(1e18)


def test_a_session_can_end_with_its_connection_or_never() -> None:
    session = connected()
    session.disconnect(100.0, 0)
    assert session.is_over(100.0)
    session.connect(MQTT5)
    session.drain()
    # [3.1.2.11.2] the largest interval stands for never
    session.disconnect(100.0, 4_294_967_295)
    assert session.drain() == ([], [])
    assert not session.is_over(1e18)


def test_a_session_has_one_connection_at_a_time() -> None:
    session = connected()
    with pytest.raises(ValueError, match="disconnect"):
        session.connect(MQTT5)


def test_packets_not_yet_drained_are_lost_with_the_connection() -> None:
    session = connected()
    session.send(Message("t", b"1", qos=1), 0.0)
    session.poll(0.0)
    session.disconnect(0.0, NEVER_EXPIRES)
    assert session.drain()[1] == []


def test_what_an_earlier_connection_sent_takes_and_gives_nothing_of_the_quota() -> None:
    """[MQTT-3.3.4-9]: with a Receive Maximum of 2, no third PUBLISH is open"""
    session = connected()
    published(session, b"0", qos=2)
    session.receive_pubrec(PubRec(1))
    session.disconnect(0.0, NEVER_EXPIRES)
    session.connect(MQTT5, receive_maximum=2)
    for payload in (b"1", b"2"):
        session.send(Message("t", payload, qos=2), 0.0)
    session.receive_pubcomp(PubComp(1))
    session.send(Message("t", b"3", qos=2), 0.0)
    session.poll(0.0)
    sent = [packet for packet in session.drain()[1] if isinstance(packet, Publish)]
    assert [packet.payload for packet in sent] == [b"1", b"2"]
    session.receive_pubrec(PubRec(2))
    session.receive_pubcomp(PubComp(2))
    session.poll(0.0)
    sent = [packet for packet in session.drain()[1] if isinstance(packet, Publish)]
    assert [packet.payload for packet in sent] == [b"3"]


def test_each_durable_change_comes_out_before_the_packet_that_needs_it() -> None:
    session = connected()
    message = Message("t", b"1", qos=2)
    number = session.send(message, 0.0)
    session.poll(0.0)
    assert session.drain() == (
        [
            Change(QUEUED, number=number, message=message),
            Change(ASSIGNED, number=number, packet_id=1),
        ],
        [Publish("t", b"1", qos=2, packet_id=1)],
    )


def test_every_durable_change_shows_in_a_snapshot() -> None:
    """So that a restored session that is not the same cannot pass for it."""
    message = Message("t", b"1", qos=2)
    stored = StoredSession()
    seen = [session_snapshot(stored.restored())]
    for change in (
        Change(QUEUED, number=1, message=message),
        Change(QUEUED, number=2, message=Message("t", b"2", qos=1)),
        Change(ASSIGNED, number=1, packet_id=9),
        Change(RELEASED, number=1, packet_id=9),
        Change(STORED, packet_id=4),
        Change(ENDS, at=7.0),
        Change(FINISHED, number=1, packet_id=9),
        Change(FINISHED, number=2),
        Change(FREED, packet_id=4),
    ):
        stored.apply(change)
        snapshot = session_snapshot(stored.restored())
        assert snapshot not in seen
        seen.append(snapshot)
    assert seen[1][0] == ((1, message, ""),)


def test_a_restored_session_goes_on_where_the_other_stopped() -> None:
    session = connected()
    published(session, b"1", b"2", b"3", qos=2)
    history: list[Change] = []
    session = connected()
    for payload in (b"1", b"2", b"3"):
        session.send(Message("t", payload, qos=2), 0.0)
    session.poll(0.0)
    session.receive_pubrec(PubRec(2))
    session.receive_pubrec(PubRec(1))
    session.disconnect(7.0, 60)
    session.send(Message("t", b"4", qos=1), 7.0)
    history.extend(session.drain()[0])
    again = restored(history)
    assert session_snapshot(again) == session_snapshot(session)
    assert again.ends_at == 67.0
    for other in (session, again):
        other.connect(MQTT5)
        other.poll(8.0)
        assert packets(other) == [
            PubRel(2),
            PubRel(1),
            Publish("t", b"3", qos=2, packet_id=3, dup=True),
            Publish("t", b"4", qos=1, packet_id=4),
        ]


def test_a_message_can_be_sent_at_once_where_nothing_is_before_it() -> None:
    session = connected(receive_maximum=1)
    assert [session.can_send(qos) for qos in (0, 1, 2)] == [True, True, True]
    published(session, b"1")
    # The quota is for QoS 1 and 2 alone.
    assert [session.can_send(qos) for qos in (0, 1, 2)] == [True, False, False]
    published(session, b"2")
    assert not session.can_send(0)
    session.receive_puback(PubAck(1))
    session.poll(0.0)
    session.receive_puback(PubAck(2))
    assert session.can_send(1)
    session.room = 0
    assert [session.can_send(qos) for qos in (0, 1)] == [False, False]
    session.disconnect(0.0, NEVER_EXPIRES)
    assert [session.can_send(qos) for qos in (0, 1)] == [False, False]


def test_nothing_new_is_sent_before_what_a_new_connection_sends_again() -> None:
    session = connected(receive_maximum=2)
    published(session, b"1", b"2")
    session.disconnect(0.0, NEVER_EXPIRES)
    session.connect(MQTT5, receive_maximum=2)
    assert [session.can_send(qos) for qos in (0, 1)] == [False, False]
    session.poll(0.0)
    assert [session.can_send(qos) for qos in (0, 1)] == [True, False]


def test_without_a_free_identifier_only_qos_0_can_be_sent() -> None:
    session = connected()
    for _ in range(65_535):
        session.reserve_id()
    assert [session.can_send(qos) for qos in (0, 1)] == [True, False]
    session.release_id(9)
    assert session.can_send(1)

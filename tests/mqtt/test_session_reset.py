"""A session whose peer has none: what was open is discarded, the messages are not.

[MQTT-3.2.2-5] obliges a client whose server says Session Present 0 to discard its session. The
messages that it has to send are its program's, and wait to be sent as new ones.
"""

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    Delivery,
    Message,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Session,
)
from semel.mqtt.delivery import (
    ASSIGNED,
    FINISHED,
    FREED,
    QUEUED,
    RECALLED,
    Change,
)
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.session_exchanges import open_exchanges
from semel.mqtt.session_reset import reset_session
from semel.mqtt.session_restore import restore_exchanges
from tests.mqtt.schedules import only_packets
from tests.mqtt.snapshots import session_snapshot
from tests.mqtt.stored_session import restored

VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5])


def packets(session: Session) -> list[Packet]:
    return only_packets(session.drain()[1])


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [each.number for each in deliveries]


def sending(version: int, *messages: tuple[bytes, int], receive_maximum: int = 65_535) -> Session:
    """A session that has sent these, payload and QoS, as many as it may."""
    session = Session()
    session.connect(version, receive_maximum=receive_maximum)
    for payload, qos in messages:
        session.send(Message("t", payload, qos=qos), 0.0)
    return session


@VERSIONS
def test_what_was_sent_is_sent_again_in_its_order_before_the_backlog(version: int) -> None:
    session = sending(version, (b"1", 1), (b"2", 2), (b"3", 1), (b"4", 2), receive_maximum=3)
    session.disconnect(0.0, NEVER_EXPIRES)
    packets(session)
    complete, again = reset_session(session)
    assert (numbers(complete), numbers(again)) == ([], [1, 2, 3])
    assert (session.in_flight, len(session.backlog), session.backlog.size) == (0, 4, 8)
    assert open_exchanges(session, 0, 1) == []
    session.connect(version)
    session.poll(0.0)
    # As new messages: DUP 0, and identifiers of their own.
    assert packets(session) == [
        Publish("t", b"1", qos=1, packet_id=4),
        Publish("t", b"2", qos=2, packet_id=5),
        Publish("t", b"3", qos=1, packet_id=6),
        Publish("t", b"4", qos=2, packet_id=7),
    ]


@VERSIONS
def test_what_the_peer_has_acknowledged_with_pubrec_is_complete(version: int) -> None:
    session = sending(version, (b"1", 2), (b"2", 2), (b"3", 2))
    session.receive_pubrec(PubRec(2))
    session.disconnect(0.0, NEVER_EXPIRES)
    session.drain()
    complete, again = reset_session(session)
    assert (numbers(complete), numbers(again)) == ([2], [1, 3])
    session.connect(version)
    session.poll(0.0)
    sent = packets(session)
    assert [type(packet) for packet in sent] == [Publish, Publish]
    # [MQTT-4.3.3-8] nor is a PUBREL owed that would never be answered
    assert session.receive_pubcomp(PubComp(2)) is None


def test_deliveries_come_back_in_the_order_of_their_numbers_however_they_are_kept() -> None:
    session = Session()
    late = Delivery(2, Message("t", b"2", qos=1), "", 1)
    late.packet_id = 9
    early = Delivery(1, Message("t", b"1", qos=1), "", 1)
    early.packet_id = 3
    restore_exchanges(session, [late, early], [])
    assert numbers(reset_session(session)[1]) == [1, 2]
    session.connect(MQTT5)
    session.poll(0.0)
    assert [packet.payload for packet in packets(session) if isinstance(packet, Publish)] == [
        b"1",
        b"2",
    ]


def test_what_comes_back_is_counted_against_the_receive_maximum_like_any_other() -> None:
    session = sending(MQTT5, (b"1", 1), (b"2", 1))
    session.disconnect(0.0, NEVER_EXPIRES)
    session.drain()
    reset_session(session)
    session.connect(MQTT5, receive_maximum=1)
    session.poll(0.0)
    (packet,) = packets(session)
    assert isinstance(packet, Publish)
    session.receive_puback(PubAck(packet.packet_id))
    session.poll(0.0)
    assert len(packets(session)) == 1


def test_a_message_that_comes_back_may_expire_again() -> None:
    """It waits, and is sent for the first time: [MQTT-3.3.2-5] holds for it."""
    session = Session()
    session.connect(MQTT5)
    session.send(Message("t", b"1", qos=1, expires_at=5.0), 0.0)
    session.disconnect(0.0, NEVER_EXPIRES)
    reset_session(session)
    session.connect(MQTT5)
    session.drain()
    assert numbers(session.poll(5.0)) == [1]
    assert packets(session) == []


@VERSIONS
def test_the_identifiers_of_what_came_in_are_free(version: int) -> None:
    session = Session()
    session.connect(version)
    for packet_id in (7, 8):
        receipt = session.receive_publish(Publish("t", b"x", qos=2, packet_id=packet_id))
        assert receipt is not None
        if packet_id == 7:
            session.accept(receipt)
    session.disconnect(0.0, NEVER_EXPIRES)
    session.drain()
    reset_session(session)
    assert session.drain() == ([Change(FREED, packet_id=7)], [])
    session.connect(version)
    for packet_id in (7, 8):
        receipt = session.receive_publish(Publish("t", b"new", qos=2, packet_id=packet_id))
        assert receipt is not None
        session.accept(receipt)
    assert packets(session) == [PubRec(7), PubRec(8)]


def test_with_nothing_open_nothing_happens() -> None:
    session = Session()
    session.send(Message("t", b"1", qos=1), 0.0)
    session.drain()
    assert reset_session(session) == ([], [])
    assert session.drain() == ([], [])
    assert len(session.backlog) == 1


def test_its_changes_rebuild_the_session() -> None:
    session = sending(MQTT5, (b"1", 1), (b"2", 2), (b"3", 2), (b"4", 1), receive_maximum=3)
    session.receive_pubrec(PubRec(2))
    receipt = session.receive_publish(Publish("t", b"x", qos=2, packet_id=7))
    assert receipt is not None
    session.accept(receipt)
    session.disconnect(0.0, NEVER_EXPIRES)
    changes = session.drain()[0]
    reset_session(session)
    fresh = session.drain()[0]
    # From the last to the first, each before all others.
    assert [(each.kind, each.number, each.packet_id) for each in fresh] == [
        (FINISHED, 2, 2),
        (RECALLED, 3, 3),
        (RECALLED, 1, 1),
        (FREED, 0, 7),
    ]
    changes += fresh
    assert session_snapshot(restored(changes)) == session_snapshot(session)
    session.connect(MQTT5)
    session.poll(0.0)
    changes += session.drain()[0]
    assert session_snapshot(restored(changes)) == session_snapshot(session)


def test_a_session_that_is_not_durable_is_reset_and_lists_nothing() -> None:
    session = Session()
    session.durable = False
    session.connect(MQTT5)
    session.send(Message("t", b"1", qos=1), 0.0)
    session.disconnect(0.0, NEVER_EXPIRES)
    assert numbers(reset_session(session)[1]) == [1]
    assert session.drain() == ([], [])
    session.connect(MQTT5)
    session.poll(0.0)
    assert packets(session) == [Publish("t", b"1", qos=1, packet_id=2)]


def test_of_a_queue_that_is_partly_stored_what_comes_back_is_the_first() -> None:
    session = Session()
    session.backlog.window = 2
    session.connect(MQTT5, receive_maximum=3)
    for number in range(1, 8):
        session.send(Message("t", b"%d" % number, qos=1), 0.0)
    session.disconnect(0.0, NEVER_EXPIRES)
    session.drain()
    reset_session(session)
    # More than the window is at hand; beyond it are 6 and 7 as before.
    assert (len(session.backlog), session.backlog.missing()) == (7, 0)
    session.connect(MQTT5)
    session.poll(0.0)
    sent = [packet.payload for packet in packets(session) if isinstance(packet, Publish)]
    assert sent == [b"1", b"2", b"3", b"4", b"5"]
    assert (session.backlog.missing(), session.backlog.first_beyond) == (2, 6)


# --- a packet that may not be sent ----------------------------------------------------------------


def test_a_delivery_whose_packet_may_not_leave_is_over_and_makes_room() -> None:
    session = sending(MQTT5, (b"1", 2), (b"2", 2), receive_maximum=1)
    changes = session.drain()[0]
    assert [each.kind for each in changes] == [QUEUED, ASSIGNED, QUEUED]
    assert session.give_up(1) == 1
    assert session.drain()[0] == [Change(FINISHED, number=1, packet_id=1)]
    session.poll(0.0)
    assert packets(session) == [Publish("t", b"2", qos=2, packet_id=2)]


# --- a PUBREC that waits its turn -----------------------------------------------------------------


def test_a_pubrec_that_waits_for_an_earlier_one_is_not_sent_when_pubrel_has_answered_it() -> None:
    """[MQTT-4.3.3-11] a PUBREL is answered, whatever its sender should have waited for."""
    session = Session()
    session.connect(MQTT5)
    first = session.receive_publish(Publish("t", b"5", qos=2, packet_id=5))
    second = session.receive_publish(Publish("t", b"7", qos=2, packet_id=7))
    assert first is not None
    assert second is not None
    session.accept(second)
    assert packets(session) == []
    session.receive_pubrel(PubRel(7))
    assert packets(session) == [PubComp(7)]
    session.accept(first)
    assert packets(session) == [PubRec(5)]

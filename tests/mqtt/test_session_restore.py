"""A session that its owner stores: a queue that is partly on disk, and what was open restored."""

import pytest

from semel.mqtt import (
    CLIENT,
    MQTT5,
    SERVER,
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
from semel.mqtt.delivery import ENDS, Change
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.session_exchanges import open_exchanges
from semel.mqtt.session_restore import (
    restore_backlog,
    restore_end,
    restore_exchanges,
    restore_receipt,
)
from semel.mqtt.side import PLACE_UNKNOWN, RECEIVED, RELEASED, SENT_QOS_1
from tests.mqtt.schedules import only_packets


def packets(session: Session) -> list[Packet]:
    return only_packets(session.drain()[1])


def message(number: int, expires_at: float | None = None) -> Message:
    return Message("t", b"%d" % number, qos=1, expires_at=expires_at)


def delivery(number: int, *, packet_id: int = 0, released: int = 0, qos: int = 1) -> Delivery:
    found = Delivery(number, None if released else message(number), "", qos)
    found.packet_id = packet_id
    found.released = released
    return found


def payloads(found: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in found if isinstance(packet, Publish)]


# --- a queue that is partly in a store ------------------------------------------------------------


def test_no_more_than_the_window_is_kept_at_hand_and_the_rest_is_asked_for_when_half_is_sent() -> (
    None
):
    session = Session()
    session.backlog.window = 4
    for number in range(1, 8):
        session.send(message(number), 0.0)
    assert (len(session.backlog), session.backlog.missing()) == (7, 0)
    # The topic and one digit each.
    assert session.backlog.size == 14
    session.connect(MQTT5, receive_maximum=2)
    assert session.poll(0.0) == []
    assert payloads(packets(session)) == [b"1", b"2"]
    assert (session.backlog.missing(), session.backlog.first_beyond) == (2, 5)
    session.backlog.refill([delivery(5), delivery(6)])
    assert (len(session.backlog), session.backlog.missing(), session.backlog.first_beyond) == (
        5,
        0,
        7,
    )
    for packet_id in range(1, 5):
        session.receive_puback(PubAck(packet_id))
        session.poll(0.0)
    assert payloads(packets(session)) == [b"3", b"4", b"5", b"6"]
    assert (session.backlog.missing(), session.backlog.first_beyond) == (4, 7)
    session.backlog.refill([delivery(7)])
    assert (len(session.backlog), session.backlog.missing(), session.backlog.size) == (1, 0, 2)


def test_nothing_overtakes_what_only_the_store_has() -> None:
    session = Session()
    session.backlog.window = 4
    restore_backlog(session, 2, 4, 8, None, 9)
    session.connect(MQTT5)
    assert session.poll(0.0) == []
    assert session.send(message(10), 0.0) == 10
    assert packets(session) == []
    session.backlog.refill([delivery(8), delivery(9)])
    session.poll(0.0)
    assert payloads(packets(session)) == [b"8", b"9"]


def test_a_restored_queue_is_all_beyond_the_window_and_numbers_go_on() -> None:
    session = Session()
    session.backlog.window = 4
    restore_backlog(session, 3, 30, 5, 77.0, 9)
    assert (len(session.backlog), session.backlog.size) == (3, 30)
    assert (session.backlog.missing(), session.backlog.first_beyond) == (4, 5)
    assert not session.backlog.may_expire_beyond(76.9)
    assert session.backlog.may_expire_beyond(77.0)
    assert session.send(message(1), 0.0) == 10


def test_what_waits_at_hand_can_be_let_go_of() -> None:
    session = Session()
    session.send(message(1), 0.0)
    session.backlog.take_all()
    assert len(session.backlog) == 0


# --- what was open --------------------------------------------------------------------------------


def test_what_was_open_is_taken_up_as_it_was() -> None:
    session = Session()
    restore_exchanges(
        session,
        [
            delivery(3, packet_id=7),
            delivery(4, packet_id=9, released=2, qos=2),
            delivery(6, packet_id=2, released=1, qos=2),
        ],
        [5],
    )
    assert open_exchanges(session, CLIENT, SERVER) == [
        (CLIENT, 7, SENT_QOS_1),
        (CLIENT, 9, RELEASED),
        (CLIENT, 2, RELEASED),
        (SERVER, 5, RECEIVED | PLACE_UNKNOWN),
    ]
    session.connect(MQTT5)
    session.poll(0.0)
    # [MQTT-4.6.0-4] PUBRELs in the order of their PUBRECs
    again = Publish("t", b"3", qos=1, packet_id=7, dup=True)
    assert packets(session) == [PubRel(2), PubRel(9), again]
    # The identifier after that of the last delivery; and a later PUBREC is after the others.
    session.send(Message("t", b"x", qos=2), 0.0)
    session.receive_pubrec(PubRec(3))
    session.disconnect(0.0, NEVER_EXPIRES)
    session.drain()
    session.connect(MQTT5)
    assert packets(session) == [PubRel(2), PubRel(9), PubRel(3)]
    session.receive_publish(Publish("t", b"x", qos=2, packet_id=5, dup=True))
    assert packets(session) == [PubRec(5)]


@pytest.mark.parametrize(
    ("ends_at", "interval", "expected"),
    [(50.0, 10, 50.0), (None, 10, 110.0), (None, NEVER_EXPIRES, None)],
)
def test_a_restored_session_ends_when_it_would_have(
    ends_at: float | None, interval: int, expected: float | None
) -> None:
    session = Session()
    restore_end(session, ends_at, interval, 100.0)
    assert session.ends_at == expected
    # A new end is to be stored.
    noted = [Change(ENDS, at=110.0)] if expected == 110.0 else []
    assert session.drain()[0] == noted


def test_a_restored_qos_2_message_that_its_owner_has_not_accepted_is_no_new_message() -> None:
    session = Session()
    receipt = restore_receipt(session, 7)
    session.connect(MQTT5)
    assert session.receive_publish(Publish("t", b"x", qos=2, packet_id=7, dup=True)) is None
    assert packets(session) == []
    session.accept(receipt)
    assert packets(session) == [PubRec(7)]
    session.receive_pubrel(PubRel(7))
    assert packets(session) == [PubComp(7)]
    assert session.receive_publish(Publish("t", b"x", qos=2, packet_id=7)) is not None


def test_one_that_is_accepted_before_it_comes_again_is_answered_when_it_does() -> None:
    session = Session()
    session.accept(restore_receipt(session, 7))
    session.connect(MQTT5)
    assert packets(session) == []
    assert session.receive_publish(Publish("t", b"x", qos=2, packet_id=7, dup=True)) is None
    assert packets(session) == [PubRec(7)]


def test_other_messages_are_new_beside_a_restored_one() -> None:
    session = Session()
    restore_receipt(session, 7)
    session.connect(MQTT5)
    assert session.receive_publish(Publish("t", b"x", qos=2, packet_id=8)) is not None

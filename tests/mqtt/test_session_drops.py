"""Deliveries that are dropped: they have expired, or go to other sessions."""

from semel.mqtt import MQTT5, Message, Session
from semel.mqtt.delivery import FINISHED, Change
from semel.mqtt.session_drops import (
    give_up_beyond,
    give_up_expired,
    give_up_queued,
    give_up_shared,
)
from semel.mqtt.session_restore import restore_backlog
from tests.mqtt.snapshots import session_snapshot
from tests.mqtt.stored_session import restored


def connected(receive_maximum: int = 65_535) -> Session:
    session = Session()
    session.connect(MQTT5, receive_maximum=receive_maximum)
    return session


def shared(qos: int, share: str = "$share/g/t") -> tuple[Message, float, str]:
    return Message("t", share.encode(), qos=qos), 0.0, share


def test_what_was_never_sent_can_be_given_to_others() -> None:
    session = connected(receive_maximum=1)
    session.send(*shared(2))
    session.send(*shared(1))
    session.send(Message("t", b"own", qos=1), 0.0)
    session.send(*shared(2, "$share/h/t"))
    session.drain()
    given_up = give_up_shared(session, {"$share/g/t"}, sent=False)
    assert [delivery.number for delivery in given_up] == [2]
    assert [(c.kind, c.number, c.packet_id) for c in session.drain()[0]] == [(FINISHED, 2, 0)]
    assert len(session.backlog) == 2
    assert session.backlog.size == len("t") * 2 + len(b"own") + len("$share/h/t")
    given_up = give_up_shared(session, None, sent=False)
    assert [delivery.share for delivery in given_up] == ["$share/h/t"]
    assert len(session.backlog) == 1
    assert give_up_shared(session, None, sent=False) == []


def test_a_change_may_finish_a_delivery_that_is_not_the_first_to_wait() -> None:
    session = Session()
    for share in ("", "$share/g/t", ""):
        session.send(Message("t", qos=1), 0.0, share)
    give_up_shared(session, None, sent=False)
    again = restored(session.drain()[0])
    assert session_snapshot(again) == session_snapshot(session)
    assert again.backlog.size == session.backlog.size == 2


def test_of_what_was_sent_only_qos_1_can_be_given_to_others() -> None:
    """[MQTT-4.8.2-5]"""
    session = connected()
    session.send(*shared(1))
    session.send(*shared(2))
    session.send(Message("t", qos=1), 0.0)
    assert give_up_shared(session, None, sent=False) == []
    given_up = give_up_shared(session, None, sent=True)
    assert [delivery.packet_id for delivery in given_up] == [1]
    assert session.in_flight == 2


def test_what_expires_while_it_waits_can_be_given_up() -> None:
    """[MQTT-3.3.2-5]"""
    session = Session()
    for number, expires_at in enumerate((20.0, 10.0, None, 30.0)):
        session.send(Message("t", b"%d" % number, qos=1, expires_at=expires_at), 0.0)
    session.drain()
    assert len(give_up_expired(session, 9.9)) == 0
    assert len(give_up_expired(session, 20.0)) == 2
    assert [(c.kind, c.number) for c in session.drain()[0]] == [(FINISHED, 1), (FINISHED, 2)]
    assert (len(session.backlog), session.backlog.size) == (2, 4)
    assert len(give_up_expired(session, 29.9)) == 0
    session.durable = False
    assert len(give_up_expired(session, 30.0)) == 1
    assert session.drain()[0] == []
    assert len(give_up_expired(session, 1e9)) == 0
    assert len(session.backlog) == 1


def test_what_was_sent_meanwhile_is_not_given_up() -> None:
    session = Session()
    session.send(Message("t", qos=1, expires_at=10.0), 0.0)
    session.connect(MQTT5)
    session.poll(5.0)
    assert len(give_up_expired(session, 20.0)) == 0
    assert session.in_flight == 1


def test_what_has_expired_in_the_store_is_given_up_once() -> None:
    session = Session()
    session.backlog.window = 4
    restore_backlog(session, 3, 6, 5, 77.0, 7)
    give_up_beyond(session, [(5, 2), (6, 2)], None)
    assert session.drain()[0] == [Change(FINISHED, number=5), Change(FINISHED, number=6)]
    assert (len(session.backlog), session.backlog.size) == (1, 2)
    assert not session.backlog.may_expire_beyond(1e9)
    give_up_beyond(session, [(5, 2)], None)
    assert session.drain()[0] == []


def test_what_waits_says_when_the_first_of_it_expires() -> None:
    session = Session()
    told = [session.backlog.next_expiry]
    session.send(Message("a", qos=1), 0.0)
    told.append(session.backlog.next_expiry)
    session.send(Message("b", qos=1, expires_at=30.0), 0.0)
    session.send(Message("c", qos=1, expires_at=20.0), 0.0)
    told.append(session.backlog.next_expiry)
    assert [each.number for each in give_up_expired(session, 25.0)] == [3]
    told.append(session.backlog.next_expiry)
    assert told == [None, None, 20.0, 30.0]


def test_deliveries_that_wait_can_be_given_up_by_number() -> None:
    session = Session()
    for _ in range(3):
        session.send(Message("t", qos=1), 0.0)
    session.drain()
    assert [each.number for each in give_up_queued(session, {1, 3, 9})] == [1, 3]
    assert session.drain()[0] == [Change(FINISHED, number=1), Change(FINISHED, number=3)]
    assert [each.number for each in session.backlog.in_memory()] == [2]

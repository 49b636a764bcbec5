"""What the owner of a Session may ask of it beside the exchange: to give up, to look at expiry."""

import pytest

from semel.mqtt import MQTT5, MQTT311, Message, PubAck, PubComp, Publish, PubRec, PubRel, Session
from semel.mqtt.delivery import FINISHED, FREED, RELEASED, Change
from tests.mqtt.schedules import only_packets


def connected(version: int = MQTT5, *, receive_maximum: int = 65_535) -> Session:
    session = Session()
    session.connect(version, receive_maximum=receive_maximum)
    return session


@pytest.mark.parametrize("qos", [1, 2])
def test_a_publish_that_may_not_be_sent_is_given_up_and_makes_room_for_the_next(qos: int) -> None:
    session = connected(receive_maximum=1)
    first = session.send(Message("a", qos=qos), 0.0)
    second = session.send(Message("b", qos=qos), 0.0)
    assert only_packets(session.drain()[1]) == [Publish("a", qos=qos, packet_id=1)]
    assert session.give_up(1) == first
    session.poll(0.0)
    changes, packets = session.drain()
    assert changes[0] == Change(FINISHED, number=first, packet_id=1)
    assert packets == [Publish("b", qos=qos, packet_id=2)]
    assert session.in_flight == 1
    assert second == first + 1


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_a_pubrec_that_waits_its_turn_is_not_sent_after_the_pubrel_it_would_ask_for(
    version: int,
) -> None:
    """[MQTT-4.3.3-9] after PUBREL the identifier is free: a PUBREC for it would answer nothing."""
    session = connected(version)
    first = session.receive_publish(Publish("a", qos=2, packet_id=1))
    second = session.receive_publish(Publish("b", qos=2, packet_id=2))
    assert session.receive_publish(Publish("a", qos=2, packet_id=1, dup=True)) is None
    assert first is not None
    assert second is not None
    session.accept(first)
    session.receive_pubrel(PubRel(1))
    session.accept(second)
    assert session.drain()[1] == [PubRec(1), PubComp(1), PubRec(2)]


def test_a_pubrec_for_a_message_sent_again_is_sent_while_the_message_is_not_released() -> None:
    """[MQTT-4.3.3-10]"""
    session = connected()
    first = session.receive_publish(Publish("a", qos=2, packet_id=1))
    second = session.receive_publish(Publish("b", qos=2, packet_id=2))
    assert session.receive_publish(Publish("a", qos=2, packet_id=1, dup=True)) is None
    assert first is not None
    assert second is not None
    session.accept(first)
    session.accept(second)
    assert session.drain()[1] == [PubRec(1), PubRec(2), PubRec(1)]


def test_an_answer_for_what_was_given_up_counts_for_nothing() -> None:
    session = connected()
    session.send(Message("a", qos=1), 0.0)
    session.give_up(1)
    assert session.receive_puback(PubAck(1)) is None


def test_a_message_that_the_peer_has_forgotten_makes_way_for_a_new_one() -> None:
    session = connected()
    first = session.receive_publish(Publish("a", qos=2, packet_id=1))
    second = session.receive_publish(Publish("b", qos=2, packet_id=2))
    assert first is not None
    assert second is not None
    session.accept(first)
    session.drain()
    assert not session.forget_received(3)
    assert session.forget_received(1)
    assert session.forget_received(2)
    assert session.drain()[0] == [Change(FREED, packet_id=1)]
    for packet_id in (1, 2):
        assert session.receive_publish(Publish("c", qos=2, packet_id=packet_id)) is not None


@pytest.mark.parametrize("qos", [1, 2])
def test_a_withdrawn_message_is_not_sent_again_and_its_exchange_ends(qos: int) -> None:
    """The peer may have stored the identifier of a QoS 2 message: PUBREL makes it forget it."""
    session = connected()
    session.send(Message("a", qos=qos), 0.0)
    session.drain()
    session.disconnect(0.0, 100)
    session.withdraw(1)
    kinds = [change.kind for change in session.drain()[0]]
    assert kinds[-1] == (FINISHED if qos == 1 else RELEASED)
    assert session.in_flight_bytes == 0
    session.connect(MQTT5)
    session.poll(0.0)
    assert session.drain()[1] == ([] if qos == 1 else [PubRel(1)])
    session.receive_pubcomp(PubComp(1))
    assert session.in_flight == 0

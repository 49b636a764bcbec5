"""The open exchanges of a session, as the next connection starts with them."""

from semel.mqtt import (
    CLIENT,
    MQTT5,
    SERVER,
    ConnAck,
    Connect,
    Exchange,
    Message,
    Properties,
    Publish,
    PubRec,
    Session,
)
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.session_exchanges import open_deliveries, open_exchanges
from semel.mqtt.side import PLACE_UNKNOWN, RECEIVED, RELEASED, SENT_QOS_1, SENT_QOS_2


def connected() -> Session:
    session = Session()
    session.connect(MQTT5)
    return session


def receive(session: Session, packet_id: int) -> None:
    """Receive a QoS 2 message and accept it."""
    receipt = session.receive_publish(Publish("t", b"x", qos=2, packet_id=packet_id))
    assert receipt is not None
    session.accept(receipt)


def test_the_open_exchanges_are_those_of_both_directions() -> None:
    session = connected()
    for payload, qos in ((b"1", 1), (b"2", 2), (b"3", 2)):
        session.send(Message("t", payload, qos=qos), 0.0)
    session.receive_pubrec(PubRec(3))
    receive(session, 9)
    sent = [(CLIENT, 1, SENT_QOS_1), (CLIENT, 2, SENT_QOS_2), (CLIENT, 3, RELEASED)]
    assert open_deliveries(session, CLIENT) == sent
    assert open_exchanges(session, CLIENT, SERVER) == [
        *sent,
        (SERVER, 9, RECEIVED | PLACE_UNKNOWN),
    ]
    assert open_exchanges(Session(), CLIENT, SERVER) == []


def test_a_sender_may_repeat_in_its_own_order_whatever_order_we_kept() -> None:
    """[MQTT-4.6.0-1]: 5 was published before 3, and both acknowledgements were lost"""
    session = connected()
    receive(session, 5)
    receive(session, 3)
    session.disconnect(0.0, NEVER_EXPIRES)
    exchange = Exchange(open_exchanges(session, SERVER, CLIENT))
    exchange.observe(CLIENT, Connect("a", clean_start=False, properties=Properties()), 0)
    exchange.observe(SERVER, ConnAck(session_present=True), 0)
    for packet_id in (5, 3):
        exchange.observe(CLIENT, Publish("t", b"", 2, packet_id, dup=True), 0)

"""A session that is handed bytes ends where one that is handed packets does."""

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    Message,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Session,
    decode,
    encode,
)
from semel.mqtt.packet_types import PUBACK, PUBCOMP, PUBREC, PUBREL
from semel.mqtt.session import NEVER_EXPIRES
from semel.mqtt.session_drops import give_up_shared
from tests.mqtt.snapshots import session_snapshot

VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5])


def connected(version: int = MQTT5, **limits: int) -> Session:
    session = Session()
    session.connect(version, **limits)
    return session


def drained(session: Session) -> list[Packet]:
    """The packets that leave, whether as such or as bytes."""
    packets: list[Packet] = []
    for item in session.drain()[1]:
        if isinstance(item, bytes):
            decoded = decode(item, session.version)
            assert decoded is not None
            packets.append(decoded[0])
        else:
            packets.append(item)
    return packets


def parts(message: Message, version: int) -> tuple[bytes, bytes]:
    """What comes before and after the identifier of its PUBLISH."""
    packet = Publish(message.topic_name, message.payload, message.qos, 0x7F7F)
    head, tail = encode(packet, version).split(b"\x7f\x7f")
    return head, tail


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("size", [3, 500])
def test_sending_encoded_bytes_is_sending(version: int, qos: int, size: int) -> None:
    message = Message("a/b", bytes(size), qos=qos)
    one, two = connected(version), connected(version)
    one.send(message, 0.0)
    assert two.send_encoded(message, *parts(message, version))
    assert session_snapshot(one) == session_snapshot(two)
    assert one.room == two.room
    assert one.drain()[0] == two.drain()[0]
    one.send(message, 0.0)
    two.send_encoded(message, *parts(message, version))
    assert drained(one) == drained(two)


def test_encoded_bytes_that_cannot_leave_now_are_not_taken() -> None:
    message = Message("a/b", b"123", qos=1)
    head, tail = parts(message, MQTT5)
    size = len(head) + 2 + len(tail)
    full = connected(receive_maximum=1)
    assert full.send_encoded(message, head, tail)
    small = connected(maximum_packet_size=size - 1)
    crowded = connected()
    crowded.room = 0
    queued = connected()
    queued.room = 0
    queued.send(message, 0.0)
    queued.room = 100
    used_up = connected()
    while used_up.reserve_id():
        pass
    for session in (full, small, crowded, queued, used_up, Session()):
        before = session_snapshot(session)
        assert not session.send_encoded(message, head, tail)
        assert session_snapshot(session) == before
    assert connected(maximum_packet_size=size).send_encoded(message, head, tail)


@VERSIONS
def test_acknowledging_is_accepting(version: int) -> None:
    for qos in (1, 2):
        one, two = connected(version), connected(version)
        receipt = one.receive_publish(Publish("t", qos=qos, packet_id=9))
        assert receipt is not None
        one.accept(receipt, 0x10)
        assert two.is_new(qos, 9)
        two.acknowledge(qos, 9, 0x10)
        assert session_snapshot(one) == session_snapshot(two)
        assert one.drain() == two.drain() or version == MQTT311
        ack: Packet = PubAck(9) if qos == 1 else PubRec(9)
        two = connected(version)
        two.acknowledge(qos, 9, 0)
        assert drained(two) == [ack]


def test_a_message_is_not_new_while_another_has_to_be_answered_first() -> None:
    session = connected()
    assert session.is_new(1, 5)
    waiting = session.receive_publish(Publish("t", qos=1, packet_id=4))
    assert waiting is not None
    assert not session.is_new(1, 5)
    assert session.is_new(2, 5)
    stored = session.receive_publish(Publish("t", qos=2, packet_id=6))
    assert stored is not None
    assert not session.is_new(2, 5)
    session.accept(stored)
    assert session.is_new(2, 5)
    assert not session.is_new(2, 6)


@VERSIONS
def test_answers_by_number_are_answers(version: int) -> None:
    answers: list[tuple[int, int, Packet]] = [
        (PUBREC, 2, PubRec(2)),
        (PUBACK, 1, PubAck(1)),
        (PUBREL, 7, PubRel(7)),
        (PUBCOMP, 2, PubComp(2)),
    ]
    one, two = connected(version), connected(version)
    for session in (one, two):
        session.send(Message("t", qos=1), 0.0)
        session.send(Message("t", qos=2), 0.0)
        receipt = session.receive_publish(Publish("t", qos=2, packet_id=7))
        assert receipt is not None
        session.accept(receipt)
        session.drain()
    for kind, packet_id, packet in answers:
        assert isinstance(packet, PubAck | PubRec | PubRel | PubComp)
        one.receive_ack(packet)
        assert two.receive_plain_ack(kind, packet_id)
        assert session_snapshot(one) == session_snapshot(two)
    assert drained(one) == drained(two) == [PubRel(2), PubComp(7)]


@pytest.mark.parametrize(
    ("kind", "packet_id"),
    [(PUBACK, 2), (PUBACK, 9), (PUBREC, 1), (PUBREC, 3), (PUBCOMP, 1), (PUBCOMP, 2), (PUBREL, 4)],
)
def test_an_answer_that_nothing_awaits_changes_nothing(kind: int, packet_id: int) -> None:
    """1 awaits PUBACK, 2 PUBREC, 3 PUBCOMP; nothing was received."""
    session = connected()
    for qos in (1, 2, 2):
        session.send(Message("t", qos=qos), 0.0)
    session.receive_pubrec(PubRec(3))
    session.drain()
    before = session_snapshot(session)
    assert not session.receive_plain_ack(kind, packet_id)
    assert session_snapshot(session) == before
    assert session.drain() == ([], [])


def test_bytes_of_qos_0_messages_leave_in_their_place() -> None:
    session = connected()
    session.room = 100
    session.send(Message("t", b"1"), 0.0)
    session.append(b"raw", 40)
    session.send(Message("t", b"2"), 0.0)
    assert session.drain()[1] == [Publish("t", b"1"), b"raw", Publish("t", b"2")]
    assert session.room == 100 - 2 - 40 - 2


def test_without_room_qos_0_is_dropped_and_the_rest_waits() -> None:
    session = connected()
    session.room = 4
    for number in (b"1", b"2", b"3"):
        session.send(Message("t", number), 0.0)
    assert session.drain()[1] == [Publish("t", b"1"), Publish("t", b"2")]
    assert (session.room, session.dropped) == (0, 1)
    session.send(Message("t", b"4", qos=1), 0.0)
    session.poll(0.0)
    assert session.drain()[1] == []
    assert (len(session.backlog), session.dropped) == (1, 1)
    session.room = 1
    session.poll(0.0)
    assert session.drain()[1] == [Publish("t", b"4", 1, 1)]


def test_a_resumed_session_sends_again_within_its_room() -> None:
    session = connected()
    for number in (b"1", b"2"):
        session.send(Message("t", number, qos=1), 0.0)
    session.disconnect(0.0, NEVER_EXPIRES)
    session.connect(MQTT5)
    session.room = 1
    session.poll(0.0)
    assert session.drain()[1] == [Publish("t", b"1", 1, 1, dup=True)]
    session.room = 1
    session.poll(0.0)
    assert session.drain()[1] == [Publish("t", b"2", 1, 2, dup=True)]


def test_a_session_that_ends_with_its_connection_keeps_no_list_of_changes() -> None:
    durable, transient = connected(), connected()
    transient.durable = False
    for session in (durable, transient):
        for qos in (1, 2):
            session.send(Message("t", qos=qos), 0.0)
        session.receive_puback(PubAck(1))
        session.receive_pubrec(PubRec(2))
        session.acknowledge(2, 3, 0)
        session.receive_pubrel(PubRel(3))
        session.room = 0
        session.send(Message("t", qos=1), 0.0)
    assert session_snapshot(durable) == session_snapshot(transient)
    assert len(durable.drain()[0]) == 9
    assert transient.drain()[0] == []
    for session in (durable, transient):
        session.disconnect(0.0, 5)
        session.send(*shared(1))
        give_up_shared(session, None, sent=True)
    assert session_snapshot(durable) == session_snapshot(transient)
    assert transient.drain()[0] == []


def shared(qos: int, share: str = "$share/g/t") -> tuple[Message, float, str]:
    return Message("t", share.encode(), qos=qos), 0.0, share

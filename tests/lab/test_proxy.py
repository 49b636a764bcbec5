"""Each fault of the proxy, seen on the wire by raw clients of the real broker behind it."""

import socket
from collections.abc import Iterator

import pytest

from semel.lab.testing import TestBroker
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
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
    encode,
)
from tests.broker.by_hand import connect, frame, link, publish
from tests.lab.durable_client import DURABLE

BOTH = pytest.mark.parametrize("version", [MQTT311, MQTT5])


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as made:
        yield made


def kinds(broker: TestBroker, client_id: str | None = None) -> list[str]:
    return [one.kind for one in broker.packets(client_id=client_id)]


def topics(broker: TestBroker) -> list[str]:
    return [message.topic_name for message in broker.messages()]


# --- without a fault ------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_bytes_pass_in_whatever_pieces_they_come(
    broker: TestBroker, version: int, size: int
) -> None:
    payload = bytes(range(256)) * (3_000 if size > 100 else 1)
    data = encode(Connect("w", version=version)) + encode(
        Publish("t", payload, qos=1, packet_id=7), version
    )
    with link(broker.address, version=version) as client:
        for at in range(0, len(data), size):
            client.send_bytes(data[at : at + size])
        assert [type(packet) for packet in client.take(2)] == [ConnAck, PubAck]
    (message,) = broker.messages()
    assert message.payload == payload
    assert [one.data for one in broker.packets(sender="client")] == [
        encode(Connect("w", version=version)),
        data[len(encode(Connect("w", version=version))) :],
    ]


def test_an_invalid_packet_is_forwarded_and_the_broker_decides(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        client.send_bytes(publish(b"a/#"))
        (answer,) = client.until_closed()
        assert isinstance(answer, Disconnect)
        assert answer.reason == 0x81
    with pytest.raises(AssertionError, match=r"TOPIC_NAME_WITHOUT_WILDCARDS \[.*MQTT-3.3.2-2"):
        broker.assert_clean()


def test_bytes_without_a_valid_length_are_forwarded_too(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        client.send_bytes(b"\x30\xff\xff\xff\xff\x01" + b"rest")
        (answer,) = client.until_closed()
        assert isinstance(answer, Disconnect)
        assert answer.reason == 0x81
    with pytest.raises(AssertionError, match="VARIABLE_BYTE_INTEGER_IN_FOUR_BYTES"):
        broker.assert_clean()


def test_the_beginning_of_a_packet_does_not_wait_for_its_end(broker: TestBroker) -> None:
    with link(broker.address) as client:
        # 200 MB announced, one byte sent: the broker refuses it by its length.
        client.send_bytes(b"\x10\x80\x84\xaf\x5f\x00")
        assert client.until_closed() == []


def test_who_connects_and_says_nothing_is_closed_by_the_broker() -> None:
    with TestBroker(connect_timeout=0.1) as broker, link(broker.address) as client:
        assert client.until_closed() == []


def test_a_client_that_closes_is_gone_for_the_broker(broker: TestBroker) -> None:
    with link(broker.address, "w"):
        assert broker.clients() == ["w"]
    assert broker.clients() == []


def test_a_reader_that_does_not_read_is_felt_by_the_broker() -> None:
    # What a proxy without bound would keep, the broker could not drop.
    with TestBroker(maximum_outgoing_bytes=100_000, slow_subscriber_timeout=0) as broker:
        with link(broker.address, receive_buffer=4096) as reader:
            reader.connect("slow")
            reader.subscribe("t")
            for _ in range(300):
                broker.publish("t", bytes(100_000))
            received = 0
            broker.publish("last", b"x", retain=True)
            reader.send(Subscribe(2, [Subscription("last")]))
            for packet in iter(lambda: reader.take(1)[0], None):
                if isinstance(packet, Publish) and packet.topic_name == "last":
                    break
                received += isinstance(packet, Publish)
        assert 0 < received < 300


# --- cut ------------------------------------------------------------------------------------------


def test_a_cut_ends_one_connection_or_all(broker: TestBroker) -> None:
    with (
        link(broker.address, "a") as first,
        link(broker.address, "b") as second,
        link(broker.address, "c") as third,
    ):
        assert broker.cut("b") == 1
        assert second.until_closed() == []
        first.ping()
        third.ping()
        assert broker.cut() == 2
        assert first.until_closed() == []
        assert third.until_closed() == []
        assert broker.clients() == []
        assert broker.cut() == 0


def test_a_client_that_is_not_connected_cannot_be_cut(broker: TestBroker) -> None:
    with pytest.raises(LookupError, match="no client 'a' is connected; connected: none"):
        broker.cut("a")
    with link(broker.address, "b"), pytest.raises(LookupError, match="connected: 'b'"):
        broker.cut("a")


def test_a_cut_is_no_disconnect_and_publishes_the_will(broker: TestBroker) -> None:
    with link(broker.address) as client:
        # The flags say Will, and Clean Start; then its properties, its topic and its payload.
        client.send_bytes(connect(b"w", flags=0x06, rest=b"\x00\x00\x01t\x00\x04gone"))
        client.take(1)
        broker.cut("w")
        assert broker.wait_for_message("t").payload == b"gone"


@BOTH
def test_a_cut_before_an_answer_keeps_it_from_the_client(broker: TestBroker, version: int) -> None:
    fault = broker.cut_before("PUBACK", sender="server")
    with link(broker.address, "w", version) as client:
        client.send(Publish("t", qos=1, packet_id=1))
        assert client.until_closed() == []
    assert topics(broker) == ["t"]
    hit = fault.wait()
    assert (hit.kind, hit.sender, hit.fault) == ("PUBACK", "server", "cut before it")
    # It is for one packet only.
    with link(broker.address, "w", version) as client:
        client.send(Publish("t", qos=1, packet_id=1))
        assert client.take(1) == [PubAck(1)]


def test_a_cut_before_a_packet_keeps_it_from_the_broker(broker: TestBroker) -> None:
    broker.cut_before("PUBLISH", sender="client")
    with link(broker.address, "w") as client:
        client.send(Publish("t", qos=1, packet_id=1), PingReq())
        assert client.until_closed() == []
    assert topics(broker) == []
    assert kinds(broker) == ["CONNECT", "CONNACK", "PUBLISH", "PINGREQ"]
    assert broker.packets("PINGREQ")[0].fault == "lost with the connection"


@BOTH
def test_a_cut_after_a_packet_lets_the_broker_have_it(broker: TestBroker, version: int) -> None:
    fault = broker.cut_after("PUBLISH", sender="client")
    with link(broker.address, "w", version) as client:
        client.send(Publish("t", qos=2, packet_id=1), Publish("u", qos=0))
        assert client.until_closed() == []
    fault.wait()
    broker.wait_for_message("t")
    assert topics(broker) == ["t"]


def test_a_cut_after_an_answer_lets_the_client_have_it(broker: TestBroker) -> None:
    broker.cut_after("PUBREC", sender="server")
    with link(broker.address, "w") as client:
        client.send(Publish("t", qos=2, packet_id=1))
        assert client.until_closed() == [PubRec(1)]


def test_a_cut_after_a_message_lets_the_subscriber_have_it_but_not_its_answer_pass(
    broker: TestBroker,
) -> None:
    with link(broker.address) as client:
        client.connect("w", properties=DURABLE)
        client.subscribe("t", qos=1)
        broker.cut_after(Publish, sender="server")
        broker.publish("t", b"x", 1)
        (message,) = client.take(1)
        assert isinstance(message, Publish)
        client.send(PubAck(message.packet_id))
        assert client.until_closed() == []
    with link(broker.address) as client:
        client.connect("w", clean_start=False, properties=DURABLE)
        (again,) = client.take(1)
        assert isinstance(again, Publish)
        assert (again.payload, again.dup) == (b"x", True)


def test_all_of_a_large_packet_arrives_before_the_cut() -> None:
    payload = bytes(8 * 1024 * 1024)
    with TestBroker(maximum_packet_size=16 * 1024 * 1024) as broker:
        broker.cut_after("PUBLISH", sender="client")
        with link(broker.address, "w") as client:
            client.send(Publish("t", payload))
            client.until_closed()
        assert broker.wait_for_message("t").payload == payload


# --- drop and repeat ------------------------------------------------------------------------------

REQUESTS: list[tuple[Packet, type]] = [
    (Publish("t", qos=1, packet_id=1), PubAck),
    (Publish("t", qos=2, packet_id=1), PubRec),
    (Subscribe(1, [Subscription("t")]), SubAck),
    (Unsubscribe(1, ["t"]), UnsubAck),
]


@pytest.mark.parametrize(("request_packet", "answer"), REQUESTS)
def test_an_answer_that_is_dropped_never_comes(
    broker: TestBroker, request_packet: Packet, answer: type
) -> None:
    with link(broker.address, "w") as client:
        fault = broker.drop(answer)
        client.send(request_packet)
        hit = fault.wait()
        assert isinstance(hit.packet, answer)
        assert hit.fault == "dropped"
        client.ping()
        assert client.waiting == []


@pytest.mark.parametrize(("request_packet", "answer"), REQUESTS)
def test_an_answer_that_is_repeated_comes_twice(
    broker: TestBroker, request_packet: Packet, answer: type
) -> None:
    with link(broker.address, "w") as client:
        fault = broker.repeat(answer)
        client.send(request_packet)
        first, second = client.take(2)
        assert isinstance(first, answer)
        assert second == first
        fault.wait()
        client.ping()
        assert client.waiting == []
        broker.assert_clean()
    one, two = broker.packets(answer)
    assert (one.fault, two.fault) == (None, "repeated")


def test_a_pubrel_that_is_dropped_leaves_the_exchange_open(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        broker.drop("PUBREL", sender="client")
        client.send(Publish("t", qos=2, packet_id=1))
        assert client.take(1) == [PubRec(1)]
        client.send(PubRel(1))
        client.ping()
        client.send(PubRel(1))
        assert client.take(1) == [PubComp(1)]


def test_a_pubrel_that_is_repeated_is_answered_twice(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        broker.repeat("PUBREL", sender="client")
        client.send(Publish("t", qos=2, packet_id=1))
        assert client.take(1) == [PubRec(1)]
        client.send(PubRel(1))
        first, second = client.take(2)
        assert first == PubComp(1)
        assert isinstance(second, PubComp)
        # [MQTT-4.3.3-11] the broker answers, and says in 5.0 that it knows of nothing.
        assert (second.packet_id, second.reason) == (1, 0x92)
        broker.assert_clean()


def test_a_pubcomp_that_is_dropped_has_the_client_ask_again(broker: TestBroker) -> None:
    with link(broker.address) as client:
        client.connect("w", properties=DURABLE)
        fault = broker.drop("PUBCOMP")
        client.send(Publish("t", qos=2, packet_id=1))
        client.take(1)
        client.send(PubRel(1))
        fault.wait()
    with link(broker.address) as client:
        client.connect("w", clean_start=False, properties=DURABLE)
        client.send(PubRel(1))
        (answer,) = client.take(1)
        assert isinstance(answer, PubComp)
    assert topics(broker) == ["t"]
    broker.assert_clean()


def test_a_clients_acknowledgement_that_is_dropped_brings_the_message_again(
    broker: TestBroker,
) -> None:
    with link(broker.address) as client:
        client.connect("w", properties=DURABLE)
        client.subscribe("t", qos=1)
        fault = broker.drop("PUBACK", sender="client")
        broker.publish("t", b"x", 1)
        (message,) = client.take(1)
        assert isinstance(message, Publish)
        client.send(PubAck(message.packet_id))
        fault.wait()
    with link(broker.address) as client:
        client.connect("w", clean_start=False, properties=DURABLE)
        (again,) = client.take(1)
        assert isinstance(again, Publish)
        assert (again.packet_id, again.dup) == (message.packet_id, True)
        client.send(PubAck(again.packet_id))
        client.ping()
    broker.assert_clean()


def test_a_message_that_is_repeated_comes_twice_and_both_are_acknowledged(
    broker: TestBroker,
) -> None:
    with link(broker.address, "w") as client:
        client.subscribe("t", qos=2)
        broker.repeat("PUBLISH", sender="server")
        broker.publish("t", b"x", 2)
        first, second = client.take(2)
        assert first == second
        client.send(PubRec(1), PubRec(1))
        assert PubRel(1) in client.take(1)
        broker.assert_clean()


def test_a_packet_that_the_proxy_repeats_is_not_the_clients(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        broker.repeat("PUBLISH", sender="client")
        client.send(Publish("t", qos=2, packet_id=1))
        assert client.take(2) == [PubRec(1), PubRec(1)]
        broker.assert_clean()
        # The same from the client itself is wrong.
        client.send(Publish("t", qos=2, packet_id=1))
        client.take(1)
    with pytest.raises(AssertionError, match="QOS_2_ID_NOT_IN_USE"):
        broker.assert_clean()


@pytest.mark.parametrize("fault", ["drop", "delay", "cut"])
def test_an_answer_that_did_not_reach_the_client_leaves_its_identifier_in_use(
    broker: TestBroker, fault: str
) -> None:
    with link(broker.address) as client:
        client.connect("w", properties=DURABLE)
        if fault == "drop":
            broker.drop("PUBACK")
        elif fault == "delay":
            broker.delay(60.0, "PUBACK", count=1)
        else:
            broker.cut_before("PUBACK")
        client.send(Publish("t", qos=1, packet_id=1))
        broker.wait_for_message("t")
        broker.cut()
    broker.wait_for("PUBACK")
    with link(broker.address) as client:
        client.connect("w", clean_start=False, properties=DURABLE)
        client.send(Publish("t", qos=1, packet_id=1))
        assert client.take(1) == [PubAck(1)]
    with pytest.raises(AssertionError, match=r"RESEND_SETS_DUP \[MQTT-3.3.1-1\]"):
        broker.assert_clean()


def test_as_many_packets_are_dropped_as_requested(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        fault = broker.drop("PINGRESP", count=2)
        client.send(PingReq(), PingReq(), PingReq())
        assert client.take(1) == [PingResp()]
        fault.wait()
        with broker.drop("PINGRESP", count=None) as lasting:
            client.send(PingReq(), PingReq(), PingReq())
            lasting.wait(3)
        client.ping()
        assert client.waiting == []


def test_a_fault_is_for_its_client_alone(broker: TestBroker) -> None:
    with link(broker.address, "a") as first, link(broker.address, "b") as second:
        fault = broker.drop("PINGRESP", client_id="b")
        first.ping()
        second.send(PingReq())
        assert fault.wait().client_id == "b"
        second.ping()


def test_a_fault_for_the_connect_of_a_client_is_for_no_other(broker: TestBroker) -> None:
    fault = broker.cut_before("CONNECT", client_id="b")
    with link(broker.address, "a") as first, link(broker.address) as second:
        second.send(Connect("b"))
        assert second.until_closed() == []
        first.ping()
    assert fault.wait().client_id == "b"


def test_of_two_faults_the_older_has_the_first_packet(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        broker.repeat("PINGRESP")
        broker.drop("PINGRESP")
        client.send(PingReq(), PingReq(), PingReq())
        assert client.take(3) == [PingResp()] * 3
        assert [one.fault for one in broker.packets("PINGRESP")] == [
            None,
            "repeated",
            "dropped",
            None,
        ]


# --- delay and stall ------------------------------------------------------------------------------


def test_a_delayed_packet_arrives_later(broker: TestBroker) -> None:
    with link(broker.address, "late") as late, link(broker.address, "soon") as soon:
        late.subscribe("t")
        soon.subscribe("t")
        with broker.delay(0.2, "PUBLISH", sender="server", client_id="late") as fault:
            broker.publish("t", b"x")
            soon.take(1)
            late.take(1)
            assert fault.wait().fault == "delayed"
        broker.publish("t", b"y")
        late.take(1)
    assert [one.client_id for one in broker.packets("PUBLISH")][:2] == ["soon", "late"]
    assert [one.fault for one in broker.packets("PUBLISH", client_id="late")] == ["delayed", None]


def test_packets_behind_a_delayed_one_wait_with_it(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        client.subscribe("t")
        broker.delay(0.1, "PINGRESP", count=1)
        client.send(PingReq(), Publish("t"))
        assert [type(packet) for packet in client.take(2)] == [PingResp, Publish]


def test_a_delayed_packet_arrives_though_its_sender_has_gone(broker: TestBroker) -> None:
    with link(broker.address, "w") as client, broker.delay(0.1, sender="client"):
        client.send(Publish("t"), Disconnect())
        client.close()
        broker.wait_for_message("t")


def test_a_delayed_answer_is_lost_with_its_connection(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        broker.delay(60.0, "PINGRESP")
        client.send(PingReq(), Publish("t"))
        broker.wait_for_message("t")
    lost = broker.wait_for("PINGRESP")
    assert lost.fault == "lost with the connection"


def test_a_stalled_client_is_not_read_from(broker: TestBroker) -> None:
    with link(broker.address, "w") as client, link(broker.address, "other") as other:
        with broker.stall("client", client_id="w"):
            client.send(Publish("t", qos=1, packet_id=1))
            other.ping()
            assert broker.packets("PUBLISH") == []
        assert client.take(1) == [PubAck(1)]
        with broker.stall("client"):
            client.send(PingReq())
            other.send(PingReq())
            assert len(broker.packets("PINGREQ")) == 1
        assert client.take(1) == other.take(1) == [PingResp()]


def test_a_stalled_broker_is_not_read_from(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        client.subscribe("#")
        with broker.stall("server"):
            client.send(Publish("t"))
            broker.wait_for_message("t")
            assert broker.packets("PUBLISH", sender="server") == []
        assert isinstance(client.take(1)[0], Publish)


def test_a_client_is_stalled_as_soon_as_it_is_known(broker: TestBroker) -> None:
    with broker.stall("server", client_id="w"), link(broker.address) as client:
        client.send(Connect("w"), Publish("t"))
        broker.wait_for_message("t")
        assert broker.packets("CONNACK") == []
    with link(broker.address, "w") as client:
        client.ping()


# --- refuse ---------------------------------------------------------------------------------------


def test_connections_are_refused_and_those_that_there_are_stay(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        with broker.refuse_connections():
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(broker.address)
            client.ping()
        with link(broker.address, "other") as other:
            other.ping()


@pytest.mark.parametrize(
    ("version", "reason", "code"),
    [(MQTT5, 0x86, 0x86), (MQTT311, 0x86, 4), (MQTT5, 0x89, 0x89), (MQTT311, 0x89, 3)],
)
def test_a_connect_is_refused_with_the_code_of_its_version(
    broker: TestBroker, version: int, reason: int, code: int
) -> None:
    fault = broker.refuse(reason)
    with link(broker.address, version=version) as client:
        assert client.connect("w").reason == code
        assert client.until_closed() == []
    assert fault.wait().kind == "CONNECT"
    assert broker.sessions() == []
    with link(broker.address, "w", version) as client:
        client.ping()
    broker.assert_clean()


def test_only_codes_that_refuse_can_refuse(broker: TestBroker) -> None:
    for reason in (0x00, 0x05, 0x8E):
        with pytest.raises(ValueError, match="is not a reason code that refuses a connection"):
            broker.refuse(reason)


# --- all of them ----------------------------------------------------------------------------------


def test_healing_ends_every_fault(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        broker.drop("PINGRESP", count=None)
        broker.delay(60.0, "PUBACK")
        broker.stall("server")
        broker.refuse_connections()
        broker.refuse(count=None)
        broker.heal()
        client.ping()
        client.send(Publish("t", qos=1, packet_id=1))
        assert client.take(1) == [PubAck(1)]
        with link(broker.address, "other") as other:
            other.ping()


def test_a_fault_that_does_not_happen_says_so(broker: TestBroker) -> None:
    fault = broker.drop("PUBACK", sender="server", client_id="w")
    fault_label = "<PUBACK of the server, client 'w': dropped, 0 times so far>"
    words = f"the fault did not occur in time: {fault_label}"
    with pytest.raises(TimeoutError, match=words):
        fault.wait(timeout=0.01)
    fault.end()
    fault.end()


def test_a_fault_that_was_ended_does_not_happen(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        broker.drop("PINGRESP").end()
        client.ping()


def test_invalid_arguments_of_a_fault_are_refused(broker: TestBroker) -> None:
    with pytest.raises(ValueError, match="'PUBLISHED' is not a packet type"):
        broker.drop("PUBLISHED")
    with pytest.raises(ValueError, match="must be 'client' or 'server'"):
        broker.repeat("PUBACK", sender="broker")
    with pytest.raises(ValueError, match="count is 0"):
        broker.drop("PUBACK", count=0)
    with pytest.raises(ValueError, match="seconds is -1"):
        broker.delay(-1)
    with pytest.raises(ValueError, match="seconds is nan"):
        broker.delay(float("nan"))


def test_a_packet_that_is_held_for_a_fault_passes_whole(broker: TestBroker) -> None:
    with link(broker.address, "w") as client, broker.drop("PUBLISH", client_id="other"):
        for byte in publish(b"t", payload=bytes(50)):
            client.send_bytes(bytes([byte]))
        client.ping()
        # Not yet known whose it is: it is held until that is known.
        with link(broker.address) as stranger:
            stranger.send_bytes(frame(0x30, b"\x00\x01t\x00"))
            assert stranger.until_closed() == []
    assert topics(broker) == ["t"]


def test_two_connections_of_one_identifier_are_one_session_to_the_record(
    broker: TestBroker,
) -> None:
    with link(broker.address) as first, link(broker.address) as second:
        first.connect("w", clean_start=False, properties=DURABLE)
        first.send(Publish("t", qos=2, packet_id=1))
        first.take(1)
        assert second.connect("w", clean_start=False, properties=DURABLE).session_present
        second.send(PubRel(1))
        assert second.take(1) == [PubComp(1)]
        broker.assert_clean()
        assert topics(broker) == ["t"]

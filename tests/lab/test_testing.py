"""A broker for tests does what a test tells it, and leaves nothing behind."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from semel.broker.authority import Authority, Denied, Proof
from semel.broker.identity import Identity, PeerInfo
from semel.lab.in_process_client import RequestFailed
from semel.lab.testing import TestBroker
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Connect,
    Disconnect,
    PingReq,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Violation,
    Will,
)
from semel.settings import SettingsError
from tests.broker.by_hand import link
from tests.lab.durable_client import connect_durable

BOTH = pytest.mark.parametrize("version", [MQTT311, MQTT5])


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as made:
        yield made


# --- who may connect, and with what settings ------------------------------------------------------


def test_it_takes_connections_when_it_has_started(broker: TestBroker) -> None:
    assert broker.address == (broker.host, broker.port)
    assert broker.url == f"mqtt://127.0.0.1:{broker.port}"
    with link(broker.address, "w") as client:
        client.ping()


@BOTH
@pytest.mark.parametrize(
    ("user_name", "password", "is_taken"),
    [
        ("ann", b"secret", True),
        ("bob", b"\xff\x00", True),
        ("ann", b"guess", False),
        ("ann", None, False),
        ("eve", b"secret", False),
        (None, None, False),
    ],
)
def test_users_connect_with_their_passwords_and_others_do_not(
    version: int, user_name: str | None, password: bytes | None, is_taken: bool
) -> None:
    with TestBroker(users={"ann": "secret", "bob": b"\xff\x00"}) as broker:
        with link(broker.address, version=version) as client:
            client.send(Connect("w", version=version, user_name=user_name, password=password))
            (connack,) = client.take(1)
            refusal = 0x86 if version == MQTT5 else 4
            assert getattr(connack, "reason", None) == (0 if is_taken else refusal)
        # The test itself is no user.
        broker.publish("t", qos=2)


class NobodyPublishesSecrets(Authority):
    """Lets nobody publish below secret/, the test neither."""

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        return 0x87 if topic_name.startswith("secret/") else 0


def test_an_authority_is_asked_about_everybody() -> None:
    with TestBroker(authority=NobodyPublishesSecrets()) as broker:
        with link(broker.address, "w") as client:
            client.send(Publish("secret/a", qos=1, packet_id=1))
            assert client.take(1) == [PubAck(1, 0x87)]
        with pytest.raises(RequestFailed, match="refused the message to secret/a: 0x87"):
            broker.publish("secret/a", qos=1)
        with pytest.raises(RequestFailed, match="0x87"):
            broker.publish("secret/a", qos=2)
        broker.publish("open/a", qos=2)


class Nobody(Authority):
    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        return Denied(0x8A)


def test_an_authority_that_refuses_the_test_itself_is_reported_at_the_start() -> None:
    before = threading.enumerate()
    broker = TestBroker(authority=Nobody())
    with pytest.raises(RequestFailed, match="refused the test's connection as 'semel-test': 0x8a"):
        broker.start()
    assert threading.enumerate() == before
    with pytest.raises(RuntimeError, match="the broker is not running"):
        broker.publish("t")


def test_settings_of_the_broker_can_be_given() -> None:
    with (
        TestBroker(maximum_packet_size=2000, receive_maximum=7) as broker,
        link(broker.address) as client,
    ):
        told = client.connect("w").properties
        assert (told.maximum_packet_size, told.receive_maximum) == (2000, 7)


def test_unknown_settings_are_refused() -> None:
    words = "'maximum_qos' is not a setting of the broker: use one of connection_messages, log_"
    with pytest.raises(TypeError, match=words):
        TestBroker(maximum_qos=1)
    with pytest.raises(TypeError, match="'host' is not a setting"):
        TestBroker(host="0.0.0.0")
    with pytest.raises(TypeError, match="'log_level' is not a setting"):
        TestBroker(log_level="error")
    with pytest.raises(SettingsError, match="receive_maximum"):
        TestBroker(receive_maximum=0)
    with pytest.raises(TypeError, match="users and authority"):
        TestBroker(users={}, authority=Authority())


def test_bounds_for_clients_are_for_the_clients_alone() -> None:
    with TestBroker(
        maximum_connections=1,
        maximum_sessions=1,
        before_connect_packet_size=16,
        maximum_packet_size=16,
        topic_levels=1,
    ) as broker:
        with link(broker.address, "w", MQTT311) as client, link(broker.address) as other:
            client.subscribe("t", 1)
            other.version = MQTT311
            other.send(Connect("o", version=MQTT311))
            # [3.1.1 table 3.1] return code 3: the server is unavailable.
            assert other.socket.recv(100) == b"\x20\x02\x00\x03"
            broker.publish("t", bytes(100), 1)
            assert isinstance(client.take(1)[0], Publish)
        with pytest.raises(Violation, match="TOPIC_LEVELS_WITHIN_LIMIT"):
            broker.publish("t/u")
        broker.publish("t")


def test_a_server_keep_alive_is_kept_by_the_test_too() -> None:
    with TestBroker(maximum_keep_alive=1) as broker:
        with link(broker.address, "w") as client:
            (end,) = client.until_closed()
            assert isinstance(end, Disconnect)
            assert end.reason == 0x8D
        # Its own connection is older than the one that was too silent.
        broker.publish("t", qos=1)


# --- messages -------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_of_the_test_reaches_subscribers(
    broker: TestBroker, version: int, qos: int
) -> None:
    with link(broker.address, "w", version) as client:
        client.subscribe("t/#", qos=2)
        broker.publish("t/a", "größe", qos)
        broker.publish("t/b", b"\xff", qos, retain=True)
        messages: list[tuple[str, bytes, int]] = []
        while len(messages) < 2:
            (packet,) = client.take(1)
            if isinstance(packet, Publish):
                messages.append((packet.topic_name, packet.payload, packet.qos))
                if qos:
                    answer = PubAck if qos == 1 else PubRec
                    client.send(answer(packet.packet_id))
            elif isinstance(packet, PubRel):
                client.send(PubComp(packet.packet_id))
        assert messages == [("t/a", "größe".encode(), qos), ("t/b", b"\xff", qos)]
    assert broker.messages() == []
    with link(broker.address, "later", version) as client:
        client.subscribe("t/#")
        (kept,) = client.take(1)
        assert isinstance(kept, Publish)
        assert (kept.topic_name, kept.retain) == ("t/b", True)


def test_a_message_of_the_test_may_have_properties(broker: TestBroker) -> None:
    said = Properties(content_type="text/csv", user_properties=[("a", "b")])
    with link(broker.address, "w") as client:
        client.subscribe("t")
        broker.publish("t", properties=said)
        (packet,) = client.take(1)
        assert isinstance(packet, Publish)
        assert packet.properties == said


def test_an_invalid_message_is_refused(broker: TestBroker) -> None:
    with pytest.raises(Violation, match="TOPIC_NAME_WITHOUT_WILDCARDS"):
        broker.publish("t/#")
    with pytest.raises(ValueError, match=r"'\$SYS/a' is reserved for the broker"):
        broker.publish("$SYS/a")
    for said in (Properties(topic_alias=1), Properties(subscription_identifiers=[1])):
        with pytest.raises(ValueError, match="are not part of a message"):
            broker.publish("t", properties=said)
    broker.publish("t", qos=1)


def test_messages_of_programs_are_kept_as_they_were_published(broker: TestBroker) -> None:
    said = Properties(response_topic="r")
    with link(broker.address, "w") as client:
        client.send(Publish("a/1", b"x"))
        client.send(Publish("a/2", b"y", 1, 5, retain=True, properties=said))
        client.send(Publish("b", b"z", 2, 6))
        client.take(2)
        facts = [(one.topic_name, one.payload, one.qos, one.retain) for one in broker.messages()]
        assert facts == [
            ("a/1", b"x", 0, False),
            ("a/2", b"y", 1, True),
            ("b", b"z", 2, False),
        ]
        assert [one.topic_name for one in broker.messages("a/+")] == ["a/1", "a/2"]
        assert broker.messages("a/2")[0].properties == said
    with pytest.raises(Violation, match="HASH_IS_LAST_LEVEL"):
        broker.messages("a/#/b")


def test_one_waits_for_messages_by_filter_count_and_place(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        client.send(Publish("a", b"1"), Publish("b", b"2"), Publish("a", b"3"))
        first = broker.wait_for_message("a")
        assert first.payload == b"1"
        assert broker.wait_for_message("a", count=2).payload == b"3"
        assert broker.wait_for_message("#", after=first).payload == b"2"
        last = broker.wait_for_message("a", after=first)
        client.send(Publish("a", b"4"))
        assert broker.wait_for_message("a", after=last).payload == b"4"
    words = "1 message to 'c' did not arrive; published: 'a', 'b', 'a', 'a'"
    with pytest.raises(TimeoutError, match=words):
        broker.wait_for_message("c", timeout=0.01)


# --- packets --------------------------------------------------------------------------------------


def test_packets_are_found_by_kind_side_client_and_place(broker: TestBroker) -> None:
    with link(broker.address, "a") as first, link(broker.address, "b") as second:
        first.ping()
        second.ping()
        first.ping()
        assert len(broker.packets()) == 10
        assert len(broker.packets("PINGREQ")) == 3
        assert len(broker.packets(PingReq, client_id="a")) == 2
        assert {one.kind for one in broker.packets(sender="server")} == {"CONNACK", "PINGRESP"}
        assert [one.kind for one in broker.packets(lambda one: len(one.data) > 2)] == [
            "CONNECT",
            "CONNACK",
        ] * 2
        second_ping = broker.wait_for("PINGREQ", count=2)
        assert second_ping.client_id == "b"
        assert [one.client_id for one in broker.packets("PINGREQ", after=second_ping)] == ["a"]
        assert broker.wait_for("PINGREQ", after=second_ping).client_id == "a"
        assert broker.wait_for(lambda one: one.client_id == "b").kind == "CONNECT"


def test_the_timeout_for_a_packet_lists_those_that_arrived(broker: TestBroker) -> None:
    with link(broker.address, "w"), pytest.raises(TimeoutError) as told:
        broker.wait_for("SUBACK", timeout=0.01)
    assert "1 SUBACK packet did not arrive; recorded:" in str(told.value)
    assert "'w' ◀── CONNACK 0x00" in str(told.value)


def test_an_exception_of_a_condition_is_raised(broker: TestBroker) -> None:
    with link(broker.address, "w"), pytest.raises(ZeroDivisionError):
        broker.wait_for(lambda one: 1 // 0 > 0)


def test_coroutines_await_without_stopping_their_loop(broker: TestBroker) -> None:
    async def program() -> None:
        reader, writer = await asyncio.open_connection(*broker.address)
        writer.write(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01w" + b"\x30\x04\x00\x01tx")
        await reader.read(4)
        writer.close()

    async def test() -> None:
        task = asyncio.create_task(program())
        assert (await broker.wait_for_async("CONNACK")).client_id == "w"
        assert (await broker.wait_for_message_async("t")).payload == b"x"
        await task
        fault = broker.cut_before("CONNACK")
        task = asyncio.create_task(program())
        await fault.wait_async()
        await task
        with pytest.raises(TimeoutError, match="1 SUBACK packet did not arrive"):
            await broker.wait_for_async("SUBACK", timeout=0.01)
        with pytest.raises(TimeoutError, match="to 'u' did not arrive"):
            await broker.wait_for_message_async("u", timeout=0.01)

    asyncio.run(test())


def test_waiting_that_would_stop_a_loop_is_refused(broker: TestBroker) -> None:
    async def test() -> None:
        with pytest.raises(RuntimeError, match=r"use `await wait_for_async\(…\)`"):
            broker.wait_for("CONNECT")
        with pytest.raises(RuntimeError, match=r"use `await wait_for_message_async\(…\)`"):
            broker.wait_for_message("t")
        with pytest.raises(RuntimeError, match=r"use `await wait_async\(…\)`"):
            broker.drop("PUBACK").wait()

    asyncio.run(test())


def test_a_client_that_is_wrong_fails_the_test_with_the_rules(broker: TestBroker) -> None:
    with link(broker.address, "bad") as client:
        client.send(PubAck(9))
        client.until_closed()
    with link(broker.address, "good") as client:
        client.ping()
    with pytest.raises(AssertionError) as told:
        broker.assert_clean()
    lines = str(told.value).splitlines()
    assert lines[0] == "the program broke the standard, 1 time:"
    assert "'bad', connection 1" in lines[1]
    assert "PUBACK: ANSWER_FITS_REQUEST [MQTT-2.2.1-5]" in lines[2]
    assert "Seen: packet_id 9." in lines[2]
    assert lines[3].strip() == "40 02 00 09"
    broker.assert_clean("good")
    broker.assert_clean(ignore=["ANSWER_FITS_REQUEST"])
    broker.assert_clean(ignore="ANSWER_FITS_REQUEST")
    with pytest.raises(ValueError, match="there is no rule 'X'"):
        broker.assert_clean(ignore=["X"])


# --- sessions -------------------------------------------------------------------------------------


@BOTH
def test_sessions_clients_and_subscriptions_are_known(broker: TestBroker, version: int) -> None:
    assert broker.sessions() == []
    with link(broker.address, version=version) as client, link(broker.address, "other"):
        connect_durable(client)
        client.subscribe("a/#", 2)
        assert sorted(broker.clients()) == ["other", "w"]
        assert broker.subscriptions() == [("w", "a/#")]
    broker.publish("a/1", qos=1)
    (session,) = broker.sessions()
    assert session == broker.session("w")
    assert (session.client_id, session.is_connected, session.queued) == ("w", False, 1)
    assert session.topic_filters == ("a/#",)
    assert session.expiry_interval == (600 if version == MQTT5 else 7 * 86_400)
    assert broker.session("other") is None
    assert broker.clients() == []


@BOTH
def test_a_session_that_is_expired_is_gone(broker: TestBroker, version: int) -> None:
    with link(broker.address, version=version) as client:
        connect_durable(client)
        client.subscribe("t", 1)
    broker.publish("t", qos=1)
    broker.expire_session("w")
    assert broker.sessions() == []
    with link(broker.address, version=version) as client:
        assert not connect_durable(client)
        client.ping()
        assert client.waiting == []
    broker.assert_clean()


def test_a_session_that_is_expired_publishes_the_will_that_waited(broker: TestBroker) -> None:
    will = Will("gone", b"w", properties=Properties(will_delay_interval=500))
    with link(broker.address) as client:
        connect_durable(client, will=will)
    assert broker.session("w") is not None
    assert broker.messages() == []
    broker.expire_session("w")
    assert broker.wait_for_message("gone").payload == b"w"


def test_a_client_whose_session_is_expired_is_cut_off(broker: TestBroker) -> None:
    with link(broker.address) as client:
        connect_durable(client)
        broker.expire_session("w")
        assert client.until_closed() == []
    assert broker.sessions() == []


def test_only_sessions_that_there_are_can_be_expired(broker: TestBroker) -> None:
    with pytest.raises(LookupError, match="no session 'w'; sessions: none"):
        broker.expire_session("w")
    with link(broker.address, "v"):
        for name in ("w", "semel-test"):
            with pytest.raises(LookupError, match=f"no session '{name}'; sessions: 'v'"):
                broker.expire_session(name)


@BOTH
def test_a_client_that_is_taken_over_gets_disconnect_and_keeps_its_session(
    broker: TestBroker, version: int
) -> None:
    with link(broker.address, version=version) as client:
        connect_durable(client)
        client.subscribe("t", 1)
        broker.take_over("w")
        told = client.until_closed()
        assert told == ([Disconnect(0x8E)] if version == MQTT5 else [])
    broker.publish("t", b"x", 1)
    with link(broker.address, version=version) as client:
        assert connect_durable(client)
        (message,) = client.take(1)
        assert isinstance(message, Publish)
        assert message.payload == b"x"
        assert not message.dup
    broker.assert_clean()


def test_a_message_in_flight_at_a_take_over_comes_again(broker: TestBroker) -> None:
    with link(broker.address) as client:
        connect_durable(client)
        client.subscribe("t", 2)
        broker.publish("t", b"x", 2)
        (message,) = client.take(1)
        broker.take_over("w")
        client.until_closed()
    with link(broker.address) as client:
        connect_durable(client)
        (again,) = client.take(1)
        assert isinstance(message, Publish)
        assert isinstance(again, Publish)
        assert (again.packet_id, again.dup) == (message.packet_id, True)


def test_a_take_over_with_a_clean_start_takes_the_session_too(broker: TestBroker) -> None:
    with link(broker.address) as client:
        connect_durable(client)
        broker.take_over("w", clean_start=True)
        assert client.until_closed() == [Disconnect(0x8E)]
    with link(broker.address) as client:
        assert not connect_durable(client)


def test_only_who_is_connected_can_be_taken_over(broker: TestBroker) -> None:
    with pytest.raises(LookupError, match="no client 'w' is connected; connected: none"):
        broker.take_over("w")
    with link(broker.address) as client:
        connect_durable(client)
    with pytest.raises(LookupError, match="no client 'w' is connected"):
        broker.take_over("w")


@BOTH
@pytest.mark.parametrize("reason", [0x98, 0x8B, 0x00])
def test_the_broker_ends_a_connection_with_a_reason(
    broker: TestBroker, version: int, reason: int
) -> None:
    with link(broker.address, "w", version) as client:
        broker.disconnect("w", reason)
        assert client.until_closed() == ([Disconnect(reason)] if version == MQTT5 else [])


def test_only_reasons_of_a_servers_disconnect_end_a_connection(broker: TestBroker) -> None:
    with link(broker.address, "w") as client:
        for reason in (0x04, 0x86, 0x10):
            with pytest.raises(ValueError, match="is not a reason code of a server's DISCONNECT"):
                broker.disconnect("w", reason)
        client.ping()
    with pytest.raises(LookupError):
        broker.disconnect("w")

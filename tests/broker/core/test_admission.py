"""What CONNACK says: each bound that it tells is shown to be the one that is enforced."""

import pytest

from semel.broker.authority import Authority, Denied, Proof
from semel.broker.identity import Identity, PeerInfo
from semel.broker.settings import MIB, BrokerSettings
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
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    Subscription,
    Will,
    encode,
)
from semel.settings import SettingsError
from semel.store.commit import Commit
from semel.store.store import Store
from tests.broker.core.test_core import KEPT, VERSIONS, payloads
from tests.broker.world import Client, World

# More levels than the settings below allow.
DEEP = Will("a/b/c/d", b"x")
SHALLOW = BrokerSettings(topic_levels=3)


class Refusing(Authority):
    """Refuses one client, or all of them, with a code."""

    def __init__(self, code: int, client_id: str | None = None) -> None:
        self.code = code
        self.client_id = client_id

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        if self.code and self.client_id in (None, packet.client_id):
            return Denied(self.code)
        return super().connect(packet, peer)


def admitted(
    world: World,
    client_id: str = "a",
    *,
    clean_start: bool = True,
    keep_alive: int = 0,
    properties: Properties | None = None,
) -> tuple[Client, Properties]:
    """An accepted 5.0 client, and what its CONNACK says."""
    client = world.open()
    connack, *others = client.send(
        Connect(
            client_id,
            clean_start=clean_start,
            keep_alive=keep_alive,
            properties=properties or Properties(),
        )
    )
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0
    client.inbox = others
    return client, connack.properties


def ends_with(packets: list[Packet], reason: int) -> bool:
    """Whether the last packet is a DISCONNECT with that code."""
    last = packets[-1] if packets else None
    return isinstance(last, Disconnect) and last.reason == reason


# --- what is told is what holds -------------------------------------------------------------------


@pytest.mark.parametrize("setting", [1, 3, 200])
def test_as_many_messages_as_the_receive_maximum_told_may_be_open_and_no_more(
    setting: int,
) -> None:
    """[MQTT-3.3.4-7] at the number in CONNACK"""
    world = World(BrokerSettings(receive_maximum=setting))
    client, told = admitted(world)
    maximum = told.receive_maximum
    assert maximum == setting
    for packet_id in range(1, maximum + 1):
        assert client.send(Publish("t", qos=2, packet_id=packet_id)) == [PubRec(packet_id, 0x10)]
    assert not client.is_closed()
    assert ends_with(client.send(Publish("t", qos=2, packet_id=maximum + 1)), 0x93)
    assert client.is_closed()


@pytest.mark.parametrize("setting", [100, 1_000])
def test_a_packet_of_the_maximum_packet_size_told_is_taken_and_one_byte_more_is_not(
    setting: int,
) -> None:
    """[MQTT-3.2.2-15] at the number in CONNACK"""
    world = World(BrokerSettings(maximum_packet_size=setting))
    client, told = admitted(world)
    maximum = told.maximum_packet_size
    assert maximum == setting
    rest = len(encode(Publish("t", bytes(maximum - 10)))) - (maximum - 10)
    largest = encode(Publish("t", bytes(maximum - rest)))
    assert len(largest) == maximum
    assert client.send_bytes(largest) == []
    assert not client.is_closed()
    assert ends_with(client.send(Publish("t", bytes(maximum - rest + 1))), 0x95)
    assert client.is_closed()


@pytest.mark.parametrize("setting", [0, 1, 7])
def test_the_highest_topic_alias_is_the_one_that_is_told(setting: int) -> None:
    """[MQTT-3.2.2-17] [MQTT-3.2.2-18] at the number in CONNACK; none told permits none"""
    world = World(BrokerSettings(topic_alias_maximum=setting))
    client, told = admitted(world)
    maximum = told.topic_alias_maximum or 0
    assert maximum == setting
    for alias in range(1, maximum + 1):
        assert client.send(Publish("t", properties=Properties(topic_alias=alias))) == []
    assert not client.is_closed()
    too_high = Publish("t", properties=Properties(topic_alias=maximum + 1))
    assert ends_with(client.send(too_high), 0x94)


@pytest.mark.parametrize(
    ("asked", "limit", "told"),
    [
        (100, 60, 60),
        (0xFFFF_FFFF, 60, 60),
        (100, 0, 0),
        (60, 60, None),
        (30, 60, None),
        (None, 60, None),
        (0xFFFF_FFFF, 0xFFFF_FFFF, None),
    ],
)
def test_a_session_lives_as_long_as_connack_says_or_as_long_as_asked(
    asked: int | None, limit: int, told: int | None
) -> None:
    """[3.2.2.3.2] a lowered expiry is told; no word means that the client's own counts"""
    world = World(BrokerSettings(maximum_session_expiry=limit))
    properties = Properties(session_expiry_interval=asked)
    for seconds_left in (1, 0):
        client, said = admitted(world, properties=properties)
        assert said.session_expiry_interval == told
        lives = (asked or 0) if told is None else told
        client.cut()
        if not lives:
            assert "a" not in world.broker.router.sessions
            continue
        world.wait(min(lives, 1_000) - seconds_left)
        alive = bool(seconds_left) or lives == 0xFFFF_FFFF
        assert ("a" in world.broker.router.sessions) == alive


@pytest.mark.parametrize(
    ("asked", "limit", "told"),
    [(60, 20, 20), (0, 20, 20), (20, 20, None), (4, 20, None), (0, 0, None), (30, 65_535, None)],
)
def test_a_silent_client_is_closed_by_the_keep_alive_that_connack_leaves_it_with(
    asked: int, limit: int, told: int | None
) -> None:
    """[MQTT-3.1.2-22] [MQTT-3.2.2-22]: one and a half times the one told, or its own"""
    world = World(BrokerSettings(maximum_keep_alive=limit))
    client, said = admitted(world, keep_alive=asked)
    assert said.server_keep_alive == told
    seconds = asked if told is None else told
    if not seconds:
        world.wait(1_000)
        assert not client.is_closed()
        return
    world.wait(seconds * 1.5 - 1)
    assert not client.is_closed()
    world.wait(1)
    assert client.is_closed()
    assert ends_with(client.take(), 0x8D)


def test_no_keep_alive_is_imposed_on_a_client_that_cannot_be_told() -> None:
    """3.1.1 has no Server Keep Alive: what such a client asks for counts"""
    world = World(BrokerSettings(maximum_keep_alive=20))
    old, new = world.connect("o", MQTT311, keep_alive=60), world.connect("n", keep_alive=60)
    world.wait(60)
    assert not old.is_closed()
    assert new.is_closed()


def test_an_assigned_client_id_is_the_one_that_the_session_has() -> None:
    """[MQTT-3.2.2-16]; who brings its own is told none"""
    world = World()
    client, told = admitted(world, "")
    assert told.assigned_client_identifier
    assert list(world.broker.router.sessions) == [told.assigned_client_identifier]
    _, told = admitted(world, told.assigned_client_identifier)
    assert told.assigned_client_identifier is None
    assert client.is_closed()


def test_what_connack_does_not_mention_is_available() -> None:
    """[3.2.2.3.4] to [3.2.2.3.13]: QoS 2, retained messages, wildcards, shared and identified"""
    world = World()
    client, told = admitted(world)
    assert told.maximum_qos is None
    assert told.retain_available is None
    assert told.wildcard_subscription_available is None
    assert told.subscription_identifiers_available is None
    assert told.shared_subscription_available is None
    world.connect("p").send(Publish("kept", b"old", retain=True))
    asked = [Subscription("+/w/#", 2), Subscription("$share/g/s", 2), Subscription("kept", 2)]
    suback, message = client.send(
        Subscribe(1, asked, properties=Properties(subscription_identifiers=[9]))
    )
    assert suback == SubAck(1, [2, 2, 2])
    assert payloads([message]) == [b"old"]
    for topic in ("a/w/b", "s"):
        publisher = world.connect("p")
        publisher.send(Publish(topic, b"new", qos=2, packet_id=1))
        (message,) = client.take()
        assert isinstance(message, Publish)
        assert (message.payload, message.qos) == (b"new", 2)
        assert message.properties.subscription_identifiers == (9,)
        client.send(PubRec(message.packet_id))


def test_the_receive_maximum_and_packet_size_of_the_client_bind_the_broker() -> None:
    """[MQTT-3.3.4-9] [MQTT-3.1.2-24]: the other direction of what is agreed while connecting"""
    world = World()
    limits = Properties(receive_maximum=1, maximum_packet_size=60)
    client, _ = admitted(world, properties=limits)
    client.subscribe("t", qos=1)
    publisher = world.connect("p")
    for packet_id, payload in ((1, b"first"), (2, bytes(60)), (3, b"second")):
        publisher.send(Publish("t", payload, qos=1, packet_id=packet_id))
    assert payloads(client.take()) == [b"first"]
    assert payloads(client.send(PubAck(1))) == [b"second"]


# --- Response Information -------------------------------------------------------------------------

ASKS = Properties(request_response_information=1)
REPLIES = BrokerSettings(response_topic_prefix="replies/of")


@pytest.mark.parametrize("wanted", [None, 0, 1])
@pytest.mark.parametrize("prefix", [None, "replies/of"])
def test_response_information_is_for_those_who_ask_where_there_is_a_prefix(
    prefix: str | None, wanted: int | None
) -> None:
    """[MQTT-3.1.2-28]"""
    world = World(BrokerSettings(response_topic_prefix=prefix))
    _, told = admitted(world, properties=Properties(request_response_information=wanted))
    expected = "replies/of/a" if prefix and wanted else None
    assert told.response_information == expected


def test_an_answer_to_the_response_information_reaches_the_client() -> None:
    """[4.10.1]: the topic told can be subscribed to, named in a request, and published to"""
    world = World(REPLIES)
    server = world.connect("server")
    server.subscribe("requests")
    client, told = admitted(world, "", properties=ASKS)
    topic = told.response_information
    assert topic == f"replies/of/{told.assigned_client_identifier}"
    client.subscribe(topic)
    client.send(Publish("requests", properties=Properties(response_topic=topic)))
    (request,) = server.take()
    assert isinstance(request, Publish)
    assert request.properties.response_topic is not None
    server.send(Publish(request.properties.response_topic, b"answer"))
    assert payloads(client.take()) == [b"answer"]


@pytest.mark.parametrize("client_id", ["+", "a+", "#", "a#b", "/", "a/b", "/a", "a/", "b" * 65_530])
def test_a_client_id_that_makes_no_topic_of_its_own_gets_no_response_information(
    client_id: str,
) -> None:
    """Class 10: a client identifier widens nothing; the client is accepted all the same"""
    world = World(
        BrokerSettings(response_topic_prefix="replies/of", before_connect_packet_size=MIB)
    )
    _, told = admitted(world, client_id, properties=ASKS)
    assert told.response_information is None


@pytest.mark.parametrize("client_id", ["a", "$SYS", "a b", "é", "b" * 65_524])
def test_any_other_client_id_gets_response_information(client_id: str) -> None:
    world = World(
        BrokerSettings(response_topic_prefix="replies/of", before_connect_packet_size=MIB)
    )
    _, told = admitted(world, client_id, properties=ASKS)
    assert told.response_information == f"replies/of/{client_id}"


@pytest.mark.parametrize("less", [0, 1])
def test_response_information_that_does_not_fit_is_left_out(less: int) -> None:
    """[MQTT-3.1.2-24]: rather connected without it than closed"""
    world = World(REPLIES)
    (full,) = world.open().send(Connect("a", properties=ASKS))
    limit = len(encode(full)) - less
    asked = Properties(request_response_information=1, maximum_packet_size=limit)
    client, told = admitted(world, properties=asked)
    assert told.response_information == (None if less else "replies/of/a")
    assert not client.is_closed()


@pytest.mark.parametrize("prefix", ["a/+", "#", "$SYS", "$share/g", "\0", "x" * 65_536, "a/b/c"])
def test_a_prefix_that_makes_no_topic_for_clients_is_refused(prefix: str) -> None:
    with pytest.raises(SettingsError, match="response_topic_prefix"):
        BrokerSettings(response_topic_prefix=prefix, topic_levels=3)
    assert BrokerSettings(response_topic_prefix="a/b", topic_levels=3)


# --- what lasts, and what people read -------------------------------------------------------------


class Recorder(Store):
    """Keeps what it was given."""

    def __init__(self) -> None:
        super().__init__(is_durable=True)
        self.sessions: list[tuple[str, int]] = []
        self.wills: list[tuple[str, Will | None]] = []

    def write(self, commit: Commit) -> bool:
        self.sessions += [(client_id, expiry) for _, client_id, expiry, _ in commit.sessions]
        self.wills += [(client_id, will) for client_id, _, will, _ in commit.wills]
        return True


def test_the_terms_of_a_connection_are_in_the_commit_that_its_connack_waits_for() -> None:
    """The expiry as it is granted, and the will; a refused CONNECT leaves nothing there"""
    recorder = Recorder()
    world = World(BrokerSettings(maximum_session_expiry=60, topic_levels=3), store=recorder)
    world.open().send(Connect("b", will=DEEP))
    assert (recorder.sessions, recorder.wills) == ([], [])
    will = Will("gone", b"bye")
    world.open().send(Connect("a", will=will, properties=KEPT))
    assert (recorder.sessions, recorder.wills) == ([("a", 60)], [("a", will)])


@VERSIONS
def test_the_log_says_who_connected_who_gave_way_and_who_was_refused(version: int) -> None:
    world = World(authority=Refusing(0x87, "b"))
    world.connect("a", version)
    world.connect("a", version)
    world.open(version).send(Connect("b", version=version))
    connected = f"'a' (test:1) connected with MQTT {'5.0' if version == MQTT5 else '3.1.1'}"
    taken_over = "'a' (test:1) taken over by a new connection from test:1"
    assert world.log == [connected, taken_over, connected, "test:1 was refused as 'b': 0x87"]


# --- refusals -------------------------------------------------------------------------------------


def test_a_client_above_the_limit_is_told_the_limit() -> None:
    """0x89, with the number in words; when one leaves there is room for the next"""
    world = World(BrokerSettings(maximum_connections=1))
    first = world.connect("first")
    second = world.open()
    why = Properties(reason_string="no more than 1 connection at a time")
    assert second.send(Connect("second")) == [ConnAck(0x89, properties=why)]
    assert second.is_closed()
    second.cut()
    first.cut()
    assert not world.connect("second").is_closed()


def test_a_client_whose_will_is_refused_is_told_by_which_rule() -> None:
    client = World(SHALLOW).open()
    (connack,) = client.send(Connect("a", will=DEEP))
    assert isinstance(connack, ConnAck)
    why = "TOPIC_LEVELS_WITHIN_LIMIT in the will: 4 levels, at most 3"
    assert connack == ConnAck(0x90, properties=Properties(reason_string=why))
    assert not World(BrokerSettings(topic_levels=4)).connect("a", will=DEEP).is_closed()


@pytest.mark.parametrize("less", [0, 1])
def test_a_reason_string_that_does_not_fit_is_left_out_of_connack(less: int) -> None:
    """[MQTT-3.2.2-19]: at exactly the client's Maximum Packet Size it fits"""
    world = World(SHALLOW)
    (full,) = world.open().send(Connect("a", will=DEEP))
    limit = Properties(maximum_packet_size=len(encode(full)) - less)
    (connack,) = world.open().send(Connect("a", will=DEEP, properties=limit))
    assert connack == (ConnAck(0x90) if less else full)


@pytest.mark.parametrize("wanted", [0, 1, None])
def test_connack_says_why_whatever_request_problem_information_says(wanted: int | None) -> None:
    """[MQTT-3.1.2-29] is about other packets"""
    asked = Properties(request_problem_information=wanted)
    (connack,) = World(SHALLOW).open().send(Connect("a", will=DEEP, properties=asked))
    assert isinstance(connack, ConnAck)
    assert connack.properties.reason_string


def test_a_refused_3_1_1_client_gets_a_return_code_and_no_words() -> None:
    client = World(SHALLOW).open(MQTT311)
    assert client.send(Connect("a", version=MQTT311, will=DEEP)) == [ConnAck(5)]
    assert client.is_closed()


@pytest.mark.parametrize("alias", ["0000", "0001"])
def test_a_property_that_has_no_place_in_connect_makes_it_malformed(alias: str) -> None:
    """[2.2.2.2]: also a Topic Alias of 0, whose own code 0x94 CONNACK does not have"""
    client = World().open()
    data = f"101100044d5154540502003c0323{alias}000161"
    assert client.send_bytes(bytes.fromhex(data)) == [ConnAck(0x81)]
    assert client.is_closed()
    # The same with a Receive Maximum of 1.
    right = "101100044d5154540502003c03210001000161"
    (connack,) = World().open().send_bytes(bytes.fromhex(right))
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0


@VERSIONS
@pytest.mark.parametrize("again", ["c100", "101500044d515454051e003c000001610000017700016d"])
def test_an_accepted_client_that_then_breaks_a_rule_gets_no_second_connack(
    version: int, again: str
) -> None:
    """[MQTT-3.2.0-2]: by wrong flags or a broken CONNECT, in one piece with the first"""
    client = World().open(version)
    first = encode(Connect("a", version=version), version)
    answer = client.send_bytes(first + bytes.fromhex(again))
    assert [packet.reason for packet in answer if isinstance(packet, ConnAck)] == [0]
    assert client.is_closed()


@VERSIONS
@pytest.mark.parametrize("code", [0x01, 0x8E, 0xFF])
def test_a_code_that_connack_does_not_have_still_refuses(version: int, code: int) -> None:
    """Class 12: an Authority that is wrong about its code does not open the door"""

    class Wrong(Authority):
        def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
            return code

    world = World(authority=Wrong())
    client = world.open(version)
    (connack,) = client.send(Connect("a", version=version, will=Will("t", b"x")))
    assert isinstance(connack, ConnAck)
    assert connack.reason == (0x80 if version == MQTT5 else 5)
    assert client.is_closed()
    assert world.broker.router.sessions == {}
    other = World(authority=Refusing(0)).connect("a", version)
    assert other.send(PingReq()) == [PingResp()]

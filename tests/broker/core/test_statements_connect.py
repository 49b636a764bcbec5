"""What the standard's chapter 3.1 and 3.2 have the broker do: CONNECT and its answer."""

import pytest

from semel.broker.authority import Authority, Denied, Proof
from semel.broker.identity import Identity, PeerInfo
from semel.broker.settings import BrokerSettings
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
    Publish,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from semel.mqtt.packet_types import CONNACK
from semel.mqtt.reasons import FAILURE, REASONS_5
from tests.broker.core.test_core import KEPT, VERSIONS, payloads, persistent
from tests.broker.world import Client, World

# In 5.0 the codes with which a CONNECT can be refused.
REFUSALS = sorted(code for code in REASONS_5[CONNACK] if code >= FAILURE)
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Refusing(Authority):
    """Refuses one ClientId with one code."""

    def __init__(self, code: int, client_id: str = "bad") -> None:
        self.code = code
        self.client_id = client_id

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        return (
            Denied(self.code)
            if packet.client_id == self.client_id
            else super().connect(packet, peer)
        )


def watcher_of(world: World, topic_filter: str) -> Client:
    """A client that sees what is published there."""
    client = world.connect("watcher")
    client.subscribe(topic_filter, qos=2)
    return client


# --- the first packet -----------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize(
    "packet",
    [
        PingReq(),
        Publish("t", b"x", retain=True),
        PubRel(1),
        Subscribe(1, [Subscription("t")]),
        Unsubscribe(1, ["t"]),
        Disconnect(),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_anything_but_connect_first_closes_and_does_nothing(version: int, packet: Packet) -> None:
    """[MQTT-3.1.0-1] of both versions"""
    world = World()
    client = world.open(version)
    assert client.send(packet, Connect("a", version=version)) == []
    assert client.is_closed()
    assert world.broker.router.sessions == {}
    assert len(world.broker.router.retained) == 0
    # After a CONNECT the same packet is taken, and is the end only of who says DISCONNECT.
    right = world.connect("a", version)
    right.send(packet)
    assert right.is_closed() == isinstance(packet, Disconnect)


@VERSIONS
def test_a_right_connect_is_answered_by_connack_0_and_nothing_else(version: int) -> None:
    """[MQTT-3.1.4-4] (3.1.1) [MQTT-3.1.4-5] (5.0); a refused one gets no code 0"""
    world = World(authority=Refusing(0x87))
    accepted, refused = world.open(version), world.open(version)
    (connack,) = accepted.send(Connect("a", version=version))
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0
    (connack,) = refused.send(Connect("bad", version=version))
    assert isinstance(connack, ConnAck)
    assert connack.reason


# --- sessions -------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("clean_start", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_a_session_is_resumed_without_clean_start_and_session_present_says_so(
    version: int, clean_start: bool, stored: bool
) -> None:
    """[MQTT-3.1.4-3] [MQTT-3.2.2-2] [MQTT-3.2.2-3] (3.1.1)

    [MQTT-3.1.2-5] [MQTT-3.1.2-6] [MQTT-3.1.4-4] [MQTT-3.2.2-3] (5.0)
    """
    world = World()
    if stored:
        earlier = persistent(world, "a", version)
        earlier.subscribe("t", qos=1)
        earlier.cut()
    client = world.open(version)
    properties = KEPT if version == MQTT5 else Properties()
    (connack,) = client.send(
        Connect("a", version=version, clean_start=clean_start, properties=properties)
    )
    assert isinstance(connack, ConnAck)
    resumed = stored and not clean_start
    assert (connack.reason, connack.session_present) == (0, resumed)
    world.connect("p").send(Publish("t", b"x"))
    assert payloads(client.take()) == ([b"x"] if resumed else [])


@VERSIONS
def test_a_clean_start_leaves_nothing_of_the_old_session_to_any_later_one(version: int) -> None:
    """[MQTT-3.1.2-6] (3.1.1) [MQTT-3.1.2-4] (5.0)"""
    world = World()
    publisher = world.connect("p")
    for begins_clean in (False, True):
        client = persistent(world, "a", version)
        client.subscribe("t", qos=1)
        client.cut()
        publisher.send(Publish("t", b"queued", qos=1, packet_id=1))
        if begins_clean:
            world.connect("a", version).cut()
        client = persistent(world, "a", version, present=not begins_clean)
        assert payloads(client.take()) == ([] if begins_clean else [b"queued"])
        publisher.send(Publish("t", b"live"))
        assert payloads(client.take()) == ([] if begins_clean else [b"live"])
        client.send(Disconnect())
        world.connect("a", version).send(Disconnect())


@VERSIONS
def test_a_session_belongs_to_its_client_id(version: int) -> None:
    """[MQTT-3.1.3-2]"""
    world = World()
    client = persistent(world, "a", version)
    client.subscribe("t", qos=1)
    client.cut()
    world.connect("p").send(Publish("t", b"for a", qos=1, packet_id=1))
    for other in ("b", "A", "a ", "aa"):
        assert persistent(world, other, version).take() == []
    assert payloads(persistent(world, "a", version, present=True).take()) == [b"for a"]


@VERSIONS
def test_connack_comes_before_everything_that_a_resumed_session_owes(version: int) -> None:
    """[MQTT-3.2.0-1]"""
    world = World()
    client = persistent(world, "a", version)
    client.subscribe("t", qos=2)
    publisher = world.connect("p")
    publisher.send(Publish("t", b"1", qos=2, packet_id=1))
    client.cut()
    publisher.send(Publish("t", b"2", qos=1, packet_id=2))
    client = world.open(version)
    properties = KEPT if version == MQTT5 else Properties()
    packets = client.send(Connect("a", version=version, clean_start=False, properties=properties))
    assert [type(packet) for packet in packets] == [ConnAck, Publish, Publish]
    # Nor does anything reach a client that has not said CONNECT.
    silent = world.open(version)
    publisher.send(Publish("t", b"3"))
    assert silent.take() == []


# --- client identifiers ---------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("length", range(1, 24))
def test_every_client_id_of_1_to_23_letters_and_digits_is_accepted(
    version: int, length: int
) -> None:
    """[MQTT-3.1.3-5]"""
    world = World()
    for start in range(0, len(LETTERS), length):
        client_id = (LETTERS * 2)[start : start + length]
        assert not world.connect(client_id, version).is_closed()


@VERSIONS
def test_clients_without_a_client_id_are_two_clients(version: int) -> None:
    """[MQTT-3.1.3-6]; clients with the same one are not"""
    world = World()
    first, second = world.connect("", version), world.connect("", version)
    for client in (first, second):
        client.subscribe("t")
    world.connect("p").send(Publish("t", b"x"))
    assert payloads(first.take()) == payloads(second.take()) == [b"x"]
    assert not first.is_closed()
    third = world.connect("same", version)
    world.connect("same", version)
    assert third.is_closed()


def test_an_assigned_client_id_is_told_and_is_the_sessions_name_from_then_on() -> None:
    """[MQTT-3.1.3-7]; a client that has one is told nothing"""
    world = World()
    client = world.open()
    (connack,) = client.send(Connect("", properties=KEPT))
    assert isinstance(connack, ConnAck)
    assigned = connack.properties.assigned_client_identifier
    assert assigned
    client.subscribe("t", qos=1)
    client.cut()
    world.connect("p").send(Publish("t", b"x", qos=1, packet_id=1))
    again = world.open()
    connack, message = again.send(Connect(assigned, clean_start=False, properties=KEPT))
    assert isinstance(connack, ConnAck)
    assert connack.session_present
    assert connack.properties.assigned_client_identifier is None
    assert payloads([message]) == [b"x"]


@VERSIONS
def test_a_client_id_that_is_not_wanted_gets_the_code_for_it_and_is_closed(version: int) -> None:
    """[MQTT-3.1.3-9] (3.1.1) [MQTT-3.1.3-8] (5.0)"""
    world = World(authority=Refusing(0x85))
    client = world.open(version)
    code = 0x85 if version == MQTT5 else 2
    assert client.send(Connect("bad", version=version)) == [ConnAck(code)]
    assert client.is_closed()
    assert not world.connect("good", version).is_closed()


# --- refusals -------------------------------------------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("code", REFUSALS, ids=hex)
def test_a_refused_client_is_told_with_a_code_of_its_version_and_closed(
    version: int, code: int
) -> None:
    """[MQTT-3.2.2-5] [MQTT-3.2.2-6] U3-06 (3.1.1) [MQTT-3.2.2-7] [MQTT-3.1.4-2] (5.0)"""
    world = World(authority=Refusing(code))
    client = world.open(version)
    (connack,) = client.send(Connect("bad", version=version))
    assert isinstance(connack, ConnAck)
    assert not connack.session_present
    assert connack.reason == code if version == MQTT5 else 1 <= connack.reason <= 5
    assert client.is_closed()
    assert "bad" not in world.broker.router.sessions
    assert not world.connect("good", version).is_closed()


@VERSIONS
@pytest.mark.parametrize("refused", [True, False])
def test_what_follows_connect_in_one_piece_counts_only_if_it_is_accepted(
    version: int, refused: bool
) -> None:
    """[MQTT-3.1.4-5] (3.1.1) [MQTT-3.1.4-6] (5.0)"""
    world = World(authority=Refusing(0x86))
    watcher = watcher_of(world, "t")
    client = world.open(version)
    client.send(
        Connect("bad" if refused else "good", version=version),
        Publish("t", b"x", retain=True),
        Subscribe(1, [Subscription("t")]),
    )
    assert client.is_closed() == refused
    assert len(watcher.take()) == len(world.broker.router.retained) == (0 if refused else 1)


def test_a_connection_is_closed_although_its_refusal_does_not_fit() -> None:
    """[MQTT-4.13.2-1]: a CONNACK of 5 bytes for a client that takes 4, and one that takes 5"""
    world = World(authority=Refusing(0x87))
    for limit, answer in ((4, []), (5, [ConnAck(0x87)])):
        client = world.open()
        properties = Properties(maximum_packet_size=limit)
        assert client.send(Connect("bad", properties=properties)) == answer
        assert client.is_closed()


def test_a_disconnect_of_the_broker_is_the_last_packet_and_the_connection_is_closed() -> None:
    """[MQTT-3.14.4-2] [MQTT-4.13.2-1]: a protocol error, silence, a take-over, the end"""
    for code in (0x82, 0x8D, 0x8E, 0x8B):
        world = World()
        client, other = world.connect("a", keep_alive=2), world.connect("o")
        client.subscribe("t")
        other.subscribe("t")
        packets: list[Packet] = []
        if code == 0x82:
            packets += client.send(Connect("a"), PingReq())
        elif code == 0x8D:
            world.wait(3)
        elif code == 0x8E:
            world.connect("a")
        assert other.is_closed() is False
        world.connect("p").send(Publish("t", b"late"))
        assert payloads(other.take()) == [b"late"]
        if code == 0x8B:
            packets += client.take()
            world.broker.stop(world.now)
            world.tick()
        packets += client.send(PingReq())
        last = packets[-1]
        assert isinstance(last, Disconnect)
        assert last.reason == code
        assert payloads(packets) == ([b"late"] if code == 0x8B else [])
        assert client.is_closed()


# --- keep alive -----------------------------------------------------------------------------------


def test_without_a_server_keep_alive_the_clients_own_one_counts() -> None:
    """[MQTT-3.2.2-22]; and a Keep Alive of 0 is never enforced"""
    world = World()
    clients = {}
    for seconds in (0, 10, 20):
        client = world.open()
        (connack,) = client.send(Connect(f"c{seconds}", keep_alive=seconds))
        assert isinstance(connack, ConnAck)
        assert connack.properties.server_keep_alive is None
        clients[seconds] = client
    open_after = []
    for _ in range(4):
        world.wait(10)
        open_after.append([s for s, client in clients.items() if not client.is_closed()])
    assert open_after == [[0, 10, 20], [0, 20], [0], [0]]


# --- wills ----------------------------------------------------------------------------------------


@VERSIONS
def test_a_will_is_published_once(version: int) -> None:
    """[MQTT-3.1.2-10]: gone when it is published, and when DISCONNECT has come"""
    world = World()
    watcher = watcher_of(world, "gone")
    properties = KEPT if version == MQTT5 else None
    will = Will("gone", b"bye")
    client = world.connect("a", version, clean_start=False, will=will, properties=properties)
    client.cut()
    assert payloads(watcher.take()) == [b"bye"]
    world.wait(10)
    persistent(world, "a", version, present=True).cut()
    world.connect("a", version).cut()
    client = world.connect("a", version, clean_start=False, will=will, properties=properties)
    client.send(Disconnect())
    client.cut()
    persistent(world, "a", version, present=True).cut()
    world.wait(10)
    assert watcher.take() == []


@VERSIONS
def test_nothing_is_published_for_a_connection_without_a_will(version: int) -> None:
    """[MQTT-3.1.2-12] (3.1.1), also if an earlier connection of the session had one"""
    world = World()
    watcher = watcher_of(world, "#")
    properties = KEPT if version == MQTT5 else None
    will = Will("gone", b"bye")
    world.connect("a", version, clean_start=False, will=will, properties=properties).send(
        Disconnect()
    )
    persistent(world, "a", version, present=True).cut()
    assert watcher.take() == []
    world.connect("a", version, will=will).cut()
    assert payloads(watcher.take()) == [b"bye"]


@pytest.mark.parametrize("seconds", [2, 5])
def test_a_session_resumed_without_a_will_has_none_of_the_old_one(seconds: int) -> None:
    """[MQTT-3.1.3-9]: before the delay of 5 seconds is over; later the will has been sent"""
    world = World()
    watcher = watcher_of(world, "gone")
    will = Will("gone", b"bye", properties=Properties(will_delay_interval=5))
    world.connect("a", will=will, properties=KEPT).cut()
    world.wait(seconds)
    persistent(world, "a", MQTT5, present=True).cut()
    world.wait(10)
    assert payloads(watcher.take()) == ([b"bye"] if seconds == 5 else [])


@VERSIONS
@pytest.mark.parametrize("retain", [False, True])
def test_a_will_is_retained_if_it_says_so(version: int, retain: bool) -> None:
    """[MQTT-3.1.2-16] [MQTT-3.1.2-17] (3.1.1) [MQTT-3.1.2-14] [MQTT-3.1.2-15] (5.0)"""
    world = World()
    watcher = watcher_of(world, "gone")
    world.connect("a", version, will=Will("gone", b"bye", qos=1, retain=retain)).cut()
    assert payloads(watcher.take()) == [b"bye"]
    late = world.connect("late", version)
    expected = [Publish("gone", b"bye", qos=1, packet_id=1, retain=True)] if retain else []
    assert late.subscribe("gone", qos=1) == expected


def test_user_properties_of_a_will_keep_their_order() -> None:
    """[MQTT-3.1.3-10], whether the will is delayed or not, and the delay is not sent on"""
    world = World()
    watcher = watcher_of(world, "gone")
    pairs = [("b", "1"), ("a", "2"), ("b", "3"), ("a", "2")]
    for delay in (None, 2):
        properties = Properties(will_delay_interval=delay, user_properties=pairs)
        will = Will("gone", b"bye", properties=properties)
        world.connect("a", will=will, properties=KEPT).cut()
        world.wait(2)
        expected = Publish("gone", b"bye", properties=Properties(user_properties=pairs))
        assert watcher.take() == [expected]


@VERSIONS
def test_a_disconnect_with_wrong_flags_is_an_abnormal_end(version: int) -> None:
    """[MQTT-3.14.1-1]: the connection closes, the will is published"""
    world = World()
    watcher = watcher_of(world, "gone")
    client = world.connect("a", version, will=Will("gone", b"bye"))
    answer = client.send_bytes(b"\xe1\x00")
    assert client.is_closed()
    codes = [packet.reason for packet in answer if isinstance(packet, Disconnect)]
    assert codes == ([0x81] if version == MQTT5 else [])
    assert payloads(watcher.take()) == [b"bye"]
    world.connect("a", version, will=Will("gone", b"bye")).send_bytes(b"\xe0\x00")
    assert watcher.take() == []


@VERSIONS
def test_a_disconnect_right_behind_connect_takes_the_will_back(version: int) -> None:
    """[MQTT-3.14.4-3], before CONNACK could arrive"""
    world = World()
    watcher = watcher_of(world, "gone")
    connect = Connect("a", version=version, will=Will("gone", b"bye"))
    client = world.open(version)
    client.send(connect, Disconnect())
    client.cut()
    assert watcher.take() == []
    client = world.open(version)
    client.send(connect)
    client.cut()
    assert payloads(watcher.take()) == [b"bye"]


def test_a_disconnect_that_would_revive_the_session_does_not_take_the_will_back() -> None:
    """U5-70: after an expiry of 0 in CONNECT; 3,600 may become 10"""
    for first, published in ((0, [b"bye"]), (3_600, [])):
        world = World()
        watcher = watcher_of(world, "gone")
        properties = Properties(session_expiry_interval=first)
        client = world.connect("a", will=Will("gone", b"bye"), properties=properties)
        client.send_bytes(bytes.fromhex("e0070005110000000a"))
        assert client.is_closed()
        assert payloads(watcher.take()) == published
        assert ("a" in world.broker.router.sessions) == bool(first)


# --- one connection's trouble ---------------------------------------------------------------------


@VERSIONS
def test_a_packet_without_room_for_it_closes_the_connection_it_came_on(version: int) -> None:
    """[MQTT-4.8.0-2] (3.1.1): more than the broker has a buffer for"""
    world = World(BrokerSettings(maximum_packet_size=100))
    watcher = watcher_of(world, "t")
    client = world.connect("a", version)
    client.send(Publish("t", bytes(90)))
    assert not client.is_closed()
    client.send(Publish("t", bytes(101)))
    assert client.is_closed()
    assert payloads(watcher.take()) == [bytes(90)]
    assert watcher.send(PingReq()) == [PingResp()]


def test_the_versions_are_told_apart_by_the_level_alone() -> None:
    """[MQTT-3.1.2-2] (5.0): a level that is neither 4 nor 5 closes"""
    for level in range(256):
        world = World()
        client = world.open(MQTT5 if level == MQTT5 else MQTT311)
        body = bytes.fromhex("00044d515454") + bytes([level]) + bytes.fromhex("02003c")
        body += b"\x00" if level == MQTT5 else b""
        body += b"\x00\x01a"
        (connack,) = client.send_bytes(bytes([0x10, len(body)]) + body)
        assert isinstance(connack, ConnAck)
        supported = level in (MQTT311, MQTT5)
        assert (connack.reason == 0) == supported
        assert client.is_closed() != supported

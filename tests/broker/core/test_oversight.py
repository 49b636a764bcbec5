"""What an operator imposes on clients, and what the audit log is told about them."""

import json

import pytest

from semel.broker.audit_events import Event, shortened
from semel.broker.authority import Authority, Denied, Proof
from semel.broker.bans import ADDRESS, CLIENT, USER, Ban
from semel.broker.identity import HOOK, Identity, PeerInfo, identity_of
from semel.broker.inspection import (
    broker_values,
    client_details,
    client_values,
    retained_values,
    session_values,
    subscription_values,
    traffic_values,
)
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    Properties,
    Publish,
    Will,
)
from tests.broker.world import Client, World

BY_NAME = Properties(session_expiry_interval=60)


class ByUserName(Authority):
    """Who gives a user name is that user; nobody else may connect."""

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied:
        if packet.user_name is None or packet.password != b"right":
            return Denied(0x86, "wrong password")
        return identity_of(packet.client_id, peer, user_name=packet.user_name, proof=HOOK)


class Undecided(Authority):
    """Nobody can prove who it is in time."""

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        return Proof()


def with_audit(world: World) -> list[Event]:
    events: list[Event] = []
    world.broker.oversight.audit.write = events.append
    return events


def log_in(world: World, user: str, *, password: bytes = b"right") -> tuple[Client, ConnAck]:
    client = world.open(peer="10.0.0.7:99")
    (connack,) = client.send(
        Connect(f"of-{user[:9]}", user_name=user, password=password, version=MQTT5)
    )
    assert isinstance(connack, ConnAck)
    return client, connack


def test_a_banned_user_is_refused_after_it_has_proved_who_it_is() -> None:
    world = World(authority=ByUserName())
    world.broker.oversight.bans.add(Ban(USER, "eve"), world.now)
    # Somebody who only claims to be eve does not learn of the ban.
    assert log_in(world, "eve", password=b"wrong")[1].reason == 0x86
    assert log_in(world, "eve")[1].reason == 0x8A
    assert log_in(world, "adam")[1].reason == 0


def test_a_banned_client_is_refused_before_it_may_prove_who_it_is() -> None:
    world = World(authority=Undecided())
    world.broker.oversight.bans.add(Ban(CLIENT, "bad"), world.now)
    (connack,) = world.open().send(Connect("bad", version=MQTT5))
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0x8A
    assert world.broker.take_proofs() == []


# --- draining -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "refused", "disconnected"), [(None, 0x88, 0x8B), ("b.example", 0x9C, 0x9C)]
)
def test_a_drained_broker_refuses_clients_and_disconnects_the_others(
    reference: str | None, refused: int, disconnected: int
) -> None:
    world = World()
    clients = [world.connect(f"c{number}") for number in range(5)]
    old = world.connect("old", MQTT311)
    draining = world.broker.oversight.draining
    draining.start(reference)
    newcomer = world.open()
    (connack,) = newcomer.send(Connect("new", version=MQTT5))
    assert isinstance(connack, ConnAck)
    assert (connack.reason, connack.properties.server_reference) == (refused, reference)
    newcomer = world.open(MQTT311)
    (connack,) = newcomer.send(Connect("new", version=MQTT311))
    assert isinstance(connack, ConnAck)
    assert connack.reason == 3
    assert world.broker.actions.drain(2, world.now) == 4
    world.tick()
    (packet,) = clients[0].take()
    assert packet == Disconnect(disconnected, properties=Properties(server_reference=reference))
    assert [each.is_closed() for each in clients] == [True, True, False, False, False]
    assert world.broker.actions.drain(9, world.now) == 0
    world.tick()
    assert old.is_closed()
    draining.cancel()
    world.connect("new")


# --- actions --------------------------------------------------------------------------------------


def test_a_client_is_disconnected_and_keeps_its_session() -> None:
    world = World()
    client = world.connect("a", properties=BY_NAME)
    actions = world.broker.actions
    assert actions.disconnect("a", 0x98, world.now, "by hand")
    world.tick()
    assert client.take() == [Disconnect(0x98, properties=Properties(reason_string="by hand"))]
    assert client.is_closed()
    assert not actions.disconnect("a", 0x98, world.now)
    assert not actions.disconnect("nobody", 0x98, world.now)
    assert "a" in world.broker.router.sessions


@pytest.mark.parametrize("expiry", [0, 60])
def test_a_deleted_session_is_gone_and_its_client_is_disconnected(expiry: int) -> None:
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("will")
    will = Will("will", b"gone")
    client = world.connect("a", will=will, properties=Properties(session_expiry_interval=expiry))
    assert world.broker.actions.delete_session("a", world.now)
    world.tick()
    assert client.is_closed()
    assert watcher.take() == [Publish("will", b"gone")]
    assert "a" not in world.broker.router.sessions
    assert not world.broker.actions.delete_session("a", world.now)
    world.connect("a", clean_start=False)


def test_a_deleted_retained_message_is_gone_and_subscribers_get_an_empty_one() -> None:
    world = World()
    client = world.connect("a")
    client.send(Publish("t", b"kept", retain=True))
    client.subscribe("t")
    client.take()
    assert world.broker.actions.delete_retained("t", world.now)
    world.tick()
    assert client.take() == [Publish("t", b"")]
    assert world.broker.router.retained.get("t") is None
    assert not world.broker.actions.delete_retained("t", world.now)
    world.wait(1.0)
    assert world.broker.router.retained.get("$SYS/broker/version") is not None
    assert not world.broker.actions.delete_retained("$SYS/broker/version", world.now)


def test_who_is_connected_is_disconnected_by_a_ban() -> None:
    world = World(authority=ByUserName())
    eve, _ = log_in(world, "eve")
    adam, _ = log_in(world, "adam")
    silent = world.open(peer="10.5.5.5:1")
    bans, actions = world.broker.oversight.bans, world.broker.actions
    bans.add(Ban(USER, "eve", reason="no"), world.now)
    bans.add(Ban(ADDRESS, "10.5.0.0/16"), world.now)
    numbers = [*world.broker.connections, 99]
    assert actions.enforce_bans(numbers, world.now) == 2
    assert actions.enforce_bans(numbers, world.now) == 0
    world.tick()
    reason = "this user is banned: no"
    assert eve.take() == [Disconnect(0x98, properties=Properties(reason_string=reason))]
    assert silent.is_closed()
    assert not adam.is_closed()


def test_without_a_store_nothing_is_uncommitted() -> None:
    actions = World().broker.actions
    assert actions.last_uncommitted() == 0
    assert actions.is_committed(0)
    assert not actions.is_committed(1)


# --- audit ----------------------------------------------------------------------------------------


def test_the_audit_log_is_told_who_came_and_went() -> None:
    world = World(authority=ByUserName())
    events = with_audit(world)
    client, _ = log_in(world, "adam")
    client.send(Disconnect(0x04))
    assert events == [
        {
            "event": "connected",
            "address": "10.0.0.7:99",
            "listener": "default",
            "client": "of-adam",
            "user": "adam",
            "proof": "hook",
            "certificate": None,
            "groups": [],
            "version": "5.0",
        },
        {
            "event": "disconnected",
            "address": "10.0.0.7:99",
            "listener": "default",
            "client": "of-adam",
            "user": "adam",
            "proof": "hook",
            "detail": "disconnected by the client, 0x04",
        },
    ]


def test_the_audit_log_is_told_who_was_refused_and_never_a_secret() -> None:
    world = World(authority=ByUserName())
    events = with_audit(world)
    token = "eyJ" + "secret" * 20
    log_in(world, token, password=b"hunter2")
    (event,) = events
    assert (event["event"], event["reason"], event["detail"]) == (
        "refused",
        "0x86",
        "wrong password",
    )
    assert event["user"] == f"{token[:32]}… of {len(token)} characters"
    assert "hunter2" not in json.dumps(event)
    assert token not in json.dumps(event)
    assert shortened("adam", 4) == "adam"
    assert shortened(None, 4) is None
    world.broker.oversight.audit.refused_peer("10.0.0.1:9", "default", "banned")
    assert events[1] == {
        "event": "refused",
        "address": "10.0.0.1:9",
        "listener": "default",
        "detail": "banned",
    }


def test_the_audit_log_is_told_which_connection_was_closed_before_it_was_connected() -> None:
    world = World(BrokerSettings(maximum_unconnected=2))
    events = with_audit(world)
    world.open(peer="10.0.0.1:1").send_bytes(bytes.fromhex("10020000"))
    world.open(peer="10.0.0.2:1").send(PingReq())
    # It is closed while it waits for more, or for its turn.
    oldest, late = world.open(peer="10.0.0.3:1"), world.open(peer="10.0.0.4:1")
    newest = world.open(peer="10.0.0.5:1")
    newest.cut()
    world.tick()
    assert (oldest.is_closed(), late.is_closed()) == (True, False)
    world.wait(world.broker.settings.connect_timeout)
    assert late.is_closed()
    world.broker._connections.drop(late.connection, world.now)
    for each in events:
        assert (each["event"], each["listener"]) == ("refused", "default")
        assert "client" not in each
    found = [(each["address"], str(each["detail"]).partition(":")[0]) for each in events]
    assert found == [
        ("10.0.0.1:1", "PROTOCOL_NAME_IS_MQTT"),
        ("10.0.0.2:1", "CONNECT_FIRST"),
        ("10.0.0.3:1", "0x97, it had not connected yet"),
        ("10.0.0.4:1", "not connected within connect_timeout"),
    ]


def test_the_audit_log_is_told_once_who_broke_a_rule_while_connected_or_connecting() -> None:
    world = World()
    events = with_audit(world)
    world.connect("a").send_bytes(bytes.fromhex("10020000"))
    assert [each["event"] for each in events] == ["connected", "disconnected"]
    events.clear()
    waiting = World(authority=Undecided())
    events = with_audit(waiting)
    client = waiting.open()
    client.send(Connect("b" * 100, user_name="eve"))
    assert events == []
    waiting.wait(waiting.broker.settings.connect_timeout)
    (event,) = events
    assert event["client"] == "b" * 64 + "… of 100 characters"
    assert (event["user"], event["detail"]) == ("eve", "not connected within connect_timeout")
    # A client that leaves by itself was not refused.
    events.clear()
    waiting.open().cut()
    assert events == []


def test_the_audit_log_is_told_why_a_client_has_left() -> None:
    world = World()
    events = with_audit(world)
    world.connect("lost").cut()
    world.connect("taken")
    world.connect("taken")
    world.broker.actions.disconnect("taken", 0x98, world.now, "by hand")
    client = world.connect("failed")
    world.broker._connections.close_failed(client.connection, "Traceback", world.now)
    dropped = world.connect("dropped")
    world.broker._connections.drop(dropped.connection, world.now)
    slow = world.connect("slow")
    slow.unread = 2 * world.broker.settings.maximum_outgoing_bytes
    world.flush()
    slow.send(PingReq())
    found = [each["detail"] for each in events if each["event"] == "disconnected"]
    assert found == [
        "lost its connection",
        "0x8e",
        "0x98, by hand",
        "serving it failed",
        "closed by the broker",
        "it reads too slowly",
    ]


def test_the_audit_log_is_told_that_rights_have_changed() -> None:
    authority = Authority()
    world = World(authority=authority)
    world.broker.oversight.audit.rights_changed()
    events = with_audit(world)
    world.tick()
    assert events == []
    authority.generation += 1
    world.tick()
    world.tick()
    assert events == [{"event": "rights_changed"}]


def test_without_an_audit_log_nothing_is_told() -> None:
    world = World(authority=ByUserName())
    log_in(world, "adam")[0].cut()
    log_in(world, "eve", password=b"no")
    world.broker.oversight.audit.refused_peer("10.0.0.1:9", "default", "banned")
    world.open().send(PingReq())


# --- inspection -----------------------------------------------------------------------------------


def test_a_client_is_described_with_what_has_passed() -> None:
    world = World()
    client = world.connect("a", MQTT311, keep_alive=9)
    client.send(Publish("t", b"1"), Publish("t", b"2"))
    world.now += 5.0
    state = client.connection.state
    assert state is not None
    values = client_details(client.connection, state, world.now)
    assert json.loads(json.dumps(values)) == values
    assert values["client"] == "a"
    assert values["version"] == "3.1.1"
    assert values["messages_received"] == 2
    assert values["bytes_received"] == client.connection.bytes_received > 10
    assert values["bytes_sent"] == 4
    assert (values["connected_seconds"], values["silent_seconds"]) == (5.0, 5.0)
    assert values["keep_alive"] == 9
    assert values["paused"] is None
    assert values["credentials_expire_seconds"] is None
    state.set_owner(Identity("a", expires_at=world.now + 7))
    assert client_details(client.connection, state, world.now)["credentials_expire_seconds"] == 7
    for name, why in (
        ("paused_by_reader", "a subscriber of its messages is behind"),
        ("paused_by_store", "the store is behind"),
        ("paused_by_rate", "it exceeds its rate"),
    ):
        setattr(client.connection, name, True)
        assert client_values(client.connection, state, world.now)["paused"] == why
        setattr(client.connection, name, False)
    assert world.connect("b").connection.exchange.version == MQTT5


@pytest.mark.parametrize("is_hot", [True, False])
@pytest.mark.parametrize("qos", [0, 1])
def test_messages_to_a_client_are_counted_per_connection(qos: int, is_hot: bool) -> None:
    world = World()
    if not is_hot:
        world.broker.hot_path = None
    keeps = Properties(session_expiry_interval=60)
    reader = world.connect("reader", clean_start=False, properties=keeps)
    reader.subscribe("t", qos=qos)
    writer = world.connect("writer")
    packets = [Publish("t", b"x", qos=qos, packet_id=number if qos else 0) for number in (1, 2, 3)]
    # The first one is routed plainly, and the others may be a run.
    writer.send(packets[0])
    writer.send(*packets[1:])
    state = reader.connection.state
    assert state is not None
    values = client_values(reader.connection, state, world.now)
    assert (values["messages_sent"], values["messages_received"]) == (3, 0)
    assert world.broker.counters.messages_sent == 3
    assert (world.broker.hot_path is None) is not is_hot
    reader.cut()
    again = world.connect("reader", clean_start=False, properties=keeps, present=True)
    # What was not acknowledged is sent again.
    assert state.messages_sent == len(again.inbox) == 3 * qos


def test_a_message_on_a_connection_that_is_closing_counts_for_no_session() -> None:
    world = World()
    client = world.connect("a")
    state = client.connection.state
    assert state is not None
    connections = world.broker._connections
    connections.send(client.connection, Publish("t", b"last"))
    connections.drop(client.connection, world.now)
    world.tick()
    assert client.take() == [Publish("t", b"last")]
    assert state.messages_sent == 0


def test_a_session_is_described_with_what_it_has() -> None:
    world = World()
    client = world.connect("a", properties=BY_NAME)
    client.subscribe("t/#", "$share/g/x", qos=1)
    state = world.broker.router.sessions["a"]
    values = session_values(state, world.now)
    assert (values["connected"], values["subscriptions"]) == (True, 2)
    assert (values["expiry_interval"], values["expires_seconds"]) == (60, None)
    client.cut()
    world.connect("b").send(Publish("t/1", b"kept", qos=1, packet_id=1))
    world.now += 10.0
    values = session_values(state, world.now)
    assert (values["connected"], values["expires_seconds"]) == (False, 50.0)
    assert (values["queued_messages"], values["inflight_messages"]) == (1, 0)
    assert json.loads(json.dumps(values)) == values
    forever = world.connect("c", properties=Properties(session_expiry_interval=0xFFFF_FFFF))
    assert forever.connection.state is not None
    forever.connection.state.expiry_interval = 0xFFFF_FFFF
    assert session_values(forever.connection.state, world.now)["expiry_interval"] is None


def test_subscriptions_and_retained_messages_are_described() -> None:
    world = World()
    client = world.connect("a")
    client.subscribe("t/#", qos=1)
    (entry,) = world.broker.router.subscriptions.of("a")
    assert subscription_values(entry) == {
        "client": "a",
        "filter": "t/#",
        "qos": 1,
        "no_local": False,
        "retain_as_published": False,
        "identifier": None,
    }
    expiring = Properties(message_expiry_interval=30)
    client.send(Publish("r", b"kept", retain=True, properties=expiring))
    message = world.broker.router.retained.get("r")
    assert message is not None
    described = {"topic": "r", "qos": 0, "bytes": 4, "expires_seconds": 30.0}
    assert retained_values(message, world.now) == described
    client.send(Publish("r", b"kept", retain=True))
    message = world.broker.router.retained.get("r")
    assert message is not None
    assert retained_values(message, world.now)["expires_seconds"] is None


def test_the_broker_is_described_by_totals() -> None:
    world = World()
    world.connect("a").subscribe("t/#")
    world.connect("b", properties=BY_NAME).cut()
    world.broker.oversight.bans.add(Ban(CLIENT, "x"), world.now)
    values = broker_values(world.broker, world.now)
    assert json.loads(json.dumps(values)) == values
    assert (values["clients"], values["sessions"], values["subscriptions"]) == (1, 2, 1)
    assert (values["bans"], values["draining"]) == (1, False)
    assert traffic_values(world.broker)["bytes_received"] == values["bytes_received"]

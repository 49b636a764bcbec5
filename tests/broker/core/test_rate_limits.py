"""Connections, messages and bytes per listener, address and user."""

import pytest

from semel.broker.authority import Authority, Denied, Proof
from semel.broker.connection import Connection
from semel.broker.identity import PASSWORD, Identity, PeerInfo, identity_of
from semel.broker.listener_limits import ListenerLimits
from semel.broker.rate_limits import RateLimits, SharedBuckets, TokenBucket
from semel.broker.settings import BrokerSettings
from semel.mqtt import MQTT5, MQTT311, ConnAck, Connect, Decoder, PingReq, PingResp, Publish
from tests.broker.world import Client, World


def limits(
    listener: str = "public",
    *,
    maximum_connections: int = 0,
    maximum_connections_per_address: int = 0,
    messages_per_second: int = 0,
    bytes_per_second: int = 0,
    maximum_packet_size: int = 1_000,
    maximum_keep_alive: int = 0,
    topic_levels: int = 10,
    maximum_subscriptions: int = 10,
    maximum_inflight_messages: int = 10,
) -> ListenerLimits:
    return ListenerLimits(
        listener,
        maximum_connections=maximum_connections,
        maximum_connections_per_address=maximum_connections_per_address,
        connect_timeout=5.0,
        packet_timeout=5.0,
        maximum_packet_size=maximum_packet_size,
        before_connect_packet_size=500,
        receive_maximum=7,
        topic_alias_maximum=3,
        maximum_keep_alive=maximum_keep_alive,
        topic_levels=topic_levels,
        maximum_subscriptions=maximum_subscriptions,
        maximum_inflight_messages=maximum_inflight_messages,
        messages_per_second=messages_per_second,
        bytes_per_second=bytes_per_second,
    )


class Named(Authority):
    """Believes every user name."""

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        return identity_of(packet.client_id, peer, user_name=packet.user_name, proof=PASSWORD)


def open_at(
    world: World, chosen: ListenerLimits, peer: str = "192.0.2.1:9", version: int = MQTT5
) -> Client:
    connection = world.broker.opened(PeerInfo(peer, listener=chosen.listener), world.now, chosen)
    client = Client(world, connection, version, Decoder(version))
    world.clients.append(client)
    return client


def code(client: Client, client_id: str, user_name: str | None = None) -> int:
    packet = Connect(client_id, version=client.version, user_name=user_name)
    connack = client.send(packet)[0]
    assert isinstance(connack, ConnAck)
    return connack.reason


# --- connections ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "refused"), [(MQTT311, 3), (MQTT5, 0x89)])
def test_a_listener_has_its_own_limit_of_connections(version: int, refused: int) -> None:
    world = World()
    few, many = limits("few", maximum_connections=1), limits("many")
    first = open_at(world, few, version=version)
    assert code(first, "a") == 0
    assert code(open_at(world, few, version=version), "b") == refused
    assert code(open_at(world, many, version=version), "c") == 0
    first.cut()
    assert code(open_at(world, few, version=version), "b") == 0


def test_an_address_has_a_limit_of_connections_to_a_listener() -> None:
    world = World()
    two = limits(maximum_connections_per_address=2)
    clients = [open_at(world, two, f"192.0.2.1:{port}") for port in (1, 2, 3)]
    assert [code(each, each.connection.peer) for each in clients] == [0, 0, 0x89]
    assert code(open_at(world, two, "192.0.2.2:1"), "other") == 0
    assert code(open_at(world, limits("elsewhere"), "192.0.2.1:4"), "there") == 0
    clients[0].cut()
    assert code(open_at(world, two, "192.0.2.1:5"), "again") == 0


@pytest.mark.parametrize(("version", "refused"), [(MQTT311, 3), (MQTT5, 0x97)])
def test_a_user_has_a_limit_of_connections(version: int, refused: int) -> None:
    world = World(BrokerSettings(maximum_connections_per_user=1), Named())
    chosen = limits()
    first = open_at(world, chosen, version=version)
    assert code(first, "a", "ann") == 0
    assert code(open_at(world, chosen, version=version), "b", "ann") == refused
    assert code(open_at(world, chosen, version=version), "c", "bob") == 0
    # Anonymous clients are not one user.
    assert code(open_at(world, chosen, version=version), "d") == 0
    assert code(open_at(world, chosen, version=version), "e") == 0
    # Whoever takes over its own connection does not need a second one.
    assert code(open_at(world, chosen, version=version), "a", "ann") == 0
    assert first.is_closed()
    first.cut()
    arrivals = world.broker._connections.arrivals
    assert arrivals.by_user == {"ann": 1, "bob": 1}


def test_a_name_that_an_anonymous_client_claims_does_not_count_for_the_user() -> None:
    # The default authority believes nothing that a client says.
    world = World(BrokerSettings(maximum_connections_per_user=1, user_messages_per_second=1))
    first, second = open_at(world, limits()), open_at(world, limits())
    assert (code(first, "a", "ann"), code(second, "b", "ann")) == (0, 0)
    assert world.broker._connections.arrivals.by_user == {}
    first.send(*[Publish("t", b"x")] * 50)
    assert not first.connection.paused_by_rate


def test_taking_over_the_connection_of_another_user_does_not_count_for_this_one() -> None:
    world = World(BrokerSettings(maximum_connections_per_user=1), Named())
    assert code(open_at(world, limits()), "a", "ann") == 0
    assert code(open_at(world, limits()), "b", "bob") == 0
    assert code(open_at(world, limits()), "a", "bob") == 0x97


def test_nothing_is_counted_of_connections_that_are_gone() -> None:
    world = World(authority=Named())
    client = open_at(world, limits())
    assert code(client, "a", "ann") == 0
    client.cut()
    arrivals = world.broker._connections.arrivals
    assert (arrivals.by_listener, arrivals.by_address, arrivals.by_user) == ({}, {}, {})


def test_connack_announces_the_limits_of_the_listener() -> None:
    world = World()
    client = open_at(world, limits(maximum_keep_alive=30))
    (connack,) = client.send(Connect("a", keep_alive=60))
    assert isinstance(connack, ConnAck)
    properties = connack.properties
    assert (properties.receive_maximum, properties.topic_alias_maximum) == (7, 3)
    assert (properties.maximum_packet_size, properties.server_keep_alive) == (1_000, 30)
    assert client.connection.decoder.maximum_packet_size == 1_000


# --- rates ----------------------------------------------------------------------------------------


def flood(client: Client, count: int) -> None:
    client.send(*[Publish("t", b"x" * 10) for _ in range(count)])


def test_a_connection_above_its_rate_is_not_read_for_a_while_and_loses_nothing() -> None:
    world = World()
    watcher = world.connect("w")
    watcher.subscribe("t")
    client = open_at(world, limits(messages_per_second=10))
    assert code(client, "a") == 0
    flood(client, 10)
    assert not client.connection.is_waiting
    flood(client, 20)
    assert client.connection.paused_by_rate
    assert world.broker.rate_limits.next_due() == pytest.approx(world.now + 2.0)
    # What arrives nevertheless waits.
    watcher.take()
    client.send(PingReq())
    flood(client, 5)
    assert client.take() == []
    world.now += 1.9
    world.tick()
    assert client.connection.paused_by_rate
    world.now += 0.2
    world.tick()
    assert client.take() == [PingResp()]
    assert len(watcher.take()) == 5
    assert client.connection in world.broker.resumed


def test_bytes_are_limited_in_the_same_way() -> None:
    world = World()
    client = open_at(world, limits(bytes_per_second=200))
    assert code(client, "a") == 0
    flood(client, 50)
    assert client.connection.paused_by_rate
    world.wait(5)
    assert not client.connection.paused_by_rate


@pytest.mark.parametrize("kind", ["user", "address"])
@pytest.mark.parametrize("what", ["messages", "bytes"])
def test_the_clients_of_one_user_or_address_share_its_rate(kind: str, what: str) -> None:
    key = f"{kind}_{what}_per_second"
    settings = BrokerSettings(**{key: 200 if what == "bytes" else 10})  # type: ignore[arg-type]
    world = World(settings, Named())
    peers = ("192.0.2.1:1", "192.0.2.1:2", "192.0.2.9:1")
    users = ("ann", "ann", "bob")
    first, second, other = (open_at(world, limits(), peer) for peer in peers)
    for client, user_name in zip((first, second, other), users, strict=True):
        assert code(client, client.connection.peer, user_name) == 0
    world.wait(2)
    for client in (first, second, other):
        flood(client, 8)
    assert [each.connection.paused_by_rate for each in (first, second, other)] == [
        False,
        True,
        False,
    ]
    world.wait(30)
    assert not second.connection.paused_by_rate
    rates = world.broker.rate_limits
    buckets = (rates._user_messages, rates._user_bytes, rates._address_messages)
    assert [len(each) for each in (*buckets, rates._address_bytes)] == [0, 0, 0, 0]


def test_a_paused_client_is_not_silent_and_one_that_is_lost_is_forgotten() -> None:
    world = World()
    client = open_at(world, limits(messages_per_second=1))
    (connack,) = client.send(Connect("a", keep_alive=2))
    assert isinstance(connack, ConnAck)
    flood(client, 20)
    world.wait(10)
    assert not client.is_closed()
    client.cut()
    world.wait(20)
    assert world.broker.rate_limits.next_due() is None


def test_a_connection_that_closes_while_it_waits_is_not_continued() -> None:
    world = World()
    client = open_at(world, limits(messages_per_second=1))
    assert code(client, "a") == 0
    flood(client, 5)
    world.broker.disconnect(client.connection, 0x98, world.now)
    world.now += 10
    world.tick()
    assert client.connection not in world.broker.resumed


def test_who_is_paused_already_is_not_paused_twice() -> None:
    rates = RateLimits(BrokerSettings())
    peer = PeerInfo("192.0.2.1:1")
    connection = Connection(1, peer, 0.0, limits=limits(messages_per_second=1), maximum_items=9)
    rates.opened(connection, 0.0)
    rates.charge(connection, messages=5, size=0, now=0.0)
    rates.charge(connection, messages=5, size=0, now=0.0)
    assert rates.take_due(100.0) == [1]
    assert rates.take_due(100.0) == []


def test_without_limits_nothing_is_counted() -> None:
    world = World()
    flood(world.connect("a"), 100)
    assert not world.broker.rate_limits.is_active


def test_a_bucket_holds_one_second_and_a_debt_is_paid_at_its_rate() -> None:
    bucket = TokenBucket(10, 0.0)
    assert bucket.take(10, 0.0) == 0.0
    assert bucket.take(5, 0.0) == pytest.approx(0.5)
    assert bucket.take(0, 0.5) == 0.0
    assert not bucket.is_full(0.5)
    assert bucket.is_full(1.5)
    assert bucket.take(10, 100.0) == 0.0
    assert bucket.take(1, 100.0) == pytest.approx(0.1)


def test_buckets_without_a_rate_are_never_made() -> None:
    buckets = SharedBuckets(0)
    assert buckets.take("a", 1_000, 0.0) == 0.0
    assert len(buckets) == 0

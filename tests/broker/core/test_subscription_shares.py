"""Subscriptions of one user: limited over all of its sessions, and after a restart, too."""

import pytest

from semel.broker.settings import BrokerSettings
from semel.mqtt import MQTT5, MQTT311, Connect, Properties, SubAck, Subscribe, Subscription
from tests.broker.core.test_restart import Lasting
from tests.broker.core.test_retained_shares import Named
from tests.broker.world import Client, World

KEPT = Properties(session_expiry_interval=1_000)


def connect(
    world: World,
    client_id: str,
    user_name: str | None,
    *,
    peer: str = "192.0.2.1:1",
    version: int = MQTT5,
    clean_start: bool = False,
) -> Client:
    client = world.open(version, peer=peer)
    client.send(
        Connect(
            client_id,
            version=version,
            user_name=user_name,
            clean_start=clean_start,
            properties=KEPT if version == MQTT5 else Properties(),
        )
    )
    assert client.connection.is_connected
    return client


def codes(client: Client, *filters: str) -> list[int]:
    (suback,) = client.send(Subscribe(1, [Subscription(each, 0) for each in filters]))
    assert isinstance(suback, SubAck)
    return list(suback.reasons)


def limited(maximum: int) -> BrokerSettings:
    return BrokerSettings(maximum_subscriptions_per_user=maximum)


def counts(world: World) -> dict[str, int]:
    return world.broker.router.subscription_shares._counts


@pytest.mark.parametrize(("version", "refused"), [(MQTT311, 0x80), (MQTT5, 0x97)])
def test_a_user_has_so_many_subscriptions_over_all_sessions(version: int, refused: int) -> None:
    world = World(limited(3), Named())
    first = connect(world, "a", "ann", version=version)
    second = connect(world, "b", "ann", version=version, peer="192.0.2.2:1")
    assert codes(first, "1", "2") == [0, 0]
    assert codes(second, "1", "2") == [0, refused]
    # An existing one may be replaced, and others have their own.
    assert codes(second, "1") == [0]
    assert codes(connect(world, "c", "bob", version=version), "1", "2", "3") == [0, 0, 0]
    # A session that is not connected counts.
    first.cut()
    assert codes(second, "2") == [refused]
    assert counts(world) == {"user ann": 3, "user bob": 3}
    # A clean start ends it, with its subscriptions.
    connect(world, "a", "ann", version=version, clean_start=True)
    assert codes(second, "2", "3", "4") == [0, 0, refused]


def test_anonymous_clients_of_one_address_are_one_user() -> None:
    world = World(limited(1))
    assert codes(connect(world, "a", None), "1") == [0]
    assert codes(connect(world, "b", "a name of its own"), "1") == [0x97]
    assert codes(connect(world, "c", None, peer="192.0.2.2:1"), "1") == [0]


def test_an_ended_subscription_makes_room() -> None:
    world = World(limited(1), Named())
    client = connect(world, "a", "ann")
    assert codes(client, "1", "2") == [0, 0x97]
    world.broker.router.unsubscribe(world.broker.router.sessions["a"], "1")
    assert codes(client, "2") == [0]
    world.broker.router.unsubscribe(world.broker.router.sessions["a"], "2")
    assert counts(world) == {}


def test_subscriptions_count_for_who_owns_the_session_now() -> None:
    world = World(limited(2))
    connect(world, "a", None).subscribe("1", "2")
    moved = connect(world, "a", None, peer="192.0.2.9:1")
    assert counts(world) == {"address 192.0.2.9": 2}
    assert codes(moved, "3") == [0x97]
    assert codes(connect(world, "b", None), "1", "2") == [0, 0]


def test_the_counts_are_the_same_after_a_restart() -> None:
    world = Lasting(limited(2), authority=Named())
    assert codes(connect(world, "a", "ann"), "1", "2", "3") == [0, 0, 0x97]
    assert codes(connect(world, "b", "bob"), "1") == [0]
    world.crash()
    assert counts(world) == {"user ann": 2, "user bob": 1}
    assert codes(connect(world, "c", "ann"), "1") == [0x97]
    assert codes(connect(world, "b", "bob"), "2", "3") == [0, 0x97]


def test_without_a_limit_there_is_always_room() -> None:
    world = World(BrokerSettings(), Named())
    client = connect(world, "a", "ann")
    assert codes(client, *map(str, range(50))) == [0] * 50
    assert len(world.broker.router.subscription_shares) == 1

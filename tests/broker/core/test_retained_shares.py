"""What each user may retain: so many topics, and so much memory."""

import random

import pytest

from semel.broker.authority import Authority, Denied, Proof
from semel.broker.identity import ANONYMOUS, PASSWORD, Identity, PeerInfo, identity_of
from semel.broker.retained import Retained, cost
from semel.broker.retained_shares import NOBODY, RetainedShares
from semel.broker.settings import BrokerSettings
from semel.mqtt import Connect, Message, Publish, Will
from tests.broker.core.test_restart import Lasting
from tests.broker.world import Client, World
from tests.modes import repeats

PLENTY = 1_000_000


class Named(Authority):
    """Believes every user name."""

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        proof = ANONYMOUS if packet.user_name is None else PASSWORD
        return identity_of(packet.client_id, peer, user_name=packet.user_name, proof=proof)


def connect(
    world: World,
    client_id: str,
    user_name: str | None,
    will: Will | None = None,
    *,
    peer: str = "192.0.2.1:1",
) -> Client:
    client = world.open(peer=peer)
    client.send(Connect(client_id, user_name=user_name, will=will))
    assert client.connection.is_connected
    return client


def retain(client: Client, topic_name: str, payload: bytes = b"x") -> None:
    client.send(Publish(topic_name, payload, retain=True))


def topics(world: World) -> list[str]:
    return sorted(world.broker.router.retained.topic_names())


def dropped(world: World) -> int:
    return world.broker.router.dropped


# --- the broker -----------------------------------------------------------------------------------


def test_a_user_retains_so_many_topics_and_others_are_not_affected() -> None:
    world = World(BrokerSettings(maximum_retained_per_user=2), Named())
    ann, also_ann = connect(world, "a", "ann"), connect(world, "b", "ann")
    reader = connect(world, "r", None)
    reader.subscribe("#")
    retain(ann, "1")
    retain(also_ann, "2")
    retain(ann, "3")
    # It is sent to subscribers all the same.
    assert [each.topic_name for each in reader.take() if isinstance(each, Publish)] == [*"123"]
    assert (topics(world), dropped(world)) == (["1", "2"], 1)
    # Replacing and deleting is always possible.
    retain(also_ann, "1", b"new")
    retain(ann, "2", b"")
    retain(ann, "3")
    assert (topics(world), dropped(world)) == (["1", "3"], 1)
    bob = connect(world, "c", "bob")
    retain(bob, "4")
    retain(bob, "5")
    assert topics(world) == ["1", "3", "4", "5"]


def test_a_user_retains_so_many_bytes() -> None:
    each = cost(Message("1", b"x"))
    world = World(BrokerSettings(maximum_retained_bytes_per_user=2 * each + 5), Named())
    ann, bob = connect(world, "a", "ann"), connect(world, "b", "bob")
    retain(ann, "1")
    retain(ann, "2")
    retain(ann, "3")
    assert topics(world) == ["1", "2"]
    retain(ann, "1", b"x" * 6)
    assert topics(world) == ["1", "2"]
    # One byte too many: the message before it is no longer the last one.
    retain(ann, "1", b"x" * 7)
    assert (topics(world), dropped(world)) == (["2"], 2)
    retain(bob, "1", b"x" * 100)
    assert topics(world) == ["1", "2"]


def test_a_message_counts_for_the_user_who_published_it_last() -> None:
    world = World(BrokerSettings(maximum_retained_per_user=1), Named())
    ann, bob = connect(world, "a", "ann"), connect(world, "b", "bob")
    retain(ann, "1")
    retain(bob, "1")
    retain(ann, "2")
    assert topics(world) == ["1", "2"]
    # Bob has one already, so that of Ann is not replaced; but it is no longer the last one.
    retain(bob, "2")
    assert (topics(world), dropped(world)) == (["1"], 1)
    retain(ann, "3")
    assert topics(world) == ["1", "3"]


def test_anonymous_clients_of_an_address_are_one_user_whatever_they_call_themselves() -> None:
    world = World(BrokerSettings(maximum_retained_per_user=1))
    for number, name in enumerate((None, "ann", "bob")):
        retain(connect(world, f"c{number}", name), str(number))
    assert (topics(world), dropped(world)) == (["0"], 2)
    retain(connect(world, "d", None, peer="192.0.2.2:1"), "3")
    assert (topics(world), dropped(world)) == (["0", "3"], 2)


def test_a_will_counts_for_its_user() -> None:
    world = World(BrokerSettings(maximum_retained_per_user=1), Named())
    for number in range(3):
        connect(world, f"c{number}", "ann", Will(f"will/{number}", b"x", retain=True)).cut()
    connect(world, "d", "bob", Will("will/d", b"x", retain=True)).cut()
    assert (topics(world), dropped(world)) == (["will/0", "will/d"], 2)


def test_topics_of_the_broker_count_for_nobody() -> None:
    world = World(BrokerSettings(maximum_retained_per_user=1, sys_interval=1), Named())
    world.wait(2)
    assert len([each for each in topics(world) if each.startswith("$SYS/")]) > 10
    assert len(world.broker.router.retained.shares) == 0


def test_after_a_restart_restored_messages_count_when_they_are_published_again() -> None:
    world = Lasting(BrokerSettings(maximum_retained_per_user=2), authority=Named())
    ann = connect(world, "a", "ann")
    for each in "123":
        retain(ann, each)
    assert topics(world) == ["1", "2"]
    world.crash()
    assert topics(world) == ["1", "2"]
    ann = connect(world, "a", "ann")
    retain(ann, "1")
    retain(ann, "3")
    assert topics(world) == ["1", "2", "3"]
    retain(ann, "4")
    assert topics(world) == ["1", "2", "3"]


# --- the counts -----------------------------------------------------------------------------------


def test_nobody_has_no_limit_and_is_not_counted() -> None:
    shares = RetainedShares(1, 1)
    shares.count(NOBODY, messages=5, size=500)
    assert shares.has_room(NOBODY, messages=10, size=1_000)
    assert len(shares) == 0


@pytest.mark.parametrize("seed", range(repeats(6, 2)))
def test_random_events_keep_the_limits_and_the_counts(seed: int) -> None:
    source = random.Random(seed)
    maximum = source.choice((0, 3, 10))
    maximum_bytes = source.choice((0, 3_000, 8_000))
    retained = Retained(source.choice((12, PLENTY)), PLENTY, RetainedShares(maximum, maximum_bytes))
    owners = (NOBODY, "user a", "user b", "address a")
    pool = [f"a/{number % 4}/{number}" for number in range(30)]
    now = 0.0
    for _ in range(2_000):
        now += 1.0
        topic_name = source.choice(pool)
        event = source.random()
        if event < 0.7:
            expires_at = now + 30 if source.random() < 0.3 else None
            payload = bytes(source.choice((1, 500)))
            message = Message(topic_name, payload, expires_at=expires_at)
            was_put = retained.put(topic_name, message, source.choice(owners))
            assert (retained.get(topic_name) is message) == was_put
        elif event < 0.9:
            retained.delete(topic_name)
        else:
            retained.sweep(now, 100)
        nodes = retained._by_name.values()
        for owner in owners[1:]:
            sizes = [cost(each.message) for each in nodes if each.message and each.owner == owner]
            share = retained.shares._shares.get(owner)
            assert (len(sizes), sum(sizes)) == ((share.messages, share.size) if share else (0, 0))
            assert not maximum or len(sizes) <= maximum
            assert not maximum_bytes or sum(sizes) <= maximum_bytes
    for topic_name in pool:
        retained.delete(topic_name)
    assert len(retained.shares) == 0

"""The seam between the broker and what lasts: nothing leaves before the store has it."""

import pytest

from semel.broker.store import Commit, Store
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    Will,
)
from semel.mqtt.delivery import ASSIGNED, FINISHED, FREED, MOVED, QUEUED, STORED
from tests.broker.world import World

KEPT = Properties(session_expiry_interval=100)


class Slow(Store):
    """Takes commits and says later that they are safe."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Commit] = []

    def write(self, commit: Commit) -> bool:
        self.taken.append(commit)
        return False


class Tampering(Store):
    """Puts something into a commit that is no packet."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, commit: Commit) -> bool:
        commit.packets.insert(0, (self.number, [b""]))
        return True


class Failing(Store):
    """Has no room."""

    def write(self, commit: Commit) -> bool:
        raise OSError("no room")


def test_nothing_leaves_before_its_commit_is_safe() -> None:
    world = World()
    client = world.connect("a", properties=KEPT)
    store = Slow()
    world.broker.store = store
    assert client.send(Subscribe(1, [Subscription("t", 2)])) == []
    assert client.send(Publish("t", b"x", 2, 2)) == []
    assert client.send(PingReq()) == []
    for commit in store.taken:
        world.broker.committed(commit, world.now)
    store.taken.clear()
    world.tick()
    assert client.take() == [SubAck(1, [2]), Publish("t", b"x", 2, 1), PubRec(2), PingResp()]


def test_a_commit_that_comes_after_its_connection_is_gone_is_for_nobody() -> None:
    world = World()
    client, other = world.connect("a"), world.connect("b")
    store = Slow()
    world.broker.store = store
    client.send(PingReq())
    other.send(PingReq())
    client.cut()
    for commit in store.taken:
        world.broker.committed(commit, world.now)
    world.tick()
    assert other.take() == [PingResp()]


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_everything_that_must_last_is_in_a_commit(version: int) -> None:
    """From both paths: what a session that outlives its connection goes through, in order."""
    world = World()
    kept = KEPT if version == MQTT5 else Properties()
    client = world.connect("a", version, clean_start=version == MQTT5, properties=kept)
    publisher = world.connect("p", version)
    store = Slow()
    world.broker.store = store

    def changes() -> list[int]:
        kinds = [change.kind for commit in store.taken for _, change in commit.changes]
        for commit in store.taken:
            world.broker.committed(commit, world.now)
        store.taken.clear()
        world.tick()
        return kinds

    client.send(Subscribe(1, [Subscription("t", 2)]))
    assert [entry.topic_filter for c in store.taken for entry in c.subscribed] == ["t"]
    assert changes() == []
    for packet_id in (1, 2):
        publisher.send(Publish("t", b"x", 2, packet_id))
        assert changes() == [QUEUED, ASSIGNED]
    publisher.send(Publish("t", b"kept", retain=True))
    assert [name for c in store.taken for name, _ in c.retained] == ["t"]
    assert changes() == []
    client.send(PubRec(1))
    assert changes() == [MOVED]
    client.send(PubComp(1))
    assert changes() == [FINISHED]
    for packet_id in (7, 8):
        client.send(Publish("elsewhere", b"x", 2, packet_id))
        assert changes() == [STORED]
        client.send(PubRel(packet_id))
        assert changes() == [FREED]


def test_a_will_is_in_a_commit_until_it_is_published_or_given_up() -> None:
    world = World()
    store = Slow()
    will = Will("gone", b"bye")
    world.broker.store = store
    client = world.open()
    client.send(Connect("a", will=will, properties=KEPT))
    assert [kept for c in store.taken for _, kept in c.wills] == [will]
    for commit in store.taken:
        world.broker.committed(commit, world.now)
    store.taken.clear()
    client.send(Disconnect())
    assert [kept for c in store.taken for _, kept in c.wills] == [None]


def test_what_fails_for_one_connection_in_a_commit_leaves_the_others_alone() -> None:
    world = World()
    victim, other = world.connect("victim"), world.connect("other")
    world.broker.store = Tampering(victim.connection.number)
    assert other.send(PingReq()) == [PingResp()]
    assert victim.is_closed()
    assert not other.is_closed()
    assert sum("serving 'victim'" in line for line in world.log) == 1


def test_a_commit_that_the_store_refuses_is_acknowledged_to_nobody() -> None:
    world = World()
    client, other = world.connect("a"), world.connect("b")
    world.broker.store = Failing()
    world.broker.receive(client.connection, b"\x32\x06\x00\x01t\x00\x01\x00", world.now)
    world.broker.receive(other.connection, b"\xc0\x00", world.now)
    world.broker.lost(other.connection, world.now)
    world.clients.remove(other)
    world.tick()
    assert client.take() == []
    assert client.is_closed()
    world.broker.store = Store()
    assert world.connect("c").send(Publish("t", b"", 1, 1)) == [PubAck(1, 0x10)]

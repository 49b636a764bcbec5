"""A session that another user takes over: what it already has is for the new owner to receive or
not, and the rights of the former owner count no more."""

import pytest

from semel.broker.identity import Identity
from semel.mqtt import (
    Connect,
    Properties,
    Publish,
    Subscribe,
    Subscription,
    encode,
)
from tests.broker.core.test_revocation import KEPT, ByGroup, join, received
from tests.broker.recorded import Plant, read_all
from tests.broker.world import Client

ONE = Properties(session_expiry_interval=1_000, receive_maximum=1)
SIX = [b"%d" % number for number in range(6)]


def connect(world: Plant, user_name: str) -> Client:
    """`c` as this user, with a quota of one message."""
    client = world.open()
    packets = client.send(Connect("c", clean_start=False, user_name=user_name, properties=ONE))
    client.inbox = packets[1:]
    return client


def leave_six(world: Plant, *, is_connected: bool) -> Client:
    """`c` of `ann`, with one message in flight, one in memory, and four on disk only."""
    client = connect(world, "ann")
    client.send(Subscribe(1, [Subscription("t", 1)]))
    publisher = world.connect("p")
    for at, payload in enumerate(SIX, 1):
        publisher.send(Publish("t", payload, 1, at))
    assert [payload for payload, _ in received(client)] == SIX[:1]
    if not is_connected:
        client.cut()
    return client


@pytest.mark.parametrize("is_connected", [True, False])
@pytest.mark.parametrize("restart", [None, "before", "after"])
@pytest.mark.parametrize("is_hidden", [True, False])
def test_what_the_former_owner_was_to_get_is_for_the_new_one_only_by_its_own_rights(
    is_hidden: bool, restart: str | None, is_connected: bool
) -> None:
    authority = ByGroup()
    if is_hidden:
        authority.hidden.add("bob")
    world = Plant(authority=authority, window=1)
    leave_six(world, is_connected=is_connected)
    if restart == "before":
        world.crash()
    client = connect(world, "bob")
    if restart == "after":
        world.crash()
        client = connect(world, "bob")
    assert [each.payload for each in read_all(client)] == ([] if is_hidden else SIX)
    # Nothing is left on disk for a later owner.
    assert world.rows("SELECT count(*) FROM delivery") == [(0,)]
    client.cut()
    assert received(connect(world, "ann")) == []


@pytest.mark.parametrize("restart", [False, True])
def test_the_rights_of_the_former_owner_do_not_count_for_the_new_one(restart: bool) -> None:
    authority = ByGroup()
    authority.hidden.add("ann")
    world = Plant(authority=authority)
    client = join(world, "c", "ann")
    client.subscribe("t", qos=1)
    publisher = world.connect("p")
    for packet_id in (1, 2, 3):  # the route is cached
        publisher.send(Publish("t", b"of ann", 1, packet_id))
    if restart:
        world.crash()
        publisher = world.connect("p")
    client = join(world, "c", "bob")
    publisher.send(Publish("t", b"of bob", 1, 4))
    assert received(client) == [(b"of bob", 1)]


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_crash_while_a_session_changes_hands_leaves_it_to_one_of_them_with_its_messages(
    commits: int,
) -> None:
    """The new owner and what it may not receive are one commit."""
    authority = ByGroup()
    authority.hidden.add("bob")
    world = Plant(authority=authority, window=1)
    leave_six(world, is_connected=False)
    world.hold()
    data = encode(Connect("c", clean_start=False, user_name="bob", properties=ONE))
    world.broker.receive(world.open().connection, data, world.now)
    world.settle()
    assert len(world.store.held) == 1
    world.database.apply(world.store.held[:commits])
    world.crash()
    owner = world.broker.router.sessions["c"].identity.user_name
    assert owner == ("bob" if commits else "ann")
    client = connect(world, "ann")
    assert [each.payload for each in read_all(client)] == ([] if commits else SIX)


class FailingFor(ByGroup):
    """Raises when this user subscribes."""

    failing = ""

    def subscribe(self, identity: Identity, topic_filter: str, *, qos: int) -> int:
        if identity.user_name == self.failing:
            raise RuntimeError("a hook that is broken")
        return super().subscribe(identity, topic_filter, qos=qos)


@pytest.mark.parametrize("failing", ["bob", ""])
def test_a_session_stays_with_its_owner_if_the_authority_fails_over_the_next_one(
    failing: str,
) -> None:
    authority = FailingFor()
    authority.failing = failing
    authority.hidden.add("bob")
    world = Plant(authority=authority)
    join(world, "c", "ann").subscribe("t", qos=1)
    client = world.open()
    connect_bob = encode(Connect("c", clean_start=False, user_name="bob", properties=KEPT))
    if failing:
        with pytest.raises(RuntimeError, match="a hook that is broken"):
            world.broker.receive(client.connection, connect_bob, world.now)
    else:
        world.broker.receive(client.connection, connect_bob, world.now)
    world.settle()
    world.connect("p").send(Publish("t", b"x", 1, 1))
    expected = [(b"x", 1)] if failing else []
    assert received(join(world, "c", "ann")) == expected

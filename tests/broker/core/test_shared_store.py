"""Shared subscriptions of durable sessions: a message that changes hands is lost by no crash, and
is delivered by nobody before its commit [4.8.2]."""

import pytest

from semel.broker.authority import Authority
from semel.broker.identity import Identity
from semel.mqtt import (
    Connect,
    Packet,
    PingReq,
    Properties,
    Publish,
    PubRec,
    Subscribe,
    Subscription,
    Unsubscribe,
    encode,
)
from tests.broker.core.test_store import Kept
from tests.broker.recorded import Plant
from tests.broker.world import Client, World

FILTER = "$share/g/t/#"
SHARED = [Subscription(FILTER, 2)]


def payloads(packets: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def member(world: World, client_id: str, *, expiry: int = 0, quota: int | None = None) -> Client:
    """A client that is a member of the group; with an `expiry` its session is durable."""
    client = world.connect(
        client_id,
        properties=Properties(session_expiry_interval=expiry, receive_maximum=quota),
    )
    client.send(Subscribe(1, SHARED))
    return client


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("ticks", [0, 1])
def test_a_message_that_changes_hands_before_its_commit_still_awaits_it(
    qos: int, ticks: int
) -> None:
    """Its first member is in memory only: nothing but the stream keeps the message."""
    world = Kept(None, "t/kept")
    first = member(world, "a", quota=1)
    publisher = world.connect("p")
    publisher.send(Publish("t/free", b"free", qos, 1))
    assert payloads(first.take()) == [b"free"]
    second = member(world, "b")
    second.send(Unsubscribe(2, [FILTER]))
    world.hold()
    data = encode(Publish("t/kept", b"kept", qos, 2))
    world.broker.receive(publisher.connection, data, world.now)
    for _ in range(ticks):
        world.tick()
    second.send(Subscribe(3, SHARED))
    first.cut()
    assert payloads(second.take()) == []
    world.settle()
    expected = [b"kept"] if qos == 2 else [b"free", b"kept"]
    assert payloads(second.take()) == expected


@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_nobody_keeps_changes_hands_at_once(qos: int) -> None:
    world = Kept(None, "t/kept")
    first = member(world, "a", quota=1)
    publisher = world.connect("p")
    publisher.send(Publish("t/free", b"1", qos, 1), Publish("t/free", b"2", qos, 2))
    second = member(world, "b")
    world.hold()
    assert payloads(first.take()) == [b"1"]
    first.cut()
    assert payloads(second.take()) == ([b"2"] if qos == 2 else [b"1", b"2"])


class Hiding(Authority):
    """Clients in `hidden` do not get messages of t/secret, and keep their subscriptions."""

    def __init__(self) -> None:
        self.hidden: set[str] = set()

    def receive(self, identity: Identity, topic_name: str) -> bool:
        return identity.client_id not in self.hidden or topic_name != "t/secret"


def queued(world: Plant) -> list[tuple[object, ...]]:
    """The payloads of the messages on disk, whoever has them."""
    return world.rows("SELECT payload FROM delivery ORDER BY payload")


@pytest.mark.parametrize("commits", range(4))
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_crash_loses_no_message_that_changes_hands_while_its_member_is_served(
    is_busy: bool, commits: int
) -> None:
    """What is only on disk is read, and refused to its member, while the tick is being ended."""
    authority = Hiding()
    world = Plant(authority=authority, window=2)
    member(world, "a", expiry=1_000).cut()
    publisher = world.connect("p")
    for number in range(8):
        publisher.send(Publish("t/secret", b"%d" % number, 2, number + 1))
    other = member(world, "b", expiry=1_000)
    world.settle()
    authority.hidden.add("a")
    authority.generation += 1
    world.settle()
    expected = [(b"%d" % number,) for number in range(8)]
    assert queued(world) == expected
    world.hold()
    if is_busy:
        # The other member is served before the one that loses its messages.
        world.broker.receive(other.connection, encode(PubRec(1)), world.now)
    resuming = Connect("a", clean_start=False, properties=Properties(session_expiry_interval=1_000))
    world.broker.receive(world.open().connection, encode(resuming), world.now)
    world.settle()
    world.database.apply(world.store.held[:commits])
    world.crash()
    found = queued(world)
    # A message of which `b` has acknowledged the PUBLISH has no payload any more.
    assert [row for row in found if row[0] is not None] == expected[int(is_busy and commits > 0) :]


def test_a_session_that_ends_while_packets_are_sent_hands_over_what_this_tick_queued() -> None:
    """Beyond the window, the messages are only in a commit that the store has not got yet."""
    world = Plant(window=1)
    member(world, "b", expiry=1_000).cut()
    member(world, "a", expiry=1_000).cut()
    # A durable session that ends with this connection.
    reader = world.connect("a", clean_start=False, present=True)
    reader.unread = 10 * world.broker.settings.maximum_outgoing_bytes
    world.settle()
    publisher = world.connect("p")
    messages = [encode(Publish("t/1", b"%d" % each, 1, each + 1)) for each in range(6)]
    world.broker.receive(publisher.connection, b"".join(messages), world.now)
    world.broker.receive(reader.connection, encode(PingReq()), world.now)
    world.settle()
    assert reader.is_closed()
    assert "a" not in world.broker.router.sessions
    assert queued(world) == [(b"%d" % each,) for each in range(6)]


def test_a_session_that_ends_in_the_tick_of_its_messages_hands_them_over() -> None:
    """Beyond the window, they are in no commit yet."""
    world = Plant(window=1)
    for client_id in ("b", "a"):
        member(world, client_id, expiry=1_000).cut()
    publisher = world.connect("p")
    messages = [encode(Publish("t/1", b"%d" % each, 1, each + 1)) for each in range(6)]
    world.broker.receive(publisher.connection, b"".join(messages), world.now)
    world.broker.receive(world.open().connection, encode(Connect("a")), world.now)
    world.settle()
    assert queued(world) == [(b"%d" % each,) for each in range(6)]


class Refusing(Hiding):
    """Clients in `refused` may not subscribe."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()

    def subscribe(self, identity: Identity, topic_filter: str, *, qos: int) -> int:
        return 0x87 if identity.client_id in self.refused else qos


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("end", ["expiry", "clean start", "connection"])
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("leaving", ["unsubscribes", "is refused", "stays"])
def test_the_queue_of_a_former_member_goes_to_the_others_when_its_session_ends(
    leaving: str, crash: bool, end: str, qos: int
) -> None:
    """One message is in flight, one in memory, and four are only on disk."""
    authority = Refusing()
    world = Plant(authority=authority, window=1)
    member(world, "b", expiry=1_000).cut()
    first = member(world, "a", expiry=100, quota=1)
    own = Subscription("own", 1)
    first.send(Subscribe(2, [own]))
    publisher = world.connect("p")
    for number in range(6):
        publisher.send(Publish("t/1", b"%d" % number, qos, 2 * number + 1))
        publisher.send(Publish("own", b"own", 1, 2 * number + 2))
    assert payloads(first.take()) == [b"0"]
    if leaving == "unsubscribes":
        first.send(Unsubscribe(3, [FILTER]))
    elif leaving == "is refused":
        authority.refused.add("a")
        authority.generation += 1
        world.settle()
        authority.refused.clear()
    first.cut()
    if end == "connection":
        # Its session is durable, but ends with this connection.
        quota = Properties(receive_maximum=1)
        world.connect("a", clean_start=False, present=True, properties=quota)
    if crash:
        world.crash()
    if end == "expiry":
        world.wait(101)
    elif end == "clean start":
        world.connect("a")
    elif not crash:
        world.clients[-1].cut()
    assert "a" not in world.broker.router.sessions or end == "clean start"
    # [MQTT-4.8.2-5] a QoS 2 message that was sent goes to nobody else.
    expected = [(b"%d" % number,) for number in range(qos - 1, 6)]
    assert queued(world) == expected

"""Rights that change while messages wait to be sent: for their commit, or for the tick to end."""

import pytest

from semel.broker.counters import REVOKED
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    encode,
)
from tests.broker.core.test_revocation import KEPT, ByGroup, join, received
from tests.broker.recorded import Plant, subscribe
from tests.broker.world import Client

VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])
HIDDEN = pytest.mark.parametrize("is_hidden", [True, False])


class Waiting:
    """`c` of `ann` and `o` of `bob` have subscribed to t/#; `p` publishes."""

    def __init__(self, version: int = MQTT5, *, durable: bool = True, qos: int = 2) -> None:
        self.authority = ByGroup()
        self.world = Plant(authority=self.authority)
        self.version = version
        self.clients = [self.join(*who, durable=durable) for who in (("c", "ann"), ("o", "bob"))]
        for client in self.clients:
            client.send(Subscribe(1, [Subscription("t/#", qos)]))
        self.publisher = self.world.connect("p", version)
        # The first message makes a route, so that the next ones take the hot path.
        self.publisher.send(Publish("t/1", b"first"))
        assert [self.taken(client) for client in self.clients] == [[b"first"], [b"first"]]

    def join(self, client_id: str, user_name: str, *, durable: bool = True) -> Client:
        client = self.world.open(self.version)
        properties = KEPT if durable and self.version == MQTT5 else Properties()
        clean_start = not durable
        packet = Connect(
            client_id,
            version=self.version,
            clean_start=clean_start,
            user_name=user_name,
            properties=properties,
        )
        client.inbox = client.send(packet)[1:]
        return client

    def hide(self, is_hidden: bool) -> None:
        """The rights change, for `ann` or for nobody."""
        if is_hidden:
            self.authority.hidden.add("ann")
        self.authority.generation += 1

    def give(self, *packets: Packet) -> None:
        """Packets of the publisher that are received, while the tick has not ended."""
        data = b"".join(encode(packet, self.version) for packet in packets)
        self.world.broker.receive(self.publisher.connection, data, self.world.now)

    def taken(self, client: Client) -> list[bytes]:
        return [payload for payload, _ in received(client)]


@HIDDEN
@VERSIONS
@pytest.mark.parametrize("ticks", [0, 1], ids=["without a tick", "after a tick"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_awaits_its_commit_is_withheld_if_its_right_is_gone(
    qos: int, ticks: int, version: int, is_hidden: bool
) -> None:
    waiting = Waiting(version)
    world = waiting.world
    world.hold()
    waiting.give(Publish("t/1", b"x", qos, 1), Publish("t/1", b"y", qos, 2))
    world.settle()
    waiting.hide(is_hidden)
    for _ in range(ticks):
        world.tick()
    world.let_go()
    mine, other = (waiting.taken(client) for client in waiting.clients)
    assert mine == ([] if is_hidden else [b"x", b"y"])
    assert other == [b"x", b"y"]
    # The publisher does not notice, and nothing is left of the messages.
    assert len(waiting.publisher.take()) == 2
    state = world.broker.router.sessions["c"]
    assert state.session.in_flight == (0 if is_hidden else 2)
    assert not waiting.clients[0].is_closed()
    world.crash()
    again = waiting.join("c", "ann")
    assert waiting.taken(again) == ([] if is_hidden else [b"x", b"y"])


@HIDDEN
@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic", ["t/1", "t/new"], ids=["hot path", "plain path"])
def test_a_message_of_this_tick_is_withheld_if_its_right_is_gone_at_the_end(
    topic: str, qos: int, version: int, is_hidden: bool
) -> None:
    waiting = Waiting(version, durable=False)
    packets = [
        Publish(topic, payload, qos, at if qos else 0) for at, payload in enumerate((b"x", b"y"), 1)
    ]
    waiting.give(*packets)
    waiting.hide(is_hidden)
    drops = waiting.world.broker.counters.drops.by_reason
    dropped = drops[REVOKED]
    waiting.world.settle()
    mine, other = (waiting.taken(client) for client in waiting.clients)
    assert mine == ([] if is_hidden else [b"x", b"y"])
    assert other == [b"x", b"y"]
    assert drops[REVOKED] - dropped == (2 if is_hidden else 0)


@HIDDEN
def test_the_quota_of_withheld_messages_is_free_again(is_hidden: bool) -> None:
    waiting = Waiting()
    world = waiting.world
    client = world.open()
    one = Properties(session_expiry_interval=100, receive_maximum=1)
    client.send(Connect("d", user_name="ann", properties=one))
    client.send(Subscribe(1, [Subscription("t/#", 1)]))
    world.hold()
    waiting.give(Publish("t/1", b"x", 1, 1))
    world.settle()
    waiting.hide(is_hidden)
    world.let_go()
    assert waiting.taken(client) == ([] if is_hidden else [b"x"])
    waiting.authority.hidden.clear()
    waiting.authority.generation += 1
    world.settle()
    client.send(Subscribe(2, [Subscription("u", 1)]))
    waiting.give(Publish("u", b"next", 1, 2))
    world.settle()
    assert waiting.taken(client) == ([b"next"] if is_hidden else [])


@HIDDEN
@pytest.mark.parametrize("ticks", [0, 1])
def test_a_withheld_message_of_a_shared_subscription_goes_to_another_member(
    ticks: int, is_hidden: bool
) -> None:
    authority = ByGroup()
    world = Plant(authority=authority)
    first = join(world, "c", "ann")
    first.subscribe("$share/g/t", qos=2)
    world.hold()
    publisher = world.connect("p")
    publisher.send(Publish("t", b"x", 2, 1))
    second = world.open()
    data = encode(Connect("o", user_name="bob")) + encode(
        Subscribe(1, [Subscription("$share/g/t", 2)])
    )
    world.broker.receive(second.connection, data, world.now)
    if is_hidden:
        authority.hidden.add("ann")
    authority.generation += 1
    for _ in range(ticks):
        world.tick()
    world.let_go(1)
    world.settle()
    # Until the commit in which it changes hands, nobody gets it.
    assert received(second) == []
    world.let_go()
    assert received(first) == ([] if is_hidden else [(b"x", 2)])
    assert received(second) == ([(b"x", 2)] if is_hidden else [])


@HIDDEN
@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_is_disconnected_that_would_be_sent_a_message_again(
    qos: int, is_hidden: bool
) -> None:
    """Its identifier is in use on this connection: the client returns without the message."""
    waiting = Waiting()
    world = waiting.world
    waiting.give(Publish("t/1", b"x", qos, 1))
    world.settle()
    client = waiting.clients[0]
    assert waiting.taken(client) == [b"x"]
    client.cut()
    world.hold()
    client = world.open()
    data = encode(Connect("c", clean_start=False, user_name="ann", properties=KEPT))
    world.broker.receive(client.connection, data, world.now)
    world.settle()
    waiting.hide(is_hidden)
    world.let_go()
    packets = client.take()
    assert [each.dup for each in packets if isinstance(each, Publish)] == [True] * (not is_hidden)
    assert client.is_closed() is is_hidden
    if is_hidden:
        client.cut()
        again = waiting.join("c", "ann")
        assert not [each for each in again.inbox if isinstance(each, Publish)]
        assert [type(each) for each in again.inbox] == [PubRel] * (qos - 1)


@pytest.mark.parametrize("is_broken", [True, False])
def test_a_message_stays_if_the_authority_fails_over_it(is_broken: bool) -> None:
    waiting = Waiting()
    world = waiting.world
    world.hold()
    waiting.give(Publish("t/1", b"x", 1, 1))
    world.settle()
    if is_broken:
        waiting.authority.broken.add("ann")
    waiting.authority.generation += 1
    world.let_go()
    client = waiting.clients[0]
    assert waiting.taken(client) == ([] if is_broken else [b"x"])
    assert client.is_closed() is is_broken
    assert waiting.taken(waiting.clients[1]) == [b"x"]
    client.cut()
    waiting.authority.broken.clear()
    waiting.authority.generation += 1
    world.settle()
    assert waiting.taken(waiting.join("c", "ann")) == [b"x"]


@HIDDEN
@pytest.mark.parametrize("qos", [0, 1])
def test_replayed_messages_are_withheld_too(qos: int, is_hidden: bool) -> None:
    authority = ByGroup()
    world = Plant(authority=authority)
    world.fill(3)
    reader = join(world, "c", "ann")
    world.hold()
    world.broker.receive(reader.connection, encode(subscribe(qos=qos)), world.now)
    world.settle()
    assert received(reader) == []
    if is_hidden:
        authority.hidden.add("ann")
    authority.generation += 1
    world.let_go()
    assert len(received(reader)) == (0 if is_hidden else 3)


@HIDDEN
def test_what_waits_behind_a_connack_is_withheld_as_well_and_answers_are_not(
    is_hidden: bool,
) -> None:
    waiting = Waiting(qos=0)
    world = waiting.world
    waiting.clients[0].cut()
    world.hold()
    client = world.open()
    data = encode(Connect("c", clean_start=False, user_name="ann", properties=KEPT))
    world.broker.receive(client.connection, data + encode(PingReq()), world.now)
    waiting.give(Publish("t/1", b"x"), Publish("t/1", b"y"), Publish("t/2", b"z"))
    world.settle()
    assert client.take() == []
    waiting.hide(is_hidden)
    world.let_go()
    kinds = [type(each).__name__ for each in client.take()]
    assert kinds == ["ConnAck", "PingResp"] + ([] if is_hidden else ["Publish"] * 3)


def test_a_connection_that_closes_is_not_asked_about() -> None:
    waiting = Waiting()
    world = waiting.world
    world.hold()
    waiting.give(Publish("t/1", b"x", 1, 1))
    world.settle()
    client, other = waiting.clients
    client.send(Disconnect())
    other.cut()
    # Whoever is asked about now is in `faults`.
    waiting.authority.broken |= {"ann", "bob"}
    waiting.authority.generation += 1
    world.broker.committed(world.store.held[0], world.now)
    assert not world.broker.router.access.faults


@HIDDEN
@pytest.mark.parametrize("answer", [PubAck(1), PubRec(1), PubRec(2), PubRec(2, 0x80), PubComp(2)])
def test_a_client_that_answers_before_it_is_asked_harms_nobody(
    answer: Packet, is_hidden: bool
) -> None:
    """It guesses the Packet Identifier of a message that waits for its commit."""
    waiting = Waiting()
    world = waiting.world
    world.hold()
    waiting.give(Publish("t/1", b"x", 1, 1), Publish("t/1", b"y", 2, 2))
    world.settle()
    world.broker.receive(waiting.clients[0].connection, encode(answer), world.now)
    world.settle()
    waiting.hide(is_hidden)
    world.let_go()
    assert waiting.taken(waiting.clients[1]) == [b"x", b"y"]
    if is_hidden:
        assert waiting.taken(waiting.clients[0]) == []

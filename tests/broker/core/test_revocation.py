"""Rights that change: what a session already has conforms to them, whoever is connected."""

import pytest

from semel.broker.authority import Authority, Denied, Granted, Proof, ServerAuthentication, Step
from semel.broker.counters import REVOKED
from semel.broker.identity import Identity, PeerInfo, identity_of
from semel.mqtt import (
    Auth,
    Connect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Will,
)
from tests.broker.recorded import Plant
from tests.broker.world import Client, World

KEPT = Properties(session_expiry_interval=1_000)


class ByGroup(Authority):
    """Rights by the user name: `low` gets QoS 0 only, `none` nothing, `broken` an exception."""

    def __init__(self) -> None:
        self.limits: dict[str | None, int] = {}
        self.hidden: set[str | None] = set()
        self.broken: set[str | None] = set()
        self.asked = 0

    def rights(self, identity: Identity) -> str:
        return str(identity.user_name)

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        return identity_of(packet.client_id, peer, user_name=packet.user_name)

    def subscribe(self, identity: Identity, topic_filter: str, *, qos: int) -> int:
        self.asked += 1
        return self.limits.get(identity.user_name, qos)

    def receive(self, identity: Identity, topic_name: str) -> bool:
        if identity.user_name in self.broken:
            raise RuntimeError("a hook that is broken")
        return identity.user_name not in self.hidden


def join(world: World, client_id: str, user_name: str, *, version: int = 5) -> Client:
    client = world.open(version)
    client.inbox = client.send(
        Connect(client_id, clean_start=False, user_name=user_name, properties=KEPT)
    )[1:]
    return client


def received(client: Client) -> list[tuple[bytes, int]]:
    return [(each.payload, each.qos) for each in client.take() if isinstance(each, Publish)]


def test_a_subscription_gets_the_qos_that_is_granted() -> None:
    authority = ByGroup()
    authority.limits["low"] = 1
    world = World(authority=authority)
    client = join(world, "c", "low")
    (suback,) = client.send(Subscribe(1, [Subscription("t", 2), Subscription("u", 0)]))
    assert isinstance(suback, SubAck)
    assert suback.reasons == (1, 0)
    world.connect("p").send(Publish("t", b"x", 2, 1))
    assert received(client) == [(b"x", 1)]


def test_a_lower_qos_applies_to_existing_subscriptions_also_after_a_crash() -> None:
    authority = ByGroup()
    world = Plant(authority=authority)
    client = join(world, "c", "ann")
    client.send(Subscribe(1, [Subscription("t", 2, retain_as_published=True)]))
    other = join(world, "o", "bob")
    other.subscribe("t", qos=2)
    publisher = world.connect("p")
    authority.limits["ann"] = 1
    authority.generation += 1
    world.settle()
    publisher.send(Publish("t", b"x", 2, 1))
    assert received(client) == [(b"x", 1)]
    assert received(other) == [(b"x", 2)]
    world.crash()
    assert world.broker.router.subscriptions.entry("c", "t").qos == 1
    assert world.broker.router.subscriptions.entry("c", "t").retain_as_published


def test_a_session_in_memory_gets_a_lower_qos_too() -> None:
    authority = ByGroup()
    world = World(authority=authority)
    client = world.open()
    client.send(Connect("c", user_name="ann"))
    client.subscribe("t", qos=1)
    authority.limits["ann"] = 0
    authority.generation += 1
    world.tick()
    assert world.broker.router.subscriptions.entry("c", "t").qos == 0


def test_a_client_that_returns_with_other_rights_gets_what_those_allow() -> None:
    """The route of the topic was cached while it had the rights."""
    authority = ByGroup()
    authority.hidden.add("bob")
    world = World(authority=authority)
    client = join(world, "c", "ann")
    client.subscribe("t", qos=1)
    publisher = world.connect("p")
    for packet_id in (1, 2, 3):
        publisher.send(Publish("t", b"x", 1, packet_id))
    assert len(received(client)) == 3
    client.cut()
    drops = world.broker.counters.drops.by_reason
    dropped = drops[REVOKED]
    client = join(world, "c", "bob")
    assert received(client) == []
    assert drops[REVOKED] - dropped == 3
    publisher.send(Publish("t", b"y", 1, 4))
    assert received(client) == []
    client.cut()
    client = join(world, "c", "ann")
    publisher.send(Publish("t", b"z", 1, 5))
    assert received(client)[-1:] == [(b"z", 1)]


def test_a_client_that_returns_with_the_same_rights_is_not_asked_about() -> None:
    authority = ByGroup()
    world = World(authority=authority)
    client = join(world, "c", "ann")
    client.subscribe("t", qos=1)
    asked = authority.asked
    client.cut()
    join(world, "c", "ann")
    assert authority.asked == asked


def test_many_sessions_are_checked_over_several_ticks_and_those_that_ended_are_skipped() -> None:
    authority = ByGroup()
    world = World(authority=authority)
    clients = [join(world, f"c{number}", "ann") for number in range(60)]
    for client in clients:
        filters = [Subscription(f"t/{number}", 1) for number in range(40)]
        client.send(Subscribe(1, filters))
    authority.limits["ann"] = 0x87
    authority.generation += 1
    world.flush()
    subscriptions = world.broker.router.subscriptions
    left = [client for client in clients if subscriptions.of(client.connection.label.split("'")[1])]
    assert 0 < len(left) < len(clients)
    assert world.broker._revocation.is_due()
    # A new session of one that has not been checked has nothing to check.
    gone = left[0].connection.state
    assert gone is not None
    world.broker._lifetimes.end(gone, world.now)
    while world.broker._revocation.is_due():
        world.flush()
    assert not any(subscriptions.of(f"c{number}") for number in range(60))
    assert any("its rights have changed" in line for line in world.log)


@pytest.mark.parametrize("is_connected", [True, False])
def test_messages_stay_if_the_authority_fails_over_them(is_connected: bool) -> None:
    authority = ByGroup()
    world = Plant(authority=authority)
    client = join(world, "c", "ann")
    client.subscribe("t", qos=1)
    publisher = world.connect("p")
    publisher.send(Publish("t", b"in flight", 1, 1))
    assert received(client) == [(b"in flight", 1)]
    client.cut()
    publisher.send(Publish("t", b"queued", 1, 2))
    if is_connected:
        authority.broken.add("ann")
        authority.generation += 1
        failed = join(world, "c", "ann")
        assert received(failed) == []
        assert failed.is_closed()
        failed.cut()
    else:
        authority.broken.add("ann")
        authority.generation += 1
        world.settle()
    authority.broken.clear()
    authority.generation += 1
    world.settle()
    client = join(world, "c", "ann")
    world.settle()
    assert received(client) == [(b"in flight", 1), (b"queued", 1)]
    assert publisher.send(PingReq()) == [PingResp()]


def test_a_message_that_was_sent_on_this_connection_is_completed() -> None:
    authority = ByGroup()
    world = Plant(authority=authority)
    client = join(world, "c", "ann")
    client.subscribe("t", qos=1)
    world.connect("p").send(Publish("t", b"x", 1, 1))
    (packet,) = client.take()
    assert isinstance(packet, Publish)
    authority.hidden.add("ann")
    authority.generation += 1
    world.settle()
    assert client.send(PubAck(packet.packet_id)) == []
    assert not client.is_closed()
    state = world.broker.router.sessions["c"]
    assert state.session.in_flight == 0


class Always(ServerAuthentication):
    """Grants the user that the data names."""

    def start(self, data: bytes | None) -> Step:
        return Granted(identity=Identity("c", user_name=(data or b"").decode()))


class ByMethod(ByGroup):
    def begin_authentication(
        self, method: str, packet: Connect, peer: PeerInfo
    ) -> ServerAuthentication | None:
        return Always()


def test_who_authenticates_again_with_other_rights_gets_what_those_allow() -> None:
    authority = ByMethod()
    authority.limits["bob"] = 0x87
    world = Plant(authority=authority)
    client = world.open()
    method = Properties(
        authentication_method="M", authentication_data=b"ann", session_expiry_interval=100
    )
    client.send(Connect("c", properties=method, will=Will("plant/gone", b"bye")))
    client.subscribe("t", qos=1)
    assert world.broker.router.subscriptions.has("c", "t")
    again = Properties(authentication_method="M", authentication_data=b"bob")
    client.send(Auth(0x19, properties=again))
    assert not world.broker.router.subscriptions.has("c", "t")
    # The will belongs to the new user too, also after a crash.
    world.crash()
    (row,) = world.database.connection.execute("SELECT user_name FROM record")
    assert row == ("bob",)

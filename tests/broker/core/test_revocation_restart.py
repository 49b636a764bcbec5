"""Rights that change while messages are only on disk, in flight, or left of an old subscription."""

import pytest

from semel.broker.identity import Identity
from semel.mqtt import (
    Connect,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from tests.broker.core.test_revocation import ByGroup, join, received
from tests.broker.recorded import Plant
from tests.broker.world import Client, World


def leave_in_flight(world: World, *, qos: int) -> Publish:
    """A message is in flight to `c` of user `ann`, which has disconnected."""
    client = join(world, "c", "ann")
    client.subscribe("t", qos=2)
    world.connect("p").send(Publish("t", b"secret", qos, 1))
    (packet,) = client.take()
    assert isinstance(packet, Publish)
    client.cut()
    return packet


@pytest.mark.parametrize("is_hidden", [True, False])
@pytest.mark.parametrize("qos", [1, 2])
def test_rights_that_change_after_a_restart_apply_to_what_is_in_flight_on_disk(
    qos: int, is_hidden: bool
) -> None:
    authority = ByGroup()
    world = Plant(authority=authority)
    leave_in_flight(world, qos=qos)
    world.crash()
    # The session is checked while its messages in flight are not loaded.
    if is_hidden:
        authority.hidden.add("ann")
    authority.generation += 1
    world.settle()
    client = join(world, "c", "ann")
    assert received(client) == ([] if is_hidden else [(b"secret", qos)])


def test_rights_that_change_while_the_broker_is_down_end_subscriptions_without_their_client() -> (
    None
):
    authority = ByGroup()
    world = Plant(authority=authority)
    for client_id, user_name in (("c", "ann"), ("o", "bob")):
        client = join(world, client_id, user_name)
        client.subscribe("t", qos=1)
        client.cut()
    authority.limits["ann"] = 0x87
    world.crash()
    assert not world.broker.is_checking_rights()
    world.connect("p").send(Publish("t", b"x", 1, 1))
    rows = world.database.connection.execute("SELECT session_id FROM subscription").fetchall()
    assert len(rows) == 1
    assert received(join(world, "c", "ann")) == []
    assert received(join(world, "o", "bob")) == [(b"x", 1)]


@pytest.mark.parametrize("user_name", ["ann", "bob"])
def test_messages_of_a_subscription_that_has_ended_are_checked_for_the_next_owner(
    user_name: str,
) -> None:
    authority = ByGroup()
    authority.hidden.add("bob")
    world = World(authority=authority)
    client = world.open()
    kept = Properties(session_expiry_interval=1_000, receive_maximum=1)
    client.send(Connect("c", user_name="ann", properties=kept))
    client.send(Subscribe(1, [Subscription("t", 1)]))
    publisher = world.connect("p")
    publisher.send(Publish("t", b"x", 1, 1), Publish("t", b"queued", 1, 2))
    assert received(client) == [(b"x", 1)]
    client.send(Unsubscribe(2, ["t"]))
    client.cut()
    client = join(world, "c", user_name)
    both = [(b"x", 1), (b"queued", 1)]
    assert received(client) == (both if user_name == "ann" else [])


@pytest.mark.parametrize("is_hidden", [True, False])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_could_not_be_taken_back_is_not_sent_again(
    qos: int, is_hidden: bool
) -> None:
    authority = ByGroup()
    world = World(authority=authority)
    client = join(world, "c", "ann")
    client.subscribe("t", qos=2)
    world.connect("p").send(Publish("t", b"secret", qos, 1))
    assert received(client) == [(b"secret", qos)]
    # The rights change while it is in flight; then the client returns with the same rights.
    if is_hidden:
        authority.hidden.add("ann")
    authority.generation += 1
    world.tick()
    client.cut()
    client = join(world, "c", "ann")
    assert received(client) == ([] if is_hidden else [(b"secret", qos)])


def withdraw(world: Plant, authority: ByGroup) -> None:
    """The message in flight is withdrawn, and the broker restarts."""
    authority.hidden.add("ann")
    authority.generation += 1
    world.settle()
    authority.hidden.clear()
    authority.generation += 1
    world.settle()
    world.crash()


def answer_pubrels(client: Client) -> list[Publish]:
    """Complete the exchanges of a client; the messages that it got."""
    messages: list[Publish] = []
    packets = client.take()
    while packets:
        packet = packets.pop(0)
        if isinstance(packet, Publish):
            messages.append(packet)
        elif isinstance(packet, PubRel):
            packets += client.send(PubComp(packet.packet_id))
    return messages


def test_the_identifier_of_a_withdrawn_qos_2_message_is_not_used_until_the_client_forgets_it() -> (
    None
):
    """[MQTT-4.3.3-10] the client would take another message with it for a duplicate."""
    authority = ByGroup()
    world = Plant(authority=authority)
    packet = leave_in_flight(world, qos=2)
    withdraw(world, authority)
    client = join(world, "c", "ann")
    assert client.inbox == [PubRel(packet.packet_id)]
    world.connect("p").send(Publish("t", b"next", 2, 1))
    message = client.inbox[1]
    assert isinstance(message, Publish)
    assert message.packet_id != packet.packet_id
    assert answer_pubrels(client) == [message]
    assert client.send(PubRec(message.packet_id)) == [PubRel(message.packet_id)]
    client.send(PubComp(message.packet_id))
    assert world.broker.router.sessions["c"].session.in_flight == 0


def test_a_withdrawn_qos_1_message_leaves_nothing_behind() -> None:
    authority = ByGroup()
    world = Plant(authority=authority)
    leave_in_flight(world, qos=1)
    withdraw(world, authority)
    client = join(world, "c", "ann")
    assert client.inbox == []
    assert world.broker.router.sessions["c"].session.in_flight == 0


@pytest.mark.parametrize("is_hidden", [True, False])
def test_a_session_that_is_not_checked_yet_is_checked_before_it_sends(is_hidden: bool) -> None:
    authority = ByGroup()
    world = World(authority=authority)
    client = world.open()
    client.send(Connect("first", user_name="ann", properties=Properties(receive_maximum=1)))
    client.send(Subscribe(1, [Subscription("t", 1)]))
    join(world, "offline", "ann").cut()
    # Sessions are checked from the last to the first, a share of them in each tick.
    for number in range(60):
        filters = [Subscription(f"u/{each}", 1) for each in range(40)]
        join(world, f"c{number}", "bob").send(Subscribe(1, filters))
    publisher = world.connect("p")
    publisher.send(Publish("t", b"x", 1, 1), Publish("t", b"queued", 1, 2))
    (packet,) = client.take()
    assert isinstance(packet, Publish)
    if is_hidden:
        authority.hidden.add("ann")
    authority.generation += 1
    assert world.broker.is_checking_rights()
    # A session that cannot send is not checked before its turn.
    world.broker.router.mark_dirty(world.broker.router.sessions["offline"])
    answers = client.send(PubAck(packet.packet_id))
    assert world.broker.is_checking_rights()
    assert len(answers) == (0 if is_hidden else 1)


def test_a_failure_over_one_session_closes_its_connection_only() -> None:
    authority = Failing()
    world = World(authority=authority)
    client = join(world, "c", "ann")
    other = join(world, "o", "bob")
    for each in (client, other):
        each.subscribe("t", qos=1)
    authority.limits["bob"] = 0x87
    authority.failing = "ann"
    authority.generation += 1
    world.tick()
    assert client.is_closed()
    assert not other.is_closed()
    subscriptions = world.broker.router.subscriptions
    assert (subscriptions.has("c", "t"), subscriptions.has("o", "t")) == (True, False)
    # It is checked when it returns.
    authority.failing = ""
    authority.limits["ann"] = 0x87
    join(world, "c", "ann")
    assert not subscriptions.has("c", "t")


class Failing(ByGroup):
    """Raises when one user subscribes."""

    failing = ""

    def subscribe(self, identity: Identity, topic_filter: str, *, qos: int) -> int:
        if identity.user_name == self.failing:
            raise RuntimeError("a hook that is broken")
        return super().subscribe(identity, topic_filter, qos=qos)

"""Whoever sends much is served turn by turn, and everybody else in between."""

import pytest

from semel.broker import turns
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Decoder,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
    Unsubscribe,
    encode,
)
from semel.store.store import FULL, OPEN
from tests.broker.test_core import VERSIONS, payloads
from tests.broker.test_store import Kept
from tests.broker.world import Client, World


def receive(client: Client, data: bytes) -> None:
    """Bytes of one read of a socket, without the tick that follows."""
    client.world.broker.receive(client.connection, data, client.world.now)


def is_read(client: Client) -> bool:
    """Whether the network may read from it."""
    return client.connection.may_be_read


def flood(kind: str, version: int) -> bytes:
    """Some tens of kilobytes that cost much more than their reading."""
    if kind == "pings":
        return encode(PingReq(), version) * 5_000
    if kind == "one topic":
        return encode(Publish("much", bytes(500)), version) * 600
    if kind == "acknowledged":
        numbers = range(1, 201)
        return b"".join(encode(Publish("much", b"x", 1, n), version) for n in numbers)
    assert kind == "new topics"
    return b"".join(encode(Publish(f"much/{n}", b"x"), version) for n in range(100))


KINDS = ["pings", "one topic", "acknowledged", "new topics"]


@VERSIONS
@pytest.mark.parametrize("kind", KINDS)
def test_who_floods_is_stopped_when_its_share_is_used_up(kind: str, version: int) -> None:
    """It is not read from, and what it sent is worked off in its turns, to the last packet."""
    world = World()
    attacker, innocent = world.connect("a", version), world.connect("i", version)
    for number in range(60):
        reader = world.connect(f"r{number}", version)
        reader.subscribe("much/#", "a/+", "+/b", "#")
    data = flood(kind, version)
    packets = len(Decoder(version).receive(data))
    before = world.broker.counters.packets_received
    receive(attacker, data)
    assert attacker.connection.awaits_turn
    assert not is_read(attacker)
    served = world.broker.counters.packets_received - before
    receive(innocent, encode(PingReq(), version))
    assert is_read(innocent)
    world.flush()
    assert innocent.take() == [PingResp()]
    # the rest comes in its turns, each of them as short
    rounds = 0
    while world.broker.has_turns():
        world.broker.take_turns(world.now)
        receive(innocent, encode(PingReq(), version))
        world.flush()
        assert innocent.take()[-1] == PingResp()
        rounds += 1
    assert rounds > 1
    assert is_read(attacker)
    pings = rounds + 1
    assert world.broker.counters.packets_received - before - pings == packets
    assert world.broker.counters.packets_received - before - pings > 2 * served


@VERSIONS
def test_who_sends_little_has_it_worked_off_at_once(version: int) -> None:
    world = World()
    client = world.connect("a", version)
    client.subscribe("t", qos=1)
    receive(client, encode(Publish("t", b"x", 1, 1), version) + encode(PingReq(), version) * 20)
    assert client.connection.may_be_read
    assert not world.broker.has_turns()
    world.flush()
    assert len(client.take()) == 22


def test_many_small_pieces_in_one_turn_count_together() -> None:
    world = World()
    attacker = world.connect("a", MQTT311)
    pings = encode(PingReq(), MQTT311) * 100
    pieces = 0
    while is_read(attacker):
        receive(attacker, pings)
        pieces += 1
    assert 1 < pieces < 20
    # what comes all the same waits behind the rest
    receive(attacker, pings)
    world.tick()
    assert len(attacker.take()) == 100 * (pieces + 1)
    # and the next turn begins anew
    receive(attacker, pings)
    assert is_read(attacker)


def test_turns_go_round() -> None:
    """Nobody gets a second turn before the others have had one."""
    world = World()
    attackers = [world.connect(f"a{number}", MQTT311) for number in range(10)]
    for attacker in attackers:
        receive(attacker, flood("pings", MQTT311))
    world.flush()
    for attacker in attackers:
        attacker.take()
    for _ in range(5):
        world.broker.take_turns(world.now)
        world.flush()
    counts = [len(attacker.take()) for attacker in attackers]
    assert min(counts) > 0
    assert max(counts) <= 2 * min(counts)


def test_a_connection_that_waits_for_its_turn_is_not_silent_and_may_go() -> None:
    world = World()
    attacker = world.connect("a", MQTT311, keep_alive=1)
    receive(attacker, flood("pings", MQTT311))
    world.now += 100
    world.broker.sweep(world.now)
    assert not attacker.is_closed()
    attacker.cut()
    assert not world.broker.has_turns()
    assert len(world.broker.turns) == 0


def test_what_follows_a_disconnect_in_a_flood_is_not_worked_off() -> None:
    world = World()
    attacker = world.connect("a", MQTT5)
    receive(
        attacker,
        encode(PingReq()) * 3_000 + encode(Disconnect()) + encode(Publish("t", b"x")) * 5,
    )
    before = world.broker.counters.messages_received
    world.tick()
    assert attacker.is_closed()
    assert world.broker.counters.messages_received == before


def test_a_fault_in_a_later_turn_ends_that_connection_alone() -> None:
    world = World()
    attacker, innocent = world.connect("a", MQTT5), world.connect("i", MQTT5)
    receive(attacker, encode(PingReq()) * 3_000 + encode(Publish("t", b"x")))
    receive(innocent, encode(PingReq()) * 3_000)

    def raising(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    world.broker.router.subscriptions.match = raising  # type: ignore[method-assign,assignment]
    world.tick()
    assert attacker.is_closed()
    assert len(innocent.take()) == 3_000
    assert [line for line in world.log if "a fault of ours" in line]


def test_a_publisher_that_is_held_back_for_a_reader_keeps_its_place() -> None:
    world = World(BrokerSettings(maximum_outgoing_bytes=200_000))
    reader, publisher = world.connect("r", MQTT311), world.connect("p", MQTT311)
    reader.subscribe("t")
    reader.unread = 150_000
    world.tick()
    publisher.send(Publish("t", b"x"))
    receive(publisher, encode(Publish("t", bytes(1_000)), MQTT311) + flood("pings", MQTT311))
    held, waiting = publisher.connection.paused_by_reader, len(world.broker.turns)
    assert (held, waiting) == (True, 1)
    world.flush()
    assert not world.broker.has_turns()
    assert not is_read(publisher)
    reader.unread = 0
    world.tick()
    world.tick()
    assert is_read(publisher)
    assert len(world.broker.turns) == 0


def test_who_sends_little_for_long_never_has_to_wait() -> None:
    """Each turn begins anew, also for those who never wait for one."""
    world = World()
    client = world.connect("a", MQTT311)
    pings = encode(PingReq(), MQTT311) * 100
    for _ in range(50):
        receive(client, pings)
        assert is_read(client)
        world.flush()
        world.broker.take_turns(world.now)
    assert len(client.take()) == 5_000


def test_who_used_up_a_turn_waits_while_the_disk_is_behind_and_others_do_not() -> None:
    world = Kept(None, "s")
    attacker, innocent = world.connect("a", MQTT311), world.connect("i", MQTT311)
    world.hold()
    rows = encode(Publish("s", b"x"), MQTT311) * 20
    while world.broker.router.unwritten_rows() < turns.UNWRITTEN_ROWS:
        receive(innocent, rows)
        world.flush()
        world.broker.take_turns(world.now)
    receive(attacker, encode(PingReq(), MQTT311) * 1_000)
    assert not is_read(attacker)
    assert not world.broker.has_turns()
    receive(innocent, encode(PingReq(), MQTT311))
    world.flush()
    assert innocent.take() == [PingResp()]
    # where the store says no, each packet is answered by itself
    world.store.condition = FULL
    assert world.broker.has_turns()
    world.store.condition = OPEN
    world.settle()
    assert len(attacker.take()) == 1_000


# --- what one packet may cost ---------------------------------------------------------------------


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
def test_a_packet_with_more_filters_than_permitted_ends_its_connection(version: int) -> None:
    for count, closed in ((100, False), (101, True)):
        world = World(BrokerSettings(packet_items=100))
        client = world.connect("a", version)
        client.send(Unsubscribe(1, ["t"] * count))
        assert client.is_closed() == closed
        client = world.connect("b", version)
        client.send(Subscribe(1, [Subscription("t")] * count))
        assert client.is_closed() == closed
        assert bool([line for line in world.log if "PACKET_ITEMS_WITHIN_LIMIT" in line]) == closed


def test_a_packet_with_more_properties_than_permitted_ends_its_connection() -> None:
    world = World(BrokerSettings(packet_items=100))
    reader = world.connect("r")
    reader.subscribe("t")
    for count, closed in ((100, False), (101, True)):
        client = world.connect("a")
        properties = Properties(user_properties=[("k", "v")] * count)
        got = client.send(Publish("t", b"x", properties=properties))
        assert client.is_closed() == closed
        assert len(payloads(reader.take())) == (0 if closed else 1)
        if closed:
            assert got == [Disconnect(0x97, properties=got[0].properties)]  # type: ignore[union-attr]


def test_a_message_for_groups_of_members_that_are_away_is_found_a_keeper_at_once() -> None:
    """Nobody looks through all members of all groups for one that is connected."""
    world = World()
    for number in range(60):
        member = world.connect(f"m{number}", properties=Properties(session_expiry_interval=100))
        for group in range(10):
            member.send(Subscribe(1, [Subscription(f"$share/g{group}/t", 1)]))
        member.cut()
    publisher = world.connect("p")
    assert publisher.send(Publish("t", b"x", 1, 1)) == [PubAck(1)]
    # ten deliveries, and not six hundred members
    assert world.broker.router.work < 10 * (turns.DELIVERY_WORK + turns.SESSION_WORK) + 300
    assert sum(state.session.waiting for state in world.broker.router.sessions.values()) == 10


# --- our own silence ------------------------------------------------------------------------------


def test_time_in_which_nobody_was_listened_to_is_no_silence_of_a_client() -> None:
    world = World()
    client = world.connect("a", keep_alive=10)
    applicant = world.open()
    world.now += 60
    world.broker.sweep(world.now, stalled_seconds=58.0)
    assert not client.is_closed()
    assert not applicant.is_closed()
    world.now += 20
    world.broker.sweep(world.now)
    assert client.is_closed()
    assert applicant.is_closed()

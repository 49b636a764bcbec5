"""Whoever sends much is served turn by turn, and everybody else in between."""

import pytest

from semel.broker import turns
from semel.broker.authority import Authority
from semel.broker.identity import Identity
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    encode,
)
from semel.mqtt.session_restore import restore_exchanges
from semel.store.store import FULL, OPEN
from tests.broker.core.test_core import VERSIONS, payloads, persistent
from tests.broker.core.test_restart import Lasting
from tests.broker.core.test_store import Kept
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


@pytest.mark.slow
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
    class Raising(Authority):
        def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
            raise RuntimeError("a fault of ours")

    world = World(authority=Raising())
    attacker, innocent = world.connect("a", MQTT5), world.connect("i", MQTT5)
    receive(attacker, encode(PingReq()) * 3_000 + encode(Publish("t", b"x")))
    receive(innocent, encode(PingReq()) * 3_000)
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


def test_who_is_held_back_for_a_reader_does_not_keep_others_from_their_turn() -> None:
    world = World()
    held, other = world.connect("h", MQTT311), world.connect("o", MQTT311)
    for client in (held, other):
        receive(client, flood("pings", MQTT311))
    held.connection.paused_by_reader = True
    world.tick()
    assert len(other.take()) == 5_000
    assert 0 < len(held.take()) < 5_000
    assert not world.broker.has_turns()


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
    assert sum(len(state.session.backlog) for state in world.broker.router.sessions.values()) == 10


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


# --- what is due at one time ----------------------------------------------------------------------


READERS = 60
KEPT = Properties(session_expiry_interval=1_000)


def will_world(version: int = MQTT5) -> tuple[World, list[Client]]:
    """Each will costs about an eighth of a turn: so many read it."""
    world = World(BrokerSettings(sys_interval=0.0))
    readers = [world.connect(f"r{number}", version) for number in range(READERS)]
    for reader in readers:
        reader.subscribe("will")
    return world, readers


def answered_ticks(world: World, bystander: Client) -> int:
    """Ticks until nothing is left to do; the bystander is answered in each of them."""
    ticks = 0
    while world.broker.has_turns():
        world.broker.take_turns(world.now)
        receive(bystander, encode(PingReq(), bystander.version))
        world.flush()
        assert bystander.take() == [PingResp()]
        ticks += 1
    return ticks


def test_wills_that_are_due_at_one_time_are_published_turn_by_turn() -> None:
    world, readers = will_world()
    bystander = world.connect("i", MQTT311)
    for number in range(100):
        will = Will("will", b"%d" % number, properties=Properties(will_delay_interval=10))
        world.connect(f"w{number}", will=will, properties=KEPT).cut()
    world.now += 10
    world.broker.sweep(world.now)
    world.flush()
    first = len(payloads(readers[-1].take()))
    assert 1 <= first <= 10
    assert answered_ticks(world, bystander) >= 9
    rest = len(payloads(readers[-1].take()))
    assert first + rest == 100
    assert len(payloads(readers[0].take())) == 100


def test_wills_of_connections_that_are_lost_at_one_time_are_published_turn_by_turn() -> None:
    world, readers = will_world()
    bystander = world.connect("i", MQTT311)
    clients = [world.connect(f"w{n}", will=Will("will", b"%d" % n)) for n in range(100)]
    for client in clients:
        world.broker.lost(client.connection, world.now)
        world.clients.remove(client)
    world.flush()
    first = len(payloads(readers[-1].take()))
    assert 1 <= first <= 10
    # Who comes back meanwhile finds all done that was due.
    back = world.open()
    receive(back, encode(Connect("w99")))
    world.flush()
    assert payloads(readers[-1].take()) == [b"99"]
    assert answered_ticks(world, bystander) >= 8
    assert len(payloads(readers[0].take())) == 100
    assert set(world.broker.router.sessions) == {f"r{n}" for n in range(READERS)} | {"i", "w99"}


def test_sessions_that_end_at_one_time_end_turn_by_turn() -> None:
    world = Lasting(BrokerSettings(sys_interval=0.0))
    for number in range(300):
        world.durable(f"s{number}").cut()
    # A restart, so that the store is asked what each has open.
    world.crash()
    bystander = world.connect("i", MQTT311)
    world.now += 1_000
    world.broker.sweep(world.now)
    assert 1 < len(world.broker.router.sessions) < 301
    assert answered_ticks(world, bystander) >= 2
    assert set(world.broker.router.sessions) == {"i"}
    assert world.rows("session") == 0


# --- clients that come back to many messages ------------------------------------------------------


def unanswered(world: World, client_id: str, count: int, version: int = MQTT5) -> None:
    """A session whose client was sent so many messages and has acknowledged none."""
    reader = persistent(world, client_id, version)
    reader.subscribe(client_id, qos=1)
    publisher = world.connect("p")
    for number in range(count):
        publisher.send(Publish(client_id, b"%d" % number, 1, 1))
    assert len(payloads(reader.take())) == count
    reader.cut()
    publisher.cut()


def resume(world: World, client_id: str, version: int = MQTT5) -> Client:
    """The client is back; the tick has not ended."""
    client = world.open(version)
    kept = Properties(session_expiry_interval=3_600) if version == MQTT5 else Properties()
    connect = Connect(client_id, clean_start=False, version=version, properties=kept)
    receive(client, encode(connect, version))
    return client


@VERSIONS
def test_what_was_in_flight_is_sent_again_over_several_ticks(version: int) -> None:
    count = 1_200
    world = World(BrokerSettings(inflight_window=65_535))
    unanswered(world, "s", count, version)
    client = resume(world, "s", version)
    # To take it up is work, too.
    assert world.broker.router.work >= count
    sent: list[Publish] = []
    ticks = 0
    while len(sent) < count:
        # The broker has something to do without being asked.
        assert world.broker.router.dirty
        world.flush()
        now = [packet for packet in client.take() if isinstance(packet, Publish)]
        assert 0 < len(now) <= turns.SEND_SHARE
        sent += now
        ticks += 1
    assert ticks == 3
    assert [packet.payload for packet in sent] == [b"%d" % number for number in range(count)]
    assert all(packet.dup for packet in sent)


def test_of_many_that_come_back_nobody_waits_until_another_has_all() -> None:
    each, sessions = 400, 15
    world = World()
    for number in range(sessions):
        unanswered(world, f"s{number}", each)
    clients = [resume(world, f"s{number}") for number in range(sessions)]
    world.flush()
    counts = [len(payloads(client.take())) for client in clients]
    # Those for whom the tick has nothing left get one.
    assert sum(counts) <= turns.TICK_MESSAGES + sessions
    assert counts.count(each) == turns.TICK_MESSAGES // each
    assert counts[-1] == 1
    world.flush()
    counts = [len(payloads(client.take())) for client in clients]
    assert counts[-1] == each - 1
    assert not world.broker.router.dirty


def test_what_waits_in_the_store_is_read_and_sent_over_several_ticks() -> None:
    count = 1_200
    world = Lasting(BrokerSettings(sys_interval=0.0), window=100)
    away = world.durable("s")
    away.subscribe("t", qos=1)
    away.cut()
    publisher = world.connect("p")
    for number in range(count):
        publisher.send(Publish("t", b"%d" % number, 1, 1))
    client = resume(world, "s")
    received: list[bytes] = []
    while len(received) < count:
        world.flush()
        now = payloads(client.take())
        assert 0 < len(now) <= turns.SEND_SHARE
        received += now
    assert received == [b"%d" % number for number in range(count)]


def test_a_client_with_all_inbound_identifiers_open_comes_back_quickly() -> None:
    """65,535 of them are not gone through one by one."""
    world = World()
    persistent(world, "s", MQTT311).cut()
    session = world.broker.router.sessions["s"].session
    restore_exchanges(session, [], list(range(1, 65_536)))
    client = resume(world, "s", MQTT311)
    exchange = client.connection.exchange
    assert len(exchange.client.opened or ()) <= 501
    assert exchange.client.stage(65_535)
    world.flush()
    assert [p for p in client.take() if isinstance(p, ConnAck)]
    again = Publish("t", b"", 2, 65_535, dup=True)
    assert client.send(again) == [PubRec(65_535)]
    assert client.send(PubRel(65_535)) == [PubComp(65_535)]

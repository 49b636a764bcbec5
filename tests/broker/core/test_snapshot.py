"""The numbers of the broker: each agrees exactly with what has happened."""

import pytest

from semel.broker.authority import (
    Authority,
    Denied,
    Granted,
    Proof,
    ServerAuthentication,
    Step,
)
from semel.broker.counters import DROP_REASONS, Drops, MessageCounts
from semel.broker.identity import Identity, PeerInfo
from semel.broker.session_totals import SessionPasses
from semel.broker.settings import BrokerSettings
from semel.broker.snapshot import BrokerSnapshot
from semel.mqtt import (
    MQTT5,
    MQTT311,
    RULES,
    Auth,
    Connect,
    Disconnect,
    Properties,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from semel.mqtt.reasons import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED,
    RE_AUTHENTICATE,
    SERVER_BUSY,
    SUCCESS,
)
from semel.store.store import Store
from semel.store.streams import Stream, Streams
from tests.broker.world import World

VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5])
# A session that outlives its connection.
LONG = Properties(session_expiry_interval=100)


def snapshot(world: World) -> BrokerSnapshot:
    """The numbers, with those of all sessions as they are now."""
    world.now += 1.0
    return world.broker.snapshot(world.now)


def test_many_sessions_are_added_up_in_slices() -> None:
    world = quiet()
    for number in range(5):
        world.connect(f"c{number}", properties=LONG)
    sessions = world.broker.router.sessions
    passes = SessionPasses(sessions, world.now, slice_sessions=2)
    # At the start all of them, and then a slice with each call.
    assert passes.totals.connected == 5
    for number in range(5, 9):
        world.connect(f"c{number}", properties=LONG)
    found = []
    for _ in range(6):
        passes.advance(world.now)
        found.append(passes.totals.connected)
    # The next pass is not due yet.
    assert found == [5, 5, 5, 5, 9, 9]
    world.now += 1.0
    before = passes.totals
    passes.sweep(world.now)
    world.clients[0].cut()
    # A session that ends while a pass is under way.
    world.broker.actions.delete_session("c1", world.now)
    for _ in range(3):
        passes.sweep(world.now)
        assert passes.totals is before
    passes.sweep(world.now)
    assert passes.totals.connected == 7


def test_a_pass_continues_after_a_session_that_cannot_be_added() -> None:
    world = quiet()
    for number in range(4):
        world.connect(f"c{number}")
    sessions = dict(world.broker.router.sessions)
    passes = SessionPasses(sessions, world.now, slice_sessions=2)
    sessions["broken"] = None  # type: ignore[assignment]
    with pytest.raises((AttributeError, TypeError)):
        passes.sweep(world.now)
    passes.sweep(world.now)
    passes.sweep(world.now)
    assert passes.totals.connected == 4


def test_few_sessions_need_no_sweep() -> None:
    world = quiet()
    world.connect("a")
    passes = SessionPasses(world.broker.router.sessions, world.now, slice_sessions=2)
    world.connect("b")
    passes.sweep(world.now + 9.0)
    assert passes.totals.connected == 1
    passes.advance(world.now + 9.0)
    assert passes.totals.connected == 2


def test_a_pass_that_is_under_way_is_completed_although_sessions_have_left() -> None:
    world = quiet()
    for number in range(4):
        world.connect(f"c{number}")
    passes = SessionPasses(world.broker.router.sessions, world.now, slice_sessions=2)
    passes.sweep(world.now)
    for each in list(world.clients):
        each.cut()
    assert not world.broker.router.sessions
    passes.sweep(world.now)
    # Those of the first slice were connected when they were added.
    assert passes.totals.connected == 2
    passes.sweep(world.now + 1.0)
    passes.advance(world.now + 1.0)
    assert passes.totals.connected == 0


def quiet(**settings: int) -> World:
    return World(BrokerSettings(sys_interval=0.0, **settings))  # type: ignore[arg-type]


# --- messages -------------------------------------------------------------------------------------


@VERSIONS
def test_messages_are_counted_by_qos_and_direction_on_both_paths(version: int) -> None:
    world = quiet()
    reader = world.connect("r", version)
    reader.subscribe("t", qos=2)
    publisher = world.connect("p", version)
    # The first message to a topic takes the plain path, the others the hot one.
    for _ in range(3):
        publisher.send(Publish("t", b"12345"), Publish("t", b"678"))
    for packet_id in (1, 2):
        publisher.send(Publish("t", b"1234567", 1, packet_id))
    publisher.send(Publish("t", b"123456789", 2, 7))
    found = snapshot(world)
    assert found.messages_received == (6, 2, 1)
    assert found.payload_received == (24, 14, 9)
    assert found.messages_sent == (6, 2, 1)
    assert found.payload_sent == (24, 14, 9)
    assert world.broker.counters.messages_received == world.broker.counters.messages_sent == 9
    # CONNECT, SUBSCRIBE; CONNECT and 9 messages.
    assert found.packets_received == 12
    # CONNACK, SUBACK and 9 messages; CONNACK, two PUBACK, PUBREC.
    assert found.packets_sent == 15


def test_counts_of_one_qos_do_not_touch_another() -> None:
    counts = MessageCounts()
    counts.add(0, messages=1, size=10)
    counts.add(1, messages=2, size=20)
    counts.add(2, messages=3, size=30)
    assert counts.messages() == (1, 2, 3)
    assert counts.payload_bytes() == (10, 20, 30)


def test_queued_messages_and_messages_in_flight_are_summed() -> None:
    world = quiet(inflight_window=2)
    here = world.connect("here", MQTT311)
    here.subscribe("t", qos=2)
    away = world.connect("away", clean_start=False, properties=LONG)
    away.subscribe("t", qos=1)
    away.cut()
    publisher = world.connect("p")
    for number in range(1, 4):
        publisher.send(Publish("t", bytes(99), 2, number))
        publisher.send(PubRel(number))
    totals = snapshot(world).totals
    assert (totals.in_flight_messages, totals.queued_messages) == (2, 1 + 3)
    # A topic of one byte, and the payload.
    assert totals.queued_bytes == 400
    assert totals.in_flight_bytes > 200
    assert (totals.connected, totals.durable) == (2, 0)
    first, _ = (packet for packet in here.take() if isinstance(packet, Publish))
    here.send(PubRec(first.packet_id))
    here.send(PubComp(first.packet_id))
    totals = snapshot(world).totals
    assert (totals.in_flight_messages, totals.queued_messages) == (2, 3)


def test_sessions_in_a_store_are_durable() -> None:
    world = World(BrokerSettings(sys_interval=0.0), store=Store(is_durable=True))
    world.connect("short")
    world.connect("long", clean_start=False, properties=LONG).cut()
    totals = snapshot(world).totals
    assert (totals.connected, totals.durable) == (1, 1)


def test_connections_are_counted_by_listener_until_they_are_lost() -> None:
    world = quiet()
    assert snapshot(world).connections == {}
    world.connect("a")
    second = world.open()
    tls = world.broker.opened(PeerInfo("10.0.0.1:5", listener="tls"), world.now)
    assert snapshot(world).connections == {"default": 2, "tls": 1}
    second.cut()
    for _ in range(2):
        world.broker.lost(tls, world.now)
    assert snapshot(world).connections == {"default": 1, "tls": 0}


def test_the_pass_over_all_sessions_is_made_once_a_second() -> None:
    world = quiet()
    world.now += 5.0
    assert world.broker.snapshot(world.now).totals.connected == 0
    world.connect("a")
    found = world.broker.snapshot(world.now + 0.99)
    # Numbers that are kept as totals are never old.
    assert (found.totals.connected, found.clients, found.sessions) == (0, 1, 1)
    assert world.broker.snapshot(world.now + 1.0).totals.connected == 1


# --- drops ----------------------------------------------------------------------------------------


def dropped(world: World) -> dict[str, int]:
    """The reasons that were counted."""
    return {reason: count for reason, count in snapshot(world).dropped.items() if count}


def test_every_reason_for_a_drop_has_a_name_and_a_count() -> None:
    assert set(snapshot(quiet()).dropped) == set(DROP_REASONS)
    assert set(snapshot(quiet()).dropped.values()) == {0}
    drops = Drops()
    for reason in range(len(DROP_REASONS)):
        drops.add(reason)
    drops.add(0, 4)
    assert drops.by_reason == [5, 1, 1, 1, 1, 1, 1, 1]
    # Those that expired, are too large or not for their receiver are not dropped by a limit.
    assert drops.by_limits == 9


def test_a_full_queue_a_slow_reader_and_a_full_place_for_retained_messages() -> None:
    world = quiet(maximum_queued_messages=1, maximum_retained=1, maximum_outgoing_bytes=1_000)
    away = world.connect("away", clean_start=False, properties=LONG)
    away.subscribe("q", qos=1)
    away.cut()
    slow = world.connect("slow")
    slow.subscribe("s")
    slow.unread = 1_000
    world.tick()
    publisher = world.connect("p")
    publisher.send(Publish("q", b"1", 1, 1), Publish("q", b"2", 1, 2), Publish("q", b"3", 1, 3))
    assert dropped(world) == {"queue_full": 2}
    publisher.send(Publish("s", b"1"))
    publisher.send(Publish("r/1", b"1", retain=True), Publish("r/2", b"1", retain=True))
    assert dropped(world) == {"queue_full": 2, "slow_reader": 1, "retained_full": 1}
    assert snapshot(world).dropped_by_limits == 4
    assert snapshot(world).retained_messages == 1
    assert snapshot(world).retained_bytes > 0


def test_what_is_not_kept_because_memory_is_short() -> None:
    world = quiet()
    away = world.connect("away", clean_start=False, properties=LONG)
    away.subscribe("q", qos=1)
    away.cut()
    publisher = world.connect("p")
    world.broker.memory.update(world.broker.memory.limit + 1)
    publisher.send(Publish("q", b"1", 1, 1))
    publisher.send(Publish("r", b"1", retain=True))
    assert dropped(world) == {"memory_short": 2}
    found = snapshot(world)
    assert found.memory_is_short
    assert found.memory == found.most_memory == found.memory_limit + 1
    world.broker.memory.update(1_000)
    found = snapshot(world)
    assert (found.memory_is_short, found.memory) == (False, 1_000)
    assert found.most_memory == found.memory_limit + 1


def test_expired_messages_are_counted_when_they_make_room_and_when_they_would_be_sent() -> None:
    world = quiet(maximum_queued_messages=2)
    away = world.connect("away", clean_start=False, properties=LONG)
    away.subscribe("q", qos=1)
    away.cut()
    publisher = world.connect("p")
    short = Properties(message_expiry_interval=5)
    for packet_id in (1, 2):
        publisher.send(Publish("q", b"old", 1, packet_id, properties=short))
    world.now += 6.0
    publisher.send(Publish("q", b"new", 1, 3, properties=short))
    assert dropped(world) == {"expired": 2}
    world.now += 6.0
    back = world.connect("away", clean_start=False, properties=LONG, present=True)
    assert back.take() == []
    assert dropped(world) == {"expired": 3}
    assert snapshot(world).dropped_by_limits == 0


def test_messages_that_are_too_large_for_a_receiver_are_counted() -> None:
    world = quiet()
    small = world.connect("small", properties=Properties(maximum_packet_size=50))
    small.subscribe("t", qos=1)
    publisher = world.connect("p")
    publisher.send(Publish("t", bytes(100)), Publish("t", bytes(10)))
    publisher.send(Publish("t", bytes(100), 1, 1), Publish("t", bytes(10), 1, 2))
    assert dropped(world) == {"too_large": 2}
    assert len(small.take()) == 2


# --- violations and refusals ----------------------------------------------------------------------


def test_violations_are_counted_by_rule() -> None:
    world = quiet()
    for _ in range(2):
        # A second CONNECT is not allowed.
        world.connect("a").send(Connect("a"))
    client = world.connect("b")
    # Neither is a QoS 2 message again, but the receiver has to continue.
    client.send(Publish("t", b"", 2, 1), Publish("t", b"", 2, 1, dup=True))
    assert not client.is_closed()
    world.open().send_bytes(b"\xf0\xff\xff\xff\xff")
    found = snapshot(world).violations
    assert sum(found.values()) == 4
    assert sorted(found.values()) == [1, 1, 2]
    assert set(found) <= {rule.name for rule in RULES}


class Strict(Authority):
    """Refuses clients and topics by name, and knows no method of authentication."""

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        codes = {"bad": BAD_USER_NAME_OR_PASSWORD, "no": NOT_AUTHORIZED, "busy": SERVER_BUSY}
        code = codes.get(packet.client_id)
        return super().connect(packet, peer) if code is None else Denied(code)

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        return NOT_AUTHORIZED if topic_name == "secret" else SUCCESS


def test_refused_connects_are_counted_by_reason_and_authentication_failures_as_well() -> None:
    world = World(BrokerSettings(sys_interval=0.0), authority=Strict())
    for client_id in ("bad", "bad", "no", "busy", "fine"):
        world.open().send(Connect(client_id))
    method = Properties(authentication_method="unknown")
    world.open().send(Connect("fine", properties=method))
    found = snapshot(world)
    assert found.refused_connects == {
        BAD_USER_NAME_OR_PASSWORD: 2,
        NOT_AUTHORIZED: 1,
        SERVER_BUSY: 1,
        BAD_AUTHENTICATION_METHOD: 1,
    }
    assert found.authentication_failures == 4
    assert (found.ever_connected, found.clients, found.connections_opened) == (1, 1, 6)


class Once(ServerAuthentication):
    """Grants the first step only."""

    def __init__(self) -> None:
        self.steps = 0

    def start(self, data: bytes | None) -> Step:
        self.steps += 1
        return Granted() if self.steps == 1 else Denied(NOT_AUTHORIZED)

    def answer(self, data: bytes | None) -> Step:
        raise AssertionError("there is no second step")


class OnceOnly(Authority):
    def begin_authentication(
        self, method: str, packet: Connect, peer: PeerInfo
    ) -> ServerAuthentication | None:
        return Once()


def test_a_failed_re_authentication_is_an_authentication_failure() -> None:
    world = World(BrokerSettings(sys_interval=0.0), authority=OnceOnly())
    method = Properties(authentication_method="m")
    client = world.connect("a", properties=method)
    assert snapshot(world).authentication_failures == 0
    client.send(Auth(RE_AUTHENTICATE, properties=method))
    found = snapshot(world)
    assert found.authentication_failures == 1
    assert found.refused_connects == {}


def test_refused_publishes_are_counted_by_reason() -> None:
    world = World(BrokerSettings(sys_interval=0.0), authority=Strict())
    client = world.connect("a")
    client.send(Publish("secret", b"", 1, 1), Publish("secret", b""), Publish("public", b"", 1, 2))
    assert snapshot(world).refused_publishes == {NOT_AUTHORIZED: 2}


# --- sessions -------------------------------------------------------------------------------------


def test_sessions_and_subscriptions_are_counted_as_they_come_and_go() -> None:
    world = quiet()
    client = world.connect("a", clean_start=False, properties=LONG)
    world.connect("b").send(
        Subscribe(1, [Subscription("$share/g/t", 0), Subscription("$share/g/+", 0)])
    )
    client.subscribe("a/+", "b")
    client.subscribe("b", qos=1)
    found = snapshot(world)
    assert (found.subscriptions, found.shared_subscriptions) == (4, 2)
    client.send(Unsubscribe(1, ["b"]))
    found = snapshot(world)
    assert (found.subscriptions, found.shared_subscriptions) == (3, 2)
    assert (found.sessions, found.clients, found.most_clients) == (2, 2, 2)
    for each in list(world.clients):
        each.cut()
    found = snapshot(world)
    # The session of b has ended with its connection.
    assert (found.sessions, found.clients, found.most_clients) == (1, 0, 2)
    assert (found.subscriptions, found.shared_subscriptions) == (1, 0)
    assert (found.sessions_expired, found.ever_connected) == (0, 2)
    world.wait(101)
    found = snapshot(world)
    assert (found.sessions, found.sessions_expired, found.subscriptions) == (0, 1, 0)


def test_a_client_that_ends_its_session_did_not_expire() -> None:
    world = quiet()
    client = world.connect("a", clean_start=False, properties=LONG)
    client.send(Disconnect(properties=Properties(session_expiry_interval=0)))
    found = snapshot(world)
    assert (found.sessions, found.sessions_expired) == (0, 0)


def test_publishers_that_wait_because_of_their_rate() -> None:
    world = quiet(user_messages_per_second=0, address_messages_per_second=10)
    client = world.connect("a")
    client.send(*[Publish("t", b"") for _ in range(30)])
    found = snapshot(world)
    assert (found.paused_by_rate, found.paused_by_reader) == (1, 0)


def test_paused_publishers_and_streams_are_in_the_snapshot() -> None:
    streams = Streams([Stream(1, "plant", "plant/#", 41)])
    world = World(BrokerSettings(sys_interval=0.0, maximum_outgoing_bytes=1_000), streams=streams)
    slow = world.connect("slow")
    slow.subscribe("#")
    slow.unread = 900
    world.tick()
    publisher = world.connect("p")
    publisher.send(Publish("plant/1", b"x"))
    found = snapshot(world)
    assert found.streams == {"plant": 42}
    assert (found.paused_by_reader, found.paused_by_store) == (1, 0)
    assert (found.uncommitted, found.store_condition) == (0, 0)
    assert found.uptime > 0

"""A broker goes on where another ended: with the real tables, in memory.

`Crashing` applies commits when it is told to. A crash is a new broker on the same tables: what was
not applied is lost, and every connection is.
"""

import pytest

from semel.broker.authority import Authority
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Will,
    encode,
)
from semel.mqtt.delivery import Delivery
from semel.store.commit import Commit
from semel.store.database import Database
from semel.store.store import RestoredState, Store
from semel.store.streams import Stream, Streams
from tests.broker.by_hand import memory
from tests.broker.world import Client, World
from tests.modes import repeats

KEPT = Properties(session_expiry_interval=100)
VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])


class Crashing(Store):
    """The real tables, and commits that are applied at once, or only when `holding` ends."""

    def __init__(self, database: Database) -> None:
        super().__init__(is_durable=True)
        self.database = database
        self.holding = False
        self.held: list[Commit] = []

    def write(self, commit: Commit) -> bool:
        if self.holding:
            self.held.append(commit)
            return False
        self.database.apply([commit])
        return True

    def restore(self) -> RestoredState:
        return self.database.restore()

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        return self.database.exchanges(session)

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        return self.database.queue(session, first, limit)

    def expired(self, session: int, first: int, now: float) -> list[tuple[int, int]]:
        return self.database.expired(session, first, now)

    def next_expiry(self, session: int, first: int, now: float) -> float | None:
        return self.database.next_expiry(session, first, now)


class Lasting(World):
    """A world that can crash."""

    def __init__(
        self,
        settings: BrokerSettings | None = None,
        window: int = 1_000,
        *,
        authority: Authority | None = None,
    ) -> None:
        self.given = settings
        self.authority = authority
        self.window = window
        self.database = Database.open(":memory:")
        self.store = self.new_store()
        super().__init__(
            settings, authority, store=self.store, streams=self.read_streams(), window=window
        )

    def new_store(self) -> Crashing:
        """What a broker is given that starts."""
        return Crashing(self.database)

    def read_streams(self) -> Streams:
        row = self.database.stream("s")
        return Streams([Stream(row.id, "s", "s/#", row.last_seq)])

    def crash(self) -> None:
        """All that is not on disk is gone."""
        now = self.now
        # Nothing that the object remembers may survive either.
        self.database = Database(self.database.connection)
        self.store = self.new_store()
        super().__init__(
            self.given,
            self.authority,
            store=self.store,
            streams=self.read_streams(),
            window=self.window,
            now=now,
        )
        self.tick()

    def durable(self, client_id: str, version: int = MQTT5, *, present: bool = False) -> Client:
        """A client with a session that lasts."""
        return self.connect(
            client_id,
            version,
            clean_start=False,
            properties=KEPT if version == MQTT5 else Properties(),
            present=present,
        )

    def rows(self, table: str) -> int:
        count: int = self.database.connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        return count


def payloads(packets: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


@VERSIONS
def test_a_session_its_subscriptions_and_its_queue_survive(version: int) -> None:
    world = Lasting()
    reader = world.durable("r", version)
    reader.subscribe("t/+", qos=1)
    reader.cut()
    publisher = world.connect("p", version)
    for at in range(3):
        publisher.send(Publish("t/x", b"%d" % at, 1, at + 1))
    world.crash()
    reader = world.durable("r", version, present=True)
    world.connect("p", version).send(Publish("t/y", b"3", 1, 1))
    assert payloads(reader.take()) == [b"0", b"1", b"2", b"3"]


@VERSIONS
def test_what_was_in_flight_is_sent_again_with_its_identifier(version: int) -> None:
    """[MQTT-4.4.0-1] PUBLISH with DUP, PUBREL where PUBREC had come; nothing twice"""
    world = Lasting()
    reader = world.durable("r", version)
    reader.subscribe("t", qos=2)
    publisher = world.connect("p", version)
    for packet_id in (1, 2, 3):
        publisher.send(Publish("t", b"%d" % packet_id, 2, packet_id))
    reader.send(PubRec(1), PubRec(2))
    reader.send(PubComp(2))
    world.crash()
    reader = world.open(version)
    kept = KEPT if version == MQTT5 else Properties()
    connack, *packets = reader.send(
        Connect("r", version=version, clean_start=False, properties=kept)
    )
    assert isinstance(connack, ConnAck)
    assert connack.session_present
    assert packets == [PubRel(1), Publish("t", b"3", 2, 3, dup=True)]
    assert reader.send(PubComp(1), PubRec(3)) == [PubRel(3)]
    assert reader.send(PubComp(3)) == []
    assert world.rows("delivery") == 0


@VERSIONS
def test_a_qos_2_message_is_the_same_one_after_a_crash(version: int) -> None:
    """[MQTT-4.3.3-10]: its identifier is kept, so that a repeat is not a new message"""
    world = Lasting()
    reader = world.durable("r", version)
    reader.subscribe("t", qos=1)
    publisher = world.durable("p", version)
    assert publisher.send(Publish("t", b"x", 2, 7)) == [PubRec(7)]
    world.crash()
    reader = world.durable("r", version, present=True)
    publisher = world.durable("p", version, present=True)
    assert payloads(reader.take()) == [b"x"]
    assert publisher.send(Publish("t", b"x", 2, 7, dup=True)) == [PubRec(7)]
    assert reader.take() == []
    assert publisher.send(PubRel(7)) == [PubComp(7)]
    world.crash()
    reader = world.durable("r", version, present=True)
    reader.take()
    publisher = world.durable("p", version, present=True)
    # From here on the identifier is a new message's.
    assert publisher.send(Publish("t", b"y", 2, 7)) == [PubRec(7)]
    assert payloads(reader.take()) == [b"y"]


def test_what_was_not_committed_was_not_acknowledged_and_is_gone() -> None:
    world = Lasting()
    world.durable("r").subscribe("t", qos=1)
    publisher = world.connect("p")
    world.store.holding = True
    assert publisher.send(Publish("t", b"x", 1, 1)) == []
    world.crash()
    assert payloads(world.durable("r", present=True).take()) == []
    assert world.connect("p").send(Publish("t", b"x", 1, 1)) == [PubAck(1)]


def test_retained_messages_survive_and_deleted_ones_do_not_come_back() -> None:
    world = Lasting()
    publisher = world.connect("p")
    properties = Properties(content_type="x", user_properties=[("a", "b"), ("a", "c")])
    publisher.send(
        Publish("b", b"1", 1, 1, retain=True, properties=properties),
        Publish("a", b"2", retain=True),
        Publish("c", b"3", retain=True),
        Publish("b", b"4", 2, 2, retain=True, properties=properties),
        Publish("c", b"", retain=True),
    )
    world.crash()
    packets = world.connect("r").send(Subscribe(1, [Subscription("#", 2)]))
    kept = [packet for packet in packets if isinstance(packet, Publish)]
    # At QoS 0 it passes what waits for the store.
    assert kept == [
        Publish("a", b"2", retain=True),
        Publish("b", b"4", 2, 1, retain=True, properties=properties),
    ]
    again = world.connect("q").subscribe("#", qos=0)
    assert [packet.topic_name for packet in again if isinstance(packet, Publish)] == ["b", "a"]


def test_retained_messages_for_which_there_is_no_room_any_more_are_named() -> None:
    world = Lasting(BrokerSettings(maximum_retained=2))
    for topic_name in ("a", "b"):
        world.connect("p").send(Publish(topic_name, b"x", retain=True))
    world.given = BrokerSettings(maximum_retained=1)
    world.crash()
    assert len(world.broker.router.retained) == 1
    assert [line for line in world.log if "no room" in line and "'b'" in line]
    # They are kept, for a start with more room.
    assert world.rows("retained") == 2


def test_a_session_that_ended_does_not_come_back_with_anything() -> None:
    world = Lasting()
    client = world.durable("a")
    client.subscribe("t", qos=2)
    client.send(Publish("t", b"x", 2, 5))
    world.connect("a", clean_start=True)
    world.crash()
    for table in ("session", "subscription", "delivery", "delivery_extra", "inbound"):
        assert world.rows(table) == 0, table
    world.connect("a", clean_start=False, properties=KEPT)


def test_the_expiry_of_a_session_runs_from_the_crash_or_from_when_it_left() -> None:
    world = Lasting()
    world.durable("connected")
    world.durable("left").cut()
    world.wait(60)
    world.crash()
    world.wait(50)
    assert set(world.broker.router.sessions) == {"connected"}
    # A second crash does not begin it anew.
    world.crash()
    world.wait(51)
    assert set(world.broker.router.sessions) == set()
    assert world.rows("session") == 0


def test_a_session_for_this_connection_alone_ends_with_a_crash() -> None:
    """Kept before, and resumed with a Session Expiry Interval of 0"""
    world = Lasting()
    world.durable("a").subscribe("t", qos=1)
    world.connect("a", clean_start=False, present=True)
    world.connect("p").send(Publish("t", b"x", 1, 1))
    world.crash()
    assert world.broker.router.sessions == {}
    assert world.rows("session") == world.rows("delivery") == 0


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "not durable"])
def test_the_will_of_a_client_is_published_once_after_a_crash(durable: bool) -> None:
    world = Lasting()
    reader = world.durable("r")
    reader.subscribe("gone", qos=2)
    will = Will("gone", b"bye", qos=2, retain=True, properties=Properties(content_type="x"))
    world.connect("a", will=will, properties=KEPT if durable else None)
    world.crash()
    world.crash()
    reader = world.durable("r", present=True)
    assert payloads(reader.take()) == [b"bye"]
    assert world.rows("will") == 0
    assert payloads(world.connect("late").subscribe("gone")) == [b"bye"]


def test_a_will_that_was_taken_back_does_not_come_back() -> None:
    world = Lasting()
    reader = world.durable("r")
    reader.subscribe("gone", qos=1)
    client = world.connect("a", will=Will("gone", b"bye", qos=1))
    client.send_bytes(b"\xe0\x00")
    world.crash()
    assert payloads(world.durable("r", present=True).take()) == []


def test_the_delay_of_a_will_runs_from_the_crash_or_from_when_its_client_left() -> None:
    """[MQTT-3.1.3-9]: and whoever is back in time has none"""
    world = Lasting()
    reader = world.durable("r")
    reader.subscribe("gone/+", qos=1)
    for client_id in ("stays", "left", "returns"):
        delayed = Properties(will_delay_interval=30)
        will = Will(f"gone/{client_id}", b"bye", qos=1, properties=delayed)
        client = world.connect(client_id, will=will, properties=KEPT)
        if client_id == "left":
            client.cut()
    world.wait(20)
    world.crash()
    reader = world.durable("r", present=True)
    world.durable("returns", present=True)
    world.wait(11)
    topics = [packet.topic_name for packet in reader.take() if isinstance(packet, Publish)]
    assert topics == ["gone/left"]
    world.wait(20)
    topics = [packet.topic_name for packet in reader.take() if isinstance(packet, Publish)]
    assert topics == ["gone/stays"]


def test_a_clock_that_was_set_back_makes_nothing_come_early() -> None:
    world = Lasting()
    reader = world.durable("r")
    reader.subscribe("#", qos=1)
    reader.cut()
    delayed = Will("gone", b"bye", qos=1, properties=Properties(will_delay_interval=30))
    world.connect("a", will=delayed, properties=KEPT).cut()
    expiring = Properties(message_expiry_interval=20)
    world.connect("p").send(Publish("t", b"x", 1, 1, properties=expiring))
    world.now -= 500.0
    world.crash()
    world.wait(90)
    assert set(world.broker.router.sessions) >= {"r", "a"}
    assert payloads(world.durable("r", present=True).take()) == [b"x"]
    world.wait(520)
    assert "a" not in world.broker.router.sessions


def test_a_stream_goes_on_with_its_numbers() -> None:
    world = Lasting()
    publisher = world.durable("p")
    publisher.send(Publish("s/a", b"0", 1, 1), Publish("s/a", b"1", 2, 2))
    world.store.holding = True
    publisher.send(Publish("s/a", b"lost", 1, 3))
    world.crash()
    publisher = world.durable("p", present=True)
    publisher.send(Publish("s/a", b"1", 2, 2, dup=True), Publish("s/a", b"2", 1, 3, dup=True))
    rows = world.database.connection.execute("SELECT seq, payload FROM record").fetchall()
    assert rows == [(1, b"0"), (2, b"1"), (3, b"2")]


def test_a_message_keeps_all_its_properties_on_disk() -> None:
    world = Lasting()
    reader = world.durable("r")
    reader.send(
        Subscribe(
            1,
            [Subscription("t", 1, retain_as_published=True)],
            properties=Properties(subscription_identifiers=[9]),
        )
    )
    reader.cut()
    properties = Properties(
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="answer",
        correlation_data=b"\0\xff",
        message_expiry_interval=50,
        user_properties=[("a", "b"), ("a", "c")],
    )
    large = "x" * 10_000
    world.connect("p").send(Publish("t", large.encode(), 1, 1, retain=True, properties=properties))
    world.wait(10)
    world.crash()
    (packet,) = world.durable("r", present=True).take()
    assert isinstance(packet, Publish)
    assert packet.payload == large.encode()
    assert packet.retain
    assert packet.properties.message_expiry_interval == 40
    assert packet.properties.subscription_identifiers == (9,)
    assert packet.properties.user_properties == (("a", "b"), ("a", "c"))
    assert packet.properties.correlation_data == b"\0\xff"


# --- queues that are longer than what is in memory ------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("crash", [False, True], ids=["running", "after a crash"])
def test_a_long_queue_comes_back_in_order_and_complete(version: int, crash: bool) -> None:
    world = Lasting(BrokerSettings(inflight_window=3), window=4)
    reader = world.durable("r", version)
    reader.subscribe("t", qos=1)
    reader.cut()
    publisher = world.connect("p", version)
    for at in range(30):
        publisher.send(Publish("t", b"%d" % at, 1, 1))
    assert len(world.broker.router.sessions["r"].session.backlog) == 30
    if crash:
        world.crash()
        publisher = world.connect("p", version)
    reader = world.durable("r", version, present=True)
    received: list[bytes] = []
    for more in range(200):
        packets = [packet for packet in reader.take() if isinstance(packet, Publish)]
        if not packets:
            break
        received += payloads(list(packets))
        answers: list[Packet] = []
        for packet in packets:
            answers += reader.send(PubAck(packet.packet_id))
        reader.inbox += answers
        if more < 5:
            publisher.send(Publish("t", b"%d" % (30 + more), 1, 1))
            world.tick()
    assert received == [b"%d" % at for at in range(35)]
    assert world.rows("delivery") == 0
    assert len(world.broker.router.sessions["r"].session.backlog) == 0


def test_what_is_not_safe_yet_is_read_when_it_is() -> None:
    world = Lasting(BrokerSettings(inflight_window=1), window=2)
    reader = world.durable("r", MQTT311)
    reader.subscribe("t", qos=1)
    publisher = world.connect("p", MQTT311)
    world.store.holding = True

    def settle() -> None:
        held, world.store.held = world.store.held, []
        for commit in held:
            world.database.apply([commit])
            world.broker.committed(commit, world.now)
        world.tick()

    def acknowledged() -> list[bytes]:
        packets = [packet for packet in reader.take() if isinstance(packet, Publish)]
        for packet in packets:
            reader.send(PubAck(packet.packet_id))
        return [packet.payload for packet in packets]

    for at in range(3):
        publisher.send(Publish("t", b"%d" % at, 1, at + 1))
    settle()
    received = acknowledged()
    for at in range(3, 6):
        publisher.send(Publish("t", b"%d" % at, 1, at + 1))
    for _ in range(20):
        settle()
        received += acknowledged()
    assert received == [b"%d" % at for at in range(6)]


def test_a_connected_reader_whose_next_messages_are_not_safe_yet_waits_for_them() -> None:
    world = Lasting(BrokerSettings(inflight_window=3), window=2)
    reader = world.durable("r", MQTT311)
    reader.subscribe("t", qos=1)
    publisher = world.connect("p", MQTT311)
    for at in range(4):
        publisher.send(Publish("t", b"%d" % at, 1, at + 1))
    # Three are sent and one waits: the next ones are on disk alone, and not there yet.
    world.store.holding = True
    for at in range(4, 8):
        publisher.send(Publish("t", b"%d" % at, 1, at + 1))
    assert payloads(reader.take()) == [b"0", b"1", b"2"]
    reader.send(PubAck(1), PubAck(2), PubAck(3))
    world.store.holding = False
    for commit in world.store.held:
        world.database.apply([commit])
        world.broker.committed(commit, world.now)
    world.tick()
    received = payloads(reader.take())
    for packet_id in range(4, 10):
        received += payloads(reader.send(PubAck(packet_id)))
        if len(received) == 5:
            break
    assert received == [b"%d" % at for at in range(3, 8)]


def test_what_expired_on_disk_makes_room_for_what_is_new() -> None:
    world = Lasting(BrokerSettings(maximum_queued_messages=6), window=2)
    reader = world.durable("r")
    reader.subscribe("t", qos=1)
    reader.cut()
    publisher = world.connect("p")
    for at in range(6):
        properties = Properties(message_expiry_interval=5) if at in (3, 4) else Properties()
        publisher.send(Publish("t", b"%d" % at, 1, 1, properties=properties))
    publisher.send(Publish("t", b"too many", 1, 1))
    assert world.broker.router.dropped == 1
    world.wait(6)
    publisher.send(Publish("t", b"6", 1, 1), Publish("t", b"7", 1, 2))
    assert world.broker.router.dropped == 1
    publisher.send(Publish("t", b"too many", 1, 1))
    assert world.broker.router.dropped == 2
    reader = world.durable("r", present=True)
    assert payloads(reader.take()) == [b"0", b"1", b"2", b"5", b"6", b"7"]
    assert world.rows("delivery") == world.rows("delivery_extra") + 6 == 6


@pytest.mark.slow
def test_what_expired_on_disk_is_forgotten_in_memory() -> None:
    """20,000 messages through a queue of 200 that never empties: nothing of them stays behind"""
    world = Lasting(BrokerSettings(maximum_queued_messages=200, sys_interval=0.0), window=10)
    kept = Properties(session_expiry_interval=10_000)
    away = world.connect("away", clean_start=False, properties=kept)
    away.subscribe("t", qos=1)
    away.cut()
    publisher = world.connect("p")
    count = repeats(20_000, 4_000)
    short = Properties(message_expiry_interval=1)
    # These never expire, so that what is on disk never becomes empty.
    publisher.send(*[Publish("t", b"stays", 1, number) for number in range(1, 51)])

    def publish(first: int, last: int) -> None:
        for start in range(first, last, 100):
            world.now += 1.0
            publisher.send(
                *[
                    Publish("t", b"%d" % number, 1, number % 100 + 1, properties=short)
                    for number in range(start, start + 100)
                ]
            )

    publish(0, 1_000)
    with memory() as held:
        publish(1_000, count)
        # A number in one place for each would be a hundred bytes a message.
        assert held() < 20_000 + count * 5
    state = world.broker.router.sessions["away"]
    assert 0 < len(state.session.backlog) <= 200
    assert world.rows("delivery") == len(state.session.backlog)
    # What is not expired arrives, once.
    back = world.connect("away", clean_start=False, properties=kept, present=True)
    stay = [b"stays"] * 50
    assert payloads(back.take()) == stay + [b"%d" % number for number in range(count - 100, count)]


def test_what_expires_on_its_way_to_the_disk_makes_room_too() -> None:
    """The store is asked for what has expired while it does not have the queue yet"""
    world = Lasting(BrokerSettings(maximum_queued_messages=20, sys_interval=0.0), window=2)
    away = world.durable("away")
    away.subscribe("t", qos=1)
    away.cut()
    publisher = world.connect("p")
    world.store.holding = True
    for number in range(20):
        short = Properties(message_expiry_interval=2 if number < 10 else 1)
        publisher.send(Publish("t", b"%d" % number, 1, number + 1, properties=short))
    world.now += 1.0
    # Neither is on disk: what has expired cannot be told yet.
    publisher.send(Publish("t", b"too early", 1, 50))
    assert world.broker.router.dropped == 1
    world.store.holding = False
    for commit in world.store.held:
        world.database.apply([commit])
        world.broker.committed(commit, world.now)
    world.store.held.clear()
    for _ in range(3):
        world.now += 1.0
        publisher.send(Publish("t", b"new", 1, 60))
    assert world.broker.router.dropped == 1
    back = world.durable("away", present=True)
    assert payloads(back.take()) == [b"new"] * 3


def test_sessions_without_an_end_are_over_after_the_limit_of_a_later_start() -> None:
    """Whatever the limit was when they began, and over a further restart"""
    world = Lasting(BrokerSettings(maximum_session_expiry=0xFFFF_FFFF, maximum_sessions=3))
    for number in range(3):
        world.connect(f"n{number}", MQTT311, clean_start=False).cut()
    world.crash()
    world.wait(10_000)
    assert world.rows("session") == 3
    world.given = BrokerSettings(maximum_session_expiry=100, maximum_sessions=3)
    world.crash()
    world.wait(60)
    assert world.rows("session") == 3
    # A further start does not begin to count anew.
    world.crash()
    world.wait(41)
    assert world.rows("session") == 0
    assert not world.broker.router.sessions


def test_a_lower_limit_makes_a_session_shorter_and_none_longer() -> None:
    """One that is over soon stays so, and what was cut stays cut over a further restart."""
    world = Lasting(BrokerSettings(maximum_session_expiry=1_000))
    for name, interval in (("long", 900), ("soon", 150), ("short", 50)):
        properties = Properties(session_expiry_interval=interval)
        world.connect(name, properties=properties).cut()
    world.wait(100)
    assert world.rows("session") == 2
    world.given = BrokerSettings(maximum_session_expiry=100)
    world.crash()
    world.wait(40)
    world.crash()
    world.wait(11)
    assert set(world.broker.router.sessions) == {"long"}
    world.wait(50)
    assert not world.broker.router.sessions


@pytest.mark.parametrize(("delay", "due"), [(500, 100), (150, 50), (50, None)])
def test_a_delayed_will_does_not_outlive_a_session_that_is_cut(delay: int, due: int | None) -> None:
    """[3.1.3.2.2] it is published at the latest when the session ends"""
    world = Lasting(BrokerSettings(maximum_session_expiry=1_000))
    will = Will("w", b"will", properties=Properties(will_delay_interval=delay))
    world.connect("a", will=will, properties=Properties(session_expiry_interval=900)).cut()
    world.wait(100)
    world.given = BrokerSettings(maximum_session_expiry=100)
    world.crash()
    reader = world.connect("reader")
    reader.subscribe("w")
    if due is None:
        # It was published before.
        world.wait(200)
        assert reader.take() == []
        return
    world.wait(due - 1)
    assert reader.take() == []
    world.wait(2)
    assert [packet.payload for packet in reader.take() if isinstance(packet, Publish)] == [b"will"]


def test_a_session_that_is_discarded_for_another_does_not_come_back() -> None:
    world = Lasting(BrokerSettings(maximum_sessions=2, sys_interval=0.0))
    for number in range(3):
        client = world.durable(f"n{number}")
        client.subscribe("t", qos=1)
        client.cut()
    world.crash()
    assert set(world.broker.router.sessions) == {"n1", "n2"}
    assert world.rows("subscription") == 2
    world.connect("p").send(Publish("t", b"x", 1, 1))
    assert not world.broker.router.subscriptions.has("n1", "t")
    assert payloads(world.durable("n2", present=True).take()) == [b"x"]


def test_a_shared_queue_on_disk_is_passed_on_when_its_member_leaves() -> None:
    """[4.8.2]: all of it, window or not; what is the member's own stays"""
    world = Lasting(BrokerSettings(inflight_window=1), window=2)
    slow = world.durable("slow", MQTT311)
    slow.cut()
    shared = Properties(session_expiry_interval=100, receive_maximum=1)
    slow = world.connect("slow", clean_start=False, properties=shared, present=True)
    slow.send(Subscribe(1, [Subscription("$share/g/t", 1), Subscription("own", 1)]))
    publisher = world.connect("p")
    for at in range(8):
        publisher.send(Publish("t", b"%d" % at, 1, 1))
        publisher.send(Publish("own", b"own", 1, 2))
    world.tick()
    other = world.connect("other")
    other.send(Subscribe(1, [Subscription("$share/g/t", 1)]))
    first = payloads(slow.take())
    slow.cut()
    passed_on = payloads(other.take())
    assert first == [b"0"]
    # One is in flight to the one that left; the others wait behind eight of its own.
    assert passed_on == [b"%d" % at for at in range(1, 1 + len(passed_on))]
    assert passed_on
    world.connect("slow", clean_start=True)
    rest = payloads(other.take())
    assert sorted(passed_on + rest) == [b"%d" % at for at in range(8)]


@pytest.mark.parametrize("ticks", [1, 3])
def test_a_shared_queue_that_is_not_on_disk_yet_is_passed_on_too(ticks: int) -> None:
    """Beyond the window of a member whose session ends, in commits that are on their way"""
    world = Lasting(window=1)
    member = world.durable("member")
    member.send(Subscribe(1, [Subscription("$share/g/t", 1)]))
    member.cut()
    publisher = world.connect("p")
    world.store.holding = True
    messages = [Publish("t", b"%d" % at, 1, at + 1) for at in range(6)]
    for first in range(0, 6, 6 // ticks):
        publisher.send(*messages[first : first + 6 // ticks])
    other = world.connect("other")
    other.send(Subscribe(1, [Subscription("$share/g/t", 1)]))
    # In the same tick one more, which nobody has drained.
    world.broker.receive(publisher.connection, encode(Publish("t", b"6", 1, 7)), world.now)
    replacing = world.open()
    replacing.send(Connect("member"))
    for commit in world.store.held:
        world.database.apply([commit])
        world.broker.committed(commit, world.now)
    world.store.holding = False
    world.tick()
    assert sorted(payloads(other.take())) == [b"%d" % at for at in range(7)]

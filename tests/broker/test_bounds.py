"""How many sessions and bytes there may be, what a tick gives the store, how long a line gets."""

import pytest

from semel.broker.authority import Authority
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Message,
    Packet,
    Properties,
    PubAck,
    Publish,
    Will,
    encode,
)
from semel.store.commit import Commit
from semel.store.store import Store
from tests.broker.test_admission import Refusing
from tests.broker.test_core import VERSIONS, payloads, persistent
from tests.broker.test_statements_auth import Gate, asked, auth, codes, method_and
from tests.broker.world import Client, World

TWO = BrokerSettings(maximum_sessions=2)
WHY = Properties(reason_string="no more than 2 sessions at a time")


def refusal(version: int) -> ConnAck:
    """0x97 and the bound in words, or what 3.1.1 has for it."""
    return ConnAck(0x97, properties=WHY) if version == MQTT5 else ConnAck(3)


def full(authority: Authority | None = None) -> World:
    """Of two sessions that may be, `here` is connected and `away` is not."""
    world = World(TWO, authority)
    world.connect("here")
    persistent(world, "away", MQTT5).cut()
    return world


# --- sessions -------------------------------------------------------------------------------------


def test_a_session_that_comes_and_goes_ends_when_it_said_last() -> None:
    """[MQTT-3.1.2-23]: more often than appointments are kept"""
    world = World()
    persistent(world, "other", MQTT5).cut()
    for seconds in range(400, 100, -1):
        client = world.connect(
            "comes and goes",
            clean_start=False,
            properties=Properties(session_expiry_interval=seconds),
            present=seconds < 400,
        )
        client.cut()
    world.wait(100.0)
    assert "comes and goes" in world.broker.router.sessions
    world.wait(2.0)
    assert set(world.broker.router.sessions) == {"other"}


@VERSIONS
@pytest.mark.parametrize("client_id", ["third", ""])
def test_a_session_above_the_limit_is_refused_with_the_limit(version: int, client_id: str) -> None:
    """[3.2.2.2] 0x97; whether connected or not, and whoever chooses the identifier"""
    world = full()
    client = world.open(version)
    assert client.send(Connect(client_id, version=version)) == [refusal(version)]
    assert client.is_closed()
    assert set(world.broker.router.sessions) == {"here", "away"}
    larger = World(BrokerSettings(maximum_sessions=3))
    larger.connect("here")
    persistent(larger, "away", MQTT5).cut()
    answer = larger.open(version).send(Connect(client_id, version=version))
    assert codes(answer) == [0]


@VERSIONS
@pytest.mark.parametrize("clean_start", [True, False])
@pytest.mark.parametrize("client_id", ["here", "away"])
def test_who_has_a_session_may_come_back_when_there_is_no_room(
    version: int, clean_start: bool, client_id: str
) -> None:
    """[MQTT-3.1.2-4] to [MQTT-3.1.2-6]: one ends or goes on, and there is none more"""
    world = World(TWO)
    persistent(world, "here", version)
    persistent(world, "away", version).cut()
    client = world.connect(client_id, version, clean_start=clean_start, present=not clean_start)
    assert not client.is_closed()
    assert set(world.broker.router.sessions) == {"here", "away"}
    assert world.open(version).send(Connect("third", version=version)) == [refusal(version)]


@pytest.mark.parametrize("seconds", [3_599, 3_601])
def test_a_session_that_ends_makes_room(seconds: int) -> None:
    world = full()
    world.wait(seconds)
    expected = [refusal(MQTT5).reason] if seconds < 3_600 else [0]
    assert codes(world.open().send(Connect("third"))) == expected


def test_a_session_that_ends_with_its_connection_makes_room() -> None:
    world = World(BrokerSettings(maximum_sessions=1))
    first = world.connect("first")
    assert codes(world.open().send(Connect("second"))) == [0x97]
    first.cut()
    assert not world.connect("second").is_closed()


def test_a_refused_session_leaves_no_will() -> None:
    """[MQTT-3.1.2-8] is about connections that were accepted"""
    world = World(TWO)
    watcher = world.connect("watcher")
    watcher.subscribe("gone")
    world.connect("second", will=Will("gone", b"accepted")).cut()
    assert payloads(watcher.take()) == [b"accepted"]
    world.connect("second")
    third = world.open()
    assert codes(third.send(Connect("third", will=Will("gone", b"refused")))) == [0x97]
    third.cut()
    assert watcher.take() == []


@pytest.mark.parametrize("client_id", ["away", "third"])
def test_a_client_that_may_not_connect_is_not_told_which_sessions_there_are(client_id: str) -> None:
    """Class 11: the Authority's no is the same, whether there is such a session or not"""
    authority = Refusing(0)
    world = full(authority)
    authority.code = 0x87
    assert world.open().send(Connect(client_id)) == [ConnAck(0x87)]
    authority.code = 0
    expected = 0 if client_id == "away" else 0x97
    assert codes(world.open().send(Connect(client_id))) == [expected]


def test_nobody_authenticates_for_a_session_that_there_is_no_room_for() -> None:
    gate = Gate()
    world = full(gate)
    refused = world.open()
    assert refused.send(Connect("third", properties=method_and())) == [refusal(MQTT5)]
    assert refused.is_closed()
    assert gate.begun == []
    assert codes(asked(world, "away").send(auth(0x18))) == [0]


def test_of_two_who_authenticate_for_the_last_session_the_first_to_finish_gets_it() -> None:
    """There is room for either at its CONNECT, and none for the later one when it is accepted"""
    world = World(TWO, Gate())
    world.connect("here")
    slow, fast = asked(world, "slow"), asked(world, "fast")
    assert codes(fast.send(auth(0x18))) == [0]
    assert slow.send(auth(0x18)) == [refusal(MQTT5)]
    assert slow.is_closed()
    assert set(world.broker.router.sessions) == {"here", "fast"}


# --- bytes of retained messages -------------------------------------------------------------------


def small(maximum: int, store: Store | None = None) -> World:
    return World(BrokerSettings(maximum_retained_bytes=maximum, sys_interval=0.0), store=store)


@VERSIONS
def test_a_message_whose_bytes_do_not_fit_is_forwarded_counted_and_not_retained(
    version: int,
) -> None:
    world = small(1_000)
    watcher = world.connect("watcher")
    watcher.subscribe("#")
    client = world.connect("a", version)
    client.send(Publish("r.1", bytes(597), retain=True))
    client.send(Publish("r.2", bytes(398), retain=True))
    assert [len(payload) for payload in payloads(watcher.take())] == [597, 398]
    assert world.broker.router.dropped == 1
    assert [len(p) for p in payloads(world.connect("late").subscribe("#"))] == [597]
    # Three bytes of topic and these are what is left.
    client.send(Publish("r.2", bytes(397), retain=True))
    assert world.broker.router.dropped == 1
    assert [len(p) for p in payloads(world.connect("later").subscribe("#"))] == [597, 397]


@pytest.mark.parametrize("size", [999, 1_000])
def test_what_a_topic_had_is_not_given_out_after_a_next_message_that_does_not_fit(
    size: int,
) -> None:
    """[MQTT-3.3.1-5]: rather nothing than the last message but one"""
    world = small(1_000)
    client = world.connect("a")
    client.send(Publish("t", b"old", retain=True))
    client.send(Publish("t", bytes(size), retain=True))
    found = [len(p) for p in payloads(world.connect("late").subscribe("t"))]
    assert found == ([999] if size == 999 else [])
    assert world.broker.router.dropped == (0 if size == 999 else 1)


def test_deleted_and_expired_messages_make_room_for_bytes() -> None:
    """[MQTT-3.3.1-6] [MQTT-3.3.2-5]"""
    world = small(1_000)
    client = world.connect("a")
    short = Properties(message_expiry_interval=5)
    client.send(Publish("a", bytes(499), retain=True))
    client.send(Publish("b", bytes(499), retain=True, properties=short))
    client.send(Publish("c", bytes(499), retain=True))
    assert world.broker.router.dropped == 1
    client.send(Publish("a", b"", retain=True))
    client.send(Publish("c", bytes(499), retain=True))
    world.wait(10)
    client.send(Publish("d", bytes(499), retain=True))
    assert world.broker.router.dropped == 1
    late = world.connect("late").subscribe("#")
    assert [p.topic_name for p in late if isinstance(p, Publish)] == ["c", "d"]


class Recorder(Store):
    """Keeps the retained messages that it was given, as one that lasts would."""

    def __init__(self) -> None:
        super().__init__(lasts=True)
        self.retained: dict[str, Message] = {}

    def write(self, commit: Commit) -> bool:
        for topic_name, message in commit.retained:
            if message is None:
                self.retained.pop(topic_name, None)
            else:
                self.retained[topic_name] = message
        return True


def test_the_store_has_what_the_broker_has_when_a_next_message_does_not_fit() -> None:
    """[MQTT-3.3.1-5]: after a restart, too, the message before is not the last"""
    recorder = Recorder()
    world = small(1_000, recorder)
    client = world.connect("a")
    client.send(Publish("kept", b"x", retain=True), Publish("t", b"old", retain=True))
    assert set(recorder.retained) == {"kept", "t"}
    client.send(Publish("t", bytes(1_000), retain=True))
    assert len(world.broker.router.retained) == 1
    assert set(recorder.retained) == {"kept"}


# --- what the log shows of a client identifier ----------------------------------------------------


@pytest.mark.parametrize(
    ("client_id", "shown"),
    [
        ("a" * 64, f"'{'a' * 64}'"),
        ("a" * 65, f"'{'a' * 64}'… of 65 characters"),
        ("b" * 60_000, f"'{'b' * 64}'… of 60000 characters"),
        ("\x1b" * 64, "'" + r"\x1b" * 64 + "'"),
        ("\x1b" * 65, "'" + r"\x1b" * 64 + "'… of 65 characters"),
    ],
)
def test_the_log_cuts_a_long_client_id_and_says_how_long_it_is(client_id: str, shown: str) -> None:
    """Class 13: whether the client is in or refused, and when it goes"""
    world = World(authority=Refusing(0x87, client_id))
    world.open().send(Connect(client_id))
    assert world.log == [f"test:1 was refused as {shown}: 0x87"]
    world = World()
    world.connect(client_id, MQTT311).cut()
    assert world.log == [
        f"{shown} (test:1) connected with MQTT 3.1.1",
        f"{shown} (test:1) is gone",
    ]


class Broken(Authority):
    """Fails over every message."""

    def publish(self, client_id: str, topic_name: str) -> int:
        raise RuntimeError("a hook that is broken")


@pytest.mark.parametrize("length", [64, 65])
def test_the_log_cuts_a_long_client_id_where_a_will_is_lost(length: int) -> None:
    world = World(authority=Broken())
    world.connect("c" * length, will=Will("gone", b"bye")).cut()
    shown = f"'{'c' * 64}'" + ("… of 65 characters" if length == 65 else "")
    (lost,) = [line for line in world.log if "is lost" in line]
    assert lost.startswith(f"the will of {shown} is lost: ")


# --- what one tick may give the store -------------------------------------------------------------


class Narrow(Store):
    """Takes few bytes at a time; what it has written makes room again."""

    def __init__(self, room: int) -> None:
        super().__init__(lasts=True)
        self.room = room
        self.sizes: list[int] = []

    def write(self, commit: Commit) -> bool:
        self.sizes.append(commit.size())
        return True


def waited_for(store: Store, sessions: int) -> World:
    """A world with that many durable sessions that wait for messages to `t`."""
    world = World(BrokerSettings(sys_interval=0.0), store=store)
    for number in range(sessions):
        client = persistent(world, f"away{number}", MQTT5)
        client.subscribe("t", qos=1)
        client.cut()
    return world


def go_on(client: Client) -> None:
    """Tick until the client waits for the store no more, as the server does."""
    while client.connection.blocked:
        assert client.world.broker.store_pressure.is_due()
        client.world.tick()


def flood(payload: bytes, first: int, count: int) -> list[Packet]:
    return [Publish("t", payload, 1, number) for number in range(first, first + count)]


@pytest.mark.parametrize("payload", [b"x", bytes(5_000)], ids=["small", "shared"])
def test_a_chunk_stops_at_what_the_store_takes_and_goes_on_later(payload: bytes) -> None:
    """Not once a tick: 100 messages in one piece are 2,000 rows for the store"""
    store = Narrow(50_000)
    world = waited_for(store, 20)
    store.sizes.clear()
    publisher = world.connect("p")
    answered = publisher.send(*flood(payload, 1, 100))
    assert 0 < len(answered) < 10
    assert publisher.connection.blocked
    go_on(publisher)
    assert answered + publisher.take() == [PubAck(number) for number in range(1, 101)]
    # One message may pass the bound, and no more.
    assert max(store.sizes) < 50_000 + 20 * 600 + 2 * len(payload)
    assert sum(store.sizes) >= 100 * 20 * 500
    assert world.broker.router.sessions["away19"].session.waiting == 100


def test_a_chunk_that_nobody_keeps_is_no_matter_of_the_store() -> None:
    world = waited_for(Narrow(-1), 1)
    watcher = world.connect("w")
    watcher.subscribe("u", qos=1)
    publisher = world.connect("p")
    answers = publisher.send(*[Publish("u", b"x", 1, number) for number in range(1, 101)])
    assert answers == [PubAck(number) for number in range(1, 101)]
    assert len(payloads(watcher.take())) == 100
    assert publisher.send(Publish("t", b"x", 1, 1)) == []
    assert publisher.connection.blocked


def test_publishers_that_wait_for_the_store_take_turns() -> None:
    """Whoever filled the store goes on behind the others, however much it has to send"""
    store = Narrow(20_000)
    world = waited_for(store, 20)
    greedy, modest = world.connect("greedy"), world.connect("modest")
    world.broker.receive(
        greedy.connection,
        b"".join(encode(packet) for packet in flood(b"x", 1, 150)),
        world.now,
    )
    world.broker.receive(modest.connection, encode(Publish("t", b"y", 1, 1)), world.now)
    for _ in range(4):
        world.tick()
    assert modest.take() == [PubAck(1)]
    assert greedy.connection.blocked
    go_on(greedy)
    assert greedy.take() == [PubAck(number) for number in range(1, 151)]
    assert not world.broker.store_pressure.is_due()

"""How many sessions and bytes there may be, what a tick gives the store, how long a line gets."""

import pytest

from semel.broker.authority import Authority
from semel.broker.identity import Identity
from semel.broker.retained import RETAINED_BYTES
from semel.broker.settings import BrokerSettings
from semel.broker.subscriptions import subscription_cost
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Disconnect,
    Message,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
    encode,
)
from semel.mqtt.delivery import Delivery
from semel.store.commit import Commit
from semel.store.store import RestoredSession, RestoredState, Store
from tests.broker.core.test_admission import Refusing
from tests.broker.core.test_core import VERSIONS, payloads, persistent
from tests.broker.core.test_restart import Lasting
from tests.broker.core.test_statements_auth import Gate, asked, auth, codes, method_and
from tests.broker.world import Client, World

TWO = BrokerSettings(maximum_sessions=2)
HOUR = Properties(session_expiry_interval=3_600)
WHY = Properties(reason_string="no more than 2 sessions at a time")


def refusal(version: int) -> ConnAck:
    """0x97 and the bound in words, or what 3.1.1 has for it."""
    return ConnAck(0x97, properties=WHY) if version == MQTT5 else ConnAck(3)


def full(authority: Authority | None = None) -> World:
    """Two sessions that may be, both connected."""
    world = World(TWO, authority)
    world.connect("here")
    persistent(world, "there", MQTT5)
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
def test_a_session_above_the_limit_is_refused_if_all_are_connected(
    version: int, client_id: str
) -> None:
    """[3.2.2.2] 0x97 [MQTT-4.1.0-1]; whoever chooses the identifier"""
    world = full()
    client = world.open(version)
    assert client.send(Connect(client_id, version=version)) == [refusal(version)]
    assert client.is_closed()
    assert set(world.broker.router.sessions) == {"here", "there"}
    larger = World(BrokerSettings(maximum_sessions=3))
    larger.connect("here")
    persistent(larger, "there", MQTT5)
    answer = larger.open(version).send(Connect(client_id, version=version))
    assert codes(answer) == [0]


@VERSIONS
@pytest.mark.parametrize("clean_start", [True, False])
@pytest.mark.parametrize("client_id", ["here", "there"])
def test_who_has_a_session_may_come_back_when_there_is_no_room(
    version: int, clean_start: bool, client_id: str
) -> None:
    """[MQTT-3.1.2-4] to [MQTT-3.1.2-6]: one ends or goes on, and there is none more"""
    world = World(TWO)
    persistent(world, "here", version)
    persistent(world, "there", version).cut()
    client = world.connect(client_id, version, clean_start=clean_start, present=not clean_start)
    assert not client.is_closed()
    assert set(world.broker.router.sessions) == {"here", "there"}


@VERSIONS
def test_for_a_new_session_the_oldest_idle_one_goes(version: int) -> None:
    """[4.1.1]: no client is locked out by sessions that nobody uses, nor by who comes often"""
    world = World(BrokerSettings(maximum_sessions=4))
    for name in ("first", "second", "third"):
        persistent(world, name, version)
    for client in list(world.clients)[::-1]:
        client.cut()
    # It was there last, though its session is the oldest.
    persistent(world, "third", version, present=True).cut()
    world.connect("here", version)
    world.connect("new", version)
    assert set(world.broker.router.sessions) == {"first", "third", "here", "new"}
    assert "second" not in world.broker.router.sessions
    (line,) = [line for line in world.log if "discarded" in line]
    assert "session of 'second' discarded for a new one: maximum_sessions is 4" in line
    # Its client is told that it has to begin anew.
    persistent(world, "second", version)
    assert set(world.broker.router.sessions) == {"third", "here", "new", "second"}


def test_a_discarded_session_publishes_its_will_and_is_gone_from_the_store() -> None:
    """[3.1.3.2.2] the session ends, so its delayed will is due"""
    store = Recorder()
    world = World(TWO, store=store)
    watcher = world.connect("watcher")
    watcher.subscribe("gone")
    later = Properties(will_delay_interval=1_000)
    expiry = Properties(session_expiry_interval=2_000)
    will = Will("gone", b"bye", properties=later)
    world.connect("away", will=will, properties=expiry).cut()
    assert watcher.take() == []
    assert store.ended == []
    world.connect("new")
    assert payloads(watcher.take()) == [b"bye"]
    assert len(store.ended) == 1


def test_discarded_sessions_are_logged_once_in_a_while_with_their_number() -> None:
    world = World(BrokerSettings(maximum_sessions=1))
    for number in range(101):
        persistent(world, f"n{number}", MQTT5).cut()
    lines = [line for line in world.log if "discarded" in line]
    assert len(lines) == 1
    world.wait(10)
    lines = [line for line in world.log if "discarded" in line]
    assert [line.split()[2] for line in lines] == ["'n0'", "'n99'"]
    assert lines[1].endswith(" (99 times)")
    world.wait(100)
    assert len([line for line in world.log if "discarded" in line]) == 2


class Stubborn(Store):
    """Cannot read the first sessions."""

    def __init__(self, saved: list[RestoredSession], damaged: int = 1) -> None:
        super().__init__(is_durable=True)
        self.saved = saved
        self.damaged = damaged

    def restore(self) -> RestoredState:
        saved = RestoredState()
        saved.sessions.extend(self.saved)
        saved.next_session = len(self.saved) + 1
        return saved

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        if session <= self.damaged:
            raise RuntimeError("a damaged row")
        return [], []


def test_a_session_that_cannot_be_read_is_discarded_as_any_other() -> None:
    saved = [RestoredSession(number, f"s{number}", 100, 1_050.0) for number in (1, 2)]
    world = World(TWO, store=Stubborn(saved))
    world.connect("new")
    assert set(world.broker.router.sessions) == {"s2", "new"}


def test_a_session_that_cannot_be_discarded_is_nobody_elses_fault() -> None:
    saved = [RestoredSession(number, f"s{number}", 100, 1_050.0) for number in (1, 2)]
    world = World(TWO, store=Stubborn(saved))
    # A mistake of ours, which no client can bring about.
    world.broker.router.subscriptions._clients["s1"] = {"t": None}  # type: ignore[dict-item]
    world.connect("new")
    assert set(world.broker.router.sessions) == {"s1", "new"}
    assert len([line for line in world.log if "cannot be discarded" in line]) == 1
    # It is not tried again and again.
    refused = world.open()
    assert refused.send(Connect("third")) == [refusal(MQTT5)]
    assert len([line for line in world.log if "cannot be discarded" in line]) == 1


def test_who_comes_gets_in_if_the_only_idle_session_cannot_be_discarded() -> None:
    saved = [RestoredSession(1, "s1", 100, 1_050.0)]
    world = World(BrokerSettings(maximum_sessions=1), store=Stubborn(saved))
    world.broker.router.subscriptions._clients["s1"] = {"t": None}  # type: ignore[dict-item]
    world.connect("new")
    assert set(world.broker.router.sessions) == {"s1", "new"}


def test_a_broker_starts_with_no_more_sessions_than_it_may_have_damaged_or_not() -> None:
    saved = [RestoredSession(number, f"s{number}", 100, 1_050.0) for number in (1, 2, 3)]
    world = World(BrokerSettings(maximum_sessions=1), store=Stubborn(saved, damaged=3))
    assert set(world.broker.router.sessions) == {"s3"}


def away_at(world: World, address: str, *names: str) -> None:
    for name in names:
        world.connect(name, properties=HOUR, peer=f"{address}:1").cut()


def test_an_address_that_has_its_share_of_sessions_loses_its_own() -> None:
    """100,000 sessions from one address in 19 s: those of others stay where they are"""
    world = World(BrokerSettings(maximum_sessions=20))
    away_at(world, "10.0.0.1", *[f"honest{n}" for n in range(5)])
    away_at(world, "10.0.0.2", *[f"other{n}" for n in range(5)])
    away_at(world, "10.0.0.3", *[f"flood{n}" for n in range(500)])
    sessions = world.broker.router.sessions
    assert len(sessions) == 20
    kept = {name for name in sessions if not name.startswith("flood")}
    assert len(kept) == 10
    # Newcomers elsewhere are let in at the cost of who has the most.
    away_at(world, "10.0.0.4", "new1", "new2")
    away_at(world, "10.0.0.1", "honest5")
    assert len(sessions) == 20
    assert kept | {"new1", "new2", "honest5"} <= set(sessions)


def test_where_all_have_the_same_share_the_oldest_of_all_goes() -> None:
    world = World(BrokerSettings(maximum_sessions=3))
    for number in range(3):
        away_at(world, f"10.0.0.{number}", f"s{number}")
    away_at(world, "10.0.0.9", "new")
    assert set(world.broker.router.sessions) == {"s1", "s2", "new"}


def test_who_had_the_most_sessions_and_has_not_any_more_is_not_asked() -> None:
    world = World(BrokerSettings(maximum_sessions=6))
    away_at(world, "10.0.0.1", "a0", "a1", "a2")
    away_at(world, "10.0.0.2", "b0", "b1")
    for name in ("a1", "a2"):
        world.connect(name, peer="10.0.0.1:1").cut()
    away_at(world, "10.0.0.2", "b2", "b3", "b4")
    away_at(world, "10.0.0.3", "new")
    assert set(world.broker.router.sessions) == {"a0", "b1", "b2", "b3", "b4", "new"}


def test_a_connected_session_is_never_discarded() -> None:
    """[MQTT-4.1.0-1]"""
    world = World(BrokerSettings(maximum_sessions=3))
    clients = [world.connect(f"c{n}", properties=HOUR, peer="10.0.0.1:1") for n in range(2)]
    away_at(world, "10.0.0.1", *[f"n{n}" for n in range(10)])
    away_at(world, "10.0.0.2", *[f"m{n}" for n in range(10)])
    assert set(world.broker.router.sessions) == {"c0", "c1", "m9"}
    for client in clients:
        assert client.send(PingReq()) == [PingResp()]


# --- sessions at a start --------------------------------------------------------------------------


def restored(settings: BrokerSettings, *saved: RestoredSession) -> World:
    return World(settings, store=Stubborn([RestoredSession(1, "", 0, None), *saved]))


def test_sessions_are_cut_to_the_present_limit_at_the_start() -> None:
    """Whatever they were granted, for the limit is there to end them; counted from the start"""
    world = restored(
        BrokerSettings(maximum_session_expiry=60),
        RestoredSession(2, "for ever", 0xFFFF_FFFF, None),
        RestoredSession(3, "long", 1_000, 1_900.0),
        RestoredSession(4, "short", 50, 1_040.0),
        RestoredSession(5, "soon over", 1_000, 1_010.0),
    )
    sessions = world.broker.router.sessions
    ends = {name: state.session.ends_at for name, state in sessions.items()}
    assert ends == {"for ever": 1_060.0, "long": 1_060.0, "short": 1_040.0, "soon over": 1_010.0}
    assert [sessions[name].expiry_interval for name in ("for ever", "long", "short")] == [
        60,
        60,
        50,
    ]
    world.wait(59)
    assert set(sessions) == {"for ever", "long"}
    world.wait(1)
    assert not sessions


def test_sessions_are_as_they_were_if_the_limit_is_not_lower() -> None:
    world = restored(
        BrokerSettings(maximum_session_expiry=0xFFFF_FFFF),
        RestoredSession(2, "for ever", 0xFFFF_FFFF, None),
        RestoredSession(3, "long", 1_000, 1_900.0),
    )
    sessions = world.broker.router.sessions
    assert {name: state.session.ends_at for name, state in sessions.items()} == {
        "for ever": None,
        "long": 1_900.0,
    }


def test_a_limit_of_nothing_ends_sessions_at_the_start() -> None:
    world = restored(
        BrokerSettings(maximum_session_expiry=0), RestoredSession(2, "a", 100, 1_050.0)
    )
    assert not world.broker.router.sessions


def test_more_sessions_than_there_may_be_now_are_cut_at_the_start() -> None:
    """Those whose clients were there last stay"""
    world = restored(
        BrokerSettings(maximum_sessions=2),
        RestoredSession(2, "connected", 1_000, None),
        RestoredSession(3, "long ago", 5_000, 1_500.0),
        RestoredSession(4, "just now", 100, 1_090.0),
        RestoredSession(5, "a while ago", 1_000, 1_900.0),
    )
    assert set(world.broker.router.sessions) == {"connected", "just now"}


def test_by_default_a_session_lasts_for_days_and_not_for_ever() -> None:
    world = World()
    client = world.open()
    (connack,) = client.send(Connect("a", properties=Properties(session_expiry_interval=2**32 - 1)))
    assert isinstance(connack, ConnAck)
    assert connack.properties.session_expiry_interval == 7 * 86_400
    old = world.connect("b", MQTT311, clean_start=False)
    for each in (client, old):
        each.cut()
    world.now += 7 * 86_400 - 1
    world.wait(0.5)
    assert set(world.broker.router.sessions) == {"a", "b"}
    world.wait(1)
    assert not world.broker.router.sessions


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


@pytest.mark.parametrize("client_id", ["there", "third"])
def test_a_client_that_may_not_connect_is_not_told_which_sessions_there_are(client_id: str) -> None:
    """Class 11: the Authority's no is the same, whether there is such a session or not"""
    authority = Refusing(0)
    world = full(authority)
    authority.code = 0x87
    assert world.open().send(Connect(client_id)) == [ConnAck(0x87)]
    authority.code = 0
    expected = 0 if client_id == "there" else 0x97
    assert codes(world.open().send(Connect(client_id))) == [expected]


def test_nobody_authenticates_for_a_session_that_there_is_no_room_for() -> None:
    gate = Gate()
    world = full(gate)
    refused = world.open()
    assert refused.send(Connect("third", properties=method_and())) == [refusal(MQTT5)]
    assert refused.is_closed()
    assert gate.begun == []
    assert codes(asked(world, "there").send(auth(0x18))) == [0]


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


def small(*topic_names: str, store: Store | None = None) -> World:
    """1,000 bytes of messages to these topics can be retained."""
    maximum = 1_000 + sum(RETAINED_BYTES + len(topic_name) for topic_name in topic_names)
    return World(BrokerSettings(maximum_retained_bytes=maximum, sys_interval=0.0), store=store)


@VERSIONS
def test_a_message_whose_bytes_do_not_fit_is_forwarded_counted_and_not_retained(
    version: int,
) -> None:
    world = small("r.1", "r.2")
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
    world = small("t")
    client = world.connect("a")
    client.send(Publish("t", b"old", retain=True))
    client.send(Publish("t", bytes(size), retain=True))
    found = [len(p) for p in payloads(world.connect("late").subscribe("t"))]
    assert found == ([999] if size == 999 else [])
    assert world.broker.router.dropped == (0 if size == 999 else 1)


def test_deleted_and_expired_messages_make_room_for_bytes() -> None:
    """[MQTT-3.3.1-6] [MQTT-3.3.2-5]"""
    world = small("a", "b")
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
        super().__init__(is_durable=True)
        self.retained: dict[str, Message] = {}
        self.ended: list[int] = []

    def write(self, commit: Commit) -> bool:
        self.ended += commit.ended
        for topic_name, message in commit.retained:
            if message is None:
                self.retained.pop(topic_name, None)
            else:
                self.retained[topic_name] = message
        return True


def test_the_store_has_what_the_broker_has_when_a_next_message_does_not_fit() -> None:
    """[MQTT-3.3.1-5]: after a restart, too, the message before is not the last"""
    recorder = Recorder()
    world = small("kept", "t", store=recorder)
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
        f"{shown} (test:1) lost its connection",
    ]


class Broken(Authority):
    """Fails over every message but the first."""

    asked = 0

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        self.asked += 1
        if self.asked > 1:
            raise RuntimeError("a hook that is broken")
        return 0


@pytest.mark.parametrize("length", [64, 65])
def test_the_log_cuts_a_long_client_id_where_a_will_is_lost(length: int) -> None:
    world = World(authority=Broken())
    world.connect("c" * length, will=Will("gone", b"bye")).cut()
    shown = f"'{'c' * 64}'" + ("… of 65 characters" if length == 65 else "")
    (lost,) = [line for line in world.log if " lost: " in line]
    assert lost.startswith(f"will of {shown} lost: ")


# --- what one tick may give the store -------------------------------------------------------------


class Narrow(Store):
    """Takes few bytes at a time; what it has written makes room again."""

    def __init__(self, room: int) -> None:
        super().__init__(is_durable=True)
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
    while client.connection.paused_by_store:
        assert client.world.broker.store_pressure.has_resumable()
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
    assert publisher.connection.paused_by_store
    go_on(publisher)
    assert answered + publisher.take() == [PubAck(number) for number in range(1, 101)]
    # One message may pass the bound, and no more.
    assert max(store.sizes) < 50_000 + 20 * 600 + 2 * len(payload)
    assert sum(store.sizes) >= 100 * 20 * 500
    assert len(world.broker.router.sessions["away19"].session.backlog) == 100


def test_a_chunk_that_nobody_keeps_is_no_matter_of_the_store() -> None:
    world = waited_for(Narrow(-1), 1)
    watcher = world.connect("w")
    watcher.subscribe("u", qos=1)
    publisher = world.connect("p")
    answers = publisher.send(*[Publish("u", b"x", 1, number) for number in range(1, 101)])
    assert answers == [PubAck(number) for number in range(1, 101)]
    assert len(payloads(watcher.take())) == 100
    assert publisher.send(Publish("t", b"x", 1, 1)) == []
    assert publisher.connection.paused_by_store


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
    assert greedy.connection.paused_by_store
    go_on(greedy)
    assert greedy.take() == [PubAck(number) for number in range(1, 151)]
    assert not world.broker.store_pressure.has_resumable()


# --- bytes of subscriptions -----------------------------------------------------------------------


def granted(client: Client, topic_filter: str) -> bool:
    """Whether the client gets this subscription."""
    answer = client.send(Subscribe(1, [Subscription(topic_filter)]))[0]
    assert isinstance(answer, SubAck)
    assert answer.reasons[0] in (0, 0x97 if client.version == MQTT5 else 0x80)
    return answer.reasons[0] == 0


@VERSIONS
def test_subscriptions_of_one_client_are_bounded_by_what_they_take(version: int) -> None:
    bound = subscription_cost("a/b/#") + subscription_cost("c")
    world = World(BrokerSettings(maximum_client_subscription_bytes=bound))
    client, other = world.connect("a", version), world.connect("b", version)
    assert granted(client, "a/b/#")
    assert not granted(client, "long" * 100)
    assert granted(client, "c")
    assert not granted(client, "d")
    # What it has may be replaced, and what it gives up makes room; others have their own.
    assert granted(client, "a/b/#")
    client.send(Unsubscribe(2, ["c"]))
    assert granted(client, "d")
    assert granted(other, "a/b/#")


@VERSIONS
def test_subscriptions_of_all_clients_are_bounded_by_what_they_take(version: int) -> None:
    bound = 3 * subscription_cost("a/b/#")
    world = World(BrokerSettings(maximum_subscription_bytes=bound))
    clients = [world.connect(f"c{number}", version) for number in range(10)]
    # A place in the tree that several share takes no more than once.
    assert [granted(client, "a/b/#") for client in clients] == [True] * 5 + [False] * 5
    clients[0].cut()
    assert granted(clients[9], "a/b/#")
    assert not granted(clients[8], "a/b/#")


def test_subscriptions_that_were_kept_count_at_the_start() -> None:
    saved = RestoredState()
    saved.sessions.append(RestoredSession(1, "kept", 1_000, None))
    saved.subscriptions.append((1, Subscription("a"), 0))
    saved.next_session = 2

    class Keeping(Store):
        def restore(self) -> RestoredState:
            return saved

    settings = BrokerSettings(maximum_client_subscription_bytes=subscription_cost("a") + 10)
    world = World(settings, store=Keeping(is_durable=True))
    client = world.connect("kept", clean_start=False, present=True)
    assert not granted(client, "b")
    client.send(Unsubscribe(2, ["a"]))
    assert granted(client, "b")


# --- bytes of topic aliases -----------------------------------------------------------------------


def aliased(topic_name: str, alias: int) -> Publish:
    return Publish(topic_name, b"x", properties=Properties(topic_alias=alias))


def test_topics_with_an_alias_are_bounded_by_what_they_take() -> None:
    world = World(BrokerSettings(maximum_alias_bytes=1_000))
    watcher = world.connect("w")
    watcher.subscribe("#")
    client = world.connect("a")
    client.send(aliased("a" * 300, 1), aliased("b" * 300, 2), aliased("", 1))
    # A topic that an alias had before takes no room any more.
    client.send(*[aliased("c" * 300, 2) for _ in range(10)])
    assert not client.is_closed()
    assert len(payloads(watcher.take())) == 13
    (told,) = client.send(aliased("d" * 300, 3))
    assert isinstance(told, Disconnect)
    assert told.reason == 0x97
    assert told.properties.reason_string is not None
    assert "maximum_alias_bytes is 1000" in told.properties.reason_string
    assert payloads(watcher.take()) == []


def test_a_first_topic_with_an_alias_may_be_as_long_as_it_likes() -> None:
    world = World()
    client = world.connect("a")
    client.send(aliased("a" * 65_535, 1), aliased("", 1), aliased("b" * 65_535, 1))
    assert not client.is_closed()
    client.send(aliased("short", 2))
    assert client.is_closed()


# --- messages that were sent and not acknowledged -------------------------------------------------


@VERSIONS
@pytest.mark.parametrize("path", ["hot", "plain"])
@pytest.mark.parametrize("qos", [1, 2])
def test_who_never_acknowledges_is_sent_no_more_than_the_bytes_that_may_be_in_flight(
    version: int, path: str, qos: int
) -> None:
    """The rest waits in its queue, under the bounds of the queue, and follows as it answers."""
    settings = BrokerSettings(
        maximum_inflight_bytes=10_000,
        maximum_queued_messages=20,
        inflight_window=65_535,
        slow_subscriber_timeout=0,
    )
    world = World(settings)
    if path == "plain":
        world.broker.hot_path = None
    reader, publisher = world.connect("r", version), world.connect("p", version)
    reader.subscribe("t", qos=qos)
    for number in range(1, 101):
        publisher.send(Publish("t", bytes(499), qos, number))
        if qos == 2:
            publisher.send(PubRel(number))
    sent = reader.take()
    # 500 bytes each, and 500 for each delivery.
    assert len(sent) == 10
    session = world.broker.router.sessions["r"].session
    assert (session.in_flight, len(session.backlog)) == (10, 20)
    assert world.broker.router.dropped == 70
    first = sent[0]
    assert isinstance(first, Publish)
    answer = PubAck(first.packet_id) if qos == 1 else PubRec(first.packet_id)
    assert len([p for p in reader.send(answer) if isinstance(p, Publish)]) == 1


def test_a_durable_session_that_never_acknowledges_has_the_rest_in_its_store() -> None:
    world = Lasting(BrokerSettings(maximum_inflight_bytes=10_000), window=4)
    reader = world.durable("r")
    reader.subscribe("t", qos=1)
    publisher = world.connect("p")
    for number in range(1, 51):
        publisher.send(Publish("t", b"%0499d" % number, 1, number))
    received = reader.take()
    assert len(received) == 10
    while len(received) < 50:
        latest = received[-1]
        assert isinstance(latest, Publish)
        more = reader.send(PubAck(latest.packet_id))
        assert len(more) == 1
        received += more
    assert payloads(received) == [b"%0499d" % number for number in range(1, 51)]

"""What fails for one session ends that session's connection, is said once, and nobody else notices.

`Brittle` is the real tables with reads that can be told to fail: what a damaged row does.
"""

import pytest

from semel.broker.authority import Authority
from semel.broker.core import Broker
from semel.broker.cursors import Cursors
from semel.broker.identity import PeerInfo
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
    Will,
    encode,
)
from semel.mqtt.delivery import Change, Delivery
from semel.mqtt.session import Outgoing, Session
from semel.store.database import Database
from semel.store.schema import Unusable
from semel.store.store import Store
from tests.broker.core.test_restart import Crashing, Lasting, payloads
from tests.broker.world import Client, World
from tests.modes import COMPILED

KEPT = Properties(session_expiry_interval=100)
SLOW = Properties(session_expiry_interval=100, receive_maximum=2)
VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])


class Brittle(Crashing):
    """The real tables. A read that `failing` names fails for the session with that number."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.failing: dict[str, int] = {}
        self.failed = 0

    def _look(self, name: str, session: int) -> None:
        if self.failing.get(name) == session:
            self.failed += 1
            raise Unusable("a row is damaged: `semel store repair`")

    def exchanges(self, session: int) -> tuple[list[Delivery], list[int]]:
        self._look("exchanges", session)
        return super().exchanges(session)

    def queue(self, session: int, first: int, limit: int) -> list[Delivery]:
        self._look("queue", session)
        return super().queue(session, first, limit)

    def expired(self, session: int, first: int, now: float) -> list[tuple[int, int]]:
        self._look("expired", session)
        return super().expired(session, first, now)

    def next_expiry(self, session: int, first: int, now: float) -> float | None:
        self._look("next_expiry", session)
        return super().next_expiry(session, first, now)


class Damaged(Lasting):
    """A world that can crash, and whose rows can be damaged."""

    def __init__(self, settings: BrokerSettings | None = None, window: int = 2) -> None:
        super().__init__(settings or BrokerSettings(inflight_window=2), window)

    def victim(self, version: int = MQTT5, *, present: bool = True) -> Client:
        """A client that takes two messages at a time, and whose session lasts."""
        return self.connect(
            "victim",
            version,
            clean_start=False,
            properties=SLOW if version == MQTT5 else Properties(),
            present=present,
        )

    def queue_for_victim(self, version: int = MQTT5, count: int = 6) -> Client:
        """A publisher, which has left so many messages for it."""
        victim = self.victim(version, present=False)
        victim.subscribe("t", qos=1)
        victim.cut()
        publisher = self.connect("p")
        for packet_id in range(1, count + 1):
            publisher.send(Publish("t", f"{packet_id}".encode(), 1, packet_id))
        return publisher

    def new_store(self) -> Crashing:
        self.brittle = Brittle(self.database)
        return self.brittle

    def damage(self, name: str, client_id: str) -> None:
        """What this read finds of the session of this client is damaged from now on."""
        self.brittle.failing = {name: self.broker.router.sessions[client_id].store_id}

    def heal(self) -> None:
        self.brittle.failing = {}

    def refused(self, client_id: str, version: int = MQTT5) -> ConnAck:
        """The answer to a client that is not let in."""
        client = self.open(version)
        kept = KEPT if version == MQTT5 else Properties()
        (connack,) = client.send(
            Connect(client_id, version=version, clean_start=False, properties=kept)
        )
        assert isinstance(connack, ConnAck)
        assert connack.reason
        assert client.is_closed()
        client.cut()
        return connack

    def lines(self, words: str) -> list[str]:
        """Lines of the log with these words."""
        return [line for line in self.log if words in line]


def bystanders(world: Damaged) -> tuple[Client, Client]:
    """A publisher, and who reads what it sends: what they have nobody may take from them."""
    publisher = world.connect("p")
    reader = world.durable("reader")
    reader.subscribe("by/stander", qos=1)
    return publisher, reader


def read_all(client: Client) -> list[bytes]:
    """Acknowledge what has come, and what comes then; the payloads in their order."""
    received: list[bytes] = []
    packets = client.take()
    while packets:
        received += payloads(packets)
        publishes = [packet for packet in packets if isinstance(packet, Publish)]
        packets = client.send(*[PubAck(packet.packet_id) for packet in publishes])
    return received


def served(publisher: Client, reader: Client) -> None:
    """A bystander pair goes on: acknowledged, delivered, answered."""
    answers = publisher.send(Publish("by/stander", b"x", 1, 77), PingReq())
    assert PingResp() in answers
    assert PubAck(77) in answers
    (message,) = (each for each in reader.take() if isinstance(each, Publish))
    assert message.payload == b"x"
    reader.send(PubAck(message.packet_id))
    assert not publisher.is_closed()
    assert not reader.is_closed()


# --- one session's fault in a tick ----------------------------------------------------------------


@VERSIONS
def test_a_damaged_queue_closes_its_reader_and_the_sessions_behind_it_are_served(
    version: int,
) -> None:
    """In the same tick and in later ones: nobody is forgotten in the list of who has something."""
    world = Damaged()
    publisher = world.queue_for_victim(version)
    reader = world.durable("reader")
    reader.subscribe("by/stander", qos=1)
    victim = world.victim(version)
    assert payloads(victim.take()) == [b"1", b"2"]
    world.damage("queue", "victim")
    # In one tick: the victim's next messages, and behind it what others want.
    for item in (PubAck(1), PubAck(2)):
        world.broker.receive(victim.connection, encode(item, version), world.now)
    served(publisher, reader)
    world.tick()
    assert victim.is_closed()
    (line,) = world.lines("'victim' (test:1)")[-1:]
    assert "closed" in line
    assert "semel store repair" in line
    assert "Traceback" not in line
    served(publisher, reader)
    victim.cut()
    served(publisher, reader)
    assert len(world.lines("semel store repair")) == 1


@VERSIONS
def test_a_session_that_cannot_be_read_is_refused_with_the_reason_and_not_lost(
    version: int,
) -> None:
    """It is neither accepted and thrown out again, nor begun anew: repaired, it is all there."""
    world = Damaged()
    publisher = world.queue_for_victim(version)
    victim = world.victim(version)
    world.damage("queue", "victim")
    victim.send(PubAck(1), PubAck(2))
    world.tick()
    victim.cut()
    for _ in range(2):
        connack = world.refused("victim", version)
        if version == MQTT5:
            assert connack.reason == 0x88
            assert connack.properties.reason_string == "the stored session cannot be read"
        else:
            assert connack.reason == 3
    assert len(world.lines("semel store repair")) == 3
    # Meanwhile it gets what it is subscribed to.
    assert publisher.send(Publish("t", b"7", 1, 7)) == [PubAck(7)]
    world.heal()
    victim = world.victim(version)
    assert read_all(victim) == [b"3", b"4", b"5", b"6", b"7"]


@pytest.mark.parametrize("read", ["exchanges", "queue"])
def test_a_session_that_cannot_be_read_after_a_start_is_refused_and_may_be_given_up(
    read: str,
) -> None:
    world = Damaged()
    world.queue_for_victim()
    world.victim().cut()
    world.crash()
    world.damage(read, "victim")
    if read == "queue":
        # What was in flight is sent again, and the rest is missed only then.
        victim = world.victim()
        victim.send(PubAck(1), PubAck(2))
        world.tick()
        assert victim.is_closed()
        victim.cut()
    assert world.refused("victim").reason == 0x88
    fresh = world.connect("victim", properties=SLOW)
    assert fresh.send(PingReq()) == [PingResp()]
    assert world.rows("delivery") == 0
    bystander = world.durable("bystander")
    assert bystander.send(PingReq()) == [PingResp()]


def test_a_fault_of_our_own_over_one_session_is_that_sessions_alone() -> None:
    """What it holds is nonsense here, which no client can bring about."""
    world = Damaged()
    publisher, reader = bystanders(world)
    victim = world.victim(present=False)
    world.durable("offline").cut()
    connected = world.broker.router.sessions["victim"]
    connected.retained_searches = {"t": None}  # type: ignore[dict-item]
    offline = world.broker.router.sessions["offline"]
    offline.cursors = Cursors()
    offline.cursors.all["x"] = None  # type: ignore[assignment]
    for state in (connected, offline):
        world.broker.router.mark_dirty(state)
    served(publisher, reader)
    assert victim.is_closed()
    assert len(world.lines("closed: serving it failed")) == 1
    assert len(world.lines("serving 'offline' failed: Traceback")) == 1
    offline.cursors = None
    served(publisher, reader)
    victim.cut()
    assert world.victim().send(PingReq()) == [PingResp()]
    assert world.durable("offline", present=True).send(PingReq()) == [PingResp()]


def test_a_fault_while_a_client_leaves_is_that_clients_alone() -> None:
    """Whoever takes its place, and whoever is served in the same turn, feels nothing."""
    world = Damaged()
    publisher, reader = bystanders(world)
    old = world.victim(present=False)
    world.broker.router.sessions["victim"].retained_searches = {"t": None}  # type: ignore[dict-item]
    fresh = world.victim()
    assert old.is_closed()
    assert len(world.lines("'victim': disconnecting failed")) == 1
    assert fresh.send(PingReq()) == [PingResp()]
    served(publisher, reader)


def test_a_tick_that_fails_as_a_whole_leaves_nobody_behind() -> None:
    """Even the log fails here. Whoever was not served yet is in the next tick."""
    log = OnceRaising("nothing yet")
    world = World()
    world.broker = Broker(
        BrokerSettings(sys_interval=0.0),
        authority=Authority(),
        store=Store(),
        new_client_id=lambda: "",
        log=log,
        now=world.now,
    )
    publisher, reader = world.connect("p"), world.connect("reader")
    reader.subscribe("by/stander", qos=1)
    world.connect("victim")
    log.words = "'victim'"
    victim = world.broker.router.sessions["victim"]
    victim.retained_searches = {"t": None}  # type: ignore[dict-item]
    world.broker.router.mark_dirty(victim)
    message = Publish("by/stander", b"x", 1, 77)
    world.broker.receive(publisher.connection, encode(message), world.now)
    with pytest.raises(RuntimeError):
        world.tick()
    for _ in range(2):
        world.tick()
        assert publisher.take() == [PubAck(77)]
        assert payloads(reader.take()) == [b"x"]
        world.broker.receive(publisher.connection, encode(message), world.now)


@pytest.mark.skipif(COMPILED, reason="a method of a compiled class cannot be replaced")
def test_a_session_that_cannot_be_drained_at_all_keeps_nobody_behind_it_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Damaged()
    publisher, reader = bystanders(world)
    victim = world.victim(present=False)
    session = world.broker.router.sessions["victim"].session
    drain = Session.drain

    def raising(self: Session) -> tuple[list[Change], list[Outgoing]]:
        if self is session:
            raise RuntimeError("a fault of ours")
        return drain(self)

    monkeypatch.setattr(Session, "drain", raising)
    world.broker.receive(victim.connection, encode(PingReq()), world.now)
    served(publisher, reader)
    assert victim.is_closed()
    assert world.lines("'victim' (test:1) closed: serving it failed")
    assert world.lines("changes of 'victim' in this tick are lost")
    served(publisher, reader)


def test_a_reader_that_is_gone_holds_nobody_up_though_its_leave_failed() -> None:
    world = World(BrokerSettings(maximum_outgoing_bytes=1_000, sys_interval=0.0))
    reader, publisher = world.connect("reader", peer="other:1"), world.connect("p")
    reader.subscribe("t")
    reader.unread = 600
    world.tick()
    publisher.send(Publish("t", b"x"))
    assert not world.broker.pressure.is_idle()
    # What it counts for is nonsense here, so that its end fails halfway.
    shares = world.broker._lifetimes.shares._shares._shares
    shares["other"].evictable["nobody"] = None
    reader.cut()
    assert "reader" not in world.broker.router.sessions
    assert [line for line in world.log if "'reader': disconnecting failed" in line]
    assert world.broker.pressure.is_idle()
    world.now += 10
    world.tick()
    assert publisher.send(PingReq()) == [PingResp()]


def test_packets_that_cannot_be_told_apart_close_their_connection_alone() -> None:
    world = Damaged()
    publisher, reader = bystanders(world)
    victim = world.victim(present=False)
    world.broker.receive(victim.connection, encode(PingReq()), world.now)
    victim.connection.left_awaiting_commit = True
    state = world.broker.router.sessions["victim"]
    state.session.append(b"", 0)
    world.broker.router.mark_dirty(state)
    served(publisher, reader)
    assert victim.is_closed()
    assert len(world.lines("closed: serving it failed")) == 1
    served(publisher, reader)


@pytest.mark.parametrize("read", ["expired", "next_expiry"])
def test_a_full_queue_whose_expired_messages_cannot_be_found_is_no_fault_of_the_publisher(
    read: str,
) -> None:
    world = Damaged(BrokerSettings(maximum_queued_messages=4))
    publisher, reader = bystanders(world)
    world.victim(present=False).subscribe("t", qos=1)
    world.clients[-1].cut()
    brief = Properties(message_expiry_interval=5)
    for packet_id in range(1, 5):
        publisher.send(Publish("t", b"old", 1, packet_id, properties=brief))
    world.damage(read, "victim")
    world.wait(10)
    for packet_id in (5, 6):
        assert publisher.send(Publish("t", b"new", 1, packet_id)) == [PubAck(packet_id)]
    assert len(world.lines("stored session of 'victim' cannot be read")) == 1
    served(publisher, reader)
    world.heal()
    assert read_all(world.victim()) == [b"new", b"new"]


def test_a_member_of_a_group_whose_queue_is_damaged_leaves_without_another_word() -> None:
    """What it was not sent, and what cannot be read, stays its own."""
    world = Damaged()
    publisher, reader = bystanders(world)
    victim = world.victim(present=False)
    victim.subscribe("$share/g/t", qos=1)
    for packet_id in range(1, 7):
        publisher.send(Publish("t", f"{packet_id}".encode(), 1, packet_id))
    assert payloads(victim.take()) == [b"1", b"2"]
    other = world.durable("other")
    other.subscribe("$share/g/t", qos=1)
    world.damage("queue", "victim")
    victim.send(PubAck(1), PubAck(2))
    world.tick()
    assert victim.is_closed()
    victim.cut()
    assert len(world.lines("semel store repair")) == 1
    served(publisher, reader)
    world.heal()
    victim = world.victim()
    rest = payloads(other.take()) + read_all(victim)
    assert sorted(rest) == [b"3", b"4", b"5", b"6"]


# --- said once ------------------------------------------------------------------------------------


def test_who_does_not_read_is_closed_once_however_many_answers_wait() -> None:
    world = Damaged(BrokerSettings(maximum_outgoing_bytes=100))
    publisher, reader = bystanders(world)
    slow = world.connect("slow")
    slow.unread = 1_000
    world.tick()
    slow.send_bytes(encode(PingReq()) * 1_000)
    assert slow.is_closed()
    assert slow.connection.abort_on_close
    assert len(world.lines("reads too slowly")) == 1
    served(publisher, reader)


def test_who_cannot_be_answered_is_closed_once_however_many_answers_wait() -> None:
    """Its largest packet is smaller than a SUBACK, so that it gets none of them."""
    world = Damaged()
    publisher, reader = bystanders(world)
    small = world.connect("small", properties=Properties(maximum_packet_size=40))
    filters = [Subscription(f"t/{number}") for number in range(50)]
    requests = [Subscribe(number, filters) for number in range(1, 100)]
    assert small.send(*requests) == []
    assert small.is_closed()
    assert len(world.lines("a packet cannot be sent")) == 1
    served(publisher, reader)


# --- once a second --------------------------------------------------------------------------------


def test_a_damaged_session_that_expires_ends_and_the_sweep_goes_on_for_everybody() -> None:
    """Keep alive, connect timeout, wills, and other sessions that end."""
    world = Damaged(BrokerSettings(connect_timeout=20))
    bystanders(world)
    world.victim(present=False).cut()
    world.crash()
    world.damage("exchanges", "victim")
    reader = world.durable("reader", present=True)
    reader.subscribe("will", qos=1)
    delayed = Will("will", b"gone", qos=1, properties=Properties(will_delay_interval=60))
    world.connect("w", will=delayed, properties=KEPT).cut()
    silent = world.connect("silent", keep_alive=60)
    mute = world.open()
    world.durable("ends too").cut()
    world.wait(110)
    (line,) = world.lines("stored session of 'victim' cannot be read")
    assert "semel store repair" in line
    assert set(world.broker.router.sessions) == {"reader"}
    assert world.rows("session") == 1
    assert silent.is_closed()
    assert mute.is_closed()
    assert payloads(reader.take()) == [b"gone"]


def test_a_fault_of_our_own_over_one_session_that_is_due_is_said_and_it_is_tried_again() -> None:
    world = Damaged()
    world.victim(present=False).cut()
    world.durable("other").cut()
    state = world.broker.router.sessions["victim"]
    state.will_due = state.next_check = world.now
    world.wait(101)
    assert "other" not in world.broker.router.sessions
    assert len(world.lines("check of session 'victim' failed")) == 1
    state.will_due = None
    world.wait(60)
    assert "victim" not in world.broker.router.sessions


class OnceRaising:
    """A log that fails once over lines with these words: what any call could do."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        if self.words and self.words in line:
            self.words = ""
            raise RuntimeError("no more")
        self.lines.append(line)


def test_a_fault_over_one_silent_connection_leaves_the_others_swept() -> None:
    log = OnceRaising("keep alive timeout")
    broker = Broker(
        BrokerSettings(),
        authority=Authority(),
        store=Store(),
        new_client_id=lambda: "",
        log=log,
        now=0.0,
    )
    connections = [broker.opened(PeerInfo(f"peer:{number}"), 0.0) for number in range(3)]
    for number, connection in enumerate(connections):
        broker.receive(connection, encode(Connect(f"c{number}", keep_alive=10)), 0.0)
    broker.flush(0.0)
    broker.sweep(20.0)
    assert [each.closing for each in connections] == [True, True, True]
    assert len([line for line in log.lines if "closed: serving it failed" in line]) == 1
    assert len([line for line in log.lines if line.endswith("keep alive timeout")]) == 2


def test_a_part_of_the_sweep_that_fails_does_not_keep_the_others_from_their_turn() -> None:
    world = Damaged()
    silent = world.connect("silent", keep_alive=10)
    world.durable("ends").cut()
    world.broker.router.retained._expiring["x"] = None  # type: ignore[assignment]
    world.broker.router.sessions["nobody"] = None  # type: ignore[assignment]
    world.broker._connections.arrivals._unfinished._evictable[999] = None
    world.broker.memory.update(world.broker.memory.limit + 1)
    world.wait(20)
    world.broker.memory.update(0)
    del world.broker.router.sessions["nobody"]
    world.wait(90)
    assert silent.is_closed()
    assert "ends" not in world.broker.router.sessions
    assert world.lines("the sweep of incomplete packets failed")
    assert world.lines("freeing memory failed")
    assert world.lines("the sweep of retained messages failed")
    assert world.lines("the report under $SYS failed")


def test_a_subscription_without_its_session_keeps_no_broker_from_starting() -> None:
    world = Lasting()
    world.durable("gone").subscribe("t", qos=1)
    world.durable("kept").subscribe("t", qos=1)
    world.database.connection.execute("DELETE FROM session WHERE client_id = 'gone'")
    world.crash()
    assert set(world.broker.router.sessions) == {"kept"}
    world.connect("p").send(Publish("t", b"x", 1, 1))
    assert payloads(world.durable("kept", present=True).take()) == [b"x"]

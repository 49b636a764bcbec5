"""Every call from the loop to a hook or a store raises once, under the traffic of bystanders.

One connection or session pays for it, one line of the log says why, and nobody else notices, then
or later. The table has an entry for each public method of the classes that the loop calls: a new
method without one fails. Each scenario says whether the victim's connection ends.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from semel.broker.authority import (
    Authority,
    Challenge,
    Denied,
    Granted,
    Proof,
    ServerAuthentication,
    Step,
)
from semel.broker.identity import Identity, PeerInfo
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Auth,
    Connect,
    Packet,
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
    Will,
    encode,
)
from semel.store.database import Database
from semel.store.store import Store
from tests.broker.recorded import Plant, Tables, read_all, subscribe
from tests.broker.world import Client

KEPT = Properties(session_expiry_interval=1_000)
NARROW = Properties(session_expiry_interval=1_000, receive_maximum=2)
AUTHENTICATED = Properties(authentication_method="M", session_expiry_interval=1_000)


class Mistake(Exception):
    """What is raised."""


class Fuse:
    """Blows once: at a call of one method whose first argument is the one that was named."""

    def __init__(self) -> None:
        self.name = ""
        self.about: object = None
        self.spared = 0
        self.has_blown = False
        # Calls that this is true of are counted, and the one with the number `blows_at` raises.
        self.counts: Callable[[str, object], bool] = lambda name, about: False
        self.count = 0
        self.blows_at = 0

    def arm(self, name: str, about: object = None, *, spared: int = 0) -> None:
        """With None for any argument; the first calls may be spared."""
        self.name, self.about, self.spared = name, about, spared

    def check(self, name: str, about: object) -> None:
        if self.counts(name, about):
            self.count += 1
            if self.count == self.blows_at:
                self.has_blown = True
                raise Mistake(name)
        if name == self.name and (self.about is None or self.about == about):
            if self.spared:
                self.spared -= 1
                return
            self.name = ""
            self.has_blown = True
            raise Mistake(name)


class Method(ServerAuthentication):
    """One challenge, then yes."""

    def __init__(self, fuse: Fuse, client_id: str) -> None:
        self.fuse = fuse
        self.client_id = client_id

    def start(self, data: bytes | None) -> Step:
        self.fuse.check("ServerAuthentication.start", self.client_id)
        return Challenge()

    def answer(self, data: bytes | None) -> Step:
        self.fuse.check("ServerAuthentication.answer", self.client_id)
        return Granted()


class Hooks(Authority):
    """Allows everything, as long as the fuse holds."""

    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse

    def rights(self, identity: Identity) -> str:
        self.fuse.check("Authority.rights", identity.client_id)
        return ""

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        self.fuse.check("Authority.connect", packet.client_id)
        return super().connect(packet, peer)

    def begin_authentication(
        self, method: str, packet: Connect, peer: PeerInfo
    ) -> ServerAuthentication | None:
        self.fuse.check("Authority.begin_authentication", packet.client_id)
        return Method(self.fuse, packet.client_id)

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        self.fuse.check("Authority.publish", identity.client_id)
        return 0

    def subscribe(self, identity: Identity, topic_filter: str, *, qos: int) -> int:
        self.fuse.check("Authority.subscribe", identity.client_id)
        return qos

    def receive(self, identity: Identity, topic_name: str) -> bool:
        self.fuse.check("Authority.receive", identity.client_id)
        return True

    def may_use_session(self, identity: Identity, owner: Identity) -> bool:
        self.fuse.check("Authority.may_use_session", identity.client_id)
        return True

    def left(self, identity: Identity) -> None:
        self.fuse.check("Authority.left", identity.client_id)


def fused(name: str) -> Callable[..., object]:
    """A method of the real tables that asks the fuse first."""
    method = getattr(Tables, name)

    def call(self: "FusedTables", *arguments: object) -> object:
        # What a commit holds is many sessions'.
        self.fuse.check(f"Store.{name}", None if name == "write" else arguments[0])
        result: object = method(self, *arguments)
        return result

    return call


class FusedTables(Tables):
    """The real tables; each public method of a Store asks the fuse first."""

    def __init__(self, database: Database, fuse: Fuse) -> None:
        super().__init__(database)
        self.fuse = fuse


def public_methods(kind: type) -> list[str]:
    return [
        name
        for name, value in vars(kind).items()
        if not name.startswith("_") and (inspect.isroutine(value) or callable(value))
    ]


for _name in public_methods(Store):
    if _name != "restore":
        setattr(FusedTables, _name, fused(_name))


class Whole(Plant):
    """A broker with everything, a victim, and bystanders who must not notice."""

    def __init__(self) -> None:
        self.fuse = Fuse()
        settings = BrokerSettings(maximum_queued_messages=8, sys_interval=5.0)
        # Of all connections, by client identifier.
        self.opened: list[tuple[str, Client]] = []
        streams = {"plant": "plant/#", "own": "own/#"}
        super().__init__(settings, Hooks(self.fuse), streams=streams, window=2)
        self.set_out()

    def new_store(self) -> Tables:
        return FusedTables(self.database, self.fuse)

    def open(self, version: int = MQTT5, *, peer: str = "test:1") -> Client:
        client = super().open(version, peer=peer)
        self.opened.append(("victim", client))
        return client

    def connect(self, client_id: str = "a", *arguments: Any, **keywords: Any) -> Client:
        client = super().connect(client_id, *arguments, **keywords)
        self.opened[-1] = (client_id, client)
        return client

    def crash(self) -> None:
        lines = self.log
        super().crash()
        self.log[:0] = lines

    def closed(self) -> list[str]:
        """Whose connections the broker has closed."""
        return [name for name, client in self.opened if client.is_closed()]

    def wrong(self) -> list[str]:
        """What the log says, but for what it says of every connection."""
        return [line for line in self.log if not line.endswith(ORDINARY)]

    # --- bystanders -------------------------------------------------------------------------------

    def set_out(self) -> None:
        """Let the bystanders come."""
        self.publisher = self.connect("publisher", clean_start=False, properties=KEPT)
        self.receiver = self.connect("receiver", clean_start=False, properties=KEPT)
        self.receiver.subscribe("by/#", "will/#", qos=2)
        self.follower = self.connect("follower", clean_start=False, properties=KEPT)
        self.follower.send(subscribe("$stream/plant/plant/by", "latest"))
        self.silent = self.connect("silent", keep_alive=20)
        self.expiring = self.connect(
            "expiring",
            properties=Properties(session_expiry_interval=40),
            will=Will("will/late", b"late", qos=1, properties=Properties(will_delay_interval=35)),
        )
        self.expiring.cut()
        self.settle()
        self.packet_id = 0

    def come_back(self) -> None:
        """The bystanders after a crash."""
        self.publisher = self.connect("publisher", clean_start=False, properties=KEPT, present=True)
        self.receiver = self.connect("receiver", clean_start=False, properties=KEPT, present=True)
        self.follower = self.connect("follower", clean_start=False, properties=KEPT, present=True)
        self.silent = self.connect("silent", keep_alive=20)

    def check_bystanders(self) -> None:
        """They are acknowledged, sent what they asked for, and answered; at QoS 1 and 2."""
        for qos in (1, 2):
            self.packet_id += 1
            payload = b"%d" % self.packet_id
            answers = self.publisher.send(Publish("by/it", payload, qos, self.packet_id))
            if qos == 1:
                assert answers == [PubAck(self.packet_id)]
            else:
                assert answers == [PubRec(self.packet_id)]
                assert self.publisher.send(PubRel(self.packet_id)) == [PubComp(self.packet_id)]
            self.settle()
            assert [each.payload for each in read_all(self.receiver)] == [payload]
        self.packet_id += 1
        payload = b"%d" % self.packet_id
        assert self.publisher.send(Publish("plant/by", payload, 1, self.packet_id))[0] == PubAck(
            self.packet_id, 0x10
        )
        self.settle()
        assert [each.payload for each in read_all(self.follower)] == [payload]
        for client in (self.publisher, self.receiver, self.follower):
            assert not client.is_closed()
            assert client.send(PingReq()) == [PingResp()]

    def beside(self, act: Callable[[], None]) -> None:
        """Do it in a tick in which the bystanders speak before and after."""
        self.publisher.take()
        first = self.packet_id + 1
        self.packet_id += 2
        for number in (first, first + 1):
            data = encode(Publish("by/it", b"%d" % number, 1, number), self.publisher.version)
            self.broker.receive(self.publisher.connection, data, self.now)
            if number == first:
                act()
        self.settle()
        assert self.publisher.take() == [PubAck(first), PubAck(first + 1)]
        found = [each.payload for each in read_all(self.receiver)]
        assert [each for each in found if each.isdigit()] == [b"%d" % first, b"%d" % (first + 1)]

    def check_later(self) -> None:
        """Time goes on for them: keep alive, a delayed will, the end of a session."""
        self.wait(36)
        self.settle()
        assert self.silent.is_closed()
        assert [each.payload for each in read_all(self.receiver)] == [b"late"]
        self.wait(10)
        assert "expiring" not in self.broker.router.sessions
        self.check_bystanders()

    # --- the victim -------------------------------------------------------------------------------

    def victim(self, properties: Properties = KEPT, will: Will | None = None) -> Client:
        """It comes, or comes back."""
        present = "victim" in self.broker.router.sessions
        return self.connect(
            "victim", clean_start=False, properties=properties, will=will, present=present
        )

    @property
    def number(self) -> int:
        """What the store calls its session."""
        return self.broker.router.sessions["victim"].store_id

    def say(self, client: Client, *packets: Packet) -> list[Packet]:
        """What it sends; an exception over that closes its connection, as the server does.

        One in a tick is nobody's, and must not be.
        """
        data = b"".join(encode(packet, client.version) for packet in packets)
        has_failed = False

        def speak() -> None:
            nonlocal has_failed
            try:
                self.broker.receive(client.connection, data, self.now)
            except Mistake:
                has_failed = True
                self.log.append(f"{client.connection.peer} closed: serving it failed: Mistake")
                client.connection.closing = True

        self.beside(speak)
        if has_failed:
            client.cut()
            return []
        return client.take()

    def fill_queue(self, count: int, *, topic: str = "v", expiry: int | None = None) -> None:
        """Messages for a victim that is away."""
        for _ in range(count):
            self.packet_id += 1
            properties = Properties(message_expiry_interval=expiry)
            packet = Publish(topic, b"v", 1, self.packet_id, properties=properties)
            assert self.publisher.send(packet) == [PubAck(self.packet_id)]


Scenario = Callable[[Whole], None]
# How the lines end that the log has of every connection.
ORDINARY = (
    " connected with MQTT 5.0",
    " connected with MQTT 3.1.1",
    " lost its connection",
    " disconnected",
)


# --- Authority and Authentication -----------------------------------------------------------------


def connects(world: Whole) -> None:
    world.fuse.arm("Authority.connect", "victim")
    world.say(world.open(), Connect("victim", properties=KEPT))


def sends(world: Whole) -> None:
    victim = world.victim()
    world.fuse.arm("Authority.rights", "victim")
    world.say(victim, Publish("v/1", b"x", 2, 1))


def publishes(world: Whole) -> None:
    victim = world.victim()
    world.fuse.arm("Authority.publish", "victim")
    world.say(victim, Publish("v/1", b"x", 2, 1))


def announces_a_will(world: Whole) -> None:
    world.fuse.arm("Authority.publish", "victim")
    will = Will("will/v", b"x", qos=1)
    world.say(world.open(), Connect("victim", properties=KEPT, will=will))


def resumes_a_session(world: Whole) -> None:
    world.victim().cut()
    world.fuse.arm("Authority.may_use_session", "victim")
    world.say(world.open(), Connect("victim", clean_start=False, properties=KEPT))


def resumes_a_subscription(world: Whole) -> None:
    victim = world.victim()
    world.say(victim, Subscribe(1, [Subscription("v")]))
    victim.cut()
    world.broker.router.sessions["victim"].checked_version = -1
    world.fuse.arm("Authority.subscribe", "victim")
    world.say(world.open(), Connect("victim", clean_start=False, properties=KEPT))


def has_a_subscription_when_rights_change(world: Whole) -> None:
    world.say(world.victim(), Subscribe(1, [Subscription("v")]))
    world.fuse.arm("Authority.subscribe", "victim")
    assert world.authority is not None
    world.authority.generation += 1
    world.settle()


def leaves(world: Whole) -> None:
    victim = world.victim()
    world.fuse.arm("Authority.left", "victim")
    world.beside(victim.cut)


def leaves_a_will(world: Whole) -> None:
    victim = world.victim(will=Will("will/v", b"x", qos=1))
    world.fuse.arm("Authority.publish", "victim")
    world.beside(victim.cut)


def subscribes(world: Whole) -> None:
    victim = world.victim()
    world.fuse.arm("Authority.subscribe", "victim")
    world.say(victim, Subscribe(1, [Subscription("v")]))


def subscribes_to_a_stream(world: Whole) -> None:
    victim = world.victim()
    world.fuse.arm("Authority.subscribe", "victim")
    world.say(victim, subscribe())


def authenticates(world: Whole) -> None:
    world.fuse.arm("Authority.begin_authentication", "victim")
    world.say(world.open(), Connect("victim", properties=AUTHENTICATED))


def begins_to_authenticate(world: Whole) -> None:
    world.fuse.arm("ServerAuthentication.start", "victim")
    world.say(world.open(), Connect("victim", properties=AUTHENTICATED))


def authenticated(world: Whole) -> Client:
    victim = world.open()
    method = Properties(authentication_method="M")
    world.say(victim, Connect("victim", properties=AUTHENTICATED))
    world.say(victim, Auth(0x18, properties=method))
    return victim


def authenticates_again(world: Whole) -> None:
    victim = authenticated(world)
    world.fuse.arm("ServerAuthentication.start", "victim")
    world.say(victim, Auth(0x19, properties=Properties(authentication_method="M")))


def answers_a_challenge(world: Whole) -> None:
    world.fuse.arm("ServerAuthentication.answer", "victim")
    authenticated(world)


def answers_a_later_challenge(world: Whole) -> None:
    victim = authenticated(world)
    method = Properties(authentication_method="M")
    world.say(victim, Auth(0x19, properties=method))
    world.fuse.arm("ServerAuthentication.answer", "victim")
    world.say(victim, Auth(0x18, properties=method))


def receives(world: Whole) -> None:
    """The publisher is acknowledged, and the others who get the message get it."""
    world.victim().subscribe("by/#", qos=1)
    world.fuse.arm("Authority.receive", "victim")


def receives_what_is_learned(world: Whole) -> None:
    """The second call is the one that teaches the hot path the route of the topic."""
    world.victim().subscribe("by/#", qos=1)
    world.fuse.arm("Authority.receive", "victim", spared=1)


def receives_while_away(world: Whole) -> None:
    victim = world.victim()
    victim.subscribe("by/#", qos=1)
    victim.cut()
    world.fuse.arm("Authority.receive", "victim")


def receives_what_is_retained(world: Whole) -> None:
    world.publisher.send(Publish("kept", b"x", retain=True))
    victim = world.victim()
    world.fuse.arm("Authority.receive", "victim")
    world.say(victim, Subscribe(1, [Subscription("kept", 1)]))


def receives_as_one_of_a_group(world: Whole) -> None:
    for name in ("victim", "other"):
        member = world.connect(name, properties=KEPT)
        member.send(Subscribe(1, [Subscription("$share/g/by/#", 1)]))
    world.fuse.arm("Authority.receive", "victim")


def receives_the_plain_way(world: Whole) -> None:
    """Of a run of QoS 0 messages, because its version is another."""
    world.connect("victim", MQTT311, clean_start=False).subscribe("by/#")
    run = [Publish("by/it", b"x"), Publish("by/it", b"y")]
    assert world.publisher.send(*run) == []
    read_all(world.receiver)
    world.fuse.arm("Authority.receive", "victim")
    assert world.publisher.send(*run) == []
    assert [each.payload for each in read_all(world.receiver)] == [b"x", b"y"]


def receives_what_another_leaves(world: Whole) -> None:
    """A member of a group leaves, and the victim is to have what it was not sent."""
    other = world.connect("other", clean_start=False, properties=NARROW)
    other.send(Subscribe(1, [Subscription("$share/g/v", 1)]))
    world.fill_queue(7)
    world.victim().send(Subscribe(1, [Subscription("$share/g/v", 1)]))
    world.fuse.arm("Authority.receive", "victim")
    world.beside(other.cut)


def receives_a_record(world: Whole) -> None:
    world.check_bystanders()
    victim = world.victim()
    world.fuse.arm("Authority.receive", "victim")
    world.say(victim, subscribe())


# --- reads of the store ---------------------------------------------------------------------------


def comes_after_a_start(world: Whole) -> None:
    world.victim().cut()
    world.crash()
    world.come_back()
    world.fuse.arm("Store.exchanges", world.number)
    world.say(world.open(), Connect("victim", clean_start=False, properties=KEPT))


def expires_after_a_start(world: Whole) -> None:
    world.victim(Properties(session_expiry_interval=5)).cut()
    world.crash()
    world.come_back()
    world.fuse.arm("Store.exchanges", world.number)
    world.beside(lambda: world.wait(6))


def starts_clean_after_a_start(world: Whole) -> None:
    """Neither the fault nor its line is the new session's."""
    world.victim().cut()
    world.crash()
    world.come_back()
    world.fuse.arm("Store.exchanges", world.number)
    assert not world.connect("victim", properties=KEPT).is_closed()


def reads_its_queue(world: Whole) -> None:
    victim = world.victim(NARROW)
    victim.subscribe("v", qos=1)
    victim.cut()
    world.fill_queue(7)
    victim = world.victim(NARROW)
    world.fuse.arm("Store.queue", world.number)
    world.say(victim, PubAck(1), PubAck(2))
    read_all(victim)


def leaves_a_group(world: Whole) -> None:
    victim = world.victim(NARROW)
    victim.send(Subscribe(1, [Subscription("$share/g/v", 1)]))
    world.fill_queue(7)
    other = world.connect("other", properties=KEPT)
    other.send(Subscribe(1, [Subscription("$share/g/v", 1)]))
    world.fuse.arm("Store.queue", world.number)
    world.beside(victim.cut)


def ends_as_one_of_a_group(world: Whole) -> None:
    victim = world.victim(NARROW)
    victim.send(Subscribe(1, [Subscription("$share/g/v", 1)]))
    victim.cut()
    world.fill_queue(7)
    world.fuse.arm("Store.queue", world.number)
    world.connect("victim", properties=KEPT)


def has_expired_messages(world: Whole, read: str) -> None:
    """The publisher of one more for a full queue has nothing to do with it."""
    victim = world.victim()
    victim.subscribe("v", qos=1)
    victim.cut()
    world.fill_queue(8, expiry=1)
    world.now += 2
    world.fuse.arm(read, world.number)
    world.fill_queue(1)


def looks_for_expired_messages(world: Whole) -> None:
    has_expired_messages(world, "Store.expired")


def looks_for_the_next_expiry(world: Whole) -> None:
    has_expired_messages(world, "Store.next_expiry")


def replays(world: Whole) -> None:
    world.check_bystanders()
    victim = world.victim()
    world.fuse.arm("Store.records")
    world.say(victim, subscribe())


def replays_from_a_time(world: Whole) -> None:
    world.check_bystanders()
    victim = world.victim()
    world.fuse.arm("Store.seek")
    world.say(victim, subscribe(offset="2001-01-01T00:00:00Z"))


def follows(world: Whole) -> None:
    """It has all of the record, and there is more."""
    stream = world.broker.router.streams.named("own")
    assert stream is not None
    world.say(world.victim(), subscribe("$stream/own/#"))
    world.fuse.arm("Store.records", stream.id)
    world.packet_id += 1
    world.publisher.send(Publish("own/it", b"x", 1, world.packet_id))


TABLE: dict[str, tuple[Scenario, ...]] = {
    "Authority.rights": (sends,),
    "Authority.connect": (connects,),
    "Authority.begin_authentication": (authenticates,),
    "Authority.publish": (publishes, announces_a_will, leaves_a_will),
    "Authority.subscribe": (
        subscribes,
        subscribes_to_a_stream,
        resumes_a_subscription,
        has_a_subscription_when_rights_change,
    ),
    "Authority.may_use_session": (resumes_a_session,),
    "Authority.left": (leaves,),
    "Authority.receive": (
        receives,
        receives_what_is_learned,
        receives_while_away,
        receives_what_is_retained,
        receives_as_one_of_a_group,
        receives_the_plain_way,
        receives_what_another_leaves,
        receives_a_record,
    ),
    "ServerAuthentication.start": (begins_to_authenticate, authenticates_again),
    "ServerAuthentication.answer": (answers_a_challenge, answers_a_later_challenge),
    "Store.exchanges": (comes_after_a_start, expires_after_a_start, starts_clean_after_a_start),
    "Store.queue": (reads_its_queue, leaves_a_group, ends_as_one_of_a_group),
    "Store.expired": (looks_for_expired_messages,),
    "Store.next_expiry": (looks_for_the_next_expiry,),
    "Store.records": (replays, follows),
    "Store.seek": (replays_from_a_time,),
}
# Whose victim has no connection at that time, or a new one that has no part in it.
ENDS_NO_CONNECTION = (
    leaves,
    leaves_a_will,
    receives_while_away,
    expires_after_a_start,
    starts_clean_after_a_start,
    leaves_a_group,
    ends_as_one_of_a_group,
    looks_for_expired_messages,
    looks_for_the_next_expiry,
)
# What is not one client's fault, and why: each has a test of its own.
SHARED = {
    "Store.write": "not one client's: the broker ends, since what it gave numbers to has no row",
    "Store.restore": "called once, before the loop: a start that fails says why and is none",
    "Store.inbox": "a client's: a broker has no such messages",
}
SCENARIOS = [(name, scenario) for name, entries in TABLE.items() for scenario in entries]


def scenario_id(value: object) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", "")


def test_every_method_that_the_loop_can_call_is_in_the_table() -> None:
    methods = {
        f"{kind.__name__}.{name}"
        for kind in (Authority, ServerAuthentication, Store)
        for name in public_methods(kind)
    }
    assert methods == TABLE.keys() | SHARED.keys()
    assert not TABLE.keys() & SHARED.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scenario"), SCENARIOS, ids=scenario_id)
def test_a_call_that_raises_once_ends_one_connection_at_most_and_nobody_else_notices(
    name: str, scenario: Scenario
) -> None:
    world = Whole()
    world.check_bystanders()
    scenario(world)
    world.check_bystanders()
    assert world.fuse.has_blown, f"{name} was not called"
    closed = [] if scenario in ENDS_NO_CONNECTION else ["victim"]
    assert world.closed() == closed
    (line,) = world.wrong()
    assert "Mistake" in line
    world.check_later()
    assert world.closed() == [*closed, "silent"] or world.closed() == ["silent", *closed]
    assert len(world.wrong()) == 2
    # It may come back, and is served: what it sends, and what it is sent.
    again = world.victim()
    read_all(again)
    found = world.say(again, Publish("v/1", b"x", 2, 1, dup=True))
    assert [each.packet_id for each in found if isinstance(each, PubRec)] == [1]
    assert PubComp(1) in world.say(again, PubRel(1))
    assert world.say(again, Subscribe(2, [Subscription("v/2", 1)]))
    world.packet_id += 1
    world.publisher.send(Publish("v/2", b"to it", 1, world.packet_id))
    assert b"to it" in [each.payload for each in read_all(again)]
    world.check_bystanders()


@pytest.mark.parametrize("spared", [0, 1, 2, 3])
def test_an_authority_that_fails_once_does_not_cut_a_subscriber_off_a_topic(spared: int) -> None:
    world = Whole()
    world.victim().subscribe("by/#", qos=1)
    world.fuse.arm("Authority.receive", "victim", spared=spared)
    world.check_bystanders()
    world.check_bystanders()
    assert world.fuse.has_blown
    again = world.victim()
    read_all(again)
    world.check_bystanders()
    world.settle()
    assert len(read_all(again)) == 2


def test_a_store_that_cannot_be_given_a_commit_ends_the_broker_and_nothing_is_acknowledged() -> (
    None
):
    world = Whole()
    world.fuse.arm("Store.write")
    assert world.publisher.send(Publish("plant/v", b"x", 1, 1)) == []
    assert world.fuse.has_blown
    assert world.publisher.is_closed()
    assert "Mistake" in world.broker.store_failure
    assert world.receiver.send(Subscribe(9, [Subscription("more")])) == []
    assert len([line for line in world.log if "Mistake" in line]) == 1
    assert world.rows("SELECT count(*) FROM record") == [(0,)]
    # A new one goes on, without a gap.
    world.crash()
    publisher = world.connect("publisher", clean_start=False, properties=KEPT, present=True)
    assert publisher.send(Publish("plant/v", b"x", 1, 1, dup=True)) == [PubAck(1, 0x10)]
    assert world.rows("SELECT seq FROM record") == [(1,)]


def test_a_broker_never_asks_for_the_messages_of_a_client() -> None:
    world = Whole()
    world.fuse.arm("Store.inbox")
    world.check_bystanders()
    world.crash()
    world.come_back()
    world.check_bystanders()
    assert not world.fuse.has_blown


def test_a_start_that_cannot_read_the_store_is_none() -> None:
    class Unreadable(Tables):
        def restore(self) -> object:  # type: ignore[override]
            raise Mistake

    class Refusing(Plant):
        def new_store(self) -> Tables:
            return Unreadable(self.database)

    with pytest.raises(Mistake):
        Refusing()

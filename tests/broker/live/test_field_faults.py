"""Bugs that brokers have had: class 14, one exception that ends the loop of all.

Whoever extends the broker gives it an Authority and a Store of his own, and one day they fail. A
fault while one client is served costs that client its connection, is logged once, and touches
nobody else: Moquette and aedes stopped serving everybody.
"""

import contextlib
import random

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
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
    encode,
)
from semel.store.commit import Commit
from semel.store.store import Store
from tests.broker.broker_process import Process
from tests.broker.by_hand import Link, Pair, healthy_pair, link
from tests.broker.core.test_core import KEPT, VERSIONS, payloads
from tests.broker.serving import Serving, serving
from tests.broker.world import World
from tests.modes import repeats

WHY = "the list of rights is gone"


class Broken(Exception):
    """What nobody foresaw."""


class Faulty(Authority):
    """Allows everything, and fails over the victim in the methods that `failing` names."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[str] = set()

    def fail(self, *methods: str) -> None:
        """Fail in these from now on; nothing that was said before is to be remembered."""
        self.failing = set(methods)
        self.generation += 1

    def _fail(self, method: str, client_id: str) -> None:
        if client_id == "victim" and method in self.failing:
            raise Broken(WHY)

    def rights(self, identity: Identity) -> str:
        self._fail("rights", identity.client_id)
        return identity.client_id

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        self._fail("connect", packet.client_id)
        return super().connect(packet, peer)

    def begin_authentication(
        self, method: str, packet: Connect, peer: PeerInfo
    ) -> ServerAuthentication | None:
        self._fail("begin", packet.client_id)
        return FaultyAuthentication(self)

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        self._fail("publish", identity.client_id)
        return 0

    def subscribe(self, identity: Identity, topic_filter: str, *, qos: int) -> int:
        self._fail("subscribe", identity.client_id)
        return qos

    def receive(self, identity: Identity, topic_name: str) -> bool:
        self._fail("receive", identity.client_id)
        return True


class FaultyAuthentication(ServerAuthentication):
    """Asks once and believes whatever it is told."""

    def __init__(self, authority: Faulty) -> None:
        super().__init__()
        self.authority = authority

    def start(self, data: bytes | None) -> Step:
        if "start" in self.authority.failing:
            raise Broken(WHY)
        return Challenge(b"who?")

    def answer(self, data: bytes | None) -> Step:
        if "answer" in self.authority.failing:
            raise Broken(WHY)
        return Granted()


class FaultyStore(Store):
    """Keeps nothing, and fails over the next commit that holds what `failing` names."""

    def __init__(self) -> None:
        super().__init__(is_durable=True)
        self.failing: set[str] = set()
        self.victims: set[int] = set()

    def write(self, commit: Commit) -> bool:
        found = set()
        for number, client_id, _, _ in commit.sessions:
            if client_id == "victim":
                self.victims.add(number)
                found.add("sessions")
        if any(number in self.victims for number, _ in commit.changes):
            found.add("changes")
        for number, _, subscription, _ in commit.subscriptions:
            if number in self.victims:
                found.add("unsubscribed" if subscription is None else "subscribed")
        if any(topic_name.startswith("victim") for topic_name, _ in commit.retained):
            found.add("retained")
        if found & self.failing:
            self.failing = set()
            raise Broken(WHY)
        return True


# What a client may be doing, and the answers that mean that it was done.
ACTIONS: dict[str, Packet] = {
    "connect": Connect("victim", properties=KEPT),
    "publish 0": Publish("victim/t", b"x"),
    "publish 1": Publish("victim/t", b"x", qos=1, packet_id=3),
    "publish 2": Publish("victim/t", b"x", qos=2, packet_id=3),
    "retain": Publish("victim/t", b"x", qos=1, packet_id=3, retain=True),
    "subscribe": Subscribe(3, [Subscription("victim/s")]),
    "unsubscribe": Unsubscribe(3, ["victim/u"]),
}
ANSWERS = (ConnAck, PubAck, PubRec, SubAck, UnsubAck)


def is_alive(client: Link) -> bool:
    """Whether the broker still answers on that connection."""
    try:
        client.send(PingReq())
        while True:
            (packet,) = client.take(1)
            if packet == PingResp():
                return True
    except (AssertionError, OSError):
        return False


def until(client: Link, kind: type[Packet]) -> None:
    """Wait for a packet of that type, whatever comes before it."""
    while not isinstance(client.take(1)[0], kind):
        pass


def until_logged(server: Serving, pair: Pair) -> None:
    """Let the healthy go on until the fault has been met."""
    for _ in range(200):
        pair.exchange()
        if server.log.about(WHY):
            return
    raise AssertionError("no fault was logged")


LOOPS = pytest.mark.parametrize("loop", ["asyncio", "broker"])


@LOOPS
@pytest.mark.parametrize("action", ["connect", "publish 0", "publish 1", "publish 2", "subscribe"])
def test_class_14_an_authority_that_fails_over_one_client_ends_its_connection_only(
    action: str, loop: str
) -> None:
    authority = Faulty()
    with serving(authority=authority, loop=loop) as server, healthy_pair(server.address) as pair:
        for client_version in (MQTT5, MQTT311):
            server.log.lines.clear()
            packet = ACTIONS[action]
            if action == "connect" and client_version == MQTT311:
                packet = Connect("victim", version=MQTT311)
            with link(server.address, "", client_version) as client:
                if action != "connect":
                    client.connect("victim")
                authority.fail(action.split()[0])
                client.send(packet)
                # a refusal would be an answer too, but none that says that it was done
                answers = [p for p in client.until_closed() if isinstance(p, ANSWERS)]
                assert all(isinstance(p, ConnAck) and p.reason for p in answers)
            pair.exchange()
            assert len(server.log.about(WHY)) == 1
            authority.fail()
            # the control: the same without the fault
            with link(server.address, "", client_version) as client:
                if action != "connect":
                    client.connect("victim")
                client.send(packet)
                if action == "publish 0":
                    client.ping()
                else:
                    assert isinstance(client.take(1)[0], ANSWERS)


@pytest.mark.parametrize("method", ["begin", "start", "answer"])
def test_class_14_an_authentication_that_fails_ends_one_connection_only(method: str) -> None:
    """Enhanced authentication is a stranger's code too, and it runs before anybody is known."""
    authority = Faulty()
    knocking = Connect("victim", properties=Properties(authentication_method="ask"))
    answer = Auth(0x18, properties=Properties(authentication_method="ask"))
    with serving(authority=authority) as server, healthy_pair(server.address) as pair:
        for fails in (True, False):
            authority.fail(*([method] if fails else []))
            with link(server.address) as client:
                client.send(knocking)
                if method == "answer" or not fails:
                    assert [type(packet) for packet in client.take(1)] == [Auth]
                    client.send(answer)
                if fails:
                    refusals = client.until_closed()
                    assert all(isinstance(p, ConnAck) and p.reason >= 0x80 for p in refusals)
                else:
                    assert [type(packet) for packet in client.take(1)] == [ConnAck]
                    client.ping()
            pair.exchange()
        assert len(server.log.about(WHY)) == 1


def test_class_14_an_authority_that_cannot_name_rights_ends_one_connection_only() -> None:
    """`rights` is asked whenever the broker needs it: for a CONNECT or for the first message."""
    authority = Faulty()
    with serving(authority=authority) as server, healthy_pair(server.address) as pair:
        authority.fail("rights")
        with link(server.address) as client:
            client.send(Connect("victim"), Publish("t", b"x", qos=1, packet_id=1))
            assert not any(isinstance(packet, PubAck) for packet in client.until_closed())
        pair.exchange()
        assert len(server.log.about(WHY)) == 1
        authority.fail()
        with link(server.address, "victim") as client:
            client.send(Publish("t", b"x", qos=1, packet_id=1))
            assert [type(packet) for packet in client.take(1)] == [PubAck]


@LOOPS
def test_class_14_a_fault_over_the_will_of_a_lost_client_stays_with_it(loop: str) -> None:
    """There is no connection left to close, but others to serve."""
    authority = Faulty()
    with serving(authority=authority, loop=loop) as server, healthy_pair(server.address) as pair:
        with link(server.address) as client:
            client.send(Connect("victim", will=Will("healthy/will", b"bye")))
            client.take(1)
            authority.fail("publish")
        until_logged(server, pair)
        pair.exchange()
        assert len(server.log.about(WHY)) == 1
        authority.fail()
        with link(server.address, "victim") as client:
            client.ping()


@LOOPS
def test_class_14_a_fault_in_the_work_of_each_second_does_not_end_that_work(loop: str) -> None:
    """A delayed will is sent from there; so are time-outs kept, by which the next one is judged."""
    authority = Faulty()
    settings = BrokerSettings(port=0, sys_interval=0.0, connect_timeout=2.0)
    with (
        serving(settings, authority=authority, loop=loop) as server,
        healthy_pair(server.address) as pair,
    ):
        with link(server.address) as client:
            delayed = Properties(will_delay_interval=1)
            will = Will("healthy/will", b"bye", properties=delayed)
            client.send(Connect("victim", will=will, properties=KEPT))
            client.take(1)
            authority.fail("publish")
        with link(server.address, "watcher") as watching, link(server.address) as stranger:
            watching.subscribe("other/will")
            with link(server.address) as client:
                will = Will("other/will", b"bye", properties=delayed)
                client.send(Connect("other", will=will, properties=KEPT))
                client.take(1)
            assert stranger.until_closed() == []
            assert payloads(watching.take(1)) == [b"bye"]
        assert len(server.log.about(WHY)) == 1
        pair.exchange()


def test_class_14_a_fault_during_a_take_over_touches_no_third_client() -> None:
    authority = Faulty()
    with serving(authority=authority) as server, healthy_pair(server.address) as pair:
        with link(server.address) as old, link(server.address) as new:
            old.send(Connect("victim", will=Will("healthy/will", b"bye")))
            old.take(1)
            authority.fail("publish")
            new.send(Connect("victim"))
            old.until_closed()
            until_logged(server, pair)
            assert len(server.log.about(WHY)) == 1
            authority.fail()
            with link(server.address, "victim") as third:
                third.ping()
                assert not is_alive(new)
        pair.exchange()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_class_14_a_fault_over_one_receiver_ends_one_connection(qos: int) -> None:
    """The one that is served or the one over which it failed, and no third one."""
    authority = Faulty()
    with (
        serving(authority=authority) as server,
        healthy_pair(server.address) as pair,
        link(server.address, "victim") as receiver,
        link(server.address, "bystander") as bystander,
        link(server.address, "sender") as sender,
    ):
        for client in (receiver, bystander):
            client.subscribe("t", qos=0)
        authority.fail("receive")
        sender.send(Publish("t", b"1", qos=qos, packet_id=3 if qos else 0))
        pair.exchange()
        alive = [is_alive(receiver), is_alive(sender)]
        assert sorted(alive) == [False, True]
        assert len(server.log.about(WHY)) == 1
        authority.fail()
        assert is_alive(bystander)
        pair.publisher.send(Publish("t", b"2"))
        (packet,) = bystander.take(1)
        assert isinstance(packet, Publish)
        assert packet.payload == b"2"


@VERSIONS
@pytest.mark.parametrize("method", ["publish", "receive"])
def test_class_14_a_qos_2_message_that_met_a_fault_still_arrives_exactly_once(
    version: int, method: str
) -> None:
    """[MQTT-4.3.3-10] [MQTT-4.4.0-1]: its sender comes back and sends it again, and is answered"""
    authority = Faulty()
    with (
        serving(authority=authority) as server,
        healthy_pair(server.address) as pair,
        link(server.address, "first") as first,
        link(server.address, "last") as last,
    ):
        kept = KEPT if version == MQTT5 else None
        first.subscribe("t", qos=1)
        with link(server.address, "", version) as sender:
            sender.connect("victim", clean_start=False, properties=kept)
            if method == "receive":
                sender.subscribe("t")
            last.subscribe("t", qos=1)
            authority.fail(method)
            sender.send(Publish("t", b"x", qos=2, packet_id=3))
            assert not any(isinstance(packet, PubRec) for packet in sender.until_closed())
        authority.fail()
        with link(server.address, "", version) as sender:
            assert sender.connect("victim", clean_start=False, properties=kept).session_present
            sender.send(Publish("t", b"x", qos=2, packet_id=3, dup=True))
            until(sender, PubRec)
            sender.send(PubRel(3))
            until(sender, PubComp)
        pair.publisher.send(Publish("t", b"end"))
        for client in (first, last):
            assert payloads(client.take(2)) == [b"x", b"end"]
            client.ping()


@LOOPS
@pytest.mark.parametrize(
    ("action", "what"),
    [
        ("connect", "sessions"),
        ("publish 2", "changes"),
        ("retain", "retained"),
        ("subscribe", "subscribed"),
        ("unsubscribe", "unsubscribed"),
    ],
)
def test_class_14_a_store_that_cannot_be_given_a_commit_ends_the_broker(
    action: str, what: str, loop: str
) -> None:
    """Nothing is acknowledged that was not stored, and nobody is left without a word in the log."""
    for fails in (True, False):
        store = FaultyStore()
        with (
            serving(store=store, loop=loop) as server,
            link(server.address, "bystander") as bystander,
            link(server.address) as client,
        ):
            if action != "connect":
                client.connect("victim", properties=KEPT)
                client.subscribe("victim/u")
            store.failing = {what} if fails else set()
            client.send(ACTIONS[action])
            if fails:
                assert not [each for each in client.until_closed() if isinstance(each, ANSWERS)]
                assert bystander.until_closed() == []
            else:
                assert isinstance(client.take(1)[0], ANSWERS)
                bystander.ping()
            assert len(server.log.about(WHY)) == fails


# --- garbage --------------------------------------------------------------------------------------


def sound_packets(version: int) -> list[bytes]:
    """Something of everything that a client may send."""
    five = version == MQTT5
    properties = Properties(content_type="text/plain", user_properties=[("a", "b")])
    kept = Properties(session_expiry_interval=60) if five else Properties()
    packets: list[Packet] = [
        Publish("a/b", b"x"),
        Publish("a/b", b"payload", qos=1, packet_id=1, retain=True),
        Publish("a/b", b"x", qos=2, packet_id=2, properties=properties if five else Properties()),
        PubRel(2),
        PubAck(1),
        PubRec(1),
        PubComp(1),
        Subscribe(3, [Subscription("a/+", 2), Subscription("$share/g/a/#", 1)]),
        Unsubscribe(4, ["a/+", "b"]),
        PingReq(),
        Connect("fuzz", version=version, will=Will("a/b", b"bye", qos=1), properties=kept),
        Disconnect(),
    ]
    return [encode(packet, version) for packet in packets]


def mutated(choose: random.Random, data: bytes) -> bytes:
    """The bytes with a few of them changed, lost, doubled or moved."""
    changed = bytearray(data)
    for _ in range(choose.randint(0, 3)):
        at = choose.randrange(len(changed) + 1)
        way = choose.randrange(5)
        if way == 0 and at < len(changed):
            changed[at] ^= 1 << choose.randrange(8)
        elif way == 1 and at < len(changed):
            changed[at] = choose.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF))
        elif way == 2:
            del changed[at : at + choose.randint(1, 4)]
        elif way == 3:
            changed[at:at] = choose.randbytes(choose.randint(1, 4))
        else:
            changed[at:at] = changed[: choose.randint(0, len(changed))]
    return bytes(changed)


def garbage(choose: random.Random) -> tuple[int, bytes]:
    """What a connection may bring: a right CONNECT or none, and then whatever comes.

    With it the version in which it is answered, 0 if that is anybody's guess.
    """
    version = choose.choice((MQTT311, MQTT5))
    if choose.random() < 0.1:
        return 0, choose.randbytes(choose.randint(1, 200))
    name = f"fuzz-{choose.randrange(4)}"
    clean = choose.random() < 0.5
    kept = Properties(session_expiry_interval=60) if version == MQTT5 else Properties()
    connect = Connect(name, version=version, clean_start=clean, properties=kept)
    first = encode(connect, version)
    sound = sound_packets(version)
    rest = b"".join(choose.choice(sound) for _ in range(choose.randint(0, 6)))
    if choose.random() < 0.2:
        return 0, mutated(choose, first) + rest
    return version, first + mutated(choose, rest)


@pytest.mark.parametrize("seed", range(repeats(4, 1)))
def test_class_14_no_garbage_brings_the_core_to_an_exception(seed: int) -> None:
    """Any bytes, cut anywhere: others get what is theirs, once, and nothing that is wrong."""
    choose = random.Random(seed)
    world = World(BrokerSettings(sys_interval=0.0))
    publisher, subscriber = world.connect("p"), world.connect("s", MQTT311)
    subscriber.subscribe("healthy/#", qos=2)
    # World decodes every byte that anybody gets, and this one gets all that is forwarded.
    watching = world.connect("w")
    watching.subscribe("#")
    for number in range(300):
        version, data = garbage(choose)
        client = world.open(version or MQTT5)
        if not version:
            world.clients.remove(client)
        at = choose.randint(0, len(data))
        for piece in (data[:at], data[at:]):
            world.broker.receive(client.connection, piece, world.now)
            if choose.random() < 0.5:
                world.tick()
        if choose.random() < 0.8:
            world.broker.lost(client.connection, world.now)
        if number % 10 == 0:
            world.wait(1)
        publisher.send(Publish("healthy/t", b"%d" % number, qos=2, packet_id=1))
        publisher.send(PubRel(1))
        (packet,) = subscriber.take()
        assert isinstance(packet, Publish)
        assert packet.payload == b"%d" % number
        subscriber.send(PubRec(packet.packet_id))
        subscriber.send(PubComp(packet.packet_id))
    assert watching.send(PingReq())[-1:] == [PingResp()]


def test_class_14_garbage_on_many_connections_does_not_touch_a_healthy_pair() -> None:
    """The same on real sockets: the process must also end well, and never shows a traceback."""
    choose = random.Random(14)
    with (
        Process() as broker,
        healthy_pair(broker.address) as pair,
        contextlib.ExitStack() as links,
    ):
        for number in range(300):
            client = links.enter_context(link(broker.address))
            with contextlib.suppress(OSError):
                client.send_bytes(garbage(choose)[1])
            if choose.random() < 0.7:
                client.close()
            if number % 10 == 0:
                pair.exchange()

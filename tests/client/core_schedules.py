"""A client's core on a store, a server, a network that cuts, crashes: random schedules, accounted.

The server is a model of its own, a dictionary for each direction. It never fails, but it may be
told to forget its session while nobody is connected. The client may crash at any moment: what its
store was given and has not written is gone, in part or altogether, and so is all in memory.

At the end everything is delivered and acknowledged, and then every message must be accounted for.
"""

import random
from collections import Counter, deque
from dataclasses import dataclass, field

from semel.client.core import ClientCore
from semel.client.received import Incoming
from semel.mqtt import (
    CLIENT,
    MQTT5,
    SERVER,
    ConnAck,
    Connect,
    Exchange,
    Message,
    Packet,
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
    Violation,
    encode,
)
from semel.mqtt.properties import NO_PROPERTIES
from tests.client.core_world import World
from tests.mqtt.snapshots import session_snapshot

# The server has so few, so that they are soon used again.
IDENTIFIERS = 6
# What can happen, and how often.
CHANCES = {
    "publish": 6,
    "send": 6,
    "commit": 12,
    "to_client": 12,
    "to_server": 12,
    "acknowledge": 6,
    "connect": 8,
    "cut": 3,
    "crash": 1,
}


@dataclass
class Kept:
    """The server's part of a session."""

    filters: set[str] = field(default_factory=set)
    # Of messages that came: identifiers that wait for PUBREL.
    received: set[int] = field(default_factory=set)
    # Of messages for the client: those that were not sent yet, and by identifier those that were.
    queue: deque[tuple[bytes, int]] = field(default_factory=deque)
    sent: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    released: dict[int, None] = field(default_factory=dict)
    last_id: int = 0


class Server:
    """Takes what comes, once, and sends what it has, until it is acknowledged."""

    def __init__(self, version: int, receive_maximum: int) -> None:
        self.version = version
        self.receive_maximum = receive_maximum
        self.kept: Kept | None = None
        self.taken: list[tuple[bytes, int]] = []
        # What the client's own Receive Maximum lets through.
        self.window = 0
        # Whether a CONNECT has come on the connection that there is, and whether it has begun a
        # session that the client had thought to resume.
        self.is_serving = False
        self.is_fresh = False

    @property
    def session(self) -> Kept:
        assert self.kept is not None
        return self.kept

    def take(self, packet: Packet) -> list[Packet]:
        """What it answers."""
        answers: list[Packet] = []
        if isinstance(packet, Connect):
            return self.accept(packet)
        kept = self.session
        if isinstance(packet, Publish):
            if packet.qos == 1:
                self.taken.append((packet.payload, 1))
                answers.append(PubAck(packet.packet_id))
            else:
                if packet.packet_id not in kept.received:
                    kept.received.add(packet.packet_id)
                    self.taken.append((packet.payload, 2))
                answers.append(PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            kept.received.discard(packet.packet_id)
            answers.append(PubComp(packet.packet_id))
        elif isinstance(packet, PubAck | PubComp):
            kept.sent.pop(packet.packet_id, None)
            kept.released.pop(packet.packet_id, None)
        elif isinstance(packet, PubRec):
            kept.released[packet.packet_id] = None
            answers.append(PubRel(packet.packet_id))
        elif isinstance(packet, Subscribe):
            kept.filters.update(each.topic_filter for each in packet.subscriptions)
            answers.append(SubAck(packet.packet_id, [each.qos for each in packet.subscriptions]))
        elif isinstance(packet, Unsubscribe):
            kept.filters.difference_update(packet.topic_filters)
            codes = [0] * len(packet.topic_filters) if self.version == MQTT5 else []
            answers.append(UnsubAck(packet.packet_id, codes))
        return answers + self.send()

    def accept(self, packet: Connect) -> list[Packet]:
        if packet.clean_start:
            self.kept = None
        present = self.kept is not None
        self.is_fresh = not present and not packet.clean_start
        if self.kept is None:
            self.kept = Kept()
        kept = self.kept
        self.is_serving = True
        self.window = min(packet.properties.receive_maximum or IDENTIFIERS, IDENTIFIERS)
        said = NO_PROPERTIES
        if self.version == MQTT5:
            said = Properties(receive_maximum=self.receive_maximum)
        answers: list[Packet] = [ConnAck(session_present=present, properties=said)]
        # [MQTT-4.4.0-1]
        answers += [PubRel(packet_id) for packet_id in kept.released]
        for packet_id, (payload, qos) in kept.sent.items():
            if packet_id not in kept.released:
                answers.append(Publish("down", payload, qos, packet_id, dup=True))
        return answers + self.send()

    def send(self) -> list[Packet]:
        """What may be sent now."""
        kept = self.session
        left: list[Packet] = []
        while kept.queue and len(kept.sent) < self.window:
            payload, qos = kept.queue.popleft()
            kept.last_id = kept.last_id % IDENTIFIERS + 1
            while kept.last_id in kept.sent:
                kept.last_id = kept.last_id % IDENTIFIERS + 1
            kept.sent[kept.last_id] = (payload, qos)
            left.append(Publish("down", payload, qos, kept.last_id))
        return left


class Schedule:
    """One run of chance."""

    def __init__(self, seed: int, version: int, *, forgetful: bool = False) -> None:
        self.random = random.Random(seed)
        self.forgetful = forgetful
        self.world = World(version, receive_maximum=6 if version == MQTT5 else None)
        self.server = Server(version, self.random.choice((2, 5, 100)))
        self.witness = Exchange([])
        self.wires: tuple[deque[Packet], deque[Packet]] = (deque(), deque())
        self.is_connected = False
        self.count = 0
        self.crashes = 0
        # What the client has published: payload to QoS; by number what this run has, and what is
        # known to be stored.
        self.published: dict[bytes, int] = {}
        self.numbers: dict[int, bytes] = {}
        self.stored: set[bytes] = set()
        # What the server has sent: payload to QoS.
        self.sent: dict[bytes, int] = {}
        # What it has forgotten.
        self.forgotten: set[bytes] = set()
        # What the program has got: key to payload, and each time.
        self.keys: dict[str, bytes] = {}
        self.handed_out: list[bytes] = []
        # What it has, and has not acknowledged; keys by number; those whose end is stored.
        self.open: list[Incoming] = []
        self.inbox: dict[int, str] = {}
        self.over: set[str] = set()
        self.world.core.subscribe(Subscription("down", 2), NO_PROPERTIES)

    @property
    def core(self) -> ClientCore:
        return self.world.core

    # --- what can happen --------------------------------------------------------------------------

    def step(self) -> None:
        (name,) = self.random.choices(list(CHANCES), list(CHANCES.values()))
        if self.forgetful and self.random.random() < 0.1:
            name = "forget"
        getattr(self, f"do_{name}")()
        # Not always does something else follow before the turn of the loop ends.
        if self.random.random() < 0.7:
            self.turn()

    def do_publish(self) -> None:
        self.count += 1
        payload, qos = b"up %d" % self.count, self.random.choice((1, 2))
        self.published[payload] = qos
        number = self.core.publish(Message("up", payload, qos=qos), self.world.now)
        self.numbers[number] = payload

    def do_send(self) -> None:
        kept = self.server.kept
        if kept is None or "down" not in kept.filters:
            return
        self.count += 1
        payload, qos = b"down %d" % self.count, self.random.choice((1, 2))
        self.sent[payload] = qos
        kept.queue.append((payload, qos))
        if self.server.is_serving:
            self.from_server(self.server.send())

    def do_commit(self) -> None:
        held = self.world.store.held
        if held:
            self.settle(self.random.randrange(1, len(held) + 1))

    def settle(self, count: int) -> None:
        self.note(count)
        self.leave(self.world.settle(count))
        self.look()

    def note(self, count: int) -> None:
        """The first commits of those that wait are written: what is over by that."""
        for commit in self.world.store.held[:count]:
            for _, number, _, held in commit.inbox:
                if held is None:
                    self.over.add(self.inbox[number])

    def do_connect(self) -> None:
        # Whether or not the store has what was before.
        if self.is_connected:
            return
        self.is_connected = True
        self.witness = Exchange(self.witness.carry())
        connect = self.world.open()
        self.wires[SERVER].append(connect)
        self.witness.observe(CLIENT, connect, 0)

    def do_to_server(self) -> None:
        if self.wires[SERVER]:
            self.from_server(self.server.take(self.wires[SERVER].popleft()))

    def from_server(self, packets: list[Packet]) -> None:
        self.wires[CLIENT].extend(packets)

    def do_to_client(self) -> None:
        wire = self.wires[CLIENT]
        data = b""
        for _ in range(self.random.randrange(1, 4)):
            if wire:
                packet = wire.popleft()
                self.witness.observe(SERVER, packet, 0, [])
                data += encode(packet, self.world.version)
        if data:
            self.core.receive(data, self.world.now)
            assert self.core.connection_end is None, self.core.connection_end.why

    def do_acknowledge(self) -> None:
        if self.open:
            incoming = self.open.pop(self.random.randrange(len(self.open)))
            self.core.acknowledge(incoming)

    @property
    def is_delicate(self) -> bool:
        """Whether a cut or a crash would keep the client from hearing that its session is lost.

        It would resume the server's new session as if it were the old one, and MQTT has nothing by
        which it could tell them apart.
        """
        if not self.forgetful or not self.is_connected:
            return False
        return not self.server.is_serving or (self.server.is_fresh and not self.core.is_connected)

    def do_cut(self) -> None:
        if not self.is_connected or self.is_delicate:
            return
        self.is_connected = False
        for wire in self.wires:
            # Some of what is under way arrives, to the server too.
            keep = self.random.randrange(len(wire) + 1)
            if wire is self.wires[SERVER]:
                for _ in range(keep):
                    self.server.take(wire.popleft())
            wire.clear()
        self.server.is_serving = False
        self.core.on_connection_lost(self.world.now)

    def do_crash(self) -> None:
        if self.is_delicate:
            return
        self.do_cut()
        self.crashes += 1
        world = self.world
        # The store may have written more than it has said.
        count = self.random.randrange(len(world.store.held) + 1)
        self.note(count)
        world.database.apply(world.store.held[:count])
        self.numbers = {}
        self.inbox = {}
        self.open = []
        again = world.crash()
        # All who run as this client want this, in each of their lives.
        self.core.subscribe(Subscription("down", 2), NO_PROPERTIES)
        world.store.holding = True
        self.hand_out(again)

    def do_forget(self) -> None:
        kept = self.server.kept
        if self.is_connected or kept is None:
            return
        self.forgotten.update(payload for payload, _ in kept.queue)
        self.forgotten.update(payload for payload, _ in kept.sent.values())
        self.server.kept = None

    # --- what comes of it -------------------------------------------------------------------------

    def turn(self) -> None:
        """The end of a turn of the client's loop."""
        self.leave(self.world.tick())
        self.look()

    def leave(self, packets: list[Packet]) -> None:
        for packet in packets:
            assert self.is_connected, packet
            found: list[Violation] = []
            self.witness.observe(CLIENT, packet, 0, found)
            assert not [each for each in found if each.rule.closes], (packet, found)
        self.wires[SERVER].extend(packets)

    def look(self) -> None:
        world = self.world
        fresh, world.handed_out = world.handed_out, []
        self.hand_out(fresh)
        stored, world.stored = world.stored, []
        self.stored.update(self.numbers[number] for number in stored)
        for outcome in world.outcomes:
            assert outcome.violation is None
            assert not outcome.expired
        world.outcomes = []

    def hand_out(self, messages: list[Incoming]) -> None:
        for incoming in messages:
            assert self.keys.setdefault(incoming.key, incoming.payload) == incoming.payload
            assert incoming.key not in self.over, "acknowledged, and handed out again"
            self.handed_out.append(incoming.payload)
            self.inbox[incoming.number] = incoming.key
            self.open.append(incoming)

    # --- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """All is well from now on, and everything gets where it should."""
        self.do_cut()
        for _ in range(10_000):
            self.turn()
            self.settle(len(self.world.store.held))
            if self.is_quiet():
                return
            self.do_connect()
            while self.wires[SERVER]:
                self.do_to_server()
            while self.wires[CLIENT]:
                self.do_to_client()
            while self.open:
                self.do_acknowledge()
        raise AssertionError(
            f"never quiet: {session_snapshot(self.core.session)} {self.server.kept}"
        )

    def is_quiet(self) -> bool:
        session, kept = self.core.session, self.server.kept
        return (
            kept is not None
            and self.core.is_connected
            and self.core.is_committed
            and not (len(session.backlog) or session.in_flight)
            and not (kept.queue or kept.sent or kept.received)
            and not (self.wires[0] or self.wires[1])
            and not self.core.unacknowledged
        )

    def check(self) -> None:
        """Every message is accounted for."""
        taken = Counter(payload for payload, _ in self.server.taken)
        exactly = not self.forgetful
        for payload, qos in self.published.items():
            if payload in self.stored:
                assert taken[payload] >= 1, f"{payload!r} is lost"
            if qos == 2 and exactly:
                assert taken[payload] <= 1, f"{payload!r} was taken {taken[payload]} times"
        assert set(taken) <= set(self.published)
        assert in_order([payload for payload, _ in self.server.taken])
        keys: dict[bytes, set[str]] = {}
        for key, payload in self.keys.items():
            keys.setdefault(payload, set()).add(key)
        for payload, qos in self.sent.items():
            if payload not in self.forgotten:
                assert payload in keys, f"{payload!r} was never handed out"
            if qos == 2:
                assert len(keys.get(payload, ())) <= 1, f"{payload!r} has {keys[payload]}"
        assert set(keys) <= set(self.sent)
        assert in_order(self.handed_out)
        for table in ("delivery", "delivery_extra", "shared_payload", "inbound", "inbox"):
            assert self.world.rows(f"SELECT * FROM {table}") == [], table
        assert self.world.rows("SELECT topic_filter FROM subscription") == [("down",)]


def in_order(payloads: list[bytes]) -> bool:
    """Whether they came in the order in which they were sent, but for those that came again."""
    numbers = [int(payload.split()[1]) for payload in dict.fromkeys(payloads)]
    return numbers == sorted(numbers)


def run(seed: int, version: int, *, forgetful: bool = False, steps: int = 300) -> Schedule:
    schedule = Schedule(seed, version, forgetful=forgetful)
    schedule.world.store.holding = True
    for _ in range(steps):
        schedule.step()
    schedule.finish()
    schedule.check()
    return schedule

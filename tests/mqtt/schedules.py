"""Two sessions, a network that cuts, and owners that crash: a world in which to try schedules.

Each end is what a broker or a client would be: a Session, an Exchange for the connection, and a
disk. What a session drains waits in `staged` until it is committed; only then its packets leave.
A crash loses what was not committed and everything in memory; the session is rebuilt from the
changes on disk. A third Exchange, the witness, sees every packet that leaves.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from semel.mqtt import (
    CLIENT,
    MQTT5,
    MQTT311,
    SERVER,
    Change,
    ConnAck,
    Connect,
    Exchange,
    Message,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Receipt,
    Session,
    decode,
    encode,
)
from semel.mqtt.session import Outgoing
from semel.mqtt.session_exchanges import open_exchanges
from semel.mqtt.session_reset import reset_session
from tests.mqtt.snapshots import session_snapshot
from tests.mqtt.stored_session import restored

SIDES = (CLIENT, SERVER)

# What can happen, the common more often than the rare.
NAMES = (
    *("publish_1", "publish_2", "publish_2", "commit", "commit", "commit"),
    *("deliver", "deliver", "deliver", "deliver", "accept", "accept"),
    *("connect", "connect", "cut", "crash"),
)


@dataclass
class Unit:
    """One commit: changes, the messages it makes the owner's, and the packets that wait for it."""

    connection: int
    changes: list[Change]
    owned: list[tuple[int, bytes]]
    packets: list[Packet]


@dataclass
class End:
    """One end: session, exchange, disk."""

    session: Session = field(default_factory=Session)
    exchange: Exchange = field(default_factory=Exchange)
    history: list[Change] = field(default_factory=list)
    staged: list[Unit] = field(default_factory=list)
    disk: list[Change] = field(default_factory=list)
    owned: list[tuple[int, bytes]] = field(default_factory=list)
    receipts: list[tuple[Receipt, Publish]] = field(default_factory=list)
    sent: list[tuple[int, bytes]] = field(default_factory=list)
    given_up: int = 0


class World:
    """Two ends and the wire between them."""

    def __init__(self, version: int, receive_maximum: int = 65_535) -> None:
        self.version = version
        self.receive_maximum = receive_maximum
        self.ends = [End(), End()]
        self.wire: tuple[list[bytes], list[bytes]] = ([], [])  # to the client, to the server
        self.witness = Exchange([])
        self.connection = 0
        self.connected = False
        self.count = 0
        # Which end has lost its session, and the other does not know it yet.
        self.forgetful: int | None = None

    # --- what can happen --------------------------------------------------------------------------

    def connect(self) -> None:
        if self.connected:
            return
        self.connected = True
        self.connection += 1
        connect = Connect("a", version=self.version, clean_start=False)
        connack = ConnAck(session_present=self.connection > 1 and self.forgetful is None)
        if self.forgetful is not None:
            self._reset(1 - self.forgetful)
            self.forgetful = None
        self.witness = Exchange(self.witness.carry())
        for me in SIDES:
            end = self.ends[me]
            end.exchange = Exchange(open_exchanges(end.session, me, 1 - me))
        for exchange in (self.witness, self.ends[0].exchange, self.ends[1].exchange):
            exchange.observe(CLIENT, connect, len(encode(connect)))
            exchange.observe(SERVER, connack, len(encode(connack, self.version)))
        for me in SIDES:
            end = self.ends[me]
            end.session.connect(self.version, receive_maximum=self.receive_maximum)
            self._turn(me)

    def cut(self) -> None:
        if not self.connected:
            return
        self.connected = False
        self.wire[0].clear()
        self.wire[1].clear()
        for me in SIDES:
            end = self.ends[me]
            end.session.disconnect(0.0, 0xFFFF_FFFF)
            # A QoS 1 message that was not accepted comes again; a QoS 2 one is still the same.
            end.receipts = [pair for pair in end.receipts if pair[0].qos == 2]
            self._turn(me)

    def crash(self, me: int) -> None:
        self.cut()
        end = self.ends[me]
        end.staged = []
        end.receipts = []
        end.history = list(end.disk)
        end.session = restored(end.disk)

    def forget(self, me: int) -> None:
        """One end loses its session, with all that it had to send."""
        self.cut()
        if self.forgetful is None and self.connection:
            self.forgetful = me
            self.ends[me] = End(owned=self.ends[me].owned)

    def _reset(self, me: int) -> None:
        """The other end hears of it, and that is on disk before anything else happens."""
        end = self.ends[me]
        reset_session(end.session)
        end.receipts = []
        self._turn(me)
        while end.staged:
            self.commit(me)

    def publish(self, me: int, qos: int) -> None:
        self.count += 1
        payload = b"%d" % self.count
        self.ends[me].sent.append((qos, payload))
        self.ends[me].session.send(Message("t", payload, qos=qos), 0.0)
        self._turn(me)
        # The program knows that its message was taken once it is on disk.
        while self.ends[me].staged:
            self.commit(me)

    def commit(self, me: int) -> None:
        end = self.ends[me]
        if not end.staged:
            return
        unit = end.staged.pop(0)
        end.disk.extend(unit.changes)
        end.owned.extend(unit.owned)
        if unit.connection != self.connection or not self.connected:
            return
        for packet in unit.packets:
            data = encode(packet, self.version)
            end.exchange.observe(me, packet, len(data))
            self.witness.observe(me, packet, len(data))
            self.wire[1 - me].append(data)

    def deliver(self, me: int) -> None:
        """The next packet on the wire reaches `me`."""
        if not self.wire[me]:
            return
        data = self.wire[me].pop(0)
        decoded = decode(data, self.version)
        assert decoded is not None
        packet, end_of_packet = decoded
        assert end_of_packet == len(data)
        end = self.ends[me]
        end.exchange.observe(1 - me, packet, len(data))
        session = end.session
        if isinstance(packet, Publish):
            receipt = session.receive_publish(packet)
            if receipt is not None:
                end.receipts.append((receipt, packet))
        elif isinstance(packet, PubAck):
            session.receive_puback(packet)
        elif isinstance(packet, PubRec):
            session.receive_pubrec(packet)
        elif isinstance(packet, PubRel):
            session.receive_pubrel(packet)
        else:
            assert isinstance(packet, PubComp)
            session.receive_pubcomp(packet)
        self._turn(me)

    def accept(self, me: int, which: int) -> None:
        """The owner accepts one of the messages that it holds, not always the oldest."""
        end = self.ends[me]
        if not end.receipts:
            return
        receipt, packet = end.receipts.pop(which % len(end.receipts))
        end.session.accept(receipt)
        self._turn(me, [(packet.qos, packet.payload)])

    # --- after each of them -----------------------------------------------------------------------

    def _turn(self, me: int, owned: list[tuple[int, bytes]] | None = None) -> None:
        end = self.ends[me]
        end.given_up += len(end.session.poll(0.0))
        changes, packets = end.session.drain()
        end.history.extend(changes)
        if changes or packets or owned:
            end.staged.append(Unit(self.connection, changes, owned or [], only_packets(packets)))
        assert session_snapshot(restored(end.history)) == session_snapshot(end.session)

    def finish(self) -> None:
        """Let everything come to its end: what is not finished after this never will be."""
        for _ in range(10_000):
            self.connect()
            busy = False
            for me in SIDES:
                end = self.ends[me]
                if end.staged or self.wire[me] or end.receipts:
                    busy = True
                    self.commit(me)
                    self.deliver(me)
                    self.accept(me, 0)
            if not busy:
                return
        raise AssertionError("the two ends never came to rest")


def only_packets(outgoing: list[Outgoing]) -> list[Packet]:
    """What leaves a session that was handed packets, which is packets."""
    packets: list[Packet] = []
    for item in outgoing:
        assert not isinstance(item, bytes)
        packets.append(item)
    return packets


def run(world: World, steps: list[tuple[str, int, int]]) -> None:
    world.connect()
    for step, me, which in steps:
        if step == "publish_1":
            world.publish(me, 1)
        elif step == "publish_2":
            world.publish(me, 2)
        elif step == "commit":
            world.commit(me)
        elif step == "deliver":
            world.deliver(me)
        elif step == "accept":
            world.accept(me, which)
        elif step == "connect":
            world.connect()
        elif step == "cut":
            world.cut()
        else:
            world.crash(me)


def check(world: World) -> None:
    """Every message that a program was told is taken is accounted for."""
    for me in SIDES:
        sent = Counter(world.ends[me].sent)
        owned = Counter(world.ends[1 - me].owned)
        assert {item: n for item, n in owned.items() if item[0] == 2} == {
            item: n for item, n in sent.items() if item[0] == 2
        }
        assert {item for item in owned if item[0] == 1} == {item for item in sent if item[0] == 1}
        assert world.ends[me].given_up == 0
        assert world.ends[me].session.in_flight == 0
        assert len(world.ends[me].session.backlog) == 0
        assert open_exchanges(world.ends[me].session, 0, 1) == []


def schedule(seed: int) -> World:
    """Run the schedule that this seed stands for, to its end."""
    choose = random.Random(seed)
    version = choose.choice((MQTT311, MQTT5))
    world = World(version, choose.randint(1, 5) if version == MQTT5 else 65_535)
    steps = [
        (choose.choice(NAMES), choose.randint(0, 1), choose.randint(0, 3))
        for _ in range(choose.randint(1, 250))
    ]
    run(world, steps)
    world.finish()
    check(world)
    return world

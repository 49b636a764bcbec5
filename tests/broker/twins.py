"""Two brokers that live through the same random history, for comparing the hot and the plain path.

Two brokers live through the same history: one has its hot path, the other has none. Every chunk
goes to both, cut in the same places, and after every tick each connection has been sent the same
bytes, the same rules were broken, and the counters agree.
"""

import random
from dataclasses import dataclass, field

from semel.broker.authority import Authority
from semel.broker.connection import Connection
from semel.broker.core import Broker
from semel.broker.counters import BrokerCounters
from semel.broker.identity import Identity, PeerInfo
from semel.broker.settings import BrokerSettings
from semel.broker.turns import TURN_WORK
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PingReq,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Violation,
    encode,
)
from semel.store.store import Store

TOPICS = ("a", "a/b", "a/c", "b/c/d", "ä/ö", "$d/x", "long/" + "x" * 100)
FILTERS = (*TOPICS, "a/#", "+/b", "#", "+/+/d", "$d/#", "$share/g/a/b", "$share/g/#")


class Rights(Authority):
    """Clients whose name ends with 0 may not publish to `b/…`, and `r3` receives nothing of `a`."""

    def rights(self, identity: Identity) -> str:
        return identity.client_id[-1]

    def publish(self, identity: Identity, topic_name: str, *, qos: int, retain: bool) -> int:
        return 0x87 if identity.client_id.endswith("0") and topic_name.startswith("b") else 0

    def receive(self, identity: Identity, topic_name: str) -> bool:
        return identity.client_id != "r3" or topic_name != "a"


def totals(counters: BrokerCounters) -> list[object]:
    """What both paths must count alike.

    Sent messages are not: the hot path counts them when their session gets them, and a connection
    that closes in the same tick does not send them.
    """
    received = counters.received
    return [
        *(received.messages(), received.payload_bytes(), counters.packets_received),
        *(counters.drops.by_reason, counters.violations, counters.refused_publishes),
    ]


@dataclass
class Peer:
    """One client, connected to both brokers."""

    client_id: str
    version: int
    ends: list[Connection]
    decoder: Decoder
    # What it owes: packets that answer what the broker sent.
    owed: list[Packet] = field(default_factory=list)
    next_id: int = 1
    open_ids: set[int] = field(default_factory=set)
    inbox: list[Packet] = field(default_factory=list)


class Twins:
    """Two brokers and what one random history does to them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1_000.0
        choose = self.random.choice
        # Turns may be as short as one packet: what is worked off is the same in the end. But it is
        # after a turn that somebody is held back, and the two paths get differently far in one.
        turn_work = choose((1, 200, TURN_WORK))
        settings = BrokerSettings(
            overlapping=self.random.choice(("once", "each")),
            slow_subscriber_timeout=0.5 if turn_work == TURN_WORK else 0.0,
            inflight_window=choose((1, 3, 200)),
            maximum_outgoing_bytes=choose((300, 8 * 1024 * 1024)),
            maximum_inflight_bytes=(1, 1_500, 16 * 1024 * 1024)[seed % 3],
            maximum_queued_messages=choose((1, 5, 10_000)),
            maximum_queued_bytes=choose((100, 500, 64 * 1024 * 1024)),
            maximum_retained=choose((1, 100_000)),
            maximum_retained_bytes=choose((300, 64 * 1024 * 1024)),
            maximum_subscriptions=choose((3, 1_000)),
            maximum_packet_size=choose((200, 1024 * 1024)),
            receive_maximum=choose((2, 200)),
            route_cache=choose((0, 6, 40, 200_000)),
            topic_levels=choose((2, 128)),
            sys_interval=0.0,
        )
        authority = choose((Authority, Rights))
        self.logs: list[list[str]] = [[], []]
        self.brokers = [
            Broker(
                settings,
                authority=authority(),
                store=Store(),
                new_client_id=lambda: "assigned",
                log=log.append,
                now=self.now,
            )
            for log in self.logs
        ]
        self.brokers[1].hot_path = None
        for broker in self.brokers:
            broker.turn_work = turn_work
        self.peers: list[Peer] = []

    def connect(self) -> None:
        version = self.random.choice((MQTT311, MQTT5))
        client_id = f"r{self.random.randrange(6)}"
        properties = Properties()
        if version == MQTT5:
            properties = Properties(
                session_expiry_interval=self.random.choice((None, 100)),
                receive_maximum=self.random.choice((None, 1, 5)),
                maximum_packet_size=self.random.choice((None, None, 40, 150)),
                topic_alias_maximum=self.random.choice((None, None, 2)),
            )
        ends = [broker.opened(PeerInfo("test:1"), self.now) for broker in self.brokers]
        peer = Peer(client_id, version, ends, Decoder(version))
        self.peers.append(peer)
        clean = self.random.random() < 0.5
        self.send(
            peer, Connect(client_id, clean_start=clean, version=version, properties=properties)
        )
        self.tick()

    def publish(self, peer: Peer) -> bytes:
        """A few messages, most of them ordinary, one after the other."""
        topic = self.random.choice(TOPICS)
        data = b""
        for _ in range(self.random.choice((1, 1, 3, 10))):
            if self.random.random() < 0.3:
                topic = self.random.choice(TOPICS)
            qos = self.random.choice((0, 0, 0, 1, 2))
            packet_id = 0
            if qos:
                packet_id = peer.next_id = peer.next_id % 30 + 1
                if packet_id in peer.open_ids and self.random.random() < 0.9:
                    continue
                peer.open_ids.add(packet_id)
            properties = Properties()
            if peer.version == MQTT5 and self.random.random() < 0.3:
                properties = Properties(
                    message_expiry_interval=self.random.choice((None, None, 5)),
                    content_type=self.random.choice((None, "text")),
                    correlation_data=self.random.choice((None, self.random.randbytes(4))),
                    user_properties=[("k", "v" * self.random.choice((1, 1, 150)))]
                    * self.random.choice((0, 1, 2)),
                )
            size = self.random.choice((0, 1, 16, 16, 100, 200))
            packet = Publish(
                topic,
                self.random.randbytes(size),
                qos,
                packet_id,
                retain=self.random.random() < 0.05,
                dup=qos > 0 and self.random.random() < 0.05,
                properties=properties,
            )
            data += encode(packet, peer.version)
        return data

    def step(self) -> None:
        """Something happens to one of the clients."""
        if not self.peers or (len(self.peers) < 6 and self.random.random() < 0.1):
            self.connect()
            return
        peer = self.random.choice(self.peers)
        event = self.random.random()
        if event < 0.4:
            data = self.publish(peer)
        elif event < 0.55:
            data = self.publish(peer) + self.answers(peer) + self.publish(peer)
        elif event < 0.8:
            data = self.answers(peer)
        elif event < 0.9:
            data = self.subscription(peer)
        elif event < 0.93:
            data = encode(PingReq(), peer.version)
        elif event < 0.95:
            data = self.garbage(peer)
        elif event < 0.97:
            data = encode(Disconnect(), peer.version)
        elif event < 0.98:
            for broker, end in zip(self.brokers, peer.ends, strict=True):
                broker.lost(end, self.now)
            self.peers.remove(peer)
            return
        else:
            self.now += self.random.choice((0.5, 3.0, 200.0))
            for broker in self.brokers:
                broker.sweep(self.now)
            return
        self.send_bytes(peer, data)

    def answers(self, peer: Peer) -> bytes:
        """Some of what the client owes, in order; now and then something that it does not owe."""
        count = self.random.randrange(len(peer.owed) + 1)
        data = b"".join(encode(packet, peer.version) for packet in peer.owed[:count])
        del peer.owed[:count]
        if peer.owed and self.random.random() < 0.05:
            # Once too often, and now and then with the answer to what has not come yet.
            data += encode(peer.owed[0], peer.version)
            if isinstance(peer.owed[0], PubRec):
                data += encode(PubComp(peer.owed[0].packet_id), peer.version)
        if self.random.random() < 0.02:
            kind = self.random.choice((PubAck, PubRec, PubRel, PubComp))
            data += encode(kind(self.random.randrange(1, 40)), peer.version)
        return data

    def subscription(self, peer: Peer) -> bytes:
        packet_id = 1_000 + peer.next_id
        peer.next_id += 1
        if self.random.random() < 0.3:
            return encode(Unsubscribe(packet_id, [self.random.choice(FILTERS)]), peer.version)
        topic_filter = self.random.choice(FILTERS)
        qos = self.random.randrange(3)
        properties = Properties()
        no_local = False
        if peer.version == MQTT5:
            no_local = self.random.random() < 0.2 and not topic_filter.startswith("$share")
            if self.random.random() < 0.2:
                properties = Properties(subscription_identifiers=(7,))
        subscription = Subscription(topic_filter, qos, no_local=no_local)
        return encode(Subscribe(packet_id, [subscription], properties=properties), peer.version)

    def garbage(self, peer: Peer) -> bytes:
        """A packet with one byte changed: mostly wrong, sometimes right in another way."""
        data = bytearray(self.publish(peer) or b"\xc0\x00")
        if self.random.random() < 0.3 and len(data) < 120:
            # The first packet with a Remaining Length in two bytes that one would do for.
            return bytes((data[0], data[1] | 0x80, 0)) + data[2:]
        data[self.random.randrange(min(12, len(data)))] = self.random.randrange(256)
        return bytes(data)

    def send(self, peer: Peer, *packets: Packet) -> None:
        self.send_bytes(peer, b"".join(encode(packet, peer.version) for packet in packets))

    def send_bytes(self, peer: Peer, data: bytes) -> None:
        """In pieces of any size, with or without a tick between them."""
        while data:
            size = len(data) if self.random.random() < 0.5 else self.random.randrange(1, 60)
            for broker, end in zip(self.brokers, peer.ends, strict=True):
                broker.receive(end, data[:size], self.now)
                # Before anybody else is heard: else who comes first depends on the path.
                while broker.has_turns():
                    broker.take_turns(self.now)
            data = data[size:]
            if self.random.random() < 0.2:
                self.tick()

    def tick(self) -> None:
        for broker in self.brokers:
            broker.flush(self.now)
            # As the server does: the work of a connection counts anew in the next round. Else the
            # plain path, which takes more of it, would one day be the only one to wait for a turn.
            broker.take_turns(self.now)
        for peer in list(self.peers):
            hot, plain = (end.take_outgoing() for end in peer.ends)
            assert hot == plain
            unsent = self.random.choice((0, 0, 0, 250, 400))
            for broker, end in zip(self.brokers, peer.ends, strict=True):
                broker.written(end, unsent)
            assert peer.ends[0].closing == peer.ends[1].closing
            assert peer.ends[0].paused_by_reader == peer.ends[1].paused_by_reader
            for packet in peer.decoder.receive(hot):
                assert not isinstance(packet, Violation), packet
                self.owe(peer, packet)
            if peer.ends[0].closing:
                for broker, end in zip(self.brokers, peer.ends, strict=True):
                    broker.lost(end, self.now)
                self.peers.remove(peer)
        assert self.logs[0] == self.logs[1]
        first, second = (broker.counters for broker in self.brokers)
        assert totals(first) == totals(second)

    def owe(self, peer: Peer, packet: Packet) -> None:
        if isinstance(packet, Publish):
            if packet.qos == 1:
                peer.owed.append(PubAck(packet.packet_id))
            elif packet.qos == 2:
                peer.owed.append(PubRec(packet.packet_id))
        elif isinstance(packet, PubRec):
            peer.owed.append(PubRel(packet.packet_id))
        elif isinstance(packet, PubRel):
            peer.owed.append(PubComp(packet.packet_id))
        elif isinstance(packet, PubAck | PubComp):
            peer.open_ids.discard(packet.packet_id)


def history(seed: int, steps: int = 120) -> Twins:
    """Let two brokers live through a history; an AssertionError names its seed."""
    twins = Twins(seed)
    try:
        for _ in range(steps):
            twins.step()
            if twins.random.random() < 0.6:
                twins.tick()
    except AssertionError as problem:
        raise AssertionError(f"history {seed}: {problem}") from problem
    return twins

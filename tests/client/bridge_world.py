"""A bridge's core between two brokers that never forget, with a network and a disk that do.

`SimulatedBroker` is the server's end of the bridge's session: whatever it accepts it keeps, so that
a crash of it is a cut of its connection. The bridge has real tables in memory. Its commits are
applied at once, or one by one when a test says so; a crash loses those that are not applied.
"""

from collections.abc import Sequence
from typing import Protocol

from semel.client.bridge_core import (
    LOCAL_SESSION,
    REMOTE_SESSION,
    BridgeCore,
    BridgeDirection,
    QueueLimits,
)
from semel.client.bridge_rules import Translation, parse_rule, to_local, to_remote
from semel.client.connect_parameters import ConnectParameters
from semel.client.core import ClientCore
from semel.mqtt import (
    MQTT5,
    ConnAck,
    Connect,
    Decoder,
    Message,
    PingReq,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Violation,
    encode,
)
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.properties import NO_PROPERTIES
from semel.mqtt.session import Session
from semel.mqtt.topics import topic_matches
from semel.store.database import Database
from tests.client.core_world import Tables

FOREVER = 0xFFFF_FFFF
PLENTY = QueueLimits(messages=10_000, bytes=1 << 30, held_bytes=1 << 30)


# The client identifiers of the bridge on both brokers.
CLIENT_IDS = ("to-a", "to-b")


class BridgePeer(Protocol):
    """A broker, as the bridge sees it: one connection at a time."""

    is_open: bool
    # Bytes that the bridge has not received yet.
    output: bytes

    def open(self) -> None:
        """A new network connection."""

    def cut(self) -> None:
        """The connection is gone, with what was on its way."""

    def receive(self, data: bytes, now: float) -> None:
        """The bridge has sent bytes."""


class SimulatedBroker:
    """One broker: the session of the bridge, what the bridge has published, and one connection."""

    def __init__(self, version: int = MQTT5, *, receive_maximum: int = 65_535) -> None:
        self.version = version
        self.receive_maximum = receive_maximum
        self.session = Session()
        self.has_session = False
        self.subscriptions: dict[str, Subscription] = {}
        self.accepted: list[Publish] = []
        self.connects: list[Connect] = []
        self.output = b""
        self.is_open = False
        self._decoder = Decoder(version)

    def open(self) -> None:
        self._decoder = Decoder(self.version)
        self.output = b""
        self.is_open = True

    def cut(self) -> None:
        """The connection is gone, with what was on its way."""
        self.is_open = False
        self.output = b""
        self.session.disconnect(0.0, FOREVER)
        self.session.drain()

    def lose_session(self) -> None:
        self.cut()
        self.has_session = False

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        *,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
        now: float = 0.0,
    ) -> None:
        """A message of another client."""
        for topic_filter, subscription in self.subscriptions.items():
            if topic_matches(topic_filter, topic):
                self.session.send(
                    Message(
                        topic,
                        payload,
                        qos=min(qos, subscription.qos),
                        retain=retain and subscription.retain_as_published,
                        properties=properties,
                        expires_at=(
                            None
                            if properties.message_expiry_interval is None
                            else now + properties.message_expiry_interval
                        ),
                    ),
                    now,
                )
        self.flush(now)

    def receive(self, data: bytes, now: float) -> None:
        assert self.is_open
        for packet in self._decoder.receive(data):
            assert not isinstance(packet, Violation), packet
            if isinstance(packet, Connect):
                self._connect(packet)
            elif isinstance(packet, Publish):
                receipt = self.session.receive_publish(packet)
                if receipt is not None:
                    self.accepted.append(packet)
                    self.session.accept(receipt)
            elif isinstance(packet, Subscribe):
                for each in packet.subscriptions:
                    self.subscriptions[each.topic_filter] = each
                reasons = [each.qos for each in packet.subscriptions]
                self._send(SubAck(packet.packet_id, reasons))
            elif isinstance(packet, Unsubscribe):
                for topic_filter in packet.topic_filters:
                    self.subscriptions.pop(topic_filter, None)
                codes = [0] * len(packet.topic_filters) if self.version == MQTT5 else []
                self._send(UnsubAck(packet.packet_id, codes))
            elif not isinstance(packet, PingReq | Disconnect):
                self.session.receive_ack(packet)  # type: ignore[arg-type]
        self.flush(now)

    def _connect(self, packet: Connect) -> None:
        self.connects.append(packet)
        present = self.has_session and not packet.clean_start
        if not present:
            self.session = Session()
            self.subscriptions = {}
        self.has_session = True
        window = packet.properties.receive_maximum or 65_535
        self.session.connect(self.version, receive_maximum=window)
        properties = NO_PROPERTIES
        if self.version == MQTT5 and self.receive_maximum < 65_535:
            properties = Properties(receive_maximum=self.receive_maximum)
        self._send(ConnAck(0, session_present=present, properties=properties))

    def flush(self, now: float) -> None:
        self.session.poll(now)
        _, packets = self.session.drain()
        for packet in packets:
            assert not isinstance(packet, bytes)
            self._send(packet)

    def _send(self, packet: object) -> None:
        if self.is_open:
            self.output += encode(packet, self.version)  # type: ignore[arg-type]

    def payloads(self, topic: str = "") -> list[bytes]:
        """What the bridge has published, on one topic or all."""
        return [each.payload for each in self.accepted if topic in ("", each.topic_name)]


class BridgeWorld:
    """A bridge between two brokers. Nothing happens unless a test lets it."""

    def __init__(
        self,
        *,
        out: Sequence[str] = ("#",),
        inward: Sequence[str] = (),
        versions: tuple[int, int] = (MQTT5, MQTT5),
        limits: QueueLimits = PLENTY,
        receive_maximum: int = 100,
        names: tuple[str, str] = ("a", "b"),
        windows: tuple[int, int] = (65_535, 65_535),
        peers: tuple[BridgePeer, BridgePeer] | None = None,
    ) -> None:
        """`peers` replace `local` and `remote`."""
        self.now = 1_000.0
        self.out = out
        self.inward = inward
        self.versions = versions
        self.limits = limits
        self.receive_maximum = receive_maximum
        self.names = names
        self.local = SimulatedBroker(versions[0], receive_maximum=windows[0])
        self.remote = SimulatedBroker(versions[1], receive_maximum=windows[1])
        self.peers: tuple[BridgePeer, BridgePeer] = peers or (self.local, self.remote)
        self.database = Database.open(":memory:")
        self.is_holding = False
        self.commits = 0
        self.start()

    # --- the bridge -------------------------------------------------------------------------------

    def start(self) -> None:
        """A new run: nothing that is not in the tables has survived."""
        self.database = Database(self.database.connection)
        self.store = Tables(self.database)
        self.store.holding = self.is_holding
        outward = self._translations(self.out, is_out=True)
        inward = self._translations(self.inward, is_out=False)
        local, remote = self._core(0), self._core(1)
        to_remote = BridgeDirection(
            local,
            remote,
            names=self.names,
            translations=outward,
            opposite=inward,
            limits=self.limits,
        )
        to_local = BridgeDirection(
            remote,
            local,
            names=(self.names[1], self.names[0]),
            translations=inward,
            opposite=outward,
            limits=self.limits,
        )
        self.core = BridgeCore(to_remote, to_local, self.store)
        self.core.restore()
        for core, translations in ((local, outward), (remote, inward)):
            for each in translations:
                is_5 = core.version == MQTT5
                core.subscribe(
                    Subscription(
                        each.source_filter, each.qos, no_local=is_5, retain_as_published=is_5
                    ),
                    NO_PROPERTIES,
                )
        self.sides = ((local, self.peers[0]), (remote, self.peers[1]))
        self.flush()

    def _translations(self, rules: Sequence[str], *, is_out: bool) -> tuple[Translation, ...]:
        turn = to_remote if is_out else to_local
        return tuple(turn(parse_rule(each)) for each in rules)

    def _core(self, index: int) -> ClientCore:
        version = self.versions[index]
        properties = NO_PROPERTIES
        if version == MQTT5:
            properties = Properties(
                session_expiry_interval=FOREVER, receive_maximum=self.receive_maximum
            )
        parameters = ConnectParameters(
            version,
            keep_alive=0,
            user_name=None,
            password=None,
            will=None,
            properties=properties,
            session_expiry=FOREVER,
        )
        return ClientCore(
            parameters,
            CLIENT_IDS[index],
            run="r",
            store=self.store,
            store_id=(LOCAL_SESSION, REMOTE_SESSION)[index],
        )

    def flush(self) -> None:
        self.core.flush(self.now, self.now)

    def crash(self) -> None:
        """kill -9 of the bridge: both connections, and every commit that is not applied."""
        for _, broker in self.sides:
            broker.cut()
        self.start()

    # --- the disk ---------------------------------------------------------------------------------

    def hold(self) -> None:
        """From now on commits are applied by `commit` only."""
        self.is_holding = self.store.holding = True

    def commit(self) -> bool:
        """Apply the next commit. Returns False if there is none."""
        if not self.store.held:
            return False
        commit = self.store.held.pop(0)
        self.database.apply([commit])
        self.commits += 1
        self.core.on_committed(1, self.now)
        self.flush()
        self.use_connections()
        return True

    # --- the network ------------------------------------------------------------------------------

    def connect(self, index: int) -> None:
        """A network connection, and CONNECT on its way."""
        core, broker = self.sides[index]
        broker.open()
        core.connect(not core.has_state, self.now)
        self.flush()

    def cut(self, index: int) -> None:
        core, broker = self.sides[index]
        broker.cut()
        core.on_connection_lost(self.now)
        self.flush()

    def send(self, index: int, count: int | None = None) -> bool:
        """Bytes of the bridge reach a broker, all of them. Returns whether there were any."""
        core, broker = self.sides[index]
        data = core.take_output()
        if not data or not broker.is_open:
            return False
        broker.receive(data, self.now)
        return True

    def receive(self, index: int, count: int | None = None) -> bool:
        """Bytes of a broker reach the bridge, the first `count` of them or all."""
        core, broker = self.sides[index]
        data, broker.output = broker.output[:count], broker.output[count:] if count else b""
        if not data or core.connection_end is not None:
            return False
        core.receive(data, self.now)
        self.flush()
        self.use_connections()
        return True

    def use_connections(self) -> None:
        """As a link does when a connection is accepted."""
        for core, _ in self.sides:
            if core.connack is not None:
                core.connack = None
                self.flush()

    def run(self) -> None:
        """Connect what is not connected, and go on until nothing more happens."""
        while True:
            happened = False
            for index, (core, broker) in enumerate(self.sides):
                assert core.connection_end is None, core.connection_end.why
                if not broker.is_open:
                    self.connect(index)
                    happened = True
                happened = self.send(index) or happened
                happened = self.receive(index) or happened
                core.outcomes.clear()
                core.answers.clear()
            happened = self.commit() or happened
            if not happened:
                return

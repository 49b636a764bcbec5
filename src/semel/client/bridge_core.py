"""A bridge without I/O: two clients that share a store, and messages that move between them.

    source ─▶ PUBLISH ─▶ one commit: the identifier at the source, the message in the queue of the
                         destination ─▶ PUBACK or PUBREC to the source, PUBLISH to the destination

That a message and its packet identifier change hands in one transaction is the whole exactly-once
argument: before the commit the source has the message and sends it again; after it the identifier
is known, and a repeated PUBLISH is acknowledged and not moved.

The queue of the destination is bounded. While it is full, QoS 1 and 2 messages are held here
without an acknowledgement, at most the Receive Maximum of the source's connection, so that the
source keeps its messages and sends no more of them. Reading goes on, because acknowledgements
arrive on the same connection: if both queues are full and neither side is read, none would ever
drain. Held messages are forgotten when the connection to the source ends; the source repeats them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from semel.client.bridge_path import is_looping, read_path, with_path
from semel.client.bridge_rules import Translation, response_topic
from semel.client.core import ClientCore
from semel.mqtt.delivery import Receipt
from semel.mqtt.message import Message, received_message
from semel.mqtt.packet_types import MQTT5
from semel.mqtt.packets.publish import Publish
from semel.mqtt.properties import RESPONSE_TOPIC, Properties
from semel.mqtt.violation import Violation
from semel.store.commit import Commit
from semel.store.store import Store

# The session of each side in the store of a bridge.
LOCAL_SESSION: Final = 1
REMOTE_SESSION: Final = 2


@dataclass(frozen=True)
class QueueLimits:
    """What may wait for a destination, at most."""

    messages: int
    bytes: int
    # Bytes of messages that are held without an acknowledgement; above it the connection to the
    # source has to end.
    held_bytes: int


@dataclass
class DirectionCounters:
    """What became of the messages of one direction since the start."""

    # Accepted from the source: queued for the destination, or sent to it at QoS 0. Messages and
    # bytes of their payloads, by the QoS with which they are sent to the destination.
    moved_by_qos: list[int] = field(default_factory=lambda: [0, 0, 0])
    payload_bytes_by_qos: list[int] = field(default_factory=lambda: [0, 0, 0])
    # When the last of them was moved; None: none was.
    moved_at: float | None = None
    # Not moved: QoS 0 without a connection, or with too much unsent on it; back at a broker that it
    # came from; a topic that no rule translates to a valid one.
    not_connected: int = 0
    no_room: int = 0
    looped: int = 0
    unmatched: int = 0

    @property
    def moved(self) -> int:
        """Messages of every QoS that were moved."""
        return sum(self.moved_by_qos)

    @property
    def dropped(self) -> int:
        """QoS 0 messages that could not be sent."""
        return self.not_connected + self.no_room

    def count_moved(self, message: Message, now: float) -> None:
        """Count a message that was moved."""
        self.moved_by_qos[message.qos] += 1
        self.payload_bytes_by_qos[message.qos] += len(message.payload)
        self.moved_at = now


class BridgeDirection:
    """Moves messages from one core to another."""

    def __init__(
        self,
        source: ClientCore,
        destination: ClientCore,
        *,
        names: tuple[str, str],
        translations: Sequence[Translation],
        opposite: Sequence[Translation],
        limits: QueueLimits,
    ) -> None:
        """`names` are those of the two brokers in the path of a message."""
        self.source = source
        self.destination = destination
        self.counters = DirectionCounters()
        self.held_bytes = 0
        # Whether the destination has retained messages; otherwise RETAIN must not be sent.
        self.is_retain_available = True
        self.maximum_qos = max((each.qos for each in translations), default=0)
        self._source_name, self._destination_name = names
        self._translations = {each.source_filter: each for each in translations}
        self._opposite = tuple(opposite)
        self._limits = limits
        self._held: deque[tuple[Message, Receipt]] = deque()
        source.on_publish = self._on_publish

    @property
    def held(self) -> int:
        """Messages that are received and not acknowledged, because the queue is full."""
        return len(self._held)

    @property
    def queued(self) -> int:
        """Messages that are stored and not acknowledged by the destination."""
        session = self.destination.session
        return len(session.backlog) + session.in_flight

    @property
    def queued_bytes(self) -> int:
        """Bytes of the queued messages that were not sent yet."""
        return self.destination.session.backlog.size

    @property
    def is_overloaded(self) -> bool:
        """Whether the source has sent more than may be held."""
        return self.held_bytes > self._limits.held_bytes

    def move_held(self, now: float) -> None:
        """Move what the queue has room for, in the order received."""
        session = self.source.session
        if not session.connected:
            # Nothing of this is stored or acknowledged, and the source will send it again.
            for _, receipt in self._held:
                if receipt.qos == 2:
                    session.forget_received(receipt.packet_id)
            self._held.clear()
            self.held_bytes = 0
            return
        while self._held and not self._is_full:
            message, receipt = self._held.popleft()
            self.held_bytes -= message.size
            self._move(message, receipt, now)

    @property
    def _is_full(self) -> bool:
        backlog = self.destination.session.backlog
        return len(backlog) >= self._limits.messages or backlog.size >= self._limits.bytes

    def _on_publish(self, packet: Publish, topic: str, receipt: Receipt, now: float) -> None:
        message = self._translate(packet, topic, now)
        if message is None:
            self.source.session.accept(receipt)
        elif message.qos == 0:
            self._send(message, now)
            # At QoS 1 and 2 if the QoS of the rule was lowered while the message was queued.
            self.source.session.accept(receipt)
        elif self._held or self._is_full:
            self._held.append((message, receipt))
            self.held_bytes += message.size
        else:
            self._move(message, receipt, now)

    def _move(self, message: Message, receipt: Receipt, now: float) -> None:
        self.destination.session.send(message, now)
        self.source.session.accept(receipt)
        self.counters.count_moved(message, now)

    def _send(self, message: Message, now: float) -> None:
        session = self.destination.session
        if not session.connected:
            self.counters.not_connected += 1
        elif session.room <= 0:
            self.counters.no_room += 1
        else:
            session.send(message, now)
            self.counters.count_moved(message, now)

    def _translate(self, packet: Publish, topic: str, now: float) -> Message | None:
        """The message for the destination; None if it must not be moved."""
        translation, moved_topic = self._find(topic)
        if translation is None or moved_topic is None:
            self.counters.unmatched += 1
            return None
        path = read_path(packet.properties)
        if is_looping(path, self._source_name, self._destination_name):
            self.counters.looped += 1
            return None
        received = received_message(packet, topic, now)
        properties = received.properties
        if self.destination.version == MQTT5:
            properties = with_path(properties, [*path, self._source_name])
            answer_topic = response_topic(packet, self._opposite)
            if answer_topic is not None:
                items = [item for item in properties.items if item[0] != RESPONSE_TOPIC]
                properties = Properties([*items, (RESPONSE_TOPIC, answer_topic)])
        try:
            return Message(
                moved_topic,
                packet.payload,
                # A server may send with a higher QoS than it granted: the rule is the limit.
                qos=min(packet.qos, translation.qos),
                retain=packet.retain and self.is_retain_available,
                properties=properties,
                expires_at=received.expires_at,
            )
        except Violation:
            # With the prefix the topic is too long.
            self.counters.unmatched += 1
            return None

    def _find(self, topic: str) -> tuple[Translation | None, str | None]:
        """The rule that moves this topic, and the topic at the destination."""
        for topic_filter in self.source.subscriptions.filters_of(topic, ()):
            # A filter that is no longer a rule may still be in the session of the source.
            translation = self._translations.get(topic_filter)
            if translation is not None:
                return translation, translation.destination_topic(topic)
        return None, None


class BridgeCore:
    """Two clients, and the messages that move between them. All changes of a tick are one commit.

    The owner calls `flush` after every call of one of the cores, and reads the output and the
    events of both.
    """

    def __init__(self, to_remote: BridgeDirection, to_local: BridgeDirection, store: Store) -> None:
        self.local = to_remote.source
        self.remote = to_remote.destination
        self.to_remote = to_remote
        self.to_local = to_local
        self._store = store
        self._commit = Commit()
        self._last_commit = 0
        self.local.use_commit(self._commit)
        self.remote.use_commit(self._commit)

    def restore(self) -> None:
        """Load both sessions from the store."""
        self.local.restore()
        self.remote.restore()

    def flush(self, now: float, wall: float) -> None:
        """End the tick: commit durable changes, and send what need not await a commit."""
        self.to_remote.move_held(now)
        self.to_local.move_held(now)
        to_local = self.local.collect(now)
        to_remote = self.remote.collect(now)
        commit = self._commit
        if commit.is_empty():
            self.local.pass_on(to_local, now)
            self.remote.pass_on(to_remote, now)
            return
        self._last_commit += 1
        commit.number = self._last_commit
        commit.at = wall
        self._commit = Commit()
        self.local.await_commit(to_local, self._commit)
        self.remote.await_commit(to_remote, self._commit)
        if self._store.write(commit):
            self.on_committed(1, now)

    def on_committed(self, count: int, now: float) -> None:
        """The store has the next `count` commits."""
        self.local.on_committed(count, now)
        self.remote.on_committed(count, now)

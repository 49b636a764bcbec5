"""What leaves in a tick, and what of it has to wait for the tick's commit.

A session *waits* when the tick did something to it, or by it, that must last. Then its packets
are held back until the store has the commit, but for those that report nothing: QoS 0 messages,
PINGRESP, AUTH, DISCONNECT. What is replayed of a stream reports nothing either, but keeps its
order, whatever its QoS. A connection with packets that wait already sends the next ones behind
them: acknowledgements, and QoS 1 and 2 messages, leave in their order [MQTT-4.6.0-2]
[MQTT-4.6.0-6]. Nothing overtakes a CONNACK [MQTT-3.2.0-1].
"""

from typing import Final, final

from mypy_extensions import i64

from semel.broker.connection import Connection
from semel.broker.cursors import STREAM_TOPICS
from semel.broker.faults import told
from semel.broker.session_state import SessionState
from semel.mqtt.packet_types import PUBACK, PUBCOMP, PUBLISH, PUBREC, QOS_FLAGS
from semel.mqtt.packets.acks import PubAck, PubComp, PubRec
from semel.mqtt.packets.auth import Auth
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.packets.ping import PingResp
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import SubAck
from semel.mqtt.packets.unsubscribe import UnsubAck
from semel.mqtt.session import Outgoing
from semel.store.commit import Commit


def reports_nothing(packet: Outgoing) -> bool:
    """Whether it says nothing about what is kept, so that it never waits."""
    if isinstance(packet, bytes):
        first: i64 = packet[0]
        return first >> 4 == PUBLISH and first & QOS_FLAGS == 0
    if isinstance(packet, Publish):
        return packet.qos == 0 and not packet.topic_name.startswith(STREAM_TOPICS)
    return isinstance(packet, PingResp | Auth | Disconnect)


def is_answer(packet: Outgoing) -> bool:
    """Whether it answers a PUBLISH, PUBREL, SUBSCRIBE or UNSUBSCRIBE of the client."""
    if isinstance(packet, bytes):
        first: i64 = packet[0]
        kind = first >> 4
        return kind == PUBACK or kind == PUBREC or kind == PUBCOMP
    return isinstance(packet, PubAck | PubRec | PubComp | SubAck | UnsubAck)


@final
class SendQueue:
    """Packets of one tick, by the number of their connection, in their order."""

    # The last commit that the store has.
    safe: int
    # Connections whose packets could not be told apart, and why: their owner closes them.
    failed: list[tuple[Connection, str]]
    _connections: Final[dict[int, Connection]]
    _packets: list[tuple[int, list[Outgoing]]]

    def __init__(self, connections: dict[int, Connection]) -> None:
        self.safe = 0
        self.failed = []
        self._connections = connections
        self._packets = []

    def add(self, number: int, packets: list[Outgoing]) -> None:
        """These are to leave."""
        self._packets.append((number, packets))

    def take(self) -> list[tuple[int, list[Outgoing]]]:
        """All of them, where nothing lasts and nothing waits."""
        packets = self._packets
        self._packets = []
        return packets

    def part(self, commit: Commit) -> list[tuple[int, list[Outgoing]]]:
        """Put what waits into the commit; what may leave at once."""
        leaving: list[tuple[int, list[Outgoing]]] = []
        for number, packets in self.take():
            connection = self._connections.get(number)
            if connection is None:
                continue
            try:
                if self.has_to_wait(connection, connection.state):
                    self._hold_back(connection, packets, commit, leaving)
                else:
                    leaving.append((number, packets))
            except Exception as problem:
                # Nobody else's packets may stay behind for it.
                self.failed.append((connection, told(problem)))
        return leaving

    def has_to_wait(self, connection: Connection, state: SessionState | None) -> bool:
        """Whether what a connection is sent in this tick waits for the tick's commit."""
        return (
            connection.outstanding > 0
            or connection.waits
            or (state is not None and (state.waits or state.safe_after > self.safe))
        )

    def holds(self, state: SessionState) -> bool:
        """The same of a session that is connected."""
        return self.has_to_wait(self._connections[state.connection], state)

    def _hold_back(
        self,
        connection: Connection,
        packets: list[Outgoing],
        commit: Commit,
        leaving: list[tuple[int, list[Outgoing]]],
    ) -> None:
        held: list[Outgoing] = []
        free: list[Outgoing] = []
        for packet in packets:
            if isinstance(packet, ConnAck):
                connection.connack_waits = True
            if not connection.connack_waits and reports_nothing(packet):
                free.append(packet)
            else:
                held.append(packet)
                if not connection.awaits_answer:
                    connection.awaits_answer = is_answer(packet)
        if free:
            leaving.append((connection.number, free))
        if held:
            connection.outstanding += 1
            commit.packets.append((connection.number, held))

"""Back-pressure from the store: publishers of durable messages wait while it accepts no more.

    the store is behind or full   ─▶ a message that it would have to keep stays in the decoder of
                                     its connection, whose socket is not read
    it accepts messages again     ─▶ paused connections continue, in the order of their pause

When the disk is full, messages that can be refused (MQTT 5.0, QoS 1 and 2) are refused. Messages
that are not kept are routed as usual. But answers are sent in order, and an earlier answer may
await a commit for which there is no space: an MQTT 5.0 client that waits too long for an answer is
disconnected with the reason. A connection is also paused when too many of its answers wait.
"""

from collections import deque
from typing import Final, final

from semel.broker.connection import Connection
from semel.broker.router import Router
from semel.mqtt.codec import Packet
from semel.mqtt.packet_types import MQTT5
from semel.mqtt.packets.publish import Publish
from semel.mqtt.side import CLIENT
from semel.mqtt.violation import Violation
from semel.store.store import FULL, OPEN

# How many commits may hold packets for one connection while the store accepts no more messages.
_MAXIMUM_AWAITED: Final = 100


@final
class StorePressure:
    """Pauses and resumes connections for the store."""

    # How many seconds an MQTT 5.0 client waits for an answer while the disk is full; 0: forever.
    timeout: Final[float]
    _router: Final[Router]
    # In the order in which they will continue.
    _paused: Final[deque[Connection]]

    def __init__(self, router: Router, timeout: float) -> None:
        self.timeout = timeout
        self._router = router
        self._paused = deque()

    @property
    def paused(self) -> int:
        """The number of paused connections."""
        return len(self._paused)

    def accepts_messages(self) -> bool:
        """Whether the store accepts another message in this tick."""
        return self._router.store.condition == OPEN and self._router.has_store_room()

    def has_resumable(self) -> bool:
        """Whether a paused connection could continue."""
        return len(self._paused) > 0 and self.accepts_messages()

    def must_wait(self, connection: Connection, packet: Packet | Violation) -> bool:
        """Whether a packet must not be processed yet, because it must wait for the store."""
        if isinstance(packet, Violation):
            return False
        if connection.commits_awaited >= _MAXIMUM_AWAITED:
            return True
        if not isinstance(packet, Publish):
            return False
        state = connection.state
        topic_name = connection.exchange.topic_name(CLIENT, packet)
        if state is None or not topic_name:
            # The Exchange will report the violation.
            return False
        if self.refuses(packet.qos) and state.session.version == MQTT5:
            return False
        if packet.qos == 2 and not state.session.is_new(2, packet.packet_id):
            return False
        return self._router.would_keep(topic_name, packet.qos, state, retain=packet.retain)

    def refuses(self, qos: int) -> bool:
        """Whether a message of this QoS is refused if the store would have to keep it."""
        return qos > 0 and self._router.store.condition == FULL

    def has_timed_out(self, connection: Connection, now: float) -> bool:
        """Whether an MQTT 5.0 client has waited too long for an answer. Call it once a second."""
        if (
            self._router.store.condition != FULL
            or not self.timeout
            or not connection.answer_awaits_commit
            or not connection.is_connected
            or connection.exchange.version != MQTT5
        ):
            connection.disk_full_since = -1.0
            return False
        if connection.disk_full_since < 0:
            connection.disk_full_since = now
        return now - connection.disk_full_since >= self.timeout

    def pause(self, connection: Connection) -> None:
        """Pause a connection. Its next packet stays in the decoder."""
        connection.paused_by_store = True
        self._paused.append(connection)

    def forget(self, connection: Connection) -> None:
        """Forget a closed connection."""
        if connection.paused_by_store:
            self._paused.remove(connection)
            connection.paused_by_store = False

    def release(self) -> Connection | None:
        """The next connection to continue, None while the store accepts no messages.

        A connection that is paused again moves to the end, so that none starves.
        """
        if not self.has_resumable():
            return None
        connection = self._paused.popleft()
        connection.paused_by_store = False
        return connection

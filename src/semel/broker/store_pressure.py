"""Back-pressure by the store: who sends what has to last is made to wait while it takes no more.

    the store is behind, or full ─▶ a message that would last stays in its connection's decoder,
                                    and the connection is not read from
    it takes messages again      ─▶ what waited goes on, in its order

A message that can be refused is, when the disk is full: MQTT 5.0, QoS 1 and 2. What nobody keeps
goes its way. But answers keep their order, and one before it may be about what was with the writer
when space ran out: who waits too long for an answer is disconnected, with the reason. Of packets
that need not wait themselves no more are taken than a connection may have answers owed.
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

# Ticks whose answers one connection may be owed by a store that takes no more.
_OWED: Final = 100


@final
class StorePressure:
    """Which connections wait for the store."""

    # How long a client that can be told why waits for a full disk, in seconds; 0: for ever.
    timeout: Final[float]
    _router: Final[Router]
    # In the order in which they go on.
    _paused: Final[deque[Connection]]

    def __init__(self, router: Router, timeout: float) -> None:
        self.timeout = timeout
        self._router = router
        self._paused = deque()

    @property
    def paused(self) -> int:
        """How many connections wait."""
        return len(self._paused)

    def accepts_messages(self) -> bool:
        """Whether the store takes a further message that lasts, now and in this tick."""
        return self._router.store.condition == OPEN and self._router.has_store_room()

    def has_resumable(self) -> bool:
        """Whether somebody waits and need not."""
        return len(self._paused) > 0 and self.accepts_messages()

    def must_wait(self, connection: Connection, packet: Packet | Violation) -> bool:
        """Whether a packet that nobody has seen yet has to wait until the store takes more."""
        if isinstance(packet, Violation):
            return False
        if connection.commits_awaited >= _OWED:
            return True
        if not isinstance(packet, Publish):
            return False
        state = connection.state
        topic_name = connection.exchange.topic_name(CLIENT, packet)
        if state is None or not topic_name:
            # The Exchange will say what is wrong.
            return False
        if self.refuses(packet.qos) and state.session.version == MQTT5:
            return False
        if packet.qos == 2 and not state.session.is_new(2, packet.packet_id):
            return False
        return self._router.would_keep(topic_name, packet.qos, state, retain=packet.retain)

    def refuses(self, qos: int) -> bool:
        """Whether a message of this QoS is refused if it would last."""
        return qos > 0 and self._router.store.condition == FULL

    def has_timed_out(self, connection: Connection, now: float) -> bool:
        """Whether a client of 5.0 has waited long enough for an answer. Asked once a second."""
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
        """Its next packet stays where it is."""
        connection.paused_by_store = True
        self._paused.append(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        if connection.paused_by_store:
            self._paused.remove(connection)
            connection.paused_by_store = False

    def release(self) -> Connection | None:
        """The next one that goes on, if the store takes messages again.

        If it has to wait once more, it does so behind all others: nobody is passed over.
        """
        if not self.has_resumable():
            return None
        connection = self._paused.popleft()
        connection.paused_by_store = False
        return connection

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
    patience: Final[float]
    _router: Final[Router]
    # In the order in which they go on.
    _blocked: Final[deque[Connection]]

    def __init__(self, router: Router, patience: float) -> None:
        self.patience = patience
        self._router = router
        self._blocked = deque()

    @property
    def blocked(self) -> int:
        """How many connections wait."""
        return len(self._blocked)

    def takes_messages(self) -> bool:
        """Whether the store takes a further message that lasts, now and in this tick."""
        return self._router.store.condition == OPEN and self._router.takes_more()

    def is_due(self) -> bool:
        """Whether somebody waits and need not."""
        return len(self._blocked) > 0 and self.takes_messages()

    def has_to_wait(self, connection: Connection, packet: Packet | Violation) -> bool:
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

    def has_waited(self, connection: Connection, now: float) -> bool:
        """Whether a client of 5.0 has waited long enough for an answer. Asked once a second."""
        if (
            self._router.store.condition != FULL
            or not self.patience
            or not connection.answer_awaits_commit
            or not connection.is_connected
            or connection.exchange.version != MQTT5
        ):
            connection.disk_full_since = -1.0
            return False
        if connection.disk_full_since < 0:
            connection.disk_full_since = now
        return now - connection.disk_full_since >= self.patience

    def block(self, connection: Connection) -> None:
        """Its next packet stays where it is."""
        connection.blocked = True
        self._blocked.append(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is gone."""
        if connection.blocked:
            self._blocked.remove(connection)
            connection.blocked = False

    def release(self) -> Connection | None:
        """The next one that goes on, if the store takes messages again.

        If it has to wait once more, it does so behind all others: nobody is passed over.
        """
        if not self.is_due():
            return None
        connection = self._blocked.popleft()
        connection.blocked = False
        return connection

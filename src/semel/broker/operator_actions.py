"""What an operator does to clients, sessions and retained messages, by the code that clients use.

The caller ends the tick after each call, and waits for `last_uncommitted` before it reports that
something was deleted.
"""

from typing import Final, final

from semel.broker.access_control import OWN_TOPICS
from semel.broker.connection import Connection
from semel.broker.connections import Connections
from semel.broker.lifetimes import Lifetimes
from semel.broker.oversight import Oversight
from semel.broker.router import Router
from semel.mqtt.message import Message
from semel.mqtt.reasons import ADMINISTRATIVE_ACTION

# The Reason String of a client that is disconnected because its session is deleted.
SESSION_DELETED: Final = "the operator has deleted the session"


@final
class OperatorActions:
    """Disconnects clients, and deletes sessions and retained messages."""

    _router: Final[Router]
    _connections: Final[Connections]
    _lifetimes: Final[Lifetimes]
    _oversight: Final[Oversight]

    def __init__(
        self,
        router: Router,
        connections: Connections,
        *,
        lifetimes: Lifetimes,
        oversight: Oversight,
    ) -> None:
        self._router = router
        self._connections = connections
        self._lifetimes = lifetimes
        self._oversight = oversight

    def connection_of(self, client_id: str) -> Connection | None:
        """The connection of a client; None: it is not connected."""
        state = self._router.sessions.get(client_id)
        if state is None or not state.connection:
            return None
        return self._connections.by_number[state.connection]

    def disconnect(self, client_id: str, reason: int, now: float, why: str | None = None) -> bool:
        """Disconnect a client. Its session stays. Returns whether it was connected."""
        connection = self.connection_of(client_id)
        if connection is None:
            return False
        self._connections.disconnect(connection, reason, now, why)
        return True

    def delete_session(self, client_id: str, now: float) -> bool:
        """Delete a session, as a clean start does. Returns whether there was one."""
        if client_id not in self._router.sessions:
            return False
        self.disconnect(client_id, ADMINISTRATIVE_ACTION, now, SESSION_DELETED)
        # The session may have ended with its connection.
        state = self._router.sessions.get(client_id)
        if state is not None:
            self._lifetimes.end(state, now)
        return True

    def delete_retained(self, topic_name: str, now: float) -> bool:
        """Delete a retained message, as a client does: by an empty one [MQTT-3.3.1-6].

        Subscribers get the empty message. Returns whether there was a retained one. The topics of
        the broker itself are left alone.
        """
        if topic_name.startswith(OWN_TOPICS) or self._router.retained.get(topic_name) is None:
            return False
        self._router.route(Message(topic_name, b"", retain=True), None, now)
        return True

    def enforce_bans(self, numbers: list[int], now: float) -> int:
        """Close those of these connections that are banned. Returns how many."""
        closed = 0
        for number in numbers:
            connection = self._connections.by_number.get(number)
            if connection is None or connection.closing:
                continue
            state = connection.state
            ban = self._oversight.bans.find(
                "" if state is None else state.client_id,
                None if state is None else state.identity.user_name,
                connection.peer,
                now=now,
            )
            if ban is not None:
                closed += 1
                # 0x8a (Banned) is not defined for DISCONNECT.
                self._connections.disconnect(connection, ADMINISTRATIVE_ACTION, now, ban.sentence)
        return closed

    def drain(self, count: int, now: float) -> int:
        """Disconnect `count` clients. Returns how many are still connected."""
        draining = self._oversight.draining
        left = 0
        for connection in list(self._connections.by_number.values()):
            if connection.closing:
                continue
            if count > 0:
                count -= 1
                reason, reference = draining.disconnect_reason, draining.reference
                self._connections.disconnect(connection, reason, now, reference=reference)
            else:
                left += 1
        return left

    def last_uncommitted(self) -> int:
        """The number of the last commit that is not on disk; 0: all are, or there is no store."""
        uncommitted = self._router.uncommitted
        return uncommitted[-1].number if uncommitted else 0

    def is_committed(self, number: int) -> bool:
        """Whether the commit with this number is on disk."""
        return self._router.gate.committed >= number

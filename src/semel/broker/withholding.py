"""Withholds messages that wait to be sent if their right to be received is revoked meanwhile.

A message is decided about when it is routed. Then its PUBLISH waits, for the end of the tick and
perhaps for a commit, and rights may change before it is sent:

    routed ─▶ packets of the tick ─▶ packets of a commit ─▶ output of the connection ─▶ socket
              └── asked again here if the rights have changed ──┘    └─ cannot be taken back ┘

As long as rights do not change, this costs one comparison per tick and per commit.
"""

from typing import Final, final

from mypy_extensions import i64

from semel.broker.access_control import AccessControl
from semel.broker.connection import Connection
from semel.broker.connections import Connections
from semel.broker.counters import REVOKED
from semel.broker.router import Router
from semel.broker.session_state import SessionState
from semel.mqtt.codec import decode
from semel.mqtt.packet_types import PUBLISH
from semel.mqtt.packets.publish import Publish
from semel.mqtt.reasons import NOT_AUTHORIZED
from semel.mqtt.session import Outgoing
from semel.store.commit import Commit


@final
class Withholding:
    """Asks again about messages that wait to be sent, after rights have changed."""

    _router: Final[Router]
    _access: Final[AccessControl]
    _connections: Final[Connections]
    # The rights by which all messages were decided that wait since the last tick.
    _generation: int

    def __init__(self, router: Router, connections: Connections) -> None:
        self._router = router
        self._access = router.access
        self._connections = connections
        self._generation = router.access.generation

    def is_due(self) -> bool:
        """Whether rights have changed since the last tick."""
        return self._generation != self._access.generation

    def check_tick(self, now: float) -> None:
        """Check all packets that wait: those of this tick, and those of uncommitted commits."""
        self._generation = self._access.generation
        for commit in self._router.uncommitted:
            self.check_commit(commit, now)
        send_queue = self._connections.send_queue
        packets = send_queue.take()
        self._check(packets, now)
        # Behind them are the DISCONNECT packets of clients that this has closed.
        send_queue.put_first(packets)

    def check_commit(self, commit: Commit, now: float) -> None:
        """Check the packets that await this commit."""
        self._check(commit.packets, now)

    def _check(self, packets: list[tuple[int, list[Outgoing]]], now: float) -> None:
        """Remove messages that their clients may not receive from these packets."""
        for at in range(len(packets)):
            number, waiting = packets[at]
            connection = self._connections.by_number.get(number)
            if connection is not None and connection.state is not None:
                # An empty list stays: the connection counts the commits that it awaits.
                packets[at] = (
                    number,
                    self._permitted(connection, connection.state, waiting, now),
                )

    def _permitted(
        self, connection: Connection, state: SessionState, packets: list[Outgoing], now: float
    ) -> list[Outgoing]:
        """Those of the packets that may be sent to the client."""
        permitted: list[Outgoing] = []
        for packet in packets:
            message = _first_message(packet, connection.exchange.version)
            if message is None or self._access.receive(state, message.topic_name):
                permitted.append(packet)
            elif state.client_id in self._access.faults:
                # The message stays with the session, and the next tick closes the connection.
                self._router.mark_dirty(state)
            elif message.dup:
                # Its packet identifier is in use on this connection. The client returns without it.
                why = "its rights have changed"
                self._connections.disconnect(connection, NOT_AUTHORIZED, now, why)
                return []
            elif message.qos:
                self._router.withdraw_unsent(state, message.packet_id, now)
            else:
                count = _count_messages(packet, connection.exchange.version)
                self._router.counters.drops.add(REVOKED, count)
        return permitted


def _first_message(packet: Outgoing, version: int) -> Publish | None:
    """The PUBLISH, or the first of several that all have the same topic; None: it is none."""
    if isinstance(packet, bytes):
        first: i64 = packet[0]
        if first >> 4 != PUBLISH:
            return None
        decoded = decode(packet, version)
        assert decoded is not None
        message = decoded[0]
        assert isinstance(message, Publish)
        return message
    return packet if isinstance(packet, Publish) else None


def _count_messages(packet: Outgoing, version: int) -> int:
    """How many QoS 0 messages these are: the hot path joins those of one topic."""
    if not isinstance(packet, bytes):
        return 1
    count = 0
    at = 0
    while at < len(packet):
        decoded = decode(packet, version, start=at)
        assert decoded is not None
        at = decoded[1]
        count += 1
    return count

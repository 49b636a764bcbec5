"""What must be committed before it is reported: the one place that decides and records it."""

from typing import Final, final

from mypy_extensions import i64

from semel.broker.connection import Connection
from semel.broker.cursors import STREAM_TOPICS
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


@final
class CommitGate:
    """Decides which packets leave only after the commit of their tick.

    A session is durable if it outlives its connection (3.1.1: CleanSession 0; 5.0: Session Expiry
    Interval > 0, whatever Clean Start) and there is a store. What awaits a commit is decided by
    effect, not by sender, for a whole session and tick: if the tick did anything in the left
    column, all packets that the session sends in this tick await the commit, except those that
    report nothing.

    | the tick did this                                          | its commit is awaited by      |
    |------------------------------------------------------------|-------------------------------|
    | created, changed or resumed a durable session              | its session (CONNACK)         |
    | began a session while the store still has an ended one of  | its session (CONNACK)         |
    | the same client, which a crash would bring back            |                               |
    | accepted a will                                            | its session (CONNACK)         |
    | added or removed a subscription of a durable session       | its session (SUBACK, UNSUBACK)|
    | changed an exchange of a durable session: a new identifier | its session (PUBLISH, PUBREL, |
    | to send with, PUBREC received, QoS 2 identifier stored or  | PUBREC, PUBCOMP)              |
    | released                                                   |                               |
    | received a message that is kept: in a stream, as retained  | its publisher (PUBACK, PUBREC)|
    | message, in the queue of a durable session, or with a QoS 2| and all who get it at QoS 1   |
    | identifier of a durable session                            | or 2                          |
    | handed over a message of a durable session that left a     | who gets it at QoS 1 or 2     |
    | shared subscription                                        |                               |
    | sent a retained message at QoS 1 or 2, which may be so new | its session (PUBLISH)         |
    | that its own commit is not done                            |                               |
    | replayed a stream to a durable session                     | its session (PUBLISH)         |

    A session in memory that got a kept message may send it in a later tick, when there is quota:
    until that commit is done, its packets still wait. QoS 0 messages, PINGRESP, AUTH and
    DISCONNECT report nothing and never wait, except behind a CONNACK [MQTT-3.2.0-1]; replayed
    QoS 0 messages report nothing either, but keep the order of the record. A connection with
    packets that wait sends its next ones behind them [MQTT-4.6.0-2] [MQTT-4.6.0-6]. Everything
    else leaves at once.
    """

    # Without a store nothing waits.
    has_store: Final[bool]
    # Numbers of the last commit that the broker made, and of the last one that the store has.
    made: int
    committed: int
    # The message that is being routed: whether it is kept, and who gets it at QoS 1 or 2.
    message_is_kept: bool
    _receivers: list[SessionState]
    # Durable sessions that have ended but that the store may still have, both ways.
    _ending: Final[dict[str, int]]
    _ending_clients: Final[dict[int, str]]

    def __init__(self, *, has_store: bool) -> None:
        self.has_store = has_store
        self.made = 0
        self.committed = 0
        self.message_is_kept = False
        self._receivers = []
        self._ending = {}
        self._ending_clients = {}

    # --- sessions ---------------------------------------------------------------------------------

    def await_commit(self, state: SessionState) -> None:
        """This tick changed something durable of the session."""
        state.awaits_commit = True

    def await_if_durable(self, state: SessionState) -> bool:
        """This tick changed the session. Returns whether the change belongs into the commit."""
        if not state.is_durable:
            return False
        state.awaits_commit = True
        return True

    def accept_will(self, state: SessionState) -> None:
        """[MQTT-3.1.2-7] a client that is accepted has a will that is stored"""
        if self.has_store:
            state.awaits_commit = True

    def begin_session(self, state: SessionState) -> None:
        """A client connects: it may have ended an older session that the store still has."""
        if state.client_id in self._ending:
            state.awaits_commit = True

    def end_session(self, state: SessionState) -> bool:
        """A session is over. Returns whether its end belongs into the commit."""
        if not state.is_durable:
            return False
        self._ending[state.client_id] = state.store_id
        self._ending_clients[state.store_id] = state.client_id
        return True

    # --- messages ---------------------------------------------------------------------------------

    def keeps_identifier(self, publisher: SessionState, qos: int) -> bool:
        """Whether the Packet Identifier of a received message is stored."""
        return qos == 2 and publisher.is_durable

    def begin_message(self, *, is_kept: bool) -> None:
        """A message is about to be routed; `is_kept`: a stream or an identifier keeps it."""
        self.message_is_kept = is_kept
        self._receivers = []

    def keep_message(self) -> None:
        """The store keeps it as a retained message."""
        self.message_is_kept = True

    def add_receiver(self, state: SessionState) -> None:
        """This session gets it at QoS 1 or 2."""
        self._receivers.append(state)
        if state.is_durable:
            self.message_is_kept = True

    def end_message(self) -> None:
        """It was routed to all."""
        if self.message_is_kept:
            for state in self._receivers:
                state.awaits_commit = True

    def await_routed_message(self, publisher: SessionState) -> None:
        """The publisher's acknowledgement reports the message that was routed last."""
        if self.message_is_kept:
            publisher.awaits_commit = True

    def await_kept_message(self, publisher: SessionState, receivers: list[SessionState]) -> None:
        """The same for a kept message that the hot path gave to these, as far as they took it."""
        publisher.awaits_commit = True
        for state in receivers:
            if state.dirty:
                state.awaits_commit = True

    def await_retained(self, state: SessionState, qos: int) -> None:
        """A new subscription brings a retained message."""
        if qos and self.has_store:
            state.awaits_commit = True

    # --- packets ----------------------------------------------------------------------------------

    def leave(self, connection: Connection, state: SessionState) -> None:
        """The connection loses its session: what it has still to send reports on it."""
        connection.left_awaiting_commit = state.awaits_commit

    def delays(self, connection: Connection, state: SessionState | None) -> bool:
        """Whether packets that report something await the commit of this tick."""
        return (
            connection.commits_awaited > 0
            or connection.left_awaiting_commit
            or (
                state is not None and (state.awaits_commit or state.awaited_commit > self.committed)
            )
        )

    def delays_packet(self, connection: Connection, packet: Outgoing) -> bool:
        """Whether this packet waits, on a connection that `delays`."""
        if isinstance(packet, ConnAck):
            connection.connack_awaits_commit = True
        if not connection.connack_awaits_commit and reports_nothing(packet):
            return False
        if not connection.answer_awaits_commit:
            connection.answer_awaits_commit = is_answer(packet)
        return True

    def add_packets(self, connection: Connection) -> None:
        """Packets of this connection are in the commit of this tick."""
        connection.commits_awaited += 1

    # --- commits ----------------------------------------------------------------------------------

    def end_tick(self, changed: list[SessionState]) -> int:
        """The packets of this tick are sent or in its commit. Returns the number of the commit."""
        self.made += 1
        for state in changed:
            if state.awaits_commit:
                state.awaits_commit = False
                if not state.is_durable:
                    # A message that it got may wait for quota, and leave in a later tick.
                    state.awaited_commit = self.made
        return self.made

    def confirm(self, commit: Commit) -> None:
        """The store has this commit."""
        self.committed = commit.number
        for store_id in commit.ended:
            client_id = self._ending_clients.pop(store_id, None)
            if client_id is not None and self._ending.get(client_id) == store_id:
                del self._ending[client_id]

    def release_packets(self, connection: Connection) -> None:
        """The packets of this connection in a confirmed commit leave."""
        connection.commits_awaited -= 1
        connection.connack_awaits_commit = False
        if not connection.commits_awaited:
            connection.answer_awaits_commit = False
            connection.disk_full_since = -1.0


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

"""Decides which packets must wait for a commit. No other module does."""

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
    """Decides which packets are sent only after the commit of their tick.

    A session is durable if it outlives its connection (3.1.1: CleanSession 0; 5.0: Session Expiry
    Interval > 0, whatever Clean Start) and there is a store. Whether packets await a commit depends
    on effects, not on their sender, and is decided per session and tick: if the tick did anything
    in the left column, all packets that the session sends in this tick await the commit, except
    those that report nothing.


    | the tick did this                                          | its commit is awaited by      |
    |------------------------------------------------------------|-------------------------------|
    | created, changed or resumed a durable session              | its session (CONNACK)         |
    | began a session while the store still has an ended one of  | its session (CONNACK)         |
    | the same client, which would exist again after a crash     |                               |
    | accepted a will                                            | its session (CONNACK)         |
    | added or removed a subscription of a durable session       | its session (SUBACK, UNSUBACK)|
    | changed an exchange of a durable session: a new identifier | its session (PUBLISH, PUBREL, |
    | to send with, PUBREC received, QoS 2 identifier stored or  | PUBREC, PUBCOMP)              |
    | released                                                   |                               |
    | received a message that is kept: in a stream, as retained  | its publisher (PUBACK, PUBREC)|
    | message, in the queue of a durable session, or with a QoS 2| and all that receive it at    |
    | identifier of a durable session                            | QoS 1 or 2                    |
    | handed over a message of a shared subscription, from a     | the session that receives it  |
    | session that is durable or itself awaits a commit          | at QoS 1 or 2                 |
    | sent a retained message at QoS 1 or 2, which may itself not| its session (PUBLISH)         |
    | be committed yet                                           |                               |
    | replayed a stream to a durable session                     | its session (PUBLISH)         |

    A session in memory that got a kept message may send it in a later tick, when there is quota:
    its packets wait until that commit is done. QoS 0 messages, PINGRESP, AUTH and DISCONNECT report
    nothing and never wait, except behind a CONNACK [MQTT-3.2.0-1]. Replayed QoS 0 messages report
    nothing either, but wait to keep the order of the record. While packets of a connection wait,
    later ones wait behind them [MQTT-4.6.0-2] [MQTT-4.6.0-6]. Everything else is sent at once.
    """

    # Without a store nothing waits.
    has_store: Final[bool]
    # Numbers of the last commit that the broker made, and of the last one that the store confirmed.
    made: int
    committed: int
    # Of the message that is being routed: whether it is kept, and who receives it at QoS 1 or 2.
    message_is_kept: bool
    _receivers: list[SessionState]
    # Durable sessions that have ended, but may still be in the store: client identifier to store
    # identifier, and the reverse.
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
        """This tick made a durable change for the session."""
        state.awaits_commit = True

    def await_if_durable(self, state: SessionState) -> bool:
        """This tick changed the session. Returns whether the change must be committed."""
        if not state.is_durable:
            return False
        state.awaits_commit = True
        return True

    def accept_will(self, state: SessionState) -> None:
        """A will was accepted: it must be stored before CONNACK is sent [MQTT-3.1.2-7]."""
        if self.has_store:
            state.awaits_commit = True

    def begin_session(self, state: SessionState) -> None:
        """A client connects. The store may still have a session of it that has ended."""
        if state.client_id in self._ending:
            state.awaits_commit = True

    def end_session(self, state: SessionState) -> bool:
        """A session has ended. Returns whether its end must be committed."""
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
        """Start routing a message. `is_kept`: a stream, or a stored identifier, keeps it."""
        self.message_is_kept = is_kept
        self._receivers = []

    def begin_handover(self, state: SessionState) -> None:
        """Start routing a message that leaves this session for another one.

        Until the next commit, the store may have it in the queue of this session. If the session is
        in memory, the commit of the message itself may not be done.
        """
        self.begin_message(
            is_kept=state.is_durable or state.awaits_commit or state.awaited_commit > self.committed
        )

    def keep_message(self) -> None:
        """The store keeps the message as a retained message."""
        self.message_is_kept = True

    def add_receiver(self, state: SessionState) -> None:
        """This session receives the message at QoS 1 or 2."""
        self._receivers.append(state)
        if state.is_durable:
            self.message_is_kept = True

    def end_message(self) -> None:
        """The message was routed to all receivers."""
        if self.message_is_kept:
            for state in self._receivers:
                state.awaits_commit = True

    def await_routed_message(self, publisher: SessionState) -> None:
        """The publisher's acknowledgement will report the message that was routed last."""
        if self.message_is_kept:
            publisher.awaits_commit = True

    def await_kept_message(self, publisher: SessionState, receivers: list[SessionState]) -> None:
        """The hot path has routed a kept message to these receivers; it marked them dirty."""
        publisher.awaits_commit = True
        for state in receivers:
            if state.dirty:
                state.awaits_commit = True

    def await_retained(self, state: SessionState, qos: int) -> None:
        """A retained message is sent for a new subscription, at this QoS."""
        if qos and self.has_store:
            state.awaits_commit = True

    # --- packets ----------------------------------------------------------------------------------

    def leave(self, connection: Connection, state: SessionState) -> None:
        """The session is detached. Unsent packets of the connection may report changes of it."""
        connection.left_awaiting_commit = state.awaits_commit

    def delays(self, connection: Connection, state: SessionState | None) -> bool:
        """Whether packets of this connection that report something await the tick's commit."""
        return (
            connection.commits_awaited > 0
            or connection.left_awaiting_commit
            or (
                state is not None and (state.awaits_commit or state.awaited_commit > self.committed)
            )
        )

    def delays_packet(self, connection: Connection, packet: Outgoing) -> bool:
        """Whether this packet waits, on a connection for which `delays` is True."""
        if isinstance(packet, ConnAck):
            connection.connack_awaits_commit = True
        if not connection.connack_awaits_commit and reports_nothing(packet):
            return False
        if not connection.answer_awaits_commit:
            connection.answer_awaits_commit = is_answer(packet)
        return True

    def add_packets(self, connection: Connection) -> None:
        """The commit of this tick holds packets of this connection."""
        connection.commits_awaited += 1

    # --- commits ----------------------------------------------------------------------------------

    def end_tick(self, changed: list[SessionState]) -> int:
        """End the tick, after its packets were split. Returns the number of its commit."""
        self.made += 1
        for state in changed:
            if state.awaits_commit:
                state.awaits_commit = False
                if not state.is_durable:
                    # A message for it may wait for quota, and be sent in a later tick.
                    state.awaited_commit = self.made
        return self.made

    def confirm(self, commit: Commit) -> None:
        """The store has written this commit."""
        self.committed = commit.number
        for store_id in commit.ended:
            client_id = self._ending_clients.pop(store_id)
            # A newer session of the same client may have ended meanwhile.
            if self._ending[client_id] == store_id:
                del self._ending[client_id]

    def release_packets(self, connection: Connection) -> None:
        """The packets of this connection in a confirmed commit are sent."""
        connection.commits_awaited -= 1
        connection.connack_awaits_commit = False
        if not connection.commits_awaited:
            connection.answer_awaits_commit = False
            connection.disk_full_since = -1.0


def reports_nothing(packet: Outgoing) -> bool:
    """Whether a packet reports no durable change, so that it need not wait."""
    if isinstance(packet, bytes):
        first: i64 = packet[0]
        return first >> 4 == PUBLISH and first & QOS_FLAGS == 0
    if isinstance(packet, Publish):
        return packet.qos == 0 and not packet.topic_name.startswith(STREAM_TOPICS)
    return isinstance(packet, PingResp | Auth | Disconnect)


def is_answer(packet: Outgoing) -> bool:
    """Whether a packet answers a PUBLISH, PUBREL, SUBSCRIBE or UNSUBSCRIBE of the client."""
    if isinstance(packet, bytes):
        first: i64 = packet[0]
        kind = first >> 4
        return kind == PUBACK or kind == PUBREC or kind == PUBCOMP
    return isinstance(packet, PubAck | PubRec | PubComp | SubAck | UnsubAck)

"""The client without I/O: bytes, time and requests go in; bytes, outcomes and messages come out.

    connect ─▶ CONNECT        receive(data)                      flush: the tick ends
                                CONNACK ─▶ connack                 durable changes ─▶ Commit
    publish ─▶ Session          PUBACK, PUBCOMP ─▶ outcomes        packets and messages: at once,
    subscribe ─▶ SUBSCRIBE      PUBLISH ─▶ arrived, or record      or when the store has the Commit

The owner calls `flush` after every call, writes the bytes of `take_output`, and empties the lists
of events. With a store, the same things await a commit as in the broker (DESIGN.md section 4): a
PUBLISH is sent when its message and identifier are stored, an acknowledgement when the state that
it reports is stored, and a message is handed out when it is in the inbox. The program does not
acknowledge a message that is recorded in a stream: its commit accepts it.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final, final

from semel.client.awaiting_commit import AwaitingCommit
from semel.client.connect_parameters import ConnectParameters
from semel.client.connection_end import (
    ConnectionEnd,
    disconnect_reason,
    ended_by_server,
    refused_by_server,
    refused_in_311,
    unknown_session,
)
from semel.client.disconnecting import disconnect_packet
from semel.client.events import PublishOutcome, SubscriptionAnswer, unsent_outcome
from semel.client.inbox import Inbox
from semel.client.keep_alive import KeepAlive
from semel.client.received import Incoming
from semel.client.recording import break_key, next_row
from semel.client.stored_session import poll, restore_session
from semel.client.subscriptions import ClientSubscriptions
from semel.mqtt.codec import Decoder, Packet, encode
from semel.mqtt.delivery import Delivery, Receipt
from semel.mqtt.exchange import CONNECTING, Exchange
from semel.mqtt.message import Message
from semel.mqtt.packet_types import MQTT5, PUBACK, PUBCOMP, PUBREC
from semel.mqtt.packets.acks import PubAck, PubComp, PubRec, PubRel
from semel.mqtt.packets.auth import Auth
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.packets.ping import PingReq
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import SubAck, Subscribe, Subscription
from semel.mqtt.packets.unsubscribe import UnsubAck, Unsubscribe
from semel.mqtt.properties import NO_PROPERTIES, Properties
from semel.mqtt.reasons import FAILURE, SUCCESS
from semel.mqtt.session import NEVER_EXPIRES, Outgoing, Session
from semel.mqtt.session_drops import give_up_expired
from semel.mqtt.session_exchanges import open_exchanges
from semel.mqtt.session_reset import reset_session
from semel.mqtt.side import CLIENT, SERVER
from semel.mqtt.violation import Violation
from semel.store.commit import Commit
from semel.store.store import Store
from semel.store.streams import Stream

# Messages in the backlog of a stored session that are kept in memory; the others stay on disk.
WINDOW: Final = 1_000


@final
class ClientCore:
    """One client, over all its connections."""

    # --- events, which the owner reads and empties ---
    outcomes: list[PublishOutcome]
    answers: list[SubscriptionAnswer]
    arrived: list[Incoming]
    stored: list[int]
    auths: list[Auth]
    # The server's CONNACK, once the connection may be used.
    connack: ConnAck | None
    # Why the connection has ended; the owner closes it.
    connection_end: ConnectionEnd | None
    # Called when the program has acknowledged a message, so that the owner calls `flush`.
    on_acknowledged: Callable[[], None] | None
    # Gets each new message with its topic, Receipt and time, instead of the inbox: for a bridge.
    on_publish: Callable[[Publish, str, Receipt, float], None] | None
    # --- state that the owner may read ---
    client_id: str
    # Whether this end has the state of a session [4.1].
    has_state: bool
    # A CONNECT was sent, and its CONNACK has not arrived.
    is_connect_unanswered: bool
    # A separate connection has made a 3.1.1 server discard the session.
    is_session_purged: bool
    session: Final[Session]
    subscriptions: Final[ClientSubscriptions]
    # How often the server had lost the session that this end had, and how many messages were sent
    # again as new ones because of that.
    sessions_lost: int
    resent: int
    recorded: int
    _parameters: Final[ConnectParameters]
    _store: Final[Store]
    _store_id: Final[int]
    _stream: Final[Stream | None]
    _exchange: Exchange
    _decoder: Decoder
    # Counts connections: packets that await a commit are sent on no other.
    _connection: int
    _is_session_open: bool
    _pending_connack: ConnAck | None
    _output: list[bytes]
    _commit: Commit
    _last_commit: int
    _awaiting: Final[deque[AwaitingCommit]]
    _arrivals: list[Incoming]
    _to_be_stored: list[int]
    _inbox: Final[Inbox]
    # Reason codes of PUBRECs other than 0, by packet identifier.
    _pubrec_reasons: dict[int, int]
    _clean_start: bool
    # Whether a server has accepted the client in this run.
    _had_session: bool
    # Whether the previous CONNECT was not answered, so that the server may have started a new
    # session; and whether a message has shown that it did.
    _is_session_uncertain: bool
    _is_loss_recorded: bool
    _keep_alive: KeepAlive

    def __init__(
        self,
        parameters: ConnectParameters,
        client_id: str,
        *,
        run: str,
        store: Store,
        store_id: int = 0,
        stream: Stream | None = None,
    ) -> None:
        """`run` is unique to this run of the program, `store_id` the session's row in the store.

        With a `stream`, messages are recorded there.
        """
        self.outcomes = []
        self.answers = []
        self.arrived = []
        self.stored = []
        self.auths = []
        self.connack = None
        self.connection_end = None
        self.on_acknowledged = None
        self.on_publish = None
        self.client_id = client_id
        self.has_state = False
        self.is_connect_unanswered = False
        self.is_session_purged = False
        self.session = Session()
        self.session.durable = store.is_durable
        self.session.version = parameters.version
        if store.is_durable:
            self.session.backlog.window = WINDOW
        self.subscriptions = ClientSubscriptions()
        self.sessions_lost = 0
        self.resent = 0
        self.recorded = 0
        self._parameters = parameters
        self._store = store
        self._store_id = store_id
        self._stream = stream
        self._exchange = Exchange()
        self._decoder = Decoder(parameters.version)
        self._connection = 0
        self._is_session_open = False
        self._pending_connack = None
        self._output = []
        self._commit = Commit()
        self._last_commit = 0
        self._awaiting = deque()
        self._arrivals = []
        self._to_be_stored = []
        self._inbox = Inbox(
            self.session,
            self.subscriptions,
            is_durable=store.is_durable,
            store_id=store_id,
            version=parameters.version,
            run=run,
            acknowledge=self.acknowledge,
        )
        self._pubrec_reasons = {}
        self._clean_start = True
        self._had_session = False
        self._is_session_uncertain = False
        self._is_loss_recorded = False
        self._keep_alive = KeepAlive(parameters.keep_alive, 0.0)

    @property
    def version(self) -> int:
        """The version of MQTT."""
        return self._parameters.version

    @property
    def session_expiry(self) -> int:
        """How long the session should outlive a connection, in seconds."""
        return self._parameters.session_expiry

    @property
    def is_connected(self) -> bool:
        """Whether the connection is accepted, has not ended and is not about to end."""
        return self._is_session_open and self.connection_end is None and not self._is_disconnecting

    @property
    def _is_disconnecting(self) -> bool:
        """Whether DISCONNECT was sent."""
        return self._exchange.client.disconnected

    @property
    def is_committed(self) -> bool:
        """Whether the store has every commit that it was given."""
        return not self._awaiting

    @property
    def unacknowledged(self) -> int:
        """How many messages the program has not acknowledged."""
        return len(self._inbox)

    # --- a stored session -------------------------------------------------------------------------

    def restore(self) -> list[Incoming]:
        """Load the session from the store. Returns the messages to hand out again."""
        expiry_interval = restore_session(
            self._store, self._store_id, self.session, self.subscriptions
        )
        if expiry_interval is None:
            self._commit.sessions.append((self._store_id, self.client_id, 0, ""))
        else:
            self.has_state = expiry_interval > 0
        return self._inbox.restore(self._store)

    # --- connections ------------------------------------------------------------------------------

    def connect(self, clean_start: bool, now: float, authentication: bytes | None = None) -> None:
        """Send CONNECT on a new network connection [MQTT-3.1.0-1]."""
        parameters = self._parameters
        has_session = self.has_state and not clean_start
        carried = self._inbox.carry_over(has_session)
        if has_session:
            carried.extend(open_exchanges(self.session, CLIENT, SERVER))
        self._exchange = Exchange(carried)
        self._decoder = Decoder(
            parameters.version, maximum_packet_size=parameters.maximum_packet_size
        )
        self._connection += 1
        self._is_session_open = False
        self._pending_connack = None
        self._output = []
        self._clean_start = clean_start
        # If its CONNACK was lost, the server may have started a session that we do not know of.
        self._is_session_uncertain = self.is_connect_unanswered
        self._is_loss_recorded = False
        if self._is_session_uncertain:
            self.subscriptions.mark_unconfirmed()
        self.is_connect_unanswered = True
        self._keep_alive = KeepAlive(parameters.keep_alive, now)
        self.connack = None
        self.connection_end = None
        self._send(parameters.connect(self.client_id, clean_start, authentication), now)

    def on_connection_lost(self, now: float) -> None:
        """The network connection is closed, by the server or by us."""
        # Also if the session is disconnected already: messages that arrived since then must not
        # delay the acknowledgements of later ones.
        self.session.disconnect(now, NEVER_EXPIRES)
        self._inbox.on_disconnected()
        self._connection += 1
        self._is_session_open = False
        self.connack = None
        self._pending_connack = None
        self._output = []
        self._decoder = Decoder(self._parameters.version)

    def disconnect(
        self,
        reason: int,
        session_expiry: int | None,
        now: float,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Send DISCONNECT, the last packet [MQTT-3.14.4-1]. Raises Violation as below."""
        packet = self.disconnect_packet(reason, session_expiry, properties)
        if packet is not None:
            self._send(packet, now)
        self._detach_session(now)

    def disconnect_packet(
        self, reason: int, session_expiry: int | None, properties: Properties
    ) -> Disconnect | None:
        """The packet that `disconnect` would send. Raises Violation if it breaks a rule."""
        if self.version != MQTT5:
            return Disconnect()
        return disconnect_packet(self._exchange, reason, session_expiry, properties)

    def disconnect_for_error(self, reason: int, now: float) -> None:
        """Send DISCONNECT, unless one was sent or the server's Maximum Packet Size is below 3."""
        with contextlib.suppress(Violation):
            self._send(Disconnect(reason), now)
        self._detach_session(now)

    def _detach_session(self, now: float) -> None:
        """Later messages wait for the next connection."""
        if self.session.connected:
            self.session.disconnect(now, NEVER_EXPIRES)

    def sweep(self, now: float, *, is_reading: bool) -> float | None:
        """Keep the connection alive. Returns when to call this again, None: not at all."""
        keep_alive = self._keep_alive
        if not self.is_connected or keep_alive.interval == 0:
            return None
        if not is_reading:
            keep_alive.on_not_reading(now)
        if keep_alive.is_timed_out(now):
            why = f"the server did not answer PINGREQ within {keep_alive.ping_timeout:.0f} s"
            self._end(ConnectionEnd(why))
            return None
        if keep_alive.take_due_ping(now):
            self._send_all([PingReq()], now)
        return keep_alive.next_check()

    def ping(self, now: float) -> int:
        """Send PINGREQ, whatever the Keep Alive. Returns its number on this connection."""
        self._keep_alive.on_pingreq_sent(now)
        self._send_all([PingReq()], now)
        return self._keep_alive.pings

    @property
    def answered_pings(self) -> int:
        """How many PINGREQs of this connection the server has answered."""
        return self._keep_alive.answers

    def expire(self, now: float) -> None:
        """Drop publications that have expired in the backlog [MQTT-3.3.2-5]."""
        self._give_up(give_up_expired(self.session, now), now)

    # --- the program's requests -------------------------------------------------------------------

    def publish_now(self, message: Message, now: float) -> None:
        """Send a QoS 0 message. Raises Violation if the server does not accept such messages."""
        self._send(message.publish(0, now, self.version, dup=False), now)

    def publish(self, message: Message, now: float) -> int:
        """Send a QoS 1 or 2 message, or queue it. Returns its number, for its outcome."""
        number = self.session.send(message, now)
        if self._store.is_durable:
            self._to_be_stored.append(number)
        return number

    def subscribe(self, subscription: Subscription, properties: Properties) -> None:
        """Subscribe, now or when there is a connection."""
        self.subscriptions.add(subscription, properties)

    def unsubscribe(self, topic_filter: str, properties: Properties = NO_PROPERTIES) -> None:
        """Unsubscribe, now or when there is a connection."""
        self.subscriptions.remove(topic_filter, properties)

    def acknowledge(self, incoming: Incoming) -> None:
        """The program has processed a message."""
        if incoming.qos == 0:
            return
        self._inbox.acknowledge(incoming, self._commit)
        if self.on_acknowledged is not None:
            self.on_acknowledged()

    def authenticate(self, reason: int, method: str, data: bytes | None, now: float) -> None:
        """Send AUTH."""
        properties = Properties(authentication_method=method, authentication_data=data)
        self._send(Auth(reason, properties=properties), now)

    # --- packets of the server --------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Process bytes from the server."""
        self._keep_alive.on_received(now)
        if self._exchange.phase == CONNECTING and self.version == MQTT5:
            refusal = refused_in_311(data)
            if refusal is not None:
                self._end(refusal)
                return
        decoder = self._decoder
        decoder.feed(data)
        while self.connection_end is None:
            item = decoder.next()
            if item is None:
                return
            if isinstance(item, Violation):
                self._end_for_violation(item, now)
            else:
                self._observe(item, now)

    def _observe(self, packet: Packet, now: float) -> None:
        try:
            self._exchange.observe(SERVER, packet, 0)
        except Violation as violation:
            if violation.rule.closes:
                self._end_for_violation(violation, now)
                return
            # The standard requires us to continue.
            self._exchange.observe(SERVER, packet, 0, [])
        self._process(packet, now)

    def _process(self, packet: Packet, now: float) -> None:
        if isinstance(packet, Publish):
            self._take_publish(packet, now)
        elif isinstance(packet, PubAck):
            delivery = self.session.receive_puback(packet)
            if delivery is not None:
                self._add_outcome(delivery, PUBACK, packet.reason, packet.properties)
        elif isinstance(packet, PubRec):
            delivery = self.session.receive_pubrec(packet)
            if delivery is not None:
                self._add_outcome(delivery, PUBREC, packet.reason, packet.properties)
            elif packet.reason != SUCCESS:
                # [3.5.2.1] 0x10, no matching subscribers: PUBCOMP does not repeat it
                self._pubrec_reasons[packet.packet_id] = packet.reason
        elif isinstance(packet, PubRel):
            self.session.receive_pubrel(packet)
        elif isinstance(packet, PubComp):
            delivery = self.session.receive_pubcomp(packet)
            reasons = self._pubrec_reasons
            reason = reasons.pop(packet.packet_id, SUCCESS) if reasons else SUCCESS
            if delivery is not None:
                self._add_outcome(delivery, PUBCOMP, reason, packet.properties)
        elif isinstance(packet, SubAck):
            self._take_answer(packet.packet_id, packet.reasons[0], packet.properties)
        elif isinstance(packet, UnsubAck):
            reason = packet.reasons[0] if packet.reasons else SUCCESS
            self._take_answer(packet.packet_id, reason, packet.properties)
        elif isinstance(packet, ConnAck):
            self._take_connack(packet, now)
        elif isinstance(packet, Disconnect):
            self._end(ended_by_server(packet))
        elif isinstance(packet, Auth):
            self.auths.append(packet)
        else:
            # PINGRESP: the Exchange refuses any other packet.
            self._keep_alive.on_pingresp()

    def _add_outcome(
        self, delivery: Delivery, packet_type: int, reason: int, properties: Properties
    ) -> None:
        self.outcomes.append(PublishOutcome(delivery.number, packet_type, reason, properties))

    def _take_connack(self, packet: ConnAck, now: float) -> None:
        properties = packet.properties
        self.is_connect_unanswered = False
        if packet.reason != SUCCESS:
            self._end(refused_by_server(packet))
            return
        # The session of a 3.1.1 server was just purged: ignore Session Present.
        session_present = packet.session_present and not self.is_session_purged
        self.is_session_purged = False
        if session_present and not self.has_state:
            if self.version == MQTT5:
                self.disconnect_for_error(SUCCESS, now)
            self._end(unknown_session(self.version))
            return
        if not session_present:
            self._discard_session()
        self.has_state = True
        self._had_session = True
        self.subscriptions.on_connected(session_present)
        if properties.assigned_client_identifier is not None:
            self.client_id = properties.assigned_client_identifier
        # [MQTT-3.2.2-21]
        if properties.server_keep_alive is not None:
            self._keep_alive.interval = properties.server_keep_alive
        server = self._exchange.server
        self.session.connect(
            self.version,
            receive_maximum=server.receive_maximum,
            maximum_packet_size=server.maximum_packet_size,
        )
        if self._store.is_durable:
            given = properties.session_expiry_interval
            expiry = self._parameters.session_expiry if given is None else given
            self._commit.sessions.append((self._store_id, self.client_id, expiry, ""))
        self._pending_connack = packet

    def _discard_session(self) -> None:
        """Discard the session state, because the server has no session [MQTT-3.2.2-5].

        Messages that the program wants to send, and those it has not acknowledged, stay.
        """
        complete, again = reset_session(self.session)
        for delivery in complete:
            self._add_outcome(delivery, PUBREC, SUCCESS, NO_PROPERTIES)
        self._pubrec_reasons = {}
        self._inbox.forget_all(self._commit)
        stream = self._stream
        # With a server that keeps no sessions, a stored client has rows but no state.
        had = self.has_state or (stream is not None and stream.last_seq > 0)
        if not had or (self._clean_start and not self._had_session):
            return
        self.resent += len(again)
        self._record_loss()

    def _record_loss(self) -> None:
        """Record that the server had lost the session: messages may be missing here."""
        self.sessions_lost += 1
        stream = self._stream
        if stream is not None:
            self._commit.metadata.append((break_key(stream), "the server had no session"))

    def _forget_received(self, packet_id: int) -> None:
        """Forget the message that was open under this identifier, which a new one has now.

        A message that is sent again has DUP 1 [MQTT-3.3.1-1]. A message with DUP 0 under an open
        identifier shows that the lost CONNACK started a new session.
        """
        if self.session.forget_received(packet_id):
            self._inbox.forget(packet_id, self._commit)
            if not self._is_loss_recorded:
                self._is_loss_recorded = True
                self._record_loss()

    def _take_answer(self, packet_id: int, reason: int, properties: Properties) -> None:
        self.session.release_id(packet_id)
        topic_filter, requested = self.subscriptions.finish_request(packet_id, reason < FAILURE)
        self.answers.append(
            SubscriptionAnswer(topic_filter, requested is not None, reason, properties)
        )

    def _take_publish(self, packet: Publish, now: float) -> None:
        topic = self._exchange.topic_name(SERVER, packet)
        if self._is_session_uncertain and packet.qos == 2 and not packet.dup:
            self._forget_received(packet.packet_id)
        receipt = self.session.receive_publish(packet)
        if receipt is None:
            # [MQTT-4.3.3-10] a repeated QoS 2 message: PUBREC is sent again
            return
        stream = self._stream
        if stream is not None:
            row = next_row(stream, topic, packet, self.client_id, self.version)
            self._commit.records.append(row)
            self.recorded += 1
            self.session.accept(receipt)
            return
        if self.on_publish is not None:
            self.on_publish(packet, topic, receipt, now)
            return
        incoming = self._inbox.receive(packet, topic, receipt, self._commit)
        if incoming is not None:
            self._arrivals.append(incoming)

    def _end_for_violation(self, violation: Violation, now: float) -> None:
        """Send DISCONNECT and end the connection: the server broke a rule [MQTT-4.13.1-1]."""
        if self._is_session_open and self.version == MQTT5 and not self._is_disconnecting:
            self.disconnect_for_error(disconnect_reason(violation), now)
        self._end(ConnectionEnd(f"the server broke a rule: {violation}", violation=violation))

    def _end(self, connection_end: ConnectionEnd) -> None:
        """End the connection; later messages wait for the next one."""
        if self.connection_end is None:
            self.connection_end = connection_end
            self._detach_session(0.0)

    # --- sending ----------------------------------------------------------------------------------

    def take_output(self) -> bytes:
        """Take the bytes to write to the transport."""
        output = self._output
        if not output:
            return b""
        self._output = []
        return output[0] if len(output) == 1 else b"".join(output)

    def flush(self, now: float, wall: float) -> None:
        """End the tick: commit durable changes, and send what need not await a commit."""
        packets = self.collect(now)
        commit = self._commit
        if commit.is_empty():
            self.pass_on(packets, now)
            return
        self._last_commit += 1
        commit.number = self._last_commit
        commit.at = wall
        self.await_commit(packets, Commit())
        if self._store.write(commit):
            self.on_committed(1, now)

    def use_commit(self, commit: Commit) -> None:
        """Add durable changes to this commit, which belongs to an owner that writes the changes of
        two cores as one: it calls the three methods below instead of `flush`."""
        assert self._commit.is_empty()
        self._commit = commit

    def collect(self, now: float) -> list[Outgoing]:
        """Add the durable changes of this tick to the commit. Returns the packets to send."""
        if self.is_connected:
            self._give_up(poll(self.session, self._store, self._store_id, now), now)
        changes, packets = self.session.drain()
        self._commit.changes.extend([(self._store_id, change) for change in changes])
        if self.is_connected and self.subscriptions.due:
            with_identifiers = self._exchange.server_features.subscription_identifiers
            packets += self.subscriptions.make_requests(
                self.session, self.version, with_identifiers=with_identifiers
            )
        # The store has every filter that the server may have before its SUBSCRIBE is sent.
        commit = self._commit if self._store.is_durable else None
        self.subscriptions.store_changes(self._store_id, commit)
        return packets

    def pass_on(self, packets: list[Outgoing], now: float) -> None:
        """Send `packets`, because there is nothing to commit, but not before earlier ones."""
        if not self._awaiting:
            self._release_now(packets, now)
            return
        last = self._awaiting[-1]
        # Packets follow CONNACK, whose commit is the first of its connection.
        assert not packets or last.connection == self._connection
        last.add(packets, self._arrivals, self._to_be_stored)
        self._arrivals = []
        self._to_be_stored = []

    def await_commit(self, packets: list[Outgoing], following: Commit) -> None:
        """Send `packets` when the store has the commit; later changes belong to `following`."""
        arrivals, stored, connack = self._arrivals, self._to_be_stored, self._pending_connack
        self._awaiting.append(AwaitingCommit(self._connection, packets, arrivals, stored, connack))
        self._commit = following
        self._arrivals = []
        self._to_be_stored = []
        self._pending_connack = None

    def on_committed(self, count: int, now: float) -> None:
        """The store has the next `count` commits."""
        for _ in range(count):
            awaiting = self._awaiting.popleft()
            self.arrived.extend(awaiting.arrivals)
            self.stored.extend(awaiting.stored)
            if awaiting.connection == self._connection:
                self._send_all(awaiting.packets, now)
                if awaiting.connack is not None:
                    self._open_session(awaiting.connack)

    def _release_now(self, packets: list[Outgoing], now: float) -> None:
        """Send and hand out at once: no commit is awaited."""
        self._send_all(packets, now)
        if self._arrivals:
            self.arrived.extend(self._arrivals)
            self._arrivals = []
        if self._to_be_stored:
            self.stored.extend(self._to_be_stored)
            self._to_be_stored = []
        if self._pending_connack is not None:
            self._open_session(self._pending_connack)
            self._pending_connack = None

    def _open_session(self, connack: ConnAck) -> None:
        self._is_session_open = True
        self.connack = connack

    def _give_up(self, deliveries: list[Delivery], now: float) -> None:
        """Report publications that were not sent: expired, or too large for the server."""
        for delivery in deliveries:
            limit = self.session.maximum_packet_size
            self.outcomes.append(unsent_outcome(delivery, now, self.version, limit))

    def _send_all(self, packets: list[Outgoing], now: float) -> None:
        for packet in packets:
            if self._is_disconnecting or self.connection_end is not None:
                # As if the network had lost the packet.
                return
            assert not isinstance(packet, bytes)
            try:
                self._send(packet, now)
            except Violation as violation:
                self._give_up_packet(packet, violation)
            if isinstance(packet, PubAck):
                self._inbox.puback_sent(packet.packet_id)

    def _give_up_packet(self, packet: Packet, violation: Violation) -> None:
        """Report a packet that a limit in the server's CONNACK forbids."""
        if isinstance(packet, Publish):
            number = self.session.give_up(packet.packet_id)
            self.outcomes.append(PublishOutcome(number, violation=violation))
        elif isinstance(packet, Subscribe | Unsubscribe):
            self.session.release_id(packet.packet_id)
            topic_filter, requested = self.subscriptions.finish_request(packet.packet_id, False)
            self.answers.append(
                SubscriptionAnswer(
                    topic_filter, requested is not None, FAILURE, NO_PROPERTIES, violation
                )
            )
        else:
            # Every other packet is mandatory, and only its size can be forbidden.
            self._end(ConnectionEnd(f"the server does not accept a mandatory packet: {violation}"))

    def _send(self, packet: Packet, now: float) -> None:
        """Send a packet. Raises Violation, and sends nothing, if it is not allowed."""
        data = encode(packet, self.version)
        self._exchange.observe(CLIENT, packet, len(data))
        self._output.append(data)
        self._keep_alive.on_sent(now)

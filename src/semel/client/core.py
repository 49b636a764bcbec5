"""The client without a network: bytes, time and wishes go in; bytes, answers and messages come out.

    connect ─▶ CONNECT        receive(data)                      flush: the tick ends
                                CONNACK ─▶ greeting                what must last ─▶ Commit
    publish ─▶ Session          PUBACK, PUBCOMP ─▶ outcomes        packets and messages: at once,
    subscribe ─▶ SUBSCRIBE      PUBLISH ─▶ arrived, or record      or when the store has the Commit

The owner calls `flush` after whatever it did, writes what `take_output` gives, and empties the
lists of events. With a store, the list of what waits for a commit is the broker's (DESIGN.md
section 4): a PUBLISH leaves when its message and identifier are stored, an acknowledgement when
what it reports is, and a message is handed out when it is in the inbox. One that is recorded in a
stream is nobody's to acknowledge: it is accepted with its commit.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Final, final

from semel.client.events import ConnectionEnd, PublishOutcome, SubscriptionAnswer
from semel.client.greeting import Greeting
from semel.client.inbox import Inbox
from semel.client.keep_alive import KeepAlive
from semel.client.received import Incoming
from semel.client.subscriptions import ClientSubscriptions
from semel.mqtt.codec import Decoder, Packet, check_packet_size, encode
from semel.mqtt.delivery import Delivery
from semel.mqtt.exchange import CONNECTING, Exchange
from semel.mqtt.message import Message, message_properties
from semel.mqtt.packet_types import (
    CONNACK,
    DISCONNECT,
    MQTT5,
    MQTT311,
    PUBACK,
    PUBCOMP,
    PUBREC,
    first_byte,
)
from semel.mqtt.packets.acks import PubAck, PubComp, PubRec, PubRel
from semel.mqtt.packets.auth import Auth
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.disconnect import Disconnect
from semel.mqtt.packets.ping import PingReq
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import SubAck, Subscribe, Subscription
from semel.mqtt.packets.unsubscribe import UnsubAck, Unsubscribe
from semel.mqtt.properties import (
    NO_PROPERTIES,
    Properties,
)
from semel.mqtt.reasons import (
    DISCONNECT_ONLY_SERVER,
    FAILURE,
    PROTOCOL_ERROR,
    REASONS_5,
    SUCCESS,
)
from semel.mqtt.session import NEVER_EXPIRES, Outgoing, Session
from semel.mqtt.session_exchanges import open_exchanges
from semel.mqtt.session_restore import restore_backlog, restore_exchanges
from semel.mqtt.side import CLIENT, SERVER
from semel.mqtt.violation import Violation
from semel.store.commit import Commit, RecordedMessage
from semel.store.store import Store
from semel.store.streams import Stream

# How a CONNACK of 3.1.1 begins.
_CONNACK_311: Final = bytes((first_byte(CONNACK), 2, 0))
# Waiting messages of a stored session that are kept in memory; the others stay on disk.
WINDOW: Final = 1_000


@final
class Held:
    """What waits for one commit."""

    connection: Final[int]
    packets: Final[list[Outgoing]]
    arrivals: Final[list[Incoming]]
    # Publications that are stored when it is.
    stored: Final[list[int]]
    # The CONNACK of a connection that begins.
    greeting: Final[ConnAck | None]

    def __init__(
        self,
        connection: int,
        packets: list[Outgoing],
        arrivals: list[Incoming],
        stored: list[int],
        greeting: ConnAck | None,
    ) -> None:
        self.connection = connection
        self.packets = packets
        self.arrivals = arrivals
        self.stored = stored
        self.greeting = greeting


@final
class Core:
    """One client, over all its connections."""

    # --- what the owner reads, and empties ---
    outcomes: list[PublishOutcome]
    answers: list[SubscriptionAnswer]
    arrived: list[Incoming]
    stored: list[int]
    auths: list[Auth]
    # The server's CONNACK, when the connection may be used.
    greeting: ConnAck | None
    # Why the connection is over; the owner closes it.
    ending: ConnectionEnd | None
    # Called when the program has acknowledged something, so that there is something to flush.
    touched: Callable[[], None] | None
    # --- what it may know ---
    client_id: str
    # Whether this end has the state of a session [4.1].
    has_state: bool
    # A CONNECT left, and nobody knows what the server made of it.
    is_unanswered: bool
    # The server was told, by a connection of its own, to forget the session.
    is_purged: bool
    session: Final[Session]
    subscriptions: Final[ClientSubscriptions]
    # Times that the server did not have the session that this end had, and messages that were sent
    # anew because of that.
    sessions_lost: int
    resent: int
    recorded: int
    _greeting: Final[Greeting]
    _store: Final[Store]
    _number: Final[int]
    _stream: Final[Stream | None]
    _exchange: Exchange
    _decoder: Decoder
    # Counts connections; packets that wait are those of one.
    _connection: int
    _is_session_open: bool
    _pending_greeting: ConnAck | None
    _output: list[bytes]
    _commit: Commit
    _commits: int
    _held: Final[deque[Held]]
    _arrivals: list[Incoming]
    _to_store: list[int]
    _inbox: Final[Inbox]
    # Reason codes of PUBREC that are not plain success.
    _reasons: dict[int, int]
    _clean_start: bool
    # Whether a server has accepted the client in this run.
    _had_session: bool
    # Whether the CONNECT before this one was not answered, and what it had told was found out.
    _is_doubtful: bool
    _is_loss_noted: bool
    _alive: KeepAlive

    def __init__(
        self,
        greeting: Greeting,
        client_id: str,
        *,
        run: str,
        store: Store,
        number: int = 0,
        stream: Stream | None = None,
    ) -> None:
        """`run` is a word that no other run of the program uses, `number` that of the session in
        the store. With a `stream`, messages go to the record."""
        self.outcomes = []
        self.answers = []
        self.arrived = []
        self.stored = []
        self.auths = []
        self.greeting = None
        self.ending = None
        self.touched = None
        self.client_id = client_id
        self.has_state = False
        self.is_unanswered = False
        self.is_purged = False
        self.session = Session()
        self.session.durable = store.is_durable
        self.session.version = greeting.version
        if store.is_durable:
            self.session.backlog.window = WINDOW
        self.subscriptions = ClientSubscriptions()
        self.sessions_lost = 0
        self.resent = 0
        self.recorded = 0
        self._greeting = greeting
        self._store = store
        self._number = number
        self._stream = stream
        self._exchange = Exchange()
        self._decoder = Decoder(greeting.version)
        self._connection = 0
        self._is_session_open = False
        self._pending_greeting = None
        self._output = []
        self._commit = Commit()
        self._commits = 0
        self._held = deque()
        self._arrivals = []
        self._to_store = []
        self._inbox = Inbox(
            self.session,
            self.subscriptions,
            is_durable=store.is_durable,
            number=number,
            version=greeting.version,
            run=run,
            acknowledge=self.acknowledge,
        )
        self._reasons = {}
        self._clean_start = True
        self._had_session = False
        self._is_doubtful = False
        self._is_loss_noted = False
        self._alive = KeepAlive(greeting.keep_alive, 0.0)

    @property
    def version(self) -> int:
        """Of the protocol."""
        return self._greeting.version

    @property
    def session_expiry(self) -> int:
        """How long its session is to outlive a connection, in seconds."""
        return self._greeting.session_expiry

    @property
    def is_connected(self) -> bool:
        """Whether the connection is accepted, and not over or about to be."""
        return self._is_session_open and self.ending is None and not self._is_leaving

    @property
    def _is_leaving(self) -> bool:
        """Whether DISCONNECT has left."""
        return self._exchange.client.disconnected

    @property
    def is_safe(self) -> bool:
        """Whether the store has all that it was given."""
        return not self._held

    @property
    def unacknowledged(self) -> int:
        """How many messages the program has not acknowledged."""
        return len(self._inbox)

    # --- a session that was stored ----------------------------------------------------------------

    def restore(self) -> list[Incoming]:
        """Take up what the store has of the session. Messages to be handed out once more."""
        saved = self._store.restore()
        if not saved.sessions:
            self._commit.sessions.append((self._number, self.client_id, 0))
        for each in saved.sessions:
            if each.store_id == self._number:
                # An interval of 0 is noted until a server has accepted the client for the first
                # time: until then there is no session there that could be resumed.
                self.has_state = each.expiry_interval > 0
                restore_backlog(
                    self.session,
                    each.waiting,
                    each.waiting_bytes,
                    each.first_waiting,
                    each.next_expiry,
                    each.last_delivery,
                )
        in_flight, stored = self._store.exchanges(self._number)
        restore_exchanges(self.session, in_flight, stored)
        for session, subscription, identifier in saved.subscriptions:
            if session == self._number:
                self.subscriptions.restore(subscription, identifier)
        return self._inbox.restore(self._store)

    # --- connections ------------------------------------------------------------------------------

    def connect(self, clean_start: bool, now: float, authentication: bytes | None = None) -> None:
        """A network connection is there: begin with CONNECT [MQTT-3.1.0-1]."""
        greeting = self._greeting
        has_session = self.has_state and not clean_start
        carried = self._inbox.connecting(has_session)
        if has_session:
            carried.extend(open_exchanges(self.session, CLIENT, SERVER))
        self._exchange = Exchange(carried)
        self._decoder = Decoder(greeting.version, maximum_packet_size=greeting.maximum_packet_size)
        self._connection += 1
        self._is_session_open = False
        self._pending_greeting = None
        self._output = []
        self._clean_start = clean_start
        # The server may have begun a session that we were not told of.
        self._is_doubtful = self.is_unanswered
        self._is_loss_noted = False
        if self._is_doubtful:
            self.subscriptions.doubt()
        self.is_unanswered = True
        self._alive = KeepAlive(greeting.keep_alive, now)
        self.greeting = None
        self.ending = None
        self._send(greeting.connect(self.client_id, clean_start, authentication), now)

    def lost(self, now: float) -> None:
        """The network connection is gone, whoever ended it."""
        # Once more if it has been before: what came in since holds nothing back later.
        self.session.disconnect(now, NEVER_EXPIRES)
        self._inbox.disconnected()
        self._connection += 1
        self._is_session_open = False
        self.greeting = None
        self._pending_greeting = None
        self._output = []
        self._decoder = Decoder(self._greeting.version)

    def disconnect(
        self,
        reason: int,
        session_expiry: int | None,
        now: float,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Leave: DISCONNECT is the last packet [MQTT-3.14.4-1]."""
        packet = Disconnect()
        if self.version == MQTT5:
            expiry = session_expiry
            if expiry == self._exchange.session_expiry_interval:
                expiry = None
            own = Properties(session_expiry_interval=expiry)
            packet = Disconnect(reason, properties=Properties([*own.items, *properties.items]))
        self._say_goodbye(packet, now)

    def _say_goodbye(self, packet: Disconnect, now: float) -> None:
        """What comes to be sent from now on waits for the next connection."""
        # A server may take so little that not even this fits.
        with contextlib.suppress(Violation):
            self._send(packet, now)
        if self.session.connected:
            self.session.disconnect(now, NEVER_EXPIRES)

    def sweep(self, now: float, *, is_reading: bool) -> float | None:
        """Keep the connection alive. When to do it again; None: there is no need to."""
        alive = self._alive
        if not self.is_connected or alive.interval == 0:
            return None
        if not is_reading:
            alive.not_reading(now)
        if alive.is_over(now):
            ping_timeout = alive.ping_timeout
            self._end(
                ConnectionEnd(f"the server did not answer PINGREQ within {ping_timeout:.0f} s")
            )
            return None
        if alive.wants_ping(now):
            self._leave([PingReq()], now)
        return alive.due()

    def ping(self, now: float) -> int:
        """Send PINGREQ, whatever the Keep Alive is; its number among those of the connection."""
        self._alive.pinged(now)
        self._leave([PingReq()], now)
        return self._alive.pings

    @property
    def answered_pings(self) -> int:
        """How many PINGREQ of this connection are answered."""
        return self._alive.answers

    def expire(self, now: float) -> None:
        """Give up publications that expired while they waited [MQTT-3.3.2-5]."""
        self._give_up(self.session.give_up_expired(now), now)

    # --- what the program wants -------------------------------------------------------------------

    def publish_now(self, message: Message, now: float) -> None:
        """Send a QoS 0 message. Raises Violation if the server does not take it."""
        self._send(message.publish(0, now, self.version, dup=False), now)

    def publish(self, message: Message, now: float) -> int:
        """Send a QoS 1 or 2 message, or queue it. Returns its number, for its outcome."""
        number = self.session.send(message, now)
        if self._store.is_durable:
            self._to_store.append(number)
        return number

    def subscribe(self, subscription: Subscription, properties: Properties) -> None:
        """Ask for messages, now or when there is a connection."""
        self.subscriptions.want(subscription, properties)

    def unsubscribe(self, topic_filter: str, properties: Properties = NO_PROPERTIES) -> None:
        """Ask for no more."""
        self.subscriptions.give_up(topic_filter, properties)

    def acknowledge(self, incoming: Incoming) -> None:
        """The program has done with a message what it had to do."""
        if incoming.qos == 0:
            return
        self._inbox.release(incoming, self._commit)
        if self.touched is not None:
            self.touched()

    def authenticate(self, reason: int, method: str, data: bytes | None, now: float) -> None:
        """Send AUTH."""
        properties = Properties(authentication_method=method, authentication_data=data)
        self._send(Auth(reason, properties=properties), now)

    # --- what the server says ---------------------------------------------------------------------

    def receive(self, data: bytes, now: float) -> None:
        """Bytes have come."""
        self._alive.received(now)
        if self._exchange.phase == CONNECTING and self._is_refused_in_311(data):
            return
        decoder = self._decoder
        decoder.feed(data)
        while self.ending is None:
            item = decoder.next()
            if item is None:
                return
            if isinstance(item, Violation):
                self._refuse(item, now)
            else:
                self._observe(item, now)

    def _is_refused_in_311(self, data: bytes) -> bool:
        """[3.1.1 MQTT-3.1.2-2] A server that does not know 5.0 says so in its own words.

        They are no CONNACK of 5.0, whose Remaining Length is 3 at least.
        """
        if self.version != MQTT5 or data[:3] != _CONNACK_311 or len(data) != 4 or not data[3]:
            return False
        self._end(
            ConnectionEnd(
                "MQTT 5.0 (it speaks 3.1.1: use version=semel.MQTT311)",
                packet_type=CONNACK,
                reason=data[3],
                version=MQTT311,
            )
        )
        return True

    def _observe(self, packet: Packet, now: float) -> None:
        try:
            self._exchange.observe(SERVER, packet, 0)
        except Violation as violation:
            if violation.rule.closes:
                self._refuse(violation, now)
                return
            # The standard obliges us to carry on.
            self._exchange.observe(SERVER, packet, 0, [])
        self._take(packet, now)

    def _take(self, packet: Packet, now: float) -> None:
        if isinstance(packet, Publish):
            self._take_publish(packet, now)
        elif isinstance(packet, PubAck):
            delivery = self.session.receive_puback(packet)
            if delivery is not None:
                self._conclude(delivery, PUBACK, packet.reason, packet.properties)
        elif isinstance(packet, PubRec):
            delivery = self.session.receive_pubrec(packet)
            if delivery is not None:
                self._conclude(delivery, PUBREC, packet.reason, packet.properties)
            elif packet.reason != SUCCESS:
                # [3.5.2.1] 0x10, nobody has subscribed: PUBCOMP does not say it again
                self._reasons[packet.packet_id] = packet.reason
        elif isinstance(packet, PubRel):
            self.session.receive_pubrel(packet)
        elif isinstance(packet, PubComp):
            delivery = self.session.receive_pubcomp(packet)
            reason = self._reasons.pop(packet.packet_id, SUCCESS) if self._reasons else SUCCESS
            if delivery is not None:
                self._conclude(delivery, PUBCOMP, reason, packet.properties)
        elif isinstance(packet, SubAck):
            self._take_answer(packet.packet_id, packet.reasons[0], packet.properties)
        elif isinstance(packet, UnsubAck):
            reason = packet.reasons[0] if packet.reasons else SUCCESS
            self._take_answer(packet.packet_id, reason, packet.properties)
        elif isinstance(packet, ConnAck):
            self._take_connack(packet, now)
        elif isinstance(packet, Disconnect):
            self._end(
                ConnectionEnd(
                    "the server ended the connection",
                    packet_type=DISCONNECT,
                    reason=packet.reason,
                    properties=packet.properties,
                )
            )
        elif isinstance(packet, Auth):
            self.auths.append(packet)
        else:
            # PINGRESP: an Exchange lets nothing else pass.
            self._alive.answered()

    def _conclude(
        self, delivery: Delivery, packet_type: int, reason: int, properties: Properties
    ) -> None:
        self.outcomes.append(PublishOutcome(delivery.number, packet_type, reason, properties))

    def _take_connack(self, packet: ConnAck, now: float) -> None:
        properties = packet.properties
        self.is_unanswered = False
        if packet.reason != SUCCESS:
            self._end(
                ConnectionEnd(
                    "the server refused the connection",
                    packet_type=CONNACK,
                    reason=packet.reason,
                    properties=properties,
                )
            )
            return
        # A 3.1.1 server that was just told to forget the session has none, whatever it says.
        session_present = packet.session_present and not self.is_purged
        self.is_purged = False
        if session_present and not self.has_state:
            if self.version == MQTT5:
                self.disconnect(SUCCESS, None, now)
            self._end(
                ConnectionEnd(
                    "the server has a session of this client, of which the client has no state:"
                    " it must not go on with it"
                    + (" [MQTT-3.2.2-4]" if self.version == MQTT5 else ""),
                    is_final=True,
                )
            )
            return
        if not session_present:
            self._start_over()
        self.has_state = True
        self._had_session = True
        self.subscriptions.connected(session_present)
        if properties.assigned_client_identifier is not None:
            self.client_id = properties.assigned_client_identifier
        # [MQTT-3.2.2-21]
        if properties.server_keep_alive is not None:
            self._alive.interval = properties.server_keep_alive
        server = self._exchange.server
        self.session.connect(
            self.version,
            receive_maximum=server.receive_maximum,
            maximum_packet_size=server.maximum_packet_size,
        )
        if self._store.is_durable:
            expiry = properties.session_expiry_interval
            if expiry is None:
                expiry = self._greeting.session_expiry
            self._commit.sessions.append((self._number, self.client_id, expiry))
        self._pending_greeting = packet

    def _start_over(self) -> None:
        """[MQTT-3.2.2-5] The server has no session: the state of ours is discarded.

        The messages that the program wanted to be sent, and those that it has not acknowledged,
        are the program's, and stay.
        """
        complete, again = self.session.reset()
        for delivery in complete:
            self._conclude(delivery, PUBREC, SUCCESS, NO_PROPERTIES)
        self._reasons = {}
        self._inbox.start_over(self._commit)
        stream = self._stream
        # A server that keeps no session at all leaves a stored client without state, too.
        had = self.has_state or (stream is not None and stream.last_seq > 0)
        if not had or (self._clean_start and not self._had_session):
            return
        self.resent += len(again)
        self._note_loss()

    def _note_loss(self) -> None:
        """The server did not have the session: messages may be missing from here on."""
        self.sessions_lost += 1
        stream = self._stream
        if stream is not None:
            fact = f"break:{stream.id}:{stream.last_seq + 1}"
            self._commit.metadata.append((fact, "the server had no session"))

    def _forget_received(self, packet_id: int) -> None:
        """[MQTT-3.3.1-1] What is sent again has DUP 1. A message with DUP 0, under an identifier
        that was open, shows that the CONNACK that nobody saw told of a new session."""
        if self.session.forget_received(packet_id):
            self._inbox.forget(packet_id, self._commit)
            if not self._is_loss_noted:
                self._is_loss_noted = True
                self._note_loss()

    def _take_answer(self, packet_id: int, reason: int, properties: Properties) -> None:
        self.session.release_id(packet_id)
        topic_filter, requested = self.subscriptions.answered(packet_id, reason < FAILURE)
        self.answers.append(
            SubscriptionAnswer(topic_filter, requested is not None, reason, properties)
        )

    def _take_publish(self, packet: Publish, now: float) -> None:
        topic = self._exchange.topic_name(SERVER, packet)
        if self._is_doubtful and packet.qos == 2 and not packet.dup:
            self._forget_received(packet.packet_id)
        receipt = self.session.receive_publish(packet)
        if receipt is None:
            # [MQTT-4.3.3-10] a QoS 2 message that is here already, and is answered again
            return
        if self._stream is not None:
            self._record(self._stream, topic, packet)
            self.session.accept(receipt)
            return
        incoming = self._inbox.take(packet, topic, receipt, self._commit)
        if incoming is not None:
            self._arrivals.append(incoming)

    def _record(self, stream: Stream, topic: str, packet: Publish) -> None:
        stream.last_seq += 1
        self.recorded += 1
        self._commit.records.append(
            RecordedMessage(
                stream.id,
                stream.last_seq,
                topic,
                packet.payload,
                qos=packet.qos,
                retain=packet.retain,
                dup=packet.dup,
                client_id=self.client_id,
                packet_id=packet.packet_id,
                version=self.version,
                properties=message_properties(packet.properties),
            )
        )

    def _refuse(self, violation: Violation, now: float) -> None:
        """[MQTT-4.13.1-1] The server broke a rule: say so, and end the connection."""
        if self._is_session_open and self.version == MQTT5 and not self._is_leaving:
            reason = violation.rule.reason
            if reason in DISCONNECT_ONLY_SERVER or reason not in REASONS_5[DISCONNECT]:
                reason = PROTOCOL_ERROR
            self._say_goodbye(Disconnect(reason), now)
        self._end(ConnectionEnd(f"the server broke a rule: {violation}", violation=violation))

    def _end(self, ending: ConnectionEnd) -> None:
        """What comes to be sent from now on waits for the next connection."""
        if self.ending is None:
            self.ending = ending
            if self.session.connected:
                self.session.disconnect(0.0, NEVER_EXPIRES)

    # --- what leaves ------------------------------------------------------------------------------

    def take_output(self) -> bytes:
        """The bytes that are to be written."""
        output = self._output
        if not output:
            return b""
        self._output = []
        return output[0] if len(output) == 1 else b"".join(output)

    def flush(self, now: float, wall: float) -> None:
        """The tick ends. What must last goes to the store; what need not wait leaves."""
        requests: list[Outgoing] = []
        if self.is_connected:
            self._poll(now)
            if self.subscriptions.due:
                with_identifiers = self._exchange.subscription_identifiers_available
                requests = self.subscriptions.requests(
                    self.session, self.version, with_identifiers=with_identifiers
                )
        changes, packets = self.session.drain()
        packets.extend(requests)
        # The store has every filter that a server may have: a SUBSCRIBE leaves after that is so.
        noted = self.subscriptions.take_noted()
        if not self._store.is_durable:
            self._release(packets, now)
            return
        commit = self._commit
        for change in changes:
            commit.changes.append((self._number, change))
        for topic_filter, requested in noted:
            identifier = 0 if requested is None else requested.identifier
            subscription = None if requested is None else requested.subscription
            commit.subscriptions.append((self._number, topic_filter, subscription, identifier))
        arrivals, stored = self._arrivals, self._to_store
        greeting = self._pending_greeting
        if commit.is_empty():
            if self._held:
                # In their order: behind what waits.
                last = self._held[-1]
                # Nobody connects while something waits, so that these are of one connection.
                assert not packets or last.connection == self._connection
                last.packets.extend(packets)
                last.arrivals.extend(arrivals)
                last.stored.extend(stored)
                self._arrivals = []
                self._to_store = []
            else:
                self._release(packets, now)
            return
        self._commits += 1
        commit.number = self._commits
        commit.at = wall
        self._commit = Commit()
        self._arrivals = []
        self._to_store = []
        self._pending_greeting = None
        self._held.append(Held(self._connection, packets, arrivals, stored, greeting))
        if self._store.write(commit):
            self.committed(1, now)

    def committed(self, count: int, now: float) -> None:
        """The store has so many more of the commits, in their order."""
        for _ in range(count):
            held = self._held.popleft()
            self.arrived.extend(held.arrivals)
            self.stored.extend(held.stored)
            if held.connection == self._connection:
                self._leave(held.packets, now)
                if held.greeting is not None:
                    self._greet(held.greeting)

    def _release(self, packets: list[Outgoing], now: float) -> None:
        """Nothing has to wait."""
        self._leave(packets, now)
        if self._arrivals:
            self.arrived.extend(self._arrivals)
            self._arrivals = []
        if self._to_store:
            self.stored.extend(self._to_store)
            self._to_store = []
        if self._pending_greeting is not None:
            self._greet(self._pending_greeting)
            self._pending_greeting = None

    def _greet(self, greeting: ConnAck) -> None:
        self._is_session_open = True
        self.greeting = greeting

    def _poll(self, now: float) -> None:
        """Send what may be sent, from the store's part of the queue too."""
        session = self.session
        self._give_up(session.poll(now), now)
        while session.backlog.missing():
            deliveries = self._store.queue(
                self._number, session.backlog.first_beyond, session.backlog.missing()
            )
            if not deliveries:
                return
            session.backlog.refill(deliveries)
            self._give_up(session.poll(now), now)

    def _give_up(self, deliveries: list[Delivery], now: float) -> None:
        """Publications that were not sent: expired, or too large for the server."""
        for delivery in deliveries:
            message = delivery.message
            assert message is not None
            if message.is_expired(now):
                self.outcomes.append(PublishOutcome(delivery.number, expired=True))
                continue
            size = len(encode(message.publish(1, now, self.version, dup=False), self.version))
            try:
                check_packet_size(size, self.session.maximum_packet_size, None)
            except Violation as violation:
                self.outcomes.append(PublishOutcome(delivery.number, violation=violation))

    def _leave(self, packets: list[Outgoing], now: float) -> None:
        for packet in packets:
            if self._is_leaving or self.ending is not None:
                # It is as if the network had lost it.
                return
            assert not isinstance(packet, bytes)
            try:
                self._send(packet, now)
            except Violation as violation:
                self._cannot_send(packet, violation)
            if isinstance(packet, PubAck):
                self._inbox.puback_sent(packet.packet_id)

    def _cannot_send(self, packet: Packet, violation: Violation) -> None:
        """The server's CONNACK forbids it: the program wants too much, or all do."""
        if isinstance(packet, Publish):
            number = self.session.give_up(packet.packet_id)
            self.outcomes.append(PublishOutcome(number, violation=violation))
        elif isinstance(packet, Subscribe | Unsubscribe):
            self.session.release_id(packet.packet_id)
            topic_filter, requested = self.subscriptions.answered(packet.packet_id, False)
            self.answers.append(
                SubscriptionAnswer(
                    topic_filter, requested is not None, FAILURE, NO_PROPERTIES, violation
                )
            )
        else:
            # Nothing else that we make may be forbidden, but for its size.
            self._end(
                ConnectionEnd(f"the server takes no packets that it must be sent: {violation}")
            )

    def _send(self, packet: Packet, now: float) -> None:
        """Let a packet leave. Raises Violation, and sends nothing, if it may not."""
        data = encode(packet, self.version)
        self._exchange.observe(CLIENT, packet, len(data))
        self._output.append(data)
        self._alive.sent(now)

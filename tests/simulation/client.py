"""A simple MQTT client that records what it sent and received, and when.

It shares only the codec with the broker, no state machine. It follows the standard: it keeps its
session, resends unacknowledged messages with DUP when it reconnects (4.4), delivers a QoS 2 message
once (4.3.3, method B), and acknowledges everything. It raises `Broken` at once for violations that
a single client can detect; the final checks find the rest.
"""

from dataclasses import dataclass

from semel.mqtt import (
    MQTT5,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Violation,
    Will,
    encode,
)
from tests.simulation.clock import Broken, Clock
from tests.simulation.network import Link
from tests.simulation.schedule import VISITOR, Part

FAILURE = 0x80
# How many messages a client sends before CONNACK, if it does not wait for it.
EAGER_QUOTA = 2


@dataclass
class Sent:
    """A message that this client publishes, and its state."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    # The Message Expiry Interval.
    expiry: int | None
    packet_id: int = 0
    # PUBREC has arrived.
    released: bool = False
    # The link of its last transmission; when it was first sent, and acknowledged.
    on: Link | None = None
    sent_at: int = 0
    acked_at: int = 0
    # The broker refused it; the client discarded its session before the acknowledgement.
    refused: bool = False
    abandoned: bool = False


@dataclass
class Got:
    """A message that was delivered to this client's program."""

    topic: str
    payload: bytes
    qos: int
    dup: bool
    retain: bool
    life: int
    moment: int


@dataclass
class AcknowledgedSubscription:
    """A subscription, from its SUBACK until it ends."""

    topic_filter: str
    qos: int
    life: int
    since: int
    until: int = 0


class Client:
    """One client, over all its connections."""

    def __init__(self, part: Part, clock: Clock) -> None:
        self.part = part
        self.clock = clock
        self.link: Link | None = None
        self.decoder = Decoder(part.version)
        # Whether its CONNACK has arrived.
        self.is_in = False
        # It has discarded its session, but the broker has not confirmed that yet.
        self._starts_clean = False
        # Its session ends with this connection.
        self._ends_with_connection = False
        # The ledger's number of its session; its own count of sessions.
        self.epoch = 0
        self.life = 0
        self.published: list[Sent] = []
        self.got: list[Got] = []
        self.held: list[AcknowledgedSubscription] = []
        self.wills: list[bytes] = []
        # Messages that are not sent yet; in flight by Packet Identifier, in sending order.
        self._waiting: list[Sent] = []
        self.outbox: dict[int, Sent] = {}
        self._quota = 0
        self._last_id = 0
        # Unanswered SUBSCRIBE and UNSUBSCRIBE: identifier to filter and QoS.
        self._requests: dict[int, tuple[str, int | None]] = {}
        # Those of them whose subscription may have ended before its SUBACK arrives.
        self._revoked: set[int] = set()
        self.wanted: dict[str, int] = {}
        # QoS 2 messages that await PUBREL; identifiers that count against Receive Maximum.
        self.received: dict[int, bytes] = {}
        self._open: set[int] = set()
        # Acknowledgements that a lazy client has not sent yet.
        self.owed: list[Packet] = []

    @property
    def name(self) -> str:
        """The Client Identifier."""
        return self.part.name

    def is_done(self) -> bool:
        """Whether everything is sent and acknowledged."""
        return self.is_in and not (self.outbox or self._waiting or self._requests or self.owed)

    # --- actions ----------------------------------------------------------------------------------

    def connect(self, link: Link, *, user: str, clean: bool, brief: bool = False) -> None:
        """Open a connection as this user, even if the previous one may still be open.

        `brief`: the session, which may exist already, ends with this connection (5.0).
        """
        part = self.part
        self.lost()
        self._ends_with_connection = brief
        self.link = link
        self.decoder = Decoder(part.version)
        clean = clean or self._starts_clean or part.role == VISITOR
        if clean:
            # [MQTT-3.1.2-4] both sides discard the session; CONNACK confirms it.
            self._forget()
            self._starts_clean = True
        properties = Properties()
        if part.version == MQTT5:
            properties = Properties(
                session_expiry_interval=None if brief else part.expiry or None,
                receive_maximum=part.receive_maximum,
            )
        packet = Connect(
            part.name,
            version=part.version,
            clean_start=clean,
            keep_alive=part.keep_alive,
            will=self._new_will(),
            user_name=user,
            properties=properties,
        )
        self._send(packet)
        if part.eager and not self.outbox:
            self._quota = EAGER_QUOTA
            self._pump()

    def _new_will(self) -> Will | None:
        delay = self.part.will_delay
        if delay is None:
            return None
        payload = b"will.%s.%d" % (self.name.encode(), len(self.wills))
        self.wills.append(payload)
        properties = Properties()
        if self.part.version == MQTT5 and delay:
            properties = Properties(will_delay_interval=delay)
        return Will(
            f"w/{self.name}",
            payload,
            qos=self.part.will_qos,
            retain=self.part.will_retain,
            properties=properties,
        )

    def publish(
        self, topic: str, payload: bytes, qos: int, *, retain: bool, expiry: int | None
    ) -> None:
        """Publish, now or as soon as there is a connection."""
        if self.part.version != MQTT5:
            expiry = None
        sent = Sent(topic, payload, qos, retain, expiry)
        if qos == 0:
            # QoS 0 is sent now or never.
            if self.is_in:
                sent.sent_at = self.clock.tick()
                self.published.append(sent)
                properties = Properties(message_expiry_interval=expiry)
                self._send(Publish(topic, payload, retain=retain, properties=properties))
            return
        self.published.append(sent)
        self._waiting.append(sent)
        if self.is_in:
            self._pump()

    def repeat(self, which: int) -> None:
        """Resend a PUBLISH on the same connection, which 3.1.1 permits."""
        if self.is_in and self.part.version != MQTT5 and not self.part.thrifty:
            unanswered = [sent for sent in self.outbox.values() if not sent.released]
            if unanswered:
                self._transmit(unanswered[which % len(unanswered)], dup=True)

    def subscribe(self, topic_filter: str, qos: int, *, retain_handling: int = 0) -> None:
        """Subscribe, unless a request for this filter is pending."""
        self.wanted[topic_filter] = qos
        if self.is_in and not self._is_asked(topic_filter):
            if self.part.version != MQTT5:
                retain_handling = 0
            packet_id = self._free_id()
            self._requests[packet_id] = (topic_filter, qos)
            subscription = Subscription(topic_filter, qos, retain_handling=retain_handling)
            self._send(Subscribe(packet_id, [subscription]))

    def unsubscribe(self, topic_filter: str) -> None:
        """Unsubscribe, unless a request for this filter is pending."""
        if self.is_in and not self._is_asked(topic_filter):
            self.wanted.pop(topic_filter, None)
            self.end_subscription(topic_filter)
            packet_id = self._free_id()
            self._requests[packet_id] = (topic_filter, None)
            self._send(Unsubscribe(packet_id, [topic_filter]))

    def _is_asked(self, topic_filter: str) -> bool:
        return any(asked[0] == topic_filter for asked in self._requests.values())

    def disconnect(self, reason: int, expiry: int | None) -> None:
        """Send DISCONNECT: 0x00 discards the will, 0x04 does not."""
        if not self.is_in:
            return
        packet = Disconnect()
        if self._ends_with_connection:
            expiry = None
        if self.part.version == MQTT5:
            packet = Disconnect(reason, properties=Properties(session_expiry_interval=expiry))
        self._send(packet)
        self.lost()

    def ping(self) -> None:
        """Send PINGREQ."""
        if self.is_in:
            self._send(PingReq())

    def answer(self, count: int) -> None:
        """Send up to `count` of the acknowledgements that a lazy client has held back."""
        for packet in self.owed[:count]:
            self._send_answer(packet)
        del self.owed[:count]

    def lost(self) -> None:
        """The connection is over; unacknowledged messages are kept for the next one."""
        if self.link is not None:
            self.link.has_client = False
        self.link = None
        self.is_in = False
        self.owed = []
        self._open = set()
        # Their outcome is unknown.
        self._requests = {}
        self._revoked = set()

    # --- received packets -------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Handle bytes from the broker."""
        for packet in self.decoder.receive(data):
            if isinstance(packet, Violation):
                raise Broken(f"{self.name} received an invalid packet: {packet}")
            self._take(packet)
            if self.link is None:
                return

    def _take(self, packet: Packet) -> None:
        self.clock.tick()
        if isinstance(packet, ConnAck):
            self._connected(packet)
        elif not self.is_in:
            raise Broken(f"{self.name} was sent {packet} before its CONNACK")
        elif isinstance(packet, Publish):
            self._published(packet)
        elif isinstance(packet, PubAck):
            self._acknowledged(packet.packet_id, packet.reason, 1)
        elif isinstance(packet, PubRec):
            self._acknowledged(packet.packet_id, packet.reason, 2)
        elif isinstance(packet, PubRel):
            self.received.pop(packet.packet_id, None)
            self._owe(PubComp(packet.packet_id))
        elif isinstance(packet, PubComp):
            sent = self.outbox.get(packet.packet_id)
            if sent is not None and sent.released:
                del self.outbox[packet.packet_id]
                self._pump()
        elif isinstance(packet, SubAck):
            self._subscribed(packet)
        elif isinstance(packet, UnsubAck):
            self._requests.pop(packet.packet_id, None)
        elif isinstance(packet, Disconnect):
            self.lost()
        else:
            assert isinstance(packet, PingResp), packet

    def _connected(self, packet: ConnAck) -> None:
        if packet.reason:
            # The disk is full, or its user may not publish its will: try again later.
            self.lost()
            return
        assert self.link is not None
        self.is_in = True
        self._starts_clean = False
        self._quota = packet.properties.receive_maximum or 65_535
        if self.part.version != MQTT5:
            self._quota = 10
        epoch = self.link.epoch
        if not packet.session_present or epoch != self.epoch:
            # If the CONNACK that announced a new session was lost with another connection, a real
            # client cannot know of it, and DESIGN.md guarantees nothing. So tell this client.
            self._forget(
                [s for s in self.outbox.values() if s.on is not None and s.on.epoch == epoch]
            )
        self.epoch = epoch
        for sent in list(self.outbox.values()):
            if sent.on is not self.link:
                if sent.released:
                    sent.on = self.link
                    self._send(PubRel(sent.packet_id))
                else:
                    self._transmit(sent, dup=True)
        for topic_filter, qos in list(self.wanted.items()):
            if not any(
                held.topic_filter == topic_filter and held.life == self.life and not held.until
                for held in self.held
            ):
                self.subscribe(topic_filter, qos)
        self._pump()

    def _forget(self, kept: list[Sent] | None = None) -> None:
        """Start a new session: abandon in-flight messages, except `kept`."""
        self.life += 1
        for sent in self.outbox.values():
            if kept is None or sent not in kept:
                sent.abandoned = True
        self.outbox = {sent.packet_id: sent for sent in kept or ()}
        self.received = {}

    def _published(self, packet: Publish) -> None:
        packet_id = packet.packet_id
        if packet.qos:
            self._open.add(packet_id)
            if len(self._open) > self.part.receive_maximum:
                raise Broken(
                    f"{self.name} got more than its Receive Maximum {self.part.receive_maximum}"
                )
        if packet.qos == 2 and packet_id in self.received:
            if self.received[packet_id] != packet.payload:
                raise Broken(
                    f"{self.name} got another message under identifier {packet_id},"
                    " which is in use until PUBCOMP"
                )
            if not packet.dup:
                raise Broken(f"{self.name} got {packet_id} again, with DUP 0")
        else:
            if packet.qos == 2:
                self.received[packet_id] = packet.payload
            self.got.append(
                Got(
                    packet.topic_name,
                    packet.payload,
                    packet.qos,
                    packet.dup,
                    packet.retain,
                    self.life,
                    self.clock.moment,
                )
            )
        if packet.qos == 1:
            self._owe(PubAck(packet_id))
        elif packet.qos == 2:
            self._owe(PubRec(packet_id))

    def _acknowledged(self, packet_id: int, reason: int, qos: int) -> None:
        sent = self.outbox.get(packet_id)
        if sent is None or sent.qos != qos:
            # The acknowledgement of a resent message.
            return
        if reason >= FAILURE and not sent.released:
            sent.refused = True
            del self.outbox[packet_id]
            self._pump()
            return
        if not sent.acked_at:
            sent.acked_at = self.clock.moment
        if qos == 1:
            del self.outbox[packet_id]
            self._pump()
            return
        sent.released = True
        self._send(PubRel(packet_id))

    def _subscribed(self, packet: SubAck) -> None:
        topic_filter, qos = self._requests.pop(packet.packet_id)
        if packet.reasons[0] >= FAILURE:
            # Its user may not subscribe to this: it tries again when it reconnects.
            return
        if packet.reasons != (qos,):
            raise Broken(f"{self.name} requested {topic_filter} at {qos}, got {packet.reasons}")
        assert qos is not None
        self.end_subscription(topic_filter)
        if packet.packet_id in self._revoked:
            self._revoked.remove(packet.packet_id)
            return
        self.held.append(AcknowledgedSubscription(topic_filter, qos, self.life, self.clock.moment))

    def revoke_subscription(self, topic_filter: str) -> None:
        """The broker has ended a subscription, because the client has lost the right to it."""
        self.end_subscription(topic_filter)
        for packet_id, asked in self._requests.items():
            if asked[0] == topic_filter:
                self._revoked.add(packet_id)

    def end_subscription(self, topic_filter: str) -> None:
        """A subscription ends."""
        for held in self.held:
            if held.topic_filter == topic_filter and not held.until:
                held.until = self.clock.tick()

    # --- packets ----------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send waiting messages within the broker's Receive Maximum."""
        while self._waiting and len(self.outbox) < self._quota:
            sent = self._waiting.pop(0)
            sent.packet_id = self._free_id()
            sent.sent_at = self.clock.tick()
            self.outbox[sent.packet_id] = sent
            self._transmit(sent, dup=False)

    def _transmit(self, sent: Sent, *, dup: bool) -> None:
        assert self.link is not None
        sent.on = self.link
        packet = Publish(
            sent.topic,
            sent.payload,
            sent.qos,
            sent.packet_id,
            retain=sent.retain,
            dup=dup,
            properties=Properties(message_expiry_interval=sent.expiry),
        )
        self._send(packet)

    def _free_id(self) -> int:
        packet_id = 0 if self.part.thrifty else self._last_id
        while True:
            packet_id += 1
            if packet_id not in self.outbox and packet_id not in self._requests:
                self._last_id = packet_id
                return packet_id

    def _owe(self, packet: Packet) -> None:
        if self.part.lazy:
            self.owed.append(packet)
        else:
            self._send_answer(packet)

    def _send_answer(self, packet: Packet) -> None:
        if isinstance(packet, PubAck | PubComp):
            self._open.discard(packet.packet_id)
        self._send(packet)

    def _send(self, packet: Packet) -> None:
        assert self.link is not None
        self.link.send_up(encode(packet, self.part.version))

"""A plain MQTT client that keeps an account of its own: what it sent, what it got, and when.

It shares no state machine with the broker, only the bytes of packets. It is never wrong: it keeps
its session as the standard wants, repeats with DUP what was not acknowledged when it comes back
(4.4), takes a QoS 2 message once (4.3.3, method B), and answers everything. What the broker does
wrong towards it is `Broken` at once, if one client can see that; the rest is for the account.
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
# What a client that does not wait for CONNACK dares to send.
EAGER_QUOTA = 2


@dataclass
class Sent:
    """A message that this client publishes, and what it knows of it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    # Seconds after which nobody need get it any more.
    expiry: int | None
    packet_id: int = 0
    # PUBREC has come.
    released: bool = False
    # The link that it was sent on last; the moments of its first sending, of its acknowledgement.
    on: Link | None = None
    sent_at: int = 0
    acked_at: int = 0
    # The broker said no; the client gave up its session before it knew.
    refused: bool = False
    abandoned: bool = False


@dataclass
class Got:
    """A message that was handed to this client's program."""

    topic: str
    payload: bytes
    qos: int
    dup: bool
    retain: bool
    life: int
    moment: int


@dataclass
class Held:
    """A subscription that was acknowledged: from which moment, and until which."""

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
        # Whether its CONNACK has come.
        self.is_in = False
        # It has forgotten its session, and nobody has told it yet that the broker has, too.
        self._begins_anew = False
        # Its session ends with this connection.
        self._is_brief = False
        # Counts its sessions, as far as it can tell; what the ledger calls the one it has.
        self.epoch = 0
        self.life = 0
        self.published: list[Sent] = []
        self.got: list[Got] = []
        self.held: list[Held] = []
        self.wills: list[bytes] = []
        # On its way out: not sent yet; by Packet Identifier, in the order of the first time.
        self._waiting: list[Sent] = []
        self.outbox: dict[int, Sent] = {}
        self._quota = 0
        self._last_id = 0
        # SUBSCRIBE and UNSUBSCRIBE that were not answered: identifier to filter, QoS.
        self._requests: dict[int, tuple[str, int | None]] = {}
        self.wanted: dict[str, int] = {}
        # QoS 2 messages that wait for PUBREL; all that count against Receive Maximum.
        self.received: dict[int, bytes] = {}
        self._open: set[int] = set()
        # What a lazy client has not said yet.
        self.owed: list[Packet] = []

    @property
    def name(self) -> str:
        """The Client Identifier."""
        return self.part.name

    def is_done(self) -> bool:
        """Whether all that it wanted to say is said, and answered."""
        return self.is_in and not (self.outbox or self._waiting or self._requests or self.owed)

    # --- what it does -----------------------------------------------------------------------------

    def connect(self, link: Link, *, clean: bool, brief: bool = False) -> None:
        """Open a connection, whether or not it knows that the last one is gone.

        `brief`: its session, which may be an old one, is to end with this connection (5.0).
        """
        part = self.part
        self.lost()
        self._is_brief = brief
        self.link = link
        self.decoder = Decoder(part.version)
        clean = clean or self._begins_anew or part.role == VISITOR
        if clean:
            # [MQTT-3.1.2-4] both ends forget; until the other says so it may not have.
            self._forget()
            self._begins_anew = True
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
        """Say something, now or when there is a connection."""
        if self.part.version != MQTT5:
            expiry = None
        sent = Sent(topic, payload, qos, retain, expiry)
        if qos == 0:
            # It leaves now or never.
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
        """Send a PUBLISH again on the same connection, which 3.1.1 lets a client do."""
        if self.is_in and self.part.version != MQTT5 and not self.part.thrifty:
            unanswered = [sent for sent in self.outbox.values() if not sent.released]
            if unanswered:
                self._transmit(unanswered[which % len(unanswered)], dup=True)

    def subscribe(self, topic_filter: str, qos: int, *, retain_handling: int = 0) -> None:
        """Ask for messages; nothing is asked twice at a time."""
        self.wanted[topic_filter] = qos
        if self.is_in and not self._is_asked(topic_filter):
            if self.part.version != MQTT5:
                retain_handling = 0
            packet_id = self._free_id()
            self._requests[packet_id] = (topic_filter, qos)
            subscription = Subscription(topic_filter, qos, retain_handling=retain_handling)
            self._send(Subscribe(packet_id, [subscription]))

    def unsubscribe(self, topic_filter: str) -> None:
        """Ask for no more."""
        if self.is_in and not self._is_asked(topic_filter):
            self.wanted.pop(topic_filter, None)
            self._end_held(topic_filter)
            packet_id = self._free_id()
            self._requests[packet_id] = (topic_filter, None)
            self._send(Unsubscribe(packet_id, [topic_filter]))

    def _is_asked(self, topic_filter: str) -> bool:
        return any(asked[0] == topic_filter for asked in self._requests.values())

    def disconnect(self, reason: int, expiry: int | None) -> None:
        """Leave in good order: 0x00 takes the will back, 0x04 does not."""
        if not self.is_in:
            return
        packet = Disconnect()
        if self._is_brief:
            expiry = None
        if self.part.version == MQTT5:
            packet = Disconnect(reason, properties=Properties(session_expiry_interval=expiry))
        self._send(packet)
        self.lost()

    def ping(self) -> None:
        """Ask for a sign of life."""
        if self.is_in:
            self._send(PingReq())

    def answer(self, count: int) -> None:
        """A lazy client says what it owes, or some of it."""
        for packet in self.owed[:count]:
            self._send_answer(packet)
        del self.owed[:count]

    def lost(self) -> None:
        """The connection is gone, or given up. What was not acknowledged is kept for the next."""
        if self.link is not None:
            self.link.has_client = False
        self.link = None
        self.is_in = False
        self.owed = []
        self._open = set()
        # Nobody knows what became of these.
        self._requests = {}

    # --- what it is told --------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes have come."""
        for packet in self.decoder.receive(data):
            if isinstance(packet, Violation):
                raise Broken(f"{self.name} cannot read what it was sent: {packet}")
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
            # The disk is full: another time.
            self.lost()
            return
        assert self.link is not None
        self.is_in = True
        self._begins_anew = False
        self._quota = packet.properties.receive_maximum or 65_535
        if self.part.version != MQTT5:
            self._quota = 10
        epoch = self.link.epoch
        if not packet.session_present or epoch != self.epoch:
            # If it was another connection's CONNACK, never seen, that told it of the new session,
            # it has no way to know: what it believed to be under way would begin anew. DESIGN.md
            # promises nothing to it then, so that it had better be told.
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
        """A new session: what was under way in the old one, but for these, is given up."""
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
                raise Broken(f"{self.name} takes {self.part.receive_maximum} at a time, got more")
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
            # The answer to one that was sent again.
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
        if packet.reasons != (qos,):
            raise Broken(f"{self.name} asked for {topic_filter} at {qos}, got {packet.reasons}")
        assert qos is not None
        self._end_held(topic_filter)
        self.held.append(Held(topic_filter, qos, self.life, self.clock.moment))

    def _end_held(self, topic_filter: str) -> None:
        for held in self.held:
            if held.topic_filter == topic_filter and not held.until:
                held.until = self.clock.tick()

    # --- packets ----------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what waits, as far as the broker takes it."""
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

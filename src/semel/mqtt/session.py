"""The state that outlives a connection: messages to send, and identifiers of messages received.

A `Session` is one end, of a client or of a server. It does no I/O and reads no clock. Its owner
passes in received packets and messages to send, and takes two lists from `drain`: the *changes*
that must survive a crash, and the *packets* that may be sent once the changes are committed. A
received message is not acknowledged until the owner accepts it.

As sender                               As receiver (Method B: the identifier is kept until PUBREL)
    send ─▶ backlog ─poll─▶ PUBLISH         PUBLISH ─▶ Receipt ─accept─▶ PUBACK
              │    ◀─quota─┐                                          ─▶ PUBREC, identifier stored
              ▼            │                PUBLISH again, before PUBREL ─▶ PUBREC, no Receipt
           in flight ── PUBACK, PUBCOMP     PUBREL ─▶ identifier freed, PUBCOMP
              │
              └─ PUBREC ─▶ PUBREL

Only this module decides DUP: 0 when a PUBLISH is sent for the first time, 1 when it is sent again
on a new connection [MQTT-3.3.1-1]. PUBACKs, PUBRECs and PUBRELs are sent in the order that
[MQTT-4.6.0-2] to [MQTT-4.6.0-4] require, whatever the order of the owner's `accept` calls.

Every durable change is a `Change`, and each kind has one function that makes it. The changes of a
session add up to its state, from which `session_restore` rebuilds it. A session that ends with its
connection (`durable` is False) behaves in the same way, but lists no changes.

`room` is the number of bytes of messages that may be sent until the owner sets it again. When it
is used up, QoS 0 messages are dropped and counted, and QoS 1 and 2 messages stay in the backlog.
They also stay there while messages in flight take `maximum_in_flight_bytes` or more, so that a peer
that never acknowledges cannot exhaust the memory.

For ordinary packets the caller need not create packet objects: `send_encoded`, `is_new`,
`acknowledge`, `receive_plain_ack` and `append` work with bytes, and make the same changes.

`session_drops` drops deliveries that are not to be sent any more.
"""

from collections import deque
from typing import Final, final

from mypy_extensions import mypyc_attr

from semel.mqtt.backlog import Backlog
from semel.mqtt.codec import LARGEST_PACKET, Packet, publish_fits
from semel.mqtt.delivery import (
    ASSIGNED,
    ENDS,
    FINISHED,
    FREED,
    QUEUED,
    RECALLED,
    RELEASED,
    STORED,
    Change,
    Delivery,
    Receipt,
    release_order,
)
from semel.mqtt.message import Message
from semel.mqtt.packet_ids import PacketIds, has_id, with_id, without_id
from semel.mqtt.packet_types import MQTT5, PUBACK, PUBCOMP, PUBREC, PUBREL
from semel.mqtt.packets.acks import Ack, PubAck, PubComp, PubRec, PubRel, encode_success
from semel.mqtt.packets.publish import Publish, with_packet_id
from semel.mqtt.properties import NO_PROPERTIES, Properties
from semel.mqtt.reasons import FAILURE, PACKET_IDENTIFIER_NOT_FOUND, SUCCESS
from semel.mqtt.side import DEFAULT_RECEIVE_MAXIMUM
from semel.mqtt.wire import MAXIMUM_TWO_BYTES

# [3.1.2.11.2] The Session Expiry Interval of a session that does not expire.
NEVER_EXPIRES: Final = 0xFFFF_FFFF

# No limit: more bytes or messages than a session can ever have.
BOUNDLESS: Final = 1 << 60

# Something to send: a packet, or the bytes of one or more packets.
Outgoing = Packet | bytes


@final
@mypyc_attr(acyclic=True)
class Session:
    """One end of an MQTT session.

    A broker has one for each client, most of which are idle: so whatever takes memory is None
    until it is needed.
    """

    connected: bool
    durable: bool
    version: int
    ends_at: float | None
    # Bytes that may still be sent; QoS 0 messages dropped for lack of room, or as too large.
    room: int
    dropped: int
    too_large: int
    maximum_packet_size: int
    # Memory of the messages in flight; no further message is sent while it has reached the maximum.
    in_flight_bytes: int
    maximum_in_flight_bytes: int
    # How many deliveries may be in flight, including those that await PUBCOMP.
    maximum_in_flight: int
    # The unused part of the limit of the last `poll`; 0: there may be more to send.
    poll_left: int
    # Deliveries that have no packet identifier yet.
    backlog: Final[Backlog]
    _changes: list[Change] | None
    _packets: list[Outgoing] | None
    # As sender: the last delivery number, packet identifier and position of a PUBREC assigned.
    last_number: int
    last_id: int
    last_release: int
    _quota: int
    # Deliveries in flight, by packet identifier.
    flights: dict[int, Delivery] | None
    _resend: deque[Delivery] | None
    # Identifiers of open SUBSCRIBE and UNSUBSCRIBE requests.
    _requests: PacketIds | None
    # As receiver: QoS 2 identifiers from `accept` to PUBREL; QoS 2 messages not accepted yet; and
    # messages whose PUBACK or PUBREC has not been sent, in the order received.
    stored_ids: PacketIds | None
    pending: dict[int, Receipt] | None
    _pubacks: deque[Receipt] | None
    _pubrecs: deque[Receipt] | None

    def __init__(self) -> None:
        self.connected = False
        self.version = MQTT5
        self.durable = True
        self.ends_at = None
        self.room = BOUNDLESS
        self.dropped = self.too_large = 0
        self.maximum_packet_size = LARGEST_PACKET
        self.in_flight_bytes = 0
        self.maximum_in_flight_bytes = BOUNDLESS
        self.maximum_in_flight = MAXIMUM_TWO_BYTES
        self.poll_left = 0
        self._changes = None
        self._packets = None
        self.last_number = 0
        self.last_id = 0
        self.last_release = 0
        self._quota = 0
        self.backlog = Backlog()
        self.flights = None
        self._resend = None
        self._requests = None
        self.stored_ids = None
        self.pending = None
        self._pubacks = None
        self._pubrecs = None

    # --- for the owner ----------------------------------------------------------------------------

    def drain(self) -> tuple[list[Change], list[Outgoing]]:
        """Take the changes to commit, and the packets that may be sent after the commit."""
        changes, packets = self._changes, self._packets
        self._changes = None
        self._packets = None
        return [] if changes is None else changes, [] if packets is None else packets

    @property
    def in_flight(self) -> int:
        """How many deliveries have a packet identifier and are not complete."""
        return 0 if self.flights is None else len(self.flights)

    def flight(self, packet_id: int) -> Delivery | None:
        """The delivery in flight with this identifier, if any."""
        return None if self.flights is None else self.flights.get(packet_id)

    def deliveries_in_flight(self) -> list[Delivery]:
        """All deliveries in flight, in the order in which they got their identifiers."""
        return [] if self.flights is None else list(self.flights.values())

    @property
    def inbound_size(self) -> int:
        """Memory of the stored inbound identifiers, at most 8,192 bytes."""
        return 0 if self.stored_ids is None else self.stored_ids.size

    def _send(self, packet: Outgoing) -> None:
        """Append to the packets that `drain` returns."""
        if self._packets is None:
            self._packets = []
        self._packets.append(packet)

    def record(self, change: Change) -> None:
        """Record a durable change, which `drain` returns."""
        if self._changes is None:
            self._changes = []
        self._changes.append(change)

    # --- connections ------------------------------------------------------------------------------

    def connect(
        self,
        version: int,
        *,
        receive_maximum: int = DEFAULT_RECEIVE_MAXIMUM,
        maximum_packet_size: int = LARGEST_PACKET,
    ) -> None:
        """Start or resume the session on a new connection; the limits are those of the peer.

        [MQTT-4.4.0-1] PUBRELs are sent again at once, in the order of their PUBRECs. `poll` sends
        PUBLISH packets again, in the order first sent and within the Receive Maximum. Raises
        ValueError if the session is connected.
        """
        if self.connected:
            raise ValueError("the session is connected: disconnect it first")
        self.connected = True
        self.version = version
        self._quota = receive_maximum
        self.maximum_packet_size = maximum_packet_size
        self.room = BOUNDLESS
        if self.ends_at is not None:
            self.end_at(None)
        if self.flights is None:
            return
        released: list[Delivery] = []
        resend: deque[Delivery] = deque()
        for delivery in self.deliveries_in_flight():
            delivery.counts = False
            if delivery.released:
                released.append(delivery)
            else:
                resend.append(delivery)
        released.sort(key=release_order)
        for delivery in released:
            self._send(PubRel(delivery.packet_id))
        self._resend = resend if resend else None

    def disconnect(self, now: float, expiry_interval: int) -> None:
        """The connection has ended; the session ends `expiry_interval` seconds later [4.1].

        Packets that were not drained are discarded, as if the network had lost them. The peer
        resends a QoS 1 message that the owner has not accepted, so that accepting its Receipt has
        no effect from now on. The Receipt of a QoS 2 message stays valid.
        """
        self.connected = False
        self._packets = None
        self._resend = None
        self._pubacks = None
        self._pubrecs = None
        self._requests = None
        if expiry_interval != NEVER_EXPIRES:
            self.end_at(now + expiry_interval)

    def is_over(self, now: float) -> bool:
        """Whether the session has expired, so that its owner must discard it [MQTT-4.1.0-2]."""
        return not self.connected and self.ends_at is not None and now >= self.ends_at

    # --- as sender --------------------------------------------------------------------------------

    def reserve_id(self) -> int:
        """Reserve an identifier for a SUBSCRIBE or UNSUBSCRIBE. Returns 0 if all are in use."""
        packet_id = self._free_id()
        if packet_id:
            self.last_id = packet_id
            self._requests = with_id(self._requests, packet_id)
        return packet_id

    def release_id(self, packet_id: int) -> None:
        """Free the identifier of an answered SUBSCRIBE or UNSUBSCRIBE."""
        self._requests = without_id(self._requests, packet_id)

    def send(self, message: Message, now: float, share: str = "") -> int:
        """Send a message, or queue it. Returns the number of its delivery, 0 at QoS 0.

        A QoS 0 message is dropped if there is no connection or no room.
        """
        if message.qos == 0:
            if self.connected and not message.is_expired(now):
                packet = message.publish(0, now, self.version, dup=False)
                if self.room <= 0:
                    self.dropped += 1
                elif publish_fits(packet, self.version, self.maximum_packet_size):
                    self.room -= message.size
                    self._send(packet)
                else:
                    self.too_large += 1
            return 0
        number = self.last_number + 1
        if self._may_send() and not message.is_expired(now):
            packet_id = self._free_id()
            if packet_id:
                packet = message.publish(packet_id, now, self.version, dup=False)
                if publish_fits(packet, self.version, self.maximum_packet_size):
                    self._assign_at_once(number, message, share, packet_id)
                    self._send(packet)
                    return number
        self._queue(number, message, share)
        return number

    def send_encoded(self, message: Message, head: bytes, tail: bytes) -> bool:
        """Send a QoS 1 or 2 message whose PUBLISH is `head`, its identifier, and `tail`.

        Returns False, and changes nothing, if it cannot be sent at once.
        """
        if not self._may_send() or len(head) + 2 + len(tail) > self.maximum_packet_size:
            return False
        packet_id = self._free_id()
        if not packet_id:
            return False
        self._assign_at_once(self.last_number + 1, message, "", packet_id)
        self._send(with_packet_id(head, packet_id, tail))
        return True

    def append(self, data: bytes, size: int) -> None:
        """Send encoded QoS 0 PUBLISH packets; `size` is the sum of their `Message.size`."""
        self.room -= size
        self._send(data)

    def _may_send(self) -> bool:
        """Whether the limits allow a new QoS 1 or 2 message, and no other is queued before it."""
        return (
            self.connected
            and self._quota > 0
            and self.room > 0
            and self.in_flight_bytes < self.maximum_in_flight_bytes
            and self.backlog.is_empty()
            and not self._resend
        )

    def can_send(self, qos: int) -> bool:
        """Whether a new message of this QoS would be sent at once, and in order."""
        if qos:
            return self._may_send() and self._free_id() > 0
        return self.connected and self.room > 0 and self.backlog.is_empty() and not self._resend

    def poll(self, now: float, limit: int = BOUNDLESS) -> list[Delivery]:
        """Send at most `limit` messages that may be sent now, and set `poll_left`.

        Returns the deliveries that were dropped because they are expired or too large.
        """
        given_up: list[Delivery] = []
        self.poll_left = limit
        if not self.connected:
            return given_up
        while self._resend and self._quota and self.room > 0 and self.poll_left:
            self.poll_left -= 1
            delivery = self._resend.popleft()
            # The peer may have acknowledged the PUBLISH of the earlier connection meanwhile.
            if self.flight(delivery.packet_id) is not delivery or delivery.released:
                continue
            # [MQTT-4.3.3-7] A message that has been sent does not expire.
            if not self._transmit(delivery, now, dup=True):
                given_up.append(delivery)
        while self.backlog.has_first() and self._quota and self.room > 0 and not self._resend:
            if self.in_flight_bytes >= self.maximum_in_flight_bytes or not self.poll_left:
                break
            self.poll_left -= 1
            delivery = self.backlog.first()
            message = delivery.message
            assert message is not None
            if message.is_expired(now):
                self.finish(delivery)
                given_up.append(delivery)
                continue
            packet_id = self._free_id()
            if not packet_id:
                break
            self._assign(self.backlog.take_first(), packet_id)
            if not self._transmit(delivery, now, dup=False):
                given_up.append(delivery)
        return given_up

    def _transmit(self, delivery: Delivery, now: float, *, dup: bool) -> bool:
        message = delivery.message
        assert message is not None
        packet = message.publish(delivery.packet_id, now, self.version, dup=dup)
        if not publish_fits(packet, self.version, self.maximum_packet_size):
            # [MQTT-3.1.2-25] the server acts as if the delivery were complete
            self.finish(delivery)
            return False
        self._quota -= 1
        delivery.counts = True
        self.room -= message.size
        self._send(packet)
        return True

    def _free_id(self) -> int:
        flights, requests = self.flights, self._requests
        requested = 0 if requests is None else len(requests)
        if self.in_flight + requested >= self.maximum_in_flight:
            return 0
        packet_id = self.last_id
        while True:
            packet_id = packet_id + 1 if packet_id < MAXIMUM_TWO_BYTES else 1
            if (flights is None or packet_id not in flights) and not has_id(requests, packet_id):
                return packet_id

    def give_up(self, packet_id: int) -> int:
        """Drop the delivery of a drained PUBLISH that cannot be sent. Returns its number."""
        delivery = self.flight(packet_id)
        assert delivery is not None
        self._complete(delivery)
        return delivery.number

    def withdraw(self, packet_id: int) -> None:
        """Drop the message of a delivery in flight, so that it is not sent again.

        The session must not be connected. The peer may have stored the identifier of a QoS 2
        message, and would ignore another message with it: so the exchange continues with PUBREL,
        which makes the peer forget it.
        """
        delivery = self.flight(packet_id)
        assert delivery is not None
        if delivery.qos == 2:
            self._release(delivery)
        else:
            self.finish(delivery)

    def _complete(self, delivery: Delivery) -> None:
        self.finish(delivery)
        # [MQTT-3.3.4-9] A PUBLISH of an earlier connection did not use this connection's quota.
        if delivery.counts:
            self._quota += 1

    def receive_puback(self, packet: PubAck) -> Delivery | None:
        """Return the completed delivery, or None; a failure also completes it [MQTT-4.4.0-2]."""
        delivery = self.flight(packet.packet_id)
        if delivery is None or delivery.qos != 1:
            return None
        self._complete(delivery)
        return delivery

    def receive_pubrec(self, packet: PubRec) -> Delivery | None:
        """Return the delivery that the peer refused, None if the exchange continues."""
        delivery = self.flight(packet.packet_id)
        if delivery is None or delivery.qos != 2:
            self._send(PubRel(packet.packet_id, self._not_found()))
            return None
        if not delivery.released:
            if packet.reason >= FAILURE:
                self._complete(delivery)
                return delivery
            self._release(delivery)
        self._send(PubRel(packet.packet_id))
        return None

    def receive_pubcomp(self, packet: PubComp) -> Delivery | None:
        """Return the completed delivery, or None."""
        delivery = self.flight(packet.packet_id)
        if delivery is None or not delivery.released:
            return None
        self._complete(delivery)
        return delivery

    def receive_ack(self, packet: Ack) -> None:
        """Receive any acknowledgement, for an owner that does not need the delivery."""
        if isinstance(packet, PubAck):
            self.receive_puback(packet)
        elif isinstance(packet, PubRec):
            self.receive_pubrec(packet)
        elif isinstance(packet, PubRel):
            self.receive_pubrel(packet)
        else:
            self.receive_pubcomp(packet)

    def _not_found(self) -> int:
        return PACKET_IDENTIFIER_NOT_FOUND if self.version == MQTT5 else SUCCESS

    # --- as receiver ------------------------------------------------------------------------------

    def receive_publish(self, packet: Publish) -> Receipt | None:
        """Return a Receipt for a new message, None for a repeated QoS 2 message.

        A message with an unknown identifier is new even if DUP is set.
        """
        if packet.qos == 0:
            receipt = Receipt(0, 0)
            receipt.is_accepted = True
            return receipt
        if packet.qos == 1:
            receipt = Receipt(packet.packet_id, 1)
            if self._pubacks is None:
                self._pubacks = deque()
            self._pubacks.append(receipt)
            return receipt
        known = self._unaccepted(packet.packet_id)
        receipt = Receipt(packet.packet_id, 2) if known is None else known
        if self._pubrecs is None:
            self._pubrecs = deque()
        self._pubrecs.append(receipt)
        if known is not None:
            return None
        if has_id(self.stored_ids, packet.packet_id):
            # [MQTT-4.3.3-10] send PUBREC again, and do not deliver the message again
            receipt.is_accepted = True
            self._send_pubrecs()
            return None
        self.add_pending(receipt)
        return receipt

    def add_pending(self, receipt: Receipt) -> None:
        """Wait until the owner accepts a QoS 2 message."""
        if self.pending is None:
            self.pending = {}
        self.pending[receipt.packet_id] = receipt

    def _unaccepted(self, packet_id: int) -> Receipt | None:
        """The Receipt of a QoS 2 message that the owner has not accepted yet, if any."""
        return None if self.pending is None else self.pending.get(packet_id)

    def forget_received(self, packet_id: int) -> bool:
        """Discard a QoS 2 exchange that its sender no longer knows. Returns whether it was open."""
        if has_id(self.stored_ids, packet_id):
            self.free(packet_id)
            return True
        self._drop_pubrecs(packet_id)
        return self.pending is not None and self.pending.pop(packet_id, None) is not None

    def accept(
        self,
        receipt: Receipt,
        reason: int = SUCCESS,
        *,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """Accept responsibility for a message, or refuse it with a code from 0x80 on (5.0 only).

        In 3.1.1 an acknowledgement has no code and always means success [MQTT-3.3.5-2]. Accepting
        a Receipt that the session has discarded (a reset, `forget_received`) has no effect, because
        another message may have its identifier by now. Raises ValueError if it was accepted before.
        """
        if receipt.is_accepted:
            if receipt.qos:
                raise ValueError("this Receipt has already been accepted")
            return
        if self.version == MQTT5:
            receipt.reason = reason
            receipt.properties = properties
        receipt.is_accepted = True
        if receipt.qos == 1:
            self._send_pubacks()
            return
        if self.pending is None or self.pending.get(receipt.packet_id) is not receipt:
            return
        del self.pending[receipt.packet_id]
        if receipt.reason < FAILURE:
            self._store(receipt.packet_id)
        self._send_pubrecs()

    def _send_pubacks(self) -> None:
        while self._pubacks and self._pubacks[0].is_accepted:
            receipt = self._pubacks.popleft()
            ack = PubAck(receipt.packet_id, receipt.reason, properties=receipt.properties)
            self._send(ack)

    def _send_pubrecs(self) -> None:
        while self._pubrecs and self._pubrecs[0].is_accepted:
            receipt = self._pubrecs.popleft()
            ack = PubRec(receipt.packet_id, receipt.reason, properties=receipt.properties)
            self._send(ack)

    def receive_pubrel(self, packet: PubRel) -> None:
        """Free the identifier for a new message. Always sends PUBCOMP [MQTT-4.3.3-11]."""
        if has_id(self.stored_ids, packet.packet_id):
            self.free(packet.packet_id)
            self._send(PubComp(packet.packet_id))
        else:
            self._send(PubComp(packet.packet_id, self._not_found()))

    # --- ordinary packets, as bytes ---------------------------------------------------------------

    def is_new(self, qos: int, packet_id: int) -> bool:
        """Whether a PUBLISH is a new message that may be acknowledged at once."""
        if qos == 1:
            return not self._pubacks
        if self._pubrecs or has_id(self.stored_ids, packet_id):
            return False
        return self.pending is None or packet_id not in self.pending

    def acknowledge(self, qos: int, packet_id: int, reason: int) -> None:
        """Accept a message for which `is_new` returned True; `reason` is below 0x80."""
        if qos == 2:
            self._store(packet_id)
        if reason == SUCCESS or self.version != MQTT5:
            self._send(encode_success(PUBACK if qos == 1 else PUBREC, packet_id))
        elif qos == 1:
            self._send(PubAck(packet_id, reason))
        else:
            self._send(PubRec(packet_id, reason))

    def receive_plain_ack(self, packet_type: int, packet_id: int) -> bool:
        """Receive a PUBACK, PUBREC, PUBREL or PUBCOMP without a reason code.

        Returns False, and changes nothing, if no exchange awaits it.
        """
        if packet_type == PUBREL:
            if not has_id(self.stored_ids, packet_id):
                return False
            self.free(packet_id)
            self._send(encode_success(PUBCOMP, packet_id))
            return True
        delivery = self.flight(packet_id)
        if delivery is None:
            return False
        if packet_type == PUBREC:
            if delivery.qos != 2 or delivery.released:
                return False
            self._release(delivery)
            self._send(encode_success(PUBREL, packet_id))
            return True
        if (packet_type == PUBACK) != (delivery.qos == 1):
            return False
        if delivery.qos == 2 and not delivery.released:
            return False
        self._complete(delivery)
        return True

    # --- durable state ----------------------------------------------------------------------------

    def _queue(self, number: int, message: Message, share: str) -> None:
        """Add to the backlog, and record QUEUED."""
        self.last_number = number
        self.backlog.add(Delivery(number, message, share, message.qos))
        if self.durable:
            self.record(Change(QUEUED, number=number, message=message, share=share))

    def _assign_at_once(self, number: int, message: Message, share: str, packet_id: int) -> None:
        """Put a new message in flight without queueing it, and record QUEUED and ASSIGNED."""
        self.last_number = number
        if self.durable:
            self.record(Change(QUEUED, number=number, message=message, share=share))
        delivery = Delivery(number, message, share, message.qos)
        delivery.counts = True
        self._assign(delivery, packet_id)
        self._quota -= 1
        self.room -= message.size

    def _assign(self, delivery: Delivery, packet_id: int) -> None:
        """Put a delivery in flight under this identifier, and record ASSIGNED."""
        delivery.packet_id = packet_id
        self.put_in_flight(delivery)
        if self.durable:
            self.record(Change(ASSIGNED, number=delivery.number, packet_id=packet_id))

    def put_in_flight(self, delivery: Delivery) -> None:
        """Add a delivery that has its identifier to those in flight."""
        if self.flights is None:
            self.flights = {}
        self.flights[delivery.packet_id] = delivery
        self.in_flight_bytes += delivery.memory_size
        self.last_id = delivery.packet_id

    def recall(self, delivery: Delivery) -> None:
        """Return a delivery to the head of the backlog, and record RECALLED."""
        number, packet_id = delivery.number, delivery.packet_id
        assert self.flights is not None
        del self.flights[packet_id]
        self.in_flight_bytes -= delivery.memory_size
        delivery.packet_id = 0
        delivery.counts = False
        self.backlog.put_back(delivery)
        if self.durable:
            self.record(Change(RECALLED, number=number, packet_id=packet_id))

    def _release(self, delivery: Delivery) -> None:
        """Drop the message after its PUBREC, and record RELEASED."""
        self.last_release += 1
        delivery.released = self.last_release
        self.in_flight_bytes -= delivery.memory_size
        delivery.message = None
        if self.durable:
            number, packet_id = delivery.number, delivery.packet_id
            self.record(Change(RELEASED, number=number, packet_id=packet_id))

    def finish(self, delivery: Delivery) -> None:
        """Remove a delivery that is complete or dropped, and record FINISHED."""
        if delivery.packet_id:
            assert self.flights is not None
            del self.flights[delivery.packet_id]
            self.in_flight_bytes -= delivery.memory_size
        else:
            self.backlog.take_first()
        if self.durable:
            number, packet_id = delivery.number, delivery.packet_id
            self.record(Change(FINISHED, number=number, packet_id=packet_id))

    def _store(self, packet_id: int) -> None:
        """Keep the identifier of a QoS 2 message, and record STORED."""
        self.stored_ids = with_id(self.stored_ids, packet_id)
        if self.durable:
            self.record(Change(STORED, packet_id=packet_id))

    def free(self, packet_id: int) -> None:
        """Free the identifier of a QoS 2 message, and record FREED."""
        self.stored_ids = without_id(self.stored_ids, packet_id)
        # After PUBREL, a repeated PUBLISH does not need a PUBREC.
        self._drop_pubrecs(packet_id)
        if self.durable:
            self.record(Change(FREED, packet_id=packet_id))

    def _drop_pubrecs(self, packet_id: int) -> None:
        if self._pubrecs:
            self._pubrecs = deque([r for r in self._pubrecs if r.packet_id != packet_id])

    def end_at(self, at: float | None) -> None:
        """Set when the session ends (None: not yet known, or never), and record ENDS."""
        self.ends_at = at
        if self.durable:
            self.record(Change(ENDS, at=at))

"""A publisher with its window, and a subscriber that acknowledges.

A run of packets of the same length is processed as a whole, without decoding each packet. Anything
else is decoded packet by packet.
"""

import time
from struct import Struct
from typing import Final

from semel.lab.load.delivery_tracker import DeliveryTracker, Latencies
from semel.lab.load.description import LEAST_PAYLOAD
from semel.lab.load.links import RECEIVE_SIZE, LinkError, LoadLink, reason_label, take_packet
from semel.lab.load.wire import (
    ACK_SIZE,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    STAMP,
    PacketLayout,
    PacketSource,
    encode_acks,
    encode_acks_of,
    plain_acks,
)
from semel.mqtt import (
    Packet,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    encode,
    reasons,
)

# For data that is only counted.
_BUFFER: Final = bytearray(RECEIVE_SIZE)


class Publisher:
    """A client that publishes within its window."""

    def __init__(self, link: LoadLink, source: PacketSource, *, qos: int, window: int) -> None:
        self.link = link
        self.qos = qos
        # The maximum distance from the oldest unacknowledged message to the next one, so that no
        # packet identifier is reused before it is free.
        self.window = window
        self.sent = 0
        # How many more messages it may send in total, and now; None: no limit.
        self.left: int | None = None
        self.allowed: int | None = None
        # Whether a PINGRESP has arrived.
        self.has_received = False
        # The times from sending a message at QoS 1 or 2 until it is complete; None: not measured.
        self.latencies: Latencies | None = None
        self._source = source
        # All messages before `_oldest` are acknowledged, and some later ones.
        self._oldest = 0
        self._acknowledged_early: set[int] = set()
        # When incomplete messages were sent, if latencies are measured.
        self._sent_at: dict[int, int] = {}

    @property
    def acknowledged(self) -> int:
        """The number of complete messages."""
        return self._oldest + len(self._acknowledged_early)

    def permitted(self, limit: int) -> int:
        """How many of `limit` messages it may send now."""
        if self.link.is_full:
            return 0
        if self.left is not None:
            limit = min(limit, self.left)
        if self.allowed is not None:
            limit = min(limit, self.allowed)
        if self.qos:
            limit = min(limit, self.window - (self.sent - self._oldest))
        return limit

    def send(self, limit: int) -> int:
        """Send at most `limit` messages, and return how many were sent."""
        limit = self.permitted(limit)
        if self.latencies is not None:
            now = time.monotonic_ns()
            self._sent_at |= dict.fromkeys(range(self.sent, self.sent + limit), now)
        sent = 0
        while sent < limit and not self.link.is_full:
            data, count = self._source.take(limit - sent)
            self.link.send(data)
            sent += count
        self.sent += sent
        if self.left is not None:
            self.left -= sent
        if self.allowed is not None:
            self.allowed -= sent
        return sent

    def receive(self) -> int:
        """Process acknowledgements, and return how many messages they complete."""
        before = self.acknowledged
        data = self.link.receive()
        at = 0
        while at < len(data):
            end = self._take_acks(data, at)
            if end == at:
                found = take_packet(data, at, self.link.version)
                if found is None:
                    break
                packet, end = found
                self._take_packet(packet)
            at = end
        self.link.keep(data[at:])
        return self.acknowledged - before

    def _take_acks(self, data: bytes, at: int) -> int:
        """Process the rest of `data` if it has only successful acknowledgements.

        Returns where they end, or `at`.
        """
        acks, end = plain_acks(data, at)
        count = len(acks) // ACK_SIZE
        first_bytes = acks[::ACK_SIZE]
        if self.qos == 1 and first_bytes.count(PUBACK) == count:
            self._complete(PUBACK, acks)
            return end
        received = first_bytes.count(PUBREC)
        if self.qos == 2 and received + first_bytes.count(PUBCOMP) == count:
            packets = [acks[each : each + ACK_SIZE] for each in range(0, len(acks), ACK_SIZE)]
            if received:
                released = bytearray().join(each for each in packets if each[0] == PUBREC)
                released[::ACK_SIZE] = bytes((PUBREL,)) * received
                self.link.send(released)
            self._complete(PUBCOMP, b"".join(each for each in packets if each[0] == PUBCOMP))
            return end
        return at

    def _complete(self, kind: int, acks: bytes) -> None:
        """Complete messages; usually the oldest ones, in order."""
        acks_in_order = encode_acks(kind, self._source.cycle)
        start = self._oldest % self._source.cycle * ACK_SIZE
        count = len(acks) // ACK_SIZE
        if (
            acks_in_order[start : start + len(acks)] == acks
            and not self._acknowledged_early
            and self._oldest + count <= self.sent
        ):
            if self.latencies is not None:
                for message in range(self._oldest, self._oldest + count):
                    self._add_latency(self.latencies, message)
            self._oldest += count
            return
        for at in range(2, len(acks), ACK_SIZE):
            self._complete_one(int.from_bytes(acks[at : at + 2], "big"))

    def _complete_one(self, packet_id: int) -> None:
        message = self._oldest + (packet_id - 1 - self._oldest) % self._source.cycle
        if message >= self.sent or message in self._acknowledged_early:
            raise LinkError(f"acknowledged packet identifier {packet_id}, which was not in use")
        if self.latencies is not None:
            self._add_latency(self.latencies, message)
        self._acknowledged_early.add(message)
        while self._oldest in self._acknowledged_early:
            self._acknowledged_early.discard(self._oldest)
            self._oldest += 1

    def _add_latency(self, latencies: Latencies, message: int) -> None:
        sent_at = self._sent_at.pop(message, None)
        # None: it was sent before latencies were measured.
        if sent_at is not None:
            latencies.add(time.monotonic_ns() - sent_at)

    def _take_packet(self, packet: Packet) -> None:
        if isinstance(packet, PingResp):
            self.has_received = True
        elif isinstance(packet, PubAck | PubRec) and packet.reason >= reasons.FAILURE:
            raise LinkError(f"refused a message: {reason_label(packet.reason)}")
        elif isinstance(packet, PubAck) and self.qos == 1:
            self._complete_one(packet.packet_id)
        elif isinstance(packet, PubRec) and self.qos == 2:
            self.link.send(encode(PubRel(packet.packet_id), self.link.version))
        elif isinstance(packet, PubComp) and self.qos == 2:
            self._complete_one(packet.packet_id)
        else:
            raise LinkError(f"sent {type(packet).__name__} to a publisher at QoS {self.qos}")


class Subscriber:
    """A client that receives. Without a tracker it only counts."""

    def __init__(
        self, link: LoadLink, layout: PacketLayout, tracker: DeliveryTracker | None = None
    ) -> None:
        self.link = link
        self.layout = layout
        self.tracker = tracker
        # Without duplicates; without a tracker, all messages.
        self.received = 0
        self.has_received = False
        self._bytes = 0
        behind = layout.size - layout.payload_at - STAMP.size
        self._stamps = Struct(f">{layout.payload_at}xQQ{max(0, behind)}x")

    @property
    def missing(self) -> int:
        """Skipped messages, if there is a tracker."""
        return 0 if self.tracker is None else self.tracker.missing

    def receive(self) -> int:
        """Process and acknowledge deliveries, and return how many new messages there are."""
        before = self.received
        if self.tracker is None and not self.layout.qos:
            self._bytes += self.link.receive_into(_BUFFER)
            self.received = self._bytes // self.layout.size
            return self.received - before
        data = self.link.receive()
        answer = bytearray()
        at = 0
        while at < len(data):
            end = self._take_publishes(data, at, answer)
            if end == at:
                end = self._take_releases(data, at, answer)
            if end == at:
                found = take_packet(data, at, self.link.version)
                if found is None:
                    break
                packet, end = found
                answer += self._take_packet(packet)
            at = end
        self.link.keep(data[at:])
        if answer:
            self.link.send(answer)
        return self.received - before

    def _take_publishes(self, data: bytes, at: int, answer: bytearray) -> int:
        """Process a run of PUBLISH packets with the expected header. Returns where it ends."""
        layout = self.layout
        count = (len(data) - at) // layout.size
        for offset, byte in enumerate(layout.head):
            column = data[at + offset : at + count * layout.size : layout.size]
            count = len(column) - len(column.lstrip(bytes((byte,))))
        if not count:
            return at
        end = at + count * layout.size
        run = data[at:end]
        if self.tracker is None:
            self.received += count
        else:
            self.received += self.tracker.record(self._stamps.iter_unpack(run))
        if layout.qos:
            answer += encode_acks_of(PUBACK if layout.qos == 1 else PUBREC, run, layout)
        return end

    def _take_releases(self, data: bytes, at: int, answer: bytearray) -> int:
        """Answer a run of PUBREL packets with PUBCOMP. Returns where it ends."""
        end = at + (len(data) - at) // ACK_SIZE * ACK_SIZE
        first_bytes, lengths = data[at:end:ACK_SIZE], data[at + 1 : end : ACK_SIZE]
        count = min(
            len(first_bytes) - len(first_bytes.lstrip(bytes((PUBREL,)))),
            len(lengths) - len(lengths.lstrip(b"\2")),
        )
        end = at + count * ACK_SIZE
        complete = bytearray(data[at:end])
        complete[::ACK_SIZE] = bytes((PUBCOMP,)) * count
        answer += complete
        return end

    def _take_packet(self, packet: Packet) -> bytes:
        """Process any other packet, and return its response."""
        version = self.link.version
        if isinstance(packet, PingResp):
            self.has_received = True
            return b""
        if isinstance(packet, PubRel) and self.layout.qos == 2:
            return encode(PubComp(packet.packet_id), version)
        if not isinstance(packet, Publish):
            raise LinkError(
                f"sent {type(packet).__name__} to a subscriber at QoS {self.layout.qos}"
            )
        if not packet.payload and packet.qos == 0:
            # A publisher deletes its retained messages at the end.
            return b""
        if packet.qos != self.layout.qos:
            raise LinkError(f"delivered a message at QoS {packet.qos}, not {self.layout.qos}")
        if len(packet.payload) < LEAST_PAYLOAD:
            raise LinkError("delivered a message that no publisher sent")
        if self.tracker is None:
            self.received += 1
        else:
            self.received += self.tracker.record([STAMP.unpack_from(packet.payload)])
        if packet.qos == 0:
            return b""
        answer = PubAck(packet.packet_id) if packet.qos == 1 else PubRec(packet.packet_id)
        return encode(answer, version)

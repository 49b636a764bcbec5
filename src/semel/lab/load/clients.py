"""A publisher with its window, and a subscriber that acknowledges.

What comes in the ordinary form, packets of one length that follow each other, is taken by the run;
anything else is decoded as one packet, and then runs are looked for again.
"""

from struct import Struct
from typing import Final

from semel.lab.load.account import DeliveryAccount
from semel.lab.load.description import LEAST_PAYLOAD
from semel.lab.load.links import RECEIVE_SIZE, LinkError, LoadLink, reason_label, take_packet
from semel.lab.load.wire import (
    ACK_SIZE,
    MARK,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
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

# Nobody looks into it.
_BUFFER: Final = bytearray(RECEIVE_SIZE)


class Publisher:
    """One client that sends, and what it may still send."""

    def __init__(self, link: LoadLink, source: PacketSource, *, qos: int, window: int) -> None:
        self.link = link
        self.qos = qos
        # Messages that it may have sent without an answer, from the oldest of them on; so no packet
        # identifier comes again before it is free.
        self.window = window
        self.sent = 0
        # How many more it may ever send, and at this moment.
        self.left: int | None = None
        self.allowed: int | None = None
        # Whether it heard a PINGRESP.
        self.has_received = False
        self._source = source
        # All messages before this one are answered, and some others.
        self._oldest = 0
        self._early: set[int] = set()

    @property
    def acknowledged(self) -> int:
        """Messages that are complete."""
        return self._oldest + len(self._early)

    def send(self, most: int) -> int:
        """Send no more than so many messages; how many they were."""
        if self.left is not None:
            most = min(most, self.left)
        if self.allowed is not None:
            most = min(most, self.allowed)
        if self.qos:
            most = min(most, self.window - (self.sent - self._oldest))
        sent = 0
        while sent < most and not self.link.is_full:
            data, count = self._source.take(most - sent)
            self.link.send(data)
            sent += count
        self.sent += sent
        if self.left is not None:
            self.left -= sent
        if self.allowed is not None:
            self.allowed -= sent
        return sent

    def receive(self) -> int:
        """Take the broker's answers, and answer them; how many messages they complete."""
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
        """Acknowledgements of success up to the end of `data`, if there is nothing else."""
        acks, end = plain_acks(data, at)
        count = len(acks) // ACK_SIZE
        firsts = acks[::ACK_SIZE]
        if self.qos == 1 and firsts.count(PUBACK) == count:
            self._complete(PUBACK, acks)
            return end
        received = firsts.count(PUBREC)
        if self.qos == 2 and received + firsts.count(PUBCOMP) == count:
            packets = [acks[each : each + ACK_SIZE] for each in range(0, len(acks), ACK_SIZE)]
            if received:
                released = bytearray().join(each for each in packets if each[0] == PUBREC)
                released[::ACK_SIZE] = bytes((PUBREL,)) * received
                self.link.send(released)
            self._complete(PUBCOMP, b"".join(each for each in packets if each[0] == PUBCOMP))
            return end
        return at

    def _complete(self, kind: int, acks: bytes) -> None:
        """Messages are complete; mostly those whose turn it is."""
        acks_in_order = encode_acks(kind, self._source.cycle)
        start = self._oldest % self._source.cycle * ACK_SIZE
        count = len(acks) // ACK_SIZE
        if (
            acks_in_order[start : start + len(acks)] == acks
            and not self._early
            and self._oldest + count <= self.sent
        ):
            self._oldest += count
            return
        for at in range(2, len(acks), ACK_SIZE):
            self._complete_one(int.from_bytes(acks[at : at + 2], "big"))

    def _complete_one(self, packet_id: int) -> None:
        message = self._oldest + (packet_id - 1 - self._oldest) % self._source.cycle
        if message >= self.sent or message in self._early:
            raise LinkError(f"acknowledged packet identifier {packet_id}, which was not in use")
        self._early.add(message)
        while self._oldest in self._early:
            self._early.discard(self._oldest)
            self._oldest += 1

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
    """One client that receives. Without an account it counts, and believes what it can."""

    def __init__(
        self, link: LoadLink, layout: PacketLayout, account: DeliveryAccount | None = None
    ) -> None:
        self.link = link
        self.layout = layout
        self.account = account
        # Messages, each once; without an account all that came.
        self.received = 0
        self.has_received = False
        self._bytes = 0
        behind = layout.size - layout.payload_at - MARK.size
        self._marks = Struct(f">{layout.payload_at}xQQ{max(0, behind)}x")

    @property
    def missing(self) -> int:
        """Messages that were passed over, if anybody looks."""
        return 0 if self.account is None else self.account.missing

    def receive(self) -> int:
        """Take what was delivered, and acknowledge it; how many new messages there were."""
        before = self.received
        if self.account is None and not self.layout.qos:
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
        """PUBLISH packets that follow each other, as far as they look alike."""
        layout = self.layout
        count = (len(data) - at) // layout.size
        for place, byte in enumerate(layout.head):
            column = data[at + place : at + count * layout.size : layout.size]
            count = len(column) - len(column.lstrip(bytes((byte,))))
        if not count:
            return at
        end = at + count * layout.size
        run = data[at:end]
        if self.account is None:
            self.received += count
        else:
            self.received += self.account.note(self._marks.iter_unpack(run))
        if layout.qos:
            answer += encode_acks_of(PUBACK if layout.qos == 1 else PUBREC, run, layout)
        return end

    def _take_releases(self, data: bytes, at: int, answer: bytearray) -> int:
        """PUBREL packets that follow each other: PUBCOMP for each."""
        end = at + (len(data) - at) // ACK_SIZE * ACK_SIZE
        firsts, lengths = data[at:end:ACK_SIZE], data[at + 1 : end : ACK_SIZE]
        count = min(
            len(firsts) - len(firsts.lstrip(bytes((PUBREL,)))),
            len(lengths) - len(lengths.lstrip(b"\2")),
        )
        end = at + count * ACK_SIZE
        complete = bytearray(data[at:end])
        complete[::ACK_SIZE] = bytes((PUBCOMP,)) * count
        answer += complete
        return end

    def _take_packet(self, packet: Packet) -> bytes:
        """Anything that looks otherwise; what answers it."""
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
            # A publisher deletes its retained messages when all is over.
            return b""
        if packet.qos != self.layout.qos:
            raise LinkError(f"delivered a message at QoS {packet.qos}, not {self.layout.qos}")
        if len(packet.payload) < LEAST_PAYLOAD:
            raise LinkError("delivered a message that nobody sent")
        if self.account is None:
            self.received += 1
        else:
            self.received += self.account.note([MARK.unpack_from(packet.payload)])
        if packet.qos == 0:
            return b""
        answer = PubAck(packet.packet_id) if packet.qos == 1 else PubRec(packet.packet_id)
        return encode(answer, version)

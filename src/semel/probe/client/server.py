"""The examiner's server: accepts the connections of a client program, and records all of it.

Everything that the client sends is checked, whichever case is being run: see `link_audit`.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from semel.mqtt import CLIENT, PACKET_NAMES
from semel.mqtt.codec import Packet
from semel.mqtt.packet_types import (
    DISCONNECT,
    PINGREQ,
    PUBLISH,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
)
from semel.mqtt.packets.connect import Connect
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import Subscribe, Subscription
from semel.mqtt.packets.unsubscribe import Unsubscribe
from semel.mqtt.trace import ConnectionTrace, ObservedPacket, SessionTraces
from semel.probe import wire
from semel.probe.client import server_wire
from semel.probe.link_audit import AuditFinding, LinkAudit
from semel.probe.link_inbox import LinkInbox
from semel.probe.recorder import CaseRecorder

# What an ordinary server answers.
ANSWERED: Final = frozenset((PINGREQ, SUBSCRIBE, UNSUBSCRIBE, PUBLISH, PUBREL))
# The QoS of PUBLISH packets that get no acknowledgement.
NO_QOS: Final[frozenset[int]] = frozenset()
QOS_1: Final = frozenset((1,))
QOS_2: Final = frozenset((2,))
QOS_1_AND_2: Final = frozenset((1, 2))
HOST: Final = "127.0.0.1"
# Turns of the event loop in which a connection that was just accepted is reported and closed.
TURNS: Final = 5


@dataclass(frozen=True)
class PacketArrival:
    """A packet of the client, and when it came, by the monotonic clock."""

    at: float
    observed: ObservedPacket


class SubjectLink(asyncio.Protocol):
    """A connection of the client."""

    def __init__(
        self,
        number: int,
        sessions: SessionTraces,
        recorder: CaseRecorder,
        accepted: "Callable[[SubjectLink], None]",
    ) -> None:
        self.arrivals: list[PacketArrival] = []
        self.connect: Connect | None = None
        self.subscriptions: list[Subscription] = []
        self.opened_at = 0.0
        # The packet types that are answered as soon as they come.
        self.answered: frozenset[int] = frozenset()
        self.withheld = NO_QOS
        self._trace = ConnectionTrace(number, sessions)
        self._audit = LinkAudit(self._trace, recorder, subject=CLIENT, version=wire.MQTT5)
        self._inbox = LinkInbox()
        self._accepted = accepted
        self._transport: asyncio.Transport | None = None

    @property
    def version(self) -> int:
        """What the client speaks; 5.0 until it is known."""
        return self._audit.version

    @property
    def is_closed(self) -> bool:
        return self._inbox.is_closed

    @property
    def findings(self) -> list[AuditFinding]:
        """Rules that the client broke on this connection."""
        return self._audit.findings

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.opened_at = time.monotonic()
        self._audit.record_opened("the client connected")
        self._accepted(self)

    def data_received(self, data: bytes) -> None:
        """Bytes of the client came."""
        for packet in self._audit.split(data):
            self._take(packet)
        self._inbox.notify()

    def eof_received(self) -> bool:
        """The client has closed its side; asyncio closes ours."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._audit.record_lost("closed" if exc is None else str(exc))
        self._inbox.close()

    # --- called by the trial ---

    def send(self, data: bytes, *, breaks_rule: bool = False, meaning: str = "") -> None:
        """Send bytes, which need not be whole packets or right ones.

        After bytes that break a rule the order of the client's packets is not checked any more.
        """
        assert self._transport is not None
        self._audit.record_sent(data, meaning, breaks_rule=breaks_rule)
        if not self.is_closed:
            self._transport.write(data)

    def answer_earlier(self) -> None:
        """Answer what came before our CONNACK: a client need not wait for it."""
        for each in list(self.arrivals):
            observed = each.observed
            if observed.packet_type in self.answered:
                self._answer(observed.packet_type, observed.packet, observed.data)

    def cut(self) -> None:
        """End the connection as a network failure does."""
        self._end(abort=True)

    def close(self) -> None:
        """Close the connection in order."""
        self._end(abort=False)

    def times_received(self, packet_type: int) -> int:
        """How many packets of a type have come so far."""
        return sum(each.observed.packet_type == packet_type for each in self.arrivals)

    @property
    def has_disconnected(self) -> bool:
        """Whether the client has sent DISCONNECT."""
        return self.times_received(DISCONNECT) > 0

    def published(self) -> list[Publish]:
        """The PUBLISH packets that have come so far."""
        found = [each.observed.packet for each in self.arrivals]
        return [packet for packet in found if isinstance(packet, Publish)]

    async def wait_for(self, packet_type: int, seconds: float) -> ObservedPacket | None:
        """Take the first packet of a type that no case has taken yet, leaving others there.

        None if none comes within `seconds`, or the connection ends before it comes.
        """
        return await self._inbox.wait_for(packet_type, seconds)

    async def wait_until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds, which packets of the client or its closing can change."""
        return await self._inbox.wait_until(holds, seconds)

    async def wait_closed(self, seconds: float) -> bool:
        """Whether the client closes the connection within `seconds`."""
        return await self._inbox.wait_closed(seconds)

    # --- inside ---

    def _end(self, *, abort: bool) -> None:
        if self._transport is None or self.is_closed:
            return
        self._audit.record_closed(abort=abort)
        if abort:
            self._transport.abort()
        else:
            self._transport.close()

    def _take(self, data: bytes) -> None:
        observed, violations = self._audit.check(data)
        for violation in violations:
            self._audit.report(violation, data)
        packet = observed.packet
        if isinstance(packet, Connect) and self.connect is None:
            self.connect = packet
            # A trace that was lost before does not read it.
            self._trace.version = self._trace.version or packet.version
        elif isinstance(packet, Subscribe):
            self.subscriptions += packet.subscriptions
        self._inbox.packets.append(observed)
        self.arrivals.append(PacketArrival(time.monotonic(), observed))
        if observed.packet_type in self.answered and not self._audit.is_ended:
            self._answer(observed.packet_type, packet, data)

    def _answer(self, packet_type: int, packet: Packet | None, data: bytes) -> None:
        """Answer as an ordinary server does, a malformed request too: the case goes on."""
        if packet is None and packet_type in (SUBSCRIBE, UNSUBSCRIBE):
            packet = self._read_with_flags(data)
        if packet_type == PINGREQ:
            self.send(server_wire.pingresp())
        elif packet_type == SUBSCRIBE:
            codes = [0]
            if isinstance(packet, Subscribe):
                codes = [each.qos for each in packet.subscriptions]
            self.send(server_wire.suback(self.version, first_number(data), codes))
        elif packet_type == UNSUBSCRIBE:
            number = len(packet.topic_filters) if isinstance(packet, Unsubscribe) else 1
            self.send(server_wire.unsuback(self.version, first_number(data), [0] * number))
        elif packet_type == PUBREL:
            self.send(wire.pubcomp(first_number(data)))
        elif isinstance(packet, Publish) and packet.qos and packet.qos not in self.withheld:
            answer = wire.puback if packet.qos == 1 else wire.pubrec
            self.send(answer(packet.packet_id))

    def _read_with_flags(self, data: bytes) -> Packet | None:
        """A request as it would be with the flags 0010; None if more is wrong with it."""
        return self._trace.read(bytes([data[0] & 0xF0 | 2]) + data[1:]).packet


class SubjectListener:
    """Listens on a port of its own; the connections of the client come in order."""

    def __init__(self, recorder: CaseRecorder) -> None:
        self.port = 0
        self.links: list[SubjectLink] = []
        self._recorder = recorder
        self._sessions = SessionTraces()
        self._server: asyncio.Server | None = None
        self._arrived = asyncio.Event()
        self._taken = 0
        self._made = 0
        self._is_stopped = False

    async def start(self) -> None:
        """Listen on a free port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make_link, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def next_link(self, seconds: float) -> SubjectLink | None:
        """The next connection that was not taken yet; None if none comes within `seconds`."""
        deadline = time.monotonic() + seconds
        while self._taken >= len(self.links):
            self._arrived.clear()
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        self._taken += 1
        return self.links[self._taken - 1]

    async def stop(self) -> None:
        """Close all connections and the port. One that comes nevertheless is cut at once."""
        self._is_stopped = True
        if self._server is not None:
            self._server.close()
        # The program may have connected once more before it ended: asyncio takes some turns to
        # report that, and to close it.
        for _ in range(TURNS):
            for link in self.links:
                link.cut()
            await asyncio.sleep(0)

    def _make_link(self) -> SubjectLink:
        self._made += 1
        return SubjectLink(self._made, self._sessions, self._recorder, self._add)

    def _add(self, link: SubjectLink) -> None:
        if self._is_stopped:
            # The program is still running: it may have been accepted by the system before.
            link.cut()
            return
        self.links.append(link)
        self._arrived.set()


def first_number(data: bytes) -> int:
    """The two bytes after the fixed header: the Packet Identifier of most packets."""
    start = 1
    while start < len(data) and data[start] & 0x80:
        start += 1
    return int.from_bytes(data[start + 1 : start + 3], "big")


def packet_list(link: SubjectLink) -> str:
    """What has come on a connection, for sentences: "CONNECT, SUBSCRIBE", or "nothing"."""
    names = [PACKET_NAMES[each.observed.packet_type] for each in link.arrivals]
    return ", ".join(names[:20]) or "nothing"

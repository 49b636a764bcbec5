"""One connection of the examiner to a broker: raw bytes out, packets in, all of it recorded.

Everything that the broker sends is checked, whichever case is being run: see `link_audit`.
"""

import asyncio

from semel.client.transport import Transport
from semel.mqtt import PACKET_NAMES, SERVER, Violation
from semel.mqtt.codec import Packet
from semel.mqtt.packet_types import SUBSCRIBE
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.packets.publish import Publish
from semel.mqtt.packets.subscribe import Subscribe
from semel.mqtt.rules import (
    FIELD_WITHIN_PACKET,
    PACKET_ID_NOT_ZERO,
    PROTOCOL_LEVEL_SUPPORTED,
    PROTOCOL_NAME_IS_MQTT,
    REASON_CODES_PRESENT,
    SUBSCRIBE_NOT_EMPTY,
    UNSUBSCRIBE_NOT_EMPTY,
)
from semel.mqtt.topics import is_shared, split_share, topic_matches
from semel.mqtt.trace import ConnectionTrace, ObservedPacket
from semel.probe.link_audit import AuditFinding, LinkAudit
from semel.probe.link_inbox import LinkInbox
from semel.probe.recorder import CaseRecorder

# The form of an answer to another protocol, or to a level that does not exist, is not defined.
OTHER_PROTOCOLS = (PROTOCOL_LEVEL_SUPPORTED, PROTOCOL_NAME_IS_MQTT)
# An answer that copies from a packet of ours what is wrong in it: the broker's fault is that it
# answers at all, which the case finds.
COPIED = {
    PACKET_ID_NOT_ZERO: (PACKET_ID_NOT_ZERO,),
    REASON_CODES_PRESENT: (SUBSCRIBE_NOT_EMPTY, UNSUBSCRIBE_NOT_EMPTY, FIELD_WITHIN_PACKET),
}


class ProbeLink:
    """A connection to the broker. `tag` is what every topic name of the case has in it."""

    def __init__(
        self, version: int, trace: ConnectionTrace, recorder: CaseRecorder, tag: str = ""
    ) -> None:
        self.number = trace.number
        # What the case speaks; the trace learns it from a CONNECT.
        self.version = version
        self.connack: ConnAck | None = None
        # What we broke ourselves, on purpose or because the broker allows less than others.
        self.own_violations: list[Violation] = []
        self.packet_types: set[int] = set()
        # Types of packets that came and could not be read.
        self.malformed_types: set[int] = set()
        self._tag = tag
        # The filters of our SUBSCRIBEs; None: one of them cannot be read.
        self._filters: list[str] | None = []
        self._trace = trace
        self._audit = LinkAudit(trace, recorder, subject=SERVER, version=version)
        self._inbox = LinkInbox()
        self._transport: Transport | None = None

    @property
    def inbox(self) -> list[ObservedPacket]:
        """What was received and not yet taken by a case, in order."""
        return self._inbox.packets

    @property
    def is_closed(self) -> bool:
        return self._inbox.is_closed

    @property
    def closed_at(self) -> float:
        """When the connection ended, by the monotonic clock."""
        return self._inbox.closed_at

    @property
    def findings(self) -> list[AuditFinding]:
        """Rules that the broker broke on this connection."""
        return self._audit.findings

    # --- called by the transport ---

    def received(self, data: bytes) -> None:
        for packet in self._audit.split(data):
            self._take(packet)
        self._inbox.notify()

    def writable(self, writable: bool) -> None:
        pass

    def lost(self, why: str | None) -> None:
        self._audit.record_lost(why or "closed")
        self._inbox.close()

    # --- called by the trial ---

    def attach(self, transport: Transport) -> None:
        """Use this transport, which is connected."""
        self._transport = transport
        self._audit.record_opened(f"connected to {transport.peer}")

    async def send(self, data: bytes, meaning: str = "") -> None:
        """Send bytes, which need not be whole packets or right ones."""
        assert self._transport is not None
        sent, violations = self._audit.record_sent(data, meaning)
        self.own_violations += violations
        for packet in sent:
            if packet.packet_type == SUBSCRIBE:
                self._note_filters(packet)
        self._transport.write(data)
        await asyncio.sleep(0)

    async def cut(self) -> None:
        """End the connection without DISCONNECT, as a network failure does."""
        await self._close(abort=True)

    async def close(self) -> None:
        """Close the connection in order, without DISCONNECT."""
        await self._close(abort=False)

    async def wait_for(self, packet_type: int, seconds: float) -> Packet | None:
        """Take the first packet of a type from the inbox, leaving others there.

        None if none comes within `seconds`, or the connection ends before it comes.
        """
        observed = await self.wait_for_observed(packet_type, seconds)
        return None if observed is None else observed.packet

    async def wait_for_observed(self, packet_type: int, seconds: float) -> ObservedPacket | None:
        return await self._inbox.wait_for(packet_type, seconds)

    async def wait_closed(self, seconds: float) -> bool:
        """Whether the broker closes the connection within `seconds`."""
        return await self._inbox.wait_closed(seconds)

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until something is received or the connection ends."""
        await self._inbox.wait_for_change(seconds)

    # --- inside ---

    async def _close(self, *, abort: bool) -> None:
        if self._transport is None or self.is_closed:
            return
        self._audit.record_closed(abort=abort)
        if abort:
            self._transport.abort()
        else:
            self._transport.close()
        await asyncio.sleep(0)

    def _take(self, data: bytes) -> None:
        self._trace.version = self._trace.version or self.version
        observed, violations = self._audit.check(data)
        self.packet_types.add(observed.packet_type)
        # A server without the version of our CONNECT answers in the one that it has.
        is_other = self._trace.version != self.version
        if not is_other and not any(each.rule in OTHER_PROTOCOLS for each in self.own_violations):
            for violation in violations:
                if not self._is_copied(violation):
                    self._audit.report(violation, data)
        if observed.packet is None:
            self.malformed_types.add(observed.packet_type)
        if isinstance(observed.packet, ConnAck):
            self.connack = observed.packet
        if not self._is_stray(observed):
            self.inbox.append(observed)

    def _is_stray(self, observed: ObservedPacket) -> bool:
        """Whether it is a message of another case to which this connection has not subscribed.

        A broker that sends those is wrong, which one case is about. In all others such a message
        is no answer.
        """
        packet = observed.packet
        if not isinstance(packet, Publish) or not packet.topic_name or self._filters is None:
            return False
        if not self._tag or self._tag in packet.topic_name:
            return False
        # [4.7.2-1] Whether a wildcard at the beginning matches $ is the claim of cases.
        return not any(
            each[0] in "+#" or topic_matches(each, packet.topic_name) for each in self._filters
        )

    def _is_copied(self, violation: Violation) -> bool:
        causes = COPIED.get(violation.rule, ())
        return any(own.rule in causes for own in self.own_violations)

    def _note_filters(self, observed: ObservedPacket) -> None:
        packet = observed.packet
        if not isinstance(packet, Subscribe):
            self._filters = None
        elif self._filters is not None:
            for each in packet.subscriptions:
                self._filters.append(each.topic_filter)
                if is_shared(each.topic_filter):
                    self._filters.append(split_share(each.topic_filter)[1])


def packet_names(link: ProbeLink) -> str:
    """What is in the inbox, for sentences: "PUBACK, PUBLISH", or "nothing"."""
    names = [PACKET_NAMES[observed.packet_type] for observed in link.inbox]
    return ", ".join(names) or "nothing"

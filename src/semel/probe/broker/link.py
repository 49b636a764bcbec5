"""One connection of the examiner to a broker: raw bytes out, packets in, all of it recorded.

Everything that the broker sends is checked, whichever case is being run: see `link_audit`.
"""

import asyncio

from semel.client.transport import Transport
from semel.mqtt import PACKET_NAMES, SERVER, Violation
from semel.mqtt.codec import Packet
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.rules import PROTOCOL_LEVEL_SUPPORTED, PROTOCOL_NAME_IS_MQTT
from semel.mqtt.trace import ConnectionTrace, ObservedPacket
from semel.probe.link_audit import AuditFinding, LinkAudit
from semel.probe.link_inbox import LinkInbox
from semel.probe.recorder import CaseRecorder

# The form of an answer to another protocol, or to a level that does not exist, is not defined.
OTHER_PROTOCOLS = (PROTOCOL_LEVEL_SUPPORTED, PROTOCOL_NAME_IS_MQTT)


class ProbeLink:
    """A connection to the broker."""

    def __init__(self, version: int, trace: ConnectionTrace, recorder: CaseRecorder) -> None:
        self.number = trace.number
        # What the case speaks; the trace learns it from a CONNECT.
        self.version = version
        self.connack: ConnAck | None = None
        # What we broke ourselves, on purpose or because the broker allows less than others.
        self.own_violations: list[Violation] = []
        self.packet_types: set[int] = set()
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
        self.own_violations += self._audit.record_sent(data, meaning)
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
                self._audit.report(violation, data)
        if isinstance(observed.packet, ConnAck):
            self.connack = observed.packet
        self.inbox.append(observed)


def packet_names(link: ProbeLink) -> str:
    """What is in the inbox, for sentences: "PUBACK, PUBLISH", or "nothing"."""
    names = [PACKET_NAMES[observed.packet_type] for observed in link.inbox]
    return ", ".join(names) or "nothing"

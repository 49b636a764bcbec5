"""One connection of the examiner to a broker: raw bytes out, packets in, all of it recorded.

Everything that the broker sends is read and checked with `semel.mqtt.trace`, as `semel audit` would
do it: what breaks a rule is reported, whichever case is being run. What a case sends on purpose to
break a rule ends the checks of order on that connection, not those of single packets.
"""

import asyncio
import time

from semel.client.transport import Transport
from semel.mqtt import CLIENT, PACKET_NAMES, SERVER, Violation
from semel.mqtt.codec import Packet, read_frame
from semel.mqtt.packets.connack import ConnAck
from semel.mqtt.rules import PROTOCOL_LEVEL_SUPPORTED, PROTOCOL_NAME_IS_MQTT
from semel.mqtt.trace import ConnectionTrace, ObservedPacket
from semel.probe.evidence import (
    CLOSED_BY_EXAMINER,
    CLOSED_BY_SUBJECT,
    OPENED,
    RECEIVED,
    SENT,
)
from semel.probe.link_audit import AuditFinding
from semel.probe.meaning import describe
from semel.probe.recorder import CaseRecorder

# The form of an answer to another protocol, or to a level that does not exist, is not defined.
OTHER_PROTOCOLS = (PROTOCOL_LEVEL_SUPPORTED, PROTOCOL_NAME_IS_MQTT)


class ProbeLink:
    """A connection. `inbox` holds what was received and not yet taken by a case, in order."""

    def __init__(
        self, number: int, version: int, trace: ConnectionTrace, recorder: CaseRecorder
    ) -> None:
        self.number = number
        # What the case speaks; the trace learns it from a CONNECT.
        self.version = version
        self.inbox: list[ObservedPacket] = []
        self.connack: ConnAck | None = None
        self.is_closed = False
        self.closed_at = 0.0
        self.findings: list[AuditFinding] = []
        # What we broke ourselves, on purpose or because the broker allows less than others.
        self.own_violations: list[Violation] = []
        self.packet_types: set[int] = set()
        self._trace = trace
        self._recorder = recorder
        self._transport: Transport | None = None
        self._unread = b""
        self._changed = asyncio.Event()
        self._is_ended = False

    # --- called by the transport ---

    def received(self, data: bytes) -> None:
        self._unread += data
        while self._unread:
            try:
                _, _, end, _ = read_frame(self._unread, 0)
            except Violation as violation:
                self._report(violation, self._unread)
                self._record(RECEIVED, self._unread, "no packet: the Remaining Length is malformed")
                self._unread = b""
                break
            if not end or end > len(self._unread):
                break
            packet, self._unread = self._unread[:end], self._unread[end:]
            self._take(packet)
        self._changed.set()

    def writable(self, writable: bool) -> None:
        pass

    def lost(self, why: str | None) -> None:
        if self._unread:
            self._record(RECEIVED, self._unread, "the beginning of a packet")
        self.is_closed = True
        self.closed_at = time.monotonic()
        if not self._is_ended:
            self._record(CLOSED_BY_SUBJECT, b"", why or "closed")
        self._end_trace()
        self._changed.set()

    # --- called by the trial ---

    def attach(self, transport: Transport) -> None:
        """Use this transport, which is connected."""
        self._transport = transport
        self._record(OPENED, b"", f"connected to {transport.peer}")

    async def send(self, data: bytes, meaning: str = "") -> None:
        """Send bytes, which need not be whole packets or right ones."""
        assert self._transport is not None
        self._record(SENT, data, meaning or describe(data, self._trace.version or self.version))
        self._observe_own(data)
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
        deadline = time.monotonic() + seconds
        is_over = False
        while True:
            for index, observed in enumerate(self.inbox):
                if observed.packet_type == packet_type:
                    return self.inbox.pop(index)
            if self.is_closed or is_over:
                return None
            # On a busy machine it may have come at the last moment: look once more.
            is_over = not await self._wait(deadline)

    async def wait_closed(self, seconds: float) -> bool:
        """Whether the broker closes the connection within `seconds`."""
        deadline = time.monotonic() + seconds
        while not self.is_closed:
            if not await self._wait(deadline):
                return self.is_closed
        return True

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until something is received or the connection ends."""
        await self._wait(time.monotonic() + seconds)

    # --- inside ---

    async def _wait(self, deadline: float) -> bool:
        """Wait for a change; False if the deadline has passed."""
        self._changed.clear()
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        try:
            async with asyncio.timeout(remaining):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def _close(self, *, abort: bool) -> None:
        if self._transport is None or self.is_closed:
            return
        if not self._is_ended:
            self._is_ended = True
            self._record(CLOSED_BY_EXAMINER, b"", "connection cut" if abort else "closed")
            self._end_trace()
        if abort:
            self._transport.abort()
        else:
            self._transport.close()
        await asyncio.sleep(0)

    def _end_trace(self) -> None:
        self._trace.end()

    def _take(self, data: bytes) -> None:
        self._trace.version = self._trace.version or self.version
        observed = self._trace.read(data)
        violations = self._trace.check(SERVER, observed)
        self._record(RECEIVED, data, describe(data, self._trace.version))
        self.packet_types.add(observed.packet_type)
        # A server without the version of our CONNECT answers in the one that it has.
        is_other = self._trace.version != self.version
        if not is_other and not any(each.rule in OTHER_PROTOCOLS for each in self.own_violations):
            for violation in violations:
                self._report(violation, data)
        if isinstance(observed.packet, ConnAck):
            self.connack = observed.packet
        self.inbox.append(observed)

    def _report(self, violation: Violation, data: bytes) -> None:
        violation.version = violation.version or self._trace.version
        self.findings.append(AuditFinding(violation, self.number, data))

    def _observe_own(self, data: bytes) -> None:
        """Tell the trace what we send, so that it knows what the broker may answer."""
        rest = data
        while rest:
            try:
                _, _, end, _ = read_frame(rest, 0)
            except Violation:
                end = 0
            if not end or end > len(rest):
                self._trace.is_lost = True
                return
            packet, rest = rest[:end], rest[end:]
            self.own_violations += self._trace.check(CLIENT, self._trace.read(packet))

    def _record(self, kind: str, data: bytes, meaning: str) -> None:
        self._recorder.record(self.number, kind, data, meaning)


def packet_names(link: ProbeLink) -> str:
    """What is in the inbox, for sentences: "PUBACK, PUBLISH", or "nothing"."""
    names = [PACKET_NAMES[observed.packet_type] for observed in link.inbox]
    return ", ".join(names) or "nothing"

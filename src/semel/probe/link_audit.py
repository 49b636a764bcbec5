"""The audit of one connection, whichever of its sides is examined: its bytes, split and checked.

    bytes of the subject ─▶ split ─▶ check ─▶ report: findings

Everything that the subject sends is read and checked with `semel.mqtt.trace`, as `semel audit`
would do it: what breaks a rule is reported, whichever case is being run. What a case sends on
purpose to break a rule ends the checks of order on that connection, not those of single packets.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from semel.mqtt import CLIENT, SERVER, Violation
from semel.mqtt.codec import read_frame
from semel.mqtt.trace import ConnectionTrace, ObservedPacket
from semel.probe.evidence import (
    CLOSED_BY_EXAMINER,
    CLOSED_BY_SUBJECT,
    OPENED,
    RECEIVED,
    SENT,
)
from semel.probe.meaning import describe
from semel.probe.recorder import CaseRecorder


@dataclass(frozen=True)
class AuditFinding:
    """A rule that the subject broke by sending `data`, whatever case was being run."""

    violation: Violation
    link: int
    data: bytes


class LinkAudit:
    """Records and checks what both sides send. `subject` is CLIENT or SERVER: who is examined."""

    def __init__(
        self, trace: ConnectionTrace, recorder: CaseRecorder, *, subject: int, version: int
    ) -> None:
        self.findings: list[AuditFinding] = []
        # Whether the examiner has ended the connection.
        self.is_ended = False
        self._trace = trace
        self._recorder = recorder
        self._subject = subject
        self._examiner = SERVER if subject == CLIENT else CLIENT
        self._assumed_version = version
        # The beginning of a packet whose end has not come yet.
        self._unread = b""

    @property
    def version(self) -> int:
        """What is spoken on the connection, as far as the trace knows; else what is assumed."""
        return self._trace.version or self._assumed_version

    # --- what the subject sends ---

    def split(self, data: bytes) -> Iterator[bytes]:
        """The packets that `data` completes, in order. Check each one before the next is taken."""
        self._unread += data
        while self._unread:
            try:
                _, _, end, _ = read_frame(self._unread, 0)
            except Violation as violation:
                self.report(violation, self._unread)
                self._record(RECEIVED, self._unread, "no packet: the Remaining Length is malformed")
                self._unread = b""
                return
            if not end or end > len(self._unread):
                return
            packet, self._unread = self._unread[:end], self._unread[end:]
            yield packet

    def check(self, packet: bytes) -> tuple[ObservedPacket, tuple[Violation, ...]]:
        """Read and record one packet. Returns it and the rules that it breaks, for `report`."""
        observed = self._trace.read(packet)
        violations = self._trace.check(self._subject, observed)
        self._record(RECEIVED, packet, describe(packet, self.version))
        return observed, violations

    def report(self, violation: Violation, data: bytes) -> None:
        """Add a finding: the subject broke a rule by sending `data`."""
        violation.version = violation.version or self.version
        violation.packet_type = violation.packet_type or data[0] >> 4
        self.findings.append(AuditFinding(violation, self._trace.number, data))

    # --- what the examiner sends ---

    def record_sent(
        self, data: bytes, meaning: str = "", *, breaks_rule: bool = False
    ) -> tuple[list[ObservedPacket], list[Violation]]:
        """Record what the examiner sends, so that the trace knows what the subject may answer.

        Returns its packets, and the rules that they break. With `breaks_rule` it is not read, and
        the order of what the subject sends is not checked any more.
        """
        self._record(SENT, data, meaning or describe(data, self.version))
        if breaks_rule:
            self._trace.is_lost = True
            return [], []
        packets: list[ObservedPacket] = []
        violations: list[Violation] = []
        rest = data
        while rest:
            try:
                _, _, end, _ = read_frame(rest, 0)
            except Violation:
                end = 0
            if not end or end > len(rest):
                self._trace.is_lost = True
                break
            packet, rest = rest[:end], rest[end:]
            packets.append(self._trace.read(packet))
            violations += self._trace.check(self._examiner, packets[-1])
        return packets, violations

    # --- the connection ---

    def record_opened(self, meaning: str) -> None:
        """Record that the connection was opened."""
        self._record(OPENED, b"", meaning)

    def record_closed(self, *, abort: bool) -> None:
        """Record that the examiner ends the connection, unless it has done so before."""
        if self.is_ended:
            return
        self.is_ended = True
        self._record(CLOSED_BY_EXAMINER, b"", "connection cut" if abort else "closed")
        self._trace.end()

    def record_lost(self, why: str) -> None:
        """Record that the connection has ended: by the subject, unless the examiner ended it."""
        if self._unread:
            self._record(RECEIVED, self._unread, "the beginning of a packet")
        if not self.is_ended:
            self._record(CLOSED_BY_SUBJECT, b"", why)
        self._trace.end()

    def _record(self, kind: str, data: bytes, meaning: str) -> None:
        self._recorder.record(self._trace.number, kind, data, meaning)

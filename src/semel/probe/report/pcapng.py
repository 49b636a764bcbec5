"""The exchange of a report as pcapng, which Wireshark and tshark open as MQTT over TCP.

The bytes are those of the evidence. Ethernet, IP and TCP are synthesized around them: one TCP
stream per connection of a case, with handshake, acknowledgements and the FIN of whoever closed.
TLS and WebSocket are not shown, because the evidence has what was inside of them.
"""

import struct
from typing import Final

from semel.probe.evidence import (
    CLOSED_BY_EXAMINER,
    CLOSED_BY_SUBJECT,
    NOTE,
    OPENED,
    RECEIVED,
    SENT,
    WireEvent,
)
from semel.probe.outcomes import CaseOutcome, ExaminationReport
from semel.probe.report.reproducer import is_by_subject_opened
from semel.probe.report.safe_strings import visible_text
from semel.probe.verdicts import RECEIVE, SEND

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_COMMENT, _APPLICATION, _NAME = 1, 4, 2
_ETHERNET: Final = 1
MQTT_PORT: Final = 1883
# What fits into an Ethernet frame.
_SEGMENT: Final = 1460
_FIRST_PORT: Final = 10_000
_PORTS: Final = 50_000
_SYN, _FIN, _PUSH, _ACK = 2, 1, 8, 16
# An option has a length of 16 bits.
_LONGEST_COMMENT: Final = 2_000


def make_pcapng(report: ExaminationReport) -> bytes:
    """The file. Time of a packet: the start of the run, the cases before it, and the event."""
    out = bytearray(_section_header(report))
    offset, number = report.started, 0
    for outcome in report.outcomes:
        # A codec has no connections.
        streams = _streams(outcome) if outcome.path in (SEND, RECEIVE) else []
        for stream in streams:
            is_server = is_by_subject_opened(report, stream)
            out += _stream_packets(outcome, stream, number, offset, is_server=is_server)
            number += 1
        last = max((event.at for event in outcome.evidence), default=0.0)
        offset += max(outcome.seconds, last)
    return bytes(out)


def _streams(outcome: CaseOutcome) -> list[list[WireEvent]]:
    """The events of each connection, in order of time. What follows its end is another stream."""
    by_link: dict[int, list[WireEvent]] = {}
    done: list[list[WireEvent]] = []
    for event in sorted(outcome.evidence, key=lambda each: each.at):
        if event.kind == NOTE:
            continue
        stream = by_link.setdefault(event.link, [])
        if stream and (event.kind == OPENED or _is_after_end(stream, event)):
            done.append(stream)
            stream = by_link[event.link] = []
        stream.append(event)
    return [*done, *by_link.values()]


def _is_after_end(stream: list[WireEvent], event: WireEvent) -> bool:
    """Whether the side that acts has closed the connection before."""
    by_subject = event.kind in (RECEIVED, CLOSED_BY_SUBJECT)
    own_end = CLOSED_BY_SUBJECT if by_subject else CLOSED_BY_EXAMINER
    return any(each.kind == own_end for each in stream)


def _stream_packets(
    outcome: CaseOutcome, events: list[WireEvent], number: int, offset: float, *, is_server: bool
) -> bytes:
    """All packets of one connection. `is_server`: the examiner is the server."""
    about = f"{visible_text(outcome.case)}, MQTT {visible_text(outcome.version)}"
    about += f", connection {events[0].link}"
    ends = _TcpEnds(number)
    # 0 is the client, 1 the server.
    examiner = 1 if is_server else 0
    out = bytearray()

    def add(at: float, frame: bytes, comment: str) -> None:
        out.extend(_packet_block(offset + at, frame, comment))

    first = events[0].at
    title = f"{about}: {visible_text(outcome.title)} [{outcome.verdict}]"
    add(first, ends.segment(0, _SYN), title)
    add(first, ends.segment(1, _SYN | _ACK), "")
    add(first, ends.segment(0, _ACK), "")
    closed: list[int] = []
    for event in events:
        side = examiner if event.kind in (SENT, CLOSED_BY_EXAMINER) else 1 - examiner
        comment = f"{about}, {event.arm}: {visible_text(event.meaning)}"
        if event.kind in (SENT, RECEIVED):
            for start in range(0, len(event.data), _SEGMENT):
                data = event.data[start : start + _SEGMENT]
                add(event.at, ends.segment(side, _PUSH | _ACK, data), comment)
                add(event.at, ends.segment(1 - side, _ACK), "")
        elif event.kind in (CLOSED_BY_SUBJECT, CLOSED_BY_EXAMINER):
            closed.append(side)
            add(event.at, ends.segment(side, _FIN | _ACK), comment)
            add(event.at, ends.segment(1 - side, _ACK), "")
    if len(closed) == 1:
        last = events[-1].at
        add(last, ends.segment(1 - closed[0], _FIN | _ACK), "")
        add(last, ends.segment(closed[0], _ACK), "")
    return bytes(out)


class _TcpEnds:
    """The two ends of a TCP connection: client 0 and server 1."""

    def __init__(self, number: int) -> None:
        # 198.18.0.0/15 is for tests; no host has these addresses.
        self._addresses = (
            bytes([198, 18, 1 + number // _PORTS % 250, 1]),
            bytes([198, 19, 0, 1]),
        )
        self._ports = (_FIRST_PORT + number % _PORTS, MQTT_PORT)
        self._sequence = [1_000, 5_000]

    def segment(self, side: int, flags: int, data: bytes = b"") -> bytes:
        """The next Ethernet frame of a side."""
        other = 1 - side
        source, target = self._addresses[side], self._addresses[other]
        acknowledged = self._sequence[other] if flags & _ACK else 0
        head = struct.pack(
            "!HHIIBBHHH",
            *(self._ports[side], self._ports[other], self._sequence[side], acknowledged),
            *(5 << 4, flags, 65_535, 0, 0),
        )
        pseudo = source + target + struct.pack("!BBH", 0, 6, len(head) + len(data))
        check = _checksum(pseudo + head + data)
        tcp = head[:16] + struct.pack("!H", check) + head[18:] + data
        # SYN and FIN count as a byte.
        self._sequence[side] += len(data) + (1 if flags & (_SYN | _FIN) else 0)
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0)
        check = _checksum(ip + source + target)
        ip = ip[:10] + struct.pack("!H", check) + source + target
        macs = (b"\x02\0\0\0\0\x01", b"\x02\0\0\0\0\x02")
        return macs[other] + macs[side] + b"\x08\x00" + ip + tcp


def _checksum(data: bytes) -> int:
    """The ones' complement checksum of IP and TCP."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


# --- blocks ---------------------------------------------------------------------------------------


def _section_header(report: ExaminationReport) -> bytes:
    """The section header and the only interface."""
    about = f"semel probe of {visible_text(report.name or report.subject)}"
    options = _options((_COMMENT, about), (_APPLICATION, f"semel {report.semel_version}".strip()))
    section = _block(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + options)
    interface = struct.pack("<HHI", _ETHERNET, 0, 0) + _options((_NAME, "semel probe"))
    return section + _block(_INTERFACE, interface)


def _packet_block(at: float, frame: bytes, comment: str) -> bytes:
    """An Enhanced Packet Block; times are in microseconds."""
    time = max(0, round(at * 1_000_000))
    head = struct.pack("<IIIII", 0, time >> 32, time & 0xFFFFFFFF, len(frame), len(frame))
    options = _options((_COMMENT, comment)) if comment else b""
    return _block(_PACKET, head + _padded(frame) + options)


def _block(kind: int, body: bytes) -> bytes:
    size = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + size + body + size


def _options(*options: tuple[int, str]) -> bytes:
    out = b""
    for code, text in options:
        # Cut at a whole character.
        value = text.encode()[:_LONGEST_COMMENT].decode(errors="ignore").encode()
        out += struct.pack("<HH", code, len(value)) + _padded(value)
    return out + struct.pack("<HH", 0, 0)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)

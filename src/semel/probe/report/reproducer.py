"""A reproducer: one Python file of the standard library that replays a violated case.

It is `replay` with the data of the case, so that what is tested here is what a maintainer runs.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from semel import standard
from semel.probe.evidence import NOTE, OPENED, RECEIVED, SENT, WireEvent
from semel.probe.outcomes import CaseOutcome, ExaminationReport
from semel.probe.report.reproducer_text import case_data, case_paragraphs, fill_program, literal
from semel.probe.report.safe_strings import spaced_hex, visible_text

# A repeated byte is written as a product from this number on.
_RUN: Final = 64
_LONGEST_MEANING: Final = 300
_CUT_SHORT: Final = re.compile(r"\(the first [\d,]+ of ([\d,]+) bytes\)$")


def is_by_subject_opened(report: ExaminationReport, evidence: Iterable[WireEvent]) -> bool:
    """Whether the subject is the client of these connections: a client sends the first byte."""
    for event in evidence:
        if event.kind in (SENT, RECEIVED) and event.data:
            return event.kind == RECEIVED
    return report.kind == "client"


def make_reproducer(
    report: ExaminationReport, outcome: CaseOutcome, named: Sequence[standard.Statement]
) -> str | None:
    """The text of a reproducer; None if the evidence has no connection, or not all bytes sent.

    `named` are the statements of the case.
    """
    steps = [event for each in outcome.evidence if (event := _completed(each)) is not None]
    if len(steps) < len(outcome.evidence) or all(event.kind != OPENED for event in steps):
        return None
    listens = is_by_subject_opened(report, steps)
    about_connack = any(each.section.startswith("3.2") for each in named)
    data = [
        *case_data(outcome, named),
        "# Whether the subject is a client, which connects to this program.",
        f"LISTENS = {listens}",
        f"COMPARES_CONNACK_PROPERTIES = {about_connack}",
        "# Part of topic names and client identifiers. Each run against a broker uses another one.",
        f"TAG = {literal(find_tag(steps))}",
        "# Seconds, arm, connection, what happened, bytes, meaning.",
        "STEPS: list[tuple[float, str, int, str, str, str]] = [",
        *(line for event in steps for line in _step(event)),
        "]",
    ]
    return fill_program("replay.py", _paragraphs(report, outcome, listens=listens), data)


def find_tag(events: Iterable[WireEvent]) -> str:
    """The part of the names in a case that differs between runs; "" if none is found.

    Names are PREFIX/TAG/… for topics, and five letters of the prefix, TAG and more for clients.
    """
    known = list(events)
    for event in known:
        started = re.search(r"\bsemel(?:-probe/)?([0-9a-f]{6,20})\b", event.meaning)
        if event.kind == NOTE and started is not None:
            return started.group(1)
    sent = b" ".join(event.data for event in known if event.kind == SENT)
    topic = re.search(rb"(?<!\$SYS)/([0-9A-Za-z]{4,20})/", sent)
    if topic is not None:
        return topic.group(1).decode()
    found: list[bytes] = re.findall(rb"semel([0-9A-Za-z]{5,18})", sent)
    if not found:
        return ""
    first, last = min(found), max(found)
    common = 0
    while common < min(len(first), len(last)) - 1 and first[common] == last[common]:
        common += 1
    return first[:common].decode() if common >= 4 else ""


def _completed(event: WireEvent) -> WireEvent | None:
    """The event with the bytes that were not kept; None if they cannot be known."""
    cut = _CUT_SHORT.search(event.meaning)
    if cut is None:
        return event
    size = int(cut[1].replace(",", ""))
    tail = event.data[-_RUN:]
    if event.kind == SENT and tail != tail[:1] * _RUN:
        return None
    data = event.data + tail[:1] * (size - len(event.data))
    return WireEvent(event.at, event.arm, event.link, event.kind, data, event.meaning)


def _paragraphs(report: ExaminationReport, outcome: CaseOutcome, *, listens: bool) -> list[str]:
    """What the docstring says."""
    run = "python3 FILE [host] [port]"
    if listens:
        run += " [-- client command with {host} and {port}]"
    return [
        *case_paragraphs(report, outcome),
        "It uses plain TCP, also if the case was recorded with TLS or WebSocket, and needs nothing "
        "but Python 3.8. It takes the recorded steps again and shows the bytes.",
        f"Run: {run}",
        "Exit code 1: the subject behaves as recorded, which violates the statements. 0: it "
        "behaves differently. 2: the control failed, so nothing is proved.",
    ]


def _step(event: WireEvent) -> list[str]:
    """An entry of STEPS."""
    meaning = visible_text(event.meaning)
    if len(meaning) > _LONGEST_MEANING:
        meaning = meaning[:_LONGEST_MEANING] + "..."
    head = f"    ({event.at:.3f}, {literal(event.arm)}, {event.link}, {literal(event.kind)},"
    line = f'{head} "{spaced_hex(event.data)}", {literal(meaning)}),'
    if len(line) <= 100:
        return [line]
    last = f"     {literal(meaning)}),"
    return [f'{head} "",', last] if not event.data else [head, *_hex_lines(event.data), last]


def _hex_lines(data: bytes) -> list[str]:
    """Bytes as string literals of at most 100 columns; long runs of a byte as a product."""
    parts: list[str] = []
    start = 0
    for run in re.finditer(rb"(.)\1{%d,}" % (_RUN - 1), data, re.DOTALL):
        parts += _hex_literals(data[start : run.start()])
        parts.append(f'"{run[1].hex()}" * {len(run[0])}')
        start = run.end()
    parts += _hex_literals(data[start:])
    lines = [f"     {'+ ' if index else ''}{part}" for index, part in enumerate(parts)]
    lines[-1] += ","
    return lines


def _hex_literals(data: bytes) -> list[str]:
    return [f'"{data[at : at + 30].hex(" ")}"' for at in range(0, len(data), 30)]

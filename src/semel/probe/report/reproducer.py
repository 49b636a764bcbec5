"""A reproducer: one Python file of the standard library that replays a violated case.

It is `replay` with the data of the case, so that what is tested here is what a maintainer runs.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Final

from semel import standard
from semel.probe.evidence import NOTE, OPENED, RECEIVED, SENT, WireEvent
from semel.probe.outcomes import CaseOutcome, ExaminationReport
from semel.probe.report.safe_strings import spaced_hex, visible_text

# The first words of every reproducer; files that begin with them are ours.
MARKER: Final = "Reproducer written by semel probe"
_BEGIN: Final = "# --- the case: begin ---\n"
_END: Final = "# --- the case: end ---\n"
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
        f"CASE = {_literal(visible_text(outcome.case))}",
        f"VERSION = {_literal(outcome.version)}",
        "STATEMENTS: list[tuple[str, str]] = [",
        *_wrapped_pairs([(each.id, each.paraphrase) for each in named]),
        "]",
        *_wrapped_text("REQUIRED = ", visible_text(outcome.title)),
        *_wrapped_text("FOUND = ", visible_text(outcome.found)),
        "# Whether the subject is a client, which connects to this program.",
        f"LISTENS = {listens}",
        f"COMPARES_CONNACK_PROPERTIES = {about_connack}",
        "# Part of topic names and client identifiers. Each run against a broker uses another one.",
        f"TAG = {_literal(find_tag(steps))}",
        "# Seconds, arm, connection, what happened, bytes, meaning.",
        "STEPS: list[tuple[float, str, int, str, str, str]] = [",
        *(line for event in steps for line in _step(event)),
        "]",
    ]
    source = files("semel.probe.report").joinpath("replay.py").read_text("utf-8")
    code = re.sub(r"  # nosec .*", "", source[source.index("from __future__") :])
    before, _, rest = code.partition(_BEGIN)
    after = rest.partition(_END)[2]
    head = f'#!/usr/bin/env python3\n"""{_docstring(report, outcome, listens=listens)}\n"""\n\n'
    return head + before + _BEGIN + "\n".join(data) + "\n" + _END + after


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


def _docstring(report: ExaminationReport, outcome: CaseOutcome, *, listens: bool) -> str:
    """The docstring, in which nothing of the subject can end it."""
    run = "python3 FILE [host] [port]"
    if listens:
        run += " [-- client command with {host} and {port}]"
    paragraphs = [
        f"{MARKER} {report.semel_version}: {outcome.case}, MQTT {outcome.version}.",
        f"What must happen: {outcome.title}",
        f"What was found: {outcome.found}",
        "Statements: " + ", ".join(outcome.statements),
        f"Recorded with: {report.name or report.subject}",
        "It uses plain TCP, also if the case was recorded with TLS or WebSocket, and needs nothing "
        "but Python 3.8. It takes the recorded steps again and shows the bytes.",
        f"Run: {run}",
        "Exit code 1: the subject behaves as recorded, which violates the statements. 0: it "
        "behaves differently. 2: the control failed, so nothing is proved.",
    ]
    lines = [
        "\n".join(textwrap.wrap(visible_text(each), 96, break_on_hyphens=False))
        for each in paragraphs
    ]
    return "\n\n".join(lines).replace("\\", "\\\\").replace('"', '\\"')


def _literal(text: str) -> str:
    """A string literal of ASCII, in double quotes if possible."""
    found = ascii(text)
    return found if '"' in found else f'"{found[1:-1]}"'


def _step(event: WireEvent) -> list[str]:
    """An entry of STEPS."""
    meaning = visible_text(event.meaning)
    if len(meaning) > _LONGEST_MEANING:
        meaning = meaning[:_LONGEST_MEANING] + "..."
    head = f"    ({event.at:.3f}, {_literal(event.arm)}, {event.link}, {_literal(event.kind)},"
    line = f'{head} "{spaced_hex(event.data)}", {_literal(meaning)}),'
    if len(line) <= 100:
        return [line]
    last = f"     {_literal(meaning)}),"
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


def _wrapped_text(head: str, text: str) -> list[str]:
    """An assignment of a text, on several lines if it is long."""
    if len(head) + len(_literal(text)) <= 100:
        return [head + _literal(text)]
    return [f"{head}(", *_text_lines(text, "    "), ")"]


def _text_lines(text: str, indent: str) -> list[str]:
    return [
        indent + _literal(each)
        for each in re.findall(r".{1,80}(?:\s+|$)|\S{1,80}", text, re.DOTALL) or [""]
    ]


def _wrapped_pairs(pairs: Iterable[tuple[str, str]]) -> list[str]:
    lines = []
    for first, second in pairs:
        wrapped = _text_lines(second, "        ")
        lines += ["    (", f"        {_literal(first)},", *wrapped, "    ),"]
    return lines

"""A bug report in Markdown about a violated case, ready to be sent to the maintainers."""

import re
import shlex
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from semel.counts import count
from semel.probe.evidence import (
    CLOSED_BY_EXAMINER,
    CLOSED_BY_SUBJECT,
    CONTROL,
    NOTE,
    OPENED,
    RECEIVED,
    SENT,
    TEST,
    WireEvent,
)
from semel.probe.outcomes import CaseOutcome, ExaminationReport
from semel.probe.report.case_files import CaseFiles
from semel.probe.report.safe_strings import spaced_hex, visible_text
from semel.probe.verdicts import DECODE, ENCODE

# The last line of every bug report; files that have it are ours.
MARKER: Final = "Written by semel probe"
# Issue trackers refuse longer texts.
_LONGEST: Final = 60_000
# More bytes of one event are in report.json only.
_SHOWN_BYTES: Final = 256
_SIGNS: Final = {
    OPENED: "opened",
    SENT: "sent    ",
    RECEIVED: "received",
    CLOSED_BY_SUBJECT: "closed by the subject",
    CLOSED_BY_EXAMINER: "closed by the examiner",
}


def make_bug_report(report: ExaminationReport, outcome: CaseOutcome, files: CaseFiles) -> str:
    """The Markdown text."""
    lines = [
        f"# {markdown_text(outcome.found)}",
        "",
        f"Subject: {markdown_text(report.name)} ({markdown_text(report.subject)}), "
        f"MQTT {outcome.version}, {_date(report.started)}",
        "",
        "## What went wrong",
        "",
        f"{markdown_text(outcome.found)} (path: {outcome.path})",
        "",
        "## Statements",
        "",
        "| statement | section | in our words |",
        "|---|---|---|",
    ]
    for each in files.statements:
        section, sentence = markdown_text(each.section), markdown_text(each.paraphrase)
        lines.append(f"| {each.id} | {section} | {sentence} |")
    lines += ["", "## What must happen", "", markdown_text(outcome.title), ""]
    lines += ["## Bytes sent and seen", "", *_fenced(_event_lines(outcome, TEST)), ""]
    lines += ["## Control case", "", *_control(outcome)]
    lines += [
        "## How sure this is",
        "",
        _certainty(outcome),
        "",
        "## How to reproduce it",
        "",
        *_reproduction(outcome, files),
        "## Versions",
        "",
        f"- subject: {markdown_text(report.name)}",
        f"- MQTT: {outcome.version}",
        f"- semel: {markdown_text(report.semel_version)}, case `{files.stem}`, seed {report.seed}",
        "",
    ]
    text = "\n".join(lines)
    end = f"---\n\n{MARKER}.\n"
    embedded = _embedded(files)
    return text + (embedded if len(text) + len(embedded) < _LONGEST else "") + end


def markdown_text(text: str) -> str:
    """Text without meaning in Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~$&@:])", r"\\\1", visible_text(text))


def _event_lines(outcome: CaseOutcome, arm: str) -> list[str]:
    return [event_line(event) for event in outcome.evidence if event.arm == arm]


def event_line(event: WireEvent) -> str:
    """An event on one line, as in a bug report."""
    if event.kind == NOTE:
        return f"{event.at:8.3f}  {visible_text(event.meaning)}"
    line = f"{event.at:8.3f}  connection {event.link}  {_SIGNS.get(event.kind, event.kind)}"
    if event.data:
        line += f"  {spaced_hex(event.data[:_SHOWN_BYTES])}"
        if len(event.data) > _SHOWN_BYTES:
            line += f" … ({count(len(event.data), 'byte')})"
    if event.meaning and event.kind in (SENT, RECEIVED):
        line += f"  {visible_text(event.meaning)}"
    return line


def _control(outcome: CaseOutcome) -> list[str]:
    lines = _event_lines(outcome, CONTROL)
    if not lines:
        return ["The steps that prepare the case are its control: they succeeded.", ""]
    return [
        "The control succeeded, so the subject can do what the case needs.",
        "",
        *_fenced(lines),
        "",
    ]


def _certainty(outcome: CaseOutcome) -> str:
    runs = count(outcome.runs, "run")
    if outcome.path in (DECODE, ENCODE):
        return f"{runs} had this result, the last one in a fresh process of the adapter."
    return f"{runs} on fresh connections {'had' if outcome.runs == 1 else 'all had'} this result."


def _reproduction(outcome: CaseOutcome, files: CaseFiles) -> list[str]:
    if not files.reproducer_path:
        return ["The evidence cannot be replayed by a program: follow the bytes above.", ""]
    needs, words = "Python 3.8 or newer and nothing else", "localhost 1883"
    if outcome.adapter is not None:
        needs = "Python 3.8 or newer and the adapter, whose command is given after `--`"
        words = f"-- {shlex.join(outcome.adapter.command)}"
    return [
        f"The reproducer needs {needs}. It exits with 1 if the subject "
        "behaves as above, with 0 if it behaves differently, and with 2 if the control failed.",
        "",
        *_fenced([visible_text(f"python3 {files.reproducer_path} {words}")]),
        "",
    ]


def _embedded(files: CaseFiles) -> str:
    """The reproducer itself, folded."""
    if files.reproducer is None:
        return ""
    block = "\n".join(_fenced(files.reproducer.splitlines(), "python"))
    return f"<details><summary>{files.stem}.py</summary>\n\n{block}\n\n</details>\n\n"


def _fenced(lines: Iterable[str], language: str = "") -> list[str]:
    """A code block, whose fence is longer than any in its text."""
    text = list(lines)
    longest = max((len(run) for line in text for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + language, *text, fence]


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()

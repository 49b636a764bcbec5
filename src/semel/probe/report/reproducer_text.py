"""The text of a reproducer: a program of `report`, with the data of a violated case in it.

What a subject wrote gets into the program only as string literals of ASCII and into its docstring
only escaped, so none of it is ever run.
"""

import re
import textwrap
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Final

from semel import standard
from semel.probe.outcomes import CaseOutcome, ExaminationReport
from semel.probe.report.safe_strings import visible_text

# The first words of every reproducer; files that begin with them are ours.
MARKER: Final = "Reproducer written by semel probe"
_BEGIN: Final = "# --- the case: begin ---\n"
_END: Final = "# --- the case: end ---\n"


def fill_program(source: str, paragraphs: Iterable[str], data: Iterable[str]) -> str:
    """The file `source` of this package with a docstring of these paragraphs and this data."""
    text = files("semel.probe.report").joinpath(source).read_text("utf-8")
    code = re.sub(r"  # nosec .*", "", text[text.index("from __future__") :])
    before, _, rest = code.partition(_BEGIN)
    after = rest.partition(_END)[2]
    head = f'#!/usr/bin/env python3\n"""{_docstring(paragraphs)}\n"""\n\n'
    return head + before + _BEGIN + "\n".join(data) + "\n" + _END + after


def case_paragraphs(report: ExaminationReport, outcome: CaseOutcome) -> list[str]:
    """What every reproducer says about its case."""
    return [
        f"{MARKER} {report.semel_version}: {outcome.case}, MQTT {outcome.version}.",
        f"What must happen: {outcome.title}",
        f"What was found: {outcome.found}",
        "Statements: " + ", ".join(outcome.statements),
        f"Recorded with: {report.name or report.subject}",
    ]


def case_data(outcome: CaseOutcome, named: Sequence[standard.Statement]) -> list[str]:
    """The assignments that every reproducer has. `named` are the statements of the case."""
    return [
        f"CASE = {literal(visible_text(outcome.case))}",
        f"VERSION = {literal(outcome.version)}",
        "STATEMENTS: list[tuple[str, str]] = [",
        *_wrapped_pairs([(each.id, each.paraphrase) for each in named]),
        "]",
        *wrapped_text("REQUIRED = ", visible_text(outcome.title)),
        *wrapped_text("FOUND = ", visible_text(outcome.found)),
    ]


def literal(text: str) -> str:
    """A string literal of ASCII, in double quotes if possible."""
    found = ascii(text)
    return found if '"' in found else f'"{found[1:-1]}"'


def wrapped_text(head: str, text: str) -> list[str]:
    """An assignment of a text, on several lines if it is long."""
    if len(head) + len(literal(text)) <= 100:
        return [head + literal(text)]
    return [f"{head}(", *_text_lines(text, "    "), ")"]


def _docstring(paragraphs: Iterable[str]) -> str:
    """The docstring, in which nothing of the subject can end it."""
    lines = [
        "\n".join(textwrap.wrap(visible_text(each), 96, break_on_hyphens=False))
        for each in paragraphs
    ]
    return "\n\n".join(lines).replace("\\", "\\\\").replace('"', '\\"')


def _text_lines(text: str, indent: str) -> list[str]:
    return [
        indent + literal(each)
        for each in re.findall(r".{1,80}(?:\s+|$)|\S{1,80}", text, re.DOTALL) or [""]
    ]


def _wrapped_pairs(pairs: Iterable[tuple[str, str]]) -> list[str]:
    lines = []
    for first, second in pairs:
        wrapped = _text_lines(second, "        ")
        lines += ["    (", f"        {literal(first)},", *wrapped, "    ),"]
    return lines

"""The reproducer of a codec's case: one Python file that asks the adapter the same again.

It is `codec_replay` with the data of the case, so that what is tested here is what a maintainer
runs.
"""

import json
from collections.abc import Sequence
from typing import Final

from semel import standard
from semel.probe.evidence import AdapterCall
from semel.probe.outcomes import CaseOutcome, ExaminationReport
from semel.probe.report.reproducer_text import (
    case_data,
    case_paragraphs,
    fill_program,
    literal,
    wrapped_text,
)
from semel.probe.report.safe_strings import spaced_hex
from semel.probe.verdicts import DECODE, ENCODE

# Longer packets are not in the docstring; the program shows them.
_LONGEST_SHOWN: Final = 1_000


def make_codec_reproducer(
    report: ExaminationReport, outcome: CaseOutcome, named: Sequence[standard.Statement]
) -> str | None:
    """The text of a reproducer; None if the report does not have the requests, or damaged ones.

    `named` are the statements of the case.
    """
    record = outcome.adapter
    if record is None or not record.command:
        return None
    control = record.control or AdapterCall("", "")
    try:
        about = _describe_request(record.test.request)
        if record.control is not None:
            _describe_request(control.request)
        texts = {
            "CONTROL_REQUEST": control.request and _ascii_json(control.request),
            "CONTROL_ANSWER": control.answer and _ascii_json(control.answer),
            "TEST_REQUEST": _ascii_json(record.test.request),
            "TEST_ANSWER": _ascii_json(record.test.answer),
            "RIGHT_ANSWER": _ascii_json(record.right_answer),
        }
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    data = [
        *case_data(outcome, named),
        "# The command of the adapter that was examined.",
        "COMMAND: list[str] = [",
        *(f"    {literal(word)}," for word in record.command),
        "]",
        "# Requests and answers as JSON. The control is something right; it is empty if there is "
        "none.",
        *(line for name, text in texts.items() for line in wrapped_text(f"{name} = ", text)),
    ]
    paragraphs = [
        *case_paragraphs(report, outcome),
        about,
        "It starts the adapter of the codec, which reads and writes lines of JSON, asks it the "
        "same again and shows bytes and packets, so that they can be used in a test of the codec "
        "without the adapter. It needs nothing but Python 3.8 and what the adapter needs.",
        "Run: python3 FILE [-- adapter command]",
        "Exit code 1: the codec answers as recorded, which violates the statements. 0: it answers "
        "differently. 2: the control failed, or the adapter does not run or does not answer, so "
        "nothing is proved.",
    ]
    return fill_program("codec_replay.py", paragraphs, data)


def _describe_request(text: str) -> str:
    """What is asked, in words. Raises ValueError, KeyError or TypeError if it is no request."""
    request = json.loads(text)
    if request["do"] == ENCODE:
        about, shown = "Packet to encode", json.dumps(request["packet"])
    elif request["do"] == DECODE and isinstance(request["direction"], str):
        about, shown = "Bytes to decode", spaced_hex(bytes.fromhex(request["hex"]))
    else:
        raise ValueError("neither to decode nor to encode")
    return f"{about}: {shown if len(shown) <= _LONGEST_SHOWN else 'shown by the program.'}"


def _ascii_json(text: str) -> str:
    """The same object on one line of ASCII. Raises ValueError if it is none."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return json.dumps(value)

"""Writes a report to a folder, in all its forms, and reads the JSON form again."""

import contextlib
import json
import math
import os
from pathlib import Path
from typing import Final

from semel import standard
from semel.probe.outcomes import BadReport, ExaminationReport, report_from_json
from semel.probe.report import bug_report, reproducer_text
from semel.probe.report.badge import make_badge
from semel.probe.report.bug_report import make_bug_report
from semel.probe.report.case_files import BUG_REPORTS, REPRODUCERS, list_case_files
from semel.probe.report.html import make_html
from semel.probe.report.junit import make_junit
from semel.probe.report.pcapng import make_pcapng
from semel.probe.report.sarif import make_sarif
from semel.probe.verdicts import PATHS

REPORT_FILE: Final = "report.json"
# The last second of the year 9999: the calendar has no later ones.
_LAST_SECOND: Final = 253_402_300_799


class CannotWriteReport(Exception):
    """The report could not be written: one sentence."""


def write_report(report: ExaminationReport, folder: Path) -> list[Path]:
    """Write all files; each is replaced as a whole. Returns their paths, the JSON report first.

    Reproducers and bug reports of an earlier run in this folder are deleted. Raises
    CannotWriteReport.
    """
    files = list_case_files(report)
    shown = {key: each.shown_path for key, each in files.items()}
    contents: dict[str, str | bytes] = {
        REPORT_FILE: _json_lines(report.as_json()),
        "report.html": make_html(report, files),
        "junit.xml": make_junit(report),
        "report.sarif": make_sarif(report, shown),
        "exchange.pcapng": make_pcapng(report),
        "badge.svg": make_badge(report),
    }
    for outcome in report.failed():
        each = files[outcome.case, outcome.version]
        contents[each.bug_report_path] = make_bug_report(report, outcome, each)
        if each.reproducer is not None:
            contents[each.reproducer_path] = each.reproducer
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _delete_earlier(folder, set(contents))
        return [_replace(folder / name, content) for name, content in contents.items()]
    except OSError as problem:
        raise _cannot_write(folder, problem) from None


def replace_file(path: Path, content: str) -> None:
    """Write one file; an old one is replaced as a whole. Raises CannotWriteReport."""
    try:
        _replace(path, content)
    except OSError as problem:
        raise _cannot_write(path, problem) from None


def read_report(path: Path) -> ExaminationReport:
    """Read a report.json. Raises BadReport with the path and what is wrong, in one sentence."""
    try:
        report = report_from_json(json.loads(path.read_text("utf-8")))
    except OSError as problem:
        raise BadReport(f"cannot read {path}: {problem.strerror or problem}") from None
    except BadReport as problem:
        raise BadReport(f"{path}: {problem}") from None
    except (ValueError, RecursionError):
        raise BadReport(f"{path}: not JSON, so not a report of semel probe") from None
    except OverflowError:
        raise BadReport(f"{path}: the report is damaged: a number is too large") from None
    problem_found = _find_damage(report)
    if problem_found:
        raise BadReport(f"{path}: the report is damaged: {problem_found}")
    return report


def _json_lines(value: dict[str, object]) -> str:
    """An object of JSON with a line per entry, and per element of an entry that is a list."""
    entries = []
    for key, entry in value.items():
        text = json.dumps(entry)
        if isinstance(entry, list) and entry:
            text = "[\n" + ",\n".join(json.dumps(each) for each in entry) + "\n]"
        entries.append(f"{json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _find_damage(report: ExaminationReport) -> str:
    """What cannot be in a report, although its JSON has the right form; "" if nothing."""
    times = [report.started, report.seconds]
    known = {
        version: {each.id for each in standard.statements(version)} for version in standard.NUMBERED
    }
    for version in report.versions:
        if version not in known:
            return f"unknown version {version!r}"
    for outcome in report.outcomes:
        if outcome.version not in report.versions:
            return f"case {outcome.case!r} is of version {outcome.version!r}"
        if outcome.path not in PATHS:
            return f"unknown path {outcome.path!r}"
        for statement in outcome.statements:
            if statement not in known[outcome.version]:
                return f"unknown statement {statement!r}"
        times += [outcome.seconds, *(event.at for event in outcome.evidence)]
    if not all(math.isfinite(each) and each >= 0 for each in times):
        return "a time is not a number of seconds"
    if report.started + report.seconds > _LAST_SECOND:
        return "it started after the year 9999"
    return ""


def _cannot_write(path: Path, problem: OSError) -> CannotWriteReport:
    reason = problem.strerror or str(problem)
    if isinstance(problem, FileExistsError | NotADirectoryError):
        reason = f"{problem.filename or path} is not a folder"
    return CannotWriteReport(f"cannot write to {path}: {reason}")


def _replace(path: Path, content: str | bytes) -> Path:
    """Write a file beside the old one, and put it in its place."""
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        # Lone surrogates are escaped before; "replace" is for those that a mistake would leave.
        data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    return path


def _delete_earlier(folder: Path, kept: set[str]) -> None:
    """Delete our reproducers and bug reports of an earlier run; files of others stay."""
    for name, suffix, marker in (
        (REPRODUCERS, "*.py", reproducer_text.MARKER),
        (BUG_REPORTS, "*.md", bug_report.MARKER),
    ):
        for path in (folder / name).glob(suffix):
            if f"{name}/{path.name}" in kept or not path.is_file():
                continue
            if marker in path.read_text("utf-8", "replace"):
                path.unlink()

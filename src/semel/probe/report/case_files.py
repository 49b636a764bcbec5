"""The files that a violated case gets beside the report: their paths, and the reproducer's text."""

from dataclasses import dataclass
from typing import Final

from semel import standard
from semel.probe.outcomes import ExaminationReport
from semel.probe.report.codec_reproducer import make_codec_reproducer
from semel.probe.report.reproducer import make_reproducer
from semel.probe.report.safe_strings import file_stem

REPRODUCERS: Final = "reproducers"
BUG_REPORTS: Final = "bug-reports"


@dataclass(frozen=True)
class CaseFiles:
    """Paths relative to the report. `reproducer` is None if the evidence cannot be replayed."""

    stem: str
    # The statements that the case examines.
    statements: tuple[standard.Statement, ...]
    reproducer: str | None

    @property
    def reproducer_path(self) -> str:
        """The path of the reproducer; "" if there is none."""
        return "" if self.reproducer is None else f"{REPRODUCERS}/{self.stem}.py"

    @property
    def bug_report_path(self) -> str:
        return f"{BUG_REPORTS}/{self.stem}.md"

    @property
    def shown_path(self) -> str:
        """The file that shows the violation best."""
        return self.reproducer_path or self.bug_report_path


def list_case_files(report: ExaminationReport) -> dict[tuple[str, str], CaseFiles]:
    """By case and version, for every violated case."""
    found: dict[tuple[str, str], CaseFiles] = {}
    used: set[str] = set()
    known = {
        (version, each.id): each
        for version in report.versions
        for each in standard.statements(version)
    }
    for outcome in report.failed():
        stem = name = file_stem(outcome.case, outcome.version)
        number = 2
        # Systems that ignore case must not mix up two files.
        while name.lower() in used:
            name = f"{stem}-{number}"
            number += 1
        used.add(name.lower())
        keys = [(outcome.version, each) for each in outcome.statements]
        named = tuple(known[key] for key in keys if key in known)
        make = make_reproducer if outcome.adapter is None else make_codec_reproducer
        text = make(report, outcome, named)
        found[outcome.case, outcome.version] = CaseFiles(name, named, text)
    return found

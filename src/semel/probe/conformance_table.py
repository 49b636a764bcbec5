"""The table `conformance`: a row per run, subject, version and statement, with its evidence.

`latest_reports` is the query over it of which the matrix page is made: the newest run of each
subject, whichever command or cluster has examined it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from semel.extras import need
from semel.pipeline.run_table import PARTITION, append_run_rows, read_run_rows
from semel.probe.outcomes import CaseOutcome, ExaminationReport, StatementVerdict
from semel.probe.verdicts import FAILED

CONFORMANCE_TABLE: Final = "conformance"
COMMAND: Final = "semel probe matrix"


@dataclass
class StoredReport(ExaminationReport):
    """A report read from the table: its statements, without the cases."""

    stored: list[StatementVerdict] = field(default_factory=list)

    def statements(self) -> list[StatementVerdict]:
        return self.stored


def append_reports(address: str, reports: Sequence[ExaminationReport], run: str) -> int:
    """Append all reports of a run in one commit. Returns the version. Raises TableError."""
    pyarrow = need("pyarrow", extra="sql", by=COMMAND)
    moment = pyarrow.timestamp("us", tz="UTC")
    schema = pyarrow.schema(
        [
            (PARTITION, pyarrow.date32()),
            ("run", pyarrow.string()),
            ("examined_at", moment),
            ("subject", pyarrow.string()),
            ("kind", pyarrow.string()),
            ("address", pyarrow.string()),
            ("version", pyarrow.string()),
            ("statement", pyarrow.string()),
            ("section", pyarrow.string()),
            ("sentence", pyarrow.string()),
            ("verdict", pyarrow.string()),
            ("why", pyarrow.string()),
            ("by_path", pyarrow.string()),
            ("evidence", pyarrow.string()),
            ("semel", pyarrow.string()),
        ]
    )
    rows = [row for report in reports for row in report_rows(report, run)]
    table = pyarrow.Table.from_pylist(rows, schema=schema)
    return append_run_rows(address, table, command=COMMAND, way_out="choose another --lake")


def report_rows(report: ExaminationReport, run: str) -> list[dict[str, Any]]:
    """The rows of one report. Evidence is that of the violated cases, as JSON."""
    violated: dict[tuple[str, str], list[CaseOutcome]] = {}
    for outcome in report.outcomes:
        if outcome.verdict in FAILED:
            for statement in outcome.statements:
                violated.setdefault((outcome.version, statement), []).append(outcome)
    at = datetime.fromtimestamp(report.started, UTC)
    return [
        {
            PARTITION: at.date(),
            "run": run,
            "examined_at": at,
            "subject": report.name,
            "kind": report.kind,
            "address": report.subject,
            "version": each.version,
            "statement": each.id,
            "section": each.section,
            "sentence": each.sentence,
            "verdict": each.verdict,
            "why": each.why,
            "by_path": json.dumps(dict(each.by_path)),
            "evidence": json.dumps(
                [outcome.as_json() for outcome in violated.get((each.version, each.id), ())]
            ),
            "semel": report.semel_version,
        }
        for each in report.statements()
    ]


def latest_reports(address: str) -> list[StoredReport]:
    """The newest examination of each subject, in the order of their names. Raises TableError."""
    table = read_run_rows(address, command=COMMAND)
    if table is None:
        return []
    newest: dict[str, tuple[datetime, str]] = {}
    rows = table.to_pylist()
    for row in rows:
        key = (row["examined_at"], row["run"])
        newest[row["subject"]] = max(newest.get(row["subject"], key), key)
    reports: dict[str, StoredReport] = {}
    for row in rows:
        name = row["subject"]
        if (row["examined_at"], row["run"]) != newest[name]:
            continue
        if name not in reports:
            reports[name] = StoredReport(
                kind=row["kind"],
                subject=row["address"],
                name=name,
                started=row["examined_at"].timestamp(),
                seconds=0.0,
                seed=0,
                versions=(),
                outcomes=[],
                semel_version=row["semel"],
            )
        report = reports[name]
        if row["version"] not in report.versions:
            report.versions = (*report.versions, row["version"])
        report.stored.append(
            StatementVerdict(
                row["version"],
                row["statement"],
                row["section"],
                row["sentence"],
                row["verdict"],
                row["why"],
                json.loads(row["by_path"]),
                (),
            )
        )
    return [reports[name] for name in sorted(reports)]

"""A report as SARIF 2.1.0, which code scanning services read: one result per violated case."""

import hashlib
import json
from datetime import UTC, datetime
from typing import Final

from semel.probe.outcomes import CaseOutcome, ExaminationReport, StatementVerdict
from semel.probe.report.safe_strings import visible_text
from semel.probe.verdicts import FAILED

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def make_sarif(report: ExaminationReport, locations: dict[tuple[str, str], str]) -> str:
    """The JSON text. `locations` has, by case and version, the file that shows a violation.

    Code scanning services need a file for each result; its path is relative to the report.
    """
    statements = report.statements()
    index = {(each.version, each.id): number for number, each in enumerate(statements)}
    results = [
        _result(report, outcome, index, locations.get((outcome.case, outcome.version), ""))
        for outcome in report.outcomes
        if outcome.verdict in FAILED
    ]
    run = {
        "tool": {
            "driver": {
                "name": "semel probe",
                "version": report.semel_version or "0",
                "rules": [_rule(each) for each in statements],
            }
        },
        "automationDetails": {"id": f"semel-probe/{visible_text(report.name or report.kind)}/"},
        "invocations": [
            {
                "executionSuccessful": True,
                "startTimeUtc": _utc(report.started),
                "endTimeUtc": _utc(report.started + report.seconds),
            }
        ],
        "columnKind": "unicodeCodePoints",
        "results": results,
        "properties": {
            "subject": visible_text(report.subject),
            "kind": report.kind,
            "seed": report.seed,
            "remarks": [visible_text(each) for each in report.remarks],
        },
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}) + "\n"


def _rule(statement: StatementVerdict) -> dict[str, object]:
    """A rule. Both versions have statements with the same number, so the version is in its id."""
    return {
        "id": f"{statement.version}/{statement.id}",
        "name": statement.id.replace("-", "").replace(".", "_"),
        "shortDescription": {"text": f"[{statement.id}] MQTT {statement.version}"},
        "fullDescription": {"text": statement.sentence},
        "help": {"text": f"MQTT {statement.version}, {statement.section}: {statement.sentence}"},
        "defaultConfiguration": {"level": "error"},
        "properties": {"section": statement.section, "verdict": statement.verdict},
    }


def _result(
    report: ExaminationReport,
    outcome: CaseOutcome,
    index: dict[tuple[str, str], int],
    location: str,
) -> dict[str, object]:
    first = outcome.statements[0] if outcome.statements else ""
    numbers = ", ".join(outcome.statements)
    text = (
        f"{visible_text(outcome.found)} (required: {visible_text(outcome.title)}; "
        f"MQTT {outcome.version}, {numbers})"
    )
    key = f"{report.kind}\0{outcome.version}\0{outcome.case}"
    found: dict[str, object] = {
        "ruleId": f"{outcome.version}/{first}",
        "level": "error",
        "message": {"text": text},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": location or "report.json"},
                    "region": {"startLine": 1},
                },
                "logicalLocations": [{"name": visible_text(outcome.case), "kind": "member"}],
            }
        ],
        "partialFingerprints": {
            "semelProbeCase/v1": hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
        },
        "properties": {
            "case": visible_text(outcome.case),
            "version": outcome.version,
            "path": outcome.path,
            "statements": list(outcome.statements),
            "runs": outcome.runs,
        },
    }
    if (outcome.version, first) in index:
        found["ruleIndex"] = index[outcome.version, first]
    return found


def _utc(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds") + "Z"

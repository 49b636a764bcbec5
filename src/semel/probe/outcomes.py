"""The outcome of one case, and the report: every statement of the standard with its verdict."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from semel import standard
from semel.probe.evidence import (
    AdapterRecord,
    WireEvent,
    adapter_record_from_json,
    event_from_json,
)
from semel.probe.verdicts import (
    FAILED,
    NOT_APPLICABLE,
    NOT_EXAMINED,
    NOT_OBSERVABLE,
    PATHS,
    VERDICTS,
    combine,
)

# What is examined.
BROKER: Final = "broker"
CLIENT: Final = "client"
CODEC: Final = "codec"
# The form of the JSON report; a reader refuses others.
FORM: Final = 1
# The remark of a report that Ctrl-C ended early.
INTERRUPTION: Final = "Interrupted: the other cases were not run."


@dataclass(frozen=True)
class CaseOutcome:
    """What one case found. `case` is its name, unique with `version`."""

    case: str
    # "3.1.1" or "5.0"
    version: str
    # encode, decode, send or receive
    path: str
    statements: tuple[str, ...]
    # What the case requires of the subject, as a sentence.
    title: str
    verdict: str
    # What was found, as a sentence; with ARGUABLE the reading.
    found: str
    evidence: tuple[WireEvent, ...] = ()
    # How often it was run until the verdict was certain.
    runs: int = 1
    seconds: float = 0.0
    # Of a violated case of a codec, unless its packets are very long.
    adapter: AdapterRecord | None = None

    def as_json(self) -> dict[str, object]:
        value: dict[str, object] = {
            "case": self.case,
            "version": self.version,
            "path": self.path,
            "statements": list(self.statements),
            "title": self.title,
            "verdict": self.verdict,
            "found": self.found,
            "runs": self.runs,
            "seconds": round(self.seconds, 3),
            "evidence": [event.as_json() for event in self.evidence],
        }
        if self.adapter is not None:
            value["adapter"] = self.adapter.as_json()
        return value


@dataclass(frozen=True)
class StatementVerdict:
    """One statement of the standard in a report."""

    version: str
    id: str
    section: str
    # The statement in our words.
    sentence: str
    verdict: str
    # Why there is no other verdict, where no case decided it.
    why: str
    # The verdict by path, only those that were examined.
    by_path: Mapping[str, str]
    # The names of the cases that contribute.
    cases: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        return {
            "version": self.version,
            "id": self.id,
            "section": self.section,
            "sentence": self.sentence,
            "verdict": self.verdict,
            "why": self.why,
            "by_path": dict(self.by_path),
            "cases": list(self.cases),
        }


@dataclass
class ExaminationReport:
    """All that one run found."""

    # BROKER, CLIENT or CODEC; several, joined with "+", in a combined report.
    kind: str
    # The address or the command, without passwords.
    subject: str
    # What the user calls it, for tables of several reports.
    name: str
    # Seconds since 1970.
    started: float
    seconds: float
    seed: int
    versions: tuple[str, ...]
    outcomes: list[CaseOutcome]
    # Sentences about the run: interrupted, selected cases only, features that the subject refused.
    remarks: list[str] = field(default_factory=list)
    semel_version: str = ""

    def statements(self) -> list[StatementVerdict]:
        """Every statement of the examined versions, in the order of the standard."""
        return [
            verdict
            for version in self.versions
            for verdict in statement_verdicts(version, self.kind, self.outcomes)
        ]

    def failed(self) -> list[CaseOutcome]:
        """The cases that were violated, in the order of the run."""
        return [outcome for outcome in self.outcomes if outcome.verdict in FAILED]

    def as_json(self) -> dict[str, object]:
        return {
            "form": FORM,
            "kind": self.kind,
            "subject": self.subject,
            "name": self.name,
            "semel": self.semel_version,
            "started": round(self.started, 3),
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
            "versions": list(self.versions),
            "remarks": list(self.remarks),
            "totals": {
                version: totals(statement_verdicts(version, self.kind, self.outcomes))
                for version in self.versions
            },
            "statements": [verdict.as_json() for verdict in self.statements()],
            "cases": [outcome.as_json() for outcome in self.outcomes],
        }


class CannotExamine(Exception):
    """The subject cannot be examined at all: the reason, in one sentence."""


class BadReport(ValueError):
    """A file that is not a report of `semel probe`: what is wrong with it, in one sentence."""


def report_from_json(value: object) -> ExaminationReport:
    """The report that `as_json` wrote. Raises BadReport."""
    if not isinstance(value, dict) or value.get("form") != FORM:
        raise BadReport(f"not a report of semel probe (form {FORM})")
    try:
        return ExaminationReport(
            kind=str(value["kind"]),
            subject=str(value["subject"]),
            name=str(value["name"]),
            started=float(value["started"]),
            seconds=float(value["seconds"]),
            seed=int(value["seed"]),
            versions=tuple(str(version) for version in value["versions"]),
            outcomes=[_outcome_from_json(entry) for entry in value["cases"]],
            remarks=[str(remark) for remark in value["remarks"]],
            semel_version=str(value["semel"]),
        )
    except (KeyError, TypeError, ValueError, AssertionError) as problem:
        raise BadReport(f"the report is damaged: {problem!r}") from None


def _outcome_from_json(value: dict[str, object]) -> CaseOutcome:
    verdict = str(value["verdict"])
    if verdict not in VERDICTS:
        raise ValueError(f"unknown verdict {verdict!r}")
    statements, evidence = value["statements"], value["evidence"]
    runs, seconds = value["runs"], value["seconds"]
    # Reports of brokers and clients do not have it, nor do those of earlier versions.
    adapter = value.get("adapter")
    assert adapter is None or isinstance(adapter, dict)
    assert isinstance(statements, list)
    assert isinstance(evidence, list)
    assert isinstance(runs, int)
    assert isinstance(seconds, float | int)
    return CaseOutcome(
        case=str(value["case"]),
        version=str(value["version"]),
        path=str(value["path"]),
        statements=tuple(str(statement) for statement in statements),
        title=str(value["title"]),
        verdict=verdict,
        found=str(value["found"]),
        evidence=tuple(event_from_json(event) for event in evidence),
        runs=runs,
        seconds=float(seconds),
        adapter=None if adapter is None else adapter_record_from_json(adapter),
    )


def totals(verdicts: Sequence[StatementVerdict]) -> dict[str, int]:
    """How many statements have each verdict; verdicts that none has are left out."""
    counts = dict.fromkeys(VERDICTS, 0)
    for statement in verdicts:
        counts[statement.verdict] += 1
    return {verdict: number for verdict, number in counts.items() if number}


def statement_verdicts(
    version: str, kind: str, outcomes: Iterable[CaseOutcome]
) -> list[StatementVerdict]:
    """Every statement of a version with its verdict: none is left out."""
    by_statement: dict[str, list[CaseOutcome]] = {}
    for outcome in outcomes:
        if outcome.version == version:
            for statement in outcome.statements:
                by_statement.setdefault(statement, []).append(outcome)
    verdicts = []
    for known in standard.statements(version):
        found = by_statement.pop(known.id, [])
        by_path = {
            path: combine(outcome.verdict for outcome in found if outcome.path == path)
            for path in PATHS
            if any(outcome.path == path for outcome in found)
        }
        verdict = combine(by_path.values())
        why = ""
        if not found:
            verdict, why = _without_cases(known, kind)
        elif verdict not in FAILED and len(found) == 1:
            why = found[0].found
        verdicts.append(
            StatementVerdict(
                version,
                known.id,
                known.section,
                known.paraphrase,
                verdict,
                why,
                by_path,
                tuple(outcome.case for outcome in found),
            )
        )
    assert not by_statement, f"cases name statements that do not exist: {sorted(by_statement)}"
    return verdicts


def _without_cases(known: standard.Statement, kind: str) -> tuple[str, str]:
    """The verdict on a statement that no case examined, and the reason."""
    if known.observable == ("no",):
        return NOT_OBSERVABLE, "nothing that is sent or received shows it"
    reasons = [_not_bound(known, each) for each in kind.split("+")]
    if all(reasons):
        return NOT_APPLICABLE, reasons[0]
    return NOT_EXAMINED, "no case of this run examines it"


def _not_bound(known: standard.Statement, kind: str) -> str:
    """Why a statement does not bind such a subject; empty if it does."""
    if kind == BROKER and known.actor == "client":
        return "it binds clients: semel probe client examines it"
    if kind == CLIENT and known.actor == "server":
        return "it binds servers: semel probe mqtt://… examines it"
    if kind == CODEC and not {"encode", "decode"} & set(known.observable):
        return "it is about connections, not about single packets"
    return ""


def combine_reports(reports: Sequence[ExaminationReport], name: str) -> ExaminationReport:
    """One report of several on parts of one implementation: its broker, its client, its codec.

    A rule that one part keeps and another breaks is then partly satisfied. Names of cases get the
    kind of the part before them, as two parts may have cases of the same name.
    """
    kinds = list(dict.fromkeys(report.kind for report in reports))
    versions = dict.fromkeys(version for report in reports for version in report.versions)
    return ExaminationReport(
        kind="+".join(kinds),
        subject=", ".join(report.subject for report in reports),
        name=name or " + ".join(dict.fromkeys(report.name for report in reports)),
        started=min(report.started for report in reports),
        seconds=sum(report.seconds for report in reports),
        seed=reports[0].seed,
        versions=tuple(sorted(versions)),
        outcomes=[
            replace(outcome, case=f"{report.kind}-{outcome.case}")
            for report in reports
            for outcome in report.outcomes
        ],
        remarks=[f"{report.name}: {remark}" for report in reports for remark in report.remarks],
        semel_version=reports[0].semel_version,
    )

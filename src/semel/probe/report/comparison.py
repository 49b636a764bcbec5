"""What changed between two reports of a subject, statement by statement."""

from dataclasses import dataclass, field
from typing import Final

from semel.probe.outcomes import ExaminationReport, StatementVerdict
from semel.probe.verdicts import ARGUABLE, FAILED, PARTLY, SATISFIED, VIOLATED

# Verdicts with which a subject passes.
_PASSED: Final = frozenset((SATISFIED, ARGUABLE))


@dataclass(frozen=True)
class StatementChange:
    """A statement whose verdict, or that of one of its cases, differs between two reports."""

    version: str
    id: str
    section: str
    sentence: str
    # The verdicts; None in a report that did not examine the version.
    before: str | None
    after: str | None
    # Cases that passed before and are violated now, and those that were violated and pass now.
    broken_cases: tuple[str, ...] = ()
    repaired_cases: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "version": self.version,
            "id": self.id,
            "section": self.section,
            "sentence": self.sentence,
            "before": self.before,
            "after": self.after,
            "broken_cases": list(self.broken_cases),
            "repaired_cases": list(self.repaired_cases),
        }


@dataclass
class Comparison:
    """The changes from an old report to a new one, in the order of the standard."""

    # A statement or one of its cases passed and is violated now.
    regressed: list[StatementChange] = field(default_factory=list)
    # A statement or one of its cases was violated and passes now, and no case regressed.
    improved: list[StatementChange] = field(default_factory=list)
    # Other verdicts than before: undecided, not examined any more, examined for the first time.
    changed: list[StatementChange] = field(default_factory=list)
    # Statements of versions that only one of the reports has.
    new: list[StatementChange] = field(default_factory=list)
    gone: list[StatementChange] = field(default_factory=list)
    unchanged: int = 0
    # Sentences about what makes the reports hard to compare.
    remarks: list[str] = field(default_factory=list)

    @property
    def has_regression(self) -> bool:
        return bool(self.regressed)

    def as_json(self) -> dict[str, object]:
        return {
            "has_regression": self.has_regression,
            "regressed": [each.as_json() for each in self.regressed],
            "improved": [each.as_json() for each in self.improved],
            "changed": [each.as_json() for each in self.changed],
            "new": [each.as_json() for each in self.new],
            "gone": [each.as_json() for each in self.gone],
            "unchanged": self.unchanged,
            "remarks": list(self.remarks),
        }


def compare(old: ExaminationReport, new: ExaminationReport) -> Comparison:
    """Compare two reports. Undecided verdicts are shown, and are no regression."""
    before = {(each.version, each.id): each for each in old.statements()}
    after = {(each.version, each.id): each for each in new.statements()}
    old_cases = {(each.version, each.case): each.verdict for each in old.outcomes}
    new_cases = {(each.version, each.case): each.verdict for each in new.outcomes}
    found = Comparison()
    if old.kind != new.kind:
        found.remarks.append(f"the old report examined a {old.kind}, the new one a {new.kind}")
    # A version that is new comes where it stands in the new report.
    for key in [*after, *(key for key in before if key not in after)]:
        change = _change(before.get(key), after.get(key), old_cases, new_cases)
        if change.before is None:
            found.new.append(change)
        elif change.after is None:
            found.gone.append(change)
        elif _is_regression(change):
            found.regressed.append(change)
        elif _is_improvement(change):
            found.improved.append(change)
        elif change.before != change.after:
            found.changed.append(change)
        else:
            found.unchanged += 1
    return found


def _change(
    before: StatementVerdict | None,
    after: StatementVerdict | None,
    old_cases: dict[tuple[str, str], str],
    new_cases: dict[tuple[str, str], str],
) -> StatementChange:
    known = after or before
    assert known is not None
    cases = [(known.version, case) for case in dict.fromkeys(known.cases)]
    pairs = [(key[1], old_cases.get(key), new_cases.get(key)) for key in cases]
    return StatementChange(
        known.version,
        known.id,
        known.section,
        known.sentence,
        None if before is None else before.verdict,
        None if after is None else after.verdict,
        tuple(case for case, was, now in pairs if was in _PASSED and now in FAILED),
        tuple(case for case, was, now in pairs if was in FAILED and now in _PASSED),
    )


def _is_regression(change: StatementChange) -> bool:
    """Also if the statement was violated before, but in other cases."""
    return bool(change.broken_cases) or (change.before in _PASSED and change.after in FAILED)


def _is_improvement(change: StatementChange) -> bool:
    if change.before == VIOLATED and change.after == PARTLY:
        return True
    return bool(change.repaired_cases) or (change.before in FAILED and change.after in _PASSED)

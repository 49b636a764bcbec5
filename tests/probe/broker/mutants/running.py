"""Examines a mutant, and compares what is blamed with what the table expects."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import import_module
from inspect import getclosurevars
from pkgutil import iter_modules
from typing import Final
from unittest.mock import patch
from zlib import crc32

from semel.client.address import Address
from semel.probe import broker
from semel.probe.broker import trial
from semel.probe.broker.case import Case
from semel.probe.broker.examination import Examination
from semel.probe.broker.trial import Subject
from semel.probe.claims import VERSION_NAMES
from semel.probe.outcomes import ExaminationReport
from semel.probe.verdicts import FAILED, INCONCLUSIVE
from semel.probe.wire_vectors import WireVector
from tests.probe.broker.mutants.companions import COMPANIONS
from tests.probe.broker.mutants.form import BrokerMutant, sorted_ids
from tests.probe.broker.mutants.source import SOURCES, RuleRemoval

ROOT: Final = SOURCES.parent
START_SECONDS: Final = 30.0
# Beside the cases of the mutant's own statements, one in this many is run: of those that are
# written by hand, and of those from vectors.
SAMPLE: Final = 10
VECTOR_SAMPLE: Final = 100
VERSIONS: Final = (4, 5)
# How the title of a case begins that is a right packet from a vector.
RIGHT_PACKET: Final = "A broker accepts what is right"
# Our broker closes at once what it closes, so that mutants need not be given time for it.
CLOSE_GRACE: Final = 0.05
# How many times as long a mutant gets on a machine that was too busy for the first examination.
PATIENCE: Final = 10


def all_cases() -> tuple[Case, ...]:
    """The cases of every module cases_*.py: also of one that all_cases.py does not list yet."""
    cases: list[Case] = []
    for module in sorted(each.name for each in iter_modules(broker.__path__)):
        if module.startswith("cases_"):
            cases += import_module(f"semel.probe.broker.{module}").CASES
    return tuple(cases)


def broken_rule(case: Case) -> str:
    """The rule that the case of a vector breaks; "" if its packet is right, or it has none."""
    vector = getclosurevars(case.run).nonlocals.get("vector")
    if isinstance(vector, WireVector) and vector.rule is not None:
        return vector.rule.name
    return ""


class CaseSelection:
    """Chooses the cases for a mutant."""

    def __init__(self) -> None:
        self.cases = all_cases()
        self._rules = {case: broken_rule(case) for case in self.cases if case.is_from_vector}

    def every(self) -> list[Case]:
        """All cases, but those that restart the broker or need another transport."""
        return [case for case in self.cases if not case.needs]

    def some(self, mutant: BrokerMutant) -> list[Case]:
        """The hand-written cases of the mutant's statements, some vectors, a sample of the rest."""
        removed = {each.rule for each in mutant.changes if isinstance(each, RuleRemoval)}
        removed.update(mutant.rules)
        allowed = mutant.allowed(4) | mutant.allowed(5)
        chosen = []
        taken: dict[tuple[str, ...], int] = {}
        for case in sorted(self.every(), key=lambda each: number_of(mutant, each)):
            named = (*case.statements(4), *case.statements(5))
            if case.is_slow:
                is_chosen = any(fnmatchcase(case.name, pattern) for pattern in mutant.slow)
            elif number_of(mutant, case) % (VECTOR_SAMPLE if case.is_from_vector else SAMPLE) == 0:
                is_chosen = True
            elif not case.is_from_vector:
                is_chosen = not allowed.isdisjoint(named)
            elif self._rules[case]:
                is_chosen = self._rules[case] in removed and taken.get(named, 0) < mutant.vectors
            else:
                # What a mutant refuses that is too strict is right in most other cases.
                is_chosen = mutant.is_strict and not allowed.isdisjoint(named)
            if is_chosen:
                taken[named] = taken.get(named, 0) + 1
                chosen.append(case)
        return chosen


def number_of(mutant: BrokerMutant, case: Case) -> int:
    """A number that differs from mutant to mutant, but not from run to run."""
    return crc32(f"{mutant.name} {case.name} {case.mqtt5 != ''}".encode())


@contextmanager
def running(name: str) -> Iterator[int]:
    """A mutant in a process of its own: yields its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.probe.broker.mutants.broker", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{SOURCES}{os.pathsep}{ROOT}"},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def examine(mutant: BrokerMutant, cases: Sequence[Case]) -> ExaminationReport:
    """The report on a mutant, which is started and stopped."""
    with running(mutant.name) as port, patch.object(trial, "CLOSE_GRACE", CLOSE_GRACE):
        subject = Subject(
            Address("mqtt", "127.0.0.1", port), prefix="semel-probe", timeout=mutant.timeout
        )
        examination = Examination(subject, cases, versions=VERSIONS, seed=18, name=mutant.name)
        asyncio.run(examination.run())
        return examination.report()


def examine_until_clear(mutant: BrokerMutant, cases: Sequence[Case]) -> "MutantResult":
    """What is wrong with the report on a mutant. On a busy machine it is examined once more.

    A mutant that answers too late for a step leaves its case undecided, or seems to be silent.
    """
    result = compare(mutant, examine(mutant, cases))
    if not result.problems:
        return result
    return compare(mutant, examine(replace(mutant, timeout=PATIENCE * mutant.timeout), cases))


@dataclass
class MutantResult:
    """What is wrong with a report on a mutant: sentences, one per line. Empty: all is right."""

    problems: list[str] = field(default_factory=list)
    blamed: dict[int, set[str]] = field(default_factory=dict)


def compare(mutant: BrokerMutant, report: ExaminationReport) -> MutantResult:
    """Compare what a report blames with what the table expects and explains."""
    result = MutantResult()
    for version in VERSIONS:
        name = VERSION_NAMES[version]
        outcomes = [each for each in report.outcomes if each.version == name]
        blamed = {each for one in outcomes if one.verdict in FAILED for each in one.statements}
        result.blamed[version] = blamed
        expected, allowed = mutant.expected(version), mutant.allowed(version)
        if expected and not blamed & expected:
            result.problems.append(
                f"{name}: none of {sorted_ids(expected)} is blamed, but {sorted_ids(blamed)}"
            )
        for one in outcomes:
            unexplained = set(one.statements) - allowed
            if one.case in COMPANIONS and unexplained != set(one.statements):
                continue
            if one.verdict in FAILED and one.found.startswith(mutant.lost):
                continue
            if mutant.is_strict and one.title.startswith(RIGHT_PACKET):
                # Any right packet that the mutant refuses is blamed on the statements of its
                # vector, whichever of its parts the mutant objects to.
                continue
            if one.verdict in FAILED and unexplained:
                result.problems.append(
                    f"{name}: {one.case} blames {sorted_ids(unexplained)}: {one.found}"
                )
            elif one.verdict == INCONCLUSIVE and unexplained == set(one.statements):
                if not any(fnmatchcase(one.case, pattern) for pattern in mutant.undecided):
                    result.problems.append(f"{name}: {one.case} is undecided: {one.found}")
    result.problems += report.remarks
    return result

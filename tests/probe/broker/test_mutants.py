"""The soundness of the broker's examination: each mutant is caught, and for the right reason.

The cases are those of the mutant's statements and a sample of the others. `make test` has every
fifth mutant and those of the origin, `make test-long` all of them, and `make probe-mutants` runs
each with all cases (tests/long/probe_mutants.py).
"""

from functools import cache

import pytest

from semel import standard
from semel.mqtt import RULES
from semel.probe.claims import VERSION_NAMES
from semel.probe.outcomes import CannotExamine
from tests.modes import some
from tests.probe.broker.mutants.companions import COMPANIONS
from tests.probe.broker.mutants.form import BrokerMutant
from tests.probe.broker.mutants.lawful_mutants import MUTE
from tests.probe.broker.mutants.running import VERSIONS, CaseSelection, examine, examine_until_clear
from tests.probe.broker.mutants.source import (
    CannotMutate,
    Edit,
    RuleRemoval,
    changed_modules,
    install,
    source_path,
)
from tests.probe.broker.mutants.table import GUILTY, LAWFUL

EVERY = (*GUILTY, *LAWFUL)


@cache
def selection() -> CaseSelection:
    return CaseSelection()


def is_of_the_origin(mutant: BrokerMutant) -> bool:
    return "origin, case" in mutant.what


def name_of(mutant: BrokerMutant) -> str:
    return mutant.name


@pytest.mark.parametrize("mutant", some(GUILTY, 5, is_of_the_origin), ids=name_of)
def test_a_mutant_is_caught_and_blamed_on_the_right_statement(mutant: BrokerMutant) -> None:
    result = examine_until_clear(mutant, selection().some(mutant))
    assert not result.problems, "\n".join([mutant.what, *result.problems])


@pytest.mark.parametrize("mutant", some(LAWFUL, 3), ids=name_of)
def test_a_broker_that_uses_the_freedom_of_the_standard_is_not_blamed(mutant: BrokerMutant) -> None:
    result = examine_until_clear(mutant, selection().some(mutant))
    assert not result.problems, "\n".join([mutant.what, *result.problems])


def test_a_broker_without_pingresp_cannot_be_examined() -> None:
    with pytest.raises(CannotExamine, match="the broker sent nothing within 2 s"):
        examine(MUTE, [])


# --- the table ---


def test_there_are_sixty_mutants_and_fifteen_that_are_too_strict() -> None:
    strict = [mutant for mutant in GUILTY if mutant.is_strict]
    assert len(strict) >= 15
    assert len(GUILTY) - len(strict) >= 60
    assert len({mutant.name for mutant in EVERY}) == len(EVERY)


def test_every_case_of_the_origin_has_a_mutant() -> None:
    text = " ".join(mutant.what for mutant in GUILTY)
    for number in range(1, 6):
        assert f"origin, case {number}" in text


@pytest.mark.parametrize("mutant", EVERY, ids=name_of)
def test_a_mutant_changes_what_it_names_once_and_blames_statements_that_exist(
    mutant: BrokerMutant,
) -> None:
    changed = changed_modules(mutant.changes)
    for module, source in changed.items():
        compile(source, module, "exec")
        assert source != source_path(module).read_text()
    assert mutant.what.endswith(".")
    for version in VERSIONS:
        known = {each.id for each in standard.statements(VERSION_NAMES[version])}
        assert mutant.allowed(version) <= known
    for each in mutant.changes:
        if isinstance(each, RuleRemoval):
            assert each.rule in {rule.name for rule in RULES}


def test_every_companion_is_a_case() -> None:
    assert set(COMPANIONS) <= {case.name for case in selection().cases}


def test_a_removal_takes_one_statement_and_leaves_the_others() -> None:
    source = (
        "def check(value, found):\n"
        "    if value == 1:\n"
        "        raise Violation(ONE, 'one')\n"
        "    if value == 2:\n"
        "        report(found, Violation(TWO, 'two'))\n"
    )
    without_one = RuleRemoval("ONE").changed_source(source)
    without_two = RuleRemoval("TWO").changed_source(source)
    assert "raise" not in without_one
    assert "report(found, Violation(TWO, 'two'))" in without_one
    assert "raise Violation(ONE, 'one')" in without_two
    assert "report" not in without_two


@pytest.mark.parametrize("rule", ["THREE", "TWICE"])
def test_a_rule_that_not_exactly_one_statement_checks_cannot_be_removed(rule: str) -> None:
    source = "raise Violation(TWICE, '')\nraise Violation(TWICE, '')\n"
    with pytest.raises(CannotMutate):
        RuleRemoval(rule).changed_source(source)


def test_a_text_that_does_not_occur_once_cannot_be_replaced() -> None:
    with pytest.raises(CannotMutate, match="has this text 2 times: 'a'"):
        Edit("broker.core", "a", "b").changed_source("a a")
    with pytest.raises(CannotMutate, match="has this text 0 times"):
        Edit("broker.core", "a", "b").changed_source("")


def test_a_module_that_is_imported_already_cannot_be_changed() -> None:
    with pytest.raises(AssertionError, match="already imported"):
        install((RuleRemoval("DUP_NEEDS_QOS"),))

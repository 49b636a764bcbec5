"""Each fault of a codec is found, and blamed on the statements that it breaks and on no others.

A lax mutant may be blamed for what the switched-off rule claims. What else a mutant is blamed for
stands in `EXPLAINED` with the reason.
"""

import asyncio
import sys
from pathlib import Path

import pytest

from semel.mqtt import RULES, Rule
from semel.probe.codec.cases import LEVELS
from semel.probe.codec.examination import examine_codec
from semel.probe.outcomes import CaseOutcome, ExaminationReport
from semel.probe.verdicts import ARGUABLE, FAILED, INCONCLUSIVE, SATISFIED, VIOLATED
from tests.modes import some
from tests.probe.codec.mutants import LAX_DECODERS, LAX_ENCODERS, MUTANTS

PROGRAM = Path(__file__).with_name("mutants.py")
RULE_BY_NAME = {rule.name: rule for rule in RULES}

# What each other mutant must be blamed for: statements of 3.1.1, then of 5.0.
REQUIRED = {
    "decode refuses a password without a user name": ((), ("3.1.2-19",)),
    "encode refuses a password without a user name": ((), ("3.1.2-19",)),
    "decode refuses U+FEFF": (("1.5.3-3",), ("1.5.4-3",)),
    "decode refuses DUP": (("3.3.1-2",), ("3.3.1-2",)),
    "decode refuses the short form of a PUBACK": ((), ("2.2.2-1", "3.4.2-1")),
    "decode refuses an empty payload": (("3.3.1-10",), ("3.3.1-6",)),
    "decode refuses a repeated user property": ((), ("3.3.2-17", "3.3.2-18")),
    "decode refuses a Packet Identifier of 65535": (("2.3.1-1",), ("2.2.1-3", "2.2.1-4")),
    "decode refuses the longest topics": (("4.7.3-3",), ("4.7.3-3",)),
    "decode refuses reason 0x10 in PUBACK": ((), ("3.4.2-1",)),
    "decode refuses shared subscriptions": ((), ("4.8.2-1", "4.8.2-2")),
    "encode refuses the longest topics": (("4.7.3-3",), ("4.7.3-3",)),
    "encode refuses a will that is retained": (("3.1.2-9",), ("3.1.2-9",)),
    "encode refuses a repeated user property": ((), ("3.3.2-17", "3.3.2-18")),
    "decode strips U+FEFF": (("1.5.3-3",), ("1.5.4-3",)),
    "decode reads DUP as 0": (("3.3.1-2",), ("3.3.1-2",)),
    "decode reads Session Present as 0": (("3.2.2-2",), ("3.2.2-3",)),
    "encode writes DUP at QoS 0": (("3.3.1-2", "4.3.1-1"), ("3.3.1-2", "4.3.1-1")),
    "encode writes long lengths": ((), ("1.5.5-1",)),
    "encode writes PUBREL without its flags": (("2.2.2-1", "3.6.1-1"), ("2.1.3-1", "3.6.1-1")),
    "encode writes UNSUBACK without Property Length": ((), ("3.11.3-2",)),
    "encode writes the reserved flag of CONNECT": (("3.1.2-3",), ("3.1.2-3",)),
    "encode writes reserved flags of CONNACK": (("U3-05",), ("3.2.2-1",)),
}
# What a mutant is blamed for besides, and why that is right.
EXPLAINED = {
    # Every flag of a PUBLISH is a case of "QoS is not 3", which DUP is part of.
    "decode refuses DUP": (("3.3.1-4",), ("3.3.1-4",)),
    "decode reads DUP as 0": (("3.3.1-4",), ("3.3.1-4",)),
    # The password is the last field, whose presence the User Name Flag must not change.
    "decode refuses a password without a user name": ((), ("3.1.2-16",)),
    "encode refuses a password without a user name": ((), ("3.1.2-16",)),
    # The short form is the accept test beside the tests of flags and of identifiers.
    "decode refuses the short form of a PUBACK": ((), ("2.1.3-1", "2.2.1-5")),
    # An empty payload is the accept test beside those of QoS, topic, Property Length and format.
    "decode refuses an empty payload": (
        ("3.3.1-4", "3.3.2-1"),
        ("2.2.2-1", "3.3.1-4", "3.3.2-1", "U5-57"),
    ),
    # User properties may be repeated in every packet with properties.
    "decode refuses a repeated user property": (
        (),
        ("3.4.2-1", "3.5.2-1", "3.6.2-1", "3.7.2-1", "U5-03", "U5-73"),
    ),
    "encode refuses a repeated user property": (
        (),
        ("3.4.2-1", "3.5.2-1", "3.6.2-1", "3.7.2-1", "U5-03", "U5-73"),
    ),
    # The largest identifier occurs in the acknowledgements that repeat it.
    "decode refuses a Packet Identifier of 65535": (
        ("2.3.1-6", "2.3.1-7", "3.10.4-4", "3.8.4-2", "U3-04", "U3-07"),
        ("2.2.1-5", "2.2.1-6", "3.10.4-5", "3.8.4-2"),
    ),
    # The reason code stands in packets with and without a Property Length.
    "decode refuses reason 0x10 in PUBACK": ((), ("2.2.2-1",)),
    # In 3.1.1 such a filter is like any other, and in 5.0 the accept test beside No Local.
    "decode refuses shared subscriptions": (("4.7.3-1",), ("3.8.3-4",)),
    # A will has a QoS as well.
    "encode refuses a will that is retained": (
        ("3.1.2-11", "3.1.2-14"),
        ("3.1.2-11", "3.1.2-12"),
    ),
    # One vector has U+FEFF beside U+0001 and a character of four bytes.
    "decode strips U+FEFF": ((), ("1.5.4-1", "1.5.4-2")),
    # The flags have one bit, and it depends on the code.
    "decode reads Session Present as 0": (("3.2.2-4", "U3-05"), ("3.2.2-1", "3.2.2-6")),
}


def examine(mutant: str) -> ExaminationReport:
    return asyncio.run(examine_codec([sys.executable, str(PROGRAM), mutant], timeout=20))


def violated(report: ExaminationReport) -> list[CaseOutcome]:
    return [outcome for outcome in report.outcomes if outcome.verdict == VIOLATED]


def blamed(report: ExaminationReport, version: str) -> set[str]:
    return {
        statement
        for outcome in violated(report)
        if outcome.version == version
        for statement in outcome.statements
    }


def full(numbers: tuple[str, ...]) -> set[str]:
    return {each if each.startswith("U") else f"MQTT-{each}" for each in numbers}


def claimed(rule: Rule, version: str) -> set[str]:
    return set(rule.statements(LEVELS[version]))


def first_claims(rule: Rule, version: str) -> set[str]:
    """What the rule claims for every packet type, or all that it claims."""
    numbers = rule.mqtt5 if version == "5.0" else rule.mqtt311
    return full(tuple(each for each in numbers if ":" not in each)) or claimed(rule, version)


def check_lax(mutant: str, path: str) -> None:
    rule = RULE_BY_NAME[mutant.rpartition(" ")[2]]
    report = examine(mutant)
    assert violated(report)
    assert {outcome.path for outcome in violated(report)} == {path}
    for version in report.versions:
        found = blamed(report, version)
        assert found <= claimed(rule, version), version
        if claimed(rule, version):
            assert found & first_claims(rule, version), version
    others = {outcome.verdict for outcome in report.outcomes} - {VIOLATED, SATISFIED}
    assert others <= {ARGUABLE}


@pytest.mark.parametrize("rule", some(LAX_DECODERS, 4))
def test_a_decoder_that_does_not_check_a_rule_is_blamed_for_it(rule: str) -> None:
    check_lax(f"decode accepts {rule}", "decode")


@pytest.mark.parametrize("rule", some(LAX_ENCODERS, 4))
def test_an_encoder_that_does_not_check_a_rule_is_blamed_for_it(rule: str) -> None:
    check_lax(f"encode writes {rule}", "encode")


@pytest.mark.parametrize("mutant", some(REQUIRED, 2))
def test_a_codec_that_is_too_strict_or_reads_or_writes_wrongly_is_blamed(mutant: str) -> None:
    report = examine(mutant)
    assert {outcome.path for outcome in violated(report)} == {mutant.split()[0]}
    for index, version in enumerate(("3.1.1", "5.0")):
        required = full(REQUIRED[mutant][index])
        explained = full(EXPLAINED.get(mutant, ((), ()))[index])
        found = blamed(report, version)
        assert required <= found, version
        assert found == required | explained, version
        # The statements fail in the report, whatever else is satisfied.
        failed = {each.id for each in report.statements() if each.verdict in FAILED}
        assert required <= failed
    for outcome in violated(report):
        assert outcome.runs == 3
        assert outcome.evidence
    # A refusal counts for nothing if its control is refused as well.
    for outcome in report.outcomes:
        if outcome.verdict == INCONCLUSIVE:
            assert "control" in outcome.found


def test_there_are_at_least_thirty_mutants_in_both_directions_and_on_both_paths() -> None:
    lax = [name for name in MUTANTS if " accepts " in name or " writes " in name]
    strict = [name for name in MUTANTS if " refuses " in name]
    assert len(MUTANTS) >= 30
    assert len(lax) >= 20
    assert len(strict) >= 10
    for names in (lax, strict):
        assert {name.split()[0] for name in names} == {"encode", "decode"}
    assert {f"decode accepts {rule}" for rule in LAX_DECODERS} < MUTANTS.keys()
    assert REQUIRED.keys() | {
        *(f"decode accepts {rule}" for rule in LAX_DECODERS),
        *(f"encode writes {rule}" for rule in LAX_ENCODERS),
    } == set(MUTANTS)
    assert EXPLAINED.keys() <= REQUIRED.keys()

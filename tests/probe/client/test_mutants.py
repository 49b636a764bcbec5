"""Soundness of `semel probe client`: each mutant of a right client is caught, and blamed rightly.

Every mutant breaks one rule of MUTANTS. It is examined with the cases that are about the rule, and
with SAMPLE, which must not blame it for anything else: `also` lists statements that are blamed,
too, each with the reason.
"""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from semel.probe.client.all_cases import ALL_CASES
from semel.probe.client.examination import ClientExamination, select_client_cases
from semel.probe.client.trial import ClientSubject
from semel.probe.outcomes import ExaminationReport
from semel.probe.verdicts import INCONCLUSIVE, VIOLATED
from tests.modes import some

PROGRAM = Path(__file__).parent / "programs" / "mutant_client.py"
PLACEHOLDERS = ("{host}", "{port}", "{level}", "{client_id}", "{topic}", "{keep_alive}")
# Examined with every mutant, so that a mutant that is blamed for all and sundry is noticed.
SAMPLE = (
    "first-qos-1",
    "qos-2-released",
    "qos-1-answered",
    "qos-2-repeated",
    "disconnect-closes",
    "refuses-connect-from-server",
)
# Seconds that a client may take to answer, once more, on a busy machine.
PATIENCE = 30.0


@dataclass(frozen=True)
class Mutant:
    """One broken rule. `blamed` are the statements, without MQTT-, that must be violated."""

    name: str
    version: int
    only: str
    blamed: str
    # Statements that are blamed, too, and why that is right.
    also: str = ""
    why: str = ""


MUTANTS = (
    # --- what it sends ---
    Mutant("reserved-connect-flag", 4, "", "3.1.2-3"),
    Mutant("pingreq-before-connect", 4, "", "3.1.0-1"),
    Mutant("two-connects", 4, "", "3.1.0-2"),
    Mutant("subscribe-flags", 4, "", "3.8.1-1 2.2.2-1"),
    Mutant("wildcard-in-a-level", 4, "", "4.7.1-2"),
    Mutant("publishes-to-wildcard", 5, "", "3.3.2-2 4.7.0-1",
           also="3.3.2-14", why="the rule is the same for Response Topics"),
    Mutant("packet-id-zero", 4, "", "2.3.1-1"),
    Mutant("same-id-twice", 5, "identifiers-*", "2.2.1-3 4.3.2-1 4.3.3-1",
           also="4.3.3-4 2.2.1-5",
           why="with one identifier for all, the PUBREL for one message is that of another"),
    Mutant("dup-on-first-send", 4, "first-*", "4.3.2-1 4.3.3-1"),
    Mutant("dup-at-qos-0", 5, "", "3.3.1-2 4.3.1-1"),
    Mutant("pubrel-without-flags", 4, "qos-2-released", "3.6.1-1 2.2.2-1"),
    Mutant("packet-after-disconnect", 4, "disconnect-*", "3.14.4-2"),
    Mutant("stays-after-disconnect", 5, "disconnect-*", "3.14.4-2"),
    Mutant("stays-after-error", 5, "error-disconnect-closes", "4.13.2-1"),
    # --- resuming ---
    Mutant("no-resend", 4, "resent-qos-1 session-kept", "4.4.0-1 3.1.2-4 4.1.0-1 3.1.3-2"),
    Mutant("no-dup-on-resend", 4, "resent-*", "3.3.1-1"),
    Mutant("new-id-on-resend", 4, "resent-qos-* resent-with-*", "4.4.0-1 2.3.1-3"),
    Mutant("resends-reversed", 4, "resent-in-order", "4.6.0-1"),
    Mutant("no-pubrel-on-resume", 5, "pubrel-resent", "4.4.0-1 4.3.3-5 4.3.3-6"),
    Mutant("publish-after-pubrel", 5, "pubrel-resent", "4.4.0-1 4.3.3-5 4.3.3-6"),
    Mutant("ignores-session-lost", 5, "session-discarded", "3.2.2-5",
           also="4.3.2-2", why="in a new session the message is sent for the first time"),
    Mutant("resends-while-connected", 5, "not-resent-while-connected", "4.4.0-1"),
    # --- receiving ---
    Mutant("delivers-repeats", 4, "", "4.3.3-2"),
    Mutant("no-pubrec-for-repeat", 5, "", "4.3.3-10"),
    Mutant("forgets-received", 4, "qos-2-across-reconnect", "4.3.3-2 3.1.2-4 4.1.0-1"),
    Mutant("puback-for-qos-2", 5, "qos-2-answered", "3.3.4-1 4.3.3-8 4.3.3-11"),
    Mutant("pubcomp-with-other-id", 4, "identifiers-echoed", "U3-07 2.3.1-6"),
    Mutant("pubacks-reversed", 5, "pubacks-in-order", "4.6.0-2"),
    Mutant("pubrecs-reversed", 4, "pubrecs-in-order", "4.6.0-3"),
    Mutant("pubrels-reversed", 5, "pubrels-in-order", "4.6.0-4"),
    Mutant("answers-qos-0", 4, "qos-0-not-answered", "3.3.4-1",
           also="2.3.1-6", why="the PUBACK fits no message"),
    Mutant("ignores-unexpected-topic", 4, "qos-1-unexpected-topic", "4.5.0-2"),
    # --- the server's mistakes ---
    Mutant("ignores-malformed", 4, "refuses-publish-topic-name-without-wildcards-*",
           "4.7.1-1 4.8.0-1", also="U3-02", why="it ignores a CONNECT of the server, too"),
    Mutant("ignores-flags", 4, "refuses-suback-fixed-header-flags-*", "2.2.2-2 4.8.0-1"),
    Mutant("answers-pingreq", 5, "refuses-pingreq-from-server", "U5-02"),
    Mutant("accepts-session-present", 5, "session-present-unexpected", "3.2.2-4"),
    # --- limits ---
    Mutant("never-pings", 4, "keep-alive", "3.1.2-23"),
    Mutant("ignores-server-keep-alive", 5, "server-keep-alive", "3.1.2-21 3.2.2-21"),
    Mutant("exceeds-receive-maximum", 5, "receive-maximum", "3.3.4-7 4.9.0-1 4.9.0-2"),
    Mutant("exceeds-packet-size", 5, "maximum-packet-size", "3.2.2-15"),
    Mutant("alias-above-maximum", 5, "*aliases*", "3.2.2-17 3.2.2-18 3.3.2-9"),
    Mutant("qos-anyway", 5, "maximum-qos", "3.2.2-11"),
    Mutant("retains-anyway", 5, "retain-available", "3.2.2-14"),
    Mutant("wildcard-anyway", 5, "wildcard-available", "U5-47"),
    Mutant("identifier-anyway", 5, "identifiers-available", "U5-48"),
    Mutant("shared-anyway", 5, "shared-available", "U5-49"),
    # --- too strict ---
    Mutant("refuses-star", 4, "accepts-publish-3-3-2-2-*", "3.3.2-2 4.7.1-1 4.7.3-1"),
    Mutant("refuses-short-puback", 5, "accepts-puback-2-2-2-1-3-4-2-1", "2.2.2-1 3.4.2-1",
           also="2.2.1-5 4.3.3-4",
           why="every PUBACK of the examiner ends the connection on which the PUBREL would come"),
    Mutant("refuses-long-puback", 5, "accepts-puback-2-2-2-1-3-4-2-1", "2.2.2-1 3.4.2-1"),
    Mutant("refuses-long-pubrel", 5, "accepts-pubrel-3-6-2-1", "3.6.2-1"),
    Mutant("refuses-unknown-dup", 4, "qos-2-unknown-dup", "4.3.3-2"),
    Mutant("refuses-repeated-pubrel", 5, "pubrel-repeated", "4.3.3-11"),
    Mutant("refuses-user-property", 5, "accepts-publish-1-5-7-1", "1.5.7-1"),
    Mutant("refuses-connack-properties", 5, "accepts-connack-u5-03", "U5-03"),
    Mutant("refuses-unexpected-topic", 5, "qos-1-unexpected-topic", "4.5.0-2"),
)  # fmt: skip


def command(mutant: str = "") -> tuple[str, ...]:
    return (sys.executable, str(PROGRAM), *PLACEHOLDERS, "--mutant", mutant)


async def examine(mutant: Mutant, timeout: float = 5.0) -> ExaminationReport:
    examination = ClientExamination(
        [ClientSubject(command(mutant.name), timeout=timeout)],
        versions=[mutant.version],
        cases=select_client_cases(only=(*mutant.only.split(), *SAMPLE)),
    )
    await examination.run()
    report = examination.report()
    if timeout < PATIENCE and not full(mutant.blamed) <= violated_statements(report):
        # On a busy machine three runs of a case may not agree: it is undecided.
        return await examine(mutant, PATIENCE)
    return report


def violated_statements(report: ExaminationReport) -> set[str]:
    return {
        statement
        for outcome in report.outcomes
        if outcome.verdict == VIOLATED
        for statement in outcome.statements
    }


def full(numbers: str) -> set[str]:
    return {each if each[0] == "U" else f"MQTT-{each}" for each in numbers.split()}


@pytest.mark.parametrize("mutant", some(MUTANTS, 4), ids=lambda mutant: mutant.name)
def test_each_mutant_is_caught_and_blamed_on_the_right_statements(mutant: Mutant) -> None:
    report = asyncio.run(examine(mutant))
    violated = violated_statements(report)
    shown = [(each.case, each.found) for each in report.outcomes if each.verdict == VIOLATED]
    assert full(mutant.blamed) <= violated, shown
    assert violated <= full(mutant.blamed) | full(mutant.also), shown
    # What is violated was seen in three processes.
    for outcome in report.failed():
        assert outcome.runs >= 3
        assert outcome.evidence


def test_there_are_mutants_of_every_kind() -> None:
    assert len(MUTANTS) >= 15
    assert sum(mutant.name.startswith("refuses-") for mutant in MUTANTS) >= 5
    assert all(bool(mutant.also) == bool(mutant.why) for mutant in MUTANTS)
    names = {case.name for case in ALL_CASES}
    assert set(SAMPLE) <= names


def test_the_client_without_a_mutation_keeps_every_statement() -> None:
    only = ("*-qos-*", "qos-*", "*-in-order", "resent-*", "refuses-publish-*", "accepts-publish-*")
    cases = [case for case in select_client_cases(only=only) if not case.is_slow]

    async def run() -> ExaminationReport:
        examination = ClientExamination(
            [ClientSubject(command(), timeout=10.0)], versions=[4, 5], cases=cases
        )
        await examination.run()
        return examination.report()

    report = asyncio.run(run())
    doubtful = [
        (each.case, each.found)
        for each in report.outcomes
        if each.verdict in (VIOLATED, INCONCLUSIVE)
    ]
    assert doubtful == []

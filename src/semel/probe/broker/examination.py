"""Runs the cases against a broker and makes the report.

    select ─▶ slow cases, lanes and all others together ─▶ restarts, one by one ─▶ report
           └▶ a case that refutes is run three times in all: only agreement is a violation

After each case a bystander, connected since the beginning, must still be answered. If it is not and
the broker accepts no new connection either, the examination ends there.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from semel import __version__, standard
from semel.mqtt import PACKET_NAMES, RULES, Rule
from semel.mqtt.codec import decode
from semel.mqtt.packet_types import PINGRESP, PUBLISH
from semel.mqtt.rules import PACKET_SIZE_WITHIN_MAXIMUM
from semel.probe import wire
from semel.probe.broker.case import WEBSOCKET, Case
from semel.probe.broker.control import BrokerControl, ControlCommandFailed
from semel.probe.broker.link import ProbeLink
from semel.probe.broker.trial import Subject, Trial
from semel.probe.claims import (
    CASE_ENDINGS,
    VERSION_NAMES,
    ClaimRefuted,
    ControlFailed,
    verdict_of,
)
from semel.probe.link_audit import AuditFinding
from semel.probe.outcomes import BROKER, CannotExamine, CaseOutcome, ExaminationReport
from semel.probe.progress import Progress
from semel.probe.verdicts import (
    ARGUABLE,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXAMINED,
    SATISFIED,
    SEND,
    VIOLATED,
)

# Runs that must agree before anything is called violated.
REPEATS = 3
# Cases that run at the same time, beside the slow ones and the lanes.
AT_ONCE = 12
SLOW_AT_ONCE = 64
# A case that takes longer is ended: none is made to.
CASE_SECONDS = 120.0
# How long a broker gets to accept a new connection before it counts as dead.
REVIVAL_SECONDS = 10.0

# Statements of PUBLISH in 5.0 that share a rule, and the field that each is about.
FIELD_OF = {
    "MQTT-3.3.2-1": "topic_name",
    "MQTT-3.3.2-2": "topic_name",
    "MQTT-3.3.2-13": "response_topic",
    "MQTT-3.3.2-14": "response_topic",
    "MQTT-3.3.2-19": "content_type",
}


@dataclass
class CaseRun:
    """One run of a case."""

    verdict: str
    found: str
    trial: Trial
    seconds: float

    def broken_rules(self) -> set[tuple[str, int]]:
        """The rules that the broker broke on the way, with the type of the packet."""
        return {
            (finding.violation.rule.name, finding.violation.packet_type)
            for finding in self.trial.findings
        }


class Examination:
    """The examination of one broker. `report` is right at any time, also after an interruption."""

    def __init__(
        self,
        subject: Subject,
        cases: Sequence[Case],
        *,
        versions: Sequence[int],
        seed: int | None = None,
        control: BrokerControl | None = None,
        name: str = "",
        at_once: int = AT_ONCE,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.subject = subject
        self.versions = list(versions)
        self.seed = random.SystemRandom().getrandbits(32) if seed is None else seed
        self.outcomes: list[CaseOutcome] = []
        self.remarks: list[str] = []
        self._cases = cases
        self._control = control
        self._name = name
        self._at_once = at_once
        self._on_progress = on_progress
        self._started = time.time()
        self._began = time.monotonic()
        self._random = random.Random(self.seed)  # nosec B311 # names and order, no secrets
        self._tag = f"{self._random.getrandbits(30):06x}"[:6]
        self._runs = 0
        self._total = 0
        self._bystanders: dict[int, ProbeLink] = {}
        self._bystander_lock = asyncio.Lock()
        self._is_dead = False
        # What the audit of every connection found, by version.
        self._audited: dict[int, dict[int, int]] = {version: {} for version in versions}
        self._audit_findings: dict[tuple[int, str, int], tuple[AuditFinding, Trial]] = {}

    # --- the run ---

    async def run(self) -> None:
        """Run every case. Raises CannotExamine if the subject is no broker that accepts us."""
        if self._control is not None:
            await self._control.start()
        await self._contact()
        work = [
            (case, version)
            for version in self.versions
            for case in self._cases
            if case.statements(version)
        ]
        self._random.shuffle(work)
        self._total = len(work)
        ready = [(case, version) for case, version in work if self._can_run(case, version)]
        alone = [(case, version) for case, version in ready if case.needs in ("restart", "kill")]
        together = [pair for pair in ready if pair not in alone]
        await self._run_together(together)
        one = asyncio.Semaphore(1)
        await self._run_in_turn(alone, one, one)
        await self._end_bystanders()
        self._add_audit()

    def report(self) -> ExaminationReport:
        """The report of what was run so far."""
        order = {case.name: index for index, case in enumerate(self._cases)}
        outcomes = sorted(
            self.outcomes, key=lambda each: (each.version, order.get(each.case, len(order)))
        )
        return ExaminationReport(
            kind=BROKER,
            subject=str(self.subject.address),
            name=self._name or str(self.subject.address),
            started=self._started,
            seconds=time.monotonic() - self._began,
            seed=self.seed,
            versions=tuple(VERSION_NAMES[version] for version in self.versions),
            outcomes=outcomes,
            remarks=list(self.remarks),
            semel_version=__version__,
        )

    async def _contact(self) -> None:
        """Connect once in each version; drop those that the broker refuses."""
        problems = []
        for version in list(self.versions):
            trial = Trial(self.subject, version, self._next_tag())
            try:
                link = await trial.connect("by")
                await trial.must_stay_open(link)
            except (ControlFailed, ClaimRefuted) as problem:
                problems.append(f"MQTT {VERSION_NAMES[version]}: {problem}")
                await trial.end()
                self.versions.remove(version)
                continue
            self._bystanders[version] = link
        if not self.versions:
            raise CannotExamine(f"{self.subject.address} cannot be examined: {problems[0]}")
        self.remarks += [f"Not examined: {sentence}." for sentence in problems]

    def _can_run(self, case: Case, version: int) -> bool:
        """Whether the case has what it needs; otherwise its outcome says what to give."""
        why = ""
        if case.needs in ("restart", "kill"):
            why = self._control.missing(case.needs) if self._control else "--start, --stop, --kill"
            why = why and f"it needs the options {why}"
        elif case.needs == WEBSOCKET and self.subject.address.scheme not in ("ws", "wss"):
            why = "it needs a ws:// or wss:// address"
        if why:
            self._add(case, version, CaseRun(NOT_EXAMINED, why, self._trial(version), 0.0), 0)
        return not why

    async def _run_together(self, work: Sequence[tuple[Case, int]]) -> None:
        few = asyncio.Semaphore(self._at_once)
        slow = asyncio.Semaphore(SLOW_AT_ONCE) if self._at_once > 1 else few
        lanes: dict[str, list[tuple[Case, int]]] = {}
        async with asyncio.TaskGroup() as group:
            for case, version in sorted(work, key=lambda pair: not pair[0].is_slow):
                if case.lane:
                    lanes.setdefault(case.lane, []).append((case, version))
                else:
                    gate = slow if case.is_slow else few
                    group.create_task(self._run_in_turn([(case, version)], gate, slow))
            for lane in lanes.values():
                group.create_task(self._run_in_turn(lane, slow, slow))

    async def _run_in_turn(
        self,
        work: Iterable[tuple[Case, int]],
        gate: asyncio.Semaphore,
        waiting: asyncio.Semaphore,
    ) -> None:
        for case, version in work:
            await self._examine(case, version, gate, waiting)

    async def _examine(
        self, case: Case, version: int, gate: asyncio.Semaphore, waiting: asyncio.Semaphore
    ) -> None:
        """Run a case until its verdict is certain, and keep the outcome.

        A run takes a place of `gate`. One of `waiting`, of which there are more, is enough if the
        run before only waited for a broker that is silent.
        """
        runs: list[CaseRun] = []
        while len(runs) < REPEATS:
            was_silent = bool(runs) and runs[-1].seconds >= self.subject.timeout
            async with waiting if was_silent else gate:
                if self._is_dead:
                    break
                run = await self._run_once(case, version)
                runs.append(run)
                await self._check_health(version, case)
            is_right = run.verdict in (SATISFIED, NOT_APPLICABLE, ARGUABLE)
            if is_right and not run.broken_rules():
                break
        if not runs:
            why = "not run: the broker had stopped answering"
            self._add(case, version, CaseRun(NOT_EXAMINED, why, self._trial(version), 0.0), 0)
            return
        self._keep_findings(version, runs)
        self._add(case, version, decide(runs), len(runs))

    async def _run_once(self, case: Case, version: int) -> CaseRun:
        trial = self._trial(version)
        began = time.monotonic()
        verdict, found = SATISFIED, ""
        try:
            async with asyncio.timeout(CASE_SECONDS):
                await case.run(trial)
        except CASE_ENDINGS as ending:
            verdict, found = verdict_of(ending)
        except ControlCommandFailed as failed:
            verdict, found = INCONCLUSIVE, str(failed)
        except TimeoutError:
            verdict, found = INCONCLUSIVE, f"the case took longer than {CASE_SECONDS:g} s"
        except Exception as problem:  # a fault of one case must not end the examination
            verdict, found = INCONCLUSIVE, f"the case itself failed: {problem!r}"
        finally:
            await trial.end()
        return CaseRun(verdict, found, trial, time.monotonic() - began)

    def _trial(self, version: int) -> Trial:
        return Trial(self.subject, version, self._next_tag(), self._control)

    def _next_tag(self) -> str:
        self._runs += 1
        return f"{self._tag}{self._runs:x}"

    def _add(self, case: Case, version: int, run: CaseRun, runs: int) -> None:
        self.outcomes.append(
            CaseOutcome(
                case.name,
                VERSION_NAMES[version],
                case.path,
                case.statements(version),
                case.title,
                run.verdict,
                run.found,
                tuple(run.trial.recorder.events),
                runs,
                run.seconds,
            )
        )
        if self._on_progress is not None:
            violated = sum(outcome.verdict == VIOLATED for outcome in self.outcomes)
            self._on_progress(Progress(len(self.outcomes), self._total, violated, case.name))

    # --- the bystander ---

    async def _check_health(self, version: int, case: Case) -> None:
        """Note whether the broker still answers others, and report what a case did to them."""
        if case.needs in ("restart", "kill"):
            return
        async with self._bystander_lock:
            link = self._bystanders.get(version)
            if link is not None and not link.is_closed:
                await link.send(wire.pingreq())
                if await link.wait_for(PINGRESP, self.subject.timeout) is not None:
                    return
            if self._is_dead:
                return
            name = f"{case.name} ({VERSION_NAMES[version]})"
            deadline = time.monotonic() + REVIVAL_SECONDS
            while time.monotonic() < deadline:
                trial = Trial(self.subject, version, self._next_tag())
                try:
                    self._bystanders[version] = await trial.connect("by")
                except ControlFailed:
                    await asyncio.sleep(0.5)
                    continue
                self.remarks.append(
                    f"Another client lost its connection while the case {name} was run."
                )
                return
            self._is_dead = True
            self.remarks.append(
                f"The broker stopped answering while the case {name} was run;"
                " what was not run by then is not examined."
            )

    async def _end_bystanders(self) -> None:
        for link in self._bystanders.values():
            await link.cut()

    # --- the audit of every connection ---

    def _keep_findings(self, version: int, runs: Sequence[CaseRun]) -> None:
        seen = self._audited[version]
        for run in runs:
            for link in run.trial.links:
                for packet_type in link.packet_types:
                    seen[packet_type] = seen.get(packet_type, 0) + 1
        if len(runs) < REPEATS:
            return
        agreed = set.intersection(*(run.broken_rules() for run in runs))
        for finding in runs[0].trial.findings:
            violation = finding.violation
            key = (violation.rule.name, violation.packet_type)
            if key in agreed:
                self._audit_findings.setdefault((version, *key), (finding, runs[0].trial))

    def _add_audit(self) -> None:
        """An outcome per rule for what the broker sends: broken, or kept in every packet."""
        for version in self.versions:
            broken: set[str] = set()
            for (at_version, name, packet_type), (finding, trial) in self._audit_findings.items():
                if at_version != version:
                    continue
                broken.update(blamed(finding))
                self.outcomes.append(_broken_rule(version, name, packet_type, finding, trial))
            for rule in RULES:
                for packet_type, links in sorted(self._audited[version].items()):
                    outcome = _kept_rule(version, rule, packet_type, links, broken)
                    if outcome is not None:
                        self.outcomes.append(outcome)


def decide(runs: Sequence[CaseRun]) -> CaseRun:
    """The run that stands for all: its verdict is what they agree on."""
    last = runs[-1]
    verdicts = [run.verdict for run in runs]
    if VIOLATED not in verdicts:
        return last
    if verdicts.count(VIOLATED) == REPEATS:
        return runs[0]
    violated = runs[verdicts.index(VIOLATED)]
    other = next(run for run in runs if run.verdict != VIOLATED) if len(set(verdicts)) > 1 else None
    also = f"; {other.verdict} in another {other.found}".rstrip() if other else ""
    found = f"the repeats of this case disagree: {violated.found} in one{also}"
    return CaseRun(INCONCLUSIVE, found, violated.trial, violated.seconds)


def blamed(finding: AuditFinding) -> tuple[str, ...]:
    """The statements that a finding breaks: of those under one rule, the ones about what was seen.

    That is a field or a property, and in section 4.3 the QoS of a PUBLISH. Those that bind clients
    are left out.
    """
    violation = finding.violation
    field = violation.seen.partition(" ")[0]
    other_qos: tuple[str, ...] = ()
    if violation.packet_type == PUBLISH and finding.data:
        qos = finding.data[0] >> 1 & 3
        other_qos = tuple(f"MQTT-4.3.{each + 1}-" for each in range(3) if each != qos)
    return tuple(
        statement
        for statement in violation.statements
        if (FIELD_OF.get(statement, field) == field or field not in FIELD_OF.values())
        and not statement.startswith(other_qos)
        and statement not in _of_clients(violation.version)
        and _has_property(finding, statement)
    )


@cache
def _of_clients(version: int) -> frozenset[str]:
    """The statements that bind clients only."""
    known = standard.statements(VERSION_NAMES[version])
    return frozenset(each.id for each in known if each.actor == "client")


def _has_property(finding: AuditFinding, statement: str) -> bool:
    """Whether the packet has the property that makes it too large, if the statement names one."""
    if finding.violation.rule is not PACKET_SIZE_WITHIN_MAXIMUM:
        return True
    known = standard.statements(VERSION_NAMES[finding.violation.version])
    section = next((each.section for each in known if each.id == statement), "")
    decoded = decode(finding.data, finding.violation.version)
    properties = getattr(decoded[0], "properties", None) if decoded else None
    if section.endswith("Reason String"):
        return properties is not None and properties.reason_string is not None
    if section.endswith("User Property"):
        return properties is not None and bool(properties.user_properties)
    return True


def _broken_rule(
    version: int, name: str, packet_type: int, finding: AuditFinding, trial: Trial
) -> CaseOutcome:
    violation = finding.violation
    return CaseOutcome(
        f"audit-{name.lower().replace('_', '-')}-{PACKET_NAMES[packet_type].lower()}",
        VERSION_NAMES[version],
        SEND,
        blamed(finding),
        violation.rule.sentence,
        VIOLATED,
        f"the broker sent {finding.data[:64].hex()} on connection {finding.link}: {violation.seen}",
        tuple(trial.recorder.events),
        REPEATS,
    )


def _kept_rule(
    version: int, rule: Rule, packet_type: int, links: int, broken: set[str]
) -> CaseOutcome | None:
    """A rule about single packets that the broker kept in every packet of a type."""
    if "decode" not in rule.boundaries:
        return None
    prefix = f"{PACKET_NAMES[packet_type]}:"
    numbers = rule.mqtt5 if version == wire.MQTT5 else rule.mqtt311
    own = [number.removeprefix(prefix) for number in numbers if number.startswith(prefix)]
    own += [number for number in numbers if ":" not in number and packet_type in _carriers(rule)]
    statements = tuple(number if number[0] == "U" else f"MQTT-{number}" for number in own)
    statements = tuple(statement for statement in statements if statement not in broken)
    if not statements:
        return None
    return CaseOutcome(
        f"audit-{rule.name.lower().replace('_', '-')}-{PACKET_NAMES[packet_type].lower()}",
        VERSION_NAMES[version],
        SEND,
        statements,
        rule.sentence,
        SATISFIED,
        f"kept in every {PACKET_NAMES[packet_type]} on {links:,} connections",
    )


def _carriers(rule: Rule) -> tuple[int, ...]:
    """The packet types of a server that a statement without a packet name is about."""
    return tuple(range(1, 16)) if rule.name.startswith(("TEXT_", "PACKET_", "FIELD_")) else ()

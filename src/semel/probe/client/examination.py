"""Examines a client program: discovery, the cases that fit what it does, and the report.

    discover ─▶ choose a program for each case ─▶ run, repeat ─▶ audit of all runs ─▶ report

A case that refutes is run three times in all, each time with a fresh process: only agreement is a
violation.
"""

import asyncio
import random
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from semel import __version__
from semel.probe.claims import (
    CASE_ENDINGS,
    VERSION_NAMES,
    ControlFailed,
    verdict_of,
)
from semel.probe.client.all_cases import ALL_CASES
from semel.probe.client.audit import METHOD, REPEATS, ClientAudit
from semel.probe.client.case import ClientCase
from semel.probe.client.discovery import (
    MalformedConnect,
    ProgramSilent,
    learn_endurance,
    learn_work,
)
from semel.probe.client.process import CommandNotFound
from semel.probe.client.profile import ClientProfile
from semel.probe.client.trial import ClientSubject, ClientTrial
from semel.probe.outcomes import CLIENT, INTERRUPTION, CannotExamine, CaseOutcome, ExaminationReport
from semel.probe.progress import Progress
from semel.probe.verdicts import (
    ARGUABLE,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_OBSERVABLE,
    SATISFIED,
    SEND,
    VIOLATED,
)
from semel.standard import statement_id

# Programs that run at the same time; slow cases mostly wait, and have places of their own.
AT_ONCE: Final = 6
SLOW_AT_ONCE: Final = 8
# A case that takes longer is ended: none is made to.
CASE_SECONDS: Final = 180.0
TCP_ONLY: Final = "the program is examined over TCP"
NO_METHOD: Final = "the CONNECT of the program has no Authentication Method"
# Statements that no case can examine, and why: 3.1.1, 5.0, verdict, reason.
UNSEEN: Final = (
    ("6.0.0-1 6.0.0-2 6.0.0-3", "6.0.0-1 6.0.0-2 6.0.0-3", NOT_APPLICABLE, TCP_ONLY),
    (
        "4.1.0-2",
        "",
        NOT_OBSERVABLE,
        "a client shows what it keeps only when it connects again",
    ),
    (
        "4.7.3-3",
        "4.7.3-3",
        NOT_OBSERVABLE,
        "the length of a text on the wire cannot be larger: semel probe codec examines it",
    ),
    ("", "4.3.3-7", NOT_APPLICABLE, "the program published nothing that expires"),
    ("", "4.3.3-9 4.3.3-13", NOT_APPLICABLE, "the program refused or expired no message"),
    ("", "U5-06", NOT_OBSERVABLE, "a receiver may do either"),
)
# What only a client with enhanced authentication can break.
WITH_METHOD: Final = "3.1.2-30 4.12.0-3 4.12.0-5 4.12.1-1 4.12.1-2 3.15.2-2 3.15.2-3 3.15.2-1 U5-73"
WITHOUT_METHOD: Final = "4.12.0-7"


@dataclass
class ClientRun:
    """One run of a case."""

    verdict: str
    found: str
    trial: ClientTrial
    seconds: float
    must_repeat: bool = False


class ClientExamination:
    """The examination of one client. `report` is right at any time, also after an interruption."""

    def __init__(
        self,
        subjects: Sequence[ClientSubject],
        *,
        versions: Sequence[int],
        cases: Sequence[ClientCase] = ALL_CASES,
        name: str = "",
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.subjects = list(subjects)
        self.versions = list(versions)
        self.outcomes: list[CaseOutcome] = []
        self.remarks: list[str] = []
        self._cases = cases
        self._name = name
        self._progress = progress
        self._started = time.time()
        self._began = time.monotonic()
        # Names of runs differ from those of other examinations: sessions may be kept on disk.
        self._tag = f"{random.SystemRandom().getrandbits(24):06x}"
        self._runs = 0
        self._total = 0
        self._profiles: dict[int, list[tuple[ClientSubject, ClientProfile]]] = {}
        self._audits = {version: ClientAudit(version) for version in versions}
        self._is_audited = False

    async def run(self) -> None:
        """Run every case. Raises CannotExamine if no program can be examined in any version."""
        await self._discover()
        work: list[tuple[ClientCase, int, ClientSubject, ClientProfile]] = []
        for version in self.versions:
            for case in self._cases:
                if case.statements(version) and self._profiles[version]:
                    chosen = self._choose(case, version)
                    if chosen is not None:
                        work.append((case, version, *chosen))
        self._total = len(work) + len(self.outcomes)
        slow, few = asyncio.Semaphore(SLOW_AT_ONCE), asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for case, version, subject, profile in sorted(
                work, key=lambda each: not each[0].is_slow
            ):
                gate = slow if case.is_slow else few
                group.create_task(self._examine(gate, case, version, subject, profile))

    def report(self) -> ExaminationReport:
        """The report of what was run so far, with the audit of all connections."""
        order = {case.name: index for index, case in enumerate(self._cases)}
        outcomes = sorted(
            self.outcomes, key=lambda each: (each.version, order.get(each.case, len(order)))
        )
        for version in self.versions:
            outcomes += self._audits[version].outcomes()
            outcomes += self._unseen(version)
        subject = " and ".join(shlex.join(each.command) for each in self.subjects)
        return ExaminationReport(
            kind=CLIENT,
            subject=subject,
            name=self._name or self.subjects[0].command[0].rpartition("/")[2],
            started=self._started,
            seconds=time.monotonic() - self._began,
            seed=0,
            versions=tuple(VERSION_NAMES[version] for version in self.versions),
            outcomes=outcomes,
            remarks=list(self.remarks),
            semel_version=__version__,
        )

    # --- discovery ---

    async def _discover(self) -> None:
        """Learn what each program does in each version; drop versions that none speaks."""
        problems: list[str] = []
        pairs = [(version, subject) for version in self.versions for subject in self.subjects]
        found = await asyncio.gather(*(self._learn(*pair) for pair in pairs))
        malformed: set[int] = set()
        for (version, subject), profile in zip(pairs, found, strict=True):
            self._profiles.setdefault(version, [])
            label = "" if len(self.subjects) == 1 else f" ({subject.role})"
            name = f"MQTT {VERSION_NAMES[version]}{label}"
            if isinstance(profile, ClientProfile):
                self._profiles[version].append((subject, profile))
                self.remarks.append(f"{name}: {profile.summary()}.")
            elif isinstance(profile, MalformedConnect):
                malformed.add(version)
                self.remarks.append(f"{name}: the CONNECT is malformed; nothing else is examined.")
            else:
                problems.append(f"{name}: {profile}")
        for version in list(self.versions):
            if not self._profiles[version] and version not in malformed:
                self.versions.remove(version)
        if not self.versions:
            raise CannotExamine(f"the program cannot be examined: {problems[0]}")
        self.remarks += [f"Not examined: {sentence}." for sentence in problems]

    async def _learn(
        self, version: int, subject: ClientSubject
    ) -> ClientProfile | ProgramSilent | MalformedConnect:
        try:
            trial = self._trial(subject, version)
            try:
                await trial.start()
                profile = await learn_work(trial)
            finally:
                await trial.end()
                self._audits[version].add(trial.links, trial.recorder.events)
            trial = self._trial(subject, version, profile)
            try:
                await trial.start()
                await learn_endurance(trial, profile)
            finally:
                await trial.end()
                self._audits[version].add(trial.links, trial.recorder.events)
        except CommandNotFound as problem:
            raise CannotExamine(str(problem)) from None
        except (ProgramSilent, ControlFailed) as problem:
            return ProgramSilent(str(problem))
        except MalformedConnect as problem:
            await self._confirm_malformed(subject, version)
            return problem
        return profile

    async def _confirm_malformed(self, subject: ClientSubject, version: int) -> None:
        for _ in range(REPEATS - 1):
            trial = self._trial(subject, version)
            try:
                await trial.start()
                await trial.accept()
            except ControlFailed:
                return
            finally:
                await trial.end()
                self._audits[version].add(trial.links, trial.recorder.events)

    # --- cases ---

    def _choose(self, case: ClientCase, version: int) -> tuple[ClientSubject, ClientProfile] | None:
        """The first program with which a case can be run; if none, the outcome says why."""
        why = ""
        for subject, profile in self._profiles[version]:
            missing = profile.missing(case.needs)
            if not missing:
                return subject, profile
            why = why or missing
        self._add(case, version, NOT_APPLICABLE, why)
        return None

    async def _examine(
        self,
        gate: asyncio.Semaphore,
        case: ClientCase,
        version: int,
        subject: ClientSubject,
        profile: ClientProfile,
    ) -> None:
        """Run a case until its verdict is certain, and keep the outcome."""
        runs: list[ClientRun] = []
        while len(runs) < REPEATS:
            async with gate:
                run = await self._run_once(case, version, subject, profile)
            runs.append(run)
            if run.verdict in (SATISFIED, NOT_APPLICABLE, ARGUABLE) and not run.must_repeat:
                break
        decided = decide_client_case(runs)
        self._add(
            case,
            version,
            decided.verdict,
            decided.found,
            evidence=decided.trial,
            runs=len(runs),
            seconds=decided.seconds,
        )

    async def _run_once(
        self, case: ClientCase, version: int, subject: ClientSubject, profile: ClientProfile
    ) -> ClientRun:
        trial = self._trial(subject, version, profile)
        began = time.monotonic()
        verdict, found = SATISFIED, ""
        try:
            async with asyncio.timeout(CASE_SECONDS):
                await trial.start()
                await case.run(trial)
        except CASE_ENDINGS as ending:
            verdict, found = verdict_of(ending)
        except CommandNotFound as problem:
            verdict, found = INCONCLUSIVE, str(problem)
        except TimeoutError:
            verdict, found = INCONCLUSIVE, f"the case took longer than {CASE_SECONDS:g} s"
        finally:
            await trial.end()
        must_repeat = self._audits[version].add(trial.links, trial.recorder.events)
        return ClientRun(verdict, found, trial, time.monotonic() - began, must_repeat)

    def _trial(
        self, subject: ClientSubject, version: int, profile: ClientProfile | None = None
    ) -> ClientTrial:
        self._runs += 1
        return ClientTrial(subject, version, f"{self._tag}{self._runs:04x}", profile)

    def _add(
        self,
        case: ClientCase,
        version: int,
        verdict: str,
        found: str,
        *,
        evidence: ClientTrial | None = None,
        runs: int = 0,
        seconds: float = 0.0,
    ) -> None:
        self.outcomes.append(
            CaseOutcome(
                case.name,
                VERSION_NAMES[version],
                case.path,
                case.statements(version),
                case.title,
                verdict,
                found,
                () if evidence is None else tuple(evidence.recorder.events),
                runs,
                seconds,
            )
        )
        if self._progress is not None:
            violated = sum(outcome.verdict == VIOLATED for outcome in self.outcomes)
            self._progress(Progress(len(self.outcomes), self._total, violated, case.name))

    def _unseen(self, version: int) -> list[CaseOutcome]:
        """Statements that no case of this run can examine, with the reason."""
        rows = [(row[version - 4], row[2], row[3]) for row in UNSEEN]
        if version == 5 and METHOD not in self._audits[version].features:
            rows.append((WITH_METHOD, NOT_APPLICABLE, NO_METHOD))
            if not self._audits[version].packets.get(15):
                rows.append((WITHOUT_METHOD, SATISFIED, "the client sent no AUTH"))
        return [
            CaseOutcome(
                f"unseen-{index}",
                VERSION_NAMES[version],
                SEND,
                tuple(each if each[0] == "U" else f"MQTT-{each}" for each in numbers.split()),
                "What is not examined has a reason.",
                verdict,
                reason,
                runs=0,
            )
            for index, (numbers, verdict, reason) in enumerate(rows)
            if numbers
        ]


def decide_client_case(runs: Sequence[ClientRun]) -> ClientRun:
    """The run that stands for all: its verdict is what they agree on."""
    verdicts = [run.verdict for run in runs]
    if VIOLATED not in verdicts:
        decided = [run for run in runs if run.verdict != INCONCLUSIVE]
        return decided[-1] if decided else runs[-1]
    if verdicts.count(VIOLATED) == REPEATS:
        return runs[0]
    refuted = runs[verdicts.index(VIOLATED)]
    found = f"the repeats of this case disagree: {refuted.found} in one; the verdicts were "
    return ClientRun(INCONCLUSIVE, found + ", ".join(verdicts), refuted.trial, refuted.seconds)


def select_client_cases(
    *,
    only: Iterable[str] = (),
    statements: Collection[str] = (),
    is_quick: bool = False,
    cases: Sequence[ClientCase] = ALL_CASES,
) -> list[ClientCase]:
    """The cases by name (with * as in file names), by statement, and those that are quick."""
    patterns = tuple(only)
    wanted = {statement_id(each) for each in statements}
    found = []
    for case in cases:
        if is_quick and (case.is_slow or not case.is_quick):
            continue
        if patterns and not any(fnmatchcase(case.name, pattern) for pattern in patterns):
            continue
        if wanted and not wanted & {*case.statements(4), *case.statements(5)}:
            continue
        found.append(case)
    return found


async def examine_client(
    command: Sequence[str] | Sequence[ClientSubject],
    *,
    versions: Sequence[int],
    only: Iterable[str] = (),
    statements: Collection[str] = (),
    is_quick: bool = False,
    timeout: float = 5.0,
    name: str = "",
    progress: Callable[[Progress], None] | None = None,
) -> ExaminationReport:
    """Examine a command, or several programs. Raises CannotExamine.

    If the task is cancelled, the report of what was run so far is returned.
    """
    words = [each for each in command if isinstance(each, str)]
    subjects = [each for each in command if isinstance(each, ClientSubject)]
    if words:
        subjects = [ClientSubject(tuple(words), timeout=timeout)]
    cases = select_client_cases(only=only, statements=statements, is_quick=is_quick)
    examination = ClientExamination(
        subjects, versions=versions, cases=cases, name=name, progress=progress
    )
    if only or statements or is_quick:
        examination.remarks.append(f"Only {len(cases)} of {len(ALL_CASES)} cases were selected.")
    try:
        await examination.run()
    except asyncio.CancelledError:
        examination.remarks.append(INTERRUPTION)
    except BaseExceptionGroup as group:
        # A mistake in a case is ours: show the first one instead of a tree of them.
        raise group.exceptions[0] from None
    return examination.report()

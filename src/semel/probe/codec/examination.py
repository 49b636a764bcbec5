"""The examination of a codec: its adapter is asked about every vector, on both paths.

all requests ─▶ decisions ─▶ what is violated: again, and once more in a fresh process
                        └─▶ what is refused: was its control accepted?
"""

import asyncio
import json
import shlex
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Final

from semel import __version__
from semel.probe.codec.cases import CodecCase, codec_cases, controls
from semel.probe.codec.decisions import CodecDecision, decide
from semel.probe.codec.process import (
    BYTES,
    CANNOT,
    INCOMPLETE,
    PACKET,
    REFUSED,
    AdapterAnswer,
    AdapterHello,
    CodecProcess,
    TooManyFailures,
)
from semel.probe.evidence import (
    CONTROL,
    NOTE,
    RECEIVED,
    SENT,
    TEST,
    AdapterCall,
    AdapterRecord,
    WireEvent,
)
from semel.probe.outcomes import CODEC, INTERRUPTION, CannotExamine, CaseOutcome, ExaminationReport
from semel.probe.packet_form import has_lone_surrogate, shorten
from semel.probe.verdicts import (
    DECODE,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    VIOLATED,
)
from semel.standard import statement_id

# How often a violation must be seen; the last time in a fresh process.
REPEATS: Final = 3
# How many right cases are tried as a control, where the library cannot express the nearest.
MOST_CONTROLS: Final = 8
# Longer packets are cut in the evidence.
LONGEST_EVIDENCE: Final = 4096
CUT_EVIDENCE: Final = 64
# Requests and answers with more characters of JSON are not kept to be repeated.
LONGEST_KEPT_LINE: Final = 10_000


# Called with how many requests were answered, and how many there are so far.
CodecProgress = Callable[[int, int], None]


async def examine_codec(
    command: Sequence[str],
    *,
    versions: Sequence[str] = ("3.1.1", "5.0"),
    only: Collection[str] | None = None,
    statements: Collection[str] | None = None,
    timeout: float = 5.0,
    progress: CodecProgress | None = None,
    reports_when_cancelled: bool = False,
) -> ExaminationReport:
    """Examine the codec behind the adapter that `command` starts. Raises CannotExamine.

    `only` are patterns or parts of names of cases; `statements` are numbers of statements, with or
    without "MQTT-". Versions that the adapter does not have are left out, with a remark. With
    `reports_when_cancelled`, a cancellation ends in a report of what was found so far.
    """
    started, clock = time.time(), time.monotonic()
    process = CodecProcess(command, timeout=timeout)
    try:
        hello = await process.start()
        spoken = tuple(version for version in versions if hello.has_version(version))
        if not spoken:
            raise CannotExamine(
                f"{hello.name} has none of the versions that were asked for: {', '.join(versions)}"
            )
        remarks = [
            f"{hello.name} does not have MQTT {version}: not examined"
            for version in versions
            if version not in spoken
        ]
        run = _CodecRun(process, hello, progress)
        try:
            outcomes = await run.examine(
                [
                    case
                    for version in spoken
                    for case in codec_cases(version)
                    if is_selected(case, only, statements)
                ]
            )
        except TooManyFailures as problem:
            outcomes = run.outcomes_so_far()
            remarks.append(str(problem))
        except asyncio.CancelledError:
            if not reports_when_cancelled:
                raise
            outcomes = run.outcomes_so_far()
            remarks.append(INTERRUPTION)
        remarks += _process_remarks(process, only, statements)
    finally:
        await process.close()
    return ExaminationReport(
        kind=CODEC,
        subject=shlex.join(command),
        name=f"{hello.name} {hello.version}".strip(),
        started=started,
        seconds=time.monotonic() - clock,
        seed=0,
        versions=spoken,
        outcomes=outcomes,
        remarks=remarks,
        semel_version=__version__,
    )


def is_selected(
    case: CodecCase, only: Collection[str] | None, statements: Collection[str] | None
) -> bool:
    """Whether a case is to be run."""
    if statements:
        if not {statement_id(each) for each in statements} & set(case.statements):
            return False
    if not only:
        return True
    name = case.name.lower()
    return any(each.lower() in name or fnmatchcase(name, each.lower()) for each in only)


def _process_remarks(
    process: CodecProcess, only: Collection[str] | None, statements: Collection[str] | None
) -> list[str]:
    remarks = []
    if only or statements:
        remarks.append("only selected cases were run")
    if process.failures:
        remarks.append(f"the adapter was started {process.starts} times, because it failed")
    if process.stray_lines:
        remarks.append(
            f"the adapter printed {process.stray_lines} lines that are no answers; the first: "
            f"{process.first_stray_lines[0]!r}"
        )
    return remarks


@dataclass
class _CaseState:
    """What is known of one case during the run."""

    case: CodecCase
    answer: AdapterAnswer | None = None
    decision: CodecDecision | None = None
    runs: int = 0
    # The control that decided, and its answer.
    control: CodecCase | None = None
    control_answer: AdapterAnswer | None = None
    seconds: float = 0.0


class _CodecRun:
    """One examination: the states of its cases, and the answers for controls."""

    def __init__(
        self, process: CodecProcess, hello: AdapterHello, progress: CodecProgress | None
    ) -> None:
        self._process = process
        self._hello = hello
        self._progress = progress
        self._states: list[_CaseState] = []
        # Answers by version and name of the case.
        self._answers: dict[tuple[str, str], AdapterAnswer] = {}
        # Version, path and packet type of what was right and accepted.
        self._accepted: set[tuple[str, str, str]] = set()
        self._done = 0
        self._total = 0

    async def examine(self, selected: Sequence[CodecCase]) -> list[CaseOutcome]:
        self._states = [_CaseState(case) for case in selected]
        asked = []
        for state in self._states:
            reason = self._unsupported(state.case)
            if reason:
                state.decision = CodecDecision(NOT_APPLICABLE, reason, state.case.statements)
            else:
                asked.append(state)
        await self._ask([state.case for state in asked], lambda i, each: keep_first(asked[i], each))
        await self._repeat_violations()
        await self._run_controls()
        return self.outcomes_so_far()

    def outcomes_so_far(self) -> list[CaseOutcome]:
        """The outcomes of all cases that have one."""
        found = []
        for state in self._states:
            decision = state.decision
            if decision is None or not _is_reported(state, decision):
                continue
            if decision.verdict == VIOLATED and state.runs < REPEATS:
                text = f"{decision.found} (seen only {state.runs} times)"
                decision = CodecDecision(INCONCLUSIVE, text, decision.statements)
            elif decision.needs_control and state.control is None:
                text = f"{decision.found}; no control was run"
                decision = CodecDecision(INCONCLUSIVE, text, decision.statements)
            found.append(_outcome(state, decision, self._process.command))
        return found

    def _unsupported(self, case: CodecCase) -> str:
        """Why the adapter is not asked; empty if it is."""
        name = self._hello.name
        types = self._hello.types[case.path].get(case.version)
        if not types:
            return f"{name} says that it cannot {case.path} MQTT {case.version}"
        if case.kind and case.kind not in types:
            return f"{name} says that it cannot {case.path} {case.kind.upper()}"
        if (
            case.path != DECODE
            and not self._hello.takes_lone_surrogates
            and has_lone_surrogate(case.form)
        ):
            return f"{name} has no texts with lone surrogates"
        return ""

    async def _ask(
        self, cases: Sequence[CodecCase], keep: Callable[[int, AdapterAnswer], None]
    ) -> None:
        """Ask the adapter; what is answered before too many failures is kept."""
        self._total += len(cases)

        def answered(index: int, answer: AdapterAnswer) -> None:
            case = cases[index]
            self._answers[case.version, case.name] = answer
            if case.is_right and is_accepted(answer):
                self._accepted.add((case.version, case.path, case.kind))
            keep(index, answer)
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, self._total)

        await self._process.ask_all([case.request for case in cases], answered)

    async def _repeat_violations(self) -> None:
        """Ask again what was violated: a violation must be seen REPEATS times."""
        for repeat in range(2, REPEATS + 1):
            doubtful = [
                state
                for state in self._states
                if state.decision is not None
                and state.decision.verdict == VIOLATED
                and state.runs < repeat
            ]
            if not doubtful:
                return
            if repeat == REPEATS:
                await self._process.start()
            await self._ask(
                [state.case for state in doubtful],
                lambda i, each, states=doubtful: keep_repeat(states[i], each),  # type: ignore[misc]
            )

    async def _run_controls(self) -> None:
        """Find for each refusal the nearest right case that the library can express."""
        chosen: list[tuple[_CaseState, list[CodecCase]]] = []
        missing: dict[tuple[str, str], CodecCase] = {}
        for state in self._states:
            decision = state.decision
            if decision is None or not _is_reported(state, decision):
                continue
            if not decision.needs_control and decision.verdict != VIOLATED:
                continue
            possible = (each for each in controls(state.case) if not self._unsupported(each))
            near = list(islice(possible, MOST_CONTROLS))
            chosen.append((state, near))
            for each in near:
                if (each.version, each.name) not in self._answers:
                    missing[each.version, each.name] = each
        await self._ask(list(missing.values()), lambda _, each: None)
        for state, near in chosen:
            self._apply_control(state, near)

    def _apply_control(self, state: _CaseState, near: Sequence[CodecCase]) -> None:
        """Show the control of a case. Without one that is accepted, a refusal shows nothing."""
        decision, case = state.decision, state.case
        assert decision is not None
        possible = [
            (each, self._answers[each.version, each.name])
            for each in near
            if self._answers[each.version, each.name].kind != CANNOT
        ]
        # What is wrong and refused is compared with the nearest only.
        if decision.needs_control:
            possible = possible[:1]
        accepted = [pair for pair in possible if is_accepted(pair[1])]
        for state.control, state.control_answer in (accepted or possible)[:1]:
            pass
        is_refusal = state.answer is not None and state.answer.kind in (REFUSED, INCOMPLETE)
        if accepted or not is_refusal:
            return
        if case.is_right and (case.version, case.path, case.kind) in self._accepted:
            return
        text = f"{decision.found}; but the {case.path}r also refuses the control"
        if state.control is None:
            text = f"{decision.found}; but no right {case.kind or 'packet'} can serve as a control"
        state.decision = CodecDecision(INCONCLUSIVE, text, decision.statements)


def keep_first(state: _CaseState, answer: AdapterAnswer) -> None:
    """Decide a case by its first answer."""
    state.answer = answer
    state.decision = decide(state.case, answer)
    state.runs = answer.seen
    state.seconds = answer.seconds


def keep_repeat(state: _CaseState, answer: AdapterAnswer) -> None:
    """Compare a repeat with what was found before."""
    assert state.decision is not None
    again = decide(state.case, answer)
    state.runs += 1
    state.seconds += answer.seconds
    if again.verdict != VIOLATED:
        text = f"repeats disagree: {state.decision.found}; then: {again.found}"
        state.decision = CodecDecision(INCONCLUSIVE, text, state.case.statements)


def is_accepted(answer: AdapterAnswer) -> bool:
    """Whether a codec accepted a control; what it made of it is another case."""
    return answer.kind == PACKET or (answer.kind == BYTES and bool(answer.data))


def _is_reported(state: _CaseState, decision: CodecDecision) -> bool:
    """A case without a number is reported if the codec crashed, and not otherwise."""
    if state.case.statements:
        return True
    crashed = state.answer is not None and state.answer.is_failure
    return crashed and decision.verdict == VIOLATED


def _outcome(state: _CaseState, decision: CodecDecision, command: Sequence[str]) -> CaseOutcome:
    case = state.case
    events: list[WireEvent] = []
    if state.control is not None and state.control_answer is not None:
        events += _events(CONTROL, state.control, state.control_answer)
    if state.answer is not None:
        events += _events(TEST, case, state.answer)
    return CaseOutcome(
        case=case.name,
        version=case.version,
        path=case.path,
        statements=decision.statements,
        title=case.title,
        verdict=decision.verdict,
        found=decision.found,
        evidence=tuple(events),
        runs=max(state.runs, 1),
        seconds=state.seconds,
        adapter=_adapter_record(state, command) if decision.verdict == VIOLATED else None,
    )


def _adapter_record(state: _CaseState, command: Sequence[str]) -> AdapterRecord | None:
    """What is needed to ask again; None if a request or an answer is too long to be kept."""
    assert state.answer is not None
    control = None
    if state.control is not None and state.control_answer is not None:
        control = _adapter_call(state.control, state.control_answer)
    test = _adapter_call(state.case, state.answer)
    right = json.dumps(_right_answer(state.case))
    kept = [right, test.request, test.answer]
    if control is not None:
        kept += [control.request, control.answer]
    if any(len(line) > LONGEST_KEPT_LINE for line in kept):
        return None
    return AdapterRecord(tuple(command), test, right, control)


def _adapter_call(case: CodecCase, answer: AdapterAnswer) -> AdapterCall:
    return AdapterCall(json.dumps(case.request), json.dumps(answer.as_json()))


def _right_answer(case: CodecCase) -> dict[str, object]:
    """An answer that satisfies the case; an encoder may write other bytes that mean the same."""
    if case.rule is not None:
        return {REFUSED: case.rule.sentence}
    return {PACKET: case.form} if case.path == DECODE else {BYTES: case.data.hex()}


def _events(arm: str, case: CodecCase, answer: AdapterAnswer) -> list[WireEvent]:
    """The request and the answer."""
    if case.path == DECODE:
        meaning = f"decode as MQTT {case.version}, {case.direction}: {_what(case)}"
        asked = WireEvent(0.0, arm, 1, SENT, _cut(case.data), meaning + _cut_note(case.data))
    else:
        meaning = f"encode as MQTT {case.version}: {shorten(case.form)}"
        asked = WireEvent(0.0, arm, 1, NOTE, b"", meaning)
    if answer.kind == BYTES:
        meaning = f"encoded{_cut_note(answer.data)}"
        data = _cut(answer.data)
        return [asked, WireEvent(answer.seconds, arm, 1, RECEIVED, data, meaning)]
    if answer.kind == PACKET:
        meaning = f"decoded: {shorten(dict(answer.packet))}"
        if answer.taken >= 0 and answer.taken != len(case.data):
            meaning += f", {answer.taken} bytes taken"
    elif answer.kind == REFUSED:
        meaning = f"refused: {answer.text}"
    else:
        meaning = f"{answer.kind}: {answer.text}"
    return [asked, WireEvent(answer.seconds, arm, 1, NOTE, b"", meaning)]


def _what(case: CodecCase) -> str:
    if case.is_right:
        return f"means {shorten(case.form, 200)}"
    assert case.rule is not None
    return f"breaks {case.rule.name}"


def _cut(data: bytes) -> bytes:
    return data if len(data) <= LONGEST_EVIDENCE else data[:CUT_EVIDENCE]


def _cut_note(data: bytes) -> str:
    if len(data) <= LONGEST_EVIDENCE:
        return ""
    return f" (the first {CUT_EVIDENCE} of {len(data)} bytes)"

"""The examination itself: repeats, controls, the bystander, and what is in every report."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from itertools import product

import pytest

from semel import standard
from semel.client.address import Address
from semel.probe.broker import examination as examination_module
from semel.probe.broker.case import Case
from semel.probe.broker.examination import REPEATS, Examination
from semel.probe.broker.trial import Subject, Trial
from semel.probe.claims import ClaimArguable
from semel.probe.outcomes import CannotExamine, CaseOutcome, ExaminationReport, report_from_json
from semel.probe.verdicts import (
    ARGUABLE,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXAMINED,
    NOT_OBSERVABLE,
    PARTLY,
    RECEIVE,
    SATISFIED,
    VERDICTS,
    VIOLATED,
    combine,
)
from tests.probe.broker.scripted_peer import PINGRESP, PeerLink, ScriptedPeer, answer_plainly

Server = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

# A packet of a type that does not exist, which no case but those of a test sends.
FORBIDDEN = bytes.fromhex("0000")
# Statements of both versions for cases that claim nothing of them.
ANY = "3.1.0-1"


def case(name: str, run: Callable[[Trial], object], numbers: str = ANY) -> Case:
    async def run_case(trial: Trial) -> None:
        made = run(trial)
        if asyncio.iscoroutine(made):
            await made

    return Case(name, RECEIVE, "The peer does what it must.", run_case, numbers, numbers)


async def succeed(trial: Trial) -> None:
    await trial.must_stay_open(await trial.connect())


async def send_forbidden(trial: Trial) -> None:
    link = await trial.connect()
    await link.send(FORBIDDEN)
    await trial.must_refuse(link)


async def examine_subject(
    subject: Subject, cases: Sequence[Case], versions: Sequence[int] = (4,)
) -> ExaminationReport:
    examination = Examination(subject, cases, versions=versions, seed=1)
    await examination.run()
    return examination.report()


def examine(
    peer: ScriptedPeer, cases: Sequence[Case], versions: Sequence[int] = (4,)
) -> ExaminationReport:
    """The report on a peer, which runs only for it."""

    async def run() -> ExaminationReport:
        async with peer:
            return await examine_subject(peer.subject(), cases, versions)

    return asyncio.run(run())


def outcome(report: ExaminationReport, name: str) -> CaseOutcome:
    return next(each for each in report.outcomes if each.case == name)


# --- repeats and controls ---


def test_a_case_that_succeeds_is_run_once() -> None:
    found = outcome(examine(ScriptedPeer(), [case("right", succeed)]), "right")
    assert (found.verdict, found.runs) == (SATISFIED, 1)


def test_a_violation_needs_three_repeats_that_agree() -> None:
    def tolerate(link: PeerLink, packet: bytes) -> bytes | None:
        return b"" if packet == FORBIDDEN else answer_plainly(link, packet)

    found = outcome(examine(ScriptedPeer(tolerate), [case("wrong", send_forbidden)]), "wrong")
    assert (found.verdict, found.runs) == (VIOLATED, REPEATS)
    assert found.found == "the broker did not close the connection"
    assert FORBIDDEN in [event.data for event in found.evidence]


@pytest.mark.parametrize("right", range(3), ids=["first", "second", "third"])
def test_a_peer_that_is_right_in_one_of_three_repeats_leaves_the_case_undecided(right: int) -> None:
    seen = 0

    def flicker(link: PeerLink, packet: bytes) -> bytes | None:
        nonlocal seen
        if packet != FORBIDDEN:
            return answer_plainly(link, packet)
        seen += 1
        return None if seen == right + 1 else b""

    found = outcome(examine(ScriptedPeer(flicker), [case("flaky", send_forbidden)]), "flaky")
    if right == 0:
        # Nothing is repeated that was right at once.
        assert (found.verdict, found.runs) == (SATISFIED, 1)
        return
    assert found.verdict == INCONCLUSIVE
    assert found.found.startswith("the repeats of this case disagree: the broker did not close")


def test_a_control_that_fails_leaves_the_case_undecided() -> None:
    def fail_control(trial: Trial) -> None:
        with trial.control():
            trial.must(False, "the control was refused")

    found = outcome(examine(ScriptedPeer(), [case("control", fail_control)]), "control")
    assert found.verdict == INCONCLUSIVE
    assert found.found == "a step that must succeed failed: the control was refused"


def test_a_step_that_prepares_a_case_and_fails_leaves_it_undecided() -> None:
    async def subscribe_twice(trial: Trial) -> None:
        link = await trial.connect()
        await trial.subscribe(link, (b"a", 0), (b"b", 0))
        await trial.unsubscribe(link, b"a")

    def refuse_unsubscribe(link: PeerLink, packet: bytes) -> bytes | None:
        return None if packet[0] == 0xA2 else answer_plainly(link, packet)

    report = examine(ScriptedPeer(refuse_unsubscribe), [case("steps", subscribe_twice)])
    found = outcome(report, "steps")
    assert found.verdict == INCONCLUSIVE
    assert "no UNSUBACK came: the broker sent nothing and closed the connection" in found.found


def test_a_case_that_ends_with_a_reading_or_without_a_feature_says_so() -> None:
    def argue(trial: Trial) -> None:
        raise ClaimArguable("the clause can be read in two ways")

    cases = [case("argue", argue), case("without", lambda trial: trial.not_applicable("no wills"))]
    report = examine(ScriptedPeer(), cases)
    assert (outcome(report, "argue").verdict, outcome(report, "without").verdict) == (
        ARGUABLE,
        NOT_APPLICABLE,
    )
    assert outcome(report, "without").found == "no wills"


def test_a_case_that_takes_too_long_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination_module, "CASE_SECONDS", 0.05)
    report = examine(ScriptedPeer(), [case("slow", lambda trial: asyncio.sleep(60))])
    assert outcome(report, "slow").verdict == INCONCLUSIVE
    assert outcome(report, "slow").found == "the case took longer than 0.05 s"


def test_what_the_peer_sends_is_audited_whichever_case_is_run() -> None:
    def send_dup(link: PeerLink, packet: bytes) -> bytes | None:
        answer = answer_plainly(link, packet)
        # A PUBLISH with QoS 0 and DUP 1, after the answer to PINGREQ.
        return answer + bytes.fromhex("380400016178") if answer == PINGRESP else answer

    report = examine(ScriptedPeer(send_dup), [case("ping", succeed)])
    assert outcome(report, "ping").verdict == SATISFIED
    found = outcome(report, "audit-dup-needs-qos-publish")
    assert found.verdict == VIOLATED
    assert found.statements == ("MQTT-3.3.1-2", "MQTT-4.3.1-1")
    verdicts = {each.id: each.verdict for each in report.statements()}
    assert verdicts["MQTT-3.3.1-2"] == VIOLATED


# --- the subject as a whole ---


def test_every_statement_of_both_versions_is_in_a_report_without_cases() -> None:
    report = examine(ScriptedPeer(), [], (4, 5))
    check_completeness(report, ("3.1.1", "5.0"))
    known = report_from_json(report.as_json())
    assert [each.as_json() for each in known.statements()] == [
        each.as_json() for each in report.statements()
    ]


def check_completeness(report: ExaminationReport, versions: tuple[str, ...]) -> None:
    """Every statement of the versions is in the report once, with a verdict that is known."""
    expected = [(version, each.id) for version in versions for each in standard.statements(version)]
    assert [(each.version, each.id) for each in report.statements()] == expected
    assert {each.verdict for each in report.statements()} <= set(VERDICTS)


def test_a_broker_that_dies_leaves_the_rest_unexamined_in_a_complete_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examination_module, "REVIVAL_SECONDS", 0.2)
    monkeypatch.setattr(examination_module, "AT_ONCE", 1)

    def die(link: PeerLink, packet: bytes) -> bytes | None:
        if packet != FORBIDDEN:
            return answer_plainly(link, packet)
        link.peer.stop()
        return None

    cases = [case("fatal", send_forbidden), *(case(f"case-{i}", succeed) for i in range(9))]
    report = examine(ScriptedPeer(die), cases)
    check_completeness(report, ("3.1.1",))
    verdicts = [each.verdict for each in report.outcomes if each.case.startswith("case-")]
    assert len(verdicts) == 9
    unexamined = [each for each in report.outcomes if each.verdict == NOT_EXAMINED]
    assert unexamined
    assert {each.found for each in unexamined} == {"not run: the broker had stopped answering"}
    assert report.remarks == [
        "The broker stopped answering while the case fatal (3.1.1) was run;"
        " what was not run by then is not examined."
    ]


def test_the_loss_of_another_clients_connection_is_reported() -> None:
    def close_first(link: PeerLink, packet: bytes) -> bytes | None:
        if packet == FORBIDDEN:
            link.peer.links[0].writer.close()
        return answer_plainly(link, packet)

    report = examine(ScriptedPeer(close_first), [case("rude", send_forbidden)])
    assert outcome(report, "rude").verdict == SATISFIED
    assert report.remarks == [
        "Another client lost its connection while the case rude (3.1.1) was run."
    ]


@pytest.mark.parametrize(("refused", "left"), [(5, "3.1.1"), (4, "5.0")])
@pytest.mark.parametrize("answers", [True, False], ids=["with CONNACK", "without CONNACK"])
def test_a_version_that_the_broker_refuses_is_not_examined(
    refused: int, left: str, answers: bool
) -> None:
    def refuse(link: PeerLink, packet: bytes) -> bytes | None:
        if packet[0] != 0x10 or packet[8] != refused:
            return answer_plainly(link, packet)
        if answers:
            refusal = "2003008400" if refused == 5 else "20020001"
            link.writer.write(bytes.fromhex(refusal))
        return None

    report = examine(ScriptedPeer(refuse), [case("right", succeed)], (4, 5))
    assert report.versions == (left,)
    check_completeness(report, (left,))
    (remark,) = report.remarks
    name = "5.0" if refused == 5 else "3.1.1"
    assert remark.startswith(f"Not examined: MQTT {name}: ")
    assert [each.version for each in report.outcomes if each.case == "right"] == [left]


async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await close_at_once(reader, writer)


async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        await reader.read()
    await close_at_once(reader, writer)


async def close_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@pytest.mark.parametrize("serve", [speak_http, stay_silent, close_at_once])
def test_a_peer_that_is_no_broker_cannot_be_examined(serve: Server) -> None:
    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            subject = subject_at(port)
            with pytest.raises(CannotExamine) as raised:
                await examine_subject(subject, [case("right", succeed)], (4, 5))
            check_sentence(str(raised.value), port)
            # The peer sees the end of its connections.
            await asyncio.sleep(0.05)

    asyncio.run(run())


def test_an_address_where_nothing_listens_cannot_be_examined() -> None:
    async def run() -> None:
        server = await asyncio.start_server(close_at_once, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        with pytest.raises(CannotExamine) as raised:
            await examine_subject(subject_at(port), [], (4, 5))
        check_sentence(str(raised.value), port)

    asyncio.run(run())


def subject_at(port: int) -> Subject:
    return Subject(Address("mqtt", "127.0.0.1", port), timeout=0.3)


def check_sentence(text: str, port: int) -> None:
    """One sentence, on one line, with the address."""
    assert text.startswith(f"mqtt://127.0.0.1:{port} cannot be examined: ")
    assert "\n" not in text
    assert "Error(" not in text


# --- verdicts ---


@pytest.mark.parametrize(("one", "other"), list(product(VERDICTS, repeat=2)))
def test_two_verdicts_combine_to_the_worse_and_never_hide_a_violation(one: str, other: str) -> None:
    found = combine((one, other))
    assert found == combine((other, one))
    pair = {one, other}
    if PARTLY in pair or pair == {VIOLATED, SATISFIED}:
        assert found == PARTLY
    elif VIOLATED in pair:
        assert found == VIOLATED
    elif INCONCLUSIVE in pair:
        assert found == INCONCLUSIVE
    else:
        order = (ARGUABLE, SATISFIED, NOT_APPLICABLE, NOT_OBSERVABLE, NOT_EXAMINED)
        assert found == next(each for each in order if each in pair)


def test_no_verdict_is_not_examined() -> None:
    assert combine(()) == NOT_EXAMINED

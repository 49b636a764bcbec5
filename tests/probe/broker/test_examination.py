"""The examination itself: repeats, controls, the bystander, and what is in every report."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from itertools import product

import pytest

from semel import standard
from semel.client.address import Address
from semel.mqtt import Rule, Violation
from semel.mqtt.exchange_rules import RECEIVE_MAXIMUM_KEPT
from semel.mqtt.rules import PACKET_SIZE_WITHIN_MAXIMUM
from semel.probe.broker import examination as examination_module
from semel.probe.broker.case import Case
from semel.probe.broker.cases_vectors import CASES as VECTOR_CASES
from semel.probe.broker.examination import REPEATS, Examination, blamed
from semel.probe.broker.trial import Subject, Trial
from semel.probe.claims import ClaimArguable
from semel.probe.link_audit import AuditFinding
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
from tests.probe.broker.scripted_peer import (
    PINGRESP,
    PeerLink,
    Script,
    ScriptedPeer,
    answer_plainly,
)

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
    subject: Subject, cases: Sequence[Case], versions: Sequence[int] = (4,), at_once: int = 12
) -> ExaminationReport:
    examination = Examination(subject, cases, versions=versions, seed=1, at_once=at_once)
    await examination.run()
    return examination.report()


def examine(
    peer: ScriptedPeer,
    cases: Sequence[Case],
    versions: Sequence[int] = (4,),
    *,
    at_once: int = 12,
) -> ExaminationReport:
    """The report on a peer, which runs only for it."""

    async def run() -> ExaminationReport:
        async with peer:
            return await examine_subject(peer.subject(), cases, versions, at_once)

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


def test_a_finding_blames_neither_statements_of_clients_nor_those_of_absent_properties() -> None:
    def blamed_for(rule: Rule, data: str) -> tuple[str, ...]:
        packet = bytes.fromhex(data)
        violation = Violation(rule, "more than 1 open", packet[0] >> 4)
        violation.version = 5
        return blamed(AuditFinding(violation, 1, packet))

    # [MQTT-3.3.4-7] and [MQTT-3.2.2-15] are the same rules for clients.
    open_messages = blamed_for(RECEIVE_MAXIMUM_KEPT, "320500016100010078")
    assert open_messages == ("MQTT-3.3.4-9", "MQTT-4.9.0-1", "MQTT-4.9.0-2")
    plain, with_reason_string = "e0028200", "e00682041f000178"
    assert blamed_for(PACKET_SIZE_WITHIN_MAXIMUM, plain) == ("MQTT-3.1.2-24",)
    named = blamed_for(PACKET_SIZE_WITHIN_MAXIMUM, with_reason_string)
    assert named == ("MQTT-3.1.2-24", "MQTT-3.14.2-3")


async def subscribe_with_identifier_0(trial: Trial) -> None:
    link = await trial.connect()
    await link.send(bytes.fromhex("8206000000016100"))
    await trial.must_refuse(link)


async def subscribe_to_nothing(trial: Trial) -> None:
    link = await trial.connect()
    await link.send(bytes.fromhex("82020001"))
    await trial.must_refuse(link)


def test_an_answer_that_copies_what_the_examiner_did_wrong_is_no_finding_of_its_own() -> None:
    def answer_all(link: PeerLink, packet: bytes) -> bytes | None:
        if packet == bytes.fromhex("82020001"):
            return bytes.fromhex("90020001")
        return answer_plainly(link, packet)

    cases = [case("zero", subscribe_with_identifier_0), case("none", subscribe_to_nothing)]
    report = examine(ScriptedPeer(answer_all), cases)
    assert outcome(report, "zero").found == "the broker answered with SUBACK"
    assert outcome(report, "none").verdict == VIOLATED
    assert {each.case for each in report.failed()} == {"zero", "none"}


@pytest.mark.parametrize(
    ("qos", "numbers"), [(1, "MQTT-4.3.2-1"), (2, "MQTT-4.3.3-1")], ids=["QoS 1", "QoS 2"]
)
def test_a_finding_about_a_message_blames_the_statement_of_its_qos(qos: int, numbers: str) -> None:
    def send_dup(link: PeerLink, packet: bytes) -> bytes | None:
        answer = answer_plainly(link, packet)
        first = bytes([0x38 | qos << 1]) + bytes.fromhex("060001610007") + b"x"
        return answer + first if answer == PINGRESP else answer

    report = examine(ScriptedPeer(send_dup), [case("ping", succeed)])
    found = outcome(report, "audit-first-send-without-dup-publish")
    assert found.statements == (numbers,)


def test_a_message_of_another_case_is_no_answer_and_one_of_this_case_is() -> None:
    def send_to_all(name: bytes) -> Script:
        message = bytes([0x30, len(name) + 3, 0, len(name)]) + name + b"x"

        def send_message(link: PeerLink, packet: bytes) -> bytes | None:
            if packet == FORBIDDEN:
                link.writer.write(message)
                return None
            return answer_plainly(link, packet)

        return send_message

    cases = [case("forbidden", send_forbidden)]
    assert outcome(examine(ScriptedPeer(send_to_all(b"a/b")), cases), "forbidden").runs == 1
    # Until the case is run there is none.
    tags = [""]

    async def keep_tag(trial: Trial) -> None:
        tags.append(trial.tag)
        link = await trial.connect()
        await trial.subscribe(link, (trial.topic(), 0))
        await link.send(FORBIDDEN)
        await trial.must_refuse(link)

    def deliver(link: PeerLink, packet: bytes) -> bytes | None:
        return send_to_all(f"semel-probe/{tags[-1]}/t".encode())(link, packet)

    found = outcome(examine(ScriptedPeer(deliver), [case("own", keep_tag)]), "own")
    assert found.found == "the broker answered with PUBLISH"


def test_cases_run_one_at_a_time_on_demand() -> None:
    running: list[str] = []

    def one(name: str) -> Case:
        async def run(trial: Trial) -> None:
            running.append(name)
            assert len(running) == 1
            await asyncio.sleep(0.01)
            running.remove(name)

        return case(name, run)

    report = examine(ScriptedPeer(), [one(name) for name in "abcdef"], at_once=1)
    assert {outcome(report, name).verdict for name in "abcdef"} == {SATISFIED}


# --- vectors, which a peer may answer in more than one way ---


def vector_outcome(script: Script, name: str, versions: Sequence[int] = (4,)) -> CaseOutcome:
    """What the case of a vector finds in a peer."""
    cases = [each for each in VECTOR_CASES if each.name == name]
    return outcome(examine(ScriptedPeer(script), cases, versions), name)


def test_a_wrong_filter_that_is_refused_in_suback_is_arguable_and_a_granted_one_is_not() -> None:
    def refuse_wrong_filter(link: PeerLink, packet: bytes) -> bytes | None:
        if packet[0] == 0x82 and packet.endswith(b"a#\0"):
            return bytes.fromhex("9003000180")
        return answer_plainly(link, packet)

    name = "subscribe-topic-filter-a"
    assert vector_outcome(refuse_wrong_filter, name).verdict == ARGUABLE
    assert vector_outcome(answer_plainly, name).verdict == VIOLATED


def test_an_ill_formed_filter_that_is_refused_in_suback_is_violated() -> None:
    def refuse(link: PeerLink, packet: bytes) -> bytes | None:
        if packet[0] == 0x82 and b"\xff" in packet:
            return bytes.fromhex("9003000180")
        return answer_plainly(link, packet)

    found = vector_outcome(refuse, "subscribe-a-topic-filter-with-a-byte-ff")
    assert found.verdict == VIOLATED


def test_a_wrong_filter_in_unsubscribe_may_be_compared_with_the_others() -> None:
    def answer_unsubscribe(link: PeerLink, packet: bytes) -> bytes | None:
        if packet[0] == 0xA2:
            return b"\xb0\x02" + packet[2:4]
        return answer_plainly(link, packet)

    assert vector_outcome(answer_unsubscribe, "unsubscribe-topic-filter-a").verdict == ARGUABLE


def test_a_peer_without_qos_2_is_not_blamed_in_the_cases_of_other_statements() -> None:
    def close_for_qos_2(link: PeerLink, packet: bytes) -> bytes | None:
        if packet[0] & 0xF6 == 0x34:
            return None
        return answer_plainly(link, packet)

    found = vector_outcome(close_for_qos_2, "publish-packet-identifier-255-at-qos-2")
    assert found.verdict == INCONCLUSIVE


def test_a_name_with_a_dollar_first_may_be_refused() -> None:
    def close_for_dollar(link: PeerLink, packet: bytes) -> bytes | None:
        if packet[0] == 0x82 and b"$share" in packet:
            return None
        return answer_plainly(link, packet)

    assert vector_outcome(close_for_dollar, "subscribe-topic-filter-share").verdict == ARGUABLE
    assert vector_outcome(answer_plainly, "subscribe-topic-filter-share").verdict == SATISFIED


def test_a_peer_that_knows_3_1_1_only_may_refuse_a_connect_of_5_0() -> None:
    def refuse_5(link: PeerLink, packet: bytes) -> bytes | None:
        if packet[0] == 0x10 and packet[8] == 5:
            link.writer.write(bytes.fromhex("20020001"))
            return None
        return answer_plainly(link, packet)

    name = "connect-a-5-0-connect-met-while-3-1-1-is-expected-is-read-as-5-0"
    assert vector_outcome(refuse_5, name).verdict == NOT_APPLICABLE


@pytest.mark.parametrize("answer", ["20020000", "2003000000"])
def test_a_protocol_level_of_another_protocol_may_be_accepted_in_its_form(answer: str) -> None:
    def accept(link: PeerLink, packet: bytes) -> bytes | None:
        if packet[0] == 0x10 and packet[8] == 133:
            return bytes.fromhex(answer)
        return answer_plainly(link, packet)

    assert vector_outcome(accept, "connect-protocol-level-133").verdict == ARGUABLE


def test_a_protocol_level_that_nobody_uses_must_be_refused() -> None:
    assert vector_outcome(answer_plainly, "connect-protocol-level-6").verdict == VIOLATED


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

    def die(link: PeerLink, packet: bytes) -> bytes | None:
        if packet != FORBIDDEN:
            return answer_plainly(link, packet)
        link.peer.stop()
        return None

    cases = [case("fatal", send_forbidden), *(case(f"case-{i}", succeed) for i in range(9))]
    report = examine(ScriptedPeer(die), cases, at_once=1)
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
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("2003008400", "the broker refused a right CONNECT: reason 0x84"),
        # [MQTT-3.1.2-2] A server that knows 3.1.1 only answers in its form.
        ("20020001", "the broker refused a right CONNECT: reason 0x01"),
        ("", "no CONNACK came: the broker sent nothing and closed the connection"),
    ],
)
def test_a_version_that_the_broker_refuses_is_not_examined(
    refused: int, left: str, answer: str, why: str
) -> None:
    def refuse(link: PeerLink, packet: bytes) -> bytes | None:
        if packet[0] != 0x10 or packet[8] != refused:
            return answer_plainly(link, packet)
        link.writer.write(bytes.fromhex(answer))
        return None

    report = examine(ScriptedPeer(refuse), [case("right", succeed)], (4, 5))
    assert report.versions == (left,)
    check_completeness(report, (left,))
    (remark,) = report.remarks
    name = "5.0" if refused == 5 else "3.1.1"
    assert remark == f"Not examined: MQTT {name}: {why}."
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

"""`semel probe client` on semel's own client, and on programs that cannot be examined."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from semel import standard
from semel.cli.probe_client import client
from semel.probe.client.all_cases import ALL_CASES
from semel.probe.client.examination import (
    ClientExamination,
    ClientRun,
    decide_client_case,
    examine_client,
    select_client_cases,
)
from semel.probe.client.needs import MISSING
from semel.probe.client.process import ClientProcess, CommandNotFound, substitute
from semel.probe.client.server_wire import with_packet_id
from semel.probe.client.trial import ClientSubject, ClientTrial
from semel.probe.outcomes import CannotExamine, ExaminationReport
from semel.probe.verdicts import (
    ARGUABLE,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    SATISFIED,
    VIOLATED,
)

PROGRAMS = Path(__file__).parent / "programs"
PLACEHOLDERS = ("{host}", "{port}", "{level}", "{client_id}", "{topic}", "{keep_alive}")
MUTANT = (sys.executable, str(PROGRAMS / "mutant_client.py"), *PLACEHOLDERS)
# Every tenth case that the vectors give; tests/long/client_probe.py runs all of them.
SHARE = 10


def semel_subjects(timeout: float) -> list[ClientSubject]:
    program = (sys.executable, str(PROGRAMS / "semel_client.py"))
    return [
        ClientSubject((*program, role, *PLACEHOLDERS), role, timeout)
        for role in ("subscribe", "publish")
    ]


def doubtful(report: ExaminationReport) -> list[tuple[str, str, str]]:
    """What is not satisfied although it was examined."""
    return [
        (each.version, each.case, each.found)
        for each in report.outcomes
        if each.verdict in (VIOLATED, INCONCLUSIVE, ARGUABLE)
    ]


@pytest.fixture(scope="module")
def own_report() -> ExaminationReport:
    """semel's client: a durable subscriber, and a publisher with an outbox."""
    written = [case for case in ALL_CASES if not case.name.startswith(("refuses-", "accepts-"))]
    given = [case for case in ALL_CASES if case not in written]

    async def run() -> ExaminationReport:
        examination = ClientExamination(
            semel_subjects(15.0), versions=[4, 5], cases=[*written, *given[::SHARE]]
        )
        await examination.run()
        return examination.report()

    return asyncio.run(run())


def test_semels_client_violates_nothing_and_leaves_nothing_undecided(
    own_report: ExaminationReport,
) -> None:
    assert doubtful(own_report) == []


def test_most_statements_that_bind_clients_get_a_verdict_on_semels_client(
    own_report: ExaminationReport,
) -> None:
    satisfied = [each for each in own_report.statements() if each.verdict == SATISFIED]
    assert len(satisfied) > 180


def test_every_statement_stands_in_the_report(own_report: ExaminationReport) -> None:
    for version in ("3.1.1", "5.0"):
        known = [each.id for each in standard.statements(version)]
        assert [each.id for each in own_report.statements() if each.version == version] == known


def test_every_outcome_has_a_name_of_its_own(own_report: ExaminationReport) -> None:
    names = [(each.version, each.case) for each in own_report.outcomes]
    assert len(names) == len(set(names))


def test_a_case_that_a_program_cannot_show_says_what_it_did_not_do(
    own_report: ExaminationReport,
) -> None:
    found = {each.case: each for each in own_report.outcomes if each.version == "5.0"}
    assert found["retain-available"].verdict == NOT_APPLICABLE
    assert found["retain-available"].found == MISSING["retains"]


# --- cases ---


def test_cases_have_names_of_their_own_in_each_version() -> None:
    for version in (4, 5):
        names = [case.name for case in ALL_CASES if case.statements(version)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("version", [4, 5])
def test_cases_name_statements_that_exist(version: int) -> None:
    known = {each.id for each in standard.statements({4: "3.1.1", 5: "5.0"}[version])}
    for case in ALL_CASES:
        assert set(case.statements(version)) <= known, case.name


def test_cases_are_selected_by_name_statement_and_speed() -> None:
    assert [case.name for case in select_client_cases(only=["keep-*"])] == ["keep-alive"]
    chosen = select_client_cases(statements=["3.14.4-1"])
    assert {"disconnect-closes", "disconnect-is-last"} <= {case.name for case in chosen}
    assert not any(case.is_slow for case in select_client_cases(is_quick=True))
    assert len(select_client_cases(is_quick=True)) < len(ALL_CASES) / 2


def test_only_three_agreeing_runs_are_a_violation() -> None:
    trial = ClientTrial(ClientSubject(("x",)), 4, "a")

    def verdict(*verdicts: str) -> str:
        return decide_client_case([ClientRun(each, "", trial, 0.0) for each in verdicts]).verdict

    assert verdict(VIOLATED, VIOLATED, VIOLATED) == VIOLATED
    assert verdict(VIOLATED, VIOLATED, SATISFIED) == INCONCLUSIVE
    assert verdict(VIOLATED, INCONCLUSIVE, VIOLATED) == INCONCLUSIVE
    assert verdict(INCONCLUSIVE, SATISFIED) == SATISFIED
    assert verdict(SATISFIED) == SATISFIED


def test_an_acknowledgement_gets_another_packet_identifier() -> None:
    assert with_packet_id(bytes.fromhex("4003000110"), 0x1234) == bytes.fromhex("4003123410")
    long = bytes([0x40, 0x80, 0x01]) + bytes(128)
    assert with_packet_id(long, 7)[:5] == bytes([0x40, 0x80, 0x01, 0, 7])


# --- programs ---


def test_placeholders_are_replaced_and_other_braces_stay() -> None:
    values = {"host": "h", "port": 1}
    assert substitute(["{host}:{port}", "{x}", "{}"], values) == ["h:1", "{x}", "{}"]


def test_what_a_program_prints_is_counted_and_its_children_end_with_it() -> None:
    async def run() -> None:
        process = ClientProcess()
        script = "import subprocess; print('token token'); subprocess.run(['sleep', '60'])"
        await process.start([sys.executable, "-c", script])
        while not process.output:
            await asyncio.sleep(0.01)
        assert process.times_printed(b"token") == 2
        assert not process.has_ended
        await process.stop()
        assert process.has_ended

    asyncio.run(run())


def test_a_command_that_does_not_exist_is_reported() -> None:
    async def run() -> None:
        with pytest.raises(CommandNotFound, match="cannot start 'no-such-program'"):
            await ClientProcess().start(["no-such-program"])

    asyncio.run(run())


def test_a_program_that_exits_at_once_cannot_be_examined() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no route to {host}')"]
    with pytest.raises(CannotExamine, match=r"exited with code 1 .*: no route to 127\.0\.0\.1"):
        asyncio.run(examine_client(command, versions=[4]))


def test_a_version_that_the_program_does_not_speak_is_a_remark() -> None:
    command = [word.replace("{level}", "4") for word in MUTANT]
    report = asyncio.run(examine_client(command, versions=[4, 5], only=["first-qos-1"]))
    assert report.versions == ("3.1.1",)
    assert any("speaks MQTT 3.1.1, not 5.0" in remark for remark in report.remarks)


def test_an_examination_that_is_cancelled_reports_what_it_has() -> None:
    async def run() -> ExaminationReport:
        task = asyncio.create_task(examine_client(MUTANT, versions=[4], only=["keep-alive"]))
        await asyncio.sleep(0.5)
        task.cancel()
        return await task

    report = asyncio.run(run())
    assert any(remark.startswith("Interrupted") for remark in report.remarks)
    assert report.statements()


# --- the command ---


def invoke(*words: str) -> Result:
    return CliRunner().invoke(client, words)


def test_the_command_prints_one_json_object_and_exits_0_if_nothing_is_violated() -> None:
    result = invoke("--json", "-V", "3.1.1", "--only", "qos-1-answered", "--", *MUTANT)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["kind"] == "client"
    assert report["versions"] == ["3.1.1"]


def test_the_command_exits_1_if_something_is_violated(tmp_path: Path) -> None:
    words = ("-V", "3.1.1", "--only", "qos-2-answered", "--out", str(tmp_path), "--quiet", "--")
    result = invoke(*words, *MUTANT, "--mutant", "puback-for-qos-2")
    assert result.exit_code == 1, result.output
    assert "MQTT-3.3.4-1" in result.stdout
    assert (tmp_path / "report.json").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "no program to examine"),
        (("--", "program"), "has no {port}"),
        (("--publisher", "'", "--", "a", "{port}"), "--publisher: No closing quotation"),
        (("--only", "nothing", "--", "a", "{port}"), "no case has such a name"),
        (("--", "no-such-program", "{port}"), "cannot start 'no-such-program'"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_exit_2(words: tuple[str, ...], sentence: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_the_list_names_the_cases() -> None:
    result = invoke("--list", "-V", "5", "--only", "server-keep-alive")
    assert result.exit_code == 0
    assert "MQTT-3.2.2-21" in result.output
    listed = json.loads(invoke("--list", "--json", "--only", "server-keep-alive").output)
    assert [each["case"] for each in listed] == ["server-keep-alive"]

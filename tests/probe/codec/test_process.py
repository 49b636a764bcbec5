"""Adapters that behave badly: each ends in a verdict or in one sentence, never in a hang."""

import asyncio
import sys
from pathlib import Path

import pytest

from semel.probe.codec.examination import examine_codec
from semel.probe.codec.process import CodecProcess, is_nested_deeper
from semel.probe.outcomes import INTERRUPTION, CannotExamine, ExaminationReport
from semel.probe.verdicts import INCONCLUSIVE, NOT_APPLICABLE, SATISFIED, VIOLATED

# An adapter that answers like semel, unless `misbehave` does something else. It may answer a
# request itself, by returning a line.
ADAPTER = """
import json, os, sys, time
from semel.probe.adapters.adapter import answer_request
from semel.probe.adapters.semel_codec import SemelLibrary

library = SemelLibrary()
kept = []

def misbehave(request):
{body}
    return None

for line in sys.stdin:
    request = json.loads(line)
    answer = misbehave(request)
    if answer is None:
        answer = json.dumps({{"id": request["id"], **answer_request(library, request)}})
    if answer:
        print(answer, flush=True)
"""
# `sensor/#` in 3.1.1, and a right PUBLISH.
BAD = "300b000873656e736f722f2378"


def adapter(folder: Path, body: str) -> list[str]:
    path = folder / "adapter.py"
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    path.write_text(ADAPTER.format(body=lines), encoding="utf-8")
    return [sys.executable, str(path)]


def examine(command: list[str], timeout: float = 20.0, only: str = "") -> ExaminationReport:
    return asyncio.run(
        examine_codec(command, versions=("3.1.1",), timeout=timeout, only=[only] if only else None)
    )


def verdicts(report: ExaminationReport) -> dict[str, str]:
    return {outcome.case: outcome.verdict for outcome in report.outcomes}


def test_a_decoder_that_crashes_the_process_on_bytes_is_violated_with_evidence(
    tmp_path: Path,
) -> None:
    command = adapter(
        tmp_path,
        f"""if request.get("hex") == "{BAD}":
    print("segmentation fault, almost", file=sys.stderr, flush=True)
    os._exit(139)""",
    )
    report = examine(command, only="publish")
    (crash,) = [outcome for outcome in report.outcomes if outcome.verdict != SATISFIED]
    assert crash.verdict == VIOLATED
    assert crash.statements == ("MQTT-3.3.2-2", "MQTT-4.7.1-1")
    assert "exit code 139" in crash.found
    assert "segmentation fault, almost" in crash.found
    assert crash.runs == 3
    assert bytes.fromhex(BAD) in [event.data for event in crash.evidence]
    assert any("started" in remark for remark in report.remarks)


def test_a_crash_is_reported_where_the_standard_has_no_number_for_the_bytes(
    tmp_path: Path,
) -> None:
    report = examine(adapter(tmp_path, 'if request.get("hex") == "3000":\n    os._exit(1)'))
    (crash,) = [outcome for outcome in report.outcomes if outcome.verdict != SATISFIED]
    assert (crash.verdict, crash.statements) == (VIOLATED, ())
    assert crash.case == "decode publish: an empty PUBLISH"


def test_a_decoder_that_hangs_is_violated(tmp_path: Path) -> None:
    command = adapter(tmp_path, f'if request.get("hex") == "{BAD}":\n    time.sleep(60)')
    report = examine(command, timeout=1.5, only="publish: Topic Name")
    (hang,) = [outcome for outcome in report.outcomes if outcome.verdict != SATISFIED]
    assert hang.verdict == VIOLATED
    assert "no answer within 1.5 s" in hang.found


def test_an_encoder_that_crashes_on_what_it_should_refuse_is_not_decided(tmp_path: Path) -> None:
    command = adapter(
        tmp_path, 'if request.get("packet", {}).get("topic_name") == "#":\n    os._exit(1)'
    )
    report = examine(command, only="encode origin")
    found = [outcome for outcome in report.outcomes if outcome.verdict != SATISFIED]
    assert len(found) == 2
    assert {outcome.verdict for outcome in found} == {INCONCLUSIVE}


def test_an_adapter_that_crashes_always_stops_the_examination_with_one_sentence(
    tmp_path: Path,
) -> None:
    command = adapter(tmp_path, 'if request["do"] != "hello":\n    os._exit(1)')
    report = examine(command)
    assert "the adapter crashed or fell silent too often: the examination stopped early" in (
        report.remarks
    )
    assert SATISFIED not in verdicts(report).values()


def test_an_answer_that_is_nested_too_deep_is_no_answer(tmp_path: Path) -> None:
    # Python's parser takes 900 levels.
    body = f"""if request.get("hex") == "{BAD}":
    deep = "[" * 900 + "]" * 900
    return f'{{{{"id": {{request["id"]}}, "packet": {{deep}}}}}}'"""
    report = examine(adapter(tmp_path, body), timeout=5.0, only="publish")
    (deep,) = [outcome for outcome in report.outcomes if outcome.verdict != SATISFIED]
    assert deep.verdict == INCONCLUSIVE
    assert bytes.fromhex(BAD) in [event.data for event in deep.evidence]


@pytest.mark.parametrize(("levels", "expected"), [(50, False), (51, True)])
def test_levels_are_counted(levels: int, expected: bool) -> None:
    value: object = 1
    for number in range(levels):
        value = [value, number] if number % 2 else {"inner": value}
    assert is_nested_deeper(value) == expected


def test_a_line_that_is_no_answer_makes_its_case_inconclusive(tmp_path: Path) -> None:
    command = adapter(tmp_path, f'if request.get("hex") == "{BAD}":\n    return "ouch!"')
    report = examine(command, timeout=1.5, only="publish: Topic Name")
    (garbage,) = [outcome for outcome in report.outcomes if outcome.verdict != SATISFIED]
    assert garbage.verdict == INCONCLUSIVE
    assert "'ouch!'" in garbage.found


@pytest.mark.parametrize(
    "answer",
    ['{"id": %d}', '{"id": %d, "packet": 7}', '{"id": %d, "packet": {"type": "Nonsense"}}'],
)
def test_an_answer_that_is_not_understood_is_inconclusive(tmp_path: Path, answer: str) -> None:
    body = f"if request['do'] == 'decode':\n    return {answer!r} % request['id']"
    report = examine(adapter(tmp_path, body), only="decode puback: PUBACK with flags 0000")
    assert set(verdicts(report).values()) == {INCONCLUSIVE}


def test_an_adapter_may_print_other_lines_between_its_answers(tmp_path: Path) -> None:
    command = adapter(tmp_path, 'print("DEBUG", request["do"])\nprint("[1, 2]")')
    report = examine(command, only="publish")
    assert set(verdicts(report).values()) == {SATISFIED}
    assert any("lines that are no answers; the first: 'DEBUG" in each for each in report.remarks)


def test_an_adapter_may_answer_in_another_order(tmp_path: Path) -> None:
    command = adapter(
        tmp_path,
        """if request["do"] != "hello":
    kept.append(json.dumps({"id": request["id"], **answer_request(library, request)}))
    import select
    if len(kept) < 7 and select.select([sys.stdin], [], [], 0.05)[0]:
        return ""
    answer = chr(10).join(reversed(kept))
    kept.clear()
    return answer""",
    )
    report = examine(command, only="publish: Topic Name")
    assert len(report.outcomes) > 20
    assert set(verdicts(report).values()) == {SATISFIED}


def test_a_codec_that_refuses_everything_satisfies_nothing(tmp_path: Path) -> None:
    body = """if request["do"] != "hello":
    return json.dumps({"id": request["id"], "refused": "no"})"""
    report = examine(adapter(tmp_path, body))
    assert set(verdicts(report).values()) <= {INCONCLUSIVE, "arguable"}
    assert len(report.outcomes) > 900


def test_a_codec_that_accepts_everything_is_violated_by_all_that_is_wrong(tmp_path: Path) -> None:
    body = """if request["do"] == "decode":
    kinds = "? Connect ConnAck Publish PubAck PubRec PubRel PubComp Subscribe SubAck Unsubscribe"
    kinds = (kinds + " UnsubAck PingReq PingResp Disconnect Auth").split()
    kind = kinds[int(request["hex"][0], 16)].replace("?", "Publish")
    return json.dumps({"id": request["id"], "packet": {"type": kind}})"""
    report = examine(adapter(tmp_path, body), only="decode")
    for outcome in report.outcomes:
        is_wrong = "refuses what is wrong" in outcome.title
        expected = {VIOLATED, "arguable"} if is_wrong else {SATISFIED}
        assert outcome.verdict in expected, outcome.case


def test_what_an_adapter_cannot_is_not_applicable(tmp_path: Path) -> None:
    body = """if request["do"] == "encode":
    return json.dumps({"id": request["id"], "cannot": "no encoder"})"""
    report = examine(adapter(tmp_path, body))
    by_path = {(outcome.path, outcome.verdict) for outcome in report.outcomes}
    assert by_path == {("encode", NOT_APPLICABLE), ("decode", SATISFIED)}


def test_packet_types_that_the_hello_does_not_name_are_not_asked_for(tmp_path: Path) -> None:
    body = """if request["do"] == "hello":
    types = {"3.1.1": ["Publish"]}
    hello = {"name": "few", "version": "1", "decode": types}
    return json.dumps({"id": request["id"], **hello})
assert request["do"] == "decode" and request["hex"][0] in "03f", request"""
    report = examine(adapter(tmp_path, body))
    assert report.name == "few 1"
    for outcome in report.outcomes:
        asked = outcome.case.startswith(("decode publish", "decode framing", "decode origin"))
        if asked and outcome.verdict != SATISFIED:
            assert "cannot decode" in outcome.found, outcome
        elif not asked:
            assert outcome.verdict == NOT_APPLICABLE


def test_violations_that_do_not_repeat_are_inconclusive(tmp_path: Path) -> None:
    body = f"""if request.get("hex") == "{BAD}" and not kept:
    kept.append(1)
    return json.dumps({{"id": request["id"], "packet": {{"type": "Publish"}}}})"""
    report = examine(adapter(tmp_path, body), only="publish: Topic Name sensor")
    found = [outcome for outcome in report.outcomes if outcome.verdict != SATISFIED]
    assert [outcome.verdict for outcome in found] == [INCONCLUSIVE]
    assert "repeats disagree" in found[0].found


def test_a_flood_of_errors_does_not_stop_the_adapter(tmp_path: Path) -> None:
    command = adapter(tmp_path, 'print("x" * 10_000, file=sys.stderr, flush=True)')
    assert set(verdicts(examine(command, only="publish")).values()) == {SATISFIED}


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["/no/such/program"], "cannot start the adapter '/no/such/program': No such file"),
        ([sys.executable, "-c", "raise SystemExit('no library')"], "exit code 1 .*: no library"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "did not answer hello within 2 s"),
        ([sys.executable, "-c", "print('hello'); input(); input()"], "did not answer hello"),
        (
            [sys.executable, "-c", 'input(); print(\'{"id": 1, "name": 7}\'); input()'],
            "name and version must be texts",
        ),
        (
            [
                sys.executable,
                "-c",
                'input(); print(\'{"id": 1, "name": "x", "version": "1", '
                '"decode": {"4": []}}\'); input()',
            ],
            "decode names the version '4'; there are 3.1.1 and 5.0",
        ),
        (
            [
                sys.executable,
                "-c",
                'input(); print(\'{"id": 1, "name": "x", "version": "1", '
                '"decode": {"5.0": ["Publish"]}}\'); input()',
            ],
            "x has none of the versions that were asked for: 3.1.1",
        ),
    ],
)
def test_an_adapter_without_a_hello_cannot_be_examined(command: list[str], sentence: str) -> None:
    with pytest.raises(CannotExamine, match=sentence):
        examine(command, timeout=0.5)


def test_the_processes_of_an_adapter_end_with_the_examination(tmp_path: Path) -> None:
    async def started() -> int:
        process = CodecProcess(adapter(tmp_path, "pass"), timeout=20)
        await process.start()
        assert process._process is not None
        pid = process._process.pid
        await process.close()
        return pid

    pid = asyncio.run(started())
    assert not Path(f"/proc/{pid}").exists()


def test_a_cancelled_examination_reports_what_it_found(tmp_path: Path) -> None:
    command = adapter(tmp_path, 'if "#" in str(request.get("packet")):\n    time.sleep(60)')

    async def cancelled() -> ExaminationReport:
        examination = asyncio.create_task(
            examine_codec(command, versions=("3.1.1",), timeout=60, reports_when_cancelled=True)
        )
        await asyncio.sleep(3)
        examination.cancel()
        return await examination

    report = asyncio.run(cancelled())
    assert INTERRUPTION in report.remarks
    assert report.outcomes
    assert VIOLATED not in verdicts(report).values()

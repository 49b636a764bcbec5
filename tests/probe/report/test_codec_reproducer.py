"""The reproducer of a codec's case, run as a maintainer runs it, with right and broken adapters."""

import ast
import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from semel.probe.codec.examination import examine_codec
from semel.probe.evidence import AdapterCall, AdapterRecord
from semel.probe.outcomes import (
    BadReport,
    CaseOutcome,
    ExaminationReport,
    combine_reports,
    report_from_json,
)
from semel.probe.report.bug_report import make_bug_report
from semel.probe.report.case_files import list_case_files
from semel.probe.report.files import read_report, write_report
from semel.probe.verdicts import DECODE, ENCODE, VIOLATED
from tests.probe.report.hand_made_reports import HOSTILE, origin_report, report

MUTANTS = Path(__file__).parent.parent / "codec" / "mutants.py"
RIGHT = [sys.executable, "-m", "semel.probe.adapters.semel_codec"]
# An adapter without a library. CONTROL is how it answers 01, and TEST how it answers 02.
ADAPTER = """
import json, sys, time
for line in sys.stdin:
    request = json.loads(line)
    asked = request.get("hex") or request.get("packet", {}).get("type")
    answer = {"name": NAME, "version": "1"}
    if asked in ("01", "Right"):
        answer = CONTROL
    elif asked in ("02", "Wrong"):
        answer = TEST
    if answer is None:
        sys.exit("Segmentation \x1b[31mfault")
    if answer == "silent":
        time.sleep(60)
    print("a line that is no answer")
    print(json.dumps({"id": request["id"], **answer}), flush=True)
"""
ACCEPTED = {"packet": {"type": "Publish", "topic_name": "a"}, "taken": 1}
REFUSED = {"refused": "no"}
SILENT = "silent"


def adapter(
    folder: Path, control: object = ACCEPTED, test: object = ACCEPTED, name: str = "example"
) -> list[str]:
    path = folder / "adapter.py"
    data = f"CONTROL, TEST, NAME = {control!r}, {test!r}, {name!a}"
    path.write_text(data + ADAPTER, "utf-8")
    return [sys.executable, str(path)]


def outcome_of(
    answer: object = ACCEPTED,
    *,
    right: object = REFUSED,
    control: object = ACCEPTED,
    path: str = DECODE,
    command: tuple[str, ...] = ("/no/such/adapter",),
) -> CaseOutcome:
    """A violated case in which 01 was the control, and 02 the test."""

    def call(number: str, recorded: object) -> AdapterCall:
        request: dict[str, object] = {"do": path, "version": "3.1.1", "direction": "both"}
        request["hex"] = number
        if path == ENCODE:
            kind = "Right" if number == "01" else "Wrong"
            request = {"do": path, "version": "3.1.1", "packet": {"type": kind}}
        return AdapterCall(json.dumps(request), json.dumps(recorded))

    record = AdapterRecord(
        command,
        call("02", answer),
        json.dumps(right),
        None if control is None else call("01", control),
    )
    return CaseOutcome(
        "decode publish: Topic Name sensor/#",
        "3.1.1",
        path,
        ("MQTT-3.3.2-2",),
        "The decoder refuses what is wrong.",
        VIOLATED,
        "the decoder accepts it",
        runs=3,
        adapter=record,
    )


def codec_report(*outcomes: CaseOutcome) -> ExaminationReport:
    return report(*outcomes, kind="codec", subject="./adapter")


def reproducer_of(found: ExaminationReport, outcome: CaseOutcome) -> str | None:
    return list_case_files(found)[outcome.case, outcome.version].reproducer


def run_text(text: str | None, folder: Path, *words: str) -> tuple[int, str]:
    """Run a reproducer, isolated from semel and from site packages, with short timeouts."""
    assert text is not None
    path = folder / "case.py"
    path.write_text(text.replace("TIMEOUT = 20.0", "TIMEOUT = 3.0"), "utf-8")
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", str(path), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert result.stderr == ""
    return result.returncode, result.stdout


def run(outcome: CaseOutcome, folder: Path, command: list[str]) -> tuple[int, str]:
    text = reproducer_of(codec_report(outcome), outcome)
    return run_text(text, folder, *(["--", *command] if command else []))


# --- with codecs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mutant", "only"),
    [
        ("decode accepts TOPIC_NAME_WITHOUT_WILDCARDS", "decode publish: Topic Name sensor/#"),
        ("decode refuses U+FEFF", "decode *U+FEFF*"),
        ("decode reads DUP as 0", "decode publish: *DUP 1*"),
        ("encode writes TOPIC_NAME_WITHOUT_WILDCARDS", "encode origin: *sensor/# at QoS 0"),
        ("encode refuses a repeated user property", "encode *user propert*"),
        ("encode writes PUBREL without its flags", "encode pubrel*"),
    ],
)
def test_a_broken_codec_is_violated_again_and_a_right_one_is_not(
    mutant: str, only: str, tmp_path: Path
) -> None:
    command = [sys.executable, str(MUTANTS), mutant]
    found = asyncio.run(examine_codec(command, only=[only], timeout=20))
    violated = found.failed()
    assert violated
    for outcome in violated:
        assert reproducer_of(found, outcome) is not None
    text = reproducer_of(found, violated[0])
    code, shown = run_text(text, tmp_path)
    assert code == 1, shown
    assert f"\nVIOLATED: {violated[0].found}" in shown
    assert f"[{violated[0].statements[0]}] " in shown
    code, shown = run_text(text, tmp_path, "--", *RIGHT)
    assert code == 0, shown
    assert "NOT REPRODUCED: the codec does not answer as it was recorded." in shown
    assert "\nCodec: semel " in shown


def test_the_bytes_of_the_request_are_shown_for_a_test_of_the_library(tmp_path: Path) -> None:
    command = [sys.executable, str(MUTANTS), "decode accepts TOPIC_NAME_WITHOUT_WILDCARDS"]
    only = ["decode publish: Topic Name sensor/#"]
    found = asyncio.run(examine_codec(command, only=only, versions=("3.1.1",), timeout=20))
    text = reproducer_of(found, found.failed()[0])
    assert text is not None
    data = "30 0b 00 08 73 65 6e 73 6f 72 2f 23 78"
    assert f"\nBytes to decode: {data}\n" in text
    shown = run_text(text, tmp_path)[1]
    assert f"test: decode these 13 bytes of MQTT 3.1.1 (either side may send them)\n    {data}" in (
        shown
    )
    assert 'right answer: {"refused": "A Topic Name has neither + nor #."}' in shown


def test_a_packet_that_is_too_long_to_be_kept_has_no_reproducer() -> None:
    command = [sys.executable, str(MUTANTS), "decode refuses the longest topics"]
    found = asyncio.run(
        examine_codec(command, only=["decode publish*65,535*"], versions=("3.1.1",), timeout=20)
    )
    (outcome, *_) = found.failed()
    assert outcome.adapter is None
    files = list_case_files(found)[outcome.case, outcome.version]
    assert files.reproducer is None
    assert "cannot be replayed by a program" in make_bug_report(found, outcome, files)


def test_a_report_keeps_the_requests_also_if_it_is_combined(tmp_path: Path) -> None:
    outcome = outcome_of()
    found = codec_report(outcome)
    write_report(found, tmp_path)
    again = read_report(tmp_path / "report.json")
    assert again.outcomes == [outcome]
    (path,) = (tmp_path / "reproducers").iterdir()
    assert path.name == "decode-publish-Topic-Name-sensor--3.1.1.py"
    assert path.read_text("utf-8") == reproducer_of(found, outcome)
    both = combine_reports([again, origin_report()], "both")
    texts = [each.reproducer for each in list_case_files(both).values()]
    assert ["COMMAND" in (text or "") for text in texts] == [True, False]


def test_a_report_of_an_earlier_version_is_read_and_has_no_reproducer() -> None:
    value = json.loads(json.dumps(codec_report(outcome_of()).as_json()))
    value["cases"][0]["adapter"] = 7
    with pytest.raises(BadReport, match="damaged"):
        report_from_json(value)
    del value["cases"][0]["adapter"]
    found = report_from_json(value)
    assert reproducer_of(found, found.outcomes[0]) is None


def test_a_bug_report_names_the_command_and_has_the_reproducer() -> None:
    outcome = outcome_of(command=("python", "-m", "my adapter"))
    found = codec_report(outcome)
    files = list_case_files(found)[outcome.case, outcome.version]
    text = make_bug_report(found, outcome, files)
    assert f"python3 reproducers/{files.stem}.py -- python -m 'my adapter'\n" in text
    assert "3 runs had this result, the last one in a fresh process of the adapter." in text
    assert "#!/usr/bin/env python3\n" in text


# --- with answers of every kind -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "test", "code"),
    [
        # Any packet breaks the rule, also another one, and only a refusal does not.
        (outcome_of(), ACCEPTED, 1),
        (outcome_of(), {"packet": {"type": "Publish", "topic_name": "b"}}, 1),
        (outcome_of(), {"incomplete": True}, 1),
        (outcome_of(), {"refused": "another reason"}, 0),
        # What is right was refused, or read as something else.
        (outcome_of(REFUSED, right=ACCEPTED), {"refused": "another reason"}, 1),
        (outcome_of(REFUSED, right=ACCEPTED), ACCEPTED, 0),
        (outcome_of({"packet": {"qos": 1}}, right=ACCEPTED), {"packet": {"qos": 1}}, 1),
        (outcome_of({"packet": {"qos": 1}}, right=ACCEPTED), {"packet": {"qos": 2}}, 0),
        (outcome_of(ACCEPTED, right=ACCEPTED), {**ACCEPTED, "taken": 2}, 0),
        (outcome_of({"packet": {"qos": float("nan")}}), {"packet": {"qos": 0}}, 1),
        # Bytes.
        (outcome_of({"hex": "3000"}, control={"hex": "30"}, path=ENCODE), {"hex": "30 00"}, 1),
        (outcome_of({"hex": "3000"}, control={"hex": "30"}, path=ENCODE), {"hex": "3001"}, 0),
        (outcome_of({"hex": "3000"}, control={"hex": "30"}, path=ENCODE), REFUSED, 0),
        # A crash and a silence are both the end of a codec.
        (outcome_of({"crashed": "exit code 1"}, right=ACCEPTED), {"crashed": "panic"}, 1),
        (outcome_of({"crashed": "exit code 1"}, right=ACCEPTED), None, 1),
        (outcome_of({"silent": "no answer within 5 s"}, right=ACCEPTED), None, 1),
        (outcome_of({"crashed": "exit code 1"}, right=ACCEPTED), ACCEPTED, 0),
        (outcome_of({"crashed": "exit code 1"}), REFUSED, 0),
        # No answer that could be compared.
        (outcome_of(), None, 2),
        (outcome_of(), {"cannot": "no such field"}, 2),
        (outcome_of(), {"hex": "30"}, 2),
        (outcome_of(), {"silent": "says the adapter"}, 2),
        (outcome_of(), {"packet": 7}, 2),
    ],
)
def test_an_answer_is_compared_with_the_recorded_one(
    outcome: CaseOutcome, test: object, code: int, tmp_path: Path
) -> None:
    control = {"hex": "30"} if outcome.path == ENCODE else ACCEPTED
    found, text = run(outcome, tmp_path, adapter(tmp_path, control, test))
    assert found == code, text
    assert ("\nVIOLATED: the " in text) is (code == 1)
    assert text.endswith(": nothing is proved\n") is (code == 2)


def test_another_answer_that_is_no_refusal_is_not_called_the_recorded_one(tmp_path: Path) -> None:
    assert "VIOLATED: the decoder accepts it\n" in run(outcome_of(), tmp_path, adapter(tmp_path))[1]
    other = adapter(tmp_path, test={"packet": {"type": "PubAck"}})
    code, text = run(outcome_of(), tmp_path, other)
    assert code == 1
    assert "VIOLATED: the answer is not the recorded one, but the decoder does not refuse" in text


@pytest.mark.parametrize(("recorded", "code"), [({"silent": "no answer"}, 1), (ACCEPTED, 2)])
def test_a_codec_that_does_not_come_to_an_end_is_violated_if_that_was_recorded(
    recorded: object, code: int, tmp_path: Path
) -> None:
    outcome = outcome_of(recorded)
    text = reproducer_of(codec_report(outcome), outcome)
    assert text is not None
    text = text.replace("TIMEOUT = 5.0", "TIMEOUT = 0.5")
    found, shown = run_text(text, tmp_path, "--", *adapter(tmp_path, test=SILENT))
    assert found == code
    assert "the adapter did not answer within 0.5 s" in shown
    assert shown.endswith(": nothing is proved\n") is (code == 2)


@pytest.mark.parametrize("control", [REFUSED, {"cannot": "no such packet"}, None])
def test_a_control_that_fails_proves_nothing(control: object, tmp_path: Path) -> None:
    code, text = run(outcome_of(), tmp_path, adapter(tmp_path, control))
    assert code == 2
    assert text.endswith(
        "the control failed: it was accepted when it was recorded: nothing is proved\n"
    )
    assert "VIOLATED" not in text


def test_a_control_that_was_not_accepted_or_is_missing_is_not_required(tmp_path: Path) -> None:
    command = adapter(tmp_path, REFUSED)
    assert run(outcome_of(control=REFUSED), tmp_path, command)[0] == 1
    code, text = run(outcome_of(control=None), tmp_path, command)
    assert (code, "control, which is right" in text) == (1, False)


def test_an_adapter_that_does_not_run_proves_nothing_and_says_why_in_one_sentence(
    tmp_path: Path,
) -> None:
    code, text = run(outcome_of(), tmp_path, [])
    assert code == 2
    assert text.endswith(
        "\ncannot start the adapter /no/such/adapter: No such file or directory: "
        "nothing is proved\n"
    )
    ended = [sys.executable, "-c", "raise SystemExit('no library')"]
    code, text = run(outcome_of(), tmp_path, ended)
    assert code == 2
    assert text.endswith("\nthe adapter ended with exit code 1: no library: nothing is proved\n")
    silent = [sys.executable, "-c", "import time; time.sleep(60)"]
    code, text = run(outcome_of(), tmp_path, silent)
    assert code == 2
    assert text.endswith("\nthe adapter did not answer within 3 s: nothing is proved\n")
    assert "Traceback" not in text


@pytest.mark.parametrize("words", [("-h",), ("localhost", "1883"), ("--",)])
def test_wrong_words_are_answered_with_the_usage(words: tuple[str, ...], tmp_path: Path) -> None:
    outcome = outcome_of()
    text = reproducer_of(codec_report(outcome), outcome)
    code, shown = run_text(text, tmp_path, *words)
    assert code == 2
    assert shown.startswith("usage: python3 ")
    assert shown.endswith(" [-- adapter command]\n")


# --- the text -------------------------------------------------------------------------------------


def hostile_outcome() -> CaseOutcome:
    """Every text that a subject or a file could have chosen is hostile."""
    answer = {"packet": {"type": HOSTILE, "topic_name": "'''\"\"\"\\\n# --- the case: end ---\n"}}
    outcome = outcome_of(answer, command=(*RIGHT, HOSTILE.replace("\x00", ""), '"""', "\n"))
    return replace(outcome, case=f"../{HOSTILE}", title=HOSTILE, found=f'{HOSTILE}"""\\')


def test_a_reproducer_is_readable_python_3_8_of_the_standard_library() -> None:
    for outcome in (outcome_of(), hostile_outcome()):
        text = reproducer_of(codec_report(outcome), outcome)
        assert text is not None
        tree = ast.parse(text, feature_version=(3, 8))
        docstring = ast.get_docstring(tree, clean=False)
        assert docstring is not None
        assert "Bytes to decode: 02\n" in docstring
        modules = {
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for name in node.names
        }
        assert modules <= sys.stdlib_module_names
        assert all(c.isprintable() or c == "\n" for c in text)
        assert "nosec" not in text
        assert len(text.splitlines()) < 400
    outcome = outcome_of()
    text = reproducer_of(codec_report(outcome), outcome)
    assert max(len(line) for line in (text or "").splitlines()) <= 100


def test_hostile_text_stays_in_strings_and_off_the_terminal(tmp_path: Path) -> None:
    outcome = hostile_outcome()
    text = reproducer_of(codec_report(outcome), outcome)
    assert text is not None
    module: dict[str, object] = {"__name__": "case"}
    exec(compile(text, "case.py", "exec"), module)
    assert outcome.adapter is not None
    assert module["COMMAND"] == list(outcome.adapter.command)
    assert json.loads(str(module["TEST_ANSWER"])) == json.loads(outcome.adapter.test.answer)
    for answer in (ACCEPTED, None, {"refused": HOSTILE}):
        code, shown = run_text(text, tmp_path, "--", *adapter(tmp_path, test=answer, name=HOSTILE))
        assert code == (0 if answer == {"refused": HOSTILE} else 2 if answer is None else 1)
        assert all(c.isprintable() or c == "\n" for c in shown)


@pytest.mark.parametrize(
    "request_text",
    [
        "",
        "7",
        "[]",
        "{}",
        '{"do": "hello"}',
        '{"do": "decode", "direction": "both", "hex": "3"}',
        '{"do": "decode", "direction": 7, "hex": "30"}',
        '{"do": "encode"}',
        "[" * 100_000,
    ],
)
def test_damaged_requests_have_no_reproducer(request_text: str) -> None:
    outcome = outcome_of()
    assert outcome.adapter is not None
    call = replace(outcome.adapter.test, request=request_text)
    for record in (replace(outcome.adapter, test=call), replace(outcome.adapter, control=call)):
        damaged = replace(outcome, adapter=record)
        assert reproducer_of(codec_report(damaged), damaged) is None

"""`semel probe codec`: exit codes, output and files."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from semel.cli.probe_codec import codec

SEMEL = ("--", sys.executable, "-m", "semel.probe.adapters.semel_codec")
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "codec_adapter.py"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(codec, [*arguments])


def test_a_codec_without_violations_exits_with_0() -> None:
    result = run("-V", "3.1.1", "--timeout", "20", "--only", "*publish*", *SEMEL)
    assert result.exit_code == 0, result.output
    assert "0 violated" in result.output
    assert "only selected cases were run" in result.output


def test_violations_exit_with_1_and_are_shown_in_words() -> None:
    result = run("--statement", "3.3.2-2", "--timeout", "20", "--", sys.executable, str(EXAMPLE))
    assert result.exit_code == 1, result.output
    assert "[MQTT-3.3.2-2] of 3.1.1" in result.output
    assert "the decoder accepts it as PUBLISH with topic_name 'sensor/#'" in result.output


def test_one_json_object_is_printed() -> None:
    result = run("--json", "--only", "decode puback*", "--timeout", "20", *SEMEL)
    report = json.loads(result.stdout)
    assert report["kind"] == "codec"
    assert report["versions"] == ["3.1.1", "5.0"]
    assert {case["path"] for case in report["cases"]} == {"decode"}


def test_the_report_is_written_to_files(tmp_path: Path) -> None:
    out = tmp_path / "report"
    result = run(
        *("--statement", "4.7.3-1", "--out", str(out), "--timeout", "20"),
        *("--", sys.executable, str(EXAMPLE)),
    )
    assert result.exit_code == 1, result.output
    assert (out / "report.json").is_file()
    assert (out / "report.html").is_file()
    assert len(list((out / "reproducers").glob("*.py"))) == len(
        list((out / "bug-reports").glob("*.md"))
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--", "/no/such/program"), "cannot start the adapter"),
        (("--timeout", "0.5", "--", sys.executable, "-c", "raise SystemExit(3)"), "exit code 3"),
        (("--only", "nonsense", *SEMEL), "no case has such a name"),
        (("--statement", "9.9.9-9", *SEMEL), "examines such a statement"),
        ((), "Missing argument"),
    ],
)
def test_what_cannot_be_examined_exits_with_2(arguments: tuple[str, ...], sentence: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output

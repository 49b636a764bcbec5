"""What changed between two reports, on the command line too."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from semel.cli.probe_compare import compare as compare_command
from semel.cli.probe_compare import page as page_command
from semel.probe.outcomes import ExaminationReport
from semel.probe.report.comparison import Comparison, compare
from semel.probe.verdicts import (
    ARGUABLE,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    PARTLY,
    SATISFIED,
    VIOLATED,
)
from tests.probe.report.hand_made_reports import HOSTILE, case, origin_report, report

STATEMENT = "MQTT-4.7.3-1"


def one(*verdicts: str) -> ExaminationReport:
    """A report with a case per verdict, all about one statement."""
    cases = [case(f"case-{n}", each, (STATEMENT,)) for n, each in enumerate(verdicts)]
    return report(*cases)


def kinds(comparison: Comparison) -> list[str]:
    """The names of the lists that have something."""
    names = ("regressed", "improved", "changed", "new", "gone")
    return [name for name in names if getattr(comparison, name)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((SATISFIED,), (SATISFIED,), []),
        ((SATISFIED,), (VIOLATED,), ["regressed"]),
        ((SATISFIED,), (PARTLY,), ["regressed"]),
        ((ARGUABLE,), (VIOLATED,), ["regressed"]),
        ((SATISFIED, SATISFIED), (SATISFIED, VIOLATED), ["regressed"]),
        # Partly before and after, but in another case.
        ((SATISFIED, VIOLATED), (VIOLATED, SATISFIED), ["regressed"]),
        ((SATISFIED, VIOLATED), (VIOLATED, VIOLATED), ["regressed"]),
        ((SATISFIED, SATISFIED, VIOLATED), (SATISFIED, VIOLATED, VIOLATED), ["regressed"]),
        ((SATISFIED,), (INCONCLUSIVE,), ["changed"]),
        ((SATISFIED,), (), ["changed"]),
        ((SATISFIED,), (NOT_APPLICABLE,), ["changed"]),
        ((SATISFIED,), (ARGUABLE,), ["changed"]),
        ((), (VIOLATED,), ["changed"]),
        ((INCONCLUSIVE,), (VIOLATED,), ["changed"]),
        ((VIOLATED,), (INCONCLUSIVE,), ["changed"]),
        ((VIOLATED,), (SATISFIED,), ["improved"]),
        ((VIOLATED,), (ARGUABLE,), ["improved"]),
        ((VIOLATED, VIOLATED), (VIOLATED, SATISFIED), ["improved"]),
        ((SATISFIED, VIOLATED, VIOLATED), (SATISFIED, SATISFIED, VIOLATED), ["improved"]),
        ((VIOLATED,), (VIOLATED,), []),
        ((SATISFIED, VIOLATED), (SATISFIED, VIOLATED), []),
    ],
)
def test_a_change_is_in_one_list(
    before: tuple[str, ...], after: tuple[str, ...], expected: list[str]
) -> None:
    found = compare(one(*before), one(*after))
    assert kinds(found) == expected
    assert found.has_regression is ("regressed" in expected)
    assert found.unchanged == 148 - len(expected)


def test_a_change_names_its_statement_and_cases() -> None:
    (found,) = compare(one(SATISFIED, VIOLATED), one(VIOLATED, SATISFIED)).regressed
    assert (found.version, found.id) == ("3.1.1", STATEMENT)
    assert (found.before, found.after) == (PARTLY, PARTLY)
    assert found.sentence == "No Topic Name and no Topic Filter may be empty."
    assert found.broken_cases == ("case-0",)
    assert found.repaired_cases == ("case-1",)


def test_a_version_that_one_report_lacks_is_new_or_gone() -> None:
    old, both = report(), report(versions=("3.1.1", "5.0"))
    found = compare(old, both)
    assert (kinds(found), len(found.new)) == (["new"], 324)
    found = compare(both, old)
    assert (kinds(found), len(found.gone)) == (["gone"], 324)
    assert found.has_regression is False


def test_reports_of_different_kinds_are_remarked() -> None:
    found = compare(report(), report(kind="client"))
    assert found.remarks == ["the old report examined a broker, the new one a client"]
    assert not compare(report(), report()).remarks


# --- the commands ---------------------------------------------------------------------------------


def saved(folder: Path, name: str, found: ExaminationReport) -> str:
    path = folder / name
    path.write_text(json.dumps(found.as_json()))
    return str(path)


def run_compare(
    folder: Path, old: ExaminationReport, new: ExaminationReport, *words: str
) -> Result:
    paths = [saved(folder, "old.json", old), saved(folder, "new.json", new)]
    return CliRunner().invoke(compare_command, [*paths, *words])


def test_a_regression_exits_with_1_and_is_printed_last(tmp_path: Path) -> None:
    old = report(case("a", SATISFIED, (STATEMENT,)), case("b", VIOLATED, ("MQTT-4.7.1-1",)))
    new = report(case("a", VIOLATED, (STATEMENT,)), case("b", SATISFIED, ("MQTT-4.7.1-1",)))
    result = run_compare(tmp_path, old, new)
    assert result.exit_code == 1
    assert result.output.index("Improved: 1 statement") < result.output.index(
        "Regressed: 1 statement"
    )
    assert result.output.endswith(
        "  MQTT-4.7.3-1 (MQTT 3.1.1): satisfied → violated\n"
        "    No Topic Name and no Topic Filter may be empty.\n"
        "    broken: a\n"
    )
    result = run_compare(tmp_path, old, new, "--json")
    assert result.exit_code == 1
    found = json.loads(result.output)
    assert found["has_regression"] is True
    assert [each["id"] for each in found["regressed"]] == [STATEMENT]


def test_no_regression_exits_with_0(tmp_path: Path) -> None:
    result = run_compare(tmp_path, one(SATISFIED), one(INCONCLUSIVE))
    assert result.exit_code == 0
    assert "MQTT-4.7.3-1 (MQTT 3.1.1): satisfied → inconclusive" in result.output
    assert "No regression; 147 statements unchanged." in result.output
    result = run_compare(tmp_path, report(), report(versions=("5.0",), kind="client"))
    assert result.exit_code == 0
    assert "Examined only in NEW: 324 statements of MQTT 5.0" in result.output
    assert "Examined only in OLD: 148 statements of MQTT 3.1.1" in result.output
    assert "Warning: the old report examined a broker" in result.output


def test_a_file_that_is_no_report_exits_with_2(tmp_path: Path) -> None:
    good = saved(tmp_path, "good.json", report())
    bad = tmp_path / "bad\x1b.json"
    bad.write_text("[]")
    for words in ([good, str(bad)], [str(bad), good], [good, str(tmp_path / "none.json")]):
        result = CliRunner().invoke(compare_command, words)
        assert result.exit_code == 2
        assert result.output.count("Error: ") == 1
        assert "\x1b" not in result.output
    result = CliRunner().invoke(page_command, [good, str(bad)])
    assert (result.exit_code, "not a report of semel probe" in result.output) == (2, True)


def test_a_hostile_case_name_cannot_control_the_terminal(tmp_path: Path) -> None:
    old, new = (report(case(HOSTILE, each, (STATEMENT,))) for each in (SATISFIED, VIOLATED))
    result = run_compare(tmp_path, old, new)
    assert result.exit_code == 1
    assert "\x1b" not in result.output


def test_the_page_is_printed_or_written(tmp_path: Path) -> None:
    paths = [saved(tmp_path, "a.json", origin_report()), saved(tmp_path, "b.json", report())]
    result = CliRunner().invoke(page_command, paths)
    assert result.exit_code == 0
    assert result.output.startswith("<!doctype html>")
    target = tmp_path / "matrix.html"
    result = CliRunner().invoke(page_command, [*paths, "--output", str(target)])
    assert result.output == f"{target}: 2 subjects, 6 statements differ\n"
    assert target.read_text("utf-8").startswith("<!doctype html>")
    result = CliRunner().invoke(page_command, [*paths, "--json"])
    found = json.loads(result.output)
    assert found["subjects"] == ["example 1.0", "example 1.0"]
    assert len(found["statements"]) == 148
    assert sum(each["differs"] for each in found["statements"]) == 6


def test_a_page_that_cannot_be_written_exits_with_2(tmp_path: Path) -> None:
    path = saved(tmp_path, "a.json", report())
    result = CliRunner().invoke(page_command, [path, "--output", f"{path}/matrix.html"])
    assert result.exit_code == 2
    assert "is not a folder" in result.output
    assert CliRunner().invoke(page_command, []).exit_code == 2

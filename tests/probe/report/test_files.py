"""The folder of a report: all files, replaced as a whole, and what `read_report` refuses."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from semel.probe.outcomes import BadReport
from semel.probe.report.files import CannotWriteReport, read_report, replace_file, write_report
from semel.probe.verdicts import SATISFIED, VIOLATED
from tests.probe.report.hand_made_reports import (
    ORIGIN_CASE,
    case,
    hostile_report,
    large_report,
    origin_report,
    report,
)

ALWAYS = {
    *("report.json", "report.html", "junit.xml", "report.sarif", "exchange.pcapng", "badge.svg"),
}


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_report_is_written_in_all_its_forms(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    paths = write_report(origin_report(), folder)
    assert paths[0] == folder / "report.json"
    assert {str(path.relative_to(folder)) for path in paths} == names_in(folder)
    assert names_in(folder) == {
        *ALWAYS,
        "reproducers/empty-topic-name-3.1.1.py",
        "bug-reports/empty-topic-name-3.1.1.md",
    }


@pytest.mark.parametrize(
    "made", [report, origin_report, hostile_report, lambda: large_report(20)], ids=range(4)
)
def test_what_is_written_is_read_again(made: Any, tmp_path: Path) -> None:
    expected = made()
    write_report(expected, tmp_path)
    found = read_report(tmp_path / "report.json")
    assert found.as_json() == expected.as_json()


def test_an_empty_report_has_every_statement(tmp_path: Path) -> None:
    write_report(report(versions=("3.1.1", "5.0")), tmp_path)
    assert names_in(tmp_path) == ALWAYS
    found = json.loads((tmp_path / "report.json").read_text())
    assert len(found["statements"]) == 141 + 251 + 80


def test_a_hostile_case_name_stays_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "here"
    write_report(hostile_report(), folder)
    assert names_in(tmp_path) == {f"in/here/{name}" for name in names_in(folder)}
    assert all("\n" not in name and ".." not in name for name in names_in(folder))


def test_two_cases_never_share_a_file(tmp_path: Path) -> None:
    cases = [case(name, VIOLATED, ("MQTT-4.7.3-1",)) for name in ("a b", "a/b", "A-b")]
    write_report(report(*cases), tmp_path)
    found = [name for name in names_in(tmp_path) if name.startswith("bug-reports/")]
    # Some systems ignore case.
    assert len({name.lower() for name in found}) == len(found) == 3


def test_reproducers_of_an_earlier_run_are_deleted_and_other_files_stay(tmp_path: Path) -> None:
    write_report(origin_report(), tmp_path)
    (tmp_path / "reproducers" / "mine.py").write_text("print('mine')")
    write_report(report(), tmp_path)
    assert names_in(tmp_path) == {*ALWAYS, "reproducers/mine.py"}


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """A reader that has the old file open still has all of it."""
    write_report(origin_report(), tmp_path)
    with (tmp_path / "report.json").open() as old:
        write_report(report(), tmp_path)
        assert len(json.load(old)["cases"]) == 6
    assert json.loads((tmp_path / "report.json").read_text())["cases"] == []
    assert not [name for name in names_in(tmp_path) if name.endswith(".new")]


def test_a_folder_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    for folder in (path, path / "deeper"):
        with pytest.raises(CannotWriteReport, match=r"^cannot write to .*: .* is not a folder$"):
            write_report(origin_report(), folder)
    assert path.read_text() == ""


def test_a_file_that_cannot_be_written_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()
    with pytest.raises(CannotWriteReport, match=r"^cannot write to .*: Is a directory$"):
        write_report(report(), tmp_path)
    assert names_in(tmp_path) == set()
    with pytest.raises(CannotWriteReport, match="cannot write to "):
        replace_file(Path("/proc/nothing/here"), "text")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CannotWriteReport, match="Permission denied"):
        write_report(report(), tmp_path / "new")


# --- reading --------------------------------------------------------------------------------------


def test_a_missing_report_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadReport, match=r"^cannot read .*none.json: No such file or directory$"):
        read_report(tmp_path / "none.json")
    with pytest.raises(BadReport, match="Is a directory"):
        read_report(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"<html>", b"1" * 5_000],
    ids=["empty", "cut off", "binary", "deep", "html", "long number"],
)
def test_what_is_not_json_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(BadReport, match="not JSON, so not a report of semel probe"):
        read_report(path)


@pytest.mark.parametrize("content", ["[]", "{}", '{"form": 2}', '"text"', "null"])
def test_json_of_another_form_is_one_sentence(content: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    with pytest.raises(BadReport, match="not a report of semel probe"):
        read_report(path)


def set_at(value: Any, keys: tuple[Any, ...], new: object) -> None:
    for key in keys[:-1]:
        value = value[key]
    value[keys[-1]] = new


@pytest.mark.parametrize(
    ("keys", "new"),
    [
        (("versions",), ["4.0"]),
        (("versions",), 5),
        (("versions",), ["5.0"]),
        (("started",), "yesterday"),
        (("started",), float("nan")),
        (("started",), float("inf")),
        (("started",), -1),
        (("started",), 10**400),
        (("started",), 1e12),
        (("seed",), float("inf")),
        (("cases",), {"a": 1}),
        (("cases", 0, "verdict"), "perfect"),
        (("cases", 0, "path"), "sideways"),
        (("cases", 0, "statements"), ["MQTT-9.9.9-9"]),
        (("cases", 0, "evidence"), ["x"]),
        (("cases", 0, "evidence", 0, "hex"), "zz"),
        (("cases", 0, "evidence", 0, "at"), None),
        (("cases", 0, "evidence", 0, "at"), -1.0),
        (("cases", 0, "seconds"), float("inf")),
    ],
)
def test_a_damaged_report_is_one_sentence(
    keys: tuple[Any, ...], new: object, tmp_path: Path
) -> None:
    value = report(ORIGIN_CASE).as_json()
    set_at(value, keys, new)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(value))
    with pytest.raises(BadReport, match=r"report.json: the report is damaged: ") as problem:
        read_report(path)
    assert "\n" not in str(problem.value)


def test_a_report_without_damage_is_read(tmp_path: Path) -> None:
    """The control of the tests above."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report(ORIGIN_CASE).as_json()))
    assert read_report(path).outcomes == [ORIGIN_CASE]
    assert case("x", SATISFIED, ()).evidence == ()

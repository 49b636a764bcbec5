"""The table `conformance`: every statement of each run, and the newest run of each subject."""

from dataclasses import replace
from pathlib import Path

import pytest

from semel import standard
from semel.pipeline.errors import TableError
from semel.probe.conformance_table import append_reports, latest_reports
from semel.probe.outcomes import CaseOutcome, ExaminationReport
from semel.probe.report.matrix_page import make_matrix
from semel.probe.verdicts import PARTLY, RECEIVE, SATISFIED, SEND, VIOLATED

deltalake = pytest.importorskip("deltalake")

STATEMENT = "MQTT-3.3.2-2"


def report(name: str, *verdicts: tuple[str, str], started: float = 1_000.0) -> ExaminationReport:
    outcomes = [
        CaseOutcome(f"case-{number}", "5.0", path, (STATEMENT,), "Title.", verdict, "found")
        for number, (path, verdict) in enumerate(verdicts)
    ]
    return ExaminationReport(
        "broker", f"mqtt://{name}", name, started, 1.0, 0, ("5.0",), outcomes, [], "0.1"
    )


def test_every_statement_of_each_run_has_a_row_with_the_evidence_of_what_is_violated(
    tmp_path: Path,
) -> None:
    address = str(tmp_path / "conformance")
    both = [report("a", (RECEIVE, VIOLATED), (SEND, SATISFIED)), report("b", (SEND, SATISFIED))]
    assert append_reports(address, both, "run 1") == 0
    rows = deltalake.DeltaTable(address).to_pyarrow_table().to_pylist()
    assert len(rows) == 2 * len(standard.statements("5.0"))
    (a, b) = [row for row in rows if row["statement"] == STATEMENT]
    if a["subject"] == "b":
        a, b = b, a
    assert (a["verdict"], b["verdict"]) == (PARTLY, SATISFIED)
    assert '"case-0"' in a["evidence"]
    assert '"case-1"' not in a["evidence"]
    assert b["evidence"] == "[]"


def test_the_page_is_made_of_the_newest_run_of_each_subject(tmp_path: Path) -> None:
    address = str(tmp_path / "conformance")
    assert latest_reports(address) == []
    append_reports(address, [report("a", (RECEIVE, VIOLATED)), report("b")], "run 1")
    append_reports(address, [report("a", (RECEIVE, SATISFIED), started=2_000.0)], "run 2")
    newest = latest_reports(address)
    assert [(each.name, each.started) for each in newest] == [("a", 2_000.0), ("b", 1_000.0)]
    verdicts = {each.id: each for each in newest[0].statements()}
    assert len(verdicts) == len(standard.statements("5.0"))
    assert verdicts[STATEMENT].verdict == SATISFIED
    assert verdicts[STATEMENT].by_path == {RECEIVE: SATISFIED}
    page = make_matrix(newest)
    assert STATEMENT in page
    assert '<th scope="col">a</th><th scope="col">b</th>' in page


def test_a_table_of_another_program_is_left_alone(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    address = str(tmp_path / "conformance")
    deltalake.write_deltalake(address, pyarrow.table({"x": [1]}))
    with pytest.raises(TableError, match="is not a table of semel probe matrix: it lacks"):
        append_reports(address, [replace(report("a"))], "run 1")

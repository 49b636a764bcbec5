"""`semel probe matrix`: examine many subjects side by side, here or on a Spark cluster."""

import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from semel.cli.errors import one_sentence
from semel.cli.exits import INTERRUPTED
from semel.cli.flags import ONE_OBJECT, QUIET, shared_option
from semel.cli.live_line import LiveLine
from semel.cli.numbers import IntegerRange
from semel.cli.option_groups import SemelCommand
from semel.cli.probe_options import CANNOT
from semel.cli.safe_text import shown_text
from semel.cli.text_tables import print_table
from semel.pipeline.errors import PipelineError
from semel.pipeline.lake_address import table_address
from semel.probe.conformance_table import CONFORMANCE_TABLE, append_reports, latest_reports
from semel.probe.matrix import SubjectResult, examine_here, examine_subject, result_of
from semel.probe.outcomes import ExaminationReport, totals
from semel.probe.report.files import CannotWriteReport, replace_file, write_report
from semel.probe.report.matrix_page import make_matrix
from semel.probe.subjects_file import BadSubjects, MatrixSubject, read_subjects
from semel.probe.verdicts import FAILED, SATISFIED

AT_ONCE: Final = 1


@click.command(
    "matrix",
    cls=SemelCommand,
    short_help="Examine the subjects of a file side by side.",
    examples=(
        "semel probe matrix subjects.toml --out results",
        "semel probe matrix subjects.toml --lake ./lake --master spark://host:7077",
    ),
)
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--at-once",
    type=IntegerRange(1, 64),
    default=AT_ONCE,
    show_default=True,
    metavar="N",
    help="Examine this many subjects at the same time, without --master.",
)
@click.option(
    "--master", metavar="URL", help="Spread the subjects over this Spark cluster, as tasks."
)
@shared_option(
    "--lake",
    help="Append the verdicts to the table conformance of this lake, and make the page of the"
    " newest run of each subject there.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write matrix.html here, and a directory with the report of each subject.",
)
@ONE_OBJECT
@QUIET
def matrix(
    file: Path,
    at_once: int,
    master: str | None,
    lake: str | None,
    out: Path | None,
    is_json: bool,
    quiet: bool,
) -> None:
    """Examine every subject of the TOML file FILE: brokers, clients and codecs.

    Exits with 1 if a statement is violated, and with 2 if a subject cannot be examined. Ctrl-C ends
    early, and keeps what was found in the subjects that are done.
    """
    try:
        subjects = read_subjects(file)
    except BadSubjects as problem:
        raise click.BadParameter(shown_text(str(problem)), param_hint="FILE") from None
    table = None if lake is None else table_address(lake, CONFORMANCE_TABLE)
    if table is not None:
        # A lake that cannot be used is reported now, not after minutes of examination.
        with one_sentence():
            latest_reports(table)
    run = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = LiveLine(enabled=not quiet)
    done: list[str] = []

    def show(result: SubjectResult) -> None:
        done.append(result.name)
        line.show(f"{len(done)} of {len(subjects)} subjects: {result.name}")

    line.show(f"examining {len(subjects)} subjects")
    try:
        results = (
            examine_here(subjects, at_once=at_once, on_done=show)
            if master is None
            else examine_on_cluster(subjects, master)
        )
    except PipelineError as problem:
        line.clear()
        raise click.ClickException(str(problem)) from None
    finally:
        line.clear()
    reports = [result.report for result in results if result.report is not None]
    if out is not None:
        # Before anything else that may fail: an examination takes minutes.
        write_pages(out, reports, reports)
    if table is not None and reports:
        with one_sentence():
            append_reports(table, reports, run)
            newest = latest_reports(table)
        if out is not None:
            write_pages(out, [], newest)
    print_results(results, run=run, is_json=is_json)
    for result in results:
        if result.problem:
            click.echo(f"Error: {result.name}: {shown_text(result.problem)}", err=True)
    if len(results) < len(subjects):
        missing = [each.name for each in subjects if each.name not in {one.name for one in results}]
        click.echo(f"interrupted; not examined: {shown_text(', '.join(missing))}", err=True)
        sys.exit(INTERRUPTED)
    if any(result.problem for result in results):
        sys.exit(CANNOT)
    if any(report.failed() for report in reports):
        sys.exit(1)


def examine_on_cluster(subjects: list[MatrixSubject], master: str) -> list[SubjectResult]:
    """Examine each subject in a Spark task. Raises PipelineError."""
    from semel.pipeline.session import temporary_session
    from semel.pipeline.task_spread import run_spread

    with temporary_session("semel probe matrix", master=master) as spark:
        found = run_spread(spark, [each.as_text() for each in subjects], examine_subject)
    return [result_of(text) for text in found]


def write_pages(
    out: Path, reports: Sequence[ExaminationReport], shown: Sequence[ExaminationReport]
) -> None:
    """Write these reports, each to its directory, and the page of those that are shown."""
    try:
        for report, name in zip(reports, directory_names(reports), strict=True):
            write_report(report, out / name)
        replace_file(out / "matrix.html", make_matrix(shown))
    except CannotWriteReport as problem:
        raise click.BadParameter(str(problem), param_hint="--out") from None


def directory_names(reports: Sequence[ExaminationReport]) -> list[str]:
    """The directory of each report: the name of its subject, with a number if it is taken."""
    names: list[str] = []
    for report in reports:
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", report.name).strip("-.") or "subject"
        name, number = plain, 2
        while name in names:
            name, number = f"{plain}-{number}", number + 1
        names.append(name)
    return names


def print_results(results: list[SubjectResult], *, run: str, is_json: bool) -> None:
    """Print a row per subject and version."""
    if is_json:
        entries = [
            {
                "subject": result.name,
                "problem": result.problem or None,
                "totals": None
                if result.report is None
                else {
                    version: totals(
                        [each for each in result.report.statements() if each.version == version]
                    )
                    for version in result.report.versions
                },
            }
            for result in results
        ]
        click.echo(json.dumps({"run": run, "subjects": entries}))
        return
    rows = []
    for result in results:
        report = result.report
        for version in () if report is None else report.versions:
            assert report is not None
            found = [each for each in report.statements() if each.version == version]
            counts = totals(found)
            violated = sum(counts.get(verdict, 0) for verdict in FAILED)
            decided = counts.get(SATISFIED, 0)
            others = len(found) - decided - violated
            rows.append([shown_text(result.name), version, decided, violated, others])
    if rows:
        print_table(["subject", "MQTT", "satisfied", "violated", "other"], rows)

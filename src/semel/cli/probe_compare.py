"""`semel probe compare` and `semel probe page`: what reports of the examiner have in common."""

import json
import sys
from pathlib import Path

import click

from semel.cli.errors import one_sentence
from semel.cli.flags import ONE_OBJECT
from semel.cli.option_groups import SemelCommand
from semel.cli.safe_text import print_warnings, shown_text
from semel.counts import count
from semel.probe.outcomes import BadReport, ExaminationReport
from semel.probe.report.comparison import Comparison, StatementChange
from semel.probe.report.comparison import compare as compare_reports
from semel.probe.report.files import CannotWriteReport, read_report, replace_file
from semel.probe.report.matrix_page import differs, make_matrix, matrix_rows

_REPORT = click.Path(path_type=Path)


@click.command(
    "compare",
    cls=SemelCommand,
    short_help="Show what changed between two reports.",
    examples=(
        "semel probe compare baseline.json results/report.json",
        "semel probe compare baseline.json results/report.json --json",
    ),
)
@click.argument("old", metavar="OLD", type=_REPORT)
@click.argument("new", metavar="NEW", type=_REPORT)
@ONE_OBJECT
def compare(old: Path, new: Path, is_json: bool) -> None:
    """Show which statements have other verdicts in the report NEW than in OLD.

    Exits with 1 on a regression: a statement, or one of its cases, was satisfied in OLD and is
    violated in NEW. Exits with 2 if a file is not a report.
    """
    comparison = compare_reports(_load(old, "OLD"), _load(new, "NEW"))
    if is_json:
        click.echo(json.dumps(comparison.as_json()))
    else:
        print_comparison(comparison)
    if comparison.has_regression:
        sys.exit(1)


@click.command(
    "page",
    cls=SemelCommand,
    short_help="Write an HTML page that compares reports.",
    examples=(
        "semel probe page mosquitto/report.json semel/report.json --output matrix.html",
        "semel probe page */report.json > matrix.html",
    ),
)
@click.argument("reports", metavar="REPORT...", nargs=-1, required=True, type=_REPORT)
@click.option(
    "--output",
    metavar="FILE",
    type=_REPORT,
    help="Write the page to this file. By default it is printed.",
)
@ONE_OBJECT
def page(reports: tuple[Path, ...], output: Path | None, is_json: bool) -> None:
    """Write one HTML page with a row per statement and a column per REPORT.

    The page can be searched and filtered, for example for statements whose verdicts differ, and
    needs no network. With --json the verdicts are printed, and the page is written
    only to --output.
    """
    found = [_load(each, "REPORT") for each in reports]
    if output is not None:
        try:
            replace_file(output, make_matrix(found))
        except CannotWriteReport as problem:
            raise click.BadParameter(str(problem), param_hint="--output") from None
    if is_json:
        click.echo(json.dumps(_matrix_json(found)))
    elif output is None:
        with one_sentence():
            sys.stdout.write(make_matrix(found))
    else:
        different = sum(differs(row) for row in matrix_rows(found))
        subjects = count(len(found), "subject")
        click.echo(
            f"{shown_text(str(output))}: {subjects}, {count(different, 'statement')} "
            f"{'differs' if different == 1 else 'differ'}"
        )


def _load(path: Path, hint: str) -> ExaminationReport:
    """Read a report. What is wrong with it is a wrong argument, so that it is no regression."""
    try:
        return read_report(path)
    except BadReport as problem:
        raise click.BadParameter(shown_text(str(problem)), param_hint=hint) from None


def print_comparison(comparison: Comparison) -> None:
    """Print the changes for people, the regressions last, where a terminal shows them."""
    print_warnings(comparison.remarks)
    for title, changes in (
        ("Examined only in NEW", comparison.new),
        ("Examined only in OLD", comparison.gone),
    ):
        if changes:
            versions = ", ".join(dict.fromkeys(f"MQTT {each.version}" for each in changes))
            click.echo(f"{title}: {count(len(changes), 'statement')} of {versions}")
    for title, color, changes in (
        ("Changed", "yellow", comparison.changed),
        ("Improved", "green", comparison.improved),
        ("Regressed", "red", comparison.regressed),
    ):
        if changes:
            click.secho(f"{title}: {count(len(changes), 'statement')}", fg=color, bold=True)
            for each in changes:
                _print_change(each)
    if not comparison.has_regression:
        click.echo(f"No regression; {count(comparison.unchanged, 'statement')} unchanged.")


def _print_change(change: StatementChange) -> None:
    click.echo(f"  {change.id} (MQTT {change.version}): {change.before} → {change.after}")
    click.echo(f"    {change.sentence}")
    for title, cases in (("broken", change.broken_cases), ("repaired", change.repaired_cases)):
        if cases:
            click.echo(f"    {title}: {', '.join(map(shown_text, cases))}")


def _matrix_json(reports: list[ExaminationReport]) -> dict[str, object]:
    return {
        "subjects": [each.name or each.subject for each in reports],
        "statements": [
            {
                "version": known.version,
                "id": known.id,
                "sentence": known.sentence,
                "verdicts": [each and each.verdict for each in verdicts],
                "differs": differs((known, verdicts)),
            }
            for known, verdicts in matrix_rows(reports)
        ],
    }

"""A report of `semel probe` on the terminal: a table by section, then the violations in words."""

from collections.abc import Sequence

import click

from semel.cli.safe_text import shown_text
from semel.cli.text_tables import print_table
from semel.counts import count
from semel.probe.outcomes import CaseOutcome, ExaminationReport, StatementVerdict, totals
from semel.probe.report.chapters import totals_by_chapter
from semel.probe.verdicts import (
    ARGUABLE,
    FAILED,
    INCONCLUSIVE,
    NOT_APPLICABLE,
    NOT_EXAMINED,
    NOT_OBSERVABLE,
    SATISFIED,
)

# The columns of the table: a heading, and the verdicts that it counts.
COLUMNS = (
    ("satisfied", (SATISFIED,)),
    ("violated", tuple(sorted(FAILED))),
    ("arguable", (ARGUABLE,)),
    ("inconclusive", (INCONCLUSIVE,)),
    ("not applicable", (NOT_APPLICABLE,)),
    ("not observable", (NOT_OBSERVABLE,)),
    ("not examined", (NOT_EXAMINED,)),
)
# Violations and undecided statements that are printed; the rest is in the report.
MOST_SHOWN = 50
# Statements named in one line.
MOST_NUMBERS = 6


def print_report(report: ExaminationReport) -> None:
    """Print the summary, the violations, and what could not be decided."""
    statements = report.statements()
    for version in report.versions:
        of_version = [each for each in statements if each.version == version]
        click.echo()
        click.secho(f"MQTT {version}: {shown_text(report.name)}", bold=True)
        _print_sections(of_version)
    violated = [each for each in statements if each.verdict in FAILED]
    by_case = {(each.version, each.case): each for each in report.outcomes}
    if violated:
        click.echo()
        click.secho(f"{count(len(violated), 'statement')} violated", bold=True)
    for each in violated[:MOST_SHOWN]:
        _print_violated(each, by_case)
    _print_rest(violated)
    undecided = [each for each in statements if each.verdict in (INCONCLUSIVE, ARGUABLE)]
    if undecided:
        click.echo()
        click.secho(f"{count(len(undecided), 'statement')} not decided", bold=True)
    for each in undecided[:MOST_SHOWN]:
        _print_undecided(each, by_case)
    _print_rest(undecided)
    click.echo()
    for remark in report.remarks:
        click.echo(shown_text(remark))
    click.echo(verdict_line(report))


def verdict_line(report: ExaminationReport) -> str:
    """The whole examination in one sentence."""
    parts = []
    for version in report.versions:
        counts = totals([each for each in report.statements() if each.version == version])
        violated = sum(counts.get(verdict, 0) for verdict in FAILED)
        parts.append(
            f"MQTT {version}: {counts.get(SATISFIED, 0)} of"
            f" {count(sum(counts.values()), 'statement')} satisfied, {violated} violated"
        )
    cases = count(len(report.outcomes), "case")
    return f"{'; '.join(parts)}. {cases} in {report.seconds:.1f} s, seed {report.seed}."


def _print_sections(statements: Sequence[StatementVerdict]) -> None:
    used = [
        (title, verdicts)
        for title, verdicts in COLUMNS
        if any(each.verdict in verdicts for each in statements)
    ]
    rows: list[list[object]] = []
    for (_, name), counts in totals_by_chapter(statements).items():
        numbers = [sum(counts.get(verdict, 0) for verdict in verdicts) for _, verdicts in used]
        rows.append([name, sum(counts.values()), *(number or "" for number in numbers)])
    sums = [sum(each.verdict in verdicts for each in statements) for _, verdicts in used]
    rows.append(["all", len(statements), *sums])
    print_table(["section", "statements", *(title for title, _ in used)], rows)


def _print_violated(
    statement: StatementVerdict, by_case: dict[tuple[str, str], CaseOutcome]
) -> None:
    found = [by_case[statement.version, name] for name in statement.cases]
    bad = [each for each in found if each.verdict in FAILED]
    paths = ", ".join(f"{path} {verdict}" for path, verdict in statement.by_path.items())
    click.echo()
    click.secho(f"[{statement.id}] of {statement.version}: {statement.verdict} ({paths})", fg="red")
    click.echo(f"  {statement.sentence}")
    for each in bad[:3]:
        click.echo(f"  {each.title}")
        click.echo(f"    {shown_text(each.found)}. Case {each.case}, {count(each.runs, 'run')}.")
    if len(bad) > 3:
        click.echo(f"  … and {count(len(bad) - 3, 'more case')}")


def _print_undecided(
    statement: StatementVerdict, by_case: dict[tuple[str, str], CaseOutcome]
) -> None:
    found = [by_case[statement.version, name] for name in statement.cases]
    bad = [each for each in found if each.verdict in (INCONCLUSIVE, ARGUABLE)]
    click.echo(f"[{statement.id}] of {statement.version}: {statement.verdict}")
    for each in bad[:1]:
        click.echo(f"    {shown_text(each.found)}. Case {each.case}.")


def _print_rest(entries: Sequence[StatementVerdict]) -> None:
    if len(entries) > MOST_SHOWN:
        click.echo(f"… and {len(entries) - MOST_SHOWN} more; --out DIR writes all")

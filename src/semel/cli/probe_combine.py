"""`semel probe combine`: one report on the parts of an implementation."""

import sys
from pathlib import Path

import click

from semel.cli.flags import ONE_OBJECT
from semel.cli.option_groups import SemelCommand
from semel.cli.probe_options import CANNOT, NAME, OUT, finish
from semel.cli.safe_text import shown_text
from semel.probe.outcomes import BadReport, combine_reports
from semel.probe.report.files import read_report


@click.command(
    "combine",
    cls=SemelCommand,
    short_help="Make one report of those on broker, client and codec.",
    examples=(
        "semel probe combine broker/report.json codec/report.json --out all",
        "semel probe combine broker.json client.json codec.json --name 'our stack 2.1' --json",
    ),
)
@click.argument(
    "reports", metavar="REPORT...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@NAME
@OUT
@ONE_OBJECT
def combine(reports: tuple[Path, ...], name: str, out: Path | None, is_json: bool) -> None:
    """Combine the REPORTs on the broker, the client and the codec of one implementation.

    A rule that the broker keeps and the encoder breaks is partly satisfied, and the report shows
    on which path. Exits with 1 if a statement is violated, and with 2 if a file is not a report.
    """
    try:
        found = [read_report(path) for path in reports]
    except BadReport as problem:
        raise click.BadParameter(shown_text(str(problem)), param_hint="REPORT") from None
    kinds = [report.kind for report in found]
    if len(set(kinds)) < len(kinds):
        click.echo("Error: give at most one report on each of broker, client and codec", err=True)
        sys.exit(CANNOT)
    finish(combine_reports(found, name), out=out, is_json=is_json)

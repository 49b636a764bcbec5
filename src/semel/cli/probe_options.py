"""What the commands of `semel probe` have in common: options, and how they end."""

import json
import sys
from pathlib import Path
from typing import Final

import click

from semel.cli.exits import INTERRUPTED
from semel.cli.option_groups import OUTPUT, grouped_option
from semel.cli.probe_view import print_report
from semel.probe.outcomes import INTERRUPTION, ExaminationReport
from semel.probe.report.files import CannotWriteReport, write_report

SELECTION: Final = "Selection"
# Cannot examine: no such subject, it refuses, or a wrong option.
CANNOT: Final = 2
NO_SUCH_CASE: Final = "no case has such a name or examines such a statement"

ONLY: Final = grouped_option(
    "--only",
    section=SELECTION,
    multiple=True,
    metavar="PATTERN",
    help="Run the cases with such a name: *wildcard*. May be repeated.",
)
STATEMENT: Final = grouped_option(
    "--statement",
    section=SELECTION,
    multiple=True,
    metavar="ID",
    help="Run the cases of this statement: MQTT-3.3.2-2, 3.3.2-2 or U5-03. May be repeated.",
)
QUICK: Final = grouped_option(
    "--quick",
    section=SELECTION,
    is_flag=True,
    help="Run a sample of the malformed packets, and nothing that waits for seconds.",
)
LIST: Final = grouped_option(
    "--list", "is_list", section=SELECTION, is_flag=True, help="Print the cases, and exit."
)
OUT: Final = grouped_option(
    "--out",
    section=OUTPUT,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the report here: HTML, JSON, JUnit, SARIF, pcapng, a badge, reproducers.",
)
NAME: Final = grouped_option(
    "--name", section=OUTPUT, metavar="NAME", default="", help="What reports call the subject."
)


def finish(report: ExaminationReport, *, out: Path | None, is_json: bool) -> None:
    """Write and print a report; exit with 130 after Ctrl-C, with 1 if something is violated."""
    if out is not None:
        try:
            write_report(report, out)
        except CannotWriteReport as problem:
            click.echo(f"Error: {problem}", err=True)
            sys.exit(CANNOT)
    if is_json:
        click.echo(json.dumps(report.as_json()))
    else:
        print_report(report)
        if out is not None:
            click.echo(f"The report is in {out}: open {out / 'report.html'}")
    if INTERRUPTION in report.remarks:
        sys.exit(INTERRUPTED)
    if report.failed():
        sys.exit(1)

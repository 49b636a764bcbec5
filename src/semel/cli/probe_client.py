"""`semel probe client`: run a client program against an adversarial server, and examine it."""

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Final

import click

from semel.cli.flags import ONE_OBJECT, QUIET, mqtt_version_option, shared_option
from semel.cli.live_line import LiveLine
from semel.cli.numbers import YEAR, Duration
from semel.cli.option_groups import SemelCommand, grouped_option
from semel.cli.probe_options import (
    CANNOT,
    LIST,
    NAME,
    NO_SUCH_CASE,
    ONLY,
    OUT,
    QUICK,
    SELECTION,
    STATEMENT,
    finish,
)
from semel.mqtt import MQTT5, MQTT311
from semel.probe.claims import VERSION_NAMES
from semel.probe.client.case import ClientCase
from semel.probe.client.examination import examine_client, select_client_cases
from semel.probe.client.process import has_placeholder
from semel.probe.client.trial import ClientSubject
from semel.probe.outcomes import CannotExamine
from semel.probe.progress import Progress

PROGRAM: Final = "Program"
DEFAULT_TIMEOUT: Final = 5.0


@click.command(
    cls=SemelCommand,
    examples=(
        "semel probe client -- mosquitto_sub -h {host} -p {port} -V {version} -t {topic} -q 2",
        "semel probe client --quick -V 5 -- ./my_client {host} {port} {client_id}",
        "semel probe client --subscriber './sub {host} {port}' --publisher './pub {host} {port}'",
    ),
)
@click.argument("words", metavar="[CMD...]", nargs=-1, type=click.UNPROCESSED)
@grouped_option(
    "--publisher",
    section=PROGRAM,
    metavar="CMD",
    default="",
    help="A program that publishes, for the cases that the others cannot show.",
)
@grouped_option(
    "--subscriber",
    section=PROGRAM,
    metavar="CMD",
    default="",
    help="A program that subscribes, for the cases that the others cannot show.",
)
@shared_option(
    "--timeout",
    section=PROGRAM,
    type=Duration(0.1, YEAR),
    default=DEFAULT_TIMEOUT,
    show_default=True,
    help="How long the program may take for what it must do.",
)
@mqtt_version_option("Examine one version of MQTT only. By default both.", section=SELECTION)
@ONLY
@STATEMENT
@QUICK
@LIST
@OUT
@NAME
@ONE_OBJECT
@QUIET
def client(
    words: tuple[str, ...],
    publisher: str,
    subscriber: str,
    timeout: float,
    mqtt_version: int | None,
    only: tuple[str, ...],
    statement: tuple[str, ...],
    quick: bool,
    is_list: bool,
    out: Path | None,
    name: str,
    is_json: bool,
    quiet: bool,
) -> None:
    """Examine the client program CMD: write -- before it.

    Starts CMD for each case, with {host} and {port} replaced by where an adversarial server of ours
    listens, and judges what it sends by each statement of the standard. {version} is 311 or 5,
    {level} is 4 or 5; {client_id}, {topic} and {keep_alive} are replaced, too. A program shows
    more if it subscribes, publishes, prints what it receives and reconnects. Nothing but the
    program is talked to. Exits with 1 if a statement is violated, and with 2 if the program cannot
    be examined. Ctrl-C ends early and reports what was found so far.
    """
    versions = [mqtt_version] if mqtt_version is not None else [MQTT311, MQTT5]
    cases = select_client_cases(only=only, statements=statement, is_quick=quick)
    if not any(case.statements(version) for case in cases for version in versions):
        raise click.UsageError(f"{NO_SUCH_CASE}: see --list")
    if is_list:
        list_client_cases(cases, versions, is_json=is_json)
        return
    subjects = make_subjects(words, publisher, subscriber, timeout)
    line = LiveLine(enabled=not quiet)

    def show(progress: Progress) -> None:
        line.show(
            f"{progress.done} of {progress.total} cases, {progress.violated} violated:"
            f" {progress.case}"
        )

    try:
        report = asyncio.run(
            examine_client(
                subjects,
                versions=versions,
                only=only,
                statements=statement,
                is_quick=quick,
                name=name,
                progress=show,
            )
        )
    except CannotExamine as problem:
        line.clear()
        click.echo(f"Error: {problem}", err=True)
        sys.exit(CANNOT)
    finally:
        line.clear()
    finish(report, out=out, is_json=is_json)


def make_subjects(
    words: tuple[str, ...], publisher: str, subscriber: str, timeout: float
) -> list[ClientSubject]:
    """The programs that the options name. Raises click.UsageError."""
    commands = {"command": words}
    for role, text in (("subscriber", subscriber), ("publisher", publisher)):
        try:
            commands[role] = tuple(shlex.split(text))
        except ValueError as problem:
            raise click.UsageError(f"--{role}: {problem}") from None
    subjects = []
    for role, command in commands.items():
        if not command:
            continue
        if not has_placeholder(command, "port"):
            raise click.UsageError(
                f"the {role} has no {{port}}, so that it cannot find the examiner's server"
            )
        subjects.append(ClientSubject(command, role, timeout))
    if not subjects:
        raise click.UsageError("no program to examine: write it after --, with {host} and {port}")
    return subjects


def list_client_cases(cases: list[ClientCase], versions: list[int], *, is_json: bool) -> None:
    """Print the cases with their statements."""
    entries = [
        {
            "case": case.name,
            "path": case.path,
            "title": case.title,
            "needs": list(case.needs),
            "statements": {VERSION_NAMES[each]: list(case.statements(each)) for each in versions},
        }
        for case in cases
        if any(case.statements(version) for version in versions)
    ]
    if is_json:
        click.echo(json.dumps(entries))
        return
    for case in cases:
        for version in versions:
            if case.statements(version):
                click.echo(click.style(case.name, bold=True))
                click.echo(f"  {case.title}")
                click.echo(f"  {VERSION_NAMES[version]}: {', '.join(case.statements(version))}")

"""`semel probe broker`: examine a broker, with raw bytes, and print what it keeps and breaks."""

import asyncio
import json
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, Final

import click

from semel.cli.broker_login import parse_url, password_of, usage
from semel.cli.flags import ONE_OBJECT, QUIET, mqtt_version_option, shared_option
from semel.cli.live_line import LiveLine
from semel.cli.numbers import YEAR, Duration, IntegerRange
from semel.cli.option_groups import CONNECTION, TLS, SemelCommand, grouped_option
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
from semel.client.address import Address
from semel.client.tls import TlsError, make_context
from semel.mqtt import MQTT5, MQTT311
from semel.mqtt.topics import check_topic_name
from semel.mqtt.wire import check_text
from semel.probe.broker.all_cases import ALL_CASES
from semel.probe.broker.case import Case
from semel.probe.broker.control import BrokerControl, ControlCommandFailed
from semel.probe.broker.examination import AT_ONCE, Examination
from semel.probe.broker.trial import Subject
from semel.probe.claims import VERSION_NAMES
from semel.probe.outcomes import INTERRUPTION, CannotExamine
from semel.probe.progress import Progress
from semel.standard import statement_id

RESTARTS: Final = "Restarts"
PASSWORD_VARIABLE: Final = "SEMEL_PROBE_PASSWORD"
# --quick runs every tenth of the many cases that vectors give, and none that wait.
QUICK_SHARE: Final = 10


@click.command(
    cls=SemelCommand,
    examples=(
        "semel probe broker mqtt://localhost",
        "semel probe broker --quick -V 5 mqtts://broker.example --cafile ca.pem",
        "semel probe broker mqtt://localhost --statement MQTT-3.3.2-2 --out report",
    ),
)
@click.argument("address", metavar="URL", required=False, callback=parse_url)
@mqtt_version_option("Examine one version of MQTT only. By default both.", section=SELECTION)
@ONLY
@STATEMENT
@QUICK
@LIST
@shared_option(
    "--seed",
    section=SELECTION,
    type=IntegerRange(0, 2**32 - 1),
    help="Run the cases in the order of an earlier examination.",
)
@grouped_option(
    "--at-once",
    section=SELECTION,
    metavar="N",
    type=IntegerRange(1, 64),
    default=AT_ONCE,
    show_default=True,
    help="How many cases run at the same time: 1 for a broker whose clients disturb each other.",
)
@grouped_option(
    "--start",
    section=RESTARTS,
    metavar="CMD",
    default="",
    help="The command that starts the broker, and leaves it in the background.",
)
@grouped_option(
    "--stop", section=RESTARTS, metavar="CMD", default="", help="The command that stops the broker."
)
@grouped_option(
    "--kill", section=RESTARTS, metavar="CMD", default="", help="The command that kills the broker."
)
@shared_option(
    "--username", section=CONNECTION, help="The user name, instead of the one in the URL."
)
@shared_option(
    "--password-file",
    section=CONNECTION,
    type=click.File("rb"),
    help="A file that contains the password and nothing else. A line end after it is ignored.  "
    f"[or the password itself in {PASSWORD_VARIABLE}]",
)
@shared_option(
    "--prefix",
    section=CONNECTION,
    default="semel-probe",
    show_default=True,
    help="The prefix of all topics and client identifiers.",
)
@shared_option(
    "--timeout",
    section=CONNECTION,
    type=Duration(0.1, YEAR),
    default=5.0,
    show_default=True,
    help="How long the broker may take for what it must do.",
)
@shared_option(
    "--cafile",
    section=TLS,
    type=click.Path(path_type=str),
    help="Trusted CA certificates (PEM), instead of those of the system, for mqtts and wss.",
)
@grouped_option(
    "--insecure", section=TLS, is_flag=True, help="Accept a certificate for another host name."
)
@OUT
@NAME
@ONE_OBJECT
@QUIET
def broker(
    address: Address | None,
    mqtt_version: int | None,
    only: tuple[str, ...],
    statement: tuple[str, ...],
    quick: bool,
    is_list: bool,
    seed: int | None,
    at_once: int,
    start: str,
    stop: str,
    kill: str,
    username: str | None,
    password_file: BinaryIO | None,
    prefix: str,
    timeout: float,
    cafile: str | None,
    insecure: bool,
    out: Path | None,
    name: str,
    is_json: bool,
    quiet: bool,
) -> None:
    """Examine the broker at URL: mqtt, mqtts, ws or wss://host[:port], or unix:path.

    Sends raw bytes, right and wrong, and judges what comes back by each statement of the standard.
    Talks to nothing but this address. Leaves no retained message and no session behind, except
    where the broker fails. Exits with 1 if a statement is violated, and with 2 if the broker
    cannot be examined. Ctrl-C ends early and reports what was found so far.
    """
    versions = [mqtt_version] if mqtt_version is not None else [MQTT311, MQTT5]
    cases = select(ALL_CASES, versions, only=only, statements=statement, quick=quick)
    if is_list:
        list_cases(cases, versions, is_json=is_json)
        return
    if address is None:
        raise click.UsageError("Missing argument 'URL'.")
    if (cafile is not None or insecure) and not address.secure:
        raise click.UsageError(f"--cafile and --insecure need mqtts or wss, not {address.scheme}")
    try:
        tls = make_context(cafile=cafile, insecure=insecure) if address.secure else None
    except TlsError as problem:
        raise click.UsageError(str(problem)) from None
    user = address.user_name if username is None else username
    with usage("--prefix"):
        check_topic_name(prefix, "prefix", None)
    with usage("--username"):
        check_text(user or "", "user name", None)
    subject = Subject(
        address,
        tls,
        None if user is None else user.encode(),
        password_of(address, password_file, PASSWORD_VARIABLE),
        prefix,
        timeout,
    )
    line = LiveLine(enabled=not quiet)

    def show(progress: Progress) -> None:
        line.show(
            f"{progress.done} of {progress.total} cases, {progress.violated} violated:"
            f" {progress.case}"
        )

    examination = Examination(
        subject,
        cases,
        versions=versions,
        seed=seed,
        control=BrokerControl(address, start, stop, kill),
        name=name,
        at_once=at_once,
        on_progress=show,
    )
    try:
        asyncio.run(examination.run())
    except KeyboardInterrupt:
        examination.remarks.append(INTERRUPTION)
    except (CannotExamine, ControlCommandFailed) as problem:
        line.clear()
        click.echo(f"Error: {problem}", err=True)
        sys.exit(CANNOT)
    finally:
        line.clear()
    finish(examination.report(), out=out, is_json=is_json)


def select(
    cases: tuple[Case, ...],
    versions: list[int],
    *,
    only: tuple[str, ...],
    statements: tuple[str, ...],
    quick: bool,
) -> list[Case]:
    """The cases that the options name. Raises click.UsageError if they name none."""
    wanted = {statement_id(each) for each in statements}
    chosen = [
        case
        for case in cases
        if (not only or any(fnmatchcase(case.name, pattern) for pattern in only))
        and (not wanted or any(wanted & set(case.statements(version)) for version in versions))
        and any(case.statements(version) for version in versions)
    ]
    if not chosen:
        raise click.UsageError(f"{NO_SUCH_CASE}: see --list")
    if quick:
        sampled = [case for case in chosen if case.is_from_vector][::QUICK_SHARE]
        written = [case for case in chosen if not case.is_from_vector and not case.is_slow]
        chosen = [*written, *sampled] or chosen
    return chosen


def list_cases(cases: list[Case], versions: list[int], *, is_json: bool) -> None:
    """Print the cases with their statements."""
    if is_json:
        entries = [
            {
                "case": case.name,
                "path": case.path,
                "title": case.title,
                "statements": {VERSION_NAMES[v]: list(case.statements(v)) for v in versions},
            }
            for case in cases
        ]
        click.echo(json.dumps(entries))
        return
    for case in cases:
        click.echo(click.style(case.name, bold=True))
        click.echo(f"  {case.title}")
        for version in versions:
            if case.statements(version):
                click.echo(f"  {VERSION_NAMES[version]}: {', '.join(case.statements(version))}")

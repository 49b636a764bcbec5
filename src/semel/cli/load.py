"""`semel load`: put a load on a broker, show its progress, and report every message."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO, Final

import click

from semel.cli.broker_login import parse_url, password_of, usage
from semel.cli.flags import ONE_OBJECT, QUIET, mqtt_version_option, shared_option
from semel.cli.live_line import LiveLine
from semel.cli.numbers import MOST_RATE, YEAR, Duration, IntegerRange, NumberRange
from semel.cli.option_groups import CONNECTION, TLS, SemelCommand, grouped_option
from semel.client.address import Address
from semel.counts import count
from semel.lab.load.description import (
    LARGEST_WINDOW,
    LEAST_PAYLOAD,
    MOST_CLIENTS,
    MOST_LANES,
    MOST_PAYLOAD,
    SCENARIOS,
    WINDOW,
    InvalidLoad,
)
from semel.lab.load.links import LinkAuthentication
from semel.lab.load.result import Result, milliseconds, version_name
from semel.lab.load.traffic import DRAIN_TIMEOUT
from semel.lab.load.workers import Job, LoadProgress, Target, run
from semel.mqtt import MQTT5, MQTT311

LOAD: Final = "Load"
PASSWORD_VARIABLE: Final = "SEMEL_LOAD_PASSWORD"
SECONDS: Final = 10.0
MOST_PROCESSES: Final = 64
# Seconds between two updates of the progress line.
LINE_SECONDS: Final = 0.25
# The maximum number of subscribers that the table lists; JSON lists all.
SHOWN_SUBSCRIBERS: Final = 10


# --- options --------------------------------------------------------------------------------------


def print_scenarios(context: click.Context, option: click.Parameter, is_given: bool) -> None:
    """Print the scenarios and exit."""
    if is_given and not context.resilient_parsing:
        width = max(map(len, SCENARIOS))
        for name, scenario in SCENARIOS.items():
            click.echo(f"{name:<{width}}  {scenario.line}")
        context.exit()


def numbers(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that change the numbers of a scenario."""
    clients = IntegerRange(0, MOST_CLIENTS)
    for option in reversed(
        (
            grouped_option(
                "--publishers",
                section=LOAD,
                type=clients,
                metavar="N",
                help="The number of publishers.",
            ),
            grouped_option(
                "--subscribers",
                section=LOAD,
                type=clients,
                metavar="N",
                help="The number of subscribers.",
            ),
            grouped_option(
                "--topics",
                section=LOAD,
                type=IntegerRange(1, MOST_LANES),
                metavar="N",
                help="The number of topics.",
            ),
            shared_option(
                "--qos",
                section=LOAD,
                type=IntegerRange(0, 2),
                help="The QoS of messages and subscriptions.",
            ),
            grouped_option(
                "--payload-size",
                "payload",
                section=LOAD,
                type=IntegerRange(LEAST_PAYLOAD, MOST_PAYLOAD),
                metavar="SIZE",
                help="The payload size in bytes.",
            ),
            shared_option(
                "--window",
                section=LOAD,
                type=IntegerRange(1, LARGEST_WINDOW),
                help="QoS 0: messages per write of a publisher, by default as many as the broker "
                "accepts. QoS 1 and 2: unacknowledged messages per publisher, by default "
                f"{WINDOW}.",
            ),
            shared_option(
                "--rate",
                section=LOAD,
                type=NumberRange(0, MOST_RATE, min_open=True),
                help="Messages per second of each publisher. By default as fast as the window "
                "allows.",
            ),
            grouped_option(
                "--retain", section=LOAD, is_flag=True, default=None, help="Publish with RETAIN."
            ),
        )
    ):
        function = option(function)
    return function


@click.command(
    cls=SemelCommand,
    examples=(
        "semel load mqtt://127.0.0.1 --scenario fan-out --qos 1 --subscribers 100",
        "semel load mqtt://127.0.0.1 --rate 1000 --payload-size 500 --duration 60 --json",
    ),
)
@click.argument("address", metavar="URL", callback=parse_url)
@grouped_option(
    "--scenario",
    section=LOAD,
    type=click.Choice(list(SCENARIOS)),
    default="one-to-one",
    show_default=True,
    help="Who publishes to whom, and the defaults of all numbers.",
)
@grouped_option(
    "--list",
    section=LOAD,
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_scenarios,
    help="Print the scenarios, and exit.",
)
@numbers
@mqtt_version_option("The version of MQTT. By default 5.", section=CONNECTION)
@shared_option(
    "--duration",
    section=LOAD,
    type=Duration(0, YEAR, min_open=True),
    help=f"How long to publish; {SECONDS:g} seconds without --count.",
)
@shared_option(
    "--count", section=LOAD, type=IntegerRange(1), help="The number of messages per publisher."
)
@shared_option(
    "--timeout",
    section=LOAD,
    type=Duration(0, YEAR, min_open=True),
    default=DRAIN_TIMEOUT,
    show_default=True,
    help="Messages that are missing after this time without any message count as lost.",
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
@grouped_option(
    "--scram",
    section=CONNECTION,
    is_flag=True,
    help="Prove the password by SCRAM-SHA-256 instead of sending it. Needs MQTT 5.0.",
)
@shared_option(
    "--cafile",
    section=TLS,
    type=click.Path(path_type=str),
    help="Trusted CA certificates (PEM), instead of those of the system, for mqtts and wss.",
)
@grouped_option(
    "--insecure",
    section=TLS,
    is_flag=True,
    help="Accept a certificate for another host name.",
)
@shared_option(
    "--prefix",
    section=LOAD,
    default="semel-load",
    show_default=True,
    help="The prefix of all topics and client identifiers.",
)
@grouped_option(
    "--processes",
    section=LOAD,
    type=IntegerRange(1, MOST_PROCESSES),
    default=1,
    show_default=True,
    metavar="N",
    help="Run the clients in this many processes.",
)
@ONE_OBJECT
@QUIET
def command(
    address: Address,
    scenario: str,
    mqtt_version: int | None,
    duration: float | None,
    count: int | None,
    timeout: float,
    username: str | None,
    password_file: BinaryIO | None,
    scram: bool,
    cafile: str | None,
    insecure: bool,
    prefix: str,
    processes: int,
    is_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Put a load on the broker at URL: mqtt, mqtts, ws or wss://host[:port], or unix:path.

    Every message contains its publisher, its time and a counter, so that subscribers can count
    messages that are lost, duplicated or out of order. Exits with 1 if the broker loses a message
    of QoS 1 or 2, duplicates one of QoS 2, or closes a connection. Ctrl-C ends the load early and
    prints the result so far.
    """
    if (cafile is not None or insecure) and not address.secure:
        raise click.UsageError(f"--cafile and --insecure need mqtts or wss, not {address.scheme}")
    if duration is not None and count is not None:
        raise click.UsageError("give one of --duration and --count")
    if scram and mqtt_version == MQTT311:
        raise click.UsageError("--scram needs MQTT 5.0: leave -V out, or give -V 5")
    changes = {name: value for name, value in given.items() if value is not None}
    try:
        job = Job(
            SCENARIOS[scenario].changed({**changes, "version": mqtt_version or MQTT5}),
            Target(
                address.host,
                address.port,
                address.user_name if username is None else username,
                password_of(address, password_file, PASSWORD_VARIABLE),
                scram=scram,
                scheme=address.scheme,
                path=address.path,
                cafile=cafile,
                insecure=insecure,
            ),
            prefix,
            seconds=None if count is not None else duration or SECONDS,
            messages=count,
            processes=processes,
            timeout=timeout,
        )
    except InvalidLoad as problem:
        raise click.UsageError(str(problem)) from None
    with usage("--prefix"):
        job.layout()
    with usage("--username, --password-file"):
        job.connect_packet("p", 0, authentication=authentication_of(job))
    line = LiveLine(enabled=not quiet)
    try:
        result = run(job, ProgressLine(line) if line.is_enabled else None)
    finally:
        line.clear()
    if is_json:
        click.echo(
            json.dumps({"scenario": scenario, "broker": str(job.target), **result.as_json()})
        )
    elif result.started or result.interrupted:
        click.echo("\n".join([f"{scenario} on {job.target}", *table(result)]))
    if result.fault:
        raise click.ClickException(result.fault)
    if not result.meets_qos:
        sys.exit(1)


def authentication_of(job: Job) -> LinkAuthentication | None:
    """The authentication of --scram, None without it. Raises click.UsageError."""
    target = job.target
    if target.scram and (target.user_name is None or target.password is None):
        raise click.UsageError(
            "--scram needs a user name (--username) and a password (--password-file)"
        )
    try:
        return job.authentication()
    except UnicodeDecodeError:
        raise click.UsageError("--scram: the password is not UTF-8") from None
    except ValueError as problem:
        raise click.UsageError(f"--scram: {problem}") from None


# --- output ---------------------------------------------------------------------------------------


class ProgressLine:
    """Shows the progress of a load in a live line, a few times per second."""

    def __init__(self, line: LiveLine) -> None:
        self._line = line
        self._last: LoadProgress | None = None
        self._shown_at = 0.0

    def __call__(self, now: LoadProgress) -> None:
        at = time.monotonic()
        if at - self._shown_at >= LINE_SECONDS:
            self._line.show(shown(now, self._last))
            self._last, self._shown_at = now, at


def shown(now: LoadProgress, last: LoadProgress | None) -> str:
    """The progress of a load as one line; rates are since the last call."""
    if now.seconds is None:
        return f"connected {now.connected:,} of {now.clients:,}"
    before = 0.0 if last is None or last.seconds is None else last.seconds
    elapsed = now.seconds - before or 1.0
    sent = (now.sent - (last.sent if last else 0)) / elapsed
    received = (now.received - (last.received if last else 0)) / elapsed
    return (
        f"{now.seconds:.1f} s  sent {now.sent:,} ({sent:,.0f}/s)  "
        f"received {now.received:,} ({received:,.0f}/s)  in flight {now.under_way:,}"
    )


def table(result: Result) -> list[str]:
    """The result as lines for people."""
    load = result.load
    megabyte = load.payload / 1e6
    window = f", window {load.limit:,}" if load.limit else ""
    rate = f", {load.rate:,g} messages/s each" if load.rate else ""
    retain = ", RETAIN" if load.retain else ""
    lines = [
        f"{count(load.publishers, 'publisher')}, {count(load.subscribers, 'subscriber')}, "
        f"{count(load.topics, 'topic')}, QoS {load.qos}, {load.payload:,} B"
        f"{window}{rate}{retain}, MQTT {version_name(load.version)}",
        "",
        f"{'':16}{'messages':>14}{'messages/s':>14}{'MB/s':>10}",
    ]
    for name, number in (
        ("sent", result.sent),
        ("acknowledged", result.acknowledged if load.qos else None),
        ("received", result.received),
        ("expected", result.expected),
        ("lost", result.lost),
        ("duplicated", result.duplicated),
        ("out of order", result.out_of_order),
    ):
        line = f"{name:16}{'–' if number is None else f'{number:,}':>14}"
        if number is not None and name in ("sent", "received"):
            per_second = result.per_second(number)
            line += f"{per_second:>14,.0f}{per_second * megabyte:>10,.2f}"
        lines.append(line)
    lines += ["", f"{'milliseconds':16}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}"]
    for name, latencies in (("delivery", result.latencies), ("connecting", result.connecting)):
        times = milliseconds(latencies)
        cells = [f"{time:,.3f}" for time in times.values()] if times else ["–"] * 4
        lines.append(f"{name:16}" + "".join(f"{cell:>10}" for cell in cells))
    unclean = [each for each in result.subscribers if not each.is_clean]
    if unclean:
        lines.append("")
    lines += [
        f"subscriber {each.subscriber}: {each.lost:,} lost, {each.duplicated:,} duplicated, "
        f"{each.out_of_order:,} out of order, {each.expected:,} expected"
        for each in unclean[:SHOWN_SUBSCRIBERS]
    ]
    if len(unclean) > SHOWN_SUBSCRIBERS:
        lines.append(f"and {count(len(unclean) - SHOWN_SUBSCRIBERS, 'more subscriber')}")
    early = ", ended early" if result.interrupted else ""
    return [
        *lines,
        "",
        f"{result.seconds:.2f} s{early}; {result.cpu_seconds:.2f} s of processor time for the load "
        f"itself, in {count(result.processes, 'process', 'processes')}",
    ]

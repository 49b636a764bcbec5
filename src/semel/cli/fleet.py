"""`semel fleet`: simulated devices that publish, each message once, and an account of them."""

import asyncio
import json
import logging
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from semel import counts
from semel.cli.flags import json_option, shared_option
from semel.cli.live_line import LiveLine
from semel.cli.mqtt_client import (
    ARGUMENTS,
    FAILED,
    LOG,
    ConnectProblem,
    Failure,
    VersionRefused,
    Warnings,
    authentication_of,
    code_of,
    connector_of,
    print_to_stderr,
    refusal,
    tls_context,
)
from semel.cli.mqtt_options import (
    QOS,
    ConnectionOptions,
    MqttCommand,
    check_topic,
    connection_options,
)
from semel.cli.numbers import MOST_RATE, NumberRange
from semel.cli.option_groups import grouped_option as section_option
from semel.cli.safe_text import shown_text
from semel.client import Backoff, Client, Disconnected, Refused
from semel.client.address import BadAddress
from semel.client.purge import purge
from semel.client.transport import CannotConnect
from semel.extras import MissingExtra
from semel.lab.fleet.devices import FORMS, MIXED, MOST_DEVICES, MOST_SEED, Devices
from semel.lab.fleet.journal import BadJournal, Journal, read_journal
from semel.lab.fleet.publishing import (
    MOST_GATEWAYS,
    MOST_WINDOW,
    WINDOW,
    EarlierRuns,
    Fleet,
    FleetPace,
    FleetProgress,
)
from semel.mqtt import MQTT311, Properties, Violation
from semel.mqtt.packet_types import CONNECT, PUBLISH, SUBSCRIBE, UNSUBSCRIBE
from semel.store.folder import Lock
from semel.store.schema import Unusable

FLEET: Final = "Fleet"
DEVICES: Final = 100
GATEWAYS: Final = 4
RATE: Final = 100.0
PREFIX: Final = "plant"
# A gateway that has lost its connection tries again soon: the fleet is there to try a broker.
BACKOFF: Final = Backoff(first=0.1, most=2.0)
# How many gateways connect at a time.
CONNECTING: Final = 50
PURGE_SECONDS: Final = 5.0
REPORT_SECONDS: Final = 1.0
LINE_SECONDS: Final = 0.25
JOURNAL: Final = "journal"
DESCRIPTION: Final = "fleet.json"


# --- what people type -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Description:
    """What has to be the same in every run of one state."""

    seed: int
    devices: int
    gateways: int
    # At QoS 0 nobody would look into the outboxes that a run at another one has left.
    qos: int
    payload: str
    prefix: str
    # Begins the client identifiers.
    name: str


class State:
    """A folder with the outboxes of the gateways, the journal, and what the fleet is.

    It is locked from the start until `close`, at every QoS: what was begun is known from the
    journal, and two who read it would begin the same messages.
    """

    def __init__(self, folder: Path, wanted: Description, *, named: bool) -> None:
        """`named`: the name was given, and not made up. Raises Failure."""
        self.folder = folder
        self.journal = folder / JOURNAL
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(folder)
        except OSError as problem:
            raise Failure(f"--data {folder}: {problem.strerror}") from None
        except Unusable as problem:
            raise Failure(f"--data {problem}") from None
        try:
            self.description = self._described(wanted, named=named)
        except BaseException:
            self.close()
            raise

    def _described(self, wanted: Description, *, named: bool) -> Description:
        """What the folder is of, which is what is wanted. Raises Failure."""
        folder = self.folder
        path = folder / DESCRIPTION
        try:
            if not path.exists():
                beside = path.with_suffix(".new")
                beside.write_text(json.dumps(asdict(wanted)) + "\n")
                beside.replace(path)
            found = Description(**json.loads(path.read_text()))
        except OSError as problem:
            raise Failure(f"--data {folder}: {problem.strerror}") from None
        except (TypeError, ValueError):
            raise Failure(f"--data {folder}: {path.name} is none of a fleet's") from None
        for field, value in asdict(found).items():
            if field == "name" and not named:
                continue
            asked = getattr(wanted, field)
            if asked != value:
                option = "-i" if field == "name" else f"--{field}"
                raise Failure(
                    f"--data {folder} is of a fleet with {option} {value}, not {asked}: give "
                    "the same, or another folder"
                )
        return found

    def close(self) -> None:
        """Let others have the folder."""
        self._lock.close()

    def __enter__(self) -> "State":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def outbox(self, number: int) -> Path:
        """Where gateway `number` keeps its state."""
        return self.folder / f"gateway-{number + 1}"

    def begun(self, devices: Devices) -> EarlierRuns:
        """What earlier runs have left. Raises Failure."""
        try:
            lines = read_journal(self.journal) if self.journal.exists() else iter(())
            return EarlierRuns(devices, lines)
        except (BadJournal, OSError, ValueError) as problem:
            raise Failure(f"--data {self.folder}: {problem}") from None


def parse_prefix(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """What topics begin with; it may be empty."""
    if text:
        check_topic(text)
    return text


def fleet_options(function: Callable[..., None]) -> Callable[..., None]:
    """What the fleet is, and how much it publishes."""
    for option in reversed(
        (
            section_option(
                "--devices",
                section=FLEET,
                type=click.IntRange(1, MOST_DEVICES),
                default=DEVICES,
                metavar="N",
                help=f"Devices of the fleet. By default {DEVICES}.",
            ),
            section_option(
                "--gateways",
                section=FLEET,
                type=click.IntRange(1, MOST_GATEWAYS),
                metavar="N",
                help="Connections that carry the devices, as gateways do. By default "
                f"{GATEWAYS}, and no more than there are devices.",
            ),
            shared_option(
                "--rate",
                section=FLEET,
                type=NumberRange(0, MOST_RATE),
                default=RATE,
                help=f"Messages per second of the whole fleet. By default {RATE:g}; 0: as fast as"
                f" the broker takes them. At most {MOST_RATE:,.0f}.",
            ),
            shared_option(
                "--count",
                section=FLEET,
                type=click.IntRange(min=1),
                help="Exit after this many messages. By default, go on until Ctrl-C.",
            ),
            shared_option(
                "--qos", section=FLEET, type=QOS, default=2, help="The QoS. By default 2."
            ),
            section_option(
                "--payload",
                section=FLEET,
                type=click.Choice(FORMS),
                default=MIXED,
                help="What devices speak; mixed, the default: every third one binary.",
            ),
            shared_option(
                "--seed",
                section=FLEET,
                type=click.IntRange(0, MOST_SEED),
                default=1,
                help="Same seed, same devices, same messages. By default 1.",
            ),
            shared_option(
                "--prefix",
                section=FLEET,
                callback=parse_prefix,
                help="Topics are TOPIC/site/line/device/measure; empty: without it. By default"
                f" {PREFIX}, or the topic of -L.",
            ),
            shared_option(
                "--window",
                section=FLEET,
                type=click.IntRange(1, MOST_WINDOW),
                default=WINDOW,
                help=f"At most this many incomplete messages per gateway. By default {WINDOW}.",
            ),
            shared_option(
                "--data",
                "state",
                section=FLEET,
                type=click.Path(path_type=Path, file_okay=False),
                help="Keep outboxes and the journal here, and go on where an earlier run ended."
                " Without it they are in a temporary folder, and end with the run.",
            ),
            json_option("Print the account every second and at the end, as JSON.", section=FLEET),
        )
    ):
        function = option(function)
    return function


@click.command(
    cls=MqttCommand,
    examples=(
        "semel fleet -h localhost --devices 500 --rate 1000 --count 50000",
        "semel fleet -L mqtt://ann:secret@example.org/plant -q 1 --payload json --seed 7",
    ),
)
@fleet_options
@connection_options
def command(
    connection: ConnectionOptions,
    devices: int,
    gateways: int | None,
    rate: float,
    count: int | None,
    qos: int,
    payload: str,
    seed: int,
    prefix: str | None,
    window: int,
    state: Path | None,
    is_json: bool,
) -> None:
    """Publish as a fleet of simulated devices, each message once.

    Every message carries its device and a counter, so that each one can be traced anywhere behind
    the broker. At QoS 1 and 2 sessions are durable and messages are on disk before they are sent:
    lost connections and restarts of the broker lose none, and duplicate none at QoS 2. Ends with
    --count or Ctrl-C, and prints totals. Exits with 1 if a message was refused, or may have
    arrived twice at QoS 2.
    """
    for packet_type, name in (
        (SUBSCRIBE, "subscribe"),
        (UNSUBSCRIBE, "unsubscribe"),
        (PUBLISH, "publish"),
    ):
        if packet_type in connection.properties:
            raise click.UsageError(f"-D {name} is not for a fleet, which has its own messages")
    if connection.persistent:
        raise click.UsageError("-c: a fleet's sessions are durable anyway; --data keeps them")
    if qos and connection.session_expiry == 0:
        raise click.UsageError("-x 0: without a session that lasts there is no QoS 1 or 2 here")
    gateways = min(GATEWAYS, devices) if gateways is None else gateways
    if gateways > devices:
        raise click.UsageError(f"--gateways {gateways} is more than --devices {devices}")
    if prefix is not None and connection.topic is not None:
        raise click.UsageError("--prefix and the topic of -L say the same; give one")
    if connection.topic is not None:
        check_topic(connection.topic)
        prefix = connection.topic
    prefix = PREFIX if prefix is None else prefix
    pace = FleetPace(qos, rate or None, window, count)
    name = connection.client_id or f"fleet-{secrets.token_hex(4)}"
    wanted = Description(seed, devices, gateways, qos, payload, prefix, name)
    report = FleetReport(pace, is_json=is_json, quiet=connection.quiet)
    sys.exit(run(connection, wanted, pace, state, report))


# --- running --------------------------------------------------------------------------------------


def run(
    connection: ConnectionOptions,
    wanted: Description,
    pace: FleetPace,
    folder: Path | None,
    report: "FleetReport",
) -> int:
    """Run the fleet to its end: the exit code."""
    LOG.propagate = False
    LOG.addHandler(logging.NullHandler())
    with ExitStack() as stack:
        try:
            is_kept = folder is not None
            if folder is None:
                made = tempfile.TemporaryDirectory(prefix="semel-fleet-")
                folder = Path(stack.enter_context(made))
            state = stack.enter_context(State(folder, wanted, named=bool(connection.client_id)))
            working = work_in_any_version(connection, state, pace, report, is_kept=is_kept)
            try:
                uvloop = import_module("uvloop")
            except ImportError:
                return asyncio.run(working)
            return int(uvloop.run(working))
        except Failure as failure:
            if not connection.quiet:
                print_to_stderr(f"Error: {failure}")
            return failure.code


def make_client(connection: ConnectionOptions, state: State, number: int, qos: int) -> Client:
    """The client of one gateway. Raises Failure."""
    given = connection.properties_of(CONNECT)
    try:
        return Client(
            connection.address,
            client_id=f"{state.description.name}-{number + 1}",
            version=connection.version,
            session_expiry=connection.session_expiry if qos else 0,
            keep_alive=connection.keep_alive,
            user_name=connection.user_name,
            password=connection.password,
            will=connection.will,
            receive_maximum=given.receive_maximum,
            maximum_packet_size=given.maximum_packet_size,
            properties=Properties([item for item in given.items if item[0] not in ARGUMENTS]),
            tls=tls_context(connection),
            authentication=authentication_of(given),
            reconnect=BACKOFF,
            # What is not acknowledged need not be kept.
            outbox=state.outbox(number) if qos else None,
            connector=connector_of(connection),
        )
    except (Violation, BadAddress) as problem:
        raise Failure(str(problem)) from None


async def work_in_any_version(
    connection: ConnectionOptions,
    state: State,
    pace: FleetPace,
    report: "FleetReport",
    *,
    is_kept: bool,
) -> int:
    """`work` with MQTT 5.0, and with 3.1.1 if the server refuses that and there is no -V."""
    try:
        return await work(connection, state, pace, report, is_kept=is_kept)
    except VersionRefused:
        if not connection.may_fall_back:
            raise
    return await work(connection.with_311(), state, pace, report, is_kept=is_kept)


async def work(
    connection: ConnectionOptions,
    state: State,
    pace: FleetPace,
    report: "FleetReport",
    *,
    is_kept: bool,
) -> int:
    """Connect, publish, tell: the exit code. Raises Failure."""
    described = state.description
    devices = Devices(
        described.seed, described.devices, form=described.payload, prefix=described.prefix
    )
    begun = state.begun(devices)
    clients = [
        make_client(connection, state, number, pace.qos) for number in range(described.gateways)
    ]
    try:
        journal = Journal(state.journal)
    except OSError as problem:
        raise Failure(f"the journal {state.journal}: {problem.strerror}") from None
    warnings = logging.NullHandler() if connection.quiet else Warnings(logging.WARNING)
    try:
        await connect(clients, connection)
        LOG.addHandler(warnings)
        fleet = Fleet(devices, clients, journal, pace, begun)
        await publish(fleet, report)
    except (Disconnected, Refused) as problem:
        raise Failure(str(problem), code_of(problem)) from None
    except OSError as problem:
        raise Failure(f"the journal {state.journal}: {problem.strerror}") from None
    finally:
        # Nobody comes back for the sessions of a fleet whose state ends here.
        await asyncio.gather(*(leave(connection, client, keep=is_kept) for client in clients))
        LOG.removeHandler(warnings)
        journal.close()
    return report.end(fleet, state if is_kept else None)


async def connect(clients: list[Client], connection: ConnectionOptions) -> None:
    """Connect all. Raises Failure."""
    turn = asyncio.Semaphore(CONNECTING)

    async def one(client: Client) -> None:
        async with turn:
            await client.connect()

    with ConnectProblem() as latest:
        try:
            async with asyncio.TaskGroup() as group:
                for client in clients:
                    group.create_task(one(client))
        except BaseExceptionGroup as several:
            problem: BaseException = several
            while isinstance(problem, BaseExceptionGroup):
                problem = problem.exceptions[0]
            if isinstance(problem, Refused):
                raise refusal(problem, connection) from None
            if isinstance(problem, Disconnected):
                is_theirs = problem.reason is not None or problem.violation is not None
                raise Failure(str(problem), code_of(problem) if is_theirs else FAILED) from None
            if isinstance(problem, Unusable | MissingExtra):
                raise Failure(str(problem)) from None
            raise
        if not all(client.connected for client in clients):
            # A client with an outbox would try for ever; a command says that it cannot.
            raise Failure(latest.sentence or "the server cannot be reached")


async def leave(connection: ConnectionOptions, client: Client, *, keep: bool) -> None:
    """Disconnect; unless it is to be kept, the session ends."""
    was_connected = client.connected
    leaving = Properties() if keep else Properties(session_expiry_interval=0)
    await client.close(properties=leaving)
    if was_connected and not keep and connection.version == MQTT311:
        # In 3.1.1 a DISCONNECT cannot say so.
        with suppress(Refused, Disconnected, CannotConnect):
            await purge(
                connection.address,
                client.client_id,
                user_name=connection.user_name,
                password=connection.password,
                tls=tls_context(connection),
                timeout=PURGE_SECONDS,
                connector=connector_of(connection),
            )


async def publish(fleet: Fleet, report: "FleetReport") -> None:
    """Publish until the end or a signal; a second one does not wait for anything."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(fleet.run())

    def stop() -> None:
        if fleet.stopping.is_set():
            task.cancel()
        fleet.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    reporting = loop.create_task(keep_reporting(fleet, report))
    try:
        await task
    except asyncio.CancelledError:
        if not fleet.stopping.is_set():
            raise
    finally:
        reporting.cancel()
        with suppress(asyncio.CancelledError):
            await reporting
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def keep_reporting(fleet: Fleet, report: "FleetReport") -> None:
    while True:
        await asyncio.sleep(report.seconds)
        try:
            report.show(fleet.progress())
        except OSError:
            # Nobody reads it any more, and so nobody watches.
            fleet.stop()
            return


# --- what people see ------------------------------------------------------------------------------


class FleetReport:
    """What is told of a fleet: a line on a terminal, or objects for a program; then the account."""

    def __init__(self, pace: FleetPace, *, is_json: bool, quiet: bool) -> None:
        self.pace = pace
        self.is_json = is_json
        self.quiet = quiet
        self._line = LiveLine(enabled=not quiet and not is_json)
        self.seconds = LINE_SECONDS if self._line.is_enabled else REPORT_SECONDS
        self._published = 0
        self._at = time.monotonic()

    def show(self, now: FleetProgress) -> None:
        """Tell how it stands. Raises OSError if nobody reads that."""
        at = time.monotonic()
        rate = (now.published - self._published) / max(at - self._at, 1e-3)
        self._published, self._at = now.published, at
        if self.is_json:
            self._print("progress", now, rate)
        else:
            self._line.show(as_line(now, rate, self.pace.count))

    def _print(self, event: str, now: FleetProgress, rate: float, **more: Any) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event_object = {"at": at, "event": event, **asdict(now), "rate": round(rate, 1), **more}
        event_object["seconds"] = round(now.seconds, 3)
        try:
            sys.stdout.write(json.dumps(event_object) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            # What is left in its buffer would be written once more at the end.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            raise

    def end(self, fleet: Fleet, state: State | None) -> int:
        """Tell the account: the exit code."""
        now = fleet.progress()
        doubtful = now.resent if self.pace.qos == 2 else 0
        code = FAILED if now.refused or doubtful else 0
        rate = now.published / max(now.seconds, 1e-3)
        if self.is_json:
            self._print("ended", now, rate, qos=self.pace.qos, reasons=fleet.reasons)
            return code
        self._line.clear()
        for line in account(fleet, now, rate, state):
            click.echo(shown_text(line))
        return code


def as_line(now: FleetProgress, rate: float, count: int | None) -> str:
    """How a fleet stands, for a terminal."""
    of = "" if count is None else f" of {count:,}"
    parts = [
        f"{now.seconds:.0f} s",
        f"published {now.total:,}{of}",
        f"{rate:,.0f}/s",
        f"in flight {now.in_flight:,}",
    ]
    if now.connected < now.gateways:
        parts.append(f"{now.connected} of {counts.count(now.gateways, 'gateway')} connected")
    if now.reconnects:
        parts.append(counts.count(now.reconnects, "reconnect"))
    if now.refused:
        parts.append(f"refused {now.refused:,}")
    return "  ".join(parts)


def account(fleet: Fleet, now: FleetProgress, rate: float, state: State | None) -> list[str]:
    """The account for people."""
    devices = len(fleet.devices)
    lines = [
        f"{counts.count(devices, 'device')} behind "
        f"{counts.count(now.gateways, 'gateway')}, QoS {fleet.pace.qos}, "
        f"seed {fleet.devices.seed}",
        f"published      {now.published:>12,}   in {now.seconds:.1f} s, {rate:,.0f}/s",
    ]
    if now.total != now.published:
        lines.append(f"with earlier   {now.total:>12,}")
    if now.in_flight:
        has_them = state is not None and fleet.pace.qos > 0
        what = "in the outboxes, for the next run" if has_them else "they may arrive or not"
        lines.append(f"not complete   {now.in_flight:>12,}   {what}")
    lines.append(f"refused        {now.refused:>12,}")
    lines += [f"  {reason}" for reason in fleet.reasons]
    lines.append(f"reconnects     {now.reconnects:>12,}")
    if now.sessions_lost:
        lines.append(
            f"sessions lost  {now.sessions_lost:>12,}   "
            f"{counts.count(now.resent, 'message')} sent again, possibly received twice"
        )
    if state is not None:
        lines.append(f"each message is in {state.journal}")
    return lines

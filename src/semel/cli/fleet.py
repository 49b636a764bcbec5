"""`semel fleet`: publish the messages of simulated devices, each once, and print totals."""

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
from semel.cli.numbers import MOST_RATE, IntegerRange, NumberRange
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
# Short delays, because a fleet is a test of a broker: its gateways should reconnect soon.
BACKOFF: Final = Backoff(first=0.1, most=2.0)
# The maximum number of gateways that connect at the same time.
CONNECTING: Final = 50
PURGE_SECONDS: Final = 5.0
REPORT_SECONDS: Final = 1.0
LINE_SECONDS: Final = 0.25
JOURNAL: Final = "journal"
DESCRIPTION: Final = "fleet.json"


# --- options and state ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Description:
    """The options that must be the same in every run with the same --data folder."""

    seed: int
    devices: int
    gateways: int
    # A run at QoS 0 would ignore the outboxes that a run at QoS 1 or 2 has left.
    qos: int
    payload: str
    prefix: str
    # The prefix of the client identifiers.
    name: str


class State:
    """A folder with the outboxes of the gateways, the journal, and the description of the fleet.

    It is locked until `close`, at every QoS: two processes that read the same journal would begin
    the same messages.
    """

    def __init__(self, folder: Path, requested: Description, *, named: bool) -> None:
        """`named`: the user gave the name; otherwise it was generated. Raises Failure."""
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
            self.description = self._described(requested, named=named)
        except BaseException:
            self.close()
            raise

    def _described(self, requested: Description, *, named: bool) -> Description:
        """The description in the folder, which is created if missing.

        Raises Failure if it differs from `requested`.
        """
        folder = self.folder
        path = folder / DESCRIPTION
        try:
            if not path.exists():
                beside = path.with_suffix(".new")
                beside.write_text(json.dumps(asdict(requested)) + "\n")
                beside.replace(path)
            found = Description(**json.loads(path.read_text()))
        except OSError as problem:
            raise Failure(f"--data {folder}: {problem.strerror}") from None
        except (TypeError, ValueError):
            raise Failure(f"--data {folder}: {path.name} does not describe a fleet") from None
        for field, value in asdict(found).items():
            if field == "name" and not named:
                continue
            asked = getattr(requested, field)
            if asked != value:
                option = "-i" if field == "name" else f"--{field}"
                raise Failure(
                    f"--data {folder} belongs to a fleet with {option} {value}, not {asked}: give "
                    "the same, or another folder"
                )
        return found

    def close(self) -> None:
        """Release the lock of the folder."""
        self._lock.close()

    def __enter__(self) -> "State":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def outbox(self, number: int) -> Path:
        """The outbox of gateway `number`."""
        return self.folder / f"gateway-{number + 1}"

    def begun(self, devices: Devices) -> EarlierRuns:
        """The state after earlier runs, from the journal. Raises Failure."""
        try:
            lines = read_journal(self.journal) if self.journal.exists() else iter(())
            return EarlierRuns(devices, lines)
        except (BadJournal, OSError, ValueError) as problem:
            raise Failure(f"--data {self.folder}: {problem}") from None


def parse_prefix(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """The prefix of all topics, checked; it may be empty."""
    if text:
        check_topic(text)
    return text


def fleet_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the fleet, and of how much it publishes."""
    for option in reversed(
        (
            section_option(
                "--devices",
                section=FLEET,
                type=IntegerRange(1, MOST_DEVICES),
                default=DEVICES,
                metavar="N",
                help=f"The number of devices. By default {DEVICES}.",
            ),
            section_option(
                "--gateways",
                section=FLEET,
                type=IntegerRange(1, MOST_GATEWAYS),
                metavar="N",
                help="The number of gateways: connections that share the devices. By default "
                f"{GATEWAYS}, and at most one per device.",
            ),
            shared_option(
                "--rate",
                section=FLEET,
                type=NumberRange(0, MOST_RATE),
                default=RATE,
                help=f"Messages per second of the whole fleet, at most {MOST_RATE:,.0f}. By default"
                f" {RATE:g}; 0: as fast as the broker accepts them.",
            ),
            shared_option(
                "--count",
                section=FLEET,
                type=IntegerRange(min=1),
                help="Exit after this many messages. By default, publish until Ctrl-C.",
            ),
            shared_option(
                "--qos", section=FLEET, type=QOS, default=2, help="The QoS. By default 2."
            ),
            section_option(
                "--payload",
                section=FLEET,
                type=click.Choice(FORMS),
                default=MIXED,
                help="The format of payloads. By default mixed: every third device sends binary"
                " payloads, the others JSON.",
            ),
            shared_option(
                "--seed",
                section=FLEET,
                type=IntegerRange(0, MOST_SEED),
                default=1,
                help="Determines the devices and their messages. By default 1.",
            ),
            shared_option(
                "--prefix",
                section=FLEET,
                callback=parse_prefix,
                help="The prefix of topics, TOPIC/site/line/device/measure; may be empty. By"
                f" default {PREFIX}, or the topic of -L.",
            ),
            shared_option(
                "--window",
                section=FLEET,
                type=IntegerRange(1, MOST_WINDOW),
                default=WINDOW,
                help=f"At most this many incomplete messages per gateway. By default {WINDOW}.",
            ),
            shared_option(
                "--data",
                "state",
                section=FLEET,
                type=click.Path(path_type=Path, file_okay=False),
                help="Keep outboxes and the journal here, and continue where an earlier run ended."
                " By default they are in a temporary folder, which is deleted at the end.",
            ),
            json_option("Print the counters every second and at the end, as JSON.", section=FLEET),
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

    Every message contains its device and a counter, so that it can be traced to the end of a
    pipeline. At QoS 1 and 2 sessions are durable, and messages are on disk before they are sent:
    lost connections and restarts of the broker lose no message and, at QoS 2, duplicate none. Ends
    after --count messages or on Ctrl-C, and prints totals. Exits with 1 if a message was refused,
    or may have arrived twice at QoS 2.
    """
    for packet_type, name in (
        (SUBSCRIBE, "subscribe"),
        (UNSUBSCRIBE, "unsubscribe"),
        (PUBLISH, "publish"),
    ):
        if packet_type in connection.properties:
            raise click.UsageError(f"-D {name}: a fleet does not use the properties of this packet")
    if connection.persistent:
        raise click.UsageError("-c: the sessions of a fleet are always durable; use --data")
    if qos and connection.session_expiry == 0:
        raise click.UsageError("-x 0: a fleet needs durable sessions for QoS 1 and 2")
    if not qos and connection.session_expiry:
        raise click.UsageError("-x: the sessions of a fleet with QoS 0 end with their connection")
    if state is not None and connection.id_prefix is not None:
        raise click.UsageError(
            "-I: with --data a fleet needs the same client identifiers in every run: use -i"
        )
    gateways = min(GATEWAYS, devices) if gateways is None else gateways
    if gateways > devices:
        raise click.UsageError(f"--gateways {gateways} is more than --devices {devices}")
    if prefix is not None and connection.topic is not None:
        raise click.UsageError("give one of --prefix and the topic of -L")
    if connection.topic is not None:
        check_topic(connection.topic)
        prefix = connection.topic
    prefix = PREFIX if prefix is None else prefix
    pace = FleetPace(qos, rate or None, window, count)
    name = connection.client_id or f"fleet-{secrets.token_hex(4)}"
    requested = Description(seed, devices, gateways, qos, payload, prefix, name)
    report = FleetReport(pace, is_json=is_json, quiet=connection.quiet)
    sys.exit(run(connection, requested, pace, state, report))


# --- running --------------------------------------------------------------------------------------


def run(
    connection: ConnectionOptions,
    requested: Description,
    pace: FleetPace,
    folder: Path | None,
    report: "FleetReport",
) -> int:
    """Run the fleet to its end, and return the exit code."""
    LOG.propagate = False
    LOG.addHandler(logging.NullHandler())
    with ExitStack() as stack:
        try:
            is_kept = folder is not None
            if folder is None:
                made = tempfile.TemporaryDirectory(prefix="semel-fleet-")
                folder = Path(stack.enter_context(made))
            state = stack.enter_context(State(folder, requested, named=bool(connection.client_id)))
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
            authentication=authentication_of(connection),
            reconnect=BACKOFF,
            # QoS 0 messages are not acknowledged, so there is nothing to store.
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
    """`work` with MQTT 5.0, or with 3.1.1 if the server refuses 5.0 and -V is not given."""
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
    """Connect, publish and report. Returns the exit code. Raises Failure."""
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
        # If the state is not kept, no later run resumes the sessions: end them.
        await asyncio.gather(*(leave(connection, client, keep=is_kept) for client in clients))
        LOG.removeHandler(warnings)
        journal.close()
    return report.end(fleet, state if is_kept else None)


async def connect(clients: list[Client], connection: ConnectionOptions) -> None:
    """Connect all clients. Raises Failure."""
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
            # A client with an outbox would retry forever, but a command should fail.
            raise Failure(latest.sentence or "the server cannot be reached")


async def leave(connection: ConnectionOptions, client: Client, *, keep: bool) -> None:
    """Disconnect, and end the session unless `keep`."""
    was_connected = client.connected
    leaving = Properties() if keep else Properties(session_expiry_interval=0)
    await client.close(properties=leaving)
    if was_connected and not keep and connection.version == MQTT311:
        # A DISCONNECT of 3.1.1 cannot end the session.
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
    """Publish until the end, or until a signal.

    A second signal does not wait for acknowledgements.
    """
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
            # The reader has closed the pipe or terminal: stop.
            fleet.stop()
            return


# --- reporting ------------------------------------------------------------------------------------


class FleetReport:
    """Reports the progress of a fleet, as a live line or as JSON objects, and the totals."""

    def __init__(self, pace: FleetPace, *, is_json: bool, quiet: bool) -> None:
        self.pace = pace
        self.is_json = is_json
        self.quiet = quiet
        self._line = LiveLine(enabled=not quiet and not is_json)
        self.seconds = LINE_SECONDS if self._line.is_enabled else REPORT_SECONDS
        self._published = 0
        self._at = time.monotonic()

    def show(self, now: FleetProgress) -> None:
        """Report the progress. Raises OSError if the reader has closed the output."""
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
            # Python would flush the rest of the buffer again at exit.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            raise

    def end(self, fleet: Fleet, state: State | None) -> int:
        """Report the totals, and return the exit code."""
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
    """The progress as one line for a terminal."""
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
    """The totals as lines for people."""
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
        what = "in the outboxes, for the next run" if has_them else "may or may not arrive"
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
        lines.append(f"journal of all messages: {state.journal}")
    return lines

"""`semel up`: broker, sealer and landing as one service, until SIGTERM or Ctrl-C."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from semel import __version__
from semel.broker.settings import LOG_LEVELS
from semel.cli.flags import CONFIG, QUIET, json_option, shared_option
from semel.cli.line_queue import LineQueue
from semel.cli.live_line import LiveLine
from semel.cli.option_groups import CONNECTION, SemelCommand, grouped_option
from semel.cli.output import encoded
from semel.cli.safe_text import shown_text
from semel.cli.sections import SECTIONS
from semel.counts import count
from semel.extras import missing
from semel.pipeline.errors import PipelineError
from semel.pipeline.lake_address import local_folder
from semel.settings import CONFIG_VARIABLE, SettingsError, load
from semel.up.parts import BROKER, INFO, LANDING, PAGE, parts
from semel.up.plan import (
    UpPlan,
    check_extras,
    create_lake_folder,
    make_plan,
    note_landing,
    sections,
)
from semel.up.positions import read_extent, read_landed
from semel.up.status import FinalTotals, StatusSnapshot, UpStatus
from semel.up.status_file import remove_status, write_status
from semel.up.suggestions import program_name, suggested_commands
from semel.up.supervisor import (
    DIED,
    PROGRESS,
    READY,
    STARTING,
    STOPPED,
    STOPPING,
    CannotStart,
    Event,
    Supervisor,
)
from semel.web.settings import WebSettings

REPORT_SECONDS: Final = 1.0
# Without a terminal, how often the status is printed, if it has changed.
PLAIN_REPORT_SECONDS: Final = 60.0
# If rows have been waiting to land for this long, the status says for how long.
LONG_WAIT_SECONDS: Final = 5.0

PAGE_OPTIONS: Final = "Page"
STARTING_TEXTS: Final = {
    BROKER: "starting",
    LANDING: "starting Spark (about 15 s); the broker already accepts messages",
}
# A part whose start and end nobody waits for.
QUIET_PARTS: Final = (PAGE,)
STOPPING_TEXTS: Final = {
    BROKER: "shutting down: refusing new messages, flushing",
    LANDING: "shutting down: landing the sealed rows; Ctrl-C again leaves them to the next start",
}


@click.command(
    cls=SemelCommand,
    examples=(
        "semel up",
        "semel up --data /var/lib/semel --lake s3://bucket/lake",
        "semel up --landing landing.toml",
        "semel up --no-land --quiet",
    ),
)
@CONFIG
@shared_option(
    "--data", help="The directory of the store, the record and the lake.  [default: semel-data]"
)
@shared_option("--host", section=CONNECTION, help="The address to listen on.  [default: 127.0.0.1]")
@shared_option("--port", section=CONNECTION, help="The TCP port to listen on.  [default: 1883]")
@grouped_option(
    "--anonymous",
    section=CONNECTION,
    is_flag=True,
    help="Let everyone who can reach the broker connect without a user name, also from other "
    "machines.",
)
@shared_option(
    "--root",
    help="Where the record is kept: a directory, or an object store.  [default: <data>/streams]",
)
@shared_option(
    "--lake",
    help="Where the Delta tables are: a directory, or an object store.  [default: <data>/lake]",
)
@shared_option(
    "--landing",
    help="A landing file: the tables in which messages land by their topics, with typed columns.  "
    "[default: all messages land in the table messages]",
)
@shared_option(
    "--interval",
    help="The minimum time from the start of one batch to the start of the next.  [default: 1s]",
)
@click.option(
    "--no-maintenance",
    is_flag=True,
    help="Do not compact the table, clean its log or delete files that it no longer needs.",
)
@click.option("--no-land", is_flag=True, help="Run the broker only, without Spark and tables.")
@grouped_option(
    "--web-port",
    section=PAGE_OPTIONS,
    metavar="PORT",
    help="The port of the page.  [or SEMEL_WEB_PORT; default: 8080]",
)
@grouped_option("--no-web", section=PAGE_OPTIONS, is_flag=True, help="Do not serve the page.")
@json_option("Print events as JSON, one object per line.")
@QUIET
@click.version_option(__version__, prog_name="semel", message="%(prog)s %(version)s")
def command(
    config: Path | None,
    data: str | None,
    host: str | None,
    port: str | None,
    anonymous: bool,
    root: str | None,
    lake: str | None,
    landing: str | None,
    interval: str | None,
    no_maintenance: bool,
    no_land: bool,
    web_port: str | None,
    no_web: bool,
    is_json: bool,
    quiet: bool,
) -> None:
    """Run a broker whose messages land in Delta tables, each exactly once.

    The broker speaks MQTT 3.1.1 and 5.0, acknowledges a message when it is on disk, and records
    every message; Spark lands the record in the table messages, or in the tables of a landing
    file. A part that dies is restarted.
    Ctrl-C and SIGTERM stop the broker, land what it has recorded, and stop the landing. A second
    Ctrl-C leaves the landing to the next start, which loses nothing.

    All other settings come from the file and the environment, as for `semel broker` and `semel
    land`.
    """
    given: dict[str, dict[str, object]] = {
        "broker": {"host": host, "port": port, "anonymous": True if anonymous else None},
        "store": {"data": data, "root": root},
        "land": {
            "lake": lake,
            "landing": landing,
            "interval": interval,
            "maintenance": False if no_maintenance else None,
        },
        "web": {"port": web_port, "enabled": False if no_web else None},
    }
    flags = {
        name: {key: value for key, value in keys.items() if value is not None}
        for name, keys in given.items()
    }
    if data == "":
        # Probably an empty shell variable. In the file and the environment it means the default.
        raise SettingsError(["flag --data: [store] data is empty: give a folder, or leave it out"])
    settings = load(sections(SECTIONS), path=config, environ=os.environ, flags=flags)
    if config is None and CONFIG_VARIABLE in os.environ:
        config = Path(os.environ[CONFIG_VARIABLE])
    plan = make_plan(
        settings,
        config=config,
        lands=not no_land,
        interval=interval,
        serves_page=settings.of(WebSettings).enabled and not missing("web"),
        web_port=web_port,
    )
    check_extras(plan)
    report = UpReport(plan, is_json=is_json, quiet=quiet)
    try:
        asyncio.run(supervise(plan, report))
    except CannotStart as problem:
        raise click.ClickException(shown_text(str(problem))) from None


async def supervise(plan: UpPlan, report: "UpReport") -> None:
    """Run the parts until a signal arrives and all have ended. Raises CannotStart."""
    loop = asyncio.get_running_loop()

    def report_event(event: Event) -> None:
        report.report_event(event)
        if plan.lands and (event.kind, event.part) == (READY, BROKER):
            # The root exists now. In a thread, because an object store may be slow.
            loop.run_in_executor(None, note_landing, plan)

    supervisor = Supervisor(parts(plan, os.environ), report_event)
    report.begin(supervisor)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, supervisor.stop)
    reporting = asyncio.ensure_future(report.keep_reporting())
    try:
        await supervisor.run()
        report.end()
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
        await report.close()


class UpReport:
    """Writes events for people (lines, and a status line on a terminal) and for programs (JSON).

    A terminal or a program that reads slowly delays nothing else.
    """

    def __init__(self, plan: UpPlan, *, is_json: bool, quiet: bool) -> None:
        self.plan = plan
        self.status = UpStatus(read_extent(plan), time.monotonic())
        self._is_json = is_json
        self._is_quiet = quiet
        shares_terminal = is_json and sys.stdout.isatty()
        self._line = LiveLine(enabled=not quiet and not shares_terminal, write=self._queue_text)
        # When the status was printed, without a terminal, and its row numbers.
        self._printed_at = time.monotonic()
        self._printed: tuple[int, int | None] = (0, None)
        # The listeners of the broker, when commands were suggested.
        self._listeners: object = None

    def begin(self, supervisor: Supervisor) -> None:
        """Print the locations. Must be called in the event loop, before the first event."""
        self._supervisor = supervisor
        self._lines = LineQueue(sys.stderr.fileno())
        self._objects = LineQueue(sys.stdout.fileno()) if self._is_json else None
        locations = self.plan.locations
        self._print("; ".join(f"{name}: {where}" for name, where in locations.items()))
        self._put_object("places", **locations)

    # --- events -----------------------------------------------------------------------------------

    def report_event(self, event: Event) -> None:
        """Report an event of a part."""
        is_repeated = event.kind == DIED and self.status.is_repeated_death(event)
        self.status.take_event(event, time.monotonic())
        if event.kind == PROGRESS:
            return
        text = {"text": event.text} if event.text else {}
        self._put_object(event.kind, part=event.part, **text, **event.facts)
        if event.part in QUIET_PARTS and event.kind in (STARTING, STOPPING, STOPPED):
            return
        if event.kind == READY:
            self._print(event.text, part=event.part)
            if event.part == BROKER:
                self._suggest_commands(event.facts)
        elif event.kind == DIED:
            if not is_repeated:
                self._print(death_text(event), part=event.part, is_problem=True)
        elif event.kind == STARTING:
            if not self.status.has_died(event.part):
                self._print(STARTING_TEXTS.get(event.part, "starting"), part=event.part)
        elif event.kind == STOPPING:
            self._print(STOPPING_TEXTS.get(event.part, "shutting down"), part=event.part)
        elif event.kind == STOPPED:
            self._print("stopped", part=event.part)
        else:
            self._print_log(event)

    def _print_log(self, event: Event) -> None:
        level = event.facts.get("level")
        if level not in LOG_LEVELS[: LOG_LEVELS.index(self.plan.log_level)]:
            # A line of unknown level, such as one of a traceback, is a problem.
            self._print(event.text, part=event.part, is_problem=level != INFO)

    def _suggest_commands(self, facts: Mapping[str, object]) -> None:
        """Suggest commands to try when the broker is ready the first time, or has another port."""
        listeners = facts.get("listeners")
        if self._listeners == listeners:
            return
        self._listeners = listeners
        create_lake_folder(self.plan)
        program = program_name(sys.argv, os.environ)
        commands = suggested_commands(self.plan, program, listeners=listeners)
        address = {key: facts[key] for key in ("host", "port") if key in facts}
        self._put_object("try", **address, listeners=listeners, commands=commands)
        if not self._is_quiet:
            lines = ["", "Try, in another shell in this folder:"]
            self._line.print("\n".join([*lines, *(f"  {each}" for each in commands), ""]))

    # --- status -----------------------------------------------------------------------------------

    async def keep_reporting(self) -> None:
        """Report the status every second, until cancelled."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            if self._objects is not None and self._objects.is_closed:
                # The program that reads the objects has closed the pipe: stop.
                self._supervisor.stop()
                return
            now = time.monotonic()
            if self._supervisor.is_stopping:
                # Do not open the store: the broker should be the last to close it.
                self.status.stop_measuring()
            else:
                self.status.take_extent(read_extent(self.plan), now)
            snapshot, states = self.status.snapshot(now), self._supervisor.states
            self._put_object("status", parts=states, **asdict(snapshot))
            deaths = self.status.deaths
            write_status(
                self.plan.data,
                {"parts": states, "deaths": deaths, "lands": self.plan.lands, **asdict(snapshot)},
            )
            if not self._line.is_enabled:
                self._print_if_changed(snapshot, states, now)
            elif self._lines.is_empty:
                # A closed terminal sends SIGHUP, which stops everything.
                with contextlib.suppress(OSError):
                    self._line.show(as_line(snapshot, states))

    def _print_if_changed(
        self, snapshot: StatusSnapshot, states: dict[str, str], now: float
    ) -> None:
        if now - self._printed_at >= PLAIN_REPORT_SECONDS:
            self._printed_at = now
            numbers = (snapshot.recorded, snapshot.landed)
            if numbers != self._printed:
                self._printed = numbers
                self._print(as_line(snapshot, states))

    # --- the end ----------------------------------------------------------------------------------

    def end(self) -> None:
        """Report the totals."""
        remove_status(self.plan.data)
        self.status.take_extent(read_extent(self.plan), time.monotonic())
        landed: int | None = None
        reason = "the landing did not report it"
        if self.plan.lands:
            try:
                landed = self._read_landed()
            except (PipelineError, OSError) as problem:
                reason = str(problem)
        totals = self.status.totals(landed)
        found: dict[str, object] = asdict(totals)
        text = totals_text(totals)
        if self.plan.lands:
            found["waiting"] = totals.waiting
            text += landed_text(totals, reason)
        else:
            del found["landed"]
        self._put_object("ended", **found)
        self._print(text)

    def _read_landed(self) -> int | None:
        """The last row in the table; for an object store, which may be slow, as last reported."""
        if local_folder(self.plan.lake) is None:
            return self.status.landed
        return read_landed(self.plan, self.status.node)

    async def close(self) -> None:
        """Write what is queued."""
        self._line.clear()
        await self._lines.close()
        if self._objects is not None:
            await self._objects.close()

    # --- output -----------------------------------------------------------------------------------

    def _print(self, text: str, *, part: str = "semel up", is_problem: bool = False) -> None:
        if is_problem or not self._is_quiet:
            at = time.strftime("%H:%M:%S")
            lines = text.splitlines() or [""]
            self._line.print("\n".join(f"{at} {part:<8} {shown_text(line)}" for line in lines))

    def _queue_text(self, text: str) -> bool:
        return self._lines.put(encoded(text))

    def _put_object(self, event: str, **facts: object) -> None:
        if self._objects is None:
            return
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        found: dict[str, object] = {"at": at, "event": event}
        if self._objects.dropped:
            found["missed"] = self._objects.dropped
        own = {key: value for key, value in facts.items() if key not in found}
        self._objects.put(json.dumps({**found, **own}).encode() + b"\n")


# --- text -----------------------------------------------------------------------------------------


def as_line(status: StatusSnapshot, states: dict[str, str]) -> str:
    """The status as a line for people; `states` of parts are named if they are not "ready"."""
    words = [f"{status.recorded:,} recorded", f"{status.rate:,.0f}/s"]
    if status.landed is not None:
        words.append(f"landed up to row {status.landed:,}")
        words.append(f"lag {count(status.lag_rows or 0, 'row')}")
        waiting = status.waiting_seconds or 0.0
        if waiting >= LONG_WAIT_SECONDS:
            words[-1] += f" for {waiting:,.0f} s"
    if status.lag_seconds is not None:
        words.append(f"latency {status.lag_seconds:.1f} s")
    words += [f"{name} {state}" for name, state in states.items() if state != "ready"]
    return "  ".join(words)


def death_text(event: Event) -> str:
    """Why a part died, and when it is restarted."""
    text = f"died: {' '.join(event.text.split())}"
    delay = event.facts.get("again")
    if delay is not None:
        text += f"; restarting in {delay:g} s"
        if event.part != BROKER:
            text += ", the broker continues"
    return text


def totals_text(totals: FinalTotals) -> str:
    """What was recorded."""
    return f"{totals.recorded_since_start:,} recorded since the start; {totals.recorded:,} in all"


def landed_text(totals: FinalTotals, reason: str) -> str:
    """What has landed of it, to be appended; or the reason why that is unknown."""
    if totals.landed is None:
        return f"; landed rows unknown: {reason}"
    text = f"; landed up to row {totals.landed:,}" if totals.landed else "; none has landed"
    waiting = totals.waiting
    return text + (f"; {waiting:,} to land at the next start" if waiting else "; lag 0")

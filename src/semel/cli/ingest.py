"""`semel ingest`: record the messages of any broker in a stream until SIGTERM or Ctrl-C."""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from semel import __version__
from semel.cli.errors import sentence_of
from semel.cli.flags import QUIET, json_option
from semel.cli.live_line import LiveLine
from semel.cli.live_log import set_up_log
from semel.cli.option_groups import SemelCommand
from semel.cli.pipes import PipeOutput
from semel.cli.sections import SECTIONS
from semel.cli.setting_options import options
from semel.client.errors import Disconnected, Refused
from semel.client.ingest import Ingest, IngestCounters
from semel.client.ingest_plan import IngestPlan, make_plan
from semel.client.ingest_settings import IngestSettings
from semel.counts import count
from semel.mqtt.violation import Violation
from semel.settings import Flags, load
from semel.store.schema import Unusable
from semel.store.settings import StoreSettings

LOG: Final = logging.getLogger("semel.ingest")

REPORT_SECONDS: Final = 1.0


@click.command(
    cls=SemelCommand,
    examples=(
        "semel ingest mqtt://broker.example --topic 'plant/#' --stream plant --root record",
        "semel ingest mqtts://broker.example --username ann --password-file secret "
        "--topic '#' --stream all --root s3://bucket/record --data /var/lib/semel",
    ),
)
@click.argument("url", required=False, metavar="[URL]")
@options(IngestSettings, StoreSettings)
@click.option(
    "--start-clean",
    is_flag=True,
    help="Begin a new session, and discard what the broker has queued in the old one.",
)
@json_option("Print the counters every second as JSON.")
@QUIET
@click.version_option(__version__, prog_name="semel", message="%(prog)s %(version)s")
def command(
    url: str | None,
    config: Path | None,
    flags: Flags,
    start_clean: bool,
    is_json: bool,
    quiet: bool,
) -> None:
    """Record the messages of any broker in a stream, each once.

    URL is the broker: mqtt://host[:port], or mqtts, ws, wss, unix:path. A message and its packet
    identifier are committed in one transaction before the message is acknowledged. SIGTERM and
    Ctrl-C first store and acknowledge what was received; the broker keeps the session.

    The store is a directory in --root, or --data. `semel stream read` prints the messages.
    """
    given = {section: dict(keys) for section, keys in flags.items()}
    if url is not None:
        given["ingest"]["url"] = url
    settings = load(SECTIONS, path=config, environ=os.environ, flags=given)
    plan = make_plan(settings.of(IngestSettings), settings.of(StoreSettings))
    report = IngestReport(plan.stream.name, is_json=is_json, quiet=quiet)
    log = set_up_log(report, quiet=quiet)
    try:
        run(plan, report, start_clean=start_clean)
    except Disconnected as problem:
        # Write the log first: it has the events that led to the problem.
        log.flush()
        sentence = sentence_of(problem)
        if problem.is_final:
            sentence += (
                ". --start-clean begins a new session and discards what the broker has queued in"
                " the old one"
            )
        raise click.ClickException(sentence) from None
    except (Refused, Unusable, Violation) as problem:
        log.flush()
        raise click.ClickException(sentence_of(problem)) from None


# --- running --------------------------------------------------------------------------------------


def run(plan: IngestPlan, report: "IngestReport", *, start_clean: bool) -> None:
    """Ingest, on uvloop if it is installed."""
    ingesting = ingest(plan, report, start_clean=start_clean)
    try:
        uvloop = import_module("uvloop")
    except ImportError:
        asyncio.run(ingesting)
    else:
        uvloop.run(ingesting)


async def ingest(plan: IngestPlan, report: "IngestReport", *, start_clean: bool) -> None:
    """Ingest until a signal arrives. Raises the errors of `Ingest.run`."""
    work = Ingest(plan, start_clean=start_clean)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.stop)
    reporting = loop.create_task(keep_reporting(work, report))
    try:
        await work.run()
    finally:
        reporting.cancel()
        with suppress(asyncio.CancelledError):
            await reporting
        if work.counters.state == "ended":
            await report.end(work.counters)


async def keep_reporting(work: Ingest, report: "IngestReport") -> None:
    """Report every second."""
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        try:
            await report.show(work.counters)
        except OSError:
            # The reader has closed the pipe or terminal: stop.
            work.stop()
            return


# --- reporting ------------------------------------------------------------------------------------


class IngestReport:
    """Reports the counters of an ingest: as a live line, or as JSON objects."""

    def __init__(self, stream: str, *, is_json: bool, quiet: bool) -> None:
        self.stream = stream
        # PipeOutput, so that a slow reader delays only the counters.
        self._output = PipeOutput(sys.stdout.fileno()) if is_json else None
        shares_terminal = is_json and sys.stdout.isatty()
        self._line = LiveLine(enabled=not quiet and not shares_terminal)
        self._received = 0
        self._at = time.monotonic()

    async def show(self, counters: IngestCounters) -> None:
        """Report the counters. Raises OSError if the reader has closed the output."""
        now = time.monotonic()
        rate = (counters.received - self._received) / max(now - self._at, 1e-3)
        self._received, self._at = counters.received, now
        self._line.show(as_line(counters, rate))
        if self._output is not None:
            await self._output.write(as_json(self.stream, counters, rate))

    def clear(self) -> None:
        """Remove the live line, so that the log can be written."""
        self._line.clear()

    async def end(self, counters: IngestCounters) -> None:
        """Report the counters at the end."""
        LOG.info(
            "%d received; stream %s is stored up to row %d and sealed up to row %d",
            counters.received,
            self.stream,
            counters.stored,
            counters.sealed,
        )
        self.clear()
        if self._output is not None:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._output.write(as_json(self.stream, counters, 0.0))


def as_json(stream: str, counters: IngestCounters, rate: float) -> bytes:
    """The counters as JSON on one line."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    found = {"at": at, "stream": stream, **asdict(counters)}
    found["rate"] = round(rate, 1)
    found["lag"] = round(counters.lag, 3)
    return json.dumps(found).encode() + b"\n"


def as_line(counters: IngestCounters, rate: float) -> str:
    """The counters as a line for a terminal."""
    parts = [
        counters.state,
        f"{counters.received:,} received",
        f"{rate:,.0f}/s",
        f"stored {counters.stored:,}",
        f"sealed {counters.sealed:,}",
        f"lag {counters.lag:.1f} s",
    ]
    if counters.reconnects:
        parts.append(count(counters.reconnects, "reconnect"))
    if counters.sessions_lost:
        parts.append(f"session lost {count(counters.sessions_lost, 'time')}")
    if counters.store != "open":
        parts.append(f"the store is {counters.store}")
    return "  ".join(parts)

"""`semel ingest`: take messages from any broker into a stream, until SIGTERM or Ctrl-C."""

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
from typing import Final, TextIO

import click

from semel import __version__
from semel.broker.log import LogWriter
from semel.cli.pipes import PipeOutput
from semel.cli.safe_text import CLEAR_LINE, MOST_COLUMNS, shown_text
from semel.cli.sections import SECTIONS
from semel.client.errors import Disconnected, Refused
from semel.client.ingest import Ingest, IngestCounters, IngestPlan, make_plan
from semel.client.ingest_settings import IngestSettings
from semel.counts import count
from semel.mqtt.violation import Violation
from semel.settings import Flags, load, options
from semel.store.schema import Unusable
from semel.store.settings import StoreSettings

LOG: Final = logging.getLogger("semel.ingest")

REPORT_SECONDS: Final = 1.0


@click.command
@click.argument("url", required=False, metavar="[URL]")
@options(IngestSettings, StoreSettings)
@click.option(
    "--start-clean",
    is_flag=True,
    help="Begin a new session, and give up what the broker has kept for an old one.",
)
@click.option(
    "--json", "json_wanted", is_flag=True, help="Print the counters every second, as JSON."
)
@click.option("--quiet", is_flag=True, help="Say only what is wrong.")
@click.version_option(__version__, prog_name="semel", message="%(prog)s %(version)s")
def command(
    url: str | None,
    config: Path | None,
    flags: Flags,
    start_clean: bool,
    json_wanted: bool,
    quiet: bool,
) -> None:
    """Take messages from any broker, and record each once in a stream.

    URL is the broker: mqtt://host[:port], or mqtts, ws, wss, unix:path. A message is on disk, in
    one transaction with its packet identifier, before it is acknowledged. SIGTERM and Ctrl-C let
    what has been received be stored and acknowledged first, and the broker keeps the session.

    The store is a folder in --root, or --data. Read what is there by `semel stream read`.
    """
    given = {section: dict(keys) for section, keys in flags.items()}
    if url is not None:
        given["ingest"]["url"] = url
    settings = load(SECTIONS, path=config, environ=os.environ, flags=given)
    plan = make_plan(settings.of(IngestSettings), settings.of(StoreSettings))
    report = IngestReport(plan.stream.name, json_wanted=json_wanted, quiet=quiet)
    log = set_up_log(report, quiet=quiet)
    try:
        run(plan, report, start_clean=start_clean)
    except Disconnected as problem:
        # What led to it is said before it.
        log.flush()
        sentence = shown_text(str(problem))
        if problem.is_final:
            sentence += (
                ". With --start-clean a new one begins, and what the broker has kept in the old"
                " one is given up"
            )
        raise click.ClickException(sentence) from None
    except (Refused, Unusable, Violation) as problem:
        log.flush()
        raise click.ClickException(shown_text(str(problem))) from None


# --- running --------------------------------------------------------------------------------------


def run(plan: IngestPlan, report: "IngestReport", *, start_clean: bool) -> None:
    """Ingest on the quickest loop there is."""
    ingesting = ingest(plan, report, start_clean=start_clean)
    try:
        uvloop = import_module("uvloop")
    except ImportError:
        asyncio.run(ingesting)
    else:
        uvloop.run(ingesting)


async def ingest(plan: IngestPlan, report: "IngestReport", *, start_clean: bool) -> None:
    """Until a signal comes, or there is no use in going on."""
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
    """A report every second."""
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        try:
            await report.show(work.counters)
        except OSError:
            # Nobody reads the counters any more, and so nobody watches.
            work.stop()
            return


# --- showing --------------------------------------------------------------------------------------


class IngestReport:
    """What is told of an ingester at work: a line on a terminal, or objects for a program."""

    def __init__(self, stream: str, *, json_wanted: bool, quiet: bool) -> None:
        self.stream = stream
        # A program that does not read them holds up the counters, and nothing else.
        self._output = PipeOutput(sys.stdout.fileno()) if json_wanted else None
        on_one_screen = json_wanted and sys.stdout.isatty()
        self._has_line = sys.stderr.isatty() and not quiet and not on_one_screen
        self._is_shown = False
        self._received = 0
        self._at = time.monotonic()

    async def show(self, counters: IngestCounters) -> None:
        """Tell how it stands. Raises OSError if nobody reads that."""
        now = time.monotonic()
        rate = (counters.received - self._received) / max(now - self._at, 1e-3)
        self._received, self._at = counters.received, now
        if self._has_line:
            # A line that goes on in a second one could not be written over.
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or MOST_COLUMNS
            line = shown_text(as_line(counters, rate))[: columns - 1]
            sys.stderr.write(f"{CLEAR_LINE}{line}")
            sys.stderr.flush()
            self._is_shown = True
        if self._output is not None:
            await self._output.write(as_json(self.stream, counters, rate))

    def clear(self) -> None:
        """Make place for a line of the log."""
        if self._is_shown:
            sys.stderr.write(CLEAR_LINE)
            self._is_shown = False

    async def end(self, counters: IngestCounters) -> None:
        """Tell how it stood at last."""
        LOG.info(
            "%d received; stream %s is stored up to row %d, and sealed up to row %d",
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
    """The counters for a program, on one line."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    found = {"at": at, "stream": stream, **asdict(counters)}
    found["rate"] = round(rate, 1)
    found["lag"] = round(counters.lag, 3)
    return json.dumps(found).encode() + b"\n"


def as_line(counters: IngestCounters, rate: float) -> str:
    """The counters for a terminal."""
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


class LogLines(logging.StreamHandler[TextIO]):
    """The log, on the terminal that a report may have a line of. A peer's text does no harm."""

    def __init__(self, report: IngestReport) -> None:
        super().__init__(sys.stderr)
        self.report = report

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.exc_info else shown_text(text)

    def emit(self, record: logging.LogRecord) -> None:
        self.report.clear()
        super().emit(record)


class LogFile(LogWriter):
    """The log for a pipe or a file: a reader that is slow or absent does not block the ingest."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return text if record.exc_info else shown_text(text)


def set_up_log(report: IngestReport, *, quiet: bool) -> logging.Handler:
    """Warnings, and if it is not quiet what goes on."""
    is_terminal = sys.stderr.isatty()
    handler = LogLines(report) if is_terminal else LogFile(sys.stderr.fileno())
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING if quiet else logging.INFO)
    return handler

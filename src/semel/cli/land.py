"""`semel land`: the messages of a stream into a Delta table, until SIGTERM or Ctrl-C."""

import json
import logging
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from semel import __version__
from semel.cli.safe_text import CLEAR_LINE, shown_text
from semel.cli.sections import SECTIONS
from semel.counts import count
from semel.extras import MissingExtra
from semel.pipeline.errors import PipelineError
from semel.pipeline.landing import Event, Landing, make_plan
from semel.pipeline.settings import LandSettings
from semel.settings import Flags, load, options

LOG: Final = logging.getLogger("semel.land")


@click.command
@options(LandSettings)
@click.option("--once", is_flag=True, help="Land what is there, and end.")
@click.option("--json", "json_wanted", is_flag=True, help="Print what happens as JSON, by lines.")
@click.option("--quiet", is_flag=True, help="Say only what is wrong.")
@click.version_option(__version__, prog_name="semel", message="%(prog)s %(version)s")
def command(config: Path | None, flags: Flags, once: bool, json_wanted: bool, quiet: bool) -> None:
    """Land the messages of a stream in a Delta table, each exactly once.

    Spark reads the segments in --root and appends them to the table messages in --lake. Every
    message is there once, whatever is killed, moved or started twice: the table itself says which
    rows it has. SIGTERM and Ctrl-C land what is sealed first; a second one ends at once, which
    loses nothing either.
    """
    settings = load(SECTIONS, path=config, environ=os.environ, flags=flags)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        # The bridge to Java logs, with tracebacks, what it raises.
        handler.addFilter(lambda record: "py4j" not in record.pathname)
    report = LandReport(json_wanted=json_wanted, quiet=quiet)
    try:
        landing = Landing(make_plan(settings.of(LandSettings)), report.tell)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: landing.stop())
        landing.run(once=once)
    except (PipelineError, MissingExtra, OSError) as problem:
        sentence = shown_text(" ".join(str(problem).split()))
        at = datetime.now(UTC).isoformat()
        report.tell({"at": at, "event": "failed", "problem": sentence})
        raise click.ClickException(sentence) from None


class LandReport:
    """What is told of a landing: objects for a program, lines for people, one line at work."""

    def __init__(self, *, json_wanted: bool, quiet: bool) -> None:
        self._is_json = json_wanted
        self._is_quiet = quiet
        self._is_terminal = sys.stderr.isatty()

    def tell(self, event: Event) -> None:
        """Tell of an event. That nobody listens any more is no reason to stop landing."""
        try:
            self._tell(event)
        except BrokenPipeError:
            # Python flushes it once more at the end.
            quiet = open(os.devnull, "w")  # noqa: SIM115
            if self._is_json:
                sys.stdout = quiet
            else:
                sys.stderr = quiet
            self._is_json, self._is_quiet = False, True

    def _tell(self, event: Event) -> None:
        if self._is_json:
            print(json.dumps(event), flush=True)
        elif not self._is_quiet and event["event"] != "failed":
            line = as_line(event)
            if self._is_terminal and event["event"] == "batch":
                columns = os.get_terminal_size(sys.stderr.fileno()).columns or len(line) + 1
                sys.stderr.write(f"{CLEAR_LINE}{line[: columns - 1]}")
            else:
                start = CLEAR_LINE if self._is_terminal else ""
                sys.stderr.write(f"{start}{line}\n")
            sys.stderr.flush()


def as_line(event: Event) -> str:
    """An event for people."""
    kind: str = event["event"]
    if kind == "starting":
        return shown_text(
            f"landing stream {event['stream']} of {event['root']} in {event['table']};"
            " Spark takes a while to start"
        )
    if kind == "ready":
        return f"Spark is ready; {count(event['landed_before'], 'row')} landed before"
    if kind == "ended":
        return f"{count(event['landed'], 'row')} landed"
    if kind == "maintenance":
        return f"maintenance: {event['text']}"
    parts = [
        f"batch {event['batch']}",
        count(event["rows"], "row"),
        f"{event['landed']:,} landed",
    ]
    if event["lag_rows"] is not None:
        parts.append(f"{count(event['lag_rows'], 'row')} behind")
    if event["lag_seconds"] is not None:
        parts.append(f"latency {event['lag_seconds']:.1f} s")
    if event["rate"] is not None:
        parts.append(f"{event['rate']:,} rows/s")
    return "  ".join(parts)

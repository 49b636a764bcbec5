"""Run a landing for `semel land` and `semel land backfill`: signals, metrics and output."""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

import click

from semel.cli.errors import sentence_of
from semel.cli.live_line import LiveLine
from semel.cli.safe_text import shown_text
from semel.counts import count
from semel.extras import MissingExtra
from semel.metrics.endpoint import CannotServeMetrics, EndpointThread
from semel.pipeline.errors import PipelineError
from semel.pipeline.landing import Event, Landing
from semel.pipeline.landing_metrics import LandingMetrics, RecordWatch
from semel.pipeline.landing_plan import LandingPlan, make_plan
from semel.pipeline.settings import LandSettings

LOG: Final = logging.getLogger("semel.land")


def run_landing(
    land: LandSettings,
    *,
    once: bool,
    is_json: bool,
    quiet: bool,
    change: Callable[[LandingPlan], LandingPlan] = lambda plan: plan,
) -> None:
    """Land until a signal, or with `once` what is sealed now; `change` may change the plan."""
    report = LandReport(is_json=is_json, quiet=quiet)
    try:
        plan = change(make_plan(land))
        with serving_metrics(land, plan, report.event) as emit:
            landing = Landing(plan, emit)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: landing.stop())
            landing.run(once=once)
    except (PipelineError, CannotServeMetrics, MissingExtra, OSError) as problem:
        sentence = sentence_of(problem)
        at = datetime.now(UTC).isoformat()
        report.event({"at": at, "event": "failed", "problem": sentence})
        raise click.ClickException(sentence) from None


def log_to_stderr() -> None:
    """Print warnings of Spark and of the pipeline, without tracebacks."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    for handler in logging.getLogger().handlers:
        # py4j logs the exceptions that it raises, with tracebacks.
        handler.addFilter(lambda record: "py4j" not in record.pathname)


@contextmanager
def serving_metrics(
    settings: LandSettings, plan: LandingPlan, emit: Callable[[Event], None]
) -> Iterator[Callable[[Event], None]]:
    """Serve metrics during the block, if the settings say so. Yields where to send events.

    Raises CannotServeMetrics.
    """
    if settings.metrics_port is None:
        yield emit
        return
    metrics = LandingMetrics()
    endpoint = EndpointThread(metrics)
    host, port = endpoint.start(settings.metrics_host, settings.metrics_port)
    watch = RecordWatch(plan.root, plan.stream, metrics=metrics)
    watch.start()

    def count_and_emit(event: Event) -> None:
        try:
            metrics.take_event(event)
        except Exception:
            # Whatever is wrong with a number, landing must go on.
            LOG.exception("an event is missing in the metrics")
        # Whoever reads it may ask for the metrics at once.
        emit(event)

    try:
        at = datetime.now(UTC).isoformat()
        emit({"at": at, "event": "metrics", "host": host, "port": port})
        yield count_and_emit
    finally:
        watch.stop()
        endpoint.stop()


class LandReport:
    """Prints the events of a landing: as JSON, or as lines, with batches in a live line."""

    def __init__(self, *, is_json: bool, quiet: bool) -> None:
        self._is_json = is_json
        self._is_quiet = quiet
        self._line = LiveLine()

    def event(self, event: Event) -> None:
        """Print an event. If the reader has closed the pipe, the landing continues."""
        try:
            self._print(event)
        except BrokenPipeError:
            # Python flushes the stream again when it exits.
            devnull = open(os.devnull, "w")  # noqa: SIM115
            if self._is_json:
                sys.stdout = devnull
            else:
                sys.stderr = devnull
            self._is_json, self._is_quiet = False, True

    def _print(self, event: Event) -> None:
        if self._is_json:
            print(json.dumps(event), flush=True)
        elif event["event"] == "failed":
            self._line.clear()
        elif not self._is_quiet:
            if self._line.is_enabled and event["event"] == "batch":
                self._line.show(as_line(event))
            else:
                self._line.print(as_line(event))


def as_line(event: Event) -> str:
    """An event as a line for people."""
    kind: str = event["event"]
    if kind == "starting":
        return shown_text(
            f"landing stream {event['stream']} of {event['root']} in {event['table']};"
            " starting Spark"
        )
    if kind == "ready":
        return f"Spark is ready; {count(event['landed_before'], 'row')} landed before"
    if kind == "ended":
        return f"{count(event['landed'], 'row')} landed"
    if kind == "metrics":
        host = f"[{event['host']}]" if ":" in event["host"] else event["host"]
        return f"serving metrics on http://{host}:{event['port']}/metrics"
    if kind == "maintenance":
        return f"maintenance: {event['text']}"
    parts = [
        f"batch {event['batch']}",
        count(event["rows"], "row"),
        f"{event['landed']:,} landed",
    ]
    rows = {name: number for name, number in event.get("tables", {}).items() if number}
    if rows:
        parts[1] += f" ({', '.join(f'{name} {number:,}' for name, number in rows.items())})"
    if event["lag_rows"] is not None:
        parts.append(f"{count(event['lag_rows'], 'row')} behind")
    if event["lag_seconds"] is not None:
        parts.append(f"latency {event['lag_seconds']:.1f} s")
    if event["rate"] is not None:
        parts.append(f"{event['rate']:,} rows/s")
    return "  ".join(parts)

"""`semel demo`: the whole product under faults, with live totals and a verdict."""

import asyncio
import json
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from semel.cli.flags import QUIET, json_option, shared_option
from semel.cli.live_line import LiveLine
from semel.cli.numbers import MOST_RATE, Duration, IntegerRange, NumberRange
from semel.cli.option_groups import SemelCommand
from semel.cli.safe_text import shown_text
from semel.counts import count
from semel.lab.demo import Demo, DemoFailed, DemoOptions, DemoStatus
from semel.lab.demo_reconciliation import MOST_MESSAGES, Verdict
from semel.lab.fleet.devices import MOST_SEED

MESSAGES: Final = 50_000
LEAST_MESSAGES: Final = 1_000
SECONDS: Final = 180.0
# Seconds between two reports of the numbers: without a terminal, and on one.
PLAIN_SECONDS: Final = 10.0
LINE_SECONDS: Final = 0.25
# The exit code after a signal is this plus the number of the signal.
BY_SIGNAL: Final = 128


@click.command(
    cls=SemelCommand,
    examples=(
        "semel demo",
        "semel demo --seed 7 --count 100000 --duration 300 --data demo-data",
    ),
)
@shared_option(
    "--count",
    "messages",
    type=IntegerRange(LEAST_MESSAGES, MOST_MESSAGES),
    default=MESSAGES,
    show_default=True,
    help="The number of messages that the fleet publishes, at QoS 2.",
)
@shared_option(
    "--duration",
    "seconds",
    type=Duration(10, 86_400),
    default=SECONDS,
    show_default=True,
    help="The planned duration. The demo fails if it takes more than twice as long.",
)
@shared_option(
    "--rate",
    type=NumberRange(1, MOST_RATE),
    help="Messages per second. By default chosen so that Spark has time to start twice.",
)
@shared_option(
    "--seed",
    type=IntegerRange(0, MOST_SEED),
    default=1,
    show_default=True,
    help="Determines devices, messages and faults.",
)
@shared_option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new or empty folder to work in, which is kept. By default a temporary one.",
)
@click.option("--no-land", is_flag=True, help="Run without Spark, and check the broker's record.")
@json_option("Print events as JSON, one object per line.")
@QUIET
def command(
    messages: int,
    seconds: float,
    rate: float | None,
    seed: int,
    data: Path | None,
    no_land: bool,
    is_json: bool,
    quiet: bool,
) -> None:
    """Show that every message lands once, whatever is killed.

    Runs `semel up` with a simulated fleet that publishes at QoS 2, and meanwhile cuts connections,
    repeats packets, and kills broker, sealer and Spark with kill -9, at times that depend on the
    seed. Then compares the messages that the devices published with the rows of the record and of
    the Delta table, one by one. The exit code is 0 only if no message is lost or duplicated.
    """
    with ExitStack() as stack:
        if data is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semel-demo-")))
        else:
            folder = data
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise click.UsageError(f"--data {folder} is not empty: give a new or empty folder")
        display = JsonDisplay() if is_json else Display(lands=not no_land, quiet=quiet)
        options = DemoOptions(folder, messages, seconds, seed, rate, lands=not no_land)
        demo = Demo(options, display.show_status, display.show_event)
        try:
            verdict = asyncio.run(until_signal(demo))
        except Interrupted as interrupted:
            # The terminal may be closed.
            with suppress(OSError):
                display.clear()
                click.echo("interrupted: no result", err=True)
            sys.exit(BY_SIGNAL + interrupted.number)
        except DemoFailed as problem:
            display.clear()
            raise click.ClickException(shown_text(str(problem))) from None
        display.end(demo, verdict)
        sys.exit(0 if verdict.holds else 1)


class Interrupted(Exception):
    """A signal ended the demo before its verdict."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


async def until_signal(demo: Demo) -> Verdict:
    """Run the demo, and return its verdict. Raises Interrupted and DemoFailed."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(demo.run())
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        # The first signal starts the cleanup of all processes, which a second must not cancel.
        if len(received) == 1:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    # SIGHUP: the terminal was closed. With nohup the demo continues without one.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, stop, signal.SIGHUP)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        raise Interrupted(received[0]) from None


class Display:
    """Prints for people: a line per event, and the numbers, on a terminal in a live line."""

    def __init__(self, *, lands: bool, quiet: bool) -> None:
        self._lands = lands
        self._is_quiet = quiet
        self._line = LiveLine(sys.stdout, enabled=not quiet)
        self._every = LINE_SECONDS if self._line.is_enabled else PLAIN_SECONDS
        self._shown_at = 0.0

    def show_status(self, status: DemoStatus) -> None:
        """Show the numbers."""
        now = time.monotonic()
        if self._is_quiet or now - self._shown_at < self._every:
            return
        self._shown_at = now
        line = as_line(status, lands=self._lands)
        if self._line.is_enabled:
            self._line.show(line)
        else:
            click.echo(line)

    def show_event(self, seconds: float, sentence: str) -> None:
        """Print an event."""
        if self._is_quiet:
            return
        self.clear()
        click.echo(f"{seconds:5.0f} s  {shown_text(sentence)}")
        if self._line.is_enabled:
            # Show the numbers again below it at once.
            self._shown_at = 0.0

    def clear(self) -> None:
        """Remove the numbers, so that other text can be written."""
        self._line.clear()

    def end(self, demo: Demo, verdict: Verdict) -> None:
        """Print the faults, the kills and the verdict."""
        self.clear()
        for line in faults_of(verdict):
            click.echo(shown_text(line))
        kills = ", ".join(f"{part} {times}" for part, times in sorted(demo.kills.items()))
        click.echo(f"killed: {kills or 'nothing'}")
        click.echo(str(verdict))


class JsonDisplay:
    """Prints for programs: one JSON object per line."""

    def __init__(self) -> None:
        self._shown_at = 0.0

    def show_status(self, status: DemoStatus) -> None:
        """Print the numbers, once a second."""
        now = time.monotonic()
        if now - self._shown_at >= 1.0:
            self._shown_at = now
            event_object = {**asdict(status), "seconds": round(status.seconds, 1)}
            self._print("status", **event_object)

    def show_event(self, seconds: float, sentence: str) -> None:
        """Print an event."""
        self._print("happened", seconds=round(seconds, 1), text=sentence)

    def clear(self) -> None:
        """Does nothing: there is no live line."""

    def end(self, demo: Demo, verdict: Verdict) -> None:
        """Print the verdict."""
        self._print("ended", **asdict(verdict), holds=verdict.holds, kills=demo.kills)

    def _print(self, event: str, **facts: Any) -> None:
        click.echo(json.dumps({"event": event, **facts}))


def as_line(status: DemoStatus, *, lands: bool) -> str:
    """The progress as one line."""
    landed = f" · landed {status.landed:,}" if lands else ""
    # At the start of the line, because its end is cut on a narrow terminal.
    waiting = f"waiting for {status.waiting} · " if status.waiting else ""
    return (
        f"{status.seconds:5.0f} s  {waiting}published {status.published:,} · redelivered "
        f"{status.redelivered:,} · recorded {status.recorded:,}{landed}"
    )


def faults_of(verdict: Verdict) -> list[str]:
    """The faults of a verdict as lines; empty if it holds."""
    if verdict.holds:
        return []
    lines = ["the totals do not reconcile:", *(f"  {fault}" for fault in verdict.faults)]
    if verdict.more_faults:
        lines.append(f"  and {count(verdict.more_faults, 'more fault')}")
    return lines

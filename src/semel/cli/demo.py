"""`semel demo`: the whole product under faults, with a live account, and a verdict."""

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
from semel.cli.numbers import MOST_RATE, Duration, NumberRange
from semel.cli.option_groups import SemelCommand
from semel.cli.safe_text import shown_text
from semel.counts import count
from semel.lab.demo import Demo, DemoFailed, DemoOptions, DemoStatus
from semel.lab.demo_reconciliation import MOST_MESSAGES, Verdict
from semel.lab.fleet.devices import MOST_SEED

MESSAGES: Final = 50_000
LEAST_MESSAGES: Final = 1_000
SECONDS: Final = 180.0
# Where there is no terminal, numbers are printed so often.
PLAIN_SECONDS: Final = 10.0
LINE_SECONDS: Final = 0.25
# The exit code if a signal ends it is this, and the signal's number.
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
    type=click.IntRange(LEAST_MESSAGES, MOST_MESSAGES),
    default=MESSAGES,
    show_default=True,
    help="Messages that the fleet publishes, at QoS 2.",
)
@shared_option(
    "--duration",
    "seconds",
    type=Duration(10, 86_400),
    default=SECONDS,
    show_default=True,
    help="How long it is to take; after twice as many seconds it is given up.",
)
@shared_option(
    "--rate",
    type=NumberRange(1, MOST_RATE),
    help="Messages per second. Without it: as many as leave Spark the time to start twice.",
)
@shared_option(
    "--seed",
    type=click.IntRange(0, MOST_SEED),
    default=1,
    show_default=True,
    help="Chooses devices, messages and faults.",
)
@shared_option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Work in this folder, which is new or empty, and keep it. Without it: in a temporary one.",
)
@click.option("--no-land", is_flag=True, help="Without Spark: the record of the broker is the end.")
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
    repeats packets, and kills broker, sealer and Spark with kill -9, at moments that the seed
    chooses. Then compares what the devices published with what is in the record and in the Delta
    table, message by message. Ends by itself; exit code 0 only if nothing is lost and nothing
    duplicated.
    """
    with ExitStack() as stack:
        if data is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semel-demo-")))
        else:
            folder = data
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise click.UsageError(f"--data {folder} is not empty: a demo begins with nothing")
        display = JsonDisplay() if is_json else Display(lands=not no_land, quiet=quiet)
        wanted = DemoOptions(folder, messages, seconds, seed, rate, lands=not no_land)
        demo = Demo(wanted, display.tell, display.happened)
        try:
            verdict = asyncio.run(until_signal(demo))
        except Interrupted as interrupted:
            # There may be no terminal any more.
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
    """A signal has ended the demo before its verdict."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


async def until_signal(demo: Demo) -> Verdict:
    """The verdict. Raises Interrupted, and DemoFailed."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(demo.run())
    came: list[int] = []

    def stop(number: int) -> None:
        came.append(number)
        # A second one would cancel what the first has begun: to leave no process behind.
        if len(came) == 1:
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    # Its terminal is closed; but who says nohup wants it to go on without one.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, stop, signal.SIGHUP)
    try:
        return await task
    except asyncio.CancelledError:
        if not came:
            raise
        raise Interrupted(came[0]) from None


class Display:
    """For people: a line per event, and the numbers, on a terminal in a line updated in place."""

    def __init__(self, *, lands: bool, quiet: bool) -> None:
        self._lands = lands
        self._is_quiet = quiet
        self._line = LiveLine(sys.stdout, enabled=not quiet)
        self._every = LINE_SECONDS if self._line.is_enabled else PLAIN_SECONDS
        self._shown_at = 0.0

    def tell(self, status: DemoStatus) -> None:
        """Numbers."""
        now = time.monotonic()
        if self._is_quiet or now - self._shown_at < self._every:
            return
        self._shown_at = now
        line = as_line(status, lands=self._lands)
        if self._line.is_enabled:
            self._line.show(line)
        else:
            click.echo(line)

    def happened(self, seconds: float, sentence: str) -> None:
        """Something happened."""
        if self._is_quiet:
            return
        self.clear()
        click.echo(f"{seconds:5.0f} s  {shown_text(sentence)}")
        if self._line.is_enabled:
            # The numbers are shown again below it.
            self._shown_at = 0.0

    def clear(self) -> None:
        """Remove the numbers, so that other text can be written."""
        self._line.clear()

    def end(self, demo: Demo, verdict: Verdict) -> None:
        """The account."""
        self.clear()
        for line in faults_of(verdict):
            click.echo(shown_text(line))
        kills = ", ".join(f"{part} {times}" for part, times in sorted(demo.kills.items()))
        click.echo(f"killed: {kills or 'nobody'}")
        click.echo(str(verdict))


class JsonDisplay:
    """For programs: one object a line."""

    def __init__(self) -> None:
        self._shown_at = 0.0

    def tell(self, status: DemoStatus) -> None:
        """Numbers, once a second."""
        now = time.monotonic()
        if now - self._shown_at >= 1.0:
            self._shown_at = now
            event_object = {**asdict(status), "seconds": round(status.seconds, 1)}
            self._print("status", **event_object)

    def happened(self, seconds: float, sentence: str) -> None:
        """Something happened."""
        self._print("happened", seconds=round(seconds, 1), text=sentence)

    def clear(self) -> None:
        """There is nothing to clear."""

    def end(self, demo: Demo, verdict: Verdict) -> None:
        """The account."""
        self._print("ended", **asdict(verdict), holds=verdict.holds, kills=demo.kills)

    def _print(self, event: str, **facts: Any) -> None:
        click.echo(json.dumps({"event": event, **facts}))


def as_line(status: DemoStatus, *, lands: bool) -> str:
    """How a demo stands."""
    landed = f" · landed {status.landed:,}" if lands else ""
    # First: what does not fit into the line of a terminal is cut.
    waiting = f"waiting for {status.waiting} · " if status.waiting else ""
    return (
        f"{status.seconds:5.0f} s  {waiting}published {status.published:,} · redelivered "
        f"{status.redelivered:,} · recorded {status.recorded:,}{landed}"
    )


def faults_of(verdict: Verdict) -> list[str]:
    """What is wrong, in words."""
    if verdict.holds:
        return []
    lines = ["the totals do not reconcile:", *(f"  {fault}" for fault in verdict.faults)]
    if verdict.more_faults:
        lines.append(f"  and {count(verdict.more_faults, 'more fault')}")
    return lines

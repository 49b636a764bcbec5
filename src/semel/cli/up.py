"""`semel up`: broker, sealer and landing together, until SIGTERM or Ctrl-C."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from semel import __version__
from semel.broker.settings import LOG_LEVELS
from semel.cli.flags import CONFIG, QUIET, json_option, shared_option
from semel.cli.option_groups import SemelCommand
from semel.cli.output import encoded
from semel.cli.pipes import PipeOutput
from semel.cli.safe_text import CLEAR_LINE, MOST_COLUMNS, shown_text
from semel.cli.sections import SECTIONS
from semel.counts import count
from semel.pipeline.errors import PipelineError
from semel.pipeline.lake_address import local_folder
from semel.settings import CONFIG_VARIABLE, SettingsError, load
from semel.up.lag import Lag
from semel.up.levels import WELL
from semel.up.parts import (
    BROKER,
    LANDING,
    RecordExtent,
    UpPlan,
    as_called,
    check_extras,
    declare,
    extent,
    landed,
    make_lake,
    make_plan,
    parts,
    sections,
    to_try,
)
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

REPORT_SECONDS: Final = 1.0
# Without a terminal, how often it is told how things stand, if they have changed.
QUIET_SECONDS: Final = 60.0
# From then on it is told for how long rows have waited to be landed.
LONG_SECONDS: Final = 5.0
# Lines, or objects, that wait for whoever reads them; more are left out, and counted.
MOST_WAITING: Final = 1_000

STARTING_WORDS: Final = {
    BROKER: "starting",
    LANDING: "Spark starts, which takes its time; the broker takes messages meanwhile",
}
STOPPING_WORDS: Final = {
    BROKER: "stops: it takes nothing any more, and writes what it has",
    LANDING: "lands what is sealed; Ctrl-C again leaves that to the next start",
}


@click.command(
    cls=SemelCommand,
    examples=(
        "semel up",
        "semel up --data /var/lib/semel --host 0.0.0.0 --lake s3://bucket/lake",
        "semel up --no-land --quiet",
    ),
)
@CONFIG
@shared_option("--data", help="The directory for everything that is kept.  [default: semel-data]")
@shared_option("--host", help="The address to listen on.  [default: 127.0.0.1]")
@shared_option("--port", help="The TCP port to listen on.  [default: 1883]")
@shared_option(
    "--root",
    help="Where the record is kept: a directory, or an object store.  [default: <data>/streams]",
)
@shared_option(
    "--lake",
    help="Where the Delta tables are: a directory, or an object store.  [default: <data>/lake]",
)
@shared_option(
    "--interval",
    help="From the beginning of one batch that lands to the next, at least.  [default: 1s]",
)
@click.option(
    "--no-maintenance",
    is_flag=True,
    help="Do not compact the table, clean its log or delete files that it no longer needs.",
)
@click.option("--no-land", is_flag=True, help="Leave the landing out: no Spark, no tables.")
@json_option("Print events as JSON, one object per line.")
@QUIET
@click.version_option(__version__, prog_name="semel", message="%(prog)s %(version)s")
def command(
    config: Path | None,
    data: str | None,
    host: str | None,
    port: str | None,
    root: str | None,
    lake: str | None,
    interval: str | None,
    no_maintenance: bool,
    no_land: bool,
    is_json: bool,
    quiet: bool,
) -> None:
    """Run a broker whose messages land in Delta tables, each once: the whole thing.

    The broker takes MQTT 3.1.1 and 5.0, acknowledges what is on disk, and records every message;
    Spark lands the record in the table messages. A part that dies is started again. Ctrl-C and
    SIGTERM stop all in order: the broker, and then the landing when it has landed what there is. A
    second Ctrl-C leaves that to the next start; nothing is lost by it.

    All other settings come from the file and the environment, as for `semel broker` and `semel
    land`.
    """
    given: dict[str, dict[str, object]] = {
        "broker": {"host": host, "port": port},
        "store": {"data": data, "root": root},
        "land": {
            "lake": lake,
            "interval": interval,
            "maintenance": False if no_maintenance else None,
        },
    }
    flags = {
        name: {key: value for key, value in keys.items() if value is not None}
        for name, keys in given.items()
    }
    if data == "":
        # As an empty variable of a shell gives it. Elsewhere it means what no folder means.
        raise SettingsError(["flag --data: [store] data is empty: give a folder, or leave it out"])
    settings = load(sections(SECTIONS), path=config, environ=os.environ, flags=flags)
    if config is None and CONFIG_VARIABLE in os.environ:
        config = Path(os.environ[CONFIG_VARIABLE])
    plan = make_plan(settings, config=config, lands=not no_land, interval=interval)
    check_extras(plan)
    report = UpReport(plan, is_json=is_json, quiet=quiet)
    try:
        asyncio.run(supervise(plan, report))
    except CannotStart as problem:
        raise click.ClickException(shown_text(str(problem))) from None


async def supervise(plan: UpPlan, report: "UpReport") -> None:
    """Until a signal comes and all parts have ended. Raises CannotStart."""
    loop = asyncio.get_running_loop()

    def tell(event: Event) -> None:
        report.tell(event)
        if plan.lands and (event.kind, event.part) == (READY, BROKER):
            # The root is there now, and may be slow.
            loop.run_in_executor(None, declare, plan)

    supervisor = Supervisor(parts(plan, os.environ), tell)
    report.begin(supervisor)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, supervisor.stop)
    reporting = asyncio.ensure_future(report.keep())
    try:
        await supervisor.run()
        report.end()
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
        await report.close()


# --- showing --------------------------------------------------------------------------------------


class Lines:
    """Lines on their way to a descriptor, which may be slow: nobody waits for it but they."""

    def __init__(self, descriptor: int) -> None:
        self._output = PipeOutput(descriptor)
        self._waiting: deque[bytes] = deque()
        self._is_new = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._writing = asyncio.ensure_future(self._write())
        # How many were left out since the last that was not.
        self.missed = 0

    @property
    def is_closed(self) -> bool:
        """Nobody reads them any more."""
        return self._writing.done()

    @property
    def is_idle(self) -> bool:
        """Whether none waits."""
        return not self._waiting

    def put(self, line: bytes) -> bool:
        """Write this, when it can be; False: it is left out."""
        if len(self._waiting) >= MOST_WAITING or self.is_closed:
            self.missed += 1
            return False
        self.missed = 0
        self._waiting.append(line)
        self._idle.clear()
        self._is_new.set()
        return True

    async def _write(self) -> None:
        try:
            while True:
                await self._is_new.wait()
                self._is_new.clear()
                while self._waiting:
                    await self._output.write(self._waiting[0])
                    self._waiting.popleft()
                self._idle.set()
        except OSError:
            self._waiting.clear()
        finally:
            self._idle.set()

    async def close(self) -> None:
        """Let what waits be read, but not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPORT_SECONDS):
                await self._idle.wait()
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)


class UpReport:
    """What is told of it all: lines for people, with one at the end that lives; objects for
    programs."""

    def __init__(self, plan: UpPlan, *, is_json: bool, quiet: bool) -> None:
        self.plan = plan
        self._is_json = is_json
        self._is_quiet = quiet
        on_one_screen = is_json and sys.stdout.isatty()
        self._has_line = sys.stderr.isatty() and not quiet and not on_one_screen
        self._is_shown = False
        self._at = time.monotonic()
        self._reported_at = self._at
        self._reported: tuple[int, int | None] = (0, None)
        # How far the record was at the start, and is.
        self._first = extent(plan)
        self._now = self._first
        self._rate = 0.0
        # Rows in the table when the landing began, and since; None: it was never ready.
        self._before = 0
        self._since: int | None = None
        # The last row of each node that is in the table; None: nobody has said so yet.
        self._positions: dict[str, int] | None = None
        self._lag = Lag()
        # Why each part died the last time, as long as it was not ready since.
        self._deaths: dict[str, str] = {}
        self._address: tuple[str, int] | None = None

    def begin(self, supervisor: Supervisor) -> None:
        """In the loop, before anything is told."""
        self._supervisor = supervisor
        self._people = Lines(sys.stderr.fileno())
        self._program = Lines(sys.stdout.fileno()) if self._is_json else None
        places = self.plan.places
        self._line("; ".join(f"{name}: {place}" for name, place in places.items()))
        self._object("places", **places)

    # --- what happens -----------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Something happened to a part."""
        if event.kind != PROGRESS:
            facts = {"text": event.text} if event.text else {}
            self._object(event.kind, part=event.part, **facts, **event.facts)
        if event.kind == READY:
            self._ready(event)
        elif event.kind == DIED:
            self._died(event)
        elif event.kind == PROGRESS:
            self._progress(event)
        elif event.kind == STARTING:
            if event.part not in self._deaths:
                self._line(STARTING_WORDS.get(event.part, "starting"), part=event.part)
        elif event.kind == STOPPING:
            self._line(STOPPING_WORDS.get(event.part, "stops"), part=event.part)
        elif event.kind == STOPPED:
            self._line("stopped", part=event.part)
        else:
            # Who does not say how serious it is says something that is not said when all is well.
            level = event.facts.get("level")
            if level in LOG_LEVELS[: LOG_LEVELS.index(self.plan.log_level)]:
                return
            self._line(event.text, part=event.part, is_wrong=level != WELL)

    def _ready(self, event: Event) -> None:
        self._deaths.pop(event.part, None)
        self._line(event.text, part=event.part)
        if event.part == BROKER:
            host, port = str(event.facts["host"]), int(str(event.facts["port"]))
            if self._address != (host, port):
                self._address = (host, port)
                make_lake(self.plan)
                self._invite(host, port)
        elif event.part == LANDING:
            self._before = _number(event.facts.get("landed_before"))
            self._since = 0
            self._take_positions(event)

    def _invite(self, host: str, port: int) -> None:
        program = as_called(sys.argv, os.environ)
        lines = to_try(self.plan, program, host=host, port=port)
        self._object("try", host=host, port=port, commands=lines)
        if not self._is_quiet:
            block = ["", "Try, in another shell in this folder:", *(f"  {line}" for line in lines)]
            self._write("\n".join([*block, "", ""]))

    def _died(self, event: Event) -> None:
        text = " ".join(event.text.split())
        again = event.facts.get("again")
        if self._deaths.get(event.part) == text:
            # Said before; the line that lives tells that it is not there.
            return
        self._deaths[event.part] = text
        words = f"ended: {text}"
        if again is not None:
            words += f". It is started again in {again:g} s"
            if event.part != BROKER:
                words += "; the broker goes on"
        self._line(words, part=event.part, is_wrong=True)

    def _progress(self, event: Event) -> None:
        if event.text == "batch":
            self._since = _number(event.facts.get("landed"))
            latency = event.facts.get("lag_seconds")
            known = latency if isinstance(latency, int | float) else None
            self._lag.note_batch(known, time.monotonic())
            self._take_positions(event)

    def _take_positions(self, event: Event) -> None:
        found = event.facts.get("positions")
        if isinstance(found, dict):
            # It names those nodes that it has to do with now.
            self._positions = {**(self._positions or {}), **found}

    # --- how it stands ----------------------------------------------------------------------------

    async def keep(self) -> None:
        """Tell how it stands, every second."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            if self._program is not None and self._program.is_closed:
                # Nobody reads the objects any more, and so nobody watches.
                self._supervisor.stop()
                return
            self._measure()
            self._object("status", parts=self._supervisor.states, **self.standing())
            now = time.monotonic()
            if self._has_line and self._people.is_idle:
                columns = os.get_terminal_size(sys.stderr.fileno()).columns or MOST_COLUMNS
                # A line that goes on in a second one could not be written over.
                line = shown_text(self.as_line())[: columns - 1]
                self._people.put(encoded(f"{CLEAR_LINE}{line}"))
                self._is_shown = True
            elif not self._has_line and now - self._reported_at >= QUIET_SECONDS:
                self._reported_at = now
                counts = (self._recorded, self._landed)
                if counts != self._reported:
                    self._reported = counts
                    self._line(self.as_line())

    def _measure(self) -> None:
        if self._supervisor.is_stopping:
            # The broker is to be the last who has its store open.
            self._rate = 0.0
            return
        before, self._now = self._recorded, extent(self.plan) or self._now
        now = time.monotonic()
        self._rate = (self._recorded - before) / max(now - self._at, 1e-3)
        self._at = now

    @property
    def _recorded(self) -> int:
        return 0 if self._now is None else self._now.recorded

    @property
    def _landed(self) -> int | None:
        """Up to which row our record has landed; None: unknown.

        The table may have rows of other nodes, and lack those that retention was faster with: so
        this is no number of rows, but what the table says of its positions.
        """
        if self._positions is None or self._now is None or not self._now.node:
            return None
        return _number(self._positions.get(self._now.node))

    def standing(self) -> dict[str, object]:
        """How it stands, with all that was ever recorded, not only since the start."""
        found: dict[str, object] = {"recorded": self._recorded, "rate": round(self._rate, 1)}
        landed = self._landed
        now = time.monotonic()
        self._lag.note_record(self._recorded, landed, now)
        return {
            **found,
            "landed": landed,
            # What is not sealed yet counts too. The landing may be ahead of our last look.
            "lag_rows": None if landed is None else max(0, self._recorded - landed),
            "lag_seconds": self._lag.latency(now),
            "waiting_seconds": None if landed is None else round(self._lag.waiting(now), 1),
            "table_rows": None if self._since is None else self._before + self._since,
        }

    def as_line(self) -> str:
        """How it stands, for people."""
        standing = self.standing()
        words = [f"{standing['recorded']:,} recorded", f"{self._rate:,.0f}/s"]
        if standing["landed"] is not None:
            words.append(f"landed up to row {standing['landed']:,}")
            words.append(f"lag {count(_number(standing['lag_rows']), 'row')}")
            waiting = self._lag.waiting(time.monotonic())
            if waiting >= LONG_SECONDS:
                words[-1] += f" for {waiting:,.0f} s"
        if standing["lag_seconds"] is not None:
            words.append(f"latency {standing['lag_seconds']:.1f} s")
        states = self._supervisor.states
        words += [f"{name} {state}" for name, state in states.items() if state != "ready"]
        return "  ".join(words)

    # --- the end ----------------------------------------------------------------------------------

    def end(self) -> None:
        """The last account."""
        now = extent(self.plan) or self._now or RecordExtent("", 0, 0)
        since = now.recorded - (0 if self._first is None else self._first.recorded)
        facts: dict[str, object] = {"recorded": now.recorded, "recorded_since_start": since}
        words = f"{since:,} recorded since the start; {now.recorded:,} in all"
        if self.plan.lands:
            there: int | None = None
            waiting: int | None = None
            try:
                there = self._there(now)
            except (PipelineError, OSError) as problem:
                words += f"; what has landed cannot be read: {problem}"
            else:
                if there is None:
                    words += "; what has landed is not known, as the landing did not get to tell"
                else:
                    waiting = max(0, now.recorded - there)
                    words += f"; landed up to row {there:,}" if there else "; none has landed"
                    words += f"; {waiting:,} to land at the next start" if waiting else "; lag 0"
            facts |= {"landed": there, "waiting": waiting}
        self._object("ended", **facts)
        self._line(words)

    def _there(self, now: RecordExtent) -> int | None:
        """Up to which row it landed; on an object store, which may not answer, as was said last."""
        if local_folder(self.plan.lake) is None:
            return self._landed
        return landed(self.plan, now.node)

    async def close(self) -> None:
        """Let the last lines be read."""
        if self._is_shown:
            self._people.put(CLEAR_LINE.encode())
        await self._people.close()
        if self._program is not None:
            await self._program.close()

    # --- lines ------------------------------------------------------------------------------------

    def _line(self, text: str, *, part: str = "semel up", is_wrong: bool = False) -> None:
        if self._is_quiet and not is_wrong:
            return
        at = time.strftime("%H:%M:%S")
        self._write(f"{at} {part:<8} {shown_text(text)}\n")

    def _write(self, text: str) -> None:
        clear = CLEAR_LINE if self._is_shown else ""
        if self._people.put(encoded(clear + text)):
            self._is_shown = False

    def _object(self, event: str, **facts: object) -> None:
        if self._program is None:
            return
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        found: dict[str, object] = {"at": at, "event": event}
        if self._program.missed:
            found["missed"] = self._program.missed
        own = {key: value for key, value in facts.items() if key not in found}
        self._program.put(json.dumps({**found, **own}).encode() + b"\n")


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0

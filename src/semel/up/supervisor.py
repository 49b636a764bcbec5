"""Runs several programs as one service: starts them in order, restarts them, stops them in order.

    start     in order: a required part has to be ready before the next one starts
    restart   after a delay that doubles with each death, and is short again after a healthy run
    stop      in the same order: each part ends before the next one is asked to, so that the next
              one can finish what the part before it has left

A `Part` says what to run, how to interpret its output (`parse_line`) and how long it may take to
stop; the supervisor knows nothing else about it. If a required part fails before it was ever ready,
all parts are stopped, and `run` raises `CannotStart` with the reason. Any other failure is
reported, and the part is restarted.

Each part runs under a tether (tether.py), a small process. So Ctrl-C in a terminal reaches only the
supervisor, and no process that a part has started outlives it, even if the supervisor is killed. If
a tether is killed, its part gets SIGTERM, and processes that are still running after `stop_seconds`
are killed (orphans.py). Everything runs in one event loop. At most one line of LONGEST_LINE bytes
of a part's output is in memory; a part that writes faster than its lines are processed blocks.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from semel.up import tether
from semel.up.orphans import Orphans

TETHER: Final = str(Path(tether.__file__).resolve())
LONGEST_LINE: Final = 64 * 1024
READ_BYTES: Final = 64 * 1024
STDOUT: Final = 1
STDERR: Final = 2
# The supervisor gives up after this many deaths of a required part that was never ready and
# reported no reason.
FIRST_ATTEMPTS: Final = 5
NEVER: Final = float("inf")
# How long a part may take to end after a second request to stop.
HURRY_SECONDS: Final = 15.0
# Seconds between checks whether a tether was killed, and for its orphans; and while these are being
# killed.
POLL_SECONDS: Final = 0.5
KILL_SECONDS: Final = 0.05
# How long to read the last output of a killed tether; other processes may keep its pipes open.
LAST_OUTPUT_SECONDS: Final = 1.0

# Kinds of events that a line of a part can report; see `LineEvent`.
READY: Final = "ready"
LOGGED: Final = "logged"
PROBLEM: Final = "problem"
PROGRESS: Final = "progress"
# Kinds of events of the supervisor itself.
STARTING: Final = "starting"
DIED: Final = "died"
STOPPING: Final = "stopping"
STOPPED: Final = "stopped"


class CannotStart(Exception):
    """Why a required part cannot start, in one sentence."""


@dataclass(frozen=True)
class LineEvent:
    """The event that a line of a part reports.

    READY: the part is in service. LOGGED: `text` is one or more lines for people. PROBLEM: `text`
    is the reason why the part is about to exit. PROGRESS: `text` is the name of an event, `facts`
    its fields.
    """

    kind: str
    text: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """A program to keep running."""

    name: str
    command: tuple[str, ...]
    # Takes STDOUT or STDERR, and a line without its newline; None: nothing to report.
    parse_line: Callable[[int, str], LineEvent | None]
    environment: Mapping[str, str] | None = None
    # The other parts are useless without it.
    is_required: bool = False
    # How long it may take to end after SIGTERM before it is killed. A second request to stop sends
    # SIGINT and shortens this to HURRY_SECONDS.
    stop_seconds: float = 60.0


@dataclass(frozen=True)
class RestartDelays:
    """Seconds until a part that died is restarted; doubled with each death."""

    first: float = 1.0
    longest: float = 60.0
    # After a run that was ready for this long, the delay is the first one again.
    healthy: float = 60.0


@dataclass(frozen=True)
class Event:
    """Something that happened to a part."""

    kind: str
    part: str
    text: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


class Supervisor:
    """All parts, from the first start to the last exit."""

    def __init__(
        self,
        parts: Sequence[Part],
        report: Callable[[Event], None],
        *,
        delays: RestartDelays | None = None,
    ) -> None:
        """`report` is called with every event, in the event loop."""
        self.report: Final = report
        self._parts = [_SupervisedPart(part, self, delays or RestartDelays()) for part in parts]
        self._stop_requests = 0
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._failure: str | None = None

    @property
    def states(self) -> dict[str, str]:
        """The state of each part: "waiting", "starting", "ready" or "stopped"."""
        return {each.part.name: each.state for each in self._parts}

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called, or a required part cannot start."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Stop all parts in order. The second call makes them hurry, the third kills them."""
        self._stop_requests += 1
        self._stopping.set()
        if self._stop_requests > 1:
            self._hurrying.set()
        if self._stop_requests > 2:
            for each in self._parts:
                each.request(tether.KILL)

    def fail(self, sentence: str) -> None:
        """Stop all parts because a required one cannot start."""
        if self._failure is None:
            self._failure = sentence
        self._hurrying.set()
        self._stopping.set()

    async def run(self) -> None:
        """Run until `stop` is called and all parts have ended. Raises CannotStart."""
        running: list[asyncio.Task[None]] = []
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            for each in self._parts:
                if self._stopping.is_set():
                    break
                running.append(asyncio.ensure_future(each.keep_running()))
                if each.part.is_required:
                    ready = asyncio.ensure_future(each.was_ready.wait())
                    await asyncio.wait(
                        (ready, stopping, running[-1]), return_when=asyncio.FIRST_COMPLETED
                    )
                    ready.cancel()
            watched = {stopping, *running}
            while watched and not stopping.done():
                done, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {stopping}:
                    # A task that ends before it is stopped has raised an unexpected error.
                    task.result()
            for each, task in zip(self._parts, running, strict=False):
                await each.stop(self._hurrying)
                await task
        finally:
            stopping.cancel()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if self._failure is not None:
            raise CannotStart(self._failure)


class _SupervisedPart:
    """One part, and its current process."""

    def __init__(self, part: Part, supervisor: Supervisor, delays: RestartDelays) -> None:
        self.part = part
        self.state = "waiting"
        self.was_ready = asyncio.Event()
        self._supervisor = supervisor
        self._delays = delays
        self._delay = delays.first
        self._process: asyncio.subprocess.Process | None = None
        self._ready_at = NEVER
        # The last log line of this process, or, if `_has_reason`, its reported reason to exit.
        self._last_line = ""
        self._has_reason = False
        self._deaths = 0
        # It was asked to stop, and is not restarted.
        self._stopping = asyncio.Event()
        # Set when it must be killed, by its tether or by us.
        self._killing = asyncio.Event()
        # It has stopped for good.
        self._ended = asyncio.Event()

    async def keep_running(self) -> None:
        """Start the part, and restart it after each exit until it is asked to stop."""
        try:
            while not self._stopping.is_set() and not self._supervisor.is_stopping:
                code = await self._run()
                if not self._stopping.is_set() and not await self._wait_before_restart(
                    self._reason_of_exit(code)
                ):
                    break
        finally:
            self.state = "stopped"
            self._ended.set()

    async def _wait_before_restart(self, reason: str) -> bool:
        """Report a death, and wait until the restart is due. Returns False if there is none."""
        self._deaths += 1
        if self._supervisor.is_stopping:
            self._report(DIED, reason)
            return False
        if self.part.is_required and not self.was_ready.is_set():
            if self._has_reason or self._deaths == FIRST_ATTEMPTS:
                self._supervisor.fail(f"{self.part.name} cannot start: {reason}")
                return False
        self.state = "waiting"
        self._report(DIED, reason, again=self._delay)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._delay):
                await self._stopping.wait()
        self._delay = min(self._delays.longest, self._delay * 2)
        return True

    def _reason_of_exit(self, code: int) -> str:
        """The reason that it reported, or its exit code and its last line."""
        how = f"exit code {code}"
        if code > tether.BY_SIGNAL:
            number = code - tether.BY_SIGNAL
            name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
            how = f"signal {number}, {name}"
        elif code < 0:
            how = f"its tether was killed by signal {-code}"
        if self._has_reason:
            return self._last_line
        return f"{how}; its last line: {self._last_line}" if self._last_line else how

    async def _run(self) -> int:
        """One process, from its start to its exit; returns the exit code."""
        loop = asyncio.get_running_loop()
        self._last_line, self._has_reason, self._ready_at = "", False, NEVER
        self.state = "starting"
        self._report(STARTING)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                TETHER,
                str(self.part.stop_seconds),
                *self.part.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=None if self.part.environment is None else {**self.part.environment},
                start_new_session=True,
            )
        except OSError as problem:
            # The system lacks memory or processes, which may be temporary: retry as after a death.
            self._last_line = f"it cannot be started: {problem.strerror}"
            return tether.CANNOT_RUN
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            if self._stopping.is_set():
                self.request(tether.TERMINATE)
            # Its outputs reach end of file when all processes of the tether have ended. If the
            # tether is killed, orphans may keep them open.
            await _wait_for_first(
                None,
                asyncio.gather(
                    self._read_lines(STDOUT, process.stdout),
                    self._read_lines(STDERR, process.stderr),
                ),
                self._end_orphans(process),
            )
            code = await process.wait()
        except asyncio.CancelledError:
            # At end of file on its input, the tether ends all its processes.
            if process.stdin is not None:
                process.stdin.close()
            raise
        finally:
            self._process = None
        if loop.time() - self._ready_at >= self._delays.healthy:
            self._delay = self._delays.first
        return code

    async def _end_orphans(self, process: asyncio.subprocess.Process) -> None:
        """After the tether has exited, wait until its orphans have ended; kill them if late."""
        while process.returncode is None:
            # process.wait() would also wait for its outputs, which orphans may keep open.
            await asyncio.sleep(POLL_SECONDS)
        orphans = Orphans(process.pid)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.part.stop_seconds
        while orphans.find():
            if self._killing.is_set() or loop.time() >= deadline:
                orphans.kill()
                await asyncio.sleep(KILL_SECONDS)
            else:
                await _wait_for_first(
                    min(POLL_SECONDS, deadline - loop.time()), self._killing.wait()
                )
        # An orphan that was not found may keep the outputs open, and there may be lines to read.
        await _wait_for_first(max(0.0, deadline - loop.time()), self._killing.wait())
        await asyncio.sleep(LAST_OUTPUT_SECONDS)

    async def _read_lines(self, source: int, stream: asyncio.StreamReader) -> None:
        """Process lines until end of file."""
        rest = b""
        while data := await stream.read(READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._take_line(source, line)
            if len(rest) > LONGEST_LINE:
                self._take_line(source, rest)
                rest = b""
        if rest:
            self._take_line(source, rest)

    def _take_line(self, source: int, line: bytes) -> None:
        text = line[:LONGEST_LINE].decode("utf-8", "replace").rstrip()
        event = self.part.parse_line(source, text) if text else None
        if event is None:
            return
        if event.kind == READY:
            self.state = "ready"
            self._ready_at = asyncio.get_running_loop().time()
            self.was_ready.set()
        elif event.kind == PROBLEM:
            # Keep the first one: the same reason may be written to both outputs.
            if not self._has_reason:
                self._last_line, self._has_reason = event.text, True
            return
        elif event.kind == LOGGED and not self._has_reason:
            self._last_line = event.text.rstrip().rpartition("\n")[2]
        self._supervisor.report(Event(event.kind, self.part.name, event.text, event.facts))

    def request(self, what: bytes) -> None:
        """Send a request to the tether, if one is running."""
        if what == tether.KILL:
            self._killing.set()
        process = self._process
        if process is not None and process.stdin is not None and process.returncode is None:
            with contextlib.suppress(OSError, RuntimeError):
                process.stdin.write(what)

    async def stop(self, hurrying: asyncio.Event) -> None:
        """Stop it and wait; it is killed if it takes too long."""
        self._stopping.set()
        if self._process is not None:
            self._report(STOPPING)
            if not hurrying.is_set():
                self.request(tether.TERMINATE)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.part.stop_seconds
        await _wait_for_first(self.part.stop_seconds, self._ended.wait(), hurrying.wait())
        if not self._ended.is_set() and hurrying.is_set():
            self.request(tether.HURRY)
            deadline = min(deadline, loop.time() + HURRY_SECONDS)
            await _wait_for_first(deadline - loop.time(), self._ended.wait())
        if not self._ended.is_set():
            self._report(LOGGED, "did not stop in time: killed")
            self.request(tether.KILL)
            await self._ended.wait()
        self._report(STOPPED)

    def _report(self, kind: str, text: str = "", **facts: object) -> None:
        self._supervisor.report(Event(kind, self.part.name, text, facts))


async def _wait_for_first(seconds: float | None, *awaited: Awaitable[object]) -> None:
    """Wait until one of these is done, at most this long; cancel the others. Raises its error."""
    tasks = [asyncio.ensure_future(each) for each in awaited]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()

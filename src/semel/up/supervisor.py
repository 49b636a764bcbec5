"""Keeps several programs running that are one thing together: in order, and with nothing left over.

    parts start in their order:  one that is needed has to be ready before the next one starts
    one that dies is started anew:  after a wait that doubles, and is short again after some health
    they stop in the same order:  each ends, with what the one before has left it, before the next

A `Part` says what is run, what its lines mean (`parse_line`), and how it is stopped; the supervisor
knows nothing else of it. A required part that fails before it was ever ready ends everything with
`CannotStart` and its reason. Any other part that fails is reported and restarted.

Each part runs behind a tether (tether.py), a small process of its own: so the terminal's Ctrl-C
reaches the supervisor alone, and nothing that a part has started outlives it, not even if the
supervisor is killed. If a tether is killed, its part gets SIGTERM, and all that is seen of it
(leftovers.py) is killed when its time is up. One loop does it all. Of what parts say, one line each
is in memory, which is cut at LONGEST_LINE bytes; a part whose lines nobody takes waits.
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
from semel.up.leftovers import Leftovers

TETHER: Final = str(Path(tether.__file__).resolve())
LONGEST_LINE: Final = 64 * 1024
READ_BYTES: Final = 64 * 1024
STDOUT: Final = 1
STDERR: Final = 2
# A needed part that was never ready, and does not say why, is given up after so many deaths.
FIRST_ATTEMPTS: Final = 5
NEVER: Final = float("inf")
# After a second request to stop, how long a part may take to end. Who does not want to wait for
# Spark to end in order asks once more.
HURRY_SECONDS: Final = 15.0
# How often it is looked whether a tether was killed and what it has left, and while that is killed.
POLL_SECONDS: Final = 0.5
KILL_SECONDS: Final = 0.05
# How long it is listened to outputs that nobody of ours has.
LAST_WORDS_SECONDS: Final = 1.0

# What a line of a part means; see `LineEvent`.
READY: Final = "ready"
LOGGED: Final = "logged"
PROBLEM: Final = "problem"
PROGRESS: Final = "progress"
# What else is told.
STARTING: Final = "starting"
DIED: Final = "died"
STOPPING: Final = "stopping"
STOPPED: Final = "stopped"


class CannotStart(Exception):
    """Why a part that is needed cannot start, in one sentence."""


@dataclass(frozen=True)
class LineEvent:
    """What a line of a part means.

    READY: it does its work now. SAID: words for people. PROBLEM: why it is about to end. PROGRESS:
    how it stands, in `facts`.
    """

    kind: str
    text: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """A program that is kept running."""

    name: str
    command: tuple[str, ...]
    # Takes STDOUT or STDERR and a line without its end; None: nothing to tell of.
    parse_line: Callable[[int, str], LineEvent | None]
    environment: Mapping[str, str] | None = None
    # Without it there is no use in the others.
    is_needed: bool = False
    # How long it may take to end when it is asked to (SIGTERM); then it is killed. In a hurry it is
    # asked a second time (SIGINT), and has HURRY_SECONDS.
    stop_seconds: float = 60.0


@dataclass(frozen=True)
class RestartDelays:
    """How long a part that died is left alone: seconds, doubled with each death."""

    first: float = 1.0
    longest: float = 60.0
    # One that was ready for so long begins with the first wait again.
    healthy: float = 60.0


@dataclass(frozen=True)
class Event:
    """Something that happened to a part."""

    kind: str
    part: str
    text: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


class Supervisor:
    """All parts, from the first start to the last end."""

    def __init__(
        self,
        parts: Sequence[Part],
        tell: Callable[[Event], None],
        *,
        delays: RestartDelays | None = None,
    ) -> None:
        self._tell = tell
        self._kept = [_Kept(part, self, delays or RestartDelays()) for part in parts]
        # How often it was asked to stop.
        self._asked = 0
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._failure: str | None = None

    @property
    def states(self) -> dict[str, str]:
        """Parts with how they are: "waiting", "starting", "ready" or "stopped"."""
        return {kept.part.name: kept.state for kept in self._kept}

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping.is_set()

    def tell(self, event: Event) -> None:
        """Pass on what a part did."""
        self._tell(event)

    def stop(self) -> None:
        """Stop all in order; asked again, do so in a hurry; asked once more, kill them all."""
        self._asked += 1
        self._stopping.set()
        if self._asked > 1:
            self._hurrying.set()
        if self._asked > 2:
            for kept in self._kept:
                kept.order(tether.KILL)

    def fail(self, sentence: str) -> None:
        """A part that is needed cannot start: stop all."""
        if self._failure is None:
            self._failure = sentence
        self._hurrying.set()
        self._stopping.set()

    async def run(self) -> None:
        """Until `stop` is called and all have ended. Raises CannotStart."""
        keeping: list[asyncio.Task[None]] = []
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            for kept in self._kept:
                if self._stopping.is_set():
                    break
                keeping.append(asyncio.ensure_future(kept.keep()))
                if kept.part.is_needed:
                    ready = asyncio.ensure_future(kept.was_ready.wait())
                    await asyncio.wait(
                        (ready, stopping, keeping[-1]), return_when=asyncio.FIRST_COMPLETED
                    )
                    ready.cancel()
            watched = {stopping, *keeping}
            while watched and not stopping.done():
                done, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {stopping}:
                    # Nothing ends a keeper before its time but a fault of ours.
                    task.result()
            for kept, task in zip(self._kept, keeping, strict=False):
                await kept.end(self._hurrying)
                await task
        finally:
            stopping.cancel()
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
        if self._failure is not None:
            raise CannotStart(self._failure)


class _Kept:
    """One part, and the process that it is now."""

    def __init__(self, part: Part, owner: Supervisor, delays: RestartDelays) -> None:
        self.part = part
        self.state = "waiting"
        self.was_ready = asyncio.Event()
        self._owner = owner
        self._delays = delays
        self._wait = delays.first
        self._process: asyncio.subprocess.Process | None = None
        self._ready_at = NEVER
        # The last sentence of this process, and whether it was meant as the reason of its end.
        self._last = ""
        self._is_reason = False
        self._deaths = 0
        # Asked to end: it is not started again.
        self._ending = asyncio.Event()
        # It is to be killed, whoever does that.
        self._killing = asyncio.Event()
        # It will not run any more.
        self._ended = asyncio.Event()

    async def keep(self) -> None:
        """Start it, again and again, until it is asked to end."""
        try:
            while not self._ending.is_set() and not self._owner.is_stopping:
                code = await self._run()
                if not self._ending.is_set() and not await self._wait_before_restart(
                    self._why(code)
                ):
                    break
        finally:
            self.state = "stopped"
            self._ended.set()

    async def _wait_before_restart(self, why: str) -> bool:
        """It died: tell, and wait until it may be started again. False: never."""
        self._deaths += 1
        if self._owner.is_stopping:
            self._tell(DIED, why)
            return False
        if self.part.is_needed and not self.was_ready.is_set():
            if self._is_reason or self._deaths == FIRST_ATTEMPTS:
                self._owner.fail(f"{self.part.name} cannot start: {why}")
                return False
        self.state = "waiting"
        self._tell(DIED, why, again=self._wait)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait):
                await self._ending.wait()
        self._wait = min(self._delays.longest, self._wait * 2)
        return True

    def _why(self, code: int) -> str:
        """Why it ended, with its last sentence."""
        how = f"exit code {code}"
        if code > tether.BY_SIGNAL:
            number = code - tether.BY_SIGNAL
            name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
            how = f"signal {number}, {name}"
        elif code < 0:
            how = f"its tether was killed by signal {-code}"
        if self._is_reason:
            return self._last
        return f"{how}; its last words: {self._last}" if self._last else how

    async def _run(self) -> int:
        """One process from its start to its end; its exit code."""
        loop = asyncio.get_running_loop()
        self._last, self._is_reason, self._ready_at = "", False, NEVER
        self.state = "starting"
        self._tell(STARTING)
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
            # No memory or no process to be had now: that may change.
            self._last = f"it cannot be started now: {problem.strerror}"
            return tether.NOTHING_TO_RUN
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            if self._ending.is_set():
                self.order(tether.TERMINATE)
            # Its tether ends last, unless somebody kills that.
            await _first(
                None,
                asyncio.gather(
                    self._listen(STDOUT, process.stdout), self._listen(STDERR, process.stderr)
                ),
                self._end_orphans(process),
            )
            code = await process.wait()
        except asyncio.CancelledError:
            # The end of its input is the end of it.
            if process.stdin is not None:
                process.stdin.close()
            raise
        finally:
            self._process = None
        if loop.time() - self._ready_at >= self._delays.healthy:
            self._wait = self._delays.first
        return code

    async def _end_orphans(self, process: asyncio.subprocess.Process) -> None:
        """After the death of a tether: until what it held has ended, or cannot be ended by us."""
        while process.returncode is None:
            # To wait for it would be to wait for its outputs too, which others may have.
            await asyncio.sleep(POLL_SECONDS)
        left = Leftovers(process.pid)
        loop = asyncio.get_running_loop()
        end = loop.time() + self.part.stop_seconds
        while left.find():
            if self._killing.is_set() or loop.time() >= end:
                left.kill()
                await asyncio.sleep(KILL_SECONDS)
            else:
                await _first(min(POLL_SECONDS, end - loop.time()), self._killing.wait())
        # Somebody whom we do not know may have its outputs, and what was said is still in them.
        await _first(max(0.0, end - loop.time()), self._killing.wait())
        await asyncio.sleep(LAST_WORDS_SECONDS)

    async def _listen(self, source: int, stream: asyncio.StreamReader) -> None:
        """Take in lines until there are no more."""
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
        line_event = self.part.parse_line(source, text) if text else None
        if line_event is None:
            return
        if line_event.kind == READY:
            self.state = "ready"
            self._ready_at = asyncio.get_running_loop().time()
            self.was_ready.set()
        elif line_event.kind == PROBLEM:
            # The first is the reason; it may be given on both of its outputs.
            if not self._is_reason:
                self._last, self._is_reason = line_event.text, True
            return
        elif line_event.kind == LOGGED and not self._is_reason:
            self._last = line_event.text
        self._owner.tell(Event(line_event.kind, self.part.name, line_event.text, line_event.facts))

    def order(self, what: bytes) -> None:
        """Have the tether do something, if there is one."""
        if what == tether.KILL:
            self._killing.set()
        process = self._process
        if process is not None and process.stdin is not None and process.returncode is None:
            with contextlib.suppress(OSError, RuntimeError):
                process.stdin.write(what)

    async def end(self, hurrying: asyncio.Event) -> None:
        """Let it finish and end, or kill it; nothing of it is left afterwards."""
        self._ending.set()
        if self._process is not None:
            self._tell(STOPPING)
            if not hurrying.is_set():
                self.order(tether.TERMINATE)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.part.stop_seconds
        await _first(self.part.stop_seconds, self._ended.wait(), hurrying.wait())
        if not self._ended.is_set() and hurrying.is_set():
            self.order(tether.HURRY)
            deadline = min(deadline, loop.time() + HURRY_SECONDS)
            await _first(deadline - loop.time(), self._ended.wait())
        if not self._ended.is_set():
            self._tell(LOGGED, "does not end, and is killed")
            self.order(tether.KILL)
            await self._ended.wait()
        self._tell(STOPPED)

    def _tell(self, kind: str, text: str = "", **facts: object) -> None:
        self._owner.tell(Event(kind, self.part.name, text, facts))


async def _first(seconds: float | None, *awaited: Awaitable[object]) -> None:
    """Until one of them is done, but not longer than this; whatever it raised is raised."""
    tasks = [asyncio.ensure_future(each) for each in awaited]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()

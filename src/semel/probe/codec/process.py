"""The adapter of a codec as a child process that speaks JSON lines.

One JSON object per line, in ASCII. The examiner writes to the standard input of the adapter:

    {"id": 1, "do": "hello"}
    {"id": 2, "do": "decode", "version": "5.0", "direction": "C>S", "hex": "30040001610078"}
    {"id": 3, "do": "encode", "version": "5.0", "packet": {"type": "Publish", "topic_name": "a"}}

and the adapter answers on its standard output, in any order, each request with one of:

    {"id": 1, "name": "my-mqtt", "version": "1.2", "decode": {"5.0": ["Publish", …]}, "encode": …}
    {"id": 2, "packet": {"type": "Publish", …}, "taken": 7}   decoded; `taken` (bytes) is optional
    {"id": 3, "hex": "30040001610078"}                        encoded
    {"id": 2, "refused": "reason"}                            the library refuses it
    {"id": 2, "incomplete": true}                             the library waits for more bytes
    {"id": 2, "cannot": "reason"}                             the library has no such thing
    {"id": 2, "crashed": "reason"}                            the library panicked, the adapter not

`packet_form.py` explains packets. docs/reference/codec-adapter.md is the page for those who write
an adapter. Many requests are sent ahead of their answers. If the adapter ends or falls silent, it
is started again, and the requests without an answer are repeated one by one, so that the one which
caused it is known.
"""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from semel.probe.outcomes import CannotExamine
from semel.probe.packet_form import DEFAULTS

# The kinds of answers.
PACKET: Final = "packet"
BYTES: Final = "hex"
REFUSED: Final = "refused"
INCOMPLETE: Final = "incomplete"
CANNOT: Final = "cannot"
CRASHED: Final = "crashed"
# No answer in time.
SILENT: Final = "silent"
# An answer that is not one of the above, or whose parts have the wrong type.
UNCLEAR: Final = "unclear"

# How many requests are sent ahead of their answers.
WINDOW: Final = 64
# After so many crashes of the process, the examination stops; a silence counts twice.
MOST_FAILURES: Final = 30
# The longest line of an adapter: a packet of 65,535 bytes is 131,070 digits.
LONGEST_LINE: Final = 1 << 22
# How deep an answer may be nested; a packet with user properties has five levels.
DEEPEST: Final = 50
# How much of the standard error is kept for messages, and how many lines that are no answers.
KEPT_STDERR: Final = 4000
KEPT_LINES: Final = 5

Request = Mapping[str, Any]


class TooManyFailures(Exception):
    """The adapter crashed or fell silent too often to go on."""


@dataclass(frozen=True)
class AdapterAnswer:
    """The answer to one request, or what happened instead."""

    kind: str
    # The reason, or the description of a failure.
    text: str = ""
    packet: Mapping[str, Any] = field(default_factory=dict)
    data: bytes = b""
    # How many bytes a decoder took; -1 if the adapter does not tell.
    taken: int = -1
    seconds: float = 0.0
    # How often it was seen: a crash is tried again at once, in a fresh process.
    seen: int = 1

    @property
    def is_failure(self) -> bool:
        """Whether the process did not survive the request, or might not have."""
        return self.kind in (CRASHED, SILENT)

    def as_json(self) -> dict[str, object]:
        """The answer as the adapter gave it; {"silent": …} if it gave none."""
        if self.kind == PACKET:
            taken = {} if self.taken < 0 else {"taken": self.taken}
            return {PACKET: dict(self.packet), **taken}
        return {self.kind: self.data.hex() if self.kind == BYTES else self.text}


@dataclass(frozen=True)
class AdapterHello:
    """What an adapter says about its library."""

    name: str
    version: str
    # By path ("decode", "encode") and version of MQTT: the packet types, as "Publish".
    types: Mapping[str, Mapping[str, frozenset[str]]]
    # Whether the language of the adapter can hold a text with a lone surrogate.
    takes_lone_surrogates: bool

    def has_version(self, version: str) -> bool:
        return any(by_version.get(version) for by_version in self.types.values())

    def has_type(self, path: str, version: str, kind: str) -> bool:
        return kind in self.types[path].get(version, frozenset())


def read_hello(answer: Mapping[str, Any]) -> AdapterHello:
    """The hello of an adapter; raises ValueError with the reason."""
    name, version = answer.get("name"), answer.get("version")
    if not isinstance(name, str) or not isinstance(version, str):
        raise ValueError("name and version must be texts")
    types: dict[str, dict[str, frozenset[str]]] = {}
    for path in ("decode", "encode"):
        by_version = answer.get(path, {})
        if not isinstance(by_version, dict):
            raise ValueError(f"{path} must be an object: packet types by version")
        types[path] = {}
        for each, kinds in by_version.items():
            if each not in ("3.1.1", "5.0"):
                raise ValueError(f"{path} names the version {each!r}; there are 3.1.1 and 5.0")
            unknown = sorted(set(map(str, kinds)) - DEFAULTS.keys())
            if unknown:
                raise ValueError(f"{path} names the packet type {unknown[0]!r}, which is unknown")
            types[path][each] = frozenset(kinds)
    return AdapterHello(name, version, types, bool(answer.get("lone_surrogates", True)))


def read_answer(value: Mapping[str, Any], seconds: float) -> AdapterAnswer:
    """An answer to `decode` or `encode`."""
    if isinstance(value.get(PACKET), dict):
        taken = value.get("taken", -1)
        if isinstance(taken, int):
            return AdapterAnswer(PACKET, packet=value[PACKET], taken=taken, seconds=seconds)
    if isinstance(value.get(BYTES), str):
        with contextlib.suppress(ValueError):
            return AdapterAnswer(BYTES, data=bytes.fromhex(value[BYTES]), seconds=seconds)
    for kind in (REFUSED, CANNOT, CRASHED, INCOMPLETE):
        if kind in value:
            return AdapterAnswer(kind, str(value[kind])[:300], seconds=seconds)
    text = f"the answer is not understood: {json.dumps(value)[:200]}"
    return AdapterAnswer(UNCLEAR, text, seconds=seconds)


class CodecProcess:
    """An adapter that is started again as often as needed. Use `close` at the end."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        timeout: float,
        most_failures: int = MOST_FAILURES,
    ) -> None:
        self.command = list(command)
        self.timeout = timeout
        self.most_failures = most_failures
        self.hello: AdapterHello | None = None
        self.failures = 0
        self.starts = 0
        # Lines on standard output that are no answers.
        self.stray_lines = 0
        self.first_stray_lines: list[str] = []
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = deque[bytes]()
        self._stderr_task: asyncio.Task[None] | None = None
        self._next_id = 0
        # Of the last failure: its kind, how the process ended, and the last line that is no answer.
        self._last_failure = ""
        self._last_words = ""
        self._last_stray = ""

    async def start(self) -> AdapterHello:
        """Start the adapter and exchange hellos. Raises CannotExamine."""
        await self.close()
        shown = shlex.join(self.command)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=LONGEST_LINE,
                # Of its own, so that all of a command such as `npx …` can be ended.
                start_new_session=True,
            )
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise CannotExamine(f"cannot start the adapter {shown!r}: {reason}") from None
        self.starts += 1
        self._stderr.clear()
        self._stderr_task = asyncio.create_task(self._keep_stderr(self._process))
        self._next_id += 1
        number = self._next_id
        await self._write([{"id": number, "do": "hello"}])
        # Longer than for other requests: interpreters and virtual machines start slowly.
        deadline = time.monotonic() + 4 * self.timeout
        while True:
            try:
                line = await self._read_line(deadline - time.monotonic())
            except TimeoutError:
                await self.close()
                raise CannotExamine(
                    f"the adapter {shown!r} did not answer hello within {4 * self.timeout:g} s"
                    + self._stderr_hint()
                ) from None
            if not line:
                code = await self._exit_code()
                raise CannotExamine(
                    f"the adapter {shown!r} ended with exit code {code} before it answered hello"
                    + self._stderr_hint()
                )
            value = self._parse(line)
            if value is None or value.get("id") != number:
                self._count_stray(line)
                continue
            try:
                self.hello = read_hello(value)
            except (ValueError, TypeError) as problem:
                await self.close()
                raise CannotExamine(f"the hello of the adapter {shown!r}: {problem}") from None
            return self.hello

    async def ask_all(
        self, requests: Sequence[Request], keep: Callable[[int, AdapterAnswer], None]
    ) -> None:
        """Ask many requests; `keep` is called with the index of each and its answer, in any order.

        Raises TooManyFailures, and CannotExamine if the adapter does not start again.
        """
        waiting = deque(range(len(requests)))
        while waiting:
            unanswered = await self._ask_ahead(requests, waiting, keep)
            # One of these ended the adapter, or made it fall silent: alone, it does so again.
            for index in unanswered or ():
                keep(index, await self._ask_suspect(requests[index]))

    async def _ask_suspect(self, request: Request) -> AdapterAnswer:
        """Ask a request that may have ended the adapter; if it has, once more."""
        answer = await self._ask_alone(request)
        if answer.kind not in (CRASHED, SILENT) or self._process is not None:
            return answer
        again = await self._ask_alone(request)
        if again.kind == answer.kind:
            return replace(again, seen=3)
        return AdapterAnswer(UNCLEAR, f"{answer.text}; then: {again.kind}", seconds=again.seconds)

    async def _ask_alone(self, request: Request) -> AdapterAnswer:
        found: list[AdapterAnswer] = []
        strays = self.stray_lines
        started = time.monotonic()
        failed = await self._ask_ahead([request], deque([0]), lambda _, each: found.append(each))
        if failed is None:
            return found[0]
        seconds = time.monotonic() - started
        if self._last_failure == CRASHED:
            return AdapterAnswer(CRASHED, self._last_words, seconds=seconds)
        text = f"no answer within {self.timeout:g} s"
        if self.stray_lines > strays:
            text += f"; instead it printed {self._last_stray!r}"
            return AdapterAnswer(UNCLEAR, text, seconds=seconds)
        return AdapterAnswer(SILENT, text, seconds=seconds)

    async def _ask_ahead(
        self,
        requests: Sequence[Request],
        waiting: deque[int],
        keep: Callable[[int, AdapterAnswer], None],
    ) -> list[int] | None:
        """Take requests from `waiting` until none is left (None), or until the process fails.

        Returns those without an answer; the process is then started again.
        """
        if self._process is None:
            await self.start()
        sent: dict[int, tuple[int, float]] = {}
        last = time.monotonic()
        while waiting or sent:
            lines = []
            while waiting and len(sent) < WINDOW:
                index = waiting.popleft()
                self._next_id += 1
                sent[self._next_id] = (index, time.monotonic())
                lines.append({"id": self._next_id, **requests[index]})
            if lines:
                await self._write(lines)
            try:
                line = await self._read_line(last + self.timeout - time.monotonic())
            except TimeoutError:
                return await self._fail(SILENT, sent)
            if not line:
                return await self._fail(CRASHED, sent)
            value = self._parse(line)
            number = None if value is None else value.get("id")
            if value is None or not isinstance(number, int) or number not in sent:
                self._count_stray(line)
                continue
            last = time.monotonic()
            index, since = sent.pop(number)
            keep(index, read_answer(value, last - since))
        return None

    async def _fail(self, kind: str, sent: Mapping[int, tuple[int, float]]) -> list[int]:
        """Count a failure, and end what is left of the process."""
        self._last_failure = kind
        if kind == CRASHED:
            self._last_words = f"the process ended with exit code {await self._exit_code()}"
            self._last_words += self._stderr_hint()
        await self.close()
        self.failures += 2 if kind == SILENT else 1
        if self.failures > self.most_failures:
            raise TooManyFailures(
                "the adapter crashed or fell silent too often: the examination stopped early"
            )
        return [index for index, _ in sent.values()]

    async def _write(self, values: Sequence[Request]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        text = "".join(json.dumps(value) + "\n" for value in values)
        # An adapter that has ended is noticed when it is read.
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(text.encode("ascii"))

    async def _read_line(self, seconds: float) -> bytes:
        """A line of standard output; empty at its end. Raises TimeoutError."""
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(max(seconds, 0)):
            try:
                return await self._process.stdout.readline()
            except ValueError:
                # Longer than LONGEST_LINE: its start is lost.
                return b"(a line that is too long)\n"

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) and not is_nested_deeper(value) else None

    def _count_stray(self, line: bytes) -> None:
        self.stray_lines += 1
        self._last_stray = line[:120].decode("utf-8", "replace").rstrip()
        if len(self.first_stray_lines) < KEPT_LINES:
            self.first_stray_lines.append(self._last_stray)

    async def _keep_stderr(self, process: asyncio.subprocess.Process) -> None:
        """Read the standard error, so that the adapter never waits; keep its end."""
        assert process.stderr is not None
        size = 0
        while piece := await process.stderr.read(1 << 12):
            self._stderr.append(piece)
            size += len(piece)
            while size > KEPT_STDERR and len(self._stderr) > 1:
                size -= len(self._stderr.popleft())

    def _stderr_hint(self) -> str:
        """The last line of the standard error, for messages."""
        lines = b"".join(self._stderr).decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1].strip()[:300]}" if lines else ""

    async def _exit_code(self) -> int:
        assert self._process is not None
        if self._stderr_task is not None:
            await asyncio.wait([self._stderr_task], timeout=1)
        try:
            async with asyncio.timeout(1):
                return await self._process.wait()
        except TimeoutError:
            # It closed its output and goes on without it.
            return 0

    async def close(self) -> None:
        """End the adapter and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if self._stderr_task is not None:
            self._stderr_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._stderr_task
            self._stderr_task = None
        # asyncio would close the pipe only when it is collected.
        transport = getattr(process, "_transport", None)
        if transport is not None:
            transport.close()


def is_nested_deeper(value: object, levels: int = DEEPEST) -> bool:
    """Whether a JSON value has more than these levels of arrays and objects."""
    current: list[object] = [value]
    for _ in range(levels):
        inner: list[object] = []
        for each in current:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        if not inner:
            return False
        current = inner
    return any(isinstance(each, dict | list) for each in current)

"""The supervisor, with small programs that stand in for its parts: real processes, real signals."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from semel.processes import list_processes
from semel.up.orphans import Orphans
from semel.up.supervisor import (
    DIED,
    LOGGED,
    LONGEST_LINE,
    PROBLEM,
    READY,
    STARTING,
    STOPPED,
    STOPPING,
    TETHER,
    CannotStart,
    Event,
    LineEvent,
    Part,
    RestartDelays,
    Supervisor,
)
from semel.up.tether import CANNOT_RUN, TERMINATE
from tests.broker.broker_process import PATIENCE

QUICK = RestartDelays(first=0.01, longest=0.04, healthy=60.0)

# Stand-ins. Each says `ready`, and ends when it is asked to, unless its words say otherwise.
BEGIN = """
import os, signal, subprocess, sys, time
def say(*words): print(*words, flush=True)
def on_term(what): signal.signal(signal.SIGTERM, lambda *_: what())
"""
SERVES = BEGIN + "on_term(lambda: (say('bye'), sys.exit(0)))\nsay('ready')\n" + "time.sleep(600)\n"
STUBBORN = BEGIN + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('ready')\ntime.sleep(600)\n"
# It leaves a child behind that is of another session and does not listen either.
FAMILY = (
    BEGIN
    + "child = subprocess.Popen([sys.executable, '-c', '''if True:\n"
    + "    import os, signal, time\n"
    + "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    + '    print("child", os.getpid(), flush=True)\n'
    + "    time.sleep(600)'''], start_new_session=True, stdout=subprocess.PIPE)\n"
    + "say(child.stdout.readline().decode())\n"
    + "say('pid', os.getpid())\n"
    + "say('ready')\ntime.sleep(600)\n"
)
STUBBORN_FAMILY = BEGIN + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FAMILY


def parse_line(source: int, line: str) -> LineEvent | None:
    if line == "ready":
        return LineEvent(READY, line, {"source": source})
    if line.startswith("Error: "):
        return LineEvent(PROBLEM, line.removeprefix("Error: "))
    return LineEvent(LOGGED, line)


def part(name: str, program: str, *arguments: str, **how: Any) -> Part:
    return Part(name, (sys.executable, "-c", program, *arguments), parse_line, **how)


class Log:
    """What a supervisor tells, to be waited for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()

    def tell(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    def all(self, kind: str, name: str) -> list[Event]:
        return [each for each in self.events if (each.kind, each.part) == (kind, name)]

    def said(self, name: str) -> list[str]:
        return [each.text for each in self.all(LOGGED, name)]

    def numbers(self, word: str) -> list[int]:
        """The numbers that parts said after this word."""
        texts = [each.text.split() for each in self.events if each.kind == LOGGED]
        return [int(words[1]) for words in texts if words[:1] == [word]]

    async def until(self, is_so: Callable[[], object]) -> None:
        while not is_so():
            self._news.clear()
            await self._news.wait()

    async def has(self, kind: str, name: str, *, times: int = 1) -> None:
        await self.until(lambda: len(self.all(kind, name)) >= times)


Story = Callable[[Supervisor, Log], Awaitable[None]]


def supervise(parts: list[Part], story: Story, delays: RestartDelays = QUICK) -> Log:
    """Run parts while the story happens, and stop them when it is told."""

    async def run() -> Log:
        log = Log()
        supervisor = Supervisor(parts, log.tell, delays=delays)
        async with asyncio.timeout(PATIENCE):
            running = asyncio.ensure_future(supervisor.run())
            telling = asyncio.ensure_future(story(supervisor, log))
            await asyncio.wait((running, telling), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                telling.result()
                supervisor.stop()
            try:
                await running
            finally:
                telling.cancel()
        return log

    return asyncio.run(run())


def is_there(pid: int) -> bool:
    return pid in list_processes()


def gone(*pids: int) -> bool:
    """Wait until none of them is there."""
    end = time.monotonic() + PATIENCE
    while any(map(is_there, pids)) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(map(is_there, pids))


# --- order ----------------------------------------------------------------------------------------


def test_parts_start_in_their_order_and_stop_in_the_same() -> None:
    async def story(_: Supervisor, log: Log) -> None:
        await log.has(READY, "third")
        await log.has(READY, "second")

    parts = [part("first", SERVES, is_required=True), part("second", SERVES), part("third", SERVES)]
    log = supervise(parts, story)
    found = [(each.kind, each.part) for each in log.events]
    assert found.index((READY, "first")) < found.index((STARTING, "second"))
    ends = [each for each in found if each[0] in (STOPPING, STOPPED)]
    assert ends == [
        (kind, name) for name in ("first", "second", "third") for kind in (STOPPING, STOPPED)
    ]
    # Each was asked, and none was killed.
    assert [log.said(name)[-1] for name in ("first", "second", "third")] == ["bye"] * 3


def test_a_part_that_is_not_needed_keeps_nobody_waiting() -> None:
    slow = BEGIN + "time.sleep(600)"

    async def story(supervisor: Supervisor, log: Log) -> None:
        await log.has(READY, "second")
        assert supervisor.states == {"first": "starting", "second": "ready"}

    supervise([part("first", slow), part("second", SERVES)], story)


def test_a_stop_while_the_first_part_starts_leaves_the_others_out() -> None:
    slow = BEGIN + "say('slowly'); time.sleep(600)"

    async def story(supervisor: Supervisor, log: Log) -> None:
        await log.has(LOGGED, "first")

    log = supervise([part("first", slow, is_required=True), part("second", SERVES)], story)
    assert log.all(STARTING, "second") == []
    assert log.all(STOPPED, "first") != []


def test_parts_get_their_environment_and_no_terminal_of_ours() -> None:
    program = BEGIN + (
        "say(os.environ['WORD'], os.getsid(0), os.read(0, 1))\nsay('ready')\ntime.sleep(600)\n"
    )

    async def story(_: Supervisor, log: Log) -> None:
        await log.has(READY, "one")

    log = supervise([part("one", program, environment={"WORD": "hello"})], story)
    word, session, read = log.said("one")[0].split()
    assert (word, read) == ("hello", "b''")
    assert int(session) != os.getsid(0)


# --- death ----------------------------------------------------------------------------------------


def test_a_part_that_is_killed_is_started_again_and_its_last_words_are_told() -> None:
    program = BEGIN + "say('pid', os.getpid())\nsay('ready')\nsay('at work')\ntime.sleep(600)\n"

    async def story(_: Supervisor, log: Log) -> None:
        await log.until(lambda: "at work" in log.said("one"))
        os.kill(log.numbers("pid")[0], signal.SIGKILL)
        await log.has(READY, "one", times=2)

    log = supervise([part("one", program), part("two", SERVES)], story)
    (died,) = log.all(DIED, "one")
    assert died.text == "signal 9, SIGKILL; its last line: at work"
    assert log.all(DIED, "two") == []
    assert len(log.all(READY, "two")) == 1


def test_a_part_that_ends_by_itself_is_started_again_too() -> None:
    program = BEGIN + "say('ready')\nsys.exit(0)"

    async def story(_: Supervisor, log: Log) -> None:
        await log.has(READY, "one", times=2)

    log = supervise([part("one", program, is_required=True)], story)
    assert log.all(DIED, "one")[0].text == "exit code 0"


def test_each_wait_is_twice_the_last_up_to_a_bound() -> None:
    async def story(_: Supervisor, log: Log) -> None:
        await log.has(DIED, "one", times=5)

    log = supervise([part("one", BEGIN + "say('ready'); sys.exit(3)")], story)
    delays = [each.facts["again"] for each in log.all(DIED, "one")][:5]
    assert delays == [0.01, 0.02, 0.04, 0.04, 0.04]


def test_a_while_of_health_makes_the_wait_short_again() -> None:
    async def story(_: Supervisor, log: Log) -> None:
        await log.has(DIED, "one", times=4)

    at_once = RestartDelays(first=0.01, longest=0.04, healthy=0.0)
    log = supervise([part("one", BEGIN + "say('ready'); sys.exit(3)")], story, at_once)
    delays = [each.facts["again"] for each in log.all(DIED, "one")][:4]
    # The first wait is doubled after it was used, and health is seen at the next death.
    assert delays == [0.01] * 4


def test_one_that_was_never_ready_was_not_healthy() -> None:
    async def story(_: Supervisor, log: Log) -> None:
        await log.has(DIED, "one", times=3)

    at_once = RestartDelays(first=0.01, longest=0.04, healthy=0.0)
    log = supervise([part("one", BEGIN + "sys.exit(3)")], story, at_once)
    assert [each.facts["again"] for each in log.all(DIED, "one")][:3] == [0.01, 0.02, 0.04]


# --- what cannot start ----------------------------------------------------------------------------


async def forever(_: Supervisor, __: Log) -> None:
    await asyncio.Event().wait()


def test_a_needed_part_that_says_why_it_cannot_start_ends_all_with_its_sentence() -> None:
    program = BEGIN + "say('looking'); say('Error: the port is in use'); sys.exit(1)"
    with pytest.raises(CannotStart) as caught:
        supervise([part("one", program, is_required=True), part("two", SERVES)], forever)
    assert str(caught.value) == "one cannot start: the port is in use"


def test_one_that_was_ready_before_is_tried_again_whatever_it_says(tmp_path: Path) -> None:
    program = BEGIN + (
        "path = sys.argv[1]\n"
        "if os.path.exists(path):\n    say('Error: the port is in use'); sys.exit(1)\n"
        "open(path, 'w').close(); say('ready'); sys.exit(1)\n"
    )

    async def story(_: Supervisor, log: Log) -> None:
        await log.has(DIED, "one", times=3)

    log = supervise([part("one", program, str(tmp_path / "was there"), is_required=True)], story)
    assert [each.text for each in log.all(DIED, "one")][:3] == [
        "exit code 1",
        "the port is in use",
        "the port is in use",
    ]


def test_a_needed_part_that_dies_without_a_word_is_given_up_after_some_attempts() -> None:
    program = BEGIN + "print('KeyError: 3', file=sys.stderr); sys.exit(1)"
    with pytest.raises(CannotStart) as caught:
        supervise([part("one", program, is_required=True)], forever)
    assert str(caught.value) == "one cannot start: exit code 1; its last line: KeyError: 3"


def test_a_part_that_is_not_there_says_so() -> None:
    nothing = Part("one", ("/nonesuch/program",), parse_line, is_required=True)
    with pytest.raises(CannotStart, match=r"/nonesuch/program cannot be run: No such file"):
        supervise([nothing], forever)


def test_a_part_that_is_not_needed_is_tried_until_it_can_start(tmp_path: Path) -> None:
    java = tmp_path / "java"
    program = BEGIN + (
        "if not os.path.exists(sys.argv[1]):\n    say('Error: there is no Java'); sys.exit(1)\n"
    )

    async def story(supervisor: Supervisor, log: Log) -> None:
        await log.has(DIED, "two", times=3)
        assert supervisor.states["one"] == "ready"
        java.touch()
        await log.has(READY, "two")

    tried = program + SERVES.removeprefix(BEGIN)
    log = supervise([part("one", SERVES, is_required=True), part("two", tried, str(java))], story)
    assert {each.text for each in log.all(DIED, "two")} == {"there is no Java"}
    assert log.all(DIED, "one") == []


# --- stopping -------------------------------------------------------------------------------------


# Takes its time when it is asked to end, and none when it is asked twice, however late it looks:
# as a program does that is busy when both requests come.
SLOW = BEGIN + (
    "asked = []\n"
    "def ask(number, _):\n"
    "    asked.append(number); say('asked', len(asked))\n"
    "    if len(asked) == 2: sys.exit(0)\n"
    "numbers = (signal.SIGTERM, signal.SIGINT)\n"
    "for number in numbers: signal.signal(number, ask)\n"
    "say('ready')\n"
    "while True:\n"
    "    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)\n"
    "    time.sleep(0.3)\n"
    "    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)\n"
)


def test_a_second_request_hurries_a_part_that_takes_its_time() -> None:
    async def story(supervisor: Supervisor, log: Log) -> None:
        await log.has(READY, "slow")
        supervisor.stop()
        await log.until(lambda: log.numbers("asked") == [1])
        supervisor.stop()
        await log.has(STOPPED, "slow")

    log = supervise([part("quick", SERVES), part("slow", SLOW)], story)
    assert log.numbers("asked") == [1, 2]
    assert "did not stop in time: killed" not in log.said("slow")


def test_a_second_request_while_another_part_ends_hurries_the_next(tmp_path: Path) -> None:
    # It ends when this file is there.
    go = tmp_path / "go"
    first = BEGIN + (
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "on_term(lambda: say('told'))\nsay('ready')\n"
        "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
    )

    async def story(supervisor: Supervisor, log: Log) -> None:
        await log.has(READY, "first")
        await log.has(READY, "slow")
        supervisor.stop()
        await log.until(lambda: "told" in log.said("first"))
        supervisor.stop()
        go.touch()
        await log.has(STOPPED, "slow")

    log = supervise([part("first", first, str(go)), part("slow", SLOW)], story)
    assert log.numbers("asked") == [1, 2]
    assert "did not stop in time: killed" not in log.said("slow")


def test_one_request_does_not_hurry_anybody() -> None:
    async def story(supervisor: Supervisor, log: Log) -> None:
        await log.has(READY, "slow")

    log = supervise([part("quick", SERVES), part("slow", SLOW, stop_seconds=1.0)], story)
    assert log.numbers("asked") == [1]
    assert "did not stop in time: killed" in log.said("slow")


def test_a_third_request_kills() -> None:
    async def story(supervisor: Supervisor, log: Log) -> None:
        await log.has(READY, "one")
        supervisor.stop()
        await log.has(STOPPING, "one")
        supervisor.stop()
        supervisor.stop()
        await log.has(STOPPED, "one")

    log = supervise([part("one", STUBBORN)], story)
    assert "did not stop in time: killed" not in log.said("one")


def test_a_part_that_does_not_end_is_killed_with_all_that_it_started() -> None:
    async def story(_: Supervisor, log: Log) -> None:
        await log.has(READY, "one")

    log = supervise([part("one", STUBBORN_FAMILY, stop_seconds=0.2)], story)
    assert "did not stop in time: killed" in log.said("one")
    assert gone(*log.numbers("pid"), *log.numbers("child"))


def test_nothing_that_a_part_left_behind_is_there_when_it_is_started_again() -> None:
    async def story(_: Supervisor, log: Log) -> None:
        await log.has(READY, "one")
        (child,) = log.numbers("child")
        assert is_there(child)
        os.kill(log.numbers("pid")[0], signal.SIGKILL)
        await log.has(STARTING, "one", times=2)
        assert not is_there(child)

    log = supervise([part("one", FAMILY, stop_seconds=0.2)], story)
    assert gone(*log.numbers("pid"), *log.numbers("child"))


def test_a_part_whose_tether_is_killed_ends_and_is_started_again() -> None:
    program = BEGIN + (
        "say('tether', os.getppid())\nsay('pid', os.getpid())\n" + SERVES.removeprefix(BEGIN)
    )

    async def story(_: Supervisor, log: Log) -> None:
        await log.has(READY, "one")
        os.kill(log.numbers("tether")[0], signal.SIGKILL)
        await log.has(READY, "one", times=2)
        assert not is_there(log.numbers("pid")[0])

    log = supervise([part("one", program)], story)
    assert "its tether was killed by signal 9" in log.all(DIED, "one")[0].text


UNTETHERED = BEGIN + "say('tether', os.getppid())\n" + STUBBORN_FAMILY.removeprefix(BEGIN)


@pytest.mark.parametrize("requests", [1, 3])
def test_what_does_not_end_is_killed_though_its_tether_was_killed_before(requests: int) -> None:
    async def story(supervisor: Supervisor, log: Log) -> None:
        await log.has(READY, "one")
        (tether,) = log.numbers("tether")
        os.kill(tether, signal.SIGKILL)
        while is_there(tether):
            await asyncio.sleep(0.01)
        for _ in range(requests - 1):
            supervisor.stop()

    # Its time is short for one who asks once; who asks three times does not wait for it.
    seconds = 1.0 if requests == 1 else 2 * PATIENCE
    log = supervise([part("one", UNTETHERED, stop_seconds=seconds)], story)
    assert gone(*log.numbers("pid"), *log.numbers("child"))
    assert len(log.all(STARTING, "one")) == 1


def test_what_a_killed_tether_has_left_is_killed_in_time_and_the_part_starts_again() -> None:
    async def story(_: Supervisor, log: Log) -> None:
        await log.has(READY, "one")
        os.kill(log.numbers("tether")[0], signal.SIGKILL)
        await log.has(READY, "one", times=2)
        assert not is_there(log.numbers("pid")[0])
        assert not is_there(log.numbers("child")[0])

    log = supervise([part("one", UNTETHERED, stop_seconds=0.2)], story)
    assert gone(*log.numbers("pid"), *log.numbers("child"))


def test_processes_of_other_sessions_are_no_orphans() -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (
        subprocess.Popen(sleep, start_new_session=True) as ours,
        subprocess.Popen(sleep, start_new_session=True) as other,
    ):
        left = Orphans(ours.pid)
        assert left.find()
        left.kill()
        assert ours.wait(PATIENCE) == -signal.SIGKILL
        assert not left.find()
        assert other.poll() is None
        other.kill()


SUPERVISOR = """
import asyncio, json, sys
from semel.up.supervisor import Part, Supervisor
from tests.up.test_supervisor import parse_line
def tell(event): print(json.dumps([event.kind, event.text]), flush=True)
async def main():
    part = Part("one", (sys.executable, "-c", sys.argv[1]), parse_line, stop_seconds=0.2)
    await Supervisor([part], tell).run()
asyncio.run(main())
"""


@pytest.mark.parametrize("program", [FAMILY, STUBBORN_FAMILY], ids=["ends", "does not listen"])
def test_nothing_is_left_of_a_supervisor_that_is_killed(program: str) -> None:
    # Whether or not the part ends when it is asked to: its child does not listen.
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pids = []
        for line in process.stdout:
            kind, text = json.loads(line)
            if kind == LOGGED and text:
                pids.append(int(text.split()[1]))
            if kind == READY:
                break
        assert len(pids) == 2
        running = list_processes()
        tethers = [pid for pid, each in running.items() if each.parent == process.pid]
        assert len(tethers) == 1
        assert all(map(is_there, pids))
        process.kill()
    assert gone(*pids, *tethers)


# --- lines ----------------------------------------------------------------------------------------


def test_a_line_that_never_ends_is_heard_in_pieces_and_one_at_the_end_without_its_sign() -> None:
    size = 3 * LONGEST_LINE
    program = BEGIN + f"print('x' * {size}, end='', file=sys.stderr); sys.exit(0)"

    async def story(_: Supervisor, log: Log) -> None:
        await log.has(DIED, "one")

    log = supervise([part("one", program)], story, RestartDelays(first=60.0))
    pieces = log.said("one")
    assert len(pieces) > 1
    assert all(set(piece) == {"x"} and len(piece) <= LONGEST_LINE for piece in pieces)


def test_bytes_that_are_no_text_do_no_harm() -> None:
    program = BEGIN + "os.write(1, b'\\xff\\n\\nready\\n'); time.sleep(600)"

    async def story(_: Supervisor, log: Log) -> None:
        await log.has(READY, "one")

    log = supervise([part("one", program)], story)
    assert log.said("one") == ["�"]
    assert log.all(READY, "one")[0].facts == {"source": 1}


# --- the tether alone -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9),
    ],
)
def test_a_tether_ends_as_its_command_does(program: str, code: int) -> None:
    command = [sys.executable, "-I", "-S", TETHER, "5", sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert process.wait(PATIENCE) == code


def test_a_tether_without_anything_to_run_says_so() -> None:
    command = [sys.executable, "-I", "-S", TETHER, "5", "nonesuch-program"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.read().startswith("Error: nonesuch-program cannot be run")
        assert process.wait(PATIENCE) == CANNOT_RUN


@pytest.mark.parametrize("attempt", range(10))
def test_a_request_that_comes_while_the_command_starts_is_not_lost(attempt: int) -> None:
    command = [sys.executable, "-I", "-S", TETHER, str(PATIENCE), "sleep", "600"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        process.stdin.write(TERMINATE)
        process.stdin.flush()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM

"""The tether of a part: a small process between the supervisor and a command that it runs.

    supervisor ──pipe──▶ tether ──▶ command ──▶ whatever it starts, and they start

Run as a file, `python -I -S tether.py GRACE COMMAND…`; nothing of semel is imported here. It runs
the command in a process group of its own, without a terminal's Ctrl-C, and obeys one byte orders
on its standard input, whose signals go to the command alone, as what it has started is its own to
end:

    T   end: SIGTERM
    H   hurry: SIGINT, after a SIGTERM if there was none yet
    K   kill all of it

Two signals of one kind that come together are one, so hurry is another kind than end: a command
for which each of the two is a request has got two of them then, however late it looks. The end of
the input means that the supervisor is dead, by kill -9 perhaps: the command is asked to end, and
all of it is killed after GRACE seconds.

Nothing outlives the tether. Linux makes it the parent of whatever its descendants leave behind
(PR_SET_CHILD_SUBREAPER), process groups or not, so that it ends when no process is left and not
before; a JVM or a worker whose driver was killed is asked to end, and killed if it does not. If
the tether itself is killed, the command gets SIGTERM (PR_SET_PDEATHSIG). Where there is no such
thing as these two, the command's process group is all that is known of it.

The exit code is that of the command, or 128 and the number of the signal that ended it; 127 if
there was nothing to run.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from typing import Final, NoReturn

TERMINATE: Final = b"T"
HURRY: Final = b"H"
KILL: Final = b"K"

ASKING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NOTHING_TO_RUN: Final = 127
BY_SIGNAL: Final = 128
# How long what a command leaves behind may take to end when it is asked to.
REST_SECONDS: Final = 10.0
# How soon those who were killed, and their children, are looked for again.
POLL_SECONDS: Final = 0.05

IS_LINUX: Final = sys.platform == "linux"
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


class Tether:
    """One command, from its start until nothing is left of it."""

    def __init__(self, command: list[str], grace: float) -> None:
        self._grace = grace
        self._libc = ctypes.CDLL(None) if IS_LINUX else None
        if self._libc is not None:
            self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # The wait status of the command; None: it runs.
        self._status: int | None = None
        # It has got its SIGTERM.
        self._was_asked = False
        self._has_children = True
        # Signals wake the loop: a child has ended, or somebody else asks us to.
        self._wake, wake = os.pipe()
        for end in (self._wake, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # Nobody asks before there is somebody to ask; and a request that comes to the child before
        # it is the command must not meet our handlers there.
        signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in ASKING:
            signal.signal(number, lambda *_: self.ask())
        here = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._become(command, here)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)

    def _become(self, command: list[str], parent: int) -> NoReturn:
        """In the child: run the command."""
        try:
            os.setpgid(0, 0)
            # Python ignores two of them, and what is ignored stays so.
            for number in (*ASKING, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            if self._libc is not None:
                self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            # It may have died before.
            if os.getppid() == parent:
                os.execvp(command[0], command)
        except OSError as problem:
            os.write(2, f"Error: {command[0]} cannot be run: {problem.strerror}\n".encode())
        finally:
            os._exit(NOTHING_TO_RUN)

    def hold(self) -> int:
        """Until nothing is left; the exit code."""
        deadline = float("inf")
        is_open = True
        self._reap()
        while self._status is None:
            left = deadline - time.monotonic()
            if left <= 0:
                self._kill()
                left = POLL_SECONDS
            for descriptor in self._listen(left, with_input=is_open):
                if descriptor != 0:
                    continue
                orders = os.read(0, 64)
                if not orders:
                    is_open = False
                    deadline = time.monotonic() + self._grace
                if not orders or TERMINATE in orders:
                    self.ask()
                if HURRY in orders:
                    self.hurry()
                if KILL in orders:
                    deadline = 0.0
            self._reap()
        self._end_rest(is_open)
        return os.waitstatus_to_exitcode(self._status)

    def _listen(self, seconds: float, *, with_input: bool) -> list[int]:
        """What has something to say, after so many seconds at the most."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if with_input:
            poll.register(0, select.POLLIN)
        timeout = None if seconds == float("inf") else max(0.0, seconds) * 1000
        found = [descriptor for descriptor, _ in poll.poll(timeout)]
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 256):
                pass
        return found

    def ask(self) -> None:
        """Ask the command to end."""
        if self._status is None:
            self._was_asked = True
            self._signal(self._pid, signal.SIGTERM)

    def hurry(self) -> None:
        """Ask the command for the second time; for the first too, if nobody has."""
        if not self._was_asked:
            self.ask()
        if self._status is None:
            self._signal(self._pid, signal.SIGINT)

    def _reap(self) -> None:
        """Take note of who has ended, and let them go."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._status = status

    def _end_rest(self, is_open: bool) -> None:
        """What the command has left behind: ask, wait, and kill."""
        self._reap()
        if self._has_children:
            for pid in self._children():
                self._signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + min(REST_SECONDS, self._grace)
        while self._has_children:
            left = deadline - time.monotonic()
            if left <= 0:
                self._kill()
                left = POLL_SECONDS
            if 0 in self._listen(left, with_input=is_open):
                orders = os.read(0, 64)
                is_open = bool(orders)
                if KILL in orders:
                    deadline = 0.0
            self._reap()
        if not IS_LINUX:
            self._kill()

    def _kill(self) -> None:
        """Kill the command and all that descends from it."""
        if not IS_LINUX:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
            return
        parents = processes()
        ours = [os.getpid()]
        for pid in ours:
            ours += [child for child, parent in parents.items() if parent == pid]
        for pid in ours[1:]:
            self._signal(pid, signal.SIGKILL)

    def _children(self) -> list[int]:
        if not IS_LINUX:
            return []
        return [pid for pid, parent in processes().items() if parent == os.getpid()]

    def _signal(self, pid: int, number: int) -> None:
        # It may be gone, or have become somebody else's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def processes() -> dict[int, int]:
    """All processes with their parents, as /proc has them."""
    return {pid: parent for pid, (parent, _, _) in table().items()}


def table() -> dict[int, tuple[int, int, int]]:
    """All processes with their parents, sessions and times of start, as /proc has them."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # The name of the program, in brackets, may have anything in it.
                state, *numbers = file.read().rpartition(b")")[2].split()
                if state != b"Z":
                    found[int(name)] = (int(numbers[0]), int(numbers[2]), int(numbers[18]))
    return found


def main() -> int:
    """Run what the command line says."""
    code = Tether(sys.argv[2:], float(sys.argv[1])).hold()
    return code if code >= 0 else BY_SIGNAL - code


if __name__ == "__main__":
    sys.exit(main())

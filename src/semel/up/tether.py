"""A small process that runs one command, and ends after everything that the command has started.

    supervisor ──pipe──▶ tether ──▶ command ──▶ its descendants

It is run as a file, `python -I -S tether.py GRACE COMMAND…`, and imports little: it has to start
quickly. The command gets its own process group, so that Ctrl-C in a terminal does not reach it. The
supervisor writes requests of one byte to the tether's standard input. Their signals go to the
command only, which ends its own children:

    T   terminate: SIGTERM
    H   hurry: SIGINT, after a SIGTERM if there was none yet
    K   kill the command and all its descendants

Two pending signals of the same number are delivered as one, so *hurry* has another number than
*terminate*: a command that counts requests gets both, even if it is busy when they arrive. End of
file on the input means that the supervisor has died: the command gets SIGTERM, and after GRACE
seconds everything is killed.

Nothing outlives the tether. Linux makes it the parent of orphaned descendants
(PR_SET_CHILD_SUBREAPER), whatever their process group, so it exits when no process is left; a JVM
or a worker whose driver was killed gets SIGTERM, and SIGKILL if it does not end. If the tether
itself is killed, the command gets SIGTERM (PR_SET_PDEATHSIG). On other systems it knows the
command's process group only.

The exit code is that of the command, or 128 plus the number of the signal that ended it; 127 if the
command could not be run.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from typing import Final, NoReturn

if __name__ == "__main__":
    # An isolated Python finds the standard library only: add the folder that has this semel.
    sys.path.append(os.path.abspath(f"{__file__}/../../.."))

from semel.processes import IS_LINUX, descendants, list_processes

TERMINATE: Final = b"T"
HURRY: Final = b"H"
KILL: Final = b"K"

TERMINATING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
CANNOT_RUN: Final = 127
BY_SIGNAL: Final = 128
# How long orphans of the command have to end after SIGTERM.
ORPHAN_SECONDS: Final = 10.0
# How often to search for processes to kill: those killed may have started others before.
POLL_SECONDS: Final = 0.05

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


class Tether:
    """One command, from its start until nothing of it is left."""

    def __init__(self, command: list[str], grace: float) -> None:
        self._grace = grace
        self._libc = ctypes.CDLL(None) if IS_LINUX else None
        if self._libc is not None:
            self._libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # The wait status of the command; None while it runs.
        self._status: int | None = None
        self._has_sent_term = False
        self._has_children = True
        # Signals wake the loop: a child has ended, or this process was asked to terminate.
        self._wake, wake = os.pipe()
        for end in (self._wake, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # Blocked until the command runs: before that there is no process to pass them on to, and
        # in the child they would run our handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATING)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in TERMINATING:
            signal.signal(number, lambda *_: self.terminate())
        own_pid = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._execute(command, own_pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATING)

    def _execute(self, command: list[str], parent: int) -> NoReturn:
        """Run the command, in the child."""
        try:
            os.setpgid(0, 0)
            # Python ignores the last two, and ignored signals stay ignored after exec.
            for number in (*TERMINATING, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATING)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            if self._libc is not None:
                self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            # The parent may have died before that call.
            if os.getppid() == parent:
                os.execvp(command[0], command)
        except OSError as problem:
            os.write(2, f"Error: {command[0]} cannot be run: {problem.strerror}\n".encode())
        finally:
            os._exit(CANNOT_RUN)

    def run(self) -> int:
        """Serve requests until nothing of the command is left; returns its exit code."""
        deadline = float("inf")
        is_open = True
        self._reap()
        while self._status is None:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self._kill()
                remaining = POLL_SECONDS
            if self._wait(remaining, with_input=is_open):
                requests = os.read(0, 64)
                if not requests:
                    is_open = False
                    deadline = time.monotonic() + self._grace
                if not requests or TERMINATE in requests:
                    self.terminate()
                if HURRY in requests:
                    self.hurry()
                if KILL in requests:
                    deadline = 0.0
            self._reap()
        self._end_orphans(is_open)
        return os.waitstatus_to_exitcode(self._status)

    def _wait(self, seconds: float, *, with_input: bool) -> bool:
        """Wait for a signal or a request. Returns whether there is a request to read."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if with_input:
            poll.register(0, select.POLLIN)
        timeout = None if seconds == float("inf") else max(0.0, seconds) * 1000
        ready = [descriptor for descriptor, _ in poll.poll(timeout)]
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 256):
                pass
        return 0 in ready

    def terminate(self) -> None:
        """Send SIGTERM to the command."""
        if self._status is None:
            self._has_sent_term = True
            self._signal(self._pid, signal.SIGTERM)

    def hurry(self) -> None:
        """Send SIGINT to the command, after SIGTERM."""
        if not self._has_sent_term:
            self.terminate()
        if self._status is None:
            self._signal(self._pid, signal.SIGINT)

    def _reap(self) -> None:
        """Collect the children that have ended."""
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

    def _end_orphans(self, is_open: bool) -> None:
        """End the processes that the command has left running: SIGTERM, then SIGKILL."""
        self._reap()
        if self._has_children:
            for pid, process in list_processes().items():
                if process.parent == os.getpid():
                    self._signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + min(ORPHAN_SECONDS, self._grace)
        while self._has_children:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                self._kill()
                remaining = POLL_SECONDS
            if self._wait(remaining, with_input=is_open):
                requests = os.read(0, 64)
                is_open = bool(requests)
                if KILL in requests:
                    deadline = 0.0
            self._reap()
        if not IS_LINUX:
            self._kill()

    def _kill(self) -> None:
        """Kill the command and all its descendants."""
        if not IS_LINUX:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
            return
        for pid in descendants([os.getpid()], list_processes()):
            self._signal(pid, signal.SIGKILL)

    def _signal(self, pid: int, number: int) -> None:
        # It may have ended, or have changed its user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def main() -> int:
    """Run the command of the command line."""
    code = Tether(sys.argv[2:], float(sys.argv[1])).run()
    return code if code >= 0 else BY_SIGNAL - code


if __name__ == "__main__":
    sys.exit(main())

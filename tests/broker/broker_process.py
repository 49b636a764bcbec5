"""`semel broker` in a process of its own, started as a user would start it."""

import os
import re
import signal
import subprocess
import sys
from threading import Thread
from types import TracebackType

# Generous: it only ends what would hang.
PATIENCE = 180.0

# Hides uvloop, as where it is not installed, or epoll, as on systems that do not have it.
_HIDE_UVLOOP = "import sys; sys.modules['uvloop'] = None; "
_HIDE_EPOLL = "import select; del select.epoll; "
_RUN = "from semel.cli import main; main()"

# A command of a client on asyncio's own loop.
WITHOUT_UVLOOP = _HIDE_UVLOOP + _RUN

# TEST_EPOLL=0: all brokers of these tests are without epoll.
HAS_EPOLL = os.environ.get("TEST_EPOLL") != "0"


def program(*, epoll: bool = HAS_EPOLL) -> list[str]:
    """The arguments of Python that make it `semel`."""
    return ["-m", "semel"] if epoll else ["-c", _HIDE_EPOLL + _RUN]


class Process:
    """A broker on a port that the system chose. As a context, it must also end well."""

    def __init__(self, *arguments: str, epoll: bool = HAS_EPOLL) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *program(epoll=epoll), "broker", "--port", "0", *arguments],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self._stderr = self.process.stderr
        self.log: list[str] = []
        found = None
        # What it has to say about its store comes first.
        while found is None:
            line = self._stderr.readline()
            assert line, "".join(self.log)
            self.log.append(line)
            found = re.search(r"listening on ([\d.]+):(\d+)", line)
        self.address = (found[1], int(found[2]))
        # A pipe that nobody reads fills up, and then the broker would wait for us.
        self._reader = Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        self.log.extend(self._stderr)

    def pause(self) -> None:
        """Let the broker do nothing at all: what is sent to it waits in the system's buffers."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause, if there is one."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Ask the broker to end, and wait until it has. Its exit code."""
        if self.process.poll() is None:
            self.resume()
            self.process.send_signal(number)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._reader.join()
        self._stderr.close()
        return code

    def __enter__(self) -> "Process":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        code = self.stop()
        log = "".join(self.log)
        assert code == 0, log
        # No client, right or wrong, brings the broker to an exception.
        assert "Traceback" not in log, log

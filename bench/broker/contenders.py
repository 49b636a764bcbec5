"""The brokers that are compared. Each is started anew for every run.

    semel      as this interpreter imports it, with its default settings
    Mosquitto  from the system; no persistence, unlimited queues, TCP_NODELAY
    amqtt      from the same environment; 3.1.1 only; anonymous, without the packet-logging plugin
    before     another version of semel, in the environment whose Python BENCH_BEFORE names

Each logs connections to a file, as it does by default.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import semel
from bench.broker.configurations import HOST as HOST
from bench.broker.configurations import PLAIN, TCP, Configuration, write_mosquitto, write_semel
from semel.mqtt import MQTT5, MQTT311

SEMEL: Final = "semel"
MOSQUITTO: Final = "Mosquitto"
AMQTT: Final = "amqtt"
# semel with a store and a stream of every message; not compared by default.
DURABLE: Final = "semel, durable"
BEFORE: Final = "before"
CONTENDERS: Final = (SEMEL, BEFORE, MOSQUITTO, AMQTT)
SPEAKS: Final = {
    SEMEL: (MQTT311, MQTT5),
    BEFORE: (MQTT311, MQTT5),
    MOSQUITTO: (MQTT311, MQTT5),
    AMQTT: (MQTT311,),
}
# The Python of another environment.
BEFORE_VARIABLE: Final = "BENCH_BEFORE"

START_SECONDS: Final = 15.0
STOP_SECONDS: Final = 5.0

_AMQTT_SETTINGS: Final = """
listeners:
  default:
    type: tcp
    bind: {host}:{port}
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""


class DidNotStart(Exception):
    """A broker does not listen; the text has the last line of its log."""


@dataclass(frozen=True)
class Process:
    """A running broker."""

    pid: int
    port: int
    log: Path
    # By listener; `port` is that of the first.
    ports: dict[str, int] = field(default_factory=dict)

    def cpu_ns(self) -> int:
        """Processor time of all its threads, user and system, in nanoseconds.

        This is the CPU-time clock of the process (see clock_getcpuclockid(3)); /proc/<pid>/stat
        counts in steps of 10 ms.
        """
        return time.clock_gettime_ns(~self.pid << 3 | 2)

    def resident_kb(self) -> int:
        """Resident memory (VmRSS)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])


@dataclass
class Family:
    """A broker and its descendants."""

    process: Process
    # By pid: processor time when last seen.
    _children: dict[int, int] = field(default_factory=dict)

    def children(self) -> list[int]:
        """The pids of the descendants."""
        parents: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                # The name may contain anything; it ends at the last parenthesis.
                parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        found: list[int] = []
        generation = [self.process.pid]
        while generation:
            generation = [each for each, parent in parents.items() if parent in generation]
            found += generation
        return found

    def written_bytes(self) -> int:
        """Bytes that the broker itself has written."""
        status = Path(f"/proc/{self.process.pid}/io").read_text()
        return int(status.split("\nwrite_bytes:")[1].split()[0])

    def cpu_ns(self) -> int:
        """Processor time of all of them."""
        return self.process.cpu_ns() + self.children_ns()

    def children_ns(self) -> int:
        """Processor time of all descendants seen so far, including ended ones."""
        for number in self.children():
            with contextlib.suppress(OSError):
                self._children[number] = Process(number, 0, self.process.log).cpu_ns()
        return sum(self._children.values())


def mosquitto_path() -> str | None:
    """The path of Mosquitto, which may be in a directory for administrators."""
    return shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def version_of(name: str) -> str | None:
    """The installed version of a contender; None if it is missing."""
    if name in (SEMEL, DURABLE):
        return semel.__version__
    if name == BEFORE:
        return os.environ.get(BEFORE_VARIABLE)
    if name == AMQTT:
        return installed_version("amqtt") if find_spec("amqtt") else None
    path = mosquitto_path()
    if path is None:
        return None
    # The version is in the first line of its help, which exits with an error code.
    help_text = subprocess.run([path, "-h"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\S+)", help_text)
    return found[1] if found else "?"


def parse_contenders(text: str) -> list[str]:
    """Names of contenders, comma-separated, in any case; empty: all but another semel."""
    known = {name.lower(): name for name in CONTENDERS}
    selected = text.lower().split(",") if text else [name for name in known if name != BEFORE]
    unknown = set(selected) - set(known)
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no contender {', '.join(sorted(unknown))}")
    return [known[name] for name in known if name in selected]


def _command(
    name: str, ports: dict[str, int], folder: Path, configuration: Configuration
) -> list[str]:
    if name in (SEMEL, DURABLE, BEFORE):
        python = os.environ[BEFORE_VARIABLE] if name == BEFORE else sys.executable
        command = [python, "-m", "semel", "broker"]
        if configuration.has_default_listener:
            command += ["--host", HOST, "--port", str(ports[TCP])]
        else:
            command += ["--config", str(write_semel(configuration, ports, folder))]
        if name == DURABLE or configuration.durable:
            command += ["--data", str(folder / "data"), "--stream", "all=#"]
        if configuration.connections:
            command += ["--maximum-connections", str(configuration.connections)]
        return command
    if name == AMQTT:
        settings = folder / "settings"
        settings.write_text(_AMQTT_SETTINGS.format(host=HOST, port=ports[TCP]))
        start = "from amqtt.scripts.broker_script import main; main()"
        return [sys.executable, "-c", start, "-c", str(settings)]
    path = mosquitto_path()
    assert path is not None
    if os.geteuid() == 0:
        # Started by root it changes its user, who must be able to read here.
        folder.chmod(0o755)
    return [path, "-c", str(write_mosquitto(configuration, ports, folder))]


@contextlib.contextmanager
def separate_processors() -> Iterator[set[int]]:
    """Pin the load to one processor in this block, and yield the others for the brokers.

    Otherwise both would share a processor in some runs and not in others.
    """
    processors = os.sched_getaffinity(0)
    own = {max(processors)}
    try:
        os.sched_setaffinity(0, own)
        yield processors - own or processors
    finally:
        os.sched_setaffinity(0, processors)


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def launched(arguments: list[str], port: int, log_path: Path) -> Iterator[Process]:
    """Start a process, which ends with this block; it may not listen yet."""
    with log_path.open("wb") as log:
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield Process(process.pid, port, log_path)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def started(
    name: str, processors: set[int], configuration: Configuration = PLAIN
) -> Iterator[Process]:
    """Start a broker on free ports for this block."""
    with tempfile.TemporaryDirectory(prefix="semel-bench-") as folder:
        ports = {listener: free_port() for listener in configuration.listeners}
        first = ports[configuration.listeners[0]]
        arguments = _command(name, ports, Path(folder), configuration)
        with launched(arguments, first, Path(folder) / "log") as process:
            os.sched_setaffinity(process.pid, processors)
            _wait_for_listener(process)
            yield replace(process, ports=ports)


def has_ended(pid: int) -> bool:
    """Whether a child process has ended, even if it has not been waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def last_log_line(log_path: Path) -> str:
    """The last line that a process wrote."""
    lines = log_path.read_text(errors="replace").splitlines()
    return lines[-1] if lines else "it says nothing"


def _wait_for_listener(process: Process) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and not has_ended(process.pid):
        with contextlib.suppress(OSError), socket.create_connection((HOST, process.port), 1):
            return
        time.sleep(0.02)
    raise DidNotStart(f"does not listen: {last_log_line(process.log)}")

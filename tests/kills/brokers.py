"""Brokers in processes of their own, started again and again on one port and one folder."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.kills import wire

# Generous: it only ends what would hang.
PATIENCE = 60.0
# The name of the stream that has everything.
STREAM = "all"


def free_port() -> int:
    """A port where nobody listens, and that the system gives to nobody by itself.

    A client that calls its own machine at a port of the system's own range may, while no broker
    listens there, be given that port for its own end, and so be connected to itself.
    """
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def children(pid: int) -> dict[int, str]:
    """The processes that a process has started and that still run, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name, in brackets, may have anything in it; state and parent follow.
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found[int(entry.name)] = command
    return found


def is_alive(pid: int) -> bool:
    return _fields(pid)[0] not in ("Z", "")


def started_at(pid: int) -> str:
    """When a process was started, in ticks of the kernel; nothing if there is none."""
    return _fields(pid)[19]


def _fields(pid: int) -> list[str]:
    """What the kernel says of a process after its name: its state, and more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return [""] * 20


class Broker:
    """A program that serves MQTT on `port`, and that nobody minds being killed."""

    def __init__(self, port: int, folder: Path, command: list[str], data: Path | None) -> None:
        self.port = port
        self.folder = folder
        self.command = command
        # Where `semel broker` keeps its store, if it does.
        self.data = data
        self.log = folder / "broker.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        # Every process that a broker of ours has started.
        # By number, with the moment of its start: numbers come again.
        self.helpers: dict[int, str] = {}

    @property
    def running(self) -> subprocess.Popen[bytes]:
        assert self.process is not None
        return self.process

    def start(self) -> None:
        """Start it; that does not wait for anything."""
        with self.log.open("ab") as log:
            self.started = time.monotonic()
            # A session of its own, so that it can be killed with all that it has started.
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, start_new_session=True
            )

    def serve_seconds(self) -> float:
        """Wait until a CONNECT is answered: how long that took since the start."""
        while time.monotonic() - self.started < PATIENCE:
            if self.running.poll() is not None:
                break
            if self._is_serving():
                return time.monotonic() - self.started
            time.sleep(0.005)
        raise AssertionError(f"it does not serve:\n{self.tail()}")

    def _is_serving(self) -> bool:
        hello = wire.connect("probe", wire.V311, clean=True)
        try:
            with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as probe:
                probe.sendall(hello)
                answer = probe.recv(4)
                probe.sendall(wire.disconnect())
        except OSError:
            return False
        return answer == b"\x20\x02\x00\x00"

    def sealers(self) -> list[int]:
        """The processes that it has started and that run now."""
        if self.data is None:
            return []
        found = list(children(self.running.pid))
        for pid in found:
            self.helpers[pid] = started_at(pid)
        return found

    def kill(self) -> None:
        """End the broker alone, at once."""
        self.sealers()
        self.running.kill()
        self.running.wait()

    def kill_all(self) -> None:
        """End the broker and all that it has started, at once."""
        sealers = self.sealers()
        os.killpg(self.running.pid, signal.SIGKILL)
        for pid in sealers:
            # It may be the head of a group of its own.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.running.wait()

    def terminate(self) -> int:
        """Ask it to end, and wait: its exit code."""
        self.sealers()
        self.running.terminate()
        return self.running.wait(PATIENCE)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])

    def end(self) -> list[int]:
        """Kill whatever still runs. Those among what it started that had not ended by itself."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        until = time.monotonic() + PATIENCE
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(0.02)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return left

    def _left(self) -> list[int]:
        return [pid for pid, at in self.helpers.items() if is_alive(pid) and started_at(pid) == at]


def semel(
    port: int, folder: Path, *arguments: str, keeps: bool = True, streams: bool = True
) -> Broker:
    """`semel broker`, with a store or without. No queue of a sleeper is ever full."""
    data = folder / "data" if keeps else None
    command = [sys.executable, "-m", "semel", "broker", "--port", str(port)]
    command += ["--maximum-queued-messages", "1000000", *arguments]
    if data is not None:
        command += ["--data", str(data)]
        if streams:
            command += ["--stream", f"{STREAM}=#"]
    return Broker(port, folder, command, data)


def mosquitto(port: int, folder: Path) -> Broker:
    """Mosquitto with persistence as its manual describes it."""
    configuration = folder / "mosquitto.conf"
    configuration.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence true\n"
        f"persistence_location {folder}/\nmax_queued_messages 0\nmax_inflight_messages 200\n"
        "user root\n"
    )
    return Broker(port, folder, ["mosquitto", "-c", str(configuration)], None)

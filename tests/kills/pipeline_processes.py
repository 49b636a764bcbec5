"""`semel land` and `semel ingest` in processes of their own, killed in part or as a whole.

A landing is a tree: the driver, which is Python, the JVM that it starts, the Python workers of
that, and the process that maintains the table. These have process groups of their own, and the last
has a session of its own. All of them have a variable of their environment in common, by which they
are found also when the driver is no more.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from semel.processes import list_processes
from tests.kills.brokers import STREAM, Broker

# Generous: it only ends what would hang. Spark takes 10 seconds to start, and a minute on a
# machine that has much else to do.
PATIENCE = 300.0
# How a landing is killed.
TREE = "tree"
DRIVER = "driver"
JVM = "jvm"
WORKERS = "workers"
MAINTENANCE = "maintenance"
# The variable with which all processes of a landing begin.
MARK = "TEST_LANDING"
WAYS = (TREE, DRIVER, JVM, WORKERS, MAINTENANCE)


def members(mark: str) -> dict[int, str]:
    """The processes that have this mark and still run, with their command lines."""
    found = {}
    line = f"{MARK}={mark}".encode()
    for pid in list_processes():
        try:
            if line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                found[pid] = command.decode(errors="replace")
        except OSError:
            continue
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class SparkProcess:
    """A program that runs Spark.

    What it says goes to files, so that there is no pipe to fill.
    """

    def __init__(self, folder: Path, name: str, arguments: list[str]) -> None:
        self.said = folder / f"{name}.jsonl"
        self.log = folder / f"{name}.log"
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        # What a killed Spark leaves behind is to go with the folder.
        environment = {**os.environ, "TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}
        self.mark = environment[MARK] = secrets.token_hex(8)
        with self.said.open("wb") as said, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.started = time.monotonic()

    def events(self) -> list[dict[str, Any]]:
        """All that it has told, by whole lines."""
        data = self.said.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        return [json.loads(line) for line in whole.splitlines()]

    def count(self, kind: str) -> int:
        return sum(event["event"] == kind for event in self.events())

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def targets(self, way: str) -> list[int]:
        """Whom a kill of this way is for, of those that run now."""
        running = members(self.mark)
        java = [pid for pid, command in running.items() if "org.apache.spark" in command]
        if way == TREE:
            # Who would note that a batch is done comes first: else it has the longest time for it.
            return sorted(running, key=lambda pid: pid not in java)
        if way == DRIVER:
            return [self.process.pid]
        if way == JVM:
            return java
        maintaining = [
            pid for pid, command in running.items() if "semel.pipeline.maintenance" in command
        ]
        if way == MAINTENANCE:
            return maintaining
        return [pid for pid in running if pid not in (self.process.pid, *java, *maintaining)]

    def finish_tree(self) -> None:
        """Kill whatever of the tree was born meanwhile."""
        while left := members(self.mark):
            kill(list(left))
            time.sleep(0.001)
            self.process.poll()

    def survivors(self) -> list[int]:
        self.process.poll()
        return list(members(self.mark))

    def tail(self) -> str:
        lines = self.said.read_text(errors="replace").splitlines()[-5:]
        return "\n".join([*lines, *self.log.read_text(errors="replace").splitlines()[-40:]])

    def end(self) -> None:
        self.finish_tree()
        self.process.wait()


class Landing(SparkProcess):
    """One run of `semel land`, or of a command of it such as `retry`."""

    def __init__(
        self, folder: Path, number: int, arguments: list[str], command: tuple[str, ...] = ()
    ) -> None:
        super().__init__(
            folder, f"land-{number}", ["semel", "land", *command, "--json", *arguments]
        )

    def ready_seconds(self) -> float:
        """How long it took until it was ready, which it is."""
        moments = {each["event"]: datetime.fromisoformat(each["at"]) for each in self.events()}
        return (moments["ready"] - moments["starting"]).total_seconds()


class Recorder(Broker):
    """`semel ingest` into a root that others seal in, too, as a node of its own."""

    def __init__(self, port: int, folder: Path, root: Path, *arguments: str) -> None:
        folder.mkdir(exist_ok=True)
        data = folder / "data"
        command = [sys.executable, "-m", "semel", "ingest", f"mqtt://127.0.0.1:{port}"]
        command += ["--topic", "load/#", "--stream", STREAM, "--root", str(root)]
        command += ["--data", str(data), "--longest-wait", "200ms", *arguments]
        super().__init__(0, folder, command, data)

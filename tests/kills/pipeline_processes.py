"""`semel land` and `semel ingest` in processes of their own, killed in part or as a whole.

A landing is a tree: the driver, which is Python, the JVM that it starts, the Python workers of
that, and the process that maintains the table. These have process groups of their own. All of them
are in one session, by which they are found also when the driver is no more.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

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
WAYS = (TREE, DRIVER, JVM, WORKERS, MAINTENANCE)


def members(session: int) -> dict[int, str]:
    """The processes of a session that still run, with their command lines."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            # The name, in brackets, may have anything in it; state, parent, group, session follow.
            stat = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if int(stat[3]) != session or stat[0] in "ZX":
                continue
            command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        found[int(name)] = command.decode(errors="replace")
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Landing:
    """One run of `semel land`, or of a command of it such as `retry`.

    What it says goes to files, so that there is no pipe to fill.
    """

    def __init__(
        self, folder: Path, number: int, arguments: list[str], command: tuple[str, ...] = ()
    ) -> None:
        self.said = folder / f"land-{number}.jsonl"
        self.log = folder / f"land-{number}.log"
        temporary = folder / "tmp"
        temporary.mkdir(exist_ok=True)
        # What a killed Spark leaves behind is to go with the folder.
        environment = {**os.environ, "TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}
        with self.said.open("wb") as said, self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "semel", "land", *command, "--json", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.started = time.monotonic()

    @property
    def session(self) -> int:
        return self.process.pid

    def events(self) -> list[dict[str, Any]]:
        """All that it has told, by whole lines."""
        data = self.said.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        return [json.loads(line) for line in whole.splitlines()]

    def count(self, kind: str) -> int:
        return sum(event["event"] == kind for event in self.events())

    def ready_seconds(self) -> float:
        """How long it took until it was ready, which it is."""
        moments = {each["event"]: datetime.fromisoformat(each["at"]) for each in self.events()}
        return (moments["ready"] - moments["starting"]).total_seconds()

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def targets(self, way: str) -> list[int]:
        """Whom a kill of this way is for, of those that run now."""
        running = members(self.session)
        java = [pid for pid, command in running.items() if "org.apache.spark" in command]
        if way == TREE:
            # Who would note that a batch is done comes first: else it has the longest time for it.
            return sorted(running, key=lambda pid: pid not in java)
        if way == DRIVER:
            return [self.session]
        if way == JVM:
            return java
        maintaining = [
            pid for pid, command in running.items() if "semel.pipeline.maintenance" in command
        ]
        if way == MAINTENANCE:
            return maintaining
        return [pid for pid in running if pid not in (self.session, *java, *maintaining)]

    def finish_tree(self) -> None:
        """Kill whatever of the tree was born meanwhile."""
        while left := members(self.session):
            kill(list(left))
            time.sleep(0.001)
            self.process.poll()

    def survivors(self) -> list[int]:
        self.process.poll()
        return list(members(self.session))

    def tail(self) -> str:
        lines = self.said.read_text(errors="replace").splitlines()[-5:]
        return "\n".join([*lines, *self.log.read_text(errors="replace").splitlines()[-40:]])

    def end(self) -> None:
        self.finish_tree()
        self.process.wait()


class Recorder(Broker):
    """`semel ingest` into a root that others seal in, too, as a node of its own."""

    def __init__(self, port: int, folder: Path, root: Path, *arguments: str) -> None:
        folder.mkdir(exist_ok=True)
        data = folder / "data"
        command = [sys.executable, "-m", "semel", "ingest", f"mqtt://127.0.0.1:{port}"]
        command += ["--topic", "load/#", "--stream", STREAM, "--root", str(root)]
        command += ["--data", str(data), "--longest-wait", "200ms", *arguments]
        super().__init__(0, folder, command, data)

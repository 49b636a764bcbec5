"""A Spark cluster on one machine: a master and workers, as processes, by Spark's own scripts.

They listen on this machine only, on ports that are free, and keep all files in one folder. Each is
on a tether (`semel.up.tether`), so that nothing outlives a test, not even one that is killed: what
a worker has started, executors and their Python, ends with it.
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Final

import pyspark

from semel.pipeline.java import java_home, require_java
from semel.up import tether

# Generous: it only ends what would hang.
PATIENCE: Final = 300.0
GRACE: Final = "5"
SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"
MASTER: Final = re.compile(r"spark://127\.0\.0\.1:\d+")
REGISTERED: Final = re.compile(r"Successfully registered with master")
# A worker has room for one executor, and two need not be large.
MEMORY: Final = "600m"
SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DEFAULTS: Final = f"""\
spark.executor.extraJavaOptions {SHORT_LIVED}
spark.executor.memory 512m
spark.driver.memory 512m
"""
# A command with a file system of its own at a path that nobody else sees; the path comes after it.
HIDING: Final = (
    *("unshare", "--mount", "--propagation", "private"),
    *("sh", "-c", 'mount -t tmpfs tmpfs "$0" && exec "$@"'),
)
# By what the cluster says a test knows that it is there.
LOG: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
logger.deploy.name = org.apache.spark.deploy
logger.deploy.level = info
"""


class Part:
    """A process of a cluster, and what it says."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.name = " ".join(command)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", tether.__file__, GRACE, *command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        self._lines: SimpleQueue[str] = SimpleQueue()
        # Read to its end, so that it never has to wait for us.
        self._reader = threading.Thread(
            target=_read, args=(self._process.stderr, self._lines), daemon=True
        )
        self._reader.start()

    def says(self, sign: re.Pattern[str]) -> str:
        """Wait until it says something; that part of it."""
        said = []
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self._process.poll() is None:
            with suppress(Empty):
                said.append(self._lines.get(timeout=0.1))
                found = sign.search(said[-1])
                if found is not None:
                    return found[0]
        raise AssertionError(f"{self.name} did not start: {''.join(said)}")

    def let_go(self) -> None:
        """It is to end, with all that it has started."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> None:
        """Until nothing is left of it."""
        self._process.wait()
        self._reader.join()


def _read(source: IO[str], lines: "SimpleQueue[str]") -> None:
    with source:
        for line in source:
            lines.put(line)


class Cluster:
    """A master and its workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master = ""
        self._parts: list[Part] = []
        settings = folder / "conf"
        settings.mkdir(parents=True)
        (settings / "spark-defaults.conf").write_text(DEFAULTS)
        (settings / "log4j2.properties").write_text(LOG)
        (folder / "local").mkdir()
        self._places = {
            "SPARK_CONF_DIR": str(settings),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
        }

    def environment(self) -> dict[str, str]:
        """What a program needs that has this cluster work for it."""
        return os.environ | self._places

    def start(self, workers: int, hidden: Path | None = None) -> None:
        """Start all, and wait until the workers have found their master.

        At the path `hidden` the workers have an empty folder of their own, as on another machine.
        """
        listening = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self.master = self._part("master.Master", *listening).says(MASTER)
        size = ["--cores", "1", "--memory", MEMORY]
        for each in [
            self._part(
                "worker.Worker",
                *listening,
                *size,
                "--work-dir",
                str(place),
                self.master,
                hidden=hidden,
            )
            for place in self.places(workers)
        ]:
            each.says(REGISTERED)

    def places(self, workers: int) -> list[Path]:
        """The folders of the workers, in which each has one for each program it worked for."""
        return [self.folder / f"worker{number}" for number in range(workers)]

    def _part(self, name: str, *arguments: str, hidden: Path | None = None) -> Part:
        environment = self.environment() | {
            "JAVA_HOME": str(java_home(require_java())),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        }
        # As on another machine, which knows nothing of where we have semel from.
        environment.pop("PYTHONPATH", None)
        command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{name}", *arguments]
        if hidden is not None:
            command = [*HIDING, str(hidden), *command]
        self._parts.append(Part(command, environment))
        return self._parts[-1]

    def stop(self) -> None:
        """End everything, and wait for it."""
        for part in self._parts:
            part.let_go()
        for part in self._parts:
            part.wait()


def can_hide(folder: Path) -> bool:
    """Whether this machine lets us mount: that takes root, or a kernel that lets others do it."""
    command = [*HIDING, str(folder), "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@contextmanager
def running(folder: Path, *, workers: int = 2, hidden: Path | None = None) -> Iterator[Cluster]:
    """A cluster while it is needed."""
    cluster = Cluster(folder)
    try:
        cluster.start(workers, hidden)
        yield cluster
    finally:
        cluster.stop()

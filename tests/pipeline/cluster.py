"""A Spark cluster on one machine: a master and workers, each a process, as Spark's scripts start it.

They listen on this machine only, on ports that are free, and keep all files in one folder. The
programs that a worker starts are its own children, and a cluster that is stopped leaves nothing
running: not even what belongs to a worker that was killed.
"""

import os
import re
import signal
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

import semel
from semel.pipeline.java import find, java_home

# Generous: it only ends what would hang.
PATIENCE: Final = 90.0
SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"
MASTER: Final = re.compile(r"spark://127\.0\.0\.1:\d+")
REGISTERED: Final = re.compile(r"Successfully registered with master")
# A worker has one core, and room for one executor.
MEMORY: Final = "600m"
DEFAULTS: Final = """\
spark.executor.memory 512m
spark.ui.enabled false
"""
# What the cluster says is how a test knows that it is there; what a driver says is for people.
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


class Cluster:
    """A master and its workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = folder / "conf"
        self.settings.mkdir(parents=True)
        (self.settings / "spark-defaults.conf").write_text(DEFAULTS)
        (self.settings / "log4j2.properties").write_text(LOG)
        self._processes: list[subprocess.Popen[str]] = []
        self.master = ""

    def environment(self) -> dict[str, str]:
        """What a program needs that lets this cluster work for it, and the cluster itself."""
        local = self.folder / "local"
        local.mkdir(exist_ok=True)
        return {
            **os.environ,
            "SPARK_CONF_DIR": str(self.settings),
            "SPARK_LOCAL_DIRS": str(local),
        }

    def start(self, workers: int) -> None:
        listening = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self.master = self._start("master.Master", listening, MASTER)
        for number in range(workers):
            place = ["--work-dir", str(self.folder / f"worker{number}")]
            size = ["--cores", "1", "--memory", MEMORY]
            self._start("worker.Worker", [*listening, *place, *size, self.master], REGISTERED)

    def _start(self, name: str, arguments: list[str], sign: re.Pattern[str]) -> str:
        """Start a part, and wait until it says that it is there; what it said."""
        process = subprocess.Popen(
            [SPARK_CLASS, f"org.apache.spark.deploy.{name}", *arguments],
            env={
                **self.environment(),
                "JAVA_HOME": str(java_home(find())),
                "SPARK_NO_DAEMONIZE": "1",
                "SPARK_DAEMON_MEMORY": "256m",
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)
        lines: SimpleQueue[str] = SimpleQueue()
        assert process.stderr is not None
        # It is read to its end, so that nobody who writes has to wait.
        threading.Thread(target=_read, args=(process.stderr, lines), daemon=True).start()
        said = []
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and process.poll() is None:
            with suppress(Empty):
                said.append(lines.get(timeout=0.1))
                found = sign.search(said[-1])
                if found is not None:
                    return found[0]
        raise AssertionError(f"{name} did not start: {''.join(said)}")

    def stop(self) -> None:
        """End everything, and wait for it."""
        groups = [process.pid for process in self._processes]
        # Workers first: they end what they have started.
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for process in self._processes:
            process.wait()


def _read(source: IO[str], lines: "SimpleQueue[str]") -> None:
    with source:
        for line in source:
            lines.put(line)


@contextmanager
def running(folder: Path, *, workers: int = 2) -> Iterator[Cluster]:
    """A cluster while it is needed."""
    cluster = Cluster(folder)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.stop()


def source_folder() -> str:
    """The folder that semel is imported from."""
    return str(Path(semel.__file__).parent.parent)


def python() -> str:
    """The Python of the tests, for whoever is to have the same packages."""
    return sys.executable

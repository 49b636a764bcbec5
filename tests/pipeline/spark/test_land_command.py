"""`semel land` as a process: it goes on with what comes, and ends in order."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from semel.store.sealing import environment_for_python
from tests.metrics.exposition import read_exposition
from tests.metrics.http_client import ask
from tests.metrics.landing import landing_exposition
from tests.pipeline.made import write_messages

PATIENCE = 180.0


class Process:
    """A landing that runs, and the events that it has told."""

    def __init__(self, folder: Path, *flags: str, environ: Mapping[str, str] = os.environ) -> None:
        self.log = (folder / "log").open("a+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "semel", "land", "--root", "root", "--json", *flags],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            cwd=folder,
            env=environment_for_python(environ),
        )

    def until(self, kind: str) -> dict[str, Any]:
        """The next event of a kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == kind:
                return event
        raise AssertionError(f"it has ended without {kind}: {self.said()}")

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def landing(
    folder: Path, *flags: str, environ: Mapping[str, str] = os.environ
) -> Iterator[Process]:
    made = Process(folder, *flags, environ=environ)
    try:
        yield made
    finally:
        made.process.kill()
        with made.process:  # waits
            made.log.close()


def landed(folder: Path) -> int:
    return int(DeltaTable(str(folder / "semel-data" / "lake" / "messages")).count())


def test_it_lands_what_comes_and_what_is_there_when_it_is_to_end(tmp_path: Path) -> None:
    write_messages(tmp_path / "root", "all", "n1", 1, 1_000)
    with landing(tmp_path, "--interval", "200ms") as made:
        assert made.until("starting")["stream"] == "all"
        assert made.until("ready")["positions"] == {}
        batch = made.until("batch")
        assert (batch["rows"], batch["landed"]) == (1_000, 1_000)
        assert batch["positions"] == {"n1": 1_000}
        write_messages(tmp_path / "root", "all", "n1", 1_001, 10)
        assert made.until("batch")["landed"] == 1_010
        # What is sealed when the signal comes is landed.
        write_messages(tmp_path / "root", "all", "n1", 1_011, 5)
        assert made.end(signal.SIGTERM) == 0
        assert made.until("ended")["landed"] == 1_015
        assert made.said() == ""
    assert landed(tmp_path) == 1_015


@pytest.mark.long
def test_its_metrics_agree_with_what_it_has_landed(tmp_path: Path) -> None:
    write_messages(tmp_path / "root", "all", "n1", 1, 1_000)
    with landing(tmp_path, "--interval", "200ms", "--metrics-port", "0") as made:
        served = made.until("metrics")
        address = (served["host"], served["port"])
        assert ask(address, "/readyz").body == "Spark is starting\n"
        made.until("ready")
        assert ask(address, "/readyz").status == 200
        made.until("batch")
        write_messages(tmp_path / "root", "all", "n1", 1_001, 10)
        made.until("batch")
        found = read_exposition(ask(address).body, is_open=False)
        assert found.value("semel_landing_rows_total") == 1_010
        assert found.value("semel_landing_batches_total") == 2
        assert found.value("semel_landing_batch_seconds_count") == 2
        assert found.value("semel_landing_lag_rows") == 0
        age = time.time() - found.value("semel_landing_last_commit_timestamp_seconds")
        assert 0 <= age < PATIENCE
        # What the dashboard and the alerts use is what a landing really has.
        assert found.series() == landing_exposition().series()
        assert made.end(signal.SIGTERM) == 0


@pytest.mark.long
def test_spark_that_is_gone_is_one_sentence_and_the_next_start_goes_on(tmp_path: Path) -> None:
    write_messages(tmp_path / "root", "all", "n1", 1, 1_000)
    with landing(tmp_path, "--interval", "200ms") as made:
        made.until("batch")
        (java,) = [
            int(pid)
            for pid in Path(f"/proc/{made.process.pid}/task/{made.process.pid}/children")
            .read_text()
            .split()
            if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(java, signal.SIGKILL)
        failed = made.until("failed")
        assert "the Java process of Spark has ended" in failed["problem"]
        assert made.process.wait(PATIENCE) == 1
        assert made.said().splitlines()[-1] == f"Error: {failed['problem']}"
        assert "Traceback" not in made.said()
    write_messages(tmp_path / "root", "all", "n1", 1_001, 7)
    with landing(tmp_path, "--once") as made:
        assert made.until("ready")["positions"] == {"n1": 1_000}
        assert made.until("ended")["landed"] == 7
        assert made.process.wait(PATIENCE) == 0
    assert landed(tmp_path) == 1_007


# Python runs this before anything else. Spark gives the process of a stream reader 10 seconds to
# connect: the first ones take longer, as on a machine that has no time for them.
SLOW = """
import os, sys, time
if any("python_streaming_source_runner" in each for each in sys.orig_argv):
    folder = os.path.dirname(__file__)
    number = sum(name.startswith("slow-") for name in os.listdir(folder))
    if number < {times}:
        open(os.path.join(folder, f"slow-{{number}}"), "x").close()
        time.sleep(15)
"""


def starved(folder: Path, times: int) -> dict[str, str]:
    """An environment in which the process of a stream reader starts too slowly, so often."""
    (folder / "sitecustomize.py").write_text(SLOW.format(times=times))
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.long
def test_a_worker_that_starts_too_slowly_is_started_again(tmp_path: Path) -> None:
    write_messages(tmp_path / "root", "all", "n1", 1, 100)
    slow = tmp_path / "slow"
    slow.mkdir()
    with landing(tmp_path, "--once", environ=starved(slow, 1)) as made:
        assert made.until("ended")["landed"] == 100
        assert made.process.wait(PATIENCE) == 0
        # What the late process itself says when it finds nobody is Spark's.
        assert "did not start in time" in made.said().splitlines()[0]
    assert (slow / "slow-0").exists()
    assert landed(tmp_path) == 100

"""The example of docs/data/declarative.md: `spark-pipelines run`, as its README shows it.

It needs pyspark[pipelines], which is among the dependencies of the tests.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow import dataset

from semel.pipeline.java import java_home, require_java
from tests.broker.broker_process import Process

HOME = Path(__file__).resolve().parents[3]
EXAMPLE = HOME / "examples" / "declarative"
SIMULATION = HOME / "examples" / "factory" / "simulate.py"
SECONDS = 600.0
# 4 presses, 120 minutes; one thermometer has failed three times.
READINGS = 4 * 120 - 3


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example, after the command of its README that sets the storage."""
    folder = tmp_path / "declarative"
    shutil.copytree(EXAMPLE, folder)
    command = re.search(r"^\$ (sed .*)$", (folder / "README.md").read_text("utf-8"), re.MULTILINE)
    assert command is not None
    subprocess.run(["bash", "-c", command[1]], cwd=folder, check=True)
    return folder


def environment() -> dict[str, str]:
    """That of a shell with the virtual environment, Java, and a checkout instead of semel."""
    return os.environ | {
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
        "PYTHONPATH": str(HOME / "src"),
        "JAVA_HOME": str(java_home(require_java())),
        "SPARK_CONF_DIR": "conf",
        # Spark Connect listens on a free port instead of 15002.
        "SPARK_TESTING": "1",
    }


def work_a_shift(project: Path) -> None:
    """Record the messages of a shift. The broker has sealed everything when it has ended."""
    with Process("--data", str(project / "semel-data"), "--stream", "all=#") as broker:
        host, port = broker.address
        subprocess.run(
            [sys.executable, str(SIMULATION), f"mqtt://{host}:{port}"],
            env=environment(),
            check=True,
            timeout=SECONDS,
        )


def run_pipeline(project: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["spark-pipelines", "run", *arguments],
        cwd=project,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    with open(project / "runs.log", "a") as log:
        log.write(done.stdout)
    assert done.returncode == 0, done.stdout
    assert "Run is COMPLETED." in done.stdout


def forget_the_last_commit(project: Path) -> None:
    """Leave the checkpoints as kill -9 does between the commit of a table and that of Spark."""
    commits = sorted((project / "pipeline-storage").rglob("commits/0"))
    assert len(commits) == 2
    for commit in commits:
        commit.unlink()
        commit.with_name(".0.crc").unlink()


def check_each_reading_is_there_once(project: Path, shifts: int) -> None:
    expected = shifts * READINGS
    warehouse = project / "spark-warehouse"
    landed = DeltaTable(str(project / "lake" / "temperature")).to_pyarrow_dataset()
    for rows in landed, dataset.dataset([str(each) for each in parquet(warehouse / "temperature")]):
        times = Counter(
            (row["node"], row["seq"]) for row in rows.to_table(columns=["node", "seq"]).to_pylist()
        )
        assert len(times) == expected
        assert set(times.values()) == {1}
    assert {row["press"]: row for row in rows_of(parquet(warehouse / "hottest"))} == {
        press: {"hall": hall, "press": press, "celsius": celsius, "readings": shifts * readings}
        for hall, press, celsius, readings in [
            ("north", 1, 75.0, 120),
            ("north", 2, 73.0, 117),
            ("south", 3, 89.67, 120),
            ("south", 4, 74.0, 120),
        ]
    }


def parquet(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def rows_of(files: Iterable[Path]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        dataset.dataset([str(each) for each in files]).to_table().to_pylist()
    )
    return rows


@pytest.mark.long
def test_each_reading_is_in_the_tables_once_after_every_run(project: Path) -> None:
    work_a_shift(project)
    run_pipeline(project)
    check_each_reading_is_there_once(project, 1)

    # The batch of the first run is repeated, and then there are new messages.
    forget_the_last_commit(project)
    work_a_shift(project)
    run_pipeline(project)
    check_each_reading_is_there_once(project, 2)

    # New checkpoints: everything is read again.
    run_pipeline(project, "--full-refresh-all")
    check_each_reading_is_there_once(project, 2)

"""The tutorial and the recipes of docs/start: their programs run, and print what is shown.

Only paths, addresses and ports are those of the test. The commands that only start something are
parsed by tests/test_docs.py.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from semel import cli
from semel.lab.testing import TestBroker
from semel.pipeline.landing import Landing
from semel.pipeline.landing_plan import make_plan
from semel.pipeline.settings import LandSettings
from tests.broker.broker_process import Process
from tests.lab.as_user import run
from tests.pipeline.made import write_messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["pytester"]

DOCS = Path(__file__).resolve().parents[3] / "docs"
TUTORIAL = "tutorial.md"
RECIPES = "recipes.md"
SECONDS = 300.0
NAMED = re.compile(r"^```(?:python|toml)\n(# ([a-z_]+\.(?:py|toml))\n.*?)^```$", re.M | re.S)
SHOWN = re.compile(r'^```\n\$ semel (sql ".*")\n((?:.+\n)+)```$', re.M)


def files_of(page: str) -> dict[str, str]:
    """The programs and files that a page shows, by the names in their first lines."""
    text = (DOCS / "start" / page).read_text("utf-8")
    return {name: content for content, name in NAMED.findall(text)}


def write_files(page: str, folder: Path, url: str) -> None:
    for name, content in files_of(page).items():
        (folder / name).write_text(content.replace("mqtt://localhost", url), "utf-8")


def environment(folder: Path) -> dict[str, str]:
    """One in which programs find semel, also as a command."""
    command = folder / "bin" / "semel"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m semel "$@"\n', "utf-8")
    command.chmod(0o755)
    return os.environ | {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }


def run_program(name: str, folder: Path, variables: dict[str, str]) -> None:
    program = [sys.executable, str(folder / name)]
    subprocess.run(program, cwd=folder, env=variables, check=True, timeout=SECONDS)


@contextmanager
def recording_broker(data: Path) -> Iterator[str]:
    """A broker that records every message, as that of `semel up` does; its URL."""
    with Process("--data", str(data), "--stream", "all=#") as broker:
        host, port = broker.address
        yield f"mqtt://{host}:{port}"


def test_the_tutorial_leads_from_a_program_to_its_chart(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data, lake = tmp_path / "semel-data", tmp_path / "semel-data" / "lake"
    variables = environment(tmp_path)
    with recording_broker(data) as url:
        write_files(TUTORIAL, tmp_path, url)
        run_program("publish.py", tmp_path, variables)
    wanted = LandSettings(
        root=str(data / "streams"), lake=str(lake), landing=tmp_path / "landing.toml"
    )
    Landing(make_plan(wanted), lambda event: None).run(once=True, spark=spark)
    text = (DOCS / "start" / TUTORIAL).read_text("utf-8")
    queries = SHOWN.findall(text)
    assert len(queries) == 4
    for query, shown in queries:
        result = CliRunner().invoke(cli.group, shlex.split(query))
        assert result.exit_code == 0, result.output
        assert result.stdout == shown
    run_program("chart.py", tmp_path, variables)
    chart = (tmp_path / "chart.svg").read_text("utf-8")
    assert chart == (DOCS / "images" / "tutorial-chart.svg").read_text("utf-8")


def test_the_sensor_of_the_recipes_publishes_what_it_measured(tmp_path: Path) -> None:
    with recording_broker(tmp_path / "data") as url:
        write_files(RECIPES, tmp_path, url)
        run_program("sensor.py", tmp_path, environment(tmp_path))
    rows = CliRunner().invoke(
        cli.group, ["stream", "read", "all", "--data", str(tmp_path / "data")]
    )
    payloads = [json.loads(line)["payload"] for line in rows.stdout.splitlines()]
    assert payloads == ["20.5", "21.5"]


def test_the_device_of_the_recipes_passes_its_own_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(RECIPES)
    for name in ("device.py", "test_device.py"):
        (pytester.path / name).write_text(files[name], "utf-8")
    # paho leaves its pair of sockets to the garbage collector.
    result = run(pytester, monkeypatch, "-p", "no:unraisableexception", "-q")
    assert result.parseoutcomes() == {"passed": 5}, result.stdout.str()


@pytest.mark.usefixtures("spark")
def test_the_alarms_of_the_recipes_reach_the_siren(tmp_path: Path) -> None:
    def reading(seq: int) -> bytes:
        return b"broken" if seq == 3 else json.dumps({"celsius": seq}).encode()

    root = tmp_path / "streams"
    write_messages(root, "all", "n1", 1, 12, topic="cold/south/temperature", payload=reading)
    write_messages(root, "all", "n1", 13, 1, topic="cold/south/alarm", payload=reading)
    with TestBroker() as broker:
        write_files(RECIPES, tmp_path, broker.url)
        alarms = (
            (tmp_path / "alarms.py")
            .read_text("utf-8")
            .replace("semel-data/streams", str(root))
            .replace("checkpoints/alarms", str(tmp_path / "checkpoint"))
            .replace("query.awaitTermination()", "query.processAllAvailable()\nquery.stop()")
        )
        with subprocess.Popen(
            [sys.executable, "-u", str(tmp_path / "siren.py")],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            text=True,
        ) as siren:
            try:
                broker.wait_for("SUBACK", client_id="siren", timeout=SECONDS)
                exec(compile(alarms, "alarms.py", "exec"), {})
                assert siren.stdout is not None
                printed = [siren.stdout.readline() for _ in range(2)]
            finally:
                siren.kill()
    assert printed == ["cold/south/alarm 11.0 °C\n", "cold/south/alarm 12.0 °C\n"]

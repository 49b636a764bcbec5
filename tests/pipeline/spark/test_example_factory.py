"""The example of docs/data/factory.md: every step, with a broker, Spark and its notebook."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession

from semel.pipeline.landing import Landing
from semel.pipeline.landing_plan import make_plan
from semel.pipeline.settings import LandSettings
from tests.broker.broker_process import Process

HOME = Path(__file__).resolve().parents[3]
EXAMPLE = HOME / "examples" / "factory"
SECONDS = 300.0
# 4 presses, 120 minutes: readings, pieces, and a state every half hour.
MESSAGES = 4 * 120 * 2 + 4 * 4


def cells() -> list[str]:
    notebook = json.loads((EXAMPLE / "factory.ipynb").read_text("utf-8"))
    assert notebook["nbformat"] == 4
    return ["".join(each["source"]) for each in notebook["cells"] if each["cell_type"] == "code"]


@pytest.mark.long
def test_a_shift_of_the_factory_becomes_three_tables_and_a_chart(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, lake = tmp_path / "semel-data", tmp_path / "semel-data" / "lake"
    with Process("--data", str(data), "--stream", "all=#") as broker:
        host, port = broker.address
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run(
            [sys.executable, str(EXAMPLE / "simulate.py"), f"mqtt://{host}:{port}"],
            env=environment,
            check=True,
            timeout=SECONDS,
        )
    # The broker has sealed everything when it has ended.
    wanted = LandSettings(
        root=str(data / "streams"), lake=str(lake), landing=EXAMPLE / "landing.toml"
    )
    events: list[dict[str, Any]] = []
    Landing(make_plan(wanted), events.append).run(once=True, spark=spark)
    assert events[-1]["event"] == "ended"
    assert sum(events[-2]["positions"].values()) == MESSAGES
    names: dict[str, Any] = {}
    for cell in cells():
        text = cell.replace('"semel-data/lake"', repr(str(lake)))
        last = ast.parse(text).body[-1]
        assert isinstance(last, ast.Expr)
        exec(compile(text, "factory.ipynb", "exec"), names)
    assert names["spark"] is spark
    report = {row.press: row for row in names["report"].collect()}
    assert {press: (row.hall, row.state) for press, row in report.items()} == {
        1: ("north", "running"),
        2: ("north", "running"),
        3: ("south", "overheated"),
        4: ("south", "running"),
    }
    assert {press: row.pieces for press, row in report.items()} == {1: 480, 2: 360, 3: 480, 4: 360}
    assert max(report, key=lambda press: report[press].hottest) == 3
    (letters,) = names["letters"].collect()
    assert (letters.topic, letters.column_name, letters.n) == (
        "factory/north/2/temperature",
        "celsius",
        3,
    )
    chart = ElementTree.fromstring(names["chart"]._repr_svg_())
    lines = [each for each in chart if each.tag.endswith("polyline")]
    assert [len(each.attrib["points"].split()) for each in lines] == [120, 117, 120, 120]

"""`semel probe matrix --master`: the workers of a cluster examine the subjects."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from semel import standard
from tests.broker.broker_process import Process
from tests.pipeline.cluster import PATIENCE, running

SUBJECTS = """\
[[subject]]
name = "semel's codec"
codec = "{python} -m semel.probe.adapters.semel_codec"
versions = ["5.0"]

[[subject]]
name = "semel's broker"
broker = "mqtt://127.0.0.1:{port}"
versions = ["3.1.1"]
timeout = 60

[[subject]]
name = "no program"
codec = "{python} -c pass"
"""


@pytest.mark.long
def test_each_subject_is_examined_by_a_worker_and_its_verdicts_are_in_the_table(
    tmp_path: Path,
) -> None:
    file, lake = tmp_path / "subjects.toml", tmp_path / "lake"
    with Process() as broker, running(tmp_path / "cluster") as cluster:
        file.write_text(SUBJECTS.format(python=sys.executable, port=broker.address[1]))
        options = ["--master", cluster.master, "--lake", str(lake), "--out", str(tmp_path / "out")]
        done = subprocess.run(
            [sys.executable, "-P", "-m", "semel", "probe", "matrix", str(file), "--json", *options],
            env=cluster.environment(),
            cwd=cluster.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        # The driver has no cores: the executors of the workers have examined them.
        assert all(list(place.glob("app-*")) for place in cluster.places(2))
    assert done.returncode == 2, done.stdout + done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert sentence.startswith("Error: no program: ")
    assert "Traceback" not in done.stderr
    codec, server, missing = json.loads(done.stdout)["subjects"]
    assert "violated" not in codec["totals"]["5.0"]
    assert "violated" not in server["totals"]["3.1.1"]
    assert missing["problem"]
    rows = DeltaTable(str(lake / "conformance")).to_pyarrow_table().to_pylist()
    assert len(rows) == len(standard.statements("5.0")) + len(standard.statements("3.1.1"))
    assert {(row["subject"], row["version"]) for row in rows} == {
        ("semel's codec", "5.0"),
        ("semel's broker", "3.1.1"),
    }
    assert "semel&#x27;s broker" in (tmp_path / "out" / "matrix.html").read_text()

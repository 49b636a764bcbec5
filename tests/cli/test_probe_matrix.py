"""`semel probe matrix`: several subjects side by side, their table, and what an end keeps."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from semel import cli, standard
from semel.probe.report.files import read_report
from tests.broker.broker_process import PATIENCE

deltalake = pytest.importorskip("deltalake")

CODEC = f"{sys.executable} -m semel.probe.adapters.semel_codec"


def subject(name: str, **keys: str) -> str:
    lines = [f'{key} = "{value}"' for key, value in {"name": name, **keys}.items()]
    return "\n".join(["[[subject]]", *lines, 'versions = ["3.1.1"]', ""])


def matrix(*arguments: object) -> Result:
    return CliRunner().invoke(cli.group, ["probe", "matrix", *map(str, arguments)])


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_every_subject_is_reported_and_the_table_has_every_statement_of_each_run(
    tmp_path: Path,
) -> None:
    file = tmp_path / "subjects.toml"
    # Two names that would have the same directory.
    file.write_text(subject("semel 1", codec=CODEC) + subject("semel/1", codec=CODEC))
    lake, out = tmp_path / "lake", tmp_path / "results"
    first = matrix(file, "--lake", lake, "--out", out)
    assert first.exit_code == 0, first.output
    rows = [line.split() for line in first.stdout.splitlines()]
    assert rows[0] == ["subject", "MQTT", "satisfied", "violated", "other"]
    assert [row[-4:-1] for row in rows[1:]] == [["3.1.1", rows[1][-3], "0"]] * 2
    second = matrix(file, "--lake", lake, "--json", "--at-once", "2")
    found = json.loads(second.stdout)
    assert [each["subject"] for each in found["subjects"]] == ["semel 1", "semel/1"]
    table = deltalake.DeltaTable(lake / "conformance").to_pyarrow_table()
    assert table.num_rows == 4 * len(standard.statements("3.1.1"))
    names = [read_report(out / name / "report.json").name for name in ("semel-1", "semel-1-2")]
    assert names == ["semel 1", "semel/1"]
    assert '<th scope="col">semel/1</th>' in (out / "matrix.html").read_text()


def test_a_subject_that_cannot_be_examined_is_named_and_the_others_are_reported(
    tmp_path: Path,
) -> None:
    file = tmp_path / "subjects.toml"
    nobody = f"mqtt://127.0.0.1:{unused_port()}"
    file.write_text(subject("nobody", broker=nobody) + subject("semel", codec=CODEC))
    result = matrix(file, "--out", tmp_path / "results")
    assert result.exit_code == 2
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("Error: nobody: ")
    assert "refused" in sentence.lower()
    assert read_report(tmp_path / "results" / "semel" / "report.json").name == "semel"


def test_a_lake_that_cannot_be_used_is_named_before_anything_is_examined(tmp_path: Path) -> None:
    file, started = tmp_path / "subjects.toml", tmp_path / "started"
    file.write_text(subject("late", codec=f"touch {started}"))
    log = tmp_path / "lake" / "conformance" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").write_text("damaged")
    result = matrix(file, "--lake", tmp_path / "lake")
    assert result.exit_code == 1
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("Error: ")
    assert "Traceback" not in result.output
    assert not started.exists()


def test_ctrl_c_keeps_the_subjects_that_are_done(tmp_path: Path) -> None:
    file, started = tmp_path / "subjects.toml", tmp_path / "started"
    slow = f"sh -c 'touch {started}; exec sleep 600'"
    file.write_text(subject("done", codec=CODEC) + subject("slow", client=slow))
    command = [sys.executable, "-m", "semel", "probe", "matrix", str(file), "--json"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "results")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    end = time.monotonic() + PATIENCE
    while not started.exists():
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stderr) == (130, "interrupted; not examined: slow\n")
    assert [each["subject"] for each in json.loads(stdout)["subjects"]] == ["done"]
    assert read_report(tmp_path / "results" / "done" / "report.json").name == "done"

"""`semel broker --json`: the log as objects, for a program that runs a broker."""

import json
import signal
import subprocess
import sys

from tests.broker.broker_process import PATIENCE
from tests.broker.broker_process import Process as Broker


def start_broker(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "semel", "broker", "--json", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    )


def test_json_prints_the_log_as_objects() -> None:
    with start_broker("--port", "0") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert (ready["event"], ready["host"], ready["level"]) == ("ready", "127.0.0.1", "info")
        assert ready["text"].startswith(f"listening on 127.0.0.1:{ready['port']}, MQTT")
        assert ready["at"].endswith("Z")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    assert [(each["event"], each["text"]) for each in map(json.loads, out.splitlines())] == [
        ("log", "stopping")
    ]


def test_json_reports_why_the_broker_fails() -> None:
    with Broker() as other, start_broker("--port", str(other.address[1])) as process:
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    failed = json.loads(out.splitlines()[-1])
    assert (failed["event"], failed["level"]) == ("failed", "error")
    assert "is in use" in failed["problem"]
    assert err == f"Error: {failed['problem']}\n"

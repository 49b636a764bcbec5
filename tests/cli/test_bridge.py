"""`semel bridge` as users run it: processes, exit codes, and what they say."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from semel import cli
from semel.broker.settings import BrokerSettings
from semel.cli.bridge import as_line
from semel.cli.sections import SECTIONS
from semel.client.bridge_plan import make_bridge_plan
from semel.client.bridge_rules import parse_rule
from semel.client.bridge_settings import BridgeSettings, SharedBridgeSettings
from semel.client.bridge_status import (
    BridgeStatus,
    DirectionStatus,
    SideStatus,
    status_line,
)
from semel.settings import load
from tests.broker.broker_process import PATIENCE, WITHOUT_UVLOOP
from tests.broker.serving import serving
from tests.client.ingests import publish
from tests.kills.brokers import free_port
from tests.metrics.exposition import read_exposition
from tests.metrics.http_client import ask

PROGRAM = ("-m", "semel")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "bridge.md"
BRIDGE = """
[[bridge]]
name = "{name}"
data = "{folder}/{name}"
local = "mqtt://127.0.0.1:{local}"
remote = "mqtt://127.0.0.1:{remote}"
to_remote = ["plant/#"]
longest_wait = "100ms"
durability = "os"
"""


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """Two brokers."""
    settings = BrokerSettings(port=0, sys_interval=0.0)
    with serving(settings) as local, serving(settings) as remote:
        yield local.address[1], remote.address[1]


def file_of(folder: Path, *sections: str) -> list[str]:
    path = folder / "semel.toml"
    path.write_text("".join(sections))
    return ["--config", str(path)]


def section(folder: Path, ports: tuple[int, int], name: str = "site") -> str:
    return BRIDGE.format(name=name, folder=folder, local=ports[0], remote=ports[1])


class Process:
    """`semel bridge`, with what it writes in files."""

    def __init__(self, folder: Path, *arguments: str, program: tuple[str, ...] = PROGRAM) -> None:
        self.out = folder / "stdout"
        self.err = folder / "stderr"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *program, "bridge", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def said(self) -> str:
        return self.err.read_text()

    def objects(self) -> list[dict[str, Any]]:
        """What it has printed, line by line."""
        lines = self.out.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def says(self, words: str, *, times: int = 1) -> None:
        """Wait until it has said this."""
        end = time.monotonic() + PATIENCE
        while self.said.count(words) < times:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.01)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end. Its exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def bridging(
    folder: Path, *arguments: str, program: tuple[str, ...] = PROGRAM
) -> Iterator[Process]:
    """One at work, which is gone afterwards."""
    made = Process(folder, *arguments, program=program)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
            made.process.wait()
        assert "Traceback" not in made.said, made.said


def until_status(path: Path, key: str, field: str, value: int) -> dict[str, Any]:
    """Wait until a status file says this. The status."""
    end = time.monotonic() + PATIENCE
    while True:
        if path.exists():
            found: dict[str, Any] = json.loads(path.read_text())
            if found[key][field] >= value:
                return found
        assert time.monotonic() < end, path.exists() and path.read_text()
        time.sleep(0.02)


METRICS = ("--metrics-port", "0")


def metrics_address(made: Process) -> tuple[str, int]:
    """Where it serves metrics, once it does."""
    made.says("/metrics")
    found = re.search(r"serving metrics on http://([\d.]+):(\d+)/metrics", made.said)
    assert found, made.said
    return found[1], int(found[2])


# --- running --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("program", [PROGRAM, ("-c", WITHOUT_UVLOOP)], ids=["uvloop", "asyncio"])
def test_it_moves_messages_until_a_signal_ends_it_in_order(
    number: int, program: tuple[str, ...], ports: tuple[int, int], tmp_path: Path
) -> None:
    config = file_of(tmp_path, section(tmp_path, ports))
    with bridging(tmp_path, *config, "--json", program=program) as made:
        made.says("subscribed to plant/# at QoS 2")
        publish(ports[0], ("plant/1", "x", 2), ("plant/2", "y", 1))
        until_status(tmp_path / "site" / "status.json", "to_remote", "delivered", 2)
        assert made.end(number) == 0
        assert re.search(r"bridge site: ended  2 to remote  0 to local$", made.said, re.MULTILINE)
        last = made.objects()[-1]
        assert (last["bridge"], last["state"], last["to_remote"]["delivered"]) == (
            "site",
            "ended",
            2,
        )
    written = json.loads((tmp_path / "site" / "status.json").read_text())
    del written["at"], last["at"]
    assert written == last


def test_quiet_reports_problems_only(ports: tuple[int, int], tmp_path: Path) -> None:
    config = file_of(tmp_path, section(tmp_path, ports))
    with bridging(tmp_path, *config, "--quiet") as made:
        until_status(tmp_path / "site" / "status.json", "local", "is_connected", 1)
        assert made.end() == 0
        assert made.said == ""


def test_a_bridge_that_fails_does_not_affect_another(
    ports: tuple[int, int], tmp_path: Path
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "store.db").write_bytes(b"not a database, but longer than a header" * 9)
    config = file_of(tmp_path, section(tmp_path, ports, "broken"), section(tmp_path, ports, "good"))
    with bridging(tmp_path, *config) as made:
        made.says("bridge broken: ")
        made.says("bridge good, local: subscribed to plant/#")
        publish(ports[0], ("plant/1", "x", 2))
        until_status(tmp_path / "good" / "status.json", "to_remote", "delivered", 1)
        assert made.end() == 1
        last = made.said.splitlines()[-1]
        assert last.startswith("Error: bridge broken: ")
        assert "store.db" in last
        assert "bridge good: ended  1 to remote" in made.said


def test_metrics_health_and_readiness_are_served(ports: tuple[int, int], tmp_path: Path) -> None:
    config = file_of(tmp_path, section(tmp_path, ports), "[bridges]\nmetrics_port = 0\n")
    with bridging(tmp_path, *config) as made:
        address = metrics_address(made)
        until_status(tmp_path / "site" / "status.json", "remote", "is_connected", 1)
        made.says("subscribed to plant/#")
        publish(ports[0], ("plant/1", "four", 2))
        until_status(tmp_path / "site" / "status.json", "to_remote", "delivered", 1)
        ready = ask(address, "/readyz")
        assert (ready.status, ready.body) == (200, "ok\n")
        assert ask(address, "/healthz").status == 200
        found = read_exposition(ask(address).body, is_open=False)
        way = {"bridge": "site", "direction": "to_remote", "qos": "2"}
        assert found.value("semel_bridge_messages_moved_total", **way) == 1
        assert found.value("semel_bridge_payload_moved_bytes_total", **way) == 4
        assert made.end() == 0


def test_a_bridge_without_a_connection_is_not_ready_and_says_which(
    ports: tuple[int, int], tmp_path: Path
) -> None:
    good = section(tmp_path, ports, "good")
    config = file_of(tmp_path, good, section(tmp_path, (ports[0], free_port()), "lonely"))
    with bridging(tmp_path, *config, *METRICS) as made:
        address = metrics_address(made)
        for name in ("good", "lonely"):
            until_status(tmp_path / name / "status.json", "local", "is_connected", 1)
        until_status(tmp_path / "good" / "status.json", "remote", "is_connected", 1)
        until_status(tmp_path / "lonely" / "status.json", "remote", "reconnects", 1)
        ready = ask(address, "/readyz")
        words = "bridge lonely is not connected to the remote broker: its log says why\n"
        assert (ready.status, ready.body) == (503, words)
        assert ask(address, "/healthz").status == 200
        found = read_exposition(ask(address).body, is_open=False)
        assert found.value("semel_bridge_ready", bridge="good") == 1
        assert found.value("semel_bridge_connected", bridge="lonely", side="remote") == 0
        assert found.value("semel_bridge_connected", bridge="lonely", side="local") == 1
        assert made.end() == 0


def test_a_metrics_port_in_use_is_refused_before_anything_is_moved(
    ports: tuple[int, int], tmp_path: Path
) -> None:
    config = file_of(tmp_path, section(tmp_path, ports))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with bridging(tmp_path, *config, "--metrics-port", str(port)) as made:
            assert made.process.wait(PATIENCE) == 1
            assert made.said.splitlines()[-1] == (
                f"Error: cannot serve metrics on 127.0.0.1:{port}: the port is in use by another"
                " program: change metrics_port"
            )
    assert not (tmp_path / "site").exists()


def test_only_the_named_bridges_run(ports: tuple[int, int], tmp_path: Path) -> None:
    config = file_of(tmp_path, section(tmp_path, ports, "one"), section(tmp_path, ports, "two"))
    with bridging(tmp_path, "two", *config) as made:
        made.says("bridge two, local: subscribed")
        assert made.end() == 0
        assert "bridge one" not in made.said
    assert not (tmp_path / "one").exists()


def test_a_session_that_the_store_does_not_know_ends_it_with_what_to_do(
    ports: tuple[int, int], tmp_path: Path
) -> None:
    text = section(tmp_path, ports) + 'local_client_id = "edge"\n'
    config = file_of(tmp_path, text)
    with bridging(tmp_path, *config) as made:
        made.says("subscribed to plant/#")
        made.end()
    config = file_of(tmp_path, text.replace("/site", "/other"))
    with bridging(tmp_path, *config) as made:
        assert made.process.wait(PATIENCE) == 1
        last = made.said.splitlines()[-1]
        assert last.startswith("Error: bridge site, local: the server has a session")
        assert "--start-clean begins new sessions" in last
    with bridging(tmp_path, *config, "--start-clean") as made:
        made.says("subscribed to plant/#")
        assert made.end() == 0


def test_the_store_of_a_bridge_is_of_nobody_else(ports: tuple[int, int], tmp_path: Path) -> None:
    config = file_of(tmp_path, section(tmp_path, ports))
    with bridging(tmp_path, *config) as made:
        made.says("subscribed to plant/#")
        made.end()
    folder = str(tmp_path / "site")
    runner = CliRunner()
    assert runner.invoke(cli.group, ["store", "check", folder]).exit_code == 0
    result = runner.invoke(cli.group, ["store", "sessions", "delete", folder, "--all", "--yes"])
    assert result.exit_code == 1
    assert "is the store of a bridge: without its session it would lose messages" in result.output


def test_a_reader_that_closes_the_pipe_ends_it(ports: tuple[int, int], tmp_path: Path) -> None:
    config = file_of(tmp_path, section(tmp_path, ports))
    process = subprocess.Popen(
        [sys.executable, *PROGRAM, "bridge", *config, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["bridge"] == "site"
    process.stdout.close()
    assert process.wait(PATIENCE) == 0


# --- settings -------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and output of a command that ends by itself."""
    result = subprocess.run(
        [sys.executable, *PROGRAM, "bridge", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "SEMEL_CONFIG"},
    )
    assert "Traceback" not in result.stderr
    return result.returncode, result.stdout + result.stderr


def test_check_config_checks_and_connects_to_nobody(tmp_path: Path) -> None:
    text = section(tmp_path, (free_port(), free_port()))
    config = file_of(tmp_path, text)
    assert run(*config, "--check-config") == (0, "the settings are valid\n")
    assert not (tmp_path / "site").exists()
    file_of(tmp_path, text.replace('["plant/#"]', '["plant#"]'))
    code, output = run(*config, "--check-config")
    assert code == 1
    assert output.startswith("Error: ")
    assert 'semel.toml, line 2: [[bridge]] 1 ("site"): to_remote: ' in output


def test_without_a_bridge_or_with_an_unknown_one_it_says_what_to_do(tmp_path: Path) -> None:
    code, output = run()
    assert (code, output.count("\n")) == (1, 1)
    assert "give a file with a [[bridge]] section by --config or SEMEL_CONFIG" in output
    config = file_of(tmp_path, section(tmp_path, (1, 2)))
    code, output = run("syte", *config)
    assert code == 1
    assert "there is no bridge" in output
    assert "known: site" in output


def test_rules_that_loop_in_3_1_1_are_refused(tmp_path: Path) -> None:
    text = section(tmp_path, (1, 2)) + 'to_local = ["plant/#"]\nremote_mqtt_version = "3.1.1"\n'
    code, output = run(*file_of(tmp_path, text), "--check-config")
    assert code == 1
    assert "MQTT 3.1.1 has no No Local" in output
    assert "different prefixes" in output


# --- what it prints, and the page -----------------------------------------------------------------


def test_the_line_of_a_terminal_names_what_is_unusual() -> None:
    plain = BridgeStatus("site", "running", SideStatus(True), SideStatus(True))
    assert as_line(plain) == "site: running  0 to remote  0 to local"
    unusual = BridgeStatus(
        "site",
        "running",
        SideStatus(True, sessions_lost=1),
        SideStatus(),
        DirectionStatus(moved=1_200, queued=3, held=2, refused=4),
        store="full",
    )
    assert as_line(unusual) == (
        "site: running  remote not connected  1,200 to remote  5 queued  4 refused  0 to local"
        "  session lost 1 time  the store is full"
    )


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


def test_the_example_of_the_page_is_a_valid_bridge(tmp_path: Path) -> None:
    example = "\n".join(blocks("toml"))
    path = tmp_path / "semel.toml"
    password = tmp_path / "password"
    password.write_text("secret\n")
    path.write_text(example.replace("/etc/semel/site-7.password", str(password)))
    settings = load(SECTIONS, path=path, environ={}, flags={})
    assert settings.of(SharedBridgeSettings).metrics_port == 9885
    (found,) = settings.all_of(BridgeSettings)
    plan = make_bridge_plan(found)
    assert plan.to_remote[0].destination_topic("plant/1") == "site-7/plant/1"
    assert plan.to_local[0].destination_topic("site-7/jobs/1") == "jobs/1"


def test_the_rules_of_the_page_do_what_it_says() -> None:
    rows = re.findall(r"^\| `(.*?)` \| `(.*?)` \| `(.*?)`.*\|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 4
    for rule, local, remote in rows:
        settings = BridgeSettings(name="x", data=Path("x"), remote="mqtt://x", to_remote=(rule,))
        (translation,) = settings.translations_to_remote
        assert translation.destination_topic(local) == remote
    compared = re.findall(r"^\| `topic .*?` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(compared) == 4
    for text in compared:
        for _, rule in re.findall(r'`(to_\w+) = \["(.*?)"\]`', text):
            parse_rule(rule)


def test_the_status_of_the_page_has_every_field() -> None:
    (example,) = blocks("json")
    shown = json.loads(example)
    printed = json.loads(status_line(BridgeStatus("x")))
    assert list(shown) == list(printed)
    for key in ("local", "to_remote", "to_local", "remote"):
        assert list(shown[key]) == list(printed[key])


def test_the_help_lists_what_there_is() -> None:
    result = CliRunner().invoke(cli.group, ["bridge", "--help"])
    assert result.exit_code == 0
    assert "[NAME]..." in result.output

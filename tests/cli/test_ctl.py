"""`semel ctl`: every command against a real broker, its text, its JSON, and its errors."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from semel import cli
from semel.mqtt import Properties, Publish
from tests.broker.broker_process import Process
from tests.broker.by_hand import Link, link

ESCAPES = "evil\x1b[2J"


class Running:
    """A broker in a process of its own, and `semel ctl` in this one."""

    def __init__(self, broker: Process, data: Path) -> None:
        self.broker = broker
        self.data = data

    def ctl(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli.group, ["ctl", *arguments, "--data", str(self.data)])

    def text(self, *arguments: str) -> str:
        done = self.ctl(*arguments)
        assert done.exit_code == 0, done.output
        return done.output

    def found(self, *arguments: str) -> Any:
        return json.loads(self.text(*arguments, "--json"))

    def problem(self, *arguments: str, code: int = 1) -> str:
        done = self.ctl(*arguments)
        assert done.exit_code == code, done.output
        return done.output


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("ctl") / "data"
    with Process("--data", str(data)) as broker:
        yield Running(broker, data)


@pytest.fixture
def client(running: Running) -> Iterator[Link]:
    """A connected client with a subscription, a durable session and a retained message."""
    with link(running.broker.address) as made:
        made.connect("press-7", properties=Properties(session_expiry_interval=600))
        made.subscribe("plant/#", 1)
        made.send(Publish("state/7", b"on", qos=1, packet_id=3, retain=True))
        made.take(1)
        yield made
    running.ctl("sessions", "delete", "press-7")
    running.ctl("retained", "delete", "state/7")


@pytest.mark.usefixtures("client")
def test_status_has_totals_and_listeners(running: Running) -> None:
    found = running.found("status")
    assert (found["clients"], found["sessions"], found["subscriptions"]) == (1, 1, 1)
    port = running.broker.address[1]
    assert found["listeners"][0]["port"] == port
    text = running.text("status")
    assert re.search(r"^clients +1$", text, re.M)
    assert f"listener             default: tcp, 127.0.0.1:{port}" in text


@pytest.mark.usefixtures("client")
def test_clients_are_listed_and_shown(running: Running) -> None:
    (found,) = running.found("clients", "list")["clients"]
    assert (found["client"], found["messages_received"]) == ("press-7", 1)
    header, row = running.text("clients", "list").splitlines()
    assert header.split()[:3] == ["client", "user", "address"]
    assert row.startswith("press-7")
    assert running.found("clients", "show", "press-7")["session"]["durable"] is True
    text = running.text("clients", "show", "press-7")
    assert re.search(r"^session durable +yes$", text, re.M)
    assert text.count("press-7") == 1
    assert "Error: client 'nobody' is not connected" in running.problem("clients", "show", "nobody")


@pytest.mark.usefixtures("client")
def test_sessions_subscriptions_and_retained_messages_are_listed(running: Running) -> None:
    (session,) = running.found("sessions", "list")["sessions"]
    assert (session["client"], session["connected"]) == ("press-7", True)
    assert "press-7" in running.text("sessions", "list")
    assert running.found("sessions", "show", "press-7")["filters"] == ["plant/#"]
    assert re.search(r"^filters +plant/#$", running.text("sessions", "show", "press-7"), re.M)
    (subscription,) = running.found("subscriptions", "list")["subscriptions"]
    assert (subscription["filter"], subscription["qos"]) == ("plant/#", 1)
    for options, expected in (
        (("-t", "plant/#"), 1),
        (("-t", "other/#"), 0),
        (("-i", "press-7"), 1),
        (("--client-id", "press-8"), 0),
    ):
        assert len(running.found("subscriptions", "list", *options)["subscriptions"]) == expected
    (message,) = running.found("retained", "list", "-t", "state/+")["retained"]
    assert message == {"topic": "state/7", "qos": 1, "bytes": 2, "expires_seconds": None}
    assert "state/7" in running.text("retained", "list")
    assert "is not a topic filter" in running.problem("retained", "list", "-t", "a/#/b")


def test_a_client_is_disconnected(running: Running, client: Link) -> None:
    assert "not a reason code such as 0x98" in running.problem(
        "disconnect", "press-7", "--reason", "gone", code=2
    )
    assert "0x04 is not a reason code with which a server" in running.problem(
        "disconnect", "press-7", "--reason", "4"
    )
    text = running.text("disconnect", "press-7", "--reason", "0x9d", "--comment", "moved")
    assert text == "press-7 disconnected\n"
    (packet,) = client.until_closed()
    assert packet.reason == 0x9D  # type: ignore[union-attr]
    assert packet.properties.reason_string == "moved"  # type: ignore[union-attr]
    assert "is not connected" in running.problem("disconnect", "press-7")


@pytest.mark.usefixtures("client")
def test_what_is_deleted_is_gone(running: Running) -> None:
    assert running.text("retained", "delete", "state/7") == "retained message of state/7 deleted\n"
    assert "has no retained message" in running.problem("retained", "delete", "state/7")
    assert running.found("sessions", "delete", "press-7") == {"deleted": "press-7"}
    assert "there is no session of client 'press-7'" in running.problem(
        "sessions", "delete", "press-7"
    )


def test_bans_are_added_listed_and_removed(running: Running) -> None:
    text = running.text("bans", "add", "user", "eve", "--duration", "1d", "--comment", "why")
    assert text == "user eve banned, 0 connections closed\n"
    found = running.found("bans", "add", "address", "2001:db8::/32")
    assert found["banned"]["expires_at"] is None
    header, first, second = running.text("bans", "list").splitlines()
    assert header.split() == ["kind", "value", "expires", "by", "reason"]
    assert re.match(r"user +eve +20\d\d-.*Z +user ID \d+ +why$", first)
    assert re.match(r"address +2001:db8::/32 +user ID \d+$", second)
    assert running.text("bans", "remove", "user", "eve") == "user eve is no longer banned\n"
    assert running.found("bans", "remove", "address", "2001:db8::/32")["stored"] is True
    assert running.found("bans", "list") == {"bans": []}
    assert "user 'eve' is not banned" in running.problem("bans", "remove", "user", "eve")
    assert "neither an IP address" in running.problem("bans", "add", "address", "here")
    assert "'topic' is not one of" in running.problem("bans", "add", "topic", "x", code=2)
    assert "more than 0" in running.problem("bans", "add", "user", "eve", "--duration", "0", code=2)


def test_the_broker_reloads_drains_and_changes_its_log_level(running: Running) -> None:
    assert running.text("reload") == "reloaded users, rights, certificates and limits\n"
    assert len(running.found("reload")["reloaded"]) == 1
    assert running.text("log-level", "warning") == "log level warning\n"
    assert running.found("log-level", "info") == {"log_level": "info"}
    assert "not one of" in running.problem("log-level", "loud", code=2)
    assert running.text("drain", "--timeout", "0") == "drained: the broker can be stopped\n"
    assert running.found("status")["draining"] is True
    assert running.found("drain", "--cancel") == {"draining": False}
    assert "the broker is not being drained" in running.problem("drain", "--cancel")


def test_top_shows_the_busiest_clients(running: Running, client: Link) -> None:
    ending = threading.Event()

    def publish() -> None:
        while not ending.is_set():
            client.send(Publish("t", b"x" * 100))
            client.ping()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        found = running.found("top", "--once", "--interval", "0.2")
        text = running.text("top", "--once", "--interval", "0.2", "--count", "1")
    finally:
        ending.set()
        thread.join()
    assert found["busiest"][0]["client"] == "press-7"
    assert found["busiest"][0]["messages_received_rate"] > 0
    totals, header, row = text.splitlines()
    assert totals.startswith("1 client, ")
    assert re.split("  +", header.rstrip()) == [
        *("client", "address", "messages/s in", "messages/s out", "bytes/s in", "bytes/s out")
    ]
    assert row.startswith("press-7")


def test_top_goes_on_until_it_is_interrupted(running: Running) -> None:
    program = [sys.executable, "-m", "semel", "ctl", "top", "--data", str(running.data)]
    process = subprocess.Popen(
        [*program, "--interval", "0.1", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(3):
        assert json.loads(process.stdout.readline())["clients"] == 0
    process.send_signal(2)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_a_client_identifier_cannot_control_the_terminal(running: Running) -> None:
    with link(running.broker.address, ESCAPES):
        for arguments in (("clients", "list"), ("sessions", "list"), ("top", "--once")):
            text = running.text(*arguments)
            assert "\x1b[2J" not in text
            assert "evil\\x1b[2J" in text
        assert "\x1b" not in running.text("disconnect", ESCAPES)


# --- finding the broker ---------------------------------------------------------------------------


def run(*arguments: str, environ: dict[str, str] | None = None) -> Result:
    names = [name for name in os.environ if name.startswith("SEMEL_")]
    env = {**dict.fromkeys(names), **(environ or {})}
    return CliRunner().invoke(cli.group, ["ctl", "status", *arguments], env=env)


def test_the_socket_is_found_by_each_way(running: Running, tmp_path: Path) -> None:
    path = running.data / "control.sock"
    config = tmp_path / "semel.toml"
    config.write_text(f'[store]\ndata = "{running.data}"\n')
    by_path = tmp_path / "path.toml"
    by_path.write_text(f'[control]\npath = "{path}"\n[store]\ndata = "{tmp_path}"\n')
    for arguments, environ in (
        (("--socket", str(path)), {}),
        (("--data", str(running.data)), {}),
        (("--config", str(config)), {}),
        (("--config", str(by_path)), {}),
        ((), {"SEMEL_STORE_DATA": str(running.data)}),
        ((), {"SEMEL_CONTROL_PATH": str(path)}),
        (("--data", str(running.data)), {"SEMEL_CONTROL_PATH": "/elsewhere"}),
    ):
        done = run(*arguments, environ=environ)
        assert done.exit_code == 0, (arguments, done.output)


def test_without_a_broker_there_is_a_sentence(tmp_path: Path) -> None:
    done = run("--data", str(tmp_path))
    assert done.exit_code == 1
    assert f"no broker listens at {tmp_path}/control.sock: is it running" in done.output
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "control.sock"))
    done = run("--data", str(tmp_path))
    assert "the one that made this socket has ended" in done.output
    (tmp_path / "file").write_text("")
    assert "no broker listens" in run("--socket", str(tmp_path / "file" / "x")).output
    done = run("--socket", str(tmp_path))
    assert f"Error: {tmp_path} cannot be used: " in done.output or "has ended" in done.output
    done = run()
    assert done.exit_code == 2
    assert "no control socket is given: use --socket PATH or --data DIR" in done.output
    done = run("--socket", "x", "--data", "y")
    assert "give one of --socket and --data" in done.output


def test_a_socket_of_another_user_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: socket.socket, address: str) -> None:
        raise PermissionError(13, "Permission denied")

    class Refusing(socket.socket):
        connect = refuse  # type: ignore[assignment]

    monkeypatch.setattr(socket, "socket", Refusing)
    done = run("--socket", str(tmp_path / "s"))
    assert "may be used by root and by the user who runs the broker only" in done.output


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (b"", "has closed the connection"),
        (b"rubbish\n", "has closed the connection"),
        (b'{"error": "no \\u001b[2J"}\n', "Error: no \\x1b[2J"),
        (b'{"entries": []}\n', "has closed the connection"),
    ],
)
def test_a_broker_that_leaves_in_the_middle_is_a_sentence(
    tmp_path: Path, answer: bytes, sentence: str
) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(1_000)
                accepted.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        done = run("--socket", str(path))
        thread.join()
    assert done.exit_code == 1
    assert sentence in done.output


def test_a_broker_that_does_not_answer_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.cli.control_client.ANSWER_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        done = run("--socket", str(tmp_path / "s"))
    assert f"the broker at {tmp_path}/s has not answered within 0.05 seconds" in done.output

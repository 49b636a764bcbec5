"""`semel broker` with listeners of every transport, as a user starts it, and real clients."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.broker.broker_process import HAS_EPOLL, PATIENCE, program
from tests.broker.tls_files import TlsFiles

SEMEL = [sys.executable, "-m", "semel"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("certificates"))


class Broker:
    """A broker that reports events as JSON."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        self._lines = process.stdout
        self.events: list[dict[str, Any]] = []
        while not self.events or self.events[-1]["event"] != "ready":
            line = process.stdout.readline()
            assert line, self.events
            self.events.append(json.loads(line))
        self.listeners = {each["name"]: each for each in self.events[-1]["listeners"]}
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        self.events.extend(json.loads(line) for line in self._lines)

    def texts(self, words: str) -> list[str]:
        return [each["text"] for each in self.events if words in each.get("text", "")]

    def port(self, name: str) -> int:
        return int(self.listeners[name]["port"])

    def url(self, name: str) -> str:
        found = self.listeners[name]
        if found["transport"] == "unix":
            return f"unix:{found['path']}"
        scheme = {"tcp": "mqtt", "tls": "mqtts"}.get(found["transport"], found["transport"])
        path = "/mqtt" if scheme in ("ws", "wss") else ""
        # The certificate is for localhost.
        return f"{scheme}://localhost:{found['port']}{path}"

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._lines.close()
        return code


def start(*arguments: str, epoll: bool = HAS_EPOLL) -> "subprocess.Popen[str]":
    command = [sys.executable, *program(epoll=epoll), "broker", "--json"]
    return subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)


@contextmanager
def broker(*arguments: str, epoll: bool = HAS_EPOLL) -> Iterator[Broker]:
    process = start(*arguments, epoll=epoll)
    running = Broker(process)
    try:
        yield running
        assert running.end() == 0
        assert not running.texts("Traceback")
    finally:
        if process.poll() is None:
            process.kill()
            running.end()


def urls(files: TlsFiles, folder: Path) -> list[str]:
    """One listener of each transport, on ports that the system chooses."""
    certificate = f"certfile={files / 'server.pem'}&keyfile={files / 'server.key'}"
    found = [
        *("mqtt://127.0.0.1:0", f"mqtts://127.0.0.1:0?{certificate}"),
        *("ws://127.0.0.1:0/mqtt", f"wss://127.0.0.1:0/mqtt?{certificate}"),
        f"unix:{folder / 'socket'}",
    ]
    return [word for url in found for word in ("--listener", url)]


def failed(*arguments: str) -> str:
    """What a broker that does not start says, in one line."""
    result = subprocess.run(
        [*SEMEL, "broker", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    return result.stderr


# --- real clients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("epoll", [True, False])
def test_semel_pub_and_sub_speak_every_transport(
    files: TlsFiles, tmp_path: Path, epoll: bool
) -> None:
    with broker(*urls(files, tmp_path), epoll=epoll) as running:
        assert list(running.listeners) == ["tcp", "tls", "ws", "wss", "unix"]
        assert running.events[-1]["port"] == running.port("tcp")
        trusted = ["--cafile", str(files / "ca.pem")]
        for name in running.listeners:
            options = ["--unix", str(tmp_path / "socket")]
            if name != "unix":
                options = ["-h", "localhost", "-p", str(running.port(name))]
                options += ["--ws"] if name in ("ws", "wss") else []
                options += trusted if name in ("tls", "wss") else []
            for _ in range(2):
                # Retained, so that the subscriber need not be there first.
                command = [*SEMEL, "pub", *options, "-t", f"at/{name}", "-m", name, "-q", "2", "-r"]
                subprocess.run(command, check=True, timeout=PATIENCE)
            received = subprocess.run(
                [*SEMEL, "sub", *options, "-t", f"at/{name}", "-C", "1"],
                check=True,
                timeout=PATIENCE,
                capture_output=True,
                text=True,
            )
            assert received.stdout == f"{name}\n"


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="mosquitto_pub not installed")
def test_mosquitto_pub_speaks_tcp_tls_and_unix(files: TlsFiles, tmp_path: Path) -> None:
    with broker(*urls(files, tmp_path)) as running:
        ways = {
            "tcp": ["-p", str(running.port("tcp"))],
            "tls": ["-p", str(running.port("tls")), "--cafile", str(files / "ca.pem")],
            "unix": ["--unix", str(tmp_path / "socket")],
        }
        for name, way in ways.items():
            for version in ("mqttv311", "mqttv5"):
                subprocess.run(
                    ["mosquitto_pub", *way, "-V", version, "-t", "t", "-m", name, "-q", "2"],
                    check=True,
                    timeout=PATIENCE,
                )
    connected = [re.sub(r"\d{4,}", "N", text) for text in running.texts(" connected with MQTT")]
    assert [line.rpartition("(")[2].partition(")")[0] for line in connected] == [
        *["127.0.0.1:N"] * 4,
        *("unix:unix#1", "unix:unix#2"),
    ]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl not installed")
def test_openssl_finds_a_modern_server(files: TlsFiles, tmp_path: Path) -> None:
    with broker(*urls(files, tmp_path)) as running:

        def handshake(*options: str) -> "subprocess.CompletedProcess[str]":
            where = ("-connect", f"127.0.0.1:{running.port('tls')}", "-CAfile", files / "ca.pem")
            return subprocess.run(
                ["openssl", "s_client", "-brief", "-servername", "localhost", *where, *options],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )

        for version in ("-tls1_2", "-tls1_3"):
            found = handshake(version, "-verify_return_error", "-alpn", "mqtt")
            assert found.returncode == 0, found.stderr
        assert handshake("-tls1_1", "-cipher", "ALL:@SECLEVEL=0").returncode != 0
        assert handshake("-alpn", "h2").returncode != 0


# --- starting and stopping ------------------------------------------------------------------------


def test_the_socket_file_of_a_killed_broker_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    first = subprocess.Popen([*SEMEL, "broker", "--quiet", "--listener", f"unix:{path}"])
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    found = failed("--listener", f"unix:{path}")
    assert found == f"Error: cannot listen on unix:{path}: it is in use by another program\n"
    first.kill()
    first.wait()
    assert path.exists()
    with broker("--listener", f"unix:{path}"):
        command = [*SEMEL, "pub", "--unix", str(path), "-t", "t", "-m", "x", "-q", "1"]
        subprocess.run(command, check=True, timeout=PATIENCE)
    assert not path.exists()


def test_one_listener_in_use_closes_the_others(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = failed(
            *("--listener", f"unix:{tmp_path / 'socket'}"),
            *("--listener", f"mqtt://127.0.0.1:{port}?name=second"),
        )
    assert found == f"Error: 127.0.0.1:{port} is in use by another program (listener second)\n"
    assert not (tmp_path / "socket").exists()


def test_listeners_of_a_file(files: TlsFiles, tmp_path: Path) -> None:
    config = tmp_path / "semel.toml"
    config.write_text(
        f"""
        [[listener]]
        name = "six"
        host = "::1"
        port = 0
        maximum_keep_alive = 30

        [[listener]]
        name = "safe"
        transport = "tls"
        port = 0
        certfile = "{files / "server.pem"}"
        keyfile = "{files / "server.key"}"
        """
    )
    with broker("--config", str(config)) as running:
        ports = running.port("six"), running.port("safe")
        (text,) = running.texts("listening on")
        assert text.startswith(f"listening on [::1]:{ports[0]}, 127.0.0.1:{ports[1]} (tls), MQTT")
        command = [*SEMEL, "pub", "-h", "::1", "-p", str(ports[0]), "-t", "t", "-m", "x", "-q", "1"]
        subprocess.run(command, check=True, timeout=PATIENCE)
    found = failed("--config", str(config), "--port", "1")
    assert "flag --port: [broker] port has no effect beside [[listener]]" in found
    checked = subprocess.run(
        [*SEMEL, "broker", "--config", str(config), "--check-config"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert checked.stdout == "the settings are valid\n"


# --- strangers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["--host", "0.0.0.0", "--port", "0"],
        ["--host", "0.0.0.0", "--port", "0", "--check-config"],
        ["--listener", "mqtt://0.0.0.0:0"],
        ["--listener", "ws://[::]:0"],
    ],
)
def test_a_listener_that_lets_strangers_in_is_refused(arguments: list[str]) -> None:
    found = failed(*arguments)
    assert "would let strangers in: other machines can reach " in found
    assert "Configure users in [users], or permit this by " in found
    assert found.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--host", "0.0.0.0", "--port", "0", "--anonymous"],
        ["--listener", "mqtt://0.0.0.0:0?anonymous=true"],
        ["--listener", "mqtt://127.0.0.1:0"],
    ],
)
def test_a_listener_that_says_so_or_is_local_is_opened(arguments: list[str]) -> None:
    with broker(*arguments) as running:
        (listener,) = running.listeners.values()
        with socket.create_connection(("127.0.0.1", int(listener["port"])), PATIENCE):
            pass


def test_a_broker_that_admits_nobody_is_refused() -> None:
    found = failed("--port", "0", "--no-anonymous")
    assert "nobody could connect to listener default (127.0.0.1:0)" in found

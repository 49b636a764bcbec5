"""A real broker and `semel ctl`, as a user runs them: permissions, restarts, many sessions."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from semel.broker.network.control_protocol import encode_request
from semel.mqtt import MQTT5, MQTT311, ConnAck, Connect, Disconnect, Properties
from tests.broker.broker_process import PATIENCE, Process
from tests.broker.by_hand import Link, healthy_pair, link
from tests.modes import repeats

# A user who is neither root nor the one who runs the broker.
NOBODY = 65_534


def ctl(*arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "semel", "ctl", *arguments, "--data", str(data)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def found_by(*arguments: str, data: Path) -> Any:
    """What a command prints as JSON."""
    done = ctl(*arguments, "--json", data=data)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_bans_survive_a_restart_and_even_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Process("--data", str(data)) as broker:
        with link(broker.address, "bad") as bad, healthy_pair(broker.address):
            done = ctl("bans", "add", "client", "bad", "--comment", "floods", data=data)
            assert done.stdout == "client bad banned, 1 connection closed\n"
            (packet,) = bad.until_closed()
            assert isinstance(packet, Disconnect)
            assert packet.reason == 0x98
        assert ctl("bans", "add", "address", "10.1.0.0/16", "--duration", "1h", data=data)
        broker.process.kill()
        broker.process.wait()
        # A broker that was killed cannot end well.
        broker.process.returncode = 0
    with Process("--data", str(data)) as broker:
        for version, code in ((MQTT5, 0x8A), (MQTT311, 5)):
            with link(broker.address, version=version) as refused:
                assert refused.connect("bad").reason == code
        bans = found_by("bans", "list", data=data)["bans"]
        assert [(each["kind"], each["value"]) for each in bans] == [
            ("client", "bad"),
            ("address", "10.1.0.0/16"),
        ]
        assert ctl("bans", "remove", "client", "bad", data=data).returncode == 0
        with link(broker.address, "bad"):
            pass


def test_a_file_of_bans_with_a_bad_line_ends_the_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Process("--data", str(data)):
        pass
    (data / "bans.jsonl").write_text('{"kind": "client", "value": "a"}\nrubbish\n')
    done = subprocess.run(
        [sys.executable, "-m", "semel", "broker", "--port", "0", "--data", str(data)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert f"Error: {data}/bans.jsonl, line 2: it is not JSON. Correct or" in done.stderr
    assert "Traceback" not in done.stderr


def test_deletions_are_on_disk_when_they_are_reported(tmp_path: Path) -> None:
    data = tmp_path / "data"
    durable = Properties(session_expiry_interval=3600)
    with Process("--data", str(data)) as broker:
        with link(broker.address) as client:
            client.connect("a", properties=durable)
            client.subscribe("t", 1)
        with link(broker.address) as client:
            client.connect("b", properties=durable)
        done = ctl("sessions", "delete", "a", data=data)
        assert done.stdout == "session of a deleted\n"
        broker.process.kill()
        broker.process.wait()
        broker.process.returncode = 0
    with Process("--data", str(data)) as broker:
        sessions = found_by("sessions", "list", data=data)["sessions"]
        assert [each["client"] for each in sessions] == ["b"]
        with link(broker.address) as client:
            assert not client.connect("a", clean_start=False).session_present


def as_nobody(path: Path) -> str:
    """What the control socket tells another user."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                # The broker may have closed the connection already.
                with suppress(BrokenPipeError):
                    client.sendall(encode_request("status", {}))
                os.write(writing, client.makefile("rb").readline())
        except OSError as problem:
            os.write(writing, type(problem).__name__.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as file:
        answer = file.read()
    os.waitpid(child, 0)
    return answer


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_by_the_file_and_by_the_broker() -> None:
    with ExitStack() as stack:
        # Other users may not enter the folders of pytest.
        folder = Path(stack.enter_context(TemporaryDirectory()))
        folder.chmod(0o755)
        data = folder / "data"
        broker = stack.enter_context(Process("--data", str(data)))
        assert as_nobody(data / "control.sock") == "PermissionError"
        # Even if somebody opens the folder and the file to all.
        data.chmod(0o755)
        (data / "control.sock").chmod(0o666)
        answer = as_nobody(data / "control.sock")
        assert f"user ID {NOBODY} may not control this broker" in answer
        assert found_by("status", data=data)["clients"] == 0
        data.chmod(0o700)
    assert any("control connection refused" in line for line in broker.log)


class RoundTrips(threading.Thread):
    """An innocent client that asks and is answered all the time."""

    def __init__(self, client: Link) -> None:
        super().__init__()
        self.client = client
        self.ending = threading.Event()
        self.seconds: list[float] = []

    def run(self) -> None:
        while not self.ending.is_set():
            began = time.monotonic()
            self.client.ping()
            self.seconds.append(time.monotonic() - began)


def test_listing_many_sessions_does_not_keep_a_client_waiting(tmp_path: Path) -> None:
    sessions = repeats(50_000, 2_000)
    data = tmp_path / "data"
    durable = Properties(session_expiry_interval=3600)
    with Process("--data", str(data), "--no-connection-messages") as broker:
        for start in range(0, sessions, 500):
            links = [Link(broker.address) for _ in range(500)]
            # All at once: each CONNACK waits for a commit.
            for number, each in enumerate(links):
                each.send(Connect(f"c{start + number}", properties=durable))
            for each in links:
                (connack,) = each.take(1)
                assert isinstance(connack, ConnAck)
                assert connack.reason == 0
                each.close()
        with link(broker.address, "innocent") as innocent:
            trips = RoundTrips(innocent)
            trips.start()
            try:
                found = found_by("sessions", "list", data=data)["sessions"]
                found_by("subscriptions", "list", data=data)
            finally:
                trips.ending.set()
                trips.join()
        names = {each["client"] for each in found}
        assert len(names) == len(found) == sessions + 1
        # It was answered between the pages, not only before and after them.
        assert len(trips.seconds) > sessions // 1_000
        slowest = max(trips.seconds)
        print(f"{sessions} sessions: {len(trips.seconds)} round trips, slowest {slowest:.4f} s")


def test_the_audit_log_is_opened_again_on_sighup(tmp_path: Path) -> None:
    config = tmp_path / "semel.toml"
    audit = tmp_path / "audit.jsonl"
    config.write_text(f'[audit]\nfile = "{audit}"\n[control]\npath = "{tmp_path}/ctl.sock"\n')
    with Process("--config", str(config)) as broker:
        with link(broker.address, "before"):
            pass
        audit.rename(tmp_path / "audit.1")
        broker.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + PATIENCE
        while not audit.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        with link(broker.address, "after"):
            pass
    events = [json.loads(line) for line in (tmp_path / "audit.1").read_text().splitlines()]
    events += [json.loads(line) for line in audit.read_text().splitlines()]
    clients = [each["client"] for each in events if each["event"] == "connected"]
    assert clients == ["before", "after"]
    assert not any("ignored" in line for line in broker.log)


def test_a_reload_reports_a_mistake_and_changes_nothing(tmp_path: Path) -> None:
    data, config = tmp_path / "data", tmp_path / "semel.toml"
    config.write_text("[broker]\nreceive_maximum = 10\n")
    with Process("--config", str(config), "--data", str(data)) as broker:
        config.write_text("[broker]\nreceive_maximum = 20\n")
        assert ctl("reload", data=data).stdout == (
            "reloaded users, rights, certificates and limits\n"
        )
        with link(broker.address) as client:
            assert client.connect("a").properties.receive_maximum == 20
        config.write_text("[broker]\nreceive_maximum = 0\nport = 'x'\n")
        done = ctl("reload", data=data)
        assert done.returncode == 1
        assert "Error: reload failed, so nothing has changed: " in done.stderr
        assert "receive_maximum is 0, but" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        with link(broker.address) as client:
            assert client.connect("a").properties.receive_maximum == 20


def test_a_drained_broker_has_no_clients_and_can_be_stopped(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Process("--data", str(data)) as broker:
        links = [Link(broker.address) for _ in range(20)]
        for number, each in enumerate(links):
            each.connect(f"c{number}")
        done = ctl("drain", "--timeout", "0.5", "--server-reference", "b", data=data)
        assert done.stdout == "drained: the broker can be stopped\n", done.stderr
        for each in links:
            (packet,) = each.until_closed()
            assert isinstance(packet, Disconnect)
            assert (packet.reason, packet.properties.server_reference) == (0x9C, "b")
            each.close()
        with link(broker.address) as refused:
            assert refused.connect("new").reason == 0x9C
        assert ctl("drain", "--cancel", data=data).returncode == 0
        with link(broker.address, "new"):
            pass


@pytest.mark.parametrize("epoll", [True, False])
def test_both_loops_serve_the_control_socket(tmp_path: Path, epoll: bool) -> None:
    data = tmp_path / "data"
    with Process("--data", str(data), epoll=epoll):
        assert found_by("status", data=data)["sessions"] == 0
    assert not (data / "control.sock").exists()


def test_a_socket_that_cannot_be_opened_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    done = subprocess.run(
        [sys.executable, "-m", "semel", "broker", "--port", "0"],
        env={**os.environ, "SEMEL_CONTROL_PATH": str(tmp_path / "taken")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert f"the control socket {tmp_path}/taken cannot be used: there is another" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_log_for_a_journal_that_is_not_there_ends_the_start() -> None:
    if Path("/run/systemd/journal/socket").exists():
        pytest.skip("this machine has a journal")
    done = subprocess.run(
        [sys.executable, "-m", "semel", "broker", "--port", "0", "--log-format", "journald"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert "[broker] log_format is journald, but /run/systemd/journal/socket" in done.stderr


def test_a_log_of_json_is_on_standard_error(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "semel", "broker", "--port", "0", "--log-format", "json"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert json.loads(process.stderr.readline())["event"] == "ready"
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0

"""The broker on a real socket: started as a user would start it."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    Publish,
    Subscribe,
    Subscription,
    encode,
)
from tests.broker.broker_process import PATIENCE, Process
from tests.broker.by_hand import link


@pytest.fixture
def broker() -> Iterator[Process]:
    with Process() as process:
        yield process


def talk(address: tuple[str, int], *packets: Packet, version: int) -> list[Packet]:
    """Send packets and a DISCONNECT on a new connection; everything that comes until its end."""
    decoder = Decoder(version)
    received: list[Packet] = []
    with socket.create_connection(address, timeout=PATIENCE) as sock:
        sock.sendall(b"".join(encode(packet, version) for packet in (*packets, Disconnect())))
        while data := sock.recv(65_536):
            for item in decoder.receive(data):
                assert not isinstance(item, Exception)
                received.append(item)
    return received


def test_a_connect_over_tcp_is_answered_in_both_versions(broker: Process) -> None:
    assert talk(broker.address, Connect("a", version=MQTT311), version=MQTT311) == [ConnAck()]
    (connack,) = talk(broker.address, Connect("a"), version=MQTT5)
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0


def test_one_clients_garbage_does_not_touch_another(broker: Process) -> None:
    """Class 14: one exception, or one bad client, never reaches the shared loop."""
    with socket.create_connection(broker.address, timeout=PATIENCE) as steady:
        steady.sendall(encode(Connect("steady", version=MQTT311), MQTT311))
        assert steady.recv(4) == encode(ConnAck(), MQTT311)
        for garbage in (
            b"\x00\x00",
            b"GET / HTTP/1.1\r\n\r\n",
            b"\x10\xff\xff\xff\x7f",
            random.Random(14).randbytes(64),
        ):
            with socket.create_connection(broker.address, timeout=PATIENCE) as bad:
                bad.sendall(garbage)
                bad.settimeout(2)
                try:
                    while bad.recv(1_024):
                        pass
                except (TimeoutError, ConnectionResetError):
                    pass
        steady.sendall(b"\xc0\x00")
        assert steady.recv(2) == b"\xd0\x00"


def test_packets_in_single_bytes_are_packets(broker: Process) -> None:
    """[MQTT-6.0.0-2] in spirit: framing has nothing to do with segments"""
    data = encode(Connect("a", version=MQTT311), MQTT311) + b"\xc0\x00"
    with socket.create_connection(broker.address, timeout=PATIENCE) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in data:
            sock.sendall(bytes([byte]))
        received = b""
        while len(received) < 6:
            received += sock.recv(6)
        assert received == b"\x20\x02\x00\x00\xd0\x00"


def test_it_prints_where_it_listens_and_ends_with_ctrl_c() -> None:
    process = Process("--host", "127.0.0.1")
    assert process.address[0] == "127.0.0.1"
    assert process.stop(signal.SIGINT) == 0


def test_a_port_in_use_is_one_clear_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = subprocess.run(
            [sys.executable, "-m", "semel", "broker", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    assert result.returncode == 1
    assert result.stderr == f"Error: 127.0.0.1:{port} is in use by another program\n"


@pytest.mark.parametrize("host", ["a..b", "no such host", "256.0.0.1"])
def test_a_host_that_cannot_be_is_one_clear_sentence(host: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "semel", "broker", "--host", host, "--port", "0"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith(f"Error: cannot listen on {host}:0: ")
    assert result.stderr.count("\n") == 1


def test_an_address_of_another_machine_is_one_clear_sentence() -> None:
    host = "198.51.100.1"
    result = subprocess.run(
        [*(sys.executable, "-m", "semel", "broker"), "--host", host, "--port", "0", "--anonymous"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert result.returncode == 1
    sentence = f"cannot listen on {host}:0: {host} is not an address of this machine"
    assert result.stderr == f"Error: {sentence}\n"


def test_sigterm_tells_clients_and_exits_0() -> None:
    process = Process()
    with socket.create_connection(process.address, timeout=PATIENCE) as sock:
        sock.sendall(encode(Connect("a")))
        decoder = Decoder()
        packets = decoder.receive(sock.recv(1_000))
        assert len(packets) == 1
        process.process.send_signal(signal.SIGTERM)
        assert sock.recv(100) == bytes.fromhex("e0018b")
        assert sock.recv(100) == b""
    # Another signal, when Python has begun to end, would end it by itself.
    process.process.wait(PATIENCE)
    assert process.stop() == 0


def test_a_thousand_messages_in_one_write_all_arrive(broker: Process) -> None:
    with (
        socket.create_connection(broker.address, timeout=PATIENCE) as subscriber,
        socket.create_connection(broker.address, timeout=PATIENCE) as publisher,
    ):
        subscriber.sendall(
            encode(Connect("s", version=MQTT311), MQTT311) + bytes.fromhex("8206000100017400")
        )
        assert subscriber.recv(9, socket.MSG_WAITALL) == bytes.fromhex("200200009003000100")
        publisher.sendall(encode(Connect("p", version=MQTT311), MQTT311))
        packets = [encode(Publish("t", b"%06d" % n), MQTT311) for n in range(1_000)]
        publisher.sendall(b"".join(packets))
        expected = b"".join(packets)
        # With a time-out MSG_WAITALL does not wait: what comes in several pieces is put together.
        received = b""
        while len(received) < len(expected):
            piece = subscriber.recv(len(expected))
            assert piece
            received += piece
        assert received == expected


def test_settings_that_are_wrong_are_sentences_and_no_traceback() -> None:
    for arguments in (["--port", "99999"], ["--config", "no-such-file.toml"]):
        result = subprocess.run(
            [sys.executable, "-m", "semel", "broker", *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert result.returncode != 0
        assert "Error: " in result.stderr
        assert "Traceback" not in result.stderr


def test_check_config_says_that_settings_are_right() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "semel", "broker", "--check-config"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert result.stdout == "the settings are valid\n"


def test_a_peer_that_does_not_read_does_not_keep_its_connection() -> None:
    """Class 13: what a reader does not take is bounded, and closing does not wait for it.

    It does not send either, so that its Keep Alive ends it.
    """
    process = Process("--maximum-outgoing-bytes", "100kB", "--sys-interval", "1s")
    try:
        with (
            socket.create_connection(process.address, timeout=PATIENCE) as stuck,
            socket.create_connection(process.address, timeout=PATIENCE) as publisher,
            socket.create_connection(process.address, timeout=PATIENCE) as watcher,
        ):
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            silent = Connect("stuck", version=MQTT311, keep_alive=1)
            stuck.sendall(encode(silent, MQTT311))
            stuck.sendall(bytes.fromhex("8206000100017401"))
            assert stuck.recv(9, socket.MSG_WAITALL)
            topic = "$SYS/broker/clients/connected"
            watcher.sendall(encode(Connect("watcher", version=MQTT311), MQTT311))
            watcher.sendall(encode(Subscribe(1, [Subscription(topic)]), MQTT311))
            publisher.sendall(encode(Connect("publisher", version=MQTT311), MQTT311))
            assert publisher.recv(4, socket.MSG_WAITALL)
            for number in range(1, 60):
                message = Publish("t", bytes(200_000), qos=1, packet_id=number)
                publisher.sendall(encode(message, MQTT311))
                assert publisher.recv(4, socket.MSG_WAITALL)
            decoder = Decoder(MQTT311)
            counts: list[bytes] = []
            while not counts or counts[-1] != b"2":
                for packet in decoder.receive(watcher.recv(4_096)):
                    if isinstance(packet, Publish):
                        counts.append(packet.payload)
    finally:
        assert process.stop() == 0


def test_a_broker_whose_log_nobody_reads_serves_on() -> None:
    """A pipe takes some hundred lines: each of these is one or two."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "semel", "broker", "--port", "0"),
            *("--log-lines-per-minute", "0"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        first = process.stderr.readline()
        port = int(first.partition("127.0.0.1:")[2].partition(",")[0])
        for number in range(1_200):
            with link(("127.0.0.1", port), version=MQTT5) as client:
                client.connect(f"client-{number}" + "x" * 40)
        process.terminate()
        # What it has to say yet is read to the end.
        _, rest = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    lines = rest.splitlines()
    assert any(" more in the last 10 s, such as: 'client-" in line for line in lines)
    assert lines[-1].endswith("stopping") or " more in the last" in lines[-1]


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoll", [True, False])
def test_signals_without_a_meaning_are_logged_and_ignored(epoll: bool) -> None:
    with Process(epoll=epoll) as broker:
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            broker.process.send_signal(number)
            # A thread of its own waits for signals.
            end = time.monotonic() + PATIENCE
            while not any(number.name in line for line in broker.log):
                assert time.monotonic() < end
                time.sleep(0.01)
            talk(broker.address, Connect("a"), version=MQTT5)
        assert broker.stop() == 0
        ignored = [line.split(" ", 2)[2] for line in broker.log if "ignored" in line]
    assert ignored == [
        f"{name} ignored: there is nothing to reload\n" for name in ("SIGUSR1", "SIGUSR2")
    ]


def test_a_hangup_that_nohup_ignores_is_not_even_logged() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Process() as broker:
            broker.process.send_signal(signal.SIGHUP)
            talk(broker.address, Connect("a"), version=MQTT5)
            assert broker.stop() == 0
            assert not [line for line in broker.log if "SIGHUP" in line]
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("stored", [False, True])
def test_a_hangup_while_it_ends_does_not_kill_it(stored: bool, tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data")) if stored else ()
    with Process(*data) as broker:
        broker.process.send_signal(signal.SIGTERM)
        end = time.monotonic() + PATIENCE
        while broker.process.poll() is None and time.monotonic() < end:
            # Without a pause, because the handlers are replaced within microseconds.
            broker.process.send_signal(signal.SIGHUP)
        assert broker.process.returncode == 0


# --- what is logged -------------------------------------------------------------------------------


def logged(*arguments: str, **environment: str) -> list[str]:
    """What a broker logs while a client with credentials, and one that breaks a rule, come."""
    # Without a line that says so it cannot be known where it listens.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "semel", "broker", "--port", str(port), *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        until_listening(port)
        for _ in range(2):
            talk(("127.0.0.1", port), Connect("a", user_name="ann", password=b"x"), version=MQTT5)
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as sock:
            sock.sendall(b"\x00\x00")
            assert sock.recv(100) == b""
    finally:
        process.terminate()
    _, log = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, log
    return [line.split(" ", 2)[2] for line in log.splitlines()]


def until_listening(port: int) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"nobody listens on {port}")


def kinds(lines: list[str]) -> list[str]:
    words = ("listening", "not checked", "connected with", "disconnected", "broke a rule")
    found = [word for line in lines for word in (*words, "stopping") if word in line]
    # One who connects and says nothing may be gone before it is seen.
    assert len(found) >= len([line for line in lines if "lost its connection" not in line])
    return found


def test_by_default_everything_is_logged_and_credentials_are_doubted_once() -> None:
    assert kinds(logged()) == [
        *("listening", "not checked", "connected with", "disconnected"),
        *("connected with", "disconnected", "broke a rule", "stopping"),
    ]


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (["--quiet"], {}, ["not checked", "broke a rule"]),
        (["--log-level", "warning"], {}, ["not checked", "broke a rule"]),
        (["--log-level", "error"], {}, []),
        ([], {"SEMEL_BROKER_LOG_LEVEL": "warning"}, ["not checked", "broke a rule"]),
        (
            ["--no-connection-messages"],
            {},
            ["listening", "not checked", "broke a rule", "stopping"],
        ),
    ],
)
def test_less_is_logged_if_less_is_wanted(
    arguments: list[str], environment: dict[str, str], expected: list[str]
) -> None:
    assert kinds(logged(*arguments, **environment)) == expected


def test_quiet_and_a_log_level_are_one_too_many() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "semel", "broker", "--quiet", "--log-level", "info"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert result.returncode == 2
    assert "give one of --quiet and --log-level" in result.stderr

"""Mosquitto as a peer of the client: one process, with as many listeners as a test needs."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kills.brokers import free_port

NEEDS_MOSQUITTO = pytest.mark.skipif(
    shutil.which("mosquitto") is None, reason="not installed: mosquitto"
)
# The shortest CONNECT of 3.1.1, with a clean session, and its answer.
CONNECT = bytes.fromhex("100c00044d5154540402003c0000")
CONNACK = bytes.fromhex("20020000")
# Generous: it only ends what would hang.
PATIENCE = 20.0


@contextmanager
def mosquitto(folder: Path, *listeners: list[str]) -> Iterator[list[int]]:
    """Mosquitto with these listeners, each a list of lines of its configuration. Their ports.

    A listener whose first line is `unix PATH` is a unix socket, and its port is 0.
    """
    ports = [0 if lines and lines[0].startswith("unix ") else free_port() for lines in listeners]
    # Without its user it would give up the rights of root, and could not write into `folder`.
    configuration = ["user root", "per_listener_settings false", "allow_anonymous true"]
    for port, lines in zip(ports, listeners, strict=True):
        if port:
            configuration += [f"listener {port} 127.0.0.1", *lines]
        else:
            configuration += [f"listener 0 {lines[0].removeprefix('unix ')}", *lines[1:]]
    file = folder / "mosquitto.conf"
    file.write_text("\n".join(configuration) + "\n")
    log = folder / "mosquitto.log"
    with log.open("wb") as written:
        process = subprocess.Popen(
            ["mosquitto", "-v", "-c", file], stdout=written, stderr=subprocess.STDOUT
        )
    try:
        for port in ports:
            wait_for(port, process, log)
        yield ports
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until it listens on `port`. Those without one are listed first, and are ready then."""
    end = time.monotonic() + PATIENCE
    while port:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.01)

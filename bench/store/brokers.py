"""Brokers with persistence, each with its own directory.

semel      `--data` with default settings: an acknowledgement is sent after the fsync of its commit
Mosquitto  `persistence true` with default settings: it writes its database every 30 minutes
           (autosave_interval) and when it stops, so nothing is on disk while it is measured. The
           other settings are those of the broker's bench.
"""

import contextlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.broker.contenders import (
    HOST,
    SEMEL,
    START_SECONDS,
    DidNotStart,
    Family,
    Process,
    free_port,
    has_ended,
    last_log_line,
    launched,
    mosquitto_path,
)
from bench.broker.wire import encode_connect
from semel.lab.load.description import WINDOW
from semel.lab.load.links import LinkError, read_packet
from semel.mqtt import MQTT311

_MOSQUITTO_SETTINGS: Final = """
listener {port} {host}
allow_anonymous true
persistence true
persistence_location {folder}/
set_tcp_nodelay true
max_inflight_messages {window}
max_queued_messages 0
max_queued_bytes 0
log_dest stderr
"""


def command(name: str, port: int, folder: Path, options: tuple[str, ...] = ()) -> list[str]:
    """The command of a broker with its data in `folder`."""
    if name == SEMEL:
        listen = ["--host", HOST, "--port", str(port), "--data", str(folder / "data")]
        return [sys.executable, "-m", "semel", "broker", *listen, *options]
    path = mosquitto_path()
    assert path is not None
    settings = folder / "settings"
    settings.write_text(
        _MOSQUITTO_SETTINGS.format(host=HOST, port=port, folder=folder, window=WINDOW)
    )
    if os.geteuid() == 0:
        # Started by root it changes its user, who must be able to write here.
        folder.chmod(0o777)
    return [path, "-c", str(settings)]


@contextlib.contextmanager
def keeping(
    name: str, folder: Path, processors: set[int] | None, options: tuple[str, ...] = ()
) -> Iterator[Family]:
    """Start a broker with its data in `folder`, and wait for it; None: on all processors."""
    port = free_port()
    log_path = folder / "log"
    with launched(command(name, port, folder, options), port, log_path) as process:
        if processors is not None:
            os.sched_setaffinity(process.pid, processors)
        first_answer(process, encode_connect(MQTT311, "first"), START_SECONDS).close()
        yield Family(process)


def first_answer(process: Process, connect_packet: bytes, seconds: float) -> socket.socket:
    """Connect the first client; retries until the broker answers."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not has_ended(process.pid):
        with contextlib.suppress(OSError, LinkError):
            link = socket.create_connection((HOST, process.port), seconds)
            try:
                link.sendall(connect_packet)
                first, body = read_packet(link)
            except BaseException:
                link.close()
                raise
            if first != 0x20 or body[1]:
                link.close()
                raise DidNotStart(f"refused a client: {first:#x} {body.hex()}")
            return link
        time.sleep(0.005)
    raise DidNotStart(f"does not answer: {last_log_line(process.log)}")


@contextlib.contextmanager
def fresh_folder(parent: Path | None) -> Iterator[Path]:
    """A temporary directory for one run, on the disk to measure."""
    with tempfile.TemporaryDirectory(prefix="semel-bench-", dir=parent) as folder:
        yield Path(folder)

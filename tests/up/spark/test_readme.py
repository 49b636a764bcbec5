"""The four commands of the README, run in one directory as it shows them.

Only the port is the test's, and `semel sub` ends after one message.
"""

import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parents[3] / "README.md").read_text("utf-8")
COMMANDS = {
    line.split()[0]: shlex.split(line)
    for line in re.findall(r"^\$ semel (.*?)(?:\s+#.*)?$", README, re.MULTILINE)
}
# Spark may take a minute to start on a busy machine.
SPARK_SECONDS = 400.0
TIMEOUT_SECONDS = 60.0


def semel(name: str, *flags: str) -> list[str]:
    """A command of the README with further flags."""
    return [sys.executable, "-m", "semel", *COMMANDS[name], *flags]


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def wait_until_listening(process: "subprocess.Popen[bytes]", port: str) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while True:
        assert process.poll() is None
        assert time.monotonic() < end
        try:
            socket.create_connection(("127.0.0.1", int(port))).close()
        except ConnectionRefusedError:
            time.sleep(0.05)
        else:
            return


@contextmanager
def running_up(folder: Path, port: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`semel up`, killed at the end if it is still running; its processes end with it."""
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            semel("up", "--port", port),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        wait_until_listening(process, port)
        yield process
    finally:
        process.kill()
        process.wait(TIMEOUT_SECONDS)


def test_the_commands_of_the_readme_publish_print_query_and_land(tmp_path: Path) -> None:
    for package in ("pyspark", "deltalake", "duckdb"):
        pytest.importorskip(package)
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    port = free_port()
    published = 0

    def publish() -> None:
        nonlocal published
        subprocess.run(semel("pub", "-p", port), cwd=tmp_path, timeout=TIMEOUT_SECONDS, check=True)
        published += 1

    with running_up(tmp_path, port) as up:
        publish()
        with subprocess.Popen(
            semel("sub", "-p", port, "-C", "1"), cwd=tmp_path, stdout=subprocess.PIPE, text=True
        ) as sub:
            # It may take a few messages until it has subscribed.
            while sub.poll() is None and published < 50:
                publish()
            printed, _ = sub.communicate(timeout=TIMEOUT_SECONDS)
        assert printed == "plant/1/temp 21.5\n"
        result = subprocess.run(
            semel("sql"),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=True,
        )
        assert result.stdout.split()[-2:] == ["plant/1/temp", str(published)]

        table = tmp_path / "semel-data" / "lake" / "messages"
        landed = 0
        end = time.monotonic() + SPARK_SECONDS
        while landed < published:
            assert up.poll() is None, (tmp_path / "up.log").read_text()
            assert time.monotonic() < end
            time.sleep(0.2)
            try:
                landed = DeltaTable(table).to_pyarrow_table().num_rows
            except TableNotFoundError:
                continue
        assert landed == published
        up.send_signal(signal.SIGINT)
        assert up.wait(SPARK_SECONDS) == 0, (tmp_path / "up.log").read_text()

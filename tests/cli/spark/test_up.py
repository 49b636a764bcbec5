"""`semel up` as users run it: a process, its exit code, what it says, and a terminal's Ctrl-C.

What it does with Spark is tested in tests/up/spark/test_up.py.
"""

import asyncio
import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from semel import cli
from semel.cli.line_queue import MOST_WAITING, LineQueue
from semel.processes import descendants, list_processes
from tests.broker.broker_process import PATIENCE
from tests.broker.broker_process import Process as Broker
from tests.kills.ingesting import Publisher
from tests.terminals import open_terminal
from tests.up.test_supervisor import gone

WITHOUT = "import sys; sys.modules[{!r}] = None; from semel.cli import main; main()"
LISTENING = re.compile(r"listening on [\d.]+:(\d+)")


@pytest.fixture(autouse=True)
def pyarrow() -> None:
    pytest.importorskip("pyarrow")


class Process:
    """`semel up`, with what it writes in files."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        program: tuple[str, ...] = ("-m", "semel"),
        stdout: int | None = None,
        environ: dict[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.out = folder / "stdout"
        self.err = folder / "stderr"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *program, "up", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out if stdout is None else stdout,
                stderr=err,
                env=environ,
            )

    @property
    def said(self) -> str:
        return self.err.read_text()

    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.read_text().split("\n")[:-1]]

    def says(self, words: str) -> str:
        """What it has said, as soon as this is in it."""
        end = time.monotonic() + PATIENCE
        while words not in self.said:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.01)
        return self.said

    def port(self) -> int:
        self.says("Try, in another shell")
        found = LISTENING.search(self.said)
        assert found is not None
        return int(found[1])

    def invites(self) -> None:
        """Wait until its objects tell what to try."""
        end = time.monotonic() + PATIENCE
        while not any(each["event"] == "try" for each in self.objects()):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.01)

    def wait_for_child(self, word: str) -> int:
        """The process below it that has this word in its command, as soon as there is one.

        A child has the command of its parent until it has executed its own.
        """
        end = time.monotonic() + PATIENCE
        while True:
            for pid in descendants([self.process.pid], list_processes()):
                with suppress(OSError):
                    if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                        return pid
            assert time.monotonic() < end, self.said
            time.sleep(0.01)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def running(folder: Path, *arguments: str, **how: Any) -> Iterator[Process]:
    """One at work, of which nothing is left afterwards."""
    made = Process(folder, *arguments, **how)
    try:
        yield made
    finally:
        # What it has started ends with it.
        made.process.kill()
        made.process.wait(PATIENCE)


def publish(port: int, *payloads: str) -> None:
    with Publisher(port) as publisher:
        for payload in payloads:
            publisher.publish("plant/1", payload.encode(), 2)
        publisher.finish()


def ended(folder: Path, *arguments: str, **how: Any) -> tuple[int, str]:
    """The exit code of one that ends by itself, and all that it said."""
    with running(folder, *arguments, **how) as made:
        return made.process.wait(PATIENCE), made.said


# --- for people -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_it_in_order_with_an_account(tmp_path: Path, number: int) -> None:
    with running(tmp_path, "--no-land", "--port", "0") as made:
        publish(made.port(), "a", "b", "c")
        assert made.end(number) == 0
        lines = made.said.splitlines()
    assert lines[0].endswith("semel up data: semel-data; record: semel-data/streams")
    assert lines[-2].endswith("broker   stopped")
    assert lines[-1].endswith("semel up 3 recorded since the start; 3 in all")
    assert (tmp_path / "semel-data" / "store.db").exists()
    with running(tmp_path, "--no-land", "--port", "0") as again:
        publish(again.port(), "d")
        assert again.end(number) == 0
        assert again.said.splitlines()[-1].endswith("1 recorded since the start; 4 in all")


@pytest.mark.parametrize("more", [(), ("--root", "my root")], ids=["", "another root"])
def test_the_lines_to_try_work_when_they_are_pasted(tmp_path: Path, more: tuple[str, ...]) -> None:
    environ = {**os.environ, "SEMEL_STORE_SEAL_AFTER": "10ms"}
    given = ("--no-land", "--port", "0", "--data", "my data", *more)
    with running(tmp_path, *given, environ=environ) as made:
        publish(made.port(), "first")
        root = tmp_path / (more[1] if more else "my data/streams")
        # Some rows are sealed, and only who knows where can read them.
        while not list(root.glob("all/*/*.parquet")):
            assert made.process.poll() is None
            time.sleep(0.01)
        lines = [line.strip() for line in made.said.splitlines() if line.startswith("  ")]
        answers = []
        for line in lines:
            found = subprocess.run(
                ["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
            )
            assert (found.returncode, found.stderr) == (0, "")
            answers.append(found.stdout)
        assert len(answers) == 2
        assert "first" in answers[1]
        assert "21.5" in answers[1]
        assert made.end() == 0


def test_quiet_says_nothing_as_long_as_nothing_is_wrong(tmp_path: Path) -> None:
    with running(tmp_path, "--no-land", "--port", "0", "--quiet", "--json") as made:
        made.invites()
        os.kill(int((tmp_path / "semel-data" / "lock").read_text()), signal.SIGKILL)
        assert made.says("restarting in").count("\n") == 1
        assert "broker   died: signal 9, SIGKILL" in made.said
        assert made.end() == 0


@pytest.mark.parametrize("quiet", [("--quiet",), ()], ids=["quiet", ""])
def test_what_goes_wrong_in_the_broker_is_said(tmp_path: Path, quiet: tuple[str, ...]) -> None:
    with running(tmp_path, "--no-land", "--port", "0", "--json", *quiet) as made:
        made.invites()
        os.kill(made.wait_for_child("semel.store.sealer"), signal.SIGKILL)
        made.says("the sealer ended and is restarted")
        assert made.end() == 0
        said = [each for each in made.objects() if each["event"] == "logged"]
    # What is as it should be is left out then.
    assert ("stopping" in made.said) == (not quiet)
    by_text = {each["text"].split(":")[0]: each["level"] for each in said}
    assert by_text["the sealer ended and is restarted"] == "warning"
    assert by_text["stopping"] == "info"


class Terminal:
    """`semel up` in the foreground of a terminal."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.master, slave = open_terminal()
        self.text = ""

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "semel", "up", *arguments],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=take_terminal,
        )
        os.close(slave)

    def read(self) -> bool:
        """Take what there is; False: nothing came for long, or nothing more comes."""
        if not select.select([self.master], [], [], PATIENCE)[0]:
            return False
        data = b""
        with suppress(OSError):  # that is how the end looks here
            data = os.read(self.master, 65_536)
        self.text += data.decode("utf-8", "replace")
        return bool(data)

    def says(self, pattern: str) -> None:
        while not re.search(pattern, self.text):
            assert self.read(), self.text

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        os.close(self.master)


def test_on_a_terminal_the_last_line_updates_in_place_and_ctrl_c_stops_all(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "--no-land", "--port", "0")
    try:
        terminal.says("Try, in another shell")
        found = LISTENING.search(terminal.text)
        assert found is not None
        publish(int(found[1]), "a", "b")
        terminal.says(r"\r\x1b\[K2 recorded  \d+/s")
        terminal.type(b"\x03")
        while terminal.read():
            pass
        assert terminal.process.wait(PATIENCE) == 0
    finally:
        terminal.close()
    # The broker was stopped by us: the terminal's Ctrl-C did not reach it.
    stopping = [terminal.text.index(words) for words in ("broker   shutting", "broker   stopping")]
    assert stopping == sorted(stopping)
    assert "2 recorded since the start; 2 in all" in terminal.text
    assert terminal.text.count("broker   stopped") == 1
    assert "Traceback" not in terminal.text


# --- for programs ---------------------------------------------------------------------------------


def test_json_tells_all_in_objects(tmp_path: Path) -> None:
    with running(tmp_path, "--no-land", "--port", "0", "--json") as made:
        port = made.port()
        publish(port, "a")
        while not any(each.get("recorded") == 1 for each in made.objects()):
            assert made.process.poll() is None
            time.sleep(0.01)
        assert made.end() == 0
        found = made.objects()
    events = [each["event"] for each in found]
    expected = ["places", "starting", "ready", "try", "stopping", "stopped", "ended"]
    assert [event for event in events if event not in ("logged", "status")] == expected
    by_event = {each["event"]: each for each in found}
    assert all(each["at"].endswith("Z") for each in found)
    assert (by_event["ready"]["host"], by_event["ready"]["port"]) == ("127.0.0.1", port)
    assert len(by_event["try"]["commands"]) == 2
    statuses = [each for each in found if each["event"] == "status"]
    assert {"broker": "ready"} in [each["parts"] for each in statuses]
    assert 1 in [each["recorded"] for each in statuses]
    assert by_event["ended"]["recorded"] == 1
    assert by_event["ended"]["recorded_since_start"] == 1


def test_it_ends_when_nobody_reads_its_objects_any_more(tmp_path: Path) -> None:
    read, write = os.pipe()
    with running(tmp_path, "--no-land", "--port", "0", "--json", stdout=write) as made:
        os.close(write)
        made.port()
        os.close(read)
        assert made.process.wait(PATIENCE) == 0
        assert made.said.splitlines()[-1].endswith("0 recorded since the start; 0 in all")


def test_lines_that_nobody_takes_are_left_out_and_counted() -> None:
    async def story() -> None:
        read, write = os.pipe()
        lines = LineQueue(write)
        line = b"x" * 1000 + b"\n"
        while lines.put(line):
            # It writes what fits into the pipe, and no more.
            await asyncio.sleep(0)
        assert lines.dropped == 1
        assert not lines.put(line)
        assert lines.dropped == 2
        taken = 0
        while taken < (MOST_WAITING + 1) * len(line):
            taken += len(os.read(read, 65_536))
            await asyncio.sleep(0.001)
        assert lines.put(line)
        assert lines.dropped == 0
        os.close(read)
        await lines.close()
        os.close(write)

    asyncio.run(asyncio.wait_for(story(), PATIENCE))


# --- what cannot be -------------------------------------------------------------------------------


def test_a_port_in_use_ends_it_with_one_sentence(tmp_path: Path) -> None:
    with Broker() as other:
        port = other.address[1]
        code, said = ended(tmp_path, "--no-land", "--port", str(port))
    assert code == 1
    sentence = f"Error: broker cannot start: 127.0.0.1:{port} is in use by another program"
    assert said.splitlines()[-1] == sentence
    assert "Traceback" not in said


def test_two_of_them_do_not_share_a_folder(tmp_path: Path) -> None:
    with running(tmp_path, "--no-land", "--port", "0") as made:
        made.port()
        folder = tmp_path / "second"
        folder.mkdir()
        data = str(tmp_path / "semel-data")
        code, said = ended(folder, "--no-land", "--port", "0", "--data", data)
        assert code == 1
        assert f"Error: broker cannot start: {data} is in use by another process" in said
        # The first does not notice.
        publish(made.port(), "a")
        assert made.end() == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--port", "99999"), "Error: flag --port: [broker] port"),
        (("--data", ""), "Error: flag --data: [store] data is empty"),
        (("--interval", "soon"), "Error: flag --interval: [land] interval"),
        (("--config", "nonesuch.toml"), "Error: nonesuch.toml: cannot be read"),
        (("--lake", "ftp://host/lake"), "Error: [land]: ftp://host/lake"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_starts(
    tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    code, said = ended(tmp_path, *arguments)
    assert code == 1
    assert said.startswith(sentence)
    assert not (tmp_path / "semel-data").exists()


def test_the_file_is_for_all_parts(tmp_path: Path) -> None:
    config = tmp_path / "semel.toml"
    config.write_text(
        '[broker]\nport = 0\n[store]\ndata = "kept"\nnode = "n1"\n'
        '[[stream]]\nname = "plant"\nfilter = "plant/#"\n'
    )
    with running(tmp_path, "--no-land", "--config", str(config)) as made:
        publish(made.port(), "a")
        assert made.end() == 0
    folders = sorted(path.name for path in (tmp_path / "kept" / "streams").iterdir())
    assert folders == ["all", "plant"]
    assert (tmp_path / "kept" / "streams" / "plant" / "n1").is_dir()


@pytest.mark.parametrize(
    ("package", "arguments", "sentence"),
    [
        ("pyarrow", ("--no-land",), "Error: semel up needs pyarrow: pip install 'semel[broker]'"),
        ("pyspark", (), "Error: semel up needs pyspark"),
    ],
)
def test_what_is_not_installed_is_named_in_one_sentence(
    tmp_path: Path, package: str, arguments: tuple[str, ...], sentence: str
) -> None:
    code, said = ended(tmp_path, *arguments, program=("-c", WITHOUT.format(package)))
    assert code == 1
    assert said.startswith(sentence)
    assert len(said.splitlines()) == 1


def test_nothing_is_left_of_one_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, "--no-land", "--port", "0") as made:
        publish(made.port(), "a")
        family = [made.process.pid, *descendants([made.process.pid], list_processes())]
        # A tether, a broker and its sealer.
        assert len(family) == 4
        made.process.kill()
        made.process.wait(PATIENCE)
        assert gone(*family)


def test_help_names_every_flag() -> None:
    result = CliRunner().invoke(cli.group, ["up", "--help"])
    assert result.exit_code == 0
    for flag in ("config", "data", "host", "port", "root", "lake", "interval", "no-land", "json"):
        assert f"--{flag}" in result.output

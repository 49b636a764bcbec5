"""`semel ingest` as users run it: a process, its exit code, and what it says."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from semel import __version__, cli
from semel.broker.authority import Authority, Denied, Proof
from semel.broker.identity import Identity, PeerInfo
from semel.broker.settings import BrokerSettings
from semel.cli.ingest import as_json, as_line
from semel.client.ingest import IngestCounters
from semel.client.ingest_settings import IngestSettings
from semel.mqtt import Connect
from semel.mqtt.reasons import BAD_USER_NAME_OR_PASSWORD
from semel.settings import settings_of
from semel.settings_values import toml_text
from tests.broker.broker_process import PATIENCE, WITHOUT_UVLOOP
from tests.broker.serving import Serving, serving
from tests.cli.old_server import OldServer
from tests.kills.ingesting import Publisher
from tests.kills.record import sealed_through
from tests.terminals import open_terminal

WITHOUT_PYARROW = "import sys; sys.modules['pyarrow'] = None; from semel.cli import main; main()"
PROGRAM = ("-m", "semel")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "data" / "ingest.md"


class Door(Authority):
    """Lets in who knows the password."""

    def connect(self, packet: Connect, peer: PeerInfo) -> Identity | Denied | Proof:
        known = (packet.user_name, packet.password) == ("ann", b"open sesame")
        return super().connect(packet, peer) if known else Denied(BAD_USER_NAME_OR_PASSWORD)


@pytest.fixture
def broker() -> Iterator[Serving]:
    pytest.importorskip("pyarrow")
    with serving(BrokerSettings(port=0, sys_interval=0.0)) as made:
        yield made


def url_of(broker: Serving) -> str:
    return f"mqtt://127.0.0.1:{broker.address[1]}"


def publish(broker: Serving, *payloads: str) -> None:
    with Publisher(broker.address[1]) as publisher:
        for payload in payloads:
            publisher.publish("plant/1", payload.encode(), 2)
        publisher.finish()


class Process:
    """`semel ingest`, with what it writes in files."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        program: tuple[str, ...] = PROGRAM,
        environment: dict[str, str] | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        self.out = folder / "stdout"
        self.err = folder / "stderr"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, *program, "ingest", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out if stdout is None else stdout,
                stderr=err if stderr is None else stderr,
                env=os.environ | (environment or {}),
            )

    @property
    def said(self) -> str:
        return self.err.read_text()

    def objects(self) -> list[dict[str, Any]]:
        """What it has printed, line by line."""
        return [json.loads(line) for line in self.out.read_text().splitlines(keepends=True)]

    def says(self, words: str, *, times: int = 1) -> None:
        """Wait until it has said this."""
        end = time.monotonic() + PATIENCE
        while self.said.count(words) < times:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < end, self.said
            time.sleep(0.01)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Ask it to end. Its exit code."""
        self.process.send_signal(number)
        return self.wait()


@contextmanager
def ingesting(folder: Path, *arguments: str, **how: Any) -> Iterator[Process]:
    """One at work, which is gone afterwards."""
    made = Process(folder, *arguments, **how)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
            made.process.wait()


def refused(folder: Path, *arguments: str, **how: Any) -> str:
    """What it says when it ends with exit code 1: one sentence, after the log."""
    with ingesting(folder, *arguments, **how) as made:
        assert made.wait() == 1, made.said
        assert "Traceback" not in made.said
        last = made.said.splitlines()[-1]
        assert last.startswith("Error: ")
        return last


def default_data(folder: Path) -> Path:
    """Where the store is if nobody says."""
    return folder / "root" / ".semel-ingest" / "plant"


def common(folder: Path, *more: str) -> tuple[str, ...]:
    return ("--topic", "plant/#", "--stream", "plant", "--root", str(folder / "root"), *more)


def until_sealed(data: Path, seq: int) -> None:
    """Wait until so many rows are in segments, and no more are stored."""
    end = time.monotonic() + PATIENCE
    while sealed_through(data, "plant") != (seq, seq):
        assert time.monotonic() < end, sealed_through(data, "plant")
        time.sleep(0.02)


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(cli.group, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def payloads(folder: Path) -> list[str]:
    """The record as `semel stream read` has it."""
    text = invoke("stream", "read", "plant", "--root", str(folder / "root"))
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    return [row["payload"] for row in rows]


# --- running --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "program"),
    [(signal.SIGTERM, PROGRAM), (signal.SIGINT, ("-c", WITHOUT_UVLOOP))],
    ids=["SIGTERM-uvloop", "SIGINT-asyncio"],
)
def test_a_signal_lets_it_finish_and_the_record_is_there(
    broker: Serving, number: int, program: tuple[str, ...], tmp_path: Path
) -> None:
    with ingesting(tmp_path, url_of(broker), *common(tmp_path), program=program) as made:
        made.says("at QoS 2")
        publish(broker, "a", "b", "c")
        until_sealed(default_data(tmp_path), 3)
        assert made.end(number) == 0
        assert "3 received; stream plant is stored up to row 3 and sealed up to row 3" in made.said
        assert made.out.read_text() == ""
    assert payloads(tmp_path) == ["a", "b", "c"]
    # The store beside the record is no stream for those who read it.
    listed = json.loads(invoke("stream", "list", "--root", str(tmp_path / "root"), "--json"))
    assert [each["stream"] for each in listed] == ["plant"]


def test_a_broker_that_refuses_5_0_is_used_with_3_1_1_and_its_session_goes_on(
    broker: Serving, tmp_path: Path
) -> None:
    """Each start tries 5.0 first, which changes nothing; the session is one of 3.1.1."""
    with OldServer(broker.address[1]) as old:
        arguments = (f"mqtt://127.0.0.1:{old.port}", *common(tmp_path))
        with ingesting(tmp_path, *arguments) as made:
            made.says("the broker refused MQTT 5.0; connecting with MQTT 3.1.1")
            made.says("at QoS 2")
            publish(broker, "a", "b")
            until_sealed(default_data(tmp_path), 2)
            assert made.end() == 0
        # 5.0, the end of a session that there might have been, and the session.
        assert old.levels == [5, 4, 4]
        publish(broker, "c")
        with ingesting(tmp_path, *arguments) as made:
            made.says("session resumed")
            publish(broker, "d")
            until_sealed(default_data(tmp_path), 4)
            assert made.end() == 0
        assert old.levels == [5, 4, 4, 5, 4]
    assert payloads(tmp_path) == ["a", "b", "c", "d"]


def test_a_broker_that_learns_5_0_goes_on_with_the_session_of_3_1_1(
    broker: Serving, tmp_path: Path
) -> None:
    data = ("--data", str(tmp_path / "data"))
    with (
        OldServer(broker.address[1]) as old,
        ingesting(tmp_path, f"mqtt://127.0.0.1:{old.port}", *common(tmp_path), *data) as made,
    ):
        made.says("at QoS 2")
        publish(broker, "a")
        until_sealed(tmp_path / "data", 1)
        assert made.end() == 0
    publish(broker, "b")
    with ingesting(tmp_path, url_of(broker), *common(tmp_path), *data) as made:
        made.says("session resumed")
        until_sealed(tmp_path / "data", 2)
        assert made.end() == 0
        assert "refused" not in made.said
    assert payloads(tmp_path) == ["a", "b"]


def test_a_version_that_was_chosen_is_not_given_up(broker: Serving, tmp_path: Path) -> None:
    with OldServer(broker.address[1]) as old:
        url = f"mqtt://127.0.0.1:{old.port}"
        assert "refused" in refused(tmp_path, url, *common(tmp_path, "-V", "5"))
        assert old.levels == [5]
        with ingesting(tmp_path, url, *common(tmp_path, "--mqtt-version", "3.1.1")) as made:
            made.says("at QoS 2")
            assert made.end() == 0
        assert 5 not in old.levels[1:]


def test_counters_are_printed_every_second_and_at_the_end(broker: Serving, tmp_path: Path) -> None:
    with ingesting(tmp_path, url_of(broker), *common(tmp_path), "--json") as made:
        made.says("at QoS 2")
        publish(broker, "a", "b")
        until_sealed(default_data(tmp_path), 2)
        end = time.monotonic() + PATIENCE
        while not any(each["stored"] == 2 for each in made.objects()):
            assert time.monotonic() < end, made.out.read_text()
            time.sleep(0.05)
        assert made.end() == 0
        *before, last = made.objects()
    # It may take more than a second to end, and says that it does.
    assert "connected" in [each["state"] for each in before]
    assert sum(each["rate"] for each in before) > 0
    assert {name: last[name] for name in ("state", "stream", "received", "stored", "sealed")} == {
        "state": "ended",
        "stream": "plant",
        "received": 2,
        "stored": 2,
        "sealed": 2,
    }
    assert set(last) == {
        *("at", "stream", "state", "client_id", "node", "received", "rate", "stored", "sealed"),
        *("lag", "reconnects", "sessions_lost", "store"),
    }


def test_a_program_that_reads_no_more_counters_lets_it_finish(
    broker: Serving, tmp_path: Path
) -> None:
    read, write = os.pipe()
    arguments = (url_of(broker), *common(tmp_path), "--json")
    with ingesting(tmp_path, *arguments, stdout=write) as made:
        os.close(write)
        made.says("at QoS 2")
        publish(broker, "a")
        until_sealed(default_data(tmp_path), 1)
        os.close(read)
        assert made.wait() == 0
        assert "Traceback" not in made.said
    assert payloads(tmp_path) == ["a"]


def test_a_terminal_has_a_line_that_tells_how_it_stands(broker: Serving, tmp_path: Path) -> None:
    ours, theirs = open_terminal()
    shown = b""
    with ingesting(tmp_path, url_of(broker), *common(tmp_path), stderr=theirs) as made:
        os.close(theirs)
        end = time.monotonic() + PATIENCE
        while b"connected  0 received  0/s  stored 0" not in shown:
            assert time.monotonic() < end, shown
            shown += os.read(ours, 4096)
        assert made.end() == 0
    os.close(ours)
    # The log is above the line, which is written over.
    assert b"\r\x1b[K" in shown


def test_a_quiet_one_says_nothing_while_nothing_is_wrong(tmp_path: Path) -> None:
    """It asks for a session without an end, and has a word to say to a broker with a limit."""
    pytest.importorskip("pyarrow")
    settings = BrokerSettings(port=0, sys_interval=0.0, maximum_session_expiry=0xFFFF_FFFF)
    with (
        serving(settings) as broker,
        ingesting(tmp_path, url_of(broker), *common(tmp_path), "--quiet", "--json") as made,
    ):
        end = time.monotonic() + PATIENCE
        while not made.objects():
            assert time.monotonic() < end
            time.sleep(0.05)
        assert made.end() == 0
        assert made.said == ""


def test_settings_may_be_in_a_file_and_the_environment(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with serving(BrokerSettings(port=0, sys_interval=0.0), authority=Door()) as broker:
        file = tmp_path / "semel.toml"
        file.write_text(
            f'[ingest]\nurl = "{url_of(broker)}"\ntopic = ["plant/#"]\nstream = "plant"\n'
            f'username = "ann"\n[store]\nroot = "{tmp_path / "root"}"\nnode = "n1"\n'
            "[broker]\nport = 1884\n"
        )
        environment = {"SEMEL_INGEST_PASSWORD": "open sesame"}
        with ingesting(tmp_path, "--config", str(file), environment=environment) as made:
            made.says("at QoS 2")
            assert made.end() == 0
    assert (tmp_path / "root" / "plant" / "n1").is_dir()


# --- what ends it ---------------------------------------------------------------------------------


def test_bad_credentials_end_it_and_are_not_shown(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with serving(BrokerSettings(port=0, sys_interval=0.0), authority=Door()) as broker:
        port = broker.address[1]
        where = f"127.0.0.1:{port}"
        secret = tmp_path / "secret"
        secret.write_text("tops3cret\n")
        for arguments in (
            (f"mqtt://ann:tops3cret@{where}",),
            (f"mqtt://{where}", "--username", "ann", "--password-file", str(secret)),
        ):
            with ingesting(tmp_path, *arguments, *common(tmp_path)) as made:
                assert made.wait() == 1
                assert made.said.splitlines()[-1] == (
                    "Error: the server refused the connection with CONNACK 0x86, bad user name or "
                    "password"
                )
                assert "tops3cret" not in made.said
        right = tmp_path / "right"
        right.write_text("open sesame")
        with ingesting(
            tmp_path,
            f"mqtt://ann@{where}",
            *common(tmp_path, "--password-file", str(right)),
        ) as made:
            made.says("at QoS 2")
            assert made.end() == 0


def test_a_session_of_another_store_ends_it_unless_it_may_be_given_up(
    broker: Serving, tmp_path: Path
) -> None:
    def arguments(name: str) -> tuple[str, ...]:
        data = str(tmp_path / name)
        return (url_of(broker), *common(tmp_path, "--client-id", "plant", "--data", data))

    with ingesting(tmp_path, *arguments("first")) as made:
        made.says("at QoS 2")
        assert made.end() == 0
    sentence = refused(tmp_path, *arguments("second"))
    assert "the server has a session for this client" in sentence
    assert "--start-clean begins a new session" in sentence
    with ingesting(tmp_path, *arguments("second"), "--start-clean") as made:
        made.says("at QoS 2")
        publish(broker, "a")
        until_sealed(tmp_path / "second", 1)
        assert made.end() == 0
    info = invoke("store", "info", str(tmp_path / "second"))
    head, line = info.splitlines()[-2:]
    assert head.endswith("may be missing before")
    assert line.split() == ["plant", "1", "1", "0", "1"]
    assert "may be missing" not in invoke("store", "info", str(tmp_path / "first"))


def test_a_second_one_on_the_same_folder_is_refused(broker: Serving, tmp_path: Path) -> None:
    with ingesting(tmp_path, url_of(broker), *common(tmp_path)) as made:
        made.says("at QoS 2")
        beside = tmp_path / "beside"
        beside.mkdir()
        sentence = refused(beside, url_of(broker), *common(tmp_path))
        assert f"is in use by another process (process {made.process.pid})" in sentence
        # For another stream below the same root there is another folder.
        other = (url_of(broker), *common(tmp_path)[:3], "yard", *common(tmp_path)[4:])
        with ingesting(beside, *other) as second:
            second.says("at QoS 2")
            assert second.end() == 0
        assert made.end() == 0


def test_what_is_wrong_with_its_arguments_is_told_at_once(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.group, ["ingest"])
    assert result.exit_code == 1
    assert str(result.exception).splitlines() == [
        "4 settings are invalid:",
        "  no broker is given: its address is mqtt://host[:port]",
        "  no topic is given: use --topic FILTER, once or several times",
        "  no stream is given: name it with --stream NAME",
        "  no root is given: use --root with the directory or object store for segments",
    ]
    sentence = refused(tmp_path, "mqtt://localhost", *common(tmp_path, "--qos", "3"))
    assert 'flag --qos: [ingest] qos is "3", but must be an integer, from 0 to 2' in sentence
    sentence = refused(tmp_path, "mqtt://u:tops3cret@", *common(tmp_path))
    assert sentence.startswith("Error: the broker: the host is missing")
    assert "tops3cret" not in sentence
    assert not (tmp_path / "root").exists()


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path) -> None:
    arguments = ("mqtt://localhost", *common(tmp_path))
    sentence = refused(tmp_path, *arguments, program=("-c", WITHOUT_PYARROW))
    assert sentence == "Error: a stream needs pyarrow: pip install 'semel[broker]'"


def test_help_tells_of_every_flag_and_of_the_version() -> None:
    text = invoke("ingest", "--help")
    for flag in ("--topic", "--qos", "--stream", "--root", "--data", "--share", "--start-clean"):
        assert flag in text
    assert "--password " not in text
    assert invoke("ingest", "--version") == f"semel {__version__}\n"


def test_the_page_lists_exactly_the_settings_of_the_section() -> None:
    declared = settings_of(IngestSettings)
    expected = [
        f"| `{each.name}` | `{toml_text(declared[each.name], declared[each.name].default)}`"
        f" | {declared[each.name].help} |"
        for each in fields(IngestSettings)
    ]
    page = PAGE.read_text("utf-8").partition("\n## The flags\n")[2]
    assert [line for line in page.splitlines() if line.startswith("| `")] == expected


def test_the_counters_of_the_page_are_those_that_are_printed() -> None:
    found = re.search(r'^\{"at".*?\}$', PAGE.read_text("utf-8"), re.M | re.S)
    assert found is not None
    counters = IngestCounters("connected", "c", "n", 5, 5, 5, 0.0, 0, 0, "open")
    assert list(json.loads(found[0])) == list(json.loads(as_json("plant", counters, 4.5)))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "connected  1,234 received  50/s  stored 1,230  sealed 1,000  lag 0.2 s"),
        ({"reconnects": 2}, "lag 0.2 s  2 reconnects"),
        ({"sessions_lost": 1}, "lag 0.2 s  session lost 1 time"),
        ({"store": "full"}, "lag 0.2 s  the store is full"),
    ],
)
def test_the_line_of_a_terminal_has_what_matters(changes: dict[str, Any], line: str) -> None:
    given: dict[str, Any] = {"state": "connected", "client_id": "c", "node": "n", "store": "open"}
    given |= {"received": 1234, "stored": 1230, "sealed": 1000, "lag": 0.21}
    given |= {"reconnects": 0, "sessions_lost": 0}
    assert as_line(IngestCounters(**(given | changes)), 50.2).endswith(line)


def test_a_file_and_an_environment_may_serve_a_broker_and_an_ingest(tmp_path: Path) -> None:
    file = tmp_path / "semel.toml"
    file.write_text('[broker]\nport = 1884\n\n[ingest]\nstream = "plant"\n', "utf-8")
    result = CliRunner().invoke(
        cli.group,
        ["broker", "--config", str(file), "--check-config"],
        env={"SEMEL_INGEST_URL": "mqtt://localhost", "SEMEL_LOAD_PASSWORD": "secret"},
    )
    assert (result.exit_code, result.output) == (0, "the settings are valid\n")
    file.write_text('[ingest]\nstraem = "plant"\n', "utf-8")
    result = CliRunner().invoke(cli.group, ["broker", "--config", str(file), "--check-config"])
    assert result.exit_code == 1
    assert "did you mean stream?" in str(result.exception)


FLOOD = """
import logging
from semel.cli.ingest import IngestReport, set_up_log
set_up_log(IngestReport("plant", is_json=False, quiet=False), quiet=False)
for number in range(40):
    logging.getLogger("semel.ingest").warning("%d " * 5_000, *[number] * 5_000)
print("done", flush=True)
"""


def test_a_log_that_nobody_reads_does_not_hold_up_an_ingest() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FLOOD], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert select.select([process.stdout], [], [], PATIENCE)[0]
        # What waits is written when somebody reads it.
        _, log = process.communicate(timeout=PATIENCE)
        assert len(log.splitlines()) == 40
    finally:
        process.kill()
        process.communicate()

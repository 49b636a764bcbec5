"""`semel load`: what it prints, on a terminal and into a pipe, and how it ends."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from bench.broker.contenders import Family, has_ended
from bench.broker.contenders import Process as Child
from semel import cli
from semel.cli.load import command
from semel.lab.load.delivery_tracker import MOST_GAPS
from semel.lab.load.description import MOST_CLIENTS, MOST_LANES, SCENARIOS, Load
from semel.mqtt import ConnAck, Packet, Publish
from tests.broker.broker_process import PATIENCE, Process
from tests.lab.odd_broker import Deliver, OddBroker, acknowledge
from tests.terminals import open_terminal

NUMBER = r"[\d,]+"


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with Process() as made:
        yield f"mqtt://127.0.0.1:{made.address[1]}"


def load(*arguments: object) -> Result:
    return CliRunner().invoke(cli.group, ["load", *map(str, arguments)])


def program(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "semel", "load", *map(str, arguments)]


# --- what it prints -------------------------------------------------------------------------------


def test_the_result_is_a_table(broker: str) -> None:
    result = load(broker, "--scenario", "fan-out", "--subscribers", 3, "--qos", 1, "--count", 20)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == f"fan-out on {broker.removeprefix('mqtt://')}"
    assert lines[1] == "1 publisher, 3 subscribers, 1 topic, QoS 1, 16 B, window 200, MQTT 5.0"
    assert lines[3].split() == ["messages", "messages/s", "MB/s"]
    rows = {line[:16].strip(): line[16:].split() for line in lines[4:11]}
    counts = {name: cells[0] for name, cells in rows.items()}
    assert counts == {
        "sent": "20",
        "acknowledged": "20",
        "received": "60",
        "expected": "60",
        "lost": "0",
        "duplicated": "0",
        "out of order": "0",
    }
    assert {name for name, cells in rows.items() if len(cells) == 3} == {"sent", "received"}
    assert lines[12].split() == ["milliseconds", "p50", "p90", "p99", "max"]
    for name, line in zip(("delivery", "connecting"), lines[13:15], strict=True):
        # On a busy machine there are thousands.
        first, *times = line.replace(",", "").split()
        assert first == name
        assert [float(time) for time in times] == sorted(float(time) for time in times)
    end = r"\d+\.\d\d s; \d+\.\d\d s of processor time for the load itself, in 1 process"
    assert re.fullmatch(end, lines[16])
    assert len(lines) == 17


def test_at_qos_0_nothing_is_acknowledged(broker: str) -> None:
    result = load(broker, "--mqtt-version", "3.1.1", "--count", 5, "--retain", "--rate", 50)
    assert result.exit_code == 0, result.output
    assert "QoS 0, 16 B, 50 messages/s each, RETAIN, MQTT 3.1.1" in result.stdout
    assert re.search(r"^acknowledged +–$", result.stdout, re.MULTILINE)


def test_json_is_one_object_with_every_number(broker: str) -> None:
    options = ("--count", 30, "--payload-size", 100, "--topics", 3, "--window", 7, "--processes", 2)
    result = load(broker, "--qos", 2, "--publishers", 2, *options, "--json")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    told = json.loads(line)
    exact = {
        "scenario": "one-to-one",
        "broker": broker.removeprefix("mqtt://"),
        "mqtt": "5.0",
        "publishers": 2,
        "subscribers": 1,
        "topics": 3,
        "qos": 2,
        "payload": 100,
        "window": 7,
        "rate": None,
        "retain": False,
        "processes": 2,
        "sent": 60,
        "acknowledged": 60,
        "received": 60,
        "expected": 60,
        "lost": 0,
        "duplicated": 0,
        "out_of_order": 0,
        "unclean_subscribers": [],
        "interrupted": False,
        "fault": None,
    }
    assert {name: told.pop(name) for name in exact} == exact
    for name in ("latency_ms", "connect_ms"):
        times = told.pop(name)
        assert list(times) == ["p50", "p90", "p99", "max"]
        assert list(times.values()) == sorted(times.values())
    seconds = told.pop("seconds")
    assert told.pop("sent_per_second") == pytest.approx(60 / seconds)
    assert told.pop("received_per_second") == pytest.approx(60 / seconds)
    assert told.pop("sent_mb_per_second") == pytest.approx(60 * 100 / 1e6 / seconds)
    assert told.pop("received_mb_per_second") == pytest.approx(60 * 100 / 1e6 / seconds)
    assert told.pop("cpu_seconds") > 0
    assert told == {}


def test_json_has_null_for_what_there_is_not(broker: str) -> None:
    result = load(broker, "--subscribers", 0, "--count", 3, "--json")
    told = json.loads(result.stdout)
    assert (told["acknowledged"], told["latency_ms"], told["received"]) == (None, None, 0)


def test_the_list_names_every_scenario_in_a_line() -> None:
    result = load("--list")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(SCENARIOS)
    assert all(line.endswith(f"  {SCENARIOS[line.split()[0]].line}") for line in lines)


def test_into_a_pipe_goes_no_progress(broker: str) -> None:
    result = subprocess.run(
        program(broker, "--duration", "0.6"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert result.stderr == ""
    assert "\r" not in result.stdout


def test_on_a_terminal_one_line_shows_the_progress(broker: str) -> None:
    ours, theirs = open_terminal()
    with subprocess.Popen(
        program(broker, "--rate", 1_000, "--duration", "1.5"), stdout=subprocess.PIPE, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = read_terminal(ours, "").decode()
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    assert process.returncode == 0
    assert "\n" not in shown
    line = rf"\d+\.\d s  sent {NUMBER} \({NUMBER}/s\)  received {NUMBER} \({NUMBER}/s\)  in flight "
    assert len(re.findall(rf"\r\x1b\[K{line}{NUMBER}", shown)) > 1
    # In the end it is gone.
    assert shown.endswith("\r\x1b[K")
    assert printed.startswith("one-to-one on ")


def read_terminal(ours: int, until: str) -> bytes:
    """What a program writes to its terminal, until these words, or its end."""
    data = b""
    while not until or until.encode() not in data:
        if not select.select([ours], [], [], PATIENCE)[0]:
            raise AssertionError(f"nothing came after {data!r}")
        try:
            more = os.read(ours, 1 << 16)
        except OSError:  # The other end is closed.
            more = b""
        if not more:
            break
        data += more
    if not until:
        os.close(ours)
    return data


def test_the_page_names_every_scenario_option_and_number(broker: str) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "prove" / "load.md").read_text("utf-8")
    options = [each.opts[0] for each in command.params if isinstance(each, click.Option)]
    told = json.loads(load(broker, "--count", 1, "--json").stdout)
    of_the_load = {"scenario", "broker", "mqtt", "processes", *(each.name for each in fields(Load))}
    words = {*SCENARIOS, *options, *(set(told) - of_the_load)}
    said = set(re.findall(r"[\w-]+", page))
    assert words <= said
    for bound in (MOST_CLIENTS, MOST_LANES, MOST_GAPS):
        assert f"{bound:,}" in page


# --- how it ends ----------------------------------------------------------------------------------


def test_ctrl_c_ends_it_early_with_the_table_of_what_there_is(broker: str) -> None:
    ours, theirs = open_terminal()
    with subprocess.Popen(
        program(broker, "--qos", 1, "--duration", 600, "--processes", 2),
        stdout=subprocess.PIPE,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        read_terminal(ours, "in flight")
        # As a terminal does it: everybody in the foreground gets it.
        os.killpg(process.pid, signal.SIGINT)
        shown = read_terminal(ours, "").decode()
        assert process.stdout is not None
        printed = process.stdout.read().decode()
        assert process.wait(PATIENCE) == 0
    assert "Traceback" not in shown
    assert "s, ended early; " in printed
    (sent,) = re.findall(rf"^sent +({NUMBER})", printed, re.MULTILINE)
    assert re.search(rf"^received +{sent} ", printed, re.MULTILINE)
    assert re.search(r"^lost +0$", printed, re.MULTILINE)


def test_without_its_parent_a_process_of_the_load_ends(broker: str) -> None:
    ours, theirs = open_terminal()
    with subprocess.Popen(
        program(broker, "--duration", 600, "--processes", 2),
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        read_terminal(ours, "in flight")
        children = Family(Child(process.pid, 0, Path())).children()
        assert len(children) >= 2
        process.kill()
    os.close(ours)
    deadline = time.monotonic() + PATIENCE
    while not all(has_ended(number) for number in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def losing(number: int, packet: Publish) -> list[Publish]:
    return [] if number == 4 else [packet]


def doubling(number: int, packet: Publish) -> list[Publish]:
    return [packet, packet] if number == 4 else [packet]


@pytest.mark.parametrize(
    ("deliver", "qos", "code", "words"),
    [
        (losing, 0, 0, "1 lost, 0 duplicated"),
        (losing, 1, 1, "1 lost, 0 duplicated"),
        (losing, 2, 1, "1 lost, 0 duplicated"),
        (doubling, 0, 0, "0 lost, 1 duplicated"),
        (doubling, 1, 0, "0 lost, 1 duplicated"),
        (doubling, 2, 1, "0 lost, 1 duplicated"),
    ],
)
def test_the_exit_code_says_whether_qos_was_kept(
    deliver: Deliver, qos: int, code: int, words: str
) -> None:
    with OddBroker(deliver=deliver) as odd:
        url = f"mqtt://127.0.0.1:{odd.port}"
        result = load(url, "--qos", qos, "--count", 20, "--timeout", 1)
    assert result.exit_code == code, result.output
    assert f"subscriber 0: {words}, 0 out of order, 20 expected" in result.stdout


def test_a_table_names_ten_subscribers_and_json_all() -> None:
    def lose_all(number: int, packet: Publish) -> list[Publish]:
        return []

    with OddBroker(deliver=lose_all) as odd:
        url = f"mqtt://127.0.0.1:{odd.port}"
        options = ("--subscribers", 12, "--count", 2, "--timeout", "0.5")
        shown = load(url, *options).stdout
        told = json.loads(load(url, *options, "--json").stdout)
    assert len(re.findall("^subscriber ", shown, re.MULTILINE)) == 10
    assert "and 2 more subscribers" in shown
    unclean = told["unclean_subscribers"]
    assert [each["subscriber"] for each in unclean] == list(range(12))
    assert unclean[0] == {
        "subscriber": 0,
        "expected": 2,
        "received": 0,
        "lost": 2,
        "duplicated": 0,
        "out_of_order": 0,
    }


def test_a_broker_that_is_not_there_is_one_sentence() -> None:
    with OddBroker() as odd:
        port = odd.port
    result = load(f"mqtt://127.0.0.1:{port}")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"Error: 127.0.0.1:{port} cannot be reached: Connection refused\n"
    told = json.loads(load(f"mqtt://127.0.0.1:{port}", "--json").stdout)
    assert told["fault"] == f"127.0.0.1:{port} cannot be reached: Connection refused"


def test_a_host_that_nobody_knows_is_one_sentence() -> None:
    result = load("mqtt://nobody.invalid")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: nobody.invalid:1883 cannot be reached: ")
    assert result.stderr.count("\n") == 1


def test_a_broker_that_refuses_is_one_sentence() -> None:
    with OddBroker(connack=ConnAck(0x87)) as odd:
        result = load(f"mqtt://ann:secret@127.0.0.1:{odd.port}")
    assert result.exit_code == 1
    assert result.stdout == ""
    told = f"Error: 127.0.0.1:{odd.port} refused a connection: not authorized (0x87)\n"
    assert result.stderr == told


def test_a_broker_that_closes_in_the_middle_is_one_sentence_after_the_table() -> None:
    def answer(number: int, packet: Publish) -> list[Packet] | None:
        return None if number == 20 else acknowledge(number, packet)

    with OddBroker(answer=answer) as odd:
        result = load(f"mqtt://127.0.0.1:{odd.port}", "--qos", 1, "--window", 10)
    assert result.exit_code == 1
    assert re.search(r"^acknowledged +20$", result.stdout, re.MULTILINE)
    assert result.stderr.startswith(f"Error: 127.0.0.1:{odd.port} closed a connection")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("url", "options", "environment", "said"),
    [
        ("ann:secret@", (), "", ("ann", b"secret")),
        ("", ("--username", "ann", "--password-file", "FILE"), "no", ("ann", b"secret")),
        ("ann:secret@", ("--username", "bob"), "other", ("bob", b"other")),
        ("", (), "", (None, None)),
    ],
)
def test_user_name_and_password_come_from_the_url_options_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    url: str,
    options: tuple[str, ...],
    environment: str,
    said: tuple[str | None, bytes | None],
) -> None:
    secret = tmp_path / "file"
    secret.write_bytes(b"secret\n")
    if environment:
        monkeypatch.setenv("SEMEL_LOAD_PASSWORD", environment)
    with OddBroker() as odd:
        words = [str(secret) if each == "FILE" else each for each in options]
        result = load(f"mqtt://{url}127.0.0.1:{odd.port}", *words, "--count", 2)
    assert result.exit_code == 0, result.output
    assert {(each.user_name, each.password) for each in odd.connects} == {said}
    assert "secret" not in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Missing argument 'URL'"),
        (("127.0.0.1",), "the address has no scheme"),
        (("mqtt://127.0.0.1", "--cafile", "a"), "--cafile and --insecure need mqtts or wss, not "),
        (("ws://127.0.0.1", "--insecure"), "--cafile and --insecure need mqtts or wss, not ws"),
        (("mqtt://127.0.0.1:x",), "the port after the host"),
        (("mqtt://127.0.0.1/topic",), "ends after the port"),
        (("mqtt://h", "--scenario", "no-such"), "'no-such' is not one of"),
        (("mqtt://h", "--duration", "1", "--count", "1"), "--duration and --count"),
        (("mqtt://h", "--duration", "0"), "--duration"),
        (("mqtt://h", "--count", "0"), "--count"),
        (("mqtt://h", "--qos", "3"), "--qos"),
        (("mqtt://h", "--payload-size", "15"), "--payload-size"),
        (("mqtt://h", "--window", "65536"), "--window"),
        (("mqtt://h", "--rate", "0"), "--rate"),
        (("mqtt://h", "--mqtt-version", "4"), "--mqtt-version"),
        (("mqtt://h", "--processes", "0"), "--processes"),
        (("mqtt://h", "--timeout", "0"), "--timeout"),
        (("mqtt://h", "--publishers", "0", "--subscribers", "0"), "at least one client is needed"),
        (("mqtt://h", "--scenario", "pairs", "--publishers", "2", "--subscribers", "3"), "pairs"),
        (("mqtt://h", "--scenario", "plant", "--subscribers", "5"), "multiple of 11"),
        (("mqtt://h", "--prefix", "a/#"), "--prefix: A Topic Name has neither + nor #"),
        (("mqtt://:x@h", "--mqtt-version", "3.1.1"), "--username, --password-file: "),
    ],
)
def test_wrong_usage_is_a_sentence_and_exit_2(arguments: tuple[str, ...], words: str) -> None:
    result = load(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("option", ["--rate", "--duration", "--timeout"])
@pytest.mark.parametrize("number", ["nan", "inf", "-1"])
def test_a_number_that_is_none_is_refused_by_its_option(option: str, number: str) -> None:
    found = load("mqtt://127.0.0.1:1", option, number)
    assert found.exit_code == 2
    assert f"Invalid value for '{option}'" in found.output

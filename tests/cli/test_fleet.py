"""`semel fleet`: what it publishes, what it prints, how it ends, and what it says of mistakes."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from semel import cli
from semel.cli.fleet import command
from semel.cli.numbers import MOST_RATE
from semel.lab.fleet.devices import Devices
from semel.lab.fleet.journal import BEGIN, DONE, KEPT, WORDS, read_journal
from semel.lab.fleet.publishing import MOST_GATEWAYS, MOST_WINDOW, FleetProgress
from semel.lab.testing import TestBroker
from semel.mqtt import Packet, Publish, PubRec
from tests.broker.broker_process import PATIENCE
from tests.kills.brokers import free_port
from tests.lab.odd_broker import OddBroker
from tests.terminals import open_terminal

PAGE = Path(__file__).resolve().parents[2] / "docs" / "prove" / "fleet.md"


def fleet(*arguments: object) -> Result:
    return CliRunner().invoke(cli.group, ["fleet", *map(str, arguments)])


def program(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "semel", "fleet", *map(str, arguments)]


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as made:
        yield made


# --- what it publishes ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["311", "5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_messages_are_those_of_the_seed(broker: TestBroker, qos: int, version: str) -> None:
    options = ("--seed", 9, "--devices", 6, "--count", 45, "--rate", 0, "-V", version, "-q", qos)
    result = fleet("-h", "127.0.0.1", "-p", broker.port, *options)
    assert result.exit_code == 0, result.output
    # At QoS 0 they may still be on their way.
    broker.wait_for_message(count=45)
    found = broker.messages()
    expected = [Devices(9, 6).message(index) for index in range(45)]
    assert sorted((each.topic_name, each.payload) for each in found) == sorted(expected)
    assert {each.qos for each in found} == {qos}
    # What it had at the broker ends with it.
    assert broker.sessions() == []


@pytest.mark.parametrize(("rate", "count"), [(MOST_RATE, 200), (1e-300, 1)])
def test_the_highest_rate_and_a_very_low_one_are_rates(
    broker: TestBroker, rate: float, count: int
) -> None:
    result = fleet("-p", broker.port, "--gateways", 1, "--count", count, "--rate", rate)
    assert result.exit_code == 0, result.output
    assert len(broker.messages()) == count


def test_the_rate_is_that_of_the_whole_fleet(broker: TestBroker) -> None:
    # Two in a second: the first at once, and the second not before half of it has passed.
    options = ("--devices", 4, "--count", 2, "--rate", 2, "--gateways", 1, "--json")
    result = fleet("-p", broker.port, *options)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["seconds"] >= 0.5


def test_the_prefix_is_an_option_or_the_topic_of_the_address(broker: TestBroker) -> None:
    url = f"mqtt://127.0.0.1:{broker.port}/north/hall"
    for place, words in (
        ("works", ("-p", broker.port, "--prefix", "works")),
        ("north", ("-L", url)),
    ):
        result = fleet(*words, "--count", 3, "--devices", 3)
        assert result.exit_code == 0, result.output
        assert len(broker.messages(f"{place}/#")) == 3


def test_devices_share_as_many_connections_as_there_are_gateways(broker: TestBroker) -> None:
    options = ("--devices", 9, "--gateways", 3, "--count", 18, "-i", "site", "-V", "5")
    result = fleet("-p", broker.port, *options)
    assert result.exit_code == 0, result.output
    connects = broker.packets("CONNECT")
    assert {each.client_id for each in connects} == {"site-1", "site-2", "site-3"}
    assert "9 devices behind 3 gateways, QoS 2, seed 1" in result.stdout


# --- what it prints -------------------------------------------------------------------------------


def test_the_account_is_for_people(broker: TestBroker) -> None:
    result = fleet("-p", broker.port, "--count", 20, "--rate", 0, "--devices", 5, "-q", 1)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0] == "5 devices behind 4 gateways, QoS 1, seed 1"
    assert re.fullmatch(r"published +20   in \d+\.\d s, [\d,]+/s", lines[1])
    assert re.fullmatch(r"refused +0", lines[2])
    assert re.fullmatch(r"reconnects +0", lines[3])


def test_json_ends_with_the_account(broker: TestBroker) -> None:
    options = ("--count", 30, "--rate", 20, "--devices", 5, "--json")
    result = fleet("-p", broker.port, *options)
    assert result.exit_code == 0, result.output
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["event"] for each in told] == ["progress"] * (len(told) - 1) + ["ended"]
    # It takes more than a second, and so there is progress.
    assert len(told) > 1
    published = [each["published"] for each in told]
    assert published == sorted(published)
    numbers = {each.name for each in fields(FleetProgress)}
    assert set(told[0]) == {"at", "event", "rate", *numbers}
    assert set(told[-1]) == {"at", "event", "rate", "qos", "reasons", *numbers}
    assert (told[-1]["published"], told[-1]["total"], told[-1]["in_flight"]) == (30, 30, 0)


def read_terminal(ours: int, until: str) -> bytes:
    """What a program writes to its terminal, until these words."""
    data = b""
    while until.encode() not in data:
        assert select.select([ours], [], [], PATIENCE)[0], f"nothing came after {data!r}"
        data += os.read(ours, 1 << 16)
    return data


def test_on_a_terminal_a_line_shows_how_it_stands_and_ctrl_c_ends_it(broker: TestBroker) -> None:
    ours, theirs = open_terminal()
    with subprocess.Popen(
        program("-p", broker.port, "--devices", 5, "--rate", 200),
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = read_terminal(ours, "in flight")
        assert b"\r\x1b[K" in shown
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        printed = process.stdout.read().decode()
        assert process.wait(PATIENCE) == 0
    os.close(ours)
    (count,) = re.findall(r"^published +([\d,]+) ", printed, re.MULTILINE)
    assert int(count.replace(",", "")) == len(broker.messages()) > 0
    assert "not complete" not in printed


def test_a_fleet_whose_reader_has_gone_ends(broker: TestBroker) -> None:
    with subprocess.Popen(
        program("-p", broker.port, "--rate", 50, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 0


# --- its state ------------------------------------------------------------------------------------


def test_a_state_goes_on_to_the_count_in_all(broker: TestBroker, tmp_path: Path) -> None:
    words = ("-p", broker.port, "--devices", 5, "--rate", 0, "--data", tmp_path / "state")
    assert fleet(*words, "--count", 20).exit_code == 0
    result = fleet(*words, "--count", 50)
    assert result.exit_code == 0, result.output
    assert re.search(r"^published +30 ", result.stdout, re.MULTILINE)
    assert re.search(r"^with earlier +50$", result.stdout, re.MULTILINE)
    expected = sorted(Devices(1, 5).message(index) for index in range(50))
    assert sorted((each.topic_name, each.payload) for each in broker.messages()) == expected
    # Its sessions wait for the next run.
    assert len(broker.sessions()) == 4
    lines = list(read_journal(tmp_path / "state" / "journal"))
    for word in (BEGIN, DONE):
        named = [line[1:] for line in lines if line.word == word]
        assert sorted(named) == sorted(Devices(1, 5).name_of(index) for index in range(50))


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--seed", 2, "--seed 1, not 2"),
        ("--devices", 6, "--devices 5, not 6"),
        ("--gateways", 2, "--gateways 4, not 2"),
        ("--payload", "json", "--payload mixed, not json"),
        ("--prefix", "other", "--prefix plant, not other"),
        ("--qos", 0, "--qos 2, not 0"),
        ("--qos", 1, "--qos 2, not 1"),
        ("-i", "me", "-i fleet-"),
    ],
)
def test_the_state_of_another_fleet_is_refused(
    broker: TestBroker, tmp_path: Path, option: str, value: object, words: str
) -> None:
    given = {"--devices": 5, "--data": tmp_path / "state", "--count": 5}
    plain = [each for pair in given.items() for each in pair]
    assert fleet("-p", broker.port, *plain).exit_code == 0
    changed = [each for pair in {**given, option: value}.items() for each in pair]
    result = fleet("-p", broker.port, *changed)
    assert result.exit_code == 1
    assert words in result.stderr
    assert "give the same, or another folder" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("fleet.json", "{}", "fleet.json does not describe a fleet"),
        ("fleet.json", "x", "fleet.json does not describe a fleet"),
        ("journal", "what is this\n", "is not the journal of a fleet"),
        ("journal", "begin 900 1\n", "message 1 of device 900 does not belong to this fleet"),
    ],
)
def test_a_state_that_is_none_is_one_sentence(
    broker: TestBroker, tmp_path: Path, name: str, text: str, words: str
) -> None:
    (tmp_path / name).write_text(text)
    result = fleet("-p", broker.port, "--count", 5, "--data", tmp_path)
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_state_is_for_one_process_at_a_time(broker: TestBroker, tmp_path: Path, qos: int) -> None:
    state = tmp_path / "state"
    words = ("-p", broker.port, "--rate", 50, "--data", state, "-q", qos)
    with subprocess.Popen(program(*words), stdout=subprocess.PIPE) as process:
        broker.wait_for_message(timeout=PATIENCE)
        result = fleet(*words, "--count", 5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: --data {state} is in use by another process (process {process.pid})\n"
    )
    count = 5 + sum(line.word == BEGIN for line in read_journal(state / "journal"))
    assert fleet(*words, "--count", count).exit_code == 0
    named = [line[1:] for line in read_journal(state / "journal") if line.word == BEGIN]
    assert len(named) == len(set(named)) == count


@pytest.mark.parametrize("is_json", [False, True])
def test_what_is_not_complete_is_in_the_account_and_the_next_run_completes_it(
    broker: TestBroker, tmp_path: Path, is_json: bool
) -> None:
    state = tmp_path / "state"
    options = ("--devices", 5, "--gateways", 1, "--rate", 0, "--count", 20, "--data", state)
    words = ("-p", broker.port, *options, *(["--json"] if is_json else []))
    broker.drop("PUBREC", sender="server", count=None)
    with subprocess.Popen(program(*words), stdout=subprocess.PIPE, text=True) as process:
        broker.wait_for("PUBLISH", count=20, timeout=PATIENCE)
        # The first begins no more, and the second, of whatever kind, does not wait.
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    broker.heal()
    assert [line.word for line in read_journal(state / "journal")].count(KEPT) == 20
    result = fleet(*words)
    assert result.exit_code == 0, result.output
    if is_json:
        first, second = (json.loads(text.splitlines()[-1]) for text in (printed, result.stdout))
        assert (first["published"], first["in_flight"]) == (0, 20)
        assert (second["published"], second["in_flight"]) == (20, 0)
    else:
        assert re.search(r"^published +0 ", printed, re.MULTILINE)
        assert re.search(
            r"^not complete +20   in the outboxes, for the next run$", printed, re.MULTILINE
        )
        assert re.search(r"^published +20 ", result.stdout, re.MULTILINE)
        assert "not complete" not in result.stdout
    expected = sorted(Devices(1, 5).message(index) for index in range(20))
    assert sorted((each.topic_name, each.payload) for each in broker.messages()) == expected


def test_without_a_state_nobody_knows_what_becomes_of_messages_that_are_not_complete(
    broker: TestBroker,
) -> None:
    broker.drop("PUBREC", sender="server", count=None)
    options = ("--devices", 5, "--rate", 0, "--count", 20)
    with subprocess.Popen(
        program("-p", broker.port, *options), stdout=subprocess.PIPE, text=True
    ) as process:
        broker.wait_for("PUBLISH", count=20, timeout=PATIENCE)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert re.search(r"^not complete +20   may or may not arrive$", printed, re.MULTILINE)


# --- what goes wrong ------------------------------------------------------------------------------


def test_a_message_that_is_refused_is_counted_and_the_exit_code_is_1() -> None:
    def refuse_one(number: int, packet: Publish) -> list[Packet]:
        return [PubRec(packet.packet_id, 0x97 if number == 2 else 0)]

    with OddBroker(answer=refuse_one) as odd:
        options = ("--count", 10, "--devices", 5, "--gateways", 1, "-V", "5")
        result = fleet("-p", odd.port, *options)
    assert result.exit_code == 1, result.output
    assert re.search(r"^published +9 ", result.stdout, re.MULTILINE)
    assert re.search(r"^refused +1$", result.stdout, re.MULTILINE)
    assert "0x97" in result.stdout


def test_a_session_that_is_lost_with_a_message_in_flight_is_told_and_the_exit_code_is_1(
    broker: TestBroker,
) -> None:
    # Its PUBREC never comes, and so it is in flight until the end.
    dropped = broker.drop("PUBREC", sender="server")
    options = ("--count", 20, "--devices", 5, "--gateways", 1, "--rate", 0, "-V", "5")
    with subprocess.Popen(
        program("-p", broker.port, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        dropped.wait(timeout=PATIENCE)
        broker.wait_for("PUBCOMP", count=19, timeout=PATIENCE)
        broker.restart(forget=True)
        printed, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, printed + said
    assert re.search(r"^sessions lost +1   1 message sent again", printed, re.MULTILINE)
    assert re.search(r"^published +20 ", printed, re.MULTILINE)


def test_a_broker_that_is_not_there_is_one_sentence() -> None:
    result = fleet("-p", free_port(), "--count", 1)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert re.fullmatch(r"Error: cannot connect to .*: connection refused\n", result.stderr)


def test_a_broker_that_refuses_is_one_sentence_and_its_code() -> None:
    with TestBroker(users={"ann": "secret"}) as broker:
        words = ("-p", broker.port, "--count", 3, "-V", "5", "-u", "ann", "-P")
        result = fleet(*words, "wrong")
        assert result.exit_code == 0x86
        assert result.stderr.count("\n") == 1
        assert fleet(*words, "secret").exit_code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gateways", 3, "--devices", 2), "--gateways 3 is more than --devices 2"),
        (("--prefix", "a", "-L", "mqtt://localhost/b"), "--prefix and the topic of -L"),
        (("--prefix", "a/#"), "Invalid value for '--prefix'"),
        (("-L", "mqtt://localhost/a/#"), "A Topic Name has neither + nor #"),
        (("-x", "0", "-q", "1"), "-x 0: a fleet needs durable sessions"),
        (("-x", "60", "-q", "0"), "-x: the sessions of a fleet with QoS 0 end"),
        (
            ("-D", "connect", "session-expiry-interval", "60", "-q", "0"),
            "-x: the sessions of a fleet with QoS 0 end",
        ),
        (("-I", "x", "--data", "d"), "-I: with --data a fleet needs the same client identifiers"),
        (("-c", "-i", "x"), "always durable"),
        (("-D", "publish", "content-type", "x"), "-D publish: a fleet does not use"),
        (("--rate", "-1"), "--rate"),
        (("--rate", "nan"), "Invalid value for '--rate': 'nan' is not a number"),
        (("--rate", "inf"), "--rate"),
        (("--rate", "1e300"), "--rate"),
        (("--count", "0"), "--count"),
    ],
)
def test_wrong_options_are_said_at_once(options: tuple[object, ...], words: str) -> None:
    result = fleet(*options)
    assert result.exit_code == 1
    assert words in result.stderr
    assert "Traceback" not in result.output


# --- its page -------------------------------------------------------------------------------------


def test_the_page_names_every_option_of_its_own_and_every_number() -> None:
    text = PAGE.read_text("utf-8")
    own = [
        each.opts[-1] if each.opts[-1].startswith("--") else each.opts[0]
        for each in command.params
        if isinstance(each, click.Option) and getattr(each, "section", "") == "Fleet"
    ]
    assert len(own) == 11
    wanted = [*own, *WORDS, *(each.name for each in fields(FleetProgress))]
    assert [word for word in wanted if f"`{word}" not in text] == []
    for bound in (MOST_GATEWAYS, MOST_WINDOW, MOST_RATE):
        assert f"{bound:,.0f}" in text

"""`semel probe` for a broker: what it prints and writes, how it selects, and how it ends."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from semel import cli, standard
from semel.probe.broker.all_cases import ALL_CASES
from tests.broker.broker_process import PATIENCE, Process

# Long enough for a busy machine: only what would hang takes so long.
TIMEOUT = ("--timeout", "30")


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with Process() as made:
        yield f"mqtt://127.0.0.1:{made.address[1]}"


def probe(*arguments: object) -> Result:
    return CliRunner().invoke(cli.group, ["probe", *map(str, arguments)])


@contextmanager
def peer(answer: bytes, *, is_silent: bool = False) -> Iterator[str]:
    """A peer that sends these bytes to whoever connects, and closes, or stays silent."""
    server = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            kept.append(connection)
            with suppress(OSError):
                connection.sendall(answer)
            if not is_silent:
                connection.close()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"mqtt://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.close()
        for connection in kept:
            connection.close()


# --- what it finds --------------------------------------------------------------------------------


def test_an_address_alone_examines_a_broker_and_every_statement_is_reported(broker: str) -> None:
    result = probe(broker, "--only", "subscribe-*", "--quick", "--json", *TIMEOUT)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["kind"] == "broker"
    assert report["totals"].keys() == {"3.1.1", "5.0"}
    listed = [(entry["version"], entry["id"]) for entry in report["statements"]]
    known = [
        (version, each.id) for version in ("3.1.1", "5.0") for each in standard.statements(version)
    ]
    assert listed == known
    assert {case["verdict"] for case in report["cases"]} <= {"satisfied", "not applicable"}


def test_the_terminal_shows_a_table_by_section_and_one_sentence_at_the_end(broker: str) -> None:
    result = probe("broker", broker, "-V", "5", "--statement", "3.3.2-2", *TIMEOUT)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[2].split()[:3] == ["section", "statements", "satisfied"]
    assert any(line.startswith("3.3 PUBLISH") for line in lines)
    assert "0 violated" in lines[-1]
    assert "seed" in lines[-1]


def test_a_report_is_written_for_people_and_programs(broker: str, tmp_path: Path) -> None:
    out = tmp_path / "report"
    result = probe(broker, "--statement", "MQTT-3.3.2-2", "--out", out, *TIMEOUT)
    assert result.exit_code == 0, result.output
    names = {path.name for path in out.iterdir()}
    assert names >= {"report.html", "report.json", "junit.xml", "report.sarif", "badge.svg"}
    again = probe("compare", out / "report.json", out / "report.json")
    assert again.exit_code == 0, again.output


def test_a_violation_is_told_in_words_and_exits_with_1(tmp_path: Path) -> None:
    """A peer that accepts everything and answers pings, and knows nothing else."""
    with lax_broker() as address:
        out = tmp_path / "report"
        only = ("--only", "publish-topic-name-sensor*", "-V", "3.1.1")
        result = probe(address, *only, "--timeout", "5", "--out", out)
    assert result.exit_code == 1, result.output
    assert "[MQTT-3.3.2-2] of 3.1.1: partly (receive partly)" in result.stdout
    assert "the broker did not close the connection" in result.stdout
    assert list((out / "reproducers").glob("*.py"))
    assert list((out / "bug-reports").glob("*.md"))


@contextmanager
def lax_broker(busy: threading.Event | None = None) -> Iterator[str]:
    """A broker for 3.1.1 that answers CONNECT and PINGREQ, and ignores everything else.

    `busy` is set after ten connections.
    """
    accepted: list[object] = []
    server = socket.create_server(("127.0.0.1", 0))

    def talk(connection: socket.socket) -> None:
        # The examiner cuts connections.
        with connection, suppress(OSError):
            while data := connection.recv(65536):
                if data[0] == 0x10:
                    connection.sendall(b"\x20\x02\x00\x00")
                if data.endswith(b"\xc0\x00"):
                    connection.sendall(b"\xd0\x00")

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            accepted.append(connection)
            if busy is not None and len(accepted) == 10:
                busy.set()
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"mqtt://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.close()


def test_a_broker_that_answers_in_another_version_is_not_blamed_for_its_form() -> None:
    """A server of 3.1.1 answers a CONNECT of 5.0 in the only form that it has."""
    with lax_broker() as address:
        only = ("--only", "connect-protocol-level*", "--only", "connect-*level*")
        result = probe(address, *only, "-V", "3.1.1", "--timeout", "5", "--json")
    assert result.exit_code in (0, 1), result.output
    report = json.loads(result.stdout)
    audited = [case for case in report["cases"] if case["case"].startswith("audit-")]
    assert audited
    assert {case["verdict"] for case in audited} == {"satisfied"}


# --- selection ------------------------------------------------------------------------------------


def test_the_list_has_every_case_with_its_statements() -> None:
    cases = json.loads(probe("broker", "--list", "--json").stdout)
    assert [case["case"] for case in cases] == [case.name for case in ALL_CASES]
    assert probe("--list", "-V", "5", "--statement", "U5-03").exit_code == 0


def test_names_of_cases_are_unique_and_their_statements_exist() -> None:
    for version, name in ((4, "3.1.1"), (5, "5.0")):
        known = {each.id for each in standard.statements(name)}
        names = [case.name for case in ALL_CASES if case.statements(version)]
        assert sorted(set(names)) == sorted(names)
        for case in ALL_CASES:
            assert set(case.statements(version)) <= known, case.name


@pytest.mark.parametrize("selection", [("--only", "no-such-case-*"), ("--statement", "9.9.9-9")])
def test_a_selection_of_nothing_is_wrong_usage(selection: tuple[str, str]) -> None:
    result = probe("mqtt://localhost", *selection)
    assert result.exit_code == 2
    assert "no case has such a name or examines such a statement" in result.output


# --- what cannot be examined ----------------------------------------------------------------------


def assert_cannot(result: Result, words: str) -> None:
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_refused_connection_is_one_sentence() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert_cannot(probe(f"mqtt://127.0.0.1:{port}"), "connection refused")


def test_a_peer_that_is_no_broker_is_one_sentence() -> None:
    with peer(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        assert_cannot(probe(address), "cannot be examined")


def test_a_silent_peer_is_one_sentence() -> None:
    with peer(b"", is_silent=True) as address:
        assert_cannot(probe(address, "--timeout", "0.2"), "no CONNACK came")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("localhost",), "No such command 'localhost'"),
        (("broker", "localhost"), "the address has no scheme"),
        (("broker",), "Missing argument 'URL'"),
        (("mqtt://localhost", "--cafile", "x"), "--cafile and --insecure need mqtts or wss"),
        (("mqtts://localhost", "--cafile", "none.pem"), "none.pem"),
        (("mqtt://localhost", "--prefix", "a/#"), "--prefix: A Topic Name has neither + nor #"),
        (("mqtt://localhost", "--prefix", "a\udcff"), "--prefix: A string is well-formed UTF-8"),
        (("mqtt://localhost", "-u", "a\udcff"), "--username: A string is well-formed UTF-8"),
    ],
)
def test_wrong_usage_is_told(arguments: tuple[str, ...], words: str) -> None:
    result = probe(*arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_a_report_that_cannot_be_written_is_one_sentence(broker: str, tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("x", encoding="ascii")
    result = probe(broker, "--statement", "3.3.2-2", "-V", "5", "--out", occupied, *TIMEOUT)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_ctrl_c_reports_what_was_found_so_far(tmp_path: Path) -> None:
    out = tmp_path / "report"
    busy = threading.Event()
    with lax_broker(busy) as address:
        process = subprocess.Popen(
            [sys.executable, "-m", "semel", "probe", address, "-V", "3.1.1", "--out", str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert busy.wait(PATIENCE)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, errors) == (130, b"")
    assert b"Interrupted: the other cases were not run." in output
    report = json.loads((out / "report.json").read_bytes())
    assert len(report["statements"]) == len(standard.statements("3.1.1"))


@pytest.mark.parametrize("kind", ["broker", "client"])
def test_a_statement_may_be_written_in_small_letters_and_an_empty_one_is_refused(kind: str) -> None:
    found = probe(kind, "--list", "--statement", "mqtt-3.3.1-1")
    assert found.exit_code == 0
    assert found.output == probe(kind, "--list", "--statement", "3.3.1-1").output != ""
    empty = probe(kind, "--list", "--statement", "")
    assert empty.exit_code == 2
    assert "no case has such a name or examines such a statement" in empty.output

"""A reproducer, run as a maintainer runs it, against servers that follow a script."""

import ast
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from semel.probe.evidence import (
    CLOSED_BY_EXAMINER,
    CLOSED_BY_SUBJECT,
    CONTROL,
    NOTE,
    OPENED,
    RECEIVED,
    SENT,
    TEST,
    WireEvent,
)
from semel.probe.outcomes import CaseOutcome, ExaminationReport
from semel.probe.report import replay
from semel.probe.report.case_files import list_case_files
from semel.probe.report.reproducer import find_tag
from tests.probe.report.hand_made_reports import (
    CONNACK,
    CONNECT,
    EMPTY_TOPIC,
    HOSTILE,
    ORIGIN_CASE,
    ORIGIN_EVIDENCE,
    PUBACK,
    hostile_report,
    origin_report,
    report,
)

# What a server does with a packet: bytes to answer, or None to close.
Script = Callable[[bytes], bytes | None]


def violating(packet: bytes) -> bytes | None:
    return {0x10: CONNACK, 0x30: PUBACK}.get(packet[0] & 0xF0, b"")


def behaving(packet: bytes) -> bytes | None:
    return None if packet == EMPTY_TOPIC else violating(packet)


def failing_control(packet: bytes) -> bytes | None:
    return None if packet[0] & 0xF0 == 0x30 else violating(packet)


def refusing(packet: bytes) -> bytes | None:
    return b"\x20\x02\x00\x05" if packet[0] == 0x10 else None


def silent(packet: bytes) -> bytes | None:
    return b""


@contextmanager
def serving(script: Script) -> Iterator[int]:
    """A server on a port that the system chose."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        unread = b""
        with connection:
            while True:
                try:
                    data = connection.recv(4096)
                except OSError:
                    return
                if not data:
                    return
                unread += data
                while replay.complete(unread[: replay.body_start(unread)[1]]):
                    end = replay.body_start(unread)[1]
                    answer = script(unread[:end])
                    unread = unread[end:]
                    if answer is None:
                        return
                    connection.sendall(answer)

    def accept() -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for thread in threads:
            thread.join()


def reproducer_of(found: ExaminationReport, outcome: CaseOutcome) -> str | None:
    return list_case_files(found)[outcome.case, outcome.version].reproducer


def run(outcome: CaseOutcome, folder: Path, *words: str) -> tuple[int, str]:
    """Write a reproducer and run it, isolated from semel and from site packages."""
    text = reproducer_of(report(outcome), outcome)
    assert text is not None
    path = folder / "case.py"
    path.write_text(text, "utf-8")
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", str(path), *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert result.stderr == ""
    return result.returncode, result.stdout


def run_against(script: Script, outcome: CaseOutcome, folder: Path) -> tuple[int, str]:
    with serving(script) as port:
        return run(outcome, folder, "127.0.0.1", str(port))


def test_a_subject_that_behaves_as_recorded_is_violated(tmp_path: Path) -> None:
    code, text = run_against(violating, ORIGIN_CASE, tmp_path)
    assert code == 1
    assert "VIOLATED: The broker answered with PUBACK." in text
    assert "[MQTT-4.7.3-1] No Topic Name and no Topic Filter may be empty." in text
    assert "test     connection 2  sent               32 05 00 00 00 07 78  PUBLISH" in text
    assert "test     connection 2  received           40 02 00 07  PUBACK" in text


def test_a_subject_that_is_right_is_not_violated(tmp_path: Path) -> None:
    code, text = run_against(behaving, ORIGIN_CASE, tmp_path)
    assert code == 0
    assert "NOT REPRODUCED" in text
    assert (
        "connection 2: recorded CONNACK, PUBACK, not closed by the subject; "
        "now CONNACK, closed by the subject"
    ) in text


@pytest.mark.parametrize("script", [failing_control, refusing, silent])
def test_a_control_that_fails_proves_nothing(script: Script, tmp_path: Path) -> None:
    code, text = run_against(script, ORIGIN_CASE, tmp_path)
    assert code == 2
    assert "the control failed on connection 1: " in text
    assert text.endswith(": nothing is proved\n")
    assert "VIOLATED" not in text


def test_a_subject_that_accepts_no_connection_proves_nothing(tmp_path: Path) -> None:
    """Without a control arm, the connections that were accepted are the control."""
    without = replace(ORIGIN_CASE, evidence=ORIGIN_EVIDENCE[6:])
    code, text = run_against(refusing, without, tmp_path)
    assert (code, "no connection was accepted: nothing is proved" in text) == (2, True)
    assert run_against(violating, without, tmp_path)[0] == 1
    assert run_against(behaving, without, tmp_path)[0] == 0


def test_nobody_listening_proves_nothing(tmp_path: Path) -> None:
    with serving(violating) as port:
        pass
    code, text = run(ORIGIN_CASE, tmp_path, "127.0.0.1", str(port))
    assert code == 2
    assert f"cannot connect to 127.0.0.1 port {port}: " in text
    assert run(ORIGIN_CASE, tmp_path, "localhost", "port")[0] == 2


def test_the_same_types_with_other_content_are_another_behavior(tmp_path: Path) -> None:
    """A broker that was repaired may send the same packets with other values."""

    def other(packet: bytes) -> bytes | None:
        return b"\x40\x02\x00\x08" if packet == EMPTY_TOPIC else violating(packet)

    code, text = run_against(other, ORIGIN_CASE, tmp_path)
    assert code == 0
    assert "connection 2: recorded PUBACK 40 02 00 07; now 40 02 00 08" in text


def test_closing_is_compared_apart_from_bytes(tmp_path: Path) -> None:
    """Recorded: the subject stays open and is silent. Now: it closes."""
    kept = [event for event in ORIGIN_EVIDENCE if event.at != 0.014]
    silence = replace(ORIGIN_CASE, evidence=tuple(kept))

    def without_answer(packet: bytes) -> bytes | None:
        return b"" if packet == EMPTY_TOPIC else violating(packet)

    assert run_against(without_answer, silence, tmp_path)[0] == 1
    code, text = run_against(behaving, silence, tmp_path)
    assert code == 0
    assert "recorded CONNACK, not closed by the subject; now CONNACK, closed by the subject" in text


def test_names_differ_in_each_run_and_packet_identifiers_are_the_subjects(tmp_path: Path) -> None:
    """The subject delivers with an identifier of its own, and wants that one acknowledged."""
    topic = b"\x00\x0fprobe/ab12cd34/t"
    topic = len(topic[2:]).to_bytes(2, "big") + topic[2:]

    def publish(packet_id: int, name: bytes = topic) -> bytes:
        body = name + packet_id.to_bytes(2, "big") + b"x"
        return bytes([0x32, len(body)]) + body

    events = (
        WireEvent(0.0, TEST, 1, OPENED),
        WireEvent(0.0, TEST, 1, SENT, CONNECT, "CONNECT"),
        WireEvent(0.0, TEST, 1, RECEIVED, CONNACK, "CONNACK"),
        WireEvent(0.0, TEST, 1, SENT, publish(9), "PUBLISH"),
        WireEvent(0.0, TEST, 1, RECEIVED, publish(1), "PUBLISH"),
        WireEvent(0.0, TEST, 1, SENT, b"\x40\x02\x00\x01", "PUBACK"),
        WireEvent(0.0, TEST, 1, RECEIVED, b"\xd0\x00", "PINGRESP"),
        WireEvent(0.1, TEST, 1, CLOSED_BY_EXAMINER, b"", "closed"),
    )
    outcome = replace(ORIGIN_CASE, evidence=events)
    assert find_tag(events) == "ab12cd34"
    published: list[bytes] = []

    def script(packet: bytes) -> bytes | None:
        if packet[0] == 0x32:
            published.append(packet)
            # The same topic name with the identifier 77.
            return packet[:-3] + b"\x00\x4d" + packet[-1:]
        if packet[0] == 0x40:
            return b"\xd0\x00" if packet == b"\x40\x02\x00\x4d" else None
        return violating(packet)

    assert run_against(script, outcome, tmp_path)[0] == 1
    assert run_against(script, outcome, tmp_path)[0] == 1
    assert len(set(published)) == 2
    assert not any(b"ab12cd34" in each for each in published)


def message(topic_name: bytes, payload: bytes = b"x") -> bytes:
    body = len(topic_name).to_bytes(2, "big") + topic_name + payload
    return bytes([0x30, len(body)]) + body


def test_messages_of_others_and_of_the_broker_itself_are_no_difference(tmp_path: Path) -> None:
    """Recorded: a message of $SYS in the control. Now: another one, and one of somebody else."""
    uptime = WireEvent(0.0025, CONTROL, 1, RECEIVED, message(b"$SYS/broker/uptime", b"7 seconds"))
    events = (*ORIGIN_EVIDENCE[:3], uptime, *ORIGIN_EVIDENCE[3:])
    recorded = replace(ORIGIN_CASE, evidence=events)
    more = message(b"$SYS/broker/uptime", b"20 seconds") + message(b"of/somebody/else")

    def chatting(packet: bytes) -> bytes | None:
        return CONNACK + more if packet[0] == 0x10 else violating(packet)

    assert run_against(chatting, recorded, tmp_path)[0] == 1

    def repeating(packet: bytes) -> bytes | None:
        """A message of this case is a difference."""
        return PUBACK + message(b"a") if packet == EMPTY_TOPIC else violating(packet)

    code, text = run_against(repeating, recorded, tmp_path)
    assert (code, "now CONNACK, PUBACK, PUBLISH, not closed" in text) == (0, True)


def test_what_comes_after_a_case_that_ended_at_once_is_no_difference(tmp_path: Path) -> None:
    last = replace(ORIGIN_EVIDENCE[-1], at=0.015)
    at_once = replace(ORIGIN_CASE, evidence=(*ORIGIN_EVIDENCE[:-1], last))

    def more(packet: bytes) -> bytes | None:
        return PUBACK + message(b"a") if packet == EMPTY_TOPIC else violating(packet)

    assert run_against(more, at_once, tmp_path)[0] == 1
    assert run_against(more, ORIGIN_CASE, tmp_path)[0] == 0
    assert run_against(behaving, at_once, tmp_path)[0] == 0


def test_a_pause_is_repeated_and_a_restart_needs_somebody(tmp_path: Path) -> None:
    # Recorded: silence for 2.5 s after the PUBLISH.
    pause = replace(ORIGIN_EVIDENCE[-1], at=2.5)
    slow = replace(ORIGIN_CASE, evidence=(*ORIGIN_EVIDENCE[:-2], pause))
    closing = threading.Event()

    def later(packet: bytes) -> bytes | None:
        if packet == EMPTY_TOPIC:
            # It closes 1.5 s later, which a shorter wait would not see.
            closing.wait(1.5)
            return None
        return violating(packet)

    assert run_against(later, slow, tmp_path)[0] == 0
    note = WireEvent(0.006, TEST, 0, NOTE, b"", "the broker was restarted")
    events = (*ORIGIN_EVIDENCE[:6], note, *ORIGIN_EVIDENCE[6:])
    code, text = run_against(violating, replace(ORIGIN_CASE, evidence=events), tmp_path)
    assert code == 2
    assert "somebody must do this: the broker was restarted: nothing is proved" in text


def test_a_client_is_examined_by_listening(tmp_path: Path) -> None:
    events = (
        WireEvent(0.0, CONTROL, 1, OPENED),
        WireEvent(0.1, CONTROL, 1, RECEIVED, CONNECT, "CONNECT"),
        WireEvent(0.1, TEST, 1, SENT, b"\x20\x02\x01\x00", "CONNACK, session present"),
        WireEvent(0.2, TEST, 1, RECEIVED, b"\xc0\x00", "PINGREQ"),
        WireEvent(0.3, TEST, 1, CLOSED_BY_EXAMINER, b"", "closed"),
    )
    outcome = replace(ORIGIN_CASE, evidence=events)
    client = tmp_path / "client.py"
    program = (
        "import socket, sys\n"
        "s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        f"s.sendall({CONNECT!r})\n"
        "s.recv(4)\n"
    )
    client.write_text(program + "s.sendall(b'\\xc0\\x00')\ns.recv(1)\n")
    words = ("127.0.0.1", "0", "--", sys.executable, str(client), "{host}", "{port}")
    code, text = run(outcome, tmp_path, *words)
    assert (code, "listening on 127.0.0.1 port " in text) == (1, True)
    client.write_text(program)
    code, text = run(outcome, tmp_path, *words)
    assert code == 0
    assert "recorded CONNECT, PINGREQ, not closed" in text
    client.write_text("")
    code, text = run(outcome, tmp_path, *words)
    assert (code, "no client connected: nothing is proved" in text) == (2, True)


# --- the text -------------------------------------------------------------------------------------


def texts() -> dict[str, str]:
    found = {}
    for name, each in (("origin", origin_report()), ("hostile", hostile_report())):
        text = reproducer_of(each, each.failed()[0])
        assert text is not None
        found[name] = text
    return found


def test_a_reproducer_is_readable_python_3_8_of_the_standard_library() -> None:
    for text in texts().values():
        tree = ast.parse(text, feature_version=(3, 8))
        assert ast.get_docstring(tree, clean=False) is not None
        modules = {
            name.name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for name in node.names
        }
        assert modules <= sys.stdlib_module_names
        imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert imported == {"__future__", "collections.abc"}
        assert all(c.isprintable() or c == "\n" for c in text)
        assert "nosec" not in text
        assert len(text.splitlines()) < 600
    assert max(len(line) for line in texts()["origin"].splitlines()) <= 100
    assert "It uses plain TCP, also if the case was recorded with TLS or WebSocket" in text


def test_a_reproducer_has_the_data_of_its_case() -> None:
    module: dict[str, object] = {"__name__": "case"}
    exec(compile(texts()["origin"], "case.py", "exec"), module)
    assert module["CASE"] == "empty-topic-name"
    assert module["STEPS"] == [
        (event.at, event.arm, event.link, event.kind, event.data.hex(" "), event.meaning)
        for event in ORIGIN_EVIDENCE
    ]
    module = {"__name__": "case"}
    exec(compile(texts()["hostile"], "case.py", "exec"), module)
    assert "</script>" in str(module["FOUND"])
    assert HOSTILE not in str(module["FOUND"])


def test_long_bytes_are_written_short_and_cut_ones_are_completed() -> None:
    data = b"\x30\xff\x7f" + b"ab" * 40 + b"x" * 5_000
    cut = WireEvent(0.0, TEST, 1, SENT, data, "PUBLISH (the first 5,083 of 20,083 bytes)")
    opened = WireEvent(0.0, TEST, 1, OPENED)
    outcome = replace(ORIGIN_CASE, evidence=(opened, cut))
    text = reproducer_of(report(outcome), outcome)
    assert text is not None
    assert '"78" * 20000' in text
    module: dict[str, list[tuple[object, ...]]] = {}
    exec(compile(text, "case.py", "exec"), {"__name__": "case"}, module)
    assert bytes.fromhex(str(module["STEPS"][1][4])) == data + b"x" * 15_000
    unknown = replace(cut, data=bytes(range(200)))
    outcome = replace(ORIGIN_CASE, evidence=(opened, unknown))
    assert reproducer_of(report(outcome), outcome) is None


def test_evidence_without_a_connection_has_no_reproducer() -> None:
    outcome = replace(ORIGIN_CASE, evidence=(WireEvent(0.0, TEST, 0, NOTE, b"", "encoded"),))
    assert reproducer_of(report(outcome), outcome) is None


@pytest.mark.parametrize(
    ("sent", "tag"),
    [
        ([b"\x00\x10semel-probe/1a2b3c/t"], "1a2b3c"),
        ([b"\x00\x0c$SYS/broker/uptime"], ""),
        ([b"\x00\x0csemel1a2b3ca"], "1a2b3c"),
        ([b"\x00\x0csemel1a2b3csub", b"\x00\x0csemel1a2b3cpub"], "1a2b3c"),
        ([b"\x00\x03abc"], ""),
        ([b"semelabcdx", b"semelzzzzx"], ""),
        ([], ""),
    ],
)
def test_the_part_of_names_that_differs_is_found(sent: list[bytes], tag: str) -> None:
    assert find_tag([WireEvent(0.0, TEST, 1, SENT, each) for each in sent]) == tag


# --- the comparison of packets --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        # The packet identifier and the Message Expiry Interval are the sender's.
        ("32 0d 0001 61 0001 05 0200000009 78 79", "32 0d 0001 61 0002 05 0200000008 78 79", True),
        ("32 0d 0001 61 0001 05 0200000009 78 79", "3a 0d 0001 61 0001 05 0200000009 78 79", False),
        ("30 08 0001 61 03 23 0001 78", "30 08 0001 61 03 23 0002 78", False),
        (
            "30 0d 0001 61 08 26 0001 61 0002 6263 78",
            "30 0d 0001 61 08 26 0001 61 0002 6264 78",
            False,
        ),
        ("20 08 00 00 05 12 0002 6162", "20 08 00 00 05 12 0002 6364", True),
        ("20 03 00 00 00", "20 03 01 00 00", False),
        ("20 03 00 00 00", "20 03 00 87 00", False),
        ("40 02 0007", "40 04 0007 00 00", True),
        ("40 02 0007", "40 03 0007 10", False),
        ("62 02 0001", "62 02 0002", True),
        ("90 04 0001 00 01", "90 09 0001 05 1f 0002 6869 01", True),
        ("90 04 0001 00 01", "90 04 0001 00 80", False),
        ("e0 02 82 00", "e0 01 82", True),
        ("e0 01 81", "e0 01 82", False),
        ("d0 00", "d0 00", True),
        ("30", "30 ff", True),
        ("30 ff ff ff ff", "d0 00", False),
    ],
)
def test_packets_are_compared_without_what_a_sender_may_choose(
    one: str, other: str, is_same: bool
) -> None:
    first, second = bytes.fromhex(one), bytes.fromhex(other)
    assert (replay.essence(first) == replay.essence(second)) is is_same


def test_connack_properties_count_only_in_cases_about_connack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = bytes.fromhex("20 06 00 00 03 13 003c"), bytes.fromhex("20 06 00 00 03 13 000a")
    assert replay.essence(one) == replay.essence(other)
    monkeypatch.setattr(replay, "COMPARES_CONNACK_PROPERTIES", True)
    assert replay.essence(one) != replay.essence(other)
    about = replace(ORIGIN_CASE, version="5.0", statements=("MQTT-3.2.2-4",))
    text = reproducer_of(report(about, versions=("5.0",)), about)
    assert text is not None
    assert "COMPARES_CONNACK_PROPERTIES = True" in text
    assert CLOSED_BY_SUBJECT == "closed by subject"

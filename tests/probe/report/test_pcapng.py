"""The pcapng of a report: tshark reads it as MQTT over flawless TCP."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from semel.probe.evidence import CLOSED_BY_SUBJECT, OPENED, RECEIVED, SENT, TEST, WireEvent
from semel.probe.report.pcapng import make_pcapng
from semel.probe.verdicts import SATISFIED
from tests.probe.report.hand_made_reports import (
    CONNACK,
    CONNECT,
    case,
    hostile_report,
    large_report,
    origin_report,
    report,
)

NEEDS_TSHARK = pytest.mark.skipif(shutil.which("tshark") is None, reason="not installed: tshark")
# What Wireshark remarks about TCP and IP, with the checks that are off by default.
FLAWS = "tcp.analysis.flags || tcp.checksum.status == 0 || ip.checksum.status == 0"
CHECKS = ("-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE")


def tshark(data: bytes, folder: Path, *words: str) -> list[str]:
    path = folder / "exchange.pcapng"
    path.write_bytes(data)
    result = subprocess.run(
        ["tshark", "-r", str(path), *CHECKS, *words], capture_output=True, timeout=120, check=True
    )
    assert b"appears to" not in result.stderr
    assert b"damaged" not in result.stderr
    return result.stdout.decode().splitlines()


def fields(data: bytes, folder: Path, *names: str, only: str = "frame") -> list[list[str]]:
    words = [word for name in names for word in ("-e", name)]
    lines = tshark(data, folder, "-Y", only, "-T", "fields", *words)
    return [line.split("\t") for line in lines]


@NEEDS_TSHARK
def test_tshark_sees_the_packets_of_mqtt(tmp_path: Path) -> None:
    data = make_pcapng(report(origin_report().outcomes[0]))
    found = fields(data, tmp_path, "tcp.stream", "mqtt.msgtype", "mqtt.msgid", only="mqtt")
    control = [["0", "1", ""], ["0", "2", ""], ["0", "3", "7"], ["0", "4", "7"]]
    assert found == control + [["1", *rest] for _, *rest in control]


@NEEDS_TSHARK
@pytest.mark.parametrize(
    "made", [report, origin_report, hostile_report, large_report], ids=lambda made: made.__name__
)
def test_tshark_finds_no_flaw_in_tcp(made: Any, tmp_path: Path) -> None:
    assert tshark(make_pcapng(made()), tmp_path, "-Y", FLAWS) == []


@NEEDS_TSHARK
def test_a_flaw_would_be_found(tmp_path: Path) -> None:
    """A wrong byte in a packet makes its checksum wrong; a missing packet makes a gap."""
    data = make_pcapng(origin_report())
    assert tshark(data.replace(b"semel42", b"semel43", 1), tmp_path, "-Y", FLAWS)
    at = data.index(CONNECT)
    start = at - 54 - 28
    size = int.from_bytes(data[start + 4 : start + 8], "little")
    assert tshark(data[:start] + data[start + size :], tmp_path, "-Y", FLAWS)


@NEEDS_TSHARK
def test_packets_have_comments_and_times_and_the_file_has_its_author(tmp_path: Path) -> None:
    found = origin_report()
    data = make_pcapng(found)
    names = ("frame.time_epoch", "frame.comment")
    rows = fields(data, tmp_path, *names, only="mqtt.msgtype == 3 && tcp.stream == 1")
    ((time, comment),) = rows
    assert float(time) == pytest.approx(found.started + 0.013, abs=1e-4)
    assert comment == (
        "empty-topic-name, MQTT 3.1.1, connection 2, test: "
        "PUBLISH QoS 1, packet_id 7, topic_name ''"
    )
    # The second case begins after the first, which took 0.3 s.
    ((time,),) = fields(
        data, tmp_path, "frame.time_epoch", only="tcp.stream == 2 && mqtt.msgtype == 1"
    )
    assert float(time) == pytest.approx(found.started + 0.3 + 0.011, abs=1e-4)
    assert b"semel 0.9" in data[:200]


@NEEDS_TSHARK
def test_who_closed_sends_the_first_fin(tmp_path: Path) -> None:
    data = make_pcapng(origin_report())
    rows = fields(data, tmp_path, "tcp.stream", "tcp.srcport", only="tcp.flags.fin == 1")
    first = dict(reversed(rows))
    assert first["1"] != "1883"
    assert first["2"] == "1883"


@NEEDS_TSHARK
def test_a_client_that_is_examined_has_the_clients_side(tmp_path: Path) -> None:
    events = (
        WireEvent(0.0, TEST, 1, OPENED),
        WireEvent(0.1, TEST, 1, RECEIVED, CONNECT, "CONNECT"),
        WireEvent(0.2, TEST, 1, SENT, CONNACK, "CONNACK"),
        WireEvent(0.3, TEST, 1, CLOSED_BY_SUBJECT),
    )
    data = make_pcapng(report(case("client", SATISFIED, (), events), kind="broker+client"))
    found = fields(data, tmp_path, "mqtt.msgtype", "tcp.dstport", only="mqtt")
    assert found[0] == ["1", "1883"]
    assert found[1][0] == "2"
    assert tshark(data, tmp_path, "-Y", FLAWS) == []


@NEEDS_TSHARK
def test_a_long_packet_is_split_into_segments_and_put_together_again(tmp_path: Path) -> None:
    long = bytes.fromhex("30 85 9c 01 00 01 61") + b"x" * 19_970
    events = (
        WireEvent(0.0, TEST, 1, SENT, CONNECT),
        WireEvent(0.0, TEST, 1, SENT, long),
        WireEvent(0.1, TEST, 1, CLOSED_BY_SUBJECT),
        # Nothing can follow the end of a connection, so this is another one.
        WireEvent(0.2, TEST, 1, RECEIVED, CONNACK),
    )
    data = make_pcapng(report(case("long", SATISFIED, (), events)))
    rows = fields(data, tmp_path, "mqtt.msgtype", "mqtt.len", only="mqtt.msgtype == 3")
    assert rows == [["3", str(len(long) - 4)]]
    assert tshark(data, tmp_path, "-Y", FLAWS) == []
    assert {stream for (stream,) in fields(data, tmp_path, "tcp.stream")} == {"0", "1"}


def test_an_empty_report_has_no_packet() -> None:
    assert len(make_pcapng(report())) < 200

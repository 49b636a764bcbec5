"""Thousands of connections that are opened and dropped, over every transport.

A minute of it is `make connection-floods`.
"""

import gc
import socket
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from semel.broker.network.layered_transport import LayeredProtocol, LayeredTransport
from semel.broker.network.peers import Peer
from semel.broker.network.tls import TlsLayer
from semel.broker.network.websocket import WebSocketLayer
from tests.broker import websocket_frames
from tests.broker.by_hand import PATIENCE
from tests.broker.connection_flood import (
    LIMITED,
    NOBODY,
    STAGES,
    Dropper,
    FloodPlan,
    FloodReport,
)
from tests.broker.flooded_broker import TRANSPORTS, Innocents, compare, run_flood
from tests.broker.observed_broker import Observation
from tests.broker.serving import serving
from tests.broker.tls_files import TlsFiles
from tests.broker.transports import local_listener

HELD = Observation(1, 1, 0, 1, 1, 0, 0, 3, 4, 20, 50 << 20)


def test_class_13_connections_that_are_opened_and_dropped_leave_nothing_behind(
    tmp_path: Path,
) -> None:
    result = run_flood(tmp_path, seconds=3.0, rate=2_000.0, seed=1)
    assert not result.faults, f"{result.faults}\n{result.summary()}"
    assert result.report.connections > 50
    assert result.exchanged
    assert result.newcomers


# What a connection consists of.
PARTS = (LayeredProtocol, LayeredTransport, Peer, TlsLayer, WebSocketLayer)
# What breaks the protocol of a transport: HTTP, a TLS record without a ClientHello, a text frame.
BROKEN = {
    "tcp": websocket_frames.request(),
    "tls": b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
    "ws": websocket_frames.request() + websocket_frames.frame(websocket_frames.TEXT, b"x"),
}


@pytest.mark.parametrize("loop", ["asyncio", "broker"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_class_13_a_closed_connection_is_freed_without_the_garbage_collector(
    transport: str, loop: str, tmp_path: Path
) -> None:
    """The broker lets it run so rarely that a flood would fill the memory."""
    files = TlsFiles(tmp_path)
    with serving(loop=loop, listeners=[local_listener(transport, files, tmp_path)]) as server:
        ports = {transport: server.address[1]}
        dropper = Dropper(FloodPlan(ports, seconds=1.0, rate=1.0, seed=1), 0)
        gc.collect()
        gc.disable()
        try:
            for stage in STAGES:
                dropper.drop(transport, stage, NOBODY)
            with socket.create_connection(server.address, PATIENCE) as broken:
                broken.sendall(BROKEN[transport])
                while broken.recv(4_096):
                    pass
            end = time.monotonic() + PATIENCE
            while left := [each for each in gc.get_objects() if isinstance(each, PARTS)]:
                assert time.monotonic() < end, Counter(type(each).__name__ for each in left)
                del left
                time.sleep(0.05)
        finally:
            gc.enable()


def clean_report() -> FloodReport:
    dropped = Counter({f"{transport}/{stage}": 1 for transport in TRANSPORTS for stage in STAGES})
    return FloodReport(dropped, Counter({f"{LIMITED}/0": 1, "wrong/134": 1}), seconds=1.0)


def test_a_broker_that_is_as_before_has_no_faults() -> None:
    assert compare(clean_report(), HELD, replace(HELD, resident=51 << 20)) == []


@pytest.mark.parametrize("name", ["peers", "handshakes", "tasks", "files", "sessions", "retained"])
def test_what_is_left_behind_is_found(name: str) -> None:
    after = replace(HELD, **{name: getattr(HELD, name) + 1})
    (fault,) = compare(clean_report(), HELD, after)
    assert f"'{name}': {getattr(after, name)}" in fault


def test_memory_that_grows_with_each_connection_is_found() -> None:
    (fault,) = compare(clean_report(), HELD, replace(HELD, resident=70 << 20))
    assert "memory grew" in fault


def test_strangers_who_are_admitted_and_floods_that_did_not_happen_are_found() -> None:
    report = clean_report()
    report.answers = Counter({"nobody/0": 1})
    del report.dropped["tls/CONNECT"]
    report.failed["tcp/opened/refused"] += 1
    faults = compare(report, HELD, HELD)
    words = ("strangers were admitted", "no known user", "at tls/CONNECT", "connections failed")
    assert all(word in fault for word, fault in zip(words, faults, strict=True)), faults


def test_messages_that_innocent_clients_lose_or_get_from_intruders_are_found(
    tmp_path: Path,
) -> None:
    innocents = Innocents({"tcp": 1}, TlsFiles(tmp_path))
    innocents.sent["tcp"] = 3
    innocents.received["tcp"] = [0, 1, 2]
    assert innocents.faults() == []
    innocents.received["tcp"] = [0, 2]
    innocents.intrusions.append("pair/intruded")
    intruded, lost = innocents.faults()
    assert "has published to pair/intruded" in intruded
    assert "3 messages were sent, and 2 received" in lost

"""Every packet that a client could send, from the vectors, to `semel broker`, over each transport.

`test_vectors.py` says more of each of them, without the network; here it is the verdict that
counts, and that the process goes on.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.broker.network.listener_settings import TRANSPORTS
from semel.mqtt import ConnAck, Disconnect, PingReq, PingResp, rules
from tests.broker.by_hand import Link
from tests.broker.core.test_vectors import (
    BROKEN,
    RIGHT,
    FromClient,
    accepted_code,
    answered_in,
    leaves_by_rule,
    leaves_no_room,
)
from tests.broker.live.test_server_listeners import Broker, broker, urls
from tests.broker.tls_files import TlsFiles
from tests.broker.transports import Dialer, local_listener


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("certificates"))


ROOMY = ("--maximum-packet-size", "256MiB", "--before-connect-packet-size", "256MiB")


@pytest.fixture(scope="module")
def running(files: TlsFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker(*ROOMY, *urls(files, tmp_path_factory.mktemp("sockets"))) as started:
        yield started


@pytest.fixture(scope="module")
def without_epoll() -> Iterator[Broker]:
    """A broker whose plain sockets are transports of the loop."""
    with broker(*ROOMY, "--listener", "mqtt://127.0.0.1:0", epoll=False) as started:
        yield started


@pytest.fixture(params=[*TRANSPORTS, "tcp without epoll"])
def dialer(request: pytest.FixtureRequest, files: TlsFiles) -> Dialer:
    """Connects by one transport."""
    transport, _, rest = request.param.partition(" ")
    started: Broker = request.getfixturevalue("without_epoll" if rest else "running")
    found = started.listeners[transport]
    place = {"path": Path(found["path"])} if "path" in found else {"port": found["port"]}
    listener = local_listener(transport, files, Path(), **place)
    return Dialer(listener, ("127.0.0.1", found.get("port", 0)), files)


def send(dialer: Dialer, vector: FromClient) -> Link:
    """A client that has sent the bytes: the first, or after its CONNACK."""
    version = answered_in(vector) if vector.is_connect else vector.version
    client = Link(dialer.address, version, connected=dialer.connected())
    if not vector.is_connect:
        assert client.connect("a").reason == 0
    client.send_bytes(vector.data)
    return client


@pytest.mark.parametrize("file", sorted({vector.file for vector in BROKEN}))
def test_a_packet_that_breaks_a_rule_closes_the_connection_and_no_other(
    dialer: Dialer, file: str
) -> None:
    """[MQTT-4.8.0-1] (3.1.1) [MQTT-4.13.1-1] (5.0)"""
    with dialer.link("bystander") as bystander:
        for vector in BROKEN:
            if vector.file == file:
                client = send(dialer, vector)
                for packet in client.until_closed():
                    assert isinstance(packet, ConnAck | Disconnect), vector.name
                    assert packet.reason, vector.name
                client.close()
        bystander.ping()


@pytest.mark.parametrize("file", sorted({vector.file for vector in RIGHT}))
def test_a_right_packet_is_taken(dialer: Dialer, file: str) -> None:
    """Too strict is wrong too: a client that may stay is answered once more."""
    for vector in RIGHT:
        if vector.file != file:
            continue
        client = send(dialer, vector)
        if vector.is_connect and leaves_no_room(vector):
            assert client.until_closed() == [], vector.name
        elif vector.is_connect:
            (connack,) = client.take(1)
            assert isinstance(connack, ConnAck)
            assert connack.reason == accepted_code(vector), vector.name
        elif file == "disconnect" or leaves_by_rule(vector):
            client.until_closed()
        else:
            client.send(PingReq())
            while client.take(1) != [PingResp()]:
                pass
        client.close()


def test_there_are_hundreds_of_each() -> None:
    assert len(BROKEN) > 500
    assert len(RIGHT) > 300
    assert any(vector.rule is rules.PROTOCOL_LEVEL_SUPPORTED for vector in BROKEN)

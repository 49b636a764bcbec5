"""The metrics of a running broker: numbers that agree with the traffic, and what goes wrong."""

import asyncio
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.broker.network.server import Server, server_metrics, start_metrics
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    ConnAck,
    Connect,
    Decoder,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    Violation,
    encode,
)
from semel.store.store import FULL, OPEN
from tests.broker.broker_process import PATIENCE, Process
from tests.metrics.exposition import Exposition, read_exposition
from tests.metrics.http_client import Response, ask, connect


class Peer:
    """A client that is a socket."""

    def __init__(self, address: tuple[str, int], client_id: str) -> None:
        self.socket = socket.create_connection(address, PATIENCE)
        self.decoder = Decoder(MQTT5)
        self.waiting: list[Packet] = []
        self.sent = self.received = 0
        self.send(Connect(client_id, version=MQTT5))
        assert isinstance(self.next(), ConnAck)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *packets: Packet) -> None:
        data = b"".join(encode(packet, MQTT5) for packet in packets)
        self.sent += len(data)
        self.socket.sendall(data)

    def next(self) -> Packet:
        while not self.waiting:
            data = self.socket.recv(65_536)
            assert data
            self.received += len(data)
            for item in self.decoder.receive(data):
                assert not isinstance(item, Violation)
                self.waiting.append(item)
        return self.waiting.pop(0)


def metrics_address(broker: Process) -> tuple[str, int]:
    found = re.search(r"serving metrics on http://([\d.]+):(\d+)/metrics", "".join(broker.log))
    assert found, broker.log
    return found[1], int(found[2])


def scrape(address: tuple[str, int], *, is_open: bool = False) -> Exposition:
    accept = "application/openmetrics-text" if is_open else ""
    found = ask(address, accept=accept)
    assert found.status == 200
    return read_exposition(found.body, is_open=is_open)


def fresh_scrape(address: tuple[str, int]) -> Exposition:
    """A scrape whose sums over all sessions are not those of an earlier one."""
    time.sleep(1.2)
    return scrape(address)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Process]:
    arguments = ["--metrics-port", "0", "--data", str(tmp_path / "data"), "--sys-interval", "0"]
    with Process(*arguments, "--stream", "all=#") as made:
        yield made


def test_the_numbers_agree_exactly_with_what_was_sent(broker: Process) -> None:
    address = metrics_address(broker)
    with Peer(broker.address, "reader") as reader, Peer(broker.address, "publisher") as publisher:
        exchange_messages(reader, publisher)
        found = fresh_scrape(address)
    check_messages(found, reader, publisher)
    # Whatever was sealed since, no row is lost on the way.
    sealed = found.value("semel_stream_sealed_seq", stream="all")
    assert sealed + found.value("semel_stream_unsealed_rows", stream="all") == 60
    end = time.monotonic() + PATIENCE
    while found.value("semel_stream_sealed_seq", stream="all") < 60:
        assert time.monotonic() < end
        found = fresh_scrape(address)
    assert found.value("semel_stream_unsealed_seconds", stream="all") == 0
    assert scrape(address, is_open=True).series() == found.series()


# How many messages of each QoS are sent.
COUNTS = {0: 30, 1: 20, 2: 10}


def exchange_messages(reader: Peer, publisher: Peer) -> None:
    reader.send(Subscribe(1, [Subscription("t/#", 2)]))
    assert isinstance(reader.next(), SubAck)
    for qos, count in COUNTS.items():
        for number in range(1, count + 1):
            publisher.send(Publish(f"t/{qos}", bytes(10 + qos), qos, number if qos else 0))
            if qos == 1:
                assert isinstance(publisher.next(), PubAck)
            elif qos == 2:
                assert isinstance(publisher.next(), PubRec)
                publisher.send(PubRel(number))
                assert isinstance(publisher.next(), PubComp)
            packet = reader.next()
            assert isinstance(packet, Publish)
            if packet.qos == 1:
                reader.send(PubAck(packet.packet_id))
            elif packet.qos == 2:
                reader.send(PubRec(packet.packet_id))
                assert isinstance(reader.next(), PubRel)
                reader.send(PubComp(packet.packet_id))


def check_messages(found: Exposition, reader: Peer, publisher: Peer) -> None:
    for direction in ("received", "sent"):
        messages = found[f"semel_messages_{direction}_total"].values()
        assert messages == {str(qos): count for qos, count in COUNTS.items()}
        payload = found[f"semel_payload_{direction}_bytes_total"].values()
        assert payload == {str(qos): count * (10 + qos) for qos, count in COUNTS.items()}
    assert found.value("semel_network_received_bytes_total") == reader.sent + publisher.sent
    assert found.value("semel_network_sent_bytes_total") == reader.received + publisher.received
    # The reader: CONNECT, SUBSCRIBE, 20 PUBACK, 10 PUBREC and PUBCOMP; the publisher: CONNECT,
    # 60 PUBLISH, 10 PUBREL.
    assert found.value("semel_packets_received_total") == 42 + 71
    assert found.value("semel_packets_sent_total") == 2 + 70 + 1 + 40
    assert found.value("semel_connections", listener="default") == 2
    assert found.value("semel_clients_connected") == found.value("semel_sessions") == 2
    assert found.value("semel_connects_accepted_total") == 2
    assert found.value("semel_subscriptions") == 1
    assert found.value("semel_inflight_messages") == found.value("semel_queued_messages") == 0
    assert found.value("semel_stream_last_seq", stream="all") == 60
    # Each message was acknowledged before the next one was sent.
    commits = found.value("semel_commit_seconds_count")
    assert commits >= 60
    assert found.value("semel_transaction_commits_sum") == commits
    assert found.value("semel_transaction_rows_sum") >= 60
    assert found.value("semel_loop_lag_seconds_count") >= 1
    assert found.value("semel_memory_bytes") > 10**6
    assert found.value("semel_store_free_bytes") > 0


def test_refused_and_wrong_clients_are_counted(broker: Process) -> None:
    address = metrics_address(broker)
    with Peer(broker.address, "wrong") as wrong:
        wrong.send(Connect("wrong", version=MQTT5))
        while wrong.socket.recv(4_096):
            pass
    method = Properties(authentication_method="unknown")
    with socket.create_connection(broker.address, PATIENCE) as refused:
        refused.sendall(encode(Connect("x", version=MQTT5, properties=method), MQTT5))
        while refused.recv(4_096):
            pass
    found = fresh_scrape(address)
    violations = found["semel_violations_total"].values()
    assert sum(violations.values()) == 1
    assert found.value("semel_connects_refused_total", reason="0x8c") == 1
    assert found.value("semel_authentication_failures_total") == 1


def test_it_is_alive_and_ready(broker: Process) -> None:
    address = metrics_address(broker)
    assert ask(address, "/healthz") == ask(address, "/readyz")
    assert ask(address, "/readyz").body == "ok\n"


@pytest.mark.parametrize("epoll", [True, False])
def test_a_broker_without_a_store_has_metrics_too(epoll: bool) -> None:
    with Process("--metrics-port", "0", epoll=epoll) as made:
        found = scrape(metrics_address(made))
        assert "semel_commit_seconds" not in found
        assert [*found["semel_build_info"].samples.values()] == [1]


def test_without_a_port_nothing_is_served() -> None:
    with Process() as made:
        assert "serving metrics" not in "".join(made.log)


def test_slow_and_hostile_scrapers_do_not_delay_mqtt(broker: Process) -> None:
    address = metrics_address(broker)
    hostile = [connect(address) for _ in range(40)]
    try:
        for number, each in enumerate(hostile):
            # Those beyond the limit are closed at any moment.
            try:
                each.sendall((b"GET /metrics HTTP/1.1\r\n", b"\0" * 20_000, b"")[number % 3])
            except OSError:
                continue
        with Peer(broker.address, "client") as client:
            for number in range(1, 51):
                client.send(Publish("t", b"x", 1, number))
                assert isinstance(client.next(), PubAck)
    finally:
        for each in hostile:
            each.close()
    end = time.monotonic() + PATIENCE
    found: Response | None = None
    while found is None or found.status != 200:
        assert time.monotonic() < end
        found = ask(address)
    assert (
        read_exposition(found.body, is_open=False).value("semel_messages_received_total", qos="1")
        == 50
    )


def test_a_port_in_use_is_one_sentence_and_the_broker_does_not_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        found = subprocess.run(
            [sys.executable, "-m", "semel", "broker", "--port", "0", "--metrics-port", str(port)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == (
        f"Error: cannot serve metrics on 127.0.0.1:{port}: the port is in use by another program:"
        " change metrics_port"
    )
    assert "Traceback" not in found.stderr


def test_readiness_says_why_clients_are_not_served() -> None:
    async def check() -> list[str | None]:
        server = Server(BrokerSettings(port=0, metrics_port=0))
        endpoint = await start_metrics(server, server_metrics(server))
        assert endpoint is not None
        found = [server.readiness()]
        await server.start()
        found.append(server.readiness())
        server.store.condition = FULL
        found.append(server.readiness())
        server.store.condition = OPEN
        await server.stop()
        found.append(server.readiness())
        server.failure = "disk I/O error"
        found.append(server.readiness())
        await endpoint.stop()
        return found

    assert asyncio.run(check()) == [
        "the broker does not listen yet",
        None,
        "the disk of the store is full: durable messages are refused or wait",
        "the broker is stopping",
        "the store failed: disk I/O error",
    ]

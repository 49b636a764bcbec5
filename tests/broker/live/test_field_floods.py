"""Bugs that brokers have had: class 13, a client that uses up what belongs to all, on real sockets.

Readers that do not read, writers that write a byte at a time, and more connections than there are
files. Nothing is timed: what is judged is who is served, what arrives, and how much is held.
"""

import resource
import socket
from contextlib import ExitStack

import pytest

from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Will,
    encode,
)
from tests.broker.broker_process import Process
from tests.broker.by_hand import PATIENCE, Link, frame, healthy_pair, link, resident, section, text
from tests.broker.core.test_core import VERSIONS, payloads
from tests.broker.serving import Serving, serving

DROPPED = "$SYS/broker/publish/messages/dropped"
# As little as the system permits, so that a reader who does not read is soon noticed.
SMALL = 4_096


# --- slow readers ---------------------------------------------------------------------------------


def slow_settings(bound: int, queued: int = 10_000) -> BrokerSettings:
    return BrokerSettings(
        port=0, sys_interval=1.0, maximum_outgoing_bytes=bound, maximum_queued_messages=queued
    )


# Below and above what the transports of asyncio hold back by themselves.
BOUNDS = pytest.mark.parametrize("bound", [50_000, 200_000])
EACH_ONCE = pytest.mark.parametrize(("version", "bound"), [(MQTT311, 50_000), (MQTT5, 200_000)])


def dropped(server: Serving) -> int:
    """How many messages the broker says that it has dropped."""
    with link(server.address, "asks") as client:
        client.subscribe(DROPPED)
        # The first is what it said some time ago.
        _, said = payloads(client.take(2))
        return int(said)


@EACH_ONCE
def test_class_13_a_slow_reader_loses_qos_0_messages_which_are_counted(
    version: int, bound: int
) -> None:
    """By the settings; everybody else gets all of them, and it gets what it still can"""
    with (
        serving(slow_settings(bound), send_buffer=SMALL) as server,
        link(server.address, "slow", version, receive_buffer=SMALL) as slow,
        link(server.address, "quick", version) as quick,
        healthy_pair(server.address) as pair,
    ):
        for client in (slow, quick):
            client.subscribe("t", qos=1)
        for number in range(200):
            pair.publisher.send(Publish("t", b"%04d" % number + bytes(5_000)))
            assert payloads(quick.take(1))[0][:4] == b"%04d" % number
            if number % 25 == 0:
                pair.exchange()
        pair.publisher.send(Publish("t", b"last", qos=1, packet_id=9))
        assert pair.publisher.take(1) == [PubAck(9)]
        received: list[bytes] = []
        while not received or received[-1] != b"last":
            received += [payload[:4] for payload in payloads(slow.take(1))]
        lost = 200 - (len(received) - 1)
        assert received == sorted(received)
        assert lost > 100
        assert len(received) > 5
        assert dropped(server) == lost


@VERSIONS
@BOUNDS
@pytest.mark.parametrize("qos", [1, 2])
def test_class_13_a_slow_reader_loses_no_qos_1_or_2_message_that_its_queue_can_hold(
    version: int, bound: int, qos: int
) -> None:
    """They wait for it, however slow it is, and arrive in order and once"""
    with (
        serving(slow_settings(bound), send_buffer=SMALL) as server,
        link(server.address, "slow", version, receive_buffer=SMALL) as slow,
        healthy_pair(server.address) as pair,
    ):
        slow.subscribe("t", qos=qos)
        publish_all(pair.publisher, 200, qos)
        pair.exchange()
        assert answered(slow, 200, qos) == [b"%04d" % number for number in range(200)]
        slow.ping()


@EACH_ONCE
def test_class_13_a_slow_readers_queue_is_bounded_and_what_does_not_fit_is_counted(
    version: int, bound: int
) -> None:
    """The bound's worth of them may be under way to it; the rest is a queue of 20 messages"""
    with (
        serving(slow_settings(bound, queued=20), send_buffer=SMALL) as server,
        link(server.address, "slow", version, receive_buffer=SMALL) as slow,
        healthy_pair(server.address) as pair,
    ):
        slow.subscribe("t", qos=1)
        publish_all(pair.publisher, 200, 1)
        lost = dropped(server)
        assert 50 < lost < 180
        kept = 200 - lost
        assert answered(slow, kept, 1) == [b"%04d" % number for number in range(kept)]
        slow.ping()
        publish_all(pair.publisher, 3, 1)
        assert answered(slow, 3, 1) == [b"0000", b"0001", b"0002"]


def publish_all(publisher: Link, count: int, qos: int) -> None:
    """Messages of 5,000 bytes, each of them acknowledged."""
    for number in range(count):
        publisher.send(Publish("t", b"%04d" % number + bytes(5_000), qos=qos, packet_id=9))
        publisher.take(1)
        if qos == 2:
            publisher.send(PubRel(9))
            publisher.take(1)


def answered(client: Link, count: int, qos: int) -> list[bytes]:
    """The beginnings of the next messages, all of them acknowledged to the end."""
    received: list[bytes] = []
    released = 0
    while len(received) < count or (qos == 2 and released < count):
        (packet,) = client.take(1)
        if isinstance(packet, Publish):
            assert not packet.dup
            received.append(packet.payload[:4])
            done: Packet = PubAck(packet.packet_id) if qos == 1 else PubRec(packet.packet_id)
            client.send(done)
        elif isinstance(packet, PubRel):
            released += 1
            client.send(PubComp(packet.packet_id))
    return received


def test_class_13_who_does_not_read_his_answers_is_disconnected() -> None:
    """Answers cannot be dropped: when they alone are twice the bound, the connection ends."""
    request = frame(0xA2, b"\x00\x01", section(MQTT5), text(b"f") * 5_000)
    with (
        serving(slow_settings(50_000), send_buffer=SMALL) as server,
        healthy_pair(server.address) as pair,
    ):
        with link(server.address, "deaf", receive_buffer=SMALL) as deaf:
            for _ in range(200):
                pair.publisher.ping()
                try:
                    deaf.send_bytes(request)
                except (ConnectionResetError, BrokenPipeError):
                    break
            else:
                raise AssertionError("1 MB of answers waits for somebody")
        # the control: as many requests of one who reads
        with link(server.address, "reads", receive_buffer=SMALL) as reads:
            for _ in range(30):
                reads.send_bytes(request)
                reads.take(1)
        assert [line for line in server.log.about("deaf") if "connected with" not in line]


def test_class_13_readers_that_never_read_cost_a_bounded_amount_of_memory() -> None:
    """Ten of them are sent 50 MB each, and one who reads gets every byte of it."""
    with (
        Process("--maximum-outgoing-bytes", "1MB") as broker,
        healthy_pair(broker.address) as pair,
        link(broker.address, "quick") as quick,
        ExitStack() as links,
    ):
        quick.subscribe("t")
        for number in range(10):
            stuck = link(broker.address, f"stuck{number}", MQTT311, receive_buffer=SMALL)
            links.enter_context(stuck).subscribe("t", qos=number % 2)
        message = encode(Publish("t", bytes(500_000)))
        pair.exchange()
        before = resident(broker.process.pid)
        for number in range(100):
            pair.publisher.send_bytes(message)
            assert len(payloads(quick.take(1))[0]) == 500_000
            if number % 25 == 0:
                pair.exchange()
        assert resident(broker.process.pid) < before + 60_000_000


# --- slow writers ---------------------------------------------------------------------------------


@VERSIONS
def test_class_13_a_writer_of_single_bytes_is_served_and_holds_up_nobody(version: int) -> None:
    data = encode(Connect("drip", version=version), version)
    data += encode(Publish("t", bytes(50), qos=1, packet_id=1), version)
    with (
        Process() as broker,
        healthy_pair(broker.address) as pair,
        link(broker.address, "", version) as drip,
        link(broker.address, "half", version) as half,
    ):
        half.send_bytes(b"\x30\xff\x7f\x00\x01t")
        for number, byte in enumerate(data):
            drip.send_bytes(bytes([byte]))
            if number % 10 == 0:
                pair.exchange()
        connack, puback = drip.take(2)
        assert isinstance(connack, ConnAck)
        assert isinstance(puback, PubAck)
        half.send_bytes(bytes(16_383 - 3) + encode(PingReq()))
        half.take(1)


def test_class_13_half_a_connect_is_closed_in_time_and_half_a_session_is_not() -> None:
    """Who has connected and keeps no time may be silent as long as he likes [MQTT-3.1.2-22]."""
    with (
        Process("--connect-timeout", "2s") as broker,
        healthy_pair(broker.address) as pair,
        link(broker.address) as silent,
        link(broker.address) as half,
        link(broker.address, "connected") as connected,
    ):
        half.send_bytes(encode(Connect("half"))[:-1])
        connected.send_bytes(b"\x30\x7f")
        assert silent.until_closed() == []
        assert half.until_closed() == []
        connected.send_bytes(b"\x00\x01t\x00" + bytes(123))
        connected.ping()
        pair.exchange()


def test_class_13_a_half_open_connection_ends_with_its_keep_alive() -> None:
    """[MQTT-3.1.2-22]: a peer that vanished without a word, and its will is published"""
    with (
        Process() as broker,
        healthy_pair(broker.address) as pair,
        link(broker.address, "watcher") as watching,
        link(broker.address, "", MQTT311) as vanished,
    ):
        watching.subscribe("gone")
        will = Will("gone", b"bye")
        vanished.send(Connect("vanished", version=MQTT311, keep_alive=1, will=will))
        assert vanished.until_closed() == [ConnAck()]
        assert payloads(watching.take(1)) == [b"bye"]
        pair.exchange()


# --- floods of connections ------------------------------------------------------------------------


def test_class_13_a_flood_of_clients_above_the_bound_is_refused() -> None:
    with (
        Process("--maximum-connections", "12") as broker,
        healthy_pair(broker.address) as pair,
        ExitStack() as links,
    ):
        inside = [links.enter_context(link(broker.address, f"inside{n}")) for n in range(10)]
        for number in range(100):
            version = MQTT5 if number % 2 else MQTT311
            with link(broker.address, "", version) as late:
                assert late.connect(f"late{number}").reason == (0x89 if number % 2 else 3)
                assert late.until_closed() == []
        pair.exchange()
        for client in inside:
            client.ping()
        inside.pop().close()
        until_let_in(broker)


def test_class_13_connections_that_come_and_go_at_once_are_no_burden() -> None:
    """Aedes stopped delivering after a burst of them."""
    with Process() as broker, healthy_pair(broker.address) as pair:
        for number in range(300):
            with link(broker.address) as client:
                if number % 3:
                    client.send(Connect(f"c{number % 7}", will=Will("gone", b"bye")))
                if number % 3 == 2:
                    client.take(1)
            if number % 30 == 0:
                pair.exchange()


@pytest.mark.parametrize("epoll", [True, False])
def test_class_13_a_broker_without_files_serves_those_it_has(epoll: bool) -> None:
    """Mosquitto 1.5 spun at 100 % and served nobody; later ones get in again when there is room"""
    broker = Process(epoll=epoll)
    try:
        with healthy_pair(broker.address) as pair, ExitStack() as links:
            files = 40
            resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE, (files, files))
            flood = [links.enter_context(link(broker.address)) for _ in range(2 * files)]
            served = 0
            for number, client in enumerate(flood):
                # Who has no file for him waits; the first is let in, however busy the machine is.
                client.socket.settimeout(0.5 if served else PATIENCE)
                try:
                    client.connect(f"flood{number}")
                except (AssertionError, OSError):
                    break
                served += 1
            assert 0 < served < files
            for _ in range(5):
                pair.exchange()
            for client in flood:
                client.close()
            until_let_in(broker)
    finally:
        assert broker.stop() == 0
    # EMQ filled its disk with the same line over and over.
    assert len(broker.log) < 1_000


def until_let_in(broker: Process) -> None:
    """The broker has room again as soon as it has noticed."""
    for _ in range(500):
        try:
            with link(broker.address, "late") as late:
                late.ping()
                return
        except (AssertionError, ConnectionError):
            pass
    raise AssertionError("nobody was let in")


# --- the log --------------------------------------------------------------------------------------


def break_a_rule(broker: Process, address: str) -> None:
    """Send a PINGREQ before any CONNECT, from this address, and wait until that is answered."""
    with socket.create_connection(broker.address, PATIENCE, (address, 0)) as client:
        client.sendall(encode(PingReq()))
        assert client.recv(10) == b""


def test_class_13_a_client_that_breaks_rules_all_the_time_hides_nobody_in_the_log() -> None:
    with Process("--log-lines-per-minute", "10") as broker:
        for _ in range(500):
            break_a_rule(broker, "127.0.0.1")
        break_a_rule(broker, "127.0.0.2")
    broken = [line for line in broker.log if "broke a rule" in line]
    # Ten of each minute that the flood takes.
    assert len([line for line in broken if " 127.0.0.1:" in line]) < 50
    assert [line for line in broken if " 127.0.0.2:" in line]
    summaries = [line for line in broker.log if "more lines about address 127.0.0.1" in line]
    assert summaries
    assert "such as: 127.0.0.1:" in summaries[0]

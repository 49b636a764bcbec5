"""Loads on real brokers, and on brokers that lose, duplicate, reorder, refuse and disconnect."""

import ctypes
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from semel.lab.load.description import SCENARIOS, Load
from semel.lab.load.result import Result
from semel.lab.load.traffic import STATE, SharedCounts
from semel.lab.load.workers import GO, STOP, Job, LoadProgress, Target, Worker, result_of, run
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    PubRec,
    Subscribe,
    Subscription,
    encode,
)
from tests.broker.broker_process import PATIENCE, Process
from tests.lab.odd_broker import OddBroker, acknowledge

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
MOSQUITTO_SETTINGS = """
listener {port} 127.0.0.1
allow_anonymous true
max_inflight_messages 200
max_queued_messages 0
"""

VERSIONS = pytest.mark.parametrize("version", [MQTT311, MQTT5], ids=["3.1.1", "5.0"])
QOS = pytest.mark.parametrize("qos", [0, 1, 2])

# Where something is to be missing, or nobody answers.
SHORT = 1.0

# What the scenarios are made smaller by, and how many messages each publisher sends.
SMALL: dict[str, tuple[dict[str, Any], int]] = {
    "one-to-one": ({}, 700),
    "fan-out": ({"subscribers": 5}, 300),
    "fan-in": ({"publishers": 5, "topics": 2}, 105),
    "pairs": ({"publishers": 5}, 40),
    "plant": ({"subscribers": 22, "topics": 100}, 350),
    "fleet": ({"publishers": 30}, 20),
    "latency": ({}, 200),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[int]:
    with Process() as made:
        yield made.address[1]


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    folder: Path = tmp_path_factory.mktemp("mosquitto")
    (folder / "settings").write_text(MOSQUITTO_SETTINGS.format(port=port))
    command = [MOSQUITTO, "-c", str(folder / "settings")]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.01)
        yield port
        process.terminate()


def put(port: int, load: Load, **options: Any) -> Result:
    """Put a load on a broker, in this process."""
    job = Job(load, Target("127.0.0.1", port), **{"messages": 50, "timeout": PATIENCE, **options})
    memory = (ctypes.c_uint64 * SharedCounts.size(2))()
    SharedCounts(memory, 1).put(STATE, GO)
    report = Worker(job, 0, SharedCounts(memory, 0)).work()
    return result_of(job, [report], interrupted=False)


def check_clean(result: Result, messages: int) -> None:
    """Everything has come, once and in order, and was counted everywhere."""
    load = result.load
    assert result.fault == ""
    assert result.meets_qos
    assert result.sent == messages * load.publishers
    assert result.acknowledged == (result.sent if load.qos else 0)
    assert result.expected == result.received == result.sent * load.fan_out
    assert (result.lost, result.duplicated, result.out_of_order) == (0, 0, 0)
    assert all(each.is_clean for each in result.subscribers)
    assert len(result.subscribers) == load.subscribers
    assert sum(result.latencies.buckets.values()) == result.received
    assert sum(result.connecting.buckets.values()) == load.publishers + load.subscribers
    assert result.latencies.quantile(0.5) <= result.latencies.longest < PATIENCE * 1e9
    assert result.seconds > 0
    assert result.cpu_seconds > 0


# --- brokers that do what they should -------------------------------------------------------------


@VERSIONS
@QOS
@pytest.mark.parametrize("name", SMALL)
def test_every_message_of_a_scenario_is_accounted_for(
    broker: int, name: str, qos: int, version: int
) -> None:
    changes, messages = SMALL[name]
    load = SCENARIOS[name].changed({**changes, "qos": qos, "version": version})
    check_clean(put(broker, load, messages=messages), messages)


def test_every_scenario_but_that_of_idle_connections_is_tried() -> None:
    assert set(SCENARIOS) == {*SMALL, "connections"}


@pytest.mark.parametrize(
    ("name", "qos"),
    [("one-to-one", 0), ("fan-out", 1), ("fan-in", 0), ("fan-in", 2), ("pairs", 1), ("plant", 2)],
)
def test_clients_may_be_shared_out_among_processes(broker: int, name: str, qos: int) -> None:
    changes, messages = SMALL[name]
    load = SCENARIOS[name].changed({**changes, "qos": qos})
    job = Job(load, Target("127.0.0.1", broker), messages=messages, processes=3)
    check_clean(run(job), messages)


@VERSIONS
@QOS
def test_mosquitto_is_a_broker_too(mosquitto: int, qos: int, version: int) -> None:
    for name in ("fan-out", "fan-in"):
        changes, messages = SMALL[name]
        load = SCENARIOS[name].changed({**changes, "qos": qos, "version": version})
        check_clean(put(mosquitto, load, messages=messages), messages)


@QOS
def test_subscribers_are_optional(broker: int, qos: int) -> None:
    result = put(broker, Load(publishers=2, subscribers=0, qos=qos), messages=1_000)
    assert (result.fault, result.sent, result.meets_qos) == ("", 2_000, True)
    assert result.acknowledged == (2_000 if qos else 0)
    assert (result.expected, result.received) == (0, 0)


def test_publishers_are_optional(broker: int) -> None:
    result = put(broker, SCENARIOS["connections"].changed({"subscribers": 20}))
    assert (result.fault, result.sent, result.meets_qos, result.started) == ("", 0, True, True)
    assert sum(result.connecting.buckets.values()) == 20


def test_a_load_ends_when_its_time_is_over(broker: int) -> None:
    load = Load(publishers=2, rate=200)
    result = put(broker, load, messages=None, seconds=0.5)
    assert result.meets_qos
    # A busy machine may keep it from sending some, but no machine lets it send more.
    assert 0 < result.sent <= 2 * 200 * result.seconds + 1
    assert result.received == result.sent


def test_large_messages_are_counted_as_well_as_small_ones(broker: int) -> None:
    load = Load(publishers=2, payload=300_000, qos=2, topics=3)
    check_clean(put(broker, load, messages=20), 20)


@VERSIONS
@pytest.mark.parametrize("name", ["one-to-one", "pairs"])
def test_retained_messages_are_deleted_in_the_end(broker: int, name: str, version: int) -> None:
    changes, _ = SMALL[name]
    load = SCENARIOS[name].changed({**changes, "retain": True, "qos": 1, "version": version})
    result = put(broker, load, messages=10, prefix=f"kept-{name}-{version}")
    check_clean(result, 10)
    assert retained(broker, f"kept-{name}-{version}/#") == []


def test_messages_are_retained_meanwhile() -> None:
    seen: list[bool] = []

    def deliver(number: int, packet: Publish) -> list[Publish]:
        seen.append(packet.retain)
        return [packet]

    with OddBroker(deliver=deliver) as odd:
        check_clean(put(odd.port, Load(retain=True), messages=10), 10)
    assert seen == [True] * 11


def retained(port: int, topic_filter: str) -> list[Packet]:
    """What is retained: all that comes between SUBACK and PINGRESP."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as link:
        link.sendall(encode(Connect("looks")) + encode(Subscribe(1, [Subscription(topic_filter)])))
        link.sendall(encode(PingReq()))
        decoder, packets = Decoder(), list[Packet]()
        while PingResp() not in packets:
            for packet in decoder.receive(link.recv(1 << 16)):
                assert not isinstance(packet, Exception)
                packets.append(packet)
    return packets[2:-1]


# --- what the load itself must keep to ------------------------------------------------------------


@VERSIONS
@QOS
def test_the_clients_break_no_rule(qos: int, version: int) -> None:
    load = Load(publishers=2, subscribers=2, topics=2, qos=qos, version=version, window=30)
    connack = ConnAck(properties=Properties(receive_maximum=7)) if version == MQTT5 else None
    with OddBroker(connack=connack) as odd:
        check_clean(put(odd.port, load, messages=200), 200)
    assert odd.violations == []


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(("maximum", "window"), [(7, 7), (None, 30)])
def test_no_more_messages_are_open_than_the_receive_maximum_and_the_window_allow(
    qos: int, maximum: int | None, window: int
) -> None:
    connack = ConnAck(properties=Properties(receive_maximum=maximum))
    with OddBroker(connack=connack, answer=lambda number, packet: []) as odd:
        result = put(odd.port, Load(qos=qos, window=30), timeout=SHORT)
    assert (result.sent, result.acknowledged) == (window, 0)


def test_user_name_and_password_are_those_of_the_address() -> None:
    with OddBroker() as odd:
        target = Target("127.0.0.1", odd.port, "ann", b"secret")
        assert run(Job(Load(), target, messages=5)).meets_qos
    assert {(each.user_name, each.password) for each in odd.connects} == {("ann", b"secret")}
    assert len({each.client_id for each in odd.connects}) == 2


def test_a_server_keep_alive_is_kept() -> None:
    """[MQTT-3.2.2-21]"""
    connack = ConnAck(properties=Properties(server_keep_alive=1))
    with OddBroker(connack=connack) as odd:
        result = put(odd.port, Load(rate=1), messages=None, seconds=2.0)
    assert result.meets_qos
    # Besides the one with which everybody takes leave.
    assert odd.pings > 2


# --- brokers that lose, duplicate and reorder -----------------------------------------------------


def losing(number: int, packet: Publish) -> list[Publish]:
    """The fifth message, and the last."""
    return [] if number in (4, 49) else [packet]


def doubling(number: int, packet: Publish) -> list[Publish]:
    return [packet, packet] if number in (4, 49) else [packet]


class Swapping:
    """The fifth message comes after the sixth."""

    def __init__(self) -> None:
        self.held: list[Publish] = []

    def __call__(self, number: int, packet: Publish) -> list[Publish]:
        if number == 4:
            self.held = [packet]
            return []
        held, self.held = self.held, []
        return [packet, *held]


@VERSIONS
@QOS
def test_what_a_broker_loses_is_counted(qos: int, version: int) -> None:
    with OddBroker(deliver=losing) as odd:
        load = Load(subscribers=2, qos=qos, version=version, topics=3)
        result = put(odd.port, load, timeout=SHORT)
    assert (result.sent, result.fault) == (50, "")
    assert (result.lost, result.duplicated, result.out_of_order) == (4, 0, 0)
    assert [(each.subscriber, each.lost) for each in result.subscribers] == [(0, 2), (1, 2)]
    assert (result.expected, result.received) == (100, 96)
    assert result.meets_qos == (qos == 0)


@VERSIONS
@QOS
def test_duplicates_of_a_broker_are_counted(qos: int, version: int) -> None:
    with OddBroker(deliver=doubling) as odd:
        result = put(odd.port, Load(subscribers=2, qos=qos, version=version))
    assert (result.lost, result.duplicated, result.out_of_order) == (0, 4, 0)
    assert (result.expected, result.received) == (100, 104)
    assert result.meets_qos == (qos < 2)


@QOS
def test_what_comes_again_when_all_is_there_is_counted_too(qos: int) -> None:
    packets: list[Publish] = []

    def deliver(number: int, packet: Publish) -> list[Publish]:
        packets.append(packet)
        return [packet]

    with OddBroker(deliver=deliver, late=lambda: packets[-1:]) as odd:
        result = put(odd.port, Load(qos=qos))
    assert (result.lost, result.duplicated) == (0, 1)


@QOS
def test_what_a_broker_swaps_is_counted(qos: int) -> None:
    with OddBroker(deliver=Swapping()) as odd:
        result = put(odd.port, Load(qos=qos))
    assert (result.lost, result.duplicated, result.out_of_order) == (0, 0, 1)
    # The order is reported, but only the guarantee of the QoS decides the result.
    assert result.meets_qos


def test_messages_of_two_topics_have_no_order_among_each_other() -> None:
    with OddBroker(deliver=Swapping()) as odd:
        result = put(odd.port, Load(topics=2))
    assert (result.lost, result.duplicated, result.out_of_order) == (0, 0, 0)


def test_the_subscriber_that_loses_messages_is_identified() -> None:
    """Lost at one and duplicated at another: neither hides the other."""
    seen: list[int] = []

    def deliver(number: int, packet: Publish) -> list[Publish]:
        seen.append(number)
        # Deliveries of one message follow each other: to the first subscriber, then the second.
        first = len(seen) % 2 == 1
        if number == 7:
            return [] if first else [packet, packet]
        return [packet]

    with OddBroker(deliver=deliver) as odd:
        result = put(odd.port, Load(subscribers=2, qos=1), timeout=SHORT)
    assert [(each.lost, each.duplicated) for each in result.subscribers] == [(1, 0), (0, 1)]
    assert result.received == result.expected
    assert not result.meets_qos


@pytest.mark.parametrize("scenario", ["one-to-one", "pairs"])
def test_a_window_is_not_narrower_for_what_was_passed_over(scenario: str) -> None:
    """Of every two messages one is lost: more in the end than there is room for in the window."""

    def deliver(number: int, packet: Publish) -> list[Publish]:
        return [packet] if number % 2 else []

    load = SCENARIOS[scenario].changed({"publishers": 1, "qos": 1, "window": 10})
    told: list[LoadProgress] = []
    with OddBroker(deliver=deliver) as odd:
        target = Target("127.0.0.1", odd.port)
        result = run(Job(load, target, messages=60, timeout=SHORT), told.append)
    assert (result.sent, result.lost, result.fault) == (60, 30, "")
    assert told[-1].under_way == 0


def test_a_window_is_not_closed_for_ever_by_what_was_lost() -> None:
    def deliver(number: int, packet: Publish) -> list[Publish]:
        return [] if number < 10 else [packet]

    with OddBroker(deliver=deliver) as odd:
        result = put(odd.port, Load(window=10), messages=30, timeout=SHORT)
    assert (result.sent, result.lost, result.meets_qos) == (30, 10, True)


# --- brokers that refuse and go away --------------------------------------------------------------


def test_a_broker_that_is_not_there_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = put(port, Load())
    assert result.fault == f"127.0.0.1:{port} cannot be reached: Connection refused"
    assert (result.started, result.meets_qos) == (False, False)


@pytest.mark.parametrize(
    ("version", "reason", "words"),
    [(MQTT311, 5, "not authorized (0x05)"), (MQTT5, 0x86, "bad user name or password (0x86)")],
)
def test_a_broker_that_refuses_is_quoted(version: int, reason: int, words: str) -> None:
    with OddBroker(connack=ConnAck(reason)) as odd:
        result = put(odd.port, Load(version=version))
    assert result.fault == f"127.0.0.1:{odd.port} refused a connection: {words}"
    assert not result.started


def test_a_broker_that_closes_at_once_has_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        port = listener.getsockname()[1]
        closing = multiprocessing.get_context("fork").Process(target=close_all, args=(listener,))
        closing.start()
        result = put(port, Load())
        closing.terminate()
        closing.join()
    assert result.fault.startswith(f"127.0.0.1:{port} closed a connection")
    assert not result.started


def close_all(listener: socket.socket) -> None:
    while True:
        listener.accept()[0].close()


@pytest.mark.parametrize(
    ("load", "limits", "words"),
    [
        (Load(qos=2), Properties(maximum_qos=1), "accepts at most QoS 1"),
        (Load(retain=True), Properties(retain_available=0), "does not support retained messages"),
        (
            SCENARIOS["plant"].load,
            Properties(wildcard_subscription_available=0),
            "does not support wildcard subscriptions",
        ),
        (
            Load(payload=900),
            Properties(maximum_packet_size=900),
            "accepts packets of at most 900 bytes",
        ),
    ],
)
def test_a_limit_of_the_broker_that_the_load_exceeds_is_a_fault(
    load: Load, limits: Properties, words: str
) -> None:
    with OddBroker(connack=ConnAck(properties=limits)) as odd:
        result = put(odd.port, load)
        assert result.fault == f"127.0.0.1:{odd.port} {words}"
        assert put(odd.port, Load(payload=100, qos=1)).meets_qos


@pytest.mark.parametrize(
    ("granted", "words"),
    [
        (0x80, "refused a subscription: unspecified error (0x80)"),
        (0, "granted QoS 0 to a subscription instead of QoS 1"),
    ],
)
def test_a_subscription_has_to_be_granted(granted: int, words: str) -> None:
    with OddBroker(grant=lambda qos: granted) as odd:
        result = put(odd.port, Load(qos=1))
    assert result.fault == f"127.0.0.1:{odd.port} {words}"


@VERSIONS
@pytest.mark.parametrize("role", ["publisher", "subscriber"])
def test_a_broker_that_closes_in_the_middle_ends_the_load_with_what_there_is(
    version: int, role: str
) -> None:
    def deliver(number: int, packet: Publish) -> list[Publish] | None:
        return None if role == "subscriber" and number == 20 else [packet]

    def answer(number: int, packet: Publish) -> list[Packet] | None:
        return None if role == "publisher" and number == 20 else acknowledge(number, packet)

    with OddBroker(deliver=deliver, answer=answer) as odd:
        result = put(odd.port, Load(qos=1, version=version, window=10), messages=1_000_000)
    assert result.fault.startswith(f"127.0.0.1:{odd.port} closed a connection")
    assert result.started
    assert result.received >= 10
    assert not result.meets_qos


def test_what_a_broker_says_before_it_closes_is_quoted() -> None:
    def answer(number: int, packet: Publish) -> list[Packet] | None:
        return [Disconnect(0x8B)] if number == 5 else acknowledge(number, packet)

    with OddBroker(answer=answer) as odd:
        result = put(odd.port, Load(qos=1))
    words = "closed a connection: server shutting down (0x8b)"
    assert result.fault == f"127.0.0.1:{odd.port} {words}"


def test_a_broker_that_refuses_a_message_is_quoted() -> None:
    def answer(number: int, packet: Publish) -> list[Packet]:
        return [PubRec(packet.packet_id, 0x97 if number == 5 else 0)]

    with OddBroker(answer=answer) as odd:
        result = put(odd.port, Load(qos=2))
    words = "refused a message: quota exceeded (0x97)"
    assert result.fault == f"127.0.0.1:{odd.port} {words}"


def test_a_broker_that_does_not_acknowledge_is_not_waited_for() -> None:
    def answer(number: int, packet: Publish) -> list[Packet]:
        return [] if number == 5 else [PubAck(packet.packet_id)]

    with OddBroker(answer=answer) as odd:
        result = put(odd.port, Load(qos=1, window=10), timeout=SHORT)
    assert result.fault == f"127.0.0.1:{odd.port} has acknowledged nothing for 1 s"
    assert result.sent == 15
    assert result.acknowledged == 14


def test_a_broker_that_does_not_read_is_not_waited_for() -> None:
    with Process() as made:
        job = Job(
            Load(payload=1_000_000, subscribers=0),
            Target(*made.address),
            messages=100_000,
            timeout=SHORT,
        )
        result = run(job, lambda progress: made.pause() if progress.sent else None)
        assert result.fault.endswith("has read nothing for 1 s")
        made.resume()


# --- processes ------------------------------------------------------------------------------------


def test_a_process_of_the_load_that_is_gone_ends_it(broker: int) -> None:
    def kill_one(progress: LoadProgress) -> None:
        if progress.sent:
            for child in multiprocessing.active_children()[:1]:
                child.kill()

    job = Job(
        Load(subscribers=2, rate=100),
        Target("127.0.0.1", broker),
        seconds=PATIENCE,
        processes=2,
        timeout=SHORT,
    )
    result = run(job, kill_one)
    assert result.fault == "a process of the load generator died"
    assert not result.meets_qos


def test_progress_tells_where_the_load_stands(broker: int) -> None:
    told: list[LoadProgress] = []
    load = Load(publishers=2, subscribers=3, qos=1)
    job = Job(load, Target("127.0.0.1", broker), messages=2_000, processes=2)
    result = run(job, told.append)
    check_clean(result, 2_000)
    assert told[0].seconds is None
    assert {each.clients for each in told} == {5}
    assert [each.connected for each in told] == sorted(each.connected for each in told)
    assert all(each.connected == 5 for each in told if each.seconds is not None)
    last = told[-1]
    assert (last.sent, last.received, last.under_way) == (4_000, 12_000, 0)


def test_an_interrupt_ends_the_load_with_what_there_is(broker: int) -> None:
    sent = False

    def interrupt(progress: LoadProgress) -> None:
        nonlocal sent
        if progress.sent and not sent:
            sent = True
            signal.raise_signal(signal.SIGINT)

    job = Job(Load(qos=1), Target("127.0.0.1", broker), seconds=600, processes=2)
    before = signal.getsignal(signal.SIGINT)
    result = run(job, interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    assert (result.interrupted, result.fault, result.meets_qos) == (True, "", True)
    assert result.sent == result.acknowledged == result.received > 0


@pytest.mark.parametrize("name", ["one-to-one", "pairs"])
def test_an_interrupt_while_clients_connect_ends_it_without_a_load(broker: int, name: str) -> None:
    load = SCENARIOS[name].changed({"publishers": 3, "subscribers": 3})
    memory = (ctypes.c_uint64 * SharedCounts.size(2))()
    SharedCounts(memory, 1).put(STATE, STOP)
    job = Job(load, Target("127.0.0.1", broker), seconds=600)
    report = Worker(job, 0, SharedCounts(memory, 0)).work()
    result = result_of(job, [report], interrupted=True)
    assert (result.started, result.sent, result.fault) == (False, 0, "")
    assert sum(result.connecting.buckets.values()) == 1


def test_two_interrupts_end_it_at_once() -> None:
    def interrupt(progress: LoadProgress) -> None:
        signal.raise_signal(signal.SIGINT)

    # Nobody ever answers.
    with socket.create_server(("127.0.0.1", 0)) as listener:
        target = Target("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(KeyboardInterrupt):
            run(Job(Load(), target, seconds=600), interrupt)
    assert multiprocessing.active_children() == []

"""A broker for tests is restarted, killed and closed: it remembers what it should, and no more."""

import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.lab.proxy import Proxy
from semel.lab.testing import TestBroker
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Will,
)
from tests.broker.by_hand import link
from tests.lab.durable_client import connect_durable

BOTH = pytest.mark.parametrize("version", [MQTT311, MQTT5])


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as made:
        yield made


# --- restarts -------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("kill", [False, True])
def test_a_restart_remembers_sessions_and_messages(
    broker: TestBroker, version: int, kill: bool
) -> None:
    with link(broker.address, version=version) as client:
        connect_durable(client)
        client.subscribe("t", 1)
        broker.publish("kept", b"k", 1, retain=True)
        broker.restart(kill=kill)
        told = client.until_closed()
        assert told == ([Disconnect(0x8B)] if version == MQTT5 and not kill else [])
    broker.publish("t", b"x", 1)
    with link(broker.address, version=version) as client:
        assert connect_durable(client)
        assert isinstance(client.take(1)[0], Publish)
        client.send(PubAck(1), Subscribe(1, [Subscription("kept")]))
        # [3.8.4] the message may come before the answer
        assert b"k" in [getattr(packet, "payload", None) for packet in client.take(2)]
    broker.assert_clean()


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize(("store", "forget"), [(True, True), (False, False), (False, True)])
def test_a_restart_that_forgets_knows_nothing(store: bool, forget: bool, kill: bool) -> None:
    with TestBroker(store=store) as broker:
        with link(broker.address) as client:
            connect_durable(client)
            client.subscribe("t", 1)
            broker.publish("kept", b"k", 1, retain=True)
        broker.restart(forget=forget, kill=kill)
        assert broker.sessions() == []
        with link(broker.address) as client:
            assert not connect_durable(client)
            client.subscribe("kept")
            client.ping()
            assert client.waiting == []


def test_a_message_is_taken_once_over_a_kill(broker: TestBroker) -> None:
    with link(broker.address) as client:
        connect_durable(client)
        client.send(Publish("t", b"x", 2, 1))
        assert client.take(1) == [PubRec(1)]
        broker.restart(kill=True)
    with link(broker.address) as client:
        assert connect_durable(client)
        client.send(Publish("t", b"x", 2, 1, dup=True))
        assert client.take(1) == [PubRec(1)]
        client.send(PubRel(1))
        assert client.take(1) == [PubComp(1)]
    assert [one.payload for one in broker.messages()] == [b"x"]
    broker.assert_clean()


def test_a_broker_that_stops_publishes_wills_and_one_that_is_killed_when_it_is_back(
    broker: TestBroker,
) -> None:
    with link(broker.address) as reader, link(broker.address) as client:
        connect_durable(reader, "reader")
        reader.subscribe("gone", 1)
        connect_durable(client, will=Will("gone", b"stopped", qos=1))
        broker.restart()
    assert broker.wait_for_message("gone").payload == b"stopped"
    with link(broker.address) as client:
        connect_durable(client, will=Will("gone", b"killed", qos=1))
        broker.restart(kill=True)
    with link(broker.address) as reader:
        assert connect_durable(reader, "reader")
        first, second = reader.take(2)
        assert isinstance(first, Publish)
        assert isinstance(second, Publish)
        assert (first.payload, second.payload) == (b"stopped", b"killed")


def test_a_broker_that_is_stopped_refuses_connections_until_it_is_started(
    broker: TestBroker,
) -> None:
    port = broker.port
    broker.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(broker.address)
    with pytest.raises(RuntimeError, match=r"the broker is stopped: call start\(\) first"):
        broker.publish("t")
    with pytest.raises(RuntimeError, match="the broker is stopped"):
        broker.sessions()
    broker.stop()
    broker.start()
    broker.start()
    assert broker.port == port
    with link(broker.address, "w") as client:
        client.ping()


def test_connections_that_are_refused_stay_so_over_a_restart(broker: TestBroker) -> None:
    fault = broker.refuse_connections()
    broker.restart()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(broker.address)
    fault.end()
    with link(broker.address, "w") as client:
        client.ping()


def test_the_record_goes_on_over_a_restart(broker: TestBroker) -> None:
    for _ in range(2):
        with link(broker.address, "w") as client:
            client.send(Publish("t", qos=1, packet_id=1))
            client.take(1)
        broker.restart()
    assert len(broker.packets("CONNECT")) == 2
    assert len(broker.messages("t")) == 2


# --- the end --------------------------------------------------------------------------------------


def descriptors() -> set[str]:
    """What this process has open: sockets, files, and the like."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue
    return found


@pytest.fixture
def turns() -> Iterator[float]:
    """How long a thread may keep the interpreter to itself, as no store would have it."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.02)
    yield sys.getswitchinterval()
    sys.setswitchinterval(usual)


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("ending", ["connected", "delayed", "stalled", "stopped", "killed"])
def test_nothing_is_left_when_it_is_closed(
    store: bool, ending: str, turns: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    threads, open_before = threading.enumerate(), descriptors()
    with TestBroker(store=store) as broker:
        assert threading.enumerate() != threads
        assert bool(list(tmp_path.iterdir())) == store
        with link(broker.address, "w") as client, link(broker.address) as silent:
            client.subscribe("t", 1)
            if ending == "delayed":
                broker.delay(60.0)
            elif ending == "stalled":
                broker.stall("server")
            broker.publish("t", qos=1)
            client.send(Publish("u", qos=2, packet_id=9))
            if ending == "stopped":
                broker.stop()
            elif ending == "killed":
                broker.stop(kill=True)
            broker.close()
            client.until_closed()
            silent.until_closed()
    assert threading.enumerate() == threads
    assert descriptors() - open_before == set()
    assert sys.getswitchinterval() == turns
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_fails_restores_the_switch_interval(
    turns: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(proxy: Proxy, address: tuple[str, int]) -> None:
        assert sys.getswitchinterval() != turns
        raise OSError("no proxy today")

    def close_late(broker: TestBroker) -> None:
        # The thread may have ended before `close` is called.
        assert broker._thread is not None
        broker._thread.join()
        close(broker)

    close = TestBroker.close
    monkeypatch.setattr(Proxy, "open", fail)
    monkeypatch.setattr(TestBroker, "close", close_late)
    broker = TestBroker(store=True)
    with pytest.raises(OSError, match="no proxy today"):
        broker.start()
    assert sys.getswitchinterval() == turns
    # Only once: the program may have changed it since.
    sys.setswitchinterval(0.03)
    changed = sys.getswitchinterval()
    broker.close()
    assert sys.getswitchinterval() == changed


def test_what_was_recorded_can_be_read_when_it_is_closed() -> None:
    with TestBroker() as broker, link(broker.address, "w") as client:
        client.send(Publish("t", qos=1, packet_id=1))
        client.take(1)
        fault = broker.delay(1.0)
    broker.close()
    fault.end()
    assert [one.kind for one in broker.packets("PUBLISH")] == ["PUBLISH"]
    assert [one.topic_name for one in broker.messages()] == ["t"]
    assert broker.wait_for("PUBACK").client_id == "w"
    broker.assert_clean()
    for act in (broker.sessions, broker.restart, broker.heal, broker.start):
        with pytest.raises(RuntimeError, match="the broker is not running"):
            act()


def test_a_broker_that_was_never_started_says_so() -> None:
    broker = TestBroker()
    with pytest.raises(RuntimeError, match="it was not started, or was closed"):
        broker.cut()
    assert broker.packets() == []
    broker.close()


def test_a_port_can_be_chosen_and_one_that_is_taken_is_refused() -> None:
    with TestBroker() as broker:
        threads = threading.enumerate()
        with pytest.raises(OSError, match=f"cannot use port {broker.port}: .* port 0 selects"):
            TestBroker(port=broker.port).start()
        assert threading.enumerate() == threads
        port = broker.port
    with TestBroker(port=port) as broker:
        assert broker.port == port
        with link(broker.address, "w") as client:
            client.ping()


def test_two_brokers_know_nothing_of_each_other() -> None:
    with TestBroker() as one, TestBroker() as other:
        with link(one.address, "w") as first, link(other.address, "w") as second:
            first.send(Publish("t", qos=1, packet_id=1))
            first.take(1)
            second.ping()
        assert len(one.messages()) == 1
        assert other.messages() == []

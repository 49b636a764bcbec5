"""The limit for the memory of the whole process: what the broker does when memory is short."""

from pathlib import Path

import pytest

from semel.broker.memory import Memory, available_bytes, resident_bytes
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
)
from tests.broker.core.test_core import VERSIONS, payloads, persistent
from tests.broker.core.test_restart import Lasting
from tests.broker.core.test_statements_auth import Gate, asked, auth, codes
from tests.broker.world import World

MIB = 1024 * 1024


def short(world: World) -> None:
    """More memory is in use than there may be."""
    assert world.broker.memory.update(world.broker.memory.limit + 1)


def not_short(world: World) -> None:
    assert world.broker.memory.update(0)


# --- when it is short -----------------------------------------------------------------------------


def test_memory_is_short_above_the_limit_and_until_a_twentieth_below() -> None:
    memory = Memory(1_000)
    told = [memory.update(resident) for resident in (1_000, 1_001, 2_000, 950, 949, 1_000)]
    assert told == [False, True, False, False, True, False]
    assert not memory.is_short


def test_the_memory_of_this_process_is_known() -> None:
    assert MIB < resident_bytes() < 100_000 * MIB
    kept = bytearray(64 * MIB)
    assert resident_bytes() > 64 * MIB
    del kept


@pytest.mark.parametrize("text", ["", "100"])
def test_where_the_system_does_not_say_nobody_knows(tmp_path: Path, text: str) -> None:
    path = tmp_path / "statm"
    assert resident_bytes(str(path)) == 0
    path.write_text(text)
    assert resident_bytes(str(path)) == 0


@pytest.mark.parametrize(
    ("system", "container", "expected"),
    [
        ("MemTotal: 2048 kB\nMemFree: 1 kB\n", "max\n", 2 * MIB),
        ("MemTotal: 2048 kB\n", "1048576\n", MIB),
        ("MemTotal: 2048 kB\n", "9223372036854771712\n", 2 * MIB),
        ("MemTotal: 2048 kB\n", None, 2 * MIB),
        ("", "1048576\n", MIB),
        ("", "max\n", 0),
    ],
)
def test_the_memory_of_a_container_is_the_less_of_both(
    tmp_path: Path, system: str, container: str | None, expected: int
) -> None:
    (tmp_path / "meminfo").write_text(system)
    if container is not None:
        (tmp_path / "memory.max").write_text(container)
    found = available_bytes(str(tmp_path / "meminfo"), [str(tmp_path / "memory.max")])
    assert found == expected


# --- what happens then ----------------------------------------------------------------------------


@VERSIONS
def test_while_memory_is_short_only_clients_with_a_session_are_let_in(version: int) -> None:
    world = World()
    persistent(world, "kept", version).cut()
    here = world.connect("here", version)
    short(world)
    refused = world.open(version)
    (connack,) = refused.send(Connect("new", version=version))
    assert isinstance(connack, ConnAck)
    assert connack.reason == (0x89 if version == MQTT5 else 3)
    assert refused.is_closed()
    assert not persistent(world, "kept", version, present=True).is_closed()
    assert here.send(PingReq()) == [PingResp()]
    not_short(world)
    assert not world.connect("new", version).is_closed()


def test_nobody_authenticates_while_memory_is_short() -> None:
    gate = Gate()
    world = World(authority=gate)
    short(world)
    answer = world.open().send(
        Connect("new", properties=Properties(authentication_method="SCRAM-SHA-1"))
    )
    assert codes(answer) == [0x89]
    assert gate.begun == []
    not_short(world)
    assert codes(asked(world, "new").send(auth(0x18))) == [0]


@VERSIONS
def test_while_memory_is_short_no_subscription_is_added(version: int) -> None:
    world = World()
    client = world.connect("a", version)
    client.subscribe("had")
    short(world)
    request = Subscribe(1, [Subscription("had", 1), Subscription("new")])
    refusal = 0x97 if version == MQTT5 else 0x80
    assert client.send(request) == [SubAck(1, [1, refusal])]
    not_short(world)
    assert client.send(request) == [SubAck(1, [1, 0])]


def test_while_memory_is_short_what_would_wait_in_it_is_dropped() -> None:
    """And nothing else: who can be sent a message gets it"""
    world = World()
    away = persistent(world, "away", MQTT5)
    away.subscribe("t", qos=1)
    away.cut()
    here = world.connect("here")
    here.subscribe("t", qos=1)
    publisher = world.connect("p")
    publisher.send(Publish("t", b"before", 1, 1))
    short(world)
    assert publisher.send(Publish("t", b"short", 1, 2)) == [PubAck(2)]
    not_short(world)
    publisher.send(Publish("t", b"after", 1, 3))
    assert payloads(here.take()) == [b"before", b"short", b"after"]
    assert world.broker.router.dropped == 1
    back = persistent(world, "away", MQTT5, present=True)
    assert payloads(back.take()) == [b"before", b"after"]


def test_while_memory_is_short_little_is_sent_to_who_does_not_acknowledge() -> None:
    """64 KiB, with 500 bytes for each; the rest would wait, and is dropped"""
    world = World(BrokerSettings(sys_interval=0.0))
    here, publisher = world.connect("here"), world.connect("p")
    here.subscribe("t", qos=1)
    short(world)
    for number in range(1, 101):
        publisher.send(Publish("t", bytes(9_499), 1, number))
    assert len(here.take()) == 7
    assert world.broker.router.dropped == 93
    not_short(world)
    here.send(PubAck(1))
    publisher.send(Publish("t", bytes(9_499), 1, 101))
    publisher.send(Publish("t", bytes(9_499), 1, 102))
    assert len(here.take()) == 2


def test_while_memory_is_short_what_absent_clients_did_not_acknowledge_is_discarded() -> None:
    world = World(BrokerSettings(maximum_memory=64 * MIB, sys_interval=0.0))
    away = persistent(world, "away", MQTT5)
    away.subscribe("t", qos=1)
    publisher = world.connect("p")
    for number in range(1, 9):
        publisher.send(Publish("t", bytes(MIB // 2), 1, number))
    assert len(away.take()) == 8
    away.cut()
    assert not len(world.broker.router.sessions["away"].session.backlog)
    short(world)
    world.wait(1)
    assert set(world.broker.router.sessions) == {"p"}


def test_while_memory_is_short_what_a_store_keeps_is_kept() -> None:
    world = Lasting(BrokerSettings(sys_interval=0.0), window=2)
    away = world.durable("away")
    away.subscribe("t", qos=1)
    away.cut()
    publisher = world.connect("p")
    short(world)
    for number in range(1, 11):
        assert publisher.send(Publish("t", b"%d" % number, 1, number)) == [PubAck(number)]
    assert world.broker.router.dropped == 0
    back = world.durable("away", present=True)
    assert len(payloads(back.take())) == 10


def test_while_memory_is_short_no_further_topic_gets_a_retained_message() -> None:
    world = World(BrokerSettings(sys_interval=0.0))
    client = world.connect("a")
    client.send(Publish("had", b"1", retain=True), Publish("other", b"1", retain=True))
    short(world)
    client.send(Publish("had", b"2", retain=True), Publish("new", b"2", retain=True))
    client.send(Publish("other", b"", retain=True))
    not_short(world)
    assert payloads(world.connect("late").subscribe("#")) == [b"2"]
    assert world.broker.router.dropped == 1


def test_while_memory_is_short_large_queues_of_absent_clients_are_discarded() -> None:
    """Or what waits for clients that never come would keep others out for a week"""
    world = World(BrokerSettings(maximum_memory=64 * MIB, sys_interval=0.0))
    for number, name in enumerate(("small", "large", "largest", "empty")):
        client = persistent(world, name, MQTT5)
        client.subscribe(f"t/{number}", qos=1)
        client.cut()
    here = world.connect("here", MQTT5, properties=Properties(receive_maximum=1))
    here.subscribe("t/2", qos=1)
    publisher = world.connect("p")
    for number, count in enumerate((10, 35, 40, 0)):
        for _ in range(count):
            publisher.send(Publish(f"t/{number}", bytes(100_000), 1, 1))
    short(world)
    # A twentieth of the limit, which is 3.2 MiB: the largest has 4 MB.
    world.wait(1)
    sessions = world.broker.router.sessions
    assert set(sessions) == {"small", "large", "empty", "here", "p"}
    world.wait(1)
    assert set(sessions) == {"small", "empty", "here", "p"}
    not_short(world)
    world.wait(10)
    assert set(sessions) == {"small", "empty", "here", "p"}
    short(world)
    world.wait(10)
    assert set(sessions) == {"empty", "here", "p"}
    lines = [line for line in world.log if line.startswith("session of")]
    assert [line.split("'")[1] for line in lines] == ["largest", "large", "small"]
    # Whoever is connected keeps all that waits for it.
    assert here.connection.state is not None
    assert len(here.connection.state.session.backlog) == 39


def test_while_memory_is_short_a_slow_reader_is_kept_little() -> None:
    world = World()
    slow, quick = world.connect("slow", MQTT311), world.connect("quick", MQTT311)
    for client in (slow, quick):
        client.subscribe("t")
    publisher = world.connect("p")
    slow.unread = 100_000
    short(world)
    world.tick()
    publisher.send(Publish("t", bytes(10)))
    assert (len(slow.take()), len(quick.take())) == (0, 1)
    not_short(world)
    world.tick()
    publisher.send(Publish("t", bytes(10)))
    assert (len(slow.take()), len(quick.take())) == (1, 1)

"""What has only begun: sockets without a CONNECT, packets without their end."""

import pytest

from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    Publish,
    encode,
)
from tests.broker.core.test_core import VERSIONS, payloads
from tests.broker.core.test_statements_auth import Gate, asked, auth, codes
from tests.broker.world import Client, World

FEW = BrokerSettings(maximum_connections=5, maximum_unconnected=10, sys_interval=0.0)


def is_open(client: Client) -> bool:
    return not client.is_closed()


# --- connections without a CONNECT ----------------------------------------------------------------


def test_sockets_that_say_nothing_keep_no_client_out() -> None:
    """Above either bound: they are no connections yet"""
    world = World(FEW)
    silent = [world.open(peer=f"10.0.0.1:{n}") for n in range(50)]
    clients = [world.connect(f"c{n}", peer="10.0.0.2:1") for n in range(5)]
    assert sum(map(is_open, silent)) == 9
    # The oldest had to go, one of them for the last client; those who are connected stay.
    assert all(map(is_open, silent[-9:]))
    for client in clients:
        assert client.send(PingReq()) == [PingResp()]
    assert codes(world.open().send(Connect("sixth"))) == [0x89]
    clients[0].cut()
    assert not world.connect("sixth").is_closed()


def test_a_flood_of_sockets_closes_its_own_and_not_those_of_others() -> None:
    world = World(FEW)
    slow = world.open(peer="10.0.0.2:1")
    flood = [world.open(peer=f"10.0.0.1:{n}") for n in range(100)]
    assert is_open(slow)
    assert codes(slow.send(Connect("slow"))) == [0]
    assert sum(map(is_open, flood)) == 9
    lines = [line for line in world.log if "maximum_unconnected is 10" in line]
    assert len(lines) == 1
    world.wait(9)
    world.wait(1)
    assert len([line for line in world.log if "maximum_unconnected is 10" in line]) == 2


def test_who_authenticates_is_not_connected_yet() -> None:
    """One CONNECT is not enough to be safe, where the Authority asks for more"""
    world = World(BrokerSettings(maximum_unconnected=1), Gate())
    first = asked(world, "first")
    second = asked(world, "second")
    assert first.is_closed()
    assert codes(second.send(auth(0x18))) == [0]
    world.open()
    world.open()
    assert is_open(second)


@VERSIONS
def test_connections_that_were_refused_or_have_gone_are_not_counted(version: int) -> None:
    world = World(FEW)
    for number in range(100):
        world.connect(f"c{number}", version).cut()
        world.open(version).cut()
        wrong = world.open(version)
        wrong.send_bytes(b"\x00\x00")
        assert wrong.is_closed()
        if number % 2:
            wrong.cut()
    clients = [world.connect(f"in{n}", version) for n in range(5)]
    (refused,) = [world.open(version)]
    refused.send(Connect("sixth", version=version))
    assert refused.is_closed()
    assert all(map(is_open, clients))


# --- packets without their end --------------------------------------------------------------------


@VERSIONS
def test_a_packet_that_is_not_complete_in_time_ends_its_connection(version: int) -> None:
    world = World(BrokerSettings(packet_timeout=10.0))
    watcher = world.connect("w")
    watcher.subscribe("t")
    data = encode(Publish("t", bytes(5 * 1024)), version)
    late, right = world.connect("late", version), world.connect("right", version)
    for client in (late, right):
        client.send_bytes(data[:-1])
    # Ten seconds, and five for its five KiB.
    world.wait(14)
    assert right.send_bytes(data[-1:]) == []
    assert payloads(watcher.take()) == [bytes(5 * 1024)]
    world.wait(2)
    assert late.is_closed()
    told = [packet.reason for packet in late.take() if isinstance(packet, Disconnect)]
    assert told == ([0x97] if version == MQTT5 else [])
    world.wait(1_000)
    assert is_open(right)


def test_bytes_that_drip_in_do_not_stretch_the_time_of_a_packet() -> None:
    world = World(BrokerSettings(packet_timeout=10.0))
    client = world.connect("a")
    client.send_bytes(b"\x30\x64")
    for _ in range(10):
        assert is_open(client)
        world.wait(1)
        client.send_bytes(b"\x00")
    world.wait(1)
    assert client.is_closed()


def test_a_slow_line_has_time_for_a_large_packet_and_for_the_next() -> None:
    """8 kbit a second: each packet has its own time, however long it all takes"""
    world = World(BrokerSettings(packet_timeout=5.0))
    watcher = world.connect("w")
    watcher.subscribe("t")
    client = world.connect("thin")
    packet = encode(Publish("t", bytes(50 * 1024)))
    data = packet * 3 + encode(PingReq())
    for start in range(0, len(data), 1024):
        client.send_bytes(data[start : start + 1024])
        world.wait(1)
    assert is_open(client)
    assert len(payloads(watcher.take())) == 3


@pytest.mark.parametrize("why", ["paused_by_reader", "paused_by_store"])
def test_whoever_is_not_read_from_is_not_late(why: str) -> None:
    world = World(BrokerSettings(packet_timeout=10.0))
    client = world.connect("a")
    client.send_bytes(b"\x30\x7f")
    setattr(client.connection, why, True)
    world.wait(100)
    assert is_open(client)
    setattr(client.connection, why, False)
    world.wait(9)
    assert is_open(client)
    world.wait(2)
    assert client.is_closed()


def test_unfinished_packets_of_all_are_bounded_and_who_has_most_pays() -> None:
    world = World(BrokerSettings(maximum_unfinished_bytes=50_000, maximum_packet_size=20_000))
    large = encode(Publish("t", bytes(15_000)))
    slow = world.connect("slow", peer="10.0.0.2:1")
    slow.send_bytes(large[:-1])
    flood = [world.connect(f"flood{n}", MQTT311, peer="10.0.0.1:1") for n in range(10)]
    for client in flood:
        client.send_bytes(large[:-1])
    assert is_open(slow)
    assert [is_open(client) for client in flood] == [False] * 8 + [True] * 2
    assert slow.send_bytes(large[-1:] + encode(PingReq())) == [PingResp()]
    # What is complete, or gone, takes no room.
    flood[-1].cut()
    others = [world.connect(f"other{n}", peer="10.0.0.3:1") for n in range(2)]
    for client in others:
        client.send_bytes(large[:-1])
    assert is_open(flood[8])
    assert all(map(is_open, others))


def test_a_packet_that_is_allowed_can_be_sent_whatever_the_bound() -> None:
    world = World(BrokerSettings(maximum_unfinished_bytes=1, maximum_packet_size=10_000))
    client = world.connect("a")
    large = encode(Publish("t", bytes(9_000)))
    client.send_bytes(large[:-1])
    assert client.send_bytes(large[-1:] + encode(PingReq())) == [PingResp()]


def test_who_is_closed_for_its_packet_is_told_which_bound() -> None:
    world = World(BrokerSettings(maximum_unfinished_bytes=1, maximum_packet_size=1_000))
    first, second = world.connect("first"), world.connect("second")
    for client in (first, second):
        client.send_bytes(encode(Publish("t", bytes(800)))[:-1])
    why = "its packet was not complete: maximum_unfinished_bytes is 1000"
    assert first.take() == [Disconnect(0x97, properties=Properties(reason_string=why))]
    assert is_open(second)

"""Back-pressure: publishers wait for readers that are behind, and not for ever."""

import socket

from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT311,
    Connect,
    Packet,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
    encode,
)
from tests.broker.broker_process import PATIENCE
from tests.broker.world import Client, World

SETTINGS = BrokerSettings(
    maximum_outgoing_bytes=1_000, maximum_queued_messages=10, slow_subscriber_timeout=2.0
)


def pair(world: World) -> tuple[Client, Client]:
    reader = world.connect("reader", properties=Properties(receive_maximum=1))
    reader.subscribe("t", qos=1)
    return reader, world.connect("publisher")


def is_held(client: Client) -> bool:
    return client.connection.paused_by_reader


def fall_behind(world: World, reader: Client, publisher: Client) -> None:
    reader.unread = 600
    world.tick()
    publisher.send(Publish("t", b"x"))


def test_a_publisher_waits_until_the_reader_has_caught_up() -> None:
    world = World(SETTINGS)
    reader, publisher = pair(world)
    publisher.send(Publish("t", bytes(100)))
    assert not is_held(publisher)
    fall_behind(world, reader, publisher)
    assert is_held(publisher)
    reader.unread = 400
    world.tick()
    assert is_held(publisher)
    reader.unread = 250
    world.tick()
    assert not is_held(publisher)
    assert world.broker.pressure.released == [publisher.connection]
    assert world.broker.pressure.is_idle()


def test_patience_ends_also_with_a_reader_that_is_no_more() -> None:
    world = World(SETTINGS)
    reader, publisher = pair(world)
    fall_behind(world, reader, publisher)
    assert is_held(publisher)
    assert world.broker.pressure.expire({}, world.now + 2.0) == []
    assert not is_held(publisher)


def test_messages_that_wait_for_acknowledgements_count_too() -> None:
    world = World(SETTINGS)
    reader, publisher = pair(world)
    for number in range(1, 7):
        publisher.send(Publish("t", b"%d" % number, qos=1, packet_id=number))
    assert not is_held(publisher)
    publisher.send(Publish("t", b"7", qos=1, packet_id=7))
    assert is_held(publisher)
    received: list[Packet] = []
    while is_held(publisher):
        (packet,) = reader.take()
        assert isinstance(packet, Publish)
        received.append(packet)
        reader.inbox = reader.send(PubAck(packet.packet_id))
    assert 3 <= len(received) <= 6


def test_a_reader_that_is_stuck_holds_a_publisher_up_once() -> None:
    world = World(SETTINGS)
    reader, publisher = pair(world)
    fall_behind(world, reader, publisher)
    world.wait(1.5)
    assert is_held(publisher)
    world.wait(0.5)
    assert not is_held(publisher)
    publisher.send(Publish("t", b"y"))
    assert not is_held(publisher)
    assert sum("publishers no longer wait" in line for line in world.log) == 1
    # Once it has caught up, it is worth waiting for again.
    reader.unread = 0
    world.tick()
    fall_behind(world, reader, publisher)
    assert is_held(publisher)


def test_others_are_not_held_up() -> None:
    world = World(SETTINGS)
    reader, publisher = pair(world)
    other = world.connect("other")
    fall_behind(world, reader, publisher)
    other.send(Publish("elsewhere", b"x"))
    assert not is_held(other)
    other.send(Publish("t", b"x"))
    assert is_held(other)
    # Two wait for one reader: one timeout is enough for both.
    world.wait(2.0)
    assert not is_held(publisher)
    assert not is_held(other)


def test_a_reader_that_leaves_lets_its_publishers_go() -> None:
    world = World(SETTINGS)
    reader, publisher = pair(world)
    fall_behind(world, reader, publisher)
    reader.cut()
    assert not is_held(publisher)


def test_a_publisher_that_waits_for_two_goes_on_when_both_have_caught_up() -> None:
    world = World(SETTINGS)
    reader, publisher = pair(world)
    second = world.connect("second")
    second.subscribe("t")
    second.unread = 600
    fall_behind(world, reader, publisher)
    reader.unread = 0
    world.tick()
    assert is_held(publisher)
    second.unread = 0
    world.tick()
    assert not is_held(publisher)


def test_a_publisher_that_leaves_while_it_waits_is_forgotten() -> None:
    world = World(SETTINGS)
    reader, publisher = pair(world)
    fall_behind(world, reader, publisher)
    publisher.cut()
    assert world.broker.pressure.is_idle()
    world.wait(3)
    assert world.broker.pressure.released == []


def test_who_is_not_read_from_is_not_silent_and_its_time_begins_when_it_is_read_again() -> None:
    """[MQTT-3.1.2-22] is about the client's silence: whoever nobody listens to is not silent."""
    patient = BrokerSettings(maximum_outgoing_bytes=1_000, slow_subscriber_timeout=30.0)
    world = World(patient)
    reader = world.connect("reader")
    reader.subscribe("t", qos=1)
    publisher = world.connect("publisher", keep_alive=4)
    silent = world.connect("silent", keep_alive=4)
    fall_behind(world, reader, publisher)
    assert is_held(publisher)
    world.wait(20)
    assert not publisher.is_closed()
    assert silent.is_closed()
    reader.unread = 0
    world.tick()
    assert not is_held(publisher)
    world.wait(5.5)
    assert not publisher.is_closed()
    world.wait(2)
    assert publisher.is_closed()


def test_who_was_not_read_from_between_two_sweeps_was_not_silent_in_that_time() -> None:
    """A sweep may come late. What was sent meanwhile is read only now."""
    patient = BrokerSettings(maximum_outgoing_bytes=1_000, slow_subscriber_timeout=30.0)
    world = World(patient)
    reader = world.connect("reader")
    reader.subscribe("t", qos=1)
    publisher = world.connect("publisher", keep_alive=4)
    fall_behind(world, reader, publisher)
    assert is_held(publisher)
    world.now += 10
    reader.unread = 0
    world.tick()
    assert not is_held(publisher)
    world.broker.sweep(world.now)
    assert not publisher.is_closed()
    # From here on its silence is its own.
    world.wait(5.5)
    assert not publisher.is_closed()
    world.wait(1)
    assert publisher.is_closed()


def test_who_waits_for_two_readers_waits_for_the_other_when_one_is_given_up() -> None:
    world = World(SETTINGS)
    first, second = world.connect("first"), world.connect("second")
    first.subscribe("one", qos=1)
    second.subscribe("two", qos=1)
    early, late = world.connect("early"), world.connect("late")
    for reader in (first, second):
        reader.unread = 600
    world.tick()
    early.send(Publish("one", b"x"))
    world.now += 1.0
    late.send(Publish("one", b"x"), Publish("two", b"x"))
    assert is_held(early)
    assert is_held(late)
    world.now += 1.5
    world.tick()
    # The timeout of the first is over, and nobody waits for that reader any more.
    assert not is_held(early)
    assert is_held(late)
    second.unread = 0
    world.tick()
    assert not is_held(late)


def test_nobody_waits_for_a_message_to_oneself_nor_without_a_timeout() -> None:
    world = World(SETTINGS)
    reader, _ = pair(world)
    fall_behind(world, reader, reader)
    assert not is_held(reader)
    world = World(BrokerSettings(maximum_outgoing_bytes=1_000, slow_subscriber_timeout=0.0))
    reader, publisher = pair(world)
    fall_behind(world, reader, publisher)
    assert not is_held(publisher)


def open_client(address: tuple[str, int], client_id: str, *filters: str) -> socket.socket:
    sock = socket.create_connection(address, timeout=PATIENCE)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    packets: list[Packet] = [Connect(client_id, version=MQTT311)]
    answer = 4
    if filters:
        packets.append(Subscribe(1, [Subscription(name) for name in filters]))
        answer += 4 + len(filters)
    sock.sendall(b"".join(encode(packet, MQTT311) for packet in packets))
    while answer:
        answer -= len(sock.recv(answer))
    return sock

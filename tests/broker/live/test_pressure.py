"""Back-pressure between real sockets: readers that are slow, and one that has stopped."""

import threading
import time

from semel.mqtt import (
    MQTT311,
    Publish,
    encode,
)
from tests.broker.broker_process import Process
from tests.broker.core.test_pressure import open_client


def test_a_slow_reader_gets_every_qos_0_message_of_a_quick_publisher() -> None:
    """32 MB through a bound of 1 MiB: without waiting, most of it would be dropped."""
    broker = Process("--maximum-outgoing-bytes", "1MiB", "--slow-subscriber-timeout", "60s")
    data = encode(Publish("t", bytes(1_000)), MQTT311)
    count = 32_000
    received = 0
    try:
        reader = open_client(broker.address, "reader", "t")
        publisher = open_client(broker.address, "publisher")
        sender = threading.Thread(target=publisher.sendall, args=(data * count,))
        sender.start()
        while received < len(data) * count:
            piece = reader.recv(1 << 20)
            assert piece, "the broker closed the reader's connection"
            received += len(piece)
            time.sleep(0.0005)
        sender.join()
        reader.close()
        publisher.close()
    finally:
        assert broker.stop() == 0
    assert received == len(data) * count


def test_a_stuck_reader_does_not_stop_a_publisher_or_another_reader() -> None:
    broker = Process("--maximum-outgoing-bytes", "256KiB", "--slow-subscriber-timeout", "100ms")
    data = encode(Publish("t", bytes(1_000)), MQTT311)
    last = encode(Publish("end", b"end"), MQTT311)
    try:
        stuck = open_client(broker.address, "stuck", "t")
        reader = open_client(broker.address, "reader", "end")
        publisher = open_client(broker.address, "publisher")
        publisher.sendall(data * 16_000 + last)
        assert reader.recv(100) == last
        for sock in (stuck, reader, publisher):
            sock.close()
    finally:
        assert broker.stop() == 0

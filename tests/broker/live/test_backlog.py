"""A burst of messages for a subscriber on a real socket."""

import socket

from semel.mqtt import (
    MQTT5,
    MQTT311,
    Connect,
    Decoder,
    Publish,
    Subscribe,
    Subscription,
    encode,
)
from tests.broker.broker_process import PATIENCE, Process


def test_a_live_subscriber_gets_more_than_the_bound_at_once() -> None:
    """2 MB of retained messages through 64 KiB, on a real socket."""
    with Process("--maximum-outgoing-bytes", "64KiB") as broker:
        for version in (MQTT311, MQTT5):
            with socket.create_connection(broker.address, timeout=PATIENCE) as sock:
                sock.sendall(encode(Connect("p", version=version), version))
                for number in range(200):
                    packet = Publish(f"t/{number}", bytes(10_000), retain=True)
                    sock.sendall(encode(packet, version))
                sock.sendall(encode(Subscribe(1, [Subscription("t/#")]), version))
                decoder = Decoder(version)
                seen: set[str] = set()
                while len(seen) < 200:
                    data = sock.recv(1 << 16)
                    assert data
                    for packet_or_fault in decoder.receive(data):
                        if isinstance(packet_or_fault, Publish):
                            seen.add(packet_or_fault.topic_name)

"""One connection: what leaves it passes the same rules as what arrives."""

import pytest

from semel.broker.connection import Connection, packet_id_at
from semel.broker.identity import PeerInfo
from semel.broker.listener_limits import default_limits
from semel.broker.settings import BrokerSettings
from semel.mqtt import MQTT5, MQTT311, PubAck, Publish, Violation, encode


@pytest.mark.parametrize("data", [b"\x40\x02\x00\x01", b"\x32\x06\x00\x01t\x00\x01\x00"])
def test_bytes_that_are_not_the_next_step_are_judged_like_packets(data: bytes) -> None:
    """Before a CONNECT, a server says nothing [MQTT-3.1.0-1]"""
    limits = default_limits(BrokerSettings())
    connection = Connection(1, PeerInfo("test"), 0.0, limits=limits, maximum_items=1_000)
    connection.exchange.version = MQTT5
    with pytest.raises(Violation) as refused:
        connection.send_encoded(data)
    assert refused.value.rule.name == "CONNECT_FIRST"
    assert connection.take_outgoing() == b""
    with pytest.raises(Violation):
        connection.send(PubAck(1))


@pytest.mark.parametrize("version", [MQTT311, MQTT5])
@pytest.mark.parametrize("size", [0, 100, 128, 20_000])
@pytest.mark.parametrize("qos", [1, 2])
def test_the_identifier_of_a_publish_is_found_in_its_bytes(
    version: int, size: int, qos: int
) -> None:
    for topic_name in ("t", "x" * 300):
        for packet_id in (1, 255, 256, 65_535):
            packet = Publish(topic_name, bytes(size), qos, packet_id)
            assert packet_id_at(encode(packet, version)) == packet_id

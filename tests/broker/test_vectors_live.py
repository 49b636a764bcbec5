"""Every packet that a client could send, from the vectors, to `semel broker` on a real socket.

`test_vectors.py` says more of each of them, without the network; here it is the verdict that
counts, and that the process goes on.
"""

from collections.abc import Iterator

import pytest

from semel.mqtt import ConnAck, Disconnect, PingReq, PingResp, rules
from tests.broker.by_hand import Link, link
from tests.broker.live import Process
from tests.broker.test_vectors import (
    BROKEN,
    RIGHT,
    FromClient,
    answered_in,
    has_method,
    leaves_by_rule,
    leaves_no_room,
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Process]:
    roomy = ("--maximum-packet-size", "256MiB", "--before-connect-packet-size", "256MiB")
    with Process(*roomy) as process:
        yield process


def send(broker: Process, vector: FromClient) -> Link:
    """A client that has sent the bytes: the first, or after its CONNACK."""
    client = Link(broker.address, answered_in(vector) if vector.is_connect else vector.version)
    if not vector.is_connect:
        assert client.connect("a").reason == 0
    client.send_bytes(vector.data)
    return client


@pytest.mark.parametrize("file", sorted({vector.file for vector in BROKEN}))
def test_a_packet_that_breaks_a_rule_closes_the_connection_and_no_other(
    broker: Process, file: str
) -> None:
    """[MQTT-4.8.0-1] (3.1.1) [MQTT-4.13.1-1] (5.0)"""
    with link(broker.address, "bystander") as bystander:
        for vector in BROKEN:
            if vector.file == file:
                client = send(broker, vector)
                for packet in client.until_closed():
                    assert isinstance(packet, ConnAck | Disconnect), vector.name
                    assert packet.reason, vector.name
                client.close()
        bystander.ping()


@pytest.mark.parametrize("file", sorted({vector.file for vector in RIGHT}))
def test_a_right_packet_is_taken(broker: Process, file: str) -> None:
    """Too strict is wrong too: a client that may stay is answered once more."""
    for vector in RIGHT:
        if vector.file != file:
            continue
        client = send(broker, vector)
        if vector.is_connect and leaves_no_room(vector):
            assert client.until_closed() == [], vector.name
        elif vector.is_connect:
            (connack,) = client.take(1)
            assert isinstance(connack, ConnAck)
            assert connack.reason == (0x8C if has_method(vector) else 0), vector.name
        elif file == "disconnect" or leaves_by_rule(vector):
            client.until_closed()
        else:
            client.send(PingReq())
            while client.take(1) != [PingResp()]:
                pass
        client.close()


def test_there_are_hundreds_of_each() -> None:
    assert len(BROKEN) > 500
    assert len(RIGHT) > 300
    assert any(vector.rule is rules.PROTOCOL_LEVEL_SUPPORTED for vector in BROKEN)

"""Which clients broke which rules, as an operator sees it."""

import pytest

from semel.broker.inspection import violation_values
from semel.broker.recent_violations import RecentViolation, without_credentials
from semel.metrics.families import (
    HistogramValue,
    counter,
    family_values,
    gauge,
    histogram,
)
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Connect,
    Decoder,
    Disconnect,
    Properties,
    Publish,
    PubRel,
    Violation,
    encode,
)
from tests.broker.world import World

# A PUBLISH with both bits of its QoS set [MQTT-3.3.1-4].
# A session that ends with its connection cannot be prolonged at its end [MQTT-3.14.2.2.2].
SESSION_EXPIRY = Properties(session_expiry_interval=60)
QOS_3 = b"\x36\x08\x00\x03a/b\x00\x01\x00"


def recent(world: World) -> list[RecentViolation]:
    return world.broker.oversight.violations.newest_first()


def test_a_malformed_packet_is_kept_with_its_bytes() -> None:
    world = World()
    client = world.connect("press")
    client.send(Publish("a/b", b"fine"))
    assert recent(world) == []
    client.send_bytes(QOS_3)
    (found,) = recent(world)
    assert client.is_closed()
    assert (found.rule.name, found.count) == ("QOS_NOT_3", 1)
    assert found.statements == ("MQTT-3.3.1-4",)
    assert (found.client_id, found.address, found.version) == ("press", "test:1", MQTT5)
    assert found.data == QOS_3
    values = violation_values(found, found.last_at + 2.5)
    assert values["bytes"] == QOS_3.hex()
    assert (values["packet"], values["version"], values["seconds_ago"]) == ("PUBLISH", "5.0", 2.5)
    assert values["closed"] is True
    assert values["sentence"] == found.rule.sentence


def test_a_packet_in_the_wrong_state_is_kept_with_its_bytes_and_without_those_after_it() -> None:
    world = World()
    client = world.connect("press", version=MQTT311)
    again = Connect("press", version=MQTT311, user_name="u", password=b"secret")
    connect_again = encode(again, MQTT311)
    client.send_bytes(connect_again + encode(Publish("a", b"secret"), MQTT311))
    (found,) = recent(world)
    assert found.rule.name == "CONNECT_ONCE"
    # Of a CONNECT only the first fields.
    assert found.data == connect_again[:12]
    assert violation_values(found, 0.0)["version"] == "3.1.1"


def test_a_violation_that_does_not_close_is_kept_too() -> None:
    world = World()
    client = world.connect("press")
    client.send(PubRel(7))
    (found,) = recent(world)
    assert not client.is_closed()
    assert found.data == b"\x62\x02\x00\x07"
    assert violation_values(found, 0.0)["closed"] is False


def test_a_packet_that_a_handler_refuses_is_kept_with_its_bytes() -> None:
    world = World()
    client = world.connect("press", version=MQTT5)
    data = encode(Disconnect(properties=SESSION_EXPIRY), MQTT5)
    client.send_bytes(data)
    (found,) = recent(world)
    assert (found.data, found.client_id) == (data, "press")


def test_a_client_that_repeats_a_violation_is_one_entry() -> None:
    world = World()
    for number in range(3):
        client = world.connect(f"press-{number}")
        client.send_bytes(QOS_3)
    (found,) = recent(world)
    assert (found.count, found.client_id) == (3, "press-2")
    assert world.broker.counters.violations == {"QOS_NOT_3": 3}


def test_the_oldest_entry_is_dropped_when_there_are_too_many() -> None:
    world = World()
    world.broker.oversight.violations.maximum_entries = 2
    for number in (1, 2, 1, 3):
        client = world.open(peer=f"10.0.0.{number}:99")
        client.send_bytes(b"\x00\x00")
    assert [each.address for each in recent(world)] == ["10.0.0.3:99", "10.0.0.1:99"]
    assert [each.count for each in recent(world)] == [1, 2]
    assert recent(world)[0].client_id is None


@pytest.mark.parametrize(
    ("data", "is_connected", "expected"),
    [
        (b"", True, b""),
        (b"\xf0" + bytes(30), True, b"\xf0\0"),
        (b"\x10" + bytes(30), True, b"\x10" + bytes(11)),
        (b"\x30" + bytes(30), True, b"\x30" + bytes(30)),
        (b"GET / HTTP/1.1\r\nAuthorization: Basic", False, b"GET / HTTP/1"),
    ],
)
def test_credentials_are_never_kept(data: bytes, is_connected: bool, expected: bytes) -> None:
    assert without_credentials(data, is_connected=is_connected) == expected


def test_a_decoder_keeps_the_first_bytes_of_what_it_refuses() -> None:
    decoder = Decoder(MQTT5)
    good = encode(Publish("a", b"x"), MQTT5)
    found = decoder.receive(good + b"\x36\xc8\x01" + bytes(200))
    assert isinstance(found[-1], Violation)
    assert decoder.refused == (b"\x36\xc8\x01" + bytes(200))[:64]
    decoder = Decoder(MQTT5)
    decoder.receive(good)
    assert decoder.refused == b""


# --- control --------------------------------------------------------------------------------------


def test_the_values_of_a_family() -> None:
    assert family_values(gauge("semel_a", "A").add(2)) == 2
    assert family_values(gauge("semel_a", "A")) == {}
    labeled = counter("semel_b", "B").add_each("qos", {"0": 1, "1": 2})
    assert family_values(labeled) == {"0": 1, "1": 2}
    observed = HistogramValue((1.0,), (2, 1), 5.0)
    assert family_values(histogram("semel_c", "C").add(observed)) == {"count": 3, "sum": 5.0}

"""Every packet that a client could send, from the vectors, against the broker."""

from dataclasses import dataclass

import pytest

from semel import vectors
from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    CLIENT,
    LARGEST_PACKET,
    MQTT5,
    MQTT311,
    SERVER,
    ConnAck,
    Connect,
    Disconnect,
    Exchange,
    Packet,
    PingReq,
    PingResp,
    Properties,
    Rule,
    Violation,
    rules,
)
from semel.mqtt.packet_types import CONNACK, CONNECT
from semel.mqtt.reasons import REASONS_5
from tests.broker.world import Client, World
from tests.mqtt.vectors import RULE_BY_NAME, VERSIONS, build_packet

# What only a server sends, or what a connection that has just begun has nothing to answer to.
ANSWERS = {"connack", "suback", "unsuback", "pingresp", "puback", "pubrec", "pubcomp", "auth"}


@dataclass
class FromClient:
    """A vector whose bytes a client could send."""

    file: str
    name: str
    version: int
    data: bytes
    rule: Rule | None
    packet: Packet | None

    @property
    def is_connect(self) -> bool:
        return self.data[0] >> 4 == CONNECT


def from_clients() -> list[FromClient]:
    found = []
    for file in vectors.names():
        for entry in vectors.load(file):
            if "bytes" not in entry or "maximum_packet_size" in entry:
                continue
            if entry["direction"] == "S>C":
                continue
            rule = RULE_BY_NAME[str(entry["rule"])] if "rule" in entry else None
            packet = entry.get("packet")
            found.append(
                FromClient(
                    file,
                    str(entry["name"]),
                    VERSIONS[str(entry["version"])],
                    vectors.parse_bytes(str(entry["bytes"])),
                    rule,
                    build_packet(packet) if isinstance(packet, dict) else None,
                )
            )
    return found


# No packet of the vectors is too large here.
ROOMY = BrokerSettings(
    maximum_packet_size=LARGEST_PACKET, before_connect_packet_size=LARGEST_PACKET
)

ALL = from_clients()
BROKEN = [vector for vector in ALL if vector.rule is not None]
RIGHT = [vector for vector in ALL if vector.rule is None and vector.file not in ANSWERS]


def answered_in(vector: FromClient) -> int:
    """The version of a CONNACK: that which the CONNECT names, 3.1.1 for a level that none has."""
    if isinstance(vector.packet, Connect):
        return vector.packet.version
    if vector.rule is rules.PROTOCOL_LEVEL_SUPPORTED:
        return MQTT311
    return vector.version


def sent(vector: FromClient) -> tuple[World, Client, list[Packet]]:
    """A world, the client that sent the vector's bytes, and what it got for them."""
    world = World(ROOMY)
    if vector.is_connect:
        client = world.open(answered_in(vector))
    else:
        client = world.connect("a", vector.version)
    return world, client, client.send_bytes(vector.data)


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted({vector.file for vector in BROKEN}))
def test_a_packet_that_breaks_a_rule_closes_the_connection_and_no_other(file: str) -> None:
    """[MQTT-4.8.0-1] (3.1.1) [MQTT-4.13.1-1] (5.0)"""
    for vector in BROKEN:
        if vector.file != file:
            continue
        world, client, answer = sent(vector)
        assert client.is_closed(), vector.name
        bystander = world.connect("bystander")
        assert bystander.send(PingReq()) == [PingResp()]
        for packet in answer:
            assert isinstance(packet, ConnAck | Disconnect), vector.name
            assert packet.reason, vector.name


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted({vector.file for vector in BROKEN} - {"connect"}))
def test_in_5_the_disconnect_says_why(file: str) -> None:
    for vector in BROKEN:
        if vector.file == file and vector.version == MQTT5 and not vector.is_connect:
            _, _, answer = sent(vector)
            assert [type(packet) for packet in answer] == [Disconnect], vector.name


def test_a_malformed_connect_is_never_accepted_and_answered_as_its_version_has_it() -> None:
    """[MQTT-3.1.4-1] of both versions"""
    for vector in BROKEN:
        if vector.file != "connect":
            continue
        world, _, answer = sent(vector)
        assert world.broker.router.sessions == {}, vector.name
        codes = [packet.reason for packet in answer if isinstance(packet, ConnAck)]
        if vector.rule is rules.PROTOCOL_LEVEL_SUPPORTED:
            assert codes == [1], vector.name
        elif vector.version == MQTT5:
            assert set(codes) <= REASONS_5[CONNACK], vector.name
        elif vector.rule is rules.EMPTY_CLIENT_ID_NEEDS_CLEAN_SESSION:
            assert codes == [2], vector.name
        else:
            assert codes == [], vector.name


@pytest.mark.parametrize("file", sorted({vector.file for vector in RIGHT}))
def test_a_right_packet_leaves_the_connection_open(file: str) -> None:
    """Too strict is wrong too."""
    for vector in RIGHT:
        if vector.file != file:
            continue
        _, client, answer = sent(vector)
        if vector.is_connect and leaves_no_room(vector):
            assert answer == [], vector.name
            assert client.is_closed(), vector.name
        elif vector.is_connect:
            (connack,) = answer
            assert isinstance(connack, ConnAck)
            expected = accepted_code(vector)
            assert connack.reason == expected, vector.name
        elif file == "disconnect":
            assert answer == [] or leaves_by_rule(vector), vector.name
        elif file != "pubrel":
            assert not client.is_closed() or leaves_by_rule(vector), vector.name


def accepted_code(vector: FromClient) -> int:
    """The code of the CONNACK: a client without a known method, or with a will to $SYS, is refused
    although its packet is right."""
    packet = vector.packet
    assert isinstance(packet, Connect)
    if packet.will is not None and packet.will.topic_name.startswith("$SYS/"):
        return 0x87 if packet.version == MQTT5 else 5
    return 0x8C if has_method(vector) else 0


def leaves_no_room(vector: FromClient) -> bool:
    """Whether the client takes no packet as large as a CONNACK [MQTT-3.1.2-24]."""
    packet = vector.packet
    limit = packet.properties.maximum_packet_size if isinstance(packet, Connect) else None
    return limit is not None and limit < 10


def has_method(vector: FromClient) -> bool:
    packet = vector.packet
    return isinstance(packet, Connect) and packet.properties.authentication_method is not None


def leaves_by_rule(vector: FromClient) -> bool:
    """Whether the packet, right by itself, may not be sent by this client at this moment."""
    exchange = Exchange()
    exchange.observe(CLIENT, Connect("a", version=vector.version), 14)
    limits = Properties(topic_alias_maximum=100) if vector.version == MQTT5 else Properties()
    exchange.observe(SERVER, ConnAck(properties=limits), 5)
    assert vector.packet is not None
    try:
        exchange.observe(CLIENT, vector.packet, 0)
    except Violation as violation:
        return violation.rule.closes
    return False


def test_a_broken_connect_from_a_connected_client_ends_in_a_known_code() -> None:
    """[MQTT-3.1.0-2]; codes that only CONNACK has cannot say why"""
    for vector in BROKEN:
        if vector.file != "connect":
            continue
        client = World(ROOMY).connect("a")
        (packet,) = client.send_bytes(vector.data)
        assert isinstance(packet, Disconnect), vector.name
        assert packet.reason >= 0x80, vector.name
        assert client.is_closed(), vector.name

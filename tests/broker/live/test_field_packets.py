"""Bugs that brokers have had: class 2, memory for who has not said who he is; class 3, properties
that are wrong; class 4, packets that end too early; class 5, packets of the other side.

Everything here is written by hand, byte by byte, and judged by what the standard's tables say, not
by those of our codec.
"""

import socket
import struct

import pytest

from semel.broker.settings import BrokerSettings
from semel.mqtt import (
    MQTT5,
    MQTT311,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Publish,
    PubRec,
    Subscribe,
    Subscription,
    Will,
    encode,
)
from tests.broker.broker_process import Process
from tests.broker.by_hand import (
    connect,
    frame,
    healthy_pair,
    link,
    memory,
    number,
    publish,
    resident,
    section,
    subscribe,
    text,
    unsubscribe,
)
from tests.broker.core.test_core import KEPT, VERSIONS, payloads
from tests.broker.world import Client, World

# --- class 2: before anybody has said who he is ---------------------------------------------------


@pytest.mark.parametrize("kind", range(16))
def test_class_2_the_largest_packet_is_refused_from_its_first_bytes(kind: int) -> None:
    """Of 268,435,455 bytes that a stranger announces, none is waited for."""
    world = World()
    client = world.open()
    flags = 2 if kind in (6, 8, 10) else 0
    assert client.send_bytes(bytes([kind << 4 | flags]) + b"\xff\xff\xff\x7f") == []
    assert client.is_closed()


@pytest.mark.parametrize("size", [16, 1_000, 65_536])
def test_class_2_the_bound_before_connect_is_exact(size: int) -> None:
    world = World(BrokerSettings(before_connect_packet_size=size))
    overhead = len(connect(b"", MQTT311)) - 2
    length_bytes = 1 if size < 130 else 2 if size < 16_387 else 3
    for excess in (0, 1):
        client = world.open(MQTT311)
        room = size - 1 - length_bytes - overhead + excess
        if size == 65_536:
            # no client identifier is that long: the rest is a user name
            packet = connect(b"a" * 100, MQTT311, flags=0x82, rest=text(b"u" * (room - 102)))
        else:
            packet = connect(b"a" * room, MQTT311)
        assert len(packet) == size + excess
        assert client.send_bytes(packet) == ([ConnAck()] if not excess else [])
        assert client.is_closed() == bool(excess)


def test_class_2_what_is_announced_is_not_allocated() -> None:
    """Many strangers who announce as much as they may and send nothing of it take no room."""
    world = World()
    with memory() as held:
        strangers = [world.open() for _ in range(200)]
        for client in strangers:
            client.send_bytes(b"\x10" + number(65_000) + bytes.fromhex("00044d51545404"))
            assert not client.is_closed()
        assert held() < 200 * 10_000
    assert world.connect("a").send(PingReq()) == [PingResp()]


FIRST = {
    "reserved": "0000",
    "CONNACK": "20020000",
    "PUBLISH": "3003000178",
    "PUBLISH QoS 1": "3206000178000100",
    "PUBACK": "40020001",
    "PUBREC": "50020001",
    "PUBREL": "62020001",
    "PUBCOMP": "70020001",
    "SUBSCRIBE": "8206000100017400",
    "SUBACK": "9003000100",
    "UNSUBSCRIBE": "a2050001000174",
    "UNSUBACK": "b0020001",
    "PINGREQ": "c000",
    "PINGRESP": "d000",
    "DISCONNECT": "e000",
    "AUTH": "f000",
    "HTTP": "474554202f20485454502f312e310d0a0d0a",
    "TLS": "16030100f8010000f40303",
    "SSH": "5353482d322e302d4f70656e5353480d0a",
    "zeros": "00" * 64,
    "a length of five bytes": "10ffffffff7f",
}


@pytest.mark.parametrize("name", FIRST)
def test_class_2_a_first_packet_that_is_not_connect_is_not_answered(name: str) -> None:
    """[MQTT-3.1.0-1]: closed, nothing said, nothing done; CONNECT right behind it is too late"""
    world = World()
    watching = world.connect("watcher")
    watching.subscribe("#")
    client = world.open(MQTT311)
    right = connect(b"a", MQTT311) + publish(b"x", MQTT311)
    assert client.send_bytes(bytes.fromhex(FIRST[name]) + right) == []
    assert client.is_closed()
    assert client.send_bytes(right) == []
    assert watching.take() == []
    # the control
    assert world.open(MQTT311).send_bytes(right) == [ConnAck()]
    assert payloads(watching.take()) == [b"x"]


@pytest.mark.parametrize(
    "lie",
    [
        "ffff4d515454 05 02 0000 00 0001 61",  # the name is longer than the packet
        "00044d515454 05 02 0000 ffffff7f 0001 61",  # so are the properties
        "00044d515454 05 02 0000 00 ffff 61",  # so is the client identifier
        "00044d515454 05 06 0000 00 0001 61 ffffff7f 0001 74 0000",  # so are those of the will
        "00044d515454 05 06 0000 00 0001 61 00 ffff 74 0000",  # so is its topic
        "00044d515454 05 06 0000 00 0001 61 00 0001 74 ffff",  # so is its payload
        "00044d515454 05 82 0000 00 0001 61 ffff",  # so is the user name
        "00044d515454 05 42 0000 00 0001 61 ffff",  # so is the password
    ],
)
def test_class_2_a_length_inside_connect_that_lies_is_malformed(lie: str) -> None:
    world = World()
    client = world.open()
    with memory() as held:
        answer = client.send_bytes(frame(0x10, bytes.fromhex(lie)))
        assert held() < 100_000
    assert client.is_closed()
    assert all(isinstance(packet, ConnAck) and packet.reason >= 0x80 for packet in answer)


def test_class_2_strangers_on_real_sockets_cost_nothing() -> None:
    """CVE-2023-0809: a first packet that is no CONNECT and announces 256 MB"""
    with Process() as broker, healthy_pair(broker.address) as pair:
        pair.exchange()
        before = resident(broker.process.pid)
        for first in (0x10, 0x30, 0x82, 0xF0, 0x00):
            for _ in range(4):
                with link(broker.address) as stranger:
                    stranger.send_bytes(bytes([first]) + b"\xff\xff\xff\x7f" + bytes(1_000))
                    assert stranger.until_closed() == []
            pair.exchange()
        assert resident(broker.process.pid) < before + 20_000_000


# --- class 3: properties --------------------------------------------------------------------------

# [Table 2-4] identifier: (a right value, the packets that it may stand in; W is a will).
TABLE: dict[int, tuple[str, str]] = {
    0x01: ("01", "PUBLISH WILL"),
    0x02: ("0000003c", "PUBLISH WILL"),
    0x03: ("000161", "PUBLISH WILL"),
    0x08: ("000161", "PUBLISH WILL"),
    0x09: ("000161", "PUBLISH WILL"),
    0x0B: ("05", "PUBLISH SUBSCRIBE"),
    0x11: ("0000003c", "CONNECT DISCONNECT"),
    0x12: ("000161", ""),
    0x13: ("003c", ""),
    0x15: ("000161", "CONNECT"),
    0x16: ("000161", "CONNECT"),
    0x17: ("01", "CONNECT"),
    0x18: ("0000003c", "WILL"),
    0x19: ("01", "CONNECT"),
    0x1A: ("000161", ""),
    0x1C: ("000161", "DISCONNECT"),
    0x1F: ("000161", "PUBACK PUBREC PUBREL PUBCOMP DISCONNECT"),
    0x21: ("000a", "CONNECT"),
    0x22: ("000a", "CONNECT"),
    0x23: ("0001", "PUBLISH"),
    0x24: ("01", ""),
    0x25: ("01", ""),
    0x26: ("000161000162", "all"),
    0x27: ("0000ffff", "CONNECT"),
    0x28: ("01", ""),
    0x29: ("01", ""),
    0x2A: ("01", ""),
}
PLACES = (
    "CONNECT",
    "WILL",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "UNSUBSCRIBE",
    "DISCONNECT",
)
# Right where they stand, and yet this broker or the direction has a say.
SPECIAL = {
    ("CONNECT", 0x15),  # a method that it does not know
    ("CONNECT", 0x16),  # data without a method
    ("PUBLISH", 0x0B),  # [MQTT-3.3.4-6] not from a client
    ("DISCONNECT", 0x1C),  # for a server to say
}


def is_allowed(place: str, identifier: int) -> bool:
    packets = TABLE[identifier][1]
    return packets == "all" or place in packets.split()


def item(identifier: int) -> bytes:
    """A property with a right value."""
    return bytes([identifier]) + bytes.fromhex(TABLE[identifier][0])


def packet_with(place: str, properties: bytes, version: int = MQTT5) -> bytes:
    """A packet that is right but for its properties, perhaps."""
    ack = b"\x00\x01" + (b"\x00" + section(version, properties) if version == MQTT5 else b"")
    if place == "CONNECT":
        return connect(b"a", version, properties=properties)
    if place == "WILL":
        rest = section(version, properties) + text(b"gone") + text(b"bye")
        return connect(b"a", version, flags=0x06, rest=rest)
    if place == "PUBLISH":
        return publish(b"t", version, qos=1, properties=properties)
    if place == "SUBSCRIBE":
        return subscribe(b"s", version, properties=properties)
    if place == "UNSUBSCRIBE":
        return unsubscribe(b"s", version, properties=properties)
    if place == "DISCONNECT":
        return frame(0xE0, b"\x00" + section(version, properties) if version == MQTT5 else b"")
    first = {"PUBACK": 0x40, "PUBREC": 0x50, "PUBREL": 0x62, "PUBCOMP": 0x70}[place]
    return frame(first, ack)


def ready_for(place: str, version: int = MQTT5) -> tuple[World, Client, Client]:
    """A world in which that packet is due, the client that may send it, and one who watches."""
    world = World()
    watching = world.connect("watcher")
    watching.subscribe("#")
    if place in ("CONNECT", "WILL"):
        return world, world.open(version), watching
    kept = KEPT if version == MQTT5 else None
    client = world.connect("a", version, will=Will("gone", b"bye"), properties=kept)
    if place in ("PUBACK", "PUBREC", "PUBCOMP"):
        client.subscribe("mine", qos=2)
        qos = 1 if place == "PUBACK" else 2
        world.connect("p").send(Publish("mine", b"x", qos=qos, packet_id=1))
        if place == "PUBCOMP":
            client.send(PubRec(1))
    elif place == "PUBREL":
        client.send(Publish("mine", b"x", qos=2, packet_id=1))
    client.take()
    watching.take()
    return world, client, watching


def assert_taken(place: str, client: Client, answer: list[Packet]) -> None:
    """The packet was right: nothing ended over it that it did not end itself."""
    if place in ("CONNECT", "WILL"):
        (connack,) = answer
        assert isinstance(connack, ConnAck)
        assert connack.reason == 0
    elif place == "DISCONNECT":
        assert answer == []
        assert client.is_closed()
        return
    assert client.send(PingReq()) == [PingResp()]


def assert_refused(client: Client, answer: list[Packet], watching: Client) -> None:
    """The packet was wrong: it is called so, closes, and is as if it had never come."""
    assert client.is_closed()
    (packet,) = answer
    assert isinstance(packet, ConnAck | Disconnect)
    assert packet.reason in (0x81, 0x82, 0x94)
    # All that the others may see of it is the will of the client that is gone.
    assert [p for p in payloads(watching.take()) if p != b"bye"] == []
    assert watching.send(PingReq()) == [PingResp()]


@pytest.mark.parametrize("place", PLACES)
def test_class_3_each_property_is_taken_where_it_may_stand_and_nowhere_else(place: str) -> None:
    """[2.2.2.2]: VerneMQ forwarded strangers, and clients fell over them"""
    for identifier in TABLE:
        if (place, identifier) in SPECIAL:
            continue
        _, client, watching = ready_for(place)
        answer = client.send_bytes(packet_with(place, item(identifier)))
        if is_allowed(place, identifier):
            assert_taken(place, client, answer)
        else:
            assert_refused(client, answer, watching)


@pytest.mark.parametrize("place", PLACES)
def test_class_3_no_property_but_the_users_may_stand_twice(place: str) -> None:
    for identifier in TABLE:
        if not is_allowed(place, identifier) or (place, identifier) in SPECIAL:
            continue
        _, client, watching = ready_for(place)
        answer = client.send_bytes(packet_with(place, item(identifier) * 2))
        if identifier == 0x26:
            assert_taken(place, client, answer)
        else:
            assert_refused(client, answer, watching)


@pytest.mark.parametrize("place", PLACES)
def test_class_3_a_property_does_not_reach_beyond_its_section(place: str) -> None:
    """[MQTT-2.2.2-1]: cut at each byte of the value, though the packet goes on behind it"""
    for identifier in TABLE:
        if not is_allowed(place, identifier) or (place, identifier) in SPECIAL:
            continue
        whole = item(identifier)
        for size in range(1, len(whole)):
            _, client, watching = ready_for(place)
            answer = client.send_bytes(packet_with(place, whole[:size]))
            assert_refused(client, answer, watching)


@pytest.mark.parametrize("place", PLACES)
def test_class_3_an_identifier_that_nobody_defined_is_malformed(place: str) -> None:
    unknown = [number(n) for n in (*range(128), 128, 16_384) if n not in TABLE]
    # a known one in two bytes instead of one [MQTT-1.5.5-1]
    unknown.append(b"\xa6\x00")
    for identifier in unknown:
        _, client, watching = ready_for(place)
        answer = client.send_bytes(packet_with(place, identifier + bytes.fromhex("000161000162")))
        assert_refused(client, answer, watching)


@pytest.mark.parametrize("place", [place for place in PLACES if place != "WILL"])
@pytest.mark.parametrize("length", ["01", "7f", "ffff7f", "ffffff7f", "ffffffff7f", "8000", "80"])
def test_class_3_a_section_that_is_longer_than_its_packet_is_malformed(
    place: str, length: str
) -> None:
    """The length is a lie, has five digits, is written too long, or does not end."""
    lie = bytes.fromhex(length)
    honest = packet_with(place, b"")
    # what is in each packet before its property section
    before = {"CONNECT": 10, "PUBLISH": 5, "SUBSCRIBE": 2, "UNSUBSCRIBE": 2, "DISCONNECT": 1}
    at = 2 + before.get(place, 3)
    _, client, watching = ready_for(place)
    body = honest[2:at] + lie
    if place in ("CONNECT", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE") and lie == b"\x01":
        # one byte would be there: a property without its value
        body += b"\x26"
    answer = client.send_bytes(frame(honest[0], body))
    assert_refused(client, answer, watching)


@pytest.mark.parametrize(
    ("place", "wrong", "right"),
    [
        ("CONNECT", "210000", "210001"),
        ("CONNECT", "2700000000", "2700001000"),
        ("CONNECT", "1702", "1700"),
        ("CONNECT", "19ff", "1900"),
        ("CONNECT", "16000161", "17011901"),  # data without a method
        ("WILL", "0102", "0100"),
        ("WILL", "08000123", "080001 61"),  # a wildcard in a topic name
        ("WILL", "080000", "080001 62"),
        ("PUBLISH", "0102", "0101"),
        ("PUBLISH", "230000", "230064"),
        ("PUBLISH", "230065", "230001"),  # more than the broker said that it takes
        ("PUBLISH", "0800012b", "0800012a"),
        ("PUBLISH", "0b01", ""),  # [MQTT-3.3.4-6] not from a client
        ("SUBSCRIBE", "0b00", "0bffffff7f"),
        ("SUBSCRIBE", "0b010b02", "0b01"),
    ],
)
def test_class_3_a_value_out_of_its_range_is_refused(place: str, wrong: str, right: str) -> None:
    _, client, watching = ready_for(place)
    answer = client.send_bytes(packet_with(place, bytes.fromhex(wrong)))
    assert_refused(client, answer, watching)
    _, client, _ = ready_for(place)
    assert_taken(place, client, client.send_bytes(packet_with(place, bytes.fromhex(right))))


def test_class_3_all_that_a_message_may_carry_arrives_and_nothing_else_does() -> None:
    """[MQTT-3.3.2-17] and its neighbours; a Topic Alias is for one connection and stays there"""
    world = World()
    subscriber = world.connect("s")
    subscriber.subscribe("t")
    carried = b"".join(item(identifier) for identifier in (0x01, 0x03, 0x08, 0x09, 0x26, 0x26))
    client = world.connect("a")
    client.send_bytes(publish(b"t", properties=carried + item(0x02) + item(0x23)))
    (packet,) = subscriber.take()
    assert isinstance(packet, Publish)
    assert sorted(found for found, _ in packet.properties.items) == [1, 2, 3, 8, 9, 0x26, 0x26]
    assert packet.properties.payload_format_indicator == 1
    assert packet.properties.message_expiry_interval == 60
    assert packet.properties.content_type == "a"
    assert packet.properties.response_topic == "a"
    assert packet.properties.correlation_data == b"a"
    assert list(packet.properties.user_properties) == [("a", "b"), ("a", "b")]


def test_class_3_a_will_is_delivered_with_its_properties_but_its_delay() -> None:
    """Mosquitto 1.6.1 crashed over any will property when the will was due."""
    for identifier in TABLE:
        if not is_allowed("WILL", identifier):
            continue
        world, client, watching = ready_for("WILL")
        client.send_bytes(packet_with("WILL", item(identifier)))
        client.cut()
        world.wait(61)
        (packet,) = watching.take()
        assert isinstance(packet, Publish)
        assert packet.payload == b"bye"
        seen = [found for found, _ in packet.properties.items]
        assert seen == ([] if identifier == 0x18 else [identifier])


def test_class_3_refused_wills_leave_nothing_behind() -> None:
    """CVE-2023-3592: each CONNECT with a bad will property leaked the will"""
    world = World()
    rest = section(MQTT5, b"\x23\x00\x01") + text(b"gone") + text(bytes(10_000))
    bad = connect(b"a", flags=0x06, rest=rest)

    def attempt() -> None:
        client = world.open()
        assert [type(packet) for packet in client.send_bytes(bad)] == [ConnAck]
        assert client.is_closed()
        client.cut()
        world.log.clear()

    attempt()
    with memory() as held:
        for _ in range(50):
            attempt()
        assert held() < 50_000


def test_class_3_what_are_properties_in_5_is_payload_in_3_1_1() -> None:
    """Two versions on one listener: the bytes mean what the sender's version says."""
    world = World()
    subscriber = world.connect("s")
    subscriber.subscribe("t")
    old, new = world.connect("old", MQTT311), world.connect("new")
    data = publish(b"t", MQTT5, b"x", properties=item(0x03))
    old.send_bytes(data)
    new.send_bytes(data)
    assert payloads(subscriber.take()) == [b"\x04\x03\x00\x01ax", b"x"]


# --- class 4: packets that end too early ----------------------------------------------------------


def whole_packets(version: int) -> dict[str, tuple[bytes, set[int]]]:
    """First byte and body of each packet of a client, and the sizes that are right as well."""
    five = version == MQTT5
    empty = section(version)
    will = empty + text(b"gone") + text(b"bye")
    short = {2, 3} if five else {2}
    topic = text(b"t") + b"\x00\x07" + empty
    one = b"\x00\x09" + empty + text(b"s") + b"\x00"
    off = b"\x00\x09" + empty + text(b"s")
    ack = b"\x00\x01" + (b"\x00" + section(version, item(0x26)) if five else b"")
    return {
        "CONNECT": (connect(version=version, flags=0xC6, rest=will + text(b"u") * 2), set()),
        "PUBLISH": (
            frame(0x32, topic, b"payload"),
            set(range(len(topic), len(topic) + 7)),
        ),
        "PUBACK": (frame(0x40, ack), short),
        "PUBREC": (frame(0x50, ack), short),
        "PUBREL": (frame(0x62, ack), short),
        "PUBCOMP": (frame(0x70, ack), short),
        "SUBSCRIBE": (frame(0x82, one, text(b"z") + b"\x02"), {len(one)}),
        "UNSUBSCRIBE": (frame(0xA2, off, text(b"z")), {len(off)}),
        "PINGREQ": (frame(0xC0), {0}),
        "DISCONNECT": (
            frame(0xE0, b"\x00" + section(version, item(0x26)) if five else b""),
            {0, 1} if five else {0},
        ),
    }


@VERSIONS
@pytest.mark.parametrize("place", [*PLACES[2:], "CONNECT"])
def test_class_4_a_packet_whose_body_ends_too_early_is_malformed(place: str, version: int) -> None:
    """Cut at each byte, with a Remaining Length that is honest about it; NanoMQ read beyond"""
    packet, right = whole_packets(version)[place]
    body = packet[2:]
    for size in range(len(body) + 1):
        _, client, watching = ready_for(place, version)
        answer = client.send_bytes(frame(packet[0], body[:size]))
        if size in right or size == len(body):
            assert_taken(place, client, answer)
            continue
        assert client.is_closed(), size
        for said in answer:
            assert isinstance(said, ConnAck | Disconnect)
            assert said.reason in (0x81, 0x82)
        if version == MQTT311:
            # [MQTT-3.1.4-1] not even a CONNACK
            assert answer == []
        assert [p for p in payloads(watching.take()) if p != b"bye"] == []


@VERSIONS
@pytest.mark.parametrize("place", [*PLACES[3:], "CONNECT"])
def test_class_4_a_packet_that_goes_on_behind_its_end_is_malformed(
    place: str, version: int
) -> None:
    """Surplus bytes are none of the next packet, which begins where this one says it ends."""
    packet, _ = whole_packets(version)[place]
    for surplus in (b"\x00", b"\xc0\x00", bytes(100)):
        _, client, watching = ready_for(place, version)
        client.send_bytes(frame(packet[0], packet[2:], surplus) + publish(b"t", version))
        assert client.is_closed()
        assert [p for p in payloads(watching.take()) if p != b"bye"] == []


@VERSIONS
@pytest.mark.parametrize("kind", range(16))
def test_class_4_an_empty_packet_is_right_for_two_types_only(kind: int, version: int) -> None:
    client = World().connect("a", version)
    flags = 2 if kind in (6, 8, 10) else 0
    answer = client.send_bytes(bytes([kind << 4 | flags, 0]))
    if kind == 12:
        assert answer == [PingResp()]
        assert not client.is_closed()
    else:
        assert client.is_closed()
        expected = [] if version == MQTT311 or kind == 14 else [Disconnect]
        assert [type(packet) for packet in answer] == expected


@VERSIONS
@pytest.mark.parametrize("size", [127, 128, 1_024, 16_384])
def test_class_4_a_field_that_ends_with_its_packet_lacks_what_follows(
    version: int, size: int
) -> None:
    """No Packet Identifier after the topic, no options after the filter: NanoMQ, at 1,024 bytes"""
    for head, missing in (
        (0x32, b"\x00\x07" + section(version)),
        (0x34, b"\x00\x07" + section(version)),
        (0x82, b"\x00"),
    ):
        before = b"" if head != 0x82 else b"\x00\x09" + section(version)
        field = text(b"t" * (size - 2 - len(before)))
        client = World().connect("a", version)
        client.send_bytes(frame(head, before, field))
        assert client.is_closed()
        client = World().connect("a", version)
        client.send_bytes(frame(head, before, field, missing))
        assert client.send(PingReq())[-1:] == [PingResp()]


@VERSIONS
@pytest.mark.parametrize("place", [*PLACES[2:], "CONNECT"])
def test_class_4_half_a_packet_does_nothing_and_the_other_half_does_all(
    place: str, version: int
) -> None:
    """Cut at each byte of the stream: the connection ends there, or goes on there."""
    packet, _ = whole_packets(version)[place]
    for at in range(1, len(packet)):
        _, client, watching = ready_for(place, version)
        assert client.send_bytes(packet[:at]) == []
        assert not client.is_closed()
        assert watching.take() == []
        assert_taken(place, client, client.send_bytes(packet[at:]))
        _, client, watching = ready_for(place, version)
        client.send_bytes(packet[:at])
        client.cut()
        # half a DISCONNECT is none
        assert payloads(watching.take()) == ([] if place == "CONNECT" else [b"bye"])
        assert watching.send(PingReq()) == [PingResp()]


NO_TIME = struct.pack("ii", 1, 0)


def test_class_4_connections_that_end_anywhere_hurt_nobody() -> None:
    """The same on real sockets, closed and reset, while two others go on."""
    stream = b"".join(packet for packet, _ in list(whole_packets(MQTT5).values())[:2])
    with Process() as broker, healthy_pair(broker.address) as pair:
        for at in range(1, len(stream)):
            with link(broker.address) as client:
                if at % 2:
                    # Closing sends a reset instead of an orderly end.
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_TIME)
                client.send_bytes(stream[:at])
            if at % 10 == 0:
                pair.exchange()


# --- class 5: packets that only the other side may send -------------------------------------------

SERVERS_PACKETS = {
    MQTT311: {
        "CONNACK": "20020000",
        "CONNACK that refuses": "20020005",
        "SUBACK": "9003000100",
        "UNSUBACK": "b0020001",
        "PINGRESP": "d000",
        "AUTH": "f000",
        "reserved": "0000",
    },
    MQTT5: {
        "CONNACK": "2003000000",
        "CONNACK that refuses": "2003008700",
        "SUBACK": "900400010000",
        "UNSUBACK": "b00400010000",
        "PINGRESP": "d000",
        "AUTH": "f000",
        "AUTH with a method": "f006180415000161",
        "reserved": "0000",
        "PUBLISH with a Subscription Identifier": "3006000174020b01",
    },
}


@pytest.mark.parametrize(
    ("version", "name"),
    [(version, name) for version, packets in SERVERS_PACKETS.items() for name in packets],
)
def test_class_5_a_packet_of_the_server_ends_the_connection_of_its_sender(
    version: int, name: str
) -> None:
    """[MQTT-4.8.0-1] (3.1.1) [MQTT-4.13.1-1] (5.0); what follows it in one piece is not acted on"""
    world = World()
    watching = world.connect("watcher")
    watching.subscribe("#")
    client = world.connect("a", version, will=Will("gone", b"bye"))
    data = bytes.fromhex(SERVERS_PACKETS[version][name])
    assert len(data) == data[1] + 2
    answer = client.send_bytes(data + publish(b"t", version))
    assert client.is_closed()
    if version == MQTT5:
        (packet,) = answer
        assert isinstance(packet, Disconnect)
        assert packet.reason in (0x81, 0x82)
    else:
        assert answer == []
    # no DISCONNECT was received: the will is due
    assert payloads(watching.take()) == [b"bye"]
    assert watching.send(PingReq()) == [PingResp()]


@VERSIONS
def test_class_5_what_goes_both_ways_is_taken(version: int) -> None:
    """The control: PUBLISH and its four answers are anybody's."""
    for place in ("PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"):
        _, client, _ = ready_for(place, version)
        assert_taken(place, client, client.send_bytes(packet_with(place, b"", version)))


# [Table 3-10] reason codes that a client may put into DISCONNECT, and those it may not.
CLIENTS = (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99)
SERVERS = (0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2)


@pytest.mark.parametrize("code", range(256))
def test_class_5_each_reason_for_leaving_is_taken_from_the_side_that_has_it(code: int) -> None:
    """[MQTT-3.14.2-1]; only 0x00 takes the will back [MQTT-3.14.4-3]"""
    world = World()
    watching = world.connect("watcher")
    watching.subscribe("gone")
    client = world.connect("a", will=Will("gone", b"bye"))
    answer = client.send_bytes(frame(0xE0, bytes([code])))
    assert client.is_closed()
    assert payloads(watching.take()) == ([] if code == 0 else [b"bye"])
    if code in CLIENTS:
        assert answer == []
    elif code not in SERVERS:
        (packet,) = answer
        assert isinstance(packet, Disconnect)
        assert packet.reason in (0x81, 0x82)


def test_class_5_a_packet_of_the_server_on_a_real_socket_ends_one_connection() -> None:
    with Process() as broker, healthy_pair(broker.address) as pair:
        for version, packets in SERVERS_PACKETS.items():
            for data in packets.values():
                with link(broker.address, "a", version) as client:
                    client.send_bytes(bytes.fromhex(data))
                    assert all(isinstance(p, Disconnect) for p in client.until_closed())
            pair.exchange()


def test_class_5_a_second_connect_does_not_change_who_is_who() -> None:
    """[MQTT-3.1.0-2]: neither the old name nor the new one gets anything from it"""
    world = World()
    victim = world.connect("victim")
    victim.subscribe("t")
    client = world.connect("a")
    client.send_bytes(encode(Connect("victim")) + encode(Subscribe(1, [Subscription("#")])))
    assert client.is_closed()
    assert not victim.is_closed()
    world.connect("p").send(Publish("t", b"x"))
    assert payloads(victim.take()) == [b"x"]
    assert payloads(client.take()) == []

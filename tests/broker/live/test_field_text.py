"""Bugs that brokers have had: class 9, ill-formed UTF-8 that is passed on to other clients.

Mosquitto 1.4 kept such a topic, and every later subscriber to # fell over it again and again.
"""

from dataclasses import dataclass

import pytest

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
    Will,
)
from tests.broker.broker_process import Process
from tests.broker.by_hand import (
    connect,
    frame,
    healthy_pair,
    link,
    publish,
    section,
    subscribe,
    text,
    unsubscribe,
)
from tests.broker.core.test_core import VERSIONS, payloads
from tests.broker.world import World

ILL_FORMED = {
    "a byte FF": b"a\xff",
    "a byte FE": b"\xfea",
    "a lone continuation byte": b"\x80",
    "a sequence that is cut short": b"a\xe2\x82",
    "a sequence that another one cuts short": b"\xe2\x82/\xac",
    "a slash in two bytes": b"a\xc0\xafb",
    "a NUL in two bytes": b"\xc0\x80",
    "a wildcard in two bytes": b"\xc0\xa3",
    "a slash in three bytes": b"\xe0\x80\xaf",
    "a surrogate": b"\xed\xa0\x80",
    "a pair of surrogates": b"\xed\xa0\xbd\xed\xb8\x80",
    "a code point above the last": b"\xf4\x90\x80\x80",
    "a sequence of five bytes": b"\xf8\x88\x80\x80\x80",
    "Latin-1": b"caf\xe9",
    "UTF-16": b"\xff\xfea\x00",
    "U+0000": b"a\x00b",
}
WELL_FORMED = {
    "ASCII": b"a",
    "two, three and four bytes": "\u00e9\u20ac\U0001f600".encode(),
    "what surrounds the surrogates": "\ud7ff\ue000".encode(),
    "the last code point": "\U0010ffff".encode(),
    "U+FEFF": "\ufeff".encode(),
}


def with_text(place: str, value: bytes, version: int) -> bytes:
    """A packet that has the bytes where text belongs."""
    before, _, what = place.partition(" ")
    properties = {
        "content type": b"\x03" + text(value),
        "response topic": b"\x08" + text(value),
        "name": b"\x26" + text(value) + text(b"v"),
        "value": b"\x26" + text(b"k") + text(value),
        "payload": b"\x01\x01",
    }.get(what, b"")
    payload = value if what == "payload" else b"x"
    if before == "PUBLISH":
        return publish(value if what == "topic" else b"t", version, payload, properties=properties)
    if before == "WILL":
        topic = value if what == "topic" else b"t"
        rest = section(version, properties) + text(topic) + text(payload)
        return connect(b"sender", version, flags=0x26, rest=rest)
    if what == "client id":
        return connect(value, version)
    if what == "user name":
        return connect(b"sender", version, flags=0x82, rest=text(value))
    if before == "SUBSCRIBE":
        return subscribe(value if what == "filter" else b"t", version, properties=properties)
    if before == "UNSUBSCRIBE":
        return unsubscribe(value if what == "filter" else b"t", version, properties=properties)
    assert before == "CONNECT"
    return connect(b"sender", version, properties=properties)


PLACES = {
    MQTT311: (
        "PUBLISH topic",
        "WILL topic",
        "CONNECT client id",
        "CONNECT user name",
        "SUBSCRIBE filter",
        "UNSUBSCRIBE filter",
    ),
    MQTT5: (
        "PUBLISH topic",
        "PUBLISH content type",
        "PUBLISH response topic",
        "PUBLISH name",
        "PUBLISH value",
        "PUBLISH payload",
        "WILL topic",
        "WILL content type",
        "WILL response topic",
        "WILL name",
        "WILL value",
        "WILL payload",
        "CONNECT client id",
        "CONNECT user name",
        "CONNECT name",
        "CONNECT value",
        "SUBSCRIBE filter",
        "SUBSCRIBE name",
        "SUBSCRIBE value",
        "UNSUBSCRIBE filter",
        "UNSUBSCRIBE name",
        "UNSUBSCRIBE value",
    ),
}
EVERYWHERE = pytest.mark.parametrize(
    ("version", "place"),
    [(version, place) for version, places in PLACES.items() for place in places],
)


@dataclass
class Sent:
    """What became of a text that a client sent before it was gone."""

    closed: bool
    answer: list[Packet]
    # to one who had subscribed to everything, and to one who did so later
    forwarded: list[Packet]
    retained: list[Packet]


def send_text(place: str, value: bytes, version: int) -> Sent:
    world = World()
    watching = world.connect("watcher")
    watching.subscribe("#", qos=1)
    if place.split(" ")[0] in ("CONNECT", "WILL"):
        client = world.open(version)
    else:
        client = world.connect("sender", version)
    answer = client.send_bytes(with_text(place, value, version))
    closed = client.is_closed()
    if not closed:
        assert client.send(PingReq()) == [PingResp()]
    client.cut()
    late = world.connect("late").subscribe("#")
    return Sent(closed, answer, watching.take(), late)


@EVERYWHERE
@pytest.mark.parametrize("name", ILL_FORMED)
def test_class_9_ill_formed_text_ends_its_senders_connection_and_reaches_nobody(
    version: int, place: str, name: str
) -> None:
    """[MQTT-1.5.4-1] [-2] [MQTT-1.5.7-1] (5.0) [MQTT-1.5.3-1] [-2] (3.1.1)"""
    sent = send_text(place, ILL_FORMED[name], version)
    if place.endswith("payload") and name == "U+0000":
        # A payload is no UTF-8 Encoded String: this one is well-formed.
        assert not sent.closed
        return
    assert sent.closed
    for packet in sent.answer:
        assert isinstance(packet, ConnAck | Disconnect)
        assert packet.reason in (0x81, 0x82, 0x85, 0x90, 0x99)
    if version == MQTT311:
        assert sent.answer == []
    assert sent.forwarded == []
    assert sent.retained == []


@EVERYWHERE
@pytest.mark.parametrize("name", WELL_FORMED)
def test_class_9_well_formed_text_is_taken_and_arrives_as_it_was_sent(
    version: int, place: str, name: str
) -> None:
    value = WELL_FORMED[name]
    sent = send_text(place, value, version)
    assert not sent.closed
    before, _, what = place.partition(" ")
    assert len(sent.forwarded) == (before in ("PUBLISH", "WILL"))
    assert len(sent.retained) == (before == "WILL")
    for packet in sent.forwarded + sent.retained:
        assert isinstance(packet, Publish)
        properties = packet.properties
        found: dict[str, str | bytes | None] = {
            "topic": packet.topic_name,
            "payload": packet.payload,
            "content type": properties.content_type,
            "response topic": properties.response_topic,
            "name": "".join(pair[0] for pair in properties.user_properties),
            "value": "".join(pair[1] for pair in properties.user_properties),
        }
        expected: str | bytes = value if what == "payload" else value.decode()
        assert found[what] == expected


@VERSIONS
def test_class_9_what_is_no_text_may_hold_any_bytes(version: int) -> None:
    """Payloads without a format, correlation data, passwords and will payloads are bytes."""
    world = World()
    watching = world.connect("watcher")
    watching.subscribe("#")
    anything = bytes(range(256)) + b"\xc0\x80\xed\xa0\x80\xff"
    client = world.open(version)
    (connack,) = client.send(
        Connect(
            "sender",
            version=version,
            user_name="u",
            password=anything,
            will=Will("t", anything),
        )
    )
    assert isinstance(connack, ConnAck)
    assert connack.reason == 0
    correlation = b"\x09" + text(anything) if version == MQTT5 else b""
    client.send_bytes(publish(b"t", version, anything, properties=correlation))
    client.send_bytes(publish(b"t", version, anything, properties=b"\x01\x00"[: 2 * version - 8]))
    client.cut()
    first, *others = watching.take()
    assert isinstance(first, Publish)
    assert first.payload == anything
    if version == MQTT5:
        assert first.properties.correlation_data == anything
    assert payloads(others) == [anything, anything]


def test_class_9_a_reason_that_is_no_text_is_not_accepted() -> None:
    """Reason String and User Property of the answers that a client sends."""
    for reason, closes in ((b"\xff", True), (b"why", False)):
        world = World()
        client = world.connect("a")
        client.subscribe("t", qos=1)
        world.connect("p").send(Publish("t", b"x", qos=1, packet_id=1))
        assert payloads(client.take()) == [b"x"]
        properties = section(MQTT5, b"\x1f" + text(reason))
        client.send_bytes(frame(0x40, b"\x00\x01\x80", properties))
        assert client.is_closed() == closes


def test_class_9_ill_formed_text_on_real_sockets_hurts_its_sender_only() -> None:
    with (
        Process() as broker,
        healthy_pair(broker.address) as pair,
        link(broker.address, "watcher") as watching,
    ):
        watching.subscribe("#")
        for value in ILL_FORMED.values():
            with link(broker.address, "sender") as client:
                client.send_bytes(with_text("PUBLISH topic", value, MQTT5))
                client.until_closed()
            with link(broker.address) as client:
                client.send_bytes(with_text("WILL topic", value, MQTT5))
                client.until_closed()
        pair.exchange()
        assert payloads(watching.take(1)) == [b"1"]
        with link(broker.address) as client:
            client.send_bytes(with_text("WILL topic", b"right", MQTT5))
            client.take(1)
        assert watching.take(1) == [Publish("right", b"x")]
        with link(broker.address, "late") as late:
            late.subscribe("#")
            assert late.take(1) == [Publish("right", b"x", retain=True)]
            late.ping()

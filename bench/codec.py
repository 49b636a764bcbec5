"""The codec compared with its peers: decode, and construct + encode, called from Python.

    semel      compiled; `decode` and constructor + `encode`, every check included
    mqtt5      Rust, 5.0 only; `read` of a memoryview made beforehand, constructor + `write`
    amqtt      Python, 3.1.1 only; `from_stream` is a coroutine: it reads from an object that has
               all bytes available, so that one `send(None)` completes it without an event loop
    paho-mqtt  Python; its client decodes with functions of an internal module, which get the body
               of a packet without the fixed header, and encodes in methods that also log and
               queue: they run in a client that is not connected and whose queue only keeps the
               last packet. The topic is already encoded and checked there. SUBSCRIBE is left out:
               a client does not decode it, and its encoding cannot be separated from other work.

A call per packet is only half of the picture: a receiver gets chunks of many packets. The last case
is a chunk of 100 PUBLISH, per packet: semel's `Decoder.receive` takes it as a whole; for mqtt5 a
Python loop slices the memoryview, as its interface requires.

Peers with 5.0 are compared with semel in 5.0, amqtt with semel in 3.1.1. A statement is timed only
after its result has been checked.
"""

import socket
from dataclasses import dataclass
from typing import Any, Final

import mqtt5
from amqtt.mqtt.puback import PubackPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.subscribe import SubscribePacket
from paho.mqtt import _packet
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from bench.timing import Contender, nanoseconds
from semel.mqtt import (
    MQTT5,
    MQTT311,
    Decoder,
    Packet,
    Properties,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
    decode,
    encode,
)

SEMEL5: Final = "semel 5.0"
SEMEL311: Final = "semel 3.1.1"
MQTT5_RUST: Final = "mqtt5"
PAHO: Final = "paho-mqtt"
AMQTT: Final = "amqtt"

# The version of semel that each contender is compared with.
RIVALS: Final = {MQTT5_RUST: SEMEL5, PAHO: SEMEL5, AMQTT: SEMEL311}


class BytesReader:
    """The reader that amqtt gets; it has the complete packet."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    async def read(self, size: int = -1) -> bytes:
        start = self.at
        self.at = start + size
        return self.data[start : self.at]


class QueuelessClient(Client):
    """paho's client without its queue; `packet` is the last packet it wrote."""

    packet: bytes | bytearray = b""

    def __init__(self) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        self._sock = socket.socket()  # never connected; without one it writes nothing

    def _packet_queue(
        self, command: int, packet: bytes | bytearray, mid: int, qos: int, info: object = None
    ) -> MQTTErrorCode:
        self.packet = packet
        return MQTTErrorCode.MQTT_ERR_SUCCESS


# The names that the statements below use.
NAMES: Final[dict[str, object]] = {
    "topic": "plant/7/line/3/temp1",
    "topic_bytes": b"plant/7/line/3/temp1",
    "payload": b'{"c":21.5,"t":17001}',
    "kilobyte": bytes(range(256)) * 4,
    "first_filter": "plant/+/line/3/temp1",
    "second_filter": "plant/7/#",
    "decode": decode,
    "receive": Decoder(MQTT5).receive,
    "encode": encode,
    "Publish": Publish,
    "Properties": Properties,
    "PubAck": PubAck,
    "Subscribe": Subscribe,
    "Subscription": Subscription,
    "rust_read": mqtt5.read,
    "RustPublish": mqtt5.PublishPacket,
    "RustPubAck": mqtt5.PubAckPacket,
    "RustSubscribe": mqtt5.SubscribePacket,
    "RustTopicFilter": mqtt5.TopicFilter,
    "QOS_1": mqtt5.QoS.AT_LEAST_ONCE,
    "QOS_2": mqtt5.QoS.EXACTLY_ONCE,
    "PublishPacket": PublishPacket,
    "PubackPacket": PubackPacket,
    "SubscribePacket": SubscribePacket,
    "client": QueuelessClient(),
    "PahoProperties": PahoProperties,
    "PAHO_PUBLISH": PacketTypes.PUBLISH,
    "paho_publish": _packet.decode_publish,
    "paho_puback": _packet.decode_puback,
    "V5": MQTTProtocolVersion.MQTTv5,
}

CHUNK: Final = 100
RUST_READ: Final = "result = rust_read(view)[0]"


@dataclass(frozen=True)
class Case:
    """One packet: how semel builds it, and the statements of the peers, each leaving `result`.

    Without decoders only construct + encode is measured.
    """

    name: str
    built: str
    decoders: dict[str, str]
    encoders: dict[str, str]


def amqtt_read(packet: str) -> str:
    return (
        "reader.at = 0\n"
        f"try:\n    {packet}.from_stream(reader).send(None)\n"
        "except StopIteration as done:\n    result = done.value"
    )


# What a program does that reads every property of the case below.
READ_PROPERTIES: Final = (
    "\n{0}.message_expiry_interval; {0}.content_type; {0}.correlation_data; {0}.user_properties"
)

CASES: Final = (
    Case(
        "PUBLISH QoS 1, topic 20, payload 20",
        "Publish(topic, payload, qos=1, packet_id=7)",
        {
            MQTT5_RUST: RUST_READ,
            PAHO: "result = paho_publish(first, body, V5)",
            AMQTT: amqtt_read("PublishPacket"),
        },
        {
            MQTT5_RUST: "result = RustPublish(topic, payload, qos=QOS_1, packet_id=7).write()",
            PAHO: "client._send_publish(7, topic_bytes, payload, 1); result = client.packet",
            AMQTT: "result = PublishPacket.build(topic, payload, 7, False, 1, False).to_bytes()",
        },
    ),
    Case(
        "the same, semel's arguments by position",
        "Publish(topic, payload, 1, 7)",
        {},
        {
            MQTT5_RUST: "result = RustPublish(topic, payload, qos=QOS_1, packet_id=7).write()",
            PAHO: "client._send_publish(7, topic_bytes, payload, 1); result = client.packet",
            AMQTT: "result = PublishPacket.build(topic, payload, 7, False, 1, False).to_bytes()",
        },
    ),
    Case(
        "PUBLISH QoS 0, topic 20, payload 20",
        "Publish(topic, payload)",
        {
            MQTT5_RUST: RUST_READ,
            PAHO: "result = paho_publish(first, body, V5)",
            AMQTT: amqtt_read("PublishPacket"),
        },
        {
            MQTT5_RUST: "result = RustPublish(topic, payload).write()",
            PAHO: "client._send_publish(0, topic_bytes, payload, 0); result = client.packet",
            AMQTT: "result = PublishPacket.build(topic, payload, None, False, 0, False).to_bytes()",
        },
    ),
    Case(
        "PUBLISH QoS 1, topic 20, payload 1024",
        "Publish(topic, kilobyte, qos=1, packet_id=7)",
        {
            MQTT5_RUST: RUST_READ,
            PAHO: "result = paho_publish(first, body, V5)",
            AMQTT: amqtt_read("PublishPacket"),
        },
        {
            MQTT5_RUST: "result = RustPublish(topic, kilobyte, qos=QOS_1, packet_id=7).write()",
            PAHO: "client._send_publish(7, topic_bytes, kilobyte, 1); result = client.packet",
            AMQTT: "result = PublishPacket.build(topic, kilobyte, 7, False, 1, False).to_bytes()",
        },
    ),
    Case(
        "PUBLISH QoS 1 with 4 properties",
        "Publish(topic, payload, qos=1, packet_id=7, properties=Properties("
        "message_expiry_interval=60, content_type='application/json', "
        "correlation_data=b'1234', user_properties=[('unit', 'C')]))",
        {
            MQTT5_RUST: RUST_READ,
            PAHO: "result = paho_publish(first, body, V5)",
        },
        {
            MQTT5_RUST: "result = RustPublish(topic, payload, qos=QOS_1, packet_id=7, "
            "message_expiry_interval=60, content_type='application/json', "
            "correlation_data=b'1234', user_properties=[('unit', 'C')]).write()",
            PAHO: "properties = PahoProperties(PAHO_PUBLISH)\n"
            "properties.MessageExpiryInterval = 60\n"
            "properties.ContentType = 'application/json'\n"
            "properties.CorrelationData = b'1234'\n"
            "properties.UserProperty = [('unit', 'C')]\n"
            "client._send_publish(7, topic_bytes, payload, 1, properties=properties)\n"
            "result = client.packet",
        },
    ),
    Case(
        "PUBACK",
        "PubAck(7)",
        {
            MQTT5_RUST: RUST_READ,
            PAHO: "result = paho_puback(first, body, V5)",
            AMQTT: amqtt_read("PubackPacket"),
        },
        {
            MQTT5_RUST: "result = RustPubAck(7).write()",
            PAHO: "client._send_puback(7); result = client.packet",
            AMQTT: "result = PubackPacket.build(7).to_bytes()",
        },
    ),
    Case(
        "SUBSCRIBE, 2 filters",
        "Subscribe(7, [Subscription(first_filter, 1), Subscription(second_filter, 2)])",
        {
            MQTT5_RUST: RUST_READ,
            AMQTT: amqtt_read("SubscribePacket"),
        },
        {
            MQTT5_RUST: "result = RustSubscribe(7, ["
            "RustTopicFilter(first_filter, max_qos=QOS_1, retain_as_published=False), "
            "RustTopicFilter(second_filter, max_qos=QOS_2, retain_as_published=False)]).write()",
            AMQTT: "result = SubscribePacket.build("
            "[(first_filter, 1), (second_filter, 2)], 7).to_bytes()",
        },
    ),
)

CASE_WITH_PROPERTIES: Final = CASES[4]
CASE_SUBSCRIBE: Final = CASES[6]


def body_of(data: bytes) -> bytes:
    """A packet without its fixed header."""
    at = 1
    while data[at] > 127:
        at += 1
    return data[at + 1 :]


def facts(packet: Any) -> tuple[int, bytes | None]:
    """Packet Identifier and payload of whatever a contender has decoded."""
    if isinstance(packet, PubackPacket | SubscribePacket):
        return packet.variable_header.packet_id, None
    if isinstance(packet, PublishPacket):
        return packet.packet_id or 0, packet.data
    identifier = packet.mid if hasattr(packet, "mid") else packet.packet_id
    return identifier or 0, getattr(packet, "payload", None)


def same(ours: Packet, theirs: bytes, version: int) -> bool:
    """Whether the bytes say what `ours` says; properties may come in another order."""
    decoded = decode(bytes(theirs), version)
    if decoded is None or decoded[1] != len(theirs):
        return False
    packet = decoded[0]
    if not isinstance(ours, Publish) or not isinstance(packet, Publish):
        return packet == ours
    return (
        (packet.topic_name, packet.payload, packet.qos, packet.packet_id)
        == (ours.topic_name, ours.payload, ours.qos, ours.packet_id)
    ) and sorted(map(str, packet.properties.items)) == sorted(map(str, ours.properties.items))


def contenders_of(case: Case) -> tuple[list[Contender], list[Contender]]:
    """Those who decode and those who encode, each tried once."""
    packet: Packet = eval(case.built, dict(NAMES))
    versions = [(SEMEL5, MQTT5)]
    if AMQTT in case.encoders:
        versions.append((SEMEL311, MQTT311))
    decoders = [
        Contender(
            name, f"result = decode(data, {version})[0]", {**NAMES, "data": encode(packet, version)}
        )
        for name, version in versions
    ]
    if not case.decoders:
        decoders = []
    encoders = [
        Contender(name, f"result = encode({case.built}, {version})", NAMES)
        for name, version in versions
    ]
    data = encode(packet, MQTT5)
    names = {**NAMES, "view": memoryview(data), "first": data[0], "body": body_of(data)}
    if AMQTT in case.encoders:
        names["reader"] = BytesReader(encode(packet, MQTT311))
    decoders += [Contender(name, text, names) for name, text in case.decoders.items()]
    encoders += [Contender(name, text, names) for name, text in case.encoders.items()]
    for contender in decoders:
        result = contender.run()
        if facts(result) != facts(packet):
            raise AssertionError(f"{contender.name} decodes {case.name} as {result!r}")
    for contender in encoders:
        version = MQTT311 if contender.name in (SEMEL311, AMQTT) else MQTT5
        if not same(packet, contender.run(), version):
            raise AssertionError(f"{contender.name} encodes {case.name} as {contender.run()!r}")
    return decoders, encoders


def chunk_contenders() -> list[Contender]:
    """Those who decode a chunk of many packets, each tried once."""
    packet = Publish("plant/7/line/3/temp1", b'{"c":21.5,"t":17001}', qos=1, packet_id=7)
    chunk = encode(packet, MQTT5) * CHUNK
    loop = (
        "at = 0\nresult = []\n"
        "while at < size:\n"
        "    packet, length = rust_read(view[at:])\n"
        "    at += length\n"
        "    result.append(packet)"
    )
    names = {**NAMES, "chunk": chunk, "size": len(chunk), "view": memoryview(chunk)}
    contenders = [
        Contender(SEMEL5, "result = receive(chunk)", names),
        Contender(MQTT5_RUST, loop, names),
    ]
    for contender in contenders:
        result = contender.run()
        if len(result) != CHUNK or any(facts(each) != facts(packet) for each in result):
            raise AssertionError(f"{contender.name} decodes the chunk as {result!r}")
    return contenders


def reading_contenders() -> list[Contender]:
    """Those who decode the PUBLISH with properties, and read all of these, each tried once."""
    packet: Packet = eval(CASE_WITH_PROPERTIES.built, dict(NAMES))
    data = encode(packet, MQTT5)
    names = {**NAMES, "data": data, "view": memoryview(data)}
    contenders = [
        Contender(
            SEMEL5,
            "result = decode(data, 5)[0]\nproperties = result.properties"
            + READ_PROPERTIES.format("properties"),
            names,
        ),
        Contender(MQTT5_RUST, RUST_READ + READ_PROPERTIES.format("result"), names),
    ]
    for contender in contenders:
        if facts(contender.run()) != facts(packet):
            raise AssertionError(f"{contender.name} decodes {CASE_WITH_PROPERTIES.name} wrongly")
    return contenders


def measure(rounds: int) -> list[dict[str, Any]]:
    """A row for each case and direction: nanoseconds of each contender."""
    rows: list[dict[str, Any]] = []
    for case in CASES:
        decoders, encoders = contenders_of(case)
        for operation, contenders in (("decode", decoders), ("construct + encode", encoders)):
            if not contenders:
                continue
            times = nanoseconds(contenders, rounds)
            rows.append({"case": case.name, "operation": operation, "nanoseconds": times})
    times = nanoseconds(reading_contenders(), rounds)
    name = f"{CASE_WITH_PROPERTIES.name}, all of them read"
    rows.append({"case": name, "operation": "decode", "nanoseconds": times})
    times = nanoseconds(chunk_contenders(), rounds)
    per_packet = {name: time / CHUNK for name, time in times.items()}
    name = f"{CASES[0].name}, {CHUNK} in one chunk"
    rows.append({"case": name, "operation": "decode", "nanoseconds": per_packet})
    return rows

"""amqtt (3.1.1 only): the packets of its package `amqtt.mqtt`, without its broker and client.

What its broker checks in a packet that was decoded is not seen here.

`from_stream` is a coroutine; it reads from an object that has all bytes at hand, so that one
`send(None)` runs it to its end.
"""

from typing import Any

from amqtt.mqtt import packet_class
from amqtt.mqtt.connack import ConnackPacket
from amqtt.mqtt.connect import ConnectPacket, ConnectPayload, ConnectVariableHeader
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.packet import MQTTFixedHeader
from amqtt.mqtt.pingreq import PingReqPacket
from amqtt.mqtt.pingresp import PingRespPacket
from amqtt.mqtt.puback import PubackPacket
from amqtt.mqtt.pubcomp import PubcompPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.pubrec import PubrecPacket
from amqtt.mqtt.pubrel import PubrelPacket
from amqtt.mqtt.suback import SubackPacket
from amqtt.mqtt.subscribe import SubscribePacket
from amqtt.mqtt.unsuback import UnsubackPacket
from amqtt.mqtt.unsubscribe import UnsubscribePacket

from semel.mqtt import (
    MQTT311,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from tests.peers.facts import Facts

VERSIONS = (MQTT311,)

TYPES: dict[type, str] = {
    ConnectPacket: "Connect",
    ConnackPacket: "ConnAck",
    PublishPacket: "Publish",
    PubackPacket: "PubAck",
    PubrecPacket: "PubRec",
    PubrelPacket: "PubRel",
    PubcompPacket: "PubComp",
    SubscribePacket: "Subscribe",
    SubackPacket: "SubAck",
    UnsubscribePacket: "Unsubscribe",
    UnsubackPacket: "UnsubAck",
    PingReqPacket: "PingReq",
    PingRespPacket: "PingResp",
    DisconnectPacket: "Disconnect",
}


class BytesReader:
    """What it reads from: the bytes of one packet, then the end of the connection."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    async def read(self, size: int = -1) -> bytes:
        start = self.at
        self.at = min(start + size, len(self.data))
        return self.data[start : self.at]


async def read_packet(reader: BytesReader) -> Any:
    header = await MQTTFixedHeader.from_stream(reader)
    if header is None:
        raise ValueError("it waits for more")
    return await packet_class(header).from_stream(reader, fixed_header=header)


def receives(packet_type: int, version: int) -> bool:
    """It serves clients and servers alike."""
    return True


def decode(data: bytes, version: int) -> Facts:
    """The facts of the packet; raises whatever the peer raises."""
    reader = BytesReader(data)
    packet: Any = None
    try:
        read_packet(reader).send(None)
    except StopIteration as done:
        packet = done.value
    facts: Facts = {"type": TYPES[type(packet)]}
    if reader.at != len(data):
        facts["bytes taken"] = reader.at
    if isinstance(packet, PublishPacket):
        facts["topic_name"] = packet.topic_name
        facts["payload"] = packet.data
        facts["qos"] = packet.qos
        facts["retain"] = packet.retain_flag
        facts["dup"] = packet.dup_flag
        facts["packet_id"] = packet.packet_id or 0
    elif isinstance(packet, ConnectPacket):
        # It puts a made-up ClientId in the place of an empty one.
        facts["client_id"] = "" if packet.payload.client_id_is_random else packet.client_id
        facts["clean_start"] = packet.clean_session_flag
        facts["keep_alive"] = packet.keep_alive
        facts["user_name"] = packet.username
        # It has passwords as text.
        password = packet.password
        facts["password"] = password.encode() if isinstance(password, str) else password
        facts["will"] = packet.will_flag
        if packet.will_flag:
            facts["will topic_name"] = packet.will_topic
            facts["will payload"] = packet.will_message
            facts["will qos"] = packet.will_qos
            facts["will retain"] = packet.will_retain_flag
    elif isinstance(packet, ConnackPacket):
        facts["reason"] = packet.return_code
        facts["session_present"] = bool(packet.session_parent)
    elif not isinstance(packet, PingReqPacket | PingRespPacket | DisconnectPacket):
        facts["packet_id"] = packet.variable_header.packet_id
        if isinstance(packet, SubscribePacket):
            facts["subscriptions"] = [
                (topic, qos, False, False, 0) for topic, qos in packet.payload.topics
            ]
        elif isinstance(packet, UnsubscribePacket):
            facts["topic_filters"] = packet.payload.topics
        elif isinstance(packet, SubackPacket):
            facts["reasons"] = packet.payload.return_codes
    return facts


def encode(packet: Packet, version: int) -> bytes | None:
    """Its bytes for the same packet; None if it has no way to say it."""
    written: bytes | None = None
    if isinstance(packet, Publish):
        identifier = packet.packet_id or None
        written = PublishPacket.build(
            packet.topic_name, packet.payload, identifier, packet.dup, packet.qos, packet.retain
        ).to_bytes()
    elif isinstance(packet, Connect):
        written = encode_connect(packet)
    elif isinstance(packet, ConnAck):
        written = ConnackPacket.build(int(packet.session_present), packet.reason).to_bytes()
    elif isinstance(packet, Subscribe):
        topics = [(each.topic_filter, each.qos) for each in packet.subscriptions]
        written = SubscribePacket.build(topics, packet.packet_id).to_bytes()
    elif isinstance(packet, SubAck):
        written = SubackPacket.build(packet.packet_id, list(packet.reasons)).to_bytes()
    elif isinstance(packet, Unsubscribe):
        written = UnsubscribePacket.build(list(packet.topic_filters), packet.packet_id).to_bytes()
    elif isinstance(packet, UnsubAck):
        written = UnsubackPacket.build(packet.packet_id).to_bytes()
    elif isinstance(packet, PubAck):
        written = PubackPacket.build(packet.packet_id).to_bytes()
    elif isinstance(packet, PubRec):
        written = PubrecPacket.build(packet.packet_id).to_bytes()
    elif isinstance(packet, PubRel):
        written = PubrelPacket.build(packet.packet_id).to_bytes()
    elif isinstance(packet, PubComp):
        written = PubcompPacket.build(packet.packet_id).to_bytes()
    elif isinstance(packet, PingReq):
        written = PingReqPacket().to_bytes()
    elif isinstance(packet, PingResp):
        written = PingRespPacket().to_bytes()
    elif isinstance(packet, Disconnect):
        written = DisconnectPacket().to_bytes()
    return written


def encode_connect(packet: Connect) -> bytes | None:
    header = ConnectVariableHeader(keep_alive=packet.keep_alive)
    payload = ConnectPayload(packet.client_id)
    header.clean_session_flag = packet.clean_start
    if packet.will is not None:
        header.will_flag = True
        header.will_qos = packet.will.qos
        header.will_retain_flag = packet.will.retain
        payload.will_topic = packet.will.topic_name
        payload.will_message = packet.will.payload
    if packet.user_name is not None:
        header.username_flag = True
        payload.username = packet.user_name
    if packet.password is not None:
        header.password_flag = True
        try:
            payload.password = packet.password.decode()
        except UnicodeDecodeError:
            return None
    written: bytes = ConnectPacket(variable_header=header, payload=payload).to_bytes()
    return written

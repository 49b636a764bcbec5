"""amqtt as a subject (3.1.1 only): the packets of its package `amqtt.mqtt`.

What its broker checks in a packet after it was decoded is not seen here.

`from_stream` is a coroutine; it reads from an object that has all bytes at hand, so that one
`send(None)` runs it to its end.
"""

from collections.abc import Mapping
from importlib.metadata import version as version_of
from typing import Any, Final

from semel.probe.adapters.adapter import (
    ALL_TYPES,
    Cannot,
    Incomplete,
    end_without,
    every_version,
    property_pairs,
    read_binary,
    read_password,
    serve,
    write_values,
)

try:
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
except ImportError:
    end_without("amqtt", "amqtt")

CLASSES: Final[Mapping[str, Any]] = {
    "Connect": ConnectPacket,
    "ConnAck": ConnackPacket,
    "Publish": PublishPacket,
    "PubAck": PubackPacket,
    "PubRec": PubrecPacket,
    "PubRel": PubrelPacket,
    "PubComp": PubcompPacket,
    "Subscribe": SubscribePacket,
    "SubAck": SubackPacket,
    "Unsubscribe": UnsubscribePacket,
    "UnsubAck": UnsubackPacket,
    "PingReq": PingReqPacket,
    "PingResp": PingRespPacket,
    "Disconnect": DisconnectPacket,
}
TYPES: Final = {made: name for name, made in CLASSES.items()}


class PacketBytes:
    """What it reads from: the bytes of one packet, then the end of the connection."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    async def read(self, size: int = -1) -> bytes:
        start = self.at
        self.at = min(start + size, len(self.data))
        return self.data[start : self.at]


async def read_packet(reader: PacketBytes) -> Any:
    header = await MQTTFixedHeader.from_stream(reader)
    if header is None:
        raise Incomplete
    return await packet_class(header).from_stream(reader, fixed_header=header)


class AmqttLibrary:
    """amqtt, as a subject."""

    def hello(self) -> dict[str, Any]:
        types = every_version(ALL_TYPES, five=False)
        version = version_of("amqtt")
        return {"name": "amqtt", "version": version, "decode": types, "encode": types}

    def decode(self, data: bytes, version: str, direction: str) -> dict[str, Any]:
        reader = PacketBytes(data)
        packet: Any = None
        try:
            read_packet(reader).send(None)
        except StopIteration as done:
            packet = done.value
        return {"packet": describe(packet), "taken": reader.at}

    def encode(self, packet: Mapping[str, Any], version: str) -> bytes:
        if property_pairs(packet):
            raise Cannot("3.1.1 has no properties")
        kind = packet["type"]
        identifier = packet.get("packet_id", 0)
        built: Any
        if kind == "Publish":
            built = PublishPacket.build(
                packet["topic_name"],
                read_binary(packet.get("payload", "hex:")),
                packet.get("packet_id"),
                packet.get("dup", False),
                packet.get("qos", 0),
                packet.get("retain", False),
            )
        elif kind == "Connect":
            built = build_connect(packet)
        elif kind == "ConnAck":
            present = int(packet.get("session_present", False))
            built = ConnackPacket.build(present, packet.get("reason", 0))
        elif kind == "Subscribe":
            if any(each.keys() - {"topic_filter", "qos"} for each in packet["subscriptions"]):
                raise Cannot("it has no options besides the QoS")
            topics = [
                (each["topic_filter"], each.get("qos", 0)) for each in packet["subscriptions"]
            ]
            built = SubscribePacket.build(topics, identifier)
        elif kind == "SubAck":
            built = SubackPacket.build(identifier, list(packet["reasons"]))
        elif kind == "Unsubscribe":
            built = UnsubscribePacket.build(list(packet["topic_filters"]), identifier)
        elif kind in ("PingReq", "PingResp", "Disconnect"):
            built = CLASSES[kind]()
        else:
            if packet.get("reason") or packet.get("reasons"):
                raise Cannot(f"{kind} has no reason codes in 3.1.1")
            built = CLASSES[kind].build(identifier)
        return bytes(built.to_bytes())


def describe(packet: Any) -> dict[str, Any]:
    """What it decoded."""
    form: dict[str, Any] = {"type": TYPES[type(packet)]}
    if isinstance(packet, PublishPacket):
        form["topic_name"] = packet.topic_name
        form["payload"] = write_values(packet.data)
        form["qos"] = packet.qos
        form["retain"] = packet.retain_flag
        form["dup"] = packet.dup_flag
        form["packet_id"] = packet.packet_id
    elif isinstance(packet, ConnectPacket):
        # It puts an invented ClientId in the place of an empty one.
        form["client_id"] = "" if packet.payload.client_id_is_random else packet.client_id
        form["clean_start"] = packet.clean_session_flag
        form["keep_alive"] = packet.keep_alive
        form["user_name"] = packet.username
        # It has passwords as text.
        password = packet.password
        form["password"] = write_values(
            password.encode() if isinstance(password, str) else password
        )
        form["will"] = None
        if packet.will_flag:
            form["will"] = {
                "topic_name": packet.will_topic,
                "payload": write_values(packet.will_message),
                "qos": packet.will_qos,
                "retain": packet.will_retain_flag,
            }
    elif isinstance(packet, ConnackPacket):
        form["reason"] = packet.return_code
        form["session_present"] = bool(packet.session_parent)
    elif not isinstance(packet, PingReqPacket | PingRespPacket | DisconnectPacket):
        form["packet_id"] = packet.variable_header.packet_id
        if isinstance(packet, SubscribePacket):
            form["subscriptions"] = [
                {"topic_filter": topic, "qos": qos} for topic, qos in packet.payload.topics
            ]
        elif isinstance(packet, UnsubscribePacket):
            form["topic_filters"] = packet.payload.topics
        elif isinstance(packet, SubackPacket):
            form["reasons"] = packet.payload.return_codes
    return form


def build_connect(packet: Mapping[str, Any]) -> Any:
    level, will = packet.get("version", 5), packet.get("will")
    header = ConnectVariableHeader(keep_alive=packet.get("keep_alive", 0), proto_level=level)
    payload = ConnectPayload(packet.get("client_id", ""))
    header.clean_session_flag = packet.get("clean_start", True)
    if will is not None:
        if property_pairs(will):
            raise Cannot("3.1.1 has no properties")
        header.will_flag = True
        header.will_qos = will.get("qos", 0)
        header.will_retain_flag = will.get("retain", False)
        payload.will_topic = will["topic_name"]
        payload.will_message = read_binary(will.get("payload", "hex:"))
    if packet.get("user_name") is not None:
        header.username_flag = True
        payload.username = packet["user_name"]
    password = read_password(packet)
    if password is not None:
        header.password_flag = True
        try:
            payload.password = password.decode()
        except UnicodeDecodeError:
            raise Cannot("it has passwords as text") from None
    return ConnectPacket(variable_header=header, payload=payload)


if __name__ == "__main__":
    serve(AmqttLibrary())

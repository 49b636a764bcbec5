"""paho-mqtt: its client, cut off from the network at both ends.

`_sock_recv` hands over the bytes of one packet and then the end of the connection; `_packet_queue`
keeps what the client would send. Between them runs all that the client does with a packet, but for
CONNACK and DISCONNECT, whose handlers connect anew or hang up: there it is the decoding alone.
A client decodes what a server sends.
"""

import socket
from typing import Any

from paho.mqtt import _packet
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from semel.mqtt import (
    MQTT5,
    MQTT311,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
)
from tests.peers.facts import ABSENT, ABSENT_IN_CONNACK, NAMES, Facts, property_facts

VERSIONS = (MQTT311, MQTT5)

PROTOCOLS = {MQTT311: MQTTProtocolVersion.MQTTv311, MQTT5: MQTTProtocolVersion.MQTTv5}
DECODERS: dict[int, Any] = {
    PacketTypes.CONNACK: _packet.decode_connack,
    PacketTypes.PUBLISH: _packet.decode_publish,
    PacketTypes.PUBACK: _packet.decode_puback,
    PacketTypes.PUBREC: _packet.decode_pubrec,
    PacketTypes.PUBREL: _packet.decode_pubrel,
    PacketTypes.PUBCOMP: _packet.decode_pubcomp,
    PacketTypes.SUBACK: _packet.decode_suback,
    PacketTypes.UNSUBACK: _packet.decode_unsuback,
    PacketTypes.DISCONNECT: _packet.decode_disconnect,
}
TYPES = {
    PacketTypes.CONNACK: "ConnAck",
    PacketTypes.PUBLISH: "Publish",
    PacketTypes.PUBACK: "PubAck",
    PacketTypes.PUBREC: "PubRec",
    PacketTypes.PUBREL: "PubRel",
    PacketTypes.PUBCOMP: "PubComp",
    PacketTypes.SUBACK: "SubAck",
    PacketTypes.UNSUBACK: "UnsubAck",
    PacketTypes.PINGREQ: "PingReq",
    PacketTypes.PINGRESP: "PingResp",
    PacketTypes.DISCONNECT: "Disconnect",
}
# It has the singular for properties that may be repeated.
WORDS = {
    "user_properties": "UserProperty",
    "subscription_identifiers": "SubscriptionIdentifier",
    "subscription_identifiers_available": "SubscriptionIdentifierAvailable",
    "maximum_qos": "MaximumQoS",
}


def word(name: str) -> str:
    return WORDS.get(name) or "".join(part.capitalize() for part in name.split("_"))


class CutOffClient(Client):
    """A client between bytes that came in and bytes that would go out."""

    def __init__(self, version: int, incoming: bytes = b"", **options: Any) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, protocol=PROTOCOLS[version], **options)
        self._sock = socket.socket()  # never connected; without one it writes nothing
        self.incoming = incoming
        self.decoded: Any = None
        self.outgoing: bytes | None = None

    def _sock_recv(self, bufsize: int) -> bytes:
        piece, self.incoming = self.incoming[:bufsize], self.incoming[bufsize:]
        return piece

    def _packet_queue(
        self, command: int, packet: bytes | bytearray, mid: int, qos: int, info: object = None
    ) -> MQTTErrorCode:
        self.outgoing = bytes(packet)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _packet_handle(self) -> MQTTErrorCode:
        first = self._in_packet["command"]
        packet_type = first >> 4
        if packet_type in DECODERS:
            body = self._in_packet["packet"]
            self.decoded = DECODERS[packet_type](first, body, self._protocol)
        if packet_type in (PacketTypes.CONNACK, PacketTypes.DISCONNECT):
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        return super()._packet_handle()


def close(client: CutOffClient) -> None:
    if client._sock is not None:
        client._sock.close()
        client._sock = None


def receives(packet_type: int, version: int) -> bool:
    """In 3.1.1 a server sends no DISCONNECT."""
    return packet_type in TYPES and (packet_type != PacketTypes.DISCONNECT or version == MQTT5)


def decode(data: bytes, version: int) -> Facts:
    """The facts of the packet; raises whatever the peer raises."""
    client = CutOffClient(version, data)
    try:
        result = client._packet_read()
        if result != MQTTErrorCode.MQTT_ERR_SUCCESS:
            raise ValueError(str(result))
        packet = client.decoded
    finally:
        close(client)
    packet_type = data[0] >> 4
    facts: Facts = {"type": TYPES[packet_type]}
    absent = ABSENT
    if packet_type in (PacketTypes.CONNACK, PacketTypes.DISCONNECT):
        absent = ABSENT_IN_CONNACK
    properties = getattr(packet, "properties", None)
    if properties is not None:
        found = {name: getattr(properties, word(name), None) for name in NAMES}
        facts |= property_facts(found, absent)
    if packet_type == PacketTypes.PUBLISH:
        # Text that is no UTF-8 is refused when a program asks for the topic.
        facts["topic_name"] = packet.topic.decode()
        facts["payload"] = bytes(packet.payload)
        facts["qos"] = packet.qos
        facts["retain"] = packet.retain
        facts["dup"] = packet.dup
        facts["packet_id"] = packet.mid
    elif packet_type == PacketTypes.CONNACK:
        facts["reason"] = int(packet.rc)
        facts["session_present"] = bool(packet.flags & 1)
    elif packet_type in (PacketTypes.SUBACK, PacketTypes.UNSUBACK):
        facts["packet_id"] = packet.mid
        facts["reasons"] = [reason.value for reason in packet.reason_codes]
    elif packet_type == PacketTypes.DISCONNECT:
        facts["reason"] = 0 if packet.reason is None else packet.reason.value
    elif packet is not None:
        facts["packet_id"] = packet.mid
        facts["reason"] = packet.reason.value
    return facts


def properties_for(packet_type: int, properties: Any) -> PahoProperties | None:
    if not properties.present:
        return None
    written = PahoProperties(packet_type)
    for name in NAMES:
        value = getattr(properties, name)
        if value is not None and value != ():
            setattr(written, word(name), list(value) if isinstance(value, tuple) else value)
    return written


def encode(packet: Packet, version: int) -> bytes | None:
    """Its bytes for the same packet; None if it has no way to say it."""
    if isinstance(packet, Connect):
        return encode_connect(packet)
    client = CutOffClient(version)
    try:
        send(client, packet, version)
    finally:
        close(client)
    return client.outgoing


def send(client: CutOffClient, packet: Packet, version: int) -> None:
    if isinstance(packet, Publish):
        client._send_publish(
            packet.packet_id,
            packet.topic_name.encode(),
            packet.payload,
            packet.qos,
            packet.retain,
            packet.dup,
            properties=properties_for(PacketTypes.PUBLISH, packet.properties),
        )
    elif isinstance(packet, PingReq):
        client._send_pingreq()
    elif isinstance(packet, Disconnect):
        reason = ReasonCode(PacketTypes.DISCONNECT, identifier=packet.reason)
        properties = properties_for(PacketTypes.DISCONNECT, packet.properties)
        client._send_disconnect(reason if packet.reason or properties else None, properties)
    elif isinstance(packet, Subscribe):
        client._last_mid = packet.packet_id - 1
        topics: list[tuple[bytes, Any]] = []
        for each in packet.subscriptions:
            options = SubscribeOptions(
                each.qos, each.no_local, each.retain_as_published, each.retain_handling
            )
            choice = options if version == MQTT5 else each.qos
            topics.append((each.topic_filter.encode(), choice))
        properties = properties_for(PacketTypes.SUBSCRIBE, packet.properties)
        client._send_subscribe(0, topics, properties)
    elif isinstance(packet, Unsubscribe):
        client._last_mid = packet.packet_id - 1
        filters = [each.encode() for each in packet.topic_filters]
        properties = properties_for(PacketTypes.UNSUBSCRIBE, packet.properties)
        client._send_unsubscribe(0, filters, properties)
    elif isinstance(packet, PubAck | PubRec | PubRel | PubComp):
        # It answers without a reason code or properties.
        if packet.reason or packet.properties.present:
            return
        if isinstance(packet, PubAck):
            client._send_puback(packet.packet_id)
        elif isinstance(packet, PubRec):
            client._send_pubrec(packet.packet_id)
        elif isinstance(packet, PubRel):
            client._send_pubrel(packet.packet_id)
        else:
            client._send_pubcomp(packet.packet_id)


def encode_connect(packet: Connect) -> bytes | None:
    # Its passwords come with a user name, and it makes up a ClientId where there is none.
    if (packet.password is not None and packet.user_name is None) or not packet.client_id:
        return None
    version = packet.version
    options: dict[str, Any] = {"client_id": packet.client_id}
    if version == MQTT311:
        options["clean_session"] = packet.clean_start
    client = CutOffClient(version, **options)
    try:
        if version == MQTT5:
            client._clean_start = packet.clean_start
            client._connect_properties = properties_for(PacketTypes.CONNECT, packet.properties)
        if packet.user_name is not None:
            client._username = packet.user_name.encode()
            client._password = packet.password
        will = packet.will
        if will is not None:
            client.will_set(
                will.topic_name,
                will.payload,
                will.qos,
                will.retain,
                properties_for(PacketTypes.WILLMESSAGE, will.properties)
                if version == MQTT5
                else None,
            )
        client._send_connect(packet.keep_alive)
    finally:
        close(client)
    return client.outgoing

"""paho-mqtt as a subject: its client, cut off from the network at both ends.

`_sock_recv` hands over the bytes of one packet and then the end of the connection; `_packet_queue`
keeps what the client would send. Between them runs all that the client does with a packet, except
for CONNACK and DISCONNECT, whose handlers connect again or hang up: there it is the decoding alone.
Packets are sent through the public functions, with their checks. What those cannot say (a Packet
Identifier of the caller's, DUP at QoS 0), the library cannot.
"""

import socket
from collections.abc import Mapping
from typing import Any, Final

from semel.probe.adapters.adapter import (
    Cannot,
    end_without,
    every_version,
    property_pairs,
    read_binary,
    read_password,
    serve,
    single_properties,
    write_values,
)

try:
    import paho.mqtt
    from paho.mqtt import _packet
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode
    from paho.mqtt.subscribeoptions import SubscribeOptions
except ImportError:
    end_without("paho-mqtt", "paho-mqtt")

PROTOCOLS: Final = {"3.1.1": MQTTProtocolVersion.MQTTv311, "5.0": MQTTProtocolVersion.MQTTv5}
DECODERS: Final[Mapping[int, Any]] = {
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
TYPES: Final = {
    PacketTypes.CONNACK: "ConnAck",
    PacketTypes.PUBLISH: "Publish",
    PacketTypes.PUBACK: "PubAck",
    PacketTypes.PUBREC: "PubRec",
    PacketTypes.PUBREL: "PubRel",
    PacketTypes.PUBCOMP: "PubComp",
    PacketTypes.SUBACK: "SubAck",
    PacketTypes.UNSUBACK: "UnsubAck",
    PacketTypes.PINGRESP: "PingResp",
    PacketTypes.DISCONNECT: "Disconnect",
}
WRITTEN: Final = (
    *("Connect", "Publish", "PubAck", "PubRec", "PubRel", "PubComp", "Subscribe", "Unsubscribe"),
    *("PingReq", "Disconnect"),
)
# It has the singular for properties that may be repeated.
WORDS: Final = {
    "user_properties": "UserProperty",
    "subscription_identifiers": "SubscriptionIdentifier",
    "subscription_identifiers_available": "SubscriptionIdentifierAvailable",
    "maximum_qos": "MaximumQoS",
}
NAMES: Final = (
    *("payload_format_indicator", "message_expiry_interval", "content_type", "response_topic"),
    *("correlation_data", "subscription_identifiers", "session_expiry_interval"),
    *("assigned_client_identifier", "server_keep_alive", "authentication_method"),
    *("authentication_data", "request_problem_information", "will_delay_interval"),
    *("request_response_information", "response_information", "server_reference"),
    *("reason_string", "receive_maximum", "topic_alias_maximum", "topic_alias", "maximum_qos"),
    *("retain_available", "user_properties", "maximum_packet_size"),
    *("wildcard_subscription_available", "subscription_identifiers_available"),
    *("shared_subscription_available",),
)


def word(name: str) -> str:
    """Its name of a property."""
    return WORDS.get(name) or "".join(part.capitalize() for part in name.split("_"))


class IsolatedPahoClient(Client):  # type: ignore[misc, unused-ignore]
    """A client between bytes that came in and bytes that would go out."""

    def __init__(self, version: str, incoming: bytes = b"", **options: Any) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, protocol=PROTOCOLS[version], **options)
        self._sock = socket.socket()  # never connected; without one it writes nothing
        self.incoming = incoming
        self.decoded: Any = None
        self.outgoing = b""

    def _sock_recv(self, bufsize: int) -> bytes:
        piece, self.incoming = self.incoming[:bufsize], self.incoming[bufsize:]
        return piece

    def _packet_queue(
        self, command: int, packet: bytes | bytearray, mid: int, qos: int, info: object = None
    ) -> Any:
        self.outgoing = bytes(packet)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _packet_handle(self) -> Any:
        first = self._in_packet["command"]
        packet_type = first >> 4
        if packet_type in DECODERS:
            body = self._in_packet["packet"]
            self.decoded = DECODERS[packet_type](first, body, self._protocol)
        if packet_type in (PacketTypes.CONNACK, PacketTypes.DISCONNECT):
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        return super()._packet_handle()

    def close_socket(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def properties_for(packet_type: int, holder: Mapping[str, Any]) -> Any:
    """The properties of a packet or will; None if there are none."""
    if not property_pairs(holder):
        return None
    written: Any = Properties(packet_type)  # type: ignore[no-untyped-call, unused-ignore]
    for name, value in single_properties(holder).items():
        if isinstance(value, list):
            value = [tuple(each) if isinstance(each, list) else each for each in value]
        setattr(written, word(name), value)
    return written


class PahoLibrary:
    """paho-mqtt, as a subject."""

    def hello(self) -> dict[str, Any]:
        read = [*TYPES.values()]
        return {
            "name": "paho-mqtt",
            "version": paho.mqtt.__version__,
            # In 3.1.1 a server sends no DISCONNECT.
            "decode": {"3.1.1": [each for each in read if each != "Disconnect"], "5.0": read},
            "encode": every_version(WRITTEN),
        }

    def decode(self, data: bytes, version: str, direction: str) -> dict[str, Any]:
        client = IsolatedPahoClient(version, data)
        try:
            result = client._packet_read()
            if result != MQTTErrorCode.MQTT_ERR_SUCCESS:
                raise ValueError(str(result))
            return {"packet": describe(data[0] >> 4, client.decoded)}
        finally:
            client.close_socket()

    def encode(self, packet: Mapping[str, Any], version: str) -> bytes:
        if packet["type"] == "Connect":
            return encode_connect(packet, version)
        client = IsolatedPahoClient(version)
        try:
            send(client, packet, version)
        finally:
            client.close_socket()
        return client.outgoing


def describe(packet_type: int, packet: Any) -> dict[str, Any]:
    """What it decoded."""
    form: dict[str, Any] = {"type": TYPES[packet_type]}
    properties = getattr(packet, "properties", None)
    if properties is not None:
        found = {name: getattr(properties, word(name), None) for name in NAMES}
        form["properties"] = {
            name: write_values(value) for name, value in found.items() if value is not None
        }
    if packet_type == PacketTypes.PUBLISH:
        # Text that is no UTF-8 is refused when a program asks for the topic.
        form["topic_name"] = packet.topic.decode()
        form["payload"] = write_values(packet.payload)
        form["qos"] = packet.qos
        form["retain"] = packet.retain
        form["dup"] = packet.dup
        form["packet_id"] = packet.mid
    elif packet_type == PacketTypes.CONNACK:
        form["reason"] = int(packet.rc)
        form["session_present"] = bool(packet.flags & 1)
    elif packet_type in (PacketTypes.SUBACK, PacketTypes.UNSUBACK):
        form["packet_id"] = packet.mid
        form["reasons"] = [reason.value for reason in packet.reason_codes]
    elif packet_type == PacketTypes.DISCONNECT:
        form["reason"] = 0 if packet.reason is None else packet.reason.value
    elif packet is not None:
        form["packet_id"] = packet.mid
        form["reason"] = packet.reason.value
    return form


def number_next(client: Any, packet: Mapping[str, Any]) -> None:
    """Let the client number its next packet as wanted."""
    identifier = packet.get("packet_id", 0)
    if not 0 < identifier < 65_536:
        raise Cannot("the library numbers its packets itself")
    client._last_mid = identifier - 1


def send(client: Any, packet: Mapping[str, Any], version: str) -> None:
    kind = packet["type"]
    if kind == "Publish":
        send_publish(client, packet)
    elif kind == "PingReq":
        client._send_pingreq()
    elif kind == "Disconnect":
        code = packet.get("reason", 0)
        properties = properties_for(PacketTypes.DISCONNECT, packet)
        if version != "5.0":
            client._send_disconnect()
            return
        reason = ReasonCode(PacketTypes.DISCONNECT, identifier=code)
        client._send_disconnect(reason if code or properties else None, properties)
    elif kind == "Subscribe":
        number_next(client, packet)
        topics: list[tuple[str, Any]] = []
        for each in packet["subscriptions"]:
            choice: Any = each.get("qos", 0)
            if version == "5.0":
                choice = SubscribeOptions(
                    choice,
                    each.get("no_local", False),
                    each.get("retain_as_published", False),
                    each.get("retain_handling", 0),
                )
            elif len(each.keys() - {"topic_filter", "qos"}):
                raise Cannot("in 3.1.1 it has no options besides the QoS")
            topics.append((each["topic_filter"], choice))
        client.subscribe(topics, properties=properties_for(PacketTypes.SUBSCRIBE, packet))
    elif kind == "Unsubscribe":
        number_next(client, packet)
        client.unsubscribe(
            list(packet["topic_filters"]), properties_for(PacketTypes.UNSUBSCRIBE, packet)
        )
    else:
        if packet.get("reason") or property_pairs(packet):
            raise Cannot("it acknowledges without reason codes and properties")
        identifier = packet["packet_id"]
        if not 0 < identifier < 65_536:
            raise Cannot("it acknowledges what it received")
        getattr(client, f"_send_{kind.lower()}")(identifier)


def send_publish(client: Any, packet: Mapping[str, Any]) -> None:
    qos, dup = packet.get("qos", 0), packet.get("dup", False)
    payload = read_binary(packet.get("payload", "hex:"))
    properties = properties_for(PacketTypes.PUBLISH, packet)
    topic, retain = packet["topic_name"], packet.get("retain", False)
    if qos == 0 and (dup or packet.get("packet_id")):
        raise Cannot("DUP and the Packet Identifier are not the caller's")
    if qos:
        number_next(client, packet)
    if dup:
        # As it repeats a message after a reconnect.
        client._send_publish(
            packet["packet_id"], topic.encode(), payload, qos, retain, True, properties=properties
        )
        return
    client.publish(topic, payload, qos, retain, properties)


def encode_connect(packet: Mapping[str, Any], version: str) -> bytes:
    user_name, password = packet.get("user_name"), read_password(packet)
    if password is not None and user_name is None:
        raise Cannot("its passwords come with a user name")
    if not packet.get("client_id"):
        raise Cannot("it invents a ClientId where there is none")
    if packet.get("version", 5) != (5 if version == "5.0" else 4):
        raise Cannot("the level follows the version")
    options: dict[str, Any] = {"client_id": packet["client_id"]}
    if version == "3.1.1":
        options["clean_session"] = packet.get("clean_start", True)
    client = IsolatedPahoClient(version, **options)
    try:
        if version == "5.0":
            client._clean_start = packet.get("clean_start", True)
            client._connect_properties = properties_for(PacketTypes.CONNECT, packet)
        if user_name is not None:
            client.username_pw_set(user_name, password)  # type: ignore[arg-type, unused-ignore]
        will = packet.get("will")
        if will is not None:
            client.will_set(
                will["topic_name"],
                read_binary(will.get("payload", "hex:")),
                will.get("qos", 0),
                will.get("retain", False),
                properties_for(PacketTypes.WILLMESSAGE, will) if version == "5.0" else None,
            )
        client._send_connect(packet.get("keep_alive", 0))
    finally:
        client.close_socket()
    return client.outgoing


if __name__ == "__main__":
    serve(PahoLibrary())
